//! Two sets of results side by side: a disk against an SSD, a release against the previous one.
//!
//! Runs are compared where both sides have the same workload at the same configured load. Means are taken over
//! repetitions, and ratios are averaged geometrically: a gain and a loss of the same factor cancel out.

use super::idle::{is_idle, watts};
use super::record::Record;
use super::store::{Store, StoreError};
use ebb_output::{Axis, Chart, Mark, Series};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// A compared metric.
pub(super) type Metric = (&'static str, fn(&Record) -> Option<f64>);
const METRICS: &[Metric] = &[
    ("iops", |r| r.iops),
    ("mb_per_second", |r| r.mb_per_second),
    ("latency_p50_millis", |r| r.latency_p50_millis),
    ("latency_p99_millis", |r| r.latency_p99_millis),
    ("watts", |r| r.watts),
    ("iops_per_watt", |r| r.iops_per_watt),
    ("mb_per_second_per_kilowatt", |r| r.mb_per_second_per_kilowatt),
    ("joules_per_io", |r| r.joules_per_io),
    ("temperature_celsius", |r| r.temperature_celsius),
];

/// Behind the name of a side, of the lines that bound the spread of its repetitions.
pub const LEAST: &str = ", least";
pub const MOST: &str = ", most";

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{side} has no results of {name:?}; available: {there}")]
    Nothing { side: String, name: String, there: String },
    #[error("{side} has results of several targets; choose one: {there}")]
    Several { side: String, there: String },
    #[error("the two sides have no workload and load level in common")]
    Apart,
}

/// One side of a comparison: the results of one target in one campaign.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    pub file: PathBuf,
    pub campaign: String,
    pub target: String,
    #[serde(skip)]
    pub records: Vec<Record>,
}

impl Side {
    /// Parses `FILE`, `FILE#TARGET`, `FILE#CAMPAIGN` or `FILE#CAMPAIGN/TARGET`; it must select exactly one target.
    pub fn open(text: &str) -> Result<Side, CompareError> {
        let (file, name) = text.rsplit_once('#').unwrap_or((text, ""));
        let store = Store::read(file.as_ref())?;
        let contents = store.contents()?;
        let full = |c: &super::Content| format!("{}/{}", c.campaign, c.target);
        let fits = |c: &&super::Content| [&c.campaign, &c.target, &full(c)].iter().any(|n| *n == name);
        let found: Vec<_> = contents.iter().filter(|c| name.is_empty() || fits(c)).collect();
        let list = |contents: &[&super::Content]| {
            let names: Vec<String> = contents.iter().map(|c| format!("{file}#{}", full(c))).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        match found[..] {
            [one] => Ok(Side {
                file: file.into(),
                records: store.records(Some(&one.campaign), Some(&one.target))?,
                campaign: one.campaign.clone(),
                target: one.target.clone(),
            }),
            [] => Err(CompareError::Nothing {
                side: file.into(),
                name: name.into(),
                there: list(&contents.iter().collect::<Vec<_>>()),
            }),
            _ => Err(CompareError::Several { side: text.into(), there: list(&found) }),
        }
    }

    fn name(&self) -> String {
        format!("{}#{}/{}", self.file.display(), self.campaign, self.target)
    }

    /// Records by workload and level.
    fn cells(&self) -> BTreeMap<(String, u64), Vec<&Record>> {
        let mut cells: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
        let runs = self.records.iter().filter(|record| record.error.is_none() && !is_idle(record));
        for record in runs {
            // Levels are positive: their bits sort like the numbers.
            cells.entry((record.workload.clone(), record.load_percent.to_bits())).or_default().push(record);
        }
        cells
    }
}

/// One figure on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Both {
    /// Means of the repetitions.
    pub a: f64,
    pub b: f64,
    /// `b` / `a`.
    pub ratio: f64,
    /// The lowest and the highest of the repetitions.
    pub a_range: [f64; 2],
    pub b_range: [f64; 2],
}

impl Both {
    /// `None`: one side has no value, or a mean that is not positive, to which a ratio is meaningless.
    fn of(a: &[f64], b: &[f64]) -> Option<Both> {
        let range = |values: &[f64]| {
            values
                .iter()
                .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(*v), high.max(*v)])
        };
        let of = |values: &[f64]| mean(values.iter().copied()).filter(|mean| *mean > 0.0);
        let (mean_a, mean_b) = (of(a)?, of(b)?);
        Some(Both { a: mean_a, b: mean_b, ratio: mean_b / mean_a, a_range: range(a), b_range: range(b) })
    }
}

/// One workload at one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    pub workload: String,
    pub load_percent: f64,
    /// The metrics that both sides have.
    pub metrics: BTreeMap<&'static str, Both>,
}

/// A metric over all pairs that have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overall {
    pub metric: &'static str,
    pub pairs: usize,
    /// Geometric mean of `b` / `a`.
    pub ratio: f64,
    pub least: f64,
    pub most: f64,
}

/// Side b compared with side a.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultComparison {
    pub a: Side,
    pub b: Side,
    pub overall: Vec<Overall>,
    /// Watts without any load, where both sides measured them.
    pub idle_watts: Option<Both>,
    pub pairs: Vec<Pair>,
    /// Combinations of workload and level that only one side has.
    pub only_a: usize,
    pub only_b: usize,
}

/// The mean of the values; `None`: there are none.
/// Repetitions are together. Positive numbers are ordered as their bits are.
pub(super) fn by_level<'a>(records: &[&'a Record]) -> Vec<(f64, Vec<&'a Record>)> {
    let mut levels: BTreeMap<u64, Vec<&Record>> = BTreeMap::new();
    for record in records {
        levels.entry(record.load_percent.to_bits()).or_default().push(record);
    }
    levels.into_iter().map(|(level, records)| (f64::from_bits(level), records)).collect()
}

pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Compares `b` with `a`.
pub fn compare(a: Side, b: Side) -> Result<ResultComparison, CompareError> {
    let (of_a, of_b) = (a.cells(), b.cells());
    let keys_a: BTreeSet<_> = of_a.keys().collect();
    let keys_b: BTreeSet<_> = of_b.keys().collect();
    let common = keys_a.intersection(&keys_b);
    let pairs: Vec<Pair> = common
        .map(|key| Pair {
            workload: key.0.clone(),
            load_percent: f64::from_bits(key.1),
            metrics: METRICS.iter().filter_map(|metric| both(*metric, &of_a[*key], &of_b[*key])).collect(),
        })
        .collect();
    if pairs.is_empty() {
        return Err(CompareError::Apart);
    }
    let (only_a, only_b) = (keys_a.difference(&keys_b).count(), keys_b.difference(&keys_a).count());
    let overall = METRICS.iter().filter_map(|(name, _)| overall(name, &pairs)).collect();
    let idle_watts = Both::of(&watts(a.records.iter()), &watts(b.records.iter()));
    Ok(ResultComparison { overall, idle_watts, pairs, only_a, only_b, a, b })
}

fn both((name, get): Metric, a: &[&Record], b: &[&Record]) -> Option<(&'static str, Both)> {
    let of = |records: &[&Record]| records.iter().filter_map(|r| get(r)).collect::<Vec<f64>>();
    Some((name, Both::of(&of(a), &of(b))?))
}

/// A number of a compared figure.
type Part = fn(&Both) -> f64;

/// Both sides of one workload against its load, a chart for each metric that both have: means of the repetitions, with
/// the lowest and the highest of them.
pub fn comparison_charts(found: &ResultComparison, workload: &str) -> Vec<Chart> {
    let pairs: Vec<&Pair> = found.pairs.iter().filter(|pair| pair.workload == workload).collect();
    let names = [&found.a, &found.b].map(|side| format!("{}/{}", side.campaign, side.target));
    let metric = |(name, _): &Metric| {
        let points = |value: Part| {
            let at = |pair: &&Pair| Some((pair.load_percent, value(pair.metrics.get(name)?)));
            pairs.iter().filter_map(at).collect::<Vec<_>>()
        };
        let y = Axis::new(name.replace('_', " ")).from(0.0);
        let mut chart = Chart::new(format!("{workload}: {}", y.label), Axis::new("load, % of the peak"), y);
        let sides: [[Part; 3]; 2] = [
            [|both| both.a, |both| both.a_range[0], |both| both.a_range[1]],
            [|both| both.b, |both| both.b_range[0], |both| both.b_range[1]],
        ];
        for (name, values) in names.iter().zip(sides) {
            for (part, value) in ["", LEAST, MOST].iter().zip(values) {
                chart = chart.with(Series::new(format!("{name}{part}"), Mark::Line, points(value)));
            }
        }
        (!chart.is_empty()).then_some(chart)
    };
    METRICS.iter().filter_map(metric).collect()
}

fn overall(metric: &'static str, pairs: &[Pair]) -> Option<Overall> {
    let ratios: Vec<f64> = pairs.iter().filter_map(|pair| Some(pair.metrics.get(metric)?.ratio)).collect();
    Some(Overall {
        metric,
        pairs: ratios.len(),
        ratio: mean(ratios.iter().map(|ratio| ratio.ln()))?.exp(),
        least: ratios.iter().copied().min_by(f64::total_cmp)?,
        most: ratios.iter().copied().max_by(f64::total_cmp)?,
    })
}

impl fmt::Display for ResultComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "A  {}", self.a.name())?;
        writeln!(f, "B  {}", self.b.name())?;
        writeln!(f, "{} combinations of workload and level on both sides", self.pairs.len())?;
        if self.only_a + self.only_b > 0 {
            writeln!(f, "not compared: {} that only A has, {} that only B has", self.only_a, self.only_b)?;
        }
        match self.idle_watts {
            Some(Both { a, b, ratio, .. }) => writeln!(f, "idle: A {a:.1} W, B {b:.1} W, B / A {ratio:.3}")?,
            None => writeln!(f, "idle watts: not on both sides (idle_seconds in the matrix)")?,
        }
        writeln!(f, "\n{:<28} {:>9} {:>9} {:>9} {:>7}", "B / A", "mean", "least", "most", "pairs")?;
        for Overall { metric, pairs, ratio, least, most } in &self.overall {
            writeln!(f, "{metric:<28} {ratio:>9.3} {least:>9.3} {most:>9.3} {pairs:>7}")?;
        }
        // The largest losses and gains in work per joule; without watts, in work.
        let metric = self.overall.iter().find(|o| o.metric == "iops_per_watt").map_or("iops", |o| o.metric);
        let mut order: Vec<_> =
            self.pairs.iter().filter_map(|pair| Some((pair.metrics.get(metric)?, pair))).collect();
        order.sort_by(|a, b| a.0.ratio.total_cmp(&b.0.ratio));
        let shown = if order.len() <= 10 { order } else { [&order[..5], &order[order.len() - 5..]].concat() };
        writeln!(f, "\n{:<28} {:>7} {:>12} {:>12} {:>9}", metric, "load", "A", "B", "B / A")?;
        for (both, pair) in shown {
            let Both { a, b, ratio, .. } = both;
            writeln!(f, "{:<28} {:>5} % {a:>12.2} {b:>12.2} {ratio:>9.3}", pair.workload, pair.load_percent)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn record(target: &str, workload: &str, level: f64, repetition: u32, iops: f64) -> Record {
        Record {
            campaign: "c".into(),
            target: target.into(),
            workload: workload.into(),
            load_percent: level,
            repetition,
            iops: Some(iops),
            ..Record::default()
        }
    }

    fn store(path: &Path, records: &[Record]) {
        let mut store = Store::open(path).unwrap();
        records.iter().for_each(|record| store.add(record, &[]).unwrap());
    }

    #[test]
    fn ratios_are_of_means_over_repetitions_and_average_geometrically() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        store(
            &path,
            &[
                record("disk", "x", 10.0, 1, 90.0),
                record("disk", "x", 10.0, 2, 110.0),
                record("disk", "y", 10.0, 1, 100.0),
                record("disk", "y", 20.0, 1, 100.0),
                Record { error: Some("no".into()), iops: None, ..record("disk", "z", 10.0, 1, 0.0) },
                record("ssd", "x", 10.0, 1, 400.0),
                record("ssd", "y", 10.0, 1, 25.0),
                record("ssd", "z", 10.0, 1, 5.0),
            ],
        );
        let name = path.display().to_string();
        let side = |target: &str| Side::open(&format!("{name}#{target}")).unwrap();
        let found = compare(side("disk"), side("ssd")).unwrap();
        assert_eq!((found.pairs.len(), found.only_a, found.only_b), (2, 1, 1));
        assert_eq!(found.pairs[0].metrics["iops"], Both::of(&[90.0, 110.0], &[400.0]).unwrap());
        assert_eq!(found.overall.len(), 1, "what was not measured is not compared");
        let iops = &found.overall[0];
        assert!((iops.ratio - 1.0).abs() < 1e-12, "four times and a quarter cancel: {iops:?}");
        assert_eq!((iops.least, iops.most, iops.pairs), (0.25, 4.0, 2));
        let text = found.to_string();
        assert!(text.contains("1 that only A has, 1 that only B has") && text.contains("0.250"), "{text}");
        let side = |name: &str| Side { records: vec![record("t", name, 1.0, 1, 1.0)], ..side("disk") };
        assert!(matches!(compare(side("a"), side("b")), Err(CompareError::Apart)));
    }

    #[test]
    fn a_chart_has_both_sides_with_the_spread_of_their_repetitions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        let mut records = Vec::new();
        for (target, factor) in [("disk", 1.0), ("ssd", 3.0)] {
            for (repetition, iops) in [(1, 90.0), (2, 100.0), (3, 110.0)] {
                records.push(record(target, "x", 10.0, repetition, factor * iops));
                records.push(record(target, "x", 100.0, repetition, factor * 10.0 * iops));
            }
        }
        store(&path, &records);
        let side = |target: &str| Side::open(&format!("{}#{target}", path.display())).unwrap();
        let found = compare(side("disk"), side("ssd")).unwrap();
        let charts = comparison_charts(&found, "x");
        let iops = charts.iter().find(|chart| chart.y.label == "iops").unwrap();
        let of = |name: &str| iops.series.iter().find(|series| series.name == name).unwrap().points.clone();
        assert_eq!(of("c/disk"), [(10.0, 100.0), (100.0, 1000.0)]);
        assert_eq!(of("c/disk, least"), [(10.0, 90.0), (100.0, 900.0)]);
        assert_eq!(of("c/ssd, most"), [(10.0, 330.0), (100.0, 3300.0)]);
        assert!(comparison_charts(&found, "y").is_empty());
    }

    #[test]
    fn idle_watts_stand_beside_the_pairs_and_not_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        let idle = |target: &str, workload: &str, repetition, watts| Record {
            watts: Some(watts),
            iops: None,
            ..record(target, workload, 0.0, repetition, 0.0)
        };
        store(
            &path,
            &[
                record("disk", "x", 10.0, 1, 90.0),
                idle("disk", "idle-0-disks", 1, 60.0),
                idle("disk", "idle-6-disks", 1, 190.0),
                idle("disk", "idle-6-disks", 2, 200.0),
                record("ssd", "x", 10.0, 1, 90.0),
                idle("ssd", "idle", 1, 97.5),
            ],
        );
        let side = |target: &str| Side::open(&format!("{}#{target}", path.display())).unwrap();
        let found = compare(side("disk"), side("ssd")).unwrap();
        assert_eq!((found.pairs.len(), found.only_a, found.only_b), (1, 0, 0));
        assert_eq!(found.idle_watts, Both::of(&[190.0, 200.0], &[97.5]));
        assert!(found.to_string().contains("idle: A 195.0 W, B 97.5 W"), "{found}");
    }

    #[test]
    fn a_side_must_be_one_target() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        store(&path, &[record("disk", "x", 1.0, 1, 1.0), record("ssd", "x", 1.0, 1, 1.0)]);
        let name = path.display().to_string();
        let several = Side::open(&name).unwrap_err().to_string();
        assert!(several.contains("#c/disk") && several.contains("#c/ssd"), "{several}");
        assert!(matches!(Side::open(&format!("{name}#c")), Err(CompareError::Several { .. })));
        assert_eq!(Side::open(&format!("{name}#c/ssd")).unwrap().target, "ssd");
        let nothing = Side::open(&format!("{name}#tape")).unwrap_err().to_string();
        assert!(nothing.contains("\"tape\"") && nothing.contains("#c/disk"), "{nothing}");
    }
}
