//! Which servers hold which data, how loaded the cluster is, and how many servers it needs: Sierra's layout and
//! gear scheduler; and which servers form the sets of erasure-coded pools ([`sets()`]).
//!
//! Pure functions and two decision makers, [`Fleet`] (server by server) and [`Scheduler`] (whole gears), with one
//! interface, [`Decider`]: no clock, no randomness, no I/O. Time and seeds are arguments, so the simulator, the dry run
//! and the cluster run the same code. [Sierra §3.3, §3.4]

pub mod decider;
pub mod fleet;
pub mod forecast;
pub mod layout;
pub mod load;
pub mod moves;
pub mod rehearsal;
pub mod schedule;
pub mod seasonal;
pub mod sets;
pub mod settings;
pub mod window;

pub use decider::{Command, Decider, Event, Mode, Planned, State};
pub use fleet::{DepthSpec, Fleet, FleetError, FleetPolicy};
pub use forecast::{Basis, Forecast, History, forecast};
pub use layout::{
    Layout, LayoutError, Place, Scheme, Server, layout, parting, power_down, power_down_count,
    rebuild_choice, rebuild_parallelism, spread, spread_awake,
};
pub use load::{HourMeter, Load, RatesError, ServerRates, load, load_terms};
pub use moves::{Claimant, Move, Rearrangement, gear_group_for, rearrange};
pub use rehearsal::{LoadSeries, Provision, RehearsalError, rehearsal, sample_interval};
pub use schedule::{
    Calendar, GearError, Policy, PolicyError, Schedule, Scheduler, awake_groups, floor_servers,
    gear_by_formula, gear_for, oracle,
};
pub use seasonal::Seasonal;
pub use sets::{SetsError, sets};
pub use settings::{DepthCost, Sleep, WishError, check_wish};
pub use window::Window;
