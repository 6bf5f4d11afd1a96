//! The leader's memory of one erasure-coded set: its [`Standby`], which decides when parity servers wake and sleep,
//! what it knows, and how the set is used. The rest follows from the state, so a new leader continues with what it
//! finds.

use crate::controller::usage::Usage;
use crate::{State, Timing};
use ebb_erasure::standby::{self, Event, Standby};
use ebb_types::{Column, Moment, ParityDebt, ServerState, SetEntry, SlotState};

/// From this fill on a set is woken although another one of its pool synchronises.
pub(crate) const NEARLY_FULL: f64 = 0.95;

/// The leader's memory of a set.
pub(crate) struct Watch {
    pub standby: Standby,
    /// What `standby` knows: the parity servers as last seen, and the number of data columns that are not in sync.
    seen: Vec<standby::State>,
    failing: usize,
    /// How full the fullest data server is, 0 to 1; `None` until all have been heard.
    pub fullest: Option<f64>,
    /// When `standby` last learnt that.
    pub fed: Moment,
    /// Parity servers are to synchronise, so that the set can hibernate.
    pub settles: bool,
    /// A data server reported strips in memory only after the set was to hibernate. The figures in heartbeats are older
    /// than that report, so they do not count until parity servers have everything.
    pub unsettled: bool,
    pub usage: Usage,
}

impl Watch {
    /// Takes over a set as an earlier leader left it.
    pub fn new(now: Moment, entry: &SetEntry, state: &State, timing: &Timing) -> Watch {
        let seen = phases(entry, state);
        let standby = Standby::resume(seen.clone(), timing.standby);
        let usage = Usage::new(now, entry, state, timing.sleep.cycles_per_day);
        Watch {
            standby,
            seen,
            failing: 0,
            fullest: None,
            fed: Moment::ZERO,
            settles: false,
            unsettled: false,
            usage,
        }
    }

    /// Reports to `standby` what happened since the last time. Its commands need no answer: its states are looked up.
    pub fn follow(&mut self, now: Moment, entry: &SetEntry, state: &State) {
        let awake = state.pool(entry.pool).map_or(0, |pool| pool.awake_parity);
        self.standby.keep_awake(awake.into());
        let data = &entry.columns[..entry.shape.data()];
        let failing = data.iter().filter(|column| column.state != SlotState::InSync).count();
        let (failed, restored) = (failing.saturating_sub(self.failing), self.failing.saturating_sub(failing));
        let mut events = vec![Event::Failed; failed];
        events.extend(vec![Event::Restored; restored]);
        let phases = phases(entry, state);
        debug_assert_eq!(phases.len(), self.seen.len(), "a set keeps its code");
        for (parity, (now, before)) in phases.iter().zip(&self.seen).enumerate() {
            let event = match now {
                standby::State::Synchronising => Event::Up { parity },
                standby::State::InSync => Event::Synchronised { parity },
                standby::State::Asleep => Event::Down { parity },
                standby::State::Waking | standby::State::GoingDown => continue,
            };
            events.extend((now != before).then_some(event));
        }
        events.into_iter().for_each(|event| self.standby.on(now, event, &mut Vec::new()));
        (self.failing, self.seen) = (failing, phases);
    }

    /// Whether this parity server should be awake. It does not leave while the buffers are full: as long as the data
    /// servers have not dropped what it has now, it would be woken again at once.
    pub fn asks_for(&self, parity: usize) -> bool {
        match self.standby.state(parity) {
            _ if self.settles => true,
            standby::State::Asleep => false,
            standby::State::GoingDown => self.is_full(),
            standby::State::Waking | standby::State::Synchronising | standby::State::InSync => true,
        }
    }

    pub fn is_full(&self) -> bool {
        self.fullest.is_some_and(|share| share > 0.0 && share >= self.standby.threshold())
    }

    pub fn is_nearly_full(&self) -> bool {
        self.fullest.is_some_and(|share| share >= NEARLY_FULL)
    }
}

/// Data servers may have to keep in memory what parity servers lack.
pub(crate) fn owes(entry: &SetEntry, state: &State) -> bool {
    let in_memory = state.pool(entry.pool).is_some_and(|pool| pool.parity_debt == ParityDebt::Ram);
    in_memory && entry.columns.iter().any(|column| column.state != SlotState::InSync)
}

/// The parity servers of a set, P1 first. One that failed counts as waking: it is to be awake and is not.
fn phases(entry: &SetEntry, state: &State) -> Vec<standby::State> {
    let phase = |column: &Column| match (state.server(column.server).map(|e| e.state), column.state) {
        (Some(ServerState::Asleep), _) => standby::State::Asleep,
        (Some(ServerState::Draining), _) => standby::State::GoingDown,
        (Some(ServerState::Awake), SlotState::InSync) => standby::State::InSync,
        (Some(ServerState::Awake), _) => standby::State::Synchronising,
        _ => standby::State::Waking,
    };
    entry.columns[entry.shape.data()..].iter().map(phase).collect()
}
