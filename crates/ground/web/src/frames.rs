//! What the stream carries: once everything that the page has seen, then each second what is true now.
//!
//! Of each server a second costs one letter; what there is to say of one is asked for when somebody looks at it. The
//! sentences are those of `ebb status --why` and `ebb notices`.

use crate::history::{Figures, Series, Strip};
use ebb_types::{
    ClusterPower, ClusterStatus, EnergyStatus, GearGroup, GearMode, GearStatus, GroupCounts, Health,
    HourRecord, LatencyFigures, LatencyStatus, LoadBand, MetadataMember, NoticeRecord, PlannedHour, PoolId,
    PoolStatus, RackId, RackSwitchStatus, Room, Schedule, Served, ServerId, ServerState, ServerStatus,
    ShiftRecord, Watts,
};
use serde::{Serialize, Serializer};
use std::collections::VecDeque;

/// Notices that the page keeps.
const NOTICES_MOST: usize = 500;

/// What no status says: it is in the configuration file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Facts {
    /// The cluster's id.
    pub cluster: String,
    /// By the power model: a server asleep, as deep as the cluster lets servers sleep.
    pub asleep_watts: f64,
    /// How often a server may go to sleep in a day, on average.
    pub cycles_per_day: f64,
    /// There is a series of CO₂ per kWh.
    pub has_co2_series: bool,
    /// Some server has a management controller that measures.
    pub has_meters: bool,
}

/// A server's letter: asleep and waking are intended, failed is not.
fn letter(server: &ServerStatus) -> char {
    match server.state {
        ServerState::Awake => 'A',
        ServerState::Draining => 'D',
        // It is to sleep, and stays up.
        ServerState::Asleep if server.depth.is_none() && server.switch_trouble.is_some() => 'R',
        ServerState::Asleep => 'S',
        ServerState::Waking => 'W',
        ServerState::Failed => 'F',
        ServerState::Lost => 'L',
    }
}

/// What of a server does not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    id: ServerId,
    rack: RackId,
    pool: PoolId,
    gear_group: GearGroup,
    logger: bool,
    address: String,
}

impl Place {
    fn of(server: &ServerStatus) -> Place {
        let ServerStatus { id, rack, pool, gear_group, logger, .. } = *server;
        Place { id, rack, pool, gear_group, logger, address: server.address.clone() }
    }
}

/// An erasure-coded pool, all its sets together.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PoolNow {
    name: String,
    /// Such as `6+3`.
    code: String,
    sets: usize,
    /// Sets that sleep as a whole.
    hibernating: usize,
    servers: usize,
    servers_awake: u32,
    parity_debt_bytes: u64,
    /// What all servers store, and the data in that; absent until all have been heard.
    stored_bytes: Option<u64>,
    data_bytes: Option<u64>,
    /// How full the fullest data server's share for what it keeps is, 0 to 1; absent until one has been heard.
    fullest: Option<f64>,
}

impl PoolNow {
    fn of(pool: &PoolStatus) -> PoolNow {
        let sets = &pool.sets;
        PoolNow {
            name: pool.pool.name.clone(),
            code: pool.pool.shape.to_string(),
            sets: sets.len(),
            hibernating: sets.iter().filter(|set| set.hibernated_millis.is_some()).count(),
            servers: sets.iter().map(|set| set.entry.columns.len()).sum(),
            servers_awake: sets.iter().map(|set| set.servers_awake).sum(),
            parity_debt_bytes: sets.iter().map(|set| set.parity_debt_bytes).sum(),
            stored_bytes: sets.iter().map(|set| set.stored_bytes).sum(),
            data_bytes: sets.iter().map(|set| set.data_bytes).sum(),
            fullest: sets.iter().filter_map(|set| set.fullest).reduce(f64::max),
        }
    }
}

/// One moment of the cluster.
#[derive(Clone, Debug, Serialize)]
pub struct Now {
    at_unix_millis: u64,
    health: Health,
    /// Absent until a server has been heard.
    room: Option<Room>,
    served: Served,
    gear: GearStatus,
    replicas: u8,
    groups: GroupCounts,
    /// Replicated servers that are not lost, which gears concern.
    servers: u32,
    debt_bytes: u64,
    /// Servers that hold offload for others, how much, and when the longest-absent of those went away.
    debts: Vec<(ServerId, u64, Option<u64>)>,
    /// Of clients' requests, where they were answered; absent until the leader knows.
    latency: Option<LatencyStatus>,
    /// Where the peak of this hour is expected to lie; absent until it is known.
    forecast_band: Option<LoadBand>,
    power: Option<ClusterPower>,
    /// Of all servers since the cluster was created.
    power_cycles: u64,
    energy: Option<EnergyStatus>,
    rack_switches: Option<RackSwitchStatus>,
    metadata: Vec<MetadataMember>,
    notes: Vec<String>,
    /// Servers in maintenance.
    maintenance: Vec<ServerId>,
    pools: Vec<PoolNow>,
    /// In the servers' order.
    letters: String,
}

impl Now {
    pub fn of(status: &ClusterStatus, outlook: &Outlook, at_unix_millis: u64) -> Now {
        let there =
            |s: &&ServerStatus| s.pool == PoolId::REPLICATED && !s.logger && s.state != ServerState::Lost;
        // As in `debt_bytes`: what a sleeper said last is of before it slept.
        let holds = |s: &&ServerStatus| s.pool == PoolId::REPLICATED && s.state.is_live();
        let debt = |s: &ServerStatus| {
            let bytes = s.vitals.as_ref().map_or(0, |vitals| vitals.debt_bytes);
            (bytes > 0).then_some((s.id, bytes, s.debt_since_unix_millis))
        };
        Now {
            at_unix_millis,
            health: status.health(),
            room: status.room(),
            served: status.served(),
            gear: status.gear.clone(),
            replicas: status.params.replicas,
            groups: status.groups,
            servers: status.servers.iter().filter(there).count() as u32,
            debt_bytes: status.debt_bytes,
            debts: status.servers.iter().filter(holds).filter_map(debt).collect(),
            latency: status.latency,
            forecast_band: outlook.band(at_unix_millis),
            power: status.power,
            power_cycles: status.servers.iter().map(|s| s.power.cycles).sum(),
            energy: status.energy,
            rack_switches: status.rack_switches,
            metadata: status.metadata.clone(),
            notes: status.notes.clone(),
            maintenance: {
                let out = |s: &&ServerStatus| s.power.maintenance_unix_millis.is_some();
                status.servers.iter().filter(out).map(|s| s.id).collect()
            },
            pools: status.pools.iter().map(PoolNow::of).collect(),
            letters: status.servers.iter().map(letter).collect(),
        }
    }

    fn figures(&self) -> Figures {
        let p99 = |of: fn(&LatencyStatus) -> Option<LatencyFigures>| {
            self.latency.as_ref().and_then(of).map(|figures| figures.p99_millis)
        };
        Figures {
            watts: self.power.map(|power| power.modelled_watts.0),
            always_on_watts: self.power.map(|power| power.always_on_modelled_watts.0),
            oracle_watts: self.power.map(|power| power.oracle_modelled_watts.0),
            load: Some(self.gear.load),
            forecast: self.gear.forecast,
            forecast_low: self.forecast_band.map(|band| band.low),
            forecast_high: self.forecast_band.map(|band| band.high),
            servers_awake: Some(self.gear.servers_awake.into()),
            debt_bytes: Some(self.debt_bytes as f64),
            reads_p99_millis: p99(|latency| latency.reads),
            writes_p99_millis: p99(|latency| latency.writes),
        }
    }

    /// By which the outlook is read again.
    pub fn size(&self) -> (u8, u32, GearMode) {
        (self.gear.gear, self.gear.servers, self.gear.mode)
    }
}

/// A notice, and the sentence that the log has.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    #[serde(flatten)]
    record: NoticeRecord,
    text: String,
}

impl From<NoticeRecord> for Told {
    fn from(record: NoticeRecord) -> Told {
        Told { text: record.notice.to_string(), record }
    }
}

/// What there is to say of one server.
#[derive(Clone, Debug, Serialize)]
pub struct OneServer {
    at_unix_millis: u64,
    #[serde(flatten)]
    status: ServerStatus,
    letter: char,
    why_text: String,
    /// By the power model: what it would draw less, asleep; absent while it is not awake, and without a model.
    sleep_saves_modelled_watts: Option<Watts>,
}

/// What changes by the hour: read when a page opens, after a shift, and once a minute.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outlook {
    /// Recorded hours, oldest first.
    pub hours: Vec<HourRecord>,
    pub plan: Vec<PlannedHour>,
    /// Unix time a day of the schedule ago or longer, and the power cycles of all servers until then; absent: no such
    /// hour is recorded.
    pub cycles_before: Option<(u64, u64)>,
    /// The newest finished shifts, oldest first.
    pub shifts: Vec<ShiftRecord>,
    pub schedule: Schedule,
}

/// Finished shifts that a page lists.
const SHIFTS_SHOWN: usize = 20;

impl Outlook {
    pub fn new(
        hours: Vec<HourRecord>,
        plan: Vec<PlannedHour>,
        mut shifts: Vec<ShiftRecord>,
        schedule: Schedule,
        now_unix_millis: u64,
    ) -> Outlook {
        let ends = |hour: &HourRecord| schedule.hour_begins(hour.hour + 1);
        let day_ago =
            now_unix_millis.saturating_sub(schedule.hour_millis * u64::from(schedule.hours_per_day));
        let before = hours.iter().rev().find(|hour| ends(hour) <= day_ago);
        let cycles_before = before.map(|hour| (ends(hour), hour.power_cycles));
        shifts.drain(..shifts.len().saturating_sub(SHIFTS_SHOWN));
        Outlook { hours, plan, cycles_before, shifts, schedule }
    }

    /// Of the hour of this moment.
    fn band(&self, at_unix_millis: u64) -> Option<LoadBand> {
        let hour = self.plan.iter().rev().find(|hour| hour.from_unix_millis <= at_unix_millis)?;
        hour.band.filter(|_| at_unix_millis - hour.from_unix_millis < self.schedule.hour_millis)
    }
}

/// Since when the cluster does not answer, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trouble {
    pub since_unix_millis: u64,
    pub why: String,
}

/// An event of the stream: its name and its JSON.
#[derive(Clone, Debug)]
pub struct Frame {
    pub name: &'static str,
    pub json: String,
}

fn frame(name: &'static str, body: &impl Serialize) -> Frame {
    // These types have no maps with other keys than text, and no float that is not finite is an error in JSON: it is
    // null.
    Frame { name, json: serde_json::to_string(body).expect("plain types become JSON") }
}

#[derive(Serialize)]
struct Tick<'a> {
    now: &'a Now,
    #[serde(skip_serializing_if = "<[Told]>::is_empty")]
    notices: &'a [Told],
}

/// All that the page has seen, as the first event of every page tells it.
#[derive(Debug, Default, Serialize)]
pub struct Seen {
    facts: Facts,
    #[serde(rename = "servers")]
    places: Vec<Place>,
    strip: Strip,
    #[serde(serialize_with = "columns")]
    series: Series,
    pub outlook: Outlook,
    pub notices: VecDeque<Told>,
    pub now: Option<Now>,
    pub trouble: Option<Trouble>,
    /// As `ebb status --json` prints it.
    #[serde(skip)]
    pub status: Option<ClusterStatus>,
}

fn columns<S: Serializer>(series: &Series, out: S) -> Result<S::Ok, S::Error> {
    series.columns().serialize(out)
}

impl Seen {
    pub fn new(facts: Facts) -> Seen {
        Seen { facts, ..Seen::default() }
    }

    pub fn hello(&self) -> Frame {
        frame("hello", self)
    }

    /// Takes what the leader said; `silence_millis`: a longer silence is a gap, a longer step back a clock that was
    /// set. Returns what pages are sent.
    pub fn take(
        &mut self,
        status: ClusterStatus,
        notices: Vec<NoticeRecord>,
        at_unix_millis: u64,
        silence_millis: u64,
    ) -> Frame {
        let now = Now::of(&status, &self.outlook, at_unix_millis);
        let places: Vec<Place> = status.servers.iter().map(Place::of).collect();
        let before = self.now.as_ref().map_or(0, |now| now.at_unix_millis);
        let was_set_back = at_unix_millis + silence_millis < before;
        if was_set_back {
            self.series.forget_after(at_unix_millis);
        }
        let others = places != self.places || was_set_back;
        if others {
            self.strip = Strip::default();
        }
        self.series.push(at_unix_millis, &now.figures());
        self.strip.push(at_unix_millis, &now.letters, silence_millis);
        (self.places, self.trouble, self.status) = (places, None, Some(status));
        let fresh: Vec<Told> = notices.into_iter().map(Told::from).collect();
        self.notices.extend(fresh.iter().cloned());
        self.notices.drain(..self.notices.len().saturating_sub(NOTICES_MOST));
        let tick = frame("now", &Tick { now: &now, notices: &fresh });
        self.now = Some(now);
        if others { self.hello() } else { tick }
    }

    pub fn take_outlook(&mut self, outlook: Outlook) -> Frame {
        self.outlook = outlook;
        frame("outlook", &self.outlook)
    }

    pub fn fail(&mut self, why: String, at_unix_millis: u64) -> Frame {
        let since_unix_millis = self.trouble.as_ref().map_or(at_unix_millis, |t| t.since_unix_millis);
        let trouble = Trouble { since_unix_millis, why };
        let event = frame("trouble", &trouble);
        self.trouble = Some(trouble);
        event
    }

    /// The newest notice.
    pub fn newest_notice(&self) -> u64 {
        self.notices.back().map_or(0, |told| told.record.number)
    }

    pub fn server(&self, id: ServerId) -> Option<OneServer> {
        let status = self.status.as_ref()?.servers.iter().find(|server| server.id == id)?.clone();
        let awake = status.modelled_watts.filter(|_| status.state == ServerState::Awake);
        Some(OneServer {
            at_unix_millis: self.now.as_ref()?.at_unix_millis,
            letter: letter(&status),
            why_text: status.why.to_string(),
            sleep_saves_modelled_watts: awake.map(|awake| awake - Watts(self.facts.asleep_watts)),
            status,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_one_word_with_its_reasons() {
        use ebb_types::{HealthWord, LoadCount, MetadataMember, Room};
        let mut status = crate::tests::made_up::status(3);
        assert_eq!(status.health(), Health { word: HealthWord::Healthy, because: Vec::new() });
        // A sleeper is healthy, and counts as full as it was.
        crate::tests::made_up::put(&mut status.servers[0], ServerState::Asleep);
        assert_eq!(status.health().word, HealthWord::Healthy);
        assert_eq!(status.room(), Some(Room { used_bytes: 3 << 40, capacity_bytes: 12 << 40, servers: 3 }));
        crate::tests::made_up::put(&mut status.servers[1], ServerState::Failed);
        status.metadata.push(MetadataMember {
            id: 2,
            votes: true,
            learns: false,
            leads: false,
            heard_millis: Some(20_400),
        });
        let health = status.health();
        assert_eq!(health.word, HealthWord::Degraded);
        assert_eq!(health.because, ["metadata server 2 not heard for 20 s", "server 2: failed"]);
        status.groups.without_target = 4;
        let health = status.health();
        assert_eq!(health.word, HealthWord::Critical);
        assert_eq!(health.because[0], "4 chunk groups without writes: too few servers are awake");
        let vitals = status.servers[2].vitals.as_mut().unwrap();
        (vitals.load, vitals.load_millis) =
            (LoadCount { reads: 30, read_bytes: 9_000, ..LoadCount::default() }, 500);
        let served = status.served();
        assert_eq!(
            (served.reads_per_second, served.read_bytes_per_second, served.writes_per_second),
            (60.0, 18_000.0, 0.0)
        );
        assert_eq!(Now::of(&status, &Outlook::default(), 0).health, health, "the page shows the same");
    }

    #[test]
    fn what_a_sleeper_said_last_is_no_debt() {
        let mut status = crate::tests::made_up::status(3);
        crate::tests::made_up::put(&mut status.servers[0], ServerState::Asleep);
        status.servers[1].pool = PoolId(1);
        for server in &mut status.servers {
            server.vitals.as_mut().unwrap().debt_bytes = 4096;
        }
        let now = Now::of(&status, &Outlook::default(), 0);
        assert_eq!(now.debts, [(ServerId(3), 4096, None)]);
    }

    #[test]
    fn a_clock_that_is_set_back_is_seen_anew() {
        let mut seen = Seen::new(Facts::default());
        let mut take = |at| seen.take(crate::tests::made_up::status(3), Vec::new(), at, 5000);
        let names = [9_000_000, 9_001_000, 8_999_000, 5_000_000, 5_001_000].map(|at| take(at).name);
        assert_eq!(names, ["hello", "now", "now", "hello", "now"]);
        let times = seen.series.columns().at_unix_millis;
        assert_eq!(times, [5_000_000, 5_001_000], "of the wrong time nothing is left");
        assert_eq!(seen.strip.from_unix_millis, 5_000_000);
    }

    #[test]
    fn power_cycles_are_counted_from_a_day_of_the_schedule_ago() {
        // Days of four minutes, which began late.
        let schedule = Schedule {
            hour_millis: 10_000,
            hours_per_day: 24,
            hour_zero_unix_millis: 1_000_000,
            ..Schedule::default()
        };
        let hour = |hour: u64| HourRecord {
            hour,
            peak_load: 1.0,
            terms: None,
            forecast: None,
            gear: 1,
            servers_awake: 3,
            prices: None,
            power_cycles: 100 + hour,
        };
        let before = |hours: &[u64], now| {
            let hours = hours.iter().copied().map(hour).collect();
            Outlook::new(hours, Vec::new(), Vec::new(), schedule, now).cycles_before
        };
        // Hour 5 ends at 60 s, which is a day before 300 s.
        assert_eq!(before(&[3, 4, 5, 6, 20], 1_300_000), Some((1_060_000, 105)));
        assert_eq!(before(&[3, 4, 5, 6, 20], 1_299_999), Some((1_050_000, 104)));
        assert_eq!(before(&[3, 20], 1_300_000), Some((1_040_000, 103)), "a gap makes it longer");
        assert_eq!(before(&[6, 20], 1_300_000), None);
    }
}
