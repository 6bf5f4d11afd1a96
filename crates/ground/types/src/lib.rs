//! Ebb's vocabulary as types: units, ids, the block record, the cluster map and the wire messages.
//!
//! Everything here is plain data. Other crates decide (`gear`, `meta`, `chunkserver`), move bytes (`store`, `client`,
//! `power`) or tie things together (`sim`, `eval`, `ebb`); they all use these types, so that a watt is never added to a
//! joule and a group id is never mistaken for a server id. `docs/wire.md` draws the frames.

mod actions;
mod bug;
pub mod control;
mod exposure;
pub mod frame;
pub mod gears;
mod grace;
pub mod health;
pub mod id;
pub mod latency;
pub mod load;
pub mod map;
pub mod message;
pub mod namespace;
pub mod notice;
pub mod piece;
pub mod power;
pub mod random;
pub mod record;
pub mod set;
pub mod shape;
mod shortage;
pub mod store;
mod tenure;
pub mod text;
pub mod units;
pub mod volume;
pub mod why;

pub use bug::{Bug, bug};
pub use control::*;
pub use gears::*;
pub use grace::Grace;
pub use health::*;
pub use id::*;
pub use latency::*;
pub use load::*;
pub use map::*;
pub use message::*;
pub use namespace::*;
pub use notice::*;
pub use piece::*;
pub use power::*;
pub use random::*;
pub use record::*;
pub use set::*;
pub use shape::*;
pub use shortage::is_full;
pub use store::*;
pub use tenure::*;
pub use text::*;
pub use units::*;
pub use volume::*;
pub use why::*;
