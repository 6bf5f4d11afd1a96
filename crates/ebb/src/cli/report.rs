//! The report of work that takes long: on standard output, and in a file.

use crate::cli::provenance::{self, Inputs};
use crate::error::{NodeError, io, writable};
use clap::Args;
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};

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

/// Writes a file that was asked for beside the report.
pub fn write_file(file: &Path, content: impl AsRef<[u8]>) -> Result<(), NodeError> {
    std::fs::write(file, content).map_err(io("write", file))?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

impl ReportArgs {
    /// Refuses a file that cannot be written, before the work.
    pub fn check(&self) -> Result<(), NodeError> {
        self.out.iter().try_for_each(|path| writable(path))
    }

    pub fn write(&self, report: &(impl Serialize + Display), inputs: &Inputs) -> Result<(), NodeError> {
        let json = (self.json || self.out.is_some()).then(|| provenance::json(report, inputs));
        if let Some((path, json)) = self.out.as_ref().zip(json.as_ref()) {
            std::fs::write(path, json).map_err(io("write", path))?;
        }
        match json.filter(|_| self.json) {
            Some(json) => println!("{json}"),
            None => println!("{report}"),
        }
        Ok(())
    }
}
