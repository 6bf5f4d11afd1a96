//! The parts together: a pair of disks under synthetic loads.

use super::*;
use crate::{Adaptive, Parts, PolicyKind};
use ebb_types::Random;
use std::collections::VecDeque;

const EPOCH: Duration = Duration::from_secs(3);
/// A change takes 7 s: it ends in the third epoch after it began.
const CHANGE_EPOCHS: u32 = 3;

/// Requests per epoch of the pair: reads go where the policy says, writes to both disks.
#[derive(Clone, Copy, Debug)]
struct Load {
    reads: u32,
    writes: u32,
}

/// Plays the disks of [LogStore Table 1] with 4 ms of seek and 0.1 ms of transfer at high speed. Appends take a tenth
/// of a turn and no seek.
struct World {
    pair: Pair,
    logs: [LogFill; 2],
    left: [u32; 2],
    /// Changes of speed and of mode, by epoch.
    history: Vec<[Decision; 2]>,
}

impl World {
    fn new(settings: &Settings, speed: Speed) -> World {
        settings.check().unwrap();
        let logs = [LogFill::Empty; 2];
        let pair = Pair::new(settings, [DiskFacts::default(); 2], [speed; 2], logs);
        World { pair, logs, left: [0; 2], history: Vec::new() }
    }

    fn serve(&mut self, side: Side, access: Access) {
        assert!(!self.pair.is_changing(side), "it serves nothing");
        let is_append = access == Access::Write && self.pair.mode(side) == Mode::Log;
        let turned = if self.pair.speed(side) == Speed::Low { DiskFacts::default().slowdown } else { 1.0 };
        let millis = |millis: f64| Duration::from_secs_f64(millis / 1000.0);
        let (seek, rotation) = if is_append { (0.0, 0.6) } else { (4.0, 3.0) };
        let parts =
            Parts { seek: millis(seek), rotation: millis(turned * rotation), transfer: millis(turned * 0.1) };
        if is_append {
            self.logs[side.index()] = LogFill::Partial;
        }
        let spent = Spent { parts };
        self.pair.record(side, access, 1, spent);
        self.pair.waited(1, spent.total(), 1);
    }

    fn epoch(&mut self, load: Load) -> [Decision; 2] {
        for side in Side::BOTH {
            let left = &mut self.left[side.index()];
            *left = left.saturating_sub(1);
            if *left == 0 && self.pair.is_changing(side) {
                self.pair.changed(side, true);
            }
            for _ in 0..load.writes {
                if !self.pair.is_changing(side) {
                    self.serve(side, Access::Write);
                }
            }
            if self.pair.may_replay(side) {
                self.logs[side.index()] = LogFill::Empty;
            }
        }
        for _ in 0..load.reads {
            let side = self.pair.choose([true; 2]).expect("one disk at a time changes");
            self.serve(side, Access::Read);
        }
        let decisions = self.pair.end_epoch(EPOCH, self.logs, true);
        for side in Side::BOTH {
            if decisions[side.index()].speed.is_some() {
                self.left[side.index()] = CHANGE_EPOCHS;
            }
        }
        self.history.push(decisions);
        decisions
    }

    fn epochs(&mut self, count: usize, load: Load) {
        for _ in 0..count {
            self.epoch(load);
        }
    }

    fn speeds(&self) -> [Speed; 2] {
        Side::BOTH.map(|side| self.pair.speed(side))
    }

    fn modes(&self) -> [Mode; 2] {
        Side::BOTH.map(|side| self.pair.mode(side))
    }

    fn changes(&self, side: Side) -> usize {
        self.history.iter().filter(|decisions| decisions[side.index()].speed.is_some()).count()
    }
}

fn kind(kind: PolicyKind) -> Settings {
    Settings { kind, ..Settings::default() }
}

const IDLE: Load = Load { reads: 0, writes: 0 };

#[test]
fn idle_disks_go_down_one_after_the_other() {
    for policy in [PolicyKind::LogStore, PolicyKind::TwoSpeed] {
        let mut world = World::new(&kind(policy), Speed::High);
        let first = world.epoch(IDLE);
        assert_eq!(first.map(|decision| decision.speed), [None, Some(Speed::Low)], "the one without reads");
        world.epochs(CHANGE_EPOCHS as usize, IDLE);
        assert!(world.pair.is_changing(Side::A), "as soon as the other is back");
        world.epochs(CHANGE_EPOCHS as usize + 1, IDLE);
        assert_eq!(world.speeds(), [Speed::Low; 2]);
        assert_eq!(world.modes(), [Mode::Regular; 2], "with nothing to log");
    }
}

#[test]
fn div_keeps_the_disk_with_the_reads_at_high_speed_and_the_other_follows_the_writes() {
    for from in [Speed::High, Speed::Low] {
        let mut world = World::new(&kind(PolicyKind::Div), from);
        world.epochs(30, IDLE);
        assert_eq!(world.speeds(), [Speed::High, Speed::Low], "idle, from {from:?}");
        assert_eq!(Side::BOTH.map(|side| world.pair.low_speed_limit(side)), [None, Some(0.3)]);
        // 72 % of an epoch at low speed.
        world.epochs(30, Load { reads: 0, writes: 150 });
        assert_eq!(world.speeds(), [Speed::High; 2], "from {from:?}");
        world.epochs(60, IDLE);
        assert_eq!(world.speeds(), [Speed::High, Speed::Low], "idle again, from {from:?}");
        assert!(world.changes(Side::A) <= 1, "up at the most");
    }
}

/// 100 reads and 50 writes of 7.1 ms: 23.7 % and 11.8 % of an epoch.
#[test]
fn a_disk_sleeps_while_the_other_one_can_serve_all_reads() {
    let awake_shortest = 20 * EPOCH;
    let sleep = Sleep { awake_shortest, ..Sleep::default() };
    let settings = Settings { sleep: Some(sleep), ..kind(PolicyKind::TwoSpeed) };
    let mut calm = World::new(&settings, Speed::High);
    calm.epochs(19, Load { reads: 30, writes: 50 });
    assert_eq!(calm.changes(Side::A) + calm.changes(Side::B), 0, "it is not awake for long enough");
    calm.epoch(Load { reads: 30, writes: 50 });
    assert_eq!(calm.changes(Side::A) + calm.changes(Side::B), 1);
    let mut busy = World::new(&settings, Speed::High);
    busy.epochs(100, Load { reads: 100, writes: 50 });
    assert_eq!(busy.changes(Side::A) + busy.changes(Side::B), 0, "one disk would be busy 36 %");
    let at_low = Side::BOTH.map(|side| busy.pair.at_low(side).unwrap());
    assert!(at_low.iter().any(|util| (util - 0.355).abs() < 0.02), "{at_low:?}");
    assert_eq!(Side::BOTH.map(|side| busy.pair.low_speed_limit(side)), [Some(0.3); 2]);
}

/// 150 writes of 14.3 ms are 72 % of an epoch in their places at low speed, and 12 % in the log.
#[test]
fn the_log_keeps_disks_at_low_speed_where_two_speeds_alone_do_not() {
    let load = Load { reads: 0, writes: 150 };
    let mut logstore = World::new(&kind(PolicyKind::LogStore), Speed::Low);
    let mut two_speed = World::new(&kind(PolicyKind::TwoSpeed), Speed::Low);
    for world in [&mut logstore, &mut two_speed] {
        world.epochs(100, load);
    }
    let first = two_speed.history.iter().flat_map(|both| both.map(|decision| decision.speed.is_some()));
    assert_eq!(
        first.into_iter().position(|changes| changes).map(|at| at % 2),
        Some(0),
        "the one with the reads"
    );
    assert_eq!((logstore.speeds(), logstore.modes()), ([Speed::Low; 2], [Mode::Log; 2]));
    assert_eq!(logstore.changes(Side::A) + logstore.changes(Side::B), 0);
    assert_eq!((two_speed.speeds(), two_speed.modes()), ([Speed::High; 2], [Mode::Regular; 2]));
    logstore.epochs(100, Load { reads: 0, writes: 20 });
    assert_eq!((logstore.modes(), logstore.logs), ([Mode::Regular; 2], [LogFill::Empty; 2]), "replayed");
}

#[test]
fn reads_go_to_one_disk_at_high_speed_and_the_other_stays_low() {
    for policy in [PolicyKind::LogStore, PolicyKind::TwoSpeed, PolicyKind::Div] {
        let mut world = World::new(&kind(policy), Speed::Low);
        world.epochs(100, Load { reads: 200, writes: 0 });
        assert_eq!(world.speeds(), [Speed::High, Speed::Low], "{policy:?}");
        let changes = world.changes(Side::A) + world.changes(Side::B);
        assert_eq!(
            changes, 1,
            "{policy:?}: the other does not follow for the reads that it serves meanwhile"
        );
        assert_eq!(world.pair.utilisation(Side::B).map(|util| util < 0.01), Some(true));
    }
}

#[test]
fn one_speed_never_goes_down() {
    let mut world = World::new(&kind(PolicyKind::OneSpeed), Speed::High);
    for load in [IDLE, Load { reads: 300, writes: 100 }, IDLE] {
        world.epochs(50, load);
    }
    assert_eq!((world.speeds(), world.changes(Side::A)), ([Speed::High; 2], 0));
}

/// 10 writes are 2.4 % at high and 4.8 % at low speed; what is recorded while a disk changes is 6 %.
#[test]
fn an_epoch_in_which_a_disk_could_not_serve_all_the_time_is_no_observation() {
    let mut world = World::new(&kind(PolicyKind::TwoSpeed), Speed::High);
    world.epoch(Load { reads: 0, writes: 10 });
    assert!(world.pair.is_changing(Side::B));
    let spent = Spent { parts: Parts { seek: Duration::from_millis(180), ..Parts::default() } };
    let mut next = |ends: bool| {
        if ends {
            world.pair.changed(Side::B, true);
        }
        let before = Side::BOTH.map(|side| world.pair.utilisation(side));
        Side::BOTH.iter().for_each(|side| world.pair.record(*side, Access::Write, 1, spent));
        world.pair.end_epoch(EPOCH, world.logs, false);
        let after = Side::BOTH.map(|side| world.pair.utilisation(side));
        [0, 1].map(|side| before[side] != after[side])
    };
    assert_eq!(next(false), [false; 2]);
    assert_eq!(next(true), [false; 2], "it changed in a part of this epoch");
    assert_eq!(next(false), [false, true], "the filter drops what is more than twice as much for the first");
    assert_eq!(next(false), [true; 2]);
}

#[test]
fn the_log_is_replayed_in_its_mode_while_there_is_little_traffic() {
    let settings = kind(PolicyKind::LogStore);
    let replays = |log_of_b: LogFill, writes| {
        let mut world = World::new(&settings, Speed::Low);
        let logs = [LogFill::Partial, log_of_b];
        world.pair = Pair::new(&settings, [DiskFacts::default(); 2], [Speed::Low; 2], logs);
        assert!(!world.pair.may_replay(Side::A), "nothing is known yet");
        for side in Side::BOTH {
            (0..writes).for_each(|_| world.serve(side, Access::Write));
        }
        world.pair.disks.iter_mut().for_each(|disk| disk.measure(EPOCH, LogFill::Partial));
        Side::BOTH.map(|side| world.pair.may_replay(side))
    };
    assert_eq!(replays(LogFill::Empty, 60), [true, false]);
    assert_eq!(replays(LogFill::Partial, 60), [true; 2]);
    assert_eq!(replays(LogFill::Partial, 70), [false; 2]);
}

#[test]
fn writes_beside_a_full_log_do_not_teach_what_log_mode_is_like() {
    let thresholds = Thresholds { go_up: 0.8, ..Thresholds::default() };
    let mut world = World::new(&Settings { thresholds, ..Settings::default() }, Speed::Low);
    world.epochs(5, Load { reads: 0, writes: 150 });
    assert_eq!(world.modes(), [Mode::Log; 2]);
    let beside = Spent { parts: Parts { seek: Duration::from_millis(10), ..Parts::default() } };
    world.pair.record(Side::A, Access::Write, 1, beside);
    world.pair.end_epoch(EPOCH, [LogFill::Full; 2], true);
    assert_eq!(world.modes(), [Mode::Regular; 2]);
    world.epoch(Load { reads: 0, writes: 150 });
    // 2 ms of rotation and a third of transfer; in its place, 4 ms of seek and 10 ms of rotation.
    let outlook = world.pair.disks[0].outlook().unwrap();
    assert!((outlook.low_log / outlook.now - 7.0 / 43.0).abs() < 1e-6, "{outlook:?}");
}

#[test]
fn reads_are_concentrated_from_balance_on() {
    for (balance, is_spread) in [(0.6, true), (0.3, false)] {
        let mut world = World::new(&kind(PolicyKind::LogStore), Speed::Low);
        world.pair.thresholds.balance = balance;
        world.epochs(2, Load { reads: 90, writes: 0 });
        let chosen = [0; 2].map(|_| world.pair.choose([true; 2]));
        assert_eq!(chosen[0] != chosen[1], is_spread, "43 % in sum");
    }
}

#[test]
fn a_failed_change_leaves_what_was() {
    let mut world = World::new(&kind(PolicyKind::LogStore), Speed::High);
    world.epoch(Load { reads: 0, writes: 10 });
    let before = 10.0 * 0.0071 / 3.0;
    assert!((world.pair.utilisation(Side::B).unwrap() - before).abs() > 0.01, "of log mode");
    assert_eq!(world.pair.changed(Side::B, false), Some(Mode::Regular));
    assert!((world.pair.utilisation(Side::B).unwrap() - before).abs() < 1e-6);
    assert_eq!(world.pair.speed(Side::B), Speed::High);
    assert!(!world.pair.is_changing(Side::B));
}

#[test]
fn no_speed_changes_while_a_disk_cannot_serve_alone() {
    let mut world = World::new(&kind(PolicyKind::LogStore), Speed::High);
    for _ in 0..20 {
        let decisions = world.pair.end_epoch(EPOCH, world.logs, false);
        assert_eq!(decisions, [Decision::default(); 2]);
    }
}

fn adaptive(adaptive: Adaptive) -> Settings {
    Settings { adaptive: Some(adaptive), ..Settings::default() }
}

#[test]
fn a_generous_limit_keeps_disks_low_and_a_tight_one_makes_them_fast() {
    let load = Load { reads: 110, writes: 30 };
    let speeds = |settings: &Settings| {
        let mut world = World::new(settings, Speed::Low);
        world.epochs(4000, load);
        world.speeds()
    };
    let limit = |millis| {
        let response_limit = Duration::from_millis(millis);
        adaptive(Adaptive { response_limit, ..Adaptive::default() })
    };
    assert_eq!(speeds(&Settings::default()), [Speed::High, Speed::Low]);
    assert_eq!(speeds(&limit(200)), [Speed::Low; 2]);
    assert_eq!(speeds(&limit(2)), [Speed::High; 2]);
}

/// The load swings as fast as changes can follow: the paper's policy would wear the disk out.
#[test]
fn the_wear_budget_refuses_the_trip_that_would_exceed_it() {
    let rules = Adaptive { response_limit: Duration::from_secs(1), cycles_at_once: 6, ..Adaptive::default() };
    // GoUp cannot rise.
    let thresholds = Thresholds { saturated: 0.5, ..Thresholds::default() };
    let fixed = Settings { thresholds, ..Settings::default() };
    let count = |settings: &Settings| {
        let mut world = World::new(settings, Speed::Low);
        for _ in 0..200 {
            world.epochs(25, Load { reads: 280, writes: 100 });
            world.epochs(25, IDLE);
        }
        [world.changes(Side::A), world.changes(Side::B)]
    };
    let seconds = 200 * 50 * 3;
    let allowed = 6 + seconds * 200_000 / (365 * 86_400);
    assert!(count(&fixed).iter().any(|changes| *changes > allowed));
    let changes = count(&Settings { thresholds, ..adaptive(rules) });
    assert!(changes.iter().all(|changes| *changes <= allowed), "{changes:?} of {allowed}");
    assert!(changes.iter().any(|changes| *changes > allowed / 2), "{changes:?} of {allowed}");
}

/// Rules that hold under any load, with any outcome of a change.
#[test]
fn whatever_happens_one_disk_serves_and_changes_keep_their_distance() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let kinds = [PolicyKind::LogStore, PolicyKind::TwoSpeed, PolicyKind::Div, PolicyKind::OneSpeed];
        let rules =
            Adaptive { response_limit: Duration::from_millis(random.between(1, 60)), ..Adaptive::default() };
        let settings = Settings {
            kind: kinds[random.index(4)],
            adaptive: random.chance(500).then_some(rules),
            ..Settings::default()
        };
        let speed = if random.chance(500) { Speed::Low } else { Speed::High };
        let mut world = World::new(&settings, speed);
        let mut quiet = [u32::MAX; 2];
        let mut recent: VecDeque<Load> = VecDeque::new();
        for epoch in 0..300 {
            let busy = random.below(400) as u32;
            let swing = Load { reads: random.below(u64::from(busy) + 1) as u32, writes: busy / 3 };
            recent.push_front(swing);
            recent.truncate(10);
            let load = recent[random.index(recent.len())];
            let context = format!("seed {seed}, epoch {epoch}, {settings:?}");
            if random.chance(50) {
                world.logs[random.index(2)] = LogFill::Full;
            }
            for side in Side::BOTH {
                if world.pair.is_changing(side) && random.chance(100) {
                    world.pair.changed(side, false);
                }
            }
            let decisions = world.epoch(load);
            assert!(!Side::BOTH.iter().all(|side| world.pair.is_changing(*side)), "{context}");
            for side in Side::BOTH {
                let (decision, quiet) = (decisions[side.index()], &mut quiet[side.index()]);
                let was_changing = world.pair.is_changing(side) && decision.speed.is_none();
                *quiet = if was_changing { 0 } else { quiet.saturating_add(1) };
                if decision.speed.is_some() {
                    assert!(*quiet > 3, "{context}: {side:?} changes {quiet} epochs after the last time");
                    *quiet = 0;
                }
                let is_settled = world.pair.is_changing(side) || world.pair.speed(side) == Speed::Low;
                assert!(
                    world.pair.mode(side) != Mode::Log || is_settled,
                    "{context}: {side:?} logs at high speed"
                );
                let has_log = settings.kind == PolicyKind::LogStore;
                assert!(has_log || world.pair.mode(side) != Mode::Log, "{context}");
                let util = world.pair.utilisation(side).expect("an epoch has passed");
                assert!((0.0..=1.0).contains(&util), "{context}: {util}");
            }
        }
    }
}
