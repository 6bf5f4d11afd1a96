//! An in-memory cluster for tests: chunks in a map, and the real namespace. It can be made to fail.

use super::backend::{Backend, BackendError};
use bytes::Bytes;
use ebb_meta::Namespace;
use ebb_types::{
    BLOCK_BYTES, ChunkId, NamespaceAnswer, NamespaceCommand, NamespaceError, NamespaceOp, NamespaceQuery,
    NamespaceReply, ObjectId, RequestId,
};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::SystemTime;

pub struct Memory {
    chunk_bytes: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<ChunkId, Vec<u8>>,
    namespace: Namespace,
    next_object: u64,
    next_request: u64,
    writes: u64,
    commands: u64,
    broken: Option<BackendError>,
}

impl Memory {
    pub fn new(chunk_bytes: u32) -> Memory {
        Memory { chunk_bytes, state: Mutex::default() }
    }

    /// From now on chunks answer with this error.
    pub fn break_chunks(&self, error: Option<BackendError>) {
        self.state.lock().unwrap().broken = error;
    }

    /// Chunk writes and namespace commands so far.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap();
        (state.writes, state.commands)
    }

    /// Bytes in blocks that are not all zero.
    pub fn used_bytes(&self) -> usize {
        let state = self.state.lock().unwrap();
        let blocks = state.chunks.values().flat_map(|chunk| chunk.chunks(BLOCK_BYTES));
        blocks.filter(|block| block.iter().any(|b| *b != 0)).count() * BLOCK_BYTES
    }

    fn change(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: usize,
        set: impl FnOnce(&mut [u8]),
    ) -> Result<(), BackendError> {
        let mut state = self.state.lock().unwrap();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let (from, to) = (offset as usize, offset as usize + len);
        assert!(to <= self.chunk_bytes as usize, "{chunk}: {from}..{to} lies outside");
        state.writes += 1;
        let bytes = state.chunks.entry(chunk).or_default();
        if bytes.len() < to {
            bytes.resize(to, 0);
        }
        set(&mut bytes[from..to]);
        Ok(())
    }
}

impl Backend for Memory {
    fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    async fn allocate(&self, count: u32) -> Result<ObjectId, BackendError> {
        let mut state = self.state.lock().unwrap();
        state.next_object += u64::from(count);
        Ok(ObjectId(state.next_object - u64::from(count)))
    }

    async fn read(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Bytes, BackendError> {
        let state = self.state.lock().unwrap();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let bytes = state
            .chunks
            .get(&chunk)
            .map_or(&[][..], |bytes| bytes.get(offset as usize..).unwrap_or_default());
        let mut out = bytes[..bytes.len().min(len as usize)].to_vec();
        out.resize(len as usize, 0);
        Ok(out.into())
    }

    async fn write(&self, chunk: ChunkId, offset: u32, data: Bytes) -> Result<(), BackendError> {
        assert!(data.len().is_multiple_of(BLOCK_BYTES) && (offset as usize).is_multiple_of(BLOCK_BYTES));
        self.change(chunk, offset, data.len(), |bytes| bytes.copy_from_slice(&data))
    }

    async fn zero(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<(), BackendError> {
        self.change(chunk, offset, len as usize, |bytes| bytes.fill(0))
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), BackendError> {
        self.state.lock().unwrap().chunks.remove(&chunk);
        Ok(())
    }

    async fn commit(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, BackendError> {
        let mut state = self.state.lock().unwrap();
        state.next_request += 1;
        state.commands += 1;
        let request = RequestId { client: 1, seq: state.next_request };
        let now_millis = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
        Ok(state.namespace.apply(&NamespaceCommand { request, now_millis, ops }))
    }

    async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, BackendError> {
        Ok(self.state.lock().unwrap().namespace.query(&query))
    }
}
