//! The same in an erasure-coded pool. The in-memory cluster panics if a write begins inside a row, or a row is written
//! twice.

use super::*;
use crate::ops::list;
use ebb_types::Condition;
use futures_util::TryStreamExt;
use s3s::dto::*;
use s3s::{Body, S3Request};

const ROW: usize = 96 << 10;

pub(crate) fn pools() -> Vec<Pool> {
    let pool = |id, name: &str, row_bytes| Pool { id: PoolId(id), name: name.into(), row_bytes };
    vec![pool(1, "cold", ROW), pool(2, "wide", 192 << 10)]
}

/// Its chunks do not end with a row.
pub(crate) fn memory() -> Memory {
    Memory::with_pools(1 << 20, pools())
}

pub(crate) fn request<T>(input: T) -> S3Request<T> {
    S3Request {
        input,
        method: hyper::Method::PUT,
        uri: "/".parse().unwrap(),
        headers: hyper::HeaderMap::new(),
        extensions: hyper::http::Extensions::new(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    }
}

pub(crate) async fn create(gateway: &Gateway<Memory>, bucket: &str, location: Option<&str>) -> S3Result<()> {
    let create_bucket_configuration = location.map(|name| CreateBucketConfiguration {
        location_constraint: Some(BucketLocationConstraint::from(name.to_owned())),
        ..Default::default()
    });
    let bucket = bucket.to_owned();
    gateway
        .buckets
        .create(CreateBucketInput { bucket, create_bucket_configuration, ..Default::default() })
        .await
}

async fn put_as(gateway: &Gateway<Memory>, bucket: &str, key: &str, class: Option<&str>) -> S3Result<()> {
    let input = PutObjectInput {
        bucket: bucket.into(),
        key: key.into(),
        body: Some(StreamingBlob::from(Body::from(Bytes::from(vec![7; 5000])))),
        storage_class: class.map(|class| StorageClass::from(class.to_owned())),
        ..Default::default()
    };
    gateway.objects.put(request(input)).await.map(drop)
}

pub(crate) async fn class_of(gateway: &Gateway<Memory>, bucket: &str, key: &str) -> Option<String> {
    let input = HeadObjectInput { bucket: bucket.into(), key: key.into(), ..Default::default() };
    let head = gateway.objects.head(request(input)).await.unwrap();
    let input = GetObjectInput { bucket: bucket.into(), key: key.into(), ..Default::default() };
    let get = gateway.objects.get(request(input)).await.unwrap();
    assert_eq!(head.output.storage_class, get.storage_class);
    let list = ListObjectsV2Input { bucket: bucket.into(), prefix: Some(key.into()), ..Default::default() };
    let listed =
        list::v2(&gateway.names, list).await.unwrap().contents.unwrap().remove(0).storage_class.unwrap();
    let shown = head.output.storage_class.map(|class| class.as_str().to_owned());
    assert_eq!(listed.as_str(), shown.as_deref().unwrap_or("STANDARD"));
    shown
}

pub(crate) async fn pools_of(gateway: &Gateway<Memory>, bucket: &str, key: &str) -> BTreeSet<PoolId> {
    let meta = gateway.names.object(bucket, key).await.unwrap();
    meta.extents.iter().map(|extent| extent.object.pool()).collect()
}

pub(crate) fn content_of(size: usize) -> Bytes {
    (0..size).map(|n| (n / 5 + n / 4096) as u8).collect::<Vec<u8>>().into()
}

async fn read(gateway: &Gateway<Memory>, key: &str, range: std::ops::Range<u64>) -> Vec<u8> {
    let reader = gateway.objects.open("b", key).await.unwrap();
    let stream = reader.clone().stream(reader.pieces(range));
    stream.try_collect::<Vec<Bytes>>().await.unwrap().concat()
}

#[tokio::test]
async fn a_bucket_in_a_pool_that_does_not_exist_takes_nothing() {
    let gateway = Gateway::start(Arc::new(memory()), keys(), &mut JoinSet::new());
    let bucket_at = |name: &str, location: &str| {
        let settings = [(BucketSetting::Location, location.as_bytes().to_vec())].into();
        gateway.names.commit(NamespaceOp::CreateBucket { bucket: name.into(), settings })
    };
    bucket_at("lost", "marble").await.unwrap();
    let refused = put_as(&gateway, "lost", "key", None).await.unwrap_err();
    assert_eq!(*refused.code(), S3ErrorCode::InvalidBucketState);
    let why = refused.message().unwrap();
    assert!(why.contains("marble") && why.contains("cold, wide"), "{why}");
    bucket_at("here", "eu-west-1").await.unwrap();
    put_as(&gateway, "here", "key", None).await.unwrap();
}

#[tokio::test]
async fn a_pool_that_the_namespace_does_not_know_ends_a_write_at_once() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let unknown = Pool { id: PoolId(9), name: "marble".into(), row_bytes: ROW };
    let mut writer = gateway.store.writer(&unknown, None);
    let outcome = async {
        writer.push(&content_of(9 * ROW)).await?;
        writer.flush().await
    };
    let refused = tokio::time::timeout(Duration::from_secs(10), outcome).await.expect("it is not repeated");
    assert!(matches!(refused, Err(BackendError::Failed(_))), "{refused:?}");
}

#[tokio::test]
async fn objects_of_all_sizes_are_written_in_rows_and_read_back() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let edges = [0, 4 << 10, 16 << 10, ROW, 512 << 10, 10 * ROW, 1 << 20, (1 << 20) + ROW, 3 << 20];
    let mut sizes: Vec<usize> = edges.iter().flat_map(|n| [n.saturating_sub(1), *n, n + 1]).collect();
    sizes.push(2_500_007);
    let puts =
        sizes.iter().map(|n| async { put(&gateway, &n.to_string(), content_of(*n), Condition::Any).await });
    futures_util::future::try_join_all(puts).await.unwrap();
    for size in sizes {
        let (key, whole, end) = (size.to_string(), content_of(size), size as u64);
        assert!(read(&gateway, &key, 0..end).await == whole, "{size}");
        for from in [1, 4095, 16 << 10, ROW as u64 + 1, (1 << 20) - 1].into_iter().filter(|from| *from < end)
        {
            let to = end.min(from + 150_001);
            assert!(
                read(&gateway, &key, from..to).await == whole[from as usize..to as usize],
                "{size} {from}"
            );
        }
        let pools: Vec<PoolId> = pools_of(&gateway, "b", &key).await.into_iter().collect();
        assert_eq!(pools, if size == 0 { vec![] } else { vec![PoolId(1)] });
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_upload_is_cut_where_rows_begin() {
    for (nth, drop_bytes) in [30_001, 90_001, 131_072, 700_000].into_iter().enumerate() {
        let backend = Arc::new(memory());
        let mut tasks = JoinSet::new();
        let gateway = gateway(&backend, &mut tasks).await;
        let whole = content_of(2_500_000);
        let drops: Vec<Bytes> = whole.chunks(drop_bytes).map(Bytes::copy_from_slice).collect();
        let body = futures_util::stream::iter(drops).then(|drop| async move {
            tokio::time::sleep(Duration::from_millis(700)).await;
            Ok(drop)
        });
        let pool = &pools()[nth % 2];
        let taken = take_in(&gateway.store, pool, body, Stated::default()).await.unwrap();
        let extents = taken.data.take();
        let mut back = Vec::new();
        for piece in gateway.store.pieces(&extents, 0..whole.len() as u64) {
            back.extend_from_slice(&gateway.store.read(piece).await.unwrap().bytes);
        }
        assert!(back == whole, "drops of {drop_bytes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_upload_holds_less_than_a_row_and_no_share() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let mut writer = gateway.store.writer(&pools()[0], None);
    writer.push(&content_of(9 * ROW + 60_000)).await.unwrap();
    writer.flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(backend.used_bytes(), 9 * ROW);
    let mut others = Vec::new();
    for _ in 0..100 {
        let mut writer = gateway.store.writer(&pools()[0], None);
        let body = content_of(60_000);
        let pushed = tokio::time::timeout(PATIENCE, writer.push(&body)).await;
        pushed.expect("there is room in memory").unwrap();
        writer.flush().await.unwrap();
        others.push(writer);
    }
    assert!(!gateway.store.pieces.is_exhausted());
    writer.push(&content_of(10)).await.unwrap();
    assert_eq!(writer.finish().await.unwrap().0.take()[0].len, 9 * ROW as u64 + 60_010);
}

#[tokio::test(start_paused = true)]
async fn a_pack_is_freed_as_a_whole_and_a_large_object_at_once() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    for n in 0..5 {
        put(&gateway, &format!("small{n}"), content_of(5000), Condition::Any).await.unwrap();
    }
    let packed = backend.used_bytes();
    put(&gateway, "large", content_of(3 << 20), Condition::Any).await.unwrap();
    delete(&gateway, "large").await;
    delete(&gateway, "small0").await;
    janitor_was_here().await;
    assert_eq!(backend.used_bytes(), packed, "the large object is gone, and the pack is whole");
    for n in 1..5 {
        delete(&gateway, &format!("small{n}")).await;
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(backend.used_bytes(), 0);
    let garbage = gateway.names.query(NamespaceQuery::Garbage { after: 0, limit: 10 }).await;
    assert_eq!(garbage, Ok(NamespaceAnswer::Garbage(Vec::new())));
}

#[tokio::test(start_paused = true)]
async fn whatever_a_dead_gateway_left_in_a_pool_is_freed() {
    dead_gateways_leave_nothing(memory).await;
}

#[tokio::test]
async fn a_bucket_is_in_the_pool_that_its_location_names() {
    let backend = Arc::new(memory());
    let gateway = Gateway::start(backend, keys(), &mut JoinSet::new());
    for (bucket, location, shown, pool) in [
        ("none", None, None, 0),
        ("region", Some("us-east-1"), None, 0),
        ("empty", Some(""), None, 0),
        ("foreign", Some("eu-west-1"), Some("eu-west-1"), 0),
        ("coded", Some("cold"), Some("cold"), 1),
        ("other", Some("wide"), Some("wide"), 2),
    ] {
        create(&gateway, bucket, location).await.unwrap();
        assert_eq!(gateway.buckets.location(bucket.into()).await.unwrap().as_deref(), shown);
        put_as(&gateway, bucket, "key", None).await.unwrap();
        assert_eq!(pools_of(&gateway, bucket, "key").await, [PoolId(pool)].into(), "{bucket}");
        assert_eq!(class_of(&gateway, bucket, "key").await, None);
    }
    let refused = create(&gateway, "new", Some("marble")).await.unwrap_err();
    assert_eq!(*refused.code(), S3ErrorCode::InvalidLocationConstraint);
    assert!(refused.message().unwrap().contains("cold, wide"), "{refused:?}");
    let missing = put_as(&gateway, "new", "key", None).await.unwrap_err();
    assert_eq!(*missing.code(), S3ErrorCode::NoSuchBucket);
    let input = DeleteObjectInput { bucket: "coded".into(), key: "key".into(), ..Default::default() };
    gateway.objects.delete(request(input)).await.unwrap();
    gateway.buckets.delete("coded".into()).await.unwrap();
    create(&gateway, "coded", None).await.unwrap();
    put_as(&gateway, "coded", "key", None).await.unwrap();
    assert_eq!(pools_of(&gateway, "coded", "key").await, [PoolId(0)].into(), "the new bucket's");
}

#[tokio::test]
async fn a_storage_class_sends_an_object_to_its_pool() {
    let gateway = Gateway::start(Arc::new(memory()), keys(), &mut JoinSet::new());
    create(&gateway, "warm", None).await.unwrap();
    create(&gateway, "coded", Some("cold")).await.unwrap();
    for (key, class, shown, pool) in
        [("a", Some("STANDARD"), None, 0), ("b", Some("cold"), Some("cold"), 1), ("c", None, None, 0)]
    {
        put_as(&gateway, "warm", key, class).await.unwrap();
        assert_eq!(pools_of(&gateway, "warm", key).await, [PoolId(pool)].into(), "{key}");
        assert_eq!(class_of(&gateway, "warm", key).await.as_deref(), shown, "{key}");
    }
    let unknown = put_as(&gateway, "warm", "d", Some("GLACIER")).await.unwrap_err();
    assert_eq!(*unknown.code(), S3ErrorCode::InvalidStorageClass);
    assert!(unknown.message().unwrap().contains("cold, wide"), "{unknown:?}");
    put_as(&gateway, "coded", "a", Some("STANDARD")).await.unwrap();
    let other = put_as(&gateway, "coded", "b", Some("wide")).await.unwrap_err();
    assert_eq!(*other.code(), S3ErrorCode::InvalidStorageClass);
    let copy = |key: &str, class: Option<&str>| {
        let (bucket, key) = ("warm".to_owned(), key.to_owned());
        let source = CopySource::Bucket { bucket: "warm".into(), key: "b".into(), version_id: None };
        let mut copy = CopyObjectInput::builder();
        copy.set_bucket(bucket);
        copy.set_key(key);
        copy.set_copy_source(source);
        copy.set_storage_class(class.map(|class| StorageClass::from(class.to_owned())));
        gateway.objects.copy(request(copy.build().unwrap()))
    };
    copy("e", None).await.unwrap();
    assert_eq!(class_of(&gateway, "warm", "e").await, None, "a copy does not inherit the class");
    copy("b", Some("cold")).await.unwrap_err();
    copy("b", Some("wide")).await.unwrap();
    assert_eq!(pools_of(&gateway, "warm", "b").await, [PoolId(2)].into());
    assert_eq!(class_of(&gateway, "warm", "b").await.as_deref(), Some("wide"));
}

#[tokio::test]
async fn the_parts_of_an_upload_go_to_its_class() {
    let gateway = Gateway::start(Arc::new(memory()), keys(), &mut JoinSet::new());
    create(&gateway, "warm", None).await.unwrap();
    let (bucket, key) = ("warm".to_owned(), "key".to_owned());
    let input = CreateMultipartUploadInput {
        bucket: bucket.clone(),
        key: key.clone(),
        storage_class: Some(StorageClass::from("wide".to_owned())),
        ..Default::default()
    };
    let upload_id = gateway.uploads.create(request(input)).await.unwrap().upload_id.unwrap();
    let mut parts = Vec::new();
    for (number, size) in [(1, (5 << 20) + 1), (2, 300_001)] {
        let mut part = UploadPartInput::builder();
        part.set_bucket(bucket.clone());
        part.set_key(key.clone());
        part.set_upload_id(upload_id.clone());
        part.set_part_number(number);
        part.set_body(Some(StreamingBlob::from(Body::from(content_of(size)))));
        let done = gateway.uploads.put_part(request(part.build().unwrap())).await.unwrap();
        parts.push(CompletedPart { e_tag: done.e_tag, part_number: Some(number), ..Default::default() });
    }
    let mut listing = ListMultipartUploadsInput::builder();
    listing.set_bucket(bucket.clone());
    let listed = gateway.uploads.list(listing.build().unwrap()).await.unwrap().uploads.unwrap();
    assert_eq!(listed[0].storage_class.as_ref().unwrap().as_str(), "wide");
    let input = CompleteMultipartUploadInput {
        bucket,
        key,
        upload_id,
        multipart_upload: Some(CompletedMultipartUpload { parts: Some(parts) }),
        ..Default::default()
    };
    gateway.uploads.complete(request(input)).await.unwrap();
    assert_eq!(pools_of(&gateway, "warm", "key").await, [PoolId(2)].into());
    assert_eq!(class_of(&gateway, "warm", "key").await.as_deref(), Some("wide"));
    let reader = gateway.objects.open("warm", "key").await.unwrap();
    let stream = reader.clone().stream(reader.pieces(0..reader.meta.size));
    let back = stream.try_collect::<Vec<Bytes>>().await.unwrap().concat();
    assert!(back == [content_of((5 << 20) + 1), content_of(300_001)].concat());
}

#[tokio::test]
async fn restoring_an_object_wakes_what_it_needs_and_says_whether_that_slept() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    create(&gateway, "archive", Some("cold")).await.unwrap();
    create(&gateway, "hot", None).await.unwrap();
    for bucket in ["archive", "hot"] {
        put_as(&gateway, bucket, "key", None).await.unwrap();
    }
    let restore = async |bucket: &str, key: &str| {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        gateway.objects.restore(RestoreObjectInput { bucket, key, ..Default::default() }).await
    };
    assert!(!restore("archive", "key").await.unwrap());
    backend.hibernate();
    assert!(!restore("hot", "key").await.unwrap(), "the replicated pool never sleeps as a whole");
    assert_eq!(*restore("archive", "other").await.unwrap_err().code(), S3ErrorCode::NoSuchKey);
    assert!(restore("archive", "key").await.unwrap());
    assert!(!restore("archive", "key").await.unwrap(), "it is awake");
}

/// Its client has missed the answer, or has not waited for it.
#[tokio::test]
async fn a_completion_that_comes_while_the_same_one_is_carried_out_gets_the_same_answer() {
    let memory = Arc::new(memory());
    let behind = Arc::new(memory.another(2, u64::MAX));
    let gateway = Gateway::start(memory, keys(), &mut JoinSet::new());
    let late = Gateway::start(behind.clone(), keys(), &mut JoinSet::new());
    create(&gateway, "warm", None).await.unwrap();
    let input = super::moved::put_parts(&gateway, "key", &[5000]).await;
    let complete = || gateway.uploads.complete(request(input.clone()));
    // The upload is gone once the second one, which has looked it up, asks for its parts.
    let held = behind.listings.write().await;
    let (again, first) = tokio::join!(late.uploads.complete(request(input.clone())), async {
        let first = complete().await;
        drop(held);
        first
    });
    assert_eq!(first.unwrap().e_tag, again.unwrap().e_tag);
    assert!(complete().await.is_ok());
    let mut other = input.clone();
    other.checksum_crc64nvme = Some("AAAAAAAAAAA=".into());
    let refused = gateway.uploads.complete(request(other)).await.unwrap_err();
    assert_eq!(*refused.code(), S3ErrorCode::BadDigest);
    put_as(&gateway, "warm", "key", None).await.unwrap();
    assert_eq!(*complete().await.unwrap_err().code(), S3ErrorCode::NoSuchUpload, "it was replaced");
}
