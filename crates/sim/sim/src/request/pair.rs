//! A server's disk that is a mirror of two two-speed disks (LogStore), in the cluster's virtual time.
//!
//! The mirror is the production one ([`ebb_mirror::Mirror`]), with its policy, logs, marks and superblocks; its disks
//! are modelled ones, each with a queue of its own, as in [`mirror`](crate::mirror).
//!
//! - The store's accesses are requests of the mirror, rounded outward to blocks. Reads and writes of chunk files are
//!   handed over at once; of group commits, which are durable writes, one is in progress at a time, as each follows the
//!   last. What is scattered over a chunk is written block by block, one after another.
//! - Background work is handed over while the mirror has nothing else to do, one job at a time.
//! - A server that sleeps suspends its mirror: memory stays, the disks stop. So a pair's clock stands still meanwhile,
//!   and a change of speed or an epoch continues when the server wakes, at the speed that the disks had.
//!
//! Left out: the kernel's reordering of accesses, the writes of the file system for itself, failures, and the start of
//! a mirror after a crash.

use crate::mirror::disk::{Disk, Zeroes};
use crate::mirror::run::new_mirror;
use crate::request::disk::Access;
use ebb_mirror::{
    BLOCK_BYTES, Command, Energy, Event, Geometry, Mirror, Reply, Request, Settings, Speed, Spent,
    TwoSpeedModel,
};
use ebb_types::{Bug, Joules, Moment, Random};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{AddAssign, Sub};
use std::time::Duration;

/// A job that the mirror carries out.
struct Running {
    job: u32,
    access: Access,
    durable: bool,
    /// Parts handed over.
    parts: u32,
}

pub struct Pair {
    model: TwoSpeedModel,
    geometry: Geometry,
    chunk_bytes: u64,
    mirror: Mirror,
    disks: [Disk; 2],
    wake: Option<Moment>,
    zeroes: Zeroes,
    out: Vec<Command>,
    foreground: VecDeque<u32>,
    background: VecDeque<u32>,
    /// The background job in progress.
    behind: Option<u32>,
    /// By request of the mirror.
    running: BTreeMap<u64, Running>,
    next: u64,
    /// Jobs that ended in the present step.
    ended: Vec<u32>,
    /// Nanoseconds asleep so far, and since when the server sleeps.
    slept: u64,
    asleep: Option<u64>,
    /// What each disk's accesses at low speed would have taken at high speed.
    at_high: [Duration; 2],
}

/// Time and energy of a pair while its server was awake. Seconds are those of both disks together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    pub taken: Joules,
    /// The same accesses on disks that are always at high speed.
    pub one_speed: Joules,
    pub seconds: f64,
    pub low_seconds: f64,
    /// Busy time of the same accesses at high speed.
    pub work_seconds: f64,
    /// Changes of speed, by side.
    pub changes: [u64; 2],
}

impl Sub for Account {
    type Output = Account;
    fn sub(self, before: Account) -> Account {
        Account {
            taken: self.taken - before.taken,
            one_speed: self.one_speed - before.one_speed,
            seconds: self.seconds - before.seconds,
            low_seconds: self.low_seconds - before.low_seconds,
            work_seconds: self.work_seconds - before.work_seconds,
            changes: [0, 1].map(|n| self.changes[n] - before.changes[n]),
        }
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        self.taken += other.taken;
        self.one_speed += other.one_speed;
        self.seconds += other.seconds;
        self.low_seconds += other.low_seconds;
        self.work_seconds += other.work_seconds;
        self.changes = [0, 1].map(|n| self.changes[n] + other.changes[n]);
    }
}

impl Account {
    /// Share of the time at low speed, 0 to 1. `None`: no time has passed.
    pub fn low_share(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| (self.low_seconds / self.seconds).clamp(0.0, 1.0))
    }

    /// Of one disk. `at_high`: its accesses at low speed, as they would be at high speed.
    fn of(energy: &Energy, at_high: Duration, model: &TwoSpeedModel) -> Account {
        let [seconds, at_high] = [energy.seconds(), at_high.as_secs_f64()];
        let work_seconds = energy.access_high.seconds + at_high;
        let elsewhere = seconds - energy.idle_high.seconds - energy.access_high.seconds;
        let as_one = model.high.idle.0 * (elsewhere - at_high) + model.high.access.0 * at_high;
        Account {
            taken: energy.total(),
            one_speed: energy.idle_high.energy + energy.access_high.energy + Joules(as_one),
            seconds,
            low_seconds: energy.idle_low.seconds + energy.access_low.seconds,
            work_seconds,
            changes: [energy.changes_up + energy.changes_down, 0],
        }
    }
}

impl Pair {
    /// New disks at high speed, with empty logs. `geometry` is that of disks of this model.
    pub fn new(
        model: &TwoSpeedModel,
        geometry: Geometry,
        settings: &Settings,
        chunk_bytes: u64,
        random: Random,
    ) -> Pair {
        let mut out = Vec::new();
        let (mirror, disks) = new_mirror(model, geometry, *settings, random, &mut out);
        let mut pair = Pair {
            mirror,
            disks,
            model: model.clone(),
            geometry,
            chunk_bytes,
            wake: None,
            zeroes: Zeroes::default(),
            out,
            foreground: VecDeque::new(),
            background: VecDeque::new(),
            behind: None,
            running: BTreeMap::new(),
            next: 0,
            ended: Vec::new(),
            slept: 0,
            asleep: None,
            at_high: [Duration::ZERO; 2],
        };
        pair.carry_out(Moment::ZERO);
        pair
    }

    /// Bytes for data.
    pub fn capacity_bytes(&self) -> u64 {
        self.geometry.data_blocks() * BLOCK_BYTES
    }

    pub fn add(&mut self, job: u32) {
        self.foreground.push_back(job);
    }

    /// Adds a job to be done while no other is waiting or running.
    pub fn add_background(&mut self, job: u32) {
        self.background.push_back(job);
    }

    pub fn waiting(&self) -> usize {
        self.foreground.len() + self.background.len()
    }

    pub fn background(&self) -> usize {
        self.background.len()
    }

    /// The next job; call [`Pair::serve`] next. `hurry`: background jobs no longer wait for the others.
    pub fn next(&mut self, hurry: bool) -> Option<u32> {
        if self.asleep.is_some() {
            return None;
        }
        if let Some(job) = self.foreground.pop_front() {
            return Some(job);
        }
        let free = if hurry { self.behind.is_none() } else { self.running.is_empty() };
        self.behind = if free { self.background.pop_front() } else { return None };
        self.behind
    }

    /// Hands a job to the mirror. `durable`: it ends when it would survive a power failure.
    pub fn serve(&mut self, now: u64, job: u32, access: Access, durable: bool) {
        let running = Running { job, access, durable, parts: 0 };
        let at = self.clock(now);
        self.hand_over(at, running);
        self.carry_out(at);
    }

    /// When [`Pair::step`] is due; `None`: not before the next job, or the end of sleep.
    pub fn due(&self) -> Option<u64> {
        let disks = self.disks.iter().filter_map(Disk::due);
        let at = disks.chain(self.wake).min().filter(|_| self.asleep.is_none())?;
        Some(at.0 + self.slept)
    }

    /// Lets everything happen that is due. Returns the jobs that ended, here or in [`Pair::serve`].
    pub fn step(&mut self, now: u64) -> Vec<u32> {
        while let Some(at) = self.due().filter(|at| *at <= now) {
            let at = self.clock(at);
            let n = (0..2).find(|n| self.disks[*n].due().is_some_and(|due| due <= at));
            let event = match n {
                Some(n) => self.end_of(n, at),
                None => Event::Tick,
            };
            self.mirror.on(at, event, &mut self.out);
            self.carry_out(at);
        }
        std::mem::take(&mut self.ended)
    }

    /// The server goes to sleep: its disks stop.
    pub fn suspend(&mut self, now: u64) {
        self.asleep.get_or_insert(now);
    }

    pub fn resume(&mut self, now: u64) {
        self.slept += self.asleep.take().map_or(0, |since| now - since);
    }

    pub fn account(&self, now: u64) -> Account {
        let now = self.clock(now);
        let of = |n: usize| Account::of(&self.disks[n].model.energy(now), self.at_high[n], &self.model);
        let (mut both, b) = (of(0), of(1));
        both += Account { changes: [0, b.changes[0]], ..b };
        both
    }

    /// Time awake.
    fn clock(&self, now: u64) -> Moment {
        Moment(self.asleep.unwrap_or(now) - self.slept)
    }

    /// Ends what a disk does.
    fn end_of(&mut self, n: usize, at: Moment) -> Event {
        let speed = self.disks[n].model.speed();
        let event = self.disks[n].end(at, &mut self.zeroes);
        if let (Event::Done { spent: Spent { parts }, .. }, Speed::Low) = (&event, speed) {
            let faster = self.model.low.rpm / self.model.high.rpm;
            self.at_high[n] += parts.seek + (parts.rotation + parts.transfer).mul_f64(faster);
        }
        event
    }

    /// Hands the next part of a job to the mirror.
    fn hand_over(&mut self, at: Moment, mut running: Running) {
        let Access { write, at: offset, bytes, hops } = running.access;
        let parts = u64::from(hops) + 1;
        let offset = offset + self.chunk_bytes / parts * u64::from(running.parts);
        let first = offset / BLOCK_BYTES;
        let end = (offset + bytes.div_ceil(parts)).div_ceil(BLOCK_BYTES);
        let (first, count) = (first.min(self.geometry.data_blocks() - (end - first)), end - first);
        let request = match write {
            true => Request::Write {
                block: first,
                payload: self.zeroes.of(count * BLOCK_BYTES),
                fua: running.durable,
            },
            false => Request::Read { block: first, count: count as u32 },
        };
        running.parts += 1;
        let id = self.next;
        self.next += 1;
        self.running.insert(id, running);
        self.mirror.on(at, Event::Request { id, request }, &mut self.out);
    }

    fn carry_out(&mut self, at: Moment) {
        while !self.out.is_empty() {
            for command in std::mem::take(&mut self.out) {
                match command {
                    Command::Disk { side, token, op } => self.disks[side.index()].ask(token, op),
                    Command::SetSpeed { side, speed } => self.disks[side.index()].change(at, speed),
                    Command::Reply { id, reply } => self.replied(at, id, &reply),
                    Command::WakeAt(wake) => self.wake = wake,
                    Command::Closed => unreachable!("nothing closes the mirror"),
                    Command::Bug(Bug(what)) => panic!("{what}"),
                }
            }
        }
        self.disks.iter_mut().for_each(|disk| disk.begin(at));
    }

    fn replied(&mut self, at: Moment, id: u64, reply: &Reply) {
        assert_ne!(*reply, Reply::Failed, "modelled disks do not fail");
        let running = self.running.remove(&id).expect("a request is answered once");
        if running.parts <= running.access.hops {
            return self.hand_over(at, running);
        }
        self.behind = self.behind.filter(|job| *job != running.job);
        self.ended.push(running.job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::{self, PolicyKind};
    use ebb_trace::{InMemory, Kind, Trace};

    const SECOND: u64 = 1_000_000_000;
    const LOG_BYTES: u64 = 3 << 30;

    fn pair(kind: PolicyKind) -> Pair {
        let model = TwoSpeedModel::paper();
        let geometry = Geometry::new(model.capacity_bytes, LOG_BYTES).unwrap();
        Pair::new(&model, geometry, &Settings { kind, ..Settings::default() }, 64 << 20, Random::new(1))
    }

    /// Serves accesses at these times. Returns the end of each.
    fn run(pair: &mut Pair, accesses: &[(u64, Access)]) -> Vec<u64> {
        let (mut ends, mut left) = (vec![0; accesses.len()], accesses.len());
        let mut arrivals = accesses.iter().enumerate().peekable();
        while left > 0 {
            let arrival = arrivals.peek().map_or(u64::MAX, |(_, (at, _))| *at);
            let now = pair.due().filter(|due| *due <= arrival).unwrap_or(arrival);
            if now == arrival && pair.due().is_none_or(|due| due > arrival) {
                let (job, (_, access)) = arrivals.next().expect("something is due");
                pair.add(job as u32);
                let job = pair.next(false).expect("it waits");
                pair.serve(now, job, *access, false);
            }
            for job in pair.step(now) {
                ends[job as usize] = now;
                left -= 1;
            }
        }
        ends
    }

    /// Random accesses, `gap` apart on average.
    fn accesses(count: u64, gap: u64, seed: u64) -> Vec<(u64, Access)> {
        let mut random = Random::new(seed);
        let mut at = 0;
        let mut access = || {
            at += random.below(2 * gap);
            let (write, place) = (random.chance(700), random.below(1 << 20) * BLOCK_BYTES);
            (at, Access { write, at: place, bytes: BLOCK_BYTES * random.between(1, 4), hops: 0 })
        };
        (0..count).map(|_| access()).collect()
    }

    fn close(found: f64, right: f64) {
        assert!((found - right).abs() <= 1e-9 * right.abs().max(1.0), "{found} is not {right}");
    }

    #[test]
    fn a_pair_takes_and_answers_what_the_mirror_alone_does_with_every_policy() {
        let accesses = accesses(3000, SECOND / 20, 7);
        let request = |(at, access): &(u64, Access)| ebb_trace::Request {
            at: Duration::from_nanos(*at),
            device: 0,
            offset: access.at,
            len: access.bytes as u32,
            kind: if access.write { Kind::Write } else { Kind::Read },
        };
        let requests: Vec<_> = accesses.iter().map(request).collect();
        let trace = Trace { requests, devices: vec!["a".into()], ..Trace::default() };
        for kind in [PolicyKind::OneSpeed, PolicyKind::LogStore, PolicyKind::TwoSpeed, PolicyKind::Div] {
            let settings = Settings { kind, ..Settings::default() };
            let setup = mirror::Setup { settings, log_bytes: LOG_BYTES, ..mirror::Setup::default() };
            let mut reader = InMemory::new(&trace.requests, &trace.devices);
            let alone = mirror::simulate("alone", &mut reader, &setup, &mut |_| ()).unwrap();
            let mut pair = pair(kind);
            let ends = run(&mut pair, &accesses);
            let account = pair.account(*ends.iter().max().unwrap());
            close(account.taken.0, alone.energy_modelled.total.0);
            assert_eq!(account.changes.iter().sum::<u64>(), alone.energy_modelled.changes, "{kind:?}");
            assert_eq!(alone.energy_modelled.changes > 0, kind != PolicyKind::OneSpeed);
            let times = ends.iter().zip(&accesses).map(|(end, (at, _))| (end - at) as f64 / 1e6);
            let mean = times.sum::<f64>() / accesses.len() as f64;
            let right = alone.response.all.unwrap().mean_millis;
            // A histogram has three digits.
            assert!((mean / right - 1.0).abs() < 1e-3, "{kind:?}: {mean} ms is not {right} ms");
        }
    }

    #[test]
    fn disks_of_one_speed_take_what_they_are_compared_with_and_slow_ones_less() {
        let accesses = accesses(500, SECOND / 4, 3);
        let account = |kind| {
            let mut pair = pair(kind);
            let ends = run(&mut pair, &accesses);
            pair.account(*ends.iter().max().unwrap())
        };
        let (one, slow) = (account(PolicyKind::OneSpeed), account(PolicyKind::LogStore));
        close(one.taken.0, one.one_speed.0);
        assert_eq!((one.low_seconds, one.changes), (0.0, [0; 2]));
        close(one.one_speed.0, 6.0 * one.seconds + 3.0 * one.work_seconds);
        close(slow.one_speed.0, 6.0 * slow.seconds + 3.0 * slow.work_seconds);
        assert!(slow.taken.0 < 0.6 * slow.one_speed.0 && slow.low_seconds > 0.7 * slow.seconds, "{slow:?}");
        // The same work, but for the log.
        assert!((slow.work_seconds / one.work_seconds - 1.0).abs() < 0.25, "{slow:?} {one:?}");
    }

    #[test]
    fn while_its_server_sleeps_a_pair_takes_nothing_and_what_it_did_continues_afterwards() {
        let write = Access { write: true, at: 1 << 30, bytes: 4096, hops: 0 };
        let ends = run(&mut pair(PolicyKind::OneSpeed), &[(SECOND, write)]);
        let mut pair = pair(PolicyKind::OneSpeed);
        pair.step(SECOND);
        pair.add(0);
        assert_eq!(pair.next(false), Some(0));
        pair.serve(SECOND, 0, write, false);
        pair.suspend(SECOND + 1000);
        let before = pair.account(SECOND + 1000);
        assert_eq!((pair.due(), pair.account(500 * SECOND)), (None, before));
        pair.add(1);
        assert_eq!((pair.next(true), pair.step(900 * SECOND)), (None, vec![]));
        pair.resume(901 * SECOND + 1000);
        let mut ended = Vec::new();
        while ended.is_empty() {
            let due = pair.due().expect("the write continues");
            ended = pair.step(due).into_iter().map(|job| (job, due)).collect();
        }
        assert_eq!(ended, [(0, ends[0] + 900 * SECOND)]);
    }

    #[test]
    fn what_is_scattered_over_a_chunk_is_written_part_by_part_on_both_disks() {
        let mut pair = pair(PolicyKind::OneSpeed);
        let access = Access { write: true, at: 1 << 30, bytes: 7 * 4096, hops: 6 };
        let end = run(&mut pair, &[(0, access)])[0];
        assert_eq!([0, 1].map(|n| pair.disks[n].work.writes), [7; 2]);
        // At least six short seeks.
        assert!(end > 7 * 400_000, "{end}");
    }

    #[test]
    fn the_background_waits_for_the_others_unless_it_is_overdue() {
        let mut pair = pair(PolicyKind::OneSpeed);
        let write = Access { write: true, at: 0, bytes: 4096, hops: 0 };
        pair.add_background(1);
        pair.add_background(2);
        pair.add(3);
        assert_eq!((pair.next(false), pair.waiting(), pair.background()), (Some(3), 2, 2));
        pair.serve(0, 3, write, true);
        assert_eq!(pair.next(false), None);
        assert_eq!(pair.next(true), Some(1));
        pair.serve(0, 1, write, false);
        assert_eq!(pair.next(true), None, "one at a time");
    }
}
