//! Requests held in memory as a trace, for use in several passes.

use crate::{Kind, Request, TraceError, TraceReader};
use ebb_types::{LoadCount, ObjectId, Streams, pieces};
use std::collections::BTreeMap;
use std::time::Duration;

/// The requests of a trace that move bytes, in time order. 40 bytes of memory per request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub name: String,
    pub requests: Vec<Request>,
    /// The trace's own names of its devices; [`Request::device`] is an index into it.
    pub devices: Vec<String>,
    /// Requests without bytes, which are left out.
    pub empty: u64,
    /// Bad lines or records that were skipped.
    pub skipped: u64,
    /// Requests that move no data, such as a trim or a sync, which are left out.
    pub left_out: u64,
}

/// A request that no volume can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a request of device {device} ends at byte {end}, past the last byte that a volume of this cluster can have: \
     create the cluster with larger chunks"
)]
pub struct RangeError {
    pub device: String,
    pub end: u64,
}

impl Trace {
    /// Reads a trace to its end.
    pub fn collect(name: String, reader: &mut dyn TraceReader) -> Result<Trace, TraceError> {
        let mut trace = Trace { name, ..Trace::default() };
        for request in &mut *reader {
            let request = request?;
            match request.len {
                0 => trace.empty += 1,
                _ => trace.requests.push(request),
            }
        }
        trace.devices = reader.devices().to_vec();
        (trace.skipped, trace.left_out) = (reader.skipped(), reader.left_out());
        Ok(trace)
    }

    /// Arrival of the last request.
    pub fn span(&self) -> Duration {
        self.requests.last().map_or(Duration::ZERO, |request| request.at)
    }

    /// The load of each request on a cluster whose volumes are the devices, counted as the cluster counts it: in the
    /// pieces that a chunk server gets.
    pub fn loads(&self, chunk_bytes: u32) -> Result<impl Iterator<Item = (Duration, LoadCount)>, RangeError> {
        let parts = move |request: &Request| {
            pieces(ObjectId(request.device.into()), request.offset, request.len.into(), chunk_bytes)
        };
        if let Some(request) = self.requests.iter().find(|request| parts(request).is_none()) {
            return Err(RangeError {
                device: self.devices[request.device as usize].clone(),
                end: request.offset + u64::from(request.len),
            });
        }
        let mut streams = Streams::default();
        let count = move |request: &Request| {
            let (mut load, write) = (LoadCount::default(), request.kind == Kind::Write);
            let parts = parts(request).into_iter().flatten();
            parts.for_each(|part| streams.count(&mut load, write, part.chunk, part.offset, part.len));
            (request.at, load)
        };
        Ok(self.requests.iter().map(count))
    }

    /// The ranges read from each device: disjoint ranges `start -> end` in bytes, neighbours joined.
    pub fn read_ranges(&self) -> Vec<BTreeMap<u64, u64>> {
        self.ranges(|kind| kind == Kind::Read)
    }

    /// The ranges read or written on each device.
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

/// Adds a range to disjoint ranges and joins it with those it touches.
fn add_range(ranges: &mut BTreeMap<u64, u64>, mut start: u64, mut end: u64) {
    while let Some((&first, &last)) = ranges.range(..=end).next_back().filter(|(_, last)| **last >= start) {
        ranges.remove(&first);
        (start, end) = (start.min(first), end.max(last));
    }
    ranges.insert(start, end);
}

/// A trace over requests in time order, and the names of their devices.
#[derive(Clone)]
pub struct InMemory<'a> {
    requests: std::slice::Iter<'a, Request>,
    devices: &'a [String],
}

impl<'a> InMemory<'a> {
    pub fn new(requests: &'a [Request], devices: &'a [String]) -> Self {
        Self { requests: requests.iter(), devices }
    }
}

impl Iterator for InMemory<'_> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.requests.next().copied().map(Ok)
    }
}

impl TraceReader for InMemory<'_> {
    fn devices(&self) -> &[String] {
        self.devices
    }
}

/// A list of requests of one device: nothing is missing in it.
impl TraceReader for std::vec::IntoIter<Result<Request, TraceError>> {
    fn devices(&self) -> &[String] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_where_they_meet() {
        let mut ranges = BTreeMap::new();
        for (start, end) in [(10, 20), (30, 40), (50, 60), (20, 30), (55, 58), (5, 8)] {
            add_range(&mut ranges, start, end);
        }
        assert_eq!(ranges.into_iter().collect::<Vec<_>>(), [(5, 8), (10, 40), (50, 60)]);
    }

    #[test]
    fn a_trace_is_collected_whole() {
        let text = &b"0,8,512,W,0.5\n1,0,0,R,0.6\n0,8,1024,R,1.5\n"[..];
        let mut reader = crate::open("small.spc", text).unwrap();
        let trace = Trace::collect("small".into(), reader.as_mut()).unwrap();
        assert_eq!((trace.requests.len(), trace.empty, trace.devices.len()), (2, 1, 2));
        assert_eq!(trace.span(), Duration::from_secs(1));
        assert_eq!(trace.read_ranges()[0], BTreeMap::from([(4096, 5120)]));
        assert_eq!(trace.touched_ranges(), [BTreeMap::from([(4096, 5120)]), BTreeMap::new()]);
        let text = &b"fio version 2 iolog\n/x write 0 4096\n/x trim 4096 4096\n/x sync 0 0\n"[..];
        let mut reader = crate::open("x.log", text).unwrap();
        let trace = Trace::collect("x".into(), reader.as_mut()).unwrap();
        assert_eq!((trace.requests.len(), trace.left_out), (1, 2));
    }

    #[test]
    fn loads_are_counted_in_pieces() {
        const MIB: u64 = 1 << 20;
        let request = |offset, len, kind| Request { at: Duration::ZERO, device: 0, offset, len, kind };
        let trace =
            |request| Trace { requests: vec![request], devices: vec!["sda".into()], ..Trace::default() };
        let read = trace(request(15 * MIB, 2 << 20, Kind::Read));
        let counts: Vec<LoadCount> = read.loads(16 << 20).unwrap().map(|(_, count)| count).collect();
        assert_eq!(counts, [LoadCount { reads: 2, read_bytes: 2 * MIB, ..LoadCount::default() }]);
        let small = [0, 4096, 65536].map(|offset| request(offset, 4096, Kind::Write));
        let other = Request { device: 1, ..small[0] };
        let requests = vec![small[0], other, small[1], small[2]];
        let both = Trace { requests, devices: vec!["sda".into(), "sdb".into()], ..Trace::default() };
        let random: Vec<u64> = both.loads(16 << 20).unwrap().map(|(_, count)| count.random_writes).collect();
        assert_eq!(random, [1, 1, 0, 1], "the second on sda continues where its first ended");
        let far = trace(request(u64::MAX >> 1, 1, Kind::Read));
        assert!(matches!(far.loads(1 << 20).err(), Some(RangeError { device, .. }) if device == "sda"));
    }
}
