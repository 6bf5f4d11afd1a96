//! `ebb server add`, `drain`, `weight`, `remove`, `list`, and `ebb plan`: servers come and go, and what that moves.

use crate::cli::admin::connect;
use crate::cli::tool::ToolArgs;
use crate::cli::trust::server_id;
use crate::cli::words::word;
use crate::cluster::connect::{ask, status};
use crate::daemon::clock;
use crate::error::{NodeError, refused};
use clap::Subcommand;
use ebb_client::Client;
use ebb_types::{
    AdminReply, AdminRequest, Bytes, ClusterStatus, GearGroup, NewMember, PlannedServer, PoolId, RackId,
    ServerId, ServerPlan, ServerStatus, ServerWish, Tenure, Weight,
};
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(500);

#[derive(Subcommand)]
pub enum ServerCommand {
    /// Take in a new server of the replicated pool: it gets its share of what is stored, in the background
    #[command(
        after_help = "Example: ebb server add --id 10 --rack 4 --address 10.0.4.10:7710\n\nThen start it: `ebb server --config FILE --id 10`, with a file that has its [[server]] and the cluster's number of chunk groups (cluster.groups)."
    )]
    Add {
        /// Its id, which no other server has
        #[arg(long, value_parser = server_id)]
        id: ServerId,
        #[arg(long)]
        rack: u16,
        /// Where it listens, as host:port
        #[arg(long)]
        address: String,
        /// Its share, in proportion to others; a server from the start has 100
        #[arg(long, default_value_t = Weight::default().0)]
        weight: u32,
        /// Its gear group, from 0; absent: where it can have its share, the one with the least weight
        #[arg(long)]
        gear_group: Option<u8>,
        #[command(flatten)]
        how: How,
    },
    /// Move all that a server has to others, in the background, so that it can be removed
    #[command(
        after_help = "Example: ebb server drain 7 --wait    until nothing is left on it\n         ebb server drain 7 --abort   it stays after all, and gets back what has moved"
    )]
    Drain {
        /// `7` or `server-7`
        #[arg(value_parser = server_id)]
        server: ServerId,
        /// Take it back
        #[arg(long, conflicts_with = "plan")]
        abort: bool,
        #[command(flatten)]
        how: How,
    },
    /// Give a server another share: one of weight 200 gets twice as much as one of weight 100
    Weight {
        #[arg(value_parser = server_id)]
        server: ServerId,
        weight: u32,
        #[command(flatten)]
        how: How,
    },
    /// Remove a server that is drained, or one that was lost and is rebuilt
    Remove {
        #[arg(value_parser = server_id)]
        server: ServerId,
        #[command(flatten)]
        tool: ToolArgs,
    },
    /// List the servers of the replicated pool: where they stand, their shares, and what they have
    List {
        #[command(flatten)]
        tool: ToolArgs,
    },
}

/// How a change is made that moves data.
#[derive(clap::Args)]
pub struct How {
    /// Show what would move, and change nothing
    #[arg(long, conflicts_with = "wait")]
    plan: bool,
    /// Wait until nothing moves any more
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    tool: ToolArgs,
}

pub async fn run(command: ServerCommand) -> Result<ExitCode, NodeError> {
    let (server, wish, how) = match command {
        ServerCommand::Add { id, rack, address, weight, gear_group, how } => {
            let (rack, weight, gear_group) = (RackId(rack), Weight(weight), gear_group.map(GearGroup));
            (id, ServerWish::Add(NewMember { server: id, rack, address, weight, gear_group }), how)
        }
        ServerCommand::Drain { server, abort: true, how } => (server, ServerWish::Keep(server), how),
        ServerCommand::Drain { server, how, .. } => (server, ServerWish::Drain(server), how),
        ServerCommand::Weight { server, weight, how } => {
            (server, ServerWish::Weigh { server, weight: Weight(weight) }, how)
        }
        ServerCommand::Remove { server, tool } => return remove(&tool, server).await,
        ServerCommand::List { tool } => return list(&tool).await,
    };
    let (_, client) = connect(&how.tool).await?;
    if how.plan {
        return show_plan(&client, &how.tool, Some(wish)).await;
    }
    ask(&client, AdminRequest::Server(wish)).await?;
    if how.wait {
        return wait_for(&client, &how.tool, server).await;
    }
    how.tool.done(format_args!("decided for {server}; `ebb plan` shows what is left to move\n"));
    Ok(ExitCode::SUCCESS)
}

/// `ebb plan`: what is left to move.
pub async fn plan(tool: &ToolArgs) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    show_plan(&client, tool, None).await
}

async fn show_plan(
    client: &Client,
    tool: &ToolArgs,
    wish: Option<ServerWish>,
) -> Result<ExitCode, NodeError> {
    let AdminReply::ServerPlan(plan) = ask(client, AdminRequest::ServerPlan(wish)).await? else {
        return Err(refused("unexpected answer of the metadata service"));
    };
    tool.print(&*plan, page(&plan));
    Ok(ExitCode::SUCCESS)
}

async fn remove(tool: &ToolArgs, server: ServerId) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    ask(&client, AdminRequest::Server(ServerWish::Remove(server))).await?;
    tool.done(format_args!("{server} is no part of the cluster any more: stop its process\n"));
    Ok(ExitCode::SUCCESS)
}

/// Until the server is where it is to be: it has its share, or nothing.
async fn wait_for(client: &Client, tool: &ToolArgs, server: ServerId) -> Result<ExitCode, NodeError> {
    let (since, mut told) = (clock::now(), None);
    loop {
        let status = status(client).await?;
        let found = status.servers.iter().find(|s| s.id == server);
        let entry = found.ok_or_else(|| refused(format!("{server} was removed meanwhile")))?;
        if let Tenure::InUse | Tenure::Drained = entry.seat.tenure {
            let took = clock::now().since(since).as_secs();
            tool.done(format_args!("{server} is {} after {took} s\n", entry.seat.tenure));
            return Ok(ExitCode::SUCCESS);
        }
        if told != Some(entry.copies) && !tool.file.json {
            println!("{server} is {}; copies on it: {}", entry.seat.tenure, entry.copies);
        }
        told = Some(entry.copies);
        tokio::time::sleep(POLL).await;
    }
}

/// Output of `ebb server list --json`, one per server.
#[derive(Serialize)]
struct Listed {
    server: u16,
    rack: u16,
    /// Absent: a logger has none.
    gear_group: Option<u8>,
    address: String,
    state: &'static str,
    tenure: Tenure,
    weight: u32,
    copies: u32,
    /// Absent: it has not been heard since this leader took over.
    stored_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
}

impl Listed {
    fn of(server: &ServerStatus) -> Listed {
        Listed {
            server: server.id.0,
            rack: server.rack.0,
            gear_group: (!server.logger).then_some(server.gear_group.0),
            address: server.address.clone(),
            state: word(server.state),
            tenure: server.seat.tenure,
            weight: server.seat.weight.0,
            copies: server.copies,
            stored_bytes: server.vitals.as_ref().map(|v| v.used_bytes.saturating_sub(v.debt_bytes)),
            capacity_bytes: server.vitals.as_ref().map(|vitals| vitals.capacity_bytes),
        }
    }
}

async fn list(tool: &ToolArgs) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    let all = listed(&status(&client).await?);
    tool.print(&all, table(&all));
    Ok(ExitCode::SUCCESS)
}

fn listed(status: &ClusterStatus) -> Vec<Listed> {
    status.servers.iter().filter(|server| server.pool == PoolId::REPLICATED).map(Listed::of).collect()
}

fn table(all: &[Listed]) -> String {
    let mut out = "server  rack  gear group  state     tenure    weight  copies  stored\n".to_owned();
    for s in all {
        let gear_group = s.gear_group.map_or("logger".into(), |gear_group| gear_group.to_string());
        let stored = s.stored_bytes.map_or("unknown".into(), |bytes| Bytes(bytes).to_string());
        let _ = writeln!(
            out,
            "{:>6}  {:>4}  {gear_group:>10}  {:<8}  {:<8}  {:>6}  {:>6}  {stored}",
            s.server,
            s.rack,
            s.state,
            s.tenure.to_string(),
            s.weight,
            s.copies
        );
    }
    out
}

fn page(plan: &ServerPlan) -> String {
    let mut out = String::new();
    if let Some(gear_group) = plan.gear_group {
        let _ = writeln!(out, "it comes to {gear_group}");
    }
    let bytes = plan.bytes.map_or("an unknown number of bytes".into(), |bytes| Bytes(bytes).to_string());
    let _ = match (plan.copies, plan.moving) {
        (0, 0) => writeln!(out, "nothing moves"),
        (copies, moving) => {
            writeln!(out, "copies of chunk groups to move: {copies}, {bytes}; {moving} move now")
        }
    };
    for m in &plan.moves {
        let _ = writeln!(out, "  {:>5} from {} to {}", m.copies, m.from, m.to);
    }
    let changes = |s: &&PlannedServer| s.now != s.then;
    for s in plan.servers.iter().filter(changes) {
        let _ =
            writeln!(out, "  {} ({}, {}): {} copies now, {} then", s.id, s.rack, s.gear_group, s.now, s.then);
    }
    for note in &plan.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{PlannedMoves, Seat};

    #[test]
    fn a_plan_says_what_moves_where_and_what_stands_in_its_way() {
        let (rack, gear_group, seat) = (RackId(1), GearGroup(0), Seat::default());
        let server = |id, now, then| PlannedServer { id: ServerId(id), rack, gear_group, seat, now, then };
        let plan = ServerPlan {
            gear_group: Some(GearGroup(0)),
            moves: vec![PlannedMoves { from: ServerId(1), to: ServerId(9), copies: 16 }],
            copies: 16,
            bytes: Some(32 << 20),
            moving: 0,
            servers: vec![server(1, 64, 48), server(2, 64, 64), server(9, 0, 16)],
            notes: vec!["no move begins while copies are missing".into()],
        };
        let text = page(&plan);
        assert!(
            text.starts_with("it comes to gear-group-0\ncopies of chunk groups to move: 16, 32.0 MiB"),
            "{text}"
        );
        assert!(text.contains("16 from server-1 to server-9") && text.contains("64 copies now, 48 then"));
        assert!(
            !text.contains("server-2") && text.ends_with("note: no move begins while copies are missing\n")
        );
        assert_eq!(page(&ServerPlan::default()), "nothing moves\n");
    }
}
