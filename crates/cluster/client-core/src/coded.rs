//! The strips of one write to a chunk of an erasure-coded pool: which to send, and when all of them are a write.
//!
//! The write is complete when all strips that rows have under one epoch were taken under that epoch (`docs/coded.md`).
//! Each strip travels as a [`crate::Request`] of its own, which follows the set's configuration from server to server.
//! When the configuration changes midway, some strips were taken before the change and some after it. Those taken
//! before are sent again, because other servers may be their targets now, and nothing that was taken under an older
//! epoch needs to be there. A deletion works the same.

use ebb_types::{Epoch, SetEntry};

/// One write, or one deletion.
#[derive(Debug, Default)]
pub struct CodedWrite {
    /// The configuration that it is to be completed under, and the strips that rows have then.
    epoch: Epoch,
    strips: Vec<Strip>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Strip {
    wanted: bool,
    sent: bool,
    /// Under which it was taken; zero: under none yet.
    taken: Epoch,
}

/// What to do next. If both are empty: wait until a strip is taken or the set's configuration changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Orders {
    /// Send the strips `send`, and give up the requests for `drop`: rows have no such strips any more.
    Go { send: Vec<usize>, drop: Vec<usize> },
    /// The write is complete.
    Complete,
}

impl CodedWrite {
    /// A server has taken the strip under this epoch.
    pub fn taken(&mut self, strip: usize, epoch: Epoch) {
        debug_assert!(strip < self.strips.len(), "only strips that rows have are sent");
        if let Some(strip) = self.strips.get_mut(strip) {
            strip.sent = false;
            strip.taken = epoch;
        }
    }

    /// `entry`: the newest known configuration of the set. Call it first, then after every [`CodedWrite::taken`] and
    /// whenever the configuration changes.
    pub fn next(&mut self, entry: &SetEntry) -> Orders {
        if self.is_complete() {
            return Orders::Complete;
        }
        debug_assert!(entry.epoch >= self.epoch, "a set's configuration does not go back");
        if entry.epoch > self.epoch {
            self.epoch = entry.epoch;
            self.strips.resize(entry.strips(), Strip::default());
            for (nth, strip) in self.strips.iter_mut().enumerate() {
                strip.wanted = nth < entry.shape.servers() || entry.has_extra();
            }
        }
        if self.is_complete() {
            return Orders::Complete;
        }
        let (mut send, mut drop) = (Vec::new(), Vec::new());
        for (nth, strip) in self.strips.iter_mut().enumerate() {
            if strip.sent && !strip.wanted {
                strip.sent = false;
                drop.push(nth);
            } else if strip.wanted && !strip.sent && strip.taken != self.epoch {
                strip.sent = true;
                send.push(nth);
            }
        }
        debug_assert!(self.strips.iter().any(|strip| strip.sent), "what is not complete waits for a strip");
        Orders::Go { send, drop }
    }

    fn is_complete(&self) -> bool {
        let is_taken = |strip: &Strip| !strip.wanted || strip.taken == self.epoch;
        !self.strips.is_empty() && self.strips.iter().all(is_taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{Column, PoolId, Random, ServerId, Shape, SlotState};
    use std::collections::{BTreeMap, BTreeSet};

    fn entry(epoch: u32, away: &[usize]) -> SetEntry {
        let shape = Shape::new(4, 2).unwrap();
        let state =
            |n| if away.contains(&n) { SlotState::Away { since: Epoch(1) } } else { SlotState::InSync };
        let column = |n: usize| Column { server: ServerId(n as u16), state: state(n) };
        let columns = (0..shape.servers()).map(column).collect();
        SetEntry { pool: PoolId(1), shape, epoch: Epoch(epoch), hibernates_since: None, columns }
    }

    fn go(send: &[usize], drop: &[usize]) -> Orders {
        Orders::Go { send: send.to_vec(), drop: drop.to_vec() }
    }

    #[test]
    fn a_change_midway_sends_again_what_was_taken_before_it() {
        let mut write = CodedWrite::default();
        assert_eq!(write.next(&entry(1, &[])), go(&[0, 1, 2, 3, 4, 5], &[]));
        for strip in 0..3 {
            write.taken(strip, Epoch(1));
        }
        assert_eq!(write.next(&entry(1, &[])), go(&[], &[]), "the rest is under way");
        let asleep = entry(2, &[4, 5]);
        assert_eq!(write.next(&asleep), go(&[0, 1, 2, 6, 7], &[]), "and rows have extra strips now");
        write.taken(3, Epoch(1));
        assert_eq!(write.next(&asleep), go(&[3], &[]), "it was taken too early");
        (0..7).for_each(|strip| write.taken(strip, Epoch(2)));
        assert_eq!(write.next(&asleep), go(&[], &[]), "without the last one it is not complete");
        write.taken(7, Epoch(2));
        assert_eq!(write.next(&entry(3, &[])), Orders::Complete, "whatever comes after");
    }

    #[test]
    fn extra_strips_are_given_up_when_parity_is_back() {
        let mut write = CodedWrite::default();
        assert_eq!(write.next(&entry(1, &[5])), go(&[0, 1, 2, 3, 4, 5, 6, 7], &[]));
        write.taken(6, Epoch(1));
        assert_eq!(write.next(&entry(2, &[])), go(&[], &[7]));
        (0..6).for_each(|strip| write.taken(strip, Epoch(2)));
        assert_eq!(write.next(&entry(2, &[])), Orders::Complete);
    }

    /// Epochs pass and strips arrive in any order; whatever is sent is taken under an epoch between the one that it was
    /// sent under and the present one. `EBB_SEED=<seed> cargo test -p ebb-client-core -- a_write_completes` repeats
    /// one.
    #[test]
    fn a_write_completes_under_one_epoch_with_all_its_strips_and_sends_nothing_in_vain() {
        let one = std::env::var("EBB_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
        for seed in one.map_or(0..2000, |seed| seed..seed + 1) {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let mut entries = vec![entry(1, &[])];
            let (mut write, mut sent) = (CodedWrite::default(), BTreeMap::new());
            let mut taken: BTreeSet<(usize, Epoch)> = BTreeSet::new();
            let mut changes = random.below(6);
            let complete = (0..10_000).any(|_| {
                let newest = entries.last().unwrap().clone();
                match write.next(&newest) {
                    Orders::Complete => return true,
                    Orders::Go { send, drop } => {
                        drop.iter().for_each(|strip| assert!(sent.remove(strip).is_some(), "not under way"));
                        for strip in send {
                            assert!(!taken.contains(&(strip, newest.epoch)), "strip {strip} has been taken");
                            assert!(sent.insert(strip, newest.epoch).is_none(), "strip {strip} is under way");
                        }
                    }
                }
                assert!(sent.keys().all(|strip| *strip < 6 || newest.has_extra()), "{sent:?}");
                if changes > 0 && random.chance(200) {
                    changes -= 1;
                    let away: Vec<usize> = (0..6).filter(|_| random.chance(200)).collect();
                    entries.push(entry(newest.epoch.0 + 1, &away));
                } else if !sent.is_empty() {
                    let nth = random.below(sent.len() as u64) as usize;
                    let (strip, since) = sent.iter().nth(nth).map(|(n, e)| (*n, *e)).unwrap();
                    let epoch = Epoch(random.between(since.0.into(), newest.epoch.0.into()) as u32);
                    sent.remove(&strip);
                    taken.insert((strip, epoch));
                    write.taken(strip, epoch);
                }
                false
            });
            assert!(complete, "seed {seed}: {write:?}");
            let whole = |entry: &SetEntry| {
                let strips = if entry.has_extra() { 8 } else { 6 };
                (0..strips).all(|strip| taken.contains(&(strip, entry.epoch)))
            };
            assert!(entries.iter().any(whole), "seed {seed}: {write:?} after {taken:?}");
        }
    }
}
