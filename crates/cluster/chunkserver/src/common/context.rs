//! What a group's handlers may use of the rest of their server: the moment, the map, the lease, the figures; and the
//! commands that they give.

use crate::coded::Memory;
use crate::common::api::{ClientToken, Command, StoreCommand, StoreOutcome, StoreToken};
use crate::common::budget::Budget;
use crate::common::config::{Config, PlantedBug};
use crate::common::due::Scrubs;
use crate::common::peers::Peers;
use crate::common::reclaim::Reclaim;
use crate::common::wait::Wait;
use bytes::Bytes;
use ebb_types::{
    ChunkOp, ClientReply, ClusterMap, Epoch, GroupId, Incarnation, Moment, ParityDebt, PeerMessage, Role,
    ServerId, ServerReport, SetEntry, StoreId, Streams, Unready, Version,
};
use std::collections::{BTreeMap, VecDeque};

/// The rest of the server, as far as handlers of one group may use it.
pub(crate) struct Context<'a> {
    pub group: GroupId,
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
    /// Base of the tokens of this incarnation's requests to other servers.
    first_peer_token: u64,
    next_token: u64,
    pub waits: BTreeMap<StoreToken, (GroupId, Wait)>,
    /// Strips that are kept in memory, and commands that were carried out there: their outcomes are taken in after the
    /// event.
    pub memory: Memory,
    pub answered: VecDeque<(StoreToken, StoreOutcome)>,
    /// What counts here for the heartbeat. `load`: since the last call to [`crate::Replica::take_load`].
    pub stats: ebb_types::Vitals,
    /// Distinguishes random requests from streaming ones.
    pub streams: Streams,
    pub budget: Budget,
    /// The rate at which what others hold for this server is fetched.
    pub reclaim: Reclaim,
    pub peers: Peers,
    pub scrubs: Scrubs,
}

impl Shared {
    pub fn new(run: Incarnation, store: StoreId) -> Shared {
        Shared { first_peer_token: run.fingerprint(store), ..Shared::default() }
    }

    pub fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// A token for a request to another server. No earlier incarnation used it: a late reply to that incarnation, taken
    /// for a reply to this one, would leave a hole. Every incarnation counts from its own base among 2^64.
    pub fn peer_token(&mut self) -> u64 {
        self.first_peer_token.wrapping_add(self.token())
    }
}

impl Context<'_> {
    pub fn store(&mut self, wait: Wait, command: StoreCommand) -> StoreToken {
        let token = StoreToken(self.shared.token());
        let before = self.shared.waits.insert(token, (self.group, wait));
        debug_assert!(before.is_none(), "a token is of one command");
        let budget = self.memory_for(&command);
        match budget.and_then(|budget| self.shared.memory.take(budget, token, &command)) {
            Some(outcome) => self.shared.answered.push_back((token, outcome)),
            None => self.out.push(Command::Store { token, command }),
        }
        token
    }

    /// The most bytes of memory for what the command concerns; `None`: only the store keeps it.
    fn memory_for(&self, command: &StoreCommand) -> Option<u64> {
        let (group, role) = match command {
            StoreCommand::Apply { role, record, .. } | StoreCommand::Repair { role, record, .. } => {
                (record.group, *role)
            }
            StoreCommand::Read { role, group, .. }
            | StoreCommand::Check { role, group, .. }
            | StoreCommand::List { role, group, .. }
            | StoreCommand::Newer { role, group, .. } => (*group, *role),
        };
        let (set, column) = group.column()?;
        let entry = self.map.set(set)?;
        let pool = self.map.pools.get(&entry.pool)?;
        // Strips of a data column are clients' data.
        let is_data = column < entry.shape.data();
        let is_kept_here = !is_data && role != Role::Replica;
        (is_kept_here && self.keeps_in_memory(entry)).then_some(pool.parity_buffer_bytes)
    }

    /// Whether data servers of the set keep in memory what its parity servers lack.
    pub fn keeps_in_memory(&self, set: &SetEntry) -> bool {
        self.map.pools.get(&set.pool).is_some_and(|pool| pool.parity_debt == ParityDebt::Ram)
    }

    pub fn send(&mut self, to: ServerId, message: PeerMessage) {
        self.send_with(to, message, Bytes::new());
    }

    pub fn send_with(&mut self, to: ServerId, message: PeerMessage, payload: Bytes) {
        self.out.push(Command::Send { to, message, payload });
    }

    pub fn reply(&mut self, token: ClientToken, reply: ClientReply) {
        self.reply_with(token, reply, Bytes::new());
    }

    pub fn reply_with(&mut self, token: ClientToken, reply: ClientReply, payload: Bytes) {
        self.out.push(Command::Reply { token, reply, payload });
    }

    pub fn reply_retry(&mut self, token: ClientToken, why: Unready) {
        self.reply(token, ClientReply::Retry { why });
    }

    pub fn report(&mut self, report: ServerReport) {
        self.out.push(Command::Report(report));
    }

    /// Reports a server that has owed a reply since that moment, if it has sent nothing at all for `suspect_after`:
    /// also nothing that lies unread here. The metadata service wants repeated reports of a silent server, but not one
    /// per group.
    pub fn suspect_if_silent(&mut self, epoch: Epoch, server: ServerId, since: Moment) {
        debug_assert_ne!(server, self.me, "a server does not suspect itself");
        let peers = &mut self.shared.peers;
        let unread = peers.unread.contains(&server) && !self.config.has(PlantedBug::SuspectUnread);
        let silent = !unread && self.now.since(peers.heard(server).max(since)) >= self.config.suspect_after;
        if silent && self.now.since(peers.suspected(server)) >= self.config.resend_after {
            peers.suspect(server, self.now);
            self.report(ServerReport::Suspect { group: self.group, epoch, server });
        }
    }

    /// Reports something that cannot happen unless this program has a bug. The caller continues as well as it can.
    /// A debug build stops here, the fault search fails, and the cluster logs it and counts it in `ebb status`.
    pub fn bug(&mut self, what: &'static str) {
        debug_assert!(false, "{:?}: {what}", self.group);
        self.shared.stats.bugs += 1;
        self.out.push(Command::Bug { group: self.group, what });
    }

    pub fn has_lease(&self) -> bool {
        self.now < self.lease_until || self.config.has(PlantedBug::IgnoreLease)
    }
}

#[derive(Clone)]
pub(crate) struct Waiting {
    pub token: ClientToken,
    pub op: ChunkOp,
    pub payload: Bytes,
    pub since: Version,
    /// See [`ebb_types::ClientRequest`].
    pub claim: u64,
    /// It was ordered before: copies may exist, whether or not this server's store took it.
    pub ordered: bool,
}

impl Waiting {
    /// Replies to a request that is not carried out now. One that was ordered before may still take effect: its client
    /// must not treat it as new.
    pub fn turn_away(self, cx: &mut Context, reply: ClientReply) {
        match self.ordered {
            true => cx.reply_retry(self.token, Unready::Interrupted),
            false => cx.reply(self.token, reply),
        }
    }
}
