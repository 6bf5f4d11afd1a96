//! Depths of sleep of modelled servers: one conversion of an operator's settings, for load curves and for traces.
//!
//! There is a deep sleep, which costs a power cycle and is called `off`: it draws what the power model says of standby,
//! because that is what a machine that is off draws at the plug [ECS² Table I], and takes its transitions. Beside it
//! there may be a shallow one, suspend: it wears nothing. The way into it and back has not been measured, so each takes
//! as long as waking, at the draw of an idle server.

use ebb_gear::{DepthCost, Sleep};
use ebb_power::{DepthModel, PowerModel, Transition};
use ebb_types::{Depth, Watts};
use std::time::Duration;

/// A suspended server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suspend {
    pub watts: Watts,
    /// From the decision to wake it until it serves.
    pub wake: Duration,
}

impl Suspend {
    pub fn model(&self, power: &PowerModel) -> DepthModel {
        let each = Transition { seconds: self.wake.as_secs_f64(), joules: power.idle * self.wake };
        DepthModel { watts: self.watts, up: each, down: each }
    }
}

/// What sleep saves and costs. `wake`: from the decision to wake a server that is off until it serves; `None`: the
/// schedule's lead time.
pub fn sleep(
    power: &PowerModel,
    wake: Option<Duration>,
    suspend: Option<Suspend>,
    cycles_per_day: f64,
) -> Sleep {
    let cost = |model: DepthModel, wake, wears| DepthCost {
        watts: model.watts,
        joules: model.joules(),
        wake,
        wears,
    };
    Sleep {
        idle: power.idle,
        standby: suspend.map(|suspend| cost(suspend.model(power), Some(suspend.wake), false)),
        off: Some(cost(off(power), wake, true)),
        cycles_per_day,
    }
}

/// The deep sleep.
pub fn off(power: &PowerModel) -> DepthModel {
    power.asleep(Depth::Standby)
}
