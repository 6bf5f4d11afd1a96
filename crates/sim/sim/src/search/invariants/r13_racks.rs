//! R13: the copies of a write are in different racks, at every gear and after every failure, if the hardware allows.
//!
//! Checked when the cluster is at rest: while servers fail and return, a holder in a shared rack is better than none.

use crate::search::harness::World;
use crate::world::brief::brief_entry;
use ebb_gear::{Place, parting};
use ebb_meta::State;
use ebb_types::{GroupEntry, RackId, ServerId, ServerState, Slot, SlotState};
use std::collections::{BTreeMap, BTreeSet};

impl World<'_> {
    pub fn r13_racks_apart(&mut self) {
        self.fail_if("R13", self.racks_shared());
    }

    /// A group with two copies in one rack, although a holder could be elsewhere. None moves while another copy is
    /// restored, or takes over from a former holder: either may have to wait for a server that is missing (seeds
    /// 32100017199, 32500001056).
    pub fn racks_shared(&self) -> Option<String> {
        let state = self.newest_state();
        let waits = |s: &Slot| {
            matches!(s.state, SlotState::CatchingUp { .. }) || s.holder.is_some_and(|s| s.former.is_some())
        };
        let restored = |entry: &GroupEntry| entry.slots.iter().any(waits);
        let mut groups = state.groups().filter(|(_, entry)| entry.primary.is_some() && !restored(entry));
        groups.find_map(|(group, entry)| {
            let better = better_holder(entry, state, |id| !self.servers[&id].missing)?;
            Some(format!(
                "{group} has two copies in a rack, and {better} could stand in: {}",
                brief_entry(entry)
            ))
        })
    }
}

/// A group with two replicas in one rack, although a move would separate them. With two replicas none is moved: only
/// one would remain during the move.
pub fn replicas_shared(state: &State) -> Option<String> {
    // Nothing moves to a server that leaves.
    if state.replicated().any(|e| state.seat(e.id).tenure.leaves()) {
        return None;
    }
    let able = state.replicated().filter(|e| e.state == ServerState::Awake);
    let places = able.map(|e| (e.id, Place { rack: e.rack, gear_group: e.gear_group })).collect();
    let mut groups = state.groups().filter(|(_, entry)| entry.slots.len() > 2 && entry.moving.is_none());
    groups.find_map(|(group, entry)| {
        let servers: Vec<ServerId> = entry.slots.iter().map(|s| s.server).collect();
        let (k, to) = parting(&servers, None, &places, &BTreeMap::new())?;
        let from = servers[k];
        Some(format!("{group} has two replicas in a rack, and that of {from} could be on {to}"))
    })
}

/// A server, asleep or awake, that could be the holder for a slot whose holder shares a rack with another copy.
fn better_holder(entry: &GroupEntry, state: &State, there: impl Fn(ServerId) -> bool) -> Option<ServerId> {
    let rack = |id: ServerId| state.server(id).map(|e| e.rack);
    let targets: Vec<ServerId> =
        entry.copies().iter().filter_map(Slot::target).map(|(server, _)| server).collect();
    let taken: BTreeSet<Option<RackId>> = targets.iter().map(|id| rack(*id)).collect();
    let shares = |id: ServerId| targets.iter().filter(|other| rack(**other) == rack(id)).count() > 1;
    let away = entry.slots.iter().filter(|s| matches!(s.state, SlotState::Away { .. }));
    away.filter_map(|s| s.holder).find(|holder| shares(holder.server))?;
    let able = |e: &&ebb_types::ServerEntry| {
        let gone = matches!(e.state, ServerState::Failed | ServerState::Lost);
        let stays = !state.seat(e.id).tenure.leaves();
        !gone && stays && there(e.id) && entry.slot_of(e.id).is_none() && !taken.contains(&Some(e.rack))
    };
    state.replicated().find(able).map(|e| e.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{broken, cluster, entry, in_low_gear};
    use ebb_gear::{Layout, Scheme, Server, layout};
    use ebb_meta::{Bootstrap, Command};
    use ebb_types::{ClusterParams, GearGroup, Holder, Incarnation, Schedule};

    #[test]
    fn replicas_in_one_rack_that_could_be_parted_are_seen() {
        let list: Vec<Server> = (0..9).map(|n| Server { id: ServerId(n), rack: RackId(n % 3) }).collect();
        let layout = layout(&list, 3, 1, 1, Scheme::Rotated).expect("nine servers hold three copies");
        let state = |group: &[ServerId]| {
            let params = ClusterParams { replicas: 3, groups: 1, ..cluster().settings.params().clone() };
            let layout = Layout { groups: vec![group.to_vec()], ..layout.clone() };
            let bootstrap = Bootstrap::of_layout(params, &layout, Schedule::default(), |_, _| String::new());
            let mut state = State::default();
            state.apply(&Command::Init(bootstrap));
            for server in list.iter().map(|s| s.id) {
                let (to, incarnation) = (ServerState::Awake, Incarnation(1));
                let mark = ebb_types::StoreMark::default();
                state.apply(&Command::set_server(&state, server, to, incarnation, mark));
            }
            state
        };
        let good = layout.groups[0].clone();
        assert_eq!(replicas_shared(&state(&good)), None);
        let second = layout.servers[&good[1]].rack;
        let same = |(_, p): &(&ServerId, &Place)| p.gear_group == GearGroup(0) && p.rack == second;
        let same = *layout.servers.iter().find(same).expect("each gear group has a server in each rack").0;
        let bad = replicas_shared(&state(&[same, good[1], good[2]]));
        assert!(bad.is_some_and(|what| what.contains("two replicas in a rack")));
    }

    #[test]
    fn a_holder_that_shares_a_rack_while_another_server_does_not_is_seen() {
        let mut world = in_low_gear();
        world.r13_racks_apart();
        assert_eq!(broken(&mut world), None);
        let state = world.newest_state();
        let mut bad = entry(&world);
        let primary = bad.primary.expect("it is served");
        let rack = state.server(primary).expect("it is there").rack;
        let same =
            state.servers().find(|e| e.rack == rack && e.id != primary).expect("two servers a rack").id;
        let away = bad.slots.iter_mut().find(|s| s.server != primary).expect("the other slot");
        let good = away.holder.replace(Holder::new(same, true)).expect("it is away").server;
        assert_eq!(better_holder(&bad, state, |_| true), Some(good));
        // If the other rack is gone, nothing better is available.
        bad.slots.retain(|s| s.server == primary);
        assert_eq!(better_holder(&bad, state, |_| true), None);
    }
}
