//! Buckets: their creation and deletion, their settings, and correct replies about settings that Ebb does not have.

use super::Gateway;
use super::backend::Backend;
use super::convert::{OWNER, timestamp};
use super::front::no_acl;
use super::list::{from_token, other_answer, owner, page_size, token};
use super::rights::Key;
use ebb_types::{BucketSetting, BucketSettings, NamespaceAnswer, NamespaceOp, NamespaceQuery};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

impl<B: Backend> Gateway<B> {
    /// The buckets that the key can access.
    pub(super) async fn buckets(
        &self,
        input: ListBucketsInput,
        key: Option<Key>,
    ) -> S3Result<ListBucketsOutput> {
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

    pub(super) async fn new_bucket(&self, input: CreateBucketInput) -> S3Result<()> {
        let configuration = input.create_bucket_configuration.unwrap_or_default();
        if configuration.bucket.is_some() || configuration.location.is_some() {
            return Err(s3_error!(NotImplemented, "directory buckets are not supported"));
        }
        let constraint = configuration.location_constraint.as_ref().map_or("", |name| name.as_str());
        let mut settings = BucketSettings::new();
        if let Some(pool) = self.location_of_new(constraint)? {
            settings.insert(BucketSetting::Location, pool.into_bytes());
        }
        self.forget(&input.bucket);
        self.names.commit(NamespaceOp::CreateBucket { bucket: input.bucket, settings }).await?;
        Ok(())
    }

    pub(super) async fn delete_bucket_named(&self, bucket: String) -> S3Result<()> {
        self.forget(&bucket);
        self.names.commit(NamespaceOp::DeleteBucket { bucket }).await?;
        Ok(())
    }

    pub(super) async fn settings(&self, bucket: String) -> S3Result<BucketSettings> {
        match self.names.query(NamespaceQuery::Bucket { bucket }).await? {
            NamespaceAnswer::Bucket { settings, .. } => Ok(settings),
            _ => Err(other_answer()),
        }
    }

    pub(super) async fn check_bucket(&self, bucket: String) -> S3Result<()> {
        self.settings(bucket).await.map(drop)
    }

    pub(super) async fn setting(&self, bucket: String, setting: BucketSetting) -> S3Result<Option<String>> {
        let value = self.settings(bucket).await?.remove(&setting);
        value.map(|bytes| String::from_utf8(bytes).map_err(|_| other_answer())).transpose()
    }

    pub(super) async fn set(
        &self,
        bucket: String,
        setting: BucketSetting,
        value: Option<String>,
    ) -> S3Result<()> {
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
    pub(super) async fn location(&self, bucket: String) -> S3Result<Option<String>> {
        self.setting(bucket, BucketSetting::Location).await
    }

    /// For a setting that no bucket can have here: the reply for a bucket without it.
    pub(super) async fn unset<T>(&self, bucket: String, code: &'static str, what: &str) -> S3Result<T> {
        self.check_bucket(bucket).await?;
        let mut error =
            S3Error::with_message(S3ErrorCode::Custom(code.into()), format!("the bucket has no {what}"));
        error.set_status_code(hyper::StatusCode::NOT_FOUND);
        Err(error)
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
