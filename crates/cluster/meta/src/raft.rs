//! With the files below it the only part of this crate that knows the Raft library or touches a disk.
//!
//! [`Node`] wraps the library in plain synchronous methods: `propose`, `step`, `tick`, `confirm` are inputs,
//! [`Node::ready`] returns what to send and what was committed. All durable data is in one append-only file ([`log`]):
//! one frame per ready batch, made durable with one sync. A single member has no timers and no messages: it elects
//! itself at the start, and writes nothing while nothing is proposed.
//!
//! **Members.** A log is created once, by [`create`]: when the cluster is founded, or for a member that joins. A member
//! whose log is missing does not start: its votes and acknowledgements are forgotten, and an empty log would found a
//! second cluster. A member without a log therefore joins under a new id, which never voted: the leader removes the old
//! id of the same seat, adds the new one as a learner, and lets it vote once it has caught up. An id is a seat in the
//! configuration file (16 bits) and a number drawn by the joiner. Every message names the cluster's instance; another
//! cluster's is dropped. Members change one at a time; the membership is durable before anything acts on it, because
//! the library asks for the members as of what is *applied* [raft-rs `Storage::initial_state`], and is given again only
//! what is committed.
//!
//! **Generations.** A member that lost the majority of the others for good can be made the only one of a new generation
//! ([`rescue()`]). Members of different generations do not listen to each other: one that hears of a later generation
//! than its own stops.

mod error;
mod kept;
mod log;
mod packet;
mod rescue;

pub use log::{Birth, DiskLog, Job, LogFile, MemoryLog, create};

use crate::namespace::table::Table;
use crate::parts::{Courier, Out, PART_MAX};
use crate::{Command, MemberId, State};
use ebb_types::{MetadataMember, crc32c};
pub use error::RaftError;
use kept::Kept;
use log::{Content, Log, Piece};
pub use packet::Said;
use packet::{Heard, Lineage, Packet};
use protobuf::Message as _;
use raft::eraftpb::{
    ConfChange, ConfChangeType, ConfState, Entry, EntryType, Message, MessageType, Snapshot,
};
use raft::{ProgressState, RawNode, SnapshotStatus, StateRole, Storage};
pub use rescue::{LogEnd, log_end, rescue};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Entries kept in memory while a member is sent a snapshot may take this many times as many bytes as normally.
const KEPT_WHILE_SENDING: usize = 16;
/// A log is replaced when the frames after its table reach this size or, if larger, a sixteenth of the table plus
/// several times the rest of the state. A lower limit would rewrite it too often; a higher one would cost memory, and
/// time at a restart. Normally as many bytes of entries are kept in memory.
pub const LOG_BYTES: usize = 4 << 20;
const TABLE_PARTS: u64 = 16;
const STATE_TIMES: usize = 3;
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;
/// A follower that has not installed a snapshot this many ticks after it was sent is sent another.
const SNAPSHOT_TICKS: u32 = 40;
/// Most bytes of entries in one message, so that it fits a frame.
const MESSAGE_MAX: u64 = 1 << 20;
const _: () = assert!(MESSAGE_MAX <= PART_MAX as u64);
/// Bytes of entries applied at once: a start does not decode the whole log before it applies anything.
const COMMITTED_MAX: usize = 4 << 20;
/// A learner that lacks at most this many entries may vote.
const LEARNT: u64 = 64;
/// Room in the log reserved for the leader's own decisions and votes.
const RESERVE: u64 = 4 << 20;

const SEAT_BITS: u32 = 16;
/// Highest number of a metadata server in the configuration file.
pub const SEAT_MAX: MemberId = (1 << SEAT_BITS) - 1;

/// The id of a member that joins. `drawn` is random: no earlier member of the seat had it.
pub fn joining_id(seat: MemberId, drawn: u64) -> u64 {
    debug_assert!(seat <= SEAT_MAX, "an id says whose seat it is");
    drawn << SEAT_BITS | seat
}

fn seat(id: u64) -> MemberId {
    id & SEAT_MAX
}

/// Commands that were committed in one entry, with its term and index.
#[derive(Debug)]
pub struct Committed {
    pub index: u64,
    pub term: u64,
    pub commands: Vec<Command>,
}

/// Results of the inputs since the last call of [`Node::ready`]. The disk work is done.
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
    lineage: Lineage,
    /// Seats of the other members in the configuration file.
    others: Vec<MemberId>,
    /// Bytes of the state without the names.
    state_bytes: usize,
    /// See [`crate::MemberConfig`].
    pub log_bytes: usize,
    applied: u64,
    seed: u64,
    ticks: usize,
    /// The tick at which this member began to lead.
    leads_since: Option<usize>,
    /// Per other member, the tick at which its last message came.
    heard: BTreeMap<MemberId, usize>,
    /// Per id: ticks spent waiting for a snapshot.
    waiting: BTreeMap<u64, u32>,
    /// Membership changes that are applied but not durable.
    unsaved: Vec<Piece>,
    courier: Courier,
    outbox: Out,
    /// What other members said since [`Node::take_told`].
    told: Vec<(MemberId, Said)>,
    /// The index of the snapshot that is offered or was sent last, and its table.
    offered: Option<(u64, Option<Arc<Table>>)>,
    /// Bytes of the table that came with the message being stepped.
    arrived: Option<u64>,
}

impl<L: LogFile> Node<L> {
    /// Reads the log and starts. `members`: seats of the configuration file, `id` included. The state is that of the
    /// last snapshot; later commits arrive through [`Node::ready`], because only a leader knows what was committed.
    pub fn open(
        id: MemberId,
        members: &[MemberId],
        seed: u64,
        log: L,
    ) -> Result<(Node<L>, State), RaftError> {
        let (log, Content { pieces, mut state, .. }) = Log::open(log)?;
        let (kept, birth, lineage) = read(pieces)?;
        if seat(birth.id) != id {
            return Err(RaftError::OtherMember { found: seat(birth.id), expected: id });
        }
        if let Some(gone) = kept.members.voters.iter().find(|v| !members.contains(&seat(**v))) {
            return Err(RaftError::MemberMissing { member: seat(*gone) });
        }
        let applied = kept.base.0;
        let several = members.len() > 1;
        let config = raft::Config {
            id: birth.id,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: MESSAGE_MAX,
            max_inflight_msgs: 64,
            check_quorum: several,
            pre_vote: several,
            max_uncommitted_size: raft::NO_LIMIT,
            max_committed_size_per_ready: COMMITTED_MAX as u64,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, kept, &logger)?;
        let mut node = Node {
            raw,
            log,
            birth,
            lineage,
            others: members.iter().copied().filter(|m| *m != id).collect(),
            state_bytes: state.without_names(encode_state).len(),
            log_bytes: LOG_BYTES,
            applied,
            seed,
            ticks: 0,
            leads_since: None,
            heard: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unsaved: Vec::new(),
            courier: Courier::default(),
            outbox: Out::new(),
            told: Vec::new(),
            offered: None,
            arrived: None,
        };
        node.fix_timeout();
        // Room for the leader's own entries, even when clients find none.
        node.has_room(0, false)?;
        if !several {
            node.raw.campaign()?;
        }
        Ok((node, state))
    }

    pub fn into_log(self) -> L {
        self.log.file
    }

    /// The cluster of this member, if it knows it.
    pub fn instance(&self) -> Option<u64> {
        self.lineage.instance
    }

    /// How often the group was rescued from a minority of its members.
    pub fn generation(&self) -> u32 {
        self.lineage.generation
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
        Some(self.raw.raft.leader_id).filter(|id| *id != raft::INVALID_ID).map(seat)
    }

    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Whether this member counts towards the majority, as far as it knows.
    pub fn votes(&self) -> bool {
        self.raw.store().members.voters.contains(&self.birth.id)
    }

    /// The membership state of every seat in the configuration file, in order.
    pub fn members(&self, tick: Duration) -> Vec<MetadataMember> {
        let stand = &self.raw.store().members;
        let has = |ids: &[u64], member: MemberId| ids.iter().any(|id| seat(*id) == member);
        let mut seats: Vec<MemberId> = self.others.iter().copied().chain([seat(self.birth.id)]).collect();
        seats.sort_unstable();
        let standing = seats.into_iter().map(|id| {
            let (votes, learns) = (has(&stand.voters, id), has(&stand.learners, id));
            let silent = self.silent_ticks(id).filter(|_| votes || learns);
            let heard_millis = silent.map(|ticks| (tick * ticks).as_millis() as u64);
            MetadataMember { id, votes, learns, leads: self.leader() == Some(id), heard_millis }
        });
        standing.collect()
    }

    /// Ticks since this member, which leads, has heard that one. While it follows, it hears its leader only.
    fn silent_ticks(&self, id: MemberId) -> Option<u32> {
        let since = self.leads_since.filter(|_| id != seat(self.birth.id))?;
        let heard = self.heard.get(&id).map_or(since, |tick| since.max(*tick));
        Some(u32::try_from(self.ticks - heard).unwrap_or(u32::MAX))
    }

    fn note_whether_it_leads(&mut self) {
        self.leads_since = self.is_leader().then(|| self.leads_since.unwrap_or(self.ticks));
    }

    /// Whether the log has room for `bytes` more; `last`: the reserve may be used.
    pub fn has_room(&mut self, bytes: usize, last: bool) -> Result<bool, RaftError> {
        Ok(self.log.has_room(bytes as u64, if last { 0 } else { RESERVE })?)
    }

    /// Proposes encoded commands as one entry. Returns its term and index, or `None` if this member does not lead.
    pub fn propose(&mut self, commands: Vec<u8>) -> Option<(u64, u64)> {
        if !self.is_leader() {
            return None;
        }
        self.raw.propose(Vec::new(), commands).ok()?;
        Some((self.raw.raft.term, self.raw.raft.raft_log.last_index()))
    }

    /// Whether such a command is in the log and not committed, as far as this member knows.
    pub fn has_open(&self, is_it: impl Fn(&Command) -> bool) -> bool {
        let (committed, store) = (self.raw.raft.raft_log.committed, self.raw.store());
        let open = store.entries.iter().rev().take_while(|entry| entry.index > committed);
        let open = open.filter(|entry| entry.get_entry_type() == EntryType::EntryNormal);
        // A new leader's first entry is empty.
        let commands = |entry: &Entry| postcard::from_bytes::<Vec<Command>>(&entry.data).unwrap_or_default();
        open.flat_map(commands).any(|command| is_it(&command))
    }

    /// Asks whether this member still leads. The answer comes as [`Progress::confirmed`], or never.
    pub fn confirm(&mut self, tag: u64) {
        self.raw.read_index(tag.to_le_bytes().to_vec());
    }

    /// Says it to the leader.
    pub fn say(&mut self, said: Said) -> Result<(), RaftError> {
        if let Some(leader) = self.leader().filter(|_| !self.is_leader()) {
            let packet = Packet::Says(said).write(self.lineage);
            self.courier.send(leader, packet, None, &mut self.outbox)?;
        }
        Ok(())
    }

    pub fn take_told(&mut self) -> Vec<(MemberId, Said)> {
        std::mem::take(&mut self.told)
    }

    /// Asks a member that votes to lead instead of this one. Until it does, or an election's time has passed, nothing
    /// can be proposed.
    pub fn hand_over(&mut self, to: MemberId) {
        let voter = self.raw.store().members.voters.iter().find(|id| seat(**id) == to).copied();
        if let Some(id) = voter.filter(|_| self.is_leader()) {
            self.raw.transfer_leader(id);
            self.fix_timeout();
        }
    }

    /// Processes a message from another member. Untrusted input: what cannot be read is dropped.
    pub fn step(&mut self, from: MemberId, bytes: &[u8]) -> Result<(), RaftError> {
        if self.others.contains(&from) {
            self.heard.insert(from, self.ticks);
        }
        // The staged snapshot is installed by the next [`Node::ready`].
        let is_free = self.arrived.is_none();
        let stage = |at, bytes: &[u8]| {
            if is_free { Ok(self.log.stage(at, bytes)?) } else { Ok::<_, RaftError>(false) }
        };
        let Some((whole, table)) = self.courier.receive(from, bytes, &mut self.outbox, stage)? else {
            return Ok(());
        };
        match Packet::read(&whole, self.lineage) {
            Some(Heard::Later(generation)) => {
                return Err(RaftError::Replaced { own: self.lineage.generation, present: generation });
            }
            // It learns from this that it counts no more.
            Some(Heard::Earlier) if self.others.contains(&from) => {
                let packet = Packet::Passed.write(self.lineage);
                self.courier.send(from, packet, None, &mut self.outbox)?;
            }
            Some(Heard::Own(_, Packet::Join(id))) if seat(id) == from => self.take_in(id),
            Some(Heard::Own(_, Packet::Says(said))) if self.others.contains(&from) => {
                self.told.push((from, said));
            }
            Some(Heard::Own(its, Packet::Raft(bytes))) => self.step_library(from, its, bytes, table)?,
            _ => {}
        }
        Ok(())
    }

    fn step_library(
        &mut self,
        from: MemberId,
        its: Lineage,
        bytes: &[u8],
        table: u64,
    ) -> Result<(), RaftError> {
        let Ok(message) = Message::parse_from_bytes(bytes) else { return Ok(()) };
        if self.is_replaced(&message) {
            return Err(RaftError::Older);
        }
        if message.to != self.birth.id || seat(message.from) != from || !self.others.contains(&from) {
            return Ok(());
        }
        if let (None, Some(instance)) = (self.lineage.instance, its.instance) {
            self.log.append(&[Piece::Joined { instance, generation: its.generation }])?;
            self.lineage = its;
        }
        self.step_raft(message, table)
    }

    /// A leader addresses another member of this seat, and this log is older than that one's: it is a copy from before
    /// the seat was given to a new id. A member that was just added is not affected: its log is as new as every message
    /// to its predecessor.
    fn is_replaced(&self, message: &Message) -> bool {
        let log = &self.raw.raft.raft_log;
        message.get_msg_type() == MessageType::MsgHeartbeat
            && message.to != self.birth.id
            && seat(message.to) == seat(self.birth.id)
            && self.everyone().contains(&self.birth.id)
            && (message.term > log.last_term() || message.commit > log.last_index())
    }

    /// `table`: bytes of the table that came with it.
    fn step_raft(&mut self, message: Message, table: u64) -> Result<(), RaftError> {
        // The leader commits for a follower only what that follower acknowledged.
        if message.get_msg_type() == MessageType::MsgHeartbeat
            && message.commit > self.raw.raft.raft_log.last_index()
        {
            return Err(RaftError::Older);
        }
        let entries = message.entries.iter().map(|e| e.data.len() + 32).sum::<usize>();
        if entries > 0 && !self.has_room(entries, false)? {
            return Ok(());
        }
        if message.get_msg_type() == MessageType::MsgSnapshot {
            // The snapshot becomes a new log.
            self.courier.drop_arriving();
            let room = message.get_snapshot().data.len() + COMMITTED_MAX;
            if self.arrived.is_some() || !self.log.stage(table, &vec![0; room])? {
                return Ok(());
            }
            self.arrived = Some(table);
        }
        // The library refuses messages that do not match its state; those are late and harmless.
        let _ = self.raw.step(message);
        self.note_whether_it_leads();
        self.fix_timeout();
        Ok(())
    }

    /// One tick has passed. Needed only with several members.
    pub fn tick(&mut self) -> Result<(), RaftError> {
        self.raw.tick();
        self.note_whether_it_leads();
        self.fix_timeout();
        self.courier.tick(&mut self.outbox)?;
        self.ticks += 1;
        if !self.everyone().contains(&self.birth.id) && self.ticks.is_multiple_of(ELECTION_TICKS) {
            let packet = Packet::Join(self.birth.id).write(self.lineage);
            for to in &self.others {
                self.courier.send(*to, packet.clone(), None, &mut self.outbox)?;
            }
        }
        if self.is_leader_ready() {
            self.let_vote();
        }
        self.send_snapshots_again();
        Ok(())
    }

    /// Every id in the membership.
    fn everyone(&self) -> Vec<u64> {
        let m = &self.raw.store().members;
        m.voters.iter().chain(&m.learners).chain(&m.voters_outgoing).copied().collect()
    }

    /// A member asks to join. Its predecessor is removed first; the member asks again.
    fn take_in(&mut self, joiner: u64) {
        let everyone = self.everyone();
        if !self.is_leader_ready() || everyone.contains(&joiner) || !self.others.contains(&seat(joiner)) {
            return;
        }
        let answers = |id: u64| self.raw.raft.prs().get(id).is_some_and(|p| p.recent_active);
        match everyone.into_iter().find(|id| seat(*id) == seat(joiner)) {
            Some(old) if answers(old) => {}
            Some(old) => self.change_members(ConfChangeType::RemoveNode, old),
            None => self.change_members(ConfChangeType::AddLearnerNode, joiner),
        }
    }

    /// Lets learners vote once they have caught up; two at once if one more would make the number of votes even,
    /// because a majority of two survives no failure.
    fn let_vote(&mut self) {
        let raft = &self.raw.raft;
        let members = &self.raw.store().members;
        let has_learnt = |id: &&u64| {
            let progress = raft.prs().get(**id);
            progress.is_some_and(|p| p.recent_active && p.matched + LEARNT >= raft.raft_log.committed)
        };
        let ready: Vec<u64> = members.learners.iter().filter(has_learnt).copied().collect();
        let is_last = members.voters.len().is_multiple_of(2);
        if let Some(first) = ready.first().filter(|_| is_last || ready.len() > 1) {
            self.change_members(ConfChangeType::AddNode, *first);
        }
    }

    fn change_members(&mut self, change_type: ConfChangeType, node_id: u64) {
        if self.raw.raft.has_pending_conf() {
            return;
        }
        let change = ConfChange { change_type, node_id, ..ConfChange::default() };
        // Refused by a leader that was just deposed: the joiner asks the next one.
        let _ = self.raw.propose_conf_change(Vec::new(), change);
    }

    fn send_snapshots_again(&mut self) {
        let waits =
            |id: &u64| self.raw.raft.prs().get(*id).is_some_and(|p| p.state == ProgressState::Snapshot);
        let waiting: Vec<u64> =
            if self.is_leader() { self.everyone().into_iter().filter(waits).collect() } else { Vec::new() };
        self.waiting.retain(|id, _| waiting.contains(id));
        if waiting.is_empty() && self.raw.store().offered.is_none() {
            self.offered = None;
        }
        for id in waiting {
            let ticks = self.waiting.entry(id).or_default();
            if self.courier.is_busy(seat(id)) {
                *ticks = 0;
            } else if *ticks < SNAPSHOT_TICKS {
                *ticks += 1;
            } else {
                *ticks = 0;
                self.raw.report_snapshot(id, SnapshotStatus::Failure);
            }
        }
    }

    /// The library draws election timeouts at random; runs must repeat, so here they are a function of seed, member and
    /// term.
    fn fix_timeout(&mut self) {
        let mut key = self.seed.to_le_bytes().to_vec();
        key.extend_from_slice(&self.raw.raft.id.to_le_bytes());
        key.extend_from_slice(&self.raw.raft.term.to_le_bytes());
        let spread = crc32c(&key) as usize % ELECTION_TICKS;
        self.raw.raft.set_randomized_election_timeout(ELECTION_TICKS + spread);
    }

    /// Makes durable what must be, and returns what follows. Repeat until nothing more follows.
    pub fn ready(&mut self) -> Result<Progress, RaftError> {
        let mut progress = Progress::default();
        let mut committed = 0;
        while self.raw.has_ready() && committed < COMMITTED_MAX {
            let mut ready = self.raw.ready();
            self.send(ready.take_messages())?;
            let mut pieces = Vec::new();
            if let Some(hard) = ready.hs().cloned() {
                let kept = &mut self.raw.mut_store().hard;
                let again = hard.term == kept.term && kept.vote != 0;
                debug_assert!(hard.term >= kept.term, "a term does not go back");
                debug_assert!(!again || hard.vote == kept.vote, "a member votes once in a term");
                // The commit index is learnt again from the leader; writing it would cost a sync.
                if (hard.term, hard.vote) != (kept.term, kept.vote) {
                    pieces.push(Piece::Vote { term: hard.term, vote: hard.vote });
                }
                *kept = hard;
            }
            if !ready.snapshot().is_empty() {
                self.install(ready.snapshot(), &mut progress)?;
            }
            committed += self.commit(ready.take_committed_entries(), &mut progress)?;
            for entry in ready.take_entries() {
                pieces.push(piece_of(&entry));
                self.raw.mut_store().append(entry)?;
            }
            pieces.append(&mut self.unsaved);
            self.save(&pieces)?;
            for read in ready.take_read_states() {
                let tag = read.request_ctx.as_slice().try_into().map(u64::from_le_bytes);
                progress.confirmed.push((tag.expect("tags have eight bytes"), read.index));
            }
            self.send(ready.take_persisted_messages())?;
            let mut light = self.raw.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.raw.mut_store().hard.commit = commit;
            }
            self.send(light.take_messages())?;
            committed += self.commit(light.take_committed_entries(), &mut progress)?;
            self.raw.advance_apply();
            let unsaved = std::mem::take(&mut self.unsaved);
            self.save(&unsaved)?;
        }
        debug_assert!(self.unsaved.is_empty(), "who the members are is durable before anything acts on it");
        debug_assert!(
            self.applied <= self.raw.raft.raft_log.committed,
            "what is not committed may be undone"
        );
        self.arrived = None;
        progress.send = std::mem::take(&mut self.outbox);
        Ok(progress)
    }

    fn save(&mut self, pieces: &[Piece]) -> Result<(), RaftError> {
        if pieces.is_empty() { Ok(()) } else { Ok(self.log.append(pieces)?) }
    }

    /// Installs the leader's state: the log starts with it from now on.
    fn install(&mut self, snapshot: &Snapshot, progress: &mut Progress) -> Result<(), RaftError> {
        let metadata = snapshot.get_metadata();
        let (index, term, members) = (metadata.index, metadata.term, metadata.get_conf_state().clone());
        let mut state = decode_state(&snapshot.data)?;
        debug_assert!(index >= self.applied, "a state does not go back");
        self.raw.mut_store().begin_after(index, term, members);
        self.applied = index;
        self.state_bytes = state.without_names(encode_state).len();
        let table = self.arrived.take().expect("it was stepped just now");
        let table = self.log.install(table, &snapshot.data, &self.beginning(index, term))?;
        state.names_mut().attach(table);
        progress.snapshot = Some(state);
        progress.committed.clear();
        Ok(())
    }

    fn send(&mut self, messages: Vec<Message>) -> Result<(), RaftError> {
        for message in messages {
            let mut table = None;
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.raw.mut_store().offered = None;
                let index = message.get_snapshot().get_metadata().index;
                match &self.offered {
                    Some((of, its)) if *of == index => table = its.clone(),
                    // Its table is no longer available; the receiver is sent another snapshot.
                    _ => continue,
                }
            }
            let packet = Packet::Raft(&encode(&message)).write(self.lineage);
            self.courier.send(seat(message.to), packet, table, &mut self.outbox)?;
        }
        Ok(())
    }

    /// Returns their size in bytes.
    fn commit(&mut self, entries: Vec<Entry>, progress: &mut Progress) -> Result<usize, RaftError> {
        let mut bytes = 0;
        for entry in entries {
            debug_assert_eq!(entry.index, self.applied + 1, "each entry is applied once, in order");
            self.applied = entry.index;
            bytes += entry.data.len();
            // A new leader's first entry is empty.
            if entry.data.is_empty() {
                continue;
            }
            if entry.get_entry_type() == EntryType::EntryConfChange {
                self.apply_change(&entry)?;
                continue;
            }
            let commands = postcard::from_bytes(&entry.data)?;
            progress.committed.push(Committed { index: entry.index, term: entry.term, commands });
        }
        Ok(bytes)
    }

    fn apply_change(&mut self, entry: &Entry) -> Result<(), RaftError> {
        if entry.index <= self.raw.store().members_at {
            return Ok(());
        }
        let members = self.raw.apply_conf_change(&ConfChange::parse_from_bytes(&entry.data)?)?;
        self.unsaved.push(Piece::Members { index: entry.index, members: encode(&members) });
        let store = self.raw.mut_store();
        (store.members, store.members_at) = (members, entry.index);
        Ok(())
    }

    /// Makes a snapshot for a member that needs one, and shortens a log that has grown long, in memory and on disk.
    /// `state`: with everything applied that [`Node::ready`] returned.
    pub fn keep_house(&mut self, state: &mut State) -> Result<(), RaftError> {
        self.offer(state)?;
        self.forget()?;
        debug_assert!(self.raw.store().base.0 <= self.applied, "what is forgotten is in the state");
        self.finish_shortening(state)?;
        let table = state.names().table().map_or(0, |table| table.bytes() / TABLE_PARTS);
        if self.log.is_long(self.log_bytes.max(table as usize + STATE_TIMES * self.state_bytes)) {
            self.shorten(state)?;
        }
        Ok(())
    }

    fn finish_shortening(&mut self, state: &mut State) -> Result<(), RaftError> {
        if let Some(table) = self.log.finish_shortening()? {
            let gone = state.names_mut().merged(table);
            self.log.file.let_go(Box::new(gone));
        }
        Ok(())
    }

    /// Keeps few applied entries in memory. A member that lacks older ones is sent a snapshot; once it has installed
    /// that, it gets the later entries from here.
    fn forget(&mut self) -> Result<(), RaftError> {
        let sends = self.others.iter().any(|to| self.courier.is_busy(*to));
        let most = if sends { KEPT_WHILE_SENDING * self.log_bytes } else { self.log_bytes };
        let (applied, store) = (self.applied, self.raw.store());
        if store.bytes <= most {
            return Ok(());
        }
        let mut left = store.bytes;
        let old = store.entries.iter().take_while(|e| {
            left -= e.data.len();
            e.index <= applied && left >= most / 2
        });
        if let Some((index, term)) = old.last().map(|e| (e.index, e.term)) {
            let members = store.members.clone();
            self.raw.mut_store().begin_after(index, term, members);
        }
        Ok(())
    }

    fn offer(&mut self, state: &State) -> Result<(), RaftError> {
        let index = self.applied;
        let store = self.raw.mut_store();
        let least = store.members_at.max(store.base.0);
        let has_one = store.offered.as_ref().is_some_and(|s| s.get_metadata().index >= least);
        if !store.wanted.take() || has_one {
            return Ok(());
        }
        let mut snapshot = Snapshot { data: encode_state(state).into(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (index, store.term(index)?);
        metadata.set_conf_state(store.members.clone());
        store.offered = Some(snapshot);
        self.offered = Some((index, state.names().table().cloned()));
        Ok(())
    }

    fn shorten(&mut self, state: &mut State) -> Result<(), RaftError> {
        let pieces = self.beginning(self.applied, self.raw.store().term(self.applied)?);
        let names = state.names_mut().freeze();
        let rest = state.without_names(encode_state);
        self.state_bytes = rest.len();
        self.log.shorten(names, &rest, &pieces);
        Ok(())
    }

    /// The first pieces of a log that starts with the state after entry `index`.
    fn beginning(&self, index: u64, term: u64) -> Vec<Piece> {
        let store = self.raw.store();
        let later = store.entries.iter().filter(|e| e.index > index);
        let mut pieces = vec![
            Piece::Birth(self.birth.clone()),
            Piece::Snapshot { index, term, members: encode(&store.members) },
            Piece::Vote { term: store.hard.term, vote: store.hard.vote },
        ];
        let Lineage { instance, generation } = self.lineage;
        pieces.extend(instance.map(|instance| Piece::Joined { instance, generation }));
        pieces.extend(later.map(piece_of));
        pieces
    }

    /// Immediately, also in memory.
    #[cfg(test)]
    pub(crate) fn compact_now(&mut self, state: &mut State) -> Result<(), RaftError> {
        self.shorten(state)?;
        while self.log.is_being_shortened() {
            self.finish_shortening(state)?;
            std::thread::yield_now();
        }
        let (index, store) = (self.applied, self.raw.mut_store());
        store.begin_after(index, store.term(index)?, store.members.clone());
        Ok(())
    }
}

/// The content of a log.
fn read(pieces: Vec<Piece>) -> Result<(Kept, Birth, Lineage), RaftError> {
    let mut kept = Kept::default();
    let (mut birth, mut lineage) = (None, Lineage::default());
    for piece in pieces {
        match piece {
            Piece::Birth(first) => {
                if !first.voters.is_empty() {
                    // As if the (empty) state contained everything up to a first entry: so a joiner is sent a snapshot,
                    // which contains the membership.
                    let members = ConfState { voters: first.voters.clone(), ..ConfState::default() };
                    kept.begin_after(1, 1, members);
                    kept.hard.term = 1;
                    lineage.instance = Some(first.instance);
                }
                birth = Some(first);
            }
            Piece::Joined { instance, generation } => {
                lineage = Lineage { instance: Some(instance), generation };
            }
            Piece::Rescued { generation, index, term, members } => {
                (kept.members, kept.members_at) = (ConfState::parse_from_bytes(&members)?, index);
                (kept.hard.term, kept.hard.vote) = (term, 0);
                lineage.generation = generation;
            }
            Piece::Vote { term, vote } => (kept.hard.term, kept.hard.vote) = (term, vote),
            Piece::Entry { index, term, change, data } => kept.append(entry(index, term, change, data))?,
            Piece::Members { index, members } => {
                (kept.members, kept.members_at) = (ConfState::parse_from_bytes(&members)?, index);
            }
            Piece::Snapshot { index, term, members } => {
                kept.begin_after(index, term, ConfState::parse_from_bytes(&members)?);
            }
        }
    }
    kept.hard.commit = kept.base.0.max(kept.members_at).min(kept.last());
    let birth = birth.ok_or(RaftError::Damaged { at: log::HEADER })?;
    Ok((kept, birth, lineage))
}

fn entry(index: u64, term: u64, change: bool, data: Vec<u8>) -> Entry {
    let entry_type = if change { EntryType::EntryConfChange } else { EntryType::EntryNormal };
    Entry { index, term, entry_type, data: data.into(), ..Entry::default() }
}

fn piece_of(entry: &Entry) -> Piece {
    let change = entry.get_entry_type() == EntryType::EntryConfChange;
    Piece::Entry { index: entry.index, term: entry.term, change, data: entry.data.to_vec() }
}

fn encode(message: &impl protobuf::Message) -> Vec<u8> {
    message.write_to_bytes().expect("the library's own message")
}

fn encode_state(state: &State) -> Vec<u8> {
    postcard::to_stdvec(state).expect("plain data")
}

fn decode_state(bytes: &[u8]) -> Result<State, RaftError> {
    if bytes.is_empty() { Ok(State::default()) } else { Ok(postcard::from_bytes(bytes)?) }
}

#[cfg(test)]
mod tests;
