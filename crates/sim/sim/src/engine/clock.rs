//! Boot clocks that disagree: every node's has its own offset and runs slightly fast or slow. None ever stops; it
//! begins again when its machine is booted.

use ebb_types::Moment;
use ebb_types::Random;

pub const MILLI: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Drift of the fastest and slowest clock, in parts per million. Over a lease, two of them differ by less than its
/// margin.
pub const DRIFT_PPM: i64 = 5_000;

#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    offset: i64,
    ppm: i64,
}

impl Clock {
    pub fn draw(random: &mut Random) -> Clock {
        let ppm = random.between(0, 2 * DRIFT_PPM as u64) as i64 - DRIFT_PPM;
        Clock { offset: random.between(SECOND, 1_000_000 * SECOND) as i64, ppm }
    }

    /// Of the same machine, booted a few seconds before `now`.
    pub fn restarted(self, now: u64, random: &mut Random) -> Clock {
        let shows = random.between(SECOND, 20 * SECOND) as i64;
        let ran = Clock { offset: 0, ..self }.at(now).0 as i64;
        Clock { offset: shows - ran, ..self }
    }

    /// Whether it is fast or slow by one per mille or more.
    pub fn is_off(&self) -> bool {
        self.ppm.abs() >= 1000
    }

    /// The clock's value at true time `now`.
    pub fn at(&self, now: u64) -> Moment {
        Moment((self.offset + now as i64 + now as i64 * self.ppm / 1_000_000) as u64)
    }

    /// The first true time at which it certainly shows `moment` or more.
    pub fn when(&self, moment: Moment) -> u64 {
        let span = (i128::from(moment.0) - i128::from(self.offset)).max(0);
        (span * 1_000_000 / i128::from(1_000_000 + self.ppm) + 2) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_can_be_read_backwards() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            let drawn = Clock::draw(&mut random);
            let booted = drawn.restarted(0, &mut random);
            let clock = if random.chance(500) { drawn } else { booted };
            let moment = clock.at(0) + std::time::Duration::from_nanos(random.below(1000 * SECOND));
            let when = clock.when(moment);
            assert!(clock.at(when) >= moment, "{clock:?} {moment:?}");
            assert!(clock.at(when.saturating_sub(10)) <= moment, "{clock:?} {moment:?}");
        }
    }
}
