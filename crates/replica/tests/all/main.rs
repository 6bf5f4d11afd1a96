//! Directed tests of the protocol: what a fault search once found, played by hand.

mod dropped_offload;
mod quick_changes;
