//! Power models by name or from a file.

use ebb_power::{ModelError, PowerModel, Transition};
use ebb_types::{Joules, Watts};
use serde::Deserialize;

/// A power model that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PowerError {
    #[error("the power model's TOML is wrong: {0}")]
    Toml(#[from] toml::de::Error),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("the power model has types, but together they have no server: give each `servers`")]
    NoServers,
}

/// Server types and how many of each the cluster has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Types {
    #[serde(rename = "type")]
    types: Vec<toml::Table>,
}

/// The paper's convention: a running server draws constant power, standby draws nothing, and transitions are free.
/// Savings then equal the mean share of sleeping servers. [Sierra §4.1]
pub fn free_transitions() -> PowerModel {
    let free = Transition { seconds: 0.0, joules: Joules(0.0) };
    let on = Watts(100.0);
    let none = Watts(0.0);
    PowerModel {
        idle: on,
        light: on,
        light_at: 0.5,
        busy: on,
        standby: none,
        off: none,
        up: free,
        down: free,
        rack_switch: none,
    }
}

/// Reads a power model: the keys of `PowerModel` at the top level, or one `[[type]]` table per type with those keys and
/// `servers`. Types are mixed evenly and take turns, so a server draws their mean weighted by number; a missing key
/// defaults to the measured storage node's value. [ECS² Tables I and VI]
pub fn power(text: &str) -> Result<PowerModel, PowerError> {
    let table: toml::Table = text.parse()?;
    let model = if table.contains_key("type") { mean(table.try_into()?)? } else { table.try_into()? };
    model.check()?;
    Ok(model)
}

fn mean(types: Types) -> Result<PowerModel, PowerError> {
    let mut models: Vec<(f64, PowerModel)> = Vec::new();
    for mut table in types.types {
        let count = table.remove("servers").and_then(|count| count.as_integer()).unwrap_or(0);
        let model: PowerModel = table.try_into()?;
        model.check()?;
        models.push((count.max(0) as f64, model));
    }
    let servers: f64 = models.iter().map(|(count, _)| count).sum();
    if servers == 0.0 {
        return Err(PowerError::NoServers);
    }
    let mean = |of: &dyn Fn(&PowerModel) -> f64| {
        models.iter().map(|(count, model)| count * of(model)).sum::<f64>() / servers
    };
    Ok(PowerModel {
        idle: Watts(mean(&|m| m.idle.0)),
        light: Watts(mean(&|m| m.light.0)),
        light_at: mean(&|m| m.light_at),
        busy: Watts(mean(&|m| m.busy.0)),
        standby: Watts(mean(&|m| m.standby.0)),
        off: Watts(mean(&|m| m.off.0)),
        up: Transition { seconds: mean(&|m| m.up.seconds), joules: Joules(mean(&|m| m.up.joules.0)) },
        down: Transition { seconds: mean(&|m| m.down.seconds), joules: Joules(mean(&|m| m.down.joules.0)) },
        rack_switch: Watts(mean(&|m| m.rack_switch.0)),
    })
}
