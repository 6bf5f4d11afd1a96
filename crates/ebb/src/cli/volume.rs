//! `ebb volume`: block devices kept in the cluster.

use crate::cli::pool::unknown;
use crate::cli::tool::{WaitArgs, print};
use crate::cluster::config::Config;
use crate::cluster::connect::Connector;
use crate::daemon;
use crate::error::{NodeError, refused};
use clap::{Args, Subcommand};
use ebb_client::Client;
use ebb_output::table;
use ebb_types::{
    BLOCK_BYTES, Bytes, NamespaceAnswer, NamespaceQuery, SLICE_BYTES, VolumeHome, VolumeStatus, parse_bytes,
};
use ebb_volume::Volume;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Examples:
  ebb volume create --size 20GiB vm                  three copies of everything
  ebb volume create --size 20GiB --pool archive v1   what is seldom written moves to the erasure-coded pool
  ebb volume serve v1 vm                             for NBD clients on 127.0.0.1:10809, until Ctrl-C
  ebb volume list --json
  ebb volume delete v1";

/// Of a volume's size, the part that it may keep in the replicated pool, and its bounds.
const FRONT_SHARE: u64 = 16;
const FRONT_MIN: u64 = 4 * SLICE_BYTES as u64;
const FRONT_DEFAULT_MIN: u64 = 64 << 20;

#[derive(Args)]
pub struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE", default_value = "data/cluster.toml", global = true)]
    config: PathBuf,
}

#[derive(Subcommand)]
enum VolumeCommand {
    /// Create a volume
    Create {
        name: String,
        /// Size, such as 20GiB; a multiple of 4 KiB
        #[arg(long, value_parser = parse_bytes)]
        size: Bytes,
        /// The erasure-coded pool for what is seldom written [default: everything stays in the replicated pool]
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// With --pool: the most that stays in the replicated pool [default: a sixteenth of the size, at least 64MiB]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "pool")]
        front: Option<Bytes>,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Show all volumes
    List {
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Serve volumes to NBD clients until Ctrl-C. Only one process at a time may serve a volume
    Serve {
        #[arg(required = true)]
        names: Vec<String>,
        /// Address for NBD clients
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10809")]
        nbd: String,
        /// Address for /metrics, for Prometheus (docs/metrics.md)
        #[arg(long, value_name = "ADDRESS:PORT")]
        metrics: Option<String>,
    },
    /// Delete a volume with all its data
    Delete {
        name: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
}

/// Entry of `ebb volume list --json`.
#[derive(Serialize)]
struct Listed {
    name: String,
    size_bytes: u64,
    created_millis: u64,
    /// Absent: everything is in the replicated pool.
    pool: Option<String>,
    front_max_bytes: Option<u64>,
    moved_bytes: u64,
    /// A process serves it.
    in_use: bool,
}

pub async fn run(args: VolumeArgs) -> Result<ExitCode, NodeError> {
    let file = &args.config;
    match args.command {
        VolumeCommand::Create { name, size, pool, front, wait } => {
            let client = connect(file, wait).await?;
            let home = pool.map(|pool| home(&client, &pool, size, front)).transpose()?;
            if size.0 == 0 || !size.0.is_multiple_of(BLOCK_BYTES as u64) {
                return Err(refused(format!(
                    "the size is {} bytes: give a multiple of {BLOCK_BYTES}, such as 20GiB",
                    size.0
                )));
            }
            Volume::create(&client, &name, size.0, home).await?;
        }
        VolumeCommand::List { json, wait } => list(&connect(file, wait).await?, json).await?,
        VolumeCommand::Serve { names, nbd, metrics } => {
            let client = connector(file)?.connect().await?;
            let volumes = open_all(&client, names).await?;
            daemon::volume::run(client, volumes, &nbd, metrics.as_deref()).await?;
        }
        VolumeCommand::Delete { name, wait } => {
            open(connect(file, wait).await?, &name).await?.delete().await?
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// No other client writes to a volume that this process has opened.
fn connector(file: &Path) -> Result<Connector, NodeError> {
    Ok(Connector::new(&Config::load(file)?)?.sole_writer())
}

async fn connect(file: &Path, wait: WaitArgs) -> Result<Client, NodeError> {
    connector(file)?.connect_for_a_person(wait.timeout).await
}

async fn open(client: Client, name: &str) -> Result<Volume, NodeError> {
    let waiting = || {
        eprintln!("another process serves {name}, or has ended just now: waiting 12 s for a sign of life ...")
    };
    Ok(Volume::open(client, name, waiting).await?)
}

/// All of them, with their names, or none.
async fn open_all(client: &Client, names: Vec<String>) -> Result<Vec<(String, Volume)>, NodeError> {
    if let Some(at) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
        return Err(refused(format!("{:?} is there twice: name each volume once", names[at])));
    }
    let opening = names.into_iter().map(|name| async {
        let opened = open(client.clone(), &name).await;
        opened.map(|volume| (name.clone(), volume)).map_err(|error| (name, error))
    });
    let (mut opened, mut failed) = (Vec::new(), Vec::new());
    for outcome in futures_util::future::join_all(opening).await {
        match outcome {
            Ok(volume) => opened.push(volume),
            Err(failure) => failed.push(failure),
        }
    }
    let Some((name, error)) = failed.into_iter().next() else { return Ok(opened) };
    daemon::volume::close(opened.into_iter().map(|(_, volume)| volume)).await?;
    Err(refused(format!("volume {name}: {error}")))
}

/// Where a volume's cold slices go.
pub fn home(client: &Client, pool: &str, size: Bytes, front: Option<Bytes>) -> Result<VolumeHome, NodeError> {
    let known = || client.pools().into_iter().map(|pool| pool.name);
    let found = client.pool(pool).ok_or_else(|| unknown(pool, known()))?;
    let front_bytes = front.map_or((size.0 / FRONT_SHARE).max(FRONT_DEFAULT_MIN), |front| front.0);
    if front_bytes < FRONT_MIN {
        return Err(refused(format!(
            "--front {} is too little to move anything: give at least {}",
            Bytes(front_bytes),
            Bytes(FRONT_MIN)
        )));
    }
    Ok(VolumeHome { pool: found.id, front_bytes })
}

/// All volumes.
async fn all(client: &Client) -> Result<Vec<Listed>, NodeError> {
    match client.query(NamespaceQuery::Volumes).await? {
        Ok(NamespaceAnswer::Volumes(all)) => {
            Ok(all.into_iter().map(|(name, status)| listed(client, name, &status)).collect())
        }
        answer => Err(refused(format!("unexpected answer of the metadata service: {answer:?}"))),
    }
}

/// What `ebb volume list --json` prints.
pub async fn list_json(client: &Client) -> Result<String, NodeError> {
    Ok(serde_json::to_string(&all(client).await?).expect("plain types become JSON"))
}

async fn list(client: &Client, json: bool) -> Result<(), NodeError> {
    let all = all(client).await?;
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let mut out = String::new();
    table(&mut out, &["volume", "size", "pool", "moved there", "at most here", ""], &rows);
    print(json, &all, out);
    Ok(())
}

fn listed(client: &Client, name: String, status: &VolumeStatus) -> Listed {
    let home = status.meta.home;
    // The pool of a volume is one of the cluster's, but this map may be older.
    let pool_name = |home: VolumeHome| {
        let pool = client.pools().into_iter().find(|pool| pool.id == home.pool);
        pool.map_or_else(|| home.pool.to_string(), |pool| pool.name)
    };
    Listed {
        name,
        size_bytes: status.meta.size,
        created_millis: status.meta.created_millis,
        pool: home.map(pool_name),
        front_max_bytes: home.map(|home| home.front_bytes),
        moved_bytes: (status.moved * u64::from(SLICE_BYTES)).min(status.meta.size),
        in_use: status.owner.is_some(),
    }
}

fn row(volume: &Listed) -> Vec<String> {
    let pool = volume.pool.clone();
    let front = volume.front_max_bytes.map(|bytes| Bytes(bytes).to_string());
    vec![
        volume.name.clone(),
        Bytes(volume.size_bytes).to_string(),
        pool.unwrap_or_else(|| "-".to_owned()),
        Bytes(volume.moved_bytes).to_string(),
        front.unwrap_or_else(|| "everything".to_owned()),
        if volume.in_use { "in use".to_owned() } else { String::new() },
    ]
}
