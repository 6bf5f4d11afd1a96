//! Tags of objects and buckets: stored as one form-encoded text, as in the header x-amz-tagging.

use crate::bytes::backend::Backend;
use crate::bytes::names::Names;
use crate::convert::{check_version, unwritable};
use ebb_types::{NamespaceOp, ObjectMeta};
use s3s::dto::{
    DeleteObjectTaggingInput, GetObjectTaggingInput, GetObjectTaggingOutput, PutObjectTaggingInput, Tag,
    Tagging,
};
use s3s::{S3Result, s3_error};
use std::collections::BTreeSet;

/// The kept header that holds an object's tags.
pub const TAGS: &str = "x-amz-tagging";
/// Most tags of an object.
const OBJECT_TAGS_MAX: usize = 10;
/// Most tags of a bucket.
pub const BUCKET_TAGS_MAX: usize = 50;
/// Longest key and value, in characters.
const KEY_CHARS_MAX: usize = 128;
const VALUE_CHARS_MAX: usize = 256;

/// The tags of a header, in stored form.
pub fn from_header(text: &str) -> S3Result<Option<String>> {
    let pairs: Vec<_> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
    checked(pairs, OBJECT_TAGS_MAX)
}

pub fn from_set(tagging: Tagging, max: usize) -> S3Result<Option<String>> {
    let pairs = tagging.tag_set.into_iter().map(|tag| match (tag.key, tag.value) {
        (Some(key), value) => Ok((key, value.unwrap_or_default())),
        (None, _) => Err(s3_error!(InvalidTag, "a tag needs a key")),
    });
    checked(pairs.collect::<S3Result<_>>()?, max)
}

pub fn to_set(kept: &str) -> Vec<Tag> {
    let pairs = form_urlencoded::parse(kept.as_bytes()).into_owned();
    pairs.map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect()
}

fn checked(pairs: Vec<(String, String)>, max: usize) -> S3Result<Option<String>> {
    if pairs.len() > max {
        return Err(s3_error!(InvalidTag, "at most {max} tags"));
    }
    let mut keys = BTreeSet::new();
    for (key, value) in &pairs {
        let (key_chars, value_chars) = (key.chars().count(), value.chars().count());
        if key_chars == 0 || key_chars > KEY_CHARS_MAX || value_chars > VALUE_CHARS_MAX {
            return Err(s3_error!(
                InvalidTag,
                "a tag's key must have 1 to {KEY_CHARS_MAX} characters, its value at most {VALUE_CHARS_MAX}"
            ));
        }
        if unwritable(key).or(unwritable(value)).is_some() {
            return Err(s3_error!(InvalidTag, "a tag has no control characters: XML cannot carry them"));
        }
        if !keys.insert(key) {
            return Err(s3_error!(InvalidTag, "the tag {key} is given twice"));
        }
    }
    let mut text = form_urlencoded::Serializer::new(String::new());
    text.extend_pairs(&pairs);
    let text = text.finish();
    debug_assert!(
        form_urlencoded::parse(text.as_bytes()).into_owned().eq(pairs.iter().cloned()),
        "tags are read as they were set"
    );
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// The tags of an object in stored form; empty: it has none.
pub fn of_object(meta: &ObjectMeta) -> &str {
    meta.headers.iter().find(|(name, _)| name == TAGS).map_or("", |(_, tags)| tags)
}

/// The value of x-amz-tagging-count.
pub fn count(meta: &ObjectMeta) -> Option<i32> {
    let tags = of_object(meta);
    (!tags.is_empty()).then(|| form_urlencoded::parse(tags.as_bytes()).count() as i32)
}

pub async fn get<B: Backend>(
    names: &Names<B>,
    input: GetObjectTaggingInput,
) -> S3Result<GetObjectTaggingOutput> {
    check_version(input.version_id.as_deref())?;
    let meta = names.object(&input.bucket, &input.key).await?;
    Ok(GetObjectTaggingOutput { tag_set: to_set(of_object(&meta)), version_id: None })
}

pub async fn set<B: Backend>(names: &Names<B>, input: PutObjectTaggingInput) -> S3Result<()> {
    check_version(input.version_id.as_deref())?;
    let value = from_set(input.tagging, OBJECT_TAGS_MAX)?;
    let (bucket, key) = (input.bucket, input.key);
    names.commit(NamespaceOp::SetHeader { bucket, key, name: TAGS.into(), value }).await?;
    Ok(())
}

pub async fn remove<B: Backend>(names: &Names<B>, input: DeleteObjectTaggingInput) -> S3Result<()> {
    check_version(input.version_id.as_deref())?;
    let (bucket, key) = (input.bucket, input.key);
    names.commit(NamespaceOp::SetHeader { bucket, key, name: TAGS.into(), value: None }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_kept_as_given_within_their_bounds() {
        assert_eq!(from_header("a=1&b=x%20y&c").unwrap().as_deref(), Some("a=1&b=x+y&c="));
        assert_eq!(from_header("").unwrap(), None);
        let eleven: String = (0..11).map(|i| format!("k{i}=v&")).collect();
        let long = format!("{}=v", "k".repeat(KEY_CHARS_MAX + 1));
        for bad in ["a=1&a=2", "=v", "a=%08", "%00=v", eleven.as_str(), long.as_str()] {
            assert!(from_header(bad).is_err(), "{bad}");
        }
    }
}
