//! Measures the transport over loopback: round trips per second and CPU time per round trip, both sides in
//! one process, each on its own thread. `cargo run --profile dist -p ebb-client --example round_trips`

use bytes::Bytes;
use ebb_client::Secret;
use ebb_client::transport::{Connection, Identity, Listener, Party, connect, kind};
use ebb_types::{
    ChunkId, ChunkOp, ClientReply, ClientRequest, Epoch, GroupId, RequestId, Version, piece_crcs,
};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn secret() -> Secret {
    Secret::from_bytes(&[7; 32]).expect("long enough")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Replies to every request until the caller disconnects, with `len` bytes to a read. Returns the CPU time used.
async fn answer(mut connection: Connection, len: usize) -> Duration {
    let payload = Bytes::from(vec![3; len]);
    let crcs = piece_crcs(0, &payload);
    let before = thread_cpu();
    while let Ok(Some(frame)) = connection.receiver.next().await {
        let (id, request) = frame.decode::<ClientRequest>().expect("our own frame");
        let (reply, bytes) = match request.op {
            ChunkOp::Read { .. } => (ClientReply::Data { crcs: crcs.clone() }, payload.clone()),
            _ => (ClientReply::Done { newest: Version::ZERO }, Bytes::new()),
        };
        connection.sender.send_wait(kind::CLIENT_REPLY, id, &reply, bytes).await.expect("the caller waits");
    }
    thread_cpu() - before
}

/// Keeps `depth` requests in flight until `count` are answered. Returns the CPU time used.
async fn ask(mut connection: Connection, op: ChunkOp, payload: Bytes, count: u64, depth: u64) -> Duration {
    let request = ClientRequest { group: GroupId(3), epoch: Epoch(9), since: Version::ZERO, claim: 0, op };
    let before = thread_cpu();
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        while sent < count && sent - answered < depth {
            sent += 1;
            let frame = connection.sender.send_wait(kind::CLIENT_REQUEST, sent, &request, payload.clone());
            frame.await.expect("the other side answers");
        }
        let frame = connection.receiver.next().await.expect("no error").expect("an answer");
        let (id, _) = frame.decode::<ClientReply>().expect("our own frame");
        answered += 1;
        assert_eq!(id, answered);
    }
    thread_cpu() - before
}

fn measure(name: &str, op: ChunkOp, count: u64, depth: u64) {
    let len = op.range().1 as usize;
    let (to_caller, address) = std::sync::mpsc::channel();
    let own = Identity { cluster: 1, party: Party::Meta };
    let server = std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = Listener::bind("127.0.0.1:0", &secret(), own).await.expect("a port");
            to_caller.send(listener.address().expect("it listens").to_string()).expect("it waits");
            answer(listener.accept().await.handshake().await.expect("the same secret"), len).await
        })
    });
    let address = address.recv().expect("it starts");
    let payload = if matches!(op, ChunkOp::Write { .. }) { Bytes::from(vec![5; len]) } else { Bytes::new() };
    let (caller, wall) = runtime().block_on(async {
        let connection = connect(&address, &secret(), Identity { cluster: 1, party: Party::Client }).await;
        let connection = connection.expect("the same secret");
        let started = Instant::now();
        (ask(connection, op, payload, count, depth).await, started.elapsed())
    });
    let called = server.join().expect("it ends");
    let per = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    println!(
        "{name:<18} depth {depth:>2}: {:>8.0} round trips/s, CPU per round trip: caller {:>6.1} us, called {:>6.1} us",
        count as f64 / wall.as_secs_f64(),
        per(caller),
        per(called),
    );
}

fn main() {
    let chunk = ChunkId::default();
    let request = RequestId { client: u64::MAX / 3, seq: 1 << 20 };
    let read = |len| ChunkOp::Read { chunk, offset: 0, len, must_exist: false };
    let write = |len| {
        let crcs = piece_crcs(0, &vec![5; len as usize]);
        ChunkOp::Write { chunk, offset: 0, len, request, crcs }
    };
    for depth in [1, 8, 32] {
        measure("read 100 B", read(100), 100_000, depth);
        measure("read 4 KiB", read(4096), 100_000, depth);
        measure("write 4 KiB", write(4096), 100_000, depth);
        measure("read 1 MiB", read(1 << 20), 5_000, depth);
        measure("write 1 MiB", write(1 << 20), 5_000, depth);
    }
    let (mut target, source) = (vec![0u8; 1 << 20], vec![1u8; 1 << 20]);
    let before = thread_cpu();
    for _ in 0..5_000 {
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
    }
    println!(
        "for comparison: copying 1 MiB in memory takes {:.1} us",
        (thread_cpu() - before).as_secs_f64() * 1e6 / 5e3
    );
}
