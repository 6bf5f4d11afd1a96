//! The bound for every policy, even one that knows the future: how many servers can sleep, given a limit on the share
//! of short time and on power cycles.
//!
//! For any price of a short step and any price of a power cycle, the cheapest timeline is found exactly by dynamic
//! programming over the number of awake servers. By weak duality, a policy that respects both limits costs at least
//! that much minus the value of the limits: each pair of prices gives a valid bound, and the best one is used.

use super::Case;
use ebb_gear::floor_servers;

/// Most servers above the floor: search time is proportional to it.
const MOST_LEVELS: u32 = 1000;
/// Prices of a power cycle, in seconds of a server awake.
const CYCLE_PRICES: [f64; 9] = [0.0, 900.0, 1800.0, 3600.0, 5400.0, 7200.0, 9000.0, 14_400.0, 28_800.0];
/// Prices of a short step, in steps of all servers awake.
const SHORT_PRICES: [f64; 9] = [0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 20.0, 100.0];

/// Costs of the cheapest timelines, from which the bound for any limits follows.
#[derive(Clone, Debug)]
pub struct Bound {
    servers: f64,
    steps: f64,
    days: f64,
    /// Price of a short step and of a power cycle, and the least total cost, all in server-steps.
    duals: Vec<(f64, f64, f64)>,
}

impl Bound {
    /// Uses the steps of `case` that count. `None`: the cluster is too large to search.
    pub fn new(case: &Case) -> Option<Bound> {
        let servers = case.setup.servers;
        let step = case.step.as_secs_f64();
        // Of the smallest gear group.
        let floor = floor_servers(servers / u32::from(case.setup.replicas), case.setup.replicas);
        if servers - floor > MOST_LEVELS {
            return None;
        }
        let levels: Vec<f64> = (floor..=servers).map(f64::from).collect();
        let servers = f64::from(servers);
        let loads: Vec<f64> =
            case.loads[case.first..].iter().flatten().map(|load| load.min(servers)).collect();
        let mut duals = Vec::new();
        for cycle in CYCLE_PRICES {
            for short in SHORT_PRICES {
                let (short, cycle) = (short * servers, cycle / step);
                duals.push((short, cycle, cheapest(&loads, &levels, short, cycle)));
            }
        }
        let steps = loads.len() as f64;
        Some(Bound { servers, steps, days: steps * step / 86_400.0, duals })
    }

    /// The largest mean share of sleeping servers with at most `short_time` of the time short and this many power
    /// cycles per server and day.
    pub fn asleep(&self, short_time: f64, cycles_per_server_per_day: f64) -> f64 {
        let short = short_time * self.steps;
        let cycles = cycles_per_server_per_day * self.servers * self.days;
        let least = |(short_price, cycle_price, cost): &(f64, f64, f64)| {
            cost - short_price * short - cycle_price * cycles
        };
        let awake = self.duals.iter().map(least).fold(0.0, f64::max);
        1.0 - awake / (self.servers * self.steps).max(1.0)
    }
}

/// Least cost of server-steps awake, short steps and wake-ups. Any number of servers may be awake at the start for
/// free.
fn cheapest(loads: &[f64], levels: &[f64], short: f64, cycle: f64) -> f64 {
    let mut cost = vec![0.0; levels.len()];
    for load in loads {
        // Going up costs one power cycle per server, going down is free.
        let mut up = f64::INFINITY;
        for (level, cost) in levels.iter().zip(&mut cost) {
            up = up.min(*cost - cycle * level);
            *cost = cost.min(up + cycle * level);
        }
        let mut down = f64::INFINITY;
        for (level, cost) in levels.iter().zip(&mut cost).rev() {
            down = down.min(*cost);
            *cost = down + level + if load * (1.0 - 1e-9) > *level { short } else { 0.0 };
        }
    }
    cost.into_iter().fold(f64::INFINITY, f64::min)
}
