//! Which pool an object's bytes go to.
//!
//! A bucket is in the pool that its location names, for its lifetime: in the replicated one without a location. In a
//! bucket of the replicated pool, a storage class sends single objects to the pool of that name. The class is kept with
//! the object, as a header.

use crate::bytes::backend::Pool;
use crate::convert::REGION;
use ebb_types::CLASS_HEADER;
use s3s::dto::StorageClass;
use s3s::{S3Result, s3_error};

/// Where a new object goes.
pub struct Destination {
    pub pool: Pool,
    /// To be kept, if the pool is not the bucket's.
    pub class: Option<String>,
}

impl Destination {
    /// The headers to keep, with exactly this class.
    pub fn mark(&self, mut headers: Vec<(String, String)>) -> Vec<(String, String)> {
        debug_assert!(
            self.class.as_ref().is_none_or(|class| *class == self.pool.name),
            "a class names the pool of the bytes"
        );
        headers.retain(|(name, _)| name != CLASS_HEADER);
        headers.extend(self.class.clone().map(|class| (CLASS_HEADER.to_owned(), class)));
        headers
    }
}

/// As shown where S3 always shows a class.
pub fn shown_class(class: Option<&str>) -> String {
    class.unwrap_or(StorageClass::STANDARD).to_owned()
}

fn listed(pools: &[Pool]) -> String {
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    names.join(", ")
}

/// Whether it has the form of a region's name, such as `eu-west-1`.
fn is_region(location: &str) -> bool {
    let mut parts = location.rsplit('-');
    let number = parts.next().is_some_and(|last| last.len() == 1 && last.bytes().all(|b| b.is_ascii_digit()));
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase());
    location == "EU" || number && parts.clone().count() >= 2 && parts.all(word)
}

/// Where new objects of this storage class go. `own`: the bucket's pool, if that is not the replicated one.
pub fn destination(pools: &[Pool], own: Option<Pool>, class: Option<&str>) -> S3Result<Destination> {
    let class = class.filter(|class| !class.is_empty() && *class != StorageClass::STANDARD);
    let Some(class) = class else {
        return Ok(Destination { pool: own.unwrap_or_else(Pool::replicated), class: None });
    };
    if let Some(own) = own {
        return Err(s3_error!(
            InvalidStorageClass,
            "the bucket is in the pool {}, and so are all its objects: use STANDARD, not {class}",
            own.name
        ));
    }
    match pools.iter().find(|pool| pool.name == class) {
        Some(pool) => Ok(Destination { pool: pool.clone(), class: Some(class.to_owned()) }),
        None if pools.is_empty() => Err(s3_error!(
            InvalidStorageClass,
            "STANDARD is the only storage class, not {class}: the cluster has no erasure-coded pools"
        )),
        None => Err(s3_error!(
            InvalidStorageClass,
            "no storage class {class}: use STANDARD, or a pool: {}",
            listed(pools)
        )),
    }
}

/// The erasure-coded pool at a bucket's location; `None`: the bucket is in the replicated one.
pub fn at_location(location: Option<String>, pools: &[Pool]) -> S3Result<Option<Pool>> {
    let Some(name) = location else { return Ok(None) };
    match pools.iter().find(|pool| pool.name == name) {
        Some(pool) => Ok(Some(pool.clone())),
        None if is_region(&name) => Ok(None),
        None => Err(s3_error!(
            InvalidBucketState,
            "the bucket is in the pool {name}, which the cluster does not have: use a bucket in one of its pools: {}",
            listed(pools)
        )),
    }
}

/// The location to keep for a new bucket: the name of a pool or of a region, or none. A region says nothing about the
/// pool; clients give the one that they are configured with.
pub fn location_of_new(constraint: &str, pools: &[Pool]) -> S3Result<Option<String>> {
    if constraint.is_empty() || constraint == REGION {
        return Ok(None);
    }
    if pools.iter().any(|pool| pool.name == constraint) || is_region(constraint) {
        return Ok(Some(constraint.to_owned()));
    }
    match pools.is_empty() {
        true => Err(s3_error!(
            InvalidLocationConstraint,
            "no location {constraint}: leave it out, or use {REGION}; the cluster has no erasure-coded pools"
        )),
        false => Err(s3_error!(
            InvalidLocationConstraint,
            "no location {constraint}: leave it out, use {REGION}, or a pool: {}",
            listed(pools)
        )),
    }
}
