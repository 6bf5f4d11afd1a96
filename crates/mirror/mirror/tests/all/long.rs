//! What is long costs by its extents: no work per block.

use bytes::Bytes;
use ebb_mirror::open::{Accept, Medium, create, open};
use ebb_mirror::policy::DiskFacts;
use ebb_mirror::{
    Command, DiskId, DiskOp, Event, Found, Geometry, Mirror, MirrorId, Reply, Request, Settings, Side, Speed,
    Spent,
};
use ebb_types::{Bug, Moment};
use std::collections::VecDeque;

const BYTES: u64 = 6 << 30;
/// What a request of 32 bits can hold.
const LONGEST: u64 = (1 << 20) - 1;

/// A new disk, as far as it is read when the mirror opens.
struct New(Vec<(u64, Bytes)>);

impl Medium for New {
    fn size(&self) -> u64 {
        BYTES
    }

    fn read(&mut self, offset: u64, bytes: u64) -> Result<Bytes, String> {
        let mut data = vec![0; bytes as usize];
        for (at, content) in &self.0 {
            let (first, end) = ((*at).max(offset), (at + content.len() as u64).min(offset + bytes));
            if first < end {
                let part = &content[(first - at) as usize..(end - at) as usize];
                data[(first - offset) as usize..(end - offset) as usize].copy_from_slice(part);
            }
        }
        Ok(data.into())
    }
}

/// Carries commands out at once. Returns how many operations the disks got, and the replies.
fn carry_out(mirror: &mut Mirror, out: &mut Vec<Command>) -> (usize, Vec<Reply>) {
    let (mut queue, mut ops, mut replies) = (VecDeque::from(std::mem::take(out)), 0, Vec::new());
    while let Some(command) = queue.pop_front() {
        match command {
            Command::Disk { side, token, op } => {
                ops += 1;
                let found = match op {
                    DiskOp::Read { bytes, .. } => Found::Data(Bytes::from(vec![0; bytes as usize])),
                    DiskOp::Status { bytes, .. } => Found::Extents(vec![(bytes, true)]),
                    _ => Found::Done,
                };
                mirror.on(Moment::ZERO, Event::Done { side, token, found, spent: Spent::default() }, out);
                queue.extend(out.drain(..));
            }
            Command::Reply { reply, .. } => replies.push(reply),
            Command::WakeAt(_) => {}
            Command::SetSpeed { .. } | Command::Closed => unreachable!("there was no epoch, and no close"),
            Command::Bug(Bug(what)) => panic!("{what}"),
        }
    }
    (ops, replies)
}

#[test]
fn four_gibibytes_of_zeroes_or_of_status_are_a_few_operations() {
    let geometry = Geometry::common(BYTES, BYTES, 64 << 20).expect("a good geometry");
    let ids = [DiskId([1; 16]), DiskId([2; 16])];
    let [mut a, mut b] = create(MirrorId([0; 16]), "m", ids, geometry).map(New);
    let opened = open([Some(&mut a as &mut dyn Medium), Some(&mut b)], Accept::default()).expect("it is new");
    let mut out = Vec::new();
    let facts = [DiskFacts::default(); 2];
    let mut mirror = Mirror::new(Settings::default(), facts, [Speed::High; 2], opened, &mut out);
    carry_out(&mut mirror, &mut out);
    let mut run = |request| {
        mirror.on(Moment::ZERO, Event::Request { id: 1, request }, &mut out);
        carry_out(&mut mirror, &mut out)
    };
    let zero = |may_trim| Request::Zero { block: 0, count: LONGEST, fua: true, may_trim };
    // The first marks its regions: a write of the map per disk. Then: zeroes and a sync on each.
    for (may_trim, most) in [(true, 2 * 2 + 2 * 2), (false, 2 * 2)] {
        let (ops, replies) = run(zero(may_trim));
        assert!(ops <= most, "{ops} operations");
        assert_eq!(replies, [Reply::Done]);
    }
    let (ops, replies) = run(Request::Status { block: 0, count: LONGEST });
    assert_eq!((ops, replies), (1, vec![Reply::Extents(vec![(LONGEST, true)])]));
    assert!(Side::BOTH.into_iter().all(|side| mirror.logged_blocks(side) == 0));
}
