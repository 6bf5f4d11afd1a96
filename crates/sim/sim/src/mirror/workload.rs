//! The generated traces of LogStore's workloads, as the mirror's client sends them.

use ebb_trace::Daily;

/// A workload of [LogStore Table 2].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Financial,
    Proxy,
    Search,
}

/// What a file system's cache writes back, in bytes.
const PAGE: u32 = 4096;

impl Workload {
    pub const ALL: [Workload; 3] = [Workload::Financial, Workload::Proxy, Workload::Search];

    pub fn name(self) -> &'static str {
        match self {
            Workload::Financial => "financial",
            Workload::Proxy => "proxy",
            Workload::Search => "search",
        }
    }

    pub fn of_name(name: &str) -> Option<Workload> {
        Workload::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// As the server's programs ask for it.
    pub fn before_cache(self) -> Daily {
        match self {
            Workload::Financial => Daily::financial(),
            Workload::Proxy => Daily::proxy(),
            Workload::Search => Daily::search(),
        }
    }

    /// As a file system's cache passes it on: whole pages. The prototype's blocks are pages, too [LogStore §3.2]; a run
    /// of requests within one page would be written again and again otherwise, a turn of the disk each time.
    /// Financial's share of requests that continue a run is the one at which two disks of one speed take about the
    /// paper's energies.
    pub fn after_cache(self) -> Daily {
        let mut daily = self.before_cache().after_cache();
        for (size, _) in &mut daily.sizes {
            *size = size.next_multiple_of(PAGE);
        }
        if self == Workload::Financial {
            daily.sequential = 0.9;
        }
        daily
    }
}
