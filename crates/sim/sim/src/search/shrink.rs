//! Shrinks a failing seed: fewer rounds, clients, operations and faults, as long as it breaks the same rule.
//!
//! Every fault has its own random source ([`crate::search::faults`]), so one can be left out without changing the
//! others. The number of runs is bounded, not the time: the same seed shrinks to the same case.

use crate::search::case::Case;
use crate::search::run::{Played, play_case};
use crate::world::{Configure, Violation};
use std::collections::BTreeSet;
use std::fmt;

/// Runs that shrinking may take.
const RUNS_MAX: u32 = 300;

/// A small case that breaks the same rule, and its events.
#[derive(Clone, Debug)]
pub struct Shrunk {
    pub case: Case,
    pub violation: Violation,
    /// All events, one line each: seconds of virtual time, then the event.
    pub lines: Vec<String>,
    /// Faults of the whole seed up to the failure, and those that are left.
    pub faults: (u64, u64),
    /// Runs that shrinking took.
    pub runs: u32,
}

/// Shrinks a failing seed. `None`: it breaks no rule.
pub fn shrink(seed: u64, configure: &Configure) -> Option<Shrunk> {
    let whole = Case::whole(seed);
    let played = play_case(&whole, configure, 0);
    let rule = played.violation.as_ref()?.rule;
    let mut shrinker = Shrinker { configure, rule, runs: 1, best: whole, happened: played.faults };
    shrinker.shrink();
    let Shrinker { best, runs, .. } = shrinker;
    let Played { violation, lines, faults: left, .. } = play_case(&best, configure, usize::MAX);
    let left = left - best.left_out.iter().filter(|n| **n <= left).count() as u64;
    Some(Shrunk { case: best, violation: violation?, lines, faults: (played.faults, left), runs })
}

struct Shrinker<'a> {
    configure: &'a Configure,
    rule: &'static str,
    runs: u32,
    best: Case,
    /// Faults drawn until the best case broke its rule.
    happened: u64,
}

impl Shrinker<'_> {
    fn shrink(&mut self) {
        while self.runs < RUNS_MAX {
            let before = self.best.clone();
            self.fewer(|case, rounds| Case { rounds, ..case }, before.rounds);
            self.fewer(|case, clients| Case { clients, ..case }, before.clients);
            self.fewer(|case, ops| Case { ops, ..case }, before.ops);
            self.leave_out_faults();
            let Case { left_out, rounds, clients, ops, .. } = &self.best;
            if (left_out.len(), *rounds, *clients, *ops)
                == (before.left_out.len(), before.rounds, before.clients, before.ops)
            {
                return;
            }
        }
    }

    /// Adopts the smaller case if it breaks the same rule.
    fn take(&mut self, case: Case) -> bool {
        if self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let played = play_case(&case, self.configure, 0);
        let fails = played.violation.is_some_and(|v| v.rule == self.rule);
        if fails {
            (self.best, self.happened) = (case, played.faults);
        }
        fails
    }

    /// The least value of a number that still fails, by halving repeatedly.
    fn fewer(&mut self, with: impl Fn(Case, u32) -> Case, now: u32) {
        let (mut low, mut high) = (1, now);
        while low < high {
            let middle = (low + high) / 2;
            if self.take(with(self.best.clone(), middle)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
    }

    /// Leaves out faults, many at a time and then one by one.
    fn leave_out_faults(&mut self) {
        let mut step = self.happened.max(1);
        loop {
            let mut from = 1;
            while from <= self.happened {
                let more: Vec<u64> =
                    (from..from + step).filter(|n| !self.best.left_out.contains(n)).collect();
                from += step;
                if !more.is_empty() {
                    let mut case = self.best.clone();
                    case.left_out.extend(more);
                    self.take(case);
                }
            }
            if step == 1 {
                return;
            }
            step = step.div_ceil(2);
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.scenario().settings;
        let params = settings.params();
        let racks: BTreeSet<_> = settings.bootstrap.servers.iter().map(|s| s.rack).collect();
        write!(
            f,
            "{} servers in {} racks, {} copies, {} groups, {} metadata members, lease {} ms; {} clients, {} operations a \
             round, {} rounds",
            settings.bootstrap.servers.len(),
            racks.len(),
            params.replicas,
            params.groups,
            settings.members,
            params.lease_millis,
            self.clients,
            self.ops,
            self.rounds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Core;
    use ebb_chunkserver::PlantedBug;

    #[test]
    fn a_failing_seed_becomes_a_small_case_that_breaks_the_same_rule() {
        let plant = |core: Core| {
            if let Core::Server(config) = core {
                config.planted = Some(PlantedBug::DropEarly);
            }
        };
        let (seed, failure) = (1..=100)
            .find_map(|seed| crate::search::run(seed, &plant).err().map(|failure| (seed, failure)))
            .expect("the defect is found");
        let whole = Case::whole(seed);
        let all = play_case(&whole, &plant, usize::MAX).lines;
        let shrunk = shrink(seed, &plant).expect("the seed fails");
        assert_eq!(shrunk.violation.rule, failure.violation.rule);
        let Case { clients, ops, rounds, .. } = shrunk.case;
        assert!(clients < whole.clients && ops < whole.ops && rounds <= whole.rounds, "{}", shrunk.case);
        assert!(
            shrunk.faults.1 < shrunk.faults.0 && shrunk.lines.len() < all.len() / 2,
            "{:?}",
            shrunk.faults
        );
        // Played again it is the same, to the last line; and without the defect it breaks no rule.
        let again = play_case(&shrunk.case, &plant, usize::MAX);
        assert_eq!(again.lines, shrunk.lines);
        assert!(play_case(&shrunk.case, &|_| {}, 0).violation.is_none());
        // It states what was done, by which node and when, and ends with the violation.
        let says = |words: &str| shrunk.lines.iter().any(|line| line.contains(words));
        assert!(says("op 0 begins: chunk-") && says(" writes as replica of group-"), "{:#?}", shrunk.lines);
        assert!(says(" keep as offload for server-") && says(" forgets what it kept of group-"));
        let last = shrunk.lines.last().expect("there are lines");
        assert!(
            last.contains("VIOLATION of R6") && last.trim_start().starts_with(|c: char| c.is_ascii_digit())
        );
        let raw = ["Slot {", "PeerMessage", "ServerId(", "Epoch("];
        let mut told = shrunk.lines.iter();
        assert!(!told.any(|line| raw.iter().any(|word| line.contains(word))), "no line is written in code");
    }
}
