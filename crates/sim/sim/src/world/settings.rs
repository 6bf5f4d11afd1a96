//! What a world consists of, and how its programs are configured. Who builds a world draws or computes it.

use crate::world::net::NetModel;
use ebb_chunkserver::{CLIENT_BYTES, INBOX_BYTES, REMEMBERED, WAITING};
use ebb_meta::{Bootstrap, LOG_BYTES, Switches, Timing, WakePath};
use ebb_types::{BLOCK_BYTES, ClusterParams, Random, ServerId, StoreId};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Settings {
    pub seed: u64,
    pub bootstrap: Bootstrap,
    pub timing: Timing,
    /// Of the metadata service.
    pub members: u64,
    pub net: NetModel,
    /// An end of a broken connection may take long to notice, and what it sends meanwhile is lost.
    pub half_open: bool,
    /// Runs per page of a listing.
    pub page: usize,
    /// Of each server's disk, as its heartbeats say it.
    pub capacity: u64,
    /// A sleeping server is off and loses its memory, instead of being in standby.
    pub sleep_is_off: bool,
    /// No switch puts a machine to sleep: its server does, if nothing counts on it.
    pub sleeps_itself: bool,
    pub switches: Switches,
    /// Bytes of client requests of one kind that a server accepts at a time.
    pub client_bytes: usize,
    /// While its store has more than this to write, a server reads nothing from other servers.
    pub inbox_bytes: usize,
    /// Requests that wait in one group, or in all sets; more are turned away.
    pub waiting: usize,
    /// Zero: no scrubbing.
    pub scrub_period: Duration,
    /// Time that a server which wakes takes to fetch what was held for it; zero: as fast as it can.
    pub reclaim_within: Duration,
    /// Of every server's store; small, so that segments are moved to chunk files and deleted all the time.
    pub store: ebb_store::Config,
    /// Records that a server remembers per group to recognise repeated requests.
    pub remembered: usize,
    /// Deletions that a column remembers before its server asks for another epoch.
    pub deletions: usize,
    /// Bytes of metadata log from which on it is rewritten, and how often the writer is looked at before it is done.
    pub log_bytes: usize,
    pub log_pace: u32,
}

/// Segments that every store keeps to recognise completed requests: more than is written while a client still resends
/// one.
const TAIL_BYTES: u64 = 256 << 10;
/// A disk that no debt fills.
pub const LARGE_DISK: u64 = 1 << 40;
const PAGE: usize = 12;

impl Settings {
    /// A cluster without surprises. The seed draws the sizes in its stores.
    pub fn calm(seed: u64, bootstrap: Bootstrap, timing: Timing) -> Settings {
        Settings {
            seed,
            timing,
            members: 1,
            net: NetModel::default(),
            half_open: false,
            page: PAGE,
            capacity: LARGE_DISK,
            sleep_is_off: false,
            sleeps_itself: false,
            switches: processes(&bootstrap),
            client_bytes: CLIENT_BYTES,
            inbox_bytes: INBOX_BYTES,
            waiting: WAITING,
            scrub_period: Duration::ZERO,
            reclaim_within: Duration::ZERO,
            store: store(seed),
            remembered: REMEMBERED,
            deletions: usize::MAX,
            log_bytes: LOG_BYTES,
            log_pace: 0,
            bootstrap,
        }
    }

    pub fn params(&self) -> &ClusterParams {
        &self.bootstrap.params
    }

    pub fn chunk_blocks(&self) -> u32 {
        self.params().chunk_bytes / BLOCK_BYTES as u32
    }
}

/// Every server is a process on one machine.
pub fn processes(bootstrap: &Bootstrap) -> Switches {
    let path = WakePath::switch("process", true);
    bootstrap.servers.iter().map(|server| (server.id, vec![path.clone()])).collect()
}

/// Uses a random source of its own.
fn store(seed: u64) -> ebb_store::Config {
    let mut random = Random::new(seed ^ 0x570e);
    ebb_store::Config {
        segment_bytes: random.between(16, 96) as u32 * 1024,
        checkpoint_bytes: random.between(16, 256) * 1024,
        direct_bytes: random.between(1, 12) as usize * BLOCK_BYTES,
        tail_bytes: TAIL_BYTES,
        cached_pages: random.between(2, 64) as usize,
        open_files: random.between(2, 64) as usize,
        ..ebb_store::Config::new(1, ServerId(0), StoreId(0))
    }
}
