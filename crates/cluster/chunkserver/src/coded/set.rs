//! This server's part in one set: dispatches what concerns it, follows its configuration, drops what no configuration
//! needs.

use super::fill::Fill;
use super::known::{DELETION, Known};
use super::memory::Memory;
use super::page::Scrub;
use super::read::Read;
use super::rebuild::{For, Rebuilds};
use crate::common::api::{Command, StoreCommand, StoreOutcome, StoreToken};
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::deleted::Deleted;
use crate::common::wait::{Ask, ColumnWait, Wait};
use ebb_types::{
    ClientReply, Epoch, Moment, Refusal, Role, ServerId, ServerReport, SetEntry, SetId, SlotState, Version,
};
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct CodedSet {
    pub(super) known: Known,
    pub(super) deleted: Deleted,
    /// Clients' strips that are not durable yet, with the epoch that they were taken under.
    pub(super) storing: BTreeMap<StoreToken, Epoch>,
    /// Questions of other servers that wait for those.
    pub(super) asks: Vec<Ask>,
    pub(super) reads: BTreeMap<u64, Read>,
    pub(super) rebuilds: Rebuilds,
    pub(super) fill: Option<Fill>,
    pub(super) scrub: Option<Scrub>,
    /// The own column is catching up under the present configuration.
    own_catches_up: bool,
    /// In the epoch before this run kept, or had computed again, all that was to be kept here for other columns.
    kept_all: bool,
    forgotten: Forgotten,
    /// Others stand in for the own column.
    is_away: bool,
    /// Deletions of older epochs are to be forgotten.
    forgets: bool,
    /// Deletions that the own column has carried out in this epoch.
    deletions: usize,
    /// Another epoch is asked for: to forget so many deletions, or since what is damaged may be of a write that failed
    /// in this one.
    pub(super) wants_epoch: bool,
    reported: Option<Moment>,
    pub(super) damage_reported: Option<Moment>,
}

/// Whether the set is to sleep as a whole while this server has forgotten what it kept in memory for a column: it was
/// started again, and the set hibernates before that could be computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Forgotten {
    #[default]
    Nothing,
    /// The store is asked whether the own column has anything that another lacks.
    Unknown,
    Something,
}

impl CodedSet {
    pub fn new(id: SetId) -> CodedSet {
        let mut set = CodedSet { is_away: true, ..CodedSet::default() };
        set.known.id = id;
        set
    }

    pub fn epoch(&self) -> Epoch {
        self.known.epoch()
    }

    pub fn fence(&self) -> Epoch {
        self.known.fence
    }

    /// Notes that the store keeps this.
    pub fn keep(&mut self, column: usize, role: Role) {
        self.known.keep(column, role);
    }

    pub fn is_catching_up(&self) -> bool {
        self.own_catches_up && self.fill.as_ref().is_some_and(|fill| !fill.is_complete())
    }

    /// Strips that this server should keep for others may be missing here.
    pub fn recomputes(&self) -> bool {
        self.fill_for_others().is_some_and(|fill| !fill.is_complete())
    }

    fn fill_for_others(&self) -> Option<&Fill> {
        self.fill.as_ref().filter(|fill| fill.columns() > usize::from(self.own_catches_up))
    }

    /// A fill that is complete is over, but for the report that the map has not followed yet.
    pub fn is_busy(&self) -> bool {
        let fills = self.fill.as_ref().is_some_and(|fill| self.own_catches_up || !fill.is_complete());
        fills || !self.rebuilds.is_empty() || !self.reads.is_empty()
    }

    /// A scrub may wait only for time to pass, and keeps no server awake.
    pub fn wants_ticks(&self, memory: &Memory) -> bool {
        self.is_busy() || self.is_scrubbing() || self.owed_asleep(memory).is_some() || self.wants_epoch
    }

    /// R7: the set hibernates, and nothing is in memory only, or was; or its column is away, so others stand in for it,
    /// and nothing is kept for others. Nothing is in flight.
    pub fn may_sleep(&self, memory: &Memory) -> bool {
        let idle = self.storing.is_empty() && self.asks.is_empty() && !self.is_busy();
        let idle = idle && self.forgotten != Forgotten::Unknown;
        let spared = match self.known.entry.hibernates() {
            true => self.owed_asleep(memory).is_none(),
            false => self.is_away && !self.known.keeps_offload(),
        };
        idle && spared
    }

    /// The set is to sleep as a whole, and a column lacks what is here in memory only, or what was before this run. The
    /// metadata service decided by older figures: a row may have been acknowledged since.
    fn owed_asleep(&self, memory: &Memory) -> Option<usize> {
        let lacks = |column: &usize| self.known.entry.missing_since(*column).is_some();
        let first = || (0..self.known.entry.columns.len()).find(lacks);
        let forgotten = (self.forgotten == Forgotten::Something).then(first).flatten();
        self.known.in_memory(memory).or(forgotten).filter(|_| self.known.entry.hibernates())
    }

    /// Whether all that was to be kept here for other columns under the present epoch is.
    fn keeps_all(&self) -> bool {
        let entry = &self.known.entry;
        let all_have = !entry.columns.is_empty() && entry.is_in_sync();
        all_have || self.fill_for_others().map_or(self.kept_all, Fill::is_complete)
    }

    /// Under the epoch in which the set hibernates nothing is computed again.
    fn look_for_forgotten(&mut self, cx: &mut Context) {
        self.forgotten = Forgotten::Nothing;
        let entry = &self.known.entry;
        let own = entry.column_of(cx.me).filter(|own| *own < entry.shape.data());
        let since = (0..entry.columns.len()).filter_map(|column| entry.missing_since(column)).min();
        let may_lack = entry.hibernates() && !self.kept_all && cx.keeps_in_memory(entry);
        if let (Some(own), Some(since)) = (own, since)
            && may_lack
        {
            self.forgotten = Forgotten::Unknown;
            let (group, epoch) = (self.known.group(own), self.epoch());
            let command = StoreCommand::List { role: Role::Replica, group, since, after: None };
            cx.store(Wait::Column(ColumnWait::ForgottenList { epoch }), command);
        }
    }

    /// What cannot be listed may be something.
    fn on_forgotten_list(&mut self, epoch: Epoch, outcome: StoreOutcome) {
        if self.forgotten == Forgotten::Unknown && epoch == self.epoch() {
            let nothing = matches!(outcome, StoreOutcome::Listed(page) if page.runs.is_empty());
            self.forgotten = if nothing { Forgotten::Nothing } else { Forgotten::Something };
        }
    }

    pub fn adopt(&mut self, cx: &mut Context, entry: SetEntry) {
        if entry.epoch > self.epoch() {
            self.kept_all = self.keeps_all();
            self.rebuilds.clear(cx, &self.known, false);
            (self.fill, self.scrub) = (None, None);
            self.known.adopt(entry);
            (self.reported, self.damage_reported) = (None, None);
            (self.deletions, self.wants_epoch) = (0, false);
            for read in std::mem::take(&mut self.reads).into_values() {
                self.finish(cx, read.token, self.moved(), bytes::Bytes::new());
            }
            let own = self.known.entry.columns.iter().find(|own| own.server == cx.me);
            self.is_away = own.is_none_or(|own| own.is_away());
            self.own_catches_up = own.is_some_and(|own| matches!(own.state, SlotState::CatchingUp { .. }));
            if let Some(own) = self.known.entry.column_of(cx.me) {
                self.known.keep(own, Role::Replica);
            }
            self.forgets = self.known.entry.is_in_sync();
            self.fill = Fill::new(cx, &self.known);
            self.look_for_forgotten(cx);
        }
        self.drop_unneeded(cx);
        self.give_asked(cx);
    }

    pub(super) fn moved(&self) -> ClientReply {
        ClientReply::SetMoved { set: self.known.id, entry: self.known.entry.clone() }
    }

    /// Another server that refused an older epoch knows a newer one: so does this server now.
    pub(super) fn fence_to_refusal(&mut self, refusal: Option<&Refusal>) {
        if let Some(Refusal::Stale { newest }) = refusal {
            self.known.fence = self.known.fence.max(*newest);
        }
    }

    pub fn drop_unneeded(&mut self, cx: &mut Context) {
        let early = cx.config.has(PlantedBug::DropStripsEarly);
        for (column, role) in self.known.take_unneeded(cx.me, early) {
            assert!(
                role != Role::Replica || !self.known.is_own(cx.me, column),
                "its own column is needed (R6)"
            );
            let group = self.known.group(column);
            cx.shared.memory.drop_all(group, role);
            cx.out.push(Command::Drop { group, role });
        }
    }

    /// Something else of the map changed.
    pub fn follow_map(&mut self, cx: &mut Context) {
        if let Some(fill) = &mut self.fill {
            fill.follow_map(cx, &self.known, &mut self.rebuilds);
        }
    }

    pub fn peer_lost(&mut self, cx: &mut Context, peer: ServerId) {
        self.rebuilds.peer_lost(cx, &mut self.known, peer);
        if let Some(fill) = &mut self.fill {
            fill.peer_lost(cx, peer);
        }
        self.scrub_lost_peer(cx, peer);
    }

    pub fn tick(&mut self, cx: &mut Context) {
        self.rebuilds.tick(cx, &self.known);
        if let Some(fill) = &self.fill {
            fill.tick(cx, &self.known);
        }
        self.tick_scrub(cx);
    }

    pub fn on_stored(
        &mut self,
        cx: &mut Context,
        token: StoreToken,
        wait: ColumnWait,
        outcome: StoreOutcome,
    ) {
        let failed = matches!(outcome, StoreOutcome::Failed(_));
        let kept = match &wait {
            ColumnWait::Written { kept, .. }
            | ColumnWait::Rebuilt { kept, .. }
            | ColumnWait::FillDeleted { kept, .. }
            | ColumnWait::KeptDeleted { kept } => Some(*kept),
            _ => None,
        };
        self.storing.remove(&token);
        match wait {
            ColumnWait::Written { client, version, kept } => {
                let own = kept.1 == Role::Replica && version.epoch == self.epoch();
                if own && !failed && version.seq == DELETION {
                    self.note_deletion(cx);
                }
                self.on_written(cx, client, version, &outcome);
            }
            ColumnWait::Read { read } => self.on_read(cx, read, outcome),
            ColumnWait::Rebuilt { job, .. } => self.rebuilds.on_stored(cx, &self.known, job, failed),
            ColumnWait::Source { token } => self.rebuilds.on_source(cx, &mut self.known, token, outcome),
            ColumnWait::FillList { token } => {
                if let Some(fill) = &mut self.fill {
                    fill.on_own_list(cx, token, outcome);
                }
            }
            ColumnWait::FillDeleted { pass, .. } => {
                if let Some(fill) = &mut self.fill {
                    fill.on_ended(pass, !failed);
                }
            }
            ColumnWait::KeptList { kept, chunk, version } => {
                self.delete_listed(cx, kept, (chunk, version), outcome)
            }
            // A scrub compares with a server that may not know this epoch yet: nothing else forgets what it found.
            ColumnWait::KeptDeleted { .. } => self.forgets |= self.known.entry.is_in_sync(),
            ColumnWait::ForgottenList { epoch } => self.on_forgotten_list(epoch, outcome),
            ColumnWait::ScrubList { token } => {
                let page = if let StoreOutcome::Listed(page) = outcome { Some(page) } else { None };
                self.on_scrub_listed(cx, (cx.me, token), page);
            }
            ColumnWait::ScrubRead { token } => self.on_scrub_read(cx, token, outcome),
            ColumnWait::ScrubCleared { token } => self.on_scrub_cleared(cx, token),
            ColumnWait::Cleared { read } => self.read_on(cx, read),
            ColumnWait::For(ask) => self.on_asked(cx, &ask, outcome),
        }
        // It may have been dropped while it was on its way to the store.
        if let Some((column, role)) = kept.filter(|_| !failed)
            && self.known.keep(column, role)
        {
            self.drop_unneeded(cx);
        }
        self.give_asked(cx);
    }

    /// Does what can be done now. Called after every event.
    pub fn pump(&mut self, cx: &mut Context) {
        loop {
            if let Some(fill) = &mut self.fill {
                let may_list_own = !self.storing.values().any(|epoch| *epoch < self.known.epoch());
                fill.pump(cx, &self.known, &mut self.rebuilds, may_list_own);
            }
            self.rebuilds.pump(cx, &mut self.known);
            let ended = self.rebuilds.take_ended();
            if ended.is_empty() {
                break;
            }
            for ended in ended {
                match &ended.wanted {
                    For::Fill { pass } => {
                        let complete = ended.absent.is_empty() && ended.lacking.is_empty() && !ended.failed;
                        let fill = self.fill.as_mut();
                        fill.into_iter().for_each(|fill| fill.on_ended(*pass, complete));
                    }
                    For::Reads(_) => self.on_rebuilt(cx, &ended),
                    For::Scrub { token, .. } => self.on_scrub_rebuilt(cx, *token, ended),
                }
            }
        }
        self.advance_scrub(cx);
        self.report_caught_up(cx);
        self.forget_deletions(cx);
        self.report_owed(cx);
        self.report_deletions(cx);
    }

    /// Has the store forget the own column's deletions of older epochs, under an epoch with all columns in sync. Every
    /// column has carried them out: it was there, or was filled since. None of them takes a strip of such a chunk
    /// again: a server that knows this epoch refuses older ones, and one that does not has forgotten nothing. A column
    /// that falls behind from now on misses only newer deletions, or compares all that it has with the others
    /// ([`Fill`]).
    fn forget_deletions(&mut self, cx: &mut Context) {
        let epoch = self.epoch();
        let keeps = cx.config.has(PlantedBug::KeepTombstones);
        if !self.forgets || keeps || self.storing.values().any(|taken| *taken < epoch) {
            return;
        }
        self.forgets = false;
        if let (Some(own), Some(before)) = (self.known.entry.column_of(cx.me), epoch.0.checked_sub(1)) {
            let up_to = Version { epoch: Epoch(before), seq: u64::MAX };
            cx.out.push(Command::ForgetTombstones { group: self.known.group(own), up_to });
        }
    }

    /// Repeated until the map follows.
    fn report_caught_up(&mut self, cx: &mut Context) {
        let complete = self.own_catches_up && self.fill.as_ref().is_some_and(Fill::is_complete);
        if let Some(own) = self.known.entry.column_of(cx.me)
            && complete
            && self.report_is_due(cx)
        {
            cx.report(ServerReport::CaughtUp { group: self.known.group(own), epoch: self.epoch() });
        }
    }

    /// Repeated until the set does not hibernate.
    fn report_owed(&mut self, cx: &mut Context) {
        let owed = self.owed_asleep(&cx.shared.memory);
        if let Some(column) = owed
            && !cx.config.has(PlantedBug::SleepIndebted)
            && self.report_is_due(cx)
        {
            cx.report(ServerReport::Owes { group: self.known.group(column), epoch: self.epoch() });
        }
    }

    /// A set forgets deletions under a new epoch, and one that is never disturbed gets none. Only where all columns are
    /// in sync would it help.
    fn note_deletion(&mut self, cx: &Context) {
        self.deletions += 1;
        self.wants_epoch |= self.known.entry.is_in_sync() && self.deletions >= cx.config.deletions;
    }

    /// Repeated until it has another epoch.
    fn report_deletions(&mut self, cx: &mut Context) {
        if let Some(own) = self.known.entry.column_of(cx.me)
            && self.wants_epoch
            && self.report_is_due(cx)
        {
            cx.report(ServerReport::Remembers { group: self.known.group(own), epoch: self.epoch() });
        }
    }

    fn report_is_due(&mut self, cx: &Context) -> bool {
        let due = self.reported.is_none_or(|at| cx.now.since(at) >= cx.config.resend_after);
        if due {
            self.reported = Some(cx.now);
        }
        due
    }
}
