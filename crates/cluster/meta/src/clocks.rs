//! Whether the wall clocks that the leader knows of agree: only then does the cluster's time follow the leader's clock,
//! and only then are objects judged by their age. One wrong clock deletes nothing.
//!
//! Known are the clocks of the other members and of clients, who say what they show, and the cluster's own time, which
//! is in the state. If all clocks agree and that one differs, then the cluster was down for long, or they are wrong
//! together: for a day nothing is judged, and an operator can see why.

use crate::MemberId;
use ebb_types::Moment;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Clocks that differ by more do not agree.
const APART_MILLIS: i64 = 3_600_000;
/// What was heard longer ago does not count.
const FRESH: Duration = Duration::from_secs(600);
/// Clocks that agree for this long are believed, though the cluster's time is another.
const SETTLES: Duration = Duration::from_secs(86_400);
/// Clocks remembered at most.
const CLOCKS_MAX: usize = 1000;

const _: () = assert!(FRESH.as_secs() < SETTLES.as_secs(), "who differs is heard before clocks are believed");

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    Member(MemberId),
    Client(u64),
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whose::Member(id) => write!(f, "metadata server {id}"),
            Whose::Client(id) => write!(f, "client {id:016x} (a gateway or another program)"),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// How far each is ahead of this member's, and when it was heard.
    heard: BTreeMap<Whose, (Moment, i64)>,
    /// Since when this member's clock is that far ahead of the cluster's time.
    apart: Option<(Moment, i64)>,
}

fn ahead(one: u64, other: u64) -> i64 {
    i64::try_from(i128::from(one) - i128::from(other)).unwrap_or(if one > other {
        i64::MAX
    } else {
        i64::MIN
    })
}

impl Clocks {
    /// `theirs` and `own`: milliseconds since 1970.
    pub fn heard(&mut self, now: Moment, whose: Whose, theirs: u64, own: u64) {
        if self.heard.len() >= CLOCKS_MAX {
            self.heard.retain(|_, (at, _)| now.since(*at) <= FRESH);
        }
        if self.heard.len() < CLOCKS_MAX || self.heard.contains_key(&whose) {
            self.heard.insert(whose, (now, ahead(theirs, own)));
        }
        debug_assert!(self.heard.len() <= CLOCKS_MAX, "clients do not fill memory");
    }

    /// Why nothing should be judged by the time. `own`: this member's clock; `cluster`: the cluster's time, zero if it
    /// has none yet.
    pub fn doubt(&mut self, now: Moment, own: u64, cluster: u64) -> Option<String> {
        let is_apart = |by: i64| by.unsigned_abs() > APART_MILLIS as u64;
        let mut fresh = self.heard.iter().filter(|(_, (at, _))| now.since(*at) <= FRESH);
        if let Some((whose, (_, by))) = fresh.find(|(_, (_, by))| is_apart(*by)) {
            self.apart = None;
            return Some(format!(
                "the clock of {whose} is {} that of the metadata leader; set whichever is wrong",
                span(*by)
            ));
        }
        let by = ahead(own, cluster);
        if cluster == 0 || !is_apart(by) {
            self.apart = None;
            return None;
        }
        let as_before = |(_, before): &(Moment, i64)| !is_apart(by.saturating_sub(*before));
        let since = self.apart.filter(as_before).map_or(now, |(since, _)| since);
        self.apart = Some((since, by));
        let left = SETTLES.saturating_sub(now.since(since));
        (!left.is_zero()).then(|| {
            format!(
                "the clocks are {} the last time that the cluster recorded, as after a long stop; if that is right, nothing is to be done: \
                 they are believed in {} min. If not, set them",
                span(by),
                left.as_secs().div_ceil(60)
            )
        })
    }
}

fn span(millis: i64) -> String {
    let hours = millis.unsigned_abs() / 3_600_000;
    let length = if hours < 48 { format!("{hours} h") } else { format!("{} days", hours / 24) };
    format!("{length} {}", if millis > 0 { "ahead of" } else { "behind" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const TODAY: u64 = 20_000 * 24 * HOUR;

    fn at(seconds: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn one_clock_that_is_an_hour_off_is_one_too_many() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.doubt(at(0), TODAY, 0), None, "there is no other clock, and no time on record");
        clocks.heard(at(1), Whose::Member(2), TODAY + HOUR, TODAY);
        clocks.heard(at(1), Whose::Client(7), TODAY - HOUR, TODAY);
        assert_eq!(clocks.doubt(at(2), TODAY, TODAY - HOUR), None, "an hour is not too much");
        clocks.heard(at(3), Whose::Client(7), TODAY - HOUR - 1, TODAY);
        let why = clocks.doubt(at(3), TODAY, TODAY).unwrap();
        assert!(why.contains("client 0000000000000007") && why.contains("1 h behind"), "{why}");
        clocks.heard(at(4), Whose::Member(2), TODAY + 400 * 24 * HOUR, TODAY);
        let why = clocks.doubt(at(4), TODAY, TODAY).unwrap();
        assert!(why.contains("metadata server 2 is 400 days ahead of"), "{why}");
        assert_eq!(clocks.doubt(at(700), TODAY, TODAY), None, "neither was heard for long");
    }

    #[test]
    fn clocks_that_agree_and_are_not_what_was_recorded_are_believed_after_a_day() {
        let mut clocks = Clocks::default();
        let month = 30 * 24 * HOUR;
        let day = 86_400;
        for second in (0..day).step_by(3600) {
            let passed = second * 1000;
            let why = clocks.doubt(at(second), TODAY + month + passed, TODAY + passed).unwrap();
            assert!(why.contains("30 days ahead of"), "{why}");
        }
        assert_eq!(clocks.doubt(at(day), TODAY + month + 24 * HOUR, TODAY + 24 * HOUR), None);
        // A clock that jumps meanwhile begins the day again.
        let mut clocks = Clocks::default();
        assert!(clocks.doubt(at(0), TODAY + month, TODAY).is_some());
        assert!(clocks.doubt(at(day), TODAY + 2 * month, TODAY + 24 * HOUR).is_some());
    }
}
