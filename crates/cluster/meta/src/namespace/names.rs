//! The names of all objects: an ordered map that may exceed memory.
//!
//! Most entries are in a [`Table`] on disk; memory has the changes since it was written, which shadow it. When the log
//! is replaced by a shorter one ([`crate::raft`]), a separate thread merges table and changes into the next table: the
//! changes being merged are frozen meanwhile, and later ones shadow them. So the table is always exactly the state at
//! the start of the log, the log has everything after it, and both change in one step.
//!
//! Why not a general embedded store: it would keep a second log of the same changes and its own cache, and after each
//! crash its state would have to be reconciled with ours. What it does better, changing a table much larger than the
//! changes, is bounded here: a merge comes only after changes of a sixteenth of the table's size.
//!
//! Answers depend on what was set, not on what is merged: members merge at different times and still agree.
//!
//! Reading can fail. Then the answer is void: the failure is recorded ([`Names::fault`]), and the member stops before
//! any consequence of it leaves.

use crate::namespace::table::{Cursor, Table, TableError, TableWriter};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::OnceCell;
use std::collections::{BTreeMap, btree_map};
use std::fmt::{Debug, Formatter};
use std::io::{self, Write};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

/// The new value per key; `None`: removed.
type Changes = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

#[derive(Clone, Default)]
pub struct Names {
    recent: Changes,
    /// Older changes, which are being merged into the next table.
    frozen: Arc<Changes>,
    table: Option<Arc<Table>>,
    fault: OnceCell<TableError>,
}

impl Names {
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        if let Some(change) = self.recent.get(key).or_else(|| self.frozen.get(key)) {
            return change.as_ref().map(|value| value.to_vec());
        }
        let found = self.table.as_ref()?.get(key);
        found.unwrap_or_else(|error| self.note(error))
    }

    /// Sets or (`None`) removes an entry.
    pub fn set(&mut self, key: &[u8], value: Option<Vec<u8>>) {
        if value.is_none() && self.frozen.is_empty() && self.table.is_none() {
            self.recent.remove(key);
        } else {
            self.recent.insert(key.into(), value.map(Vec::into_boxed_slice));
        }
    }

    /// The entries from a key on, in order.
    pub fn range(&self, from: Bound<&[u8]>) -> Range<'_> {
        let start = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let cursor = self.table.as_ref().and_then(|table| {
            let cursor = Cursor::new(table.clone(), start).map(Some);
            cursor.unwrap_or_else(|error| self.note(error))
        });
        let mut range = Range {
            names: self,
            recent: self.recent.range::<[u8], _>((from, Bound::Unbounded)).peekable(),
            frozen: self.frozen.range::<[u8], _>((from, Bound::Unbounded)).peekable(),
            table: cursor,
            used: false,
        };
        let at_start = range.table.as_ref().and_then(Cursor::entry).is_some_and(|(key, _)| key == start);
        range.used = at_start && matches!(from, Bound::Excluded(_));
        range
    }

    /// The first failure to read the table. Answers since then are void.
    pub fn fault(&self) -> Option<&TableError> {
        self.fault.get()
    }

    fn note<T>(&self, error: TableError) -> Option<T> {
        let _ = self.fault.set(error);
        None
    }

    /// The table that the changes in memory apply to.
    pub fn table(&self) -> Option<&Arc<Table>> {
        self.table.as_ref()
    }

    /// Sets the table that the changes in memory apply to.
    pub fn attach(&mut self, table: Option<Arc<Table>>) {
        debug_assert!(self.frozen.is_empty(), "what is being merged applies to another table");
        self.table = table;
    }

    /// Freezes the present changes and returns the entries, which are to be written as the next table.
    pub fn freeze(&mut self) -> Names {
        let recent = std::mem::take(&mut self.recent);
        // Not empty: changes of an earlier table that found no room.
        if self.frozen.is_empty() {
            self.frozen = Arc::new(recent);
        } else {
            Arc::make_mut(&mut self.frozen).extend(recent);
        }
        Names { recent: Changes::new(), ..self.clone() }
    }

    /// The table of the frozen entries is written. Returns what it replaces.
    pub fn merged(&mut self, table: Option<Arc<Table>>) -> Names {
        let frozen = std::mem::take(&mut self.frozen);
        Names { frozen, table: std::mem::replace(&mut self.table, table), ..Names::default() }
    }

    /// Writes all entries as one table; returns its length.
    pub fn write_table(&self, out: &mut dyn Write) -> io::Result<u64> {
        let changes = self.recent.len() + self.frozen.len();
        let most = self.table.as_ref().map_or(0, |t| t.entries()) + changes as u64;
        let mut writer = TableWriter::new(out, most);
        let mut range = self.range(Bound::Unbounded);
        while let Some((key, value)) = range.next() {
            writer.push(key, value)?;
        }
        match self.fault.get() {
            Some(error) => Err(io::Error::other(error.clone())),
            None => writer.finish(),
        }
    }

    /// All changes in memory, older ones first.
    fn changes(&self) -> impl Iterator<Item = (&Box<[u8]>, &Option<Box<[u8]>>)> {
        let older = self.frozen.iter().filter(|(key, _)| !self.recent.contains_key(*key));
        older.chain(&self.recent)
    }
}

type Rest<'a> = Peekable<btree_map::Range<'a, Box<[u8]>, Option<Box<[u8]>>>>;

/// Iterates over the entries in order.
pub struct Range<'a> {
    names: &'a Names,
    recent: Rest<'a>,
    frozen: Rest<'a>,
    table: Option<Cursor>,
    /// The table's present entry has been used.
    used: bool,
}

impl Range<'_> {
    /// The next entry. Not an `Iterator`: the result borrows from the range.
    pub fn next(&mut self) -> Option<(&[u8], &[u8])> {
        loop {
            self.pass();
            let in_table = self.table.as_ref().and_then(Cursor::entry).map(|(key, _)| key);
            let changed = [self.recent.peek(), self.frozen.peek()].into_iter().flatten();
            let changed = changed.map(|(key, _)| &key[..]).min();
            let Some(changed) = changed.filter(|key| in_table.is_none_or(|other| *key <= other)) else {
                self.used = true;
                return self.table.as_ref()?.entry();
            };
            self.used = in_table == Some(changed);
            let newer = self.recent.next_if(|(key, _)| key[..] == *changed);
            let older = self.frozen.next_if(|(key, _)| key[..] == *changed);
            if let Some((key, Some(value))) = newer.or(older) {
                return Some((key, value));
            }
        }
    }

    fn pass(&mut self) {
        if !std::mem::take(&mut self.used) {
            return;
        }
        if let Some(cursor) = &mut self.table
            && let Err(error) = cursor.advance()
        {
            self.table = self.names.note(error);
        }
    }
}

/// Only the part in memory; the table is sent separately.
impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let changes = self.changes().map(|(key, value)| (Bytes(key), value.as_deref().map(Bytes)));
        changes.collect::<Vec<_>>().serialize(serializer)
    }
}

/// A slice would be encoded byte by byte.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Names, D::Error> {
        let changes = Vec::<(&[u8], Option<&[u8]>)>::deserialize(deserializer)?;
        let recent = changes.into_iter().map(|(key, value)| (key.into(), value.map(Box::from)));
        Ok(Names { recent: recent.collect(), ..Names::default() })
    }
}

/// The same entries, in memory or in the table.
impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        let (mut one, mut two) = (self.range(Bound::Unbounded), other.range(Bound::Unbounded));
        loop {
            match (one.next(), two.next()) {
                (None, None) => return true,
                (a, b) if a == b => {}
                _ => return false,
            }
        }
    }
}

impl Eq for Names {}

impl Debug for Names {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mut map = f.debug_map();
        let mut range = self.range(Bound::Unbounded);
        while let Some((key, value)) = range.next() {
            map.entry(&String::from_utf8_lossy(key), &value.len());
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &Names, from: Bound<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut range = names.range(from);
        let mut out = Vec::new();
        while let Some((key, value)) = range.next() {
            out.push((key.to_vec(), value.to_vec()));
        }
        out
    }

    fn table_of(names: &Names) -> Option<Arc<Table>> {
        let mut bytes = Vec::new();
        let length = names.write_table(&mut bytes).unwrap();
        (length > 0).then(|| Arc::new(Table::open(Arc::new(bytes), 0, length).unwrap()))
    }

    /// `EBB_SEED=<seed> cargo test -p ebb-meta -- merged_or_not` repeats one.
    #[test]
    fn merged_or_not_it_is_the_same_map() {
        let one = std::env::var("EBB_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
        for seed in one.map_or(0..200, |seed| seed..seed + 1) {
            println!("seed {seed}");
            let mut dice = seed.wrapping_mul(2).wrapping_add(1);
            let mut roll = |sides: u64| {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (dice >> 33) % sides
            };
            let (mut names, mut model) = (Names::default(), BTreeMap::new());
            let mut merging: Option<Names> = None;
            for _ in 0..600 {
                let key = format!("{:03}", roll(200)).into_bytes();
                match roll(20) {
                    0 if merging.is_none() => merging = Some(names.freeze()),
                    1 => {
                        // Every other table finds no room.
                        let done = merging.take().filter(|_| roll(2) == 0);
                        done.into_iter().for_each(|done| drop(names.merged(table_of(&done))));
                    }
                    2 => {
                        let bytes = postcard::to_stdvec(&names).unwrap();
                        let table = names.table().cloned();
                        names = postcard::from_bytes(&bytes).unwrap();
                        names.attach(table);
                        merging = None;
                    }
                    3 => {
                        for from in [Bound::Included(&key[..]), Bound::Excluded(&key)] {
                            let wanted = model.range::<[u8], _>((from, Bound::Unbounded));
                            let wanted: Vec<_> =
                                wanted.map(|(k, v)| (Vec::clone(k), Vec::clone(v))).collect();
                            assert_eq!(entries(&names, from), wanted);
                        }
                    }
                    4..10 => {
                        names.set(&key, None);
                        model.remove(&key);
                    }
                    _ => {
                        let value = vec![roll(256) as u8; roll(400) as usize];
                        names.set(&key, Some(value.clone()));
                        model.insert(key.clone(), value);
                    }
                }
                assert_eq!(names.get(&key), model.get(&key).cloned());
            }
            assert_eq!(entries(&names, Bound::Unbounded), Vec::from_iter(model));
            assert!(names.fault().is_none());
        }
    }

    #[test]
    fn a_table_that_cannot_be_read_is_a_fault() {
        let mut names = Names::default();
        names.set(b"k", Some(vec![1; 5000]));
        let mut bytes = Vec::new();
        let length = names.freeze().write_table(&mut bytes).unwrap();
        bytes[100] ^= 1;
        names.merged(Some(Arc::new(Table::open(Arc::new(bytes), 0, length).unwrap())));
        assert_eq!(names.get(b"other"), None);
        assert!(names.fault().is_none());
        names.get(b"k");
        assert!(matches!(names.fault(), Some(TableError::Damaged { at: 0 })));
        names.fault.take();
        assert!(names.write_table(&mut Vec::new()).is_err(), "damage is not copied");
        assert!(names.fault().is_some());
    }
}
