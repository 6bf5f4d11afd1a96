//! Every metric that a process of the cluster may report, with base units in its name. `docs/metrics.md` has the same
//! table.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

macro_rules! metrics {
    ($($name:ident = $kind:ident $full:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub const $name: &Metric =
            &Metric { name: $full, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
        #[cfg(test)]
        pub const ALL: &[&Metric] = &[$($name),*];
    };
}

metrics! {
    // Of every process.
    BUILD = Gauge "ebb_build_info" ["version"] "Always 1";
    PROCESS_CPU = Counter "process_cpu_seconds_total" [] "CPU time of this process";
    PROCESS_MEMORY = Gauge "process_resident_memory_bytes" [] "Memory of this process";
    BUGS = Counter "ebb_bugs_total" [] "Things that cannot happen; the log says which";

    // Of metadata servers and of chunk servers.
    ACTIONS = Counter "ebb_shell_actions_total" ["shell", "action"] "Events that the process's shell took and commands that it gave, by kind, since this process started";

    // Of every metadata server.
    LEADER = Gauge "ebb_metadata_leader" [] "1: this metadata server leads and reports for the cluster";
    VOTER = Gauge "ebb_metadata_voter" [] "1: it counts towards the majority";
    FULL = Gauge "ebb_metadata_disk_full" [] "1: its disk has no room for changes by clients";
    TERM = Gauge "ebb_raft_term" [] "The Raft term that it knows";
    LEADER_ID = Gauge "ebb_raft_leader_id" [] "The leader that it knows; absent: none";
    NOTICES = Counter "ebb_notices_total" ["kind"] "Notices since this process started, by the key that ebb notices --json has";
    SHIFTS = Counter "ebb_shifts_total" ["reason"] "Changes of the servers wanted awake since this process started";

    // Of the leader, for the cluster.
    SILENT = Gauge "ebb_metadata_silent_seconds" ["peer"] "Time since the leader last heard this metadata server, which has joined; it answers several times a second";
    GEAR = Gauge "ebb_gear" [] "Gear groups wanted awake, the last one perhaps in part";
    GEAR_MANUAL = Gauge "ebb_gear_manual" [] "1: an administrator or a replay set the gear";
    GEAR_SHIFTING = Gauge "ebb_gear_shifting" [] "1: some server is not yet as the gear wants it";
    GEAR_DRY_RUN = Gauge "ebb_gear_dry_run" [] "1: servers are not switched";
    GEAR_EMERGENCY = Gauge "ebb_gear_emergency" [] "1: more servers are awake because copies are missing";
    GEAR_SHORT_OF_ROOM = Gauge "ebb_gear_short_of_room" [] "1: more servers are awake because awake ones fill up";
    WANTED = Gauge "ebb_servers_wanted" [] "Servers of the replicated pool that are wanted awake: for load and forecast, or by an administrator";
    AWAKE = Gauge "ebb_servers_awake" [] "Servers of the replicated pool that are awake: the capacity, in the unit of the load";
    NEEDED = Gauge "ebb_servers_needed" [] "Fewest servers that carry the load, and at least as many as gears keep awake: those of an oracle";
    LOAD = Gauge "ebb_load_servers" [] "Load of the last full sample, in servers' worth of work";
    FORECAST = Gauge "ebb_forecast_servers" [] "Forecast peak of this hour; absent: the hour has not been seen yet";
    GROUPS = Gauge "ebb_groups" ["condition"] "Chunk groups; one counts in each condition that holds for it";
    SERVER_STATE = Gauge "ebb_server_state" ["server", "rack", "pool", "state", "depth"] "1 in the state that the server is in, without samples in others; depth only of sleepers";
    SERVER_REFUSES = Gauge "ebb_server_refuses_sleep" ["server"] "1: it is asleep on record and up all the same";
    SERVER_TROUBLE = Gauge "ebb_server_switch_trouble" ["server"] "1: something went wrong with its power switch and still matters";
    SERVER_KEPT = Gauge "ebb_server_kept_awake" ["server"] "1: it is not put to sleep whatever the load";
    SERVER_MAINTENANCE = Gauge "ebb_server_maintenance" ["server"] "1: it is in maintenance";
    SERVER_HEARD = Gauge "ebb_server_heartbeat_age_seconds" ["server"] "Since its last heartbeat; only of servers that are to send some";
    SERVER_USED = Gauge "ebb_server_used_bytes" ["server"] "Bytes used in its store by its last heartbeat";
    SERVER_CAPACITY = Gauge "ebb_server_capacity_bytes" ["server"] "Bytes usable in its store by its last heartbeat";
    DEBT = Gauge "ebb_debt_bytes" ["server"] "Bytes that this holder keeps for sleeping servers; only of servers that are awake";
    DEBT_SINCE = Gauge "ebb_debt_since_timestamp_seconds" ["server"] "Unix time when the longest-absent server this holder covers went away; none of its debt is older";
    LATENCY = Gauge "ebb_request_latency_seconds" ["op", "quantile"] "Of all chunk servers' requests together, over the last 15 s that are over; absent: there were none";
    CYCLES = Counter "ebb_power_cycles_total" ["server"] "Power cycles since it is part of the cluster: sleeps of a depth that wears";
    SAVED_CYCLES = Gauge "ebb_power_cycles_saved" ["server"] "Power cycles that it has saved up; absent: gears of single servers do not concern it";
    POWER = Gauge "ebb_power_watts" ["server", "kind"] "What a server draws; kind says how that is known";
    SWITCH_POWER = Gauge "ebb_rack_switches_power_watts" ["kind"] "What the switches of all racks draw; absent: the power model has none";
    ENERGY = Counter "ebb_energy_joules_total" ["kind"] "Energy of servers and switches while this process led; a failed server counts as idle";
    SET_COUNT = Gauge "ebb_pool_sets" ["pool", "state"] "Sets of an erasure-coded pool that are in use or hibernate";
    SETS_EXPOSED = Gauge "ebb_pool_sets_exposed" ["pool"] "Sets that may not survive another failure";
    POOL_DEBT = Gauge "ebb_pool_debt_bytes" ["pool"] "Bytes that a pool's awake servers keep for sleeping parity servers";
    POOL_MEMORY_DEBT = Gauge "ebb_pool_memory_debt_bytes" ["pool"] "The part of them that is in memory only";

    // Of a chunk server.
    LEASE = Gauge "ebb_lease_held" [] "1: it may serve as primary";
    MAP_VERSION = Gauge "ebb_map_version" [] "The version of the cluster map that it knows";
    STORE_USED = Gauge "ebb_store_used_bytes" [] "Bytes used in the store";
    STORE_CAPACITY = Gauge "ebb_store_capacity_bytes" [] "Bytes usable in the store";
    STORE_OFFLOAD = Gauge "ebb_store_offload_bytes" [] "Bytes kept for sleeping servers";
    STORE_POISONED = Gauge "ebb_store_poisoned" [] "1: the store failed and refuses to serve";
    STORE_STALLED = Gauge "ebb_store_stalled" [] "1: the store does not move, and the server gets no lease";
    REQUESTS = Counter "ebb_requests_total" ["op"] "Clients' requests; writes are counted once, not once per copy";
    REQUEST_BYTES = Counter "ebb_request_bytes_total" ["op"] "Their bytes";
    RANDOM = Counter "ebb_random_requests_total" ["op"] "The requests that do not stream";
    DURATION = Histogram "ebb_request_duration_seconds" ["op"] "From a client's request to its answer, of those that were carried out; without the network";
    IN_FLIGHT = Gauge "ebb_requests_in_flight" [] "Requests in flight, and writes that wait for the disk";
    CATCH_UPS = Gauge "ebb_catch_ups" [] "Catch-ups in progress";
    OFFLOADED = Counter "ebb_offloaded_bytes_total" [] "Bytes taken for sleeping servers";
    RECLAIMED = Counter "ebb_reclaimed_bytes_total" [] "Bytes taken back from holders";
    REPAIRED = Counter "ebb_repaired_blocks_total" [] "Damaged blocks that were repaired";
    DAMAGE = Counter "ebb_damage_total" ["kind"] "Damage found: corrupt, lost, garbled, sought, unrepaired (docs/json.md)";
    SCRUB_REPLICAS = Gauge "ebb_scrub_replicas" ["state"] "Replicas: in_sync, due, overdue, unsound, asked";
    SCRUB_OLDEST = Gauge "ebb_scrub_oldest_seconds" [] "Since all of a replica was last found sound, or since it came if it was not yet, of the replica for which that is longest";
    SCRUB_BYTES = Counter "ebb_scrub_checked_bytes_total" [] "Bytes read for scrubs";

    // Of a gateway and a volume server.
    CLIENT_REQUESTS = Counter "ebb_client_requests_total" [] "Requests to chunk servers";
    CLIENT_RETRIES = Counter "ebb_client_retries_total" [] "Tries after the first, to chunk servers and the metadata service";
    CLIENT_MOVED = Counter "ebb_client_moved_total" [] "Replies that named another primary";
    CLIENT_FAILURES = Counter "ebb_client_failures_total" [] "Requests to chunk servers that failed for good";
    CLIENT_GARBLED = Counter "ebb_client_garbled_total" [] "Tries whose bytes did not match their checksums on arrival";

    // Of a gateway.
    S3_REQUESTS = Counter "ebb_s3_requests_total" ["method", "code"] "S3 requests by the answer's class; aborted: the client went away";
    S3_DURATION = Histogram "ebb_s3_request_duration_seconds" ["method"] "From a request's head to the head of its answer";
    S3_IN_FLIGHT = Gauge "ebb_s3_requests_in_flight" [] "S3 requests that have no answer yet";

    // Of a volume server.
    VOLUME_REQUESTS = Counter "ebb_volume_requests_total" ["volume", "op", "outcome"] "NBD requests";
    VOLUME_BYTES = Counter "ebb_volume_request_bytes_total" ["volume", "op"] "Their bytes";
    VOLUME_DURATION = Histogram "ebb_volume_request_duration_seconds" ["volume", "op"] "From a request to its answer";
    VOLUME_IN_FLIGHT = Gauge "ebb_volume_requests_in_flight" ["volume"] "NBD requests that have no answer yet";
    VOLUME_SIZE = Gauge "ebb_volume_size_bytes" ["volume"] "Size of the device";
    VOLUME_FRONT = Gauge "ebb_volume_front_bytes" ["volume"] "The part of it that is in the replicated pool";

    // Of a mirror.
    MIRROR_CONDITION = Gauge "ebb_mirror_condition" ["mirror", "condition"] "1 in the condition that it is in, without samples in others: in-sync, resyncing, degraded, failed";
    MIRROR_SIZE = Gauge "ebb_mirror_size_bytes" ["mirror"] "Size of the device";
    MIRROR_ONCE = Gauge "ebb_mirror_once_bytes" ["mirror"] "Acknowledged content that only one disk has";
    MIRROR_DIRTY = Gauge "ebb_mirror_dirty_bytes" ["mirror"] "Regions that a crash now would make the next start compare";
    MIRROR_COPYING = Gauge "ebb_mirror_copying_bytes" ["mirror"] "Still to be copied to a disk that is being brought up to date";
    MIRROR_UNREADABLE = Counter "ebb_mirror_unreadable_total" ["mirror"] "Reads that failed or whose data was wrong on one disk";
    MIRROR_CONNECTIONS = Gauge "ebb_mirror_connections" ["mirror"] "NBD connections";
    MIRROR_DISK_STATE = Gauge "ebb_mirror_disk_state" ["mirror", "disk", "state", "speed"] "1 in the state that the disk is in and at its speed, without samples in others";
    MIRROR_DISK_CHANGES = Counter "ebb_mirror_disk_speed_changes_total" ["mirror", "disk"] "Changes of its speed since the start";
    MIRROR_DISK_LOG = Gauge "ebb_mirror_disk_log_used_bytes" ["mirror", "disk"] "Used of its log";
    MIRROR_DISK_BUSY = Gauge "ebb_mirror_disk_utilisation_ratio" ["mirror", "disk"] "How busy it is, smoothed; absent before the first epoch";
    MIRROR_DISK_ENERGY = Counter "ebb_mirror_disk_energy_joules_total" ["mirror", "disk", "kind"] "Energy since the start; absent: no model of the disk is configured";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PAGE: &str = include_str!("../../../../../docs/metrics.md");

    fn row(metric: &Metric) -> String {
        let Metric { name, kind, labels, help } = metric;
        let labels = match labels {
            [] => "–".to_owned(),
            labels => labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "),
        };
        format!("| `{name}` | {} | {labels} | {help} |", format!("{kind:?}").to_lowercase())
    }

    #[test]
    fn the_page_lists_what_there_is() {
        let expected: BTreeSet<String> = ALL.iter().map(|metric| row(metric)).collect();
        let rows = PAGE.lines().filter(|line| ["| `ebb_", "| `process_"].iter().any(|s| line.starts_with(s)));
        let found: BTreeSet<String> = rows.map(str::to_owned).collect();
        let missing: Vec<_> = expected.difference(&found).collect();
        let more: Vec<_> = found.difference(&expected).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "docs/metrics.md lacks\n{missing:#?}\nand has\n{more:#?}"
        );
    }

    #[test]
    fn names_have_base_units_and_counters_end_in_total() {
        let names: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
            for unit in ["millis", "mib", "kib", "percent", "kwh", "hours"] {
                assert!(!metric.name.contains(unit), "{} is not in a base unit", metric.name);
            }
        }
    }
}
