//! How much parity the data servers keep, and when its servers must wake [ECS² §4.2].

use crate::Shape;
use std::time::Duration;

/// Writes to a set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Writes {
    /// R_req_w.
    pub per_second: f64,
    /// Mean size, S_req_w.
    pub bytes: f64,
}

/// What the data servers have for parity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buffers {
    pub shape: Shape,
    /// S_strip.
    pub strip_bytes: f64,
    /// All data servers' together, S_buf.
    pub bytes: f64,
}

impl Buffers {
    /// Bytes of one parity strip that a write adds, S_req_buf: formula (16). Formula (9) would give a whole strip to
    /// writes that are smaller; those stay on one server.
    pub fn per_write(&self, writes: &Writes) -> f64 {
        if writes.bytes <= self.strip_bytes {
            return writes.bytes;
        }
        (writes.bytes / (self.shape.data() as f64 * self.strip_bytes)).ceil() * self.strip_bytes
    }

    /// Bytes per second by which all buffers fill together. The paper has r + 1 strips, for r = 3; this is r + Δr.
    pub fn fill_rate(&self, writes: &Writes) -> f64 {
        let kept = self.shape.parity() + self.shape.extra();
        writes.per_second * self.per_write(writes) * kept as f64
    }

    /// Least bytes for a time in standby and the transitions: formula (4).
    pub fn least_bytes(&self, writes: &Writes, standby: Duration, transitions: Duration) -> f64 {
        self.fill_rate(writes) * (standby + transitions).as_secs_f64()
    }

    /// Highest fill, 0 to 1, at which parity servers may be woken so that the buffers take what is written meanwhile:
    /// formula (5). Not positive: the buffers are too small for these writes.
    pub fn highest_threshold(&self, writes: &Writes, up: Duration) -> f64 {
        1.0 - self.fill_rate(writes) * up.as_secs_f64() / self.bytes
    }

    /// Lowest fill, 0 to 1, below which a stay in standby would be shorter than wanted: formula (6).
    pub fn lowest_threshold(&self, writes: &Writes, standby: Duration, down: Duration) -> f64 {
        self.fill_rate(writes) * (standby + down).as_secs_f64() / self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::energy::Power;

    fn buffers() -> Buffers {
        Buffers { shape: Shape::new(6, 3).unwrap(), strip_bytes: 16e3, bytes: 1200e6 }
    }

    #[test]
    fn formula_16_a_write_below_a_strip_adds_its_own_size() {
        let per_write = |bytes| buffers().per_write(&Writes { per_second: 1.0, bytes });
        assert_eq!([3e3, 16e3, 17e3, 96e3, 97e3].map(per_write), [3e3, 16e3, 16e3, 16e3, 32e3]);
    }

    /// DTRS at 2.5 times its rate: 57 · 0.3644 · 2.5 writes of 16 kB per strip and second.
    #[test]
    fn formula_5_allows_a_threshold_of_08_and_09_for_dtrs_at_any_intensity() {
        let writes = Writes { per_second: 57.0 * 0.3644 * 2.5, bytes: 30.47e3 };
        let highest = buffers().highest_threshold(&writes, Duration::from_secs(13));
        assert!((highest - 0.964).abs() < 0.001, "{highest}");
    }

    #[test]
    fn formulas_4_and_6_for_a_stay_that_breaks_even() {
        let writes = Writes { per_second: 57.0 * 0.3644, bytes: 30.47e3 };
        let (power, buffers) = (Power::default(), buffers());
        let stay = power.break_even();
        let least = buffers.least_bytes(&writes, stay, power.up + power.down);
        assert!((least / 1e6 - 62.6).abs() < 0.1, "{least}");
        let lowest = buffers.lowest_threshold(&writes, stay, power.down);
        assert!((lowest - 0.0378).abs() < 0.0001, "{lowest}");
    }
}
