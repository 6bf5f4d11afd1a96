//! Whether a workload takes the same course at every load [TRACER Figure 12]: how the throughput of each level,
//! interval by interval, correlates with that of the replay at 100 %.

use super::record::SeriesRow;
use ebb_output::Deviations;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Fewest intervals: two correlate always.
const FEWEST: usize = 3;

/// One level beside 100 %, in the first repetition of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    pub campaign: String,
    pub target: String,
    pub workload: String,
    pub load_percent: f64,
    /// Whole ones that both have.
    pub intervals: usize,
    /// Pearson's, -1 to 1; absent: one of both was the same in every interval.
    pub iops_correlation: Option<f64>,
    pub bytes_correlation: Option<f64>,
}

/// Of every level of a workload whose runs are longer than an interval.
pub fn shapes(series: &[SeriesRow]) -> Vec<Shape> {
    let mut runs: BTreeMap<(&str, &str, &str, u64), Vec<&SeriesRow>> = BTreeMap::new();
    for row in series.iter().filter(|row| row.repetition == 1) {
        let SeriesRow { campaign, target, workload, load_percent, .. } = row;
        runs.entry((campaign, target, workload, load_percent.to_bits())).or_default().push(row);
    }
    let full = 100f64.to_bits();
    let levels = runs.iter().filter(|((.., level), _)| *level != full);
    let found = levels.filter_map(|(&(campaign, target, workload, level), run)| {
        let reference = runs.get(&(campaign, target, workload, full))?;
        let pairs = pairs(run, reference);
        let of = |value: fn(&SeriesRow) -> f64| {
            let points: Vec<_> = pairs.iter().map(|(row, full)| (value(row), value(full))).collect();
            Deviations::of(&points).correlation()
        };
        (pairs.len() >= FEWEST).then(|| Shape {
            campaign: campaign.to_owned(),
            target: target.to_owned(),
            workload: workload.to_owned(),
            load_percent: f64::from_bits(level),
            intervals: pairs.len(),
            iops_correlation: of(|row| row.iops),
            bytes_correlation: of(|row| row.mb_per_second),
        })
    });
    found.collect()
}

/// The same intervals of two runs. The last one of a run may be a moment long, and is left out then.
fn pairs<'a>(run: &[&'a SeriesRow], reference: &[&'a SeriesRow]) -> Vec<(&'a SeriesRow, &'a SeriesRow)> {
    let whole = |rows: &[&'a SeriesRow]| {
        let longest = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
        let whole = rows.iter().copied().filter(move |row| row.seconds == longest);
        whole.map(|row| (row.from_seconds.to_bits(), row)).collect::<BTreeMap<u64, &'a SeriesRow>>()
    };
    let reference = whole(reference);
    let both = |(from, row): (u64, &'a SeriesRow)| Some((row, *reference.get(&from)?));
    whole(run).into_iter().filter_map(both).collect()
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { campaign, target, workload, load_percent, intervals, .. } = self;
        let [iops, bytes] = [self.iops_correlation, self.bytes_correlation]
            .map(|found| found.map_or("–".to_owned(), |found| format!("{found:.3}")));
        write!(
            f,
            "{campaign}/{target}: {workload} at {load_percent} % correlates with 100 % over {intervals} intervals: IOPS {iops}, \
             bytes {bytes}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Minutes of a run, and a moment after the last one.
    fn run(load_percent: f64, repetition: u32, iops: &[f64], mb_per_second: f64) -> Vec<SeriesRow> {
        let last = iops.len();
        let row = |(nth, iops): (usize, f64)| SeriesRow {
            campaign: "c".into(),
            target: "t".into(),
            workload: "web".into(),
            load_percent,
            repetition,
            from_seconds: 60.0 * nth as f64,
            seconds: if nth < last { 60.0 } else { 0.01 },
            iops,
            mb_per_second,
            failed_requests: 0,
        };
        iops.iter().copied().chain([9e6]).enumerate().map(row).collect()
    }

    #[test]
    fn a_level_with_the_same_course_correlates_by_1_and_another_one_does_not() {
        let full = run(100.0, 1, &[10.0, 30.0, 20.0, 40.0], 1.0);
        let levels = [
            run(20.0, 1, &[2.0, 6.0, 4.0, 8.0], 0.2),
            run(40.0, 1, &[16.0, 8.0, 12.0, 4.0], 0.4),
            // By hand: deviations -15 5 -5 15 and -1 -3 3 1 have the products 15 -15 -15 15.
            run(60.0, 1, &[5.0, 3.0, 9.0, 7.0], 0.6),
        ];
        let all: Vec<SeriesRow> =
            [&full[..], &levels.concat(), &run(20.0, 2, &[8.0, 1.0, 1.0, 1.0], 0.2)].concat();
        let found = shapes(&all);
        let iops: Vec<f64> = found.iter().map(|shape| shape.iops_correlation.unwrap()).collect();
        for (found, right) in iops.iter().zip([1.0, -1.0, 0.0]) {
            assert!((found - right).abs() < 1e-9, "{iops:?}");
        }
        assert!(found.iter().all(|shape| shape.intervals == 4 && shape.bytes_correlation.is_none()));
        let said = "c/t: web at 20 % correlates with 100 % over 4 intervals: IOPS 1.000, bytes –";
        assert_eq!(found[0].to_string(), said);
    }

    #[test]
    fn without_a_run_at_100_percent_or_a_third_interval_there_is_none() {
        assert_eq!(shapes(&run(20.0, 1, &[1.0, 2.0, 3.0], 1.0)), []);
        let short = [run(20.0, 1, &[1.0, 2.0], 1.0), run(100.0, 1, &[5.0, 9.0], 1.0)].concat();
        assert_eq!(shapes(&short), []);
        assert_eq!(shapes(&[]), []);
    }
}
