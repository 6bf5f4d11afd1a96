//! How long wake-ups took lately.

use std::collections::VecDeque;
use std::time::Duration;

/// Most wake-ups that are remembered.
const KEPT: usize = 20;
/// The percentile of wake-up times that is called high.
const PERCENT: usize = 95;

#[derive(Clone, Debug, Default)]
pub(crate) struct WakeTimes(VecDeque<Duration>);

impl WakeTimes {
    pub fn note(&mut self, took: Duration) {
        self.0.push_back(took);
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
    }

    /// Wake-ups that are remembered.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Within this time nearly all were awake; `None`: there was none yet.
    pub fn high(&self) -> Option<Duration> {
        let mut times: Vec<Duration> = self.0.iter().copied().collect();
        times.sort();
        let rank = (times.len() * PERCENT).div_ceil(100);
        rank.checked_sub(1).map(|nth| times[nth])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_time_is_the_second_longest_of_the_last_twenty() {
        let mut times = WakeTimes::default();
        assert_eq!(times.high(), None);
        times.note(Duration::from_secs(9));
        assert_eq!(times.high(), Some(Duration::from_secs(9)));
        for seconds in 0..20 {
            times.note(Duration::from_secs(seconds));
        }
        assert_eq!(times.high(), Some(Duration::from_secs(18)), "the first is forgotten");
        assert_eq!(times.count(), 20);
    }
}
