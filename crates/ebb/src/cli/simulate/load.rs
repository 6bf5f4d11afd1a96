//! `ebb simulate load`: energy, savings and quality of every gear policy on a load series.

use super::sleep::{SleepArgs, parse_time};
use crate::cli::trace::reading;
use crate::error::{NodeError, io, writable};
use clap::Args;
use ebb_eval::traces;
use ebb_output::{Progress, clear_line, table};
use ebb_power::PowerModel;
use ebb_sim::load::{
    self, Case, Cold, Fold, Found, Given, LoadColumns, Outcome, Outlier, Point, Policy, PoolOutcome, Price,
    Provision, Report, Requests, Score, Setup, Timeline,
};
use ebb_types::Shape;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate load week.csv                        compare all policies on a load series
  ebb simulate load requests.txt.xz --interval 1s --power node --servers 300
  ebb simulate load week.csv --power node --cold 0.8    what it saves to keep 80 % of the data in coded sets
  ebb simulate load week.csv --frontier --html savings.html --csv steps.csv

The series is a CSV with a header and the columns time and load (or --column), or a list of numbers. Leave intervals empty that were not recorded.";

#[derive(Args)]
pub struct LoadArgs {
    /// Load per interval: CSV with a header, or one number per interval; gz, xz, bz2, zst or not
    #[arg(value_name = "SERIES")]
    series: PathBuf,
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
    policies: Vec<&'a Outcome>,
    forecasts: &'a [Score],
    frontier: &'a [Point],
    pools: &'a [PoolOutcome],
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

pub fn run(args: &LoadArgs) -> Result<ExitCode, NodeError> {
    let refused = |error: String| NodeError::Refused(format!("{}: {error}", args.series.display()));
    for path in args.html.iter().chain(&args.csv) {
        writable(path)?;
    }
    let name = args.series.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let found = read(args, &name)?;
    let (begins, outlier) = (found.begins, found.outlier().filter(|_| args.provision == Provision::Peak));
    let mut series = found.series;
    let zeros = if args.zeros == Zeros::Gap { series.zeros_are_gaps() } else { 0 };
    let gaps = series.gaps(zeros);
    let mut case = Case::new(setup(args)?, &series).map_err(|e| refused(e.to_string()))?;
    if matches!(args.short_goal, Goal::Sierra) {
        case = case.at_sierras_shortage().map_err(|e| refused(e.to_string()))?;
    }
    let mut line = Progress::new();
    let outcomes = play(args, &case, &mut line).map_err(|e| refused(e.to_string()))?;
    let cold = args.cold.map(|share| cold(args, share));
    let pools = cold
        .map_or(Ok(Vec::new()), |cold| cold.play(&case, &series, Policy::Ebb))
        .map_err(|e| refused(e.to_string()))?;
    let scores = load::scores(&case);
    let settings = load::SETTINGS;
    let mut progress =
        |done, of| line.show(format_args!("frontier: {} % of {settings} settings", 100 * done / of));
    let frontier = match args.frontier {
        true => load::frontier(&case, &mut progress).map_err(|e| refused(e.to_string()))?,
        false => Vec::new(),
    };
    line.clear();
    let report = Report {
        name: &name,
        case: &case,
        gaps,
        begins,
        price: args.price.as_ref(),
        outcomes: &outcomes,
        scores: &scores,
        frontier: &frontier,
        pools: &pools,
    };
    if let Some(path) = &args.html {
        std::fs::write(path, load::html(&report)).map_err(io("write", path))?;
    }
    if let Some(path) = &args.csv {
        std::fs::write(path, load::csv(&case, &outcomes)).map_err(io("write", path))?;
    }
    if args.json {
        println!("{}", json(&report, outlier));
    } else {
        print!("{}", text(&report, outlier, [args.html.as_deref(), args.csv.as_deref()]));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the series, in steps.
fn read(args: &LoadArgs, name: &str) -> Result<Found, NodeError> {
    let file = std::fs::File::open(&args.series).map_err(io("read", &args.series))?;
    let length = file.metadata().map_or(0, |about| about.len());
    let fold = args.step.map_or(Fold::AtLeast(Duration::from_secs(60)), Fold::To);
    let given = Given { interval: args.interval, fold, columns: args.columns.clone() };
    let series = load::read_found(traces::heard(Box::new(file), length, &reading()), name, &given);
    clear_line();
    series.map_err(|error| NodeError::Refused(format!("{}: {error}", args.series.display())))
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
    case: &Case,
    line: &mut Progress,
) -> Result<Vec<(Outcome, Option<Timeline>)>, load::LoadError> {
    let wanted = |policy: &Policy| args.policy.is_empty() || args.policy.contains(policy);
    let steps = case.loads.len();
    let heard = |policy: Policy| {
        let mut tell =
            |done| line.show(format_args!("{}: {} % of {steps} steps", policy.name(), 100 * done / steps));
        case.play_heard(policy, &mut tell)
    };
    Policy::ALL.into_iter().filter(wanted).map(heard).collect()
}

fn json(report: &Report, outlier: Option<Outlier>) -> String {
    let case = report.case;
    ebb_output::json(&Json {
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
        policies: report.outcomes.iter().map(|(outcome, _)| outcome).collect(),
        forecasts: report.scores,
        frontier: report.frontier,
        pools: report.pools,
    })
}

fn text(report: &Report, outlier: Option<Outlier>, written: [Option<&Path>; 2]) -> String {
    let case = report.case;
    let days = (case.loads.len() - case.first) as f64 * case.step.as_secs_f64() / 86_400.0;
    let mut out = format!(
        "{}: {days:.1} days counted after {} of training, in steps of {:?}; {} servers, {} replicas. {}\nAll figures are modelled.\n\n",
        report.name,
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
             If it is a mistake, leave it empty; or give --provision LOAD.\n"
        );
    }
    let rows: Vec<Vec<String>> =
        report.outcomes.iter().map(|(outcome, _)| load::cells(outcome, report.price)).collect();
    table(&mut out, &load::header(report.price), &rows);
    let ebb = report.outcomes.iter().map(|(outcome, _)| outcome).find(|found| found.policy == Policy::Ebb);
    if let Some(ebb) = ebb.filter(|ebb| ebb.short_time > case.setup.short_goal) {
        let (short, accepted) = (ebb.short_time * 100.0, case.setup.short_goal * 100.0);
        let _ = writeln!(
            out,
            "\nebb missed its goal: {short:.2} % of the time was short, with {accepted:.2} % accepted"
        );
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
