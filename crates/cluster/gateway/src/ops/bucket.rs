//! Buckets: their creation and deletion, their settings, and correct replies about settings that Ebb does not have.

use crate::bytes::backend::{Backend, Pool};
use crate::bytes::names::Names;
use crate::convert::{OWNER, custom, timestamp};
use crate::http::front::no_acl;
use crate::http::rights::Key;
use crate::ops::list::{from_token, other_answer, owner, page_size, token};
use crate::ops::pools::{Destination, at_location, destination, location_of_new};
use crate::ops::rules::{Rule, expiring};
use crate::ops::tags::{BUCKET_TAGS_MAX, from_set, to_set};
use ebb_types::{BucketSetting, BucketSettings, Moment, NamespaceAnswer, NamespaceOp, NamespaceQuery};
use hyper::StatusCode;
use s3s::dto::*;
use s3s::{S3Result, s3_error};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// For how long a setting of a bucket is remembered. Another gateway may change it meanwhile, or delete the bucket and
/// create it elsewhere; then new objects go to the old pool for this long, which does no harm.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Most buckets remembered.
const BUCKETS_MAX: usize = 10_000;

/// A setting of buckets, so that not every request asks the metadata service for it.
#[derive(Default)]
struct Remembered<T>(Mutex<BTreeMap<String, (Moment, T)>>);

impl<T: Clone> Remembered<T> {
    fn get(&self, bucket: &str, now: Moment) -> Option<T> {
        let known = self.0.lock().expect("no panic under this lock");
        known.get(bucket).filter(|(since, _)| now.since(*since) < REMEMBERED).map(|(_, value)| value.clone())
    }

    fn set(&self, bucket: &str, value: T, now: Moment) {
        let mut known = self.0.lock().expect("no panic under this lock");
        if known.len() >= BUCKETS_MAX {
            known.clear();
        }
        known.insert(bucket.to_owned(), (now, value));
        debug_assert!(known.len() <= BUCKETS_MAX, "memory is bounded");
    }

    fn forget(&self, bucket: &str) {
        self.0.lock().expect("no panic under this lock").remove(bucket);
    }
}

/// The buckets of the cluster, with their settings. Owns what is remembered of those.
pub struct Buckets<B> {
    backend: Arc<B>,
    names: Arc<Names<B>>,
    /// The pool or region of each bucket.
    locations: Remembered<Option<String>>,
    /// The rules by which objects of each bucket expire.
    expiry: Remembered<Arc<Vec<Rule>>>,
}

impl<B: Backend> Buckets<B> {
    pub fn new(backend: Arc<B>, names: Arc<Names<B>>) -> Buckets<B> {
        let (locations, expiry) = (Remembered::default(), Remembered::default());
        Buckets { backend, names, locations, expiry }
    }

    /// The buckets that the key can access.
    pub async fn list(&self, input: ListBucketsInput, key: Option<Key>) -> S3Result<ListBucketsOutput> {
        let NamespaceAnswer::Buckets(buckets) = self.names.query(NamespaceQuery::Buckets).await? else {
            return Err(other_answer());
        };
        let prefix = input.prefix.as_deref().unwrap_or_default();
        let after = input.continuation_token.as_deref().map(from_token).transpose()?.unwrap_or_default();
        // Ten thousand, S3's page size, unless another is requested.
        let limit = input.max_buckets.map_or(Ok(10_000), |asked| page_size(Some(asked)))?.max(1) as usize;
        let reached = |name: &String| key.as_ref().is_some_and(|key| key.reaches(name));
        let wanted = |name: &String| name.starts_with(prefix) && *name > after && reached(name);
        let mut rest = buckets.into_iter().filter(|(name, _)| wanted(name)).peekable();
        let page: Vec<_> = rest.by_ref().take(limit).collect();
        let next = rest.peek().and_then(|_| page.last()).map(|(name, _)| token(name));
        let shown = page.into_iter().map(|(name, created)| Bucket {
            creation_date: Some(timestamp(created)),
            name: Some(name),
            ..Default::default()
        });
        Ok(ListBucketsOutput {
            buckets: Some(shown.collect()),
            continuation_token: next,
            owner: Some(owner()),
            prefix: input.prefix.clone(),
        })
    }

    pub async fn create(&self, input: CreateBucketInput) -> S3Result<()> {
        let configuration = input.create_bucket_configuration.unwrap_or_default();
        if configuration.bucket.is_some() || configuration.location.is_some() {
            return Err(s3_error!(NotImplemented, "directory buckets are not supported"));
        }
        let constraint = configuration.location_constraint.as_ref().map_or("", |name| name.as_str());
        let mut settings = BucketSettings::new();
        if let Some(pool) = location_of_new(constraint, &self.backend.pools())? {
            settings.insert(BucketSetting::Location, pool.into_bytes());
        }
        self.forget(&input.bucket);
        self.names.commit(NamespaceOp::CreateBucket { bucket: input.bucket, settings }).await?;
        Ok(())
    }

    pub async fn delete(&self, bucket: String) -> S3Result<()> {
        self.forget(&bucket);
        self.names.commit(NamespaceOp::DeleteBucket { bucket }).await?;
        Ok(())
    }

    pub async fn settings(&self, bucket: String) -> S3Result<BucketSettings> {
        match self.names.query(NamespaceQuery::Bucket { bucket }).await? {
            NamespaceAnswer::Bucket { settings, .. } => Ok(settings),
            _ => Err(other_answer()),
        }
    }

    pub async fn check(&self, bucket: String) -> S3Result<()> {
        self.settings(bucket).await.map(drop)
    }

    pub async fn setting(&self, bucket: String, setting: BucketSetting) -> S3Result<Option<String>> {
        let value = self.settings(bucket).await?.remove(&setting);
        value.map(|bytes| String::from_utf8(bytes).map_err(|_| other_answer())).transpose()
    }

    pub async fn set(&self, bucket: String, setting: BucketSetting, value: Option<String>) -> S3Result<()> {
        let value = value.map(String::into_bytes);
        let changed = bucket.clone();
        self.names.commit(NamespaceOp::SetBucket { bucket, setting, value }).await?;
        self.forget(&changed);
        Ok(())
    }

    /// The bucket's settings are others now.
    fn forget(&self, bucket: &str) {
        self.locations.forget(bucket);
        self.expiry.forget(bucket);
    }

    /// None: the default region, as S3 shows it.
    pub async fn location(&self, bucket: String) -> S3Result<Option<String>> {
        self.setting(bucket, BucketSetting::Location).await
    }

    pub async fn tags(&self, bucket: String) -> S3Result<GetBucketTaggingOutput> {
        match self.setting(bucket, BucketSetting::Tags).await? {
            Some(tags) => Ok(GetBucketTaggingOutput { tag_set: to_set(&tags) }),
            None => Err(s3_error!(NoSuchTagSet, "the bucket has no tags")),
        }
    }

    pub async fn set_tags(&self, bucket: String, tagging: Tagging) -> S3Result<()> {
        let tags = from_set(tagging, BUCKET_TAGS_MAX)?;
        self.set(bucket, BucketSetting::Tags, tags).await
    }

    /// Whether the location is a pool, and so no region.
    pub fn is_pool(&self, location: &str) -> bool {
        self.backend.pools().iter().any(|pool| pool.name == location)
    }

    /// The pool of new objects of this storage class in the bucket.
    pub async fn destination(&self, bucket: &str, class: Option<&str>) -> S3Result<Destination> {
        let pools = self.backend.pools();
        let own = match pools.is_empty() {
            true => None,
            false => self.pool(bucket, &pools).await?,
        };
        destination(&pools, own, class)
    }

    /// The erasure-coded pool that the bucket is in; `None`: the replicated one.
    async fn pool(&self, bucket: &str, pools: &[Pool]) -> S3Result<Option<Pool>> {
        let now = self.backend.now();
        let location = match self.locations.get(bucket, now) {
            Some(location) => location,
            None => {
                let location = self.setting(bucket.to_owned(), BucketSetting::Location).await?;
                self.locations.set(bucket, location.clone(), now);
                location
            }
        };
        at_location(location, pools)
    }

    /// The rules by which the bucket's objects expire. None if they cannot be had: an answer is not refused for lack of
    /// a header.
    pub async fn expiry_rules(&self, bucket: &str) -> Arc<Vec<Rule>> {
        let now = self.backend.now();
        if let Some(rules) = self.expiry.get(bucket, now) {
            return rules;
        }
        let Ok(text) = self.setting(bucket.to_owned(), BucketSetting::Lifecycle).await else {
            return Arc::default();
        };
        let rules = Arc::new(expiring(text.as_deref()));
        self.expiry.set(bucket, rules.clone(), now);
        rules
    }

    /// For a setting that no bucket can have here: the reply for a bucket without it.
    pub async fn unset<T>(&self, bucket: String, code: &'static str, what: &str) -> S3Result<T> {
        self.check(bucket).await?;
        Err(custom(code, StatusCode::NOT_FOUND, format!("the bucket has no {what}")))
    }
}

/// Permissions on a bucket or an object: full control for the owner.
pub fn grants() -> Vec<Grant> {
    let grantee = Grantee {
        display_name: Some(OWNER.to_owned()),
        email_address: None,
        id: Some(OWNER.to_owned()),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    vec![Grant {
        grantee: Some(grantee),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }]
}

/// Whether an access list is the fixed one that everything has. The front door rejects every other header.
pub fn check_acl(canned: bool, policy: Option<AccessControlPolicy>) -> S3Result<()> {
    let given = policy.and_then(|policy| policy.grants);
    let own = given.as_ref().is_some_and(|grants| {
        let full = |grant: &Grant| {
            let permission = grant.permission.as_ref().map(Permission::as_str);
            let id = grant.grantee.as_ref().and_then(|grantee| grantee.id.as_deref());
            permission == Some(Permission::FULL_CONTROL) && id == Some(OWNER)
        };
        grants.iter().all(full) && !grants.is_empty()
    });
    if own || (canned && given.is_none()) {
        return Ok(());
    }
    Err(no_acl())
}
