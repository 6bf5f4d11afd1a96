//! What the leader says of the cluster, against what the state says.

use super::*;

/// Counts every group, as a status did before it kept count.
fn counted(state: &State) -> (GroupCounts, BTreeMap<ServerId, (u32, u32)>) {
    let mut counts = GroupCounts::default();
    let mut duties: BTreeMap<ServerId, (u32, u32)> = BTreeMap::new();
    for (_, entry) in state.groups() {
        entry.primary.into_iter().for_each(|id| duties.entry(id).or_default().0 += 1);
        let holders = entry.slots.iter().filter_map(|slot| slot.holder);
        holders.for_each(|holder| duties.entry(holder.server).or_default().1 += 1);
        let any = |what: fn(&Slot) -> bool| u32::from(entry.slots.iter().any(what));
        let racks: Vec<_> = entry.targets().map(|id| state.server(id).unwrap().rack).collect();
        counts.total += 1;
        counts.in_sync += u32::from(entry.is_in_sync());
        counts.away += any(|s| matches!(s.state, SlotState::Away { .. }));
        counts.catching_up += any(|s| matches!(s.state, SlotState::CatchingUp { .. }));
        counts.without_primary += u32::from(entry.primary.is_none());
        counts.not_served += u32::from(entry.primary.is_none()); // no server says more
        counts.without_target += any(|s| s.target().is_none());
        counts.at_risk +=
            any(|s| matches!(s.state, SlotState::Away { .. }) && s.holder.is_some_and(|h| !h.covered));
        counts.sharing_rack += u32::from(racks.iter().collect::<BTreeSet<_>>().len() < racks.len());
        counts.newest_epoch = counts.newest_epoch.max(entry.epoch);
    }
    (counts, duties)
}

impl World {
    /// Returns the counts.
    fn assert_counted(&mut self) -> GroupCounts {
        let status = self.status();
        let (counts, duties) = counted(&self.state);
        assert_eq!(status.groups, counts);
        for server in status.servers {
            let (primaries, holders) = duties.get(&server.id).copied().unwrap_or_default();
            assert_eq!((server.primaries, server.holder_of), (primaries, holders), "{}", server.id);
        }
        counts
    }

    /// Lets eight seconds pass, and returns the counts of each 200 ms.
    fn watch_counts(&mut self) -> Vec<GroupCounts> {
        let mut seen = Vec::new();
        for _ in 0..40 {
            self.run(200);
            seen.push(self.assert_counted());
        }
        seen
    }
}

#[test]
fn a_status_counts_what_the_map_says_through_shifts_failures_and_a_new_leader() {
    let mut world = started();
    world.assert_counted();
    world.gear(1);
    let mut seen = world.watch_counts();
    // Those that come back catch up, and for a while do not end.
    world.reclaim = false;
    world.gear(3);
    seen.extend(world.watch_counts());
    world.reclaim = true;
    seen.extend(world.watch_counts());
    assert_eq!(world.status().groups.in_sync, 36);
    // One of those that are awake fails, and no sleeper wakes: other holders take its place, and for a while have not
    // what it had.
    world.gear(2);
    seen.extend(world.watch_counts());
    let awake = world.state.servers().filter(|e| e.state.is_live()).map(|e| e.id.0);
    let failing: Vec<u16> = awake.skip(1).collect();
    (world.failing_wakes, world.reclaim) = (1000, false);
    world.crash(failing[0]);
    seen.extend(world.watch_counts());
    // Then all but one.
    world.reclaim = true;
    failing[1..].iter().for_each(|id| world.crash(*id));
    seen.extend(world.watch_counts());
    world.lead();
    seen.push(world.assert_counted());
    for (what, of) in [
        ("away", (|c| c.away) as fn(&GroupCounts) -> u32),
        ("catching up", |c| c.catching_up),
        ("without a primary", |c| c.without_primary),
        ("without a target", |c| c.without_target),
        ("at risk", |c| c.at_risk),
    ] {
        assert!(seen.iter().any(|counts| of(counts) > 0), "no group was ever {what}");
    }
}

#[test]
fn debt_is_as_old_as_the_absence_of_the_longest_away() {
    let mut world = started();
    assert!(world.status().servers.iter().all(|s| s.debt_since_unix_millis.is_none()), "no server is away");
    world.run(20_000);
    let began = world.unix_now();
    world.gear(1);
    world.run(6000);
    let since = |world: &mut World| -> BTreeSet<Option<u64>> {
        world.status().servers.iter().map(|s| s.debt_since_unix_millis).collect()
    };
    let first = since(&mut world);
    let known: Vec<u64> = first.iter().flatten().copied().collect();
    assert!(!known.is_empty() && known.iter().all(|at| (began..began + 6000).contains(at)), "{known:?}");
    world.run(60_000);
    assert_eq!(since(&mut world), first, "it keeps its age, and does not start over");
    // A new leader knows from the record when each went to sleep.
    let now = world.unix_now();
    world.lead_at(now);
    world.run(1000);
    let known: Vec<u64> = since(&mut world).into_iter().flatten().collect();
    assert!(!known.is_empty() && known.iter().all(|at| (began..began + 6000).contains(at)), "{known:?}");
    world.gear(3);
    world.run(10_000);
    assert!(world.status().servers.iter().all(|s| s.debt_since_unix_millis.is_none()), "all is paid");
}

#[test]
fn a_plan_says_between_which_loads_the_peaks_lie_once_a_day_was_seen() {
    let mut world = World::new(9, 3, 36);
    let schedule = Schedule { hour_millis: 10_000, hours_per_day: 2, lead_millis: 0, ..Schedule::default() };
    world.admin(AdminRequest::SetSchedule(schedule));
    let plan = |world: &mut World| {
        world.admin(AdminRequest::GearPlan);
        match world.answer.take() {
            Some(MetaReply::Admin(AdminReply::Plan(plan))) => plan,
            other => panic!("{other:?}"),
        }
    };
    // To the end of the hour.
    world.run(10_000);
    assert!(plan(&mut world).iter().all(|hour| hour.band.is_none()), "nothing is known");
    for second in 0..60 {
        world.load.random_reads = if (13..17).contains(&(second % 20)) { 600 } else { 200 };
        world.run(1000);
    }
    let plan = plan(&mut world);
    assert_eq!(plan.len(), 2);
    for hour in &plan {
        let band = hour.band.unwrap();
        let alike = world.state.hours().filter(|past| past.hour % 2 == hour.hour % 2);
        let usual = alike.map(|past| past.peak_load).next_back().unwrap();
        assert!((band.low..band.high).contains(&usual), "{usual} of {plan:?}");
    }
    let [quiet, busy] = [&plan[0], &plan[1]].map(|hour| hour.band.unwrap());
    assert!(busy.low > quiet.low && busy.high > quiet.high, "each hour has its own: {plan:?}");
}

#[test]
fn latency_is_that_of_all_servers_together() {
    let mut world = started();
    world.run(30_000);
    let quiet = world.status().latency.unwrap();
    assert_eq!((quiet.reads, quiet.writes), (None, None), "no request has no latency");
    for second in 0..32 {
        // One second in nine is slow.
        world.latency = Duration::from_millis(if second % 9 == 8 { 500 } else { 1 });
        world.run(1000);
    }
    let reads = world.status().latency.unwrap().reads.unwrap();
    assert!(reads.count > 200 && reads.p50_millis < 1.1 && reads.p99_millis > 499.0, "{reads:?}");
}
