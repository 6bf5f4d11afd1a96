//! Erasure-coded sets: a small world of servers, in which what is acknowledged must stay readable.

mod ram;
mod schedule;
mod scrub;
mod store;
mod world;

use bytes::Bytes;
use ebb_chunkserver::Event;
use ebb_types::{
    ChunkId, ChunkOp, ClientReply, Epoch, GroupId, PeerMessage, Random, Refusal, RequestId, Role, ServerId,
    ServerReport, ServerState, SlotState, Unready,
};
use std::collections::BTreeSet;
use world::{BLOCKS, Letter, Row, SET, World, chunk, id};

const PARITY: [usize; 3] = [6, 7, 8];

/// A world of 6+3 servers, and rows in it.
fn with_rows(world: &mut World, from: u64, count: u64) -> Vec<Row> {
    let mut random = Random::new(from + 1);
    let rows: Vec<Row> = (from..from + count).map(|n| world.row(n, BLOCKS, &mut random)).collect();
    for row in &rows {
        assert!(world.write(row), "{:?}", world.replies.last_key_value());
    }
    rows
}

fn fresh() -> World {
    let mut world = World::new(6, 3);
    world.run();
    world
}

#[test]
fn a_row_that_is_written_is_read() {
    let mut world = fresh();
    for row in with_rows(&mut world, 0, 3) {
        world.assert_reads(&row);
        world.assert_at_home(&row);
    }
    assert_eq!(world.holding(), 0);
}

#[test]
fn parity_that_sleeps_finds_its_strips_when_it_returns() {
    let mut world = fresh();
    let mut rows = with_rows(&mut world, 0, 3);
    world.sleep(&PARITY);
    let kept = with_rows(&mut world, 10, 8);
    assert_eq!(world.holding(), 6);
    for row in &kept {
        let targets = world.entry.targets(row.chunk);
        for (column, to) in targets.iter().enumerate().skip(6) {
            world.assert_has(row, column, to.unwrap());
        }
    }
    rows.extend(kept);
    PARITY.iter().for_each(|n| world.restart(*n));
    world.run();
    assert!(world.entry.columns.iter().all(|own| own.state == SlotState::InSync), "{:?}", world.entry);
    assert_eq!(world.holding(), 0, "they dropped what they kept");
    for row in &rows {
        world.assert_at_home(row);
        world.assert_reads(row);
    }
    assert!(world.nodes[&id(6)].replica.as_ref().unwrap().stats().reclaimed_bytes > 0);
}

/// They were remembered for ever: memory, and bytes copied from segment to segment, for each object ever deleted.
#[test]
fn deletions_are_forgotten_once_all_columns_are_in_sync_under_a_newer_epoch() {
    let remembered = |world: &World| world.nodes.values().map(|node| node.store.tombstones()).sum::<usize>();
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 4);
    assert!(world.delete(rows[0].chunk));
    world.run();
    assert_eq!(remembered(&world), 9, "a strip of this epoch may still be on its way");
    world.sleep(&PARITY);
    assert!(world.delete(rows[1].chunk));
    world.run();
    let all = remembered(&world);
    assert!(all > 9, "parity has yet to learn of the second one");
    PARITY[..2].iter().for_each(|n| world.restart(*n));
    world.run();
    assert!(remembered(&world) >= 9, "one column is still away");
    world.restart(PARITY[2]);
    world.run();
    assert!(world.entry.columns.iter().all(|own| own.state == SlotState::InSync), "{:?}", world.entry);
    assert_eq!(remembered(&world), 0);
    for row in &rows[..2] {
        for column in 0..9 {
            let token = world.send_strip(row, column, id(column), Epoch(1));
            world.run();
            assert!(!world.is_done(token, Epoch(1)), "a late strip brings nothing back");
            assert_eq!(world.holders(column, row.chunk), [] as [ServerId; 0]);
        }
    }
    rows[2..].iter().for_each(|row| world.assert_reads(row));
}

/// Nothing else would begin an epoch in a set that no server leaves.
#[test]
fn many_deletions_ask_for_an_epoch_to_be_forgotten_under() {
    let mut world = fresh();
    world.deletions = 3;
    (0..9).for_each(|n| world.restart(n));
    world.run();
    let rows = with_rows(&mut world, 0, 4);
    let asked = |world: &World| {
        let epoch = world.entry.epoch;
        let asks =
            |report: &ServerReport| matches!(report, ServerReport::Remembers { epoch: e, .. } if *e == epoch);
        world.reports.iter().filter(|(_, report)| asks(report)).count()
    };
    for (row, wants) in rows[..3].iter().zip([false, false, true]) {
        assert!(world.delete(row.chunk));
        world.run();
        assert_eq!(asked(&world) > 0, wants);
    }
    let (before, epoch) = (asked(&world), world.entry.epoch);
    world.tick();
    world.run();
    assert!(asked(&world) > before, "the report may be lost");
    world.configure(&[]);
    world.run();
    assert!(world.entry.epoch > epoch && asked(&world) == 0, "{:?}", world.entry);
    assert_eq!(world.nodes.values().map(|node| node.store.tombstones()).sum::<usize>(), 0);
    world.assert_reads(&rows[3]);
}

#[test]
fn holders_keep_until_the_parity_server_has_everything() {
    let mut world = fresh();
    world.sleep(&PARITY);
    let rows = with_rows(&mut world, 0, 4);
    world.slow = Some(id(6));
    PARITY.iter().for_each(|n| world.restart(*n));
    world.follows = false;
    world.flow();
    for row in &rows {
        let holders = World::new(6, 3).entry.turn(row.chunk);
        world.assert_has(row, 6, id(holders % 6));
        world.assert_has(row, 9, id((holders + 3) % 6));
    }
}

#[test]
fn any_two_data_servers_may_be_lost_while_parity_sleeps() {
    for first in 0..6 {
        for second in first + 1..6 {
            let mut world = fresh();
            world.sleep(&PARITY);
            let rows = with_rows(&mut world, 0, 6);
            world.crash(first);
            world.crash(second);
            world.run();
            for row in &rows {
                world.assert_reads(row);
            }
        }
    }
}

/// With one parity column, no place is left for a second strip of a row that would survive the loss of its server.
#[test]
fn a_set_with_one_parity_column_says_that_it_takes_no_writes_without_a_data_server() {
    let mut world = World::new(3, 1);
    world.run();
    let rows = with_rows(&mut world, 0, 1);
    world.crash(1);
    world.run();
    let row = world.row(1, BLOCKS, &mut ebb_types::Random::new(3));
    let (to, epoch) = (world.entry.targets(row.chunk)[0].unwrap(), world.entry.epoch);
    let asked = world.send_strip(&row, 0, to, epoch);
    world.run();
    assert_eq!(world.replies[&asked].0, ClientReply::Retry { why: Unready::Exposed });
    rows.iter().for_each(|row| world.assert_reads(row));
    world.restart(1);
    world.run();
    assert!(world.write(&row), "it is back");
}

#[test]
fn a_lost_data_server_is_filled_when_parity_wakes() {
    let mut world = fresh();
    let mut rows = with_rows(&mut world, 0, 3);
    world.sleep(&PARITY);
    rows.extend(with_rows(&mut world, 10, 5));
    world.crash(2);
    world.run();
    rows.extend(with_rows(&mut world, 20, 3));
    world.replace(2);
    world.run();
    assert!(matches!(world.entry.columns[2].state, SlotState::CatchingUp { .. }), "old rows need P1");
    let (reply, _) = world.read(rows[0].chunk, 2, 4096);
    assert_eq!(reply, ClientReply::Retry { why: Unready::TooFewCopies });
    let damaged = |(_, report): &(ServerId, ServerReport)| matches!(report, ServerReport::Damaged { .. });
    assert!(world.reports.iter().any(damaged), "which wakes parity");
    world.restart(6);
    world.run();
    assert_eq!(world.entry.columns[2].state, SlotState::InSync);
    rows.iter().for_each(|row| world.assert_has(row, 2, id(2)));
}

/// What data servers alone keep the parity of bears fewer losses than what is on all disks [ECS² Algorithm 2].
#[test]
fn a_lost_column_is_filled_with_what_sleeping_parity_lacks_first() {
    let mut world = fresh();
    let mut rows = with_rows(&mut world, 0, 6);
    world.sleep(&PARITY);
    let recent = with_rows(&mut world, 10, 6);
    world.crash(2);
    world.restart(6);
    world.run();
    world.replace(2);
    let is_recent = |row: &Row| recent.iter().any(|other| other.chunk == row.chunk);
    rows.extend(recent.iter().cloned());
    let (mut filled, mut steps): (Vec<bool>, u32) = (Vec::new(), 0);
    while !rows.is_empty() {
        steps += 1;
        assert!(steps < 20_000, "{} rows are not filled", rows.len());
        for server in world.ids() {
            world.next_map(server);
        }
        match (world.works().first().copied(), world.net.is_empty()) {
            (Some(server), _) => world.work(server, 0),
            (None, false) => world.deliver(0),
            (None, true) => world.tick(),
        }
        let is_there = |row: &mut Row| world.holders(2, row.chunk).contains(&id(2));
        filled.extend(rows.extract_if(.., is_there).map(|row| is_recent(&row)));
    }
    assert_eq!(filled, [[true; 6], [false; 6]].concat());
}

#[test]
fn a_rebuild_keeps_to_its_limit_and_nothing_else_does() {
    let mut world = World::new(6, 3);
    world.rebuild_bytes_per_second = Some(1 << 20);
    world.run();
    // Six strips of 36 KiB are fetched for each.
    let rows = with_rows(&mut world, 0, 20);
    let seconds = |world: &mut World| {
        let began = world.now;
        world.run();
        (world.now - began) as f64 / 1e9
    };
    world.sleep(&[8]);
    let missed = with_rows(&mut world, 100, 20);
    world.restart(8);
    let caught_up = seconds(&mut world);
    assert_eq!(world.entry.columns[8].state, SlotState::InSync);
    assert!(caught_up < 3.0, "it was away for a while, and catches up at once: {caught_up} s");
    world.crash(2);
    world.run();
    world.replace(2);
    world.flow();
    let asked = world.ask(rows[19].chunk, 2, 4096).expect("there is a target");
    world.flow();
    let (reply, _) = &world.replies[&asked];
    assert!(matches!(reply, ClientReply::Data { .. }), "a client does not wait: {reply:?}");
    let rebuilt = seconds(&mut world);
    assert_eq!(world.entry.columns[2].state, SlotState::InSync);
    assert!((7.5..10.0).contains(&rebuilt), "40 rows: {rebuilt} s");
    rows.iter().chain(&missed).for_each(|row| world.assert_at_home(row));
}

/// Everything goes on but a server's fetches of these chunks. Returns the chunks of those that wait.
fn hold_fetches(world: &mut World, of: ServerId, held: impl Fn(ChunkId) -> bool) -> BTreeSet<ChunkId> {
    let fetched = |letter: &Letter| match letter.message {
        PeerMessage::Fetch { chunk, .. } if letter.from == of => Some(chunk),
        _ => None,
    };
    let waits = |letter: &Letter| fetched(letter).is_some_and(&held);
    let mut moved = true;
    while moved {
        moved = false;
        for server in world.ids() {
            moved |= world.next_map(server);
        }
        if let Some(nth) = world.net.iter().position(|letter| !waits(letter)) {
            world.deliver(nth);
            moved = true;
        }
        for server in world.works() {
            world.work(server, 0);
            moved = true;
        }
    }
    world.net.iter().filter_map(fetched).collect()
}

/// What of the disks is kept for a rebuild while clients work [ECS² §6].
#[test]
fn two_jobs_of_a_rebuild_are_in_flight_beside_clients_and_eight_without_them() {
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 24);
    world.crash(2);
    world.run();
    world.replace(2);
    let first = hold_fetches(&mut world, id(2), |_| true);
    assert_eq!(first.len(), 8, "no client works");
    let read = rows[23].chunk;
    let asked = world.ask(read, 2, 4096).expect("there is a target");
    let mut beside = hold_fetches(&mut world, id(2), |chunk| !first.contains(&chunk));
    assert!(beside.remove(&read) && !world.replies.contains_key(&asked), "a client waits");
    assert_eq!(beside.len(), 2, "the first eight have ended");
    let last = hold_fetches(&mut world, id(2), |chunk| chunk != read);
    assert!(matches!(world.replies[&asked].0, ClientReply::Data { .. }), "{:?}", world.replies[&asked]);
    assert_eq!(last.len(), 8, "no client works any more");
    assert!(beside.is_subset(&last) && first.is_disjoint(&last));
    world.run();
    assert_eq!(world.entry.columns[2].state, SlotState::InSync);
    rows.iter().for_each(|row| world.assert_at_home(row));
}

/// Seed 13 of the fault search: a server that returned when all others had failed listed itself, found nothing to fill
/// in, and reported that it had everything.
#[test]
fn a_column_is_not_full_before_a_complete_server_was_heard() {
    let mut world = fresh();
    world.sleep(&PARITY);
    world.crash(4);
    world.run();
    let rows = with_rows(&mut world, 0, 2);
    (0..6).filter(|n| *n != 4).for_each(|n| world.crash(n));
    world.restart(4);
    world.run();
    assert!(matches!(world.entry.columns[4].state, SlotState::CatchingUp { .. }), "{:?}", world.entry);
    // None is complete by itself any more, but all together are.
    (0..9).filter(|n| *n != 4).for_each(|n| world.restart(n));
    world.run();
    assert_eq!(world.entry.columns[4].state, SlotState::InSync);
    rows.iter().for_each(|row| world.assert_has(row, 4, id(4)));
}

/// Seed 388 of the fault search: a holder that was no target any more was not asked to delete, and nothing else reached
/// it.
#[test]
fn a_deletion_reaches_strips_of_former_holders() {
    let mut world = fresh();
    world.sleep(&PARITY);
    world.crash(0);
    world.run();
    let rows = with_rows(&mut world, 0, 8);
    PARITY.iter().for_each(|n| world.restart(*n));
    world.run();
    let former = |world: &World, row: &Row| {
        let target = world.entry.targets(row.chunk)[0];
        world.holders(0, row.chunk).into_iter().any(|server| Some(server) != target)
    };
    assert!(
        rows.iter().any(|row| former(&world, row)),
        "with parity awake, others keep the strips of column 0"
    );
    for row in rows {
        assert!(world.delete(row.chunk));
        world.run();
        for column in 0..9 {
            assert_eq!(world.holders(column, row.chunk), [], "column {column} of {}", row.chunk);
        }
    }
}

#[test]
fn a_row_that_would_not_survive_another_loss_is_not_taken() {
    let mut world = World::new(4, 1);
    world.run();
    let [first, second] = [0, 1].map(|n| world.row(n, BLOCKS, &mut Random::new(n)));
    assert!(world.write(&first));
    world.crash(2);
    world.run();
    assert!(!world.write(&second), "without a data server, losing any other one loses the row");
    world.assert_reads(&first);
    world.restart(2);
    world.run();
    assert!(world.write(&second));
}

#[test]
fn a_strip_that_was_taken_before_the_epoch_ended_is_listed_after() {
    let mut world = fresh();
    let row = world.row(1, BLOCKS, &mut Random::new(5));
    world.slow = Some(id(0));
    let epoch = world.entry.epoch;
    let asked: Vec<u64> = (0..9).map(|column| world.send_strip(&row, column, id(column), epoch)).collect();
    world.flow();
    world.crash(8);
    world.restart(8);
    world.overtake(id(0));
    assert!(world.reports.is_empty(), "the listing waits for the strip");
    assert!(!world.is_done(asked[0], epoch));
    world.slow = None;
    world.run();
    assert!(asked.iter().all(|token| world.is_done(*token, epoch)), "it was taken under the old epoch");
    world.assert_at_home(&row);
}

#[test]
fn a_half_written_row_does_not_stop_a_fill() {
    let mut world = fresh();
    world.sleep(&PARITY);
    let rows = with_rows(&mut world, 0, 2);
    let half = world.row(50, BLOCKS, &mut Random::new(9));
    let (targets, epoch) = (world.entry.targets(half.chunk), world.entry.epoch);
    for (column, to) in targets.iter().enumerate().take(3) {
        world.send_strip(&half, column, to.unwrap(), epoch);
    }
    world.flow();
    PARITY.iter().for_each(|n| world.restart(*n));
    world.run();
    assert!(world.entry.columns.iter().all(|own| own.state == SlotState::InSync));
    rows.iter().for_each(|row| world.assert_at_home(row));
}

/// Enough strips may be with a server that does not answer: the fill waits for it.
#[test]
fn a_row_that_may_be_elsewhere_is_waited_for() {
    let mut world = World::new(2, 2);
    world.run();
    let row = world.row(1, BLOCKS, &mut Random::new(1));
    assert!(world.write(&row));
    for n in 1..3 {
        world.crash(n);
    }
    world.crash(3);
    world.replace(3);
    world.run();
    assert!(matches!(world.entry.columns[3].state, SlotState::CatchingUp { .. }), "one strip of two is here");
    world.restart(1);
    world.run();
    assert_eq!(world.entry.columns[3].state, SlotState::InSync);
    world.assert_has(&row, 3, id(3));
}

/// A data server that failed may have had strips of it, and whatever parity servers lacked then. But others whose
/// columns are in sync have none: it was never acknowledged (seed 30263008882).
#[test]
fn the_rest_of_a_failed_write_is_not_waited_for() {
    let mut world = fresh();
    world.sleep(&PARITY);
    let row = world.row(1, BLOCKS, &mut Random::new(1));
    let (to, epoch) = (id(1), world.entry.epoch);
    world.send_strip(&row, 1, to, epoch);
    world.flow();
    world.crash(5);
    PARITY.iter().for_each(|n| world.restart(*n));
    world.run();
    for column in PARITY {
        assert_eq!(world.entry.columns[column].state, SlotState::InSync, "column {column}");
    }
}

/// Each column's server was away, and one is gone for good: no column is in sync by which the others could be filled
/// (seeds 30263014197 and 30263040620). What was acknowledged, two had. With two gone, or one of the others emptied,
/// something may be hidden.
#[test]
fn after_a_power_cut_columns_are_filled_without_a_server_that_is_gone() {
    for (gone, emptied, is_filled) in [(1, None, true), (2, None, false), (1, Some(8), false)] {
        let mut world = fresh();
        let row = with_rows(&mut world, 0, 1).remove(0);
        (0..9).for_each(|n| world.crash(n));
        (gone..9).filter(|n| emptied != Some(*n)).for_each(|n| world.restart(n));
        emptied.into_iter().for_each(|n| world.replace(n));
        world.run();
        for column in gone..9 {
            let in_sync = world.entry.columns[column].state == SlotState::InSync;
            assert_eq!(in_sync, is_filled, "column {column}, {gone} gone, {emptied:?} emptied");
        }
        world.assert_reads(&row);
    }
}

#[test]
fn a_damaged_block_is_repaired_when_it_is_read() {
    let mut world = fresh();
    let row = with_rows(&mut world, 0, 1).remove(0);
    let group = GroupId::of_column(SET, 1);
    world.nodes.get_mut(&id(1)).unwrap().store.damaged.extend([(group, row.chunk, 3), (group, row.chunk, 5)]);
    world.assert_reads(&row);
    assert!(world.nodes[&id(1)].store.damaged.is_empty());
    assert_eq!(world.nodes[&id(1)].replica.as_ref().unwrap().stats().repaired_blocks, 2);
}

#[test]
fn a_deletion_reaches_a_sleeper() {
    let mut world = fresh();
    let row = with_rows(&mut world, 0, 1).remove(0);
    world.sleep(&PARITY);
    assert!(world.delete(row.chunk));
    PARITY.iter().for_each(|n| world.restart(*n));
    world.run();
    for (column, node) in world.nodes.values().enumerate() {
        assert_eq!(node.store.block(GroupId::of_column(SET, column), row.chunk, 0), None, "column {column}");
    }
    let missing = ClientReply::Failed { why: ebb_types::ChunkError::Missing };
    assert_eq!(world.read(row.chunk, 0, 4096).0, missing);
}

/// Columns are filled without any one server: it would hide what no other knows (seed 30263014197).
#[test]
fn a_deletion_that_only_one_server_would_know_of_is_not_taken() {
    let mut world = fresh();
    let row = with_rows(&mut world, 0, 1).remove(0);
    (1..9).for_each(|n| world.crash(n));
    world.run();
    assert!(!world.delete(row.chunk));
    let (_, (reply, _)) = world.replies.last_key_value().expect("it is refused");
    assert_eq!(*reply, ClientReply::Retry { why: Unready::Exposed });
    let (reply, bytes) = world.read(row.chunk, 0, row.strips[0].len());
    assert!(
        matches!(reply, ClientReply::Data { .. }) && bytes == row.strips[0],
        "what is here is read: {reply:?}"
    );
    world.restart(1);
    world.run();
    assert!(world.delete(row.chunk), "two know of it");
    world.crash(0);
    (2..9).for_each(|n| world.restart(n));
    world.run();
    for column in 1..9 {
        assert_eq!(world.holders(column, row.chunk), [] as [ServerId; 0], "column {column}");
    }
}

/// An older copy of its directory was put back, and the others have forgotten the deletion.
#[test]
fn a_store_that_was_put_back_does_not_keep_what_was_deleted_since() {
    for lost in [2, 7] {
        let mut world = fresh();
        let rows = with_rows(&mut world, 0, 3);
        let older = world.nodes[&id(lost)].store.clone();
        assert!(world.delete(rows[0].chunk));
        world.crash(0);
        world.restart(0);
        world.run();
        assert_eq!(world.nodes.values().map(|node| node.store.tombstones()).sum::<usize>(), 0, "forgotten");
        world.crash(lost);
        world.start(id(lost), older);
        world.configure(&[(lost, SlotState::CatchingUp { since: Epoch(0) })]);
        world.run();
        assert!(world.entry.columns.iter().all(|own| own.state == SlotState::InSync), "{:?}", world.entry);
        assert_eq!(world.holders(lost, rows[0].chunk), [] as [ServerId; 0]);
        rows[1..].iter().for_each(|row| world.assert_at_home(row));
        world.configure(&[]);
        world.run();
        assert_eq!(world.nodes.values().map(|node| node.store.tombstones()).sum::<usize>(), 0);
    }
}

/// What a gateway writes after its run was ended and its chunks were deleted would belong to nothing.
#[test]
fn a_deleted_chunk_takes_no_more_strips() {
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 2);
    assert!(world.delete(rows[0].chunk));
    let refused = ClientReply::Failed { why: ebb_types::ChunkError::Deleted };
    let late = |world: &mut World| {
        for column in 0..6 {
            let (to, epoch) = (world.entry.targets(rows[0].chunk)[column].unwrap(), world.entry.epoch);
            let token = world.send_strip(&rows[0], column, to, epoch);
            world.run();
            assert_eq!(world.replies[&token].0, refused);
            assert_eq!(world.holders(column, rows[0].chunk), [] as [ServerId; 0]);
        }
    };
    late(&mut world);
    world.sleep(&PARITY);
    late(&mut world);
    PARITY.iter().for_each(|n| world.restart(*n));
    world.run();
    assert_eq!(world.nodes.values().map(|node| node.store.tombstones()).sum::<usize>(), 0, "it is forgotten");
    late(&mut world);
    assert!(world.delete(rows[0].chunk), "it can be deleted again");
    world.assert_reads(&rows[1]);
}

#[test]
fn old_epochs_are_refused() {
    let mut world = fresh();
    let row = world.row(1, BLOCKS, &mut Random::new(1));
    let old = world.entry.epoch;
    world.crash(8);
    world.flow();
    let token = world.send_strip(&row, 0, id(0), old);
    world.flow();
    let moved = ClientReply::SetMoved { set: SET, entry: world.entry.clone() };
    assert_eq!(world.replies[&token].0, moved);
    let token = world.send_strip(&row, 0, id(0), world.entry.epoch.next());
    assert_eq!(world.replies[&token].0, ClientReply::Retry { why: Unready::Behind });
    let token = world.send_strip(&row, 0, id(0), world.entry.epoch);
    assert_eq!(world.replies[&token].0, ClientReply::Retry { why: Unready::Behind }, "there is a newer one");
    let group = GroupId::of_column(SET, 0);
    let list =
        PeerMessage::List { group, epoch: old, token: 7, role: Role::Replica, since: Epoch(0), after: None };
    world.on(id(0), Event::Peer { from: id(1), message: list, payload: Bytes::new() });
    let refusal = world.net.pop().map(|letter| letter.message);
    let newest = world.entry.epoch.next();
    let refused = PeerMessage::ListReply { group, token: 7, result: Err(Refusal::Stale { newest }) };
    assert_eq!(refusal, Some(refused));
}

#[test]
fn only_the_target_takes_whole_sound_blocks() {
    let mut world = fresh();
    let row = world.row(1, BLOCKS, &mut Random::new(1));
    let epoch = world.entry.epoch;
    let elsewhere = world.send_strip(&row, 0, id(1), epoch);
    assert!(matches!(world.replies[&elsewhere].0, ClientReply::SetMoved { .. }));
    let write = |offset: u32, crcs: Vec<u32>| {
        let request = RequestId { client: 1, seq: 1 };
        ChunkOp::Write { chunk: chunk(1), offset, len: 4096, request, crcs }
    };
    let block = Bytes::from(vec![7; 4096]);
    let crcs = ebb_types::block_crcs(&block);
    let failed = |why| ClientReply::Failed { why };
    let cases = [
        (write(100, crcs.clone()), failed(ebb_types::ChunkError::Malformed)),
        (write(1 << 20, crcs.clone()), failed(ebb_types::ChunkError::OutOfRange)),
        (write(0, vec![0]), ClientReply::Retry { why: Unready::Garbled }),
    ];
    for (op, wanted) in cases {
        let token = world.request(id(0), 0, epoch, op, block.clone());
        assert_eq!(world.replies[&token].0, wanted);
    }
    world.on(id(0), Event::Space { full: true });
    let token = world.request(id(0), 0, epoch, write(0, crcs), block);
    assert_eq!(world.replies[&token].0, failed(ebb_types::ChunkError::NoSpace));
    assert!(world.delete(chunk(1)), "a full server deletes");
}

#[test]
fn a_server_sleeps_only_when_nothing_is_in_flight() {
    let mut world = fresh();
    let row = world.row(1, BLOCKS, &mut Random::new(1));
    world.slow = Some(id(8));
    let token = world.send_strip(&row, 8, id(8), world.entry.epoch);
    world.flow();
    world.on(id(8), Event::Drain);
    assert!(world.ready.is_empty(), "it does not drain");
    world.drain(8);
    world.flow();
    world.on(id(8), Event::Drain);
    world.flow();
    assert!(world.ready.is_empty(), "its store works");
    world.slow = None;
    world.flow();
    assert!(world.ready.contains(&id(8)));
    assert!(world.replies.contains_key(&token));
    world.drain(0);
    world.flow();
    world.on(id(0), Event::Drain);
    world.flow();
    assert!(world.ready.contains(&id(0)), "a data server that keeps nothing for others");
}

#[test]
fn a_server_whose_set_has_a_newer_epoch_obeys_no_order_to_sleep() {
    let mut world = fresh();
    let obeys = |world: &World| world.nodes[&id(8)].replica.as_ref().unwrap().may_sleep();
    world.drain(8);
    world.flow();
    world.on(id(8), Event::Drain);
    world.flow();
    assert!(world.ready.contains(&id(8)) && obeys(&world));
    let (group, epoch, role) = (GroupId::of_column(SET, 8), world.entry.epoch.next(), Role::Replica);
    let message = PeerMessage::List { group, epoch, token: 7, role, since: Epoch(0), after: None };
    world.on(id(8), Event::Peer { from: id(1), message, payload: Bytes::new() });
    world.flow();
    assert!(!obeys(&world), "in that one it may be a target");
    world.configure(&[]);
    world.flow();
    assert!(obeys(&world), "it is not");
}

#[test]
fn a_holder_does_not_sleep() {
    let mut world = fresh();
    world.sleep(&PARITY);
    with_rows(&mut world, 0, 6);
    world.drain(0);
    world.flow();
    world.on(id(0), Event::Drain);
    world.run();
    assert!(world.ready.is_empty());
    assert_eq!(world.state_of(id(0)), ServerState::Draining);
}
