//! `ebb lab cost`: cycles and joules per I/O of any command.

use crate::cli::provenance::{Inputs, json, print};
use crate::cli::report::write_file;
use crate::error::{NodeError, io, refused, writable};
use clap::{Args, Subcommand};
use ebb_cost::suite::{Accelerator, Dataset, GuestOptions, SuiteOptions, SuiteReport, Workload, run_suite};
use ebb_cost::{Comparison, CostOptions, CostReport, Hertz, IoSource, Progress, Service, attach, measure};
use ebb_types::{Watts, parse_duration};
use std::fs::OpenOptions;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  ebb lab cost -- fio job.fio                                 on all cores
  ebb lab cost --runs 3 --save disk.json -- fio job.fio       three times; keep the report
  ebb lab cost --cores 1,2,4,8 -- fio job.fio                 a sweep, extrapolated to 1,024 cores
  ebb lab cost --for 60s -- redis-server redis.conf           a window of what does not end, then stop it
  ebb lab cost --for 60s --pid 4711                           a window of a service that runs
  ebb lab cost --for 60s --cgroup system.slice/minio.service
  ebb lab cost suite examples/os-layers --out os-layers       eight workloads and their figures
  ebb lab cost compare disk.json flash.json                   layer by layer

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
    /// Measure for this time instead of to the command's end, then stop the command; a running service keeps running
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    window: Option<Duration>,
    /// Measure this process, with its descendants, instead of a command
    #[arg(long, value_name = "PID", requires = "window", conflicts_with_all = ["cores", "cgroup"])]
    pid: Option<u32>,
    /// Measure this cgroup (v2), such as system.slice/NAME.service, instead of a command
    #[arg(long, value_name = "NAME", requires = "window", conflicts_with = "cores")]
    cgroup: Option<String>,
    /// Save the report as JSON to this file, for `ebb lab cost compare`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required_unless_present_any = ["pid", "cgroup"], conflicts_with_all = ["pid", "cgroup"])]
    command: Vec<String>,
}

const SUITE_EXAMPLES: &str = "\
Examples:
  ebb lab cost suite examples/os-layers --out os-layers            write os-layers.html and os-layers.json
  ebb lab cost suite examples/os-layers/checkpoint.toml --runs 5   one workload
  ebb lab cost suite examples/os-layers --vm 1,2 --vm-kernel vm    also in one and in two virtual machines

A workload whose programs are not installed is skipped. Run as root to read the CPU counters, on an
otherwise idle machine. docs/os-layers.md says what is measured, and how to write a workload.";

#[derive(Args)]
struct SuiteArgs {
    /// Workload files, or directories of them
    #[arg(required = true, value_name = "PATH")]
    workloads: Vec<PathBuf>,
    /// Numbers of cores to run on, one after another [default: 1, 2, 4 and so on, and all]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Runs for each number of cores
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Amount of data; 1 is about a tenth to one gigabyte per workload
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    scale: u32,
    /// Seed of the generated data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the workloads' data, on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Power draw of the whole machine at full load, without storage, in watts
    #[arg(long, value_name = "WATTS", default_value_t = 400.0, value_parser = positive)]
    watts: f64,
    /// Core frequency in GHz, instead of the value the machine reports
    #[arg(long, value_parser = positive)]
    ghz: Option<f64>,
    /// What counts as I/O [default: for each workload, the first of these that saw its transfers]
    #[arg(long, value_enum)]
    io: Option<Io>,
    /// Also run each workload in this many virtual machines at once (QEMU)
    #[arg(long, value_name = "GUESTS", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=16))]
    vm: Vec<u8>,
    /// Directory with boot/vmlinuz-RELEASE and lib/modules/RELEASE for them, with the drivers of 9p and ext4
    #[arg(long, value_name = "DIR", default_value = "/", requires = "vm")]
    vm_kernel: PathBuf,
    /// What runs them [default: kvm if /dev/kvm can be opened, else tcg]
    #[arg(long, value_enum, requires = "vm")]
    vm_accelerator: Option<VmAccelerator>,
    /// Write NAME.html, the figures, and NAME.json
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum VmAccelerator {
    /// The processor's virtualization
    Kvm,
    /// Emulation by software: the figures are the emulation's
    Tcg,
}

#[derive(Subcommand)]
enum CostCommand {
    /// Measure a set of workloads, and draw the figures of the paper on the OS layers
    #[command(after_help = SUITE_EXAMPLES)]
    Suite(Box<SuiteArgs>),
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

impl Io {
    fn source(self) -> IoSource {
        match self {
            Io::Devices => IoSource::Devices,
            Io::Storage => IoSource::Storage,
            Io::Calls => IoSource::Calls,
        }
    }
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
    match &args.what {
        Some(CostCommand::Compare { a, b, json }) => {
            let found = Comparison::new(&load(a)?, &load(b)?).map_err(refused)?;
            print(&found, *json, &Inputs::of([a, b]));
            return Ok(ExitCode::SUCCESS);
        }
        Some(CostCommand::Suite(args)) => return suite(args),
        None => {}
    }
    let options = CostOptions {
        cores: args.cores,
        runs: args.runs as usize,
        peak: Watts(args.watts),
        idle_fractions: args.idle_fraction,
        frequency: args.ghz.map(|ghz| Hertz(ghz * 1e9)),
        io: args.io.map(Io::source),
        window: args.window,
        label: args.label,
    };
    let service = args.pid.map(Service::Process).or(args.cgroup.map(Service::Cgroup));
    args.save.as_deref().map_or(Ok(()), writable)?;
    let mut line = ebb_output::Progress::new();
    let mut tell = |progress| {
        let Progress { run, of, cores, elapsed } = progress;
        line.show(format_args!("run {run} of {of}, {cores} cores, {:.0} s", elapsed.as_secs_f64()));
    };
    let report = match &service {
        Some(service) => attach(&options, service, &mut tell),
        None => measure(&options, &args.command, &mut tell),
    }
    .map_err(refused)?;
    line.clear();
    // What the command reads, only the command knows.
    let inputs = Inputs::default();
    if let Some(file) = &args.save {
        std::fs::write(file, json(&report, &inputs) + "\n").map_err(io("write", file))?;
    }
    print(&report, args.json, &inputs);
    Ok(ExitCode::SUCCESS)
}

fn suite(args: &SuiteArgs) -> Result<ExitCode, NodeError> {
    let workloads = Workload::load_all(&args.workloads).map_err(refused)?;
    let guests = (!args.vm.is_empty()).then(|| GuestOptions {
        counts: args.vm.iter().map(|count| usize::from(*count)).collect(),
        kernel: args.vm_kernel.clone(),
        accelerator: match args.vm_accelerator {
            Some(VmAccelerator::Kvm) => Accelerator::Kvm,
            Some(VmAccelerator::Tcg) => Accelerator::Tcg,
            None if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok() => Accelerator::Kvm,
            None => Accelerator::Tcg,
        },
    });
    guests.as_ref().map_or(Ok(()), GuestOptions::check).map_err(NodeError::Refused)?;
    let files = args.out.as_ref().map(|name| [name.with_extension("html"), name.with_extension("json")]);
    files.iter().flatten().try_for_each(|file| writable(file))?;
    let options = SuiteOptions {
        cost: CostOptions {
            cores: args.cores.clone(),
            runs: args.runs as usize,
            peak: Watts(args.watts),
            frequency: args.ghz.map(|ghz| Hertz(ghz * 1e9)),
            io: args.io.map(Io::source),
            ..CostOptions::default()
        },
        data: Dataset { scale: args.scale, seed: args.seed },
        directory: args.dir.clone(),
        guests,
    };
    let mut line = ebb_output::Progress::new();
    let report = run_suite(&options, &workloads, &mut |what| line.show(what)).map_err(refused)?;
    line.clear();
    let inputs = Inputs::of(&args.workloads).seeded(args.seed);
    if let Some([page, data]) = &files {
        write_file(page, report.page())?;
        write_file(data, json(&report, &inputs) + "\n")?;
    }
    print(&report, args.json, &inputs);
    Ok(exit_code(&report))
}

/// What was skipped is not a failure.
fn exit_code(report: &SuiteReport) -> ExitCode {
    if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

fn load(file: &Path) -> Result<CostReport, NodeError> {
    let mut text = String::new();
    let open = std::fs::File::open(file).map_err(io("open", file))?;
    open.take(REPORT_MAX).read_to_string(&mut text).map_err(io("read", file))?;
    let parsed = serde_json::from_str::<CostReport>(&text).map_err(|e| e.to_string());
    parsed
        .and_then(|report| report.check().map_err(|e| e.to_string()))
        .map_err(|why| refused(format!("{} is not a report of `ebb lab cost --save`: {why}", file.display())))
}
