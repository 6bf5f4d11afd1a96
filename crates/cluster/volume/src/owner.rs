//! One process serves a volume at a time.
//!
//! It claims the volume in the namespace, and again every [`ROUND`]: that is its sign of life. Another process may take
//! the volume over after it has seen the same sign for [`SILENCE`], and at once if the owner was a process of the same
//! machine that has ended. What a former owner still sends changes and reads nothing: every claim has a number, which
//! the new owner notes in each chunk group before it serves, and a primary refuses requests under an older one (R16).
//!
//! Which slices have moved, only the owner knows. So a server of a volume with a pool whose claim was not confirmed for
//! [`TRUST`] completes no request until it is: it stops before another one may begin. A volume without a pool is served
//! without confirmations for as long as no primary refuses. All of these times run on while the machine is suspended
//! ([`Clock`]).

use crate::backend::Backend;
use crate::error::VolumeError;
use ebb_client::Clock;
use ebb_types::{Extent, Moment, NamespaceDone, NamespaceError, NamespaceOp, VolumeOwner};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout_at};

pub(crate) const ROUND: Duration = Duration::from_secs(4);
/// Pause after a claim that could not be sent.
const RETRY: Duration = Duration::from_secs(1);
pub(crate) const TRUST: Duration = Duration::from_secs(9);
pub(crate) const SILENCE: Duration = Duration::from_secs(12);
// A sign of life comes before trust ends, and trust ends before another process may begin.
const _: () = assert!(ROUND.as_millis() < TRUST.as_millis() && TRUST.as_millis() < SILENCE.as_millis());
/// How often a waiting process looks for a sign of life.
const LOOK: Duration = Duration::from_secs(1);
/// For this long a request waits for a confirmation.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// Confirmed; sent at this time.
    Held {
        since: Moment,
    },
    Lost,
}

pub(crate) struct Owner {
    clock: Clock,
    claim: Mutex<Claim>,
    /// Those who wait for a change wake up in the order in which they came: the fault search repeats a run. A `watch`
    /// wakes them in any order.
    changed: Notify,
    /// Larger than those of all owners before.
    pub number: u64,
    noted: Extent,
}

impl Owner {
    /// Claims a volume. See [`crate::Volume::open`].
    pub async fn claim<B: Backend>(
        backend: &B,
        name: &str,
        noted: Extent,
        waiting: impl FnOnce(),
    ) -> Result<Owner, VolumeError> {
        let claim =
            |from: Option<VolumeOwner>| NamespaceOp::ClaimVolume { name: name.to_owned(), from, noted };
        let mut waiting = Some(waiting);
        let clock = backend.clock().clone();
        let mut seen: Option<(VolumeOwner, Moment)> = None;
        let mut ended = None;
        loop {
            let sent = clock.now();
            let silent = seen.filter(|(_, since)| sent.since(*since) >= SILENCE).map(|(owner, _)| owner);
            let in_use = match send(backend, claim(silent.or(ended))).await {
                Ok(number) => {
                    let claim = Mutex::new(Claim::Held { since: sent });
                    return Ok(Owner { clock, claim, changed: Notify::new(), number, noted });
                }
                Err(VolumeError::Refused(NamespaceError::VolumeInUse(owner))) => owner,
                Err(error) => return Err(error),
            };
            match seen {
                None => seen = Some((in_use, clock.now())),
                Some((owner, _)) if owner == in_use => {}
                Some(_) => return Err(VolumeError::InUse(in_use)),
            }
            if ended.is_none() && backend.has_ended(in_use.run) {
                ended = Some(in_use);
                continue;
            }
            waiting.take().into_iter().for_each(|waiting| waiting());
            sleep(LOOK).await;
        }
    }

    /// Returns once this process is sure to serve the volume.
    pub async fn sure(&self) -> Result<(), VolumeError> {
        let deadline = self.clock.now() + PATIENCE;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let claim = *self.known();
            match claim {
                Claim::Lost => return Err(VolumeError::Taken),
                Claim::Held { since } if self.clock.now().since(since) < TRUST => return Ok(()),
                Claim::Held { .. } => {}
            }
            if timeout_at(self.clock.timer(deadline), changed).await.is_err() {
                return Err(VolumeError::Unconfirmed(PATIENCE));
            }
        }
    }

    /// A sign of life. Returns the pause until the next one; `None`: the volume is lost.
    pub async fn confirm<B: Backend>(&self, backend: &B, volume: &str) -> Option<Duration> {
        let sent = self.clock.now();
        let claim = NamespaceOp::ClaimVolume { name: volume.to_owned(), from: None, noted: self.noted };
        match send(backend, claim).await {
            // It was given back or taken, and claimed again by this run: what was noted is not this claim.
            Ok(number) if number != self.number => self.end(),
            Ok(_) => {
                self.set(Claim::Held { since: sent });
                return Some(ROUND);
            }
            Err(VolumeError::Refused(error)) => {
                tracing::error!(volume, %error, "this process no longer serves the volume");
                self.end();
            }
            Err(error) => {
                tracing::warn!(volume, %error, "cannot confirm that this process serves the volume; will retry");
                return Some(RETRY);
            }
        }
        None
    }

    fn known(&self) -> MutexGuard<'_, Claim> {
        self.claim.lock().expect("nothing panics under this lock")
    }

    fn set(&self, claim: Claim) {
        *self.known() = claim;
        self.changed.notify_waiters();
    }

    pub async fn lost(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if *self.known() == Claim::Lost {
                return;
            }
            changed.await;
        }
    }

    /// Fails if this process is known not to serve the volume any more.
    pub fn still_claims(&self) -> Result<(), VolumeError> {
        match *self.known() {
            Claim::Held { .. } => Ok(()),
            Claim::Lost => Err(VolumeError::Taken),
        }
    }

    /// A chunk server may be the first to say that another process serves the volume.
    pub fn see(&self, error: &VolumeError) {
        if matches!(error, VolumeError::Taken) {
            self.end();
        }
    }

    pub fn end(&self) {
        self.set(Claim::Lost);
    }
}

/// Returns the number of the claim.
async fn send<B: Backend>(backend: &B, claim: NamespaceOp) -> Result<u64, VolumeError> {
    match backend.namespace(claim).await?? {
        NamespaceDone::Claimed(number) => Ok(number),
        _ => Err(VolumeError::Nonsense),
    }
}
