//! When a failed server is declared lost automatically: its data is rebuilt on other servers of its gear group.
//!
//! A server that returns an hour later costs a catch-up; a lost one costs a rebuild and returns as a new server. So the
//! policy waits ([`crate::Timing::lost_after`]), gives up one server at a time, and leaves to an administrator any
//! failure that looks less like a broken server than like a missing rack, network or power supply: then servers return
//! together, though not in the same second, so each has the waiting time once more when the first are back. A leader
//! counts from when it saw the failure itself, so a change of leaders only delays the verdict. A server that sleeps, or
//! wakes late, is never failed.

use crate::controller::leading::Leading;
use crate::controller::servers::{Servers, is_gone};
use crate::{PlantedBug, State};
use ebb_types::{
    Column, Epoch, GearGroup, GroupEntry, GroupId, Moment, PoolEntry, ServerEntry, ServerId, ServerState,
    SetEntry, Slot, SlotState,
};

impl Leading {
    /// When the policy's waiting time for a failed server ends.
    pub(crate) fn given_up_at(&self, server: ServerId) -> Option<Moment> {
        Some(self.liveness.failed_since(server)? + self.term.timing.lost_after?)
    }

    /// Takes in which servers are failed still, and whether others seem to have failed with them.
    pub(crate) fn follow_failures(&mut self, now: Moment, servers: &Servers, state: &State) {
        self.liveness.wait_for(now, |server| {
            let entry = servers.get(&server).filter(|e| is_failed(e))?;
            Some(common_cause(entry, servers, state).is_some())
        });
    }

    /// The server that is to be declared lost: one at a time.
    pub(crate) fn gives_up(&self, now: Moment, servers: &Servers, state: &State) -> Option<ServerId> {
        let due = |e: &&ServerEntry| {
            is_failed(e) && !state.in_maintenance(e.id) && self.given_up_at(e.id).is_some_and(|at| at <= now)
        };
        let careless = self.term.timing.has(PlantedBug::GiveUpNeeded);
        let may = |e: &&ServerEntry| careless || reason_to_wait(e, servers, state).is_none();
        servers.values().filter(due).find(may).map(|e| e.id)
    }

    /// For the status page: when a failed server is declared lost, or why it is not.
    pub(crate) fn outlook(&self, now: Moment, entry: &ServerEntry, state: &State) -> Option<String> {
        if !is_failed(entry) {
            return None;
        }
        let id = entry.id;
        let servers: Servers = state.servers().map(|e| (e.id, e.clone())).collect();
        if state.in_maintenance(id) {
            return Some(format!("{id} is in maintenance and away; it is not given up by itself"));
        }
        Some(match (self.given_up_at(id), reason_to_wait(entry, &servers, state)) {
            (None, _) => format!("{id} has failed; only `ebb lost {}` gives it up", id.0),
            (Some(_), Some(why)) => format!("{id} has failed and is not given up by itself: {why}"),
            (Some(at), None) => {
                format!("{id} has failed; it is declared lost and rebuilt in {} s", at.since(now).as_secs())
            }
        })
    }
}

fn is_failed(entry: &ServerEntry) -> bool {
    entry.state == ServerState::Failed
}

/// What looks less like a broken server than like something that it shares with others.
fn common_cause(entry: &ServerEntry, servers: &Servers, state: &State) -> Option<String> {
    let rack = || servers.values().filter(|e| e.rack == entry.rack);
    if rack().count() > 1 && rack().all(is_gone) {
        return Some(format!("all of {} is gone, which looks like its power or network", entry.rack));
    }
    let of_pool = || servers.values().filter(|e| e.pool == entry.pool);
    let (failed, all) = (of_pool().filter(|e| is_failed(e)).count(), of_pool().count());
    if let Some(pool) = state.pool(entry.pool) {
        let (of_set, parity) = (pool.shape.servers(), pool.shape.parity());
        return (failed * of_set > all * parity)
            .then(|| format!("more than {parity}/{of_set} of the servers of {} have failed", pool.name));
    }
    let replicas = state.params().map_or(1, |p| usize::from(p.replicas));
    (failed * replicas > all).then(|| format!("more than 1/{replicas} of all servers have failed"))
}

/// Why the server is not given up automatically.
fn reason_to_wait(entry: &ServerEntry, servers: &Servers, state: &State) -> Option<String> {
    if let Some(why) = common_cause(entry, servers, state) {
        return Some(why);
    }
    if let Some(pool) = state.pool(entry.pool) {
        return reason_to_wait_in_pool(entry, pool, servers, state);
    }
    if entry.is_logger() {
        return Some("it is a logger, so there is nothing to rebuild".into());
    }
    if !has_heir(entry.gear_group, entry.id, servers) {
        return Some(format!("no other server of {} could take its place", entry.gear_group));
    }
    let fresh = |s: &Slot| s.state == SlotState::CatchingUp { since: Epoch(0) };
    let orphan = |s: &Slot| servers.get(&s.server).is_some_and(|e| e.state == ServerState::Lost);
    let rebuilds = state.groups().any(|(_, g)| g.copies().iter().any(|s| fresh(s) || orphan(s)));
    if rebuilds {
        return Some("another server is being rebuilt".into());
    }
    let group = last_copies_on(entry.id, state).next()?;
    Some(format!("it may have the last complete copy of {group}"))
}

/// Groups for which this server may have something, and of which no other server that is there has a complete copy.
pub(crate) fn last_copies_on(server: ServerId, state: &State) -> impl Iterator<Item = GroupId> + '_ {
    let is_there = |id: ServerId| state.server(id).is_some_and(|e| !is_gone(e));
    let complete = move |s: &Slot| s.server != server && s.state == SlotState::InSync && is_there(s.server);
    let of_holder = move |s: &Slot| s.holder.is_some_and(|holder| holder.servers().any(|id| id == server));
    let keeps = move |s: &Slot| s.server == server || of_holder(s);
    let needs = move |g: &GroupEntry| {
        g.slots.iter().chain(g.fallback.iter().flatten()).any(keeps) && !g.slots.iter().any(complete)
    };
    state.groups().filter(move |(_, g)| needs(g)).map(|(group, _)| group)
}

/// The same for a server of an erasure-coded pool.
fn reason_to_wait_in_pool(
    entry: &ServerEntry,
    pool: &PoolEntry,
    servers: &Servers,
    state: &State,
) -> Option<String> {
    let Some((_, set)) = state.sets().find(|(_, set)| set.column_of(entry.id).is_some()) else {
        return Some("it is a spare, so there is nothing to rebuild".into());
    };
    let taken = |id: ServerId| state.sets().any(|(_, set)| set.column_of(id).is_some());
    let spare = |e: &ServerEntry| e.pool == pool.id && e.state == ServerState::Awake && !taken(e.id);
    if !servers.values().any(spare) {
        return Some(format!("{} has no spare server that could take its place", pool.name));
    }
    let is_lost = |id: ServerId| servers.get(&id).is_some_and(|e| e.state == ServerState::Lost);
    let fresh = |c: &Column| c.state == SlotState::CatchingUp { since: Epoch(0) };
    let of_sets = state.sets().filter(|(_, set)| set.pool == pool.id).flat_map(|(_, set)| &set.columns);
    if of_sets.into_iter().any(|c| fresh(c) || is_lost(c.server)) {
        return Some("another server is being rebuilt".into());
    }
    may_be_needed(entry.id, set, |id| servers.get(&id))
}

/// Why rows of the set may depend on what this server of it has, whatever its pool's parity debt is kept in; `None`: k
/// other servers have every row. A column that is away does not count, even if others keep its strips: only when it is
/// in sync is it known that they had all of them. And one that catches up may yet find that a row lacks a strip.
pub(crate) fn may_be_needed<'a>(
    server: ServerId,
    set: &SetEntry,
    entry_of: impl Fn(ServerId) -> Option<&'a ServerEntry>,
) -> Option<String> {
    let others = || set.columns.iter().filter(|c| c.server != server);
    if let Some(column) = others().find(|c| matches!(c.state, SlotState::CatchingUp { .. })) {
        return Some(format!("{} of its set catches up and may need what it has", column.server));
    }
    let is_there = |c: &&Column| entry_of(c.server).is_some_and(|e| !is_gone(e));
    let complete = others().filter(|c| c.state == SlotState::InSync).filter(is_there).count();
    let needed = set.shape.data();
    (complete < needed).then(|| {
        format!("only {complete} other columns of its set are in sync, and {needed} are needed to rebuild its data")
    })
}

/// Whether another server of the gear group can take a lost one's place.
fn has_heir(gear_group: GearGroup, lost: ServerId, servers: &Servers) -> bool {
    servers.values().any(|e| e.gear_group == gear_group && e.id != lost && !is_gone(e))
}
