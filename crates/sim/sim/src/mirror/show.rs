//! The result of a run as text.

use super::report::{DiskReport, Report};
use ebb_mirror::{Ack, PolicyKind};
use ebb_output::{Latency, table};
use ebb_types::Bytes;
use std::fmt;

/// As it is called on the command line.
pub(crate) fn policy(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::LogStore => "logstore",
        PolicyKind::TwoSpeed => "two-speed",
        PolicyKind::Div => "div",
        PolicyKind::OneSpeed => "one-speed",
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

fn time(seconds: f64) -> String {
    format!("{seconds:.0} s")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, setup, energy) = (&self.trace, &self.setup, &self.energy_modelled);
        let ack = match setup.ack {
            Ack::Safe => "safe",
            Ack::Both => "both",
            Ack::One => "one",
        };
        writeln!(
            f,
            "{} at {}x: {} requests ({} reads) in {:.0} s, on two modelled disks {}",
            trace.name, trace.rate, trace.requests, trace.reads, trace.span_seconds, setup.disk
        )?;
        let adaptive =
            setup.response_limit_millis.map_or(String::new(), |limit| format!(", adaptive to {limit} ms"));
        writeln!(
            f,
            "policy {}{adaptive}, writes acknowledged by {ack}, logs of {}",
            policy(setup.policy),
            Bytes(setup.log_bytes)
        )?;
        if trace.folded > 0 {
            writeln!(f, "{} requests beyond the mirror's end were folded into it", trace.folded)?;
        }
        writeln!(
            f,
            "\nmodelled energy {:.1} kJ, {:.2} W on average; {} of the time at low speed, {} changes of speed\n",
            energy.total.0 / 1e3,
            energy.mean_watts,
            percent(energy.low_share),
            energy.changes
        )?;
        let mut tables = String::new();
        let (header, rows) = response_rows(self);
        table(&mut tables, &header, &rows);
        tables.push('\n');
        let (header, rows) = disk_rows(self);
        table(&mut tables, &header, &rows);
        f.write_str(&tables)?;
        if self.requests.failed > 0 {
            writeln!(f, "\n{} requests failed", self.requests.failed)?;
        }
        Ok(())
    }
}

/// Header and rows of the table of response times.
pub(super) fn response_rows(report: &Report) -> ([&'static str; 7], Vec<Vec<String>>) {
    let header = ["response time, ms", "requests", "mean", "50 %", "95 %", "99 %", "longest"];
    let millis = |value: f64| format!("{value:.2}");
    let row = |(what, latency): (&str, &Option<Latency>)| {
        latency.map(|l| {
            let times = [l.mean_millis, l.p50_millis, l.p95_millis, l.p99_millis, l.max_millis];
            [what.to_owned(), l.count.to_string()].into_iter().chain(times.map(millis)).collect()
        })
    };
    let r = &report.response;
    let all = [
        ("all", &r.all),
        ("reads", &r.reads),
        ("writes", &r.writes),
        ("during a change of speed", &r.in_changes),
        ("at other times", &r.outside_changes),
    ];
    (header, all.into_iter().filter_map(row).collect())
}

/// Header and rows of the table of disks.
pub(super) fn disk_rows(report: &Report) -> ([&'static str; 3], Vec<Vec<String>>) {
    type Cell = fn(&DiskReport) -> String;
    let rows: [(&str, Cell); 12] = [
        ("energy, modelled", |d| format!("{:.1} kJ", d.total.0 / 1e3)),
        ("low speed", |d| time(d.states.low_seconds)),
        ("low speed, log mode", |d| time(d.states.low_log_seconds)),
        ("high speed", |d| time(d.states.high_seconds)),
        ("changing its speed", |d| time(d.states.change_seconds)),
        ("changes up, down", |d| format!("{}, {}", d.energy.changes_up, d.energy.changes_down)),
        ("busy with reads and writes", |d| time(d.work.read_seconds + d.work.write_seconds)),
        ("busy with the log", |d| time(d.work.log_read_seconds + d.work.log_write_seconds)),
        ("busy with superblock and map", |d| time(d.work.notes_seconds)),
        ("blocks logged", |d| d.work.logged_blocks.to_string()),
        ("blocks replayed", |d| d.replayed_blocks.to_string()),
        ("blocks left in the log", |d| d.left_blocks.to_string()),
    ];
    let row = |(what, cell): &(&str, Cell)| {
        vec![(*what).to_owned(), cell(&report.disks[0]), cell(&report.disks[1])]
    };
    (["", "disk A", "disk B"], rows.iter().map(row).collect())
}
