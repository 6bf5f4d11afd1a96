//! What a server knows of one chunk group, and the context that its handlers work in.

use crate::api::{ClientToken, Command, StoreCommand, StoreToken};
use crate::catch_up::CatchUp;
use crate::primary::Primary;
use crate::replica::Config;
use bytes::Bytes;
use ebb_types::{
    ChunkOp, ClientReply, ClusterMap, Epoch, GroupEntry, GroupId, Moment, PeerMessage, RequestId, ServerId,
    ServerReport, Space, TailRun, Unready, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Committed records that the tail still shows, so that a client's late retry is recognised.
const REMEMBERED_REQUESTS: usize = 64;

pub(crate) struct Group {
    pub id: GroupId,
    pub entry: GroupEntry,
    /// Everything of an older epoch is refused (R1). Never lower than `entry.epoch`.
    pub fence: Epoch,
    pub tail: Tail,
    /// Ordered or received records that the store has not made durable yet: a read may overtake them.
    pub applying: usize,
    /// Present while `entry.primary` is this server.
    pub primary: Option<Primary>,
    /// Present while this server's slot catches up.
    pub catch_up: Option<CatchUp>,
    /// Client requests that wait for this server to serve, or to learn who does.
    pub waiting: VecDeque<Waiting>,
}

#[derive(Clone)]
pub(crate) struct Waiting {
    pub token: ClientToken,
    pub op: ChunkOp,
    pub payload: Bytes,
}

impl Group {
    pub fn new(id: GroupId, entry: GroupEntry) -> Group {
        Group {
            id,
            fence: entry.epoch,
            entry,
            tail: Tail::default(),
            applying: 0,
            primary: None,
            catch_up: None,
            waiting: VecDeque::new(),
        }
    }

    /// Whether time must be told to this group.
    pub fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
            || self.applying > 0
            || self.catch_up.is_some()
            || self.primary.as_ref().is_some_and(|p| p.is_busy(&self.tail))
    }

    /// The servers that hold a copy of every write of this epoch, with the role they hold it in.
    pub fn targets(&self) -> impl Iterator<Item = Option<(ServerId, Space)>> + '_ {
        self.entry.slots.iter().map(|slot| slot.target())
    }
}

/// The records that a server has and does not know to be on all targets, and the last that it does, for their request ids.
#[derive(Default)]
pub(crate) struct Tail {
    runs: VecDeque<TailRun>,
    committed: Version,
}

impl Tail {
    pub fn restored(runs: Vec<TailRun>) -> Tail {
        Tail { runs: runs.into(), committed: Version::ZERO }
    }

    pub fn committed(&self) -> Version {
        self.committed
    }

    pub fn push(&mut self, run: TailRun) {
        let known = self.runs.iter().rev().any(|r| r.run == run.run);
        if run.run.version > self.committed && !known {
            self.runs.push_back(run);
        }
    }

    /// The store did not take it: this server does not have it.
    pub fn remove(&mut self, version: Version) {
        self.runs.retain(|r| r.run.version != version);
    }

    /// Every write up to `version` is on all targets of its epoch. A record of an older epoch that was not known to be
    /// committed leaves the tail: the primary of this epoch has ordered its blocks anew, under its request id if the
    /// write took place and without if it did not.
    pub fn commit(&mut self, version: Version) {
        if version <= self.committed {
            return;
        }
        let before = self.committed;
        self.committed = version;
        self.runs.retain(|r| {
            let done = r.run.version <= before;
            done || r.run.version > version || r.run.version.epoch == version.epoch
        });
        let mut done = self.runs.iter().filter(|r| r.run.version <= version).count();
        self.runs.retain(|r| {
            let forget = r.run.version <= version && (done > REMEMBERED_REQUESTS || r.request.is_none());
            done -= usize::from(forget);
            !forget
        });
    }

    pub fn uncommitted(&self) -> Vec<TailRun> {
        self.runs.iter().filter(|r| r.run.version > self.committed).copied().collect()
    }

    /// Whether this request's write is on all targets.
    pub fn is_done(&self, request: RequestId) -> bool {
        self.runs.iter().any(|r| r.request == Some(request) && r.run.version <= self.committed)
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
    /// A record of another server's: answer it.
    Foreign {
        to: ServerId,
        epoch: Epoch,
        version: Version,
    },
    /// Blocks that a client operation needs.
    OpRead {
        op: u64,
        epoch: Epoch,
        first: u32,
    },
    /// A damaged block was rewritten from another copy.
    OpRepaired {
        op: u64,
        epoch: Epoch,
    },
    /// Another server's listing or fetch: answer it.
    ListFor {
        to: ServerId,
        token: u64,
    },
    FetchFor {
        to: ServerId,
        token: u64,
    },
    /// Which of the other members' tail records are newer than ours?
    Orphans {
        epoch: Epoch,
    },
    /// Which of the listed runs do we lack?
    CatchUpNewer {
        token: u64,
    },
    /// A fetched record.
    CatchUpApplied {
        token: u64,
    },
    /// Cover: what must the stand-in get, and its content.
    CoverList {
        epoch: Epoch,
        stands_for: ServerId,
    },
    CoverRead {
        epoch: Epoch,
        stands_for: ServerId,
    },
}

/// What handlers of one group may use of the rest of the server.
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
    next_token: u64,
    pub waits: BTreeMap<StoreToken, (GroupId, Wait)>,
    pub stats: crate::api::Stats,
    /// Fetches under way, over all groups: bounds memory and what catch-up takes from clients.
    pub fetches: usize,
    /// Groups that would fetch more if they might.
    pub hungry: BTreeSet<GroupId>,
    /// Client operations under way: while there are any, catch-up takes less.
    pub client_ops: usize,
    /// Servers that refused a write for lack of space, and when.
    pub full_peers: BTreeMap<ServerId, Moment>,
}

impl Shared {
    pub fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }
}

impl Context<'_> {
    pub fn store(&mut self, group: GroupId, wait: Wait, command: StoreCommand) {
        let token = StoreToken(self.shared.token());
        self.shared.waits.insert(token, (group, wait));
        self.out.push(Command::Store { token, command });
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

    pub fn has_lease(&self) -> bool {
        self.now < self.lease_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{ChunkId, Kind, Run};

    fn run(epoch: u32, seq: u64, request: u64) -> TailRun {
        let version = Version { epoch: Epoch(epoch), seq };
        let run = Run { chunk: ChunkId::default(), first: 0, count: 1, version, kind: Kind::Data };
        TailRun { run, request: Some(RequestId { client: 1, seq: request }) }
    }

    fn request(seq: u64) -> RequestId {
        RequestId { client: 1, seq }
    }

    #[test]
    fn a_request_is_done_when_its_own_epoch_says_so() {
        let mut tail = Tail::default();
        tail.push(run(3, 1, 10));
        tail.push(run(3, 2, 11));
        assert!(!tail.is_done(request(10)));
        tail.commit(Version { epoch: Epoch(3), seq: 1 });
        assert!(tail.is_done(request(10)) && !tail.is_done(request(11)));
        assert_eq!(tail.uncommitted().len(), 1);
    }

    #[test]
    fn a_record_that_a_later_epoch_passed_over_is_not_done() {
        let mut tail = Tail::default();
        tail.push(run(3, 17, 10));
        tail.push(run(4, 1, 12));
        tail.commit(Version { epoch: Epoch(4), seq: 9 });
        assert!(!tail.is_done(request(10)), "its blocks were overridden or ordered anew");
        assert!(tail.is_done(request(12)));
        assert!(tail.uncommitted().is_empty());
    }

    #[test]
    fn the_memory_of_requests_is_bounded() {
        let mut tail = Tail::default();
        for n in 1..=1000 {
            tail.push(run(1, n, n));
        }
        tail.commit(Version { epoch: Epoch(1), seq: 1000 });
        assert_eq!(tail.runs.len(), REMEMBERED_REQUESTS);
        assert!(tail.is_done(request(1000)) && !tail.is_done(request(1)));
    }
}
