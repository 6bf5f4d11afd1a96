//! The namespace: a deterministic state machine over buckets, keys, multipart uploads and volumes.
//!
//! Part of the cluster state that all metadata members must agree on, so it has no clock and no randomness; time
//! arrives with the leader's commands. All keys are in one ordered map ([`Names`], most of it on disk), sorted by
//! bucket, so a listing costs what it shows, not what the bucket holds: whole common prefixes are skipped by one range
//! jump.
//!
//! Invariants
//! - An extent is named by at most one key or part, or waits in the garbage queue; never two of these. An extent that
//!   loses its name is queued in the same step.
//! - A command is carried out once: its reply is kept under its request id, for the newest [`REPLIES_KEPT`] commands of
//!   each client that was heard within [`CLIENT_KEPT_MILLIS`]. A command older than a client's kept replies is refused,
//!   not repeated; so is one of a client that was forgotten, or was known in another session. A client begins a session
//!   with a command that changes nothing.
//! - The cluster's time never goes back, and no clock moves it far by itself ([`Namespace::pass_time`]).
//! - A command that is repeated nevertheless is harmless: an entry with the same extents as the present one counts as
//!   the present one, and no change un-names the extents that it names.

mod leases;
pub(crate) mod names;
pub(crate) mod table;
mod volumes;

use crate::api::{Planted, PlantedBug};
use crate::namespace::leases::Leases;
use crate::namespace::names::Names;
use crate::namespace::volumes::Volumes;
use ebb_types::{
    BucketSetting, BucketSettings, CLASS_HEADER, Checksum, Condition, ETag, Extent, KEY_BYTES_MAX,
    KeyListing, KeyPage, LOOKUPS_MAX, NAME_BYTES_MAX, NAMED_IDS_MAX, Named, NamespaceAnswer,
    NamespaceCommand, NamespaceDone, NamespaceError, NamespaceOp, NamespaceQuery, NamespaceReply, OPS_MAX,
    ObjectId, ObjectMeta, ObjectPart, OnlyIf, PAGE_MAX, PART_BYTES_MIN, PART_NUMBER_MAX, Part, PoolId,
    RequestId, SETTING_BYTES_MAX, UploadListing, UploadMeta, crc32c, hold_the_same, kept_class,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Replies kept per client. A client has fewer commands in flight.
pub const REPLIES_KEPT: usize = 256;
/// A client's replies are kept for this long after its last command: longer than any client waits for an answer.
pub const CLIENT_KEPT_MILLIS: u64 = 120_000;

type Outcome = Result<NamespaceDone, NamespaceError>;

/// Buckets with their keys and uploads, volumes, garbage, and the replies to recent commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    buckets: BTreeMap<String, Bucket>,
    /// Names of all buckets, keyed by [`name`]; values are encoded [`ObjectMeta`].
    names: Names,
    volumes: Volumes,
    /// Oldest first; numbers are never reused.
    garbage: BTreeMap<u64, Extent>,
    leases: Leases,
    next_garbage: u64,
    next_upload: u64,
    next_bucket: u32,
    clients: BTreeMap<u64, Client>,
    last_session: u64,
    /// Time elapsed while commands arrived, by the leaders' steady clocks.
    clock_millis: u64,
    /// The cluster's time since 1970, by which objects age; zero: no leader's clock was believed yet. It never goes
    /// back.
    unix_millis: u64,
    /// What is stamped on objects: the leader's clock, but never before the cluster's time. An object that is stamped
    /// too late lives too long, which is no loss.
    stamp_millis: u64,
    #[serde(skip)]
    planted: Planted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    /// Never reused.
    number: u32,
    created_millis: u64,
    settings: BucketSettings,
    /// Number of keys.
    keys: u64,
    uploads: BTreeMap<(String, u64), Upload>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Upload {
    meta: UploadMeta,
    parts: BTreeMap<u16, Part>,
}

/// Length of a bucket's number, which precedes its keys.
const BUCKET_BYTES: usize = 4;
const _: () = assert!(BUCKET_BYTES == size_of::<u32>());

/// The object's key in [`Names`].
fn name(bucket: u32, key: &str) -> Vec<u8> {
    [&bucket.to_be_bytes()[..], key.as_bytes()].concat()
}

fn decode(object: &[u8]) -> ObjectMeta {
    postcard::from_bytes(object).expect("encoded by this release, and its checksum was right")
}

/// What is remembered about a client's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Client {
    session: u64,
    replies: BTreeMap<u64, NamespaceReply>,
    /// Replies up to this sequence number have been dropped.
    forgotten: u64,
    /// By the namespace's clock.
    last_use: u64,
}

impl Namespace {
    /// Carries out a command, or repeats its reply. `has_pool`: whether the cluster has this erasure-coded pool.
    pub fn apply(&mut self, command: &NamespaceCommand, has_pool: impl Fn(PoolId) -> bool) -> NamespaceReply {
        let RequestId { client: sender, seq } = command.request;
        let Some(session) = command.session else {
            let known = self.introduce(sender);
            return self.refuse_all(command, known, NamespaceError::Expired);
        };
        let Some(client) = self.clients.get_mut(&sender).filter(|known| known.session == session) else {
            return self.refuse_all(command, 0, NamespaceError::Expired);
        };
        client.last_use = self.clock_millis;
        if let Some(reply) = client.replies.get(&seq) {
            return reply.clone();
        }
        if seq <= client.forgotten {
            return self.refuse_all(command, session, NamespaceError::Expired);
        }
        if command.ops.len() > OPS_MAX {
            return self.refuse_all(command, session, NamespaceError::TooMany);
        }
        self.leases.heard(sender);
        let results = command
            .ops
            .iter()
            .map(|op| {
                check_pool(op, &has_pool)?;
                self.apply_op(op, sender, self.stamp_millis)
            })
            .collect();
        let reply = NamespaceReply { session, results, garbage: self.garbage.len() as u64 };
        self.remember(command.request, reply.clone());
        reply
    }

    /// Whether any run holds the object under a lease.
    pub fn is_leased(&self, object: ObjectId) -> bool {
        self.leases.has(object)
    }

    /// The clients that have a session, for the harness's checks.
    pub fn sessions(&self) -> impl Iterator<Item = u64> + '_ {
        self.clients.keys().copied()
    }

    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
        self.leases.planted = planted;
        self.volumes.planted = planted;
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn names_mut(&mut self) -> &mut Names {
        &mut self.names
    }

    /// Makes a client known, and returns its session. One that is known already keeps its session: its first command
    /// came twice.
    pub fn introduce(&mut self, client: u64) -> u64 {
        self.leases.heard(client);
        let next = self.last_session + 1;
        let known =
            self.clients.entry(client).or_insert_with(|| Client { session: next, ..Client::default() });
        known.last_use = self.clock_millis;
        self.last_session = self.last_session.max(known.session);
        known.session
    }

    /// Some time has passed by the leader's steady clock, and its wall clock shows this. `agreed`: other clocks and the
    /// cluster's time are close to it. If not, the cluster's time continues from where it was.
    pub fn pass_time(&mut self, millis: u64, unix_millis: u64, agreed: bool) {
        self.clock_millis += millis;
        let (now, before) = (self.clock_millis, self.unix_millis);
        self.clients.retain(|_, client| now - client.last_use <= CLIENT_KEPT_MILLIS);
        self.unix_millis = match agreed {
            true => self.unix_millis.max(unix_millis),
            false if self.unix_millis == 0 => 0,
            false => self.unix_millis + millis,
        };
        debug_assert!(self.unix_millis >= before, "the cluster's time does not go back");
        self.stamp_millis = self.unix_millis.max(unix_millis);
    }

    /// Serial numbers of objects below this were leased.
    pub(crate) fn leased_to(&self) -> u64 {
        self.leases.leased_to
    }

    /// It was rescued, and may be behind what it answered. Numbers from here on are above all that it can have given;
    /// `objects`: so are those of objects. No client is known any more: what it sent may have been answered. What was
    /// leased is nobody's and is not freed, as it may have been named.
    pub(crate) fn rescue(&mut self, objects: u64, jump: u64) {
        self.clients.clear();
        self.last_session += jump;
        self.next_garbage += jump;
        self.next_upload += jump;
        self.leases.rescue(objects, jump);
        self.volumes.rescue(jump);
    }

    /// The cluster's time as of the last command; zero: it has none yet.
    pub fn unix_millis(&self) -> u64 {
        self.unix_millis
    }

    fn refuse_all(&self, command: &NamespaceCommand, session: u64, why: NamespaceError) -> NamespaceReply {
        let results = command.ops.iter().map(|_| Err(why.clone())).collect();
        NamespaceReply { session, results, garbage: self.garbage.len() as u64 }
    }

    fn remember(&mut self, request: RequestId, reply: NamespaceReply) {
        if self.planted.has(PlantedBug::ForgetAnswers) {
            return;
        }
        let client = self.clients.entry(request.client).or_default();
        client.last_use = self.clock_millis;
        let before = client.replies.insert(request.seq, reply);
        debug_assert!(before.is_none(), "a command is carried out once");
        if client.replies.len() > REPLIES_KEPT
            && let Some((seq, _)) = client.replies.pop_first()
        {
            client.forgotten = client.forgotten.max(seq);
        }
        debug_assert!(client.replies.len() <= REPLIES_KEPT, "clients do not fill memory");
        let oldest = client.replies.first_key_value().map(|(seq, _)| *seq);
        debug_assert!(oldest.is_none_or(|seq| seq > client.forgotten), "what is forgotten is not kept");
    }

    fn apply_op(&mut self, op: &NamespaceOp, sender: u64, now: u64) -> Outcome {
        match op {
            NamespaceOp::CreateBucket { bucket, settings } => self.create_bucket(bucket, settings, now),
            NamespaceOp::SetBucket { bucket, setting, value } => {
                self.set_bucket(bucket, *setting, value.as_ref())
            }
            NamespaceOp::DeleteBucket { bucket } => self.delete_bucket(bucket),
            NamespaceOp::Put { bucket, key, meta, when } => self.put(sender, bucket, key, meta, *when, now),
            NamespaceOp::Delete { bucket, key, when, only_if } => self.delete(bucket, key, *when, *only_if),
            NamespaceOp::SetHeader { bucket, key, name, value } => {
                self.set_header(bucket, key, name, value.as_ref())
            }
            NamespaceOp::CreateUpload { bucket, key, headers, checksum } => {
                let meta =
                    UploadMeta { initiated_millis: now, headers: headers.clone(), checksum: *checksum };
                self.create_upload(bucket, key, meta)
            }
            NamespaceOp::PutPart { bucket, key, upload, number, part } => {
                self.put_part(sender, (bucket, key, *upload), *number, part, now)
            }
            NamespaceOp::CompleteUpload { bucket, key, upload, parts, etag, checksum, when } => {
                let finished = Finished { parts, etag: *etag, checksum };
                self.complete_upload(bucket, key, *upload, finished, *when, now)
            }
            NamespaceOp::AbortUpload { bucket, key, upload, rules } => {
                self.abort_upload(bucket, key, *upload, *rules)
            }
            NamespaceOp::CreateVolume { name, size, object, home } => {
                check_name(name)?;
                self.volumes.create(name, (*size, *object), *home, now).map(|()| NamespaceDone::Done)
            }
            NamespaceOp::DeleteVolume { name } => self.volumes.delete(sender, name).map(|e| self.discard(e)),
            NamespaceOp::ClaimVolume { name, from, noted } => {
                self.volumes.claim(sender, name, *from, *noted).map(NamespaceDone::Claimed)
            }
            NamespaceOp::ReleaseVolume { name } => {
                self.volumes.release(sender, name).map(|()| NamespaceDone::Done)
            }
            NamespaceOp::MoveSlice { name, claim, slice, was, to } => {
                let by = (sender, *claim);
                let dead = self.volumes.move_slice(&mut self.leases, by, (name, *slice), *was, *to)?;
                Ok(self.discard(dead))
            }
            NamespaceOp::Lease { first, count, bytes } => {
                self.leases.lease(sender, *first, *count, *bytes).map(|()| NamespaceDone::Done)
            }
            NamespaceOp::Close { packs, unused } => {
                let dead = self.leases.close(sender, packs, unused);
                Ok(self.throw_away(dead))
            }
            NamespaceOp::EndRun { run, stamp } => {
                let dead = self.leases.end(*run, *stamp);
                Ok(self.throw_away(dead))
            }
            NamespaceOp::Discard { extents } => {
                let held = extents.iter().filter(|e| e.len > 0);
                let dead: Vec<_> = held.filter_map(|e| self.leases.give_up(sender, *e)).collect();
                Ok(self.throw_away(dead))
            }
            NamespaceOp::Collected { garbage } => {
                garbage.iter().for_each(|number| _ = self.garbage.remove(number));
                Ok(NamespaceDone::Done)
            }
            NamespaceOp::Move { bucket, key, was, extents, class } => {
                self.move_object(sender, (bucket, key), *was, extents, class)
            }
            NamespaceOp::Repack { bucket, key, was, to } => self.repack(sender, (bucket, key), *was, *to),
        }
    }

    /// Queues extents that are neither named nor leased.
    fn throw_away(&mut self, dead: impl IntoIterator<Item = Extent>) -> NamespaceDone {
        dead.into_iter().for_each(|extent| self.add_garbage(extent));
        NamespaceDone::Done
    }

    /// Queues extents that have lost their name.
    fn discard(&mut self, extents: impl IntoIterator<Item = Extent>) -> NamespaceDone {
        for extent in extents.into_iter().filter(|e| e.len > 0) {
            let garbage = self.leases.unname(extent);
            if extent.shared && !garbage.shared {
                self.garbage.retain(|_, other| !other.shared || other.object != garbage.object);
            }
            self.add_garbage(garbage);
        }
        NamespaceDone::Done
    }

    fn add_garbage(&mut self, extent: Extent) {
        self.next_garbage += 1;
        let before = self.garbage.insert(self.next_garbage, extent);
        debug_assert!(before.is_none(), "numbers of garbage are not used twice");
    }

    fn bucket(&self, name: &str) -> Result<&Bucket, NamespaceError> {
        self.buckets.get(name).ok_or(NamespaceError::NoSuchBucket)
    }

    fn bucket_mut(&mut self, name: &str) -> Result<&mut Bucket, NamespaceError> {
        self.buckets.get_mut(name).ok_or(NamespaceError::NoSuchBucket)
    }

    fn create_bucket(&mut self, name: &str, settings: &BucketSettings, now: u64) -> Outcome {
        check_name(name)?;
        settings.values().try_for_each(|value| check_setting(value))?;
        if self.buckets.contains_key(name) {
            return Err(NamespaceError::BucketExists);
        }
        let number = self.next_bucket;
        debug_assert!(self.buckets.values().all(|other| other.number < number), "two buckets share no keys");
        self.next_bucket = number.checked_add(1).ok_or(NamespaceError::TooMany)?;
        let (settings, uploads) = (settings.clone(), BTreeMap::new());
        self.buckets
            .insert(name.to_owned(), Bucket { number, created_millis: now, settings, keys: 0, uploads });
        Ok(NamespaceDone::Done)
    }

    fn set_bucket(&mut self, name: &str, setting: BucketSetting, value: Option<&Vec<u8>>) -> Outcome {
        let settings = &mut self.bucket_mut(name)?.settings;
        match value {
            Some(value) => {
                check_setting(value)?;
                settings.insert(setting, value.clone());
            }
            None => drop(settings.remove(&setting)),
        }
        Ok(NamespaceDone::Done)
    }

    fn delete_bucket(&mut self, bucket: &str) -> Outcome {
        let Bucket { number, keys, .. } = *self.bucket(bucket)?;
        if keys > 0 {
            return Err(NamespaceError::BucketNotEmpty);
        }
        debug_assert!(!self.has_names(number) || self.names.fault().is_some(), "what is deleted has no keys");
        let uploads = self.buckets.remove(bucket).into_iter().flat_map(|bucket| bucket.uploads.into_values());
        Ok(self.discard(uploads.flat_map(|u| u.parts.into_values()).flat_map(|p| p.extents)))
    }

    fn has_names(&self, bucket: u32) -> bool {
        let first = name(bucket, "");
        let mut range = self.names.range(Bound::Included(&first[..]));
        range.next().is_some_and(|(found, _)| found.starts_with(&first))
    }

    fn put(
        &mut self,
        sender: u64,
        bucket: &str,
        key: &str,
        meta: &ObjectMeta,
        when: Condition,
        now: u64,
    ) -> Outcome {
        check_key(key)?;
        let present = self.find(self.bucket(bucket)?, key);
        if present.as_ref().is_some_and(|old| is_same(&old.extents, &meta.extents)) {
            return Ok(NamespaceDone::Done);
        }
        check_condition(present.as_ref(), when)?;
        self.leases.check(sender, &meta.extents)?;
        self.leases.name(sender, &meta.extents);
        self.set(bucket, key, present.is_none(), &ObjectMeta { modified_millis: now, ..meta.clone() })?;
        Ok(self.discard(unnamed(present.into_iter().flat_map(|m| m.extents), &meta.extents)))
    }

    fn delete(&mut self, bucket: &str, key: &str, when: Condition, only_if: OnlyIf) -> Outcome {
        let (found, old) = (self.bucket(bucket)?, self.find(self.bucket(bucket)?, key));
        check_rules(found, only_if.rules)?;
        if when != Condition::Any || only_if != OnlyIf::default() {
            check_condition(old.as_ref(), when)?;
            check_only_if(old.as_ref(), only_if)?;
        }
        let Some(old) = old else { return Ok(NamespaceDone::Done) };
        self.names.set(&name(found.number, key), None);
        self.bucket_mut(bucket)?.keys -= 1;
        Ok(self.discard(old.extents))
    }

    fn set_header(&mut self, bucket: &str, key: &str, header: &str, value: Option<&String>) -> Outcome {
        let mut object = self.object(bucket, key)?;
        object.headers.retain(|(kept, _)| kept != header);
        object.headers.extend(value.map(|value| (header.to_owned(), value.clone())));
        self.set(bucket, key, false, &object)?;
        Ok(NamespaceDone::Done)
    }

    fn move_object(
        &mut self,
        sender: u64,
        (bucket, key): (&str, &str),
        was: Extent,
        extents: &[Extent],
        class: &str,
    ) -> Outcome {
        let mut object = self.object(bucket, key)?;
        if is_same(&object.extents, extents) {
            return Ok(NamespaceDone::Done);
        }
        if object.extents.first() != Some(&was) || !hold_the_same(&object.extents, extents) {
            return Err(NamespaceError::PreconditionFailed);
        }
        self.leases.check(sender, extents)?;
        self.leases.name(sender, extents);
        let old = std::mem::replace(&mut object.extents, extents.to_vec());
        object.headers.retain(|(kept, _)| kept != CLASS_HEADER);
        object.headers.push((CLASS_HEADER.to_owned(), class.to_owned()));
        self.set(bucket, key, false, &object)?;
        Ok(self.discard(unnamed(old.into_iter(), extents)))
    }

    /// No other bytes ever were in `was`, so it tells whether the key still names what was copied.
    fn repack(&mut self, sender: u64, (bucket, key): (&str, &str), was: Extent, to: Extent) -> Outcome {
        let mut object = self.object(bucket, key)?;
        if object.extents.contains(&to) {
            return Ok(NamespaceDone::Done);
        }
        let there = object.extents.iter_mut().find(|extent| **extent == was);
        let Some(there) = there.filter(|_| hold_the_same(&[was], &[to])) else {
            return Err(NamespaceError::PreconditionFailed);
        };
        self.leases.check(sender, &[to])?;
        self.leases.name(sender, &[to]);
        *there = to;
        self.set(bucket, key, false, &object)?;
        Ok(self.discard([was]))
    }

    fn find(&self, bucket: &Bucket, key: &str) -> Option<ObjectMeta> {
        self.names.get(&name(bucket.number, key)).map(|object| decode(&object))
    }

    fn set(
        &mut self,
        bucket: &str,
        key: &str,
        is_new: bool,
        meta: &ObjectMeta,
    ) -> Result<(), NamespaceError> {
        let bucket = self.buckets.get_mut(bucket).ok_or(NamespaceError::NoSuchBucket)?;
        let is_there = |names: &Names| names.get(&name(bucket.number, key)).is_some();
        debug_assert!(
            is_there(&self.names) != is_new || self.names.fault().is_some(),
            "a bucket counts each of its keys once"
        );
        bucket.keys += u64::from(is_new);
        self.names.set(&name(bucket.number, key), Some(postcard::to_stdvec(meta).expect("plain data")));
        Ok(())
    }

    fn create_upload(&mut self, bucket: &str, key: &str, meta: UploadMeta) -> Outcome {
        check_key(key)?;
        let id = self.next_upload + 1;
        let uploads = &mut self.bucket_mut(bucket)?.uploads;
        uploads.insert((key.to_owned(), id), Upload { meta, parts: BTreeMap::new() });
        self.next_upload = id;
        Ok(NamespaceDone::Upload(id))
    }

    fn upload(&self, bucket: &str, key: &str, id: u64) -> Result<&Upload, NamespaceError> {
        self.bucket(bucket)?.uploads.get(&(key.to_owned(), id)).ok_or(NamespaceError::NoSuchUpload)
    }

    fn put_part(
        &mut self,
        sender: u64,
        (bucket, key, id): (&str, &str, u64),
        number: u16,
        part: &Part,
        now: u64,
    ) -> Outcome {
        if number == 0 || number > PART_NUMBER_MAX {
            return Err(NamespaceError::InvalidPart { number });
        }
        let present = self.upload(bucket, key, id)?.parts.get(&number);
        if present.is_some_and(|old| is_same(&old.extents, &part.extents)) {
            return Ok(NamespaceDone::Done);
        }
        self.leases.check(sender, &part.extents)?;
        self.leases.name(sender, &part.extents);
        let upload = self.bucket_mut(bucket)?.uploads.get_mut(&(key.to_owned(), id));
        let parts = &mut upload.ok_or(NamespaceError::NoSuchUpload)?.parts;
        let old = parts.insert(number, Part { modified_millis: now, ..part.clone() });
        Ok(self.discard(unnamed(old.into_iter().flat_map(|p| p.extents), &part.extents)))
    }

    fn complete_upload(
        &mut self,
        bucket: &str,
        key: &str,
        id: u64,
        finished: Finished<'_>,
        when: Condition,
        now: u64,
    ) -> Outcome {
        let upload = match self.upload(bucket, key, id) {
            Err(NamespaceError::NoSuchUpload) if self.was_completed(bucket, key, id, &finished) => {
                return Ok(NamespaceDone::Done);
            }
            upload => upload?,
        };
        check_parts(&upload.parts, finished.parts)?;
        let old = self.find(self.bucket(bucket)?, key);
        check_condition(old.as_ref(), when)?;
        let uploads = &mut self.bucket_mut(bucket)?.uploads;
        let upload = uploads.remove(&(key.to_owned(), id)).ok_or(NamespaceError::NoSuchUpload)?;
        let mut meta = ObjectMeta {
            size: 0,
            etag: finished.etag,
            modified_millis: now,
            extents: Vec::new(),
            headers: upload.meta.headers,
            checksum: finished.checksum.clone(),
            upload: Some(id),
            parts: Vec::with_capacity(finished.parts.len()),
        };
        let mut left_out = Vec::new();
        for (number, part) in upload.parts {
            if finished.parts.binary_search_by_key(&number, |(n, _)| *n).is_ok() {
                meta.size += part.size;
                meta.parts.push(ObjectPart { number, size: part.size, checksum: part.checksum });
                meta.extents.extend(part.extents);
            } else if !self.planted.has(PlantedBug::KeepLeftOut) {
                left_out.extend(part.extents);
            }
        }
        debug_assert_eq!(
            meta.parts.len(),
            finished.parts.len(),
            "an object has the parts that its client named"
        );
        self.set(bucket, key, old.is_none(), &meta)?;
        Ok(self.discard(old.into_iter().flat_map(|m| m.extents).chain(left_out)))
    }

    /// Whether the key already names the result of this completion: then its answer was lost and the client retries.
    fn was_completed(&self, bucket: &str, key: &str, id: u64, finished: &Finished<'_>) -> bool {
        self.object(bucket, key).is_ok_and(|meta| meta.upload == Some(id) && meta.etag == finished.etag)
    }

    fn abort_upload(&mut self, bucket: &str, key: &str, id: u64, rules: Option<u32>) -> Outcome {
        check_rules(self.bucket(bucket)?, rules)?;
        let uploads = &mut self.bucket_mut(bucket)?.uploads;
        let upload = uploads.remove(&(key.to_owned(), id)).ok_or(NamespaceError::NoSuchUpload)?;
        Ok(self.discard(upload.parts.into_values().flat_map(|p| p.extents)))
    }

    /// Answers a query. Changes nothing.
    pub fn query(&self, query: &NamespaceQuery) -> Result<NamespaceAnswer, NamespaceError> {
        Ok(match query {
            NamespaceQuery::Now => NamespaceAnswer::Now { unix_millis: self.unix_millis },
            NamespaceQuery::Buckets => NamespaceAnswer::Buckets(
                self.buckets.iter().map(|(name, b)| (name.clone(), b.created_millis)).collect(),
            ),
            NamespaceQuery::Bucket { bucket } => {
                let bucket = self.bucket(bucket)?;
                let (created_millis, settings) = (bucket.created_millis, bucket.settings.clone());
                NamespaceAnswer::Bucket { created_millis, settings }
            }
            NamespaceQuery::Objects { names } => {
                if names.len() > LOOKUPS_MAX {
                    return Err(NamespaceError::TooMany);
                }
                NamespaceAnswer::Objects(names.iter().map(|(bucket, key)| self.object(bucket, key)).collect())
            }
            NamespaceQuery::List { bucket, prefix, delimiter, after, limit } => {
                let bucket = self.bucket(bucket)?;
                NamespaceAnswer::List(self.list(bucket, prefix, delimiter, after, page(*limit)))
            }
            NamespaceQuery::Upload { bucket, key, upload } => {
                NamespaceAnswer::Upload(self.upload(bucket, key, *upload)?.meta.clone())
            }
            NamespaceQuery::Parts { bucket, key, upload, after, limit } => {
                let parts = &self.upload(bucket, key, *upload)?.parts;
                let mut rest = parts.range((Bound::Excluded(*after), Bound::Unbounded));
                let parts = rest.by_ref().take(page(*limit)).map(|(n, p)| (*n, p.clone())).collect();
                NamespaceAnswer::Parts { parts, more: rest.next().is_some() }
            }
            NamespaceQuery::Uploads { bucket, prefix, after, limit } => {
                self.uploads(bucket, prefix, after, page(*limit))?
            }
            NamespaceQuery::Volumes => NamespaceAnswer::Volumes(self.volumes.all()),
            NamespaceQuery::Volume { name } => NamespaceAnswer::Volume(self.volumes.one(name)?),
            NamespaceQuery::Slices { name, after, limit } => {
                let (slices, more) = self.volumes.slices(name, *after, page(*limit))?;
                NamespaceAnswer::Slices { slices, more }
            }
            NamespaceQuery::Runs => NamespaceAnswer::Runs(self.leases.runs()),
            NamespaceQuery::Leased { after, limit } => {
                NamespaceAnswer::Leased(self.leases.leased(*after, page(*limit)))
            }
            NamespaceQuery::SparsePacks { percent } => {
                NamespaceAnswer::Packs(self.leases.sparse(*percent, page(PAGE_MAX)))
            }
            NamespaceQuery::Named { after, limit } => self.named(after, page(*limit)),
            NamespaceQuery::Garbage { after, limit } => {
                let rest = self.garbage.range((Bound::Excluded(*after), Bound::Unbounded));
                NamespaceAnswer::Garbage(rest.take(page(*limit)).map(|(n, e)| (*n, *e)).collect())
            }
        })
    }

    fn object(&self, bucket: &str, key: &str) -> Result<ObjectMeta, NamespaceError> {
        self.find(self.bucket(bucket)?, key).ok_or(NamespaceError::NoSuchKey)
    }

    fn uploads(
        &self,
        bucket: &str,
        prefix: &str,
        after: &(String, u64),
        limit: usize,
    ) -> Result<NamespaceAnswer, NamespaceError> {
        let first = (prefix.to_owned(), 0);
        let from = if *after < first { Bound::Included(&first) } else { Bound::Excluded(after) };
        let range = self.bucket(bucket)?.uploads.range((from, Bound::Unbounded));
        let mut rest = range.take_while(|((key, _), _)| key.starts_with(prefix));
        let uploads = rest
            .by_ref()
            .take(limit)
            .map(|((key, id), upload)| UploadListing {
                key: key.clone(),
                upload: *id,
                initiated_millis: upload.meta.initiated_millis,
                class: kept_class(&upload.meta.headers).map(str::to_owned),
            })
            .collect();
        Ok(NamespaceAnswer::Uploads { uploads, more: rest.next().is_some() })
    }

    fn named(&self, after: &[u8], limit: usize) -> NamespaceAnswer {
        let buckets: BTreeMap<u32, &String> = self.buckets.iter().map(|(name, b)| (b.number, name)).collect();
        let (mut names, mut ids, mut last) = (Vec::new(), 0, Vec::new());
        let mut range = self.names.range(Bound::Excluded(after));
        while let Some((found, object)) = range.next() {
            if names.len() >= limit || ids >= NAMED_IDS_MAX {
                return NamespaceAnswer::Named { names, next: Some(last) };
            }
            let (number, key) = found.split_at(BUCKET_BYTES);
            let number = u32::from_be_bytes(number.try_into().expect("just split"));
            let mut objects: Vec<ObjectId> = decode(object).extents.iter().map(|e| e.object).collect();
            objects.dedup();
            ids += objects.len();
            let bucket = buckets.get(&number).map(|name| (*name).clone()).unwrap_or_default();
            names.push(Named { bucket, key: String::from_utf8_lossy(key).into_owned(), objects });
            last = found.to_vec();
        }
        NamespaceAnswer::Named { names, next: None }
    }

    fn list(&self, bucket: &Bucket, prefix: &str, delimiter: &str, after: &str, limit: usize) -> KeyPage {
        let mut out = KeyPage::default();
        if limit == 0 {
            return out;
        }
        let from = match common_prefix(after, prefix, delimiter) {
            Some(common) if common == after => match past_prefix(common) {
                Some(next) => Bound::Included(next),
                None => return out,
            },
            _ if after < prefix => Bound::Included(prefix.to_owned()),
            _ => Bound::Excluded(after.to_owned()),
        };
        let mut from = from.map(|key| name(bucket.number, &key));
        let first = name(bucket.number, prefix);
        loop {
            let mut jump = None;
            let mut range = self.names.range(from.as_ref().map(Vec::as_slice));
            while let Some((found, object)) = range.next() {
                let key = found.starts_with(&first).then(|| str::from_utf8(&found[BUCKET_BYTES..]).ok());
                let Some(key) = key.flatten() else { return out };
                if out.keys.len() + out.common_prefixes.len() == limit {
                    let last_key = out.keys.last().map(|k| k.key.as_str());
                    out.next =
                        last_key.max(out.common_prefixes.last().map(String::as_str)).map(str::to_owned);
                    return out;
                }
                if let Some(common) = common_prefix(key, prefix, delimiter) {
                    out.common_prefixes.push(common.to_owned());
                    jump = past_prefix(common);
                    break;
                }
                out.keys.push(listing(key, &decode(object)));
            }
            match jump {
                Some(next) => from = Bound::Included(name(bucket.number, &next)),
                None => return out,
            }
        }
    }
}

/// The client's description of a finished upload.
struct Finished<'a> {
    parts: &'a [(u16, ETag)],
    etag: ETag,
    checksum: &'a Option<Checksum>,
}

/// Whether two entries name the same bytes: then the later command repeats the earlier one, because no client writes
/// the same range of an object twice. Entries without bytes cannot be compared this way.
fn is_same(old: &[Extent], new: &[Extent]) -> bool {
    !new.is_empty() && old == new
}

/// Extents that `old` names and `new` does not.
fn unnamed(old: impl Iterator<Item = Extent>, new: &[Extent]) -> impl Iterator<Item = Extent> {
    old.filter(|extent| !new.contains(extent))
}

/// Only what was leased can be named, so every object and every volume is in a pool that exists.
fn check_pool(op: &NamespaceOp, has_pool: impl Fn(PoolId) -> bool) -> Result<(), NamespaceError> {
    let pool = match op {
        NamespaceOp::Lease { first, .. } => first.pool(),
        NamespaceOp::CreateVolume { home: Some(home), .. } => home.pool,
        _ => return Ok(()),
    };
    if pool == PoolId::REPLICATED || has_pool(pool) {
        Ok(())
    } else {
        Err(NamespaceError::NoSuchPool { pool })
    }
}

fn page(limit: u32) -> usize {
    limit.min(PAGE_MAX) as usize
}

fn check_name(name: &str) -> Result<(), NamespaceError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX { Err(NamespaceError::BadName) } else { Ok(()) }
}

fn check_setting(value: &[u8]) -> Result<(), NamespaceError> {
    if value.len() > SETTING_BYTES_MAX { Err(NamespaceError::SettingTooLong) } else { Ok(()) }
}

fn check_key(key: &str) -> Result<(), NamespaceError> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX { Err(NamespaceError::BadKey) } else { Ok(()) }
}

/// A gateway removes by rules that it read a while ago.
fn check_rules(bucket: &Bucket, read: Option<u32>) -> Result<(), NamespaceError> {
    let rules = bucket.settings.get(&BucketSetting::Lifecycle).map(|rules| crc32c(rules));
    if read.is_none() || read == rules { Ok(()) } else { Err(NamespaceError::RulesChanged) }
}

/// Checks the size and time that a delete may depend on.
fn check_only_if(old: Option<&ObjectMeta>, only_if: OnlyIf) -> Result<(), NamespaceError> {
    if only_if == OnlyIf::default() {
        return Ok(());
    }
    let old = old.ok_or(NamespaceError::NoSuchKey)?;
    let other_size = only_if.size.is_some_and(|size| size != old.size);
    let other_time = only_if.modified_seconds.is_some_and(|at| at != old.modified_millis / 1000);
    if other_size || other_time { Err(NamespaceError::PreconditionFailed) } else { Ok(()) }
}

fn check_condition(old: Option<&ObjectMeta>, when: Condition) -> Result<(), NamespaceError> {
    match (when, old) {
        (Condition::Any, _)
        | (Condition::Absent | Condition::Differs(_), None)
        | (Condition::Present, Some(_)) => Ok(()),
        (Condition::Matches(etag), Some(old)) if old.etag == etag => Ok(()),
        (Condition::Differs(etag), Some(old)) if old.etag != etag => Ok(()),
        // S3 answers this way when there is nothing to match.
        (Condition::Matches(_) | Condition::Present, None) => Err(NamespaceError::NoSuchKey),
        _ => Err(NamespaceError::PreconditionFailed),
    }
}

fn check_parts(have: &BTreeMap<u16, Part>, named: &[(u16, ETag)]) -> Result<(), NamespaceError> {
    if named.is_empty() {
        return Err(NamespaceError::InvalidPart { number: 0 });
    }
    if named.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return Err(NamespaceError::InvalidPartOrder);
    }
    for (i, (number, etag)) in named.iter().enumerate() {
        match have.get(number) {
            Some(part) if part.etag == *etag => {
                if i + 1 < named.len() && part.size < PART_BYTES_MIN {
                    return Err(NamespaceError::PartTooSmall { number: *number, size: part.size });
                }
            }
            _ => return Err(NamespaceError::InvalidPart { number: *number }),
        }
    }
    Ok(())
}

fn listing(key: &str, meta: &ObjectMeta) -> KeyListing {
    KeyListing {
        key: key.to_owned(),
        size: meta.size,
        etag: meta.etag,
        modified_millis: meta.modified_millis,
        checksum: meta.checksum.as_ref().map(|c| (c.algorithm, c.composite)),
        class: kept_class(&meta.headers).map(str::to_owned),
    }
}

/// The part of `key` up to and including the first delimiter after `prefix`.
fn common_prefix<'a>(key: &'a str, prefix: &str, delimiter: &str) -> Option<&'a str> {
    let rest = key.strip_prefix(prefix).filter(|_| !delimiter.is_empty())?;
    rest.find(delimiter).map(|at| &key[..prefix.len() + at + delimiter.len()])
}

/// The smallest string greater than every string that starts with `prefix`; `None` if there is none.
fn past_prefix(prefix: &str) -> Option<String> {
    let mut next = prefix.to_owned();
    while let Some(last) = next.pop() {
        // Strings order by code point; the surrogates in between are not valid in a string.
        let up = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(up) = up {
            next.push(up);
            debug_assert!(next.as_str() > prefix, "a listing goes on");
            return Some(next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::VolumeHome;

    const A: ETag = ETag { md5: [1; 16], parts: 0 };
    const B: ETag = ETag { md5: [2; 16], parts: 0 };

    struct World {
        state: Namespace,
        seq: u64,
    }

    impl World {
        fn new() -> World {
            let mut world = World { state: Namespace::default(), seq: 0 };
            assert_eq!(world.state.introduce(7), 1);
            world.ok(NamespaceOp::Lease { first: ObjectId(1), count: 100, bytes: 64 << 20 });
            world.ok(NamespaceOp::CreateBucket { bucket: "b".into(), settings: BTreeMap::new() });
            world
        }

        fn send(&mut self, op: NamespaceOp) -> Outcome {
            self.seq += 1;
            self.state.pass_time(0, 1000 + self.seq, true);
            let command = command(self.seq, vec![op]);
            self.apply(&command).results.remove(0)
        }

        /// The cluster has the pools 1 and 2.
        fn apply(&mut self, command: &NamespaceCommand) -> NamespaceReply {
            self.state.apply(command, |pool| pool <= PoolId(2))
        }

        fn ok(&mut self, op: NamespaceOp) -> NamespaceDone {
            self.send(op).unwrap()
        }

        fn garbage(&self) -> Vec<u64> {
            match self.state.query(&NamespaceQuery::Garbage { after: 0, limit: 1000 }) {
                Ok(NamespaceAnswer::Garbage(list)) => list.iter().map(|(_, e)| e.object.0).collect(),
                other => panic!("{other:?}"),
            }
        }

        fn list(&self, prefix: &str, delimiter: &str, after: &str, limit: u32) -> KeyPage {
            let query = NamespaceQuery::List {
                bucket: "b".into(),
                prefix: prefix.into(),
                delimiter: delimiter.into(),
                after: after.into(),
                limit,
            };
            match self.state.query(&query) {
                Ok(NamespaceAnswer::List(page)) => page,
                other => panic!("{other:?}"),
            }
        }

        fn object(&self, key: &str) -> Result<ObjectMeta, NamespaceError> {
            match self.state.query(&NamespaceQuery::Objects { names: vec![("b".into(), key.into())] })? {
                NamespaceAnswer::Objects(mut found) => found.remove(0),
                other => panic!("{other:?}"),
            }
        }
    }

    fn command(seq: u64, ops: Vec<NamespaceOp>) -> NamespaceCommand {
        NamespaceCommand { request: RequestId { client: 7, seq }, session: Some(1), clock_millis: 0, ops }
    }

    fn extent(object: u64, len: u64) -> Extent {
        Extent { object: ObjectId(object), offset: 0, len, shared: false, crc: 0 }
    }

    fn put(key: &str, object: u64, etag: ETag, when: Condition) -> NamespaceOp {
        let meta = ObjectMeta {
            size: 10,
            etag,
            modified_millis: 0,
            extents: vec![extent(object, 10)],
            headers: vec![],
            checksum: None,
            upload: None,
            parts: vec![],
        };
        NamespaceOp::Put { bucket: "b".into(), key: key.into(), meta, when }
    }

    fn part(upload: u64, number: u16, object: u64, size: u64, etag: ETag) -> NamespaceOp {
        let part =
            Part { size, etag, modified_millis: 0, extents: vec![extent(object, size)], checksum: None };
        NamespaceOp::PutPart { bucket: "b".into(), key: "k".into(), upload, number, part }
    }

    fn complete(upload: u64, parts: Vec<(u16, ETag)>) -> NamespaceOp {
        NamespaceOp::CompleteUpload {
            bucket: "b".into(),
            key: "k".into(),
            upload,
            etag: ETag { md5: [9; 16], parts: parts.len() as u16 },
            parts,
            checksum: None,
            when: Condition::Any,
        }
    }

    fn new_upload_op() -> NamespaceOp {
        NamespaceOp::CreateUpload { bucket: "b".into(), key: "k".into(), headers: vec![], checksum: None }
    }

    fn new_upload(world: &mut World) -> u64 {
        match world.ok(new_upload_op()) {
            NamespaceDone::Upload(id) => id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_change_unnames_goes_to_the_garbage_and_leaves_it_once_collected() {
        let mut world = World::new();
        world.ok(put("k", 1, A, Condition::Any));
        world.ok(put("k", 2, A, Condition::Any));
        world.ok(NamespaceOp::Delete {
            bucket: "b".into(),
            key: "k".into(),
            when: Condition::Any,
            only_if: OnlyIf::default(),
        });
        world.ok(NamespaceOp::Delete {
            bucket: "b".into(),
            key: "k".into(),
            when: Condition::Any,
            only_if: OnlyIf::default(),
        });
        world.ok(NamespaceOp::Discard { extents: vec![extent(3, 1), extent(4, 0)] });
        assert_eq!(world.garbage(), [1, 2, 3], "an empty extent is nothing to free");
        world.ok(NamespaceOp::Collected { garbage: vec![1, 3] });
        assert_eq!(world.garbage(), [2]);
    }

    #[test]
    fn a_repeated_command_is_answered_and_not_carried_out_again() {
        let mut world = World::new();
        let first = command(100, vec![put("k", 1, A, Condition::Absent)]);
        let reply = world.apply(&first);
        world.apply(&command(101, vec![put("k", 2, B, Condition::Any)]));
        assert_eq!(world.apply(&first), reply);
        assert_eq!(world.object("k").unwrap().extents[0].object, ObjectId(2));
        assert_eq!(world.garbage(), [1]);
    }

    #[test]
    fn a_command_older_than_the_kept_replies_is_refused() {
        let mut world = World::new();
        for seq in 2..=REPLIES_KEPT as u64 + 2 {
            world.apply(&command(seq, vec![]));
        }
        let late = world.apply(&command(1, vec![put("k", 1, A, Condition::Any)]));
        assert_eq!(late.results, [Err(NamespaceError::Expired)]);
        assert_eq!(world.object("k"), Err(NamespaceError::NoSuchKey));
    }

    #[test]
    fn replies_are_kept_for_longer_than_a_client_waits_and_then_forgotten() {
        let mut world = World::new();
        let first = command(1000, vec![put("k", 1, A, Condition::Absent)]);
        let reply = world.apply(&first);
        for client in 100..1000 {
            let request = RequestId { client, seq: 1 };
            world.apply(&NamespaceCommand::first(request, 0));
        }
        world.state.pass_time(CLIENT_KEPT_MILLIS, 2000, true);
        assert_eq!(world.apply(&first), reply, "answered, not refused because the key is there now");
        world.state.pass_time(1, 2000, true);
        assert_eq!(world.state.clients.len(), 1, "the others were silent for too long");
    }

    /// Its answer was lost, the client stood still, another one put the key again.
    #[test]
    fn a_command_of_a_forgotten_client_is_refused_and_not_carried_out_again() {
        let mut world = World::new();
        world.ok(put("k", 1, A, Condition::Any));
        let delete = |seq, session| {
            let (bucket, key, only_if) = ("b".into(), "k".into(), OnlyIf::default());
            let ops = vec![NamespaceOp::Delete { bucket, key, when: Condition::Any, only_if }];
            NamespaceCommand { session, ..command(seq, ops) }
        };
        let lost = delete(100, Some(1));
        assert_eq!(world.apply(&lost).results, [Ok(NamespaceDone::Done)]);
        world.state.pass_time(CLIENT_KEPT_MILLIS + 1, 2000, true);
        assert_eq!(world.state.clients.len(), 0);
        let other = world.state.introduce(8);
        let request = RequestId { client: 8, seq: 1 };
        let lease = NamespaceOp::Lease { first: ObjectId(1000), count: 1, bytes: 64 };
        let ops = vec![lease, put("k", 1000, B, Condition::Any)];
        let done = world.apply(&NamespaceCommand { request, session: Some(other), clock_millis: 0, ops });
        assert!(done.results.iter().all(Result::is_ok), "{done:?}");
        let refused = |world: &mut World, command: &NamespaceCommand| {
            let reply = world.apply(command);
            assert_eq!((reply.session, reply.results), (0, vec![Err(NamespaceError::Expired)]));
            assert_eq!(world.object("k").unwrap().etag, B, "what the other one put is there");
        };
        refused(&mut world, &lost);
        // Known again, it is still the same old command.
        let again = world.apply(&NamespaceCommand::first(RequestId { client: 7, seq: 101 }, 0));
        assert_eq!((again.session, again.results.len()), (3, 0));
        refused(&mut world, &lost);
        let first = world.apply(&NamespaceCommand::first(RequestId { client: 7, seq: 101 }, 0));
        assert_eq!(first.session, 3, "a first command that comes twice changes nothing");
        let none = world.apply(&delete(102, None));
        assert_eq!(none.results, [Err(NamespaceError::Expired)], "a first command has no ops");
        assert_eq!(
            world.apply(&delete(103, Some(3))).results,
            [Ok(NamespaceDone::Done)],
            "a new one is carried out"
        );
        assert_eq!(world.object("k"), Err(NamespaceError::NoSuchKey));
    }

    #[test]
    fn objects_are_stamped_by_the_leaders_clock_and_the_clusters_time_follows_only_clocks_that_agree() {
        let mut world = World::new();
        let stamped = |world: &mut World, object| {
            world.apply(&command(100 + object, vec![put("k", object, A, Condition::Any)]));
            (world.object("k").unwrap().modified_millis, world.state.unix_millis())
        };
        assert_eq!(stamped(&mut world, 1), (1002, 1002));
        world.state.pass_time(50, 1060, true);
        assert_eq!(stamped(&mut world, 2), (1060, 1060));
        world.state.pass_time(50, 1040, true);
        assert_eq!(stamped(&mut world, 3), (1060, 1060), "it never goes back");
        world.state.pass_time(50, 900_000, false);
        assert_eq!(stamped(&mut world, 4), (900_000, 1110), "one clock is far ahead");
        world.state.pass_time(50, 10, false);
        assert_eq!(stamped(&mut world, 5), (1160, 1160), "one clock is far behind");
        world.state.pass_time(50, 1200, true);
        assert_eq!(stamped(&mut world, 6), (1200, 1200));
        let mut fresh = Namespace::default();
        fresh.pass_time(50, 900_000, false);
        assert_eq!(fresh.unix_millis(), 0, "no clock was believed yet");
    }

    #[test]
    fn a_forgotten_repetition_frees_nothing_that_is_named() {
        let mut world = World::new();
        world.ok(put("k", 1, A, Condition::Absent));
        world.ok(put("k", 1, A, Condition::Absent));
        let id = new_upload(&mut world);
        world.ok(part(id, 1, 2, 5, A));
        world.ok(part(id, 1, 2, 5, A));
        assert!(world.garbage().is_empty());
    }

    #[test]
    fn conditions_decide_over_puts_and_deletes() {
        use NamespaceError::{NoSuchKey, PreconditionFailed};
        let mut world = World::new();
        assert_eq!(world.send(put("k", 1, A, Condition::Matches(A))), Err(NoSuchKey));
        world.ok(put("k", 1, A, Condition::Absent));
        assert_eq!(world.send(put("k", 2, A, Condition::Absent)), Err(PreconditionFailed));
        assert_eq!(world.send(put("k", 2, A, Condition::Matches(B))), Err(PreconditionFailed));
        assert_eq!(world.send(put("k", 2, A, Condition::Differs(A))), Err(PreconditionFailed));
        world.ok(put("k", 3, B, Condition::Matches(A)));
        let delete = |when, size, modified_seconds| NamespaceOp::Delete {
            bucket: "b".into(),
            key: "k".into(),
            when,
            only_if: OnlyIf { size, modified_seconds, rules: None },
        };
        assert_eq!(world.send(delete(Condition::Matches(A), None, None)), Err(PreconditionFailed));
        assert_eq!(world.send(delete(Condition::Any, Some(11), None)), Err(PreconditionFailed));
        assert_eq!(world.send(delete(Condition::Any, Some(10), Some(2))), Err(PreconditionFailed));
        world.ok(delete(Condition::Matches(B), Some(10), Some(1)));
        assert_eq!(world.send(delete(Condition::Any, Some(10), None)), Err(NoSuchKey));
        world.ok(delete(Condition::Any, None, None));
    }

    /// Who removed a rule has stopped it, also on a gateway that is in the middle of its round.
    #[test]
    fn nothing_is_removed_by_lifecycle_rules_that_were_replaced() {
        let mut world = World::new();
        let set = |value: Option<&[u8]>| NamespaceOp::SetBucket {
            bucket: "b".into(),
            setting: BucketSetting::Lifecycle,
            value: value.map(<[u8]>::to_vec),
        };
        let delete = |rules: &[u8]| NamespaceOp::Delete {
            bucket: "b".into(),
            key: "k".into(),
            when: Condition::Any,
            only_if: OnlyIf { rules: Some(crc32c(rules)), ..OnlyIf::default() },
        };
        let id = new_upload(&mut world);
        let abort = |rules: &[u8]| NamespaceOp::AbortUpload {
            bucket: "b".into(),
            key: "k".into(),
            upload: id,
            rules: Some(crc32c(rules)),
        };
        world.ok(put("k", 1, A, Condition::Any));
        for other in [None, Some(&b"others"[..])] {
            world.ok(set(other));
            assert_eq!(world.send(delete(b"rules")), Err(NamespaceError::RulesChanged));
            assert_eq!(world.send(abort(b"rules")), Err(NamespaceError::RulesChanged));
        }
        world.ok(set(Some(b"rules")));
        world.ok(abort(b"rules"));
        world.ok(delete(b"rules"));
        assert_eq!(world.send(delete(b"rules")), Err(NamespaceError::NoSuchKey));
    }

    #[test]
    fn settings_of_buckets_and_headers_of_objects_are_set_and_removed() {
        let mut world = World::new();
        let set = |setting, value: Option<&[u8]>| NamespaceOp::SetBucket {
            bucket: "b".into(),
            setting,
            value: value.map(<[u8]>::to_vec),
        };
        world.ok(set(BucketSetting::Cors, Some(b"rules")));
        world.ok(set(BucketSetting::Tags, Some(b"tags")));
        world.ok(set(BucketSetting::Tags, None));
        let long = vec![0; SETTING_BYTES_MAX + 1];
        assert_eq!(world.send(set(BucketSetting::Cors, Some(&long))), Err(NamespaceError::SettingTooLong));
        let settings = BTreeMap::from([(BucketSetting::Cors, b"rules".to_vec())]);
        assert_eq!(
            world.state.query(&NamespaceQuery::Bucket { bucket: "b".into() }),
            Ok(NamespaceAnswer::Bucket { created_millis: 1002, settings })
        );
        world.ok(put("k", 1, A, Condition::Any));
        let modified = world.object("k").unwrap().modified_millis;
        let header = |value: Option<&str>| NamespaceOp::SetHeader {
            bucket: "b".into(),
            key: "k".into(),
            name: "h".into(),
            value: value.map(str::to_owned),
        };
        for value in [Some("1"), Some("2"), None] {
            world.ok(header(value));
            let object = world.object("k").unwrap();
            let expected: Vec<_> = value.map(|v| ("h".to_owned(), v.to_owned())).into_iter().collect();
            assert_eq!((object.headers, object.modified_millis), (expected, modified));
        }
    }

    #[test]
    fn a_listing_shows_common_prefixes_and_pages_over_everything_once() {
        let mut world = World::new();
        let names = ["a", "a/1", "a/2", "b/1/x", "b/2", "c", "d/\u{10ffff}", "d/z", "e"];
        for (i, name) in names.iter().enumerate() {
            world.ok(put(name, i as u64 + 1, A, Condition::Any));
        }
        let whole = world.list("", "/", "", 1000);
        assert_eq!(whole.keys.iter().map(|k| k.key.as_str()).collect::<Vec<_>>(), ["a", "c", "e"]);
        assert_eq!(whole.common_prefixes, ["a/", "b/", "d/"]);
        assert_eq!(whole.next, None);
        for limit in 1..=7 {
            for (prefix, delimiter) in [("", "/"), ("", ""), ("b/", "/"), ("d/", ""), ("zz", "/")] {
                let whole = world.list(prefix, delimiter, "", 1000);
                let (mut keys, mut prefixes, mut after) = (vec![], vec![], String::new());
                loop {
                    let page = world.list(prefix, delimiter, &after, limit);
                    assert!(page.keys.len() + page.common_prefixes.len() <= limit as usize);
                    keys.extend(page.keys);
                    prefixes.extend(page.common_prefixes);
                    match page.next {
                        Some(next) => after = next,
                        None => break,
                    }
                }
                assert_eq!(
                    (keys, prefixes),
                    (whole.keys, whole.common_prefixes),
                    "{prefix:?} {delimiter:?} {limit}"
                );
            }
        }
        let started = world.list("", "", "b/1/x", 1000);
        assert_eq!(started.keys[0].key, "b/2");
    }

    #[test]
    fn the_string_past_a_prefix_is_a_string() {
        assert_eq!(past_prefix("a/").as_deref(), Some("a0"));
        assert_eq!(past_prefix("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(past_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(past_prefix("\u{10ffff}"), None);
    }

    #[test]
    fn an_upload_joins_its_named_parts_and_frees_the_others() {
        let mut world = World::new();
        let id = new_upload(&mut world);
        world.ok(part(id, 1, 10, PART_BYTES_MIN, A));
        world.ok(part(id, 1, 11, PART_BYTES_MIN, B));
        world.ok(part(id, 3, 13, 5, A));
        world.ok(part(id, 4, 14, 6, A));
        assert_eq!(world.garbage(), [10], "a part sent again frees the first");
        assert_eq!(
            world.send(complete(id, vec![(1, A), (3, A)])),
            Err(NamespaceError::InvalidPart { number: 1 })
        );
        assert_eq!(world.send(complete(id, vec![(3, A), (1, B)])), Err(NamespaceError::InvalidPartOrder));
        let small = world.send(complete(id, vec![(3, A), (4, A)]));
        assert_eq!(small, Err(NamespaceError::PartTooSmall { number: 3, size: 5 }));
        world.ok(complete(id, vec![(1, B), (4, A)]));
        let meta = world.object("k").unwrap();
        assert_eq!(meta.size, PART_BYTES_MIN + 6);
        assert_eq!(
            meta.parts.iter().map(|p| (p.number, p.size)).collect::<Vec<_>>(),
            [(1, PART_BYTES_MIN), (4, 6)]
        );
        assert_eq!(meta.extents.iter().map(|e| e.object.0).collect::<Vec<_>>(), [11, 14]);
        assert_eq!(world.garbage(), [10, 13]);
        world.ok(complete(id, vec![(1, B), (4, A)]));
        assert_eq!(world.object("k").unwrap(), meta, "sent again it changes nothing");
        assert_eq!(world.send(complete(id, vec![(1, B)])), Err(NamespaceError::NoSuchUpload));
        world.ok(put("k", 20, A, Condition::Any));
        assert_eq!(world.send(complete(id, vec![(1, B), (4, A)])), Err(NamespaceError::NoSuchUpload));
    }

    #[test]
    fn aborted_uploads_and_deleted_buckets_and_volumes_free_what_they_held() {
        let mut world = World::new();
        let first = new_upload(&mut world);
        world.ok(part(first, 1, 10, 5, A));
        let second = new_upload(&mut world);
        world.ok(part(second, 1, 11, 5, A));
        let query = NamespaceQuery::Uploads {
            bucket: "b".into(),
            prefix: "k".into(),
            after: (String::new(), 0),
            limit: 1,
        };
        match world.state.query(&query) {
            Ok(NamespaceAnswer::Uploads { uploads, more: true }) => assert_eq!(uploads[0].upload, first),
            other => panic!("{other:?}"),
        }
        world.ok(NamespaceOp::AbortUpload {
            bucket: "b".into(),
            key: "k".into(),
            upload: first,
            rules: None,
        });
        world.ok(put("k", 12, A, Condition::Any));
        let delete = NamespaceOp::DeleteBucket { bucket: "b".into() };
        assert_eq!(world.send(delete.clone()), Err(NamespaceError::BucketNotEmpty));
        world.ok(NamespaceOp::Delete {
            bucket: "b".into(),
            key: "k".into(),
            when: Condition::Any,
            only_if: OnlyIf::default(),
        });
        world.ok(delete);
        world.ok(NamespaceOp::CreateVolume { name: "v".into(), size: 100, object: ObjectId(13), home: None });
        world.ok(NamespaceOp::DeleteVolume { name: "v".into() });
        assert_eq!(world.garbage(), [10, 12, 11, 13]);
    }

    #[test]
    fn what_is_in_a_pool_is_named_listed_and_freed_there() {
        let mut world = World::new();
        let cold = |serial: u64| ObjectId(serial).in_pool(PoolId(2));
        world.ok(NamespaceOp::Lease { first: cold(200), count: 4, bytes: 64 << 20 });
        let shared =
            |block: u64| Extent { object: cold(201), offset: block << 12, shared: true, ..extent(0, 10) };
        let mut put_at = |key: &str, at: Extent| {
            let NamespaceOp::Put { bucket, key, mut meta, when } = put(key, 0, A, Condition::Any) else {
                unreachable!("it is a put")
            };
            meta.extents = vec![at];
            meta.headers.push((CLASS_HEADER.to_owned(), "cold".to_owned()));
            world.send(NamespaceOp::Put { bucket, key, meta, when })
        };
        let own = Extent { object: cold(200), ..extent(0, 10) };
        assert_eq!(put_at("a", Extent { object: ObjectId(200), ..own }), Err(NamespaceError::NotLeased));
        assert_eq!(put_at("a", own), Ok(NamespaceDone::Done));
        assert_eq!(put_at("b", shared(0)), Ok(NamespaceDone::Done));
        assert_eq!(put_at("c", shared(1)), Ok(NamespaceDone::Done));
        world.ok(put("d", 1, B, Condition::Any));
        let classes: Vec<_> = world.list("", "", "", 10).keys.into_iter().map(|key| key.class).collect();
        assert_eq!(classes, [Some("cold".to_owned()), Some("cold".into()), Some("cold".into()), None]);
        for key in ["a", "b", "c", "d"] {
            let (bucket, when, only_if) = ("b".into(), Condition::Any, OnlyIf::default());
            world.ok(NamespaceOp::Delete { bucket, key: key.into(), when, only_if });
        }
        assert_eq!(world.garbage(), [cold(200).0, cold(201).0, cold(201).0, 1], "the pack is still open");
        world.ok(NamespaceOp::Close { packs: vec![cold(201)], unused: vec![cold(202), cold(203)] });
        assert_eq!(world.garbage().last(), Some(&cold(201).0));
    }

    /// A move of what was put with serial number `was`, in pool 2.
    fn moved(was: u64, crc: u32) -> NamespaceOp {
        let new = Extent { object: ObjectId(200).in_pool(PoolId(2)), crc, ..extent(0, 10) };
        let (bucket, key, class) = ("b".into(), "k".into(), "cold".into());
        NamespaceOp::Move { bucket, key, was: extent(was, 10), extents: vec![new], class }
    }

    #[test]
    fn a_move_changes_where_an_object_is_and_nothing_else() {
        let mut world = World::new();
        let cold = |serial: u64| ObjectId(serial).in_pool(PoolId(2));
        world.ok(put("k", 1, A, Condition::Any));
        let header = |name: &str, value: &str| NamespaceOp::SetHeader {
            bucket: "b".into(),
            key: "k".into(),
            name: name.into(),
            value: Some(value.into()),
        };
        world.ok(header("tags", "t"));
        world.ok(header(CLASS_HEADER, "warm"));
        let before = world.object("k").unwrap();
        assert_eq!(world.send(moved(1, 0)), Err(NamespaceError::NotLeased));
        world.ok(NamespaceOp::Lease { first: cold(200), count: 2, bytes: 64 << 20 });
        assert_eq!(world.send(moved(1, 5)), Err(NamespaceError::PreconditionFailed), "other bytes");
        assert_eq!(world.object("k").as_ref(), Ok(&before));
        assert!(world.garbage().is_empty());
        world.ok(moved(1, 0));
        let after = world.object("k").unwrap();
        assert_eq!(after.extents[0].object, cold(200));
        assert_eq!(kept_class(&after.headers), Some("cold"));
        let (extents, headers) = (before.extents.clone(), before.headers.clone());
        assert_eq!(after.headers.len(), headers.len());
        assert!(after.headers.contains(&("tags".into(), "t".into())));
        assert_eq!(ObjectMeta { extents, headers, ..after.clone() }, before);
        assert_eq!(world.garbage(), [1]);
        world.ok(moved(1, 0));
        assert_eq!(
            (world.object("k"), world.garbage()),
            (Ok(after), vec![1]),
            "sent again it changes nothing"
        );
    }

    #[test]
    fn an_object_that_was_replaced_or_deleted_is_not_moved() {
        let mut world = World::new();
        let cold = ObjectId(200).in_pool(PoolId(2));
        world.ok(NamespaceOp::Lease { first: cold, count: 2, bytes: 64 << 20 });
        world.ok(put("k", 1, A, Condition::Any));
        world.ok(put("k", 2, A, Condition::Any));
        assert_eq!(world.send(moved(1, 0)), Err(NamespaceError::PreconditionFailed), "the same bytes again");
        assert_eq!(world.object("k").unwrap().extents, [extent(2, 10)]);
        let (bucket, when, only_if) = ("b".into(), Condition::Any, OnlyIf::default());
        world.ok(NamespaceOp::Delete { bucket, key: "k".into(), when, only_if });
        assert_eq!(world.send(moved(2, 0)), Err(NamespaceError::NoSuchKey));
        assert_eq!(world.garbage(), [1, 2]);
        let nothing = NamespaceOp::Move {
            bucket: "b".into(),
            key: "k".into(),
            was: extent(2, 10),
            extents: vec![],
            class: "cold".into(),
        };
        world.ok(put("k", 3, A, Condition::Any));
        assert_eq!(world.send(nothing), Err(NamespaceError::PreconditionFailed), "a copy of nothing");
    }

    /// A gateway's day: it leaves nothing but leases of which another one disposes the next day.
    fn a_day(state: &mut Namespace, day: u64) {
        let (client, first) = (1000 + day, 100 * day);
        let session = Some(state.introduce(client));
        let mut seq = 0;
        let mut ok = |state: &mut Namespace, op: NamespaceOp| {
            seq += 1;
            let request = RequestId { client, seq };
            let command = NamespaceCommand { request, session, clock_millis: 0, ops: vec![op] };
            state.apply(&command, |_| true).results.remove(0).unwrap()
        };
        let Ok(NamespaceAnswer::Runs(runs)) = state.query(&NamespaceQuery::Runs) else { panic!() };
        for (run, stamp) in runs {
            ok(state, NamespaceOp::EndRun { run, stamp });
        }
        ok(state, NamespaceOp::CreateBucket { bucket: "b".into(), settings: BTreeMap::new() });
        ok(state, NamespaceOp::Lease { first: ObjectId(first), count: 10, bytes: 64 << 20 });
        let shared = |block: u64| Extent { offset: block << 12, shared: true, ..extent(first, 10) };
        for (block, key) in [(0, "j"), (1, "k"), (2, "k")] {
            let NamespaceOp::Put { bucket, key, mut meta, when } = put(key, 0, A, Condition::Any) else {
                panic!()
            };
            meta.extents = vec![shared(block)];
            ok(state, NamespaceOp::Put { bucket, key, meta, when });
        }
        ok(state, put("k", first + 1, B, Condition::Any));
        let upload = new_upload_op();
        let NamespaceDone::Upload(upload) = ok(state, upload) else { panic!() };
        ok(state, part(upload, 1, first + 2, 5, A));
        ok(state, part(upload, 1, first + 3, 5, A));
        ok(state, part(upload, 2, first + 4, 5, A));
        ok(state, complete(upload, vec![(1, A)]));
        ok(state, new_upload_op());
        let (name, object) = (|| "v".to_owned(), ObjectId(first + 50));
        let home = Some(VolumeHome { pool: PoolId(0), front_bytes: 10 });
        ok(state, NamespaceOp::CreateVolume { name: name(), size: 4 << 20, object, home });
        let noted = Extent { object, ..extent(0, 9) };
        ok(state, NamespaceOp::ClaimVolume { name: name(), from: None, noted });
        let to = Some(ObjectId(first + 5));
        ok(state, NamespaceOp::MoveSlice { name: name(), claim: 1, slice: 0, was: None, to });
        ok(state, NamespaceOp::DeleteVolume { name: name() });
        ok(state, NamespaceOp::Discard { extents: vec![extent(first + 6, 9)] });
        for key in ["j", "k"] {
            let (bucket, when, only_if) = ("b".into(), Condition::Any, OnlyIf::default());
            ok(state, NamespaceOp::Delete { bucket, key: key.into(), when, only_if });
        }
        ok(state, NamespaceOp::DeleteBucket { bucket: "b".into() });
        let (packs, unused) = (vec![ObjectId(first)], vec![ObjectId(first + 7)]);
        ok(state, NamespaceOp::Close { packs, unused });
        let Ok(NamespaceAnswer::Garbage(page)) =
            state.query(&NamespaceQuery::Garbage { after: 0, limit: 99 })
        else {
            panic!()
        };
        let garbage = page.iter().map(|(number, _)| *number).collect();
        ok(state, NamespaceOp::Collected { garbage });
        state.pass_time(CLIENT_KEPT_MILLIS + 1, 0, false);
    }

    /// R19: of what was there and is gone, no run, pack, reply or garbage stays.
    #[test]
    fn a_long_history_leaves_no_more_in_the_state_than_a_short_one() {
        let mut state = Namespace::default();
        let mut bytes = Vec::new();
        // Numbers of the same length.
        for day in 1000..1400 {
            a_day(&mut state, day);
            bytes.push(postcard::to_stdvec(&state).unwrap().len());
        }
        let (early, late) = (bytes[200], bytes[399]);
        assert!(late <= early + 16, "{early} bytes, then {late}");
        assert!(late < 300, "{late} bytes of an empty namespace");
    }

    #[test]
    fn a_repack_moves_one_extent_if_it_is_still_there() {
        let mut world = World::new();
        let cold = |serial: u64| ObjectId(serial).in_pool(PoolId(2));
        world.ok(NamespaceOp::Lease { first: cold(200), count: 4, bytes: 64 << 20 });
        let at = |serial: u64, block: u64| Extent {
            object: cold(serial),
            offset: block << 12,
            shared: true,
            ..extent(0, 10)
        };
        for (key, block) in [("k", 0), ("other", 1)] {
            let NamespaceOp::Put { bucket, key, mut meta, when } = put(key, 0, A, Condition::Any) else {
                unreachable!("it is a put")
            };
            meta.extents = vec![at(200, block), Extent { object: cold(202 + block), ..extent(0, 10) }];
            meta.size = 20;
            world.ok(NamespaceOp::Put { bucket, key, meta, when });
        }
        let repack = |was, to| NamespaceOp::Repack { bucket: "b".into(), key: "k".into(), was, to };
        let before = world.object("k").unwrap();
        let refused = Err(NamespaceError::PreconditionFailed);
        assert_eq!(world.send(repack(at(200, 1), at(201, 0))), refused, "another key's");
        assert_eq!(world.send(repack(at(200, 0), Extent { crc: 7, ..at(201, 0) })), refused, "other bytes");
        assert_eq!(world.send(repack(at(200, 0), at(300, 0))), Err(NamespaceError::NotLeased));
        assert_eq!(world.object("k").as_ref(), Ok(&before));
        for _ in 0..2 {
            world.ok(repack(at(200, 0), at(201, 0)));
            let extents = vec![at(201, 0), before.extents[1]];
            assert_eq!(world.object("k"), Ok(ObjectMeta { extents, ..before.clone() }));
            assert_eq!(world.garbage(), [cold(200).0], "once");
        }
        assert_eq!(world.send(repack(at(200, 0), at(201, 1))), refused, "it is gone from there");
        world.ok(NamespaceOp::Close { packs: vec![cold(200)], unused: vec![] });
        let sparse = world.state.query(&NamespaceQuery::SparsePacks { percent: 60 });
        assert_eq!(sparse, Ok(NamespaceAnswer::Packs(vec![cold(200)])));
    }

    #[test]
    fn all_names_are_listed_once_with_what_their_bytes_are_in() {
        let mut world = World::new();
        world.ok(NamespaceOp::CreateBucket { bucket: "a".into(), settings: BTreeMap::new() });
        let mut expected = Vec::new();
        for (bucket, key, serial) in [("b", "k1", 1), ("b", "k2", 2), ("a", "k1", 3), ("a", "\u{10ffff}", 4)]
        {
            let NamespaceOp::Put { key, meta, when, .. } = put(key, serial, A, Condition::Any) else {
                unreachable!("it is a put")
            };
            let objects = vec![ObjectId(serial)];
            expected.push(Named { bucket: bucket.into(), key: key.clone(), objects });
            world.ok(NamespaceOp::Put { bucket: bucket.into(), key, meta, when });
        }
        for limit in 1..=5 {
            let (mut found, mut after) = (Vec::new(), Vec::new());
            loop {
                let page = world.state.query(&NamespaceQuery::Named { after, limit });
                let Ok(NamespaceAnswer::Named { names, next }) = page else { panic!("{page:?}") };
                assert!(names.len() <= limit as usize);
                found.extend(names);
                match next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            assert_eq!(found, expected, "{limit} at a time");
        }
    }

    #[test]
    fn nothing_is_leased_in_a_pool_that_does_not_exist() {
        let mut world = World::new();
        let lease = |pool| NamespaceOp::Lease {
            first: ObjectId(200).in_pool(PoolId(pool)),
            count: 1,
            bytes: 64 << 20,
        };
        let volume = |pool| NamespaceOp::CreateVolume {
            name: "v".into(),
            size: 100,
            object: ObjectId(13),
            home: Some(VolumeHome { pool: PoolId(pool), front_bytes: 10 }),
        };
        let refused = Err(NamespaceError::NoSuchPool { pool: PoolId(3) });
        assert_eq!(world.send(lease(3)), refused);
        assert_eq!(world.send(volume(3)), refused);
        world.ok(lease(2));
        world.ok(volume(2));
    }

    #[test]
    fn bad_names_are_refused() {
        let mut world = World::new();
        let long = "k".repeat(KEY_BYTES_MAX + 1);
        assert_eq!(world.send(put(&long, 1, A, Condition::Any)), Err(NamespaceError::BadKey));
        assert_eq!(world.send(put("", 1, A, Condition::Any)), Err(NamespaceError::BadKey));
        assert_eq!(
            world.send(NamespaceOp::CreateBucket { bucket: String::new(), settings: BTreeMap::new() }),
            Err(NamespaceError::BadName)
        );
    }
}
