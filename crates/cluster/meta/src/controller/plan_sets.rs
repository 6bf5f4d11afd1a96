//! The plan for the sets of erasure-coded pools: which of their servers are awake, and their next configurations.
//!
//! Beside what each set's memory says of parity ([`super::sets`])
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
use crate::controller::hibernation::{lacks_all, pool_hibernates};
use crate::controller::leading::Leading;
use crate::controller::servers::{Servers, is_gone};
use crate::controller::set::{ColumnFacts, Standing, next_set, take_spare};
use crate::controller::wants::Wants;
use crate::{SetChange, State};
use ebb_types::{
    Column, GearWish, GroupId, Incarnation, Moment, Notice, ServerEntry, ServerId, ServerState, SetEntry,
    SetId, SlotState,
};
use std::collections::BTreeSet;

impl Leading {
    /// Adds the servers of erasure-coded pools that should be awake: all but the parity servers that no set needs now,
    /// and but the sets that rest. If an administrator keeps the whole replicated pool awake, all.
    pub(crate) fn want_sets(&self, now: Moment, state: &State, coded: &Servers, wants: &mut Wants) {
        wants.awake.extend(coded.keys());
        if !self.power.has_switches() || keeps_all(state) {
            return;
        }
        let rests = |(id, entry): &(SetId, &SetEntry)| self.rests(now, *id, entry, state, coded);
        wants.resting = state.sets().filter(rests).map(|(id, _)| id).collect();
        let spares = free(state, coded).filter(|e| pool_hibernates(e.pool, state));
        spares.for_each(|spare| _ = wants.awake.remove(&spare.id));
        let turns = self.sets.turns(state, coded, |server| self.power.is_late(server));
        for (id, entry) in state.sets() {
            let Some(watch) = self.sets.watch(id) else { continue };
            if wants.resting.contains(&id) {
                entry.columns.iter().for_each(|column| _ = wants.awake.remove(&column.server));
                continue;
            }
            let damaged = |column| self.groups.is_damaged(GroupId::of_column(id, column));
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
                    wants.awake.remove(&server.id);
                }
            }
        }
    }

    /// The sets' next configurations, with the servers as they will be.
    pub(crate) fn plan_sets(
        &self,
        now: Moment,
        state: &State,
        coded: &Servers,
        wants: &Wants,
        out: &mut Vec<Output>,
    ) -> Vec<SetChange> {
        let mut spares: Vec<&ServerEntry> =
            free(state, coded).filter(|e| e.state == ServerState::Awake).collect();
        let mut changes = Vec::new();
        for (set, entry) in state.sets() {
            let hibernates = self.is_to_hibernate(set, entry, coded, wants);
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
                        if server.incarnation == Incarnation(0) && now < self.term.trusted_from(state) =>
                    {
                        Standing::Expected
                    }
                    _ => Standing::Down,
                };
                if let Standing::Lost { spare: Some(spare) } = standing {
                    debug_assert!(
                        state.sets().all(|(_, set)| set.column_of(spare).is_none()),
                        "a spare has no column that it would lose"
                    );
                    racks[nth] = coded[&spare].rack;
                    out.push(Output::Notice(Notice::SpareTakesPlace { set, spare, of: server.id }));
                }
                let (restarted, emptied) = self.break_of(before, server);
                let caught_up = self.sets.has_caught_up(set, entry.epoch, nth);
                facts.push(ColumnFacts { standing, restarted, emptied, caught_up });
            }
            let since = entry.hibernates_since.unwrap_or_else(|| self.term.unix_now(now));
            let remembers = self.sets.remembers(set, entry.epoch);
            let next = next_set(entry, &facts, hibernates.then_some(since), remembers);
            changes.extend(next.map(|next| SetChange { set, expected: entry.epoch, entry: next }));
        }
        changes
    }
}

/// Servers that may drain: all while their set hibernates, or all sets of their pool; parity servers if their set lacks
/// nothing but parity that sleeps.
pub(crate) fn spared(state: &State, coded: &Servers) -> BTreeSet<ServerId> {
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

/// Whether an administrator keeps all servers of the replicated pool awake.
fn keeps_all(state: &State) -> bool {
    match state.manual_gear() {
        Some(GearWish::Gear(gear)) => state.params().is_some_and(|params| gear >= params.replicas),
        Some(GearWish::Servers(servers)) => servers as usize >= state.geared().count(),
        None => false,
    }
}
