//! The order of a volume's requests. Pure.
//!
//! A client that lost its connection sends again what was not answered, and continues: with newer writes of the same
//! blocks, and a flush. What it sent first may still be on its way, and must not come after that. So requests take
//! their turns as they arrive, over all connections: one that writes blocks begins when every earlier one that writes
//! any of them has ended, and a flush when all earlier ones have. The end of a connection ends no request.
//!
//! Reads take no turn: one that is carried out together with a write may find either content.

use std::collections::BTreeMap;
use std::ops::Range;

/// What a request does that others may have to wait for, or that waits for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Changes these blocks.
    Write(Range<u64>),
    Flush,
}

impl Doing {
    fn waits_for(&self, earlier: &Doing) -> bool {
        match (self, earlier) {
            (_, Doing::Flush) => false,
            (Doing::Flush, Doing::Write(_)) => true,
            (Doing::Write(blocks), Doing::Write(earlier)) => {
                blocks.start < earlier.end && earlier.start < blocks.end
            }
        }
    }
}

#[derive(Debug)]
struct Request {
    doing: Doing,
    /// How many earlier ones it waits for.
    waits: usize,
}

/// The requests that have not ended, by their numbers: in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Order {
    last: u64,
    requests: BTreeMap<u64, Request>,
}

impl Order {
    /// A request arrives. Returns its number, and whether its turn has come.
    pub fn arrive(&mut self, doing: Doing) -> (u64, bool) {
        self.last += 1;
        let waits = self.requests.values().filter(|earlier| doing.waits_for(&earlier.doing)).count();
        self.requests.insert(self.last, Request { doing, waits });
        (self.last, waits == 0)
    }

    /// A request has ended, or gave up before its turn. Appends those whose turn has come.
    pub fn end(&mut self, number: u64, come: &mut Vec<u64>) {
        let ended = self.requests.remove(&number).expect("a request ends once");
        for (number, later) in self.requests.range_mut(number..) {
            if later.doing.waits_for(&ended.doing) {
                later.waits -= 1;
                if later.waits == 0 {
                    come.push(*number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Random;

    /// The rule, by looking at all requests.
    fn may_begin(requests: &BTreeMap<u64, Doing>, number: u64) -> bool {
        let doing = &requests[&number];
        requests.range(..number).all(|(_, earlier)| match (earlier, doing) {
            (Doing::Flush, _) => true,
            (Doing::Write(_), Doing::Flush) => false,
            (Doing::Write(a), Doing::Write(b)) => a.clone().all(|block| !b.contains(&block)),
        })
    }

    #[test]
    fn turns_come_when_nothing_earlier_is_in_the_way_and_not_later() {
        for seed in 0..300 {
            let (mut random, mut order) = (Random::new(seed), Order::default());
            let (mut requests, mut begun) = (BTreeMap::new(), Vec::new());
            for _ in 0..200 {
                if random.chance(550) {
                    let (first, count) = (random.below(12), 1 + random.below(4));
                    let doing =
                        if random.chance(100) { Doing::Flush } else { Doing::Write(first..first + count) };
                    let (number, come) = order.arrive(doing.clone());
                    requests.insert(number, doing);
                    begun.extend(come.then_some(number));
                } else if let Some((&number, _)) = requests.iter().nth(random.index(requests.len().max(1))) {
                    // One that waits may give up, too.
                    order.end(number, &mut begun);
                    requests.remove(&number);
                    begun.retain(|other| *other != number);
                }
                let may: Vec<u64> =
                    requests.keys().copied().filter(|number| may_begin(&requests, *number)).collect();
                begun.sort_unstable();
                assert_eq!(begun, may, "seed {seed}");
            }
        }
    }
}
