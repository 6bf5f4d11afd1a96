//! Load, as counted on servers and summed by the metadata service. [Sierra §3.4]

use crate::ChunkId;
use crate::map::chunk_hash;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Client work counted over an interval. Writes are counted once, not once per copy: the load formula weighs them by r.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadCount {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Those of the reads and writes that do not stream: [`Streams`].
    pub random_reads: u64,
    pub random_writes: u64,
}

impl AddAssign for LoadCount {
    fn add_assign(&mut self, other: LoadCount) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.random_reads += other.random_reads;
        self.random_writes += other.random_writes;
    }
}

/// A request of this many bytes streams wherever it starts: a disk transfers for longer than it seeks.
pub const STREAM_BYTES: u32 = 1 << 20;

/// Chunks whose last request is remembered.
const CHUNKS: usize = 512;

/// Counts requests, and distinguishes random ones from those that stream: from those that begin where the previous
/// request to the same chunk ended, read or write, and from large ones. Servers, the simulator and `ebb lab replay`
/// count with it, each all requests that it sees in their order. [Sierra §3.4]
///
/// Memory is bounded: of two chunks with the same place in the table the one used last is remembered, and the next
/// request to the other counts as random.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    /// Where the last request to a chunk ended, by hash of the chunk. Empty until the first request.
    ends: Vec<Option<(ChunkId, u32)>>,
}

impl Streams {
    /// A request for `len` bytes of `chunk`, from `offset` on.
    pub fn count(&mut self, load: &mut LoadCount, write: bool, chunk: ChunkId, offset: u32, len: u32) {
        self.ends.resize(CHUNKS, None);
        let end = &mut self.ends[chunk_hash(chunk) as usize % CHUNKS];
        let random = u64::from(len < STREAM_BYTES && *end != Some((chunk, offset)));
        *end = Some((chunk, offset.saturating_add(len)));
        let (requests, bytes, of_them) = match write {
            false => (&mut load.reads, &mut load.read_bytes, &mut load.random_reads),
            true => (&mut load.writes, &mut load.written_bytes, &mut load.random_writes),
        };
        *requests += 1;
        *bytes += u64::from(len);
        *of_them += random;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObjectId;

    fn chunk(index: u32) -> ChunkId {
        ChunkId { object: ObjectId(7), index }
    }

    /// Counts requests of the given length at these chunks and offsets.
    fn counted(streams: &mut Streams, len: u32, requests: &[(bool, u32, u32)]) -> LoadCount {
        let mut load = LoadCount::default();
        for (write, index, offset) in requests {
            streams.count(&mut load, *write, chunk(*index), *offset, len);
        }
        load
    }

    #[test]
    fn what_goes_on_where_the_last_request_to_the_chunk_ended_streams() {
        let mut streams = Streams::default();
        // Two streams in two chunks, interleaved: only their first requests are random.
        let load = counted(
            &mut streams,
            4096,
            &[(false, 1, 0), (true, 2, 8192), (false, 1, 4096), (true, 2, 12288)],
        );
        let expected = LoadCount {
            reads: 2,
            writes: 2,
            read_bytes: 8192,
            written_bytes: 8192,
            random_reads: 1,
            random_writes: 1,
        };
        assert_eq!(load, expected);
        // The same place again, a gap, and a step back.
        let load = counted(&mut streams, 4096, &[(false, 1, 4096), (false, 1, 12288), (false, 1, 8192)]);
        assert_eq!((load.reads, load.random_reads), (3, 3));
    }

    #[test]
    fn large_requests_stream_wherever_they_start() {
        let load = counted(&mut Streams::default(), STREAM_BYTES, &[(true, 1, 0), (true, 9, 1 << 24)]);
        assert_eq!((load.writes, load.random_writes, load.written_bytes), (2, 0, 2 << 20));
        let load = counted(&mut Streams::default(), STREAM_BYTES - 1, &[(true, 1, 0), (true, 9, 1 << 24)]);
        assert_eq!(load.random_writes, 2);
    }

    #[test]
    fn more_chunks_than_are_remembered_cost_accuracy_and_no_memory() {
        let mut streams = Streams::default();
        let many = |offset| (0..4 * CHUNKS as u32).map(|n| (false, n, offset)).collect::<Vec<_>>();
        counted(&mut streams, 4096, &many(0));
        let load = counted(&mut streams, 4096, &many(4096));
        assert!((1..4 * CHUNKS as u64).contains(&load.random_reads), "{load:?}");
        assert_eq!(streams.ends.len(), CHUNKS);
    }
}
