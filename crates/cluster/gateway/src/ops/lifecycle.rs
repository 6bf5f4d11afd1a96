//! The lifecycle rules of a bucket as clients set and read them, and what they mean for an object in an answer.

use crate::bytes::backend::Backend;
use crate::bytes::names::Names;
use crate::ops::bucket::Buckets;
use crate::ops::rules::{LEAST_SIZE, RULES_MAX, Rule, expiration, kept, shown};
use ebb_types::{BucketSetting, ObjectMeta};
use s3s::dto::{LifecycleRule, PutBucketLifecycleConfigurationInput};
use s3s::{S3Error, S3Result, s3_error};

/// The header x-amz-expiration of an object; `None`: no rule is for it.
pub async fn expiration_of<B: Backend>(
    buckets: &Buckets<B>,
    (bucket, key): (&str, &str),
    object: &ObjectMeta,
) -> Option<String> {
    expiration(&buckets.expiry_rules(bucket).await, key, object)
}

/// The same of an object that was just written: the namespace knows when that was.
pub async fn expiration_of_new<B: Backend>(
    buckets: &Buckets<B>,
    names: &Names<B>,
    (bucket, key): (&str, &str),
) -> Option<String> {
    let rules = buckets.expiry_rules(bucket).await;
    if rules.is_empty() {
        return None;
    }
    expiration(&rules, key, &names.object(bucket, key).await.ok()?)
}

/// The bucket's rules.
pub async fn rules<B: Backend>(buckets: &Buckets<B>, bucket: String) -> S3Result<Vec<LifecycleRule>> {
    let Some(text) = buckets.setting(bucket, BucketSetting::Lifecycle).await? else {
        return Err(s3_error!(NoSuchLifecycleConfiguration, "the bucket has no lifecycle configuration"));
    };
    let rules: Vec<Rule> = serde_json::from_str(&text).map_err(S3Error::internal_error)?;
    Ok(rules.into_iter().map(shown).collect())
}

pub async fn set<B: Backend>(
    buckets: &Buckets<B>,
    input: PutBucketLifecycleConfigurationInput,
) -> S3Result<()> {
    let least = input.transition_default_minimum_object_size;
    if least.is_some_and(|least| least.as_str() != LEAST_SIZE) {
        return Err(s3_error!(NotImplemented, "the default minimum size of a transition is {LEAST_SIZE}"));
    }
    let rules = input.lifecycle_configuration.map(|configuration| configuration.rules).unwrap_or_default();
    if rules.is_empty() || rules.len() > RULES_MAX {
        return Err(s3_error!(MalformedXML, "a lifecycle configuration has 1 to {RULES_MAX} rules"));
    }
    let mut rules: Vec<Rule> = rules.into_iter().map(kept).collect::<S3Result<_>>()?;
    for i in 0..rules.len() {
        let id = rules[i].id.get_or_insert_with(|| format!("rule-{}", i + 1)).clone();
        if rules[..i].iter().any(|rule| rule.id.as_ref() == Some(&id)) {
            return Err(s3_error!(InvalidArgument, "two rules have the ID {id}"));
        }
    }
    for to in rules.iter().flat_map(|rule| &rule.moves) {
        if buckets.destination(&input.bucket, Some(&to.class)).await?.class.is_none() {
            return Err(s3_error!(InvalidStorageClass, "no object moves to {}: name a pool", to.class));
        }
    }
    let text = serde_json::to_string(&rules).map_err(S3Error::internal_error)?;
    buckets.set(input.bucket, BucketSetting::Lifecycle, Some(text)).await
}
