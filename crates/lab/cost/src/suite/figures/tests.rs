use super::*;
use crate::suite::GuestRun;
use crate::suite::vm::Accelerator;
use crate::tests::{measured, report};
use crate::{Cycles, Measured, Projection};
use std::time::Duration;

/// See `measured` of the cost's tests: per I/O 6,000 user, 10,000 system, 16,000 idle and 8,000 iowait cycles.
fn result(paper: &str) -> WorkloadResult {
    WorkloadResult {
        name: paper.to_lowercase(),
        paper: Some(paper.into()),
        about: "x".into(),
        outcome: Outcome::Measured(Box::new(report(paper, &measured()))),
        guests: Vec::new(),
    }
}

fn near(value: Option<f64>, right: f64) {
    let value = value.expect("it was measured");
    assert!((value - right).abs() < 1e-9, "{value}, not {right}");
}

fn line<'a>(figures: &'a Figures, what: &str) -> &'a Beside {
    let mut lines = figures.beside.iter();
    lines.find(|line| line.what.starts_with(what)).unwrap_or_else(|| panic!("no line {what:?}"))
}

fn here(figures: &Figures, what: &str) -> Option<f64> {
    line(figures, what).here
}

#[test]
fn the_figures_follow_from_the_layers() {
    let figures = Figures::of(&[result("BDB")]);
    let row = &figures.rows[0];
    // Of 20 core-seconds: 3 user, 5 system, 8 idle, 4 iowait.
    assert_eq!(row.shares, Shares { user: 0.15, system: 0.25, idle: 0.4, iowait: 0.2 });
    assert_eq!((row.cores, row.cpio_cycles), (2, 16_000.0));
    // 200 W of 2 · 2 GHz are 50 nJ a cycle: a million times 16,000, 16,000 + 0.7 · 24,000 and 6,000 + 0.7 · 24,000.
    near(Some(row.emio_without_idle_power_joules), 800.0);
    near(Some(row.emio_joules), 1640.0);
    near(Some(row.emio_without_system_joules), 1140.0);
    near(row.system_overhead, 500.0 / 1140.0);
    near(here(&figures, "emio at idle power 0.7"), 2.05);
    near(here(&figures, "system time of BDB"), 0.25);
    assert_eq!(here(&figures, "system time of Dedup"), None, "it was not measured");
    assert_eq!(here(&figures, "cpio, one guest"), None, "no guest ran");
}

#[test]
fn averages_are_of_what_was_measured() {
    // The second has no system time to speak of: 0.1 of 20 core-seconds.
    let mut calm = measured();
    (calm.used.system, calm.used.idle) = (Duration::from_millis(100), Duration::from_millis(12_900));
    let calm =
        WorkloadResult { outcome: Outcome::Measured(Box::new(report("calm", &calm))), ..result("Psearchy") };
    let absent = |outcome| WorkloadResult { outcome, ..result("IOR") };
    let all = [
        result("BDB"),
        calm,
        absent(Outcome::Skipped("fio not installed".into())),
        absent(Outcome::Failed("no room".into())),
    ];
    let figures = Figures::of(&all);
    assert_eq!(figures.rows.len(), 2);
    near(here(&figures, "system time, mean"), (0.25 + 0.005) / 2.0);
    // 6,000 + 0.7 · 33,800 cycles, and 200 more.
    let calm = 200.0 / 29_660.0;
    near(here(&figures, "system part, mean of the 1 workloads"), 500.0 / 1140.0);
    near(here(&figures, "system part, mean of all"), (500.0 / 1140.0 + calm) / 2.0);
    near(here(&figures, "system part of Psearchy"), calm);
}

#[test]
fn guests_are_relative_to_the_host() {
    // Half of the I/Os in the same time; then two fifths of them, from two guests.
    let slow = Measured { sectors: [("guest 1".into(), 500_000)].into(), ..measured() };
    let two = [("guest 1".into(), 200_000), ("guest 2".into(), 200_000)].into();
    let slower = Measured { sectors: two, ..measured() };
    let guests = |guests, measured| {
        let run = report("guest", measured).points.remove(0).runs.remove(0);
        let run = GuestRun { cores_each: 1, memory_mib: 1024, accelerator: Accelerator::Tcg, run };
        GuestResult { guests, run: Some(run), failure: None }
    };
    let one = WorkloadResult { guests: vec![guests(1, &slow), guests(2, &slower)], ..result("IOR") };
    let figures = Figures::of(&[one]);
    near(here(&figures, "cpio, one guest"), 1.0);
    near(here(&figures, "emio, one guest"), 1.0);
    near(here(&figures, "cpio, two guests"), 1.5);
    near(here(&figures, "cpio of IOR, two guests by one"), 0.25);
}

#[test]
fn growth_is_relative_to_the_fewest_cores() {
    let mut report = report("x", &measured());
    let mut few = report.points[0].clone();
    few.cores = 1;
    few.runs[0].machine.cpio.system = Cycles(8000.0);
    report.points.insert(0, few);
    report.projection = Projection::new(&[(1, Cycles(8000.0)), (2, Cycles(10_000.0)), (4, Cycles(14_000.0))]);
    let one = WorkloadResult { outcome: Outcome::Measured(Box::new(report)), ..result("TPC-E") };
    let figures = Figures::of(&[one, result("IOR")]);
    assert_eq!(figures.rows[0].growth, [(1, 1.0), (2, 1.25)]);
    // 6,000 + 2,000 a core.
    near(here(&figures, "system cycles per I/O on 128 cores"), 262_000.0 / 8000.0);
    near(here(&figures, "system cycles per I/O on 1024 cores"), 2_054_000.0 / 8000.0);
    let what = &line(&figures, "system cycles per I/O on 256 cores").what;
    assert!(what.contains("of the 1 of 2 lines"), "IOR has no line: {what}");
}

#[test]
fn the_papers_values_are_those_of_its_text() {
    let figures = Figures::of(&[]);
    let paper = |what: &str| (line(&figures, what).disks, line(&figures, what).flash);
    let times = ["user time", "system time, mean", "idle time", "iowait time"].map(paper);
    assert!((times.iter().filter_map(|time| time.0).sum::<f64>() - 1.0).abs() < 1e-12, "all of the time");
    assert!((times.iter().filter_map(|time| time.1).sum::<f64>() - 1.0).abs() < 1e-12, "all of the time");
    assert_eq!(paper("emio by that of the other machine, idle power 0.7"), (Some(6.0), Some(1.0)));
    assert_eq!(paper("system part of Psearchy"), (None, Some(2.5)));
    assert_eq!(paper("emio of TPC-E, one guest"), (None, Some(4.0)));
    assert!(figures.beside.iter().all(|line| line.here.is_none()), "nothing was measured");
}
