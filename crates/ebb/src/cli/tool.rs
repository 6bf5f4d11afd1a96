//! What every tool takes that talks to a cluster.

use clap::Args;
use std::path::PathBuf;

/// Arguments of the commands that talk to a running cluster.
#[derive(Args, Clone)]
pub struct ToolArgs {
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE", default_value = "data/cluster.toml", global = true)]
    pub config: PathBuf,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long, global = true)]
    pub json: bool,
}
