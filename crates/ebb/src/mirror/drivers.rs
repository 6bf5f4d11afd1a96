//! What can drive the disks' speed, and what each driver needs: `[driver]` in a mirror's `NAME.toml`.

use clap::ValueEnum;
use ebb_power::disk::{Condition, Programs};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest time limit of a change, in seconds.
const DEADLINE_SECONDS_MAX: f64 = 3600.0;
/// How many times as slow a disk may be at low speed.
const SLOWDOWN_MAX: f64 = 1000.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    #[default]
    None,
    Emulated,
    /// Of `ebb simulate mirror` alone.
    #[value(skip)]
    #[serde(skip_deserializing)]
    Modelled,
    Nvme,
    Ata,
    Command,
}

/// `[driver]` of `NAME.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriverConfig {
    /// Unless `--driver` names another.
    pub name: DriverKind,
    /// Time limit of each command to a drive, or of a program.
    pub deadline_seconds: f64,
    /// Of driver `ata`: what the disk is put in at low speed.
    pub condition: Condition,
    pub command: Option<CommandConfig>,
}

impl Default for DriverConfig {
    fn default() -> DriverConfig {
        DriverConfig {
            name: DriverKind::None,
            deadline_seconds: 30.0,
            condition: Condition::default(),
            command: None,
        }
    }
}

/// `[driver.command]`: programs and their arguments, run without a shell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    pub low: Vec<String>,
    pub high: Vec<String>,
    /// Prints `low` or `high`.
    pub show: Option<Vec<String>>,
    /// How many times as long operations take at low speed.
    #[serde(default = "one")]
    pub slowdown: f64,
    /// The disks serve nothing at low speed.
    #[serde(default)]
    pub sleeps: bool,
}

fn one() -> f64 {
    1.0
}

impl DriverConfig {
    /// Why the section cannot be used.
    pub fn check(&self) -> Result<(), String> {
        if !(0.001..=DEADLINE_SECONDS_MAX).contains(&self.deadline_seconds) {
            return Err(format!(
                "driver.deadline_seconds is {}: set it to 30, or up to an hour",
                self.deadline_seconds
            ));
        }
        let Some(command) = &self.command else { return Ok(()) };
        if !(1.0..=SLOWDOWN_MAX).contains(&command.slowdown) {
            return Err(format!(
                "driver.command.slowdown is {}: set it to how many times as long operations take at low speed, 1 or more",
                command.slowdown
            ));
        }
        command.programs().check().map_err(|list| {
            format!(
                "driver.command.{list} is empty: give a program and its arguments, as [\"/path\", \"word\"]"
            )
        })
    }

    pub fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.deadline_seconds)
    }

    /// Whether disks serve nothing at low speed.
    pub fn sleeps(&self, kind: DriverKind) -> bool {
        kind == DriverKind::Ata
            || kind == DriverKind::Command && self.command.as_ref().is_some_and(|command| command.sleeps)
    }
}

impl CommandConfig {
    pub fn programs(&self) -> Programs {
        Programs { low: self.low.clone(), high: self.high.clone(), show: self.show.clone() }
    }
}

/// A way to drive disks.
#[derive(Serialize)]
pub struct DriverFacts {
    pub driver: DriverKind,
    /// Speeds that it knows.
    pub speeds: u8,
    /// What a disk does at low speed: `serves`, `sleeps`, or as configured.
    pub low_speed: &'static str,
    /// Where its watts come from.
    pub watts: &'static str,
    pub disks: &'static str,
    pub what: &'static str,
}

pub const DRIVERS: &[DriverFacts] = &[
    facts(DriverKind::None, 1, ["-", "-", "any file or device", "serves the disk as it is"]),
    facts(
        DriverKind::Emulated,
        2,
        ["serves", "modelled", "any file or device", "delays it as a two-speed model says"],
    ),
    facts(DriverKind::Modelled, 2, ["serves", "modelled", "none", "virtual time: ebb simulate mirror"]),
    facts(
        DriverKind::Nvme,
        2,
        ["serves", "rated", "NVMe drives", "power states that measurably slow it down"],
    ),
    facts(
        DriverKind::Ata,
        2,
        ["sleeps", "-", "ATA and SAS disks", "standby, idle-b or idle-c of disks that spin"],
    ),
    facts(
        DriverKind::Command,
        2,
        ["either", "-", "any file or device", "programs of yours that change the speed"],
    ),
];

const fn facts(
    driver: DriverKind,
    speeds: u8,
    [low_speed, watts, disks, what]: [&'static str; 4],
) -> DriverFacts {
    DriverFacts { driver, speeds, low_speed, watts, disks, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<DriverConfig, String> {
        let config: DriverConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn the_section_is_read_and_its_mistakes_are_named() {
        let command = "name = \"command\"\n[command]\nlow = [\"x\", \"1\"]\nhigh = [\"x\", \"2\"]\n";
        let good = config(command).unwrap();
        assert_eq!((good.name, good.sleeps(DriverKind::Command)), (DriverKind::Command, false));
        assert_eq!(good.command.as_ref().unwrap().slowdown, 1.0);
        assert!(config(&format!("{command}sleeps = true")).unwrap().sleeps(DriverKind::Command));
        assert!(good.sleeps(DriverKind::Ata) && !good.sleeps(DriverKind::Nvme));
        assert_eq!(config("").unwrap(), DriverConfig::default());
        for (text, why) in [
            ("name = \"turbo\"", "unknown variant `turbo`"),
            ("name = \"modelled\"", "unknown variant `modelled`"),
            ("condition = \"idle-a\"", "unknown variant `idle-a`"),
            ("deadline_seconds = 0", "set it to 30"),
            ("deadline_seconds = nan", "set it to 30"),
            ("depth = 1", "unknown field `depth`"),
            ("[command]\nlow = [\"x\"]", "missing field `high`"),
            ("[command]\nlow = [\"x\"]\nhigh = []", "driver.command.high is empty"),
            (&format!("{command}slowdown = 0.5"), "slowdown is 0.5"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
