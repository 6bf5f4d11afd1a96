//! Reads the bytes of an object, in bounded memory, and never returns bytes that were freed meanwhile.
//!
//! A key can be overwritten or deleted while it is read; the janitor then frees its bytes, and they read as zero. It waits
//! for [`GRACE`] after it sees an extent in the garbage. So what was read within that time of a lookup is right. A reader
//! that takes longer looks the key up again, and breaks off if it now names other bytes.

use super::backend::{Backend, BackendError};
use super::names::{NameError, Names};
use super::store::{Piece, Store};
use bytes::Bytes;
use ebb_types::{NamespaceError, ObjectMeta};
use futures_util::{Stream, StreamExt};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Time between the janitor's seeing garbage and its freeing it.
pub const GRACE: Duration = Duration::from_secs(3);
/// A look-up vouches for what has been read so long after it. The rest of the grace is for clocks of unequal speed.
const VERIFIED_FOR: Duration = Duration::from_secs(2);
/// Pieces that are read ahead of a client; of all clients, as far as each may have one.
const READS_AHEAD: usize = 4;
const READS_SHARED: usize = 96;

pub struct Reader<B> {
    store: Arc<Store<B>>,
    names: Arc<Names<B>>,
    bucket: String,
    key: String,
    pub meta: ObjectMeta,
    /// The key named `meta.extents` then or later.
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

    pub async fn read(&self, piece: Piece) -> Result<Bytes, NameError> {
        let data = self.store.read(piece).await?;
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
        Ok(data)
    }

    /// The pieces' bytes, in order.
    pub fn stream(
        self: Arc<Self>,
        pieces: Vec<Piece>,
    ) -> impl Stream<Item = Result<Bytes, NameError>> + Send + Sync {
        let turn = self.store.reading();
        let ahead = (READS_SHARED / turn.readers()).clamp(1, READS_AHEAD);
        futures_util::stream::iter(pieces)
            .map(move |piece| {
                let reader = self.clone();
                tokio::spawn(async move { reader.read(piece).await })
            })
            .buffered(ahead)
            .map(move |read| {
                // It lasts as long as the stream.
                let _ = &turn;
                read.expect("a read neither panics nor is aborted")
            })
    }
}
