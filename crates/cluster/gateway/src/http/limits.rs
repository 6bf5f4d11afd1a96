//! What the gateway grants its clients: connections, and time for each step of a request.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Most connections, whatever the file limit: each costs about ten KiB.
const CONNECTIONS_MAX: u64 = 4096;
/// Files that the gateway needs besides its clients' connections; at most a quarter of its limit.
const OTHER_FILES: u64 = 256;

/// Time limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
    /// Without a complete request head: idle, or sending it slowly.
    pub head: Duration,
    /// Without a byte of a request's body; also without the client acknowledging a byte of its response, if there is no
    /// room for another connection.
    pub stall: Duration,
    /// Without the client acknowledging a byte of its response.
    pub unread: Duration,
    /// From the last byte of a request to its response.
    pub answer: Duration,
    /// From the order to stop until exit, for requests in flight.
    pub drain: Duration,
}

impl Limits {
    /// Also raises the process's file limit to its maximum.
    pub fn of_process() -> Limits {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let wanted = maximum.map(|maximum| maximum.min(2 * CONNECTIONS_MAX));
        // Without a current limit there is nothing to raise, and without a maximum no need to.
        let raises = current.is_some() && current < wanted;
        let raised = raises && setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum }).is_ok();
        let files = if raised { wanted } else { current };
        let connections = files.map_or(CONNECTIONS_MAX, |files| files - OTHER_FILES.min(files / 4));
        Limits {
            connections: connections.min(CONNECTIONS_MAX) as usize,
            head: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            // A machine with a buffer of 32 MiB acknowledges nothing before there is room for 2 MiB: at 4 KiB/s, for
            // more than eight minutes.
            unread: Duration::from_secs(600),
            answer: Duration::from_secs(45),
            drain: Duration::from_secs(30),
        }
    }
}
