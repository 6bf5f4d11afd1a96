//! Where bytes and names are: from a body to durable extents, and back.

pub mod backend;
pub mod batch;
pub mod cluster;
pub mod intake;
pub mod md5;
pub mod names;
pub mod place;
pub mod reader;
pub mod store;
