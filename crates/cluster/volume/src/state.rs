//! What an open volume consists of, and its words with the namespace.

use crate::backend::Backend;
use crate::error::VolumeError;
use crate::front::Front;
use crate::owner::Owner;
use crate::slice::Slice;
use crate::turns::Turns;
use ebb_types::{
    NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery, ObjectId, PAGE_MAX, SLICE_BYTES, VolumeMeta,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

/// A change of which a server may still carry out a part does not end (`ebb_client_core`: `Request`). What waits for
/// such a one, and is not begun, fails after this time.
pub(crate) const HELD: Duration = Duration::from_secs(60);

pub(crate) struct Inner<B> {
    pub backend: B,
    pub name: String,
    pub meta: VolumeMeta,
    pub owner: Owner,
    pub turns: Turns,
    slices: Mutex<BTreeMap<u32, Arc<Slice>>>,
    pub front: Front,
    /// Objects in the home pool that are leased and were not written to.
    pub ids: Mutex<Vec<ObjectId>>,
    /// Objects that were deleted and may still be in the namespace's garbage.
    pub former: Mutex<BTreeSet<ObjectId>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl<B> Drop for Inner<B> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<B> Inner<B> {
    /// `moved`: slices that have an object.
    pub fn new(
        backend: B,
        name: &str,
        meta: VolumeMeta,
        owner: Owner,
        moved: Vec<(u32, ObjectId)>,
    ) -> Inner<B> {
        let slice = |(number, object)| (number, Arc::new(Slice::new(number, Some(object))));
        Inner {
            backend,
            name: name.to_owned(),
            meta,
            owner,
            turns: Turns::default(),
            slices: Mutex::new(moved.into_iter().map(slice).collect()),
            front: Front::default(),
            ids: Mutex::default(),
            former: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Tasks that have begun, and end with the volume.
    pub fn add_tasks(&self, tasks: Vec<AbortHandle>) {
        self.tasks.lock().expect("nothing panics under this lock").extend(tasks);
    }

    /// Ends its tasks.
    pub fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("nothing panics under this lock"));
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Those that were touched, or that have an object.
    pub fn all_slices(&self) -> Vec<Arc<Slice>> {
        self.slices.lock().expect("nothing panics under this lock").values().cloned().collect()
    }

    /// Forgets a slice that has neither blocks in the front nor an object: most of a large volume is like that at
    /// first.
    pub fn drop_if_empty(&self, number: u32) {
        let mut slices = self.slices.lock().expect("nothing panics under this lock");
        // No other task has it, and none gets it while the lock is held.
        let unused = slices.get(&number).is_some_and(|slice| {
            let no_object = slice.object.try_read().is_ok_and(|object| object.is_none());
            Arc::strong_count(slice) == 1 && slice.is_known() && slice.count() == 0 && no_object
        });
        if unused {
            slices.remove(&number);
        }
    }

    pub fn slice(&self, number: u32) -> Arc<Slice> {
        debug_assert!(u64::from(number) < self.meta.slices(), "only slices of the volume are touched");
        let mut slices = self.slices.lock().expect("nothing panics under this lock");
        slices.entry(number).or_insert_with(|| Arc::new(Slice::new(number, None))).clone()
    }

    /// The length of a slice: the last one may be shorter.
    pub fn slice_len(&self, number: u32) -> u32 {
        let start = u64::from(number) * u64::from(SLICE_BYTES);
        (self.meta.size - start).min(SLICE_BYTES.into()) as u32
    }
}

impl<B: Backend> Inner<B> {
    /// What a change that has not ended holds up fails after this time.
    pub async fn within<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, VolumeError> {
        let clock = self.backend.clock();
        let done = timeout_at(clock.timer(clock.now() + patience), work).await;
        done.map_err(|_| VolumeError::HeldUp(patience))
    }
}

/// Sends one op to the namespace.
pub(crate) async fn commit<B: Backend>(backend: &B, op: NamespaceOp) -> Result<(), VolumeError> {
    backend.namespace(op).await?.map(drop).map_err(VolumeError::from)
}

pub(crate) async fn query<B: Backend>(
    backend: &B,
    query: NamespaceQuery,
) -> Result<NamespaceAnswer, VolumeError> {
    backend.query(query).await?.map_err(VolumeError::from)
}

/// All moved slices.
pub(crate) async fn slices<B: Backend>(backend: &B, name: &str) -> Result<Vec<(u32, ObjectId)>, VolumeError> {
    let mut all: Vec<(u32, ObjectId)> = Vec::new();
    loop {
        let after = all.last().map(|(slice, _)| *slice);
        let page = NamespaceQuery::Slices { name: name.to_owned(), after, limit: PAGE_MAX };
        let NamespaceAnswer::Slices { slices, more } = query(backend, page).await? else {
            return Err(VolumeError::Nonsense);
        };
        all.extend(slices);
        if !more {
            return Ok(all);
        }
    }
}

impl From<NamespaceError> for VolumeError {
    fn from(why: NamespaceError) -> VolumeError {
        match why {
            NamespaceError::VolumeTaken => VolumeError::Taken,
            why => VolumeError::Refused(why),
        }
    }
}
