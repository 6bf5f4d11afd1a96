//! The result of a run as a page: load, throughput and the disks' states over time, as Figures 5 and 6 have them.

use super::report::{Report, States};
use super::show::{disk_rows, policy, response_rows};
use ebb_output::{Axis, Chart, Mark, Page, Series};

/// The state in which the disk was longest: 0 low speed, 1 low speed in log mode, 2 high speed. A change of speed
/// belongs to neither.
fn state(states: &States) -> f64 {
    let at = [states.low_seconds, states.low_log_seconds, states.high_seconds];
    match (0..3).max_by(|a, b| at[*a].total_cmp(&at[*b])) {
        Some(longest) if at[longest] > 0.0 => longest as f64,
        _ => f64::NAN,
    }
}

/// Load and throughput, and the state of each disk, per 30 s.
pub fn state_charts(report: &Report) -> Vec<Chart> {
    let line = |of: fn(&super::Sample) -> f64| report.samples.iter().map(move |s| (s.at_seconds, of(s)));
    let load = Chart::new("Load and throughput", Axis::new("time").time(), Axis::new("requests/s").from(0.0))
        .with(Series::new("offered load", Mark::Line, line(|s| s.offered_per_second)))
        .with(Series::new("throughput", Mark::Line, line(|s| s.answered_per_second)));
    let names = || Axis::new("state").names(["low", "low, log", "high"]);
    let states = Chart::new("State of the disks", Axis::new("time").time(), names())
        .with(Series::new("disk A", Mark::Step, line(|s| state(&s.disks[0]))))
        .with(Series::new("disk B", Mark::Step, line(|s| state(&s.disks[1]))));
    vec![load, states]
}

/// Everything as one HTML file.
pub fn page(report: &Report) -> String {
    let (trace, setup, energy) = (&report.trace, &report.setup, &report.energy_modelled);
    let lead = format!(
        "{} at {}x on a mirror of two modelled disks, policy {}: {:.1} kJ in {:.0} s, {:.2} W on average.\n\n\
         Everything here is modelled. Disk {}: {}.",
        trace.name,
        trace.rate,
        policy(setup.policy),
        energy.total.0 / 1e3,
        trace.span_seconds,
        energy.mean_watts,
        setup.disk,
        setup.disk_source
    );
    let mut page = Page::new("A trace on a mirror of two-speed disks", lead);
    page.section("Over time", "Each point is 30 s; a disk's state is the one in which it was longest.");
    for chart in state_charts(report) {
        page.chart(&chart);
    }
    let (header, rows) = response_rows(report);
    page.section("Response times", "").table("Queues included", &header, &rows);
    let (header, rows) = disk_rows(report);
    page.section("Disks", "").table("From the first request to the last answer", &header, &rows);
    page.render()
}
