//! Timing model of a chunk server's store: the disk accesses of the production store for each command.
//!
//! - A small record, and every offload record, is appended to a segment. All that wait are one write: group commit.
//! - A large replica record goes to its chunk file first, if it overwrites nothing there, and then its head to the
//!   segment.
//! - When segments have grown long, data that is in segments only is moved to the chunk files, chunk by chunk, while no
//!   command waits; all of it before the server sleeps. Records that continue where the last one ended are written
//!   together.
//! - Reads and fetches access the data's position: no data is cached, as in the testbed [Sierra §4.3].
//! - The version of each block is known in memory: listings and comparisons cost no access. The real store keeps the
//!   index of all its segments in memory, and the most recently used metadata pages of the chunk files.
//!
//! Thresholds are those of [`ebb_store::Config`]. Segments take the first part of the disk, chunk files are spread over
//! the rest. The first write to a chunk costs two more moves of the arm, for the new file.
//!
//! The data may be on a mirror of two disks ([`pair`](super::pair)). Then group commits are its durable writes, one at
//! a time.

use crate::engine::{MILLI, Slab};
use crate::request::device::Device;
use crate::request::disk::Access;
use crate::request::measure::Gauge;
use crate::request::store::LengthStore;
use ebb_chunkserver::{StoreCommand, StoreOutcome, StoreToken};
use ebb_store::{BATCH_BYTES, OVERDUE};
use ebb_types::mix;
use ebb_types::{BLOCK_BYTES, ChunkId, Content, GroupId, Record, Role, ServerId};
use std::collections::{BTreeMap, VecDeque};

/// Fraction of the disk used for segments.
const SEGMENTS_SHARE: u64 = 64;
/// A record's head in a segment, and each block's checksum.
const HEAD_BYTES: u64 = 80;
/// A page of a chunk file's metadata.
const PAGE_BYTES: u64 = 4096;
/// Time for a query about versions.
const QUESTION: u64 = MILLI / 20;
/// Moves of the arm for a new file: its directory and the journal.
const NEW_FILE_HOPS: u32 = 2;

/// A record being written.
#[derive(Debug)]
pub struct Writing {
    token: StoreToken,
    role: Role,
    record: Record,
    /// Drops of its role and group before it: a later one voids it.
    drops: u32,
    bytes: u64,
}

/// Work for the disk.
enum Job {
    Read {
        token: StoreToken,
        command: StoreCommand,
        access: Access,
    },
    /// About versions; no disk access.
    Question {
        token: StoreToken,
        command: StoreCommand,
    },
    /// A group commit; filled when its turn comes.
    Commit(Vec<Writing>),
    Direct {
        writing: Writing,
        access: Access,
    },
    Settle(Access),
}

/// A chunk's data that is in segments only.
#[derive(Default)]
struct Unsettled {
    bytes: u64,
    hops: u32,
    /// The block after the last record: one that continues there is written with it.
    end: Option<u32>,
}

pub struct Machine {
    pub disk: Device,
    pub store: LengthStore,
    chunk_bytes: u64,
    segments_bytes: u64,
    chunk_places: u64,
    jobs: Slab<Job>,
    /// Records that wait for the next group commit.
    log: VecDeque<Writing>,
    /// On a mirror also while it is in progress.
    commit_waits: bool,
    log_at: u64,
    unsettled: BTreeMap<(GroupId, ChunkId), Unsettled>,
    unsettled_bytes: u64,
    direct_bytes: u64,
    checkpoint_bytes: u64,
    /// Jobs in progress; of these, disk accesses.
    in_service: usize,
    accesses: usize,
    /// When the disk is checked next in any case.
    pub wake_at: u64,
    /// The flushes that end when everything is in its chunk file.
    pub flushing: Vec<StoreToken>,
    /// Store commands in flight: all, and those for offload.
    pub queue: Gauge,
    pub offload_queue: Gauge,
}

impl Machine {
    pub fn new(server: ServerId, disk: Device, chunk_bytes: u32) -> Machine {
        let capacity_bytes = disk.capacity_bytes();
        let config = ebb_store::Config::new(0, server, ebb_types::StoreId(1));
        let segments_bytes = capacity_bytes / SEGMENTS_SHARE;
        Machine {
            disk,
            store: LengthStore::default(),
            chunk_bytes: chunk_bytes.into(),
            segments_bytes,
            chunk_places: ((capacity_bytes - segments_bytes) / u64::from(chunk_bytes)).max(1),
            jobs: Slab::default(),
            log: VecDeque::new(),
            commit_waits: false,
            log_at: 0,
            unsettled: BTreeMap::new(),
            unsettled_bytes: 0,
            direct_bytes: config.direct_bytes as u64,
            checkpoint_bytes: config.checkpoint_bytes,
            in_service: 0,
            accesses: 0,
            wake_at: 0,
            flushing: Vec::new(),
            queue: Gauge::default(),
            offload_queue: Gauge::default(),
        }
    }

    fn place(&self, role: Role, chunk: ChunkId, first: u32) -> u64 {
        let key = mix(chunk.object.0 ^ mix(u64::from(chunk.index)));
        let offset = u64::from(first) * BLOCK_BYTES as u64;
        match role {
            Role::Replica => self.segments_bytes + key % self.chunk_places * self.chunk_bytes + offset,
            Role::Offload { .. } => mix(key ^ u64::from(first / 256)) % self.segments_bytes,
        }
    }

    /// Accepts a command, which ends in one answer of [`Machine::end`]. Returns a job without disk access, and when it
    /// is done.
    pub fn submit(&mut self, now: u64, token: StoreToken, command: StoreCommand) -> Option<(u32, u64)> {
        self.queue.add(now, 1);
        if is_offload(&command) {
            self.offload_queue.add(now, 1);
        }
        let (role, record, payload) = match command {
            StoreCommand::Apply { role, record, payload, .. }
            | StoreCommand::Repair { role, record, payload, .. } => (role, record, payload),
            StoreCommand::Read { role, chunk, first, count, .. }
            | StoreCommand::Check { role, chunk, first, count, .. } => {
                let (at, bytes) = (self.place(role, chunk, first), u64::from(count) * BLOCK_BYTES as u64);
                let access = Access { write: false, at, bytes, hops: 0 };
                let job = self.jobs.put(Job::Read { token, command, access });
                self.disk.add(job, at, bytes);
                return None;
            }
            StoreCommand::List { .. } | StoreCommand::Newer { .. } => {
                self.in_service += 1;
                return Some((self.jobs.put(Job::Question { token, command }), now + QUESTION));
            }
        };
        self.submit_write(token, role, record, payload.len() as u64);
        None
    }

    fn submit_write(&mut self, token: StoreToken, role: Role, record: Record, data: u64) {
        let drops = self.store.drops_of(record.group, role);
        let bytes = HEAD_BYTES + 4 * u64::from(record.count);
        let writing = Writing { token, role, record, drops, bytes };
        let record = &writing.record;
        let (group, chunk) = (record.group, record.chunk);
        // The records that come before its first one is durable go to the same new file.
        let known = self.unsettled.contains_key(&(group, chunk)) || self.store.has_chunk(group, role, chunk);
        let new_file = role == Role::Replica && !known;
        if new_file {
            self.unsettled.entry((group, chunk)).or_default().hops += NEW_FILE_HOPS;
        }
        let direct = role == Role::Replica
            && data >= self.direct_bytes
            && !self.store.has_data(group, role, chunk, record.first, record.count);
        if direct {
            let at = self.place(role, chunk, record.first);
            let unsettled = self.unsettled.entry((group, chunk)).or_default();
            // Its metadata page is written later, together with the chunk's others.
            if unsettled.bytes == 0 {
                (unsettled.bytes, unsettled.hops) = (PAGE_BYTES, unsettled.hops + 1);
            }
            let access = Access { write: true, at, bytes: data, hops: 0 };
            let job = self.jobs.put(Job::Direct { writing, access });
            return self.disk.add(job, at, data);
        }
        if role == Role::Replica && record.content != Content::Delete {
            let unsettled = self.unsettled.entry((group, chunk)).or_default();
            unsettled.bytes += data.max(1);
            unsettled.hops += u32::from(unsettled.end != Some(record.first));
            unsettled.end = Some(record.first + record.count);
        }
        self.append(Writing { bytes: bytes + data, ..writing });
    }

    fn append(&mut self, writing: Writing) {
        self.log.push_back(writing);
        self.queue_commit();
    }

    fn queue_commit(&mut self) {
        if !self.log.is_empty() && !self.commit_waits {
            self.commit_waits = true;
            let job = self.jobs.put(Job::Commit(Vec::new()));
            self.disk.add(job, self.log_at, 0);
        }
    }

    /// Starts the next access, if the disk is free for it: its job, and when it is done. A mirror does not know the
    /// latter.
    pub fn start(&mut self, now: u64) -> Option<(u32, Option<u64>)> {
        let hurry = !self.flushing.is_empty() || self.unsettled_bytes > OVERDUE * self.checkpoint_bytes;
        let job = self.disk.next(now, hurry)?;
        let (access, durable) = match self.jobs.get(job).expect("a job that waits") {
            Job::Read { access, .. } | Job::Direct { access, .. } | Job::Settle(access) => (*access, false),
            Job::Question { .. } => unreachable!("it never waits for the disk"),
            Job::Commit(batch) => {
                let mut bytes = 0;
                while bytes < BATCH_BYTES as u64
                    && let Some(writing) = self.log.pop_front()
                {
                    bytes += writing.bytes;
                    batch.push(writing);
                }
                self.commit_waits = self.disk.pair().is_some();
                self.unsettled_bytes += bytes;
                let at = if self.log_at + bytes > self.segments_bytes { 0 } else { self.log_at };
                self.log_at = at + bytes;
                (Access { write: true, at, bytes, hops: 0 }, true)
            }
        };
        self.queue_commit();
        self.in_service += 1;
        self.accesses += 1;
        Some((job, self.disk.serve(now, job, access, durable)))
    }

    /// The access is done: produces the outcomes of its commands.
    pub fn end(&mut self, now: u64, job: u32, out: &mut Vec<(StoreToken, StoreOutcome)>) {
        let done = self.jobs.take(job).expect("a job that was started");
        self.in_service -= 1;
        self.accesses -= usize::from(!matches!(done, Job::Question { .. }));
        match done {
            Job::Read { token, command, .. } | Job::Question { token, command } => {
                self.ended(now, is_offload(&command));
                out.push((token, self.answer(command)));
            }
            Job::Direct { writing, .. } => self.append(writing),
            Job::Commit(batch) => {
                if self.disk.pair().is_some() {
                    self.commit_waits = false;
                    self.queue_commit();
                }
                for writing in batch {
                    self.store.apply(writing.role, &writing.record, writing.drops);
                    self.ended(now, writing.role != Role::Replica);
                    out.push((writing.token, StoreOutcome::Applied));
                }
                if self.unsettled_bytes >= self.checkpoint_bytes && self.disk.background() == 0 {
                    self.settle();
                }
            }
            Job::Settle(_) => {}
        }
    }

    fn ended(&mut self, now: u64, offload: bool) {
        self.queue.add(now, -1);
        if offload {
            self.offload_queue.add(now, -1);
        }
    }

    fn answer(&self, command: StoreCommand) -> StoreOutcome {
        match command {
            StoreCommand::Read { role, group, chunk, first, count }
            | StoreCommand::Check { role, group, chunk, first, count, .. } => {
                self.store.read(group, role, chunk, first, count)
            }
            StoreCommand::List { role, group, since, after } => {
                StoreOutcome::Listed(self.store.list(group, role, since, after))
            }
            StoreCommand::Newer { role, group, runs } => {
                StoreOutcome::Newer(self.store.newer(group, role, &runs))
            }
            StoreCommand::Apply { .. } | StoreCommand::Repair { .. } => unreachable!("no question"),
        }
    }

    /// Schedules moving everything that is in segments only to the chunk files.
    pub fn settle(&mut self) {
        self.unsettled_bytes = 0;
        for ((_, chunk), Unsettled { bytes, hops, .. }) in std::mem::take(&mut self.unsettled) {
            let at = self.place(Role::Replica, chunk, 0);
            let job = self.jobs.put(Job::Settle(Access { write: true, at, bytes: bytes + PAGE_BYTES, hops }));
            self.disk.add_background(job);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.in_service == 0 && self.disk.waiting() == 0
    }

    /// When the disk is to be checked, if that is not arranged yet.
    pub fn next_look(&mut self, now: u64) -> Option<u64> {
        let at = match &self.disk {
            // An access in progress triggers the next check of its only channel.
            Device::Disk(disk) if disk.channels() == 1 && self.accesses > 0 => return None,
            Device::Disk(disk) if disk.waiting() > 0 && self.wake_at == 0 => disk.free_at(),
            Device::Disk(_) => return None,
            Device::Pair(pair) => pair.due().map(|at| at.max(now)).filter(|at| *at != self.wake_at)?,
        };
        self.wake_at = at;
        Some(at)
    }

    /// Commands in flight: the load by which holders are chosen.
    pub fn queued(&self) -> u32 {
        self.queue.level() as u32
    }
}

fn is_offload(command: &StoreCommand) -> bool {
    let (StoreCommand::Apply { role, .. }
    | StoreCommand::Repair { role, .. }
    | StoreCommand::Read { role, .. }
    | StoreCommand::Check { role, .. }
    | StoreCommand::List { role, .. }
    | StoreCommand::Newer { role, .. }) = command;
    *role != Role::Replica
}
