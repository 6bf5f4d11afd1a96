//! Shrinks a failing seed: less of it and fewer faults, as long as it breaks the same rule.
//!
//! Every fault has its own random source ([`Faults`](crate::search::Faults)), so one can be left out without changing
//! the others. The number of runs is bounded, not the time: the same seed shrinks to the same case.

use crate::search::subject::{Case, LINES, Subject, Violation, play};
use std::fmt;

/// Runs that shrinking may take.
const RUNS_MAX: u32 = 300;

/// A small case that breaks the same rule, and its events.
#[derive(Clone, Debug)]
pub struct Shrunk {
    pub case: Case,
    pub violation: Violation,
    /// What takes part.
    pub about: String,
    /// All events, one line each.
    pub lines: Vec<String>,
    /// Faults of the whole seed up to the failure, and those that are left.
    pub faults: (u64, u64),
    /// Runs that shrinking took.
    pub runs: u32,
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shrunk { case, violation: Violation { rule, what }, about, lines, faults, runs } = self;
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "\nseed {}, shrunk in {runs} runs: {about}", case.seed)?;
        writeln!(f, "{} of {} faults remain", faults.1, faults.0)?;
        write!(f, "it breaks {rule}: {what}")
    }
}

/// Shrinks a failing seed. `None`: it breaks no rule.
pub fn shrink<S: Subject>(seed: u64, build: impl Fn(&Case, usize) -> S) -> Option<Shrunk> {
    let mut subject = build(&Case::whole(seed), 0);
    let rule = play(&mut subject).err()?.rule;
    let (drawn, sizes) = (subject.faults(), subject.sizes());
    let best = Case { sizes, ..Case::whole(seed) };
    let mut shrinker: Shrinker<S> = Shrinker { build: &build, rule, runs: 1, best, happened: drawn };
    shrinker.shrink();
    let Shrinker { best, runs, .. } = shrinker;
    let mut subject = build(&best, usize::MAX);
    let violation = play(&mut subject).err()?;
    let left = subject.faults();
    let left = left - best.left_out.iter().filter(|number| **number <= left).count() as u64;
    Some(Shrunk {
        case: best,
        violation,
        about: subject.describe(),
        lines: subject.transcript().lines.iter().cloned().collect(),
        faults: (drawn, left),
        runs,
    })
}

struct Shrinker<'a, S> {
    build: &'a dyn Fn(&Case, usize) -> S,
    rule: &'static str,
    runs: u32,
    best: Case,
    /// Faults drawn until the best case broke its rule.
    happened: u64,
}

impl<S: Subject> Shrinker<'_, S> {
    fn shrink(&mut self) {
        while self.runs < RUNS_MAX {
            let before = self.best.clone();
            for (index, size) in before.sizes.iter().enumerate() {
                self.fewer(index, *size);
            }
            self.leave_out_faults();
            if self.best == before {
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
        let mut subject = (self.build)(&case, 0);
        let fails = play(&mut subject).is_err_and(|violation| violation.rule == self.rule);
        if fails {
            (self.best, self.happened) = (case, subject.faults());
        }
        fails
    }

    /// The least value of a size that still fails, by halving repeatedly.
    fn fewer(&mut self, index: usize, now: u32) {
        let (mut low, mut high) = (1, now);
        while low < high {
            let middle = (low + high) / 2;
            let mut case = self.best.clone();
            case.sizes[index] = middle;
            if self.take(case) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{ASSERTION, Faults, Transcript, broken, run, sweep};

    /// Four faults per round. Seeds below 100 break a rule once faults 3 and 7 have both happened.
    struct Toy {
        seed: u64,
        faults: Faults,
        happened: Vec<u64>,
        round: u32,
        rounds: u32,
        transcript: Transcript,
    }

    fn toy(case: &Case, lines: usize) -> Toy {
        Toy {
            seed: case.seed,
            faults: Faults::of(case),
            happened: Vec::new(),
            round: 0,
            rounds: case.size(0, 8),
            transcript: Transcript::of(lines),
        }
    }

    impl Subject for Toy {
        const ONE_SEED: &'static str = "-p toys one_seed";
        type Summary = u32;

        fn step(&mut self) -> Result<bool, Violation> {
            self.round += 1;
            for _ in 0..4 {
                let (_, happens) = self.faults.draw(self.seed);
                let number = self.faults.drawn();
                if happens {
                    self.transcript.note(|| format!("fault {number}"));
                    self.happened.push(number);
                }
            }
            let is_broken = self.seed < 100 && [3, 7].iter().all(|number| self.happened.contains(number));
            match self.seed {
                _ if !is_broken => Ok(self.round < self.rounds),
                1 => panic!("{} toys", self.round),
                2 => broken("R2", "a toy is gone".to_owned()),
                _ => Err(Violation { rule: "R1", what: "a toy is broken".to_owned() }),
            }
        }

        fn check(&mut self) -> Result<u32, Violation> {
            Ok(self.rounds)
        }

        fn describe(&self) -> String {
            format!("{} rounds", self.rounds)
        }

        fn sizes(&self) -> Vec<u32> {
            vec![self.rounds]
        }

        fn faults(&self) -> u64 {
            self.faults.drawn()
        }

        fn transcript(&self) -> &Transcript {
            &self.transcript
        }
    }

    #[test]
    fn a_failing_seed_becomes_the_least_case_that_breaks_the_same_rule() {
        for (seed, rule) in [(1, ASSERTION), (2, "R2"), (3, "R1")] {
            let shrunk = shrink(seed, toy).expect("it breaks a rule");
            assert_eq!((shrunk.violation.rule, shrunk.case.sizes.as_slice()), (rule, &[2][..]));
            assert_eq!((shrunk.faults, shrunk.lines.join(", ").as_str()), ((8, 2), "fault 3, fault 7"));
            let story = shrunk.to_string();
            assert!(story.contains(&format!("seed {seed}, shrunk in {} runs: 2 rounds\n", shrunk.runs)));
            assert!(story.contains("\n2 of 8 faults remain\n"), "{story}");
        }
        assert!(shrink(100, toy).is_none());
    }

    #[test]
    fn a_failure_names_the_command_that_repeats_it() {
        let (good, bad) = sweep(1..201, |seed| run(seed, toy));
        assert_eq!((good.len(), bad.len()), (101, 99));
        let text = bad[6].to_string();
        assert!(text.starts_with("fault 1\n"), "{text}");
        assert!(text.contains("\nseed 7 breaks R1: a toy is broken\n"), "{text}");
        assert!(text.ends_with("reproduce: EBB_SEED=7 cargo test -p toys one_seed -- --nocapture"));
        assert_eq!(bad[0].violation.what, "2 toys");
    }
}
