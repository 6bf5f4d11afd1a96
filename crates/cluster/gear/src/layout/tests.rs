use super::*;

/// Racks of the given sizes; ids are dealt to the racks in rotation, as operators number them.
fn servers(sizes: &[usize]) -> Vec<Server> {
    let mut all = Vec::new();
    for position in 0..sizes.iter().copied().max().unwrap_or(0) {
        for (rack, size) in sizes.iter().enumerate() {
            if position < *size {
                all.push(Server { id: ServerId(all.len() as u16), rack: RackId(rack as u16) });
            }
        }
    }
    all
}

fn lay(sizes: &[usize], replicas: u8, scheme: Scheme) -> Layout {
    let servers = servers(sizes);
    layout(&servers, replicas, 64 * servers.len() as u32, 7, scheme).unwrap()
}

/// Least and most of a count per server, over the servers of a gear group.
fn range(layout: &Layout, gear: u8, count: impl Fn(ServerId) -> usize) -> (usize, usize) {
    let members = layout.servers.iter().filter(|(_, place)| place.gear_group == GearGroup(gear));
    let counts: Vec<usize> = members.map(|(id, _)| count(*id)).collect();
    (*counts.iter().min().unwrap(), *counts.iter().max().unwrap())
}

fn held(layout: &Layout, server: ServerId) -> usize {
    layout.groups.iter().filter(|group| group.contains(&server)).count()
}

/// Properties of every power-aware layout, as far as the racks allow them.
fn check(layout: &Layout, sizes: &[usize]) {
    let r = layout.replicas;
    for group in &layout.groups {
        assert_eq!(group.len(), usize::from(r));
        for (slot, server) in group.iter().enumerate() {
            assert_eq!(layout.servers[server].gear_group, GearGroup(slot as u8));
        }
        let racks: BTreeSet<RackId> = group.iter().map(|id| layout.servers[id].rack).collect();
        assert_eq!(racks.len(), usize::from(r).min(sizes.len()), "racks {sizes:?} r {r}");
    }
}

fn check_even(layout: &Layout, sizes: &[usize]) {
    for gear in 0..layout.replicas {
        let (least, most) = range(layout, gear, |id| held(layout, id));
        assert!(most - least <= 1, "racks {sizes:?} r {} gear {gear}: {least} to {most}", layout.replicas);
    }
    let primaries: Vec<usize> =
        layout.servers.keys().map(|id| layout.primaries.iter().filter(|p| *p == id).count()).collect();
    let (least, most) = (primaries.iter().min().unwrap(), primaries.iter().max().unwrap());
    assert!(most - least <= 1, "racks {sizes:?} r {}: primaries {least} to {most}", layout.replicas);
}

#[test]
fn gear_1_of_nine_servers_in_three_racks_keeps_one_awake_in_every_rack() {
    let layout = lay(&[3, 3, 3], 3, Scheme::Rotated);
    check(&layout, &[3, 3, 3]);
    check_even(&layout, &[3, 3, 3]);
    for gear in 0..3 {
        let racks: BTreeSet<RackId> =
            layout.servers.values().filter(|p| p.gear_group == GearGroup(gear)).map(|p| p.rack).collect();
        assert_eq!(racks.len(), 3);
    }
}

#[test]
fn aligned_gear_groups_are_whole_racks() {
    let layout = lay(&[4, 4, 4, 4, 4, 4], 3, Scheme::RackAligned);
    check(&layout, &[4; 6]);
    check_even(&layout, &[4; 6]);
    for rack in 0..6 {
        let groups: BTreeSet<u8> =
            layout.servers.values().filter(|p| p.rack == RackId(rack)).map(|p| p.gear_group.0).collect();
        assert_eq!(groups.len(), 1);
    }
}

#[test]
fn racks_of_every_small_shape_get_distinct_racks_and_balanced_gear_groups() {
    // Every list of up to five racks of up to five servers, in one order.
    fn shapes(left: usize, least: usize, shape: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
        if !shape.is_empty() {
            found.push(shape.clone());
        }
        for size in least..=5 {
            if left > 0 {
                shape.push(size);
                shapes(left - 1, size, shape, found);
                shape.pop();
            }
        }
    }
    let mut found = Vec::new();
    shapes(5, 1, &mut Vec::new(), &mut found);
    for sizes in found {
        let servers = servers(&sizes);
        for replicas in (2..=4).filter(|r| usize::from(*r) <= servers.len()) {
            let layout = layout(&servers, replicas, 60, 1, Scheme::Rotated).unwrap();
            check(&layout, &sizes);
            let sizes_of: Vec<usize> = (0..replicas)
                .map(|gear| layout.servers.values().filter(|p| p.gear_group == GearGroup(gear)).count())
                .collect();
            let even = sizes_of.iter().max().unwrap() - sizes_of.iter().min().unwrap() <= 1;
            // With about as many racks as replicas, even gear groups would leave servers without chunk groups.
            let close = sizes.len() > 1 && sizes.len() <= usize::from(replicas) + 1;
            assert!(even || close, "{sizes:?}, {replicas} replicas: gear groups of {sizes_of:?}");
        }
    }
}

#[test]
fn no_server_is_left_without_chunk_groups() {
    let full = |sizes: &[usize], replicas, scheme, seed| {
        let layout = layout(&servers(sizes), replicas, 64 * sizes.iter().sum::<usize>() as u32, seed, scheme);
        let layout = layout.unwrap();
        check(&layout, sizes);
        let holds: BTreeSet<ServerId> = layout.groups.iter().flatten().copied().collect();
        let empty: Vec<_> = layout.servers.iter().filter(|(id, _)| !holds.contains(id)).collect();
        assert_eq!(empty, [], "{scheme}, {replicas} replicas, racks of {sizes:?}");
    };
    // As `ebb dev` places 4 and 5 servers.
    for sizes in [[2, 1, 1], [2, 2, 1]] {
        full(&sizes, 3, Scheme::Rotated, 1);
    }
    let mut random = Random::new(40);
    for seed in 0..250 {
        let replicas = 2 + random.below(3) as u8;
        let racks = 1 + random.index(8);
        let count = racks.max(3).max(replicas.into()) + random.index(41 - racks.max(4));
        let mut sizes = vec![1; racks];
        // Half of the time most servers are in one rack.
        let uneven = random.below(2) == 0;
        for _ in racks..count {
            let rack = if uneven && random.below(4) > 0 { 0 } else { random.index(racks) };
            sizes[rack] += 1;
        }
        full(&sizes, replicas, Scheme::Rotated, seed);
        if racks >= usize::from(replicas) {
            full(&sizes, replicas, Scheme::RackAligned, seed);
        }
    }
}

#[test]
fn racks_are_parted_as_evenly_as_they_allow() {
    let sizes = |racks: &[usize], replicas| -> Vec<usize> {
        let layout = lay(racks, replicas, Scheme::Rotated);
        let size = |gear| layout.servers.values().filter(|p| p.gear_group == GearGroup(gear)).count();
        (0..replicas).map(size).collect()
    };
    assert_eq!(sizes(&[2, 1, 1], 3), [1, 1, 2]);
    // A rotation that begins with another rack will do.
    assert_eq!(sizes(&[2, 2, 1], 3), [2, 2, 1]);
    // Every chunk group needs the servers that are alone in their racks: the lowest gears, so that most may sleep.
    assert_eq!(sizes(&[10, 1, 1], 3), [1, 1, 10]);
    assert_eq!(sizes(&[5, 1], 3), [1, 2, 3]);
}

#[test]
fn equal_racks_carry_equal_load() {
    for racks in 1..=8 {
        for per_rack in 1..=7 {
            let sizes = vec![per_rack; racks];
            for replicas in (2..=4).filter(|r| usize::from(*r) <= racks * per_rack) {
                let rotated = lay(&sizes, replicas, Scheme::Rotated);
                check(&rotated, &sizes);
                check_even(&rotated, &sizes);
                if racks.is_multiple_of(usize::from(replicas)) {
                    let aligned = lay(&sizes, replicas, Scheme::RackAligned);
                    check(&aligned, &sizes);
                    check_even(&aligned, &sizes);
                }
            }
        }
    }
}

#[test]
fn a_layout_is_a_function_of_its_seed() {
    let servers = servers(&[4, 4, 4]);
    for scheme in Scheme::ALL {
        let of = |seed| layout(&servers, 3, 200, seed, scheme).unwrap();
        assert_eq!(of(1), of(1));
        if scheme != Scheme::NaiveGrouped {
            assert_ne!(of(1).groups, of(2).groups, "{scheme}");
        }
        let mut backwards = servers.clone();
        backwards.reverse();
        assert_eq!(
            layout(&backwards, 3, 200, 1, scheme).unwrap(),
            of(1),
            "the order of naming does not matter"
        );
    }
}

#[test]
fn naive_schemes_use_different_servers_and_racks_too() {
    for scheme in [Scheme::NaiveRandom, Scheme::NaiveGrouped] {
        for sizes in [vec![3, 3, 3], vec![5, 2, 4, 1], vec![4, 4], vec![7]] {
            let layout = lay(&sizes, 3, scheme);
            for group in &layout.groups {
                assert_eq!(group.iter().collect::<BTreeSet<_>>().len(), 3);
                let racks: BTreeSet<RackId> = group.iter().map(|id| layout.servers[id].rack).collect();
                assert!(sizes.len() < 3 || racks.len() == 3, "{scheme} {sizes:?}");
            }
        }
    }
}

#[test]
fn table_1_power_down_power_aware_is_n_times_r_minus_g_over_r() {
    for scheme in [Scheme::Rotated, Scheme::RackAligned] {
        let layout = lay(&[6; 6], 3, scheme);
        for gear in 0..=3u8 {
            let off: BTreeSet<ServerId> = power_down(&layout, gear).into_iter().collect();
            assert_eq!(off.len(), 36 * usize::from(3 - gear) / 3);
            let awake = |group: &Vec<ServerId>| group.iter().filter(|id| !off.contains(id)).count();
            assert!(layout.groups.iter().all(|group| awake(group) == usize::from(gear)));
        }
    }
}

#[test]
fn table_1_power_down_naive_grouping_is_n_times_r_minus_g_over_r() {
    let layout = lay(&[4; 6], 3, Scheme::NaiveGrouped);
    for gear in 0..=3u8 {
        assert_eq!(power_down_count(&layout, gear), 24 * usize::from(3 - gear) / 3);
    }
}

#[test]
fn table_1_power_down_naive_random_is_r_minus_g() {
    // 12 servers are searched exactly, 24 greedily. With this many draws any r servers have a chunk group in
    // common.
    for (size, groups) in [(12, 5_000), (24, 60_000)] {
        let layout = layout(&servers(&[size]), 3, groups, 7, Scheme::NaiveRandom).unwrap();
        for gear in 1..=3 {
            assert_eq!(power_down_count(&layout, gear), usize::from(3 - gear));
        }
    }
}

#[test]
fn naive_random_over_racks_can_switch_off_r_minus_g_racks() {
    // "the naive random policy will still only be able to turn off r - g racks" [Sierra 3.3]
    let layout = layout(&servers(&[3; 4]), 3, 20_000, 7, Scheme::NaiveRandom).unwrap();
    for gear in 1..=3 {
        assert_eq!(power_down_count(&layout, gear), 3 * usize::from(3 - gear));
    }
}

#[test]
fn figure_4_exact_search_beats_greedy() {
    // A path: the middle server blocks both others; switched off first, it is the only one.
    let [middle, left, right] = [ServerId(0), ServerId(1), ServerId(2)];
    let mut layout = lay(&[3], 2, Scheme::NaiveRandom);
    layout.groups = vec![vec![left, middle], vec![middle, right]];
    assert_eq!(power_down(&layout, 1), [left, right]);
    let mut search = Search::new(&layout, 1);
    search.greedy();
    assert_eq!(search.best, [middle]);
}

#[test]
fn table_1_rebuild_parallelism() {
    // The paper counts the lost server as well: N/r = 12 and N = 36.
    let lost = ServerId(5);
    assert_eq!(rebuild_parallelism(&lay(&[6; 6], 3, Scheme::RackAligned), lost), 11);
    assert_eq!(rebuild_parallelism(&lay(&[6; 6], 3, Scheme::Rotated), lost), 11);
    assert_eq!(rebuild_parallelism(&lay(&[6; 6], 3, Scheme::NaiveRandom), lost), 35);
    assert_eq!(rebuild_parallelism(&lay(&[6; 6], 3, Scheme::NaiveGrouped), lost), 1);
}

#[test]
fn a_rebuild_runs_on_the_gear_group_also_with_as_many_racks_as_replicas() {
    for (sizes, replicas) in
        [(vec![5; 3], 3), (vec![3; 3], 3), (vec![8; 4], 4), (vec![6; 4], 3), (vec![2; 12], 3)]
    {
        let layout = lay(&sizes, replicas, Scheme::Rotated);
        let others = layout.servers.len() / usize::from(replicas) - 1;
        for lost in layout.servers.keys() {
            let takers = rebuild_parallelism(&layout, *lost);
            assert!(takers * 2 >= others, "{sizes:?}, {replicas} replicas, {lost}: {takers} of {others}");
        }
    }
    // The paper counts the lost server as well: N/r = 5.
    let layout = lay(&[5; 3], 3, Scheme::Rotated);
    assert!(layout.servers.keys().all(|lost| rebuild_parallelism(&layout, *lost) == 4));
}

/// Whether a replica of the group, other than the lost one, is in the rack of `id`.
fn shares_rack(layout: &Layout, group: &[ServerId], lost: ServerId, id: ServerId) -> bool {
    let rack = layout.servers[&id].rack;
    group.iter().any(|other| *other != lost && layout.servers[other].rack == rack)
}

#[test]
fn what_shares_a_rack_after_a_rebuild_is_parted_by_moving_one_replica_each() {
    for sizes in [vec![5; 3], vec![3; 3], vec![4; 4], vec![2; 9]] {
        let mut layout = lay(&sizes, 3, Scheme::Rotated);
        let lost = ServerId(1);
        let gear = usize::from(layout.servers[&lost].gear_group.0);
        let hit: Vec<usize> =
            (0..layout.groups.len()).filter(|g| layout.groups[*g].contains(&lost)).collect();
        let groups: Vec<Vec<ServerId>> = hit.iter().map(|g| layout.groups[*g].clone()).collect();
        let place = layout.servers.remove(&lost).unwrap();
        let mut load: BTreeMap<ServerId, u32> =
            layout.servers.keys().map(|id| (*id, held(&layout, *id) as u32)).collect();
        let chosen = rebuild_choice(lost, place.gear_group, &groups, &layout.servers, &load);
        for (group, replacement) in hit.into_iter().zip(chosen) {
            let replacement = replacement.unwrap();
            let shares = shares_rack(&layout, &layout.groups[group], lost, replacement);
            let slots = &mut layout.groups[group];
            slots[gear] = replacement;
            *load.get_mut(&replacement).unwrap() += 1;
            let moved = parting(slots, None, &layout.servers, &load);
            assert_eq!(moved.is_some(), shares, "racks {sizes:?}: {slots:?}");
            if let Some((k, to)) = moved {
                *load.get_mut(&slots[k]).unwrap() -= 1;
                *load.get_mut(&to).unwrap() += 1;
                slots[k] = to;
            }
            assert_eq!(parting(slots, None, &layout.servers, &load), None);
        }
        check(&layout, &sizes);
    }
}

#[test]
fn a_lost_server_is_rebuilt_evenly_in_its_gear_group_and_in_racks_apart() {
    let layout = lay(&[6; 6], 3, Scheme::Rotated);
    let lost = ServerId(8);
    let gear = layout.servers[&lost].gear_group;
    let groups: Vec<Vec<ServerId>> = layout.groups.iter().filter(|g| g.contains(&lost)).cloned().collect();
    let load: BTreeMap<ServerId, u32> =
        layout.servers.keys().map(|id| (*id, held(&layout, *id) as u32)).collect();
    let chosen = rebuild_choice(lost, gear, &groups, &layout.servers, &load);
    let mut after = load.clone();
    for (group, replacement) in groups.iter().zip(chosen) {
        let replacement = replacement.unwrap();
        assert!(!shares_rack(&layout, group, lost, replacement));
        let place = layout.servers[&replacement];
        assert_eq!(place.gear_group, gear);
        assert!(!group.contains(&replacement));
        let others = group.iter().filter(|id| **id != lost);
        assert!(others.into_iter().all(|id| layout.servers[id].rack != place.rack));
        *after.get_mut(&replacement).unwrap() += 1;
    }
    let counts: Vec<u32> = after
        .iter()
        .filter(|(id, _)| **id != lost && layout.servers[id].gear_group == gear)
        .map(|(_, count)| *count)
        .collect();
    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
}

#[test]
fn a_rebuild_shares_a_rack_before_it_gives_up_and_gives_up_without_a_server() {
    let nine = lay(&[3; 3], 3, Scheme::Rotated);
    let lost = ServerId(0);
    let gear = nine.servers[&lost].gear_group;
    let groups: Vec<Vec<ServerId>> = nine.groups.iter().filter(|g| g.contains(&lost)).cloned().collect();
    let chosen = rebuild_choice(lost, gear, &groups, &nine.servers, &BTreeMap::new());
    let shares = |(group, chosen): (&Vec<ServerId>, &Option<ServerId>)| {
        chosen.is_some_and(|chosen| shares_rack(&nine, group, lost, chosen))
    };
    assert!(!chosen.is_empty() && groups.iter().zip(&chosen).all(shares));

    let three = lay(&[1; 3], 3, Scheme::Rotated);
    let gear = three.servers[&lost].gear_group;
    let chosen = rebuild_choice(lost, gear, &three.groups, &three.servers, &BTreeMap::new());
    assert!(chosen.iter().all(Option::is_none));
}

#[test]
fn spreading_is_as_even_as_the_choices_allow() {
    let [a, b, c] = [ServerId(1), ServerId(2), ServerId(3)];
    // Taken in order, a and b would fill up before the items that have no other choice.
    let choices = vec![vec![a, b], vec![a, b], vec![a], vec![a], vec![b, c], vec![b, c], vec![]];
    let picked = spread(&choices, &BTreeMap::new());
    let count = |server| picked.iter().filter(|p| **p == Some(server)).count();
    assert_eq!((count(a), count(b), count(c)), (2, 2, 2));
    assert_eq!(picked[6], None);
    // A server's existing load counts.
    let picked = spread(&[vec![a, b], vec![a, b]], &BTreeMap::from([(a, 5)]));
    assert_eq!(picked, [Some(b), Some(b)]);
}

#[test]
fn spreading_at_random_is_optimal_against_brute_force() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut choices = Vec::new();
        for _ in 0..6 {
            let mut all: Vec<ServerId> = (0..4).map(ServerId).collect();
            random.shuffle(&mut all);
            all.truncate(1 + random.index(3));
            choices.push(all);
        }
        let load: BTreeMap<ServerId, u32> = (0..4).map(|id| (ServerId(id), random.below(3) as u32)).collect();
        let squares = |picked: &[ServerId]| {
            let mut load = load.clone();
            picked.iter().for_each(|id| *load.get_mut(id).unwrap() += 1);
            load.values().map(|count| count * count).sum::<u32>()
        };
        let mut best = u32::MAX;
        let combinations: usize = choices.iter().map(Vec::len).product();
        for mut code in 0..combinations {
            let mut picked = Vec::new();
            for options in &choices {
                picked.push(options[code % options.len()]);
                code /= options.len();
            }
            best = best.min(squares(&picked));
        }
        let picked: Vec<ServerId> = spread(&choices, &load).into_iter().flatten().collect();
        assert_eq!(squares(&picked), best, "seed {seed}: cargo test -p ebb-gear spreading_at_random");
    }
}

#[test]
fn what_cannot_be_laid_out_is_named_with_the_remedy() {
    let error = |sizes: &[usize], r, scheme| layout(&servers(sizes), r, 10, 0, scheme).unwrap_err();
    assert_eq!(error(&[3], 0, Scheme::Rotated), LayoutError::NoReplicas);
    assert_eq!(error(&[2], 3, Scheme::Rotated), LayoutError::TooFewServers { servers: 2, replicas: 3 });
    let few = error(&[3, 3], 3, Scheme::RackAligned);
    assert_eq!(few, LayoutError::TooFewRacks { racks: 2, replicas: 3 });
    assert!(few.to_string().contains("rotated"));
    let twice = Server { id: ServerId(4), rack: RackId(0) };
    let error = layout(&[twice, twice], 2, 10, 0, Scheme::Rotated).unwrap_err();
    assert_eq!(error, LayoutError::DuplicateServer { server: ServerId(4) });
    assert!("random".parse::<Scheme>().unwrap_err().to_string().contains("naive-random"));
    assert_eq!("rack-aligned".parse(), Ok(Scheme::RackAligned));
}

#[test]
fn a_thousand_servers_are_laid_out() {
    let sizes = [25; 40];
    let layout = lay(&sizes, 3, Scheme::Rotated);
    assert_eq!(layout.groups.len(), 64_000);
    for gear in 0..3 {
        let mut counts: BTreeMap<ServerId, usize> = BTreeMap::new();
        layout.groups.iter().for_each(|group| *counts.entry(group[gear]).or_default() += 1);
        assert!(counts.values().max().unwrap() - counts.values().min().unwrap() <= 1);
    }
}
