//! Which run of which store speaks for each server, and how far that store reached (R11).
//!
//! A run other than the one on record must continue its store: the same store, at least as far as it was ever reported
//! durable, and started later. Any other store gets a higher number and is treated as one that may lack anything
//! ([`crate::controller::group`]).

use crate::State;
use ebb_types::{Incarnation, Moment, ServerEntry, ServerId, StoreId, StoreMark};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spoke {
    /// The run that sent the newest heartbeat, and its store.
    pub run: Incarnation,
    pub store: StoreId,
    /// The highest position that the store on record is known to have made durable.
    pub position: u64,
}

pub(crate) struct Runs {
    servers: BTreeMap<ServerId, Spoke>,
    /// When the positions of stores were last recorded.
    witnessed: Moment,
}

impl Runs {
    pub fn new(now: Moment) -> Runs {
        Runs { servers: BTreeMap::new(), witnessed: now }
    }

    /// All servers.
    pub fn known(&self) -> impl Iterator<Item = ServerId> {
        self.servers.keys().copied()
    }

    pub fn forget(&mut self, server: ServerId) {
        self.servers.remove(&server);
    }

    pub fn knows(&self, server: ServerId) -> bool {
        self.servers.contains_key(&server)
    }

    /// A server as an earlier leader left it. `heard`: from a heartbeat while another member led.
    pub fn inherit(&mut self, entry: &ServerEntry, state: &State, heard: Option<&StoreMark>) {
        let heard = heard.filter(|mark| mark.store == entry.store);
        let position = state.position(entry.id).max(heard.map_or(0, |mark| mark.position));
        let spoke = Spoke { run: entry.incarnation, store: entry.store, position };
        self.servers.insert(entry.id, spoke);
    }

    pub fn of(&self, server: ServerId) -> Spoke {
        debug_assert!(self.knows(server), "a server is taken over before it is asked for");
        self.servers.get(&server).copied().unwrap_or_default()
    }

    /// A run speaks. Returns whether it is newer than the one that spoke before.
    pub fn speaks(&mut self, server: ServerId, run: Incarnation, store: StoreId) -> bool {
        let spoke = self.servers.entry(server).or_default();
        let is_new = spoke.run < run;
        if is_new {
            (spoke.run, spoke.store) = (run, store);
        }
        is_new
    }

    /// The store on record has made this much durable.
    pub fn reached(&mut self, server: ServerId, position: u64) {
        let spoke = self.servers.entry(server).or_default();
        spoke.position = spoke.position.max(position);
    }

    /// Another store takes the place of the one on record.
    pub fn replace_store(&mut self, server: ServerId) {
        self.servers.entry(server).or_default().position = 0;
    }

    /// The run that this one must be numbered above, if it does not continue the store on record.
    pub fn superseded_by(
        &self,
        entry: &ServerEntry,
        run: Incarnation,
        mark: StoreMark,
    ) -> Option<Incarnation> {
        if entry.incarnation == Incarnation(0) || (run, mark.store) == (entry.incarnation, entry.store) {
            return None;
        }
        let Spoke { run: spoke, store, position } = self.of(entry.id);
        let goes_on =
            run.follows(entry.incarnation) && (run == spoke || run.follows(spoke) || spoke.follows(run));
        if !goes_on || (run <= spoke && mark.store != store) {
            return Some(run.max(spoke).max(entry.incarnation));
        }
        (mark.store == entry.store && mark.position < position).then_some(run)
    }

    /// Stores that reached further than is on record.
    fn grown(&self, state: &State) -> impl Iterator<Item = (ServerId, u64)> {
        let reached = self.servers.iter().map(|(id, spoke)| (*id, spoke.position));
        reached.filter(move |(id, position)| *position > state.position(*id))
    }

    /// When positions are to be recorded; `None`: they are.
    pub fn witness_due(&self, every: Duration, state: &State) -> Option<Moment> {
        self.grown(state).next().map(|_| self.witnessed + every)
    }

    /// While there are writes, the durable positions of the servers' stores are recorded from time to time: a store
    /// that went back beyond its recorded position is recognised even if the whole cluster restarts at once.
    pub fn witness(&mut self, now: Moment, every: Duration, state: &State) -> Vec<(ServerId, u64)> {
        if now < self.witnessed + every {
            return Vec::new();
        }
        self.witnessed = now;
        self.grown(state).collect()
    }
}
