//! Which blocks are in the log, and where: the hash table that [LogStore §3.1] keeps in memory for each log.
//!
//! Open addressing with linear probing over cells of 8 bytes: 36 bits for the block, 28 for its slot. Removing shifts
//! later cells back, so there are no tombstones and a table that is used for years does not get slower. It grows by
//! doubling, but its last size is four thirds of the log's slots: a full one takes 10.7 bytes per logged block (the
//! paper's: 20), and never more than three quarters of the cells are taken. An empty one takes nothing.

use ebb_types::mix;
use std::ops::Range;

const SLOT_BITS: u32 = 28;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// Most slots of a log.
pub const SLOTS_MAX: u64 = SLOT_MASK;
/// Cells of the smallest table.
const CELLS_MIN: usize = 64;

/// Block → slot: the index of the log area's block that has its newest content.
///
/// Slot 0 is the first batch's header and holds no data: a cell of zero is empty.
#[derive(Clone, Debug)]
pub struct Table {
    cells: Vec<u64>,
    len: usize,
    slots: u64,
}

impl Table {
    /// For a log of `slots` blocks.
    pub fn new(slots: u64) -> Table {
        assert!(slots <= SLOTS_MAX, "the geometry allows no log of {slots} blocks");
        Table { cells: Vec::new(), len: 0, slots }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the cells. While the table grows, the old cells exist besides.
    pub fn memory_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u64>()
    }

    pub fn get(&self, block: u64) -> Option<u64> {
        self.find(block).map(|at| self.cells[at] & SLOT_MASK)
    }

    /// The slot that the block had before.
    pub fn insert(&mut self, block: u64, slot: u64) -> Option<u64> {
        assert!(block < 1 << (64 - SLOT_BITS), "the geometry allows no block {block}");
        assert!((1..self.slots).contains(&slot), "slot {slot} holds no data");
        let cell = block << SLOT_BITS | slot;
        if let Some(at) = self.find(block) {
            return Some(std::mem::replace(&mut self.cells[at], cell) & SLOT_MASK);
        }
        // Every block in the table has a slot of its own.
        assert!((self.len as u64) < self.slots - 1, "more blocks than slots");
        if (self.len + 1) * 4 > self.cells.len() * 3 {
            self.resize(self.cells_for(self.len + 1));
        }
        debug_assert!(self.len < self.cells.len(), "a search ends at an empty cell");
        self.put(cell);
        self.len += 1;
        None
    }

    /// The slot that the block had.
    pub fn remove(&mut self, block: u64) -> Option<u64> {
        let at = self.find(block)?;
        let slot = self.cells[at] & SLOT_MASK;
        self.vacate(at);
        self.shrink();
        Some(slot)
    }

    /// Removes those of `count` blocks from `block` on that are in the table, and says how many they were. Takes time
    /// for `count` or for [`Table::len`], whichever is less.
    pub fn remove_range(&mut self, block: u64, count: u64) -> usize {
        let before = self.len;
        let range = block..block.saturating_add(count);
        if count < self.len as u64 {
            for at in range {
                self.find(at).into_iter().for_each(|at| self.vacate(at));
            }
        } else {
            self.vacate_all(range);
        }
        self.shrink();
        before - self.len
    }

    /// Blocks and their slots, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let taken = self.cells.iter().filter(|cell| **cell != 0);
        taken.map(|cell| (cell >> SLOT_BITS, cell & SLOT_MASK))
    }

    /// The cell where the search for a block begins.
    fn home(&self, block: u64) -> usize {
        ((u128::from(mix(block)) * self.cells.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    /// Steps from one cell to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.cells.len() - from }
    }

    /// The block's cell.
    fn find(&self, block: u64) -> Option<usize> {
        if self.cells.is_empty() {
            return None;
        }
        let mut at = self.home(block);
        while self.cells[at] != 0 {
            if self.cells[at] >> SLOT_BITS == block {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    /// Fills the first empty cell for a block that is not in the table.
    fn put(&mut self, cell: u64) {
        let mut at = self.home(cell >> SLOT_BITS);
        while self.cells[at] != 0 {
            at = self.next(at);
        }
        self.cells[at] = cell;
    }

    /// Empties a cell. Later ones move back as long as the gap would end a search for them.
    fn vacate(&mut self, mut gap: usize) {
        let mut at = self.next(gap);
        while self.cells[at] != 0 {
            let home = self.home(self.cells[at] >> SLOT_BITS);
            if self.distance(home, at) >= self.distance(gap, at) {
                self.cells[gap] = self.cells[at];
                gap = at;
            }
            at = self.next(at);
        }
        self.cells[gap] = 0;
        self.len -= 1;
    }

    /// A cell that moves back comes to the current place or behind it, so one pass sees all.
    fn vacate_all(&mut self, range: Range<u64>) {
        let mut at = 0;
        while at < self.cells.len() {
            if self.cells[at] != 0 && range.contains(&(self.cells[at] >> SLOT_BITS)) {
                self.vacate(at);
            } else {
                at += 1;
            }
        }
    }

    /// Cells for `len` blocks: at most half of them taken, or all that the log can ever need.
    fn cells_for(&self, len: usize) -> usize {
        let most = (self.slots as usize * 4).div_ceil(3);
        (len * 2).next_power_of_two().max(CELLS_MIN).min(most)
    }

    /// Keeps what a pass over all cells costs in proportion to what is in them.
    fn shrink(&mut self) {
        if self.len == 0 {
            self.cells = Vec::new();
        } else if self.len * 8 < self.cells.len() && self.cells.len() > CELLS_MIN {
            self.resize(self.cells_for(self.len));
        }
    }

    fn resize(&mut self, cells: usize) {
        let old = std::mem::replace(&mut self.cells, vec![0; cells]);
        old.into_iter().filter(|cell| *cell != 0).for_each(|cell| self.put(cell));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Random;
    use std::collections::BTreeMap;

    /// Slots of the paper's log: 3 GiB of blocks.
    const PAPER: u64 = 786_432;

    /// Random operations against a map. Few distinct blocks, so that most operations hit one.
    fn compare(seed: u64) {
        let mut random = Random::new(seed);
        let slots = random.between(2, 3000);
        let blocks = random.between(1, slots * 2);
        let stride = [1, 1, 1 << 20, (1 << 36) / blocks][random.index(4)];
        let (mut table, mut model) = (Table::new(slots), BTreeMap::new());
        for _ in 0..4000 {
            let block = random.below(blocks) * stride;
            match random.below(100) {
                0..60 if (model.len() as u64) < slots - 1 => {
                    let slot = random.between(1, slots - 1);
                    assert_eq!(table.insert(block, slot), model.insert(block, slot), "seed {seed}");
                }
                60..90 => assert_eq!(table.remove(block), model.remove(&block), "seed {seed}"),
                90..92 => {
                    let longest = [4, slots, blocks * stride, u64::MAX][random.index(4)];
                    let count = random.between(0, longest - 1);
                    let before = model.len();
                    model.retain(|at, _| *at < block || *at - block >= count);
                    assert_eq!(table.remove_range(block, count), before - model.len(), "seed {seed}");
                }
                _ => assert_eq!(table.get(block), model.get(&block).copied(), "seed {seed}"),
            }
            assert_eq!((table.len(), table.is_empty()), (model.len(), model.is_empty()), "seed {seed}");
            assert!(table.memory_bytes() <= 8 * 8 * table.len().max(CELLS_MIN / 8), "seed {seed}");
        }
        let found: BTreeMap<u64, u64> = table.iter().collect();
        assert_eq!(found, model, "seed {seed}");
        assert!(model.iter().all(|(block, slot)| table.get(*block) == Some(*slot)), "seed {seed}");
    }

    #[test]
    fn a_table_is_a_map() {
        (0..200).for_each(compare);
    }

    #[test]
    fn a_full_log_of_the_paper_takes_fewer_bytes_per_block_than_the_paper_s() {
        let mut table = Table::new(PAPER);
        assert_eq!(table.memory_bytes(), 0);
        for slot in 1..PAPER {
            assert_eq!(table.insert(slot * 91, slot), None);
        }
        assert_eq!(table.len() as u64, PAPER - 1);
        // 15 MB for 3 GiB are 20 bytes per block [LogStore §3.1].
        assert!(table.memory_bytes() <= 16 * table.len(), "{} bytes", table.memory_bytes());
        assert!((1..PAPER).all(|slot| table.get(slot * 91) == Some(slot)));
        assert_eq!(table.remove_range(0, 1 << 36), table.iter().count() + PAPER as usize - 1);
        assert_eq!((table.len(), table.memory_bytes()), (0, 0));
    }

    #[test]
    fn full_tables_of_all_sizes_have_an_empty_cell_and_16_bytes_per_block() {
        for slots in (2..400).chain([4097, 65_536, 98_304, 98_305]) {
            let mut table = Table::new(slots);
            assert!((1..slots).all(|slot| table.insert(slot << 18, slot).is_none()));
            assert!(table.cells.contains(&0), "{slots}");
            // A header takes the first slot.
            assert!(table.memory_bytes() as u64 <= 16 * slots, "{slots}: {}", table.memory_bytes());
            assert_eq!(table.get(5), None);
        }
    }

    #[test]
    fn the_largest_block_and_slot_fit() {
        let mut table = Table::new(SLOTS_MAX);
        let (block, slot) = ((1 << 36) - 1, SLOTS_MAX - 1);
        assert_eq!(table.insert(block, slot), None);
        assert_eq!(table.insert(0, 1), None);
        assert_eq!((table.get(block), table.get(0)), (Some(slot), Some(1)));
        assert_eq!(table.remove_range(block, u64::MAX), 1);
        assert_eq!((table.remove(block), table.remove(0)), (None, Some(1)));
    }

    #[test]
    #[should_panic(expected = "slot 0 holds no data")]
    fn the_slot_of_the_first_header_is_refused() {
        Table::new(10).insert(5, 0);
    }
}
