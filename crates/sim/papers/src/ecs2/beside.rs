//! What the paper does not compare: the same workloads on a replicated pool with gears and on a set that sleeps as a
//! whole, and the power that each takes for the data that it stores.

use super::super::findings::{Experiment, PaperError, Table, number, with_bars};
use super::runs::{Runs, THRESHOLDS, power};
use super::scenarios::TABLE_VII;
use ebb_gear::LoadSeries;
use ebb_output::{Axis, Chart, Latency};
use ebb_sim::coded::{Report, Setup};
use ebb_sim::request::{self, DiskModel, Gears, NetworkModel, SimError};
use ebb_trace::Trace;
use ebb_types::Schedule;
use std::time::Duration;

const COPIES: u8 = 3;
/// So small that even the smallest workload is on all servers.
const CHUNK_BYTES: u32 = 1 << 20;
const HIBERNATING: &str = "hibernating";

const ABOUT: &str = "All columns play the same requests, and store the same data: what fits on the disks of the set's data servers. \
    Three copies of that are 3k disks, one to a server, where the set has k + m; more only if the workload's busiest second needs more at the \
    disks' own rates, which no generated one does. Every server draws what it does in Table VII, counted by the same meter.\n\n\
    Gears: Ebb's replicated pool, with the gear that the scheduler gives to an hour whose peak it knows, as it does after a day with such an \
    hour. Writes of sleeping copies wait on awake servers. The lowest gear passes to other \
    servers in the run's first minutes, as it does once a week, which takes some watts more; what is reclaimed after the run does not count.\n\n\
    Hibernating: the set of Table VII, whose data servers sleep, too, after 27 s without a request, the shortest sleep that pays. The next \
    request wakes them, and waits. Steady requests leave no such spell: of the workload with quiet spells, every second five minutes are without \
    requests.\n\n\
    Watts by stored data: of whole servers, by bytes of user data on full disks; in the files in watts per byte.";

fn systems() -> [&'static str; 5] {
    ["6+3, always on", "6+3, ECS²", "6+3, hibernating", "3 copies, always on", "3 copies, gears"]
}

/// The traces that are compared, the user's too; and at which fill parity servers wake.
fn compared(runs: &Runs) -> Vec<(usize, f64)> {
    let threshold = |trace: usize| THRESHOLDS.get(trace).copied().unwrap_or(0.9);
    (0..runs.traces.len()).map(|trace| (trace, threshold(trace))).collect()
}

pub fn plan(runs: &mut Runs) -> Result<(), PaperError> {
    plan_coded(runs);
    for (trace, _) in compared(runs) {
        let setup = replicated(&runs.traces[trace], runs.seed)?;
        runs.plan_replicated(trace, setup);
    }
    Ok(())
}

fn plan_coded(runs: &mut Runs) {
    for (trace, threshold) in compared(runs) {
        let setup = runs.setup(threshold);
        if trace == THRESHOLDS.len() {
            runs.plan(trace, "plain", setup.clone());
        }
        let hibernate = setup.standby.map(|standby| standby.break_even);
        runs.plan_one(trace, HIBERNATING, Setup { hibernate, ..setup });
    }
}

/// User data on the disks of a set that are full, and on those of as many replicated servers as it takes for that.
fn stored_bytes(setup: &Setup) -> u64 {
    setup.shape.data() as u64 * setup.disk.capacity_bytes()
}

/// A replicated cluster of the same servers, as many as the data and the load need.
fn replicated(trace: &Trace, seed: u64) -> Result<request::Setup, SimError> {
    let disk = DiskModel::hdd_2009();
    let copies = u64::from(COPIES);
    let by_data = (stored_bytes(&Setup::default()) * copies).div_ceil(disk.capacity_bytes());
    let schedule = disk.rates().in_schedule(Schedule::default());
    let by_load = LoadSeries::new(trace.loads(CHUNK_BYTES)?, 1.0, &schedule, COPIES)?.peak().0.ceil() as u64;
    let servers = by_data.max(by_load).next_multiple_of(copies).min(u64::from(u16::MAX));
    Ok(request::Setup {
        servers: servers as u16,
        racks: COPIES.into(),
        replicas: COPIES,
        chunk_bytes: CHUNK_BYTES,
        groups_per_server: 21,
        disk,
        network: NetworkModel::gigabit(),
        power: power(),
        gears: Gears::Schedule,
        seed,
        ..request::Setup::default()
    })
}

/// Mean watts of each of [`systems`].
fn watts(runs: &Runs, trace: usize) -> [Option<f64>; 5] {
    let coded = |report: Option<&Report>| report.map(|report| report.energy_modelled.mean_watts);
    let (asleep, on) = runs.get(trace, "plain").unzip();
    let geared = runs.replicated(trace);
    let seconds = |report: &request::Report| report.trace.span_seconds / report.trace.speed;
    [
        coded(on),
        coded(asleep),
        coded(runs.get_one(trace, HIBERNATING)),
        geared.map(|report| report.energy_modelled.clock.always_on_joules.0 / seconds(report)),
        geared.map(|report| report.energy_modelled.clock.total_joules.0 / seconds(report)),
    ]
}

/// Of each of [`systems`], as printed.
fn paper(trace: usize) -> [Option<f64>; 5] {
    let (on, asleep) = TABLE_VII.get(trace).copied().unzip();
    [on, asleep, None, None, None]
}

pub fn found(runs: &Runs) -> Experiment {
    let title = "Replicas with gears, hibernation, and stored data";
    let mut found = Experiment::new("Beside Table VII", title, ABOUT);
    let stored = stored_bytes(&Setup::default()) as f64;
    let (mut bars, mut table) = (systems().map(|_| Vec::new()), Vec::new());
    for (trace, _) in compared(runs) {
        let name = &runs.traces[trace].name;
        let (watts, paper) = (watts(runs, trace), paper(trace));
        let of_stored = watts.map(|watts| watts.map(|watts| watts / stored));
        for (nth, system) in systems().into_iter().enumerate() {
            found.row(format!("{name}: {system}"), "W", paper[nth], watts[nth]);
            found.row(format!("{name}: {system}, by stored data"), "W/B", None, of_stored[nth]);
            bars[nth].extend(of_stored[nth].map(|watts| (trace as f64, watts * 1e12)));
        }
        waits(&mut found, name, runs.get_one(trace, HIBERNATING));
        let response = runs.replicated(trace).and_then(response);
        found.row(format!("{name}: response, 3 copies, gears"), "ms", None, response);
        let printed = paper[..2].iter().map(|watts| number(*watts, "W"));
        let ours = watts
            .iter()
            .zip(of_stored)
            .map(|(watts, of_stored)| format!("{} ({})", number(*watts, "W"), number(of_stored, "W/B")));
        table.push([name.clone()].into_iter().chain(printed).chain(ours).collect());
    }
    let header = ["", "paper: always on", "paper: ECS²"].into_iter().chain(systems());
    found.tables.push(Table::new("Watts, and watts by stored data", header, table));
    found.charts.push(chart(runs, bars));
    found
}

fn chart(runs: &Runs, bars: [Vec<(f64, f64)>; 5]) -> Chart {
    let names = runs.traces.iter().map(|trace| trace.name.clone());
    let chart = Chart::new("Power by stored data, modelled", Axis::new("").names(names), Axis::new("W/TB"));
    with_bars(chart, systems().into_iter().zip(bars))
}

/// How often the set slept, and what that meant for requests.
fn waits(found: &mut Experiment, name: &str, report: Option<&Report>) {
    let slept = report.and_then(|report| report.hibernation);
    let waited = slept.and_then(|slept| slept.waited);
    let count = slept.map(|_| waited.map_or(0, |waited| waited.count) as f64);
    found.row(format!("{name}: hibernating, times asleep"), "", None, slept.map(|slept| slept.times as f64));
    found.row(format!("{name}: hibernating, requests that waited for it"), "", None, count);
    if let Some(Latency { mean_millis, max_millis, .. }) = waited {
        found.ours(format!("{name}: hibernating, their mean wait"), "s", mean_millis / 1e3);
        found.ours(format!("{name}: hibernating, their longest wait"), "s", max_millis / 1e3);
    }
    let response = report.and_then(super::runs::millis);
    found.row(format!("{name}: response, hibernating"), "ms", None, response);
}

/// Mean response time in milliseconds.
fn response(report: &request::Report) -> Option<f64> {
    let answered = report.done.iter().filter(|done| !done.failed);
    Latency::of(answered.map(|done| Duration::from_nanos(done.took))).map(|latency| latency.mean_millis)
}

#[cfg(test)]
mod tests {
    use super::super::inputs::Ecs2Inputs;
    use super::*;
    use ebb_trace::{Kind, Request};

    const TB: f64 = 1e12;
    /// One server that is on.
    const WATTS: f64 = 73.2;

    /// Spans differ by milliseconds: the first and the last event of a run are not at its ends.
    fn close(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 1e-3, "{found} instead of {wanted}");
    }

    /// With what Table VII needs.
    fn runs(seconds: u64) -> Runs {
        let mut runs = Runs::new(&Ecs2Inputs { traces: Vec::new(), seconds, seed: 1 });
        for (trace, threshold) in THRESHOLDS.into_iter().enumerate() {
            runs.plan(trace, "plain", runs.setup(threshold));
        }
        runs
    }

    fn here(found: &Experiment, what: &str) -> f64 {
        let row = found.rows.iter().find(|row| row.what == what);
        row.unwrap_or_else(|| panic!("no row {what}")).here.unwrap()
    }

    #[test]
    fn all_columns_have_the_same_meter_and_span_and_the_same_data() {
        let mut runs = runs(120);
        plan(&mut runs).unwrap();
        runs.run(&mut |_| ()).unwrap();
        let found = found(&runs);
        for (trace, _) in compared(&runs) {
            let (asleep, on) = runs.get(trace, "plain").unwrap();
            let hibernating = runs.get_one(trace, HIBERNATING).unwrap();
            let copies = runs.replicated(trace).unwrap();
            assert_eq!((copies.requests.failed, copies.requests.unanswered), (0, 0));
            // To the last request here, to the last answer there.
            for report in [asleep, on, hibernating] {
                assert_eq!(report.requests, copies.trace.requests);
                assert!((report.span_seconds - copies.trace.span_seconds).abs() < 0.5, "{report:?}");
            }
            let name = &runs.traces[trace].name;
            let watts = |system: &str| here(&found, &format!("{name}: {system}"));
            close(watts("6+3, always on"), 9.0 * WATTS);
            close(watts("3 copies, always on"), 18.0 * WATTS);
            // The lowest gear: a third of the servers, and the others in standby.
            close(watts("3 copies, gears"), 6.0 * WATTS + 12.0 * 5.4);
            let by_data = |system: &str| here(&found, &format!("{name}: {system}, by stored data"));
            systems().iter().for_each(|system| close(by_data(system), watts(system) / (6.0 * TB)));
        }
    }

    /// Of the workload with quiet spells, every second 100 s are quiet.
    #[test]
    fn a_set_hibernates_in_quiet_spells_only() {
        let mut runs = runs(1200);
        plan_coded(&mut runs);
        runs.run(&mut |_| ()).unwrap();
        for (trace, _) in compared(&runs) {
            let (asleep, _) = runs.get(trace, "plain").unwrap();
            let hibernating = runs.get_one(trace, HIBERNATING).unwrap();
            let slept = hibernating.hibernation.unwrap();
            match trace < THRESHOLDS.len() {
                true => {
                    assert_eq!((slept.times, slept.waited), (0, None));
                    assert_eq!(hibernating.energy_modelled, asleep.energy_modelled);
                }
                false => {
                    // The last of the six quiet spells has no request after it, so it is not part of the run.
                    assert_eq!(slept.times, 5);
                    let waited = slept.waited.unwrap();
                    assert!(waited.count >= 5, "{waited:?}");
                    assert!((12_500.0..13_020.0).contains(&waited.max_millis), "{waited:?}");
                    assert!(hibernating.energy_modelled.total < asleep.energy_modelled.total);
                }
            }
        }
    }

    #[test]
    fn replicas_in_the_highest_gear_save_nothing() {
        let runs = Runs::new(&Ecs2Inputs { traces: Vec::new(), seconds: 60, seed: 1 });
        let setup = replicated(&runs.traces[0], 1).unwrap();
        let all = request::Setup { gears: Gears::Fixed(COPIES), ..setup };
        let energy = request::simulate(&runs.traces[0], &all, &mut |_| true).unwrap().energy_modelled;
        close(energy.clock.total_joules.0, energy.clock.always_on_joules.0);
        assert!(energy.clock.saved.abs() < 1e-3, "{}", energy.clock.saved);
    }

    #[test]
    fn as_many_replicated_servers_as_the_data_and_the_load_need() {
        let of = |per_second: u64| {
            let read = |n: u64| Request {
                at: Duration::from_nanos(n * 1_000_000_000 / per_second),
                device: 0,
                // None continues where another ended.
                offset: n << 13,
                len: 4096,
                kind: Kind::Read,
            };
            let requests = (0..per_second * 10).map(read).collect();
            replicated(&Trace { requests, ..Trace::default() }, 1).unwrap().servers
        };
        assert_eq!(of(1), 18, "three copies of 6 TB");
        let iops = DiskModel::hdd_2009().rates().read_iops;
        assert_eq!(of((20.0 * iops) as u64), 21, "twenty disks' reads");
    }
}
