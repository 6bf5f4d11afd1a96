//! Which slots move when servers come, leave or change their weight: the fewest that give each server its share.
//!
//! Slot k of a chunk group stays in gear group k, so each gear group is arranged by itself. A server's share of its
//! slots is in proportion to its claim, rounded down or up; one that claims nothing is emptied. A slot moves only where
//! its group's copies are in no fewer racks afterwards, so fault domains never get worse, in no step (R13). Where racks
//! leave no direct way from who has too much to who has too little, slots move along chains; what has moved already
//! moves on for nothing, as it has not been copied yet. The shortest chains first, so little moves that need not.
//! [Harvey, Ladner, Lovász, Tamir: Semi-matchings for bipartite graphs and load balancing, 2003]
//!
//! Where racks leave no way to its share, a server gets as much as they do.
//! A server that is to be emptied is, even where others then have more than their share, and where another copy of a
//! group must make way first.

use crate::Place;
use ebb_types::{GearGroup, RackId, ServerId, mix};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A server as slots are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    pub place: Place,
    /// Its share of its gear group's slots is in proportion to this. Zero: it is to have none.
    pub claim: u32,
}

/// Slot `slot` of a group is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// The place of the chunk group among those that were passed.
    pub group: usize,
    pub slot: usize,
    pub from: ServerId,
    pub to: ServerId,
}

/// What is to move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rearrangement {
    /// Those of one group are in the order in which racks allow them; those of different groups are independent.
    pub moves: Vec<Move>,
    /// Slots of servers that are to have none which can go nowhere: each other server of their gear group stands in a
    /// rack with another copy.
    pub stuck: BTreeMap<ServerId, u32>,
}

/// What has to move so that each server of each gear group has its share. `groups`: per chunk group its servers, slot k
/// in gear group k; all of them among `servers`.
pub fn rearrange(groups: &[Vec<ServerId>], servers: &BTreeMap<ServerId, Claimant>) -> Rearrangement {
    let mut now = groups.to_vec();
    let (moves, is_stuck) = even_out(&mut now, servers);
    let mut all = Rearrangement { moves, ..Rearrangement::default() };
    if is_stuck {
        make_way(&mut now, servers, &mut all);
    }
    all
}

/// One gear group after the other. Returns also whether a server that leaves still has some.
fn even_out(now: &mut [Vec<ServerId>], servers: &BTreeMap<ServerId, Claimant>) -> (Vec<Move>, bool) {
    let (mut all, mut is_stuck) = (Vec::new(), false);
    for slot in 0..now.first().map_or(0, Vec::len) {
        let mut gear_group = Arrangement::new(slot, now, servers);
        is_stuck |= gear_group.even_out();
        let moves = gear_group.moves();
        moves.iter().for_each(|m| now[m.group][slot] = m.to);
        all.extend(moves);
    }
    (all, is_stuck)
}

/// Where a slot of a server that is to have none can go nowhere, another copy of its group makes way first. That may
/// leave another gear group uneven by one: the next plan evens it out.
fn make_way(now: &mut [Vec<ServerId>], servers: &BTreeMap<ServerId, Claimant>, all: &mut Rearrangement) {
    let mut has: BTreeMap<ServerId, u64> = BTreeMap::new();
    now.iter().flatten().for_each(|id| *has.entry(*id).or_default() += 1);
    let leaves = |id: &ServerId| servers.get(id).is_some_and(|server| server.claim == 0);
    for (group, ids) in now.iter_mut().enumerate() {
        for slot in (0..ids.len()).filter(|slot| leaves(&ids[*slot])).collect::<Vec<_>>() {
            let Some(pair) = pair_of_moves(ids, slot, servers, &has) else {
                *all.stuck.entry(ids[slot]).or_default() += 1;
                continue;
            };
            for (slot, to) in pair {
                let from = std::mem::replace(&mut ids[slot], to);
                has.entry(from).and_modify(|has| *has -= 1);
                *has.entry(to).or_default() += 1;
                // It may have moved in this plan: then it moves on, before the rest of its group does.
                all.moves.push(Move { group, slot, from, to });
            }
        }
    }
}

/// Another slot of the group and where it goes, and where `slot` goes then: to those with the least for their claims.
fn pair_of_moves(
    ids: &[ServerId],
    slot: usize,
    servers: &BTreeMap<ServerId, Claimant>,
    has: &BTreeMap<ServerId, u64>,
) -> Option<[(usize, ServerId); 2]> {
    let burden =
        |id: &ServerId| (has.get(id).copied().unwrap_or(0) << 32) / u64::from(servers[id].claim.max(1));
    // In each rack the one with the least.
    let choices = |slot: usize, racks: &[Option<RackId>]| -> BTreeMap<RackId, ServerId> {
        let mut least: BTreeMap<RackId, ServerId> = BTreeMap::new();
        let fits = |server: &Claimant| {
            let of_it = usize::from(server.place.gear_group.0) == slot && server.claim > 0;
            of_it && keeps_apart(racks, slot, Some(server.place.rack))
        };
        for (id, server) in servers.iter().filter(|(id, server)| fits(server) && !ids.contains(id)) {
            let known = least.entry(server.place.rack).or_insert(*id);
            *known = if burden(id) < burden(known) { *id } else { *known };
        }
        least
    };
    let racks: Vec<Option<RackId>> =
        ids.iter().map(|id| servers.get(id).map(|server| server.place.rack)).collect();
    let pairs = (0..ids.len()).filter(|other| *other != slot).flat_map(|other| {
        let (racks, choices) = (&racks, &choices);
        choices(other, racks).into_iter().filter_map(move |(rack, way)| {
            let mut then = racks.clone();
            then[other] = Some(rack);
            let to = choices(slot, &then).into_values().min_by_key(|id| (burden(id), *id))?;
            Some([(other, way), (slot, to)])
        })
    });
    pairs.min_by_key(|[(_, way), (_, to)]| (burden(way) + burden(to), *way, *to))
}

/// The gear group for a server that comes to `rack`: among those in which it can have its share the one with the least
/// weight, else the one in which it can have most. `None`: it can have nothing, because every group has another copy in
/// that rack, whichever gear group it is in (R13).
pub fn gear_group_for(
    rack: RackId,
    claim: u32,
    groups: &[Vec<ServerId>],
    servers: &BTreeMap<ServerId, Claimant>,
) -> Option<GearGroup> {
    let rack_of = |id: &ServerId| servers.get(id).map(|server| server.place.rack);
    let rank = |slot: usize| {
        let gear_group = GearGroup(slot as u8);
        let of_it = || servers.values().filter(|server| server.place.gear_group == gear_group);
        let weight: u64 = of_it().map(|server| u64::from(server.claim)).sum();
        let fits = |group: &&Vec<ServerId>| {
            let racks: Vec<Option<RackId>> = group.iter().map(rack_of).collect();
            keeps_apart(&racks, slot, Some(rack))
        };
        let can = groups.iter().filter(fits).count() as u64;
        let share = (groups.len() as u64 * u64::from(claim)).div_ceil((weight + u64::from(claim)).max(1));
        let neighbours = of_it().filter(|server| server.place.rack == rack).count();
        let lacks = share.saturating_sub(can) * 1000 / share.max(1);
        (can > 0).then_some((lacks, weight, neighbours, gear_group))
    };
    let ranks = (0..groups.first().map_or(0, Vec::len)).filter_map(rank);
    ranks.min().map(|(.., gear_group)| gear_group)
}

/// Whether the copies of a group, in these racks, are in no fewer racks once that of `slot` is in the rack `to`.
fn keeps_apart(racks: &[Option<RackId>], slot: usize, to: Option<RackId>) -> bool {
    let mut others = racks.iter().enumerate().filter(|(k, _)| *k != slot).map(|(_, rack)| *rack);
    let shared = others.clone().any(|rack| rack == racks[slot]);
    shared || !others.any(|rack| rack == to)
}

/// What chains of moves reach: by the server, how many slots the chain moves that have not moved yet, and its last
/// link, which is from which server and of which group.
type Reached = BTreeMap<usize, (u32, Option<(usize, usize)>)>;

/// One gear group's slots. Servers and groups are known by their places.
struct Arrangement<'a> {
    slot: usize,
    groups: &'a [Vec<ServerId>],
    ids: Vec<ServerId>,
    racks: Vec<RackId>,
    claims: Vec<u32>,
    /// Fewest and most slots that are a server's share.
    shares: Vec<(usize, usize)>,
    /// Per chunk group the racks of its copies.
    racks_of: Vec<Vec<Option<RackId>>>,
    /// Per chunk group the server that has its slot now, and the one that is to have it.
    home: Vec<usize>,
    at: Vec<usize>,
    /// What each is to have, in an order that has nothing to do with the groups' numbers: so neighbours of a group are
    /// spread.
    has: Vec<BTreeSet<(u64, usize)>>,
}

impl<'a> Arrangement<'a> {
    fn new(slot: usize, groups: &'a [Vec<ServerId>], servers: &BTreeMap<ServerId, Claimant>) -> Self {
        let of_it: Vec<(ServerId, Claimant)> = servers
            .iter()
            .filter(|(_, server)| usize::from(server.place.gear_group.0) == slot)
            .map(|(id, server)| (*id, *server))
            .collect();
        let ids: Vec<ServerId> = of_it.iter().map(|(id, _)| *id).collect();
        let claims: Vec<u32> = of_it.iter().map(|(_, server)| server.claim).collect();
        let all: u64 = claims.iter().map(|claim| u64::from(*claim)).sum();
        let share = |claim: &u32| {
            let slots = groups.len() as u64 * u64::from(*claim);
            (slots / all.max(1), slots.div_ceil(all.max(1)))
        };
        let shares = claims.iter().map(share).map(|(low, high)| (low as usize, high as usize)).collect();
        let rack = |id: &ServerId| servers.get(id).map(|server| server.place.rack);
        let place =
            |group: &Vec<ServerId>| ids.binary_search(&group[slot]).expect("a server of the gear group");
        let home: Vec<usize> = groups.iter().map(place).collect();
        let mut has = vec![BTreeSet::new(); ids.len()];
        for (group, server) in home.iter().enumerate() {
            has[*server].insert((mix(group as u64), group));
        }
        Arrangement {
            slot,
            groups,
            racks: of_it.iter().map(|(_, server)| server.place.rack).collect(),
            ids,
            claims,
            shares,
            racks_of: groups.iter().map(|group| group.iter().map(rack).collect()).collect(),
            at: home.clone(),
            home,
            has,
        }
    }

    fn may_be_on(&self, group: usize, server: usize) -> bool {
        let racks = &self.racks_of[group];
        self.home[group] == server || keeps_apart(racks, self.slot, Some(self.racks[server]))
    }

    /// Twice the number of slots that the server has beyond the middle of its share.
    fn excess(&self, server: usize) -> i64 {
        let (low, high) = self.shares[server];
        2 * self.has[server].len() as i64 - (low + high) as i64
    }

    fn those(&self, are: impl Fn(usize, (usize, usize)) -> bool) -> Vec<usize> {
        self.those_that(|server| are(self.has[server].len(), self.shares[server]))
    }

    /// Moves slots until each server has its share, or racks leave no way to it. Returns whether one that leaves still
    /// has some.
    fn even_out(&mut self) -> bool {
        let mut given_up: BTreeSet<usize> = BTreeSet::new();
        loop {
            let fewer = self.those(|has, (low, _)| has < low);
            let over: Vec<usize> = self
                .those(|has, (_, high)| has > high)
                .into_iter()
                .filter(|s| !given_up.contains(s))
                .collect();
            if let Some(from) = over.iter().copied().max_by_key(|server| self.excess(*server)) {
                let room = self.those(|has, (_, high)| has < high);
                let leaves = self.claims[from] == 0;
                // One at a time, so that who has no way out is known.
                let moved = self.carry(&[from], &fewer)
                    || self.carry(&[from], &room)
                    || leaves && self.crowd(from)
                    || self.carry(&[from], &self.those_that(|to| self.is_heavier(from, to)));
                if !moved {
                    given_up.insert(from);
                }
                continue;
            }
            let fewer: Vec<usize> = fewer.into_iter().filter(|server| !given_up.contains(server)).collect();
            let Some(to) = fewer.iter().copied().min_by_key(|server| self.excess(*server)) else {
                return given_up
                    .iter()
                    .any(|server| self.claims[*server] == 0 && !self.has[*server].is_empty());
            };
            let enough = self.those(|has, (low, _)| has > low);
            if !self.carry(&enough, &[to])
                && !self.carry(&self.those_that(|from| self.is_heavier(from, to)), &[to])
            {
                given_up.insert(to);
            }
        }
    }

    fn those_that(&self, are: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..self.ids.len()).filter(|server| are(*server)).collect()
    }

    /// Whether one has at least as much for its claim as the other, also when one slot has moved to that: where racks
    /// leave no way to fair shares, these are the fairest.
    fn is_heavier(&self, one: usize, other: usize) -> bool {
        let (less, more) = (self.has[one].len().saturating_sub(1) as u64, self.has[other].len() as u64 + 1);
        let [claim, claims] = [one, other].map(|server| u64::from(self.claims[server]));
        one != other && claims > 0 && less * claims >= more * claim
    }

    /// One slot of a server that leaves goes to one that stays, however much that has: the one with the least for its
    /// claim.
    fn crowd(&mut self, from: usize) -> bool {
        let mut stay: Vec<usize> = (0..self.ids.len()).filter(|server| self.claims[*server] > 0).collect();
        stay.sort_by_key(|server| {
            let per_claim = ((self.has[*server].len() as u64) << 32) / u64::from(self.claims[*server]);
            (per_claim, *server)
        });
        let reached = self.chains(&[from]);
        let to = stay.into_iter().find(|server| reached.contains_key(server));
        to.is_some_and(|to| self.follow(&reached, to))
    }

    /// Moves one slot from one of these servers to one of those, along the chain that moves the fewest. False: there is
    /// none.
    fn carry(&mut self, from: &[usize], to: &[usize]) -> bool {
        let (mut sources, mut sinks) = (from.to_vec(), to.to_vec());
        sources.sort_by_key(|server| (-self.excess(*server), *server));
        sinks.sort_by_key(|server| (self.excess(*server), *server));
        for source in &sources {
            for sink in &sinks {
                let mut fit = self.has[*source].iter().filter(|(_, group)| self.may_be_on(*group, *sink));
                if let Some((_, group)) = fit.next().copied() {
                    self.put(group, *sink);
                    return true;
                }
            }
        }
        let reached = self.chains(&sources);
        let to =
            sinks.into_iter().filter(|sink| reached.contains_key(sink)).min_by_key(|sink| reached[sink].0);
        to.is_some_and(|to| self.follow(&reached, to))
    }

    /// From these servers to all that a chain of moves reaches.
    fn chains(&self, from: &[usize]) -> Reached {
        let mut reached: Reached = from.iter().map(|server| (*server, (0, None))).collect();
        let mut queue: VecDeque<(u32, usize)> = from.iter().map(|server| (0, *server)).collect();
        while let Some((cost, server)) = queue.pop_front() {
            if reached[&server].0 < cost {
                continue;
            }
            for (_, group) in &self.has[server] {
                let moves = u32::from(self.home[*group] == server);
                for to in 0..self.ids.len() {
                    let better = |known: &(u32, _)| cost + moves < known.0;
                    if to == server || !reached.get(&to).is_none_or(better) || !self.may_be_on(*group, to) {
                        continue;
                    }
                    reached.insert(to, (cost + moves, Some((server, *group))));
                    let next = (cost + moves, to);
                    if moves == 0 { queue.push_front(next) } else { queue.push_back(next) }
                }
            }
        }
        reached
    }

    /// Moves what the chain to `to` moves.
    fn follow(&mut self, reached: &Reached, mut to: usize) -> bool {
        let start = to;
        while let Some((from, group)) = reached[&to].1 {
            self.put(group, to);
            to = from;
        }
        to != start
    }

    fn put(&mut self, group: usize, to: usize) {
        let key = (mix(group as u64), group);
        self.has[self.at[group]].remove(&key);
        self.has[to].insert(key);
        self.at[group] = to;
    }

    fn moves(&self) -> Vec<Move> {
        let moved = (0..self.groups.len()).filter(|group| self.at[*group] != self.home[*group]);
        let one = |group: usize| {
            let (from, to) = (self.ids[self.home[group]], self.ids[self.at[group]]);
            Move { group, slot: self.slot, from, to }
        };
        moved.map(one).collect()
    }
}

#[cfg(test)]
mod tests;
