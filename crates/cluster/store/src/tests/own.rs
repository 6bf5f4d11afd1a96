//! What the store counts as data of its own columns, and as offload, against what a reader sees.

use super::*;

const CHUNKS: u32 = 3;

fn column(number: u32) -> u32 {
    GroupId::of_column(SetId(4), number as usize).0
}

/// Bytes of data in blocks that a reader sees.
fn visible(store: &mut StoreCore, role: Role) -> u64 {
    let mut blocks = 0;
    for group in (0..2).map(|number| GroupId(column(number))) {
        let list = Op::List { role, group, since: Epoch(0), after: None, limit: 10_000 };
        let Outcome::Listed(page) = one(store, list) else { panic!("a listing") };
        assert_eq!(page.next, None);
        let data = page.runs.iter().filter(|run| run.kind == Kind::Data);
        blocks += data.map(|run| u64::from(run.count)).sum::<u64>();
    }
    blocks * BLOCK_BYTES as u64
}

fn own(store: &StoreCore) -> u64 {
    store.figures().own.0
}

/// Versions come in order, as strips' do.
fn op(random: &mut Random, seq: u64) -> Op {
    let role = if random.below(3) == 0 { OFFLOAD } else { Role::Replica };
    let (group, chunk) = (column(random.below(2) as u32), random.below(u64::from(CHUNKS)) as u32);
    // On both sides of the border of two metadata pages.
    let first = [0, 250][random.below(2) as usize] + random.below(10) as u32;
    let (count, version) = (1 + random.below(6) as u32, version(1, seq));
    match random.below(20) {
        0..13 => apply(role, data(group, chunk, first, count, version)),
        13..15 => apply(role, blank(group, chunk, first, count, version, Content::Zero)),
        15 => apply(role, blank(group, chunk, 0, 0, version, Content::Delete)),
        16 => Op::DropOffload { group: GroupId(group), stands_for: ServerId(9) },
        17 if random.below(3) == 0 => Op::DropReplica { group: GroupId(group) },
        _ => Op::Flush,
    }
}

#[test]
fn own_data_and_offload_are_counted_exactly_also_after_restarts() {
    for seed in seeds(60) {
        let _named = OnFailure("own_data_and_offload", seed);
        let (disk, mut random) = (MemDisk::new(), Random::new(seed));
        let (mut store, _) = open(&disk).unwrap();
        // A store that was opened moves nothing before it has written something.
        let mut has_written = false;
        for seq in 1..150 {
            let op = op(&mut random, seq);
            let is_flush = matches!(op, Op::Flush);
            has_written |= !is_flush;
            assert!(!matches!(one(&mut store, op), Outcome::Failed(_)));
            store.settle();
            let seen = visible(&mut store, Role::Replica);
            assert_eq!(store.figures().offload.0, visible(&mut store, OFFLOAD), "step {seq}");
            assert!(own(&store) >= seen, "step {seq}: {} for {seen}", own(&store));
            if is_flush && has_written {
                assert_eq!(own(&store), seen, "step {seq}: nothing is left to be moved");
            }
            if random.below(8) == 0 {
                let before = (own(&store), store.figures().offload);
                drop(store);
                store = open(&disk).unwrap().0;
                has_written = false;
                assert_eq!((own(&store), store.figures().offload), before, "step {seq}");
            }
        }
    }
}

#[test]
fn a_chunk_that_is_moved_in_parts_is_counted_once() {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let (group, whole) = (column(0), 600 * BLOCK_BYTES as u64);
    for seq in 0..300 {
        one(&mut store, apply(Role::Replica, data(group, 0, 2 * seq, 2, version(1, u64::from(seq) + 1))));
        assert!(own(&store) <= whole);
    }
    assert_eq!(own(&store), whole);
    let mut steps = 0;
    while store.settle() {
        assert_eq!(own(&store), whole, "after step {steps}");
        // What was moved and what was not are both counted after a crash in between.
        let (cut_short, _) = open(&disk.crash(steps)).unwrap();
        assert!(own(&cut_short) >= whole, "after step {steps}: {}", own(&cut_short));
        steps += 1;
    }
    assert!(steps > 3, "{steps} steps");
    one(&mut store, Op::Flush);
    assert_eq!(own(&store), whole);
    let store = open(&disk).unwrap().0;
    assert_eq!(own(&store), whole);
}

#[test]
fn what_is_in_the_replicated_pool_is_not_counted() {
    let (mut store, _) = open(&MemDisk::new()).unwrap();
    one(&mut store, apply(Role::Replica, data(1, 0, 0, 4, version(1, 1))));
    one(&mut store, Op::Flush);
    assert_eq!(own(&store), 0);
}
