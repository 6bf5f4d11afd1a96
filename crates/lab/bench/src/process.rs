//! CPU time, context switches and writes of processes, from `/proc`.

use super::error::BenchError;
use std::fs;
use std::io::{self, ErrorKind};

/// Totals over some processes and all their threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// In user and kernel mode; the kernel counts in ticks of usually 10 ms.
    pub cpu_seconds: f64,
    /// The thread gave up the core to wait for something.
    pub voluntary_switches: u64,
    /// The core was taken from it.
    pub involuntary_switches: u64,
    /// Handed to storage: memory file systems do not count. Absent if the kernel does not say, as of another user's
    /// process.
    pub written_bytes: Option<u64>,
}

impl Usage {
    pub fn of(pids: &[u32]) -> Result<Usage, BenchError> {
        let mut sum = Usage { written_bytes: Some(0), ..Usage::default() };
        for &pid in pids {
            let one = read(pid).map_err(|error| BenchError::Process { pid, error })?;
            sum.cpu_seconds += one.cpu_seconds;
            sum.voluntary_switches += one.voluntary_switches;
            sum.involuntary_switches += one.involuntary_switches;
            sum.written_bytes = sum.written_bytes.zip(one.written_bytes).map(|(sum, one)| sum + one);
        }
        Ok(sum)
    }

    /// Switches of threads that ended meanwhile are missing: the kernel reports them per living thread only.
    pub fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
            written_bytes: self
                .written_bytes
                .zip(earlier.written_bytes)
                .map(|(now, earlier)| now.saturating_sub(earlier)),
        }
    }
}

fn read(pid: u32) -> io::Result<Usage> {
    let ticks = cpu_ticks(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "unexpected format of its stat file"))?;
    let mut usage = Usage {
        cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        written_bytes: fs::read_to_string(format!("/proc/{pid}/io"))
            .ok()
            .and_then(|io| value(&io, "write_bytes:")),
        ..Usage::default()
    };
    // The status of a process has the switches of its first thread only.
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        usage.voluntary_switches += value(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        usage.involuntary_switches += value(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(usage)
}

/// User and system time. The second field, the name, may contain blanks and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// The number on the line that begins with this name.
fn value(lines: &str, name: &str) -> Option<u64> {
    lines.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_behind_a_name_with_blanks() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 10 20 30 40 150 50 6 7 20 0 1 0 12 13 14";
        assert_eq!(cpu_ticks(stat), Some(200));
        assert_eq!(cpu_ticks("7 (x) S 1"), None);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(value(status, "voluntary_ctxt_switches:"), Some(12));
        assert_eq!(value(status, "nonvoluntary_ctxt_switches:"), Some(3));
        assert_eq!(value("rchar: 7\ncancelled_write_bytes: 9\n", "write_bytes:"), None);
    }

    #[test]
    fn written_bytes_are_absent_if_one_process_does_not_say() {
        let usage = |written_bytes| Usage { written_bytes, ..Usage::default() };
        assert_eq!(usage(Some(900)).since(&usage(Some(200))).written_bytes, Some(700));
        assert_eq!(usage(Some(900)).since(&usage(None)).written_bytes, None);
    }

    #[test]
    fn own_usage_grows_with_work_and_an_absent_process_is_an_error() {
        let before = Usage::of(&[std::process::id()]).unwrap();
        let (mut sum, mut used) = (0u64, Usage::default());
        while used.cpu_seconds < 0.03 {
            sum = (0..1_000_000u64).fold(sum, |sum, n| sum.wrapping_mul(31).wrapping_add(n));
            used = Usage::of(&[std::process::id()]).unwrap().since(&before);
        }
        assert!(std::hint::black_box(sum) > 0);
        assert!(matches!(Usage::of(&[u32::MAX]), Err(BenchError::Process { pid: u32::MAX, .. })));
    }
}
