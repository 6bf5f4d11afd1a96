//! Requests that the operator sends to chunk servers directly: compares the replicas of every chunk group block by
//! block, and starts scrubs.

use crate::cluster::config::Config;
use crate::error::NodeError;
use bytes::Bytes;
use ebb_client::transport::{Connection, Identity, Party, connect, kind};
use ebb_client::{Client, Secret};
use ebb_types::{ChunkId, GroupId, InspectReply, InspectRequest, ServerId, SlotState};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    pub groups_compared: u32,
    /// Groups with a replica that was not in sync: they could not be compared.
    pub groups_out_of_sync: u32,
    /// Groups whose replicas differ.
    pub groups_different: u32,
    /// Blocks of 4 KiB that are not all zero, counted once per group.
    pub blocks: u64,
    pub differences: Vec<Difference>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub group: u32,
    /// Chunks that differ, as `object.index`.
    pub chunks: Vec<String>,
    pub servers: Vec<u16>,
}

/// Exit code of a check that ran and found a difference, so scripts can tell it from a check that could not run.
const DIFFERENT: u8 = 3;

impl Comparison {
    /// One that could not compare everything failed, and found nothing.
    pub fn exit_code(&self) -> ExitCode {
        match (self.groups_different, self.groups_out_of_sync) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::FAILURE,
            _ => ExitCode::from(DIFFERENT),
        }
    }
}

struct Digest {
    digest: u64,
    blocks: u64,
    chunks: BTreeMap<ChunkId, u64>,
}

/// Asks every server for the digests of its groups. `verify`: read every block and check it against its checksum.
pub async fn compare(config: &Config, client: &Client, verify: bool) -> Result<Comparison, NodeError> {
    let map = client.map();
    let mut wanted: BTreeMap<ServerId, Vec<GroupId>> = BTreeMap::new();
    let mut comparison = Comparison::default();
    let mut compared = Vec::new();
    for (id, entry) in (0..).map(GroupId).zip(&map.groups) {
        if entry.is_in_sync() {
            compared.push(id);
            entry.slots.iter().for_each(|s| wanted.entry(s.server).or_default().push(id));
        } else if entry.slots.iter().any(|s| s.state != SlotState::InSync) {
            comparison.groups_out_of_sync += 1;
        }
    }
    let mut digests: BTreeMap<(GroupId, ServerId), Digest> = BTreeMap::new();
    for (server, groups) in wanted {
        let refused = |why: String| NodeError::Refused(format!("{server} cannot be compared: {why}"));
        ask(reach(config, client, server).await?, &groups, verify, |group, digest| {
            digests.insert((group, server), digest);
        })
        .await
        .map_err(refused)?;
    }
    for group in compared {
        comparison.groups_compared += 1;
        let of_group: Vec<(ServerId, &Digest)> = digests
            .range((group, ServerId(0))..=(group, ServerId(u16::MAX)))
            .map(|((_, s), d)| (*s, d))
            .collect();
        let Some((_, first)) = of_group.first() else { continue };
        comparison.blocks += first.blocks;
        if of_group.iter().any(|(_, d)| d.digest != first.digest) {
            comparison.groups_different += 1;
            comparison.differences.push(difference(group, &of_group));
        }
    }
    Ok(comparison)
}

async fn reach(config: &Config, client: &Client, server: ServerId) -> Result<Connection, NodeError> {
    let secret = Secret::load(&config.path(&config.cluster.secret_file))?;
    let own = Identity { cluster: config.cluster_id()?, party: Party::Client };
    let connected = connect(&client.map().servers[&server].address, &secret, own).await;
    connected.map_err(|e| NodeError::Refused(format!("{server} cannot be reached: {e}")))
}

/// Starts a scrub of a server's replicas; returns how many there are.
pub async fn scrub(config: &Config, client: &Client, server: ServerId) -> Result<u32, NodeError> {
    let mut connection = reach(config, client, server).await?;
    let refused = |why: String| NodeError::Refused(format!("{server} does not scrub: {why}"));
    let sent =
        connection.sender.send_wait(kind::INSPECT_REQUEST, 0, &InspectRequest::Scrub, Bytes::new()).await;
    sent.map_err(|e| refused(e.to_string()))?;
    let frame = connection.receiver.next().await.map_err(|e| refused(e.to_string()))?;
    match frame.map(|frame| frame.decode::<InspectReply>()) {
        Some(Ok((_, InspectReply::Scrub { replicas }))) => Ok(replicas),
        other => Err(refused(format!("its answer is {other:?}"))),
    }
}

fn difference(group: GroupId, replicas: &[(ServerId, &Digest)]) -> Difference {
    let all: BTreeSet<ChunkId> = replicas.iter().flat_map(|(_, d)| d.chunks.keys().copied()).collect();
    let differs = |chunk: &ChunkId| {
        let of = |d: &Digest| d.chunks.get(chunk).copied();
        replicas.iter().any(|(_, d)| of(d) != of(replicas[0].1))
    };
    Difference {
        group: group.0,
        chunks: all.iter().filter(|c| differs(c)).map(|c| format!("{}.{}", c.object.0, c.index)).collect(),
        servers: replicas.iter().map(|(s, _)| s.0).collect(),
    }
}

/// Sends all requests at once, then collects the replies.
async fn ask(
    mut connection: Connection,
    groups: &[GroupId],
    verify: bool,
    mut found: impl FnMut(GroupId, Digest),
) -> Result<(), String> {
    for group in groups {
        let request = InspectRequest::Digest { group: *group, verify };
        let sent =
            connection.sender.send_wait(kind::INSPECT_REQUEST, group.0.into(), &request, Bytes::new()).await;
        sent.map_err(|e| e.to_string())?;
    }
    for _ in groups {
        let frame = connection.receiver.next().await.map_err(|e| e.to_string())?;
        let frame = frame.ok_or("the connection ended")?;
        match frame.decode::<InspectReply>().map_err(|e| e.to_string())? {
            (id, InspectReply::Digest { digest, blocks, chunks }) => {
                let digest = Digest { digest, blocks, chunks: chunks.into_iter().collect() };
                found(GroupId(id as u32), digest);
            }
            (_, InspectReply::Scrub { .. }) => return Err("the reply does not match the request".into()),
            (_, InspectReply::Failed { why }) => return Err(why),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_that_could_not_compare_all_is_no_difference() {
        let code = |groups_different, groups_out_of_sync| {
            let comparison = Comparison { groups_different, groups_out_of_sync, ..Comparison::default() };
            format!("{:?}", comparison.exit_code())
        };
        assert_eq!(code(0, 0), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(0, 576), format!("{:?}", ExitCode::from(1)));
        assert_eq!(code(1, 576), format!("{:?}", ExitCode::from(3)));
    }
}
