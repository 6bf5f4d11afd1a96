//! Faults: crashes, pauses, partitions, slow, full, rotting and failing disks, switches, gears, losses. What a seed
//! draws strikes in [`strike`].

mod bearable;
mod directories;
mod disks;
mod heal;
mod load;
mod losses;
mod machines;
mod members;
mod network;
mod operator;
mod roster;
mod ruin;
mod strike;
mod switches;

use ebb_store::mem::MemDisk;
use ebb_testing::search::Faults;
use ebb_types::ServerId;
use std::collections::{BTreeMap, BTreeSet};

/// Attempts to draw damage that the cluster can survive.
const TRIES: u32 = 12;

/// The faults of a run.
#[derive(Default)]
pub struct Mishaps {
    pub faults: Faults,
    /// Until then the load is too heavy for all disks.
    overloaded_until: u64,
    /// The metadata leader fails as soon as it has proposed a change of epochs.
    ambush: bool,
    /// Until then no leader fails so.
    truce_until: u64,
    /// The operator has begun to add and drain servers; who was part of the cluster then.
    has_roster: bool,
    roster: Roster,
    /// The operator's backups of stores' directories, which may be restored.
    backups: BTreeMap<ServerId, MemDisk>,
}

/// Who was part of the cluster at the last look, and what for.
#[derive(Default)]
struct Roster {
    version: u64,
    servers: BTreeSet<ServerId>,
    joins: bool,
    drains: bool,
    drained: bool,
    moves: bool,
}
