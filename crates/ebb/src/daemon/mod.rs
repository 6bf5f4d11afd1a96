//! The processes of a cluster, chunk server, metadata server and S3 gateway, and the server of a mirror, each on real
//! sockets, disks and clocks.

pub mod clock;
pub mod files;
pub mod gateway;
pub mod heap;
pub mod meta;
pub mod metrics;
pub mod mirror;
mod queue;
mod relay;
pub mod server;
pub mod volume;
