//! Energy of a replay at the trace's own speed ([`ebb_power::Savings`]): as observed, of a cluster that never sleeps,
//! and of an oracle's schedule that knows the peaks.
//!
//! All three come from the same power model and the same load, and count the seconds of the trace, not of the clock: a
//! state that lasted one second at speed 2000 lasted 2000. A transition costs its joules once, whatever the speed. So a
//! wake-up that takes half a second of the clock is charged as 1000 seconds of being on: that is the price of the
//! rehearsal, not of the cluster, and it makes the savings look smaller, never larger.
//!
//! An [`Account`] adds up whatever serves the load, from the states of its servers: a cluster that was observed, the
//! same one simulated, and oracles. So between two of them only what they did makes a difference.

use ebb_gear::{Load, LoadSeries, Policy, oracle};
use ebb_power::{Draw, EnergyMeter, ModelError, ModelledEnergy, PowerModel, Savings};
use ebb_types::{GearGroup, Moment, NO_GEAR, RackId, Schedule, ServerId, ServerState};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A server is switched on or to standby, at a moment of the trace. Ordered by time; every server has one at time zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub at: Duration,
    pub server: ServerId,
    pub on: bool,
}

/// States of servers by the clock, from the start on: the first of each at time zero, then each change.
pub type States = [(Duration, ServerId, ServerState)];

/// Total consumption of the servers, by cause. Seconds are server-seconds of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EnergyFigures {
    pub total_joules: f64,
    pub on_joules: f64,
    pub standby_joules: f64,
    pub transition_joules: f64,
    /// Of the racks' switches, if the power model has them.
    pub switch_joules: f64,
    pub on_seconds: f64,
    pub standby_seconds: f64,
    pub transition_seconds: f64,
    /// Transitions to on and to standby.
    pub transitions: u64,
}

impl From<ModelledEnergy> for EnergyFigures {
    fn from(energy: ModelledEnergy) -> EnergyFigures {
        EnergyFigures {
            total_joules: energy.total().0,
            on_joules: energy.on.0,
            standby_joules: energy.standby.asleep.0,
            transition_joules: energy.transition().0,
            switch_joules: energy.switches.0,
            on_seconds: energy.on_seconds,
            standby_seconds: energy.standby.asleep_seconds,
            transition_seconds: energy.standby.transition_seconds,
            transitions: energy.standby.transitions(),
        }
    }
}

/// Modelled energy over the replayed span. Never measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnergyReport {
    pub cluster: EnergyFigures,
    /// Every server on throughout, under the same load.
    pub always_on: EnergyFigures,
    /// Whole gears from the peak of each hour, known in advance; shifts take no time.
    pub oracle: EnergyFigures,
    /// Absent: the trace was not kept up with. The cluster then carried another load than the other two.
    #[serde(flatten)]
    pub compared: Option<Compared>,
}

/// The three beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Share of `always_on` that the cluster saves, in percent.
    pub saved_percent: f64,
    /// What transitions cost the cluster, of what sleep would save without them. Absent: nothing slept.
    pub transition_percent: Option<f64>,
    pub oracle_saved_percent: f64,
    /// Percentage points by which the cluster's savings fall short of the oracle's.
    pub behind_oracle_points: f64,
    /// The cluster against `always_on`. Its figures are among those above.
    #[serde(skip)]
    pub saves: Savings,
}

impl EnergyReport {
    pub fn new(cluster: ModelledEnergy, always_on: ModelledEnergy, oracle: ModelledEnergy) -> EnergyReport {
        let of = |energy: &ModelledEnergy| Savings::new(energy, always_on.total(), 1.0);
        let (saves, oracle_saves) = (of(&cluster), of(&oracle));
        let [cluster, always_on, oracle] = [cluster, always_on, oracle].map(EnergyFigures::from);
        let (saved_percent, oracle_saved_percent) = (100.0 * saves.saved, 100.0 * oracle_saves.saved);
        let compared = Compared {
            saved_percent,
            transition_percent: saves.transition_share.map(|share| 100.0 * share),
            oracle_saved_percent,
            behind_oracle_points: oracle_saved_percent - saved_percent,
            saves,
        };
        EnergyReport { cluster, always_on, oracle, compared: Some(compared) }
    }
}

/// A server, as far as its energy depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    pub id: ServerId,
    pub rack: RackId,
    /// [`NO_GEAR`]: it takes none of the load, and no oracle lets it sleep.
    pub gear_group: GearGroup,
}

/// What energy is added up by: the load of a trace, and the servers that may serve it.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub power: PowerModel,
    pub load: LoadSeries,
    pub schedule: Schedule,
    pub replicas: u8,
    pub servers: Vec<Member>,
    /// Trace seconds per second of the clock.
    pub speed: f64,
    /// Where it ends, in trace time.
    pub end: Duration,
}

impl Account {
    /// Of servers that were in these states. A failed server still draws power; one that wakes or drains is on.
    pub fn of_states(&self, states: &States) -> Result<ModelledEnergy, ModelError> {
        self.of_changes(&self.changes(states, is_on))
    }

    /// Of one gear for each hour.
    pub fn of_gears(&self, gears: &[u8]) -> Result<ModelledEnergy, ModelError> {
        let servers: Vec<_> = self.servers.iter().map(|server| (server.id, server.gear_group)).collect();
        self.of_changes(&changes_of(gears, self.load.hour, &servers))
    }

    /// The lowest gear for the peak of each hour, known in advance.
    pub fn oracle_gears(&self) -> Vec<u8> {
        oracle(0, &self.load.peaks(), &self.policy()).gears
    }

    /// Of an oracle that wakes single servers: as few as carry the load of each minute, or of each sample if these are
    /// longer. It knows it in advance, and shifts take no time.
    pub fn of_oracle(&self) -> Result<ModelledEnergy, ModelError> {
        let policy = self.policy();
        let samples = (60.0 / self.load.interval.as_secs_f64()).ceil().max(1.0) as usize;
        let peak = |samples: &[Load]| samples.iter().copied().fold(Load::ZERO, Load::max);
        let needed = self.load.samples.chunks(samples).map(|samples| policy.servers_needed(peak(samples)));
        self.of_counts(needed, self.load.interval * samples as u32)
    }

    /// Of the fewest servers that any policy keeps awake, throughout: none saves more, whatever the load.
    pub fn of_fewest(&self) -> Result<ModelledEnergy, ModelError> {
        self.of_counts([self.policy().servers_needed(Load::ZERO)], self.end)
    }

    /// Share of the time in which fewer servers served than the load needed.
    pub fn short(&self, states: &States) -> f64 {
        let (policy, serves) = (self.policy(), self.changes(states, ServerState::is_live));
        let geared: BTreeSet<ServerId> = self.geared().map(|server| server.id).collect();
        let mut short = Duration::ZERO;
        pieces(&self.load, &serves, self.end, |from, to, serving, _| {
            let serving = serving.iter().filter(|(id, serves)| **serves && geared.contains(id)).count();
            if (serving as u32) < policy.servers_needed(self.load.at(from)) {
                short += to - from;
            }
        });
        short.as_secs_f64() / self.end.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn of_changes(&self, changes: &[Change]) -> Result<ModelledEnergy, ModelError> {
        let racks: Vec<_> = self.servers.iter().map(|server| (server.id, server.rack)).collect();
        modelled(&self.power, &self.load, changes, &racks, self.end)
    }

    /// So many servers awake in each step, in the order of their gear groups.
    fn of_counts(
        &self,
        counts: impl IntoIterator<Item = u32>,
        step: Duration,
    ) -> Result<ModelledEnergy, ModelError> {
        let mut line: Vec<&Member> = self.geared().collect();
        line.sort_by_key(|server| (server.gear_group.0, server.id));
        let others = self.servers.iter().filter(|server| server.gear_group == NO_GEAR);
        let others = others.map(|server| Change { at: Duration::ZERO, server: server.id, on: true });
        let steps = (0u32..).zip(counts).flat_map(|(index, count)| {
            let at = step * index;
            (0..).zip(&line).map(move |(place, server)| Change { at, server: server.id, on: place < count })
        });
        self.of_changes(&only_changes(others.chain(steps)))
    }

    /// When `is_so` begins and ceases to hold of servers in these states, in trace time.
    fn changes(&self, states: &States, is_so: impl Fn(ServerState) -> bool) -> Vec<Change> {
        let all = states.iter().map(|&(at, server, state)| (at.mul_f64(self.speed), server, is_so(state)));
        only_changes(all.map(|(at, server, on)| Change { at, server, on }))
    }

    fn geared(&self) -> impl Iterator<Item = &Member> {
        self.servers.iter().filter(|server| server.gear_group != NO_GEAR)
    }

    fn policy(&self) -> Policy {
        let of = |group: u8| self.geared().filter(|server| server.gear_group.0 == group).count() as u32;
        Policy::of(&self.schedule, (0..self.replicas).map(of).collect())
    }
}

fn is_on(state: ServerState) -> bool {
    !matches!(state, ServerState::Asleep | ServerState::Lost)
}

/// Without those after which a server is what it was.
fn only_changes(all: impl Iterator<Item = Change>) -> Vec<Change> {
    let mut known: BTreeMap<ServerId, bool> = BTreeMap::new();
    all.filter(|change| known.insert(change.server, change.on) != Some(change.on)).collect()
}

/// Modelled energy from time zero to `end`. The load is spread evenly over the servers that are on.
pub fn modelled(
    model: &PowerModel,
    load: &LoadSeries,
    changes: &[Change],
    racks: &[(ServerId, RackId)],
    end: Duration,
) -> Result<ModelledEnergy, ModelError> {
    let mut meter = EnergyMeter::new(*model, 1.0)?;
    racks.iter().for_each(|(server, rack)| meter.set_rack(*server, *rack));
    let mut drawn = f64::NAN;
    pieces(load, changes, end, |now, _, on, changed| {
        let awake = on.values().filter(|on| **on).count().max(1);
        let utilisation = load.at(now).0 / awake as f64;
        if changed || utilisation != drawn {
            for (server, on) in on {
                let draw = if *on { Draw::On { utilisation } } else { Draw::Standby };
                meter.set(moment(now), *server, draw);
            }
            drawn = utilisation;
        }
    });
    Ok(meter.energy(moment(end)))
}

/// Calls `piece` for each piece of time in which neither the load nor a server changes: with its begin and end, the
/// servers, and whether any of them has just changed.
fn pieces(
    load: &LoadSeries,
    changes: &[Change],
    end: Duration,
    mut piece: impl FnMut(Duration, Duration, &BTreeMap<ServerId, bool>, bool),
) {
    let mut on: BTreeMap<ServerId, bool> = BTreeMap::new();
    let mut changes = changes.iter().peekable();
    let (mut now, mut sample) = (Duration::ZERO, 0u32);
    while now <= end {
        let mut changed = false;
        while let Some(change) = changes.next_if(|change| change.at <= now) {
            on.insert(change.server, change.on);
            changed = true;
        }
        while load.interval * sample <= now {
            sample += 1;
        }
        let next = load.interval * sample;
        let next = changes.peek().map_or(next, |change| change.at.min(next));
        piece(now, next.min(end), &on, changed);
        now = next;
    }
}

fn moment(at: Duration) -> Moment {
    Moment::ZERO + at
}

/// The changes for one gear per hour; shifts happen at the start of hours. Gear groups are awake in their order;
/// servers of erasure-coded pools, which gears do not concern, always.
pub fn changes_of(gears: &[u8], hour: Duration, servers: &[(ServerId, GearGroup)]) -> Vec<Change> {
    only_changes((0u32..).zip(gears).flat_map(|(index, &gear)| {
        let on = move |group: GearGroup| group == NO_GEAR || group.0 < gear;
        servers.iter().map(move |&(server, group)| Change { at: hour * index, server, on: on(group) })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_gear::rehearsal;
    use ebb_types::{LoadCount, Schedule, Watts};

    const HOUR: Duration = Duration::from_secs(3600);

    /// Four hours at speed 1000; only two small reads.
    fn quiet() -> LoadSeries {
        let read = LoadCount { reads: 1, read_bytes: 512, ..LoadCount::default() };
        let schedule = rehearsal(
            &Schedule { read_iops: 1e12, read_bytes_per_second: 1e18, ..Schedule::default() },
            1000.0,
        );
        LoadSeries::new([(Duration::ZERO, read), (HOUR * 4, read)], 1000.0, &schedule.unwrap(), 3).unwrap()
    }

    fn servers() -> Vec<(ServerId, GearGroup)> {
        (0..9).map(|id| (ServerId(id), GearGroup((id % 3) as u8))).collect()
    }

    fn close(found: f64, right: f64) {
        assert!((found / right - 1.0).abs() < 1e-6, "{found} is not {right}");
    }

    #[test]
    fn a_schedule_is_added_up_by_hand_in_trace_time() {
        let (model, load) = (PowerModel::default(), quiet());
        let always = modelled(&model, &load, &changes_of(&[3], HOUR, &servers()), &[], HOUR * 4).unwrap();
        close(always.total().0, 9.0 * 61.8 * 4.0 * 3600.0);
        assert_eq!(always.standby.transitions(), 0);
        // Hours in gears 1, 1, 2, 1: six servers sleep, three of them wake for an hour.
        let changes = changes_of(&[1, 1, 2, 1], HOUR, &servers());
        let geared = modelled(&model, &load, &changes, &[], HOUR * 4).unwrap();
        assert_eq!(geared.standby.transitions(), 6);
        close(geared.transition().0, 3.0 * (1270.0 + 569.0));
        close(geared.on.0, 61.8 * (3.0 * 4.0 * 3600.0 + 3.0 * (3600.0 - 13.0)));
        close(geared.standby.asleep.0, 5.4 * (3.0 * 4.0 * 3600.0 + 3.0 * (3.0 * 3600.0 - 7.0)));
        let compared = |cluster, oracle| EnergyReport::new(cluster, always, oracle).compared.unwrap();
        let report = compared(always, geared);
        assert_eq!((report.saved_percent, report.transition_percent), (0.0, None));
        close(report.behind_oracle_points, 100.0 * (1.0 - geared.total().0 / always.total().0));
        // Of what three servers save in three hours of their own, and three in four.
        let report = compared(geared, geared);
        let (transitions, saved) = (geared.transition().0, always.total().0 - geared.total().0);
        close(report.transition_percent.unwrap(), 100.0 * transitions / (saved + transitions));
        assert_eq!(report.saves.transitions(1.0), None, "less than can be seen");
        assert!(report.saves.transitions(1000.0).unwrap().contains("lasts 1000 times its real share"));
    }

    #[test]
    fn switches_of_racks_that_sleep_as_a_whole_sleep_too() {
        let (model, load) = (PowerModel { rack_switch: Watts(100.0), ..PowerModel::default() }, quiet());
        // Rack-aligned: a gear group is a rack.
        let racks: Vec<_> =
            servers().into_iter().map(|(server, group)| (server, RackId(group.0.into()))).collect();
        let energy = |gears: &[u8]| {
            modelled(&model, &load, &changes_of(gears, HOUR, &servers()), &racks, HOUR * 4).unwrap().switches
        };
        close(energy(&[3]).0, 3.0 * 100.0 * 4.0 * 3600.0);
        close(energy(&[1, 1, 2, 1]).0, 100.0 * (4.0 + 1.0) * 3600.0);
    }

    #[test]
    fn gears_leave_the_servers_of_pools_on() {
        let with_pool = [servers(), vec![(ServerId(20), NO_GEAR)]].concat();
        let changes = changes_of(&[1, 3], HOUR, &with_pool);
        let of_pool: Vec<&Change> = changes.iter().filter(|change| change.server == ServerId(20)).collect();
        assert_eq!(of_pool, [&Change { at: Duration::ZERO, server: ServerId(20), on: true }]);
    }

    /// Nine servers and a logger, at speed 1000, for four hours of which the second needs five of them.
    fn account() -> Account {
        let (speed, mut load) = (1000.0, quiet());
        for (index, sample) in load.samples.iter_mut().enumerate() {
            let hour = load.interval.mul_f64(index as f64 + 0.5).as_secs() / 3600;
            *sample = ebb_gear::Load(if hour == 1 { 4.5 } else { 0.5 });
        }
        let member = |(id, gear_group)| Member { id, rack: RackId(0), gear_group };
        let servers = servers().into_iter().chain([(ServerId(20), NO_GEAR)]).map(member).collect();
        let (power, schedule) = (PowerModel::default(), Schedule::default());
        Account { power, load, schedule, replicas: 3, servers, speed, end: HOUR * 4 }
    }

    /// By the clock, at speed 1000.
    fn at(hours: f64) -> Duration {
        Duration::from_secs_f64(hours * 3.6)
    }

    #[test]
    fn an_oracle_of_single_servers_wakes_as_few_as_carry_each_minute() {
        let account = account();
        let oracle = account.of_oracle().unwrap();
        // Two of them wake and sleep again; the logger is on.
        assert_eq!(oracle.standby.transitions(), 4);
        close(oracle.on_seconds, 4.0 * 4.0 * 3600.0 + 2.0 * (3600.0 - 13.0));
        let fewest = account.of_fewest().unwrap();
        assert_eq!(fewest.standby.transitions(), 0);
        close(fewest.on_seconds, 4.0 * 4.0 * 3600.0);
        let whole = account.of_gears(&account.oracle_gears()).unwrap();
        close(whole.on_seconds, 4.0 * 4.0 * 3600.0 + 3.0 * (3600.0 - 13.0));
        assert!(fewest.total() < oracle.total() && oracle.total() < whole.total());
    }

    #[test]
    fn time_is_short_while_fewer_serve_than_the_load_needs() {
        use ServerState::{Asleep, Awake, Waking};
        let account = account();
        let first =
            |(id, _): (ServerId, GearGroup)| (Duration::ZERO, id, if id.0 < 3 { Awake } else { Asleep });
        let mut states: Vec<_> =
            servers().into_iter().map(first).chain([(at(0.0), ServerId(20), Awake)]).collect();
        close(account.short(&states), 0.25);
        // One serves from before its hour on, the other from the middle of it; on its way up it does not serve yet.
        states.extend([
            (at(0.5), ServerId(3), Awake),
            (at(0.9), ServerId(4), Waking),
            (at(1.5), ServerId(4), Awake),
        ]);
        close(account.short(&states), 0.125);
        let energy = account.of_states(&states).unwrap();
        close(energy.on_seconds, 3600.0 * (4.0 * 4.0 + 3.5 + 3.1) - 2.0 * 13.0);
    }

    #[test]
    fn load_is_spread_over_the_servers_that_are_on() {
        let (model, mut load) = (PowerModel::default(), quiet());
        for sample in &mut load.samples {
            *sample = ebb_gear::Load(1.5);
        }
        let energy =
            |gear| modelled(&model, &load, &changes_of(&[gear], HOUR, &servers()), &[], HOUR).unwrap();
        close(energy(1).on.0, 3.0 * model.on(0.5).0 * 3600.0);
        close(energy(3).on.0, 9.0 * model.on(1.5 / 9.0).0 * 3600.0);
    }
}
