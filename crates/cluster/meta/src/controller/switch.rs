//! What was asked of one server's power switch, and what is to be asked next.

use crate::{PlantedBug, SwitchAction, Timing};
use ebb_types::{Depth, Moment, ServerState};
use std::time::Duration;

/// A server that cannot be put to sleep is asked again after this time at most.
const SLEEP_AGAIN: Duration = Duration::from_secs(600);

/// The leader's memory of one server's switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switch {
    /// Action in progress, and when it counts as lost.
    pending: Option<(SwitchAction, Moment)>,
    /// The action that the state asks for is done or in progress.
    thrown: Option<SwitchAction>,
    /// When it was requested.
    asked: Moment,
    /// When a switch put the server to sleep, if that was the last action to finish.
    down: Option<Moment>,
    /// Until this time a switch thrown by an earlier leader may still act; set while nothing has been heard of the
    /// server since.
    unsure: Option<Moment>,
    /// The last order to sleep has failed: the server itself said why not, and what the switch that waited for it says
    /// later is not news.
    refused: bool,
    /// The server is up although it was ordered to sleep: the order failed, or the server was heard of after the switch
    /// called it done.
    resists: bool,
    /// When to throw it again.
    retry: Option<Moment>,
    pub tries: u32,
    pub trouble: Option<String>,
    /// The wake-up in progress, from its first try on.
    waking: Option<WakeUp>,
}

/// A wake-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeUp {
    pub since: Moment,
    /// The path of the last try.
    pub path: u8,
    /// The server had been put to sleep and was silent, so that waking it proves something.
    pub from_sleep: bool,
    /// From how deep.
    pub depth: Depth,
}

/// The wake paths of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    pub count: u8,
    pub first: u8,
    /// A try that takes longer is late.
    pub limit: Duration,
}

/// Whether both ask for the same: one wake-up may be tried by several paths.
fn same(one: SwitchAction, other: SwitchAction) -> bool {
    one == other || one.is_wake() && other.is_wake()
}

impl Switch {
    /// An earlier leader may have thrown the switch: an action in progress gets time to finish.
    pub fn inherit(&mut self, state: ServerState, ran: bool, until: Moment, depth: Depth) {
        // A server that never ran was never switched.
        self.unsure = ran.then_some(until);
        match state {
            ServerState::Waking => {
                (self.thrown, self.retry) = (Some(SwitchAction::Wake { path: 0 }), Some(until))
            }
            ServerState::Asleep => self.thrown = Some(SwitchAction::Sleep(depth)),
            _ => {}
        }
    }

    pub fn ended(&mut self, now: Moment, action: SwitchAction, result: Result<(), String>, limit: Duration) {
        let current = self.pending.is_none_or(|(pending, _)| pending == action);
        self.resists |= result.is_err() && !action.is_wake();
        // A switch that waited for the server may also say that it is down: it cannot look.
        if !action.is_wake() && self.refused {
            return;
        }
        self.refused = result.is_err() && !action.is_wake();
        if current {
            self.pending = None;
        }
        match result {
            Ok(()) => {
                self.down = matches!(action, SwitchAction::Sleep(_)).then_some(now);
                // What kept a server from sleeping is over. A wake-up is not done before the server is heard of.
                if current && self.down.is_some() {
                    self.trouble = None;
                }
                // Until then the earlier leader may throw it again, if it does not know that it was deposed.
                self.unsure = self.unsure.filter(|until| self.down.is_some() || now <= *until);
            }
            Err(why) => {
                self.trouble = Some(why);
                // The failure of an earlier path does not cut the next one short.
                if current {
                    self.retry = Some(now + self.pause(action, limit));
                }
            }
        }
    }

    /// Before a failed action is tried again. A wake-up is urgent; whatever keeps a server from going to sleep lasts,
    /// so it is left alone for twice as long each time.
    fn pause(&self, action: SwitchAction, limit: Duration) -> Duration {
        let soon = limit / 10;
        let doubled = if action.is_wake() { 0 } else { self.tries.saturating_sub(1).min(16) };
        (soon * 2u32.pow(doubled)).min(SLEEP_AGAIN.max(soon))
    }

    /// The server sent a heartbeat.
    pub fn heard(&mut self, now: Moment) {
        self.unsure = self.unsure.filter(|until| now <= *until);
    }

    /// Whether a heartbeat at `heard` shows that the server stays awake: it may have been sent before a pending sleep
    /// action took effect.
    pub fn shows_awake(&self, heard: Moment) -> bool {
        let down = matches!(self.pending, Some((SwitchAction::Sleep(_), _)))
            || self.down.is_some_and(|at| heard <= at);
        !down && heard >= self.asked
    }

    /// A server that should be asleep still sends heartbeats: the switch had no effect. One that it sent before that
    /// may be under way for `quiet`.
    pub fn still_awake(&mut self, now: Moment, limit: Duration, quiet: Duration) {
        if !matches!(self.thrown, Some(SwitchAction::Sleep(_))) || self.pending.is_some() {
            return;
        }
        self.retry.get_or_insert(now + limit);
        if self.down.is_none_or(|at| now >= at + quiet) {
            self.resists = true;
            self.trouble.get_or_insert_with(|| "it was ordered to sleep and still sends heartbeats".into());
        }
    }

    /// Whether the server is up although it was ordered to sleep, by what was heard of it within `quiet`.
    pub fn resists(&self, now: Moment, heard: Option<Moment>, quiet: Duration) -> bool {
        let speaks = heard.is_some_and(|at| now.since(at) < quiet);
        self.resists && speaks && matches!(self.thrown, Some(SwitchAction::Sleep(_)))
    }

    /// The action was tried more than once.
    pub fn is_late(&self) -> bool {
        self.tries > 1
    }

    pub fn waking(&self) -> Option<WakeUp> {
        self.waking
    }

    /// The server was put to sleep, and nothing has been heard of it for `quiet`.
    pub fn is_down(&self, now: Moment, heard: Option<Moment>, quiet: Duration) -> bool {
        let silent = heard.is_none_or(|at| now.since(at) >= quiet);
        matches!(self.thrown, Some(SwitchAction::Sleep(_))) && self.pending.is_none() && silent
    }

    pub fn retry_at(&self) -> Option<Moment> {
        match self.pending {
            Some((action, lost)) if !self.thrown.is_some_and(|thrown| same(thrown, action)) => Some(lost),
            _ => self.retry,
        }
    }

    /// How deep the server sleeps, if a switch was last thrown for that.
    pub fn depth(&self) -> Option<Depth> {
        match self.thrown {
            Some(SwitchAction::Sleep(depth)) => Some(depth),
            _ => None,
        }
    }

    /// The action to start now for a server in `state` that was last heard at `heard`; `depth`: of its sleep. A wake-up
    /// that failed or is late is tried by the next path, in turn.
    pub fn next(
        &mut self,
        now: Moment,
        state: ServerState,
        heard: Option<Moment>,
        ways: Ways,
        depth: Depth,
        timing: &Timing,
    ) -> Option<SwitchAction> {
        let limit = ways.limit;
        let wake = SwitchAction::Wake { path: ways.first };
        let wanted = match state {
            ServerState::Waking => wake,
            ServerState::Asleep => SwitchAction::Sleep(self.depth().unwrap_or(depth)),
            // A late switch action put a server to sleep that the state wants awake.
            ServerState::Awake | ServerState::Draining if self.down.is_some() => wake,
            ServerState::Failed if self.down.is_some() || self.unsure.is_some() => wake,
            _ => {
                *self = Switch { pending: self.pending, unsure: self.unsure, ..Switch::default() };
                return None;
            }
        };
        let from_sleep = self.is_down(now, heard, timing.heartbeat * 2);
        let from = self.depth().unwrap_or(depth);
        let again = self.thrown.is_some_and(|thrown| same(thrown, wanted));
        if again {
            if self.retry.is_none_or(|at| at > now) {
                return None;
            }
        } else {
            (self.tries, self.trouble, self.resists) = (0, None, false);
        }
        // One action at a time: an opposite action in progress finishes first.
        if self.pending.is_some_and(|(pending, lost)| !same(pending, wanted) && lost > now) {
            self.thrown = None;
            return None;
        }
        let wanted = match self.waking {
            Some(WakeUp { path, .. }) if wanted.is_wake() && again && !timing.has(PlantedBug::OnePath) => {
                SwitchAction::Wake { path: (path + 1) % ways.count.max(1) }
            }
            _ => wanted,
        };
        debug_assert!(
            !matches!(wanted, SwitchAction::Wake { path } if path >= ways.count),
            "a wake-up goes by a path that there is"
        );
        self.tries += 1;
        self.refused = false;
        self.thrown = Some(wanted);
        self.asked = now;
        self.pending = Some((wanted, now + limit));
        self.retry = wanted.is_wake().then(|| now + limit);
        self.waking = match wanted {
            SwitchAction::Wake { path } => Some(match self.waking.filter(|_| again) {
                Some(started) => WakeUp { path, ..started },
                None => WakeUp { since: now, path, from_sleep, depth: from },
            }),
            SwitchAction::Sleep(_) => None,
        };
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: SwitchAction = SwitchAction::Sleep(Depth::Standby);
    const WAKE: SwitchAction = SwitchAction::Wake { path: 0 };
    const ONE: Ways = Ways { count: 1, first: 0, limit: Duration::from_secs(10) };

    #[test]
    fn what_a_server_said_before_a_switch_put_it_to_sleep_does_not_show_it_awake() {
        let (timing, at) = (Timing::default(), |seconds: u64| Moment(seconds * 1_000_000_000));
        let mut power = Switch::default();
        assert_eq!(power.next(at(1), ServerState::Asleep, None, ONE, Depth::Standby, &timing), Some(SLEEP));
        // It is wanted again before the switch has acted; meanwhile an older wake-up lets it send heartbeats.
        assert_eq!(power.next(at(2), ServerState::Waking, None, ONE, Depth::Standby, &timing), None);
        assert!(!power.shows_awake(at(4)));
        power.ended(at(5), SLEEP, Ok(()), timing.wake_limit);
        assert!(!power.shows_awake(at(4)) && !power.shows_awake(at(5)));
        assert_eq!(power.next(at(5), ServerState::Waking, None, ONE, Depth::Standby, &timing), Some(WAKE));
        power.ended(at(6), WAKE, Ok(()), timing.wake_limit);
        assert!(power.shows_awake(at(7)));
    }

    #[test]
    fn a_new_leader_switches_a_failed_server_on_that_a_late_switch_may_have_put_to_sleep() {
        let (timing, at) = (Timing::default(), |seconds: u64| Moment(seconds * 1_000_000_000));
        let mut power = Switch::default();
        power.inherit(ServerState::Failed, true, at(10), Depth::Standby);
        assert_eq!(power.next(at(1), ServerState::Failed, None, ONE, Depth::Standby, &timing), Some(WAKE));
        power.ended(at(2), WAKE, Ok(()), timing.wake_limit);
        assert_eq!(
            power.next(at(9), ServerState::Failed, None, ONE, Depth::Standby, &timing),
            None,
            "once is enough for now"
        );
        assert_eq!(
            power.next(at(12), ServerState::Failed, None, ONE, Depth::Standby, &timing),
            Some(WAKE),
            "it may be off again"
        );
        power.ended(at(13), WAKE, Ok(()), timing.wake_limit);
        assert_eq!(
            power.next(at(60), ServerState::Failed, None, ONE, Depth::Standby, &timing),
            None,
            "no switch is under way any more"
        );
        for (heard, action) in [(9, Some(WAKE)), (11, None)] {
            let mut power = Switch::default();
            power.inherit(ServerState::Awake, true, at(10), Depth::Standby);
            power.heard(at(heard));
            assert_eq!(power.next(at(20), ServerState::Awake, None, ONE, Depth::Standby, &timing), None);
            assert_eq!(
                power.next(at(30), ServerState::Failed, None, ONE, Depth::Standby, &timing),
                action,
                "last heard of at {heard} s"
            );
        }
        let mut power = Switch::default();
        power.inherit(ServerState::Failed, false, at(10), Depth::Standby);
        assert_eq!(
            power.next(at(1), ServerState::Failed, None, ONE, Depth::Standby, &timing),
            None,
            "it never ran"
        );
    }

    #[test]
    fn a_wake_up_that_is_late_or_failed_goes_to_the_next_path_and_from_the_last_to_the_first() {
        let (timing, at) = (Timing::default(), |seconds: u64| Moment(seconds * 1_000_000_000));
        let (mut power, ways) = (Switch::default(), Ways { count: 2, first: 1, ..ONE });
        let wake = |path| Some(SwitchAction::Wake { path });
        let next = |power: &mut Switch, now| {
            power.next(now, ServerState::Waking, None, ways, Depth::Standby, &timing)
        };
        assert_eq!(next(&mut power, at(1)), wake(1), "the one that is asked for comes first");
        assert_eq!(next(&mut power, at(2)), None);
        assert_eq!(next(&mut power, at(11)), wake(0), "it is late");
        // What became of the first try does not cut the second one short.
        power.ended(at(12), wake(1).unwrap(), Err("no answer".into()), timing.wake_limit);
        assert_eq!(next(&mut power, at(13)), None);
        power.ended(at(14), wake(0).unwrap(), Err("refused".into()), timing.wake_limit);
        assert_eq!(next(&mut power, at(15)), wake(1), "it failed");
        assert!(power.is_late() && power.waking().is_some_and(|w| w.since == at(1) && !w.from_sleep));
    }

    #[test]
    fn a_server_that_refuses_to_sleep_is_asked_less_and_less_often_and_its_reason_stands() {
        let timing = Timing::default();
        let (mut power, mut now) = (Switch::default(), Moment::ZERO);
        let next =
            |power: &mut Switch, now, state| power.next(now, state, None, ONE, Depth::Standby, &timing);
        let mut asked = Vec::new();
        for _ in 0..12 {
            assert_eq!(next(&mut power, now, ServerState::Asleep), Some(SLEEP));
            // A switch that cannot look calls it done; then it is heard of.
            power.ended(now, SLEEP, Ok(()), timing.wake_limit);
            power.still_awake(now, timing.wake_limit, Duration::from_secs(1));
            power.ended(now, SLEEP, Err("refused to sleep: no card".into()), timing.wake_limit);
            power.ended(now, SLEEP, Err("still says On".into()), timing.wake_limit);
            power.ended(now, SLEEP, Ok(()), timing.wake_limit);
            assert_eq!(power.trouble.as_deref(), Some("refused to sleep: no card"));
            assert!(power.resists(now, Some(now), Duration::from_secs(5)));
            // What it sends meanwhile does not bring the next order forward.
            power.still_awake(now, Duration::ZERO, Duration::from_secs(1));
            let retry = power.retry_at().unwrap();
            asked.push(retry.since(now).as_secs());
            now = retry;
        }
        assert_eq!(asked, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        assert_eq!(next(&mut power, now, ServerState::Waking), Some(WAKE), "a wake-up does not wait");
        power.ended(now, WAKE, Err("no answer".into()), timing.wake_limit);
        assert_eq!(power.retry_at(), Some(now + timing.wake_limit / 10));
    }

    #[test]
    fn a_server_resists_while_it_is_heard_of_after_the_order_and_no_longer_once_it_sleeps() {
        let (timing, at) = (Timing::default(), |seconds: u64| Moment(seconds * 1_000_000_000));
        let (second, lease) = (Duration::from_secs(1), Duration::from_secs(5));
        let mut power = Switch::default();
        let order = |power: &mut Switch, now| {
            let asleep = ServerState::Asleep;
            assert_eq!(power.next(now, asleep, None, ONE, Depth::Standby, &timing), Some(SLEEP));
        };
        order(&mut power, at(1));
        power.ended(at(2), SLEEP, Ok(()), timing.wake_limit);
        power.still_awake(at(2), timing.wake_limit, second);
        assert!(!power.resists(at(2), Some(at(2)), lease), "it was under way");
        power.still_awake(at(3), timing.wake_limit, second);
        assert!(power.resists(at(7), Some(at(3)), lease) && power.trouble.is_some());
        // It stands while the order is given again, and ends with the silence of a server that sleeps.
        order(&mut power, at(12));
        assert!(power.resists(at(12), Some(at(12)), lease));
        power.ended(at(13), SLEEP, Ok(()), timing.wake_limit);
        assert!(power.resists(at(13), Some(at(12)), lease) && power.trouble.is_none());
        assert!(!power.resists(at(17), Some(at(12)), lease));
    }

    #[test]
    fn only_a_server_that_fell_silent_proves_a_path_when_it_wakes() {
        let (timing, at) = (Timing::default(), |seconds: u64| Moment(seconds * 1_000_000_000));
        for (heard, proves) in [(2, true), (8, false)] {
            let mut power = Switch::default();
            assert_eq!(
                power.next(at(3), ServerState::Asleep, Some(at(2)), ONE, Depth::Standby, &timing),
                Some(SLEEP)
            );
            power.ended(at(4), SLEEP, Ok(()), timing.wake_limit);
            let woken = power.next(at(8), ServerState::Waking, Some(at(heard)), ONE, Depth::Standby, &timing);
            assert_eq!((woken, power.waking().unwrap().from_sleep), (Some(WAKE), proves));
        }
    }
}
