//! How far a server is on its way to sleep (R7): drained, flushed, and nothing counts on it again since. The metadata
//! service decides that it should sleep; only the server knows that it may.
//!
//! A machine that its own server puts to sleep is looked at before, which takes time: meanwhile the server may be
//! needed again, so it is asked a second time.

use super::api::{Command, Ended, News};
use ebb_types::{Depth, SleepOrder, SleepRefusal};

#[derive(Debug, Default)]
pub(super) struct Rest {
    /// As of this map version no server needs this one, and all is flushed.
    ready: Option<u64>,
    /// Its machine is being put to sleep.
    going: bool,
}

impl Rest {
    pub fn ready(&self) -> Option<u64> {
        self.ready
    }

    pub fn flushed(&mut self, map_version: u64) {
        self.ready = Some(map_version);
    }

    pub fn is_needed(&mut self) {
        self.ready = None;
    }

    /// `may`: nothing counts on the server, as far as it knows.
    pub fn ordered(&mut self, order: SleepOrder, may: bool) -> Option<Command> {
        let begins = may && !self.going;
        self.going |= begins;
        begins.then_some(Command::Check(order))
    }

    /// Returns whether the run ends.
    pub fn checked(
        &mut self,
        order: SleepOrder,
        may: bool,
        outcome: Result<(), String>,
        out: &mut Vec<Command>,
    ) -> bool {
        match outcome {
            Err(why) => self.stays_awake(order.depth, why, out),
            // Meanwhile it may have been told that it is awake.
            Ok(()) if !may => self.going = false,
            Ok(()) if order.depth == Depth::Off => {
                self.going = false;
                out.push(Command::End(Ended::PowerOff));
                return true;
            }
            Ok(()) => out.push(Command::Suspend(order)),
        }
        false
    }

    pub fn suspended(&mut self, order: SleepOrder, outcome: Result<(), String>, out: &mut Vec<Command>) {
        match outcome {
            Ok(()) => self.going = false,
            Err(why) => self.stays_awake(order.depth, why, out),
        }
    }

    /// The order is given again.
    fn stays_awake(&mut self, depth: Depth, why: String, out: &mut Vec<Command>) {
        self.going = false;
        out.push(Command::Say(News::StaysAwake(why.clone())));
        out.push(Command::Refuse(SleepRefusal { depth, why }));
    }
}
