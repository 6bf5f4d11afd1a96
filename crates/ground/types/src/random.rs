//! SplitMix64: the same seed gives the same sequence on every machine and in every release.

/// [Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014]
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, and an iterator's methods would hide that"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// An independent stream, so that drawing more from one does not change the others.
    pub fn fork(&mut self) -> Random {
        Random(self.next())
    }

    /// Uniform in `0..bound` (multiply-shift; its bias is below 2^-32 for bounds below 2^32).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Uniform between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }

    /// True with probability `per_mille` / 1000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { Some(&items[self.index(items.len())]) }
    }

    /// A long-tailed delay: mostly near `typical`, rarely many times as long.
    pub fn delay(&mut self, typical: u64) -> u64 {
        let base = self.between(typical / 4, typical * 2);
        match self.below(50) {
            0 => base * 20,
            1..=4 => base * 5,
            _ => base,
        }
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

/// Spreads a number over all 64 bits: a bijection, the generator's finaliser.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_generator() {
        let mut random = Random::new(1234567);
        assert_eq!(random.next(), 6457827717110365317);
        assert_eq!(random.next(), 3203168211198807973);
    }
}
