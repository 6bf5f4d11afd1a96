//! Reads the bytes of an object, in bounded memory, and never returns bytes that were freed meanwhile.
//!
//! A key can be overwritten or deleted while it is read; the janitor then frees its bytes. It waits for [`GRACE`] after
//! it sees an extent in the garbage, so bytes read within that time of a lookup are there. A reader that takes longer
//! looks the key up again, and aborts if it now names other bytes. If the bytes were moved to another pool, it
//! continues there. Should all clocks fail (the host paused this virtual machine), the chunk servers still answer with
//! an error: what was freed is missing, never zeroes (`must_exist`).
//!
//! In case anything else corrupted the bytes on the way: an extent that is read whole must have the checksum that was
//! computed when its bytes were received (R14). A range of an extent has only its blocks' checksums, which the client
//! library compares: the namespace keeps one sum per extent, and a sum per block would take as much room as its names.

use crate::bytes::backend::{Backend, BackendError};
use crate::bytes::names::{NameError, Names};
use crate::bytes::store::{Piece, Store};
use bytes::{Bytes, BytesMut};
use ebb_client::Summed;
use ebb_types::{CrcOfBlocks, Extent, Moment, NamespaceError, ObjectMeta, hold_the_same};
use futures_util::{Stream, StreamExt};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time between the janitor seeing garbage and freeing it.
pub const GRACE: Duration = Duration::from_secs(3);
/// A lookup vouches for bytes read within this time after it, by a clock that runs through suspend. The rest of the
/// grace period allows for clocks of unequal speed.
const VERIFIED_FOR: Duration = Duration::from_secs(2);

const _: () = assert!(VERIFIED_FOR.as_millis() < GRACE.as_millis(), "what is freed is no longer vouched for");

/// Pieces that are read ahead of a client, and their bytes; these are shared by all clients, but each has at least one
/// piece.
const READS_AHEAD: usize = 4;
const READS_BYTES: usize = 24 << 20;

pub struct Reader<B> {
    store: Arc<Store<B>>,
    names: Arc<Names<B>>,
    pub bucket: String,
    pub key: String,
    pub meta: ObjectMeta,
    place: Mutex<Place>,
}

/// Where the object's bytes are.
struct Place {
    /// The key named them at this time or later.
    verified: Moment,
    /// The extents, if they are no longer those of `meta`.
    moved: Option<Arc<Vec<Extent>>>,
}

impl<B: Backend> Reader<B> {
    /// Looks the key up.
    pub async fn open(
        store: &Arc<Store<B>>,
        names: &Arc<Names<B>>,
        bucket: &str,
        key: &str,
    ) -> Result<Arc<Reader<B>>, NameError> {
        let place = Mutex::new(Place { verified: store.now(), moved: None });
        let meta = names.object(bucket, key).await?;
        let (store, names) = (store.clone(), names.clone());
        Ok(Arc::new(Reader { store, names, bucket: bucket.into(), key: key.into(), meta, place }))
    }

    pub fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        self.store.pieces(&self.meta.extents, range)
    }

    pub(crate) async fn read(&self, piece: Piece) -> Result<Summed, NameError> {
        // Check before reading too: servers would search everywhere for freed bytes, and wake sleeping servers for
        // them.
        let mut place = self.still_named().await?;
        loop {
            let data = match &place {
                None => self.store.read(piece).await,
                Some(extents) => self.read_moved(extents, piece).await,
            };
            let now = self.still_named().await?;
            if now.as_ref().map(Arc::as_ptr) == place.as_ref().map(Arc::as_ptr) {
                return Ok(data.map_err(|error| located(error, piece))?);
            }
            place = now;
        }
    }

    /// Reads what was in `piece` from where it is now.
    async fn read_moved(&self, extents: &[Extent], piece: Piece) -> Result<Summed, BackendError> {
        let (mut bytes, mut crcs) = (BytesMut::new(), Vec::new());
        for part in self.store.pieces(extents, piece.at..piece.at + u64::from(piece.len)) {
            let data = self.store.read(part).await?;
            bytes.extend_from_slice(&data.bytes);
            crcs.extend(data.crcs);
        }
        debug_assert_eq!(bytes.len(), piece.len as usize, "moved bytes are as many as they were");
        Ok(Summed { bytes: bytes.freeze(), crcs })
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Place> {
        self.place.lock().expect("no panic under this lock")
    }

    /// Looks the key up again if the last lookup is too old. Returns the extents if they are not those of `meta`.
    async fn still_named(&self) -> Result<Option<Arc<Vec<Extent>>>, NameError> {
        {
            let place = self.place();
            if self.store.now().since(place.verified) <= VERIFIED_FOR {
                return Ok(place.moved.clone());
            }
        }
        let asked = self.store.now();
        let found = match self.names.object(&self.bucket, &self.key).await {
            Ok(meta) => Some(meta).filter(|meta| self.is_same_object(meta)),
            Err(NameError::Refused(NamespaceError::NoSuchKey)) => None,
            Err(error) => return Err(error),
        };
        let Some(found) = found else { return Err(NameError::Replaced) };
        let mut place = self.place();
        if place.verified < asked {
            let known = place.moved.as_deref().unwrap_or(&self.meta.extents);
            if found.extents != *known {
                place.moved = Some(Arc::new(found.extents));
            }
            place.verified = asked;
        }
        Ok(place.moved.clone())
    }

    /// Whether the key names the bytes that it did, wherever they are now. A copy on the object itself has another
    /// time.
    fn is_same_object(&self, now: &ObjectMeta) -> bool {
        let known = &self.meta;
        (now.etag, now.modified_millis) == (known.etag, known.modified_millis)
            && hold_the_same(&now.extents, &known.extents)
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
        let turn = self.store.reading.clone();
        debug_assert!(Arc::strong_count(&turn) > 1, "the store has one itself");
        let readers = Arc::strong_count(&turn) - 1;
        let longest = pieces.iter().map(|piece| piece.len as usize).max().unwrap_or(1);
        let ahead = (READS_BYTES / longest / readers).clamp(1, READS_AHEAD);
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

/// Says where in the object the bytes are that are lost.
fn located(error: BackendError, piece: Piece) -> BackendError {
    let BackendError::Lost(why) = error else { return error };
    let last = piece.at + u64::from(piece.len) - 1;
    BackendError::Lost(format!(
        "bytes {}-{last} of this object, or some of them, are lost ({why}); `ebb verify --lost` lists what is lost of all objects",
        piece.at
    ))
}

/// Compares extents that are read whole with their checksums.
#[derive(Default)]
struct Check {
    sum: CrcOfBlocks,
}

impl Check {
    /// Checks the next piece's bytes. An extent's last piece is not passed on if the extent is wrong.
    fn take<B>(&mut self, of: &Reader<B>, piece: Piece, data: Summed) -> Result<Bytes, NameError> {
        debug_assert_eq!(data.bytes.len(), piece.len as usize, "a piece is read whole");
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
