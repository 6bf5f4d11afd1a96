//! More is lost than can be borne, at the end of a run: every disk that has some group, or more disks of an
//! erasure-coded set than it has parity. Some servers return with empty disks, others are gone for good, and the
//! operator says so. Whatever has a complete copy is served all the same, and every strip that is left is read. The
//! rest waits until the operator accepts the loss; then it is served, and what is written from then on is kept.
//!
//! What was acknowledged is gone, so only the rules that no loss excuses are checked from here on
//! ([`BEYOND_LOSS`](crate::search::invariants::BEYOND_LOSS)).

use crate::engine::SECOND;
use crate::search::client::{CELLS_PER_BLOCK, shared_chunk};
use crate::search::coder::{CODERS, Coder};
use crate::search::harness::World;
use crate::search::history::{Action, Op, Outcome};
use crate::search::invariants::{RESORT, SURVIVAL};
use crate::search::linear::{Verdict, check};
use crate::world::server::Server;
use ebb_store::mem::MemDisk;
use ebb_types::{
    ChunkId, GroupEntry, GroupId, Random, ServerId, ServerState, SetEntry, SetId, SlotState, mix,
};

/// Chance per mille of the seeds in which it can happen.
const CHANCE: u64 = 250;
/// Chance per mille that a server whose disk is lost does not return.
const GONE: u64 = 300;
/// By then whatever can be served is.
const LASTS: u64 = 60 * SECOND;
/// Blocks of a chunk above which that takes longer.
const LARGE: u32 = 64;
/// Operations of each client once the loss is accepted.
const OPS: u32 = 12;

pub(super) fn beyond(world: &mut World) {
    let mut random = Random::new(mix(world.settings.seed ^ 0xbe70));
    let is_part = |id| world.newest_state().server(id).is_some();
    let whole = world.servers.values().all(|s| s.runs() && !s.lost && !s.missing || !is_part(s.id));
    if !random.chance(CHANCE) || !whole || world.rebuilds() {
        return;
    }
    let sets: Vec<(SetId, SetEntry)> = world.newest_state().sets().map(|(id, e)| (id, e.clone())).collect();
    match random.pick(&sets) {
        Some((set, entry)) => lose_a_set(world, &mut random, *set, entry),
        None => lose_a_group(world, &mut random),
    }
}

fn lose_a_group(world: &mut World, random: &mut Random) {
    let groups: Vec<GroupEntry> = world.newest_state().groups().map(|(_, entry)| entry.clone()).collect();
    let entry = random.pick(&groups).expect("there are groups");
    let ids = entry.slots.iter().map(|slot| slot.server).collect();
    world.count("more lost than can be borne");
    lose(world, random, ids);
    until(world, SURVIVAL, |world| world.forsaken());
    // Those that came back copy what is left.
    until(world, SURVIVAL, copying);
    let forces = unserved(world).is_some();
    world.wishes.want_force(forces);
    world.ask();
    until(world, RESORT, unserved);
    until(world, RESORT, copying);
    keeps_its_promises_again(world);
}

/// The servers' disks are lost, one after the other, while clients work. Some servers return.
fn lose(world: &mut World, random: &mut Random, mut ids: Vec<ServerId>) {
    // Until it has been told, the metadata service may give a failed server up that has the last copy.
    world.harness.invariants.beyond = true;
    world.wishes.accept_loss(true);
    random.shuffle(&mut ids);
    let mut gone = Vec::new();
    for id in &ids {
        world.note(|| format!("{id}: its disk is lost"));
        world.crash(*id);
        if random.chance(GONE) && !is_last_of_its_gear_group(world, *id, &gone) {
            world.server(*id).missing = true;
            gone.push(*id);
        } else {
            world.server(*id).store.replace(MemDisk::new());
        }
        // Holders may stand in, and get writes.
        employ(world, 2);
        world.run_until(world.now + random.below(6) * SECOND, |_| false);
    }
    ids.iter().filter(|id| !gone.contains(id)).for_each(|id| world.restart(*id));
    // The leader knows which disks are empty once their servers have told it, or have failed.
    until(world, RESORT, unheard);
    world.wishes.accept_loss(false);
    for id in gone {
        give_up(world, random, id);
    }
}

/// A server does not return. The operator may first ask for nothing that loses data; that is granted only if none is.
fn give_up(world: &mut World, random: &mut Random, id: ServerId) {
    world.count("server lost beyond what can be borne");
    world.wishes.want_lost(Some(id));
    world.ask();
    world.run_until(world.now + random.below(8) * SECOND, |world| world.wishes.lost().is_none());
    world.wishes.accept_loss(true);
    until(world, RESORT, |world| world.wishes.lost().map(|id| format!("{id} is not declared lost")));
    world.wishes.accept_loss(false);
    world.note(|| format!("{id} is gone for good"));
    let server = world.server(id);
    (server.lost, server.missing) = (true, false);
}

/// A server whose disk is lost is not known to run on another one.
fn unheard(world: &World) -> Option<String> {
    let state = world.newest_state();
    let knows = |s: &&Server| state.server(s.id).is_some_and(|entry| entry.store == s.store.mark().store);
    let unheard = world.servers.values().find(|s| !s.missing && !s.lost && !knows(s));
    unheard.map(|s| format!("the metadata service does not know what {} runs on", s.id))
}

/// No server could take its place: the operator replaces it.
fn is_last_of_its_gear_group(world: &World, id: ServerId, gone: &[ServerId]) -> bool {
    let state = world.newest_state();
    let Some(entry) = state.server(id).filter(|entry| !entry.is_logger()) else { return false };
    let peers = state.servers().filter(|e| e.pool == entry.pool && e.gear_group == entry.gear_group);
    !peers.into_iter().any(|e| e.id != id && !gone.contains(&e.id))
}

fn employ(world: &mut World, ops: u32) {
    for client in 0..world.harness.plan.clients {
        if world.client(client).is_done() {
            world.employ(client, ops);
        }
    }
    for coder in CODERS..CODERS + world.harness.plan.coders {
        if world.coder(coder).is_done() {
            world.employ_coder(coder, ops);
        }
    }
}

fn until(world: &mut World, rule: &'static str, what: impl Fn(&World) -> Option<String>) {
    // Blocks that have rotted are tried one by one.
    let lasts = if world.settings.chunk_blocks() > LARGE { 10 * LASTS } else { LASTS };
    let end = world.now + lasts;
    if world.violation.is_none() && !world.run_until(end, |world| what(world).is_none()) {
        let what = what(world).unwrap_or_default();
        world.fail(rule, format!("{} s after more was lost than can be borne, {what}", lasts / SECOND));
    }
}

fn unserved(world: &World) -> Option<String> {
    let mut groups = world.newest_state().groups();
    let unserved = groups.find(|(group, entry)| !world.is_served(*group, entry));
    unserved.map(|(group, _)| format!("{group} is not served"))
}

/// A group that is served has not got all of its copies again.
fn copying(world: &World) -> Option<String> {
    let mut groups = world.newest_state().groups();
    let copying = groups.find(|(_, entry)| entry.primary.is_some() && !entry.is_in_sync());
    copying.map(|(group, _)| format!("{group} is served and has not all of its copies"))
}

fn working(world: &World) -> Option<String> {
    let client = world.harness.clients.iter().find(|client| !client.is_done());
    // Without spares there may be no server left for a column, so that nobody can say what became of it.
    let exposed = |coder: &Coder| coder.works_in().is_some_and(|set| world.is_exposed(set));
    let coder = world.harness.coders.iter().position(|coder| !coder.is_done() && !exposed(coder));
    let client = client.map(|client| format!("client-{} waits", client.id));
    client.or_else(|| coder.map(|nth| format!("coder-{} waits", CODERS + nth as u32)))
}

/// Everything is written once more, and from then on each read has an explanation, also after another crash.
fn keeps_its_promises_again(world: &mut World) {
    until(world, RESORT, working);
    let cells = (world.settings.chunk_blocks() * CELLS_PER_BLOCK).min(64);
    let since = world.harness.history.ops.len();
    for n in 0..world.harness.plan.chunks {
        world.client(0).to_do.push((shared_chunk(n), Action::Write { first: 0, cells }));
    }
    world.employ(0, 0);
    until(world, RESORT, working);
    employ(world, OPS);
    let primary = world.newest_state().groups().find_map(|(_, entry)| entry.primary);
    if let Some(id) = primary {
        world.run_until(world.now + SECOND, |_| false);
        world.crash(id);
        world.run_until(world.now + SECOND, |_| false);
        world.restart(id);
    }
    until(world, RESORT, working);
    let by_chunk = world.harness.history.by_chunk();
    let is_broken = |chunk: &ChunkId| {
        let ops = by_chunk.get(chunk).into_iter().flatten().filter(|(n, _)| *n >= since);
        let ops: Vec<(usize, &Op)> = ops.copied().collect();
        // What was there before is not known, unless all of it was written over.
        ops.first().is_some_and(|(_, first)| first.outcome == Outcome::Done)
            && matches!(check(&ops), Verdict::Broken { .. })
    };
    if let Some(chunk) = (0..world.harness.plan.chunks).map(shared_chunk).find(is_broken) {
        let what = format!("no order explains what was seen of {chunk} after the loss was accepted");
        world.fail(RESORT, what);
    }
}

/// More disks of a set than it has parity. Rows that fewer servers have than are needed are lost; the strips of the
/// others are read nevertheless.
fn lose_a_set(world: &mut World, random: &mut Random, set: SetId, entry: &SetEntry) {
    if !entry.is_in_sync() || !world.harness.invariants.ruined.is_empty() {
        return;
    }
    let mut ids: Vec<ServerId> = entry.columns.iter().map(|column| column.server).collect();
    random.shuffle(&mut ids);
    ids.truncate(random.between(entry.shape.parity() as u64 + 1, ids.len() as u64) as usize);
    let columns = ids.iter().filter_map(|id| entry.column_of(*id));
    world.harness.invariants.lost_columns = columns.map(|column| GroupId::of_column(set, column)).collect();
    world.count("more of a set lost than can be borne");
    world.note(|| format!("{} of {} disks of {set} will be lost", ids.len(), entry.columns.len()));
    lose(world, random, ids);
    until(world, RESORT, |world| rebuilding(world, set));
    until(world, RESORT, working);
    for coder in CODERS..CODERS + world.harness.plan.coders {
        world.coder(coder).read_all();
        world.employ_coder(coder, 0);
    }
    until(world, RESORT, working);
    if world.newest_state().set(set).is_some_and(|entry| entry.is_in_sync()) {
        world.harness.coders.iter_mut().for_each(|coder| coder.stored.clear());
        world.harness.invariants.lost_columns.clear();
        employ(world, OPS);
        until(world, RESORT, working);
    }
}

/// A column of the set whose server is there has not all that can be had.
fn rebuilding(world: &World, set: SetId) -> Option<String> {
    let state = world.newest_state();
    let is_lost = |id| state.server(id).is_none_or(|entry| entry.state == ServerState::Lost);
    let entry = state.set(set)?;
    let behind = |state| matches!(state, SlotState::CatchingUp { .. });
    let column = entry.columns.iter().find(|c| behind(c.state) && !is_lost(c.server))?;
    Some(format!("{} has not what is left of {set}: {entry:?}", column.server))
}
