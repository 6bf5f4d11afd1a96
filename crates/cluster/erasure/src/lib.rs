//! Erasure-coded sets of servers whose parity servers sleep (ECS²).
//!
//! A set has k data servers and m parity servers. [`Code`] makes m parity strips from k data strips, of which any k of
//! all k + m suffice. While the parity servers sleep, the data servers keep the parity for them: [`Awake`] says which
//! of them keeps what, so that they alone survive the failures that ECS² promises. [`standby`] decides when the parity
//! servers wake and sleep, and [`model`] has the paper's formulas.
//!
//! Everything is pure: strips in, strips out.

mod awake;
mod code;
mod codes;
pub mod model;
mod rows;
pub mod standby;

pub use awake::Awake;
pub use code::{Code, Unrecoverable};
pub use codes::Codes;
pub use ebb_types::{Shape, ShapeError};
