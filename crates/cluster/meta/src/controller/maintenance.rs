//! Maintenance: a server is to be stopped by somebody else, so nothing may depend on it, and its switch is left alone.
//!
//! It drains as if it were to sleep, after the other servers of its chunk groups have been woken and have caught up,
//! and then waits: stopping it now interrupts nothing. While it is away it is neither woken nor declared lost, and R8
//! has already done what it would. When it comes back it catches up; it drains again until maintenance ends, so it may
//! be restarted as often as needed. A data server of an erasure-coded set cannot hand its column over: the set serves
//! its strips from parity once it counts as failed. What it keeps for sleeping parity servers may be in its memory
//! only, so these wake and have every row before it may be stopped.

use crate::controller::give_up::may_be_needed;
use crate::controller::leading::Leading;
use crate::controller::servers::is_gone;
use crate::controller::wants::Wants;
use crate::{Command, PowerFact, State};
use ebb_types::{GroupEntry, Moment, PoolId, ServerEntry, ServerId, ServerState, SetEntry};
use std::collections::BTreeSet;

impl Leading {
    pub(crate) fn maintain(
        &self,
        now: Moment,
        server: ServerId,
        end: bool,
        state: &State,
    ) -> Result<Command, String> {
        let entry = state.server(server).ok_or_else(|| format!("{server} is not part of the cluster"))?;
        // What was declared lost in maintenance can be taken out of it (seed 33800002859).
        if !end && entry.state == ServerState::Lost {
            return Err(format!("{server} was declared lost: nothing depends on it"));
        }
        if !end && !state.in_maintenance(server) && entry.state.is_live() {
            can_do_without(entry, state)?;
        }
        let fact = PowerFact::Maintenance { on: !end };
        Ok(Command::NotePower { server, at_unix_millis: self.term.unix_now(now), fact })
    }

    /// Adds the servers that are to be awake whatever the load, and takes away those on which nothing may depend for
    /// now.
    pub(crate) fn set_apart(&self, now: Moment, state: &State, wants: &mut Wants) {
        wants.awake.extend(state.servers().map(|e| e.id).filter(|id| !self.power.may_sleep(*id, state)));
        let replicated = state.replicated().map(|e| (e.id, e.clone())).collect();
        wants.insured = self.power.insured(state, &replicated, &wants.awake);
        wants.awake.extend(&wants.insured);
        wants.examinee = self.examinee(now, wants.emergency, state);
        wants.awake.extend(wants.examinee);
        if let Some((server, awake)) = self.power.tested_state() {
            // A data server sleeps only with its set, and none while copies are missing (R8).
            if awake || wants.has_data_in_use(server, state) || wants.lacks_copies(server, state) {
                wants.awake.insert(server);
            } else {
                do_without(server, state, &mut wants.awake);
            }
        }
        let apart = || state.servers().map(|e| e.id).filter(|id| state.in_maintenance(*id));
        apart().for_each(|server| do_without(server, state, &mut wants.awake));
        // Two of one group: neither is woken for the other.
        apart().for_each(|server| _ = wants.awake.remove(&server));
    }

    /// Whether nothing depends on the server any more, and it is in maintenance.
    pub(crate) fn may_be_stopped(&self, entry: &ServerEntry, state: &State) -> bool {
        state.in_maintenance(entry.id)
            && match entry.state {
                ServerState::Draining => self.power.is_ready(entry.id),
                ServerState::Awake if entry.pool != PoolId::REPLICATED => has_rows_elsewhere(entry.id, state),
                ServerState::Awake => false,
                ServerState::Asleep | ServerState::Waking | ServerState::Failed | ServerState::Lost => true,
            }
    }
}

/// The server is not wanted; those that have copies of its groups, or columns of its set, are.
fn do_without(server: ServerId, state: &State, wanted: &mut BTreeSet<ServerId>) {
    for (_, entry) in state.groups().filter(|(_, entry)| entry.slot_of(server).is_some()) {
        wanted.extend(entry.slots.iter().map(|slot| slot.server));
    }
    for (_, set) in state.sets().filter(|(_, set)| set.column_of(server).is_some() && !set.hibernates()) {
        wanted.extend(set.columns.iter().map(|column| column.server));
    }
    wanted.remove(&server);
}

/// Whether k other servers of the server's set, none of which may be stopped too, have every row on their disks.
fn has_rows_elsewhere(id: ServerId, state: &State) -> bool {
    let there = |other: ServerId| state.server(other).filter(|e| !state.in_maintenance(e.id));
    let mut of_it = state.sets().filter(|(_, set)| set.column_of(id).is_some() && !set.hibernates());
    of_it.all(|(_, set)| may_be_needed(id, set, there).is_none())
}

/// Whether every group and set of the server can be served without it; why not, otherwise.
pub(crate) fn can_do_without(entry: &ServerEntry, state: &State) -> Result<(), String> {
    let id = entry.id;
    let there = |other: ServerId| {
        other != id && !state.in_maintenance(other) && state.server(other).is_some_and(|e| !is_gone(e))
    };
    let alone = |entry: &GroupEntry| !entry.copies().iter().any(|slot| there(slot.server));
    if let Some((group, _)) =
        state.groups().find(|(_, e)| e.slot_of(id).is_some() && (e.primary.is_none() || alone(e)))
    {
        return Err(format!(
            "{group} would have no complete copy without {id}: bring the other servers of the group back first (`ebb status`)"
        ));
    }
    let broken = |set: &SetEntry| {
        let left = set.columns.iter().filter(|column| there(column.server)).count();
        set.column_of(id).is_some() && left < set.shape.data()
    };
    if let Some((set, _)) = state.sets().find(|(_, set)| broken(set)) {
        return Err(format!(
            "{set} could not be read without {id}: bring the other servers of the set back first (`ebb status`)"
        ));
    }
    if entry.pool != PoolId::REPLICATED || entry.is_logger() {
        return Ok(());
    }
    let left = state.geared().filter(|e| there(e.id)).count();
    let copies = state.params().map_or(1, |p| usize::from(p.replicas));
    if left < copies {
        return Err(format!(
            "without {id} only {left} servers are left, and every write needs {copies}: bring others back first"
        ));
    }
    Ok(())
}
