//! What a metadata server reports: what it noticed, and as leader the cluster, sleepers included.
//!
//! The leader's figures come from its memory, without the proof that it still leads which `ebb status` has: that would
//! ask the other members. A member that was replaced and does not know it yet may report for up to an election's time
//! beside the new one; the higher `ebb_raft_term` is right.

use super::{Page, names};
use ebb_types::{
    ClusterStatus, GearMode, Notice, PoolId, PoolStatus, ServerState, ServerStatus, ShiftReason,
};
use std::collections::BTreeMap;

/// Counts notices, and the reasons of shifts.
pub struct NoticeCounts {
    kinds: BTreeMap<&'static str, u64>,
    reasons: BTreeMap<&'static str, u64>,
}

impl Default for NoticeCounts {
    /// All at zero: a counter that first appears at 1 shows no increase.
    fn default() -> NoticeCounts {
        NoticeCounts {
            kinds: Notice::KINDS.into_iter().map(|kind| (kind, 0)).collect(),
            reasons: ShiftReason::ALL.into_iter().map(|reason| (reason.name(), 0)).collect(),
        }
    }
}

impl NoticeCounts {
    pub fn add(&mut self, notice: &Notice) {
        *self.kinds.entry(notice.kind()).or_default() += 1;
        if let Notice::Shift { why, .. } = notice {
            *self.reasons.entry(why.name()).or_default() += 1;
        }
    }

    pub fn report(&self, page: &mut Page) {
        self.kinds.iter().for_each(|(kind, count)| page.put(names::NOTICES, &[kind], *count as f64));
        self.reasons.iter().for_each(|(reason, count)| page.put(names::SHIFTS, &[reason], *count as f64));
    }
}

/// The cluster.
pub fn report(status: &ClusterStatus, page: &mut Page) {
    report_gear(status, page);
    for member in &status.metadata {
        let seconds = member.heard_millis.map(|millis| millis as f64 / 1e3);
        page.put_known(names::SILENT, &[&member.id], seconds);
    }
    let groups = &status.groups;
    for (condition, count) in [
        ("total", groups.total),
        ("in_sync", groups.in_sync),
        ("away", groups.away),
        ("catching_up", groups.catching_up),
        ("without_primary", groups.without_primary),
        ("not_served", groups.not_served),
        ("without_target", groups.without_target),
        ("at_risk", groups.at_risk),
        ("sharing_rack", groups.sharing_rack),
    ] {
        page.put(names::GROUPS, &[&condition], count.into());
    }
    for server in &status.servers {
        report_server(server, &status.pools, page);
    }
    if let Some(latency) = &status.latency {
        for (op, figures) in [("read", latency.reads), ("write", latency.writes)] {
            for (quantile, millis) in
                figures.iter().flat_map(|f| [("0.5", f.p50_millis), ("0.99", f.p99_millis)])
            {
                page.put(names::LATENCY, &[&op, &quantile], millis / 1e3);
            }
        }
    }
    let switches = status.rack_switches.map(|switches| switches.modelled_watts.0);
    page.put_known(names::SWITCH_POWER, &[&MODELLED], switches);
    page.put_known(names::ENERGY, &[&MODELLED], status.energy.map(|energy| energy.modelled_joules.0));
    status.pools.iter().for_each(|pool| report_pool(pool, &status.servers, page));
}

const MODELLED: &str = "modelled";

fn report_gear(status: &ClusterStatus, page: &mut Page) {
    let gear = &status.gear;
    for (metric, value) in [
        (names::GEAR, gear.gear.into()),
        (names::GEAR_MANUAL, (gear.mode == GearMode::Manual).into()),
        (names::GEAR_SHIFTING, gear.shifting.into()),
        (names::GEAR_DRY_RUN, gear.dry_run.into()),
        (names::GEAR_EMERGENCY, gear.emergency.into()),
        (names::GEAR_SHORT_OF_ROOM, gear.short_of_room.into()),
        (names::WANTED, gear.servers.into()),
        (names::AWAKE, gear.servers_awake.into()),
        (names::NEEDED, gear.servers_needed.into()),
        (names::LOAD, gear.load),
    ] {
        page.put(metric, &[], value);
    }
    page.put_known(names::FORECAST, &[], gear.forecast);
}

fn report_server(server: &ServerStatus, pools: &[PoolStatus], page: &mut Page) {
    let id: &dyn std::fmt::Display = &server.id.0;
    let pool = pools.iter().find(|pool| pool.pool.id == server.pool).map(|pool| pool.pool.name.as_str());
    let pool = if server.pool == PoolId::REPLICATED { "replicated" } else { pool.unwrap_or("") };
    let depth = match (server.state, server.depth) {
        (ServerState::Asleep, Some(depth)) => format!("{depth:?}").to_lowercase(),
        _ => String::new(),
    };
    let state = format!("{:?}", server.state).to_lowercase();
    page.put(names::SERVER_STATE, &[id, &server.rack.0, &pool, &state, &depth], 1.0);
    let refuses = server.state == ServerState::Asleep && server.depth.is_none();
    let live = server.state.is_live();
    for (metric, holds) in [
        (names::SERVER_REFUSES, refuses),
        (names::SERVER_TROUBLE, server.switch_trouble.is_some()),
        (names::SERVER_KEPT, server.power.kept_awake.is_some()),
        (names::SERVER_MAINTENANCE, server.power.maintenance_unix_millis.is_some()),
    ] {
        page.put(metric, &[id], holds.into());
    }
    page.put(names::CYCLES, &[id], server.power.cycles as f64);
    page.put_known(names::SAVED_CYCLES, &[id], server.power.cycles_saved);
    let age = server.heartbeat_age_millis.filter(|_| live).map(|millis| millis as f64 / 1e3);
    page.put_known(names::SERVER_HEARD, &[id], age);
    if let Some(vitals) = &server.vitals {
        page.put(names::SERVER_USED, &[id], vitals.used_bytes as f64);
        page.put(names::SERVER_CAPACITY, &[id], vitals.capacity_bytes as f64);
        // A sleeper's own offload was moved before it slept.
        page.put_known(names::DEBT, &[id], live.then_some(vitals.debt_bytes as f64));
    }
    let since = server.debt_since_unix_millis.filter(|_| live).map(|millis| millis as f64 / 1e3);
    page.put_known(names::DEBT_SINCE, &[id], since);
    page.put_known(names::POWER, &[id, &MODELLED], server.modelled_watts.map(|watts| watts.0));
}

fn report_pool(pool: &PoolStatus, servers: &[ServerStatus], page: &mut Page) {
    let name = &pool.pool.name;
    let hibernate = pool.sets.iter().filter(|set| set.entry.hibernates()).count();
    page.put(names::SET_COUNT, &[name, &"hibernating"], hibernate as f64);
    page.put(names::SET_COUNT, &[name, &"in_use"], (pool.sets.len() - hibernate) as f64);
    page.put(names::SETS_EXPOSED, &[name], pool.exposed(servers) as f64);
    let sum = |of: fn(&ebb_types::SetStatus) -> u64| pool.sets.iter().map(of).sum::<u64>() as f64;
    page.put(names::POOL_DEBT, &[name], sum(|set| set.parity_debt_bytes));
    page.put(names::POOL_MEMORY_DEBT, &[name], sum(|set| set.memory_bytes));
}
