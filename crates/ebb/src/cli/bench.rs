//! `ebb lab bench`: performance of a storage service, and the CPU time its servers spend; and what one server sustains
//! ([`server`]).

pub mod server;
mod store;

use crate::cli::provenance::Inputs;
use crate::cli::report::ReportArgs;
use crate::error::{NodeError, refused};
use clap::Args;
use ebb_bench::{BenchOptions, Extent, bench_s3};
use ebb_output::Progress;
use ebb_types::{Bytes, parse_bytes};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Args)]
pub struct S3Args {
    /// http://host:port
    url: String,
    /// Where the bucket is created: for Ebb the name of an erasure-coded pool [default: the service's choice]
    #[arg(long, value_name = "NAME")]
    location: Option<String>,
    /// Server processes whose CPU time is counted
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
    /// Object sizes in bytes, or with a unit [default: 4KiB,64KiB,1MiB,16MiB]
    #[arg(long, value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Vec<Bytes>,
    /// Concurrent requests [default: 1,8,32]
    #[arg(long, value_delimiter = ',')]
    concurrency: Vec<usize>,
    /// Length of each measurement, in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    #[command(flatten)]
    report: ReportArgs,
}

impl S3Args {
    /// What is wrong with the command itself is said before what it lacks.
    fn options(&self) -> Result<BenchOptions, NodeError> {
        let mut options = BenchOptions::new(&self.url, "", "");
        options.extent = Extent::Time(Duration::from_secs(self.seconds));
        if !self.sizes.is_empty() {
            options.sizes = self.sizes.iter().map(|size| size.0).collect();
        }
        if !self.concurrency.is_empty() {
            options.concurrency.clone_from(&self.concurrency);
        }
        options.pids.clone_from(&self.pids);
        options.location.clone_from(&self.location);
        options.check().map_err(refused)?;
        self.report.check()?;
        options.access_key = key_from("AWS_ACCESS_KEY_ID")?;
        options.secret_key = key_from("AWS_SECRET_ACCESS_KEY")?;
        Ok(options)
    }
}

fn key_from(variable: &str) -> Result<String, NodeError> {
    std::env::var(variable)
        .map_err(|_| refused(format!("set {variable}: the endpoint refuses unsigned requests")))
}

pub async fn run(args: S3Args) -> Result<ExitCode, NodeError> {
    let options = args.options()?;
    let mut line = Progress::of_minutes();
    let report = bench_s3(&options, &mut |cell| line.show(format_args!("{cell}"))).await.map_err(refused)?;
    line.clear();
    args.report.write(&report, &Inputs::default())?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: S3Args,
    }

    #[test]
    fn a_wrong_command_is_named_before_keys_that_are_missing() {
        let said = |line: &[&str]| {
            let line = Line::try_parse_from([&["s3"], line].concat()).unwrap();
            line.args.options().expect_err("it is wrong").to_string()
        };
        for (line, expected) in [
            (&["ftp://x"][..], "\"ftp://x\" is not of the form http://"),
            (&["http://x", "--sizes", "4KiB,0"], "must not be empty or zero"),
            (&["http://x", "--pids", "4294967295"], "no CPU time of process 4294967295"),
            (&["http://x", "--out", "no/such/directory"], "cannot write no/such/directory"),
        ] {
            assert!(said(line).contains(expected), "{line:?}: {}", said(line));
        }
    }
}
