//! A store in memory, as simple as it can be.

use bytes::{Bytes, BytesMut};
use ebb_chunkserver::{StoreCommand, StoreOutcome};
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, GroupId, Kind, ListPage, Record, Role, Run, Version, block_crcs,
    lost_block_crc,
};
use std::collections::{BTreeMap, BTreeSet};

/// Small, so that listings take several pages.
const PAGE_RUNS: usize = 3;

#[derive(Clone, Default)]
pub struct Store {
    pub chunks: BTreeMap<(Role, GroupId, ChunkId), Chunk>,
    pub roles: BTreeSet<(GroupId, Role)>,
    pub damaged: BTreeSet<(GroupId, ChunkId, u32)>,
    /// Its listings say so, too: damage was met before.
    pub lists_damage: bool,
}

#[derive(Clone, Default)]
pub struct Chunk {
    pub blocks: BTreeMap<u32, (Version, Option<Bytes>)>,
    pub tombstone: Option<Version>,
}

impl Store {
    pub fn carry_out(&mut self, command: StoreCommand) -> StoreOutcome {
        match command {
            StoreCommand::Apply { role, record, payload, .. } => self.set(role, record, &payload, false),
            StoreCommand::Repair { role, record, payload, .. } => self.set(role, record, &payload, true),
            StoreCommand::Read { role, group, chunk, first, count }
            | StoreCommand::Check { role, group, chunk, first, count, bytes: true } => {
                self.read((role, group, chunk), first, count)
            }
            StoreCommand::List { role, group, since, after } => {
                let mut runs: Vec<Run> = Vec::new();
                for ((_, _, chunk), content) in self.of(role, group) {
                    if let Some(version) = content.tombstone.filter(|v| v.epoch >= since) {
                        let past = after.is_none_or(|after| after.chunk < *chunk);
                        runs.extend(past.then_some(Run {
                            chunk: *chunk,
                            first: 0,
                            count: 0,
                            version,
                            kind: Kind::Delete,
                        }));
                    }
                    for (first, (version, data)) in &content.blocks {
                        let past = after.is_none_or(|after| after < Cursor { chunk: *chunk, block: *first });
                        let lost = self.lists_damage && self.damaged.contains(&(group, *chunk, *first));
                        let kind = match data {
                            _ if lost => Kind::Lost,
                            Some(_) => Kind::Data,
                            None => Kind::Zero,
                        };
                        if version.epoch >= since && past {
                            runs.push(Run {
                                chunk: *chunk,
                                first: *first,
                                count: 1,
                                version: *version,
                                kind,
                            });
                        }
                    }
                }
                let more = runs.len() > PAGE_RUNS && runs[PAGE_RUNS - 1].kind != Kind::Delete;
                if more {
                    runs.truncate(PAGE_RUNS);
                }
                let next =
                    runs.last().filter(|_| more).map(|run| Cursor { chunk: run.chunk, block: run.first });
                StoreOutcome::Listed(ListPage { runs, next })
            }
            other => panic!("columns give no such command: {other:?}"),
        }
    }

    fn of(&self, role: Role, group: GroupId) -> impl Iterator<Item = (&(Role, GroupId, ChunkId), &Chunk)> {
        self.chunks.iter().filter(move |((r, g, _), _)| (*r, *g) == (role, group))
    }

    fn set(&mut self, role: Role, record: Record, payload: &Bytes, repair: bool) -> StoreOutcome {
        self.roles.insert((record.group, role));
        let content = self.chunks.entry((role, record.group, record.chunk)).or_default();
        if content.tombstone.is_some_and(|t| t >= record.version) {
            return StoreOutcome::Applied;
        }
        if record.content == Content::Delete {
            content.tombstone = Some(record.version);
            content.blocks.retain(|_, (version, _)| *version > record.version);
            return StoreOutcome::Applied;
        }
        for nth in 0..record.count {
            let data = matches!(record.content, Content::Data { .. })
                .then(|| payload.slice(nth as usize * BLOCK_BYTES..(nth as usize + 1) * BLOCK_BYTES));
            let block = record.first + nth;
            let old = content.blocks.get(&block).map(|(version, _)| *version);
            if old.is_none_or(|old| old < record.version || (repair && old == record.version)) {
                content.blocks.insert(block, (record.version, data));
                self.damaged.remove(&(record.group, record.chunk, block));
                if let Content::Data { crcs } = &record.content
                    && crcs[nth as usize] == lost_block_crc()
                {
                    self.damaged.insert((record.group, record.chunk, block));
                }
            }
        }
        StoreOutcome::Applied
    }

    fn read(&self, of: (Role, GroupId, ChunkId), first: u32, count: u32) -> StoreOutcome {
        let (_, group, chunk) = of;
        if let Some(block) =
            (first..first + count).find(|block| self.damaged.contains(&(group, chunk, *block)))
        {
            return StoreOutcome::Damaged { chunk, block, lost: None, given_up: false, all: false };
        }
        let (mut records, mut payload) = (Vec::new(), BytesMut::new());
        for block in first..first + count {
            let found = self.chunks.get(&of).and_then(|content| content.blocks.get(&block));
            let (version, data) = found.cloned().unwrap_or((Version::ZERO, None));
            let content = match &data {
                Some(data) => Content::Data { crcs: block_crcs(data) },
                None => Content::Zero,
            };
            payload.extend_from_slice(&data.unwrap_or_default());
            records.push(Record { group, chunk, first: block, count: 1, version, request: None, content });
        }
        StoreOutcome::Read { records, payload: payload.freeze() }
    }

    pub fn drop_all(&mut self, role: Role, group: GroupId) {
        self.roles.remove(&(group, role));
        self.chunks.retain(|(r, g, _), _| (*r, *g) != (role, group));
    }

    pub fn forget(&mut self, group: GroupId, up_to: Version) {
        for ((role, of, _), chunk) in &mut self.chunks {
            if (*role, *of) == (Role::Replica, group) {
                chunk.tombstone = chunk.tombstone.filter(|version| *version > up_to);
            }
        }
    }

    /// Deletions that it remembers.
    pub fn tombstones(&self) -> usize {
        self.chunks.values().filter(|chunk| chunk.tombstone.is_some()).count()
    }

    /// The bytes of a block, zeroes if it is there as zeroes.
    pub fn block(&self, group: GroupId, chunk: ChunkId, block: u32) -> Option<Bytes> {
        let role = self.roles.iter().find(|(g, _)| *g == group)?.1;
        let (_, data) = self.chunks.get(&(role, group, chunk))?.blocks.get(&block)?;
        Some(data.clone().unwrap_or_else(|| Bytes::from(vec![0; BLOCK_BYTES])))
    }
}
