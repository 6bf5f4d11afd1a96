//! Which of a trace's data is cold, as lifecycle rules would find it: what nothing used for a time moves to
//! erasure-coded sets. A read leaves it there; a write is new data, which is hot.

use ebb_trace::{Kind, Trace};
use std::collections::BTreeMap;
use std::time::Duration;

/// What of a trace is cold.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Mean share of the chunks that the trace uses, from `after` on.
    pub share: f64,
    /// Requests to chunks that were cold.
    pub touches: Vec<Touch>,
}

/// A request to a cold chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    pub at: Duration,
    /// The same for every request to a chunk.
    pub chunk: u64,
}

#[derive(Clone, Copy)]
enum State {
    /// Since its last use.
    Hot(Duration),
    Cold(Duration),
}

/// Splits the data by chunks. All of it is hot at the start, as if it had just been written.
pub fn split(trace: &Trace, chunk_bytes: u32, after: Duration) -> Split {
    let mut chunks: BTreeMap<(u32, u64), State> = BTreeMap::new();
    let (mut cold, mut touches) = (Duration::ZERO, Vec::new());
    for request in &trace.requests {
        let size = u64::from(chunk_bytes);
        let last = request.offset + u64::from(request.len.max(1)) - 1;
        for index in request.offset / size..=last / size {
            let state = chunks.entry((request.device, index)).or_insert(State::Hot(Duration::ZERO));
            let since = match *state {
                State::Hot(used) if request.at <= used + after => {
                    *state = State::Hot(request.at);
                    continue;
                }
                State::Hot(used) => used + after,
                State::Cold(since) => since,
            };
            touches.push(Touch {
                at: request.at,
                chunk: ebb_types::mix(index ^ u64::from(request.device) << 40),
            });
            *state = State::Cold(since);
            if request.kind == Kind::Write {
                cold += request.at - since;
                *state = State::Hot(request.at);
            }
        }
    }
    let end = trace.span();
    for state in chunks.values() {
        let since = match state {
            State::Hot(used) => *used + after,
            State::Cold(since) => *since,
        };
        cold += end.saturating_sub(since);
    }
    let all = end.saturating_sub(after).as_secs_f64() * chunks.len() as f64;
    Split { share: if all > 0.0 { cold.as_secs_f64() / all } else { 0.0 }, touches }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_trace::Request;

    fn trace(requests: &[(u64, u64, Kind)]) -> Trace {
        let request = |&(second, chunk, kind): &(u64, u64, Kind)| Request {
            at: Duration::from_secs(second),
            device: 0,
            offset: chunk << 20,
            len: 4096,
            kind,
        };
        Trace {
            name: "synthetic".into(),
            requests: requests.iter().map(request).collect(),
            devices: vec!["0".into()],
            empty: 0,
            skipped: 0,
            left_out: 0,
        }
    }

    #[test]
    fn what_nothing_uses_for_a_time_is_cold_until_it_is_written() {
        use Kind::{Read, Write};
        let trace = trace(&[
            (0, 1, Write),
            (5, 1, Read),
            (30, 2, Read),
            (40, 2, Read),
            (60, 2, Write),
            (110, 1, Read),
        ]);
        let split = split(&trace, 1 << 20, Duration::from_secs(10));
        // Chunk 1 from 15 to 110, chunk 2 from 10 to 60 and from 70 to 110, of 100 s each.
        assert!((split.share - (95.0 + 50.0 + 40.0) / 200.0).abs() < 1e-9, "{}", split.share);
        let times: Vec<u64> = split.touches.iter().map(|touch| touch.at.as_secs()).collect();
        assert_eq!(times, [30, 40, 60, 110]);
        assert_eq!(split.touches[0].chunk, split.touches[2].chunk);
        assert_ne!(split.touches[0].chunk, split.touches[3].chunk);
    }

    #[test]
    fn a_trace_that_is_shorter_has_no_cold_data() {
        let trace = trace(&[(0, 1, Kind::Read), (50, 2, Kind::Read)]);
        assert_eq!(
            split(&trace, 1 << 20, Duration::from_secs(60)),
            Split { share: 0.0, touches: Vec::new() }
        );
    }
}
