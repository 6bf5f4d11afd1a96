//! The gateway on an in-memory cluster: real S3 clients over HTTP, and guarantees that no client can see.

mod coded;
mod compact;
mod moved;
mod operations;

use super::{Gateway, GatewayConfig, Key, Keys, Limits, Right, Watcher, serve, tend};
use crate::bytes::backend::{Backend, BackendError, Pool};
use crate::bytes::intake::{Stated, Taken, take_in};
use crate::bytes::names::NameError;
use crate::memory::Memory;
use crate::ops::lifecycle;
use crate::upkeep::expire::{Gone, carry_out};
use crate::upkeep::leases::SILENCE;
use bytes::Bytes;
use ebb_testing::s3;
use ebb_types::{
    BucketSetting, Condition, NamespaceAnswer, NamespaceDone, NamespaceError, NamespaceOp, NamespaceQuery,
    ObjectId, ObjectMeta, OnlyIf, PAGE_MAX, Part, PoolId,
};
use futures_util::{StreamExt, TryStreamExt};
use s3s::dto::{
    AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, ExpirationStatus, LifecycleExpiration,
    LifecycleRule, LifecycleRuleFilter, PutBucketLifecycleConfigurationInput,
};
use s3s::{S3ErrorCode, S3Result};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const ACCESS_KEY: &str = "testkey";
const SECRET_KEY: &str = "testsecret0123456789";

fn keys() -> Keys {
    let rights = [Right::Read, Right::Write, Right::Admin].into();
    let key = Key { secret: SECRET_KEY.to_owned(), rights, buckets: None };
    Keys::fixed([(ACCESS_KEY.to_owned(), key)].into())
}

struct Unwatched;

impl Watcher for Unwatched {
    fn asked(&self) {}
    fn answered(&self, _: &hyper::Method, _: Option<hyper::StatusCode>, _: Duration) {}
}

fn config(limits: Limits) -> GatewayConfig {
    let domains = vec!["localhost".into()];
    GatewayConfig {
        keys: keys(),
        domains,
        limits,
        move_bytes_per_second: 32 << 20,
        expire_most: u64::MAX,
        watcher: Arc::new(Unwatched),
    }
}

/// A gateway over `backend` on its own thread.
struct Served {
    address: String,
    /// Dropping it stops the gateway.
    stop: Option<oneshot::Sender<()>>,
    thread: std::thread::JoinHandle<()>,
}

fn serve_with(limits: Limits) -> Served {
    let (ready, address) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            let config = config(limits);
            let backend = Arc::new(Memory::new(4 << 20));
            serve(listener, config, backend, async { drop(stopped.await) }).await;
        });
    });
    Served { address: address.recv().unwrap().to_string(), stop: Some(stop), thread }
}

impl Served {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn ask(&self, method: &str, path: &str, body: &[u8]) -> u16 {
        self.answer(method, path, body).status
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> s3::Answer {
        s3::request(&self.address, (ACCESS_KEY, SECRET_KEY), method, path, body).unwrap()
    }

    /// Sends the head of a PUT and the first byte of its body.
    fn begin_put(&self, path: &str, body: &[u8], more: &str) -> TcpStream {
        let mut stream = self.connect();
        let head = s3::head(&self.address, (ACCESS_KEY, SECRET_KEY), ("PUT", path), body, more);
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body[..1]).unwrap();
        stream
    }
}

/// Everything received until the gateway closes the connection.
fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

const SHORT: Duration = Duration::from_millis(300);
/// For anything that must happen, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn who_sends_nothing_or_half_a_head_is_disconnected() {
    let served = serve_with(Limits { head: SHORT, ..Limits::of_process() });
    let idle = served.connect();
    let mut half = served.connect();
    half.write_all(b"GET /b HTTP/1.1\r\nHost: a").unwrap();
    assert_eq!(rest(idle), "");
    let text = rest(half);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
}

#[test]
fn a_client_that_stops_sending_a_body_gets_an_error_and_is_disconnected() {
    let served = serve_with(Limits { stall: SHORT, unread: SHORT, ..Limits::of_process() });
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    let text = rest(served.begin_put("/bucket/key", b"two bytes", "Connection: close\r\n"));
    assert!(text.starts_with("HTTP/1.1 400") && text.contains("RequestTimeout"), "{text}");
    assert!(text.contains("x-amz-request-id") && text.contains("<RequestId>"), "{text}");
    assert_eq!(served.ask("HEAD", "/bucket/key", b""), 404);
}

#[test]
fn idle_connections_make_room_for_requests() {
    let served = serve_with(Limits { connections: 4, head: PATIENCE, ..Limits::of_process() });
    let idle: Vec<_> = (0..12).map(|_| served.connect()).collect();
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    assert_eq!(served.ask("GET", "/bucket", b""), 200);
    drop(idle);
}

#[test]
fn the_end_waits_for_requests_under_way_and_not_for_idle_connections() {
    let mut served = serve_with(Limits { drain: PATIENCE, head: PATIENCE, ..Limits::of_process() });
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    let idle = served.connect();
    let body = vec![7; 100_000];
    let mut under_way = served.begin_put("/bucket/key", &body, "Expect: 100-continue\r\n");
    // The gateway asks for the body, so it has the request.
    let mut asked = [0; 12];
    under_way.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100");
    drop(served.stop.take());
    assert_eq!(rest(idle), "");
    under_way.write_all(&body[1..]).unwrap();
    let text = rest(under_way);
    assert!(text.contains("HTTP/1.1 200") && text.to_lowercase().contains("connection: close"), "{text}");
    served.thread.join().unwrap();
}

#[test]
fn a_header_that_is_not_signed_does_nothing() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/secret", b""), 200);
    assert_eq!(served.ask("PUT", "/secret/key", b"text"), 200);
    let more = "x-amz-copy-source: /secret/key\r\nConnection: close\r\n";
    let text = rest(served.begin_put("/secret/copy", b"x", more));
    assert!(text.starts_with("HTTP/1.1 403") && text.contains("AccessDenied"), "{text}");
    assert_eq!(served.ask("HEAD", "/secret/copy", b""), 404);
    assert_eq!(served.answer("GET", "/secret/key", b"").body, b"text");
}

/// What the key's object contains.
async fn content_in(gateway: &Gateway<Memory>, bucket: &str, key: &str) -> Vec<u8> {
    let reader = gateway.objects.open(bucket, key).await.unwrap();
    let stream = reader.clone().stream(reader.pieces(0..reader.meta.size));
    stream.try_collect::<Vec<Bytes>>().await.unwrap().concat()
}

/// Where the bytes are that the keys name.
async fn named_in(
    gateway: &Gateway<Memory>,
    bucket: &str,
    keys: impl Iterator<Item = String>,
) -> BTreeSet<ObjectId> {
    let mut named = BTreeSet::new();
    for key in keys {
        let meta = gateway.names.object(bucket, &key).await.unwrap();
        named.extend(meta.extents.iter().map(|extent| extent.object));
    }
    named
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_stalls_holds_no_memory() {
    let backend = Arc::new(Memory::new(4 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let start = futures_util::stream::iter([Ok(Bytes::from(vec![1; 900_000]))]);
    let body = start.chain(futures_util::stream::pending::<S3Result<Bytes>>());
    let stated = Stated { length: Some(1_000_000), ..Stated::default() };
    let stalled = tokio::time::timeout(
        Duration::from_secs(5),
        take_in(&gateway.store, &Pool::replicated(), body, stated),
    )
    .await;
    assert!(stalled.is_err(), "it waits for the rest");
    assert_eq!(backend.used_bytes(), 900_000 / 4096 * 4096, "all whole blocks are written");
}

#[tokio::test(start_paused = true)]
async fn an_upload_in_drops_arrives_whole() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let whole: Vec<u8> = (0..2_500_000u32).map(|i| (i / 7) as u8).collect();
    let drops: Vec<Bytes> = whole.chunks(90_001).map(Bytes::copy_from_slice).collect();
    let body = futures_util::stream::iter(drops).then(|drop| async move {
        tokio::time::sleep(Duration::from_millis(700)).await;
        Ok(drop)
    });
    let taken = take_in(&gateway.store, &Pool::replicated(), body, Stated::default()).await.unwrap();
    let extents = taken.data.take();
    let mut back = Vec::new();
    for piece in gateway.store.pieces(&extents, 0..whole.len() as u64) {
        back.extend_from_slice(&gateway.store.read(piece).await.unwrap().bytes);
    }
    assert!(back == whole);
}

#[tokio::test]
async fn lifecycle_rules_remove_what_is_old_and_nothing_else() {
    const DAY: u64 = 24 * 3600 * 1000;
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    for key in ["logs/a", "logs/b", "other"] {
        put(&gateway, key, Bytes::from_static(b"text"), Condition::Any).await.unwrap();
    }
    let (bucket, headers) = ("b".to_owned(), Vec::new());
    let op = NamespaceOp::CreateUpload { bucket, key: "logs/u".into(), headers, checksum: None };
    gateway.names.commit(op).await.unwrap();
    let rule = |id: &str, days: Option<i32>, abort: Option<i32>| LifecycleRule {
        abort_incomplete_multipart_upload: abort
            .map(|n| AbortIncompleteMultipartUpload { days_after_initiation: Some(n) }),
        expiration: days.map(|n| LifecycleExpiration { days: Some(n), ..Default::default() }),
        filter: Some(LifecycleRuleFilter { prefix: Some("logs/".into()), ..Default::default() }),
        id: Some(id.to_owned()),
        noncurrent_version_expiration: None,
        noncurrent_version_transitions: None,
        prefix: None,
        status: ExpirationStatus::from_static(ExpirationStatus::ENABLED),
        transitions: None,
    };
    let rules = vec![rule("expire", Some(2), None), rule("abort", None, Some(5))];
    let input = PutBucketLifecycleConfigurationInput {
        bucket: "b".into(),
        lifecycle_configuration: Some(BucketLifecycleConfiguration { rules }),
        ..Default::default()
    };
    lifecycle::set(&gateway.buckets, input).await.unwrap();
    let now = gateway.names.now().await.unwrap();
    let gone = |objects, uploads, left| Ok(Gone { objects, uploads, left });
    assert_eq!(carry_out(&gateway.names, now + DAY, 9).await, gone(0, 0, 9));
    assert_eq!(
        carry_out(&gateway.names, now + 3 * DAY, 1).await,
        gone(1, 0, 0),
        "no more than one round may"
    );
    assert_eq!(carry_out(&gateway.names, now + 3 * DAY, 9).await, gone(1, 0, 8));
    gateway.names.object("b", "other").await.unwrap();
    assert_eq!(carry_out(&gateway.names, now + 6 * DAY, 0).await, gone(0, 0, 0));
    assert_eq!(carry_out(&gateway.names, now + 6 * DAY, 9).await, gone(0, 1, 8));
    assert_eq!(carry_out(&gateway.names, now + 7 * DAY, 9).await, gone(0, 0, 9));
}

/// A round is as of the namespace's time, and there is none while it refuses to say it.
#[tokio::test(start_paused = true)]
async fn no_round_of_the_rules_begins_while_the_clocks_disagree() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let rounds = std::sync::Mutex::new(Vec::new());
    let round = |now| {
        rounds.lock().unwrap().push(now);
        std::future::ready(Ok(()))
    };
    backend.set_clocks_apart(true);
    let mut daily = std::pin::pin!(crate::upkeep::expire::daily(&gateway.names, "do it", round));
    assert!(tokio::time::timeout(Duration::from_secs(3600), &mut daily).await.is_err());
    assert_eq!(rounds.lock().unwrap().len(), 0);
    backend.set_clocks_apart(false);
    let now = gateway.names.now().await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(3600), &mut daily).await.is_err());
    let rounds = rounds.lock().unwrap();
    // In a day's last hour midnight comes meanwhile, and a round with it.
    assert!(!rounds.is_empty() && rounds.iter().all(|round| *round >= now), "{rounds:?}: {now}");
}

/// Serves `backend` on its own thread until the test program ends. Returns the endpoint.
fn serve_in_background(backend: Arc<Memory>) -> String {
    let (ready, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            let config = config(Limits::of_process());
            serve(listener, config, backend, std::future::pending()).await;
        });
    });
    format!("http://{}", address.recv().unwrap())
}

/// `EBB_TEST_ARGS` may hold arguments for the script, such as `-v Objects`.
#[test]
#[ignore = "tests/all/s3_clients.rs runs the same against a cluster; this one tells whose fault it is"]
fn real_clients_agree() {
    let endpoint = serve_in_background(Arc::new(Memory::new(4 << 20)));
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own_python = crate_dir.join("../../../.venv/bin/python");
    let python = if own_python.exists() { own_python } else { "python3".into() };
    let arguments = std::env::var("EBB_TEST_ARGS").unwrap_or_default();
    let status = Command::new(python)
        .arg(crate_dir.join("../../ebb/tests/s3_clients.py"))
        .args(arguments.split_whitespace())
        .env("EBB_S3_ENDPOINT", endpoint)
        .env("EBB_S3_ACCESS_KEY", ACCESS_KEY)
        .env("EBB_S3_SECRET_KEY", SECRET_KEY)
        .status()
        .expect("python3 runs: scripts/install-test-tools installs it");
    assert!(status.success(), "see above; if a module or program is missing, run scripts/install-test-tools");
}

/// Not a test: serves an empty in-memory cluster until it is killed, to measure the gateway alone.
#[test]
#[ignore = "serves until killed"]
fn serve_in_memory() {
    let endpoint = serve_in_background(Arc::new(Memory::new(64 << 20)));
    println!("EBB_S3_ENDPOINT={endpoint} EBB_S3_ACCESS_KEY={ACCESS_KEY} EBB_S3_SECRET_KEY={SECRET_KEY}");
    loop {
        std::thread::park();
    }
}

/// A gateway with one bucket, `b`, in the first pool that there is.
async fn gateway(backend: &Arc<Memory>, tasks: &mut JoinSet<()>) -> Gateway<Memory> {
    let gateway = Gateway::start(backend.clone(), keys(), tasks);
    gateway.names.commit(new_bucket(backend)).await.unwrap();
    gateway
}

fn new_bucket(backend: &Memory) -> NamespaceOp {
    let pools = backend.pools().into_iter().take(1);
    let settings = pools.map(|pool| (BucketSetting::Location, pool.name.into_bytes())).collect();
    NamespaceOp::CreateBucket { bucket: "b".into(), settings }
}

/// Receives a body for the bucket `b`.
async fn take(gateway: &Gateway<Memory>, body: Bytes) -> S3Result<Taken> {
    let pool = gateway.buckets.destination("b", None).await?.pool;
    take_in(&gateway.store, &pool, futures_util::stream::iter([Ok(body)]), Stated::default()).await
}

async fn put(gateway: &Gateway<Memory>, key: &str, body: Bytes, when: Condition) -> S3Result<()> {
    let taken = take(gateway, body).await?;
    let meta = ObjectMeta {
        size: taken.size,
        etag: taken.etag,
        modified_millis: 0,
        extents: taken.data.take(),
        headers: Vec::new(),
        checksum: None,
        upload: None,
        parts: Vec::new(),
    };
    let (bucket, key) = ("b".into(), key.into());
    gateway.names.commit(NamespaceOp::Put { bucket, key, meta, when }).await?;
    Ok(())
}

async fn delete(gateway: &Gateway<Memory>, key: &str) {
    let op = NamespaceOp::Delete {
        bucket: "b".into(),
        key: key.into(),
        when: Condition::Any,
        only_if: OnlyIf::default(),
    };
    gateway.names.commit(op).await.unwrap();
}

/// Long enough for the janitor to have seen, waited and freed.
async fn janitor_was_here() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn small_objects_that_arrive_together_share_writes_and_commands() {
    let backend = Arc::new(Memory::new(4 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let before = backend.counts();
    let keys: Vec<String> = (0..100).map(|i| format!("k{i}")).collect();
    let puts = keys.iter().map(|key| put(&gateway, key, Bytes::from(key.repeat(700)), Condition::Any));
    for done in futures_util::future::join_all(puts).await {
        done.unwrap();
    }
    let after = backend.counts();
    assert!(after.0 - before.0 <= 4 && after.1 - before.1 <= 6, "{before:?} {after:?}");
    for key in &keys {
        let reader = gateway.objects.open("b", key).await.unwrap();
        let pieces = reader.pieces(0..reader.meta.size);
        assert_eq!(pieces.len(), 1);
        assert_eq!(reader.read_only(pieces[0]).await.unwrap(), key.repeat(700));
    }
}

#[tokio::test(start_paused = true)]
async fn what_loses_its_name_is_freed() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let (small, large) = (Bytes::from(vec![1; 5000]), Bytes::from(vec![2; 3 << 20]));
    put(&gateway, "kept", small.clone(), Condition::Any).await.unwrap();
    let kept = backend.used_bytes();
    for body in [&small, &large] {
        put(&gateway, "key", body.clone(), Condition::Any).await.unwrap();
        put(&gateway, "key", body.clone(), Condition::Any).await.unwrap();
        let refused = put(&gateway, "key", body.clone(), Condition::Absent).await.unwrap_err();
        assert_eq!(*refused.code(), S3ErrorCode::PreconditionFailed);
    }
    delete(&gateway, "key").await;
    assert!(backend.used_bytes() > kept);
    janitor_was_here().await;
    assert_eq!(backend.used_bytes(), kept);
}

#[tokio::test]
async fn bytes_that_are_not_those_that_were_put_are_not_given() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let sizes = [1, 5000, 3 << 20];
    for size in sizes {
        put(&gateway, &size.to_string(), Bytes::from(vec![3; size]), Condition::Any).await.unwrap();
    }
    let read = async |size: usize, range: std::ops::Range<u64>| {
        let reader = gateway.objects.open("b", &size.to_string()).await.unwrap();
        let stream = reader.clone().stream(reader.pieces(range));
        futures_util::TryStreamExt::try_collect::<Vec<Bytes>>(stream).await
    };
    for size in sizes {
        assert_eq!(read(size, 0..size as u64).await.unwrap().concat(), vec![3; size]);
    }
    backend.garble();
    assert!(read(1, 0..1).await.is_err() && read(3 << 20, 0..3 << 20).await.is_err());
    assert!(read(5000, 0..5000).await.is_ok(), "it does not begin its chunk");
    assert!(read(3 << 20, 5000..6000).await.is_ok(), "a range is checked by its blocks");
}

#[tokio::test(start_paused = true)]
async fn a_put_that_is_broken_off_leaves_nothing() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let mut writer = gateway.store.writer(&Pool::replicated(), None);
    writer.push(&vec![7; 5 << 20]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(backend.used_bytes() > 0, "it writes while it receives");
    drop(writer);
    janitor_was_here().await;
    assert_eq!(backend.used_bytes(), 0);
}

/// More clients than there is memory for send something and then stall.
#[tokio::test(start_paused = true)]
async fn stalled_uploads_delay_no_other() {
    let backend = Arc::new(Memory::new(4 << 20));
    let mut tasks = JoinSet::new();
    let gateway = Arc::new(gateway(&backend, &mut tasks).await);
    let mut stalled = JoinSet::new();
    for _ in 0..100 {
        let gateway = gateway.clone();
        stalled.spawn(async move {
            let sent = futures_util::stream::iter([Ok(vec![1; 900_000].into())]);
            let stated = Stated { length: Some(10 << 20), ..Stated::default() };
            take_in(&gateway.store, &Pool::replicated(), sent.chain(futures_util::stream::pending()), stated)
                .await
                .map(drop)
        });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(gateway.store.pieces.is_exhausted());
    let body = Bytes::from(vec![9; 3 << 20]);
    let done = put(&gateway, "key", body, Condition::Any);
    tokio::time::timeout(Duration::from_secs(10), done).await.expect("its turn comes").unwrap();
    assert!(stalled.try_join_next().is_none() && !gateway.store.pieces.is_exhausted());
}

#[tokio::test(start_paused = true)]
async fn a_reader_never_sees_freed_bytes() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let body = Bytes::from(vec![9; 3 << 20]);
    put(&gateway, "key", body.clone(), Condition::Any).await.unwrap();
    let reader = gateway.objects.open("b", "key").await.unwrap();
    let pieces = reader.pieces(0..reader.meta.size);
    janitor_was_here().await;
    assert_eq!(
        reader.read(pieces[0]).await.unwrap().bytes,
        body[..pieces[0].len as usize],
        "a long read of a kept object continues"
    );
    delete(&gateway, "key").await;
    assert_eq!(
        reader.read(pieces[1]).await.unwrap().bytes,
        body[..pieces[1].len as usize],
        "a deletion leaves readers time"
    );
    janitor_was_here().await;
    assert!(reader.read(pieces[2]).await.is_err());
}

/// Another gateway frees the bytes while the reader's machine is suspended: only the clock that goes on says so.
#[tokio::test(start_paused = true)]
async fn a_reader_whose_machine_was_suspended_looks_its_key_up_again() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    put(&gateway, "key", Bytes::from(vec![9; 50_000]), Condition::Any).await.unwrap();
    let reader = gateway.objects.open("b", "key").await.unwrap();
    let piece = reader.pieces(4096..8192)[0];
    put(&gateway, "key", Bytes::from(vec![8; 50_000]), Condition::Any).await.unwrap();
    assert_eq!(reader.read(piece).await.unwrap().bytes, vec![9; 4096], "nothing is freed yet");
    backend.zero(piece.chunk, 0, 53_248).await.unwrap();
    let missing = reader.read(piece).await.unwrap_err().to_string();
    assert!(missing.contains("were removed"), "zeroes that were never written are not given: {missing}");
    backend.suspend(Duration::from_secs(11));
    let replaced = reader.read(piece).await.unwrap_err().to_string();
    assert!(replaced.contains("the object was replaced"), "{replaced}");
}

#[tokio::test]
async fn errors_of_the_cluster_get_codes_that_clients_understand() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    for (error, status) in [
        (BackendError::Unavailable("too few copies".into()), 503),
        (BackendError::Hibernates { why: "asleep".into(), retry_after: Duration::from_millis(1500) }, 503),
        (BackendError::NoSpace, 507),
        (BackendError::GivenUp, 503),
        (BackendError::Lost("no copy is left".into()), 500),
        (BackendError::Failed("corrupt".into()), 500),
    ] {
        backend.break_chunks(Some(error));
        for size in [100, 2 << 20] {
            let error = put(&gateway, "key", vec![1; size].into(), Condition::Any).await.unwrap_err();
            assert_eq!(error.status_code().map(|s| s.as_u16()), Some(status), "{error:?}");
            let later = error.headers().map(|headers| headers[hyper::header::RETRY_AFTER].clone());
            let asleep = error.message().is_some_and(|why| why == "asleep");
            assert_eq!(later, asleep.then(|| hyper::header::HeaderValue::from_static("2")));
        }
        let unnamed = gateway.names.object("b", "key").await;
        assert_eq!(unnamed, Err(NameError::Refused(NamespaceError::NoSuchKey)), "no name before the data");
    }
    backend.break_chunks(None);
    put(&gateway, "key", vec![1; 100].into(), Condition::Any).await.unwrap();
}

#[tokio::test]
async fn who_reads_lost_bytes_is_told_which_they_are() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    put(&gateway, "key", vec![1; 600 << 10].into(), Condition::Any).await.unwrap();
    let reader = gateway.objects.open("b", "key").await.unwrap();
    let pieces = reader.pieces(0..600 << 10);
    backend.break_chunks(Some(BackendError::Lost("no copy is left".into())));
    let said = reader.read(pieces[1]).await.unwrap_err().to_string();
    let which = "bytes 262144-524287 of this object, or some of them, are lost (no copy is left)";
    assert!(said.starts_with(which), "{said}");
}

/// Everything that leaves something behind: small and large objects, overwritten, refused, aborted, deleted, parts.
async fn busy_day(gateway: &Gateway<Memory>) {
    let _ = gateway.names.commit(new_bucket(&gateway.backend)).await;
    let (small, large) = (Bytes::from(vec![1; 5000]), Bytes::from(vec![2; 3 << 20]));
    for (key, body) in [("small", &small), ("large", &large)] {
        for when in [Condition::Any, Condition::Any, Condition::Absent] {
            let _ = put(gateway, key, body.clone(), when).await;
        }
        let _ = put(gateway, "gone", body.clone(), Condition::Any).await;
        delete(gateway, "gone").await;
    }
    let Ok(destination) = gateway.buckets.destination("b", None).await else { return };
    let mut broken_off = gateway.store.writer(&destination.pool, None);
    let _ = broken_off.push(&large).await;
    drop(broken_off);
    let (bucket, key) = ("b".to_owned(), "upload".to_owned());
    let upload = NamespaceOp::CreateUpload {
        bucket: bucket.clone(),
        key: key.clone(),
        headers: Vec::new(),
        checksum: None,
    };
    let Ok(NamespaceDone::Upload(upload)) = gateway.names.commit(upload).await else { return };
    for _ in 0..2 {
        let Ok(taken) = take(gateway, large.clone()).await else { return };
        let (size, etag, extents) = (taken.size, taken.etag, taken.data.take());
        let part = Part { size, etag, modified_millis: 0, extents, checksum: None };
        let (bucket, key) = (bucket.clone(), key.clone());
        let _ = gateway.names.commit(NamespaceOp::PutPart { bucket, key, upload, number: 1, part }).await;
    }
}

/// The objects that keys and parts name.
async fn named(gateway: &Gateway<Memory>) -> BTreeSet<ObjectId> {
    let mut named = BTreeSet::new();
    for key in ["small", "large", "gone"] {
        if let Ok(meta) = gateway.names.object("b", key).await {
            let reader = gateway.objects.open("b", key).await.unwrap();
            for piece in reader.pieces(0..meta.size) {
                let bytes = reader.read(piece).await.unwrap().bytes;
                assert!(bytes.iter().all(|b| *b != 0), "{key} has lost bytes");
            }
            named.extend(meta.extents.iter().map(|e| e.object));
        }
    }
    let query =
        NamespaceQuery::Parts { bucket: "b".into(), key: "upload".into(), upload: 1, after: 0, limit: 10 };
    if let Ok(NamespaceAnswer::Parts { parts, .. }) = gateway.names.query(query).await {
        named.extend(parts.iter().flat_map(|(_, part)| &part.extents).map(|e| e.object));
    }
    named
}

/// The gateway dies after each of its steps, and another cleans up what it left.
#[tokio::test(start_paused = true)]
async fn whatever_a_dead_gateway_left_unnamed_is_freed() {
    dead_gateways_leave_nothing(|| Memory::new(1 << 20)).await;
}

async fn dead_gateways_leave_nothing(new_cluster: impl Fn() -> Memory) {
    let mut died = 0;
    for step in 0.. {
        let cluster = new_cluster();
        let mut tasks = JoinSet::new();
        let mortal = Arc::new(cluster.another(2, step));
        let gateway = Gateway::start(mortal.clone(), keys(), &mut tasks);
        // A request to a cluster that is gone waits forever.
        let _ = tokio::time::timeout(Duration::from_secs(10), busy_day(&gateway)).await;
        tasks.abort_all();
        drop(gateway);
        let heir = Arc::new(cluster.another(3, u64::MAX));
        let mut tasks = JoinSet::new();
        let gateway = Gateway::start(heir.clone(), keys(), &mut tasks);
        tokio::time::sleep(SILENCE + Duration::from_secs(40)).await;
        assert_eq!(heir.objects(), named(&gateway).await, "after step {step}");
        died += u32::from(mortal.is_cut_off());
        if !mortal.is_cut_off() {
            break;
        }
    }
    assert!(died > 50, "only {died} steps");
}

/// A volume's server does it where there is no gateway. It hears of nothing, and finds what others left at any time.
#[tokio::test(start_paused = true)]
async fn what_a_dead_run_left_is_freed_without_a_gateway() {
    let cluster = Memory::new(1 << 20);
    let mut tasks = JoinSet::new();
    let runs = tend(Arc::new(cluster.another(3, u64::MAX)));
    tasks.spawn(runs);
    for client in 5..8 {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let mortal = cluster.another(client, u64::MAX);
        let first = mortal.allocate(4).await.unwrap();
        mortal.commit(vec![NamespaceOp::Lease { first, count: 4, bytes: 1 << 20 }]).await.unwrap();
        let block =
            ebb_client::Summed { crcs: ebb_types::piece_crcs(0, &[1; 4096]), bytes: vec![1; 4096].into() };
        mortal.write(ebb_types::ChunkId { object: first, index: 0 }, 0, block).await.unwrap();
        assert_eq!(cluster.objects(), [first].into());
        tokio::time::sleep(SILENCE + Duration::from_secs(40)).await;
        assert!(cluster.objects().is_empty());
        let garbage = mortal.query(NamespaceQuery::Garbage { after: 0, limit: 9 }).await;
        assert_eq!(garbage, Ok(Ok(NamespaceAnswer::Garbage(Vec::new()))));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_gateway_gives_back_its_leases_and_asks_nothing_any_more() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    put(&gateway, "key", Bytes::from(vec![1; 5000]), Condition::Any).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let runs = gateway.names.query(NamespaceQuery::Runs).await;
    assert_eq!(runs, Ok(NamespaceAnswer::Runs(Vec::new())));
    let before = backend.counts();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(backend.counts(), before);
    delete(&gateway, "key").await;
    janitor_was_here().await;
    assert!(backend.objects().is_empty(), "the unneeded pack is deleted, not only zeroed");
    put(&gateway, "key", Bytes::from(vec![1; 5000]), Condition::Any).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_was_taken_for_dead_starts_over() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    put(&gateway, "key", Bytes::from(vec![1; 5000]), Condition::Any).await.unwrap();
    let Ok(NamespaceAnswer::Runs(runs)) = gateway.names.query(NamespaceQuery::Runs).await else {
        panic!("runs are asked for")
    };
    let (run, stamp) = runs[0];
    let other = backend.another(9, u64::MAX);
    other.commit(vec![NamespaceOp::EndRun { run, stamp }]).await.unwrap();
    let refused = put(&gateway, "new", Bytes::from(vec![2; 5000]), Condition::Any).await.unwrap_err();
    assert_eq!(refused.status_code().map(|s| s.as_u16()), Some(503), "{refused:?}");
    for size in [5000, 2 << 20] {
        put(&gateway, "new", vec![2; size].into(), Condition::Any).await.unwrap();
    }
    assert!(gateway.names.object("b", "key").await.is_ok(), "what had a name keeps it");
}

/// Another gateway's janitor ended its run and freed what it had leased, while it stood still amid a large object and
/// between small ones. Nothing that it goes on to write stays behind, and it finds out by itself.
#[tokio::test(start_paused = true)]
async fn what_a_gateway_writes_after_it_was_given_up_leaves_nothing() {
    for size in [5000, 2 << 20] {
        let backend = Arc::new(Memory::new(4 << 20));
        let mut tasks = JoinSet::new();
        let gateway = Gateway::start(backend.clone(), keys(), &mut tasks);
        gateway.names.commit(new_bucket(&backend)).await.unwrap();
        let old = put(&gateway, "old", vec![1; size].into(), Condition::Any).await;
        old.unwrap();
        let mut large = gateway.store.writer(&Pool::replicated(), None);
        large.push(&vec![2; 1 << 20]).await.unwrap();
        // It stands still, and its janitor with it.
        tasks.abort_all();
        let heir = Gateway::start(Arc::new(backend.another(9, u64::MAX)), keys(), &mut tasks);
        tokio::time::sleep(SILENCE + Duration::from_secs(40)).await;
        let kept = backend.objects();
        let refused = put(&gateway, "new", vec![4; size].into(), Condition::Any).await.unwrap_err();
        assert_eq!(refused.status_code().map(|s| s.as_u16()), Some(503), "{refused:?}");
        large.push(&vec![3; 2 << 20]).await.unwrap();
        assert_eq!(large.finish().await.err(), Some(BackendError::GivenUp));
        assert_eq!(backend.objects(), kept);
        // What was leased is lost as a whole: one refusal is enough to know.
        put(&gateway, "new", vec![4; size].into(), Condition::Any).await.unwrap();
        let named = [("old", &heir), ("new", &gateway)].map(|(key, by)| by.names.object("b", key));
        let mut objects = BTreeSet::new();
        for meta in futures_util::future::join_all(named).await {
            objects.extend(meta.unwrap().extents.iter().map(|extent| extent.object));
        }
        assert_eq!(backend.objects(), objects, "of {size} bytes");
    }
}

/// Without a metadata leader nobody can renew a lease: the first that reaches the next one ends no other's run.
#[tokio::test(start_paused = true)]
async fn a_time_without_the_namespace_is_no_gateways_silence() {
    let backend = Arc::new(Memory::new(4 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let mut large = gateway.store.writer(&Pool::replicated(), None);
    large.push(&vec![2; 2 << 20]).await.unwrap();
    for other in 5..9 {
        // Their rounds fall between those of the first.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Gateway::start(Arc::new(backend.another(other, u64::MAX)), keys(), &mut tasks);
    }
    tokio::time::sleep(SILENCE * 2).await;
    backend.break_namespace(true);
    // The first round after it is another's.
    tokio::time::sleep(SILENCE * 2 + Duration::from_secs(5)).await;
    backend.break_namespace(false);
    tokio::time::sleep(SILENCE * 2).await;
    let (whole, _) = large.finish().await.unwrap();
    assert!(backend.objects().contains(&whole.take()[0].object), "nothing of it was freed");
}

/// Chunk servers that answer a gateway no deletion do not make it silent.
#[tokio::test(start_paused = true)]
async fn what_is_written_while_garbage_cannot_be_freed_keeps_its_lease() {
    let backend = Arc::new(Memory::new(4 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    put(&gateway, "old", vec![1; 2 << 20].into(), Condition::Any).await.unwrap();
    backend.hang_deletions(SILENCE * 4);
    delete(&gateway, "old").await;
    let mut large = gateway.store.writer(&Pool::replicated(), None);
    large.push(&vec![2; 2 << 20]).await.unwrap();
    Gateway::start(Arc::new(backend.another(9, u64::MAX)), keys(), &mut tasks);
    tokio::time::sleep(SILENCE * 3).await;
    let (whole, _) = large.finish().await.unwrap();
    let Ok(NamespaceAnswer::Leased(leased)) =
        gateway.names.query(NamespaceQuery::Leased { after: None, limit: PAGE_MAX }).await
    else {
        panic!("leases are asked for")
    };
    assert!(leased.contains(&whole.take()[0].object), "{leased:?}");
}

#[tokio::test]
async fn small_objects_are_spread_over_several_packs() {
    let backend = Arc::new(Memory::new(64 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    for n in 0..120 {
        put(&gateway, &format!("k{n}"), vec![1; 300 << 10].into(), Condition::Any).await.unwrap();
    }
    assert!(backend.objects().len() >= 7, "{:?}", backend.objects());
}
