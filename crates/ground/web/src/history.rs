//! What the page has seen since it was opened, in bounded memory: the figures over time, and each server's states.
//!
//! Nothing is recorded while no page is open. Such times are gaps, and stay absent: they are neither joined nor filled.

use serde::Serialize;
use std::collections::VecDeque;

/// Points of a series: more are merged in pairs of neighbours, so a week of seconds takes no more room than an hour of
/// them.
const POINTS_MOST: usize = 2048;
/// Changes of states, of all servers together; the oldest are forgotten first.
const CHANGES_MOST: usize = 100_000;
const GAPS_MOST: usize = 256;
const SECOND_MILLIS: u64 = 1000;

/// The figures, and what is kept of each in a stretch of time: every moment has them, and charts take a column of each.
macro_rules! figures {
    ($($(#[$about:meta])* $name:ident: $kept:ident,)*) => {
        /// The figures of one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct Figures {
            $($(#[$about])* pub $name: Option<f64>,)*
        }

        const FIELDS: usize = [$(stringify!($name)),*].len();

        impl Figures {
            fn fields(&self) -> [Option<f64>; FIELDS] {
                [$(self.$name),*]
            }
        }

        /// A series as columns.
        #[derive(Debug, Default, PartialEq, Serialize)]
        pub struct Columns {
            pub stride_millis: u64,
            /// Start of each stretch.
            pub at_unix_millis: Vec<u64>,
            $(pub $name: Vec<Option<f64>>,)*
        }

        impl Series {
            pub fn columns(&self) -> Columns {
                let mut fields = 0..FIELDS;
                let mut column = |kept: fn(Stretch) -> Option<f64>| {
                    let n = fields.next().expect("each has a column");
                    self.points.iter().map(|(_, figures)| kept(figures[n])).collect()
                };
                let at = |(stretch, _): &(u64, _)| stretch * self.stride_millis;
                Columns {
                    stride_millis: self.stride_millis,
                    at_unix_millis: self.points.iter().map(at).collect(),
                    $($name: column(Stretch::$kept),)*
                }
            }
        }
    };
}

figures! {
    /// Modelled; absent where no power model is.
    watts: mean,
    /// Modelled: all servers awake.
    always_on_watts: mean,
    /// Modelled: no more servers awake than the moment's load needs.
    oracle_watts: mean,
    /// In servers' worth of work.
    load: mean,
    forecast: mean,
    /// Between which loads the hour's peak is expected to lie.
    forecast_low: mean,
    forecast_high: mean,
    servers_awake: mean,
    debt_bytes: mean,
    /// Of clients' reads, where they were answered.
    reads_p99_millis: most,
    writes_p99_millis: most,
}

/// A figure in a stretch of time: of what there was, if anything.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stretch {
    sum: f64,
    count: u32,
    most: f64,
}

impl Stretch {
    fn of(value: Option<f64>) -> Stretch {
        value.map_or(Stretch::default(), |value| Stretch { sum: value, count: 1, most: value })
    }

    fn add(&mut self, other: Stretch) {
        self.sum += other.sum;
        self.count += other.count;
        self.most = self.most.max(other.most);
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    /// Of quantiles, whose mean says nothing.
    fn most(self) -> Option<f64> {
        (self.count > 0).then_some(self.most)
    }
}

/// The figures over time, each point the mean of a stretch of `stride`, or the longest latency in it.
#[derive(Debug)]
pub struct Series {
    stride_millis: u64,
    /// Number of the stretch since 1970, in order.
    points: Vec<(u64, [Stretch; FIELDS])>,
}

impl Default for Series {
    fn default() -> Series {
        Series { stride_millis: SECOND_MILLIS, points: Vec::new() }
    }
}

impl Series {
    pub fn push(&mut self, at_unix_millis: u64, figures: &Figures) {
        self.add(at_unix_millis / self.stride_millis, figures.fields().map(Stretch::of));
        while self.points.len() > POINTS_MOST {
            self.stride_millis *= 2;
            for (stretch, figures) in std::mem::take(&mut self.points) {
                self.add(stretch / 2, figures);
            }
        }
    }

    /// The clock was set back: what was seen by its wrong time has no place.
    pub fn forget_after(&mut self, at_unix_millis: u64) {
        self.points.retain(|(stretch, _)| stretch * self.stride_millis < at_unix_millis);
    }

    /// A clock that was set back a little adds to the newest point.
    fn add(&mut self, stretch: u64, figures: [Stretch; FIELDS]) {
        match self.points.last_mut() {
            Some((last, sums)) if *last >= stretch => {
                sums.iter_mut().zip(figures).for_each(|(sum, figure)| sum.add(figure));
            }
            _ => self.points.push((stretch, figures)),
        }
    }
}

/// The states of all servers over time: one letter each at `from`, and what changed since.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Strip {
    /// When watching began; zero: not yet.
    pub from_unix_millis: u64,
    /// The letters then, in the servers' order.
    pub base: String,
    /// Unix milliseconds, place in the servers' order, letter.
    pub changes: VecDeque<(u64, u32, char)>,
    /// Begin and end of each unwatched time.
    pub gaps: VecDeque<(u64, u64)>,
    #[serde(skip)]
    now: Vec<u8>,
    #[serde(skip)]
    seen_unix_millis: u64,
}

impl Strip {
    /// Takes the letters of a moment. Other servers than before: it starts over. `silence_millis`: this long
    /// without letters is a gap.
    pub fn push(&mut self, at_unix_millis: u64, letters: &str, silence_millis: u64) {
        if self.now.len() != letters.len() {
            let from_unix_millis = at_unix_millis;
            *self = Strip { from_unix_millis, base: letters.to_owned(), ..Strip::default() };
        } else if at_unix_millis > self.seen_unix_millis + silence_millis {
            self.gaps.push_back((self.seen_unix_millis, at_unix_millis));
            self.gaps.drain(..self.gaps.len().saturating_sub(GAPS_MOST));
        }
        for (n, letter) in letters.bytes().enumerate() {
            if self.now.get(n).is_some_and(|before| *before != letter) {
                self.changes.push_back((at_unix_millis, n as u32, char::from(letter)));
            }
        }
        self.now = letters.as_bytes().to_vec();
        self.seen_unix_millis = at_unix_millis;
        self.forget();
    }

    fn forget(&mut self) {
        let surplus = self.changes.len().saturating_sub(CHANGES_MOST);
        if surplus == 0 {
            return;
        }
        let mut base = std::mem::take(&mut self.base).into_bytes();
        for (at, server, letter) in self.changes.drain(..surplus) {
            base[server as usize] = letter as u8;
            self.from_unix_millis = at;
        }
        self.base = base.into_iter().map(char::from).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_of_seconds_stays_small_and_keeps_its_mean() {
        let mut series = Series::default();
        let week = 7 * 86_400;
        for second in 0..week {
            let watts = Some(if second < week / 2 { 100.0 } else { 300.0 });
            series.push(second * 1000, &Figures { watts, ..Figures::default() });
        }
        let columns = series.columns();
        assert!(columns.watts.len() <= POINTS_MOST && columns.watts.len() > POINTS_MOST / 4);
        assert_eq!(columns.at_unix_millis[1] - columns.at_unix_millis[0], columns.stride_millis);
        let all: Vec<f64> = columns.watts.iter().map(|w| w.unwrap()).collect();
        assert_eq!((all[0], all[all.len() - 1]), (100.0, 300.0));
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!((mean - 200.0).abs() < 1.0, "{mean}");
        assert!(columns.load.iter().all(Option::is_none), "what was never measured is absent");
    }

    #[test]
    fn a_mean_counts_what_is_there() {
        let mut series = Series::default();
        for (millis, load) in [(0, Some(1.0)), (300, None), (600, Some(3.0)), (5000, None)] {
            series.push(millis, &Figures { load, ..Figures::default() });
        }
        let columns = series.columns();
        assert_eq!((columns.at_unix_millis, columns.load), (vec![0, 5000], vec![Some(2.0), None]));
    }

    #[test]
    fn what_was_seen_by_a_wrong_clock_is_forgotten() {
        let mut series = Series::default();
        for (seconds, load) in [(10, 1.0), (11, 2.0), (5000, 3.0), (5001, 4.0)] {
            series.push(seconds * 1000, &Figures { load: Some(load), ..Figures::default() });
        }
        series.forget_after(12_000);
        series.push(12_000, &Figures { load: Some(5.0), ..Figures::default() });
        let columns = series.columns();
        assert_eq!(columns.at_unix_millis, [10_000, 11_000, 12_000]);
        assert_eq!(columns.load, [Some(1.0), Some(2.0), Some(5.0)]);
    }

    #[test]
    fn of_latencies_the_longest_is_kept() {
        let mut series = Series::default();
        for (millis, p99) in [(0, Some(5.0)), (300, Some(80.0)), (600, None), (900, Some(2.0)), (2000, None)]
        {
            series.push(millis, &Figures { reads_p99_millis: p99, ..Figures::default() });
        }
        assert_eq!(series.columns().reads_p99_millis, [Some(80.0), None]);
    }

    #[test]
    fn a_strip_is_its_base_and_its_changes_and_names_its_gaps() {
        let mut strip = Strip::default();
        for (at, letters) in [(1000, "AAA"), (2000, "ADA"), (3000, "ASA"), (60_000, "AAA")] {
            strip.push(at, letters, 5000);
        }
        assert_eq!((strip.from_unix_millis, strip.base.as_str()), (1000, "AAA"));
        assert_eq!(strip.changes, [(2000, 1, 'D'), (3000, 1, 'S'), (60_000, 1, 'A')]);
        assert_eq!(strip.gaps, [(3000, 60_000)]);
        strip.push(61_000, "AAAA", 5000);
        assert_eq!((strip.from_unix_millis, strip.changes.len(), strip.gaps.len()), (61_000, 0, 0));
    }

    #[test]
    fn what_a_strip_forgets_is_in_its_base() {
        let mut strip = Strip::default();
        let letters = ["AAAA", "SSSS"];
        for n in 0..CHANGES_MOST / 2 {
            strip.push(n as u64 * 1000, letters[n % 2], 5000);
        }
        assert_eq!(strip.changes.len(), CHANGES_MOST);
        let mut now = strip.base.clone().into_bytes();
        strip.changes.iter().for_each(|(_, server, letter)| now[*server as usize] = *letter as u8);
        assert_eq!(now, strip.now);
        assert!(strip.from_unix_millis > 0 && strip.from_unix_millis <= strip.changes[0].0);
    }
}
