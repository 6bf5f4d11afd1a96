//! What a run depends on, and why it may not be possible.

use ebb_mirror::{GeometryError, ModelError, Settings, SettingsError, TwoSpeedModel};
use ebb_trace::TraceError;
use std::time::Duration;

/// What a run depends on, but for the trace.
#[derive(Clone, Debug)]
pub struct Setup {
    pub settings: Settings,
    pub disk: TwoSpeedModel,
    /// Of each disk; 0: none.
    pub log_bytes: u64,
    /// Trace seconds per simulated second.
    pub rate: f64,
    pub seed: u64,
}

/// The paper's: see [`TwoSpeedModel::paper`] and [`Settings::default`]; but writes are acknowledged as production does.
impl Default for Setup {
    fn default() -> Setup {
        Setup {
            settings: Settings::default(),
            disk: TwoSpeedModel::paper(),
            log_bytes: 3 << 30,
            rate: 1.0,
            seed: 1,
        }
    }
}

/// The highest rate: a nanosecond of the trace must not vanish.
const RATE_MAX: f64 = 1e6;
/// Requests that may be unanswered at a time: with more, the load does not belong on these disks, and a run would take
/// hours.
pub(super) const UNANSWERED_MAX: u64 = 10_000;

/// Why a trace was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(
        "a rate of {0} is impossible: give trace seconds per simulated second, above 0 and up to {RATE_MAX}"
    )]
    Rate(f64),
    #[error("{0} has no request that moves a byte")]
    Empty(String),
    #[error(
        "{unanswered} requests are unanswered {seconds:.0} s after the first: the disks cannot serve this load, or a full log \
         holds it up; lower the rate, or enlarge the log"
    )]
    Overloaded { unanswered: u64, seconds: f64 },
    #[error(
        "a request of {bytes} bytes does not fit the mirror, which has {room_bytes}: use a disk model with more capacity_bytes"
    )]
    TooLong { bytes: u64, room_bytes: u64 },
}

impl Setup {
    pub(crate) fn check(&self) -> Result<(), MirrorError> {
        self.settings.check()?;
        self.disk.check()?;
        match self.rate > 0.0 && self.rate <= RATE_MAX {
            true => Ok(()),
            false => Err(MirrorError::Rate(self.rate)),
        }
    }

    /// The moment of a request.
    pub(super) fn moment(&self, at: Duration) -> u64 {
        (at.as_nanos() as f64 / self.rate) as u64
    }
}
