//! Strips of sleeping parity servers that data servers keep in memory.

use super::world::{BLOCKS, Row, SET, World, chunk, id};
use super::{PARITY, with_rows};
use ebb_chunkserver::Event;
use ebb_types::{ClientReply, GroupId, Random, Role, ServerId, ServerReport, ServerState, SlotState};

/// Room for everything.
const ENOUGH: u64 = 1 << 30;
/// As the product counts: what a block takes beside its bytes.
const ENTRY: u64 = 96;

/// 6+3, parity asleep, and rows written since. `memory`: bytes of it on each data server.
fn asleep(memory: u64) -> (World, Vec<Row>) {
    let mut world = World::with_memory(6, 3, Some(memory));
    world.run();
    world.sleep(&PARITY);
    let rows = with_rows(&mut world, 0, 8);
    (world, rows)
}

fn memory_bytes(world: &World, n: usize) -> u64 {
    world.nodes[&id(n)].replica.as_ref().unwrap().stats().memory_bytes
}

/// Roles in which the server's store keeps something for others.
fn on_disk(world: &World, n: usize) -> Vec<(GroupId, Role)> {
    let roles = world.nodes[&id(n)].store.roles.iter();
    roles.filter(|(_, role)| *role != Role::Replica).copied().collect()
}

/// Every strip that parity servers lack is with its holder.
fn assert_kept(world: &World, rows: &[Row]) {
    for row in rows {
        for (column, to) in world.entry.targets(row.chunk).iter().enumerate().skip(6) {
            world.assert_has(row, column, to.unwrap());
        }
    }
}

fn wake(world: &mut World) {
    PARITY.iter().for_each(|n| world.restart(*n));
    world.run();
    assert!(world.entry.columns.iter().all(|own| own.state == SlotState::InSync), "{:?}", world.entry);
}

#[test]
fn kept_strips_are_in_memory_to_the_byte_until_parity_has_them() {
    let (mut world, rows) = asleep(ENOUGH);
    assert_kept(&world, &rows);
    for n in 0..6 {
        let blocks = (6..10).flat_map(|column| world.in_memory(id(n), column));
        let bytes: u64 = blocks.map(|block| ENTRY + block.data.map_or(0, |data| data.len() as u64)).sum();
        assert_eq!(memory_bytes(&world, n), bytes);
        assert_eq!(on_disk(&world, n), []);
    }
    assert_eq!(
        (0..6).map(|n| memory_bytes(&world, n)).sum::<u64>() / (ENTRY + 4096),
        8 * 4 * u64::from(BLOCKS)
    );
    wake(&mut world);
    assert!((0..6).all(|n| memory_bytes(&world, n) == 0));
    rows.iter().for_each(|row| world.assert_at_home(row));
}

#[test]
fn a_holder_that_restarts_computes_again_what_it_kept() {
    for n in 0..6 {
        let (mut world, mut rows) = asleep(ENOUGH);
        world.crash(n);
        world.restart(n);
        assert_eq!(memory_bytes(&world, n), 0);
        world.run();
        assert_eq!(world.entry.columns[n].state, SlotState::InSync);
        rows.extend(with_rows(&mut world, 20, 2));
        assert_kept(&world, &rows);
        assert_eq!(world.nodes[&id(n)].replica.as_ref().unwrap().stats().catching_up, 0);
    }
}

/// A column that has a strip of an earlier try, when the row was acknowledged without it, lists it as new as the row:
/// the others are asked only for what is as new as what parity lacks (seed 31000004704).
#[test]
fn after_a_power_cut_a_strip_of_an_earlier_try_counts_as_one_of_the_row() {
    let mut world = World::with_memory(6, 3, Some(ENOUGH));
    world.run();
    let row = world.row(0, BLOCKS, &mut Random::new(1));
    world.follows = false;
    world.crash(1);
    world.restart(1);
    world.flow();
    let tried = world.entry.epoch;
    let asked = world.send_strip(&row, 1, id(1), tried);
    world.flow();
    assert!(world.is_done(asked, tried), "it takes strips while it catches up");
    world.crash(1);
    world.follows = true;
    world.sleep(&PARITY);
    assert!(world.write(&row));
    world.restart(1);
    world.run();
    assert_eq!(world.entry.columns[1].state, SlotState::InSync);
    (0..6).for_each(|n| world.crash(n));
    (0..6).for_each(|n| world.restart(n));
    world.run();
    assert_kept(&world, &[row]);
}

/// It restarted before anyone missed it: its column stays in sync, and yet it says that it does not have everything.
#[test]
fn a_quick_restart_is_no_secret() {
    let (mut world, rows) = asleep(ENOUGH);
    let store = world.nodes[&id(2)].store.clone();
    world.start(id(2), store);
    world.configure(&[]);
    world.next_map(id(2));
    world.next_map(id(2));
    assert_eq!(world.nodes[&id(2)].replica.as_ref().unwrap().keeps_all_since(SET), None);
    assert_eq!(world.nodes[&id(2)].replica.as_ref().unwrap().stats().catching_up, 1);
    world.run();
    assert_eq!(world.nodes[&id(2)].replica.as_ref().unwrap().keeps_all_since(SET), Some(world.entry.epoch));
    assert_kept(&world, &rows);
}

#[test]
fn after_a_power_cut_parity_is_computed_again_from_the_data() {
    let (mut world, rows) = asleep(ENOUGH);
    (0..6).for_each(|n| world.crash(n));
    assert!((0..6).all(|n| on_disk(&world, n).is_empty()), "nothing but data survives");
    (0..6).for_each(|n| world.restart(n));
    world.run();
    assert_kept(&world, &rows);
    // Then again any two may be lost.
    world.crash(1);
    world.crash(4);
    world.run();
    for row in &rows {
        world.assert_reads(row);
    }
}

#[test]
fn any_two_data_servers_may_be_lost_while_the_others_run() {
    for (first, second) in [(0, 1), (1, 4), (2, 5)] {
        let (mut world, rows) = asleep(ENOUGH);
        world.crash(first);
        world.crash(second);
        world.run();
        for row in &rows {
            world.assert_reads(row);
        }
    }
}

/// What `ram` does not promise: a power cut and a lost disk. What other disks have of the rows stays readable.
#[test]
fn a_power_cut_with_a_lost_disk_loses_what_that_disk_had_since_parity_slept() {
    let mut world = World::with_memory(6, 3, Some(ENOUGH));
    world.run();
    let before = with_rows(&mut world, 0, 2);
    world.sleep(&PARITY);
    let since = with_rows(&mut world, 10, 2);
    (0..6).for_each(|n| world.crash(n));
    (0..6).filter(|n| *n != 3).for_each(|n| world.restart(n));
    world.replace(3);
    PARITY.iter().for_each(|n| world.restart(*n));
    world.run();
    before.iter().for_each(|row| world.assert_reads(row));
    for row in &since {
        for column in (0..6).filter(|column| *column != 3) {
            let (reply, bytes) = world.read(row.chunk, column, row.strips[column].len());
            assert!(matches!(reply, ClientReply::Data { .. }) && bytes == row.strips[column], "{reply:?}");
        }
        let (reply, _) = world.read(row.chunk, 3, 4096);
        assert!(matches!(reply, ClientReply::Failed { .. }), "it is not zeroes: {reply:?}");
    }
}

#[test]
fn what_memory_has_no_room_for_goes_to_disk() {
    let room = 30 * (ENTRY + 4096);
    let (mut world, mut rows) = asleep(room);
    let both = (0..6).filter(|n| memory_bytes(&world, *n) > 0 && !on_disk(&world, *n).is_empty());
    assert!(both.count() > 0, "some columns are in both");
    assert!((0..6).all(|n| memory_bytes(&world, n) <= room));
    assert_kept(&world, &rows);
    // A holder that restarts finds what is on its disk, and computes the rest.
    world.crash(0);
    world.restart(0);
    world.run();
    rows.extend(with_rows(&mut world, 20, 4));
    assert_kept(&world, &rows);
    wake(&mut world);
    rows.iter().for_each(|row| world.assert_at_home(row));
    assert_eq!(world.holding(), 0);
}

#[test]
fn strips_of_a_failed_data_server_are_on_disk() {
    let (mut world, _) = asleep(ENOUGH);
    world.crash(2);
    world.run();
    let rows = with_rows(&mut world, 20, 6);
    let data = GroupId::of_column(SET, 2);
    for row in &rows {
        let holder = world.entry.targets(row.chunk)[2].unwrap();
        world.assert_has(row, 2, holder);
        let of_data = Role::Offload { stands_for: ServerId(2) };
        assert!(world.nodes[&holder].store.roles.contains(&(data, of_data)));
        assert_eq!(world.in_memory(holder, 2).count(), 0);
    }
}

/// The data servers are to sleep with the set.
fn hibernate(world: &mut World) {
    world.reports.clear();
    world.entry.hibernates_since = Some(1);
    (0..6).for_each(|n| world.set_server(id(n), ServerState::Draining));
    world.configure(&[]);
    world.run();
    (0..6).for_each(|n| world.on(id(n), Event::Drain));
    world.run();
}

/// None of them says that it is ready: each has rows that parity lacks, and says so until it is heard. So the set goes
/// on, parity takes what it lacks, and then they may sleep.
fn assert_parity_comes_first(world: &mut World, rows: &[Row]) {
    assert_eq!(world.ready.len(), 0, "each of them has strips that parity lacks");
    let owes = |n: usize| {
        let of_it = world.reports.iter().filter(|(server, report)| {
            *server == id(n)
                && matches!(report, ServerReport::Owes { epoch, .. } if *epoch == world.entry.epoch)
        });
        of_it.count()
    };
    assert!((0..6).all(|n| owes(n) > 1), "each says so until it is heard: {:?}", world.reports);
    world.entry.hibernates_since = None;
    (0..6).for_each(|n| world.set_server(id(n), ServerState::Awake));
    wake(world);
    hibernate(world);
    assert_eq!((world.ready.len(), world.reports.len()), (6, 0));
    rows.iter().for_each(|row| world.assert_at_home(row));
}

/// The set is to hibernate by figures that are older than its last rows.
#[test]
fn no_server_sleeps_with_its_set_while_strips_are_only_in_its_memory() {
    let (mut world, rows) = asleep(ENOUGH);
    hibernate(&mut world);
    assert_parity_comes_first(&mut world, &rows);
}

fn power_cut(world: &mut World) {
    for n in 0..6 {
        let store = world.nodes[&id(n)].store.clone();
        world.start(id(n), store);
    }
}

/// The power fails, and the set hibernates before the next epoch has what was in memory computed again; or it
/// hibernates already, and its servers are still on.
#[test]
fn no_server_sleeps_with_its_set_after_strips_were_only_in_its_memory() {
    for after in [false, true] {
        let (mut world, rows) = asleep(ENOUGH);
        if after {
            hibernate(&mut world);
        }
        power_cut(&mut world);
        hibernate(&mut world);
        assert_parity_comes_first(&mut world, &rows);
        // A server that starts while its set hibernates has forgotten nothing if nothing was owed.
        world.ready.clear();
        power_cut(&mut world);
        hibernate(&mut world);
        assert_eq!((world.ready.len(), world.reports.len()), (6, 0));
    }
}

#[test]
fn a_strip_that_comes_after_its_deletion_is_not_kept() {
    let (mut world, rows) = asleep(ENOUGH);
    let row = &rows[0];
    let (holder, epoch) = (world.entry.targets(row.chunk)[6].unwrap(), world.entry.epoch);
    assert!(world.in_memory(holder, 6).any(|block| block.chunk == row.chunk));
    assert!(world.delete(row.chunk));
    world.send_strip(row, 6, holder, epoch);
    world.run();
    assert!(!world.in_memory(holder, 6).any(|block| block.chunk == row.chunk));
    wake(&mut world);
    for (column, node) in world.nodes.values().enumerate() {
        assert_eq!(node.store.block(GroupId::of_column(SET, column), row.chunk, 0), None, "column {column}");
    }
}

/// Rows of one client come out of order, in pieces, and twice, to a memory that is soon full.
#[test]
fn rows_that_are_sent_again_are_kept_once() {
    let mut world = World::with_memory(6, 3, Some(14 * (ENTRY + 4096)));
    world.run();
    world.sleep(&PARITY);
    let row = world.row(1, BLOCKS, &mut Random::new(3));
    assert!(world.write(&row));
    let before = (0..6).map(|n| memory_bytes(&world, n)).sum::<u64>();
    assert!(world.write(&row));
    world.configure(&[]);
    world.run();
    assert!(world.write(&row), "in a newer epoch");
    assert_eq!((0..6).map(|n| memory_bytes(&world, n)).sum::<u64>(), before);
    wake(&mut world);
    world.assert_at_home(&row);
    assert_eq!(row.chunk, chunk(1));
}
