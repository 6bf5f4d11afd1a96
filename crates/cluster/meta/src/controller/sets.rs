//! What the leader knows of the sets of erasure-coded pools beyond the state: what its memory of each says of parity
//! and of clients' use, how long sets took to wake, and what servers reported of columns.
//!
//! Which parity servers are awake is decided by one [`Standby`](ebb_erasure::standby::Standby) per set, in the leader's
//! memory [ECS² §3.3 to §3.5]; when a whole set sleeps, [`super::hibernation`] says.

use crate::controller::servers::Servers;
use crate::controller::wake_times::WakeTimes;
use crate::controller::watch::{Watch, owes};
use crate::{State, Timing};
use ebb_erasure::standby::Event;
use ebb_types::{
    Column, Epoch, LoadCount, Moment, PoolId, ServerId, ServerReport, ServerState, SetEntry, SetId, SlotState,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Sets {
    timing: Timing,
    /// Whether servers have power switches: without any no set sleeps.
    switched: bool,
    watches: BTreeMap<SetId, Watch>,
    /// How long clients waited for the last sets that were woken.
    wakes: WakeTimes,
    /// Columns whose servers have caught up.
    caught_up: BTreeSet<(SetId, Epoch, usize)>,
    /// Sets that want another epoch, to forget deletions under.
    remembering: BTreeMap<SetId, Epoch>,
}

impl Sets {
    pub fn new(timing: Timing, switched: bool) -> Sets {
        Sets { timing, switched, ..Sets::default() }
    }

    /// Sets that are new to this leader, as an earlier one left them.
    pub fn inherit(&mut self, since: Moment, state: &State) {
        for (id, entry) in state.sets() {
            self.watches.entry(id).or_insert_with(|| Watch::new(since, entry, state, &self.timing));
        }
    }

    pub fn watch(&self, set: SetId) -> Option<&Watch> {
        self.watches.get(&set)
    }

    /// Takes in what happened to the sets since the last time.
    pub fn follow(&mut self, now: Moment, state: &State) {
        let cycles = self.timing.sleep.cycles_per_day;
        for (id, entry) in state.sets() {
            let settles = self.is_to_settle(now, id, entry, state);
            let Some(watch) = self.watches.get_mut(&id) else { continue };
            watch.settles = settles;
            watch.unsettled &= entry.hibernates() || owes(entry, state);
            watch.follow(now, entry, state);
            if let Some(took) = watch.usage.follow(now, entry, cycles) {
                self.wakes.note(took);
            }
        }
    }

    /// Parity servers are to be woken because the set could sleep if it owed them nothing.
    fn is_to_settle(&self, now: Moment, id: SetId, entry: &SetEntry, state: &State) -> bool {
        let keeps = |watch: &Watch| watch.unsettled || watch.fullest.is_some_and(|share| share > 0.0);
        let kept = self.watch(id).is_some_and(keeps);
        !entry.hibernates() && kept && owes(entry, state) && self.is_quiet(now, id, entry, state)
    }

    /// When the set hibernates if no client uses it; `None`: never.
    pub fn rests_at(&self, id: SetId, entry: &SetEntry, state: &State) -> Option<Moment> {
        let after = state.pool(entry.pool)?.hibernate_after_millis.map(Duration::from_millis)?;
        let usage = &self.watch(id)?.usage;
        self.switched.then(|| usage.rests_at(after, self.timing.sleep.cycles_per_day))
    }

    pub fn is_quiet(&self, now: Moment, id: SetId, entry: &SetEntry, state: &State) -> bool {
        self.rests_at(id, entry, state).is_some_and(|at| at <= now)
    }

    /// A client waits for the set to wake.
    pub fn await_set(&mut self, now: Moment, set: SetId) {
        if let Some(watch) = self.watches.get_mut(&set) {
            watch.usage.last = Some(now);
            watch.usage.awaited.get_or_insert(now);
        }
    }

    /// Within this time nearly all sets were awake lately.
    pub fn wake_time(&self) -> Duration {
        self.wakes.high().unwrap_or(self.timing.standby.up + self.timing.heartbeat * 2)
    }

    /// A heartbeat of one of its servers says what clients asked for.
    pub fn note_use(&mut self, now: Moment, server: ServerId, load: &LoadCount, state: &State) {
        if load.reads + load.writes == 0 {
            return;
        }
        let of_it = |(_, entry): &(SetId, &SetEntry)| entry.column_of(server).is_some();
        let Some((id, entry)) = state.sets().find(of_it) else { return };
        // A figure from before it slept comes late.
        if let Some(watch) = self.watches.get_mut(&id).filter(|_| !entry.hibernates()) {
            watch.usage.last = Some(now);
        }
    }

    /// Takes in how full the set of this data server is, once per heartbeat interval, and only when all its live data
    /// servers have been heard: else the next one to be heard would look like a sudden fill. `debt`: what a server that
    /// was heard keeps for parity. Returns whether that changes a decision.
    pub fn fill(
        &mut self,
        now: Moment,
        server: ServerId,
        state: &State,
        debt: impl Fn(ServerId) -> Option<u64>,
    ) -> bool {
        let of_it = |(_, e): &(SetId, &SetEntry)| e.column_of(server).is_some_and(|nth| nth < e.shape.data());
        let found = state.sets().find(of_it).filter(|(_, e)| !e.hibernates());
        let Some((id, entry)) = found else { return false };
        let (Some(pool), Some(watch)) = (state.pool(entry.pool), self.watches.get_mut(&id)) else {
            return false;
        };
        if watch.fullest.is_some() && now < watch.fed + self.timing.heartbeat {
            return false;
        }
        let live = |c: &&Column| state.server(c.server).is_some_and(|e| e.state.is_live());
        let data = entry.columns[..entry.shape.data()].iter();
        let debts: Option<Vec<u64>> = data.filter(live).map(|c| debt(c.server)).collect();
        let Some(most) = debts.and_then(|debts| debts.into_iter().max()) else { return false };
        let share = most as f64 / pool.parity_buffer_bytes.max(1) as f64;
        let before = (watch.is_full(), watch.is_nearly_full(), watch.fullest == Some(0.0));
        (watch.fullest, watch.fed) = (Some(share), now);
        let mut commands = Vec::new();
        watch.standby.on(now, Event::Filled { share }, &mut commands);
        !commands.is_empty() || (watch.is_full(), watch.is_nearly_full(), share == 0.0) != before
    }

    /// A report of the server of column `own` in the present epoch, about column `nth`. Returns whether it counts.
    pub fn report(
        &mut self,
        set: SetId,
        entry: &SetEntry,
        own: usize,
        nth: usize,
        report: &ServerReport,
    ) -> bool {
        let fills = matches!(entry.columns[nth].state, SlotState::CatchingUp { .. });
        match *report {
            ServerReport::CaughtUp { epoch, .. } if own == nth && fills => {
                self.caught_up.insert((set, epoch, nth));
            }
            ServerReport::Owes { .. } if entry.hibernates() => {
                self.watches.get_mut(&set).into_iter().for_each(|watch| watch.unsettled = true);
            }
            ServerReport::Remembers { epoch, .. } => {
                self.remembering.insert(set, epoch);
            }
            _ => return false,
        }
        true
    }

    /// Whether the server of this column said in this epoch that it has everything.
    pub fn has_caught_up(&self, set: SetId, epoch: Epoch, nth: usize) -> bool {
        self.caught_up.contains(&(set, epoch, nth))
    }

    /// Whether a server of the set said in this epoch that it remembers many deletions.
    pub fn remembers(&self, set: SetId, epoch: Epoch) -> bool {
        self.remembering.get(&set) == Some(&epoch)
    }

    /// Changes were made: what refers to earlier epochs is forgotten.
    pub fn applied(&mut self, state: &State) {
        let current = |set: &SetId, epoch: &Epoch| state.set(*set).is_some_and(|e| e.epoch == *epoch);
        self.caught_up.retain(|(set, epoch, _)| current(set, epoch));
        self.remembering.retain(|set, epoch| current(set, epoch));
    }

    /// Sets that may be woken because they fill up: in each pool one at a time, the fullest first, and those that are
    /// nearly full. `late`: servers whose wake-up is late.
    pub fn turns(&self, state: &State, coded: &Servers, late: impl Fn(ServerId) -> bool) -> BTreeSet<SetId> {
        let mut turns = BTreeSet::new();
        let mut waiting: BTreeMap<PoolId, (bool, f64, SetId)> = BTreeMap::new();
        for (id, entry) in state.sets() {
            let Some(watch) = self.watch(id) else { continue };
            let parity = || entry.columns[entry.shape.data()..].iter().map(|c| (c, coded[&c.server].state));
            let busy = parity().any(|(column, state)| match state {
                ServerState::Waking => !late(column.server),
                ServerState::Awake => column.state != SlotState::InSync,
                _ => false,
            });
            let waits = parity()
                .enumerate()
                .any(|(nth, (_, state))| state == ServerState::Asleep && watch.asks_for(nth));
            if waits && watch.is_nearly_full() {
                turns.insert(id);
            }
            // A set that is at it keeps its turn.
            let claim = (busy, watch.fullest.unwrap_or(0.0), id);
            if busy || waits {
                let best = waiting.entry(entry.pool).or_insert(claim);
                if (claim.0, claim.1) > (best.0, best.1) {
                    *best = claim;
                }
            }
        }
        turns.extend(waiting.into_values().map(|(_, _, id)| id));
        turns
    }
}
