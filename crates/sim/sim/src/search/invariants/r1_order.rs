//! R1: only the primary of the newest epoch orders writes; replicas and holders refuse any older epoch. [Sierra §3.5]
//!
//! Seen from outside: a server's fence never goes back while it runs; only the primary named in an epoch's
//! configuration sends records with versions of that epoch; and a version is used once, for one content.

use crate::search::client::CELL_BYTES;
use crate::search::harness::World;
use crate::world::brief::brief_entry;
use crate::world::server::record_of;
use ebb_chunkserver::StoreCommand;
use ebb_types::{
    BLOCK_BYTES, Content, Epoch, GroupId, PeerMessage, ServerId, Version, crc32c, lost_block_crc,
};

impl World<'_> {
    pub(super) fn r1_fences(&mut self, id: ServerId) {
        let server = &self.servers[&id];
        let (life, fences) = self.harness.invariants.fences.entry(id).or_default();
        if *life != server.life {
            (*life, *fences) = (server.life, Vec::new());
        }
        let groups = self.settings.params().groups;
        fences.resize(groups as usize, Epoch::default());
        for (group, last) in (0..groups).map(GroupId).zip(fences) {
            let fence = server.replica().fence_of(group);
            // A group that no longer concerns the server is forgotten until a message about it arrives.
            if fence < *last && fence.0 > 0 {
                let what = format!("{id} went back from {last} to {fence} in {group}");
                return self.fail("R1", what);
            }
            *last = fence.max(*last);
        }
    }

    pub(super) fn r1_only_the_primary_orders(&mut self, from: ServerId, message: &PeerMessage) {
        let PeerMessage::Replicate { epoch, record, .. } = message else { return };
        if record.version.epoch != *epoch {
            return;
        }
        let entry = self.harness.invariants.entries.get(&(record.group, *epoch));
        if entry.is_none_or(|e| e.primary != Some(from)) {
            let what = format!(
                "{from} orders {} {} and is not its primary: {}",
                record.group,
                record.version,
                entry.map_or("no server knows that epoch".into(), brief_entry)
            );
            self.fail("R1", what);
        }
    }

    pub(super) fn r1_one_content_per_version(&mut self, command: &StoreCommand) {
        let Some((record, payload)) = record_of(command) else { return };
        let sets_no_blocks = matches!(record.content, Content::Delete | Content::Note);
        if record.version == Version::ZERO || sets_no_blocks {
            return;
        }
        if record.group.column().is_some() {
            return self.r1_one_content_per_row(record, payload);
        }
        for n in 0..record.count {
            let data = match &record.content {
                // Stored as lost: damage, and no content.
                Content::Data { crcs } if crcs.get(n as usize) == Some(&lost_block_crc()) => continue,
                Content::Data { .. } => &payload[n as usize * BLOCK_BYTES..][..BLOCK_BYTES],
                _ => &[],
            };
            let key = (record.chunk, record.first + n, record.version);
            let sum = crc32c(data);
            match self.harness.invariants.contents.get(&key) {
                Some(known) if *known != sum => {
                    let what = format!("{} block {} has two contents in {}", key.0, key.1, key.2);
                    return self.fail("R1", what);
                }
                Some(_) => {}
                None => {
                    self.harness.invariants.contents.insert(key, sum);
                    for cell in data.chunks(CELL_BYTES as usize) {
                        let value = u64::from_le_bytes(cell[..8].try_into().expect("eight bytes"));
                        let first =
                            self.harness.invariants.first_version.entry(value).or_insert(record.version);
                        *first = record.version.min(*first);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::search::client::shared_chunk;
    use crate::search::stories::{GROUP, broken, cluster, entry, primary, secondary};
    use bytes::Bytes;
    use ebb_chunkserver::StoreCommand;
    use ebb_types::{BLOCK_BYTES, Content, Epoch, PeerMessage, Record, Role, Version};

    fn record(version: Version, content: Content) -> Record {
        Record { group: GROUP, chunk: shared_chunk(0), first: 0, count: 1, version, request: None, content }
    }

    #[test]
    fn a_fence_that_goes_back_is_seen() {
        let mut world = cluster();
        let id = primary(&world);
        world.r1_fences(id);
        assert_eq!(broken(&mut world), None);
        world.harness.invariants.fences.get_mut(&id).unwrap().1[GROUP.0 as usize] = Epoch(99);
        world.r1_fences(id);
        assert_eq!(broken(&mut world), Some("R1"));
    }

    #[test]
    fn a_write_that_another_than_the_primary_orders_is_seen() {
        let mut world = cluster();
        let epoch = entry(&world).epoch;
        let record = record(Version { epoch, seq: 9 }, Content::Zero);
        let committed = Version::ZERO;
        let message =
            PeerMessage::Replicate { epoch, role: Role::Replica, record, committed, must_fit: false };
        world.r1_only_the_primary_orders(primary(&world), &message);
        assert_eq!(broken(&mut world), None);
        world.r1_only_the_primary_orders(secondary(&world), &message);
        assert_eq!(broken(&mut world), Some("R1"));
    }

    #[test]
    fn a_version_with_two_contents_is_seen() {
        let mut world = cluster();
        let version = Version { epoch: Epoch(50), seq: 1 };
        let apply = |byte: u8| StoreCommand::Apply {
            role: Role::Replica,
            record: record(version, Content::Data { crcs: Vec::new() }),
            payload: Bytes::from(vec![byte; BLOCK_BYTES]),
            must_fit: false,
            committed: Version::ZERO,
        };
        world.r1_one_content_per_version(&apply(1));
        world.r1_one_content_per_version(&apply(1));
        assert_eq!(broken(&mut world), None);
        world.r1_one_content_per_version(&apply(2));
        assert_eq!(broken(&mut world), Some("R1"));
    }
}
