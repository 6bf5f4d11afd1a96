//! A store's files: it opens over whatever bytes stand in one of them, or refuses to; and then reads blocks, or says
//! that they are damaged.
#![no_main]

use bytes::Bytes;
use ebb_store::mem::MemDisk;
use ebb_store::{Config, Disk, Op, StoreCore};
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Epoch, GroupId, ObjectId, Record, Role, ServerId, StoreId, Version, block_crcs,
};
use libfuzzer_sys::fuzz_target;
use std::io::IoSlice;
use std::sync::{Arc, LazyLock};

const GROUP: GroupId = GroupId(1);
const BLOCKS: u32 = 8;

fn open(disk: &MemDisk) -> Option<StoreCore> {
    let config = Config {
        segment_bytes: 24 << 10,
        checkpoint_bytes: 64 << 10,
        direct_bytes: 3 * BLOCK_BYTES,
        tail_bytes: 32 << 10,
        ..Config::new(7, ServerId(1), StoreId(1))
    };
    StoreCore::open(Arc::new(disk.clone()), config).ok().map(|(store, _)| store)
}

fn chunk(index: u32) -> ChunkId {
    ChunkId { object: ObjectId(5), index }
}

fn run(store: &mut StoreCore, op: Op) {
    store.execute(vec![(0, op)], &mut Vec::new());
}

/// Segments, an inventory, and chunk files with two generations of metadata.
static WHOLE: LazyLock<MemDisk> = LazyLock::new(|| {
    let disk = MemDisk::new();
    let mut store = open(&disk).expect("an empty disk");
    for seq in 1..=6 {
        for index in 0..3 {
            let count = if index == 0 { 4 } else { 1 };
            let payload = Bytes::from(vec![seq as u8; count as usize * BLOCK_BYTES]);
            let content = Content::Data { crcs: block_crcs(&payload) };
            let version = Version { epoch: Epoch(1), seq };
            let first = seq as u32 % 4;
            let record = Record { group: GROUP, chunk: chunk(index), first, count, version, request: None, content };
            let role = if index == 2 { Role::Offload { stands_for: ServerId(9) } } else { Role::Replica };
            run(&mut store, Op::Apply { role, record, payload, must_fit: false, repair: false, committed: Version::ZERO });
        }
        if seq == 2 || seq == 4 {
            run(&mut store, Op::Flush);
        }
    }
    disk
});

fuzz_target!(|data: &[u8]| {
    let Some(([which, high, low, cut], bytes)) = data.split_first_chunk::<4>().map(|(h, b)| (*h, b)) else { return };
    let disk = WHOLE.copy();
    let files = disk.files();
    let path = &files[usize::from(which) % files.len()];
    let Ok(file) = disk.open(path, false) else { return };
    let at = (u64::from(high) << 8 | u64::from(low)) % disk.len(path).max(1);
    let _ = file.write(&mut [IoSlice::new(bytes)], at);
    if cut % 4 == 0 {
        let _ = file.truncate(at + bytes.len() as u64);
    }
    drop(file);
    let Some(mut store) = open(&disk) else { return };
    for index in 0..3 {
        for role in [Role::Replica, Role::Offload { stands_for: ServerId(9) }] {
            run(&mut store, Op::Read { role, group: GROUP, chunk: chunk(index), first: 0, count: BLOCKS });
        }
    }
    run(&mut store, Op::Digest { role: Role::Replica, group: GROUP, verify: true });
    run(&mut store, Op::Flush);
});
