//! What gateways' clients do, and how it is judged: they put, get, copy, delete and list. Each key is a register; a
//! request that concerns several counts as an operation on each.

use crate::above::library::MIDNIGHT;
use crate::above::messages::{Class, Found, ObjectRequest, Part, Request, Upload, Wish};
use crate::above::meta::{NEW_POOL_NAME, POOL_NAME};
use crate::above::net::Net;
use crate::above::object::{CHUNK_BYTES, DATED, EXPIRE, MOVED};
use crate::above::scenario::{SECOND, Scenario};
use crate::above::uploads::{self, WORD, words};
use crate::search::history::{Action, History, Outcome};
use crate::search::linear::{Verdict, check};
use bytes::Bytes;
use ebb_gateway::Refused;
use ebb_types::{ChunkId, ObjectId, Random};
use std::collections::BTreeMap;

const READ: Action = Action::Read { first: 0, cells: 1 };
const WRITE: Action = Action::Write { first: 0, cells: 1 };
const DELETE: Action = Action::Zero { first: 0, cells: 1 };
const NOTHING: Action = Action::Read { first: 0, cells: 0 };
/// Objects meet different lifecycle rules.
const PREFIXES: [&str; 4] = [MOVED, EXPIRE, DATED, "k/"];

pub(super) struct Keys {
    keys: usize,
    /// The prefix of the first one.
    first: usize,
    /// Some are put in several parts.
    has_parts: bool,
    /// Most are small, and in the erasure-coded pool.
    has_packs: bool,
    /// There is another pool, sooner or later.
    has_new_pool: bool,
    /// The erasure-coded pool sleeps at times.
    has_rests: bool,
    /// By operation: the words of what it puts, and how many bytes are of each.
    contents: BTreeMap<usize, Vec<(u64, u64)>>,
}

fn length(content: &[(u64, u64)]) -> u64 {
    content.iter().map(|(_, bytes)| bytes).sum()
}

/// The key as what the checks call a chunk.
fn register(number: usize) -> ChunkId {
    ChunkId { object: ObjectId(1 + number as u64), index: 0 }
}

impl Keys {
    pub fn new(scenario: &Scenario) -> Keys {
        Keys {
            keys: scenario.keys,
            first: scenario.seed as usize,
            has_parts: scenario.has_parts,
            has_packs: scenario.has_packs,
            has_new_pool: scenario.has_new_pool,
            has_rests: scenario.rest_after.is_some(),
            contents: BTreeMap::new(),
        }
    }

    fn name(&self, number: usize) -> String {
        format!("{}{number}", PREFIXES[self.first.wrapping_add(number) % PREFIXES.len()])
    }

    /// What a client does next.
    pub fn draw(&self, random: &mut Random, value: u64) -> Wish {
        let number = random.index(self.keys);
        let key = self.name(number);
        let (action, request) = match random.below(24) {
            0 if self.has_rests => (NOTHING, ObjectRequest::Restore { key }),
            0..=9 => {
                // Aligned, so that the number can be read from it.
                let range = match self.has_parts && random.chance(800) {
                    true => uploads::across(random),
                    false => (WORD * random.below(600), WORD * (1 + random.below(1500))),
                };
                let range = random.chance(600).then_some(range);
                (READ, ObjectRequest::Get { key, range })
            }
            10..=12 => (DELETE, ObjectRequest::Delete { key }),
            13 => (NOTHING, ObjectRequest::Abandon { key, upload: self.upload(random, value) }),
            14 | 15 => {
                let (to, class, in_parts) =
                    (format!("c/{value}"), self.class(random, 300), random.chance(400));
                (READ, ObjectRequest::Copy { from: key, to, class, in_parts })
            }
            16 => {
                let last = (number + 1 + random.index(4)).min(self.keys);
                (
                    DELETE,
                    ObjectRequest::DeleteAll { keys: (number..last).map(|key| self.name(key)).collect() },
                )
            }
            17 => {
                let request = ObjectRequest::List { page: 1 + random.below(5) as i32 };
                return (register(0), READ, Request::Object(request));
            }
            _ if self.has_packs && random.chance(850) => {
                let parts = vec![(0, words(value, 1 + random.below(1500)))];
                (WRITE, ObjectRequest::Put { key, class: self.class(random, 800), parts })
            }
            _ => {
                let (class, is_upload) =
                    (self.class(random, 200), random.chance(if self.has_parts { 500 } else { 200 }));
                let request = match is_upload {
                    true => ObjectRequest::Upload { key, class, upload: self.upload(random, value) },
                    false => ObjectRequest::Put { key, class, parts: parts(random, value) },
                };
                (WRITE, request)
            }
        };
        (register(number), action, Request::Object(request))
    }

    /// `coded`: per mille in an erasure-coded pool.
    fn class(&self, random: &mut Random, coded: u64) -> Class {
        let is_new = self.has_new_pool && random.chance(500);
        random.chance(coded).then_some(if is_new { NEW_POOL_NAME } else { POOL_NAME })
    }

    fn upload(&self, random: &mut Random, value: u64) -> Upload {
        match self.has_parts && random.chance(700) {
            true => uploads::draw(random, value),
            false => {
                let body = parts(random, value);
                uploads::draw_one(random, (value, body))
            }
        }
    }

    /// The key is read. `None`: there is no such key.
    pub fn read(&self, number: usize) -> Option<Wish> {
        let get = || ObjectRequest::Get { key: self.name(number), range: None };
        (number < self.keys).then(|| (register(number), READ, Request::Object(get())))
    }

    /// What else such a request does, after what it does first.
    pub fn others(&self, request: &ObjectRequest) -> Vec<(ChunkId, Action)> {
        match request {
            ObjectRequest::DeleteAll { keys } => {
                let known = |key: &String| self.number(key).expect("it deletes keys that are used");
                keys.iter().skip(1).map(|key| (register(known(key)), DELETE)).collect()
            }
            ObjectRequest::List { .. } => (1..self.keys).map(|number| (register(number), READ)).collect(),
            _ => Vec::new(),
        }
    }

    fn number(&self, key: &str) -> Option<usize> {
        (0..self.keys).find(|number| self.name(*number) == key)
    }

    /// An operation begins.
    pub fn note(&mut self, op: usize, request: &ObjectRequest) {
        let content = match request {
            ObjectRequest::Put { parts, .. } => {
                vec![(op as u64 + 1, parts.iter().map(|(_, bytes)| bytes.len() as u64).sum())]
            }
            ObjectRequest::Upload { upload, .. } => upload.holds.clone(),
            _ => return,
        };
        self.contents.insert(op, content);
    }

    /// How the operations of a request that was answered have ended, and what they have seen.
    pub fn seen(
        &self,
        history: &History,
        net: &mut Net,
        (ops, request): (&[usize], &Request),
        result: Result<Found, Refused>,
    ) -> Result<Vec<(Outcome, Vec<u64>)>, Refused> {
        let range = match request {
            Request::Object(ObjectRequest::Get { range, .. }) => Some(*range),
            Request::Object(ObjectRequest::Copy { .. }) => Some(None),
            _ => None,
        };
        let seen = match (range, result) {
            (Some(range), Ok(Found::Bytes(bytes))) => {
                if matches!(request, Request::Object(ObjectRequest::Copy { .. })) {
                    net.count("an object that is copied");
                }
                vec![(Outcome::Done, vec![self.value(history, net, (ops[0], range), &bytes)])]
            }
            (Some(_), Err(refused)) if refused.is_no_such_key() => vec![(Outcome::Done, vec![0])],
            (_, Ok(Found::Woken(slept))) => {
                if slept {
                    net.count("an object that is restored");
                }
                vec![(Outcome::Done, Vec::new())]
            }
            (_, Ok(Found::Listed(listed))) => {
                net.count("a listing");
                let keys = ops.iter().enumerate();
                keys.map(|(number, op)| self.listed(history, net, (number, *op), &listed)).collect()
            }
            (_, Ok(Found::Left(left))) => {
                net.count("keys that are deleted together");
                let outcome = |op: &usize| match left.contains(&self.name_of(history.ops[*op].chunk)) {
                    true => Outcome::Unknown,
                    false => Outcome::Done,
                };
                ops.iter().map(|op| (outcome(op), Vec::new())).collect()
            }
            (_, Ok(_)) => {
                if let Request::Object(ObjectRequest::Upload { upload, .. }) = request {
                    upload.count(net);
                }
                if matches!(request, Request::Object(ObjectRequest::Put { class: Some(NEW_POOL_NAME), .. })) {
                    net.count("an object in a pool that was created");
                }
                vec![(Outcome::Done, Vec::new())]
            }
            (_, Err(refused)) => return Err(refused),
        };
        Ok(seen)
    }

    fn name_of(&self, register: ChunkId) -> String {
        self.name(register.object.0 as usize - 1)
    }

    /// What a listing says of a key. Which put it has seen is told by the size, where only one is so long.
    fn listed(
        &self,
        history: &History,
        net: &mut Net,
        (number, op): (usize, usize),
        listed: &BTreeMap<String, u64>,
    ) -> (Outcome, Vec<u64>) {
        let Some(size) = listed.get(&self.name(number)) else { return (Outcome::Done, vec![0]) };
        let is_it = |put: &usize| history.ops[*put].chunk == register(number);
        let so_long = self.contents.iter().filter(|(put, content)| length(content) == *size && is_it(put));
        match so_long.map(|(put, _)| *put).collect::<Vec<_>>()[..] {
            [] => {
                net.break_rule(
                    "bytes",
                    format!("op {op} lists {} with {size} bytes, that no put wrote", self.name(number)),
                );
                (Outcome::Refused, Vec::new())
            }
            [put] => (Outcome::Done, vec![put as u64 + 1]),
            _ => (Outcome::Refused, Vec::new()),
        }
    }

    /// Which put these bytes are of.
    fn value(
        &self,
        history: &History,
        net: &mut Net,
        (op, range): (usize, Option<(u64, u64)>),
        bytes: &Bytes,
    ) -> u64 {
        let word = bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        let value = word & u64::from(u32::MAX);
        let put = (value as usize).checked_sub(1).filter(|put| {
            let of = history.ops.get(*put);
            of.is_some_and(|of| of.action == WRITE && of.chunk == history.ops[op].chunk)
        });
        let content = put.and_then(|put| self.contents.get(&put));
        if range.is_some() && bytes.last_chunk::<8>().is_some_and(|last| u64::from_le_bytes(*last) != word) {
            net.count("a range across parts");
        }
        if !content.is_some_and(|content| holds(content, range.unwrap_or((0, u64::MAX)), bytes)) {
            let what =
                format!("op {op} gets {} bytes, the first of op {put:?}, that no put wrote so", bytes.len());
            net.break_rule("bytes", what);
        }
        value
    }

    /// What it is for the checks that a lifecycle rule deletes the key's object. `None`: there is no such key.
    pub fn expiry(&self, key: &str) -> Option<(ChunkId, Action)> {
        Some((register(self.number(key)?), DELETE))
    }

    /// Whether some order explains what was seen of each key. Returns how many could not be decided.
    pub fn judge(&self, history: &History, net: &mut Net) -> usize {
        let mut undecided = 0;
        for number in 0..self.keys {
            let of_key = history
                .ops
                .iter()
                .enumerate()
                .filter(|(_, op)| op.chunk == register(number) && op.action != NOTHING);
            match check(&of_key.collect::<Vec<_>>()) {
                Verdict::Linearizable => {}
                Verdict::Unknown => undecided += 1,
                Verdict::Broken { stuck, .. } => {
                    let show = |number: &usize| {
                        let op = &history.ops[*number];
                        let (began, ended, seen) = (op.began, op.ended, &op.seen);
                        format!("op {number} {:?} {began}..{ended:?} {:?} {seen:?}", op.action, op.outcome)
                    };
                    let stuck: Vec<String> = stuck.iter().map(show).collect();
                    let what = format!("no order explains {}: {}", self.name(number), stuck.join("; "));
                    net.break_rule("linearizability", what);
                    break;
                }
            }
        }
        undecided
    }
}

/// A lifecycle rule has deleted the key's object.
pub(super) fn judge_expiry(net: &mut Net, key: &str) {
    net.count("an object that expires");
    let is_due = key.starts_with(DATED) && net.now >= MIDNIGHT;
    if !is_due {
        // No run lasts until an object is a day old.
        net.break_rule("lifecycle", format!("{key} expires too early"));
    }
}

/// Whether these bytes are that range of what was put.
fn holds(content: &[(u64, u64)], (first, most): (u64, u64), bytes: &Bytes) -> bool {
    if length(content).saturating_sub(first).min(most) != bytes.len() as u64 {
        return false;
    }
    let (mut found, mut start) = (bytes.as_chunks::<8>().0.iter(), 0);
    content.iter().all(|(word, bytes)| {
        let (from, to) = (first.max(start), start + bytes);
        start = to;
        let own = found.by_ref().take((to.saturating_sub(from) / WORD) as usize);
        own.copied().all(|read| u64::from_le_bytes(read) == *word)
    })
}

/// A small body at once, or a longer one in parts, perhaps slowly.
fn parts(random: &mut Random, value: u64) -> Vec<Part> {
    if random.chance(500) {
        return vec![(0, words(value, 1 + random.below(1500)))];
    }
    let is_slow = random.chance(600);
    let longest = u64::from(CHUNK_BYTES) / WORD;
    let count = 1 + random.below(5);
    let mut parts = Vec::new();
    for _ in 0..count {
        let pause = match random.below(12) {
            0 if is_slow => random.below(90 * SECOND),
            _ if is_slow => random.below(2500),
            _ => 0,
        };
        parts.push((pause, words(value, 1 + random.below(longest))));
    }
    parts
}
