//! R3: configurations change only through the replicated metadata service. All members agree on the configuration of an
//! epoch, and every configuration is sound: r slots, one target per copy, a primary that is complete or can become so.
//! [Sierra §3.5, PacificA]

use super::Invariants;
use crate::search::harness::World;
use crate::world::brief::brief_entry;
use ebb_types::{GroupEntry, GroupId, MetaPush, ServerId, SlotState};
use std::collections::BTreeSet;

impl World<'_> {
    pub(super) fn r3_configurations(&mut self, member: u64) {
        let state = self.members[&member].member.state();
        let looked = self.harness.invariants.looked.entry(member).or_default();
        if state.version() == *looked {
            return;
        }
        *looked = state.version();
        let mut trouble = None;
        for (group, entry) in state.groups() {
            if let Err(what) = agree(&mut self.harness.invariants, member, group, entry) {
                trouble = Some(what);
            } else if let Some(fault) = self.sleeper_in(group, entry, state) {
                trouble = Some(fault);
            }
        }
        self.fail_if("R3", trouble);
    }

    /// One step of a member may produce several configurations in a row: servers see them all.
    pub(super) fn r3_pushed_map(&mut self, member: u64, push: &MetaPush) {
        let MetaPush::Map(delta) = push else { return };
        for (group, entry) in &delta.groups {
            if let Err(what) = agree(&mut self.harness.invariants, member, *group, entry) {
                return self.fail("R3", what);
            }
        }
    }

    /// R7, in the map: a server that sleeps on purpose is neither primary nor target of any group.
    fn sleeper_in(&self, group: GroupId, entry: &GroupEntry, state: &ebb_meta::State) -> Option<String> {
        let asleep =
            |id: ServerId| state.server(id).is_some_and(|s| s.state == ebb_types::ServerState::Asleep);
        let found = entry.primary.into_iter().chain(entry.targets()).find(|id| asleep(*id))?;
        // Without a primary nothing is written, and slots stay as they are.
        entry.primary.map(|_| format!("{group} counts on {found}, which is asleep: {}", brief_entry(entry)))
    }
}

/// All statements about an epoch agree, and it is sound. An epoch on record may serve from then on: no member can tell
/// whether it did.
fn agree(
    Invariants { entries, served, .. }: &mut Invariants,
    member: u64,
    group: GroupId,
    entry: &GroupEntry,
) -> Result<(), String> {
    let known = entries.entry((group, entry.epoch)).or_insert_with(|| entry.clone());
    if entry.stage().serves && known.fallback.take().is_some() {
        let newest = served.entry(group).or_default();
        *newest = entry.epoch.max(*newest);
    }
    let same = GroupEntry { fallback: known.fallback.clone(), ..entry.clone() } == *known;
    if !same {
        let (this, other) = (brief_entry(entry), brief_entry(known));
        return Err(format!("member-{member} has {group} as {this}; another had {other}"));
    }
    fault(entry).map_or(Ok(()), |fault| Err(format!("{group} {fault}: {}", brief_entry(entry))))
}

fn fault(entry: &GroupEntry) -> Option<&'static str> {
    let servers: BTreeSet<ServerId> = entry.slots.iter().map(|s| s.server).collect();
    let targets: Vec<ServerId> = entry.targets().collect();
    let distinct: BTreeSet<&ServerId> = targets.iter().collect();
    if servers.len() != entry.slots.len() {
        return Some("has a server twice");
    }
    if distinct.len() != targets.len() {
        return Some("has two copies on one server");
    }
    let primary = entry.primary?;
    match entry.slot_of(primary).map(|s| s.state) {
        None => Some("has a primary without a slot"),
        Some(SlotState::Away { .. }) => Some("has a primary that is away"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{GROUP, broken, cluster, entry, in_low_gear, primary, secondary};
    use ebb_types::{Holder, MapDelta, Slot};

    #[test]
    fn two_configurations_of_one_epoch_are_seen() {
        let mut world = cluster();
        let other = GroupEntry { primary: Some(secondary(&world)), ..entry(&world) };
        let push = |entry| MetaPush::Map(MapDelta { groups: vec![(GROUP, entry)], ..MapDelta::default() });
        world.r3_pushed_map(1, &push(entry(&world)));
        assert_eq!(broken(&mut world), None);
        world.r3_pushed_map(1, &push(other));
        assert_eq!(broken(&mut world), Some("R3"));
    }

    #[test]
    fn a_server_that_sleeps_and_is_counted_on_is_seen() {
        let mut world = in_low_gear();
        let (awake, asleep) = (primary(&world), secondary(&world));
        let good = entry(&world);
        assert_eq!(world.sleeper_in(GROUP, &good, world.newest_state()), None);
        let as_primary = GroupEntry { primary: Some(asleep), ..good.clone() };
        assert!(world.sleeper_in(GROUP, &as_primary, world.newest_state()).is_some());
        let mut as_target = good.clone();
        as_target.slots.iter_mut().for_each(|s| s.state = SlotState::InSync);
        assert!(world.sleeper_in(GROUP, &as_target, world.newest_state()).is_some());
        // It is searched for in every state that a member reaches.
        world.harness.invariants.looked.clear();
        world
            .harness
            .invariants
            .entries
            .insert((GROUP, good.epoch), GroupEntry { primary: Some(awake), ..as_target });
        world.r3_configurations(1);
        assert_eq!(broken(&mut world), Some("R3"));
    }

    #[test]
    fn unsound_configurations_are_seen() {
        let world = in_low_gear();
        let (good, awake) = (entry(&world), primary(&world));
        assert_eq!(fault(&good), None);
        let bad = |change: &dyn Fn(&mut GroupEntry)| {
            let mut entry = good.clone();
            change(&mut entry);
            fault(&entry)
        };
        let away = |slot: &&mut Slot| slot.server != awake;
        assert_eq!(bad(&|e| e.slots[1] = e.slots[0]), Some("has a server twice"));
        let on_one = |e: &mut GroupEntry| {
            let slot = e.slots.iter_mut().find(away).expect("one is away");
            slot.holder = Some(Holder::new(awake, true));
        };
        assert_eq!(bad(&on_one), Some("has two copies on one server"));
        assert_eq!(bad(&|e| e.primary = Some(ServerId(99))), Some("has a primary without a slot"));
        let asleep = good.slots.iter().map(|s| s.server).find(|s| *s != awake);
        assert_eq!(bad(&|e| e.primary = asleep), Some("has a primary that is away"));
    }
}
