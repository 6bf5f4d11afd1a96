//! `ebb verify --space`: is every durable byte named, leased or garbage? (R19)
//!
//! First every awake server lists its chunks, then the namespace is asked what each is for. In this order, because what
//! is written was leased before, or belongs to a volume that was created before: when its chunk is listed, the
//! namespace knows its object already. From then on an object goes one way only:
//!
//! leased → a part of an upload → named by a key, or a volume's slice → garbage → freed
//!
//! Steps may be left out, and none is taken back. So the namespace is asked in this order too, page by page: whatever
//! moves on meanwhile is met at a later stage. An object that is met at none is past the end: ids are leased once, and
//! only what is leased can be named, so nothing names it ever again. That is why freeing it takes nothing that has a
//! name. It is left over if a second listing still has it; else it was freed in the meantime, as it should be.
//!
//! Data that no gateway and no volume wrote has no name: what `ebb lab replay --config` writes, for as long as it runs.

use crate::cli::verify::{exit_code, inspect, while_servers_change};
use crate::cluster::config::Config;
use crate::error::{NodeError, refused};
use ebb_client::Client;
use ebb_output::table;
use ebb_types::{
    Bytes, ChunkId, ClusterMap, GroupId, InspectReply, InspectRequest, NamespaceAnswer, NamespaceError,
    NamespaceQuery, ObjectId, PAGE_MAX, PoolId, ServerId, SetId, SlotState,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// Chunks that are left over and shown.
const SHOWN: usize = 10;

/// What `ebb verify --space` found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Space {
    pub pools: Vec<PoolSpace>,
    /// Chunk groups and sets of which no complete server is awake.
    pub groups_not_listed: u32,
    pub sets_not_listed: u32,
    /// Sets that sleep as a whole, as they should.
    pub sets_hibernating: u32,
    /// Chunks that were left over and are freed.
    pub freed_chunks: u64,
}

/// Bytes are counted on disk, with all copies and strips on the servers that were asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolSpace {
    /// `None`: the replicated pool.
    pub pool: Option<String>,
    pub named: Amount,
    pub leased: Amount,
    pub volumes: Amount,
    pub notes: Amount,
    pub garbage: Amount,
    pub left_over: Amount,
    /// Deletions that servers remember, over all copies and strips.
    pub tombstones: u64,
    /// The first of what is left over, as `object.index`.
    pub left_over_first: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    pub chunks: u64,
    pub bytes: u64,
}

impl Space {
    /// What hibernates is no failure: it is looked at when it is awake.
    pub fn exit_code(&self) -> ExitCode {
        let not_listed = self.groups_not_listed + self.sets_not_listed;
        exit_code(self.left_over() - self.freed_chunks, not_listed.into())
    }

    pub fn text(&self) -> String {
        let amount = |of: Amount| match of.chunks {
            0 => "-".to_owned(),
            chunks => format!("{} in {chunks}", Bytes(of.bytes)),
        };
        let rows = self.pools.iter().map(|pool| {
            let name = pool.pool.clone().unwrap_or_else(|| "(replicated)".to_owned());
            let amounts =
                [pool.named, pool.volumes, pool.notes, pool.leased, pool.garbage, pool.left_over].map(amount);
            let tombstones = pool.tombstones.to_string();
            [name].into_iter().chain(amounts).chain([tombstones]).collect()
        });
        let header = ["pool", "named", "volumes", "notes", "leased", "garbage", "left over", "tombstones"];
        let mut out = String::new();
        table(&mut out, &header, &rows.collect::<Vec<_>>());
        for pool in self.pools.iter().filter(|pool| pool.left_over.chunks > 0) {
            let more = if pool.left_over.chunks > pool.left_over_first.len() as u64 { " ..." } else { "" };
            out += &format!("left over: {}{more}\n", pool.left_over_first.join(" "));
        }
        match (self.left_over(), self.freed_chunks) {
            (0, _) => {}
            (_, 0) => {
                out += "nothing names these chunks, and nothing can name them any more: `ebb verify --space --free` deletes them, unless \
                        `ebb lab replay --config` writes to this cluster now\n";
            }
            (_, freed) => out += &format!("{freed} chunks were deleted\n"),
        }
        if self.groups_not_listed + self.sets_not_listed > 0 {
            out += &format!(
                "{} chunk groups and {} sets were not listed: no complete server of theirs is awake\n",
                self.groups_not_listed, self.sets_not_listed
            );
        }
        if self.sets_hibernating > 0 {
            out += &format!(
                "not listed, because they hibernate: {} sets; reading from them wakes them\n",
                self.sets_hibernating
            );
        }
        out
    }

    fn left_over(&self) -> u64 {
        self.pools.iter().map(|pool| pool.left_over.chunks).sum()
    }
}

/// The chunks on the servers that were asked, with their bytes there.
#[derive(Default)]
struct Listing {
    chunks: BTreeMap<ChunkId, u64>,
    tombstones: BTreeMap<PoolId, u64>,
    groups_not_listed: u32,
    sets_not_listed: u32,
    sets_hibernating: u32,
}

/// What the namespace keeps an object for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Lease,
    Name,
    Volume,
    Garbage,
}

/// The owners of these objects, as far as they have one.
struct Owners<'a> {
    listed: &'a BTreeSet<ObjectId>,
    found: BTreeMap<ObjectId, Owner>,
}

impl Owners<'_> {
    fn note(&mut self, object: ObjectId, owner: Owner) {
        if self.listed.contains(&object) {
            self.found.entry(object).or_insert(owner);
        }
    }
}

/// Looks what every chunk is for. `free`: deletes what is left over.
pub async fn check(config: &Config, client: &Client, free: bool) -> Result<Space, NodeError> {
    let ask = async |query| Ok(client.query(query).await?);
    let mut listing = list(config, client).await?;
    let mut owners = owners_of(&listing, &ask).await?;
    let mut left_over = left_over(&listing, &owners);
    if !left_over.is_empty() {
        listing = list(config, client).await?;
        owners = owners_of(&listing, &ask).await?;
        left_over = self::left_over(&listing, &owners).intersection(&left_over).copied().collect();
    }
    let mut space = add_up(client, &listing, &owners, &left_over);
    if free {
        for chunk in left_over {
            client.delete(chunk).await?;
            space.freed_chunks += 1;
        }
    }
    Ok(space)
}

async fn list(config: &Config, client: &Client) -> Result<Listing, NodeError> {
    while_servers_change(client, || list_once(config, client)).await
}

async fn list_once(config: &Config, client: &Client) -> Result<Listing, NodeError> {
    let map = client.map();
    let (wanted, mut listing) = to_ask(&map);
    for (server, of) in wanted {
        let refused = |why: String| refused(format!("{server} does not list what it keeps: {why}"));
        let of: Vec<GroupId> = of.into_iter().collect();
        inspect(
            (config, client),
            server,
            &of,
            |group| InspectRequest::Space { group },
            |group, reply| {
                let InspectReply::Space { chunks, tombstones } = reply else { return false };
                let set = group.column().and_then(|(set, _)| map.set(set));
                let pool = set.map_or(PoolId::REPLICATED, |set| set.pool);
                *listing.tombstones.entry(pool).or_default() += tombstones;
                for (chunk, bytes) in chunks {
                    *listing.chunks.entry(chunk).or_default() += bytes;
                }
                true
            },
        )
        .await?
        .map_err(refused)?;
    }
    Ok(listing)
}

/// The groups and columns that each awake server is asked for.
fn to_ask(map: &ClusterMap) -> (BTreeMap<ServerId, BTreeSet<GroupId>>, Listing) {
    let (mut wanted, mut listing) = (BTreeMap::<ServerId, BTreeSet<GroupId>>::new(), Listing::default());
    let is_whole = |server, state| map.is_live(server) && state == SlotState::InSync;
    for (id, entry) in (0..).map(GroupId).zip(&map.groups) {
        for (server, _) in entry.members().filter(|(server, _)| map.is_live(*server)) {
            wanted.entry(server).or_default().insert(id);
        }
        let listed = entry.slots.iter().any(|slot| is_whole(slot.server, slot.state));
        listing.groups_not_listed += u32::from(!listed && !entry.slots.is_empty());
    }
    for (id, entry) in (0..).map(SetId).zip(&map.sets) {
        let columns = || (0..entry.strips()).map(|column| GroupId::of_column(id, column));
        for own in entry.columns.iter().filter(|own| map.is_live(own.server)) {
            wanted.entry(own.server).or_default().extend(columns());
        }
        // It has a strip of every row.
        let listed = entry.columns.iter().any(|own| is_whole(own.server, own.state));
        let of =
            if entry.hibernates() { &mut listing.sets_hibernating } else { &mut listing.sets_not_listed };
        *of += u32::from(!listed);
    }
    (wanted, listing)
}

type Answer = Result<Result<NamespaceAnswer, NamespaceError>, NodeError>;
type Done = Result<(), NodeError>;

async fn owners_of(
    listing: &Listing,
    ask: &impl AsyncFn(NamespaceQuery) -> Answer,
) -> Result<BTreeMap<ObjectId, Owner>, NodeError> {
    let listed: BTreeSet<ObjectId> = listing.chunks.keys().map(|chunk| chunk.object).collect();
    let mut owners = Owners { listed: &listed, found: BTreeMap::new() };
    find_leased(ask, &mut owners).await?;
    find_parts(ask, &mut owners).await?;
    find_named(ask, &mut owners).await?;
    find_volumes(ask, &mut owners).await?;
    find_garbage(ask, &mut owners).await?;
    Ok(owners.found)
}

pub fn nonsense() -> NodeError {
    refused("the metadata service's answer does not match the query: run the same release everywhere")
}

/// Asks page after page. `query`: for what comes after that; `take`: notes a page, and returns what the next one comes
/// after, or `None` at the end. A bucket, an upload or a volume that is gone meanwhile has left what it had to a later
/// stage, so its pages end. Any other answer is an error: with too few owners known, chunks that have a name would be
/// left over.
async fn pages<After>(
    ask: &impl AsyncFn(NamespaceQuery) -> Answer,
    first: After,
    query: impl Fn(After) -> NamespaceQuery,
    mut take: impl FnMut(NamespaceAnswer) -> Result<Option<After>, NodeError>,
) -> Done {
    use NamespaceError::{NoSuchBucket, NoSuchUpload, NoSuchVolume};
    let mut after = Some(first);
    while let Some(next) = after {
        after = match ask(query(next)).await? {
            Ok(page) => take(page)?,
            Err(NoSuchBucket | NoSuchUpload | NoSuchVolume) => None,
            Err(_) => return Err(nonsense()),
        };
    }
    Ok(())
}

async fn find_leased(ask: &impl AsyncFn(NamespaceQuery) -> Answer, owners: &mut Owners<'_>) -> Done {
    let query = |after| NamespaceQuery::Leased { after, limit: PAGE_MAX };
    let take = |page| {
        let NamespaceAnswer::Leased(page) = page else { return Err(nonsense()) };
        page.iter().for_each(|object| owners.note(*object, Owner::Lease));
        Ok(page.last().copied().map(Some))
    };
    pages(ask, None, query, take).await
}

async fn find_parts(ask: &impl AsyncFn(NamespaceQuery) -> Answer, owners: &mut Owners<'_>) -> Done {
    let Ok(NamespaceAnswer::Buckets(buckets)) = ask(NamespaceQuery::Buckets).await? else {
        return Err(nonsense());
    };
    for (bucket, _) in buckets {
        let mut all = Vec::new();
        let query = |after| {
            let (bucket, prefix) = (bucket.clone(), String::new());
            NamespaceQuery::Uploads { bucket, prefix, after, limit: PAGE_MAX }
        };
        let take = |page| {
            let NamespaceAnswer::Uploads { uploads, more } = page else { return Err(nonsense()) };
            all.extend(uploads.into_iter().map(|upload| (upload.key, upload.upload)));
            Ok(all.last().cloned().filter(|_| more))
        };
        pages(ask, (String::new(), 0), query, take).await?;
        for (key, upload) in all {
            find_parts_of(ask, owners, (&bucket, &key, upload)).await?;
        }
    }
    Ok(())
}

async fn find_parts_of(
    ask: &impl AsyncFn(NamespaceQuery) -> Answer,
    owners: &mut Owners<'_>,
    (bucket, key, upload): (&str, &str, u64),
) -> Done {
    let query = |after| {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        NamespaceQuery::Parts { bucket, key, upload, after, limit: PAGE_MAX }
    };
    let take = |page| {
        let NamespaceAnswer::Parts { parts, more } = page else { return Err(nonsense()) };
        let extents = parts.iter().flat_map(|(_, part)| &part.extents);
        extents.for_each(|extent| owners.note(extent.object, Owner::Name));
        Ok(parts.last().map(|(number, _)| *number).filter(|_| more))
    };
    pages(ask, 0, query, take).await
}

async fn find_named(ask: &impl AsyncFn(NamespaceQuery) -> Answer, owners: &mut Owners<'_>) -> Done {
    let query = |after| NamespaceQuery::Named { after, limit: PAGE_MAX };
    let take = |page| {
        let NamespaceAnswer::Named { names, next } = page else { return Err(nonsense()) };
        names.iter().flat_map(|name| &name.objects).for_each(|object| owners.note(*object, Owner::Name));
        Ok(next)
    };
    pages(ask, Vec::new(), query, take).await
}

async fn find_volumes(ask: &impl AsyncFn(NamespaceQuery) -> Answer, owners: &mut Owners<'_>) -> Done {
    let Ok(NamespaceAnswer::Volumes(volumes)) = ask(NamespaceQuery::Volumes).await? else {
        return Err(nonsense());
    };
    for (name, status) in volumes {
        owners.note(status.meta.object, Owner::Volume);
        let query = |after| NamespaceQuery::Slices { name: name.clone(), after, limit: PAGE_MAX };
        let take = |page| {
            let NamespaceAnswer::Slices { slices, more } = page else { return Err(nonsense()) };
            slices.iter().for_each(|(_, object)| owners.note(*object, Owner::Volume));
            Ok(slices.last().map(|(slice, _)| Some(*slice)).filter(|_| more))
        };
        pages(ask, None, query, take).await?;
    }
    Ok(())
}

async fn find_garbage(ask: &impl AsyncFn(NamespaceQuery) -> Answer, owners: &mut Owners<'_>) -> Done {
    let query = |after| NamespaceQuery::Garbage { after, limit: PAGE_MAX };
    let take = |page| {
        let NamespaceAnswer::Garbage(page) = page else { return Err(nonsense()) };
        page.iter().for_each(|(_, extent)| owners.note(extent.object, Owner::Garbage));
        Ok(page.last().map(|(number, _)| *number))
    };
    pages(ask, 0, query, take).await
}

fn left_over(listing: &Listing, owners: &BTreeMap<ObjectId, Owner>) -> BTreeSet<ChunkId> {
    listing.chunks.keys().filter(|chunk| !owners.contains_key(&chunk.object)).copied().collect()
}

fn add_up(
    client: &Client,
    listing: &Listing,
    owners: &BTreeMap<ObjectId, Owner>,
    left_over: &BTreeSet<ChunkId>,
) -> Space {
    let named = client.pools().into_iter().map(|pool| (pool.id, Some(pool.name)));
    let mut pools: BTreeMap<PoolId, PoolSpace> = [(PoolId::REPLICATED, None)]
        .into_iter()
        .chain(named)
        .map(|(id, pool)| {
            let tombstones = listing.tombstones.get(&id).copied().unwrap_or(0);
            (id, PoolSpace { pool, tombstones, ..PoolSpace::default() })
        })
        .collect();
    for (chunk, bytes) in &listing.chunks {
        let pool = pools.entry(chunk.object.pool()).or_default();
        let amount = match owners.get(&chunk.object) {
            Some(Owner::Lease) => &mut pool.leased,
            Some(Owner::Name) => &mut pool.named,
            Some(Owner::Volume) if chunk.is_of_claim() => &mut pool.notes,
            Some(Owner::Volume) => &mut pool.volumes,
            Some(Owner::Garbage) => &mut pool.garbage,
            None if left_over.contains(chunk) => {
                if pool.left_over_first.len() < SHOWN {
                    pool.left_over_first.push(format!("{}.{}", chunk.object.0, chunk.index));
                }
                &mut pool.left_over
            }
            // The first listing did not have it, or the namespace was done with it in between.
            None => &mut pool.garbage,
        };
        amount.chunks += 1;
        amount.bytes += bytes;
    }
    Space {
        pools: pools.into_values().collect(),
        groups_not_listed: listing.groups_not_listed,
        sets_not_listed: listing.sets_not_listed,
        sets_hibernating: listing.sets_hibernating,
        freed_chunks: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_meta::Namespace;
    use ebb_types::{
        Condition, ETag, Extent, NamespaceCommand, NamespaceDone, NamespaceOp, ObjectMeta, OnlyIf, Part,
        RequestId, SetEntry, VolumeHome,
    };
    use std::cell::RefCell;
    use std::collections::VecDeque;

    const POOL: PoolId = PoolId(1);

    /// A namespace, its one client, and what that does while the namespace is asked: an op before each query.
    struct World {
        namespace: Namespace,
        requests: u64,
        meanwhile: VecDeque<NamespaceOp>,
    }

    impl World {
        fn new() -> World {
            let mut world =
                World { namespace: Namespace::default(), requests: 0, meanwhile: VecDeque::new() };
            let settings = BTreeMap::new();
            world.send(NamespaceOp::CreateBucket { bucket: "b".into(), settings });
            world
        }

        fn send(&mut self, op: NamespaceOp) -> NamespaceDone {
            self.requests += 1;
            let request = RequestId { client: 1, seq: self.requests };
            let session = Some(self.namespace.introduce(1));
            let command = NamespaceCommand { request, session, clock_millis: 0, ops: vec![op.clone()] };
            let result = self.namespace.apply(&command, |_| true).results.remove(0);
            result.unwrap_or_else(|error| panic!("{op:?}: {error}"))
        }

        fn lease(&mut self, first: u64, count: u32) {
            self.send(NamespaceOp::Lease { first: id(first), count, bytes: 64 << 20 });
        }

        fn upload(&mut self) -> u64 {
            let (bucket, key, headers) = ("b".into(), "u".into(), Vec::new());
            match self.send(NamespaceOp::CreateUpload { bucket, key, headers, checksum: None }) {
                NamespaceDone::Upload(upload) => upload,
                other => panic!("{other:?}"),
            }
        }
    }

    fn id(serial: u64) -> ObjectId {
        ObjectId(serial).in_pool(POOL)
    }

    fn extent(serial: u64) -> Extent {
        Extent { object: id(serial), offset: 0, len: 5 << 20, shared: false, crc: 0 }
    }

    fn put(key: &str, serial: u64) -> NamespaceOp {
        let meta = ObjectMeta {
            size: 5 << 20,
            etag: ETag::NONE,
            modified_millis: 0,
            extents: vec![extent(serial)],
            headers: Vec::new(),
            checksum: None,
            upload: None,
            parts: Vec::new(),
        };
        NamespaceOp::Put { bucket: "b".into(), key: key.into(), meta, when: Condition::Any }
    }

    fn put_part(upload: u64, number: u16, serial: u64) -> NamespaceOp {
        let part = Part {
            size: 5 << 20,
            etag: ETag::NONE,
            modified_millis: 0,
            extents: vec![extent(serial)],
            checksum: None,
        };
        NamespaceOp::PutPart { bucket: "b".into(), key: "u".into(), upload, number, part }
    }

    fn complete(upload: u64, number: u16) -> NamespaceOp {
        NamespaceOp::CompleteUpload {
            bucket: "b".into(),
            key: "u".into(),
            upload,
            parts: vec![(number, ETag::NONE)],
            etag: ETag::NONE,
            checksum: None,
            when: Condition::Any,
        }
    }

    fn delete(key: &str) -> NamespaceOp {
        let only_if = OnlyIf::default();
        NamespaceOp::Delete { bucket: "b".into(), key: key.into(), when: Condition::Any, only_if }
    }

    fn claim() -> NamespaceOp {
        let noted = Extent { object: ObjectId(3), offset: 1 << 40, len: 9, shared: false, crc: 0 };
        NamespaceOp::ClaimVolume { name: "v".into(), from: None, noted }
    }

    fn sign_of_life() -> NamespaceOp {
        NamespaceOp::Lease { first: ObjectId(0), count: 0, bytes: 0 }
    }

    /// The owners of these objects, each of which has a chunk.
    async fn owners(world: World, objects: &[ObjectId]) -> BTreeMap<ObjectId, Owner> {
        let chunk = |object: &ObjectId| (ChunkId { object: *object, index: 0 }, 4096);
        let listing = Listing { chunks: objects.iter().map(chunk).collect(), ..Listing::default() };
        let world = RefCell::new(world);
        let ask = async |query: NamespaceQuery| {
            let mut world = world.borrow_mut();
            if let Some(op) = world.meanwhile.pop_front() {
                world.send(op);
            }
            Ok(world.namespace.query(&query))
        };
        owners_of(&listing, &ask).await.expect("it is answered")
    }

    #[tokio::test]
    async fn every_chunk_has_its_owner_or_is_left_over() {
        let mut world = World::new();
        world.lease(10, 8);
        world.send(put("k", 10));
        let upload = world.upload();
        world.send(put_part(upload, 1, 11));
        let home = Some(VolumeHome { pool: POOL, front_bytes: 1 << 20 });
        world.send(NamespaceOp::CreateVolume { name: "v".into(), size: 4 << 20, object: ObjectId(3), home });
        world.send(claim());
        let (name, to) = ("v".to_owned(), Some(id(12)));
        world.send(NamespaceOp::MoveSlice { name, claim: 1, slice: 2, was: None, to });
        world.send(put("gone", 13));
        world.send(delete("gone"));
        let (packs, unused) = (Vec::new(), vec![id(16), id(17)]);
        world.send(NamespaceOp::Close { packs, unused });
        let all: Vec<ObjectId> = (10..18).map(id).chain([ObjectId(3), ObjectId(4)]).collect();
        let found = owners(world, &all).await;
        let expected = [
            (ObjectId(3), Owner::Volume),
            (id(10), Owner::Name),
            (id(11), Owner::Name),
            (id(12), Owner::Volume),
            (id(13), Owner::Garbage),
            (id(14), Owner::Lease),
            (id(15), Owner::Lease),
        ];
        assert_eq!(found, expected.into(), "what was never named, and never leased, is left over");
    }

    /// The client names, completes, moves, replaces and deletes while the namespace is asked, at any of its queries.
    #[tokio::test]
    async fn whatever_moves_on_meanwhile_is_met_at_a_later_stage() {
        for (ahead, idle) in (0..9).flat_map(|ahead| (0..5).map(move |idle| (ahead, idle))) {
            let mut world = World::new();
            world.lease(10, 8);
            let upload = world.upload();
            world.send(put_part(upload, 1, 10));
            world.send(put("k", 11));
            world.send(NamespaceOp::CreateVolume {
                name: "v".into(),
                size: 4 << 20,
                object: ObjectId(3),
                home: Some(VolumeHome { pool: POOL, front_bytes: 1 << 20 }),
            });
            world.send(claim());
            let slice = |was, to| NamespaceOp::MoveSlice { name: "v".into(), claim: 1, slice: 0, was, to };
            let steps = [
                complete(upload, 1),
                put("a", 12),
                slice(None, Some(id(13))),
                put("k", 14),
                slice(Some(id(13)), Some(id(15))),
                delete("u"),
                NamespaceOp::ReleaseVolume { name: "v".into() },
                NamespaceOp::DeleteVolume { name: "v".into() },
                delete("a"),
            ];
            let mut steps = VecDeque::from(steps);
            for op in steps.drain(..ahead) {
                world.send(op);
            }
            // Signs of life that change nothing.
            world.meanwhile = std::iter::repeat_n(sign_of_life(), idle).chain(steps).collect();
            let all: Vec<ObjectId> = (10..16).map(id).chain([ObjectId(3)]).collect();
            let found = owners(world, &all).await;
            assert_eq!(found.len(), all.len(), "{ahead}, {idle}: {found:?}");
        }
    }

    /// One that fails while there is more would leave chunks without an owner.
    #[tokio::test]
    async fn a_page_that_cannot_be_had_is_an_error_and_one_of_what_is_gone_is_the_end() {
        let of = async |answers: &[Result<u64, NamespaceError>]| {
            let answers = RefCell::new(answers.iter().cloned().collect::<VecDeque<_>>());
            let ask = async |_: NamespaceQuery| {
                let answer = answers.borrow_mut().pop_front().expect("it asks no more than that");
                Ok(answer.map(|unix_millis| NamespaceAnswer::Now { unix_millis }))
            };
            let mut seen = Vec::new();
            let take = |page| {
                let NamespaceAnswer::Now { unix_millis } = page else { return Err(nonsense()) };
                seen.push(unix_millis);
                Ok((unix_millis < 3).then_some(unix_millis))
            };
            let ended = pages(&ask, 0, |_| NamespaceQuery::Now, take).await;
            (ended.is_ok(), seen)
        };
        assert_eq!(of(&[Ok(1), Ok(2), Ok(3)]).await, (true, vec![1, 2, 3]));
        assert_eq!(of(&[Ok(1), Err(NamespaceError::NoSuchUpload)]).await, (true, vec![1]));
        assert_eq!(of(&[Ok(1), Err(NamespaceError::TooMany)]).await, (false, vec![1]));
    }

    #[test]
    fn a_set_that_hibernates_is_neither_a_lack_nor_listed() {
        let set = |hibernates_since| SetEntry { hibernates_since, ..SetEntry::unknown() };
        let map = ClusterMap { sets: vec![set(Some(4)), set(None)], ..ClusterMap::default() };
        let (wanted, listing) = to_ask(&map);
        assert!(wanted.is_empty(), "no server is awake");
        assert_eq!((listing.sets_hibernating, listing.sets_not_listed), (1, 1));
        let space = |sets_hibernating| Space { sets_hibernating, ..Space::default() };
        assert_eq!(format!("{:?}", space(1).exit_code()), format!("{:?}", ExitCode::SUCCESS));
        assert!(
            space(1).text().contains("because they hibernate: 1 sets")
                && !space(0).text().contains("hibernate")
        );
    }

    #[test]
    fn what_is_left_over_is_an_error_until_it_is_freed() {
        let code = |chunks, freed_chunks, sets_not_listed| {
            let left_over = Amount { chunks, bytes: 0 };
            let pools = vec![PoolSpace { left_over, ..PoolSpace::default() }];
            let space = Space { pools, sets_not_listed, freed_chunks, ..Space::default() };
            format!("{:?}", space.exit_code())
        };
        assert_eq!(code(0, 0, 0), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(2, 2, 0), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(0, 0, 1), format!("{:?}", ExitCode::from(1)));
        assert_eq!(code(2, 0, 1), format!("{:?}", ExitCode::from(3)));
    }
}
