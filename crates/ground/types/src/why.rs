//! Why a server is awake, or may sleep: what `ebb status --why` says of each.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Neither load nor data needs it.
    NotNeeded,
    /// Its gear group is one of the lowest gear's, for now.
    LowestGear,
    /// No hour has been recorded yet, so every server is awake.
    NoForecast,
    /// An administrator set how much is awake.
    Administrator,
    /// The load needs `servers` servers.
    Load {
        servers: u32,
        of: LoadOf,
    },
    /// With whole gears: load or forecast needs this one.
    Gear {
        gear: u8,
    },
    /// It is not needed, but woke so short a time ago that sleep must wait.
    Dwell {
        left_millis: u64,
    },
    /// It is not needed, but is expected to be again before sleep would save anything.
    QuietTooShort {
        quiet_millis: u64,
    },
    /// It is not needed, but has used up its power cycles.
    NoPowerCycle,
    /// Loggers take the writes for those that sleep.
    Logger,
    /// A set of an erasure-coded pool works with it.
    Set,
    /// Copies are missing or damaged, and it may help.
    CopiesMissing,
    /// Awake servers run out of room.
    RoomShort,
    /// Without it copies would share a rack.
    RacksApart,
    /// It is woken for an exam of its switch.
    Exam,
    PowerTest,
    /// It is not put to sleep whatever the load; the reason and the remedy.
    Kept {
        why: String,
    },
    /// It has failed, or is lost.
    Gone,
}

/// Which load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadOf {
    /// The forecast of this hour, by the price of shortage.
    ThisHour,
    /// That of the next one, for which waking begins now.
    NextHour,
    /// Load above the forecast.
    Now,
    /// The fewest servers that can hold copies of every write.
    Floor,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |millis: &u64| millis.div_ceil(1000);
        match self {
            Why::NotNeeded => f.write_str("not needed"),
            Why::LowestGear => f.write_str("its gear group is the lowest gear's, which never sleeps"),
            Why::NoForecast => f.write_str("no hour has been recorded yet, so every server is awake"),
            Why::Administrator => f.write_str("an administrator or a replay set the gear"),
            Why::Load { servers, of } => write!(f, "{of} needs {servers} servers"),
            Why::Gear { gear } => write!(f, "load or forecast needs gear {gear}"),
            Why::Dwell { left_millis } => {
                write!(f, "not needed, but woken lately: it may sleep in {} s", seconds(left_millis))
            }
            Why::QuietTooShort { quiet_millis } => {
                write!(f, "needed again in about {} s: sleep would save nothing", seconds(quiet_millis))
            }
            Why::NoPowerCycle => f.write_str("not needed, but its power cycles are used up for now"),
            Why::Logger => f.write_str("a logger: it takes the writes for those that sleep"),
            Why::Set => f.write_str("its erasure-coded set works with it"),
            Why::CopiesMissing => f.write_str("copies are missing or damaged, and it may help"),
            Why::RoomShort => f.write_str("awake servers run out of room"),
            Why::RacksApart => f.write_str("without it copies would share a rack"),
            Why::Exam => f.write_str("woken for an exam of its switch"),
            Why::PowerTest => f.write_str("its power test is under way"),
            Why::Kept { why } => f.write_str(why),
            Why::Gone => f.write_str("it does not answer"),
        }
    }
}

impl fmt::Display for LoadOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoadOf::ThisHour => "the forecast of this hour",
            LoadOf::NextHour => "the forecast of the next hour, whose servers wake now,",
            LoadOf::Now => "the load above the forecast",
            LoadOf::Floor => "every write",
        })
    }
}
