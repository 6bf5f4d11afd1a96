//! One line of plain words per operation of a client, for the transcript.

use crate::engine::SECOND;
use crate::search::history::{Action, Op, Outcome};

pub fn brief_action(action: &Action, value: u64) -> String {
    let cells = |first: u32, cells: u32| format!("cells {first} to {}", first + cells - 1);
    match *action {
        Action::Read { first, cells: n } => format!("reads {}", cells(first, n)),
        Action::Write { first, cells: n } => format!("writes {value} to {}", cells(first, n)),
        Action::Zero { first, cells: n } => format!("zeroes {}", cells(first, n)),
        Action::Delete => "deletes it".into(),
        Action::Look { first, cells: n } => format!("looks at {}", cells(first, n)),
        Action::Clear { first, cells: n, look } => {
            format!("zeroes what op {look} saw of {}", cells(first, n))
        }
    }
}

pub fn brief_end(outcome: Outcome, seen: &[u64]) -> String {
    match outcome {
        Outcome::Done if seen.is_empty() => "done".into(),
        Outcome::Done => format!("sees {seen:?}"),
        Outcome::Refused => "is refused, nothing was done".into(),
        Outcome::Unknown => "fails, and what became of it is unknown".into(),
    }
}

/// An operation as its client saw it.
pub fn brief_history(op: &Op, value: u64) -> String {
    let seconds = |at: u64| format!("{}.{:06} s", at / SECOND, at % SECOND / 1000);
    let ended = op.ended.map_or("without an end".into(), seconds);
    let (action, end) = (brief_action(&op.action, value), brief_end(op.outcome, &op.seen));
    format!("from {} to {ended}: {action}, {end}", seconds(op.began))
}
