//! Axes: positions and labels of ticks. A tick is a number that a person would choose (1, 2, 5, a quarter of a day) and
//! its label is as short as possible without being wrong (`20k`, `6 h`, `512 KiB`).

use std::fmt::Write;

/// The meaning of an axis's numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Ticks {
    /// Plain numbers, with k, M, G from a thousand on.
    #[default]
    Number,
    /// Shares: 1.0 is 100 %.
    Percent,
    /// Seconds, shown as µs, ms, s, min, h or days.
    Time,
    /// Seconds since 1970, shown as days of the month and times of the day (UTC).
    Date,
    /// Bytes, shown as KiB, MiB, GiB.
    Bytes,
    /// Names of the values 0, 1, 2 …
    Names(Vec<String>),
}

/// One axis of a chart. Put the unit into the label if the ticks do not show it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    pub label: String,
    pub ticks: Ticks,
    /// Logarithmic: values that are not positive are left out.
    pub log: bool,
    /// Lowest value shown; by default the data's lowest, and on a linear y axis at most zero.
    pub from: Option<f64>,
    /// Highest value shown; by default the data's.
    pub to: Option<f64>,
}

impl Axis {
    pub fn new(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), ..Axis::default() }
    }

    pub fn percent(self) -> Axis {
        Axis { ticks: Ticks::Percent, ..self }
    }

    /// Values are seconds.
    pub fn time(self) -> Axis {
        Axis { ticks: Ticks::Time, ..self }
    }

    /// Values are seconds since 1970.
    pub fn date(self) -> Axis {
        Axis { ticks: Ticks::Date, ..self }
    }

    pub fn bytes(self) -> Axis {
        Axis { ticks: Ticks::Bytes, ..self }
    }

    /// Values are indexes into these names, from 0 on.
    pub fn names(self, names: impl IntoIterator<Item = impl Into<String>>) -> Axis {
        Axis { ticks: Ticks::Names(names.into_iter().map(Into::into).collect()), ..self }
    }

    pub fn log(self) -> Axis {
        Axis { log: true, ..self }
    }

    pub fn from(self, from: f64) -> Axis {
        Axis { from: Some(from), ..self }
    }

    pub fn to(self, to: f64) -> Axis {
        Axis { to: Some(to), ..self }
    }
}

/// An axis with a known range.
pub(super) struct Scale<'a> {
    axis: &'a Axis,
    low: f64,
    high: f64,
}

/// Most ticks on a logarithmic axis, so that labels do not touch.
const LOG_TICKS: usize = 10;

impl<'a> Scale<'a> {
    /// Over the data's finite values. `to_tick` widens the range to whole ticks (about `wanted` of them).
    pub(super) fn new(axis: &'a Axis, data: Option<(f64, f64)>, to_tick: Option<f64>) -> Scale<'a> {
        let (mut low, mut high) = data.unwrap_or(if axis.log { (1.0, 10.0) } else { (0.0, 1.0) });
        low = axis.from.unwrap_or(low);
        high = axis.to.unwrap_or(high);
        if axis.log {
            low = if low > 0.0 { low } else { high / 1e3 };
            if low <= 0.0 || high <= low {
                (low, high) = if high > 0.0 { (high / 2.0, high * 2.0) } else { (1.0, 10.0) };
            }
            if to_tick.is_some() {
                // The lowest value must be distinguishable from the axis itself, above all that of a bar.
                low = axis.from.unwrap_or(nice(low * 0.2));
                high = axis.to.unwrap_or(nice(high));
            }
            return Scale { axis, low, high };
        }
        if high <= low {
            high = low + if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
        }
        if let Some(wanted) = to_tick {
            let step = linear_step(axis, high - low, wanted);
            low = axis.from.unwrap_or((low / step + 1e-9).floor() * step);
            high = axis.to.unwrap_or((high / step - 1e-9).ceil() * step);
        }
        Scale { axis, low, high }
    }

    /// The position of a value between 0 and 1 (beyond them, if it is outside the range). `None`: it has none.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.axis.log && value <= 0.0) {
            return None;
        }
        Some(if self.axis.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        })
    }

    /// The values to mark, about `wanted` of them, with their labels.
    pub(super) fn ticks(&self, wanted: f64) -> Vec<(f64, String)> {
        if let Ticks::Names(names) = &self.axis.ticks {
            return names.iter().enumerate().map(|(at, name)| (at as f64, name.clone())).collect();
        }
        if self.axis.log {
            return self.log_ticks();
        }
        let step = linear_step(self.axis, self.high - self.low, wanted);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|at| (at as f64 * step, self.label(at as f64 * step, step))).collect()
    }

    /// Powers of ten; every second (third …) if there are many, with 2 and 5 in between if there are few.
    fn log_ticks(&self) -> Vec<(f64, String)> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / LOG_TICKS as f64).ceil().max(1.0) as i32;
        let mut ticks = Vec::new();
        for power in self.low.log10().floor() as i32..=self.high.log10().ceil() as i32 {
            for step in steps.iter().filter(|_| power % every == 0) {
                let value = step * 10f64.powi(power);
                if value >= self.low * 0.999_999 && value <= self.high * 1.000_001 {
                    ticks.push((value, self.label(value, value)));
                }
            }
        }
        ticks
    }

    /// `step`: the difference to the next tick; it determines how many digits matter.
    fn label(&self, value: f64, step: f64) -> String {
        match &self.axis.ticks {
            Ticks::Number if value.abs() < step * 1e-6 => "0".into(),
            Ticks::Percent => format!("{} %", decimal(value * 100.0, step * 100.0)),
            Ticks::Time => unit_of(value, step, &TIMES),
            Ticks::Date => date(value, step),
            Ticks::Bytes => unit_of(value, step, &BYTES),
            Ticks::Number | Ticks::Names(_) => {
                let (unit, size) = of_size(value.abs().max(step), &NUMBERS);
                format!("{}{unit}", decimal(value / size, step / size))
            }
        }
    }
}

const NUMBERS: [(&str, f64); 5] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];
const TIMES: [(&str, f64); 7] =
    [("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0)];
const BYTES: [(&str, f64); 5] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1024.0 * 1024.0),
    ("GiB", 1024.0 * 1024.0 * 1024.0),
    ("TiB", 1024.0 * 1024.0 * 1024.0 * 1024.0),
];

/// The largest unit that is not larger than the value.
fn of_size(value: f64, units: &[(&'static str, f64)]) -> (&'static str, f64) {
    *units.iter().rev().find(|(_, size)| value >= size * 0.999_999).unwrap_or(&units[0])
}

/// In the unit of the step, so that an axis has one unit, and a larger one only if the value is a whole number of it.
fn unit_of(value: f64, step: f64, units: &[(&'static str, f64)]) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let (unit, size) = of_size(step, units);
    let (larger, large) = of_size(value.abs(), units);
    let whole = |size: f64| ((value / size).round() - value / size).abs() < 1e-9;
    if whole(large) && large > size && value.abs() < 1000.0 * large && whole(step.max(large)) {
        return format!("{} {larger}", decimal(value / large, 1.0));
    }
    format!("{} {unit}", decimal(value / size, step / size))
}

/// With as many digits after the point as the step needs, none of them a trailing zero.
fn decimal(value: f64, step: f64) -> String {
    let digits = (-step.abs().log10().floor()).clamp(0.0, 9.0) as usize + 1;
    let mut text = String::new();
    let _ = write!(text, "{value:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "-0" | "" => "0".into(),
        text => text.into(),
    }
}

/// The day, or with steps shorter than a day the time of the day, and the day at its beginning.
fn date(value: f64, step: f64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = value.round() as i64;
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    if step < 86_400.0 && of_day != 0 {
        return format!("{:02}:{:02}", of_day / 3600, of_day % 3600 / 60);
    }
    let (year, month, day) = civil(days);
    let name = MONTHS[month as usize - 1];
    if step > 60.0 * 86_400.0 { format!("{name} {year}") } else { format!("{day} {name}") }
}

/// Year, month and day of a number of days since 1970. Years begin in March here, so that a leap day is the last one of
/// its year; 400 of them have 146,097 days.
fn civil(days: i64) -> (i64, i64, i64) {
    let since = days + 719_468; // days since the first of March of the year 0
    let (era, day) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let month_of = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month_of <= 2), month_of, of_year - (153 * month + 2) / 5 + 1)
}

/// The step of about `wanted` ticks over a range.
fn linear_step(axis: &Axis, range: f64, wanted: f64) -> f64 {
    let rough = (range / wanted.max(1.0)).max(f64::MIN_POSITIVE);
    match axis.ticks {
        Ticks::Time if rough > 1.0 => clock_step(rough),
        // A label that says only the minute of an hour, or the second, says too little.
        Ticks::Date => clock_step(rough.max(60.0)),
        Ticks::Bytes if rough >= 1.0 => 2f64.powf(rough.log2().ceil()),
        _ => nice(rough),
    }
}

/// 1, 2 or 5 times a power of ten.
fn nice(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= rough * 0.999_999);
    step.unwrap_or(10.0) * power
}

/// Steps that divide clock and calendar units.
fn clock_step(rough: f64) -> f64 {
    const STEPS: [u32; 22] = [
        2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
        432_000, 604_800, 1_209_600, 2_592_000,
    ];
    let mut steps = STEPS.into_iter().map(f64::from);
    steps.find(|step| *step >= rough).unwrap_or_else(|| nice(rough / 86400.0) * 86400.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis, low: f64, high: f64) -> String {
        let scale = Scale::new(&axis, Some((low, high)), None);
        scale.ticks(6.0).into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn ticks_are_what_a_person_would_write() {
        assert_eq!(labels(Axis::new("IOPS"), 0.0, 50_000.0), "0 | 10k | 20k | 30k | 40k | 50k");
        assert_eq!(labels(Axis::new("load"), 0.0, 1.0), "0 | 0.2 | 0.4 | 0.6 | 0.8 | 1");
        assert_eq!(
            labels(Axis::new("share").percent(), 0.0, 0.12),
            "0 % | 2 % | 4 % | 6 % | 8 % | 10 % | 12 %"
        );
        assert_eq!(labels(Axis::new("t").time(), 0.0, 86400.0), "0 | 6 h | 12 h | 18 h | 1 d");
        assert_eq!(labels(Axis::new("t").time(), 0.0, 300.0), "0 | 1 min | 2 min | 3 min | 4 min | 5 min");
        assert_eq!(labels(Axis::new("t").time(), 0.0, 0.005), "0 | 1 ms | 2 ms | 3 ms | 4 ms | 5 ms");
        assert_eq!(labels(Axis::new("size").bytes(), 0.0, 4096.0), "0 | 1 KiB | 2 KiB | 3 KiB | 4 KiB");
        assert_eq!(
            labels(Axis::new("t").time().log(), 1e-5, 10.0),
            "10 µs | 100 µs | 1 ms | 10 ms | 100 ms | 1 s | 10 s"
        );
        assert_eq!(labels(Axis::new("n").log(), 1.0, 100.0), "1 | 2 | 5 | 10 | 20 | 50 | 100");
        assert_eq!(labels(Axis::new("p").names(["a", "b"]), 0.0, 1.0), "a | b");
    }

    #[test]
    fn dates_are_days_and_times_of_the_day() {
        // 2024-02-28 00:00 UTC, by `date -d`.
        let leap = 1_709_078_400.0;
        assert_eq!(
            labels(Axis::new("t").date(), leap, leap + 86_400.0 * 3.0),
            "28 Feb | 12:00 | 29 Feb | 12:00 | 1 Mar | 12:00 | 2 Mar"
        );
        assert_eq!(
            labels(Axis::new("t").date(), leap, leap + 3600.0 * 5.0),
            "28 Feb | 01:00 | 02:00 | 03:00 | 04:00 | 05:00"
        );
        // The last day of 1999, of 2000 and of 2100, of which only 2000 is a leap year.
        for (days, right) in [
            (10_956, (1999, 12, 31)),
            (11_322, (2000, 12, 31)),
            (47_846, (2100, 12, 31)),
            (-1, (1969, 12, 31)),
        ] {
            assert_eq!(civil(days), right);
        }
    }

    #[test]
    fn a_range_that_is_none_or_not_finite_still_has_an_axis() {
        let plain = Axis::new("x");
        for (axis, data) in [
            (plain.clone(), None),
            (plain.clone(), Some((3.0, 3.0))),
            (plain.clone().log(), None),
            (plain.clone().log(), Some((0.0, 0.0))),
            (plain.log(), Some((-1.0, 5.0))),
        ] {
            let scale = Scale::new(&axis, data, Some(5.0));
            assert!(!scale.ticks(5.0).is_empty() && scale.place(scale.low) == Some(0.0), "{axis:?} {data:?}");
        }
        let axis = Axis::new("x").log();
        assert_eq!(Scale::new(&axis, Some((1.0, 10.0)), None).place(0.0), None);
    }
}
