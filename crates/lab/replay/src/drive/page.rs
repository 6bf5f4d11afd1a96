//! A replay as an HTML page.

use super::report::{DriveReport, SecondReport};
use ebb_output::{Chart, Latency, Page, distribution};

impl DriveReport {
    /// The figures, and the answered requests of every second.
    pub fn page(&self) -> Page {
        let lead = format!(
            "{} requests in {:.3} s, {} failed: {:.1} IOPS, {:.2} MB/s",
            self.requests, self.wall_seconds, self.failed, self.iops, self.megabytes_per_second
        );
        let lead = [Some(lead), self.stopped()].into_iter().flatten().collect::<Vec<_>>().join("; ");
        let mut page = Page::new(format!("Replay on {}", self.target.name), lead);
        self.sections(&mut page);
        page
    }

    /// Adds the sections of a replay to a page.
    pub(crate) fn sections(&self, page: &mut Page) {
        page.section("Times", "In milliseconds. Service: from issue to answer. Queue: waiting because the maximum number of requests was in flight. Lateness: issued after its time although there was a place, the replay's own error.");
        let rows = [
            ("reads, service", &self.reads.service),
            ("reads, queue", &self.reads.queue),
            ("writes, service", &self.writes.service),
            ("writes, queue", &self.writes.queue),
            ("lateness", &self.lateness),
        ];
        let rows: Vec<Vec<String>> =
            rows.iter().filter_map(|(name, times)| times.as_ref().map(|times| row(name, times))).collect();
        page.table("", &["", "requests", "mean", "p50", "p90", "p99", "p99.9", "max"], &rows);
        let services = [("reads", &self.reads.service), ("writes", &self.writes.service)];
        let services =
            services.into_iter().filter_map(|(name, times)| Some((name.to_owned(), times.as_ref()?)));
        page.chart(&distribution("Distribution of service times", services));
        page.section("Second by second", "Answered requests. The last second may be incomplete.");
        let read = "reads";
        page.chart(&self.chart(
            "Requests",
            "requests per second",
            [(read, |s| s.reads as f64), ("writes", |s| s.writes as f64)],
        ));
        page.chart(&self.chart(
            "Bytes",
            "MB per second",
            [(read, |s| s.read_bytes as f64 / 1e6), ("writes", |s| s.written_bytes as f64 / 1e6)],
        ));
        // The rest of the text; the table of times is already shown above.
        let rest = self.to_string();
        let rest = rest.lines().filter(|line| !line.starts_with("  ")).collect::<Vec<_>>().join("\n\n");
        page.section("Details of the replay", &rest);
    }

    fn chart(&self, title: &str, y: &str, series: [Line; 2]) -> Chart {
        let points = |of: fn(&SecondReport) -> f64| {
            self.seconds.iter().enumerate().map(move |(at, second)| (at as f64, of(second)))
        };
        Chart::steps(title, y, series.map(|(name, of)| (name, points(of))))
    }
}

/// A line of a chart: its name, and its value for a second.
type Line = (&'static str, fn(&SecondReport) -> f64);

fn row(name: &str, t: &Latency) -> Vec<String> {
    let times = [t.mean_millis, t.p50_millis, t.p90_millis, t.p99_millis, t.p999_millis, t.max_millis];
    let cells = times.iter().map(|millis| format!("{millis:.4}"));
    [name.to_owned(), t.count.to_string()].into_iter().chain(cells).collect()
}
