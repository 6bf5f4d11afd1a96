//! The operator's commands. Thin: they ask the metadata service and print the answer.

use crate::cli::dev::{DevCluster, DevOptions};
use crate::cli::page::Opened;
use crate::cli::plan;
use crate::cli::pool::{self, PoolCommand};
use crate::cli::readings::{self, Readings};
use crate::cli::series::SeriesArgs;
use crate::cli::tool::ToolArgs;
use crate::cli::{losses, space, status as show, verify as compare};
use crate::cluster::config::Config;
use crate::cluster::connect::{Connector, ask, status};
use crate::cluster::launch::Stop;
use crate::cluster::pools::PoolSection;
use crate::cluster::secrets;
use crate::daemon::clock;
use crate::error::{NodeError, refused};
use clap::{Args, Subcommand};
use ebb_client::Client;
use ebb_output::print_json;
use ebb_types::{
    AdminReply, AdminRequest, ClusterStatus, GearMode, GearStatus, GearWish, GroupCounts, Health,
    NoticeRecord, PoolId, Room, Served, ServerId, ServerState, counted,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// What `ebb gear set` takes: `12` or `2/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Servers(u32),
    Gear { gear: u8, of: u8 },
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Wish, String> {
        let wrong = || {
            format!(
                "{text:?} is neither a number of servers, such as 12, nor a gear of all gears, such as 2/3"
            )
        };
        match text.split_once('/') {
            Some((gear, of)) => {
                let (gear, of) = (gear.parse(), of.parse());
                Ok(Wish::Gear { gear: gear.map_err(|_| wrong())?, of: of.map_err(|_| wrong())? })
            }
            None => text.parse().map(Wish::Servers).map_err(|_| wrong()),
        }
    }
}

impl Wish {
    /// As the metadata service takes it; `replicas`: the cluster's gears.
    fn of(self, replicas: u8) -> Result<GearWish, NodeError> {
        match self {
            Wish::Servers(servers) => Ok(GearWish::Servers(servers)),
            Wish::Gear { gear, of } if of == replicas => Ok(GearWish::Gear(gear)),
            Wish::Gear { gear, of } => Err(refused(format!(
                "{gear}/{of}: this cluster has {replicas} gears, one per copy; use 1/{replicas} to {replicas}/{replicas}"
            ))),
        }
    }
}

#[derive(Subcommand)]
pub enum GearCommand {
    /// Keep a number of servers, or a gear, awake until another command changes it
    Set {
        /// 12: keep 12 servers awake; 2/3: two of three gear groups
        #[arg(value_name = "SERVERS|GEAR/GEARS")]
        wish: Wish,
        /// Return when the servers are so, and what they missed has been copied
        #[arg(long)]
        wait: bool,
    },
    /// Let load and forecast choose
    Auto,
    /// Show what the scheduler would do in the next day, and what that follows from; changes nothing
    Plan(SeriesArgs),
    /// Apply `[scheduler]` of the configuration file; otherwise it is only read when the cluster is created
    Apply,
}

pub async fn connect(tool: &ToolArgs) -> Result<(Config, Client), NodeError> {
    let config = Config::load(&tool.file.config)?;
    let client = Connector::new(&config)?.connect_for_a_person(tool.wait.timeout).await?;
    Ok((config, client))
}

/// Creates the cluster's secret files, or an administrator's.
pub fn secret(file: &Path, admin: Option<&Path>) -> Result<(), NodeError> {
    let config = Config::load(file)?;
    let Some(path) = admin else {
        let made = secrets::make(&config)?;
        made.iter().for_each(|path| println!("created {}", path.display()));
        if made.is_empty() {
            println!("all secret files exist already");
        }
        return Ok(());
    };
    secrets::make_admin(&config, path)?;
    println!("created {}: name it as cluster.secret_file on the administrator's machine", path.display());
    Ok(())
}

/// Output of `ebb status --json`.
#[derive(Serialize)]
struct Shown<'a> {
    health: Health,
    room: Option<Room>,
    served: Served,
    #[serde(flatten)]
    status: &'a ClusterStatus,
    /// With `--measured`.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<&'a Readings>,
}

/// What `ebb status` shows beyond the usual.
#[derive(Args, Clone, Copy)]
pub struct StatusArgs {
    /// Also ask the servers' management controllers what they measure ([[server.power]]), and compare with the
    /// modelled watts; at most half a minute
    #[arg(long)]
    measured: bool,
    /// Also show why each server is awake, or may sleep
    #[arg(long)]
    why: bool,
    /// Also show each server's lease, and what it keeps for others
    #[arg(long)]
    servers: bool,
}

pub async fn show_status(tool: &ToolArgs, args: StatusArgs) -> Result<ExitCode, NodeError> {
    let (config, client) = connect(tool).await?;
    let status = status(&client).await?;
    let mut readings = None;
    if args.measured {
        let meters = readings::meters(&config)?;
        let read = tokio::task::spawn_blocking(|| readings::read(meters, readings::DEADLINE));
        let answers = read.await.map_err(refused)??;
        let modelled = status.servers.iter().map(|server| (server.id, server.modelled_watts));
        readings = Some(Readings::new(modelled, answers));
    }
    let measured = readings.as_ref();
    let (health, room, served) = (status.health(), status.room(), status.served());
    let leases = if args.servers { show::leases(&status.servers) } else { String::new() };
    let text = show::page(&status, measured, args.why) + &leases;
    tool.print(&Shown { health, room, served, status: &status, measured }, text);
    Ok(ExitCode::SUCCESS)
}

pub async fn pool(tool: &ToolArgs, command: PoolCommand) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    if let PoolCommand::Create { name } = &command {
        ask(&client, AdminRequest::CreatePool { name: name.clone() }).await?;
    }
    let status = status(&client).await?;
    let pools = pool::select(&status.pools, &status.servers, command.name())?;
    let text = match &command {
        PoolCommand::Create { .. } | PoolCommand::List { .. } => pool::list(&pools),
        PoolCommand::Status { .. } => pool::page(&pools),
    };
    tool.print(&pools, text);
    Ok(ExitCode::SUCCESS)
}

pub async fn gear(tool: &ToolArgs, command: GearCommand) -> Result<ExitCode, NodeError> {
    if let GearCommand::Plan(args) = &command
        && let Some(series) = &args.series
    {
        return plan::after_series(tool, series, args);
    }
    let (config, client) = connect(tool).await?;
    let request = match command {
        GearCommand::Set { wish, .. } => AdminRequest::GearSet(wish.of(config.cluster.replicas)?),
        GearCommand::Auto => AdminRequest::GearAuto,
        GearCommand::Plan(_) => return plan::show(&client, tool).await,
        GearCommand::Apply => AdminRequest::SetSchedule(config.schedule()),
    };
    ask(&client, request).await?;
    if let GearCommand::Set { wish, wait: true } = command {
        wait_for(&client, wish, tool.file.json).await?;
    }
    tool.done(match command {
        GearCommand::Set { wait: true, .. } => "done\n",
        _ => "decided; `ebb status` shows how far it is\n",
    });
    if !tool.file.json {
        status(&client).await?.notes.iter().for_each(|note| println!("note: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Until the cluster is as was wished, however long that takes: the line shows what is missing.
async fn wait_for(client: &Client, wish: Wish, silent: bool) -> Result<(), NodeError> {
    let mut line = StatusLine::new(silent);
    loop {
        let status = status(client).await?;
        if !line.silent {
            line.show(&status);
        }
        let there = status.servers.iter().filter(|s| s.pool == PoolId::REPLICATED && !s.logger);
        let servers = there.filter(|s| s.state != ServerState::Lost).count();
        if stands(&status.gear, &status.groups, servers, wish)? {
            line.end();
            return Ok(());
        }
        tokio::time::sleep(STATUS_INTERVAL).await;
    }
}

/// Whether the `servers` of the replicated pool are as the wish wants them, and every replica on an awake server is in
/// sync.
fn stands(gear: &GearStatus, groups: &GroupCounts, servers: usize, wish: Wish) -> Result<bool, NodeError> {
    if gear.mode != GearMode::Manual {
        return Err(refused("another command has changed the gear meanwhile"));
    }
    let all = match wish {
        Wish::Servers(wanted) => wanted as usize >= servers,
        Wish::Gear { gear, of } => gear == of,
    };
    // A replica is also away where its server failed.
    let in_sync = groups.catching_up == 0 && !(all && groups.away > 0);
    Ok(in_sync && !gear.shifting)
}

pub async fn notices(tool: &ToolArgs) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    let AdminReply::Notices(notices) = ask(&client, AdminRequest::ListNotices { after: 0 }).await? else {
        return Err(refused("unexpected answer of the metadata service"));
    };
    let line = |NoticeRecord { at_unix_millis, notice, .. }: &NoticeRecord| {
        format!("{}  {notice}\n", clock::weekday_and_time(*at_unix_millis))
    };
    let text = match &notices[..] {
        [] => "nothing has happened since this leader began\n".to_owned(),
        some => some.iter().map(line).collect(),
    };
    tool.print(&notices, text);
    Ok(ExitCode::SUCCESS)
}

pub async fn lost(tool: &ToolArgs, server: u16, accept_loss: bool) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    ask(&client, AdminRequest::MarkLost { server: ServerId(server), accept_loss }).await?;
    tool.done(format_args!(
        "server {server} is declared lost; its data is being rebuilt where others have it (`ebb status`)\n"
    ));
    Ok(ExitCode::SUCCESS)
}

pub async fn force(tool: &ToolArgs, accept_loss: bool) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    ask(&client, AdminRequest::Force { accept_loss }).await?;
    tool.done(
        "accepted: groups are being rebuilt from the newest remaining data (`ebb status`); then `ebb verify --lost` lists the \
         objects that lost bytes\n",
    );
    Ok(ExitCode::SUCCESS)
}

pub async fn verify(tool: &ToolArgs, read: bool) -> Result<ExitCode, NodeError> {
    let (config, client) = connect(tool).await?;
    let comparison = compare::compare(&config, &client, read).await?;
    tool.print(&comparison, comparison.text());
    let replicas = config.cluster.replicas;
    if comparison.groups_different == 0 && comparison.groups_out_of_sync > 0 {
        eprintln!(
            "nothing differs, and not everything could be compared: first wake all servers, with `ebb gear set {replicas}/{replicas} --wait`"
        );
    }
    Ok(comparison.exit_code())
}

pub async fn space(tool: &ToolArgs, free: bool) -> Result<ExitCode, NodeError> {
    let (config, client) = connect(tool).await?;
    let space = space::check(&config, &client, free).await?;
    tool.print(&space, space.text());
    Ok(space.exit_code())
}

pub async fn losses(tool: &ToolArgs) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    let losses = losses::check(&client).await?;
    tool.print(&losses, losses.text());
    Ok(losses.exit_code())
}

/// Output of `ebb scrub --json`.
#[derive(Serialize)]
struct Asked {
    servers: Vec<AskedServer>,
}

#[derive(Serialize)]
struct AskedServer {
    id: u16,
    replicas: u32,
}

/// Asks one server, or all awake servers, to scrub now. They continue after this command ends.
pub async fn scrub(tool: &ToolArgs, server: Option<u16>) -> Result<ExitCode, NodeError> {
    let (config, client) = connect(tool).await?;
    let map = client.map();
    if let Some(id) = server
        && !map.is_live(ServerId(id))
    {
        return Err(refused(format!("server {id} is not awake: only awake servers are scrubbed")));
    }
    let wanted = map.servers.keys().filter(|id| map.is_live(**id) && server.is_none_or(|only| only == id.0));
    let mut servers = Vec::new();
    for id in wanted {
        match compare::scrub(&config, &client, *id).await {
            Ok(replicas) => servers.push(AskedServer { id: id.0, replicas }),
            // It has gone to sleep since.
            Err(_) if server.is_none() && !client.map().is_live(*id) => {}
            Err(error) => return Err(error),
        }
    }
    let replicas: u32 = servers.iter().map(|s| s.replicas).sum();
    let (replicas, on) = (counted(replicas.into(), "replica"), counted(servers.len() as u64, "server"));
    let text = format!("scrubbing {replicas} on {on}; `ebb status` shows how many are left\n");
    tool.print(&Asked { servers }, text);
    Ok(ExitCode::SUCCESS)
}

/// Output of `ebb dev --json`.
#[derive(Serialize)]
struct Ready<'a> {
    endpoint: String,
    access_key: &'a str,
    secret_key: &'a str,
    config: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<String>,
    /// Absent: its port was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<String>,
    pids: BTreeMap<String, u32>,
}

pub async fn dev(data: Option<&Path>, options: &DevOptions, json: bool) -> Result<ExitCode, NodeError> {
    let mut stop = Stop::new()?;
    let mut cluster = tokio::select! {
        started = DevCluster::start(data, options) => started?,
        () = stop.asked() => return Ok(ExitCode::FAILURE),
    };
    let endpoint = format!("http://{}", cluster.config.gateway[0].address);
    let page = cluster.page().await;
    if json {
        let (access_key, secret_key) = (cluster.access_key.as_str(), cluster.secret_key.as_str());
        let config = cluster.config.file.display().to_string();
        let (metrics, pids) = (cluster.metrics(), cluster.pids());
        let page = page.as_ref().ok().map(Opened::url);
        print_json(&Ready { endpoint, access_key, secret_key, config, metrics, page, pids });
    } else {
        greet(&cluster, &endpoint, &page);
    }
    if let Ok(page) = page {
        // Until this program ends.
        tokio::task::spawn_local(page.serve(std::future::pending()));
    }
    let client = Connector::new(&cluster.config)?.connect().await?;
    let mut line = StatusLine::new(json);
    loop {
        tokio::select! {
            () = stop.asked() => break,
            () = tokio::time::sleep(STATUS_INTERVAL) => {
                for failure in cluster.failures() {
                    line.note(&failure);
                }
                if !line.silent && let Ok(status) = status(&client).await {
                    line.show(&status);
                }
            }
        }
    }
    line.note("stopping");
    drop(client);
    cluster.stop().await;
    Ok(ExitCode::SUCCESS)
}

fn greet(cluster: &DevCluster, endpoint: &str, page: &Result<Opened, NodeError>) {
    let c = &cluster.config;
    let racks: std::collections::BTreeSet<u16> = c.server.iter().map(|s| s.rack).collect();
    println!(
        "Ebb: {} chunk servers in {} racks, {} copies of everything, {} metadata server(s)\n\
         \n  S3 endpoint  {endpoint}\n  access key   {}\n  secret key   {}\n{}\
         \nTry it:\n  export AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={} AWS_DEFAULT_REGION=us-east-1\n  \
         aws --endpoint-url {endpoint} s3 mb s3://first && aws --endpoint-url {endpoint} s3 cp README.md s3://first/\n\
         \n{}\n{}Data and logs: {}\nA awake  d draining  z asleep  w waking  X failed  L lost. Ctrl-C stops cleanly.\n",
        c.server.len(),
        racks.len(),
        c.cluster.replicas,
        c.meta.len(),
        cluster.access_key,
        cluster.secret_key,
        cluster.metrics().map(|url| format!("  metrics      {url}\n")).unwrap_or_default(),
        cluster.access_key,
        cluster.secret_key,
        match page {
            Ok(page) => format!("page {}", page.url()),
            Err(why) => format!("page none: {why}"),
        },
        pools(c),
        c.file.parent().unwrap_or(Path::new(".")).display(),
    );
}

/// A line per erasure-coded pool.
fn pools(config: &Config) -> String {
    let one = |pool: &PoolSection| {
        let members = config.server.iter().filter(|s| s.pool.as_ref() == Some(&pool.name));
        let servers: Vec<String> = members.map(|s| s.id.to_string()).collect();
        format!("Pool {}, code {}: servers {}\n", pool.name, pool.code, servers.join(" "))
    };
    config.pool.iter().map(one).collect()
}

/// One line: overwritten in place on a terminal, printed once per change elsewhere.
struct StatusLine {
    silent: bool,
    terminal: bool,
    last: String,
}

impl StatusLine {
    fn new(silent: bool) -> StatusLine {
        StatusLine { silent, terminal: std::io::stdout().is_terminal(), last: String::new() }
    }

    fn show(&mut self, status: &ClusterStatus) {
        let line = show::line(status);
        if line == self.last {
            return;
        }
        let mut out = std::io::stdout().lock();
        // A closed pipe ends the display, not the cluster.
        let _ = if self.terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
        let _ = out.flush();
        self.last = line;
    }

    /// What follows begins on a line of its own.
    fn end(&mut self) {
        if self.terminal && !std::mem::take(&mut self.last).is_empty() {
            println!();
        }
    }

    fn note(&mut self, text: &str) {
        if !self.silent {
            let lead = if self.terminal && !self.last.is_empty() { "\n" } else { "" };
            println!("{lead}{text}");
            self.last.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::GearSteps;

    #[test]
    fn a_wish_is_fulfilled_when_servers_and_copies_are_as_it_wants_them() {
        let gear = GearStatus {
            mode: GearMode::Manual,
            gear: 3,
            servers: 9,
            steps: GearSteps::Servers,
            shifting: false,
            dry_run: false,
            short_of_room: false,
            emergency: false,
            servers_awake: 9,
            load: 0.0,
            servers_needed: 3,
            forecast: None,
        };
        let (all, some) = (Wish::Gear { gear: 3, of: 3 }, Wish::Gear { gear: 1, of: 3 });
        let groups = |away, catching_up| GroupCounts { away, catching_up, ..GroupCounts::default() };
        let is = |groups, wish| stands(&gear, &groups, 9, wish).unwrap();
        assert!(is(groups(0, 0), all) && is(groups(0, 0), some));
        assert!(!is(groups(0, 1), all) && !is(groups(0, 1), some), "a copy is catching up");
        // Where not all are to be awake, copies on those that sleep are away.
        assert!(!is(groups(1, 0), all) && is(groups(1, 0), some));
        assert!(!is(groups(1, 0), Wish::Servers(9)) && is(groups(1, 0), Wish::Servers(8)));
        let shifting = GearStatus { shifting: true, ..gear.clone() };
        assert!(!stands(&shifting, &groups(0, 0), 9, all).unwrap());
        let other = GearStatus { mode: GearMode::Auto, ..gear.clone() };
        let error = stands(&other, &groups(0, 0), 9, all).unwrap_err().to_string();
        assert!(error.contains("another command has changed the gear"), "{error}");
    }

    #[test]
    fn what_a_development_cluster_lacks_is_absent() {
        let ready = |url: Option<String>| {
            let (metrics, page) = (url.clone(), url);
            let (endpoint, config) = (String::new(), String::new());
            let pids = BTreeMap::new();
            let ready = Ready { endpoint, access_key: "", secret_key: "", config, metrics, page, pids };
            serde_json::to_value(&ready).unwrap()
        };
        let (all, none) = (ready(Some("http://127.0.0.1:1/".into())), ready(None));
        for key in ["metrics", "page"] {
            assert!(all.get(key).is_some() && none.get(key).is_none(), "{key}: {none}");
        }
    }
}
