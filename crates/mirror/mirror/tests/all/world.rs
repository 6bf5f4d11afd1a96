//! Disks in memory, a mirror on them, and what its client may find: every block's content names the write that it comes
//! from.

use bytes::{Bytes, BytesMut};
use ebb_mirror::geometry::MAP_OFFSETS;
use ebb_mirror::open::{Accept, Medium, OpenError, create, open, open_without_counts, replace, superblock};
use ebb_mirror::policy::DiskFacts;
use ebb_mirror::superblock::Other;
use ebb_mirror::{
    BLOCK_BYTES, Command, DiskId, DiskOp, Event, Found, Geometry, IntentMap, Mirror, MirrorId, Own, Parts,
    PlantedBug, Reply, Request, Settings, Side, Speed, Spent, Token,
};
use ebb_testing::search::{Faults, Tally, Transcript, broken};
use ebb_types::{Bug, Moment, Random, mix};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SECTOR: usize = 512;
const SIZE: usize = BLOCK_BYTES as usize;

/// What a power failure leaves of the writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The program alone: what the kernel had is kept.
    Program,
    Power,
}

/// One disk. Writes are lists of blocks; the newest is last.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    durable: BTreeMap<u64, Bytes>,
    cache: Vec<(u64, u64, Bytes)>,
    ended: u64,
    pub dead: bool,
    pub bytes: u64,
}

impl Disk {
    /// How many writes have ended.
    pub fn writes(&self) -> u64 {
        self.ended
    }

    fn block(&self, at: u64) -> Bytes {
        let cached = self.cache.iter().rev().find(|(_, block, _)| *block == at).map(|(_, _, data)| data);
        cached.or_else(|| self.durable.get(&at)).cloned().unwrap_or_else(|| Bytes::from(vec![0; SIZE]))
    }

    fn write(&mut self, offset: u64, pieces: &[Bytes], durable: bool) {
        let mut at = offset / BLOCK_BYTES;
        self.ended += 1;
        for piece in pieces {
            for block in piece.chunks(SIZE) {
                let block = Bytes::copy_from_slice(block);
                if durable {
                    self.cache.retain(|(_, other, _)| *other != at);
                    self.durable.insert(at, block);
                } else {
                    self.cache.push((self.ended, at, block));
                }
                at += 1;
            }
        }
    }

    /// Everything that had ended at that time is durable.
    fn sync(&mut self, until: u64) {
        for (_, at, data) in self.cache.iter().filter(|(ended, _, _)| *ended <= until) {
            self.durable.insert(*at, data.clone());
        }
        self.cache.retain(|(ended, _, _)| *ended > until);
    }

    /// A part of a write reaches the medium: some of its sectors.
    fn tear(&mut self, at: u64, data: &Bytes, random: &mut Random) {
        let old = self.durable.get(&at).cloned().unwrap_or_else(|| Bytes::from(vec![0; SIZE]));
        let mut torn = BytesMut::from(&old[..]);
        let whole = random.below(3);
        for sector in 0..SIZE / SECTOR {
            if whole == 0 || whole == 1 && random.chance(500) {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                torn[range.clone()].copy_from_slice(&data[range]);
            }
        }
        self.durable.insert(at, torn.freeze());
    }
}

impl Medium for &mut Disk {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, bytes: u64) -> Result<Bytes, String> {
        if self.dead {
            return Err("the disk is dead".to_owned());
        }
        let mut data = BytesMut::new();
        (offset / BLOCK_BYTES..(offset + bytes) / BLOCK_BYTES)
            .for_each(|at| data.extend_from_slice(&self.block(at)));
        Ok(data.freeze())
    }
}

/// What a block may contain: the number of a write, 0 for zeroes.
#[derive(Clone, Debug)]
struct Expected {
    /// The last write that was acknowledged, and how many were before.
    acked: u64,
    order: u64,
    /// What it had at the last flush that ended: one of these.
    flushed: BTreeSet<u64>,
    /// Acknowledged since, by order.
    since: BTreeMap<u64, u64>,
    /// In flight, and how often: all zeroes are one number.
    open: BTreeMap<u64, u32>,
    /// Since a crash: any of these, until it is read.
    unknown: BTreeSet<u64>,
}

impl Default for Expected {
    fn default() -> Expected {
        Expected {
            acked: 0,
            order: 0,
            flushed: BTreeSet::from([0]),
            since: BTreeMap::new(),
            open: BTreeMap::new(),
            unknown: BTreeSet::new(),
        }
    }
}

impl Expected {
    fn acknowledge(&mut self, write: u64) {
        self.order += 1;
        self.acked = write;
        self.since.insert(self.order, write);
    }

    /// What had been acknowledged by then is durable.
    fn flush(&mut self, order: u64) {
        if let Some((_, write)) = self.since.range(..=order).next_back() {
            self.flushed = BTreeSet::from([*write]);
            self.since = self.since.split_off(&(order + 1));
        }
    }

    /// What was in flight may have been done or not.
    fn stop(&mut self, stop: Stop) {
        let open: BTreeSet<u64> = std::mem::take(&mut self.open).into_keys().collect();
        let mut may = self.unknown.clone();
        may.extend(&open);
        if !open.is_empty() {
            // What was in flight may be what the block has from now on, and what a flush makes durable.
            self.flushed.extend(&open);
            self.flushed.extend(std::mem::take(&mut self.since).into_values());
        }
        if stop == Stop::Program && self.unknown.is_empty() {
            may.insert(self.acked);
        } else if stop == Stop::Power {
            may.extend(&self.flushed);
            may.extend(self.since.values());
            self.flushed = may.clone();
            self.since.clear();
        }
        if may.len() == 1 && may.contains(&self.acked) {
            self.unknown.clear();
        } else {
            self.unknown = may;
        }
    }

    fn allowed(&self) -> BTreeSet<u64> {
        let mut allowed: BTreeSet<u64> = self.open.keys().copied().collect();
        if self.unknown.is_empty() {
            allowed.insert(self.acked);
        } else {
            allowed.extend(&self.unknown);
        }
        allowed
    }
}

/// A copy of one disk, and what may be found in it.
#[derive(Clone)]
pub struct Image {
    pub disk: Disk,
    /// The numbers of its superblock and its intent map.
    pub notes: (u64, u64),
    /// It says of itself that it has everything.
    pub whole: bool,
    /// What a crash left open is decided by a resync, block by block.
    pub copying: bool,
    /// It was used without the other disk, which had been written this often.
    pub alone_since: Option<u64>,
    expected: BTreeMap<u64, Expected>,
}

struct Asked {
    request: Request,
    write: u64,
    /// At its beginning: what its blocks might contain.
    allowed: BTreeMap<u64, BTreeSet<u64>>,
}

struct Doing {
    side: Side,
    token: Token,
    op: DiskOp,
    /// Writes that had ended when it began.
    ended: u64,
}

pub struct World {
    seed: u64,
    pub random: Random,
    pub faults: Faults,
    pub settings: Settings,
    pub disks: [Disk; 2],
    pub mirror: Option<Mirror>,
    now: Moment,
    due: BTreeMap<(u64, u64), Doing>,
    changing: Option<(u64, Side, Speed)>,
    wake: Option<Moment>,
    next: u64,
    asked: BTreeMap<u64, Asked>,
    expected: BTreeMap<u64, Expected>,
    /// Blocks of which a power failure left parts of several writes: a number of its own for each such content.
    mixtures: BTreeMap<(u64, Vec<u64>), u64>,
    geometry: Geometry,
    /// The last end was orderly, with everything on both disks.
    pub equal: bool,
    pub closed: bool,
    /// At the last end: something was being copied.
    pub copying: bool,
    pub seen: Tally,
    pub transcript: Transcript,
    pub failed_allowed: bool,
    speeds: [Speed; 2],
}

fn word(block: u64, write: u64) -> [u8; 16] {
    let mut word = [0; 16];
    word[..8].copy_from_slice(&write.to_le_bytes());
    word[8..].copy_from_slice(&block.to_le_bytes());
    word
}

pub fn content(block: u64, write: u64) -> Bytes {
    if write == 0 {
        return Bytes::from(vec![0; SIZE]);
    }
    Bytes::from(word(block, write).repeat(SIZE / 16))
}

/// The writes that a block's sectors come from; `None`: a sector is a mixture, or of another block.
fn origin(block: u64, data: &[u8]) -> Option<Vec<u64>> {
    let of = |sector: &[u8]| {
        let write = u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"));
        let expected = if write == 0 { [0; 16] } else { word(block, write) };
        sector.chunks(16).all(|found| found == expected).then_some(write)
    };
    data.chunks(SECTOR).map(of).collect()
}

impl World {
    pub fn new(seed: u64, settings: Settings, log_bytes: u64) -> World {
        let bytes = 16 << 20;
        let geometry = Geometry::common(bytes, bytes, log_bytes).expect("a good geometry");
        let mut disks = [Disk { bytes, ..Disk::default() }, Disk { bytes, ..Disk::default() }];
        let first = create(MirrorId([7; 16]), "test", [DiskId([1; 16]), DiskId([2; 16])], geometry);
        for (disk, writes) in disks.iter_mut().zip(first) {
            writes.into_iter().for_each(|(offset, data)| disk.write(offset, &[data], true));
        }
        World {
            seed,
            random: Random::new(seed),
            faults: Faults::default(),
            settings,
            disks,
            mirror: None,
            now: Moment(1),
            due: BTreeMap::new(),
            changing: None,
            wake: None,
            next: 1,
            asked: BTreeMap::new(),
            expected: BTreeMap::new(),
            mixtures: BTreeMap::new(),
            geometry,
            equal: false,
            closed: false,
            copying: false,
            seen: Tally::new(),
            transcript: Transcript::default(),
            failed_allowed: false,
            speeds: [Speed::High; 2],
        }
    }

    /// A part of a run draws from a source of its own: no fault that is left out before it changes it.
    pub fn begin(&mut self, round: u32, part: u32) {
        self.random = Random::new(mix(self.seed ^ mix(u64::from(round) << 32 | u64::from(part))));
    }

    /// Whether the next fault happens. Then it draws from a source of its own.
    pub fn strikes(&mut self) -> bool {
        let (random, happens) = self.faults.draw(self.seed);
        if happens {
            self.random = random;
        }
        happens
    }

    /// Bits of every logged block rot on this disk; headers stay as they are. Returns how many blocks.
    pub fn rot_log(&mut self, side: Side) -> usize {
        let log = self.geometry.log_at(0) / BLOCK_BYTES
            ..self.geometry.log_at(self.geometry.log_blocks()) / BLOCK_BYTES;
        let disk = &mut self.disks[side.index()];
        let cached = disk.cache.iter_mut().map(|(_, at, data)| (*at, data));
        let blocks = disk.durable.iter_mut().map(|(at, data)| (*at, data)).chain(cached);
        let mut rotten = 0;
        for (_, data) in blocks.filter(|(at, data)| log.contains(at) && !data.starts_with(b"EBB")) {
            let mut bytes = BytesMut::from(&data[..]);
            bytes[100] ^= 4;
            *data = bytes.freeze();
            rotten += 1;
        }
        rotten
    }

    /// Whether both disks are alive.
    pub fn is_whole(&self) -> bool {
        self.disks.iter().all(|disk| !disk.dead)
    }

    /// A new disk takes the place of the dead one.
    pub fn replace(&mut self) {
        let dead = self.disks.iter().position(|disk| disk.dead).expect("one is dead");
        let bytes = self.disks[dead].bytes;
        let side = Side::BOTH[1 - dead];
        let block = superblock(side, &mut &mut self.disks[1 - dead]).expect("the survivor has one");
        self.next += 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.next.to_le_bytes());
        self.disks[dead] = Disk { bytes, ..Disk::default() };
        for (disk, writes) in [dead, 1 - dead].into_iter().zip(replace(&block, DiskId(id))) {
            writes.into_iter().for_each(|(offset, data)| self.disks[disk].write(offset, &[data], true));
        }
        self.speeds[dead] = Speed::High;
        self.note(|| format!("disk {dead} is replaced"));
    }

    pub fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now.0 as f64 / 1e9;
        self.transcript.note(|| format!("{now:.6} {}", line()));
    }

    /// Whether this disk sleeps. It must not be touched.
    fn sleeps(&self, side: Side) -> bool {
        self.settings.sleep.is_some() && self.speeds[side.index()] == Speed::Low
    }

    /// Returns what is copied, and whether the disk that it is copied from is ahead.
    pub fn open(&mut self, accept: Accept) -> Result<Option<(Side, bool)>, OpenError> {
        if self.settings.sleep.is_some() {
            // A read wakes a sleeping disk.
            self.speeds = [Speed::High; 2];
        }
        let [a, b] = &mut self.disks;
        let (dead_a, dead_b) = (a.dead, b.dead);
        let (mut a, mut b) = (a, b);
        let media = [
            if dead_a { None } else { Some(&mut a as &mut dyn Medium) },
            if dead_b { None } else { Some(&mut b as &mut dyn Medium) },
        ];
        let opened = match self.settings.planted {
            Some(PlantedBug::IgnoreCounts) => open_without_counts(media, accept)?,
            _ => open(media, accept)?,
        };
        let copied = opened.copy.as_ref().map(|copy| (copy.from, copy.ahead));
        let mut out = Vec::new();
        let equal = std::mem::take(&mut self.equal) && self.disks.iter().all(|disk| !disk.dead);
        assert!(!equal || opened.copy.is_none(), "equal disks are copied: {:?}", opened.copy);
        if let Some(copy) = &opened.copy {
            let (from, regions) = (copy.from, copy.regions.len());
            self.count("resync");
            self.note(|| format!("opened: {regions} regions from {from:?}"));
        }
        self.mirror =
            Some(Mirror::new(self.settings, [DiskFacts::default(); 2], self.speeds, opened, &mut out));
        self.closed = false;
        self.carry_out(out);
        Ok(copied)
    }

    pub fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.mirror.as_mut().expect("it runs").on(self.now, event, &mut out);
        self.carry_out(out);
    }

    fn carry_out(&mut self, out: Vec<Command>) {
        for command in out {
            match command {
                Command::Disk { side, token, op } => {
                    assert!(!self.sleeps(side), "a sleeping disk is touched: {}", brief(&op));
                    let at = self.now.0 + 20_000 + self.random.below(3_000_000);
                    self.next += 1;
                    let ended = self.disks[side.index()].ended;
                    self.note(|| format!("{side:?} {token:?} {}", brief(&op)));
                    self.due.insert((at, self.next), Doing { side, token, op, ended });
                }
                Command::SetSpeed { side, speed } => {
                    assert!(self.changing.is_none(), "two disks change their speed");
                    assert!(
                        !self.due.values().any(|doing| doing.side == side),
                        "a disk that changes is not idle"
                    );
                    assert!(!self.sleeps(!side), "a disk changes its speed while the other one sleeps");
                    self.note(|| format!("{side:?} changes to {speed:?}"));
                    self.count("change of speed");
                    let at = self.now.0 + 1_000_000 + self.random.below(40_000_000);
                    self.changing = Some((at, side, speed));
                }
                Command::Reply { id, reply } => self.replied(id, reply),
                Command::WakeAt(at) => self.wake = at,
                Command::Closed => self.closed = true,
                Command::Bug(Bug(what)) => panic!("{what}"),
            }
        }
    }

    /// The next thing happens. `false`: nothing is due.
    pub fn step(&mut self) -> bool {
        let op = self.due.first_key_value().map(|((at, _), _)| *at);
        let change = self.changing.map(|(at, _, _)| at);
        let wake = self.wake.map(|at| at.0);
        let Some(at) = [op, change, wake].into_iter().flatten().min() else { return false };
        self.now = Moment(self.now.0.max(at));
        if op == Some(at) {
            let (_, doing) = self.due.pop_first().expect("one is due");
            self.end(doing);
        } else if change == Some(at) {
            let (_, side, speed) = self.changing.take().expect("one changes");
            let changed = self.random.chance(950);
            // What cannot be woken on demand is woken by the first access.
            if changed || self.sleeps(side) {
                self.speeds[side.index()] = speed;
            }
            self.note(|| format!("{side:?} has changed: {changed}"));
            self.event(Event::Changed { side, changed });
        } else {
            self.wake = None;
            self.event(Event::Tick);
        }
        true
    }

    fn end(&mut self, doing: Doing) {
        let Doing { side, token, op, ended } = doing;
        let disk = &mut self.disks[side.index()];
        let found = if disk.dead {
            Found::Failed
        } else {
            match op {
                DiskOp::Read { offset, bytes } => {
                    let mut data = BytesMut::new();
                    let blocks = offset / BLOCK_BYTES..(offset + bytes) / BLOCK_BYTES;
                    blocks.for_each(|at| data.extend_from_slice(&disk.block(at)));
                    Found::Data(data.freeze())
                }
                DiskOp::Write { offset, pieces, durable } => {
                    disk.write(offset, &pieces, durable);
                    Found::Done
                }
                DiskOp::Zero { offset, bytes, .. } => {
                    disk.write(offset, &[Bytes::from(vec![0; bytes as usize])], false);
                    Found::Done
                }
                DiskOp::Sync => {
                    disk.sync(ended);
                    Found::Done
                }
                DiskOp::Status { bytes, .. } => Found::Extents(vec![(bytes, false)]),
            }
        };
        let busy = Duration::from_micros(self.random.below(6_000));
        let spent = Spent { parts: Parts { transfer: busy, ..Parts::default() } };
        self.note(|| format!("{side:?} {token:?} ends"));
        self.event(Event::Done { side, token, found, spent });
    }

    /// Sends a client's request.
    pub fn ask(&mut self, request: Request) {
        self.next += 1;
        let id = self.next;
        let mut allowed = BTreeMap::new();
        let (first, count) = range(&request);
        let mut request = request;
        if let Request::Write { block, payload, .. } = &mut request {
            let mut data = BytesMut::new();
            (*block..*block + count).for_each(|block| data.extend_from_slice(&content(block, id)));
            *payload = data.freeze();
        }
        let write = if matches!(request, Request::Zero { .. }) { 0 } else { id };
        for block in first..first + count {
            let expected = self.expected.entry(block).or_default();
            match request {
                Request::Read { .. } => drop(allowed.insert(block, expected.allowed())),
                Request::Write { .. } | Request::Zero { .. } => *expected.open.entry(write).or_default() += 1,
                Request::Flush | Request::Status { .. } => {}
            }
        }
        if matches!(request, Request::Flush) {
            allowed = self.expected.iter().map(|(block, e)| (*block, BTreeSet::from([e.order]))).collect();
        }
        self.note(|| format!("ask {id} {}", brief_request(&request)));
        self.asked.insert(id, Asked { request: request.clone(), write, allowed });
        self.event(Event::Request { id, request });
    }

    pub fn in_flight(&self) -> usize {
        self.asked.len()
    }

    fn replied(&mut self, id: u64, reply: Reply) {
        self.note(|| format!("reply {id}"));
        let Asked { request, write, mut allowed } = self.asked.remove(&id).expect("it was asked once");
        let (first, count) = range(&request);
        if reply == Reply::Failed {
            assert!(self.failed_allowed, "{} failed", brief_request(&request));
            self.count("a request failed");
            return;
        }
        if is_write(&request) {
            // The client of the earlier one may have gone: its write must not come later.
            let overtaken = self.asked.range(..id).find(|(_, earlier)| {
                let (other, blocks) = range(&earlier.request);
                is_write(&earlier.request) && other < first + count && first < other + blocks
            });
            if let Some((earlier, _)) = overtaken {
                broken("order", format!("write {id} has overtaken write {earlier}"));
            }
        }
        match request {
            Request::Read { .. } => {
                let Reply::Data(pieces) = reply else { panic!("a read gets data") };
                let data = pieces.concat();
                assert_eq!(data.len() as u64, count * BLOCK_BYTES, "as much as was asked for");
                for (block, data) in (first..first + count).zip(data.chunks(SIZE)) {
                    let now = self.expected[&block].allowed();
                    let mut may = allowed.remove(&block).expect("it was noted");
                    may.extend(now);
                    let found = self.value(block, data, &may);
                    let expected = self.expected.get_mut(&block).expect("it was asked for");
                    if !expected.unknown.is_empty() && expected.open.is_empty() {
                        // What was read once stays.
                        expected.unknown.clear();
                        expected.acknowledge(found);
                        expected.flushed = BTreeSet::from([found]);
                        expected.since.clear();
                    }
                }
            }
            Request::Write { fua, .. } | Request::Zero { fua, .. } => {
                for block in first..first + count {
                    let expected = self.expected.get_mut(&block).expect("it was written");
                    let open = expected.open.get_mut(&write).expect("it was in flight");
                    *open -= 1;
                    if *open == 0 {
                        expected.open.remove(&write);
                    }
                    expected.acknowledge(write);
                    expected.unknown.clear();
                    if fua {
                        expected.flush(expected.order);
                    }
                }
            }
            Request::Flush => {
                for (block, order) in allowed {
                    let expected = self.expected.get_mut(&block).expect("it was noted");
                    expected.flush(*order.first().expect("one"));
                }
            }
            Request::Status { .. } => {}
        }
    }

    /// The number of the write that the block has; it must be one of those. A block that a power failure tore has a
    /// number of its own from the first time on that it is read.
    fn value(&mut self, block: u64, data: &[u8], may: &BTreeSet<u64>) -> u64 {
        let Some(sectors) = origin(block, data) else {
            broken("content", format!("block {block} has what was never written"));
        };
        let first = sectors[0];
        let found = if sectors.iter().all(|write| *write == first) {
            Some(first)
        } else if let Some(known) = self.mixtures.get(&(block, sectors.clone())) {
            Some(*known)
        } else {
            let parts = |write: &u64| {
                let mixture = self.mixtures.iter().find(|(_, number)| *number == write);
                mixture.map_or_else(|| vec![*write; sectors.len()], |((_, sectors), _)| sectors.clone())
            };
            let may: Vec<Vec<u64>> = may.iter().map(parts).collect();
            let torn = may.len() > 1
                && sectors.iter().enumerate().all(|(n, write)| may.iter().any(|may| may[n] == *write));
            torn.then(|| {
                self.next += 1;
                self.mixtures.insert((block, sectors.clone()), self.next);
                self.next
            })
        };
        let is_new = found.is_some_and(|found| self.mixtures.values().any(|number| *number == found));
        match found {
            Some(found) if may.contains(&found) || is_new && may.len() > 1 => found,
            _ => broken("content", format!("block {block} has {sectors:?} and may have {may:?}")),
        }
    }

    /// What this disk has now, as a copy of its file would.
    pub fn image(&mut self, side: Side) -> Image {
        let mut disk = self.disks[side.index()].clone();
        disk.sync(u64::MAX);
        let block = superblock(side, &mut &mut disk).expect("it has one");
        let slots = MAP_OFFSETS.map(|at| (&mut disk).read(at, BLOCK_BYTES).expect("it lives"));
        let map = IntentMap::newest([&slots[0], &slots[1]], block.mirror, &block.geometry);
        let mut expected = self.expected.clone();
        expected.values_mut().for_each(|expected| expected.stop(Stop::Program));
        let copying = self.mirror.as_ref().map_or(self.copying, |mirror| mirror.status().copying_bytes > 0);
        Image {
            notes: (block.written, map.map_or(0, |(written, _)| written)),
            whole: block.own == Own::InSync,
            copying,
            alone_since: (block.other != Other::InSync).then_some(self.disks[(!side).index()].ended),
            disk,
            expected,
        }
    }

    /// Only what this image has is to be found from now on.
    pub fn expect(&mut self, image: &Image) {
        self.expected.clone_from(&image.expected);
    }

    /// The program or the machine stops. What was asked for may have been done or not.
    pub fn crash(&mut self, stop: Stop) {
        self.note(|| format!("crash: {stop:?}"));
        self.copying = self.mirror.take().is_some_and(|mirror| mirror.status().copying_bytes > 0);
        for (_, doing) in std::mem::take(&mut self.due) {
            let disk = &mut self.disks[doing.side.index()];
            if let DiskOp::Write { offset, pieces, .. } = doing.op
                && !disk.dead
                && self.random.chance(500)
            {
                let whole = pieces.concat();
                for (n, block) in whole.chunks(SIZE).enumerate() {
                    if self.random.chance(700) {
                        disk.cache.push((
                            u64::MAX,
                            offset / BLOCK_BYTES + n as u64,
                            Bytes::copy_from_slice(block),
                        ));
                    }
                }
            }
        }
        for disk in &mut self.disks {
            let mut cache = std::mem::take(&mut disk.cache);
            if stop == Stop::Power {
                for n in (1..cache.len()).rev() {
                    let other = self.random.index(n + 1);
                    if cache[n].1 != cache[other].1 {
                        cache.swap(n, other);
                    }
                }
            }
            for (ended, at, data) in cache {
                match stop {
                    Stop::Program if ended != u64::MAX => drop(disk.durable.insert(at, data)),
                    _ => disk.tear(at, &data, &mut self.random),
                }
            }
        }
        self.asked.clear();
        (self.changing, self.wake) = (None, None);
        self.expected.values_mut().for_each(|expected| expected.stop(stop));
    }
}

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. } | Request::Zero { .. })
}

fn range(request: &Request) -> (u64, u64) {
    match request {
        Request::Read { block, count } => (*block, u64::from(*count)),
        Request::Write { block, payload, .. } => (*block, payload.len() as u64 / BLOCK_BYTES),
        Request::Zero { block, count, .. } | Request::Status { block, count } => (*block, *count),
        Request::Flush => (0, 0),
    }
}

fn brief_request(request: &Request) -> String {
    let (first, count) = range(request);
    let what = match request {
        Request::Read { .. } => "read",
        Request::Write { fua: true, .. } => "write fua",
        Request::Write { .. } => "write",
        Request::Zero { .. } => "zero",
        Request::Status { .. } => "status",
        Request::Flush => "flush",
    };
    format!("{what} {count} at {first}")
}

fn brief(op: &DiskOp) -> String {
    match op {
        DiskOp::Read { offset, bytes } => format!("read {} at {}", bytes / BLOCK_BYTES, offset / BLOCK_BYTES),
        DiskOp::Write { offset, pieces, durable } => {
            let blocks: usize = pieces.iter().map(|piece| piece.len() / SIZE).sum();
            format!("write {blocks} at {} {}", offset / BLOCK_BYTES, if *durable { "durably" } else { "" })
        }
        DiskOp::Zero { offset, bytes, .. } => {
            format!("zero {} at {}", bytes / BLOCK_BYTES, offset / BLOCK_BYTES)
        }
        DiskOp::Sync => "sync".to_owned(),
        DiskOp::Status { .. } => "status".to_owned(),
    }
}
