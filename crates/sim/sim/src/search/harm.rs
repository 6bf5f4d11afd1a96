//! Damage to the files of a store, whatever their purpose.

use ebb_store::mem::MemDisk;
use ebb_types::Random;
use std::fmt;

/// Longest range that reads as zeros.
const WIPED_BYTES: u64 = 8192;

/// Damage to a file behind the store's back.
pub enum Harm {
    FlippedBit { path: String, offset: u64 },
    Wiped { path: String, offset: u64, len: u64 },
    Cut { path: String, len: u64 },
    Removed { path: String },
}

impl Harm {
    /// `None`: there is nothing to damage.
    pub fn draw(random: &mut Random, disk: &MemDisk) -> Option<Harm> {
        let files: Vec<String> = disk.files().into_iter().filter(|path| disk.len(path) > 0).collect();
        let path = random.pick(&files)?.clone();
        let size = disk.len(&path);
        let offset = random.below(size);
        Some(match random.below(10) {
            0..=5 => Harm::FlippedBit { path, offset },
            6..=7 => Harm::Wiped { path, offset, len: random.between(1, WIPED_BYTES) },
            8 => Harm::Cut { path, len: offset },
            _ => Harm::Removed { path },
        })
    }

    pub fn path(&self) -> &str {
        let (Harm::FlippedBit { path, .. }
        | Harm::Wiped { path, .. }
        | Harm::Cut { path, .. }
        | Harm::Removed { path }) = self;
        path
    }

    /// Whether the file, or its end, is gone.
    pub fn is_loss(&self) -> bool {
        matches!(self, Harm::Cut { .. } | Harm::Removed { .. })
    }

    pub fn happen(&self, disk: &MemDisk) {
        match self {
            Harm::FlippedBit { path, offset } => disk.flip_bit(path, *offset),
            Harm::Wiped { path, offset, len } => disk.wipe(path, *offset, *len),
            Harm::Cut { path, len } => disk.cut(path, *len),
            Harm::Removed { path } => disk.take_back(path, &MemDisk::new()),
        }
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Harm::FlippedBit { path, offset } => write!(f, "{path}, a bit of byte {offset}"),
            Harm::Wiped { path, offset, len } => {
                write!(f, "{path}, zeroes from byte {offset} on, {len} bytes")
            }
            Harm::Cut { path, len } => write!(f, "{path}, cut to {len} bytes"),
            Harm::Removed { path } => write!(f, "{path}, removed"),
        }
    }
}
