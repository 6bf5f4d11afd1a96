//! The layout: which gear group a server is in, and which r servers hold a chunk group. [Sierra §3.3]
//!
//! Power-aware grouping puts every server into one of r gear groups and one replica of every chunk group into each
//! of them. So any g gear groups hold g replicas of everything, N(r-g)/r servers can sleep, and a lost server is
//! rebuilt on all others of its gear group. The naive schemes are kept for comparison.
//!
//! Invariants: slot k of a power-aware chunk group is a server of gear group k; gear group 0 is the lowest gear,
//! the last to sleep; the r servers of a chunk group are distinct and in as many different racks as there are, up
//! to r; no server of a power-aware layout holds none; within a gear group all servers hold the same number of chunk
//! groups, plus or minus one, as far as the racks allow. Sierra draws servers at random per chunk; a chunk group is r
//! draws for many chunks, so here chance only breaks ties between equally loaded servers.

use ebb_types::Random;
use ebb_types::{GearGroup, RackId, ServerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

/// A server to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    pub id: ServerId,
    pub rack: RackId,
}

/// A server's place: its rack and gear group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub rack: RackId,
    pub gear_group: GearGroup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Power-aware; every gear group has servers in every rack, so every rack has awake servers (and offload
    /// holders). [Figure 5b]
    Rotated,
    /// Power-aware; a rack's servers are all in one gear group, so whole racks sleep. [Figure 5a]
    RackAligned,
    /// Every chunk group on r servers drawn at random. Its slots have no relation to gear groups.
    NaiveRandom,
    /// Fixed sets of r servers that hold the same chunk groups. Servers left over without a full set hold nothing.
    NaiveGrouped,
}

impl Scheme {
    pub const ALL: [Scheme; 4] =
        [Scheme::Rotated, Scheme::RackAligned, Scheme::NaiveRandom, Scheme::NaiveGrouped];

    /// Whether slot k of every chunk group is in gear group k.
    pub fn is_power_aware(self) -> bool {
        matches!(self, Scheme::Rotated | Scheme::RackAligned)
    }

    fn name(self) -> &'static str {
        match self {
            Scheme::Rotated => "rotated",
            Scheme::RackAligned => "rack-aligned",
            Scheme::NaiveRandom => "naive-random",
            Scheme::NaiveGrouped => "naive-grouped",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheme {
    type Err = LayoutError;
    fn from_str(name: &str) -> Result<Scheme, LayoutError> {
        let found = Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
        found.ok_or_else(|| LayoutError::UnknownScheme { name: name.to_string() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub scheme: Scheme,
    pub replicas: u8,
    pub servers: BTreeMap<ServerId, Place>,
    /// Per chunk group the r servers that hold it; in a power-aware layout, slot k is in gear group k.
    pub groups: Vec<Vec<ServerId>>,
    /// Per chunk group the first primary, with every server awake: the same number on all servers that hold chunk
    /// groups.
    pub primaries: Vec<ServerId>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("a layout needs at least one replica; set replicas to 2, 3 or 4")]
    NoReplicas,
    #[error(
        "{replicas} replicas need at least {replicas} servers and there are {servers}: add servers or lower replicas"
    )]
    TooFewServers { servers: usize, replicas: u8 },
    #[error(
        "the rack-aligned layout of {replicas} replicas needs at least {replicas} racks and there are {racks}: \
         use the rotated layout, add racks or lower replicas"
    )]
    TooFewRacks { racks: usize, replicas: u8 },
    #[error("{server} is named twice: give every server its own id")]
    DuplicateServer { server: ServerId },
    #[error("no layout is called {name:?}: use rotated, rack-aligned, naive-random or naive-grouped")]
    UnknownScheme { name: String },
}

/// How many chunk groups a cluster has. [Sierra §3.5]
pub fn groups(servers: usize, per_server: u32) -> u32 {
    servers as u32 * per_server
}

/// Lays out `groups` chunk groups with `replicas` replicas over `servers`. The same arguments give the same layout.
///
/// With fewer racks than replicas, the replicas of a chunk group are on different servers, in as many racks as
/// there are.
pub fn layout(
    servers: &[Server],
    replicas: u8,
    groups: u32,
    seed: u64,
    scheme: Scheme,
) -> Result<Layout, LayoutError> {
    let mut racks: BTreeMap<RackId, BTreeSet<ServerId>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for server in servers {
        if !known.insert(server.id) {
            return Err(LayoutError::DuplicateServer { server: server.id });
        }
        racks.entry(server.rack).or_default().insert(server.id);
    }
    if replicas == 0 {
        return Err(LayoutError::NoReplicas);
    }
    if servers.len() < usize::from(replicas) {
        return Err(LayoutError::TooFewServers { servers: servers.len(), replicas });
    }
    if scheme == Scheme::RackAligned && racks.len() < usize::from(replicas) {
        return Err(LayoutError::TooFewRacks { racks: racks.len(), replicas });
    }
    let mut random = Random::new(seed);
    let (places, groups) = match scheme {
        Scheme::Rotated | Scheme::RackAligned => {
            let aligned = scheme == Scheme::RackAligned;
            let places = if aligned { align(&racks, replicas) } else { rotate(&racks, replicas) };
            let groups = power_aware_groups(&places, replicas, groups, &mut random);
            (places, groups)
        }
        Scheme::NaiveRandom => {
            (rotate(&racks, replicas), random_groups(&racks, replicas, groups, &mut random))
        }
        Scheme::NaiveGrouped => grouped(&racks, replicas, groups),
    };
    let primaries = spread(&groups, &BTreeMap::new());
    let primaries = primaries.into_iter().map(|p| p.expect("every chunk group has r servers")).collect();
    Ok(Layout { scheme, replicas, servers: places, groups, primaries })
}

/// A rack and its servers.
type Rack<'a> = (RackId, &'a BTreeSet<ServerId>);

/// Deals gear groups to the racks in rotation: every rack's servers, and all servers, are divided evenly (plus or
/// minus one). Smallest rack first, because racks of fewer than r servers must start at different gear groups; if
/// that leaves a server that no chunk group could use, the first racks are dealt last, and where no rotation will
/// do, the racks are parted.
fn rotate(racks: &BTreeMap<RackId, BTreeSet<ServerId>>, replicas: u8) -> BTreeMap<ServerId, Place> {
    let mut order: Vec<Rack> = racks.iter().map(|(rack, servers)| (*rack, servers)).collect();
    order.sort_by_key(|(rack, servers)| (servers.len(), *rack));
    deal(&order, replicas)
}

/// `racks`: the smallest first.
fn deal(racks: &[Rack], replicas: u8) -> BTreeMap<ServerId, Place> {
    let rotation = |first: usize| -> BTreeMap<ServerId, Place> {
        let racks = racks[first..].iter().chain(&racks[..first]);
        let dealt = racks.flat_map(|(rack, servers)| servers.iter().map(|server| (*rack, *server)));
        let gears = (0..replicas).cycle();
        dealt.zip(gears).map(|((rack, id), gear)| (id, Place { rack, gear_group: GearGroup(gear) })).collect()
    };
    let full = |places: &BTreeMap<ServerId, Place>| every_server_can_hold(places, racks.len(), replicas);
    let rotated = (0..racks.len()).map(rotation).find(full);
    rotated.unwrap_or_else(|| part(racks, replicas))
}

/// Whether each server is in some choice of one server per gear group, in as many racks as possible. With about as
/// many racks as replicas it may not be: a gear group with servers in one rack only takes that rack from all others.
fn every_server_can_hold(places: &BTreeMap<ServerId, Place>, racks: usize, replicas: u8) -> bool {
    let r = usize::from(replicas);
    let candidates: Vec<_> = queues(places, r, || 0).iter().map(|queue| cheapest(queue, places, r)).collect();
    let alike: BTreeMap<(usize, RackId), ServerId> =
        places.iter().map(|(id, p)| ((usize::from(p.gear_group.0), p.rack), *id)).collect();
    alike.into_iter().all(|((gear, rack), id)| {
        let mut candidates = candidates.clone();
        candidates[gear] = vec![Candidate { cost: 0, queued: (0, 0, id), rack }];
        let chosen = cheapest_slots(&candidates);
        let used: BTreeSet<RackId> = chosen.iter().map(|queued| places[&queued.2].rack).collect();
        used.len() == r.min(racks)
    })
}

/// Some racks share some of the gear groups, and the others the rest, so that no choice in one part limits the
/// other: whole racks may then sleep, and gear groups differ in size, but every server holds chunk groups. Of all
/// partings the most even one, then the one with the most racks in each gear group. Small gear groups are low gears.
fn part(racks: &[Rack], replicas: u8) -> BTreeMap<ServerId, Place> {
    let partings = (1..replicas).flat_map(|some| {
        let parts =
            (0..racks.len()).flat_map(move |first| (first + 1..=racks.len()).map(move |end| first..end));
        parts.filter_map(move |taken| {
            let rest = [&racks[..taken.start], &racks[taken.end..]].concat();
            let fits = |part: &[Rack], gears: u8| {
                let (gears, servers) =
                    (usize::from(gears), part.iter().map(|rack| rack.1.len()).sum::<usize>());
                let apart = if racks.len() < usize::from(replicas) {
                    part.len() <= gears
                } else {
                    part.len() >= gears
                };
                apart && !part.is_empty() && servers >= gears
            };
            let fit = fits(&racks[taken.clone()], some) && fits(&rest, replicas - some);
            fit.then(|| {
                let mut places = deal(&racks[taken], some);
                let above = |p: Place| Place { gear_group: GearGroup(p.gear_group.0 + some), ..p };
                places.extend(deal(&rest, replicas - some).into_iter().map(|(id, p)| (id, above(p))));
                places
            })
        })
    });
    let sizes = |places: &BTreeMap<ServerId, Place>| -> Vec<usize> {
        let size = |gear| places.values().filter(|p| p.gear_group.0 == gear).count();
        (0..replicas).map(size).collect()
    };
    let price = |places: &BTreeMap<ServerId, Place>| {
        let sizes = sizes(places);
        let cells: BTreeSet<_> = places.values().map(|p| (p.rack, p.gear_group.0)).collect();
        (
            sizes.iter().max().copied(),
            std::cmp::Reverse(sizes.iter().min().copied()),
            std::cmp::Reverse(cells.len()),
        )
    };
    let mut places = partings.min_by_key(price).expect("one gear group can always be parted from the others");
    let sizes = sizes(&places);
    let mut rank: Vec<u8> = (0..replicas).collect();
    rank.sort_by_key(|gear| sizes[usize::from(*gear)]);
    for place in places.values_mut() {
        let low =
            rank.iter().position(|gear| *gear == place.gear_group.0).expect("every gear group has a rank");
        place.gear_group = GearGroup(low as u8);
    }
    places
}

/// Assigns whole racks to gear groups, the largest rack first, always to the smallest gear group.
fn align(racks: &BTreeMap<RackId, BTreeSet<ServerId>>, replicas: u8) -> BTreeMap<ServerId, Place> {
    let mut order: Vec<_> = racks.iter().collect();
    order.sort_by_key(|(rack, servers)| (std::cmp::Reverse(servers.len()), **rack));
    let mut sizes = vec![0; usize::from(replicas)];
    let mut places = BTreeMap::new();
    for (rack, servers) in order {
        let smallest = (0..sizes.len()).min_by_key(|gear| sizes[*gear]).expect("at least one replica");
        sizes[smallest] += servers.len();
        let gear_group = GearGroup(smallest as u8);
        places.extend(servers.iter().map(|id| (*id, Place { rack: *rack, gear_group })));
    }
    places
}

/// A server in a gear group's queue: number of its chunk groups, random tie-breaker, id.
type Queued = (u32, u64, ServerId);

/// A server that may take a slot.
#[derive(Clone, Copy)]
struct Candidate {
    /// Square of its excess of chunk groups over the least loaded server of its gear group.
    cost: u64,
    queued: Queued,
    rack: RackId,
}

/// One server of every gear group per chunk group: as many racks as possible, then the least loaded servers.
fn power_aware_groups(
    places: &BTreeMap<ServerId, Place>,
    replicas: u8,
    groups: u32,
    random: &mut Random,
) -> Vec<Vec<ServerId>> {
    let r = usize::from(replicas);
    let mut queues = queues(places, r, || random.next());
    let mut drawn = Vec::with_capacity(groups as usize);
    for _ in 0..groups {
        let candidates: Vec<Vec<Candidate>> = queues.iter().map(|queue| cheapest(queue, places, r)).collect();
        let chosen = cheapest_slots(&candidates);
        for (queue, queued) in queues.iter_mut().zip(&chosen) {
            queue.remove(queued);
            queue.insert((queued.0 + 1, random.next(), queued.2));
        }
        drawn.push(chosen.into_iter().map(|queued| queued.2).collect());
    }
    even_out_slots(places, &mut drawn, r);
    drawn
}

/// The servers of each gear group, still without chunk groups.
fn queues(
    places: &BTreeMap<ServerId, Place>,
    r: usize,
    mut tie: impl FnMut() -> u64,
) -> Vec<BTreeSet<Queued>> {
    let mut queues = vec![BTreeSet::new(); r];
    for (id, place) in places {
        queues[usize::from(place.gear_group.0)].insert((0, tie(), *id));
    }
    queues
}

/// The least loaded server of each of the `r` least loaded racks of a gear group. No other needs to be considered:
/// the other r - 1 slots can block at most r - 1 of these racks.
fn cheapest(queue: &BTreeSet<Queued>, places: &BTreeMap<ServerId, Place>, r: usize) -> Vec<Candidate> {
    let lowest = queue.first().map_or(0, |entry| entry.0);
    let mut found: Vec<Candidate> = Vec::with_capacity(r);
    for queued in queue {
        let rack = places[&queued.2].rack;
        if found.iter().all(|c| c.rack != rack) {
            found.push(Candidate { cost: u64::from(queued.0 - lowest).pow(2), queued: *queued, rack });
        }
        if found.len() == r {
            break;
        }
    }
    found
}

/// One candidate per slot, such that the fewest slots share a rack; the cheapest of these choices.
fn cheapest_slots(candidates: &[Vec<Candidate>]) -> Vec<Queued> {
    type Cost = (usize, u64);
    fn descend(
        candidates: &[Vec<Candidate>],
        chosen: &mut Vec<Candidate>,
        cost: Cost,
        best: &mut Option<(Cost, Vec<Candidate>)>,
    ) {
        if best.as_ref().is_some_and(|(least, _)| cost >= *least) {
            return;
        }
        let Some(slot) = candidates.get(chosen.len()) else {
            *best = Some((cost, chosen.clone()));
            return;
        };
        for candidate in slot {
            let shared = chosen.iter().any(|c| c.rack == candidate.rack);
            chosen.push(*candidate);
            descend(candidates, chosen, (cost.0 + usize::from(shared), cost.1 + candidate.cost), best);
            chosen.pop();
        }
    }
    let mut best = None;
    descend(candidates, &mut Vec::new(), (0, 0), &mut best);
    let (_, chosen) = best.expect("every gear group has a server");
    chosen.into_iter().map(|c| c.queued).collect()
}

/// Evens out the imbalance that choosing one chunk group after another left: per gear group, keeping the other
/// slots.
fn even_out_slots(places: &BTreeMap<ServerId, Place>, groups: &mut [Vec<ServerId>], r: usize) {
    for gear in 0..r {
        let members: Vec<ServerId> =
            places.iter().filter(|(_, p)| usize::from(p.gear_group.0) == gear).map(|(id, _)| *id).collect();
        let mut load: BTreeMap<ServerId, u32> = members.iter().map(|id| (*id, 0)).collect();
        for group in groups.iter() {
            *load.get_mut(&group[gear]).expect("slot k is in gear group k") += 1;
        }
        if load.values().max() <= load.values().min().map(|least| least + 1).as_ref() {
            continue;
        }
        let choices: Vec<Vec<ServerId>> = groups
            .iter()
            .map(|group| {
                let taken: Vec<RackId> =
                    (0..r).filter(|k| *k != gear).map(|k| places[&group[k]].rack).collect();
                let shared = taken.contains(&places[&group[gear]].rack);
                let free =
                    |id: &&ServerId| **id == group[gear] || shared || !taken.contains(&places[id].rack);
                members.iter().filter(free).copied().collect()
            })
            .collect();
        let mut assigned: Vec<ServerId> = groups.iter().map(|group| group[gear]).collect();
        even_out(&choices, &mut assigned, &mut load);
        for (group, server) in groups.iter_mut().zip(assigned) {
            group[gear] = server;
        }
    }
}

fn random_groups(
    racks: &BTreeMap<RackId, BTreeSet<ServerId>>,
    replicas: u8,
    groups: u32,
    random: &mut Random,
) -> Vec<Vec<ServerId>> {
    let r = usize::from(replicas);
    let mut all: Vec<(RackId, ServerId)> =
        racks.iter().flat_map(|(rack, ids)| ids.iter().map(|id| (*rack, *id))).collect();
    let draw = |_| {
        random.shuffle(&mut all);
        let mut chosen: Vec<(RackId, ServerId)> = Vec::with_capacity(r);
        for candidate in &all {
            if chosen.len() < r && (racks.len() < r || chosen.iter().all(|c| c.0 != candidate.0)) {
                chosen.push(*candidate);
            }
        }
        chosen.into_iter().map(|c| c.1).collect()
    };
    (0..groups).map(draw).collect()
}

/// Replica sets: repeatedly takes one server from each of the r fullest racks (or from every rack, if there are
/// fewer).
fn grouped(
    racks: &BTreeMap<RackId, BTreeSet<ServerId>>,
    replicas: u8,
    groups: u32,
) -> (BTreeMap<ServerId, Place>, Vec<Vec<ServerId>>) {
    let r = usize::from(replicas);
    let mut left: Vec<(RackId, VecDeque<ServerId>)> =
        racks.iter().map(|(rack, ids)| (*rack, ids.iter().copied().collect())).collect();
    let mut places = BTreeMap::new();
    let mut sets: Vec<Vec<ServerId>> = Vec::new();
    // A set that would have to share racks, although there are enough, is not formed.
    let apart = r.min(racks.len());
    let enough = |left: &[(RackId, VecDeque<ServerId>)]| {
        left.iter().filter(|(_, ids)| !ids.is_empty()).count() >= apart
            && left.iter().map(|(_, ids)| ids.len()).sum::<usize>() >= r
    };
    while enough(&left) {
        left.sort_by_key(|(rack, ids)| (std::cmp::Reverse(ids.len()), *rack));
        let mut set: Vec<ServerId> = Vec::with_capacity(r);
        for position in (0..left.len()).cycle() {
            if set.len() == r {
                break;
            }
            let (rack, ids) = &mut left[position];
            if let Some(id) = ids.pop_front() {
                places.insert(id, Place { rack: *rack, gear_group: GearGroup(set.len() as u8) });
                set.push(id);
            }
        }
        sets.push(set);
    }
    let spare = GearGroup(replicas - 1);
    for (rack, ids) in left {
        places.extend(ids.into_iter().map(|id| (id, Place { rack, gear_group: spare })));
    }
    let groups = (0..groups as usize).map(|group| sets[group % sets.len()].clone()).collect();
    (places, groups)
}

/// Picks one server per item from the item's choices so that the loads end as even as the choices allow. `load` is
/// the servers' present load. `None` for an item without a choice.
///
/// Used for primaries on awake servers, for successors of a drained primary, and for new places of a lost server's
/// replicas.
pub fn spread(choices: &[Vec<ServerId>], load: &BTreeMap<ServerId, u32>) -> Vec<Option<ServerId>> {
    let mut load = load.clone();
    for server in choices.iter().flatten() {
        load.entry(*server).or_insert(0);
    }
    let open: Vec<usize> = (0..choices.len()).filter(|item| !choices[*item].is_empty()).collect();
    let open_choices: Vec<Vec<ServerId>> = open.iter().map(|item| choices[*item].clone()).collect();
    let mut assigned = Vec::with_capacity(open.len());
    for options in &open_choices {
        let least = *options.iter().min_by_key(|server| load[server]).expect("open items have choices");
        *load.get_mut(&least).expect("loads of all choices are known") += 1;
        assigned.push(least);
    }
    even_out(&open_choices, &mut assigned, &mut load);
    let mut picked = vec![None; choices.len()];
    for (item, server) in open.into_iter().zip(assigned) {
        picked[item] = Some(server);
    }
    picked
}

/// Moves items along chains of choices from more to less loaded servers until no chain is left: then no assignment
/// is more even. [Harvey, Ladner, Lovász, Tamir: Semi-matchings for bipartite graphs and load balancing, 2003]
fn even_out(choices: &[Vec<ServerId>], assigned: &mut [ServerId], load: &mut BTreeMap<ServerId, u32>) {
    let mut items: BTreeMap<ServerId, BTreeSet<usize>> = BTreeMap::new();
    for (item, server) in assigned.iter().enumerate() {
        items.entry(*server).or_default().insert(item);
    }
    loop {
        let least = items.keys().chain(choices.iter().flatten()).map(|server| load[server]).min();
        let Some(least) = least else { return };
        let mut heavy: Vec<ServerId> = items.keys().copied().filter(|s| load[s] >= least + 2).collect();
        heavy.sort_by_key(|server| std::cmp::Reverse(load[server]));
        let Some(chain) = heavy.into_iter().find_map(|server| relieving_chain(server, choices, &items, load))
        else {
            return;
        };
        for (from, item, to) in chain {
            assigned[item] = to;
            items.entry(from).or_default().remove(&item);
            items.entry(to).or_default().insert(item);
            *load.get_mut(&from).expect("known server") -= 1;
            *load.get_mut(&to).expect("known server") += 1;
        }
    }
}

/// The shortest chain of moves (from, item, to) that takes one item off `start` and ends at a server with at
/// least two fewer.
fn relieving_chain(
    start: ServerId,
    choices: &[Vec<ServerId>],
    items: &BTreeMap<ServerId, BTreeSet<usize>>,
    load: &BTreeMap<ServerId, u32>,
) -> Option<Vec<(ServerId, usize, ServerId)>> {
    let mut reached: BTreeMap<ServerId, (ServerId, usize)> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(from) = queue.pop_front() {
        for &item in items.get(&from).into_iter().flatten() {
            for &to in &choices[item] {
                if to == start || reached.contains_key(&to) {
                    continue;
                }
                reached.insert(to, (from, item));
                queue.push_back(to);
                if load[&to] + 2 <= load[&start] {
                    let mut chain = Vec::new();
                    let mut at = to;
                    while at != start {
                        let (from, item) = reached[&at];
                        chain.push((from, item, at));
                        at = from;
                    }
                    return Some(chain);
                }
            }
        }
    }
    None
}

/// For each chunk group of `groups` (its servers, including `lost`) the server that takes the lost server's slot:
/// from the same gear group, spread evenly. [Sierra §3.3]
///
/// The server is in a rack without another replica, if at least half of the gear group qualifies. With about as
/// many racks as replicas it does not: only the lost server's own rack is free, and one or two servers in it would
/// take all its data. Then the whole gear group takes part, which keeps the time with missing copies as short as
/// possible, and racks shared afterwards are separated later ([`parting`]).
///
/// `servers`: those that can take data, including sleeping ones; `load`: number of chunk groups on each. `None`:
/// the gear group has no other server; one must be added to it.
pub fn rebuild_choice(
    lost: ServerId,
    gear_group: GearGroup,
    groups: &[Vec<ServerId>],
    servers: &BTreeMap<ServerId, Place>,
    load: &BTreeMap<ServerId, u32>,
) -> Vec<Option<ServerId>> {
    let rack = |id: &ServerId| servers.get(id).map(|place| place.rack);
    let shares = |group: &[ServerId], id: &ServerId| {
        group.iter().filter(|other| **other != lost).any(|other| rack(other) == rack(id))
    };
    let able = |group: &Vec<ServerId>| -> Vec<ServerId> {
        let free = |(id, place): &(&ServerId, &Place)| {
            place.gear_group == gear_group && **id != lost && !group.contains(id)
        };
        servers.iter().filter(free).map(|(id, _)| *id).collect()
    };
    let all: Vec<Vec<ServerId>> = groups.iter().map(able).collect();
    let apart = |(group, able): (&Vec<ServerId>, &Vec<ServerId>)| -> Vec<ServerId> {
        let apart: Vec<ServerId> = able.iter().filter(|id| !shares(group, id)).copied().collect();
        if apart.is_empty() { able.clone() } else { apart }
    };
    let apart: Vec<Vec<ServerId>> = groups.iter().zip(&all).map(apart).collect();
    let many = |choices: &[Vec<ServerId>]| choices.iter().flatten().collect::<BTreeSet<_>>().len();
    let choices = if many(&apart) * 2 >= many(&all) { &apart } else { &all };
    spread(choices, load)
}

/// A slot of a chunk group and the server to move it to, so that its replicas are in one more rack than now: the
/// least loaded suitable server of the same gear group. `None`: they are already apart, or no move separates them.
///
/// `group`: slot k in gear group k; `stays`: a server that must not be moved; `servers`: those that can take data;
/// `load`: number of chunk groups on each.
pub fn parting(
    group: &[ServerId],
    stays: Option<ServerId>,
    servers: &BTreeMap<ServerId, Place>,
    load: &BTreeMap<ServerId, u32>,
) -> Option<(usize, ServerId)> {
    let rack = |id: &ServerId| servers.get(id).map(|place| place.rack);
    let racks: Vec<Option<RackId>> = group.iter().map(rack).collect();
    let shares = |k: &usize| racks.iter().filter(|r| **r == racks[*k]).count() > 1;
    let candidates = (0..group.len()).filter(|k| stays != Some(group[*k])).filter(shares).flat_map(|k| {
        let free =
            move |(id, place): &(&ServerId, &Place)| usize::from(place.gear_group.0) == k && **id != group[k];
        servers
            .iter()
            .filter(free)
            .filter(|(_, p)| !racks.contains(&Some(p.rack)))
            .map(move |(id, _)| (k, *id))
    });
    candidates.min_by_key(|(k, id)| (load.get(id).copied().unwrap_or(0), *id, *k))
}

/// Servers to keep awake in addition to `awake`, so that the copies of a write can be in `replicas` different
/// racks, or in as many as there are. `able`: servers that can be awake, preferred ones first.
pub fn spread_awake(able: &[(ServerId, RackId)], awake: &BTreeSet<ServerId>, replicas: u8) -> Vec<ServerId> {
    let wanted = usize::from(replicas);
    let mut racks: BTreeSet<RackId> =
        able.iter().filter(|(id, _)| awake.contains(id)).map(|(_, rack)| *rack).collect();
    let mut more = Vec::new();
    for (id, rack) in able {
        if racks.len() < wanted && racks.insert(*rack) {
            more.push(*id);
        }
    }
    more
}

/// A set of servers that can be off while `gear` replicas of every chunk group are awake.
///
/// Power-aware layouts: all gear groups from `gear` up, by construction. Naive layouts: by search; exact for up to
/// 16 servers and for fixed replica sets, otherwise the result of a greedy search (the exact answer is a set cover,
/// NP-hard).
pub fn power_down(layout: &Layout, gear: u8) -> Vec<ServerId> {
    if layout.scheme.is_power_aware() {
        let sleeps = |(_, place): &(&ServerId, &Place)| place.gear_group.0 >= gear;
        return layout.servers.iter().filter(sleeps).map(|(id, _)| *id).collect();
    }
    let mut search = Search::new(layout, gear);
    if layout.scheme == Scheme::NaiveRandom && layout.servers.len() <= 16 {
        search.exact(0);
    } else {
        search.greedy();
    }
    search.best
}

/// How many servers can be off in `gear`. [Sierra Table 1, "Power-down"]
pub fn power_down_count(layout: &Layout, gear: u8) -> usize {
    power_down(layout, gear).len()
}

struct Search {
    servers: Vec<ServerId>,
    /// Per server, in the order of `servers`: its chunk groups.
    groups_of: Vec<Vec<usize>>,
    /// Per chunk group: how many more of its servers may be switched off.
    spare: Vec<u8>,
    off: Vec<ServerId>,
    best: Vec<ServerId>,
}

impl Search {
    fn new(layout: &Layout, gear: u8) -> Search {
        let servers: Vec<ServerId> = layout.servers.keys().copied().collect();
        let mut groups_of: BTreeMap<ServerId, Vec<usize>> = BTreeMap::new();
        for (index, group) in layout.groups.iter().enumerate() {
            for server in group {
                groups_of.entry(*server).or_default().push(index);
            }
        }
        Search {
            groups_of: servers.iter().map(|id| groups_of.remove(id).unwrap_or_default()).collect(),
            servers,
            spare: vec![layout.replicas.saturating_sub(gear); layout.groups.len()],
            off: Vec::new(),
            best: Vec::new(),
        }
    }

    fn can_switch_off(&self, server: usize) -> bool {
        self.groups_of[server].iter().all(|group| self.spare[*group] > 0)
    }

    fn switch_off(&mut self, server: usize) {
        self.off.push(self.servers[server]);
        for group in &self.groups_of[server] {
            self.spare[*group] -= 1;
        }
    }

    fn switch_on_again(&mut self, server: usize) {
        self.off.pop();
        for group in &self.groups_of[server] {
            self.spare[*group] += 1;
        }
    }

    fn greedy(&mut self) {
        for server in 0..self.servers.len() {
            if self.can_switch_off(server) {
                self.switch_off(server);
            }
        }
        self.best = self.off.clone();
    }

    fn exact(&mut self, next: usize) {
        if self.off.len() > self.best.len() {
            self.best = self.off.clone();
        }
        if self.off.len() + self.servers.len() - next <= self.best.len() {
            return;
        }
        if self.can_switch_off(next) {
            self.switch_off(next);
            self.exact(next + 1);
            self.switch_on_again(next);
        }
        self.exact(next + 1);
    }
}

/// Number of servers on which the data of `lost` can be rebuilt in parallel. [Sierra Table 1, "Rebuild"]
///
/// The paper gives N/r for power-aware grouping and N for naive random; these count the lost server too. With naive
/// grouping it is one: the server that replaces the lost one.
pub fn rebuild_parallelism(layout: &Layout, lost: ServerId) -> usize {
    let held: Vec<Vec<ServerId>> = layout.groups.iter().filter(|g| g.contains(&lost)).cloned().collect();
    match layout.scheme {
        Scheme::NaiveGrouped => usize::from(!held.is_empty()),
        Scheme::NaiveRandom => {
            let others: BTreeSet<ServerId> = held
                .iter()
                .flat_map(|g| layout.servers.keys().filter(|id| !g.contains(id)))
                .copied()
                .collect();
            others.len()
        }
        Scheme::Rotated | Scheme::RackAligned => {
            let Some(place) = layout.servers.get(&lost) else { return 0 };
            let chosen = rebuild_choice(lost, place.gear_group, &held, &layout.servers, &BTreeMap::new());
            chosen.into_iter().flatten().collect::<BTreeSet<_>>().len()
        }
    }
}

#[cfg(test)]
mod tests;
