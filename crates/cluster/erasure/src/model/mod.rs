//! The paper's models [ECS² §4]: how reliable a set is, how large its buffers must be, what energy it takes.
//!
//! Where a printed formula does not give the printed number, the function is the one that does or that the text
//! describes, and a test says so by its name.

pub mod buffer;
pub mod energy;
pub mod reliability;
