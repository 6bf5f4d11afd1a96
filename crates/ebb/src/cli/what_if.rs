//! The recorded hours of a cluster under other settings: what its own policy would have done, in the simulator, by its
//! own power model.

use crate::cli::co2::Co2;
use ebb_power::PowerModel;
use ebb_sim::load::{Case, Outcome, Policy, Provision, Series, Setup};
use ebb_types::HourRecord;
use ebb_web::{Recorded, Replayed, WhatIf};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const HOURS_PER_DAY: u32 = 24;
/// Most days by which the forecast is trained before the first that counts.
const TRAIN_DAYS_MOST: u32 = 6;
const JOULES_PER_KWH: f64 = 3.6e6;

/// `power`: asleep as deep as the cluster sleeps is its `standby`. `co2`: of the grid. The text says what is missing.
pub fn replay(
    recorded: &Recorded,
    power: &PowerModel,
    co2: Option<&Co2>,
    wish: WhatIf,
) -> Result<Replayed, String> {
    let Recorded { hours, schedule, replicas } = recorded;
    if schedule.hours_per_day != HOURS_PER_DAY {
        return Err(format!(
            "a day has {} hours here: only days of 24 can be replayed",
            schedule.hours_per_day
        ));
    }
    let series = series(hours);
    let days = series.values.len() as u32 / HOURS_PER_DAY;
    if days == 0 {
        return Err(format!("{} hours are recorded: a day is needed at least", hours.len()));
    }
    let setup = Setup {
        servers: wish.servers,
        replicas: *replicas,
        g_min: wish.g_min,
        train_days: (days / 2).min(TRAIN_DAYS_MOST),
        // Recorded loads are in servers' worth already.
        provision: Provision::PerServer(1.0),
        power: *power,
        wake: Duration::from_secs_f64(power.up.seconds),
        dwell: Duration::from_millis(schedule.dwell_millis).min(HOUR),
        cycles_per_day: wish.cycles_per_day,
        suspend: None,
        short_goal: wish.short_goal,
        rotate_days: schedule.rotate_days,
    };
    let case = Case::new(setup, &series).map_err(|error| error.to_string())?;
    let play = |policy| case.play(policy).map_err(|error| error.to_string());
    let (ebb, line) = play(Policy::Ebb)?;
    let (always_on, _) = play(Policy::AlwaysOn)?;
    let (oracle, _) = play(Policy::ContinuousOracle)?;
    let line = line.expect("the policy has servers");
    let servers_awake: Vec<u32> =
        line.serving.iter().zip(&line.waking).map(|(serving, waking)| serving + waking).collect();
    let kwh = |outcome: &Outcome| outcome.modelled_joules.0 / JOULES_PER_KWH;
    Ok(Replayed {
        hours: case.counted() as u32,
        trained_hours: case.first as u32,
        modelled_kwh: kwh(&ebb),
        always_on_modelled_kwh: kwh(&always_on),
        oracle_modelled_kwh: kwh(&oracle),
        hours_short: ebb.short_time * case.counted() as f64,
        mean_servers_awake: ebb.mean_awake,
        cycles_per_server_per_day: ebb.cycles_per_server_per_day,
        co2_saved_kg: co2.and_then(|co2| {
            let counts = |n: &usize| *n >= case.first && case.loads[*n].is_some();
            let each = (0..servers_awake.len()).filter(counts).map(|n| {
                let hour = hours[0].hour + n as u64;
                let grams = co2.of(hour, schedule.hour_begins(hour))?;
                Some((f64::from(wish.servers.saturating_sub(servers_awake[n])), grams))
            });
            let mean = weighted(&each.collect::<Option<Vec<_>>>()?);
            Some((kwh(&always_on) - kwh(&ebb)) * mean / 1e3)
        }),
        servers_awake,
        loads: case.loads.clone(),
        from_unix_millis: schedule.hour_begins(hours[0].hour),
    })
}

/// The mean of values by their weights; by no weights, the plain one.
fn weighted(values: &[(f64, f64)]) -> f64 {
    let weight: f64 = values.iter().map(|(weight, _)| weight).sum();
    match weight > 0.0 {
        true => values.iter().map(|(of, value)| of * value).sum::<f64>() / weight,
        false => values.iter().map(|(_, value)| value).sum::<f64>() / values.len().max(1) as f64,
    }
}

/// An hour that was not recorded is a gap. Hours that rehearse a day in minutes count as hours. Of those that a clock
/// repeats the first counts.
fn series(hours: &[HourRecord]) -> Series {
    let mut values = Vec::new();
    for hour in hours {
        let at = hour.hour.saturating_sub(hours[0].hour) as usize;
        if at >= values.len() {
            values.resize(at, None);
            values.push(Some(hour.peak_load));
        }
    }
    Series { interval: HOUR, values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Schedule;

    /// Two weeks with a day's swing, of a cluster of 30.
    fn recorded(hours: u64) -> Recorded {
        let load = |hour: u64| 12.0 - 9.0 * ((hour % 24) as f64 / 24.0 * std::f64::consts::TAU).cos();
        let hour = |hour| HourRecord {
            hour: 400_000 + hour,
            peak_load: load(hour),
            terms: None,
            forecast: None,
            gear: 3,
            servers_awake: 30,
            prices: None,
            power_cycles: 0,
        };
        Recorded { hours: (0..hours).map(hour).collect(), schedule: Schedule::default(), replicas: 3 }
    }

    const WISH: WhatIf = WhatIf { servers: 30, g_min: 1, short_goal: 0.01, cycles_per_day: 24.0 };

    fn played(wish: WhatIf) -> Replayed {
        replay(&recorded(14 * 24), &PowerModel::default(), None, wish).unwrap()
    }

    #[test]
    fn the_policy_saves_what_lies_between_nothing_and_the_oracle() {
        let replayed = played(WISH);
        assert_eq!((replayed.hours, replayed.trained_hours), (8 * 24, 6 * 24));
        assert!(replayed.modelled_kwh < replayed.always_on_modelled_kwh * 0.9, "{replayed:?}");
        assert!(replayed.modelled_kwh >= replayed.oracle_modelled_kwh * 0.99, "{replayed:?}");
        assert_eq!((replayed.loads.len(), replayed.servers_awake.len()), (14 * 24, 14 * 24));
    }

    #[test]
    fn each_setting_tells() {
        let as_it_is = played(WISH);
        assert!(played(WhatIf { g_min: 2, ..WISH }).mean_servers_awake > as_it_is.mean_servers_awake);
        assert!(
            played(WhatIf { servers: 60, ..WISH }).always_on_modelled_kwh
                > as_it_is.always_on_modelled_kwh * 1.5
        );
        assert!(played(WhatIf { servers: 15, ..WISH }).hours_short > as_it_is.hours_short + 20.0);
        let worn = played(WhatIf { cycles_per_day: 0.3, ..WISH });
        assert!(worn.cycles_per_server_per_day < as_it_is.cycles_per_server_per_day);
    }

    #[test]
    fn what_cannot_be_replayed_says_why() {
        let refused =
            |recorded: &Recorded, wish| replay(recorded, &PowerModel::default(), None, wish).unwrap_err();
        assert!(refused(&recorded(5), WISH).contains("5 hours are recorded: a day is needed"));
        assert!(refused(&recorded(0), WISH).contains("0 hours"));
        let mut short = recorded(48);
        short.schedule.hours_per_day = 7;
        assert!(refused(&short, WISH).contains("7 hours"));
        let none = refused(&recorded(48), WhatIf { servers: 2, ..WISH });
        assert!(none.contains("at least as many servers as replicas"), "{none}");
        let wild = refused(&recorded(48), WhatIf { short_goal: f64::NAN, ..WISH });
        assert!(!wild.is_empty());
    }

    #[test]
    fn an_hour_that_was_not_recorded_is_a_gap() {
        let mut recorded = recorded(72);
        recorded.hours.remove(30);
        let replayed = replay(&recorded, &PowerModel::default(), None, WISH).unwrap();
        assert_eq!(replayed.loads.iter().filter(|load| load.is_none()).count(), 1);
        assert_eq!(replayed.hours, 72 - 24 - 1);
    }

    #[test]
    fn co2_is_saved_when_servers_sleep() {
        let recorded = recorded(14 * 24);
        let saved = |grams: &dyn Fn(usize) -> f64| {
            let co2 = Co2::Daily(std::array::from_fn(grams));
            replay(&recorded, &PowerModel::default(), Some(&co2), WISH).unwrap()
        };
        let even = saved(&|_| 400.0);
        let kwh = even.always_on_modelled_kwh - even.modelled_kwh;
        assert!((even.co2_saved_kg.unwrap() - kwh * 0.4).abs() < 1e-6, "{even:?}");
        // The first recorded hour, of least load, is the 16th of its day in UTC: around it nearly all sleep, and half a
        // day later nearly none.
        let night = |hour: usize| if (10..22).contains(&hour) { 800.0 } else { 0.0 };
        assert!(saved(&night).co2_saved_kg.unwrap() > even.co2_saved_kg.unwrap() * 1.15);
        assert!(saved(&|hour| 800.0 - night(hour)).co2_saved_kg.unwrap() < even.co2_saved_kg.unwrap() * 0.85);
        let one = Co2::Hourly([(400_000, 100.0)].into());
        let lacking = replay(&recorded, &PowerModel::default(), Some(&one), WISH).unwrap();
        assert_eq!(lacking.co2_saved_kg, None, "what is not in the series is not invented");
        assert_eq!(played(WISH).co2_saved_kg, None);
    }
}
