//! `ebb pool`: the erasure-coded pools, for people and scripts, from the answer that `ebb status` gets.
//!
//! What a person asks first is how many more servers may fail now: [`PoolStatus::survives`] derives it from a set's
//! entry and its servers' states.

use crate::cli::words::word;
use crate::error::{NodeError, refused};
use clap::Subcommand;
use ebb_types::{
    Bytes, EnergyStatus, Epoch, ParityDebt, PoolStatus, ServerId, ServerState, ServerStatus, SetStatus,
    Shape, SlotState, Watts, counted,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Clone, Debug, Subcommand)]
pub enum PoolCommand {
    /// Add a pool of new servers that the configuration file has and the cluster does not
    Create {
        /// Its name in `[[pool]]`
        name: String,
    },
    /// Show each pool's code, and the role of each of its servers
    List {
        /// Only this pool
        name: Option<String>,
    },
    /// Show what each set owes its parity servers, when they wake, and how many servers may fail now
    Status {
        /// Only this pool
        name: Option<String>,
    },
}

impl PoolCommand {
    pub fn name(&self) -> Option<&str> {
        match self {
            PoolCommand::Create { name } => Some(name),
            PoolCommand::List { name } | PoolCommand::Status { name } => name.as_deref(),
        }
    }
}

/// There is no pool of that name.
pub fn unknown(name: &str, pools: impl Iterator<Item = String>) -> NodeError {
    let names: Vec<String> = pools.collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    refused(format!("there is no erasure-coded pool {name:?}: the cluster has {known}"))
}

/// Output of `ebb pool --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pool {
    name: String,
    id: u8,
    code: Shape,
    /// Bytes stored per byte.
    overhead: f64,
    parity_debt: ParityDebt,
    parity_buffer_bytes: u64,
    /// `false`: too few data servers to keep the parity of sleepers.
    parity_sleeps: bool,
    /// Idle time after which a set hibernates; absent: never.
    hibernate_after_millis: Option<u64>,
    /// Parity servers of each set that stay awake.
    awake_parity: u8,
    /// What a server may fetch to fill a column that was lost; absent: as much as it can.
    rebuild_bytes_per_second: Option<u64>,
    /// Expected wake-up time of a hibernating set, from recent wake-ups.
    wakes_within_millis: u64,
    #[serde(flatten)]
    stored: Stored,
    /// Of the pool's servers, by the power model.
    energy: Option<EnergyStatus>,
    sets: Vec<Set>,
    spares: Vec<Spare>,
}

/// What servers store, measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Stored {
    /// By the servers' last heartbeats; absent until all have been heard.
    stored_bytes: Option<u64>,
    /// The data in that; absent also while a data column is not in sync.
    data_bytes: Option<u64>,
    /// Bytes stored per byte of data.
    measured_overhead: Option<f64>,
}

impl Stored {
    fn new(stored_bytes: Option<u64>, data_bytes: Option<u64>) -> Stored {
        let measured_overhead = match (stored_bytes, data_bytes) {
            (Some(stored), Some(data @ 1..)) => Some(stored as f64 / data as f64),
            _ => None,
        };
        Stored { stored_bytes, data_bytes, measured_overhead }
    }

    /// Of all sets; absent if it is of one.
    fn of_all(sets: &[SetStatus]) -> Stored {
        let sum = |figure: fn(&SetStatus) -> Option<u64>| sets.iter().map(figure).sum();
        Stored::new(sum(|set| set.stored_bytes), sum(|set| set.data_bytes))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Set {
    id: u16,
    epoch: Epoch,
    survives: usize,
    #[serde(flatten)]
    stored: Stored,
    parity_debt_bytes: u64,
    memory_bytes: u64,
    fullest: Option<f64>,
    threshold: f64,
    next_activation_millis: Option<u64>,
    servers_awake: u32,
    hibernates_in_millis: Option<u64>,
    hibernated_millis: Option<u64>,
    columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Column {
    server: u16,
    role: String,
    /// Absent: not a server of the cluster.
    state: Option<ServerState>,
    column: ColumnState,
    since_epoch: Option<Epoch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum ColumnState {
    InSync,
    CatchingUp,
    Away,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Spare {
    server: u16,
    state: ServerState,
}

type States = BTreeMap<ServerId, ServerState>;

/// The pool of that name, or all.
pub fn select(
    pools: &[PoolStatus],
    servers: &[ServerStatus],
    name: Option<&str>,
) -> Result<Vec<Pool>, NodeError> {
    let wanted = |pool: &&PoolStatus| name.is_none_or(|name| pool.pool.name == name);
    let found: Vec<Pool> = pools.iter().filter(wanted).map(|pool| view(pool, servers)).collect();
    match name {
        Some(name) if found.is_empty() => Err(unknown(name, pools.iter().map(|pool| pool.pool.name.clone()))),
        _ => Ok(found),
    }
}

fn view(status: &PoolStatus, servers: &[ServerStatus]) -> Pool {
    let pool = &status.pool;
    let states: States = servers.iter().map(|server| (server.id, server.state)).collect();
    let is_spare = |server: &&ServerStatus| {
        server.pool == pool.id && status.sets.iter().all(|set| set.entry.column_of(server.id).is_none())
    };
    Pool {
        name: pool.name.clone(),
        id: pool.id.0,
        code: pool.shape,
        overhead: pool.shape.overhead(),
        parity_debt: pool.parity_debt,
        parity_buffer_bytes: pool.parity_buffer_bytes,
        parity_sleeps: pool.shape.may_sleep().is_ok(),
        hibernate_after_millis: pool.hibernate_after_millis,
        awake_parity: pool.awake_parity,
        rebuild_bytes_per_second: pool.rebuild_bytes_per_second,
        wakes_within_millis: status.wakes_within_millis,
        stored: Stored::of_all(&status.sets),
        energy: status.energy,
        sets: status.sets.iter().map(|set| set_view(set, &states, status.survives(set, servers))).collect(),
        spares: servers
            .iter()
            .filter(is_spare)
            .map(|server| Spare { server: server.id.0, state: server.state })
            .collect(),
    }
}

fn set_view(set: &SetStatus, states: &States, survives: usize) -> Set {
    let column = |(nth, column): (usize, &ebb_types::Column)| {
        let (state, since_epoch) = match column.state {
            SlotState::InSync => (ColumnState::InSync, None),
            SlotState::CatchingUp { since } => (ColumnState::CatchingUp, Some(since)),
            SlotState::Away { since } => (ColumnState::Away, Some(since)),
        };
        Column {
            server: column.server.0,
            role: role(set.entry.shape, nth),
            state: states.get(&column.server).copied(),
            column: state,
            since_epoch,
        }
    };
    Set {
        id: set.id.0,
        epoch: set.entry.epoch,
        survives,
        stored: Stored::new(set.stored_bytes, set.data_bytes),
        parity_debt_bytes: set.parity_debt_bytes,
        memory_bytes: set.memory_bytes,
        fullest: set.fullest,
        threshold: set.threshold,
        next_activation_millis: set.next_activation_millis,
        servers_awake: set.servers_awake,
        hibernates_in_millis: set.hibernates_in_millis,
        hibernated_millis: set.hibernated_millis,
        columns: set.entry.columns.iter().enumerate().map(column).collect(),
    }
}

/// `data 1` to `data k`, `parity 1` to `parity m`, as in ECS².
fn role(shape: Shape, column: usize) -> String {
    match column.checked_sub(shape.data()) {
        None => format!("data {}", column + 1),
        Some(parity) => format!("parity {}", parity + 1),
    }
}

/// Text of `ebb pool list`.
pub fn list(pools: &[Pool]) -> String {
    let mut out = String::new();
    for pool in pools {
        heading(&mut out, pool);
        let place = match pool.parity_debt {
            ParityDebt::Segment => "on the data servers' disks",
            ParityDebt::Ram => "in the data servers' memory",
        };
        let but_for = match pool.awake_parity {
            0 => String::new(),
            awake => format!(", but for {awake} of {}", pool.code.parity()),
        };
        let _ = match pool.parity_sleeps {
            true => writeln!(
                out,
                "parity   sleeps{but_for}; what it misses waits {place}, up to {} on each",
                Bytes(pool.parity_buffer_bytes)
            ),
            false => writeln!(
                out,
                "parity   never sleeps: that would take {} data servers",
                pool.code.parity() + pool.code.extra()
            ),
        };
        let _ = writeln!(out, "\nserver  set    role       state     column");
        for set in &pool.sets {
            for column in &set.columns {
                let state = column.state.map_or("unknown", word);
                let (server, id, role) = (column.server, set.id, &column.role);
                let _ = writeln!(out, "{server:<7} {id:<6} {role:<10} {state:<9} {}", standing(column));
            }
        }
        for spare in &pool.spares {
            let _ =
                writeln!(out, "{:<7} {:<6} {:<10} {:<9} -", spare.server, "-", "spare", word(spare.state));
        }
    }
    or_none(out)
}

/// Text of `ebb pool status`.
pub fn page(pools: &[Pool]) -> String {
    let mut out = String::new();
    for pool in pools {
        heading(&mut out, pool);
        let _ = writeln!(out, "stored   {}", stored(&pool.stored));
        let _ = pool.energy.map_or(Ok(()), |energy| writeln!(out, "energy   {}", energy_of(&energy)));
        for set in &pool.sets {
            let _ = writeln!(out, "\nset {:<4} {}", set.id, exposure(set));
            let _ = writeln!(out, "owed     {}", debt(pool, set));
            let _ = rest(pool, set).map_or(Ok(()), |rest| writeln!(out, "sleep    {rest}"));
            if set.memory_bytes > 0 {
                let in_memory = Bytes(set.memory_bytes);
                let _ = writeln!(
                    out,
                    "exposed  {in_memory} in memory only: a power cut and a lost disk lose data"
                );
            }
            for column in set.columns.iter().filter(|column| column.column != ColumnState::InSync) {
                let state = column.state.map_or("unknown", word);
                let _ = writeln!(
                    out,
                    "column   {}, server {} ({state}): {}",
                    column.role,
                    column.server,
                    standing(column)
                );
            }
        }
    }
    or_none(out)
}

fn or_none(text: String) -> String {
    match text.is_empty() {
        true => "no erasure-coded pool: all servers are in the replicated one (`ebb status`)\n".to_owned(),
        false => text,
    }
}

/// `pool     archive, code 6+3: stores 1.50 bytes per byte, 2 sets, 1 spare`, and the limit of rebuilds if there is
/// one.
fn heading(out: &mut String, pool: &Pool) {
    if !out.is_empty() {
        out.push('\n');
    }
    let _ = writeln!(
        out,
        "pool     {}, code {}: stores {:.2} bytes per byte, {}, {}",
        pool.name,
        pool.code,
        pool.overhead,
        counted(pool.sets.len() as u64, "set"),
        counted(pool.spares.len() as u64, "spare"),
    );
    if let Some(bytes) = pool.rebuild_bytes_per_second {
        let _ = writeln!(out, "rebuild  a server fetches at most {}/s to fill a lost column", Bytes(bytes));
    }
}

fn standing(column: &Column) -> String {
    let since = column.since_epoch.map_or(0, |epoch| epoch.0);
    match column.column {
        ColumnState::InSync => "in sync".to_owned(),
        ColumnState::CatchingUp => format!("catching up since epoch {since}"),
        ColumnState::Away => format!("away since epoch {since}"),
    }
}

/// `12.0 GiB for 8.0 GiB of data: 1.500 bytes per byte`
fn stored(stored: &Stored) -> String {
    let Some(bytes) = stored.stored_bytes else {
        return "not known: some servers have not been heard since the metadata leader took over".to_owned();
    };
    match (stored.data_bytes, stored.measured_overhead) {
        (Some(data), Some(ratio)) => {
            format!("{} for {} of data: {ratio:.3} bytes per byte", Bytes(bytes), Bytes(data))
        }
        (Some(_), None) => format!("{}, no data", Bytes(bytes)),
        (None, _) => format!(
            "{}; how much of it is data is not known while a data column is not in sync",
            Bytes(bytes)
        ),
    }
}

/// `1.250 kWh in 3.4 h, a mean of 367.6 W (modelled, since the metadata leader took over)`
fn energy_of(energy: &EnergyStatus) -> String {
    let seconds = energy.span_millis as f64 / 1e3;
    let mean = Watts(energy.modelled_joules.0 / seconds.max(1e-3));
    format!(
        "{:.3} kWh in {}, a mean of {mean} (modelled, since the metadata leader took over)",
        energy.modelled_joules.0 / 3.6e6,
        in_words(energy.span_millis),
    )
}

fn exposure(set: &Set) -> String {
    match set.survives {
        0 => "EXPOSED: another failure may cost data, until more columns are in sync".to_owned(),
        1 => "1 more server may fail".to_owned(),
        more => format!("{more} more servers may fail"),
    }
}

/// `1.2 GiB; the fullest data server is at 42.0 %, parity servers wake at 90.0 %, in about 3.2 h`
fn debt(pool: &Pool, set: &Set) -> String {
    let mut text = Bytes(set.parity_debt_bytes).to_string();
    if !pool.parity_sleeps {
        return text;
    }
    let fullest = set.fullest.map_or("not heard of yet".to_owned(), |share| format!("at {}", percent(share)));
    let _ = write!(
        text,
        "; the fullest data server is {fullest}, parity servers wake at {}",
        percent(set.threshold)
    );
    if let Some(millis) = set.next_activation_millis {
        let _ = write!(text, ", in about {}", in_words(millis));
    }
    text
}

/// Whether and when the whole set sleeps.
fn rest(pool: &Pool, set: &Set) -> Option<String> {
    let wakes = in_words(pool.wakes_within_millis);
    match (set.hibernated_millis, set.hibernates_in_millis) {
        (Some(since), _) => Some(format!(
            "the whole set, for {}; a client's first read or write wakes it, in about {wakes}",
            in_words(since)
        )),
        (None, Some(left)) => Some(format!("the whole set in {}, if no client uses it", in_words(left))),
        (None, None) => None,
    }
}

/// What comes for each set, for `ebb gear plan`; empty without a pool.
pub fn outlook(pools: &[Pool]) -> String {
    let mut out = String::new();
    for pool in pools {
        if out.is_empty() {
            out += "\npool             set   awake    parity wakes  whole set sleeps\n";
        }
        for set in &pool.sets {
            let awake = format!("{} of {}", set.servers_awake, set.columns.len());
            let parity = set
                .next_activation_millis
                .map_or("-".to_owned(), |millis| format!("in {}", in_words(millis)));
            let whole = match (set.hibernated_millis, set.hibernates_in_millis) {
                (Some(since), _) => {
                    format!("for {}; wakes in {}", in_words(since), in_words(pool.wakes_within_millis))
                }
                (None, Some(left)) => format!("in {}", in_words(left)),
                (None, None) => "never".to_owned(),
            };
            let _ = writeln!(out, "{:<16} {:<5} {awake:<8} {parity:<13} {whole}", pool.name, set.id);
        }
    }
    out
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn in_words(millis: u64) -> String {
    let seconds = millis as f64 / 1e3;
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// One line per pool, for `ebb status`.
pub fn lines(pools: &[PoolStatus], servers: &[ServerStatus]) -> String {
    let mut out = String::new();
    for pool in pools.iter().map(|pool| view(pool, servers)) {
        let parity = || pool.sets.iter().flat_map(|set| set.columns.iter().skip(pool.code.data()));
        let asleep = parity().filter(|column| column.state == Some(ServerState::Asleep)).count();
        let owed: u64 = pool.sets.iter().map(|set| set.parity_debt_bytes).sum();
        let fullest = pool.sets.iter().filter_map(|set| set.fullest).reduce(f64::max);
        let _ = write!(
            out,
            "pool     {}, code {}: {}, {asleep} of {} asleep, {} owed to them",
            pool.name,
            pool.code,
            counted(pool.sets.len() as u64, "set"),
            counted(parity().count() as u64, "parity server"),
            Bytes(owed),
        );
        let _ =
            fullest.map_or(Ok(()), |share| write!(out, ", the fullest data server is at {}", percent(share)));
        let hibernate = pool.sets.iter().filter(|set| set.hibernated_millis.is_some()).count();
        if hibernate > 0 {
            let _ = write!(out, "; {} asleep as a whole", counted(hibernate as u64, "set"));
        }
        let exposed = pool.sets.iter().filter(|set| set.survives == 0).count();
        if exposed > 0 {
            let _ = write!(out, "; EXPOSED: {} (`ebb pool status`)", counted(exposed as u64, "set"));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServerState::{Asleep, Awake, Failed, Lost};
    use ebb_types::{
        GearGroup, Incarnation, PoolEntry, PoolId, PowerStatus, RackId, SetEntry, SetId, StoreId, Vitals,
    };

    /// A column of an invented set: its server's state, and its own.
    type Made = (ServerState, SlotState);
    const HERE: Made = (Awake, SlotState::InSync);
    const ASLEEP: Made = (Asleep, SlotState::Away { since: Epoch(4) });

    /// A pool `archive` of sets with these columns, on servers from 10 on, then a spare, and a replicated server.
    fn made_up(code: &str, sets: &[&[Made]]) -> (PoolStatus, Vec<ServerStatus>) {
        let shape: Shape = code.parse().unwrap();
        let mut servers = Vec::new();
        let mut add = |state| {
            let id = ServerId(10 + servers.len() as u16);
            servers.push(server(id, state));
            id
        };
        let set = |(id, columns): (u16, &&[Made])| SetStatus {
            id: SetId(id),
            entry: SetEntry {
                pool: PoolId(1),
                shape,
                epoch: Epoch(5),
                hibernates_since: None,
                columns: columns
                    .iter()
                    .map(|(server, state)| ebb_types::Column { server: add(*server), state: *state })
                    .collect(),
            },
            stored_bytes: Some(9_663_676_416),
            data_bytes: Some(6_442_450_944),
            parity_debt_bytes: 1_288_490_189,
            memory_bytes: 0,
            fullest: Some(0.42),
            threshold: 0.9,
            next_activation_millis: Some(11_520_000),
            servers_awake: 6,
            hibernates_in_millis: None,
            hibernated_millis: None,
        };
        let sets: Vec<SetStatus> = (0..).zip(sets).map(set).collect();
        add(Awake);
        servers.push(ServerStatus { pool: PoolId::REPLICATED, ..server(ServerId(1), Awake) });
        let pool = PoolEntry {
            id: PoolId(1),
            name: "archive".into(),
            shape,
            parity_debt: ParityDebt::Segment,
            parity_buffer_bytes: 1 << 30,
            hibernate_after_millis: None,
            rebuild_bytes_per_second: None,
            awake_parity: 0,
            sets: sets.iter().map(|set| set.id).collect(),
        };
        let energy =
            Some(EnergyStatus { modelled_joules: ebb_types::Joules(4.5e6), span_millis: 12_240_000 });
        (PoolStatus { pool, wakes_within_millis: 14_000, energy, sets }, servers)
    }

    fn server(id: ServerId, state: ServerState) -> ServerStatus {
        ServerStatus {
            id,
            rack: RackId(1),
            pool: PoolId(1),
            gear_group: GearGroup(u8::MAX),
            logger: false,
            seat: ebb_types::Seat::default(),
            copies: 0,
            address: String::new(),
            state,
            why: ebb_types::Why::Set,
            depth: None,
            incarnation: Incarnation(1),
            store: StoreId(1),
            vitals: None,
            heartbeat_age_millis: None,
            lease_left_millis: None,
            primaries: 0,
            holder_of: 0,
            debt_since_unix_millis: None,
            modelled_watts: None,
            transition_modelled_watts: None,
            switch_trouble: None,
            power: PowerStatus::default(),
        }
    }

    fn views(code: &str, sets: &[&[Made]]) -> Vec<Pool> {
        let (pool, servers) = made_up(code, sets);
        select(&[pool], &servers, None).unwrap()
    }

    const RESTING: [Made; 9] = [HERE, HERE, HERE, HERE, HERE, HERE, ASLEEP, ASLEEP, ASLEEP];

    #[test]
    fn the_list_of_a_pool_whose_parity_sleeps() {
        let expected = "\
pool     archive, code 6+3: stores 1.50 bytes per byte, 1 set, 1 spare
parity   sleeps; what it misses waits on the data servers' disks, up to 1.0 GiB on each

server  set    role       state     column
10      0      data 1     awake     in sync
11      0      data 2     awake     in sync
12      0      data 3     awake     in sync
13      0      data 4     awake     in sync
14      0      data 5     awake     in sync
15      0      data 6     awake     in sync
16      0      parity 1   asleep    away since epoch 4
17      0      parity 2   asleep    away since epoch 4
18      0      parity 3   asleep    away since epoch 4
19      -      spare      awake     -
";
        assert_eq!(list(&views("6+3", &[&RESTING])), expected);
    }

    #[test]
    fn what_stays_awake_and_the_limit_of_rebuilds_are_shown() {
        let (mut pool, servers) = made_up("6+3", &[&RESTING]);
        pool.pool.awake_parity = 1;
        pool.pool.rebuild_bytes_per_second = Some(50 << 20);
        let views = [view(&pool, &servers)];
        let text = list(&views);
        assert!(text.contains("\nparity   sleeps, but for 1 of 3; what it misses"), "{text}");
        let limit = "\nrebuild  a server fetches at most 50.0 MiB/s to fill a lost column\n";
        assert!(text.contains(limit) && page(&views).contains(limit), "{text}");
        let json = serde_json::to_value(&views).unwrap();
        assert_eq!(
            (&json[0]["awake_parity"], &json[0]["rebuild_bytes_per_second"]),
            (&1.into(), &52_428_800.into())
        );
    }

    #[test]
    fn a_code_that_cannot_let_parity_sleep_says_so() {
        let text = list(&views("2+1", &[&[HERE, HERE, HERE]]));
        assert!(text.contains("2+1: stores 1.50"), "{text}");
        assert!(text.contains("parity   sleeps"), "{text}");
        let text = list(&views("3+2", &[&[HERE; 5]]));
        assert!(text.contains("parity   never sleeps: that would take 4 data servers\n"), "{text}");
    }

    #[test]
    fn the_status_of_a_resting_set_and_of_one_with_a_failure() {
        let failed = SlotState::Away { since: Epoch(5) };
        let back = SlotState::CatchingUp { since: Epoch(4) };
        let mut hurt = RESTING;
        hurt[2] = (Failed, failed);
        hurt[3] = (Failed, failed);
        hurt[6] = (Awake, back);
        let expected = "\
pool     archive, code 6+3: stores 1.50 bytes per byte, 2 sets, 1 spare
stored   18.0 GiB for 12.0 GiB of data: 1.500 bytes per byte
energy   1.250 kWh in 3.4 h, a mean of 367.6 W (modelled, since the metadata leader took over)

set 0    2 more servers may fail
owed     1.2 GiB; the fullest data server is at 42.0 %, parity servers wake at 90.0 %, in about 3.2 h
column   parity 1, server 16 (asleep): away since epoch 4
column   parity 2, server 17 (asleep): away since epoch 4
column   parity 3, server 18 (asleep): away since epoch 4

set 1    EXPOSED: another failure may cost data, until more columns are in sync
owed     1.2 GiB; the fullest data server is at 42.0 %, parity servers wake at 90.0 %, in about 3.2 h
column   data 3, server 21 (FAILED): away since epoch 5
column   data 4, server 22 (FAILED): away since epoch 5
column   parity 1, server 25 (awake): catching up since epoch 4
column   parity 2, server 26 (asleep): away since epoch 4
column   parity 3, server 27 (asleep): away since epoch 4
";
        assert_eq!(page(&views("6+3", &[&RESTING, &hurt])), expected);
    }

    #[test]
    fn what_is_in_memory_only_is_shown_and_a_server_that_recomputes_it_counts_as_failed() {
        let (mut pool, mut servers) = made_up("6+3", &[&RESTING]);
        pool.pool.parity_debt = ParityDebt::Ram;
        pool.sets[0].memory_bytes = 1 << 30;
        servers.iter_mut().for_each(|server| server.vitals = Some(Vitals::default()));
        let text = page(&[view(&pool, &servers)]);
        assert!(text.contains("2 more servers may fail"), "{text}");
        assert!(text.contains("\nexposed  1.0 GiB in memory only: a power cut and a lost disk"), "{text}");
        for n in [0, 1] {
            servers[n].vitals = Some(Vitals { catching_up: 1, ..Vitals::default() });
        }
        servers[8].vitals = Some(Vitals { catching_up: 1, ..Vitals::default() });
        assert_eq!(view(&pool, &servers).sets[0].survives, 0);
        pool.pool.parity_debt = ParityDebt::Segment;
        assert_eq!(view(&pool, &servers).sets[0].survives, 2);
    }

    #[test]
    fn an_overhead_is_shown_only_if_it_is_known() {
        let shown = |stored: Option<u64>, data: Option<u64>| {
            let (mut pool, servers) = made_up("6+3", &[&RESTING, &RESTING]);
            (pool.sets[1].stored_bytes, pool.sets[1].data_bytes) = (stored, data);
            let all = select(&[pool], &servers, None).unwrap();
            let line = page(&all).lines().nth(1).unwrap().to_owned();
            (line, all[0].stored.measured_overhead, all[0].sets[1].stored.measured_overhead)
        };
        let (line, whole, one) = shown(Some(0), Some(0));
        assert_eq!(
            (line.as_str(), whole, one),
            ("stored   9.0 GiB for 6.0 GiB of data: 1.500 bytes per byte", Some(1.5), None)
        );
        let (line, whole, _) = shown(None, Some(1 << 30));
        assert!(line.contains("not known: some servers have not been heard") && whole.is_none(), "{line}");
        let (line, whole, _) = shown(Some(1 << 30), None);
        assert!(line.starts_with("stored   10.0 GiB; how much") && whole.is_none(), "{line}");
        let text = page(&views("6+3", &[]));
        assert!(text.contains("stored   0 B, no data\n"), "{text}");
    }

    #[test]
    fn the_line_of_a_pool_in_the_status_of_the_cluster() {
        let mut hurt = RESTING;
        hurt[2..4].fill((Failed, SlotState::Away { since: Epoch(5) }));
        let (pool, servers) = made_up("6+3", &[&RESTING, &hurt]);
        let expected = "pool     archive, code 6+3: 2 sets, 6 of 6 parity servers asleep, 2.4 GiB owed to them, the fullest data \
                        server is at 42.0 %; EXPOSED: 1 set (`ebb pool status`)\n";
        assert_eq!(lines(&[pool], &servers), expected);
        let (mut pool, servers) = made_up("6+3", &[&RESTING]);
        pool.sets[0].fullest = None;
        let expected =
            "pool     archive, code 6+3: 1 set, 3 of 3 parity servers asleep, 1.2 GiB owed to them\n";
        assert_eq!(lines(&[pool], &servers), expected);
        assert_eq!(lines(&[], &servers), "");
    }

    #[test]
    fn a_set_that_sleeps_as_a_whole_says_since_when_and_what_wakes_it() {
        let whole = [(Asleep, SlotState::InSync); 9];
        let (mut pool, servers) = made_up("6+3", &[&RESTING, &whole]);
        pool.sets[0].hibernates_in_millis = Some(90_000);
        pool.sets[1].hibernated_millis = Some(11_520_000);
        let text = page(&select(std::slice::from_ref(&pool), &servers, None).unwrap());
        assert!(text.contains("\nsleep    the whole set in 90 s, if no client uses it\n"), "{text}");
        let asleep =
            "\nsleep    the whole set, for 3.2 h; a client's first read or write wakes it, in about 14 s\n";
        assert!(text.contains(asleep), "{text}");
        assert!(text.contains("set 1    3 more servers may fail"), "{text}");
        pool.sets[1].servers_awake = 0;
        pool.sets[1].next_activation_millis = None;
        let expected = "
pool             set   awake    parity wakes  whole set sleeps
archive          0     6 of 9   in 3.2 h      in 90 s
archive          1     0 of 9   -             for 3.2 h; wakes in 14 s
";
        assert_eq!(outlook(&select(std::slice::from_ref(&pool), &servers, None).unwrap()), expected);
        assert_eq!(outlook(&[]), "");
        let line = lines(&[pool], &servers);
        assert!(
            line.contains("6 of 6 parity servers asleep") && line.contains("; 1 set asleep as a whole\n"),
            "{line}"
        );
    }

    #[test]
    fn how_many_more_servers_may_fail() {
        let of = |code: &str, columns: &[Made]| views(code, &[columns])[0].sets[0].survives;
        let lost = (Lost, SlotState::Away { since: Epoch(5) });
        let failed = (Failed, SlotState::Away { since: Epoch(5) });
        let replaced = (Awake, SlotState::CatchingUp { since: Epoch(0) });
        let back = (Awake, SlotState::CatchingUp { since: Epoch(4) });
        let with = |parity: [Made; 3]| [vec![HERE; 6], parity.to_vec()].concat();
        assert_eq!(of("6+3", &[HERE; 9]), 3, "all is in sync");
        assert_eq!(of("6+3", &RESTING), 2, "parity sleeps");
        assert_eq!(of("6+3", &with([back, ASLEEP, ASLEEP])), 2, "parity catches up");
        assert_eq!(of("6+3", &with([failed, ASLEEP, ASLEEP])), 2);
        assert_eq!(of("6+3", &with([lost, replaced, ASLEEP])), 1, "two parity servers have nothing");
        assert_eq!(of("6+3", &with([failed; 3])), 0);
        let hurt = |count: usize, parity: [Made; 3]| {
            [vec![HERE; 6 - count], vec![failed; count], parity.to_vec()].concat()
        };
        assert_eq!(of("6+3", &hurt(1, [HERE; 3])), 2, "all parity is here");
        assert_eq!(of("6+3", &hurt(2, [HERE; 3])), 1);
        assert_eq!(of("6+3", &hurt(1, [ASLEEP; 3])), 1, "one of two is used up");
        assert_eq!(of("6+3", &hurt(1, [HERE, HERE, ASLEEP])), 1);
        assert_eq!(of("6+3", &hurt(2, [ASLEEP; 3])), 0);
        assert_eq!(of("6+3", &hurt(6, [ASLEEP; 3])), 0);
        assert_eq!(of("2+2", &[HERE, HERE, HERE, failed]), 1, "no data server keeps a second strip");
        assert_eq!(of("2+2", &[HERE, HERE, failed, failed]), 0);
        assert_eq!(of("6+4", &[vec![HERE; 6], vec![ASLEEP; 4]].concat()), 3);
        let wide = [vec![HERE; 3], vec![failed], vec![ASLEEP; 2]].concat();
        assert_eq!(of("4+2", &wide), 0, "three strips of a new row on one server");
    }

    /// The bound against the strips themselves: for every loss of `survives` live servers, and every turn, k strips of
    /// new rows that code and parity strips alone make decodable are left.
    #[test]
    fn new_rows_survive_what_is_said_after_a_data_server_failed() {
        let failed = (Failed, SlotState::Away { since: Epoch(5) });
        for (k, m) in [(6, 3), (8, 3), (10, 4), (12, 4), (4, 2), (3, 1)] {
            let made = [vec![failed], vec![HERE; k - 1], vec![ASLEEP; m]].concat();
            let (pool, servers) = made_up(&format!("{k}+{m}"), &[&made]);
            let entry = &pool.sets[0].entry;
            let may_fail = view(&pool, &servers).sets[0].survives;
            for object in 0..100 {
                let chunk = ebb_types::ChunkId { object: ebb_types::ObjectId(object), index: 0 };
                let mut strips = BTreeMap::<ServerId, usize>::new();
                entry.targets(chunk)[..k + m]
                    .iter()
                    .flatten()
                    .for_each(|id| *strips.entry(*id).or_default() += 1);
                let mut counts: Vec<usize> = strips.into_values().collect();
                counts.sort_by_key(|count| std::cmp::Reverse(*count));
                let lost: usize = counts.iter().take(may_fail).sum();
                assert!(lost <= m, "{k}+{m}: {may_fail} servers with {lost} strips of a row");
            }
        }
    }

    #[test]
    fn a_pool_is_found_by_name() {
        let (pool, servers) = made_up("6+3", &[&RESTING]);
        let pools = [pool];
        assert_eq!(select(&pools, &servers, Some("archive")).unwrap().len(), 1);
        let error = select(&pools, &servers, Some("archiv")).unwrap_err().to_string();
        assert_eq!(error, "there is no erasure-coded pool \"archiv\": the cluster has archive");
        let error = select(&[], &servers, Some("archive")).unwrap_err().to_string();
        assert_eq!(error, "there is no erasure-coded pool \"archive\": the cluster has none");
        assert!(list(&[]).contains("no erasure-coded pool") && page(&[]).contains("no erasure-coded pool"));
    }

    #[test]
    fn the_json_has_the_documented_keys() {
        let json = serde_json::to_value(views("6+3", &[&RESTING])).unwrap();
        assert_eq!(json[0]["code"], "6+3");
        assert_eq!((&json[0]["parity_debt"], &json[0]["overhead"]), (&"segment".into(), &1.5.into()));
        assert_eq!(
            (&json[0]["stored_bytes"], &json[0]["measured_overhead"]),
            (&9_663_676_416_u64.into(), &1.5.into())
        );
        let set = &json[0]["sets"][0];
        assert_eq!((&set["data_bytes"], &set["measured_overhead"]), (&6_442_450_944_u64.into(), &1.5.into()));
        assert_eq!((&set["survives"], &set["threshold"]), (&2.into(), &0.9.into()));
        let parity = serde_json::json!({
            "server": 16, "role": "parity 1", "state": "Asleep", "column": "away", "since_epoch": 4
        });
        assert_eq!(set["columns"][6], parity);
        assert_eq!(json[0]["spares"], serde_json::json!([{ "server": 19, "state": "Awake" }]));
    }

    #[test]
    fn times_are_read_at_a_glance() {
        let cases = [(90_000, "90 s"), (600_000, "10 min"), (11_520_000, "3.2 h"), (864_000_000, "10 days")];
        cases.iter().for_each(|(millis, text)| assert_eq!(in_words(*millis), *text));
    }
}
