//! A replay on a cluster beside the same requests on the same cluster, simulated: what single servers and whole gears
//! save, live and simulated, and what nothing can exceed.
//!
//! The simulator runs the cluster's own code by the cluster's configuration: its servers, racks and layout, its
//! schedule, what its sleep costs. It cannot know how long a server takes to wake: that is the replay's mean. All rows
//! are added up by the replay's account ([`ebb_replay::Account`]), so they differ by what the servers did, and by
//! nothing else.
//!
//! Response times differ by more: servers that are processes of one machine wake, catch up and serve on the same
//! processors, while in the simulator, as in reality, each has its own. So both are shown, by the same stretches.

use crate::cli::interrupt::Interrupt;
use crate::cluster::config::Config;
use crate::error::{NodeError, refused};
use ebb_output::{Latency, Progress, table};
use ebb_power::ModelledEnergy;
use ebb_replay::drive::Halt;
use ebb_replay::energy::States;
use ebb_replay::{EnergyFigures, ReplayReport, StretchLatency, Stretches};
use ebb_sim::request::{DiskModel, Existing, Gears, Report, Setup, SimError, simulate};
use ebb_trace::{Kind, Trace};
use ebb_types::{GearSteps, NO_GEAR, PoolId, RackId, ServerId, ServerState};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Of the simulated disks and network.
pub const SEED: u64 = 1;

/// What the replay is compared with. All energy is modelled, at the trace's own speed.
#[derive(Serialize)]
pub struct Simulated {
    /// Percentage points between the cluster's savings and its simulation's; absent: one of them has none.
    apart_points: Option<f64>,
    rows: Vec<Row>,
    /// Absent: no server woke.
    wakes: Option<Wakes>,
    simulated_wakes: Option<Wakes>,
    /// Of the replay's steps, by the same stretches; absent: they were not simulated.
    latency: Option<StretchLatency>,
    disk: String,
    notes: Vec<String>,
    #[serde(skip)]
    live_latency: StretchLatency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Awake {
    /// Single servers wake and sleep.
    Continuous,
    /// Whole gear groups do.
    Whole,
    /// The fewest servers that any policy keeps awake, throughout.
    Fewest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum By {
    Live,
    Simulated,
    /// The load is known in advance, and shifts take no time.
    Oracle,
    /// Whatever the load is.
    Ceiling,
}

/// One way to serve the trace.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    gears: Awake,
    by: By,
    /// Of a cluster that is always on; absent: not all of the work was done, or not in time.
    saved_percent: Option<f64>,
    mean_servers_awake: f64,
    /// Share of the time in which fewer servers served than the load needed; absent: it was not asked.
    short_percent: Option<f64>,
    energy: EnergyFigures,
}

/// From the decision to wake a server until it was awake, by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Wakes {
    count: u64,
    mean_seconds: f64,
}

impl Wakes {
    fn of(states: &States) -> Option<Wakes> {
        let mut since: BTreeMap<ServerId, Duration> = BTreeMap::new();
        let (mut count, mut total) = (0, Duration::ZERO);
        for (at, server, state) in states {
            match (since.remove(server), state) {
                (_, ServerState::Waking) => {
                    since.insert(*server, *at);
                }
                (Some(from), ServerState::Awake) => {
                    count += 1;
                    total += *at - from;
                }
                _ => {}
            }
        }
        (count > 0).then(|| Wakes { count, mean_seconds: total.as_secs_f64() / count as f64 })
    }
}

/// Refuses a cluster that cannot be simulated, before it is replayed on.
pub fn check(config: &Config) -> Result<(), NodeError> {
    match config.pool.first() {
        None => Ok(()),
        Some(pool) => Err(refused(format!(
            "--beside-simulated simulates replicas, and this cluster has the erasure-coded pool {:?}: replay on a cluster without \
             pools, or leave the option out",
            pool.name
        ))),
    }
}

/// Simulates what was replayed, with single servers and with whole gears. `None`: Ctrl-C halted it.
pub async fn beside(
    report: &ReplayReport,
    trace: &Arc<Trace>,
    config: &Config,
    interrupt: &Interrupt,
) -> Result<Option<Simulated>, NodeError> {
    let wakes = Wakes::of(&report.states);
    let setup = setup(report, config, wakes)?;
    let mut runs = Vec::new();
    for steps in [GearSteps::Servers, GearSteps::Groups] {
        let gears = if steps == GearSteps::Servers { Gears::Auto } else { Gears::Groups };
        let run = run(trace.clone(), Setup { gears, ..setup.clone() }, interrupt.halt.clone()).await;
        if interrupt.halt.is_set() {
            return Ok(None);
        }
        runs.push((steps, run));
    }
    Ok(Some(Simulated::new(report, wakes, &runs)?))
}

async fn run(trace: Arc<Trace>, setup: Setup, halt: Halt) -> Result<Report, SimError> {
    let work = spawn_blocking(move || {
        let mut line = Progress::new();
        let outcome = simulate(&trace, &setup, &mut |done| {
            line.show(format_args!("simulating the same: {:.0} %", done * 100.0));
            !halt.is_set()
        });
        line.clear();
        outcome
    });
    work.await.expect("the simulation does not panic")
}

/// The cluster as it is.
fn setup(report: &ReplayReport, config: &Config, wakes: Option<Wakes>) -> Result<Setup, NodeError> {
    let (layout, bootstrap, schedule) = (config.layout()?, config.bootstrap()?, report.schedule);
    let is_logger =
        |server: &&ebb_meta::NewServer| server.pool == PoolId::REPLICATED && server.gear_group == NO_GEAR;
    let loggers: Vec<_> = bootstrap.servers.iter().filter(is_logger).map(|one| (one.id, one.rack)).collect();
    let racks: BTreeSet<RackId> = layout.servers.values().map(|place| place.rack).collect();
    let lead = Duration::from_millis(schedule.lead_millis);
    Ok(Setup {
        servers: layout.servers.len() as u16,
        loggers: loggers.len() as u16,
        racks: racks.len() as u16,
        replicas: config.cluster.replicas,
        layout: layout.scheme,
        chunk_bytes: bootstrap.params.chunk_bytes,
        disk: DiskModel::ssd(),
        power: config.power.model,
        g_min: schedule.g_min,
        speed: report.speed,
        reclaim_within: Duration::from_secs(config.reclaim.within_seconds),
        lease: Duration::from_millis(config.cluster.lease_millis.into()),
        seed: SEED,
        existing: Some(Existing {
            layout,
            loggers,
            schedule,
            timing: config.timing(),
            up: wakes.map_or(lead, |wakes| Duration::from_secs_f64(wakes.mean_seconds)),
        }),
        ..Setup::default()
    })
}

fn awake(steps: GearSteps) -> Awake {
    match steps {
        GearSteps::Servers => Awake::Continuous,
        GearSteps::Groups => Awake::Whole,
    }
}

impl Simulated {
    fn new(
        report: &ReplayReport,
        wakes: Option<Wakes>,
        runs: &[(GearSteps, Result<Report, SimError>)],
    ) -> Result<Simulated, NodeError> {
        let (account, compared) = (&report.account, &report.modelled_energy.compared);
        let own = report.schedule.steps;
        let row = |gears, by, energy: ModelledEnergy, short_percent, holds: bool| {
            let energy = EnergyFigures::from(energy);
            let share = energy.total_joules / report.modelled_energy.always_on.total_joules;
            let mean_servers_awake = energy.on_seconds / account.end.as_secs_f64().max(f64::MIN_POSITIVE);
            let saved_percent = (holds && share.is_finite()).then_some(100.0 * (1.0 - share));
            Row { gears, by, saved_percent, mean_servers_awake, short_percent, energy }
        };
        let of_states = |gears, by, states: &States, holds| {
            let short = 100.0 * account.short(states);
            account
                .of_states(states)
                .map(|energy| row(gears, by, energy, Some(short), holds))
                .map_err(refused)
        };
        let mut rows = vec![of_states(awake(own), By::Live, &report.states, compared.is_some())?];
        let mut notes = Vec::new();
        let mut same = None;
        for (steps, run) in runs {
            match run {
                Ok(run) => {
                    rows.push(of_states(awake(*steps), By::Simulated, &run.states, run.all_served())?);
                    same = same.or((*steps == own).then_some(run));
                    let (failed, unanswered) = (run.requests.failed, run.requests.unanswered);
                    if !run.all_served() {
                        notes.push(format!(
                            "simulated, {failed} requests failed and {unanswered} were not answered: no savings follow from that; \
                             lower --speed"
                        ));
                    }
                }
                Err(error) => notes.push(format!("not simulated: {error}")),
            }
        }
        let whole = account.of_gears(&account.oracle_gears()).map_err(refused)?;
        rows.push(row(Awake::Continuous, By::Oracle, account.of_oracle().map_err(refused)?, None, true));
        rows.push(row(Awake::Whole, By::Oracle, whole, None, true));
        rows.push(row(Awake::Fewest, By::Ceiling, account.of_fewest().map_err(refused)?, None, true));
        Ok(Simulated {
            apart_points: apart(&rows),
            rows,
            wakes,
            simulated_wakes: same.and_then(|run| Wakes::of(&run.states)),
            latency: same.map(latency),
            disk: DiskModel::ssd().name().to_owned(),
            notes,
            live_latency: report.latency.stretches.clone(),
        })
    }
}

/// Between the live row and the simulated one of the same steps.
fn apart(rows: &[Row]) -> Option<f64> {
    let live = rows.iter().find(|row| row.by == By::Live)?;
    let same = rows.iter().find(|row| row.by == By::Simulated && row.gears == live.gears)?;
    Some((live.saved_percent? - same.saved_percent?).abs())
}

/// Of a simulation, by its own shifts.
fn latency(run: &Report) -> StretchLatency {
    let answered = run.done.iter().filter(|done| !done.failed).map(|done| {
        let kind = if done.read { Kind::Read } else { Kind::Write };
        (Duration::from_nanos(done.at), kind, Duration::from_nanos(done.took))
    });
    StretchLatency::of(&Stretches::of(&run.states), answered)
}

const HEADER: [&str; 6] =
    ["modelled, at the trace's own speed", "saved", "servers awake", "kWh", "time short", "switchings"];

impl Row {
    fn cells(&self) -> Vec<String> {
        let gears = match self.gears {
            Awake::Continuous => "continuous gears",
            Awake::Whole => "whole gears",
            Awake::Fewest => "the lowest gear throughout",
        };
        let by = match self.by {
            By::Live => ", live",
            By::Simulated => ", simulated",
            By::Oracle => ", an oracle",
            By::Ceiling => "",
        };
        let percent = |value: Option<f64>, digits| {
            value.map_or("–".to_owned(), |percent| format!("{percent:.digits$} %"))
        };
        vec![
            format!("{gears}{by}"),
            percent(self.saved_percent, 1),
            format!("{:.1}", self.mean_servers_awake),
            format!("{:.2}", self.energy.total_joules / 3.6e6),
            percent(self.short_percent, 2),
            self.energy.transitions.to_string(),
        ]
    }
}

/// The p99 of reads in each stretch.
fn reads(latency: &StretchLatency) -> String {
    let millis = |reads: &Option<Latency>| match reads {
        Some(latency) => format!("{:.1} ms", latency.p99_millis),
        None => "–".to_owned(),
    };
    let cells = latency.named().map(|(name, of)| format!("{} {name}", millis(&of.reads)));
    cells.join(", ")
}

impl fmt::Display for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from("\nside by side\n");
        table(&mut text, &HEADER, &self.rows.iter().map(Row::cells).collect::<Vec<_>>());
        f.write_str(&text)?;
        if let Some(apart) = self.apart_points {
            writeln!(f, "          live and simulated are {apart:.1} points apart")?;
        }
        let mean = |wakes: &Option<Wakes>| match wakes {
            Some(Wakes { count, mean_seconds }) => format!("{mean_seconds:.2} s (mean of {count})"),
            None => "none".to_owned(),
        };
        writeln!(f, "wake-ups  live {}, simulated {}", mean(&self.wakes), mean(&self.simulated_wakes))?;
        writeln!(f, "p99 of reads, live: {}", reads(&self.live_latency))?;
        if let Some(latency) = &self.latency {
            let reads = reads(latency);
            writeln!(
                f,
                "p99 of reads, simulated, each server with processors and a disk ({}) of its own: {reads}",
                self.disk
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note      {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gears: Awake, by: By, saved_percent: Option<f64>) -> Row {
        let energy = EnergyFigures { total_joules: 3.6e6, transitions: 4, ..EnergyFigures::default() };
        Row { gears, by, saved_percent, mean_servers_awake: 5.25, short_percent: Some(1.25), energy }
    }

    #[test]
    fn the_cluster_is_compared_with_the_simulation_of_its_own_steps() {
        let rows = |live| {
            [
                row(Awake::Whole, By::Live, live),
                row(Awake::Continuous, By::Simulated, Some(30.0)),
                row(Awake::Whole, By::Simulated, Some(21.2)),
                row(Awake::Whole, By::Oracle, Some(29.8)),
            ]
        };
        assert!((apart(&rows(Some(20.5))).unwrap() - 0.7).abs() < 1e-9);
        assert_eq!((apart(&rows(None)), apart(&rows(Some(20.5))[..2])), (None, None));
    }

    #[test]
    fn a_wake_up_lasts_until_the_server_is_awake() {
        use ServerState::{Asleep, Awake, Draining, Failed, Waking};
        let states = |list: &[(u64, u16, ServerState)]| -> Vec<_> {
            list.iter().map(|(at, id, state)| (Duration::from_secs(*at), ServerId(*id), *state)).collect()
        };
        let mut list =
            vec![(0, 1, Awake), (0, 2, Asleep), (10, 2, Waking), (11, 1, Draining), (12, 2, Awake)];
        assert_eq!(Wakes::of(&states(&list)), Some(Wakes { count: 1, mean_seconds: 2.0 }));
        list.extend([(13, 1, Asleep), (20, 1, Waking), (21, 1, Failed), (30, 1, Awake)]);
        assert_eq!(Wakes::of(&states(&list)).unwrap().count, 1, "one that failed did not wake");
        assert_eq!(Wakes::of(&states(&list[..2])), None);
    }

    #[test]
    fn what_has_no_savings_shows_none() {
        let cells = row(Awake::Continuous, By::Live, None).cells();
        assert_eq!(cells, ["continuous gears, live", "–", "5.2", "1.00", "1.25 %", "4"]);
    }
}
