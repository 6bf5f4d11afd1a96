//! The only file that knows the Raft library, and the only one of this crate that touches a disk.
//!
//! [`Node`] turns the library into plain synchronous methods: `propose`, `step`, `tick`, `confirm` go in, [`Node::ready`] says
//! what to send and what was committed. Everything durable is one append-only file ([`LogFile`]): one frame per ready
//! batch, made durable with one sync. A single member has no timers and no messages: it elects itself at the start, and
//! writes nothing while nothing is proposed.
//!
//! ```text
//! file  = "EBBRAFT1" frame*          frame = "RLOG" | body bytes u32 LE | CRC-32C of body u32 LE | body
//! body  = postcard Vec<Piece>, Piece = Vote | Entry | Snapshot; the newest of each wins, an entry cuts off its successors
//! ```
//! A frame that ends the file and is damaged was never acknowledged: it is cut off. A damaged frame with a whole one
//! behind it is damage to acknowledged data: [`RaftError::Damaged`], never skipped.

use crate::parts::{Joiner, Splitter};
use crate::{Command, MemberId, State};
use ebb_types::crc32c;
use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Message, Snapshot};
use raft::{GetEntriesContext, RaftState, RawNode, StateRole, Storage, StorageError};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const FILE_MAGIC: &[u8; 8] = b"EBBRAFT1";
const FRAME_MAGIC: &[u8; 4] = b"RLOG";
const FRAME_HEADER: usize = 12;
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
        "the metadata log is damaged at byte {at}; restore this member's data directory from another member"
    )]
    Damaged { at: usize },
    #[error("the metadata log holds a state that cannot be decoded: {0}; run the release that wrote it")]
    Decode(#[from] postcard::Error),
    #[error("the Raft library refused: {0}")]
    Library(#[from] raft::Error),
}

/// Where the log is kept. Every method is durable on return; an error means that the member must stop.
pub trait LogFile {
    /// The whole log; empty if there is none yet.
    fn read(&mut self) -> io::Result<Vec<u8>>;
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Puts `bytes` in the place of the whole log, all or nothing.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// The log as a file.
pub struct DiskLog {
    path: PathBuf,
    file: File,
}

impl DiskLog {
    /// Opens the log, or creates an empty one.
    pub fn open(path: &Path) -> io::Result<DiskLog> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        sync_directory_of(path)?;
        Ok(DiskLog { path: path.to_owned(), file })
    }
}

impl LogFile for DiskLog {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(&self.path)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_data()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        sync_directory_of(&self.path)?;
        self.file = OpenOptions::new().read(true).append(true).open(&self.path)?;
        Ok(())
    }
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// The log in memory, for simulations and tests: what was appended is durable.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    pub bytes: Vec<u8>,
}

impl LogFile for MemoryLog {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.bytes.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes = bytes.to_vec();
        Ok(())
    }
}

/// One durable fact.
#[derive(Serialize, Deserialize)]
enum Piece {
    Vote { term: u64, vote: u64 },
    Entry { index: u64, term: u64, data: Vec<u8> },
    Snapshot { index: u64, term: u64, state: Vec<u8> },
}

fn frame(pieces: &[Piece]) -> Vec<u8> {
    let body = postcard::to_stdvec(pieces).expect("plain data");
    let mut out = Vec::with_capacity(FRAME_HEADER + body.len());
    out.extend_from_slice(FRAME_MAGIC);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c(&body).to_le_bytes());
    out.extend_from_slice(&body);
    out
}

/// The body of the whole frame that starts at `at`, if there is one.
fn frame_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let header = bytes.get(at..at + FRAME_HEADER)?;
    let u32_at = |i: usize| u32::from_le_bytes(header[i..i + 4].try_into().expect("four bytes"));
    let body = bytes.get(at + FRAME_HEADER..)?.get(..u32_at(4) as usize)?;
    (&header[..4] == FRAME_MAGIC && crc32c(body) == u32_at(8)).then_some(body)
}

/// What the log says, and how long its whole part is.
fn read_log(bytes: &[u8]) -> Result<(Vec<Piece>, usize), RaftError> {
    let magic = &bytes[..bytes.len().min(FILE_MAGIC.len())];
    if !FILE_MAGIC.starts_with(magic) {
        return Err(RaftError::Format { what: "the file", found: magic.to_vec() });
    }
    let mut pieces = Vec::new();
    let mut at = FILE_MAGIC.len();
    while let Some(body) = frame_at(bytes, at) {
        pieces.append(&mut postcard::from_bytes(body)?);
        at += FRAME_HEADER + body.len();
    }
    let tail = at + 1..bytes.len().saturating_sub(FRAME_HEADER - 1);
    if tail.into_iter().any(|later| frame_at(bytes, later).is_some()) {
        return Err(RaftError::Damaged { at });
    }
    Ok((pieces, at.min(bytes.len())))
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
    fn append(&mut self, entry: Entry) {
        assert!(entry.index > self.snapshot_index() && entry.index <= self.last() + 1, "no gap in the log");
        self.entries.truncate((entry.index - self.snapshot_index() - 1) as usize);
        self.entries.push(entry);
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
    log: L,
    /// Bytes of the log and of the snapshot in it.
    log_bytes: usize,
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
        mut log: L,
    ) -> Result<(Node<L>, State), RaftError> {
        let bytes = log.read()?;
        let (pieces, whole) = read_log(&bytes)?;
        let mut kept = Kept {
            hard: HardState::default(),
            members: ConfState { voters: members.to_vec(), ..ConfState::default() },
            snapshot: Snapshot::default(),
            entries: Vec::new(),
        };
        for piece in pieces {
            match piece {
                Piece::Vote { term, vote } => (kept.hard.term, kept.hard.vote) = (term, vote),
                Piece::Entry { index, term, data } => kept.append(entry(index, term, data)),
                Piece::Snapshot { index, term, state } => kept.install(index, term, state),
            }
        }
        kept.hard.commit = kept.snapshot_index();
        let log_bytes = if whole < FILE_MAGIC.len() {
            log.replace(FILE_MAGIC)?;
            FILE_MAGIC.len()
        } else {
            if whole < bytes.len() {
                log.replace(&bytes[..whole])?;
            }
            whole
        };
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
            log_bytes,
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
        self.log
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
                self.raw.mut_store().append(entry);
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
                let bytes = frame(&pieces);
                self.log.append(&bytes)?;
                self.log_bytes += bytes.len();
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
        if self.log_bytes < COMPACT_MIN.max(2 * self.snapshot_bytes) {
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
            Piece::Snapshot { index, term, state: encoded },
            Piece::Vote { term: store.hard.term, vote: store.hard.vote },
        ];
        let later = store.entries.iter();
        pieces.extend(later.map(|e| Piece::Entry { index: e.index, term: e.term, data: e.data.to_vec() }));
        let mut bytes = FILE_MAGIC.to_vec();
        bytes.extend_from_slice(&frame(&pieces));
        self.log.replace(&bytes)?;
        self.log_bytes = bytes.len();
        Ok(())
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
