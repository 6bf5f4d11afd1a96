//! How a chunk server is reached: by a call, or, where the network parts this client from it alone, through another
//! server, which passes everything on. Nobody fails over a server that all others reach.
//!
//! A connection on which a reply is awaited and nothing comes is doubted: one more call, on which nothing is asked,
//! tells whether the server is slow or is not reached any more. A slow one gets no request twice (R12). The connection
//! to one that is not reached is given up only when another server has reached it: one that nobody reaches is left to
//! the metadata service.

use crate::shared::{ChunkLink, Links, Shared};
use crate::transport::{Connection, Party, TransportError, connect, kind};
use bytes::Bytes;
use ebb_client_core::Trouble;
use ebb_types::{ServerId, ServerState};
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

/// A connection on which a reply is awaited and nothing came for this long is doubted.
const QUIET: Duration = Duration::from_millis(1500);
/// After this long without a sign of life, others are asked to call the server; they have as long. Together it is less
/// than a request waits for a connection (`look` of [`ebb_client_core::Patience`]).
const CALL: Duration = Duration::from_secs(2);
/// How many others are asked, one after the other: each has its part of the time.
const HELPERS: u32 = 2;
/// For how long a server that was not reached is called through others first.
const UNREACHED: Duration = Duration::from_secs(30);
/// How often a server that is called through another is called directly.
const RETURN: Duration = Duration::from_secs(5);

/// A fresh connection to a server.
struct Way {
    connection: Connection,
    /// Passes on what is sent on it.
    through: Option<ServerId>,
}

/// What another server says that is asked to pass on.
enum Helped {
    Reached(Box<Connection>),
    /// It passes on for as many as it can, and did not look.
    Full,
    /// It is not reached, does not reach the server, or passes nothing on.
    Not,
}

/// Why a call failed.
struct InVain {
    why: Trouble,
    /// There was no sign of life: the network may part this client from the server. A process that has ended refuses.
    silent: bool,
}

/// Whether the network, and not the other end, may be why.
fn is_silence(error: &TransportError) -> bool {
    use ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    match error {
        TransportError::HandshakeTimeout { .. } => true,
        TransportError::Connect { error, .. } => {
            matches!(error.kind(), HostUnreachable | NetworkUnreachable | TimedOut)
        }
        _ => false,
    }
}

/// Whether new requests go this way.
fn is_present(links: &Links, server: ServerId, link: &Arc<ChunkLink>) -> bool {
    let present = links.get(&server).and_then(|cell| cell.get());
    present.is_some_and(|present| Arc::ptr_eq(present, link))
}

impl Shared {
    pub(crate) async fn open(self: &Arc<Self>, server: ServerId) -> Result<Arc<ChunkLink>, Trouble> {
        let way = self.reach(server, None).await?;
        Ok(self.start(server, way))
    }

    /// Waits for a reply on a connection, and doubts the connection while nothing comes.
    pub(crate) async fn watch<T>(
        self: &Arc<Self>,
        server: ServerId,
        link: &Arc<ChunkLink>,
        reply: impl Future<Output = T>,
    ) -> T {
        let mut reply = pin!(reply);
        let mut before = link.link.heard();
        loop {
            if let Ok(reply) = timeout(QUIET, reply.as_mut()).await {
                return reply;
            }
            let heard = link.link.heard();
            if std::mem::replace(&mut before, heard) == heard {
                self.doubt(server, link);
            }
        }
    }

    /// In the background, and not too often however many wait.
    fn doubt(self: &Arc<Self>, server: ServerId, link: &Arc<ChunkLink>) {
        if link.doubted.swap(true, Ordering::Relaxed) {
            return;
        }
        let (shared, link) = (self.clone(), link.clone());
        tokio::spawn(async move {
            if let Some(way) = shared.another_way(server, &link).await {
                shared.replace(server, &link, way);
            }
            drop(shared);
            sleep(QUIET).await;
            link.doubted.store(false, Ordering::Relaxed);
        });
    }

    /// `None`: the present one leads to the server, which is slow, or none does.
    async fn another_way(&self, server: ServerId, link: &ChunkLink) -> Option<Way> {
        if let Some(helper) = link.through {
            let again = timeout(CALL, self.call_through(helper, server)).await;
            if matches!(again, Ok(Helped::Reached(_) | Helped::Full)) {
                return None;
            }
        }
        let way = self.reach(server, link.through).await.ok()?;
        (way.through.is_some() || link.through.is_some()).then_some(way)
    }

    /// Requests that wait on the former connection are sent again, under their ids (R16).
    fn replace(self: &Arc<Self>, server: ServerId, link: &Arc<ChunkLink>, way: Way) {
        let mut links = self.links();
        if is_present(&links, server, link) {
            let other = self.start(server, way);
            links.insert(server, Arc::new(OnceCell::new_with(Some(other))));
        }
        drop(links);
        link.link.close();
    }

    /// The next request opens another connection.
    fn leave(&self, server: ServerId, link: &Arc<ChunkLink>) {
        let mut links = self.links();
        if is_present(&links, server, link) {
            links.remove(&server);
        }
    }

    fn start(self: &Arc<Self>, server: ServerId, way: Way) -> Arc<ChunkLink> {
        let Way { connection: Connection { sender, mut receiver, .. }, through } = way;
        let link = Arc::new(ChunkLink::new(sender, through));
        let (shared, running) = (Arc::downgrade(self), link.clone());
        tokio::spawn(async move {
            let run = running.link.run(&mut receiver, kind::CLIENT_REPLY, |_| Ok(()));
            match through {
                // Requests on the connection see how it ended.
                None => drop(run.await),
                Some(helper) => tokio::select! {
                    _ = run => {}
                    () = until_left(shared, server, helper, &running) => {}
                },
            }
        });
        link
    }

    /// Calls a server, and has others call it if it gives no sign of life.
    async fn reach(&self, server: ServerId, not: Option<ServerId>) -> Result<Way, Trouble> {
        if self.is_unreached(server) {
            return self.reach_through_another(server, not).await.ok_or(Trouble::Unsent);
        }
        let patience = pin!(sleep(CALL));
        let mut direct = pin!(self.call(server));
        match timeout(CALL, direct.as_mut()).await {
            Ok(Ok(connection)) => return Ok(Way { connection, through: None }),
            Ok(Err(InVain { why, silent: true })) => {
                // A router may say so at once, and others are not to be asked with each try.
                patience.await;
                return self.reach_through_another(server, not).await.ok_or(why);
            }
            Ok(Err(InVain { why, silent: false })) => return Err(why),
            Err(_) => {}
        }
        // A server that is slow to answer a call still may.
        tokio::select! {
            biased;
            Ok(connection) = direct => Ok(Way { connection, through: None }),
            Some(way) = self.reach_through_another(server, not) => Ok(way),
            else => Err(Trouble::Unsent),
        }
    }

    fn is_unreached(&self, server: ServerId) -> bool {
        let since = self.unreached.since(server);
        since.is_some_and(|since| self.now().since(since) < UNREACHED)
    }

    async fn call(&self, server: ServerId) -> Result<Connection, InVain> {
        let failed = |why, silent| Err(InVain { why, silent });
        let address = self.view().map().servers.get(&server).map(|entry| entry.address.clone());
        let Some(address) = address else { return failed(Trouble::NoPrimary, false) };
        match connect(&address, &self.config.secret, self.identity(Party::Client)).await {
            Ok(connection) if connection.peer.party == Party::Server(server) => Ok(connection),
            Ok(_) => failed(Trouble::WrongServer, false),
            Err(error) => {
                let silent = is_silence(&error);
                failed(Trouble::NoConnection(Arc::new(error)), silent)
            }
        }
    }

    async fn reach_through_another(&self, server: ServerId, not: Option<ServerId>) -> Option<Way> {
        let mut way = None;
        for helper in self.helpers(server, not) {
            let helped = timeout(CALL / HELPERS, self.call_through(helper, server)).await;
            if let Ok(Helped::Reached(connection)) = helped {
                way = Some(Way { connection: *connection, through: Some(helper) });
                break;
            }
        }
        self.unreached.set(server, way.is_some().then(|| self.now()));
        way
    }

    /// Whom to ask to pass on to a server: some that are awake, and stay so.
    fn helpers(&self, server: ServerId, not: Option<ServerId>) -> Vec<ServerId> {
        let map = self.view().map().clone();
        if !map.is_live(server) {
            return Vec::new();
        }
        let others = map.servers.values().filter(|other| other.state == ServerState::Awake);
        let others = others.map(|other| other.id).filter(|other| *other != server && Some(*other) != not);
        let mut helpers: Vec<ServerId> = others.filter(|other| !self.is_unreached(*other)).collect();
        let turn = self.unreached.next_turn();
        if let Some(first) = turn.checked_rem(helpers.len() as u64) {
            helpers.rotate_left(first as usize);
        }
        helpers.truncate(HELPERS as usize);
        debug_assert!(!helpers.contains(&server), "it is what cannot be reached");
        helpers
    }

    async fn call_through(&self, helper: ServerId, server: ServerId) -> Helped {
        let Ok(mut connection) = self.call(helper).await else { return Helped::Not };
        if connection.sender.send(kind::CHUNK_RELAY, 0, &server, Bytes::new()).is_err() {
            return Helped::Not;
        }
        let Ok(Some(frame)) = connection.receiver.next().await else { return Helped::Not };
        match frame.decode::<ServerId>() {
            _ if frame.kind != kind::CHUNK_RELAY => Helped::Not,
            Ok((_, reached)) if reached == server => Helped::Reached(Box::new(connection)),
            Ok((_, itself)) if itself == helper => Helped::Full,
            _ => Helped::Not,
        }
    }

    /// Whether a server is reached by a call again.
    async fn is_back(&self, server: ServerId) -> bool {
        let is_back = timeout(CALL, self.call(server)).await.is_ok_and(|called| called.is_ok());
        self.unreached.set(server, (!is_back).then(|| self.now()));
        is_back
    }
}

/// Closes the connection through a helper when it is not needed any more: the server is reached by a call, the helper
/// is to sleep, or nothing is asked. What was asked on it is answered on it before.
async fn until_left(shared: Weak<Shared>, server: ServerId, helper: ServerId, link: &Arc<ChunkLink>) {
    loop {
        let before = link.link.heard();
        let goes = timeout(RETURN, until_it_goes(&shared, helper)).await.is_ok();
        let Some(shared) = shared.upgrade() else { break };
        let is_unused = link.link.is_idle() && link.link.heard() == before;
        if goes || shared.is_back(server).await || is_unused {
            shared.leave(server, link);
            break;
        }
    }
    // Who got it before may be about to ask.
    sleep(QUIET).await;
    while !link.link.is_idle() {
        sleep(QUIET).await;
    }
    link.link.close();
}

/// Returns when a server is not awake, or this client is gone.
async fn until_it_goes(shared: &Weak<Shared>, helper: ServerId) {
    let Some(mut changes) = shared.upgrade().map(|shared| shared.changes()) else { return };
    loop {
        let Some(map) = shared.upgrade().map(|shared| shared.view().map().clone()) else { return };
        let is_awake = map.servers.get(&helper).is_some_and(|entry| entry.state == ServerState::Awake);
        if !is_awake || changes.changed().await.is_err() {
            return;
        }
    }
}
