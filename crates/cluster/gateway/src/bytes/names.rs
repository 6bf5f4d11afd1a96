//! The gateway's access to the namespace: commits and lookups of concurrent requests travel together.

use crate::bytes::backend::{Backend, BackendError};
use crate::bytes::batch::{Batcher, Limits};
use ebb_types::{
    Extent, LOOKUPS_MAX, NamespaceAnswer, NamespaceDone, NamespaceError, NamespaceOp, NamespaceQuery,
    OPS_MAX, ObjectMeta, PART_NUMBER_MAX,
};
use futures_util::FutureExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Notify, mpsc};

/// Most ops in one command.
const COMMIT_OPS: usize = 256;

const _: () = assert!(COMMIT_OPS <= OPS_MAX, "the namespace refuses longer commands");
const _: () = assert!(PART_NUMBER_MAX as usize / 64 < COMMIT_OPS, "all parts of an upload fit a command");

/// Weight of an op within that limit: an upload may have 10,000 parts, and a command must fit one frame.
fn weight(op: &NamespaceOp) -> usize {
    match op {
        NamespaceOp::CompleteUpload { parts, .. } => 1 + parts.len() / 64,
        NamespaceOp::Move { extents, .. } => 1 + extents.len() / 64,
        _ => 1,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error(transparent)]
    Refused(#[from] NamespaceError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The bytes that were looked up may be freed by now.
    #[error("the object was replaced or deleted while it was read: send the request again")]
    Replaced,
}

impl NameError {
    /// As seen by code that writes data.
    pub fn into_backend(self) -> BackendError {
        match self {
            NameError::Backend(error) => error,
            NameError::Refused(why @ NamespaceError::NoSuchPool { .. }) => {
                BackendError::Failed(why.to_string())
            }
            NameError::Refused(why) => BackendError::Unavailable(why.to_string()),
            NameError::Replaced => BackendError::Unavailable(NameError::Replaced.to_string()),
        }
    }
}

pub struct Names<B> {
    backend: Arc<B>,
    /// How often the namespace has ended all leases because this gateway was silent for too long.
    losses: Arc<AtomicU64>,
    commits: Arc<Batcher<NamespaceOp, Result<NamespaceDone, NameError>>>,
    lookups: Arc<Batcher<(String, String), Result<ObjectMeta, NameError>>>,
}

impl<B: Backend> Names<B> {
    /// `discards` receives the data of refused puts; `garbage` is notified when there is garbage to free.
    pub fn new(backend: Arc<B>, discards: mpsc::UnboundedSender<Vec<Extent>>, garbage: Arc<Notify>) -> Self {
        let limits = Limits { running: 1, items: COMMIT_OPS, weight: COMMIT_OPS };
        let cluster = backend.clone();
        let losses = Arc::new(AtomicU64::new(0));
        let lost = losses.clone();
        let vain = discards.clone();
        let commits = Batcher::new(
            limits,
            weight,
            move |ops| {
                let (cluster, discards, garbage, lost) =
                    (cluster.clone(), discards.clone(), garbage.clone(), lost.clone());
                async move { commit(&*cluster, ops, &discards, &garbage, &lost).await }.boxed()
            },
            move |op| {
                // Fails only when the program ends.
                let _ = vain.send(named_data(&op));
            },
        );
        let limits = Limits { running: 1, items: LOOKUPS_MAX, weight: LOOKUPS_MAX };
        let cluster = backend.clone();
        let lookups = Batcher::new(
            limits,
            |_| 1,
            move |names| {
                let cluster = cluster.clone();
                async move { look_up(&*cluster, names).await }.boxed()
            },
            drop,
        );
        Names { backend, losses, commits, lookups }
    }

    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Something that was leased when there had been this many losses is lost. So is everything else that was leased by
    /// then: counted once.
    pub fn lose(&self, losses: u64) {
        debug_assert!(losses <= self.losses(), "it was leased after all losses that were counted then");
        let _ = self.losses.compare_exchange(losses, losses + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Carries out one op, unless its caller leaves before it is sent. The data it names belongs to the namespace from
    /// here on, or is discarded.
    pub async fn commit(&self, op: NamespaceOp) -> Result<NamespaceDone, NameError> {
        self.commits.submit(op).await
    }

    pub async fn object(&self, bucket: &str, key: &str) -> Result<ObjectMeta, NameError> {
        self.lookups.submit((bucket.to_owned(), key.to_owned())).await
    }

    /// The time since 1970 by which objects age. It is refused while clocks of the cluster disagree.
    pub async fn now(&self) -> Result<u64, NameError> {
        match self.query(NamespaceQuery::Now).await? {
            NamespaceAnswer::Now { unix_millis } => Ok(unix_millis),
            _ => Err(mismatch("query").into()),
        }
    }

    pub async fn query(&self, query: NamespaceQuery) -> Result<NamespaceAnswer, NameError> {
        Ok(self.backend.query(query).await??)
    }
}

async fn commit<B: Backend>(
    backend: &B,
    ops: Vec<NamespaceOp>,
    discards: &mpsc::UnboundedSender<Vec<Extent>>,
    garbage: &Notify,
    losses: &AtomicU64,
) -> Vec<Result<NamespaceDone, NameError>> {
    let named: Vec<Vec<Extent>> = ops.iter().map(named_data).collect();
    debug_assert!(named.iter().flatten().all(|extent| extent.len > 0), "an extent that is named has bytes");
    let leases = ops.iter().any(|op| matches!(op, NamespaceOp::Lease { count: 1.., .. }));
    let discard = |data: Vec<Extent>| {
        if !data.is_empty() {
            // Fails only when the program ends.
            let _ = discards.send(data);
        }
    };
    // Whether an op was carried out is unknown: data with a name then keeps it, the rest is given up. In a pack nothing
    // can be given up, as it is unknown which data has a name.
    let give_up = |data: Vec<Extent>| discard(data.into_iter().filter(|e| !e.shared).collect());
    let count = named.len();
    let reply = match backend.commit(ops).await {
        Ok(reply) if reply.results.len() == count => reply,
        Ok(_) => return failed(count, mismatch("ops")),
        Err(error) => {
            named.into_iter().for_each(give_up);
            return failed(count, error);
        }
    };
    for (result, data) in reply.results.iter().zip(named) {
        match result {
            Ok(_) => {}
            Err(NamespaceError::Expired) => give_up(data),
            Err(NamespaceError::NotLeased) if !data.is_empty() => {
                losses.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => discard(data),
        }
    }
    if reply.garbage > 0 || leases {
        garbage.notify_one();
    }
    reply.results.into_iter().map(|result| result.map_err(NameError::from)).collect()
}

/// The data that an op names.
fn named_data(op: &NamespaceOp) -> Vec<Extent> {
    match op {
        NamespaceOp::Put { meta, .. } => meta.extents.clone(),
        NamespaceOp::PutPart { part, .. } => part.extents.clone(),
        NamespaceOp::Move { extents, .. } => extents.clone(),
        NamespaceOp::Repack { to, .. } => vec![*to],
        _ => Vec::new(),
    }
}

fn mismatch(what: &str) -> BackendError {
    BackendError::Failed(format!("the namespace's reply does not match the {what}"))
}

fn failed<T>(count: usize, error: BackendError) -> Vec<Result<T, NameError>> {
    (0..count).map(|_| Err(error.clone().into())).collect()
}

async fn look_up<B: Backend>(
    backend: &B,
    names: Vec<(String, String)>,
) -> Vec<Result<ObjectMeta, NameError>> {
    let count = names.len();
    match backend.query(NamespaceQuery::Objects { names }).await {
        Ok(Ok(NamespaceAnswer::Objects(found))) if found.len() == count => {
            found.into_iter().map(|f| f.map_err(NameError::from)).collect()
        }
        Ok(Err(refused)) => (0..count).map(|_| Err(refused.clone().into())).collect(),
        Ok(Ok(_)) => failed(count, mismatch("query")),
        Err(error) => failed(count, error),
    }
}
