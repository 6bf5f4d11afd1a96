//! Requests of all kinds and what may happen to them.

use super::*;
use ebb_client::{ClientError, Trouble};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn requests_go_to_the_primary_with_its_epoch() {
    let server = chunk_server(1, |request, payload, _| match request.op {
        ChunkOp::Read { offset, len, .. } => data(offset, vec![9; len as usize]),
        ChunkOp::Write { len, .. }
            if payload.len() as u32 == len && payload.iter().all(|&byte| byte == 5) =>
        {
            done()
        }
        ChunkOp::Zero { .. } | ChunkOp::Delete { .. } => done(),
        _ => Then::Close,
    })
    .await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    assert_eq!(client.read(CHUNK, 100, 5000).await.unwrap(), vec![9; 5000]);
    client.write(CHUNK, 4096, vec![5; 70_000].into()).await.unwrap();
    client.zero(CHUNK, 0, 4096).await.unwrap();
    client.delete(CHUNK).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|request| request.epoch == Epoch(3) && request.group == GroupId(0)));
    assert_eq!(seen[0].op, ChunkOp::Read { chunk: CHUNK, offset: 100, len: 5000, must_exist: false });
    assert!(request_of(&seen[1]) != request_of(&seen[2]), "each request has an id of its own");
    assert_eq!(server.open.lock().unwrap().len(), 1, "one connection for all");
    let counters = client.counters();
    assert_eq!((counters.requests, counters.retries, counters.failures), (4, 0, 0));
    assert_eq!((client.params(), client.map().version), (params(), 10));
}

#[tokio::test(start_paused = true)]
async fn many_requests_share_a_connection_and_get_their_own_answers() {
    let server = chunk_server(1, |request, _, _| {
        let (offset, len) = request.op.range();
        data(offset, vec![offset as u8; len as usize])
    })
    .await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    let mut reads = tokio::task::JoinSet::new();
    for offset in 0..200u32 {
        let client = client.clone();
        reads.spawn(async move {
            let bytes = client.read(CHUNK, offset, 1 + offset * 50).await.unwrap();
            bytes.len() as u32 == 1 + offset * 50 && bytes.iter().all(|&byte| byte == offset as u8)
        });
    }
    assert!(reads.join_all().await.into_iter().all(|right| right));
    assert_eq!(server.open.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn moved_is_followed_at_once_under_the_same_request_id() {
    let old = chunk_server(1, |_, _, _| reply(ClientReply::Moved { entry: entry(4, Some(2)) })).await;
    let new = chunk_server(2, |_, payload, _| if payload == "abc" { done() } else { Then::Close }).await;
    let meta = leader(&[&old, &new]).await;
    let client = client(&[&meta]).await;
    let started = Instant::now();
    client.write(CHUNK, 0, "abc".into()).await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(request_of(&old.seen()[0]), request_of(&new.seen()[0]));
    assert_eq!(new.seen()[0].epoch, Epoch(4));
    client.write(CHUNK, 0, "abc".into()).await.unwrap();
    assert_eq!((old.seen().len(), new.seen().len()), (1, 2), "the entry is remembered");
    assert_eq!((client.counters().moved, client.counters().retries), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn moved_to_what_is_known_already_pauses() {
    let stale = entry(2, Some(2));
    let server = chunk_server(1, move |_, _, before| match before {
        0 => reply(ClientReply::Moved { entry: stale.clone() }),
        _ => done(),
    })
    .await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    let started = Instant::now();
    client.delete(CHUNK).await.unwrap();
    assert_eq!(client.map().groups[0].epoch, Epoch(3));
    assert!(started.elapsed() >= Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn retry_pauses_longer_each_time_and_keeps_the_request_id() {
    let server = chunk_server(1, |_, _, before| match before {
        0..4 => reply(ClientReply::Retry { why: Unready::Behind }),
        _ => done(),
    })
    .await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    let started = Instant::now();
    client.write(CHUNK, 0, "abc".into()).await.unwrap();
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(1 + 2 + 4 + 8) && took < Duration::from_millis(40), "{took:?}");
    let seen = server.seen();
    assert!(seen.len() == 5 && seen.iter().all(|request| request_of(request) == request_of(&seen[0])));
    assert_eq!(client.counters().retries, 4);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_served_fails_at_its_deadline_and_says_why() {
    let server = chunk_server(1, |_, _, _| reply(ClientReply::Retry { why: Unready::TooFewCopies })).await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    let started = Instant::now();
    let error = client.write(CHUNK, 0, "abc".into()).await.unwrap_err();
    assert!(matches!(
        error,
        ClientError::Unserved {
            group: GroupId(0),
            server: Some(ServerId(1)),
            last: Trouble::NotReady(Unready::TooFewCopies),
            ..
        }
    ));
    assert!(
        started.elapsed() > Duration::from_millis(29_890) && started.elapsed() <= Duration::from_secs(30)
    );
    let text = error.to_string();
    assert!(text.contains("group-0") && text.contains("server-1") && text.contains("ebb status"), "{text}");
    // Pauses grow to 100 ms: about 300 tries, not thousands.
    assert!((300..400).contains(&server.seen().len()), "{}", server.seen().len());
    assert_eq!(client.counters().failures, 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_for_good_is_not_retried() {
    let server = chunk_server(1, |_, _, _| reply(ClientReply::Failed { why: ChunkError::NoSpace })).await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    let error = client.write(CHUNK, 0, "abc".into()).await.unwrap_err();
    assert!(matches!(error, ClientError::Chunk { chunk: CHUNK, why: ChunkError::NoSpace }));
    assert_eq!(server.seen().len(), 1);
    let error = client.write(CHUNK, 1, vec![0; 4 << 20].into()).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLong { chunk: CHUNK }), "it touches 1025 blocks");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_made_again() {
    let server = chunk_server(1, |_, _, before| if before == 1 { Then::Close } else { done() }).await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    client.write(CHUNK, 0, "abc".into()).await.unwrap();
    client.write(CHUNK, 0, "def".into()).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(request_of(&seen[1]), request_of(&seen[2]));
    assert_ne!(request_of(&seen[0]), request_of(&seen[1]));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_primary_is_left_as_soon_as_the_map_names_another() {
    let stopped = chunk_server(1, |_, _, _| Then::Silence).await;
    let awake = chunk_server(2, |_, _, _| done()).await;
    let meta = leader(&[&stopped, &awake]).await;
    let client = client(&[&meta]).await;
    let started = Instant::now();
    let writing = tokio::spawn({
        let client = client.clone();
        async move { client.write(CHUNK, 0, "abc".into()).await }
    });
    sleep(Duration::from_millis(500)).await;
    // A newer epoch with the same primary does not end the try.
    meta.push(&MetaPush::Map(delta(10, 11, entry(4, Some(1)))));
    sleep(Duration::from_millis(100)).await;
    meta.push(&MetaPush::Map(delta(11, 12, entry(5, Some(2)))));
    writing.await.unwrap().unwrap();
    assert_eq!(started.elapsed(), Duration::from_millis(600));
    assert_eq!((stopped.seen().len(), awake.seen().len()), (1, 1));
    assert_eq!(request_of(&stopped.seen()[0]), request_of(&awake.seen()[0]));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_tried_again_on_a_new_connection() {
    let server = chunk_server(1, |_, _, before| if before == 0 { Then::Silence } else { done() }).await;
    let helper = helper().await;
    let meta = leader(&[&server, &helper]).await;
    let client = client(&[&meta]).await;
    let started = Instant::now();
    client.write(CHUNK, 0, "abc".into()).await.unwrap();
    let took = started.elapsed();
    // A slow server is waited for; one that sends nothing at all for three looks is not.
    assert!(took >= Duration::from_secs(15) && took < Duration::from_millis(15100), "{took:?}");
    // Until then it is only called, and nothing is asked: it is reached, so nobody else is to pass anything on.
    assert_eq!((server.seen().len(), helper.seen().len()), (2, 0));
    assert!(server.open.lock().unwrap().len() > 2);
}

/// Server 1, to which nothing comes through while it is `dark`.
async fn chunk_server_behind(dark: Arc<AtomicBool>) -> Fake<ClientRequest> {
    Fake::start(Party::Server(ServerId(1)), |listener, seen: Seen<ClientRequest>, open| async move {
        let mut held = Vec::new();
        loop {
            let incoming = listener.accept().await;
            if dark.load(Ordering::Relaxed) {
                held.push(incoming);
                continue;
            }
            let Ok(mut connection) = incoming.handshake().await else { continue };
            open.lock().unwrap().push(connection.sender.clone());
            let (dark, seen) = (dark.clone(), seen.clone());
            tokio::spawn(async move {
                while let Ok(Some(frame)) = connection.receiver.next().await {
                    let (id, request) = frame.decode::<ClientRequest>().unwrap();
                    if !dark.load(Ordering::Relaxed) {
                        seen.lock().unwrap().push((request, Instant::now()));
                        let done = ClientReply::Done { newest: Version::ZERO };
                        connection.sender.send(kind::CLIENT_REPLY, id, &done, Bytes::new()).unwrap();
                    }
                }
            });
        }
    })
    .await
}

/// Server 2, which reaches server 1. It has seen what it passed on, and has open the connections on which it was asked
/// to.
async fn helper() -> Fake<ClientRequest> {
    Fake::start(Party::Server(ServerId(2)), |listener, seen: Seen<ClientRequest>, open| async move {
        loop {
            let Ok(mut connection) = listener.accept().await.handshake().await else { continue };
            let (seen, open) = (seen.clone(), open.clone());
            tokio::spawn(async move {
                while let Ok(Some(frame)) = connection.receiver.next().await {
                    let sender = &connection.sender;
                    if frame.kind == kind::CHUNK_RELAY {
                        let (_, to) = frame.decode::<ServerId>().unwrap();
                        assert_eq!(to, ServerId(1));
                        open.lock().unwrap().push(sender.clone());
                        sender.send(kind::CHUNK_RELAY, 0, &to, Bytes::new()).unwrap();
                        continue;
                    }
                    let (id, request) = frame.decode::<ClientRequest>().unwrap();
                    seen.lock().unwrap().push((request, Instant::now()));
                    let done = ClientReply::Done { newest: Version::ZERO };
                    sender.send(kind::CLIENT_REPLY, id, &done, Bytes::new()).unwrap();
                }
            });
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_not_reached_is_asked_through_another_until_it_is() {
    let dark = Arc::new(AtomicBool::new(true));
    let (server, helper) = (chunk_server_behind(dark.clone()).await, helper().await);
    let meta = leader(&[&server, &helper]).await;
    let client = client(&[&meta]).await;
    let started = Instant::now();
    client.write(CHUNK, 0, "abc".into()).await.unwrap();
    client.write(CHUNK, 0, "def".into()).await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(2200), "{:?}", started.elapsed());
    assert_eq!((server.seen().len(), helper.seen().len()), (0, 2));
    assert_eq!((client.counters().retries, helper.open.lock().unwrap().len()), (0, 1));

    // It is still asked like that after a while, and at once.
    for _ in 0..20 {
        sleep(Duration::from_secs(1)).await;
        let started = Instant::now();
        client.write(CHUNK, 0, "abc".into()).await.unwrap();
        assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
    }
    assert_eq!(server.seen().len(), 0);

    dark.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(8)).await;
    let passed_on = helper.seen().len();
    client.write(CHUNK, 0, "ghi".into()).await.unwrap();
    assert_eq!((server.seen().len(), helper.seen().len()), (1, passed_on));
    assert_eq!(client.counters().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_on_a_connection_that_fell_silent_is_sent_again_through_another_server() {
    let dark = Arc::new(AtomicBool::new(false));
    let (server, helper) = (chunk_server_behind(dark.clone()).await, helper().await);
    let meta = leader(&[&server, &helper]).await;
    let client = client(&[&meta]).await;
    client.write(CHUNK, 0, "abc".into()).await.unwrap();
    assert_eq!((server.seen().len(), helper.seen().len()), (1, 0));

    dark.store(true, Ordering::Relaxed);
    let started = Instant::now();
    let writes = (0..10).map(|nth: u32| {
        let client = client.clone();
        async move { client.write(CHUNK, nth * 4096, "def".into()).await.unwrap() }
    });
    writes.collect::<tokio::task::JoinSet<_>>().join_all().await;
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    let mut ids: Vec<u64> = helper.seen().iter().map(|request| request_of(request).seq).collect();
    ids.sort_unstable();
    assert_eq!(ids, Vec::from_iter(2..12), "each once, under its id");
    assert_eq!(client.counters().retries, 10);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_ended_is_not_asked_through_another() {
    let (server, helper) = (chunk_server(1, |_, _, _| done()).await, helper().await);
    let meta = leader(&[&server, &helper]).await;
    let client = client(&[&meta]).await;
    server.stop();
    let error = client.write(CHUNK, 0, "abc".into()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unserved { last: Trouble::NoConnection(_), .. }), "{error}");
    assert_eq!((helper.seen().len(), helper.open.lock().unwrap().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_group_without_primary_is_served_when_it_gets_one() {
    let server = chunk_server(1, |_, _, _| done()).await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    meta.push(&MetaPush::Map(delta(10, 11, entry(4, None))));
    client.map_changed().await;
    let started = Instant::now();
    let writing = tokio::spawn({
        let client = client.clone();
        async move { client.write(CHUNK, 0, "abc".into()).await }
    });
    sleep(Duration::from_millis(1234)).await;
    assert!(!writing.is_finished() && server.seen().is_empty());
    meta.push(&MetaPush::Map(delta(11, 12, entry(5, Some(1)))));
    writing.await.unwrap().unwrap();
    assert_eq!(started.elapsed(), Duration::from_millis(1234), "no pause after the news");
}

#[tokio::test(start_paused = true)]
async fn an_address_taken_over_by_another_server_is_not_trusted() {
    let other = chunk_server(9, |_, _, _| done()).await;
    let meta = leader(&[&other]).await;
    let error = client(&[&meta]).await.delete(CHUNK).await.unwrap_err();
    assert!(matches!(error, ClientError::Unserved { last: Trouble::WrongServer, .. }), "{error}");
    assert!(other.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_leader_is_found_through_another_member() {
    let server = chunk_server(1, |_, _, _| done()).await;
    let leading = leader(&[&server]).await;
    let address = leading.address.clone();
    let follower =
        meta_server(move |_, _| meta_reply(MetaReply::NotLeader { leader: Some(address.clone()) })).await;
    let client = client(&[&follower]).await;
    assert_eq!((follower.seen().len(), leading.seen().len()), (1, 1));
    client.delete(CHUNK).await.unwrap();
}

/// A follower of the leader at this address. On a connection on which it was asked to pass on, it answers as the leader
/// would. It has seen the kinds of frames.
async fn follower(leader: String) -> Fake<u8> {
    Fake::start(Party::Meta, |listener, seen: Seen<u8>, open| async move {
        loop {
            let Ok(mut connection) = listener.accept().await.handshake().await else { continue };
            open.lock().unwrap().push(connection.sender.clone());
            let mut passes_on = false;
            while let Ok(Some(frame)) = connection.receiver.next().await {
                seen.lock().unwrap().push((frame.kind, Instant::now()));
                passes_on |= frame.kind == kind::META_RELAY;
                if frame.kind != kind::META_REQUEST {
                    continue;
                }
                let (id, request) = frame.decode::<MetaRequest>().unwrap();
                let reply = match request {
                    _ if !passes_on => MetaReply::NotLeader { leader: Some(leader.clone()) },
                    MetaRequest::AllocateObjects { count } => {
                        MetaReply::Objects { first: ObjectId(40), count }
                    }
                    _ => watch_reply(&[]),
                };
                connection.sender.send_wait(kind::META_REPLY, id, &reply, Bytes::new()).await.unwrap();
            }
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_not_reached_is_asked_through_another_member() {
    // It takes a call and says nothing.
    let dark = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let follower = follower(dark.local_addr().unwrap().to_string()).await;
    let started = Instant::now();
    let config = ClientConfig::new(vec![follower.address.clone()], secret());
    let client = Client::connect(config).await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(2200), "{:?}", started.elapsed());
    let asked = [kind::META_REQUEST, kind::META_REQUEST, kind::META_RELAY, kind::META_REQUEST];
    assert_eq!(follower.seen(), asked, "first it only names the leader");
    assert_eq!(client.allocate_objects(3).await.unwrap(), ObjectId(40));
    follower.push(&MetaPush::Map(delta(10, 11, entry(4, Some(1)))));
    client.map_changed().await;
    assert_eq!(client.map().version, 11);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_reached_is_not_asked_through_another_member() {
    let leading = leader(&[]).await;
    let follower = follower(leading.address.clone()).await;
    let config = ClientConfig::new(vec![follower.address.clone()], secret());
    let client = Client::connect(config).await.unwrap();
    leading.open.lock().unwrap().drain(..).for_each(|sender| sender.close());
    client.map_changed().await;
    assert_eq!((leading.seen().len(), follower.seen()), (2, vec![kind::META_REQUEST; 2]));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_is_found_when_the_old_one_dies() {
    let server = chunk_server(1, |_, _, _| done()).await;
    let (first, second) = (leader(&[&server]).await, leader(&[&server]).await);
    let client = client(&[&first, &second]).await;
    assert_eq!(second.seen().len(), 0);
    first.stop();
    client.map_changed().await;
    assert_eq!(second.seen(), [MetaRequest::Watch { map_version: 10 }], "asks for what is new only");
    client.delete(CHUNK).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_survives_a_silent_leader_and_a_deposed_one() {
    let answer = |request: &MetaRequest| match request {
        MetaRequest::Watch { .. } => meta_reply(watch_reply(&[])),
        _ => Then::Silence,
    };
    let silent = meta_server(move |request, _| answer(request)).await;
    let third = meta_server(move |request, _| match request {
        MetaRequest::Namespace(command) => {
            let results = vec![Ok(NamespaceDone::Done); command.ops.len()];
            meta_reply(MetaReply::Namespace(NamespaceReply { session: 1, results, garbage: 0 }))
        }
        MetaRequest::AllocateObjects { count } => {
            meta_reply(MetaReply::Objects { first: ObjectId(40), count: *count })
        }
        other => answer(other),
    })
    .await;
    let third_address = third.address.clone();
    let deposed = meta_server(move |request, _| match request {
        MetaRequest::Namespace(_) => meta_reply(MetaReply::NotLeader { leader: Some(third_address.clone()) }),
        other => answer(other),
    })
    .await;
    let client = client(&[&silent, &deposed]).await;
    let started = Instant::now();
    let reply = client
        .namespace(vec![NamespaceOp::CreateBucket { bucket: "b".into(), settings: Default::default() }])
        .await
        .unwrap();
    assert_eq!(reply.results, [Ok(NamespaceDone::Done)]);
    assert!(started.elapsed() < Duration::from_millis(2200), "{:?}", started.elapsed());
    let commands: Vec<_> = [&silent, &deposed, &third]
        .iter()
        .map(|fake| {
            fake.seen().into_iter().filter(|r| matches!(r, MetaRequest::Namespace(_))).collect::<Vec<_>>()
        })
        .collect();
    let of = |nth: usize| commands[nth].as_slice();
    assert!(
        of(0).len() == 1 && of(1) == of(0) && of(2)[..1] == *of(0),
        "one id for all tries of the first command"
    );
    assert_eq!(of(2).len(), 2, "the change itself follows in the session that it began");
    assert_eq!(client.allocate_objects(3).await.unwrap(), ObjectId(40));
}

/// A namespace that forgets its client after every other command.
#[tokio::test(start_paused = true)]
async fn a_command_that_a_forgotten_session_refused_is_sent_in_a_new_one_unless_it_may_have_been_carried_out()
{
    let sessions = std::sync::atomic::AtomicU64::new(0);
    let answers_in = std::sync::Mutex::new(None);
    let meta = meta_server(move |request, _| match request {
        MetaRequest::Namespace(command) => {
            let reply = |session, results| {
                meta_reply(MetaReply::Namespace(NamespaceReply { session, results, garbage: 0 }))
            };
            let mut answers_in = answers_in.lock().unwrap();
            let Some(session) = command.session else {
                let session = sessions.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
                *answers_in = Some(session);
                return reply(session, vec![]);
            };
            let known = *answers_in == Some(session);
            let is_lost = matches!(command.ops[0], NamespaceOp::DeleteBucket { .. });
            if is_lost && known {
                // Its answer is lost, and then it is forgotten.
                *answers_in = None;
                return meta_reply(MetaReply::Failed(MetaFailure::Unknown));
            }
            match known {
                true => {
                    *answers_in = None;
                    reply(session, vec![Ok(NamespaceDone::Done)])
                }
                false => reply(0, vec![Err(NamespaceError::Expired)]),
            }
        }
        _ => meta_reply(watch_reply(&[])),
    })
    .await;
    let client = client(&[&meta]).await;
    let create = || NamespaceOp::CreateBucket { bucket: "b".into(), settings: Default::default() };
    for _ in 0..3 {
        let reply = client.namespace(vec![create()]).await.unwrap();
        assert_eq!(reply.results, [Ok(NamespaceDone::Done)]);
    }
    let seen = |meta: &Fake<MetaRequest>| {
        meta.seen().into_iter().filter(|r| matches!(r, MetaRequest::Namespace(_))).count()
    };
    assert_eq!(seen(&meta), 2 + 3 + 3, "refused at the first try, it is a new command in a new session");
    // The session is void before it begins, so this one begins another, and its fate is not known then.
    let reply = client.namespace(vec![NamespaceOp::DeleteBucket { bucket: "b".into() }]).await.unwrap();
    assert_eq!(reply.results, [Err(NamespaceError::Expired)]);
    assert_eq!(client.namespace(vec![create()]).await.unwrap().results, [Ok(NamespaceDone::Done)]);
}

#[tokio::test(start_paused = true)]
async fn what_the_metadata_service_refuses_is_not_retried_and_what_it_does_not_know_is() {
    let meta = meta_server(|request, before| match request {
        MetaRequest::Watch { .. } => meta_reply(watch_reply(&[])),
        MetaRequest::AllocateObjects { count: 0 } => {
            meta_reply(MetaReply::Failed(MetaFailure::Refused("count is zero".into())))
        }
        MetaRequest::AllocateObjects { .. } if before < 4 => {
            meta_reply(MetaReply::Failed(MetaFailure::Unknown))
        }
        _ => meta_reply(MetaReply::Objects { first: ObjectId(5), count: 2 }),
    })
    .await;
    let client = client(&[&meta]).await;
    let error = client.allocate_objects(0).await.unwrap_err();
    assert!(matches!(error, ClientError::Meta(MetaFailure::Refused(_))));
    assert_eq!(client.allocate_objects(2).await.unwrap(), ObjectId(5));
    assert_eq!(meta.seen().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_gap_in_the_map_is_asked_for() {
    let server = chunk_server(1, |_, _, _| done()).await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    meta.push(&MetaPush::Map(delta(15, 16, entry(9, Some(1)))));
    client.map_changed().await;
    // The reply to the request for the map.
    client.map_changed().await;
    assert_eq!(meta.seen(), [MetaRequest::Watch { map_version: 0 }, MetaRequest::Watch { map_version: 10 }]);
    assert_eq!(client.map().groups[0].epoch, Epoch(3), "a delta with a gap is not applied");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_set_up_is_refused_at_once_and_no_leader_at_the_deadline() {
    let meta = leader(&[]).await;
    let config = ClientConfig::new(vec![meta.address.clone()], Secret::from_bytes(&[1; 32]).unwrap());
    let started = Instant::now();
    let error = Client::connect(config).await.unwrap_err();
    assert!(matches!(&error, ClientError::Refused { address, .. } if *address == meta.address));
    let mut config = ClientConfig::new(vec![meta.address.clone()], secret());
    config.cluster = CLUSTER + 1;
    assert!(matches!(Client::connect(config).await.unwrap_err(), ClientError::Refused { .. }));
    assert!(started.elapsed() < Duration::from_secs(1));
    let none = Client::connect(ClientConfig::new(vec![], secret())).await.unwrap_err();
    assert!(matches!(none, ClientError::NoAddresses));

    meta.stop();
    let error = Client::connect(ClientConfig::new(vec![meta.address.clone()], secret())).await.unwrap_err();
    assert!(matches!(error, ClientError::NoMeta { last: Trouble::NoConnection(_), .. }), "{error}");
    assert!(error.to_string().contains(&meta.address), "{error}");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_client_closes_its_connections() {
    let server = chunk_server(1, |_, _, _| done()).await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    client.delete(CHUNK).await.unwrap();
    let closed = |fake: &Arc<Mutex<Vec<Sender>>>| fake.lock().unwrap().iter().all(Sender::is_closed);
    assert!(!closed(&server.open) && !closed(&meta.open));
    drop(client);
    sleep(Duration::from_millis(10)).await;
    assert!(closed(&server.open) && closed(&meta.open));
}

#[tokio::test(start_paused = true)]
async fn bytes_that_were_damaged_on_the_way_are_asked_for_again() {
    let server = chunk_server(1, |request, payload, tries| match &request.op {
        ChunkOp::Read { must_exist, .. } => {
            let good = vec![7; 5000];
            let mut sent = good.clone();
            // A plain read arrives intact on its second try, a `must_exist` read never.
            sent[4999] ^= u8::from(*must_exist || tries == 0);
            Then::Answer(ClientReply::Data { crcs: piece_crcs(100, &good) }, sent.into())
        }
        ChunkOp::Write { offset, crcs, .. } if *crcs == piece_crcs(*offset, &payload) => done(),
        _ => Then::Close,
    })
    .await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    assert_eq!(client.read(CHUNK, 100, 5000).await.unwrap(), vec![7; 5000]);
    let counters = client.counters();
    assert_eq!((counters.retries, counters.garbled), (1, 1));
    client.write(CHUNK, 100, vec![5; 5000].into()).await.unwrap();
    let error = client.read_written(CHUNK, 100, 5000).await.unwrap_err();
    assert!(matches!(error, ClientError::Unserved { last: Trouble::Garbled, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn ranges_of_objects_are_split_and_joined() {
    let store: Mutex<BTreeMap<ChunkId, Vec<u8>>> = Mutex::default();
    let server = chunk_server(1, move |request, payload, _| {
        let mut store = store.lock().unwrap();
        let chunk = store.entry(request.op.chunk()).or_insert_with(|| vec![0; 8 << 20]);
        let (offset, len) = request.op.range();
        let range = &mut chunk[offset as usize..(offset + len) as usize];
        match request.op {
            ChunkOp::Read { .. } => return data(offset, range.to_vec()),
            ChunkOp::Write { .. } => range.copy_from_slice(&payload),
            ChunkOp::Zero { .. } => range.fill(0),
            ChunkOp::Delete { .. } => drop(store.remove(&request.op.chunk())),
            ChunkOp::Look { .. } => unreachable!("this test sends no look"),
        }
        done()
    })
    .await;
    let meta = leader(&[&server]).await;
    let client = client(&[&meta]).await;
    let object = ObjectId(6);
    let offset = (8 << 20) - 1000;
    let bytes: Bytes = (0..9_000_000u32).map(|at| (at / 7 % 253) as u8).collect::<Vec<_>>().into();
    client.write_object(object, offset, bytes.clone()).await.unwrap();
    assert_eq!(server.seen().len(), 4, "1000 bytes, two records of 4 MiB, the rest");
    assert!(client.read_object(object, offset, 9_000_000).await.unwrap() == bytes);
    assert!(client.read_object(object, offset + 50, 100).await.unwrap() == bytes.slice(50..150));
    assert!(client.read_object(object, 0, 0).await.unwrap().is_empty());
    client.zero_object(object, offset + 500, 5_000_000).await.unwrap();
    let read = client.read_object(object, offset, 9_000_000).await.unwrap();
    assert!(read[..500] == bytes[..500] && read[5_000_500..] == bytes[5_000_500..]);
    assert!(read[500..5_000_500].iter().all(|&byte| byte == 0));
    client.delete_object(object, offset + 9_000_000).await.unwrap();
    let deleted = server.seen().iter().filter(|r| matches!(r.op, ChunkOp::Delete { .. })).count();
    assert_eq!(deleted, 3);
}

/// The gateway runs requests as tasks on any thread.
#[test]
fn requests_may_move_between_threads() {
    fn is_send<T: Send>(_: T) {}
    fn check(client: Client) {
        is_send(client.read_object(ObjectId(1), 0, 1));
        is_send(client.call(MetaRequest::Watch { map_version: 0 }));
    }
    let _ = check;
}
