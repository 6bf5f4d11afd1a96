//! When the parity servers of one set wake, synchronise and sleep [ECS² §3.3 to §3.5].
//!
//! - **Threshold.** All are woken when the fullest data server has filled the threshold's share of what it has for
//!   parity. The share is uniform, since the fullest server would determine the time anyway and the emptiest the
//!   frequency [ECS² §3.4]. It is never higher than formula (5) allows for the present fill rate: what is written while
//!   parity servers start must find room. Under heavy load it is lower by a deviation, and it may be lower while a data
//!   server is rebuilt, so that less is owed meanwhile [ECS² §6].
//! - **Failures.** One failed data server wakes one parity server, two wake two, more wake all [ECS² Algorithm 2]. They
//!   take turns: P1 helps first, and after each time that all is restored the next one does [ECS² §6].
//! - **Awake.** A number of parity servers, in the same order, may stay awake whatever happens [ECS² Figure 1(b)].
//! - **Sleep.** A parity server that has everything sleeps again, unless a failed data server needs it, or the buffers
//!   would be at the threshold again before the sleep has paid for its transitions: then it stays awake and takes
//!   changes at once. The paper names that case (formula 6), without a rule for it.
//!
//! Overwrites wake no parity server [ECS² §3.3.3]: they are folded into what is kept.
//!
//! Invariants: a parity server is only ever asked to sleep when it has reported that it has everything; a command is
//! given once, until the event that answers it.

use crate::Shape;
use ebb_types::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Share of the buffers, 0 to 1, at which parity servers are woken [ECS² Table VI].
    pub threshold: f64,
    /// Less than that under heavy load [ECS² §5.3.3].
    pub deviation: f64,
    /// Most of it while a data server is failed or rebuilt [ECS² §6].
    pub threshold_while_failed: f64,
    /// Load is heavy when buffers fill faster than on average by this factor.
    pub heavy: f64,
    /// How long a parity server takes to wake.
    pub up: Duration,
    /// How long it takes to go to sleep.
    pub down: Duration,
    /// Shortest sleep that saves energy.
    pub break_even: Duration,
}

/// The paper's, for its server. In its experiments, failures do not change the threshold.
impl Default for Settings {
    fn default() -> Settings {
        Settings {
            threshold: 0.9,
            deviation: 0.1,
            threshold_while_failed: 1.0,
            heavy: 2.0,
            up: Duration::from_secs(13),
            down: Duration::from_secs(7),
            break_even: Duration::from_secs(27),
        }
    }
}

/// Parity servers are numbered from 0: P1 is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// How full the fullest data server's buffer is, 0 to 1. To be reported often beside the time in which buffers
    /// fill.
    Filled {
        share: f64,
    },
    Up {
        parity: usize,
    },
    /// It has everything that was kept for it.
    Synchronised {
        parity: usize,
    },
    Down {
        parity: usize,
    },
    /// A data server failed; its replacement is being filled.
    Failed,
    /// A replacement has everything.
    Restored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Wake {
        parity: usize,
    },
    /// Send it what is kept for it; from now on it takes changes at once.
    Synchronise {
        parity: usize,
    },
    Sleep {
        parity: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Asleep,
    Waking,
    Synchronising,
    /// It has everything, and takes changes.
    InSync,
    GoingDown,
}

/// How fast the buffers fill, in shares per second.
#[derive(Clone, Debug, Default)]
struct FillRate {
    last: Option<(Moment, f64)>,
    known: Duration,
    /// Over about the time in which a server starts, and over about an hour.
    recent: f64,
    average: f64,
}

const RECENT: Duration = Duration::from_secs(20);
const AVERAGE: Duration = Duration::from_secs(3600);

impl FillRate {
    fn add(&mut self, now: Moment, share: f64) {
        // Buffers that are emptied say nothing of how they fill.
        if let Some((then, before)) = self.last
            && share >= before
            && now > then
        {
            let passed = now.since(then);
            self.known += passed;
            let rate = (share - before) / passed.as_secs_f64();
            // A plain mean, as long as it is over a shorter time.
            let mean = passed.div_duration_f64(self.known);
            let weight = |over: Duration| (1.0 - (-passed.div_duration_f64(over)).exp()).max(mean);
            self.recent += (rate - self.recent) * weight(RECENT);
            self.average += (rate - self.average) * weight(AVERAGE);
        }
        self.last = Some((now, share));
    }
}

/// The parity servers of one set.
#[derive(Clone, Debug)]
pub struct Standby {
    settings: Settings,
    parity: Vec<State>,
    /// Whose turn it is to help.
    first: usize,
    /// How many stay awake.
    awake: usize,
    failed: usize,
    fill: FillRate,
    share: f64,
}

/// An activation later than this is not foreseen: so slow a fill is none.
const FORESEEN: Duration = Duration::from_secs(30 * 24 * 3600);

impl Standby {
    /// All are asleep.
    pub fn new(shape: Shape, settings: Settings) -> Standby {
        Standby::resume(vec![State::Asleep; shape.parity()], settings)
    }

    /// Takes over parity servers in these states. Nothing is known of the buffers yet.
    pub fn resume(parity: Vec<State>, settings: Settings) -> Standby {
        let fill = FillRate::default();
        Standby { settings, parity, first: 0, awake: 0, failed: 0, fill, share: 0.0 }
    }

    /// From the next event on, this many stay awake.
    pub fn keep_awake(&mut self, count: usize) {
        self.awake = count;
    }

    pub fn state(&self, parity: usize) -> State {
        self.parity[parity]
    }

    pub fn on(&mut self, now: Moment, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Filled { share } => {
                self.fill.add(now, share);
                self.share = share;
            }
            Event::Up { parity } => {
                self.parity[parity] = State::Synchronising;
                out.push(Command::Synchronise { parity });
            }
            Event::Synchronised { parity } => self.parity[parity] = State::InSync,
            Event::Down { parity } => self.parity[parity] = State::Asleep,
            Event::Failed => self.failed += 1,
            Event::Restored => {
                debug_assert!(self.failed > 0, "who is restored had failed");
                self.failed = self.failed.saturating_sub(1);
                if self.failed == 0 {
                    self.first = (self.first + 1) % self.parity.len();
                }
            }
        }
        self.wake(out);
        self.sleep(out);
    }

    /// Fill at which all parity servers are woken now, 0 to 1.
    pub fn threshold(&self) -> f64 {
        let Settings { threshold, deviation, threshold_while_failed, heavy, up, .. } = self.settings;
        let is_heavy = self.fill.recent > heavy * self.fill.average;
        let wanted = if is_heavy { threshold - deviation } else { threshold };
        let most = if self.failed > 0 { threshold_while_failed } else { 1.0 };
        wanted.min(most).min(1.0 - self.fill.recent * up.as_secs_f64()).max(0.0)
    }

    /// How long until the buffers reach the threshold at the present rate; `None` while they do not fill, or no parity
    /// server sleeps.
    pub fn activation(&self) -> Option<Duration> {
        let left = (self.threshold() - self.share).max(0.0) / self.fill.recent;
        let time = Duration::try_from_secs_f64(left).ok()?;
        (self.parity.contains(&State::Asleep) && time <= FORESEEN).then_some(time)
    }

    /// How many parity servers are to be awake, however empty the buffers are: the failed data servers need them, or
    /// they always stay.
    pub fn needed(&self) -> usize {
        let help = if self.failed > 2 { self.parity.len() } else { self.failed };
        help.max(self.awake).min(self.parity.len())
    }

    /// The parity servers in the order in which they are to be the needed ones.
    pub fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first, self.parity.len());
        (0..count).map(move |nth| (first + nth) % count)
    }

    fn wake(&mut self, out: &mut Vec<Command>) {
        let is_full = self.share > 0.0 && self.share >= self.threshold();
        let wanted = if is_full { self.parity.len() } else { self.needed() };
        for parity in self.order().take(wanted) {
            let state = &mut self.parity[parity];
            if *state == State::Asleep {
                *state = State::Waking;
                out.push(Command::Wake { parity });
            }
        }
    }

    fn sleep(&mut self, out: &mut Vec<Command>) {
        if !self.pays() {
            return;
        }
        for parity in self.order().skip(self.needed()) {
            let state = &mut self.parity[parity];
            if *state == State::InSync {
                *state = State::GoingDown;
                out.push(Command::Sleep { parity });
            }
        }
    }

    /// Whether emptied buffers would last for a sleep that saves energy: formula (6).
    fn pays(&self) -> bool {
        let Settings { down, break_even, .. } = self.settings;
        self.fill.recent * (down + break_even).as_secs_f64() <= self.threshold()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Command::{Sleep, Synchronise, Wake};

    struct Set {
        standby: Standby,
        now: Moment,
    }

    impl Set {
        fn new() -> Set {
            let shape = Shape::new(6, 3).unwrap();
            Set { standby: Standby::new(shape, Settings::default()), now: Moment::ZERO }
        }

        fn on(&mut self, event: Event) -> Vec<Command> {
            let mut out = Vec::new();
            self.standby.on(self.now, event, &mut out);
            out
        }

        /// Fills by `step` each second from `from` on, until a command is given; returns the share and the commands.
        fn fill(&mut self, from: f64, step: f64) -> (f64, Vec<Command>) {
            let mut share = from;
            while share <= 1.0 {
                self.now = self.now + Duration::from_secs(1);
                let out = self.on(Event::Filled { share });
                if !out.is_empty() {
                    return (share, out);
                }
                share += step;
            }
            panic!("nothing happened")
        }

        fn wake_all(&mut self) {
            let (_, out) = self.fill(0.0, 0.001);
            assert_eq!(out, [0, 1, 2].map(|parity| Wake { parity }));
            for parity in 0..3 {
                assert_eq!(self.on(Event::Up { parity }), [Synchronise { parity }]);
            }
            self.now = self.now + Duration::from_secs(1);
            assert_eq!(self.on(Event::Filled { share: 0.0 }), []);
        }
    }

    #[test]
    fn at_the_threshold_all_wake_synchronise_and_sleep_again() {
        let mut set = Set::new();
        set.wake_all();
        for parity in 0..3 {
            assert_eq!(set.on(Event::Synchronised { parity }), [Sleep { parity }]);
            assert_eq!(set.on(Event::Down { parity }), []);
            assert_eq!(set.standby.state(parity), State::Asleep);
        }
    }

    #[test]
    fn servers_that_are_taken_over_stay_as_they_are_until_something_happens() {
        let states = vec![State::InSync, State::Asleep, State::GoingDown];
        let mut standby = Standby::resume(states.clone(), Settings::default());
        assert_eq!([0, 1, 2].map(|parity| standby.state(parity)).to_vec(), states);
        let mut out = Vec::new();
        standby.on(Moment::ZERO, Event::Down { parity: 2 }, &mut out);
        assert_eq!(out, [Sleep { parity: 0 }], "it has everything");
    }

    #[test]
    fn the_next_activation_follows_from_the_fill_rate() {
        let mut set = Set::new();
        assert_eq!(set.standby.activation(), None);
        for second in 0..=100 {
            set.now = set.now + Duration::from_secs(1);
            assert_eq!(set.on(Event::Filled { share: f64::from(second) * 0.001 }), []);
        }
        let left = set.standby.activation().unwrap().as_secs_f64();
        assert!((left - 800.0).abs() < 5.0, "{left}");
        for parity in 0..3 {
            set.on(Event::Up { parity });
        }
        assert_eq!(set.standby.activation(), None, "none sleeps");
    }

    #[test]
    fn algorithm_2_one_failure_wakes_p1_two_wake_two_more_wake_all() {
        let mut set = Set::new();
        assert_eq!(set.on(Event::Failed), [Wake { parity: 0 }]);
        assert_eq!(set.on(Event::Up { parity: 0 }), [Synchronise { parity: 0 }]);
        assert_eq!(set.on(Event::Synchronised { parity: 0 }), [], "it stays for the rebuild");
        assert_eq!(set.on(Event::Failed), [Wake { parity: 1 }]);
        assert_eq!(set.on(Event::Failed), [Wake { parity: 2 }]);
        assert_eq!(set.on(Event::Restored), []);
        assert_eq!(set.on(Event::Restored), []);
        assert_eq!(set.on(Event::Restored), [Sleep { parity: 0 }]);
        assert_eq!(
            set.on(Event::Up { parity: 1 }),
            [Synchronise { parity: 1 }],
            "what is awake takes what is kept"
        );
    }

    #[test]
    fn parity_servers_take_turns_to_help() {
        let mut set = Set::new();
        for parity in [0, 1, 2, 0] {
            assert_eq!(set.on(Event::Failed), [Wake { parity }]);
            set.on(Event::Up { parity });
            assert_eq!(set.on(Event::Synchronised { parity }), []);
            assert_eq!(set.on(Event::Restored), [Sleep { parity }]);
            set.on(Event::Down { parity });
        }
    }

    #[test]
    fn those_that_stay_awake_help_first_and_do_not_go_to_sleep() {
        let mut set = Set::new();
        set.standby.keep_awake(1);
        assert_eq!(set.on(Event::Filled { share: 0.0 }), [Wake { parity: 0 }]);
        set.on(Event::Up { parity: 0 });
        assert_eq!(set.on(Event::Synchronised { parity: 0 }), []);
        assert_eq!(set.on(Event::Failed), [], "it is there to help");
        assert_eq!(set.on(Event::Failed), [Wake { parity: 1 }]);
        set.on(Event::Restored);
        let (_, out) = set.fill(0.0, 0.001);
        assert_eq!(out, [Wake { parity: 2 }], "the rest of them, at the threshold");
        set.standby.keep_awake(4);
        assert_eq!(set.standby.needed(), 3, "no more than there are");
        set.standby.keep_awake(0);
        assert_eq!(set.on(Event::Restored), [Sleep { parity: 0 }]);
    }

    #[test]
    fn while_a_data_server_is_rebuilt_the_threshold_may_be_lower() {
        let settings = Settings { threshold_while_failed: 0.5, ..Settings::default() };
        let mut standby = Standby::new(Shape::new(6, 3).unwrap(), settings);
        let mut on = |event| {
            standby.on(Moment::ZERO, event, &mut Vec::new());
            standby.threshold()
        };
        let filled = Event::Filled { share: 0.1 };
        assert_eq!([filled, Event::Failed, Event::Restored].map(&mut on), [0.9, 0.5, 0.9]);
        assert_eq!(Standby::new(Shape::new(6, 3).unwrap(), Settings::default()).threshold(), 0.9);
    }

    #[test]
    fn formula_5_a_fast_fill_wakes_earlier_so_that_the_start_finds_room() {
        let mut set = Set::new();
        let (slow, _) = set.fill(0.0, 0.0001);
        assert!((slow - 0.9).abs() < 0.01, "{slow}");
        let mut set = Set::new();
        // 1 % a second: 13 % are written during a start.
        let (fast, _) = set.fill(0.0, 0.01);
        assert!((fast - 0.87).abs() < 0.001, "{fast}");
    }

    #[test]
    fn heavy_load_lowers_the_threshold_by_the_deviation() {
        let mut set = Set::new();
        for second in 0..2000 {
            set.now = set.now + Duration::from_secs(1);
            assert_eq!(set.on(Event::Filled { share: f64::from(second) * 1e-5 }), []);
        }
        assert!((set.standby.threshold() - 0.9).abs() < 0.001);
        let (share, _) = set.fill(0.5, 0.002);
        assert!((share - 0.8).abs() < 0.01, "{share}");
    }

    #[test]
    fn formula_6_parity_that_would_wake_before_its_sleep_has_paid_stays_awake() {
        let mut set = Set::new();
        set.wake_all();
        let mut share = 0.0;
        // 4 % a second fill the buffers in less than the break-even time.
        for _ in 0..20 {
            set.now = set.now + Duration::from_secs(1);
            share += 0.04;
            set.on(Event::Filled { share });
        }
        assert_eq!(set.on(Event::Synchronised { parity: 0 }), []);
        assert_eq!(set.standby.state(0), State::InSync);
        // The load ends.
        for _ in 0..300 {
            set.now = set.now + Duration::from_secs(1);
            if set.on(Event::Filled { share: 0.0 }) == [Sleep { parity: 0 }] {
                return;
            }
        }
        panic!("it never sleeps");
    }
}
