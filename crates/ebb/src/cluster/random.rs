//! The kernel's random numbers: for identities and secrets, never for decisions.

use crate::error::{NodeError, io};
use rustix::rand::{GetRandomFlags, getrandom};

pub fn bytes<const N: usize>() -> Result<[u8; N], NodeError> {
    let mut bytes = [0; N];
    // The kernel answers requests of up to 256 bytes in full.
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|e| io("read", "the kernel's random numbers")(e.into()))?;
    Ok(bytes)
}

/// A unique number, never zero.
pub fn identity() -> Result<u64, NodeError> {
    Ok(u64::from_le_bytes(bytes()?).max(1))
}
