//! Small worlds that each show one thing: for the golden transcripts, which a person can review, and for the tests of
//! the invariants. Four servers, two copies, few groups; the production cores run, and no faults happen unless
//! scripted.

use crate::engine::{MILLI, SECOND};
use crate::search::client::{CELLS_PER_BLOCK, shared_chunk};
use crate::search::harness::World;
use crate::search::history::Action;
use crate::search::scenario::{Plan, Scenario};
use crate::world::net::NetModel;
use crate::world::settings::Settings;
use ebb_gear::{Scheme, Server};
use ebb_meta::{Bootstrap, Timing};
use ebb_types::{
    BLOCK_BYTES, ClusterParams, Content, Epoch, GearWish, GroupEntry, GroupId, RackId, Record, Schedule,
    ServerEntry, ServerId, ServerState, SlotState, Version, group_of,
};
use std::time::Duration;

/// The group of the only chunk, in worlds with one group.
pub const GROUP: GroupId = GroupId(0);

/// A client's write of whole blocks.
pub fn write(first: u32, blocks: u32) -> Action {
    Action::Write { first: first * CELLS_PER_BLOCK, cells: blocks * CELLS_PER_BLOCK }
}

pub fn read(first: u32, blocks: u32) -> Action {
    Action::Read { first: first * CELLS_PER_BLOCK, cells: blocks * CELLS_PER_BLOCK }
}

fn scenario(groups: u32) -> Scenario {
    let list: Vec<Server> = (1..=4).map(|n| Server { id: ServerId(n), rack: RackId(1 + n % 2) }).collect();
    let layout =
        ebb_gear::layout(&list, 2, groups, 1, Scheme::Rotated).expect("four servers hold two copies");
    let params = ClusterParams {
        cluster: 1,
        instance: 1,
        chunk_bytes: 8 * BLOCK_BYTES as u32,
        replicas: 2,
        groups,
        lease_millis: 2000,
    };
    let bootstrap = Bootstrap::of_layout(params, &layout, Schedule::default(), |id, _| format!("{id}:1"));
    let net = NetModel { delay: MILLI, ..NetModel::default() };
    let Scenario { settings, plan } = Scenario::calm(1, bootstrap, Timing::default());
    let plan = Plan { clients: 1, chunks: 1, disk: 2 * MILLI, switch: 500 * MILLI, pulse: None, ..plan };
    Scenario { settings: Settings { net, ..settings }, plan }
}

/// A cluster in its highest gear, at rest; the client has written the first two blocks.
pub fn cluster() -> World<'static> {
    cluster_of(1)
}

/// The same cluster, which scrubs everything every eight seconds.
pub fn cluster_that_scrubs() -> World<'static> {
    let Scenario { settings, plan } = scenario(1);
    begun(Scenario { settings: Settings { scrub_period: Duration::from_secs(8), ..settings }, plan })
}

fn cluster_of(groups: u32) -> World<'static> {
    begun(scenario(groups))
}

fn begun(scenario: Scenario) -> World<'static> {
    let mut world = World::new(scenario, &|_| {}, usize::MAX);
    rest(&mut world);
    gear(&mut world, 2);
    ask(&mut world, write(0, 2));
    world
}

/// The same cluster, in gear 1.
pub fn in_low_gear() -> World<'static> {
    let mut world = cluster();
    gear(&mut world, 1);
    world
}

pub fn entry(world: &World) -> GroupEntry {
    let group = group_of(shared_chunk(0), world.settings.params().groups);
    world.newest_state().group(group).expect("every group is configured").clone()
}

/// The rule that was broken since the last call.
pub fn broken(world: &mut World) -> Option<&'static str> {
    world.violation.take().map(|violation| violation.rule)
}

/// Zeros in the first block that no primary ordered.
pub fn stray() -> Record {
    Record {
        group: GROUP,
        chunk: shared_chunk(0),
        first: 0,
        count: 1,
        version: Version { epoch: Epoch(50), seq: 1 },
        request: None,
        content: Content::Zero,
    }
}

pub fn primary(world: &World) -> ServerId {
    entry(world).primary.expect("a server serves")
}

/// The server of the other slot.
pub fn secondary(world: &World) -> ServerId {
    let entry = entry(world);
    let others = entry.slots.iter().map(|s| s.server).find(|s| Some(*s) != entry.primary);
    others.expect("two slots")
}

/// The holder of the slot that is away.
pub fn holder(world: &World) -> ServerId {
    entry(world).slots.iter().find_map(|s| s.holder).expect("a slot is away").server
}

/// The client does this, and the cluster comes to rest.
pub fn ask(world: &mut World, action: Action) {
    begin(world, action);
    rest(world);
}

/// The client starts this.
pub fn begin(world: &mut World, action: Action) {
    world.client(0).to_do.push((shared_chunk(0), action));
    world.employ(0, 0);
}

/// An administrator sets the gear, and the cluster comes to rest in it.
pub fn gear(world: &mut World, gear: u8) {
    world.ask_gear(gear);
    rest(world);
}

/// Runs until nothing is in flight. Failed servers stay failed.
pub fn rest(world: &mut World) {
    let end = world.now + 60 * SECOND;
    // Requests made just now are not in flight yet.
    world.run_until(world.now + 100 * MILLI, |_| false);
    let rests = world.run_until(end, is_at_rest);
    assert!(world.violation.is_none(), "{:?}", world.violation);
    assert!(rests, "something is still under way: {:?}", entry(world));
    world.run_until(world.now + 300 * MILLI, |_| false);
}

fn is_at_rest(world: &World) -> bool {
    let state = world.newest_state();
    let asked = world.wishes.request(None, true).is_some();
    let moving = state.servers().any(|s| matches!(s.state, ServerState::Draining | ServerState::Waking));
    let gear = match state.manual_gear() {
        Some(GearWish::Gear(gear)) => gear,
        _ => 2,
    };
    let settled = state.servers().all(|s| match s.state {
        ServerState::Awake => {
            s.gear_group.0 < gear || state.servers().any(|s| s.state == ServerState::Failed)
        }
        ServerState::Asleep => s.gear_group.0 >= gear,
        _ => true,
    });
    let slots_rest = state.groups().all(|(_, e)| {
        e.primary.is_some()
            && e.slots.iter().all(|s| match s.state {
                SlotState::InSync => true,
                SlotState::CatchingUp { .. } => false,
                SlotState::Away { .. } => s.holder.is_some_and(|s| s.covered),
            })
    });
    let mut running = world.servers.values().filter(|s| s.runs());
    let servers_rest = running.all(|s| s.is_idle() && s.replica().map().version == state.version());
    !asked
        && !moving
        && settled
        && slots_rest
        && servers_rest
        && world.harness.clients.iter().all(|c| c.is_done())
}

#[test]
fn a_pause_of_the_metadata_member_speaks_against_no_server() {
    let mut world = in_low_gear();
    let before = world.newest_state().version();
    for millis in [900, 2200, 5000, 20_000] {
        world.members.get_mut(&1).expect("the one member").paused = true;
        world.run_until(world.now + millis * MILLI, |_| false);
        world.resume_member(1);
        rest(&mut world);
        let asleep = world.newest_state().servers().filter(|s| s.state == ServerState::Asleep).count();
        assert_eq!((asleep, world.newest_state().version()), (2, before), "after {millis} ms");
        ask(&mut world, write(0, 1));
    }
}

/// Under a load that is too heavy for all disks, each of them pauses. It once counted as hung every time, and every
/// change of primaries that followed was more work for the others.
#[test]
fn disks_that_pause_again_and_again_are_not_called_hung_each_time() {
    let mut world = cluster_of(8);
    let servers: Vec<ServerId> = world.servers.keys().copied().collect();
    for _ in 0..12 {
        servers.iter().for_each(|id| world.server(*id).hang());
        begin(&mut world, write(0, 2));
        world.run_until(world.now + 3 * SECOND, |_| false);
        servers.iter().for_each(|id| world.disk_moves_again(*id));
        rest(&mut world);
    }
    let verdicts = world.tally().get("hung disk noticed").copied().unwrap_or(0);
    assert!((1..=8).contains(&verdicts), "{verdicts} verdicts over {} servers in 12 pauses", servers.len());
}

/// The last resort, when every complete copy is lost.
mod force {
    use super::*;
    use crate::search::history::Outcome;
    use ebb_store::mem::MemDisk;

    /// Both disks are found empty, the second one after a holder stood in for the first. Whether that holder has a
    /// write, `kept` says; whether the first server returns, `gone`.
    fn lose_both(world: &mut World, kept: bool, gone: bool) {
        let [first, second] = [secondary(world), primary(world)];
        for id in [first, second] {
            world.crash(id);
            world.server(id).store.replace(MemDisk::new());
            world.run_until(world.now + 5 * SECOND, |_| false);
            if kept && id == first {
                begin(world, write(1, 1));
                world.run_until(world.now + SECOND, |_| false);
            }
        }
        world.restart(second);
        if gone {
            world.server(first).lost = true;
            world.harness.lost = Some(first);
            world.wishes.want_lost(Some(first));
            world.wishes.accept_loss(true);
            world.ask();
        } else {
            world.restart(first);
        }
        world.run_until(world.now + 5 * SECOND, |_| false);
        assert_eq!(entry(world).primary, None, "no copy is complete");
        world.wishes.want_force(true);
        world.ask();
        rest(world);
    }

    /// The block as a read sees it: the number of the operation that wrote it, or zero.
    fn seen(world: &mut World, block: u32) -> u64 {
        begin(world, read(block, 1));
        world.run_until(world.now + 5 * SECOND, |_| false);
        let op = world.harness.history.ops.last().expect("it was asked");
        assert_eq!((op.action, op.outcome), (read(block, 1), Outcome::Done), "{:?}", entry(world));
        op.seen[0]
    }

    #[test]
    fn a_group_whose_disks_are_all_empty_is_served_again() {
        let mut world = cluster();
        lose_both(&mut world, false, false);
        assert_eq!(seen(&mut world, 0), 0, "it is gone, and that was accepted");
        ask(&mut world, write(0, 1));
        assert!(seen(&mut world, 0) > 0);
    }

    #[test]
    fn what_only_a_holder_has_is_kept() {
        for gone in [false, true] {
            let mut world = cluster();
            lose_both(&mut world, true, gone);
            assert_eq!(seen(&mut world, 0), 0);
            assert!(seen(&mut world, 1) > 0, "{:?}", entry(&world));
        }
    }
}

/// The fate of deletions: they are remembered while a server may have missed them, and no longer.
mod deletions {
    use super::*;
    use ebb_store::{Op, Outcome};
    use ebb_types::{Kind, Role};

    /// How many deletions the server's replica remembers, and whether it has any blocks of the chunk.
    fn remembers(world: &mut World, id: ServerId) -> (usize, bool) {
        let (role, since, limit) = (Role::Replica, Epoch(0), usize::MAX);
        let store = &mut world.server(id).store;
        let list = Op::List { role, group: GROUP, since, after: None, limit };
        let Outcome::Listed(page) = store.answer(list) else { panic!("it can be listed") };
        let deletions = page.runs.iter().filter(|run| run.kind == Kind::Delete).count();
        (deletions, store.kept(GROUP, role).contains_key(&shared_chunk(0)))
    }

    fn all_remember(world: &mut World) -> Vec<(usize, bool)> {
        assert!(entry(world).is_in_sync(), "{:?}", entry(world));
        entry(world).slots.iter().map(|slot| remembers(world, slot.server)).collect()
    }

    #[test]
    fn what_all_have_deleted_is_forgotten() {
        let mut world = cluster();
        assert_eq!(all_remember(&mut world), [(0, true); 2]);
        ask(&mut world, Action::Delete);
        assert_eq!(all_remember(&mut world), [(0, false); 2]);
    }

    #[test]
    fn a_sleeper_that_missed_a_deletion_never_brings_the_chunk_back() {
        let mut world = in_low_gear();
        let (awake, sleeper) = (primary(&world), secondary(&world));
        ask(&mut world, Action::Delete);
        assert_eq!(remembers(&mut world, awake), (1, false), "{sleeper} missed it");
        gear(&mut world, 2);
        assert_eq!(all_remember(&mut world), [(0, false); 2]);
        for id in [awake, sleeper] {
            world.crash(id);
            world.restart(id);
            rest(&mut world);
            assert_eq!(all_remember(&mut world), [(0, false); 2], "what a restart finds is forgotten again");
        }
    }

    /// No server remembers the deletion by then: data that no complete copy has was deleted.
    #[test]
    fn an_older_directory_does_not_bring_back_what_was_deleted() {
        let mut world = cluster();
        let id = secondary(&world);
        for first in 0..2 {
            // So the copy knows that the chunk to be deleted is on all targets.
            world.client(0).to_do.push((shared_chunk(1), write(first, 1)));
            world.employ(0, 0);
            rest(&mut world);
        }
        let old = world.servers[&id].store.disk.copy();
        ask(&mut world, Action::Delete);
        assert_eq!(all_remember(&mut world), [(0, false); 2]);
        world.crash(id);
        world.server(id).store.replace(old);
        world.restart(id);
        rest(&mut world);
        assert!(!world.servers[&id].store.is_the_first(), "it is recognised as another store");
        assert_eq!(all_remember(&mut world), [(0, false); 2]);
    }
}

/// One file in `tests/golden` per story, byte for byte. `UPDATE_GOLDEN=1 cargo test -p ebb-sim golden` rewrites them;
/// review the diff.
mod golden {
    use super::*;

    /// Longest story that a person would still read.
    const LINES_MAX: usize = 100;

    fn begins(world: &mut World) {
        world.transcript.lines.clear();
    }

    fn assert_golden(world: World, name: &str) {
        let lines: Vec<String> = world.transcript.lines.into();
        let found = lines.join("\n") + "\n";
        let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &found).expect("the transcript can be written");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == expected, "{path} says\n{expected}\nbut it was\n{found}");
        assert!(lines.len() <= LINES_MAX, "{name} has {} lines", lines.len());
    }

    #[test]
    fn a_write_in_low_gear_is_offloaded() {
        let mut world = in_low_gear();
        begins(&mut world);
        ask(&mut world, write(1, 2));
        assert_golden(world, "write_in_low_gear");
    }

    #[test]
    fn an_up_shift_reclaims_the_offload() {
        let mut world = in_low_gear();
        ask(&mut world, write(1, 2));
        begins(&mut world);
        gear(&mut world, 2);
        ask(&mut world, read(0, 3));
        assert_golden(world, "up_shift");
    }

    #[test]
    fn an_up_shift_ends_with_primaries_spread_again() {
        let mut world = cluster_of(3);
        gear(&mut world, 1);
        world.ask_gear(2);
        let end = world.now + 20 * SECOND;
        let awake = |s: &ServerEntry| s.state == ServerState::Awake;
        let complete = |w: &World| {
            w.newest_state().servers().all(awake) && w.newest_state().groups().all(|(_, e)| e.is_in_sync())
        };
        while !complete(&world) && world.step(end) {}
        begins(&mut world);
        rest(&mut world);
        assert_golden(world, "primary_moves");
    }

    #[test]
    fn a_down_shift_hands_over_and_loses_no_request() {
        let mut world = cluster_of(3);
        begins(&mut world);
        world.ask_gear(1);
        begin(&mut world, write(0, 1));
        rest(&mut world);
        assert_golden(world, "down_shift");
    }

    #[test]
    fn a_crash_of_the_primary_is_fenced() {
        let mut world = cluster();
        let primary = primary(&world);
        begins(&mut world);
        begin(&mut world, write(0, 1));
        // The write has reached the other copy, and is not acknowledged.
        let (other, end) = (secondary(&world), world.now + 50 * MILLI);
        while world.servers[&other].store.is_idle() && world.step(end) {}
        world.crash(primary);
        rest(&mut world);
        world.restart(primary);
        rest(&mut world);
        assert_golden(world, "crash_of_the_primary");
    }

    #[test]
    fn a_lost_server_is_rebuilt_elsewhere() {
        let mut world = cluster();
        let secondary = secondary(&world);
        begins(&mut world);
        world.note(|| format!("{secondary} is gone for good"));
        world.crash(secondary);
        world.server(secondary).lost = true;
        world.harness.lost = Some(secondary);
        world.wishes.want_lost(Some(secondary));
        world.ask();
        rest(&mut world);
        assert_golden(world, "rebuild");
    }
}
