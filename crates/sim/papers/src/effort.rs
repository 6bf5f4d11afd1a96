//! How much of each experiment is done: the paper's amounts, and less for tests.

use super::microbench::ClientEffort;

/// How much is done where the amount does not depend on an input.
pub struct Effort {
    /// Bytes on the server that is rebuilt.
    pub rebuild_bytes: u64,
    /// Sizes of the clusters in which one server is lost: N/r - 1 servers rebuild it.
    pub rebuild_servers: Vec<u16>,
    /// Bytes per server of the rebuild with the whole protocol.
    pub compared_bytes: u64,
    /// Of one client, and of each of nine.
    pub one_client: ClientEffort,
    pub each_client: ClientEffort,
}

impl Default for Effort {
    /// The paper's, but for nine clients.
    fn default() -> Effort {
        Effort {
            rebuild_bytes: 200 << 30,
            rebuild_servers: vec![6, 9, 15, 24],
            compared_bytes: 256 << 20,
            one_client: ClientEffort::PAPER,
            each_client: ClientEffort::EACH,
        }
    }
}
