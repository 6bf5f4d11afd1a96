//! When a whole set sleeps: while no client uses it, all its servers do, and with the last set of a pool the spares.
//!
//! A set goes to sleep in two steps. First its configuration says that it hibernates: from then on no strip has a
//! target, so nothing can be written, and every column keeps what it has. Then its servers drain and sleep. A client
//! that needs the set asks for it; when the servers that are wanted are there, the next configuration ends the
//! hibernation. So while any server of the set is down on purpose, no other one takes a strip that it would lack.
//!
//! - **Nothing is owed.** Before it sleeps, each column is in sync, or is away because its parity server sleeps and
//!   what it misses is on the data servers' disks. What is in their memory only is synchronised first.
//!   The figures by which that is judged are a heartbeat old, so the servers have the last word: one that has strips in
//!   memory only, or had until it was started again, does not say that it is ready, and reports it. Then the
//!   hibernation ends, and parity is woken.
//! - **Break-even.** A set sleeps after a pause that is at least as long as the shortest sleep that pays (the
//!   configuration is checked for that), so it never draws more than twice what the best choice in hindsight does.
//! - **Wear.** Each set has a budget of sleeps per day, counted in the leader's memory.

use crate::State;
use crate::controller::leading::{Leading, Servers, is_gone};
use crate::controller::watch::Watch;
use ebb_types::{
    Column, Epoch, GroupId, LoadCount, Moment, ParityDebt, PoolId, ServerId, ServerState, SetEntry, SetId,
    SlotState,
};
use std::time::Duration;

impl Leading {
    /// A client needs the set. Returns within what time it should be awake, or what is wrong.
    pub(crate) fn wake_set(&mut self, now: Moment, set: SetId, state: &State) -> Result<Duration, String> {
        let (Some(entry), Some(watch)) = (state.set(set), self.sets.get_mut(&set)) else {
            return Err(format!("there is no {set}; ask for the map and retry"));
        };
        if entry.hibernates() {
            watch.usage.last = Some(now);
            watch.usage.awaited.get_or_insert(now);
            self.dirty |= self.resting.contains(&set);
        }
        Ok(self.wake_time())
    }

    /// Within this time nearly all sets were awake lately.
    pub(crate) fn wake_time(&self) -> Duration {
        self.set_wakes.high().unwrap_or(self.timing.standby.up + self.timing.heartbeat * 2)
    }

    /// A heartbeat of one of its servers says what clients asked for.
    pub(crate) fn note_use(&mut self, now: Moment, server: ServerId, load: &LoadCount, state: &State) {
        if load.reads + load.writes == 0 {
            return;
        }
        let of_it = |(_, entry): &(SetId, &SetEntry)| entry.column_of(server).is_some();
        let Some((id, entry)) = state.sets().find(of_it) else { return };
        // A figure from before it slept comes late.
        if let Some(watch) = self.sets.get_mut(&id).filter(|_| !entry.hibernates()) {
            watch.usage.last = Some(now);
        }
    }

    /// When the set hibernates if no client uses it; `None`: never.
    pub(crate) fn rests_at(&self, id: SetId, entry: &SetEntry, state: &State) -> Option<Moment> {
        let after = state.pool(entry.pool)?.hibernate_after()?;
        Some(self.sets.get(&id)?.usage.rests_at(after, self.timing.sleep.cycles_per_day))
            .filter(|_| self.has_switches())
    }

    fn is_quiet(&self, now: Moment, id: SetId, entry: &SetEntry, state: &State) -> bool {
        self.rests_at(id, entry, state).is_some_and(|at| at <= now)
    }

    /// Parity servers are to be woken because the set could sleep if it owed them nothing.
    pub(crate) fn is_to_settle(&self, now: Moment, id: SetId, entry: &SetEntry, state: &State) -> bool {
        let keeps = |watch: &Watch| watch.unsettled || watch.fullest.is_some_and(|share| share > 0.0);
        let kept = self.sets.get(&id).is_some_and(keeps);
        !entry.hibernates() && kept && owes(entry, state) && self.is_quiet(now, id, entry, state)
    }

    /// Whether all servers of the set should sleep.
    pub(crate) fn rests(
        &self,
        now: Moment,
        id: SetId,
        entry: &SetEntry,
        state: &State,
        coded: &Servers,
    ) -> bool {
        let damaged = |nth| self.reports.damaged.contains_key(&GroupId::of_column(id, nth));
        let is_here = |column: &Column| !is_gone(&coded[&column.server]);
        let unsettled = self.sets.get(&id).is_some_and(|watch| watch.unsettled);
        let settled = || {
            let nothing = self.sets.get(&id).is_some_and(|watch| watch.fullest == Some(0.0));
            is_whole(entry, coded) && (nothing && !unsettled || !owes(entry, state))
        };
        self.is_quiet(now, id, entry, state)
            && entry.columns.iter().all(is_here)
            && entry.columns.iter().all(|column| self.may_sleep(column.server, state))
            && !(0..entry.columns.len()).any(damaged)
            && is_sound(entry)
            && (entry.hibernates() && !unsettled || settled())
    }

    /// Whether the set's next configuration hibernates. It ends when all servers that are wanted are there, or are late
    /// and parity can help.
    pub(crate) fn is_to_hibernate(&self, id: SetId, entry: &SetEntry, coded: &Servers) -> bool {
        if !entry.hibernates() || self.resting.contains(&id) {
            return self.resting.contains(&id);
        }
        let late = |id: ServerId| self.servers.get(&id).is_some_and(|live| live.power.is_late());
        let servers = || entry.columns.iter().map(|column| &coded[&column.server]);
        let up = servers().take(entry.shape.data()).filter(|e| e.state == ServerState::Awake).count();
        let comes = |e: &ebb_types::ServerEntry| e.state != ServerState::Awake && !is_gone(e) && !late(e.id);
        up + entry.shape.parity() < entry.shape.data()
            || servers().any(|e| self.wanted.contains(&e.id) && comes(e))
    }
}

/// Data servers may have to keep in memory what parity servers lack.
pub(crate) fn owes(entry: &SetEntry, state: &State) -> bool {
    let in_memory = state.pool(entry.pool).is_some_and(|pool| pool.parity_debt == ParityDebt::Ram);
    in_memory && entry.columns.iter().any(|column| column.state != SlotState::InSync)
}

/// No column is to be filled: one that is found emptied or failed on its way to sleep wakes the set.
fn is_sound(entry: &SetEntry) -> bool {
    let (data, parity) = entry.columns.split_at(entry.shape.data());
    data.iter().all(|c| c.state == SlotState::InSync) && !parity.iter().any(lacks_all)
}

/// The server's store was replaced.
pub(crate) fn lacks_all(column: &Column) -> bool {
    column.state == SlotState::Away { since: Epoch(0) }
}

/// Every column is in sync, but for parity that sleeps.
fn is_whole(entry: &SetEntry, coded: &Servers) -> bool {
    let (data, parity) = entry.columns.split_at(entry.shape.data());
    let is = |c: &Column, which: &[ServerState]| which.contains(&coded[&c.server].state);
    let in_sync = |c: &Column| c.state == SlotState::InSync;
    let sleeps = |c: &Column| c.is_away() && is(c, &[ServerState::Asleep, ServerState::Draining]);
    let awake = &[ServerState::Awake];
    data.iter().all(|c| in_sync(c) && is(c, awake))
        && parity
            .iter()
            .all(|c| in_sync(c) && is(c, &[ServerState::Awake, ServerState::Draining]) || sleeps(c))
}

/// Whether all sets of the pool hibernate, so that its spares may sleep too.
pub(crate) fn pool_hibernates(pool: PoolId, state: &State) -> bool {
    let mut sets = state.sets().filter(|(_, entry)| entry.pool == pool).peekable();
    sets.peek().is_some() && sets.all(|(_, entry)| entry.hibernates())
}
