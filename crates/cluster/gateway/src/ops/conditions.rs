//! Conditions of reads and writes: If-Match and its kin.
//!
//! The library takes a list of ETags for one strange ETag, and an empty header for an absent one. So the headers are
//! read here, and one that is not understood is refused: a write whose condition was dropped may destroy what its
//! client means to keep.

use crate::bytes::backend::Backend;
use crate::bytes::names::{NameError, Names};
use crate::convert::{etag, parse_etag, seconds};
use ebb_types::{Condition, ETag, NamespaceError, ObjectMeta};
use hyper::HeaderMap;
use hyper::header::{self, HeaderValue};
use s3s::dto::{self, Timestamp};
use s3s::{S3Error, S3Result, s3_error};

/// The value of If-Match or If-None-Match.
enum Tags {
    Any,
    Listed(Vec<dto::ETag>),
}

impl Tags {
    fn of(headers: &HeaderMap, name: &str) -> S3Result<Option<Tags>> {
        let mut all = Vec::new();
        for value in headers.get_all(name) {
            match value.to_str().ok().map(str::trim) {
                Some("*") if headers.get_all(name).iter().count() == 1 => return Ok(Some(Tags::Any)),
                Some(text) if add_tags(text, &mut all).is_some() => {}
                _ => {
                    return Err(s3_error!(
                        InvalidArgument,
                        "{name} is neither * nor a list of ETags, each between double quotes"
                    ));
                }
            }
        }
        Ok(Some(Tags::Listed(all)).filter(|_| headers.contains_key(name)))
    }
}

/// Adds the ETags of a list. An ETag that this store can have issued needs no quotes, as many clients leave them out.
fn add_tags(text: &str, all: &mut Vec<dto::ETag>) -> Option<()> {
    let mut rest = text;
    loop {
        let (weak, tag) = match rest.strip_prefix("W/") {
            Some(tag) => (true, tag),
            None => (false, rest),
        };
        let after = match tag.strip_prefix('"') {
            Some(quoted) => {
                let (tag, after) = quoted.split_once('"')?;
                let tag = tag.to_owned();
                all.push(if weak { dto::ETag::Weak(tag) } else { dto::ETag::Strong(tag) });
                after
            }
            None => {
                let (bare, after) = tag.split_at(tag.find([',', ' ', '\t']).unwrap_or(tag.len()));
                parse_etag(bare).filter(|_| !weak)?;
                all.push(dto::ETag::Strong(bare.to_owned()));
                after
            }
        };
        match after.trim_start() {
            "" => return Some(()),
            more => rest = more.strip_prefix(',')?.trim_start(),
        }
    }
}

/// Precondition of a put, a delete or the completion of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    One(Condition),
    /// If-Match: one of these.
    Among(Vec<ETag>),
    /// If-None-Match: none of these.
    NotAmong(Vec<ETag>),
}

impl Wanted {
    fn of(headers: &HeaderMap) -> S3Result<Wanted> {
        let (if_match, if_none_match) = (Tags::of(headers, "if-match")?, Tags::of(headers, "if-none-match")?);
        Ok(match (if_match, if_none_match) {
            (None, None) => Wanted::One(Condition::Any),
            (Some(Tags::Any), None) => Wanted::One(Condition::Present),
            (None, Some(Tags::Any)) => Wanted::One(Condition::Absent),
            // An ETag that this store never issued matches nothing, and neither does a weak one.
            (Some(Tags::Listed(tags)), None) => match own(tags.iter().filter_map(dto::ETag::as_strong)) {
                tags if tags.len() > 1 => Wanted::Among(tags),
                tags => Wanted::One(Condition::Matches(tags.first().copied().unwrap_or(ETag::NONE))),
            },
            (None, Some(Tags::Listed(tags))) => match own(tags.iter().map(dto::ETag::value)) {
                tags if tags.len() > 1 => Wanted::NotAmong(tags),
                tags => Wanted::One(tags.first().map_or(Condition::Any, |tag| Condition::Differs(*tag))),
            },
            (Some(_), Some(_)) => {
                return Err(s3_error!(NotImplemented, "If-Match and If-None-Match together"));
            }
        })
    }
}

/// Those of these ETags that this store can have issued, each once.
fn own<'a>(tags: impl Iterator<Item = &'a str>) -> Vec<ETag> {
    let mut own: Vec<ETag> = Vec::new();
    for tag in tags.filter_map(parse_etag) {
        if !own.contains(&tag) {
            own.push(tag);
        }
    }
    own
}

/// What a change of a key depends on.
///
/// The namespace compares with one ETag. A list is compared before anything is written, and the change then depends on
/// the object that was found.
pub struct When {
    pub condition: Condition,
    /// It stands for a list, which holds now.
    pub found: bool,
}

impl When {
    /// What the namespace's refusal means to the client.
    pub fn refused(&self, error: NameError) -> S3Error {
        use NamespaceError::{NoSuchKey, PreconditionFailed};
        match error {
            NameError::Refused(NoSuchKey | PreconditionFailed) if self.found => {
                s3_error!(
                    ConditionalRequestConflict,
                    "another request changed the object: send this one again"
                )
            }
            error => error.into(),
        }
    }

    /// The precondition of a change of this key.
    pub async fn of<B: Backend>(
        names: &Names<B>,
        headers: &HeaderMap,
        bucket: &str,
        key: &str,
    ) -> S3Result<When> {
        let (tags, wanted) = match Wanted::of(headers)? {
            Wanted::One(condition) => return Ok(When { condition, found: false }),
            Wanted::Among(tags) => (tags, true),
            Wanted::NotAmong(tags) => (tags, false),
        };
        let condition = match present(names, bucket, key).await? {
            None if wanted => return Err(NameError::Refused(NamespaceError::NoSuchKey).into()),
            None => Condition::Absent,
            Some(tag) if tags.contains(&tag) == wanted => Condition::Matches(tag),
            Some(_) => return Err(failed()),
        };
        Ok(When { condition, found: true })
    }
}

/// The ETag that a key has now.
pub async fn present<B: Backend>(names: &Names<B>, bucket: &str, key: &str) -> S3Result<Option<ETag>> {
    match names.object(bucket, key).await {
        Ok(meta) => Ok(Some(meta.etag)),
        Err(NameError::Refused(NamespaceError::NoSuchKey)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Precondition of a read.
pub struct ReadCondition {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
    if_modified_since: Option<Timestamp>,
    if_unmodified_since: Option<Timestamp>,
}

/// If-Modified-Since and If-Unmodified-Since.
type Times = (Option<Timestamp>, Option<Timestamp>);

impl ReadCondition {
    pub fn of(headers: &HeaderMap, times: Times) -> S3Result<ReadCondition> {
        ReadCondition::named(headers, ["if-match", "if-none-match"], times)
    }

    /// Of a copy's source.
    pub fn of_source(headers: &HeaderMap, times: Times) -> S3Result<ReadCondition> {
        let names = ["x-amz-copy-source-if-match", "x-amz-copy-source-if-none-match"];
        ReadCondition::named(headers, names, times)
    }

    fn named(headers: &HeaderMap, [matches, differs]: [&str; 2], times: Times) -> S3Result<ReadCondition> {
        let (if_modified_since, if_unmodified_since) = times;
        let (if_match, if_none_match) = (Tags::of(headers, matches)?, Tags::of(headers, differs)?);
        Ok(ReadCondition { if_match, if_none_match, if_modified_since, if_unmodified_since })
    }

    /// In the order of RFC 9110 §13.2.2.
    pub fn check(&self, meta: &ObjectMeta) -> S3Result<()> {
        let own = etag(meta.etag);
        let modified = i64::try_from(meta.modified_millis / 1000).unwrap_or(i64::MAX);
        let fails = match (&self.if_match, &self.if_unmodified_since) {
            (Some(Tags::Listed(tags)), _) => !tags.iter().any(|tag| tag.strong_cmp(&own)),
            (None, Some(time)) => modified > seconds(time),
            _ => false,
        };
        if fails {
            return Err(failed());
        }
        let unchanged = match (&self.if_none_match, &self.if_modified_since) {
            (Some(Tags::Any), _) => true,
            (Some(Tags::Listed(tags)), _) => tags.iter().any(|tag| tag.weak_cmp(&own)),
            (None, Some(time)) => modified <= seconds(time),
            (None, None) => false,
        };
        if !unchanged {
            return Ok(());
        }
        let mut error = s3_error!(NotModified, "the object has not changed");
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::try_from(format!("\"{}\"", meta.etag)) {
            headers.insert(header::ETAG, value);
        }
        error.set_headers(headers);
        Err(error)
    }

    /// Like [`Self::check`], for the source of a copy: there, "not modified" is a failed precondition, too.
    pub fn check_source(&self, meta: &ObjectMeta) -> S3Result<()> {
        self.check(meta).map_err(|_| failed())
    }
}

fn failed() -> S3Error {
    s3_error!(PreconditionFailed, "the precondition does not hold")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;
    use s3s::S3ErrorCode;

    const A: &str = "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"";
    const E: &str = "\"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee\"";
    const OWN: ETag = ETag { md5: [0xee; 16], parts: 0 };

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn write(name: &'static str, value: &str) -> Result<Wanted, String> {
        Wanted::of(&headers(&[(name, value)])).map_err(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn a_write_keeps_its_condition_or_is_refused() {
        let bare = E.trim_matches('"');
        assert_eq!(Wanted::of(&HeaderMap::new()).unwrap(), Wanted::One(Condition::Any));
        for (value, matches, differs) in [
            ("*", Condition::Present, Condition::Absent),
            (E, Condition::Matches(OWN), Condition::Differs(OWN)),
            (bare, Condition::Matches(OWN), Condition::Differs(OWN)),
            ("\"never issued\"", Condition::Matches(ETag::NONE), Condition::Any),
            // A weak one never matches in If-Match (RFC 9110 §13.1.1).
            (&format!("W/{E}"), Condition::Matches(ETag::NONE), Condition::Differs(OWN)),
            (&format!("{E} , \"never\", {E}"), Condition::Matches(OWN), Condition::Differs(OWN)),
        ] {
            assert_eq!(write("if-match", value), Ok(Wanted::One(matches)), "{value}");
            assert_eq!(write("if-none-match", value), Ok(Wanted::One(differs)), "{value}");
        }
        let list = format!("{A}, {E}");
        for bad in ["", "nonsense", "\"open", "*, *", "W/nonsense", &format!("{E}{A}"), &format!("{E},")] {
            assert_eq!(write("if-match", bad), Err("InvalidArgument".into()), "{bad}");
            assert_eq!(write("if-none-match", bad), Err("InvalidArgument".into()), "{bad}");
        }
        let tags = vec![ETag { md5: [0xaa; 16], parts: 0 }, OWN];
        assert_eq!(write("if-match", &list), Ok(Wanted::Among(tags.clone())));
        assert_eq!(write("if-none-match", &format!("{A}, W/{E}, {A}")), Ok(Wanted::NotAmong(tags)));
        let both = headers(&[("if-match", E), ("if-none-match", A)]);
        assert_eq!(*Wanted::of(&both).unwrap_err().code(), S3ErrorCode::NotImplemented);
        let twice = headers(&[("if-match", "*"), ("if-match", E)]);
        assert_eq!(*Wanted::of(&twice).unwrap_err().code(), S3ErrorCode::InvalidArgument);
    }

    #[test]
    fn a_list_whose_object_was_changed_meanwhile_is_a_conflict() {
        let refused = |found, why: NamespaceError| {
            let when = When { condition: Condition::Absent, found };
            when.refused(NameError::Refused(why)).code().as_str().to_owned()
        };
        assert_eq!(refused(true, NamespaceError::PreconditionFailed), "ConditionalRequestConflict");
        assert_eq!(refused(true, NamespaceError::NoSuchKey), "ConditionalRequestConflict");
        assert_eq!(refused(true, NamespaceError::NoSuchBucket), "NoSuchBucket");
        assert_eq!(refused(false, NamespaceError::PreconditionFailed), "PreconditionFailed");
    }

    #[test]
    fn a_read_takes_any_of_a_list() {
        let meta = ObjectMeta {
            size: 0,
            etag: OWN,
            modified_millis: 0,
            extents: Vec::new(),
            headers: Vec::new(),
            checksum: None,
            upload: None,
            parts: Vec::new(),
        };
        let outcome = |name, value: &str| {
            let condition = ReadCondition::of(&headers(&[(name, value)]), (None, None)).unwrap();
            condition.check(&meta).map_err(|error| error.code().as_str().to_owned())
        };
        let (both, weak) = (format!("{A}, {E}"), format!("{A}, W/{E}"));
        assert_eq!(outcome("if-match", &both), Ok(()));
        assert_eq!(outcome("if-match", A), Err("PreconditionFailed".into()));
        assert_eq!(outcome("if-match", &weak), Err("PreconditionFailed".into()));
        assert_eq!(outcome("if-none-match", A), Ok(()));
        assert_eq!(outcome("if-none-match", &both), Err("NotModified".into()));
        assert_eq!(outcome("if-none-match", &weak), Err("NotModified".into()));
        let source = headers(&[("x-amz-copy-source-if-none-match", &both)]);
        let source = ReadCondition::of_source(&source, (None, None)).unwrap().check_source(&meta);
        assert_eq!(*source.unwrap_err().code(), S3ErrorCode::PreconditionFailed);
    }
}
