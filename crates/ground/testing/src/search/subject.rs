//! What is searched, and one run of it.

use ebb_types::{Random, mix};
use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The rule that a failed assertion breaks.
pub const ASSERTION: &str = "an assertion";
/// The last lines of a transcript that a failure shows.
pub(super) const LINES: usize = 400;

/// A violated rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Of `docs/rules.md`, as `R1`, or in words, as `liveness`.
    pub rule: &'static str,
    pub what: String,
}

/// Ends the run, which breaks this rule: for checks deep in a world, whose callers cannot continue.
pub fn broken(rule: &'static str, what: String) -> ! {
    // Unlike a panic's, no hook prints it.
    eprintln!("{rule}: {what}");
    resume_unwind(Box::new(Violation { rule, what }))
}

/// The part of a seed that is played: all of it, or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub seed: u64,
    /// Faults that do not happen, by number.
    pub left_out: BTreeSet<u64>,
    /// How much is played, as in [`Subject::sizes`]; empty: as much as the seed draws.
    pub sizes: Vec<u32>,
}

impl Case {
    pub fn whole(seed: u64) -> Case {
        Case { seed, left_out: BTreeSet::new(), sizes: Vec::new() }
    }

    /// One of the sizes. `drawn`: the whole seed's.
    pub fn size(&self, index: usize, drawn: u32) -> u32 {
        self.sizes.get(index).copied().unwrap_or(drawn)
    }
}

/// The faults of a run, numbered from 1 on. Each has its own random source, so that one can be left out without
/// changing the others.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    left_out: BTreeSet<u64>,
    drawn: u64,
}

impl Faults {
    pub fn of(case: &Case) -> Faults {
        Faults { left_out: case.left_out.clone(), drawn: 0 }
    }

    /// The random source of the next fault, and whether it happens.
    pub fn draw(&mut self, seed: u64) -> (Random, bool) {
        self.drawn += 1;
        (Random::new(mix(seed ^ mix(self.drawn))), !self.left_out.contains(&self.drawn))
    }

    /// How many were drawn, including those left out.
    pub fn drawn(&self) -> u64 {
        self.drawn
    }
}

/// The last lines of what happened.
#[derive(Default)]
pub struct Transcript {
    /// Most lines kept; zero: none are even formatted.
    pub keep: usize,
    pub lines: VecDeque<String>,
}

impl Transcript {
    pub fn of(keep: usize) -> Transcript {
        Transcript { keep, lines: VecDeque::new() }
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.keep == 0 {
            return;
        }
        self.lines.push_back(line());
        if self.lines.len() > self.keep {
            self.lines.pop_front();
        }
    }
}

/// A run of a case.
pub trait Subject {
    /// What `cargo test` is given to play one seed.
    const ONE_SEED: &'static str;

    /// What is known of a run that breaks no rule.
    type Summary;

    /// Plays the next part, and checks what must hold after it. `false`: it was the last one.
    fn step(&mut self) -> Result<bool, Violation>;

    /// Checks what must hold of the whole run.
    fn check(&mut self) -> Result<Self::Summary, Violation>;

    /// What takes part, in a line.
    fn describe(&self) -> String;

    /// How much is played: rounds, clients. Shrinking reduces each, to no less than 1.
    fn sizes(&self) -> Vec<u32>;

    /// Faults so far, including those left out.
    fn faults(&self) -> u64;

    fn transcript(&self) -> &Transcript;
}

/// From start to verdict. An assertion that fails is a violation too.
pub(super) fn play<S: Subject>(subject: &mut S) -> Result<S::Summary, Violation> {
    let played = catch_unwind(AssertUnwindSafe(|| -> Result<S::Summary, Violation> {
        while subject.step()? {}
        subject.check()
    }));
    played.unwrap_or_else(|panic| Err(violation(panic)))
}

fn violation(panic: Box<dyn Any + Send>) -> Violation {
    let panic = match panic.downcast::<Violation>() {
        Ok(violation) => return *violation,
        Err(panic) => panic,
    };
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    Violation { rule: ASSERTION, what: text.unwrap_or_else(|| "a panic without words".to_owned()) }
}

/// Plays a case and keeps the last lines of its transcript, whatever the result.
pub fn with_transcript<S: Subject>(
    case: &Case,
    lines: usize,
    build: impl Fn(&Case, usize) -> S,
) -> (Vec<String>, Result<S::Summary, Violation>) {
    let mut subject = build(case, lines);
    let outcome = play(&mut subject);
    (subject.transcript().lines.iter().cloned().collect(), outcome)
}
