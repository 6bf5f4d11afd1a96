//! `ebb lab replay`: a trace at any intensity on a cluster, verified byte by byte, with energy; or on any storage.

use crate::cli::dev::{DevCluster, DevOptions, DevPool, SERVERS};
use crate::cli::interrupt::{INTERRUPTED, Interrupt};
use crate::cli::measured::{Measured, Measuring};
use crate::cli::provenance::Inputs;
use crate::cli::report::ReportArgs;
use crate::cli::simulated::{self, Simulated};
use crate::cli::trace::{Percent, reading};
use crate::cli::trace_options::TraceOptions;
use crate::cli::words::one_of;
use crate::cli::{verify, volume};
use crate::cluster::config::Config;
use crate::cluster::connect::{Connector, ask};
use crate::cluster::launch::Stop;
use crate::error::{NodeError, io, refused, writable};
use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use ebb_client::Client;
use ebb_eval::traces;
use ebb_gear::Provision;
use ebb_output::{Page, Progress};
use ebb_replay::drive::{
    DriveOptions, DriveProgress, DriveReport, OpenOptions, Pacing, PastEnd, S3Keys, Target, TargetSpec, drive,
};
use ebb_replay::{Cluster, Comparison, ReplayOptions, ReplayReport};
use ebb_trace::{BalancedFilter, Scaled, Trace, TraceReader};
use ebb_types::{AdminReply, AdminRequest, Bytes, GearSteps, VolumeHome, parse_bytes, parse_duration};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  ebb lab replay week.srt --speed 2000 --provision peak       on a cluster started for it
  ebb lab replay web.spc --config data/cluster.toml --json  on the cluster of `ebb dev`
  ebb lab replay web.spc --config cluster.toml --measure      beside the modelled watts those of the management controllers
  ebb lab replay day.spc --servers 30 --speed 250 --provision peak --beside-simulated  live, simulated and oracles in one table
  ebb lab replay week.srt --speed 2000 --provision peak --prelude 8h    what comes after 8 hours, and finds the state that they leave
  ebb lab replay web.spc --target file:/var/tmp/x --size 10GiB --load 30%  on a file, at 30 % of the load
  ebb lab replay web.spc --target nbd://127.0.0.1/disk --check             checks every byte read";

/// Default configuration of a volume's cluster.
const CONFIG: &str = "data/cluster.toml";
const REGION: &str = "us-east-1";
/// Exit code: a check found a difference.
const DIFFERENT: u8 = 3;

/// `peak`, or a number of servers.
pub fn peak_or<N: FromStr, T>(text: &str, peak: T, servers: fn(N) -> T) -> Result<T, String> {
    match text {
        "peak" => Ok(peak),
        _ => text
            .parse()
            .map(servers)
            .map_err(|_| format!("{text:?} is neither `peak` nor a number of servers")),
    }
}

/// `--provision peak|N`.
pub fn parse_provision(text: &str) -> Result<Provision, String> {
    peak_or(text, Provision::Peak, Provision::Servers)
}

/// `--target`.
#[derive(Clone)]
enum Place {
    Cluster,
    Storage(TargetSpec),
}

impl FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Place, String> {
        match text {
            "cluster" => Ok(Place::Cluster),
            _ => text
                .parse()
                .map(Place::Storage)
                .map_err(|error: ebb_replay::drive::SpecError| error.to_string()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PastEndArg {
    /// Take the offset modulo the target's size
    Wrap,
    /// End the replay with an error
    Refuse,
}

#[derive(Args)]
pub struct ReplayArgs {
    /// The trace: SPC, MSR CSV, HP SRT and others, compressed or not; several files of one trace are merged
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// cluster (a volume per device of the trace, everything verified), file:PATH, /dev/DEVICE,
    /// nbd://HOST:PORT/EXPORT, http://HOST:PORT/BUCKET (S3), ebb:VOLUME
    #[arg(long, value_name = "TARGET", default_value = "cluster")]
    target: Place,
    /// Trace seconds per second
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Keep this share of the trace's load, such as 30%
    #[arg(long, value_name = "PERCENT")]
    load: Option<Percent>,
    /// Scale the trace's rate by shrinking the time between requests, such as 250% (1% to 1000%)
    #[arg(long, value_name = "PERCENT")]
    intensity: Option<Percent>,
    /// Maximum requests in flight at the trace's times; a device may take fewer
    #[arg(long, value_name = "N", default_value_t = 4096)]
    in_flight: usize,
    #[command(flatten)]
    options: TraceOptions,
    /// Configuration of a running cluster [default: start a cluster for the replay]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten, next_help_heading = "On a cluster")]
    cluster: ClusterArgs,
    #[command(flatten, next_help_heading = "On other storage")]
    storage: StorageArgs,
}

#[derive(Args)]
struct ClusterArgs {
    /// Configure the servers' rates so that the trace's peak needs all servers (peak) or N of them [default: as
    /// configured]
    #[arg(long, value_name = "peak|N", value_parser = parse_provision)]
    provision: Option<Provision>,
    /// Chunk servers of the started cluster [default: 9]
    #[arg(long, conflicts_with = "config")]
    servers: Option<u16>,
    /// Racks of the started cluster [default: 3]
    #[arg(long, conflicts_with = "config")]
    racks: Option<u16>,
    /// Replay this much of the trace first, in whole hours: only the rest is measured, and finds the state that this
    /// leaves, such as offload that is owed to sleeping servers. All bytes are checked
    #[arg(long, value_name = "TIME", value_parser = parse_hours, conflicts_with = "beside_simulated")]
    prelude: Option<u32>,
    /// Read the servers' management controllers meanwhile ([[server.power]]), and compare with the modelled watts
    #[arg(long, requires = "config")]
    measure: bool,
    /// Begin although the running cluster has recorded hours: a replay sets the clock of its schedule, and the hours,
    /// from which it forecasts, are lost
    #[arg(long, requires = "config")]
    forget_hours: bool,
    /// Replay a second time with every server awake, and compare the response times of the same stretches
    #[arg(long)]
    beside_always_on: bool,
    /// Afterwards simulate the same requests on the same cluster, with single servers and with whole gears, and show
    /// both beside what was replayed, oracles, and what no policy exceeds
    #[arg(long)]
    beside_simulated: bool,
    /// What wakes and sleeps at a time: servers, or groups (whole gears) [default: as configured]
    #[arg(long, value_name = "servers|groups", value_parser = one_of::<GearSteps>(["servers", "groups"]))]
    steps: Option<GearSteps>,
    /// Move the volumes' cold data to this erasure-coded pool; with the code of a started cluster's, such as
    /// archive=6+3
    #[arg(long, value_name = "NAME[=K+M]")]
    pool: Option<PoolArg>,
}

impl ClusterArgs {
    /// Refuses to cost a cluster what it has learnt, unasked.
    async fn may_forget(&self, client: &Client) -> Result<(), NodeError> {
        let AdminReply::Hours(hours) = ask(client, AdminRequest::ListHours).await? else {
            return Err(refused("unexpected answer of the metadata service"));
        };
        would_lose(hours.len(), self.forget_hours).map_or(Ok(()), |why| Err(refused(why)))
    }
}

/// Why a cluster that has recorded this many hours is not replayed on, unless they may be forgotten.
fn would_lose(hours: usize, may_forget: bool) -> Option<String> {
    (hours > 0 && !may_forget).then(|| {
        format!(
            "this cluster has recorded {hours} hours, from which it forecasts. A replay sets the clock of its schedule and \
             they are lost: replay on a cluster of its own (without --config), or give --forget-hours"
        )
    })
}

/// Whole hours, such as `8h`.
fn parse_hours(text: &str) -> Result<u32, String> {
    let time = parse_duration(text)?;
    let hours = u32::try_from(time.as_secs() / 3600).ok().filter(|hours| *hours > 0);
    let whole = hours.filter(|hours| Duration::from_secs(3600) * *hours == time);
    whole.ok_or_else(|| format!("{text:?} is not one or more whole hours, such as 8h"))
}

/// `--pool`.
#[derive(Clone)]
enum PoolArg {
    Named(String),
    New(DevPool),
}

impl FromStr for PoolArg {
    type Err = String;
    fn from_str(text: &str) -> Result<PoolArg, String> {
        match text.contains('=') {
            true => text.parse().map(PoolArg::New),
            false => Ok(PoolArg::Named(text.to_owned())),
        }
    }
}

#[derive(Args)]
struct StorageArgs {
    /// Ignore the trace's times and keep this many requests in flight
    #[arg(long, value_name = "DEPTH", conflicts_with = "speed")]
    peak: Option<usize>,
    /// Bytes of the target to use, such as 10GiB; a missing target is created with this size
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: Option<Bytes>,
    /// Overwrite the target's data
    #[arg(long)]
    overwrite: bool,
    /// Verify every byte read, and read everything back at the end (NBD exports and volumes)
    #[arg(long)]
    check: bool,
    /// End after this time, such as 30s
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Exclude this initial time, such as 5s, from the figures
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    warmup: Option<Duration>,
    /// What happens to requests past the target's end [default: wrap]
    #[arg(long, value_name = "WHAT")]
    past_end: Option<PastEndArg>,
}

impl ClusterArgs {
    fn new_cluster(&self) -> Result<DevOptions, NodeError> {
        let (servers, racks) = (self.servers, self.racks);
        let pool = match &self.pool {
            None => return Ok(DevOptions { servers, racks, ..DevOptions::default() }),
            Some(PoolArg::New(pool)) => pool.clone(),
            Some(PoolArg::Named(name)) => {
                return Err(refused(format!(
                    "the cluster that is started has no pool yet: name its code too, such as --pool {name}=6+3, or a running cluster \
                     with --config"
                )));
            }
        };
        let servers = servers.or(Some(SERVERS + pool.servers()));
        Ok(DevOptions { servers, racks, pools: vec![pool], ..DevOptions::default() })
    }

    /// Where the cold data of the trace's volumes goes.
    fn home(&self, client: &Client, trace: &Trace) -> Result<Option<VolumeHome>, NodeError> {
        let Some(pool) = &self.pool else { return Ok(None) };
        let (PoolArg::Named(name) | PoolArg::New(DevPool { name, .. })) = pool;
        let touched = trace.touched_ranges().into_iter().flatten().map(|(start, end)| end - start).sum();
        volume::home(client, name, Bytes(touched), None).map(Some)
    }

    fn given(&self) -> Option<&'static str> {
        let given = [
            ("--provision", self.provision.is_some()),
            ("--servers", self.servers.is_some()),
            ("--racks", self.racks.is_some()),
            ("--prelude", self.prelude.is_some()),
            ("--measure", self.measure),
            ("--forget-hours", self.forget_hours),
            ("--beside-always-on", self.beside_always_on),
            ("--beside-simulated", self.beside_simulated),
            ("--steps", self.steps.is_some()),
            ("--pool", self.pool.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }
}

impl StorageArgs {
    fn given(&self) -> Option<&'static str> {
        let given = [
            ("--peak", self.peak.is_some()),
            ("--size", self.size.is_some()),
            ("--overwrite", self.overwrite),
            ("--check", self.check),
            ("--duration", self.duration.is_some()),
            ("--warmup", self.warmup.is_some()),
            ("--past-end", self.past_end.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }
}

/// The report, with the traces and settings of the replay.
#[derive(Serialize)]
struct Replayed<R> {
    traces: Vec<String>,
    /// Share of the load that was kept; absent: all.
    load_percent: Option<f64>,
    /// Rate relative to the trace's; absent: the same.
    intensity_percent: Option<f64>,
    #[serde(flatten)]
    report: R,
    #[serde(flatten)]
    beside: Beside,
}

/// What a replay on a cluster is compared with.
#[derive(Default, Serialize)]
struct Beside {
    /// With `--measure`.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
    /// With `--beside-simulated`; absent too if Ctrl-C ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<Simulated>,
}

impl<R: fmt::Display> fmt::Display for Replayed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.traces.join(", "))?;
        for (percent, what) in [(self.load_percent, "of its load"), (self.intensity_percent, "of its rate")] {
            if let Some(percent) = percent {
                write!(f, ", {percent} % {what}")?;
            }
        }
        write!(f, "\n{}", self.report)?;
        let Beside { measured, simulated } = &self.beside;
        measured.as_ref().map_or(Ok(()), |measured| write!(f, "{measured}"))?;
        simulated.as_ref().map_or(Ok(()), |simulated| write!(f, "{simulated}"))
    }
}

/// Exits as clap does for any wrong use of options.
fn wrong_use(option: &str, place: &str) -> ! {
    let text = format!("the argument '{option}' cannot be used {place}\n");
    clap::Error::raw(ErrorKind::ArgumentConflict, text).exit()
}

pub async fn run(args: &ReplayArgs) -> Result<ExitCode, NodeError> {
    args.html.iter().try_for_each(|path| writable(path))?;
    args.report.check()?;
    match &args.target {
        Place::Cluster => match args.storage.given() {
            Some(option) => wrong_use(option, "on a cluster: name other storage with --target"),
            None => args.on_a_cluster().await,
        },
        Place::Storage(spec) => match args.cluster.given() {
            Some(option) => wrong_use(option, "with --target: it is an option of a replay on a cluster"),
            None => args.on_storage(spec).await,
        },
    }
}

impl ReplayArgs {
    fn reader(&self) -> Result<Box<dyn TraceReader>, NodeError> {
        let heard = match self.target {
            Place::Cluster => reading(),
            // The reader runs ahead of the replay, so its progress says little.
            Place::Storage(_) => traces::silent(),
        };
        let mut reader = self.options.open(&self.traces, &heard)?;
        if let Some(Percent(percent)) = self.load {
            reader = Box::new(BalancedFilter::new(reader, percent / 100.0).map_err(refused)?);
        }
        if let Some(Percent(percent)) = self.intensity {
            reader = Box::new(Scaled::new(reader, percent / 100.0).map_err(refused)?);
        }
        Ok(reader)
    }

    fn show<R: Serialize + fmt::Display>(
        &self,
        report: R,
        beside: Beside,
        page: impl FnOnce(&R) -> Page,
    ) -> Result<(), NodeError> {
        if let Some(path) = &self.html {
            std::fs::write(path, page(&report).render()).map_err(io("write", path))?;
        }
        let replayed = Replayed {
            traces: self.traces.iter().map(|path| path.display().to_string()).collect(),
            load_percent: self.load.map(|percent| percent.0),
            intensity_percent: self.intensity.map(|percent| percent.0),
            report,
            beside,
        };
        let inputs = Inputs::of(&self.traces).and(&self.config);
        let inputs = match &replayed.beside.simulated {
            Some(_) => inputs.seeded(simulated::SEED),
            None => inputs,
        };
        self.report.write(&replayed, &inputs)
    }
}

// ---- on other storage

impl ReplayArgs {
    async fn on_storage(&self, spec: &TargetSpec) -> Result<ExitCode, NodeError> {
        let options = self.drive_options();
        options.check().map_err(refused)?;
        // Open the trace first, so that a wrong path is reported before a target is filled.
        let reader = self.reader()?;
        let mut line = Progress::new();
        let target = self.open(spec, &mut line).await?;
        let shown = &mut |progress| line.show(format_args!("{}", describe(&progress)));
        let interrupt = Interrupt::of(options.halt.clone());
        let outcome = interrupt.or_end(drive(&options, reader, &target, shown)).await?;
        line.clear();
        let Some(outcome) = outcome else { return Ok(ExitCode::from(INTERRUPTED)) };
        target.close().await.map_err(refused)?;
        let report = outcome.map_err(refused)?;
        let code = match (report.passed(), report.failed) {
            _ if options.halt.is_set() => ExitCode::from(INTERRUPTED),
            (true, _) => ExitCode::SUCCESS,
            (false, 0) => ExitCode::from(DIFFERENT),
            (false, _) => ExitCode::FAILURE,
        };
        self.show(report, Beside::default(), DriveReport::page)?;
        Ok(code)
    }

    fn drive_options(&self) -> DriveOptions {
        let on = &self.storage;
        DriveOptions {
            pacing: on.peak.map_or(Pacing::Times { speed: self.speed }, |depth| Pacing::Peak { depth }),
            past_end: match on.past_end {
                Some(PastEndArg::Refuse) => PastEnd::Refuse,
                Some(PastEndArg::Wrap) | None => PastEnd::Wrap,
            },
            in_flight: self.in_flight,
            warmup: on.warmup.unwrap_or_default(),
            duration: on.duration,
            check: on.check,
            ..DriveOptions::default()
        }
    }

    async fn open(&self, spec: &TargetSpec, line: &mut Progress) -> Result<Target, NodeError> {
        let key = |name: &str| std::env::var(name).ok();
        let keys = key("AWS_ACCESS_KEY_ID").zip(key("AWS_SECRET_ACCESS_KEY"));
        let client = match spec {
            TargetSpec::Volume(_) => {
                let config = Config::load(self.config.as_deref().unwrap_or(Path::new(CONFIG)))?;
                Some(Connector::new(&config)?.sole_writer().connect_for_a_person(None).await?)
            }
            _ => None,
        };
        let options = OpenOptions {
            size: self.storage.size,
            overwrite: self.storage.overwrite,
            keys: keys.map(|(access_key, secret_key)| S3Keys {
                access_key,
                secret_key,
                region: key("AWS_REGION").unwrap_or_else(|| REGION.into()),
            }),
            client,
        };
        let shown = &mut |progress| line.show(format_args!("{}", describe(&progress)));
        Target::open(spec, &options, shown).await.map_err(refused)
    }
}

fn describe(progress: &DriveProgress) -> String {
    match progress {
        DriveProgress::Preparing { bytes, of } => {
            format!("filling the target: {} of {}", Bytes(*bytes), Bytes(*of))
        }
        DriveProgress::Replaying { elapsed, at, issued, in_flight, failed, .. } => format!(
            "{:6.1} s  at {:.1} s of the trace  {issued} requests, {in_flight} in flight, {failed} failed",
            elapsed.as_secs_f64(),
            at.as_secs_f64()
        ),
    }
}

// ---- on a cluster

/// Compares replicas by asking every server.
#[derive(Clone)]
struct Servers {
    config: Config,
    client: Client,
}

impl Cluster for Servers {
    async fn compare(&self) -> Result<Comparison, String> {
        let found = verify::compare(&self.config, &self.client, true).await.map_err(|e| e.to_string())?;
        Ok(Comparison {
            groups: found.groups_compared,
            differing: found.groups_different + found.groups_out_of_sync,
            bytes: found.blocks * ebb_types::BLOCK_BYTES as u64,
        })
    }
}

impl ReplayArgs {
    async fn on_a_cluster(&self) -> Result<ExitCode, NodeError> {
        self.drive_options().check().map_err(refused)?;
        // Open the trace first, so that a wrong path is reported before a cluster is started.
        let name = self.traces.first().map_or(String::new(), |path| traces::name_of(path));
        let trace = Arc::new(Trace::collect(name, self.reader()?.as_mut()).map_err(refused)?);
        let interrupt = Interrupt::default();
        let ended = Ok(ExitCode::from(INTERRUPTED));
        if let Some(file) = &self.config {
            let config = Config::load(file)?;
            let outcome = interrupt.or_end(self.on_running(&trace, &config, &interrupt)).await?;
            return outcome.unwrap_or(ended);
        }
        eprintln!("starting a cluster for this replay (use --config to replay on a running one)");
        let options = self.cluster.new_cluster()?;
        let mut stop = Stop::new()?;
        let cluster = tokio::select! {
            started = DevCluster::start(None, &options) => started?,
            () = stop.asked() => return ended,
        };
        // However the replay ends, stop the cluster that was started for it.
        let outcome = interrupt.or_end(self.on_running(&trace, &cluster.config, &interrupt)).await;
        cluster.stop().await;
        outcome?.unwrap_or(ended)
    }

    async fn on_running(
        &self,
        trace: &Arc<Trace>,
        config: &Config,
        interrupt: &Interrupt,
    ) -> Result<ExitCode, NodeError> {
        if self.cluster.beside_simulated {
            simulated::check(config)?;
        }
        // No other client writes to the volumes.
        let client = Connector::new(config)?.sole_writer().connect_for_a_person(None).await?;
        self.cluster.may_forget(&client).await?;
        let options = ReplayOptions {
            home: self.cluster.home(&client, trace)?,
            speed: self.speed,
            provision: self.cluster.provision,
            steps: self.cluster.steps,
            in_flight: self.in_flight,
            prelude: self.cluster.prelude.unwrap_or_default(),
            beside_always_on: self.cluster.beside_always_on,
            power: config.power.model,
            halt: interrupt.halt.clone(),
            ..ReplayOptions::default()
        };
        let servers = Servers { config: config.clone(), client: client.clone() };
        let mut measuring = self.cluster.measure.then(|| Measuring::start(config)).transpose()?;
        let mut line = Progress::new();
        let shown = &mut |progress| {
            if let ebb_replay::Progress::Prelude { .. } | ebb_replay::Progress::Replaying { .. } = &progress {
                interrupt.begin();
            }
            match (&progress, &mut measuring) {
                (ebb_replay::Progress::Replaying { .. }, Some(measuring)) => measuring.begin(),
                (ebb_replay::Progress::Settling { .. }, Some(measuring)) => measuring.end(),
                _ => {}
            }
            line.show(format_args!("{}", stage(&progress)));
        };
        let report = ebb_replay::replay(options, trace, client, servers, shown).await;
        line.clear();
        let report = report.map_err(refused)?;
        let measured = measuring.map(|measuring| measuring.stop(&report.modelled_energy.cluster, self.speed));
        let (passed, behind) = (report.passed(), report.fell_behind());
        let simulated = match self.cluster.beside_simulated && !interrupt.halt.is_set() {
            true => simulated::beside(&report, trace, config, interrupt).await?,
            false => None,
        };
        self.show(report, Beside { measured, simulated }, ReplayReport::page)?;
        Ok(match behind {
            _ if interrupt.halt.is_set() => ExitCode::from(INTERRUPTED),
            _ if !passed => ExitCode::from(DIFFERENT),
            Some(behind) => {
                eprintln!("ebb: {behind}");
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        })
    }
}

fn stage(progress: &ebb_replay::Progress) -> String {
    match progress {
        ebb_replay::Progress::Preparing { bytes, of } => {
            format!("writing the data that the trace reads: {} of {}", Bytes(*bytes), Bytes(*of))
        }
        ebb_replay::Progress::Prelude { at, span, debt_bytes } => {
            let (hour, of) = (at.as_secs_f64() / 3600.0, span.as_secs_f64() / 3600.0);
            format!("prelude: hour {hour:.1} of {of:.0}, not measured; debt {}", Bytes(*debt_bytes))
        }
        ebb_replay::Progress::Replaying {
            at,
            span,
            issued,
            in_flight,
            bad,
            gear,
            servers_awake,
            load,
            debt_bytes,
        } => {
            let share = 100.0 * at.as_secs_f64() / span.as_secs_f64().max(1e-9);
            format!(
                "{share:5.1} %  hour {:6.1}  {issued} requests, {in_flight} in flight, {bad} bad  gear {gear}, {servers_awake} awake  load {load:.2}  debt {}",
                at.as_secs_f64() / 3600.0,
                Bytes(*debt_bytes)
            )
        }
        ebb_replay::Progress::Settling { debt_bytes } => {
            format!("waking all servers and reclaiming offload: {}", Bytes(*debt_bytes))
        }
        ebb_replay::Progress::Comparing => "comparing all replicas".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prelude_is_of_whole_hours() {
        assert_eq!([parse_hours("8h"), parse_hours("60m"), parse_hours("2d")], [Ok(8), Ok(1), Ok(48)]);
        for text in ["0h", "90m", "1.5h", "8"] {
            assert!(parse_hours(text).is_err(), "{text}");
        }
    }

    #[test]
    fn recorded_hours_are_lost_only_where_that_is_said() {
        assert_eq!((would_lose(0, false), would_lose(0, true), would_lose(5, true)), (None, None, None));
        let why = would_lose(5, false).unwrap();
        assert!(why.contains("recorded 5 hours") && why.contains("--forget-hours"), "{why}");
    }
}
