//! Reads the bytes of an object, in bounded memory, and never returns bytes that were freed meanwhile.
//!
//! A key can be overwritten or deleted while it is read; the janitor then frees its bytes, and they read as zero. The
//! janitor waits for [`GRACE`] after it sees an extent in the garbage, so bytes read within that time of a lookup are
//! right. A reader that takes longer looks the key up again, and aborts if it now names other bytes.
//!
//! In case anything else corrupted the bytes on the way: an extent that is read whole must have the checksum that was
//! computed when its bytes were received (R14).

use super::backend::{Backend, BackendError};
use super::names::{NameError, Names};
use super::store::{Piece, Store};
use bytes::Bytes;
use ebb_client::Summed;
use ebb_types::{CrcOfBlocks, NamespaceError, ObjectMeta};
use futures_util::{Stream, StreamExt};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Time between the janitor seeing garbage and freeing it.
pub const GRACE: Duration = Duration::from_secs(3);
/// A lookup vouches for bytes read within this time after it. The rest of the grace period allows for clocks of unequal
/// speed.
const VERIFIED_FOR: Duration = Duration::from_secs(2);
/// Pieces that are read ahead of a client, and their bytes; these are shared by all clients, but each has at least one piece.
const READS_AHEAD: usize = 4;
const READS_BYTES: usize = 24 << 20;

pub struct Reader<B> {
    store: Arc<Store<B>>,
    names: Arc<Names<B>>,
    pub bucket: String,
    pub key: String,
    pub meta: ObjectMeta,
    /// The key named `meta.extents` at this time or later.
    verified: Mutex<Instant>,
}

impl<B: Backend> Reader<B> {
    /// Looks the key up.
    pub async fn open(
        store: &Arc<Store<B>>,
        names: &Arc<Names<B>>,
        bucket: &str,
        key: &str,
    ) -> Result<Arc<Reader<B>>, NameError> {
        let verified = Mutex::new(Instant::now());
        let meta = names.object(bucket, key).await?;
        let (store, names) = (store.clone(), names.clone());
        Ok(Arc::new(Reader { store, names, bucket: bucket.into(), key: key.into(), meta, verified }))
    }

    pub fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        self.store.pieces(&self.meta.extents, range)
    }

    pub(super) async fn read(&self, piece: Piece) -> Result<Summed, NameError> {
        // Check before reading too: servers would search everywhere for freed bytes, and wake sleeping servers for
        // them.
        self.still_named().await?;
        let data = self.store.read(piece).await;
        self.still_named().await?;
        Ok(data?)
    }

    /// Looks the key up again if the last lookup is too old.
    async fn still_named(&self) -> Result<(), NameError> {
        let verified = *self.verified.lock().expect("no panic under this lock");
        if verified.elapsed() > VERIFIED_FOR {
            let asked = Instant::now();
            match self.names.object(&self.bucket, &self.key).await {
                Ok(meta) if meta.extents == self.meta.extents => {}
                Ok(_) | Err(NameError::Refused(NamespaceError::NoSuchKey)) => {
                    let why = "the object was replaced or deleted while it was read";
                    return Err(BackendError::Failed(why.into()).into());
                }
                Err(error) => return Err(error),
            }
            *self.verified.lock().expect("no panic under this lock") = asked;
        }
        Ok(())
    }

    /// Reads the only piece.
    pub async fn read_only(&self, piece: Piece) -> Result<Bytes, NameError> {
        Check::default().take(self, piece, self.read(piece).await?)
    }

    /// Reads the pieces, in order.
    pub fn stream(
        self: Arc<Self>,
        pieces: Vec<Piece>,
    ) -> impl Stream<Item = Result<Bytes, NameError>> + Send + Sync {
        let turn = self.store.reading();
        let longest = pieces.iter().map(|piece| piece.len as usize).max().unwrap_or(1);
        let ahead = (READS_BYTES / longest / turn.readers()).clamp(1, READS_AHEAD);
        let (mut check, reader) = (Check::default(), self.clone());
        futures_util::stream::iter(pieces)
            .map(move |piece| {
                let reader = self.clone();
                tokio::spawn(async move { reader.read(piece).await.map(|data| (piece, data)) })
            })
            .buffered(ahead)
            .map(move |read| {
                // Keeps the turn for as long as the stream.
                let _ = &turn;
                let (piece, data) = read.expect("a read neither panics nor is aborted")?;
                check.take(&reader, piece, data)
            })
    }
}

/// Compares extents that are read whole with their checksums.
#[derive(Default)]
struct Check {
    sum: CrcOfBlocks,
}

impl Check {
    /// Checks the next piece's bytes. An extent's last piece is not passed on if the extent is wrong.
    fn take<B>(&mut self, of: &Reader<B>, piece: Piece, data: Summed) -> Result<Bytes, NameError> {
        if piece.begins {
            self.sum = CrcOfBlocks::default();
        }
        self.sum.add(&data.crcs);
        match piece.ends {
            Some(crc) if crc != self.sum.finish() => {
                let (bucket, key, chunk) = (&of.bucket, &of.key, piece.chunk);
                let why = format!("the bytes in {chunk} are not those that were put here");
                tracing::error!(target: "ebb::s3", %bucket, %key, "{why}");
                Err(BackendError::Failed(why).into())
            }
            _ => Ok(data.bytes),
        }
    }
}
