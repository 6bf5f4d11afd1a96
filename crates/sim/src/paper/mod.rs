//! Repeats a paper's evaluation with the production decision makers on models: every figure next to the paper's.
//! [Sierra §3.3, §4]
//!
//! The Hotmail, Messenger and Cambridge traces are not public; load series and traces of other services replace them.
//! The question, the procedure and the convention are the same, but not the input: a figure that differs from the
//! paper's is no contradiction if the input determines it. Layout, metadata and rebuild need no trace.
//!
//! An [`Experiment`] is plain data: rows to compare, tables and charts. [`Findings`] turn them into a page, CSV and text.

mod forecasts;
mod layouts;
mod power;
mod rebuild;
mod requests;

use crate::load::{LoadError, Series, SeriesError};
use crate::request::SimError;
use crate::request::workload::Day;
use ebb_report::{Chart, Page};
use ebb_trace::Trace;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Replacements for the paper's inputs.
pub struct Inputs {
    /// Load of whole services; their names are shown.
    pub series: Vec<(String, Series)>,
    /// Block-device requests for the experiments on the testbed. `None`: a synthetic day.
    pub trace: Option<Trace>,
    /// Requests of the synthetic day.
    pub requests: u64,
    /// Bytes on the server that is rebuilt; 200 GB in the paper.
    pub rebuild_bytes: u64,
    /// Sizes of the clusters in which one server is lost: N/r - 1 servers rebuild it.
    pub rebuild_servers: Vec<u16>,
    pub seed: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    #[error("{name}: {error}")]
    Load { name: String, error: LoadError },
    #[error("{name}: {error}")]
    Series { name: String, error: SeriesError },
    #[error("{name} has no seven days without a gap: give a longer series")]
    NoWeek { name: String },
    #[error(transparent)]
    Layout(#[from] ebb_gear::LayoutError),
    #[error(transparent)]
    Simulation(#[from] SimError),
    #[error("the metadata state could not be set up: {0}; this is a bug of Ebb")]
    Meta(String),
}

/// One figure of the paper and ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub what: String,
    /// `%` for shares, with the value in percent.
    pub unit: &'static str,
    /// Absent: the paper gives none, or only plots it.
    pub paper: Option<f64>,
    pub here: Option<f64>,
}

/// Numbers in rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    pub caption: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// One table or figure of the paper.
#[derive(Clone, Debug, Serialize)]
pub struct Experiment {
    /// The paper's name for it.
    pub name: String,
    pub title: String,
    /// The procedure, and where it differs from the paper.
    pub about: String,
    pub rows: Vec<Row>,
    pub tables: Vec<Table>,
    /// Shown in the page; the JSON has their points.
    #[serde(serialize_with = "points_of")]
    pub charts: Vec<Chart>,
}

fn points_of<S: serde::Serializer>(charts: &[Chart], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Drawn<'a> {
        chart: &'a str,
        x: &'a str,
        y: &'a str,
        series: &'a str,
        points: &'a [(f64, f64)],
    }
    let mut all = Vec::new();
    for chart in charts {
        let (x, y) = (chart.x.label.as_str(), chart.y.label.as_str());
        for series in &chart.series {
            all.push(Drawn { chart: &chart.title, x, y, series: &series.name, points: &series.points });
        }
    }
    all.serialize(serializer)
}

impl Experiment {
    fn new(name: &str, title: &str, about: String) -> Experiment {
        Experiment {
            name: name.to_owned(),
            title: title.to_owned(),
            about,
            rows: Vec::new(),
            tables: Vec::new(),
            charts: Vec::new(),
        }
    }

    fn row(&mut self, what: impl Into<String>, unit: &'static str, paper: Option<f64>, here: Option<f64>) {
        self.rows.push(Row { what: what.into(), unit, paper, here });
    }
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    pub paper: &'static str,
    /// Which inputs were replaced by which.
    pub inputs: Vec<String>,
    pub experiments: Vec<Experiment>,
}

const PAPER: &str = "Sierra: practical power-proportionality for data center storage (EuroSys 2011)";

/// Servers of the load-level experiments, and replicas: the paper's testbed had thirty servers of three.
const SERVERS: u32 = 30;
const REPLICAS: u8 = 3;

/// Runs all experiments. `tell` gets the present one and its progress, 0 to 1.
pub fn sierra(inputs: &Inputs, tell: &mut dyn FnMut(&str, f64)) -> Result<Findings, PaperError> {
    let mut experiments = Vec::new();
    let mut begin = |name: &str| tell(name, 0.0);
    begin("layouts (Table 1)");
    experiments.push(layouts::power_down_and_rebuild(inputs.seed)?);
    begin("metadata (§4.5)");
    experiments.push(layouts::metadata_size(inputs.seed)?);
    let series = hourly(&inputs.series)?;
    begin("forecasts (Figure 8)");
    experiments.push(forecasts::errors(&series)?);
    begin("power (Figure 9)");
    experiments.push(power::oracle_power(&series)?);
    begin("the trace (Figures 10 and 11, Tables 2 and 3)");
    let made_up = inputs.trace.is_none().then(|| made_up_day(inputs));
    let trace = inputs.trace.as_ref().or(made_up.as_ref()).expect("one of the two is there");
    experiments.extend(requests::testbed(trace, inputs.seed, tell)?);
    experiments.push(rebuild::rates(inputs.rebuild_bytes, &inputs.rebuild_servers, inputs.seed, tell)?);
    let mut holders = vec![
        "The Hotmail, Messenger and Cambridge traces are not public; what follows stands in for them."
            .to_owned(),
    ];
    holders.extend(inputs.series.iter().map(|(name, series)| {
        let days = series.values.len() as f64 / series.per_day() as f64;
        format!("Load series {name}: {days:.1} days in steps of {} s.", series.interval.as_secs())
    }));
    let hours = trace.span().as_secs_f64() / 3600.0;
    holders.push(format!("Requests: {} ({} in {hours:.1} hours).", trace.name, trace.requests.len()));
    Ok(Findings { paper: PAPER, inputs: holders, experiments })
}

fn made_up_day(inputs: &Inputs) -> Trace {
    Day { requests: inputs.requests, seed: inputs.seed, ..Day::default() }.trace()
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY_HOURS: usize = 24;
/// Training and test days of Figure 8.
const WEEK: usize = 7 * DAY_HOURS;

/// A series in hours, and its weeks (seven whole days) without a gap.
struct Hourly {
    name: String,
    series: Series,
    weeks: Vec<Vec<f64>>,
}

fn hourly(inputs: &[(String, Series)]) -> Result<Vec<Hourly>, PaperError> {
    let one = |(name, series): &(String, Series)| {
        let named = |error| PaperError::Series { name: name.clone(), error };
        let series =
            if series.interval == HOUR { series.clone() } else { series.folded(HOUR).map_err(named)? };
        // A series may lack an hour here and there: a week restarts at the next whole day.
        let mut weeks = Vec::new();
        let mut first = 0;
        while let Some(hours) = series.values.get(first..first + WEEK) {
            match hours.iter().copied().collect::<Option<Vec<f64>>>() {
                Some(week) => {
                    weeks.push(week);
                    first += WEEK;
                }
                None => first += DAY_HOURS,
            }
        }
        if weeks.is_empty() {
            return Err(PaperError::NoWeek { name: name.clone() });
        }
        Ok(Hourly { name: name.clone(), series, weeks })
    };
    inputs.iter().map(one).collect()
}

/// Two synthetic services, two weeks each, for users without a series: one whose load drops slightly at night, and one
/// used in office hours.
pub fn made_up_series(seed: u64) -> Vec<(String, Series)> {
    let mut random = ebb_types::Random::new(seed);
    let mut noise = move || 0.95 + 0.1 * random.below(1000) as f64 / 1000.0;
    let mut make = |name: &str, load: &dyn Fn(usize, usize) -> f64| {
        let values =
            (0..2 * WEEK).map(|hour| Some(load(hour / DAY_HOURS, hour % DAY_HOURS) * noise())).collect();
        (name.to_owned(), Series { interval: HOUR, values })
    };
    let wave = |hour: usize| 0.65 - 0.35 * ((hour as f64 - 4.0) / 24.0 * std::f64::consts::TAU).cos();
    vec![
        make("made-up service", &|_, hour| 1000.0 * wave(hour)),
        make("made-up office", &|day, hour| {
            let at_work = day % 7 < 5 && (8..18).contains(&hour);
            if at_work { 800.0 } else { 60.0 }
        }),
    ]
}

fn number(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return "–".into() };
    let (value, unit) =
        if unit == "%" { (value * 100.0, " %".to_owned()) } else { (value, format!(" {unit}")) };
    let digits = if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).clamp(0, 3) as usize };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{}", unit.trim_end())
}

impl Findings {
    /// Everything as one HTML file.
    pub fn page(&self) -> String {
        let lead = format!(
            "{PAPER}. Its evaluation again, with Ebb's own layout, gear scheduler and protocol on modelled servers, disks \
             and networks. Nothing here is measured.\n\n{}",
            self.inputs.join(" ")
        );
        let mut page = Page::new("Sierra's evaluation, repeated", lead);
        for experiment in &self.experiments {
            page.section(&format!("{}: {}", experiment.name, experiment.title), &experiment.about);
            experiment.charts.iter().for_each(|chart| {
                page.chart(chart);
            });
            if !experiment.rows.is_empty() {
                let cells = |row: &Row| {
                    vec![row.what.clone(), number(row.paper, row.unit), number(row.here, row.unit)]
                };
                let rows: Vec<Vec<String>> = experiment.rows.iter().map(cells).collect();
                page.table("Beside the paper", &["", "paper", "here"], &rows);
            }
            for table in &experiment.tables {
                let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
                page.table(&table.caption, &header, &table.rows);
            }
        }
        page.render()
    }

    /// One line per figure; the first line names the columns.
    pub fn csv(&self) -> String {
        let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let cell = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let mut csv = String::from("experiment,what,unit,paper,here\n");
        for experiment in &self.experiments {
            for row in &experiment.rows {
                let (paper, here) = (cell(row.paper), cell(row.here));
                let (name, what) = (quote(&experiment.name), quote(&row.what));
                let unit = if row.unit == "%" { "share" } else { row.unit };
                let _ = writeln!(csv, "{name},{what},{unit},{paper},{here}");
            }
        }
        csv
    }

    /// The rows as a table for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{PAPER}\n{}\n", self.inputs.join("\n"));
        for experiment in &self.experiments {
            let _ = writeln!(text, "\n{}: {}", experiment.name, experiment.title);
            if !experiment.rows.is_empty() {
                let _ = writeln!(text, "  {:64}{:>14}{:>14}", "", "paper", "here");
            }
            for row in &experiment.rows {
                let (paper, here) = (number(row.paper, row.unit), number(row.here, row.unit));
                let _ = writeln!(text, "  {:64}{paper:>14}{here:>14}", row.what);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
