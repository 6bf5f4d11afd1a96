//! A server as a member of a group, whatever its role there: the configuration that it knows, its fence, its tail, the
//! records that its store has not made durable yet, and what it does for other servers: fence, store, list, check,
//! fetch.
//!
//! Invariant: `fence >= entry.epoch`. A message of an epoch below the fence is refused (R1).

use crate::common::api::{Command, StoreCommand, StoreOutcome};
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::run_map::Source;
use crate::common::wait::{CheckFor, ListFor, Wait, place};
use crate::replicated::applying::Applying;
use crate::replicated::tail::Tail;
use bytes::Bytes;
use ebb_types::{
    ChunkId, Content, Cursor, Epoch, GroupEntry, GroupId, Kind, ListPage, ObjectId, PeerMessage, Record,
    Refusal, RequestId, Role, ServerEntry, ServerId, ServerState, Slot, SlotState, TailRun, Version,
    are_sound_or_lost,
};
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Member {
    id: GroupId,
    entry: GroupEntry,
    fence: Epoch,
    pub tail: Tail,
    /// The commit point that the store was last told of on its own.
    noted: Version,
    pub applying: Applying,
    /// Listings requested while records of older epochs were not in the store yet: per requester, its newest request.
    lists: BTreeMap<ServerId, ListFor>,
    /// Scrub checks that wait for a repair here, keyed by the primary that asked.
    checks: BTreeMap<ServerId, CheckFor>,
}

impl Member {
    /// A member whose configuration is not known yet.
    pub fn new(id: GroupId, fence: Epoch, tail: Tail) -> Member {
        Member { id, fence, noted: tail.committed(), tail, ..Member::default() }
    }

    pub fn id(&self) -> GroupId {
        self.id
    }

    pub fn entry(&self) -> &GroupEntry {
        &self.entry
    }

    pub fn epoch(&self) -> Epoch {
        self.entry.epoch
    }

    pub fn fence(&self) -> Epoch {
        self.fence
    }

    /// Whether a newer configuration is known to exist: nothing may be ordered under this one.
    pub fn is_superseded(&self) -> bool {
        self.fence > self.entry.epoch
    }

    /// Takes on a configuration and returns the one before.
    pub fn become_member_of(&mut self, cx: &mut Context, entry: GroupEntry) -> GroupEntry {
        if entry.epoch <= self.entry.epoch {
            cx.bug("an older configuration was adopted");
        }
        self.fence = self.fence.max(entry.epoch);
        std::mem::replace(&mut self.entry, entry)
    }

    /// The metadata service recorded that this epoch serves.
    pub fn record_serving(&mut self) {
        self.entry.fallback = None;
    }

    /// The servers that hold a copy of every write of this epoch, with the role they hold it in.
    pub fn targets(&self) -> impl Iterator<Item = Option<(ServerId, Role)>> + '_ {
        self.entry.slots.iter().map(Slot::target)
    }

    pub fn has_all_targets(&self) -> bool {
        self.targets().all(|target| target.is_some())
    }

    /// Every live member but this one, replicas first.
    pub fn other_copies(&self, cx: &Context) -> Vec<Source> {
        let mut all: Vec<Source> =
            self.entry.members().filter(|(s, _)| *s != cx.me && cx.map.is_live(*s)).collect();
        all.sort_by_key(|(server, role)| (*role != Role::Replica, *server));
        all
    }

    /// Whether members that can be woken may have a copy.
    pub fn others_sleep(&self, cx: &Context) -> bool {
        self.entry.slots.iter().any(|slot| cx.map.sleeps(slot.server))
    }

    /// Whether a member that cannot be asked now may come back, with what no other has.
    pub fn others_may_return(&self, cx: &Context) -> bool {
        self.entry.members().any(|(server, _)| !cx.map.is_live(server) && !cx.map.is_lost(server))
    }

    /// Whether all can be asked that may have a copy: what none of them has is gone. A holder that was dropped while it
    /// was gone keeps what it has until the members are complete, and may come back with it. A member that was declared
    /// lost has nothing, and its slot may be waiting for the others to be complete (seed 30266000144).
    pub fn all_live(&self, cx: &Context) -> bool {
        let may_return = |s: &ServerEntry| matches!(s.state, ServerState::Failed | ServerState::Waking);
        !self.others_may_return(cx) && (self.entry.is_complete() || !cx.map.servers.values().any(may_return))
    }

    /// Every live server, as a former holder that was replaced while it was gone: it keeps what may be needed.
    pub fn former_holders(&self, cx: &Context) -> Vec<Source> {
        let live = || cx.map.servers.values().filter(|s| s.id != cx.me && s.state.is_live());
        let of = |slot: &Slot| {
            let role = Role::Offload { stands_for: slot.server };
            live().map(move |s| (s.id, role))
        };
        self.entry.slots.iter().flat_map(of).collect()
    }

    /// The epoch from which on a source is asked. Offload from before its slot went away should have been dropped, and
    /// may have been deleted elsewhere since.
    pub fn asked_since(&self, (_, role): Source, since: Epoch) -> Epoch {
        let Role::Offload { stands_for } = role else { return since };
        match self.entry.slot_of(stands_for).map(|slot| slot.state) {
            Some(SlotState::CatchingUp { since: other } | SlotState::Away { since: other })
                if !self.entry.salvage =>
            {
                since.max(other)
            }
            _ => since,
        }
    }

    /// A commit of an older epoch settles nothing here: this member may not have been part of that epoch, and its tail
    /// may be older still. `complete`: this replica misses nothing and repairs nothing.
    pub fn commit_of(&mut self, cx: &mut Context, epoch: Epoch, committed: Version, complete: bool) {
        if committed.epoch == epoch {
            self.tail.commit(committed);
            self.forget_deletions(cx, complete);
        }
    }

    /// Has the store record what is on all targets, if that has changed. Else it learns it from the next record, and a
    /// crash before that leaves the last one in the tail.
    pub fn note_commit(&mut self, cx: &mut Context) {
        /// No client writes there: no deletion of it hides the note.
        const NOWHERE: ChunkId = ChunkId { object: ObjectId(u64::MAX), index: u32::MAX };
        let version = self.tail.committed();
        if version <= self.noted {
            return;
        }
        self.noted = version;
        let request = Some(RequestId { client: 0, seq: 0 });
        let (group, chunk, content) = (self.id, NOWHERE, Content::Note);
        let record = Record { group, chunk, first: 0, count: 1, version, request, content };
        let (role, payload, must_fit, committed) = (Role::Replica, Bytes::new(), true, version);
        let command = StoreCommand::Apply { role, record, payload, must_fit, committed };
        cx.store(Wait::CommitNoted, command);
    }

    pub fn commit_noted(&mut self, is_durable: bool) {
        if !is_durable {
            self.noted = Version::ZERO; // the next heartbeat tries again
        }
    }

    /// Has the store forget the deletions that no replica can miss any more: all slots are in sync, and all of them
    /// have every committed write. A replica that falls behind from now on misses only newer writes, or compares all
    /// that it has with a complete copy. No record older than a deletion reaches the store any more: it is refused, or
    /// known to be there ([`Member::admit_record`]). The exception is a repair, which is waited for.
    pub fn forget_deletions(&mut self, cx: &mut Context, complete: bool) {
        let (group, up_to) = (self.id, self.tail.committed());
        let all_have_them = self.entry.is_in_sync() || cx.config.has(PlantedBug::ForgetEarly);
        let settled = up_to.epoch == self.entry.epoch && self.fence == self.entry.epoch;
        let here = self.entry.slot_of(cx.me).is_some();
        if all_have_them && settled && here && complete && self.tail.forget_deletions() {
            cx.out.push(Command::ForgetTombstones { group, up_to });
        }
    }

    /// R1. Epoch numbers come from the replicated metadata service, so a higher one in any message proves that the
    /// older configuration has ended.
    fn fence_to(&mut self, epoch: Epoch) -> Result<(), Refusal> {
        if epoch < self.fence {
            return Err(Refusal::Stale { newest: self.fence });
        }
        self.fence = epoch;
        Ok(())
    }

    /// The answer to a question of an older epoch: what it asks for may have been dropped in this one, while the store
    /// read it, and would look like nothing (seed 33000000237).
    pub fn stale(&self) -> Refusal {
        Refusal::Stale { newest: self.entry.epoch }
    }

    /// `ready`: the metadata service counts on this incarnation, and the store works.
    pub fn admit(&mut self, ready: bool, epoch: Epoch) -> Result<(), Refusal> {
        if !ready {
            return Err(Refusal::NotReady);
        }
        self.fence_to(epoch)
    }

    /// The tail of a server that the metadata service does not know yet cannot be trusted to be complete: no answer.
    pub fn on_fence(&mut self, cx: &mut Context, from: ServerId, epoch: Epoch, done: Vec<TailRun>) {
        if self.fence_to(epoch).is_err() {
            return;
        }
        done.into_iter().for_each(|run| self.tail.remember(run));
        let (tail, done, forgotten) = (self.tail.uncommitted(), self.tail.done(), self.tail.forgotten());
        cx.send(from, PeerMessage::FenceReply { group: self.id, epoch, tail, done, forgotten });
    }

    /// Whether a record that another server sent is to be stored. `false`: it is there, or is being stored, and the
    /// sender gets its reply.
    pub fn admit_record(
        &mut self,
        cx: &mut Context,
        (from, epoch): (ServerId, Epoch),
        (role, record): (Role, &Record),
        payload: &Bytes,
        must_fit: bool,
    ) -> Result<bool, Refusal> {
        if let Err(stale) = self.fence_to(epoch)
            && !cx.config.has(PlantedBug::SkipFence)
        {
            return Err(stale);
        }
        let (version, first) = (record.version, record.first);
        if version.epoch == epoch && version <= self.tail.committed() {
            // A late resend over another connection: a deletion may have followed and been forgotten.
            self.answer_record(cx, (from, epoch), (version, first), Ok(()));
            return Ok(false);
        }
        if self.applying.join(cx, (from, epoch), place(role, record)) {
            return Ok(false);
        }
        if record.fault(payload.len()).is_some() || record.version.epoch > epoch {
            return Err(Refusal::Malformed);
        }
        if let Content::Data { crcs } = &record.content
            && !are_sound_or_lost(crcs, payload)
        {
            cx.shared.stats.damage.garbled += 1;
            return Err(Refusal::Malformed);
        }
        // R10: new client writes are refused early; what keeps acknowledged data safe may use the reserve.
        if cx.full && !must_fit {
            return Err(Refusal::NoSpace);
        }
        if matches!(role, Role::Offload { .. }) {
            cx.shared.stats.offloaded_bytes += payload.len() as u64;
        }
        Ok(true)
    }

    /// Stores a record that was admitted.
    pub fn take_record(
        &mut self,
        cx: &mut Context,
        asker: (ServerId, Epoch),
        (role, record): (Role, Record),
        payload: Bytes,
        must_fit: bool,
    ) {
        self.tail.push(TailRun { run: record.run(), request: record.request });
        let wait = Wait::Foreign { askers: vec![asker], place: place(role, &record) };
        let committed = self.tail.committed();
        self.applying.apply(cx, wait, (role, record), payload, must_fit, committed);
    }

    pub fn answer_record(
        &self,
        cx: &mut Context,
        (to, epoch): (ServerId, Epoch),
        (version, first): (Version, u32),
        result: Result<(), Refusal>,
    ) {
        cx.send(to, PeerMessage::ReplicateReply { group: self.id, epoch, version, first, result });
    }

    /// Another server wants a listing: only its newest request waits for a reply.
    pub fn list_for(&mut self, to: ServerId, list: ListFor) {
        let waits = self.lists.entry(to).or_insert(list);
        if waits.came < list.came {
            *waits = list;
        }
    }

    /// Gives the store the listings that others wait for. A record of an older epoch that the store is still applying
    /// may be on all other targets of that epoch and then be acknowledged, so a listing must not overtake it. Offload
    /// for a slot is listed only while the configuration says that it is kept: once dropped, it would list as nothing
    /// missed.
    pub fn give_listings(&mut self, cx: &mut Context) {
        let (group, applying, entry) = (self.id, &self.applying, &self.entry);
        // In a salvage, whatever a holder has counts.
        let all_counts = entry.salvage && !cx.config.has(PlantedBug::WithholdFromSalvage);
        self.lists.retain(|&to, list| {
            let ListFor { epoch, token, role, since, after, .. } = *list;
            if applying.has_direct_before(epoch) {
                return true;
            }
            match role {
                Role::Offload { stands_for } if !all_counts && !entry.is_source(cx.me, stands_for) => {
                    cx.send(to, PeerMessage::ListReply { group, token, result: Err(Refusal::NotReady) });
                }
                _ => {
                    let command = StoreCommand::List { role, group, since, after };
                    cx.store(Wait::ListFor { to, list: *list }, command);
                }
            }
            false
        });
    }

    pub fn answer_listing(
        &self,
        cx: &mut Context,
        to: ServerId,
        list: &ListFor,
        result: Result<ListPage, Refusal>,
    ) {
        cx.send(to, PeerMessage::ListReply { group: self.id, token: list.token, result });
    }

    pub fn answer_fetch(&self, cx: &mut Context, to: ServerId, token: u64, outcome: StoreOutcome) {
        let (result, payload) = match outcome {
            StoreOutcome::Read { records, payload } => (Ok(records), payload),
            StoreOutcome::Damaged { all: true, .. } => (Err(Refusal::Lost), Bytes::new()),
            StoreOutcome::Damaged { .. } => (Err(Refusal::Corrupt), Bytes::new()),
            StoreOutcome::Failed(refusal) => (Err(refusal), Bytes::new()),
            _ => unreachable!("the store answers a read with blocks"),
        };
        cx.send_with(to, PeerMessage::FetchReply { group: self.id, token, result }, payload);
    }

    /// Reads blocks that a primary wants to compare.
    pub fn read_check(&mut self, cx: &mut Context, to: ServerId, check: CheckFor) {
        let CheckFor { role, chunk, first, count, .. } = check;
        let command = StoreCommand::Check { role, group: self.id, chunk, first, count, bytes: false };
        cx.store(Wait::CheckFor { to, check }, command);
    }

    pub fn answer_check(
        &self,
        cx: &mut Context,
        to: ServerId,
        token: u64,
        result: Result<Vec<Record>, Refusal>,
    ) {
        cx.send(to, PeerMessage::CheckReply { group: self.id, token, result });
    }

    /// Its blocks are being repaired.
    pub fn check_later(&mut self, to: ServerId, check: CheckFor) {
        self.checks.insert(to, check);
    }

    /// Damaged blocks were repaired: reads them again.
    pub fn give_checks(&mut self, cx: &mut Context) {
        for (to, check) in std::mem::take(&mut self.checks) {
            self.read_check(cx, to, check);
        }
    }

    pub fn refuse_checks(&mut self, cx: &mut Context, refusal: Refusal) {
        for (to, check) in std::mem::take(&mut self.checks) {
            self.answer_check(cx, to, check.token, Err(refusal));
        }
    }
}

/// The first lost block of a listing after `after`, and the version that it was not newer than.
pub(crate) fn first_lost(page: &ListPage, after: Option<Cursor>) -> Option<(Cursor, Version)> {
    page.runs.iter().filter(|run| run.kind == Kind::Lost).find_map(|run| {
        let first = match after {
            Some(after) if after.chunk == run.chunk => run.first.max(after.block + 1),
            _ => run.first,
        };
        let behind = after.is_none_or(|after| after.chunk <= run.chunk) && first < run.first + run.count;
        behind.then_some((Cursor { chunk: run.chunk, block: first }, run.version))
    })
}
