//! The file that defines an evaluation: workloads × load levels × targets × repetitions.
//!
//! Everything is checked when the file is read, and a mistake is reported with its line and key: an evaluation runs
//! unattended for hours.

use super::evidence::Instrumented;
use super::procedure::{Followed, Phase, Procedure, Times};
use super::workload::Workload;
use ebb_replay::drive::TargetSpec;
use ebb_types::{numbers_in_words, parse_bytes};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Modes of a matrix: TRACER's has 125. One that asks for more is a mistake, or wants to exhaust memory.
const MODES_MOST: usize = 10_000;

/// Most runs of one matrix: twelve days of one-second runs; more is surely a mistake.
pub const RUNS_MAX: u64 = 1_000_000;

#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    #[error("cannot read the matrix {path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{path}: {}", numbers_in_words(&.error.to_string()))]
    Parse { path: PathBuf, error: Box<toml::de::Error> },
    #[error("{path}, line {line}: {key}: {problem}")]
    Value { path: PathBuf, line: usize, key: String, problem: String },
}

/// How a workload is reduced or scaled to a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    /// [`ebb_trace::BalancedFilter`]: any level above 0 and up to 100 %.
    #[default]
    Balanced,
    /// [`ebb_trace::TracerFilter`]: 10 % to 100 % in steps of 10.
    Tracer,
    /// [`ebb_trace::Scaled`]: all requests, closer or further apart; 1 % to 1000 %.
    Scale,
}

impl Filter {
    pub fn name(self) -> &'static str {
        match self {
            Filter::Balanced => "balanced",
            Filter::Tracer => "tracer",
            Filter::Scale => "scale",
        }
    }

    /// Why it cannot produce that level.
    pub(super) fn problem(self, percent: f64) -> Option<&'static str> {
        let fits = match self {
            Filter::Balanced => percent > 0.0 && percent <= 100.0,
            Filter::Tracer => (10.0..=100.0).contains(&percent) && percent % 10.0 == 0.0,
            Filter::Scale => (1.0..=1000.0).contains(&percent),
        };
        (!fits).then_some(match self {
            Filter::Balanced => "is not above 0 and up to 100 percent (filter \"scale\" goes to 1000)",
            Filter::Tracer => {
                "is not one of 10, 20 … 100 percent, the levels of TRACER's filter; use filter \"balanced\""
            }
            Filter::Scale => "is not between 1 and 1000 percent",
        })
    }
}

/// Who records what a peak run issues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collector {
    /// The generator itself.
    #[default]
    Program,
    /// The kernel, through blktrace: only of block devices, and where the kernel allows it.
    Blktrace,
}

impl Collector {
    fn is_program(&self) -> bool {
        *self == Collector::Program
    }
}

/// A machine that runs `ebb lab agent`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    pub name: String,
    /// `host:port`
    pub address: String,
    pub secret_file: PathBuf,
}

/// What is evaluated, from where it is driven, and where its power is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    pub name: String,
    /// As [`TargetSpec`] reads it.
    pub at: String,
    /// Size of a file created for the evaluation; other targets have their own.
    pub size_bytes: u64,
    /// Data on a device may be destroyed.
    pub overwrite: bool,
    /// The agent that generates its load; `None`: this machine.
    pub generator: Option<String>,
    /// Meters, as `ebb lab meter` names them. Empty: no power is read.
    pub meters: Vec<String>,
    /// The agent that has the meters; `None`: this machine.
    pub meter_agent: Option<String>,
    /// Numbers of disks with which its idle power is measured, in this order; empty: only as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<u32>,
    /// Leaves the target with `{disks}` disks: a command of this machine's shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_disks: Option<String>,
    /// What is known of its meters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instrumented: Option<Instrumented>,
}

/// Settings of every run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Length of one run.
    pub run_seconds: f64,
    /// Length of the run that finds a synthetic workload's peak, and of its trace: at least that of a run.
    pub peak_seconds: f64,
    /// Idle time before every run.
    pub settle_seconds: f64,
    pub filter: Filter,
    /// Requests kept in flight while the peak is measured.
    pub depth: u32,
    pub seed: u64,
    /// Length of the intervals of which longer runs keep the throughput.
    pub interval_seconds: u32,
    /// Length of the runs that measure idle power; `None`: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Collector::is_program")]
    pub collector: Collector,
    /// A recognised procedure, which says what is run and for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procedure: Option<Followed>,
}

/// A file to begin with, for `ebb lab eval init`.
pub const EXAMPLE: &str = include_str!("../../../../examples/matrix.toml");

/// A checked matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Name of its results.
    pub name: String,
    pub settings: Settings,
    pub workloads: Vec<Workload>,
    /// In percent of the workload's trace. The first is 100 %: the load of the others is measured against it.
    pub levels: Vec<f64>,
    pub repetitions: u32,
    pub targets: Vec<Target>,
    pub agents: Vec<AgentSpec>,
    /// Where the traces of this machine's peak runs are kept.
    pub depository: PathBuf,
}

impl Matrix {
    /// Reads and checks a file. Paths of secrets, and of traces that this machine replays, are relative to it. `scale`:
    /// of the times of a procedure; 1 otherwise.
    pub fn load(path: &Path, scale: f64) -> Result<Matrix, MatrixError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| MatrixError::Read { path: path.to_owned(), error })?;
        Matrix::parse(path, &text, scale)
    }

    /// `path` is the file of the text, for messages and relative paths.
    pub fn parse(path: &Path, text: &str, scale: f64) -> Result<Matrix, MatrixError> {
        let raw: Raw = toml::from_str(text)
            .map_err(|error| MatrixError::Parse { path: path.to_owned(), error: Box::new(error) })?;
        Check { path, text, scale }.matrix(raw)
    }

    /// Whether a campaign, a target or a trace may have this name: it is part of file names, too.
    pub fn is_name(text: &str) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        (1..=64).contains(&text.len()) && text.chars().all(plain)
    }

    /// The phases of a procedure that has some, in their order, on every target; such a matrix has no workloads and
    /// levels.
    pub fn phases(&self) -> Vec<Phase> {
        self.settings.procedure.map(|followed| followed.phases()).unwrap_or_default()
    }

    /// Number of runs, idle ones included, without those that find the peaks.
    pub fn runs(&self) -> u64 {
        let product = [self.targets.len(), self.workloads.len(), self.levels.len()];
        let idle: usize = self.targets.iter().map(|target| self.idle(target).len()).sum();
        let phases = (self.targets.len() * self.phases().len()) as u64;
        phases
            + (product.iter().map(|&n| n as u64).product::<u64>() + idle as u64) * u64::from(self.repetitions)
    }

    /// The numbers of disks with which a target's idle power is measured; `None`: as it is. Nothing without meters.
    pub(super) fn idle(&self, target: &Target) -> Vec<Option<u32>> {
        match &target.disks {
            _ if self.settings.idle_seconds.is_none() || target.meters.is_empty() => Vec::new(),
            disks if disks.is_empty() => vec![None],
            disks => disks.iter().copied().map(Some).collect(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: Spanned<String>,
    /// Absent: a second.
    run_seconds: Option<Spanned<f64>>,
    /// Absent: as long as a run.
    peak_seconds: Option<Spanned<f64>>,
    settle_seconds: Option<Spanned<f64>>,
    #[serde(default = "one")]
    repetitions: Spanned<u32>,
    procedure: Option<Spanned<Procedure>>,
    levels: Option<Spanned<Vec<Spanned<f64>>>>,
    #[serde(default)]
    filter: Filter,
    depth: Option<Spanned<u32>>,
    seed: Option<u64>,
    interval_seconds: Option<Spanned<u32>>,
    depository: Option<PathBuf>,
    idle_seconds: Option<Spanned<f64>>,
    #[serde(default)]
    collector: Collector,
    #[serde(default, deserialize_with = "one_section")]
    synthetic: Option<RawSynthetic>,
    #[serde(default, rename = "trace")]
    traces: Vec<RawTrace>,
    #[serde(default, rename = "agent")]
    agents: Vec<RawAgent>,
    #[serde(rename = "target")]
    targets: Spanned<Vec<RawTarget>>,
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

/// Bytes of a request: a number, or a text with a unit.
#[derive(Clone, Copy, PartialEq)]
struct Size(u32);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes, such as 4096 or \"4KiB\"")
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        let size = u32::try_from(bytes).map(Size);
        size.map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        let bytes = parse_bytes(text).map_err(E::custom)?.0;
        let size = u32::try_from(bytes).map(Size);
        size.map_err(|_| E::custom(format!("{text:?} is more than a request can have")))
    }
}

/// A section that is there once: written as one of several, it would be read as a list of its values.
fn one_section<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RawSynthetic>, D::Error> {
    struct Once;
    impl<'de> Visitor<'de> for Once {
        type Value = RawSynthetic;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "[synthetic], written once and with single brackets: its lists make every combination",
            )
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawSynthetic, A::Error> {
            RawSynthetic::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_any(Once).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSynthetic {
    sizes: Spanned<Vec<Spanned<Size>>>,
    random: Spanned<Vec<Spanned<u8>>>,
    reads: Spanned<Vec<Spanned<u8>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTrace {
    name: Spanned<String>,
    file: PathBuf,
    #[serde(default)]
    skip_bad: u64,
    #[serde(default)]
    bunch_micros: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAgent {
    name: Spanned<String>,
    address: Spanned<String>,
    secret_file: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTarget {
    name: Spanned<String>,
    at: Spanned<String>,
    size_mib: Option<Spanned<u64>>,
    #[serde(default)]
    overwrite: bool,
    generator: Option<Spanned<String>>,
    #[serde(default)]
    meters: Vec<String>,
    meter_agent: Option<Spanned<String>>,
    disks: Option<Spanned<Vec<Spanned<u32>>>>,
    set_disks: Option<String>,
    instrumented: Option<Spanned<Instrumented>>,
}

/// Reports what is wrong and where.
struct Check<'a> {
    path: &'a Path,
    text: &'a str,
    scale: f64,
}

impl Check<'_> {
    fn wrong<T>(&self, at: &Spanned<T>, key: &str, problem: impl Into<String>) -> MatrixError {
        let line = 1 + self.text[..at.span().start.min(self.text.len())].matches('\n').count();
        MatrixError::Value { path: self.path.to_owned(), line, key: key.to_owned(), problem: problem.into() }
    }

    fn matrix(&self, raw: Raw) -> Result<Matrix, MatrixError> {
        let followed = self.procedure(&raw)?;
        let mut settings = self.settings(&raw)?;
        if let Some(followed) = followed {
            let Times { run_seconds, settle_seconds, idle_seconds, interval_seconds } = followed.times();
            settings = Settings { run_seconds, settle_seconds, idle_seconds, interval_seconds, ..settings };
            (settings.peak_seconds, settings.procedure) = (run_seconds, Some(followed));
        }
        let agents = self.agents(&raw.agents)?;
        let targets = self.targets(&raw.targets, &agents)?;
        let phases = followed.is_some_and(|followed| !followed.phases().is_empty());
        let levels = match (followed, &raw.levels) {
            (Some(followed), _) => followed.levels(),
            (None, Some(levels)) => self.levels(levels, settings.filter)?,
            (None, None) => return Err(self.wrong(&raw.name, "levels", "is missing")),
        };
        let workloads = if phases { Vec::new() } else { self.workloads(&raw, &targets)? };
        if *raw.repetitions.get_ref() == 0 {
            return Err(self.wrong(&raw.repetitions, "repetitions", "at least one"));
        }
        let matrix = Matrix {
            name: self.name(&raw.name, "name")?,
            settings,
            workloads,
            levels,
            repetitions: *raw.repetitions.get_ref(),
            targets,
            agents,
            depository: self.beside(raw.depository.as_deref().unwrap_or(Path::new("traces"))),
        };
        if matrix.runs() > RUNS_MAX {
            let problem = format!("these are {} runs, more than {RUNS_MAX}", matrix.runs());
            return Err(self.wrong(&raw.repetitions, "repetitions", problem));
        }
        Ok(matrix)
    }

    fn levels(&self, list: &Spanned<Vec<Spanned<f64>>>, filter: Filter) -> Result<Vec<f64>, MatrixError> {
        let mut levels = self.distinct(list, "levels", |&percent| {
            filter.problem(percent).map(|problem| format!("{percent} {problem}"))
        })?;
        levels.retain(|&percent| percent != 100.0);
        levels.insert(0, 100.0);
        Ok(levels)
    }

    /// The procedure that the file names. What it prescribes may not be in the file, too.
    fn procedure(&self, raw: &Raw) -> Result<Option<Followed>, MatrixError> {
        let scale = self.scale;
        let Some(named) = &raw.procedure else {
            if scale == 1.0 {
                return Ok(None);
            }
            return Err(self.wrong(
                &raw.name,
                "--scale",
                "is for the times of a procedure, and the file names none",
            ));
        };
        if !(scale > 0.0 && scale <= 1.0) {
            return Err(self.wrong(named, "--scale", format!("{scale} is not above 0 and at most 1")));
        }
        let followed = Followed { procedure: *named.get_ref(), scale };
        let has_phases = !followed.phases().is_empty();
        let prescribed = [
            ("levels", raw.levels.is_some()),
            ("run_seconds", raw.run_seconds.is_some()),
            ("peak_seconds", raw.peak_seconds.is_some()),
            ("settle_seconds", raw.settle_seconds.is_some()),
            ("idle_seconds", raw.idle_seconds.is_some()),
            ("interval_seconds", raw.interval_seconds.is_some()),
            ("synthetic", has_phases && raw.synthetic.is_some()),
            ("trace", has_phases && !raw.traces.is_empty()),
            ("repetitions", has_phases && *raw.repetitions.get_ref() != 1),
        ];
        match prescribed.into_iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(self.wrong(named, key, "is what the procedure prescribes: leave it out")),
            None => Ok(Some(followed)),
        }
    }

    fn settings(&self, raw: &Raw) -> Result<Settings, MatrixError> {
        let seconds = |given: &Option<Spanned<f64>>, key: &str, least: f64| {
            let problem = |seconds: f64| format!("{seconds} is not between {least} and 86400 seconds");
            self.within(given, key, least..=86_400.0, problem)
        };
        let problem = |_| "is not between 1 and 4096 requests in flight".to_owned();
        let depth = self.within(&raw.depth, "depth", 1..=4096, problem)?;
        let problem = |_| "is not between 1 and 86400".to_owned();
        let interval = self.within(&raw.interval_seconds, "interval_seconds", 1..=86_400, problem)?;
        let run_seconds = seconds(&raw.run_seconds, "run_seconds", 0.01)?.unwrap_or(1.0);
        if let Some(value) = &raw.peak_seconds
            && raw.synthetic.is_some()
            && *value.get_ref() < run_seconds
        {
            let problem =
                format!("is shorter than run_seconds, {run_seconds}: runs replay the trace of the peak run");
            return Err(self.wrong(value, "peak_seconds", problem));
        }
        Ok(Settings {
            run_seconds,
            peak_seconds: seconds(&raw.peak_seconds, "peak_seconds", 0.01)?.unwrap_or(run_seconds),
            interval_seconds: interval.unwrap_or(60),
            idle_seconds: seconds(&raw.idle_seconds, "idle_seconds", 0.01)?,
            collector: raw.collector,
            settle_seconds: seconds(&raw.settle_seconds, "settle_seconds", 0.0)?.unwrap_or(0.0),
            filter: raw.filter,
            depth: depth.unwrap_or(16),
            seed: raw.seed.unwrap_or(1),
            procedure: None,
        })
    }

    /// The number, if one is given.
    fn within<T: Copy + PartialOrd>(
        &self,
        given: &Option<Spanned<T>>,
        key: &str,
        bounds: RangeInclusive<T>,
        problem: impl Fn(T) -> String,
    ) -> Result<Option<T>, MatrixError> {
        match given {
            Some(at) if !bounds.contains(at.get_ref()) => Err(self.wrong(at, key, problem(*at.get_ref()))),
            given => Ok(given.as_ref().map(|given| *given.get_ref())),
        }
    }

    /// Names appear in results, messages and on command lines.
    fn name(&self, name: &Spanned<String>, key: &str) -> Result<String, MatrixError> {
        let text = name.get_ref();
        if !Matrix::is_name(text) {
            let problem = format!("{text:?} is not 1 to 64 letters, digits, points, hyphens or underscores");
            return Err(self.wrong(name, key, problem));
        }
        Ok(text.clone())
    }

    /// The values of a list that must not be empty or contain duplicates.
    fn distinct<T: Copy + PartialEq + fmt::Display>(
        &self,
        list: &Spanned<Vec<Spanned<T>>>,
        key: &str,
        problem: impl Fn(&T) -> Option<String>,
    ) -> Result<Vec<T>, MatrixError> {
        let mut found: Vec<T> = Vec::new();
        for item in list.get_ref() {
            let value = *item.get_ref();
            if let Some(problem) = problem(&value) {
                return Err(self.wrong(item, key, problem));
            }
            if found.contains(&value) {
                return Err(self.wrong(item, key, format!("{value} is listed twice")));
            }
            found.push(value);
        }
        if found.is_empty() { Err(self.wrong(list, key, "is empty")) } else { Ok(found) }
    }

    fn workloads(&self, raw: &Raw, targets: &[Target]) -> Result<Vec<Workload>, MatrixError> {
        let mut workloads = Vec::new();
        if let Some(synthetic) = &raw.synthetic {
            let smallest = targets.iter().map(|target| target.size_bytes).min().unwrap_or(0);
            let size = |&Size(size): &Size| match u64::from(size) {
                0 => Some("requests need at least one byte".to_owned()),
                size if size > smallest => {
                    Some(format!("requests of {size} bytes do not fit into a target of {smallest} bytes"))
                }
                _ => None,
            };
            let ratio = |&percent: &u8| (percent > 100).then(|| format!("{percent} % is above 100 %"));
            let sizes = self.distinct(&synthetic.sizes, "synthetic.sizes", size)?;
            let random = self.distinct(&synthetic.random, "synthetic.random", ratio)?;
            let reads = self.distinct(&synthetic.reads, "synthetic.reads", ratio)?;
            let modes = sizes.len() * random.len() * reads.len();
            if modes > MODES_MOST {
                let problem = format!("{modes} modes are more than {MODES_MOST}: leave out sizes or ratios");
                return Err(self.wrong(&synthetic.sizes, "synthetic.sizes", problem));
            }
            for &Size(size) in &sizes {
                for &random in &random {
                    workloads.extend(reads.iter().map(|&reads| Workload::Synthetic { size, random, reads }));
                }
            }
        }
        for trace in &raw.traces {
            let name = self.name(&trace.name, "trace.name")?;
            if workloads.iter().any(|workload| workload.name() == name) {
                return Err(self.wrong(&trace.name, "trace.name", "another workload has this name"));
            }
            // Agents look up traces in their own catalogue directory.
            let here = targets.iter().all(|target| target.generator.is_none());
            let file = if here { self.beside(&trace.file) } else { trace.file.clone() };
            let bunch = Duration::from_micros(trace.bunch_micros);
            workloads.push(Workload::Trace { name, file, skip_bad: trace.skip_bad, bunch });
        }
        if workloads.is_empty() {
            let problem = "no workload: add a section [synthetic] or [[trace]]";
            return Err(self.wrong(&raw.name, "synthetic", problem));
        }
        Ok(workloads)
    }

    fn beside(&self, file: &Path) -> PathBuf {
        self.path.parent().map_or_else(|| file.to_owned(), |dir| dir.join(file))
    }

    fn agents(&self, raw: &[RawAgent]) -> Result<Vec<AgentSpec>, MatrixError> {
        let mut agents: Vec<AgentSpec> = Vec::new();
        for agent in raw {
            let name = self.name(&agent.name, "agent.name")?;
            if agents.iter().any(|other| other.name == name) {
                return Err(self.wrong(&agent.name, "agent.name", "another agent has this name"));
            }
            let address = agent.address.get_ref().clone();
            let port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            if !port {
                let problem = format!("{address:?} is not HOST:PORT");
                return Err(self.wrong(&agent.address, "agent.address", problem));
            }
            agents.push(AgentSpec { name, address, secret_file: self.beside(&agent.secret_file) });
        }
        Ok(agents)
    }

    fn targets(
        &self,
        raw: &Spanned<Vec<RawTarget>>,
        agents: &[AgentSpec],
    ) -> Result<Vec<Target>, MatrixError> {
        let mut targets: Vec<Target> = Vec::new();
        let agent = |name: &Option<Spanned<String>>, key| match name {
            Some(name) if !agents.iter().any(|agent| agent.name == *name.get_ref()) => {
                let problem = format!("there is no [[agent]] {:?}", name.get_ref());
                Err(self.wrong(name, key, problem))
            }
            name => Ok(name.as_ref().map(|name| name.get_ref().clone())),
        };
        for target in raw.get_ref() {
            let name = self.name(&target.name, "target.name")?;
            if targets.iter().any(|other| other.name == name) {
                return Err(self.wrong(&target.name, "target.name", "another target has this name"));
            }
            if let Err(error) = target.at.get_ref().parse::<TargetSpec>() {
                return Err(self.wrong(&target.at, "target.at", error.to_string()));
            }
            let problem = |_| "is not between 1 MiB and 1 PiB".to_owned();
            let mib = self.within(&target.size_mib, "target.size_mib", 1..=1 << 30, problem)?;
            if let Some(given) = &target.instrumented
                && let Some(problem) = given.get_ref().problem()
            {
                return Err(self.wrong(given, "target.instrumented", problem));
            }
            let disks = match &target.disks {
                Some(list) if target.set_disks.is_none() => {
                    let problem = "needs set_disks, the command that leaves the target with {disks} disks";
                    return Err(self.wrong(list, "target.disks", problem));
                }
                Some(list) => self.distinct(list, "target.disks", |_| None)?,
                None => Vec::new(),
            };
            targets.push(Target {
                name,
                disks,
                set_disks: target.set_disks.clone(),
                instrumented: target.instrumented.as_ref().map(|known| *known.get_ref()),
                at: target.at.get_ref().clone(),
                size_bytes: mib.unwrap_or(1024) << 20,
                overwrite: target.overwrite,
                generator: agent(&target.generator, "target.generator")?,
                meters: target.meters.clone(),
                meter_agent: agent(&target.meter_agent, "target.meter_agent")?,
            });
        }
        if targets.is_empty() { Err(self.wrong(raw, "target", "is empty")) } else { Ok(targets) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_trace::Mode;

    const GOOD: &str = r#"
name = "m"
levels = [10, 50.5]
repetitions = 3

[synthetic]
sizes = [512, 4096]
random = [0]
reads = [0, 100]

[[trace]]
name = "web"
file = "web.spc"

[[agent]]
name = "loader"
address = "10.0.0.5:9950"
secret_file = "secret"

[[target]]
name = "disk"
at = "/dev/vdb"
generator = "loader"

[[target]]
name = "file"
at = "file:x.dat"
size_mib = 64
"#;

    fn parse(text: &str) -> Result<Matrix, MatrixError> {
        Matrix::parse(Path::new("dir/m.toml"), text, 1.0)
    }

    #[test]
    fn a_matrix_has_every_combination() {
        let matrix = parse(GOOD).unwrap();
        let names: Vec<String> = matrix.workloads.iter().map(Workload::name).collect();
        let modes =
            ["512B-random0-read0", "512B-random0-read100", "4KiB-random0-read0", "4KiB-random0-read100"];
        assert_eq!(names[..4], modes);
        assert_eq!((names[4].as_str(), matrix.runs()), ("web", 2 * 5 * 3 * 3));
        assert_eq!(matrix.agents[0].secret_file, Path::new("dir/secret"));
        assert_eq!((matrix.targets[1].size_bytes, matrix.targets[0].overwrite), (64 << 20, false));
        assert_eq!(matrix.settings.filter, Filter::Balanced);
        assert_eq!(matrix.levels, [100.0, 10.0, 50.5], "the reference is added, and comes first");
        assert_eq!(
            (matrix.settings.peak_seconds, matrix.depository.as_path()),
            (1.0, Path::new("dir/traces"))
        );
    }

    #[test]
    fn sizes_have_units_or_none() {
        let with = |size: &str| parse(&GOOD.replace("[512, 4096]", &format!("[512, {size}]")));
        let workloads = |matrix: Matrix| matrix.workloads;
        assert_eq!(workloads(with("\"4KiB\"").unwrap()), workloads(with("4096").unwrap()));
        let twice = with("\"512B\"").unwrap_err().to_string();
        assert!(twice.contains("512 is listed twice"), "{twice}");
        for (size, expected) in [
            ("\"4kB\"", "write bytes, or a number with KiB"),
            ("\"4GiB\"", "\"4GiB\" is more than a request can have"),
            ("-1", "expected bytes, such as 4096 or \"4KiB\""),
            ("0.5", "expected bytes, such as 4096 or \"4KiB\""),
        ] {
            let error = with(size).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("line 7"), "{size}: {error}");
        }
    }

    #[test]
    fn a_section_that_is_written_as_one_of_several_is_refused_with_what_to_write() {
        let error = parse(&GOOD.replace("[synthetic]", "[[synthetic]]")).unwrap_err().to_string();
        assert!(error.contains("expected [synthetic], written once and with single brackets"), "{error}");
    }

    #[test]
    fn the_example_to_begin_with_runs_in_a_minute() {
        let matrix = parse(EXAMPLE).unwrap();
        let settings = &matrix.settings;
        let peaks = matrix.workloads.len() as f64 * settings.peak_seconds;
        let seconds = matrix.runs() as f64 * (settings.run_seconds + settings.settle_seconds) + peaks;
        assert!((10.0..60.0).contains(&seconds), "{seconds}");
        assert!(
            matrix.targets.iter().all(|target| target.at.starts_with("file:") && target.meters.is_empty())
        );
    }

    #[test]
    fn a_matrix_of_millions_of_modes_is_refused_before_they_are_made() {
        let all =
            |count: u32| format!("[{}]", (1..=count).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        let text = GOOD.replace("[512, 4096]", &all(200)).replace("[0, 100]", &all(100));
        let refused = parse(&text.replace("random = [0]", "random = [0, 5]")).unwrap_err().to_string();
        assert!(refused.contains("40000 modes are more than 10000"), "{refused}");
        assert_eq!(parse(&text.replace(&all(200), &all(100))).unwrap().workloads.len(), 10_001);
    }

    #[test]
    fn the_papers_1250_runs_are_one_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/tracer-matrix.toml");
        let matrix = Matrix::load(&path, 1.0).unwrap();
        assert_eq!(matrix.runs(), 1250);
        let of_mode = |Mode { size, random, reads }| Workload::Synthetic { size, random, reads };
        assert_eq!(matrix.workloads, Mode::all().map(of_mode).collect::<Vec<_>>());
        let names: std::collections::BTreeSet<String> = matrix.workloads.iter().map(Workload::name).collect();
        assert_eq!(names.len(), 125);
        assert_eq!(matrix.levels, [100., 10., 20., 30., 40., 50., 60., 70., 80., 90.]);
        assert_eq!((matrix.settings.filter, matrix.settings.run_seconds), (Filter::Tracer, 1.0));
    }

    #[test]
    fn recorded_traces_at_ten_loads_are_an_example() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/tracer-traces.toml");
        let matrix = Matrix::load(&path, 1.0).unwrap();
        assert_eq!((matrix.runs(), matrix.settings.interval_seconds), (10, 60));
        assert_eq!(matrix.settings.run_seconds, 1800.0);
    }

    #[test]
    fn the_modes_on_an_emulated_disk_are_an_example_whose_meter_counts_joules() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/tracer-emulated.toml");
        let matrix = Matrix::load(&path, 1.0).unwrap();
        assert_eq!((matrix.runs(), &matrix.levels[..]), (3 * 7 * 5, &[100.0][..]));
        let [meter] = &matrix.targets[0].meters[..] else { panic!("{:?}", matrix.targets) };
        let open = ebb_meter::open(meter).unwrap();
        let quantity = open.channels[0].quantity;
        assert_eq!((open.name.as_str(), quantity), ("disk", ebb_meter::Quantity::Energy { range: None }));
    }

    #[test]
    fn a_procedure_says_what_is_run_and_for_how_long() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/emerald.toml");
        let matrix = Matrix::load(&path, 1.0 / 30.0).unwrap();
        assert_eq!((matrix.runs(), matrix.workloads.len(), matrix.levels.len()), (8, 0, 0));
        assert_eq!((matrix.settings.run_seconds, matrix.settings.interval_seconds), (60.0, 2));
        let graduated = |more: &str, scale| {
            let text = format!(
                "name = \"g\"\nprocedure = \"graduated\"\n{more}[synthetic]\nsizes = [4096]\nrandom = [50]\nreads = [50]\n\
                 [[target]]\nname = \"t\"\nat = \"file:x\"\nmeters = [\"pdu\"]\ninstrumented = {{ place = \"wall\" }}\n"
            );
            Matrix::parse(Path::new("g.toml"), &text, scale).map_err(|error| error.to_string())
        };
        let matrix = graduated("", 0.5).unwrap();
        assert_eq!(matrix.levels, [100., 90., 80., 70., 60., 50., 40., 30., 20., 10.]);
        assert_eq!((matrix.settings.run_seconds, matrix.settings.idle_seconds), (120.0, Some(120.0)));
        assert_eq!(matrix.runs(), 11, "ten levels and idle");
        for (more, scale, expected) in [
            ("levels = [10]\n", 1.0, "line 2: levels: is what the procedure prescribes"),
            ("run_seconds = 5\n", 1.0, "run_seconds: is what the procedure prescribes"),
            ("", 2.0, "--scale: 2 is not above 0"),
        ] {
            let error = graduated(more, scale).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let plain = std::fs::read_to_string(path.with_file_name("tracer-matrix.toml")).unwrap();
        let error = Matrix::parse(Path::new("m.toml"), &plain, 0.5).unwrap_err().to_string();
        assert!(error.contains("the file names none"), "{error}");
        let missing = plain.replace("levels = [10, 20", "# levels = [10, 20");
        let error = Matrix::parse(Path::new("m.toml"), &missing, 1.0).unwrap_err().to_string();
        assert!(error.contains("levels: is missing"), "{error}");
    }

    /// One changed line, and the line number and the words that the error must have.
    #[test]
    fn made_up_matrices_are_refused_or_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/tracer-matrix.toml");
        let example = std::fs::read(path).unwrap();
        ebb_testing::fuzz(&[&example], |bytes| {
            if let Ok(matrix) = Matrix::parse(Path::new("m.toml"), &String::from_utf8_lossy(bytes), 1.0) {
                let _ = matrix.runs();
            }
        });
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_key() {
        let cases = [
            ("name = \"m\"", "name = \"a/b\"", 2, "name: \"a/b\" is not 1 to 64 letters"),
            (
                "levels = [10, 50.5]",
                "levels = [10, 150]",
                3,
                "levels: 150 is not above 0 and up to 100 percent",
            ),
            ("levels = [10, 50.5]", "levels = [10, 0]", 3, "levels: 0"),
            ("levels = [10, 50.5]", "levels = [10, nan]", 3, "levels: NaN"),
            ("levels = [10, 50.5]", "levels = [10, 10]", 3, "levels: 10 is listed twice"),
            ("levels = [10, 50.5]", "levels = []", 3, "levels: is empty"),
            (
                "levels = [10, 50.5]",
                "filter = \"tracer\"\nlevels = [10, 25]",
                4,
                "levels: 25 is not one of 10, 20",
            ),
            ("repetitions = 3", "repetitions = 0", 4, "repetitions: at least one"),
            ("repetitions = 3", "repetitions = 900000", 4, "more than 1000000"),
            ("repetitions = 3", "run_seconds = 0", 4, "run_seconds: 0 is not between"),
            ("repetitions = 3", "peak_seconds = 0.5", 4, "peak_seconds: is shorter than run_seconds, 1"),
            ("repetitions = 3", "interval_seconds = 0", 4, "interval_seconds: is not between"),
            ("repetitions = 3", "settle_seconds = nan", 4, "settle_seconds: NaN"),
            ("repetitions = 3", "idle_seconds = 0", 4, "idle_seconds: 0 is not between"),
            ("repetitions = 3", "collector = \"tape\"", 4, "unknown variant `tape`"),
            ("size_mib = 64", "disks = [0, 1]", 28, "target.disks: needs set_disks"),
            (
                "size_mib = 64",
                "instrumented = { fraction = 2.0 }",
                28,
                "target.instrumented: fraction is not above 0",
            ),
            ("size_mib = 64", "instrumented = { fracture = 1.0 }", 28, "unknown field `fracture`"),
            ("repetitions = 3", "depth = 0", 4, "depth: is not between 1 and 4096"),
            ("repetitions = 3", "repeat = 3", 4, "unknown field `repeat`"),
            (
                "sizes = [512, 4096]",
                "sizes = [512, 0]",
                7,
                "synthetic.sizes: requests need at least one byte",
            ),
            (
                "sizes = [512, 4096]",
                "sizes = [512, 134217728]",
                7,
                "do not fit into a target of 67108864 bytes",
            ),
            ("sizes = [512, 4096]", "sizes = [512, -1]", 7, "sizes"),
            ("random = [0]", "random = [101]", 8, "synthetic.random: 101 % is above 100 %"),
            ("name = \"web\"", "name = \"4KiB-random0-read0\"", 12, "trace.name: another workload"),
            ("10.0.0.5:9950", "10.0.0.5", 17, "agent.address: \"10.0.0.5\" is not HOST:PORT"),
            ("at = \"/dev/vdb\"", "at = \"vdb\"", 22, "target.at: \"vdb\" names no target"),
            ("generator = \"loader\"", "generator = \"leader\"", 23, "there is no [[agent]] \"leader\""),
            (
                "generator = \"loader\"",
                "meter_agent = \"x\"",
                23,
                "target.meter_agent: there is no [[agent]]",
            ),
            ("name = \"file\"", "name = \"disk\"", 26, "target.name: another target"),
            ("size_mib = 64", "size_mib = 0", 28, "target.size_mib: is not between"),
        ];
        for (from, to, line, said) in cases {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "nothing to replace: {from:?}");
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{to:?} gave {error:?}, expected {said:?}");
            assert!(error.contains(&format!("line {line}")), "{to:?} gave {error:?}, expected line {line}");
        }
        let nothing = "name = \"m\"\nlevels = [10]\n[[target]]\nname = \"f\"\nat = \"file:x\"\n";
        assert!(parse(nothing).unwrap_err().to_string().contains("add a section [synthetic] or [[trace]]"));
        let missing = parse(&nothing.replace("levels = [10]\n", "")).unwrap_err().to_string();
        assert!(missing.contains("levels: is missing"), "{missing}");
    }
}
