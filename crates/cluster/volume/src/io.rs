//! Reads and writes of an open volume.

use crate::Volume;
use crate::backend::{self, Backend, PlantedBug};
use crate::error::VolumeError;
use crate::order::Doing;
use crate::slice::{Slice, Stretch};
use crate::state::{HELD, Inner};
use bytes::{Bytes, BytesMut};
use ebb_client::to_their_ends;
use ebb_types::{BLOCK_BYTES, ObjectId, Piece, RECORD_BLOCKS_MAX, SLICE_BYTES};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout_at;

const BLOCK: u32 = BLOCK_BYTES as u32;
/// For this long a write waits for room in the front.
const PATIENCE: Duration = Duration::from_secs(30);

// No slice is cut at the end of a record.
const _: () = assert!(SLICE_BYTES as usize <= RECORD_BLOCKS_MAX as usize * BLOCK_BYTES);

/// The parts of a request, each in one slice: as of an object whose chunks are the slices.
fn pieces(offset: u64, len: u64) -> Vec<Piece> {
    let pieces = ebb_types::pieces(ObjectId::default(), offset, len, SLICE_BYTES);
    pieces.expect("no volume has more slices than an object has chunks").collect()
}

impl<B: Backend> Volume<B> {
    /// Never-written bytes are zero.
    pub async fn read(&self, offset: u64, len: u64) -> Result<Bytes, VolumeError> {
        self.check(offset, len)?;
        self.inner.sure().await?;
        let bytes = match self.inner.meta.home {
            None => {
                self.inner.backend.read(self.inner.meta.object, offset, len).await.map_err(VolumeError::from)
            }
            // A slice may be locked by a change.
            Some(_) => {
                let read = self.read_pieces(pieces(offset, len));
                self.inner.within(HELD, read).await.and_then(|read| read)
            }
        };
        let bytes = bytes.inspect_err(|error| self.inner.owner.see(error))?;
        self.inner.sure().await?;
        Ok(bytes)
    }

    /// Returns when all of it is durable. After an error any part of it may have been written, and none will be.
    ///
    /// This call is the request's arrival: it is carried out after all earlier ones that write the same blocks, and to
    /// its end, even if the caller goes away.
    pub fn write(&self, offset: u64, bytes: Bytes) -> impl Future<Output = Result<(), VolumeError>> + use<B> {
        let len = bytes.len() as u64;
        self.in_turn(offset, len, move |volume: Volume<B>| async move {
            let inner = &volume.inner;
            if inner.meta.home.is_none() {
                return Ok(inner.backend.write(inner.meta.object, offset, bytes).await?);
            }
            let write = move |inner: Arc<Inner<B>>, piece: Piece| {
                let start = piece.start as usize;
                let part = bytes.slice(start..start + piece.len as usize);
                async move { inner.write_piece(piece, part).await }
            };
            volume.each(pieces(offset, len), write).await.map(drop)
        })
    }

    /// Sets a range to zero and frees what it can. Takes its turn as [`Volume::write`] does.
    pub fn zero(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), VolumeError>> + use<B> {
        self.in_turn(offset, len, move |volume: Volume<B>| async move {
            let inner = &volume.inner;
            if inner.meta.home.is_none() {
                return Ok(inner.backend.zero(inner.meta.object, offset, len).await?);
            }
            let zero = |inner: Arc<Inner<B>>, piece: Piece| async move { inner.zero_piece(piece).await };
            volume.each(pieces(offset, len), zero).await.map(drop)
        })
    }

    /// Returns when all that was asked for before this call has ended, whether its caller still waits for it or not. A
    /// write is durable when it is answered.
    pub fn flush(&self) -> impl Future<Output = ()> + use<B> {
        let (mut turn, skips) = (self.inner.turns.take(Doing::Flush), self.skips_turns());
        async move {
            if !skips {
                turn.come().await;
            }
        }
    }

    /// Carries out a request that changes a range, in its turn. The turn ends with the work, not with the caller.
    fn in_turn<W, F>(
        &self,
        offset: u64,
        len: u64,
        work: W,
    ) -> impl Future<Output = Result<(), VolumeError>> + use<B, W, F>
    where
        W: FnOnce(Volume<B>) -> F + Send + 'static,
        F: Future<Output = Result<(), VolumeError>> + Send + 'static,
    {
        let begun = self.check(offset, len).map(|()| {
            let blocks = offset / u64::from(BLOCK)..(offset + len).div_ceil(u64::from(BLOCK));
            let mut turn = self.inner.turns.take(Doing::Write(blocks));
            let volume = self.clone();
            tokio::spawn(async move {
                if !volume.skips_turns() {
                    volume.inner.within(HELD, turn.come()).await?;
                }
                volume.inner.sure().await?;
                let worked = volume.to_its_end(offset, len, work(volume.clone())).await;
                drop(turn);
                worked.inspect_err(|error| volume.inner.owner.see(error))?;
                volume.inner.sure().await
            })
        });
        async move { begun?.await.expect("no request panics, and none is aborted") }
    }

    async fn to_its_end<T>(&self, offset: u64, len: u64, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(worked) = self.inner.within(HELD, &mut work).await {
            return worked;
        }
        let (name, end) = (&self.inner.name, offset + len);
        tracing::warn!(
            volume = name,
            "a change of bytes {offset} to {end} has not ended for {HELD:?}: a server may still carry it out, so others of these bytes wait \
             for it; see `ebb status` for servers that have failed or are full. To end it, serve the volume with another process"
        );
        work.await
    }

    fn skips_turns(&self) -> bool {
        backend::has(&self.inner.backend, PlantedBug::SkipTurns)
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        let size = self.inner.meta.size;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            end => Err(VolumeError::OutOfRange { offset, end: end.unwrap_or(u64::MAX), size }),
        }
    }

    async fn read_pieces(&self, parts: Vec<Piece>) -> Result<Bytes, VolumeError> {
        if let [only] = parts[..] {
            return self.inner.read_piece(only).await;
        }
        let len = parts.iter().map(|piece| piece.len as usize).sum();
        let mut whole = BytesMut::zeroed(len);
        let read = |inner: Arc<Inner<B>>, piece: Piece| async move {
            Ok((piece.start as usize, inner.read_piece(piece).await?))
        };
        for (start, bytes) in self.each(parts, read).await? {
            whole[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }

    /// Carries out all pieces, as [`to_their_ends`].
    async fn each<T, F>(
        &self,
        parts: Vec<Piece>,
        work: impl Fn(Arc<Inner<B>>, Piece) -> F,
    ) -> Result<Vec<T>, VolumeError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, VolumeError>> + Send + 'static,
    {
        if let [only] = parts[..] {
            return Ok(vec![work(self.inner.clone(), only).await?]);
        }
        to_their_ends(parts.into_iter().map(|piece| work(self.inner.clone(), piece))).await
    }
}

impl<B: Backend> Inner<B> {
    /// Returns once this process may answer. Primaries judge what goes to the front; which slices have moved, this
    /// process alone knows, and must be sure that it is the owner.
    async fn sure(&self) -> Result<(), VolumeError> {
        match self.meta.home {
            None => self.owner.still_claims(),
            Some(_) => self.owner.sure().await,
        }
    }

    async fn read_piece(&self, piece: Piece) -> Result<Bytes, VolumeError> {
        let slice = self.slice(piece.chunk.index);
        loop {
            let object = slice.object.read().await;
            if slice.is_known() {
                return self.read_slice(&slice, *object, piece.offset, piece.len).await;
            }
            drop(object);
            self.find_out(&slice, HELD).await?;
        }
    }

    /// Reads a range of a slice. The caller holds its `object`.
    pub(crate) async fn read_slice(
        &self,
        slice: &Slice,
        object: Option<ObjectId>,
        offset: u32,
        len: u32,
    ) -> Result<Bytes, VolumeError> {
        debug_assert!(slice.object.try_write().is_err(), "no block leaves the front while it is read");
        let stretches = slice.stretches(offset, len);
        if let [only] = stretches[..] {
            return self.read_stretch(slice, object, only).await;
        }
        let mut whole = BytesMut::with_capacity(len as usize);
        for stretch in stretches {
            whole.extend_from_slice(&self.read_stretch(slice, object, stretch).await?);
        }
        Ok(whole.freeze())
    }

    async fn read_stretch(
        &self,
        slice: &Slice,
        object: Option<ObjectId>,
        Stretch { offset, len, in_front }: Stretch,
    ) -> Result<Bytes, VolumeError> {
        let bytes = match object {
            _ if in_front => self.backend.read(self.meta.object, self.at(slice, offset), len.into()).await?,
            Some(object) => self.backend.read_moved(object, offset, len).await?,
            None => Bytes::from(vec![0; len as usize]),
        };
        debug_assert_eq!(bytes.len(), len as usize, "a read returns what was asked for");
        Ok(bytes)
    }

    /// Where in the volume a byte of the slice is.
    fn at(&self, slice: &Slice, offset: u32) -> u64 {
        u64::from(slice.number) * u64::from(SLICE_BYTES) + u64::from(offset)
    }

    async fn write_piece(&self, piece: Piece, bytes: Bytes) -> Result<(), VolumeError> {
        debug_assert_eq!(bytes.len(), piece.len as usize, "a piece has its own bytes");
        self.wait_for_room().await?;
        let slice = self.slice(piece.chunk.index);
        loop {
            let gate = self.within(HELD, slice.gate.read()).await?;
            if !slice.is_known() {
                drop(gate);
                self.find_out(&slice, HELD).await?;
                continue;
            }
            // The front would fill up a block that it does not have with zeroes.
            let has_object = slice.object.read().await.is_some();
            let most = if backend::has(&self.backend, PlantedBug::FirstEdge) { 1 } else { 2 };
            let lacks = |block: &u32| has_object && !slice.has(*block);
            let partial = edges(piece.offset, piece.len).take(most).find(lacks);
            let Some(block) = partial else {
                return self.write_front(&slice, piece.offset, bytes).await;
            };
            drop(gate);
            self.fetch_block(&slice, block).await?;
        }
    }

    /// The caller holds the slice's `gate`.
    async fn write_front(&self, slice: &Slice, offset: u32, bytes: Bytes) -> Result<(), VolumeError> {
        debug_assert!(slice.gate.try_write().is_err(), "the slice stays where it is while it is written");
        let (first, end) = (offset / BLOCK, (offset + bytes.len() as u32).div_ceil(BLOCK));
        // If this write is given up midway, what is present is not known.
        let doubt = Doubt(Some(slice));
        if backend::has(&self.backend, PlantedBug::MarkEarly) {
            self.mark(slice, (first, end - first));
        }
        self.backend.write(self.meta.object, self.at(slice, offset), bytes).await?;
        self.mark(slice, (first, end - first));
        doubt.dispel();
        Ok(())
    }

    /// The front has these blocks of the slice.
    fn mark(&self, slice: &Slice, blocks: (u32, u32)) {
        let written = self.front.number_write();
        self.front.count(slice.mark(blocks, written));
    }

    /// Copies a block from the slice's object to the front.
    async fn fetch_block(&self, slice: &Slice, block: u32) -> Result<(), VolumeError> {
        let _gate = self.within(HELD, slice.gate.write()).await?;
        let object = *slice.object.read().await;
        let Some(object) = object.filter(|_| slice.is_known() && !slice.has(block)) else { return Ok(()) };
        let offset = block * BLOCK;
        let len = BLOCK.min(self.slice_len(slice.number) - offset);
        let bytes = self.backend.read_moved(object, offset, len).await?;
        self.write_front(slice, offset, bytes).await
    }

    async fn zero_piece(&self, piece: Piece) -> Result<(), VolumeError> {
        let slice = self.slice(piece.chunk.index);
        let whole = piece.offset == 0 && piece.len == self.slice_len(piece.chunk.index);
        let gate = self.within(HELD, slice.gate.write()).await?;
        let mut object = slice.object.write().await;
        match *object {
            Some(_) if !whole => {
                // Blocks that the front does not have are the object's.
                drop((object, gate));
                return self.write_piece(piece, Bytes::from(vec![0; piece.len as usize])).await;
            }
            Some(old) => {
                self.name_slice(&slice, Some(old), None).await?;
                *object = None;
                self.forget_object(old).await;
            }
            None => {}
        }
        slice.doubt();
        let at = self.at(&slice, piece.offset);
        Ok(self.backend.zero(self.meta.object, at, piece.len.into()).await?)
    }

    /// Waits while the front is as large as it may be.
    async fn wait_for_room(&self) -> Result<(), VolumeError> {
        let front_bytes = self.meta.home.map_or(u64::MAX, |home| home.front_bytes);
        let deadline = self.backend.clock().now() + PATIENCE;
        loop {
            let room = self.front.shrunk();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.front.bytes() < front_bytes {
                return Ok(());
            }
            if timeout_at(self.backend.clock().timer(deadline), room).await.is_err() {
                return Err(VolumeError::FrontFull { front_bytes, waited: PATIENCE });
            }
        }
    }
}

/// The blocks that a write covers only in part.
fn edges(offset: u32, len: u32) -> impl Iterator<Item = u32> {
    let end = offset + len;
    let first = (!offset.is_multiple_of(BLOCK)).then_some(offset / BLOCK);
    let last = (!end.is_multiple_of(BLOCK)).then_some(end / BLOCK);
    first.into_iter().chain(last)
}

/// Until it is dispelled, its end makes the slice one of which it is not known what the front has.
struct Doubt<'a>(Option<&'a Slice>);

impl Doubt<'_> {
    fn dispel(mut self) {
        self.0 = None;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        self.0.inspect(|slice| slice.doubt());
    }
}
