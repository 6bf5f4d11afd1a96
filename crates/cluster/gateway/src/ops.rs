//! The operations of S3: what each one means for buckets, objects and uploads.

pub mod bucket;
pub mod conditions;
pub mod cors;
pub mod lifecycle;
pub mod list;
pub mod multipart;
pub mod objects;
pub mod pools;
pub mod rules;
pub mod s3;
pub mod tags;
