//! `ebb replay TRACE --target …`: a trace on any storage, at any intensity.

use crate::config::Config;
use crate::dev::Connector;
use crate::error::{NodeError, io};
use crate::evaluate::write_report;
use crate::trace_tool::{Percent, parse_size, parse_time};
use clap::{Args, ValueEnum};
use ebb_lab::drive::{
    DriveOptions, DriveProgress, DriveReport, OpenOptions, Pacing, PastEnd, S3Keys, Target, TargetSpec, drive,
};
use ebb_lab::traces;
use ebb_report::Progress;
use ebb_trace::{BalancedFilter, Format, Scaled, TraceReader};
use ebb_types::Bytes;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Where the cluster of a volume is looked for.
const CONFIG: &str = "data/cluster.toml";
const REGION: &str = "us-east-1";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PastEndArg {
    /// The offset is taken modulo the target's size
    Wrap,
    /// The replay ends with an error
    Refuse,
}

/// Options of a replay that is not on a cluster.
#[derive(Args)]
pub struct TargetArgs {
    /// Replay on this storage, unverified: file:PATH, /dev/DEVICE, nbd://HOST[:PORT]/EXPORT, http://HOST:PORT/BUCKET (S3), ebb:VOLUME
    #[arg(long, value_name = "TARGET", conflicts_with_all = ["provision", "servers", "racks"])]
    pub target: Option<TargetSpec>,
    /// Keep this share of the trace's load, such as 30%
    #[arg(long, value_name = "PERCENT", requires = "target")]
    load: Option<Percent>,
    /// Scale the trace's rate by shrinking the time between requests, such as 250% (1% to 1000%)
    #[arg(long, value_name = "PERCENT", requires = "target")]
    intensity: Option<Percent>,
    /// Pass over the times and keep so many requests in flight
    #[arg(long, value_name = "DEPTH", requires = "target", conflicts_with = "speed")]
    peak: Option<usize>,
    /// Bytes of the target to use, such as 10GiB; what does not exist is made in this size
    #[arg(long, value_name = "SIZE", requires = "target", value_parser = parse_size)]
    size: Option<u64>,
    /// Destroy what the target holds
    #[arg(long, requires = "target")]
    overwrite: bool,
    /// End after this time, such as 30s
    #[arg(long, value_name = "TIME", requires = "target", value_parser = parse_time)]
    duration: Option<Duration>,
    /// Leave the first so long, such as 5s, out of the figures
    #[arg(long, value_name = "TIME", requires = "target", value_parser = parse_time)]
    warmup: Option<Duration>,
    /// Most requests in flight when the times are kept; never more than a device takes at a time
    #[arg(long, value_name = "N", requires = "target", default_value_t = 4096)]
    in_flight: usize,
    /// What happens to requests past the target's end
    #[arg(long, value_name = "WHAT", requires = "target", default_value = "wrap")]
    past_end: PastEndArg,
    /// The trace's format, if it is not recognised
    #[arg(long, requires = "target")]
    format: Option<Format>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE", requires = "target")]
    html: Option<PathBuf>,
}

/// What `ebb replay` was asked besides.
pub struct Common<'a> {
    pub traces: &'a [PathBuf],
    pub speed: f64,
    pub skip_bad: u64,
    pub config: Option<&'a Path>,
    pub json: Option<&'a Path>,
}

/// The report with what was replayed.
#[derive(Serialize)]
struct Replayed {
    traces: Vec<String>,
    /// Share of the load that was kept; absent: all.
    load_percent: Option<f64>,
    /// Rate by the trace's; absent: the same.
    intensity_percent: Option<f64>,
    #[serde(flatten)]
    report: DriveReport,
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.traces.join(", "))?;
        for (percent, what) in [(self.load_percent, "of its load"), (self.intensity_percent, "of its rate")] {
            if let Some(percent) = percent {
                write!(f, ", {percent} % {what}")?;
            }
        }
        write!(f, "\n{}", self.report)
    }
}

fn refused(error: impl fmt::Display) -> NodeError {
    NodeError::Refused(error.to_string())
}

impl TargetArgs {
    fn reader(&self, common: &Common<'_>) -> Result<Box<dyn TraceReader>, NodeError> {
        let options = ebb_trace::Options { format: self.format, skip_bad: common.skip_bad };
        // How far the reading is says little: it runs ahead of the replay.
        let mut reader =
            traces::open(common.traces, &options, &(Arc::new(|_, _| ()) as _)).map_err(refused)?;
        if let Some(Percent(percent)) = self.load {
            reader = Box::new(BalancedFilter::new(reader, percent / 100.0).map_err(refused)?);
        }
        if let Some(Percent(percent)) = self.intensity {
            reader = Box::new(Scaled::new(reader, percent / 100.0).map_err(refused)?);
        }
        Ok(reader)
    }

    fn options(&self, speed: f64) -> DriveOptions {
        DriveOptions {
            pacing: self.peak.map_or(Pacing::Times { speed }, |depth| Pacing::Peak { depth }),
            past_end: match self.past_end {
                PastEndArg::Wrap => PastEnd::Wrap,
                PastEndArg::Refuse => PastEnd::Refuse,
            },
            in_flight: self.in_flight,
            warmup: self.warmup.unwrap_or_default(),
            duration: self.duration,
        }
    }

    async fn open(
        &self,
        spec: &TargetSpec,
        common: &Common<'_>,
        line: &mut Progress,
    ) -> Result<Target, NodeError> {
        let key = |name: &str| std::env::var(name).ok();
        let keys = key("AWS_ACCESS_KEY_ID").zip(key("AWS_SECRET_ACCESS_KEY"));
        let client = match spec {
            TargetSpec::Volume(_) => {
                let config = Config::load(common.config.unwrap_or(Path::new(CONFIG)))?;
                Some(Connector::new(&config)?.connect().await?)
            }
            _ => None,
        };
        let options = OpenOptions {
            size: self.size.map(Bytes),
            overwrite: self.overwrite,
            keys: keys.map(|(access_key, secret_key)| S3Keys {
                access_key,
                secret_key,
                region: key("AWS_REGION").unwrap_or_else(|| REGION.into()),
            }),
            client,
        };
        Target::open(spec, &options, &mut |progress| line.show(format_args!("{}", describe(&progress))))
            .await
            .map_err(refused)
    }
}

/// Replays on `args.target`, which is `spec`.
pub async fn run(args: &TargetArgs, spec: &TargetSpec, common: &Common<'_>) -> Result<ExitCode, NodeError> {
    // The trace first: a wrong path is found out before a target is filled.
    let reader = args.reader(common)?;
    let mut line = Progress::new();
    let target = args.open(spec, common, &mut line).await?;
    let options = args.options(common.speed);
    let outcome =
        drive(&options, reader, &target, &mut |progress| line.show(format_args!("{}", describe(&progress))))
            .await;
    line.clear();
    let replayed = Replayed {
        traces: common.traces.iter().map(|path| path.display().to_string()).collect(),
        load_percent: args.load.map(|percent| percent.0),
        intensity_percent: args.intensity.map(|percent| percent.0),
        report: outcome.map_err(refused)?,
    };
    if let Some(path) = &args.html {
        std::fs::write(path, replayed.report.page().render()).map_err(io("write", path))?;
    }
    write_report(&replayed, common.json)?;
    Ok(if replayed.report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(progress: &DriveProgress) -> String {
    match progress {
        DriveProgress::Preparing { bytes, of } => {
            format!("filling the target: {} of {}", Bytes(*bytes), Bytes(*of))
        }
        DriveProgress::Replaying { elapsed, at, issued, in_flight, failed } => format!(
            "{:6.1} s  at {:.1} s of the trace  {issued} requests, {in_flight} in flight, {failed} failed",
            elapsed.as_secs_f64(),
            at.as_secs_f64()
        ),
    }
}
