//! The planning step: turns the facts into one batch of commands.
//!
//! 1. **Facts** ([`Leading::take_in`]). The owners take in what has become due: who failed and who is back, what gears
//!    and sets make of that.
//! 2. **Decision** ([`Leading::decide`]). What follows from facts and state, without a change to either: first servers
//!    (which are lost, may sleep, must wake), then, with the servers as they will be, the chunk groups and the sets of
//!    erasure-coded pools, so that an entry is never visible beside a server state that does not match it. When nothing
//!    else is left to do, racks are parted; otherwise primaries are spread evenly.
//! 3. **Commands** ([`Leading::carry_out`]). The owners are told what was decided, and all of it becomes one batch.
//!    When nothing is left to do a finished shift is recorded.

use crate::controller::by_server::ByServer;
use crate::controller::census::Census;
use crate::controller::duties::{may_drain, may_sleep};
use crate::controller::event::Output;
use crate::controller::figures::Room;
use crate::controller::gears::{policy, standing};
use crate::controller::group::{Candidate, Facts, Standing, World, next_entry};
use crate::controller::groups::{Moves, Seen};
use crate::controller::leading::Leading;
use crate::controller::plan_sets::{is_spared, spared};
use crate::controller::racks::{Partings, part_racks, racks_apart};
use crate::controller::rebuild::replace_lost;
use crate::controller::relocation::{hand_overs, joining, settled};
use crate::controller::runs::Spoke;
use crate::controller::servers::{Servers, is_gone};
use crate::controller::wants::Wants;
use crate::{Change, Command, PlantedBug, PowerFact, State};
use ebb_gear::floor_servers;
use ebb_types::{
    Depth, Epoch, GroupEntry, GroupId, HourRecord, Incarnation, Moment, Notice, PoolId, RackId, ServerEntry,
    ServerId, ServerState, ShiftRecord, Slot, SlotState, StoreMark, Tenure, bug,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What follows from the facts.
struct Decision {
    wants: Wants,
    /// Servers that will drain.
    draining: BTreeSet<ServerId>,
    moved: Moved,
    seen: Seen,
    commands: Vec<Command>,
    /// Nothing else is left to do.
    settled: bool,
    /// Replicas that move to racks of their own.
    parted: Vec<Change>,
    /// Replicas that begin to move to other servers.
    begun: Vec<Change>,
    moves: Moves,
    /// Primaries that are asked at once to hand over.
    asked: BTreeSet<ServerId>,
}

/// What a plan adds to the shift in progress.
#[derive(Default)]
struct Moved {
    woken: u32,
    put_to_sleep: u32,
    migrations: u32,
}

/// A step of a server on its way to sleep.
#[derive(Clone, Copy)]
enum Leave {
    Drain,
    Sleep,
}

impl Leading {
    pub(crate) fn plan(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) -> Vec<Command> {
        let servers = self.take_in(now, state, out);
        let decision = self.decide(now, state, servers, out);
        self.carry_out(now, state, decision, out)
    }

    /// Brings the facts up to date. Returns the servers as they are by that.
    fn take_in(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) -> Servers {
        self.follow_test(now, state, out);
        // A miscount stays, so that a look now and then finds it.
        let looks = cfg!(any(test, feature = "planted-bugs")) && state.version().is_multiple_of(16);
        debug_assert!(!looks || *self.groups.census() == Census::of(state));
        let mut servers: Servers = state.servers().map(|e| (e.id, e.clone())).collect();
        for entry in servers.values_mut() {
            self.judge(now, entry, state, out);
        }
        self.follow_failures(now, &servers, state);
        self.see_servers(now, state, &servers);
        self.groups.drop_damage(now);
        self.relocations.follow(state, self.groups.census());
        self.sets.follow(now, state);
        servers
    }

    /// Decides whether the server failed or returned.
    fn judge(&mut self, now: Moment, entry: &mut ServerEntry, state: &State, out: &mut Vec<Output>) {
        let server = entry.id;
        let Spoke { run, store, .. } = self.runs.of(server);
        let switch = self.power.switch(server);
        let shows_awake = |heard| switch.is_none_or(|switch| switch.shows_awake(heard));
        let returned = self.liveness.has_returned(now, server, shows_awake, state);
        if returned && store != entry.store && entry.incarnation != Incarnation(0) {
            out.push(Output::Notice(Notice::AnotherStore { server }));
        }
        let is_new = run > entry.incarnation;
        let back = match entry.state {
            _ if !returned => None,
            ServerState::Awake | ServerState::Draining => is_new.then_some(Notice::Restarted { server }),
            ServerState::Failed | ServerState::Waking => Some(Notice::Back { server }),
            ServerState::Lost => (store != entry.store).then_some(Notice::BackEmpty { server }),
            ServerState::Asleep => is_new.then_some(Notice::StartedWhileAsleep { server }),
        };
        if let Some(notice) = back {
            if entry.state == ServerState::Waking {
                self.power.note_wake_up(now, entry, self.liveness.heard(server));
            }
            if matches!(entry.state, ServerState::Failed | ServerState::Waking) {
                self.liveness.take_back(server);
            }
            (entry.incarnation, entry.state) = (run, ServerState::Awake);
            out.push(Output::Notice(notice));
        } else if matches!(entry.state, ServerState::Awake | ServerState::Draining)
            && now >= self.liveness.fails_at(server, now, &self.term, state)
        {
            entry.state = ServerState::Failed;
            self.liveness.fail(now, server, self.term.longest_lease(state));
            out.push(Output::Notice(Notice::Failed { server }));
        }
        if entry.incarnation == run && entry.store != store {
            entry.store = store;
            self.runs.replace_store(server);
        }
    }

    /// Tells the gears which servers are awake, and how long the others would take.
    fn see_servers(&mut self, now: Moment, state: &State, servers: &Servers) {
        let replicated = || servers.values().filter(|e| e.pool == PoolId::REPLICATED);
        let one = |e: &ServerEntry| {
            let depth = state.slept_depth(e.id).unwrap_or(self.term.timing.depth);
            let standing = standing(e.state, self.power.is_late(e.id), depth);
            // Where nothing is switched, gears are a dry run of what could be.
            (e.id, standing, !self.power.has_switches() || self.power.may_sleep(e.id, state))
        };
        let seen: Vec<_> = replicated().filter(|e| !e.is_logger()).map(one).collect();
        // How long a sleeper will take to fetch what it misses: the awake servers keep that for all of them.
        let sleepers = replicated().filter(|e| e.state == ServerState::Asleep).count();
        let live = replicated().filter(|e| e.state.is_live());
        let debt: u64 = live.filter_map(|e| self.figures.vitals(e.id)).map(|vitals| vitals.debt_bytes).sum();
        let rate = self.gears.write_rate() * sleepers.max(1) as f64;
        let catch_up = Duration::try_from_secs_f64(debt as f64 / rate).unwrap_or(Duration::MAX);
        for depth in [Depth::Standby, Depth::Off] {
            self.gears.set_wake(depth, self.power.wake_times(depth), catch_up);
        }
        self.gears.see(now, seen);
    }

    fn decide(&self, now: Moment, state: &State, mut servers: Servers, out: &mut Vec<Output>) -> Decision {
        if let Some(server) = self.gives_up(now, &servers, state) {
            servers.get_mut(&server).expect("one of them").state = ServerState::Lost;
            out.push(Output::Notice(Notice::GivenUp { server }));
        }
        let (mut servers, mut coded): (Servers, Servers) =
            servers.into_iter().partition(|(_, e)| e.pool == PoolId::REPLICATED);
        let (wants, mut moved) = self.plan_servers(now, state, &mut servers, &mut coded);
        let all = || servers.values().chain(coded.values());
        let mut commands = self.set_servers(now, state, all(), out);
        let draining = all().filter(|e| e.state == ServerState::Draining).map(|e| e.id).collect();
        let world = self.world(now, state, &servers);
        let (changes, seen) = self.plan_groups(now, state, &servers, world.clone());
        let migrates = |c: &&Change| {
            let primary = state.group(c.group).and_then(|entry| entry.primary);
            primary.is_some() && c.entry.primary.is_some_and(|next| Some(next) != primary)
        };
        moved.migrations = changes.iter().filter(migrates).count() as u32;
        let changed: BTreeSet<GroupId> = changes.iter().map(|c| c.group).collect();
        debug_assert_eq!(changed.len(), changes.len(), "a group changes once in a batch");
        let serves = |id: ServerId| servers.get(&id).is_some_and(|e| e.state.is_live());
        debug_assert!(
            changes.iter().filter_map(|c| c.entry.primary).all(serves),
            "no group is left to a server that is put to sleep or has failed"
        );
        // Under a primary that is about to fail nothing is ordered, also if it said that it could serve before that was
        // known.
        let fails = |group: GroupId| {
            let primary = state.group(group).and_then(|entry| entry.primary);
            primary.is_some_and(|id| self.liveness.is_condemned(id))
        };
        let may_serve = |(group, _): &(GroupId, Epoch)| !changed.contains(group) && !fails(*group);
        let serving: Vec<_> = self.groups.serving().filter(may_serve).collect();
        if !serving.is_empty() {
            commands.push(Command::Serve(serving));
        }
        if !changes.is_empty() {
            commands.push(Command::Reconfigure(changes));
        }
        let changes = self.plan_sets(now, state, &coded, &wants, out);
        if !changes.is_empty() {
            commands.push(Command::ReconfigureSets(changes));
        }
        let census = self.groups.census();
        commands.extend(settled(state, census, &self.relocations).into_iter().map(Command::ChangeSeat));
        let settled = commands.is_empty() && is_settled(state, &wants, census);
        let (parted, mut moves) =
            if settled { part_racks(state, &servers, census) } else { Default::default() };
        let calm = parted.is_empty() && !wants.emergency;
        let begun = if calm {
            self.relocations.begin(state, (census, &world), (&changed, &self.term.timing))
        } else {
            Vec::new()
        };
        let made_way = hand_overs(state, &world, census);
        let mut asked: BTreeSet<ServerId> = made_way
            .keys()
            .filter(|group| !self.groups.moves(**group))
            .filter_map(|group| state.group(*group)?.primary)
            .collect();
        moves.extend(made_way);
        if parted.is_empty() && moves.is_empty() && !self.groups.is_moving() {
            moves = balance(state, &wants.awake, &changed, census);
            asked = moves.keys().filter_map(|group| state.group(*group)?.primary).collect();
        }
        Decision { wants, draining, moved, seen, commands, settled, parted, begun, moves, asked }
    }

    /// Decides every server's next state: of the replicated pool's, and of those of erasure-coded pools. Returns what
    /// is wanted, and what that adds to a shift.
    fn plan_servers(
        &self,
        now: Moment,
        state: &State,
        servers: &mut Servers,
        coded: &mut Servers,
    ) -> (Wants, Moved) {
        let mut wants = self.wanted(now, state, servers);
        self.want_sets(now, state, coded, &mut wants);
        self.set_apart(now, state, &mut wants);
        let is_wanted = |e: &ServerEntry| wants.awake.contains(&e.id);
        let stays = ByServer::those(servers, |e| e.state == ServerState::Awake && is_wanted(e));
        let is_away = |e: &ServerEntry| matches!(e.state, ServerState::Asleep | ServerState::Waking);
        let comes = ByServer::those(servers, |e| is_away(e) && is_wanted(e) && !self.power.is_late(e.id));
        let groups = policy(state.schedule(), state);
        let smallest = groups.group_sizes.iter().copied().min().unwrap_or(0);
        // More may be wanted, but no gear keeps fewer, whichever gear group's turn it is.
        let floor = floor_servers(smallest, groups.replicas()) as usize;
        let awake = servers.values().filter(|e| !e.is_logger() && e.state == ServerState::Awake).count();
        let trusted = now >= self.term.trusted_from(state);
        let most = if trusted && !wants.emergency { awake.saturating_sub(floor) } else { 0 };
        let sleeps = |id: ServerId| {
            self.power.is_ready(id) && (self.power.may_sleep(id, state) || self.power.is_put_to_the_test(id))
        };
        let census = self.groups.census();
        let may = |id, leave| match leave {
            Leave::Drain => may_drain(id, state, census, &stays, &comes),
            Leave::Sleep => sleeps(id) && may_sleep(id, state, census),
        };
        let moved = shift(servers, &wants.awake, most, may);
        let spared = spared(state, coded);
        let may = |id, leave| match leave {
            Leave::Drain => trusted && spared.contains(&id),
            Leave::Sleep => sleeps(id) && is_spared(id, state),
        };
        shift(coded, &wants.awake, usize::MAX, may);
        (wants, moved)
    }

    /// Servers of the replicated pool that should be awake: those of the gear, and the loggers; while copies are
    /// missing or damaged, all that can help (R8, R9); while room is short, all that have some (R10); and as many more
    /// as needed to spread copies over racks (R13).
    fn wanted(&self, now: Moment, state: &State, servers: &Servers) -> Wants {
        let mut wants = Wants { awake: self.gears.awake().clone(), ..Wants::default() };
        wants.awake.extend(servers.values().filter(|e| e.is_logger()).map(|e| e.id));
        wants.awake.extend(joining(state));
        if !self.term.timing.has(PlantedBug::LeaveAlone) {
            let helpers = self.helpers(now, state, servers);
            wants.emergency = !helpers.is_empty();
            wants.awake.extend(helpers);
        }
        let (lacking, relieves) = self.lacking_room(state, servers, &wants.awake);
        wants.short_of_room = self.power.has_switches() && !lacking.is_empty();
        wants.awake.extend(lacking);
        wants.relieves = relieves;
        let comes = |e: &&ServerEntry| !(e.state == ServerState::Waking && self.power.is_late(e.id));
        let able = servers.values().filter(comes).filter(|e| !state.in_maintenance(e.id));
        let apart = racks_apart(able, &wants.awake, state);
        wants.awake.extend(apart);
        wants
    }

    /// All that can help while copies are missing, damaged or in one rack.
    fn helpers(&self, now: Moment, state: &State, servers: &Servers) -> BTreeSet<ServerId> {
        let lost = ByServer::those(servers, |e| e.state == ServerState::Lost);
        // The peers of one in maintenance are awake as it is.
        let missing = ByServer::those(servers, |e| is_gone(e) && !state.in_maintenance(e.id));
        let census = self.groups.census();
        let gone = servers.values().filter(|e| is_gone(e)).flat_map(|e| census.groups_of(e.id));
        let known = [&census.sharing_rack, &census.headless, &census.lacking].into_iter().flatten().copied();
        let groups: BTreeSet<GroupId> = known.chain(self.groups.damaged()).chain(gone).collect();
        let mut helpers = BTreeSet::new();
        let mut partings = Partings::new(servers, state, census);
        for group in groups {
            let Some(entry) = state.group(group) else { continue };
            if census.sharing_rack.contains(&group)
                && let Some((_, to)) = partings.next(entry, None)
            {
                helpers.extend(entry.slots.iter().map(|s| s.server).chain([to]));
            }
            let stuck = entry.primary.is_none() && !self.liveness.waits(now, entry, &self.term, state);
            let damaged = self.groups.is_damaged(group);
            if stuck || damaged || entry.copies().iter().any(|s| missing.has(s.server)) {
                let former = entry.slots.iter().filter_map(|s| s.holder?.former);
                helpers.extend(entry.slots.iter().map(|s| s.server).chain(former));
            }
            for slot in entry.copies().iter().filter(|s| lost.has(s.server)) {
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
    /// one stays so until that holder has room: it would be chosen again, in the same moment. Returns also who relieves
    /// which holder.
    fn lacking_room(
        &self,
        state: &State,
        servers: &Servers,
        wanted: &BTreeSet<ServerId>,
    ) -> (BTreeSet<ServerId>, BTreeMap<ServerId, ServerId>) {
        let lacks_room = |id: ServerId| self.figures.room(id) != Room::default();
        let strained = ByServer::those(servers, |e| e.state.is_live() && lacks_room(e.id));
        let mut relieves = self.wants.relieves.clone();
        let forgets = self.term.timing.has(PlantedBug::ForgetRelief);
        relieves.retain(|_, holder| strained.has(*holder) && !forgets);
        if !servers.keys().any(|id| strained.has(*id)) {
            return (BTreeSet::new(), relieves);
        }
        let with_room: Vec<&ServerEntry> =
            servers.values().filter(|e| !strained.has(e.id) && !is_gone(e)).collect();
        let left: BTreeSet<ServerId> =
            with_room.iter().map(|e| e.id).filter(|id| wanted.contains(id)).collect();
        let enough = left.len() >= state.params().map_or(1, |p| usize::from(p.replicas));
        if !enough || !racks_apart(with_room.into_iter(), &left, state).is_empty() {
            return (servers.keys().copied().collect(), relieves);
        }
        let slots = state.groups().flat_map(|(_, entry)| &entry.slots);
        let held = slots.filter_map(|slot| Some((slot.server, slot.holder?.server)));
        relieves.extend(held.filter(|(_, holder)| strained.has(*holder)));
        (relieves.keys().copied().collect(), relieves)
    }

    /// The chunk groups' next configurations, with the servers as they will be, and what this plan sees of the groups.
    fn plan_groups(
        &self,
        now: Moment,
        state: &State,
        servers: &Servers,
        mut world: World,
    ) -> (Vec<Change>, Seen) {
        let replaced = replace_lost(state, servers, &world);
        let seen = Seen::of(state, &world);
        let groups = self.groups.to_see(state, &seen, &replaced);
        debug_assert!(
            !cfg!(any(test, feature = "planted-bugs")) || self.rest_stays(now, state, &world, &groups)
        );
        if groups.is_empty() {
            return (Vec::new(), seen);
        }
        let census = self.groups.census();
        for (id, candidate) in world.iter_mut() {
            (candidate.primaries, candidate.holders) = (census.primaries(id), census.holders(id));
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
            if self.term.timing.has(PlantedBug::ForgetFallback) {
                next.fallback = None;
            }
            changes.push(Change { group, expected: entry.stage(), entry: next });
        }
        (changes, seen)
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

    pub(crate) fn facts(&self, now: Moment, group: GroupId, entry: &GroupEntry, state: &State) -> Facts {
        let mut facts = self.groups.facts(group, entry, self.liveness.waits(now, entry, &self.term, state));
        let leaves = |newcomer: &Slot| state.seat(newcomer.server).tenure.leaves();
        facts.recalled = entry.newcomer().is_some_and(leaves) || !state.rearranges();
        if self.term.timing.has(PlantedBug::CoverUnasked) {
            let unasked = |slot: &&Slot| slot.holder.is_some_and(|holder| !holder.covered);
            facts.covered = entry.slots.iter().filter(unasked).map(|slot| slot.server).collect();
        }
        facts
    }

    /// The servers as candidates; their work is counted separately.
    pub(crate) fn world(&self, now: Moment, state: &State, servers: &Servers) -> World {
        let never_sleep = self.gears.never_sleep(now);
        let sleeps = |e: &ServerEntry| {
            self.power.may_sleep(e.id, state) && !e.is_logger() && !never_sleep.contains(&e.gear_group)
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
                let Room { full, indebted } = self.figures.room(e.id);
                let leaves = state.seat(e.id).tenure.leaves();
                let ignores_racks = self.term.timing.has(PlantedBug::IgnoreRacks);
                let candidate = Candidate {
                    standing,
                    restarted,
                    emptied,
                    lost: before.is_some_and(|before| before.state == ServerState::Lost),
                    rack: if ignores_racks { RackId(0) } else { e.rack },
                    logger: e.is_logger(),
                    sleeps: sleeps(e),
                    full: full || leaves,
                    indebted,
                    in_flight: self.figures.vitals(e.id).map_or(0, |vitals| vitals.in_flight),
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
        let keeps_epoch = self.term.timing.has(PlantedBug::RestartInEpoch);
        (
            before.incarnation != now.incarnation && !keeps_epoch || came_back,
            other_store && !self.term.timing.has(PlantedBug::TrustAnyStore),
        )
    }

    fn carry_out(
        &mut self,
        now: Moment,
        state: &State,
        decision: Decision,
        out: &mut Vec<Output>,
    ) -> Vec<Command> {
        let Decision {
            wants,
            draining,
            moved,
            seen,
            mut commands,
            settled,
            parted,
            begun: relocated,
            moves,
            asked,
        } = decision;
        debug_assert!(settled || parted.is_empty(), "racks are parted once nothing else is left to do");
        let may_move = |(group, (epoch, to)): (&GroupId, &(Epoch, ServerId))| {
            let entry = state.group(*group).filter(|entry| entry.epoch == *epoch);
            entry.is_some_and(|entry| entry.primary != Some(*to) && entry.slot_of(*to).is_some())
        };
        debug_assert!(moves.iter().all(may_move), "a primary hands over to another replica");
        self.wants = wants;
        self.power.keep_ready(&draining);
        self.groups.saw(seen);
        if let Some(shift) = &mut self.gears.shift {
            shift.woken += moved.woken;
            shift.put_to_sleep += moved.put_to_sleep;
            shift.migrations += moved.migrations;
        }
        out.extend(self.gears.bugs.drain(..).map(Output::Bug));
        let begun = std::mem::take(&mut self.gears.begun).into_iter();
        // Without switches a gear is a dry run.
        out.extend(begun.filter(|_| self.power.has_switches()).map(Output::Notice));
        let at_unix_millis = self.term.unix_now(now);
        let facts = self.power.take_facts().into_iter();
        commands.extend(facts.map(|(server, fact)| Command::NotePower { server, at_unix_millis, fact }));
        self.groups.begin_moves(moves);
        asked.into_iter().for_each(|server| self.push_duties(server, ServerState::Awake, state, out));
        if !relocated.is_empty() {
            commands.push(Command::Reconfigure(relocated));
        }
        if !parted.is_empty() {
            commands.push(Command::Reconfigure(parted));
        } else if settled && !self.groups.is_moving() {
            commands.extend(self.end_shift(now).map(Command::RecordShift));
        }
        let positions = self.runs.witness(now, self.term.timing.witness, state);
        if !positions.is_empty() {
            commands.push(Command::Witness(positions));
        }
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

    /// The commands that put servers into their next states.
    fn set_servers<'a>(
        &self,
        now: Moment,
        state: &State,
        servers: impl Iterator<Item = &'a ServerEntry>,
        out: &mut Vec<Output>,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        for entry in servers {
            let before = state.server(entry.id).expect("a copy of the state's servers");
            if (before.state, before.incarnation) == (entry.state, entry.incarnation) {
                continue;
            }
            let (server, to) = (entry.id, entry.state);
            if to == ServerState::Asleep && before.state != ServerState::Draining {
                bug(out, "a server sleeps that did not drain (R7)");
                continue;
            }
            if to == ServerState::Waking && before.state != ServerState::Asleep {
                bug(out, "a server is woken that does not sleep");
                continue;
            }
            let mark = StoreMark { store: entry.store, position: self.runs.of(server).position };
            commands.push(Command::set_server(state, server, to, entry.incarnation, mark));
            if to == ServerState::Asleep {
                let depth = self.gears.depth(server).unwrap_or(self.term.timing.depth);
                let wears = self.term.timing.sleep.wears(depth);
                let spent = f64::from(u8::from(wears));
                let credit = self.gears.saved_cycles(now, server).map(|saved| saved - spent);
                let fact = PowerFact::Sleeps { depth, wears, credit };
                let at_unix_millis = self.term.unix_now(now);
                commands.push(Command::NotePower { server, at_unix_millis, fact });
            }
        }
        commands
    }

    fn end_shift(&mut self, now: Moment) -> Option<ShiftRecord> {
        if !self.power.has_switches() {
            self.gears.shift = None;
            return None;
        }
        self.gears.end_shift(now, |at| self.term.unix_now(at))
    }
}

/// No change is pending: every server is where it should be, and every replica on an awake server is in sync.
fn is_settled(state: &State, wants: &Wants, census: &Census) -> bool {
    // One that joins may be started much later.
    let is_new = |e: &ServerEntry| {
        state.seat(e.id).tenure == Tenure::Joining
            && e.state == ServerState::Waking
            && e.incarnation == Incarnation(0)
    };
    let there = || state.replicated().filter(|e| !is_new(e));
    let moves = |e: &ServerEntry| matches!(e.state, ServerState::Draining | ServerState::Waking);
    let on_the_way = |e: &ServerEntry| moves(e) && !state.in_maintenance(e.id);
    let quiet = !there().any(on_the_way);
    let gear_done =
        there().all(|e| (e.state == ServerState::Awake) == wants.awake.contains(&e.id) || is_gone(e));
    quiet && (gear_done || wants.emergency) && census.headless.is_empty() && census.catching_up.is_empty()
}

/// Spreads primaries evenly over the servers that stay awake; the present primaries are asked to hand over. Also while
/// others come and go: until a server that woke for the load has its share, the others carry it.
fn balance(state: &State, awake: &BTreeSet<ServerId>, changed: &BTreeSet<GroupId>, census: &Census) -> Moves {
    let stays = |e: &&ServerEntry| e.state == ServerState::Awake && awake.contains(&e.id);
    let counted = |e: &ServerEntry| (e.id, census.primaries(e.id));
    let mut count: BTreeMap<ServerId, u32> = state.geared().filter(stays).map(counted).collect();
    let slack = 1 + count.values().sum::<u32>() / count.len().max(1) as u32 / 16;
    let most = count.values().copied().max().unwrap_or(0);
    let takers = count.iter().filter(|(_, has)| **has + slack < most);
    let groups: BTreeSet<GroupId> = takers.flat_map(|(id, _)| census.groups_of(*id)).collect();
    let mut moves = Moves::new();
    for group in groups.difference(changed) {
        let entry = state.group(*group).expect("a group of the state");
        let Some(from) = entry.primary.filter(|primary| count.contains_key(primary)) else { continue };
        let able = |s: &&Slot| s.state == SlotState::InSync && count.contains_key(&s.server);
        let able = entry.slots.iter().filter(able).map(|s| s.server);
        let Some(to) = able.min_by_key(|id| (count[id], *id)) else { continue };
        if count[&from] > count[&to] + slack {
            count.entry(from).and_modify(|has| *has -= 1);
            count.entry(to).and_modify(|has| *has += 1);
            moves.insert(*group, (entry.epoch, to));
        }
    }
    moves
}

/// Wakes the servers that are wanted, and lets the others drain and sleep if they `may`; at most `most` begin to drain.
/// Returns how many do.
fn shift(
    servers: &mut Servers,
    wanted: &BTreeSet<ServerId>,
    mut most: usize,
    may: impl Fn(ServerId, Leave) -> bool,
) -> Moved {
    let mut moved = Moved::default();
    for entry in servers.values_mut() {
        let id = entry.id;
        match (entry.state, wanted.contains(&id)) {
            (ServerState::Asleep, true) => {
                entry.state = ServerState::Waking;
                moved.woken += 1;
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
            (ServerState::Draining, false) if may(id, Leave::Sleep) => {
                entry.state = ServerState::Asleep;
                moved.put_to_sleep += 1;
            }
            _ => {}
        }
    }
    moved
}
