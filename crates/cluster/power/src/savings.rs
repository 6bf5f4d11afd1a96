//! What sleep saves over the time of a trace, and what transitions take of it: one definition for simulated clusters
//! and real ones.
//!
//! A trace that is played N times as fast shortens every state and no transition: by the clock of such a run, putting a
//! server to sleep and waking it costs N times its share of the energy, and what a sleep saves goes into transitions.
//! Dividing their joules by N instead would invent a machine that does not exist. So there are two accounts of one run,
//! and both are [`crate::EnergyMeter`]'s:
//!
//! - **By the clock**, with a meter of speed 1: what the machines would draw if they were worked like that.
//! - **At the trace's own speed**, with a meter of the run's speed: every state lasts N times as long, every transition
//!   costs its joules and takes its seconds once. What is left of the time of a transition is spent in the state that
//!   it leads to: a server on its way up is charged for being on. So the time that wakes and sleeps take in a run makes
//!   this figure smaller, never larger.

use crate::ModelledEnergy;
use ebb_types::Joules;
use serde::Serialize;

/// From this share on, transitions are spoken of: below, they change no decision.
const VISIBLE: f64 = 0.05;

/// An account of a run. Modelled, never measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Savings {
    pub total_joules: Joules,
    /// Of the same work on servers that never sleep.
    pub always_on_joules: Joules,
    /// Share of the always-on energy.
    pub saved: f64,
    /// Going down and coming up; part of the total.
    pub transition_joules: Joules,
    /// What transitions cost, as a share of what sleep would save without them; above 1, sleep costs more than it
    /// saves. `None`: nothing slept.
    pub transition_share: Option<f64>,
    /// How many times its real share of the energy a transition costs.
    pub transition_weight: f64,
}

impl Savings {
    pub fn new(energy: &ModelledEnergy, always_on: Joules, transition_weight: f64) -> Savings {
        let (total, transition) = (energy.total(), energy.transition());
        let gross = always_on - (total - transition);
        Savings {
            total_joules: total,
            always_on_joules: always_on,
            saved: if always_on.0 > 0.0 { 1.0 - total.0 / always_on.0 } else { 0.0 },
            transition_joules: transition,
            transition_share: (transition.0 > 0.0 && gross.0 > 0.0).then(|| transition.0 / gross.0),
            transition_weight,
        }
    }

    /// What transitions take of it, in a run at this speed, and how the speed distorts them; `None`: too little to
    /// speak of.
    pub fn transitions(&self, speed: f64) -> Option<String> {
        let share = self.transition_share.filter(|share| *share >= VISIBLE || speed != 1.0)?;
        let (kwh, gross) = (self.transition_joules.0 / 3.6e6, self.transition_joules.0 / share / 3.6e6);
        let share = share * 100.0;
        let mut text = format!(
            "transitions cost {kwh:.3} kWh, {share:.1} % of the {gross:.3} kWh that sleep saves without them"
        );
        if self.transition_weight != 1.0 {
            text += &format!(
                "; at this speed a transition costs {} times its real share",
                self.transition_weight
            );
        } else if speed != 1.0 {
            text += &format!("; at this speed a transition lasts {speed} times its real share");
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Draw, EnergyMeter, PowerModel};
    use ebb_types::{Moment, ServerId};
    use std::time::Duration;

    /// A server that sleeps for half of a day of the trace, played at this speed: by the clock, and at the trace's own
    /// speed.
    fn day(speed: f64) -> [Savings; 2] {
        [(1.0, 1.0), (speed, speed)].map(|(of_meter, times)| {
            let mut meter = EnergyMeter::new(PowerModel::default(), of_meter).unwrap();
            let at = |seconds: f64| Moment::ZERO + Duration::from_secs_f64(seconds / speed);
            for (second, draw) in [
                (0.0, Draw::On { utilisation: 0.0 }),
                (20_000.0, Draw::Standby),
                (63_200.0, Draw::On { utilisation: 0.0 }),
            ] {
                meter.set(at(second), ServerId(1), draw);
            }
            let energy = meter.energy(at(86_400.0));
            let always_on = Joules(61.8 * 86_400.0 / speed * times);
            Savings::new(&energy, always_on, speed / times)
        })
    }

    #[test]
    fn at_the_traces_own_speed_a_day_saves_the_same_however_fast_it_is_played() {
        let [real, same] = day(1.0);
        assert_eq!(real, same);
        assert!((real.saved - 0.4561).abs() < 0.0001, "{real:?}");
        let [clock, own] = day(1000.0);
        assert!((own.saved - real.saved).abs() < 1e-9, "{own:?} against {real:?}");
        assert_eq!(own.transition_joules, Joules(1839.0));
        assert!((own.transition_share.unwrap() - real.transition_share.unwrap()).abs() < 1e-9);
        // By the clock the same two transitions weigh a thousand times as much.
        assert_eq!((clock.transition_joules, clock.transition_weight), (Joules(1839.0), 1000.0));
        assert!(clock.saved < own.saved - 0.1 && clock.transition_share.unwrap() > 0.5, "{clock:?}");
    }

    #[test]
    fn transitions_are_spoken_of_where_they_can_be_seen_or_the_speed_distorts_them() {
        assert_eq!(day(1.0)[0].transitions(1.0), None, "0.08 % of what sleep saves");
        let [clock, own] = day(1000.0);
        let said = clock.transitions(1000.0).unwrap();
        assert!(said.contains("costs 1000 times its real share"), "{said}");
        let said = own.transitions(1000.0).unwrap();
        assert!(said.contains("0.1 % of") && said.contains("lasts 1000 times"), "{said}");
        let seen = Savings { transition_share: Some(0.25), ..own };
        assert!(seen.transitions(1.0).unwrap().contains("25.0 %"));
        assert!(!seen.transitions(1.0).unwrap().contains("speed"));
        let awake =
            Savings::new(&ModelledEnergy { on: Joules(10.0), ..Default::default() }, Joules(10.0), 1000.0);
        assert_eq!((awake.saved, awake.transition_share, awake.transitions(1000.0)), (0.0, None, None));
    }
}
