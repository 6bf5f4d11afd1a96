//! The cluster's state for people: one line while `ebb dev` runs, a page for `ebb status`.

use crate::cli::pool;
use crate::cli::readings::Readings;
use crate::cli::words::{letter, word};
use crate::daemon::clock;
use ebb_output::wrapped;
use ebb_types::{
    Bytes, ClusterPower, ClusterStatus, DamageVitals, Depth, Exam, PathStatus, PoolId, Room, ScrubVitals,
    ServerState, ServerStatus, Watts, counted,
};
use std::fmt::Write;

/// `, of which 300.0 W are 2 of 3 rack switches`
fn rack_switches(status: &ClusterStatus) -> String {
    status.rack_switches.map_or(String::new(), |s| {
        format!(", of which {} are {} of {} rack switches", s.modelled_watts, s.racks - s.asleep, s.racks)
    })
}

/// `254.2 W (modelled); all awake 556.2 W, an oracle 220.4 W`. What servers draw for some seconds to go down or to come
/// up is named apart: no cluster that stays as it is would draw it.
fn power(power: ClusterPower, switches: &str, servers: &[ServerStatus]) -> String {
    let ways: Vec<Watts> = servers.iter().filter_map(|s| s.transition_modelled_watts).collect();
    let more: Watts = ways.iter().copied().sum();
    let ways = match ways.len() {
        0 => String::new(),
        1 => format!(", and {more} more for some seconds: a server goes down or comes up"),
        many => format!(", and {more} more for some seconds: {many} servers go down or come up"),
    };
    format!(
        "{} (modelled){switches}{ways}; all awake {}, an oracle {}",
        power.modelled_watts - more,
        power.always_on_modelled_watts,
        power.oracle_modelled_watts
    )
}

/// What a server draws by the model, and whether it is on its way down.
fn modelled(server: &ServerStatus) -> String {
    let going_down = server.state == ServerState::Asleep && server.transition_modelled_watts.is_some();
    let going_down = if going_down { " (going down)" } else { "" };
    server.modelled_watts.map_or("unknown".into(), |w| format!("{:.1}{going_down}", w.0))
}

/// What an operator looks for first.
fn health(status: &ClusterStatus) -> String {
    let health = status.health();
    let mut out = format!("health   {}\n", health.word.name());
    for because in &health.because {
        let _ = writeln!(out, "         {because}");
    }
    if let Some(Room { used_bytes, capacity_bytes, servers }) = status.room() {
        let percent = 100.0 * used_bytes as f64 / capacity_bytes.max(1) as f64;
        let (used, all) = (Bytes(used_bytes), Bytes(capacity_bytes));
        let _ = writeln!(
            out,
            "room     {used} of {all} used by all copies, {percent:.0} %, on {servers} servers"
        );
    }
    let s = status.served();
    let _ = writeln!(
        out,
        "serves   {:.0} reads/s of {}/s, {:.0} writes/s of {}/s",
        s.reads_per_second,
        Bytes(s.read_bytes_per_second as u64),
        s.writes_per_second,
        Bytes(s.written_bytes_per_second as u64)
    );
    out
}

fn watts(watts: Option<Watts>) -> String {
    watts.map_or("unknown".into(), |w| w.to_string())
}

/// `gear 1/3  3 of 9 servers  A z z A z z A z z  217.8 W modelled  load 0.12  debt 1.2 MiB`
pub fn line(status: &ClusterStatus) -> String {
    let letter_of = |s: &ServerStatus| if stands(s) == REFUSES { 'r' } else { letter(s.state) };
    let letters: String = status.servers.iter().map(letter_of).collect();
    let shifting = match (status.gear.dry_run, status.gear.shifting) {
        (true, _) => " (dry run)",
        (false, true) => " (shifting)",
        (false, false) => "",
    };
    let mut line = format!(
        "gear {}/{}{shifting}  {} of {} servers  {letters}  {} modelled  load {:.2}  debt {}",
        status.gear.gear,
        status.params.replicas,
        status.gear.servers,
        replicated(status),
        watts(status.power.map(|power| power.modelled_watts)),
        status.gear.load,
        Bytes(status.debt_bytes),
    );
    if status.groups.at_risk > 0 {
        let _ = write!(line, "  AT RISK: {}", counted(status.groups.at_risk.into(), "group"));
    }
    if status.groups.not_served > 0 {
        let _ = write!(line, "  NOT SERVED: {}", counted(status.groups.not_served.into(), "group"));
    }
    line
}

/// Servers of the replicated pool, which gears concern.
fn replicated(status: &ClusterStatus) -> usize {
    let there = |s: &&ServerStatus| s.pool == PoolId::REPLICATED && !s.logger && s.state != ServerState::Lost;
    status.servers.iter().filter(there).count()
}

/// `1 leads, 2 votes, 3 votes, NOT HEARD for 20 s`
fn metadata(members: &[ebb_types::MetadataMember]) -> String {
    let stand = |m: &ebb_types::MetadataMember| match (m.leads, m.votes, m.learns) {
        (true, _, _) => "leads",
        (_, true, _) => "votes",
        (_, _, true) => "learns, and will vote",
        _ => "is not a member: start it with --join",
    };
    let silent = |m: &ebb_types::MetadataMember| match m.heard_millis.filter(|_| m.is_silent()) {
        Some(millis) => format!(", NOT HEARD for {} s", millis / 1000),
        None => String::new(),
    };
    members.iter().map(|m| format!("{} {}{}", m.id, stand(m), silent(m))).collect::<Vec<_>>().join(", ")
}

/// Results of the scrubs, and how late they are.
fn scrubs(status: &ClusterStatus) -> String {
    let all = || status.servers.iter().filter_map(|s| s.vitals.as_ref());
    let sum = |f: fn(&ScrubVitals) -> u64| all().map(|v| f(&v.scrub)).sum::<u64>();
    let oldest = all().map(|v| v.scrub.oldest_seconds).max().unwrap_or(0);
    let mut text = format!(
        "{} of {} replicas due{}, the longest unverified for {:.1} days\n         since the servers started {} read, {} damaged blocks repaired, {} of {} differing blocks made equal",
        sum(|s| s.due.into()),
        sum(|s| s.replicas.into()),
        match sum(|s| s.asked.into()) {
            0 => String::new(),
            asked => format!(" and {asked} requested"),
        },
        oldest as f64 / 86_400.0,
        Bytes(sum(|s| s.checked_bytes)),
        all().map(|v| v.repaired_blocks).sum::<u64>(),
        sum(|s| s.equalled_blocks),
        sum(|s| s.differing_blocks),
    );
    for (count, what) in [
        (sum(|s| s.overdue.into()), "OVERDUE"),
        (sum(|s| s.unsound.into()), "with damage that no awake copy could repair"),
    ] {
        if count > 0 {
            let _ = write!(text, "\n         {} {what}", counted(count, "replica"));
        }
    }
    text
}

/// Damage found since the servers started; one line per server that has any.
fn damage(status: &ClusterStatus) -> String {
    let mut out = String::new();
    for server in &status.servers {
        let Some(vitals) = server.vitals.as_ref().filter(|v| v.damage != DamageVitals::default()) else {
            continue;
        };
        let d = vitals.damage;
        let _ = writeln!(
            out,
            "damage   server {}: found {} corrupt and {} lost blocks, repaired {}, gave up on {}; {} reads missed written data; refused {} garbled messages",
            server.id.0, d.corrupt, d.lost, vitals.repaired_blocks, d.unrepaired, d.sought, d.garbled,
        );
    }
    out
}

/// One line per server whose program did what it never should.
fn bugs(status: &ClusterStatus) -> String {
    let mut out = String::new();
    for server in &status.servers {
        let bugs = server.vitals.as_ref().map_or(0, |vitals| vitals.bugs);
        if bugs > 0 {
            let id = server.id.0;
            let _ = writeln!(
                out,
                "BUG      server {id}: what cannot happen happened, {bugs} times; please report its log"
            );
        }
    }
    out
}

/// Gears concern the servers of the replicated pool only.
fn gear_group(server: &ServerStatus) -> String {
    match (server.pool, server.logger) {
        (_, true) => "logger".to_owned(),
        (PoolId::REPLICATED, false) => server.gear_group.0.to_string(),
        _ => "-".to_owned(),
    }
}

/// It is to sleep, and it stays up.
const REFUSES: &str = "refuses";

/// One that refuses to sleep is not shown asleep.
fn stands(server: &ServerStatus) -> &'static str {
    match (server.state, server.depth) {
        (_, Some(Depth::Off)) => "off",
        (ServerState::Asleep, None) if server.switch_trouble.is_some() => REFUSES,
        (state, _) => word(state),
    }
}

/// What there is to say of a server's switch, below its row.
fn switch(server: &ServerStatus) -> String {
    let power = &server.power;
    let mut out = String::new();
    let mut say = |what: &str, text: &str| {
        let _ = writeln!(out, "        {what}: {text}");
    };
    if let Some(trouble) = &server.switch_trouble {
        say(if stands(server) == REFUSES { "stays up" } else { "switch" }, trouble);
    }
    if let Some(since) = power.maintenance_unix_millis {
        let stands = if power.may_be_stopped { "it may be stopped" } else { "others still depend on it" };
        say("maintenance", &format!("since {}; {stands}", clock::weekday_and_time(since)));
    }
    if let Some(Exam { faults, .. }) = power.exam.as_ref().filter(|exam| !exam.faults.is_empty()) {
        say("exam", &format!("FAILED: {}", faults.join("; ")));
    }
    for PathStatus { name, failure, .. } in power.paths.iter().filter(|path| !path.proven) {
        let why = failure.as_ref().map_or("never tested".into(), |f| format!("did not wake it: {}", f.why));
        say("wake path", &format!("{name}, {why}"));
    }
    let said = power.maintenance_unix_millis.is_some() || power.paths.is_empty();
    if let Some(why) = power.kept_awake.as_ref().filter(|_| !said) {
        say("stays awake", why);
    }
    out
}

/// `measured`: what the servers' controllers say, if they were asked; `why`: also why each server is awake, or may
/// sleep.
pub fn page(status: &ClusterStatus, measured: Option<&Readings>, why: bool) -> String {
    let gear = &status.gear;
    let mut out = String::new();
    let mode = match gear.mode {
        ebb_types::GearMode::Auto => "automatic",
        ebb_types::GearMode::Manual => "set by hand",
    };
    let forecast = gear.forecast.map_or("none yet".into(), |f| format!("{f:.2}"));
    out += &health(status);
    let _ = writeln!(
        out,
        "gear     {} of {}, {} of {} servers, {mode}{}{}",
        gear.gear,
        status.params.replicas,
        gear.servers,
        replicated(status),
        if gear.shifting { ", shifting" } else { "" },
        [
            (gear.dry_run, ", a dry run: no server is switched"),
            (gear.emergency, ", more servers awake because copies are missing"),
            (gear.short_of_room, ", more servers awake because awake ones fill up"),
        ]
        .into_iter()
        .filter_map(|(holds, words)| holds.then_some(words))
        .collect::<String>(),
    );
    let _ = writeln!(out, "load     {:.2} servers' worth (forecast for this hour: {forecast})", gear.load);
    let all = status.power.map(|all| power(all, &rack_switches(status), &status.servers));
    let _ = writeln!(out, "power    {}", all.unwrap_or("unknown".into()));
    if let Some(measured) = measured {
        let _ = writeln!(out, "measured {measured}");
    }
    let _ = writeln!(out, "debt     {} kept for sleeping servers", Bytes(status.debt_bytes));
    let _ = writeln!(out, "metadata {}", metadata(&status.metadata));
    let g = &status.groups;
    let _ = writeln!(
        out,
        "groups   {} in all: {} in sync, {} with a replica asleep or failed, {} catching up",
        g.total, g.in_sync, g.away, g.catching_up
    );
    for (count, what) in [
        (g.without_primary, "not served: no server can"),
        (
            g.not_served.saturating_sub(g.without_primary),
            "not fully served: their primaries settle what a crash left, and may wait for room or for copies",
        ),
        (g.without_target, "refuse writes: too few servers are awake for r copies"),
        (g.at_risk, "at risk: some writes have fewer than r copies on awake servers"),
        (g.sharing_rack, "with two copies in one rack: both are lost if that rack fails"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "         {count} {what}");
        }
    }
    if g.sharing_rack == 0 {
        let _ = writeln!(out, "racks    the copies of each group are in different racks");
    }
    out += &pool::lines(&status.pools, &status.servers);
    let _ = writeln!(out, "scrub    {}", scrubs(status));
    out += &damage(status);
    out += &bugs(status);
    for note in &status.notes {
        let _ = writeln!(out, "{}", wrapped("note     ", note));
    }
    out + &servers(status, measured, why)
}

/// A row per server, and what there is to say of it below.
fn servers(status: &ClusterStatus, measured: Option<&Readings>, why: bool) -> String {
    let more = if measured.is_some() { "  measured  model error" } else { "" };
    let mut out = format!(
        "\nserver  rack  gear group  state     primaries  holder of  used        debt        watts (modelled){more}\n"
    );
    for s in &status.servers {
        let vitals = |f: fn(&ebb_types::Vitals) -> u64| {
            s.vitals.as_ref().map_or("-".into(), |v| Bytes(f(v)).to_string())
        };
        let modelled = modelled(s);
        let watts = match measured.map(|measured| measured.columns(s.id)) {
            Some([watts, error]) => format!("{modelled:<17} {watts:<9} {error}"),
            None => modelled,
        };
        let _ = writeln!(
            out,
            "{:<7} {:<5} {:<11} {:<9} {:<10} {:<10} {:<11} {:<11} {watts}",
            s.id.0,
            s.rack.0,
            gear_group(s),
            stands(s),
            s.primaries,
            s.holder_of,
            vitals(|v| v.used_bytes),
            vitals(|v| v.debt_bytes),
        );
        if why {
            let _ = writeln!(out, "        why: {}", s.why);
        }
        out += &switch(s);
        if let Some(why) = measured.and_then(|measured| measured.absent(s.id)) {
            let _ = writeln!(out, "        not measured: {why}");
        }
    }
    out
}

/// `ebb status --servers`: a row per server with its lease [Sierra §3.1], and with what is in its versioned log, which
/// it keeps for others [Sierra §3.6].
pub fn leases(servers: &[ServerStatus]) -> String {
    let seconds =
        |millis: Option<u64>| millis.map_or("-".into(), |millis| format!("{:.1} s", millis as f64 / 1e3));
    let mut out = String::from(
        "\nserver  heard ago  lease ends in  holder of  log         kept since    offloaded   reclaimed\n",
    );
    for s in servers {
        // A sleeping server's last figure is stale.
        let bytes = |of: fn(&ebb_types::Vitals) -> u64| {
            let vitals = s.vitals.as_ref().filter(|_| s.state.is_live());
            vitals.map_or("-".into(), |vitals| Bytes(of(vitals)).to_string())
        };
        let _ = writeln!(
            out,
            "{:<7} {:<10} {:<14} {:<10} {:<11} {:<13} {:<11} {}",
            s.id.0,
            seconds(s.heartbeat_age_millis),
            seconds(s.lease_left_millis),
            s.holder_of,
            bytes(|v| v.debt_bytes),
            s.debt_since_unix_millis.map_or("-".into(), clock::weekday_and_time),
            bytes(|v| v.offloaded_bytes),
            bytes(|v| v.reclaimed_bytes),
        );
    }
    out + "A lease ends by the leader's clock; a server without one serves nothing. Log: what a server keeps for others;\n\
           offloaded, reclaimed: what it has taken for them, and what they have taken back, since it started.\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{GearGroup, Incarnation, PowerStatus, RackId, ServerId, StoreId, Why};

    #[test]
    fn a_metadata_server_that_is_not_heard_is_shown() {
        let member = |id, heard_millis: Option<u64>| ebb_types::MetadataMember {
            id,
            votes: true,
            learns: false,
            leads: heard_millis.is_none(),
            heard_millis,
        };
        let text = metadata(&[member(1, None), member(2, Some(200)), member(3, Some(20_400))]);
        assert_eq!(text, "1 leads, 2 votes, 3 votes, NOT HEARD for 20 s");
    }

    fn asleep() -> ServerStatus {
        ServerStatus {
            id: ServerId(5),
            rack: RackId(1),
            pool: PoolId::REPLICATED,
            gear_group: GearGroup(1),
            logger: false,
            seat: ebb_types::Seat::default(),
            copies: 0,
            address: String::new(),
            state: ServerState::Asleep,
            why: Why::NotNeeded,
            depth: Some(Depth::Standby),
            incarnation: Incarnation(1),
            store: StoreId(1),
            vitals: None,
            heartbeat_age_millis: None,
            lease_left_millis: None,
            primaries: 0,
            holder_of: 0,
            debt_since_unix_millis: None,
            modelled_watts: Some(Watts(61.8)),
            transition_modelled_watts: None,
            switch_trouble: Some("the controller does not answer".into()),
            power: PowerStatus::default(),
        }
    }

    #[test]
    fn each_server_has_its_lease_and_what_it_keeps_for_others() {
        let vitals = ebb_types::Vitals {
            debt_bytes: 3 << 20,
            offloaded_bytes: 5 << 20,
            reclaimed_bytes: 2 << 20,
            ..Default::default()
        };
        let awake = ServerStatus {
            id: ServerId(1),
            state: ServerState::Awake,
            vitals: Some(vitals.clone()),
            heartbeat_age_millis: Some(340),
            lease_left_millis: Some(1_660),
            holder_of: 12,
            debt_since_unix_millis: Some(1_795_305_600_000),
            ..asleep()
        };
        let stale = ServerStatus { vitals: Some(vitals), heartbeat_age_millis: Some(60_000), ..asleep() };
        let text = leases(&[awake, stale]);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(
            rows[1..4],
            [
                "server  heard ago  lease ends in  holder of  log         kept since    offloaded   reclaimed",
                "1       0.3 s      1.7 s          12         3.0 MiB     Sun 00:00:00  5.0 MiB     2.0 MiB",
                "5       60.0 s     -              0          -           -             -           -",
            ]
        );
    }

    #[test]
    fn what_servers_draw_on_their_way_is_named_apart() {
        let all = ClusterPower {
            modelled_watts: Watts(410.0),
            always_on_modelled_watts: Watts(360.0),
            oracle_modelled_watts: Watts(120.0),
        };
        let mut servers = [asleep(), asleep(), asleep()];
        assert_eq!(power(all, "", &servers), "410.0 W (modelled); all awake 360.0 W, an oracle 120.0 W");
        for server in &mut servers[1..] {
            server.transition_modelled_watts = Some(Watts(76.0));
        }
        assert_eq!(
            power(all, "", &servers),
            "258.0 W (modelled), and 152.0 W more for some seconds: 2 servers go down or come up; all awake 360.0 W, an oracle 120.0 W"
        );
        assert_eq!(
            (modelled(&servers[0]).as_str(), modelled(&servers[1]).as_str()),
            ("61.8", "61.8 (going down)")
        );
        servers[1].state = ServerState::Waking;
        assert_eq!(modelled(&servers[1]), "61.8", "its state says it");
    }

    #[test]
    fn a_server_that_refuses_to_sleep_is_not_shown_asleep_and_says_why() {
        let mut server = asleep();
        assert_eq!((stands(&server), switch(&server).contains("switch: the controller")), ("asleep", true));
        (server.depth, server.switch_trouble) = (None, Some("refused to sleep: no card".into()));
        assert_eq!(stands(&server), "refuses");
        assert!(switch(&server).contains("stays up: refused to sleep: no card"), "{}", switch(&server));
        server.state = ServerState::Waking;
        assert_eq!(stands(&server), "waking");
    }
}
