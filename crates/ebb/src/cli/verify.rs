//! Requests that the operator sends to chunk servers directly: compares the replicas of every chunk group block by
//! block, and starts scrubs.

use crate::cluster::config::Config;
use crate::error::{NodeError, refused};
use bytes::Bytes;
use ebb_client::transport::{Connection, Identity, Party, connect, kind};
use ebb_client::{Client, Secret};
use ebb_types::{ChunkId, GroupId, InspectReply, InspectRequest, ServerId, SlotState, counted};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

/// A group that differs is compared again after this pause, this often: while a write is under way, one replica has it
/// before another.
const PAUSE: Duration = Duration::from_secs(2);
const AGAIN: u32 = 15;
/// Comparisons in a row between which no replica's chunk changed, after which a difference counts: a record is under
/// way for less, or its server is suspected.
const STEADY: u32 = 4;

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    pub groups_compared: u32,
    /// Groups with a replica that was not in sync: they could not be compared.
    pub groups_out_of_sync: u32,
    /// Groups whose replicas differ.
    pub groups_different: u32,
    /// Groups that were written or freed all the time: they could not be compared.
    pub groups_busy: u32,
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

/// Exit code of a check. One that ran and found something has a code of its own, so that scripts can tell it from one
/// that could not look everywhere, and found nothing.
pub fn exit_code(found: u64, not_checked: u64) -> ExitCode {
    match (found, not_checked) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::FAILURE,
        _ => ExitCode::from(3),
    }
}

impl Comparison {
    pub fn text(&self) -> String {
        let mut out = format!(
            "{} compared: {} different, {}; {} not compared because a replica is not in sync\n",
            counted(self.groups_compared.into(), "group"),
            self.groups_different,
            counted(self.blocks, "block"),
            self.groups_out_of_sync
        );
        if self.groups_busy > 0 {
            out += &format!(
                "{} groups were written or freed all the time and could not be compared: try again in a quieter hour\n",
                self.groups_busy
            );
        }
        for Difference { group, servers, chunks } in &self.differences {
            out += &format!("group {group} on servers {servers:?}: chunks {}\n", chunks.join(" "));
        }
        out
    }

    pub fn exit_code(&self) -> ExitCode {
        exit_code(self.groups_different.into(), (self.groups_out_of_sync + self.groups_busy).into())
    }
}

struct Digest {
    digest: u64,
    blocks: u64,
    chunks: BTreeMap<ChunkId, u64>,
}

/// A group's replicas.
type Replicas = BTreeMap<ServerId, Digest>;

/// Asks by the map, and again while the servers that can be asked change: one that went to sleep meanwhile cannot be
/// reached, and is not to be asked.
pub async fn while_servers_change<T, Asked: Future<Output = Result<T, NodeError>>>(
    client: &Client,
    ask: impl Fn() -> Asked,
) -> Result<T, NodeError> {
    let live = || {
        let map = client.map();
        map.servers.keys().copied().filter(|server| map.is_live(*server)).collect::<BTreeSet<ServerId>>()
    };
    let mut before = live();
    for _ in 1..AGAIN {
        let outcome = ask().await;
        if outcome.is_err() && live() == before {
            // The map may arrive after the connection has ended.
            _ = tokio::time::timeout(PAUSE, client.map_changed()).await;
        }
        let now = live();
        if outcome.is_ok() || now == before {
            return outcome;
        }
        before = now;
    }
    ask().await
}

/// Asks every server for the digests of its groups. `verify`: read every block and check it against its checksum.
pub async fn compare(config: &Config, client: &Client, verify: bool) -> Result<Comparison, NodeError> {
    while_servers_change(client, || compare_once(config, client, verify)).await
}

async fn compare_once(config: &Config, client: &Client, verify: bool) -> Result<Comparison, NodeError> {
    let map = client.map();
    let mut comparison = Comparison::default();
    let mut compared: BTreeSet<GroupId> = BTreeSet::new();
    for (id, entry) in (0..).map(GroupId).zip(&map.groups) {
        if entry.is_in_sync() {
            compared.insert(id);
        } else if entry.slots.iter().any(|s| s.state != SlotState::InSync) {
            comparison.groups_out_of_sync += 1;
        }
    }
    comparison.groups_compared = compared.len() as u32;
    let first = digests(config, client, &compared, verify).await?;
    comparison.blocks = first.values().filter_map(|of| of.values().next()).map(|d| d.blocks).sum();
    let mut suspects = Suspects::new(first);
    for _ in 0..AGAIN {
        if suspects.is_empty() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        let again = digests(config, client, &suspects.groups(), false).await?;
        suspects.compare_again(again);
    }
    let (different, busy) = suspects.judge();
    comparison.groups_different = different.len() as u32;
    comparison.groups_busy = busy;
    comparison.differences = different;
    Ok(comparison)
}

/// The digests of these groups from all their servers, as far as they are still in sync.
async fn digests(
    config: &Config,
    client: &Client,
    groups: &BTreeSet<GroupId>,
    verify: bool,
) -> Result<BTreeMap<GroupId, Replicas>, NodeError> {
    let map = client.map();
    let mut wanted: BTreeMap<ServerId, Vec<GroupId>> = BTreeMap::new();
    for (id, entry) in (0..).map(GroupId).zip(&map.groups).filter(|(id, _)| groups.contains(id)) {
        if entry.is_in_sync() {
            entry.slots.iter().for_each(|s| wanted.entry(s.server).or_default().push(id));
        }
    }
    let mut digests: BTreeMap<GroupId, Replicas> = BTreeMap::new();
    for (server, groups) in wanted {
        let refused = |why: String| refused(format!("{server} cannot be compared: {why}"));
        let request = |group| InspectRequest::Digest { group, verify };
        let found = |group, reply| {
            let InspectReply::Digest { digest, blocks, chunks } = reply else { return false };
            let digest = Digest { digest, blocks, chunks: chunks.into_iter().collect() };
            digests.entry(group).or_default().insert(server, digest);
            true
        };
        inspect((config, client), server, &groups, request, found).await?.map_err(refused)?;
    }
    Ok(digests)
}

/// Groups whose replicas have differed in every comparison so far, and in how many of them in a row nothing has changed
/// in the chunks that differ.
struct Suspects(BTreeMap<GroupId, (Replicas, u32)>);

impl Suspects {
    fn new(first: BTreeMap<GroupId, Replicas>) -> Suspects {
        let differ = first.into_iter().filter(|(_, replicas)| !differing(replicas).is_empty());
        Suspects(differ.map(|(group, replicas)| (group, (replicas, 1))).collect())
    }

    /// Those that are not settled either way.
    fn groups(&self) -> BTreeSet<GroupId> {
        self.0.iter().filter(|(_, (_, steady))| *steady < STEADY).map(|(group, _)| *group).collect()
    }

    fn is_empty(&self) -> bool {
        self.groups().is_empty()
    }

    /// Takes another comparison of [`Suspects::groups`].
    fn compare_again(&mut self, mut again: BTreeMap<GroupId, Replicas>) {
        for group in self.groups() {
            let Some(now) = again.remove(&group) else { continue };
            let Some((before, steady)) = self.0.get_mut(&group) else { continue };
            let differ = differing(&now);
            let of = |replicas: &Replicas, chunk: &ChunkId| {
                replicas.iter().map(|(s, d)| (*s, d.chunks.get(chunk).copied())).collect::<Vec<_>>()
            };
            let stays = differ.iter().any(|chunk| of(before, chunk) == of(&now, chunk));
            *steady = if stays { *steady + 1 } else { 1 };
            *before = now;
            if differ.is_empty() {
                self.0.remove(&group);
            }
        }
    }

    /// The groups that differ, and the number of those that never stood still.
    fn judge(self) -> (Vec<Difference>, u32) {
        let (steady, busy): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|(_, (_, steady))| *steady >= STEADY);
        let different = steady.into_iter().map(|(group, (replicas, _))| Difference {
            group: group.0,
            chunks: differing(&replicas).iter().map(|c| format!("{}.{}", c.object.0, c.index)).collect(),
            servers: replicas.keys().map(|server| server.0).collect(),
        });
        (different.collect(), busy.len() as u32)
    }
}

/// The chunks in which the replicas differ.
fn differing(replicas: &Replicas) -> BTreeSet<ChunkId> {
    let Some(first) = replicas.values().next() else { return BTreeSet::new() };
    if replicas.values().all(|d| d.digest == first.digest) {
        return BTreeSet::new();
    }
    let all = replicas.values().flat_map(|d| d.chunks.keys().copied());
    all.filter(|chunk| replicas.values().any(|d| d.chunks.get(chunk) != first.chunks.get(chunk))).collect()
}

async fn reach(config: &Config, client: &Client, server: ServerId) -> Result<Connection, NodeError> {
    let secret = Secret::load(&config.path(&config.cluster.secret_file))?;
    let own = Identity { cluster: config.cluster_id()?, party: Party::Client };
    let connected = connect(&client.map().servers[&server].address, &secret, own).await;
    connected.map_err(|e| refused(format!("{server} cannot be reached: {e}")))
}

fn not_live(server: ServerId) -> NodeError {
    refused(format!("{server} was put to sleep or has failed meanwhile: try again"))
}

/// Starts a scrub of a server's replicas; returns how many there are.
pub async fn scrub(config: &Config, client: &Client, server: ServerId) -> Result<u32, NodeError> {
    let refused = |why: String| refused(format!("{server} does not scrub: {why}"));
    let answer = async {
        let mut connection = reach(config, client, server).await?;
        let sent =
            connection.sender.send_wait(kind::INSPECT_REQUEST, 0, &InspectRequest::Scrub, Bytes::new());
        sent.await.map_err(|e| refused(e.to_string()))?;
        let frame = connection.receiver.next().await.map_err(|e| refused(e.to_string()))?;
        match frame.map(|frame| frame.decode::<InspectReply>()) {
            Some(Ok((_, InspectReply::Scrub { replicas }))) => Ok(replicas),
            other => Err(refused(format!("its answer is {other:?}"))),
        }
    };
    client.while_live(server, answer).await.unwrap_or_else(|| Err(not_live(server)))
}

/// Sends a server a request for each group at once, then collects the replies, for as long as it is live. `found`
/// returns whether a reply is one to such a request.
pub async fn inspect(
    (config, client): (&Config, &Client),
    server: ServerId,
    groups: &[GroupId],
    request: impl Fn(GroupId) -> InspectRequest,
    found: impl FnMut(GroupId, InspectReply) -> bool,
) -> Result<Result<(), String>, NodeError> {
    let answers =
        async { Ok(inspect_by(reach(config, client, server).await?, groups, request, found).await) };
    client.while_live(server, answers).await.unwrap_or_else(|| Err(not_live(server)))
}

async fn inspect_by(
    mut connection: Connection,
    groups: &[GroupId],
    request: impl Fn(GroupId) -> InspectRequest,
    mut found: impl FnMut(GroupId, InspectReply) -> bool,
) -> Result<(), String> {
    for group in groups {
        let (id, request) = (group.0.into(), request(*group));
        let sent = connection.sender.send_wait(kind::INSPECT_REQUEST, id, &request, Bytes::new()).await;
        sent.map_err(|e| e.to_string())?;
    }
    for _ in groups {
        let frame = connection.receiver.next().await.map_err(|e| e.to_string())?;
        let frame = frame.ok_or("the connection ended")?;
        let (id, reply) = frame.decode::<InspectReply>().map_err(|e| e.to_string())?;
        if let InspectReply::Failed { why } = reply {
            return Err(why);
        }
        if !found(GroupId(id as u32), reply) {
            return Err("the reply does not match the request".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::ObjectId;

    const GROUP: GroupId = GroupId(7);

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

    fn chunk(index: u32) -> ChunkId {
        ChunkId { object: ObjectId(1), index }
    }

    /// The hashes of two chunks on each of two servers.
    fn seen(all: [[u64; 2]; 2]) -> BTreeMap<GroupId, Replicas> {
        let digest = |hashes: [u64; 2]| {
            let chunks = [(chunk(0), hashes[0]), (chunk(1), hashes[1])].into();
            Digest { digest: hashes[0] * 1000 + hashes[1], blocks: 2, chunks }
        };
        let replicas = (1..).map(ServerId).zip(all.map(digest)).collect();
        BTreeMap::from([(GROUP, replicas)])
    }

    #[test]
    fn what_is_being_written_differs_for_a_moment_only() {
        assert!(Suspects::new(seen([[1, 2], [1, 2]])).is_empty());
        let mut suspects = Suspects::new(seen([[1, 2], [1, 3]]));
        assert_eq!(suspects.groups(), BTreeSet::from([GROUP]));
        suspects.compare_again(seen([[1, 4], [1, 4]]));
        assert!(suspects.is_empty());
        assert_eq!(suspects.judge(), (Vec::new(), 0));
    }

    #[test]
    fn what_stays_different_while_nothing_changes_is_named() {
        let mut suspects = Suspects::new(seen([[1, 2], [1, 3]]));
        for other in 10..20 {
            // Another chunk is written all the time.
            suspects.compare_again(seen([[other, 2], [other + 1, 3]]));
        }
        let (different, busy) = suspects.judge();
        assert_eq!((different.len(), busy), (1, 0));
        assert_eq!(different[0].servers, [1, 2]);
        assert!(different[0].chunks.contains(&"1.1".to_owned()), "{different:?}");
    }

    #[test]
    fn what_never_stands_still_is_busy_and_not_different() {
        let mut suspects = Suspects::new(seen([[1, 2], [1, 3]]));
        for other in 10..20 {
            suspects.compare_again(seen([[1, other], [1, other + 1]]));
        }
        assert_eq!(suspects.judge(), (Vec::new(), 1));
    }
}
