//! `ebb lab`: the instrument. It replays, measures and compares any storage, Ebb first; none of it needs a cluster but
//! what measures one.

mod provenance;
mod serve;

use crate::cli::{bench, cost, eval, meter, replay, trace};
use crate::error::NodeError;
use clap::Subcommand;
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Examples:
  ebb lab replay week.srt --speed 2000                      a week of real load on a cluster, verified and metered
  ebb lab trace info week.srt                               what a trace is like
  ebb lab eval run matrix.toml                              many load levels, unattended, with the power drawn
  ebb lab serve --target file:/var/tmp/x --meter rapl       the same from a browser";

const SERVE_EXAMPLES: &str = "\
Examples:
  ebb lab serve --db results.sqlite                         look at what `ebb lab eval run` has found
  ebb lab serve --target file:/var/tmp/x --meter rapl       and evaluate this file, with this meter, from the page
  ebb lab serve --target /dev/nvme1n1 --depository traces   a device, under recorded traces, too";

#[derive(Subcommand)]
pub enum LabCommand {
    /// Replay a real trace on a cluster, verified byte by byte, with performance and energy; or on any storage
    /// (--target)
    #[command(after_help = replay::EXAMPLES)]
    Replay(Box<replay::ReplayArgs>),
    /// Measure a storage service, or one server
    Bench {
        #[command(subcommand)]
        target: BenchTarget,
    },
    /// Measure cycles and modelled joules per I/O of any command, by layer: user code, kernel, waiting
    #[command(after_help = cost::EXAMPLES)]
    Cost(cost::CostArgs),
    /// Inspect, convert, generate, record and find block traces
    #[command(after_help = trace::EXAMPLES)]
    Trace {
        #[command(subcommand)]
        command: trace::TraceCommand,
    },
    /// List what this machine can measure (power, energy, temperature), and read it
    #[command(after_help = meter::EXAMPLES)]
    Meter {
        #[command(subcommand)]
        command: meter::MeterCommand,
    },
    /// Evaluate storage: workloads at many load levels, unattended, with the power drawn
    #[command(after_help = eval::EVAL_EXAMPLES)]
    Eval {
        #[command(subcommand)]
        command: eval::EvalCommand,
    },
    /// Show where a report's figures come from, run its command again, and compare
    #[command(after_help = provenance::EXAMPLES)]
    Provenance(provenance::ProvenanceArgs),
    /// Serve a page that shows evaluations in a browser: results, the current campaign, matrices
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(serve::ServeArgs),
    /// Generate load or read power for an evaluation host on another machine
    #[command(after_help = eval::AGENT_EXAMPLES)]
    Agent(eval::AgentArgs),
}

impl LabCommand {
    /// Whether it stores user data or results. The others only write files that the user names.
    pub fn keeps_data(&self) -> bool {
        use LabCommand::{Agent, Eval, Replay, Serve};
        matches!(self, Replay(_) | Eval { .. } | Serve(_) | Agent(_))
    }

    /// Whether it is a server, whose log says what it does.
    pub fn serves(&self) -> bool {
        matches!(self, LabCommand::Serve(_))
    }
}

#[derive(Subcommand)]
pub enum BenchTarget {
    /// Measure any S3 endpoint: objects per second, latency, CPU of the server processes. Keys from AWS_ACCESS_KEY_ID
    /// and AWS_SECRET_ACCESS_KEY
    #[command(
        after_help = "Example: ebb lab bench s3 http://127.0.0.1:9000 --pids $(pgrep -d, ebb) --seconds 1"
    )]
    S3(bench::S3Args),
    /// Measure what one server's disk sustains, for `[scheduler]`
    #[command(after_help = bench::server::EXAMPLE)]
    Server(bench::server::ServerArgs),
}

pub async fn run(command: LabCommand) -> Result<ExitCode, NodeError> {
    match command {
        LabCommand::Replay(args) => replay::run(&args).await,
        LabCommand::Bench { target: BenchTarget::S3(args) } => bench::run(args).await,
        LabCommand::Bench { target: BenchTarget::Server(args) } => bench::server::run(args).await,
        LabCommand::Cost(args) => cost::run(args),
        LabCommand::Trace { command } => trace::run(command),
        LabCommand::Meter { command } => meter::run(command).await,
        LabCommand::Eval { command } => eval::eval(command).await,
        LabCommand::Provenance(args) => provenance::run(&args),
        LabCommand::Serve(args) => serve::run(args).await,
        LabCommand::Agent(args) => eval::agent(args).await,
    }
}
