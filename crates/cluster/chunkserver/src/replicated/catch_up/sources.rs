//! Where a member that catches up finds what it lacks.

use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::run_map::Source;
use crate::replicated::member::Member;
use ebb_types::{ClusterMap, Epoch, GroupEntry, Role, ServerId, Slot, SlotState};

/// Where this server finds everything it lacks: its own covered holder, or its own former holder and the one that took
/// over; a replica that is in sync; or a replica that was complete until it went away, together with its covered
/// holder. Nothing less will do: a listing that misses an
/// acknowledged write would lead to a false `InSync`. Empty: there is no source now, and it waits.
///
/// In a salvage (no complete copy is left and the newest of the rest is wanted) the sources are all members that take
/// part, or none while one of them is missing: what one member alone has must not be left out.
pub(crate) fn sources(cx: &Context, member: &Member, without: Option<ServerId>) -> Vec<Source> {
    let entry = member.entry();
    if entry.salvage {
        let away = |id| entry.slot_of(id).is_some_and(|s| matches!(s.state, SlotState::Away { .. }));
        let others: Vec<Source> = entry.members().filter(|(id, _)| *id != cx.me && !away(*id)).collect();
        let all = others.iter().all(|(id, _)| Some(*id) != without && cx.map.is_live(*id));
        return if all { others } else { Vec::new() };
    }
    let live = |server: ServerId| server != cx.me && Some(server) != without && cx.map.is_live(server);
    let kept = |slot: &Slot| {
        let holder = slot.holder.filter(|s| s.covered && live(s.server))?;
        Some((holder.server, Role::Offload { stands_for: slot.server }))
    };
    let slot = entry.slot_of(cx.me);
    let mut own: Vec<ServerId> = slot.and_then(|s| s.holder).into_iter().flat_map(|s| s.sources()).collect();
    if cx.config.has(PlantedBug::SkipFormer) {
        own.drain(..own.len().saturating_sub(1));
    }
    let own = if own.iter().all(|s| live(*s)) { own } else { Vec::new() };
    let own = own.into_iter().map(|s| (s, Role::Offload { stands_for: cx.me })).collect::<Vec<Source>>();
    let everything = SlotState::CatchingUp { since: Epoch(0) };
    if !own.is_empty() && slot.is_some_and(|s| s.state != everything) {
        return own;
    }
    // Who compares everything needs a holder that has everything: what it has itself does not count.
    let own: Vec<Source> = slot.and_then(kept).into_iter().collect();
    let in_sync = entry.slots.iter().filter(|s| s.state == SlotState::InSync && live(s.server));
    // The primary first: it is the one that is sure to be complete soonest.
    if let Some(slot) = in_sync.max_by_key(|s| Some(s.server) == entry.primary) {
        return vec![(slot.server, Role::Replica)];
    }
    // What one has that compares everything may have been deleted.
    let others = entry.slots.iter().filter(|s| live(s.server) && s.state != everything);
    let pair = |slot: &Slot| Some(vec![(slot.server, Role::Replica), kept(slot)?]);
    let pair = others.map(pair).find_map(|p| p);
    pair.unwrap_or(own)
}

/// The epoch from which on the sources need not have what came here directly: the present one; or, if they are this
/// server's own holders, the one since which it is a target and they are not.
pub(super) fn began(cx: &Context, member: &Member, sources: &[Source]) -> Epoch {
    let own = |(_, role): &Source| *role == Role::Offload { stands_for: cx.me };
    let entry = member.entry();
    let received = entry.received.iter().find(|t| t.server == cx.me && t.until.is_none());
    let from = received.filter(|_| !sources.is_empty() && sources.iter().all(own)).map(|t| t.from);
    from.unwrap_or(member.epoch())
}

/// Whether these sources are still good. A source must list what was complete when the listing began; every later write
/// comes here directly. So a replica used alone must have stayed in sync, or it may have come back with less than it
/// had; a holder must keep what it has, and the configuration stops naming it before it drops anything. Once `listed`,
/// any copy will do.
pub(super) fn are_good(map: &ClusterMap, entry: &GroupEntry, sources: &[Source], listed: bool) -> bool {
    let kept = |server| sources.iter().any(|(_, role)| *role == Role::Offload { stands_for: server });
    let in_sync = |server| entry.slot_of(server).is_some_and(|slot| slot.state == SlotState::InSync);
    let good = |&(server, role): &Source| match role {
        _ if !map.is_live(server) => false,
        _ if entry.salvage || listed => true,
        Role::Offload { stands_for } => entry.is_source(server, stands_for),
        Role::Replica => in_sync(server) || kept(server),
    };
    !sources.is_empty() && sources.iter().all(good)
}

/// Number of complete copies of the group, on live servers or on servers that can be woken.
pub(super) fn complete_copies(entry: &GroupEntry, map: &ClusterMap) -> usize {
    let there = |server| map.is_live(server) || map.sleeps(server);
    let kept = |slot: &Slot| slot.holder.is_some_and(|s| s.covered && map.is_live(s.server));
    let complete = |slot: &&Slot| match slot.state {
        SlotState::InSync => there(slot.server),
        SlotState::Away { .. } => there(slot.server) && kept(slot),
        SlotState::CatchingUp { since } => since > Epoch(0) && there(slot.server) && kept(slot),
    };
    entry.slots.iter().filter(complete).count()
}
