//! What can drive the disks' speed, and what each driver needs: `[driver]` in a mirror's `NAME.toml`.

use crate::mirror::MirrorError;
use crate::mirror::registry::{Entry, Name};
use clap::ValueEnum;
use ebb_mirror::Side;
use ebb_power::disk::{Ata, Condition, DiskSwitch, Nvme, Program, Programs};
use serde::{Deserialize, Serialize};
use std::path::Path;
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
    #[serde(skip_serializing_if = "Option::is_none")]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    fn programs(&self) -> Programs {
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
    DriverFacts {
        driver: DriverKind::None,
        speeds: 1,
        low_speed: "-",
        watts: "-",
        disks: "any file or device",
        what: "serves the disk as it is",
    },
    DriverFacts {
        driver: DriverKind::Emulated,
        speeds: 2,
        low_speed: "serves",
        watts: "modelled",
        disks: "any file or device",
        what: "delays it as a two-speed model says",
    },
    DriverFacts {
        driver: DriverKind::Nvme,
        speeds: 2,
        low_speed: "serves",
        watts: "rated",
        disks: "NVMe drives",
        what: "power states that measurably slow it down",
    },
    DriverFacts {
        driver: DriverKind::Ata,
        speeds: 2,
        low_speed: "sleeps",
        watts: "-",
        disks: "ATA and SAS disks",
        what: "standby, idle-b or idle-c of disks that spin",
    },
    DriverFacts {
        driver: DriverKind::Command,
        speeds: 2,
        low_speed: "either",
        watts: "-",
        disks: "any file or device",
        what: "programs of yours that change the speed",
    },
];

type Switch = Box<dyn DiskSwitch + Send>;

fn nvme(path: &Path, config: &DriverConfig) -> Result<Nvme<std::fs::File>, MirrorError> {
    Ok(Nvme::open(path, config.deadline())?)
}

fn other(kind: DriverKind, name: &Name, entry: &Entry, side: Side) -> Result<Switch, MirrorError> {
    let (path, config) = (entry.disk(side), &entry.driver);
    if kind == DriverKind::Ata {
        return Ok(Box::new(Ata::open(path, config.condition, config.deadline())?));
    }
    let command = config.command.as_ref().ok_or_else(|| MirrorError::NoCommand(name.to_string()))?;
    let disk = if side == Side::A { "a" } else { "b" };
    Ok(Box::new(Program::new(
        command.programs(),
        name.as_str(),
        disk,
        path.to_owned(),
        command.slowdown,
        config.deadline(),
    )))
}

/// The switches of the disks that are `there`. Each has been tried: its disk is at high speed.
pub fn switches(
    kind: DriverKind,
    name: &Name,
    entry: &Entry,
    there: [bool; 2],
) -> Result<[Option<Switch>; 2], MirrorError> {
    let sides = || Side::BOTH.into_iter().filter(|side| there[side.index()]);
    let mut found: [Option<Switch>; 2] = [None, None];
    if kind == DriverKind::Nvme {
        let mut drives = sides().map(|side| Ok((side, nvme(entry.disk(side), &entry.driver)?)));
        let mut drives: Vec<_> = drives.by_ref().collect::<Result<_, MirrorError>>()?;
        if let [(_, a), (_, b)] = &drives[..]
            && a.is_same_drive(b)
        {
            let (a, b) = (entry.disk_a.clone(), entry.disk_b.clone());
            return Err(MirrorError::OneDrive { a, b });
        }
        for (_, drive) in &mut drives {
            drive.prove()?;
        }
        drives.into_iter().for_each(|(side, drive)| found[side.index()] = Some(Box::new(drive)));
        return Ok(found);
    }
    for side in sides() {
        let mut switch = other(kind, name, entry, side)?;
        switch.go_high()?;
        found[side.index()] = Some(switch);
    }
    Ok(found)
}

/// Whether a driver can drive one of the mirror's disks.
#[derive(Serialize)]
pub struct Availability {
    pub driver: DriverKind,
    pub disk: Side,
    pub available: bool,
    /// The disk and its speeds; or why not, and the remedy.
    pub what: String,
}

/// Asks the drives what they can do. Sets nothing, and wakes none.
pub fn availability(name: &Name, entry: &Entry) -> Vec<Availability> {
    let mut found = Vec::new();
    for driver in DRIVERS.iter().map(|facts| facts.driver) {
        for disk in Side::BOTH {
            let about = match driver {
                DriverKind::None | DriverKind::Emulated => Ok("any file or device".to_owned()),
                DriverKind::Nvme => {
                    nvme(entry.disk(disk), &entry.driver).map(|drive| drive.about().what.clone())
                }
                DriverKind::Ata | DriverKind::Command => {
                    other(driver, name, entry, disk).map(|switch| switch.about().what.clone())
                }
            };
            let available = about.is_ok();
            let what = about.unwrap_or_else(|error| error.to_string());
            found.push(Availability { driver, disk, available, what });
        }
    }
    found
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
