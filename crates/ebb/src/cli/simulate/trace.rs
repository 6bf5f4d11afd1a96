//! `ebb simulate trace`: a trace on a modelled cluster, request by request.

use super::mirror::POLICIES;
use super::seeds::{Spread, parse_seeds};
use super::sleep::{SleepArgs, parse_time};
use crate::cli::interrupt::{INTERRUPTED, Interrupt};
use crate::cli::provenance::{self, Inputs};
use crate::cli::replay::{parse_provision, peak_or};
use crate::cli::report::write_file;
use crate::cli::trace::reading;
use crate::cli::trace_options::TraceOptions;
use crate::cli::words::one_of;
use crate::error::{NodeError, refused, writable};
use clap::Args;
use ebb_gear::{Provision, Scheme, Window};
use ebb_output::{Axis, Chart, Mark, Page, Progress, Series, distribution, table};
use ebb_replay::drive::Halt;
use ebb_sim::load::{self, Case, Cold, LoadError, Policy, PoolOutcome, Requests};
use ebb_sim::mirror::{PolicyKind, Settings};
use ebb_sim::request::workload::Day;
use ebb_sim::request::{
    DepthRow, DiskModel, Gears, Mirroring, NO_SAVINGS, NetworkModel, PHASES, PairsReport, Report, Setup,
    minutes, servers_for_peak, settings, simulate,
};
use ebb_trace::{BalancedFilter, InMemory, Request, Trace};
use ebb_types::{Bytes, Shape};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::spawn_blocking;

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate trace day:200000 --servers 60 --racks 6 --provision peak          a synthetic day of 200,000 requests
  ebb simulate trace week.srt --gears schedule --provision peak --html week.html lowest gear for each hour's peak
  ebb simulate trace week.srt --servers peak --gears schedule --except 00:00-02:00 as many servers as the peak by day needs
  ebb simulate trace web.spc --gears fixed --gear 1 --disk hdd-2009 --network 1g  latency cost of gear 1
  ebb simulate trace week.srt --cold-after 1d --code 6+3                         what coded sets would save for data unused for a day
  ebb simulate trace week.srt --disk pair                                        disks slow down inside awake servers
  ebb simulate trace week.srt --suspend 10,15s --wake 60s --cycles 2              two depths of sleep: suspend, and off twice a day

Everything is modelled. A model is a TOML file; --show-models prints the built-in ones.";

const DISKS: &str = "hdd, hdd-2009, ssd, ssd-2008, pair";
const NETWORKS: &str = "1g, 10g";

#[derive(Args)]
pub struct TraceArgs {
    /// The trace; files of one trace are merged. Or `day:N`, a synthetic day of N requests
    #[arg(required_unless_present = "show_models", value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Chunk servers; or `peak`: as many as the trace's peak needs by what the disk sustains, a multiple of the copies
    #[arg(long, value_name = "N|peak", default_value = "9", value_parser = parse_servers)]
    servers: ServersArg,
    /// Additional servers that only hold writes for sleeping ones, and never sleep
    #[arg(long, default_value_t = 0)]
    loggers: u16,
    #[arg(long, default_value_t = 3)]
    racks: u16,
    /// Copies of all data, 2 to 4
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=4))]
    replicas: u8,
    /// rotated or rack-aligned
    #[arg(long, default_value = "rotated")]
    layout: Scheme,
    /// Chunk size in MiB, a power of two up to 64
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    chunk_mib: u32,
    /// hdd, hdd-2009, ssd, ssd-2008; pair, a mirror of two two-speed disks (LogStore); or a TOML file of one of these,
    /// or of a two-speed disk, for pairs of it
    #[arg(long, value_name = "MODEL|FILE", default_value = "hdd")]
    disk: String,
    /// Speed policy of each mirrored pair: LogStore or a baseline of its paper [default: logstore]
    #[arg(long, value_name = "POLICY", value_parser = one_of::<PolicyKind>(POLICIES))]
    mirror_policy: Option<PolicyKind>,
    /// 1g, 10g, or a TOML file
    #[arg(long, value_name = "MODEL|FILE", default_value = "10g")]
    network: String,
    #[command(flatten)]
    sleep: SleepArgs,
    /// Who chooses the gear: `auto`, the cluster from the live load, server by server; `groups`, the same in whole
    /// gears; `schedule`, an oracle for each hour's peak, in whole gears; `fixed`
    #[arg(long, default_value = "auto")]
    gears: GearsArg,
    /// The gear of `--gears fixed` [default: all servers awake]
    #[arg(long)]
    gear: Option<u8>,
    /// Lowest gear that may be chosen
    #[arg(long, default_value_t = 1)]
    g_min: u8,
    /// Trace seconds per simulated second; the scheduler's hour shrinks with it
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Share of the trace's requests to keep, evenly over time, above 0 and up to 1
    #[arg(long, default_value_t = 1.0)]
    load: f64,
    /// Load that the scheduler assumes a server sustains: set so that the trace's peak needs all servers (peak) or N of
    /// them [default: what the disk sustains]
    #[arg(long, value_name = "peak|N", value_parser = parse_provision)]
    provision: Option<Provision>,
    /// Times of day whose load is no peak, such as a night of maintenance; days begin with the trace. Needs
    /// `--gears schedule`, which keeps these hours in the highest gear
    #[arg(long, value_name = "HH:MM-HH:MM,…", value_delimiter = ',')]
    except: Vec<Window>,
    /// Simulated time that a server which wakes takes to fetch what was held for it [default: as fast as it can]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    reclaim_within: Option<Duration>,
    /// Client machines, spread over the racks
    #[arg(long, default_value_t = 9)]
    clients: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds from A up to but not including B, one after another: the mean and the range of every figure
    #[arg(long, value_name = "A..B", value_parser = parse_seeds, conflicts_with_all = ["seed", "html", "cold_after"])]
    seeds: Option<(u64, u64)>,
    #[command(flatten)]
    options: TraceOptions,
    /// Also compare keeping data that was unused for this time in erasure-coded sets that sleep
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    cold_after: Option<Duration>,
    /// Code of those sets
    #[arg(long, value_name = "K+M", default_value = "6+3", requires = "cold_after")]
    code: Shape,
    /// Idle time after which a whole set sleeps
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time, requires = "cold_after")]
    hibernate_after: Duration,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the built-in models of disks and networks as TOML, and nothing else
    #[arg(long)]
    show_models: bool,
}

/// `--servers N|peak`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServersArg {
    Number(u16),
    Peak,
}

fn parse_servers(text: &str) -> Result<ServersArg, String> {
    peak_or(text, ServersArg::Peak, ServersArg::Number)
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum GearsArg {
    Auto,
    Groups,
    Schedule,
    Fixed,
}

/// Refuses arguments that do not go together.
fn check(args: &TraceArgs) -> Result<(), NodeError> {
    if args.cold_after.is_some() && args.speed != 1.0 {
        return Err(refused("--cold-after counts in the trace's own time: remove --speed"));
    }
    if args.gear.is_some() && !matches!(args.gears, GearsArg::Fixed) {
        return Err(refused("--gear needs --gears fixed: add that, or remove --gear"));
    }
    if !args.except.is_empty() && !matches!(args.gears, GearsArg::Schedule) {
        return Err(refused("--except needs --gears schedule: add that, or remove --except"));
    }
    if args.servers == ServersArg::Peak && args.provision.is_some() {
        return Err(refused(
            "--servers peak goes by what the disk sustains, and --provision sets that: remove one of them",
        ));
    }
    Ok(())
}

pub async fn run(args: &TraceArgs) -> Result<ExitCode, NodeError> {
    if args.show_models {
        return show_models();
    }
    check(args)?;
    args.html.iter().try_for_each(|path| writable(path))?;
    if let Some(seeds) = args.seeds {
        return several(args, seeds).await;
    }
    let trace = read(args, args.seed)?;
    let setup = setup(args, args.seed, &trace)?;
    let pools = args.cold_after.map(|after| pools(args, &trace, &setup, after)).transpose()?;
    let report = simulated(trace, setup).await?;
    args.html.iter().try_for_each(|file| write_file(file, page(&report)))?;
    let text = format!("{report}{}", pools.as_ref().map(pools_text).unwrap_or_default());
    let json = Json { report: &report, pools };
    provenance::print_or(&json, args.json, &inputs(args).seeded(args.seed), text);
    Ok(exit_code(&report))
}

/// Ctrl-C halts it, to report what there is; the second one ends the process.
async fn simulated(trace: Trace, setup: Setup) -> Result<Report, NodeError> {
    let interrupt = Interrupt::of(Halt::default());
    let halt = interrupt.halt.clone();
    let work = spawn_blocking(move || {
        let mut progress = Progress::new();
        simulate(&trace, &setup, &mut |done| {
            progress.show(format_args!("{}: {:.1} % simulated", trace.name, done * 100.0));
            !halt.is_set()
        })
    });
    let Some(report) = interrupt.or_end(work).await? else {
        // The simulation has a thread of its own, for which the runtime would wait.
        std::process::exit(INTERRUPTED.into());
    };
    report.expect("the simulation does not panic").map_err(refused)
}

fn exit_code(report: &Report) -> ExitCode {
    match report.all_served() {
        _ if report.stopped_at_seconds.is_some() => ExitCode::from(INTERRUPTED),
        true => ExitCode::SUCCESS,
        false => ExitCode::from(3),
    }
}

/// With one seed after another. What Ctrl-C stopped has no figures to compare.
async fn several(args: &TraceArgs, (from, to): (u64, u64)) -> Result<ExitCode, NodeError> {
    let (mut reports, mut whole) = (Vec::new(), true);
    for seed in from..to {
        let trace = read(args, seed)?;
        let setup = setup(args, seed, &trace)?;
        let report = simulated(trace, setup).await?;
        if report.stopped_at_seconds.is_some() {
            eprintln!("stopped during seed {seed}: nothing is reported");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        whole &= report.all_served();
        reports.push(serde_json::to_value(&report).expect("our own types can be written as JSON"));
    }
    let spread = Spread::new(from, &reports);
    provenance::print(&spread, args.json, &inputs(args).seeded(spread.seeds));
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// The file of a model, if it is none of those that are built in.
fn model_file<'a>(built_in: &str, model: &'a str) -> Option<&'a str> {
    (!built_in.split(", ").any(|name| name == model)).then_some(model)
}

/// The files that the command reads.
fn inputs(args: &TraceArgs) -> Inputs {
    let traces = args.traces.iter().filter(|_| made_up(args).is_none());
    let models = [model_file(DISKS, &args.disk), model_file(NETWORKS, &args.network), args.sleep.file()];
    Inputs::of(traces).and(models.into_iter().flatten())
}

/// Output of `--json`.
#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    pools: Option<Pools>,
}

/// What it saves to keep cold data in sets that sleep, from the trace's load alone. The gears are an oracle's: a trace
/// is short, and a forecast would spend it learning.
#[derive(Serialize)]
struct Pools {
    cold_after_seconds: f64,
    /// Mean share of the chunks that the trace uses.
    cold_share: f64,
    cold_requests: usize,
    /// Empty if nothing is cold.
    kept: Vec<PoolOutcome>,
}

fn pools(args: &TraceArgs, trace: &Trace, setup: &Setup, after: Duration) -> Result<Pools, NodeError> {
    let split = load::split(trace, setup.chunk_bytes, after);
    let mut pools = Pools {
        cold_after_seconds: after.as_secs_f64(),
        cold_share: split.share,
        cold_requests: split.touches.len(),
        kept: Vec::new(),
    };
    if split.share > 0.0 {
        let (shape, requests) = (args.code, Requests::Seen(split.touches));
        let cold = Cold { shape, share: split.share, requests, hibernate_after: args.hibernate_after };
        let series = minutes(trace, setup).map_err(refused)?;
        let case = Case::new(cold_setup(setup), &series).map_err(|error| match error {
            LoadError::TooShort { days, .. } => {
                refused(format!("the trace is {days:.1} days long: --cold-after needs a day at least"))
            }
            error => refused(error),
        })?;
        pools.kept = cold.play(&case, &series, Policy::Oracle).map_err(refused)?;
    }
    Ok(pools)
}

/// The same cluster for the load simulation.
fn cold_setup(setup: &Setup) -> load::Setup {
    load::Setup {
        servers: setup.servers.into(),
        replicas: setup.replicas,
        g_min: setup.g_min,
        train_days: 0,
        provision: load::Provision::PerServer(1.0),
        power: setup.power,
        wake: setup.wake.unwrap_or(Duration::from_secs(60)),
        dwell: Duration::from_secs(900),
        cycles_per_day: setup.cycles_per_day,
        suspend: setup.suspend,
        short_goal: 0.01,
        rotate_days: 7,
    }
}

fn pools_text(pools: &Pools) -> String {
    let mut out = format!(
        "\nCold data: {:.1} % of the chunks on average, unused for {:.0} s; {} requests reached them\n",
        pools.cold_share * 100.0,
        pools.cold_after_seconds,
        pools.cold_requests
    );
    if !pools.kept.is_empty() {
        out.push_str(
            "Kept in erasure-coded sets: from the load by the minute alone, with whole gears that know each hour's peak; servers: in replicas + in sets\n",
        );
        let rows: Vec<Vec<String>> = pools.kept.iter().map(PoolOutcome::cells).collect();
        table(&mut out, &PoolOutcome::HEADER, &rows);
    }
    out
}

/// How many requests a synthetic day is to have, if that is asked for.
fn made_up(args: &TraceArgs) -> Option<&str> {
    match &args.traces[..] {
        [only] => only.to_str().and_then(|name| name.strip_prefix("day:")),
        _ => None,
    }
}

fn read(args: &TraceArgs, seed: u64) -> Result<Trace, NodeError> {
    let mut trace = match made_up(args) {
        Some(count) => {
            let requests = count.parse().ok().filter(|n| (1..=100_000_000).contains(n));
            let requests = requests.ok_or_else(|| {
                refused(format!("day:{count}: give a number of requests, 1 to 100,000,000"))
            })?;
            Day { requests, seed, ..Day::default() }.trace()
        }
        None => args.options.load(&args.traces, &reading())?,
    };
    if args.load != 1.0 {
        trace.requests = thin(&trace, args.load)?;
    }
    Ok(trace)
}

/// Keeps a share of the requests, preserving their mix.
fn thin(trace: &Trace, share: f64) -> Result<Vec<Request>, NodeError> {
    let whole = InMemory::new(&trace.requests, &trace.devices);
    let filter = BalancedFilter::new(whole, share).map_err(refused)?;
    filter.collect::<Result<_, _>>().map_err(refused)
}

fn setup(args: &TraceArgs, seed: u64, trace: &Trace) -> Result<Setup, NodeError> {
    let setup = setup_of(args, seed)?;
    if args.servers != ServersArg::Peak {
        return Ok(setup);
    }
    let needed = servers_for_peak(trace, &setup).map_err(refused)?;
    let servers = u16::try_from(needed).map_err(|_| {
        refused(format!("the trace's peak needs {needed} servers: keep less of it with --load"))
    })?;
    Ok(Setup { servers, ..setup })
}

/// With any number of servers where the trace decides it.
fn setup_of(args: &TraceArgs, seed: u64) -> Result<Setup, NodeError> {
    if !args.chunk_mib.is_power_of_two() {
        return Err(refused(format!("--chunk-mib {}: use a power of two, 1 to 64", args.chunk_mib)));
    }
    let disk = match args.disk.as_str() {
        "hdd" => DiskModel::hdd(),
        "hdd-2009" => DiskModel::hdd_2009(),
        "ssd" => DiskModel::ssd(),
        "ssd-2008" => DiskModel::ssd_2008(),
        "pair" => DiskModel::pair(),
        file => DiskModel::read(DISKS, Path::new(file)).map_err(refused)?,
    };
    if args.mirror_policy.is_some() && !matches!(disk, DiskModel::Pair(_)) {
        return Err(refused(
            "--mirror-policy needs a pair of disks: add --disk pair, or remove --mirror-policy",
        ));
    }
    let kind = args.mirror_policy.unwrap_or_default();
    let mirroring = Mirroring { settings: Settings { kind, ..Settings::default() }, ..Mirroring::default() };
    let network = match args.network.as_str() {
        "1g" => NetworkModel::gigabit(),
        "10g" => NetworkModel::ten_gigabit(),
        file => settings::read("network", NETWORKS, Path::new(file)).map_err(refused)?,
    };
    let usual = Setup::default();
    Ok(Setup {
        servers: match args.servers {
            ServersArg::Number(servers) => servers,
            ServersArg::Peak => usual.servers,
        },
        loggers: args.loggers,
        racks: args.racks,
        replicas: args.replicas,
        layout: args.layout,
        chunk_bytes: args.chunk_mib << 20,
        client_hosts: args.clients,
        disk,
        mirroring,
        network,
        power: args.sleep.power("node")?,
        wake: args.sleep.wake,
        cycles_per_day: args.sleep.cycles.unwrap_or(usual.cycles_per_day),
        suspend: args.sleep.suspend,
        gears: match args.gears {
            GearsArg::Auto => Gears::Auto,
            GearsArg::Groups => Gears::Groups,
            GearsArg::Schedule => Gears::Schedule,
            GearsArg::Fixed => Gears::Fixed(args.gear.unwrap_or(args.replicas)),
        },
        g_min: args.g_min,
        speed: args.speed,
        provision: args.provision,
        except: args.except.clone(),
        reclaim_within: args.reclaim_within.unwrap_or_default(),
        seed,
        ..usual
    })
}

fn show_models() -> Result<ExitCode, NodeError> {
    let disks =
        [DiskModel::hdd(), DiskModel::hdd_2009(), DiskModel::ssd(), DiskModel::ssd_2008(), DiskModel::pair()];
    for (name, disk) in DISKS.split(", ").zip(disks) {
        println!("# --disk {name}\n{}", toml::to_string(&disk).map_err(refused)?);
    }
    for network in [NetworkModel::gigabit(), NetworkModel::ten_gigabit()] {
        println!("# --network {}\n{}", network.name, toml::to_string(&network).map_err(refused)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn page(report: &Report) -> String {
    let (trace, cluster, energy) = (&report.trace, &report.cluster, &report.energy_modelled);
    let saved = match energy.comparable {
        true => format!("Modelled energy saved against always on: {:.1} %", energy.clock.saved * 100.0),
        false => format!("Energy: {NO_SAVINGS}"),
    };
    let lead = format!(
        "{} on {} servers in {} racks, gears {}. {saved}.\n\n\
         Everything here is modelled. Disk {}: {}. Network {}: {}.",
        trace.name,
        cluster.servers,
        cluster.racks,
        cluster.gears,
        cluster.disk,
        cluster.disk_source,
        cluster.network,
        cluster.network_source
    );
    let lead = match report.stopped_at_seconds {
        Some(at) => format!(
            "{lead} It was stopped at {at:.0} s of the trace: the figures are of the time until then."
        ),
        None => lead,
    };
    let mut page = Page::new("A trace on a modelled cluster", lead);
    let line =
        |of: fn(&ebb_sim::request::Sample) -> f64| report.samples.iter().map(move |s| (s.at_seconds, of(s)));
    let time = || Axis::new("time").time();
    page.section("Load, servers, power", "")
        .chart(&Chart::new("Load", time(), Axis::new("requests/s")).with(Series::new(
            "requests",
            Mark::Area,
            line(|s| s.requests_per_second),
        )))
        .chart(&Chart::new("Servers awake", time(), Axis::new("servers")).with(Series::new(
            "awake",
            Mark::Step,
            line(|s| f64::from(s.servers_awake)),
        )))
        .chart(&racks_chart(report))
        .chart(&Chart::new("Power, modelled", time(), Axis::new("W")).with(Series::new(
            "all servers",
            Mark::Line,
            line(|s| s.watts),
        )))
        .chart(
            &Chart::new("Offload held for sleeping servers", time(), Axis::new("bytes").bytes())
                .with(Series::new("debt", Mark::Area, line(|s| s.debt_bytes as f64))),
        );
    page.text(&energy.text(trace.speed)).table(
        "Sleep by its depth",
        &DepthRow::HEADER,
        &report.depths.iter().map(DepthRow::cells).collect::<Vec<_>>(),
    );
    if let Some(pairs) = &report.pairs {
        pairs_section(&mut page, report, pairs);
    }
    latency_section(&mut page, report);
    shift_section(&mut page, report);
    page.render()
}

fn racks_chart(report: &Report) -> Chart {
    let chart = Chart::new("Servers awake, by rack", Axis::new("time").time(), Axis::new("servers"));
    (0..usize::from(report.cluster.racks)).fold(chart, |chart, rack| {
        let points = report.samples.iter().map(|s| (s.at_seconds, f64::from(s.awake_by_rack[rack])));
        chart.with(Series::new(format!("rack {}", rack + 1), Mark::Step, points))
    })
}

fn pairs_section(page: &mut Page, report: &Report, pairs: &PairsReport) {
    let (header, rows) = pairs.scale_rows();
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    let of = |value: fn(&ebb_sim::request::HourRow) -> f64| {
        pairs.hours.iter().map(move |hour| (hour.at_seconds, value(hour)))
    };
    let share = || Axis::new("share of the time").from(0.0);
    let samples = report.samples.iter().filter_map(|s| Some((s.at_seconds, s.disks_low?)));
    page.section("What each scale saved", &pairs.behaviour());
    if report.energy_modelled.comparable {
        page.table("Against all servers awake with disks of one speed", &header, &rows);
    }
    page.chart(
        &Chart::new("Disks at low speed, of servers awake", Axis::new("time").time(), share())
            .with(Series::new("all", Mark::Area, samples)),
    )
    .chart(
        &Chart::new("By hour of the trace", Axis::new("time").time(), share())
            .with(Series::new("all", Mark::Step, of(|hour| hour.low_share)))
            .with(Series::new("server with the least", Mark::Step, of(|hour| hour.least_low_share)))
            .with(Series::new("server with the most", Mark::Step, of(|hour| hour.most_low_share))),
    );
}

fn latency_section(page: &mut Page, report: &Report) {
    let header =
        ["operation", "gear", "phase", "requests", "mean", "p50", "p95", "p99", "p99.9", "max", "retried"];
    let millis = |value: f64| format!("{value:.2} ms");
    let rows: Vec<Vec<String>> = report
        .latency
        .iter()
        .map(|row| {
            let l = &row.latency;
            vec![
                row.operation.to_owned(),
                row.gear.map_or("all".into(), |gear| gear.to_string()),
                row.phase.map_or("all".into(), |phase| phase.name().to_owned()),
                l.count.to_string(),
                millis(l.mean_millis),
                millis(l.p50_millis),
                millis(l.p95_millis),
                millis(l.p99_millis),
                millis(l.p999_millis),
                millis(l.max_millis),
                row.retried.to_string(),
            ]
        })
        .collect();
    page.section("Latency", "By the gear and phase in which a request arrived; modelled.");
    let mut chart = Chart::new(
        "99th percentile by phase",
        Axis::new("").names(PHASES.map(|phase| phase.name())),
        Axis::new("latency").time(),
    );
    let gears: std::collections::BTreeSet<u8> = report.latency.iter().filter_map(|row| row.gear).collect();
    for (operation, gear) in ["read", "write"].into_iter().flat_map(|op| gears.iter().map(move |g| (op, *g)))
    {
        let rows = report.latency.iter().filter(|row| row.operation == operation && row.gear == Some(gear));
        let place =
            |row: &ebb_sim::request::LatencyRow| PHASES.iter().position(|phase| Some(*phase) == row.phase);
        let points = rows.filter_map(|row| Some((place(row)? as f64, row.latency.p99_millis / 1e3)));
        chart = chart.with(Series::new(format!("{operation}s in gear {gear}"), Mark::Bars, points));
    }
    let whole = report.latency.iter().filter(|row| row.gear.is_none() && row.phase.is_none());
    let whole = whole.map(|row| (format!("{}s", row.operation), &row.latency));
    page.chart(&distribution("Distribution of response times, modelled", whole));
    page.chart(&chart).table("Modelled latency", &header, &rows);
    let rows: Vec<Vec<String>> =
        report.retries.rows().map(|(why, count)| vec![why.to_owned(), count.to_string()]).into();
    page.section("Retries", "Attempts beyond the first.").table("By reason", &["reason", "tries"], &rows);
}

fn shift_section(page: &mut Page, report: &Report) {
    let rows: Vec<Vec<String>> = report
        .shifts
        .iter()
        .map(|s| {
            vec![
                format!("{:.0} s", s.at_seconds),
                format!("{} to {}", s.from_gear, s.to_gear),
                format!("{} to {}", s.from_servers, s.to_servers),
                s.woken.to_string(),
                s.put_to_sleep.to_string(),
                s.migrations.to_string(),
                format!("{:.2} s", s.took_seconds),
                s.why.clone(),
            ]
        })
        .collect();
    let header = ["at", "gear", "servers", "woken", "asleep", "primaries moved", "took", "why"];
    page.section("Gear shifts", "").table("As the metadata service recorded them", &header, &rows);
    reclaim_tables(page, report);
    let rows: Vec<Vec<String>> = report
        .traffic
        .iter()
        .map(|row| {
            let (all, cross) = (Bytes(row.bytes).to_string(), Bytes(row.cross_rack_bytes).to_string());
            vec![row.traffic.name().to_owned(), all, cross]
        })
        .collect();
    page.section("Network", "").table("Bytes", &["for", "bytes", "between racks"], &rows);
    let rows: Vec<Vec<String>> = report
        .holders
        .iter()
        .map(|row| {
            vec![
                row.gear.to_string(),
                row.phase.name().to_owned(),
                format!("{:.1}", row.mean_holders),
                format!("{:.3}", row.mean_queue),
                format!("{:.3}", row.mean_offload_queue),
                row.longest_queue.to_string(),
            ]
        })
        .collect();
    let header = ["gear", "phase", "holders", "mean queue", "offload part", "longest"];
    page.section(
        "Queues at holders",
        "Store commands in flight: the mean over time and servers, and the maximum of one server.",
    )
    .table("Queues", &header, &rows);
}

fn reclaim_tables(page: &mut Page, report: &Report) {
    let at = |seconds: f64| format!("{seconds:.0} s");
    let moved = |m: &ebb_sim::request::Migration| {
        vec![at(m.at_seconds), m.migrations.to_string(), format!("{:.0} ms", m.took_millis)]
    };
    let rows: Vec<Vec<String>> = report.migrations.iter().map(moved).collect();
    page.table(
        "Primaries handed over before servers sleep",
        &["at", "primaries", "until the last had moved"],
        &rows,
    );
    let returned = |r: &ebb_sim::request::Reclaim| {
        let (debt, fetched) = (Bytes(r.debt_bytes).to_string(), Bytes(r.fetched_bytes).to_string());
        let rate = format!("{}/s", Bytes(r.bytes_per_second as u64));
        vec![at(r.at_seconds), debt, fetched, format!("{:.2} s", r.took_seconds), rate]
    };
    let rows: Vec<Vec<String>> = report.reclaims.iter().map(returned).collect();
    let header =
        ["at", "offload held when servers began to wake", "fetched", "until all were in sync", "rate"];
    page.table("Offload reclaimed after servers wake", &header, &rows);
}
