//! Why a benchmark cannot run.

use super::http::HttpError;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("the endpoint {endpoint:?} is not of the form http://host:port (TLS is not supported)")]
    Endpoint { endpoint: String },
    #[error("cannot connect to {endpoint}: {error}; check that the S3 endpoint is running there")]
    Connect { endpoint: String, error: std::io::Error },
    #[error("cannot create the bucket {bucket}: {error}")]
    Bucket { bucket: &'static str, error: HttpError },
    #[error("nothing to do: sizes and concurrencies must not be empty or zero")]
    Empty,
    #[error(
        "no CPU time of process {pid}: {error}; give the ids of server processes running on this machine"
    )]
    Process { pid: u32, error: std::io::Error },
    #[error(
        "no PUT of {size} bytes at concurrency {concurrency} succeeded: {error}; check keys, region and free space of the servers"
    )]
    NothingPut { size: u64, concurrency: usize, error: String },
}
