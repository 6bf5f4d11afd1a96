//! Moves objects to other pools as lifecycle rules say, in troughs of the load and at a bounded rate.
//!
//! An object is copied extent by extent to fresh ids, as a PUT would write them. Each copy must have the checksum that
//! was computed when the bytes were received (R14), which the bytes read must have, too. Then one step of the namespace
//! names the copies in place of what was copied, if the key still names that ([`NamespaceOp::Move`]); the old bytes
//! become garbage. So an object is where it was or where it goes, and two gateways that move the same object do no
//! harm. What a dead gateway had copied was leased to it, and is freed.

use crate::bytes::backend::{Backend, BackendError, Pool};
use crate::bytes::names::{NameError, Names};
use crate::bytes::place::Unnamed;
use crate::bytes::reader::Reader;
use crate::bytes::store::Store;
use crate::ops::rules::{Rule, class_by, may_move};
use crate::upkeep::expire::{Ruled, daily, page, rules_of_all};
use ebb_types::{Extent, Moment, NamespaceError, NamespaceOp, hold_the_same, kept_class};
use futures_util::StreamExt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How often the cluster is asked whether it is in a trough, while something is moved or waits for that.
const ASK: Duration = Duration::from_secs(15);
/// Objects moved concurrently: small ones share writes and commits.
pub(crate) const MOVES_AHEAD: usize = 4;

pub struct Mover<B> {
    pub(crate) backend: Arc<B>,
    pub(crate) names: Arc<Names<B>>,
    pub(crate) store: Arc<Store<B>>,
    bytes_per_second: u64,
    pace: Mutex<Pace>,
    /// Where in a page of keys this gateway begins: others begin elsewhere, so they do not copy the same objects.
    first: usize,
}

struct Pace {
    /// When the cluster was last in a trough.
    trough: Option<Moment>,
    /// When the next bytes may move.
    next: Instant,
}

/// What the rules say about one bucket.
struct Plan {
    bucket: String,
    rules: Vec<Rule>,
    now_millis: u64,
}

impl<B: Backend> Mover<B> {
    pub fn new(
        backend: Arc<B>,
        names: Arc<Names<B>>,
        store: Arc<Store<B>>,
        bytes_per_second: u64,
    ) -> Mover<B> {
        debug_assert!(bytes_per_second > 0, "nothing moves in no time");
        let pace = Mutex::new(Pace { trough: None, next: Instant::now() });
        let first = RandomState::new().hash_one(()) as usize;
        Mover { backend, names, store, bytes_per_second, pace, first }
    }

    /// Where in a page of keys it begins, instead of anywhere.
    pub fn beginning_at(self, first: usize) -> Mover<B> {
        Mover { first, ..self }
    }

    /// Runs until the gateway ends.
    pub async fn run(self) {
        let mover = &self;
        let round = |now| async move {
            mover.round(now).await?;
            mover.compact().await.map(drop)
        };
        daily(&mover.names, "move objects", round).await;
    }

    /// Moves what has to move in all buckets, as of `now_millis` since 1970. Returns how many objects were moved.
    pub async fn round(&self, now_millis: u64) -> Result<u64, NameError> {
        let mut moved = 0;
        for Ruled { bucket, rules, .. } in rules_of_all(&self.names).await? {
            let plan = Plan { bucket, rules, now_millis };
            for prefix in plan.rules.iter().filter_map(Rule::moves_below) {
                let some = self.move_below(&plan, prefix).await?;
                if some > 0 {
                    tracing::info!(
                        objects = some,
                        bucket = plan.bucket,
                        prefix,
                        "lifecycle rules moved objects"
                    );
                }
                moved += some;
            }
        }
        Ok(moved)
    }

    async fn move_below(&self, plan: &Plan, prefix: &str) -> Result<u64, NameError> {
        let (mut moved, mut after) = (0, String::new());
        loop {
            let page = page(&self.names, &plan.bucket, prefix, after).await?;
            let due = page.keys.into_iter().filter(|object| may_move(&plan.rules, object, plan.now_millis));
            let mut due: Vec<String> = due.map(|object| object.key).collect();
            let first = self.first.checked_rem(due.len()).unwrap_or(0);
            due.rotate_left(first);
            let moves = futures_util::stream::iter(due).map(|key| self.move_one(plan, key));
            let mut moves = std::pin::pin!(moves.buffer_unordered(MOVES_AHEAD));
            while let Some(outcome) = moves.next().await {
                moved += u64::from(outcome?);
            }
            match page.next {
                Some(next) => after = next,
                None => return Ok(moved),
            }
        }
    }

    /// Returns whether the object was moved. Fails if there is no point in continuing with others.
    async fn move_one(&self, plan: &Plan, key: String) -> Result<bool, NameError> {
        self.await_trough().await?;
        go_on(self.move_object(plan, &key).await, &plan.bucket, &key)
    }

    async fn move_object(&self, plan: &Plan, key: &str) -> Result<bool, NameError> {
        let reader = Reader::open(&self.store, &self.names, &plan.bucket, key).await?;
        let meta = &reader.meta;
        let class = class_by(&plan.rules, key, meta, plan.now_millis);
        let Some(class) = class.filter(|class| kept_class(&meta.headers) != Some(class)) else {
            return Ok(false);
        };
        let Some(was) = meta.extents.first().copied() else { return Ok(false) };
        let Some(pool) = self.backend.pools().into_iter().find(|pool| pool.name == class) else {
            return Err(BackendError::Failed(format!("the cluster has no pool {class}")).into());
        };
        let (mut copies, mut start) = (Vec::with_capacity(meta.extents.len()), 0);
        for extent in &meta.extents {
            copies.push(self.copy(&reader, extent, start..start + extent.len, &pool).await?);
            start += extent.len;
        }
        let extents: Vec<Extent> = copies.into_iter().flat_map(Unnamed::take).collect();
        debug_assert!(hold_the_same(&extents, &meta.extents), "a move changes no byte");
        debug_assert!(
            extents.iter().all(|e| e.object.pool() == pool.id),
            "an object is where its class says"
        );
        let (bucket, key, class) = (plan.bucket.clone(), key.to_owned(), class.to_owned());
        self.names.commit(NamespaceOp::Move { bucket, key, was, extents, class }).await?;
        Ok(true)
    }

    /// Copies one extent, which is this range of the object.
    pub(crate) async fn copy(
        &self,
        reader: &Arc<Reader<B>>,
        extent: &Extent,
        range: Range<u64>,
        pool: &Pool,
    ) -> Result<Unnamed, NameError> {
        let mut writer = self.store.writer(pool, Some(extent.len));
        let mut pieces = std::pin::pin!(reader.clone().stream(reader.pieces(range)));
        while let Some(data) = pieces.next().await.transpose()? {
            sleep_until(self.turn(data.len())).await;
            while !self.is_in_trough().await? {
                // It may be hours: the memory is for those who put objects.
                writer.flush().await?;
                sleep(ASK).await;
            }
            writer.push(&data).await?;
        }
        let (mut copy, _) = writer.finish().await?;
        if !hold_the_same(&[*copy.own()], &[*extent]) {
            let why = "what was read to be moved is not what was written";
            return Err(BackendError::Failed(why.into()).into());
        }
        Ok(copy)
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().expect("no panic under this lock")
    }

    /// When the next `bytes` may move.
    fn turn(&self, bytes: usize) -> Instant {
        let mut pace = self.pace();
        let turn = pace.next.max(Instant::now());
        pace.next = turn + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        turn
    }

    pub(crate) async fn await_trough(&self) -> Result<(), NameError> {
        while !self.is_in_trough().await? {
            sleep(ASK).await;
        }
        Ok(())
    }

    async fn is_in_trough(&self) -> Result<bool, NameError> {
        let now = self.backend.now();
        if self.pace().trough.is_some_and(|at| now.since(at) < ASK) {
            return Ok(true);
        }
        let is_in_trough = self.backend.is_in_trough().await?;
        if is_in_trough {
            self.pace().trough = Some(now);
        }
        Ok(is_in_trough)
    }
}

/// What became of one object, if others can be moved all the same.
pub(crate) fn go_on(outcome: Result<bool, NameError>, bucket: &str, key: &str) -> Result<bool, NameError> {
    use NamespaceError::{NoSuchBucket, NoSuchKey, PreconditionFailed};
    match outcome {
        // It was replaced or deleted meanwhile.
        Err(NameError::Refused(NoSuchBucket | NoSuchKey | PreconditionFailed) | NameError::Replaced) => {
            Ok(false)
        }
        Err(NameError::Backend(BackendError::Failed(why) | BackendError::Lost(why))) => {
            tracing::warn!(bucket, key, why, "an object stays where it is");
            Ok(false)
        }
        outcome => outcome,
    }
}
