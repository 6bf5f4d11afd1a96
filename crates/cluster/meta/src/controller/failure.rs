//! How long a leader has waited for a server that failed.

use ebb_types::Moment;

/// A server's failure, as far as this leader knows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// The server is waited for from here on.
    pub since: Moment,
    others: Others,
}

/// Whether others seem to have failed for the same cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    None,
    Now,
    /// They did, and are back. Only once: another server that comes and goes must not keep this one from being rebuilt.
    Past,
}

impl Failure {
    pub fn new(since: Moment) -> Self {
        Self { since, others: Others::None }
    }

    /// What is to be made of it at `now`, when others seem to have failed with it or do not.
    pub fn seen(self, now: Moment, with_others: bool) -> Self {
        match (self.others, with_others) {
            (Others::None, true) => Self { others: Others::Now, ..self },
            (Others::Now, false) => Self { since: now, others: Others::Past },
            _ => self,
        }
    }
}
