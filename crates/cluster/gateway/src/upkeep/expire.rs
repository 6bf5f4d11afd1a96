//! Carries out the lifecycle rules that delete: objects that expire, and uploads that are never completed.
//!
//! Once a day. A deletion names the ETag, size and time that it saw, so an object that was replaced meanwhile stays;
//! and the rules by which it deletes, so that it ends when these are replaced: a round may take hours, and so may the
//! sleep of a machine in the middle of one (R16).

use crate::bytes::backend::Backend;
use crate::bytes::names::{NameError, Names};
use crate::ops::rules::{DAY_MILLIS, Rule, due};
use crate::ops::tags;
use ebb_types::{
    BucketSetting, Condition, KeyListing, KeyPage, NamespaceAnswer, NamespaceError, NamespaceOp,
    NamespaceQuery, OnlyIf, PAGE_MAX, crc32c,
};
use std::time::Duration;
use tokio::time::Instant;

/// Pause before the next attempt after an error.
const RETRY: Duration = Duration::from_secs(600);

/// Does a round of the work now, and again after each midnight in UTC, when days end. The time is the namespace's, by
/// which it stamped the objects: this machine's clock decides nothing.
pub async fn daily<B: Backend, F: Future<Output = Result<(), NameError>>>(
    names: &Names<B>,
    what: &str,
    round: impl Fn(u64) -> F,
) {
    loop {
        let begun = Instant::now();
        let done = match names.now().await {
            Ok(now) => round(now).await.map(|()| DAY_MILLIS - now % DAY_MILLIS),
            Err(error) => Err(error),
        };
        let wait = match done {
            Ok(rest) => Duration::from_millis(rest).saturating_sub(begun.elapsed()),
            Err(error) => {
                tracing::warn!(%error, "lifecycle rules: cannot {what}; will retry");
                RETRY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Carries out the rules that delete, in all buckets, as of `now_millis` since 1970. Removes at most `most` objects and
/// uploads: a rule or a clock that is wrong is noticed before everything is gone.
pub async fn clear_out<B: Backend>(names: &Names<B>, now_millis: u64, most: u64) -> Result<(), NameError> {
    let Gone { objects, uploads, left } = carry_out(names, now_millis, most).await?;
    if objects + uploads > 0 {
        tracing::info!(objects, uploads, "lifecycle rules removed objects and aborted uploads");
    }
    if left == 0 {
        tracing::warn!(
            most,
            "lifecycle rules may remove more today than one round does by itself: the rest waits for tomorrow; to remove more, raise \
             `expire_most` of the [[gateway]] and restart it"
        );
    }
    Ok(())
}

/// What a round removed, and how much more it might have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    pub objects: u64,
    pub uploads: u64,
    pub left: u64,
}

pub async fn carry_out<B: Backend>(names: &Names<B>, now_millis: u64, most: u64) -> Result<Gone, NameError> {
    let mut gone = Gone { objects: 0, uploads: 0, left: most };
    for ruled in rules_of_all(names).await? {
        for rule in ruled.rules.iter().filter(|rule| rule.enabled) {
            let objects = expire(names, &ruled, rule, now_millis, gone.left).await?;
            gone = Gone { objects: gone.objects + objects, left: gone.left - objects, ..gone };
            let uploads = abort(names, &ruled, rule, now_millis, gone.left).await?;
            gone = Gone { uploads: gone.uploads + uploads, left: gone.left - uploads, ..gone };
        }
    }
    debug_assert_eq!(gone.objects + gone.uploads + gone.left, most, "what one round may remove is counted");
    Ok(gone)
}

/// A bucket that has rules.
pub struct Ruled {
    pub bucket: String,
    pub rules: Vec<Rule>,
    /// Of the rules as the namespace keeps them.
    crc: u32,
}

pub async fn rules_of_all<B: Backend>(names: &Names<B>) -> Result<Vec<Ruled>, NameError> {
    let NamespaceAnswer::Buckets(buckets) = names.query(NamespaceQuery::Buckets).await? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for (bucket, _) in buckets {
        let query = NamespaceQuery::Bucket { bucket: bucket.clone() };
        let settings = match names.query(query).await {
            Ok(NamespaceAnswer::Bucket { settings, .. }) => settings,
            // It was deleted meanwhile.
            Ok(_) | Err(NameError::Refused(_)) => continue,
            Err(error) => return Err(error),
        };
        let Some(text) = settings.get(&BucketSetting::Lifecycle) else { continue };
        match serde_json::from_slice(text) {
            Ok(rules) => all.push(Ruled { bucket, rules, crc: crc32c(text) }),
            Err(error) => {
                tracing::warn!(%error, bucket, "cannot read the bucket's lifecycle rules: set them again");
            }
        }
    }
    Ok(all)
}

/// A page of the bucket's objects; empty if the bucket is gone.
pub async fn page<B: Backend>(
    names: &Names<B>,
    bucket: &str,
    prefix: &str,
    after: String,
) -> Result<KeyPage, NameError> {
    let (prefix, delimiter) = (prefix.to_owned(), String::new());
    let query = NamespaceQuery::List { bucket: bucket.to_owned(), prefix, delimiter, after, limit: PAGE_MAX };
    match names.query(query).await {
        Ok(NamespaceAnswer::List(page)) => Ok(page),
        Ok(_) | Err(NameError::Refused(_)) => Ok(KeyPage::default()),
        Err(error) => Err(error),
    }
}

async fn expire<B: Backend>(
    names: &Names<B>,
    ruled: &Ruled,
    rule: &Rule,
    now: u64,
    most: u64,
) -> Result<u64, NameError> {
    assert!(rule.enabled, "a rule that is off deletes nothing");
    let mut gone = 0;
    let mut after = String::new();
    let acts = rule.expire_days.is_some() || rule.expire_date.is_some_and(|date| date * 1000 <= now);
    while acts && gone < most {
        let page = page(names, &ruled.bucket, &rule.prefix, after).await?;
        let old = page.keys.iter().filter(|object| rule.expires(object, now)).take((most - gone) as usize);
        let deletions = old.map(|object| delete(names, ruled, rule, object));
        for outcome in futures_util::future::join_all(deletions).await {
            gone += u64::from(outcome?);
        }
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    debug_assert!(gone <= most, "a wrong rule removes no more than that in a day");
    Ok(gone)
}

/// Returns whether this call removed it.
async fn delete<B: Backend>(
    names: &Names<B>,
    ruled: &Ruled,
    rule: &Rule,
    object: &KeyListing,
) -> Result<bool, NameError> {
    if !rule.tags.is_empty() {
        match names.object(&ruled.bucket, &object.key).await {
            Ok(meta) if rule.has_tags(tags::of_object(&meta)) => {}
            Ok(_) | Err(NameError::Refused(_)) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    let op = NamespaceOp::Delete {
        bucket: ruled.bucket.clone(),
        key: object.key.clone(),
        when: Condition::Matches(object.etag),
        only_if: OnlyIf {
            size: Some(object.size),
            modified_seconds: Some(object.modified_millis / 1000),
            rules: Some(ruled.crc),
        },
    };
    match names.commit(op).await {
        Ok(_) => Ok(true),
        Err(error @ NameError::Refused(NamespaceError::RulesChanged)) => Err(error),
        // It was replaced or deleted meanwhile.
        Err(NameError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn abort<B: Backend>(
    names: &Names<B>,
    ruled: &Ruled,
    rule: &Rule,
    now: u64,
    most: u64,
) -> Result<u64, NameError> {
    assert!(rule.enabled, "a rule that is off aborts nothing");
    let Some(days) = rule.abort_days else { return Ok(0) };
    let mut gone = 0;
    let mut after = (String::new(), 0);
    loop {
        let prefix = rule.prefix.clone();
        let query = NamespaceQuery::Uploads { bucket: ruled.bucket.clone(), prefix, after, limit: PAGE_MAX };
        let (uploads, more) = match names.query(query).await {
            Ok(NamespaceAnswer::Uploads { uploads, more }) => (uploads, more),
            Ok(_) | Err(NameError::Refused(_)) => return Ok(gone),
            Err(error) => return Err(error),
        };
        let last = uploads.last().map(|upload| (upload.key.clone(), upload.upload));
        for upload in uploads.into_iter().filter(|upload| due(upload.initiated_millis, days) <= now) {
            if gone >= most {
                return Ok(gone);
            }
            let (bucket, key, rules) = (ruled.bucket.clone(), upload.key, Some(ruled.crc));
            let abort = NamespaceOp::AbortUpload { bucket, key, upload: upload.upload, rules };
            match names.commit(abort).await {
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
