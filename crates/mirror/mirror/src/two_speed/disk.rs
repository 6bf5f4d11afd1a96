//! One modelled disk: how long each access takes, and what it costs. A simulator uses it in virtual time; an emulator
//! uses it in real time and delays completions.
//!
//! A rotation is uniform over a turn: a draw per access, not the platter's angle, so that the model's means hold for
//! any arrival times.
//!
//! An access has neither seek nor rotation if it starts where the last one ended, at the moment when it ended. If it
//! comes later, the arm is still there but the sector has passed under the head: it pays rotation only. This is an
//! append to the log after an idle gap. Read-ahead and write caches of drives are not modelled.
//!
//! Invariants: one access at a time, and none during a change of speed. The caller queues.
//!
//! A disk of one speed is one that starts at [`Speed::High`] and is never asked to change.

use crate::two_speed::energy::{DiskEnergy, Energy};
use crate::two_speed::model::{TwoSpeedModel, seconds};
use crate::{Parts, Speed, Spent};
use ebb_types::{Moment, Random};
use std::time::Duration;

/// One disk: where its arm is, its speed, and its energy so far.
#[derive(Clone, Debug)]
pub struct TwoSpeedDisk {
    model: TwoSpeedModel,
    random: Random,
    speed: Speed,
    /// The speed that the disk changes to, and when it gets there.
    change: Option<(Speed, Moment)>,
    /// Where the last access ended.
    head: u64,
    free_at: Moment,
    /// When the last access ended: the moment at which the sector at `head` passes under it. Unlike `free_at` it is not
    /// moved by a change of speed.
    ended: Option<Moment>,
    energy: DiskEnergy,
}

impl TwoSpeedDisk {
    /// A disk at rest since `now`, its arm at offset 0. The model has passed [`TwoSpeedModel::check`].
    pub fn new(model: TwoSpeedModel, speed: Speed, now: Moment, seed: u64) -> TwoSpeedDisk {
        assert_eq!(model.check(), Ok(()), "the model was not checked");
        TwoSpeedDisk {
            energy: DiskEnergy::new(&model, speed, now),
            model,
            random: Random::new(seed),
            speed,
            change: None,
            head: 0,
            free_at: now,
            ended: None,
        }
    }

    pub fn model(&self) -> &TwoSpeedModel {
        &self.model
    }

    /// The speed; during a change the old one.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// The speed that the disk changes to, if it does.
    pub fn changing(&self) -> Option<Speed> {
        self.change.map(|(to, _)| to)
    }

    /// When the last access or change of speed ends. An access that waited in a queue starts exactly here, whatever the
    /// time is by then: only so does it continue a sequence.
    pub fn free_at(&self) -> Moment {
        self.free_at
    }

    /// Serves an access from `now`, which is not before [`TwoSpeedDisk::free_at`]. It ends after [`Spent::total`].
    pub fn access(&mut self, now: Moment, write: bool, offset: u64, bytes: u64) -> Spent {
        assert!(self.change.is_none(), "a disk serves nothing while it changes its speed");
        assert!(now >= self.free_at, "a disk serves one access at a time");
        let end = offset.checked_add(bytes).filter(|&end| end <= self.model.capacity_bytes);
        let end = end.expect("accesses are within the disk");
        let near = offset == self.head;
        let parts = Parts {
            seek: seconds(self.model.overhead_seconds + if near { 0.0 } else { self.seek(write, offset) }),
            rotation: if near && self.ended == Some(now) { Duration::ZERO } else { self.rotation() },
            transfer: seconds(self.model.transfer_seconds(self.speed, bytes)),
        };
        let spent = Spent { parts };
        self.head = end;
        self.free_at = now + spent.total();
        self.ended = Some(self.free_at);
        self.energy.access(now, self.free_at);
        spent
    }

    fn seek(&self, write: bool, offset: u64) -> f64 {
        let share = offset.abs_diff(self.head) as f64 / self.model.capacity_bytes as f64;
        self.model.seek_seconds(share) + self.model.settle_seconds(write)
    }

    fn rotation(&mut self) -> Duration {
        seconds(self.model.turn_seconds(self.speed) * self.random.below(1 << 32) as f64 / (1u64 << 32) as f64)
    }

    /// Begins a change of speed on an idle disk, and returns when to call [`TwoSpeedDisk::end_change`].
    pub fn begin_change(&mut self, now: Moment, to: Speed) -> Moment {
        assert!(self.change.is_none(), "a disk changes its speed once at a time");
        assert!(now >= self.free_at, "accesses end before a change of speed begins");
        assert_ne!(to, self.speed, "the disk has this speed");
        let end = now + seconds(self.model.change(to).seconds);
        self.energy.change(now, end, to);
        self.change = Some((to, end));
        self.free_at = end;
        end
    }

    /// The change is over. A late call is harmless: the disk has idled at its new speed.
    pub fn end_change(&mut self, now: Moment) {
        let (to, end) = self.change.take().expect("a change of speed was begun");
        assert!(now >= end, "the change of speed is not over");
        self.speed = to;
        self.free_at = now;
    }

    /// Energy and times up to `now`, which is not before the last access or change began.
    pub fn energy(&self, now: Moment) -> Energy {
        self.energy.at(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpeedModel;
    use ebb_types::Watts;

    fn disk(speed: Speed, seed: u64) -> TwoSpeedDisk {
        TwoSpeedDisk::new(TwoSpeedModel::paper(), speed, Moment::ZERO, seed)
    }

    fn after(seconds: f64) -> Moment {
        Moment::ZERO + super::seconds(seconds)
    }

    /// Mean times in milliseconds (seek, rotation, transfer) of accesses at random places, with gaps between.
    fn mean(speed: Speed, write: bool, bytes: u64) -> [f64; 3] {
        const COUNT: u64 = 100_000;
        let (mut disk, mut random) = (disk(speed, 7), Random::new(11));
        let places = disk.model().capacity_bytes / bytes;
        let mut sums = [0.0; 3];
        for n in 0..COUNT {
            let at = Moment::ZERO + Duration::from_secs(n);
            let Parts { seek, rotation, transfer } =
                disk.access(at, write, random.below(places) * bytes, bytes).parts;
            for (sum, part) in sums.iter_mut().zip([seek, rotation, transfer]) {
                *sum += part.as_secs_f64() * 1e3 / COUNT as f64;
            }
        }
        sums
    }

    fn close(found: f64, right: f64, share: f64) {
        assert!((found / right - 1.0).abs() < share, "{found} is not {right}");
    }

    #[test]
    fn the_mean_rotation_is_half_a_turn_seven_milliseconds_longer_at_low_speed() {
        let (low, high) = (mean(Speed::Low, false, 4096), mean(Speed::High, false, 4096));
        close(low[1], 10.0, 0.01);
        close(high[1], 3.0, 0.01);
        close(low[1] - high[1], 7.0, 0.01);
    }

    #[test]
    fn the_mean_seek_is_that_of_the_data_sheet_at_both_speeds() {
        for speed in [Speed::Low, Speed::High] {
            close(mean(speed, false, 4096)[0], 0.1 + 3.4, 0.005);
            close(mean(speed, true, 4096)[0], 0.1 + 3.4 + 0.4, 0.005);
        }
    }

    #[test]
    fn the_mean_access_at_low_speed_is_the_papers_t_low() {
        for (write, bytes) in [(false, 4096), (true, 4096), (false, 64 << 10)] {
            let [seek, rotation, transfer] = mean(Speed::High, write, bytes);
            let t_low = seek + 10.0 / 3.0 * (rotation + transfer);
            close(mean(Speed::Low, write, bytes).iter().sum(), t_low, 0.005);
            for speed in [Speed::Low, Speed::High] {
                let means = Spent { parts: TwoSpeedModel::paper().random_access(speed, write, bytes) };
                close(mean(speed, write, bytes).iter().sum(), means.total().as_secs_f64() * 1e3, 0.005);
            }
        }
    }

    #[test]
    fn what_follows_at_once_only_transfers_and_what_follows_later_also_turns() {
        let mut disk = disk(Speed::Low, 3);
        disk.access(Moment::ZERO, true, 1 << 30, 4096);
        // 57 MB/s at 10,000 rpm: 17.1 MB/s.
        let stream = disk.access(disk.free_at(), true, (1 << 30) + 4096, 4096).parts;
        assert_eq!((stream.seek, stream.rotation), (super::seconds(0.1e-3), Duration::ZERO));
        close(stream.transfer.as_secs_f64(), 4096.0 / 17.1e6, 1e-6);
        let mut turned = 0.0;
        for n in 2..10_002 {
            let append =
                disk.access(disk.free_at() + Duration::from_millis(1), true, (1 << 30) + n * 4096, 4096);
            assert_eq!(append.parts.seek, super::seconds(0.1e-3), "the arm is there");
            turned += append.parts.rotation.as_secs_f64() / 10_000.0;
        }
        close(turned, 0.01, 0.02);
        let back = disk.access(disk.free_at(), true, 1 << 30, 4096).parts;
        assert!(back.seek > super::seconds(0.8e-3), "another place: {back:?}");
    }

    #[test]
    fn nothing_follows_at_once_after_a_change_of_speed() {
        let mut disk = disk(Speed::High, 3);
        disk.access(Moment::ZERO, true, 0, 4096);
        let end = disk.begin_change(disk.free_at(), Speed::Low);
        assert_eq!((disk.speed(), disk.changing()), (Speed::High, Some(Speed::Low)));
        disk.end_change(end);
        assert_eq!((disk.speed(), disk.changing(), disk.free_at()), (Speed::Low, None, end));
        let next = disk.access(end, true, 4096, 4096).parts;
        assert!(next.rotation > Duration::ZERO && next.seek == super::seconds(0.1e-3));
    }

    #[test]
    fn energy_is_time_by_watts_and_one_figure_per_change() {
        // Integers: every access takes 20 ms, of which 10 are overhead and 10 transfer.
        let model = TwoSpeedModel {
            overhead_seconds: 0.01,
            bytes_per_second: 1e6,
            low: SpeedModel { rpm: 3_000.0, idle: Watts(0.5), access: Watts(2.5) },
            ..TwoSpeedModel::paper()
        };
        let mut disk = TwoSpeedDisk::new(model, Speed::High, after(100.0), 1);
        let first = disk.access(after(110.0), true, 0, 10_000).total().as_secs_f64();
        disk.access(disk.free_at(), true, 10_000, 10_000);
        assert_eq!(disk.begin_change(after(120.0), Speed::Low), after(127.0));
        // Half of the change: 17 J * 3.5 / 7.
        let half = disk.energy(after(123.5));
        close(half.change.energy.0, 8.5, 1e-9);
        assert_eq!((half.change.seconds, half.changes_down, half.changes_up), (3.5, 1, 0));
        // The caller notices the end half a second late; the disk has idled since.
        disk.end_change(after(127.5));
        disk.access(after(130.0), false, 20_000, 3_000);
        assert_eq!(disk.begin_change(after(140.0), Speed::High), after(147.0));
        disk.end_change(after(147.0));
        let all = disk.energy(after(150.0));
        let access_high = first + 0.02;
        close(all.access_high.seconds, access_high, 1e-6);
        close(all.idle_high.seconds, 20.0 + 3.0 - access_high, 1e-6);
        let access_low = all.access_low.seconds;
        // 10 ms overhead, 10 ms transfer at 300 kB/s, and up to a turn.
        assert!((0.02..0.04).contains(&access_low));
        close(all.idle_low.seconds, 13.0 - access_low, 1e-6);
        assert_eq!((all.change.seconds, all.change.energy.0), (14.0, 140.0));
        let right = 6.0 * (23.0 - access_high)
            + 9.0 * access_high
            + 0.5 * (13.0 - access_low)
            + 2.5 * access_low
            + 123.0
            + 17.0;
        close(all.total().0, right, 1e-6);
        close(all.seconds(), 50.0, 1e-9);
        close(all.low_share().unwrap(), 13.0 / 50.0, 1e-9);
        assert_eq!((all.changes_up, all.changes_down), (1, 1));
    }

    #[test]
    fn an_access_counts_as_far_as_it_has_come() {
        let mut disk = disk(Speed::High, 1);
        assert_eq!(disk.energy(Moment::ZERO).low_share(), None);
        disk.access(Moment::ZERO, false, 0, 57_000_000);
        let half = disk.energy(after(0.5));
        assert_eq!((half.access_high.seconds, half.total()), (0.5, Watts(9.0) * Duration::from_millis(500)));
        assert_eq!(half.idle_high.seconds, 0.0);
    }

    #[test]
    fn a_mirror_of_idle_disks_of_one_speed_takes_twelve_watts() {
        // The constant part of Table 3's one-speed energies.
        let all = disk(Speed::High, 1).energy(after(1000.0));
        assert_eq!((all.total().0 * 2.0, all.low_share()), (12_000.0, Some(0.0)));
    }

    #[test]
    fn a_seed_decides_everything() {
        let all = |seed| {
            let mut disk = disk(Speed::Low, seed);
            let at = |n: u64| Moment::ZERO + Duration::from_secs(n);
            (1..50).map(|n| disk.access(at(n), false, n << 20, 4096).total()).collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn snapshots_have_units_in_their_names() {
        let text = serde_json::to_string(&disk(Speed::High, 1).energy(after(1.0))).unwrap();
        assert!(text.contains(r#""idle_high":{"seconds":1.0,"energy_joules":6.0}"#), "{text}");
    }

    #[test]
    #[should_panic(expected = "serves nothing while it changes")]
    fn no_access_during_a_change() {
        let mut disk = disk(Speed::Low, 1);
        disk.begin_change(Moment::ZERO, Speed::High);
        disk.access(after(8.0), false, 0, 4096);
    }

    #[test]
    #[should_panic(expected = "one access at a time")]
    fn no_two_accesses_at_once() {
        let mut disk = disk(Speed::Low, 1);
        disk.access(Moment::ZERO, false, 0, 4096);
        disk.access(Moment::ZERO, false, 4096, 4096);
    }

    #[test]
    #[should_panic(expected = "within the disk")]
    fn no_access_beyond_the_end() {
        disk(Speed::Low, 1).access(Moment::ZERO, false, 73_000_000_000, 1);
    }

    #[test]
    #[should_panic(expected = "accesses end before")]
    fn no_change_during_an_access() {
        let mut disk = disk(Speed::Low, 1);
        disk.access(Moment::ZERO, false, 0, 4096);
        disk.begin_change(Moment::ZERO, Speed::High);
    }

    #[test]
    #[should_panic(expected = "is not over")]
    fn a_change_is_not_cut_short() {
        let mut disk = disk(Speed::Low, 1);
        disk.begin_change(Moment::ZERO, Speed::High);
        disk.end_change(after(6.9));
    }
}
