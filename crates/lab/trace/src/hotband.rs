//! The hot band mix: uniform requests, four hot bands, and sequential streams at the same time, as the Emerald
//! measurement specification conditions and measures online storage with.
//!
//! The specification names Vdbench's script as its definition, and that could not be read. Of Vdbench's published
//! example these parts were: 6 % uniform, half of it reads; 28 % in a band from 10 to 18 % of the space; and that a
//! band is accessed more often towards its beginning. The other shares and the sizes are from memory, and the slope
//! within a band is our own ([`HotBand::UNREAD`]).

use crate::{Kind, Request, SynthError, TraceError, TraceReader};
use ebb_types::Random;
use std::time::Duration;

#[derive(Clone, Copy)]
enum Area {
    Whole,
    /// From one percentage to another of the space.
    Band(u64, u64),
    Stream,
}

/// Percent of the requests, where, and percent of reads.
const PARTS: [(u64, Area, u64); 13] = [
    (6, Area::Whole, 50),
    (28, Area::Band(10, 18), 70),
    (14, Area::Band(32, 40), 70),
    (7, Area::Band(55, 63), 70),
    (5, Area::Band(80, 88), 70),
    (5, Area::Stream, 100),
    (5, Area::Stream, 100),
    (5, Area::Stream, 100),
    (5, Area::Stream, 100),
    (5, Area::Stream, 100),
    (5, Area::Stream, 0),
    (5, Area::Stream, 0),
    (5, Area::Stream, 0),
];

/// Bytes, and percent of the requests.
const SIZES: [(u32, u64); 12] = [
    (8 << 10, 31),
    (4 << 10, 27),
    (64 << 10, 20),
    (16 << 10, 5),
    (32 << 10, 5),
    (128 << 10, 2),
    (1 << 10, 2),
    (60 << 10, 2),
    (512, 2),
    (256 << 10, 2),
    (48 << 10, 1),
    (56 << 10, 1),
];

const LARGEST: u32 = 256 << 10;
/// Requests begin at multiples of this, or of their size if that is less.
const ALIGNED: u64 = 4096;

/// The mix on one device, all requests at the start: a replay issues them as fast as the target accepts them.
pub struct HotBand {
    area: u64,
    chance: Random,
    /// Where each part's next sequential request begins.
    next: [u64; PARTS.len()],
}

impl HotBand {
    /// What of the mix is not from the specification's own text.
    pub const UNREAD: &str =
        "the hot band's shares but for its first two, its sizes, and the slope within a band";

    /// In the first `area` bytes of a device; a band must hold the largest request.
    pub fn new(area: u64, seed: u64) -> Result<HotBand, SynthError> {
        let area = area.min(i64::MAX as u64);
        if area / 100 * 8 < u64::from(LARGEST) {
            return Err(SynthError::Area { size: LARGEST, area });
        }
        // The streams begin apart from one another.
        let mut begin = 0;
        let next = PARTS.map(|_| {
            begin += area / PARTS.len() as u64;
            begin - begin % ALIGNED
        });
        Ok(HotBand { area, chance: Random::new(seed), next })
    }

    fn offset(&mut self, part: usize, size: u32) -> u64 {
        let (size, align) = (u64::from(size), u64::from(size).min(ALIGNED));
        let offset = match PARTS[part].1 {
            Area::Whole => self.chance.below(self.area - size),
            Area::Band(from, to) => {
                let (start, width) = (self.area / 100 * from, self.area / 100 * (to - from));
                start + (self.chance.unit().powi(2) * (width - size) as f64) as u64
            }
            Area::Stream => {
                let begin = self.next[part].next_multiple_of(align);
                let begin = if begin + size > self.area { 0 } else { begin };
                self.next[part] = begin + size;
                begin
            }
        };
        offset - offset % align
    }
}

/// The entry that a number below 100 falls on.
fn drawn(shares: impl Iterator<Item = u64>, mut number: u64) -> usize {
    for (at, share) in shares.enumerate() {
        if number < share {
            return at;
        }
        number -= share;
    }
    unreachable!("the shares add up to 100")
}

impl Iterator for HotBand {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = drawn(PARTS.iter().map(|part| part.0), self.chance.below(100));
        let len = SIZES[drawn(SIZES.iter().map(|size| size.1), self.chance.below(100))].0;
        let offset = self.offset(part, len);
        let kind = if self.chance.below(100) < PARTS[part].2 { Kind::Read } else { Kind::Write };
        Some(Ok(Request { at: Duration::ZERO, device: 0, offset, len, kind }))
    }
}

impl TraceReader for HotBand {
    fn devices(&self) -> &[String] {
        static NAME: std::sync::LazyLock<[String; 1]> = std::sync::LazyLock::new(|| ["hot band".into()]);
        &*NAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_has_its_shares_and_stays_in_its_area() {
        assert_eq!(PARTS.iter().map(|part| part.0).sum::<u64>(), 100);
        assert_eq!(SIZES.iter().map(|size| size.1).sum::<u64>(), 100);
        let area = 64 << 20;
        let requests: Vec<Request> =
            HotBand::new(area, 3).unwrap().take(50_000).map(Result::unwrap).collect();
        let share = |is: &dyn Fn(&Request) -> bool| requests.iter().filter(|r| is(r)).count() as f64 / 500.0;
        let ends = |r: &Request| r.offset + u64::from(r.len);
        assert!(requests.iter().all(|r| ends(r) <= area && r.offset % u64::from(r.len.min(4096)) == 0));
        // 3 + 0.7 * 54 + 25 percent.
        assert!((share(&|r| r.kind == Kind::Read) - 65.8).abs() < 1.0);
        assert!((share(&|r| r.len == 8 << 10) - 31.0).abs() < 1.0);
        let in_band = |r: &Request, from, to| r.offset >= area / 100 * from && ends(r) <= area / 100 * to;
        // The band, and what of the uniform requests and the streams falls on it.
        let hottest = share(&|r| in_band(r, 10, 18));
        assert!((28.0..34.0).contains(&hottest), "{hottest}");
        assert!(
            share(&|r| in_band(r, 10, 14)) > 1.5 * share(&|r| in_band(r, 14, 18)),
            "denser at its beginning"
        );
    }

    #[test]
    fn a_seed_decides_everything_and_a_band_holds_its_largest_request() {
        let all =
            |seed| HotBand::new(1 << 30, seed).unwrap().take(100).map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        assert_eq!(HotBand::new(3 << 20, 1).err(), Some(SynthError::Area { size: LARGEST, area: 3 << 20 }));
        assert!(HotBand::new(4 << 20, 1).is_ok());
    }
}
