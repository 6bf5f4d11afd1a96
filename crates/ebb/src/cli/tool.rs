//! What every tool takes that talks to a cluster.

use clap::Args;
use ebb_output::print_json;
use ebb_types::parse_duration;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// What a command has found: for machines, or as text for people.
pub fn print(json: bool, found: &impl Serialize, text: impl Display) {
    if json { print_json(found) } else { print!("{text}") }
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
    pub fn print(&self, found: &impl Serialize, text: impl Display) {
        print(self.file.json, found, text);
    }

    /// That an order was taken.
    pub fn done(&self, text: impl Display) {
        self.print(&BTreeMap::from([("done", true)]), text);
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

/// How patient a command is that asks the metadata service.
#[derive(Args, Clone, Copy)]
pub struct WaitArgs {
    /// How long to wait for a metadata leader, such as 10s [default: 30s, but 3s where no process listens]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, global = true)]
    pub timeout: Option<Duration>,
}
