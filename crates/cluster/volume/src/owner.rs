//! One process serves a volume at a time.
//!
//! It claims the volume in the namespace, and again every [`ROUND`]: that is its sign of life. Another process may take
//! the volume over after it has seen the same sign for [`SILENCE`]. A server whose claim was not confirmed for
//! [`TRUST`] completes no request until it is: it stops before another one may begin. By then a request that it sent
//! has ended too: the client library gives up after 30 s.

use crate::backend::Backend;
use crate::error::VolumeError;
use crate::{Inner, commit};
use ebb_types::{NamespaceError, NamespaceOp, VolumeOwner};
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

const ROUND: Duration = Duration::from_secs(10);
/// Pause after a claim that could not be sent.
const RETRY: Duration = Duration::from_secs(1);
pub(crate) const TRUST: Duration = Duration::from_secs(25);
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// How often a waiting process looks for a sign of life.
const LOOK: Duration = Duration::from_secs(5);
/// For this long a request waits for a confirmation.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// Confirmed; sent at this time.
    Held {
        since: Instant,
    },
    Lost,
}

pub(crate) struct Owner {
    claim: watch::Sender<Claim>,
}

impl Owner {
    /// Claims a volume. See [`crate::Volume::open`].
    pub async fn claim<B: Backend>(
        backend: &B,
        name: &str,
        waiting: impl FnOnce(),
    ) -> Result<Owner, VolumeError> {
        let claim = |from: Option<VolumeOwner>| NamespaceOp::ClaimVolume { name: name.to_owned(), from };
        let mut waiting = Some(waiting);
        let mut seen: Option<(VolumeOwner, Instant)> = None;
        loop {
            let sent = Instant::now();
            let silent = seen.filter(|(_, since)| sent.duration_since(*since) >= SILENCE);
            let in_use = match commit(backend, claim(silent.map(|(owner, _)| owner))).await {
                Ok(()) => return Ok(Owner { claim: watch::Sender::new(Claim::Held { since: sent }) }),
                Err(VolumeError::Refused(NamespaceError::VolumeInUse(owner))) => owner,
                Err(error) => return Err(error),
            };
            match seen {
                None => seen = Some((in_use, Instant::now())),
                Some((owner, _)) if owner == in_use => {}
                Some(_) => return Err(VolumeError::InUse(in_use)),
            }
            waiting.take().into_iter().for_each(|waiting| waiting());
            sleep(LOOK).await;
        }
    }

    /// Returns once this process is sure to serve the volume.
    pub async fn sure(&self) -> Result<(), VolumeError> {
        let mut claims = self.claim.subscribe();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match *claims.borrow_and_update() {
                Claim::Lost => return Err(VolumeError::Taken),
                Claim::Held { since } if since.elapsed() < TRUST => return Ok(()),
                Claim::Held { .. } => {}
            }
            // The sender is `self`.
            if timeout_at(deadline, claims.changed()).await.is_err() {
                return Err(VolumeError::Unconfirmed(PATIENCE));
            }
        }
    }

    pub async fn lost(&self) {
        // Cannot fail: the sender is `self`.
        let _ = self.claim.subscribe().wait_for(|claim| *claim == Claim::Lost).await;
    }

    /// Fails if this process is known not to serve the volume any more.
    pub fn still_claims(&self) -> Result<(), VolumeError> {
        match *self.claim.borrow() {
            Claim::Held { .. } => Ok(()),
            Claim::Lost => Err(VolumeError::Taken),
        }
    }

    pub fn end(&self) {
        self.claim.send_replace(Claim::Lost);
    }
}

/// Gives signs of life until the volume is closed or taken over.
pub(crate) async fn stay<B: Backend>(weak: Weak<Inner<B>>) {
    let mut pause = ROUND;
    loop {
        sleep(pause).await;
        let Some(volume) = weak.upgrade() else { return };
        let sent = Instant::now();
        let claim = NamespaceOp::ClaimVolume { name: volume.name.clone(), from: None };
        pause = match commit(&volume.backend, claim).await {
            Ok(()) => {
                volume.owner.claim.send_replace(Claim::Held { since: sent });
                ROUND
            }
            Err(VolumeError::Refused(error)) => {
                tracing::error!(volume = volume.name, %error, "this process no longer serves the volume");
                return volume.owner.end();
            }
            Err(error) => {
                tracing::warn!(volume = volume.name, %error, "cannot confirm that this process serves the volume; will retry");
                RETRY
            }
        };
    }
}
