//! The state-based model as a meter: watts of this machine computed from its utilisation. Never measured, and always
//! called modelled.
//!
//! Utilisation is the share of processor time that is not idle, or the share of time in which a disk had requests. The
//! channel is an energy counter, so that a window's energy includes everything that happened in it, whenever it was
//! sampled.

use super::spec::Spec;
use super::{Channel, Meter, MeterError, Opened, Quantity, Source, now};
use ebb_power::Machine;
use ebb_power::PowerModel;
use ebb_types::{Joules, Moment, numbers_in_words};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel counts processor time in ticks of 10 ms: over less time a share is meaningless.
const SHORTEST: Duration = Duration::from_millis(50);

/// Contents of FILE: the source of utilisation, and the parameters of [`PowerModel`].
#[derive(Deserialize)]
struct ModelFile {
    /// `cpu` or `disk:NAME`
    busy_is: Option<String>,
    #[serde(flatten)]
    figures: toml::Table,
}

enum Busy {
    Cpu(PathBuf),
    Disk(PathBuf),
}

/// Counters of the same unit: busy time, and all time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl Busy {
    fn ticks(&self, now: Moment) -> Result<Ticks, MeterError> {
        let (Busy::Cpu(path) | Busy::Disk(path)) = self;
        let text = std::fs::read_to_string(path)
            .map_err(|source| MeterError::File { path: path.clone(), source })?;
        let ticks = match self {
            Busy::Cpu(_) => cpu_ticks(&text),
            // Milliseconds with requests in flight.
            Busy::Disk(_) => text
                .split_whitespace()
                .nth(9)
                .and_then(|field| field.parse().ok())
                .map(|busy| Ticks { busy, all: now.0 / 1_000_000 }),
        };
        let first = || text.lines().next().unwrap_or_default().chars().take(80).collect();
        ticks.ok_or_else(|| MeterError::Number { path: path.clone(), text: first() })
    }
}

/// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
fn cpu_ticks(text: &str) -> Option<Ticks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().take(8).map_while(|f| f.parse().ok()).collect();
    let all: u64 = fields.iter().try_fold(0u64, |sum, ticks| sum.checked_add(*ticks))?;
    (fields.len() >= 5).then(|| Ticks { busy: all - fields[3] - fields[4], all })
}

struct Model {
    figures: PowerModel,
    busy: Busy,
    /// Up to `at`.
    energy: Joules,
    at: Moment,
    /// Start of the period over which the present share is counted.
    since: (Moment, Ticks),
    utilisation: f64,
}

impl Model {
    /// Modelled joules up to `now`. Reported energy is never taken back, so a reading too soon after the last one to
    /// measure utilisation uses the previous share.
    fn advance(&mut self, now: Moment, ticks: Ticks) -> Joules {
        let all = ticks.all.saturating_sub(self.since.1.all);
        if now.since(self.since.0) >= SHORTEST && all > 0 {
            self.utilisation = ticks.busy.saturating_sub(self.since.1.busy) as f64 / all as f64;
            self.since = (now, ticks);
        }
        self.energy += self.figures.on(self.utilisation) * now.since(self.at);
        self.at = now;
        self.energy
    }
}

fn file(path: &Path, spec: &Spec) -> Result<(PowerModel, Option<String>), MeterError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| MeterError::File { path: path.to_path_buf(), source })?;
    let wrong = |error: &dyn std::fmt::Display| {
        spec.wrong(format!("{}: {}", path.display(), numbers_in_words(&error.to_string())))
    };
    let file: ModelFile = toml::from_str(&text).map_err(|error| wrong(&error))?;
    let figures: PowerModel = file.figures.try_into().map_err(|error| wrong(&error))?;
    figures.check().map_err(|error| wrong(&error))?;
    Ok((figures, file.busy_is))
}

pub(super) fn open(machine: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let (figures, busy_is) = match spec.address() {
        Some(path) => file(Path::new(path), spec)?,
        None => (PowerModel::default(), None),
    };
    let busy_is = busy_is.unwrap_or_else(|| "cpu".into());
    let busy = match busy_is.split_once(':') {
        None if busy_is == "cpu" => Busy::Cpu(machine.proc.join("stat")),
        Some(("disk", name)) if !name.contains('/') && !name.starts_with('.') => {
            Busy::Disk(machine.sys.join("class/block").join(name).join("stat"))
        }
        _ => return Err(spec.wrong(format!("busy_is = {busy_is:?} is neither \"cpu\" nor \"disk:NAME\""))),
    };
    let at = now();
    let ticks = busy.ticks(at)?;
    let sees = format!("{:.1} to {:.1}, by how busy {busy_is} is", figures.idle, figures.busy);
    let channel = Channel {
        source: Source::Modelled,
        ..Channel::measured("machine", Quantity::Energy { range: None }, sees)
    };
    let (energy, since) = (Joules(0.0), (at, ticks));
    Ok((vec![channel], Box::new(Model { figures, busy, energy, at, since, utilisation: 0.0 })))
}

impl Meter for Model {
    fn read(&mut self, _: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        let at = now();
        let ticks = self.busy.ticks(at)?;
        Ok(vec![Some(self.advance(at, ticks).0)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::{machine, write};
    use super::*;

    #[test]
    fn energy_follows_the_busy_share() {
        let figures = PowerModel::default();
        let (dir, machine) = machine();
        write(&dir, "proc/stat", "cpu  100 0 0 900 0 0 0 0 0 0\ncpu0 100 0 0 900 0 0 0 0 0 0\n");
        let open = open_on(&machine, "model").unwrap();
        assert_eq!(open.channels[0].source, Source::Modelled);
        let ticks = |busy: u64, all: u64| Ticks { busy, all };
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let mut model = Model {
            figures,
            busy: Busy::Cpu("".into()),
            energy: Joules(0.0),
            at: at(0),
            since: (at(0), ticks(0, 0)),
            utilisation: 0.0,
        };
        assert!((model.advance(at(10), ticks(0, 1000)).0 - 618.0).abs() < 1e-9);
        assert!((model.advance(at(20), ticks(1000, 2000)).0 - 618.0 - 756.0).abs() < 1e-9);
        // No tick since: the last share is assumed to continue.
        let said = model.advance(at(21), ticks(1000, 2000));
        assert!((said.0 - 618.0 - 756.0 - 75.6).abs() < 1e-9);
        // It did not, but nothing is taken back; and no period draws more than a fully busy machine.
        let next = model.advance(at(22), ticks(1000, 2200));
        assert!((next.0 - said.0 - 61.8).abs() < 1e-9);
        let close = model.advance(Moment(at(22).0 + 1_000_000), ticks(1001, 2201));
        assert!((close.0 - next.0 - 0.0618).abs() < 1e-9);
    }

    #[test]
    fn the_kernels_counters_are_understood() {
        let text = "cpu  100 5 20 700 30 1 2 3 50 0\n";
        assert_eq!(cpu_ticks(text), Some(Ticks { busy: 131, all: 861 }));
        assert_eq!(cpu_ticks("cpu  1 2\n"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn a_file_gives_figures_and_what_busy_is() {
        let (dir, machine) = machine();
        write(&dir, "sys/class/block/sdb/stat", "1 0 8 5 1 0 8 5 0 4321 10 0 0 0 0 0 0\n");
        write(&dir, "m.toml", "busy_is = \"disk:sdb\"\nidle = 4.0\nlight = 6.0\nbusy = 7.0\n");
        let spec = format!("model:{}", dir.path().join("m.toml").display());
        let mut open = open_on(&machine, &spec).unwrap();
        assert_eq!(open.channels[0].sees, "4.0 W to 7.0 W, by how busy disk:sdb is");
        assert!(open.meter.read(&mut None).unwrap()[0].is_some());
        let error = |text: &str| {
            write(&dir, "m.toml", text);
            open_on(&machine, &spec).map(|_| ()).unwrap_err().to_string()
        };
        assert!(error("idel = 4.0").contains("idel"));
        assert!(error("idle = -4.0").contains("idle is -4"));
        assert!(error("busy_is = \"disk:../x\"").contains("busy_is"));
    }
}
