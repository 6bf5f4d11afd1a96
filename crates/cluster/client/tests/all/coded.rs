//! Chunks of an erasure-coded pool: a client and the servers of a set.

use super::*;
use ebb_client::{ClientError, Summed};
use std::collections::{BTreeMap, BTreeSet};

const POOL: PoolId = PoolId(3);
const SET: SetId = SetId(0);
const DATA: usize = 4;
const SERVERS: usize = 6;

fn shape() -> Shape {
    Shape::new(DATA as u8, 2).unwrap()
}

fn chunk() -> ChunkId {
    ChunkId { object: ObjectId(1).in_pool(POOL), index: 0 }
}

/// Server n + 1 is the server of column n.
fn set(epoch: u32, away: &[usize]) -> SetEntry {
    let state = |n| if away.contains(&n) { SlotState::Away { since: Epoch(2) } } else { SlotState::InSync };
    let column = |n: usize| Column { server: ServerId(n as u16 + 1), state: state(n) };
    let columns = (0..SERVERS).map(column).collect();
    SetEntry { pool: POOL, shape: shape(), epoch: Epoch(epoch), hibernates_since: None, columns }
}

/// What the servers of the set have.
#[derive(Default)]
struct Disks {
    /// The configuration that each server has adopted.
    known: BTreeMap<ServerId, SetEntry>,
    /// The blocks of each column.
    blocks: BTreeMap<(GroupId, u32), Vec<u8>>,
    /// Which column's writes and deletions were taken under which epoch.
    taken: BTreeSet<(Epoch, usize, &'static str)>,
}

impl Disks {
    fn answer(&mut self, me: ServerId, request: &ClientRequest, payload: &Bytes) -> Then<ClientReply> {
        let (of, column) = request.group.column().expect("a column's group");
        assert_eq!(of, SET);
        let own = self.known[&me].clone();
        let newer = request.epoch > own.epoch;
        if request.epoch < own.epoch || (!newer && own.targets(chunk())[column] != Some(me)) {
            return reply(ClientReply::SetMoved { set: SET, entry: own });
        }
        let (offset, len) = request.op.range();
        let block = |n: u32| (request.group, n);
        let range = offset / 4096..(offset + len).div_ceil(4096);
        match &request.op {
            ChunkOp::Read { .. } => {
                let blocks = range.flat_map(|n| self.blocks.get(&block(n)).expect("it was written").clone());
                let blocks: Vec<u8> = blocks.collect();
                let from = offset as usize % 4096;
                return data(offset, blocks[from..from + len as usize].to_vec());
            }
            ChunkOp::Write { crcs, .. } => {
                assert!(offset.is_multiple_of(4096) && len.is_multiple_of(4096) && len > 0);
                assert_eq!(*crcs, piece_crcs(offset, payload));
                for (n, bytes) in range.zip(payload.chunks(4096)) {
                    self.blocks.insert(block(n), bytes.to_vec());
                }
                self.taken.insert((request.epoch, column, "write"));
            }
            ChunkOp::Zero { .. } => {
                range.for_each(|n| drop(self.blocks.insert(block(n), vec![0; 4096])));
                self.taken.insert((request.epoch, column, "zero"));
            }
            ChunkOp::Delete { .. } => {
                self.taken.insert((request.epoch, column, "delete"));
            }
            ChunkOp::Look { .. } => unreachable!("clients do not look into a column"),
        }
        reply(ClientReply::Done { newest: Version { epoch: request.epoch, seq: 1 } })
    }
}

struct Cluster {
    disks: Arc<Mutex<Disks>>,
    /// Dropping them ends them.
    servers: Vec<Fake<ClientRequest>>,
    meta: Fake<MetaRequest>,
    client: Client,
}

/// A set whose servers know `entries`; the metadata service knows `map`.
async fn cluster(map: SetEntry, entries: impl Fn(usize) -> SetEntry) -> Cluster {
    let known = (0..SERVERS).map(|n| (ServerId(n as u16 + 1), entries(n))).collect();
    let disks = Arc::new(Mutex::new(Disks { known, ..Disks::default() }));
    let mut servers = Vec::new();
    for n in 1..=SERVERS as u16 {
        let disks = disks.clone();
        let think = move |request: &ClientRequest, payload: Bytes, _| {
            disks.lock().unwrap().answer(ServerId(n), request, &payload)
        };
        servers.push(chunk_server(n, think).await);
    }
    let addresses: Vec<_> = (1..).zip(&servers).map(|(id, fake)| (id, fake.address.clone())).collect();
    let pool = PoolEntry {
        id: POOL,
        name: "cold".into(),
        shape: shape(),
        parity_debt: ParityDebt::Segment,
        parity_buffer_bytes: 1 << 30,
        hibernate_after_millis: None,
        rebuild_bytes_per_second: None,
        awake_parity: 0,
        sets: vec![SET],
    };
    let meta = meta_server(move |request, _| {
        let (MetaRequest::Watch { .. }, MetaReply::Watch { params, map: delta }) =
            (request, watch_reply(&addresses))
        else {
            return Then::Silence;
        };
        let map = MapDelta { pools: vec![pool.clone()], sets: vec![(SET, map.clone())], ..delta };
        meta_reply(MetaReply::Watch { params, map })
    })
    .await;
    let client = client(&[&meta]).await;
    Cluster { disks, servers, meta, client }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 3 + n / 5000) as u8).collect()
}

const ROW: usize = DATA * 16 * 1024;

#[tokio::test(start_paused = true)]
async fn what_is_written_in_rows_is_read_in_any_ranges() {
    let cluster = cluster(set(1, &[]), |_| set(1, &[])).await;
    let client = &cluster.client;
    assert_eq!(client.pool("cold").map(|pool| pool.id), Some(POOL));
    assert!(client.pool("warm").is_none() && client.pools().len() == 1);
    let whole = bytes(3 * ROW + 5 * 4096 + 100);
    client.write(chunk(), 2 * ROW as u32, whole.clone().into()).await.unwrap();
    let requests: usize = cluster.servers.iter().map(|server| server.seen().len()).sum();
    assert_eq!(requests, SERVERS + 3, "one per column, and zeroes where columns are shorter");
    let start = 2 * ROW as u32;
    for (from, to) in
        [(0, whole.len()), (0, 1), (5000, 5001), (16_000, 17_000), (4096, 3 * ROW), (70_001, 200_002)]
    {
        let Summed { bytes, crcs } =
            client.read_written(chunk(), start + from as u32, (to - from) as u32).await.unwrap();
        assert!(bytes == whole[from..to], "{from} to {to}");
        assert_eq!(crcs, piece_crcs(start + from as u32, &bytes));
    }
    assert_eq!(client.read(chunk(), 0, 0).await.unwrap(), Bytes::new());
    let seen = cluster.servers[0].seen();
    let whole_column = ChunkOp::Read { chunk: chunk(), offset: 2 * 16384, len: 4 * 16384, must_exist: true };
    assert!(seen.iter().any(|request| request.op == whole_column), "one read for a whole column: {seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_across_a_change_is_sent_again_to_all_that_took_it_before() {
    // Servers 1 to 3 take it under epoch 1; the others know already that both parity servers are away.
    let asleep = set(2, &[4, 5]);
    let cluster = cluster(set(1, &[]), |n| if n < 3 { set(1, &[]) } else { set(2, &[4, 5]) }).await;
    let whole = bytes(ROW + 10_000);
    cluster.client.write(chunk(), 0, whole.clone().into()).await.unwrap();
    let taken = cluster.disks.lock().unwrap().taken.clone();
    for (column, target) in asleep.targets(chunk()).iter().enumerate() {
        assert!(taken.contains(&(Epoch(2), column, "write")), "column {column} at {target:?}: {taken:?}");
        let shorter = (1..DATA).contains(&column);
        assert_eq!(taken.contains(&(Epoch(2), column, "zero")), shorter, "column {column}: {taken:?}");
    }
    assert!(taken.iter().any(|(epoch, _, _)| *epoch == Epoch(1)), "some took it before: {taken:?}");
    assert!(cluster.client.read(chunk(), 0, whole.len() as u32).await.unwrap() == whole);
    cluster.client.delete(chunk()).await.unwrap();
    let taken = cluster.disks.lock().unwrap().taken.clone();
    assert_eq!(taken.iter().filter(|(_, _, what)| *what == "delete").count(), 8, "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn extra_strips_are_not_waited_for_when_parity_is_back() {
    let cluster = cluster(set(1, &[5]), |_| set(2, &[])).await;
    cluster.client.write(chunk(), 0, bytes(ROW).into()).await.unwrap();
    let taken = cluster.disks.lock().unwrap().taken.clone();
    assert!((0..SERVERS).all(|column| taken.contains(&(Epoch(2), column, "write"))), "{taken:?}");
    assert_eq!(taken.len(), SERVERS);
}

#[tokio::test(start_paused = true)]
async fn the_extra_and_parity_strips_of_a_write_give_back_what_a_lost_server_had() {
    let cluster = cluster(set(1, &[4, 5]), |_| set(1, &[4, 5])).await;
    let whole = bytes(2 * ROW);
    cluster.client.write(chunk(), 0, whole.clone().into()).await.unwrap();
    let disks = cluster.disks.lock().unwrap();
    let strip = |column: usize| {
        let group = GroupId::of_column(SET, column);
        (0..8).flat_map(|n| disks.blocks[&(group, n)].clone()).collect::<Vec<u8>>()
    };
    let strips: Vec<Vec<u8>> = (0..8).map(strip).collect();
    let codes = ebb_erasure::Codes::new(shape());
    let code = codes.of(set(1, &[]).turn(chunk()));
    // Without two data servers, and all that they keep.
    let targets = set(1, &[4, 5]).targets(chunk());
    let lost = [Some(ServerId(1)), Some(ServerId(3))];
    let left = (0..8).filter(|n| !lost.contains(&targets[*n]));
    let present: Vec<(usize, &[u8])> = left.map(|n| (n, &strips[n][..])).collect();
    let (mut one, mut three) = (vec![0; 32768], vec![0; 32768]);
    code.recover(&present, &[0, 2], &mut [&mut one, &mut three]).unwrap();
    assert!(one == strips[0] && three == strips[2]);
    assert!(one[..16384] == whole[..16384]);
}

#[tokio::test(start_paused = true)]
async fn what_a_coded_chunk_cannot_do_is_refused_before_it_is_sent() {
    let cluster = cluster(set(1, &[]), |_| set(1, &[])).await;
    let client = &cluster.client;
    let write = async |offset: u32| client.write(chunk(), offset, bytes(4096).into()).await.unwrap_err();
    let inside = write(4096).await;
    assert!(matches!(inside, ClientError::InsideRow { offset: 4096, row_bytes: 65536, .. }), "{inside}");
    let outside = write(8 << 20).await;
    assert!(matches!(outside, ClientError::Chunk { why: ChunkError::OutOfRange, .. }), "{outside}");
    let zero = client.zero(chunk(), 0, 4096).await.unwrap_err();
    assert!(matches!(zero, ClientError::Immutable { .. }), "{zero}");
    let nowhere = ChunkId { object: ObjectId(1).in_pool(PoolId(9)), index: 0 };
    let nowhere = client.read(nowhere, 0, 1).await.unwrap_err();
    assert!(
        matches!(nowhere, ClientError::NoPool { .. }) && nowhere.to_string().contains("pool-9"),
        "{nowhere}"
    );
    assert!(cluster.servers.iter().all(|server| server.seen().is_empty()));
    assert_eq!(cluster.meta.seen().len(), 1);
}
