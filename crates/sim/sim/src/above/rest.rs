//! At rest every chunk with data is named, waits in the garbage queue, or is leased to a process; and only processes
//! that run, or ran lately, have leases and sessions.

use crate::above::chunks::Chunks;
use crate::above::disk::VOLUMES;
use crate::above::library::TODAY;
use crate::above::meta::Meta;
use crate::above::object::{BUCKET, CHUNK_BYTES};
use ebb_types::{
    ChunkId, Extent, LOOKUPS_MAX, MetaRequest, NamespaceAnswer, NamespaceCommand, NamespaceQuery, ObjectId,
    PAGE_MAX, RequestId,
};
use std::collections::{BTreeMap, BTreeSet};

/// What names refer to.
#[derive(Default)]
struct Named {
    /// Packs and volumes: all of their chunks.
    whole: BTreeSet<ObjectId>,
    /// Other objects: how many chunks each has.
    chunks: BTreeMap<ObjectId, u64>,
}

impl Named {
    fn add(&mut self, extent: &Extent) {
        if extent.shared {
            self.whole.insert(extent.object);
        } else {
            let end = (extent.offset + extent.len).div_ceil(CHUNK_BYTES.into());
            let chunks = self.chunks.entry(extent.object).or_default();
            *chunks = end.max(*chunks);
        }
    }

    fn has(&self, chunk: ChunkId) -> bool {
        let of_object = self.chunks.get(&chunk.object).is_some_and(|chunks| u64::from(chunk.index) < *chunks);
        of_object || self.whole.contains(&chunk.object)
    }
}

fn all_keys(meta: &Meta) -> Vec<String> {
    let (bucket, prefix, delimiter, after) = (BUCKET.to_owned(), String::new(), String::new(), String::new());
    // There are a few keys: one page.
    match meta.query(&NamespaceQuery::List { bucket, prefix, delimiter, after, limit: PAGE_MAX }) {
        Some(NamespaceAnswer::List(page)) => page.keys.into_iter().map(|object| object.key).collect(),
        _ => Vec::new(),
    }
}

fn named(meta: &Meta) -> Named {
    let mut named = Named::default();
    for keys in all_keys(meta).chunks(LOOKUPS_MAX) {
        let names = keys.iter().map(|key| (BUCKET.to_owned(), key.clone())).collect();
        if let Some(NamespaceAnswer::Objects(found)) = meta.query(&NamespaceQuery::Objects { names }) {
            found.into_iter().flatten().flat_map(|meta| meta.extents).for_each(|extent| named.add(&extent));
        }
    }
    let (bucket, prefix, after) = (BUCKET.to_owned(), String::new(), (String::new(), 0));
    let uploads = NamespaceQuery::Uploads { bucket: bucket.clone(), prefix, after, limit: PAGE_MAX };
    if let Some(NamespaceAnswer::Uploads { uploads, .. }) = meta.query(&uploads) {
        for upload in uploads {
            let (bucket, key, upload) = (bucket.clone(), upload.key, upload.upload);
            let parts = NamespaceQuery::Parts { bucket, key, upload, after: 0, limit: PAGE_MAX };
            if let Some(NamespaceAnswer::Parts { parts, .. }) = meta.query(&parts) {
                parts.iter().flat_map(|(_, part)| &part.extents).for_each(|extent| named.add(extent));
            }
        }
    }
    for name in VOLUMES {
        let volume = NamespaceQuery::Volume { name: name.to_owned() };
        if let Some(NamespaceAnswer::Volume(status)) = meta.query(&volume) {
            named.whole.insert(status.meta.object);
        }
        let slices = NamespaceQuery::Slices { name: name.to_owned(), after: None, limit: PAGE_MAX };
        if let Some(NamespaceAnswer::Slices { slices, .. }) = meta.query(&slices) {
            named.whole.extend(slices.into_iter().map(|(_, object)| object));
        }
    }
    named
}

/// What belongs to nothing.
pub(super) fn leak(meta: &Meta, chunks: &Chunks) -> Option<String> {
    let named = named(meta);
    let garbage: BTreeSet<ObjectId> = match meta.query(&NamespaceQuery::Garbage { after: 0, limit: PAGE_MAX })
    {
        Some(NamespaceAnswer::Garbage(page)) => page.into_iter().map(|(_, extent)| extent.object).collect(),
        _ => BTreeSet::new(),
    };
    let is_owned =
        |chunk: ChunkId| named.has(chunk) || garbage.contains(&chunk.object) || meta.is_leased(chunk.object);
    let (chunk, bytes) = chunks.with_data().find(|(chunk, _)| !is_owned(*chunk))?;
    Some(format!("{chunk} has {bytes} bytes at rest, and is neither named nor garbage nor leased"))
}

/// A client of its own, so that the namespace notices how much time has passed.
const OBSERVER: u64 = 2;

/// What is kept of a process that has ended long ago. `runs`: those that run, or ran lately.
pub(super) fn leftover(meta: &mut Meta, now: u64, runs: &BTreeSet<u64>) -> Option<String> {
    let (request, clock_millis) = (RequestId { client: OBSERVER, seq: 1 }, TODAY + now);
    let greeting = NamespaceCommand { request, session: None, clock_millis, ops: Vec::new() };
    meta.ask(now, MetaRequest::Namespace(greeting));
    if let Some(NamespaceAnswer::Runs(held)) = meta.query(&NamespaceQuery::Runs)
        && let Some((run, _)) = held.into_iter().find(|(run, _)| !runs.contains(run))
    {
        return Some(format!("the run {run:016x} has leases at rest, and has ended"));
    }
    let ended = |client: &u64| *client != OBSERVER && !runs.contains(client);
    let client = meta.sessions().into_iter().find(ended)?;
    Some(format!("the run {client:016x} has a session at rest, and has ended"))
}
