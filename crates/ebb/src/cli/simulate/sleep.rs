//! How servers sleep: the same flags for a load curve (`ebb simulate load`) and for a trace (`ebb simulate trace`).

use crate::error::{NodeError, io, refused};
use clap::Args;
use ebb_power::PowerModel;
use ebb_sim::load::{self, Suspend};
use ebb_types::{Watts, parse_duration};
use std::time::Duration;

#[derive(Args)]
pub struct SleepArgs {
    /// `free`: as in Sierra, standby and transitions cost nothing; `node`: a measured storage node (ECS²); or a TOML
    /// file [default: free for a load curve, node for a trace]
    #[arg(long, value_name = "free|node|FILE")]
    power: Option<String>,
    /// Time from waking a server until it carries load [default: 1m for a load curve; for a trace what `up` of the
    /// power model takes]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub wake: Option<Duration>,
    /// Ebb's budget of power cycles per server per day [default: 2 for a load curve; for a trace 24, as in a cluster]
    #[arg(long, value_name = "CYCLES")]
    pub cycles: Option<f64>,
    /// A second depth of sleep, shallower than `--power` and `--wake` say, which costs no power cycle: its watts, and
    /// its time from waking a server until it carries load
    #[arg(long, value_name = "WATTS,TIME", value_parser = parse_suspend)]
    pub suspend: Option<Suspend>,
}

impl SleepArgs {
    /// The file of the power model, if it is one.
    pub fn file(&self) -> Option<&str> {
        self.power.as_deref().filter(|power| !matches!(*power, "free" | "node"))
    }

    pub fn power(&self, default: &str) -> Result<PowerModel, NodeError> {
        match self.power.as_deref().unwrap_or(default) {
            "free" => Ok(load::free_transitions()),
            "node" => Ok(PowerModel::default()),
            file => {
                let text = std::fs::read_to_string(file).map_err(io("read the power model", file))?;
                load::power(&text).map_err(|error| refused(format!("{file}: {error}")))
            }
        }
    }
}

/// A duration that is not zero.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time.is_zero() { Err("it must be longer than zero".into()) } else { Ok(time) }
}

fn parse_suspend(text: &str) -> Result<Suspend, String> {
    let wrong = |what: &str| {
        format!(
            "{text:?} {what}: give the watts of a sleeping server, and its time from waking until it serves, such as 10,15s"
        )
    };
    let (watts, wake) = text.split_once(',').ok_or_else(|| wrong("is a depth of sleep without wake time"))?;
    let watts: Option<f64> = watts.trim_end_matches('W').parse().ok();
    let watts = watts.filter(|watts| *watts >= 0.0 && watts.is_finite());
    let watts = watts.ok_or_else(|| wrong("is not a depth of sleep"))?;
    let wake = parse_time(wake).map_err(|why| wrong(&format!("has no wake time ({why})")))?;
    Ok(Suspend { watts: Watts(watts), wake })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_depth_without_wake_time_is_refused_with_the_remedy() {
        let right = Suspend { watts: Watts(10.0), wake: Duration::from_secs(15) };
        assert_eq!([parse_suspend("10,15s"), parse_suspend("10W,15s")], [Ok(right), Ok(right)]);
        for (text, expected) in [
            ("10", "without wake time"),
            ("10,", "no wake time"),
            ("10,0s", "no wake time"),
            ("-1,15s", "not a depth of sleep"),
            ("nan,15s", "not a depth of sleep"),
        ] {
            let why = parse_suspend(text).unwrap_err();
            assert!(why.contains(expected) && why.contains("such as 10,15s"), "{text}: {why}");
        }
    }
}
