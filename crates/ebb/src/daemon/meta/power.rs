//! The power of the cluster as its metadata leader sees it: the switch, and what every server draws by the power model.
//!
//! Energy is modelled, never measured. It is added up from heartbeats and from changes of servers' states, and begins
//! when this member becomes leader: it is a figure for people, and no decision depends on it.

use crate::cluster::config::{Config, ConfigError, DepthSection, ServerSection};
use crate::cluster::launch::launch_of;
use crate::error::NodeError;
use ebb_gear::load;
use ebb_meta::{DiskLog, Input, Member, WakePath};
use ebb_power::switch::{Path, Settle};
use ebb_power::{Draw, EnergyMeter, PowerModel, RackSwitches, Switches};
use ebb_types::{
    ClusterPower, ClusterStatus, Depth, EnergyStatus, Joules, LoadCount, Moment, PoolId, RackSwitchStatus,
    ServerEntry, ServerId, ServerMessage, ServerState, ServerStatus, Watts,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub struct Power {
    pub switches: Switches,
    model: PowerModel,
    /// By the power model and `[[power.depths]]`, without servers yet.
    unread: EnergyMeter,
    /// Of sleepers whose depth is not known, and of an oracle's.
    deepest: Depth,
    /// While this member leads.
    energy: Option<Energy>,
}

struct Energy {
    meter: EnergyMeter,
    since: Moment,
    /// By each server's last heartbeat, 0 to 1.
    utilisation: BTreeMap<ServerId, f64>,
    /// Servers that are asleep on record and up all the same.
    up: BTreeSet<ServerId>,
}

/// Servers' requested load in a batch of inputs, each with the time that it is of.
pub type Heard = Vec<(ServerId, LoadCount, Duration)>;

pub fn heard(inputs: &[Input]) -> Heard {
    let load = |input: &Input| match input {
        Input::Server(ServerMessage::Heartbeat { server, vitals, .. }) => {
            Some((*server, vitals.load, Duration::from_millis(vitals.load_millis.into())))
        }
        _ => None,
    };
    inputs.iter().filter_map(load).collect()
}

impl Power {
    pub fn new(config: &Config) -> Result<Power, NodeError> {
        let launch = |section: &ServerSection| {
            launch_of(config, &["server", "--id", &section.id.to_string()], &config.path(&section.data)).ok()
        };
        let switches = config.power_paths(launch)?;
        let model = config.power.model;
        let mut unread = EnergyMeter::new(model, 1.0).map_err(ConfigError::from)?;
        for DepthSection { depth, joules, .. } in &config.power.depths {
            if let Some(joules) = joules {
                unread.set_depth(*depth, model.asleep(*depth).costing(Joules(*joules)));
            }
        }
        Ok(Power { switches, model, unread, deepest: config.deepest(), energy: None })
    }

    /// The ways to wake each server, by their names for the leader. A process is woken by this machine: that needs no
    /// proof.
    pub fn paths(&self) -> ebb_meta::Switches {
        let named = |paths: &[Path]| {
            let mut of_driver = BTreeMap::new();
            let name = |path: &Path| {
                let driver = path.about().driver;
                let nth = of_driver.entry(driver).and_modify(|nth| *nth += 1).or_insert(1);
                let name = if *nth == 1 { driver.to_owned() } else { format!("{driver}-{nth}") };
                let here = driver == "process";
                let settles = path.about().settle.unwrap_or(Settle::MACHINE);
                let patience = (!here).then_some(settles.deadline);
                let (puts_to_sleep, magic) = (path.about().puts_to_sleep, path.about().magic.is_some());
                WakePath { name, reliable: here, patience, puts_to_sleep, magic }
            };
            paths.iter().map(name).collect()
        };
        self.switches.servers().map(|(server, paths)| (server, named(paths))).collect()
    }

    /// The servers' states, or how deep they sleep, may have changed.
    pub fn follow(&mut self, now: Moment, member: &Member<DiskLog>) {
        let energy = self.energy.get_or_insert_with(|| Energy {
            meter: self.unread.clone(),
            since: now,
            utilisation: BTreeMap::new(),
            up: BTreeSet::new(),
        });
        for server in member.state().servers() {
            energy.up.remove(&server.id);
            energy.look(now, server, member, self.deepest);
        }
    }

    /// What servers said of their load.
    pub fn hear(&mut self, now: Moment, member: &Member<DiskLog>, heard: Heard) {
        let state = member.state();
        let Some((energy, params)) = self.energy.as_mut().zip(state.params()) else { return };
        let rates = state.schedule().into();
        // One that stayed up may sleep by now, without having said so.
        let mut changed = std::mem::take(&mut energy.up);
        for (id, count, span) in heard.into_iter().filter(|(.., span)| !span.is_zero()) {
            energy.utilisation.insert(id, load(&count, span, &rates, params.replicas).0);
            changed.insert(id);
        }
        for server in changed.into_iter().filter_map(|id| state.server(id)) {
            energy.look(now, server, member, self.deepest);
        }
    }

    /// Another member leads.
    pub fn forget(&mut self) {
        self.energy = None;
    }

    pub fn fill(&self, now: Moment, status: &mut ClusterStatus) {
        let Some(energy) = &self.energy else { return };
        for server in &mut status.servers {
            let is_known = !matches!(server.state, ServerState::Failed | ServerState::Lost);
            server.modelled_watts = energy.meter.watts(now, server.id).filter(|_| is_known);
            server.transition_modelled_watts = energy.meter.transition(now, server.id).filter(|_| is_known);
        }
        let sum = |servers: &mut dyn Iterator<Item = &ServerStatus>| EnergyStatus {
            modelled_joules: servers
                .filter_map(|s| energy.meter.energy_of(now, s.id))
                .map(|e| e.total())
                .sum(),
            span_millis: now.since(energy.since).as_millis() as u64,
        };
        let mut all = sum(&mut status.servers.iter());
        all.modelled_joules += energy.meter.switch_energy(now);
        status.energy = Some(all);
        status.rack_switches = energy.meter.rack_switches().map(|RackSwitches { racks, asleep, watts }| {
            RackSwitchStatus { racks, asleep, modelled_watts: watts }
        });
        let drawn = status.servers.iter().filter_map(|s| {
            Some(Drawn {
                is_geared: s.pool == PoolId::REPLICATED && !s.logger,
                is_live: s.state.is_live(),
                watts: s.modelled_watts?,
                utilisation: energy.utilisation.get(&s.id).copied().unwrap_or(0.0),
            })
        });
        let drawn: Vec<Drawn> = drawn.collect();
        let switches = status.rack_switches.unwrap_or_default();
        let needed = status.gear.servers_needed;
        status.power = Some(compare(&drawn, needed, switches, &self.model, self.deepest));
        for pool in &mut status.pools {
            pool.energy = Some(sum(&mut status.servers.iter().filter(|s| s.pool == pool.pool.id)));
        }
    }
}

/// A server whose draw the model knows.
struct Drawn {
    is_geared: bool,
    is_live: bool,
    watts: Watts,
    /// 0 to 1; of one that is not live, of no meaning.
    utilisation: f64,
}

/// What these servers and the racks' switches draw, beside what they would. The load of servers that gears concern is
/// spread over those that would be awake.
fn compare(
    drawn: &[Drawn],
    needed: u32,
    switches: RackSwitchStatus,
    model: &PowerModel,
    deepest: Depth,
) -> ClusterPower {
    let geared = || drawn.iter().filter(|one| one.is_geared);
    let others = || drawn.iter().filter(|one| !one.is_geared);
    let all = geared().count() as u32;
    let load: f64 = geared().filter(|one| one.is_live).map(|one| one.utilisation).sum();
    let of_gears = |awake: u32| {
        let each = model.on(load / f64::from(awake.max(1)));
        each * f64::from(awake) + model.asleep(deepest).watts * f64::from(all - awake)
    };
    let now = |ones: &mut dyn Iterator<Item = &Drawn>| ones.map(|one| one.watts).sum::<Watts>();
    let others_awake: Watts = others().map(|one| if one.is_live { one.watts } else { model.idle }).sum();
    ClusterPower {
        modelled_watts: now(&mut drawn.iter()) + switches.modelled_watts,
        always_on_modelled_watts: of_gears(all)
            + others_awake
            + model.rack_switch * f64::from(switches.racks),
        oracle_modelled_watts: of_gears(needed.min(all)) + now(&mut others()) + switches.modelled_watts,
    }
}

impl Energy {
    fn look(&mut self, now: Moment, server: &ServerEntry, member: &Member<DiskLog>, deepest: Depth) {
        let resists = server.state == ServerState::Asleep && member.resists(now, server.id);
        if resists {
            self.up.insert(server.id);
        }
        let depth = member.depth(server.id).unwrap_or(deepest);
        self.set(now, server, (!resists).then_some(depth));
    }

    /// `depth`: of its sleep; `None`: one that is asleep on record is up all the same.
    fn set(&mut self, now: Moment, server: &ServerEntry, depth: Option<Depth>) {
        let utilisation = self.utilisation.get(&server.id).copied().unwrap_or(0.0);
        let draw = match (server.state, depth) {
            (ServerState::Asleep, Some(depth)) => Draw::asleep(depth),
            (ServerState::Awake | ServerState::Draining | ServerState::Asleep, _) => Draw::On { utilisation },
            // What a failed server draws is not known: it counts as idle.
            (ServerState::Waking | ServerState::Failed | ServerState::Lost, _) => {
                Draw::On { utilisation: 0.0 }
            }
        };
        self.meter.set_rack(server.id, server.rack);
        self.meter.set(now, server.id, draw);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{GearGroup, Incarnation, PoolId, RackId, StoreId};

    fn server(state: ServerState) -> ServerEntry {
        ServerEntry {
            id: ServerId(3),
            rack: RackId(0),
            pool: PoolId(1),
            gear_group: GearGroup(0),
            address: String::new(),
            state,
            incarnation: Incarnation(1),
            store: StoreId(1),
        }
    }

    #[test]
    fn energy_follows_a_servers_states_and_load() {
        let model = PowerModel::default();
        let meter = EnergyMeter::new(model, 1.0).unwrap();
        let (utilisation, up) = (BTreeMap::new(), BTreeSet::new());
        let mut energy = Energy { meter, since: Moment::ZERO, utilisation, up };
        let at = |seconds| Moment::ZERO + Duration::from_secs(seconds);
        energy.set(at(0), &server(ServerState::Awake), Some(Depth::Off));
        energy.utilisation.insert(ServerId(3), 1.0);
        energy.set(at(100), &server(ServerState::Draining), Some(Depth::Off));
        energy.set(at(200), &server(ServerState::Asleep), Some(Depth::Off));
        energy.set(at(1000), &server(ServerState::Waking), Some(Depth::Off));
        energy.set(at(1100), &server(ServerState::Failed), Some(Depth::Off));
        energy.set(at(1200), &server(ServerState::Asleep), None);
        assert_eq!(energy.meter.watts(at(1200), ServerId(3)), Some(model.busy), "asleep on record only");
        let energy = energy.meter.energy_of(at(1200), ServerId(3)).unwrap();
        let transitions = model.down.joules + model.up.joules;
        let off = model.off * Duration::from_secs_f64(800.0 - model.down.seconds);
        let idle = model.idle * Duration::from_secs_f64(300.0 - model.up.seconds);
        let busy = model.busy * Duration::from_secs(100);
        let expected: Joules = [transitions, off, idle, busy].into_iter().sum();
        assert!((energy.total().0 - expected.0).abs() < 1e-6, "{energy:?}");
    }

    #[test]
    fn always_on_and_an_oracle_serve_the_same_load() {
        let model = PowerModel { rack_switch: Watts(100.0), ..PowerModel::default() };
        let one = |is_geared, is_live, utilisation| {
            let watts = if is_live { model.on(utilisation) } else { model.standby };
            Drawn { is_geared, is_live, watts, utilisation }
        };
        // Three of four servers of the gears are awake, one of two of a pool.
        let drawn = [
            one(true, true, 0.5),
            one(true, true, 0.5),
            one(true, true, 0.2),
            one(true, false, 0.9),
            one(false, true, 0.4),
            one(false, false, 0.0),
        ];
        let switches = RackSwitchStatus { racks: 3, asleep: 1, modelled_watts: Watts(200.0) };
        let power = compare(&drawn, 2, switches, &model, Depth::Standby);
        let sum = |watts: &[Watts]| watts.iter().copied().sum::<Watts>().0;
        let near =
            |found: Watts, right: f64| assert!((found.0 - right).abs() < 1e-9, "{found} is not {right}");
        let [half, fifth, pool] = [0.5, 0.2, 0.4].map(|utilisation| model.on(utilisation));
        let asleep = model.standby;
        near(power.modelled_watts, sum(&[half, half, fifth, asleep, pool, asleep, Watts(200.0)]));
        let even = model.on(1.2 / 4.0) * 4.0;
        near(power.always_on_modelled_watts, sum(&[even, pool, model.idle, Watts(300.0)]));
        let two = model.on(1.2 / 2.0) * 2.0;
        near(power.oracle_modelled_watts, sum(&[two, asleep * 2.0, pool, asleep, Watts(200.0)]));
        let all = compare(&drawn, 9, switches, &model, Depth::Standby);
        near(all.oracle_modelled_watts, sum(&[even, pool, asleep, Watts(200.0)]));
        let none = compare(&[], 3, RackSwitchStatus::default(), &model, Depth::Off);
        assert_eq!(none, ClusterPower::default());
    }
}
