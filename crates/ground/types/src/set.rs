//! Erasure-coded pools: the configuration of a set, and which server has which strip of a chunk.
//!
//! A chunk of such a pool is written once, in rows. A row is one **strip** of [`STRIP_BLOCKS`] blocks on each of k data
//! servers, one on each of m parity servers, and, while parity servers are away, Δm extra strips on data servers ([ECS²
//! §3.2], crate `erasure`). The strips of one server's place form a **column**: k data columns, m parity columns, Δm
//! extra ones.
//!
//! [`SetEntry`] is the configuration of a set of servers under one epoch. A column is away while its server sleeps or
//! has failed; other servers of the set then stand in for it. Who does, follows from the entry and the chunk
//! ([`SetEntry::targets`]).
//!
//! Rows are immutable: no client writes a block of a coded chunk with other content, so strips need no order and no
//! primary. A write is complete when all its strips are durable on the targets of *one* epoch; a server refuses every
//! older epoch (R1).
//!
//! To stores and on the wire, a column is a group: [`GroupId::of_column`].

use crate::map::chunk_hash;
use crate::{BLOCK_BYTES, ChunkId, Epoch, GroupId, PoolId, ServerId, SetId, Shape, SlotState};
use serde::{Deserialize, Serialize};

/// Length of a strip in blocks: 16 KiB [ECS² Table VI].
pub const STRIP_BLOCKS: u32 = 4;
const STRIP_BYTES: u32 = STRIP_BLOCKS * BLOCK_BYTES as u32;

/// Where the strips of sleeping parity servers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParityDebt {
    /// In the data servers' memory, as in ECS²: a server that restarts computes them again. A power cut that also takes
    /// a disk loses what was written since parity servers slept.
    Ram,
    /// On the data servers' disks.
    Segment,
}

/// An erasure-coded pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolEntry {
    pub id: PoolId,
    pub name: String,
    pub shape: Shape,
    pub parity_debt: ParityDebt,
    /// What each data server may keep for sleeping parity servers.
    pub parity_buffer_bytes: u64,
    /// Idle time after which a set hibernates; `None`: never.
    pub hibernate_after_millis: Option<u64>,
    /// What a server may fetch per second to fill a column that was lost; `None`: as much as it can.
    pub rebuild_bytes_per_second: Option<u64>,
    /// Parity servers of each set that stay awake.
    pub awake_parity: u8,
    /// A chunk's set is chosen by hash, so this list never changes.
    pub sets: Vec<SetId>,
}

impl PoolEntry {
    /// The pool with the settings of `other` that may change at any time.
    pub fn with_settings_of(&self, other: &PoolEntry) -> PoolEntry {
        PoolEntry {
            hibernate_after_millis: other.hibernate_after_millis,
            rebuild_bytes_per_second: other.rebuild_bytes_per_second,
            awake_parity: other.awake_parity,
            ..self.clone()
        }
    }
}

/// One of the k + m places of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub server: ServerId,
    pub state: SlotState,
}

impl Column {
    pub fn is_away(&self) -> bool {
        matches!(self.state, SlotState::Away { .. })
    }
}

/// Configuration of a set under one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetEntry {
    pub pool: PoolId,
    pub shape: Shape,
    pub epoch: Epoch,
    /// Unix time since when the set hibernates: all its servers sleep or are about to, and no strip has a target, so
    /// nothing is written, and no column lacks more than before.
    pub hibernates_since: Option<u64>,
    /// The k data columns, then the m parity columns.
    pub columns: Vec<Column>,
}

impl SetEntry {
    /// The entry of a set of which nothing is known.
    pub fn unknown() -> SetEntry {
        let shape = Shape::new(Shape::DATA_MIN, 1).expect("the smallest shape");
        SetEntry { pool: PoolId(0), shape, epoch: Epoch(0), hibernates_since: None, columns: Vec::new() }
    }

    pub fn hibernates(&self) -> bool {
        self.hibernates_since.is_some()
    }

    /// k + m + Δm.
    pub fn strips(&self) -> usize {
        self.shape.servers() + self.shape.extra()
    }

    /// By which the strips of sleeping parity servers wander over the data servers: 0 to k-1.
    pub fn turn(&self, chunk: ChunkId) -> usize {
        // The lower half of the hash chose the set.
        (chunk_hash(chunk) >> 32) as usize % self.shape.data()
    }

    pub fn column_of(&self, server: ServerId) -> Option<usize> {
        self.columns.iter().position(|column| column.server == server)
    }

    pub fn parity_is_away(&self) -> bool {
        self.columns.iter().skip(self.shape.data()).any(Column::is_away)
    }

    /// Whether rows have extra strips now.
    pub fn has_extra(&self) -> bool {
        self.parity_is_away() && self.shape.may_sleep().is_ok()
    }

    /// The server that each strip of a chunk's rows goes to: k data, m parity, Δm extra. `None`: there is no such strip
    /// now (the extra ones while no parity server is away), or no server for it, as for all while the set hibernates.
    ///
    /// A column that is not away has its own strips. Each other strip goes to the data server with the fewest strips of
    /// the chunk, from the one that `ec::Awake` names for this turn on.
    pub fn targets(&self, chunk: ChunkId) -> Vec<Option<ServerId>> {
        if self.hibernates() {
            return vec![None; self.strips()];
        }
        let (k, turn) = (self.shape.data(), self.turn(chunk));
        let extra = self.has_extra();
        let mut targets: Vec<Option<ServerId>> =
            self.columns.iter().map(|column| (!column.is_away()).then_some(column.server)).collect();
        targets.resize(self.strips(), None);
        let mut kept: Vec<Option<u32>> = targets[..k].iter().map(|target| target.map(|_| 1)).collect();
        for strip in (k..self.strips()).chain(0..k) {
            let wanted = strip < self.shape.servers() || extra;
            if targets[strip].is_some() || !wanted {
                continue;
            }
            let first = (turn + strip.saturating_sub(k)) % k;
            let rank = |nth: &usize| kept[*nth].map(|count| (count, (nth + k - first) % k));
            let holder = (0..k).filter(|nth| kept[*nth].is_some()).min_by_key(rank);
            targets[strip] = holder.map(|nth| self.columns[nth].server);
            holder.and_then(|nth| kept[nth].as_mut()).into_iter().for_each(|count| *count += 1);
        }
        targets
    }

    pub fn is_in_sync(&self) -> bool {
        self.columns.iter().all(|column| column.state == SlotState::InSync)
    }

    /// Since which epoch the column's server lacks strips; `None`: it has all. The extra columns stand for the parity
    /// that is away.
    pub fn missing_since(&self, column: usize) -> Option<Epoch> {
        let since = |column: &Column| column.state.lacks_since();
        match self.columns.get(column) {
            Some(own) => since(own),
            None => self.columns.iter().skip(self.shape.data()).filter_map(since).min(),
        }
    }
}

const OF_COLUMN: u32 = 1 << 31;
const COLUMN_BITS: u32 = 5;

impl GroupId {
    /// The group that stands for a set's column.
    pub fn of_column(set: SetId, column: usize) -> GroupId {
        GroupId(OF_COLUMN | u32::from(set.0) << COLUMN_BITS | column as u32)
    }

    /// The column that the group stands for; `None`: it is a chunk group.
    pub fn column(self) -> Option<(SetId, usize)> {
        let number = self.0 & !OF_COLUMN;
        let column = (number & ((1 << COLUMN_BITS) - 1)) as usize;
        (self.0 & OF_COLUMN != 0).then_some((SetId((number >> COLUMN_BITS) as u16), column))
    }
}

/// How a chunk of an erasure-coded pool lies in its columns: row by row, strip by strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    data: u32,
    chunk_bytes: u32,
}

/// Consecutive bytes of a chunk that lie on one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripPart {
    pub column: usize,
    /// In the column.
    pub offset: u32,
    pub len: u32,
}

impl Rows {
    pub fn new(shape: Shape, chunk_bytes: u32) -> Rows {
        Rows { data: shape.data() as u32, chunk_bytes }
    }

    /// Bytes of data in a whole row.
    pub fn row_bytes(&self) -> u32 {
        self.data * STRIP_BYTES
    }

    /// Length of a column in bytes.
    pub fn column_bytes(&self) -> u32 {
        self.chunk_bytes.div_ceil(self.row_bytes()) * STRIP_BYTES
    }

    /// The parts of a range of the chunk, in order.
    pub fn parts(&self, offset: u32, len: u32) -> impl Iterator<Item = StripPart> + use<> {
        let (row_bytes, end) = (self.row_bytes(), offset + len);
        let mut at = offset;
        std::iter::from_fn(move || {
            let (row, in_row) = (at / row_bytes, at % row_bytes);
            let in_strip = in_row % STRIP_BYTES;
            let len = (STRIP_BYTES - in_strip).min(end - at);
            let part = StripPart {
                column: (in_row / STRIP_BYTES) as usize,
                offset: row * STRIP_BYTES + in_strip,
                len,
            };
            at += len;
            (len > 0).then_some(part)
        })
    }

    /// The parts of each data column in a range of the chunk, which are adjacent: their first byte and length there.
    pub fn columns(&self, offset: u32, len: u32) -> Vec<(u32, u32)> {
        let mut ranges = vec![(0, 0); self.data as usize];
        for part in self.parts(offset, len) {
            let (first, bytes) = &mut ranges[part.column];
            *first = if *bytes == 0 { part.offset } else { *first };
            *bytes += part.len;
        }
        ranges
    }

    /// The blocks that a write of `len` bytes from the start of a row takes in every column: first and count. The last
    /// row is as narrow as its longest strip.
    pub fn blocks(&self, offset: u32, len: u32) -> (u32, u32) {
        let (rows, rest) = (len / self.row_bytes(), len % self.row_bytes());
        let last = rest.min(STRIP_BYTES).div_ceil(BLOCK_BYTES as u32);
        (offset / self.row_bytes() * STRIP_BLOCKS, rows * STRIP_BLOCKS + last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObjectId;
    use std::collections::BTreeSet;

    fn entry(k: u8, m: u8, away: &[usize]) -> SetEntry {
        let shape = Shape::new(k, m).unwrap();
        let state =
            |n| if away.contains(&n) { SlotState::Away { since: Epoch(3) } } else { SlotState::InSync };
        let column = |n: usize| Column { server: ServerId(n as u16), state: state(n) };
        SetEntry {
            pool: PoolId(1),
            shape,
            epoch: Epoch(5),
            hibernates_since: None,
            columns: (0..shape.servers()).map(column).collect(),
        }
    }

    fn chunk(n: u64) -> ChunkId {
        ChunkId { object: ObjectId(n).in_pool(PoolId(1)), index: 0 }
    }

    #[test]
    fn an_object_knows_its_pool() {
        let id = ObjectId(77).in_pool(PoolId(3));
        assert_eq!((id.pool(), id.serial()), (PoolId(3), ObjectId(77)));
        assert_eq!(id.in_pool(PoolId(0)), ObjectId(77));
    }

    #[test]
    fn a_group_may_stand_for_a_column() {
        assert_eq!(GroupId(77).column(), None);
        for (set, column) in [(0, 0), (3, 9), (u16::MAX, 17)] {
            assert_eq!(GroupId::of_column(SetId(set), column).column(), Some((SetId(set), column)));
        }
    }

    #[test]
    fn with_all_awake_every_strip_is_at_home_and_there_are_no_extra_ones() {
        let entry = entry(6, 3, &[]);
        let home: Vec<Option<ServerId>> = (0..9).map(|n| Some(ServerId(n))).collect();
        assert_eq!(entry.targets(chunk(1)), [home, vec![None]].concat());
    }

    #[test]
    fn strips_of_sleeping_parity_wait_on_different_data_servers_and_wander() {
        let entry = entry(6, 3, &[6, 7, 8]);
        let mut seen = BTreeSet::new();
        for n in 0..100 {
            let targets = entry.targets(chunk(n));
            let kept: BTreeSet<ServerId> = targets[6..].iter().map(|target| target.unwrap()).collect();
            assert_eq!(kept.len(), 4, "{targets:?}");
            let nominal: Vec<Option<ServerId>> =
                (0..4).map(|nth| Some(ServerId(((entry.turn(chunk(n)) + nth) % 6) as u16))).collect();
            assert_eq!(targets[6..], nominal, "the holders that the code of this turn is made for");
            seen.extend(kept);
        }
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn a_failed_data_server_is_stood_in_for_by_others() {
        let entry = entry(6, 3, &[2, 6, 7, 8]);
        for n in 0..100 {
            let targets = entry.targets(chunk(n));
            assert!(targets.iter().all(|target| target.is_some_and(|server| server != ServerId(2))));
            let mut counts = [0; 9];
            targets.iter().flatten().for_each(|server| counts[usize::from(server.0)] += 1);
            assert!(counts.iter().all(|count| *count <= 2), "ten strips on five servers: {counts:?}");
        }
        let none = super::tests::entry(2, 1, &[0, 1]);
        assert_eq!(none.targets(chunk(1))[0], None);
    }

    #[test]
    fn while_a_set_hibernates_no_strip_has_a_target() {
        let asleep = SetEntry { hibernates_since: Some(1), ..entry(6, 3, &[6, 7, 8]) };
        assert_eq!(asleep.targets(chunk(1)), [None; 10]);
    }

    #[test]
    fn the_parts_of_a_range_cover_it_once() {
        let rows = Rows::new(Shape::new(6, 3).unwrap(), 1 << 20);
        assert_eq!(rows.row_bytes(), 96 << 10);
        assert_eq!(rows.column_bytes(), 11 * STRIP_BYTES);
        let parts: Vec<StripPart> = rows.parts(90_000, 200_000).collect();
        assert_eq!(parts.iter().map(|part| part.len).sum::<u32>(), 200_000);
        assert_eq!(
            parts[0],
            StripPart { column: 5, offset: 90_000 - 5 * STRIP_BYTES, len: 6 * STRIP_BYTES - 90_000 }
        );
        assert_eq!(parts[1], StripPart { column: 0, offset: STRIP_BYTES, len: STRIP_BYTES });
        assert_eq!(rows.parts(0, 0).count(), 0);
    }

    #[test]
    fn a_short_last_row_is_as_narrow_as_its_longest_strip() {
        let rows = Rows::new(Shape::new(6, 3).unwrap(), 1 << 20);
        let row = rows.row_bytes();
        assert_eq!(rows.blocks(0, row), (0, 4));
        assert_eq!(rows.blocks(row, 4096), (4, 1));
        assert_eq!(rows.blocks(2 * row, row + 5 * STRIP_BYTES), (8, 8));
        assert_eq!(rows.blocks(0, 1), (0, 1));
    }
}
