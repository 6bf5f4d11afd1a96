//! What a gateway does by itself: frees garbage, and carries out lifecycle rules.

pub mod compact;
pub mod expire;
pub mod janitor;
pub mod moves;
