//! The last resort: chunk groups without a complete copy are served again from the newest remaining data.
//!
//! The planner never does this by itself: it cannot know that a missing copy will not come back. Every server that may
//! have data of such a group must take part or be declared lost, and the operator must accept the loss, which is listed
//! first. All available members then start as equals: each takes whatever is newer from every other
//! ([`GroupEntry::salvage`]), so that they end up identical, and the first to have everything is in sync. A server that
//! was given up cannot bring older data back: it is lost. Holders take part with their offload. A group of which all
//! servers were given up begins again on another one.

use crate::controller::group::next_entry;
use crate::controller::leading::Leading;
use crate::controller::servers::Servers;
use crate::{Change, Command, State};
use ebb_types::{
    Column, Epoch, GroupEntry, GroupId, Holder, Moment, ServerId, ServerState, SetEntry, SetId, Slot,
    SlotState,
};
use std::collections::{BTreeMap, BTreeSet};

impl Leading {
    /// The command that serves these groups again, or why it is refused.
    pub(crate) fn force(&self, now: Moment, accept_loss: bool, state: &State) -> Result<Command, String> {
        let stuck = self.stuck(now, state);
        let sets: Vec<String> = state.sets().filter_map(|(id, set)| incomplete(id, set, state)).collect();
        if stuck.is_empty() {
            let all = "every chunk group has a complete copy, and every set can be rebuilt: there is nothing to force";
            return Err(if sets.is_empty() { all.into() } else { sets.join("; ") });
        }
        let is =
            |id: ServerId, what: fn(ServerState) -> bool| state.server(id).is_some_and(|e| what(e.state));
        let of =
            |entry: &GroupEntry| entry.members().map(|(id, _)| id).chain(entry.keepers()).collect::<Vec<_>>();
        let members: BTreeSet<ServerId> = stuck.iter().flat_map(|(_, entry)| of(entry)).collect();
        let undecided: Vec<ServerId> = members
            .iter()
            .filter(|id| !is(**id, |s| s == ServerState::Awake || s == ServerState::Lost))
            .copied()
            .collect();
        let groups =
            format!("{} chunk groups (the first is {}) have no complete copy left", stuck.len(), stuck[0].0);
        let and_sets: String = sets.iter().map(|set| format!("; {set}")).collect();
        if let Some(first) = undecided.first() {
            return Err(format!(
                "{groups}: {} may have what is missing; start them, or give them up with `ebb lost {} --accept-loss`{and_sets}",
                names(&undecided),
                first.0
            ));
        }
        let lost: Vec<ServerId> =
            members.iter().filter(|id| is(**id, |s| s == ServerState::Lost)).copied().collect();
        if !accept_loss {
            return Err(format!(
                "{groups}: what was acknowledged last and is only on {} would be lost, and reads of it would return older data; \
                 `ebb force --accept-loss` does that{and_sets}",
                if lost.is_empty() { "disks that came back empty or old".into() } else { names(&lost) }
            ));
        }
        let awake = |id: ServerId| is(id, |s| s == ServerState::Awake);
        let mut heirs = Heirs::of(state);
        let salvaged: Vec<Change> = stuck
            .into_iter()
            .filter_map(|(group, entry)| {
                let entry = &without_newcomer(entry, awake);
                let seated = match entry.slots.iter().any(|s| awake(s.server)) {
                    true => entry.clone(),
                    false => heirs.seat_one(entry)?,
                };
                Some(Change { group, expected: entry.stage(), entry: salvage(&seated, awake)? })
            })
            .collect();
        if salvaged.is_empty() {
            return Err(format!(
                "{groups}, and no server of their gear groups is awake: start one, on an empty directory if need be"
            ));
        }
        Ok(Command::Reconfigure(salvaged))
    }

    /// Groups that no server can serve, whatever the planner does, and those whose salvage waits for a member.
    fn stuck<'a>(&self, now: Moment, state: &'a State) -> Vec<(GroupId, &'a GroupEntry)> {
        let servers: Servers = state.replicated().map(|e| (e.id, e.clone())).collect();
        let world = self.world(now, state, &servers);
        let hopeless = |(group, entry): &(GroupId, &GroupEntry)| {
            let facts = self.facts(now, *group, entry, state);
            let next = next_entry(entry, &facts, &mut world.clone());
            !facts.wait && next.as_ref().unwrap_or(entry).primary.is_none()
        };
        let waits = |entry: &GroupEntry| {
            let gone = |id: ServerId| servers.get(&id).is_none_or(|e| e.state != ServerState::Awake);
            let lacks = |s: &Slot| {
                let away = matches!(s.state, SlotState::Away { .. });
                !away && gone(s.server) || s.holder.into_iter().flat_map(|s| s.servers()).any(gone)
            };
            entry.salvage && entry.slots.iter().any(lacks)
        };
        state.groups().filter(|(g, e)| (e.primary.is_none() && hopeless(&(*g, e))) || waits(e)).collect()
    }
}

/// What an erasure-coded set lacks of which fewer columns are in sync than a row needs, and who decides. It needs no
/// force: rows that no remaining server has are passed over as soon as the servers that may have them are lost.
fn incomplete(id: SetId, set: &SetEntry, state: &State) -> Option<String> {
    let complete = set.columns.iter().filter(|c| c.state == SlotState::InSync).count();
    let needed = set.shape.data();
    if complete >= needed {
        return None;
    }
    let may_return = |c: &&Column| state.server(c.server).is_some_and(|e| e.state == ServerState::Failed);
    let down: Vec<ServerId> = set.columns.iter().filter(may_return).map(|c| c.server).collect();
    let few = format!("{id} has {complete} columns in sync, and rows need {needed}");
    Some(match down.first() {
        None => format!("{few}: its servers exchange what they have; wait for it (`ebb status`)"),
        Some(first) => format!(
            "{few}: {} may have what is missing; start them, or give them up with `ebb lost {} --accept-loss`: {}",
            names(&down),
            first.0,
            loss(set)
        ),
    })
}

/// What is lost with a server of the set that may have the only strips of a row.
pub(crate) fn loss(set: &SetEntry) -> String {
    format!(
        "rows of which fewer than {} strips are left would be lost, and reads of them fail",
        set.shape.data()
    )
}

/// Who takes the places of lost servers: the slots of each server so far.
struct Heirs<'a> {
    state: &'a State,
    slots: BTreeMap<ServerId, u32>,
}

impl Heirs<'_> {
    fn of(state: &State) -> Heirs<'_> {
        let mut slots: BTreeMap<ServerId, u32> = BTreeMap::new();
        let all = state.groups().flat_map(|(_, entry)| &entry.slots);
        all.for_each(|slot| *slots.entry(slot.server).or_default() += 1);
        Heirs { state, slots }
    }

    /// All servers of the group were given up: another server of one's gear group takes its slot, with nothing, and the
    /// planner replaces the others once that one serves. `None`: there is none.
    fn seat_one(&mut self, entry: &GroupEntry) -> Option<GroupEntry> {
        let Heirs { state, slots } = self;
        let is_member = |id: ServerId| entry.members().any(|(member, _)| member == id);
        let free = state.replicated().filter(|e| e.state == ServerState::Awake && !is_member(e.id));
        let seats = free.filter_map(|heir| {
            let of_it = |slot: &Slot| {
                state.server(slot.server).is_some_and(|lost| lost.gear_group == heir.gear_group)
            };
            let nth = entry.slots.iter().position(of_it)?;
            Some((slots.get(&heir.id).copied().unwrap_or(0), heir.id, nth))
        });
        let (_, heir, nth) = seats.min()?;
        *slots.entry(heir).or_default() += 1;
        let mut seated = entry.clone();
        seated.slots[nth].server = heir;
        Some(seated)
    }
}

/// A newcomer has copied some of the slot that moves. It stays in its place if that slot's server is gone, and nothing
/// is kept for it.
fn without_newcomer(entry: &GroupEntry, awake: impl Fn(ServerId) -> bool) -> GroupEntry {
    let mut entry = entry.clone();
    let moving = entry.moving.take().map(usize::from);
    if let Some((k, newcomer)) = moving.and_then(|k| Some((k, entry.slots.pop()?))) {
        let known = entry.fallback.as_ref().map_or(entry.slots[k], |served| served[k]);
        let is_free = [known, entry.slots[k]].iter().all(|slot| slot.holder.is_none() && !awake(slot.server));
        if is_free && awake(newcomer.server) {
            let copied = Slot { state: SlotState::CatchingUp { since: Epoch(0) }, ..newcomer };
            entry.slots[k] = copied;
            entry.fallback.iter_mut().for_each(|served| served[k] = copied);
        }
    }
    entry
}

/// `None`: none of its servers is awake. A member that is alone has the newest data by definition.
fn salvage(entry: &GroupEntry, awake: impl Fn(ServerId) -> bool) -> Option<GroupEntry> {
    let claim = |s: &Slot| s.state.lacks_since().unwrap_or(entry.epoch);
    let primary = entry.slots.iter().filter(|s| awake(s.server)).max_by_key(|s| claim(s))?.server;
    let takes_part = |id: &ServerId| awake(*id) && *id != primary;
    let is_free = |id: &ServerId| entry.slots.iter().all(|s| s.server != *id);
    // Nothing was ordered after the newest epoch that may have served.
    let served = entry.fallback.as_ref().unwrap_or(&entry.slots);
    let kept = |s: &Slot| -> Vec<ServerId> {
        let holder = served.iter().find(|before| before.server == s.server).and_then(|before| before.holder);
        let servers = holder.or(s.holder).into_iter().flat_map(|holder| holder.servers());
        servers.filter(|id| takes_part(id) && is_free(id)).collect()
    };
    let alone = !entry.slots.iter().any(|s| takes_part(&s.server) || !kept(s).is_empty());
    let slot = |s: &Slot| {
        let state = match awake(s.server) {
            true if alone => SlotState::InSync,
            true => SlotState::CatchingUp { since: Epoch(0) },
            false => SlotState::Away { since: Epoch(0) },
        };
        let holder = match kept(s)[..] {
            [former, server] => Some(Holder { former: Some(former), ..Holder::new(server, false) }),
            [server] => Some(Holder::new(server, false)),
            _ => None,
        };
        Slot { server: s.server, state, holder }
    };
    let slots = entry.slots.iter().map(slot).collect();
    let epoch = entry.epoch.next();
    // `received` is cleared: not all of the data is there.
    Some(GroupEntry { epoch, primary: Some(primary), slots, salvage: !alone, ..GroupEntry::unknown() })
}

fn names(servers: &[ServerId]) -> String {
    servers.iter().map(ServerId::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two copies, one of which slept while its offload moved from server 3 to server 4.
    #[test]
    fn what_a_former_holder_keeps_takes_part() {
        let both = Holder { former: Some(ServerId(3)), ..Holder::new(ServerId(4), false) };
        let slot = |id, state, holder| Slot { server: ServerId(id), state, holder };
        let slots =
            vec![slot(1, SlotState::InSync, None), slot(2, SlotState::Away { since: Epoch(4) }, Some(both))];
        let entry = GroupEntry { epoch: Epoch(5), slots, ..GroupEntry::unknown() };
        for (awake, holder) in [
            (vec![2, 3, 4], Some(both)),
            (vec![2, 3], Some(Holder::new(ServerId(3), false))),
            (vec![2, 4], Some(Holder::new(ServerId(4), false))),
            (vec![2], None),
        ] {
            let next = salvage(&entry, |id| awake.contains(&id.0)).expect("server 2 is there");
            assert_eq!((next.primary, next.slots[1].holder), (Some(ServerId(2)), holder), "{awake:?}");
            let alone = holder.is_none();
            assert_eq!((next.salvage, next.slots[1].state == SlotState::InSync), (!alone, alone));
        }
        // A third one took over in an epoch that never served: what counts is what did.
        let mut moved = GroupEntry { fallback: Some(entry.slots.clone()), ..entry };
        moved.slots[1].holder = Some(Holder::new(ServerId(5), false));
        let next = salvage(&moved, |id| [2, 3, 5].contains(&id.0)).expect("server 2 is there");
        assert_eq!(next.slots[1].holder, Some(Holder::new(ServerId(3), false)));
    }
}
