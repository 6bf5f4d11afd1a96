//! What the lab's page shows and asks for. Its figures come from the results of evaluations, its campaigns are run by
//! the program that the command line runs: [`Lab`] is the way to both.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::future::Future;

/// The results and the campaigns of a lab.
pub trait Lab: Send + Sync + 'static {
    /// Reads; never changes anything.
    fn answer(&self, question: Question) -> impl Future<Output = Result<Answer, LabRefusal>> + Send;

    /// Does what an administrator has asked for.
    fn act(&self, act: LabAct) -> impl Future<Output = Result<(), LabRefusal>> + Send;

    /// What is so now, with the points of the present campaign from number `after` on. Called twice a second by each
    /// open page: from memory, unless the results have changed.
    fn look(&self, after: u64) -> impl Future<Output = LabView> + Send;
}

/// What a page asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// The runs: JSON, as `ebb lab eval export --json`.
    Runs(Which),
    /// The same as CSV.
    Csv(Which),
    /// The charts of the runs: JSON of [`Figures`].
    Figures(Which),
    /// One of them as SVG, by its place among them.
    Svg(Which, usize),
    /// Two campaigns side by side: JSON of [`Compared`].
    Compare(Sides),
    /// One of its charts as SVG.
    CompareSvg(Sides, usize),
    /// The command lines that repeat a run: JSON of a list of texts.
    Repeat(OneRun),
    /// What may be put into a matrix: JSON of [`Offers`].
    Offers,
    /// What a matrix would run, and for how long: JSON of [`Planned`].
    Plan(Box<Wish>),
}

/// An answer, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its media type.
    pub kind: &'static str,
    pub text: String,
}

impl Answer {
    pub fn json(value: &impl Serialize) -> Answer {
        let text = serde_json::to_string(value).expect("plain data can be written as JSON");
        Answer { kind: "application/json", text }
    }
}

/// Which runs; an empty text holds for all.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Which {
    pub campaign: String,
    pub target: String,
    /// Part of the workload's name.
    pub workload: String,
    /// Conditions such as `4KiB`, `45..55` or `>=90`.
    pub size: String,
    pub random: String,
    pub reads: String,
    pub load: String,
    /// When it was started, as milliseconds since 1970: at or after `from`, before `to`.
    pub from: String,
    pub to: String,
}

/// Two campaigns, each `CAMPAIGN/TARGET`, and the workload of the charts; empty: one that both have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sides {
    pub a: String,
    pub b: String,
    #[serde(default)]
    pub workload: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneRun {
    pub campaign: String,
    pub target: String,
    pub workload: String,
    pub load_percent: f64,
}

/// Charts, and what there is to say of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    pub figures: Vec<Figure>,
    /// How proportional the power of each workload is, where that is known: as in `ebb lab eval show --json`.
    pub proportions: Value,
    /// Why there is no chart, or not of everything.
    pub note: Option<String>,
}

/// One chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figure {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    pub label: String,
    /// Names of the values 0, 1, 2 …; empty: numbers.
    pub names: Vec<String>,
    pub log: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Line {
    pub name: String,
    /// It bounds the spread of the line before it.
    pub bound: bool,
    /// By x; `null` is a gap: it was not measured.
    pub points: Vec<(f64, Option<f64>)>,
}

/// Two campaigns side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Compared {
    /// As `ebb lab eval compare --json`.
    pub comparison: Value,
    /// Those that both have.
    pub workloads: Vec<String>,
    pub figures: Vec<Figure>,
}

/// What the operator lets the page evaluate, and with what.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Offers {
    pub targets: Vec<String>,
    pub meters: Vec<String>,
    pub traces: Vec<OfferedTrace>,
    /// Why there are no traces.
    pub traces_note: Option<String>,
}

/// A trace of the depository. Shares are from 0 to 1; what is not known is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OfferedTrace {
    /// In the depository.
    pub file: String,
    pub requests: u64,
    pub span_seconds: f64,
    pub requests_per_second: Option<f64>,
    pub read_share: Option<f64>,
    pub random_share: Option<f64>,
    pub mean_size_bytes: Option<f64>,
    pub peak_to_mean: Option<f64>,
}

/// The matrix that somebody wishes: the keys of a matrix file that a page may set. Values are what the form has; the
/// reader of matrix files checks them. It is written as TOML, which leaves out what is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    pub name: Value,
    pub procedure: Option<Value>,
    pub run_seconds: Option<Value>,
    pub settle_seconds: Option<Value>,
    pub idle_seconds: Option<Value>,
    pub repetitions: Option<Value>,
    pub levels: Option<Value>,
    pub filter: Option<Value>,
    /// Set by the program, not by a page.
    #[serde(skip_deserializing)]
    pub depository: Option<String>,
    pub synthetic: Option<WishedModes>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<WishedTrace>,
    #[serde(default)]
    pub target: Vec<WishedTarget>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WishedModes {
    pub sizes: Value,
    pub random: Value,
    pub reads: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WishedTrace {
    pub name: Value,
    /// As in [`OfferedTrace::file`].
    pub file: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WishedTarget {
    pub name: Value,
    /// One of [`Offers::targets`].
    pub at: String,
    pub size_mib: Option<Value>,
    /// What is on it may be destroyed: the same consent as in a matrix file, and never assumed.
    #[serde(default)]
    pub overwrite: bool,
    /// Some of [`Offers::meters`].
    #[serde(default)]
    pub meters: Vec<String>,
}

/// A matrix before it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Planned {
    /// The file, as it would be written.
    pub text: String,
    pub runs: u64,
    /// Of them with a result.
    pub found: u64,
    pub seconds: f64,
    /// What runs it.
    pub command: String,
}

/// What an administrator does. In JSON `{"create": {"matrix": {…}}}`, `{"start": {"campaign": "c"}}`, `{"pause": …}`,
/// `{"delete": …}`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LabAct {
    /// Keep a matrix; it does not start.
    Create { matrix: Box<Wish> },
    /// Run what has no result: at first, and after a pause.
    Start { campaign: String },
    /// End the program that runs it: the run in progress is repeated later.
    Pause { campaign: String },
    /// Remove its matrix and its results.
    Delete { campaign: String },
}

/// For the log.
impl fmt::Display for LabAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabAct::Create { matrix } => write!(f, "keep the matrix {}", matrix.name),
            LabAct::Start { campaign } => write!(f, "start {campaign:?}"),
            LabAct::Pause { campaign } => write!(f, "pause {campaign:?}"),
            LabAct::Delete { campaign } => write!(f, "delete {campaign:?}, and its results"),
        }
    }
}

/// Why something is not answered or not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabRefusal {
    /// One field of a form is wrong.
    #[error("{}: {}", .0.key, .0.problem)]
    Field(FieldFault),
    #[error("{0}")]
    Refused(String),
}

/// What is wrong with a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldFault {
    /// As in a matrix file: `levels`, `synthetic.sizes`, `target.size_mib`.
    pub key: String,
    /// Of several of its kind the one, from 0.
    pub place: usize,
    pub problem: String,
}

/// What is so now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LabView {
    pub results: Results,
    pub campaigns: Vec<Campaign>,
    /// Of the present campaign, or of the last one.
    pub points: Vec<Point>,
    /// The number of the first of these points.
    pub first: u64,
}

/// The results file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Results {
    pub file: String,
    /// Its last change; `null`: there is none.
    pub changed_unix_millis: Option<u64>,
    /// Why it cannot be read, and what to do.
    pub trouble: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It has no result yet.
    #[default]
    Planned,
    Running,
    /// Some runs have no result: paused, or ended before its end.
    Unfinished,
    Done,
    /// Results whose matrix is not in the lab's folder.
    ResultsOnly,
}

/// A matrix, or results.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Campaign {
    pub name: String,
    pub phase: Phase,
    pub targets: Vec<String>,
    /// Runs with a result.
    pub done: u64,
    /// Runs that failed, and are repeated when it is started again.
    pub failed: u64,
    /// Runs of its matrix.
    pub total: Option<u64>,
    pub seconds_left: Option<f64>,
    /// The run in progress.
    pub present: Option<String>,
    /// What it said when it ended, or what is wrong with its matrix.
    pub said: Option<String>,
    /// What runs it.
    pub command: Option<String>,
}

/// A run in progress; what is not measured is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    pub at_unix_millis: u64,
    /// Absent: nothing runs from here on.
    pub run: Option<String>,
    pub iops: Option<f64>,
    pub mb_per_second: Option<f64>,
    pub response_millis: Option<f64>,
    /// Of all meters together.
    pub watts: Option<f64>,
    /// Of the hottest channel.
    pub celsius: Option<f64>,
    pub load_percent: Option<f64>,
    pub achieved_percent: Option<f64>,
    pub channels: Vec<Channel>,
}

/// What one channel of a meter reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Channel {
    /// With its meter's, and how far it can be trusted.
    pub name: String,
    /// `W` or `°C`.
    pub unit: String,
    pub value: Option<f64>,
}
