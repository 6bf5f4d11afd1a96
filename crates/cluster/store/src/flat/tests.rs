//! Files on a block device against the same files in memory, with and without crashes.

use super::device::BLOCK;
use super::format::{DEVICE_MIN, Record, Superblock};
use super::mem::MemBlocks;
use super::state::State;
use super::*;
use crate::disk::{Disk, DiskFile};
use crate::mem::MemDisk;
use ebb_types::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::Arc;

const SIZE: u64 = 4 << 20;

fn open(device: &MemBlocks) -> FlatDisk {
    FlatDisk::open(Arc::new(device.clone()), 7).unwrap_or_else(|error| panic!("{error}"))
}

fn put(file: &dyn DiskFile, bytes: &[u8], offset: u64) {
    file.write(&mut [IoSlice::new(bytes)], offset).unwrap();
}

fn all(file: &dyn DiskFile) -> Vec<u8> {
    let mut out = Vec::new();
    file.read(&mut out, file.size().unwrap() as usize + 10, 0).unwrap();
    out
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EBB_STORE_SEED") {
        Ok(seed) => vec![seed.parse().expect("EBB_STORE_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

struct OnFailure(u64);

impl Drop for OnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("reproduce: EBB_STORE_SEED={} cargo test -p ebb-store flat", self.0);
        }
    }
}

fn random_bytes(random: &mut Random, len: u64) -> Vec<u8> {
    (0..len).map(|_| random.below(255) as u8 + 1).collect()
}

const PATHS: [&str; 5] = ["a", "b", "d/a", "d/b", "c"];

/// One change of both disks.
fn change(disks: [&dyn Disk; 2], random: &mut Random) -> io::Result<()> {
    let path = PATHS[random.below(5) as usize];
    let files = || disks.map(|disk| disk.open(path, true));
    let act = random.below(16);
    match act {
        0 => {
            let done = disks.map(|disk| disk.remove(path).map_err(|error| error.kind()));
            assert_eq!(done[0], done[1]);
            Ok(())
        }
        1 => {
            let to = PATHS[random.below(5) as usize];
            // In the model, a file loses its name if that is its new name, too.
            let done = disks.map(|disk| if path == to { Ok(()) } else { disk.rename(path, to) });
            assert_eq!(done[0].is_ok(), done[1].is_ok(), "{path} to {to}");
            Ok(())
        }
        _ => {
            let [a, b] = files();
            let (a, b) = (a?, b?);
            let size = b.size()?;
            let (offset, len) = (random.below(size + 9000), random.below(9000));
            match act {
                2 => {
                    let to = if random.below(4) == 0 { offset } else { offset.min(size) };
                    a.truncate(to)?;
                    b.truncate(to)
                }
                3 | 4 => {
                    a.punch(offset, len * 2)?;
                    b.punch(offset, len * 2)
                }
                5..9 => {
                    let bytes = random_bytes(random, len);
                    a.write(&mut [IoSlice::new(&bytes)], offset)?;
                    b.write(&mut [IoSlice::new(&bytes)], offset)
                }
                _ => {
                    let len = if act == 9 { 70_000 } else { len };
                    let bytes = random_bytes(random, len);
                    let (one, two) = bytes.split_at(bytes.len() / 3);
                    a.write(&mut [IoSlice::new(one), IoSlice::new(two)], size)?;
                    b.write(&mut [IoSlice::new(one), IoSlice::new(two)], size)
                }
            }
        }
    }
}

fn same(flat: &dyn Disk, model: &dyn Disk) {
    for dir in ["", "d"] {
        let names = |disk: &dyn Disk| {
            let mut all: Vec<_> = disk.list(dir).unwrap().into_iter().map(|e| (e.name, e.is_dir)).collect();
            all.sort();
            all
        };
        assert_eq!(names(flat), names(model));
    }
    for path in PATHS {
        let (Ok(a), Ok(b)) = (flat.open(path, false), model.open(path, false)) else { continue };
        let (a, b) = (all(&*a), all(&*b));
        assert_eq!(a.len(), b.len(), "length of {path}");
        assert!(a == b, "{path}, first at {:?}", a.iter().zip(&b).position(|(a, b)| a != b));
    }
}

#[test]
fn files_are_as_in_memory_and_after_opening_again() {
    for seed in seeds(20) {
        let _seed = OnFailure(seed);
        let mut random = Random::new(seed);
        let (device, model) = (MemBlocks::new(SIZE), MemDisk::new());
        let mut disk = open(&device);
        for disk in [&disk as &dyn Disk, &model] {
            disk.create_dir("d").unwrap();
        }
        for step in 0..200 {
            match change([&disk, &model], &mut random) {
                Err(error) if error.kind() == ErrorKind::StorageFull => {}
                other => other.unwrap(),
            }
            same(&disk, &model);
            if random.below(4) == 0 {
                disk.sync_dir("").unwrap();
            }
            if step % 50 == 49 {
                drop(disk);
                disk = open(&device);
                same(&disk, &model);
                let files: u64 = PATHS
                    .iter()
                    .filter_map(|path| disk.open(path, false).ok())
                    .map(|file| file.allocated().unwrap())
                    .sum();
                let data = Superblock::new(7, SIZE).data();
                let whole = (data.end - data.start) * BLOCK;
                assert_eq!(disk.free_bytes().unwrap() + files, whole, "no block is lost");
            }
        }
    }
}

/// What a file may have after a crash: its synced bytes, where nothing was written since.
struct Synced {
    file: Arc<dyn DiskFile>,
    bytes: Vec<u8>,
    /// Since the sync.
    touched: Vec<Range<u64>>,
    named: bool,
    /// A removed file of that name may still be there.
    old: bool,
}

/// Files with synced content, changed and synced at random until the device stops. Returns whether it did not.
fn crash_once(seed: u64, stop: u64) -> bool {
    let device = MemBlocks::new(SIZE);
    device.stop_after(stop);
    let mut random = Random::new(seed);
    let mut synced: BTreeMap<String, Synced> = BTreeMap::new();
    let mut removed = BTreeSet::new();
    let finished = (|| -> io::Result<()> {
        let disk = FlatDisk::open(Arc::new(device.clone()), 7).map_err(|_| ErrorKind::Other)?;
        // It is dropped with the device stopped or in order.
        for step in 0..60u64 {
            let path = PATHS[[0, 1, 4][random.below(3) as usize]];
            if let Some(gone) = synced.get(path)
                && gone.named
                && random.below(8) == 0
            {
                // From here on it may be there or not.
                synced.remove(path);
                removed.insert(path);
                disk.remove(path)?;
                continue;
            }
            let file = disk.open(path, true)?;
            let known = synced.entry(path.to_owned()).or_insert_with(|| Synced {
                file: file.clone(),
                bytes: Vec::new(),
                touched: Vec::new(),
                named: false,
                old: removed.contains(path),
            });
            let size = file.size()?;
            let offset = if random.below(2) == 0 { size } else { random.below(size + 1) };
            let bytes = random_bytes(&mut random, 1 + random_len(seed, step));
            known.touched.push(offset..offset + bytes.len() as u64);
            file.write(&mut [IoSlice::new(&bytes)], offset)?;
            if random.below(3) == 0 {
                file.sync()?;
                (known.bytes, known.named, known.touched) = (all(&*known.file), true, Vec::new());
                known.old = false;
            }
        }
        Ok(())
    })();
    let mut device = device.crash(seed ^ stop);
    for attempt in 0..2 {
        device.stop_after(random.below(6));
        let _ = FlatDisk::open(Arc::new(device.clone()), 7);
        device = device.crash(seed ^ stop ^ attempt);
    }
    let disk = open(&device);
    let mut total = 0;
    for (path, known) in &synced {
        let Ok(file) = disk.open(path, false) else {
            assert!(!known.named, "{path} is gone");
            continue;
        };
        let found = all(&*file);
        assert!(found.len() >= known.bytes.len(), "{path} lost its end");
        for (at, byte) in found.iter().enumerate() {
            if known.old || known.touched.iter().any(|range| range.contains(&(at as u64))) {
                continue;
            }
            let wanted = known.bytes.get(at).copied().unwrap_or(0);
            assert_eq!(*byte, wanted, "{path} at {at} of {}, {}", known.bytes.len(), found.len());
        }
        total += file.allocated().unwrap();
    }
    let unknown = PATHS.iter().filter(|path| !synced.contains_key(**path));
    total += unknown.filter_map(|path| disk.open(path, false).ok()?.allocated().ok()).sum::<u64>();
    let data = Superblock::new(7, SIZE).data();
    assert_eq!(disk.free_bytes().unwrap() + total, (data.end - data.start) * BLOCK, "no block is lost");
    finished.is_ok()
}

fn random_len(seed: u64, step: u64) -> u64 {
    let mut random = Random::new(seed << 16 | step);
    if random.below(6) == 0 { 60_000 + random.below(30_000) } else { random.below(6000) }
}

#[test]
fn what_was_synced_is_there_wherever_the_device_stops() {
    for seed in seeds(8) {
        let _seed = OnFailure(seed);
        let mut stop = 0;
        while !crash_once(seed, stop) {
            stop += 1;
        }
        assert!(stop > 20, "the workload writes: {stop}");
    }
}

#[test]
fn a_growing_file_is_synced_with_one_flush_and_no_journal_write() {
    let device = MemBlocks::new(64 << 20);
    let disk = open(&device);
    let file = disk.open("segment", true).unwrap();
    let mut len = 0;
    let mut append = || {
        let before = (device.operations(), device.flushes());
        put(&*file, &[1; 5000], len);
        file.sync().unwrap();
        len += 5000;
        (device.operations() - before.0, device.flushes() - before.1)
    };
    let costs: Vec<(u64, u64)> = (0..500).map(|_| append()).collect();
    let rare = costs.iter().filter(|cost| **cost != (2, 1)).count();
    assert!(rare <= 10, "one write and one flush each: {costs:?}");
}

#[test]
fn a_file_that_others_followed_has_its_exact_length_after_a_crash() {
    let device = MemBlocks::new(SIZE);
    let disk = open(&device);
    for path in ["one", "two"] {
        let file = disk.open(path, true).unwrap();
        put(&*file, &[1; 5000], 0);
        file.sync().unwrap();
    }
    let found = open(&device.crash(1));
    assert_eq!(found.open("one", false).unwrap().size().unwrap(), 5000);
    assert!(found.open("two", false).unwrap().size().unwrap() > 5000, "it may still grow");
    drop(disk);
    let found = open(&device.crash(1));
    assert_eq!(found.open("two", false).unwrap().size().unwrap(), 5000, "a clean end notes lengths");
}

#[test]
fn a_removed_file_stays_readable_and_its_blocks_are_its_own() {
    let device = MemBlocks::new(SIZE);
    let disk = open(&device);
    let file = disk.open("old", true).unwrap();
    put(&*file, &[1; 1 << 20], 0);
    file.sync().unwrap();
    let free = disk.free_bytes().unwrap();
    disk.remove("old").unwrap();
    disk.sync_dir("").unwrap();
    let new = disk.open("new", true).unwrap();
    assert_ne!(file.number().unwrap(), new.number().unwrap());
    put(&*new, &[2; 1 << 20], 0);
    new.sync().unwrap();
    assert!(all(&*file) == vec![1; 1 << 20]);
    put(&*file, &[3; 5000], 1 << 20);
    drop(file);
    assert_eq!(disk.free_bytes().unwrap(), free);
}

#[test]
fn freed_blocks_are_not_overwritten_before_that_is_durable() {
    let device = MemBlocks::new(SIZE);
    let disk = open(&device);
    let free = disk.free_bytes().unwrap();
    let file = disk.open("old", true).unwrap();
    put(&*file, &vec![1; free as usize - (1 << 20)], 0);
    file.sync().unwrap();
    drop(file);
    disk.remove("old").unwrap();
    let new = disk.open("new", true).unwrap();
    put(&*new, &[2; 1 << 20], 0);
    // Not synced: the old file may still be there, whole.
    for seed in 0..20 {
        let found = open(&device.crash(seed));
        let old = found.open("old", false).expect("the removal is not durable");
        assert!(all(&*old).iter().all(|byte| *byte == 1));
    }
    put(&*new, &vec![2; free as usize - (2 << 20)], 1 << 20);
    let found = open(&device.crash(1));
    assert!(found.open("old", false).is_err(), "the space was needed, so the removal was made durable");
}

#[test]
fn a_file_that_was_cut_short_never_shows_its_old_end() {
    for seed in 0..30 {
        for stop in 0..4 {
            let device = MemBlocks::new(SIZE);
            let disk = open(&device);
            let file = disk.open("file", true).unwrap();
            put(&*file, &[1; 3000], 0);
            file.truncate(100).unwrap();
            file.sync().unwrap();
            put(&*file, &[2; 60], 50);
            device.stop_after(stop);
            let _ = file.sync();
            let found = all(&*open(&device.crash(seed)).open("file", false).unwrap());
            let grown = found.get(100..).unwrap_or_default();
            assert!(grown.iter().all(|byte| *byte == 2), "seed {seed}, {stop}: {grown:?}");
        }
    }
}

#[test]
fn a_full_device_refuses_and_loses_nothing() {
    let device = MemBlocks::new(1 << 20);
    let disk = open(&device);
    let file = disk.open("file", true).unwrap();
    let mut len = 0;
    let full = loop {
        match file.write(&mut [IoSlice::new(&[7; 3000])], len) {
            Ok(()) => len += 3000,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!(disk.free_bytes().unwrap() < BLOCK && len > 600_000, "{len}");
    assert_eq!(file.size().unwrap(), len);
    file.sync().unwrap();
    let found = open(&device.crash(1));
    assert!(all(&*found.open("file", false).unwrap())[..len as usize].iter().all(|byte| *byte == 7));
    file.truncate(10_000).unwrap();
    put(&*file, &[8; 3000], 10_000);
    file.sync().unwrap();
    assert_eq!(all(&*file).len(), 13_000);
}

#[test]
fn metadata_that_would_not_fit_is_refused() {
    let device = MemBlocks::new(1 << 20);
    let disk = open(&device);
    let mut files = Vec::new();
    let full = loop {
        match disk.open(&format!("file-{}", files.len()), true) {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
        disk.sync_dir("").unwrap();
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!(files.len() > 100);
    for at in 0..files.len() {
        disk.remove(&format!("file-{at}")).unwrap();
    }
    disk.sync_dir("").unwrap();
    disk.open("again", true).unwrap();
    assert!(disk.list("").unwrap().len() == 1);
}

#[test]
fn after_a_failed_flush_nothing_is_changed() {
    let device = MemBlocks::new(SIZE);
    let disk = open(&device);
    let file = disk.open("file", true).unwrap();
    put(&*file, &[1; 100], 0);
    device.fail_flushes(1);
    assert!(file.sync().is_err() && file.sync().is_err() && disk.open("other", true).is_err());
    assert_eq!(all(&*file), [1; 100], "reading works");
}

#[test]
fn damage_is_named_and_other_devices_are_refused() {
    let made = || {
        let device = MemBlocks::new(SIZE);
        let disk = open(&device);
        for n in 0..5 {
            disk.open(&format!("{n}"), true).unwrap();
            disk.sync_dir("").unwrap();
        }
        drop(disk);
        device
    };
    let opened = |device: &MemBlocks| FlatDisk::open(Arc::new(device.clone()), 8).map(|_| ());
    let superblock = Superblock::new(7, SIZE);
    // Formatted as generation 1, opened as 2.
    let area = superblock.area_at(2) * BLOCK;
    assert!(opened(&made()).is_ok());
    for at in [BLOCK + 50, 3 * BLOCK + 50] {
        let device = made();
        device.flip(area + at);
        let error = opened(&device).unwrap_err();
        assert!(matches!(error, FlatError::Damaged { .. }), "a commit has others behind it: {error}");
    }
    let device = made();
    device.flip(area + 13);
    let error = opened(&device).unwrap_err();
    assert!(error.to_string().contains("newest checkpoint"), "{error}");
    let device = made();
    device.flip(20);
    assert!(opened(&device).is_ok(), "there are two superblocks");
    device.flip(BLOCK + 20);
    assert!(matches!(opened(&device).unwrap_err(), FlatError::NotFlat));
    let other = MemBlocks::new(SIZE);
    other.write(vec![(0, vec![9; BLOCK as usize].into())]).unwrap();
    assert!(matches!(opened(&other).unwrap_err(), FlatError::NotFlat));
    FlatDisk::format(&other, 3).unwrap();
    assert!(opened(&other).is_ok());
    assert!(matches!(opened(&MemBlocks::new(DEVICE_MIN - BLOCK)).unwrap_err(), FlatError::Small { .. }));
}

#[test]
fn made_up_commits_are_refused_or_read() {
    let mut records = Vec::new();
    for record in [
        Record::Dir("d".into()),
        Record::Create { file: 3, path: "d/a".into() },
        Record::Map { file: 3, block: 0, at: 100, count: 5 },
        Record::Length { file: 3, bytes: 9000 },
        Record::Unmap { file: 3, block: 1, count: 2 },
        Record::Rename { from: "d/a".into(), to: "b".into() },
        Record::Remove("b".into()),
        Record::Moved,
    ] {
        let mut one = Vec::new();
        record.encode(&mut one);
        assert_eq!(Record::decode_all(&one), Some(vec![record]));
        records.append(&mut one);
    }
    ebb_testing::fuzz(&[&records], |bytes| {
        let Some(records) = Record::decode_all(bytes) else { return };
        let mut state = State::new(34..1000);
        if records.iter().all(|record| state.apply(record).is_ok()) {
            let _ = state.finish();
        }
    });
}
