//! The dry run: what the scheduler would do over the next day, and what that follows from ([`GearPlan`]).

use crate::controller::admin::servers_of;
use crate::controller::gears::policy;
use crate::controller::leading::Leading;
use crate::controller::racks::racks_apart;
use crate::{Bootstrap, Command, NewServer, Reply, State, Switches, Timing, WakePath};
use ebb_gear::{Basis, Load, Policy, forecast, gear_by_formula, gear_for};
use ebb_types::{
    GearPlan, GearSteps, HourRecord, MeasuredLoad, Moment, PlannedHour, Schedule, ServerEntry, ServerId,
};
use std::time::Duration;

/// The plan of a cluster that is founded so, after hours with these peaks, oldest first. No cluster is asked: every
/// server may sleep, and nothing is known of wake-ups. The error says why nothing can be planned.
pub fn plan_after(bootstrap: Bootstrap, timing: Timing, peaks: &[(u64, f64)]) -> Result<GearPlan, String> {
    let last = peaks.last().map(|(hour, _)| *hour).ok_or("no hour has a load")?;
    let reliable = |server: &NewServer| (server.id, vec![WakePath::switch("assumed", true)]);
    let switches: Switches = bootstrap.servers.iter().map(reliable).collect();
    let mut state = State::default();
    if let Reply::Refused(why) = state.apply(&Command::Init(bootstrap)) {
        return Err(why);
    }
    let servers_awake = state.geared().count() as u32;
    for (hour, peak_load) in peaks.iter().copied() {
        // All were awake, as far as anybody knows.
        let gear = state.params().map_or(1, |params| params.replicas);
        let record = HourRecord { hour, peak_load, gear, servers_awake, ..HourRecord::default() };
        state.apply(&Command::RecordHour(record));
    }
    // For the rest of its first hour a leader keeps awake what it finds, so it takes over in the last one.
    let (begins, hour) = (state.schedule().hour_begins(last), state.schedule().hour_millis);
    let mut leading = Leading::new(timing, switches, Moment::ZERO, begins);
    leading.gears.follow(Moment::ZERO, &state, Moment::ZERO, begins);
    let next = Moment::ZERO + Duration::from_millis(hour);
    leading.gears.see(next, []);
    leading.dry_run(next, &state)
}

impl Leading {
    pub(crate) fn dry_run(&self, now: Moment, state: &State) -> Result<GearPlan, String> {
        let schedule = *state.schedule();
        let policy = policy(&schedule, state);
        let lowest_gear = match schedule.steps {
            GearSteps::Servers => schedule.g_min,
            GearSteps::Groups => policy.lowest_gear(),
        };
        let hours = self.planned_hours(now, state, &policy, lowest_gear)?;
        let turn_ends = hours.first().and_then(|hour| turn_ends(hour.hour, &schedule));
        Ok(GearPlan {
            load_now: self.gears.terms().map(MeasuredLoad::from),
            schedule,
            servers: policy.servers(),
            replicas: policy.replicas(),
            lowest_gear,
            hours_recorded: state.hours().count() as u32,
            dwell_millis: policy.dwell.as_millis() as u64,
            leads: self.gears.leads(),
            turn_ends_unix_millis: turn_ends.map(|hour| schedule.hour_begins(hour)),
            hours,
        })
    }

    /// Whether the load is in a trough. What is wanted awake says what the load is and what it is about to be. Without
    /// gears every hour is like any other.
    pub(crate) fn is_in_trough(&self, now: Moment, state: &State) -> bool {
        let stands = self.gears.shift.is_none() && !self.wants.emergency;
        stands && self.dry_run(now, state).ok().is_none_or(|plan| is_lowest(self.gears.awake().len(), &plan))
    }

    fn planned_hours(
        &self,
        now: Moment,
        state: &State,
        policy: &Policy,
        lowest_gear: u8,
    ) -> Result<Vec<PlannedHour>, String> {
        let schedule = state.schedule();
        let binding: Vec<String> =
            self.hardware_notes(state).into_iter().chain(self.kept_notes(state)).collect();
        let hours = self.gears.plan(now, schedule.hours_per_day)?;
        let mut bands = self.gears.bands().into_iter();
        let planned = hours.into_iter().map(|hour| {
            let mut awake = hour.awake;
            awake.extend(servers_of(state, ServerEntry::is_logger));
            let more = racks_apart(state.replicated(), &awake, state);
            let apart = (!more.is_empty()).then(|| {
                let names: Vec<String> = more.iter().map(ServerId::to_string).collect();
                format!("{} awake too, so that copies stand in different racks", names.join(", "))
            });
            awake.extend(more);
            awake.extend(servers_of(state, |e| !self.power.may_sleep(e.id, state)));
            let turn = policy.awake_groups(lowest_gear, hour.hour);
            let sizes = few_servers(schedule, policy, policy.servers_awake(&turn))
                .into_iter()
                .chain(hour.forecast.and_then(|load| small_groups(schedule, policy, load)));
            let notes: Vec<String> = sizes.chain(binding.iter().cloned()).chain(apart).collect();
            let (days, mean_peak) = match forecast(&self.gears.history, hour.hour, schedule.hours_per_day) {
                Some(mean) => match mean.basis {
                    Basis::Days(days) => (days, Some(mean.load.0)),
                    Basis::LatestHour => (0, None),
                },
                None => (0, None),
            };
            PlannedHour {
                hour: hour.hour,
                from_unix_millis: schedule.hour_begins(hour.hour),
                last_peak: last_peak(hour.hour, state),
                days,
                mean_peak,
                forecast: hour.forecast.map(|load| load.0),
                band: bands.next(),
                gear_by_formula: hour
                    .forecast
                    .map(|load| gear_by_formula(load, policy.servers(), policy.replicas())),
                gear: hour.gear,
                turn,
                asleep: servers_of(state, |e| !awake.contains(&e.id)).into_iter().collect(),
                awake: awake.into_iter().collect(),
                note: (!notes.is_empty()).then(|| notes.join("; ")),
            }
        });
        Ok(planned.collect())
    }
}

/// Whether no hour of the plan has fewer servers awake.
fn is_lowest(servers: usize, plan: &GearPlan) -> bool {
    plan.hours.iter().all(|hour| servers <= hour.awake.len())
}

/// What is said where not the lowest gear, but the copies of a write need so many servers. `turn`: those of the gear
/// groups whose turn it is.
fn few_servers(schedule: &Schedule, policy: &Policy, turn: u32) -> Option<String> {
    let (r, g_min) = (policy.replicas(), schedule.g_min);
    let few = match schedule.steps {
        GearSteps::Servers => turn,
        GearSteps::Groups => policy.fewest_awake(g_min),
    };
    (few < u32::from(r)).then(|| {
        format!(
            "not more can sleep: {r} copies of every write need {r} awake servers, and the gear groups of gear {g_min} have \
             {few}"
        )
    })
}

/// What is said where the formula's gear would have too few servers.
fn small_groups(schedule: &Schedule, policy: &Policy, load: Load) -> Option<String> {
    let least = gear_for(load, policy.servers(), policy.replicas(), policy.lowest_gear());
    let small = schedule.steps == GearSteps::Groups && policy.gear_for(load) > least;
    small.then(|| {
        let few = policy.fewest_awake(least);
        format!("gear groups differ in size: those of gear {least} can have only {few} servers, too few for the load")
    })
}

/// The newest recorded hour before this one that is the same of its day.
fn last_peak(hour: u64, state: &State) -> Option<MeasuredLoad> {
    let day = u64::from(state.schedule().hours_per_day.max(1));
    let alike = |past: &&HourRecord| past.hour < hour && past.hour % day == hour % day;
    state.hours().rev().find(alike).map(|past| MeasuredLoad::new(past.peak_load, past.terms))
}

/// The next hour from which on other gear groups are those that never sleep.
fn turn_ends(hour: u64, schedule: &Schedule) -> Option<u64> {
    let turn = u64::from(schedule.hours_per_day) * u64::from(schedule.rotate_days);
    Some((hour.checked_div(turn)? + 1) * turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_lasts_as_many_days_as_are_set_or_for_ever() {
        let ends = |hour, rotate_days| turn_ends(hour, &Schedule { rotate_days, ..Schedule::default() });
        assert_eq!([0, 167, 168].map(|hour| ends(hour, 7)), [Some(168), Some(168), Some(336)]);
        assert_eq!(ends(5, 0), None);
    }

    #[test]
    fn a_trough_has_the_fewest_servers_of_the_coming_day() {
        let hour = |gear: u16| PlannedHour {
            gear: gear as u8,
            awake: (0..gear * 3).map(ServerId).collect(),
            ..PlannedHour::default()
        };
        let of = |gears: &[u16]| GearPlan {
            hours: gears.iter().map(|gear| hour(*gear)).collect(),
            ..GearPlan::default()
        };
        let day = of(&[3, 2, 3]);
        assert!(is_lowest(6, &day));
        assert!(is_lowest(3, &day), "an administrator set it");
        assert!(!is_lowest(9, &day) && !is_lowest(7, &day));
        assert!(is_lowest(9, &of(&[3, 3])), "all hours are alike");
    }
}
