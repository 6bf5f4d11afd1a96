//! One line for each thing that happens, for the transcript.

use ebb_replica::{Command, Event, StoreCommand, StoreOutcome};
use ebb_types::{MapDelta, MetaPush, PeerMessage, Record, Run, SlotState, Space, TailRun};
use std::fmt::Write;

pub fn brief_event(event: &Event) -> String {
    match event {
        Event::Map(delta) => brief_map(delta),
        Event::Client { token, request, .. } => {
            format!("client {} {} {} {:?}", token.0, request.group, request.epoch, request.op)
        }
        Event::Peer { from, message, .. } => format!("{from}: {}", brief_peer(message)),
        Event::Stored { token, outcome } => format!("stored {}: {}", token.0, brief_outcome(outcome)),
        other => format!("{other:?}"),
    }
}

/// `None`: what the other side's line tells too.
pub fn brief_command(command: &Command) -> Option<String> {
    Some(match command {
        Command::Send { .. } => return None,
        Command::Reply { token, reply, .. } => format!("answers {}: {reply:?}", token.0),
        Command::Store { token, command } => format!("store {}: {}", token.0, brief_store(command)),
        other => format!("{other:?}"),
    })
}

pub fn brief_push(push: &MetaPush) -> Option<String> {
    match push {
        MetaPush::Lease { .. } | MetaPush::Params(_) | MetaPush::Drain => None,
        MetaPush::Map(delta) => Some(brief_map(delta)),
        other => Some(format!("{other:?}")),
    }
}

fn brief_map(delta: &MapDelta) -> String {
    let mut text = format!("map {}..{}", delta.from, delta.to);
    for server in &delta.servers {
        write!(text, " {}={:?}/{}", server.id, server.state, server.incarnation.0)
            .expect("a string takes everything");
    }
    for (group, entry) in &delta.groups {
        let primary = entry.primary.map_or("none".into(), |p| p.to_string());
        write!(text, " | {group} {} {primary}", entry.epoch).expect("a string takes everything");
        for slot in &entry.slots {
            let state = match slot.state {
                SlotState::InSync => "ok".into(),
                SlotState::CatchingUp { since } => format!("<{}", since.0),
                SlotState::Away { since } => format!("-{}", since.0),
            };
            let stand_in =
                slot.stand_in.map(|s| format!("+{}{}", s.server.0, if s.covered { "" } else { "?" }));
            write!(text, " {}{state}{}", slot.server.0, stand_in.unwrap_or_default())
                .expect("a string takes everything");
        }
    }
    text
}

fn brief_record(record: &Record) -> String {
    let request = record.request.map_or(String::new(), |r| format!(" by {}.{}", r.client, r.seq));
    format!("{}{request}", brief_run(&record.run()))
}

fn brief_run(run: &Run) -> String {
    format!("{} {}+{} v{} {:?}", run.chunk, run.first, run.count, run.version, run.kind)
}

fn brief_runs<'a>(runs: impl Iterator<Item = &'a Run>) -> String {
    runs.map(brief_run).collect::<Vec<_>>().join(", ")
}

fn brief_tail(tail: &[TailRun]) -> String {
    brief_runs(tail.iter().map(|t| &t.run))
}

fn brief_space(space: &Space) -> String {
    match space {
        Space::Replica => "replica".into(),
        Space::Offload { stands_for } => format!("offload-{}", stands_for.0),
    }
}

fn brief_peer(message: &PeerMessage) -> String {
    match message {
        PeerMessage::Fence { group, epoch, .. } => format!("Fence {group} {epoch}"),
        PeerMessage::FenceReply { group, epoch, tail, .. } => {
            format!("FenceReply {group} {epoch} [{}]", brief_tail(tail))
        }
        PeerMessage::Replicate { epoch, space, record, committed, must_fit } => format!(
            "Replicate {} {epoch} {} {} committed {committed}{}",
            record.group,
            brief_space(space),
            brief_record(record),
            if *must_fit { " must fit" } else { "" }
        ),
        PeerMessage::ListReply { group, token, result } => match result {
            Ok(page) => {
                format!("ListReply {group} {token} [{}] next {:?}", brief_runs(page.runs.iter()), page.next)
            }
            Err(refusal) => format!("ListReply {group} {token} {refusal:?}"),
        },
        PeerMessage::FetchReply { group, token, result } => match result {
            Ok(records) => {
                let records: Vec<String> = records.iter().map(brief_record).collect();
                format!("FetchReply {group} {token} [{}]", records.join(", "))
            }
            Err(refusal) => format!("FetchReply {group} {token} {refusal:?}"),
        },
        other => format!("{other:?}"),
    }
}

fn brief_store(command: &StoreCommand) -> String {
    match command {
        StoreCommand::Apply { space, record, .. } => {
            format!("apply {} {} {}", record.group, brief_space(space), brief_record(record))
        }
        StoreCommand::Repair { space, record, .. } => {
            format!("repair {} {} {}", record.group, brief_space(space), brief_record(record))
        }
        StoreCommand::Newer { group, runs, .. } => format!("newer {group} [{}]", brief_runs(runs.iter())),
        other => format!("{other:?}"),
    }
}

fn brief_outcome(outcome: &StoreOutcome) -> String {
    match outcome {
        StoreOutcome::Read { records, .. } => {
            let records: Vec<String> = records.iter().map(brief_record).collect();
            format!("read [{}]", records.join(", "))
        }
        StoreOutcome::Listed(page) => {
            format!("listed [{}] next {:?}", brief_runs(page.runs.iter()), page.next)
        }
        StoreOutcome::Newer(runs) => format!("newer [{}]", brief_runs(runs.iter())),
        other => format!("{other:?}"),
    }
}
