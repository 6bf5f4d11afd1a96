//! Scrub: what no client reads is read, compared with the data, and repaired.

use super::world::{BLOCKS, Row, SET, World, id};
use super::{PARITY, fresh, with_rows};
use bytes::Bytes;
use ebb_chunkserver::Event;
use ebb_types::{
    ChunkError, ChunkId, ClientReply, Epoch, GroupId, Role, ServerId, ServerReport, SlotState, Version,
    Vitals,
};

fn stats(world: &World, n: usize) -> Vitals {
    world.nodes[&id(n)].replica.as_ref().unwrap().stats()
}

/// An administrator asks for it. Returns whether the server found its column sound.
fn scrub(world: &mut World, n: usize) -> bool {
    world.on(id(n), Event::ScrubAll);
    (0..60).any(|_| {
        let unix_seconds = world.now / 1_000_000_000;
        world.on(id(n), Event::Beat { unix_seconds });
        for _ in 0..10 {
            world.flow();
            world.tick();
        }
        world.on(id(n), Event::Beat { unix_seconds });
        stats(world, n).scrub.asked == 0
    })
}

fn group(column: usize) -> GroupId {
    GroupId::of_column(SET, column)
}

/// The block's content on the disk of the column's server.
fn block<'a>(world: &'a mut World, row: &Row, column: usize, block: u32) -> &'a mut (Version, Option<Bytes>) {
    let node = world.nodes.get_mut(&id(column)).unwrap();
    let key = (Role::Replica, group(column), row.chunk);
    node.store.chunks.get_mut(&key).unwrap().blocks.get_mut(&block).unwrap()
}

/// A block of a server's column, sound until now, fails its checksum.
fn damage(world: &mut World, n: usize, chunk: ChunkId, block: u32) {
    assert!(world.nodes.get_mut(&id(n)).unwrap().store.damaged.insert((group(n), chunk, block)));
}

#[test]
fn rot_that_nobody_reads_is_repaired() {
    for n in 0..9 {
        let mut world = fresh();
        let rows = with_rows(&mut world, 0, 5);
        damage(&mut world, n, rows[3].chunk, 2);
        assert!(scrub(&mut world, n));
        assert!(world.nodes[&id(n)].store.damaged.is_empty());
        assert_eq!((stats(&world, n).repaired_blocks, stats(&world, n).scrub.differing_blocks), (1, 0));
        let zeroes: u64 =
            rows.iter().filter(|row| row.strips[n].iter().all(|byte| *byte == 0)).count() as u64;
        assert!(stats(&world, n).scrub.checked_bytes >= (5 - zeroes) * u64::from(BLOCKS) * 4096);
        rows.iter().for_each(|row| world.assert_at_home(row));
    }
}

#[test]
fn damage_beyond_repair_is_counted_and_tried_again() {
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 3);
    [0, 1, 6, 7].into_iter().for_each(|n| damage(&mut world, n, rows[1].chunk, 3));
    assert!(!scrub(&mut world, 0));
    assert_eq!(stats(&world, 0).scrub.unsound, 1);
    assert!(stats(&world, 0).damage.unrepaired > 0);
    // The parity server's disk is better than it looked.
    world.nodes.get_mut(&id(6)).unwrap().store.damaged.clear();
    assert!(scrub(&mut world, 0));
    assert_eq!(stats(&world, 0).scrub.unsound, 0);
    assert!([0, 6].iter().all(|n| world.nodes[&id(*n)].store.damaged.is_empty()));
}

/// One such row once kept its column out of sync for ever, and with it all holders of its strips.
#[test]
fn a_row_beyond_repair_is_stored_as_lost_and_the_column_completes() {
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 3);
    world.crash(8);
    world.run();
    [0, 1, 6, 7].into_iter().for_each(|n| damage(&mut world, n, rows[1].chunk, 3));
    world.replace(8);
    world.run();
    assert_eq!(world.entry.columns[8].state, SlotState::InSync);
    [0, 2].iter().for_each(|n| world.assert_has(&rows[*n], 8, id(8)));
    let lost: Vec<_> = world.nodes[&id(8)].store.damaged.iter().copied().collect();
    assert_eq!(lost, [(group(8), rows[1].chunk, 3)], "the rest of the row is there");
    assert!(stats(&world, 8).damage.unrepaired > 0);
    for n in [0, 1] {
        let (reply, _) = world.read(rows[1].chunk, n, BLOCKS as usize * 4096);
        assert_eq!(reply, ClientReply::Failed { why: ChunkError::Corrupt }, "never zeroes");
    }
    // What is not known to be lost is waited for: here with a server that is away.
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 3);
    world.crash(8);
    world.crash(2);
    world.run();
    [0, 6].into_iter().for_each(|n| damage(&mut world, n, rows[1].chunk, 3));
    world.replace(8);
    world.run();
    assert!(matches!(world.entry.columns[8].state, SlotState::CatchingUp { .. }));
    world.restart(2);
    world.run();
    assert_eq!(world.entry.columns[8].state, SlotState::InSync);
    rows.iter().for_each(|row| world.assert_has(row, 8, id(8)));
}

/// Such a row once was taken for the rest of a failed write: its loss was not counted on the column that was filled.
#[test]
fn a_row_that_is_listed_as_lost_is_lost_on_the_column_that_is_filled() {
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 3);
    world.crash(8);
    world.run();
    let never_written = BLOCKS + 1;
    for n in [0, 1, 6, 7] {
        let store = &mut world.nodes.get_mut(&id(n)).unwrap().store;
        store.lists_damage = true;
        let chunk = store.chunks.get_mut(&(Role::Replica, group(n), rows[1].chunk)).unwrap();
        // A chunk file that was lost as a whole may have had blocks that were never written.
        let version = chunk.blocks[&3].0;
        chunk.blocks.insert(never_written, (version, None));
        store.damaged.extend([3, never_written].map(|block| (group(n), rows[1].chunk, block)));
    }
    world.replace(8);
    world.run();
    assert_eq!(world.entry.columns[8].state, SlotState::InSync);
    let lost: Vec<_> = world.nodes[&id(8)].store.damaged.iter().copied().collect();
    assert_eq!(lost, [(group(8), rows[1].chunk, 3)], "what has no sound strip anywhere was never written");
    assert!(stats(&world, 8).damage.unrepaired > 0);
}

#[test]
fn parity_that_differs_from_the_data_is_written_again() {
    for n in PARITY {
        let mut world = fresh();
        let rows = with_rows(&mut world, 0, 4);
        for wrong in [0, 4, 5] {
            let (version, content) = block(&mut world, &rows[1], n, wrong);
            *content = Some(Bytes::from(vec![7; 4096]));
            // Even if it is newer than the data.
            version.seq += u64::from(wrong == 4);
        }
        assert!(scrub(&mut world, n));
        let counted = stats(&world, n).scrub;
        assert_eq!((counted.differing_blocks, counted.equalled_blocks), (3, 3));
        rows.iter().for_each(|row| world.assert_at_home(row));
        assert!(scrub(&mut world, n));
        assert_eq!(stats(&world, n).scrub.differing_blocks, 3, "nothing differs any more");
    }
}

#[test]
fn a_strip_that_is_missing_is_rebuilt() {
    for n in 0..9 {
        let mut world = fresh();
        let rows = with_rows(&mut world, 0, 3);
        let node = world.nodes.get_mut(&id(n)).unwrap();
        node.store.chunks.get_mut(&(Role::Replica, group(n), rows[2].chunk)).unwrap().blocks.split_off(&5);
        node.store.chunks.remove(&(Role::Replica, group(n), rows[0].chunk));
        assert!(scrub(&mut world, n));
        rows.iter().for_each(|row| world.assert_at_home(row));
    }
}

#[test]
fn a_deletion_that_was_missed_is_carried_out() {
    for n in 0..9 {
        let mut world = fresh();
        let rows = with_rows(&mut world, 0, 3);
        let store = world.nodes[&id(n)].store.clone();
        assert!(world.delete(rows[1].chunk));
        world.nodes.get_mut(&id(n)).unwrap().store = store;
        assert_eq!(world.holders(n, rows[1].chunk), [id(n)]);
        assert!(scrub(&mut world, n));
        assert_eq!(world.holders(n, rows[1].chunk), [] as [ServerId; 0]);
        [0, 2].iter().for_each(|n| world.assert_at_home(&rows[*n]));
    }
}

/// Of the others, some may not know the epoch yet under which this server has forgotten all deletions before it. This
/// one, whose deletion did not reach it, would have remembered it until the next epoch.
#[test]
fn a_deletion_of_an_earlier_epoch_is_carried_out_and_forgotten() {
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 3);
    let old = world.nodes[&id(0)].store.clone();
    assert!(world.delete(rows[1].chunk));
    let others: Vec<_> = (1..9).map(|n| (n, world.nodes[&id(n)].store.clone())).collect();
    world.restart(8);
    world.run();
    assert_eq!(world.nodes.values().map(|node| node.store.tombstones()).sum::<usize>(), 0);
    world.nodes.get_mut(&id(0)).unwrap().store = old;
    for (n, store) in others {
        world.nodes.get_mut(&id(n)).unwrap().store = store;
    }
    assert!(scrub(&mut world, 0));
    assert_eq!(world.holders(0, rows[1].chunk), [] as [ServerId; 0]);
    assert_eq!(world.nodes[&id(0)].store.tombstones(), 0);
}

#[test]
fn the_rest_of_a_failed_write_is_passed_over() {
    let mut world = fresh();
    let row = world.row(0, BLOCKS, &mut ebb_types::Random::new(1));
    for column in [0, 1, 7] {
        world.send_strip(&row, column, id(column), Epoch(1));
    }
    world.run();
    with_rows(&mut world, 1, 2);
    for n in 0..9 {
        assert!(scrub(&mut world, n), "{n}");
        assert_eq!((stats(&world, n).scrub.differing_blocks, stats(&world, n).repaired_blocks), (0, 0));
        assert_eq!(world.holders(n, row.chunk).is_empty(), ![0, 1, 7].contains(&n));
    }
}

/// The other columns have too little to rebuild it from, and always will: it once made every scrub fail for ever, first
/// where it was alone, then where the next columns had strips, too (seed 32010001874).
#[test]
fn rot_in_the_rest_of_a_failed_write_is_cleared_once_its_epoch_has_ended() {
    for (n, more) in (0..9).flat_map(|n| [0, 3].map(|more| (n, more))) {
        let mut world = fresh();
        let rows = with_rows(&mut world, 0, 2);
        let row = world.row(7, BLOCKS, &mut ebb_types::Random::new(1));
        let sent: Vec<usize> = (n..=n + more).map(|column| column % 9).collect();
        for column in sent.iter().copied() {
            world.send_strip(&row, column, id(column), Epoch(1));
        }
        world.run();
        damage(&mut world, n, row.chunk, 1);
        assert!(!scrub(&mut world, n), "the write may still succeed");
        let asks = |(_, report): &(_, ServerReport)| matches!(report, ServerReport::Remembers { .. });
        assert!(world.reports.iter().any(asks), "{:?}", world.reports);
        world.configure(&[]);
        world.run();
        assert!(scrub(&mut world, n));
        assert!(world.nodes[&id(n)].store.damaged.is_empty());
        assert_eq!(block(&mut world, &row, n, 1), &(Version { epoch: Epoch(1), seq: 2 }, None));
        rows.iter().for_each(|row| world.assert_at_home(row));
        assert!((0..9).all(|other| sent.contains(&other) || world.holders(other, row.chunk).is_empty()));
    }
}

/// The zeroes once counted as the strip that k - 1 sound ones lack: the columns that had nothing of the row got content
/// that was never written (seed 32500010034).
#[test]
fn what_was_cleared_is_no_strip() {
    for n in 0..6 {
        let mut world = fresh();
        with_rows(&mut world, 0, 2);
        let row = world.row(7, BLOCKS, &mut ebb_types::Random::new(1));
        for column in 0..6 {
            world.send_strip(&row, column, id(column), Epoch(1));
        }
        world.run();
        for block in 0..BLOCKS {
            damage(&mut world, n, row.chunk, block);
        }
        world.configure(&[]);
        world.run();
        for scrubbed in [n, 6, 7, 8].into_iter().chain(0..6) {
            assert!(scrub(&mut world, scrubbed), "{n}: {scrubbed}");
        }
        let missing = ClientReply::Failed { why: ChunkError::Missing };
        assert_eq!(world.read(row.chunk, n, 4096).0, missing, "{n}");
        assert!((6..9).all(|other| world.holders(other, row.chunk).is_empty()), "{n}");
        // Nor does it on a server that is filled.
        world.replace(6);
        world.run();
        assert_eq!(world.entry.columns[6].state, SlotState::InSync);
        assert!((6..9).all(|other| world.holders(other, row.chunk).is_empty()), "{n}");
    }
}

#[test]
fn parity_is_compared_only_while_all_data_is_there() {
    let mut world = fresh();
    let rows = with_rows(&mut world, 0, 3);
    block(&mut world, &rows[0], 6, 0).1 = Some(Bytes::from(vec![7; 4096]));
    world.crash(2);
    world.run();
    assert!(!scrub(&mut world, 6));
    assert_eq!(stats(&world, 6).scrub.checked_bytes, 0);
    assert!(scrub(&mut world, 1), "a data column needs no other");
    // The request is still known.
    world.restart(2);
    world.run();
    assert_eq!(world.entry.columns[2].state, SlotState::InSync);
    assert!(scrub(&mut world, 6));
    assert_eq!(stats(&world, 6).scrub.equalled_blocks, 1);
}

#[test]
fn a_scrub_keeps_no_parity_server_awake_and_wakes_none() {
    let mut world = fresh();
    with_rows(&mut world, 0, 8);
    PARITY.iter().for_each(|n| world.on(id(*n), Event::ScrubAll));
    PARITY.iter().for_each(|n| world.on(id(*n), Event::Beat { unix_seconds: 1 }));
    world.flow();
    world.sleep(&PARITY);
    for n in 0..6 {
        assert!(scrub(&mut world, n));
    }
    assert!(world.reports.is_empty(), "{:?}", world.reports);
}

#[test]
fn a_server_whose_column_is_scrubbed_rests() {
    let mut world = fresh();
    with_rows(&mut world, 0, 3);
    assert!(scrub(&mut world, 3) && scrub(&mut world, 8));
    world.run();
    assert!(world.nodes.values().all(|node| !node.replica.as_ref().unwrap().wants_ticks()));
}
