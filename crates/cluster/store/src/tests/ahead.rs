//! Zeroes are written ahead of the records of the open segment.

use super::*;
use std::io::IoSlice;

const FIRST: &str = "segments/00000001.seg";

/// One block; refused only if the disk is full.
fn write(store: &mut StoreCore, seq: u64) -> Outcome {
    let (record, payload) = data(1, seq as u32, 0, 1, version(1, seq));
    one(
        store,
        Op::Apply { role: OFFLOAD, record, payload, must_fit: true, repair: None, committed: Version::ZERO },
    )
}

/// Where the records of the first segment end.
fn written(store: &StoreCore) -> u64 {
    store.shared.index().segments[&1].bytes
}

#[test]
fn most_appends_leave_a_segments_length_as_it_is() {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let mut lengths = BTreeSet::new();
    for seq in 1..=5 {
        assert_eq!(write(&mut store, seq), Outcome::Applied);
        lengths.insert(disk.len(FIRST));
        assert!(written(&store) <= disk.len(FIRST));
    }
    assert!(lengths.len() <= 2, "{lengths:?}");
    // A sealed segment has nothing but records, durably.
    while !disk.files().contains(&"segments/00000002.seg".to_string()) {
        write(&mut store, 6 + disk.operations());
    }
    assert_eq!(disk.len(FIRST), written(&store));
    assert_eq!(disk.crash(1).len(FIRST), written(&store));
}

#[test]
fn zeroes_ahead_are_cut_off_at_a_start_and_are_no_torn_write() {
    for torn in [0, 700] {
        let disk = MemDisk::new();
        let (mut store, _) = open(&disk).unwrap();
        write(&mut store, 1);
        let end = written(&store);
        assert!(disk.len(FIRST) > end + torn, "there are zeroes behind the record");
        drop(store);
        if torn > 0 {
            let file = disk.open(FIRST, false).unwrap();
            file.write(&mut [IoSlice::new(&vec![7; torn as usize])], end).unwrap();
        }
        let (store, recovered) = open(&disk).unwrap();
        assert_eq!((recovered.torn_bytes, disk.len(FIRST), written(&store)), (torn, end, end));
    }
}

#[test]
fn a_disk_without_room_for_zeroes_takes_records_as_long_as_they_fit() {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    assert_eq!(write(&mut store, 1), Outcome::Applied);
    // The zeroes end in the middle of the fourth record; what they take is what it needs.
    disk.set_capacity(Some(disk.used()));
    let taken = (2..).take_while(|seq| write(&mut store, *seq) == Outcome::Applied).count() as u64;
    assert_eq!(taken, 3);
    drop(store);
    disk.set_capacity(None);
    let (mut store, _) = open(&disk).unwrap();
    for seq in 1..=1 + taken {
        assert!(matches!(read(&mut store, OFFLOAD, 1, seq as u32, 0, 1), Outcome::Read(_)), "{seq}");
    }
}
