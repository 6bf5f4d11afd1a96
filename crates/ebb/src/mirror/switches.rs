//! The switches of a mirror's disks, by driver, and what each driver can do with these disks.

use crate::mirror::MirrorError;
use crate::mirror::drivers::{DriverConfig, DriverKind};
use crate::mirror::registry::{Entry, Name};
use ebb_mirror::Side;
use ebb_power::disk::{Ata, DiskSwitch, Nvme, Program};
use serde::Serialize;
use std::path::Path;

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
    for driver in
        [DriverKind::None, DriverKind::Emulated, DriverKind::Nvme, DriverKind::Ata, DriverKind::Command]
    {
        for disk in Side::BOTH {
            let about = match driver {
                DriverKind::Nvme => {
                    nvme(entry.disk(disk), &entry.driver).map(|drive| drive.about().what.clone())
                }
                DriverKind::Ata | DriverKind::Command => {
                    other(driver, name, entry, disk).map(|switch| switch.about().what.clone())
                }
                _ => Ok("any file or device".to_owned()),
            };
            let available = about.is_ok();
            let what = about.unwrap_or_else(|error| error.to_string());
            found.push(Availability { driver, disk, available, what });
        }
    }
    found
}
