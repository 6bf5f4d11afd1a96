//! One line of plain words per event, for the transcript. `a <- b: ...` is what `a` receives from `b`, `a -> ...` is
//! what `a` does in response; `#7` names a request or a disk operation of that server, `3.9` the ninth write of epoch
//! 3.

use ebb_chunkserver::shell::{Command, Event, News, OWN_TOKENS};
use ebb_chunkserver::{Event as CoreEvent, StoreCommand, StoreOutcome};
use ebb_types::{
    ChunkId, ChunkOp, ClientReply, Epoch, GroupEntry, GroupId, Kind, MapDelta, MetaPush, PeerMessage, Record,
    Refusal, Role, Run, ServerMessage, ServerReport, SlotState, StoreTask, TailRun,
};
use std::fmt::Write;

/// `None`: routine.
pub fn brief_event(event: &Event) -> Option<String> {
    Some(match event {
        Event::Core(event) => return brief_core(event),
        Event::Push(push) => return brief_obeyed(push),
        Event::Stored { token, outcome } if token.0 < OWN_TOKENS => {
            format!("disk #{}: {}", token.0, brief_outcome(outcome))
        }
        Event::Stored { outcome: StoreOutcome::Failed(refusal), .. } => format!("the store: no, {refusal}"),
        Event::Space(figures) if figures.used == figures.capacity => "the disk is nearly full".into(),
        Event::Stored { .. } | Event::Space(_) | Event::Beat(_) => return None,
        Event::Order(_) => "put your machine to sleep".into(),
        Event::Checked { outcome, .. } => format!("the machine can sleep: {outcome:?}"),
        Event::Suspended { outcome, .. } => format!("the machine was suspended: {outcome:?}"),
    })
}

/// `None`: time passes, or a push, which has its own words.
fn brief_core(event: &CoreEvent) -> Option<String> {
    Some(match event {
        CoreEvent::NoteCommits => "record what is on all targets".into(),
        CoreEvent::Client { token, request, .. } => {
            format!(
                "request #{} for {} of epoch {}: {}",
                token.0,
                request.group,
                request.epoch.0,
                brief_op(&request.op)
            )
        }
        CoreEvent::Peer { from, message, .. } => format!("{from}: {}", brief_peer(message)),
        CoreEvent::Unread { peer } => format!("what {peer} sent lies unread"),
        CoreEvent::PeerLost { peer } => format!("the connection to {peer} broke"),
        CoreEvent::ScrubAll => "scrub everything".into(),
        CoreEvent::Map(_)
        | CoreEvent::Lease { .. }
        | CoreEvent::Drain
        | CoreEvent::HandOver { .. }
        | CoreEvent::NotDropped { .. }
        | CoreEvent::Space { .. }
        | CoreEvent::Stored { .. }
        | CoreEvent::Tick
        | CoreEvent::Beat { .. } => return None,
    })
}

/// What a push means to the server that gets it. `None`: routine.
fn brief_obeyed(push: &MetaPush) -> Option<String> {
    match push {
        MetaPush::Map(delta) => Some(format!("map {}", delta.to)),
        MetaPush::Drain => Some("give up all primaries, then sleep".into()),
        _ => None,
    }
}

/// `None`: the other side's line says the same, or it is routine.
pub fn brief_command(command: &Command) -> Option<String> {
    Some(match command {
        Command::Reply { token, reply, .. } => format!("answers #{}: {}", token.0, brief_reply(reply)),
        Command::Store { token, command } => format!("disk #{}: {}", token.0, brief_store(command)),
        Command::Task { task, .. } => return brief_task(task),
        Command::Tell(ServerMessage::Reports { reports, .. }) => {
            let words: Vec<String> = reports.iter().map(brief_report).collect();
            format!("metadata service: {}", words.join("; "))
        }
        Command::Tell(ServerMessage::ReadyToSleep { map_version, .. }) => {
            format!("is ready to sleep by map {map_version}")
        }
        Command::Say(News::OldMetadata { known, offered }) => {
            format!("has seen map {known}, is offered {offered}")
        }
        Command::Say(News::Bug { group, what }) => format!("{group}: cannot happen: {what}"),
        _ => return None,
    })
}

fn brief_task(task: &StoreTask) -> Option<String> {
    match task {
        StoreTask::Drop { group, role: Role::Replica } => Some(format!("forgets its replica of {group}")),
        StoreTask::Drop { group, role: Role::Offload { stands_for } } => {
            Some(format!("forgets what it kept of {group} for {stands_for}"))
        }
        StoreTask::ForgetTombstones { group, up_to } => {
            Some(format!("forgets deletions of {group} up to {up_to}"))
        }
        StoreTask::Remember(_) | StoreTask::Flush => None,
    }
}

/// `None`: routine pushes, or pushes that the server's own line reports.
pub fn brief_push(push: &MetaPush) -> Option<String> {
    match push {
        MetaPush::Lease { .. }
        | MetaPush::Params(_)
        | MetaPush::Drain
        | MetaPush::Exam
        | MetaPush::Recall
        | MetaPush::Map(_) => None,
        MetaPush::HandOver { groups } => Some(format!("hand over {}", brief_groups(groups))),
        MetaPush::Superseded { known } => Some(format!("your store does not continue {known}")),
        MetaPush::Rejected { why, .. } => Some(format!("you may not take part: {why}")),
    }
}

fn brief_groups(groups: &[(GroupId, Epoch)]) -> String {
    let names: Vec<String> = groups.iter().map(|(group, _)| group.to_string()).collect();
    names.join(", ")
}

/// What is new in the map.
pub fn brief_map(delta: &MapDelta) -> String {
    let mut text = format!("map {}", delta.to);
    let mut put = |words: String| text.write_str(&words).expect("a string takes everything");
    for server in &delta.servers {
        let state = format!("{:?}", server.state).to_lowercase();
        put(format!("; {} is {state}", server.id));
    }
    for server in &delta.removed {
        put(format!("; {server} has left"));
    }
    for (group, entry) in &delta.groups {
        put(format!("; {group} {}", brief_entry(entry)));
    }
    text
}

pub fn brief_entry(entry: &GroupEntry) -> String {
    let primary = entry.primary.map_or("no primary".into(), |p| format!("primary {p}"));
    let mut text = format!("epoch {}: {primary}", entry.epoch.0);
    for slot in &entry.slots {
        let state = match slot.state {
            SlotState::InSync => "in sync".into(),
            SlotState::CatchingUp { since } => format!("catching up from epoch {}", since.0),
            SlotState::Away { since } => format!("away since epoch {}", since.0),
        };
        write!(text, ", {} {state}", slot.server).expect("a string takes everything");
        if let Some(holder) = slot.holder {
            let lacks = match holder.former {
                _ if holder.covered => String::new(),
                Some(former) => format!(", lacks what {former} keeps"),
                None => ", lacks older writes".into(),
            };
            write!(text, " (holder {}{lacks})", holder.server).expect("a string takes everything");
        }
    }
    if let Some(k) = entry.moving {
        write!(text, " (takes the place of {})", entry.slots[usize::from(k)].server)
            .expect("a string takes everything");
    }
    if entry.fallback.is_some() {
        text.push_str(", does not serve yet");
    }
    text
}

fn brief_op(op: &ChunkOp) -> String {
    let chunk = op.chunk();
    let (offset, len) = op.range();
    let words = match op {
        ChunkOp::Read { .. } => "read",
        ChunkOp::Look { .. } => "look",
        ChunkOp::Write { .. } => "write",
        ChunkOp::Zero { .. } => "zero",
        ChunkOp::Delete { .. } => return format!("delete {chunk}"),
    };
    format!("{words} bytes {offset} to {} of {chunk}", offset + len - 1)
}

fn brief_reply(reply: &ClientReply) -> String {
    match reply {
        ClientReply::Data { .. } => "the bytes".into(),
        ClientReply::Looked(_) => "which blocks have data".into(),
        ClientReply::Done { .. } => "done, every copy is durable".into(),
        ClientReply::Forgotten { .. } => "not known any more whether it was done".into(),
        ClientReply::SetMoved { set, entry } => format!("not here, but in epoch {} of {set}", entry.epoch.0),
        ClientReply::Moved { entry } => format!("not here, but in {}", brief_entry(entry)),
        ClientReply::Retry { why } => format!("not now, {why}"),
        ClientReply::Failed { why } => format!("no, {why}"),
    }
}

fn brief_report(report: &ServerReport) -> String {
    match report {
        ServerReport::CaughtUp { group, epoch } => {
            format!("I have all of {group} that I missed (epoch {})", epoch.0)
        }
        ServerReport::Covered { group, epoch, stands_for } => {
            format!("the holder for {stands_for} has all of {group} (epoch {})", epoch.0)
        }
        ServerReport::Suspect { group, epoch, server } => {
            format!("{server} does not answer in {group} (epoch {})", epoch.0)
        }
        ServerReport::Released { group, epoch } => {
            format!("{group} is handed over, appoint another primary (epoch {})", epoch.0)
        }
        ServerReport::Serving { group, epoch } => {
            format!("all targets of {group} are fenced, may I serve? (epoch {})", epoch.0)
        }
        ServerReport::Damaged { group, epoch } => {
            format!("no awake copy of a damaged block of {group} (epoch {})", epoch.0)
        }
        ServerReport::Owes { group, epoch } => {
            format!("strips of {group} are only in my memory, I cannot sleep (epoch {})", epoch.0)
        }
        ServerReport::Remembers { group, epoch } => {
            format!(
                "I remember many deletions in {group}, a new epoch lets me forget them (epoch {})",
                epoch.0
            )
        }
    }
}

fn brief_record(record: &Record) -> String {
    let request =
        record.request.map_or(String::new(), |r| format!(" (request {} of client {})", r.seq, r.client));
    format!("{}{request}", brief_run(&record.run()))
}

fn brief_run(run: &Run) -> String {
    let Run { chunk, first, count, version, kind } = run;
    match kind {
        Kind::Delete => format!("deletion of {chunk} as {version}"),
        Kind::Zero => format!("zeroes of {chunk} {} as {version}", brief_blocks(*first, *count)),
        Kind::Note => format!("a note of {chunk} {} as {version}", brief_blocks(*first, *count)),
        Kind::Data => format!("{chunk} {} as {version}", brief_blocks(*first, *count)),
        Kind::Lost => format!("lost {chunk} {} up to {version}", brief_blocks(*first, *count)),
    }
}

fn brief_blocks(first: u32, count: u32) -> String {
    if count == 1 { format!("block {first}") } else { format!("blocks {first} to {}", first + count - 1) }
}

fn brief_runs<'a>(runs: impl Iterator<Item = &'a Run>) -> String {
    let runs: Vec<String> = runs.map(brief_run).collect();
    if runs.is_empty() { "nothing".into() } else { runs.join(", ") }
}

fn brief_records(records: &[Record]) -> String {
    let records: Vec<String> = records.iter().map(brief_record).collect();
    if records.is_empty() { "nothing".into() } else { records.join(", ") }
}

fn brief_tail(tail: &[TailRun]) -> String {
    brief_runs(tail.iter().map(|t| &t.run))
}

pub fn brief_role(role: &Role) -> String {
    match role {
        Role::Replica => "replica".into(),
        Role::Offload { stands_for } => format!("offload for {stands_for}"),
    }
}

fn brief_peer(message: &PeerMessage) -> String {
    match message {
        PeerMessage::Fence { group, epoch, .. } => {
            format!(
                "{group} is in epoch {} now, refuse older ones; what do you not know to be committed?",
                epoch.0
            )
        }
        PeerMessage::FenceReply { group, epoch, tail, .. } => {
            format!("{group}: I refuse all before epoch {}; in doubt: {}", epoch.0, brief_tail(tail))
        }
        PeerMessage::Replicate { role, record, committed, must_fit, .. } => format!(
            "{}: keep as {} {}; committed up to {committed}{}",
            record.group,
            brief_role(role),
            brief_record(record),
            if *must_fit { "; use the reserve if you must" } else { "" }
        ),
        PeerMessage::ReplicateReply { group, version, result, .. } => match result {
            Ok(()) => format!("{group}: {version} is durable here"),
            Err(refusal) => format!("{group}: {version} is not kept, {refusal}"),
        },
        PeerMessage::Committed { group, committed, .. } => format!("{group}: committed up to {committed}"),
        PeerMessage::List { group, role, since, after, .. } => {
            let after = after.map_or(String::new(), |c| format!(", after block {} of {}", c.block, c.chunk));
            format!("{group}: what does your {} have since epoch {}{after}?", brief_role(role), since.0)
        }
        PeerMessage::ListReply { group, result, .. } => match result {
            Ok(page) => {
                let more = if page.next.is_some() { ", and there is more" } else { "" };
                format!("{group}: it has {}{more}", brief_runs(page.runs.iter()))
            }
            Err(refusal) => no_answer(*group, *refusal),
        },
        PeerMessage::Fetch { group, role, chunk, first, count, .. } => {
            let blocks = brief_blocks(*first, *count);
            format!("{group}: send me {chunk} {blocks} of your {}", brief_role(role))
        }
        PeerMessage::FetchReply { group, result, .. } => match result {
            Ok(records) => format!("{group}: here is {}", brief_records(records)),
            Err(refusal) => no_answer(*group, *refusal),
        },
        PeerMessage::Scrub { group, after, .. } => {
            let after = after.map_or(String::new(), |c| format!(" after block {} of {}", c.block, c.chunk));
            format!("{group}: compare its copies{after}")
        }
        PeerMessage::Check { group, role, chunk, first, count, .. } => {
            let blocks = brief_blocks(*first, *count);
            format!("{group}: what are {chunk} {blocks} of your {}?", brief_role(role))
        }
        PeerMessage::CheckReply { group, result, .. } => match result {
            Ok(records) => format!("{group}: they are {}", brief_records(records)),
            Err(refusal) => no_answer(*group, *refusal),
        },
        PeerMessage::Scrubbed { group, end, sound, .. } => {
            let end = end.map_or("its end".into(), |c| format!("block {} of {}", c.block, c.chunk));
            format!("{group}: your replica is {}sound up to {end}", if *sound { "" } else { "not " })
        }
    }
}

fn no_answer(group: GroupId, refusal: Refusal) -> String {
    format!("{group}: no, {refusal}")
}

fn brief_store(command: &StoreCommand) -> String {
    let blocks =
        |chunk: &ChunkId, first: &u32, count: &u32| format!("{chunk} {}", brief_blocks(*first, *count));
    match command {
        StoreCommand::Apply { role, record, .. } => {
            format!("writes as {} of {} {}", brief_role(role), record.group, brief_record(record))
        }
        StoreCommand::Repair { role, record, .. } => {
            format!("repairs in the {} of {} {}", brief_role(role), record.group, brief_record(record))
        }
        StoreCommand::Read { role, group, chunk, first, count } => {
            format!("reads {} of the {} of {group}", blocks(chunk, first, count), brief_role(role))
        }
        StoreCommand::Check { role, group, chunk, first, count, .. } => {
            format!("checks {} of the {} of {group}", blocks(chunk, first, count), brief_role(role))
        }
        StoreCommand::List { role, group, since, .. } => {
            format!("lists the {} of {group} since epoch {}", brief_role(role), since.0)
        }
        StoreCommand::Newer { group, runs, .. } => {
            format!("which is news in {group} of {}?", brief_runs(runs.iter()))
        }
    }
}

fn brief_outcome(outcome: &StoreOutcome) -> String {
    match outcome {
        StoreOutcome::Applied => "durable".into(),
        StoreOutcome::Read { records, .. } => format!("read {}", brief_records(records)),
        StoreOutcome::Listed(page) => {
            let more = if page.next.is_some() { ", and there is more" } else { "" };
            format!("has {}{more}", brief_runs(page.runs.iter()))
        }
        StoreOutcome::Newer(runs) => format!("news is {}", brief_runs(runs.iter())),
        StoreOutcome::Damaged { chunk, block, lost, given_up, .. } => {
            let how = match (lost.is_some(), given_up) {
                (true, _) => "lost",
                (_, true) => "given up",
                _ => "damaged",
            };
            format!("{chunk} block {block} is {how}")
        }
        StoreOutcome::Failed(refusal) => format!("failed, {refusal}"),
    }
}
