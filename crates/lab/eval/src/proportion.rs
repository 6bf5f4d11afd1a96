//! How proportional a target's power is to its load: of any workload that was run at several levels, with the target's
//! idle watts.
//!
//! The graduated load, 100 % to 10 % and idle, and the overall figure, all work by all power, are SPECpower's. The
//! index is 1 − (A − ideal) / ideal, A being the area below the watts against the load, and ideal the area below the
//! straight line from nothing at rest to the watts at 100 % [Ryckbosch, Polfliet, Eeckhout 2011]: 1 is proportional, 0
//! draws the same at every load.

use super::compare::{by_level, mean};
use super::idle;
use super::record::Record;
use ebb_output::{Axis, Chart, Mark, Series};
use serde::Serialize;
use std::collections::BTreeMap;

/// Sources of watts, the most trustworthy first.
const TRUSTED: [&str; 3] = ["measured", "stated", "modelled"];

/// The curve of one workload on one target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proportion {
    pub campaign: String,
    pub target: String,
    pub workload: String,
    /// Levels with watts; SPECpower has ten.
    pub levels: usize,
    pub idle_watts: f64,
    pub full_watts: f64,
    /// 1: proportional; 0: the same watts at every load.
    pub index: f64,
    /// (full − idle) / full.
    pub dynamic_range: f64,
    /// All levels' IOPS by all levels' watts, idle included.
    pub overall_iops_per_watt: f64,
    /// The least trustworthy.
    pub watts_source: Option<String>,
}

/// Of every workload with a run at 100 %, at least one at less, and idle watts of its target.
pub fn proportions(records: &[Record]) -> Vec<Proportion> {
    let mut of: BTreeMap<(&str, &str, &str), Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|r| r.error.is_none() && r.watts.is_some() && !idle::is_idle(r)) {
        of.entry((&record.campaign, &record.target, &record.workload)).or_default().push(record);
    }
    let found = of.into_iter().filter_map(|((campaign, target, workload), runs)| {
        let rest = records.iter().filter(|r| r.campaign == campaign && r.target == target);
        let idle_watts = mean(idle::watts(rest).into_iter())?;
        let curve = curve(&runs);
        let (full, rest) =
            curve.split_last().filter(|(full, rest)| full.level == 100.0 && !rest.is_empty())?;
        let area = area(idle_watts, &curve);
        let ideal = full.watts / 2.0;
        let iops: f64 = curve.iter().map(|point| point.iops).sum();
        let watts: f64 = curve.iter().map(|point| point.watts).sum();
        let sources = runs.iter().filter_map(|run| run.watts_source.clone());
        Some(Proportion {
            campaign: campaign.to_owned(),
            target: target.to_owned(),
            workload: workload.to_owned(),
            levels: rest.len() + 1,
            idle_watts,
            full_watts: full.watts,
            index: 1.0 - (area - ideal) / ideal,
            dynamic_range: (full.watts - idle_watts) / full.watts,
            overall_iops_per_watt: iops / (watts + idle_watts),
            watts_source: sources.max_by_key(|source| TRUSTED.iter().position(|name| name == source)),
        })
    });
    found.collect()
}

/// Watts of one workload against its measured load, beside the line of a target that is proportional. Without watts at
/// 100 % there is no such line, and no chart; a load without watts is a gap.
pub(super) fn chart(records: &[Record], workload: &str) -> Option<Chart> {
    let runs: Vec<&Record> = records.iter().filter(|r| r.error.is_none() && r.workload == workload).collect();
    let levels = levels(&runs);
    let full = full(&levels, |run| run.watts)?;
    let idle = mean(idle::watts(records.iter()).into_iter()).map(|watts| (0.0, watts));
    let measured = levels.iter().map(|(level, runs)| {
        let load = of(runs, |run| run.load_percent_iops).unwrap_or(*level);
        (load, of(runs, |run| run.watts).unwrap_or(f64::NAN))
    });
    let sources = runs.iter().filter_map(|run| run.watts_source.as_deref());
    let least = sources.max_by_key(|source| TRUSTED.iter().position(|name| name == source));
    let watts = match least {
        Some(source) if source != TRUSTED[0] => format!("W, {source} watts"),
        _ => "W".to_owned(),
    };
    let title = format!("Power and load of {workload}");
    let chart = Chart::new(title, Axis::new("measured load, %").from(0.0), Axis::new(watts).from(0.0))
        .with(Series::new("drawn", Mark::Line, idle.into_iter().chain(measured)))
        .with(Series::new("proportional", Mark::Line, [(0.0, 0.0), (100.0, full)]));
    Some(chart)
}

struct Point {
    /// In percent, as configured.
    level: f64,
    /// Measured, by that at 100 %.
    load: f64,
    iops: f64,
    watts: f64,
}

type Level<'a> = (f64, Vec<&'a Record>);

/// More than 100 % is beyond the curve.
fn levels<'a>(runs: &[&'a Record]) -> Vec<Level<'a>> {
    by_level(runs).into_iter().filter(|(level, _)| *level <= 100.0).collect()
}

fn of(runs: &[&Record], value: fn(&Record) -> Option<f64>) -> Option<f64> {
    mean(runs.iter().filter_map(|run| value(run)))
}

fn full(levels: &[Level<'_>], value: fn(&Record) -> Option<f64>) -> Option<f64> {
    levels.iter().find(|(level, _)| *level == 100.0).and_then(|(_, runs)| of(runs, value))
}

/// By level, repetitions averaged.
fn curve(runs: &[&Record]) -> Vec<Point> {
    let levels = levels(runs);
    let full = full(&levels, |run| run.iops);
    let point = |(level, runs): &Level<'_>| {
        let (iops, watts) = (of(runs, |run| run.iops)?, of(runs, |run| run.watts)?);
        Some(Point { level: *level, load: iops / full?, iops, watts })
    };
    levels.iter().filter_map(point).collect()
}

/// Below the watts, from rest to 100 %.
fn area(idle_watts: f64, curve: &[Point]) -> f64 {
    let (mut load, mut watts, mut area) = (0.0, idle_watts, 0.0);
    for point in curve {
        area += (point.load - load) * (point.watts + watts) / 2.0;
        (load, watts) = (point.load, point.watts);
    }
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(load_percent: f64, watts: f64) -> Record {
        Record {
            campaign: "c".into(),
            target: "t".into(),
            workload: if load_percent == 0.0 { "idle".into() } else { "w".into() },
            load_percent,
            iops: (load_percent > 0.0).then_some(10.0 * load_percent),
            watts: Some(watts),
            watts_source: Some(if load_percent == 50.0 { "stated" } else { "measured" }.into()),
            ..Record::default()
        }
    }

    #[test]
    fn a_proportional_target_has_1_a_flat_one_0_and_a_line_its_dynamic_range() {
        let of = |watts: fn(f64) -> f64| {
            let records: Vec<Record> = [0.0, 10.0, 50.0, 100.0].map(|load| run(load, watts(load))).into();
            proportions(&records).pop().expect("one curve")
        };
        let proportional = of(|load| load.max(1e-9));
        assert!((proportional.index - 1.0).abs() < 1e-9 && (proportional.dynamic_range - 1.0).abs() < 1e-9);
        let flat = of(|_| 40.0);
        assert!(flat.index.abs() < 1e-9 && flat.dynamic_range == 0.0);
        // From 60 to 100 W on a line: 40 % of the range.
        let line = of(|load| 60.0 + 0.4 * load);
        assert!((line.index - 0.4).abs() < 1e-9 && (line.dynamic_range - 0.4).abs() < 1e-9, "{line:?}");
        assert_eq!((line.levels, line.watts_source.as_deref()), (3, Some("stated")));
        // 1,600 IOPS at 244 W, and idle 60 W.
        assert!((line.overall_iops_per_watt - 1600.0 / 304.0).abs() < 1e-9, "{line:?}");
    }

    #[test]
    fn without_idle_watts_or_a_second_level_there_is_no_index() {
        assert!(proportions(&[run(50.0, 5.0), run(100.0, 9.0)]).is_empty(), "no idle watts");
        assert!(proportions(&[run(0.0, 5.0), run(100.0, 9.0)]).is_empty(), "one level");
        assert!(proportions(&[run(0.0, 5.0), run(10.0, 7.0), run(50.0, 9.0)]).is_empty(), "not at 100 %");
        let unmetered = Record { watts: None, ..run(100.0, 0.0) };
        assert!(proportions(&[run(0.0, 5.0), run(50.0, 7.0), unmetered]).is_empty());
    }
}
