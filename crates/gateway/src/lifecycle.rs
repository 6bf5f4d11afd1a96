//! Lifecycle rules: objects that expire, and uploads that are never completed.
//!
//! Actions that Ebb does not have (transitions, versions) are refused when a rule is set. The janitor carries out the
//! rules once a day. A deletion names the ETag, size and time that it saw, so an object that was replaced meanwhile
//! stays.

use super::Gateway;
use super::backend::Backend;
use super::convert::{seconds, timestamp};
use super::names::{NameError, Names};
use super::tags;
use ebb_types::{
    BucketSetting, Condition, KeyListing, NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery,
    OnlyIf, PAGE_MAX,
};
use s3s::dto::{
    AbortIncompleteMultipartUpload, ExpirationStatus, LifecycleExpiration, LifecycleRule,
    LifecycleRuleAndOperator, LifecycleRuleFilter, PutBucketLifecycleConfigurationInput, Tag,
};
use s3s::{S3Error, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const RULES_MAX: usize = 1000;
/// Pause before the next attempt after an error.
const RETRY: Duration = Duration::from_secs(600);
const DAY_MILLIS: u64 = 24 * 3600 * 1000;

/// A rule as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    id: Option<String>,
    enabled: bool,
    prefix: String,
    tags: Vec<(String, String)>,
    larger_than: Option<u64>,
    smaller_than: Option<u64>,
    expire_days: Option<u64>,
    /// Seconds since 1970.
    expire_date: Option<u64>,
    abort_days: Option<u64>,
    /// Whether the prefix is in the rule itself, as in the old format, and not in its filter.
    bare_prefix: bool,
}

fn positive(days: Option<i32>) -> S3Result<Option<u64>> {
    let bad = || s3_error!(InvalidArgument, "the number of days must be 1 or more");
    days.map(|days| u64::try_from(days).ok().filter(|days| *days > 0).ok_or_else(bad)).transpose()
}

fn pair(tag: Tag) -> (String, String) {
    (tag.key.unwrap_or_default(), tag.value.unwrap_or_default())
}

fn kept(rule: LifecycleRule) -> S3Result<Rule> {
    let versions =
        rule.noncurrent_version_expiration.is_some() || rule.noncurrent_version_transitions.is_some();
    let marker = rule.expiration.as_ref().is_some_and(|e| e.expired_object_delete_marker.is_some());
    if rule.transitions.is_some() || versions || marker {
        return Err(s3_error!(
            NotImplemented,
            "lifecycle rules can only expire objects and abort uploads: there are no versions, and objects do not change their storage class"
        ));
    }
    let enabled = match rule.status.as_str() {
        ExpirationStatus::ENABLED => true,
        ExpirationStatus::DISABLED => false,
        other => return Err(s3_error!(MalformedXML, "invalid rule status {other}: use Enabled or Disabled")),
    };
    let filter = rule.filter.unwrap_or_default();
    let and = filter.and.unwrap_or_default();
    let size = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
    let expiration = rule.expiration.unwrap_or_default();
    let date = expiration.date.as_ref().map(|date| u64::try_from(seconds(date)).unwrap_or(0));
    if date.is_some_and(|seconds| seconds % (24 * 3600) != 0) {
        return Err(s3_error!(InvalidArgument, "an expiration date must be midnight UTC"));
    }
    let kept = Rule {
        id: rule.id,
        enabled,
        bare_prefix: rule.prefix.is_some(),
        prefix: rule.prefix.or(filter.prefix).or(and.prefix).unwrap_or_default(),
        tags: filter.tag.into_iter().chain(and.tags.unwrap_or_default()).map(pair).collect(),
        larger_than: size(filter.object_size_greater_than.or(and.object_size_greater_than)),
        smaller_than: size(filter.object_size_less_than.or(and.object_size_less_than)),
        expire_days: positive(expiration.days)?,
        expire_date: date,
        abort_days: positive(rule.abort_incomplete_multipart_upload.and_then(|a| a.days_after_initiation))?,
    };
    let deeds = [kept.expire_days.is_some(), kept.expire_date.is_some(), kept.abort_days.is_some()];
    if !deeds.contains(&true) || (deeds[0] && deeds[1]) {
        return Err(s3_error!(
            MalformedXML,
            "a rule needs expiration days or an expiration date, or days until abort"
        ));
    }
    if kept.abort_days.is_some() && !kept.tags.is_empty() {
        return Err(s3_error!(
            InvalidRequest,
            "uploads have no tags: a rule that aborts uploads cannot filter by tag"
        ));
    }
    Ok(kept)
}

fn shown(rule: Rule) -> LifecycleRule {
    let days = |days: Option<u64>| days.and_then(|n| i32::try_from(n).ok());
    let bytes = |n: Option<u64>| n.and_then(|n| i64::try_from(n).ok());
    let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
    let tags: Vec<Tag> = rule.tags.into_iter().map(tag).collect();
    let (larger, smaller) = (bytes(rule.larger_than), bytes(rule.smaller_than));
    let prefix = Some(rule.prefix.clone());
    let plain = tags.is_empty() && larger.is_none() && smaller.is_none();
    let filter = match plain {
        true => LifecycleRuleFilter { prefix, ..Default::default() },
        false => LifecycleRuleFilter {
            and: Some(LifecycleRuleAndOperator {
                object_size_greater_than: larger,
                object_size_less_than: smaller,
                prefix,
                tags: Some(tags).filter(|tags| !tags.is_empty()),
            }),
            ..Default::default()
        },
    };
    let status = if rule.enabled { ExpirationStatus::ENABLED } else { ExpirationStatus::DISABLED };
    let date = rule.expire_date.map(|seconds| timestamp(seconds * 1000));
    let expires = rule.expire_days.is_some() || date.is_some();
    LifecycleRule {
        abort_incomplete_multipart_upload: rule
            .abort_days
            .map(|n| AbortIncompleteMultipartUpload { days_after_initiation: days(Some(n)) }),
        expiration: expires.then(|| LifecycleExpiration {
            date,
            days: days(rule.expire_days),
            ..Default::default()
        }),
        filter: Some(filter).filter(|_| !rule.bare_prefix),
        id: rule.id,
        noncurrent_version_expiration: None,
        noncurrent_version_transitions: None,
        prefix: rule.bare_prefix.then_some(rule.prefix),
        status: ExpirationStatus::from_static(status),
        transitions: None,
    }
}

/// The midnight from which something that began at `start` is `days` days old, as S3 rounds.
fn due(start: u64, days: u64) -> u64 {
    start.saturating_add(days.saturating_mul(DAY_MILLIS)).next_multiple_of(DAY_MILLIS)
}

impl Rule {
    /// Whether the object has to be deleted, its tags aside.
    fn expires(&self, object: &KeyListing, now_millis: u64) -> bool {
        let old = self.expire_days.is_some_and(|days| due(object.modified_millis, days) <= now_millis)
            || self.expire_date.is_some_and(|date| date * 1000 <= now_millis);
        old && object.key.starts_with(&self.prefix)
            && self.larger_than.is_none_or(|n| object.size > n)
            && self.smaller_than.is_none_or(|n| object.size < n)
    }

    fn has_tags(&self, kept: &str) -> bool {
        let have: Vec<_> = form_urlencoded::parse(kept.as_bytes()).into_owned().collect();
        self.tags.iter().all(|tag| have.contains(tag))
    }
}

impl<B: Backend> Gateway<B> {
    pub(super) async fn lifecycle_rules(&self, bucket: String) -> S3Result<Vec<LifecycleRule>> {
        let Some(text) = self.setting(bucket, BucketSetting::Lifecycle).await? else {
            return Err(s3_error!(NoSuchLifecycleConfiguration, "the bucket has no lifecycle configuration"));
        };
        let rules: Vec<Rule> = serde_json::from_str(&text).map_err(S3Error::internal_error)?;
        Ok(rules.into_iter().map(shown).collect())
    }

    pub(super) async fn set_lifecycle(&self, input: PutBucketLifecycleConfigurationInput) -> S3Result<()> {
        let rules =
            input.lifecycle_configuration.map(|configuration| configuration.rules).unwrap_or_default();
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
        let text = serde_json::to_string(&rules).map_err(S3Error::internal_error)?;
        self.set(input.bucket, BucketSetting::Lifecycle, Some(text)).await
    }
}

/// Carries out all rules now, and again after each midnight in UTC, when days end.
pub async fn daily<B: Backend>(names: Arc<Names<B>>) {
    loop {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
        let wait = match carry_out(&names, now).await {
            Ok((objects, uploads)) => {
                if objects + uploads > 0 {
                    tracing::info!(objects, uploads, "lifecycle rules removed objects and aborted uploads");
                }
                Duration::from_millis(DAY_MILLIS - now % DAY_MILLIS)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot carry out lifecycle rules; will retry");
                RETRY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Carries out the rules of all buckets, as of `now_millis` since 1970. Returns how many objects and uploads were
/// removed.
pub async fn carry_out<B: Backend>(names: &Names<B>, now_millis: u64) -> Result<(u64, u64), NameError> {
    let NamespaceAnswer::Buckets(buckets) = names.query(NamespaceQuery::Buckets).await? else {
        return Ok((0, 0));
    };
    let mut gone = (0, 0);
    for (bucket, _) in buckets {
        let query = NamespaceQuery::Bucket { bucket: bucket.clone() };
        let settings = match names.query(query).await {
            Ok(NamespaceAnswer::Bucket { settings, .. }) => settings,
            // It was deleted meanwhile.
            Ok(_) | Err(NameError::Refused(_)) => continue,
            Err(error) => return Err(error),
        };
        let Some(text) = settings.get(&BucketSetting::Lifecycle) else { continue };
        let rules: Vec<Rule> = match serde_json::from_slice(text) {
            Ok(rules) => rules,
            Err(error) => {
                tracing::warn!(%error, bucket, "cannot read the bucket's lifecycle rules: set them again");
                continue;
            }
        };
        for rule in rules.iter().filter(|rule| rule.enabled) {
            gone.0 += expire(names, &bucket, rule, now_millis).await?;
            gone.1 += abort(names, &bucket, rule, now_millis).await?;
        }
    }
    Ok(gone)
}

async fn expire<B: Backend>(names: &Names<B>, bucket: &str, rule: &Rule, now: u64) -> Result<u64, NameError> {
    let mut gone = 0;
    let mut after = String::new();
    while rule.expire_days.is_some() || rule.expire_date.is_some_and(|date| date * 1000 <= now) {
        let (prefix, delimiter) = (rule.prefix.clone(), String::new());
        let query =
            NamespaceQuery::List { bucket: bucket.to_owned(), prefix, delimiter, after, limit: PAGE_MAX };
        let page = match names.query(query).await {
            Ok(NamespaceAnswer::List(page)) => page,
            Ok(_) | Err(NameError::Refused(_)) => break,
            Err(error) => return Err(error),
        };
        let old = page.keys.iter().filter(|object| rule.expires(object, now));
        let deletions = old.map(|object| delete(names, bucket, rule, object));
        for outcome in futures_util::future::join_all(deletions).await {
            gone += u64::from(outcome?);
        }
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    Ok(gone)
}

/// Returns whether this call removed it.
async fn delete<B: Backend>(
    names: &Names<B>,
    bucket: &str,
    rule: &Rule,
    object: &KeyListing,
) -> Result<bool, NameError> {
    if !rule.tags.is_empty() {
        match names.object(bucket, &object.key).await {
            Ok(meta) if rule.has_tags(tags::of_object(&meta)) => {}
            Ok(_) | Err(NameError::Refused(_)) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    let op = NamespaceOp::Delete {
        bucket: bucket.to_owned(),
        key: object.key.clone(),
        when: Condition::Matches(object.etag),
        only_if: OnlyIf { size: Some(object.size), modified_seconds: Some(object.modified_millis / 1000) },
    };
    match names.commit(op).await {
        Ok(_) => Ok(true),
        // It was replaced or deleted meanwhile.
        Err(NameError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn abort<B: Backend>(names: &Names<B>, bucket: &str, rule: &Rule, now: u64) -> Result<u64, NameError> {
    let Some(days) = rule.abort_days else { return Ok(0) };
    let mut gone = 0;
    let mut after = (String::new(), 0);
    loop {
        let prefix = rule.prefix.clone();
        let query = NamespaceQuery::Uploads { bucket: bucket.to_owned(), prefix, after, limit: PAGE_MAX };
        let (uploads, more) = match names.query(query).await {
            Ok(NamespaceAnswer::Uploads { uploads, more }) => (uploads, more),
            Ok(_) | Err(NameError::Refused(_)) => return Ok(gone),
            Err(error) => return Err(error),
        };
        let last = uploads.last().map(|upload| (upload.key.clone(), upload.upload));
        for upload in uploads.into_iter().filter(|upload| due(upload.initiated_millis, days) <= now) {
            let (bucket, key) = (bucket.to_owned(), upload.key);
            match names.commit(NamespaceOp::AbortUpload { bucket, key, upload: upload.upload }).await {
                Ok(_) => gone += 1,
                Err(NameError::Refused(NamespaceError::NoSuchUpload)) => {}
                Err(error) => return Err(error),
            }
        }
        match last.filter(|_| more) {
            Some(last) => after = last,
            None => return Ok(gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(days: Option<i32>, abort: Option<i32>, filter: LifecycleRuleFilter) -> LifecycleRule {
        LifecycleRule {
            abort_incomplete_multipart_upload: abort
                .map(|n| AbortIncompleteMultipartUpload { days_after_initiation: Some(n) }),
            expiration: days.map(|n| LifecycleExpiration { days: Some(n), ..Default::default() }),
            filter: Some(filter),
            id: Some("a".into()),
            noncurrent_version_expiration: None,
            noncurrent_version_transitions: None,
            prefix: None,
            status: ExpirationStatus::from_static(ExpirationStatus::ENABLED),
            transitions: None,
        }
    }

    #[test]
    fn a_rule_is_kept_and_shown_as_it_was_given() {
        let and = LifecycleRuleAndOperator {
            object_size_greater_than: Some(5),
            prefix: Some("logs/".into()),
            tags: Some(vec![Tag { key: Some("k".into()), value: Some("v".into()) }]),
            ..Default::default()
        };
        let plain = LifecycleRuleFilter { prefix: Some("a/".into()), ..Default::default() };
        let both = LifecycleRuleFilter { and: Some(and), ..Default::default() };
        for given in [rule(Some(3), None, both), rule(None, Some(7), plain.clone())] {
            assert_eq!(shown(kept(given.clone()).unwrap()), given);
        }
        assert!(kept(rule(None, None, plain.clone())).is_err(), "it does nothing");
        assert!(kept(rule(Some(0), None, plain.clone())).is_err());
        let transition = LifecycleRule { transitions: Some(Vec::new()), ..rule(Some(1), None, plain) };
        assert_eq!(kept(transition).unwrap_err().code().as_str(), "NotImplemented");
    }

    #[test]
    fn days_end_at_midnight() {
        assert_eq!(due(0, 1), DAY_MILLIS);
        assert_eq!(due(1, 1), 2 * DAY_MILLIS);
        assert_eq!(due(DAY_MILLIS - 1, 1), 2 * DAY_MILLIS);
    }
}
