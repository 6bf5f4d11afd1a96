//! Figure 8: how the error of a load forecast falls with days of training, and its effect on the gears.

use super::findings::{Experiment, PaperError, Table};
use super::testbed::{DAY_HOURS, Hourly, REPLICAS, SERVERS, WEEK};
use ebb_gear::{History, Load, Policy, Seasonal, forecast};
use ebb_output::{Axis, Chart, Mark, Series};
use ebb_types::Schedule;

const HOURS_PER_DAY: u32 = DAY_HOURS as u32;
const DAYS: usize = WEEK / DAY_HOURS;

/// The forecasting method.
#[derive(Clone, Copy, PartialEq)]
enum Method {
    /// The mean of the same hour on the days of training. [Sierra §3.4]
    HourOfDay,
    /// The median of Ebb's seasonal forecast.
    Seasonal,
}

/// Forecasts of the hours after `train` days, from those days alone.
fn forecasts(week: &[f64], train: usize, method: Method) -> Vec<f64> {
    let mut history = History::default();
    for (hour, load) in week[..train * DAY_HOURS].iter().enumerate() {
        history.record(hour as u64, Load(*load), HOURS_PER_DAY);
    }
    let seasonal = Seasonal::fit(&history, train as u64, HOURS_PER_DAY);
    let of = |hour: usize| {
        let hour = hour as u64;
        match (method, &seasonal) {
            (Method::Seasonal, Some(model)) => model.ahead(&history, hour).median(0).0,
            _ => forecast(&history, hour, HOURS_PER_DAY).map_or(0.0, |found| found.load.0),
        }
    };
    (train * DAY_HOURS..WEEK).map(of).collect()
}

/// Root mean square error over the test days, divided by their mean load.
fn error(week: &[f64], train: usize, method: Method) -> f64 {
    let test = &week[train * DAY_HOURS..];
    let square: f64 =
        forecasts(week, train, method).iter().zip(test).map(|(f, load)| (f - load).powi(2)).sum();
    let mean = test.iter().sum::<f64>() / test.len() as f64;
    (square / test.len() as f64).sqrt() / mean
}

/// Share of the last day's hours in which the forecast chose the gear that the load needed.
fn right_gears(week: &[f64], method: Method) -> f64 {
    let train = DAYS - 1;
    let peak = week.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let alike = vec![SERVERS / u32::from(REPLICAS); REPLICAS.into()];
    let policy = Policy::of(&Schedule::default(), alike);
    let gear = |load: f64| policy.gear_for(Load(load / peak * f64::from(SERVERS)));
    let chosen = forecasts(week, train, method);
    let right = chosen.iter().zip(&week[train * DAY_HOURS..]).filter(|(f, load)| gear(**f) == gear(**load));
    right.count() as f64 / chosen.len() as f64
}

/// The mean over a series' weeks.
fn mean(series: &Hourly, of: impl Fn(&[f64]) -> f64) -> f64 {
    series.weeks.iter().map(|week| of(week)).sum::<f64>() / series.weeks.len() as f64
}

pub(super) fn errors(all: &[Hourly]) -> Result<Experiment, PaperError> {
    let mut found = Experiment::new(
        "Figure 8",
        "Error of the load forecast by days of training",
        format!(
            "The forecast learns from the first n days of a week and is tested on the rest; the error is the root of the mean \
             square, divided by the mean load of the test days, and the mean over all whole weeks of a series. Besides the \
             paper's hour-of-day mean: Ebb's seasonal forecast (its median, without the correction by the hours just gone that \
             it has in service). The paper gives numbers only for the gears: with six days of training all of Hotmail's were \
             right, 90 % of Messenger's, 75 % of Cambridge's. Gears are those of {SERVERS} servers that the week's peak needs."
        ),
    );
    let mut chart = Chart::new(
        "Forecast error",
        Axis::new("days of training"),
        Axis::new("root mean square error by mean load").percent(),
    );
    let header = ["series", "forecast", "weeks", "1 day", "2 days", "3 days", "4 days", "5 days", "6 days"];
    let mut table = Table::new("Normalised error by days of training", header, Vec::new());
    for (name, paper) in [("Hotmail", 1.0), ("Messenger", 0.9), ("Cambridge", 0.75)] {
        found.row(format!("right gears, hour-of-day mean: {name}"), "%", Some(paper), None);
    }
    for series in all {
        for (method, method_name) in [(Method::HourOfDay, "hour of day"), (Method::Seasonal, "seasonal")] {
            let errors: Vec<f64> =
                (1..DAYS).map(|train| mean(series, |week| error(week, train, method))).collect();
            let name = format!("{}, {method_name}", series.name);
            let points = errors.iter().enumerate().map(|(at, e)| (at as f64 + 1.0, *e));
            chart = chart.with(Series::new(&name, Mark::Line, points));
            let mut cells = vec![series.name.clone(), method_name.into(), series.weeks.len().to_string()];
            cells.extend(errors.iter().map(|e| format!("{:.1} %", e * 100.0)));
            table.rows.push(cells);
            let right = mean(series, |week| right_gears(week, method));
            found.ours(format!("right gears, {method_name}: {}", series.name), "%", right);
        }
    }
    found.charts.push(chart);
    found.tables.push(table);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn week(load: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        (0..WEEK).map(|hour| load(hour / DAY_HOURS, hour % DAY_HOURS)).collect()
    }

    #[test]
    fn a_day_like_the_others_is_forecast() {
        let same = week(|_, hour| 10.0 + hour as f64);
        assert!(error(&same, 3, Method::HourOfDay) < 1e-12);
        assert_eq!(right_gears(&same, Method::HourOfDay), 1.0);
        // The overall mean, which ignores the hour, is wrong by a third.
        assert!(error(&same, 3, Method::Seasonal) < 0.15, "{}", error(&same, 3, Method::Seasonal));
    }

    #[test]
    fn the_error_is_the_root_mean_square_by_the_mean() {
        // Trained on 100, tested on 200 for one day of six: the root of 100²/6 divided by a mean of 700/6.
        let step = week(|day, _| if day == 3 { 200.0 } else { 100.0 });
        let right = (100.0f64.powi(2) / 6.0).sqrt() / (700.0 / 6.0);
        assert!((error(&step, 1, Method::HourOfDay) - right).abs() < 1e-9);
    }
}
