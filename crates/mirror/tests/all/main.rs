//! The mirror on disks that lose, tear and reorder writes, die, and crash with it.

mod search;
mod world;
