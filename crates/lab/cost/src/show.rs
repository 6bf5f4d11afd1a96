//! The reports as text.

use super::{Comparison, CostReport, FrequencySource, IoSource, OwnSource, Point, Run, View};
use std::fmt::{self, Display, Formatter};

impl Display for IoSource {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoSource::Devices => "sectors of the disks (/proc/diskstats)",
            IoSource::Storage => {
                "what the command requested from storage (/proc/PID/io, read_bytes and write_bytes)"
            }
            IoSource::Calls => {
                "what passed through the command's read and write calls (/proc/PID/io, rchar and wchar)"
            }
        })
    }
}

impl Display for FrequencySource {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrequencySource::Given => "as given",
            FrequencySource::Counters => "counted cycles by busy time",
            FrequencySource::Cpufreq => "cpufreq, mean while the command ran",
            FrequencySource::Cpuinfo => "/proc/cpuinfo",
        })
    }
}

impl Display for OwnSource {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OwnSource::Cgroup => "its own cgroup",
            OwnSource::Rusage => "rusage of the children waited for",
            OwnSource::Processes => "its processes, one by one (/proc/PID/stat)",
        })
    }
}

/// Three significant digits, with thousands separators.
pub(super) fn number(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize };
    let text = format!("{value:.digits$}");
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), String::new()), |(w, r)| (w, format!(".{r}")));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    format!("{sign}{}{rest}", ebb_output::grouped(whole))
}

fn cores(count: usize) -> String {
    if count == 1 { "1 core".into() } else { format!("{count} cores") }
}

pub(super) fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), number)
}

impl CostReport {
    /// One line per layer of a point: machine and command.
    fn show_point(&self, f: &mut Formatter<'_>, point: &Point) -> fmt::Result {
        let mean = |of: &dyn Fn(&Run) -> Option<f64>| point.mean(of);
        let runs =
            if point.runs.len() == 1 { "run".into() } else { format!("{} runs, means", point.runs.len()) };
        writeln!(f, "\n{} ({runs})", cores(point.cores))?;
        writeln!(f, "  {:34}{:>12}{:>12}{:>12}{:>12}", "", "user", "system", "idle", "iowait")?;
        let row = |f: &mut Formatter<'_>, name: &str, of: &dyn Fn(&Run) -> Option<[Option<f64>; 4]>| {
            write!(f, "  {name:34}")?;
            for at in 0..4 {
                write!(f, "{:>12}", cell(mean(&|run| of(run)?[at])))?;
            }
            writeln!(f)
        };
        row(f, "core-seconds", &|run| Some(seconds(&run.machine)))?;
        row(f, "share of the time, %", &|run| Some(shares(&run.machine).map(|share| Some(share * 100.0))))?;
        row(f, "cycles per I/O of 512 B", &|run| Some(cycles(&run.machine)))?;
        row(f, "  of the command itself", &|run| run.command.as_ref().map(cycles))?;
        let cpio = |run: &Run| Some(run.machine.cpio.total.0);
        let own = |run: &Run| Some(run.command.as_ref()?.cpio.total.0);
        let line = |f: &mut Formatter<'_>, name: &str, of: &dyn Fn(&Run) -> Option<f64>| {
            write!(f, "  {name}: {} cycles", cell(mean(of)))?;
            if let Some(spread) = point.spread(of) {
                let each: Vec<String> = point.runs.iter().map(|run| cell(of(run))).collect();
                write!(f, " ({}: spread {:.1} %)", each.join(", "), spread * 100.0)?;
            }
            writeln!(f)
        };
        line(f, "cpio (user + system) of the machine", &cpio)?;
        line(f, "cpio of the command itself", &own)?;
        writeln!(f, "  modelled energy per million I/Os (emio), without storage")?;
        writeln!(f, "  {:34}{:>12}{:>13}{:>13}{:>12}", "", "user only", "user+system", "user+idle", "all")?;
        for (at, fraction) in self.idle_fractions.iter().enumerate() {
            let joules = |of: &dyn Fn(&super::Eio) -> f64| {
                cell(mean(&|run| run.machine.modelled_energy_per_io.get(at).map(|eio| of(eio) * 1e6)))
            };
            let name = format!("  idle draws {fraction} of the peak (IP)");
            let (user, both) = (joules(&|eio| eio.user.0), joules(&|eio| eio.user_and_system.0));
            let (idle, all) = (joules(&|eio| eio.user.0 + eio.idle.0), joules(&|eio| eio.total.0));
            let cells = [user, both, idle, all].map(|joules| joules + " J");
            writeln!(f, "  {name:34}{:>12}{:>13}{:>13}{:>12}", cells[0], cells[1], cells[2], cells[3])?;
        }
        Ok(())
    }

    fn show_sources(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(run) = self.points.last().and_then(|point| point.runs.last()) else { return Ok(()) };
        write!(
            f,
            "\nI/O: {} × 512 B in the last run: {}",
            number(run.machine.ios as f64),
            run.machine.io_source
        )?;
        if run.machine.io_source == IoSource::Devices {
            let disks: Vec<&str> = run.disks.keys().map(String::as_str).collect();
            write!(f, " of {}", disks.join(", "))?;
        }
        writeln!(f)?;
        writeln!(f, "frequency: {:.2} GHz ({})", run.frequency_hertz / 1e9, run.frequency_source)?;
        writeln!(f, "the command itself: {}", run.command_source)?;
        writeln!(f, "model: {} W at the peak of all {} cores", number(self.peak_watts), self.machine_cores)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

fn seconds(view: &View) -> [Option<f64>; 4] {
    [Some(view.user_seconds), Some(view.system_seconds), view.idle_seconds, view.iowait_seconds]
}

/// Of all the time that the cores had for this machine: user, system, idle, iowait.
pub(super) fn shares(view: &View) -> [f64; 4] {
    let times = seconds(view).map(Option::unwrap_or_default);
    let all: f64 = times.iter().sum();
    times.map(|time| if all > 0.0 { time / all } else { 0.0 })
}

fn cycles(view: &View) -> [Option<f64>; 4] {
    let cpio = &view.cpio;
    [Some(cpio.user.0), Some(cpio.system.0), cpio.idle.map(|c| c.0), cpio.iowait.map(|c| c.0)]
}

impl Display for CostReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.label, self.command.join(" "))?;
        self.window_seconds.map_or(Ok(()), |seconds| write!(f, " (a window of {seconds} s)"))?;
        writeln!(f)?;
        let cpu = self.cpu.as_deref().unwrap_or("CPU of unknown kind");
        let kernel = self.kernel.as_deref().map_or(String::new(), |kernel| format!(", Linux {kernel}"));
        writeln!(f, "{cpu}, {} cores{kernel}", self.machine_cores)?;
        self.points.iter().try_for_each(|point| self.show_point(f, point))?;
        if let Some(line) = &self.projection {
            let point = |cores: usize| self.points.iter().find(|point| point.cores == cores);
            let fewest = self.points.iter().map(|point| point.cores).min().unwrap_or(0);
            let least = point(fewest).and_then(|point| point.mean(|run| Some(run.machine.cpio.system.0)));
            write!(f, "\nsystem cycles per I/O: {} on {}", cell(least), cores(fewest))?;
            for at in &line.at {
                match (at.cycles, at.growth) {
                    (Some(cycles), growth) => {
                        write!(f, "; by a line {} on {} cores", number(cycles.0), at.cores)?;
                        growth.map_or(Ok(()), |growth| write!(f, ", {} times as many", number(growth)))?;
                    }
                    (None, _) => {
                        write!(f, "; they fall with the cores, so a line cannot predict {}", at.cores)?
                    }
                }
                if let Some((low, high)) = at.growth_low.zip(at.growth_high) {
                    write!(f, " ({} to {} with 95 %)", number(low), number(high))?;
                }
            }
            match line.r_squared {
                Some(r2) => writeln!(f, " (R² {r2:.2})")?,
                None => writeln!(f)?,
            }
        }
        self.show_sources(f)
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "a: {} ({})\nb: {} ({})\n", self.a, cores(self.a_cores), self.b, cores(self.b_cores))?;
        writeln!(f, "  {:34}{:>14}{:>14}{:>9}", "per I/O of 512 B; emio: per million", "a", "b", "b/a")?;
        for row in &self.differences {
            let with_unit =
                |value: Option<f64>| value.map_or("-".into(), |v| format!("{} {}", number(v), row.unit));
            let ratio = row.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
            writeln!(f, "  {:34}{:>14}{:>14}{ratio:>9}", row.what, with_unit(row.a), with_unit(row.b))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_have_the_digits_that_matter() {
        for (value, text) in [
            (0.0, "0"),
            (1234567.0, "1,234,567"),
            (123.4, "123"),
            (1.234, "1.23"),
            (0.012345, "0.0123"),
            (-1234.0, "-1,234"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
