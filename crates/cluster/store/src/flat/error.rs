//! Why a device was not opened.

use crate::flat::format::{DEVICE_MIN, FORMAT};
use std::io;

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum FlatError {
    #[error("cannot {action} the device: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error("a device of {found} bytes is too small for files: give one of {DEVICE_MIN} bytes or more")]
    Small { found: u64 },
    #[error("the device contains something else: give an empty one, or remove what is there")]
    NotFlat,
    #[error("the device has format {found}, this program writes {FORMAT}: run the release that wrote it")]
    OtherFormat { found: u32 },
    #[error("the device has {found} bytes, and had {needed} when it was first used: give the whole device")]
    Short { found: u64, needed: u64 },
    #[error(
        "the device is damaged at its block {block}: {what}. Keep it for examination, and start the server on an empty one: the \
         cluster then copies to it what it lacks"
    )]
    Damaged { block: u64, what: &'static str },
}
