//! A window of a service that runs already: a process with its descendants, or a cgroup.
//!
//! The service is only read, never touched. Its CPU time is that of the cgroup (`cpu.stat`), or of its processes; its
//! cycles are counted apart from the machine's where the kernel offers counters by process or cgroup; its I/O is that
//! of the cgroup (`io.stat`) where the kernel keeps it, else of its processes. The machine's figures are those of the
//! window, with everything else that ran.

use super::counters::Counters;
use super::error::CostError;
use super::machine::{Machine, OwnTimes, ProcessIo, cgroup_times};
use super::model::Hertz;
use super::processes::{Members, Tracker};
use super::run::{Measured, Own, OwnSource, Readings, open_process, wait_for_end, why_no_counters};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

/// What runs already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// A process, with its descendants.
    Process(u32),
    /// A cgroup of the v2 hierarchy, as a path below it (`system.slice/NAME.service`) or from the root of the file
    /// system, with those below it.
    Cgroup(String),
}

impl Service {
    /// What the report says was measured.
    pub(super) fn command(&self, machine: &Machine) -> Vec<String> {
        match self {
            Service::Process(pid) => machine.command_of(*pid),
            Service::Cgroup(name) => vec![format!("cgroup {name}")],
        }
    }

    fn name(&self) -> String {
        match self {
            Service::Process(pid) => format!("process {pid}"),
            Service::Cgroup(name) => format!("cgroup {name}"),
        }
    }

    fn members(&self, machine: &Machine) -> Result<Members, CostError> {
        let name = match self {
            Service::Process(pid) if machine.stat_of(*pid).is_some() => return Ok(Members::Tree(*pid)),
            Service::Process(pid) => return Err(CostError::NoProcess(*pid)),
            Service::Cgroup(name) => name,
        };
        let root = machine.cgroups().ok_or(CostError::NoGroups)?;
        let whole = PathBuf::from(name);
        let path = if whole.starts_with(&root) { whole } else { root.join(name.trim_start_matches('/')) };
        match path.join("cgroup.procs").is_file() {
            true => Ok(Members::Group(path)),
            false => Err(CostError::NoGroup { path }),
        }
    }
}

/// A service from the start of a window on.
struct Watched {
    tracker: Tracker,
    /// Of a cgroup: its directory, and what it had done by then.
    group: Option<(PathBuf, Option<OwnTimes>, Option<u64>)>,
    counters: Result<Counters, String>,
}

impl Watched {
    fn start(machine: &Machine, members: Members, cpus: &[usize]) -> Result<Watched, CostError> {
        let tracker = Tracker::open(machine, members.clone());
        let (group, counters) = match members {
            Members::Tree(_) => {
                let threads: Vec<u32> = tracker.pids().flat_map(|pid| machine.threads_of(pid)).collect();
                (None, Counters::open_threads(&threads))
            }
            Members::Group(path) => {
                if tracker.has_ended() {
                    return Err(CostError::EmptyGroup { path });
                }
                let counters = File::open(&path).and_then(|group| Counters::open_group(&group, cpus));
                let (times, bytes) = (cgroup_times(&path), machine.cgroup_bytes(&path));
                (Some((path, times, bytes)), counters)
            }
        };
        Ok(Watched { tracker, group, counters: counters.map_err(|e| why_no_counters(&e)) })
    }

    fn end(&mut self, machine: &Machine) -> Own {
        self.tracker.sample();
        let done = self.tracker.done();
        let (mut times, mut source, mut io) = (done.times, OwnSource::Processes, self.tracker.io());
        if let Some((path, times_before, bytes_before)) = &self.group {
            if let Some((now, before)) = cgroup_times(path).zip(*times_before) {
                (times, source) = (now.since(&before), OwnSource::Cgroup);
            }
            if let Some((now, before)) = machine.cgroup_bytes(path).zip(*bytes_before) {
                let calls = io.unwrap_or_default().calls;
                io = Some(ProcessIo { calls, storage: now.saturating_sub(before) });
            }
        }
        let cycles = self.counters.as_mut().ok().and_then(|open| open.read().ok());
        Own { io, times, source, cycles }
    }
}

/// Measures one window. `given`: the frequency from the user. `tell` is called as time passes.
pub(super) fn attach_once(
    machine: &Machine,
    service: &Service,
    cpus: &[usize],
    given: Option<Hertz>,
    window: Duration,
    tell: &mut dyn FnMut(Duration),
) -> Result<Measured, CostError> {
    let members = service.members(machine)?;
    let alive = match service {
        Service::Process(pid) => open_process(*pid)?,
        // Nothing reports a cgroup's end at once: this process stands for it, which lives as long as the window.
        Service::Cgroup(_) => open_process(std::process::id())?,
    };
    let mut readings = Readings::start(machine, cpus)?;
    let mut watched = Watched::start(machine, members, cpus)?;
    let mut notes = Vec::new();
    if let Err(why) = &watched.counters {
        notes.push(format!("the service's own cycles are its CPU time × frequency: {why}"));
    }
    let ended = wait_for_end(&alive, Some(window), &mut || {
        readings.sample();
        watched.tracker.sample();
        tell(readings.elapsed());
    })?;
    watched.tracker.sample();
    if ended || watched.tracker.has_ended() {
        return Err(CostError::Ended {
            what: service.name(),
            after: readings.elapsed(),
            window,
            command: false,
        });
    }
    readings.end(given, |_| Ok(watched.end(machine)), notes)
}
