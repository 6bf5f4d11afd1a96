//! Lifecycle rules: objects that expire or go to another pool, and uploads that are never completed.
//!
//! What a rule says of an object, without I/O. Actions that Ebb does not have (on versions) are refused when a rule is
//! set. Rules are carried out once a day: [`crate::upkeep::expire`] deletes, [`crate::upkeep::moves`] moves.

use crate::convert::{seconds, timestamp};
use crate::ops::tags;
use ebb_types::{KeyListing, ObjectMeta};
use s3s::dto::{
    AbortIncompleteMultipartUpload, ExpirationStatus, LifecycleExpiration, LifecycleRule,
    LifecycleRuleAndOperator, LifecycleRuleFilter, Tag, Timestamp, TimestampFormat, Transition,
    TransitionDefaultMinimumObjectSize, TransitionStorageClass,
};
use s3s::{S3Result, s3_error};
use serde::{Deserialize, Serialize};

/// Most rules of a bucket, as in S3.
pub const RULES_MAX: usize = 1000;
const ID_CHARS_MAX: usize = 255;
pub const DAY_MILLIS: u64 = 24 * 3600 * 1000;
/// The year 10000: the dates of HTTP have four digits for the year.
const DATES_END_MILLIS: u64 = 253_402_300_800_000;
/// How S3 calls it.
pub const LEAST_SIZE: &str = TransitionDefaultMinimumObjectSize::ALL_STORAGE_CLASSES_128K;
/// Smaller objects stay where they are unless their rule has a filter by size. As in S3.
const MOVED_MIN: u64 = 128 << 10;

/// A rule as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub id: Option<String>,
    pub enabled: bool,
    pub prefix: String,
    pub tags: Vec<(String, String)>,
    larger_than: Option<u64>,
    smaller_than: Option<u64>,
    pub expire_days: Option<u64>,
    /// Seconds since 1970.
    pub expire_date: Option<u64>,
    pub abort_days: Option<u64>,
    #[serde(default)]
    pub moves: Vec<Move>,
    /// Whether the prefix is in the rule itself, as in the old format, and not in its filter.
    bare_prefix: bool,
}

/// A transition: from when on an object has a storage class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    pub class: String,
    days: Option<u64>,
    /// Seconds since 1970.
    date: Option<u64>,
}

fn positive(days: Option<i32>) -> S3Result<Option<u64>> {
    let bad = || s3_error!(InvalidArgument, "the number of days must be 1 or more");
    days.map(|days| u64::try_from(days).ok().filter(|days| *days > 0).ok_or_else(bad)).transpose()
}

fn pair(tag: Tag) -> S3Result<(String, String)> {
    let key = tag.key.filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| s3_error!(MalformedXML, "a tag in a filter has no key"))?;
    Ok((key, tag.value.unwrap_or_default()))
}

/// A date as seconds since 1970.
fn midnight(date: &Timestamp) -> S3Result<u64> {
    let since = u64::try_from(seconds(date)).unwrap_or(0);
    match since % (24 * 3600) {
        0 => Ok(since),
        _ => Err(s3_error!(InvalidArgument, "the date of an action must be midnight UTC")),
    }
}

fn kept_move(transition: Transition) -> S3Result<Move> {
    let bad = || s3_error!(InvalidArgument, "the number of days until a transition must not be negative");
    let days = transition.days.map(|days| u64::try_from(days).map_err(|_| bad())).transpose()?;
    let date = transition.date.as_ref().map(midnight).transpose()?;
    match transition.storage_class {
        Some(class) if days.is_some() != date.is_some() => {
            Ok(Move { class: class.as_str().to_owned(), days, date })
        }
        _ => Err(s3_error!(MalformedXML, "a transition needs a storage class, and days or a date")),
    }
}

/// As in S3: each class once, and no object goes elsewhere on the day that it expires or after.
fn check_moves(rule: &Rule) -> S3Result<()> {
    for (nth, this) in rule.moves.iter().enumerate() {
        if rule.moves[..nth].iter().any(|other| other.class == this.class) {
            return Err(s3_error!(InvalidArgument, "two transitions to {} in one rule", this.class));
        }
        let days = rule.expire_days.zip(this.days).is_some_and(|(expires, moves)| expires <= moves);
        let date = rule.expire_date.zip(this.date).is_some_and(|(expires, moves)| expires <= moves);
        if days || date {
            return Err(s3_error!(InvalidArgument, "an object must expire later than its transition"));
        }
    }
    Ok(())
}

pub fn kept(rule: LifecycleRule) -> S3Result<Rule> {
    let versions =
        rule.noncurrent_version_expiration.is_some() || rule.noncurrent_version_transitions.is_some();
    let marker = rule.expiration.as_ref().is_some_and(|e| e.expired_object_delete_marker.is_some());
    if versions || marker {
        return Err(s3_error!(NotImplemented, "there are no versions: lifecycle rules cannot act on them"));
    }
    let enabled = match rule.status.as_str() {
        ExpirationStatus::ENABLED => true,
        ExpirationStatus::DISABLED => false,
        other => return Err(s3_error!(MalformedXML, "invalid rule status {other}: use Enabled or Disabled")),
    };
    let filter = rule.filter.unwrap_or_default();
    if filter.and.as_ref().is_some_and(|and| *and == LifecycleRuleAndOperator::default()) {
        return Err(s3_error!(MalformedXML, "<And> in a filter is empty: state what it joins, or remove it"));
    }
    let and = filter.and.unwrap_or_default();
    if rule.id.as_ref().is_some_and(|id| id.chars().count() > ID_CHARS_MAX) {
        return Err(s3_error!(InvalidArgument, "a rule's ID has at most {ID_CHARS_MAX} characters"));
    }
    let twice = [rule.prefix.is_some(), filter.prefix.is_some(), and.prefix.is_some()];
    let larger = filter.object_size_greater_than.and(and.object_size_greater_than);
    let smaller = filter.object_size_less_than.and(and.object_size_less_than);
    if twice.into_iter().filter(|given| *given).count() > 1 || larger.or(smaller).is_some() {
        return Err(s3_error!(MalformedXML, "a rule states its prefix and each bound of the size once"));
    }
    let bad = || s3_error!(InvalidArgument, "the size in a filter must not be negative");
    let size = |n: Option<i64>| n.map(|n| u64::try_from(n).map_err(|_| bad())).transpose();
    let expiration = rule.expiration.unwrap_or_default();
    let kept = Rule {
        id: rule.id,
        enabled,
        bare_prefix: rule.prefix.is_some(),
        prefix: rule.prefix.or(filter.prefix).or(and.prefix).unwrap_or_default(),
        tags: filter
            .tag
            .into_iter()
            .chain(and.tags.unwrap_or_default())
            .map(pair)
            .collect::<S3Result<_>>()?,
        larger_than: size(filter.object_size_greater_than.or(and.object_size_greater_than))?,
        smaller_than: size(filter.object_size_less_than.or(and.object_size_less_than))?,
        expire_days: positive(expiration.days)?,
        expire_date: expiration.date.as_ref().map(midnight).transpose()?,
        abort_days: positive(rule.abort_incomplete_multipart_upload.and_then(|a| a.days_after_initiation))?,
        moves: rule.transitions.into_iter().flatten().map(kept_move).collect::<S3Result<_>>()?,
    };
    let acts = kept.expire_days.is_some()
        || kept.expire_date.is_some()
        || kept.abort_days.is_some()
        || !kept.moves.is_empty();
    if !acts || (kept.expire_days.is_some() && kept.expire_date.is_some()) {
        return Err(s3_error!(
            MalformedXML,
            "a rule needs a transition, expiration days or an expiration date, or days until abort"
        ));
    }
    let by_object = !kept.tags.is_empty() || kept.larger_than.is_some() || kept.smaller_than.is_some();
    if kept.abort_days.is_some() && by_object {
        return Err(s3_error!(
            InvalidRequest,
            "uploads have no tags and no size: a rule that aborts uploads filters by prefix alone"
        ));
    }
    check_moves(&kept)?;
    Ok(kept)
}

fn shown_move(transition: Move) -> Transition {
    Transition {
        date: transition.date.map(|seconds| timestamp(seconds * 1000)),
        days: transition.days.and_then(|n| i32::try_from(n).ok()),
        storage_class: Some(TransitionStorageClass::from(transition.class)),
    }
}

pub fn shown(rule: Rule) -> LifecycleRule {
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
        transitions: Some(rule.moves.into_iter().map(shown_move).collect())
            .filter(|all: &Vec<_>| !all.is_empty()),
    }
}

/// The midnight from which something that began at `start` is `days` days old, as S3 rounds.
pub fn due(start: u64, days: u64) -> u64 {
    let old = start.saturating_add(days.saturating_mul(DAY_MILLIS));
    let due = old.next_multiple_of(DAY_MILLIS);
    debug_assert!(due >= old, "nothing goes before it is old enough");
    due
}

impl Rule {
    /// When it has such an object deleted, its tags aside.
    fn expiry(&self, key: &str, size: u64, modified_millis: u64) -> Option<u64> {
        let at = match (self.expire_date, self.expire_days) {
            (Some(date), _) => Some(date * 1000),
            (None, days) => days.map(|days| due(modified_millis, days)),
        };
        at.filter(|_| self.selects(key, size))
    }

    /// Whether the object has to be deleted, its tags aside.
    pub fn expires(&self, object: &KeyListing, now_millis: u64) -> bool {
        self.expiry(&object.key, object.size, object.modified_millis).is_some_and(|at| at <= now_millis)
    }

    /// Whether it is for such an object, its tags aside.
    fn selects(&self, key: &str, size: u64) -> bool {
        key.starts_with(&self.prefix)
            && self.larger_than.is_none_or(|n| size > n)
            && self.smaller_than.is_none_or(|n| size < n)
    }

    /// The prefix of the objects that it moves; `None`: it moves none.
    pub fn moves_below(&self) -> Option<&str> {
        (self.enabled && !self.moves.is_empty()).then_some(&self.prefix)
    }

    /// The newest transition that such an object has come to, its tags aside, and when that was.
    fn newest_move(
        &self,
        key: &str,
        size: u64,
        modified_millis: u64,
        now_millis: u64,
    ) -> Option<(u64, &str)> {
        let any_size = self.larger_than.is_some() || self.smaller_than.is_some();
        if !self.enabled || !self.selects(key, size) || (size < MOVED_MIN && !any_size) {
            return None;
        }
        let since = |to: &Move| match (to.date, to.days) {
            (Some(date), _) => date * 1000,
            (None, days) => due(modified_millis, days.unwrap_or(0)),
        };
        let come_to = self.moves.iter().map(|to| (since(to), to.class.as_str()));
        come_to.filter(|(since, _)| *since <= now_millis).max()
    }

    pub fn has_tags(&self, kept: &str) -> bool {
        let have: Vec<_> = form_urlencoded::parse(kept.as_bytes()).into_owned().collect();
        self.tags.iter().all(|tag| have.contains(tag))
    }
}

/// Whether one of the rules may move the object, which depends on its tags.
pub fn may_move(rules: &[Rule], object: &KeyListing, now_millis: u64) -> bool {
    let KeyListing { key, size, modified_millis, class, .. } = object;
    let moves = |tagged: bool| {
        let those = rules.iter().filter(move |rule| rule.tags.is_empty() != tagged);
        those.filter_map(|rule| rule.newest_move(key, *size, *modified_millis, now_millis))
    };
    moves(false).max().into_iter().chain(moves(true)).any(|(_, to)| Some(to) != class.as_deref())
}

/// The storage class that the object has come to by the rules: of several, the newest transition's.
pub fn class_by<'a>(rules: &'a [Rule], key: &str, object: &ObjectMeta, now_millis: u64) -> Option<&'a str> {
    let tags = tags::of_object(object);
    let for_it = rules.iter().filter(|rule| rule.has_tags(tags));
    let moves =
        for_it.filter_map(|rule| rule.newest_move(key, object.size, object.modified_millis, now_millis));
    moves.max().map(|(_, class)| class)
}

/// The header x-amz-expiration: when the first of these rules has the object deleted, and which one that is.
pub fn expiration(rules: &[Rule], key: &str, object: &ObjectMeta) -> Option<String> {
    let tags = tags::of_object(object);
    let of_rule = |rule: &Rule| rule.expiry(key, object.size, object.modified_millis);
    let for_it = rules.iter().filter(|rule| rule.enabled && rule.has_tags(tags));
    let (at, rule) = for_it.filter_map(|rule| Some((of_rule(rule)?, rule))).min_by_key(|(at, _)| *at)?;
    let mut date = Vec::new();
    let shown = (at < DATES_END_MILLIS).then(|| timestamp(at))?;
    shown.format(TimestampFormat::HttpDate, &mut date).ok()?;
    let id: String =
        form_urlencoded::byte_serialize(rule.id.as_deref().unwrap_or_default().as_bytes()).collect();
    Some(format!("expiry-date=\"{}\", rule-id=\"{id}\"", String::from_utf8(date).ok()?))
}

/// Those of a bucket's stored rules by which objects expire. None if they cannot be read.
pub fn expiring(stored: Option<&str>) -> Vec<Rule> {
    let mut rules: Vec<Rule> = stored.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    rules.retain(|rule| rule.expire_days.is_some() || rule.expire_date.is_some());
    rules
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
        let id = |chars| LifecycleRule { id: Some("ü".repeat(chars)), ..rule(Some(1), None, plain.clone()) };
        assert!(kept(id(255)).is_ok() && kept(id(256)).is_err());
    }

    #[test]
    fn a_filter_that_would_be_dropped_is_refused() {
        let and = |prefix: Option<&str>, larger| LifecycleRuleAndOperator {
            prefix: prefix.map(str::to_owned),
            object_size_greater_than: larger,
            ..Default::default()
        };
        let filter = |prefix: Option<&str>, larger, and| {
            let prefix = prefix.map(str::to_owned);
            let filter =
                LifecycleRuleFilter { prefix, object_size_greater_than: larger, and, ..Default::default() };
            kept(rule(Some(1), None, filter)).map_err(|error| error.code().as_str().to_owned())
        };
        assert!(filter(None, Some(5), Some(and(Some("a"), None))).is_ok());
        assert_eq!(filter(None, None, Some(and(None, None))).err().as_deref(), Some("MalformedXML"));
        let nameless = Tag { key: None, value: Some("v".into()) };
        let tagged = LifecycleRuleFilter { tag: Some(nameless), ..Default::default() };
        assert!(kept(rule(Some(1), None, tagged)).is_err());
        assert_eq!(
            filter(Some("a"), None, Some(and(Some("b"), None))).err().as_deref(),
            Some("MalformedXML")
        );
        assert_eq!(filter(None, Some(5), Some(and(None, Some(9)))).err().as_deref(), Some("MalformedXML"));
        assert_eq!(filter(None, Some(-5), None).err().as_deref(), Some("InvalidArgument"));
        let sized = LifecycleRuleFilter { object_size_less_than: Some(9), ..Default::default() };
        assert!(kept(rule(None, Some(7), sized)).is_err(), "an upload has no size");
    }

    fn to(class: &str, days: Option<i32>, date: Option<u64>) -> Transition {
        let storage_class = Some(TransitionStorageClass::from(class.to_owned()));
        Transition { date: date.map(|day| timestamp(day * DAY_MILLIS)), days, storage_class }
    }

    fn moving(prefix: &str, transitions: Vec<Transition>) -> LifecycleRule {
        let filter = LifecycleRuleFilter { prefix: Some(prefix.into()), ..Default::default() };
        LifecycleRule { transitions: Some(transitions), ..rule(None, None, filter) }
    }

    #[test]
    fn transitions_are_kept_and_shown_and_contradictions_refused() {
        let fine = moving("a/", vec![to("cold", Some(0), None), to("wide", None, Some(20_000))]);
        assert_eq!(shown(kept(fine.clone()).unwrap()), fine);
        let expires = |days| Some(LifecycleExpiration { days: Some(days), ..Default::default() });
        let late = LifecycleRule { expiration: expires(4), ..moving("", vec![to("cold", Some(3), None)]) };
        assert_eq!(shown(kept(late.clone()).unwrap()), late);
        let nameless = Transition { storage_class: None, ..to("", Some(1), None) };
        let off_midnight = Transition { date: Some(timestamp(DAY_MILLIS + 1000)), ..to("cold", None, None) };
        for (wrong, code) in [
            (moving("", vec![to("cold", Some(1), Some(1))]), "MalformedXML"),
            (moving("", vec![to("cold", None, None)]), "MalformedXML"),
            (moving("", vec![nameless]), "MalformedXML"),
            (moving("", vec![off_midnight]), "InvalidArgument"),
            (moving("", vec![to("cold", Some(-1), None)]), "InvalidArgument"),
            (moving("", vec![to("cold", Some(1), None), to("cold", Some(2), None)]), "InvalidArgument"),
            (LifecycleRule { expiration: expires(3), ..late }, "InvalidArgument"),
            (moving("", vec![]), "MalformedXML"),
        ] {
            assert_eq!(kept(wrong.clone()).unwrap_err().code().as_str(), code, "{wrong:?}");
        }
    }

    #[test]
    fn an_object_goes_where_its_newest_transition_says() {
        let tagged = LifecycleRule {
            filter: Some(LifecycleRuleFilter {
                tag: Some(Tag { key: Some("k".into()), value: Some("v".into()) }),
                ..Default::default()
            }),
            ..moving("", vec![to("tagged", Some(20), None)])
        };
        let small = LifecycleRule {
            filter: Some(LifecycleRuleFilter { object_size_less_than: Some(1000), ..Default::default() }),
            ..moving("", vec![to("packs", Some(1), None)])
        };
        let off = LifecycleRule {
            status: ExpirationStatus::from_static(ExpirationStatus::DISABLED),
            ..moving("", vec![to("never", Some(0), None)])
        };
        let aged = moving("a/", vec![to("cold", Some(10), None), to("icy", Some(30), None)]);
        let rules: Vec<Rule> = [tagged, small, off, aged].map(|rule| kept(rule).unwrap()).into();
        let object = |size: u64, tags: &str| ObjectMeta {
            size,
            etag: ebb_types::ETag::NONE,
            modified_millis: 5 * DAY_MILLIS,
            extents: Vec::new(),
            headers: vec![(tags::TAGS.to_owned(), tags.to_owned())],
            checksum: None,
            upload: None,
            parts: Vec::new(),
        };
        let class =
            |key: &str, size, tags: &str, day| class_by(&rules, key, &object(size, tags), day * DAY_MILLIS);
        assert_eq!(class("a/1", 1 << 20, "", 14), None);
        assert_eq!(class("a/1", 1 << 20, "", 15), Some("cold"));
        assert_eq!(class("a/1", 1 << 20, "", 35), Some("icy"));
        assert_eq!(class("b/1", 1 << 20, "", 35), None);
        assert_eq!(class("a/1", 1 << 20, "k=v", 26), Some("tagged"));
        assert_eq!(class("a/1", MOVED_MIN - 1, "", 35), None);
        assert_eq!(class("a/1", MOVED_MIN, "", 35), Some("icy"));
        assert_eq!(class("a/1", 999, "", 35), Some("packs"));
        let listed = |class: Option<&str>| KeyListing {
            key: "a/1".into(),
            size: 1 << 20,
            etag: ebb_types::ETag::NONE,
            modified_millis: 5 * DAY_MILLIS,
            checksum: None,
            class: class.map(str::to_owned),
        };
        assert!(!may_move(&rules, &listed(None), 14 * DAY_MILLIS));
        assert!(may_move(&rules, &listed(None), 15 * DAY_MILLIS));
        assert!(!may_move(&rules, &listed(Some("cold")), 15 * DAY_MILLIS));
    }

    #[test]
    fn the_first_rule_that_deletes_an_object_is_named() {
        let id = |id: &str, rule: LifecycleRule| kept(LifecycleRule { id: Some(id.into()), ..rule }).unwrap();
        let filter = |filter: LifecycleRuleFilter, days| rule(Some(days), None, filter);
        let prefix = |prefix: &str| LifecycleRuleFilter { prefix: Some(prefix.into()), ..Default::default() };
        let tag = Tag { key: Some("k".into()), value: Some("v".into()) };
        let tagged = LifecycleRuleFilter { tag: Some(tag), ..Default::default() };
        let large = LifecycleRuleFilter { object_size_greater_than: Some(999), ..Default::default() };
        let off = LifecycleRule {
            status: ExpirationStatus::from_static(ExpirationStatus::DISABLED),
            ..filter(prefix(""), 1)
        };
        let on = LifecycleExpiration { date: Some(timestamp(40 * DAY_MILLIS)), ..Default::default() };
        let dated = LifecycleRule { expiration: Some(on), ..filter(prefix("d/"), 1) };
        let rules = [
            id("all of them/1", filter(prefix(""), 50)),
            id("tagged", filter(tagged, 3)),
            id("large", filter(large, 2)),
            id("dated", dated),
            id("off", off),
        ];
        let object = |size, tags: &str| ObjectMeta {
            size,
            etag: ebb_types::ETag::NONE,
            modified_millis: 5 * DAY_MILLIS + 1,
            extents: Vec::new(),
            headers: vec![(tags::TAGS.to_owned(), tags.to_owned())],
            checksum: None,
            upload: None,
            parts: Vec::new(),
        };
        let said = |key: &str, size, tags: &str| expiration(&rules, key, &object(size, tags)).unwrap();
        let expected = |date: &str, id: &str| format!("expiry-date=\"{date}\", rule-id=\"{id}\"");
        assert_eq!(said("a", 5, ""), expected("Thu, 26 Feb 1970 00:00:00 GMT", "all+of+them%2F1"));
        assert_eq!(said("d/a", 5, ""), expected("Tue, 10 Feb 1970 00:00:00 GMT", "dated"));
        assert_eq!(said("d/a", 5, "k=v"), expected("Sat, 10 Jan 1970 00:00:00 GMT", "tagged"));
        assert_eq!(said("a", 1000, "k=v"), expected("Fri, 09 Jan 1970 00:00:00 GMT", "large"));
        assert_eq!(expiration(&rules[4..], "a", &object(5, "")), None, "it is off");
        let never = [id("never", filter(prefix(""), i32::MAX))];
        assert_eq!(expiration(&never, "a", &object(5, "")), None, "HTTP has no such date");
    }

    #[test]
    fn days_end_at_midnight() {
        assert_eq!(due(0, 1), DAY_MILLIS);
        assert_eq!(due(1, 1), 2 * DAY_MILLIS);
        assert_eq!(due(DAY_MILLIS - 1, 1), 2 * DAY_MILLIS);
    }
}
