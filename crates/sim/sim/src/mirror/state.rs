//! What a disk is doing, for the figures over time.

use ebb_mirror::{Mode, Speed};

/// What a disk is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    At(Speed, Mode),
    Changing,
}
