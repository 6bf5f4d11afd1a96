//! The figures of a disk that serves at two speeds of rotation [LogStore Table 1].
//!
//! An access takes a seek, a rotation and a transfer. The seek does not depend on the speed. Rotation and transfer are
//! inversely proportional to it [LogStore §4.1]; the mean rotation is half a turn, 10 ms at 3,000 rpm and 3 ms at
//! 10,000 rpm.
//!
//! The time of a seek over a third of the stroke is chosen such that the mean of [`seek_curve`] over random pairs of
//! positions is `average_seek_seconds`, which is how data sheets define it.

use crate::{Parts, Speed};
use ebb_types::{Joules, Watts};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The figures of a two-speed disk. Read from configuration: call [`TwoSpeedModel::check`] before use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TwoSpeedModel {
    pub name: String,
    /// Source of the figures.
    pub source: String,
    pub capacity_bytes: u64,
    /// Controller and interface, per access; reported with the seek, since it does not depend on the speed either.
    pub overhead_seconds: f64,
    pub track_to_track_seconds: f64,
    /// Mean over all pairs of positions, reads.
    pub average_seek_seconds: f64,
    pub full_stroke_seconds: f64,
    /// Additional seek time of a write.
    pub write_settle_seconds: f64,
    /// Media rate at high speed.
    pub bytes_per_second: f64,
    pub low: SpeedModel,
    pub high: SpeedModel,
    /// From low to high speed.
    pub up: ChangeModel,
    pub down: ChangeModel,
}

/// A disk at one speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedModel {
    /// Turns per minute.
    pub rpm: f64,
    #[serde(rename = "idle_watts")]
    pub idle: Watts,
    /// While an access is served.
    #[serde(rename = "access_watts")]
    pub access: Watts,
}

/// A change of speed. Its energy is all that the disk takes meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeModel {
    pub seconds: f64,
    #[serde(rename = "energy_joules")]
    pub energy: Joules,
}

/// A disk model that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("disk model: {name} is {value} and must be a positive number")]
    NotPositive { name: &'static str, value: f64 },
    #[error("disk model: {name} is {value} and must be zero or a positive number")]
    Negative { name: &'static str, value: f64 },
    #[error("disk model: low.rpm is {low} and must be below high.rpm, which is {high}")]
    Speeds { low: f64, high: f64 },
    #[error(
        "disk model: no seek curve has track_to_track_seconds {near}, average_seek_seconds {average} and \
         full_stroke_seconds {far}: they must rise, and the full stroke be no more than about six times the average"
    )]
    Seeks { near: f64, average: f64, far: f64 },
}

impl TwoSpeedModel {
    /// The disk of the paper's evaluation. The paper gives only the speeds, powers and changes.
    pub fn paper() -> TwoSpeedModel {
        TwoSpeedModel {
            name: "logstore".into(),
            source: "speeds, powers and changes [LogStore Table 1]; seeks of the class of the Maxtor Atlas 15K II, 73 \
                     GB, which the paper names (compare 3.3/3.8 ms [Hitachi Ultrastar 15K450 specification 1.2, table \
                     7]); 57 MB/s: two thirds of 86 MB/s, typical of that class at 15,000 rpm"
                .into(),
            capacity_bytes: 73_000_000_000,
            overhead_seconds: 0.1e-3,
            track_to_track_seconds: 0.3e-3,
            average_seek_seconds: 3.4e-3,
            full_stroke_seconds: 8e-3,
            write_settle_seconds: 0.4e-3,
            bytes_per_second: 57e6,
            low: SpeedModel { rpm: 3_000.0, idle: Watts(0.5), access: Watts(2.5) },
            high: SpeedModel { rpm: 10_000.0, idle: Watts(6.0), access: Watts(9.0) },
            up: ChangeModel { seconds: 7.0, energy: Joules(123.0) },
            down: ChangeModel { seconds: 7.0, energy: Joules(17.0) },
        }
    }

    pub fn check(&self) -> Result<(), ModelError> {
        for (name, value) in [
            ("capacity_bytes", self.capacity_bytes as f64),
            ("track_to_track_seconds", self.track_to_track_seconds),
            ("average_seek_seconds", self.average_seek_seconds),
            ("full_stroke_seconds", self.full_stroke_seconds),
            ("bytes_per_second", self.bytes_per_second),
            ("low.rpm", self.low.rpm),
            ("high.rpm", self.high.rpm),
            ("up.seconds", self.up.seconds),
            ("down.seconds", self.down.seconds),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(ModelError::NotPositive { name, value });
            }
        }
        for (name, value) in [
            ("overhead_seconds", self.overhead_seconds),
            ("write_settle_seconds", self.write_settle_seconds),
            ("low.idle_watts", self.low.idle.0),
            ("low.access_watts", self.low.access.0),
            ("high.idle_watts", self.high.idle.0),
            ("high.access_watts", self.high.access.0),
            ("up.energy_joules", self.up.energy.0),
            ("down.energy_joules", self.down.energy.0),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(ModelError::Negative { name, value });
            }
        }
        let (low, high) = (self.low.rpm, self.high.rpm);
        if low >= high {
            return Err(ModelError::Speeds { low, high });
        }
        let (near, far) = (self.track_to_track_seconds, self.full_stroke_seconds);
        if !(near..=far).contains(&self.knee_seconds()) {
            return Err(ModelError::Seeks { near, average: self.average_seek_seconds, far });
        }
        Ok(())
    }

    pub fn speed(&self, speed: Speed) -> &SpeedModel {
        match speed {
            Speed::Low => &self.low,
            Speed::High => &self.high,
        }
    }

    /// The change to a speed.
    pub fn change(&self, to: Speed) -> &ChangeModel {
        match to {
            Speed::Low => &self.down,
            Speed::High => &self.up,
        }
    }

    /// Mean times of accesses at random positions.
    pub fn random_access(&self, speed: Speed, write: bool, bytes: u64) -> Parts {
        Parts {
            seek: seconds(self.overhead_seconds + self.average_seek_seconds + self.settle_seconds(write)),
            rotation: seconds(self.turn_seconds(speed) / 2.0),
            transfer: seconds(self.transfer_seconds(speed, bytes)),
        }
    }

    pub(crate) fn settle_seconds(&self, write: bool) -> f64 {
        if write { self.write_settle_seconds } else { 0.0 }
    }

    pub(crate) fn turn_seconds(&self, speed: Speed) -> f64 {
        60.0 / self.speed(speed).rpm
    }

    pub(crate) fn transfer_seconds(&self, speed: Speed, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_per_second * self.high.rpm / self.speed(speed).rpm
    }

    /// Seek over a third of the stroke. The distance of two random positions has density 2 (1 - x), so that the curve's
    /// mean is (27 near + 88 knee + 20 far) / 135.
    fn knee_seconds(&self) -> f64 {
        let (near, far) = (self.track_to_track_seconds, self.full_stroke_seconds);
        (135.0 * self.average_seek_seconds - 27.0 * near - 20.0 * far) / 88.0
    }

    /// Seek over this share of the stroke.
    pub(crate) fn seek_seconds(&self, share: f64) -> f64 {
        seek_curve([self.track_to_track_seconds, self.knee_seconds(), self.full_stroke_seconds], share)
    }
}

/// Seconds of a seek over this share of the stroke, from those to the next track, over a third and over all of it: a
/// root up to the third, and a line from there on.
pub fn seek_curve([near, third, far]: [f64; 3], share: f64) -> f64 {
    if share <= 1.0 / 3.0 {
        near + (third - near) * (3.0 * share).sqrt()
    } else {
        third + (far - third) * (share - 1.0 / 3.0) * 1.5
    }
}

pub(crate) fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_table_1() {
        let model = TwoSpeedModel::paper();
        assert_eq!((model.low.rpm, model.low.idle, model.low.access), (3_000.0, Watts(0.5), Watts(2.5)));
        assert_eq!((model.high.rpm, model.high.idle, model.high.access), (10_000.0, Watts(6.0), Watts(9.0)));
        assert_eq!(model.up, ChangeModel { seconds: 7.0, energy: Joules(123.0) });
        assert_eq!(model.down, ChangeModel { seconds: 7.0, energy: Joules(17.0) });
        assert_eq!((model.change(Speed::High), model.change(Speed::Low)), (&model.up, &model.down));
    }

    #[test]
    fn the_seek_curve_passes_its_points_and_has_its_mean() {
        let model = TwoSpeedModel::paper();
        assert_eq!(model.seek_seconds(0.0), 0.3e-3);
        assert!((model.seek_seconds(1.0) - 8e-3).abs() < 1e-12);
        let steps = 10_000;
        let at = |n: i32| (f64::from(n) + 0.5) / f64::from(steps);
        let mean: f64 =
            (0..steps).map(|n| model.seek_seconds(at(n)) * 2.0 * (1.0 - at(n)) / f64::from(steps)).sum();
        assert!((mean / 3.4e-3 - 1.0).abs() < 1e-4, "{mean}");
        assert!((1..steps).all(|n| model.seek_seconds(at(n)) > model.seek_seconds(at(n - 1))));
    }

    #[test]
    fn models_are_read_from_toml_and_checked() {
        let good = TwoSpeedModel::paper();
        good.check().unwrap();
        let text = toml::to_string(&good).unwrap();
        assert_eq!(toml::from_str::<TwoSpeedModel>(&text).unwrap(), good);
        assert!(text.contains("idle_watts = 0.5") && text.contains("energy_joules = 123"), "{text}");
        assert!(toml::from_str::<TwoSpeedModel>(&format!("{text}\nspeed = 3\n")).is_err(), "an unknown key");
        let bad = |change: fn(&mut TwoSpeedModel)| {
            let mut model = TwoSpeedModel::paper();
            change(&mut model);
            model.check().unwrap_err().to_string()
        };
        assert!(bad(|m| m.low.rpm = 0.0).contains("low.rpm is 0"));
        assert!(bad(|m| m.up.seconds = f64::NAN).contains("up.seconds"));
        assert!(bad(|m| m.high.idle = Watts(-1.0)).contains("high.idle_watts"));
        assert!(bad(|m| m.low.rpm = 10_000.0).contains("below high.rpm"));
        assert!(bad(|m| m.average_seek_seconds = 9e-3).contains("must rise"));
        assert!(bad(|m| m.average_seek_seconds = 1e-3).contains("six times"));
    }
}
