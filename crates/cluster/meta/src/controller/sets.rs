//! The sets of erasure-coded pools: their next configurations, and which of their servers are awake.
//!
//! [`next_set`] is for a set what [`super::group::next_entry`] is for a chunk group: events only change the facts, it
//! compares them with the entry and keeps no memory. It is simpler, because rows are immutable and a set has no
//! primary: a column whose server does not take part is away, one that takes part again catches up, and its server says
//! when it has everything.
//!
//! Which parity servers are awake is decided by one [`Standby`] per set, in the leader's memory [ECS² §3.3 to §3.5];
//! beside it
//! - parity servers that are gone do not count as the help that failed data servers need (Algorithm 2 has no such
//!   case), nor among those that stay awake;
//! - the sets of a pool are woken to synchronise one after another, so that not all draw power at once: the fullest
//!   first, and each at [`NEARLY_FULL`](super::watch::NEARLY_FULL) at the latest;
//! - a report of damage keeps a whole set awake for a while (R9);
//! - a set that no client uses sleeps as a whole, if its pool says so ([`super::hibernation`]).
//!
//! Invariants
//! - A parity server is put to sleep only when every other column is in sync, or away because its parity server sleeps
//!   too: what sleeps is never what the rest needs. It takes the same path as every server: drain, column away, ready,
//!   asleep (R7).
//! - Data servers sleep only while their set hibernates, spares only while all sets of their pool do.

use crate::controller::event::Output;
use crate::controller::hibernation::{lacks_all, owes, pool_hibernates};
use crate::controller::leading::{Leading, Servers, is_gone};
use crate::{SetChange, State};
use ebb_erasure::standby::{Event, Standby};
use ebb_types::{
    Column, Epoch, GearWish, GroupId, Incarnation, Moment, Notice, PoolId, ServerEntry, ServerId,
    ServerReport, ServerState, SetEntry, SetId, SlotState,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a column's server can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Takes part.
    Up,
    /// Does not take part, and no server does without it yet: it has never run and has a lease's time to report, or
    /// its set hibernates.
    Expected,
    /// Draining, asleep, waking or failed, while the set does not hibernate.
    Down,
    /// Gone for good. `spare` takes its place.
    Lost { spare: Option<ServerId> },
}

/// Facts about one column, with its server as it will be once the batch is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnFacts {
    pub standing: Standing,
    /// It returned or restarted: what it kept in memory may be gone.
    pub restarted: bool,
    /// It runs on another store than before (R11).
    pub emptied: bool,
    /// It reported in the present epoch that it has everything.
    pub caught_up: bool,
}

/// What `entry` should become; `None`: it is right as it is. One fact per column. `remembers`: it wants another epoch,
/// to forget deletions under.
pub(crate) fn next_set(
    entry: &SetEntry,
    facts: &[ColumnFacts],
    hibernates_since: Option<u64>,
    remembers: bool,
) -> Option<SetEntry> {
    debug_assert_eq!(facts.len(), entry.columns.len(), "one fact per column");
    let epoch = entry.epoch.next();
    let next = |(column, fact): (&Column, &ColumnFacts)| next_column(*column, fact, epoch);
    let columns: Vec<Column> = entry.columns.iter().zip(facts).map(next).collect();
    // While it hibernates no server keeps or fills anything: the epoch in which it wakes is new to all.
    let again = hibernates_since.is_none() && (remembers || facts.iter().any(|fact| fact.restarted));
    let is_alone = |(n, column): (usize, &Column)| columns[..n].iter().all(|c| c.server != column.server);
    debug_assert!(columns.iter().enumerate().all(is_alone), "a server has one column of a set");
    let catches_up = |column: &Column| matches!(column.state, SlotState::CatchingUp { .. });
    debug_assert!(
        hibernates_since.is_none() || !columns.iter().any(catches_up),
        "what sleeps is filled later"
    );
    let next = SetEntry { epoch, columns, hibernates_since, ..entry.clone() };
    let same = next.columns == entry.columns && hibernates_since == entry.hibernates_since;
    (again || !same).then_some(next)
}

fn next_column(column: Column, fact: &ColumnFacts, epoch: Epoch) -> Column {
    let Column { server, state } = column;
    let nothing = Epoch(0);
    let missing = match state {
        _ if fact.emptied => Some(nothing),
        SlotState::InSync => None,
        // One that has failed since it said so is not known to have been in sync: what it lacked stays on record.
        SlotState::CatchingUp { .. } if fact.caught_up && fact.standing != Standing::Down => None,
        SlotState::CatchingUp { since } | SlotState::Away { since } => Some(since),
    };
    let (server, state) = match (fact.standing, missing) {
        (Standing::Lost { spare: Some(spare) }, _) => (spare, SlotState::CatchingUp { since: nothing }),
        (Standing::Lost { spare: None }, _) => (server, SlotState::Away { since: nothing }),
        (Standing::Up | Standing::Expected, None) => (server, SlotState::InSync),
        (Standing::Up, Some(since)) => (server, SlotState::CatchingUp { since }),
        (Standing::Down | Standing::Expected, missing) => {
            (server, SlotState::Away { since: missing.unwrap_or(epoch) })
        }
    };
    Column { server, state }
}

impl Leading {
    /// Servers of erasure-coded pools that should be awake: all but the parity servers that no set needs now. If an
    /// administrator keeps the whole replicated pool awake, all.
    pub(crate) fn wanted_of_sets(
        &mut self,
        now: Moment,
        state: &State,
        coded: &Servers,
    ) -> BTreeSet<ServerId> {
        self.follow_sets(now, state);
        let mut wanted: BTreeSet<ServerId> = coded.keys().copied().collect();
        self.resting.clear();
        if !self.has_switches() || keeps_all(state) {
            return wanted;
        }
        let rests = |(id, entry): &(SetId, &SetEntry)| self.rests(now, *id, entry, state, coded);
        self.resting = state.sets().filter(rests).map(|(id, _)| id).collect();
        let spares = free(state, coded).filter(|e| pool_hibernates(e.pool, state));
        spares.for_each(|spare| _ = wanted.remove(&spare.id));
        let turns = self.turns(state, coded);
        for (id, entry) in state.sets() {
            let Some(watch) = self.sets.get(&id) else { continue };
            if self.resting.contains(&id) {
                entry.columns.iter().for_each(|column| _ = wanted.remove(&column.server));
                continue;
            }
            let damaged = |column| self.reports.damaged.contains_key(&GroupId::of_column(id, column));
            if entry.shape.may_sleep().is_err() || (0..entry.columns.len()).any(damaged) {
                continue;
            }
            let mut needed = watch.standby.needed();
            for parity in watch.standby.order() {
                let column = &entry.columns[entry.shape.data() + parity];
                let server = &coded[&column.server];
                let helps = needed > 0 && !is_gone(server);
                needed -= usize::from(helps);
                let its_turn = server.state != ServerState::Asleep || turns.contains(&id);
                let is_new = entry.hibernates() && lacks_all(column);
                let stays = helps || is_new || watch.asks_for(parity) && its_turn;
                if !stays {
                    wanted.remove(&server.id);
                }
            }
        }
        wanted
    }

    /// Takes in what happened to the sets since the last time.
    fn follow_sets(&mut self, now: Moment, state: &State) {
        let cycles = self.timing.sleep.cycles_per_day;
        for (id, entry) in state.sets() {
            let settles = self.is_to_settle(now, id, entry, state);
            let Some(watch) = self.sets.get_mut(&id) else { continue };
            watch.settles = settles;
            watch.unsettled &= entry.hibernates() || owes(entry, state);
            watch.follow(now, entry, state);
            if let Some(took) = watch.usage.follow(now, entry, cycles) {
                self.set_wakes.note(took);
            }
        }
    }

    /// Sets that may be woken because they fill up: in each pool one at a time, the fullest first, and those that are
    /// nearly full.
    fn turns(&self, state: &State, coded: &Servers) -> BTreeSet<SetId> {
        let mut turns = BTreeSet::new();
        let mut waiting: BTreeMap<PoolId, (bool, f64, SetId)> = BTreeMap::new();
        for (id, entry) in state.sets() {
            let Some(watch) = self.sets.get(&id) else { continue };
            let parity = || entry.columns[entry.shape.data()..].iter().map(|c| (c, coded[&c.server].state));
            let late = |server: ServerId| self.servers.get(&server).is_some_and(|l| l.power.is_late());
            let busy = parity().any(|(column, state)| match state {
                ServerState::Waking => !late(column.server),
                ServerState::Awake => column.state != SlotState::InSync,
                _ => false,
            });
            let waits = parity()
                .enumerate()
                .any(|(nth, (_, state))| state == ServerState::Asleep && watch.asks_for(nth));
            if waits && watch.is_nearly_full() {
                turns.insert(id);
            }
            // A set that is at it keeps its turn.
            let claim = (busy, watch.fullest.unwrap_or(0.0), id);
            if busy || waits {
                let best = waiting.entry(entry.pool).or_insert(claim);
                if (claim.0, claim.1) > (best.0, best.1) {
                    *best = claim;
                }
            }
        }
        turns.extend(waiting.into_values().map(|(_, _, id)| id));
        turns
    }

    /// Servers that may drain: all while their set hibernates, or all sets of their pool; parity servers if their set
    /// lacks nothing but parity that sleeps.
    pub(crate) fn spared(&self, state: &State, coded: &Servers) -> BTreeSet<ServerId> {
        let free = free(state, coded).filter(|e| pool_hibernates(e.pool, state));
        let mut spared: BTreeSet<ServerId> = free.map(|e| e.id).collect();
        for (_, entry) in state.sets() {
            if entry.hibernates() {
                spared.extend(entry.columns.iter().map(|column| column.server));
                continue;
            }
            let (data, parity) = entry.columns.split_at(entry.shape.data());
            let is = |column: &Column, which: &[ServerState]| which.contains(&coded[&column.server].state);
            let whole = |c: &Column| c.state == SlotState::InSync && is(c, &[ServerState::Awake]);
            let sleeps = |c: &Column| c.is_away() && is(c, &[ServerState::Asleep, ServerState::Draining]);
            if data.iter().all(whole) && parity.iter().all(|c| whole(c) || sleeps(c)) {
                spared.extend(parity.iter().filter(|c| whole(c)).map(|c| c.server));
            }
        }
        spared
    }

    /// The sets' next configurations, with the servers as they will be.
    pub(crate) fn plan_sets(
        &self,
        now: Moment,
        state: &State,
        coded: &Servers,
        out: &mut Vec<Output>,
    ) -> Vec<SetChange> {
        let mut spares: Vec<&ServerEntry> =
            free(state, coded).filter(|e| e.state == ServerState::Awake).collect();
        let mut changes = Vec::new();
        for (set, entry) in state.sets() {
            let hibernates = self.is_to_hibernate(set, entry, coded);
            let mut racks: Vec<_> = entry.columns.iter().map(|column| coded[&column.server].rack).collect();
            let mut facts = Vec::new();
            for (nth, column) in entry.columns.iter().enumerate() {
                let server = &coded[&column.server];
                let before = state.server(server.id);
                let standing = match server.state {
                    ServerState::Lost if hibernates => Standing::Lost { spare: None },
                    ServerState::Lost => {
                        Standing::Lost { spare: take_spare(&mut spares, entry.pool, &racks) }
                    }
                    ServerState::Failed => Standing::Down,
                    _ if hibernates => Standing::Expected,
                    ServerState::Awake => Standing::Up,
                    ServerState::Waking
                        if server.incarnation == Incarnation(0) && now < self.trusted_from(state) =>
                    {
                        Standing::Expected
                    }
                    _ => Standing::Down,
                };
                if let Standing::Lost { spare: Some(spare) } = standing {
                    racks[nth] = coded[&spare].rack;
                    out.push(Output::Notice(Notice::SpareTakesPlace { set, spare, of: server.id }));
                }
                let (restarted, emptied) = self.break_of(before, server);
                let caught_up = self.reports.columns.contains(&(set, entry.epoch, nth));
                facts.push(ColumnFacts { standing, restarted, emptied, caught_up });
            }
            let since = entry.hibernates_since.unwrap_or_else(|| self.unix_now(now));
            let remembers = self.reports.remembering.get(&set) == Some(&entry.epoch);
            let next = next_set(entry, &facts, hibernates.then_some(since), remembers);
            changes.extend(next.map(|next| SetChange { set, expected: entry.epoch, entry: next }));
        }
        changes
    }

    /// A report about a column counts if it refers to the present epoch and comes from a server of the set.
    pub(crate) fn report_of_column(
        &mut self,
        now: Moment,
        from: ServerId,
        (set, nth): (SetId, usize),
        report: &ServerReport,
        state: &State,
    ) {
        let Some(entry) = state.set(set) else { return };
        let (Some(own), Some(column)) = (entry.column_of(from), entry.columns.get(nth)) else { return };
        match *report {
            ServerReport::CaughtUp { epoch, .. } if epoch == entry.epoch && own == nth => {
                if !matches!(column.state, SlotState::CatchingUp { .. }) {
                    return;
                }
                self.reports.columns.insert((set, epoch, nth));
            }
            ServerReport::Damaged { group, epoch } if epoch == entry.epoch => {
                self.reports.damaged.insert(group, now);
            }
            ServerReport::Owes { epoch, .. } if epoch == entry.epoch && entry.hibernates() => {
                let Some(watch) = self.sets.get_mut(&set) else { return };
                watch.unsettled = true;
            }
            ServerReport::Remembers { epoch, .. } if epoch == entry.epoch => {
                self.reports.remembering.insert(set, epoch);
            }
            ServerReport::Suspect { epoch, server, .. }
                if epoch == entry.epoch && entry.column_of(server).is_some() =>
            {
                self.suspect(now, from, server, state);
            }
            _ => return,
        }
        self.dirty = true;
    }

    /// Takes in how full the set of this data server is, once per heartbeat interval, and only when all its live data
    /// servers have been heard: else the next one to be heard would look like a sudden fill.
    pub(crate) fn fill(&mut self, now: Moment, server: ServerId, state: &State) {
        let of_it = |(_, e): &(SetId, &SetEntry)| e.column_of(server).is_some_and(|nth| nth < e.shape.data());
        let Some((id, entry)) = state.sets().find(of_it).filter(|(_, e)| !e.hibernates()) else { return };
        let (Some(pool), Some(watch)) = (state.pool(entry.pool), self.sets.get_mut(&id)) else { return };
        if watch.fullest.is_some() && now < watch.fed + self.timing.heartbeat {
            return;
        }
        let live = |c: &&Column| state.server(c.server).is_some_and(|e| e.state.is_live());
        let debt = |c: &Column| {
            self.servers.get(&c.server).filter(|l| l.heard.is_some()).map(|l| l.vitals.debt_bytes)
        };
        let data = entry.columns[..entry.shape.data()].iter();
        let debts: Option<Vec<u64>> = data.filter(live).map(debt).collect();
        let Some(most) = debts.and_then(|debts| debts.into_iter().max()) else { return };
        let share = most as f64 / pool.parity_buffer_bytes.max(1) as f64;
        let before = (watch.is_full(), watch.is_nearly_full(), watch.fullest == Some(0.0));
        (watch.fullest, watch.fed) = (Some(share), now);
        let mut commands = Vec::new();
        watch.standby.on(now, Event::Filled { share }, &mut commands);
        self.dirty |=
            !commands.is_empty() || (watch.is_full(), watch.is_nearly_full(), share == 0.0) != before;
    }

    pub(crate) fn watch(&self, set: SetId) -> Option<(&Standby, Option<f64>)> {
        self.sets.get(&set).map(|watch| (&watch.standby, watch.fullest))
    }
}

/// Whether the server may sleep (R7): its column does without it, or its set hibernates; or it has no column, and all
/// sets of its pool hibernate.
pub(crate) fn is_spared(server: ServerId, state: &State) -> bool {
    let rests = |entry: &SetEntry| {
        entry.column_of(server).map(|nth| entry.hibernates() || entry.columns[nth].is_away())
    };
    let of_set = state.sets().find_map(|(_, entry)| rests(entry));
    let pool = || state.server(server).map(|entry| entry.pool);
    of_set.unwrap_or_else(|| pool().is_some_and(|pool| pool_hibernates(pool, state)))
}

/// Servers without a column.
fn free<'a>(state: &State, coded: &'a Servers) -> impl Iterator<Item = &'a ServerEntry> {
    let taken: BTreeSet<ServerId> =
        state.sets().flat_map(|(_, entry)| &entry.columns).map(|column| column.server).collect();
    coded.values().filter(move |e| !taken.contains(&e.id))
}

/// Takes a spare server of the pool, preferably of a rack that the set does not use.
fn take_spare(spares: &mut Vec<&ServerEntry>, pool: PoolId, racks: &[ebb_types::RackId]) -> Option<ServerId> {
    let able = spares.iter().enumerate().filter(|(_, e)| e.pool == pool);
    let (nth, _) = able.min_by_key(|(_, e)| (racks.iter().filter(|rack| **rack == e.rack).count(), e.id))?;
    Some(spares.remove(nth).id)
}

/// Whether an administrator keeps all servers of the replicated pool awake.
fn keeps_all(state: &State) -> bool {
    match state.manual_gear() {
        Some(GearWish::Gear(gear)) => state.params().is_some_and(|params| gear >= params.replicas),
        Some(GearWish::Servers(servers)) => servers as usize >= state.geared().count(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Shape;

    const NOW: Epoch = Epoch(7);

    fn entry(states: [SlotState; 3]) -> SetEntry {
        let column = |(nth, state)| Column { server: ServerId(nth as u16), state };
        let columns = states.into_iter().enumerate().map(column).collect();
        SetEntry {
            pool: PoolId(1),
            shape: Shape::new(2, 1).unwrap(),
            epoch: NOW,
            hibernates_since: None,
            columns,
        }
    }

    const UP: ColumnFacts =
        ColumnFacts { standing: Standing::Up, restarted: false, emptied: false, caught_up: false };
    const DOWN: ColumnFacts = ColumnFacts { standing: Standing::Down, ..UP };

    fn catching(since: u32) -> SlotState {
        SlotState::CatchingUp { since: Epoch(since) }
    }

    fn away(since: u32) -> SlotState {
        SlotState::Away { since: Epoch(since) }
    }

    /// What becomes of a column beside two that are in sync; `None`: the entry is right as it is.
    fn becomes(state: SlotState, fact: ColumnFacts) -> Option<(ServerId, SlotState)> {
        let next =
            next_set(&entry([SlotState::InSync, state, SlotState::InSync]), &[UP, fact, UP], None, false)?;
        assert_eq!(next.epoch, Epoch(8));
        assert!([0, 2].map(|n| next.columns[n].state) == [SlotState::InSync; 2]);
        Some((next.columns[1].server, next.columns[1].state))
    }

    #[test]
    fn a_column_whose_server_leaves_is_away_from_the_new_epoch_on() {
        let own = |state| Some((ServerId(1), state));
        assert_eq!(becomes(SlotState::InSync, DOWN), own(away(8)));
        assert_eq!(becomes(catching(3), DOWN), own(away(3)));
        assert_eq!(becomes(away(3), DOWN), None);
        let caught_up = ColumnFacts { caught_up: true, ..DOWN };
        assert_eq!(
            becomes(catching(3), caught_up),
            own(away(3)),
            "seed 30320003459: it was never in sync on record"
        );
        let expected = ColumnFacts { standing: Standing::Expected, ..UP };
        assert_eq!(becomes(SlotState::InSync, expected), None);
        assert_eq!(becomes(catching(3), expected), own(away(3)));
    }

    #[test]
    fn a_server_that_is_back_catches_up_and_is_in_sync_when_it_says_so() {
        let own = |state| Some((ServerId(1), state));
        let caught_up = ColumnFacts { caught_up: true, ..UP };
        assert_eq!(becomes(SlotState::InSync, UP), None);
        assert_eq!(becomes(away(3), UP), own(catching(3)));
        assert_eq!(becomes(catching(3), UP), None);
        assert_eq!(becomes(catching(3), caught_up), own(SlotState::InSync));
        assert_eq!(becomes(away(3), caught_up), own(catching(3)), "it must catch up first");
    }

    #[test]
    fn a_set_that_remembers_many_deletions_gets_an_epoch() {
        let own = entry([SlotState::InSync; 3]);
        assert_eq!(next_set(&own, &[UP; 3], None, false), None);
        let next = next_set(&own, &[UP; 3], None, true).expect("a new epoch");
        assert_eq!(next, SetEntry { epoch: Epoch(8), ..own });
    }

    #[test]
    fn a_restart_begins_an_epoch() {
        let restarted = ColumnFacts { restarted: true, ..UP };
        for state in [SlotState::InSync, catching(3)] {
            assert_eq!(becomes(state, restarted), Some((ServerId(1), state)));
        }
    }

    #[test]
    fn an_emptied_server_lacks_everything() {
        let emptied = ColumnFacts { restarted: true, emptied: true, caught_up: true, ..UP };
        for state in [SlotState::InSync, catching(3), away(3)] {
            assert_eq!(becomes(state, emptied), Some((ServerId(1), catching(0))));
            let down = ColumnFacts { standing: Standing::Down, ..emptied };
            assert_eq!(becomes(state, down), Some((ServerId(1), away(0))));
        }
    }

    #[test]
    fn a_lost_servers_column_moves_to_a_spare() {
        let lost = |spare| ColumnFacts { standing: Standing::Lost { spare }, ..UP };
        for state in [SlotState::InSync, catching(3), away(3)] {
            assert_eq!(becomes(state, lost(Some(ServerId(9)))), Some((ServerId(9), catching(0))));
            assert_eq!(becomes(state, lost(None)), Some((ServerId(1), away(0))));
        }
        assert_eq!(becomes(away(0), lost(None)), None);
    }

    #[test]
    fn a_spare_comes_from_another_rack_if_there_is_one() {
        let spare = |id: u16, rack: u16, pool: u8| ServerEntry {
            id: ServerId(id),
            rack: ebb_types::RackId(rack),
            pool: PoolId(pool),
            gear_group: ebb_types::NO_GEAR,
            address: String::new(),
            state: ServerState::Awake,
            incarnation: Incarnation(1),
            store: ebb_types::StoreId(1),
        };
        let racks = [1, 2, 2].map(ebb_types::RackId);
        let servers = [spare(3, 2, 1), spare(4, 3, 2), spare(5, 1, 1), spare(6, 3, 1)];
        let mut spares = servers.iter().collect();
        let mut take = || take_spare(&mut spares, PoolId(1), &racks).map(|id| id.0);
        assert_eq!([take(), take(), take(), take()], [Some(6), Some(5), Some(3), None]);
    }
}
