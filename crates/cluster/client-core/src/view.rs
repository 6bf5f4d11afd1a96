//! A client's view of its cluster.

use ebb_types::{
    ChunkId, ClusterMap, ClusterParams, Epoch, GroupEntry, GroupId, MapDelta, MetaRequest, Moment, ServerId,
    SetEntry, SetId, Version,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Minimum time between two requests for the map, whatever the number of requests in trouble.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);
/// Minimum time between two requests to wake one set: they are repeated, because a leader that is replaced forgets
/// them.
const WAKE_PAUSE: Duration = Duration::from_millis(500);

/// A group's configuration and its primary; for a column of an erasure-coded set, the server that has a chunk's strips
/// of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub epoch: Epoch,
    pub primary: ServerId,
}

/// Parameters and map. Updated by pushes and replies of the metadata service, and by replies of servers that have newer
/// entries.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Absent until the first leader answered.
    params: Option<ClusterParams>,
    map: Arc<ClusterMap>,
    /// The newest version that each group's primary is known to have assigned.
    newest: BTreeMap<GroupId, Version>,
    /// When the map was last asked for.
    asked: Option<Moment>,
    /// When each set was last asked to wake.
    woken: BTreeMap<SetId, Moment>,
}

impl View {
    pub fn params(&self) -> Option<&ClusterParams> {
        self.params.as_ref()
    }

    pub fn map(&self) -> &Arc<ClusterMap> {
        &self.map
    }

    pub fn set_params(&mut self, params: ClusterParams) {
        self.params = Some(params);
    }

    /// Applies the reply to [`View::question`]. `false`: it leaves a gap.
    pub fn learn(&mut self, params: ClusterParams, delta: &MapDelta) -> bool {
        self.set_params(params);
        self.apply(delta)
    }

    /// Applies a change of the map. `false`: it leaves a gap, and the map must be asked for.
    pub fn apply(&mut self, delta: &MapDelta) -> bool {
        Arc::make_mut(&mut self.map).apply(delta)
    }

    /// Adopts the entry from a server's reply, if it is newer.
    pub fn adopt(&mut self, group: GroupId, entry: GroupEntry) {
        if self.is_news(group, &entry) {
            Arc::make_mut(&mut self.map).groups[group.0 as usize] = entry;
        }
    }

    /// The same for a set.
    pub fn adopt_set(&mut self, set: SetId, entry: SetEntry) {
        if self.is_set_news(set, &entry) {
            Arc::make_mut(&mut self.map).sets[usize::from(set.0)] = entry;
        }
    }

    pub(crate) fn is_set_news(&self, set: SetId, entry: &SetEntry) -> bool {
        self.map.set(set).is_some_and(|known| known.epoch < entry.epoch)
    }

    pub(crate) fn is_news(&self, group: GroupId, entry: &GroupEntry) -> bool {
        self.map.group(group).is_some_and(|known| known.epoch < entry.epoch)
    }

    /// Notes a version that a group's primary has assigned.
    pub fn hear(&mut self, group: GroupId, newest: Version) {
        let known = self.newest.entry(group).or_default();
        *known = newest.max(*known);
    }

    /// Any write of a request that begins now gets a later version than this.
    pub(crate) fn newest(&self, group: GroupId, route: Route) -> Version {
        let known = self.newest.get(&group).copied().unwrap_or_default();
        known.max(Version::first_of(route.epoch))
    }

    /// Where a request about the chunk goes.
    pub fn route(&self, group: GroupId, chunk: ChunkId) -> Option<Route> {
        if let Some((set, column)) = group.column() {
            let entry = self.map.set(set)?;
            let primary = entry.targets(chunk).get(column).copied().flatten()?;
            return Some(Route { epoch: entry.epoch, primary });
        }
        let entry = self.map.group(group)?;
        Some(Route { epoch: entry.epoch, primary: entry.primary? })
    }

    /// The set that has the group's column, if it hibernates.
    pub(crate) fn hibernates(&self, group: GroupId) -> Option<SetId> {
        let (set, _) = group.column()?;
        self.map.set(set).filter(|entry| entry.hibernates()).map(|_| set)
    }

    /// The request that wakes a set, unless it was sent just now.
    pub fn wake(&mut self, now: Moment, set: SetId) -> Option<MetaRequest> {
        if self.woken.get(&set).is_some_and(|asked| now.since(*asked) < WAKE_PAUSE) {
            return None;
        }
        self.woken.insert(set, now);
        Some(MetaRequest::Wake { set })
    }

    /// The request for what is new in the map.
    pub fn question(&self) -> MetaRequest {
        MetaRequest::Watch { map_version: self.map.version }
    }

    /// The same, unless the map was asked for just now.
    pub fn refresh(&mut self, now: Moment) -> Option<MetaRequest> {
        if self.asked.is_some_and(|asked| now.since(asked) < REFRESH_PAUSE) {
            return None;
        }
        self.asked = Some(now);
        Some(self.question())
    }
}
