//! `ebb cost`: cycles and joules per I/O of any command.

use crate::error::{NodeError, io};
use clap::{Args, Subcommand};
use ebb_lab::cost::{Comparison, CostOptions, CostReport, Hertz, IoSource, Progress, measure};
use ebb_report::{json, print};
use ebb_types::Watts;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Examples:
  ebb cost -- fio job.fio                                 on all cores
  ebb cost --runs 3 --save disk.json -- fio job.fio       three times; keep the report
  ebb cost --cores 1,2,4,8 -- fio job.fio                 a sweep, extrapolated to 1,024 cores
  ebb cost compare disk.json flash.json                   layer by layer

The command's output goes to standard error. Run as root to read its own cgroup and the CPU counters;
let the command run for at least a few seconds, on an otherwise idle machine.";

/// Longest report that is read back: some thousand runs.
const REPORT_MAX: u64 = 16 << 20;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CostArgs {
    #[command(subcommand)]
    what: Option<CostCommand>,
    /// Numbers of cores to run on, one after another [default: all]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Runs for each number of cores
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Power draw of the whole machine at full load, without storage, in watts
    #[arg(long, value_name = "WATTS", default_value_t = 400.0, value_parser = positive)]
    watts: f64,
    /// Idle power as a share of peak power, 0 to 1
    #[arg(long, value_name = "IP", value_delimiter = ',', default_value = "0.7,0", value_parser = fraction)]
    idle_fraction: Vec<f64>,
    /// Core frequency in GHz, instead of the value the machine reports
    #[arg(long, value_parser = positive)]
    ghz: Option<f64>,
    /// What counts as I/O [default: the first of these that saw the command's transfers]
    #[arg(long, value_enum)]
    io: Option<Io>,
    /// Name of the report [default: the host's name]
    #[arg(long)]
    label: Option<String>,
    /// Save the report as JSON to this file, for `ebb cost compare`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Subcommand)]
enum CostCommand {
    /// Compare two saved reports, layer by layer: host and guest, disk and flash, one system and another
    Compare {
        a: PathBuf,
        b: PathBuf,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Io {
    /// Sectors transferred by the disks (/proc/diskstats)
    Devices,
    /// Bytes the command requested from storage (/proc/PID/io)
    Storage,
    /// Bytes passed through its read and write calls (/proc/PID/io)
    Calls,
}

fn positive(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|e| e.to_string())?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err("it must be more than 0".into()) }
}

fn fraction(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|e| e.to_string())?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err("it must be from 0 to 1".into()) }
}

pub fn run(args: CostArgs) -> Result<ExitCode, NodeError> {
    if let Some(CostCommand::Compare { a, b, json }) = &args.what {
        let found = Comparison::new(&load(a)?, &load(b)?).map_err(refused)?;
        print(&found, *json);
        return Ok(ExitCode::SUCCESS);
    }
    let options = CostOptions {
        cores: args.cores,
        runs: args.runs as usize,
        peak: Watts(args.watts),
        idle_fractions: args.idle_fraction,
        frequency: args.ghz.map(|ghz| Hertz(ghz * 1e9)),
        io: args.io.map(|io| match io {
            Io::Devices => IoSource::Devices,
            Io::Storage => IoSource::Storage,
            Io::Calls => IoSource::Calls,
        }),
        label: args.label,
    };
    let mut line = ebb_report::Progress::new();
    let report = measure(&options, &args.command, &mut |progress| {
        let Progress { run, of, cores, elapsed } = progress;
        line.show(format_args!("run {run} of {of}, {cores} cores, {:.0} s", elapsed.as_secs_f64()));
    })
    .map_err(refused)?;
    line.clear();
    if let Some(file) = &args.save {
        std::fs::write(file, json(&report) + "\n").map_err(io("write", file))?;
    }
    print(&report, args.json);
    Ok(ExitCode::SUCCESS)
}

fn refused(error: ebb_lab::cost::CostError) -> NodeError {
    NodeError::Refused(error.to_string())
}

fn load(file: &Path) -> Result<CostReport, NodeError> {
    let mut text = String::new();
    let open = std::fs::File::open(file).map_err(io("open", file))?;
    open.take(REPORT_MAX).read_to_string(&mut text).map_err(io("read", file))?;
    let parsed = serde_json::from_str::<CostReport>(&text).map_err(|e| e.to_string());
    parsed.and_then(|report| report.check().map_err(|e| e.to_string())).map_err(|why| {
        NodeError::Refused(format!("{} is not a report of `ebb cost --save`: {why}", file.display()))
    })
}
