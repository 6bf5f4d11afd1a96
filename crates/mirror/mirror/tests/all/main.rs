//! The mirror on disks that lose, tear and reorder writes, die, and crash with it.

mod long;
mod older;
mod opening;
mod search;
mod sleep;
mod world;
