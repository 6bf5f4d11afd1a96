//! `ebb verify --lost`: of which objects are bytes lost?
//!
//! Every object is read, as a gateway reads it: no index knows whether a copy of each block passes its checksum. What
//! cannot be read is read in halves, down to [`STEP`]. A key is looked up again before its object counts: the bytes of
//! one that is replaced, moved or deleted while it is read are freed.
//!
//! A chunk group that was not served for as long as a client waits is not waited for again before it has a primary: it
//! may wait for `ebb force`, and a cluster has many objects.

use crate::cli::space::nonsense;
use crate::cli::verify::exit_code;
use crate::error::NodeError;
use ebb_client::{Client, ClientError};
use ebb_output::Progress;
use ebb_types::{
    Bytes, ChunkId, Extent, GroupId, LOOKUPS_MAX, NamespaceAnswer, NamespaceQuery, ObjectMeta, PAGE_MAX,
    PoolId, counted, group_of, pieces,
};
use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::process::ExitCode;
use tokio::task::JoinSet;

/// Objects that are read concurrently.
const AHEAD: usize = 8;
/// Shortest part that is read by itself, to see what of a longer one is lost.
const STEP: u32 = 64 << 10;
/// How often a part is read again because its servers have not woken yet.
const WAKES: u32 = 10;

/// What `ebb verify --lost` found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Losses {
    pub objects_read: u64,
    pub objects_not_read: u64,
    /// Of the first of these.
    pub not_read_because: Option<String>,
    pub lost_bytes: u64,
    pub lost: Vec<LostObject>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostObject {
    pub bucket: String,
    pub key: String,
    pub size_bytes: u64,
    pub ranges: Vec<ByteRange>,
}

/// As a GET of a range has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ByteRange {
    pub first_byte: u64,
    pub last_byte: u64,
}

impl Losses {
    pub fn exit_code(&self) -> ExitCode {
        exit_code(self.lost.len() as u64, self.objects_not_read)
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        for LostObject { bucket, key, size_bytes, ranges } in &self.lost {
            let ranges: Vec<String> =
                ranges.iter().map(|range| format!("{}-{}", range.first_byte, range.last_byte)).collect();
            let (key, ranges) = (key.escape_debug(), ranges.join(", "));
            out += &format!("{bucket}/{key}: lost bytes {ranges} of {size_bytes}\n");
        }
        let (lost, bytes) = (self.lost.len(), Bytes(self.lost_bytes));
        out +=
            &format!("{} read, {lost} of them with lost bytes, {bytes} in all\n", objects(self.objects_read));
        if let Some(why) = &self.not_read_because {
            out += &format!("{} could not be read: {why}\n", objects(self.objects_not_read));
        }
        out
    }

    fn add(&mut self, (bucket, key): Name, size_bytes: u64, lost: Vec<Range<u64>>) {
        self.lost_bytes += lost.iter().map(|range| range.end - range.start).sum::<u64>();
        let range = |range: Range<u64>| ByteRange { first_byte: range.start, last_byte: range.end - 1 };
        let ranges = lost.into_iter().map(range).collect();
        self.lost.push(LostObject { bucket, key, size_bytes, ranges });
    }
}

fn objects(count: u64) -> String {
    counted(count, "object")
}

/// Bucket and key.
type Name = (String, String);

/// Reads every object.
pub async fn check(client: &Client) -> Result<Losses, NodeError> {
    let (found, running, unserved) = (Losses::default(), JoinSet::new(), BTreeSet::new());
    let mut check = Check { client, found, running, unserved, line: Progress::of_minutes() };
    let mut after = Some(Vec::new());
    while let Some(last) = after {
        let query = NamespaceQuery::Named { after: last, limit: PAGE_MAX };
        let Ok(NamespaceAnswer::Named { names, next }) = client.query(query).await? else {
            return Err(nonsense());
        };
        for some in names.chunks(LOOKUPS_MAX) {
            let names: Vec<Name> = some.iter().map(|name| (name.bucket.clone(), name.key.clone())).collect();
            let metas = look_up(client, names.clone()).await?;
            for (name, meta) in names.into_iter().zip(metas) {
                let Some(meta) = meta else { continue };
                check.begin(name, meta).await?;
            }
        }
        after = next;
    }
    while check.end_one().await? {}
    check.line.clear();
    Ok(check.found)
}

/// What these keys name, as far as they still name something.
async fn look_up(client: &Client, names: Vec<Name>) -> Result<Vec<Option<ObjectMeta>>, NodeError> {
    let count = names.len();
    match client.query(NamespaceQuery::Objects { names }).await? {
        Ok(NamespaceAnswer::Objects(found)) if found.len() == count => {
            Ok(found.into_iter().map(Result::ok).collect())
        }
        _ => Err(nonsense()),
    }
}

struct Check<'a> {
    client: &'a Client,
    found: Losses,
    running: JoinSet<Searched>,
    /// Chunk groups that were waited for in vain.
    unserved: BTreeSet<GroupId>,
    line: Progress,
}

/// An object that was read, and the ranges of it that are lost.
struct Searched {
    name: Name,
    meta: ObjectMeta,
    lost: Result<Vec<Range<u64>>, ClientError>,
}

impl Check<'_> {
    async fn begin(&mut self, name: Name, meta: ObjectMeta) -> Result<(), NodeError> {
        while self.running.len() >= AHEAD {
            self.end_one().await?;
        }
        let search = Search::of(&meta.extents, self.client.params().chunk_bytes);
        if self.would_wait(&search) {
            self.found.objects_not_read += 1;
        } else {
            self.running.spawn(read_all(self.client.clone(), name, meta, search));
        }
        Ok(())
    }

    /// Whether a group of the replicated pool that was waited for in vain has no primary yet.
    fn would_wait(&self, search: &Search) -> bool {
        let (groups, map) = (self.client.params().groups, self.client.map());
        let without_primary = |group| map.group(group).is_some_and(|entry| entry.primary.is_none());
        search.left.iter().filter(|part| part.chunk.object.pool() == PoolId::REPLICATED).any(|part| {
            let group = group_of(part.chunk, groups);
            self.unserved.contains(&group) && without_primary(group)
        })
    }

    /// Takes in an object that was read. `false`: there is none.
    async fn end_one(&mut self) -> Result<bool, NodeError> {
        let Some(done) = self.running.join_next().await else { return Ok(false) };
        let Searched { name, meta, lost } = done.expect("a search neither panics nor is aborted");
        let losses = self.found.lost.len();
        self.line.show(format_args!("{} read, {losses} with lost bytes", objects(self.found.objects_read)));
        match lost {
            Ok(lost) => {
                self.found.objects_read += 1;
                if !lost.is_empty() && self.still_names(&name, &meta.extents).await? {
                    self.found.add(name, meta.size, lost);
                }
            }
            Err(error) => {
                if let ClientError::Unserved { group, .. } = error {
                    self.unserved.insert(group);
                }
                self.found.objects_not_read += 1;
                self.found.not_read_because.get_or_insert_with(|| error.to_string());
            }
        }
        Ok(true)
    }

    async fn still_names(&self, name: &Name, extents: &[Extent]) -> Result<bool, NodeError> {
        let now = look_up(self.client, vec![name.clone()]).await?;
        Ok(now.iter().flatten().any(|meta| meta.extents == extents))
    }
}

async fn read_all(client: Client, name: Name, meta: ObjectMeta, mut search: Search) -> Searched {
    while let Some(part) = search.left.pop_front() {
        match read(&client, part).await {
            Ok(found) => search.take(part, found),
            Err(error) => return Searched { name, meta, lost: Err(error) },
        }
    }
    Searched { name, meta, lost: Ok(search.lost) }
}

async fn read(client: &Client, part: Part) -> Result<Found, ClientError> {
    let mut wakes = 0;
    loop {
        match client.read_written(part.chunk, part.offset, part.len).await {
            Ok(_) => return Ok(Found::All),
            Err(ClientError::Gone { .. }) => return Ok(Found::Nothing),
            Err(error) if error.says_lost() => return Ok(Found::NotAll),
            Err(ClientError::Hibernates { retry_after, .. }) if wakes < WAKES => {
                wakes += 1;
                tokio::time::sleep(retry_after).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A part of an object that one request reads.
#[derive(Clone, Copy, Debug)]
struct Part {
    chunk: ChunkId,
    offset: u32,
    len: u32,
    /// Where it begins in the object.
    at: u64,
}

/// How much of a part there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    All,
    /// Some of it is lost, and the rest may be there.
    NotAll,
    Nothing,
}

/// What of an object is still to be read, in order, and what is lost.
#[derive(Debug, Default)]
struct Search {
    left: VecDeque<Part>,
    lost: Vec<Range<u64>>,
}

impl Search {
    fn of(extents: &[Extent], chunk_bytes: u32) -> Search {
        let (mut search, mut begin) = (Search::default(), 0);
        for extent in extents {
            let all = pieces(extent.object, extent.offset, extent.len, chunk_bytes).into_iter().flatten();
            search.left.extend(all.map(|piece| Part {
                chunk: piece.chunk,
                offset: piece.offset,
                len: piece.len,
                at: begin + piece.start,
            }));
            begin += extent.len;
        }
        search
    }

    fn take(&mut self, part: Part, found: Found) {
        match found {
            Found::All => {}
            Found::NotAll if part.len > STEP => {
                let half = (part.len / 2).next_multiple_of(STEP);
                let (offset, at) = (part.offset + half, part.at + u64::from(half));
                self.left.push_front(Part { offset, at, len: part.len - half, ..part });
                self.left.push_front(Part { len: half, ..part });
            }
            Found::NotAll | Found::Nothing => {
                let lost = part.at..part.at + u64::from(part.len);
                match self.lost.last_mut().filter(|last| last.end == lost.start) {
                    Some(last) => last.end = lost.end,
                    None => self.lost.push(lost),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::ObjectId;

    const MIB: u64 = 1 << 20;

    /// An object of two extents: 3,000 bytes in a pack, then 20 MiB.
    fn extents() -> [Extent; 2] {
        let extent = |object, offset, len, shared| Extent { object, offset, len, shared, crc: 0 };
        [extent(ObjectId(1), 8192, 3000, true), extent(ObjectId(2), 0, 20 * MIB, false)]
    }

    /// Begin and end of what is lost if `of` says what there is of each part, and the number of reads.
    fn search(of: impl Fn(Part) -> Found) -> (Vec<(u64, u64)>, u32) {
        let (mut search, mut reads) = (Search::of(&extents(), 8 << 20), 0);
        while let Some(part) = search.left.pop_front() {
            reads += 1;
            search.take(part, of(part));
        }
        (search.lost.into_iter().map(|range| (range.start, range.end)).collect(), reads)
    }

    fn chunk(object: u64, index: u32) -> ChunkId {
        ChunkId { object: ObjectId(object), index }
    }

    #[test]
    fn what_is_lost_is_found_in_halves_and_the_rest_is_read_once() {
        assert_eq!(search(|_| Found::All), (Vec::new(), 6));
        let block = 100 * 4096;
        let has =
            |part: Part| part.chunk == chunk(2, 1) && (part.offset..part.offset + part.len).contains(&block);
        let (lost, reads) = search(|part| if has(part) { Found::NotAll } else { Found::All });
        let begin = 3000 + 8 * MIB + 6 * u64::from(STEP);
        assert_eq!(lost, [(begin, begin + u64::from(STEP))]);
        assert_eq!(reads, 6 + 2 * 6, "4 MiB are halved six times");
        let (lost, _) = search(|part| if part.chunk == chunk(1, 0) { Found::NotAll } else { Found::All });
        assert_eq!(lost, [(0, 3000)], "a short one is not halved");
    }

    #[test]
    fn what_has_no_server_is_asked_for_once_and_is_one_range() {
        let (lost, reads) =
            search(|part| if part.chunk == chunk(2, 0) { Found::Nothing } else { Found::All });
        assert_eq!((lost, reads), (vec![(3000, 3000 + 8 * MIB)], 6));
    }

    #[test]
    fn a_loss_is_an_error_and_what_could_not_be_read_is_another() {
        let code = |ranges: &[Range<u64>], objects_not_read| {
            let mut losses = Losses { objects_not_read, ..Losses::default() };
            if !ranges.is_empty() {
                losses.add(("b".into(), "a\nkey".into()), 100, ranges.to_vec());
            }
            (format!("{:?}", losses.exit_code()), losses.text())
        };
        assert_eq!(code(&[], 0).0, format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(&[], 1).0, format!("{:?}", ExitCode::from(1)));
        let (code, text) = code(&[0..10, 50..100], 1);
        assert_eq!(code, format!("{:?}", ExitCode::from(3)));
        assert!(text.starts_with("b/a\\nkey: lost bytes 0-9, 50-99 of 100\n"), "{text}");
        assert!(text.contains("with lost bytes, 60 B in all"), "{text}");
    }
}
