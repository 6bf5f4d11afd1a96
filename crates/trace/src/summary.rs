//! What a trace asks of storage, in one pass and constant memory.

use crate::{Kind, TraceError, TraceReader};
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
    /// Requests that do not begin where the request before them on the same device ended.
    pub random: u64,
    /// Requests of no bytes.
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

    /// Requests per second over the span; `None` where the span is zero.
    pub fn per_second(&self) -> Option<f64> {
        (!self.span.is_zero()).then(|| self.requests as f64 / self.span.as_secs_f64())
    }

    /// Busiest second against the mean second; `None` where the span is zero.
    pub fn peak_to_mean(&self) -> Option<f64> {
        self.per_second().map(|mean| self.peak_per_second as f64 / mean)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Reads a trace to its end and sums it up.
pub fn summary(reader: &mut dyn TraceReader) -> Result<Summary, TraceError> {
    let mut total = Summary::default();
    let mut ends: Vec<u64> = Vec::new();
    let (mut second, mut in_second) = (0, 0);
    while let Some(request) = reader.next().transpose()? {
        let device = request.device as usize;
        if device >= ends.len() {
            // No request ends at u64::MAX, so the first of a device counts as random.
            ends.resize(device + 1, u64::MAX);
            total.devices.resize(device + 1, DeviceSummary::default());
        }
        let end = request.offset + u64::from(request.len);
        total.random += u64::from(ends[device] != request.offset);
        ends[device] = end;
        total.devices[device].requests += 1;
        total.devices[device].footprint = total.devices[device].footprint.max(end);
        total.requests += 1;
        total.bytes += u64::from(request.len);
        if request.kind == Kind::Read {
            total.reads += 1;
            total.read_bytes += u64::from(request.len);
        }
        total.empty += u64::from(request.len == 0);
        total.largest = total.largest.max(request.len);
        total.span = request.at;
        if request.at.as_secs() != second {
            (second, in_second) = (request.at.as_secs(), 0);
        }
        in_second += 1;
        total.peak_per_second = total.peak_per_second.max(in_second);
    }
    for (device, name) in total.devices.iter_mut().zip(reader.devices()) {
        device.name.clone_from(name);
    }
    Ok(total)
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
        assert_eq!(total.devices[0], DeviceSummary { name: "3".into(), requests: 3, footprint: 2048 });
        assert_eq!(total.devices[1], DeviceSummary { name: "9".into(), requests: 1, footprint: 51200 });
    }

    #[test]
    fn an_empty_trace_has_no_shares() {
        let mut reader = open("t.spc", &b""[..]).unwrap();
        let total = summary(reader.as_mut()).unwrap();
        assert_eq!((total.requests, total.read_share(), total.per_second()), (0, None, None));
    }
}
