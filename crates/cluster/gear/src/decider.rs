//! What deciders have in common: the events that they are told, the commands that they give, the questions that they
//! answer. [`crate::Fleet`] decides server by server, [`crate::Scheduler`] by whole gears; a driver knows which one it
//! has only where it makes it.
//!
//! Which servers are to be awake is what a decider *emits*, [`Command::Wake`] and [`Command::Sleep`]: a leader and a
//! simulator both read it there. They need the moment at which it changes, when a shift begins or a modelled server
//! draws other power; and a moment at which nothing changes costs the same with any number of servers. All else is
//! *asked* when it is needed.
//!
//! A server's state is a fact that the driver tells ([`Event::Is`]); whether the server is wanted is a decision.

use crate::seasonal::Ahead;
use crate::{History, Load};
use ebb_types::{Bug, Depth, GearGroup, GearWish, Moment, Prices, ServerId, Why};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// What a server does, whether or not it is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Up and carrying load.
    Awake,
    Waking,
    Asleep(Depth),
    /// Failed, or so late to wake that it does not count.
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The gear follows forecast and load.
    #[default]
    Auto,
    /// The operator holds this, whatever the load.
    Manual(GearWish),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Load of all servers together over the `interval` that ends now.
    Sample { load: Load, interval: Duration },
    /// Time has passed without a sample.
    Tick,
    /// A server's state, and whether it may be put to sleep at all; at first every one may. Nothing is decided before
    /// the next event of another kind.
    Is { server: ServerId, state: State, may_sleep: bool },
    /// The states of all servers have been told. Whole gears look at no single server, and decide nothing.
    Seen,
    /// From now on. A wish out of range is replaced by the nearest possible one; see [`crate::check_wish`].
    Mode(Mode),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    /// The server is wanted from now on: wake it, or keep it awake.
    Wake(ServerId),
    /// It is not wanted from now on: once nothing depends on it, it may sleep, best at its [`Decider::depth`].
    Sleep(ServerId),
    /// An hour ended that was watched: put its peak into the replicated [`History`]. With the peak that was expected,
    /// and what has been learnt so far.
    RecordHour { hour: u64, peak: Load, forecast: Option<Load>, prices: Option<Prices> },
    /// What cannot happen was met: log it.
    Bug(Bug),
}

impl From<Bug> for Command {
    fn from(bug: Bug) -> Command {
        Command::Bug(bug)
    }
}

/// One hour of the dry run.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    pub hour: u64,
    /// The peak that is expected; `None`: nothing is known yet, so every server is awake.
    pub forecast: Option<Load>,
    pub gear: u8,
    pub awake: BTreeSet<ServerId>,
}

/// Decides which servers are awake. One per metadata leader.
pub trait Decider {
    fn on(&mut self, now: Moment, history: &History, event: Event, out: &mut Vec<Command>);

    fn mode(&self) -> Mode;

    /// The hour that contains `now`.
    fn hour(&self, now: Moment) -> u64;

    /// The gear whose gear groups have at least as many servers as are wanted.
    fn gear(&self, now: Moment) -> u8;

    /// The gear groups that are awake in every gear at `now`.
    fn never_sleep(&self, now: Moment) -> Vec<GearGroup>;

    /// Why the server is wanted, or not; `None`: it is not one of the decider's.
    fn why(&self, now: Moment, server: ServerId) -> Option<Why>;

    /// The peak that this hour is expected to have; `None`: nothing is known.
    fn expected(&self, now: Moment, history: &History) -> Option<Load>;

    /// How long before they are needed servers are woken, by their depth of sleep, the shallowest first; or one time
    /// for all.
    fn leads(&self) -> Vec<(Option<Depth>, Duration)>;

    /// The dry run: the next `hours` hours, starting with the present one, if each has the peak that is expected.
    fn plan(&self, now: Moment, history: &History, hours: u32) -> Vec<Planned>;

    /// Sets the measured wake-up time from this depth; at most the length of an hour.
    fn set_wake(&mut self, _depth: Depth, _wake: Duration) {}

    /// How deep a server that is not wanted should sleep; `None`: it makes no difference.
    fn depth(&self, _server: ServerId) -> Option<Depth> {
        None
    }

    /// Power cycles that a server has saved up; `None`: they are not counted.
    fn saved_cycles(&self, _now: Moment, _server: ServerId) -> Option<f64> {
        None
    }

    /// The possible futures from the present hour on; `None` until a day has been seen, and where one number decides.
    fn ahead(&self) -> Option<&Ahead> {
        None
    }
}
