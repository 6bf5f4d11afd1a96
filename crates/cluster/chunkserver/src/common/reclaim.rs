//! The pace of reclaim: the least rate at which what others hold for this server is here in time, which the paper was
//! about to implement [Sierra §4.5].
//!
//! All of it is durable on as many servers as anything else, so nothing is at stake while it waits, except that this
//! server cannot sleep again. What makes up for a copy that is gone is never paced.

use crate::common::limit::Limit;
use ebb_types::{BLOCK_BYTES, Moment};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Reclaim {
    limit: Limit,
    /// When all of it is to be here; `None`: nothing is to be fetched, as far as was looked.
    until: Option<Moment>,
}

impl Reclaim {
    /// Once a tick: so many blocks are still to be fetched. The time begins when there first are any, and what is found
    /// later is to be here by then, too.
    pub fn look(&mut self, now: Moment, left_blocks: u64, within: Duration) {
        if left_blocks == 0 {
            *self = Reclaim::default();
            return;
        }
        let until = *self.until.get_or_insert(now + within);
        let millis = until.since(now).as_millis().max(1) as u64;
        let bytes = left_blocks.saturating_mul(BLOCK_BYTES as u64);
        self.limit.rate = (now < until).then(|| (bytes.saturating_mul(1000) / millis).max(1));
    }

    /// Nothing before the first look.
    pub fn allows(&self, now: Moment) -> bool {
        self.until.is_some() && self.limit.allows(now)
    }

    /// A fetch of so many blocks was sent.
    pub fn spend(&mut self, now: Moment, blocks: u32) {
        self.limit.spend(now, u64::from(blocks) * BLOCK_BYTES as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::api::TICK;

    /// The ticks after which nothing is left of so many blocks, fetched 16 at a time, at most 100 times in a tick; and
    /// the most in one of them.
    fn ticks(mut left: u64, found: &[(u64, u64)], within: Duration) -> (u64, u64) {
        let (mut reclaim, mut tick, mut most) = (Reclaim::default(), 0, 0);
        while left > 0 {
            let now = Moment(tick * TICK.as_nanos() as u64);
            left += found.iter().filter(|(at, _)| *at == tick).map(|(_, more)| more).sum::<u64>();
            reclaim.look(now, left, within);
            let before = left;
            for _ in 0..100 {
                if left > 0 && reclaim.allows(now) {
                    let blocks = left.min(16);
                    reclaim.spend(now, blocks as u32);
                    left -= blocks;
                }
            }
            most = most.max(before - left);
            tick += 1;
        }
        (tick, most)
    }

    #[test]
    fn it_takes_the_time_that_it_has_at_an_even_rate() {
        let (ticks, most) = ticks(6400, &[], Duration::from_secs(20));
        assert!((190..=201).contains(&ticks), "{ticks} tenths of a second");
        assert!(most <= 48, "{most} blocks in a tick");
    }

    #[test]
    fn what_is_found_later_is_here_in_time_too() {
        let (ticks, _) = ticks(1600, &[(100, 1600)], Duration::from_secs(20));
        assert!((190..=201).contains(&ticks), "{ticks} tenths of a second");
    }

    #[test]
    fn past_its_time_nothing_waits() {
        let (mut reclaim, second) = (Reclaim::default(), Duration::from_secs(1));
        reclaim.look(Moment(0), 10, second);
        reclaim.spend(Moment(0), 1000);
        assert!(!reclaim.allows(Moment(0) + second / 2));
        reclaim.look(Moment(0) + second, 10, second);
        assert!(reclaim.allows(Moment(0) + second), "it should be here");
    }
}
