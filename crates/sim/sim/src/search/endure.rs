//! One thing is broken and stays so, while all else is well: a disk hangs, or the metadata leader is cut off from
//! servers and clients and not from its members. The rest must serve, and not only now and then.

use crate::world::World;
use crate::world::clock::{MILLI, SECOND};
use crate::world::net::Node;
use ebb_types::{PoolId, Random, ServerId, mix};

/// How long it stays broken.
const LASTS: u64 = 40 * SECOND;
/// In all, clients may wait for this long: until it is noticed, and others have taken over.
const WAITS: u64 = 15 * SECOND;
/// An operation that is not answered within this time waits.
const SOON: u64 = 3 * SECOND;
/// Chances per mille and round.
const HANGS: u64 = 60;
const DEAF: u64 = 250;

pub(super) fn endure(world: &mut World, round: u32) {
    let mut random = Random::new(mix(world.scenario.seed ^ mix(u64::from(round) ^ 0x4a46)));
    let missing = world.servers.values().any(|s| s.missing);
    if world.violation.is_some() || world.lost.is_some() || missing || world.rebuilds() {
        return;
    }
    let hangs = random.chance(HANGS);
    let deaf = world.scenario.members > 2 && random.chance(DEAF);
    if hangs {
        a_disk_hangs(world, &mut random);
    } else if deaf {
        the_leader_is_deaf(world);
    }
}

fn a_disk_hangs(world: &mut World, random: &mut Random) {
    let runs = world.servers.values().filter(|s| s.runs() && !s.missing).map(|s| s.id);
    let servers: Vec<ServerId> = runs.collect();
    let Some(id) = random.pick(&servers).copied() else { return };
    // Every write needs r other servers, and those of an erasure-coded pool keep no copies.
    let state = world.newest_state();
    let keeps = |of: &&ServerId| state.server(**of).is_some_and(|e| e.pool == PoolId::REPLICATED);
    if servers.iter().filter(|of| **of != id).filter(keeps).count()
        < usize::from(world.scenario.params().replicas)
    {
        return;
    }
    world.note(|| format!("the disk of {id} hangs"));
    world.count("hung disk amid calm");
    world.server(id).hung = true;
    works(world, &format!("the disk of {id} hangs"));
    world.heal_disk(id);
}

fn the_leader_is_deaf(world: &mut World) {
    let leads = world.members.iter().find(|(_, m)| m.up && m.member.is_leader());
    let Some(leader) = leads.map(|(id, _)| *id) else { return };
    world.note(|| format!("member-{leader} is cut off from all but the other members"));
    world.count("deaf metadata leader amid calm");
    let until = world.now + LASTS;
    for node in world.all_nodes() {
        if !matches!(node, Node::Member(_)) {
            world.net.cut(node, Node::Member(leader), until, false);
            world.net.cut(Node::Member(leader), node, until, false);
        }
    }
    works(world, &format!("member-{leader} leads and hears its members only"));
    world.net.heal();
}

/// Clients work on.
fn works(world: &mut World, broken: &str) {
    let (end, mut waited) = (world.now + LASTS, 0);
    while world.now < end && world.violation.is_none() {
        for client in 0..world.scenario.clients {
            if world.client(client).is_done() {
                world.employ(client, 2);
            }
        }
        let next = world.now + 500 * MILLI;
        world.run_until(next, |_| false);
        waited += if waits(world) { 500 * MILLI } else { 0 };
    }
    if waited > WAITS {
        let seconds = (waited / SECOND, LASTS / SECOND);
        world.fail("liveness", format!("{broken}, and clients wait for {} of {} s", seconds.0, seconds.1));
    }
}

fn waits(world: &World) -> bool {
    let mut under_way = world.clients.iter().filter_map(|c| c.under_way());
    under_way.any(|op| world.history.ops[op].began + SOON < world.now)
}
