//! Figures 1 and 2: a week of load by its peak, and how much of the time it is how high.

use super::findings::{Experiment, Table};
use super::testbed::{DAY_HOURS, Hourly, WEEK};
use ebb_output::{Axis, Chart, Mark, Series};

/// Utilisations of Figure 2's table.
const LEVELS: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];

/// The first whole week, by its peak.
fn normalised(series: &Hourly) -> Vec<f64> {
    let week = &series.weeks[0];
    let peak = week.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    week.iter().map(|load| load / peak).collect()
}

fn mean(loads: &[f64]) -> f64 {
    loads.iter().sum::<f64>() / loads.len() as f64
}

/// Lowest hour of the mean day, by its highest.
fn trough(week: &[f64]) -> f64 {
    let hour = |hour: usize| mean(&week.iter().copied().skip(hour).step_by(DAY_HOURS).collect::<Vec<_>>());
    let day: Vec<f64> = (0..DAY_HOURS).map(hour).collect();
    let (low, high) = day.iter().fold((f64::MAX, f64::MIN_POSITIVE), |(l, h), x| (l.min(*x), h.max(*x)));
    low / high
}

/// Share of the hours whose load is at most `level`.
fn share_below(week: &[f64], level: f64) -> f64 {
    week.iter().filter(|load| **load <= level).count() as f64 / week.len() as f64
}

/// Figure 1.
pub(super) fn weeks(all: &[Hourly]) -> Experiment {
    let mut found = Experiment::new(
        "Figure 1",
        "One week of load",
        "Each series' first whole week in hours, by the week's peak. The paper draws the bytes moved by the disks of Hotmail, \
         Messenger and six volumes at Cambridge, and gives no numbers. The trough is the lowest hour of the mean day, by its \
         highest.",
    );
    let mut chart = Chart::new(
        "Load by the week's peak",
        Axis::new("time").time(),
        Axis::new("of the peak").percent().to(1.0),
    );
    for series in all {
        let week = normalised(series);
        found.ours(format!("mean by peak: {}", series.name), "%", mean(&week));
        found.ours(format!("trough: {}", series.name), "%", trough(&week));
        let points = week.into_iter().enumerate().map(|(hour, load)| (hour as f64 * 3600.0, load));
        chart = chart.with(Series::new(&series.name, Mark::Line, points));
    }
    found.charts.push(chart);
    found
}

/// Figure 2.
pub(super) fn utilisation(all: &[Hourly]) -> Experiment {
    let mut found = Experiment::new(
        "Figure 2",
        "Time at each utilisation",
        "The cumulative distribution of the hours of Figure 1 by load: the share of the week in which the load is at most so \
         high. The paper draws it: substantial periods are spent far below the peak, so a cluster that is sized for its peak, and \
         no larger, can save power.",
    );
    let mut chart = Chart::new(
        "Time at or below a utilisation",
        Axis::new("utilisation, of the peak").percent().from(0.0).to(1.0),
        Axis::new("of the time").percent().to(1.0),
    );
    let header = ["at most"].into_iter().chain(all.iter().map(|series| series.name.as_str()));
    let mut table = Table::new("Share of the time", header, Vec::new());
    let weeks: Vec<Vec<f64>> = all.iter().map(normalised).collect();
    for level in LEVELS {
        let mut cells = vec![format!("{:.0} %", level * 100.0)];
        cells.extend(weeks.iter().map(|week| format!("{:.1} %", share_below(week, level) * 100.0)));
        table.rows.push(cells);
    }
    for (series, mut week) in all.iter().zip(weeks) {
        found.ours(format!("time below half of the peak: {}", series.name), "%", share_below(&week, 0.5));
        week.sort_by(f64::total_cmp);
        let points = week.into_iter().enumerate().map(|(n, load)| (load, (n + 1) as f64 / WEEK as f64));
        chart = chart.with(Series::new(&series.name, Mark::Step, std::iter::once((0.0, 0.0)).chain(points)));
    }
    found.charts.push(chart);
    found.tables.push(table);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::HOUR;
    use ebb_sim::load;

    /// Twelve hours of 25, twelve of 100, every day.
    fn two_levels() -> Hourly {
        let week: Vec<f64> = (0..WEEK).map(|hour| if hour % 24 < 12 { 25.0 } else { 100.0 }).collect();
        let values = week.iter().copied().map(Some).collect();
        Hourly {
            name: "two levels".into(),
            series: load::Series { interval: HOUR, values },
            weeks: vec![week],
        }
    }

    #[test]
    fn the_distribution_counts_hours_by_their_load() {
        let week = normalised(&two_levels());
        assert_eq!(
            (share_below(&week, 0.2), share_below(&week, 0.25), share_below(&week, 1.0)),
            (0.0, 0.5, 1.0)
        );
        assert_eq!((mean(&week), trough(&week)), (0.625, 0.25));
        let drawn = &utilisation(&[two_levels()]).charts[0].series[0].points;
        assert_eq!(drawn.last(), Some(&(1.0, 1.0)));
        assert_eq!(drawn[WEEK / 2], (0.25, 0.5), "half of the week is over when the load rises");
    }
}
