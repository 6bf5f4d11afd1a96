//! A rate that is kept by what starts in pieces. Whether the next one may start is looked at once per tick, so what
//! could not start in time since then is made up for, and no more: a pause is followed by no burst.

use crate::common::api::TICK;
use ebb_types::Moment;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Limit {
    /// Bytes per second; `None`: there is no limit.
    pub rate: Option<u64>,
    /// From when on the next piece may start.
    next: Moment,
}

impl Limit {
    pub fn allows(&self, now: Moment) -> bool {
        self.rate.is_none() || self.next <= now
    }

    /// A piece of this length started.
    pub fn spend(&mut self, now: Moment, bytes: u64) {
        // There is no limit.
        let Some(rate) = self.rate else { return };
        let nanos = bytes.saturating_mul(1_000_000_000) / rate.max(1);
        let before = Moment(now.0.saturating_sub(TICK.as_nanos() as u64));
        self.next = self.next.max(before) + Duration::from_nanos(nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that start in ticks of a tenth of a second, in pieces of this length.
    fn started(limit: &mut Limit, ticks: std::ops::Range<u64>, piece: u64) -> u64 {
        let mut bytes = 0;
        for tick in ticks {
            let now = Moment(tick * TICK.as_nanos() as u64);
            // As many as there are of them.
            for _ in 0..100 {
                if limit.allows(now) {
                    limit.spend(now, piece);
                    bytes += piece;
                }
            }
        }
        bytes
    }

    #[test]
    fn small_and_large_pieces_keep_the_rate() {
        for piece in [1_000, 30_000, 500_000] {
            let mut limit = Limit { rate: Some(1_000_000), ..Limit::default() };
            let bytes = started(&mut limit, 100..200, piece);
            assert!((10_000_000..=10_100_000 + piece).contains(&bytes), "{piece}: {bytes} in 10 s");
        }
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut limit = Limit { rate: Some(1_000_000), ..Limit::default() };
        started(&mut limit, 100..101, 5000);
        let bytes = started(&mut limit, 1000..1001, 5000);
        assert!(bytes <= 105_000, "{bytes}");
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut limit = Limit::default();
        assert_eq!(started(&mut limit, 0..1, 1 << 20), 100 << 20);
        limit.rate = Some(1);
        limit.spend(Moment(0), 1000);
        assert!(!limit.allows(Moment(1_000_000_000)));
        limit.rate = None;
        assert!(limit.allows(Moment(1_000_000_000)), "it was lifted");
    }
}
