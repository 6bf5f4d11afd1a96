//! Objects that move to other pools by lifecycle rules.

use super::coded::{class_of, content_of, create, memory, pools_of, request};
use super::*;
use crate::ops::{lifecycle, tags};
use futures_util::TryStreamExt;
use s3s::Body;
use s3s::dto::*;

const YEAR_MILLIS: u64 = 366 * 24 * 3600 * 1000;
const QUICK: u64 = u64::MAX;

fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// A rule that moves objects below `prefix`, of every size, after `days`.
fn rule(prefix: &str, class: &str, days: i32) -> LifecycleRule {
    let and = LifecycleRuleAndOperator {
        prefix: Some(prefix.to_owned()),
        object_size_greater_than: Some(0),
        ..Default::default()
    };
    let to = Transition {
        days: Some(days),
        storage_class: Some(TransitionStorageClass::from(class.to_owned())),
        ..Default::default()
    };
    LifecycleRule {
        abort_incomplete_multipart_upload: None,
        expiration: None,
        filter: Some(LifecycleRuleFilter { and: Some(and), ..Default::default() }),
        id: Some(format!("{prefix} to {class} after {days}")),
        noncurrent_version_expiration: None,
        noncurrent_version_transitions: None,
        prefix: None,
        status: ExpirationStatus::from_static(ExpirationStatus::ENABLED),
        transitions: Some(vec![to]),
    }
}

async fn set_rules(gateway: &Gateway<Memory>, bucket: &str, rules: Vec<LifecycleRule>) -> S3Result<()> {
    let input = PutBucketLifecycleConfigurationInput {
        bucket: bucket.into(),
        lifecycle_configuration: Some(BucketLifecycleConfiguration { rules }),
        ..Default::default()
    };
    lifecycle::set(&gateway.buckets, input).await
}

async fn put_object(gateway: &Gateway<Memory>, key: &str, content: Bytes) {
    let input = PutObjectInput {
        bucket: "warm".into(),
        key: key.into(),
        body: Some(StreamingBlob::from(Body::from(content))),
        content_type: Some("text/plain".into()),
        metadata: Some([("colour".to_owned(), "red".to_owned())].into()),
        tagging: Some("k=v".into()),
        ..Default::default()
    };
    gateway.objects.put(request(input)).await.unwrap();
}

async fn put_in_parts(gateway: &Gateway<Memory>, key: &str, sizes: &[usize]) {
    gateway.uploads.complete(request(put_parts(gateway, key, sizes).await)).await.unwrap();
}

/// Puts the parts. Returns what completes their upload.
pub async fn put_parts(
    gateway: &Gateway<Memory>,
    key: &str,
    sizes: &[usize],
) -> CompleteMultipartUploadInput {
    let (bucket, key) = ("warm".to_owned(), key.to_owned());
    let input = CreateMultipartUploadInput {
        bucket: bucket.clone(),
        key: key.clone(),
        checksum_algorithm: Some(ChecksumAlgorithm::from_static(ChecksumAlgorithm::CRC64NVME)),
        ..Default::default()
    };
    let upload_id = gateway.uploads.create(request(input)).await.unwrap().upload_id.unwrap();
    let mut parts = Vec::new();
    for (number, size) in (1..).zip(sizes) {
        let mut part = UploadPartInput::builder();
        part.set_bucket(bucket.clone());
        part.set_key(key.clone());
        part.set_upload_id(upload_id.clone());
        part.set_part_number(number);
        let content = content_of(*size);
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &content).to_be_bytes();
        part.set_checksum_crc64nvme(Some(base64_simd::STANDARD.encode_to_string(sum)));
        part.set_body(Some(StreamingBlob::from(Body::from(content))));
        let done = gateway.uploads.put_part(request(part.build().unwrap())).await.unwrap();
        parts.push(CompletedPart { e_tag: done.e_tag, part_number: Some(number), ..Default::default() });
    }
    let multipart_upload = Some(CompletedMultipartUpload { parts: Some(parts) });
    CompleteMultipartUploadInput { bucket, key, upload_id, multipart_upload, ..Default::default() }
}

async fn content(gateway: &Gateway<Memory>, key: &str) -> Vec<u8> {
    content_in(gateway, "warm", key).await
}

async fn meta_of(gateway: &Gateway<Memory>, key: &str) -> ObjectMeta {
    gateway.names.object("warm", key).await.unwrap()
}

/// All of an object's metadata but where it is, and its class.
fn unmoved(meta: &ObjectMeta) -> ObjectMeta {
    let mut meta = ObjectMeta { extents: Vec::new(), ..meta.clone() };
    meta.headers.retain(|(name, _)| name != ebb_types::CLASS_HEADER);
    meta.headers.sort();
    meta
}

/// The objects that the keys name.
async fn named_by(gateway: &Gateway<Memory>, keys: &[&str]) -> BTreeSet<ObjectId> {
    named_in(gateway, "warm", keys.iter().map(|key| (*key).to_owned())).await
}

/// A gateway with the bucket `warm`, whose objects move to `cold`.
async fn moving_gateway(backend: &Arc<Memory>, tasks: &mut JoinSet<()>) -> Gateway<Memory> {
    let gateway = Gateway::start(backend.clone(), keys(), tasks);
    create(&gateway, "warm", None).await.unwrap();
    set_rules(&gateway, "warm", vec![rule("", "cold", 30)]).await.unwrap();
    gateway
}

#[tokio::test(start_paused = true)]
async fn an_object_moves_when_it_is_old_enough_and_stays_what_it_was() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = moving_gateway(&backend, &mut tasks).await;
    let rules = vec![rule("old/", "cold", 30), rule("old/", "wide", 60)];
    set_rules(&gateway, "warm", rules.clone()).await.unwrap();
    assert_eq!(lifecycle::rules(&gateway.buckets, "warm".into()).await.unwrap(), rules);
    let keys = ["old/small", "old/large", "old/parts", "other"];
    put_object(&gateway, keys[0], content_of(5000)).await;
    put_object(&gateway, keys[1], content_of(3_000_001)).await;
    put_in_parts(&gateway, keys[2], &[(5 << 20) + 1, 300_001]).await;
    put_object(&gateway, keys[3], content_of(200_000)).await;
    put_object(&gateway, "old/empty", Bytes::new()).await;
    let mut before = Vec::new();
    for key in keys {
        before.push((meta_of(&gateway, key).await, content(&gateway, key).await));
    }
    let mover = gateway.mover(QUICK);
    assert_eq!(mover.round(now()).await, Ok(0));
    for (days, class, pool) in [(32, "cold", 1), (62, "wide", 2)] {
        let then = now() + days * 24 * 3600 * 1000;
        assert_eq!(mover.round(then).await, Ok(3));
        assert_eq!(mover.round(then).await, Ok(0), "they are there");
        for key in &keys[..3] {
            assert_eq!(pools_of(&gateway, "warm", key).await, [PoolId(pool)].into(), "{key}");
            assert_eq!(class_of(&gateway, "warm", key).await.as_deref(), Some(class), "{key}");
        }
        assert_eq!(pools_of(&gateway, "warm", "other").await, [PoolId::REPLICATED].into());
        for (key, (meta, whole)) in keys.iter().zip(&before) {
            assert_eq!(unmoved(&meta_of(&gateway, key).await), unmoved(meta), "{key}");
            assert!(content(&gateway, key).await == *whole, "{key}");
        }
        // Packs go when they are closed.
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(backend.objects(), named_by(&gateway, &keys).await, "what was left behind is freed");
    }
}

#[tokio::test]
async fn a_rule_must_name_a_pool_that_objects_of_the_bucket_can_move_to() {
    let gateway = Gateway::start(Arc::new(memory()), keys(), &mut JoinSet::new());
    create(&gateway, "warm", None).await.unwrap();
    create(&gateway, "coded", Some("cold")).await.unwrap();
    for (bucket, class, says) in [
        ("warm", "GLACIER", "cold, wide"),
        ("warm", "STANDARD", "STANDARD"),
        ("coded", "wide", "in the pool cold"),
    ] {
        let refused = set_rules(&gateway, bucket, vec![rule("", class, 1)]).await.unwrap_err();
        assert_eq!(*refused.code(), S3ErrorCode::InvalidStorageClass, "{refused:?}");
        assert!(refused.message().unwrap().contains(says), "{refused:?}");
    }
    set_rules(&gateway, "warm", vec![rule("", "wide", 1)]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_replaced_or_deleted_while_it_is_copied_is_left_alone() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = moving_gateway(&backend, &mut tasks).await;
    for key in ["replaced", "deleted", "tagged"] {
        put_object(&gateway, key, content_of(4 << 20)).await;
    }
    let mover = gateway.mover(1 << 20);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let copied = |id: &ObjectId| id.pool() == PoolId(1);
        assert!(backend.objects().iter().any(copied), "it has begun");
        put_object(&gateway, "replaced", content_of(4 << 20)).await;
        let input = DeleteObjectInput { bucket: "warm".into(), key: "deleted".into(), ..Default::default() };
        gateway.objects.delete(request(input)).await.unwrap();
        let tag = Tag { key: Some("new".into()), value: Some("tag".into()) };
        let mut input = PutObjectTaggingInput::builder();
        input.set_bucket("warm".into());
        input.set_key("tagged".into());
        input.set_tagging(Tagging { tag_set: vec![tag] });
        tags::set(&gateway.names, input.build().unwrap()).await.unwrap();
        meta_of(&gateway, "replaced").await
    };
    let (moved, replaced) = tokio::join!(mover.round(now() + YEAR_MILLIS), meanwhile);
    assert_eq!(moved, Ok(1));
    assert_eq!(meta_of(&gateway, "replaced").await, replaced);
    assert!(gateway.names.object("warm", "deleted").await.is_err());
    assert_eq!(class_of(&gateway, "warm", "tagged").await.as_deref(), Some("cold"));
    let tagged = meta_of(&gateway, "tagged").await;
    assert_eq!(tags::of_object(&tagged), "new=tag");
    janitor_was_here().await;
    assert_eq!(backend.objects(), named_by(&gateway, &["replaced", "tagged"]).await);
}

#[tokio::test(start_paused = true)]
async fn several_gateways_at_once_move_each_object_once() {
    let backend = Arc::new(memory());
    let (mut tasks, mut others) = (JoinSet::new(), JoinSet::new());
    let gateway = moving_gateway(&backend, &mut tasks).await;
    let other = Gateway::start(Arc::new(backend.another(2, u64::MAX)), keys(), &mut others);
    let keys = ["a", "b", "c", "d", "e", "f"];
    for (n, key) in keys.iter().enumerate() {
        put_object(&gateway, key, content_of(5000 + n * 700_000)).await;
    }
    let (one, two) = (gateway.mover(1 << 20), other.mover(1 << 20));
    let then = now() + YEAR_MILLIS;
    let (by_one, by_two) = tokio::join!(one.round(then), two.round(then));
    assert_eq!(by_one.unwrap() + by_two.unwrap(), 6);
    for (n, key) in keys.iter().enumerate() {
        assert!(content(&other, key).await == content_of(5000 + n * 700_000), "{key}");
        assert_eq!(pools_of(&gateway, "warm", key).await, [PoolId(1)].into());
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(backend.objects(), named_by(&gateway, &keys).await);
}

/// The gateway dies after each of its steps, and another cleans up what it left.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_dies_while_it_moves_loses_and_leaves_nothing() {
    let keys_of = ["small", "large"];
    let (mut died, mut moved_by_dead) = (0, 0);
    for step in 0.. {
        let cluster = Arc::new(memory());
        let mut tasks = JoinSet::new();
        let gateway = moving_gateway(&cluster, &mut tasks).await;
        put_object(&gateway, "small", content_of(5000)).await;
        put_object(&gateway, "large", content_of(2_500_000)).await;
        tasks.abort_all();
        let mortal = Arc::new(cluster.another(2, step));
        let mut tasks = JoinSet::new();
        let gateway = Gateway::start(mortal.clone(), keys(), &mut tasks);
        let mover = gateway.mover(QUICK);
        // A request to a cluster that is gone waits forever.
        let _ = tokio::time::timeout(Duration::from_secs(10), mover.round(now() + YEAR_MILLIS)).await;
        tasks.abort_all();
        drop((mover, gateway));
        let heir = Arc::new(cluster.another(3, u64::MAX));
        let mut tasks = JoinSet::new();
        let gateway = Gateway::start(heir.clone(), keys(), &mut tasks);
        tokio::time::sleep(SILENCE + Duration::from_secs(40)).await;
        for (key, size) in keys_of.into_iter().zip([5000, 2_500_000]) {
            assert!(content(&gateway, key).await == content_of(size), "{key} after step {step}");
            let pools = pools_of(&gateway, "warm", key).await;
            let class = class_of(&gateway, "warm", key).await;
            assert_eq!(pools, [PoolId(u8::from(class.is_some()))].into(), "{key} after step {step}");
            moved_by_dead += u32::from(mortal.is_cut_off() && class.is_some());
        }
        assert_eq!(heir.objects(), named_by(&gateway, &keys_of).await, "after step {step}");
        let mover = gateway.mover(QUICK);
        mover.round(now() + YEAR_MILLIS).await.unwrap();
        for key in keys_of {
            assert_eq!(class_of(&gateway, "warm", key).await.as_deref(), Some("cold"), "after step {step}");
        }
        if !mortal.is_cut_off() {
            break;
        }
        died += 1;
    }
    assert!(died >= 8 && moved_by_dead > 0, "{died} steps, {moved_by_dead} moves");
}

#[tokio::test(start_paused = true)]
async fn a_reader_goes_on_where_the_object_is_now() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = moving_gateway(&backend, &mut tasks).await;
    let whole = content_of((16 << 20) + 1);
    put_object(&gateway, "key", whole.clone()).await;
    let reader = gateway.objects.open("warm", "key").await.unwrap();
    let pieces = reader.pieces(0..reader.meta.size);
    let mut stream = std::pin::pin!(reader.clone().stream(pieces.clone()));
    let mut back = stream.next().await.unwrap().unwrap().to_vec();
    assert_eq!(gateway.mover(QUICK).round(now() + YEAR_MILLIS).await, Ok(1));
    janitor_was_here().await;
    assert!(backend.objects().iter().all(|id| id.pool() == PoolId(1)), "the old bytes are gone");
    back.extend(stream.try_collect::<Vec<Bytes>>().await.unwrap().concat());
    assert!(back == whole);
    put_object(&gateway, "key", whole).await;
    janitor_was_here().await;
    assert!(reader.read(pieces[1]).await.is_err(), "that is another object");
}

#[tokio::test]
async fn bytes_that_are_not_those_that_were_put_do_not_move() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = moving_gateway(&backend, &mut tasks).await;
    put_object(&gateway, "key", content_of(3_000_001)).await;
    let before = meta_of(&gateway, "key").await;
    backend.garble();
    assert_eq!(gateway.mover(QUICK).round(now() + YEAR_MILLIS).await, Ok(0));
    assert_eq!(meta_of(&gateway, "key").await, before);
}

#[tokio::test(start_paused = true)]
async fn objects_move_only_in_a_trough() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = moving_gateway(&backend, &mut tasks).await;
    put_object(&gateway, "key", content_of(8 << 20)).await;
    let mover = gateway.mover(128 << 10);
    let round = mover.round(now() + YEAR_MILLIS);
    backend.be_busy(true);
    let load = async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(backend.objects().iter().all(|id| id.pool() == PoolId::REPLICATED), "not begun");
        backend.be_busy(false);
        tokio::time::sleep(Duration::from_secs(40)).await;
        backend.be_busy(true);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let used = backend.used_bytes();
        assert!(used > 8 << 20, "begun");
        tokio::time::sleep(Duration::from_secs(7200)).await;
        assert_eq!(backend.used_bytes(), used, "it waits in the middle");
        backend.be_busy(false);
    };
    let (moved, ()) = tokio::join!(round, load);
    assert_eq!(moved, Ok(1));
    assert!(content(&gateway, "key").await == content_of(8 << 20));
    assert_eq!(pools_of(&gateway, "warm", "key").await, [PoolId(1)].into());
}
