//! What concerns erasure-coded sets goes to their [`CodedSet`]s.

use super::Replica;
use crate::coded::CodedSet;
use crate::common::api::{ClientToken, Command};
use crate::common::context::Context;
use bytes::Bytes;
use ebb_types::{
    ClientReply, ClientRequest, GroupId, MapDelta, Moment, PeerMessage, Refusal, Role, ServerId, SetId,
    Unready,
};

impl Replica {
    pub(super) fn with_set(
        &mut self,
        now: Moment,
        id: SetId,
        out: &mut Vec<Command>,
        act: impl FnOnce(&mut CodedSet, &mut Context),
    ) {
        let (_, columns, mut cx) = self.owners(now, GroupId::of_column(id, 0), out);
        // It does not concern this server.
        let Some(set) = columns.sets.get_mut(&id) else { return };
        act(set, &mut cx);
        set.pump(&mut cx);
        if set.wants_ticks(&cx.shared.memory) {
            self.coded.busy.insert(id);
        } else {
            self.coded.busy.remove(&id);
        }
    }

    pub(super) fn on_column_request(
        &mut self,
        now: Moment,
        (token, set): (ClientToken, SetId),
        request: ClientRequest,
        payload: Bytes,
        out: &mut Vec<Command>,
    ) {
        if !self.is_registered() || !self.knows_set(now, set, out) {
            let reply = ClientReply::Retry { why: Unready::Behind };
            return out.push(Command::Reply { token, reply, payload: Bytes::new() });
        }
        self.with_set(now, set, out, |set, cx| set.on_client(cx, token, request, payload));
    }

    pub(super) fn on_column_message(
        &mut self,
        now: Moment,
        (from, id): (ServerId, SetId),
        message: PeerMessage,
        payload: Bytes,
        out: &mut Vec<Command>,
    ) {
        let ready = self.is_registered() && !self.shared.stats.poisoned;
        if ready && self.knows_set(now, id, out) {
            return self.with_set(now, id, out, |set, cx| set.on_peer(cx, from, message, &payload, ready));
        }
        let result = Refusal::NotReady;
        let message = match message {
            PeerMessage::List { group, token, .. } => {
                PeerMessage::ListReply { group, token, result: Err(result) }
            }
            PeerMessage::Fetch { group, token, .. } => {
                PeerMessage::FetchReply { group, token, result: Err(result) }
            }
            // Nobody waits for an answer to the others.
            _ => return,
        };
        out.push(Command::Send { to: from, message, payload: Bytes::new() });
    }

    /// Whether the map has the set. A set of which nothing was known here takes on its configuration, and with it the
    /// fence (R1).
    fn knows_set(&mut self, now: Moment, id: SetId, out: &mut Vec<Command>) -> bool {
        if self.map.set(id).is_some() && !self.coded.sets.contains_key(&id) {
            self.coded.sets.insert(id, CodedSet::new(id));
            self.adopt_set(now, id, out);
        }
        self.coded.sets.contains_key(&id)
    }

    /// The map changed. Before the metadata service knows this incarnation, nothing counts on it, and nothing is
    /// followed.
    pub(super) fn follow_sets(&mut self, now: Moment, delta: &MapDelta, out: &mut Vec<Command>) {
        for id in std::mem::take(&mut self.coded.unsettled) {
            let concerns = |set: &ebb_types::SetEntry| set.column_of(self.config.me).is_some();
            if self.map.set(id).is_some_and(concerns) {
                self.coded.sets.entry(id).or_insert_with(|| CodedSet::new(id));
            }
            self.adopt_set(now, id, out);
        }
        if !delta.servers.is_empty() {
            for id in self.coded.busy.iter().copied().collect::<Vec<_>>() {
                self.with_set(now, id, out, |set, cx| set.follow_map(cx));
            }
        }
    }

    fn adopt_set(&mut self, now: Moment, id: SetId, out: &mut Vec<Command>) {
        // The map does not have it yet.
        let Some(entry) = self.map.set(id).cloned() else { return };
        self.with_set(now, id, out, |set, cx| set.adopt(cx, entry));
    }

    pub(super) fn not_dropped_column(&mut self, (id, column): (SetId, usize), role: Role) {
        self.coded.sets.entry(id).or_insert_with(|| CodedSet::new(id)).keep(column, role);
        self.shared.memory.is_on_disk(GroupId::of_column(id, column), role);
        self.coded.not_dropped.insert(id);
    }

    /// A heartbeat is due: there may be room again to record what is to be dropped.
    pub(super) fn drop_columns_again(&mut self, now: Moment, out: &mut Vec<Command>) {
        for id in std::mem::take(&mut self.coded.not_dropped) {
            self.with_set(now, id, out, |set, cx| set.drop_unneeded(cx));
        }
    }

    pub(super) fn tick_columns(&mut self, now: Moment, out: &mut Vec<Command>) {
        for id in self.coded.busy.iter().copied().collect::<Vec<_>>() {
            self.with_set(now, id, out, |set, cx| set.tick(cx));
        }
    }

    pub(super) fn columns_lost_peer(&mut self, now: Moment, peer: ServerId, out: &mut Vec<Command>) {
        for id in self.coded.busy.iter().copied().collect::<Vec<_>>() {
            self.with_set(now, id, out, |set, cx| set.peer_lost(cx, peer));
        }
    }
}
