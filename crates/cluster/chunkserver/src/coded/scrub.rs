//! Scrub of columns: every server reads and checks its own column when that is due ([`crate::common::due`]), and a
//! parity server compares it with the data.
//!
//! A page is listed here and by the server of the next column that is in sync; then window after window is read. Damage
//! is repaired as for a client, what only the other column has is rebuilt if k strips of it exist, and what the other
//! column has deleted is deleted. A parity server then codes the window again from the k data columns. Where the result
//! differs from its own blocks, it is stored in their place: every block has a checksum of its own, so which strip of a
//! row is wrong cannot be told, but the data is what clients have read.
//!
//! A damaged block of which too few strips exist while every column is in sync and there is the rest of a write that
//! failed, if its epoch has ended: it becomes zeroes that are no strip.
//!
//! Rows are immutable, so nothing waits for a scrub, and nothing that is written meanwhile is in its way. A parity
//! column is scrubbed only while all data columns are in sync. No server is woken for it, and a set that hibernates is
//! not scrubbed. What is kept for other columns is not scrubbed: it is read and checked when they return.

use super::known::{DELETION, cleared, is_no_strip, is_sane};
use super::page::{Scrub, Step, WINDOW, Why, Window, blocks_of, runs_of, same};
use super::rebuild::{Blocks, Candidate, Ended};
use super::set::CodedSet;
use crate::common::api::{StoreCommand, StoreOutcome};
use crate::common::context::Context;
use crate::common::due::Scrubbed;
use crate::common::wait::{ColumnWait, Wait};
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, ClusterMap, Column, Cursor, Epoch, GroupId, ListPage, PeerMessage, Record,
    Role, Rows, ServerId, SlotState, Version,
};

impl CodedSet {
    /// This server's column, and whether it can be scrubbed now.
    pub fn scrubs(&self, me: ServerId, map: &ClusterMap) -> Option<(GroupId, bool)> {
        let entry = &self.known.entry;
        let own = entry.column_of(me)?;
        let whole = self.known.is_whole(me, own) && !entry.hibernates();
        let data = &entry.columns[..entry.shape.data()];
        let may = own < data.len() || data.iter().all(|column| is_there(column, map));
        Some((self.known.group(own), whole && may))
    }

    pub fn is_scrubbing(&self) -> bool {
        self.scrub.is_some()
    }

    pub fn begin_scrub(&mut self, cx: &Context, after: Option<Cursor>) {
        if let Some((group, true)) = self.scrubs(cx.me, cx.map)
            && let Some((_, column)) = group.column()
        {
            self.scrub = Some(Scrub::begin(column, after));
        }
    }

    /// Lists, takes the next window, or ends the page, if no step is in progress and the pace allows it.
    pub(super) fn advance_scrub(&mut self, cx: &mut Context) {
        let may = !cx.draining && self.scrubs(cx.me, cx.map).is_some_and(|(_, may)| may);
        let Some(scrub) = self.scrub.as_mut().filter(|scrub| matches!(scrub.step, Step::Ready)) else {
            return;
        };
        if !may {
            self.scrub = None; // it is asked for again
        } else if !cx.shared.scrubs.may_read(cx.now) {
            // A later tick continues.
        } else if let Some(window) = scrub.windows.pop_front() {
            self.read_window(cx, window);
        } else if scrub.listed {
            let Scrub { column, after, end, sound, .. } = *scrub;
            cx.shared.scrubs.find(Scrubbed { group: self.known.group(column), after, end, sound });
            self.scrub = None;
        } else {
            self.list_for_scrub(cx);
        }
    }

    fn list_for_scrub(&mut self, cx: &mut Context) {
        let Some(scrub) = &mut self.scrub else {
            return cx.bug("a scrub that does not exist listed");
        };
        let (column, after, since) = (scrub.column, scrub.after, Epoch(0));
        let (token, epoch, role) = (cx.shared.peer_token(), self.known.epoch(), Role::Replica);
        let columns = &self.known.entry.columns;
        let others = (1..columns.len()).map(|n| (column + n) % columns.len());
        let other = others.map(|nth| (nth, &columns[nth])).find(|(_, column)| is_there(column, cx.map));
        let other = other.map(|(nth, column)| (nth, column.server));
        let asked = other.map(|(_, server)| (server, cx.now));
        let page = asked.is_none().then(ListPage::default);
        scrub.step = Step::Listing { token, asked, own: None, other: page };
        if let Some((nth, server)) = other {
            let group = self.known.group(nth);
            cx.send(server, PeerMessage::List { group, epoch, token, role, since, after });
        }
        let group = self.known.group(column);
        let wait = Wait::Column(ColumnWait::ScrubList { token });
        cx.store(wait, StoreCommand::List { role, group, since, after });
    }

    /// A listing came, or cannot be had. Without the other one, this server's own is all that is scrubbed.
    pub(super) fn on_scrub_listed(
        &mut self,
        cx: &mut Context,
        (from, asked): (ServerId, u64),
        page: Option<ListPage>,
    ) {
        // Late: that listing is not waited for any more.
        let Some(scrub) = &mut self.scrub else { return };
        let Step::Listing { token, own, other, .. } = &mut scrub.step else { return };
        if *token != asked {
            return;
        }
        if from != cx.me {
            let after = scrub.after;
            let sane = |page: &ListPage| {
                let blocks = CHUNK_BYTES_MAX / BLOCK_BYTES as u32;
                page.next.is_none_or(|next| Some(next) > after)
                    && page.runs.iter().all(|run| is_sane(run, blocks))
            };
            *other = Some(page.filter(sane).unwrap_or_default());
        } else if page.is_some() {
            *own = page;
        } else {
            return self.scrub = None;
        }
        // The other one is still to come.
        let (Some(own), Some(other)) = (own, other) else { return };
        let (own, other) = (std::mem::take(own), std::mem::take(other));
        let deleted = scrub.take_windows(&own, &other);
        scrub.own = own.runs;
        let column = scrub.column;
        for (chunk, version) in deleted {
            self.delete_in(cx, (column, Role::Replica), chunk, version);
        }
    }

    fn read_window(&mut self, cx: &mut Context, window: Window) {
        let Some(scrub) = &mut self.scrub else {
            return cx.bug("a scrub that does not exist read a window");
        };
        let (token, group, role) = (cx.shared.token(), self.known.group(scrub.column), Role::Replica);
        scrub.step = Step::Reading { token, window };
        let rows = Rows::new(self.known.entry.shape, cx.config.chunk_bytes);
        let blocks = rows.column_bytes() / BLOCK_BYTES as u32;
        let (chunk, first) = (window.chunk, window.first);
        let count = WINDOW.min(blocks.saturating_sub(first)).max(1);
        // A page of memory says nothing of what has rotted on the disk since (seed 33700016074).
        let command = StoreCommand::Check { role, group, chunk, first, count, bytes: true };
        cx.store(Wait::Column(ColumnWait::ScrubRead { token }), command);
    }

    pub(super) fn on_scrub_read(&mut self, cx: &mut Context, asked: u64, outcome: StoreOutcome) {
        // Late: another scrub, or none, is under way.
        let Some(Scrub { step: Step::Reading { token, window }, .. }) = self.scrub else { return };
        if token != asked {
            return;
        }
        match outcome {
            StoreOutcome::Read { records, payload } => self.on_scrub_blocks(cx, window, records, &payload),
            StoreOutcome::Damaged { block, lost, .. } if window.is_untried(block) => {
                let why = Why::Damaged { block, lost: lost.is_some() };
                self.rebuild_for_scrub(cx, window, why, vec![(block, 1)]);
            }
            StoreOutcome::Damaged { .. } => self.end_window(cx, false, 0),
            _ => self.scrub = None,
        }
    }

    fn on_scrub_blocks(&mut self, cx: &mut Context, window: Window, records: Vec<Record>, payload: &Bytes) {
        let bytes: usize = payload.len();
        cx.shared.stats.scrub.checked_bytes += bytes as u64;
        let gaps = records.iter().filter(|r| r.is_never_written()).flat_map(|r| r.first..r.first + r.count);
        let missing: Vec<u32> = gaps
            .filter(|block| window.others & window.bit(*block) != 0 && window.is_untried(*block))
            .collect();
        if !missing.is_empty() {
            return self.rebuild_for_scrub(cx, window, Why::Missing, runs_of(&missing));
        }
        let Some(scrub) = &mut self.scrub else {
            return cx.bug("a scrub that does not exist read blocks");
        };
        let (column, data) = (scrub.column, self.known.entry.shape.data());
        let strips = records.iter().filter(|r| !is_no_strip(r));
        let newest = strips.map(|r| r.version).max().unwrap_or(Version::ZERO);
        let own = blocks_of(records, payload);
        let span =
            own.first_key_value().zip(own.last_key_value()).map(|((first, _), (last, _))| (*first, *last));
        let Some((first, last)) = span.filter(|_| column >= data) else {
            return self.end_window(cx, true, bytes as u64);
        };
        let token = cx.shared.token();
        scrub.step = Step::Comparing { token, window, newest, own };
        let of = Blocks { column, chunk: window.chunk, first, count: last - first + 1 };
        let candidates = self.data_of(of);
        self.rebuilds.scrub(&self.known, of, (token, true), (newest, false), candidates);
    }

    /// The data columns of the blocks, each with its own server.
    fn data_of(&self, of: Blocks) -> Vec<Candidate> {
        let data = self.known.entry.columns[..self.known.entry.shape.data()].iter().enumerate();
        data.map(|(column, own)| Candidate { column, server: own.server, first: of.first, count: of.count })
            .collect()
    }

    fn rebuild_for_scrub(&mut self, cx: &mut Context, mut window: Window, why: Why, runs: Vec<(u32, u32)>) {
        let Some(scrub) = &mut self.scrub else {
            return cx.bug("a scrub that does not exist had blocks rebuilt");
        };
        let (token, column, chunk) = (cx.shared.token(), scrub.column, window.chunk);
        for (first, count) in &runs {
            (*first..first + count).for_each(|block| window.tried |= window.bit(block));
        }
        scrub.step = Step::Rebuilding { token, window, jobs: runs.len(), why };
        for (first, count) in runs {
            let of = Blocks { column, chunk, first, count };
            let (version, repair, candidates) = match why {
                Why::Missing => (Version::ZERO, false, self.candidates(cx, of)),
                Why::Damaged { .. } => (Version::ZERO, true, self.candidates(cx, of)),
                Why::Differing { newest, .. } => (newest, true, self.data_of(of)),
            };
            self.rebuilds.scrub(&self.known, of, (token, false), (version, repair), candidates);
        }
    }

    /// A rebuild for the scrub ended.
    pub(super) fn on_scrub_rebuilt(&mut self, cx: &mut Context, asked: u64, ended: Ended) {
        // The scrub that asked has ended.
        let Some(scrub) = &mut self.scrub else { return };
        match &mut scrub.step {
            Step::Rebuilding { token, window, jobs, why } if *token == asked => {
                *jobs -= 1;
                let done = ended.lacking.is_empty() && ended.ruined.is_empty() && !ended.failed;
                scrub.sound &= done;
                if *jobs > 0 {
                    return;
                }
                let window = *window;
                let cleared = |version| Version { seq: DELETION, ..version };
                let all_there = self.known.entry.columns.iter().all(|column| is_there(column, cx.map));
                match *why {
                    Why::Damaged { block, lost } if ended.absent.contains(&block) => {
                        // A block whose version is lost was never written as a whole.
                        let version = match lost {
                            true => Some(Version::ZERO),
                            // Each column in sync has a strip of each row that was acknowledged in earlier epochs.
                            // While one is away, what it has is not known.
                            false => scrub.version_of(window, block).filter(|_| all_there).map(cleared),
                        };
                        return self.clear_for_scrub(cx, window, block, version);
                    }
                    Why::Differing { blocks, .. } if done => cx.shared.stats.scrub.equalled_blocks += blocks,
                    // Judged by what is there when the window is read again.
                    _ => {}
                }
                self.read_window(cx, window);
            }
            Step::Comparing { token, window, newest, own } if *token == asked => {
                let bytes = own.values().map(|bytes| bytes.len() as u64).sum::<u64>();
                let differs = |(block, found): (&u32, &Bytes)| {
                    own.get(block).filter(|own| !same(own, found)).map(|_| *block)
                };
                let differing: Vec<u32> = ended.found.iter().filter_map(differs).collect();
                let (window, newest) = (*window, *newest);
                self.on_compared(cx, (window, newest), &differing, bytes);
            }
            // Of a scrub that has ended.
            _ => {}
        }
    }

    /// `newest`: of the blocks here. `bytes`: how many those are.
    fn on_compared(
        &mut self,
        cx: &mut Context,
        (window, newest): (Window, Version),
        differing: &[u32],
        bytes: u64,
    ) {
        let untried: Vec<u32> = differing.iter().copied().filter(|block| window.is_untried(*block)).collect();
        let read = bytes * (1 + self.known.entry.shape.data() as u64);
        if untried.is_empty() {
            return self.end_window(cx, differing.is_empty(), read);
        }
        cx.shared.stats.scrub.differing_blocks += untried.len() as u64;
        let why = Why::Differing { blocks: untried.len() as u64, newest };
        self.rebuild_for_scrub(cx, window, why, runs_of(&untried));
    }

    /// `version`: of the rest of a write that failed, if it is that. One of this epoch may still succeed.
    fn clear_for_scrub(&mut self, cx: &mut Context, window: Window, block: u32, version: Option<Version>) {
        let (epoch, in_sync) = (self.epoch(), self.known.entry.is_in_sync());
        let Some(version) = version.filter(|version| version.epoch < epoch) else {
            self.wants_epoch |= version.is_some() && in_sync;
            return self.read_window(cx, window);
        };
        let Some(scrub) = &mut self.scrub else {
            return cx.bug("a scrub that does not exist cleared a block");
        };
        let (token, group) = (cx.shared.token(), self.known.group(scrub.column));
        scrub.step = Step::Reading { token, window };
        let command = cleared(group, Role::Replica, (window.chunk, block), version);
        cx.store(Wait::Column(ColumnWait::ScrubCleared { token }), command);
    }

    pub(super) fn on_scrub_cleared(&mut self, cx: &mut Context, asked: u64) {
        if let Some(Scrub { step: Step::Reading { token, window }, .. }) = self.scrub
            && token == asked
        {
            self.read_window(cx, window);
        }
    }

    /// `bytes`: what was read for it, on all servers.
    fn end_window(&mut self, cx: &mut Context, sound: bool, bytes: u64) {
        let Some(scrub) = &mut self.scrub else {
            return cx.bug("a scrub that does not exist ended a window");
        };
        scrub.sound &= sound;
        scrub.step = Step::Ready;
        cx.shared.scrubs.spend(cx.now, bytes);
    }

    /// The connection to a server broke.
    pub(super) fn scrub_lost_peer(&mut self, cx: &mut Context, peer: ServerId) {
        if let Some(Scrub { step: Step::Listing { token, asked: Some((server, _)), .. }, .. }) = self.scrub
            && server == peer
        {
            self.on_scrub_listed(cx, (peer, token), None);
        }
    }

    /// Reports a server that owes its listing and is silent.
    pub(super) fn tick_scrub(&self, cx: &mut Context) {
        if let Some(Scrub { step: Step::Listing { asked: Some((server, since)), other: None, .. }, .. }) =
            self.scrub
        {
            cx.suspect_if_silent(self.known.epoch(), server, since);
        }
    }
}

fn is_there(column: &Column, map: &ClusterMap) -> bool {
    column.state == SlotState::InSync && map.is_live(column.server)
}
