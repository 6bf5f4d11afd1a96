//! What the simulators here run on: an [`Agenda`] of future events, [`Clock`]s that disagree, and [`Slab`]s of what is
//! under way.
//!
//! Time is nanoseconds since a run began, or whatever unit its simulator counts in; the true time is the simulator's
//! own. Randomness is [`ebb_types::Random`]: a run forks one stream for each use, so that drawing more for one changes
//! no other. So a run is a function of its seed, to the last byte.

mod agenda;
mod clock;
mod slab;

pub use agenda::{Agenda, Due};
pub use clock::{Clock, MILLI, SECOND};
pub use slab::Slab;
