//! Checks of the rules R1–R10, R13 and R19, and that gears never flap; one file each, run after every event that could
//! break them.
//!
//! They see everything: every disk, every clock, every member's state. [`Invariants`] keeps what they know beyond that
//! (the first version of each value, the configuration of each epoch).

mod coded;
mod dwell;
mod given_up;
mod memory;
mod r10_space;
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

use crate::world::World;
use crate::world::client::{CELL_BYTES, value_of};
use crate::world::coder::CODED_OP;
use crate::world::store::{Block, Kept};
use ebb_chunkserver::StoreCommand;
use ebb_meta::SwitchAction;
use ebb_types::{
    ChunkId, ClientReply, Epoch, GroupEntry, GroupId, MetaPush, PeerMessage, Role, ServerId, SetEntry, SetId,
    Version,
};
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
    /// The newest map that any member ever had. Those that start again have it once they know what was committed.
    pub newest_map: u64,
    /// Newest fence of each run of each server.
    fences: BTreeMap<(ServerId, u64, GroupId), Epoch>,
    /// The newest epoch of each group in which a primary served, or could serve once it was on record.
    served: BTreeMap<GroupId, Epoch>,
    /// Operations that a server reported as done.
    acknowledged: HashSet<usize>,
    /// When a disk was last full.
    pub full_at: Option<u64>,
    /// The erasure-coded sets.
    sets: Sets,
    /// Since when a peer of a failed replica has been left asleep.
    left_alone: Option<u64>,
    /// The gears, and the servers that follow them.
    gears: dwell::Gears,
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

/// Modelled worlds are not checked: they keep no bytes to compare, and break nothing.
impl World<'_> {
    /// After every event of a server.
    pub fn check_server(&mut self, id: ServerId) {
        if self.modelled.is_some() {
            return;
        }
        self.r1_fences(id);
        self.r2_one_serves(id);
        self.r4_scrubs_find_nothing(id);
    }

    /// After every input of a metadata member.
    pub fn check_map(&mut self, member: u64) {
        if self.modelled.is_some() {
            return;
        }
        let version = self.members[&member].member.state().version();
        self.invariants.newest_map = self.invariants.newest_map.max(version);
        self.r3_configurations(member);
        self.r3_sets(member);
        self.nothing_is_given_up_with_a_server(member);
        self.dwell_of_gears(member);
        self.dwell_of_servers();
    }

    /// After an input of a metadata member whose log hangs: the gear's dwell time begins when it was chosen, and not
    /// when the log has it (seed 99 with `LostRowLacks`).
    pub fn check_gear(&mut self, member: u64) {
        if self.modelled.is_none() {
            self.dwell_of_gears(member);
        }
    }

    /// Before a member sends a push to a server.
    pub fn check_push(&mut self, member: u64, push: &MetaPush) {
        if self.modelled.is_some() {
            return;
        }
        self.r3_pushed_map(member, push);
    }

    /// Before a message leaves a server.
    pub fn check_send(&mut self, from: ServerId, message: &PeerMessage) {
        if self.modelled.is_some() {
            return;
        }
        self.r1_only_the_primary_orders(from, message);
    }

    /// Before an answer leaves a server.
    pub fn check_reply(&mut self, from: ServerId, op: usize, reply: &ClientReply) {
        if self.modelled.is_some() {
            return;
        }
        if op != CODED_OP {
            self.r5_every_copy_is_durable(from, op, reply);
        }
        self.r9_poisoned_is_silent(from, reply);
    }

    /// Before a record goes into a store.
    pub fn check_submit(&mut self, command: &StoreCommand) {
        self.r1_one_content_per_version(command);
    }

    /// Before a role is dropped.
    pub fn check_drop(&mut self, id: ServerId, group: GroupId, role: Role) {
        if self.modelled.is_some() {
            return;
        }
        self.r6_nothing_is_lost_with_it(id, group, role);
        self.r6_column_has_it(id, group, role);
    }

    /// Before a leader's order to a power switch.
    pub fn check_order(&mut self, member: u64, id: ServerId, action: SwitchAction) {
        if self.modelled.is_some() || action.is_wake() {
            return;
        }
        self.r8_it_can_be_woken(member, id);
    }

    /// When a power switch turns a server off.
    pub fn check_sleep(&mut self, id: ServerId) {
        if self.modelled.is_some() {
            return;
        }
        self.r7_no_server_needs_it(id);
    }

    /// A client got the answer that a block fails its checksum everywhere.
    pub fn check_corrupt(&mut self, op: usize) {
        if !self.invariants.rot_seen {
            self.fail("R9", format!("op {op} was answered with damage, and nothing was damaged"));
        }
    }

    /// How often a group's primary changed.
    pub fn primaries_moved(&self) -> u64 {
        let known: Vec<_> =
            self.invariants.entries.iter().filter_map(|((g, _), e)| Some((*g, e.primary?))).collect();
        known.windows(2).filter(|w| w[0].0 == w[1].0 && w[0].1 != w[1].1).count() as u64
    }

    /// Whether the server durably has this block in `version` or newer, in that role.
    fn has(
        &self,
        server: ServerId,
        group: GroupId,
        role: Role,
        chunk: ChunkId,
        block: u32,
        version: Version,
    ) -> bool {
        let server = self.servers.get(&server);
        server.is_some_and(|s| s.store.has(group, role, chunk, block, version))
    }

    /// The acknowledged client values in `kept`: chunk, block, value, and the version by which it must be present.
    /// Chunks that may be deleted are left out: a server without them may have forgotten why.
    fn acknowledged_in(&self, kept: &Kept) -> Vec<(ChunkId, u32, u64, Version)> {
        let mut found = Vec::new();
        for (&chunk, blocks) in kept.iter().filter(|(chunk, _)| !self.history.was_to_be_deleted(**chunk)) {
            for (&n, block) in blocks {
                for value in values_of(block) {
                    if self.history.is_acknowledged(value)
                        && let Some(version) = self.invariants.first_version.get(&value)
                    {
                        found.push((chunk, n, value, *version));
                    }
                }
            }
        }
        found
    }
}

/// The client values in a block.
fn values_of(block: &Block) -> impl Iterator<Item = u64> + '_ {
    let cells = block.data.iter().flat_map(|data| data.chunks(CELL_BYTES as usize));
    cells.filter_map(value_of).filter(|v| *v > 0)
}

fn first_value(block: &Block) -> Option<u64> {
    values_of(block).next()
}
