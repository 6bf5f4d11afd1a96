use super::*;
use crate::{Scheme, Server, layout};
use ebb_types::Random;

type Cluster = (Vec<Vec<ServerId>>, BTreeMap<ServerId, Claimant>);

/// As a cluster of these servers, by their racks, is founded.
fn founded(racks: &[u16], replicas: u8, groups: u32) -> Cluster {
    let list: Vec<Server> =
        racks.iter().zip(0..).map(|(rack, id)| Server { id: ServerId(id), rack: RackId(*rack) }).collect();
    let layout = layout(&list, replicas, groups, 7, Scheme::Rotated).expect("there are enough servers");
    let claimant = |place: &Place| Claimant { place: *place, claim: 100 };
    (layout.groups, layout.servers.iter().map(|(id, place)| (*id, claimant(place))).collect())
}

fn join((groups, servers): &mut Cluster, rack: u16, claim: u32) -> Option<ServerId> {
    let id = ServerId(servers.keys().last().expect("there are servers").0 + 1);
    let gear_group = gear_group_for(RackId(rack), claim, groups, servers)?;
    servers.insert(id, Claimant { place: Place { rack: RackId(rack), gear_group }, claim });
    Some(id)
}

fn racks(group: &[ServerId], servers: &BTreeMap<ServerId, Claimant>) -> usize {
    group.iter().map(|id| servers[id].place.rack).collect::<BTreeSet<_>>().len()
}

fn has(groups: &[Vec<ServerId>], server: ServerId) -> usize {
    groups.iter().filter(|group| group.contains(&server)).count()
}

/// Moves one slot after another, and looks at each step.
fn carry_out((groups, servers): &mut Cluster, moves: &[Move]) {
    for m in moves {
        let before = racks(&groups[m.group], servers);
        assert_eq!(groups[m.group][m.slot], m.from);
        assert_eq!(usize::from(servers[&m.to].place.gear_group.0), m.slot, "slot k stays in gear group k");
        assert!(!groups[m.group].contains(&m.to) && servers[&m.to].claim > 0);
        groups[m.group][m.slot] = m.to;
        assert!(racks(&groups[m.group], servers) >= before, "copies are in fewer racks after {m:?}");
    }
}

fn is_fair((groups, servers): &Cluster, slot: usize) -> bool {
    let arrangement = Arrangement::new(slot, groups, servers);
    arrangement.those(|has, (low, high)| has < low || has > high).is_empty()
}

/// The fewest slots of this gear group that have to move until each server has its share; `None`: racks leave no way.
/// By flows of least cost: from each group to the servers that its slot may be on, and from these as far as their
/// shares go, the lower part of them at a premium.
fn fewest((groups, servers): &Cluster, slot: usize) -> Option<usize> {
    const PREMIUM: i64 = 1 << 20;
    let arrangement = Arrangement::new(slot, groups, servers);
    let (g, n) = (groups.len(), arrangement.ids.len());
    let (source, sink) = (g + n, g + n + 1);
    // To, capacity, cost; the way back of each is the next one.
    let mut edges: Vec<(usize, usize, i64, i64)> = Vec::new();
    let mut edge = |from: usize, to: usize, room: usize, cost: i64| {
        edges.push((from, to, room as i64, cost));
        edges.push((to, from, 0, -cost));
    };
    for group in 0..g {
        edge(source, group, 1, 0);
        for server in (0..n).filter(|server| arrangement.may_be_on(group, *server)) {
            edge(group, g + server, 1, i64::from(arrangement.home[group] != server));
        }
    }
    let low: usize = arrangement.shares.iter().map(|share| share.0).sum();
    for (server, (low, high)) in arrangement.shares.iter().enumerate() {
        edge(g + server, sink, *low, -PREMIUM);
        edge(g + server, sink, high - low, 0);
    }
    let mut total = 0;
    for _ in 0..g {
        let mut best = vec![(i64::MAX, usize::MAX); g + n + 2];
        best[source].0 = 0;
        loop {
            let mut better = false;
            for (index, (from, to, room, cost)) in edges.iter().enumerate() {
                if *room > 0 && best[*from].0 < i64::MAX && best[*from].0 + cost < best[*to].0 {
                    best[*to] = (best[*from].0 + cost, index);
                    better = true;
                }
            }
            if !better {
                break;
            }
        }
        if best[sink].0 == i64::MAX {
            return None;
        }
        total += best[sink].0;
        let mut at = sink;
        while at != source {
            let index = best[at].1;
            edges[index].2 -= 1;
            edges[index ^ 1].2 += 1;
            at = edges[index].0;
        }
    }
    let moved = total + low as i64 * PREMIUM;
    (moved < PREMIUM).then_some(moved as usize)
}

#[test]
fn a_cluster_in_which_nobody_comes_or_leaves_moves_nothing() {
    for count in 3..40u16 {
        let racks: Vec<u16> = (0..count).map(|id| id % 5).collect();
        let (groups, servers) = founded(&racks, 3, u32::from(count) * 16);
        assert_eq!(rearrange(&groups, &servers), Rearrangement::default(), "{count} servers");
    }
}

#[test]
fn a_new_server_gets_its_share_and_nothing_else_moves() {
    let mut cluster = founded(&(0..12).map(|id| id % 4).collect::<Vec<_>>(), 3, 768);
    let new = join(&mut cluster, 4, 100).expect("a rack of its own");
    let plan = rearrange(&cluster.0, &cluster.1);
    assert!(plan.moves.iter().all(|m| m.to == new) && plan.stuck.is_empty());
    assert_eq!(plan.moves.len(), 768 / 5, "a gear group of four becomes one of five");
    carry_out(&mut cluster, &plan.moves);
    assert_eq!(rearrange(&cluster.0, &cluster.1), Rearrangement::default());
    // Twice as large, twice as much.
    let large = join(&mut cluster, 5, 200).expect("a rack of its own");
    let plan = rearrange(&cluster.0, &cluster.1);
    carry_out(&mut cluster, &plan.moves);
    assert_eq!(has(&cluster.0, large), 768 / 3);
}

/// In three racks three copies move within their racks only.
#[test]
fn where_racks_leave_no_way_to_its_share_a_server_gets_as_much_as_they_do() {
    let mut cluster = founded(&(0..9).map(|id| id % 3).collect::<Vec<_>>(), 3, 36);
    let new = join(&mut cluster, 1, 100).expect("there is room");
    let plan = rearrange(&cluster.0, &cluster.1);
    carry_out(&mut cluster, &plan.moves);
    assert_eq!(has(&cluster.0, new), 6, "half of what the other in its rack and gear group has");
    assert_eq!(rearrange(&cluster.0, &cluster.1), Rearrangement::default());
}

#[test]
fn what_a_server_that_leaves_has_goes_to_the_one_that_replaces_it() {
    let mut cluster = founded(&(0..9).map(|id| id % 3).collect::<Vec<_>>(), 3, 576);
    let old = ServerId(4);
    let had = has(&cluster.0, old);
    cluster.1.get_mut(&old).expect("it is there").claim = 0;
    let place = cluster.1[&old].place;
    let new = ServerId(9);
    cluster.1.insert(new, Claimant { place, claim: 100 });
    let plan = rearrange(&cluster.0, &cluster.1);
    assert!(plan.moves.iter().all(|m| (m.from, m.to) == (old, new)));
    assert_eq!(plan.moves.len(), had);
}

#[test]
fn a_server_that_leaves_is_emptied_even_where_others_get_more_than_their_share() {
    // Server 1 alone shares the rack of server 0; server 2 is in the rack of the other copies.
    let place = |rack, gear_group| Place { rack: RackId(rack), gear_group: GearGroup(gear_group) };
    let of = |rack, gear_group, claim| Claimant { place: place(rack, gear_group), claim };
    let servers: BTreeMap<ServerId, Claimant> =
        [(0, of(0, 0, 0)), (1, of(0, 0, 1)), (2, of(1, 0, 100)), (3, of(1, 1, 100))]
            .map(|(id, claimant)| (ServerId(id), claimant))
            .into();
    let mut cluster = (vec![vec![ServerId(0), ServerId(3)]; 8], servers);
    let plan = rearrange(&cluster.0, &cluster.1);
    assert!(plan.stuck.is_empty(), "{plan:?}");
    carry_out(&mut cluster, &plan.moves);
    assert_eq!(has(&cluster.0, ServerId(1)), 8);
    // Without it there is nowhere to go.
    let mut alone = (vec![vec![ServerId(0), ServerId(3)]; 8], cluster.1.clone());
    alone.1.remove(&ServerId(1));
    let plan = rearrange(&alone.0, &alone.1);
    assert_eq!((plan.moves.len(), plan.stuck), (0, [(ServerId(0), 8)].into()));
}

#[test]
fn a_rack_in_which_every_group_has_another_copy_takes_no_server() {
    // Rack 1 has all of gear group 1 and all of gear group 0.
    let place = |rack, gear_group| Place { rack: RackId(rack), gear_group: GearGroup(gear_group) };
    let servers: BTreeMap<ServerId, Claimant> = [(0, place(0, 0)), (1, place(1, 1))]
        .map(|(id, place)| (ServerId(id), Claimant { place, claim: 100 }))
        .into();
    let groups = vec![vec![ServerId(0), ServerId(1)]; 8];
    let at = |rack| gear_group_for(RackId(rack), 100, &groups, &servers);
    assert_eq!([at(0), at(1), at(2)], [0, 1, 0].map(|gear_group| Some(GearGroup(gear_group))));
    let three: BTreeMap<ServerId, Claimant> = [(0, place(0, 0)), (1, place(1, 1)), (2, place(2, 2))]
        .map(|(id, place)| (ServerId(id), Claimant { place, claim: 100 }))
        .into();
    let mixed = [[0, 1, 2].map(ServerId).to_vec(), [0, 1, 2].map(ServerId).to_vec()].to_vec();
    assert_eq!(
        gear_group_for(RackId(1), 100, &mixed, &three),
        Some(GearGroup(1)),
        "where that rack is its own"
    );
    assert_eq!(gear_group_for(RackId(1), 100, &[], &three), None);
}

#[test]
fn three_servers_become_thirty_one_at_a_time_and_three_again() {
    for racks in [3, 4, 7] {
        let mut cluster = founded(&[0, 1, 2], 3, 192);
        let mut moved = 0;
        for id in 3..30 {
            join(&mut cluster, id % racks, 100).expect("each rack has room");
            let plan = rearrange(&cluster.0, &cluster.1);
            moved += plan.moves.len();
            carry_out(&mut cluster, &plan.moves);
        }
        for slot in 0..3 {
            assert!(is_fair(&cluster, slot), "gear group {slot} in {racks} racks");
        }
        assert!(cluster.1.keys().all(|id| has(&cluster.0, *id) > 0), "each of thirty has something");
        for id in (3..30).rev() {
            cluster.1.get_mut(&ServerId(id)).expect("it is there").claim = 0;
            let plan = rearrange(&cluster.0, &cluster.1);
            assert!(plan.stuck.is_empty(), "{id} leaves {racks} racks: {:?}", plan.stuck);
            moved += plan.moves.len();
            carry_out(&mut cluster, &plan.moves);
            // What had to make way.
            let again = rearrange(&cluster.0, &cluster.1);
            moved += again.moves.len();
            carry_out(&mut cluster, &again.moves);
            assert_eq!(has(&cluster.0, ServerId(id)), 0);
            cluster.1.remove(&ServerId(id));
        }
        assert!(cluster.0.iter().all(|group| *group == [0, 1, 2].map(ServerId)), "{racks} racks");
        assert!(moved < 2 * 192 * 10, "{moved} moves");
    }
}

#[test]
fn a_plan_moves_hardly_more_than_the_least_that_gives_each_its_share_and_never_across_racks() {
    let mut random = Random::new(43);
    let (mut all, mut least, mut tight) = (0, 0, 0);
    for run in 0..300 {
        let (racks, replicas) = (2 + random.below(6) as u16, 2 + random.below(2) as u8);
        let count = u16::from(replicas) + random.below(12) as u16;
        let ids: Vec<u16> = (0..count).map(|_| random.below(racks.into()) as u16).collect();
        let mut cluster = founded(&ids, replicas, 24 + random.below(40) as u32);
        for _ in 0..1 + random.below(3) {
            match random.below(4) {
                0 | 1 => _ = join(&mut cluster, random.below(racks.into()) as u16, 50 << random.below(3)),
                2 => {
                    let ids: Vec<ServerId> = cluster.1.keys().copied().collect();
                    let id = *random.pick(&ids).expect("there are servers");
                    let of_it = cluster.1[&id].place.gear_group;
                    let stays = |s: &&Claimant| s.place.gear_group == of_it && s.claim > 0;
                    if cluster.1.values().filter(stays).count() > 1 {
                        cluster.1.get_mut(&id).expect("it is there").claim = 0;
                    }
                }
                _ => {
                    let ids: Vec<ServerId> = cluster.1.keys().copied().collect();
                    let id = *random.pick(&ids).expect("there are servers");
                    let server = cluster.1.get_mut(&id).expect("it is there");
                    server.claim = if server.claim == 0 { 0 } else { 25 << random.below(4) };
                }
            }
        }
        let plan = rearrange(&cluster.0, &cluster.1);
        // What makes way for others comes last.
        let ways = even_out(&mut cluster.0.clone(), &cluster.1).0.len();
        for slot in 0..usize::from(replicas) {
            let of_it: Vec<Move> = plan.moves[..ways].iter().filter(|m| m.slot == slot).copied().collect();
            let fewest = fewest(&cluster, slot);
            carry_out(&mut cluster, &of_it);
            assert_eq!(is_fair(&cluster, slot), fewest.is_some(), "run {run}, slot {slot}: {plan:?}");
            let Some(fewest) = fewest else {
                tight += 1;
                continue;
            };
            assert!(of_it.len() * 10 <= fewest * 11, "run {run}, slot {slot}: {} of {fewest}", of_it.len());
            (all, least) = (all + of_it.len(), least + fewest);
        }
        carry_out(&mut cluster, &plan.moves[ways..]);
        for (id, server) in cluster.1.iter().filter(|(_, server)| server.claim == 0) {
            let left = has(&cluster.0, *id);
            assert_eq!(left, plan.stuck.get(id).map_or(0, |left| *left as usize), "run {run}: {server:?}");
        }
    }
    assert!(least > 2000 && tight > 20, "{all} moves, {least} at least, {tight} times racks leave no way");
}
