//! What the metadata leader decides or finds, in one vocabulary: the log prints these sentences, `ebb notices` lists
//! them, and code that counts or draws them goes by the variant.

use crate::{GroupId, ServerId, SetId, TestStep};
use serde::{Deserialize, Serialize};
use std::fmt;

/// `--json` has one key, the variant in snake case, with its fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// Other servers are wanted awake than before.
    Shift {
        from: GearSize,
        to: GearSize,
        why: ShiftReason,
    },
    /// A lease's time passed without a heartbeat.
    Failed {
        server: ServerId,
    },
    /// Failed or asleep, and now awake.
    Back {
        server: ServerId,
    },
    /// It was lost, and is there again without its data.
    BackEmpty {
        server: ServerId,
    },
    Restarted {
        server: ServerId,
    },
    StartedWhileAsleep {
        server: ServerId,
    },
    AnotherStore {
        server: ServerId,
    },
    /// It has failed for long enough that its data is rebuilt elsewhere.
    GivenUp {
        server: ServerId,
    },
    SpareTakesPlace {
        set: SetId,
        spare: ServerId,
        of: ServerId,
    },
    /// `action` will be tried again.
    SwitchFailed {
        server: ServerId,
        action: String,
        why: String,
    },
    /// The server did what was ordered neither in time nor since.
    Late {
        server: ServerId,
        goal: PowerGoal,
        attempt: u32,
    },
    PowerTest {
        server: ServerId,
        step: TestStep,
        given_up: Option<String>,
    },
    /// The leader's own process stood still: silence in that time proves nothing.
    StoodStill {
        millis: u64,
    },
    /// The network parts the leader from servers that another member hears.
    HandsOver {
        member: u64,
        hears: u32,
        own: u32,
    },
    /// A server has seen a newer map than this metadata has.
    WentBack {
        seen: u64,
        own: u64,
    },
    /// Rescued metadata leads nothing before these servers have said which configurations they know.
    RescueWaits {
        servers: Vec<ServerId>,
    },
    /// Metadata was rescued from a minority of its members, and has caught up with the servers. Which copies of these
    /// chunk groups and sets are complete is not known.
    Rescued {
        generation: u32,
        groups: Vec<GroupId>,
        sets: Vec<SetId>,
    },
    MetadataDiskFull,
    MetadataDiskHasRoom,
    /// What the leader decided was refused.
    Refused {
        why: String,
    },
}

/// How much is wanted awake: the number of gear groups, the last one perhaps in part, and of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GearSize {
    pub gear: u8,
    pub servers: u32,
}

impl fmt::Display for GearSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GearSize { gear, servers } = self;
        write!(f, "{servers} servers in gear {gear}")
    }
}

/// Why the servers that are wanted awake changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShiftReason {
    Administrator,
    MoreNeeded,
    FewerNeeded,
    /// As many as before, others.
    Turns,
}

impl ShiftReason {
    pub const ALL: [ShiftReason; 4] =
        [ShiftReason::Administrator, ShiftReason::MoreNeeded, ShiftReason::FewerNeeded, ShiftReason::Turns];

    /// Its name in JSON, and where reasons are counted.
    pub fn name(self) -> &'static str {
        match self {
            ShiftReason::Administrator => "administrator",
            ShiftReason::MoreNeeded => "more_needed",
            ShiftReason::FewerNeeded => "fewer_needed",
            ShiftReason::Turns => "turns",
        }
    }
}

impl fmt::Display for ShiftReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ShiftReason::Administrator => "an administrator or a replay set the gear",
            ShiftReason::MoreNeeded => "load or forecast needs more servers",
            ShiftReason::FewerNeeded => "load and forecast need fewer servers",
            ShiftReason::Turns => "servers take turns",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerGoal {
    Awake,
    Asleep,
}

impl fmt::Display for PowerGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PowerGoal::Awake => "awake",
            PowerGoal::Asleep => "asleep",
        })
    }
}

macro_rules! kinds {
    ($($variant:ident $kind:literal)*) => {
        impl Notice {
            /// Every [`Notice::kind`].
            pub const KINDS: [&'static str; 20] = [$($kind),*];

            /// The variant's name in JSON, and where notices are counted.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Notice::$variant { .. } => $kind,)*
                }
            }
        }
    };
}

kinds! {
    Shift "shift"
    Failed "failed"
    Back "back"
    BackEmpty "back_empty"
    Restarted "restarted"
    StartedWhileAsleep "started_while_asleep"
    AnotherStore "another_store"
    GivenUp "given_up"
    SpareTakesPlace "spare_takes_place"
    SwitchFailed "switch_failed"
    Late "late"
    PowerTest "power_test"
    StoodStill "stood_still"
    WentBack "went_back"
    MetadataDiskFull "metadata_disk_full"
    MetadataDiskHasRoom "metadata_disk_has_room"
    Refused "refused"
    HandsOver "hands_over"
    RescueWaits "rescue_waits"
    Rescued "rescued"
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Shift { from, to, why } => write!(f, "from {from} to {to}: {why}"),
            Notice::Failed { server } => write!(f, "{server} failed: its lease ended"),
            Notice::Back { server } => write!(f, "{server} is back"),
            Notice::BackEmpty { server } => write!(f, "{server} is back, on another store"),
            Notice::Restarted { server } => write!(f, "{server} was restarted"),
            Notice::StartedWhileAsleep { server } => write!(f, "{server} was started while it should sleep"),
            Notice::AnotherStore { server } => {
                write!(
                    f,
                    "{server} comes with another store: it copies everything that the cluster keeps on it"
                )
            }
            Notice::GivenUp { server } => {
                write!(f, "{server} has failed for too long: it is declared lost, its data is rebuilt")
            }
            Notice::SpareTakesPlace { set, spare, of } => write!(f, "{set}: {spare} takes the place of {of}"),
            Notice::SwitchFailed { server, action, why } => {
                write!(f, "{server}: switch to {action} failed: {why}; it will be tried again")
            }
            Notice::Late { server, goal, attempt } => {
                write!(f, "{server} is not {goal} yet; attempt {attempt}")
            }
            Notice::PowerTest { server, step, given_up } => {
                let step = format!("{step:?}").to_lowercase();
                let why = given_up.as_ref().map_or(String::new(), |why| format!(": {why}"));
                write!(f, "power test of {server}: {step}{why}")
            }
            Notice::StoodStill { millis } => write!(
                f,
                "the metadata server did not run for {millis} ms: every server has a lease's time to be heard again"
            ),
            Notice::WentBack { seen, own } => write!(
                f,
                "a server has seen version {seen} of the cluster map, this metadata has only {own}: it went back to an older copy and \
                 leads nothing. Start the metadata servers on the newest copy of their directories"
            ),
            Notice::RescueWaits { servers } => write!(
                f,
                "the rescued metadata waits for what {} know of the cluster: start them",
                names(servers, ServerId::to_string)
            ),
            Notice::Rescued { generation, groups, sets } => fmt_rescued(f, *generation, groups, sets),
            Notice::MetadataDiskFull => f.write_str(
                "the metadata disk is full: writes are refused, reads and leases continue; make room on it",
            ),
            Notice::MetadataDiskHasRoom => f.write_str("the metadata disk has room again"),
            Notice::Refused { why } => f.write_str(why),
            Notice::HandsOver { member, hears, own } => write!(
                f,
                "this metadata server hears {own} chunk servers and metadata server {member} hears {hears}: that one is to lead. Look at \
                 the network between this one and the chunk servers"
            ),
        }
    }
}

fn fmt_rescued(
    f: &mut fmt::Formatter<'_>,
    generation: u32,
    groups: &[GroupId],
    sets: &[SetId],
) -> fmt::Result {
    write!(f, "the metadata was rescued and is of generation {generation}")?;
    if !groups.is_empty() {
        write!(
            f,
            "; {} chunk groups may have changed since its last entry, so none of their copies counts as complete: {}. \
             Start all servers, then `ebb force`",
            groups.len(),
            names(groups, GroupId::to_string)
        )?;
    }
    if !sets.is_empty() {
        write!(f, "; the servers of {} compare what they have", names(sets, SetId::to_string))?;
    }
    Ok(())
}

/// The first of them, and how many more there are.
fn names<T>(all: &[T], name: impl Fn(&T) -> String) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = all.iter().take(SHOWN).map(name).collect();
    let more = all.len().saturating_sub(SHOWN);
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &and
}

/// A notice of the present leader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoticeRecord {
    /// Rises from one to the next, also when another member leads: the term in the upper half.
    pub number: u64,
    pub at_unix_millis: u64,
    pub notice: Notice,
}
