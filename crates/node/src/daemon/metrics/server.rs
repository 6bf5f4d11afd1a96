//! A chunk server's figures: those of its heartbeat, and what it has served since it started.

use super::{Page, names};
use ebb_types::{LoadCount, Vitals};

pub struct ServerFigures {
    pub vitals: Vitals,
    /// Clients' work since the start.
    pub served: LoadCount,
    pub has_lease: bool,
    pub map_version: u64,
}

impl ServerFigures {
    pub fn report(&self, page: &mut Page) {
        let ServerFigures { vitals, served, has_lease, map_version } = self;
        let Vitals { damage, scrub, .. } = vitals;
        let flag = |holds: bool| if holds { 1.0 } else { 0.0 };
        for (metric, value) in [
            (names::LEASE, flag(*has_lease)),
            (names::MAP_VERSION, *map_version as f64),
            (names::STORE_USED, vitals.used_bytes as f64),
            (names::STORE_CAPACITY, vitals.capacity_bytes as f64),
            (names::STORE_OFFLOAD, vitals.debt_bytes as f64),
            (names::STORE_POISONED, flag(vitals.poisoned)),
            (names::IN_FLIGHT, vitals.in_flight.into()),
            (names::CATCH_UPS, vitals.catching_up.into()),
            (names::OFFLOADED, vitals.offloaded_bytes as f64),
            (names::RECLAIMED, vitals.reclaimed_bytes as f64),
            (names::REPAIRED, vitals.repaired_blocks as f64),
            (names::SCRUB_OLDEST, scrub.oldest_seconds as f64),
            (names::SCRUB_BYTES, scrub.checked_bytes as f64),
            (names::BUGS, vitals.bugs as f64),
        ] {
            page.put(metric, &[], value);
        }
        for (op, requests, bytes, random) in [
            ("read", served.reads, served.read_bytes, served.random_reads),
            ("write", served.writes, served.written_bytes, served.random_writes),
        ] {
            page.put(names::REQUESTS, &[&op], requests as f64);
            page.put(names::REQUEST_BYTES, &[&op], bytes as f64);
            page.put(names::RANDOM, &[&op], random as f64);
        }
        for (kind, count) in [
            ("corrupt", damage.corrupt),
            ("lost", damage.lost),
            ("garbled", damage.garbled),
            ("sought", damage.sought),
            ("unrepaired", damage.unrepaired),
        ] {
            page.put(names::DAMAGE, &[&kind], count as f64);
        }
        for (state, replicas) in [
            ("in_sync", scrub.replicas),
            ("due", scrub.due),
            ("overdue", scrub.overdue),
            ("unsound", scrub.unsound),
            ("asked", scrub.asked),
        ] {
            page.put(names::SCRUB_REPLICAS, &[&state], replicas.into());
        }
    }
}
