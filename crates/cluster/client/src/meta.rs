//! The connection to the metadata leader: one task that finds it, follows the map, and moves on to the next
//! leader.
//!
//! While the connection stands the task only waits: every change of the map is pushed. It is the
//! only one that connects; a caller that finds the leader silent or deposed closes the connection, and the
//! task moves on to the next.
//!
//! A network may part the client from the leader alone. A leader that a member named and that was not reached is asked
//! through the next member that names it: that one passes everything on. The direct way comes first.

use crate::error::ClientError;
use crate::link::Lost;
use crate::shared::{Leader, MetaLink, Shared};
use crate::transport::{Connection, Frame, Receiver, TransportError, connect, kind};
use bytes::Bytes;
use ebb_client_core::Trouble;
use ebb_types::{MetaFailure, MetaPush, MetaReply, MetaRequest, Moment};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a metadata server may be silent before another is asked. Longer than a commit takes on a slow
/// disk.
pub(crate) const META_TRY: Duration = Duration::from_secs(2);
/// Bounds of the pause between two tries of a request.
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(100);
/// Bounds of the pause between two rounds of connecting.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Why a connection to a metadata server ended.
struct Ended {
    trouble: Trouble,
    /// The configuration is wrong.
    refused: Option<Arc<TransportError>>,
    /// It was a connection to the leader.
    led: bool,
    /// Reported address of the leader.
    leader: Option<String>,
}

impl Ended {
    fn early(trouble: Trouble) -> Ended {
        Ended { trouble, refused: None, led: false, leader: None }
    }

    fn by_transport(error: TransportError, led: bool) -> Ended {
        let error = Arc::new(error);
        let refused = is_refusal(&error).then(|| error.clone());
        Ended { trouble: Trouble::NoConnection(error), refused, led, leader: None }
    }
}

/// A metadata server that answered.
struct Answered {
    link: Arc<MetaLink>,
    receiver: Receiver,
    first: MetaReply,
}

/// Keeps a connection to the metadata leader. Ends only by being aborted.
pub(crate) async fn follow(shared: Arc<Shared>) {
    let addresses = &shared.config.meta;
    assert!(!addresses.is_empty(), "a client without addresses is refused");
    let mut next = addresses.len() - 1;
    let mut misses = 0;
    let mut pause = PAUSE_MIN;
    let mut hint: Option<String> = None;
    let mut unreached: Option<String> = None;
    loop {
        let is_named = hint.is_some();
        let address = hint.take().unwrap_or_else(|| {
            next = (next + 1) % addresses.len();
            addresses[next].clone()
        });
        let started = Instant::now();
        let ended = match greet(&shared, &address).await {
            Ok(member) => serve(&shared, member, &mut unreached).await,
            Err(ended) => {
                if is_named && ended.refused.is_none() {
                    unreached = Some(address.clone());
                }
                ended
            }
        };
        let refused = ended.refused.map(|error| ClientError::Refused { address, error });
        shared.leader.send_replace(Leader::Searched { last: ended.trouble, refused });
        let said = shared.hint().take();
        hint = ended.leader.or(said);
        if started.elapsed() > PAUSE_MAX && ended.led {
            (misses, pause) = (0, PAUSE_MIN);
        }
        // The first round has no pauses.
        misses += 1;
        if misses > addresses.len() {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Errors that persist until the configuration changes.
fn is_refusal(error: &TransportError) -> bool {
    use TransportError::{NoKey, NotEbb, RoleRefused, WireVersion, WrongCluster, WrongSecret};
    matches!(
        error,
        NotEbb | WireVersion { .. } | WrongCluster { .. } | WrongSecret | NoKey { .. } | RoleRefused { .. }
    )
}

/// Connects to one metadata server and asks it for the map.
async fn greet(shared: &Shared, address: &str) -> Result<Answered, Ended> {
    let own = shared.identity(shared.config.party());
    let Connection { sender, mut receiver, .. } =
        match timeout(META_TRY, connect(address, &shared.config.secret, own)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(Ended::by_transport(error, false)),
            Err(_) => return Err(Ended::early(Trouble::NoAnswer)),
        };
    let link = Arc::new(MetaLink::new(sender));
    let first = ask_for_map(shared, &link, &mut receiver).await?;
    Ok(Answered { link, receiver, first })
}

/// Asks for the map on a connection on which nothing else is under way.
async fn ask_for_map(shared: &Shared, link: &MetaLink, receiver: &mut Receiver) -> Result<MetaReply, Ended> {
    link.tell(kind::META_REQUEST, &shared.question());
    match timeout(META_TRY, receiver.next()).await {
        Ok(Ok(Some(frame))) => match frame.decode::<MetaReply>() {
            Ok((_, reply)) => Ok(reply),
            Err(error) => Err(Ended::by_transport(error.into(), false)),
        },
        Ok(Ok(None)) => Err(Ended::early(Trouble::Lost)),
        Ok(Err(error)) => Err(Ended::by_transport(error, false)),
        Err(_) => Err(Ended::early(Trouble::NoAnswer)),
    }
}

/// Stays connected to a member as long as it leads, or passes on to a leader that was `unreached`.
async fn serve(shared: &Arc<Shared>, member: Answered, unreached: &mut Option<String>) -> Ended {
    let Answered { link, mut receiver, mut first } = member;
    if matches!(&first, MetaReply::NotLeader { leader } if leader.is_some() && *leader == *unreached) {
        link.tell(kind::META_RELAY, &());
        first = match ask_for_map(shared, &link, &mut receiver).await {
            Ok(reply) => reply,
            Err(ended) => return ended,
        };
    } else if matches!(first, MetaReply::Watch { .. }) {
        *unreached = None;
    }
    match first {
        MetaReply::Watch { params, map } => {
            shared.learn(params, &map);
        }
        MetaReply::NotLeader { leader } => return Ended { leader, ..Ended::early(Trouble::NoLeader) },
        MetaReply::Failed(why) => return Ended::early(Trouble::Meta(why)),
        _ => return Ended::early(Trouble::Nonsense),
    }
    shared.leader.send_replace(Leader::Found(link.clone()));
    let outcome = link.run(&mut receiver, kind::META_REPLY, |frame| pushed(shared, &link, frame)).await;
    match outcome {
        Ok(()) => Ended { led: true, ..Ended::early(Trouble::Lost) },
        Err(error) => Ended::by_transport(error, true),
    }
}

/// Handles a frame that no caller waits for: a push, or the reply to a request for the map.
fn pushed(shared: &Shared, link: &MetaLink, frame: Frame) -> Result<(), TransportError> {
    let fitted = match frame.kind {
        kind::META_PUSH => match frame.decode::<MetaPush>()?.1 {
            MetaPush::Map(delta) => shared.update(|view| view.apply(&delta)),
            MetaPush::Params(params) => {
                shared.update(|view| view.set_params(params));
                true
            }
            // The rest is for chunk servers.
            _ => true,
        },
        kind::META_REPLY => match frame.decode::<MetaReply>()?.1 {
            MetaReply::Watch { params, map } => shared.learn(params, &map),
            _ => true,
        },
        _ => true,
    };
    if !fitted {
        link.tell(kind::META_REQUEST, &shared.question());
    }
    Ok(())
}

impl Shared {
    /// Sends a request to the current metadata leader, with retries until `deadline`.
    pub(crate) async fn ask_meta(
        &self,
        request: &MetaRequest,
        deadline: Moment,
    ) -> Result<MetaReply, ClientError> {
        self.ask_meta_counting(request, deadline).await.map(|(reply, _)| reply)
    }

    /// The same; also returns whether the request was sent before without an answer that says that nothing was done.
    pub(crate) async fn ask_meta_counting(
        &self,
        request: &MetaRequest,
        deadline: Moment,
    ) -> Result<(MetaReply, bool), ClientError> {
        let started = self.now();
        let mut pause = RETRY_MIN;
        let mut repeated = false;
        loop {
            let trouble = match self.find_leader(deadline).await {
                Err(last) => last,
                Ok(link) => match self.ask_once(&link, request, deadline).await {
                    Ok(MetaReply::Failed(why @ (MetaFailure::Refused(_) | MetaFailure::Full))) => {
                        return Err(ClientError::Meta(why));
                    }
                    Ok(MetaReply::Failed(why)) => {
                        repeated |= why == MetaFailure::Unknown;
                        Trouble::Meta(why)
                    }
                    Ok(MetaReply::NotLeader { leader }) => {
                        *self.hint() = leader;
                        link.close();
                        Trouble::NoLeader
                    }
                    Ok(reply) => return Ok((reply, repeated)),
                    Err(trouble) => {
                        repeated = true;
                        trouble
                    }
                },
            };
            let next = self.now() + pause;
            if next < deadline {
                sleep(pause).await;
            }
            // Also if the machine was suspended meanwhile.
            if next >= deadline || self.now() >= deadline {
                let (addresses, waited) = (self.config.meta.clone(), self.now().since(started));
                return Err(ClientError::NoMeta { addresses, waited, last: trouble });
            }
            self.tally.retries.fetch_add(1, Ordering::Relaxed);
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// One try. The connection to a silent leader is closed, so that the next try finds its successor.
    async fn ask_once(
        &self,
        link: &MetaLink,
        request: &MetaRequest,
        deadline: Moment,
    ) -> Result<MetaReply, Trouble> {
        let heard = link.heard();
        let until = self.clock.timer(deadline.min(self.now() + META_TRY));
        match timeout_at(until, link.request(kind::META_REQUEST, request, Bytes::new())).await {
            Ok(Ok((reply, _))) => Ok(reply),
            Ok(Err(Lost)) => Err(Trouble::Lost),
            Err(_) => {
                if link.heard() == heard {
                    link.close();
                }
                Err(Trouble::NoAnswer)
            }
        }
    }

    /// The connection to the leader; waits for one.
    async fn find_leader(&self, deadline: Moment) -> Result<Arc<MetaLink>, Trouble> {
        let mut leader = self.leader.subscribe();
        loop {
            let last = match &*leader.borrow_and_update() {
                Leader::Found(link) if !link.is_lost() => return Ok(link.clone()),
                Leader::Found(_) => Trouble::Lost,
                Leader::Searched { last, .. } => last.clone(),
            };
            if timeout_at(self.clock.timer(deadline), leader.changed()).await.is_err() {
                return Err(last);
            }
        }
    }

    /// Waits for the first leader. Returns early if the configuration is wrong, since a user is probably
    /// waiting for it.
    pub(crate) async fn first_leader(&self, deadline: Moment) -> Result<(), ClientError> {
        let started = self.now();
        let mut leader = self.leader.subscribe();
        loop {
            let last = match &*leader.borrow_and_update() {
                Leader::Found(_) => return Ok(()),
                Leader::Searched { refused: Some(error), .. } => return Err(error.clone()),
                Leader::Searched { last, .. } => last.clone(),
            };
            if timeout_at(self.clock.timer(deadline), leader.changed()).await.is_err() {
                let addresses = self.config.meta.clone();
                let waited = self.now().since(started);
                return Err(ClientError::NoMeta { addresses, waited, last });
            }
        }
    }
}
