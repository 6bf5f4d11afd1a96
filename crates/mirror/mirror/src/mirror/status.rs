//! What a mirror reports of itself, from memory: no disk is touched.

use crate::BLOCK_BYTES;
use crate::api::{Mode, Side, Speed};
use crate::disk::Serving;
use crate::mirror::Mirror;
use serde::{Deserialize, Serialize};

/// Whether a disk takes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskState {
    Serving,
    /// It changes its speed, or is about to.
    Changing,
    /// It is at a low speed at which it serves nothing.
    Asleep,
    Lost,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskStatus {
    pub side: Side,
    pub state: DiskState,
    pub speed: Speed,
    pub mode: Mode,
    /// Smoothed, 0 to 1; absent before the first epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
    /// What the utilisation would be at low speed; of a disk that sleeps there, that of the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation_at_low: Option<f64>,
    /// Up to this forecast the disk goes to low speed; absent where the policy keeps it at high speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_speed_limit: Option<f64>,
    pub log_bytes: u64,
    pub log_used_bytes: u64,
    /// Content that is in the log and not in its own place.
    pub logged_bytes: u64,
    /// Written while the disk was away: in memory, and on the other disk.
    pub postponed_bytes: u64,
    /// Changes of speed since the start.
    pub speed_changes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub size_bytes: u64,
    pub disks: [DiskStatus; 2],
    /// Acknowledged content that only one disk has.
    pub once_bytes: u64,
    /// Regions that a crash now would make the next start compare.
    pub dirty_bytes: u64,
    /// Still to be copied to a disk that is being brought up to date.
    pub copying_bytes: u64,
    /// Reads that failed or whose data was wrong on one disk.
    pub unreadable: u64,
    pub scrub: ScrubStatus,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScrubStatus {
    pub running: bool,
    pub passes: u64,
    /// Of the present or the last pass.
    pub compared_bytes: u64,
    pub differing_bytes: u64,
    /// The first differing blocks, by number.
    pub differing_blocks: Vec<u64>,
}

impl Mirror {
    pub fn status(&self) -> Status {
        let disks = Side::BOTH.map(|side| self.disk_status(side));
        let lost = disks.iter().any(|disk| disk.state == DiskState::Lost);
        let postponed = disks.iter().map(|disk| disk.postponed_bytes).sum();
        let size_bytes = self.geometry.data_blocks() * BLOCK_BYTES;
        Status {
            size_bytes,
            once_bytes: if lost { size_bytes } else { postponed },
            disks,
            dirty_bytes: self.marks.dirty_regions() * self.geometry.region_bytes(),
            copying_bytes: self.copies.as_ref().map_or(0, |copies| copies.left_bytes()),
            unreadable: self.unreadable,
            scrub: ScrubStatus {
                running: self.scrub.is_running(),
                passes: self.scrub.passes,
                compared_bytes: self.scrub.compared_blocks * BLOCK_BYTES,
                differing_bytes: self.scrub.differing_blocks * BLOCK_BYTES,
                differing_blocks: self.scrub.first_differing.clone(),
            },
        }
    }

    fn disk_status(&self, side: Side) -> DiskStatus {
        let disk = &self.disks[side.index()];
        DiskStatus {
            side,
            state: match disk.serving {
                Serving::Yes => DiskState::Serving,
                Serving::Away if self.asleep() == Some(side) => DiskState::Asleep,
                Serving::Leaving | Serving::Away => DiskState::Changing,
                Serving::Lost => DiskState::Lost,
            },
            speed: disk.speed(),
            mode: disk.mode,
            utilisation: self.pair.utilisation(side),
            utilisation_at_low: self.pair.at_low(side),
            low_speed_limit: self.pair.low_speed_limit(side),
            log_bytes: self.geometry.log_blocks() * BLOCK_BYTES,
            log_used_bytes: disk.log.used_bytes(),
            logged_bytes: disk.log.logged_blocks() * BLOCK_BYTES,
            postponed_bytes: disk.postponed_blocks() * BLOCK_BYTES,
            speed_changes: disk.speed_changes(),
        }
    }
}
