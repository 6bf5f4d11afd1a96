//! `ebb simulate paper`: repeats a paper's evaluation, each number beside the paper's.

use super::seeds::{Spread, parse_seeds};
use crate::cli::provenance::{self, Inputs as Sources};
use crate::cli::report::write_file;
use crate::cli::trace::reading;
use crate::error::{NodeError, io, refused, writable};
use clap::{Args, Subcommand};
use ebb_eval::traces;
use ebb_output::Progress;
use ebb_papers::{Ecs2Inputs, Effort, Findings, Inputs, LogStoreInputs, PaperError, ecs2, logstore, sierra};
use ebb_sim::load::{Given, Series, read};
use ebb_trace::{Options, Trace};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate paper sierra                                    on synthetic loads and requests, about a minute
  ebb simulate paper sierra --series traces/load               on every .csv there
  ebb simulate paper sierra --series a.csv --series b.csv --trace block.csv --out sierra
                                                               write sierra.html, sierra.csv, sierra.json
  ebb simulate paper logstore --out logstore                   on generated traces, about a minute
  ebb simulate paper ecs2                                      on generated hours, some minutes";

/// Of the files that `--out` names.
const ENDINGS: [&str; 3] = ["html", "csv", "json"];

#[derive(Args)]
pub struct PaperArgs {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Subcommand)]
enum Paper {
    /// Tables 1 to 5, Figures 1, 2, 4 and 8 to 12, and the size of the metadata
    #[command(after_help = EXAMPLES)]
    Sierra(SierraArgs),
    /// Tables 2, 3 and 4, Figures 1, 5 and 6, the read-only trace, and the sensitivity analysis
    #[command(after_help = LOGSTORE_EXAMPLES)]
    Logstore(LogStoreArgs),
    /// Tables V, VII and VIII, Figures 9 to 15, and the models; beside Table VII, replicas with gears and hibernation
    #[command(after_help = ECS2_EXAMPLES)]
    Ecs2(Ecs2Args),
    /// All three on generated loads and traces, about three minutes
    #[command(after_help = ALL_EXAMPLES)]
    All(Shown),
}

const ALL_EXAMPLES: &str = "\
Examples:
  ebb simulate paper all                                       exit code 3: a figure is outside of its band
  ebb simulate paper all --out mine                            write mine-sierra.html, mine-logstore.json and so on";

const ECS2_EXAMPLES: &str = "\
Examples:
  ebb simulate paper ecs2                                      on generated hours, some minutes
  ebb simulate paper ecs2 --trace dtrs.ssdsim --out ecs2       also on a trace; write ecs2.html, ecs2.csv, ecs2.json";

#[derive(Args)]
struct Ecs2Args {
    /// A block trace that is run on the paper's set, too; may be repeated
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    #[command(flatten)]
    shown: Shown,
}

const LOGSTORE_EXAMPLES: &str = "\
Examples:
  ebb simulate paper logstore                                  on generated traces, about a minute
  ebb simulate paper logstore --trace Financial1.spc --out logstore
                                                               also on a trace; write logstore.html, logstore.csv, logstore.json";

#[derive(Args)]
struct LogStoreArgs {
    /// A block trace on which the systems are compared, too: the published parts of the paper's; may be repeated
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    #[command(flatten)]
    shown: Shown,
}

/// How the findings are shown.
#[derive(Args, Clone)]
struct Shown {
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds from A up to but not including B, one after another: the mean and the range of every figure
    #[arg(long, value_name = "A..B", value_parser = parse_seeds, conflicts_with_all = ["seed", "out"])]
    seeds: Option<(u64, u64)>,
    /// Write NAME.html, NAME.csv and NAME.json
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

const REQUESTS: u64 = 400_000;
const REBUILD_MIB: u64 = 204_800;

#[derive(Args)]
struct SierraArgs {
    /// A load series used in place of Hotmail's, at least a week: CSV, or one number per interval; or a directory of
    /// such .csv files; may be repeated
    #[arg(long, value_name = "FILE")]
    series: Vec<PathBuf>,
    /// A block trace used in place of Hotmail's; several files of one trace are merged
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Requests of the synthetic day, without --trace
    #[arg(long, value_name = "N", default_value_t = REQUESTS, conflicts_with = "trace",
          value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    requests: u64,
    /// Data of the rebuilt server, in MiB; the default is the paper's 200 GB
    #[arg(long, value_name = "MIB", default_value_t = REBUILD_MIB, value_parser = clap::value_parser!(u64).range(64..=10_000_000))]
    rebuild_mib: u64,
    #[command(flatten)]
    shown: Shown,
}

pub fn run(args: &PaperArgs) -> Result<ExitCode, NodeError> {
    match &args.paper {
        Paper::Sierra(args) => args.shown.is_writable().and_then(|()| run_sierra(args)),
        Paper::Logstore(args) => args.shown.is_writable().and_then(|()| run_logstore(args)),
        Paper::Ecs2(args) => args.shown.is_writable().and_then(|()| run_ecs2(args)),
        Paper::All(shown) => run_all(shown),
    }
}

impl Shown {
    /// Said before minutes of work.
    fn is_writable(&self) -> Result<(), NodeError> {
        let names = self.out.iter().flat_map(|name| ENDINGS.map(|ending| name.with_extension(ending)));
        names.into_iter().try_for_each(|name| writable(&name))
    }

    /// Of one of several papers.
    fn of(&self, paper: &str) -> Result<Shown, NodeError> {
        let named = |name: &PathBuf| {
            let mut name = name.clone().into_os_string();
            name.push(format!("-{paper}"));
            PathBuf::from(name)
        };
        let shown = Shown { out: self.out.as_ref().map(named), ..self.clone() };
        shown.is_writable().map(|()| shown)
    }
}

/// One after another. The exit code is the first that is not zero.
fn run_all(shown: &Shown) -> Result<ExitCode, NodeError> {
    let [of_sierra, of_logstore, of_ecs2] = ["sierra", "logstore", "ecs2"].map(|paper| shown.of(paper));
    let (trace, series) = (Vec::new(), Vec::new());
    let sierra = SierraArgs {
        series,
        trace: trace.clone(),
        requests: REQUESTS,
        rebuild_mib: REBUILD_MIB,
        shown: of_sierra?,
    };
    let logstore = LogStoreArgs { trace: trace.clone(), shown: of_logstore? };
    let ecs2 = Ecs2Args { trace, shown: of_ecs2? };
    let codes = [run_sierra(&sierra)?, run_logstore(&logstore)?, run_ecs2(&ecs2)?];
    Ok(codes.into_iter().find(|code| *code != ExitCode::SUCCESS).unwrap_or(ExitCode::SUCCESS))
}

fn run_sierra(args: &SierraArgs) -> Result<ExitCode, NodeError> {
    let files = series_files(&args.series)?;
    let series = match files.is_empty() {
        true => None,
        false => Some(files.iter().map(|file| load(file)).collect::<Result<_, _>>()?),
    };
    let trace = match args.trace.is_empty() {
        true => None,
        false => Some(read_trace(&args.trace)?),
    };
    let effort = Effort { rebuild_bytes: args.rebuild_mib << 20, ..Effort::default() };
    let mut inputs = Inputs { series, trace, requests: args.requests, effort, seed: args.shown.seed };
    let sources = Sources::of(&files).and(&args.trace);
    show(&args.shown, sources, |seed, tell| {
        inputs.seed = seed;
        sierra(&inputs, tell)
    })
}

fn run_logstore(args: &LogStoreArgs) -> Result<ExitCode, NodeError> {
    let mut inputs = LogStoreInputs { traces: read_traces(&args.trace)?, part: 1, seed: args.shown.seed };
    show(&args.shown, Sources::of(&args.trace), |seed, tell| {
        inputs.seed = seed;
        logstore(&inputs, tell)
    })
}

fn run_ecs2(args: &Ecs2Args) -> Result<ExitCode, NodeError> {
    let mut inputs = Ecs2Inputs { traces: read_traces(&args.trace)?, seconds: 3600, seed: args.shown.seed };
    show(&args.shown, Sources::of(&args.trace), |seed, tell| {
        inputs.seed = seed;
        ecs2(&inputs, tell)
    })
}

fn read_traces(files: &[PathBuf]) -> Result<Vec<Trace>, NodeError> {
    files.iter().map(|file| read_trace(std::slice::from_ref(file))).collect()
}

fn read_trace(files: &[PathBuf]) -> Result<Trace, NodeError> {
    traces::load(files, &Options::default(), &reading()).map_err(refused)
}

/// Repeats the evaluation with a line of progress, and shows what it found.
fn show(
    shown: &Shown,
    sources: Sources,
    mut repeat: impl FnMut(u64, &mut dyn FnMut(&str, f64)) -> Result<Findings, PaperError>,
) -> Result<ExitCode, NodeError> {
    let (first, last) = shown.seeds.map_or((shown.seed, shown.seed), |(from, to)| (from, to - 1));
    let (mut reports, mut outside) = (Vec::new(), Vec::<String>::new());
    for seed in first..=last {
        let of = if shown.seeds.is_some() { format!("seed {seed}: ") } else { String::new() };
        let mut progress = Progress::new();
        let tell = &mut |what: &str, done: f64| {
            progress.show(format_args!("{of}{what}: {:.0} %", done * 100.0));
        };
        let found = repeat(seed, tell);
        progress.clear();
        let found = found.map_err(refused)?;
        outside.extend(found.outside().map(|(name, row)| format!("{of}{name}: {}", row.what)));
        if shown.seeds.is_none() {
            show_one(shown, &found, &sources.clone().seeded(seed))?;
        } else {
            reports.push(serde_json::to_value(&found).expect("our own types can be written as JSON"));
        }
    }
    if shown.seeds.is_some() {
        let spread = Spread::new(first, &reports);
        provenance::print(&spread, shown.json, &sources.seeded(spread.seeds));
    }
    if outside.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("outside of their bands: {}", outside.join("; "));
    Ok(ExitCode::from(3))
}

fn show_one(shown: &Shown, found: &Findings, sources: &Sources) -> Result<(), NodeError> {
    if shown.json || shown.out.is_some() {
        let json = provenance::json(found, sources);
        shown.out.iter().try_for_each(|name| write_files(name, found, &json))?;
        if shown.json {
            println!("{json}");
        }
    }
    if !shown.json {
        print!("{}", found.text());
    }
    Ok(())
}

/// Files as they are, and the `.csv` files of directories, in order.
fn series_files(given: &[PathBuf]) -> Result<Vec<PathBuf>, NodeError> {
    let mut files = Vec::new();
    for path in given {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let there = fs::read_dir(path).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
        });
        let mut there = there.map_err(io("read", path))?;
        there.retain(|file| file.extension().is_some_and(|ending| ending == "csv"));
        there.sort();
        if there.is_empty() {
            return Err(refused(format!("{} has no .csv file: name the series", path.display())));
        }
        files.extend(there);
    }
    Ok(files)
}

fn load(file: &Path) -> Result<(String, Series), NodeError> {
    let name = file.file_name().map_or_else(|| "series".into(), |name| name.to_string_lossy().into_owned());
    let input = Box::new(File::open(file).map_err(io("open", file))?);
    let mut series =
        read(input, &name, &Given::default()).map_err(|e| refused(format!("{}: {e}", file.display())))?;
    let zeros = series.zeros_are_gaps();
    if zeros > 0 {
        eprintln!("{}: {zeros} intervals of exactly zero are treated as gaps", file.display());
    }
    Ok((name, series))
}

fn write_files(name: &Path, found: &Findings, json: &str) -> Result<(), NodeError> {
    let page = found.page();
    for (ending, content) in ENDINGS.into_iter().zip([page.as_str(), found.csv().as_str(), json]) {
        write_file(&name.with_extension(ending), content)?;
    }
    Ok(())
}
