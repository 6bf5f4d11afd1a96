//! The only file that knows the Raft library, and the only one of this crate that touches a disk.
//!
//! [`Node`] turns the library into plain synchronous methods: `propose`, `step`, `tick`, `confirm` go in, [`Node::ready`] says
//! what to send and what was committed. Everything durable is one append-only file ([`log`]): one frame per ready batch, made
//! durable with one sync. A single member has no timers and no messages: it elects itself at the start, and writes nothing
//! while nothing is proposed.
//!
//! A log is created once, by [`create`], when the cluster is founded. A member whose log is missing does not start: what it
//! voted for and acknowledged is forgotten, and an empty log would found a second cluster.

mod log;

pub use log::{Birth, DiskLog, LogFile, MemoryLog, create};

use crate::parts::{Joiner, Splitter};
use crate::{Command, MemberId, State};
use ebb_types::crc32c;
use log::{Log, Piece};
use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Message, Snapshot};
use raft::{GetEntriesContext, RaftState, RawNode, StateRole, Storage, StorageError};
use std::io;

/// A log shorter than this is never compacted.
const COMPACT_MIN: usize = 16 << 20;
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;
/// A follower that took no snapshot for so many ticks is sent it again.
const SNAPSHOT_TICKS: u32 = 40;
/// Most bytes of entries in one message, so that a frame holds it.
const MESSAGE_MAX: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RaftError {
    #[error("the metadata log cannot be written or read: {0}; stop this member and check its disk")]
    Io(#[from] io::Error),
    #[error("{what} is not a metadata log of this release: it starts with {found:02x?}")]
    Format { what: &'static str, found: Vec<u8> },
    #[error(
        "there is no metadata log; if its disk is not mounted, mount it; if this is a new cluster, found it with --create"
    )]
    Missing,
    #[error("there is a metadata log already; start without --create")]
    Exists,
    #[error("another process uses the metadata directory; stop it first")]
    InUse,
    #[error(
        "the metadata log is damaged at byte {at}, in what was acknowledged; keep the file, and put back a copy of it that is \
         no older; with three members or five, replace this member instead"
    )]
    Damaged { at: usize },
    #[error("the metadata log has a gap before entry {index}; keep the file, and do as with a damaged one")]
    Gap { index: u64 },
    #[error("the metadata log holds a state that cannot be decoded: {0}; run the release that wrote it")]
    Decode(#[from] postcard::Error),
    #[error("the Raft library refused: {0}")]
    Library(#[from] raft::Error),
}

/// What the library reads back: the present content of the log, in memory.
struct Kept {
    hard: HardState,
    members: ConfState,
    snapshot: Snapshot,
    /// Entries after the snapshot, without gaps.
    entries: Vec<Entry>,
}

impl Kept {
    fn snapshot_index(&self) -> u64 {
        self.snapshot.get_metadata().index
    }

    fn last(&self) -> u64 {
        self.snapshot_index() + self.entries.len() as u64
    }

    /// An entry replaces what was there from its index on.
    fn append(&mut self, entry: Entry) -> Result<(), RaftError> {
        if entry.index <= self.snapshot_index() || entry.index > self.last() + 1 {
            return Err(RaftError::Gap { index: entry.index });
        }
        self.entries.truncate((entry.index - self.snapshot_index() - 1) as usize);
        self.entries.push(entry);
        Ok(())
    }

    fn install(&mut self, index: u64, term: u64, state: Vec<u8>) {
        let keep = self.last().saturating_sub(index) as usize;
        let same = self.term(index).is_ok_and(|own| own == term);
        self.entries = if same { self.entries.split_off(self.entries.len() - keep) } else { Vec::new() };
        let mut snapshot = Snapshot { data: state.into(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (index, term);
        metadata.set_conf_state(self.members.clone());
        self.snapshot = snapshot;
        self.hard.commit = self.hard.commit.max(index);
    }
}

impl Storage for Kept {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.members.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let first = self.snapshot_index() + 1;
        if low < first {
            return Err(StorageError::Compacted.into());
        }
        let mut entries = self.entries[(low - first) as usize..(high - first) as usize].to_vec();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let snapshot = self.snapshot.get_metadata();
        if index == snapshot.index {
            return Ok(snapshot.term);
        }
        if index < snapshot.index {
            return Err(StorageError::Compacted.into());
        }
        let entry = self.entries.get((index - snapshot.index - 1) as usize);
        entry.map(|e| e.term).ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.snapshot_index() + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.snapshot_index() < request_index || self.snapshot_index() == 0 {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        Ok(self.snapshot.clone())
    }
}

/// Commands that were committed together, and where.
#[derive(Debug)]
pub struct Committed {
    pub index: u64,
    pub term: u64,
    pub commands: Vec<Command>,
}

/// What became of the inputs since the last call of [`Node::ready`]. The disk work is done.
#[derive(Debug, Default)]
pub struct Progress {
    pub send: Vec<(MemberId, Vec<u8>)>,
    /// Replaces the whole state; comes before `committed`.
    pub snapshot: Option<State>,
    pub committed: Vec<Committed>,
    /// Reads that may be answered once the commands up to the index are applied: tag and index.
    pub confirmed: Vec<(u64, u64)>,
}

/// One member's replica of the log.
pub struct Node<L: LogFile> {
    raw: RawNode<Kept>,
    log: Log<L>,
    birth: Birth,
    /// Bytes of the snapshot in the log.
    snapshot_bytes: usize,
    applied: u64,
    seed: u64,
    /// Per member: ticks that it has been waiting for a snapshot.
    waiting: Vec<(MemberId, u32)>,
    splitter: Splitter,
    joiner: Joiner,
}

impl<L: LogFile> Node<L> {
    /// Reads the log and starts. The state is that of the last snapshot; what was committed later comes by
    /// [`Node::ready`], because only a leader can tell what was.
    pub fn open(
        id: MemberId,
        members: &[MemberId],
        seed: u64,
        log: L,
    ) -> Result<(Node<L>, State), RaftError> {
        let (log, pieces) = Log::open(log)?;
        let mut kept = Kept {
            hard: HardState::default(),
            members: ConfState::default(),
            snapshot: Snapshot::default(),
            entries: Vec::new(),
        };
        let mut birth = None;
        for piece in pieces {
            match piece {
                Piece::Birth(first) => {
                    kept.members.voters.clone_from(&first.voters);
                    birth = Some(first);
                }
                Piece::Vote { term, vote } => (kept.hard.term, kept.hard.vote) = (term, vote),
                Piece::Entry { index, term, data } => kept.append(entry(index, term, data))?,
                Piece::Snapshot { index, term, state } => kept.install(index, term, state),
            }
        }
        kept.hard.commit = kept.snapshot_index();
        let birth = birth.ok_or(RaftError::Damaged { at: log::FRAMES_AT })?;
        let state = decode_state(&kept.snapshot.data)?;
        let (applied, snapshot_bytes) = (kept.snapshot_index(), kept.snapshot.data.len());
        let several = members.len() > 1;
        let config = raft::Config {
            id,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: MESSAGE_MAX,
            max_inflight_msgs: 64,
            check_quorum: several,
            pre_vote: several,
            max_uncommitted_size: raft::NO_LIMIT,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, kept, &logger)?;
        let waiting = members.iter().filter(|m| **m != id).map(|m| (*m, 0)).collect();
        let mut node = Node {
            raw,
            log,
            birth,
            snapshot_bytes,
            applied,
            seed,
            waiting,
            splitter: Splitter::default(),
            joiner: Joiner::default(),
        };
        node.fix_timeout();
        if !several {
            node.raw.campaign()?;
        }
        Ok((node, state))
    }

    pub fn into_log(self) -> L {
        self.log.file
    }

    /// The cluster that this member was created for.
    pub fn instance(&self) -> u64 {
        self.birth.instance
    }

    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Whether this member leads and has applied everything that earlier leaders committed.
    pub fn is_leader_ready(&self) -> bool {
        self.is_leader()
            && self.raw.raft.commit_to_current_term()
            && self.applied == self.raw.raft.raft_log.committed
    }

    /// The leader as far as this member knows.
    pub fn leader(&self) -> Option<MemberId> {
        Some(self.raw.raft.leader_id).filter(|id| *id != raft::INVALID_ID)
    }

    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Proposes commands as one entry. Returns its term and index, or `None` if this member does not lead.
    pub fn propose(&mut self, commands: &[Command]) -> Option<(u64, u64)> {
        if !self.is_leader() {
            return None;
        }
        let data = postcard::to_stdvec(commands).expect("plain data");
        self.raw.propose(Vec::new(), data).ok()?;
        Some((self.raw.raft.term, self.raw.raft.raft_log.last_index()))
    }

    /// Asks whether this member still leads. The answer comes as [`Progress::confirmed`], or never.
    pub fn confirm(&mut self, tag: u64) {
        self.raw.read_index(tag.to_le_bytes().to_vec());
    }

    /// Takes in a message of another member. Outside input: what cannot be read is dropped.
    pub fn step(&mut self, from: MemberId, bytes: &[u8]) {
        let Some(whole) = self.joiner.join(from, bytes) else { return };
        let Ok(message) = Message::parse_from_bytes(&whole) else { return };
        if message.from == from && self.waiting.iter().any(|(member, _)| *member == from) {
            // The library refuses what does not fit its state; such messages are late and harmless.
            let _ = self.raw.step(message);
            self.fix_timeout();
        }
    }

    /// One tick passed. Only needed with several members.
    pub fn tick(&mut self) {
        self.raw.tick();
        self.fix_timeout();
        for at in 0..self.waiting.len() {
            let (member, ticks) = self.waiting[at];
            let progress = self.raw.raft.prs().get(member);
            let waits =
                self.is_leader() && progress.is_some_and(|p| p.state == raft::ProgressState::Snapshot);
            let again = waits && ticks >= SNAPSHOT_TICKS;
            self.waiting[at].1 = if waits && !again { ticks + 1 } else { 0 };
            if again {
                self.raw.report_snapshot(member, raft::SnapshotStatus::Failure);
            }
        }
    }

    /// The library draws election timeouts at random; runs must repeat, so they are a function of seed, member and term.
    fn fix_timeout(&mut self) {
        let mut key = self.seed.to_le_bytes().to_vec();
        key.extend_from_slice(&self.raw.raft.id.to_le_bytes());
        key.extend_from_slice(&self.raw.raft.term.to_le_bytes());
        let spread = crc32c(&key) as usize % ELECTION_TICKS;
        self.raw.raft.set_randomized_election_timeout(ELECTION_TICKS + spread);
    }

    /// Makes durable what must be, and says what follows. Repeat until it says nothing more.
    pub fn ready(&mut self) -> Result<Progress, RaftError> {
        let mut progress = Progress::default();
        while self.raw.has_ready() {
            let mut ready = self.raw.ready();
            self.send(ready.take_messages(), &mut progress);
            let mut pieces = Vec::new();
            if !ready.snapshot().is_empty() {
                let (snapshot, metadata) = (ready.snapshot(), ready.snapshot().get_metadata());
                progress.snapshot = Some(decode_state(&snapshot.data)?);
                progress.committed.clear();
                self.applied = metadata.index;
                let state = snapshot.data.to_vec();
                self.snapshot_bytes = state.len();
                pieces.push(Piece::Snapshot {
                    index: metadata.index,
                    term: metadata.term,
                    state: state.clone(),
                });
                self.raw.mut_store().install(metadata.index, metadata.term, state);
            }
            self.commit(ready.take_committed_entries(), &mut progress)?;
            for entry in ready.take_entries() {
                pieces.push(Piece::Entry { index: entry.index, term: entry.term, data: entry.data.to_vec() });
                self.raw.mut_store().append(entry)?;
            }
            if let Some(hard) = ready.hs().cloned() {
                let kept = &mut self.raw.mut_store().hard;
                // How far the log is committed is learnt again from the leader; writing it down would cost a sync.
                if (hard.term, hard.vote) != (kept.term, kept.vote) {
                    pieces.push(Piece::Vote { term: hard.term, vote: hard.vote });
                }
                *kept = hard;
            }
            if !pieces.is_empty() {
                self.log.append(&pieces)?;
            }
            for read in ready.take_read_states() {
                let tag = read.request_ctx.as_slice().try_into().map(u64::from_le_bytes);
                progress.confirmed.push((tag.expect("tags have eight bytes"), read.index));
            }
            self.send(ready.take_persisted_messages(), &mut progress);
            let mut light = self.raw.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.raw.mut_store().hard.commit = commit;
            }
            self.send(light.take_messages(), &mut progress);
            self.commit(light.take_committed_entries(), &mut progress)?;
            self.raw.advance_apply();
        }
        Ok(progress)
    }

    fn send(&mut self, messages: Vec<Message>, progress: &mut Progress) {
        for message in messages {
            let bytes = message.write_to_bytes().expect("the library's own message");
            let parts = self.splitter.split(&bytes);
            progress.send.extend(parts.into_iter().map(|part| (message.to, part)));
        }
    }

    fn commit(&mut self, entries: Vec<Entry>, progress: &mut Progress) -> Result<(), RaftError> {
        for entry in entries {
            self.applied = entry.index;
            // A new leader's first entry is empty.
            if entry.data.is_empty() || entry.get_entry_type() != EntryType::EntryNormal {
                continue;
            }
            let commands = postcard::from_bytes(&entry.data)?;
            progress.committed.push(Committed { index: entry.index, term: entry.term, commands });
        }
        Ok(())
    }

    /// Puts a snapshot in the place of a log that has grown long. `state`: with everything applied that
    /// [`Node::ready`] gave out.
    pub fn compact(&mut self, state: &State) -> Result<(), RaftError> {
        if self.log.bytes < COMPACT_MIN.max(2 * self.snapshot_bytes) {
            return Ok(());
        }
        self.compact_now(state)
    }

    fn compact_now(&mut self, state: &State) -> Result<(), RaftError> {
        let index = self.applied;
        let term = self.raw.store().term(index)?;
        let encoded = postcard::to_stdvec(state).expect("plain data");
        self.snapshot_bytes = encoded.len();
        let store = self.raw.mut_store();
        store.install(index, term, encoded.clone());
        let mut pieces = vec![
            Piece::Birth(self.birth.clone()),
            Piece::Snapshot { index, term, state: encoded },
            Piece::Vote { term: store.hard.term, vote: store.hard.vote },
        ];
        let later = store.entries.iter();
        pieces.extend(later.map(|e| Piece::Entry { index: e.index, term: e.term, data: e.data.to_vec() }));
        Ok(self.log.replace(&pieces)?)
    }
}

fn entry(index: u64, term: u64, data: Vec<u8>) -> Entry {
    Entry { index, term, data: data.into(), ..Entry::default() }
}

fn decode_state(bytes: &[u8]) -> Result<State, RaftError> {
    if bytes.is_empty() { Ok(State::default()) } else { Ok(postcard::from_bytes(bytes)?) }
}

#[cfg(test)]
mod tests;
