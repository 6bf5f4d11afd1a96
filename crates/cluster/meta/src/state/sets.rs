//! The sets of erasure-coded pools in the state: which configurations are valid at first, and which may follow which
//! (R3).
//!
//! What a column's server lacks only ever becomes less, except by a new absence or an emptied store: so a controller
//! that is wrong cannot declare a column complete that never caught up, and no acknowledged strip is forgotten.

use super::{Reply, State, Versioned};
use crate::{Bootstrap, NewPool, NewServer};
use ebb_types::{Epoch, NO_GEAR, PoolEntry, PoolId, ServerId, SetEntry, SetId, SlotState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A set's next configuration, derived from the one of epoch `expected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetChange {
    pub set: SetId,
    pub expected: Epoch,
    pub entry: SetEntry,
}

impl State {
    /// The erasure-coded pools, in order of their ids.
    pub fn pools(&self) -> impl Iterator<Item = &PoolEntry> + '_ {
        self.pools.values().map(|v| &v.item)
    }

    pub fn pool(&self, id: PoolId) -> Option<&PoolEntry> {
        self.pools.get(&id).map(|v| &v.item)
    }

    pub fn set(&self, id: SetId) -> Option<&SetEntry> {
        self.sets.get(usize::from(id.0)).map(|v| &v.item)
    }

    pub fn sets(&self) -> impl Iterator<Item = (SetId, &SetEntry)> + '_ {
        (0u16..).map(SetId).zip(&self.sets).map(|(id, v)| (id, &v.item))
    }

    pub(super) fn set_pool(&mut self, pool: &PoolEntry) -> Reply {
        let Some(known) = self.pools.get_mut(&pool.id) else {
            return Reply::Refused(format!("there is no {}", pool.id));
        };
        let item = known.item.with_settings_of(pool);
        if known.item != item {
            self.version += 1;
            *known = Versioned { item, changed: self.version };
        }
        Reply::Done
    }

    pub(super) fn add_pool(&mut self, new: &NewPool) -> Reply {
        if let Some(fault) = self.fault_of_new_pool(new) {
            return Reply::Refused(fault);
        }
        self.version += 1;
        let changed = self.version;
        new.servers.iter().for_each(|server| _ = self.removed.remove(&server.id));
        self.add_servers(&new.servers);
        self.sets.extend(new.sets.iter().map(|set| Versioned { item: set.clone(), changed }));
        self.pools.insert(new.pool.id, Versioned { item: new.pool.clone(), changed });
        let is_own = |id: &SetId| self.set(*id).is_some_and(|set| set.pool == new.pool.id);
        debug_assert!(new.pool.sets.iter().all(is_own), "a pool's chunks are in its own sets");
        Reply::Done
    }

    /// Why the pool cannot be added, if so.
    fn fault_of_new_pool(&self, new: &NewPool) -> Option<String> {
        let (pool, first) = (&new.pool, self.sets.len() as u16);
        if self.pools().any(|known| known.name == pool.name) {
            return Some(format!("pool {:?} exists already", pool.name));
        }
        if usize::from(pool.id.0) != self.pools.len() + 1 || pool.sets.first() != Some(&SetId(first)) {
            return Some(format!(
                "pool {:?} is not the next one: new [[pool]] sections come last in the file, and are created in their order",
                pool.name
            ));
        }
        if let Some(known) = new.servers.iter().find(|server| self.servers.contains_key(&server.id)) {
            return Some(format!(
                "{} is part of the cluster already: a new pool needs new [[server]] sections",
                known.id
            ));
        }
        let sets = pool.sets.iter().map(|set| SetId(set.0.wrapping_sub(first))).collect();
        let alone = Bootstrap {
            params: self.params.clone()?,
            servers: new.servers.clone(),
            groups: Vec::new(),
            pools: vec![PoolEntry { sets, ..pool.clone() }],
            sets: new.sets.clone(),
            schedule: self.schedule,
        };
        alone.fault_of_pools(&alone.servers.iter().map(|server| (server.id, server)).collect())
    }

    pub(super) fn reconfigure_sets(&mut self, changes: &[SetChange]) -> Reply {
        let is_fresh =
            |change: &&SetChange| self.set(change.set).is_some_and(|set| set.epoch == change.expected);
        let fresh: BTreeMap<SetId, &SetChange> =
            changes.iter().filter(is_fresh).map(|change| (change.set, change)).collect();
        let broken = |change: &SetChange| {
            let rule = self.check_set(change).err()?;
            Some(format!("{}: {rule}: {:?}", change.set, change.entry))
        };
        // Before anything changes: a panic here would hit every member again at every start.
        if let Some(rule) = fresh.values().find_map(|change| broken(change)) {
            return Reply::Broken(rule);
        }
        let after = self.sets().map(|(id, entry)| fresh.get(&id).map_or(entry, |change| &change.entry));
        if let Some(server) = doubled(after) {
            return Reply::Broken(format!("{server} has columns of two sets"));
        }
        let made = fresh.len();
        let items: Vec<(SetId, SetEntry)> =
            fresh.into_iter().map(|(set, change)| (set, change.entry.clone())).collect();
        self.version += u64::from(made > 0);
        for (set, item) in items {
            debug_assert!(item.epoch > self.sets[usize::from(set.0)].item.epoch, "a set's epoch only rises");
            self.sets[usize::from(set.0)] = Versioned { item, changed: self.version };
        }
        Reply::Reconfigured { made, stale: changes.len() - made }
    }

    fn check_set(&self, change: &SetChange) -> Result<(), &'static str> {
        let (new, old) = (&change.entry, self.set(change.set).ok_or("the set exists")?);
        let holds = |rule: &'static str, holds: bool| if holds { Ok(()) } else { Err(rule) };
        holds("the epoch grows by one", new.epoch == change.expected.next())?;
        holds("a set keeps its pool and its code", (new.pool, new.shape) == (old.pool, old.shape))?;
        holds("k + m columns", new.columns.len() == new.shape.servers())?;
        holds("one column per server", doubled([new]).is_none())?;
        let data = &new.columns[..new.shape.data()];
        let is_whole = data.iter().all(|column| column.state == SlotState::InSync);
        holds("a set goes to sleep whole", old.hibernates() || !new.hibernates() || is_whole)?;
        for (column, before) in new.columns.iter().zip(&old.columns) {
            let server = self.server(column.server).ok_or("a column's server is part of the cluster")?;
            holds("a column's server is of the set's pool", server.pool == new.pool)?;
            let since = column.state.lacks_since();
            holds("nothing is missed from the future", since.is_none_or(|since| since <= new.epoch))?;
            if column.server != before.server {
                holds("a column that moves lacks everything", since == Some(Epoch(0)))?;
            } else if before.is_away() {
                holds("a column that was away catches up", since.is_some())?;
            }
            if let (Some(before), Some(since)) = (before.state.lacks_since(), since) {
                holds("what a column lacks stays on record", since <= before)?;
            }
        }
        Ok(())
    }
}

/// A server that has two columns.
fn doubled<'a>(sets: impl IntoIterator<Item = &'a SetEntry>) -> Option<ServerId> {
    let mut known = BTreeSet::new();
    let servers = sets.into_iter().flat_map(|set| &set.columns).map(|column| column.server);
    servers.into_iter().find(|server| !known.insert(*server))
}

impl Bootstrap {
    /// Why these are no valid erasure-coded pools, if so.
    pub(super) fn fault_of_pools(&self, servers: &BTreeMap<ServerId, &NewServer>) -> Option<String> {
        let mut pools: BTreeMap<PoolId, &PoolEntry> = BTreeMap::new();
        let mut named = BTreeSet::new();
        for pool in &self.pools {
            let name = &pool.name;
            if pool.id == PoolId::REPLICATED || pools.insert(pool.id, pool).is_some() {
                return Some(format!("pool {name:?} has the id of another pool: give each its own"));
            }
            if !named.insert(name) {
                return Some(format!("two pools are called {name:?}: give each its own name"));
            }
            if pool.parity_buffer_bytes == 0 {
                return Some(format!(
                    "pool {name:?} has no room for the parity of sleeping servers: give it some"
                ));
            }
            if pool.sets.is_empty() {
                return Some(format!("pool {name:?} has no set: give it {} servers", pool.shape.servers()));
            }
        }
        for server in &self.servers {
            let (id, pool) = (server.id, server.pool);
            if pool != PoolId::REPLICATED && !pools.contains_key(&pool) {
                return Some(format!("{id} is in {pool}, which is not configured"));
            }
            if pool != PoolId::REPLICATED && server.gear_group != NO_GEAR {
                return Some(format!("{id} of {pool} is in {}: gears do not concern it", server.gear_group));
            }
        }
        if let Some(server) = doubled(&self.sets) {
            return Some(format!("{server} has two columns: a server takes part in one set, once"));
        }
        let mut of_pools: Vec<SetId> = self.pools.iter().flat_map(|pool| &pool.sets).copied().collect();
        of_pools.sort();
        if !of_pools.iter().copied().eq((0u16..).map(SetId).take(self.sets.len())) {
            return Some(format!(
                "the pools name sets {of_pools:?}, and there are {}: name each once",
                self.sets.len()
            ));
        }
        let sets = self.pools.iter().flat_map(|pool| pool.sets.iter().map(move |set| (pool, *set)));
        sets.into_iter().find_map(|(pool, set)| self.fault_of_set(pool, set, servers))
    }

    fn fault_of_set(
        &self,
        pool: &PoolEntry,
        id: SetId,
        servers: &BTreeMap<ServerId, &NewServer>,
    ) -> Option<String> {
        let set = &self.sets[usize::from(id.0)];
        if (set.pool, set.shape) != (pool.id, pool.shape) {
            return Some(format!(
                "{id} is a set of {} in {}, not of {} in {}",
                set.shape, set.pool, pool.shape, pool.id
            ));
        }
        if set.columns.len() != set.shape.servers() {
            return Some(format!("{id} has {} servers, not {}", set.columns.len(), set.shape.servers()));
        }
        if set.epoch != Epoch(1) || set.columns.iter().any(|column| column.state != SlotState::InSync) {
            return Some(format!("{id} does not begin at epoch 1 with all columns in sync"));
        }
        set.columns.iter().map(|column| column.server).find_map(|server| match servers.get(&server) {
            None => Some(format!("{id} names {server}, which is not configured")),
            Some(s) if s.pool != pool.id => {
                Some(format!("{id} of {} names {server}, which is in {}", pool.id, s.pool))
            }
            Some(_) => None,
        })
    }
}
