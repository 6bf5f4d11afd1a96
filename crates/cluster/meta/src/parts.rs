//! Sends long messages between members in parts, each after the previous one was acknowledged.
//!
//! A snapshot is longer than a wire frame and than a connection's queue may be: sent at once, most of it would be
//! refused, and it would never arrive. A short message is one part and is not acknowledged: the Raft library resends
//! what was lost. Per receiver one long message is in flight; another one meanwhile is dropped, for the same reason.
//!
//! A snapshot's table of names follows as parts of the same message. It is read from disk as it is sent, every block
//! checked, and written as it arrives.
//!
//! ```text
//! part = message number u64 LE | part number u32 LE | number of parts u32 LE | those of the table among them u32 LE | bytes
//! acknowledgement of a part = its message number | its part number | zero | zero
//! ```

use crate::MemberId;
use crate::namespace::table::{Table, TableError};
use ebb_types::frame::BODY_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest part.
pub const PART_MAX: usize = 4 << 20;
const HEADER: usize = 20;
// As drawn above; and a part fits a frame, with what encodes it.
const _: () = assert!(HEADER == 8 + 3 * 4 && 2 * (HEADER + PART_MAX) <= BODY_MAX);
/// Most parts of one message, without its table: bounds what a sender can make this member keep in memory.
const PARTS_MAX: u32 = 1024;
/// A part not acknowledged within this many ticks is resent; after this many tries the message is given up.
const AGAIN_TICKS: u32 = 20;
const TRIES: u32 = 10;

/// Parts to send, each with its receiver.
pub type Out = Vec<(MemberId, Vec<u8>)>;

/// Splits messages and reassembles them.
#[derive(Default)]
pub struct Courier {
    next: u64,
    leaving: BTreeMap<MemberId, Leaving>,
    arriving: BTreeMap<MemberId, Arriving>,
}

/// A long message of which `part` is not acknowledged yet.
struct Leaving {
    number: u64,
    message: Vec<u8>,
    table: Option<Arc<Table>>,
    part: u32,
    ticks: u32,
    tries: u32,
}

/// A long message of which the parts before `next` have arrived.
struct Arriving {
    number: u64,
    next: u32,
    bytes: Vec<u8>,
    /// Bytes of its table that have arrived.
    table: u64,
}

impl Courier {
    pub fn send(
        &mut self,
        to: MemberId,
        message: Vec<u8>,
        table: Option<Arc<Table>>,
        out: &mut Out,
    ) -> Result<(), TableError> {
        debug_assert!(message.len() <= PARTS_MAX as usize * PART_MAX, "no member takes more parts");
        let number = self.next;
        self.next += 1;
        if message.len() <= PART_MAX && table.is_none() {
            out.push((to, part([number, 0], [1, 0], &message)));
        } else if !self.is_busy(to) {
            let leaving = Leaving { number, message, table, part: 0, ticks: 0, tries: 0 };
            out.push((to, leaving.present()?));
            self.leaving.insert(to, leaving);
        }
        Ok(())
    }

    /// Whether a long message to the member is in flight.
    pub fn is_busy(&self, to: MemberId) -> bool {
        self.leaving.contains_key(&to)
    }

    /// Forgets messages that have not arrived completely.
    pub fn drop_arriving(&mut self) {
        self.arriving.clear();
    }

    pub fn tick(&mut self, out: &mut Out) -> Result<(), TableError> {
        for (to, leaving) in &mut self.leaving {
            leaving.ticks += 1;
            if leaving.ticks == AGAIN_TICKS {
                leaving.ticks = 0;
                leaving.tries += 1;
                out.push((*to, leaving.present()?));
            }
        }
        self.leaving.retain(|_, leaving| leaving.tries < TRIES);
        Ok(())
    }

    /// The whole message and the length of its table, if `bytes` were all of it or its last part. Untrusted input:
    /// parts that do not match are dropped. `stage` accepts bytes of the table and their offset, one table at a time,
    /// or returns `false`.
    pub fn receive<E: From<TableError>>(
        &mut self,
        from: MemberId,
        bytes: &[u8],
        out: &mut Out,
        stage: impl FnOnce(u64, &[u8]) -> Result<bool, E>,
    ) -> Result<Option<(Vec<u8>, u64)>, E> {
        let Some((header, bytes)) = bytes.split_at_checked(HEADER) else { return Ok(None) };
        let number = u64::from_le_bytes(header[..8].try_into().expect("eight bytes"));
        let [index, count, of_table] =
            [8, 12, 16].map(|at| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes")));
        if count == 0 {
            self.acknowledged(from, number, index, out)?;
            return Ok(None);
        }
        let of_message = count.saturating_sub(of_table);
        if index >= count || of_message == 0 || of_message > PARTS_MAX || bytes.len() > PART_MAX {
            return Ok(None);
        }
        if count == 1 {
            return Ok(Some((bytes.to_vec(), 0)));
        }
        if index == 0 && self.arriving.get(&from).is_none_or(|a| a.number != number) {
            // Only one table can be staged.
            self.arriving.clear();
            self.arriving.insert(from, Arriving { number, next: 0, bytes: Vec::new(), table: 0 });
        }
        let arriving = self.arriving.get_mut(&from).filter(|a| a.number == number && a.next >= index);
        let Some(arriving) = arriving else { return Ok(None) };
        if arriving.next == index {
            if index < of_message {
                arriving.bytes.extend_from_slice(bytes);
            } else if stage(arriving.table, bytes)? {
                arriving.table += bytes.len() as u64;
            } else {
                self.arriving.remove(&from);
                return Ok(None);
            }
            arriving.next += 1;
        } // else the acknowledgement was lost
        out.push((from, part([number, index.into()], [0, 0], &[])));
        if arriving.next < count {
            return Ok(None);
        }
        Ok(self.arriving.remove(&from).map(|a| (a.bytes, a.table)))
    }

    fn acknowledged(
        &mut self,
        from: MemberId,
        number: u64,
        index: u32,
        out: &mut Out,
    ) -> Result<(), TableError> {
        let leaving = self.leaving.get_mut(&from).filter(|l| l.number == number && l.part == index);
        let Some(leaving) = leaving else { return Ok(()) };
        leaving.part += 1;
        (leaving.ticks, leaving.tries) = (0, 0);
        if leaving.part < leaving.parts()[0] {
            out.push((from, leaving.present()?));
        } else {
            self.leaving.remove(&from);
        }
        Ok(())
    }
}

impl Leaving {
    /// Number of all parts, and of the table's parts.
    fn parts(&self) -> [u32; 2] {
        let table = self.table.as_ref().map_or(0, |table| table.bytes().div_ceil(PART_MAX as u64)) as u32;
        [self.message.len().div_ceil(PART_MAX) as u32 + table, table]
    }

    fn present(&self) -> Result<Vec<u8>, TableError> {
        debug_assert!(self.part < self.parts()[0], "a part of the message");
        let numbers = [self.number, self.part.into()];
        let start = self.part as usize * PART_MAX;
        if start < self.message.len() {
            let end = self.message.len().min(start + PART_MAX);
            return Ok(part(numbers, self.parts(), &self.message[start..end]));
        }
        let [parts, of_table] = self.parts();
        let at = u64::from(self.part - (parts - of_table)) * PART_MAX as u64;
        let table = self.table.as_ref().expect("these parts are a table's");
        let mut bytes = vec![0; (table.bytes() - at).min(PART_MAX as u64) as usize];
        table.read_checked(at, &mut bytes)?;
        Ok(part(numbers, [parts, of_table], &bytes))
    }
}

/// `numbers`: message and part. `parts`: all of them, and the table's.
fn part(numbers: [u64; 2], parts: [u32; 2], bytes: &[u8]) -> Vec<u8> {
    debug_assert!(bytes.len() <= PART_MAX, "no member takes a longer part");
    let mut out = Vec::with_capacity(HEADER + bytes.len());
    out.extend_from_slice(&numbers[0].to_le_bytes());
    for number in [numbers[1] as u32, parts[0], parts[1]] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::table::TableWriter;

    fn long() -> Vec<u8> {
        (0..PART_MAX * 2 + 5).map(|i| (i % 251) as u8).collect()
    }

    fn table() -> Arc<Table> {
        let mut bytes = vec![0; 10];
        let mut writer = TableWriter::new(&mut bytes, 2000);
        for i in 0..2000u32 {
            writer.push(&i.to_be_bytes(), &[i as u8; 5000]).unwrap();
        }
        let length = writer.finish().unwrap();
        Arc::new(Table::open(Arc::new(bytes), 10, length).unwrap())
    }

    /// Where no table is expected.
    fn no_table(_: u64, _: &[u8]) -> Result<bool, TableError> {
        panic!("there is no table")
    }

    /// Member 1 sends to member 2 over a link that drops what `loses` selects. Returns what arrived and the most bytes
    /// in flight at once.
    fn carry(message: Vec<u8>, loses: impl FnMut() -> bool) -> (Vec<Vec<u8>>, usize) {
        let (arrived, most) = carry_with(message, None, loses);
        (arrived.into_iter().map(|(message, _)| message).collect(), most)
    }

    /// A message and its table.
    type Whole = (Vec<u8>, Vec<u8>);

    /// Returns each message that arrives with its table.
    fn carry_with(
        message: Vec<u8>,
        table: Option<Arc<Table>>,
        mut loses: impl FnMut() -> bool,
    ) -> (Vec<Whole>, usize) {
        let (mut one, mut two) = (Courier::default(), Courier::default());
        let (mut forth, mut arrived, mut most) = (Out::new(), Vec::new(), 0);
        let mut staged = Vec::new();
        one.send(2, message, table, &mut forth).unwrap();
        for _ in 0..1000 {
            most = most.max(forth.iter().map(|(_, part)| part.len()).sum());
            let mut back = Out::new();
            for (_, part) in std::mem::take(&mut forth).into_iter().filter(|_| !loses()) {
                let stage = |at: u64, bytes: &[u8]| -> Result<bool, TableError> {
                    assert!(at == 0 || at == staged.len() as u64);
                    staged.truncate(at as usize);
                    staged.extend_from_slice(bytes);
                    Ok(true)
                };
                let whole = two.receive(1, &part, &mut back, stage).unwrap();
                arrived.extend(whole.map(|(message, table)| (message, staged[..table as usize].to_vec())));
            }
            for (_, ack) in back.into_iter().filter(|_| !loses()) {
                assert_eq!(one.receive(2, &ack, &mut forth, no_table).unwrap(), None);
            }
            one.tick(&mut forth).unwrap();
        }
        assert!(!one.is_busy(2));
        (arrived, most)
    }

    #[test]
    fn a_long_message_arrives_with_one_part_on_the_line_at_a_time() {
        assert_eq!(carry(long(), || false), (vec![long()], PART_MAX + HEADER));
        assert_eq!(carry(b"short".to_vec(), || false).0, [b"short".to_vec()]);
        assert_eq!(carry(Vec::new(), || false).0, [Vec::<u8>::new()]);
    }

    #[test]
    fn lost_parts_and_acknowledgements_are_sent_again() {
        let mut dice = 1u64;
        let loses = || {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 33).is_multiple_of(2)
        };
        assert_eq!(carry(long(), loses).0, [long()]);
        assert_eq!(carry(long(), || true).0, Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_table_arrives_behind_its_message() {
        let table = table();
        let mut bytes = vec![0; table.bytes() as usize];
        table.read_checked(0, &mut bytes).unwrap();
        for message in [b"short".to_vec(), long()] {
            for one_in in [1000, 3] {
                let mut dice = 0;
                let loses = || {
                    dice += 1;
                    dice % one_in == 0
                };
                let (arrived, _) = carry_with(message.clone(), Some(table.clone()), loses);
                assert_eq!(arrived.len(), 1);
                assert!(arrived[0] == (message.clone(), bytes.clone()));
            }
        }
        let (mut one, mut two, mut forth) = (Courier::default(), Courier::default(), Out::new());
        one.send(2, b"short".to_vec(), Some(table), &mut forth).unwrap();
        let mut acks = Out::new();
        two.receive(1, &forth[0].1, &mut acks, no_table).unwrap();
        one.receive(2, &acks[0].1, &mut forth, no_table).unwrap();
        acks.clear();
        two.receive(1, &forth[1].1, &mut acks, |_, _| Ok::<_, TableError>(false)).unwrap();
        assert!(acks.is_empty(), "what has no place is not acknowledged");
    }

    #[test]
    fn what_does_not_fit_is_dropped() {
        let (mut one, mut two, mut out) = (Courier::default(), Courier::default(), Out::new());
        one.send(2, long(), None, &mut out).unwrap();
        one.send(2, long(), None, &mut out).unwrap();
        assert_eq!(out.len(), 1, "one long message at a time");
        let first = out[0].1.clone();
        let mut acks = Out::new();
        let mut later = first.clone();
        later[8] = 1;
        assert_eq!(two.receive(1, &later, &mut acks, no_table).unwrap(), None);
        assert_eq!(two.receive(1, &first[..10], &mut acks, no_table).unwrap(), None);
        let mut endless = first.clone();
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(two.receive(1, &endless, &mut acks, no_table).unwrap(), None);
        assert!(acks.is_empty());
    }
}
