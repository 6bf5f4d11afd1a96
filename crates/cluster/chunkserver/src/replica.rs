//! The server as a whole: dispatches events, keeps the cluster map and the lease, and decides when it may sleep.

mod coded;
mod scrubbing;

use crate::coded::{CodedSets, Memory};
use crate::common::api::{ClientToken, Command, Event, KeptBlock, Recovered, StoreOutcome, StoreToken};
use crate::common::config::{Config, PlantedBug};
use crate::common::context::{Context, Shared, Waiting};
use crate::common::due::Scrubber;
use crate::common::wait::Wait;
use crate::replicated::group::Group;
use crate::replicated::tail::Tail;
use bytes::Bytes;
use ebb_types::{
    ChunkOp, ClientReply, ClientRequest, ClusterMap, Epoch, GroupEntry, GroupId, Holder, Incarnation,
    LoadCount, MapDelta, Moment, PeerMessage, Recollection, Refusal, Role, ScrubMark, ServerId, ServerState,
    SetId, SlotState, Unready, Vitals, lease_end, piece_crcs,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Under load, scrubs run at this fraction (1/n) of their quiet-time rate.
const SCRUB_UNDER_LOAD: u64 = 4;

/// The protocol core of one chunk server.
pub struct Replica {
    config: Config,
    map: ClusterMap,
    /// A map older than the one the store has served under was offered.
    refused_map: bool,
    /// A map that counts on this incarnation was adopted.
    counted_on: bool,
    lease_until: Moment,
    /// Set by `Drain`, until the map has this server awake again.
    draining: bool,
    told_ready: bool,
    full: bool,
    groups: BTreeMap<GroupId, Group>,
    /// Groups that need ticks.
    busy: BTreeSet<GroupId>,
    /// Groups whose local state must be checked against the next map; every other group already matches the last one.
    /// So a change of one group costs the same in a cluster of any size.
    unsettled: BTreeSet<GroupId>,
    /// Everything the store keeps: candidates for dropping once no configuration needs them.
    roles: BTreeSet<(GroupId, Role)>,
    /// Groups for which the store had no room to record a drop: retried at the next beat.
    not_dropped: BTreeSet<GroupId>,
    /// The erasure-coded sets. Nothing of them is among the groups and roles above.
    coded: CodedSets,
    shared: Shared,
    scrubber: Scrubber,
    /// The group whose page this server, as its primary, is comparing.
    scrubbing: Option<GroupId>,
}

impl Replica {
    pub fn new(config: Config, recovered: Recovered) -> Replica {
        let remembered = config.remembered;
        let groups = recovered
            .tails
            .into_iter()
            .filter(|(id, _)| id.column().is_none())
            .map(|(id, tail)| (id, Group::new(id, Epoch(0), Tail::restored(remembered, tail))));
        let mut shared = Shared::new(config.incarnation, config.store);
        // Until the first beat shows how busy this server is: a peer may ask for a scrub before.
        shared.scrubs.rate = config.scrub_bytes_per_second / SCRUB_UNDER_LOAD;
        shared.memory = Memory::new(&recovered.roles);
        Replica {
            shared,
            scrubber: Scrubber::new(config.scrub_period.as_secs(), recovered.scrubs),
            scrubbing: None,
            config,
            map: ClusterMap::default(),
            refused_map: false,
            counted_on: false,
            lease_until: Moment::ZERO,
            draining: false,
            told_ready: false,
            full: false,
            groups: groups.collect(),
            busy: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            coded: CodedSets::new(&recovered.roles),
            roles: recovered.roles.into_iter().filter(|(id, _)| id.column().is_none()).collect(),
            not_dropped: BTreeSet::new(),
        }
    }

    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// The map version for the heartbeat. After an older map was offered, it is at least the version that the store has
    /// served under: a metadata member behind that version leads nothing (R11), and one that is not behind sends the
    /// whole map.
    pub fn map_version(&self) -> u64 {
        let known = if self.refused_map { self.config.known_map } else { 0 };
        self.map.version.max(known)
    }

    /// What this server knows of the cluster's configurations.
    pub fn recall(&self) -> Recollection {
        let chunk_groups = self.groups.iter().map(|(id, group)| (*id, group.newest_epoch()));
        Recollection {
            store: self.config.store,
            seen: self.config.known_map.max(self.map.version),
            map: self.map.whole(),
            epochs: chunk_groups.filter(|(_, epoch)| *epoch > Epoch(0)).collect(),
        }
    }

    /// Whether this server was asked to sleep and the map has not had it awake since.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    pub fn wants_ticks(&self) -> bool {
        !self.busy.is_empty() || !self.coded.busy.is_empty() || (self.draining && !self.told_ready)
    }

    /// Figures for the heartbeat: those that the core knows.
    pub fn stats(&self) -> Vitals {
        // Only busy groups have requests waiting, a catch-up or something to settle.
        let busy = || self.busy.iter().filter_map(|id| self.groups.get(id));
        let catching_up = busy().filter(|g| g.is_catching_up()).count() + self.coded.catching_up();
        let unsettled = busy().filter(|g| g.is_unsettled()).count() as u32;
        let waiting: usize = busy().map(|g| g.waiting()).sum();
        let in_flight = (self.shared.budget.clients() + waiting) as u32;
        Vitals {
            catching_up: catching_up as u32,
            unsettled,
            in_flight,
            memory_bytes: self.shared.memory.bytes(),
            ..self.shared.stats.clone()
        }
    }

    /// Client work counted since the last call.
    pub fn take_load(&mut self) -> LoadCount {
        std::mem::take(&mut self.shared.stats.load)
    }

    /// The epoch below which this server refuses everything; for the harness's checks.
    pub fn fence_of(&self, group: GroupId) -> Epoch {
        match group.column() {
            Some((set, _)) => self.coded.sets.get(&set).map_or(Epoch(0), |s| s.fence()),
            None => self.groups.get(&group).map_or(Epoch(0), |g| g.fence()),
        }
    }

    /// The epoch under which this server has everything that it keeps for other columns of the set, for the harness's
    /// checks.
    pub fn keeps_all_since(&self, set: SetId) -> Option<Epoch> {
        let set = self.coded.sets.get(&set).filter(|set| !set.recomputes() && set.fence() == set.epoch())?;
        Some(set.epoch())
    }

    /// Blocks kept in memory for a column in this role, for the harness's checks.
    pub fn kept_in_memory(&self, group: GroupId, role: Role) -> Vec<KeptBlock> {
        self.shared.memory.kept(group, role)
    }

    /// The columns of which something is kept in memory, a deletion included, and in which role; for the harness's
    /// checks.
    pub fn roles_in_memory(&self) -> impl Iterator<Item = (GroupId, Role)> + '_ {
        self.shared.memory.roles()
    }

    /// When the lease ends that was granted for a heartbeat of this run and moment; `None`: this run has none of it.
    pub fn lease_end(&self, now: Moment, granted: (Incarnation, Moment), lease: Duration) -> Option<Moment> {
        if self.config.has(PlantedBug::LeaseOfAnyRun) {
            return Some(granted.1 + lease);
        }
        let from_arrival = self.config.has(PlantedBug::LeaseFromArrival);
        let granted = if from_arrival { (granted.0, now) } else { granted };
        lease_end(self.config.incarnation, now, granted, lease)
    }

    /// Whether this server may serve now. Without a lease, the driver should report the known map version at once.
    pub fn has_lease(&self, now: Moment) -> bool {
        now < self.lease_until || self.config.has(PlantedBug::IgnoreLease)
    }

    /// Whether this server would serve client requests for the group now, for the harness's checks.
    pub fn serves(&self, now: Moment, group: GroupId) -> bool {
        self.has_lease(now) && self.groups.get(&group).is_some_and(Group::is_serving)
    }

    pub fn on(&mut self, now: Moment, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Map(delta) => self.on_map(now, delta, out),
            Event::Lease { until } => self.lease_until = self.lease_until.max(until),
            Event::Drain => self.on_drain(now, out),
            Event::HandOver { groups } => {
                for (id, epoch) in groups {
                    self.with_group(now, id, out, |group, cx| {
                        if group.entry().epoch == epoch {
                            group.drain(cx);
                        }
                    });
                }
            }
            Event::Space { full } => self.full = full,
            Event::NoteCommits if self.config.has(PlantedBug::NoteNothing) => {}
            Event::NoteCommits if self.draining => {} // it comes to rest
            Event::NoteCommits => {
                for id in self.groups.keys().copied().collect::<Vec<_>>() {
                    self.with_group(now, id, out, |group, cx| group.note_commit(cx));
                }
            }
            Event::Client { token, request, payload } => self.on_client(now, token, request, payload, out),
            Event::Peer { from, message, payload } => self.on_peer(now, from, message, payload, out),
            Event::Unread { peer } => _ = self.shared.peers.unread.insert(peer),
            Event::PeerLost { .. } if self.config.has(PlantedBug::OverlookBreaks) => {}
            Event::PeerLost { peer } => self.peer_lost(now, peer, out),
            Event::Stored { token, outcome } => self.on_stored(now, token, outcome, out),
            Event::NotDropped { group, role } => match group.column() {
                Some(of) => self.not_dropped_column(of, role),
                None => {
                    self.keeps(group, role);
                    self.not_dropped.insert(group);
                }
            },
            Event::Beat { unix_seconds } => {
                for id in std::mem::take(&mut self.not_dropped) {
                    self.drop_what_is_not_needed(id, out);
                }
                self.drop_columns_again(now, out);
                self.on_beat(unix_seconds, out);
            }
            Event::ScrubAll => self.scrubber.want_all(),
            Event::Tick => {
                self.pace_reclaim(now);
                for id in self.busy.iter().copied().collect::<Vec<_>>() {
                    self.with_group(now, id, out, |group, cx| group.on_tick(cx));
                }
                self.tick_columns(now, out);
            }
        }
        while let Some((token, outcome)) = self.shared.answered.pop_front() {
            self.on_stored(now, token, outcome, out);
        }
        while let Some(id) = self.shared.budget.take_next() {
            self.with_group(now, id, out, |group, cx| group.pump_catch_up(cx));
        }
        self.go_on_scrubbing(now, out);
        self.say_if_ready_to_sleep(out);
    }

    fn pace_reclaim(&mut self, now: Moment) {
        let within = self.config.reclaim_within;
        if within.is_zero() {
            return;
        }
        let left = self.busy.iter().filter_map(|id| self.groups.get(id)).map(Group::reclaims).sum();
        self.shared.reclaim.look(now, left, within);
    }

    /// Whether the metadata service knows this incarnation: before that, no other server may count on it.
    pub fn is_registered(&self) -> bool {
        let this = (self.config.incarnation, self.config.store);
        self.map.servers.get(&self.config.me).is_some_and(|s| (s.incarnation, s.store) == this)
    }

    /// The owners of groups and of columns, and what they may touch of the rest while they act.
    fn owners<'a>(
        &'a mut self,
        now: Moment,
        group: GroupId,
        out: &'a mut Vec<Command>,
    ) -> (&'a mut BTreeMap<GroupId, Group>, &'a mut CodedSets, Context<'a>) {
        let cx = Context {
            group,
            now,
            me: self.config.me,
            config: &self.config,
            map: &self.map,
            lease_until: self.lease_until,
            draining: self.draining,
            full: self.full,
            shared: &mut self.shared,
            out,
        };
        (&mut self.groups, &mut self.coded, cx)
    }

    fn with_group(
        &mut self,
        now: Moment,
        id: GroupId,
        out: &mut Vec<Command>,
        act: impl FnOnce(&mut Group, &mut Context),
    ) {
        let (groups, _, mut cx) = self.owners(now, id, out);
        // It was forgotten.
        let Some(group) = groups.get_mut(&id) else { return };
        act(group, &mut cx);
        if group.is_busy() {
            self.busy.insert(id);
        } else {
            self.busy.remove(&id);
        }
    }

    fn on_map(&mut self, now: Moment, delta: MapDelta, out: &mut Vec<Command>) {
        if delta.to < self.config.known_map {
            self.refused_map = true;
            out.push(Command::OldMetadata { known: self.config.known_map, offered: delta.to });
            return;
        }
        if !self.map.apply(&delta) {
            out.push(Command::MapGap);
            return;
        }
        self.unsettled.extend(delta.groups.iter().map(|(id, _)| *id));
        self.coded.unsettled.extend(delta.sets.iter().map(|(id, _)| *id));
        if !self.is_registered() {
            return;
        }
        let me = self.config.me;
        if self.map.servers.get(&me).is_some_and(|s| s.state == ServerState::Awake) {
            self.draining = false;
            self.told_ready = false;
        }
        let begins = !std::mem::replace(&mut self.counted_on, true);
        let unsettled = std::mem::take(&mut self.unsettled);
        for &id in &unsettled {
            if self.is_behind(id) {
                let entry = self.map.groups[id.0 as usize].clone();
                let remembered = self.config.remembered;
                let group =
                    self.groups.entry(id).or_insert_with(|| Group::new(id, Epoch(0), Tail::new(remembered)));
                if begins {
                    group.begin(entry.epoch);
                }
                self.with_group(now, id, out, |group, cx| group.adopt(cx, entry));
            }
        }
        for id in unsettled {
            self.drop_what_is_not_needed(id, out);
        }
        self.follow_sets(now, &delta, out);
        // A suspended or hung server keeps its connections but answers nothing on them.
        let gone = delta.servers.iter().filter(|server| !server.state.is_live()).map(|server| server.id);
        for server in gone.chain(delta.removed.iter().copied()) {
            self.peer_lost(now, server, out);
        }
    }

    /// Groups that wait for nothing hear of it, too: their last message may not have arrived.
    fn peer_lost(&mut self, now: Moment, peer: ServerId, out: &mut Vec<Command>) {
        self.shared.peers.unread.remove(&peer);
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.with_group(now, id, out, |group, cx| group.on_peer_lost(cx, peer));
        }
        self.columns_lost_peer(now, peer, out);
    }

    /// Whether the map has a configuration of the group that concerns this server and was not adopted yet.
    fn is_behind(&self, id: GroupId) -> bool {
        let Some(entry) = self.map.group(id) else { return false };
        match self.groups.get(&id) {
            Some(group) => group.entry().stage() < entry.stage(),
            None => entry.members().any(|(server, _)| server == self.config.me),
        }
    }

    /// R6: offload for a slot is dropped only when the configuration says that the data is safe elsewhere.
    fn drop_what_is_not_needed(&mut self, id: GroupId, out: &mut Vec<Command>) {
        let me = self.config.me;
        let fence = self.groups.get(&id).map_or(Epoch(0), |g| g.fence());
        let known = self.map.group(id);
        // A fence newer than the map proves that a newer configuration exists: its needs are not known here yet, and
        // the fence could not be restored from the map.
        let Some(entry) = known.filter(|entry| fence <= entry.epoch) else {
            self.unsettled.insert(id);
            return;
        };
        let leaves = |entry: &GroupEntry| {
            entry.moving.is_some_and(|k| entry.slots[usize::from(k)].server == me)
                && entry.primary != Some(me)
        };
        for role in self.roles_of(id).collect::<Vec<_>>() {
            let keep = match role {
                Role::Replica if leaves(entry) && self.config.has(PlantedBug::DropMoving) => false,
                Role::Replica => entry.slot_of(me).is_some() || !entry.is_complete(),
                Role::Offload { stands_for } => needs_offload(entry, me, stands_for, &self.config),
            };
            if !keep {
                self.roles.remove(&(id, role));
                self.groups.get_mut(&id).into_iter().for_each(|group| group.dropped(role));
                out.push(Command::Drop { group: id, role });
            }
        }
        // It is forgotten already.
        let Some(group) = self.groups.get(&id) else { return };
        // Data kept here may be requested again, and its tail with it.
        let kept = self.roles_of(id).next().is_some();
        if kept || group.entry().members().any(|(server, _)| server == me) {
            return;
        }
        // A forgotten group would never send the replies that still await the store, and their requesters ask only
        // once.
        if self.busy.contains(&id) || self.shared.waits.values().any(|(group, _)| *group == id) {
            self.unsettled.insert(id);
        } else {
            self.groups.remove(&id);
        }
    }

    /// Notes that the store has, or is about to have, data of the group.
    fn keeps(&mut self, id: GroupId, role: Role) {
        if self.roles.insert((id, role)) {
            self.unsettled.insert(id);
        }
    }

    fn roles_of(&self, id: GroupId) -> impl Iterator<Item = Role> + '_ {
        let last = Role::Offload { stands_for: ServerId(u16::MAX) };
        self.roles.range((id, Role::Replica)..=(id, last)).map(|(_, role)| *role)
    }

    /// A request that comes late, or from a deposed leader, must not take out of service a server that the map has
    /// awake: nothing would put it back. A request that comes before its map is repeated.
    fn on_drain(&mut self, now: Moment, out: &mut Vec<Command>) {
        if self.map.servers.get(&self.config.me).is_none_or(|s| s.state != ServerState::Draining) {
            return;
        }
        self.draining = true;
        self.told_ready = false;
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.with_group(now, id, out, |group, cx| group.drain(cx));
        }
    }

    fn say_if_ready_to_sleep(&mut self, out: &mut Vec<Command>) {
        let holds_offload = || self.roles.iter().any(|(_, role)| matches!(role, Role::Offload { .. }));
        if !self.told_ready && self.is_at_rest() && !holds_offload() {
            self.told_ready = true;
            out.push(Command::ReadyToSleep { map_version: self.map.version });
        }
    }

    /// Whether an order to sleep that comes now may be obeyed: this server said that it is ready, still rests, and no
    /// other one has shown that there is a newer configuration, in which this one may be needed again.
    pub fn may_sleep(&self) -> bool {
        let is_behind = |(id, group): (&GroupId, &Group)| {
            self.map.group(*id).is_some_and(|entry| group.fence() > entry.epoch)
        };
        let superseded = self.groups.iter().any(is_behind)
            || self.coded.sets.values().any(|set| set.fence() > set.epoch());
        self.told_ready && self.is_at_rest() && !superseded
    }

    /// R7: it drains, and is primary of nothing, target of nothing, nothing in flight; nor a repair, whose blocks may
    /// still be on their way here.
    fn is_at_rest(&self) -> bool {
        if !self.draining || !self.is_registered() {
            return false;
        }
        let in_flight = !self.shared.waits.is_empty() || self.groups.values().any(Group::is_repairing);
        if in_flight && !self.config.has(PlantedBug::SleepBusy) {
            return false;
        }
        let me = self.config.me;
        let mut own = self.groups.keys().filter_map(|id| self.map.group(*id));
        let needed = own.any(|entry| {
            let is_target =
                entry.slots.iter().any(|slot| slot.target().is_some_and(|(server, _)| server == me));
            let lends =
                entry.slots.iter().any(|slot| slot.holder.is_some_and(|s| s.servers().any(|id| id == me)));
            entry.primary == Some(me) || is_target || lends
        });
        !needed && self.may_lose_memory()
    }

    fn may_lose_memory(&self) -> bool {
        // The defect: what is in memory only does not count.
        let nothing = Memory::default();
        let memory = if self.config.has(PlantedBug::SleepIndebted) { &nothing } else { &self.shared.memory };
        self.coded.may_sleep(memory)
    }

    /// Whether a page is being compared, for the harness's checks: it may be waiting only for time to pass.
    pub fn is_scrubbing(&self) -> bool {
        self.scrubbing.is_some()
    }

    /// Whether anything is in progress but such a comparison, for the harness's checks.
    pub fn is_at_work(&self) -> bool {
        let works = |id: &GroupId| {
            let group = self.groups.get(id).filter(|_| self.scrubbing == Some(*id));
            group.is_none_or(|group| group.is_unsettled() || group.owes_committed())
        };
        let fills = |id: &SetId| self.coded.sets.get(id).is_some_and(|set| set.is_busy());
        self.busy.iter().any(works)
            || self.coded.busy.iter().any(fills)
            || (self.draining && !self.told_ready)
    }

    /// Whether other members may not know yet what is on all of them, for the harness's checks.
    pub fn owes_committed(&self) -> bool {
        self.busy.iter().filter_map(|id| self.groups.get(id)).any(Group::owes_committed)
    }

    /// When each in-sync replica here was last found sound, for the harness's checks.
    pub fn scrubs(&self) -> impl Iterator<Item = ScrubMark> + '_ {
        self.scrubber.marks()
    }

    fn on_client(
        &mut self,
        now: Moment,
        token: ClientToken,
        request: ClientRequest,
        payload: Bytes,
        out: &mut Vec<Command>,
    ) {
        if let Some((set, _)) = request.group.column() {
            return self.on_column_request(now, (token, set), request, payload, out);
        }
        let mut answer = |reply| out.push(Command::Reply { token, reply, payload: Bytes::new() });
        let Some(entry) = self.map.group(request.group).filter(|_| self.is_registered()) else {
            return answer(ClientReply::Retry { why: Unready::Behind });
        };
        if entry.primary != Some(self.config.me) {
            return answer(if request.epoch > entry.epoch {
                ClientReply::Retry { why: Unready::Behind }
            } else {
                ClientReply::Moved { entry: entry.clone() }
            });
        }
        // Carried out under an older epoch, the write would get a version older than the client assumes.
        if request.since.epoch > entry.epoch {
            return answer(ClientReply::Retry { why: Unready::Behind });
        }
        if self.shared.stats.poisoned {
            return answer(ClientReply::Retry { why: Unready::Busy });
        }
        let chunk_bytes = self.config.chunk_bytes;
        if let Some(why) =
            crate::replicated::primary::fault(&request, payload.len(), chunk_bytes, self.config.groups)
        {
            return answer(ClientReply::Failed { why });
        }
        // R14: verified before the bytes are merged or ordered. Records of whole blocks keep these checksums from here
        // on.
        if let ChunkOp::Write { offset, crcs, .. } = &request.op
            && *crcs != piece_crcs(*offset, &payload)
        {
            self.shared.stats.damage.garbled += 1;
            return answer(ClientReply::Retry { why: Unready::Garbled });
        }
        if self.groups.get(&request.group).is_some_and(|g| g.waiting() >= self.config.waiting) {
            return answer(ClientReply::Retry { why: Unready::Busy });
        }
        let (since, claim) = (request.since, request.claim);
        let waiting = Waiting { token, op: request.op, payload, since, claim, ordered: false };
        self.with_group(now, request.group, out, |group, cx| group.on_client(cx, waiting));
    }

    fn on_peer(
        &mut self,
        now: Moment,
        from: ServerId,
        message: PeerMessage,
        payload: Bytes,
        out: &mut Vec<Command>,
    ) {
        let id = message.group();
        self.shared.peers.unread.remove(&from);
        if let Some((set, _)) = id.column() {
            self.shared.peers.hear(from, now);
            return self.on_column_message(now, (from, set), message, payload, out);
        }
        if id.0 >= self.config.groups {
            return;
        }
        self.shared.peers.hear(from, now);
        let ready = self.is_registered() && !self.shared.stats.poisoned;
        if let PeerMessage::Replicate { role, .. } = &message
            && ready
        {
            self.keeps(id, *role);
        }
        // A group that was forgotten because it no longer concerns this server is restored with its fence (R1).
        let fence = self.map.group(id).map_or(Epoch(0), |entry| entry.epoch);
        self.groups.entry(id).or_insert_with(|| {
            self.unsettled.insert(id);
            Group::new(id, fence, Tail::new(self.config.remembered))
        });
        self.with_group(now, id, out, |group, cx| group.on_peer(cx, from, message, payload, ready));
    }

    fn on_stored(&mut self, now: Moment, token: StoreToken, outcome: StoreOutcome, out: &mut Vec<Command>) {
        let Some((id, wait)) = self.shared.waits.remove(&token) else {
            return debug_assert!(false, "the store answered what it was not asked");
        };
        let outcome = self.shared.memory.join(token, outcome);
        if matches!(outcome, StoreOutcome::Failed(Refusal::Poisoned)) {
            self.shared.stats.poisoned = true;
        }
        match outcome {
            // It was counted when it was given up.
            StoreOutcome::Damaged { given_up: true, .. } => {}
            StoreOutcome::Damaged { lost: None, .. } => self.shared.stats.damage.corrupt += 1,
            StoreOutcome::Damaged { lost: Some(_), .. } => self.shared.stats.damage.lost += 1,
            // Nothing is damaged.
            _ => {}
        }
        let wait = match (id.column(), wait) {
            (Some((set, _)), Wait::Column(wait)) => {
                return self.with_set(now, set, out, |set, cx| set.on_stored(cx, token, wait, outcome));
            }
            (_, wait) => wait,
        };
        // What a rebuild copies never comes with the primary's records.
        if let Wait::Own { .. } | Wait::CatchUpApplied { .. } | Wait::RepairWritten { .. } = wait {
            self.keeps(id, Role::Replica);
        }
        self.with_group(now, id, out, |group, cx| group.on_stored(cx, token, wait, outcome));
    }
}

/// Whether the offload kept here for a slot may hold the only copy of some write.
fn needs_offload(entry: &GroupEntry, me: ServerId, stands_for: ServerId, config: &Config) -> bool {
    let Some(slot) = entry.slot_of(stands_for) else { return !entry.is_complete() };
    if config.has(PlantedBug::DropEarly) && matches!(slot.state, SlotState::CatchingUp { .. }) {
        return false;
    }
    match slot.holder {
        _ if slot.state == SlotState::InSync => false,
        Some(Holder { server, .. }) if server == me => true,
        Some(Holder { covered, .. }) => !covered,
        None => true,
    }
}
