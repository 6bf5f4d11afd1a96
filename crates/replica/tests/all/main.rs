//! Directed tests of the protocol: what a fault search once found, played by hand.

mod at_risk_first;
mod dropped_offload;
mod overload;
mod quick_changes;
mod repair;
mod scrub;
