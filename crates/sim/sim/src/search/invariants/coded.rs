//! Erasure-coded sets: what was acknowledged is on every column, a row has one content for ever, and a parity server
//! sleeps only when nothing counts on it (R1, R3, R6, R7 for columns; `docs/coded.md`).
//!
//! Seen from outside: each coder knows what it stored, and every strip of that follows from the definition of a row.

use crate::search::coder::{Stored, strips_of};
use crate::search::harness::World;
use crate::world::server::Server;
use crate::world::store::{Block, Kept};
use ebb_meta::State;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Column, Content, Epoch, GroupId, Record, Role, ServerId, ServerState, SetEntry,
    SetId, SlotState, Version, crc32c, lost_block_crc,
};

impl World<'_> {
    /// R1: rows are immutable. A block of one beyond repair is stored as lost, which is no content; and one that rotted
    /// in what is left of a write that failed becomes zeroes that are no strip.
    pub(super) fn r1_one_content_per_row(&mut self, record: &Record, payload: &[u8]) {
        let is_cleared = record.content == Content::Zero && record.version.seq == 2;
        let mut blocks = record.first..record.first + record.count;
        if is_cleared && !blocks.any(|block| self.is_stored(record.chunk, block)) {
            return;
        }
        let zeroes = [0; BLOCK_BYTES];
        for n in 0..record.count {
            let data = match &record.content {
                Content::Data { crcs } if crcs[n as usize] == lost_block_crc() => continue,
                Content::Data { .. } => &payload[n as usize * BLOCK_BYTES..][..BLOCK_BYTES],
                _ => &zeroes,
            };
            let key = (record.group, record.chunk, record.first + n);
            let sum = crc32c(data);
            let known = *self.harness.invariants.sets.contents.entry(key).or_insert(sum);
            if known != sum {
                let what = format!("{} block {} of {} has two contents", key.1, key.2, key.0);
                return self.fail("R1", what);
            }
        }
    }

    /// R3: all members agree on each epoch of each set; R7: a server that sleeps on purpose is not counted on.
    pub(super) fn r3_sets(&mut self, member: u64) {
        let state = self.members[&member].member.state();
        let (mut trouble, mut fresh) = (None, Vec::new());
        for (id, entry) in state.sets() {
            let known = self.harness.invariants.sets.entries.entry((id, entry.epoch)).or_insert_with(|| {
                fresh.push(entry.hibernates());
                entry.clone()
            });
            if known != entry {
                trouble = Some(format!("member-{member} has {id} as {entry:?}; another had {known:?}"));
            }
            let asleep = |s: ServerId| state.server(s).is_some_and(|s| s.state == ServerState::Asleep);
            let relied_on = |c: &&Column| !c.is_away() && !entry.hibernates() && asleep(c.server);
            if let Some(column) = entry.columns.iter().find(relied_on) {
                trouble = Some(format!("{id} counts on {}, which is asleep: {entry:?}", column.server));
            }
        }
        self.fail_if("R3", trouble);
        fresh.into_iter().filter(|hibernates| *hibernates).for_each(|_| self.count("set hibernates"));
    }

    /// R6: strips that were kept for a column are dropped when its server has them.
    pub(super) fn r6_column_has_it(&mut self, id: ServerId, group: GroupId, role: Role) {
        let Some((set, column)) = group.column() else { return };
        let Some(entry) = self.newest_state().set(set).cloned() else { return };
        let kept = self.servers[&id].store.kept(group, role);
        let mut strips = self.acknowledged_of(&kept);
        if self.is_in_memory(&entry)
            && entry.columns.get(column).is_some_and(|c| c.state == SlotState::InSync)
        {
            strips = self.acknowledged_strips(set);
        }
        let stands_for = match entry.columns.get(column) {
            Some(own) if own.server == id => return self.fail("R6", format!("{id} drops {group}, its own")),
            Some(own) => own.server,
            // An extra strip is needed while a parity server lacks what it stands for.
            None => return self.extra_is_not_needed(id, &entry, column, &kept),
        };
        // The content of an earlier try is the same, but others that lack what is newer would not be told of it.
        let lost = strips.into_iter().find(|(chunk, block)| {
            let version = Version { epoch: self.taken_under(*chunk, *block), seq: 1 };
            !self.has(stands_for, group, Role::Replica, *chunk, *block, version)
        });
        if let Some((chunk, block)) = lost.filter(|_| !self.has_forgotten(stands_for)) {
            let what = format!("{id} drops {chunk} block {block} of {group}, which {stands_for} lacks");
            self.fail("R6", what);
        }
    }

    fn extra_is_not_needed(&mut self, id: ServerId, entry: &SetEntry, column: usize, kept: &Kept) {
        let Some(since) = entry.missing_since(column) else { return };
        let is_new = |(chunk, block): &(ChunkId, u32)| kept[chunk][block].version.epoch >= since;
        if let Some((chunk, _)) = self.acknowledged_of(kept).into_iter().find(is_new) {
            self.fail("R6", format!("{id} drops extra strips of {chunk}, which parity lacks: {entry:?}"));
        }
    }

    /// The set that has the chunk's rows.
    pub fn set_of(&self, chunk: ChunkId) -> Option<SetId> {
        self.servers.values().map(|s| s.replica().map()).max_by_key(|map| map.version)?.set_of(chunk)
    }

    /// The coder's write that was acknowledged and has this block of every column, unless its chunk is to be deleted.
    fn write_of(&self, chunk: ChunkId, block: u32) -> Option<&Stored> {
        self.harness.coders.iter().flat_map(|c| &c.stored).find(|s| s.chunk == chunk && s.takes(block))
    }

    fn is_stored(&self, chunk: ChunkId, block: u32) -> bool {
        self.write_of(chunk, block).is_some()
    }

    /// The epoch under which all strips of a block that is stored were taken.
    fn taken_under(&self, chunk: ChunkId, block: u32) -> Epoch {
        self.write_of(chunk, block).map_or(Epoch(0), |stored| stored.epoch)
    }

    /// The blocks in `kept` that are stored and not to be deleted.
    fn acknowledged_of(&self, kept: &Kept) -> Vec<(ChunkId, u32)> {
        let blocks = kept.iter().flat_map(|(chunk, blocks)| blocks.keys().map(|block| (*chunk, *block)));
        blocks.filter(|(chunk, block)| self.is_stored(*chunk, *block)).collect()
    }

    /// The blocks of the column of all chunks that are stored and not to be deleted: what was kept in memory is gone
    /// already. Of a chunk that was ruined there may be no parity, and nothing to compute it from.
    fn acknowledged_strips(&self, set: SetId) -> Vec<(ChunkId, u32)> {
        let mut all = Vec::new();
        let is_judged = |stored: &&Stored| {
            !self.harness.invariants.ruined.contains(&stored.chunk) && self.set_of(stored.chunk) == Some(set)
        };
        for stored in self.harness.coders.iter().flat_map(|c| &c.stored).filter(is_judged) {
            all.extend((0..stored.blocks).map(|n| (stored.chunk, stored.first + n)));
        }
        all
    }

    /// R7: only parity servers sleep, unless their set hibernates. Then nothing is in memory that a column lacks; and
    /// as the last data server falls asleep, each row has its parity.
    pub(super) fn r7_columns(&self, id: ServerId, state: &State) -> Option<String> {
        let (set, entry) = state.sets().find(|(_, entry)| entry.column_of(id).is_some())?;
        let column = entry.column_of(id)?;
        let in_memory = self.servers[&id].replica().stats().memory_bytes;
        if entry.hibernates() {
            let owes = in_memory > 0 && !entry.is_in_sync();
            let owed = owes.then(|| format!("{in_memory} bytes of strips of {set} are only in its memory"));
            return owed.or_else(|| self.parity_is_nowhere(id, (set, entry), state));
        }
        if column < entry.shape.data() {
            return Some(format!("it has the data of {set}"));
        }
        let kept = self.servers[&id].store.roles();
        let other = kept.into_iter().find(|(group, role)| group.column().is_some() && *role != Role::Replica);
        other
            .map(|(group, _)| format!("it keeps strips of {group}"))
            .or_else(|| (in_memory > 0).then(|| format!("it keeps {in_memory} bytes of strips in memory")))
    }

    /// A strip of a column that is away which neither its server nor a holder has, although no data server of the set
    /// is left that could say so.
    fn parity_is_nowhere(
        &self,
        id: ServerId,
        (set, entry): (SetId, &SetEntry),
        state: &State,
    ) -> Option<String> {
        let sleeps = |c: &Column| state.server(c.server).is_some_and(|s| s.state == ServerState::Asleep);
        let is_off = |c: &Column| sleeps(c) && (c.server == id || !self.servers[&c.server].up);
        let has_lost = |c: &Column| self.has_forgotten(c.server);
        if !entry.columns.iter().take(entry.shape.data()).all(is_off) || entry.columns.iter().any(has_lost) {
            return None;
        }
        let mut strips = self.acknowledged_strips(set);
        strips.retain(|(chunk, _)| !self.harness.invariants.ruined.contains(chunk));
        let any = Version { epoch: Epoch(0), seq: 1 };
        for (column, own) in entry.columns.iter().enumerate().filter(|(_, own)| own.is_away()) {
            let (group, kept) = (GroupId::of_column(set, column), Role::Offload { stands_for: own.server });
            let has = |&(chunk, block): &(ChunkId, u32)| {
                let holds = |s: &ServerId| self.has(*s, group, kept, chunk, block, any);
                self.has(own.server, group, Role::Replica, chunk, block, any)
                    || self.servers.keys().any(holds)
            };
            if let Some((chunk, block)) = strips.iter().find(|strip| !has(strip)) {
                return Some(format!("no server has {chunk} block {block} of {group}, of {}", own.server));
            }
        }
        None
    }

    /// At rest: every column has its strip of everything that was stored, and no server has what was deleted.
    pub fn r4_columns_are_right(&mut self) {
        let sets: Vec<(SetId, SetEntry)> =
            self.newest_state().sets().map(|(id, entry)| (id, entry.clone())).collect();
        let stored: Vec<Stored> = self.harness.coders.iter().flat_map(|coder| coder.stored.clone()).collect();
        let deleted: Vec<Stored> =
            self.harness.coders.iter().flat_map(|coder| coder.deleted.clone()).collect();
        for (set, entry) in sets {
            for chunk in stored.iter().filter(|stored| self.set_of(stored.chunk) == Some(set)) {
                let turn = entry.turn(chunk.chunk);
                let strips = strips_of(*chunk, entry.shape, turn);
                for (column, strip) in strips.iter().take(entry.shape.servers()).enumerate() {
                    if let Some(what) = self.strip_is_wrong(set, &entry, *chunk, column, strip) {
                        return self.fail("R4", what);
                    }
                }
            }
            for Stored { chunk, .. } in &deleted {
                let groups = (0..entry.strips()).map(|column| GroupId::of_column(set, column));
                let servers = || self.servers.values().filter(|server| !server.lost);
                let in_memory = |server: &Server, group, chunk| {
                    let roles = self.servers.keys().map(|of| Role::Offload { stands_for: *of });
                    let mut kept = roles.flat_map(|role| server.replica().kept_in_memory(group, role));
                    kept.any(|block| block.chunk == chunk)
                };
                let mut places = groups.flat_map(|group| servers().map(move |s| (group, s)));
                let left = places.find(|(group, server)| {
                    let roles = server.store.roles().into_iter().filter(|(of, _)| of == group);
                    roles.into_iter().any(|(group, role)| {
                        let kept = server.store.kept_of(group, role, *chunk);
                        kept.values().any(|block| block.data.is_some())
                    }) || in_memory(server, *group, *chunk)
                });
                if let Some(what) = left
                    .map(|(group, server)| format!("{chunk} was deleted and {} has it in {group}", server.id))
                {
                    return self.fail("R4", what);
                }
            }
        }
    }

    fn strip_is_wrong(
        &self,
        set: SetId,
        entry: &SetEntry,
        stored: Stored,
        column: usize,
        strip: &[u8],
    ) -> Option<String> {
        let own = entry.columns[column];
        let (server, role) = match own.state {
            SlotState::InSync => (own.server, Role::Replica),
            _ => (entry.targets(stored.chunk)[column]?, Role::Offload { stands_for: own.server }),
        };
        let store = &self.servers[&server].store;
        if store.damaged.contains(&stored.chunk) || self.harness.invariants.ruined.contains(&stored.chunk) {
            return None;
        }
        let group = GroupId::of_column(set, column);
        let mut kept = store.kept_of(group, role, stored.chunk);
        for block in self.servers[&server].replica().kept_in_memory(group, role) {
            if block.chunk == stored.chunk {
                kept.insert(block.block, Block { version: block.version, data: block.data });
            }
        }
        let zeroes = vec![0; BLOCK_BYTES];
        for (n, wanted) in (stored.first..).zip(strip.chunks(BLOCK_BYTES)) {
            let block = kept.get(&n);
            if let Some(block) = block.filter(|block| block.version.epoch < stored.epoch) {
                let (chunk, version, epoch) = (stored.chunk, block.version, stored.epoch);
                return Some(format!(
                    "{server} has {chunk} block {n} of {group} as {version}, not of {epoch}"
                ));
            }
            let data = block.map(|block| block.data.as_deref().unwrap_or(&zeroes));
            if data != Some(wanted) {
                let found = if block.is_some() { "other bytes" } else { "nothing" };
                let chunk = stored.chunk;
                return Some(format!(
                    "{server} has {found} in {chunk} block {n} of {group} ({:?})",
                    own.state
                ));
            }
        }
        None
    }
}
