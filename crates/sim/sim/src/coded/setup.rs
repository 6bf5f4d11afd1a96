//! What a set is made of.

use crate::request::{DiskModel, SettingsError};
use ebb_erasure::{Shape, ShapeError, standby};
use ebb_power::{ModelError, PowerModel};
use ebb_trace::TraceError;
use std::time::Duration;

/// A failed data server, lost before the trace begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    pub server: usize,
    /// What its replacement receives per second.
    pub rebuild_bytes_per_second: f64,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub shape: Shape,
    pub strip_bytes: u64,
    /// Smallest part of a strip that is kept for parity servers.
    pub row_bytes: u64,
    /// Memory of each data server for it.
    pub buffer_bytes: u64,
    /// What is written twice before it is sent is kept once.
    pub folds_overwrites: bool,
    /// `None`: all servers are always on.
    pub standby: Option<standby::Settings>,
    /// Time without a request after which the data servers sleep, too, until the next one. `None`: they never do.
    pub hibernate: Option<Duration>,
    pub failure: Option<Failure>,
    pub power: PowerModel,
    /// Of the second account. Its utilisation is that of the disk.
    pub by_load: PowerModel,
    pub disk: DiskModel,
    /// Of each server.
    pub network_bytes_per_second: f64,
    /// Time of a message without its bytes.
    pub message_seconds: f64,
    /// At which one parity server takes what was kept for it.
    pub synchronise_bytes_per_second: f64,
    /// Trace seconds per simulated second.
    pub rate: f64,
    pub seed: u64,
}

/// The paper's testbed [ECS² Table VI, §5.1].
impl Default for Setup {
    fn default() -> Setup {
        Setup {
            shape: Shape::new(6, 3).expect("the paper's code"),
            strip_bytes: 16 << 10,
            row_bytes: 512,
            buffer_bytes: 200_000_000,
            folds_overwrites: true,
            standby: Some(standby::Settings::default()),
            hibernate: None,
            failure: None,
            power: PowerModel::default(),
            by_load: PowerModel::default(),
            disk: DiskModel::hdd_2009(),
            network_bytes_per_second: 125e6,
            message_seconds: 100e-6,
            synchronise_bytes_per_second: 40e6,
            rate: 1.0,
            seed: 1,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CodedError {
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Model(#[from] SettingsError),
    #[error(transparent)]
    Power(#[from] ModelError),
    #[error("{0}")]
    Trace(TraceError),
    #[error("{name} is {value}: give a number above 0")]
    Positive { name: &'static str, value: f64 },
    #[error("the strip of {strip} bytes is not made of rows of {row}: give a row that divides it")]
    Row { strip: u64, row: u64 },
    #[error("the failed server is {server}, and the data servers are 0 to {last}")]
    Failed { server: usize, last: usize },
    #[error(
        "the trace asks for more than the disks can do: {waiting} requests wait after {seconds} s; lower the rate"
    )]
    Overloaded { waiting: usize, seconds: u64 },
}

impl Setup {
    pub fn check(&self) -> Result<(), CodedError> {
        if self.standby.is_some() {
            self.shape.may_sleep()?;
        }
        self.disk.check()?;
        self.power.check()?;
        self.by_load.check()?;
        let positive = [
            ("network_bytes_per_second", self.network_bytes_per_second),
            ("synchronise_bytes_per_second", self.synchronise_bytes_per_second),
            ("rate", self.rate),
            ("buffer_bytes", self.buffer_bytes as f64),
            ("strip_bytes", self.strip_bytes as f64),
            ("row_bytes", self.row_bytes as f64),
        ];
        if let Some((name, value)) =
            positive.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0))
        {
            return Err(CodedError::Positive { name, value });
        }
        if !self.strip_bytes.is_multiple_of(self.row_bytes) {
            return Err(CodedError::Row { strip: self.strip_bytes, row: self.row_bytes });
        }
        match self.failure {
            Some(Failure { server, .. }) if server >= self.shape.data() => {
                Err(CodedError::Failed { server, last: self.shape.data() - 1 })
            }
            Some(Failure { rebuild_bytes_per_second: value, .. }) if !(value.is_finite() && value > 0.0) => {
                Err(CodedError::Positive { name: "rebuild_bytes_per_second", value })
            }
            _ => Ok(()),
        }
    }
}
