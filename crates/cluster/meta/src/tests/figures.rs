//! What the leader says of the cluster, against what the state says.

use super::*;

/// Counts every group, as a status did before it kept count.
fn counted(state: &State) -> (GroupCounts, BTreeMap<ServerId, (u32, u32)>) {
    let mut counts = GroupCounts::default();
    let mut duties: BTreeMap<ServerId, (u32, u32)> = BTreeMap::new();
    for (_, entry) in state.groups() {
        entry.primary.into_iter().for_each(|id| duties.entry(id).or_default().0 += 1);
        let holders = entry.slots.iter().filter_map(|slot| slot.holder);
        holders.flat_map(|h| h.servers()).for_each(|id| duties.entry(id).or_default().1 += 1);
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
    fn plan(&mut self) -> GearPlan {
        self.admin(AdminRequest::GearPlan);
        match self.answer.take() {
            Some(MetaReply::Admin(AdminReply::Plan(plan))) => *plan,
            other => panic!("{other:?}"),
        }
    }

    fn is_in_trough(&mut self) -> bool {
        self.admin(AdminRequest::Trough);
        match self.answer.take() {
            Some(MetaReply::Admin(AdminReply::Trough(is_in_trough))) => is_in_trough,
            other => panic!("{other:?}"),
        }
    }

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
    // To the end of the hour.
    world.run(10_000);
    assert!(world.plan().hours.iter().all(|hour| hour.band.is_none()), "nothing is known");
    for second in 0..60 {
        world.load.random_reads = if (13..17).contains(&(second % 20)) { 600 } else { 200 };
        world.run(1000);
    }
    let plan = world.plan().hours;
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
fn a_plan_says_what_its_gears_follow_from() {
    let mut world = World::new(9, 3, 36);
    let schedule = Schedule { hour_millis: 10_000, hours_per_day: 2, rotate_days: 3, ..Schedule::default() };
    world.admin(AdminRequest::SetSchedule(schedule));
    let fresh = world.plan();
    assert_eq!((fresh.servers, fresh.replicas, fresh.lowest_gear, fresh.dwell_millis), (9, 3, 1, 10_000));
    assert_eq!((fresh.hours_recorded, fresh.schedule), (0, schedule));
    let nothing = |hour: &PlannedHour| {
        (hour.last_peak, hour.days, hour.mean_peak, hour.gear_by_formula) == (None, 0, None, None)
    };
    assert!(fresh.hours.iter().all(nothing), "{fresh:?}");
    // Standby, as long as nothing is measured: the schedule's minute, cut to an hour.
    let untold = Lead { depth: Some(Depth::Standby), millis: 10_000, from: LeadFrom::Schedule };
    assert_eq!(fresh.leads, [untold]);
    world.run(10_000);
    for second in 0..60 {
        let busy = (13..17).contains(&(second % 20));
        // Four or one server's worth of operations; half a server's of bytes.
        world.load.random_reads = if busy { 800 } else { 200 };
        world.load.read_bytes = 50_000_000;
        world.run(1000);
    }
    let plan = world.plan();
    let now = plan.load_now.unwrap();
    assert_eq!(now.rules, Some(LoadTerm::Random), "{now:?}");
    for hour in &plan.hours {
        let same = world.state.hours().filter(|past| past.hour % 2 == hour.hour % 2);
        let peaks: Vec<&HourRecord> = same.collect();
        let newest = peaks.last().unwrap();
        assert_eq!(hour.last_peak, Some(MeasuredLoad::new(newest.peak_load, newest.terms)));
        let terms = newest.terms.expect("the terms of each hour's peak are recorded");
        assert!(terms.random > terms.streaming && terms.load() == newest.peak_load, "{newest:?}");
        assert!((0.2..0.8).contains(&terms.streaming), "{newest:?}");
        assert_eq!(hour.days as usize, peaks.len());
        let mean = peaks.iter().map(|past| past.peak_load).sum::<f64>() / peaks.len() as f64;
        assert!((hour.mean_peak.unwrap() - mean).abs() < 1e-9, "{hour:?}");
        let formula = (hour.forecast.unwrap() / 3.0).ceil() as u32;
        assert_eq!(hour.gear_by_formula, Some(formula));
        assert!(u32::from(hour.gear) >= formula, "constraints only raise it here: {hour:?}");
        assert_eq!(hour.turn, [GearGroup((hour.hour / 6 % 3) as u8)]);
    }
    let ends = plan.turn_ends_unix_millis.unwrap();
    assert_eq!(ends % 60_000, 0, "three days of two hours");
    assert!((1..=60_000).contains(&(ends - plan.hours[0].from_unix_millis)), "{plan:?}");
}

#[test]
fn a_lead_says_how_many_wake_ups_it_was_measured_from() {
    let wakes = |plan: GearPlan| match plan.leads[..] {
        [Lead { depth: Some(Depth::Standby), millis, from }] => match from {
            LeadFrom::Measured { wakes, wake_millis, catch_up_millis } => {
                assert_eq!(millis, wake_millis + catch_up_millis);
                wakes
            }
            _ => 0,
        },
        _ => panic!("one depth is configured: {plan:?}"),
    };
    let mut world = in_gear_1();
    let before = wakes(world.plan());
    world.gear(3);
    world.run(6000);
    assert_eq!(wakes(world.plan()), before + 6);
}

#[test]
fn whole_gears_have_the_lead_of_the_schedule() {
    let mut world = after_a_quiet_hour_of(GearSteps::Groups, 2000);
    assert_eq!(world.plan().leads, [Lead { depth: None, millis: 0, from: LeadFrom::Schedule }]);
}

/// Three days, each of two servers' worth before noon and of twelve after it.
fn three_days(steps: GearSteps) -> GearPlan {
    let hour = |hour: u64| (hour, if hour % 24 < 12 { 2.0 } else { 12.0 });
    let peaks: Vec<(u64, f64)> = (0..72).map(hour).collect();
    let founded = bootstrap(15, 3, 60, ebb_gear::Scheme::Rotated);
    let schedule = Schedule { steps, lead_millis: 60_000, ..founded.schedule };
    plan_after(Bootstrap { schedule, ..founded }, Timing::default(), &peaks).unwrap()
}

#[test]
fn a_cluster_that_does_not_run_is_planned_by_a_series() {
    for steps in [GearSteps::Servers, GearSteps::Groups] {
        let plan = three_days(steps);
        assert_eq!((plan.hours.len(), plan.hours_recorded, plan.load_now), (24, 72, None));
        assert!(plan.hours.iter().map(|hour| hour.hour).eq(72..96), "from the hour after the last one");
        for hour in &plan.hours {
            assert_eq!((hour.days, hour.awake.len() + hour.asleep.len()), (3, 15));
            assert_eq!(hour.last_peak.unwrap().terms, None, "a series has one number");
            assert_eq!(hour.band.is_some(), steps == GearSteps::Servers);
        }
        let [night, noon] = [&plan.hours[0], &plan.hours[15]];
        assert_eq!((night.mean_peak, noon.mean_peak), (Some(2.0), Some(12.0)));
        assert!(night.awake.len() <= 8 && noon.awake.len() >= 12, "{steps:?}: {night:?} {noon:?}");
        assert_eq!((night.gear_by_formula, noon.gear_by_formula), (Some(1), Some(3)));
        // Not that of the hour before, which was busy.
        assert!(night.band.is_none_or(|band| band.high < 6.0), "{night:?}");
    }
}

#[test]
fn the_load_is_in_a_trough_while_nothing_shifts_and_no_copies_are_missing() {
    let mut world = in_gear_1();
    assert!(!world.status().gear.shifting && world.is_in_trough(), "an administrator set it");
    world.gear(2);
    assert!(!world.is_in_trough(), "it shifts");
    world.run(10_000);
    assert!(!world.status().gear.shifting && world.is_in_trough(), "no hour is to have fewer awake");
    let awake = world.states().find('A').expect("two gear groups are awake");
    world.crash(awake as u16);
    world.run(6000);
    assert!(world.status().gear.emergency && !world.is_in_trough());
}

#[test]
fn the_load_is_in_no_trough_while_more_is_awake_than_an_hour_to_come_needs() {
    let mut world = after_a_quiet_hour(2000);
    assert!(world.is_in_trough());
    for _ in 0..4 {
        world.load.random_reads = 1700;
        world.run(1000);
    }
    assert!(!world.is_in_trough(), "{:?}", world.plan().hours);
}

#[test]
fn without_an_hour_nothing_is_planned() {
    let founded = bootstrap(9, 3, 36, ebb_gear::Scheme::Rotated);
    assert!(plan_after(founded, Timing::default(), &[]).is_err());
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
