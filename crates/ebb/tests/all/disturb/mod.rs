//! Random events against real processes under verified load: one loop, and a table of events for each subject.
//!
//! The loop draws an event from those that may happen now, first each kind once, lets it happen, and waits until the
//! subject has dealt with it, unless the next event comes in the middle of that. After each event the load must not
//! have found anything wrong.
//! `make chaos` runs many events, `make test` a few. Each run prints the command that repeats it. A new event is a row
//! of a table and a function: what it harms, it adds to [`harms::Harms`] with what mends it.

mod directories;
mod harms;
mod mirror;
mod pool;
mod servers;

use crate::harness::number;
use ebb_types::Random;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Something that can happen to a subject.
struct Event<S> {
    name: &'static str,
    weight: u64,
    /// Whether it may happen now.
    may: fn(&S) -> bool,
    /// Lets it happen, and returns what it was, for the log.
    act: fn(&mut S) -> String,
}

impl<S> Event<S> {
    const fn new(name: &'static str, weight: u64, may: fn(&S) -> bool, act: fn(&mut S) -> String) -> Self {
        Event { name, weight, may, act }
    }
}

/// What is disturbed, and its load.
trait Subject: Sized + 'static {
    /// Its module, the variable that gives the number of events, and their number by day.
    const RUN: (&'static str, &'static str, u64);
    const EVENTS: &'static [Event<Self>];
    /// What [`Subject::longest_after`] gives.
    const LONGEST: &'static str = "longest event";

    fn start(seed: u64, count: u64, random: Random) -> Self;
    /// Called before each draw.
    fn look(&mut self) {}
    /// Whether the next event comes before this one is dealt with.
    fn overlaps(&self, _random: &mut Random) -> bool {
        false
    }
    /// Waits until everything is dealt with.
    fn settle(&mut self) {}
    /// What the load found that must not be.
    fn wrong(&self) -> Vec<String> {
        Vec::new()
    }
    /// The longest time that an operation took after `since`, or the event.
    fn longest_after(&self, since: Instant) -> Duration {
        since.elapsed()
    }
    /// Mends everything, and checks what is left.
    fn verdict(self);
}

fn disturb<S: Subject>() {
    let (name, variable, by_day) = S::RUN;
    let (seed, count) = (number("EBB_SEED", 1), number(variable, by_day));
    println!(
        "repeat with: EBB_SEED={seed} {variable}={count} cargo test -p ebb --test all disturb::{name} -- --nocapture"
    );
    let mut random = Random::new(seed);
    let mut subject = S::start(seed, count, random.fork());
    let mut accounts: BTreeMap<&str, (u32, Duration)> = BTreeMap::new();
    let begin = Instant::now();
    for number in 1..=count {
        subject.look();
        let since = Instant::now();
        let event = draw(S::EVENTS, &subject, |name| accounts.contains_key(name), &mut random);
        let what = (event.act)(&mut subject);
        let overlaps = number < count && subject.overlaps(&mut random);
        if !overlaps {
            subject.settle();
        }
        let longest = subject.longest_after(since);
        let how = if overlaps { "the next comes at once" } else { "settled" };
        println!("{number:>4} {:>6.1?} {what}: {how}, longest {longest:.2?}", begin.elapsed());
        let account = accounts.entry(event.name).or_default();
        *account = (account.0 + 1, account.1.max(longest));
        let wrong = subject.wrong();
        assert!(wrong.is_empty(), "event {number} ({what}): {wrong:#?}");
    }
    for (name, (count, longest)) in &accounts {
        println!("{count:>4} x {name}, {} {longest:.2?}", S::LONGEST);
    }
    subject.verdict();
}

/// One of the events that may happen now; of those that did not happen yet, if there are any.
fn draw<'a, S>(
    events: &'a [Event<S>],
    subject: &S,
    happened: impl Fn(&str) -> bool,
    random: &mut Random,
) -> &'a Event<S> {
    let mut able: Vec<&Event<S>> = events.iter().filter(|event| (event.may)(subject)).collect();
    if able.iter().any(|event| !happened(event.name)) {
        able.retain(|event| !happened(event.name));
    }
    let mut at = random.below(able.iter().map(|event| event.weight).sum());
    let drawn = able.into_iter().find(|event| {
        let here = at < event.weight;
        at = at.saturating_sub(event.weight);
        here
    });
    drawn.expect("some event may happen")
}

#[test]
fn events_that_may_happen_are_drawn_by_their_weights() {
    let events: [Event<bool>; 3] = [
        Event::new("often", 3, |_| true, |_| String::new()),
        Event::new("never", 9, |never| *never, |_| String::new()),
        Event::new("seldom", 1, |_| true, |_| String::new()),
    ];
    let mut random = Random::new(1);
    let mut drawn = BTreeMap::new();
    (0..400).for_each(|_| *drawn.entry(draw(&events, &false, |_| true, &mut random).name).or_insert(0) += 1);
    assert!(!drawn.contains_key("never") && (250..350).contains(&drawn["often"]), "{drawn:?}");
    assert_eq!(draw(&events, &false, |name| name == "often", &mut random).name, "seldom", "each once");
}
