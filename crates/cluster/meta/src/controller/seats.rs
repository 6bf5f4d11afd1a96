//! What administrators ask of servers that come and go, and what it would move.

use crate::controller::leading::Leading;
use crate::controller::relocation::claimants;
use crate::{Command, Joiner, NewServer, Reply, SeatChange, State};
use ebb_gear::{Rearrangement, gear_group_for};
use ebb_types::{
    GearGroup, NewMember, PlannedMoves, PlannedServer, PoolId, ServerEntry, ServerId, ServerPlan,
    ServerState, ServerWish, Tenure, Vitals,
};
use std::collections::BTreeMap;

/// Of a server's capacity, in percent, that what moves to it may fill: below the share at which it counts as full.
const FILL_PERCENT: u64 = 85;

impl Leading {
    /// The command that the wish asks for, or why it is refused.
    pub(crate) fn change_seat(&self, wish: &ServerWish, state: &State) -> Result<Command, String> {
        let change = seat_change(wish, state)?;
        let then = after(&change, state)?;
        // Less room than now is needed for no other wish.
        if let ServerWish::Drain(_) | ServerWish::Weigh { .. } = wish {
            self.check_room(&then, state)?;
        }
        if let ServerWish::Drain(server) = wish
            && let Some(stuck) = then.rearrangement().stuck.get(server)
        {
            return Err(format!(
                "{server} has nowhere to go: {stuck} of its copies could only move into a rack that has another copy of their \
                 group; add a server of {} in another rack (`ebb server add`)",
                state.server(*server).map_or(GearGroup(0), |e| e.gear_group)
            ));
        }
        Ok(Command::ChangeSeat(change))
    }

    /// What the wish would move, or what is left to move.
    pub(crate) fn server_plan(&self, wish: Option<&ServerWish>, state: &State) -> Result<ServerPlan, String> {
        let (gear_group, then) = match wish {
            None => (None, state.clone_without_names()),
            Some(wish) => {
                let change = seat_change(wish, state)?;
                let gear_group = match &change {
                    SeatChange::Add(joiner) => Some(joiner.server.gear_group),
                    _ => None,
                };
                (gear_group, after(&change, state)?)
            }
        };
        let census = self.groups.census();
        let Rearrangement { moves, stuck } = then.rearrangement();
        let mut pairs: BTreeMap<(ServerId, ServerId), u32> = BTreeMap::new();
        moves.iter().for_each(|m| *pairs.entry((m.from, m.to)).or_default() += 1);
        let bytes =
            pairs.iter().map(|((from, _), copies)| Some(self.bytes_per_copy(*from)? * u64::from(*copies)));
        let change = |id: ServerId| {
            let count = |of: fn(&(ServerId, ServerId)) -> ServerId| -> u32 {
                pairs.iter().filter(|(pair, _)| of(pair) == id).map(|(_, copies)| *copies).sum()
            };
            (count(|pair| pair.1), count(|pair| pair.0))
        };
        let server = |e: &ServerEntry| {
            let (now, (gets, gives)) = (census.replicas(e.id), change(e.id));
            let (id, rack, gear_group) = (e.id, e.rack, e.gear_group);
            PlannedServer { id, rack, gear_group, seat: then.seat(id), now, then: now + gets - gives }
        };
        Ok(ServerPlan {
            gear_group,
            copies: moves.len() as u32,
            bytes: bytes.sum(),
            moving: census.groups.moving,
            servers: then.geared().map(server).collect(),
            notes: self.move_notes(&then, &stuck),
            moves: pairs.into_iter().map(|((from, to), copies)| PlannedMoves { from, to, copies }).collect(),
        })
    }

    fn bytes_per_copy(&self, server: ServerId) -> Option<u64> {
        let copies = u64::from(self.groups.census().replicas(server));
        Some(stored(self.figures.vitals(server)?) / copies.max(1))
    }

    /// Whether the servers of each gear group that stay have room for what it has.
    fn check_room(&self, then: &State, state: &State) -> Result<(), String> {
        let replicas = state.params().map_or(0, |params| params.replicas);
        for gear_group in (0..replicas).map(GearGroup) {
            let of_it =
                || state.geared().filter(|e| e.gear_group == gear_group && e.state != ServerState::Lost);
            let bytes = |e: &ServerEntry| match self.groups.census().replicas(e.id) {
                0 => Some(0),
                _ => self.figures.vitals(e.id).map(stored),
            };
            let own: Option<u64> = of_it().map(bytes).sum();
            let claims: u64 = of_it().map(|e| u64::from(then.seat(e.id).claim().0)).sum();
            // Of one that was not heard nothing is known.
            let Some(own) = own else { continue };
            for entry in of_it().filter(|e| then.seat(e.id).claim().0 > 0) {
                let Some(vitals) = self.figures.vitals(entry.id) else { continue };
                let share =
                    u128::from(own) * u128::from(then.seat(entry.id).claim().0) / u128::from(claims.max(1));
                let room = u128::from(vitals.capacity_bytes) * u128::from(FILL_PERCENT) / 100;
                let grows = share > u128::from(stored(vitals));
                if grows && vitals.capacity_bytes > 0 && share > room {
                    return Err(format!(
                        "{} has no room for its share of {gear_group}, {share} bytes of {}: add a server to {gear_group} \
                         first (`ebb server add`), or give it less weight (`ebb server weight`)",
                        entry.id, vitals.capacity_bytes
                    ));
                }
            }
        }
        Ok(())
    }

    /// What stands in the way of moves, and the remedy.
    fn move_notes(&self, state: &State, stuck: &BTreeMap<ServerId, u32>) -> Vec<String> {
        let mut notes: Vec<String> = stuck
            .iter()
            .map(|(server, copies)| {
                format!("{copies} copies of {server} have nowhere to go: every other server of its gear group is in a rack with another copy; add one in another rack")
            })
            .collect();
        let census = self.groups.census();
        let counts = &census.groups;
        if state.rearranges() && counts.without_target + counts.catching_up + counts.at_risk > 0 {
            notes.push("no move begins while copies are missing or catch up".into());
        }
        let sleeps = |e: &&ServerEntry| {
            let seat = state.seat(e.id);
            matches!(e.state, ServerState::Asleep | ServerState::Waking) && !seat.tenure.leaves()
        };
        let asleep = state.geared().filter(sleeps).count();
        if state.rearranges() && asleep > 0 {
            notes.push(format!(
                "what goes to {asleep} servers that sleep waits until they are awake for the load"
            ));
        }
        notes
    }

    /// For the status page: what is on its way.
    pub(crate) fn relocation_notes(&self, state: &State) -> Vec<String> {
        let (left, moving) = (self.relocations.left(), self.groups.census().groups.moving);
        let on_the_way = |e: &ServerEntry| match state.seat(e.id).tenure {
            Tenure::InUse => None,
            Tenure::Drained => {
                Some(format!("{} is drained: remove it with `ebb server remove {}`", e.id, e.id.0))
            }
            tenure => {
                Some(format!("{} is {tenure}: {left} copies are still to move, {moving} move now", e.id))
            }
        };
        state.replicated().filter_map(on_the_way).collect()
    }
}

/// Bytes of its copies, without what it keeps for others.
fn stored(vitals: &Vitals) -> u64 {
    vitals.used_bytes.saturating_sub(vitals.debt_bytes)
}

fn seat_change(wish: &ServerWish, state: &State) -> Result<SeatChange, String> {
    let change = match wish {
        ServerWish::Add(new) => SeatChange::Add(joiner(new, state)?),
        ServerWish::Drain(server) => SeatChange::Drain(*server),
        ServerWish::Keep(server) => SeatChange::Keep(*server),
        ServerWish::Weigh { server, weight } => SeatChange::Weigh(*server, *weight),
        ServerWish::Remove(server) => SeatChange::Remove(*server),
    };
    state.check_seat(&change).map_err(|refusal| refusal.to_string())?;
    Ok(change)
}

/// With the gear group that was asked for, or in which it can have its share.
fn joiner(new: &NewMember, state: &State) -> Result<Joiner, String> {
    let groups: Vec<Vec<ServerId>> =
        state.groups().map(|(_, entry)| entry.copies().iter().map(|slot| slot.server).collect()).collect();
    let chosen = || gear_group_for(new.rack, new.weight.0, &groups, &claimants(state));
    let gear_group = new.gear_group.or_else(chosen).ok_or_else(|| {
        format!(
            "nothing could be stored on {} in {}: every chunk group has a copy in that rack already, in each gear group (R13); \
             put it into another rack",
            new.server, new.rack
        )
    })?;
    let server = NewServer {
        id: new.server,
        rack: new.rack,
        pool: PoolId::REPLICATED,
        gear_group,
        address: new.address.clone(),
    };
    Ok(Joiner { server, weight: new.weight })
}

/// The state as it would be, without names.
fn after(change: &SeatChange, state: &State) -> Result<State, String> {
    let mut then = state.clone_without_names();
    match then.apply(&Command::ChangeSeat(change.clone())) {
        Reply::Refused(why) | Reply::Broken(why) => Err(why),
        _ => Ok(then),
    }
}
