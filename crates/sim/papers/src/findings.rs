//! Results of a paper's evaluation: rows, tables and charts, each figure beside the paper's; as a page, CSV and text.

use ebb_output::{Chart, Mark, Page, Series};
use ebb_sim::load::{LoadError, SeriesError};
use ebb_sim::request::SimError;
use ebb_trace::Trace;
use serde::Serialize;
use std::fmt::Write;

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
    #[error("{name}: {error}")]
    Mirror { name: String, error: ebb_sim::mirror::MirrorError },
    #[error("{name}: {error}")]
    Coded { name: String, error: ebb_sim::coded::CodedError },
    #[error(transparent)]
    Daily(#[from] ebb_trace::DailyError),
    #[error("the metadata state could not be set up: {0}; this is a bug of Ebb")]
    Meta(String),
}

/// One figure of the paper and ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub what: String,
    /// As of the values; `%`: they are shares of 1. People see shares in percent, and `W/B` as W/TB.
    pub unit: &'static str,
    /// Absent: the paper gives none, or only plots it.
    pub paper: Option<f64>,
    pub here: Option<f64>,
    /// Lowest and highest value that `here` may have; absent: it may have any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<[f64; 2]>,
}

impl Row {
    /// Whether it has left its band. A value that is missing has.
    pub fn is_outside(&self) -> bool {
        self.band.is_some_and(|[least, most]| !self.here.is_some_and(|here| (least..=most).contains(&here)))
    }

    fn band_text(&self) -> String {
        let Some([least, most]) = self.band else { return String::new() };
        let ends = if least == most {
            number(Some(least), self.unit)
        } else {
            format!("{} to {}", number(Some(least), self.unit), number(Some(most), self.unit))
        };
        if self.is_outside() { format!("outside {ends}") } else { ends }
    }
}

/// Numbers in rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    pub caption: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(
        caption: &str,
        header: impl IntoIterator<Item = impl Into<String>>,
        rows: Vec<Vec<String>>,
    ) -> Table {
        Table { caption: caption.to_owned(), header: header.into_iter().map(Into::into).collect(), rows }
    }
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
    pub fn new(name: &str, title: &str, about: impl Into<String>) -> Experiment {
        Experiment {
            name: name.to_owned(),
            title: title.to_owned(),
            about: about.into(),
            rows: Vec::new(),
            tables: Vec::new(),
            charts: Vec::new(),
        }
    }

    pub fn row(
        &mut self,
        what: impl Into<String>,
        unit: &'static str,
        paper: Option<f64>,
        here: Option<f64>,
    ) {
        self.rows.push(Row { what: what.into(), unit, paper, here, band: None });
    }

    /// A row that the paper has no figure for.
    pub fn ours(&mut self, what: impl Into<String>, unit: &'static str, here: f64) {
        self.row(what, unit, None, Some(here));
    }

    /// The last row must lie within this band.
    pub fn hold(&mut self, band: [f64; 2]) {
        self.rows.last_mut().expect("a row to hold").band = Some(band);
    }
}

/// A chart with bars, by name.
pub fn with_bars(
    chart: Chart,
    bars: impl IntoIterator<Item = (impl Into<String>, Vec<(f64, f64)>)>,
) -> Chart {
    bars.into_iter().fold(chart, |chart, (name, bars)| chart.with(Series::new(name, Mark::Bars, bars)))
}

/// What is said of a trace that the user gave.
pub fn given(trace: &Trace) -> String {
    let (count, seconds) = (trace.requests.len(), trace.span().as_secs_f64());
    format!("Given: {}, {count} requests in {seconds:.0} s.", trace.name)
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    pub paper: &'static str,
    /// How it is repeated.
    #[serde(skip)]
    pub about: &'static str,
    /// Which inputs were replaced by which.
    pub inputs: Vec<String>,
    pub experiments: Vec<Experiment>,
}

pub(super) fn number(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return "–".into() };
    let (value, unit) = match unit {
        "%" => (value * 100.0, " %".to_owned()),
        "W/B" => (value * 1e12, " W/TB".to_owned()),
        _ => (value, format!(" {unit}")),
    };
    let digits = if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).clamp(0, 3) as usize };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{}", unit.trim_end())
}

impl Findings {
    /// The system's name: the paper's title up to its colon.
    fn name(&self) -> &str {
        self.paper.split(':').next().unwrap_or(self.paper)
    }

    /// Rows that have left their bands.
    pub fn outside(&self) -> impl Iterator<Item = (&str, &Row)> {
        let rows = self.experiments.iter().flat_map(|e| e.rows.iter().map(|row| (e.name.as_str(), row)));
        rows.filter(|(_, row)| row.is_outside())
    }

    /// Everything as one HTML file.
    pub fn page(&self) -> String {
        let lead = format!(
            "{}. {}

{}",
            self.paper,
            self.about,
            self.inputs.join(" ")
        );
        let mut page = Page::new(format!("{}'s evaluation, repeated", self.name()), lead);
        for experiment in &self.experiments {
            page.section(&format!("{}: {}", experiment.name, experiment.title), &experiment.about);
            experiment.charts.iter().for_each(|chart| {
                page.chart(chart);
            });
            if !experiment.rows.is_empty() {
                let banded = experiment.rows.iter().any(|row| row.band.is_some());
                let header: &[&str] =
                    if banded { &["", "paper", "here", "band"] } else { &["", "paper", "here"] };
                let cells = |row: &Row| {
                    let values = [number(row.paper, row.unit), number(row.here, row.unit)];
                    let band = banded.then(|| row.band_text());
                    std::iter::once(row.what.clone()).chain(values).chain(band).collect()
                };
                let rows: Vec<Vec<String>> = experiment.rows.iter().map(cells).collect();
                page.table("Beside the paper", header, &rows);
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
        let mut csv = String::from("experiment,what,unit,paper,here,least,most\n");
        for experiment in &self.experiments {
            for row in &experiment.rows {
                let (paper, here) = (cell(row.paper), cell(row.here));
                let (least, most) = (cell(row.band.map(|b| b[0])), cell(row.band.map(|b| b[1])));
                let (name, what) = (quote(&experiment.name), quote(&row.what));
                let unit = if row.unit == "%" { "share" } else { row.unit };
                let _ = writeln!(csv, "{name},{what},{unit},{paper},{here},{least},{most}");
            }
        }
        csv
    }

    /// The rows as a table for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.paper, self.inputs.join("\n"));
        for experiment in &self.experiments {
            let _ = writeln!(text, "\n{}: {}", experiment.name, experiment.title);
            if !experiment.rows.is_empty() {
                let _ = writeln!(text, "  {:64}{:>14}{:>14}", "", "paper", "here");
            }
            for row in &experiment.rows {
                let (paper, here) = (number(row.paper, row.unit), number(row.here, row.unit));
                let line = format!("  {:64}{paper:>14}{here:>14}  {}", row.what, row.band_text());
                let _ = writeln!(text, "{}", line.trim_end());
            }
        }
        text
    }
}
