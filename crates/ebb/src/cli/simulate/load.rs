//! `ebb simulate load`: energy, savings and quality of every gear policy on a load series.

use super::sleep::{SleepArgs, parse_time};
use crate::cli::provenance::{self, Inputs};
use crate::cli::trace::reading;
use crate::error::{NodeError, io, writable};
use clap::Args;
use ebb_eval::traces;
use ebb_output::{Progress, clear_line, table};
use ebb_power::PowerModel;
use ebb_sim::load::{
    self, Case, Cold, Fold, Found, Gaps, Given, Learning, LoadColumns, LoadError, Oracles, Outcome, Outlier,
    Point, Policy, PoolOutcome, Price, Provision, Report, Requests, Row, Score, Series, Setup, Shares,
    Timeline,
};
use ebb_types::Shape;
use serde::Serialize;
use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate load week.csv                        compare all policies on a load series
  ebb simulate load requests.txt.xz --interval 1s --power node --servers 300
  ebb simulate load week.csv --power node --cold 0.8    what it saves to keep 80 % of the data in coded sets
  ebb simulate load week.csv --frontier --html savings.html --csv steps.csv
  ebb simulate load mon.csv web.csv mail.csv --policy ebb,sierra --format latex    one table of several series

The series is a CSV with a header and the columns time and load (or --column), or a list of numbers. Leave intervals empty that were not recorded.";

#[derive(Args)]
pub struct LoadArgs {
    /// Load per interval: CSV with a header, or one number per interval; gz, xz, bz2, zst or not. Several are compared
    /// in one table
    #[arg(value_name = "SERIES", required = true)]
    series: Vec<PathBuf>,
    /// Chunk servers
    #[arg(long, default_value_t = 30)]
    servers: u32,
    /// Copies of all data
    #[arg(long, default_value_t = 3)]
    replicas: u8,
    /// Gear groups that are always awake: 1 saves most, 2 tolerates the failure of an awake server
    #[arg(long, default_value_t = 1)]
    g_min: u8,
    /// Only these policies; absent: all
    #[arg(long, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// Days used for training and not counted
    #[arg(long, value_name = "DAYS", default_value_t = 6)]
    train: u32,
    /// `peak`: the highest step needs all servers; or the load that one server sustains, in the series' unit
    #[arg(long, value_name = "peak|LOAD", default_value = "peak", value_parser = parse_provision)]
    provision: Provision,
    /// Time between two loads, such as 1h, 1m, 1s [default: as the series says]
    #[arg(long, value_parser = parse_time)]
    interval: Option<Duration>,
    /// The columns of load and time in a table of more, by number or title, such as load=3,time=1;
    /// time=1+2: the date, and the time of day or the hour
    #[arg(long = "column", value_name = "load=COLUMN[,time=COLUMN[+COLUMN]]")]
    columns: Option<LoadColumns>,
    /// Step of the simulation; its load is the mean of its intervals [default: 1m, or the interval if that is longer]
    #[arg(long, value_parser = parse_time)]
    step: Option<Duration>,
    /// Whether intervals of exactly zero are gaps in the recording or real load
    #[arg(long, value_name = "gap|load", default_value = "gap")]
    zeros: Zeros,
    #[command(flatten)]
    sleep: SleepArgs,
    /// Minimum time that Ebb keeps a server awake
    #[arg(long, default_value = "15m", value_parser = parse_time)]
    dwell: Duration,
    /// Share of time with too few servers awake that Ebb accepts; or `sierra`: as much as Sierra's own policy has on
    /// this series, and no fewer power cycles than it
    #[arg(long, value_name = "SHARE|sierra", default_value = "0.01", value_parser = parse_goal)]
    short_goal: Goal,
    /// Days after which Ebb's lowest gear moves to other servers; 0: never
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    rotate_days: u32,
    /// Share of the data that is cold: also compare keeping it in erasure-coded sets that sleep
    #[arg(long, value_name = "SHARE")]
    cold: Option<f64>,
    /// Code of those sets
    #[arg(long, value_name = "K+M", default_value = "6+3", requires = "cold")]
    code: Shape,
    /// Requests per second to all cold data, on average; they follow the load's shape
    #[arg(long, value_name = "RATE", default_value_t = 0.001, requires = "cold")]
    cold_requests: f64,
    /// Idle time after which a whole set sleeps
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time, requires = "cold")]
    hibernate_after: Duration,
    /// Also try Ebb with other budgets and accepted shares, one of them Sierra's, and print a bound that no policy can
    /// beat
    #[arg(long)]
    frontier: bool,
    /// What a kilowatt-hour costs, such as 0.30EUR: also show money
    #[arg(long, value_name = "PRICE")]
    price: Option<Price>,
    /// `csv` and `latex`: one table with a line for each series and policy; `json`: the same as --json
    #[arg(long, value_name = "text|csv|json|latex", default_value = "text", conflicts_with = "json")]
    format: Format,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Write every step's load, and of every policy the servers that serve, wake, are woken, and are put to sleep, to
    /// this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a report with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Csv,
    Json,
    Latex,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Zeros {
    Gap,
    Load,
}

#[derive(Clone, Copy)]
enum Goal {
    Share(f64),
    Sierra,
}

fn parse_goal(text: &str) -> Result<Goal, String> {
    match text {
        "sierra" => Ok(Goal::Sierra),
        share => {
            share.parse().map(Goal::Share).map_err(|_| format!("{text:?} is neither a share nor sierra"))
        }
    }
}

pub fn parse_provision(text: &str) -> Result<Provision, String> {
    match text {
        "peak" => Ok(Provision::Peak),
        number => number
            .parse()
            .map(Provision::PerServer)
            .map_err(|_| format!("{text:?} is neither peak nor the load that a server sustains")),
    }
}

/// Output of `--json`.
#[derive(Serialize)]
struct Json<'a> {
    series: SeriesJson<'a>,
    servers: u32,
    replicas: u8,
    train_days: u32,
    power: PowerModel,
    policies: Vec<PolicyJson<'a>>,
    learning: Option<Learning>,
    forecasts: &'a [Score],
    frontier: &'a [Point],
    pools: &'a [PoolOutcome],
}

#[derive(Serialize)]
struct PolicyJson<'a> {
    #[serde(flatten)]
    outcome: &'a Outcome,
    #[serde(flatten)]
    shares: Shares,
}

#[derive(Serialize)]
struct SeriesJson<'a> {
    name: &'a str,
    step_seconds: f64,
    steps: usize,
    gap_steps: usize,
    gaps: usize,
    zero_steps: usize,
    load_per_server: f64,
    outlier: Option<Outlier>,
}

/// A series as it was read, and what is to be simulated of it.
struct Input {
    path: PathBuf,
    name: String,
    series: Series,
    begins: Option<i64>,
    gaps: Gaps,
    outlier: Option<Outlier>,
    case: Case,
}

/// What was simulated.
struct Played {
    outcomes: Vec<(Outcome, Option<Timeline>)>,
    oracles: Oracles,
    learning: Option<Learning>,
    scores: Vec<Score>,
    frontier: Vec<Point>,
    pools: Vec<PoolOutcome>,
}

pub fn run(args: &LoadArgs) -> Result<ExitCode, NodeError> {
    has_a_place(args)?;
    args.html.iter().chain(&args.csv).try_for_each(|path| writable(path))?;
    // All are read before the first is simulated: a mistake in the last must not cost the work on the others.
    let read = args.series.iter().map(|path| input(args, path));
    let inputs: Vec<Input> = read.collect::<Result<_, _>>()?;
    let mut line = Progress::new();
    let mut results = Vec::new();
    for input in &inputs {
        results.push(played(args, input, &mut line).map_err(|error| refused(&input.path, error))?);
    }
    line.clear();
    let of = inputs.iter().zip(&results);
    let reports: Vec<Report> = of.map(|(input, played)| report(args, input, played)).collect();
    if let (Some(path), [report]) = (&args.html, &reports[..]) {
        std::fs::write(path, load::html(report)).map_err(io("write", path))?;
    }
    if let (Some(path), [report]) = (&args.csv, &reports[..]) {
        std::fs::write(path, load::csv(report.case, report.outcomes)).map_err(io("write", path))?;
    }
    if matches!(format(args), Format::Csv | Format::Latex) {
        // What there is to know about the series is no part of the table.
        let of = reports.iter().zip(&inputs);
        of.for_each(|(report, input)| eprint!("{}", head(report, input.outlier)));
    }
    print!("{}", shown(args, &inputs, &reports));
    Ok(ExitCode::SUCCESS)
}

fn refused(path: &Path, error: impl Display) -> NodeError {
    NodeError::Refused(format!("{}: {error}", path.display()))
}

/// Refuses what would be left out: of the output for several series, and of a table.
fn has_a_place(args: &LoadArgs) -> Result<(), NodeError> {
    let several = args.series.len() > 1;
    let table = match format(args) {
        Format::Csv | Format::Latex => true,
        Format::Text => several,
        Format::Json => false,
    };
    for (option, given) in [
        ("--html", several && args.html.is_some()),
        ("--csv", several && args.csv.is_some()),
        ("--cold", table && args.cold.is_some()),
        ("--price", table && args.price.is_some()),
    ] {
        if given {
            return Err(NodeError::Refused(format!(
                "{option} has no place in the output for several series, or in a table: give one series, and no --format"
            )));
        }
    }
    Ok(())
}

fn format(args: &LoadArgs) -> Format {
    if args.json { Format::Json } else { args.format }
}

/// Reads a series and prepares its case.
fn input(args: &LoadArgs, path: &Path) -> Result<Input, NodeError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let found = read(args, path, &name)?;
    let (begins, outlier) = (found.begins, found.outlier().filter(|_| args.provision == Provision::Peak));
    let mut series = found.series;
    let zeros = if args.zeros == Zeros::Gap { series.zeros_are_gaps() } else { 0 };
    let gaps = series.gaps(zeros);
    let mut case = Case::new(setup(args)?, &series).map_err(|error| refused(path, error))?;
    if matches!(args.short_goal, Goal::Sierra) {
        case = case.at_sierras_shortage().map_err(|error| refused(path, error))?;
    }
    Ok(Input { path: path.to_owned(), name, series, begins, gaps, outlier, case })
}

/// Simulates what is asked for.
fn played(args: &LoadArgs, input: &Input, line: &mut Progress) -> Result<Played, LoadError> {
    let case = &input.case;
    let mut outcomes = play(args, input, line)?;
    let ebb = outcomes.iter().find(|(outcome, _)| outcome.policy == Policy::Ebb);
    let timeline = ebb.and_then(|(_, timeline)| timeline.as_ref());
    let learning = timeline.map(|timeline| Learning::of(&case.loads, &timeline.serving, case.step));
    let pools = match args.cold {
        Some(share) => cold(args, share).play(case, &input.series, Policy::Ebb)?,
        None => Vec::new(),
    };
    let settings = load::SETTINGS;
    let mut progress = |done, of| {
        line.show(format_args!("{}, frontier: {} % of {settings} settings", input.name, 100 * done / of))
    };
    let frontier = if args.frontier { load::frontier(case, &mut progress)? } else { Vec::new() };
    if args.series.len() > 1 {
        // Only files of a single series are written from them, and many would fill the memory.
        outcomes.iter_mut().for_each(|(_, timeline)| *timeline = None);
    }
    let (oracles, scores) = (Oracles::of(case)?, load::scores(case));
    Ok(Played { outcomes, oracles, learning, scores, frontier, pools })
}

fn report<'a>(args: &'a LoadArgs, input: &'a Input, played: &'a Played) -> Report<'a> {
    Report {
        name: &input.name,
        case: &input.case,
        gaps: input.gaps,
        begins: input.begins,
        price: args.price.as_ref(),
        outcomes: &played.outcomes,
        oracles: played.oracles,
        learning: played.learning,
        scores: &played.scores,
        frontier: &played.frontier,
        pools: &played.pools,
    }
}

/// What is printed.
fn shown(args: &LoadArgs, inputs: &[Input], reports: &[Report]) -> String {
    let outliers = || inputs.iter().map(|input| input.outlier);
    let rows: Vec<Row> = reports.iter().flat_map(load::rows).collect();
    match format(args) {
        Format::Json => {
            let json: Vec<Json> =
                reports.iter().zip(outliers()).map(|(report, outlier)| json(report, outlier)).collect();
            let files = inputs.iter().map(|input| Inputs::of([&input.path]).and(args.sleep.file()));
            let traced: Vec<_> =
                json.iter().zip(files).map(|(json, files)| provenance::traced(json, &files)).collect();
            // One series is an object, as it always was.
            let text =
                if let [one] = &traced[..] { ebb_output::json(one) } else { ebb_output::json(&traced) };
            text + "\n"
        }
        Format::Csv => load::table_csv(&rows),
        Format::Latex => load::table_latex(&rows),
        Format::Text => match reports {
            [report] => text(report, inputs[0].outlier, [args.html.as_deref(), args.csv.as_deref()]),
            _ => {
                let heads = reports.iter().zip(outliers()).map(|(report, outlier)| head(report, outlier));
                heads.collect::<String>() + "All figures are modelled.\n\n" + &load::table_text(&rows)
            }
        },
    }
}

/// Reads the series, in steps.
fn read(args: &LoadArgs, path: &Path, name: &str) -> Result<Found, NodeError> {
    let file = std::fs::File::open(path).map_err(io("read", path))?;
    let length = file.metadata().map_or(0, |about| about.len());
    let fold = args.step.map_or(Fold::AtLeast(Duration::from_secs(60)), Fold::To);
    let given = Given { interval: args.interval, fold, columns: args.columns.clone() };
    let series = load::read_found(traces::heard(Box::new(file), length, &reading()), name, &given);
    clear_line();
    series.map_err(|error| refused(path, error))
}

fn setup(args: &LoadArgs) -> Result<Setup, NodeError> {
    Ok(Setup {
        servers: args.servers,
        replicas: args.replicas,
        g_min: args.g_min,
        train_days: args.train,
        provision: args.provision,
        power: args.sleep.power("free")?,
        wake: args.sleep.wake.unwrap_or(Duration::from_secs(60)),
        dwell: args.dwell,
        cycles_per_day: args.sleep.cycles.unwrap_or(2.0),
        suspend: args.sleep.suspend,
        short_goal: match args.short_goal {
            Goal::Share(share) => share,
            // Until it is known.
            Goal::Sierra => 0.01,
        },
        rotate_days: args.rotate_days,
    })
}

fn cold(args: &LoadArgs, share: f64) -> Cold {
    let requests = Requests::Rate(args.cold_requests);
    Cold { shape: args.code, share, requests, hibernate_after: args.hibernate_after }
}

fn play(
    args: &LoadArgs,
    input: &Input,
    line: &mut Progress,
) -> Result<Vec<(Outcome, Option<Timeline>)>, LoadError> {
    let wanted = |policy: &Policy| args.policy.is_empty() || args.policy.contains(policy);
    let (name, steps) = (&input.name, input.case.loads.len());
    let heard = |policy: Policy| {
        let mut tell = |done| {
            line.show(format_args!("{name}, {}: {} % of {steps} steps", policy.name(), 100 * done / steps))
        };
        input.case.play_heard(policy, &mut tell)
    };
    Policy::ALL.into_iter().filter(wanted).map(heard).collect()
}

fn json<'a>(report: &Report<'a>, outlier: Option<Outlier>) -> Json<'a> {
    let case = report.case;
    let policy =
        |outcome: &'a Outcome| PolicyJson { outcome, shares: report.oracles.shares(outcome.savings) };
    Json {
        series: SeriesJson {
            name: report.name,
            step_seconds: case.step.as_secs_f64(),
            steps: case.loads.len(),
            gap_steps: report.gaps.intervals,
            gaps: report.gaps.runs,
            zero_steps: report.gaps.zeros,
            load_per_server: case.per_server,
            outlier,
        },
        servers: case.setup.servers,
        replicas: case.setup.replicas,
        train_days: case.setup.train_days,
        power: case.setup.power,
        policies: report.outcomes.iter().map(|(outcome, _)| policy(outcome)).collect(),
        learning: report.learning,
        forecasts: report.scores,
        frontier: report.frontier,
        pools: report.pools,
    }
}

/// What a series is, and what to know about it.
fn head(report: &Report, outlier: Option<Outlier>) -> String {
    let case = report.case;
    let mut out = format!(
        "{}: {:.1} days counted after {} of training, in steps of {:?}; {} servers, {} replicas. {}\n",
        report.name,
        case.days(),
        case.setup.train_days,
        case.step,
        case.setup.servers,
        case.setup.replicas,
        load::gaps_text(report.gaps, case.step)
    );
    if let Some(Outlier { line, load, times_p99 }) = outlier {
        let (load, times_p99) = match load {
            ..1e9 => (load.to_string(), format!("{times_p99:.0}")),
            _ => (format!("{load:e}"), format!("{times_p99:.1e}")),
        };
        let _ = writeln!(
            out,
            "The highest load, {load} in line {line}, is {times_p99} times the 99th percentile, and sets how much a server sustains. \
             If it is a mistake, leave it empty; or give --provision LOAD."
        );
    }
    out
}

fn text(report: &Report, outlier: Option<Outlier>, written: [Option<&Path>; 2]) -> String {
    let mut out = head(report, outlier) + "All figures are modelled.\n\n";
    let rows: Vec<Vec<String>> =
        report.outcomes.iter().map(|(outcome, _)| load::cells(outcome, report.price)).collect();
    table(&mut out, &load::header(report.price), &rows);
    let _ = writeln!(out, "\n{}", load::QUALITY_CAPTION);
    table(&mut out, &load::QUALITY_HEADER, &load::quality_rows(report));
    let verdict = load::verdict(report);
    if !verdict.is_empty() {
        let _ = writeln!(out, "\n{verdict}");
    }
    if !report.pools.is_empty() {
        let rows: Vec<Vec<String>> = report.pools.iter().map(PoolOutcome::cells).collect();
        out.push_str("\nCold data in erasure-coded sets; servers: in replicas + in sets\n");
        table(&mut out, &PoolOutcome::HEADER, &rows);
    }
    if !report.scores.is_empty() {
        let cell = |error: Option<f64>| error.map_or("–".to_owned(), |error| format!("{error:.3}"));
        let row = |s: &Score| {
            vec![s.days.to_string(), cell(s.hour_of_day), cell(s.seasonal), cell(s.seasonal_live)]
        };
        let rows: Vec<Vec<String>> = report.scores.iter().map(row).collect();
        out.push_str("\nForecast of hourly peaks: normalised RMS error\n");
        table(&mut out, &["days of training", "hour of day", "seasonal", "seasonal, live"], &rows);
    }
    if !report.frontier.is_empty() {
        out.push_str(
            "\nFrontier of Ebb's policy, each setting alone; bound: the share asleep that no policy can beat with that shortage and those cycles\n",
        );
        let rows: Vec<Vec<String>> = report.frontier.iter().map(load::point_cells).collect();
        table(&mut out, &load::POINT_HEADER, &rows);
        if report.frontier.iter().any(|point| !point.goal_met) {
            out.push_str("missed: more of the time was short than accepted\n");
        }
    }
    for path in written.into_iter().flatten() {
        let _ = writeln!(out, "\nwritten: {}", path.display());
    }
    out
}
