//! Renews the gateway's leases, and ends those of gateways that fell silent.
//!
//! A task of its own: the janitor waits for chunk servers, which may hang, and what is being written would lose its
//! lease meanwhile. It watches only while there are leases: an idle cluster stays idle.
//!
//! Nobody's silence counts while this task itself hears nothing: without a metadata leader no gateway can renew, and
//! the first that reaches the next one would end all others. So would one whose machine was suspended.

use crate::bytes::backend::Backend;
use crate::bytes::names::{NameError, Names};
use crate::bytes::store::Store;
use crate::upkeep::due;
use ebb_types::{Moment, NamespaceAnswer, NamespaceOp, NamespaceQuery, ObjectId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// While any gateway holds leases: how often they are checked, and this gateway's leases renewed.
const ROUND: Duration = Duration::from_secs(15);
/// A gateway that was silent for this long has ended, or lost its leases as if it had.
pub const SILENCE: Duration = Duration::from_secs(60);

const _: () = assert!(2 * ROUND.as_millis() < SILENCE.as_millis(), "who misses one round has not ended");

pub struct Leases<B> {
    backend: Arc<B>,
    names: Arc<Names<B>>,
    store: Arc<Store<B>>,
    /// Something may have been leased.
    leased: Arc<Notify>,
    /// The janitor's cue, if nothing else gives it one.
    garbage: Option<Arc<Notify>>,
    round_at: Option<Instant>,
    /// When the namespace last answered.
    heard: Option<Moment>,
    /// Runs that hold leases: their stamp, and since when it is unchanged.
    runs: BTreeMap<u64, (u64, Moment)>,
}

impl<B: Backend> Leases<B> {
    pub fn new(backend: Arc<B>, names: Arc<Names<B>>, store: Arc<Store<B>>, leased: Arc<Notify>) -> Self {
        // An earlier run may have left some.
        let round_at = Some(Instant::now());
        Leases { backend, names, store, leased, garbage: None, round_at, heard: None, runs: BTreeMap::new() }
    }

    /// Beside a volume's server: nothing of what others do passes through it, so it never stops looking, and has the
    /// janitor look, too.
    pub fn alone(self, garbage: Arc<Notify>) -> Self {
        Leases { garbage: Some(garbage), ..self }
    }

    /// Never returns.
    pub async fn run(mut self) {
        let leased = self.leased.clone();
        loop {
            tokio::select! {
                // The same run gives the same order: the fault search repeats it.
                biased;
                () = leased.notified() => {
                    self.round_at.get_or_insert_with(|| Instant::now() + ROUND);
                }
                () = due(self.round_at) => self.round().await,
            }
        }
    }

    /// Returns unneeded leases, signals that this gateway is alive, and ends the runs of gateways that are not.
    async fn round(&mut self) {
        self.round_at = Some(Instant::now() + ROUND);
        let holds = self.store.give_back().await;
        if let Err(error) = self.end_silent_runs(holds).await {
            tracing::warn!(%error, "cannot maintain leases; will retry");
            return;
        }
        match &self.garbage {
            Some(garbage) => garbage.notify_one(),
            None if !holds && self.runs.is_empty() => self.round_at = None,
            None => {}
        }
    }

    async fn end_silent_runs(&mut self, holds: bool) -> Result<(), NameError> {
        if holds {
            let alive = NamespaceOp::Lease { first: ObjectId(0), count: 0, bytes: 0 };
            self.names.commit(alive).await?;
        }
        let NamespaceAnswer::Runs(present) = self.names.query(NamespaceQuery::Runs).await? else {
            return Ok(());
        };
        let before = std::mem::take(&mut self.runs);
        let now = self.backend.now();
        let hears = self.heard.is_some_and(|heard| now.since(heard) <= 2 * ROUND);
        self.heard = Some(now);
        for (run, stamp) in present {
            let known = before.get(&run).filter(|(old, _)| *old == stamp && hears);
            let since = known.map_or(now, |(_, since)| *since);
            if now.since(since) < SILENCE {
                self.runs.insert(run, (stamp, since));
                continue;
            }
            debug_assert!(known.is_some(), "only silence that this task heard ends a run");
            tracing::info!(
                "a gateway or a volume's server has been silent for {SILENCE:?}: data it wrote in vain is being freed"
            );
            self.names.commit(NamespaceOp::EndRun { run, stamp }).await?;
        }
        Ok(())
    }
}
