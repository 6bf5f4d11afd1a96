//! A cluster's health in one word, with what it rests on; its room; and what it serves. `ebb status`, its JSON and the
//! page show the same.

use crate::{ClusterStatus, PoolId, ServerState, ServerStatus, counted};
use serde::{Deserialize, Serialize};

/// Full enough to be seen to: at 90 % a server accepts no new duty as holder, at 95 % it refuses client writes.
const FILLS: f64 = 0.80;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthWord {
    Healthy,
    /// All is served and safe, and something is to be seen to.
    Degraded,
    /// Something is not served, or has fewer copies than it should.
    Critical,
}

impl HealthWord {
    pub fn name(self) -> &'static str {
        match self {
            HealthWord::Healthy => "healthy",
            HealthWord::Degraded => "degraded",
            HealthWord::Critical => "critical",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub word: HealthWord,
    /// What the word rests on, the worst first; empty: healthy.
    pub because: Vec<String>,
}

/// Space of the replicated pool's servers, all copies counted, each by its last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    /// The servers that this is of. Sleepers that a new leader has not heard are missing.
    pub servers: u32,
}

/// Clients' work at the chunk servers, by the last heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Served {
    pub reads_per_second: f64,
    pub writes_per_second: f64,
    pub read_bytes_per_second: f64,
    pub written_bytes_per_second: f64,
}

impl ClusterStatus {
    pub fn health(&self) -> Health {
        let (critical, degraded) = (self.critical(), self.degraded());
        let word = match (critical.is_empty(), degraded.is_empty()) {
            (false, _) => HealthWord::Critical,
            (true, false) => HealthWord::Degraded,
            (true, true) => HealthWord::Healthy,
        };
        Health { word, because: [critical, degraded].concat() }
    }

    fn critical(&self) -> Vec<String> {
        let g = &self.groups;
        let unsound = self.vitals_sum(|s| s.scrub.unsound.into());
        let exposed = self.pools.iter().map(|pool| pool.exposed(&self.servers) as u64).sum();
        let counts = [
            (g.without_primary.into(), "chunk group", "not served"),
            (g.without_target.into(), "chunk group", "without writes: too few servers are awake"),
            (g.at_risk.into(), "chunk group", "with fewer awake copies than there should be"),
            (exposed, "erasure-coded set", "exposed: another failure may cost data (`ebb pool status`)"),
            (unsound, "replica", "with damage that no awake copy could repair"),
        ];
        let poisoned = self.servers_where(|s| s.vitals.as_ref().is_some_and(|v| v.poisoned));
        let present = counts.into_iter().filter(|(count, ..)| *count > 0);
        present
            .map(|(count, one, what)| format!("{} {what}", counted(count, one)))
            .chain(named(&poisoned, "the store failed"))
            .collect()
    }

    fn degraded(&self) -> Vec<String> {
        let voters = self.metadata.iter().filter(|m| m.is_silent()).map(|m| {
            format!("metadata server {} not heard for {} s", m.id, m.heard_millis.unwrap_or(0) / 1000)
        });
        let fills = |s: &ServerStatus| {
            s.vitals.as_ref().is_some_and(|v| {
                v.used_bytes as f64 > FILLS * v.capacity_bytes as f64 && v.capacity_bytes > 0
            })
        };
        let servers = [
            (self.servers_where(|s| s.state == ServerState::Failed), "failed"),
            (
                self.servers_where(|s| s.vitals.as_ref().is_some_and(|v| v.stalled)),
                "the store hangs: check its disk",
            ),
            (self.servers_where(|s| s.state != ServerState::Lost && fills(s)), "more than 80 % full"),
            (
                self.servers_where(|s| s.power.exam.as_ref().is_some_and(|exam| !exam.faults.is_empty())),
                "failed its exam",
            ),
            (self.servers_where(|s| s.switch_trouble.is_some()), "trouble with its power switch"),
            (
                self.servers_where(|s| s.vitals.as_ref().is_some_and(|v| v.bugs > 0)),
                "did what it never should: see its log",
            ),
        ];
        let unsettled = self.groups.not_served.saturating_sub(self.groups.without_primary);
        let partly = (unsettled > 0).then(|| format!("{unsettled} chunk groups do not serve all blocks yet"));
        let overdue = self.vitals_sum(|v| v.scrub.overdue.into());
        let late = (overdue > 0).then(|| format!("{} overdue for a scrub", counted(overdue, "replica")));
        let servers = servers.iter().flat_map(|(ids, what)| named(ids, what));
        voters.chain(servers).chain(partly).chain(late).collect()
    }

    fn servers_where(&self, holds: impl Fn(&ServerStatus) -> bool) -> Vec<u16> {
        self.servers.iter().filter(|s| holds(s)).map(|s| s.id.0).collect()
    }

    fn vitals_sum(&self, of: impl Fn(&crate::Vitals) -> u64) -> u64 {
        self.servers.iter().filter_map(|s| s.vitals.as_ref()).map(of).sum()
    }

    /// Absent until a server has been heard.
    pub fn room(&self) -> Option<Room> {
        let counts =
            |s: &&ServerStatus| s.pool == PoolId::REPLICATED && !s.logger && s.state != ServerState::Lost;
        let heard: Vec<_> = self.servers.iter().filter(counts).filter_map(|s| s.vitals.as_ref()).collect();
        (!heard.is_empty()).then(|| Room {
            used_bytes: heard.iter().map(|v| v.used_bytes).sum(),
            capacity_bytes: heard.iter().map(|v| v.capacity_bytes).sum(),
            servers: heard.len() as u32,
        })
    }

    pub fn served(&self) -> Served {
        let mut sum = Served::default();
        for vitals in self.servers.iter().filter(|s| s.state.is_live()).filter_map(|s| s.vitals.as_ref()) {
            let (load, seconds) = (&vitals.load, f64::from(vitals.load_millis) / 1e3);
            if seconds > 0.0 {
                sum.reads_per_second += load.reads as f64 / seconds;
                sum.writes_per_second += load.writes as f64 / seconds;
                sum.read_bytes_per_second += load.read_bytes as f64 / seconds;
                sum.written_bytes_per_second += load.written_bytes as f64 / seconds;
            }
        }
        sum
    }
}

/// `server 3, server 7: failed`
fn named(ids: &[u16], what: &str) -> Option<String> {
    let names: Vec<String> = ids.iter().map(|id| format!("server {id}")).collect();
    (!ids.is_empty()).then(|| format!("{}: {what}", names.join(", ")))
}
