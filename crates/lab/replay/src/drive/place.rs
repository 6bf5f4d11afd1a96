//! How requests are placed on a target: aligned to its blocks, moved within its size, split if they are too long.
//!
//! - A request of zero bytes is not issued.
//! - A request is rounded out to whole blocks of the target.
//! - If it ends past the target's end, its offset is taken modulo the target's size, or the replay ends ([`PastEnd`]).
//!   If it still crosses the end, it is moved back to end there. A request longer than the whole target is cut to its
//!   size.
//! - The devices of a trace share the target: device 0 begins at byte 0, the others at places spread over it, and each
//!   continues at the beginning when it reaches the end.
//! - Or each device has its own volume, and none of this is needed ([`Placer::apart`]).
//! - A request longer than [`LONGEST`] is issued in parts of that length, all at its time.

use super::options::{DriveError, Pacing, PastEnd};
use super::report::PlacedReport;
use ebb_trace::{Kind, Request};

/// Most bytes that are issued at once. A multiple of every block size.
pub(crate) const LONGEST: u32 = 4 << 20;
/// Spreads small numbers over all 64-bit words: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// An operation to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    /// Nanoseconds by the clock since the start.
    pub due: u64,
    /// The trace's device, if each device has its own place.
    pub device: u32,
    pub offset: u64,
    pub len: u32,
    pub kind: Kind,
}

/// Places requests on a target.
pub(crate) struct Placer {
    /// Multiple of the block.
    size: u64,
    block: u64,
    past_end: PastEnd,
    /// `None`: times are ignored.
    speed: Option<f64>,
    /// Each device of the trace has its own place.
    apart: bool,
    number: u64,
    pub report: PlacedReport,
}

impl Placer {
    /// `size` is at least one block of `block` bytes, which is a power of two of at most [`LONGEST`].
    pub fn new(size: u64, block: u32, past_end: PastEnd, pacing: Pacing) -> Placer {
        let speed = match pacing {
            Pacing::Times { speed } => Some(speed),
            Pacing::Peak { .. } => None,
        };
        let block = u64::from(block);
        let size = size / block * block;
        Placer { size, block, past_end, speed, apart: false, number: 0, report: PlacedReport::default() }
    }

    /// For targets on which each device of the trace has its own volume, large enough.
    pub fn apart(pacing: Pacing) -> Placer {
        Placer { apart: true, ..Placer::new(u64::MAX, 1, PastEnd::Refuse, pacing) }
    }

    /// Appends the parts of a request to `ops`.
    pub fn place(&mut self, request: &Request, ops: &mut Vec<Op>) -> Result<(), DriveError> {
        self.number += 1;
        if request.len == 0 {
            self.report.empty += 1;
            return Ok(());
        }
        let end = request.offset + u64::from(request.len);
        if end > self.size {
            if self.past_end == PastEnd::Refuse {
                return Err(DriveError::PastEnd { number: self.number, end, size: self.size });
            }
            self.report.wrapped += 1;
        }
        let start = request.offset - request.offset % self.block;
        let whole = end.next_multiple_of(self.block) - start;
        if whole > u64::from(request.len) {
            self.report.rounded += 1;
            self.report.rounded_bytes += whole - u64::from(request.len);
        }
        let len = whole.min(self.size);
        let (device, base) = if self.apart { (request.device, 0) } else { (0, self.base(request.device)) };
        let start = (start % self.size + base) % self.size;
        let start = start.min(self.size - len);
        self.report.split += u64::from(len > u64::from(LONGEST));
        let due = self.speed.map_or(0, |speed| (request.at.as_nanos() as f64 / speed) as u64);
        let parts = (start..start + len).step_by(LONGEST as usize);
        ops.extend(parts.map(|offset| {
            let len = (start + len - offset).min(u64::from(LONGEST)) as u32;
            Op { due, device, offset, len, kind: request.kind }
        }));
        Ok(())
    }

    /// Where a device of the trace begins on the target.
    fn base(&self, device: u32) -> u64 {
        let share = u128::from(u64::from(device).wrapping_mul(SPREAD));
        let place = ((share * u128::from(self.size)) >> 64) as u64;
        place - place % self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TIMES: Pacing = Pacing::Times { speed: 2.0 };

    fn request(offset: u64, len: u32) -> Request {
        Request { at: Duration::from_micros(10), device: 0, offset, len, kind: Kind::Write }
    }

    fn placed(placer: &mut Placer, request: &Request) -> Vec<(u64, u32)> {
        let mut ops = Vec::new();
        placer.place(request, &mut ops).unwrap();
        assert!(ops.iter().all(|op| op.due == 5_000 && op.kind == Kind::Write));
        ops.iter().map(|op| (op.offset, op.len)).collect()
    }

    #[test]
    fn requests_are_rounded_out_to_blocks_and_counted() {
        let mut placer = Placer::new((1 << 20) + 100, 4096, PastEnd::Refuse, TIMES);
        assert_eq!(placed(&mut placer, &request(4096, 8192)), [(4096, 8192)]);
        assert_eq!(placed(&mut placer, &request(512, 512)), [(0, 4096)]);
        assert_eq!(placed(&mut placer, &request(4095, 2)), [(0, 8192)]);
        assert_eq!(placed(&mut placer, &request(1 << 19, 0)), []);
        let report = placer.report;
        assert_eq!((report.rounded, report.rounded_bytes, report.empty), (2, 3584 + 8190, 1));
        assert_eq!((report.wrapped, report.split), (0, 0));
    }

    #[test]
    fn what_lies_past_the_end_wraps_or_is_refused_with_its_number() {
        let size = 1 << 20;
        let mut placer = Placer::new(size, 512, PastEnd::Wrap, TIMES);
        assert_eq!(placed(&mut placer, &request(3 * size + 1024, 512)), [(1024, 512)]);
        assert_eq!(placed(&mut placer, &request(size - 512, 1024)), [(size - 1024, 1024)]);
        assert_eq!(placed(&mut placer, &request(512, 2 << 20)), [(0, 1 << 20)]);
        let last = i64::MAX as u64 - 4096;
        assert_eq!(placed(&mut placer, &request(last, 4096)), [((last % size) & !511, 4096 + 512)]);
        assert_eq!(placer.report.wrapped, 4);
        let mut placer = Placer::new(size, 512, PastEnd::Refuse, TIMES);
        assert_eq!(placed(&mut placer, &request(size - 512, 512)), [(size - 512, 512)]);
        let error = placer.place(&request(size, 512), &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("request 2") && error.contains("1049088"), "{error}");
    }

    #[test]
    fn what_is_too_long_is_issued_in_parts() {
        let mut placer = Placer::new(1 << 30, 1, PastEnd::Wrap, TIMES);
        let longest = u64::from(LONGEST);
        let parts = placed(&mut placer, &request(7, 2 * LONGEST + 5));
        assert_eq!(parts, [(7, LONGEST), (7 + longest, LONGEST), (7 + 2 * longest, 5)]);
        assert_eq!(placer.report.split, 1);
    }

    #[test]
    fn devices_begin_at_different_places_and_stay_within_the_target() {
        let mut placer = Placer::new(1 << 30, 4096, PastEnd::Wrap, TIMES);
        let mut starts: Vec<u64> = Vec::new();
        for device in 0..8 {
            for offset in [0, (1 << 30) - 4096] {
                let [(start, 4096)] = placed(&mut placer, &Request { device, ..request(offset, 4096) })[..]
                else {
                    panic!("one block stays one block")
                };
                assert!(start <= (1 << 30) - 4096 && start % 4096 == 0);
                starts.push(start);
            }
        }
        assert_eq!(starts[0], 0);
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), 16);
        assert_eq!(placer.report.wrapped, 0);
    }

    #[test]
    fn without_times_everything_is_due_at_once() {
        let mut placer = Placer::new(1 << 20, 1, PastEnd::Wrap, Pacing::Peak { depth: 1 });
        let mut ops = Vec::new();
        placer.place(&request(0, 1), &mut ops).unwrap();
        assert_eq!(ops[0].due, 0);
    }
}
