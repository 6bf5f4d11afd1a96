//! A trace's load on storage, in one pass and constant memory.

use crate::{Kind, Request, TraceError, TraceReader};
use std::time::Duration;

/// The figures of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    pub requests: u64,
    pub reads: u64,
    /// Bytes read and written.
    pub bytes: u64,
    pub read_bytes: u64,
    /// Arrival of the last request; the first is at zero.
    pub span: Duration,
    /// Most requests that arrive within one second, counted in whole seconds from the start.
    pub peak_per_second: u64,
    /// Requests that do not start where the previous request on the same device ended.
    pub random: u64,
    /// Requests without bytes.
    pub empty: u64,
    /// Bytes of the largest request.
    pub largest: u32,
    pub devices: Vec<DeviceSummary>,
}

/// The figures of one device of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The trace's own name.
    pub name: String,
    pub requests: u64,
    pub reads: u64,
    pub bytes: u64,
    /// Requests that do not start where the previous one ended.
    pub random: u64,
    /// Bytes that a target needs to hold every request: the largest offset plus length.
    pub footprint: u64,
}

impl Summary {
    /// Share of reads among the requests; `None` for an empty trace.
    pub fn read_share(&self) -> Option<f64> {
        ratio(self.reads, self.requests)
    }

    /// Share of requests that do not continue their predecessor; `None` for an empty trace.
    pub fn random_share(&self) -> Option<f64> {
        ratio(self.random, self.requests)
    }

    /// Bytes per request; `None` for an empty trace.
    pub fn mean_size(&self) -> Option<f64> {
        ratio(self.bytes, self.requests)
    }

    /// Requests per second over the span; `None` if the span is zero.
    pub fn per_second(&self) -> Option<f64> {
        (!self.span.is_zero()).then(|| self.requests as f64 / self.span.as_secs_f64())
    }

    /// Busiest second relative to the mean second; `None` if the span is zero.
    pub fn peak_to_mean(&self) -> Option<f64> {
        self.per_second().map(|mean| self.peak_per_second as f64 / mean)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Accumulates the figures request by request.
#[derive(Default)]
pub struct Summing {
    total: Summary,
    /// Where the last request of each device ended.
    ends: Vec<Option<u64>>,
    second: u64,
    in_second: u64,
}

impl Summing {
    /// Counts a request, and returns the distance in bytes of its start from the end of the previous one on its device:
    /// zero is sequential, `None` the device's first.
    pub fn add(&mut self, request: &Request) -> Option<u64> {
        let device = request.device as usize;
        if device >= self.ends.len() {
            self.ends.resize(device + 1, None);
            self.total.devices.resize(device + 1, DeviceSummary::default());
        }
        let total = &mut self.total;
        let end = request.offset + u64::from(request.len);
        let distance = self.ends[device].replace(end).map(|before| before.abs_diff(request.offset));
        let (read, random) = (u64::from(request.kind == Kind::Read), u64::from(distance != Some(0)));
        let bytes = u64::from(request.len);
        let own = &mut total.devices[device];
        own.requests += 1;
        own.reads += read;
        own.bytes += bytes;
        own.random += random;
        own.footprint = own.footprint.max(end);
        total.requests += 1;
        total.reads += read;
        total.random += random;
        total.bytes += bytes;
        total.read_bytes += bytes * read;
        total.empty += u64::from(request.len == 0);
        total.largest = total.largest.max(request.len);
        total.span = request.at;
        if request.at.as_secs() != self.second {
            (self.second, self.in_second) = (request.at.as_secs(), 0);
        }
        self.in_second += 1;
        total.peak_per_second = total.peak_per_second.max(self.in_second);
        distance
    }

    /// The figures; `names` are those of the trace's devices.
    pub fn finish(mut self, names: &[String]) -> Summary {
        for (device, name) in self.total.devices.iter_mut().zip(names) {
            device.name.clone_from(name);
        }
        self.total
    }
}

/// Reads a trace to its end and summarises it.
pub fn summary(reader: &mut dyn TraceReader) -> Result<Summary, TraceError> {
    let mut summing = Summing::default();
    while let Some(request) = reader.next().transpose()? {
        summing.add(&request);
    }
    Ok(summing.finish(reader.devices()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;

    #[test]
    fn the_figures_add_up() {
        let text = "3,0,512,R,10.0\n3,1,1024,W,10.2\n9,100,0,r,10.9\n3,3,512,W,12.0\n";
        let mut reader = open("t.spc", text.as_bytes()).unwrap();
        let total = summary(reader.as_mut()).unwrap();
        assert_eq!((total.requests, total.reads, total.bytes, total.read_bytes), (4, 2, 2048, 512));
        assert_eq!((total.span, total.peak_per_second), (Duration::from_secs(2), 3));
        assert_eq!((total.random, total.empty, total.largest), (2, 1, 1024));
        assert_eq!(total.read_share(), Some(0.5));
        assert_eq!(
            (total.mean_size(), total.per_second(), total.peak_to_mean()),
            (Some(512.0), Some(2.0), Some(1.5))
        );
        let device = |name: &str, requests, reads, bytes, random, footprint| DeviceSummary {
            name: name.into(),
            requests,
            reads,
            bytes,
            random,
            footprint,
        };
        assert_eq!(total.devices, [device("3", 3, 1, 2048, 1, 2048), device("9", 1, 1, 0, 1, 51200)]);
    }

    #[test]
    fn an_empty_trace_has_no_shares() {
        let mut reader = open("t.spc", &b""[..]).unwrap();
        let total = summary(reader.as_mut()).unwrap();
        assert_eq!((total.requests, total.read_share(), total.per_second()), (0, None, None));
    }
}
