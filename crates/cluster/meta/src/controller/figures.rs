//! What servers say of themselves in every heartbeat: their figures, the room on their disks, and how long clients'
//! requests took.

use crate::controller::latency::LatencySpan;
use ebb_types::{LatencyStatus, Moment, ServerId, Vitals};
use std::collections::BTreeMap;

/// Room left on a server's disk, by its last heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Nearly full: it cannot be a holder.
    pub full: bool,
    /// It holds more offload than it should.
    pub indebted: bool,
}

impl Room {
    /// Each flag stays set until the figure is clearly lower, so that no server is woken and put to sleep again over a
    /// few bytes. `offload_percent`: the debt budget.
    fn follow(self, vitals: &Vitals, offload_percent: u8) -> Room {
        let budget = u64::from(offload_percent);
        let percent = |bytes: u64| bytes.saturating_mul(100).checked_div(vitals.capacity_bytes).unwrap_or(0);
        let above = |was: bool, now: u64, (falls, rises): (u64, u64)| now >= if was { falls } else { rises };
        Room {
            full: above(self.full, percent(vitals.used_bytes), FULL_PERCENT),
            indebted: above(self.indebted, percent(vitals.debt_bytes), (budget.div_ceil(4), budget)),
        }
    }
}

/// Used share of its capacity, in percent: below the first a full server counts as free again, from the second on a
/// server is full. Both are below the share at which it refuses writes.
const FULL_PERCENT: (u64, u64) = (85, 90);
const _: () = assert!(FULL_PERCENT.0 < FULL_PERCENT.1 && FULL_PERCENT.1 < 100);

pub(crate) struct Figures {
    /// Of servers that this leader has heard.
    servers: BTreeMap<ServerId, (Vitals, Room)>,
    latency: LatencySpan,
}

impl Figures {
    pub fn new(now: Moment) -> Figures {
        Figures { servers: BTreeMap::new(), latency: LatencySpan::new(now) }
    }

    /// Takes in a heartbeat. Returns whether there is more or less room than before.
    pub fn hear(&mut self, now: Moment, server: ServerId, vitals: &Vitals, offload_percent: u8) -> bool {
        self.latency.add(now, &vitals.latencies);
        let before = self.room(server);
        let room = before.follow(vitals, offload_percent);
        self.servers.insert(server, (vitals.clone(), room));
        room != before
    }

    pub fn forget(&mut self, server: ServerId) {
        self.servers.remove(&server);
    }

    /// By its last heartbeat; `None`: this leader has not heard it.
    pub fn vitals(&self, server: ServerId) -> Option<&Vitals> {
        self.servers.get(&server).map(|(vitals, _)| vitals)
    }

    pub fn room(&self, server: ServerId) -> Room {
        self.servers.get(&server).map_or(Room::default(), |(_, room)| *room)
    }

    /// How long requests took lately; absent until the first stretch is over.
    pub fn latency(&self) -> Option<LatencyStatus> {
        self.latency.status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_in_debt_from_its_budget_on_until_a_quarter_of_it() {
        for (budget, in_debt, still, paid) in [(20, 20, 5, 4), (40, 40, 10, 9), (1, 1, 1, 0)] {
            let owes = |percent| Vitals { debt_bytes: percent, capacity_bytes: 100, ..Vitals::default() };
            let room = Room::default().follow(&owes(in_debt - 1), budget);
            assert!(!room.indebted, "{budget}");
            let mut room = room;
            for (percent, expected) in [(in_debt, true), (still, true), (paid, false), (in_debt - 1, false)] {
                room = room.follow(&owes(percent), budget);
                assert_eq!(room.indebted, expected, "{percent} of {budget}");
            }
        }
    }
}
