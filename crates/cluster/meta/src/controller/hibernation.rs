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

use crate::controller::leading::Leading;
use crate::controller::servers::{Servers, is_gone};
use crate::controller::wants::Wants;
use crate::controller::watch::owes;
use crate::{PlantedBug, State};
use ebb_types::{
    Column, Epoch, GroupId, MetaFailure, MetaReply, Moment, PoolId, ServerEntry, ServerState, SetEntry,
    SetId, SlotState,
};

impl Leading {
    /// A client needs a set that hibernates. It is told within what time that should be awake.
    pub(crate) fn wake(&mut self, now: Moment, set: SetId, state: &State) -> MetaReply {
        let Some(entry) = state.set(set) else {
            let why = format!("there is no {set}; ask for the map and retry");
            return MetaReply::Failed(MetaFailure::Refused(why));
        };
        if entry.hibernates() {
            self.sets.await_set(now, set);
            self.dirty |= self.wants.resting.contains(&set);
        }
        MetaReply::Wakes { within_millis: self.sets.wake_time().as_millis() as u64 }
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
        let damaged = |nth| self.groups.is_damaged(GroupId::of_column(id, nth));
        let is_here = |column: &Column| !is_gone(&coded[&column.server]);
        let watch = self.sets.watch(id);
        let unsettled = watch.is_some_and(|watch| watch.unsettled);
        let settled = || {
            let nothing = watch.is_some_and(|watch| watch.fullest == Some(0.0));
            is_whole(entry, coded) && (nothing && !unsettled || !owes(entry, state))
        };
        self.sets.is_quiet(now, id, entry, state)
            && entry.columns.iter().all(is_here)
            && entry.columns.iter().all(|column| self.power.may_sleep(column.server, state))
            && !(0..entry.columns.len()).any(damaged)
            && (self.term.timing.has(PlantedBug::RestOwing)
                || is_sound(entry) && (entry.hibernates() && !unsettled || settled()))
    }

    /// Whether the set's next configuration hibernates. It ends when all servers that are wanted are there, or are late
    /// and parity can help.
    pub(crate) fn is_to_hibernate(
        &self,
        id: SetId,
        entry: &SetEntry,
        coded: &Servers,
        wants: &Wants,
    ) -> bool {
        let rests = wants.resting.contains(&id);
        if !entry.hibernates() || rests {
            return rests;
        }
        let servers = || entry.columns.iter().map(|column| &coded[&column.server]);
        let up = servers().take(entry.shape.data()).filter(|e| e.state == ServerState::Awake).count();
        let comes =
            |e: &ServerEntry| e.state != ServerState::Awake && !is_gone(e) && !self.power.is_late(e.id);
        up + entry.shape.parity() < entry.shape.data()
            || servers().any(|e| wants.awake.contains(&e.id) && comes(e))
    }
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
