//! R19: at rest nothing is left over, and no list grows with history. Here: the deletions that stores remember, what
//! they keep in a role that no server needs any more, and the records that they do not know to be on all targets.

use crate::engine::SECOND;
use crate::search::harness::World;
use ebb_chunkserver::Event;
use ebb_store::{Op, Outcome};
use ebb_types::{Epoch, GroupId, Kind, Random, Role, ServerId, ServerState, SetId, SlotState, mix};
use std::collections::BTreeSet;

/// How often servers are asked again.
const TRIES: u32 = 15;

impl World<'_> {
    /// At rest: where all copies are in sync, no server remembers a deletion; where all columns are, none of an earlier
    /// epoch than the set's, and of that one not more than it may.
    pub fn r19_deletions_are_forgotten(&mut self) {
        let (state, most) = (self.newest_state(), self.settings.deletions);
        let mut whole: Vec<(GroupId, ServerId, Epoch)> = Vec::new();
        for (group, entry) in state.groups().filter(|(_, entry)| entry.is_in_sync()) {
            whole.extend(entry.slots.iter().map(|slot| (group, slot.server, entry.epoch.next())));
        }
        for (set, entry) in state.sets() {
            whole.extend(columns_in_sync(set, entry).map(|(group, server)| (group, server, entry.epoch)));
        }
        for (group, id, before) in whole {
            let server = self.server(id);
            if !server.runs() {
                continue; // it sleeps or was just put to sleep
            }
            let store = &mut server.store;
            if !store.damaged.is_empty() {
                continue; // a repair may wait for ever
            }
            let (role, since, limit) = (Role::Replica, Epoch(0), usize::MAX);
            let list = Op::List { role, group, since, after: None, limit };
            let Outcome::Listed(page) = store.answer(list) else { continue };
            let deletion = |run: &&ebb_types::Run| run.kind == Kind::Delete && run.version.epoch < before;
            // An older copy brought a write of the deleted chunk back, which was settled with zeroes: the deletion goes
            // with the chunk, once the namespace frees what nothing names.
            let came_back = |deletion: &ebb_types::Run| {
                page.runs.iter().any(|run| run.chunk == deletion.chunk && run.version > deletion.version)
            };
            if let Some(run) = page.runs.iter().filter(deletion).find(|run| !came_back(run)) {
                let what = format!(
                    "{id} still remembers the deletion of {} as {} in {group}",
                    run.chunk, run.version
                );
                return self.fail("R19", what);
            }
            let deletions = page.runs.iter().filter(|run| run.kind == Kind::Delete).count();
            if group.column().is_some() && deletions > most {
                return self.fail(
                    "R19",
                    format!("{id} remembers {deletions} deletions in {group}, of at most {most}"),
                );
            }
        }
    }

    /// At rest: no server keeps anything, a deletion included, in a role that the configuration does not give it: as a
    /// replica without a slot or a column, or for a slot or a column that lacks nothing.
    pub fn r19_roles_are_needed(&mut self) {
        for id in self.servers_at_rest() {
            let server = &self.servers[&id];
            let durable = server.store.all_roles().into_iter();
            let all: BTreeSet<(GroupId, Role)> = durable.chain(server.replica().roles_in_memory()).collect();
            let left = all.into_iter().find(|(group, role)| !self.is_needed(id, *group, *role));
            if let Some((group, role)) = left {
                return self.fail("R19", format!("{id} still keeps something of {group} as {role:?}"));
            }
        }
    }

    fn is_needed(&self, id: ServerId, group: GroupId, role: Role) -> bool {
        let state = self.newest_state();
        if let Some((set, nth)) = group.column() {
            let Some(entry) = state.set(set) else { return false };
            return match role {
                Role::Replica => entry.columns.get(nth).is_some_and(|column| column.server == id),
                Role::Offload { .. } => {
                    entry.hibernates() || entry.columns.iter().any(|c| c.state != SlotState::InSync)
                }
            };
        }
        let Some(entry) = state.group(group) else { return false };
        match role {
            // A copy that is not complete may need what is here.
            Role::Replica => entry.slot_of(id).is_some() || !entry.is_complete(),
            Role::Offload { stands_for } => {
                entry.slot_of(stands_for).is_some_and(|slot| slot.state != SlotState::InSync)
            }
        }
    }

    /// At rest: every server knows that all records of a group in sync are on all targets. It has its store note that,
    /// as one does whose store is full, and then the store keeps no record open. The notes of requests are such records
    /// too.
    pub fn r19_records_are_settled(&mut self, round: u32) {
        // What stays open is also a part of what comes next. And what no copy can repair may keep copies busy.
        if self.violation.is_some()
            || !self.harness.invariants.ruined.is_empty()
            || !Random::new(mix(self.settings.seed ^ mix(u64::from(round) ^ 0x0107))).chance(500)
        {
            return;
        }
        // A disk that repairs what has rotted takes a while, and an epoch that begins meanwhile orders again.
        let mut left = self.unsettled();
        for _ in 0..TRIES {
            left = left.and_then(|_| self.unsettled());
        }
        if let Some((id, group, open)) = left {
            let what = format!("{id} does not know that {open} records of {group} are on all targets");
            self.fail("R19", what);
        }
    }

    /// All servers are asked to record what is on all targets. One that has records of a group of which it does not
    /// know that, after a while.
    fn unsettled(&mut self) -> Option<(ServerId, GroupId, usize)> {
        let servers = self.servers_at_rest();
        for id in &servers {
            self.server_event(*id, Event::NoteCommits);
        }
        self.run_until(self.now + 2 * SECOND, |_| false);
        let in_sync = |group| self.newest_state().group(group).is_some_and(|entry| entry.is_in_sync());
        let mut tails = servers.into_iter().flat_map(|id| {
            let open = self.servers[&id].store.open_records();
            open.into_iter().map(move |(group, open)| (id, group, open))
        });
        tails.find(|(_, group, open)| *open > 0 && in_sync(*group))
    }

    fn servers_at_rest(&self) -> Vec<ServerId> {
        let state = self.newest_state();
        let part = |id: &ServerId| state.server(*id).is_some_and(|entry| entry.state != ServerState::Lost);
        self.servers.values().filter(|s| !s.lost && s.runs()).map(|s| s.id).filter(part).collect()
    }
}

/// The columns of a set that lacks nothing, with their servers.
fn columns_in_sync(
    set: SetId,
    entry: &ebb_types::SetEntry,
) -> impl Iterator<Item = (GroupId, ServerId)> + use<> {
    let whole = entry.is_in_sync() && !entry.hibernates();
    let servers: Vec<ServerId> =
        if whole { entry.columns.iter().map(|own| own.server).collect() } else { Vec::new() };
    servers.into_iter().enumerate().map(move |(column, server)| (GroupId::of_column(set, column), server))
}

#[cfg(test)]
mod tests {
    use crate::search::client::shared_chunk;
    use crate::search::stories::{ask, broken, cluster, primary, secondary, stray, write};
    use bytes::Bytes;
    use ebb_types::{Content, Epoch, GroupId, Record, Role, Version};

    #[test]
    fn a_deletion_that_is_remembered_for_no_reason_is_seen() {
        let mut world = cluster();
        world.r19_deletions_are_forgotten();
        assert_eq!(broken(&mut world), None);
        let (id, version) = (secondary(&world), Version { epoch: Epoch(1), seq: 1000 });
        let chunk = shared_chunk(7);
        let (group, content) = (GroupId(0), Content::Delete);
        let record = Record { group, chunk, first: 0, count: 0, version, request: None, content };
        world.server(id).store.put(Role::Replica, record, Bytes::new());
        world.r19_deletions_are_forgotten();
        assert_eq!(broken(&mut world), Some("R19"));
    }

    #[test]
    fn what_is_kept_in_a_role_that_is_over_is_seen() {
        let mut world = cluster();
        world.r19_roles_are_needed();
        assert_eq!(broken(&mut world), None);
        let (id, version) = (secondary(&world), Version { epoch: Epoch(1), seq: 1000 });
        let record = Record {
            group: GroupId(0),
            chunk: shared_chunk(7),
            first: 0,
            count: 0,
            version,
            request: None,
            content: Content::Delete,
        };
        // No bytes, so no debt: only the deletion of a chunk.
        let role = Role::Offload { stands_for: primary(&world) };
        world.server(id).store.put(role, record, Bytes::new());
        world.r19_roles_are_needed();
        assert_eq!(broken(&mut world), Some("R19"));
    }

    #[test]
    fn a_record_that_no_server_settles_is_seen() {
        let mut world = cluster();
        ask(&mut world, write(2, 1));
        // The seed of this world notes commits in some round.
        (0..8).for_each(|round| world.r19_records_are_settled(round));
        assert_eq!(broken(&mut world), None);
        let id = secondary(&world);
        world.server(id).store.put(Role::Replica, stray(), Bytes::new());
        (0..8).for_each(|round| world.r19_records_are_settled(round));
        assert_eq!(broken(&mut world), Some("R19"));
    }
}
