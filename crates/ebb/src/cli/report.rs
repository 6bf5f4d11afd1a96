//! The report of work that takes long: on standard output, and in a file.

use crate::error::{NodeError, io, writable};
use clap::Args;
use ebb_output::print_json;
use serde::Serialize;
use std::fmt::Display;
use std::path::PathBuf;

/// Where a long work leaves its report.
#[derive(Args, Clone)]
pub struct ReportArgs {
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Also write the report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl ReportArgs {
    /// Refuses a file that cannot be written, before the work.
    pub fn check(&self) -> Result<(), NodeError> {
        self.out.iter().try_for_each(|path| writable(path))
    }

    pub fn write(&self, report: &(impl Serialize + Display)) -> Result<(), NodeError> {
        if let Some(path) = &self.out {
            std::fs::write(path, ebb_output::json(report)).map_err(io("write", path))?;
        }
        if self.json {
            print_json(report);
        } else {
            println!("{report}");
        }
        Ok(())
    }
}
