//! Which chunk servers this client does not reach, though others do.

use ebb_types::{Moment, ServerId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Since when each of them.
#[derive(Debug)]
pub(crate) struct Unreached {
    servers: Mutex<BTreeMap<ServerId, Moment>>,
    /// Which server is asked next to pass on: not the same by all clients.
    turn: AtomicU64,
}

impl Unreached {
    pub fn new(turn: u64) -> Unreached {
        Unreached { servers: Mutex::default(), turn: AtomicU64::new(turn) }
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<ServerId, Moment>> {
        self.servers.lock().expect("nothing panics under this lock")
    }

    pub fn since(&self, server: ServerId) -> Option<Moment> {
        self.servers().get(&server).copied()
    }

    /// `None`: it is reached, or by nobody.
    pub fn set(&self, server: ServerId, since: Option<Moment>) {
        let mut servers = self.servers();
        match since {
            Some(since) => servers.insert(server, since),
            None => servers.remove(&server),
        };
    }

    pub fn next_turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }
}
