//! A trace in memory. It is read whole, because it is needed several times: for its peak, for what it reads, and
//! for the run.

use crate::traces::name_of;
use ebb_trace::{Format, Input, Kind, Options, Request, TraceError};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

/// The requests of a trace that move bytes, in order of time. 40 bytes of memory per request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub name: String,
    pub requests: Vec<Request>,
    /// The trace's own names of its devices; [`Request::device`] is an index into it.
    pub devices: Vec<String>,
    /// Requests of no bytes, which are left out.
    pub empty: u64,
    /// Bad lines or records that were skipped.
    pub skipped: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum TraceFailure {
    #[error("cannot open the trace {}: {error}; check the path", path.display())]
    Open { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Read(#[from] TraceError),
}

impl Trace {
    /// Reads files of one trace (blktrace has one per CPU). `format`: `None` finds it out. `skip_bad`: bad lines or
    /// records that are passed over before the trace counts as broken.
    pub fn open(paths: &[PathBuf], format: Option<Format>, skip_bad: u64) -> Result<Trace, TraceFailure> {
        let open = |path: &PathBuf| {
            let file = File::open(path).map_err(|error| TraceFailure::Open { path: path.clone(), error })?;
            Ok(Input { name: name_of(path), read: Box::new(file) })
        };
        let inputs = paths.iter().map(open).collect::<Result<Vec<_>, TraceFailure>>()?;
        let mut reader = ebb_trace::open_with(inputs, &Options { format, skip_bad })?;
        let mut trace =
            Trace { name: paths.first().map_or(String::new(), |path| name_of(path)), ..Trace::default() };
        for request in reader.by_ref() {
            let request = request?;
            match request.len {
                0 => trace.empty += 1,
                _ => trace.requests.push(request),
            }
        }
        trace.devices = reader.devices().to_vec();
        trace.skipped = reader.skipped();
        Ok(trace)
    }

    /// Arrival of the last request.
    pub fn span(&self) -> Duration {
        self.requests.last().map_or(Duration::ZERO, |request| request.at)
    }

    /// What is read of each device: disjoint ranges `start -> end` in bytes, neighbours joined.
    pub fn read_ranges(&self) -> Vec<BTreeMap<u64, u64>> {
        self.ranges(|kind| kind == Kind::Read)
    }

    /// What is read or written of each device.
    pub fn touched_ranges(&self) -> Vec<BTreeMap<u64, u64>> {
        self.ranges(|_| true)
    }

    fn ranges(&self, counts: impl Fn(Kind) -> bool) -> Vec<BTreeMap<u64, u64>> {
        let mut devices = vec![BTreeMap::new(); self.devices.len()];
        for request in self.requests.iter().filter(|request| counts(request.kind)) {
            let end = request.offset + u64::from(request.len);
            add_range(&mut devices[request.device as usize], request.offset, end);
        }
        devices
    }
}

/// Adds a range to disjoint ranges and joins it with those that it meets.
fn add_range(ranges: &mut BTreeMap<u64, u64>, mut start: u64, mut end: u64) {
    while let Some((&first, &last)) = ranges.range(..=end).next_back().filter(|(_, last)| **last >= start) {
        ranges.remove(&first);
        (start, end) = (start.min(first), end.max(last));
    }
    ranges.insert(start, end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn ranges_are_joined_where_they_meet() {
        let mut ranges = BTreeMap::new();
        for (start, end) in [(10, 20), (30, 40), (50, 60), (20, 30), (55, 58), (5, 8)] {
            add_range(&mut ranges, start, end);
        }
        assert_eq!(ranges.into_iter().collect::<Vec<_>>(), [(5, 8), (10, 40), (50, 60)]);
    }

    #[test]
    fn a_trace_is_read_whole_and_its_errors_name_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("small.spc");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"0,8,512,W,0.5\n1,0,0,R,0.6\n0,8,1024,R,1.5\n").unwrap();
        let trace = Trace::open(std::slice::from_ref(&path), None, 0).unwrap();
        assert_eq!((trace.requests.len(), trace.empty, trace.devices.len()), (2, 1, 2));
        assert_eq!((trace.span(), trace.name.as_str()), (Duration::from_secs(1), "small.spc"));
        assert_eq!(trace.read_ranges()[0], BTreeMap::from([(4096, 5120)]));
        file.write_all(b"0,x,512,W,2\n").unwrap();
        let error = Trace::open(std::slice::from_ref(&path), None, 0).unwrap_err().to_string();
        assert!(error.contains("small.spc") && error.contains("line 4"), "{error}");
        let error = Trace::open(&[dir.path().join("none")], None, 0).unwrap_err().to_string();
        assert!(error.contains("none") && error.contains("check the path"), "{error}");
    }
}
