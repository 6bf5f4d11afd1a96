//! `ebb`: the one program. Each subcommand is a server of the cluster, or a tool that talks to one.

mod admin;
mod clock;
mod config;
mod dev;
mod error;
mod gateway;
mod gatewayd;
mod launch;
mod metad;
mod server;
mod status;
mod verify;

use admin::{GearCommand, Output};
use clap::{Args, Parser, Subcommand};
use config::Config;
use dev::DevOptions;
use ebb_gear::layout::Scheme;
use error::NodeError;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::task::LocalSet;

/// Where `ebb dev` keeps its cluster, and where the other commands look for one.
const DEV_DATA: &str = "data";

/// Storage whose power draw follows its load.
#[derive(Parser)]
#[command(name = "ebb", version, propagate_version = true, after_help = "\
Examples:
  ebb dev                              a cluster of nine servers on this machine, S3 on 127.0.0.1:9000
  ebb status                           what it does and what it draws
  ebb gear set 1                       keep one third of the servers awake
  ebb replay week.srt --speed 2000     a week of real load in five minutes, verified and metered

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a check found a difference.")]
struct Cli {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    /// Run a whole cluster on this machine until Ctrl-C; its data is there at the next start
    #[command(after_help = "Example: ebb dev --servers 12 --racks 4 --replicas 4 --data /var/tmp/ebb")]
    Dev(DevArgs),
    /// Run one chunk server of a configured cluster
    #[command(after_help = "Example: ebb server --config examples/cluster.toml --id 3")]
    Server {
        #[command(flatten)]
        config: ConfigArg,
        /// Its id in the configuration
        #[arg(long)]
        id: u16,
    },
    /// Run a metadata server of a configured cluster
    #[command(after_help = "Example: ebb meta --config examples/cluster.toml")]
    Meta {
        #[command(flatten)]
        config: ConfigArg,
        /// Its id in the configuration, where that has several
        #[arg(long)]
        id: Option<u64>,
    },
    /// Run an S3 gateway of a configured cluster
    #[command(after_help = "Example: ebb gateway --config examples/cluster.toml")]
    Gateway {
        #[command(flatten)]
        config: ConfigArg,
        /// Which one, where the configuration has several
        #[arg(long)]
        address: Option<String>,
    },
    /// Show what the cluster does; wakes nobody
    #[command(after_help = "Example: ebb status --json | jq .gear")]
    Status(ToolArgs),
    /// Show or choose the gear: how many of the gear groups are awake
    #[command(after_help = "Examples:\n  ebb gear set 1   hold gear 1\n  ebb gear auto    let load and forecast choose\n  ebb gear plan    what would the next day look like? Changes nothing")]
    Gear {
        #[command(subcommand)]
        command: GearCommand,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Declare a server gone for good: its data is rebuilt on others of its gear group
    #[command(after_help = "Example: ebb lost 4")]
    Lost {
        server: u16,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// Compare the content of all replicas (awake servers only: shift to the top gear first)
    #[command(after_help = "Example: ebb gear set 3 && ebb verify --read")]
    Verify {
        /// Read every block and check it, instead of comparing recorded checksums
        #[arg(long)]
        read: bool,
        #[command(flatten)]
        tool: ToolArgs,
    },
}

#[derive(Args)]
struct ConfigArg {
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Of the commands that talk to a running cluster.
#[derive(Args, Clone)]
struct ToolArgs {
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE", default_value = "data/cluster.toml", global = true)]
    config: PathBuf,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Args)]
struct DevArgs {
    /// Chunk servers [default: 9]
    #[arg(long)]
    servers: Option<u16>,
    /// Racks that they stand in [default: 3]
    #[arg(long)]
    racks: Option<u16>,
    /// Copies of everything, 2 to 4 [default: 3]
    #[arg(long)]
    replicas: Option<u8>,
    /// rotated or rack-aligned [default: rotated]
    #[arg(long)]
    layout: Option<Scheme>,
    /// Chunk size in MiB, a power of two up to 64 [default: 64]
    #[arg(long)]
    chunk_mib: Option<u32>,
    /// Metadata servers, 1, 3 or 5 [default: 1]
    #[arg(long)]
    meta: Option<u16>,
    /// S3 port; the servers' ports follow 100 above it [default: 9000, or free ones with --ephemeral]
    #[arg(long)]
    port: Option<u16>,
    /// How far down sleeping servers go: standby or off [default: standby]
    #[arg(long, value_parser = parse_depth)]
    depth: Option<ebb_power::Depth>,
    /// Where the cluster lives
    #[arg(long, value_name = "DIR", default_value = DEV_DATA, conflicts_with = "ephemeral")]
    data: PathBuf,
    /// Keep nothing: the data goes when the cluster stops
    #[arg(long)]
    ephemeral: bool,
    /// Print one JSON object when the cluster is ready, and nothing else
    #[arg(long)]
    json: bool,
}

fn parse_depth(text: &str) -> Result<ebb_power::Depth, String> {
    match text {
        "standby" => Ok(ebb_power::Depth::Standby),
        "off" => Ok(ebb_power::Depth::Off),
        other => Err(format!("{other:?} is not a depth: use standby or off")),
    }
}

impl DevArgs {
    fn options(&self) -> DevOptions {
        DevOptions {
            servers: self.servers,
            racks: self.racks,
            replicas: self.replicas,
            layout: self.layout,
            chunk_mib: self.chunk_mib,
            depth: self.depth,
            port: self.port,
            meta: self.meta,
        }
    }

    fn data(&self) -> Option<&Path> {
        (!self.ephemeral).then_some(self.data.as_path())
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let default = if matches!(cli.command, Sub::Server { .. } | Sub::Meta { .. } | Sub::Gateway { .. }) {
        "info"
    } else {
        "warn"
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("EBB_LOG").unwrap_or_else(|_| default.into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => LocalSet::new().block_on(&runtime, run(cli)),
        Err(source) => Err(NodeError::Io { action: "start", path: "the runtime".into(), source }),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ebb: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode, NodeError> {
    match cli.command {
        Sub::Dev(args) => admin::dev(args.data(), &args.options(), args.json).await,
        Sub::Server { config, id } => done(server::run(&Config::load(&config.config)?, id).await),
        Sub::Meta { config, id } => done(metad::run(&Config::load(&config.config)?, id).await),
        Sub::Gateway { config, address } => {
            done(gatewayd::run(&Config::load(&config.config)?, address.as_deref()).await)
        }
        Sub::Status(tool) => admin::show_status(&tool.config, Output::from(tool.json)).await,
        Sub::Gear { command, tool } => admin::gear(&tool.config, Output::from(tool.json), command).await,
        Sub::Lost { server, tool } => admin::lost(&tool.config, Output::from(tool.json), server).await,
        Sub::Verify { read, tool } => admin::verify(&tool.config, Output::from(tool.json), read).await,
    }
}

fn done(outcome: Result<(), NodeError>) -> Result<ExitCode, NodeError> {
    outcome.map(|()| ExitCode::SUCCESS)
}
