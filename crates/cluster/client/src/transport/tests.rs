use super::*;
use ebb_types::frame::WIRE_VERSION;
use ebb_types::{ServerId, frame::MAGIC};
use rustix::net::sockopt;
use tokio::io::AsyncWriteExt;

const CLUSTER: u64 = 0xebb;

fn secret(byte: u8) -> Secret {
    Secret::from_bytes(&[byte; 32]).unwrap()
}

fn meta() -> Identity {
    Identity { cluster: CLUSTER, party: Party::Meta }
}

fn server() -> Identity {
    Identity { cluster: CLUSTER, party: Party::Server(ServerId(7)) }
}

async fn listener() -> (Listener, String) {
    let listener = Listener::bind("127.0.0.1:0", &secret(1), meta()).await.unwrap();
    let address = listener.address().unwrap().to_string();
    (listener, address)
}

async fn pair() -> (Connection, Connection) {
    let (listener, address) = listener().await;
    let secret = secret(1);
    let (called, caller) = tokio::join!(
        async { listener.accept().await.handshake().await.unwrap() },
        connect(&address, &secret, server())
    );
    (called, caller.unwrap())
}

/// A machine without power acknowledges nothing, and the kernel would repeat what was sent for a quarter of an hour.
#[tokio::test]
async fn either_end_gives_up_a_connection_of_which_nothing_is_acknowledged() {
    let (called, caller) = pair().await;
    for end in [&called, &caller] {
        let socket = end.sender.guard.shared.socket.as_ref();
        let limit = sockopt::tcp_user_timeout(socket).unwrap();
        assert_eq!(u128::from(limit), UNANSWERED.as_millis());
        assert!(sockopt::socket_keepalive(socket).unwrap(), "also of one that only waits for an answer");
        assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), SILENCE);
    }
}

/// A connection whose far end is a bare stream after its handshake.
async fn half_pair() -> (Connection, TcpStream) {
    let (listener, address) = listener().await;
    let caller = async {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        handshake::call(&mut stream, server(), &secret(1)).await.unwrap();
        stream
    };
    tokio::join!(async { listener.accept().await.handshake().await.unwrap() }, caller)
}

/// Outcomes of both sides of a handshake.
async fn meet(
    called: (u8, Identity),
    caller: (u8, Identity),
) -> (Result<Connection, TransportError>, Result<Connection, TransportError>) {
    let listener = Listener::bind("127.0.0.1:0", &secret(called.0), called.1).await.unwrap();
    let address = listener.address().unwrap().to_string();
    let secret = secret(caller.0);
    tokio::join!(async { listener.accept().await.handshake().await }, connect(&address, &secret, caller.1))
}

#[tokio::test]
async fn large_payloads_begin_at_a_page() {
    let (called, caller) = pair().await;
    let Connection { mut receiver, .. } = called;
    for len in [1, PAGED_PAYLOAD - 1, PAGED_PAYLOAD, 1 << 20, (1 << 20) + 1] {
        caller.sender.send(kind::PEER, 0, &(), pattern(len)).unwrap();
        let payload = receiver.next().await.unwrap().unwrap().payload;
        assert_eq!(payload, pattern(len));
        assert!(len < PAGED_PAYLOAD || payload.as_ptr().addr().is_multiple_of(PAGE), "{len}");
    }
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| (at * 31 % 251) as u8).collect::<Vec<_>>().into()
}

#[tokio::test]
async fn both_sides_learn_who_the_other_is() {
    let (called, caller) = pair().await;
    assert_eq!(called.peer, server());
    assert_eq!(caller.peer, meta());
}

#[tokio::test]
async fn an_ipv6_address_works() {
    let listener = Listener::bind("[::1]:0", &secret(1), meta()).await.unwrap();
    let address = listener.address().unwrap().to_string();
    assert!(address.starts_with("[::1]:"));
    let secret = secret(1);
    let (_, caller) = tokio::join!(
        async { listener.accept().await.handshake().await.unwrap() },
        connect(&address, &secret, server())
    );
    assert_eq!(caller.unwrap().peer, meta());
}

#[tokio::test]
async fn frames_of_all_sizes_arrive_in_order_and_whole() {
    let (called, mut caller) = pair().await;
    let sizes = [
        0,
        1,
        100,
        INLINE_PAYLOAD_MAX,
        INLINE_PAYLOAD_MAX + 1,
        READ_BUFFER - 1,
        READ_BUFFER,
        1 << 20,
        PAYLOAD_MAX,
    ];
    let bodies = [0, 1, READ_BUFFER - HEADER_BYTES, READ_BUFFER, 3 << 20];
    let sending = async {
        for round in 0..3 {
            for payload in sizes {
                for body in bodies {
                    let message = (round, pattern(body).to_vec());
                    called
                        .sender
                        .send_wait(kind::RAFT, payload as u64, &message, pattern(payload))
                        .await
                        .unwrap();
                }
            }
        }
        drop(called.sender);
    };
    let receiving = async {
        for round in 0..3 {
            for payload in sizes {
                for body in bodies {
                    let frame = caller.receiver.next().await.unwrap().unwrap();
                    let (id, message): (u64, (i32, Vec<u8>)) = frame.decode().unwrap();
                    assert_eq!((frame.kind, id, message.0), (kind::RAFT, payload as u64, round));
                    assert!(message.1 == pattern(body) && frame.payload == pattern(payload));
                }
            }
        }
        // Every frame was sent before the stream ended, and the large ones left no large buffer behind.
        assert!(caller.receiver.next().await.unwrap().is_none());
        assert!(
            caller.receiver.buffer.capacity() <= 2 * READ_BUFFER,
            "{}",
            caller.receiver.buffer.capacity()
        );
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn another_secret_is_refused_on_both_sides() {
    let (called, caller) = meet((1, meta()), (2, server())).await;
    assert!(matches!(called.unwrap_err(), TransportError::WrongSecret));
    assert!(matches!(caller.unwrap_err(), TransportError::WrongSecret));
}

#[tokio::test]
async fn another_cluster_is_refused_on_both_sides() {
    let other = Identity { cluster: 5, party: Party::Client };
    let (called, caller) = meet((1, meta()), (1, other)).await;
    assert!(matches!(called.unwrap_err(), TransportError::WrongCluster { own: CLUSTER, other: 5 }));
    assert!(matches!(caller.unwrap_err(), TransportError::WrongCluster { own: 5, other: CLUSTER }));
    let unknown = Identity { cluster: 0, party: Party::Client };
    let (called, caller) = meet((1, meta()), (1, unknown)).await;
    assert_eq!(caller.unwrap().peer.cluster, CLUSTER);
    assert!(called.is_ok());
}

#[tokio::test]
async fn strangers_and_other_releases_are_named() {
    let (listener, address) = listener().await;
    let mut http = TcpStream::connect(&address).await.unwrap();
    http.write_all(b"GET / HTTP/1.1\r\nHost: somewhere.example.org:9000\r\n\r\n").await.unwrap();
    let refused = listener.accept().await.handshake().await.unwrap_err();
    assert!(matches!(refused, TransportError::NotEbb));

    let mut future = TcpStream::connect(&address).await.unwrap();
    let mut hello = [0; 48];
    hello[..4].copy_from_slice(&MAGIC);
    hello[4] = WIRE_VERSION + 1;
    future.write_all(&hello).await.unwrap();
    let refused = listener.accept().await.handshake().await.unwrap_err();
    assert!(matches!(refused, TransportError::WireVersion { found } if found == WIRE_VERSION + 1));
    // The newer release learns our version, so that it can report the same.
    future.read_exact(&mut hello).await.unwrap();
    assert_eq!(hello[4], WIRE_VERSION);

    let mut gone = TcpStream::connect(&address).await.unwrap();
    gone.write_all(&MAGIC).await.unwrap();
    drop(gone);
    assert!(matches!(listener.accept().await.handshake().await.unwrap_err(), TransportError::HandshakeCut));
    drop(listener);
    let refused = connect(&address, &secret(1), server()).await.unwrap_err();
    assert!(matches!(refused, TransportError::Connect { address: at, .. } if at == address));
}

/// Thousands of idle connections once took all descriptors of a server, and its store with them.
#[tokio::test]
async fn a_crowd_of_silent_callers_is_bounded_and_keeps_no_caller_out() {
    let (listener, address) = listener().await;
    let called = async {
        loop {
            let incoming = listener.accept().await;
            tokio::spawn(incoming.handshake());
        }
    };
    let callers = async {
        let mut crowd = Vec::new();
        for _ in 0..150 {
            crowd.push(TcpStream::connect(&address).await.unwrap());
        }
        let caller = connect(&address, &secret(1), server()).await.expect("a place is made for it");
        assert_eq!(caller.peer, meta());
        let mut byte = Vec::new();
        crowd[0].read_to_end(&mut byte).await.expect("the first was closed");
        crowd.len()
    };
    tokio::select! {
        _ = called => unreachable!("it accepts for ever"),
        crowd = callers => assert_eq!(crowd, 150),
    }
}

#[tokio::test]
async fn a_recorded_handshake_proves_nothing_later() {
    let (listener, address) = listener().await;
    // A wire-tap between caller and listener.
    let tap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tap_address = tap.local_addr().unwrap().to_string();
    let recorded = async {
        let (mut near, _) = tap.accept().await.unwrap();
        let mut far = TcpStream::connect(&address).await.unwrap();
        let (mut from_caller, mut from_called) = (vec![0; 48 + 32], vec![0; 48 + 33]);
        near.read_exact(&mut from_caller[..48]).await.unwrap();
        far.write_all(&from_caller[..48]).await.unwrap();
        far.read_exact(&mut from_called[..48]).await.unwrap();
        near.write_all(&from_called[..48]).await.unwrap();
        near.read_exact(&mut from_caller[48..]).await.unwrap();
        far.write_all(&from_caller[48..]).await.unwrap();
        far.read_exact(&mut from_called[48..]).await.unwrap();
        near.write_all(&from_called[48..]).await.unwrap();
        from_caller
    };
    let secret = secret(1);
    let (called, caller, recorded) = tokio::join!(
        async { listener.accept().await.handshake().await },
        connect(&tap_address, &secret, server()),
        recorded
    );
    assert!(called.is_ok() && caller.is_ok());
    let mut replay = TcpStream::connect(&address).await.unwrap();
    replay.write_all(&recorded).await.unwrap();
    let refused = listener.accept().await.handshake().await.unwrap_err();
    assert!(matches!(refused, TransportError::WrongSecret));
}

#[tokio::test]
async fn a_proof_sent_back_to_its_maker_is_refused() {
    let mirror = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = mirror.local_addr().unwrap().to_string();
    let secret = secret(1);
    let echo = async {
        let (mut stream, _) = mirror.accept().await.unwrap();
        let (mut hello, mut proof) = ([0; 48], [0; 32]);
        stream.read_exact(&mut hello).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        stream.read_exact(&mut proof).await.unwrap();
        stream.write_all(&[0]).await.unwrap();
        stream.write_all(&proof).await.unwrap();
    };
    let (_, refused) = tokio::join!(echo, connect(&address, &secret, server()));
    assert!(matches!(refused.unwrap_err(), TransportError::WrongSecret));
}

#[tokio::test(start_paused = true)]
async fn the_handshake_has_a_deadline_on_both_sides() {
    let (listener, address) = listener().await;
    let _silent = TcpStream::connect(&address).await.unwrap();
    let refused = listener.accept().await.handshake().await.unwrap_err();
    assert!(matches!(refused, TransportError::HandshakeTimeout { .. }));
    // The listener's kernel accepts but the process does not, as if it were stopped.
    let refused = connect(&address, &secret(1), server()).await.unwrap_err();
    assert!(matches!(refused, TransportError::HandshakeTimeout { address: at, .. } if at == address));
}

#[tokio::test]
async fn damaged_oversized_and_truncated_frames_end_the_stream() {
    let good = frame::encode(kind::RAFT, 0, &(1u64, vec![7u8; 100]), 5000);
    let (mut called, mut stream) = half_pair().await;
    let mut oversized = good.clone();
    oversized[12..16].copy_from_slice(&(PAYLOAD_MAX as u32 + 1).to_le_bytes());
    stream.write_all(&oversized).await.unwrap();
    let error = called.receiver.next().await.unwrap_err();
    assert!(matches!(error, TransportError::Frame(FrameError::TooLarge { .. })));

    for cut in [1, HEADER_BYTES, good.len() - 1, good.len(), good.len() + 4999] {
        let (mut called, mut stream) = half_pair().await;
        let mut bytes = good.clone();
        bytes.resize(good.len() + 5000, 1);
        stream.write_all(&bytes[..cut]).await.unwrap();
        drop(stream);
        assert!(
            matches!(called.receiver.next().await.unwrap_err(), TransportError::Truncated),
            "cut at {cut}"
        );
    }

    let (mut called, mut stream) = half_pair().await;
    let mut damaged = frame::encode(kind::RAFT, 0, &(1u64, vec![7u8; 100]), 0);
    damaged[60] ^= 1;
    stream.write_all(&damaged).await.unwrap();
    let frame = called.receiver.next().await.unwrap().unwrap();
    assert!(matches!(frame.decode::<Vec<u8>>(), Err(FrameError::Checksum)));

    let (mut called, mut stream) = half_pair().await;
    stream.write_all(b"nonsense that is long enough").await.unwrap();
    let error = called.receiver.next().await.unwrap_err();
    assert!(matches!(error, TransportError::Frame(FrameError::Magic { .. })));
}

#[tokio::test]
async fn giving_up_waiting_for_a_frame_loses_nothing() {
    let (mut called, mut stream) = half_pair().await;
    let mut bytes = frame::encode(kind::RAFT, 0, &(1u64, vec![7u8; 100]), 100_000);
    let payload = pattern(100_000);
    bytes.extend_from_slice(&payload);
    for part in bytes.chunks(30_001) {
        // Polled once: it takes what is there, then is dropped.
        stream.write_all(part).await.unwrap();
        let dropped = tokio::select! {
            biased;
            frame = called.receiver.next() => frame.unwrap(),
            () = tokio::task::yield_now() => None,
        };
        assert!(dropped.is_none());
        if part.len() < 30_001 {
            break;
        }
        tokio::task::yield_now().await;
    }
    let frame = called.receiver.next().await.unwrap().unwrap();
    assert_eq!(frame.payload, payload);
}

#[tokio::test]
async fn a_full_queue_refuses_and_a_read_makes_room() {
    let (called, mut caller) = pair().await;
    let payload = pattern(PAYLOAD_MAX);
    let mut sent = 0;
    let refused = loop {
        match called.sender.send(kind::RAFT, sent, &(), payload.clone()) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, SendError::Full);
    assert!(called.sender.queued_bytes() <= QUEUE_BYTES_MAX + 1024);
    let sender = called.sender.clone();
    let waiting = tokio::spawn(async move { sender.send_wait(kind::RAFT, sent, &(), payload).await });
    for expected in 0..=sent {
        let frame = caller.receiver.next().await.unwrap().unwrap();
        assert_eq!(frame.decode::<()>().unwrap().0, expected);
    }
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn too_large_frames_are_refused_before_they_are_queued() {
    let (called, mut caller) = pair().await;
    let long = vec![0u8; BODY_MAX + 1];
    assert_eq!(called.sender.send(kind::RAFT, 0, &long, Bytes::new()), Err(SendError::TooLarge));
    assert_eq!(called.sender.send(kind::RAFT, 0, &(), pattern(PAYLOAD_MAX + 1)), Err(SendError::TooLarge));
    assert_eq!(called.sender.queued_bytes(), 0);
    called.sender.send(kind::RAFT, 3, &(), Bytes::new()).unwrap();
    assert_eq!(caller.receiver.next().await.unwrap().unwrap().decode::<()>().unwrap(), (3, ()));
}

#[tokio::test]
async fn closing_ends_both_sides_even_under_a_blocked_write() {
    let (mut called, mut caller) = pair().await;
    for id in 0..8 {
        called.sender.send(kind::RAFT, id, &(), pattern(PAYLOAD_MAX)).unwrap();
    }
    tokio::task::yield_now().await;
    assert!(called.sender.queued_bytes() > 0, "the kernel cannot hold it all");
    called.sender.close();
    assert!(called.receiver.next().await.is_ok_and(|frame| frame.is_none()));
    assert_eq!(called.sender.send(kind::RAFT, 0, &(), Bytes::new()), Err(SendError::Closed));
    while let Ok(Some(_)) = caller.receiver.next().await {}
    // The far end's writer notices too.
    drop(caller.receiver);
    assert_eq!(caller.sender.send(kind::RAFT, 0, &(), Bytes::new()), Err(SendError::Closed));
}
