//! One run: everything is read before it starts, and again after it has ended and its writes are on the devices.
//!
//! A run is that of a command from its start to its end, or a window of it ([`run_once`]), or a window of a service
//! that runs already ([`attach`](super::attach())). After a window the command is stopped: first asked, then killed.
//!
//! The command runs on the chosen cores (by affinity, which children inherit) and in its own cgroup if the kernel
//! permits one. Its own share of the time comes from the cgroup, or else from the kernel's totals for a process and the
//! descendants that it waited for. It is not reaped before its own I/O counters are read, because they disappear with
//! it.

use super::counters::Counters;
use super::error::CostError;
use super::machine::{CpuTimes, Machine, OwnTimes, ProcessIo, cgroup_times};
use super::model::{Cycles, Hertz};
use super::processes::Tracker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often a run samples the CPUs' frequencies and the processes, and reports progress.
const SAMPLE: Duration = Duration::from_millis(250);
/// How long a command that was asked to stop may take.
const STOP: Duration = Duration::from_secs(10);

/// Source of the CPUs' frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrequencySource {
    Given,
    /// Counted cycles divided by busy time.
    Counters,
    Cpufreq,
    /// In virtual machines, the nominal one.
    Cpuinfo,
}

/// Source of the command's own CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnSource {
    /// The command and all processes it started.
    Cgroup,
    /// The command and the descendants that were waited for.
    Rusage,
    /// The process and its descendants, one by one (`/proc/PID/stat`).
    Processes,
}

/// Measurements of one run.
pub(super) struct Measured {
    pub wall: Duration,
    /// Of the cores that the command may use, and of all others.
    pub used: CpuTimes,
    pub others: CpuTimes,
    /// User and kernel cycles of the used cores, or why they are not counted.
    pub cycles: Result<(Cycles, Cycles), String>,
    pub frequency: Hertz,
    pub frequency_source: FrequencySource,
    /// Sectors of each disk that moved any.
    pub sectors: BTreeMap<String, u64>,
    pub own: Own,
    /// Anything that did not go as intended.
    pub notes: Vec<String>,
}

/// The CPUs that this process may use.
pub(super) fn allowed_cpus() -> Result<Vec<usize>, CostError> {
    let set = sched_getaffinity(None).map_err(|e| CostError::Pin(e.into()))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Sets this thread's affinity until it is dropped; child processes inherit it.
struct Pinned(CpuSet);

impl Pinned {
    fn to(cpus: &[usize]) -> Result<Pinned, CostError> {
        let before = sched_getaffinity(None).map_err(|e| CostError::Pin(e.into()))?;
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        sched_setaffinity(None, &set).map_err(|e| CostError::Pin(e.into()))?;
        Ok(Pinned(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// A cgroup for one run; it is removed when the run ends.
struct Group(PathBuf);

const GROUP_PREFIX: &str = "ebb-cost-";
/// Number of groups that this process has created; it may measure in several threads.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// A group whose process is gone: it was interrupted.
fn is_left_behind(name: &str) -> bool {
    let owner = name.strip_prefix(GROUP_PREFIX).and_then(|rest| rest.split('-').next());
    owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
}

impl Group {
    fn make(machine: &Machine) -> Result<Group, String> {
        let parent = machine.cgroup().ok_or("no cgroup v2 hierarchy is mounted")?;
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            if is_left_behind(&entry.file_name().to_string_lossy()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
        let (pid, number) = (std::process::id(), GROUPS.fetch_add(1, Ordering::Relaxed));
        let own = parent.join(format!("{GROUP_PREFIX}{pid}-{number}"));
        fs::create_dir(&own).map_err(|e| format!("a cgroup in {} is refused: {e}", parent.display()))?;
        let group = Group(own);
        match cgroup_times(&group.0) {
            Some(_) => Ok(group),
            None => Err("the kernel reports no CPU times of cgroups".into()),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// What the measured processes themselves did.
pub(super) struct Own {
    pub io: Option<ProcessIo>,
    pub times: OwnTimes,
    pub source: OwnSource,
    /// User and kernel cycles, where they were counted apart from the machine's.
    pub cycles: Option<(Cycles, Cycles)>,
}

/// The machine's readings at the start of a run, and what is sampled until its end.
pub(super) struct Readings<'a> {
    machine: &'a Machine,
    cpus: &'a [usize],
    counters: Result<Counters, String>,
    sectors: BTreeMap<String, u64>,
    times: BTreeMap<usize, CpuTimes>,
    start: Instant,
    sampled: Frequencies,
}

impl<'a> Readings<'a> {
    pub fn start(machine: &'a Machine, cpus: &'a [usize]) -> Result<Readings<'a>, CostError> {
        // Dirty data of other processes must not be charged to this run.
        rustix::fs::sync();
        let counters = Counters::open(cpus).map_err(|e| why_no_counters(&e));
        let (sectors, times) = (machine.sectors()?, machine.cpus()?);
        Ok(Readings {
            machine,
            cpus,
            counters,
            sectors,
            times,
            start: Instant::now(),
            sampled: Frequencies::default(),
        })
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn sample(&mut self) {
        self.sampled.take(self.machine, self.cpus);
    }

    /// `own` reads what the processes did, at the same moment. `given`: the frequency from the user.
    pub fn end(
        mut self,
        given: Option<Hertz>,
        own: impl FnOnce(&mut Vec<String>) -> Result<Own, CostError>,
        mut notes: Vec<String>,
    ) -> Result<Measured, CostError> {
        // The writes belong to the run, including those still in memory.
        rustix::fs::sync();
        let (wall, own) = (self.start.elapsed(), own(&mut notes)?);
        let counters = self.counters.as_mut().map_err(|e| e.clone());
        let cycles = counters.and_then(|open| open.read().map_err(|e| e.to_string()));
        let moved = |(disk, now): (String, u64)| {
            let delta = now.saturating_sub(self.sectors.get(&disk).copied().unwrap_or(0));
            (delta > 0).then_some((disk, delta))
        };
        let sectors = self.machine.sectors()?.into_iter().filter_map(moved).collect();
        let (used, others) = split(&self.times, &self.machine.cpus()?, self.cpus);
        let counted = cycles.as_ref().ok().map(|(user, kernel)| Cycles(user.0 + kernel.0));
        let (frequency, frequency_source) =
            self.sampled.decide(given, counted, &used, self.machine, self.cpus)?;
        Ok(Measured { wall, used, others, cycles, frequency, frequency_source, sectors, own, notes })
    }
}

/// Runs the command on these CPUs, to its end or for a window. `given`: the frequency from the user. `tell` is called
/// as time passes.
pub(super) fn run_once(
    machine: &Machine,
    command: &[String],
    cpus: &[usize],
    given: Option<Hertz>,
    window: Option<Duration>,
    tell: &mut dyn FnMut(Duration),
) -> Result<Measured, CostError> {
    let group = Group::make(machine);
    let mut readings = Readings::start(machine, cpus)?;
    let child = {
        let _pinned = Pinned::to(cpus)?;
        start_command(command, group.as_ref().ok())?
    };
    let Some(window) = window else {
        wait_for_end(&open_process(child)?, None, &mut || {
            readings.sample();
            tell(readings.elapsed());
        })?;
        let io = machine.io_of(child);
        let (status, usage) = reap(child)?;
        if !status.success() {
            return Err(CostError::Failed { command: command[0].clone(), status });
        }
        let mut notes = Vec::new();
        let (times, source) = own_times(&group, (usage, OwnSource::Rusage), &mut notes);
        return readings.end(given, |_| Ok(Own { io, times, source, cycles: None }), notes);
    };
    let mut tracker = Tracker::open_at_start(machine, child);
    let measured = watch(readings, &mut tracker, (child, command[0].as_str(), window), given, &group, tell);
    let status = stop(child, &mut tracker, group.as_ref().ok());
    if let Err(CostError::Ended { .. }) = measured {
        let status = status?;
        if !status.success() {
            return Err(CostError::Failed { command: command[0].clone(), status });
        }
    }
    measured
}

/// Measures a window of the command that has just been started.
fn watch(
    mut readings: Readings<'_>,
    tracker: &mut Tracker,
    (child, name, window): (u32, &str, Duration),
    given: Option<Hertz>,
    group: &Result<Group, String>,
    tell: &mut dyn FnMut(Duration),
) -> Result<Measured, CostError> {
    let ended = wait_for_end(&open_process(child)?, Some(window), &mut || {
        readings.sample();
        tracker.sample();
        tell(readings.elapsed());
    })?;
    if ended {
        let after = readings.elapsed();
        return Err(CostError::Ended { what: name.to_owned(), after, window, command: true });
    }
    let notes = vec!["a window was measured, after which the command was stopped".to_owned()];
    let own = |notes: &mut Vec<String>| {
        tracker.sample();
        let processes = (tracker.done().times, OwnSource::Processes);
        let (times, source) = own_times(group, processes, notes);
        Ok(Own { io: tracker.io(), times, source, cycles: None })
    };
    readings.end(given, own, notes)
}

/// The CPU time of the command's cgroup, or else what is known from the processes.
fn own_times(
    group: &Result<Group, String>,
    (else_times, else_source): (OwnTimes, OwnSource),
    notes: &mut Vec<String>,
) -> (OwnTimes, OwnSource) {
    let why = match group.as_ref().map(|group| cgroup_times(&group.0)) {
        // A group that the command did not join saw nothing.
        Ok(Some(own)) if own != OwnTimes::default() || else_times == OwnTimes::default() => {
            return (own, OwnSource::Cgroup);
        }
        Ok(_) => "the command could not join its cgroup",
        Err(why) => why.as_str(),
    };
    notes.push(format!("the command's own CPU time is from its processes ({else_source}): {why}"));
    (else_times, else_source)
}

/// Asks everything that the command started to stop, and ends by force what does not.
fn stop(child: u32, tracker: &mut Tracker, group: Option<&Group>) -> Result<ExitStatus, CostError> {
    let mut signal = |signal| {
        tracker.sample();
        for pid in tracker.pids().filter_map(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, signal);
        }
    };
    signal(Signal::TERM);
    if !wait_for_end(&open_process(child)?, Some(STOP), &mut || {})? {
        signal(Signal::KILL);
    }
    if let Some(group) = group {
        // What it left in the background; kernels before 5.14 have no such file.
        let _ = fs::write(group.0.join("cgroup.kill"), "1");
    }
    reap(child).map(|(status, _)| status)
}

pub(super) fn why_no_counters(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            format!("the kernel refuses them: run it as root, or lower kernel.perf_event_paranoid ({error})")
        }
        _ => format!("this machine offers none, like many virtual ones ({error})"),
    }
}

/// The times between two readings, of the used CPUs and of the others.
fn split(
    before: &BTreeMap<usize, CpuTimes>,
    after: &BTreeMap<usize, CpuTimes>,
    cpus: &[usize],
) -> (CpuTimes, CpuTimes) {
    let mut sums = (CpuTimes::default(), CpuTimes::default());
    for (cpu, now) in after {
        let Some(then) = before.get(cpu) else { continue };
        let sum = if cpus.contains(cpu) { &mut sums.0 } else { &mut sums.1 };
        *sum = sum.plus(&now.since(then));
    }
    sums
}

/// The CPUs' frequencies while a command ran.
#[derive(Default)]
struct Frequencies {
    cpufreq: Vec<f64>,
    cpuinfo: Vec<f64>,
}

impl Frequencies {
    fn take(&mut self, machine: &Machine, cpus: &[usize]) {
        match machine.cpufreq(cpus) {
            Some(hertz) => self.cpufreq.push(hertz.0),
            None => self.cpuinfo.extend(machine.cpuinfo(cpus).map(|hertz| hertz.0)),
        }
    }

    /// The best source available: the user, the counters, the driver, or `/proc/cpuinfo`.
    fn decide(
        mut self,
        given: Option<Hertz>,
        counted: Option<Cycles>,
        used: &CpuTimes,
        machine: &Machine,
        cpus: &[usize],
    ) -> Result<(Hertz, FrequencySource), CostError> {
        if let Some(hertz) = given {
            return Ok((hertz, FrequencySource::Given));
        }
        let busy = used.busy().as_secs_f64();
        if let Some(cycles) = counted.filter(|cycles| cycles.0 > 0.0 && busy > 0.1) {
            return Ok((Hertz(cycles.0 / busy), FrequencySource::Counters));
        }
        if self.cpufreq.is_empty() && self.cpuinfo.is_empty() {
            self.take(machine, cpus);
        }
        let mean = |samples: &[f64]| Hertz(samples.iter().sum::<f64>() / samples.len() as f64);
        match (self.cpufreq.is_empty(), self.cpuinfo.is_empty()) {
            (false, _) => Ok((mean(&self.cpufreq), FrequencySource::Cpufreq)),
            (true, false) => Ok((mean(&self.cpuinfo), FrequencySource::Cpuinfo)),
            (true, true) => Err(CostError::NoFrequency),
        }
    }
}

/// Its output goes to standard error: standard output is for the report.
fn start_command(command: &[String], group: Option<&Group>) -> Result<u32, CostError> {
    let start = |source| CostError::Start { command: command[0].clone(), source };
    let stderr = std::io::stderr().as_fd().try_clone_to_owned().map_err(start)?;
    let mut builder = Command::new(&command[0]);
    builder.args(&command[1..]).stdout(Stdio::from(stderr));
    let procs =
        group.and_then(|group| OpenOptions::new().write(true).open(group.0.join("cgroup.procs")).ok());
    if let Some(procs) = procs {
        // SAFETY: between fork and exec only one write(2) is made, which is async-signal-safe, and nothing is
        // allocated. If it fails the command runs all the same, and its group stays empty.
        unsafe {
            builder.pre_exec(move || {
                let _ = rustix::io::write(&procs, b"0");
                Ok(())
            });
        }
    }
    builder.spawn().map(|child| child.id()).map_err(start)
}

pub(super) fn open_process(pid: u32) -> Result<OwnedFd, CostError> {
    let raw = Pid::from_raw(pid as i32).ok_or(CostError::NoProcess(pid))?;
    pidfd_open(raw, PidfdFlags::empty()).map_err(|error| match error {
        // Invalid: a thread, not a process.
        rustix::io::Errno::SRCH | rustix::io::Errno::INVAL => CostError::NoProcess(pid),
        error => CostError::Wait(error.into()),
    })
}

/// Waits until the process has ended, without reaping it, or until the window is over. Returns whether it has ended.
pub(super) fn wait_for_end(
    process: &OwnedFd,
    window: Option<Duration>,
    sample: &mut dyn FnMut(),
) -> Result<bool, CostError> {
    let start = Instant::now();
    loop {
        let left = window.map_or(SAMPLE, |window| window.saturating_sub(start.elapsed()).min(SAMPLE));
        let pause = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&pause)) {
            Ok(0) if window.is_some_and(|window| start.elapsed() >= window) => return Ok(false),
            Ok(0) => sample(),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(CostError::Wait(error.into())),
        }
    }
}

/// The status of a child, and the CPU time of it and of the descendants that it waited for.
fn reap(child: u32) -> Result<(ExitStatus, OwnTimes), CostError> {
    let mut status = 0;
    // SAFETY: a rusage is plain numbers, for which zero is good, and both pointers are to live memory of the right
    // types.
    let (found, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(child as i32, &mut status, 0, &mut usage), usage)
    };
    if found != child as i32 {
        return Err(CostError::Wait(std::io::Error::last_os_error()));
    }
    let time = |at: libc::timeval| Duration::from_micros(at.tv_sec as u64 * 1_000_000 + at.tv_usec as u64);
    Ok((ExitStatus::from_raw(status), OwnTimes { user: time(usage.ru_utime), system: time(usage.ru_stime) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_split_by_the_cores_in_use() {
        let at = |seconds: u64| CpuTimes { user: Duration::from_secs(seconds), ..CpuTimes::default() };
        let before = BTreeMap::from([(0, at(1)), (1, at(2)), (3, at(5))]);
        let after = BTreeMap::from([(0, at(11)), (1, at(22)), (2, at(7)), (3, at(6))]);
        assert_eq!(split(&before, &after, &[0, 3]), (at(11), at(20)));
    }

    #[test]
    fn the_frequency_is_the_best_that_is_known() {
        let none = Machine::new("/nowhere", 100);
        let busy = CpuTimes { user: Duration::from_secs(2), ..CpuTimes::default() };
        let sampled = || Frequencies { cpufreq: vec![1e9, 3e9], cpuinfo: vec![5e9] };
        let decide =
            |given, counted, sampled: Frequencies| sampled.decide(given, counted, &busy, &none, &[0]).ok();
        let given = Some(Hertz(7e9));
        let counted = Some(Cycles(5e9));
        assert_eq!(decide(given, counted, sampled()), Some((Hertz(7e9), FrequencySource::Given)));
        assert_eq!(decide(None, counted, sampled()), Some((Hertz(2.5e9), FrequencySource::Counters)));
        assert_eq!(decide(None, None, sampled()), Some((Hertz(2e9), FrequencySource::Cpufreq)));
        let cpuinfo = Frequencies { cpufreq: vec![], cpuinfo: vec![5e9] };
        assert_eq!(decide(None, None, cpuinfo), Some((Hertz(5e9), FrequencySource::Cpuinfo)));
        assert_eq!(decide(None, None, Frequencies::default()), None);
    }
}
