//! The bytes that a write carries: a function of (volume, position, number of the write), eight at a time.
//!
//! It consists of two invertible mixing steps, so eight wrong bytes reveal which write would have put them there: this
//! distinguishes a lost write from a mixed-up one and from noise.

use ebb_types::mix;

/// Writes are numbered in the order in which they start, from one. Zero is the content before the trace.
pub type Number = u64;

const WORD: u64 = 8;
const VOLUME: u64 = 0x9e37_79b9_7f4a_7c15;

/// Inverse of [`mix`].
fn unmix(mut word: u64) -> u64 {
    word = (word ^ (word >> 31) ^ (word >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    word = (word ^ (word >> 27) ^ (word >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    word ^ (word >> 30) ^ (word >> 60)
}

fn place(volume: u64, index: u64) -> u64 {
    mix(volume.wrapping_mul(VOLUME) ^ index)
}

/// The eight bytes at `index * 8` of a volume after write `number`.
fn word(volume: u64, index: u64, number: Number) -> [u8; 8] {
    mix(place(volume, index) ^ number).to_le_bytes()
}

/// The write that would have left these eight bytes there. Any bytes give some number: only a small one is meaningful.
pub fn writer(volume: u64, index: u64, bytes: [u8; 8]) -> Number {
    unmix(u64::from_le_bytes(bytes)) ^ place(volume, index)
}

/// Fills `bytes`, which begin at `offset` of the volume.
pub fn fill(volume: u64, offset: u64, number: Number, bytes: &mut [u8]) {
    let head = (offset.next_multiple_of(WORD) - offset).min(bytes.len() as u64) as usize;
    let (head, body) = bytes.split_at_mut(head);
    if !head.is_empty() {
        let skip = (offset % WORD) as usize;
        head.copy_from_slice(&word(volume, offset / WORD, number)[skip..skip + head.len()]);
    }
    let first = offset.div_ceil(WORD);
    let (words, tail) = body.as_chunks_mut::<8>();
    let tail_index = first + words.len() as u64;
    for (index, out) in (first..).zip(words) {
        *out = word(volume, index, number);
    }
    let last = word(volume, tail_index, number);
    tail.copy_from_slice(&last[..tail.len()]);
}

/// Permissible content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Never written.
    Zero,
    Write(Number),
    /// A write failed: it is unknown whether it was carried out.
    Unknown,
}

/// The first word of `bytes` that matches none of `allowed`: its position in `bytes`. Words may differ from one
/// another: a read that overlaps a write in flight may see part of it.
pub fn first_difference(volume: u64, offset: u64, bytes: &[u8], allowed: &[Content]) -> Option<usize> {
    if allowed.contains(&Content::Unknown) {
        return None;
    }
    let mut at = 0;
    while at < bytes.len() {
        let position = offset + at as u64;
        let skip = (position % WORD) as usize;
        let len = (8 - skip).min(bytes.len() - at);
        let found = &bytes[at..at + len];
        let fits = |content: &Content| match content {
            Content::Write(number) => found == &word(volume, position / WORD, *number)[skip..skip + len],
            Content::Zero => found.iter().all(|byte| *byte == 0),
            Content::Unknown => true,
        };
        if !allowed.iter().any(fits) {
            return Some(at);
        }
        at += len;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_a_range_has_the_bytes_of_the_whole() {
        let mut whole = vec![0; 100];
        fill(7, 1000, 3, &mut whole);
        for start in 0..24 {
            for end in start..100 {
                let mut part = vec![0; end - start];
                fill(7, 1000 + start as u64, 3, &mut part);
                assert_eq!(part, whole[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn volume_position_and_number_all_matter_and_the_number_can_be_read_back() {
        let base = word(1, 2, 3);
        for other in [word(2, 2, 3), word(1, 3, 3), word(1, 2, 4), word(3, 2, 1)] {
            assert_ne!(base, other);
        }
        for (volume, index, number) in [(1, 0, 0), (9, 1 << 50, 17), (u64::MAX, u64::MAX, u64::MAX)] {
            assert_eq!(writer(volume, index, word(volume, index, number)), number);
        }
    }

    #[test]
    fn every_flipped_byte_is_found_where_it_is() {
        let mut bytes = vec![0; 61];
        fill(5, 4093, 8, &mut bytes);
        let allowed = [Content::Write(8)];
        assert_eq!(first_difference(5, 4093, &bytes, &allowed), None);
        for at in 0..bytes.len() {
            bytes[at] ^= 0x40;
            let found = first_difference(5, 4093, &bytes, &allowed).expect("found");
            assert!(found <= at && at - found < 8, "{at}: {found}");
            assert_eq!(first_difference(5, 4093, &bytes, &[Content::Unknown]), None);
            bytes[at] ^= 0x40;
        }
    }

    #[test]
    fn zeros_are_only_right_where_nothing_was_written() {
        assert_eq!(first_difference(1, 0, &[0; 32], &[Content::Zero]), None);
        assert_eq!(first_difference(1, 0, &[0; 32], &[Content::Write(0)]), Some(0));
        assert_eq!(first_difference(1, 0, &[0; 32], &[Content::Write(0), Content::Zero]), None);
    }
}
