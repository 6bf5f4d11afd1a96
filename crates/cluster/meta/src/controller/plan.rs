//! The planning step: turns the facts into one batch of commands.
//!
//! First servers (which failed, returned, may sleep, must wake), then, with the servers as they will be, the chunk
//! groups and the sets of erasure-coded pools, all in one batch, so that an entry is never visible beside a server
//! state that does not match it. Then primaries are spread evenly, and when nothing is left to do a finished shift is
//! recorded.

use crate::controller::by_server::ByServer;
use crate::controller::census::Census;
use crate::controller::duties::{away, may_drain, may_sleep};
use crate::controller::event::Output;
use crate::controller::failure::Failure;
use crate::controller::gears::{policy, standing};
use crate::controller::group::{Candidate, Facts, Standing, World, next_entry};
use crate::controller::leading::{DAMAGE_WAKES, Leading, Live, Room, Seen, Servers, is_gone};
use crate::controller::racks::{Partings, racks_apart};
use crate::controller::sets::is_spared;
use crate::controller::wake_times::WakeTimes;
use crate::{Change, Command, PlantedBug, PowerFact, State};
use ebb_gear::{Place, floor_servers, rebuild_choice};
use ebb_types::{
    Depth, Epoch, GroupEntry, GroupId, HourRecord, Incarnation, Moment, Notice, PoolId, RackId, ServerEntry,
    ServerId, ServerState, Slot, SlotState, StoreId, StoreMark, bug,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A step of a server on its way to sleep.
#[derive(Clone, Copy)]
enum Leave {
    Drain,
    Sleep,
}

impl Leading {
    pub(crate) fn plan(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) -> Vec<Command> {
        debug_assert!(!self.in_flight, "a plan starts where the one before has taken effect");
        let mut commands = Vec::new();
        self.follow_test(now, state, out);
        // A miscount stays, so that a look now and then finds it.
        let looks = cfg!(any(test, feature = "planted-bugs")) && state.version().is_multiple_of(16);
        debug_assert!(!looks || self.census == Census::of(state));
        let (servers, coded) = self.plan_servers(now, state, &mut commands, out);
        let changes = self.plan_groups(now, state, &servers);
        let changed: BTreeSet<GroupId> = changes.iter().map(|c| c.group).collect();
        debug_assert_eq!(changed.len(), changes.len(), "a group changes once in a batch");
        let serving = self.serving(&changed, state);
        if !serving.is_empty() {
            commands.push(Command::Serve(serving));
        }
        if !changes.is_empty() {
            commands.push(Command::Reconfigure(changes));
        }
        let changes = self.plan_sets(now, state, &coded, out);
        if !changes.is_empty() {
            commands.push(Command::ReconfigureSets(changes));
        }
        out.extend(self.gears.bugs.drain(..).map(Output::Bug));
        let begun = std::mem::take(&mut self.gears.begun).into_iter();
        // Without switches a gear is a dry run.
        out.extend(begun.filter(|_| self.has_switches()).map(Output::Notice));
        let settled = commands.is_empty() && self.is_settled(state);
        let at_unix_millis = self.unix_now(now);
        let facts = std::mem::take(&mut self.facts).into_iter();
        commands.extend(facts.map(|(server, fact)| Command::NotePower { server, at_unix_millis, fact }));
        let parted = if settled { self.part_racks(state, &servers) } else { Vec::new() };
        if !parted.is_empty() {
            commands.push(Command::Reconfigure(parted));
        } else {
            self.balance(state, &changed, out);
            if settled
                && self.moves.is_empty()
                && let Some(shift) = self.end_shift(now)
            {
                commands.push(Command::RecordShift(shift));
            }
        }
        commands.extend(self.witness(now, state));
        for ended in &self.gears.ended_hours {
            commands.push(Command::RecordHour(HourRecord {
                hour: ended.hour,
                peak_load: ended.peak.0,
                terms: ended.terms,
                forecast: ended.forecast.map(|load| load.0),
                gear: self.gears.gear(),
                servers_awake: state.geared().filter(|e| e.state.is_live()).count() as u32,
                prices: ended.prices,
                power_cycles: state.power_cycles(),
            }));
        }
        commands
    }

    /// While there are writes, the durable positions of the servers' stores are recorded from time to time: a store
    /// that went back beyond its recorded position is recognised even if the whole cluster restarts at once.
    fn witness(&mut self, now: Moment, state: &State) -> Option<Command> {
        if now < self.witnessed + self.timing.witness {
            return None;
        }
        self.witnessed = now;
        let grown = self.servers.iter().filter(|(id, live)| live.position > state.position(**id));
        let positions: Vec<_> = grown.map(|(id, live)| (*id, live.position)).collect();
        (!positions.is_empty()).then_some(Command::Witness(positions))
    }

    fn end_shift(&mut self, now: Moment) -> Option<ebb_types::ShiftRecord> {
        if !self.has_switches() {
            self.gears.shift = None;
            return None;
        }
        let (since, unix_millis) = (self.since, self.unix_millis);
        self.gears.end_shift(now, |at| unix_millis + at.since(since).as_millis() as u64)
    }

    /// Decides every server's next state: of the replicated pool's, and of those of erasure-coded pools.
    fn plan_servers(
        &mut self,
        now: Moment,
        state: &State,
        commands: &mut Vec<Command>,
        out: &mut Vec<Output>,
    ) -> (Servers, Servers) {
        let mut servers: Servers = state.servers().map(|e| (e.id, e.clone())).collect();
        for entry in servers.values_mut() {
            self.judge(now, entry, state, out);
        }
        self.give_up(now, &mut servers, state, out);
        let (mut servers, mut coded): (Servers, Servers) =
            servers.into_iter().partition(|(_, e)| e.pool == PoolId::REPLICATED);
        let mut wanted = self.wanted(now, state, &servers);
        wanted.extend(self.wanted_of_sets(now, state, &coded));
        self.set_apart(now, state, &mut wanted);
        let stays = ByServer::those(&servers, |e| e.state == ServerState::Awake && wanted.contains(&e.id));
        let late = |e: &ServerEntry| self.servers.get(&e.id).is_some_and(|live| live.power.is_late());
        let is_away = |e: &ServerEntry| matches!(e.state, ServerState::Asleep | ServerState::Waking);
        let comes = ByServer::those(&servers, |e| is_away(e) && wanted.contains(&e.id) && !late(e));
        let groups = policy(state.schedule(), state);
        let smallest = groups.group_sizes.iter().copied().min().unwrap_or(0);
        // More may be wanted, but no gear keeps fewer, whichever gear group's turn it is.
        let floor = floor_servers(smallest, groups.replicas()) as usize;
        let awake = servers.values().filter(|e| !e.is_logger() && e.state == ServerState::Awake).count();
        let trusted = now >= self.trusted_from(state);
        let most = if trusted && !self.emergency { awake.saturating_sub(floor) } else { 0 };
        let sleeps = |id: &ServerId| self.may_sleep(*id, state) || self.is_put_to_the_test(*id);
        let trusts: BTreeSet<ServerId> = state.servers().map(|e| e.id).filter(sleeps).collect();
        let may = |id, leave| match leave {
            Leave::Drain => may_drain(id, state, &self.census, &stays, &comes),
            Leave::Sleep => trusts.contains(&id) && may_sleep(id, state, &self.census),
        };
        let (woken, put_to_sleep) = shift(&mut self.servers, &mut servers, &wanted, most, may);
        if let Some(shift) = &mut self.gears.shift {
            shift.woken += woken;
            shift.put_to_sleep += put_to_sleep;
        }
        let spared = self.spared(state, &coded);
        let may = |id, leave| match leave {
            Leave::Drain => trusted && spared.contains(&id),
            Leave::Sleep => is_spared(id, state) && trusts.contains(&id),
        };
        shift(&mut self.servers, &mut coded, &wanted, usize::MAX, may);
        self.wanted = wanted;
        for entry in servers.values().chain(coded.values()) {
            let before = state.server(entry.id).expect("a copy of the state's servers");
            if (before.state, before.incarnation) != (entry.state, entry.incarnation) {
                let (server, to) = (entry.id, entry.state);
                if to == ServerState::Asleep && before.state != ServerState::Draining {
                    bug(out, "a server sleeps that did not drain (R7)");
                    continue;
                }
                let position = self.servers.get(&server).map_or(0, |live| live.position);
                let mark = StoreMark { store: entry.store, position };
                commands.push(Command::set_server(state, server, to, entry.incarnation, mark));
                if to == ServerState::Asleep {
                    let depth = self.gears.depth(server).unwrap_or(self.timing.depth);
                    let wears = self.timing.sleep.wears(depth);
                    let spent = f64::from(u8::from(wears));
                    let credit = self.gears.saved_cycles(now, server).map(|saved| saved - spent);
                    let fact = PowerFact::Sleeps { depth, wears, credit };
                    commands.push(Command::NotePower { server, at_unix_millis: self.unix_now(now), fact });
                }
            }
        }
        (servers, coded)
    }

    /// Epochs that may serve now. Under a primary that is about to fail nothing is ordered, also if it said that it
    /// could serve before that was known.
    fn serving(&self, changed: &BTreeSet<GroupId>, state: &State) -> Vec<(GroupId, Epoch)> {
        let fails = |group: GroupId| {
            let primary = state.group(group).and_then(|entry| entry.primary);
            primary.and_then(|id| self.servers.get(&id)).is_some_and(|live| live.condemned)
        };
        let reported = self.reports.serving.iter().map(|(group, epoch)| (*group, *epoch));
        reported.filter(|(group, _)| !changed.contains(group) && !fails(*group)).collect()
    }

    /// Decides whether the server failed or returned.
    fn judge(&mut self, now: Moment, entry: &mut ServerEntry, state: &State, out: &mut Vec<Output>) {
        let server = entry.id;
        let (run, store) =
            self.servers.get(&server).map_or((Incarnation(0), StoreId(0)), |l| (l.run, l.store));
        let returned = self.has_returned(now, server, state);
        if returned && store != entry.store && entry.incarnation != Incarnation(0) {
            out.push(Output::Notice(Notice::AnotherStore { server }));
        }
        match entry.state {
            ServerState::Awake | ServerState::Draining if run > entry.incarnation && returned => {
                entry.incarnation = run;
                entry.state = ServerState::Awake;
                out.push(Output::Notice(Notice::Restarted { server }));
            }
            ServerState::Awake | ServerState::Draining if now >= self.fails_at(entry.id, state) => {
                entry.state = ServerState::Failed;
                let lease = self.longest_lease(state);
                let live = self.servers.entry(entry.id).or_default();
                debug_assert!(now >= live.granted_until, "no lease of one that failed is valid (R2)");
                live.failed = Some(Failure::new(now));
                live.silenced = (!live.condemned).then_some(live.grace.borne(now, lease));
                // It gets no lease while this is in flight, although the state still calls it awake (R2).
                (live.condemned, live.owed) = (true, None);
                out.push(Output::Notice(Notice::Failed { server }));
            }
            ServerState::Failed | ServerState::Waking if returned => {
                if entry.state == ServerState::Waking {
                    self.note_wake_up(now, entry);
                }
                self.servers.entry(entry.id).or_default().condemned = false;
                entry.incarnation = run;
                entry.state = ServerState::Awake;
                out.push(Output::Notice(Notice::Back { server }));
            }
            ServerState::Lost if returned && store != entry.store => {
                entry.incarnation = run;
                entry.state = ServerState::Awake;
                out.push(Output::Notice(Notice::BackEmpty { server }));
            }
            ServerState::Asleep if run > entry.incarnation && returned => {
                entry.incarnation = run;
                entry.state = ServerState::Awake;
                out.push(Output::Notice(Notice::StartedWhileAsleep { server }));
            }
            _ => {}
        }
        if entry.incarnation == run && entry.store != store {
            entry.store = store;
            self.servers.entry(entry.id).or_default().position = 0;
        }
    }

    /// Tells the gears which servers are awake, and how long the others would take.
    fn see_servers(&mut self, now: Moment, state: &State, servers: &Servers) {
        let one = |e: &ServerEntry| {
            let power = self.servers.get(&e.id).map(|live| &live.power);
            let depth = state.slept_depth(e.id).unwrap_or(self.timing.depth);
            let late = power.is_some_and(|power| power.is_late());
            // Where nothing is switched, gears are a dry run of what could be.
            (e.id, standing(e.state, late, depth), !self.has_switches() || self.may_sleep(e.id, state))
        };
        let seen: Vec<_> = servers.values().filter(|e| !e.is_logger()).map(one).collect();
        let catch_up = self.catch_up(servers);
        for depth in [Depth::Standby, Depth::Off] {
            let measured = |times: &WakeTimes| Some((times.count(), times.high()?));
            let measured = self.wakes.get(&depth).and_then(measured);
            self.gears.set_wake(depth, measured, catch_up);
        }
        self.gears.see(now, seen);
    }

    /// How long a sleeper will take to fetch what it misses: the awake servers keep that for all of them.
    fn catch_up(&self, servers: &Servers) -> Duration {
        let sleepers = servers.values().filter(|e| e.state == ServerState::Asleep).count();
        let live = servers.values().filter(|e| e.state.is_live()).filter_map(|e| self.servers.get(&e.id));
        let debt: u64 = live.map(|live| live.vitals.debt_bytes).sum();
        let rate = self.gears.write_rate() * sleepers.max(1) as f64;
        Duration::try_from_secs_f64(debt as f64 / rate).unwrap_or(Duration::MAX)
    }

    /// Servers that should be awake: those of the gear, and the loggers; while copies are missing or damaged, all that
    /// can help (R8, R9); while room is short, all that have some (R10); and as many more as needed to spread copies
    /// over racks (R13).
    fn wanted(&mut self, now: Moment, state: &State, servers: &Servers) -> BTreeSet<ServerId> {
        self.see_servers(now, state, servers);
        let mut wanted = self.gears.awake().clone();
        wanted.extend(servers.values().filter(|e| e.is_logger()).map(|e| e.id));
        self.reports.damaged.retain(|_, at| now < *at + DAMAGE_WAKES);
        let helpers = if self.timing.has(PlantedBug::LeaveAlone) {
            BTreeSet::new()
        } else {
            self.helpers(now, state, servers)
        };
        self.emergency = !helpers.is_empty();
        wanted.extend(helpers);
        let lacking = self.lacking_room(state, servers, &wanted);
        self.short_of_room = self.has_switches() && !lacking.is_empty();
        wanted.extend(lacking);
        let late = |e: &ServerEntry| self.servers.get(&e.id).is_some_and(|l| l.power.is_late());
        let comes = |e: &&ServerEntry| !(e.state == ServerState::Waking && late(e));
        let able = servers.values().filter(comes).filter(|e| !state.in_maintenance(e.id));
        wanted.extend(racks_apart(able, &wanted, state));
        wanted
    }

    /// All that can help while copies are missing, damaged or in one rack.
    fn helpers(&self, now: Moment, state: &State, servers: &Servers) -> BTreeSet<ServerId> {
        let lost = ByServer::those(servers, |e| e.state == ServerState::Lost);
        // The peers of one in maintenance are awake as it is.
        let missing = ByServer::those(servers, |e| is_gone(e) && !state.in_maintenance(e.id));
        let census = &self.census;
        let gone = servers.values().filter(|e| is_gone(e)).flat_map(|e| census.groups_of(e.id));
        let known = [&census.sharing_rack, &census.headless, &census.lacking].into_iter().flatten().copied();
        let groups: BTreeSet<GroupId> =
            known.chain(self.reports.damaged.keys().copied()).chain(gone).collect();
        let mut helpers = BTreeSet::new();
        let mut partings = Partings::new(servers, census);
        for group in groups {
            let Some(entry) = state.group(group) else { continue };
            if census.sharing_rack.contains(&group)
                && let Some((_, to)) = partings.next(entry, None)
            {
                helpers.extend(entry.slots.iter().map(|s| s.server).chain([to]));
            }
            let stuck = entry.primary.is_none() && !self.waits(now, entry, state);
            let damaged = self.reports.damaged.contains_key(&group);
            if stuck || damaged || entry.slots.iter().any(|s| missing.has(s.server)) {
                let former = entry.slots.iter().filter_map(|s| s.holder?.former);
                helpers.extend(entry.slots.iter().map(|s| s.server).chain(former));
            }
            for slot in entry.slots.iter().filter(|s| lost.has(s.server)) {
                let gear_group = servers[&slot.server].gear_group;
                helpers.extend(servers.values().filter(|e| e.gear_group == gear_group).map(|e| e.id));
            }
            if entry.primary.is_some() && entry.slots.iter().any(|s| s.target().is_none()) {
                helpers.extend(servers.keys());
            }
        }
        helpers
    }

    /// Sleeping servers to wake because awake ones fill up (R10): those whose offload is held by a server short of
    /// room, so that it can be reclaimed; or all of them, if too few servers are left that can be holders. Once awake,
    /// one stays so until that holder has room: it would be chosen again, in the same moment.
    fn lacking_room(
        &mut self,
        state: &State,
        servers: &Servers,
        wanted: &BTreeSet<ServerId>,
    ) -> BTreeSet<ServerId> {
        let room = |id: &ServerId| self.servers.get(id).map_or(Room::default(), |live| live.room);
        let strained = ByServer::those(servers, |e| e.state.is_live() && room(&e.id) != Room::default());
        let forgets = self.timing.has(PlantedBug::ForgetRelief);
        self.relieves.retain(|_, holder| strained.has(*holder) && !forgets);
        if !servers.keys().any(|id| strained.has(*id)) {
            return BTreeSet::new();
        }
        let with_room: Vec<&ServerEntry> =
            servers.values().filter(|e| !strained.has(e.id) && !is_gone(e)).collect();
        let left: BTreeSet<ServerId> =
            with_room.iter().map(|e| e.id).filter(|id| wanted.contains(id)).collect();
        let enough = left.len() >= state.params().map_or(1, |p| usize::from(p.replicas));
        if !enough || !racks_apart(with_room.into_iter(), &left, state).is_empty() {
            return servers.keys().copied().collect();
        }
        let slots = state.groups().flat_map(|(_, entry)| &entry.slots);
        let held = slots.filter_map(|slot| Some((slot.server, slot.holder?.server)));
        self.relieves.extend(held.filter(|(_, holder)| strained.has(*holder)));
        self.relieves.keys().copied().collect()
    }

    fn plan_groups(&mut self, now: Moment, state: &State, servers: &Servers) -> Vec<Change> {
        let mut world = self.world(now, state, servers);
        let replaced = replace_lost(state, servers, &world);
        let groups = self.groups_to_see(state, &world, &replaced);
        debug_assert!(
            !cfg!(any(test, feature = "planted-bugs")) || self.rest_stays(now, state, &world, &groups)
        );
        if groups.is_empty() {
            return Vec::new();
        }
        for (id, candidate) in world.iter_mut() {
            (candidate.primaries, candidate.holders) = (self.census.primaries(id), self.census.holders(id));
        }
        let mut changes = Vec::new();
        for group in groups {
            let entry = state.group(group).expect("a group of the state");
            let facts = self.facts(now, group, entry, state);
            let old = replaced.get(&group).unwrap_or(entry);
            let next = next_entry(old, &facts, &mut world);
            let next = next.or_else(|| {
                let moved = replaced.get(&group)?;
                Some(GroupEntry { epoch: moved.epoch.next(), ..moved.clone() })
            });
            let Some(mut next) = next else { continue };
            if self.timing.has(PlantedBug::ForgetFallback) {
                next.fallback = None;
            }
            if let (Some(old), Some(new)) = (entry.primary, next.primary)
                && old != new
            {
                self.gears.shift.iter_mut().for_each(|s| s.migrations += 1);
            }
            changes.push(Change { group, expected: entry.stage(), entry: next });
        }
        changes
    }

    /// Whether every other group is right as it is.
    fn rest_stays(&self, now: Moment, state: &State, world: &World, seen: &BTreeSet<GroupId>) -> bool {
        let mut rest = state.groups().filter(|(group, _)| !seen.contains(group));
        // What stays changes no candidate.
        let mut world = world.clone();
        rest.all(|(group, entry)| {
            next_entry(entry, &self.facts(now, group, entry, state), &mut world).is_none()
        })
    }

    /// Groups for which something changed since the last plan, and those that wait for a server.
    fn groups_to_see(
        &mut self,
        state: &State,
        world: &World,
        replaced: &BTreeMap<GroupId, GroupEntry>,
    ) -> BTreeSet<GroupId> {
        let standings = world.iter().map(|(id, c)| (id, c.standing, c.restarted, c.full)).collect();
        let before = std::mem::replace(&mut self.seen, Seen { version: state.version(), standings });
        let since = if before.standings == self.seen.standings { before.version } else { 0 };
        let reports = &self.reports;
        let told = reports.caught_up.iter().chain(&reports.covered).map(|(group, ..)| *group);
        let told = told.chain(reports.released.keys().copied()).chain(replaced.keys().copied());
        let waiting = self.census.headless.iter().copied();
        state.groups_since(since).map(|(group, _)| group).chain(waiting).chain(told).collect()
    }

    pub(crate) fn facts(&self, now: Moment, group: GroupId, entry: &GroupEntry, state: &State) -> Facts {
        let reports = &self.reports;
        let range = (group, entry.epoch, ServerId(0))..=(group, entry.epoch, ServerId(u16::MAX));
        let of = |set: &BTreeSet<(GroupId, Epoch, ServerId)>| {
            set.range(range.clone()).map(|(_, _, s)| *s).collect()
        };
        Facts {
            released: reports.released.get(&group) == Some(&entry.epoch),
            successor: self.moves.get(&group).filter(|(epoch, _)| *epoch == entry.epoch).map(|(_, to)| *to),
            caught_up: of(&reports.caught_up),
            covered: of(&reports.covered),
            wait: self.waits(now, entry, state),
        }
    }

    /// The servers as candidates; their work is counted separately.
    pub(crate) fn world(&self, now: Moment, state: &State, servers: &Servers) -> World {
        let never_sleep = self.gears.never_sleep(now);
        let sleeps = |e: &ServerEntry| {
            self.may_sleep(e.id, state) && !e.is_logger() && !never_sleep.contains(&e.gear_group)
        };
        servers
            .values()
            .map(|e| {
                let standing = match e.state {
                    ServerState::Awake => Standing::Up,
                    ServerState::Draining => Standing::Leaving,
                    _ => Standing::Down,
                };
                let before = state.server(e.id);
                let (restarted, emptied) = self.break_of(before, e);
                let live = self.servers.get(&e.id);
                let Room { full, indebted } = live.map_or(Room::default(), |l| l.room);
                let candidate = Candidate {
                    standing,
                    restarted,
                    emptied,
                    lost: before.is_some_and(|before| before.state == ServerState::Lost),
                    rack: if self.timing.has(PlantedBug::IgnoreRacks) { RackId(0) } else { e.rack },
                    logger: e.is_logger(),
                    sleeps: sleeps(e),
                    full,
                    indebted,
                    in_flight: live.map_or(0, |l| l.vitals.in_flight),
                    primaries: 0,
                    holders: 0,
                };
                (e.id, candidate)
            })
            .collect()
    }

    /// Whether the server lost its memory since `before`, and whether it runs on another store (R11).
    pub(crate) fn break_of(&self, before: Option<&ServerEntry>, now: &ServerEntry) -> (bool, bool) {
        let Some(before) = before else { return (false, false) };
        let came_back = now.state.is_live() && !before.state.is_live();
        let other_store = before.incarnation != Incarnation(0) && before.store != now.store;
        (
            before.incarnation != now.incarnation || came_back,
            other_store && !self.timing.has(PlantedBug::TrustAnyStore),
        )
    }

    /// No change is pending: every server is where it should be, and every replica on an awake server is in sync.
    fn is_settled(&self, state: &State) -> bool {
        let moves = |e: &ServerEntry| matches!(e.state, ServerState::Draining | ServerState::Waking);
        let on_the_way = |e: &ServerEntry| moves(e) && !state.in_maintenance(e.id);
        let quiet = !state.replicated().any(on_the_way);
        let gear_done = state
            .replicated()
            .all(|e| (e.state == ServerState::Awake) == self.wanted.contains(&e.id) || is_gone(e));
        quiet
            && (gear_done || self.emergency)
            && self.census.headless.is_empty()
            && self.census.catching_up.is_empty()
    }

    /// Spreads primaries evenly over the servers that stay awake; the present primaries are asked to hand over. Also
    /// while others come and go: until a server that woke for the load has its share, the others carry it.
    fn balance(&mut self, state: &State, changed: &BTreeSet<GroupId>, out: &mut Vec<Output>) {
        if !self.moves.is_empty() {
            return;
        }
        let stays = |e: &&ServerEntry| e.state == ServerState::Awake && self.wanted.contains(&e.id);
        let counted = |e: &ServerEntry| (e.id, self.census.primaries(e.id));
        let mut count: BTreeMap<ServerId, u32> = state.geared().filter(stays).map(counted).collect();
        let slack = 1 + count.values().sum::<u32>() / count.len().max(1) as u32 / 16;
        let most = count.values().copied().max().unwrap_or(0);
        let takers = count.iter().filter(|(_, has)| **has + slack < most);
        let groups: BTreeSet<GroupId> = takers.flat_map(|(id, _)| self.census.groups_of(*id)).collect();
        for group in groups.difference(changed) {
            let entry = state.group(*group).expect("a group of the state");
            let Some(from) = entry.primary.filter(|primary| count.contains_key(primary)) else { continue };
            let able = |s: &&Slot| s.state == SlotState::InSync && count.contains_key(&s.server);
            let able = entry.slots.iter().filter(able).map(|s| s.server);
            let Some(to) = able.min_by_key(|id| (count[id], *id)) else { continue };
            if count[&from] > count[&to] + slack {
                count.entry(from).and_modify(|has| *has -= 1);
                count.entry(to).and_modify(|has| *has += 1);
                self.moves.insert(*group, (entry.epoch, to));
            }
        }
        let from: BTreeSet<ServerId> =
            self.moves.keys().filter_map(|g| state.group(*g)).filter_map(|entry| entry.primary).collect();
        for server in from {
            self.push_duties(server, ServerState::Awake, state, out);
        }
    }
}

/// Wakes the servers that are wanted, and lets the others drain and sleep if they `may`; at most `most` begin to drain.
/// Returns how many wake and how many sleep.
fn shift(
    lives: &mut BTreeMap<ServerId, Live>,
    servers: &mut Servers,
    wanted: &BTreeSet<ServerId>,
    mut most: usize,
    may: impl Fn(ServerId, Leave) -> bool,
) -> (u32, u32) {
    let (mut woken, mut put_to_sleep) = (0, 0);
    for entry in servers.values_mut() {
        let id = entry.id;
        let ready = lives.get(&id).is_some_and(|l| l.ready_to_sleep);
        match (entry.state, wanted.contains(&id)) {
            (ServerState::Asleep, true) => {
                entry.state = ServerState::Waking;
                woken += 1;
            }
            (ServerState::Draining, true) => entry.state = ServerState::Awake,
            // The floor counts no loggers.
            (ServerState::Awake, false) if entry.is_logger() && may(id, Leave::Drain) => {
                entry.state = ServerState::Draining;
            }
            (ServerState::Awake, false) if most > 0 && may(id, Leave::Drain) => {
                entry.state = ServerState::Draining;
                most -= 1;
            }
            (ServerState::Draining, false) if ready && may(id, Leave::Sleep) => {
                entry.state = ServerState::Asleep;
                put_to_sleep += 1;
            }
            _ => {}
        }
        if entry.state != ServerState::Draining
            && let Some(live) = lives.get_mut(&id)
        {
            live.ready_to_sleep = false;
        }
    }
    (woken, put_to_sleep)
}

/// Who takes the lost server's slot in each of these groups: a server that stands in for none of the other slots, or
/// else one that stands in for lost servers only. Where two are lost, each one's heir may be the other's holder, for
/// ever. Not if what it keeps may be needed: the primary must have everything. And a server that may return is a
/// complete copy together with its holder, perhaps the last one: the primary may be dead already (seed 30263008805).
fn heirs(
    lost: &ServerEntry,
    groups: &[&GroupEntry],
    places: &BTreeMap<ServerId, Place>,
    load: &BTreeMap<ServerId, u32>,
) -> Vec<Option<ServerId>> {
    // Lost servers have no place.
    let may_return = |slot: &Slot| places.contains_key(&slot.server);
    let members = |holders: bool| -> Vec<Vec<ServerId>> {
        let of = |entry: &&GroupEntry| {
            let known = entry.slots.iter().chain(entry.fallback.iter().flatten());
            let others = known.filter(|s| s.server != lost.id && (holders || may_return(s)));
            let kept = others.filter_map(|s| s.holder).flat_map(|s| s.servers());
            entry.slots.iter().map(|s| s.server).chain(kept).collect()
        };
        groups.iter().map(of).collect()
    };
    let choose = |groups: Vec<Vec<ServerId>>| rebuild_choice(lost.id, lost.gear_group, &groups, places, load);
    let (free, any) = (choose(members(true)), choose(members(false)));
    let is_complete = |entry: &GroupEntry| {
        entry.slots.iter().any(|s| s.state == SlotState::InSync && Some(s.server) == entry.primary)
    };
    let chosen = free.into_iter().zip(any).zip(groups);
    chosen
        .map(|((free, any), entry)| free.or(any.filter(|_| is_complete(entry))).map(|choice| choice.server))
        .collect()
}

/// Moves slots of lost servers to other servers of the gear group, which fetch everything. Only if another server is
/// primary: then the slot is not the last complete one. And not in a salvage, which needs what its holder has.
fn replace_lost(state: &State, servers: &Servers, world: &World) -> BTreeMap<GroupId, GroupEntry> {
    let mut replaced: BTreeMap<GroupId, GroupEntry> = BTreeMap::new();
    let places: BTreeMap<ServerId, Place> = servers
        .values()
        .filter(|e| e.state != ServerState::Lost)
        .map(|e| (e.id, Place { rack: e.rack, gear_group: e.gear_group }))
        .collect();
    for lost in servers.values().filter(|e| e.state == ServerState::Lost) {
        let mut load: BTreeMap<ServerId, u32> = BTreeMap::new();
        let mut orphans = Vec::new();
        for (group, entry) in state.groups() {
            entry.slots.iter().for_each(|s| *load.entry(s.server).or_default() += 1);
            if entry.slot_of(lost.id).is_some_and(away)
                && entry.primary.is_some()
                && !entry.salvage
                && !replaced.contains_key(&group)
            {
                orphans.push((group, entry));
            }
        }
        let entries: Vec<&GroupEntry> = orphans.iter().map(|(_, entry)| *entry).collect();
        let heirs = heirs(lost, &entries, &places, &load);
        for ((group, entry), heir) in orphans.into_iter().zip(heirs) {
            let up = |id: &ServerId| world.get(*id).is_some_and(|c| c.standing == Standing::Up);
            let Some(server) = heir.filter(up) else { continue };
            debug_assert!(entry.slot_of(server).is_none(), "an heir has no slot of the group yet");
            let mut entry = entry.clone();
            for slot in entry.slots.iter_mut().chain(entry.fallback.iter_mut().flatten()) {
                if slot.server == lost.id {
                    *slot = Slot { server, state: SlotState::CatchingUp { since: Epoch(0) }, holder: None };
                }
                // It finds another one.
                slot.holder = slot.holder.filter(|holder| holder.server != server);
                slot.holder.iter_mut().for_each(|s| s.former = s.former.filter(|id| *id != server));
            }
            replaced.insert(group, entry);
        }
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{GearGroup, Holder};

    /// Server 1 is lost, 2 away with the holder 4, which is the only other server of the lost one's gear group.
    fn heir(fallback: bool, is_known: bool) -> Option<ServerId> {
        let in_group = |gear_group: u8| {
            move |id: u16| (ServerId(id), Place { rack: RackId(id), gear_group: GearGroup(gear_group) })
        };
        let mut places: BTreeMap<ServerId, Place> = [4].map(in_group(0)).into();
        places.extend([2, 3].map(in_group(1)));
        if !is_known {
            places.remove(&ServerId(2));
        }
        let holder = Some(Holder::new(ServerId(4), true));
        let slot = |id, state, holder| Slot { server: ServerId(id), state, holder };
        let away = SlotState::Away { since: Epoch(4) };
        let slots =
            |holder| vec![slot(1, away, None), slot(2, away, holder), slot(3, SlotState::InSync, None)];
        let entry = GroupEntry {
            primary: Some(ServerId(3)),
            slots: slots(holder.filter(|_| !fallback)),
            fallback: fallback.then(|| slots(holder)),
            ..GroupEntry::unknown()
        };
        let lost = ServerEntry {
            id: ServerId(1),
            rack: RackId(1),
            pool: PoolId::REPLICATED,
            gear_group: GearGroup(0),
            address: String::new(),
            state: ServerState::Lost,
            incarnation: Incarnation(1),
            store: StoreId(1),
        };
        heirs(&lost, &[&entry], &places, &BTreeMap::new()).pop().flatten()
    }

    #[test]
    fn who_stands_in_for_a_server_that_may_return_is_no_heir() {
        for fallback in [false, true] {
            assert_eq!(
                heir(fallback, true),
                None,
                "server 2 may return, and be the last copy with its holder"
            );
            assert_eq!(heir(fallback, false), Some(ServerId(4)), "server 2 is lost, too");
        }
    }
}
