//! A replay on a cluster as an HTML page.

use super::report::{HourReport, ReplayReport, StretchLatency};
use ebb_output::{Chart, Latency, Page, distribution};

impl ReplayReport {
    /// Load against servers awake, hour by hour; energy; latency by gear; and everything that the engine reports.
    pub fn page(&self) -> Page {
        let energy = &self.modelled_energy;
        let mut page = Page::new(format!("{} on a cluster", self.trace.name), self.lead());
        page.section("Load and servers", "Load is in servers' worth of work. Hours are the trace's.");
        page.chart(&self.hours_chart(
            "Load",
            "servers",
            [
                ("as the cluster saw it", |hour| hour.load),
                ("of the trace", |hour| Some(hour.trace_load)),
                ("forecast", |hour| hour.forecast),
                ("servers awake", |hour| hour.servers_awake.map(f64::from)),
            ],
        ));
        page.chart(&self.hours_chart(
            "Gear",
            "gear groups awake",
            [("cluster", |hour| hour.gear.map(f64::from)), ("oracle", |hour| Some(hour.oracle_gear.into()))],
        ));
        let seen = energy.compared.as_ref().and_then(|compared| compared.saves.transitions(self.speed));
        let seen = seen.map_or(String::new(), |seen| format!(" Here {seen}."));
        page.section("Energy", &format!("Modelled, at the trace's own speed.{seen}"));
        let kwh = |joules: f64| format!("{:.2}", joules / 3.6e6);
        let rows: Vec<Vec<String>> =
            [("cluster", &energy.cluster), ("always on", &energy.always_on), ("oracle", &energy.oracle)]
                .map(|(name, e)| {
                    let parts =
                        [e.total_joules, e.on_joules, e.standby_joules, e.transition_joules, e.switch_joules];
                    let cells = parts.map(kwh).into_iter().chain([e.transitions.to_string()]);
                    [name.to_owned()].into_iter().chain(cells).collect()
                })
                .into();
        page.table(
            "kWh",
            &["", "total", "on", "standby", "transitions", "rack switches", "switchings"],
            &rows,
        );
        page.section("Latency by gear", "In milliseconds, from issue to answer.");
        let classes = self.latency_classes();
        let row = |(name, l): &(String, &Latency)| {
            let millis = [l.p50_millis, l.p99_millis, l.max_millis].map(|millis| format!("{millis:.3}"));
            [name.clone(), l.count.to_string()].into_iter().chain(millis).collect()
        };
        let rows: Vec<Vec<String>> = classes.iter().map(row).collect();
        page.table("", &["", "requests", "p50", "p99", "max"], &rows);
        page.chart(&distribution("Distribution of response times", classes));
        self.performance.sections(&mut page);
        page
    }

    fn lead(&self) -> String {
        let saved = match &self.modelled_energy.compared {
            Some(compared) => format!(
                "{:.1} % of the energy saved (modelled), an oracle saves {:.1} %",
                compared.saved_percent, compared.oracle_saved_percent
            ),
            None => "no savings, because the trace was not kept up with".to_owned(),
        };
        let lead = format!(
            "{} requests over {:.1} h: {saved}. {}",
            self.trace.requests,
            self.trace.span_seconds / 3600.0,
            if self.passed() { "Every byte was correct." } else { "The replay failed." }
        );
        let prelude = self.prelude.map(|prelude| format!(" After a prelude of {prelude}."));
        let stopped = self.performance.stopped().map(|stopped| format!(" It was {stopped}"));
        [Some(lead), prelude, stopped].into_iter().flatten().collect()
    }

    fn hours_chart<const N: usize>(&self, title: &str, y: &str, series: [Line; N]) -> Chart {
        let points = |of: fn(&HourReport) -> Option<f64>| {
            self.hours.iter().filter_map(move |hour| Some((hour.hour as f64 * 3600.0, of(hour)?)))
        };
        Chart::steps(title, y, series.map(|(name, of)| (name, points(of))))
    }

    /// The classes of requests that were not empty.
    fn latency_classes<'a>(&'a self) -> Vec<(String, &'a Latency)> {
        let by_gear = self.latency.by_gear.iter().map(|gear| (format!("gear {}", gear.gear), &gear.of));
        let named = |suffix: &'static str, stretches: &'a StretchLatency| {
            stretches.named().into_iter().map(move |(name, of)| (format!("{name}{suffix}"), of))
        };
        let own = named("", &self.latency.stretches);
        let beside = self.always_on.iter().flat_map(|beside| named(", always on", &beside.latency));
        let all = by_gear.chain(own).chain(beside).flat_map(|(name, of)| {
            [(format!("{name}, reads"), &of.reads), (format!("{name}, writes"), &of.writes)]
        });
        all.filter_map(|(name, latency)| Some((name, latency.as_ref()?))).collect()
    }
}

/// A line of a chart: its name, and its value for an hour.
type Line = (&'static str, fn(&HourReport) -> Option<f64>);
