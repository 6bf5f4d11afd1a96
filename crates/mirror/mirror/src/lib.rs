//! A mirror of two-speed disks whose writes wait in a log (LogStore). Pure.
//!
//! [`Mirror`] is the state machine: clients' requests and disks' answers in ([`api`]), commands to both out. [`policy`]
//! decides about modes, speeds and reads, by the thresholds of [`settings`]. [`open`] finds out what two disks have
//! after an end of any kind.
//!
//! What is on the disks, as `docs/mirror-format.md` draws it: [`geometry`] says where everything is, [`superblock`] who
//! a disk is, [`intent`] which regions may differ, and [`log_format`] what is in the log; [`table`] has the latter in
//! memory.
//!
//! [`two_speed`] models a disk, for simulators and emulators.

pub mod api;
mod disk;
mod fields;
pub mod geometry;
pub mod intent;
mod locks;
mod log;
pub mod log_format;
mod marks;
mod members;
pub mod mirror;
mod op;
pub mod open;
mod ops;
pub mod policy;
pub mod settings;
mod state;
pub mod superblock;
pub mod table;
pub mod two_speed;

pub use api::{Command, DiskOp, Event, Found, Mode, Parts, Reply, Request, Side, Speed, Spent, Token};
pub use geometry::{Geometry, GeometryError};
pub use intent::{IntentMap, RegionSet};
pub use log_format::{Entry, Header, LogBatch, LogDamaged, LogEnd, LogId, Logged, Scan, Stamp};
pub use mirror::Mirror;
pub use mirror::status::{DiskState, DiskStatus, ScrubStatus, Status};
pub use settings::{Ack, Adaptive, PlantedBug, PolicyKind, Settings, SettingsError, Sleep, Thresholds};
pub use superblock::{DiskId, MirrorId, Other, Own, Superblock, SuperblockError};
pub use table::Table;
pub use two_speed::{
    ChangeModel, DiskEnergy, Energy, ModelError, Share, SpeedModel, TwoSpeedDisk, TwoSpeedModel, seek_curve,
};

/// Unit of addresses, in bytes: requests cover whole blocks, and the log's table has one entry per block.
pub const BLOCK_BYTES: u64 = 4096;
