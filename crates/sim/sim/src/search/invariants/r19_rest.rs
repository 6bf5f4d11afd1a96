//! R19: at rest nothing is left over, and no list grows with history. Here: the deletions that stores remember.

use crate::world::World;
use ebb_store::{Op, Outcome};
use ebb_types::{Epoch, GroupId, Kind, Role, ServerId, SetId, SlotState};

impl World<'_> {
    /// At rest: where all copies are in sync, no server remembers a deletion; where all columns are, none of an earlier
    /// epoch than the set's.
    pub fn r19_deletions_are_forgotten(&mut self) {
        let state = self.newest_state();
        let mut whole: Vec<(GroupId, ServerId, Epoch)> = Vec::new();
        for (group, entry) in state.groups().filter(|(_, entry)| entry.is_in_sync()) {
            whole.extend(entry.slots.iter().map(|slot| (group, slot.server, entry.epoch.next())));
        }
        for (set, entry) in state.sets() {
            whole.extend(columns_in_sync(set, entry).map(|(group, server)| (group, server, entry.epoch)));
        }
        for (group, id, before) in whole {
            let store = &mut self.server(id).store;
            if !store.damaged.is_empty() {
                continue; // a repair may wait for ever
            }
            let (role, since, limit) = (Role::Replica, Epoch(0), usize::MAX);
            let list = Op::List { role, group, since, after: None, limit };
            let Outcome::Listed(page) = store.answer(list) else { continue };
            let deletion = |run: &&ebb_types::Run| run.kind == Kind::Delete && run.version.epoch < before;
            if let Some(run) = page.runs.iter().find(deletion) {
                let what = format!(
                    "{id} still remembers the deletion of {} as {} in {group}",
                    run.chunk, run.version
                );
                return self.fail("R19", what);
            }
        }
    }
}

/// The columns of a set that lacks nothing, with their servers.
fn columns_in_sync(
    set: SetId,
    entry: &ebb_types::SetEntry,
) -> impl Iterator<Item = (GroupId, ServerId)> + use<> {
    let whole = entry.columns.iter().all(|own| own.state == SlotState::InSync) && !entry.hibernates();
    let servers: Vec<ServerId> =
        if whole { entry.columns.iter().map(|own| own.server).collect() } else { Vec::new() };
    servers.into_iter().enumerate().map(move |(column, server)| (GroupId::of_column(set, column), server))
}

#[cfg(test)]
mod tests {
    use crate::search::stories::{broken, cluster, secondary};
    use crate::world::client::shared_chunk;
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
}
