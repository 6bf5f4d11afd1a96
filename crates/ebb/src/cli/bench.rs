//! `ebb lab bench`: performance of a storage service, and the CPU time its servers spend; and what one server sustains
//! ([`server`]).

pub mod server;
mod store;

use crate::cli::replay::write_report;
use crate::error::{NodeError, writable};
use ebb_bench::{BenchOptions, Extent, bench_s3};
use ebb_output::Progress;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

pub struct BenchRequest<'a> {
    pub endpoint: &'a str,
    pub access_key: String,
    pub secret_key: String,
    pub location: Option<String>,
    pub pids: Vec<u32>,
    pub sizes: Vec<u64>,
    pub concurrency: Vec<usize>,
    pub cell: Duration,
    pub json: Option<&'a Path>,
}

pub async fn run(request: BenchRequest<'_>) -> Result<ExitCode, NodeError> {
    if let Some(path) = request.json.filter(|path| *path != Path::new("-")) {
        writable(path)?;
    }
    let mut options = BenchOptions::new(request.endpoint, &request.access_key, &request.secret_key);
    options.extent = Extent::Time(request.cell);
    if !request.sizes.is_empty() {
        options.sizes = request.sizes;
    }
    if !request.concurrency.is_empty() {
        options.concurrency = request.concurrency;
    }
    options.pids = request.pids;
    options.location = request.location;
    let mut line = Progress::new();
    let report = bench_s3(&options, &mut |cell| line.show(format_args!("{cell}")))
        .await
        .map_err(|e| NodeError::Refused(e.to_string()))?;
    line.clear();
    write_report(&report, request.json)?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
