//! What the positions and sizes of a text trace count.
//!
//! A layout without a header does not say it, and publishers of one and the same layout differ.

use crate::Format;
use std::fmt;
use std::str::FromStr;

/// Bytes of a block or sector unless a format says otherwise.
pub(crate) const SECTOR: u64 = 512;

/// What positions and sizes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 512 bytes.
    Sectors,
    Bytes,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Sectors => "sectors",
            Unit::Bytes => "bytes",
        })
    }
}

impl FromStr for Unit {
    type Err = String;
    fn from_str(text: &str) -> Result<Unit, String> {
        let all = [Unit::Sectors, Unit::Bytes];
        let found = all.into_iter().find(|unit| unit.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is not a unit: use sectors or bytes"))
    }
}

/// What positions and sizes count by a format's definition; `None`: a header or a notation of its own leaves no doubt.
pub(crate) fn defined(format: Format) -> Option<[Unit; 2]> {
    match format {
        Format::SsdSim | Format::DiskSim | Format::Tencent | Format::Fiu => Some([Unit::Sectors; 2]),
        Format::Spc => Some([Unit::Sectors, Unit::Bytes]),
        Format::Msr | Format::Alibaba | Format::Csv => Some([Unit::Bytes; 2]),
        _ => None,
    }
}

/// A number that was read in the defined unit, in bytes, as what it is if it counts `said`; `None`: too large.
pub(crate) fn converted(bytes: u64, defined: Unit, said: Unit) -> Option<u64> {
    match (defined, said) {
        (Unit::Sectors, Unit::Bytes) => Some(bytes / SECTOR),
        (Unit::Bytes, Unit::Sectors) => bytes.checked_mul(SECTOR),
        _ => Some(bytes),
    }
}
