//! Who takes the slots of lost servers: the data is rebuilt on other servers of the gear group.

use crate::State;
use crate::controller::duties::away;
use crate::controller::group::{Standing, World};
use crate::controller::servers::Servers;
use ebb_gear::{Place, rebuild_choice};
use ebb_types::{Epoch, GroupEntry, GroupId, ServerEntry, ServerId, ServerState, Slot, SlotState};
use std::collections::{BTreeMap, BTreeSet};

/// Who takes the lost server's slot in each of these groups: a server that stands in for none of the other slots, or
/// else one that stands in for lost servers only. Where two are lost, each one's heir may be the other's holder, for
/// ever. Not if what it keeps may be needed: the primary must have everything. And a server that may return is a
/// complete copy together with its holder, perhaps the last one: the primary may be dead already (seed 30263008805).
/// `there`: servers that are not lost; `places`: those of them that may take slots.
fn heirs(
    lost: &ServerEntry,
    groups: &[&GroupEntry],
    (there, places): (&BTreeSet<ServerId>, &BTreeMap<ServerId, Place>),
    load: &BTreeMap<ServerId, u32>,
) -> Vec<Option<ServerId>> {
    let may_return = |slot: &Slot| there.contains(&slot.server);
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
    chosen.map(|((free, any), entry)| free.or(any.filter(|_| is_complete(entry)))).collect()
}

/// Whether a newcomer takes the server's slot as soon as it has everything.
fn is_on_its_way(entry: &GroupEntry, server: ServerId) -> bool {
    entry.moving.is_some_and(|k| entry.slots[usize::from(k)].server == server)
}

/// Moves slots of lost servers to other servers of the gear group, which fetch everything. Only if another server is
/// primary: then the slot is not the last complete one. And not in a salvage, which needs what its holder has.
pub(crate) fn replace_lost(state: &State, servers: &Servers, world: &World) -> BTreeMap<GroupId, GroupEntry> {
    let mut replaced: BTreeMap<GroupId, GroupEntry> = BTreeMap::new();
    let is_there = |e: &&ServerEntry| e.state != ServerState::Lost;
    let stays = |e: &&ServerEntry| !state.seat(e.id).tenure.leaves();
    // One that leaves is an heir only where there is no other.
    let others_stay = |e: &ServerEntry| {
        servers.values().filter(is_there).filter(stays).any(|other| other.gear_group == e.gear_group)
    };
    let there: BTreeSet<ServerId> = servers.values().filter(is_there).map(|e| e.id).collect();
    let places: BTreeMap<ServerId, Place> = servers
        .values()
        .filter(is_there)
        .filter(|e| stays(e) || !others_stay(e))
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
                && !is_on_its_way(entry, lost.id)
                && !replaced.contains_key(&group)
            {
                orphans.push((group, entry));
            }
        }
        let entries: Vec<&GroupEntry> = orphans.iter().map(|(_, entry)| *entry).collect();
        let heirs = heirs(lost, &entries, (&there, &places), &load);
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
    use ebb_types::{GearGroup, Holder, Incarnation, PoolId, RackId, StoreId};

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
        let there = places.keys().copied().collect();
        heirs(&lost, &[&entry], (&there, &places), &BTreeMap::new()).pop().flatten()
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
