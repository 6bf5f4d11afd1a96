//! Coders at work, in the world.

use super::{CODED_OP, CODERS, Coder, Job, Part, Stored, Work, strips_of};
use crate::engine::{MILLI, SECOND};
use crate::search::harness::World;
use crate::search::invariants::CODED;
use crate::world::client::{answer_is_garbled, learn};
use crate::world::happening::Message;
use crate::world::net::Node;
use bytes::Bytes;
use ebb_client_core::{CodedWrite, Command, Event, Failure, Orders, Patience, Request};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, ClientRequest, Column, GroupId, Moment,
    RequestId, Rows, ServerId, ServerState, SetEntry, SetId, piece_crcs,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Of a coder's jobs per thousand, those before which it may rest.
const RESTS: u64 = 250;

impl World<'_> {
    pub fn coder(&mut self, id: u32) -> &mut Coder {
        &mut self.harness.coders[(id - CODERS) as usize]
    }

    /// Whether the set takes no writes, for as long as no spare takes a lost server's place: what is written beside the
    /// columns that are gone would not survive another loss.
    pub fn is_exposed(&self, set: SetId) -> bool {
        let state = self.newest_state();
        let Some(set) = state.set(set) else { return false };
        let is_there = |c: &&Column| state.server(c.server).is_some_and(|s| s.state != ServerState::Lost);
        set.columns.iter().filter(is_there).count() <= set.shape.data()
    }

    pub fn employ_coder(&mut self, id: u32, ops: u32) {
        self.coder(id).left = ops;
        self.client_timer(id, MILLI);
    }

    pub fn coder_wakes(&mut self, id: u32) {
        if self.coder(id).work.is_none() {
            return self.next_job(id);
        }
        self.coder_looks(id);
    }

    fn next_job(&mut self, id: u32) {
        let (chunk_bytes, packs, stormy) =
            (self.settings.params().chunk_bytes, self.harness.plan.packs, self.stormy);
        let ruined = self.harness.invariants.ruined.clone();
        let coder = self.coder(id);
        // Nothing is expected of the rest of a pack that is ruined in part.
        coder.open.retain(|chunk, _| !ruined.contains(chunk));
        if coder.view.map().sets.is_empty() {
            self.ask_map(id);
            return self.client_timer(id, 100 * MILLI);
        }
        let (job, stored) = if coder.left > 0 {
            coder.left -= 1;
            let index = coder.random.index(coder.stored.len().max(1));
            match coder.random.below(100) {
                45..=89 if !coder.stored.is_empty() => (Job::Get, coder.stored[index]),
                90..=99 if !coder.stored.is_empty() => (Job::Delete, coder.take_chunk(index)),
                _ => (Job::Put, coder.next_write(chunk_bytes, packs)),
            }
        } else if let Some(stored) = coder.to_read.pop() {
            (Job::Get, stored)
        } else {
            return;
        };
        let longest = coder.random.between(SECOND, 12 * SECOND);
        let deadline = if stormy { longest } else { u64::MAX };
        let patience = Patience { deadline: Duration::from_nanos(deadline), ..Patience::default() };
        coder.work =
            Some(Work { job, stored, write: CodedWrite::default(), parts: BTreeMap::new(), patience });
        self.note(|| {
            format!("coder-{id} begins: {job:?} {}+{} of {}", stored.offset, stored.len, stored.chunk)
        });
        if job == Job::Put && stored.offset > 0 {
            self.count("write to a pack that is not its first");
        }
        if job == Job::Get {
            self.read_columns(id, stored);
        }
        self.coder_looks(id);
    }

    fn ask_map(&mut self, id: u32) {
        let now = Moment(self.now);
        let request = self.coder(id).view.refresh(now);
        self.ask_members(id, request);
    }

    fn read_columns(&mut self, id: u32, stored: Stored) {
        let entry = self.entry_for(id, stored.chunk);
        let ranges = match self.part_of(id, stored) {
            Some((offset, len)) => {
                Rows::new(entry.shape, self.settings.params().chunk_bytes).columns(offset, len)
            }
            None => {
                let column = (stored.first * BLOCK_BYTES as u32, stored.blocks * BLOCK_BYTES as u32);
                vec![column; entry.shape.data()]
            }
        };
        for (column, (offset, len)) in ranges.into_iter().enumerate().filter(|(_, (_, len))| *len > 0) {
            let op = ChunkOp::Read { chunk: stored.chunk, offset, len, must_exist: true };
            self.begin_part(id, column, op, Bytes::new());
        }
    }

    /// The blocks of a write that are read, with packs half the time; `None`: all of every column.
    fn part_of(&mut self, id: u32, stored: Stored) -> Option<(u32, u32)> {
        let packs = self.harness.plan.packs > 0;
        let random = &mut self.coder(id).random;
        if !packs || random.chance(500) {
            return None;
        }
        let count = u64::from(stored.len / BLOCK_BYTES as u32);
        let first = random.below(count);
        let (first, count) = (first as u32, random.between(1, count - first) as u32);
        self.count("part of a coded write read");
        Some((stored.offset + first * BLOCK_BYTES as u32, count * BLOCK_BYTES as u32))
    }

    fn entry_for(&mut self, id: u32, chunk: ChunkId) -> SetEntry {
        let map = self.coder(id).view.map().clone();
        let set = map.set_of(chunk).and_then(|set| map.set(set));
        set.expect("a coder works when it knows the set").clone()
    }

    fn begin_part(&mut self, id: u32, strip: usize, op: ChunkOp, payload: Bytes) {
        let now = Moment(self.now);
        let coder = self.coder(id);
        let Some(work) = &mut coder.work else { return };
        let set = coder.view.map().set_of(work.stored.chunk).expect("the map has it");
        let request = Request::new(now, GroupId::of_column(set, strip), op, work.patience);
        work.parts.insert(strip, Part { request, payload, attempt: 0 });
    }

    fn strip_op(&mut self, id: u32, job: Job, stored: Stored, strip: usize) -> (ChunkOp, Bytes) {
        let entry = self.entry_for(id, stored.chunk);
        let coder = self.coder(id);
        coder.requests += 1;
        let request = RequestId { client: u64::from(id) + 1, seq: coder.requests };
        let chunk = stored.chunk;
        if job == Job::Delete {
            return (ChunkOp::Delete { chunk, request }, Bytes::new());
        }
        let bytes = strips_of(stored, entry.shape, entry.turn(chunk)).swap_remove(strip);
        let (offset, len) = (stored.first * BLOCK_BYTES as u32, bytes.len() as u32);
        if bytes.iter().all(|byte| *byte == 0) {
            return (ChunkOp::Zero { chunk, offset, len, up_to: None, request }, Bytes::new());
        }
        let crcs = piece_crcs(0, &bytes);
        (ChunkOp::Write { chunk, offset, len, request, crcs }, bytes.into())
    }

    /// Gives and takes back strips by the newest configuration, and lets every request look at it.
    fn coder_looks(&mut self, id: u32) {
        let Some((job, stored)) = self.coder(id).work.as_ref().map(|work| (work.job, work.stored)) else {
            return;
        };
        if job != Job::Get {
            let entry = self.entry_for(id, stored.chunk);
            let Some(work) = &mut self.coder(id).work else { return };
            match work.write.next(&entry) {
                Orders::Complete => return self.job_ends(id, true),
                Orders::Go { send, drop } => {
                    drop.iter().for_each(|strip| _ = work.parts.remove(strip));
                    for strip in send {
                        let (op, payload) = self.strip_op(id, job, stored, strip);
                        self.begin_part(id, strip, op, payload);
                    }
                }
            }
        }
        let parts: Vec<usize> =
            self.coder(id).work.iter().flat_map(|work| work.parts.keys().copied()).collect();
        for part in parts {
            let coder = self.coder(id);
            let Some(of) = coder.work.as_ref().and_then(|work| work.parts.get(&part)) else { continue };
            let look = coder.heard.look(&of.request);
            self.part_event(id, part, look);
        }
        self.coder_sleeps(id);
    }

    fn coder_sleeps(&mut self, id: u32) {
        let now = Moment(self.now);
        let due =
            self.coder(id).work.iter().flat_map(|work| work.parts.values()).map(|p| p.request.due()).min();
        if let Some(due) = due {
            self.client_timer(id, due.since(now).as_nanos() as u64);
        }
    }

    fn part_event(&mut self, id: u32, part: usize, event: Event) {
        let now = Moment(self.now);
        let coder = self.coder(id);
        let Some(of) = coder.work.as_mut().and_then(|work| work.parts.get_mut(&part)) else { return };
        let mut commands = Vec::new();
        of.request.on(now, &coder.view, event, &mut commands);
        commands.into_iter().for_each(|command| self.coder_obeys(id, part, command));
    }

    fn coder_obeys(&mut self, id: u32, part: usize, command: Command) {
        match command {
            Command::Send { server, message } => self.try_part(id, part, server, message),
            Command::TryFailed(_) => {
                let parts = self.coder(id).work.as_mut().map(|work| &mut work.parts);
                parts.and_then(|parts| parts.get_mut(&part)).into_iter().for_each(|part| part.attempt = 0);
            }
            Command::Adopt { group, entry } => self.coder(id).view.adopt(group, entry),
            Command::AdoptSet { set, entry } => {
                self.coder(id).view.adopt_set(set, entry);
                self.client_timer(id, 0);
            }
            Command::Heard { .. } => {}
            Command::Wake { set } => {
                let now = Moment(self.now);
                let request = self.coder(id).view.wake(now, set);
                request.iter().for_each(|_| self.count("set asked to wake"));
                self.ask_members(id, request);
            }
            Command::Refresh => self.ask_map(id),
            Command::Close { server } => self.net.reset(Node::Client(id), Node::Server(server)),
            Command::End(Ok(read)) => self.part_ends(id, part, &read.bytes),
            Command::End(Err(Failure::Unserved { .. } | Failure::Unknown { .. } | Failure::Gone)) => {
                self.job_ends(id, false);
            }
            Command::End(Err(Failure::Chunk(why))) => {
                self.part_fails(id, part, why);
            }
        }
    }

    fn try_part(&mut self, id: u32, part: usize, server: ServerId, request: ClientRequest) {
        let coder = self.coder(id);
        coder.attempts += 1;
        let attempt = coder.attempts;
        let Some(of) = coder.work.as_mut().and_then(|work| work.parts.get_mut(&part)) else { return };
        of.attempt = attempt;
        let payload = of.payload.clone();
        let message = Message::Request { attempt, op: CODED_OP, request, payload };
        self.send(Node::Client(id), Node::Server(server), message);
    }

    fn part_ends(&mut self, id: u32, part: usize, bytes: &Bytes) {
        let now = self.now;
        let Some(work) = &mut self.coder(id).work else { return };
        let Some(ended) = work.parts.remove(&part) else { return };
        if work.job != Job::Get {
            let epoch = ended.request.done().expect("a write that ended well was done").epoch;
            work.write.taken(part, epoch);
            // The last one completes the write: all were taken under its epoch.
            work.stored.epoch = epoch;
            return self.client_timer(id, 0);
        }
        let (stored, last) = (work.stored, work.parts.is_empty());
        let entry = self.entry_for(id, stored.chunk);
        let strip = strips_of(stored, entry.shape, entry.turn(stored.chunk)).swap_remove(part);
        let (at, len) = ended.request.op().range();
        let at = (at - stored.first * BLOCK_BYTES as u32) as usize;
        if strip[at..][..len as usize] != **bytes {
            let what = format!("coder-{id} reads other bytes of {} in column {part} at {now}", stored.chunk);
            return self.fail(CODED, what);
        }
        if last {
            self.job_ends(id, true);
        }
    }

    fn part_fails(&mut self, id: u32, part: usize, why: ChunkError) {
        let coder = self.coder(id);
        let Some(work) = &mut coder.work else { return };
        work.parts.remove(&part);
        let (job, chunk, last) = (work.job, work.stored.chunk, work.parts.is_empty());
        let column = coder.view.map().set_of(chunk).map(|set| GroupId::of_column(set, part));
        let known = &self.harness.invariants;
        // A strip that is left may have rotted, and cannot be repaired any more.
        let may_rot = known.rot_seen && !known.lost_columns.is_empty();
        let is_lost = may_rot || column.is_some_and(|column| known.lost_columns.contains(&column));
        // A row of which too few strips are left, none of them damaged, may be the rest of a failed write.
        let is_said = matches!(why, ChunkError::Corrupt | ChunkError::Missing);
        if is_lost && is_said || known.ruined.contains(&chunk) && why == ChunkError::Corrupt {
            self.count("lost coded chunk reported");
        } else if job == Job::Get {
            self.fail(CODED, format!("coder-{id} cannot read column {part} of {chunk}: {why}"));
        }
        // The other columns are read all the same.
        if last || job != Job::Get {
            self.job_ends(id, false);
        }
    }

    fn job_ends(&mut self, id: u32, done: bool) {
        let Some(Work { job, stored, .. }) = self.coder(id).work.take() else { return };
        let end = if done { "done" } else { "given up" };
        self.note(|| format!("coder-{id} {job:?} of {}: {end}", stored.chunk));
        self.count(match (job, done) {
            (Job::Put, true) => "coded chunk stored",
            (Job::Put, false) => "coded chunk given up",
            (Job::Get, true) => "coded chunk read",
            (Job::Get, false) => "coded read given up",
            (Job::Delete, _) => "coded chunk deleted",
        });
        let coder = self.coder(id);
        match (job, done) {
            (Job::Put, true) => coder.stored.push(stored),
            (Job::Delete, true) => coder.deleted.push(stored),
            _ => {}
        }
        let (longest, stormy) = (self.harness.plan.coder_rest, self.stormy);
        let coder = self.coder(id);
        let rests = stormy && longest > 0 && coder.random.chance(RESTS);
        let pause = coder.random.below(if rests { longest } else { 80 * MILLI });
        self.client_timer(id, pause);
    }

    pub fn coder_receives(&mut self, id: u32, from: Node, message: Message) {
        match (message, from) {
            (Message::Reply { attempt, reply, payload }, Node::Server(from)) => {
                self.coder_reply(id, from, attempt, reply, payload);
            }
            (message, _) => {
                if let Some(whole) = learn(&mut self.coder(id).view, message) {
                    self.coder_learned(id, whole);
                }
            }
        }
    }

    fn coder_learned(&mut self, id: u32, whole: bool) {
        if !whole {
            self.ask_map(id);
        }
        self.coder_looks(id);
    }

    fn coder_reply(&mut self, id: u32, from: ServerId, attempt: u64, reply: ClientReply, bytes: Bytes) {
        let coder = self.coder(id);
        coder.heard.from(from);
        let parts = coder.work.iter().flat_map(|work| &work.parts);
        let Some(part) = parts.into_iter().find(|(_, part)| part.attempt == attempt).map(|(n, _)| *n) else {
            return;
        };
        if answer_is_garbled(&reply, 0, &bytes) {
            self.fail("R14", format!("coder-{id}: {from} answers with wrong checksums"));
        }
        self.part_event(id, part, Event::Answered { reply, bytes });
        self.coder_sleeps(id);
    }

    /// The connection to a server broke.
    pub fn coder_link_lost(&mut self, id: u32, server: ServerId) {
        let parts = self.coder(id).work.iter().flat_map(|work| &work.parts);
        let asked: Vec<usize> =
            parts.filter(|(_, part)| part.request.asked() == Some(server)).map(|(n, _)| *n).collect();
        for part in asked {
            self.part_event(id, part, Event::Lost(ebb_client_core::Trouble::Lost));
        }
        self.coder_sleeps(id);
    }
}
