//! `ebb mirror`: mirrors of two disks on this machine.

use crate::cli::tool::print;
use crate::daemon::mirror::control::{Answer, Question, ServedDisk, ServedStatus, ask, is_served};
use crate::daemon::mirror::{self, Driver, Options, standing};
use crate::error::{NodeError, refused};
use crate::mirror::drivers::{DRIVERS, DriverKind};
use crate::mirror::registry::{Name, Registry};
use crate::mirror::switches::availability;
use crate::mirror::{MirrorError, create};
use clap::{Args, Subcommand, ValueEnum};
use ebb_mirror::open::Accept;
use ebb_mirror::{Ack, DiskState, PolicyKind, Side, Speed};
use ebb_output::table;
use ebb_types::{Bytes, parse_bytes};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Examples:
  truncate -s 10G a b && ebb mirror create vm --disk a --disk b
  ebb mirror serve vm --nbd 127.0.0.1:10809       then, on this machine: nbd-client -N vm 127.0.0.1 /dev/nbd0
  ebb mirror serve vm --driver emulated           with the times and watts of a two-speed disk
  ebb mirror status vm

Anyone who can connect to the NBD address can read and write the mirror: keep it on loopback.";

#[derive(Args)]
pub struct MirrorArgs {
    #[command(subcommand)]
    command: MirrorCommand,
    /// Directory that records this machine's mirrors [default: $EBB_MIRRORS, else $XDG_STATE_HOME/ebb/mirrors, else
    /// ~/.local/state/ebb/mirrors]
    #[arg(long, value_name = "DIR", global = true)]
    registry: Option<PathBuf>,
}

#[derive(Subcommand)]
enum MirrorCommand {
    /// Create a mirror on two block devices or existing files
    #[command(
        after_help = "Example: ebb mirror create vm --disk /dev/disk/by-id/ata-A --disk /dev/disk/by-id/ata-B --log 3GiB"
    )]
    Create {
        name: Name,
        /// A block device or file; give two. Their sizes may differ: the smaller counts
        #[arg(long = "disk", value_name = "PATH", required = true)]
        disks: Vec<PathBuf>,
        /// Part of each disk that takes writes at low speed; 0: none
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "3GiB")]
        log: Bytes,
        /// Overwrite the disks even if they contain data
        #[arg(long)]
        overwrite: bool,
    },
    /// Serve a mirror over NBD until Ctrl-C
    #[command(after_help = "Example: ebb mirror serve vm --nbd 127.0.0.1:10809 --driver emulated")]
    Serve(ServeArgs),
    /// Show the state of a mirror that is served; touches no disk
    #[command(after_help = "Example: ebb mirror status vm --json | jq .condition")]
    Status {
        name: Name,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
    /// Put a new disk in the place of one that was lost; the next start copies everything to it
    #[command(after_help = "Example: ebb mirror replace vm --disk /dev/disk/by-id/ata-C")]
    Replace {
        name: Name,
        /// The new block device or file
        #[arg(long, value_name = "PATH")]
        disk: PathBuf,
        /// Overwrite the disk even if it contains data
        #[arg(long)]
        overwrite: bool,
    },
    /// Compare both copies while no client is served; `ebb mirror status` shows the result
    #[command(after_help = "Example: ebb mirror scrub vm && ebb mirror status vm")]
    Scrub { name: Name },
    /// List the drivers of disks and what each can do; with a mirror's name, also what each can do with its disks
    #[command(after_help = "Examples: ebb mirror drivers, ebb mirror drivers vm --json")]
    Drivers {
        /// Asks the drives, which needs root; sets nothing and wakes none
        name: Option<Name>,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct ServeArgs {
    name: Name,
    /// Address for NBD clients
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10809")]
    nbd: String,
    /// Address for /metrics, for Prometheus (docs/metrics.md)
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// Serve even if a disk is missing
    #[arg(long)]
    degraded: bool,
    /// Serve even if the disk that is present lacks later writes that the other one has; those are lost
    #[arg(long)]
    force: bool,
    /// The disk to keep after each was used without the other
    #[arg(long, value_name = "A|B", ignore_case = true)]
    keep: Option<Keep>,
    /// logstore, two-speed, div or one-speed [default: logstore; one-speed with driver none; two-speed with disks that
    /// sleep at low speed]
    #[arg(long, value_parser = word::<PolicyKind>)]
    policy: Option<PolicyKind>,
    /// When a write is acknowledged: safe (nothing is lost with one disk), both (safe, and both disks have it: writes
    /// wait for a change of speed) or one (as soon as one disk has it, as in the paper)
    #[arg(long, value_parser = word::<Ack>, default_value = "safe")]
    ack: Ack,
    /// What drives the disks' speed (see `ebb mirror drivers`) [default: as in NAME.toml, else none]
    #[arg(long)]
    driver: Option<DriverKind>,
    /// Figures of the emulated disk, TOML [default: the disk of the LogStore paper]
    #[arg(long, value_name = "FILE")]
    disk_model: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Keep {
    A,
    B,
}

/// A word that stands for a value in JSON, too.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

pub async fn run(args: MirrorArgs) -> Result<ExitCode, NodeError> {
    let registry = || Registry::find(args.registry.clone());
    match args.command {
        MirrorCommand::Create { name, disks, log, overwrite } => {
            let disks: [PathBuf; 2] = disks.try_into().map_err(|disks: Vec<_>| {
                refused(format!("a mirror has two disks and {} are given: give --disk twice", disks.len()))
            })?;
            let created = create::create(&registry()?, &name, disks, log, overwrite)?;
            println!("mirror {name}: {}, with a log of {} on each disk", created.size, created.log);
            if created.unused != Bytes::ZERO {
                println!("the larger disk is not used up: {} are left", created.unused);
            }
            if created.to_copy != Bytes::ZERO {
                println!(
                    "the first start copies {} from disk A to disk B, so that both are the same",
                    created.to_copy
                );
            }
        }
        MirrorCommand::Serve(args) => serve(&registry()?, args).await?,
        MirrorCommand::Status { name, json } => {
            let status = status(&registry()?, &name)?;
            print(json, &status, page(&status));
        }
        MirrorCommand::Replace { name, disk, overwrite } => {
            let registry = registry()?;
            if is_served(&registry.socket(&name)) {
                return Err(MirrorError::Served(name.to_string()).into());
            }
            let side = create::replace(&registry, &name, &disk, overwrite)?;
            println!(
                "{} is disk {side:?} of mirror {name} now: the next start copies everything to it",
                disk.display()
            );
        }
        MirrorCommand::Scrub { name } => {
            if let Answer::Scrub { size_bytes } = asked(&registry()?, &name, Question::Scrub)? {
                println!("comparing {}: `ebb mirror status {name}` shows the result", Bytes(size_bytes));
            }
        }
        MirrorCommand::Drivers { name: None, json } => drivers(json),
        MirrorCommand::Drivers { name: Some(name), json } => drivers_of(&registry()?, &name, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(registry: &Registry, args: ServeArgs) -> Result<(), NodeError> {
    let kind = match args.driver {
        Some(kind) => kind,
        None => registry.load(&args.name)?.driver.name,
    };
    let driver = Driver::new(kind, args.disk_model)?;
    let options = Options {
        accept: Accept { degraded: args.degraded, loss: args.force },
        keep: args.keep.map(|keep| match keep {
            Keep::A => Side::A,
            Keep::B => Side::B,
        }),
        policy: args.policy,
        ack: args.ack,
        driver,
    };
    mirror::run(registry, &args.name, (&args.nbd, args.metrics.as_deref()), options).await
}

/// The answer of the process that serves the mirror. A mirror that is not noted is another mistake than one not served.
fn asked(registry: &Registry, name: &Name, question: Question) -> Result<Answer, NodeError> {
    registry.load(name)?;
    ask(name, &registry.socket(name), question)
}

fn status(registry: &Registry, name: &Name) -> Result<ServedStatus, NodeError> {
    match asked(registry, name, Question::Status)? {
        Answer::Status(status) => Ok(*status),
        _ => {
            Err(MirrorError::Answer { name: name.to_string(), why: "it answers another question".into() }
                .into())
        }
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0))
}

fn of_json(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("a plain value");
    value.as_str().expect("a word").to_owned()
}

fn page(status: &ServedStatus) -> String {
    let mut out = String::new();
    let at = status.nbd.as_deref().unwrap_or("a chunk server's disks");
    let _ = writeln!(out, "mirror   {}: {}, {at}", status.name, Bytes(status.size_bytes));
    let _ = writeln!(out, "state    {}", standing(status));
    let (policy, ack) = (of_json(status.policy), of_json(status.ack));
    let driver = of_json(status.driver);
    let _ = writeln!(out, "policy   {policy}, driver {driver}, acknowledges {ack}");
    let _ = writeln!(out, "clients  {} connections", status.connections);
    let (once, dirty) = (Bytes(status.once_bytes), Bytes(status.dirty_bytes));
    let _ = writeln!(out, "copies   {once} on one disk only; a crash now would compare {dirty}");
    if status.unreadable > 0 {
        let _ = writeln!(out, "reads    {} FAILED on one disk", status.unreadable);
    }
    let _ = writeln!(out, "scrub    {}", scrub(status));
    let header = ["disk", "state", "speed", "mode", "busy", "log", "to replay", "postponed", "changes"];
    let rows: Vec<Vec<String>> = status.disks.iter().map(row).collect();
    out.push('\n');
    table(&mut out, &header, &rows);
    for disk in &status.disks {
        let _ = writeln!(out, "{:?}        {}", disk.status.side, disk.path.display());
        about(disk).iter().for_each(|line| out.push_str(&format!("         {line}\n")));
    }
    out
}

/// What is known of a disk's power, and of what keeps it from low speed.
fn about(disk: &ServedDisk) -> Vec<String> {
    let s = &disk.status;
    let mut lines = Vec::new();
    if let Some((joules, watts)) = disk.modelled_joules.zip(disk.modelled_watts) {
        lines.push(format!("{joules} since the start, mean {watts}, modelled"));
    }
    if let Some(watts) = disk.rated_watts {
        lines.push(format!("up to {watts} at this speed as rated, not measured"));
    }
    let forecast = s.utilisation_at_low.filter(|_| s.state != DiskState::Lost);
    if let Some((at_low, limit)) = forecast.zip(s.low_speed_limit) {
        let (at_low, limit) = (percent(Some(at_low)), percent(Some(limit)));
        lines.push(match s.speed {
            _ if s.state == DiskState::Asleep => format!("the other disk serves alone and is busy {at_low}"),
            Speed::High => format!("busy {at_low} as forecast for low speed; it goes there up to {limit}"),
            Speed::Low => format!("busy {at_low} as forecast at this speed; it came here up to {limit}"),
        });
    }
    lines
}

fn row(disk: &ServedDisk) -> Vec<String> {
    let s = &disk.status;
    vec![
        format!("{:?}", s.side),
        if s.state == DiskState::Lost { "LOST".into() } else { of_json(s.state) },
        of_json(s.speed),
        of_json(s.mode),
        percent(s.utilisation),
        format!("{} of {}", Bytes(s.log_used_bytes), Bytes(s.log_bytes)),
        Bytes(s.logged_bytes).to_string(),
        Bytes(s.postponed_bytes).to_string(),
        s.speed_changes.to_string(),
    ]
}

fn scrub(status: &ServedStatus) -> String {
    let s = &status.scrub;
    let found = match s.differing_bytes {
        0 => "no difference".to_owned(),
        bytes => format!("{} DIFFER, first at block {:?}", Bytes(bytes), s.differing_blocks),
    };
    match (s.running, s.passes) {
        (true, _) => {
            format!("running: {} of {} compared, {found}", Bytes(s.compared_bytes), Bytes(status.size_bytes))
        }
        (false, 0) => "none since the start".to_owned(),
        (false, passes) => {
            format!("{passes} since the start; the last compared {}: {found}", Bytes(s.compared_bytes))
        }
    }
}

fn drivers(json: bool) {
    let mut out = String::new();
    let rows: Vec<Vec<String>> = DRIVERS
        .iter()
        .map(|d| {
            let words = [d.low_speed, d.watts, d.disks, d.what].map(str::to_owned);
            [vec![of_json(d.driver)], words.to_vec()].concat()
        })
        .collect();
    table(&mut out, &["driver", "low speed", "watts", "disks", "what"], &rows);
    print(json, &DRIVERS, out);
}

fn drivers_of(registry: &Registry, name: &Name, json: bool) -> Result<(), NodeError> {
    let entry = registry.load(name)?;
    // Checks the section [driver].
    registry.settings(name, &entry)?;
    let found = availability(name, &entry);
    let mut out = String::new();
    for a in &found {
        let can = if a.available { "yes" } else { "no" };
        let _ = writeln!(out, "{:<8}  {:?}  {can}: {}", of_json(a.driver), a.disk, a.what);
    }
    print(json, &found, out);
    Ok(())
}
