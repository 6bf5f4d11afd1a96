//! What was asked of one server's power switch, and what is to be asked next.

use crate::SwitchAction;
use ebb_types::{Depth, Moment, ServerState};
use std::time::Duration;

/// The leader's memory of one server's switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Power {
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
    /// When to throw it again.
    retry: Option<Moment>,
    pub tries: u32,
    pub trouble: Option<String>,
}

impl Power {
    /// An earlier leader may have thrown the switch: an action in progress gets time to finish.
    pub fn inherit(&mut self, state: ServerState, ran: bool, until: Moment, depth: Depth) {
        // A server that never ran was never switched.
        self.unsure = ran.then_some(until);
        match state {
            ServerState::Waking => (self.thrown, self.retry) = (Some(SwitchAction::Wake), Some(until)),
            ServerState::Asleep => self.thrown = Some(SwitchAction::Sleep(depth)),
            _ => {}
        }
    }

    pub fn ended(&mut self, now: Moment, action: SwitchAction, result: Result<(), String>, limit: Duration) {
        if self.pending.is_some_and(|(pending, _)| pending == action) {
            self.pending = None;
        }
        match result {
            Ok(()) => {
                self.down = matches!(action, SwitchAction::Sleep(_)).then_some(now);
                // Until then the earlier leader may throw it again, if it does not know that it was deposed.
                self.unsure = self.unsure.filter(|until| self.down.is_some() || now <= *until);
            }
            Err(why) => {
                self.trouble = Some(why);
                self.retry = Some(now + limit / 10);
            }
        }
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

    /// A server that should be asleep still sends heartbeats: the switch had no effect.
    pub fn still_awake(&mut self, now: Moment, limit: Duration) {
        if matches!(self.thrown, Some(SwitchAction::Sleep(_)))
            && self.pending.is_none()
            && self.retry.is_none()
        {
            self.retry = Some(now + limit);
        }
    }

    /// The action was tried more than once.
    pub fn is_late(&self) -> bool {
        self.tries > 1
    }

    pub fn retry_at(&self) -> Option<Moment> {
        match self.pending {
            Some((action, lost)) if Some(action) != self.thrown => Some(lost),
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

    /// The action to start now for a server in `state`; `depth`: of one that falls asleep now. An action counts as late after
    /// `limit`.
    pub fn next(
        &mut self,
        now: Moment,
        state: ServerState,
        depth: Depth,
        limit: Duration,
    ) -> Option<SwitchAction> {
        let wanted = match state {
            ServerState::Waking => SwitchAction::Wake,
            ServerState::Asleep => SwitchAction::Sleep(self.depth().unwrap_or(depth)),
            // A late switch action put a server to sleep that the state wants awake.
            ServerState::Awake | ServerState::Draining if self.down.is_some() => SwitchAction::Wake,
            ServerState::Failed if self.down.is_some() || self.unsure.is_some() => SwitchAction::Wake,
            _ => {
                *self = Power { pending: self.pending, unsure: self.unsure, ..Power::default() };
                return None;
            }
        };
        if self.thrown == Some(wanted) {
            if self.retry.is_none_or(|at| at > now) {
                return None;
            }
        } else {
            self.tries = 0;
            self.trouble = None;
        }
        // One action at a time: an opposite action in progress finishes first.
        if self.pending.is_some_and(|(pending, lost)| pending != wanted && lost > now) {
            self.thrown = None;
            return None;
        }
        self.tries += 1;
        self.thrown = Some(wanted);
        self.asked = now;
        self.pending = Some((wanted, now + limit));
        self.retry = (wanted == SwitchAction::Wake).then(|| now + limit);
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: SwitchAction = SwitchAction::Sleep(Depth::Standby);
    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn what_a_server_said_before_a_switch_put_it_to_sleep_does_not_show_it_awake() {
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let mut power = Power::default();
        assert_eq!(power.next(at(1), ServerState::Asleep, Depth::Standby, LIMIT), Some(SLEEP));
        // It is wanted again before the switch has acted; meanwhile an older wake-up lets it send heartbeats.
        assert_eq!(power.next(at(2), ServerState::Waking, Depth::Standby, LIMIT), None);
        assert!(!power.shows_awake(at(4)));
        power.ended(at(5), SLEEP, Ok(()), LIMIT);
        assert!(!power.shows_awake(at(4)) && !power.shows_awake(at(5)));
        assert_eq!(power.next(at(5), ServerState::Waking, Depth::Standby, LIMIT), Some(SwitchAction::Wake));
        power.ended(at(6), SwitchAction::Wake, Ok(()), LIMIT);
        assert!(power.shows_awake(at(7)));
    }

    #[test]
    fn a_new_leader_switches_a_failed_server_on_that_a_late_switch_may_have_put_to_sleep() {
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let mut power = Power::default();
        power.inherit(ServerState::Failed, true, at(10), Depth::Standby);
        assert_eq!(power.next(at(1), ServerState::Failed, Depth::Standby, LIMIT), Some(SwitchAction::Wake));
        power.ended(at(2), SwitchAction::Wake, Ok(()), LIMIT);
        assert_eq!(
            power.next(at(9), ServerState::Failed, Depth::Standby, LIMIT),
            None,
            "once is enough for now"
        );
        assert_eq!(
            power.next(at(12), ServerState::Failed, Depth::Standby, LIMIT),
            Some(SwitchAction::Wake),
            "it may be off again"
        );
        power.ended(at(13), SwitchAction::Wake, Ok(()), LIMIT);
        assert_eq!(
            power.next(at(60), ServerState::Failed, Depth::Standby, LIMIT),
            None,
            "no switch is under way any more"
        );
        for (heard, action) in [(9, Some(SwitchAction::Wake)), (11, None)] {
            let mut power = Power::default();
            power.inherit(ServerState::Awake, true, at(10), Depth::Standby);
            power.heard(at(heard));
            assert_eq!(power.next(at(20), ServerState::Awake, Depth::Standby, LIMIT), None);
            assert_eq!(
                power.next(at(30), ServerState::Failed, Depth::Standby, LIMIT),
                action,
                "last heard of at {heard} s"
            );
        }
        let mut power = Power::default();
        power.inherit(ServerState::Failed, false, at(10), Depth::Standby);
        assert_eq!(power.next(at(1), ServerState::Failed, Depth::Standby, LIMIT), None, "it never ran");
    }
}
