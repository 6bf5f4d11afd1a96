//! Server power by state: watts while it is on, in standby or off, seconds and joules of each transition.
//!
//! The defaults are a measured storage node [ECS² Tables I and VI]: 61.8 W idle, 70.8 W at 10 MB/s and 75.6 W
//! at 80 MB/s, 5.4 W in standby, 13 s and 1270 J to come up, 7 s and 569 J to go down. Between the three
//! points of load the model is linear.
//!
//! A rack's switch draws `rack_switch` as long as any of the rack's servers is on or about to be, and nothing while all
//! sleep [Sierra §3.3]. It is the cluster's draw, not a server's: a server's energy does not contain it. Zero: switches
//! are not modelled.
//!
//! A transition costs its whole energy however fast the modelled process goes up or down in reality; it cannot be
//! aborted. The caller provides the clock; `speed` is the number of modelled seconds per second of it, so that a day
//! can be rehearsed in minutes.

use ebb_types::{Depth, Joules, Moment, RackId, ServerId, Watts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Going up or down.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transition {
    pub seconds: f64,
    pub joules: Joules,
}

/// A server's power by state. Read from configuration: call [`PowerModel::check`] before use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PowerModel {
    /// On, utilisation 0.
    pub idle: Watts,
    /// On, utilisation `light_at`.
    pub light: Watts,
    pub light_at: f64,
    /// On, utilisation 1.
    pub busy: Watts,
    pub standby: Watts,
    pub off: Watts,
    pub up: Transition,
    pub down: Transition,
    /// The switch of a rack of which a server is on; zero: not modelled.
    pub rack_switch: Watts,
}

impl Default for PowerModel {
    fn default() -> PowerModel {
        PowerModel {
            idle: Watts(61.8),
            light: Watts(70.8),
            light_at: 10.0 / 80.0,
            busy: Watts(75.6),
            standby: Watts(5.4),
            off: Watts(0.0),
            up: Transition { seconds: 13.0, joules: Joules(1270.0) },
            down: Transition { seconds: 7.0, joules: Joules(569.0) },
            rack_switch: Watts(0.0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("power model: {name} is {value} and must be a number that is not negative")]
    Value { name: &'static str, value: f64 },
    #[error("power model: light_at is {value} and must lie between 0 and 1, without both")]
    LightAt { value: f64 },
    #[error(
        "power model: at utilisation {utilisation} a server takes {server:.1} W and its disks alone {disks:.1} W: a server's \
         watts contain its disks, so raise them, or use a disk model with less"
    )]
    Disks { utilisation: f64, server: f64, disks: f64 },
    #[error("the speed is {value} and must be a positive number of modelled seconds per second")]
    Speed { value: f64 },
}

impl PowerModel {
    pub fn check(&self) -> Result<(), ModelError> {
        let values = [
            ("idle", self.idle.0),
            ("light", self.light.0),
            ("busy", self.busy.0),
            ("standby", self.standby.0),
            ("off", self.off.0),
            ("up.seconds", self.up.seconds),
            ("up.joules", self.up.joules.0),
            ("down.seconds", self.down.seconds),
            ("down.joules", self.down.joules.0),
            ("rack_switch", self.rack_switch.0),
        ];
        if let Some((name, value)) = values.into_iter().find(|(_, value)| !value.is_finite() || *value < 0.0)
        {
            return Err(ModelError::Value { name, value });
        }
        if !(self.light_at > 0.0 && self.light_at < 1.0) {
            return Err(ModelError::LightAt { value: self.light_at });
        }
        Ok(())
    }

    /// Modelled watts of a server that is on; utilisation is clamped to 0 to 1.
    pub fn on(&self, utilisation: f64) -> Watts {
        let u = if utilisation.is_nan() { 0.0 } else { utilisation.clamp(0.0, 1.0) };
        if u <= self.light_at {
            self.idle + (self.light - self.idle) * (u / self.light_at)
        } else {
            self.light + (self.busy - self.light) * ((u - self.light_at) / (1.0 - self.light_at))
        }
    }

    /// Refuses disks that would take more than the server, whose watts contain them. `idle` and `busy`: all its disks,
    /// at utilisation 0 and 1.
    pub fn check_disks(&self, idle: Watts, busy: Watts) -> Result<(), ModelError> {
        // Between these points both are linear.
        for utilisation in [0.0, self.light_at, 1.0] {
            let (server, disks) = (self.on(utilisation).0, (idle + (busy - idle) * utilisation).0);
            if disks > server {
                return Err(ModelError::Disks { utilisation, server, disks });
            }
        }
        Ok(())
    }

    /// A depth of sleep as this model has it: one pair of transitions for both.
    pub fn asleep(&self, depth: Depth) -> DepthModel {
        let watts = match depth {
            Depth::Standby => self.standby,
            Depth::Off => self.off,
        };
        DepthModel { watts, up: self.up, down: self.down }
    }
}

/// A depth of sleep: what it draws, and what going down to it and coming up from it take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthModel {
    pub watts: Watts,
    pub up: Transition,
    pub down: Transition,
}

impl DepthModel {
    /// Sets what going down and coming up cost together. Their times, and the share of each, stay.
    pub fn costing(self, joules: Joules) -> DepthModel {
        let both = self.joules();
        if both.0 <= 0.0 {
            return self;
        }
        let scaled =
            |of: Transition| Transition { joules: of.joules * (joules.0 / both.0), seconds: of.seconds };
        DepthModel { up: scaled(self.up), down: scaled(self.down), ..self }
    }

    /// Of going down and coming up together.
    pub fn joules(&self) -> Joules {
        self.up.joules + self.down.joules
    }
}

/// The power state that a server is switched to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// Utilisation 0 to 1.
    On {
        utilisation: f64,
    },
    Standby,
    Off,
}

impl Draw {
    pub fn asleep(depth: Depth) -> Draw {
        match depth {
            Depth::Standby => Draw::Standby,
            Depth::Off => Draw::Off,
        }
    }

    fn is_on(self) -> bool {
        self.depth().is_none()
    }

    fn depth(self) -> Option<Depth> {
        match self {
            Draw::On { .. } => None,
            Draw::Standby => Some(Depth::Standby),
            Draw::Off => Some(Depth::Off),
        }
    }
}

/// Energy by use. Modelled, never measured. Seconds are modelled server-seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelledEnergy {
    pub on: Joules,
    /// Of the racks' switches; zero for a single server.
    pub switches: Joules,
    pub on_seconds: f64,
    pub standby: SleepEnergy,
    pub off: SleepEnergy,
}

/// Sleep at one depth, with the way there and back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SleepEnergy {
    pub asleep: Joules,
    pub asleep_seconds: f64,
    pub transition: Joules,
    pub transition_seconds: f64,
    /// How often a server went down to it, and how often one came up from it.
    pub downs: u64,
    pub ups: u64,
}

impl ModelledEnergy {
    pub fn total(&self) -> Joules {
        self.on + self.sleep().asleep + self.transition() + self.switches
    }

    pub fn transition(&self) -> Joules {
        self.sleep().transition
    }

    /// At all depths.
    pub fn sleep(&self) -> SleepEnergy {
        let mut all = self.standby;
        all += self.off;
        all
    }

    pub fn at(&self, depth: Depth) -> SleepEnergy {
        match depth {
            Depth::Standby => self.standby,
            Depth::Off => self.off,
        }
    }

    fn at_mut(&mut self, depth: Depth) -> &mut SleepEnergy {
        match depth {
            Depth::Standby => &mut self.standby,
            Depth::Off => &mut self.off,
        }
    }
}

impl SleepEnergy {
    pub fn transitions(&self) -> u64 {
        self.downs + self.ups
    }
}

impl AddAssign for ModelledEnergy {
    fn add_assign(&mut self, other: ModelledEnergy) {
        self.on += other.on;
        self.switches += other.switches;
        self.on_seconds += other.on_seconds;
        self.standby += other.standby;
        self.off += other.off;
    }
}

impl AddAssign for SleepEnergy {
    fn add_assign(&mut self, other: SleepEnergy) {
        self.asleep += other.asleep;
        self.asleep_seconds += other.asleep_seconds;
        self.transition += other.transition;
        self.transition_seconds += other.transition_seconds;
        self.downs += other.downs;
        self.ups += other.ups;
    }
}

/// Integrates servers' modelled energy from their state changes.
#[derive(Clone, Debug)]
pub struct EnergyMeter {
    model: PowerModel,
    speed: f64,
    depths: BTreeMap<Depth, DepthModel>,
    servers: BTreeMap<ServerId, Account>,
    /// Of servers whose racks are known.
    racks: BTreeMap<ServerId, RackId>,
    switches: BTreeMap<RackId, SwitchAccount>,
}

/// A rack's switch.
#[derive(Clone, Copy, Debug)]
struct SwitchAccount {
    on: bool,
    as_of: Moment,
    /// Modelled seconds that it was on.
    seconds: f64,
}

impl SwitchAccount {
    fn advance(&mut self, now: Moment, speed: f64) {
        let seconds = now.since(self.as_of).as_secs_f64() * speed;
        self.seconds += if self.on { seconds } else { 0.0 };
        self.as_of = self.as_of.max(now);
    }
}

/// The racks' switches at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RackSwitches {
    pub racks: u32,
    /// Those whose servers all sleep.
    pub asleep: u32,
    pub watts: Watts,
}

/// A transition in progress: what is left of it.
#[derive(Clone, Copy, Debug)]
struct Running {
    /// To or from it.
    depth: Depth,
    left: Transition,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    draw: Draw,
    /// What that draws.
    watts: Watts,
    running: Option<Running>,
    as_of: Moment,
    energy: ModelledEnergy,
}

impl Account {
    fn advance(&mut self, now: Moment, speed: f64) {
        let mut seconds = now.since(self.as_of).as_secs_f64() * speed;
        self.as_of = self.as_of.max(now);
        if let Some(Running { depth, left }) = self.running {
            let spent = seconds.min(left.seconds);
            let done = spent >= left.seconds;
            let joules = if done { left.joules } else { left.joules * (spent / left.seconds) };
            let energy = self.energy.at_mut(depth);
            energy.transition += joules;
            energy.transition_seconds += spent;
            let left = Transition { seconds: left.seconds - spent, joules: left.joules - joules };
            self.running = (!done).then_some(Running { depth, left });
            seconds -= spent;
        }
        let joules = Joules(self.watts.0 * seconds);
        let (energy, time) = match self.draw.depth() {
            None => (&mut self.energy.on, &mut self.energy.on_seconds),
            Some(depth) => {
                let SleepEnergy { asleep, asleep_seconds, .. } = self.energy.at_mut(depth);
                (asleep, asleep_seconds)
            }
        };
        *energy += joules;
        *time += seconds;
    }

    fn begin(&mut self, depth: Depth, transition: Transition) {
        // A new command during a transition: the rest of that transition is still spent.
        if let Some(Running { depth, left }) = self.running.take() {
            self.energy.at_mut(depth).transition += left.joules;
        }
        self.running = Some(Running { depth, left: transition });
    }
}

impl EnergyMeter {
    /// `speed`: modelled seconds per second of the caller's clock.
    pub fn new(model: PowerModel, speed: f64) -> Result<EnergyMeter, ModelError> {
        model.check()?;
        if !speed.is_normal() || speed < 0.0 {
            return Err(ModelError::Speed { value: speed });
        }
        let depths = [Depth::Standby, Depth::Off].map(|depth| (depth, model.asleep(depth))).into();
        let (servers, racks, switches) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(EnergyMeter { model, speed, depths, servers, racks, switches })
    }

    pub fn model(&self) -> &PowerModel {
        &self.model
    }

    /// The server stands in this rack, whose switch is modelled with it. To be said before the server's first state.
    pub fn set_rack(&mut self, server: ServerId, rack: RackId) {
        self.racks.insert(server, rack);
    }

    /// From now on sleep of this depth is not what the power model says.
    pub fn set_depth(&mut self, depth: Depth, model: DepthModel) {
        self.depths.insert(depth, model);
    }

    fn draws(&self, draw: Draw) -> Watts {
        match draw {
            Draw::On { utilisation } => self.model.on(utilisation),
            Draw::Standby => self.depths[&Depth::Standby].watts,
            Draw::Off => self.depths[&Depth::Off].watts,
        }
    }

    /// From `now` on the server is in this state, or on its way to it. The first call for a server costs no transition.
    /// Set `On` when the server is switched on, not when it answers.
    pub fn set(&mut self, now: Moment, server: ServerId, draw: Draw) {
        let watts = self.draws(draw);
        let fresh = Account { draw, watts, running: None, as_of: now, energy: ModelledEnergy::default() };
        let known = self.servers.get(&server).map(|account| account.draw);
        let account = self.servers.entry(server).or_insert(fresh);
        account.advance(now, self.speed);
        match (account.draw.depth(), draw.depth()) {
            (None, Some(depth)) => {
                account.begin(depth, self.depths[&depth].down);
                account.energy.at_mut(depth).downs += 1;
            }
            (Some(depth), None) => {
                account.begin(depth, self.depths[&depth].up);
                account.energy.at_mut(depth).ups += 1;
            }
            _ => {}
        }
        (account.draw, account.watts) = (draw, watts);
        if known.is_none_or(|known| known.is_on() != draw.is_on()) {
            self.follow_switch(now, server);
        }
    }

    /// The switch of the server's rack: on with the first server's order to wake, off with the last one's to sleep.
    fn follow_switch(&mut self, now: Moment, server: ServerId) {
        let Some(rack) = self.racks.get(&server) else { return };
        let is_on = |id: &ServerId| self.servers.get(id).is_some_and(|account| account.draw.is_on());
        let on = self.racks.iter().any(|(id, other)| other == rack && is_on(id));
        let fresh = SwitchAccount { on, as_of: now, seconds: 0.0 };
        let switch = self.switches.entry(*rack).or_insert(fresh);
        switch.advance(now, self.speed);
        switch.on = on;
    }

    /// The racks' switches as the servers' last orders leave them; `None`: they are not modelled.
    pub fn rack_switches(&self) -> Option<RackSwitches> {
        (self.model.rack_switch.0 > 0.0 && !self.switches.is_empty()).then(|| {
            let racks = self.switches.len() as u32;
            let on = self.switches.values().filter(|switch| switch.on).count() as u32;
            RackSwitches { racks, asleep: racks - on, watts: self.model.rack_switch * f64::from(on) }
        })
    }

    /// Modelled energy of the racks' switches up to `now`.
    pub fn switch_energy(&self, now: Moment) -> Joules {
        let seconds = self.switches.values().map(|switch| {
            let mut switch = *switch;
            switch.advance(now, self.speed);
            switch.seconds
        });
        Joules(self.model.rack_switch.0 * seconds.sum::<f64>())
    }

    /// Modelled watts at `now`; `None` for a server that was never set.
    pub fn watts(&self, now: Moment, server: ServerId) -> Option<Watts> {
        let account = self.as_of(now, server)?;
        Some(match account.running {
            Some(Running { left, .. }) => Watts(left.joules.0 / left.seconds),
            None => account.watts,
        })
    }

    /// What a server draws now beyond the state that it is on its way to; `None`: it is on no way.
    pub fn transition(&self, now: Moment, server: ServerId) -> Option<Watts> {
        let account = self.as_of(now, server)?;
        account.running.and(self.watts(now, server)).map(|watts| watts - account.watts)
    }

    /// Modelled energy of one server up to `now`; `None` for a server that was never set.
    pub fn energy_of(&self, now: Moment, server: ServerId) -> Option<ModelledEnergy> {
        self.as_of(now, server).map(|account| account.energy)
    }

    /// Modelled energy of all servers, and of the racks' switches, up to `now`.
    pub fn energy(&self, now: Moment) -> ModelledEnergy {
        let mut sum = ModelledEnergy { switches: self.switch_energy(now), ..ModelledEnergy::default() };
        for server in self.servers.keys() {
            sum += self.energy_of(now, *server).unwrap_or_default();
        }
        sum
    }

    fn as_of(&self, now: Moment, server: ServerId) -> Option<Account> {
        let mut account = *self.servers.get(&server)?;
        account.advance(now, self.speed);
        Some(account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const A: ServerId = ServerId(1);
    const B: ServerId = ServerId(2);

    fn at(seconds: f64) -> Moment {
        Moment::ZERO + Duration::from_secs_f64(seconds)
    }

    fn meter(speed: f64) -> EnergyMeter {
        EnergyMeter::new(PowerModel::default(), speed).unwrap()
    }

    fn close(left: Joules, right: f64) {
        assert!((left.0 - right).abs() < 1e-6, "{left:?} is not {right} J");
    }

    #[test]
    fn the_three_measured_points_of_load_are_met() {
        let model = PowerModel::default();
        assert_eq!(model.on(0.0), Watts(61.8));
        assert!((model.on(0.125) - Watts(70.8)).0.abs() < 1e-9);
        assert!((model.on(1.0) - Watts(75.6)).0.abs() < 1e-9);
        assert_eq!(model.on(f64::NAN), model.idle);
        assert_eq!(model.on(7.0), model.on(1.0));
    }

    #[test]
    fn a_night_in_standby_is_added_up_by_hand() {
        let mut meter = meter(1.0);
        meter.set(at(0.0), A, Draw::On { utilisation: 0.0 });
        meter.set(at(100.0), A, Draw::Standby);
        meter.set(at(200.0), A, Draw::On { utilisation: 1.0 });
        let energy = meter.energy_of(at(300.0), A).unwrap();
        close(energy.on, 100.0 * 61.8 + 87.0 * 75.6);
        close(energy.standby.asleep, 93.0 * 5.4);
        close(energy.transition(), 569.0 + 1270.0);
        assert_eq!((energy.standby.downs, energy.standby.ups, energy.off), (1, 1, SleepEnergy::default()));
        close(energy.total(), 100.0 * 61.8 + 87.0 * 75.6 + 93.0 * 5.4 + 569.0 + 1270.0);
        let SleepEnergy { asleep_seconds, transition_seconds, .. } = energy.sleep();
        assert_eq!(energy.on_seconds + asleep_seconds + transition_seconds, 300.0);
    }

    #[test]
    fn each_depth_has_its_own_draw_and_its_own_way_down_and_up() {
        let mut meter = meter(1.0);
        let half = |joules| Transition { seconds: 15.0, joules: Joules(joules) };
        let suspended = DepthModel { watts: Watts(10.0), up: half(900.0), down: half(300.0) };
        meter.set_depth(Depth::Standby, suspended);
        meter.set(at(0.0), A, Draw::On { utilisation: 0.0 });
        for (down, depth) in [(100.0, Depth::Standby), (300.0, Depth::Off), (500.0, Depth::Standby)] {
            meter.set(at(down), A, Draw::asleep(depth));
            assert_eq!(meter.watts(at(down + 50.0), A).unwrap().0, [10.0, 0.0][depth as usize]);
            meter.set(at(down + 100.0), A, Draw::On { utilisation: 0.0 });
        }
        let energy = meter.energy_of(at(700.0), A).unwrap();
        let SleepEnergy { asleep, asleep_seconds, transition, transition_seconds, downs, ups } =
            energy.standby;
        close(asleep, 2.0 * 85.0 * 10.0);
        close(transition, 2.0 * 1200.0);
        assert_eq!((asleep_seconds, transition_seconds, downs, ups), (170.0, 60.0, 2, 2));
        close(energy.off.asleep, 0.0);
        close(energy.off.transition, 1839.0);
        assert_eq!((energy.off.asleep_seconds, energy.off.transitions()), (93.0, 2));
        close(energy.total(), 1700.0 + 2400.0 + 1839.0 + (700.0 - 170.0 - 60.0 - 93.0 - 20.0) * 61.8);
    }

    #[test]
    fn a_depth_that_costs_more_keeps_the_times_and_shares_of_going_down_and_coming_up() {
        let model = PowerModel::default().asleep(Depth::Off);
        let dear = model.costing(Joules(18390.0));
        assert_eq!((dear.up.joules, dear.down.joules), (Joules(12700.0), Joules(5690.0)));
        assert_eq!((dear.up.seconds, dear.down.seconds, dear.watts), (13.0, 7.0, model.watts));
        let free = DepthModel { up: Transition { seconds: 1.0, joules: Joules(0.0) }, ..model };
        let free = DepthModel { down: free.up, ..free };
        assert_eq!(free.costing(Joules(5.0)), free, "free transitions have no shares");
    }

    #[test]
    fn a_transition_costs_all_its_energy_even_when_the_next_command_cuts_in() {
        let mut meter = meter(1.0);
        meter.set(at(0.0), A, Draw::On { utilisation: 0.0 });
        meter.set(at(0.0), A, Draw::Off);
        meter.set(at(1.0), A, Draw::On { utilisation: 0.0 });
        let energy = meter.energy_of(at(14.0), A).unwrap();
        close(energy.transition(), 569.0 + 1270.0);
        close(energy.total(), 569.0 + 1270.0);
    }

    #[test]
    fn watts_during_a_transition_are_its_energy_over_its_time() {
        let mut meter = meter(1.0);
        meter.set(at(0.0), A, Draw::Standby);
        assert_eq!(meter.watts(at(0.0), A), Some(Watts(5.4)));
        meter.set(at(1.0), A, Draw::On { utilisation: 0.0 });
        for second in [1.0, 7.0, 13.5] {
            let watts = meter.watts(at(second), A).unwrap();
            assert!((watts.0 - 1270.0 / 13.0).abs() < 1e-6, "{watts}");
        }
        assert_eq!(meter.watts(at(14.5), A), Some(Watts(61.8)));
        assert_eq!(meter.watts(at(14.5), B), None);
        // The draw without what the way itself takes is that of the state at its end.
        for (second, way) in [(1.0, true), (13.5, true), (14.5, false)] {
            let (all, of_way) = (meter.watts(at(second), A), meter.transition(at(second), A));
            assert_eq!(of_way.is_some(), way, "at {second} s");
            assert!(all.zip(of_way).is_none_or(|(all, of_way)| ((all - of_way).0 - 61.8).abs() < 1e-6));
        }
        assert_eq!(meter.transition(at(14.5), B), None);
    }

    #[test]
    fn a_rehearsal_at_speed_gives_the_energy_of_the_real_day() {
        let run = |speed: f64| {
            let mut meter = meter(speed);
            for server in [A, B] {
                meter.set(at(0.0), server, Draw::On { utilisation: 0.3 });
            }
            meter.set(at(3600.0 / speed), B, Draw::Standby);
            meter.set(at(7200.0 / speed), B, Draw::On { utilisation: 0.1 });
            meter.energy(at(86400.0 / speed)).total()
        };
        assert!((run(1.0).0 - run(2000.0).0).abs() < 1.0, "{} {}", run(1.0), run(2000.0));
    }

    #[test]
    fn a_racks_switch_sleeps_while_all_its_servers_do() {
        let model = PowerModel { rack_switch: Watts(150.0), ..PowerModel::default() };
        let mut meter = EnergyMeter::new(model, 2.0).unwrap();
        let (on, c) = (Draw::On { utilisation: 0.0 }, ServerId(3));
        for (server, rack) in [(A, 1), (B, 1), (c, 2)] {
            meter.set_rack(server, RackId(rack));
            meter.set(at(0.0), server, on);
        }
        meter.set(at(10.0), A, Draw::Standby);
        meter.set(at(15.0), A, on);
        meter.set(at(20.0), A, Draw::Standby);
        let all = RackSwitches { racks: 2, asleep: 0, watts: Watts(300.0) };
        assert_eq!(meter.rack_switches(), Some(all), "one server of the rack is still on");
        meter.set(at(50.0), B, Draw::Off);
        meter.set(at(80.0), B, on);
        let one = RackSwitches { asleep: 1, watts: Watts(150.0), ..all };
        assert_eq!(meter.rack_switches(), Some(all));
        // Rack 1 for 50 s and 20 s, rack 2 for 100 s, at speed 2.
        close(meter.switch_energy(at(100.0)), 150.0 * 2.0 * (50.0 + 20.0 + 100.0));
        close(meter.energy(at(100.0)).switches, 150.0 * 2.0 * 170.0);
        close(meter.energy_of(at(100.0), A).unwrap().switches, 0.0);
        meter.set(at(100.0), c, Draw::Standby);
        assert_eq!(meter.rack_switches(), Some(one));
    }

    #[test]
    fn switches_that_are_not_modelled_draw_nothing_and_are_not_shown() {
        let mut meter = meter(1.0);
        meter.set_rack(A, RackId(1));
        meter.set(at(0.0), A, Draw::On { utilisation: 0.0 });
        assert_eq!((meter.rack_switches(), meter.switch_energy(at(9.0))), (None, Joules(0.0)));
        let bad = PowerModel { rack_switch: Watts(-1.0), ..PowerModel::default() };
        assert_eq!(bad.check(), Err(ModelError::Value { name: "rack_switch", value: -1.0 }));
    }

    #[test]
    fn reading_does_not_change_the_account() {
        let mut meter = meter(1.0);
        meter.set(at(0.0), A, Draw::On { utilisation: 0.0 });
        let first = meter.energy(at(10.0));
        meter.energy(at(500.0));
        assert_eq!(meter.energy(at(10.0)), first);
    }

    #[test]
    fn configuration_is_checked_and_unknown_keys_are_refused() {
        let model: PowerModel =
            toml::from_str("idle = 40.0\nup = { seconds = 90.0, joules = 9000.0 }").unwrap();
        assert_eq!((model.idle, model.up.seconds, model.standby), (Watts(40.0), 90.0, Watts(5.4)));
        assert!(toml::from_str::<PowerModel>("idel = 40.0").unwrap_err().to_string().contains("idel"));
        let bad = PowerModel { standby: Watts(-1.0), ..PowerModel::default() };
        assert_eq!(bad.check(), Err(ModelError::Value { name: "standby", value: -1.0 }));
        let bad = PowerModel { light_at: f64::NAN, ..PowerModel::default() };
        assert!(matches!(bad.check(), Err(ModelError::LightAt { .. })));
        assert!(EnergyMeter::new(PowerModel::default(), 0.0).is_err());
    }

    #[test]
    fn a_servers_watts_contain_its_disks_at_every_load() {
        let model = PowerModel::default();
        assert_eq!(model.check_disks(Watts(12.0), Watts(18.0)), Ok(()));
        assert_eq!(model.check_disks(Watts(61.8), Watts(61.8)), Ok(()));
        let refused = |idle, busy| match model.check_disks(Watts(idle), Watts(busy)) {
            Err(ModelError::Disks { utilisation, .. }) => utilisation,
            other => panic!("{other:?}"),
        };
        assert_eq!([refused(62.0, 62.0), refused(60.0, 76.0)], [0.0, 1.0]);
        // 60 W and an eighth of 90 W are more than 70.8 W.
        assert_eq!(refused(60.0, 150.0), 0.125);
    }
}
