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
  ebb cost --cores 1,2,4,8 -- fio job.fio                 the sweep, drawn on to 1,024 cores
  ebb cost compare disk.json flash.json                   layer by layer

The command's output goes to standard error. Run it as root to see its own cgroup and the CPUs' counters, for
at least some seconds, on a machine that does nothing else.";

/// Longest report that is read back: some thousand runs.
const REPORT_MAX: u64 = 16 << 20;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CostArgs {
    #[command(subcommand)]
    what: Option<CostCommand>,
    /// Numbers of cores to run on, one after the other [default: all]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Runs on each number of cores
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Draw of the whole machine at its busiest, without storage, in watts
    #[arg(long, value_name = "WATTS", default_value_t = 400.0, value_parser = positive)]
    watts: f64,
    /// Shares of the peak that an idle machine draws, 0 to 1
    #[arg(long, value_name = "IP", value_delimiter = ',', default_value = "0.7,0", value_parser = fraction)]
    idle_fraction: Vec<f64>,
    /// Frequency of the cores in GHz, instead of what the machine says
    #[arg(long, value_parser = positive)]
    ghz: Option<f64>,
    /// What counts as I/O [default: the first of these that saw what the command moved]
    #[arg(long, value_enum)]
    io: Option<Io>,
    /// What the report calls itself [default: the host's name]
    #[arg(long)]
    label: Option<String>,
    /// Keep the report as JSON in this file, for `ebb cost compare`
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
    /// Two saved reports, layer by layer: host and guest, disk and flash, one system and another
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
    /// Sectors of the disks (/proc/diskstats)
    Devices,
    /// What the command asked storage for (/proc/PID/io)
    Storage,
    /// What passed its read and write calls (/proc/PID/io)
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
