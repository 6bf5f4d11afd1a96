//! What multipart uploads send: their parts in any order, again, and at the same time.
//!
//! A part's bytes say which of the things that were sent it is. So an object that has them in another order, or has
//! what another part replaced, is noticed.

use crate::above::messages::{NumberedPart, Part, Upload};
use crate::above::net::Net;
use crate::above::scenario::SECOND;
use bytes::Bytes;
use ebb_types::Random;
use std::collections::BTreeSet;

/// An object's bytes are words whose low half is its number: the same again and again, or one for each of its parts.
pub(super) const WORD: u64 = 8;
/// Every part but the last of an object has so many bytes, as S3 demands.
const PART_BYTES_MIN: u64 = 5 << 20;
/// In such pieces the body of a large part comes.
const PIECE_BYTES: u64 = 96 << 10;

pub(super) fn words(word: u64, count: u64) -> Bytes {
    Bytes::from(word.to_le_bytes().repeat(count as usize))
}

/// What a part may be. A later version of it replaces an earlier one.
#[derive(Clone)]
struct Version {
    number: i32,
    word: u64,
    bytes: u64,
}

impl Version {
    fn sent(&self, random: &mut Random) -> NumberedPart {
        let (mut left, mut body) = (self.bytes, Vec::new());
        let piece = words(self.word, PIECE_BYTES.min(left) / WORD);
        let is_slow = random.chance(100);
        while left > 0 {
            let bytes = left.min(PIECE_BYTES);
            let pause = if is_slow && random.chance(100) { random.below(4 * SECOND) } else { 0 };
            body.push((pause, piece.slice(..bytes as usize)));
            left -= bytes;
        }
        (self.number, body)
    }
}

/// One part, which is sent again; so is the completion.
pub(super) fn draw_one(random: &mut Random, (value, body): (u64, Vec<Part>)) -> Upload {
    let times = 1 + random.index(2);
    let bytes = body.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let sent = (0..times).map(|_| vec![(1, body.clone())]).collect();
    Upload { sent, late: Vec::new(), named: vec![1], times, holds: vec![(value, bytes)] }
}

/// Several parts, of which the object need not have all. `value`: what their words begin with.
pub(super) fn draw(random: &mut Random, value: u64) -> Upload {
    let count = 2 + random.index(3);
    let mut number = 0;
    let numbers: Vec<i32> = (0..count)
        .map(|_| {
            number += 1 + random.index(3) as i32;
            number
        })
        .collect();
    let mut named: Vec<i32> = numbers.iter().copied().filter(|_| random.chance(800)).collect();
    if named.is_empty() {
        named.push(numbers[0]);
    }
    let (mut sends, mut holds, mut sent) = (Vec::new(), Vec::new(), 0);
    for number in numbers {
        let mut version = |random: &mut Random, least: u64| {
            sent += 1;
            Version { number, word: value | sent << 32, bytes: least + WORD * (1 + random.below(6000)) }
        };
        let is_first = named.iter().any(|other| *other > number) && named.contains(&number);
        let at = random.next() >> 1;
        if random.chance(250) {
            sends.push((random.below(at + 1), version(random, 0)));
        }
        let last = version(random, if is_first { PART_BYTES_MIN } else { 0 });
        if named.contains(&number) {
            holds.push((last.word, last.bytes));
        }
        if random.chance(200) {
            sends.push((at + 1 + random.below(1 << 62), last.clone()));
        }
        sends.push((at + 1, last));
    }
    sends.sort_by_key(|(at, _)| *at);
    let late = random.chance(300).then(|| sends[random.index(sends.len())].1.clone());
    let times = 1 + random.index(3);
    let sends = sends.into_iter().map(|(_, version)| version).collect();
    let late = late.iter().map(|version| version.sent(random)).collect();
    Upload { sent: in_turn(random, sends), late, named, times, holds }
}

/// Who is sent at the same time as others. Two versions of a part never are: it would be either.
fn in_turn(random: &mut Random, sends: Vec<Version>) -> Vec<Vec<NumberedPart>> {
    let (mut turns, mut last): (Vec<Vec<NumberedPart>>, Vec<Version>) = (Vec::new(), Vec::new());
    for version in sends {
        let is_other = |other: &Version| other.number == version.number && other.word != version.word;
        if turns.is_empty() || last.iter().any(is_other) || random.chance(400) {
            turns.push(Vec::new());
            last.clear();
        }
        let sent = version.sent(random);
        turns.last_mut().expect("one was just begun, if there was none").push(sent);
        last.push(version);
    }
    turns
}

/// First byte and number of bytes of a range about where two parts of an object meet.
pub(super) fn across(random: &mut Random) -> (u64, u64) {
    let first = (1 + random.below(3)) * PART_BYTES_MIN + WORD * random.below(12_000) - WORD * 6000;
    (first, WORD * (1 + random.below(16_000)))
}

impl Upload {
    /// Of the parts, as they are sent.
    pub fn numbers(&self) -> Vec<Vec<i32>> {
        let of = |turn: &Vec<NumberedPart>| turn.iter().map(|(number, _)| *number).collect();
        self.sent.iter().map(of).collect()
    }

    /// It was completed.
    pub fn count(&self, net: &mut Net) {
        let numbers = self.numbers().concat();
        let different: BTreeSet<i32> = numbers.iter().copied().collect();
        let what = [
            (self.named.len() > 1, "an object of several parts"),
            (different.len() < numbers.len(), "a part that is sent again"),
            (different.len() > self.named.len(), "a part that an object leaves out"),
            (self.sent.iter().any(|turn| turn.len() > 1), "parts that are sent at the same time"),
            (!numbers.is_sorted(), "parts that are sent in another order"),
            (!self.late.is_empty(), "a part that comes with the completion"),
            (self.times > 1, "a completion that is sent again"),
        ];
        what.into_iter().filter(|(is_so, _)| *is_so).for_each(|(_, what)| net.count(what));
    }
}
