//! The client against small fake servers on loopback, under tokio's paused clock: time passes only when
//! all tasks are idle.

mod client;
mod coded;

use bytes::Bytes;
use ebb_client::transport::{Identity, Listener, Party, Sender, kind};
use ebb_client::{Client, ClientConfig, Secret};
use ebb_types::*;
use std::sync::{Arc, Mutex};
use tokio::time::Instant;

const CLUSTER: u64 = 77;
const CHUNK: ChunkId = ChunkId { object: ObjectId(1), index: 0 };

fn secret() -> Secret {
    Secret::from_bytes(b"a secret of the tests").unwrap()
}

fn params() -> ClusterParams {
    ClusterParams {
        cluster: CLUSTER,
        instance: 1,
        chunk_bytes: 8 << 20,
        replicas: 3,
        groups: 1,
        lease_millis: 2000,
    }
}

fn entry(epoch: u32, primary: Option<u16>) -> GroupEntry {
    GroupEntry { epoch: Epoch(epoch), primary: primary.map(ServerId), ..GroupEntry::unknown() }
}

fn delta(from: u64, to: u64, entry: GroupEntry) -> MapDelta {
    MapDelta { from, to, groups: vec![(GroupId(0), entry)], ..MapDelta::default() }
}

/// What a fake does with a request.
enum Then<R> {
    Answer(R, Bytes),
    Silence,
    Close,
}

type Seen<Q> = Arc<Mutex<Vec<(Q, Instant)>>>;
type Open = Arc<Mutex<Vec<Sender>>>;

/// A fake process: its address, the requests it got, and its connections.
struct Fake<Q> {
    address: String,
    seen: Seen<Q>,
    open: Open,
    task: tokio::task::JoinHandle<()>,
}

impl<Q: Clone> Fake<Q> {
    /// `serve` accepts its callers, and notes what they ask and its ends of their connections.
    async fn start<F>(party: Party, serve: impl FnOnce(Listener, Seen<Q>, Open) -> F) -> Fake<Q>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let own = Identity { cluster: CLUSTER, party };
        let listener = Listener::bind("127.0.0.1:0", &secret(), own).await.unwrap();
        let address = listener.address().unwrap().to_string();
        let (seen, open) = (Seen::default(), Open::default());
        let task = tokio::spawn(serve(listener, seen.clone(), open.clone()));
        Fake { address, seen, open, task }
    }

    fn seen(&self) -> Vec<Q> {
        self.seen.lock().unwrap().iter().map(|(request, _)| request.clone()).collect()
    }

    fn push(&self, push: &MetaPush) {
        for sender in self.open.lock().unwrap().iter() {
            let _ = sender.send(kind::META_PUSH, 0, push, Bytes::new());
        }
    }

    fn stop(&self) {
        self.task.abort();
        self.open.lock().unwrap().drain(..).for_each(|sender| sender.close());
    }
}

/// Starts a fake that answers frames of kind `asked` with frames of kind `answered`. `think` gets the request, its
/// payload and the number of earlier requests.
async fn fake<Q, R>(
    party: Party,
    (asked, answered): (u8, u8),
    think: impl Fn(&Q, Bytes, usize) -> Then<R> + Send + Sync + 'static,
) -> Fake<Q>
where
    Q: Clone + Send + serde::de::DeserializeOwned + 'static,
    R: serde::Serialize + Send + Sync + 'static,
{
    let think = Arc::new(think);
    Fake::start(party, |listener, seen: Seen<Q>, open| async move {
        loop {
            let incoming = listener.accept().await;
            let (think, seen, open) = (think.clone(), seen.clone(), open.clone());
            tokio::spawn(async move {
                let Ok(mut connection) = incoming.handshake().await else { return };
                open.lock().unwrap().push(connection.sender.clone());
                while let Ok(Some(frame)) = connection.receiver.next().await {
                    assert_eq!(frame.kind, asked);
                    let (id, request) = frame.decode::<Q>().unwrap();
                    let before = {
                        let mut seen = seen.lock().unwrap();
                        seen.push((request.clone(), Instant::now()));
                        seen.len() - 1
                    };
                    match think(&request, frame.payload, before) {
                        Then::Answer(reply, payload) => {
                            connection.sender.send_wait(answered, id, &reply, payload).await.unwrap()
                        }
                        Then::Silence => {}
                        Then::Close => return connection.sender.close(),
                    }
                }
            });
        }
    })
    .await
}

async fn chunk_server(
    id: u16,
    think: impl Fn(&ClientRequest, Bytes, usize) -> Then<ClientReply> + Send + Sync + 'static,
) -> Fake<ClientRequest> {
    fake(Party::Server(ServerId(id)), (kind::CLIENT_REQUEST, kind::CLIENT_REPLY), think).await
}

async fn meta_server(
    think: impl Fn(&MetaRequest, usize) -> Then<MetaReply> + Send + Sync + 'static,
) -> Fake<MetaRequest> {
    fake(Party::Meta, (kind::META_REQUEST, kind::META_REPLY), move |request, _, before| {
        think(request, before)
    })
    .await
}

fn done() -> Then<ClientReply> {
    Then::Answer(ClientReply::Done { newest: Version::ZERO }, Bytes::new())
}

fn reply(reply: ClientReply) -> Then<ClientReply> {
    Then::Answer(reply, Bytes::new())
}

fn meta_reply(reply: MetaReply) -> Then<MetaReply> {
    Then::Answer(reply, Bytes::new())
}

/// The reply to a `Watch`: these servers, and server 1 as primary in epoch 3; version 10.
fn watch_reply(addresses: &[(u16, String)]) -> MetaReply {
    let servers = addresses
        .iter()
        .map(|(id, address)| ServerEntry {
            id: ServerId(*id),
            rack: RackId(0),
            pool: PoolId::REPLICATED,
            gear_group: GearGroup(0),
            address: address.clone(),
            state: ServerState::Awake,
            incarnation: Incarnation(1),
            store: ebb_types::StoreId(1),
        })
        .collect();
    let map = MapDelta {
        from: 0,
        to: 10,
        servers,
        groups: vec![(GroupId(0), entry(3, Some(1)))],
        ..MapDelta::default()
    };
    MetaReply::Watch { params: params(), map }
}

/// A metadata leader that knows these servers and answers only `Watch`.
async fn leader(servers: &[&Fake<ClientRequest>]) -> Fake<MetaRequest> {
    let addresses: Vec<_> = (1..).zip(servers).map(|(id, fake)| (id, fake.address.clone())).collect();
    meta_server(move |request, _| match request {
        MetaRequest::Watch { .. } => meta_reply(watch_reply(&addresses)),
        _ => Then::Silence,
    })
    .await
}

async fn client(meta: &[&Fake<MetaRequest>]) -> Client {
    let addresses = meta.iter().map(|fake| fake.address.clone()).collect();
    Client::connect(ClientConfig::new(addresses, secret())).await.unwrap()
}

/// The reply to a read at `offset`.
fn data(offset: u32, bytes: Vec<u8>) -> Then<ClientReply> {
    Then::Answer(ClientReply::Data { crcs: piece_crcs(offset, &bytes) }, bytes.into())
}

fn request_of(request: &ClientRequest) -> RequestId {
    request.op.request().unwrap()
}
