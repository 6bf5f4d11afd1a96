//! A server's state for one chunk group, and the context that its handlers work in.

use crate::api::{ClientToken, Command, StoreCommand, StoreToken};
use crate::catch_up::CatchUp;
use crate::primary::Primary;
use crate::repair::Repair;
use crate::replica::{Config, PlantedBug};
use crate::run_map::without;
use crate::scrub::{CheckFor, Pace, Scrub, Scrubbed, Wanted};
use bytes::Bytes;
use ebb_types::{
    ChunkId, ChunkOp, ClientReply, ClusterMap, Content, Cursor, Epoch, GroupEntry, GroupId, Incarnation,
    Kind, Moment, PeerMessage, Record, RecoveredTail, RequestId, Run, ServerId, ServerReport, Space, StoreId,
    TailRun, Unready, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) struct Group {
    pub id: GroupId,
    pub entry: GroupEntry,
    /// Any message of an older epoch is refused (R1). Never lower than `entry.epoch`.
    pub fence: Epoch,
    pub tail: Tail,
    pub applying: Applying,
    /// Present while `entry.primary` is this server.
    pub primary: Option<Primary>,
    /// Present while this server's slot catches up.
    pub catch_up: Option<CatchUp>,
    /// Client requests that wait until this server serves, or learns which server does.
    pub waiting: VecDeque<Waiting>,
    /// Listings requested while records of older epochs were not in the store yet: per requester, its newest request.
    pub lists: BTreeMap<ServerId, ListFor>,
    /// Damaged blocks that are being fetched from other copies, in this epoch.
    pub repairs: BTreeMap<u64, Repair>,
    /// Present while this primary compares a page of the copies, in this epoch.
    pub scrub: Option<Scrub>,
    /// Scrub checks that wait for a repair here, keyed by the primary that asked.
    pub checks: BTreeMap<ServerId, CheckFor>,
}

/// A listing that another server requested, with the epoch of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListFor {
    /// Arrival number: later requests have larger ones.
    pub came: u64,
    pub epoch: Epoch,
    pub token: u64,
    pub space: Space,
    pub since: Epoch,
    pub after: Option<Cursor>,
    /// Repair of lost blocks was tried up to here.
    pub tried: Option<Cursor>,
}

#[derive(Clone)]
pub(crate) struct Waiting {
    pub token: ClientToken,
    pub op: ChunkOp,
    pub payload: Bytes,
    pub since: Version,
    /// It was ordered before: copies may exist, whether or not this server's store took it.
    pub ordered: bool,
}

impl Waiting {
    /// Replies to a request that is not carried out now. One that was ordered before may still take effect: its client must not
    /// treat it as new.
    pub fn turn_away(self, cx: &mut Context, reply: ClientReply) {
        match self.ordered {
            true => cx.reply_retry(self.token, Unready::Interrupted),
            false => cx.reply(self.token, reply),
        }
    }
}

impl Group {
    /// A group whose configuration is not known yet. `remembered`: number of records kept for their request ids.
    pub fn new(id: GroupId, remembered: usize) -> Group {
        Group {
            id,
            fence: Epoch(0),
            entry: GroupEntry::unknown(),
            tail: Tail::new(remembered),
            applying: Applying::default(),
            primary: None,
            catch_up: None,
            waiting: VecDeque::new(),
            lists: BTreeMap::new(),
            repairs: BTreeMap::new(),
            scrub: None,
            checks: BTreeMap::new(),
        }
    }

    /// True while this group needs `on_tick`.
    pub fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
            || !self.applying.is_empty()
            || self.catch_up.is_some()
            || !self.repairs.is_empty()
            || self.scrub.is_some()
            || self.primary.as_ref().is_some_and(|p| p.is_busy(&self.tail))
    }

    /// Whether this request's write of these blocks is on all targets. A note on all targets does not prove it while the blocks
    /// are still to be rewritten.
    pub fn is_done(&self, request: RequestId, chunk: ChunkId, blocks: (u32, u32)) -> bool {
        let primary = self.primary.as_ref().filter(|p| !p.is_settling(chunk, blocks));
        let ordered_here =
            |v: Version| v.epoch == self.entry.epoch && primary.is_some_and(|p| !p.is_in_flight(v.seq));
        self.tail.covers(request, blocks, ordered_here)
    }

    /// Has the store forget the deletions that no replica can miss any more: all slots are in sync, and all of them have every
    /// committed write. A replica that falls behind from now on misses only newer writes, or compares all that it has with a
    /// complete copy. No record older than a deletion reaches the store any more: it is refused, or known to be there
    /// ([`Group::on_replicate`]). The exception is a repair, which is waited for.
    pub fn forget_deletions(&mut self, cx: &mut Context) {
        let (group, up_to) = (self.id, self.tail.committed());
        let all_have_them = self.entry.is_in_sync() || cx.config.has(PlantedBug::ForgetEarly);
        let settled = up_to.epoch == self.entry.epoch && self.fence == self.entry.epoch;
        let here = self.entry.slot_of(cx.me).is_some() && self.catch_up.is_none();
        if all_have_them && settled && here && self.repairs.is_empty() && !self.tail.forgot_deletions {
            cx.out.push(Command::ForgetTombstones { group, up_to });
            self.tail.forgot_deletions = self.tail.newest_deletion <= up_to;
        }
    }

    /// The servers that hold a copy of every write of this epoch, with the role they hold it in.
    pub fn targets(&self) -> impl Iterator<Item = Option<(ServerId, Space)>> + '_ {
        self.entry.slots.iter().map(|slot| slot.target())
    }
}

/// The records that a server has and does not know to be on all targets (`runs`), and the last of those that are (`done`), for
/// their request ids.
///
/// Invariant: every request that took effect under a version after [`Tail::forgotten`] is in one of the two, by its own record
/// or by a later note.
#[derive(Default)]
pub(crate) struct Tail {
    runs: BTreeMap<TailPlace, TailRun>,
    done: BTreeMap<TailPlace, TailRun>,
    /// The records of each request in `done`.
    requests: BTreeMap<RequestId, Vec<TailPlace>>,
    remembered: usize,
    committed: Version,
    /// Anything received before this version was received by an earlier incarnation.
    began: Version,
    /// The newest record evicted from `done`.
    evicted: Version,
    newest_deletion: Version,
    /// The store remembers no deletion of the group. False at start: what recovery found is not known here.
    forgot_deletions: bool,
}

/// Identifies a record within a tail: pieces of one large write share a version.
type TailPlace = (Version, ChunkId, u32, u32);

fn tail_place(run: &Run) -> TailPlace {
    (run.version, run.chunk, run.first, run.count)
}

impl Tail {
    pub fn new(remembered: usize) -> Tail {
        Tail { remembered, ..Tail::default() }
    }

    /// The tail found at start. It may be behind what this server knew before, as if messages had been lost.
    pub fn restored(remembered: usize, found: RecoveredTail) -> Tail {
        let RecoveredTail { committed, open, done } = found;
        let mut tail = Tail { committed, ..Tail::new(remembered) };
        open.into_iter().for_each(|run| tail.push(run));
        done.into_iter().for_each(|run| tail.remember(run));
        tail
    }

    pub fn committed(&self) -> Version {
        self.committed
    }

    pub fn push(&mut self, run: TailRun) {
        let Run { version, kind, .. } = run.run;
        if kind == Kind::Delete {
            self.newest_deletion = self.newest_deletion.max(version);
            self.forgot_deletions = false;
        }
        if version > self.committed {
            self.runs.entry(tail_place(&run.run)).or_insert(run);
        }
    }

    /// Whether the tail has a record of this version of the chunk, which therefore may not be on all targets.
    pub fn has(&self, chunk: ChunkId, version: Version) -> bool {
        let all = (version, chunk, 0, 0)..=(version, chunk, u32::MAX, u32::MAX);
        self.runs.range(all).next().is_some()
    }

    /// Removes a record that the store did not take: this server does not have it.
    pub fn remove(&mut self, version: Version) {
        self.runs.retain(|place, _| place.0 != version);
    }

    /// Every write up to `version` is on all targets of its epoch. A record of an older epoch leaves the tail: the primary
    /// of this epoch has rewritten its blocks, and has noted its request if the write took effect.
    pub fn commit(&mut self, version: Version) {
        if version <= self.committed {
            return;
        }
        self.committed = version;
        let after = Version { seq: version.seq + 1, ..version };
        let open = self.runs.split_off(&(after, ChunkId::default(), 0, 0));
        let settled = std::mem::replace(&mut self.runs, open).into_values();
        settled.filter(|r| r.run.version.epoch == version.epoch).for_each(|r| self.remember(r));
    }

    /// Keeps a record that is on all targets, so that a retry of its request is recognised.
    pub fn remember(&mut self, run: TailRun) {
        let (Some(request), place) = (run.request, tail_place(&run.run)) else { return };
        if self.done.insert(place, run).is_none() {
            self.requests.entry(request).or_default().push(place);
        }
        if self.done.len() > self.remembered
            && let Some((place, TailRun { request: Some(oldest), .. })) = self.done.pop_first()
        {
            self.evicted = self.evicted.max(place.0);
            let mut left = self.requests.remove(&oldest).unwrap_or_default();
            left.retain(|other| *other != place);
            if !left.is_empty() {
                self.requests.insert(oldest, left);
            }
        }
    }

    /// The metadata service has counted on this incarnation since this epoch.
    pub fn begin(&mut self, epoch: Epoch) {
        self.began = Version::first_of(epoch);
    }

    pub fn evicted(&self) -> Version {
        self.evicted
    }

    /// Up to this version it may have seen requests that it does not remember.
    pub fn forgotten(&self) -> Version {
        self.began.max(self.evicted)
    }

    pub fn uncommitted(&self) -> Vec<TailRun> {
        self.runs.values().copied().collect()
    }

    pub fn done(&self) -> Vec<TailRun> {
        self.done.values().copied().collect()
    }

    /// Whether a record of the request may be on some targets.
    pub fn knows(&self, request: RequestId) -> bool {
        self.requests.contains_key(&request) || self.runs.values().any(|r| r.request == Some(request))
    }

    /// Whether the request's records cover these blocks, counting those done and those that are `settled`. A deletion covers no
    /// blocks.
    pub fn covers(
        &self,
        request: RequestId,
        (first, count): (u32, u32),
        settled: impl Fn(Version) -> bool,
    ) -> bool {
        let open = self.runs.values().filter(|r| r.request == Some(request) && settled(r.run.version));
        let done = self.requests.get(&request).into_iter().flatten().filter_map(|place| self.done.get(place));
        let mut found = false;
        let mut left = if count > 0 { vec![(first, first.saturating_add(count))] } else { Vec::new() };
        for TailRun { run, .. } in open.chain(done) {
            found = true;
            left = without(left, run.first, run.first + run.count);
        }
        found && left.is_empty()
    }
}

/// Records that the store has not made durable yet. A read may overtake them, or may see one that is lost after all.
#[derive(Default)]
pub(crate) struct Applying {
    /// With the run that the record sets in the replica, if any.
    records: BTreeMap<StoreToken, Option<Run>>,
    /// Records that this server ordered or was sent (not those it fetched), with the epoch that they came under.
    direct: BTreeMap<StoreToken, Epoch>,
    /// Records that another server sent.
    foreign: BTreeMap<Place, StoreToken>,
}

/// Identifies a record: pieces of one large write share a version.
pub(crate) type Place = (Space, ChunkId, Version, u32, u32);

pub(crate) fn place(space: Space, record: &Record) -> Place {
    (space, record.chunk, record.version, record.first, record.count)
}

impl Applying {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn has_direct(&self) -> bool {
        !self.direct.is_empty()
    }

    /// Whether any direct record came under an older epoch.
    pub fn has_direct_before(&self, epoch: Epoch) -> bool {
        self.direct.values().any(|e| *e < epoch)
    }

    pub fn tokens(&self) -> impl Iterator<Item = StoreToken> + '_ {
        self.records.keys().copied()
    }

    pub fn apply(
        &mut self,
        cx: &mut Context,
        wait: Wait,
        (space, record): (Space, Record),
        payload: Bytes,
        must_fit: bool,
        committed: Version,
    ) {
        let group = record.group;
        let sets = space == Space::Replica && record.content != Content::Note;
        let run = sets.then(|| record.run());
        let (direct, foreign) = match &wait {
            Wait::Own { epoch, .. } => (Some(*epoch), None),
            Wait::Foreign { askers, place } => (askers.first().map(|(_, epoch)| *epoch), Some(*place)),
            _ => (None, None),
        };
        let command = match wait {
            Wait::CatchUpApplied { .. } if cx.config.has(PlantedBug::ReclaimOlder) => {
                let version = Version { epoch: record.version.epoch.next(), seq: 1 << 40 };
                let record = Record { version, ..record };
                StoreCommand::Apply { space, record, payload, must_fit, committed }
            }
            _ => StoreCommand::Apply { space, record, payload, must_fit, committed },
        };
        let token = cx.store(group, wait, command);
        self.records.insert(token, run);
        if let Some(epoch) = direct {
            self.direct.insert(token, epoch);
        }
        if let Some(place) = foreign {
            self.foreign.insert(place, token);
        }
    }

    /// If the store is already working on this record, lets its sender wait for the same completion and returns true.
    pub fn join(&self, cx: &mut Context, (from, epoch): (ServerId, Epoch), place: Place) -> bool {
        let Some(token) = self.foreign.get(&place) else { return false };
        let Some((_, Wait::Foreign { askers, .. })) = cx.shared.waits.get_mut(token) else { return false };
        if !askers.contains(&(from, epoch)) {
            askers.push((from, epoch));
        }
        true
    }

    /// The store is done with a command. If it was one of these records, returns the run that it set in the replica, if any.
    pub fn ended(&mut self, token: StoreToken, wait: &Wait) -> Option<Option<Run>> {
        self.direct.remove(&token);
        if let Wait::Foreign { place, .. } = wait {
            self.foreign.remove(place);
        }
        self.records.remove(&token)
    }
}

/// Why a store command was given: what to do when it ends.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// The primary's own copy of an ordered record.
    Own {
        seq: u64,
        epoch: Epoch,
    },
    /// A record from other servers: reply to each sender, under the epoch that its copy came with.
    Foreign {
        askers: Vec<(ServerId, Epoch)>,
        place: Place,
    },
    /// Blocks that an operation needs.
    OpRead {
        op: u64,
        epoch: Epoch,
        first: u32,
    },
    /// A repair writes records from another copy; `RepairChecked` then reads the blocks back.
    RepairWritten {
        repair: u64,
    },
    RepairChecked {
        repair: u64,
    },
    /// A listing of this replica, to be compared with the other copies.
    ScrubList {
        question: u64,
    },
    /// Blocks that the primary compares: reply with their versions and checksums.
    CheckFor {
        to: ServerId,
        check: CheckFor,
    },
    /// Another server's listing or fetch: reply to it.
    ListFor {
        to: ServerId,
        list: ListFor,
    },
    FetchFor {
        to: ServerId,
        token: u64,
        space: Space,
    },
    /// Which blocks of the tails does the store have?
    Settlement {
        epoch: Epoch,
    },
    /// Which of the listed runs do we lack?
    CatchUpNewer {
        token: u64,
    },
    /// Which runs do we have that no source listed?
    CatchUpOwn {
        token: u64,
    },
    /// A fetched record.
    CatchUpApplied {
        token: u64,
    },
    /// Cover: the runs that the holder must get, then their content.
    CoverList {
        epoch: Epoch,
        stands_for: ServerId,
    },
    CoverRead {
        epoch: Epoch,
        stands_for: ServerId,
        run: Run,
    },
}

/// The rest of the server, as far as handlers of one group may use it.
pub(crate) struct Context<'a> {
    pub now: Moment,
    pub me: ServerId,
    pub config: &'a Config,
    pub map: &'a ClusterMap,
    pub lease_until: Moment,
    pub draining: bool,
    pub full: bool,
    pub shared: &'a mut Shared,
    pub out: &'a mut Vec<Command>,
}

/// State of the server that all groups share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Base of this incarnation's correlation ids.
    first_question: u64,
    next_token: u64,
    pub waits: BTreeMap<StoreToken, (GroupId, Wait)>,
    pub stats: crate::api::Stats,
    /// Fetches in flight over all groups: bounds memory and the share that catch-up takes from clients.
    pub fetches: usize,
    /// Groups that would fetch more if allowed to, with their number of complete copies.
    pub hungry: BTreeSet<(usize, GroupId)>,
    /// Client operations in flight: while there are any, catch-up takes less.
    pub client_ops: usize,
    /// Servers that refused a write for lack of space, and when.
    pub full_peers: BTreeMap<ServerId, Moment>,
    /// Scrubs that members want of groups whose primary is this server; their pace; and results for replicas here.
    pub scrub_wanted: BTreeMap<GroupId, Wanted>,
    pub scrub_pace: Pace,
    pub scrubbed: Vec<Scrubbed>,
    /// When each other server was last heard, and when it was last reported as silent.
    pub heard: BTreeMap<ServerId, Moment>,
    suspected: BTreeMap<ServerId, Moment>,
}

impl Shared {
    pub fn new(run: Incarnation, store: StoreId) -> Shared {
        Shared { first_question: run.fingerprint(store), ..Shared::default() }
    }

    pub fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// A correlation id for a request to another server. No earlier incarnation used it: a late reply to that incarnation, taken
    /// for a reply to this one, would leave a hole. Every incarnation counts from its own base among 2^64.
    pub fn question(&mut self) -> u64 {
        self.first_question.wrapping_add(self.token())
    }
}

impl Context<'_> {
    pub fn store(&mut self, group: GroupId, wait: Wait, command: StoreCommand) -> StoreToken {
        let token = StoreToken(self.shared.token());
        self.shared.waits.insert(token, (group, wait));
        self.out.push(Command::Store { token, command });
        token
    }

    pub fn send(&mut self, to: ServerId, message: PeerMessage) {
        self.send_with(to, message, Bytes::new());
    }

    pub fn send_with(&mut self, to: ServerId, message: PeerMessage, payload: Bytes) {
        self.out.push(Command::Send { to, message, payload });
    }

    pub fn reply(&mut self, token: ClientToken, reply: ClientReply) {
        self.out.push(Command::Reply { token, reply, payload: Bytes::new() });
    }

    pub fn reply_retry(&mut self, token: ClientToken, why: Unready) {
        self.reply(token, ClientReply::Retry { why });
    }

    pub fn report(&mut self, report: ServerReport) {
        self.out.push(Command::Report(report));
    }

    /// Reports a server that has owed a reply since that moment, if it has sent nothing at all for `suspect_after`. The metadata
    /// service wants repeated reports of a silent server, but not one per group.
    pub fn suspect_if_silent(&mut self, (group, epoch): (GroupId, Epoch), server: ServerId, since: Moment) {
        let heard = self.shared.heard.get(&server).copied().unwrap_or(Moment::ZERO);
        let told = self.shared.suspected.get(&server).copied().unwrap_or(Moment::ZERO);
        let silent = self.now.since(heard.max(since)) >= self.config.suspect_after;
        if silent && self.now.since(told) >= self.config.resend_after {
            self.shared.suspected.insert(server, self.now);
            self.report(ServerReport::Suspect { group, epoch, server });
        }
    }

    pub fn has_lease(&self) -> bool {
        self.now < self.lease_until || self.config.has(PlantedBug::IgnoreLease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(epoch: u32, seq: u64, request: u64) -> TailRun {
        let version = Version { epoch: Epoch(epoch), seq };
        let run = Run { chunk: ChunkId::default(), first: 0, count: 1, version, kind: Kind::Data };
        TailRun { run, request: Some(RequestId { client: 1, seq: request }) }
    }

    fn request(seq: u64) -> RequestId {
        RequestId { client: 1, seq }
    }

    fn is_done(tail: &Tail, seq: u64) -> bool {
        tail.covers(request(seq), (0, 1), |_| false)
    }

    #[test]
    fn a_request_is_done_when_its_own_epoch_says_so() {
        let mut tail = Tail::new(100);
        tail.push(run(3, 1, 10));
        tail.push(run(3, 2, 11));
        assert!(!is_done(&tail, 10));
        assert!(tail.covers(request(11), (0, 1), |v| v.seq == 2), "its own primary knows sooner");
        tail.commit(Version { epoch: Epoch(3), seq: 1 });
        assert!(is_done(&tail, 10) && !is_done(&tail, 11));
        assert_eq!(tail.uncommitted().len(), 1);
    }

    #[test]
    fn a_record_that_a_later_epoch_passed_over_is_not_done() {
        let mut tail = Tail::new(100);
        tail.push(run(3, 17, 10));
        tail.push(run(4, 1, 12));
        tail.commit(Version { epoch: Epoch(4), seq: 9 });
        assert!(!is_done(&tail, 10), "its blocks were overridden or ordered anew");
        assert!(is_done(&tail, 12));
        assert!(tail.uncommitted().is_empty());
    }

    #[test]
    fn a_request_of_several_records_is_done_when_all_are() {
        let part = |seq, first| {
            let mut part = run(1, seq, 10);
            part.run.first = first;
            part
        };
        let mut tail = Tail::new(100);
        tail.push(part(1, 0));
        tail.push(part(2, 1));
        tail.commit(Version { epoch: Epoch(1), seq: 1 });
        let both = |tail: &Tail| tail.covers(request(10), (0, 2), |_| false);
        assert!(is_done(&tail, 10) && !both(&tail));
        tail.commit(Version { epoch: Epoch(1), seq: 2 });
        assert!(both(&tail));
    }

    #[test]
    fn the_memory_of_requests_is_bounded() {
        let mut tail = Tail::new(100);
        for n in 1..=1000 {
            tail.push(run(1, n, n));
        }
        tail.commit(Version { epoch: Epoch(1), seq: 1000 });
        assert_eq!((tail.done().len(), tail.requests.len()), (100, 100));
        assert_eq!(tail.forgotten(), Version { epoch: Epoch(1), seq: 900 });
        assert!(is_done(&tail, 1000) && !is_done(&tail, 1));
    }
}
