//! What a leader of a new generation does first: it asks the chunk servers what the cluster did since its last entry.
//!
//! Its state may be behind ([`crate::raft::rescue`]). Until that has caught up it grants no lease, answers no client
//! and hands out no number. An epoch orders a write only if all its r targets take part, and each of them then knows
//! the epoch. So it has heard of every epoch that may have served when it has heard all servers that take part, or all
//! but r - 1 of them: those that sleep or have failed were no targets any more. Which servers take part, the newest map
//! says that any of them has. Those that do not come within an hour or so ([`crate::Timing::lost_after`]) are not
//! waited for; if they are too many, no copy counts as complete.

use crate::state::Recalled;
use crate::{State, Timing};
use ebb_types::{
    GroupEntry, GroupId, MapDelta, Moment, Recollection, ServerEntry, ServerId, SetEntry, SetId,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Fewer than r servers are waited for no longer than this.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Rescue {
    since: Moment,
    judged: Moment,
    heard: BTreeMap<ServerId, Recollection>,
    /// The servers that it said it waits for.
    announced: Vec<ServerId>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// For these servers, if any is known to be missing.
    Waits(Vec<ServerId>),
    Done(Recalled),
}

impl Rescue {
    pub fn new(now: Moment) -> Rescue {
        Rescue { since: now, judged: now, heard: BTreeMap::new(), announced: Vec::new() }
    }

    /// Whether the server is to be asked.
    pub fn lacks(&self, server: ServerId) -> bool {
        !self.heard.contains_key(&server)
    }

    pub fn take(&mut self, server: ServerId, recollection: Recollection) {
        self.heard.insert(server, recollection);
    }

    pub fn next_wake(&self, timing: &Timing) -> Moment {
        self.judged + timing.heartbeat
    }

    /// Whether this was not said yet.
    pub fn announces(&mut self, missing: &[ServerId]) -> bool {
        let news = !missing.is_empty() && missing != self.announced;
        self.announced = missing.to_vec();
        news
    }

    pub fn judge(&mut self, now: Moment, generation: u32, state: &State, timing: &Timing) -> Verdict {
        self.judged = now;
        let Some(params) = state.params() else { return Verdict::Waits(Vec::new()) };
        // Every server that runs sends several heartbeats in this time.
        if now < self.since + Duration::from_millis(params.lease_millis.into()) + timing.margin {
            return Verdict::Waits(Vec::new());
        }
        let missing = self.missing(state);
        let few = missing.len() < usize::from(params.replicas);
        let given_up = timing.lost_after.is_some_and(|after| now >= self.since + after);
        if missing.is_empty() || (few && now >= self.since + PATIENCE) || given_up {
            return Verdict::Done(Recalled { unknown: !few, ..self.recalled(generation) });
        }
        Verdict::Waits(missing)
    }

    /// Servers that take part and have not answered; those that did from another store are among them.
    fn missing(&self, state: &State) -> Vec<ServerId> {
        let newest = self.newest_map().filter(|map| map.to >= state.version());
        let entries: Vec<&ServerEntry> = match newest {
            Some(map) => map.servers.iter().collect(),
            None => state.servers().collect(),
        };
        let answered = |e: &ServerEntry| self.heard.get(&e.id).is_some_and(|known| known.store == e.store);
        entries.into_iter().filter(|e| e.state.is_live() && !answered(e)).map(|e| e.id).collect()
    }

    fn newest_map(&self) -> Option<&MapDelta> {
        self.heard.values().map(|known| &known.map).max_by_key(|map| map.to).filter(|map| map.to > 0)
    }

    fn recalled(&self, generation: u32) -> Recalled {
        let mut recalled = Recalled { generation, ..Recalled::default() };
        let mut groups: BTreeMap<GroupId, &GroupEntry> = BTreeMap::new();
        let mut sets: BTreeMap<SetId, &SetEntry> = BTreeMap::new();
        for known in self.heard.values() {
            recalled.seen = recalled.seen.max(known.seen).max(known.map.to);
            for (id, entry) in &known.map.groups {
                let newest = groups.entry(*id).or_insert(entry);
                *newest = if newest.stage() < entry.stage() { entry } else { *newest };
            }
            for (id, entry) in &known.map.sets {
                let newest = sets.entry(*id).or_insert(entry);
                *newest = if newest.epoch < entry.epoch { entry } else { *newest };
            }
            for (id, epoch) in &known.epochs {
                let newest = recalled.epochs.entry(*id).or_default();
                *newest = epoch.max(newest).to_owned();
            }
        }
        if let Some(newest) = self.newest_map() {
            recalled.map = MapDelta {
                from: 0,
                to: newest.to,
                servers: newest.servers.clone(),
                removed: Vec::new(),
                pools: newest.pools.clone(),
                groups: groups.into_iter().map(|(id, entry)| (id, entry.clone())).collect(),
                sets: sets.into_iter().map(|(id, entry)| (id, entry.clone())).collect(),
            };
        }
        debug_assert!(recalled.map.to <= recalled.seen, "no map is newer than what was seen");
        recalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;
    use crate::Reply;
    use ebb_types::*;

    const STORE: StoreId = StoreId(5);

    /// Three servers of four are awake.
    fn state() -> State {
        let mut bootstrap = crate::state::tests::bootstrap();
        bootstrap.servers.truncate(4);
        bootstrap.groups.truncate(1);
        bootstrap.params.groups = 1;
        let mut state = State::default();
        state.apply(&Command::Init(bootstrap));
        for id in 0..4 {
            let state_of = if id < 3 { ServerState::Awake } else { ServerState::Asleep };
            set(&mut state, id, state_of);
        }
        state
    }

    fn set(state: &mut State, id: u16, to: ServerState) {
        let mark = StoreMark { store: STORE, position: 0 };
        let set = Command::set_server(state, ServerId(id), to, Incarnation(1 << 24), mark);
        assert_eq!(state.apply(&set), Reply::Done);
    }

    /// Of a server that was restarted since.
    fn seen(seen: u64) -> Recollection {
        Recollection { store: STORE, seen, ..Recollection::default() }
    }

    fn judge(rescue: &mut Rescue, millis: u64) -> Verdict {
        rescue.judge(Moment(0) + Duration::from_millis(millis), 1, &state(), &Timing::default())
    }

    fn waits(rescue: &mut Rescue, millis: u64) -> Vec<u16> {
        match judge(rescue, millis) {
            Verdict::Waits(servers) => servers.iter().map(|id| id.0).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_hears_all_servers_that_take_part_for_a_lease_and_longer() {
        let mut rescue = Rescue::new(Moment(0));
        (0..2).for_each(|id| rescue.take(ServerId(id), seen(3)));
        rescue.take(ServerId(2), Recollection { store: StoreId(6), ..seen(9) });
        assert_eq!(waits(&mut rescue, 900), [0; 0], "others may come");
        assert_eq!(waits(&mut rescue, 2000), [2], "its former store may know more");
        rescue.take(ServerId(2), seen(4));
        let mut early = Rescue { heard: rescue.heard.clone(), ..Rescue::new(Moment(0)) };
        assert_eq!(waits(&mut early, 900), [0; 0]);
        let done = Recalled { generation: 1, seen: 4, ..Recalled::default() };
        assert_eq!(judge(&mut rescue, 2000), Verdict::Done(done));
    }

    #[test]
    fn the_newest_map_says_who_takes_part() {
        let mut rescue = Rescue::new(Moment(0));
        let mut newer = state();
        set(&mut newer, 3, ServerState::Awake);
        (0..2).for_each(|id| rescue.take(ServerId(id), seen(3)));
        rescue.take(ServerId(2), Recollection { map: newer.delta(0), ..seen(newer.version()) });
        assert_eq!(waits(&mut rescue, 2000), [3], "it slept as far as this log knows");
    }

    #[test]
    fn fewer_than_r_are_waited_for_with_patience_and_more_until_they_are_given_up() {
        let (patience, hour) = (PATIENCE.as_millis() as u64, 3_600_000);
        let mut rescue = Rescue::new(Moment(0));
        assert_eq!(waits(&mut rescue, patience + 1), [0, 1, 2]);
        let Verdict::Done(guess) = judge(&mut rescue, hour) else { panic!("it waits for ever") };
        assert!(guess.unknown, "no copy counts as complete");
        rescue.take(ServerId(1), seen(3));
        assert_eq!(waits(&mut rescue, patience - 1), [0, 2]);
        let Verdict::Done(few) = judge(&mut rescue, patience) else {
            panic!("one target of each epoch is there")
        };
        assert!(!few.unknown);
        assert!(rescue.announces(&[ServerId(0)]) && !rescue.announces(&[ServerId(0)]));
        assert!(!rescue.announces(&[]));
    }

    #[test]
    fn of_each_group_the_newest_entry_of_any_server_is_kept() {
        let entry = |epoch| GroupEntry { epoch: Epoch(epoch), ..GroupEntry::unknown() };
        let map = |to, epochs: [u32; 2]| MapDelta {
            to,
            groups: (0..).map(GroupId).zip(epochs.map(entry)).collect(),
            ..MapDelta::default()
        };
        let mut rescue = Rescue::new(Moment(0));
        let fences = |epoch| vec![(GroupId(1), Epoch(epoch))];
        rescue.take(ServerId(0), Recollection { map: map(7, [3, 4]), epochs: fences(9), ..seen(2) });
        rescue.take(ServerId(1), Recollection { map: map(8, [5, 2]), epochs: fences(8), ..seen(8) });
        let recalled = rescue.recalled(1);
        assert_eq!((recalled.seen, recalled.map.to), (8, 8));
        assert_eq!(recalled.map.groups, map(8, [5, 4]).groups);
        assert_eq!(recalled.epochs, BTreeMap::from([(GroupId(1), Epoch(9))]));
    }
}
