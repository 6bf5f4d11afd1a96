//! The result of a procedure, from its rows: each phase's figure, whether its throughput was stable, how far its watts
//! can be trusted, and where all of it departs from the standard.

use super::matrix::{Matrix, Target};
use super::procedure::{Activity, Figure, Phase, Procedure};
use super::proportion::{Proportion, proportions};
use super::record::{Record, SeriesRow};
use super::store::{Store, StoreError};
use ebb_output::{Deviations, table};
use serde::Serialize;
use std::fmt;

/// The most, in percent of the mean, by which the line through a phase's throughput may rise or fall.
const DRIFT_MOST: f64 = 5.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    pub procedure: Procedure,
    pub title: &'static str,
    pub scale: f64,
    /// Always false: see `departures`.
    pub conformant: bool,
    pub departures: Vec<String>,
    /// What is from memory instead of from the standard's text.
    pub unread: Vec<&'static str>,
    pub targets: Vec<ScoredTarget>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoredTarget {
    pub target: String,
    /// Empty: the procedure has levels.
    pub phases: Vec<ScoredPhase>,
    /// By workload; empty: the procedure has phases, or there are no watts.
    pub proportions: Vec<Proportion>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoredPhase {
    pub phase: &'static str,
    pub seconds: Option<f64>,
    pub iops: Option<f64>,
    pub mib_per_second: Option<f64>,
    pub response_mean_millis: Option<f64>,
    pub response_max_millis: Option<f64>,
    pub watts: Option<f64>,
    pub watts_source: Option<String>,
    /// Work by watts; absent where the phase has none, or no watts.
    pub figure: Option<f64>,
    pub unit: &'static str,
    /// Rise of the line through the throughput over the phase, in percent of its mean; absent: fewer than three
    /// intervals.
    pub drift_percent: Option<f64>,
    pub stable: Option<bool>,
    pub evidence: Option<String>,
    /// Why there is no result.
    pub missing: Option<String>,
}

/// `None`: the matrix follows no procedure.
pub fn score(matrix: &Matrix, store: &Store) -> Result<Option<Score>, StoreError> {
    let Some(followed) = matrix.settings.procedure else { return Ok(None) };
    let records = store.records(Some(&matrix.name), None)?;
    let series = store.series(Some(&matrix.name), None)?;
    let phases = followed.phases();
    let scored = |target: &Target| ScoredTarget {
        target: target.name.clone(),
        phases: phases.iter().map(|phase| scored_phase(target, phase, &records, &series)).collect(),
        proportions: match phases.is_empty() {
            true => proportions(&records).into_iter().filter(|found| found.target == target.name).collect(),
            false => Vec::new(),
        },
    };
    Ok(Some(Score {
        procedure: followed.procedure,
        title: followed.title(),
        scale: followed.scale,
        conformant: false,
        departures: followed.departures(),
        unread: followed.unread(),
        targets: matrix.targets.iter().map(scored).collect(),
    }))
}

fn scored_phase(target: &Target, phase: &Phase, records: &[Record], series: &[SeriesRow]) -> ScoredPhase {
    let none = Record { error: Some("not run yet".to_owned()), ..Record::default() };
    let of_phase = |record: &&Record| record.target == target.name && record.workload == phase.name;
    let record = records.iter().find(of_phase).unwrap_or(&none);
    let mine = |row: &&SeriesRow| row.target == target.name && row.workload == phase.name;
    let points: Vec<&SeriesRow> = series.iter().filter(mine).collect();
    let drift = drift_percent(&points).filter(|_| phase.figure != Figure::None);
    let mib_per_second = record.mb_per_second.map(|rate| rate * 1e6 / (1 << 20) as f64);
    let work = match phase.figure {
        Figure::None => None,
        Figure::IopsPerWatt => record.iops,
        Figure::MibPerSecondPerWatt => mib_per_second,
        Figure::GigabytesPerWatt => Some(target.size_bytes as f64 / 1e9),
    };
    let idle = phase.activity == Activity::Idle;
    ScoredPhase {
        phase: phase.name,
        seconds: record.length_seconds,
        iops: record.iops,
        mib_per_second,
        response_mean_millis: record.latency_mean_millis,
        response_max_millis: record.latency_max_millis,
        watts: record.watts,
        watts_source: record.watts_source.clone(),
        figure: work.zip(record.watts).map(|(work, watts)| work / watts).filter(|_| record.error.is_none()),
        unit: phase.figure.unit(),
        drift_percent: drift,
        stable: drift.filter(|_| !idle).map(|drift| drift.abs() <= DRIFT_MOST),
        evidence: record.evidence.clone(),
        missing: record.error.clone(),
    }
}

/// Of the least-squares line through the throughput in whole intervals, over all of them.
fn drift_percent(rows: &[&SeriesRow]) -> Option<f64> {
    let longest = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
    let whole = rows.iter().filter(|row| row.seconds == longest);
    let points: Vec<(f64, f64)> = whole.map(|row| (row.from_seconds, row.iops)).collect();
    if points.len() < 3 {
        return None;
    }
    let Deviations { mean: (_, iops), xx, xy, .. } = Deviations::of(&points);
    let span = points.len() as f64 * longest;
    (iops > 0.0).then(|| 100.0 * xy / xx * span / iops)
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rehearsal = if self.scale < 1.0 { "a rehearsal, " } else { "" };
        writeln!(f, "{}: {rehearsal}NOT CONFORMANT", self.title)?;
        for target in &self.targets {
            writeln!(f, "\n{}", target.target)?;
            write!(f, "{target}")?;
        }
        writeln!(f, "\ndeparts from the standard:")?;
        self.departures.iter().try_for_each(|what| writeln!(f, "  - {what}"))?;
        writeln!(f, "from memory, because the standard's text could not be read:")?;
        self.unread.iter().try_for_each(|what| writeln!(f, "  - {what}"))
    }
}

impl fmt::Display for ScoredTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let phase = |phase: &ScoredPhase| {
            let figure = phase.figure.map(|figure| format!("{figure:.3} {}", phase.unit));
            let stable = phase.drift_percent.map(|drift| {
                let word = if phase.stable == Some(true) { "stable" } else { "NOT STABLE" };
                format!("{word} ({drift:+.1} %)")
            });
            let words = phase.missing.as_ref().or(phase.evidence.as_ref());
            vec![
                phase.phase.to_owned(),
                number(phase.iops),
                number(phase.mib_per_second),
                number(phase.response_mean_millis),
                number(phase.watts),
                figure.unwrap_or_else(|| "-".to_owned()),
                stable.unwrap_or_else(|| "-".to_owned()),
                words.cloned().unwrap_or_else(|| "no watts".to_owned()),
            ]
        };
        let mut out = String::new();
        if !self.phases.is_empty() {
            let header =
                ["phase", "IOPS", "MiB/s", "mean ms", "W", "figure", "throughput", "evidence of the watts"];
            table(&mut out, &header, &self.phases.iter().map(phase).collect::<Vec<_>>());
        }
        self.proportions.iter().for_each(|found| out += &format!("{found}\n"));
        if self.phases.is_empty() && self.proportions.is_empty() {
            out += "no proportionality: it takes watts at rest, at 100 % and at another level\n";
        }
        f.write_str(&out)
    }
}

impl fmt::Display for Proportion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proportion { workload, levels, idle_watts, full_watts, index, dynamic_range, .. } = self;
        write!(
            f,
            "{workload}: proportionality {index:.3} over {levels} levels and idle, {idle_watts:.1} to {full_watts:.1} W ({:.0} % of \
             it depends on load), {:.3} IOPS/W overall{}",
            100.0 * dynamic_range,
            self.overall_iops_per_watt,
            match self.watts_source.as_deref() {
                Some("measured") | None => String::new(),
                Some(source) => format!(", {source} watts"),
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throughput_that_rises_is_not_stable_and_one_that_swings_is() {
        let rows = |iops: &[f64]| -> Vec<SeriesRow> {
            let row = |(at, iops): (usize, &f64)| SeriesRow {
                campaign: "c".into(),
                target: "t".into(),
                workload: "w".into(),
                load_percent: 100.0,
                repetition: 1,
                from_seconds: 2.0 * at as f64,
                seconds: if at == 5 { 0.1 } else { 2.0 },
                iops: *iops,
                mb_per_second: 1.0,
                failed_requests: 0,
            };
            iops.iter().enumerate().map(row).collect()
        };
        let drift = |iops: &[f64]| drift_percent(&rows(iops).iter().collect::<Vec<_>>());
        // By 2 per interval over five intervals: 10 of 104.
        let rising = drift(&[100.0, 102.0, 104.0, 106.0, 108.0, 1.0]).unwrap();
        assert!((rising - 100.0 * 10.0 / 104.0).abs() < 1e-9, "{rising}");
        assert!(drift(&[100.0, 90.0, 100.0, 90.0, 100.0]).unwrap().abs() < 1e-9);
        assert_eq!(drift(&[100.0, 90.0]), None);
        assert_eq!(drift(&[0.0, 0.0, 0.0]), None);
    }
}
