//! Defects that the search must find.

/// Defects of what is modelled here, as they were in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Primaries carry out requests under a claim that has ended, and claims go by a clock that stands still.
    IgnoreClaims,
    /// Deadlines and claims go by a clock that stands still while the machine is suspended.
    MonotonicClock,
    /// A command of a client that the namespace has forgotten counts as a new client's, and is sent again by a clock
    /// that stands still.
    ForgetSessions,
    /// What was set to zero counts as written, and the time since a lookup goes by a clock that stands still.
    ZeroesExist,
    /// A gateway judges the age of objects by its own wall clock.
    JudgeByOwnClock,
    /// A write brings a deleted chunk back.
    ReviveDeleted,
    /// An object consists of its parts in the order in which they came.
    PartsAsTheyCame,
    /// A pack that is mostly dead is freed before what is left in it has moved.
    FreeSparse,
    /// A deletion counts as carried out although its pool sleeps.
    DeleteAsleep,
    /// No defect but a limit: a volume's server does not notice that its virtual machine stood still for longer than
    /// its successor waited. It reads slices that its successor has written since (`docs/volumes.md`).
    LongFreeze,
}

impl Bug {
    /// As the cluster was: what goes by a clock did not notice that its machine was suspended.
    pub(super) fn has_monotonic_clock(self) -> bool {
        matches!(self, Bug::IgnoreClaims | Bug::MonotonicClock | Bug::ForgetSessions | Bug::ZeroesExist)
    }
}

/// The defects of a run. Those of production crates are there only with their features `planted-bugs`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted {
    pub world: Option<Bug>,
    pub volume: Option<ebb_volume::PlantedBug>,
    /// Of the metadata members, all of them alike.
    pub member: Option<ebb_meta::PlantedBug>,
}
