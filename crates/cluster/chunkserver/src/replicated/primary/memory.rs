//! Which requests of earlier epochs a new primary is sure to know: what the members that answered its fence remember
//! together.

use ebb_types::{Epoch, GroupEntry, Received, ServerId, Version};
use std::collections::BTreeMap;

pub(crate) struct Memory {
    /// The version up to which each member has forgotten what it received; only members that answered.
    answered: BTreeMap<ServerId, Version>,
    /// Every request of earlier epochs that took effect after this version is remembered by some member.
    forgotten: Version,
}

impl Memory {
    pub fn new(epoch: Epoch) -> Memory {
        Memory { answered: BTreeMap::new(), forgotten: Version::first_of(epoch) }
    }

    /// A member sent what it remembers: all that it received, except requests up to `forgotten`.
    pub fn add(&mut self, entry: &GroupEntry, member: ServerId, forgotten: Version) {
        self.answered.insert(member, forgotten);
        self.forgotten = forgotten_by_all(entry, &self.answered);
    }

    pub fn forgotten(&self) -> Version {
        self.forgotten
    }
}

/// The version up to which all members together may have forgotten requests of earlier epochs. `answered`: the version
/// up to which each member has forgotten what it received. Where a member stopped being a target, one that became a
/// target then continues its memory.
fn forgotten_by_all(entry: &GroupEntry, answered: &BTreeMap<ServerId, Version>) -> Version {
    let mut forgotten = Version::first_of(entry.epoch);
    loop {
        let reaches =
            |received: &&Received| received.until.is_none_or(|until| Version::first_of(until) >= forgotten);
        let from = |received: &Received| {
            answered.get(&received.server).map(|answer| Version::first_of(received.from).max(*answer))
        };
        let earliest = entry.received.iter().filter(reaches).filter_map(from).min();
        match earliest.filter(|version| *version < forgotten) {
            Some(version) => forgotten = version,
            None => return forgotten,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{Holder, Slot, SlotState};

    /// In low gear one replica and the holders of the two others have the group's memory. The replica fails, and the
    /// sleepers return one after the other: what the holders received until then is remembered, unless they forgot it.
    #[test]
    fn holders_and_the_sleepers_that_come_back_remember_together() {
        let sleeper = |server, holder, awake| {
            let since = Epoch(2);
            let state = if awake { SlotState::CatchingUp { since } } else { SlotState::Away { since } };
            let holder = Some(Holder::new(ServerId(holder), true));
            Slot { server: ServerId(server), state, holder }
        };
        let replica = Slot { server: ServerId(1), state: SlotState::InSync, holder: None };
        let steps = [(2, false, false), (3, true, false), (5, true, true)];
        let entry = steps.iter().fold(GroupEntry::unknown(), |before, &(epoch, second, third)| {
            let slots = vec![replica, sleeper(2, 4, second), sleeper(3, 5, third)];
            let received = before.received.clone();
            let mut entry = GroupEntry { epoch: Epoch(epoch), slots, received, ..GroupEntry::unknown() };
            entry.follow(&before);
            entry
        });
        let version = |epoch, seq| Version { epoch: Epoch(epoch), seq };
        let since = |answers: &[(u16, Version)]| {
            forgotten_by_all(&entry, &answers.iter().map(|(id, v)| (ServerId(*id), *v)).collect())
        };
        let restarted = (1, version(5, 0));
        assert_eq!(since(&[restarted]), version(5, 0));
        assert_eq!(
            since(&[(1, Version::ZERO)]),
            version(2, 0),
            "the replica was received of all since epoch 2"
        );
        assert_eq!(
            since(&[restarted, (2, Version::ZERO)]),
            version(3, 0),
            "received of all since it came back"
        );
        let both = [restarted, (2, Version::ZERO), (4, Version::ZERO)];
        assert_eq!(since(&both), version(2, 0), "and what was before, its holder knows");
        assert_eq!(since(&[restarted, (2, Version::ZERO), (4, version(2, 7))]), version(2, 7));
        assert_eq!(
            since(&[restarted, (4, Version::ZERO)]),
            version(5, 0),
            "of epochs 3 and 4 it was not received"
        );
        assert_eq!(since(&[restarted, (5, Version::ZERO)]), version(2, 0), "it stood in until epoch 5");
    }
}
