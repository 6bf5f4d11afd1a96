//! The next configuration of one chunk group: its primary, the place of each copy, and the holders.
//!
//! One function for every cause. Events (a crash, a return, a drain, a report) only change the facts; [`next_entry`]
//! compares the facts with the present entry and returns what the entry should become. It keeps no memory, so a new
//! leader comes to the same answer.
//!
//! Why a slot keeps its state while no server can be primary, or the primary cannot learn what it misses: with a target
//! gone no write is acknowledged, so nothing is missed. The last complete replica therefore stays `InSync` when its
//! server fails, the last offload is not moved to another holder, and both are found again when their servers return.
//! Only a complete primary can repair another copy, so only under one is anything forgotten. For the same reason a
//! server that restarts keeps its slots' states: it was a target of every acknowledged write and made it durable. It
//! gets a new epoch, because what it held in memory (its fence) is gone. A server that returns with another store has
//! lost that too ([`distrust_emptied`]). Once all that may have had any of it were declared lost, nothing of the group
//! is left, also when they are back: the entry says so, so that no client waits ([`nothing_is_left`]).
//!
//! When many servers fail together their leases end one after another, and slots become `Away` under primaries that are
//! dead themselves. Nothing is ordered in such epochs: before a primary serves an epoch in which a slot has lost its
//! complete copy ([`has_lost`]), it has its targets fenced and the epoch recorded. Until then the entry keeps the slots
//! of the newest epoch that may have served, and what was complete then is still complete: it is taken back when its
//! server returns.

use crate::controller::by_server::ByServer;
use ebb_types::{Epoch, GroupEntry, Holder, RackId, ServerId, Slot, SlotState};
use std::collections::BTreeSet;

/// What a server can do for its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Takes part.
    Up,
    /// Hands over: stays primary until it has released, accepts nothing new.
    Leaving,
    /// Asleep, waking, failed or lost.
    Down,
}

/// A server as seen when primaries and holders are chosen. The counts are updated with every choice, so that one batch
/// of choices spreads as evenly as many single ones.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub standing: Standing,
    /// It returned or restarted since the group's epoch began: what it held in memory may be gone or stale.
    pub restarted: bool,
    /// It runs on another store than before: its earlier data may be gone.
    pub emptied: bool,
    /// It was declared lost. If it is back, it is on another store.
    pub lost: bool,
    pub rack: RackId,
    /// Its gear group sleeps in some gear: offload that it holds would have to move then.
    pub sleeps: bool,
    /// Its disk is nearly full: it cannot be a holder (R10). Nor can one that leaves the cluster.
    pub full: bool,
    /// It holds as much offload as it should.
    pub indebted: bool,
    /// It is there to hold offload.
    pub logger: bool,
    /// Requests in flight: Sierra's "disk load". [Sierra §3.6]
    pub in_flight: u32,
    pub primaries: u32,
    pub holders: u32,
}

/// The servers of the cluster.
pub type World = ByServer<Candidate>;

/// Facts about one group beyond its entry; all refer to the entry's present epoch.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The primary has drained and released the group.
    pub released: bool,
    /// The preferred next primary, if it is able.
    pub successor: Option<ServerId>,
    /// Slot servers that have caught up completely.
    pub caught_up: BTreeSet<ServerId>,
    /// Away slots whose holder has everything.
    pub covered: BTreeSet<ServerId>,
    /// A group without a primary waits: servers that have not reported yet may still do so.
    pub wait: bool,
    /// Its slot is not to move, or not to that server.
    pub recalled: bool,
}

/// What `entry` should become; `None`: it is right as it is.
pub fn next_entry(entry: &GroupEntry, facts: &Facts, world: &mut World) -> Option<GroupEntry> {
    let epoch = entry.epoch.next();
    let mut slots = entry.copies().to_vec();
    let mut served = entry.fallback.clone().unwrap_or_else(|| slots.clone());
    let newcomer = follow_newcomer(entry, facts, world);
    let mut newcomer =
        newcomer.filter(|newcomer| !settle_in(entry, newcomer, facts, [&mut slots, &mut served], world));
    for (slot, before) in slots.iter_mut().zip(&mut served) {
        if learn(slot, facts, world) && !has_lost(before, slot) {
            *before = *slot;
        }
    }
    distrust_emptied(&mut slots, world);
    distrust_emptied(&mut served, world);
    slots.iter_mut().zip(&served).for_each(|(slot, before)| take_back(slot, before, world));
    let chosen = choose_primary(entry, &slots, facts, world);
    let stands = chosen.is_some() && (entry.fallback.is_none() || is_able(&slots, chosen, world));
    let primary =
        if stands { chosen } else { fall_back(entry, &mut slots, &served, facts, world).or(chosen) };
    debug_assert!(
        primary.is_none() || primary == entry.primary || is_able(&slots, primary, world),
        "a new primary has everything that was acknowledged, or can fetch it"
    );
    if is_able(&slots, primary, world) {
        newcomer = send_all_away(&mut slots, &served, (primary, newcomer), epoch, world);
        let takes_part = |server: ServerId| standing(world, server) != Standing::Down;
        debug_assert!(
            slots.iter().filter_map(Slot::target).all(|(server, _)| takes_part(server)),
            "a write goes to servers that take part"
        );
    }
    let moving = entry.moving.filter(|_| newcomer.is_some());
    let from = |k: usize| moving.is_none() && entry.moving.map(usize::from) == Some(k);
    debug_assert!(
        slots
            .iter()
            .zip(&entry.slots)
            .enumerate()
            .all(|(k, (slot, old))| slot.server == old.server || from(k)),
        "no slot moves but to a newcomer that has everything"
    );
    let lost = served.iter().zip(&slots).any(|(before, slot)| has_lost(before, slot));
    let fallback = lost.then_some(served);
    let restarted = entry.members().any(|(server, _)| world.get(server).is_some_and(|c| c.restarted));
    let given_back = facts.released && primary == entry.primary;
    let again = primary.is_some() && (restarted || given_back);
    let gone = primary.is_none() && nothing_is_left(entry, world);
    slots.extend(newcomer);
    let same = primary == entry.primary && slots == entry.slots && fallback == entry.fallback;
    if same && gone == entry.gone && !again {
        return None;
    }
    if primary != entry.primary {
        entry.primary.and_then(|old| world.get_mut(old)).into_iter().for_each(|c| c.primaries -= 1);
        primary.and_then(|new| world.get_mut(new)).into_iter().for_each(|c| c.primaries += 1);
    }
    // Salvage ends once a replica has everything: the others then catch up from it as usual.
    let salvage = entry.salvage && !slots.iter().any(|s| s.state == SlotState::InSync);
    // Another store received nothing.
    let emptied = |server: ServerId| world.get(server).is_some_and(|c| c.emptied);
    let received = entry.received.iter().filter(|t| !emptied(t.server)).copied().collect();
    Some(GroupEntry { epoch, primary, slots, salvage, fallback, gone, received, moving })
}

/// What is known of the newcomer; `None`: there is none, or it is wanted no more.
fn follow_newcomer(entry: &GroupEntry, facts: &Facts, world: &World) -> Option<Slot> {
    let newcomer = entry.newcomer()?;
    let candidate = world.get(newcomer.server);
    if facts.recalled || candidate.is_none() {
        return None;
    }
    let state = match newcomer.state {
        _ if candidate.is_some_and(|c| c.emptied) => SlotState::CatchingUp { since: Epoch(0) },
        _ if facts.caught_up.contains(&newcomer.server) => SlotState::InSync,
        state => state,
    };
    Some(Slot { state, ..*newcomer })
}

/// A newcomer that has everything takes the place of the slot's server, unless that is primary still: then it hands
/// over first. Returns whether it has. It had everything in the newest epoch that may have served, too; or that epoch
/// is not known, and it waits for one that serves.
fn settle_in(
    entry: &GroupEntry,
    newcomer: &Slot,
    facts: &Facts,
    [slots, served]: [&mut Vec<Slot>; 2],
    world: &mut World,
) -> bool {
    let Some(slot) = entry.moving.and_then(|k| slots.get_mut(usize::from(k))) else { return false };
    let leads = entry.primary == Some(slot.server) && standing(world, slot.server) != Standing::Down;
    let is_there = standing(world, newcomer.server) == Standing::Up;
    let complete = newcomer.state == SlotState::InSync && entry.fallback.is_none();
    if !complete || !is_there || leads && !facts.released {
        return false;
    }
    drop_holder(slot, world);
    *slot = *newcomer;
    entry.moving.into_iter().for_each(|k| served[usize::from(k)] = *newcomer);
    true
}

/// Whether nothing of the group is left, although servers that had it are back. None can have got anything since: no
/// other one has anything to give, and only a primary orders.
fn nothing_is_left(entry: &GroupEntry, world: &World) -> bool {
    let lost = |server: ServerId| world.get(server).is_some_and(|c| c.lost);
    let back = |server: ServerId| standing(world, server) != Standing::Down;
    entry.primary.is_none() && (entry.gone || entry.keepers().all(lost) && entry.keepers().any(back))
}

/// R11: a store other than the one that took part before may lack anything. Its slots fetch all that they lack,
/// whatever their state was, and the offload that it held counts as missing. So it is never complete by itself, and
/// never a source.
fn distrust_emptied(slots: &mut [Slot], world: &World) {
    let emptied = |server: ServerId| world.get(server).is_some_and(|c| c.emptied);
    for slot in slots {
        if emptied(slot.server) {
            let away = matches!(slot.state, SlotState::Away { .. });
            let since = Epoch(0);
            slot.state = if away { SlotState::Away { since } } else { SlotState::CatchingUp { since } };
        }
        let is_emptied = emptied(slot.server);
        slot.holder.iter_mut().for_each(|holder| {
            if is_emptied || holder.servers().any(emptied) {
                holder.doubt();
            }
        });
    }
}

fn standing(world: &World, server: ServerId) -> Standing {
    world.get(server).map_or(Standing::Down, |c| c.standing)
}

/// Applies reports about the slot. Returns whether there were any.
fn learn(slot: &mut Slot, facts: &Facts, world: &mut World) -> bool {
    match slot.state {
        SlotState::CatchingUp { .. } if facts.caught_up.contains(&slot.server) => {
            slot.state = SlotState::InSync;
            drop_holder(slot, world);
            true
        }
        SlotState::Away { .. } if facts.covered.contains(&slot.server) => {
            slot.holder.iter_mut().for_each(Holder::cover);
            true
        }
        _ => false,
    }
}

/// A server that has returned takes part again. If no epoch served without it, it has missed nothing.
fn take_back(slot: &mut Slot, before: &Slot, world: &mut World) {
    let SlotState::Away { since } = slot.state else { return };
    if standing(world, slot.server) != Standing::Up {
        return;
    }
    slot.state = SlotState::CatchingUp { since };
    if *before == (Slot { server: slot.server, state: SlotState::InSync, holder: None }) {
        drop_holder(slot, world);
        *slot = *before;
    }
}

/// The holder that has everything the slot's server missed.
fn kept(slot: &Slot) -> Option<ServerId> {
    slot.holder.filter(|s| s.covered).map(|s| s.server)
}

/// Where the slot's server, if it is there, finds all that it lacks. One that compares everything needs a holder that
/// has everything: what it has itself does not count.
fn sources(slot: &Slot) -> impl Iterator<Item = ServerId> + use<> {
    let holder = slot.holder.filter(|holder| holder.covered || !compares_all(slot));
    holder.into_iter().flat_map(|holder| holder.sources())
}

/// Whether there are such sources, and all of them are as asked for.
fn has_sources(slot: &Slot, such: impl Fn(ServerId) -> bool) -> bool {
    sources(slot).next().is_some() && sources(slot).all(such)
}

fn compares_all(slot: &Slot) -> bool {
    slot.state.lacks_since() == Some(Epoch(0))
}

/// Whether the slot had a complete copy, and has none now or one on other servers. Such an epoch must be on record
/// before it serves.
fn has_lost(before: &Slot, now: &Slot) -> bool {
    let had = |server: ServerId| sources(before).any(|other| other == server);
    let has_them = kept(now).is_some() || has_sources(now, had);
    before.server == now.server
        && now.state != SlotState::InSync
        && (before.state == SlotState::InSync || has_sources(before, |_| true) && !has_them)
}

/// No server is complete by the present slots, or a primary waits in vain for what it misses, in an epoch in which
/// nothing was ordered. By the slots of the newest epoch that may have served, a server together with its holder may
/// have been complete, and still is. Returns the primary.
fn fall_back(
    entry: &GroupEntry,
    slots: &mut Vec<Slot>,
    served: &[Slot],
    facts: &Facts,
    world: &mut World,
) -> Option<ServerId> {
    let mut restored = slots.clone();
    for (slot, before) in restored.iter_mut().zip(served).filter(|(slot, before)| has_lost(before, slot)) {
        let Some(since) = before.state.lacks_since() else { continue };
        let free = |holder: ServerId| slots.iter().all(|s| s.server != holder);
        if standing(world, slot.server) == Standing::Up && has_sources(before, free) {
            *slot = Slot { state: SlotState::CatchingUp { since }, ..*before };
        }
    }
    let primary = choose_primary(entry, &restored, facts, world);
    if !is_able(&restored, primary, world) {
        return None;
    }
    slots.iter_mut().zip(&restored).filter(|(slot, to)| slot.holder != to.holder).for_each(|(slot, to)| {
        drop_holder(slot, world);
        to.holder.and_then(|s| world.get_mut(s.server)).into_iter().for_each(|c| c.holders += 1);
    });
    *slots = restored;
    primary
}

fn drop_holder(slot: &mut Slot, world: &mut World) {
    if let Some(holder) = slot.holder.take()
        && let Some(candidate) = world.get_mut(holder.server)
    {
        candidate.holders -= 1;
    }
}

/// Whether slot `k` can serve everything that was acknowledged: it has the data or can fetch it.
fn is_complete(slots: &[Slot], k: usize, world: &World) -> bool {
    let live = |server: ServerId| standing(world, server) != Standing::Down;
    let kept = |slot: &Slot| kept(slot).is_some_and(live);
    match slots[k].state {
        SlotState::InSync => true,
        SlotState::Away { .. } => false,
        SlotState::CatchingUp { .. } => {
            let other = |(j, slot): (usize, &Slot)| {
                // What one has that compares everything may have been deleted.
                let pair = kept(slot) && !compares_all(slot);
                j != k && live(slot.server) && (slot.state == SlotState::InSync || pair)
            };
            has_sources(&slots[k], live) || slots.iter().enumerate().any(other)
        }
    }
}

/// Whether this server has a slot and can serve everything that was acknowledged.
fn is_able(slots: &[Slot], server: Option<ServerId>, world: &World) -> bool {
    slots.iter().position(|s| Some(s.server) == server).is_some_and(|k| is_complete(slots, k, world))
}

/// A live primary that did not release stays, even while no server can tell it what it misses: it may hold a lease
/// (R2). A new one must be complete.
fn choose_primary(entry: &GroupEntry, slots: &[Slot], facts: &Facts, world: &World) -> Option<ServerId> {
    let serves = |c: &Candidate| c.standing != Standing::Down && !c.emptied;
    let live = entry.primary.filter(|p| world.get(*p).is_some_and(serves));
    let complete = |k: usize| is_complete(slots, k, world);
    if let Some(primary) = live {
        let again = world.get(primary).is_some_and(|c| c.restarted);
        if !facts.released && (is_able(slots, live, world) || !again) {
            return live;
        }
    } else if facts.wait {
        return None;
    }
    let other = |slot: &Slot| standing(world, slot.server) == Standing::Up && Some(slot.server) != live;
    let able: Vec<&Slot> =
        (0..slots.len()).filter(|&k| other(&slots[k]) && complete(k)).map(|k| &slots[k]).collect();
    if let Some(successor) = facts.successor.filter(|s| able.iter().any(|slot| slot.server == *s)) {
        return Some(successor);
    }
    let primaries = |server: ServerId| world.get(server).map_or(0, |c| c.primaries);
    let rank = |slot: &&&Slot| (slot.state != SlotState::InSync, primaries(slot.server), slot.server);
    // No other server is able: the primary that released the group takes it back.
    able.iter().min_by_key(rank).map(|slot| slot.server).or(live)
}

/// Finds holders for all whose servers no longer take part. Returns what becomes of the newcomer.
fn send_all_away(
    slots: &mut [Slot],
    served: &[Slot],
    (primary, newcomer): (Option<ServerId>, Option<Slot>),
    epoch: Epoch,
    world: &mut World,
) -> Option<Slot> {
    // What it has copied is worth keeping only while nothing waits for it.
    let newcomer = newcomer.filter(|newcomer| standing(world, newcomer.server) != Standing::Down);
    let taken = newcomer.map(|newcomer| newcomer.server);
    for (k, before) in served.iter().enumerate() {
        send_away(slots, k, before, (primary, taken), epoch, world);
        release_source(slots, k, world);
    }
    if slots.iter().all(|slot| slot.target().is_some()) {
        return newcomer;
    }
    // Where nobody else can stand in, it does: its move begins anew when it is not needed for that.
    for (k, before) in served.iter().enumerate().filter(|_| newcomer.is_some()) {
        if slots[k].target().is_none() {
            send_away(slots, k, before, (primary, None), epoch, world);
        }
    }
    None
}

/// Makes slot `k` `Away` if its server no longer takes part, and finds it a holder, which is no newcomer. `before`: the
/// slot in the newest epoch that may have served.
fn send_away(
    slots: &mut [Slot],
    k: usize,
    before: &Slot,
    (primary, newcomer): (Option<ServerId>, Option<ServerId>),
    epoch: Epoch,
    world: &mut World,
) {
    let Slot { server, state, .. } = slots[k];
    let stays = match standing(world, server) {
        Standing::Up => true,
        Standing::Leaving => primary == Some(server),
        Standing::Down => false,
    };
    if stays {
        return;
    }
    let since = match state {
        SlotState::InSync => epoch,
        SlotState::CatchingUp { since } => {
            // The holder lacks what the server received while it caught up. Of a server that has to compare everything
            // nothing counts until it has.
            if !matches!(before.state, SlotState::Away { .. }) {
                let lacks = if since > Epoch(0) { Holder::share } else { Holder::doubt };
                slots[k].holder.iter_mut().for_each(lacks);
            }
            since
        }
        SlotState::Away { since } => since,
    };
    slots[k].state = SlotState::Away { since };
    let usable = |s: Holder| standing(world, s.server) == Standing::Up && !is_target(slots, k, s.server);
    let present = slots[k].holder.filter(|s| usable(*s)).map(|s| shortcoming(slots, k, s.server, world));
    // One that takes over from another does so until the end, unless it has no room: a third one would know neither
    // what the first nor what the second has kept.
    let takes_over = slots[k].holder.is_some_and(|s| s.former.is_some());
    let stays = |fault: Shortcoming| {
        fault == Shortcoming::default()
            || takes_over && !fault.0
            || !others_are_sound(slots, k, primary, world)
    };
    if present.is_some_and(stays) {
        return;
    }
    let chosen = choose_holder(slots, k, newcomer, world);
    let better = |fault| chosen.is_some_and(|server| shortcoming(slots, k, server, world) < fault);
    if present.is_some_and(|fault| !better(fault)) {
        return;
    }
    let leaving = |s: Holder| standing(world, s.server) == Standing::Leaving;
    if chosen.is_none() && slots[k].holder.is_some_and(leaving) {
        return;
    }
    drop_holder(&mut slots[k], world);
    if let Some(server) = chosen {
        world.get_mut(server).expect("a candidate").holders += 1;
        // Nothing has been ordered since the server went away.
        let covered = before.server == slots[k].server && before.state == SlotState::InSync;
        slots[k].holder =
            Some(Holder { former: former(&slots[k], before, world), ..Holder::new(server, false) });
        slots[k].holder.iter_mut().filter(|_| covered).for_each(Holder::cover);
    }
}

/// Who alone kept all that the slot's server lacked.
fn former(slot: &Slot, before: &Slot, world: &World) -> Option<ServerId> {
    if before.server != slot.server || compares_all(slot) || compares_all(before) {
        return None;
    }
    let mut all = sources(before);
    let only = all.next().filter(|_| all.next().is_none());
    only.filter(|server| world.get(*server).is_some_and(|c| !c.lost))
}

/// Whether the group can spare one copy of slot `k`'s offload while it moves to another holder: the primary, which
/// re-sends it, has everything, and no other copy is being restored.
fn others_are_sound(slots: &[Slot], k: usize, primary: Option<ServerId>, world: &World) -> bool {
    slots.iter().enumerate().filter(|(j, _)| *j != k).all(|(_, slot)| match slot.state {
        SlotState::InSync => standing(world, slot.server) == Standing::Up,
        SlotState::CatchingUp { .. } => false,
        SlotState::Away { .. } => slot.holder.is_some_and(|s| s.covered),
    }) && slots.iter().any(|slot| Some(slot.server) == primary && slot.state == SlotState::InSync)
}

/// A source that is down is dropped as soon as a live replica has everything.
fn release_source(slots: &mut [Slot], k: usize, world: &mut World) {
    let Slot { state: SlotState::CatchingUp { .. }, holder: Some(holder), .. } = slots[k] else {
        return;
    };
    let complete = |s: &Slot| s.state == SlotState::InSync && standing(world, s.server) != Standing::Down;
    let is_down = |server: ServerId| standing(world, server) == Standing::Down;
    if holder.servers().any(is_down) && slots.iter().any(complete) {
        drop_holder(&mut slots[k], world);
    }
}

/// Whether `server` is the target of a slot other than `k`.
fn is_target(slots: &[Slot], k: usize, server: ServerId) -> bool {
    slots
        .iter()
        .enumerate()
        .any(|(j, slot)| j != k && slot.target().is_some_and(|(target, _)| target == server))
}

/// Objections to a holder, the worst first: it has no room (R10), another copy is in its rack (R13).
type Shortcoming = (bool, bool);

fn shortcoming(slots: &[Slot], k: usize, server: ServerId, world: &World) -> Shortcoming {
    let rack = |server: ServerId| world.get(server).map(|c| c.rack);
    let mut targets = (0..slots.len()).filter(|&j| j != k).filter_map(|j| slots[j].target());
    let shared = targets.any(|(target, _)| rack(target) == rack(server));
    (world.get(server).is_some_and(|c| c.full), shared)
}

/// Ranks candidates: first those with room in a rack without another copy; then those with little offload; then
/// loggers, which spare the others' disks; then those that never sleep, because a new holder has nothing of what the
/// old one held, and while the primary re-sends it no server could take the primary's place; then the rack of the
/// slot's server; then least load. [Sierra §3.6]
///
/// Slots choose one after the other. That is as good as choosing for all at once: every slot has the same
/// candidates, so as many racks are found.
fn choose_holder(slots: &[Slot], k: usize, newcomer: Option<ServerId>, world: &World) -> Option<ServerId> {
    let own = world.get(slots[k].server).map(|c| c.rack);
    let free = |id: ServerId| {
        slots.iter().all(|s| s.server != id) && !is_target(slots, k, id) && newcomer != Some(id)
    };
    let able = world.iter().filter(|(id, c)| c.standing == Standing::Up && free(*id));
    let rank = |(id, c): &(ServerId, &Candidate)| {
        let shortcoming = shortcoming(slots, k, *id, world);
        (shortcoming, c.indebted, !c.logger, c.sleeps, Some(c.rack) != own, c.in_flight + c.holders, *id)
    };
    able.min_by_key(rank).map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Received;

    fn candidate(standing: Standing) -> Candidate {
        Candidate {
            standing,
            restarted: false,
            emptied: false,
            lost: false,
            rack: RackId(0),
            sleeps: false,
            full: false,
            indebted: false,
            logger: false,
            in_flight: 0,
            primaries: 1,
            holders: 1,
        }
    }

    fn slot(id: u16, state: SlotState, holder: Option<Holder>) -> Slot {
        Slot { server: ServerId(id), state, holder }
    }

    fn world(down: &[u16]) -> World {
        let state = |id| if down.contains(&id) { Standing::Down } else { Standing::Up };
        (1..=6).map(|id| (ServerId(id), candidate(state(id)))).collect()
    }

    /// Seed 31010004255 of the fault search. Of two copies one slept, and its holder 3 went to sleep, too. The disk of
    /// the primary hung before holder 4 had everything, and the group waited for it, although 3 and 4 had.
    #[test]
    fn a_new_holder_and_the_former_one_are_a_source_together() {
        let since = Epoch(4);
        let holder = Holder::new(ServerId(3), true);
        let away = SlotState::Away { since };
        let slots = vec![slot(1, SlotState::InSync, None), slot(2, away, Some(holder))];
        let primary = Some(ServerId(1));
        let entry = GroupEntry { epoch: Epoch(4), primary, slots, ..GroupEntry::unknown() };
        let moved = next_entry(&entry, &Facts::default(), &mut world(&[2, 3, 5, 6])).expect("it moves");
        let both = Holder { former: Some(ServerId(3)), ..Holder::new(ServerId(4), false) };
        assert_eq!(moved.slots[1].holder, Some(both));
        assert!(moved.fallback.is_some(), "alone, the former holder lacks what this epoch orders");

        let served = GroupEntry { fallback: None, ..moved };
        let failed = next_entry(&served, &Facts::default(), &mut world(&[1, 5, 6])).expect("another primary");
        let catching_up = SlotState::CatchingUp { since };
        assert_eq!((failed.primary, failed.slots[1]), (Some(ServerId(2)), slot(2, catching_up, Some(both))));
        for missing in [3, 4] {
            let next = next_entry(&served, &Facts::default(), &mut world(&[1, missing]));
            assert_eq!(next.and_then(|next| next.primary), None, "without {missing}");
        }
        // A third one would know neither what the second nor what the first has kept.
        let third = next_entry(&served, &Facts::default(), &mut world(&[2, 4])).expect("it moves again");
        assert!(third.slots[1].holder.is_some_and(|s| s.sources().next().is_none()), "{third:?}");
        let covered = Facts { covered: [ServerId(2)].into(), ..Facts::default() };
        let covered = next_entry(&served, &covered, &mut world(&[2])).expect("it is covered");
        assert_eq!(covered.slots[1].holder, Some(Holder::new(ServerId(4), true)));
    }

    /// A cover in an epoch that may not serve yet counts at once: the former holder drops what it kept.
    #[test]
    fn what_was_covered_is_where_a_fallback_finds_it() {
        let holder = Holder::new(ServerId(4), true);
        let away = slot(3, SlotState::Away { since: Epoch(4) }, Some(holder));
        let slots = vec![slot(1, SlotState::InSync, None), away, slot(2, SlotState::InSync, None)];
        let primary = Some(ServerId(1));
        let entry = GroupEntry { epoch: Epoch(4), primary, slots, ..GroupEntry::unknown() };
        // Server 5 alone could be a holder, and server 2 has none.
        let down = [2, 3, 4, 6];
        let moved = next_entry(&entry, &Facts::default(), &mut world(&down)).expect("it moves");
        assert!(moved.slots[2].target().is_none() && moved.fallback.is_some(), "{moved:?}");
        let covered = Facts { covered: [ServerId(3)].into(), ..Facts::default() };
        let covered = next_entry(&moved, &covered, &mut world(&down)).expect("it is covered");
        let served = covered.fallback.expect("server 2 lacks a holder");
        assert_eq!(served[1].holder, Some(Holder::new(ServerId(5), true)));
    }

    /// What it received directly its holder does not have, and it would delete that as what no source lists.
    #[test]
    fn a_server_that_compares_everything_is_not_complete_with_its_holder() {
        for state in [SlotState::CatchingUp { since: Epoch(0) }, SlotState::Away { since: Epoch(0) }] {
            let holder = Holder::new(ServerId(3), true);
            let slots = vec![slot(1, SlotState::InSync, None), slot(2, state, Some(holder))];
            let primary = Some(ServerId(1));
            let entry = GroupEntry { epoch: Epoch(5), primary, slots, ..GroupEntry::unknown() };
            let down: &[u16] = if matches!(state, SlotState::Away { .. }) { &[2, 3] } else { &[2] };
            let next = next_entry(&entry, &Facts::default(), &mut world(down)).expect("it changes");
            let now = next.slots[1].holder.expect("it has a holder");
            assert_eq!((now.covered, now.former), (false, None), "{next:?}");
            let served = GroupEntry { fallback: None, ..next };
            let alone = next_entry(&served, &Facts::default(), &mut world(&[1]));
            assert!(alone.is_none_or(|alone| alone.primary.is_none()), "it waits for the primary");
        }
    }

    /// It may have what was deleted long ago, and is in the middle of finding that out.
    #[test]
    fn what_compares_everything_is_no_source_for_others_and_received_nothing() {
        let holder = Some(Holder::new(ServerId(4), true));
        let compares = slot(2, SlotState::CatchingUp { since: Epoch(0) }, holder);
        let received = |server, from| Received { server: ServerId(server), from: Epoch(from), until: None };
        for since in [0, 3].map(Epoch) {
            let lacks = slot(3, SlotState::CatchingUp { since }, None);
            let slots = vec![slot(1, SlotState::InSync, None), compares, lacks];
            let entry = GroupEntry {
                epoch: Epoch(5),
                primary: Some(ServerId(1)),
                slots,
                received: vec![received(2, 2), received(3, 4)],
                ..GroupEntry::unknown()
            };
            let next =
                next_entry(&entry, &Facts::default(), &mut world(&[1, 5, 6])).expect("another primary");
            assert_eq!(next.primary, Some(ServerId(2)), "{next:?}");
            assert!(!is_complete(&next.slots, 2, &world(&[1, 5, 6])));
            let mut emptied = world(&[5, 6]);
            emptied.get_mut(ServerId(2)).expect("a candidate").emptied = true;
            let next = next_entry(&entry, &Facts::default(), &mut emptied).expect("its store is another one");
            assert_eq!(next.received, [received(3, 4)]);
        }
    }

    /// What only it had was fetched, perhaps, and is gathered from all tails under another epoch.
    #[test]
    fn a_former_holder_that_fails_is_no_source_any_more() {
        let both = Holder { former: Some(ServerId(3)), ..Holder::new(ServerId(4), false) };
        let state = SlotState::CatchingUp { since: Epoch(4) };
        let slots = vec![slot(1, SlotState::InSync, None), slot(2, state, Some(both))];
        let primary = Some(ServerId(1));
        let entry = GroupEntry { epoch: Epoch(5), primary, slots, ..GroupEntry::unknown() };
        assert_eq!(next_entry(&entry, &Facts::default(), &mut world(&[])), None);
        let next = next_entry(&entry, &Facts::default(), &mut world(&[3])).expect("another epoch");
        assert_eq!(next.slots[1].holder, None);
    }

    /// A third one would know neither what the first nor what the second has kept.
    #[test]
    fn a_holder_that_takes_over_is_not_replaced_by_a_better_one_unless_it_is_full() {
        let both = Holder { former: Some(ServerId(3)), ..Holder::new(ServerId(4), false) };
        let away = slot(2, SlotState::Away { since: Epoch(4) }, Some(both));
        let slots = vec![slot(1, SlotState::InSync, None), away];
        let primary = Some(ServerId(1));
        let entry = GroupEntry { epoch: Epoch(5), primary, slots, ..GroupEntry::unknown() };
        let mut world = world(&[2, 3]);
        world.get_mut(ServerId(5)).expect("a candidate").rack = RackId(1);
        assert_eq!(next_entry(&entry, &Facts::default(), &mut world), None, "it shares a rack");
        world.get_mut(ServerId(4)).expect("a candidate").full = true;
        let next = next_entry(&entry, &Facts::default(), &mut world).expect("it has no room");
        assert_eq!(next.slots[1].holder, Some(Holder::new(ServerId(5), false)));
    }

    /// What its server received while it caught up, it has; the rest, its holder.
    #[test]
    fn a_server_that_leaves_while_it_catches_up_is_complete_with_its_holder() {
        let (since, holder) = (Epoch(4), Holder::new(ServerId(3), true));
        let state = SlotState::CatchingUp { since };
        let slots = vec![slot(1, SlotState::InSync, None), slot(2, state, Some(holder))];
        let primary = Some(ServerId(1));
        let entry = GroupEntry { epoch: Epoch(5), primary, slots, ..GroupEntry::unknown() };
        let left = next_entry(&entry, &Facts::default(), &mut world(&[2])).expect("it leaves");
        let shared = Holder { former: Some(ServerId(3)), ..Holder::new(ServerId(3), false) };
        assert_eq!(left.slots[1], slot(2, SlotState::Away { since }, Some(shared)));
        let back = next_entry(&left, &Facts::default(), &mut world(&[1])).expect("it is back");
        assert_eq!((back.primary, back.slots[1]), (Some(ServerId(2)), slot(2, state, Some(shared))));
        // Another holder takes over from it.
        let moved = next_entry(&left, &Facts::default(), &mut world(&[2, 3])).expect("it moves");
        let both = Holder { former: Some(ServerId(3)), ..Holder::new(ServerId(4), false) };
        assert_eq!(moved.slots[1].holder, Some(both));
    }

    /// Seed 4081559 of the fault search. Servers 1 and 2 slept while server 3 served alone, and all crashed. In epochs
    /// that never served, holder 5 of server 2 was lost, and then server 3, which server 2, the primary, was to catch
    /// up from.
    #[test]
    fn a_primary_that_cannot_learn_what_it_misses_falls_back_to_what_served() {
        let since = Epoch(7);
        let slot = |id, state, holder: Option<u16>| {
            let holder = holder.map(|id| Holder::new(ServerId(id), true));
            Slot { server: ServerId(id), state, holder }
        };
        let away = SlotState::Away { since };
        let catching_up = SlotState::CatchingUp { since };
        let served = vec![slot(1, away, Some(4)), slot(2, away, Some(5)), slot(3, SlotState::InSync, None)];
        let slots = vec![slot(1, catching_up, None), slot(2, catching_up, None), served[2]];
        let mut entry = GroupEntry {
            epoch: Epoch(14),
            primary: Some(ServerId(2)),
            slots,
            fallback: Some(served),
            ..GroupEntry::unknown()
        };
        let down = [3, 5].map(ServerId);
        let state = |id| if down.contains(&id) { Standing::Down } else { Standing::Up };
        let mut world: World = (1..=5).map(ServerId).map(|id| (id, candidate(state(id)))).collect();
        let next = next_entry(&entry, &Facts::default(), &mut world).expect("a new configuration");
        assert_eq!(next.slots[0], slot(1, catching_up, Some(4)), "server 1 fetches what its holder kept");
        assert!(is_able(&next.slots, next.primary, &world), "{next:?}");
        assert_eq!(next_entry(&next, &Facts::default(), &mut world), None, "and that is where it rests");

        world.get_mut(ServerId(4)).expect("a candidate").standing = Standing::Down;
        entry.epoch = next.epoch.next();
        assert_eq!(next_entry(&entry, &Facts::default(), &mut world), None, "without a copy it waits");
    }

    const COPYING: SlotState = SlotState::CatchingUp { since: Epoch(0) };

    /// Server 1 is primary, and the slot `moving` moves to server 4.
    fn with_newcomer(moving: u8, state: SlotState) -> GroupEntry {
        let mut slots: Vec<Slot> = (1..=3).map(|id| slot(id, SlotState::InSync, None)).collect();
        slots.push(slot(4, state, None));
        let (epoch, primary, moving) = (Epoch(4), Some(ServerId(1)), Some(moving));
        GroupEntry { epoch, primary, slots, moving, ..GroupEntry::unknown() }
    }

    fn servers(entry: &GroupEntry) -> Vec<u16> {
        entry.slots.iter().map(|slot| slot.server.0).collect()
    }

    #[test]
    fn a_newcomer_takes_the_place_in_the_epoch_in_which_it_has_everything() {
        let entry = with_newcomer(1, COPYING);
        assert_eq!(
            next_entry(&entry, &Facts::default(), &mut world(&[])),
            None,
            "until then nothing changes"
        );
        let facts = Facts { caught_up: [ServerId(4)].into(), ..Facts::default() };
        let next = next_entry(&entry, &facts, &mut world(&[])).expect("it has everything");
        assert_eq!((servers(&next), next.moving, next.primary), (vec![1, 4, 3], None, Some(ServerId(1))));
        assert!(next.is_in_sync() && next.fallback.is_none(), "{next:?}");
    }

    #[test]
    fn the_slot_of_a_primary_moves_once_that_hands_over_and_to_it() {
        let facts = Facts { caught_up: [ServerId(4)].into(), ..Facts::default() };
        let complete =
            next_entry(&with_newcomer(0, COPYING), &facts, &mut world(&[])).expect("it is complete");
        assert_eq!(complete, GroupEntry { epoch: Epoch(5), ..with_newcomer(0, SlotState::InSync) });
        assert_eq!(next_entry(&complete, &Facts::default(), &mut world(&[])), None, "it waits");
        let handed = Facts { released: true, successor: Some(ServerId(4)), ..Facts::default() };
        let next = next_entry(&complete, &handed, &mut world(&[])).expect("it is released");
        assert_eq!((servers(&next), next.moving, next.primary), (vec![4, 2, 3], None, Some(ServerId(4))));
        // If the primary fails instead, its lease has ended.
        let next = next_entry(&complete, &Facts::default(), &mut world(&[1])).expect("it failed");
        assert_eq!((servers(&next), next.moving, next.fallback), (vec![4, 2, 3], None, None));
        assert!(next.primary.is_some_and(|primary| primary != ServerId(1)));
    }

    #[test]
    fn a_newcomer_that_is_down_is_dropped_as_soon_as_a_write_would_wait_for_it() {
        for state in [COPYING, SlotState::InSync] {
            let entry = with_newcomer(0, state);
            let next = next_entry(&entry, &Facts::default(), &mut world(&[4])).expect("it is dropped");
            assert_eq!((servers(&next), next.moving), (vec![1, 2, 3], None));
            assert!(next.is_in_sync() && next.fallback.is_none());
            let none = next_entry(&entry, &Facts::default(), &mut world(&[1, 2, 3, 4]));
            let none = none.expect("there is no primary");
            assert_eq!((servers(&none), none.primary), (vec![1, 2, 3, 4], None), "nothing is ordered");
        }
        let recalled = Facts { recalled: true, ..Facts::default() };
        let next = next_entry(&with_newcomer(1, COPYING), &recalled, &mut world(&[])).expect("it is dropped");
        assert_eq!(servers(&next), [1, 2, 3]);
    }

    /// It is a target already. And while it copies it is no copy: what fails beside it finds a holder.
    #[test]
    fn a_newcomer_is_neither_a_holder_nor_a_primary_while_it_copies() {
        let entry = with_newcomer(1, COPYING);
        let next = next_entry(&entry, &Facts::default(), &mut world(&[1, 6])).expect("another primary");
        assert_eq!((next.primary, next.moving), (Some(ServerId(2)), Some(1)));
        let holders: Vec<Option<ServerId>> =
            next.copies().iter().map(|slot| slot.holder.map(|holder| holder.server)).collect();
        assert_eq!(holders, [Some(ServerId(5)), None, None], "server 4 is taken");
        assert_eq!(next.fallback.as_ref().map(Vec::len), Some(3), "{next:?}");
        // It has everything in an epoch that may not serve: it goes on waiting.
        let facts = Facts { caught_up: [ServerId(4)].into(), ..Facts::default() };
        let complete = next_entry(&next, &facts, &mut world(&[1, 6])).expect("it has everything");
        assert_eq!((complete.moving, complete.slots[3].state), (Some(1), SlotState::InSync));
    }

    /// Else the two would take turns: without a holder all servers are wanted, and with all of them one may sleep (seed
    /// 174).
    #[test]
    fn a_newcomer_gives_way_to_what_only_it_can_hold() {
        let mut all = world(&[3, 5, 6]);
        let next = next_entry(&with_newcomer(1, COPYING), &Facts::default(), &mut all).expect("one failed");
        assert_eq!((servers(&next), next.moving), (vec![1, 2, 3], None));
        assert_eq!(next.slots[2].holder, Some(Holder::new(ServerId(4), true)));
        assert_eq!(next_entry(&next, &Facts::default(), &mut all), None);
    }

    #[test]
    fn what_a_holder_keeps_for_a_sleeper_is_kept_until_the_newcomer_has_it() {
        let mut entry = with_newcomer(1, COPYING);
        let holder = Some(Holder::new(ServerId(5), true));
        entry.slots[1] = slot(2, SlotState::Away { since: Epoch(3) }, holder);
        assert_eq!(next_entry(&entry, &Facts::default(), &mut world(&[2])), None);
        let facts = Facts { caught_up: [ServerId(4)].into(), ..Facts::default() };
        let mut all = world(&[2]);
        let next = next_entry(&entry, &facts, &mut all).expect("it has everything");
        assert_eq!((servers(&next), next.is_in_sync()), (vec![1, 4, 3], true));
        assert_eq!(all.get(ServerId(5)).map(|c| c.holders), Some(0), "it keeps nothing any more");
    }
}
