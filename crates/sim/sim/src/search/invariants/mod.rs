//! Checks of the rules R1–R10, R12, R13 and R19, and that gears never flap; one file each, run after every event that
//! could break them: which after which, [`judge`] says.
//!
//! They see everything: every disk, every clock, every member's state. [`Invariants`] keeps what they know beyond that
//! (the first version of each value, the configuration of each epoch).

mod coded;
mod dwell;
mod given_up;
mod judge;
mod memory;
mod r10_space;
mod r12_unread;
mod r13_racks;
mod r19_rest;
mod r1_order;
mod r2_lease;
mod r3_configuration;
mod r4_divergence;
mod r5_acknowledged;
mod r6_offload;
mod r7_sleep;
mod r8_rescue;
mod r9_damage;
mod survival;

pub use r13_racks::replicas_shared;

use crate::search::client::{CELL_BYTES, value_of};
use crate::world::store::Block;
use ebb_types::{ChunkId, Epoch, GroupEntry, GroupId, ServerId, ServerState, SetEntry, SetId, Version};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What has a complete copy is served, whatever else is lost.
pub const SURVIVAL: &str = "survival";
/// What has none is served once an operator accepts the loss.
pub const RESORT: &str = "last resort";
/// What was stored in an erasure-coded pool is read as it was written, or not at all.
pub const CODED: &str = "coded";
/// No server is declared lost that has the only copy of acknowledged data, unless the operator accepts the loss.
pub const GIVEN_UP: &str = "given up";
/// The rules that no loss excuses: no two contents of a version, no two primaries, no two configurations, and these.
pub const BEYOND_LOSS: [&str; 7] = ["R1", "R2", "R3", SURVIVAL, RESORT, CODED, GIVEN_UP];

/// The configuration of each epoch of each group.
type Entries = BTreeMap<(GroupId, Epoch), GroupEntry>;

/// What is known of the erasure-coded sets so far.
#[derive(Default)]
struct Sets {
    /// The configuration of each epoch of each set.
    entries: BTreeMap<(SetId, Epoch), SetEntry>,
    /// Checksum of each block of each column ever handed to a store.
    contents: BTreeMap<(GroupId, ChunkId, u32), u32>,
}

/// Observations of the gears so far.
#[derive(Default)]
struct Gears {
    /// The newest leader's term, and its gear.
    term: u64,
    gear: u8,
    /// The servers that are to be awake in it, and since when this leader wants them: it may be slow to record that.
    awake: BTreeMap<ServerId, u64>,
    /// When this leader last raised it.
    raised: Option<u64>,
    /// Since when servers are awake for a gear.
    woken: BTreeMap<ServerId, u64>,
    states: BTreeMap<ServerId, ServerState>,
    /// Servers that an operator tests or takes out for maintenance.
    operated: BTreeSet<ServerId>,
    map_version: u64,
}

#[derive(Default)]
pub struct Invariants {
    /// Checksum of each block in each version ever handed to a store.
    contents: HashMap<(ChunkId, u32, Version), u32>,
    /// The version under which a client's value was first ordered.
    first_version: HashMap<u64, Version>,
    /// Every configuration that any member ever had.
    entries: Entries,
    /// Map version of each member that was checked last.
    looked: BTreeMap<u64, u64>,
    /// The present run of each server, and its newest fence in each group.
    fences: BTreeMap<ServerId, (u64, Vec<Epoch>)>,
    /// The newest epoch of each group in which a primary served, or could serve once it was on record.
    served: BTreeMap<GroupId, Epoch>,
    /// The run of each server, and the epoch of each group in the first map that includes it.
    remembers: BTreeMap<ServerId, (u64, BTreeMap<GroupId, Epoch>)>,
    /// Operations that a server reported as done.
    acknowledged: HashSet<usize>,
    /// When a disk was last full.
    pub full_at: Option<u64>,
    /// The erasure-coded sets.
    sets: Sets,
    /// Since when a peer of a failed replica has been left asleep.
    left_alone: Option<u64>,
    /// The gears, and the servers that follow them.
    gears: Gears,
    /// Servers that the state calls lost.
    given_up: BTreeSet<ServerId>,
    /// Chunks that rotted on more servers than can be borne: what is left of them is not compared.
    pub ruined: BTreeSet<ChunkId>,
    /// Columns whose disks were lost together, more than their set bears: reads of them may report that.
    pub lost_columns: BTreeSet<GroupId>,
    /// More was lost than can be borne: few rules hold from now on.
    pub beyond: bool,
    /// Some block has rotted: answers may report damage from now on.
    pub rot_seen: bool,
}

/// The client values in a block.
fn values_of(block: &Block) -> impl Iterator<Item = u64> + '_ {
    let cells = block.data.iter().flat_map(|data| data.chunks(CELL_BYTES as usize));
    cells.filter_map(value_of).filter(|v| *v > 0)
}

fn first_value(block: &Block) -> Option<u64> {
    values_of(block).next()
}
