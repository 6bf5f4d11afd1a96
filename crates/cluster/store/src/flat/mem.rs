//! A block device in memory that fails on demand: it stops after any write or flush, loses or tears what was not
//! flushed, and fails flushes. Any part of unflushed writes may survive, by sectors and in any order.

use crate::flat::device::{BLOCK, BlockDevice};
use crate::mem::{Stops, stopped};
use bytes::Bytes;
use ebb_types::Random;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR: usize = 512;

type Blocks = BTreeMap<u64, Vec<u8>>;

#[derive(Clone, Default)]
struct State {
    size: u64,
    now: Blocks,
    durable: Blocks,
    /// (block, content).
    pending: Vec<(u64, Vec<u8>)>,
    flushes: u64,
    stops: Stops,
}

/// Clones are the same device.
#[derive(Clone)]
pub struct MemBlocks(Arc<Mutex<State>>);

impl MemBlocks {
    pub fn new(size: u64) -> MemBlocks {
        MemBlocks(Arc::new(Mutex::new(State { size, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }

    /// The next `operations` writes and flushes work; the one behind them happens but fails, and later ones fail.
    pub fn stop_after(&self, operations: u64) {
        self.state().stops.stop_after(operations);
    }

    pub fn fail_flushes(&self, times: u64) {
        self.state().stops.fail_syncs = times;
    }

    pub fn operations(&self) -> u64 {
        self.state().stops.operations
    }

    pub fn flushes(&self) -> u64 {
        self.state().flushes
    }

    /// Damage: flips a bit.
    pub fn flip(&self, offset: u64) {
        let state = &mut *self.state();
        for blocks in [&mut state.now, &mut state.durable] {
            let block = blocks.entry(offset / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
            block[(offset % BLOCK) as usize] ^= 1;
        }
    }

    /// The device after a power cut.
    pub fn crash(&self, seed: u64) -> MemBlocks {
        let mut random = Random::new(seed);
        let state = self.state();
        let mut blocks = state.durable.clone();
        for (at, content) in &state.pending {
            let fate = random.below(3);
            for (i, sector) in content.chunks(SECTOR).enumerate() {
                if fate == 0 || fate == 1 && random.below(2) == 0 {
                    continue;
                }
                let block = blocks.entry(*at).or_insert_with(|| vec![0; BLOCK as usize]);
                block[i * SECTOR..][..SECTOR].copy_from_slice(sector);
            }
        }
        let size = state.size;
        let state = State { size, now: blocks.clone(), durable: blocks, ..State::default() };
        MemBlocks(Arc::new(Mutex::new(state)))
    }
}

impl BlockDevice for MemBlocks {
    fn size(&self) -> u64 {
        self.state().size
    }

    fn read(&self, out: &mut Vec<u8>, len: u64, offset: u64) -> io::Result<()> {
        assert!(len > 0 && len.is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK));
        let state = self.state();
        assert!(offset + len <= state.size, "a read within the device");
        for block in offset / BLOCK..(offset + len) / BLOCK {
            match state.now.get(&block) {
                Some(bytes) => out.extend_from_slice(bytes),
                None => out.resize(out.len() + BLOCK as usize, 0),
            }
        }
        Ok(())
    }

    fn write(&self, writes: Vec<(u64, Bytes)>) -> io::Result<()> {
        let mut state = self.state();
        let last = state.stops.count()?;
        for (offset, bytes) in writes {
            assert!(!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK as usize));
            assert!(offset.is_multiple_of(BLOCK) && offset + bytes.len() as u64 <= state.size);
            for (block, content) in (offset / BLOCK..).zip(bytes.chunks(BLOCK as usize)) {
                state.now.insert(block, content.to_vec());
                state.pending.push((block, content.to_vec()));
            }
        }
        stopped(last)
    }

    fn flush(&self) -> io::Result<()> {
        let state = &mut *self.state();
        let last = state.stops.count()?;
        state.flushes += 1;
        let pending = std::mem::take(&mut state.pending);
        if state.stops.sync_fails() {
            return Err(io::Error::other("the flush failed"));
        }
        state.durable.extend(pending);
        stopped(last)
    }
}
