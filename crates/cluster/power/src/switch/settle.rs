//! Orders, and reads the state back until it is what was ordered: an answer is not a result.
//!
//! Pure but for the driver that it is given; the clock is the caller's.

use super::{Clock, Driver, PowerState, Settle, SwitchError};
use std::time::Duration;

/// An order ends after this many calls in a row without an answer.
const FAILURES: u32 = 3;

/// Calls that the controller did not answer, in a row: controllers lose some.
struct Failures(u32);

impl Failures {
    /// `None`: it did not answer.
    fn forgive<T>(&mut self, answer: Result<T, SwitchError>) -> Result<Option<T>, SwitchError> {
        match answer {
            Ok(answer) => {
                self.0 = 0;
                Ok(Some(answer))
            }
            Err(SwitchError::Unreachable { .. }) if self.0 + 1 < FAILURES => {
                self.0 += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn late(driver: &dyn Driver, order: &'static str, state: PowerState, settle: Settle) -> SwitchError {
    let machine = driver.about().machine.clone();
    match (order, state) {
        ("wake", PowerState::PoweringOff) => SwitchError::GoingDown { machine },
        _ => SwitchError::NoEffect { machine, order, state, seconds: settle.deadline.as_secs() },
    }
}

/// Wakes a server: waits while it goes down, orders, and looks whether it comes up.
pub(super) fn wake(driver: &mut dyn Driver, clock: &mut dyn Clock) -> Result<(), SwitchError> {
    let Some(settle) = driver.about().settle else { return driver.wake(clock) };
    let began = clock.now();
    let (mut unread, mut unheard, mut state) = (Failures(0), Failures(0), PowerState::Unknown);
    let mut ordered: Option<Duration> = None;
    let mut on_since: Option<Duration> = None;
    loop {
        let read = unread.forgive(driver.observe(clock))?;
        state = read.unwrap_or(state);
        let now = clock.now();
        on_since = if state == PowerState::On { on_since.or(Some(now)) } else { None };
        match state {
            PowerState::On if ordered.is_some() => return Ok(()),
            // It may be going down and not say so yet.
            PowerState::On if on_since.is_some_and(|since| now - since >= settle.watch) => return Ok(()),
            PowerState::Off | PowerState::Standby | PowerState::Unknown
                if read.is_some() && ordered.is_none_or(|at| now - at >= settle.patience) =>
            {
                match driver.wake(clock) {
                    Err(SwitchError::GoingDown { .. }) => {}
                    answer => match unheard.forgive(answer)? {
                        Some(()) if state == PowerState::Unknown => return Ok(()),
                        Some(()) => ordered = Some(now),
                        None => {}
                    },
                }
            }
            _ => {}
        }
        if clock.now() - began >= settle.deadline {
            return Err(late(driver, "wake", state, settle));
        }
        if !clock.pause(settle.poll) {
            return Err(SwitchError::Replaced);
        }
    }
}

/// Waits until a server that was told to sleep is down.
pub(super) fn asleep(driver: &mut dyn Driver, clock: &mut dyn Clock) -> Result<(), SwitchError> {
    let Some(settle) = driver.about().settle else { return Ok(()) };
    let began = clock.now();
    let mut failures = Failures(0);
    loop {
        let state = failures.forgive(driver.observe(clock))?;
        match state {
            Some(state) if state.is_down() || state == PowerState::Unknown => return Ok(()),
            _ if clock.now() - began >= settle.deadline => {
                return Err(late(driver, "sleep", state.unwrap_or(PowerState::Unknown), settle));
            }
            _ => {}
        }
        if !clock.pause(settle.poll) {
            return Err(SwitchError::Replaced);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::About;
    use super::super::tests::Virtual;
    use super::*;
    use ebb_types::Depth;
    use std::collections::VecDeque;

    /// Says one state after the other, the last for ever.
    struct Script {
        about: About,
        states: VecDeque<Result<PowerState, ()>>,
        /// How the orders to wake are answered, the last for ever.
        answers: VecDeque<Result<(), ()>>,
        /// When it was ordered to wake.
        orders: Vec<Duration>,
    }

    fn next<T: Clone>(list: &mut VecDeque<T>) -> T {
        if list.len() > 1 { list.pop_front().unwrap() } else { list[0].clone() }
    }

    impl Driver for Script {
        fn about(&self) -> &About {
            &self.about
        }
        fn wake(&mut self, clock: &mut dyn Clock) -> Result<(), SwitchError> {
            self.orders.push(clock.now());
            next(&mut self.answers).map_err(|()| SwitchError::GoingDown { machine: "m".into() })
        }
        fn observe(&mut self, _: &mut dyn Clock) -> Result<PowerState, SwitchError> {
            next(&mut self.states)
                .map_err(|()| SwitchError::Unreachable { machine: "m".into(), why: "lost".into() })
        }
    }

    fn script(states: &[Result<PowerState, ()>], answers: &[Result<(), ()>]) -> (Script, Virtual) {
        let about = About::new("script", "m".into(), vec![Depth::Off]);
        let about = About { settle: Some(Settle::MACHINE), ..about };
        let script = Script {
            about,
            states: states.iter().copied().collect(),
            answers: answers.iter().copied().collect(),
            orders: Vec::new(),
        };
        (script, Virtual::default())
    }

    use PowerState::*;
    const YES: &[Result<(), ()>] = &[Ok(())];

    fn seconds(times: &[Duration]) -> Vec<u64> {
        times.iter().map(Duration::as_secs).collect()
    }

    #[test]
    fn a_machine_that_says_on_while_it_goes_down_is_woken_when_it_is_down() {
        let (mut machine, mut clock) =
            script(&[Ok(On), Ok(On), Ok(PoweringOff), Ok(Off), Ok(PoweringOn), Ok(On)], YES);
        wake(&mut machine, &mut clock).unwrap();
        assert_eq!(seconds(&machine.orders), [6]);
    }

    #[test]
    fn a_machine_that_stays_on_needs_no_order() {
        let (mut machine, mut clock) = script(&[Ok(On)], YES);
        wake(&mut machine, &mut clock).unwrap();
        assert!(machine.orders.is_empty() && clock.now == Settle::MACHINE.watch);
    }

    #[test]
    fn yes_without_an_effect_is_no_result() {
        let (mut machine, mut clock) = script(&[Ok(Off)], YES);
        let error = wake(&mut machine, &mut clock).unwrap_err().to_string();
        assert!(error.contains("still reports Off 180 s after the wake command"), "{error}");
        assert_eq!(seconds(&machine.orders)[..3], [0, 20, 40], "it is ordered again");
        let (mut machine, mut clock) = script(&[Ok(PoweringOn)], YES);
        assert!(wake(&mut machine, &mut clock).unwrap_err().to_string().contains("PoweringOn"));
    }

    #[test]
    fn a_conflict_is_tried_again_and_a_stuck_machine_is_told() {
        let (mut machine, mut clock) =
            script(&[Ok(Off), Ok(Off), Ok(Off), Ok(On)], &[Err(()), Err(()), Ok(())]);
        wake(&mut machine, &mut clock).unwrap();
        assert_eq!(seconds(&machine.orders), [0, 2, 4]);
        let (mut machine, mut clock) = script(&[Ok(PoweringOff)], YES);
        let error = wake(&mut machine, &mut clock).unwrap_err();
        assert!(matches!(error, SwitchError::GoingDown { .. }) && machine.orders.is_empty());
    }

    #[test]
    fn a_lost_answer_is_no_failure_and_three_are() {
        let (mut machine, mut clock) = script(&[Err(()), Err(()), Ok(Off), Err(()), Ok(On)], YES);
        wake(&mut machine, &mut clock).unwrap();
        let (mut machine, mut clock) = script(&[Err(())], YES);
        let error = asleep(&mut machine, &mut clock).unwrap_err();
        assert!(matches!(error, SwitchError::Unreachable { .. }));
    }

    #[test]
    fn sleep_is_done_when_the_machine_is_down() {
        let (mut machine, mut clock) = script(&[Ok(On), Ok(PoweringOff), Ok(PoweringOff), Ok(Off)], YES);
        asleep(&mut machine, &mut clock).unwrap();
        assert_eq!(clock.now.as_secs(), 6);
        let (mut machine, mut clock) = script(&[Ok(On)], YES);
        let error = asleep(&mut machine, &mut clock).unwrap_err().to_string();
        assert!(error.contains("still reports On 180 s after the sleep command"), "{error}");
    }

    #[test]
    fn another_order_ends_the_waiting() {
        let (mut machine, mut clock) = script(&[Ok(On)], YES);
        clock.pauses_left = 1;
        assert!(matches!(asleep(&mut machine, &mut clock), Err(SwitchError::Replaced)));
    }
}
