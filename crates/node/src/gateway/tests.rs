//! The gateway against an in-memory cluster: real S3 clients over HTTP, and the promises that no client can see.

use super::backend::{Backend, BackendError};
use super::intake::{Stated, take_in};
use super::janitor::SILENCE;
use super::memory::Memory;
use super::names::NameError;
use super::{Gateway, GatewayConfig, serve};
use bytes::Bytes;
use ebb_types::{
    Condition, NamespaceAnswer, NamespaceDone, NamespaceError, NamespaceOp, NamespaceQuery, ObjectId,
    ObjectMeta, Part,
};
use s3s::{S3ErrorCode, S3Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const ACCESS_KEY: &str = "testkey";
const SECRET_KEY: &str = "testsecret0123456789";

/// Serves `backend` on a thread of its own until the test program ends. Returns the endpoint.
fn serve_in_background(backend: Arc<Memory>) -> String {
    let (ready, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            let keys = [(ACCESS_KEY.to_owned(), SECRET_KEY.to_owned())].into();
            serve(listener, GatewayConfig { keys }, backend).await;
        });
    });
    format!("http://{}", address.recv().unwrap())
}

/// `EBB_TEST_ARGS` may hold arguments for the script, such as `-v Objects`.
#[test]
#[ignore = "tests/s3_clients.rs runs the same against a cluster; this one tells whose fault it is"]
fn real_clients_agree() {
    let endpoint = serve_in_background(Arc::new(Memory::new(4 << 20)));
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own_python = crate_dir.join("../../.venv/bin/python");
    let python = if own_python.exists() { own_python } else { "python3".into() };
    let arguments = std::env::var("EBB_TEST_ARGS").unwrap_or_default();
    let status = Command::new(python)
        .arg(crate_dir.join("tests/s3_clients.py"))
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

/// A gateway with one bucket, `b`.
async fn gateway(backend: &Arc<Memory>, tasks: &mut JoinSet<()>) -> Gateway<Memory> {
    let gateway = Gateway::start(backend.clone(), tasks);
    gateway.names.commit(NamespaceOp::CreateBucket { bucket: "b".into() }).await.unwrap();
    gateway
}

async fn put(gateway: &Gateway<Memory>, key: &str, body: Bytes, when: Condition) -> S3Result<()> {
    let taken = take_in(&gateway.store, futures_util::stream::iter([Ok(body)]), Stated::default()).await?;
    let meta = ObjectMeta {
        size: taken.size,
        etag: taken.etag,
        modified_millis: 0,
        extents: taken.data.take(),
        headers: Vec::new(),
        checksum: None,
        part_sizes: Vec::new(),
    };
    let (bucket, key) = ("b".into(), key.into());
    gateway.names.commit(NamespaceOp::Put { bucket, key, meta, when }).await?;
    Ok(())
}

async fn delete(gateway: &Gateway<Memory>, key: &str) {
    let op = NamespaceOp::Delete { bucket: "b".into(), key: key.into(), when: Condition::Any };
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
        let reader = gateway.open("b", key).await.unwrap();
        let pieces = reader.pieces(0..reader.meta.size);
        assert_eq!(pieces.len(), 1);
        assert_eq!(reader.read(pieces[0]).await.unwrap(), key.repeat(700));
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

#[tokio::test(start_paused = true)]
async fn a_put_that_is_broken_off_leaves_nothing() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let mut writer = gateway.store.writer(None);
    writer.push(&vec![7; 5 << 20]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(backend.used_bytes() > 0, "it writes while it receives");
    drop(writer);
    janitor_was_here().await;
    assert_eq!(backend.used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reader_never_sees_freed_bytes() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let body = Bytes::from(vec![9; 3 << 20]);
    put(&gateway, "key", body.clone(), Condition::Any).await.unwrap();
    let reader = gateway.open("b", "key").await.unwrap();
    let pieces = reader.pieces(0..reader.meta.size);
    janitor_was_here().await;
    assert_eq!(
        reader.read(pieces[0]).await.unwrap(),
        body[..pieces[0].len as usize],
        "a long read of a kept object goes on"
    );
    delete(&gateway, "key").await;
    assert_eq!(
        reader.read(pieces[1]).await.unwrap(),
        body[..pieces[1].len as usize],
        "a deletion leaves readers time"
    );
    janitor_was_here().await;
    assert!(reader.read(pieces[2]).await.is_err());
}

#[tokio::test]
async fn errors_of_the_cluster_get_codes_that_clients_understand() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    for (error, status) in [
        (BackendError::Unavailable("too few copies".into()), 503),
        (BackendError::NoSpace, 507),
        (BackendError::Failed("corrupt".into()), 500),
    ] {
        backend.break_chunks(Some(error));
        for size in [100, 2 << 20] {
            let error = put(&gateway, "key", vec![1; size].into(), Condition::Any).await.unwrap_err();
            assert_eq!(error.status_code().map(|s| s.as_u16()), Some(status), "{error:?}");
        }
        let unnamed = gateway.names.object("b", "key").await;
        assert_eq!(unnamed, Err(NameError::Refused(NamespaceError::NoSuchKey)), "no name before the data");
    }
    backend.break_chunks(None);
    put(&gateway, "key", vec![1; 100].into(), Condition::Any).await.unwrap();
}

/// Everything that leaves something behind: small and large objects, overwritten, refused, broken off, deleted, parts.
async fn busy_day(gateway: &Gateway<Memory>) {
    let create = NamespaceOp::CreateBucket { bucket: "b".into() };
    let _ = gateway.names.commit(create).await;
    let (small, large) = (Bytes::from(vec![1; 5000]), Bytes::from(vec![2; 3 << 20]));
    for (key, body) in [("small", &small), ("large", &large)] {
        for when in [Condition::Any, Condition::Any, Condition::Absent] {
            let _ = put(gateway, key, body.clone(), when).await;
        }
        let _ = put(gateway, "gone", body.clone(), Condition::Any).await;
        delete(gateway, "gone").await;
    }
    let mut broken_off = gateway.store.writer(None);
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
        let body = futures_util::stream::iter([Ok(large.clone())]);
        let Ok(taken) = take_in(&gateway.store, body, Stated::default()).await else { return };
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
            let reader = gateway.open("b", key).await.unwrap();
            for piece in reader.pieces(0..meta.size) {
                let bytes = reader.read(piece).await.unwrap();
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

/// The gateway dies after every one of its steps, and another finds what it left.
#[tokio::test(start_paused = true)]
async fn whatever_a_dead_gateway_left_unnamed_is_freed() {
    let mut died = 0;
    for step in 0.. {
        let cluster = Memory::new(1 << 20);
        let mut tasks = JoinSet::new();
        let mortal = Arc::new(cluster.another(2, step));
        let gateway = Gateway::start(mortal.clone(), &mut tasks);
        // What waits for a cluster that is not there any more waits for ever.
        let _ = tokio::time::timeout(Duration::from_secs(10), busy_day(&gateway)).await;
        tasks.abort_all();
        drop(gateway);
        let heir = Arc::new(cluster.another(3, u64::MAX));
        let mut tasks = JoinSet::new();
        let gateway = Gateway::start(heir.clone(), &mut tasks);
        tokio::time::sleep(SILENCE + Duration::from_secs(40)).await;
        assert_eq!(heir.objects(), named(&gateway).await, "after step {step}");
        died += u32::from(mortal.is_cut_off());
        if !mortal.is_cut_off() {
            break;
        }
    }
    assert!(died > 50, "only {died} steps");
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
    assert!(backend.objects().is_empty(), "the pack that nobody needs is deleted, not only zeroed");
    put(&gateway, "key", Bytes::from(vec![1; 5000]), Condition::Any).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_was_taken_for_dead_begins_anew() {
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
