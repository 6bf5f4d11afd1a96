//! Long messages between members in parts, the next one when the last has arrived.
//!
//! A snapshot is longer than a frame of the wire and than the queue of a connection may be: sent at once, most of it would
//! be refused, and it would never arrive. A short message is one part and is not acknowledged: the Raft library sends
//! again what was lost. Per receiver one long message is under way; another one meanwhile is dropped, for the same reason.
//!
//! ```text
//! part = message number u64 LE | part number u32 LE | number of parts u32 LE | bytes
//! acknowledgement of a part = its message number | its part number | zero
//! ```

use crate::MemberId;
use std::collections::BTreeMap;

/// Longest part.
pub const PART_MAX: usize = 4 << 20;
const HEADER: usize = 16;
/// Most parts of one message: bounds what a sender can make this member hold.
const PARTS_MAX: u32 = 1024;
/// A part that was not acknowledged for so many ticks is sent again, and after so many times the message is given up.
const AGAIN_TICKS: u32 = 20;
const TRIES: u32 = 10;

/// Parts to send, and to whom.
pub type Out = Vec<(MemberId, Vec<u8>)>;

/// Takes messages apart and puts them together.
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
    part: u32,
    ticks: u32,
    tries: u32,
}

/// A long message of which parts up to `next` are there.
struct Arriving {
    number: u64,
    next: u32,
    bytes: Vec<u8>,
}

impl Courier {
    pub fn send(&mut self, to: MemberId, message: Vec<u8>, out: &mut Out) {
        let number = self.next;
        self.next += 1;
        if message.len() <= PART_MAX {
            out.push((to, part(number, 0, 1, &message)));
        } else if !self.is_busy(to) {
            let leaving = Leaving { number, message, part: 0, ticks: 0, tries: 0 };
            out.push((to, leaving.present()));
            self.leaving.insert(to, leaving);
        }
    }

    /// Whether a long message to the member is under way.
    pub fn is_busy(&self, to: MemberId) -> bool {
        self.leaving.contains_key(&to)
    }

    pub fn tick(&mut self, out: &mut Out) {
        self.leaving.retain(|to, leaving| {
            leaving.ticks += 1;
            if leaving.ticks == AGAIN_TICKS {
                leaving.ticks = 0;
                leaving.tries += 1;
                out.push((*to, leaving.present()));
            }
            leaving.tries < TRIES
        });
    }

    /// The whole message, if `bytes` were all of it or its last part. Outside input: what does not fit is dropped.
    pub fn receive(&mut self, from: MemberId, bytes: &[u8], out: &mut Out) -> Option<Vec<u8>> {
        let (header, bytes) = bytes.split_at_checked(HEADER)?;
        let number = u64::from_le_bytes(header[..8].try_into().expect("eight bytes"));
        let index = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        let count = u32::from_le_bytes(header[12..].try_into().expect("four bytes"));
        if count == 0 {
            self.acknowledged(from, number, index, out);
            return None;
        }
        if index >= count || count > PARTS_MAX || bytes.len() > PART_MAX {
            return None;
        }
        if count == 1 {
            return Some(bytes.to_vec());
        }
        if index == 0 {
            self.arriving.insert(from, Arriving { number, next: 0, bytes: Vec::new() });
        }
        let arriving = self.arriving.get_mut(&from).filter(|a| a.number == number && a.next >= index)?;
        out.push((from, part(number, index, 0, &[])));
        if arriving.next > index {
            // The acknowledgement was lost.
            return None;
        }
        arriving.bytes.extend_from_slice(bytes);
        arriving.next += 1;
        if arriving.next < count {
            return None;
        }
        self.arriving.remove(&from).map(|a| a.bytes)
    }

    fn acknowledged(&mut self, from: MemberId, number: u64, index: u32, out: &mut Out) {
        let leaving = self.leaving.get_mut(&from).filter(|l| l.number == number && l.part == index);
        let Some(leaving) = leaving else { return };
        leaving.part += 1;
        (leaving.ticks, leaving.tries) = (0, 0);
        if leaving.part < leaving.count() {
            out.push((from, leaving.present()));
        } else {
            self.leaving.remove(&from);
        }
    }
}

impl Leaving {
    fn count(&self) -> u32 {
        self.message.len().div_ceil(PART_MAX) as u32
    }

    fn present(&self) -> Vec<u8> {
        let start = self.part as usize * PART_MAX;
        let end = self.message.len().min(start + PART_MAX);
        part(self.number, self.part, self.count(), &self.message[start..end])
    }
}

fn part(number: u64, index: u32, count: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + bytes.len());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long() -> Vec<u8> {
        (0..PART_MAX * 2 + 5).map(|i| (i % 251) as u8).collect()
    }

    /// Member 1 sends to member 2 over a line that loses what `loses` says. Returns what arrived and the most bytes that were
    /// on the line at once.
    fn carry(message: Vec<u8>, mut loses: impl FnMut() -> bool) -> (Vec<Vec<u8>>, usize) {
        let (mut one, mut two) = (Courier::default(), Courier::default());
        let (mut forth, mut arrived, mut most) = (Out::new(), Vec::new(), 0);
        one.send(2, message, &mut forth);
        for _ in 0..1000 {
            most = most.max(forth.iter().map(|(_, part)| part.len()).sum());
            let mut back = Out::new();
            for (_, part) in std::mem::take(&mut forth).into_iter().filter(|_| !loses()) {
                arrived.extend(two.receive(1, &part, &mut back));
            }
            for (_, ack) in back.into_iter().filter(|_| !loses()) {
                assert_eq!(one.receive(2, &ack, &mut forth), None);
            }
            one.tick(&mut forth);
        }
        assert!(!one.is_busy(2));
        (arrived, most)
    }

    #[test]
    fn a_long_message_arrives_with_one_part_on_the_line_at_a_time() {
        assert_eq!(carry(long(), || false), (vec![long()], PART_MAX + HEADER));
        assert_eq!(carry(b"short".to_vec(), || false).0, [b"short".to_vec()]);
        assert_eq!(carry(Vec::new(), || false).0, [Vec::new()]);
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
    fn what_does_not_fit_is_dropped() {
        let (mut one, mut two, mut out) = (Courier::default(), Courier::default(), Out::new());
        one.send(2, long(), &mut out);
        one.send(2, long(), &mut out);
        assert_eq!(out.len(), 1, "one long message at a time");
        let first = out[0].1.clone();
        let mut acks = Out::new();
        let mut later = first.clone();
        later[8] = 1;
        assert_eq!(two.receive(1, &later, &mut acks), None);
        assert_eq!(two.receive(1, &first[..10], &mut acks), None);
        let mut endless = first.clone();
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(two.receive(1, &endless, &mut acks), None);
        assert!(acks.is_empty());
    }
}
