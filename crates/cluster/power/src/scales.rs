//! What each scale of power-proportionality saves: servers that sleep (Sierra), and disks that slow down inside servers
//! that are awake (LogStore).
//!
//! A power model gives a server's watts with its disks, which have one speed. So the model's energy is that of a
//! cluster whose servers sleep and whose disks do not slow down. What such disks take of it is taken out, and what the
//! real ones take is put in. With disks of one speed nothing changes.

use ebb_types::Joules;
use serde::{Deserialize, Serialize};

/// Energy of a cluster by scale. What is saved is saved against all servers awake with disks of one speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scales {
    #[serde(rename = "always_on_joules")]
    pub always_on: Joules,
    /// By sleeping servers, with their disks.
    #[serde(rename = "servers_saved_joules")]
    pub servers_saved: Joules,
    /// By disks at low speed in servers awake. Negative: their changes of speed cost more than they saved.
    #[serde(rename = "disks_saved_joules")]
    pub disks_saved: Joules,
    /// Taken by servers without their disks; transitions of servers are whole.
    #[serde(rename = "servers_joules")]
    pub servers: Joules,
    #[serde(rename = "disks_joules")]
    pub disks: Joules,
}

impl Scales {
    /// `always_on`: all servers awake, disks of one speed. `asleep`: as the servers slept, disks of one speed.
    /// `one_speed`: what these disks take of `asleep`. `disks`: what the real ones took.
    pub fn new(always_on: Joules, asleep: Joules, one_speed: Joules, disks: Joules) -> Scales {
        Scales {
            always_on,
            servers_saved: always_on - asleep,
            disks_saved: one_speed - disks,
            servers: asleep - one_speed,
            disks,
        }
    }

    pub fn total(&self) -> Joules {
        self.servers + self.disks
    }

    pub fn saved(&self) -> Joules {
        self.servers_saved + self.disks_saved
    }

    /// As a share of the energy of all servers awake with disks of one speed.
    pub fn share(&self, energy: Joules) -> f64 {
        energy.0 / self.always_on.0.max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_savings_of_the_scales_add_up_to_what_is_not_taken() {
        let scales = Scales::new(Joules(1000.0), Joules(600.0), Joules(120.0), Joules(30.0));
        assert_eq!((scales.servers_saved, scales.disks_saved), (Joules(400.0), Joules(90.0)));
        assert_eq!(scales.saved() + scales.total(), scales.always_on);
        assert_eq!((scales.servers, scales.share(scales.saved())), (Joules(480.0), 0.49));
    }

    #[test]
    fn disks_of_one_speed_change_nothing() {
        let scales = Scales::new(Joules(1000.0), Joules(600.0), Joules(120.0), Joules(120.0));
        assert_eq!((scales.total(), scales.saved()), (Joules(600.0), Joules(400.0)));
    }
}
