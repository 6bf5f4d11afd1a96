//! What a gateway consists of: its store, its names, and the owners of buckets, objects and uploads.

use crate::bytes::backend::Backend;
use crate::bytes::names::Names;
use crate::bytes::store::Store;
use crate::http::rights::Keys;
use crate::ops::bucket::Buckets;
use crate::ops::multipart::Uploads;
use crate::ops::objects::Objects;
use crate::upkeep::expire;
use crate::upkeep::janitor::Janitor;
use crate::upkeep::leases::Leases;
use crate::upkeep::moves::Mover;
use ebb_types::Extent;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// State shared by all requests.
pub struct Gateway<B> {
    pub backend: Arc<B>,
    pub names: Arc<Names<B>>,
    pub store: Arc<Store<B>>,
    pub keys: Keys,
    pub buckets: Arc<Buckets<B>>,
    pub objects: Objects<B>,
    pub uploads: Uploads<B>,
}

impl<B: Backend> Gateway<B> {
    /// Also starts what frees garbage and renews leases, on `tasks`.
    pub fn start(backend: Arc<B>, keys: Keys, tasks: &mut JoinSet<()>) -> Gateway<B> {
        let Base { store, names, janitor, leases, .. } = Base::new(&backend);
        tasks.spawn(janitor.run());
        tasks.spawn(leases.run());
        let buckets = Arc::new(Buckets::new(backend.clone(), names.clone()));
        let objects = Objects::new(backend.clone(), names.clone(), store.clone(), buckets.clone());
        let uploads = Uploads::new(backend.clone(), names.clone(), store.clone(), buckets.clone());
        Gateway { backend, names, store, keys, buckets, objects, uploads }
    }

    /// What moves its objects to other pools.
    pub fn mover(&self, bytes_per_second: u64) -> Mover<B> {
        Mover::new(self.backend.clone(), self.names.clone(), self.store.clone(), bytes_per_second)
    }
}

/// What every program has that writes objects' bytes.
pub struct Base<B> {
    pub store: Arc<Store<B>>,
    pub names: Arc<Names<B>>,
    pub janitor: Janitor<B>,
    pub leases: Leases<B>,
    /// The janitor's cue.
    pub garbage: Arc<Notify>,
}

impl<B: Backend> Base<B> {
    pub fn new(backend: &Arc<B>) -> Base<B> {
        let (discards, discarded): (mpsc::UnboundedSender<Vec<Extent>>, _) = mpsc::unbounded_channel();
        let (garbage, leased) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let names = Arc::new(Names::new(backend.clone(), discards.clone(), garbage.clone()));
        let store = Arc::new(Store::new(backend.clone(), names.clone(), discards));
        let leases = Leases::new(backend.clone(), names.clone(), store.clone(), leased.clone());
        let janitor = Janitor::new(backend.clone(), names.clone(), discarded, garbage.clone(), leased);
        Base { store, names, janitor, leases, garbage }
    }
}

/// Starts what carries out the lifecycle rules.
pub fn run_beside<B: Backend>(
    gateway: &Gateway<B>,
    most: u64,
    mover: Option<Mover<B>>,
    tasks: &mut JoinSet<()>,
) {
    let names = gateway.names.clone();
    tasks.spawn(async move {
        let names = &*names;
        let round = |now| expire::clear_out(names, now, most);
        expire::daily(names, "remove objects", round).await;
    });
    if let Some(mover) = mover {
        tasks.spawn(mover.run());
    }
}
