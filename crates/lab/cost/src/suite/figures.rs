//! Figures 1 to 5 of [OS layers], from the workloads' reports, and what the paper's text says of them.
//!
//! The paper's numbers are of its machines and its applications: they stand beside ours to compare the shape, not the
//! value. Averages are arithmetic means over the workloads that were measured.

use super::super::model::Projected;
use super::super::show::shares;
use super::super::{Eio, Point, Run};
use super::{GuestResult, Outcome, WorkloadResult};
use serde::Serialize;

/// Idle power of the figures that include idle time [OS layers §6].
const IDLE_FRACTION: f64 = 0.7;
/// From this share of system time on, a workload is in Figure 3 [OS layers §6].
const SIGNIFICANT_SYSTEM: f64 = 0.1;
const MILLION: f64 = 1e6;

/// How cores spent their time, as shares of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    pub user: f64,
    pub system: f64,
    pub idle: f64,
    pub iowait: f64,
}

/// One workload in the figures; means over the runs on the most cores.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    pub paper: Option<String>,
    pub cores: usize,
    /// Figure 1.
    pub shares: Shares,
    /// User and system, per I/O of 512 bytes.
    pub cpio_cycles: f64,
    /// Figure 2: modelled joules per million I/Os, idle power 0.7 and 0 of the peak.
    pub emio_joules: f64,
    pub emio_without_idle_power_joules: f64,
    /// Figure 3: user and idle, without the system part; idle power 0.7 of the peak.
    pub emio_without_system_joules: f64,
    /// What the system part adds to that, as a share of it.
    pub system_overhead: Option<f64>,
    /// Figure 4: relative to the host.
    pub guests: Vec<GuestsRow>,
    /// Figure 5: system cycles per I/O on each number of cores, relative to the fewest.
    pub growth: Vec<(usize, f64)>,
    pub projected: Vec<Projected>,
}

/// A workload in virtual machines, relative to the host: 0.5 is half as much again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GuestsRow {
    pub guests: usize,
    pub cpio_increase: f64,
    pub emio_increase: f64,
}

/// A value of the paper's text beside ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    pub figure: u8,
    pub what: String,
    /// `%`: the numbers are shares of 1; `×`: factors.
    pub unit: &'static str,
    /// The paper's machine with disks, and its machine with flash. Absent: its text gives no number.
    pub disks: Option<f64>,
    pub flash: Option<f64>,
    /// Absent: not measured.
    pub here: Option<f64>,
}

/// What the suite says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub rows: Vec<Row>,
    pub beside: Vec<Beside>,
}

impl Figures {
    pub fn of(results: &[WorkloadResult]) -> Figures {
        let rows: Vec<Row> = results.iter().filter_map(Row::of).collect();
        Figures { beside: beside(&rows), rows }
    }
}

impl Row {
    /// `None`: it was not measured.
    fn of(result: &WorkloadResult) -> Option<Row> {
        let Outcome::Measured(report) = &result.outcome else { return None };
        let most = report.points.iter().max_by_key(|point| point.cores)?;
        let fewest = report.points.iter().min_by_key(|point| point.cores)?;
        let share = |at: usize| most.mean(|run| Some(shares(&run.machine)[at]));
        let (user, system) = (share(0)?, share(1)?);
        let energy = |fraction, of: fn(&Eio) -> f64| most.mean(|run| energy_of(run, fraction, of));
        let emio = energy(IDLE_FRACTION, |eio| eio.total.0)?;
        let without_system = energy(IDLE_FRACTION, |eio| eio.user.0 + eio.idle.0)?;
        let cpio = most.mean(|run| Some(run.machine.cpio.total.0))?;
        let system_cycles = |point: &Point| point.mean(|run| Some(run.machine.cpio.system.0));
        let base = system_cycles(fewest)?;
        let growth = |point: &Point| Some((point.cores, system_cycles(point)? / base));
        Some(Row {
            name: result.name.clone(),
            paper: result.paper.clone(),
            cores: most.cores,
            shares: Shares { user, system, idle: share(2)?, iowait: share(3)? },
            cpio_cycles: cpio,
            emio_joules: emio,
            emio_without_idle_power_joules: energy(0.0, |eio| eio.total.0)?,
            emio_without_system_joules: without_system,
            system_overhead: (without_system > 0.0).then(|| emio / without_system - 1.0),
            guests: result.guests.iter().filter_map(|guests| guests_row(guests, cpio, emio)).collect(),
            growth: if base > 0.0 { report.points.iter().filter_map(growth).collect() } else { Vec::new() },
            projected: report.projection.iter().flat_map(|line| line.at.iter().copied()).collect(),
        })
    }
}

/// Modelled joules per million I/Os.
fn energy_of(run: &Run, fraction: f64, of: fn(&Eio) -> f64) -> Option<f64> {
    let mut found = run.machine.modelled_energy_per_io.iter();
    found.find(|eio| eio.idle_fraction == fraction).map(|eio| of(eio) * MILLION)
}

fn guests_row(guests: &GuestResult, cpio: f64, emio: f64) -> Option<GuestsRow> {
    let run = &guests.run.as_ref()?.run;
    Some(GuestsRow {
        guests: guests.guests,
        cpio_increase: run.machine.cpio.total.0 / cpio - 1.0,
        emio_increase: energy_of(run, IDLE_FRACTION, |eio| eio.total.0)? / emio - 1.0,
    })
}

/// The mean over the rows that have the value. `None`: none has.
fn mean(rows: &[Row], of: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rows.iter().filter_map(of).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// What the paper's text says, figure by figure.
fn beside(rows: &[Row]) -> Vec<Beside> {
    let mut lines = Lines { rows, all: Vec::new() };
    times_and_joules(&mut lines);
    system_part(&mut lines);
    guests(&mut lines);
    projections(&mut lines);
    lines.all
}

/// The lines so far.
struct Lines<'a> {
    rows: &'a [Row],
    all: Vec<Beside>,
}

impl Lines<'_> {
    /// `paper`: on disks and on flash.
    fn add(
        &mut self,
        figure: u8,
        what: &str,
        unit: &'static str,
        (disks, flash): (Option<f64>, Option<f64>),
        here: Option<f64>,
    ) {
        self.all.push(Beside { figure, what: what.to_owned(), unit, disks, flash, here });
    }

    /// Of the workload that stands for this one of the paper.
    fn one(&self, paper: &str, of: &dyn Fn(&Row) -> Option<f64>) -> Option<f64> {
        self.rows.iter().find(|row| row.paper.as_deref() == Some(paper)).and_then(of)
    }
}

fn both(disks: f64, flash: f64) -> (Option<f64>, Option<f64>) {
    (Some(disks), Some(flash))
}

fn flash(value: f64) -> (Option<f64>, Option<f64>) {
    (None, Some(value))
}

fn times_and_joules(lines: &mut Lines<'_>) {
    let rows = lines.rows;
    // §5. User time is the rest.
    lines.add(1, "user time, mean", "%", both(0.26, 0.57), mean(rows, |row| Some(row.shares.user)));
    lines.add(1, "system time, mean", "%", both(0.02, 0.26), mean(rows, |row| Some(row.shares.system)));
    lines.add(1, "idle time, mean", "%", both(0.30, 0.07), mean(rows, |row| Some(row.shares.idle)));
    lines.add(1, "iowait time, mean", "%", both(0.42, 0.10), mean(rows, |row| Some(row.shares.iowait)));
    // §6 and §7.
    for (paper, share) in [("Dedup", 0.006), ("Metis", 0.072), ("BDB", 0.10), ("TPC-E", 0.36)] {
        lines.add(
            1,
            &format!("system time of {paper}"),
            "%",
            flash(share),
            lines.one(paper, &|row| Some(row.shares.system)),
        );
    }
    let by_idle_power = |row: &Row| {
        (row.emio_without_idle_power_joules > 0.0)
            .then(|| row.emio_joules / row.emio_without_idle_power_joules)
    };
    lines.add(
        2,
        "emio at idle power 0.7 by that at 0, mean",
        "×",
        (Some(4.0), None),
        mean(rows, by_idle_power),
    );
    lines.add(2, "emio by that of the other machine, idle power 0.7", "×", (Some(6.0), Some(1.0)), None);
    lines.add(2, "emio by that of the other machine, idle power 0", "×", (Some(1.58), Some(1.0)), None);
}

fn system_part(lines: &mut Lines<'_>) {
    let rows = lines.rows;
    let significant: Vec<Row> =
        rows.iter().filter(|row| row.shares.system >= SIGNIFICANT_SYSTEM).cloned().collect();
    let overhead = |row: &Row| row.system_overhead;
    let what = format!("system part, mean of the {} workloads with 10 % of system time", significant.len());
    lines.add(3, &what, "%", both(0.0, 0.6), mean(&significant, overhead));
    lines.add(3, "system part, mean of all", "%", (None, None), mean(rows, overhead));
    lines.add(3, "system part of Psearchy", "%", flash(2.5), lines.one("Psearchy", &overhead));
}

fn guests(lines: &mut Lines<'_>) {
    let rows = lines.rows;
    let guests = |count, of: fn(&GuestsRow) -> f64| {
        move |row: &Row| row.guests.iter().find(|guests| guests.guests == count).map(of)
    };
    lines.add(4, "cpio, one guest, mean", "%", flash(1.5), mean(rows, guests(1, |g| g.cpio_increase)));
    lines.add(4, "emio, one guest, mean", "%", flash(1.8), mean(rows, guests(1, |g| g.emio_increase)));
    lines.add(4, "cpio, two guests, mean", "%", (None, None), mean(rows, guests(2, |g| g.cpio_increase)));
    lines.add(4, "emio, two guests, mean", "%", (None, None), mean(rows, guests(2, |g| g.emio_increase)));
    lines.add(
        4,
        "cpio of Dedup, one guest",
        "%",
        flash(0.28),
        lines.one("Dedup", &guests(1, |g| g.cpio_increase)),
    );
    lines.add(
        4,
        "cpio of Dedup, two guests",
        "%",
        flash(2.0),
        lines.one("Dedup", &guests(2, |g| g.cpio_increase)),
    );
    for (paper, change) in [("IOR", -0.16), ("BLAST", -0.25)] {
        let here = lines.one(paper, &|row| {
            let (first, second) =
                (guests(1, |g| g.cpio_increase)(row)?, guests(2, |g| g.cpio_increase)(row)?);
            Some((1.0 + second) / (1.0 + first) - 1.0)
        });
        lines.add(4, &format!("cpio of {paper}, two guests by one"), "%", flash(change), here);
    }
    for (paper, increase) in [("HBase", 3.5), ("TPC-E", 4.0)] {
        let here = lines.one(paper, &guests(1, |g| g.emio_increase));
        lines.add(4, &format!("emio of {paper}, one guest"), "%", flash(increase), here);
    }
}

fn projections(lines: &mut Lines<'_>) {
    let rows = lines.rows;
    for (at, (cores, growth)) in [(128, 12.0), (256, 24.0), (1024, 92.0)].into_iter().enumerate() {
        let growth_here = |row: &Row| row.projected.get(at)?.growth;
        let rising = rows.iter().filter_map(growth_here).count();
        let what = format!(
            "system cycles per I/O on {cores} cores by those on one, mean of the {rising} of {} lines that stay above zero",
            rows.len()
        );
        lines.add(5, &what, "×", flash(growth), mean(rows, growth_here));
    }
}

#[cfg(test)]
mod tests;
