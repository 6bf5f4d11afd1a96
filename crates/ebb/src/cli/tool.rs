//! What every tool takes that talks to a cluster.

use clap::Args;
use ebb_types::parse_duration;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
}

impl From<bool> for Output {
    fn from(json: bool) -> Output {
        if json { Output::Json } else { Output::Text }
    }
}

/// Arguments of the commands that talk to a running cluster.
#[derive(Args, Clone)]
pub struct ToolArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub wait: WaitArgs,
}

impl ToolArgs {
    pub fn output(&self) -> Output {
        self.file.output()
    }
}

/// Arguments of the commands that read a configuration.
#[derive(Args, Clone)]
pub struct FileArgs {
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE", default_value = "data/cluster.toml", global = true)]
    pub config: PathBuf,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long, global = true)]
    pub json: bool,
}

impl FileArgs {
    pub fn output(&self) -> Output {
        Output::from(self.json)
    }
}

/// How patient a command is that asks the metadata service.
#[derive(Args, Clone, Copy)]
pub struct WaitArgs {
    /// How long to wait for a metadata leader, such as 10s [default: 30s, but 3s where no process listens]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, global = true)]
    pub timeout: Option<Duration>,
}
