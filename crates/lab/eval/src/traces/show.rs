//! A profile as text for a terminal.

use super::profile::{Figures, Load, Profile};
use super::spread::Spread;
use ebb_types::{Bytes, plural};
use std::fmt;

/// Columns and rows of the plot, and columns of a size bar.
const COLUMNS: usize = 72;
const ROWS: usize = 8;
const BAR: usize = 30;
/// Devices that are shown; JSON and HTML have all of them.
const DEVICES: usize = 10;

/// Shown for unknown values.
const ABSENT: &str = "–";

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or(ABSENT.into(), |share| format!("{:.1} %", share * 100.0))
}

/// A number with thousands separators.
pub(super) fn grouped(number: u64) -> String {
    ebb_output::grouped(&number.to_string())
}

/// Three significant digits: 0.0123, 1.23, 12.3, 123, 1,234.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => grouped(value.round() as u64),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Seconds in the unit that suits them.
pub(super) fn seconds(value: f64) -> String {
    const UNITS: [(f64, &str); 6] = [
        (86_400.0 * 2.0, "days"),
        (3600.0 * 2.0, "h"),
        (120.0, "min"),
        (1.0, "s"),
        (1e-3, "ms"),
        (1e-6, "µs"),
    ];
    const LENGTHS: [f64; 6] = [86_400.0, 3600.0, 60.0, 1.0, 1e-3, 1e-6];
    let at = UNITS.iter().position(|(from, _)| value >= *from);
    match at {
        Some(at) => format!("{} {}", short(value / LENGTHS[at]), UNITS[at].1),
        None => format!("{} ns", (value * 1e9).round()),
    }
}

pub(super) fn bytes(value: f64) -> String {
    Bytes(value.round() as u64).to_string()
}

fn spread(of: &Spread, show: fn(f64) -> String) -> String {
    let Spread { p10, p50, p90, p99, max, .. } = of;
    let [p10, p50, p90, p99, max] = [p10, p50, p90, p99, max].map(|value| show(*value));
    format!("p10 {p10}, p50 {p50}, p90 {p90}, p99 {p99}, max {max}")
}

impl Figures {
    fn burst(&self) -> String {
        let peak = self.peak_to_mean.map_or(String::new(), |peak| {
            format!("busiest second {}, {} × the mean; ", grouped(self.peak_per_second), short(peak))
        });
        let variation = self.gaps.as_ref().and_then(|gaps| gaps.variation);
        let variation = variation.map_or(ABSENT.into(), short);
        format!("{peak}inter-arrival variation {variation}")
    }

    /// Labels and texts, one line each.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let absent = || ABSENT.to_string();
        let rate = match (self.requests_per_second, self.bytes_per_second) {
            (Some(rate), Some(flow)) => format!("{} requests/s, {}/s", short(rate), bytes(flow)),
            _ => absent(),
        };
        let read_bytes = (self.bytes > 0).then(|| self.read_bytes as f64 / self.bytes as f64);
        let mean = self.mean_size_bytes.map_or_else(absent, bytes);
        let exact = if self.unique_exact { "exact" } else { "± 0.4 %" };
        let mut lines = vec![
            ("rate", rate),
            ("bursts", self.burst()),
            ("inter-arrival", self.gaps.as_ref().map_or_else(absent, |gaps| spread(gaps, seconds))),
            ("reads", format!("{} of requests, {} of bytes", percent(self.read_share), percent(read_bytes))),
            ("size", format!("mean {mean}, largest {}", Bytes(self.largest_bytes.into()))),
            ("random", format!("{} begin elsewhere than the previous one ended", percent(self.random_share))),
            ("seek", self.seeks.as_ref().map_or_else(absent, |seeks| spread(seeks, bytes))),
            (
                "footprint",
                format!(
                    "{} to hold it, {} of distinct 4 KiB blocks ({exact})",
                    Bytes(self.footprint_bytes),
                    Bytes(self.unique_bytes)
                ),
            ),
        ];
        let odd = [
            (self.empty, "of zero bytes"),
            (self.backwards, "earlier than the previous one, moved to its time"),
            (self.skipped, "bad and skipped"),
            (self.left_out, "without data (trim, sync) left out"),
        ];
        let odd: Vec<String> = odd
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{} {what}", grouped(count)))
            .collect();
        if !odd.is_empty() {
            lines.push(("odd", odd.join("; ")));
        }
        lines
    }
}

impl Load {
    /// Requests per second in this many columns, or as many as there are intervals.
    fn columns(&self, columns: usize) -> Vec<f64> {
        let intervals = self.reads.len();
        let columns = columns.min(intervals);
        (0..columns)
            .map(|column| {
                let range = column * intervals / columns..(column + 1) * intervals / columns;
                let seconds = range.len() as f64 * self.interval_seconds;
                range.map(|i| self.reads[i] + self.writes[i]).sum::<u64>() as f64 / seconds
            })
            .collect()
    }
}

/// Bars of eighths of a character cell.
fn plot(values: &[f64], rows: usize) -> Vec<String> {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(0.0, f64::max);
    let cell = |value: f64, row: usize| {
        let eighths = if most > 0.0 { (value / most * (rows * 8) as f64).ceil() as usize } else { 0 };
        EIGHTHS[eighths.saturating_sub((rows - 1 - row) * 8).min(8)]
    };
    (0..rows).map(|row| values.iter().map(|&value| cell(value, row)).collect()).collect()
}

impl Profile {
    fn show_load(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.load.columns(COLUMNS);
        if values.len() < 2 {
            return Ok(());
        }
        let most = values.iter().copied().fold(0.0, f64::max);
        let span = self.load.interval_seconds * self.load.reads.len() as f64;
        let each = seconds(span / values.len() as f64);
        writeln!(f, "\n  requests/s over time, means of {each}")?;
        for (row, line) in plot(&values, ROWS).into_iter().enumerate() {
            let label = if row == 0 { short(most) } else { String::new() };
            writeln!(f, "  {label:>9} ┤{line}")?;
        }
        let end = seconds(self.figures.span_seconds);
        writeln!(f, "  {:>9} └{}", 0, "─".repeat(values.len()))?;
        writeln!(f, "  {:9}  0{end:>width$}", "", width = values.len().saturating_sub(1))
    }

    fn show_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n  sizes from      reads    writes")?;
        let most = self.sizes.iter().map(|class| class.reads + class.writes).max().unwrap_or(1);
        let share = |count: u64| percent(Some(count as f64 / self.figures.requests as f64));
        for class in &self.sizes {
            let bar = |count: u64| (count as f64 / most as f64 * BAR as f64).round() as usize;
            let (reads, all) = (bar(class.reads), bar(class.reads + class.writes));
            writeln!(
                f,
                "  {:>10} {:>10}{:>10}  {}{}",
                Bytes(class.from_bytes).to_string(),
                share(class.reads),
                share(class.writes),
                "█".repeat(reads),
                "░".repeat(all.saturating_sub(reads))
            )?;
        }
        writeln!(f, "  {:>32}  █ reads ░ writes", "")
    }

    fn show_devices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.devices.len() < 2 {
            return Ok(());
        }
        let mut busiest: Vec<_> = self.devices.iter().collect();
        busiest.sort_by_key(|device| std::cmp::Reverse(device.requests));
        let name = |name: &str| name.chars().take(16).collect::<String>();
        writeln!(
            f,
            "\n  device             requests     reads   random       bytes   footprint    distinct"
        )?;
        for device in busiest.iter().take(DEVICES) {
            let reads = (device.requests > 0).then(|| device.reads as f64 / device.requests as f64);
            writeln!(
                f,
                "  {:16} {:>10}{:>10}{:>9}{:>12}{:>12}{:>12}",
                name(&device.name),
                grouped(device.requests),
                percent(reads),
                percent(device.random_share),
                Bytes(device.bytes).to_string(),
                Bytes(device.footprint_bytes).to_string(),
                Bytes(device.unique_bytes).to_string()
            )?;
        }
        match busiest.get(DEVICES..) {
            Some(rest) if !rest.is_empty() => {
                let requests = rest.iter().map(|device| device.requests).sum();
                writeln!(f, "  {} more devices with {} requests", rest.len(), grouped(requests))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = &self.figures;
        let format = figures.format.as_deref().unwrap_or("made");
        let devices = if figures.device_count == 1 { "device" } else { "devices" };
        writeln!(
            f,
            "{}: {format}, {} {}, {} in {} on {} {devices}\n",
            self.name,
            grouped(figures.requests),
            plural(figures.requests, "request"),
            Bytes(figures.bytes),
            seconds(figures.span_seconds),
            figures.device_count
        )?;
        for (label, text) in figures.lines() {
            writeln!(f, "  {label:13} {text}")?;
        }
        if figures.requests == 0 {
            return Ok(());
        }
        self.show_load(f)?;
        self.show_sizes(f)?;
        self.show_devices(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_their_unit() {
        for (value, text) in [
            (0.0, "0 ns"),
            (3e-7, "300 ns"),
            (0.001_25, "1.25 ms"),
            (59.0, "59.0 s"),
            (600.0, "10.0 min"),
            (10_000.0, "2.78 h"),
            (603_064.6, "6.98 days"),
        ] {
            assert_eq!(seconds(value), text);
        }
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0123, 1.234, 12.34, 1234.4].map(short), ["0.012", "1.23", "12.3", "1,234"]);
    }

    #[test]
    fn a_plot_reaches_its_top_at_the_most_and_shows_the_least_that_is_not_nothing() {
        assert_eq!(plot(&[0.0, 0.01, 8.0, 16.0], 2), ["   █", " ▁██"]);
        assert_eq!(plot(&[0.0, 0.0], 1), ["  "]);
    }

    #[test]
    fn a_trace_is_shown_with_its_odd_requests_and_without_figures_that_do_not_exist() {
        let text = "3,0,4096,R,10\n3,8,4096,W,10.5\n9,800,0,R,9\n";
        let shown = |text: &'static str| {
            let mut reader = ebb_trace::open("t.spc", text.as_bytes()).unwrap();
            super::super::profile("t", reader.as_mut()).unwrap().to_string()
        };
        let found = shown(text);
        for part in
            ["spc, 3 requests, 8.0 KiB", "66.7 % of requests", "1 of zero bytes; 1 earlier", "4.0 KiB"]
        {
            assert!(found.contains(part), "no {part:?} in\n{found}");
        }
        assert!(shown("").contains("rate          –"));
    }
}
