//! What can be saved with a budget of power cycles, and what share of it a policy reaches.
//!
//! The continuous oracle may wake and sleep servers as often as it likes, so by the minute nobody with a budget comes
//! near it. The honest bound is an oracle with the same cycles: it knows every load, is never short, begins with any
//! servers asleep, and is free to choose which sleep when, as long as all together go to sleep no more often than the
//! budget allows. Dwell times do not bind it.
//!
//! Its schedule is found exactly, and without a search. Take servers as levels: the k-th is needed in every step whose
//! load needs at least k. Time asleep and power cycles of a schedule are sums over the levels, and a level only chooses
//! which of its *gaps*, between two steps that need it, it sleeps through. A gap is worth its steps asleep less its
//! wake-up, and costs one power cycle; as each costs the same, the gaps that are worth most are the best choice. One
//! that the steps begin with costs none: its server already sleeps.
//!
//! Levels with the same gap are one entry. A stack of runs finds the entries in O(T) of T steps, however many servers
//! there are, and sorting them takes O(T log T).
//!
//! A step asleep is worth what an idle server draws above a sleeping one. So time asleep is the most there is, and so
//! are savings if power is linear in utilisation, as with [`super::free_transitions`]. If it is not, the others' draw
//! depends a little on how many share the load, and a schedule may exist that saves slightly more.

use super::{Case, LoadError, Policy};
use ebb_types::Joules;
use serde::Serialize;

/// What the oracle may do, and what that is worth.
pub(super) struct Budget {
    pub servers: u32,
    /// Power cycles of all servers together.
    pub cycles: u64,
    /// Steps that a wake-up takes.
    pub late: usize,
    /// Saved by a server that sleeps for a step.
    pub step: Joules,
    /// What a wake-up costs, and going to sleep.
    pub up: Joules,
    pub down: Joules,
}

/// A run of steps in which some servers are not needed: the same for all of them.
#[derive(Debug, PartialEq, Eq)]
struct Gap {
    /// Inclusive.
    from: usize,
    /// Exclusive.
    to: usize,
    servers: u32,
}

impl Budget {
    /// Servers that serve in each step. `steps`: how many it needs, at most all, and whether it counts.
    pub fn serving(&self, steps: &[(u32, bool)]) -> Vec<u32> {
        let mut counted: Vec<u64> = vec![0];
        for (_, counts) in steps {
            counted.push(counted[counted.len() - 1] + u64::from(*counts));
        }
        let mut gaps: Vec<(f64, Gap)> = gaps(steps.iter().map(|(needed, _)| *needed), self.servers)
            .into_iter()
            .filter_map(|gap| Some((self.worth(&gap, &counted)?.0, gap)))
            .collect();
        gaps.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut cycles = self.cycles;
        let (mut falls, mut rises) = (vec![0; steps.len() + 1], vec![0; steps.len() + 1]);
        for (_, gap) in gaps {
            let mut asleep = gap.servers;
            if gap.from > 0 {
                asleep = u32::try_from(cycles).map_or(asleep, |left| left.min(asleep));
                cycles -= u64::from(asleep);
            }
            falls[gap.from] += asleep;
            rises[gap.to] += asleep;
        }
        let mut serving = self.servers;
        let changes = falls.into_iter().zip(rises).take(steps.len());
        changes
            .map(|(falls, rises)| {
                serving = serving + rises - falls;
                serving
            })
            .collect()
    }

    /// What a server saves that sleeps through the gap; `None` if it is too short to save anything. `counted`: steps
    /// that count before each, and before the end.
    fn worth(&self, gap: &Gap, counted: &[u64]) -> Option<Joules> {
        let (begins, ends) = (gap.from == 0, gap.to + 1 == counted.len());
        let until = if ends { gap.to } else { gap.to.saturating_sub(self.late) };
        let asleep = counted[until].checked_sub(counted[gap.from]).filter(|asleep| *asleep > 0)?;
        let down = if begins { Joules(0.0) } else { self.down };
        let up = if ends { Joules(0.0) } else { self.up };
        let worth = self.step * asleep as f64 - down - up;
        (worth.0 > 0.0).then_some(worth)
    }
}

/// All gaps, of any number of servers.
fn gaps(needed: impl Iterator<Item = u32>, servers: u32) -> Vec<Gap> {
    let mut gaps = Vec::new();
    // Runs of steps that go on: where each begins, and the most that a step of it needs. A later one is within those
    // before it, and needs fewer.
    let mut runs: Vec<(usize, u32)> = Vec::new();
    // A step behind the last that needs all servers ends all runs.
    for (to, needed) in needed.chain([servers]).enumerate() {
        let mut from = to;
        while let Some((begin, most)) = runs.pop_if(|(_, most)| *most < needed) {
            let around = runs.last().map_or(servers, |(_, most)| *most);
            gaps.push(Gap { from: begin, to, servers: needed.min(around) - most });
            from = begin;
        }
        if runs.last().is_none_or(|(_, most)| *most > needed) {
            runs.push((from, needed));
        }
    }
    gaps
}

/// What the two oracles save of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Oracles {
    continuous: f64,
    cycles: Option<f64>,
}

/// What a policy saves, as a share of what an oracle saves; absent if that saves nothing.
///
/// Oracles are never short. A policy that is may have a share above 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    pub of_continuous_oracle: Option<f64>,
    /// Of the oracle with as many power cycles as Ebb has; absent if servers may also be suspended, which costs none.
    pub of_cycles_oracle: Option<f64>,
}

impl Oracles {
    pub fn of(case: &Case) -> Result<Oracles, LoadError> {
        let savings = |policy| case.play(policy).map(|(outcome, _)| outcome.savings);
        let cycles = match case.setup.suspend {
            Some(_) => None,
            None => Some(savings(Policy::CyclesOracle)?),
        };
        Ok(Oracles { continuous: savings(Policy::ContinuousOracle)?, cycles })
    }

    pub fn shares(&self, savings: f64) -> Shares {
        let share = |oracle: f64| (oracle > 0.0).then(|| savings / oracle);
        Shares { of_continuous_oracle: share(self.continuous), of_cycles_oracle: self.cycles.and_then(share) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Random;

    fn budget(servers: u32, cycles: u64) -> Budget {
        Budget { servers, cycles, late: 0, step: Joules(1.0), up: Joules(0.0), down: Joules(0.0) }
    }

    fn counted(needed: &[u32]) -> Vec<(u32, bool)> {
        needed.iter().map(|needed| (*needed, true)).collect()
    }

    /// Modelled joules that a schedule saves, and its power cycles: counted step by step, with no notion of gaps.
    fn saved(budget: &Budget, steps: &[(u32, bool)], serving: &[u32]) -> (f64, u64) {
        let on = |t: usize| serving[t..serving.len().min(t + budget.late + 1)].iter().copied().max().unwrap();
        let (mut joules, mut cycles) = (0.0, 0);
        for (t, (_, counts)) in steps.iter().enumerate() {
            joules += budget.step.0 * f64::from(budget.servers - on(t)) * f64::from(u8::from(*counts));
            let before = on(t.saturating_sub(1));
            joules -= budget.up.0 * f64::from(on(t).saturating_sub(before));
            joules -= budget.down.0 * f64::from(before.saturating_sub(on(t)));
            cycles += u64::from(before.saturating_sub(on(t)));
        }
        (joules, cycles)
    }

    /// The most that any schedule saves which is never short: all are tried.
    fn most(budget: &Budget, steps: &[(u32, bool)]) -> f64 {
        let all = budget.servers.pow(steps.len() as u32);
        let schedules = (0..all).map(|number| {
            let digit = |t: usize| number / budget.servers.pow(t as u32) % budget.servers + 1;
            (0..steps.len()).map(digit).collect::<Vec<u32>>()
        });
        let never_short = schedules
            .filter(|serving| serving.iter().zip(steps).all(|(serves, (needed, _))| serves >= needed));
        let within = never_short.map(|serving| saved(budget, steps, &serving));
        within
            .filter(|(_, cycles)| *cycles <= budget.cycles)
            .map(|(joules, _)| joules)
            .fold(f64::MIN, f64::max)
    }

    #[test]
    fn no_schedule_with_the_same_cycles_saves_more() {
        let mut random = Random::new(1);
        let mut below = |limit: u32| random.below(limit.into()) as u32;
        for case in 0..300 {
            let (servers, length) = if case % 2 == 0 { (3, 7) } else { (4, 5) };
            let steps: Vec<_> = (0..length).map(|_| (1 + below(servers), below(5) > 0)).collect();
            let transition = Joules(f64::from(below(3)) * 0.75);
            let budget = Budget {
                cycles: u64::from(below(5)),
                late: below(3) as usize,
                up: transition,
                down: Joules(transition.0 / 3.0),
                ..budget(servers, 0)
            };
            let serving = budget.serving(&steps);
            assert!(serving.iter().zip(&steps).all(|(serves, (needed, _))| serves >= needed), "{steps:?}");
            let (joules, cycles) = saved(&budget, &steps, &serving);
            assert!(cycles <= budget.cycles, "{steps:?}: {serving:?} takes {cycles}");
            let most = most(&budget, &steps);
            assert!((joules - most).abs() < 1e-9, "{steps:?}: {serving:?} saves {joules} of {most}");
        }
    }

    #[test]
    fn the_longest_gaps_come_first() {
        let steps = counted(&[4, 1, 1, 1, 4, 2, 2, 4]);
        assert_eq!(budget(4, 0).serving(&steps), [4; 8]);
        // Three servers for three steps, then two for two.
        assert_eq!(budget(4, 2).serving(&steps), [4, 2, 2, 2, 4, 4, 4, 4]);
        assert_eq!(budget(4, 4).serving(&steps), [4, 1, 1, 1, 4, 3, 3, 4]);
        assert_eq!(budget(4, 9).serving(&steps), [4, 1, 1, 1, 4, 2, 2, 4]);
    }

    #[test]
    fn what_is_asleep_at_the_start_costs_nothing_and_what_nobody_needs_stays_asleep() {
        assert_eq!(budget(9, 0).serving(&counted(&[1, 3, 2])), [1, 3, 3]);
        assert_eq!(budget(9, 1).serving(&counted(&[1, 3, 2])), [1, 3, 2]);
    }

    #[test]
    fn equal_gaps_of_ten_thousand_servers_are_one() {
        let found = gaps([9_000, 10, 9_000, 10].into_iter(), 10_000);
        let gap = |from, to, servers| Gap { from, to, servers };
        assert_eq!(found, [gap(1, 2, 8_990), gap(3, 4, 8_990), gap(0, 4, 1_000)]);
    }
}
