//! What has come to its end on a drive.

use ebb_mirror::{Found, Spent, Token};

#[derive(Debug, PartialEq)]
pub enum Ended {
    Op {
        token: Token,
        found: Found,
        spent: Spent,
    },
    /// A change of speed; `false`: the disk stays at the old one.
    Change {
        changed: bool,
    },
}
