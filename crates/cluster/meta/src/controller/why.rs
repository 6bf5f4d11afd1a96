//! Why each server is awake, for those who ask.

use crate::State;
use crate::controller::leading::Leading;
use crate::controller::servers::is_gone;
use crate::controller::trust::relied_on;
use ebb_types::{Moment, PoolId, ServerEntry, Why};

impl Leading {
    /// What holds it awake first: its switch, its role, then the load, and last what is wanted beyond the load, as the
    /// plan adds it.
    pub(crate) fn why(&self, now: Moment, entry: &ServerEntry, state: &State) -> Why {
        let server = entry.id;
        if is_gone(entry) {
            return Why::Gone;
        }
        if let Some(why) = self.power.kept_awake(server, state) {
            return Why::Kept { why };
        }
        if self.power.is_put_to_the_test(server) {
            return Why::PowerTest;
        }
        if entry.is_logger() {
            return Why::Logger;
        }
        match self.gears.why(now, server) {
            None | Some(Why::NotNeeded) if self.wants.awake.contains(&server) => self.why_beyond(entry),
            why => why.unwrap_or(Why::NotNeeded),
        }
    }

    fn why_beyond(&self, entry: &ServerEntry) -> Why {
        if entry.pool != PoolId::REPLICATED {
            Why::Set
        } else if self.wants.examinee == Some(entry.id) {
            Why::Exam
        } else if self.wants.emergency {
            Why::CopiesMissing
        } else if self.wants.short_of_room {
            Why::RoomShort
        } else if self.wants.insured.contains(&entry.id) {
            Why::Kept { why: relied_on(entry.id) }
        } else {
            Why::RacksApart
        }
    }
}
