//! The report: the figures of TRACER's evaluation [TRACER §VI] from any results, in one self-contained page.

use super::compare::{Metric, by_level, mean};
use super::idle::{self, is_idle};
use super::proportion;
use super::record::{Record, SeriesRow, late_loads};
use super::workload::Workload;
use ebb_output::{Axis, Chart, Mark, Page, Series};
use std::collections::{BTreeMap, BTreeSet};

/// A dimension of the matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dimension {
    Load,
    Size,
    Random,
    Read,
}

impl Dimension {
    fn of(self, record: &Record) -> Option<f64> {
        match self {
            Dimension::Load => Some(record.load_percent),
            Dimension::Size => record.request_bytes,
            Dimension::Random => record.random_percent,
            Dimension::Read => record.read_percent,
        }
    }

    /// For titles.
    fn word(self) -> &'static str {
        match self {
            Dimension::Load => "load",
            Dimension::Size => "request size",
            Dimension::Random => "random ratio",
            Dimension::Read => "read ratio",
        }
    }

    fn name(self, value: f64) -> String {
        match self {
            Dimension::Load => format!("{value} % load"),
            Dimension::Size => ebb_types::Bytes(value as u64).to_string().replace(".0 ", " "),
            Dimension::Random => format!("{value} % random"),
            Dimension::Read => format!("{value} % reads"),
        }
    }
}

/// A chart of means: one series per value of `by`, over `x`, at fixed values of the other dimensions.
struct Figure<'a> {
    what: &'a str,
    metric: Metric,
    x: Dimension,
    by: Dimension,
    at: Vec<(Dimension, f64)>,
}

impl Figure<'_> {
    /// `None`: the results have no two points to connect.
    fn chart(&self, records: &[&Record]) -> Option<Chart> {
        let here = |r: &&&Record| self.at.iter().all(|(d, value)| d.of(r) == Some(*value));
        let records: Vec<&Record> = records.iter().filter(here).copied().collect();
        let mut series: BTreeMap<u64, BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
        for record in &records {
            if let (Some(by), Some(x)) = (self.by.of(record), self.x.of(record)) {
                // No value is negative: bits sort like the numbers.
                let values = series.entry(by.to_bits()).or_default().entry(x.to_bits()).or_default();
                values.extend(self.metric.1(record));
            }
        }
        series.retain(|_, points| points.values().filter(|values| !values.is_empty()).count() > 1);
        if series.is_empty() {
            return None;
        }
        let fixed: Vec<String> = self.at.iter().map(|(dimension, value)| dimension.name(*value)).collect();
        let title = format!("{} in {} by {} ({})", self.what, self.metric.0, self.x.word(), fixed.join(", "));
        let y = labelled(self.metric.0, &records);
        // Sizes are evenly spaced, whatever the factors between them.
        let sizes = values(&records, Dimension::Size);
        let axis = match self.x {
            Dimension::Size => {
                Axis::new("request size").names(sizes.iter().map(|&s| Dimension::Size.name(s)))
            }
            Dimension::Load => Axis::new("load, % of the peak"),
            Dimension::Random => Axis::new("random requests, %"),
            Dimension::Read => Axis::new("reads, %"),
        };
        let place = |x: f64| match self.x {
            Dimension::Size => sizes.iter().position(|&size| size == x).unwrap_or(0) as f64,
            _ => x,
        };
        let mut chart = Chart::new(title, axis, Axis::new(y));
        for (by, points) in series {
            // What was not measured is a gap.
            let at = |(x, ys): (u64, Vec<f64>)| {
                (place(f64::from_bits(x)), mean(ys.into_iter()).unwrap_or(f64::NAN))
            };
            let points = points.into_iter().map(at);
            chart = chart.with(Series::new(self.by.name(f64::from_bits(by)), Mark::Line, points));
        }
        Some(chart)
    }
}

/// The name of a metric, with what is doubtful of its watts: the least trustworthy source names them all.
fn labelled(metric: &str, records: &[&Record]) -> String {
    let doubtful = ["modelled", "stated"].into_iter().find(|source| {
        let is = |r: &&Record| r.watts_source.as_deref() == Some(source);
        metric.contains('W') && records.iter().any(is)
    });
    match doubtful {
        Some(source) => format!("{metric}, {source} watts"),
        None => metric.to_owned(),
    }
}

/// Adds a section of charts, if the results give any.
fn figures(page: &mut Page, heading: &str, records: &[&Record], figures: &[Figure<'_>]) {
    let charts: Vec<Chart> = figures.iter().filter_map(|figure| figure.chart(records)).collect();
    if !charts.is_empty() {
        page.section(heading, "");
        for chart in &charts {
            page.chart(chart);
        }
    }
}

const IOPS: Metric = ("IOPS", |r| r.iops);
const MB: Metric = ("MB/s", |r| r.mb_per_second);
const IOPS_PER_WATT: Metric = ("IOPS/W", |r| r.iops_per_watt);
const MB_PER_KILOWATT: Metric = ("MB/s/kW", |r| r.mb_per_second_per_kilowatt);

/// A page on all records and the series of the longer ones, one part per campaign and target.
pub fn report(records: &[Record], series: &[SeriesRow]) -> String {
    let good: Vec<&Record> = records.iter().filter(|record| record.error.is_none()).collect();
    let parts: BTreeSet<(&str, &str)> =
        good.iter().map(|r| (r.campaign.as_str(), r.target.as_str())).collect();
    let failed = records.len() - good.len();
    let lead = format!(
        "{} runs on {} target{}{}. MB are 10^6 bytes; the load is in percent of the replay at 100 % of each workload's trace.",
        good.len(),
        parts.len(),
        if parts.len() == 1 { "" } else { "s" },
        if failed > 0 { format!("; {failed} more failed and are omitted") } else { String::new() }
    );
    let mut page = Page::new("Evaluation: work per joule", lead);
    for (campaign, target) in parts {
        let of_part = |r: &&&Record| r.campaign == campaign && r.target == target;
        let records: Vec<&Record> = good.iter().filter(of_part).copied().collect();
        let series: Vec<&SeriesRow> =
            series.iter().filter(|r| r.campaign == campaign && r.target == target).collect();
        part(&mut page, &format!("{campaign}/{target}"), &records, &series);
    }
    page.render()
}

fn part(page: &mut Page, name: &str, records: &[&Record], series: &[&SeriesRow]) {
    page.section(name, &environment(records));
    let (idle_runs, records): (Vec<&Record>, Vec<&Record>) = records.iter().partition(|r| is_idle(r));
    if let Some(watts) = mean(idle::watts(idle_runs.iter().copied()).into_iter()) {
        page.text(&format!("Idle power: {watts:.1} W."));
    }
    idle::figure(page, &idle_runs);
    let records = records.as_slice();
    if records.is_empty() {
        return;
    }
    let (modes, traces): (Vec<&Record>, Vec<&Record>) = records.iter().partition(|r| is_mode(r));
    page.text(&power(records));
    if let Some(late) = late_references(records) {
        page.text(&late);
    }
    summary_table(page, records);
    load_control(page, name, &modes);
    for (heading, list) in effects(&modes, records.iter().any(|r| r.watts.is_some())) {
        figures(page, &format!("{name}: {heading}"), &modes, &list);
    }
    if !traces.is_empty() {
        trace_tables(page, name, &traces);
    }
    over_time(page, name, series);
}

/// Whether the workload is defined by size, random ratio and read ratio.
fn is_mode(record: &Record) -> bool {
    let vector = (record.request_bytes, record.random_percent, record.read_percent);
    let (Some(size), Some(random), Some(reads)) = vector else { return false };
    Workload::Synthetic { size: size as u32, random: random as u8, reads: reads as u8 }.name()
        == record.workload
}

fn environment(records: &[&Record]) -> String {
    let all = |get: fn(&Record) -> Option<&String>| {
        let values: BTreeSet<&str> = records.iter().filter_map(|r| get(r).map(String::as_str)).collect();
        values.into_iter().collect::<Vec<_>>().join("; ")
    };
    let first = records.iter().map(|r| r.started_unix_millis).min().unwrap_or(0);
    let last = records.iter().map(|r| r.started_unix_millis).max().unwrap_or(0);
    format!(
        "Device: {}. Host: {}, Linux {}, {}. Ebb {}. {} runs in {:.0} minutes.",
        all(|r| r.device.as_ref()),
        all(|r| r.host.as_ref()),
        all(|r| r.kernel.as_ref()),
        all(|r| r.cpu.as_ref()),
        all(|r| Some(&r.program_version)),
        records.len(),
        (last - first) as f64 / 60_000.0
    )
}

/// Source of the watts, or that there are none.
fn power(records: &[&Record]) -> String {
    let metered: Vec<_> = records.iter().filter(|r| r.watts.is_some()).collect();
    if metered.is_empty() {
        return "No power was read, so there is no efficiency: the charts show throughput.".into();
    }
    let meters: BTreeSet<&str> = metered.iter().filter_map(|r| r.meters.as_deref()).collect();
    let meters = meters.into_iter().collect::<Vec<_>>().join("; ");
    let sources: BTreeSet<&str> = metered.iter().filter_map(|r| r.watts_source.as_deref()).collect();
    let words =
        sources.into_iter().map(|source| if source == "stated" { "stated by a command" } else { source });
    let kind = match words.collect::<Vec<_>>()[..] {
        [] => "Nothing says where the watts are from".to_owned(),
        ["modelled"] => "Watts are modelled, not measured".to_owned(),
        ["stated by a command"] => {
            "Watts are stated by a command of the user's, not measured by this program".to_owned()
        }
        [one] => format!("Watts are {one}"),
        [ref some @ .., others] => {
            format!("Watts are {} in some runs and {others} in others", some.join(", "))
        }
    };
    let least = metered.iter().filter_map(|r| r.meter_coverage).min_by(f64::total_cmp);
    let coverage =
        least.map_or(String::new(), |c| format!(" Samples cover at least {:.0} % of each run.", 100.0 * c));
    let missing = records.len() - metered.len();
    let missing = if missing > 0 { format!(" {missing} runs have no reading.") } else { String::new() };
    format!("{kind} ({meters}).{coverage}{missing}")
}

/// The workloads whose replay at 100 % was late itself: what that means for their other levels.
fn late_references(records: &[&Record]) -> Option<String> {
    let late: Vec<&Record> = records.iter().filter(|r| r.is_late_reference()).copied().collect();
    let worst = late.iter().filter_map(|r| r.behind()).max_by(f64::total_cmp)?;
    let names: Vec<&str> = late.iter().map(|r| r.workload.as_str()).collect();
    let loads = match late_loads(records).iter().map(|found| found.runs).sum::<usize>() {
        0 => "no load is measured against it".to_owned(),
        runs => format!("the loads of {runs} runs, stored against it, are too high by about as much"),
    };
    Some(format!(
        "The replay at 100 % was behind its trace itself, by up to {:.1} % of its length ({}): {loads}. \
         Throughput, latency and watts hold. Delete the campaign and run it again on a quiet machine, or with longer runs.",
        100.0 * worst,
        names.join(", ")
    ))
}

/// Means over all workloads, by load.
fn summary_table(page: &mut Page, records: &[&Record]) {
    type Column = (&'static str, fn(&Record) -> Option<f64>);
    let columns: &[Column] = &[
        ("IOPS %", |r| r.load_percent_iops),
        ("bytes %", |r| r.load_percent_bytes),
        ("IOPS", |r| r.iops),
        ("MB/s", |r| r.mb_per_second),
        ("p99 ms", |r| r.latency_p99_millis),
        ("W", |r| r.watts),
        ("IOPS/W", |r| r.iops_per_watt),
        ("MB/s/kW", |r| r.mb_per_second_per_kilowatt),
        ("mJ per I/O", |r| r.joules_per_io.map(|j| 1e3 * j)),
    ];
    let header: Vec<&str> = ["load %", "runs"].into_iter().chain(columns.iter().map(|c| c.0)).collect();
    let rows: Vec<Vec<String>> = by_level(records)
        .into_iter()
        .map(|(level, of_level)| {
            let mut row = vec![level.to_string(), of_level.len().to_string()];
            row.extend(columns.iter().map(|(_, get)| number(mean(of_level.iter().filter_map(|r| get(r))))));
            row
        })
        .collect();
    page.table("Means over all workloads; IOPS % and bytes % are the measured load", &header, &rows);
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 1.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.4}"),
    }
}

/// Configured against measured load [TRACER Figure 8].
fn load_control(page: &mut Page, name: &str, modes: &[&Record]) {
    let levels = by_level(modes);
    if levels.len() < 2 {
        return;
    }
    page.section(
        &format!("{name}: load control"),
        "Accuracy is measured load / configured load; the measured load is relative to the replay at 100 %. A level at which the target falls \
         behind is below 1. If the replay at 100 % itself fell behind, all others would be above 1: then there is no measured load.",
    );
    let quantile = |q: f64| {
        levels.iter().filter_map(move |(level, records)| {
            let mut found: Vec<f64> =
                records.iter().filter_map(|r| Some(r.load_percent_iops? / r.load_percent)).collect();
            found.sort_by(f64::total_cmp);
            Some((*level, *found.get(((found.len() as f64 - 1.0) * q).round() as usize)?))
        })
    };
    let low = quantile(0.05).map(|(_, accuracy)| accuracy).fold(0.95, f64::min);
    let y = Axis::new("measured / configured").from((low * 20.0).floor() / 20.0);
    let chart = Chart::new("Accuracy of the load control in IOPS", Axis::new("load, % of the peak"), y)
        .with(Series::new("median of the modes", Mark::Line, quantile(0.5)))
        .with(Series::new("lowest 5 %", Mark::Line, quantile(0.05)))
        .with(Series::new("highest 5 %", Mark::Line, quantile(0.95)));
    page.chart(&chart);
    one_mode(page, modes);
}

/// The mode that stands for all where only one is drawn: the paper's if it is there, else the first.
fn shown_mode(modes: &[&Record]) -> Option<String> {
    let paper = Workload::Synthetic { size: 4096, random: 50, reads: 0 }.name();
    let here = modes.iter().any(|r| r.workload == paper);
    modes.first().map(|r| if here { paper } else { r.workload.clone() })
}

/// One mode at its loads, as in the paper: throughput as bars, and the accuracy of each [TRACER Figure 8].
fn one_mode(page: &mut Page, modes: &[&Record]) {
    let Some(mode) = shown_mode(modes) else { return };
    let of_mode: Vec<&Record> = modes.iter().filter(|r| r.workload == mode).copied().collect();
    let levels = by_level(&of_mode);
    let load = || Axis::new("load, % of the trace").names(levels.iter().map(|(level, _)| level.to_string()));
    let points = |get: fn(&Record) -> Option<f64>| -> Vec<(f64, f64)> {
        let at = |(at, (_, records)): (usize, &(f64, Vec<&Record>))| {
            Some((at as f64, mean(records.iter().filter_map(|r| get(r)))?))
        };
        levels.iter().enumerate().filter_map(at).collect()
    };
    for (metric, name) in [(IOPS, "IOPS"), (MB, "MB/s")] {
        let chart = Chart::new(format!("Throughput of {mode} in {name}"), load(), Axis::new(metric.0));
        page.chart(&chart.with(Series::new(name, Mark::Bars, points(metric.1))));
    }
    let accuracy = Chart::new(
        format!("Accuracy of the load of {mode}"),
        load(),
        Axis::new("measured / configured").from(0.9),
    )
    .with(Series::new("IOPS", Mark::Line, points(|r| Some(r.load_percent_iops? / r.load_percent))))
    .with(Series::new("MB/s", Mark::Line, points(|r| Some(r.load_percent_bytes? / r.load_percent))));
    page.chart(&accuracy);
}

/// Throughput of the longer runs over time, a line for each load; of the first repetition [TRACER Figure 12].
fn over_time(page: &mut Page, name: &str, series: &[&SeriesRow]) {
    let mut workloads: BTreeMap<&str, BTreeMap<u64, Vec<&SeriesRow>>> = BTreeMap::new();
    for &row in series.iter().filter(|row| row.repetition == 1) {
        let levels = workloads.entry(&row.workload).or_default();
        levels.entry(row.load_percent.to_bits()).or_default().push(row);
    }
    if workloads.is_empty() {
        return;
    }
    page.section(
        &format!("{name}: throughput over time"),
        "Means of each interval; a line for each configured load.",
    );
    type Value = fn(&SeriesRow) -> f64;
    let values: [(&str, Value); 2] = [("IOPS", |row| row.iops), ("MB/s", |row| row.mb_per_second)];
    for (workload, levels) in workloads {
        for (unit, value) in values {
            let chart = Chart::new(
                format!("{workload} in {unit}"),
                Axis::new("time").time(),
                Axis::new(unit).from(0.0),
            );
            let line = |chart: Chart, (level, rows): (&u64, &Vec<&SeriesRow>)| {
                let points = rows.iter().map(|row| (row.from_seconds, value(row)));
                chart.with(Series::new(format!("{} %", f64::from_bits(*level)), Mark::Line, points))
            };
            page.chart(&levels.iter().fold(chart, line));
        }
    }
}

/// Effects of load, request size, random ratio and read ratio [TRACER Figures 9 to 11], each with its heading.
fn effects(modes: &[&Record], metered: bool) -> [(&'static str, Vec<Figure<'static>>); 4] {
    use Dimension::{Load, Random, Read, Size};
    let (few, many, what) = match metered {
        true => (IOPS_PER_WATT, MB_PER_KILOWATT, "Efficiency"),
        false => (IOPS, MB, "Throughput"),
    };
    let figure =
        |what, metric, x, by, at: &[(Dimension, f64)]| Figure { what, metric, x, by, at: at.to_vec() };
    let full = values(modes, Load).last().map(|&level| (Load, level));
    let with_full = |dimension| middle(modes, &[dimension]).into_iter().chain(full).collect::<Vec<_>>();

    let at = middle(modes, &[Random, Read]);
    let mut of_load: Vec<Figure<'_>> =
        [few, many].into_iter().map(|metric| figure(what, metric, Load, Size, &at)).collect();
    let others: [(&str, Metric); 3] = [
        ("Power", ("W", |r| r.watts)),
        ("Latency, 99th percentile", ("ms", |r| r.latency_p99_millis)),
        ("Temperature", ("°C", |r| r.temperature_celsius)),
    ];
    of_load.extend(others.into_iter().map(|(what, metric)| figure(what, metric, Load, Size, &at)));

    let of_size = [few, many].map(|metric| figure(what, metric, Size, Random, &with_full(Read))).into();

    let reads = values(modes, Read);
    let ends = BTreeSet::from_iter([reads.first(), reads.last()].into_iter().flatten().map(|v| v.to_bits()));
    let of_random: Vec<Figure<'_>> = ends
        .into_iter()
        .flat_map(|reads| {
            let at: Vec<_> = [(Read, f64::from_bits(reads))].into_iter().chain(full).collect();
            [few, many].map(|metric| figure(what, metric, Random, Size, &at))
        })
        .collect();

    let mut of_reads = vec![figure("Throughput", MB, Read, Random, &with_full(Size))];
    if metered {
        of_reads.extend([few, many].map(|metric| figure(what, metric, Read, Random, &with_full(Size))));
    }
    [
        ("load", of_load),
        ("request size", of_size),
        ("random requests", of_random),
        ("reads and writes", of_reads),
    ]
}

/// The charts of one campaign on one target: the effects of each dimension, of recorded traces that of the load; how
/// proportional the power of a workload is to its load, and its response times.
pub fn charts(records: &[Record]) -> Vec<Chart> {
    let runs: Vec<&Record> = records.iter().filter(|r| r.error.is_none() && !is_idle(r)).collect();
    let (modes, traces): (Vec<&Record>, Vec<&Record>) = runs.iter().partition(|r| is_mode(r));
    let metered = runs.iter().any(|r| r.watts.is_some());
    let effects = effects(&modes, metered);
    let mut charts: Vec<Chart> =
        effects.iter().flat_map(|(_, all)| all.iter().filter_map(|figure| figure.chart(&modes))).collect();
    let metrics = if metered { [IOPS_PER_WATT, MB_PER_KILOWATT] } else { [IOPS, MB] };
    charts.extend(metrics.into_iter().filter_map(|metric| of_traces(metric, &traces)));
    if let Some(workload) = shown_mode(&modes).or_else(|| traces.first().map(|r| r.workload.clone())) {
        charts.extend(proportion::chart(records, &workload));
        let of_workload: Vec<&Record> = runs.into_iter().filter(|r| r.workload == workload).collect();
        charts.extend(response_times(&workload, &of_workload));
    }
    charts
}

/// A metric of recorded traces against their load.
fn of_traces(metric: Metric, traces: &[&Record]) -> Option<Chart> {
    let names: BTreeSet<&str> = traces.iter().map(|r| r.workload.as_str()).collect();
    let y = Axis::new(labelled(metric.0, traces));
    let mut chart =
        Chart::new(format!("Recorded traces in {}", metric.0), Axis::new("load, % of the trace"), y);
    for name in names {
        let of_trace: Vec<&Record> = traces.iter().filter(|r| r.workload == name).copied().collect();
        let points = by_level(&of_trace).into_iter().map(|(level, records)| {
            (level, mean(records.iter().filter_map(|r| metric.1(r))).unwrap_or(f64::NAN))
        });
        chart = chart.with(Series::new(name, Mark::Line, points));
    }
    let drawn = chart.series.iter().flat_map(|series| &series.points).filter(|(_, y)| y.is_finite()).count();
    (drawn > 1).then_some(chart)
}

/// The distribution of response times as far as it is kept, a line for each load; means of the repetitions.
fn response_times(workload: &str, runs: &[&Record]) -> Option<Chart> {
    type Quantile = (f64, fn(&Record) -> Option<f64>);
    let quantiles: [Quantile; 5] = [
        (0.5, |r| r.latency_p50_millis),
        (0.9, |r| r.latency_p90_millis),
        (0.99, |r| r.latency_p99_millis),
        (0.999, |r| r.latency_p999_millis),
        (1.0, |r| r.latency_max_millis),
    ];
    let share = Axis::new("requests answered").percent().from(0.0).to(1.0);
    let mut chart =
        Chart::new(format!("Response times of {workload}"), Axis::new("response time").time().log(), share);
    for (level, records) in by_level(runs) {
        let at = |&(share, of): &Quantile| Some((mean(records.iter().filter_map(|r| of(r)))? / 1e3, share));
        let points: Vec<(f64, f64)> = quantiles.iter().filter_map(at).collect();
        if !points.is_empty() {
            chart = chart.with(Series::new(format!("{level} %"), Mark::Line, points));
        }
    }
    (!chart.is_empty()).then_some(chart)
}

/// All values of a dimension, ascending.
fn values(records: &[&Record], dimension: Dimension) -> Vec<f64> {
    let bits: BTreeSet<u64> = records.iter().filter_map(|r| dimension.of(r)).map(f64::to_bits).collect();
    bits.into_iter().map(f64::from_bits).collect()
}

/// The middle value of each dimension.
fn middle(records: &[&Record], dimensions: &[Dimension]) -> Vec<(Dimension, f64)> {
    let of = |&dimension| {
        let values = values(records, dimension);
        Some((dimension, *values.get(values.len().saturating_sub(1) / 2)?))
    };
    dimensions.iter().filter_map(of).collect()
}

/// Load control on recorded traces [TRACER Tables IV and V].
fn trace_tables(page: &mut Page, name: &str, traces: &[&Record]) {
    page.section(&format!("{name}: recorded traces"), "");
    let names: BTreeSet<&str> = traces.iter().map(|r| r.workload.as_str()).collect();
    for trace in names {
        let of_trace: Vec<&Record> = traces.iter().filter(|r| r.workload == trace).copied().collect();
        let rows: Vec<Vec<String>> = by_level(&of_trace)
            .into_iter()
            .map(|(level, records)| {
                let of = |get: fn(&Record) -> Option<f64>| mean(records.iter().filter_map(|r| get(r)));
                let (iops, bytes) = (of(|r| r.load_percent_iops), of(|r| r.load_percent_bytes));
                let accuracy = |measured: Option<f64>| number(measured.map(|m| m / level));
                vec![
                    level.to_string(),
                    number(iops),
                    accuracy(iops),
                    number(bytes),
                    accuracy(bytes),
                    number(of(|r| r.latency_p99_millis)),
                    number(of(|r| r.watts)),
                    number(of(|r| r.iops_per_watt)),
                ]
            })
            .collect();
        let header =
            ["load %", "measured, IOPS", "accuracy", "measured, bytes", "accuracy", "p99 ms", "W", "IOPS/W"];
        page.table(trace, &header, &rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(watts: Option<f64>) -> Vec<Record> {
        let mut runs = Vec::new();
        for (size, random, reads) in [(512, 0, 0), (512, 50, 0), (4096, 0, 0), (4096, 50, 0), (4096, 50, 100)]
        {
            for level in [10.0, 100.0] {
                runs.push(Record {
                    campaign: "c".into(),
                    target: "<t>".into(),
                    workload: Workload::Synthetic { size, random, reads }.name(),
                    load_percent: level,
                    // A run at a tenth falls short by a quarter.
                    load_percent_iops: Some(if level < 100.0 { 0.75 * level } else { level }),
                    request_bytes: Some(size.into()),
                    random_percent: Some(random.into()),
                    read_percent: Some(reads.into()),
                    iops: Some(7.0 * level),
                    mb_per_second: Some(level),
                    watts,
                    watts_source: watts.map(|_| "modelled".into()),
                    meters: watts.map(|_| "model".into()),
                    iops_per_watt: watts.map(|w| 7.0 * level / w),
                    mb_per_second_per_kilowatt: watts.map(|w| 1e3 * level / w),
                    ..Record::default()
                });
            }
        }
        runs
    }

    #[test]
    fn the_page_shows_every_effect_and_calls_modelled_watts_so() {
        let page = report(&runs(Some(50.0)), &[]);
        for title in [
            "Efficiency in IOPS/W by load (0 % random, 0 % reads)",
            "Efficiency in MB/s/kW by load (0 % random, 0 % reads)",
            "Efficiency in IOPS/W by request size (0 % reads, 100 % load)",
            "Accuracy of the load control",
            "Throughput of 4KiB-random50-read0 in IOPS",
            "Accuracy of the load of 4KiB-random50-read0",
            "Watts are modelled, not measured (model)",
            "IOPS/W, modelled watts",
            "MB/s/kW, modelled watts",
            ">4 KiB<",
        ] {
            assert!(page.contains(title), "{title}");
        }
        // Values, by hand: 7 IOPS per percent at 50 W; 1 MB/s per percent; a quarter short at a tenth.
        for value in [
            "4 KiB 10, 1.4<",
            "4 KiB 100, 14<",
            "512 B 10, 1.4<",
            "4 KiB 10, 200<",
            "median of the modes 10, 0.75<",
            "lowest 5 % 100, 1<",
            "IOPS 70<",
            "MB/s 100<",
        ] {
            assert!(page.contains(&format!("<title>{value}/title>")), "{value} is drawn nowhere");
        }
        assert!(!page.contains("reads and writes"), "the middle size has one read ratio only");
        assert!(page.contains("c/&lt;t&gt;") && !page.contains("Temperature"), "no chart without values");
        let linked = page.replace("http://www.w3.org/2000/svg", ""); // a name, never fetched
        assert!(!linked.contains("http://") && !linked.contains("https://"), "no network");
    }

    #[test]
    fn a_replay_at_100_percent_that_was_late_itself_is_named() {
        let mut runs = runs(None);
        assert!(!report(&runs, &[]).contains("was behind its trace itself"));
        for run in runs.iter_mut().filter(|run| run.load_percent == 100.0) {
            (run.repetition, run.length_seconds) = (1, Some(2.0));
            // 39 ms are within 2 % of two seconds.
            run.queue_p99_millis = Some(if run.read_percent == Some(100.0) { 190.0 } else { 39.0 });
        }
        let page = report(&runs, &[]);
        let said = "by up to 9.5 % of its length (4KiB-random50-read100): the loads of 2 runs, stored";
        assert!(page.contains(said), "{page}");
        runs.iter_mut().for_each(|run| run.load_percent_iops = None);
        let page = report(&runs, &[]);
        assert!(page.contains("by up to 9.5 % of its length (4KiB-random50-read100): no load"), "{page}");
    }

    #[test]
    fn idle_power_is_drawn_by_number_of_disks_and_in_no_mean() {
        let idle = |workload: &str, watts| Record {
            workload: workload.into(),
            load_percent: 0.0,
            request_bytes: None,
            iops: None,
            mb_per_second: None,
            watts: Some(watts),
            ..runs(None)[0].clone()
        };
        let mut runs = runs(Some(50.0));
        let without = report(&runs, &[]);
        runs.extend([idle("idle-0-disks", 60.0), idle("idle-6-disks", 131.5)]);
        let page = report(&runs, &[]);
        assert!(page.contains("Idle power by number of disks") && page.contains("Idle power: 131.5 W"));
        assert!(!without.contains("Idle power"));
        let table = |page: &str| {
            page[page.find("Means over all").unwrap()..].split("</table>").next().unwrap().to_owned()
        };
        assert_eq!(table(&page), table(&without));
    }

    #[test]
    fn what_was_not_measured_is_a_gap_in_a_line() {
        let mut all = Vec::new();
        for level in [10.0, 50.0, 100.0] {
            for run in runs(Some(50.0)).iter().filter(|run| run.load_percent == 10.0) {
                let per_watt = (level != 50.0).then_some(level);
                all.push(Record { load_percent: level, iops_per_watt: per_watt, ..run.clone() });
            }
        }
        let drawn = charts(&all);
        let of_load = drawn.iter().find(|chart| chart.y.label.starts_with("IOPS/W")).unwrap();
        let points = &of_load.series[0].points;
        assert_eq!((points[0], points[2]), ((10.0, 10.0), (100.0, 100.0)));
        assert!(points[1].0 == 50.0 && points[1].1.is_nan(), "{points:?}");
    }

    #[test]
    fn the_charts_of_a_part_end_with_its_power_curve_and_its_response_times() {
        let mut all = runs(Some(50.0));
        for run in &mut all {
            run.latency_p50_millis = Some(2.0);
            run.latency_max_millis = Some(8.0);
        }
        all.push(Record {
            workload: "idle".into(),
            load_percent: 0.0,
            watts: Some(40.0),
            ..Record::default()
        });
        let drawn = charts(&all);
        let titles: Vec<&str> = drawn.iter().map(|chart| chart.title.as_str()).collect();
        for title in
            ["Efficiency in IOPS/W by load (0 % random, 0 % reads)", "Power and load of 4KiB-random50-read0"]
        {
            assert!(titles.contains(&title), "{title} is not in {titles:?}");
        }
        let different: BTreeSet<&str> = titles.iter().copied().collect();
        assert_eq!(different.len(), titles.len(), "each title names one chart: {titles:?}");
        let power = &drawn[drawn.len() - 2];
        // A tenth fell short by a quarter.
        assert_eq!(power.series[0].points, [(0.0, 40.0), (7.5, 50.0), (100.0, 50.0)]);
        assert_eq!(power.series[1].points, [(0.0, 0.0), (100.0, 50.0)]);
        assert_eq!(power.y.label, "W, modelled watts");
        let times = &drawn[drawn.len() - 1];
        assert_eq!((times.series.len(), &times.series[0].points[..]), (2, &[(0.002, 0.5), (0.008, 1.0)][..]));
        let web = |level| Record { workload: "web".into(), load_percent: level, ..runs(None)[0].clone() };
        let traces = charts(&[web(50.0), web(100.0)]);
        assert_eq!(
            (traces[0].title.as_str(), traces[0].series[0].points.len()),
            ("Recorded traces in IOPS", 2)
        );
        assert!(charts(&[]).is_empty());
    }

    #[test]
    fn without_a_meter_it_says_so_and_shows_throughput() {
        let mut runs = runs(None);
        runs[0].error = Some("no".into());
        let page = report(&runs, &[]);
        assert!(page.contains("No power was read") && !page.contains("Efficiency ("));
        assert!(
            page.contains("Throughput in IOPS by load (0 % random, 0 % reads)")
                && page.contains("1 more failed")
        );
        assert!(report(&[], &[]).contains("0 runs"));
    }

    #[test]
    fn traces_get_the_tables_of_the_paper() {
        let trace =
            Record { workload: "web".into(), load_percent_bytes: Some(10.7), ..runs(None)[0].clone() };
        let row = |load_percent, from_seconds| SeriesRow {
            campaign: "c".into(),
            target: "<t>".into(),
            workload: "web".into(),
            load_percent,
            repetition: 1,
            from_seconds,
            seconds: 60.0,
            iops: load_percent,
            mb_per_second: 1.0,
            failed_requests: 0,
        };
        let page = report(&[trace], &[row(20.0, 0.0), row(20.0, 60.0), row(100.0, 0.0), row(100.0, 60.0)]);
        assert!(page.contains("recorded traces") && page.contains("1.07"), "{page}");
        assert!(page.contains("web in IOPS") && page.contains("web in MB/s"), "{page}");
        assert!(page.contains("20 %") && page.contains("100 %"), "a line for each load");
    }

    #[test]
    fn what_a_command_stated_is_not_called_measured() {
        let mut runs = runs(Some(50.0));
        runs.iter_mut().for_each(|r| r.watts_source = Some("stated".into()));
        let page = report(&runs, &[]);
        assert!(page.contains("stated by a command") && page.contains("stated watts"), "{page}");
        assert!(!page.contains("Watts are measured"));
    }
}
