//! `ebb replay` and `ebb bench`: the instrument, pointed at a cluster.

use crate::config::Config;
use crate::dev::{Connector, DevCluster, DevOptions};
use crate::error::{NodeError, io};
use crate::launch::Stop;
use crate::trace_tool::reading;
use crate::verify;
use ebb_client::Client;
use ebb_gear::Provision;
use ebb_lab::bench::{BenchOptions, bench_s3};
use ebb_lab::replay::{Cluster, Comparison, Progress, ReplayOptions, replay};
use ebb_lab::traces;
use ebb_report::print_json;
use ebb_trace::{Options, Trace};
use ebb_types::Bytes;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

const DIFFERENT: u8 = 3;

/// `--provision peak|N`.
#[derive(Clone, Copy, Debug)]
pub struct ProvisionArg(pub Provision);

impl FromStr for ProvisionArg {
    type Err = String;
    fn from_str(text: &str) -> Result<ProvisionArg, String> {
        match text {
            "peak" => Ok(ProvisionArg(Provision::Peak)),
            _ => text
                .parse()
                .map(|n| ProvisionArg(Provision::Servers(n)))
                .map_err(|_| format!("{text:?} is neither `peak` nor a number of servers")),
        }
    }
}

pub struct ReplayRequest<'a> {
    pub traces: &'a [PathBuf],
    pub speed: f64,
    pub provision: Option<Provision>,
    pub skip_bad: u64,
    /// A running cluster; `None`: one that is made for the replay and goes with it.
    pub config: Option<&'a Path>,
    pub options: DevOptions,
    /// Where the report goes as JSON; `-`: standard output, instead of the text.
    pub json: Option<&'a Path>,
}

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

pub async fn run_replay(request: &ReplayRequest<'_>) -> Result<ExitCode, NodeError> {
    // The trace first: a wrong path is found out before a cluster is started.
    let options = Options { format: None, skip_bad: request.skip_bad };
    let trace =
        traces::load(request.traces, &options, &reading()).map_err(|e| NodeError::Refused(e.to_string()))?;
    let Some(file) = request.config else {
        eprintln!("starting a cluster for this replay (use --config to replay on one that runs)");
        let mut stop = Stop::new()?;
        let cluster = tokio::select! {
            started = DevCluster::start(None, &request.options) => started?,
            () = stop.asked() => return Ok(ExitCode::FAILURE),
        };
        // Whatever ends the replay, the cluster that was made for it ends too.
        let outcome = tokio::select! {
            outcome = on_cluster(request, &trace, &cluster.config) => outcome,
            () = stop.asked() => Err(NodeError::Refused("interrupted".into())),
        };
        cluster.stop().await;
        return outcome;
    };
    on_cluster(request, &trace, &Config::load(file)?).await
}

async fn on_cluster(
    request: &ReplayRequest<'_>,
    trace: &Trace,
    config: &Config,
) -> Result<ExitCode, NodeError> {
    let client = Connector::new(config)?.connect().await?;
    let options = ReplayOptions {
        speed: request.speed,
        provision: request.provision,
        power: config.power.model,
        ..ReplayOptions::default()
    };
    let servers = Servers { config: config.clone(), client: client.clone() };
    let mut line = ebb_report::Progress::new();
    let report =
        replay(options, trace, client, servers, &mut |p| line.show(format_args!("{}", describe(&p))))
            .await
            .map_err(|e| NodeError::Refused(e.to_string()))?;
    line.clear();
    write_report(&report, request.json)?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

fn describe(progress: &Progress) -> String {
    match progress {
        Progress::Preparing { bytes, of } => {
            format!("writing what the trace reads: {} of {}", Bytes(*bytes), Bytes(*of))
        }
        Progress::Replaying { at, span, issued, in_flight, bad, gear, servers_awake, load, debt_bytes } => {
            let share = 100.0 * at.as_secs_f64() / span.as_secs_f64().max(1e-9);
            format!(
                "{share:5.1} %  hour {:6.1}  {issued} requests, {in_flight} in flight, {bad} bad  gear {gear}, {servers_awake} awake  load {load:.2}  debt {}",
                at.as_secs_f64() / 3600.0,
                Bytes(*debt_bytes)
            )
        }
        Progress::Settling { debt_bytes } => {
            format!("waking all servers and paying the debt: {}", Bytes(*debt_bytes))
        }
        Progress::Comparing => "comparing all replicas".into(),
    }
}

pub struct BenchRequest<'a> {
    pub endpoint: &'a str,
    pub access_key: String,
    pub secret_key: String,
    pub pids: Vec<u32>,
    pub sizes: Vec<u64>,
    pub concurrency: Vec<usize>,
    pub quick: bool,
    pub json: Option<&'a Path>,
}

pub async fn run_bench(request: BenchRequest<'_>) -> Result<ExitCode, NodeError> {
    let mut options = BenchOptions::new(request.endpoint, &request.access_key, &request.secret_key);
    if request.quick {
        options = options.quick();
    }
    if !request.sizes.is_empty() {
        options.sizes = request.sizes;
    }
    if !request.concurrency.is_empty() {
        options.concurrency = request.concurrency;
    }
    options.pids = request.pids;
    let mut line = ebb_report::Progress::new();
    let report = bench_s3(&options, &mut |cell| line.show(format_args!("{cell}")))
        .await
        .map_err(|e| NodeError::Refused(e.to_string()))?;
    line.clear();
    write_report(&report, request.json)?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub fn write_report(
    report: &(impl Serialize + std::fmt::Display),
    json: Option<&Path>,
) -> Result<(), NodeError> {
    match json {
        Some(path) if path == Path::new("-") => print_json(report),
        Some(path) => {
            std::fs::write(path, ebb_report::json(report)).map_err(io("write", path))?;
            println!("{report}");
        }
        None => println!("{report}"),
    }
    Ok(())
}
