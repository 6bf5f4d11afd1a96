//! The journal: changes of the metadata, in two areas that take turns. Each begins with a checkpoint, the whole
//! metadata, and continues with commits. A commit counts if its checksum is right; the first that does not is the end,
//! torn by a crash, unless a later one is behind it: then that is damage.
//!
//! A full area is followed by a checkpoint in the other one, whose generation is higher by one. The full one says so in
//! its last block, so that a checkpoint that cannot be read later is damage, too, and not taken for one that a crash
//! tore.

use crate::flat::device::{BLOCK, BlockDevice};
use crate::flat::error::FlatError;
use crate::flat::format::{
    COMMIT_BLOCKS_MAX, CommitHeader, Record, Superblock, commit_records, encode_commit,
};
use crate::flat::state::{State, Unsound};
use std::io;

/// Blocks that are read at once.
const STEP: u64 = 256;

/// Where the next commit goes.
pub struct Journal {
    superblock: Superblock,
    generation: u64,
    number: u64,
    /// Blocks of the area that are written.
    used: u64,
}

impl Journal {
    /// Of an area that is to begin with the first checkpoint.
    pub fn new(superblock: Superblock) -> Journal {
        Journal { superblock, generation: 0, number: 0, used: superblock.area }
    }

    /// Most bytes of a checkpoint: half an area, so that one is rare.
    pub fn checkpoint_max(superblock: &Superblock) -> u64 {
        superblock.area * BLOCK / 2
    }

    /// Makes everything pending durable. After an error it is not known what is.
    pub fn commit(&mut self, device: &dyn BlockDevice, state: &mut State) -> io::Result<()> {
        state.note_lengths();
        if !state.pending.is_empty() {
            if state.unflushed {
                device.flush()?;
            }
            let mut records = Vec::new();
            state.pending.iter().for_each(|record| record.encode(&mut records));
            let commit = self.encode(&records);
            let blocks = commit.len() as u64 / BLOCK;
            // The last block of an area is for the word that it is full.
            if blocks > COMMIT_BLOCKS_MAX || self.used + blocks >= self.superblock.area {
                return self.checkpoint(device, state);
            }
            device.write(vec![(self.at(), commit.into())])?;
            (self.number, self.used) = (self.number + 1, self.used + blocks);
        }
        device.flush()?;
        state.pending.clear();
        state.unflushed = false;
        state.noted();
        Ok(())
    }

    fn encode(&self, records: &[u8]) -> Vec<u8> {
        encode_commit(self.superblock.id, self.generation, self.number, records)
    }

    fn at(&self) -> u64 {
        debug_assert!(self.used < self.superblock.area, "commits stay within their area");
        (self.superblock.area_at(self.generation) + self.used) * BLOCK
    }

    /// Writes the whole metadata to the other area, durably.
    pub fn checkpoint(&mut self, device: &dyn BlockDevice, state: &mut State) -> io::Result<()> {
        let mut word = Vec::new();
        Record::Moved.encode(&mut word);
        let word = self.encode(&word);
        let last = (self.used < self.superblock.area).then(|| (self.at(), word.into()));
        if state.unflushed {
            device.flush()?;
        }
        let (generation, records) = (self.generation + 1, state.checkpoint());
        if records.len() as u64 > (self.superblock.area - 2) * BLOCK {
            return Err(io::Error::other(
                "the metadata does not fit its area, although its growth is bounded",
            ));
        }
        let commit = encode_commit(self.superblock.id, generation, 0, &records);
        let blocks = commit.len() as u64 / BLOCK;
        device.write(vec![(self.superblock.area_at(generation) * BLOCK, commit.into())])?;
        device.flush()?;
        // Durable with the next commit. Until then a lost checkpoint cannot have been followed by anything.
        last.map_or(Ok(()), |write| device.write(vec![write]))?;
        (self.generation, self.number, self.used) = (generation, 1, blocks);
        state.pending.clear();
        state.unflushed = false;
        state.noted();
        Ok(())
    }

    /// Reads what is on a device. The next thing to be done is a checkpoint.
    pub fn read(device: &dyn BlockDevice, superblock: Superblock) -> Result<(Journal, State), FlatError> {
        let areas = [Area::read(device, superblock, 0)?, Area::read(device, superblock, 1)?];
        let newest = areas.into_iter().flatten().max_by_key(|area| area.generation);
        let newest =
            newest.ok_or(FlatError::Damaged { block: superblock.area_at(0), what: "no checkpoint" })?;
        if let Some(damage) = newest.damage {
            return Err(damage);
        }
        if newest.moved {
            let block = superblock.area_at(newest.generation + 1);
            return Err(FlatError::Damaged { block, what: "the newest checkpoint fails its checksum" });
        }
        let at = superblock.area_at(newest.generation);
        let unsound = |Unsound(what)| FlatError::Damaged { block: at, what };
        let mut state = State::new(superblock.data());
        for record in &newest.records {
            state.apply(record).map_err(unsound)?;
        }
        state.finish().map_err(unsound)?;
        let (generation, number, used) = (newest.generation, newest.number, newest.used);
        Ok((Journal { superblock, generation, number, used }, state))
    }
}

/// What an area has.
struct Area {
    generation: u64,
    records: Vec<Record>,
    /// Of the next commit.
    number: u64,
    /// Where it goes, in blocks.
    used: u64,
    moved: bool,
    /// Matters only in the newest area: the next checkpoint may have overwritten parts of an older one.
    damage: Option<FlatError>,
}

impl Area {
    /// `None`: it begins with no checkpoint.
    fn read(device: &dyn BlockDevice, superblock: Superblock, index: u64) -> Result<Option<Area>, FlatError> {
        let mut reader = Reader { device, superblock, area: index, from: 0, bytes: Vec::new() };
        let first = reader.commit(0)?;
        let Some((first, records)) =
            first.filter(|(first, _)| first.number == 0 && first.generation % 2 == index)
        else {
            return Ok(None);
        };
        let (generation, used) = (first.generation, first.blocks());
        let mut area = Area { generation, records: Vec::new(), number: 1, used, moved: false, damage: None };
        area.add(superblock, 0, records);
        while area.used < superblock.area && !area.moved && area.damage.is_none() {
            let next = reader.commit(area.used)?;
            let next = next.filter(|(next, _)| (next.generation, next.number) == (generation, area.number));
            let Some((header, records)) = next else {
                area.damage = reader.damage_behind(&area)?;
                break;
            };
            area.add(superblock, area.used, records);
            area.number += 1;
            area.used += header.blocks();
        }
        Ok(Some(area))
    }

    /// The records of the commit at this block of the area.
    fn add(&mut self, superblock: Superblock, at: u64, records: Option<Vec<Record>>) {
        let Some(mut records) = records else {
            let block = superblock.area_at(self.generation) + at;
            self.damage = Some(FlatError::Damaged { block, what: "a commit has an unknown record" });
            return;
        };
        self.moved = records.last() == Some(&Record::Moved);
        self.records.append(&mut records);
    }
}

/// A commit, and its records if they can be read.
type Commit = (CommitHeader, Option<Vec<Record>>);

/// Reads an area in large steps.
struct Reader<'a> {
    device: &'a dyn BlockDevice,
    superblock: Superblock,
    area: u64,
    /// The blocks in `bytes` begin here.
    from: u64,
    bytes: Vec<u8>,
}

impl Reader<'_> {
    /// Bytes of the area's blocks, which are within it.
    fn blocks(&mut self, at: u64, count: u64) -> Result<&[u8], FlatError> {
        let has = self.bytes.len() as u64 / BLOCK;
        if at < self.from || at + count > self.from + has {
            let wanted = count.max(STEP).min(self.superblock.area - at);
            let offset = (self.superblock.area_at(self.area) + at) * BLOCK;
            self.bytes.clear();
            self.from = at;
            let read = self.device.read(&mut self.bytes, wanted * BLOCK, offset);
            read.map_err(|source| FlatError::Io { action: "read", source })?;
        }
        let start = ((at - self.from) * BLOCK) as usize;
        Ok(&self.bytes[start..start + (count * BLOCK) as usize])
    }

    /// The commit at a block of the area; `None`: no intact one of this device is there.
    fn commit(&mut self, at: u64) -> Result<Option<Commit>, FlatError> {
        let (id, area) = (self.superblock.id, self.superblock.area);
        let Some(header) = CommitHeader::decode(self.blocks(at, 1)?) else { return Ok(None) };
        if header.id != id || header.blocks() > area - at {
            return Ok(None);
        }
        let records = commit_records(self.blocks(at, header.blocks())?);
        Ok(records.map(|records| (header, Record::decode_all(records))))
    }

    /// Nothing may follow the end of an area's commits: a commit begins when the one before it is durable.
    fn damage_behind(&mut self, area: &Area) -> Result<Option<FlatError>, FlatError> {
        let end = self.superblock.area.min(area.used + COMMIT_BLOCKS_MAX + 1);
        for at in area.used + 1..end {
            let header = CommitHeader::decode(self.blocks(at, 1)?).filter(|header| {
                header.id == self.superblock.id
                    && header.generation == area.generation
                    && header.number > area.number
            });
            if header.is_some() && self.commit(at)?.is_some() {
                let block = self.superblock.area_at(self.area) + area.used;
                return Ok(Some(FlatError::Damaged { block, what: "a commit fails its checksum" }));
            }
        }
        Ok(None)
    }
}
