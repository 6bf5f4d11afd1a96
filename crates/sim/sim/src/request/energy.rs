//! Energy of a run: two accounts of the same states, by the simulated clock and at the trace's own speed
//! ([`ebb_power::Savings`]), and sleep by its depth.

use ebb_gear::Sleep;
use ebb_power::{DepthModel, Draw, EnergyMeter, ModelledEnergy, Savings, Scales};
use ebb_types::{Depth, Joules, Moment, RackId, ServerId, Watts};
use serde::Serialize;
use std::time::Duration;

/// How long a switch takes from and to a depth of sleep.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub up: Duration,
    pub down: Duration,
}

/// The same states in both accounts.
pub struct Meters {
    pub clock: EnergyMeter,
    pub own: EnergyMeter,
}

impl Meters {
    /// See [`EnergyMeter::set_rack`].
    pub fn set_rack(&mut self, server: ServerId, rack: RackId) {
        self.clock.set_rack(server, rack);
        self.own.set_rack(server, rack);
    }

    pub fn set(&mut self, now: Moment, server: ServerId, draw: Draw) {
        self.clock.set(now, server, draw);
        self.own.set(now, server, draw);
    }
}

/// In place of savings, where the cluster did not do all of the work.
pub const NO_SAVINGS: &str =
    "no savings: requests failed or were not answered, and work that was not done takes no energy";

/// What the servers took in a run, by both accounts, the disks' work included.
pub struct Taken {
    pub clock: ModelledEnergy,
    pub own: ModelledEnergy,
}

/// Energy, modelled, from the start of the trace to its end. Work is spread evenly over the servers that are on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Energy {
    /// Every request was answered, so both sides did the same work. Else the savings hold of nothing: work that was not
    /// done takes no energy.
    pub comparable: bool,
    /// By the clock of the run.
    #[serde(flatten)]
    pub clock: Savings,
    /// At the trace's own speed. `None`: with pairs of disks, whose changes of speed are part of their watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_speed: Option<Savings>,
    /// The part of the total that the racks' switches take, by the clock of the run, if the power model has them.
    pub switch_joules: Joules,
    /// Of servers, down and up.
    pub transitions: u64,
    /// Without those on their way up or down.
    pub mean_servers_awake: f64,
}

impl Energy {
    /// `always_on`: the same disk work on a cluster that never sleeps, spread evenly, in a run of `seconds`. `scales`:
    /// with pairs of disks, which save on their own.
    pub(super) fn new(
        taken: &Taken,
        always_on: Joules,
        scales: Option<Scales>,
        speed: f64,
        seconds: f64,
    ) -> Energy {
        let mut clock = Savings::new(&taken.clock, always_on, speed);
        if let Some(scales) = scales {
            (clock.total_joules, clock.saved) = (scales.total(), scales.share(scales.saved()));
        }
        let own = || Savings::new(&taken.own, always_on * speed, 1.0);
        Energy {
            // Until the requests are counted.
            comparable: true,
            clock,
            own_speed: scales.is_none().then(own),
            switch_joules: taken.clock.switches,
            transitions: taken.clock.sleep().transitions(),
            mean_servers_awake: taken.clock.on_seconds / seconds.max(1e-9),
        }
    }

    /// For people: what was saved in a run at this speed, and what transitions took of it.
    pub fn text(&self, speed: f64) -> String {
        let Savings { total_joules, always_on_joules, saved, .. } = self.clock;
        let saved = match self.comparable {
            true => format!("always on {:.3} kWh, saved {:.1} %", always_on_joules.0 / 3.6e6, saved * 100.0),
            false => NO_SAVINGS.to_owned(),
        };
        let mut text = format!(
            "energy (modelled): {:.3} kWh, {saved}; {:.1} servers awake in the mean, {} transitions\n",
            total_joules.0 / 3.6e6,
            self.mean_servers_awake,
            self.transitions
        );
        if !self.comparable {
            return text;
        }
        let mut say = |line: Option<String>| line.into_iter().for_each(|line| text += &(line + "\n"));
        let seen = |account: &Savings| account.transitions(speed).map(|seen| format!("  {seen}"));
        let switches = self.switch_joules.0 / 3.6e6;
        say((switches > 0.0).then(|| format!("  of which rack switches: {switches:.3} kWh")));
        say(seen(&self.clock));
        if let Some(own) = self.own_speed.as_ref().filter(|_| speed != 1.0) {
            say(Some(format!("saved at the trace's own speed: {:.1} %", own.saved * 100.0)));
            say(seen(own));
        }
        text
    }
}

/// Sleep at one depth, by the clock of the run. Modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DepthRow {
    pub depth: Depth,
    pub watts: Watts,
    /// From switching on until the server is up.
    pub up_seconds: f64,
    /// Each sleep is a power cycle.
    pub wears: bool,
    pub sleeps: u64,
    /// In the trace's own time.
    pub sleeps_per_server_day: f64,
    /// Server-seconds, without the way down and up.
    pub asleep_seconds: f64,
    pub asleep_joules: Joules,
    /// Of going down and coming up.
    pub transition_joules: Joules,
}

impl DepthRow {
    /// Of these depths, over `server_days`, of all servers together.
    pub(super) fn all(
        depths: Vec<(Depth, DepthModel, Way)>,
        sleep: &Sleep,
        taken: &ModelledEnergy,
        server_days: f64,
    ) -> Vec<DepthRow> {
        let row = |(depth, model, way): (Depth, DepthModel, Way)| {
            let energy = taken.at(depth);
            let cost = match depth {
                Depth::Standby => sleep.standby,
                Depth::Off => sleep.off,
            };
            DepthRow {
                depth,
                watts: model.watts,
                up_seconds: way.up.as_secs_f64(),
                wears: cost.is_some_and(|cost| cost.wears),
                sleeps: energy.downs,
                sleeps_per_server_day: energy.downs as f64 / server_days.max(f64::MIN_POSITIVE),
                asleep_seconds: energy.asleep_seconds,
                asleep_joules: energy.asleep,
                transition_joules: energy.transition,
            }
        };
        depths.into_iter().map(row).collect()
    }

    /// Header of the table of all depths.
    pub const HEADER: [&'static str; 7] = [
        "depth of sleep",
        "watts",
        "up in, s",
        "sleeps",
        "per server and day",
        "asleep, kWh (modelled)",
        "down and up, kWh",
    ];

    /// Its row of that table.
    pub fn cells(&self) -> Vec<String> {
        let name = match self.depth {
            Depth::Standby => "standby",
            Depth::Off => "off",
        };
        vec![
            name.to_owned(),
            format!("{:.1}", self.watts.0),
            format!("{:.0}", self.up_seconds),
            self.sleeps.to_string(),
            format!("{:.2}{}", self.sleeps_per_server_day, if self.wears { "" } else { ", no wear" }),
            format!("{:.3}", self.asleep_joules.0 / 3.6e6),
            format!("{:.3}", self.transition_joules.0 / 3.6e6),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_failures_no_saving_is_printed() {
        let clock = Savings { saved: 0.581, ..Savings::default() };
        let own_speed = Some(Savings { saved: 0.6, ..clock });
        let (switch_joules, transitions, mean_servers_awake) = (Joules(0.0), 4, 5.5);
        let whole =
            Energy { comparable: true, clock, own_speed, switch_joules, transitions, mean_servers_awake };
        let text = whole.text(2000.0);
        assert!(text.contains("saved 58.1 %") && text.contains("own speed: 60.0 %"), "{text}");
        let text = Energy { comparable: false, ..whole }.text(2000.0);
        assert!(text.contains(NO_SAVINGS) && text.contains("5.5 servers awake"), "{text}");
        assert!(!text.contains(" %") && !text.contains("always on"), "{text}");
    }
}
