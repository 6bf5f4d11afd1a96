//! Long messages between members in parts: a snapshot may be longer than a frame of the wire may be.
//!
//! ```text
//! part = message number u64 LE | part number u32 LE | number of parts u32 LE | bytes
//! ```
//! Parts of one sender arrive in order or not at all (one stream). A message with a part missing is dropped: the Raft
//! library sends what was lost again.

use crate::MemberId;
use std::collections::BTreeMap;

/// Longest part.
pub const PART_MAX: usize = 4 << 20;
const HEADER: usize = 16;
/// Most parts of one message: bounds what a sender can make this member hold.
const PARTS_MAX: u32 = 1024;

/// Takes messages apart.
#[derive(Default)]
pub struct Splitter {
    next: u64,
}

impl Splitter {
    pub fn split(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        let number = self.next;
        self.next += 1;
        let count = message.len().div_ceil(PART_MAX).max(1) as u32;
        let part = |index: u32| {
            let start = index as usize * PART_MAX;
            let bytes = &message[start..message.len().min(start + PART_MAX)];
            let mut out = Vec::with_capacity(HEADER + bytes.len());
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
            out.extend_from_slice(bytes);
            out
        };
        (0..count).map(part).collect()
    }
}

/// Puts messages together: per sender the one that is under way.
#[derive(Default)]
pub struct Joiner {
    under_way: BTreeMap<MemberId, Partial>,
}

struct Partial {
    number: u64,
    next: u32,
    bytes: Vec<u8>,
}

impl Joiner {
    /// The whole message, if `part` was its last one. Outside input: what does not fit is dropped.
    pub fn join(&mut self, from: MemberId, part: &[u8]) -> Option<Vec<u8>> {
        let (header, bytes) = part.split_at_checked(HEADER)?;
        let number = u64::from_le_bytes(header[..8].try_into().expect("eight bytes"));
        let index = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        let count = u32::from_le_bytes(header[12..].try_into().expect("four bytes"));
        if index >= count || count > PARTS_MAX || bytes.len() > PART_MAX {
            return None;
        }
        if count == 1 {
            return Some(bytes.to_vec());
        }
        if index == 0 {
            self.under_way.insert(from, Partial { number, next: 0, bytes: Vec::new() });
        }
        let partial = self.under_way.get_mut(&from).filter(|p| p.number == number && p.next == index)?;
        partial.bytes.extend_from_slice(bytes);
        partial.next += 1;
        if partial.next < count {
            return None;
        }
        self.under_way.remove(&from).map(|p| p.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long() -> Vec<u8> {
        (0..PART_MAX * 2 + 5).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn a_long_message_comes_back_whole_also_between_short_ones() {
        let (mut splitter, mut joiner) = (Splitter::default(), Joiner::default());
        let parts = splitter.split(&long());
        assert_eq!(parts.len(), 3);
        assert_eq!(joiner.join(1, &parts[0]), None);
        assert_eq!(joiner.join(1, &splitter.split(b"short")[0]), Some(b"short".to_vec()));
        assert_eq!(joiner.join(2, &splitter.split(b"")[0]), Some(Vec::new()));
        assert_eq!(joiner.join(1, &parts[1]), None);
        assert_eq!(joiner.join(1, &parts[2]), Some(long()));
    }

    #[test]
    fn a_message_with_a_part_missing_or_mangled_is_dropped() {
        let (mut splitter, mut joiner) = (Splitter::default(), Joiner::default());
        let parts = splitter.split(&long());
        assert_eq!(joiner.join(1, &parts[0]), None);
        assert_eq!(joiner.join(1, &parts[2]), None);
        assert_eq!(joiner.join(1, &parts[1][..10]), None);
        assert_eq!(joiner.join(2, &parts[2]), None, "another sender's");
        let mut endless = parts[0].clone();
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(joiner.join(1, &endless), None);
        for part in splitter.split(&long()).iter().take(2) {
            assert_eq!(joiner.join(1, part), None);
        }
    }
}
