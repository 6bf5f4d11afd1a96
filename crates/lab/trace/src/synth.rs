//! Synthetic workloads: the 125 modes of TRACER, five request sizes by five random ratios by five read ratios
//! [TRACER §V.C], made here instead of by IOmeter, the same for the same seed.
//!
//! The paper does not list its five values. These cover the sizes in its figures (512 B to 64 KiB and beyond) by
//! factors, and both ratios in quarters.

use crate::{Kind, Request, TraceError, TraceReader};
use ebb_types::Random;
use std::time::Duration;

/// Request sizes of the 125 modes, in bytes.
pub const SIZES: [u32; 5] = [512, 4 << 10, 16 << 10, 64 << 10, 1 << 20];
/// Random ratios and read ratios of the 125 modes, in percent.
pub const RATIOS: [u8; 5] = [0, 25, 50, 75, 100];

/// Parameters of a synthetic workload's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mode {
    /// Bytes of every request.
    pub size: u32,
    /// Percentage of requests that start anywhere; the others start where the previous one ended.
    pub random: u8,
    /// Percentage of reads.
    pub reads: u8,
}

impl Mode {
    /// The 125 modes, by size, random ratio and read ratio.
    pub fn all() -> impl Iterator<Item = Mode> {
        SIZES.into_iter().flat_map(|size| {
            RATIOS
                .into_iter()
                .flat_map(move |random| RATIOS.into_iter().map(move |reads| Mode { size, random, reads }))
        })
    }
}

/// When the requests of a synthetic workload arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// All at the start: a replay issues them as fast as the target accepts them.
    Peak,
    /// Evenly, this many per second.
    PerSecond(f64),
}

/// A synthetic workload that cannot be generated as requested.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SynthError {
    #[error("a ratio of {0} % is above 100 %")]
    Ratio(u8),
    #[error("requests of {size} bytes do not fit an area of {area} bytes: enlarge the area")]
    Area { size: u32, area: u64 },
    #[error("requests need at least one byte")]
    Size,
    #[error("a pace of {0} requests per second is not between one in a day and a thousand million")]
    Pace(f64),
}

/// A synthetic workload on one device, as a trace.
///
/// The ratios hold not only in the long run: each hundred requests, counted from the first, has exactly the requested
/// number of reads and of random ones.
pub struct Synthetic {
    mode: Mode,
    pace: Pace,
    /// Positions on the device, in units of the request size.
    places: u64,
    left: u64,
    made: u64,
    place: u64,
    chance: Random,
    reads: Deck,
    random: Deck,
}

impl Synthetic {
    /// `count` requests in the first `area` bytes of a device. Starts are multiples of the request size.
    pub fn new(mode: Mode, pace: Pace, area: u64, count: u64, seed: u64) -> Result<Self, SynthError> {
        if let Some(ratio) = [mode.random, mode.reads].into_iter().find(|&ratio| ratio > 100) {
            return Err(SynthError::Ratio(ratio));
        }
        if mode.size == 0 {
            return Err(SynthError::Size);
        }
        let area = area.min(i64::MAX as u64);
        let places = area / u64::from(mode.size);
        if places == 0 {
            return Err(SynthError::Area { size: mode.size, area });
        }
        if let Pace::PerSecond(rate) = pace
            && !(1.0 / 86_400.0..=1e9).contains(&rate)
        {
            return Err(SynthError::Pace(rate));
        }
        let mut made = Self {
            mode,
            pace,
            places,
            left: count,
            made: 0,
            place: 0,
            chance: Random::new(seed),
            reads: Deck::new(mode.reads),
            random: Deck::new(mode.random),
        };
        made.place = made.chance.next() % places;
        Ok(made)
    }
}

/// A hundred cards of which a percentage are marked, drawn without replacement and then refilled.
struct Deck {
    percent: u8,
    marked: u64,
    left: u64,
}

impl Deck {
    fn new(percent: u8) -> Self {
        Self { percent, marked: 0, left: 0 }
    }

    fn marked(&mut self, draw: u64) -> bool {
        if self.left == 0 {
            (self.marked, self.left) = (self.percent.into(), 100);
        }
        let marked = draw % self.left < self.marked;
        self.left -= 1;
        self.marked -= u64::from(marked);
        marked
    }
}

impl Iterator for Synthetic {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (kind, jump, place) = (self.chance.next(), self.chance.next(), self.chance.next());
        self.place =
            if self.random.marked(jump) { place % self.places } else { (self.place + 1) % self.places };
        let at = match self.pace {
            Pace::Peak => Duration::ZERO,
            Pace::PerSecond(rate) => Duration::from_nanos((self.made as f64 * 1e9 / rate) as u64),
        };
        self.made += 1;
        Some(Ok(Request {
            at,
            device: 0,
            offset: self.place * u64::from(self.mode.size),
            len: self.mode.size,
            kind: if self.reads.marked(kind) { Kind::Read } else { Kind::Write },
        }))
    }
}

impl TraceReader for Synthetic {
    fn devices(&self) -> &[String] {
        static NAME: std::sync::LazyLock<[String; 1]> = std::sync::LazyLock::new(|| ["synthetic".into()]);
        &*NAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary;

    fn make(mode: Mode, pace: Pace, seed: u64) -> Synthetic {
        Synthetic::new(mode, pace, 1 << 30, 10_000, seed).unwrap()
    }

    #[test]
    fn the_125_modes_have_their_ratios_and_stay_in_their_area() {
        let modes: Vec<Mode> = Mode::all().collect();
        assert_eq!((modes.len(), modes.iter().collect::<std::collections::BTreeSet<_>>().len()), (125, 125));
        for mode in modes {
            let total = summary(&mut make(mode, Pace::Peak, 3)).unwrap();
            assert_eq!((total.requests, total.bytes), (10_000, 10_000 * u64::from(mode.size)), "{mode:?}");
            assert_eq!(total.reads, 100 * u64::from(mode.reads), "{mode:?}");
            // A jump may hit the next position by chance, and the end of the area wraps around.
            let random = total.random_share().unwrap() * 100.0;
            assert!((random - f64::from(mode.random)).abs() < 0.3, "{mode:?}: {random}");
            assert!(total.devices[0].footprint <= 1 << 30 && total.span.is_zero());
        }
    }

    #[test]
    fn a_seed_decides_everything() {
        let mode = Mode { size: 4096, random: 50, reads: 25 };
        let all = |seed| make(mode, Pace::PerSecond(100.0), seed).map(|r| r.unwrap()).collect::<Vec<_>>();
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn paced_requests_are_even() {
        let mode = Mode { size: 512, random: 0, reads: 100 };
        let at: Vec<_> =
            make(mode, Pace::PerSecond(3.0), 1).take(4).map(|r| r.unwrap().at.as_millis()).collect();
        assert_eq!(at, [0, 333, 666, 1000]);
    }

    #[test]
    fn impossible_workloads_are_refused() {
        let mode = Mode { size: 4096, random: 0, reads: 0 };
        let make = |mode, pace, area| Synthetic::new(mode, pace, area, 1, 1).err();
        assert_eq!(make(Mode { reads: 101, ..mode }, Pace::Peak, 1 << 20), Some(SynthError::Ratio(101)));
        assert_eq!(make(Mode { size: 0, ..mode }, Pace::Peak, 1 << 20), Some(SynthError::Size));
        assert_eq!(make(mode, Pace::Peak, 4095), Some(SynthError::Area { size: 4096, area: 4095 }));
        for rate in [0.0, -1.0, f64::NAN, 1e12] {
            assert!(make(mode, Pace::PerSecond(rate), 1 << 20).is_some());
        }
    }
}
