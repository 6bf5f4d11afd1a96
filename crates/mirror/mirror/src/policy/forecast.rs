//! How busy the same requests would keep the disk at the other speed or in another mode [LogStore §3.1].
//!
//! A disk that serves the same requests is busy in proportion to their mean time: with
//! `T_high = seek + rotation + transfer` and `T_low = seek + S_high/S_low · (rotation + transfer)`,
//! `U_low = T_low/T_high · U_high`. The paper prints the inverse fraction, by which a slower disk would be less busy.
//!
//! Reads and writes are counted apart: only writes move between the log and the regular place when the mode changes,
//! and their share decides how much a change of mode brings. Means are per request of a client, not per operation of
//! the disk: an append may carry several requests that would each be an access of its own in regular mode.

use crate::{Parts, Spent};
use std::time::Duration;

/// What an operation of a disk is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Class {
    requests: u64,
    /// Sums over these requests.
    parts: Parts,
}

impl Class {
    fn total(&self) -> Duration {
        Spent { parts: self.parts }.total()
    }

    /// These requests with the seek and rotation per request of `other`; `None` if it has no request.
    fn placed_like(self, other: &Class) -> Option<Class> {
        let times = (other.requests > 0).then(|| self.requests as f64 / other.requests as f64)?;
        let seek = other.parts.seek.mul_f64(times);
        let rotation = other.parts.rotation.mul_f64(times);
        Some(Class { parts: Parts { seek, rotation, ..self.parts }, ..self })
    }
}

/// Requests that a disk served in an epoch, and the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accesses {
    reads: Class,
    writes: Class,
}

impl Accesses {
    /// `requests` of clients were served by an operation that took `spent`; 0 for one that only accompanies others, as
    /// the invalidation of a log entry or a sync does.
    pub fn add(&mut self, access: Access, requests: u32, spent: Spent) {
        let class = match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        };
        class.requests += u64::from(requests);
        class.parts.seek += spent.parts.seek;
        class.parts.rotation += spent.parts.rotation;
        class.parts.transfer += spent.parts.transfer;
    }

    pub fn total(&self) -> Duration {
        self.reads.total() + self.writes.total()
    }

    /// Mean time per request; zero if there was none.
    pub fn service(&self) -> Duration {
        let requests = self.reads.requests + self.writes.requests;
        if requests == 0 { Duration::ZERO } else { self.total().div_f64(requests as f64) }
    }

    /// Share of the time that reads took, 0 to 1.
    pub fn read_share(&self) -> f64 {
        if self.total().is_zero() { 0.0 } else { self.reads.total().div_duration_f64(self.total()) }
    }

    /// The same requests on a disk whose rotation and transfer take `factor` times as long: `S_high/S_low` from high to
    /// low speed, its inverse from low to high.
    pub fn turned(&self, factor: f64) -> Accesses {
        let turned = |class: Class| {
            let Parts { seek, rotation, transfer } = class.parts;
            let parts =
                Parts { seek, rotation: rotation.mul_f64(factor), transfer: transfer.mul_f64(factor) };
            Class { parts, ..class }
        };
        Accesses { reads: turned(self.reads), writes: turned(self.writes) }
    }

    /// The same requests of log mode in regular mode: their own transfer, and the seeks and rotations `before` log
    /// mode. A kind of access that was not seen before it moves like the other kind: both go to the regular place.
    pub fn in_regular_place(&self, before: &Accesses) -> Accesses {
        let placed = |class: Class, same: &Class, other: &Class| {
            class.placed_like(same).or_else(|| class.placed_like(other)).unwrap_or(class)
        };
        Accesses {
            reads: placed(self.reads, &before.reads, &before.writes),
            writes: placed(self.writes, &before.writes, &before.reads),
        }
    }

    /// The same requests in log mode: their own transfer, and the seeks and rotations of the last log-mode epochs.
    /// Before the first such epoch, writes are presumed to be sequential, and reads stay as they are.
    pub fn in_log(&self, earlier: &Accesses) -> Accesses {
        let sequential = Parts { transfer: self.writes.parts.transfer, ..Parts::default() };
        Accesses {
            reads: self.reads.placed_like(&earlier.reads).unwrap_or(self.reads),
            writes: self
                .writes
                .placed_like(&earlier.writes)
                .unwrap_or(Class { parts: sequential, ..self.writes }),
        }
    }

    /// Replaces the kinds of access that `newer` has.
    pub fn update(&mut self, newer: &Accesses) {
        for (class, newer) in [(&mut self.reads, newer.reads), (&mut self.writes, newer.writes)] {
            if newer.requests > 0 {
                *class = newer;
            }
        }
    }

    /// Factor from the utilisation by these requests to that by `other`, the same requests elsewhere. Without any,
    /// nothing is known: 1.
    pub fn factor(&self, other: &Accesses) -> f64 {
        if self.total().is_zero() { 1.0 } else { other.total().div_duration_f64(self.total()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATIO: f64 = 10_000.0 / 3_000.0;

    fn spent(seek: u64, rotation: u64, transfer: u64) -> Spent {
        let [seek, rotation, transfer] = [seek, rotation, transfer].map(Duration::from_millis);
        Spent { parts: Parts { seek, rotation, transfer } }
    }

    fn only(access: Access, requests: u32, took: Spent) -> Accesses {
        let mut accesses = Accesses::default();
        accesses.add(access, requests, took);
        accesses
    }

    fn is(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
    }

    /// T_high = 5 + 3 + 1 = 9 ms; T_low = 5 + 10/3 · 4 = 18.33 ms.
    #[test]
    fn u_low_is_t_low_over_t_high_times_u_high_and_not_the_printed_inverse() {
        let high = only(Access::Read, 1, spent(5, 3, 1));
        let low = high.turned(RATIO);
        assert_eq!(low.service(), Duration::from_nanos(18_333_333));
        is(0.3 * high.factor(&low), 0.3 * 55.0 / 27.0);
        assert!(high.factor(&low) > 1.0, "the printed T_high/T_low calls a slower disk less busy");
        is(low.factor(&low.turned(1.0 / RATIO)), 27.0 / 55.0);
    }

    #[test]
    fn half_a_turn_takes_7_ms_longer_at_low_speed() {
        let half_turn = only(Access::Read, 1, spent(0, 3, 0));
        assert_eq!(half_turn.turned(RATIO).total() - half_turn.total(), Duration::from_millis(7));
    }

    /// 4 appends of 1 ms with 2 ms of rotation each, before log mode 6 + 10 ms per write: T_log = 3, T_regular = 17.
    #[test]
    fn u_regular_follows_from_the_seeks_and_rotations_before_log_mode() {
        let log = only(Access::Write, 4, spent(0, 8, 4));
        let regular = log.in_regular_place(&only(Access::Write, 2, spent(12, 20, 50)));
        is(log.factor(&regular), 17.0 / 3.0);
        let of_reads = log.in_regular_place(&only(Access::Read, 1, spent(6, 10, 1)));
        assert_eq!(of_reads, regular, "reads move like writes in the regular place");
        is(log.factor(&log.in_regular_place(&Accesses::default())), 1.0);
    }

    #[test]
    fn the_first_forecast_of_log_mode_is_sequential_writes_and_later_ones_are_what_was_seen() {
        let mut regular = only(Access::Write, 3, spent(15, 9, 3));
        regular.add(Access::Read, 1, spent(5, 3, 1));
        is(regular.factor(&regular.in_log(&Accesses::default())), (3.0 + 9.0) / 36.0);
        let seen = only(Access::Write, 1, spent(0, 2, 7));
        is(regular.factor(&regular.in_log(&seen)), (6.0 + 3.0 + 9.0) / 36.0);
        let mut seen = seen;
        seen.update(&only(Access::Read, 2, spent(14, 6, 2)));
        is(regular.factor(&regular.in_log(&seen)), (6.0 + 3.0 + 7.0 + 3.0 + 1.0) / 36.0);
        seen.update(&only(Access::Write, 1, spent(1, 0, 0)));
        is(regular.factor(&regular.in_log(&seen)), (3.0 + 3.0 + 7.0 + 3.0 + 1.0) / 36.0);
    }

    /// 8 writes in one append would be 8 accesses in regular mode.
    #[test]
    fn an_append_of_many_requests_counts_as_many() {
        let append = only(Access::Write, 8, spent(0, 8, 8));
        let regular = append.in_regular_place(&only(Access::Write, 1, spent(5, 10, 1)));
        is(append.factor(&regular), (8.0 * 15.0 + 8.0) / 16.0);
        assert_eq!(append.service(), Duration::from_millis(2));
    }

    #[test]
    fn what_accompanies_a_request_lengthens_it() {
        let mut accesses = only(Access::Write, 2, spent(2, 2, 2));
        accesses.add(Access::Write, 0, spent(0, 2, 0));
        assert_eq!(accesses.service(), Duration::from_millis(4));
        accesses.add(Access::Read, 1, spent(4, 4, 0));
        is(accesses.read_share(), 0.5);
        is(Accesses::default().read_share(), 0.0);
        assert_eq!(Accesses::default().service(), Duration::ZERO);
    }
}
