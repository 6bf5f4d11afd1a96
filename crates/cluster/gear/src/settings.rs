//! The operator's settings as the deciders take them: the one conversion that the cluster, the simulators and the
//! rehearsals use.
//!
//! Times that belong to a day shrink with it, so that a day can be rehearsed in minutes with one setting, the hour:
//! dwell and lead time last at most an hour, and a transition weighs as much of a rehearsed day as of a real one.

use crate::fleet::{DepthSpec, FleetPolicy};
use crate::schedule::{servers_for, sizes_in_turn};
use crate::{GearError, Load, Policy, ServerRates, floor_servers};
use ebb_types::{Depth, GearSteps, GearWish, Joules, Schedule, Watts};
use std::time::Duration;

const DAY: f64 = 86_400.0;

/// One depth of sleep, as configured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthCost {
    pub watts: Watts,
    /// Of going down and coming up together.
    pub joules: Joules,
    /// From the order to wake until the server carries load, without its catch-up; `None`: the schedule's lead time.
    pub wake: Option<Duration>,
    /// It counts as a power cycle.
    pub wears: bool,
}

/// What sleep saves, costs and wears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sleep {
    /// Draw of a server that is awake and does nothing.
    pub idle: Watts,
    /// At least one of the two.
    pub standby: Option<DepthCost>,
    pub off: Option<DepthCost>,
    /// Power cycles allowed per server and day, on average.
    pub cycles_per_day: f64,
}

/// A measured storage node in standby [ECS² Tables I and VI]; one cycle an hour is negligible wear.
impl Default for Sleep {
    fn default() -> Sleep {
        let standby = DepthCost { watts: Watts(5.4), joules: Joules(1839.0), wake: None, wears: true };
        Sleep { idle: Watts(61.8), standby: Some(standby), off: None, cycles_per_day: 24.0 }
    }
}

impl Sleep {
    /// A sleep so deep is a power cycle; one of a depth without costs counts as one.
    pub fn wears(&self, depth: Depth) -> bool {
        self.depths().find(|(of, _)| *of == depth).is_none_or(|(_, cost)| cost.wears)
    }

    fn depths(&self) -> impl Iterator<Item = (Depth, DepthCost)> {
        let both = [(Depth::Standby, self.standby), (Depth::Off, self.off)];
        both.into_iter().filter_map(|(depth, cost)| Some((depth, cost?)))
    }
}

impl Policy {
    pub fn of(schedule: &Schedule, group_sizes: Vec<u32>) -> Policy {
        let hour = Duration::from_millis(schedule.hour_millis);
        Policy {
            group_sizes,
            g_min: schedule.g_min,
            rates: ServerRates::from(schedule),
            hour,
            hours_per_day: schedule.hours_per_day,
            dwell: Duration::from_millis(schedule.dwell_millis).min(hour),
            lead: Duration::from_millis(schedule.lead_millis).min(hour),
            rotate_days: schedule.rotate_days,
        }
    }

    /// Fewest servers that carry the load, and never fewer than the lowest gear keeps awake when the smallest gear
    /// groups take their turn: those of an oracle that wakes single servers.
    pub fn servers_needed(&self, load: Load) -> u32 {
        let floor = floor_servers(self.fewest_awake(self.g_min), self.replicas());
        servers_for(load, self.servers()).max(floor).min(self.servers())
    }

    /// The least number of servers that can be held, whichever gear groups' turn it is: those of the largest ones never
    /// sleep in theirs.
    fn least_held(&self) -> u32 {
        let base = sizes_in_turn(self.g_min, &self.group_sizes, self.rotate_days).max();
        floor_servers(base.unwrap_or(0), self.replicas())
    }
}

impl FleetPolicy {
    pub fn of(schedule: &Schedule, replicas: u8, sleep: &Sleep) -> FleetPolicy {
        let hour = Duration::from_millis(schedule.hour_millis);
        let pace = hour.as_secs_f64() * f64::from(schedule.hours_per_day) / DAY;
        let spec = |(depth, cost): (Depth, DepthCost)| DepthSpec {
            depth,
            watts: cost.watts,
            joules: Joules(cost.joules.0 * pace),
            wake: cost.wake.unwrap_or(Duration::from_millis(schedule.lead_millis)).min(hour),
            wears: cost.wears,
        };
        FleetPolicy {
            replicas,
            g_min: schedule.g_min,
            hour,
            hours_per_day: schedule.hours_per_day,
            idle: sleep.idle,
            depths: sleep.depths().map(spec).collect(),
            dwell: Duration::from_millis(schedule.dwell_millis).min(hour),
            cycles_per_day: sleep.cycles_per_day,
            short_goal: schedule.short_goal,
            rotate_days: schedule.rotate_days,
        }
    }
}

/// Why an administrator's wish is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WishError {
    #[error("{why}; set a gear from {}/{} on{}", why.lowest, why.highest, or_servers(*least))]
    Gear {
        why: GearError,
        /// The least number of servers that can be set instead; `None`: only gears can.
        least: Option<u32>,
    },
    #[error(
        "{asked} servers is not possible: this cluster keeps {lowest} to {highest} awake (g_min is {g_min}, and r copies of every \
         write need r awake servers)"
    )]
    Servers { asked: u32, lowest: u32, highest: u32, g_min: u8 },
    #[error(
        "{asked} servers is not possible: this cluster shifts whole gears (scheduler.steps is \"groups\"); set a gear, 1/{replicas} to \
         {replicas}/{replicas}"
    )]
    WholeGears { asked: u32, replicas: u8 },
}

fn or_servers(least: Option<u32>) -> String {
    least.map_or(String::new(), |least| format!(", or a number of servers from {least} on"))
}

/// Whether the cluster may keep awake what is wished for.
pub fn check_wish(wish: GearWish, steps: GearSteps, policy: &Policy) -> Result<(), WishError> {
    match (wish, steps) {
        (GearWish::Gear(gear), steps) => {
            let least = (steps == GearSteps::Servers).then(|| policy.least_held());
            policy.check_gear(gear).map_err(|why| WishError::Gear { why, least })
        }
        (GearWish::Servers(asked), GearSteps::Groups) => {
            Err(WishError::WholeGears { asked, replicas: policy.replicas() })
        }
        (GearWish::Servers(asked), GearSteps::Servers) => {
            let (lowest, highest) = (policy.least_held(), policy.servers());
            let possible = (lowest..=highest).contains(&asked);
            possible.then_some(()).ok_or(WishError::Servers { asked, lowest, highest, g_min: policy.g_min })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nine() -> Policy {
        Policy::of(&Schedule::default(), vec![3, 3, 3])
    }

    #[test]
    fn a_wish_within_bounds_is_granted_and_any_other_states_the_bounds() {
        let check = |wish, steps| check_wish(wish, steps, &nine()).map_err(|e| e.to_string());
        for servers in 3..=9 {
            assert_eq!(check(GearWish::Servers(servers), GearSteps::Servers), Ok(()));
        }
        for servers in [0, 2, 10] {
            let why = check(GearWish::Servers(servers), GearSteps::Servers).unwrap_err();
            assert!(why.contains("keeps 3 to 9 awake"), "{why}");
        }
        for steps in [GearSteps::Servers, GearSteps::Groups] {
            assert_eq!(check(GearWish::Gear(2), steps), Ok(()));
            assert!(check(GearWish::Gear(4), steps).unwrap_err().contains("gears 1 to 3"));
        }
        let why = check(GearWish::Servers(5), GearSteps::Groups).unwrap_err();
        assert!(why.contains("1/3 to 3/3"), "{why}");
        let uneven = Policy { group_sizes: vec![1, 4, 4], ..nine() };
        let refused = |steps| check_wish(GearWish::Gear(1), steps, &uneven).unwrap_err().to_string();
        let why = "gear 1 is not possible: this cluster runs in gears 2 to 3 (g_min is 1, and r copies of every write need r \
                   awake servers; the gear groups of gear 1 can have only 1); set a gear from 2/3 on";
        assert_eq!(refused(GearSteps::Groups), why);
        assert_eq!(refused(GearSteps::Servers), format!("{why}, or a number of servers from 4 on"));
        // Without turns, the larger gear groups may sleep at any time.
        let uneven = Policy { rotate_days: 0, ..uneven };
        assert_eq!(check_wish(GearWish::Servers(3), GearSteps::Servers, &uneven), Ok(()));
        let safe = Policy { g_min: 2, group_sizes: vec![4, 3, 3], ..nine() };
        assert!(matches!(
            check_wish(GearWish::Servers(6), GearSteps::Servers, &safe),
            Err(WishError::Servers { lowest: 7, highest: 10, .. })
        ));
    }

    #[test]
    fn an_oracle_has_the_fewest_servers_that_carry_the_load_and_gears_allow() {
        let needed = |policy: &Policy, load| policy.servers_needed(Load(load));
        let found = [0.0, 3.0, 3.01, 8.5, 20.0].map(|load| needed(&nine(), load));
        assert_eq!(found, [3, 3, 4, 9, 9]);
        assert_eq!(needed(&nine(), 0.1 * 70.0), 7, "a rounding error costs no server");
        let safe = Policy { g_min: 2, group_sizes: vec![4, 3, 3], ..nine() };
        assert_eq!((needed(&safe, 0.5), needed(&safe, 7.5)), (6, 8), "6 in one turn of three");
    }

    #[test]
    fn a_rehearsed_day_weighs_its_transitions_like_a_real_one() {
        let cost = DepthCost { watts: Watts(5.0), joules: Joules(2000.0), wake: None, wears: true };
        let sleep = Sleep { idle: Watts(60.0), standby: None, off: Some(cost), cycles_per_day: 2.0 };
        let real = FleetPolicy::of(&Schedule::default(), 3, &sleep);
        assert_eq!((real.depths[0].joules, real.depths[0].wake), (Joules(2000.0), Duration::from_secs(60)));
        let short = Schedule { hour_millis: 1800, ..Schedule::default() };
        let rehearsed = FleetPolicy::of(&short, 3, &sleep);
        assert_eq!(rehearsed.depths[0].joules, Joules(1.0));
        let hour = Duration::from_millis(1800);
        assert_eq!((rehearsed.dwell, rehearsed.depths[0].wake), (hour, hour), "at most an hour");
    }
}
