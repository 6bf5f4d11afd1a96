//! A mirror's figures: those of `ebb mirror status`, from memory. No disk is touched, so none wakes.

use super::{Page, names};
use crate::daemon::mirror::control::ServedStatus;
use serde::Serialize;

/// The word that JSON has for it.
fn word(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("a plain value");
    value.as_str().unwrap_or_default().to_lowercase()
}

pub fn report(status: &ServedStatus, page: &mut Page) {
    let name = &status.name;
    page.put(names::MIRROR_CONDITION, &[name, &word(status.condition)], 1.0);
    for (metric, value) in [
        (names::MIRROR_SIZE, status.size_bytes as f64),
        (names::MIRROR_ONCE, status.once_bytes as f64),
        (names::MIRROR_DIRTY, status.dirty_bytes as f64),
        (names::MIRROR_COPYING, status.copying_bytes as f64),
        (names::MIRROR_UNREADABLE, status.unreadable as f64),
        (names::MIRROR_CONNECTIONS, status.connections as f64),
    ] {
        page.put(metric, &[name], value);
    }
    for disk in &status.disks {
        let (side, s) = (word(disk.status.side), &disk.status);
        page.put(names::MIRROR_DISK_STATE, &[name, &side, &word(s.state), &word(s.speed)], 1.0);
        page.put(names::MIRROR_DISK_CHANGES, &[name, &side], s.speed_changes as f64);
        page.put(names::MIRROR_DISK_LOG, &[name, &side], s.log_used_bytes as f64);
        page.put_known(names::MIRROR_DISK_BUSY, &[name, &side], s.utilisation);
        let joules = disk.modelled_joules.map(|joules| joules.0);
        page.put_known(names::MIRROR_DISK_ENERGY, &[name, &side, &"modelled"], joules);
    }
}
