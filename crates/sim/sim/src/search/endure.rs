//! One thing is broken and stays so, while all else is well: a disk hangs, or the metadata leader is cut off from
//! servers and clients and not from its members, or does not hear some of the servers. The rest must serve, and not
//! only now and then.

use crate::engine::{MILLI, SECOND};
use crate::search::harness::World;
use crate::world::net::Node;
use crate::world::server::Server;
use ebb_types::{ClusterStatus, GroupEntry, PoolId, Random, ServerId, ServerState, SlotState, TestStep, mix};

/// Longest time until what went before is over.
const SETTLES: u64 = 30 * SECOND;
/// How long it stays broken.
const LASTS: u64 = 40 * SECOND;
/// In all, clients may wait for this long: until it is noticed, and others have taken over.
const WAITS: u64 = 15 * SECOND;
/// An operation that is not answered within this time waits.
const SOON: u64 = 3 * SECOND;
/// Bytes that are left of a full disk at least, beside what clients have in flight, which may have to be written once
/// more. A real store's reserve is a thousand times that; here it may be less than a segment begins with.
const LEFT: u64 = 32 << 10;
/// Chances per mille and round.
const HANGS: u64 = 60;
const DEAF: u64 = 250;
const FULL: u64 = 80;
const DEAF_IN_PART: u64 = 200;

pub(super) fn endure(world: &mut World, round: u32) {
    let mut random = Random::new(mix(world.settings.seed ^ mix(u64::from(round) ^ 0x4a46)));
    let state = world.newest_state();
    // One that crashed while it woke is a second fault.
    let sleeps = |id| state.server(id).is_some_and(|entry| entry.state == ServerState::Asleep);
    let missing = world.servers.values().any(|s| s.missing || !s.runs() && !sleeps(s.id));
    if world.violation.is_some() || world.harness.lost.is_some() || missing || world.rebuilds() {
        return;
    }
    // A connection that broke before may not have been noticed yet.
    world.run_until(world.now + SETTLES, |world| !recovers(world));
    let hangs = random.chance(HANGS);
    let deaf = world.settings.members > 2 && random.chance(DEAF);
    let full = random.chance(FULL) && !world.needs_memory() && is_complete(world);
    let mut apart = Random::new(mix(world.settings.seed ^ mix(u64::from(round) ^ 0xdf74)));
    let deaf_in_part = world.members.len() > 1 && apart.chance(DEAF_IN_PART);
    // What no copy can repair is sought everywhere before a client hears of it.
    if recovers(world) || !world.harness.invariants.ruined.is_empty() {
        return;
    }
    if hangs {
        a_disk_hangs(world, &mut random);
    } else if deaf {
        the_leader_is_deaf(world);
    } else if full {
        all_is_full(world, &mut random);
    } else if deaf_in_part {
        the_leader_is_deaf_in_part(world, &mut apart);
    }
}

fn a_disk_hangs(world: &mut World, random: &mut Random) {
    let runs = world.servers.values().filter(|s| s.runs() && !s.missing).map(|s| s.id);
    let servers: Vec<ServerId> = runs.collect();
    let Some(id) = random.pick(&servers).copied() else { return };
    // It may have the only sound copy of a block that has rotted on others: no fault of its own is that. And one whose
    // disk paused often is called hung late, for a reason.
    if world.harness.invariants.rot_seen || world.servers[&id].is_patient(world.now) {
        return;
    }
    // A shift puts servers to sleep for as long as the failure is not known, and moves what is kept for them: a second
    // fault (seed 30310003165).
    if shifts(world) {
        return;
    }
    // Every write needs r other servers, and those of an erasure-coded pool keep no copies.
    let state = world.newest_state();
    let keeps = |of: &&ServerId| state.server(**of).is_some_and(|e| e.pool == PoolId::REPLICATED);
    if servers.iter().filter(|of| **of != id).filter(keeps).count()
        < usize::from(world.settings.params().replicas)
    {
        return;
    }
    world.note(|| format!("the disk of {id} hangs"));
    world.count("hung disk amid calm");
    world.server(id).hang();
    works(world, &format!("the disk of {id} hangs"));
    world.heal_disk(id);
}

/// Some server is not back yet, as far as the metadata service knows, or catches up, or has something in flight, or its
/// switch still acts.
fn recovers(world: &World) -> bool {
    let state = world.newest_state();
    let behind =
        |entry: &GroupEntry| entry.slots.iter().any(|s| matches!(s.state, SlotState::CatchingUp { .. }));
    let idle = |server: &Server| !server.runs() || server.is_idle();
    let switches = |server: &Server| server.switch_free() > world.now;
    state.servers().any(|s| s.state == ServerState::Failed)
        || state.groups().any(|(_, entry)| behind(entry))
        || !world.servers.values().all(idle)
        || world.servers.values().any(switches)
}

/// A leader shifts gears or tests a server.
fn shifts(world: &World) -> bool {
    let led = world.members.values().filter(|m| m.up);
    let mut led = led.filter_map(|m| m.member.status(m.clock.at(world.now)));
    let tested = |status: &ClusterStatus| {
        let mut tests = status.servers.iter().filter_map(|server| server.power.test.as_ref());
        tests.any(|test| test.step != TestStep::Ended)
    };
    led.any(|status| status.gear.shifting || tested(&status))
}

fn the_leader_is_deaf(world: &mut World) {
    let leads = world.members.iter().find(|(_, m)| m.up && m.member.is_leader());
    let Some(leader) = leads.map(|(id, _)| *id) else { return };
    world.note(|| format!("member-{leader} is cut off from all but the other members"));
    world.count("deaf metadata leader amid calm");
    let until = world.now + LASTS;
    for node in world.all_nodes() {
        if !matches!(node, Node::Member(_)) {
            world.net.cut_pair((node, Node::Member(leader)), true, until, false);
        }
    }
    works(world, &format!("member-{leader} leads and hears its members only"));
    world.heal_net();
}

fn the_leader_is_deaf_in_part(world: &mut World, random: &mut Random) {
    let until = world.now + LASTS;
    if !world.deafen_leader(random, until, false) {
        return;
    }
    world.count("metadata leader deaf in part amid calm");
    works(world, "the metadata leader does not hear some servers");
    world.heal_net();
}

/// Clients work on, and wait for a short time only. A wake-up that comes late would be a second fault (seed
/// 30263028623).
fn works(world: &mut World, broken: &str) {
    let (end, mut waited) = (world.now + LASTS, 0);
    world.harness.prompt = true;
    while world.now < end && world.violation.is_none() {
        for client in 0..world.harness.plan.clients {
            if world.client(client).is_done() {
                world.employ(client, 2);
            }
        }
        let next = world.now + 500 * MILLI;
        world.run_until(next, |_| false);
        waited += if waits(world) { 500 * MILLI } else { 0 };
    }
    world.harness.prompt = false;
    if waited > WAITS {
        let seconds = (waited / SECOND, LASTS / SECOND);
        world.fail("liveness", format!("{broken}, and clients wait for {} of {} s", seconds.0, seconds.1));
    }
}

fn waits(world: &World) -> bool {
    let mut under_way = world.harness.clients.iter().filter_map(|c| c.under_way());
    under_way.any(|op| world.harness.history.ops[op].began + SOON < world.now)
}

/// Every server runs and has all of its data: one that catches up needs room for that.
fn is_complete(world: &World) -> bool {
    let state = world.newest_state();
    world.servers.values().all(|s| s.runs()) && state.groups().all(|(_, entry)| entry.is_in_sync())
}

/// All disks are full when the power fails: everything is served again, without any room but the reserve.
fn all_is_full(world: &mut World, random: &mut Random) {
    world.count("full cluster without power amid calm");
    let ids: Vec<ServerId> = world.servers.keys().copied().collect();
    let in_flight = world.harness.clients.len() as u64 * u64::from(world.settings.params().chunk_bytes);
    ids.iter().for_each(|id| world.fill(*id, None));
    // What is on all targets is recorded with the heartbeats, long before the last bytes are used.
    world.run_until(world.now + 3 * SECOND, |_| false);
    world.cut_power();
    for id in &ids {
        // Counted now: a deletion that was not synced is undone. What protects acknowledged data has used what a
        // checkpoint leaves to it of the reserve.
        let reserve = world.servers[id].store.config.checkpoint_bytes;
        world.fill(*id, Some(in_flight + LEFT.max(reserve / 2) + random.below(reserve / 4)));
    }
    world.run_until(world.now + random.below(8) * SECOND, |_| false);
    for id in &ids {
        world.restart(*id);
        world.press_the_button(*id);
    }
    let end = world.now + LASTS;
    world.run_until(end, |world| unserved(world).is_none());
    if let (None, Some(what)) = (&world.violation, unserved(world)) {
        world.fail("liveness", format!("{} s after a full cluster crashed, {what}", LASTS / SECOND));
    }
    ids.iter().for_each(|id| world.heal_disk(*id));
}

/// A group that is not served, or some blocks of one that still wait.
fn unserved(world: &World) -> Option<String> {
    let waits = |id: &ServerId| world.servers[id].replica().stats().unsettled > 0;
    let unsettled = world.servers.keys().find(|id| waits(id));
    world.forsaken().or_else(|| unsettled.map(|id| format!("{id} does not serve all blocks of its groups")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{in_low_gear, primary};

    #[test]
    fn while_a_disk_hangs_the_other_copy_is_woken_in_time() {
        let mut world = in_low_gear();
        // Without a limit, the longest that there is.
        world.harness.plan.switch = 80 * SECOND;
        let id = primary(&world);
        world.server(id).hang();
        works(&mut world, "the disk of the primary hangs");
        world.heal_disk(id);
        assert!(world.violation.is_none(), "{:?}", world.violation);
    }
}
