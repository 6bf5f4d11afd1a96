//! `ebb simulate paper`: repeats a paper's evaluation, each number beside the paper's.

use crate::cli::trace::reading;
use crate::error::{NodeError, io};
use clap::{Args, Subcommand};
use ebb_lab::traces;
use ebb_report::{Progress, json};
use ebb_sim::load::{Series, read};
use ebb_sim::paper::{Findings, Inputs, made_up_series, sierra};
use ebb_trace::Options;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate paper sierra                                    on synthetic loads and requests
  ebb simulate paper sierra --series a.csv --series b.csv --trace block.csv --out sierra
                                                               write sierra.html, sierra.csv, sierra.json";

/// Clusters in which 1, 2, 4 and 7 servers rebuild a lost one.
const REBUILD_SERVERS: [u16; 4] = [6, 9, 15, 24];

#[derive(Args)]
pub struct PaperArgs {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Subcommand)]
enum Paper {
    /// Tables 1, 2 and 3, Figures 8 to 12, and the size of the metadata
    #[command(after_help = EXAMPLES)]
    Sierra(SierraArgs),
}

#[derive(Args)]
struct SierraArgs {
    /// A load series used in place of Hotmail's, at least a week: CSV, or one number per interval; may be repeated
    #[arg(long, value_name = "FILE")]
    series: Vec<PathBuf>,
    /// A block trace used in place of Hotmail's; several files of one trace are merged
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Requests of the synthetic day, without --trace
    #[arg(long, value_name = "N", default_value_t = 400_000, conflicts_with = "trace",
          value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    requests: u64,
    /// Data of the rebuilt server, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=1_000_000))]
    rebuild_mib: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write NAME.html, NAME.csv and NAME.json
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

pub fn run(args: &PaperArgs) -> Result<ExitCode, NodeError> {
    let Paper::Sierra(args) = &args.paper;
    let series = match args.series.is_empty() {
        true => made_up_series(args.seed),
        false => args.series.iter().map(|file| load(file)).collect::<Result<_, _>>()?,
    };
    let trace = match args.trace.is_empty() {
        true => None,
        false => {
            let read = traces::load(&args.trace, &Options::default(), &reading());
            Some(read.map_err(|e| NodeError::Refused(e.to_string()))?)
        }
    };
    let inputs = Inputs {
        series,
        trace,
        requests: args.requests,
        rebuild_bytes: args.rebuild_mib << 20,
        rebuild_servers: REBUILD_SERVERS.to_vec(),
        seed: args.seed,
    };
    let mut progress = Progress::new();
    let found =
        sierra(&inputs, &mut |what, done| progress.show(format_args!("{what}: {:.0} %", done * 100.0)));
    progress.clear();
    let found = found.map_err(|e| NodeError::Refused(e.to_string()))?;
    let json = json(&found);
    if let Some(name) = &args.out {
        write_files(name, &found, &json)?;
    }
    if args.json {
        println!("{json}")
    } else {
        print!("{}", found.text())
    }
    Ok(ExitCode::SUCCESS)
}

fn load(file: &Path) -> Result<(String, Series), NodeError> {
    let name = file.file_name().map_or_else(|| "series".into(), |name| name.to_string_lossy().into_owned());
    let input = Box::new(File::open(file).map_err(io("open", file))?);
    let mut series =
        read(input, &name, None).map_err(|e| NodeError::Refused(format!("{}: {e}", file.display())))?;
    let zeros = series.zeros_are_gaps();
    if zeros > 0 {
        eprintln!("{}: {zeros} intervals of exactly zero are treated as gaps", file.display());
    }
    Ok((name, series))
}

fn write_files(name: &Path, found: &Findings, json: &str) -> Result<(), NodeError> {
    let page = found.page();
    for (ending, content) in [("html", page.as_str()), ("csv", found.csv().as_str()), ("json", json)] {
        let file = name.with_extension(ending);
        fs::write(&file, content).map_err(io("write", &file))?;
        eprintln!("wrote {}", file.display());
    }
    Ok(())
}
