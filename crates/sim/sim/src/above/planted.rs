//! Defects that the search must find.

/// Defects of what is modelled here, as they were in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Primaries carry out requests under a claim that has ended.
    IgnoreClaims,
    /// Deadlines and claims go by a clock that stands still while the machine is suspended.
    MonotonicClock,
    /// A command of a client that the namespace has forgotten counts as a new client's.
    ForgetSessions,
    /// What was set to zero counts as written, and the time since a lookup goes by a clock that stands still.
    ZeroesExist,
    /// A gateway judges the age of objects by its own wall clock.
    JudgeByOwnClock,
    /// A write brings a deleted chunk back.
    ReviveDeleted,
}

/// The defects of a run. Those of production crates are there only with their features `planted-bugs`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted {
    pub world: Option<Bug>,
    pub volume: Option<ebb_volume::PlantedBug>,
}
