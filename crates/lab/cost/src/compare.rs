//! Two reports side by side: a guest against its host, disks against flash, one system against another.

use super::{CostError, CostReport, Eio, Point, Run, View};
use serde::Serialize;

/// One quantity of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub what: String,
    pub unit: &'static str,
    /// Absent if the report has no such value.
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// b / a.
    pub ratio: Option<f64>,
}

/// The points of two reports with the same number of cores, or else the last point of each.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub a: String,
    pub b: String,
    pub a_cores: usize,
    pub b_cores: usize,
    pub differences: Vec<Difference>,
    /// Reasons why the two may not be comparable.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Means over the runs. Fails on a report without points.
    pub fn new(a: &CostReport, b: &CostReport) -> Result<Comparison, CostError> {
        let same =
            a.points.iter().rev().find_map(|p| Some((p, b.points.iter().find(|q| q.cores == p.cores)?)));
        let (p, q) = match same {
            Some(pair) => pair,
            None => (a.points.last().ok_or(CostError::Empty)?, b.points.last().ok_or(CostError::Empty)?),
        };
        let mut differences = Vec::new();
        let mut add = |what: String, unit, of: &dyn Fn(&Run) -> Option<f64>| {
            let (a, b) = (p.mean(of), q.mean(of));
            let ratio = a.zip(b).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a);
            differences.push(Difference { what, unit, a, b, ratio });
        };
        type Pick = fn(&View) -> Option<f64>;
        let layers: [(&str, Pick); 5] = [
            ("cpio (user + system)", |view| Some(view.cpio.total.0)),
            ("user", |view| Some(view.cpio.user.0)),
            ("system", |view| Some(view.cpio.system.0)),
            ("idle", |view| Some(view.cpio.idle?.0)),
            ("iowait", |view| Some(view.cpio.iowait?.0)),
        ];
        for (name, pick) in layers {
            add(name.to_owned(), "cycles", &move |run| pick(&run.machine));
        }
        for fraction in a.idle_fractions.iter().filter(|fraction| b.idle_fractions.contains(fraction)) {
            type Energy = (&'static str, fn(&Eio) -> f64);
            let energy: [Energy; 3] = [
                ("emio, user only", |eio| eio.user.0),
                ("emio, user + system", |eio| eio.user_and_system.0),
                ("emio, with idle", |eio| eio.total.0),
            ];
            for (name, pick) in energy {
                add(format!("{name} (IP {fraction})"), "J", &move |run| {
                    let mut found = run.machine.modelled_energy_per_io.iter();
                    found.find(|eio| eio.idle_fraction == *fraction).map(|eio| pick(eio) * 1e6)
                });
            }
        }
        add("cpio of the command itself".into(), "cycles", &|run| Some(run.command.as_ref()?.cpio.total.0));
        add("I/Os per second".into(), "1/s", &|run| Some(run.machine.ios as f64 / run.wall_seconds));
        Ok(Comparison {
            a: a.label.clone(),
            b: b.label.clone(),
            a_cores: p.cores,
            b_cores: q.cores,
            differences,
            notes: unlike(a, b, p, q),
        })
    }
}

fn unlike(a: &CostReport, b: &CostReport, p: &Point, q: &Point) -> Vec<String> {
    let mut notes = Vec::new();
    let mut unless = |same: bool, note: &str| {
        if !same {
            notes.push(note.to_owned());
        }
    };
    let all = |point: &Point, of: &dyn Fn(&Run) -> String| {
        let mut values: Vec<String> = point.runs.iter().map(of).collect();
        values.sort();
        values.dedup();
        values
    };
    let alike = |of: &dyn Fn(&Run) -> String| all(p, of) == all(q, of);
    unless(a.command == b.command, "the commands differ");
    unless(p.cores == q.cores, "the numbers of cores differ: the last point of each is compared");
    unless(alike(&|run| run.machine.io_source.to_string()), "I/O is counted in different ways");
    unless(alike(&|run| run.frequency_source.to_string()), "the frequencies come from different sources");
    unless(alike(&|run| run.cycles_counted.to_string()), "only one of them has counted cycles");
    unless(a.peak_watts == b.peak_watts, "the modelled peak watts differ");
    unless(a.idle_fractions == b.idle_fractions, "only the idle fractions that both have are compared");
    notes
}
