//! `ebb simulate mirror`: a trace on a mirror of two modelled two-speed disks.

use super::seeds::{Spread, parse_seeds};
use crate::cli::provenance::{Inputs, print};
use crate::cli::report::write_file;
use crate::cli::trace::reading;
use crate::cli::trace_options::TraceOptions;
use crate::cli::words::one_of;
use crate::error::{NodeError, io, refused, writable};
use clap::Args;
use ebb_eval::traces;
use ebb_output::Progress;
use ebb_sim::mirror::{
    Ack, Adaptive, PolicyKind, Report, Settings, Setup, TwoSpeedModel, Workload, page, simulate,
};
use ebb_trace::TraceReader;
use ebb_types::{Bytes, numbers_in_words, parse_bytes, parse_duration};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate mirror financial --rate 4x                          a generated day of transactions, four times as fast
  ebb simulate mirror web.spc --policy two-speed --html web.html   a trace, without a log
  ebb simulate mirror proxy --rate 21x --adaptive 20ms             thresholds that follow a response limit

Everything is modelled; the mirror's decisions are those of `ebb mirror`. Both disks start at high speed, with empty logs.";

#[derive(Args)]
pub struct MirrorArgs {
    /// A trace file in any format; or financial, proxy or search: generated, with the figures of LogStore's traces
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    #[arg(long, default_value = "logstore", value_parser = one_of::<PolicyKind>(POLICIES))]
    policy: PolicyKind,
    /// Trace seconds per simulated second, such as 4x
    #[arg(long, default_value = "1x", value_parser = parse_rate)]
    rate: f64,
    /// `paper`, the disk of LogStore's evaluation; or a model in a TOML or JSON file
    #[arg(long, value_name = "paper|FILE", default_value = "paper")]
    disk: String,
    /// Log of each disk; 0: none
    #[arg(long, value_name = "BYTES", default_value = "3GiB", value_parser = parse_bytes)]
    log: Bytes,
    /// When a write is acknowledged: `safe`, when both disks have it, or one and memory while the other changes its
    /// speed; `both` disks, always; `one` of them, as in the paper
    #[arg(long, default_value = "safe", value_parser = one_of::<Ack>(["safe", "both", "one"]))]
    ack: Ack,
    /// Thresholds that begin as the paper's and rise or fall such that this mean response time is kept
    #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
    adaptive: Option<Duration>,
    /// A generated trace as it is before the file system's cache, which absorbs reads
    #[arg(long)]
    before_cache: bool,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds from A up to but not including B, one after another: the mean and the range of every figure
    #[arg(long, value_name = "A..B", value_parser = parse_seeds, conflicts_with_all = ["seed", "html", "csv"])]
    seeds: Option<(u64, u64)>,
    #[command(flatten)]
    options: TraceOptions,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write load and states per 30 s to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Words for a [`PolicyKind`].
pub(super) const POLICIES: [&str; 4] = ["logstore", "two-speed", "div", "one-speed"];

/// `4x` or `4`. The simulation checks the range.
fn parse_rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('x').unwrap_or(text);
    number.parse().map_err(|_| format!("invalid rate {text:?}: write a factor, such as 4x"))
}

fn parse_limit(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time.is_zero() { Err("it must be longer than zero".into()) } else { Ok(time) }
}

fn disk(name: &str) -> Result<TwoSpeedModel, NodeError> {
    if name == "paper" {
        return Ok(TwoSpeedModel::paper());
    }
    let text = std::fs::read_to_string(name).map_err(io("read the disk model", name))?;
    match Path::new(name).extension().is_some_and(|ending| ending == "json") {
        true => serde_json::from_str(&text).map_err(|error| error.to_string()),
        false => toml::from_str(&text).map_err(|error| error.to_string()),
    }
    .map_err(|error| refused(format!("{name}: {}", numbers_in_words(&error))))
}

/// The trace, and its name.
fn open(args: &MirrorArgs, seed: u64) -> Result<(String, Box<dyn TraceReader>), NodeError> {
    let generated = args.trace.to_str().and_then(Workload::of_name);
    match generated {
        Some(workload) => {
            let daily = if args.before_cache { workload.before_cache() } else { workload.after_cache() };
            let trace = daily.requests(seed).map_err(refused)?;
            Ok((workload.name().to_owned(), Box::new(trace)))
        }
        None if args.before_cache => {
            Err(refused("--before-cache is for financial, proxy and search: remove it"))
        }
        None => {
            let files = std::slice::from_ref(&args.trace);
            let trace = args.options.open(files, &reading())?;
            Ok((traces::name_of(&args.trace), trace))
        }
    }
}

/// The files that the command reads.
fn inputs(args: &MirrorArgs) -> Inputs {
    let is_generated = args.trace.to_str().and_then(Workload::of_name).is_some();
    let trace = (!is_generated).then_some(&args.trace);
    Inputs::of(trace).and((args.disk != "paper").then_some(&args.disk))
}

fn simulated(args: &MirrorArgs, seed: u64) -> Result<Report, NodeError> {
    let (name, mut trace) = open(args, seed)?;
    let setup = Setup {
        settings: Settings {
            kind: args.policy,
            ack: args.ack,
            adaptive: args.adaptive.map(|response_limit| Adaptive { response_limit, ..Adaptive::default() }),
            ..Settings::default()
        },
        disk: disk(&args.disk)?,
        log_bytes: args.log.0,
        rate: args.rate,
        seed,
    };
    let mut progress = Progress::new();
    let found = simulate(&name, trace.as_mut(), &setup, &mut |requests| {
        progress.show(format_args!("{name}: {requests} requests simulated"));
    });
    progress.clear();
    found.map_err(refused)
}

/// With one seed after another.
fn several(args: &MirrorArgs, (from, to): (u64, u64)) -> Result<ExitCode, NodeError> {
    let (mut reports, mut failed) = (Vec::new(), 0);
    for seed in from..to {
        let report = simulated(args, seed)?;
        failed += report.requests.failed;
        reports.push(serde_json::to_value(&report).expect("our own types can be written as JSON"));
    }
    let spread = Spread::new(from, &reports);
    print(&spread, args.json, &inputs(args).seeded(spread.seeds));
    Ok(exit_code(failed))
}

pub fn run(args: &MirrorArgs) -> Result<ExitCode, NodeError> {
    args.html.iter().chain(&args.csv).try_for_each(|path| writable(path))?;
    if let Some(seeds) = args.seeds {
        return several(args, seeds);
    }
    let report = simulated(args, args.seed)?;
    args.html.iter().try_for_each(|file| write_file(file, page(&report)))?;
    args.csv.iter().try_for_each(|file| write_file(file, csv(&report)))?;
    print(&report, args.json, &inputs(args).seeded(args.seed));
    Ok(exit_code(report.requests.failed))
}

fn exit_code(failed: u64) -> ExitCode {
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

fn csv(report: &Report) -> String {
    let mut out = "second,offered_per_second,answered_per_second".to_owned();
    for disk in ["a", "b"] {
        for state in ["low", "low_log", "high", "change"] {
            let _ = write!(out, ",{disk}_{state}_seconds");
        }
    }
    for sample in &report.samples {
        let _ = write!(
            out,
            "\n{},{:.3},{:.3}",
            sample.at_seconds, sample.offered_per_second, sample.answered_per_second
        );
        for disk in &sample.disks {
            for seconds in [disk.low_seconds, disk.low_log_seconds, disk.high_seconds, disk.change_seconds] {
                let _ = write!(out, ",{seconds:.3}");
            }
        }
    }
    out.push('\n');
    out
}
