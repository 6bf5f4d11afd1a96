//! Every reason not to start a mirror, and what is accepted: nothing is written by any of them.

use bytes::Bytes;
use ebb_mirror::geometry::MAP_OFFSETS;
use ebb_mirror::open::{Accept, Medium, OpenError, Opened, create, open, replace, superblock};
use ebb_mirror::policy::DiskFacts;
use ebb_mirror::superblock::{Other, Own, Superblock};
use ebb_mirror::{
    BLOCK_BYTES, Command, DiskId, DiskOp, Event, Found, Geometry, IntentMap, Mirror, MirrorId, Settings,
    Side, Speed, Spent, SuperblockError,
};
use ebb_types::Moment;
use std::collections::{BTreeMap, VecDeque};

const BYTES: u64 = 32 << 20;

#[derive(Clone)]
struct Disk {
    blocks: BTreeMap<u64, Bytes>,
    bytes: u64,
    unreadable: bool,
}

impl Medium for Disk {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, bytes: u64) -> Result<Bytes, String> {
        if self.unreadable {
            return Err("the disk does not answer".to_owned());
        }
        let zero = Bytes::from(vec![0; BLOCK_BYTES as usize]);
        let blocks = (offset..offset + bytes).step_by(BLOCK_BYTES as usize);
        let data: Vec<Bytes> =
            blocks.map(|at| self.blocks.get(&at).cloned().unwrap_or(zero.clone())).collect();
        Ok(data.concat().into())
    }
}

impl Disk {
    fn new() -> Disk {
        Disk { blocks: BTreeMap::new(), bytes: BYTES, unreadable: false }
    }

    fn write(&mut self, writes: Vec<(u64, Bytes)>) {
        for (offset, data) in writes {
            for (n, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
                self.blocks.insert(offset + n as u64 * BLOCK_BYTES, Bytes::copy_from_slice(block));
            }
        }
    }

    /// Changes what the disk says of itself.
    fn set(&mut self, side: Side, change: impl FnOnce(&mut Superblock)) {
        let mut block = superblock(side, self).expect("it has one");
        (block.written, block.events) = (block.written + 1, block.events + 1);
        change(&mut block);
        self.write(vec![(block.slot() as u64 * BLOCK_BYTES, Bytes::copy_from_slice(&block.encode()))]);
    }
}

fn mirror(id: u8, log: u64) -> [Disk; 2] {
    let geometry = Geometry::common(BYTES, BYTES, log).expect("a good geometry");
    let ids = [DiskId([id; 16]), DiskId([id + 1; 16])];
    create(MirrorId([id; 16]), "m", ids, geometry).map(|writes| {
        let mut disk = Disk::new();
        disk.write(writes);
        disk
    })
}

fn both(disks: &mut [Disk; 2]) -> Result<Opened, OpenError> {
    let [a, b] = disks;
    open([Some(a), Some(b)], Accept::default())
}

fn refusal(disks: &mut [Disk; 2]) -> OpenError {
    both(disks).err().expect("it is refused")
}

#[test]
fn a_new_mirror_opens_and_copies_nothing() {
    let opened = both(&mut mirror(1, 1 << 20)).expect("it opens");
    assert!(opened.copy.is_none() && opened.lost.is_none());
}

#[test]
fn disks_that_do_not_belong_together_are_refused() {
    let [a, b] = mirror(1, 1 << 20);
    let [c, d] = mirror(5, 1 << 20);
    assert!(matches!(refusal(&mut [a.clone(), d]), OpenError::TwoMirrors { .. }));
    assert_eq!(
        refusal(&mut [b.clone(), a.clone()]),
        OpenError::Exchanged { expected: Side::A, found: Side::B }
    );
    let blank = OpenError::Superblock { side: Side::B, error: SuperblockError::NotAMirror };
    assert_eq!(refusal(&mut [a.clone(), Disk::new()]), blank);
    let mut short = b.clone();
    short.bytes -= 4 << 20;
    assert!(matches!(refusal(&mut [a.clone(), short]), OpenError::Truncated { side: Side::B, .. }));
    let mut dead = b;
    dead.unreadable = true;
    assert!(matches!(refusal(&mut [a, dead]), OpenError::Unreadable { side: Side::B, offset: 0, .. }));
    drop(c);
}

#[test]
fn a_disk_that_was_replaced_does_not_come_back() {
    let mut disks = mirror(1, 1 << 20);
    let old = disks[1].clone();
    let block = superblock(Side::A, &mut disks[0]).expect("it has one");
    let [new, own] = replace(&block, DiskId([9; 16]));
    disks[1] = Disk::new();
    disks[1].write(new);
    disks[0].write(own);
    let copy = both(&mut disks).expect("it opens").copy.expect("everything is copied");
    assert_eq!((copy.from, copy.ahead, copy.regions.len() as u32), (Side::A, true, block.geometry.regions()));
    disks[1] = old;
    assert_eq!(refusal(&mut disks), OpenError::Replaced { side: Side::B });
}

#[test]
fn a_disk_that_fell_behind_is_copied_to_and_never_from() {
    let mut disks = mirror(1, 1 << 20);
    disks[0].set(Side::A, |block| block.other = Other::Away { since_events: 2 });
    disks[1].set(Side::B, |block| block.own = Own::Behind { since_events: 2 });
    let copy = both(&mut disks).expect("it opens").copy.expect("the other one is ahead");
    assert_eq!((copy.from, copy.ahead), (Side::A, true));
    let [a, b] = &mut disks;
    let alone = open([None, Some(b)], Accept { degraded: true, loss: false });
    assert_eq!(alone.err(), Some(OpenError::Stale { side: Side::B }));
    assert!(open([None, Some(b)], Accept { degraded: true, loss: true }).is_ok());
    a.set(Side::A, |block| block.own = Own::Behind { since_events: 2 });
    assert_eq!(refusal(&mut disks), OpenError::Split);
}

/// Whatever `clean` says: `notes` more were written to B than to A, and maps up to this number.
fn later(notes: u64, map_written: u64) -> [Disk; 2] {
    let mut disks = mirror(1, 1 << 20);
    for _ in 0..notes {
        disks[1].set(Side::B, |_| {});
    }
    let block = superblock(Side::B, &mut disks[1]).expect("it has one");
    for written in 3..=map_written {
        let map = IntentMap::new(block.mirror, &block.geometry).encode(written);
        disks[1].write(vec![(MAP_OFFSETS[IntentMap::slot(written)], map)]);
    }
    disks
}

#[test]
fn an_older_copy_is_copied_to_whatever_it_says_of_itself() {
    for (notes, map_written, is_all) in
        [(1, 2, false), (2, 2, false), (0, 3, false), (0, 4, true), (2, 9, true), (900, 3, false)]
    {
        let mut disks = later(notes, map_written);
        let opened = both(&mut disks).expect("it opens");
        let copy = opened.copy.expect("A is older");
        let all = opened.geometry.regions() as usize;
        assert_eq!((copy.from, copy.ahead), (Side::B, true), "{notes} notes, map {map_written}");
        assert_eq!(copy.regions.len(), if is_all { all } else { 0 }, "{notes} notes, map {map_written}");
    }
}

#[test]
fn what_an_older_copy_says_of_the_other_disk_is_past() {
    let mut disks = later(5, 2);
    disks[0].set(Side::A, |block| block.other = Other::Away { since_events: 2 });
    let copy = both(&mut disks).expect("it opens").copy.expect("A is older");
    assert_eq!((copy.from, copy.ahead), (Side::B, true));
    // It may have been used alone since then.
    disks[0].set(Side::A, |block| block.other = Other::Lost { since_events: 2 });
    assert_eq!(refusal(&mut disks), OpenError::Split);
}

#[test]
fn neither_disk_counts_if_the_newer_one_fell_behind_and_the_other_does_not_know() {
    let mut disks = later(2, 2);
    disks[1].set(Side::B, |block| block.own = Own::Behind { since_events: 2 });
    assert_eq!(refusal(&mut disks), OpenError::Older { side: Side::A });
    disks[0].set(Side::A, |block| block.other = Other::Away { since_events: 2 });
    assert_eq!(refusal(&mut disks), OpenError::Older { side: Side::A }, "it was put back later");
    disks[0].set(Side::A, |_| {});
    assert!(both(&mut disks).is_ok(), "B's note of leaving may have been under way");
}

/// The mirror starts, and stops when all that it waits for is a map on this disk.
fn start_without_map_on(disks: &mut [Disk; 2], slow: Side) {
    let opened = both(disks).expect("what was started is started again");
    let mut out = Vec::new();
    let mut mirror =
        Mirror::new(Settings::default(), [DiskFacts::default(); 2], [Speed::High; 2], opened, &mut out);
    let mut writes = VecDeque::from(out);
    while let Some(command) = writes.pop_front() {
        let Command::Disk { side, token, op } = command else { continue };
        let found = match op {
            DiskOp::Write { offset, .. } if side == slow && MAP_OFFSETS.contains(&offset) => continue,
            DiskOp::Write { offset, pieces, .. } => {
                disks[side.index()].write(vec![(offset, pieces.concat().into())]);
                Found::Done
            }
            DiskOp::Read { offset, bytes } => {
                Found::Data(disks[side.index()].read(offset, bytes).expect("it is readable"))
            }
            _ => Found::Done,
        };
        let mut out = Vec::new();
        mirror.on(Moment(1), Event::Done { side, token, found, spent: Spent::default() }, &mut out);
        writes.extend(out);
    }
}

#[test]
fn starts_that_are_cut_short_do_not_lead_the_maps_apart() {
    let cases = [mirror(1, 1 << 20), later(2, 2)];
    for (disks, slow) in cases.iter().flat_map(|disks| Side::BOTH.map(|slow| (disks, slow))) {
        let mut disks = disks.clone();
        for _ in 0..5 {
            start_without_map_on(&mut disks, slow);
        }
        both(&mut disks).expect("what was started is started again");
    }
}

#[test]
fn a_replaced_disk_does_not_come_back_after_the_rebuild_either() {
    let mut disks = mirror(1, 1 << 20);
    let old = disks[1].clone();
    let block = superblock(Side::A, &mut disks[0]).expect("it has one");
    let [new, own] = replace(&block, DiskId([9; 16]));
    disks[1] = Disk::new();
    disks[1].write(new);
    disks[0].write(own);
    disks[1].set(Side::B, |block| block.own = Own::InSync);
    disks[0].set(Side::A, |block| block.other = Other::InSync);
    assert!(both(&mut disks).is_ok());
    disks[1] = old;
    assert_eq!(refusal(&mut disks), OpenError::Replaced { side: Side::B });
}

#[test]
fn a_missing_disk_is_accepted_if_the_user_or_the_survivor_says_so() {
    let mut disks = mirror(1, 1 << 20);
    let [a, _] = &mut disks;
    assert_eq!(open([Some(a), None], Accept::default()).err(), Some(OpenError::Missing { side: Side::B }));
    let opened = open([Some(a), None], Accept { degraded: true, loss: false }).expect("it is accepted");
    assert_eq!(opened.lost, Some(Side::B));
    a.set(Side::A, |block| block.other = Other::Lost { since_events: 2 });
    assert!(open([Some(a), None], Accept::default()).is_ok());
    assert_eq!(open([None, None], Accept::default()).err(), Some(OpenError::NoDisk));
    // It returns: what it missed is copied.
    let copy = both(&mut disks).expect("it opens").copy.expect("it missed something");
    assert_eq!((copy.from, copy.ahead), (Side::A, true));
}

#[test]
fn layouts_that_differ_are_refused() {
    let [a, _] = mirror(1, 1 << 20);
    let [_, mut b] = mirror(1, 2 << 20);
    b.bytes = BYTES;
    assert_eq!(refusal(&mut [a, b]), OpenError::Layouts);
}

#[test]
fn every_refusal_says_what_to_do() {
    let mut disks = mirror(1, 1 << 20);
    let [a, b] = &mut disks;
    let missing = open([Some(a), None], Accept::default()).err().expect("refused").to_string();
    assert!(missing.contains("--degraded"), "{missing}");
    b.set(Side::B, |block| block.own = Own::Behind { since_events: 2 });
    let stale = open([None, Some(b)], Accept::default()).err().expect("refused").to_string();
    assert!(stale.contains("--force"), "{stale}");
}
