//! Cycles and joules per I/O of any command: what user code, the kernel and waiting cost for each 512 bytes that
//! storage moves [OS layers].
//!
//! Cycles are counted by the CPUs where permitted, and otherwise computed as CPU time × frequency; energy is modelled
//! from them by the paper's formula ([`model`]). Two views of each run: the **machine** (the cores that the command may
//! use, as in the paper, with everything else that ran there) and the **command** itself (its cgroup, or its rusage).
//! The report states the source of each number.
//!
//! What counts as I/O, in this order unless one is chosen: the sectors that the disks moved, if they moved what the
//! command requested from storage; else what the command requested from storage (network file systems); else what
//! passed through its read and write calls (memory, sockets, the page cache).

mod attach;
mod compare;
mod counters;
mod error;
mod machine;
pub mod model;
mod processes;
mod run;
mod show;
pub mod suite;

pub use attach::Service;
pub use compare::{Comparison, Difference};
pub use error::CostError;
pub use model::{Cpio, Cycles, Eio, Hertz, IO_BYTES, Projected, Projection};
pub use run::{FrequencySource, OwnSource};

use attach::attach_once;
use ebb_types::Watts;
use machine::{Machine, ProcessIo};
use model::{Power, Spent};
use run::{Measured, allowed_cpus, run_once};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Version of the saved report.
pub const REPORT_VERSION: u32 = 2;
/// Peak draw of a server, without its storage [OS layers §5].
pub const DEFAULT_PEAK: Watts = Watts(400.0);
/// Share of the peak that an idle server draws: today's servers, and ideal ones [OS layers §5].
pub const DEFAULT_IDLE_FRACTIONS: [f64; 2] = [0.7, 0.0];
/// From this much busy time on, one step of the kernel's clock is at most a hundredth of the result.
const ENOUGH_BUSY: Duration = Duration::from_secs(1);

/// What counts as I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoSource {
    /// Sectors of the machine's disks (`/proc/diskstats`).
    Devices,
    /// What the command requested from storage (`read_bytes` and `write_bytes` of `/proc/PID/io`).
    Storage,
    /// What passed through the command's read and write calls (`rchar` and `wchar` of `/proc/PID/io`).
    Calls,
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct CostOptions {
    /// Numbers of cores to run on, one after another; empty: all that may be used, once.
    pub cores: Vec<usize>,
    /// Runs per number of cores.
    pub runs: usize,
    /// Draw of the whole machine at full load, without storage.
    pub peak: Watts,
    pub idle_fractions: Vec<f64>,
    /// Instead of what the machine reports.
    pub frequency: Option<Hertz>,
    /// `None`: the first that saw what the command moved.
    pub io: Option<IoSource>,
    /// Measure for this time instead of to the command's end, and then stop it.
    pub window: Option<Duration>,
    /// Name of the report; by default the host's name.
    pub label: Option<String>,
}

impl Default for CostOptions {
    fn default() -> CostOptions {
        CostOptions {
            cores: Vec::new(),
            runs: 1,
            peak: DEFAULT_PEAK,
            idle_fractions: DEFAULT_IDLE_FRACTIONS.to_vec(),
            frequency: None,
            io: None,
            window: None,
            label: None,
        }
    }
}

/// Cost of one view of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    pub user_seconds: f64,
    pub system_seconds: f64,
    /// Absent for the command: idle time cannot be attributed to it.
    pub idle_seconds: Option<f64>,
    pub iowait_seconds: Option<f64>,
    pub ios: u64,
    pub io_source: IoSource,
    pub cpio: Cpio,
    /// One per requested idle fraction.
    pub modelled_energy_per_io: Vec<Eio>,
}

/// One run of the command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub wall_seconds: f64,
    pub machine: View,
    /// Absent if the command itself did no I/O that is counted.
    pub command: Option<View>,
    pub command_source: OwnSource,
    /// Cycles of the command itself were counted, not computed as CPU time × frequency.
    pub command_cycles_counted: bool,
    /// I/Os of each disk.
    pub disks: BTreeMap<String, u64>,
    pub frequency_hertz: f64,
    pub frequency_source: FrequencySource,
    /// User and system cycles of the machine were counted, not computed as CPU time × frequency.
    pub cycles_counted: bool,
    /// Time in which the used cores ran other guests of the host: in no layer.
    pub stolen_seconds: f64,
    /// Busy time of the cores that the command could not use.
    pub elsewhere_seconds: f64,
}

/// The runs on one number of cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub cores: usize,
    pub runs: Vec<Run>,
}

impl Point {
    /// The mean of a value over the runs. `None`: there are no runs, or one lacks the value.
    pub fn mean(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().map(of).collect::<Option<_>>()?;
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Maximum minus minimum, as a share of the mean. `None`: there is only one run, or a run lacks the value.
    pub fn spread(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let mean = self.mean(&of).filter(|mean| *mean > 0.0 && self.runs.len() > 1)?;
        let values = || self.runs.iter().filter_map(&of);
        Some((values().fold(f64::MIN, f64::max) - values().fold(f64::MAX, f64::min)) / mean)
    }
}

/// What a command costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostReport {
    pub version: u32,
    pub label: String,
    /// What ran: a command, or the service that was there already.
    pub command: Vec<String>,
    /// Length of the window that was asked for. Absent: the command ran to its end.
    pub window_seconds: Option<f64>,
    pub cpu: Option<String>,
    pub kernel: Option<String>,
    pub machine_cores: usize,
    /// Of the model; storage is not included.
    pub peak_watts: f64,
    pub idle_fractions: Vec<f64>,
    /// One per number of cores, in the order of the runs.
    pub points: Vec<Point>,
    /// Present with at least [`model::LEAST_NUMBERS`] numbers of cores.
    pub projection: Option<Projection>,
    /// How it was measured, and caveats.
    pub notes: Vec<String>,
}

impl CostReport {
    /// Refuses reports that this program cannot read.
    pub fn check(self) -> Result<CostReport, CostError> {
        if self.version != REPORT_VERSION {
            return Err(CostError::Version { found: self.version, known: REPORT_VERSION });
        }
        if self.points.is_empty() || self.points.iter().any(|point| point.runs.is_empty()) {
            return Err(CostError::Empty);
        }
        Ok(self)
    }
}

/// Progress of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub cores: usize,
    /// From 1 on.
    pub run: usize,
    pub of: usize,
    pub elapsed: Duration,
}

/// Runs the command according to the options. Needs a kernel with `/proc`; root sees more (the command's cgroup,
/// counters).
pub fn measure(
    options: &CostOptions,
    command: &[String],
    tell: &mut dyn FnMut(Progress),
) -> Result<CostReport, CostError> {
    measure_after(options, command, &mut || {}, tell)
}

/// As [`measure`]; `before` is called before each run, and does not count.
fn measure_after(
    options: &CostOptions,
    command: &[String],
    before: &mut dyn FnMut(),
    tell: &mut dyn FnMut(Progress),
) -> Result<CostReport, CostError> {
    if command.is_empty() {
        return Err(CostError::NoCommand);
    }
    let machine = Machine::this();
    let once = &mut |cpus: &[usize], tell: &mut dyn FnMut(Duration)| {
        before();
        run_once(&machine, command, cpus, options.frequency, options.window, tell)
    };
    report(&machine, options, command.to_vec(), once, tell)
}

/// Measures windows of a service that runs already, on all cores that this process may use. The options' `window` is
/// required, their `cores` are not used.
pub fn attach(
    options: &CostOptions,
    service: &Service,
    tell: &mut dyn FnMut(Progress),
) -> Result<CostReport, CostError> {
    let machine = Machine::this();
    let window = options.window.ok_or(CostError::NoWindow)?;
    let options = CostOptions { cores: Vec::new(), ..options.clone() };
    let command = service.command(&machine);
    let once = &mut |cpus: &[usize], tell: &mut dyn FnMut(Duration)| {
        attach_once(&machine, service, cpus, options.frequency, window, tell)
    };
    report(&machine, &options, command, once, tell)
}

/// One run on these CPUs.
type Once<'a> = &'a mut dyn FnMut(&[usize], &mut dyn FnMut(Duration)) -> Result<Measured, CostError>;

/// All runs, and what they say.
fn report(
    machine: &Machine,
    options: &CostOptions,
    command: Vec<String>,
    once: Once<'_>,
    tell: &mut dyn FnMut(Progress),
) -> Result<CostReport, CostError> {
    if options.window.is_some_and(|window| window.is_zero()) {
        return Err(CostError::NoWindow);
    }
    let allowed = allowed_cpus()?;
    let all = machine.cpus()?.len();
    let cores = if options.cores.is_empty() { vec![allowed.len()] } else { options.cores.clone() };
    if let Some(asked) = cores.iter().copied().find(|n| *n == 0 || *n > allowed.len()) {
        return Err(CostError::Cores { asked, allowed: allowed.len() });
    }
    let runs = options.runs.max(1);
    let of = cores.len() * runs;
    let mut notes = Notes::default();
    let mut points = Vec::new();
    for (at, cores) in cores.iter().copied().enumerate() {
        let mut point = Point { cores, runs: Vec::new() };
        for run in 0..runs {
            let run = at * runs + run + 1;
            let measured = once(&allowed[..cores], &mut |elapsed| {
                tell(Progress { cores, run, of, elapsed });
            })?;
            let run = judge(&measured, options, cores, all)?;
            notes.of_run(&measured, &run);
            point.runs.push(run);
        }
        points.push(point);
    }
    if options.cores.iter().any(|n| *n < all) {
        notes.add(format!(
            "cores were chosen by affinity (sched_setaffinity), none was taken offline: the machine's figures are those \
             of the chosen cores, each with 1/{all} of the peak watts"
        ));
    }
    if (2..model::LEAST_NUMBERS).contains(&points.len()) {
        let least = model::LEAST_NUMBERS;
        notes
            .add(format!("any line fits two numbers of cores: measure {least} for one that reaches further"));
    }
    let system = |point: &Point| {
        let runs = point.runs.iter().map(|run| run.machine.cpio.system);
        runs.map(|system| (point.cores, system)).collect::<Vec<_>>()
    };
    let described = ebb_output::Machine::this();
    Ok(CostReport {
        version: REPORT_VERSION,
        label: options.label.clone().or_else(ebb_output::host).unwrap_or_else(|| "this machine".into()),
        command,
        window_seconds: options.window.map(|window| window.as_secs_f64()),
        cpu: described.cpu,
        kernel: described.kernel,
        machine_cores: all,
        peak_watts: options.peak.0,
        idle_fractions: options.idle_fractions.clone(),
        projection: Projection::new(&points.iter().flat_map(system).collect::<Vec<_>>()),
        points,
        notes: notes.0,
    })
}

/// Computes the cost from the measurements.
fn judge(measured: &Measured, options: &CostOptions, cores: usize, all: usize) -> Result<Run, CostError> {
    let sectors: u64 = measured.sectors.values().sum();
    let own = measured.own.io.unwrap_or_default();
    // Where the kernel hides what a service did, the disks are all that there is.
    let seen = measured.own.io.map_or(IoSource::Devices, |own| seen_by(sectors, &own));
    let source = options.io.unwrap_or(seen);
    let (machine_ios, own_ios, own_source) = match source {
        IoSource::Devices => (sectors, own.storage / IO_BYTES, IoSource::Storage),
        IoSource::Storage => (own.storage / IO_BYTES, own.storage / IO_BYTES, source),
        IoSource::Calls => (own.calls / IO_BYTES, own.calls / IO_BYTES, source),
    };
    // A core's share of the peak is the same, however many are used.
    let peak = Watts(options.peak.0 * cores as f64 / all as f64);
    let power = |idle_fraction| Power { peak, idle_fraction, cores, frequency: measured.frequency };
    let energy = |cpio: &Cpio| options.idle_fractions.iter().map(|ip| Eio::new(cpio, &power(*ip))).collect();
    let cycles = |time| Cycles::of(time, measured.frequency);
    let used = &measured.used;
    let (user, system) = match &measured.cycles {
        Ok(counted) => *counted,
        Err(_) => (cycles(used.user), cycles(used.system)),
    };
    let spent = Spent { user, system, idle: Some(cycles(used.idle)), iowait: Some(cycles(used.iowait)) };
    let cpio = Cpio::new(&spent, machine_ios).ok_or_else(|| CostError::NoIo(source.to_string()))?;
    let machine = View {
        user_seconds: used.user.as_secs_f64(),
        system_seconds: used.system.as_secs_f64(),
        idle_seconds: Some(used.idle.as_secs_f64()),
        iowait_seconds: Some(used.iowait.as_secs_f64()),
        ios: machine_ios,
        io_source: source,
        modelled_energy_per_io: energy(&cpio),
        cpio,
    };
    let own_times = &measured.own.times;
    let own_cycles = measured.own.cycles.filter(|(user, system)| user.0 + system.0 > 0.0);
    let (user, system) = own_cycles.unwrap_or_else(|| (cycles(own_times.user), cycles(own_times.system)));
    let spent = Spent { user, system, ..Spent::default() };
    let command = Cpio::new(&spent, own_ios).map(|cpio| View {
        user_seconds: own_times.user.as_secs_f64(),
        system_seconds: own_times.system.as_secs_f64(),
        idle_seconds: None,
        iowait_seconds: None,
        ios: own_ios,
        io_source: own_source,
        modelled_energy_per_io: energy(&cpio),
        cpio,
    });
    Ok(Run {
        wall_seconds: measured.wall.as_secs_f64(),
        machine,
        command,
        command_source: measured.own.source,
        command_cycles_counted: own_cycles.is_some(),
        disks: measured.sectors.clone(),
        frequency_hertz: measured.frequency.0,
        frequency_source: measured.frequency_source,
        cycles_counted: measured.cycles.is_ok(),
        stolen_seconds: used.stolen.as_secs_f64(),
        elsewhere_seconds: measured.others.busy().as_secs_f64(),
    })
}

/// The source that saw what the command moved. The disks, if the command requested anything from storage and they moved
/// at least half of it: less is the work of others, and the command's I/O went over a network.
fn seen_by(sectors: u64, own: &ProcessIo) -> IoSource {
    match own.storage {
        0 => IoSource::Calls,
        asked if sectors.saturating_mul(IO_BYTES) >= asked / 2 => IoSource::Devices,
        _ => IoSource::Storage,
    }
}

/// Remarks, without duplicates.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn add(&mut self, note: String) {
        if !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    fn of_run(&mut self, measured: &Measured, run: &Run) {
        match &measured.cycles {
            Ok(_) => self.add("user and system cycles of the machine were counted by its CPUs".into()),
            Err(why) => self.add(format!(
                "cycles are CPU time (/proc/stat) × frequency, because the CPUs' cycle counters are unavailable: {why}"
            )),
        }
        measured.notes.iter().for_each(|note| self.add(note.clone()));
        if measured.own.io.is_none() {
            self.add("the kernel does not report the command's own I/O (/proc/PID/io)".into());
        }
        let busy = measured.used.busy() + measured.others.busy();
        let own = measured.own.times.user + measured.own.times.system;
        if busy < ENOUGH_BUSY {
            self.add(
                "a run took less than a second of CPU time, in which the kernel's clock has few ticks: \
                 let it run longer, or compare several runs"
                    .into(),
            );
        } else if own < busy.mul_f64(0.8) {
            self.add(
                "other processes, including kernel threads, took more than a fifth of the busy time in some run: \
                 the machine's figures contain their work, the command's do not"
                    .into(),
            );
        }
        if run.stolen_seconds > 0.01 * (busy.as_secs_f64() + run.stolen_seconds) {
            self.add(
                "the host took away more than a hundredth of the CPU time (steal): times may vary".into(),
            );
        }
    }
}

#[cfg(test)]
mod tests;
