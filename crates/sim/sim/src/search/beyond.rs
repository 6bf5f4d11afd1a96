//! More is lost than can be borne, at the end of a run: every disk that has some group is found empty. Whatever has a
//! complete copy is served all the same. The rest waits until the operator accepts the loss, and is served then.
//!
//! What was acknowledged is gone, so only the rules that no loss excuses are checked from here on
//! ([`BEYOND_LOSS`](crate::search::invariants::BEYOND_LOSS)).

use crate::search::invariants::{RESORT, SURVIVAL};
use crate::world::World;
use crate::world::clock::SECOND;
use ebb_store::mem::MemDisk;
use ebb_types::{GroupEntry, PoolId, Random, ServerId, mix};

/// Chance per mille of the seeds in which it can happen.
const CHANCE: u64 = 250;
/// By then whatever can be served is.
const LASTS: u64 = 60 * SECOND;

pub(super) fn beyond(world: &mut World) {
    let mut random = Random::new(mix(world.scenario.seed ^ 0xbe70));
    let state = world.newest_state();
    let whole = world.servers.values().all(|s| s.runs() && !s.lost && !s.missing);
    let replicated = state.servers().all(|entry| entry.pool == PoolId::REPLICATED);
    let groups: Vec<GroupEntry> = state.groups().map(|(_, entry)| entry.clone()).collect();
    if !random.chance(CHANCE) || !whole || !replicated || world.rebuilds() {
        return;
    }
    world.count("more lost than can be borne");
    world.invariants.beyond = true;
    let entry = random.pick(&groups).expect("there are groups");
    let mut ids: Vec<ServerId> = entry.slots.iter().map(|slot| slot.server).collect();
    random.shuffle(&mut ids);
    for id in &ids {
        world.note(|| format!("{id}: its disk is lost"));
        world.crash(*id);
        world.server(*id).store.replace(MemDisk::new());
        // Holders may stand in, and get writes.
        for client in 0..world.scenario.clients {
            if world.client(client).is_done() {
                world.employ(client, 2);
            }
        }
        world.run_until(world.now + random.below(6) * SECOND, |_| false);
    }
    ids.iter().for_each(|id| world.restart(*id));
    until(world, SURVIVAL, |world| world.forsaken());
    // Those that came back copy what is left.
    until(world, SURVIVAL, |world| copying(world).then(|| "what is left is not copied".to_owned()));
    world.force_wanted = unserved(world).is_some();
    world.ask();
    until(world, RESORT, unserved);
}

fn until(world: &mut World, rule: &'static str, what: impl Fn(&World) -> Option<String>) {
    let end = world.now + LASTS;
    if world.violation.is_none() && !world.run_until(end, |world| what(world).is_none()) {
        let what = what(world).unwrap_or_default();
        world.fail(rule, format!("{} s after all copies of a group were lost, {what}", LASTS / SECOND));
    }
}

fn unserved(world: &World) -> Option<String> {
    let mut groups = world.newest_state().groups();
    let unserved = groups.find(|(group, entry)| !world.is_served(*group, entry));
    unserved.map(|(group, _)| format!("{group} is not served"))
}

/// A group that is served has not got all of its copies again.
fn copying(world: &World) -> bool {
    world.newest_state().groups().any(|(_, entry)| entry.primary.is_some() && !entry.is_in_sync())
}
