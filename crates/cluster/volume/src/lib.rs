//! Volumes: block devices kept in the cluster.
//!
//! A volume's bytes are in the replicated chunks of one object, its **front**. A volume with a home in an erasure-coded
//! pool keeps there what is seldom written: the [mover] writes a whole **slice** of 1 MiB as an object of its
//! own, names that in the namespace, and frees the slice's blocks in the front. So an overwrite costs what it costs in
//! the replicated pool and wakes no parity server, and data at rest costs what it costs in the coded one. A device that
//! mixes both so is HP AutoRAID's idea; ECS² overwrites strips in place.
//!
//! Invariants:
//! - A block that the front has is the newest. Any other is in the slice's object; if there is none, it is zero.
//! - A slice's object is written once, before it is named, and deleted after another one is named.
//! - One process serves a volume ([`Owner`]). Blocks leave the front only up to the version that the
//!   slice's object was made from, so even a server that was taken over and does not know it yet removes nothing newer.
//!
//! - Requests that write the same block are carried out in order of arrival, whatever becomes of their callers
//!   ([`order`]).
//!
//! `docs/volumes.md` has the reasons.

mod backend;
mod error;
mod front;
mod io;
mod mover;
mod order;
mod owner;
mod slice;
mod state;
#[cfg(test)]
mod tests;
mod turns;

pub use backend::{Backend, PlantedBug};
pub use error::VolumeError;

use ebb_client::Client;
use ebb_types::{
    CHUNK_BYTES_MIN, CLAIMS_FROM, NAME_BYTES_MAX, NamespaceAnswer, NamespaceOp, NamespaceQuery, SLICE_BYTES,
    VolumeHome, VolumeMeta, VolumeStatus,
};
use owner::{Owner, ROUND};
use state::{HELD, Inner, commit, query, slices};
use std::sync::{Arc, Weak};
use tokio::time::sleep;

/// Chunks are whole slices, and have fewer numbers than this.
const SIZE_MAX: u64 = SLICE_BYTES as u64 * CLAIMS_FROM as u64;
const _: () = assert!(CHUNK_BYTES_MIN.is_multiple_of(SLICE_BYTES));

/// An open volume. Cheap to clone. End it with [`Volume::close`]: one that is only dropped stays claimed until its
/// silence is noticed.
#[derive(Clone)]
pub struct Volume<B = Client> {
    inner: Arc<Inner<B>>,
}

impl<B: Backend> Volume<B> {
    /// Creates a volume in the namespace. It is not open yet.
    pub async fn create(
        backend: &B,
        name: &str,
        size: u64,
        home: Option<VolumeHome>,
    ) -> Result<(), VolumeError> {
        if size > SIZE_MAX {
            return Err(VolumeError::TooLarge { size });
        }
        // Lists, URLs and metrics carry it.
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(fits) {
            return Err(VolumeError::Name(name.to_owned()));
        }
        let object = backend.allocate(1).await?;
        let name = name.to_owned();
        commit(backend, NamespaceOp::CreateVolume { name, size, object, home }).await
    }

    pub async fn status(backend: &B, name: &str) -> Result<VolumeStatus, VolumeError> {
        match query(backend, NamespaceQuery::Volume { name: name.to_owned() }).await? {
            NamespaceAnswer::Volume(status) => Ok(status),
            _ => Err(VolumeError::Nonsense),
        }
    }

    /// Opens a volume, which no other process may serve. If another process does, waits until it has been silent for
    /// long enough, or fails as soon as it gives a sign of life. `waiting` is called once before that wait.
    pub async fn open(backend: B, name: &str, waiting: impl FnOnce()) -> Result<Volume<B>, VolumeError> {
        let meta = Volume::status(&backend, name).await?.meta;
        let early = match backend::has(&backend, PlantedBug::ListFirst) {
            true => Some(slices(&backend, name).await?),
            false => None,
        };
        let owner = Owner::claim(&backend, name, backend.noted(meta.object), waiting).await?;
        let backend = backend.claimed(owner.number);
        backend.raise_claim(meta.object, meta.size).await?;
        // After the claim: the former owner has moved its last slice.
        let slices = match early {
            Some(slices) => slices,
            None => slices(&backend, name).await?,
        };
        let inner = Arc::new(Inner::new(backend, name, meta, owner, slices));
        let weak = Arc::downgrade(&inner);
        let mut tasks = vec![tokio::spawn(stay(weak.clone())).abort_handle()];
        if let Some(home) = inner.meta.home {
            tasks.push(tokio::spawn(mover::run(weak, home)).abort_handle());
        }
        inner.add_tasks(tasks);
        Ok(Volume { inner })
    }

    /// Ends serving the volume: another process may open it at once. Requests that are still running fail, and have
    /// ended by then.
    pub async fn close(self) -> Result<(), VolumeError> {
        self.end().await?;
        let name = self.inner.name.clone();
        commit(&self.inner.backend, NamespaceOp::ReleaseVolume { name }).await
    }

    /// Deletes the volume with all its data. After an error that follows the loss of its name, a gateway frees the
    /// rest.
    pub async fn delete(self) -> Result<(), VolumeError> {
        self.end().await?;
        let name = self.inner.name.clone();
        commit(&self.inner.backend, NamespaceOp::DeleteVolume { name }).await?;
        mover::free(&self.inner).await
    }

    async fn end(&self) -> Result<(), VolumeError> {
        self.inner.stop();
        self.inner.owner.end();
        // What was sent comes no later, or this process stays the owner until another one notes its claim.
        self.inner.within(HELD, self.flush()).await?;
        let unused = std::mem::take(&mut *self.inner.ids.lock().expect("nothing panics under this lock"));
        commit(&self.inner.backend, NamespaceOp::Close { packs: Vec::new(), unused }).await
    }

    /// Returns once another process has taken the volume over.
    pub async fn taken(&self) {
        self.inner.owner.lost().await;
    }

    pub fn size(&self) -> u64 {
        self.inner.meta.size
    }

    pub fn meta(&self) -> &VolumeMeta {
        &self.inner.meta
    }

    /// Bytes that are known to be in the front.
    pub fn front_bytes(&self) -> u64 {
        self.inner.front.bytes()
    }
}

/// Gives signs of life until the volume is closed or taken over.
async fn stay<B: Backend>(weak: Weak<Inner<B>>) {
    let mut pause = Some(ROUND);
    while let Some(until_next) = pause {
        sleep(until_next).await;
        let Some(volume) = weak.upgrade() else { return };
        pause = volume.owner.confirm(&volume.backend, &volume.name).await;
    }
}
