//! What is not understood is refused, and nothing is done (R20).

use super::coded::request;
use super::*;
use crate::http::understood::OPERATIONS;
use s3s::dto::GetObjectInput;

/// Every operation that an SDK has, with the least input: see `scripts/s3-operations`.
const MODEL: &str = include_str!("operations.txt");

impl Served {
    fn send(&self, what: (&str, &str), headers: &[(&str, &str)], body: &[u8]) -> s3::Answer {
        s3::request_with(&self.address, (ACCESS_KEY, SECRET_KEY), what, headers, body).unwrap()
    }

    fn text(&self, path: &str) -> String {
        String::from_utf8(self.answer("GET", path, b"").body).unwrap()
    }

    /// All that a client can see of two buckets, one of them empty.
    fn seen(&self, full: &str, empty: &str) -> Vec<String> {
        let mut seen = vec![self.text(&format!("/{full}/key")), self.text(&format!("/{full}/key?tagging"))];
        let settings = ["tagging", "cors", "lifecycle", "location", "uploads", "versions"];
        for bucket in [full, empty] {
            // An error has an id of its own.
            let setting = |name: &&str| self.text(&format!("/{bucket}?{name}"));
            let without_id = |text: String| text.split("<RequestId>").next().unwrap_or_default().to_owned();
            seen.extend(settings.iter().map(setting).map(without_id));
        }
        seen
    }
}

/// `<Code>` or `<Message>` of an error.
fn element<'a>(answer: &'a s3::Answer, name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(&answer.body).ok()?;
    text.split_once(&format!("<{name}>"))?.1.split_once("</").map(|(value, _)| value)
}

#[test]
fn every_operation_is_supported_or_refused_before_anything_is_done() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/full", b""), 200);
    assert_eq!(served.ask("PUT", "/empty", b""), 200);
    assert_eq!(served.ask("PUT", "/full/key", b"text"), 200);
    let before = served.seen("full", "empty");
    let supported = |name: &str| OPERATIONS.iter().any(|(operation, _)| *operation == name);
    let (mut refused, mut known) = (0, 0usize);
    for line in MODEL.lines().filter(|line| !line.starts_with('#')) {
        let mut columns = line.split('\t').chain(std::iter::repeat(""));
        let mut next = || columns.next().unwrap_or_default();
        let (name, method, path, headers, body) = (next(), next(), next(), next(), next());
        // With the least input, these are other operations' requests.
        if supported(name) || name == "ListDirectoryBuckets" {
            known += usize::from(supported(name));
            continue;
        }
        for bucket in ["full", "empty"] {
            let filled = |text: &str| text.replace("{Bucket}", bucket).replace("{Key}", "key");
            let (path, headers) = (filled(path), filled(headers));
            let headers: Vec<_> = headers.split(", ").filter_map(|line| line.split_once(": ")).collect();
            let answer = served.send((method, &path), &headers, body.as_bytes());
            assert!(matches!(answer.status, 400 | 501), "{name}: {}", answer.head);
            assert!(element(&answer, "Message").is_some(), "{name}: {}", answer.head);
            assert_eq!(served.seen("full", "empty"), before, "{name} has changed something");
        }
        refused += 1;
    }
    assert!(refused > 40 && known == OPERATIONS.len() - 1, "{refused}, {known}: and PostObject is a form");
}

#[test]
fn every_supported_operation_is_carried_out() {
    let served = serve_with(Limits::of_process());
    let columns = |line: &'static str| line.split('\t').chain(std::iter::repeat("")).take(5);
    let lines = MODEL.lines().map(|line| columns(line).collect::<Vec<_>>());
    for (n, line) in lines.enumerate() {
        let [name, method, path, headers, body] = line[..] else { unreachable!("five were taken") };
        if !OPERATIONS.iter().any(|(operation, _)| *operation == name) {
            continue;
        }
        let bucket = format!("bucket-{n}");
        assert_eq!(served.ask("PUT", &format!("/{bucket}"), b""), 200);
        assert_eq!(served.ask("PUT", &format!("/{bucket}/key"), b"text"), 200);
        let filled = |text: &str| text.replace("{Bucket}", &bucket).replace("{Key}", "key");
        let (path, headers) = (filled(path), filled(headers));
        let headers: Vec<_> = headers.split(", ").filter_map(|line| line.split_once(": ")).collect();
        let answer = served.send((method, &path), &headers, body.as_bytes());
        assert!(answer.status < 500, "{name}: {}", answer.head);
    }
}

#[test]
fn a_change_with_something_strange_leaves_the_object_as_it_was() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    assert_eq!(served.ask("PUT", "/empty", b""), 200);
    assert_eq!(served.ask("PUT", "/bucket/key", b"text"), 200);
    let tag = served.answer("HEAD", "/bucket/key", b"").header("etag").unwrap().to_owned();
    let other = format!("\"{}\"", "a".repeat(32));
    let (both, weak) = (format!("{other}, {tag}"), format!("W/{tag}"));
    let others = format!("{other}, \"{}\"", "b".repeat(32));
    for (what, headers, status) in [
        (("PUT", "/bucket/key?annotation"), &[][..], 501),
        (("PUT", "/bucket/key?encryption"), &[], 501),
        (("PUT", "/bucket/key?append"), &[], 501),
        (("PUT", "/bucket/key?renameObject"), &[], 501),
        (("PUT", "/bucket/key?partNumber=1"), &[], 501),
        (("PUT", "/bucket/key?x-id=PutObjectAnnotation"), &[], 501),
        (("DELETE", "/bucket/key?annotation"), &[], 501),
        (("DELETE", "/empty?metadataConfiguration"), &[], 501),
        (("DELETE", "/bucket/key"), &[("if-none-match", "*")], 501),
        (("DELETE", "/bucket/key"), &[("if-none-match", &tag)], 501),
        (("DELETE", "/bucket/key"), &[("if-match", &weak)], 412),
        (("DELETE", "/bucket/key"), &[("x-amz-if-match-size", "")], 400),
        (("PUT", "/bucket/key"), &[("if-none-match", &both)], 412),
        (("PUT", "/bucket/key"), &[("if-match", &others)], 412),
        (("PUT", "/bucket/none"), &[("if-match", &both)], 404),
        (("PUT", "/bucket/key"), &[("if-none-match", "nonsense")], 400),
        (("PUT", "/bucket/key"), &[("if-match", "")], 400),
        (("PUT", "/bucket/key"), &[("if-match", &weak)], 412),
        (("PUT", "/bucket/key"), &[("x-amz-if-match-size", "9999")], 501),
        (("PUT", "/bucket/key"), &[("if-unmodified-since", "Sat, 29 Oct 1994 19:43:31 GMT")], 501),
        (("PUT", "/bucket/key"), &[("content-range", "bytes 1-3/9")], 501),
        (("PUT", "/bucket/key"), &[("x-amz-trailer", "x-amz-checksum-crc32")], 400),
        (("POST", "/bucket/key?uploads"), &[("if-none-match", "*")], 412),
        (
            ("PUT", "/bucket/key"),
            &[("x-amz-copy-source", "/bucket/key"), ("x-amz-metadata-directive", "MERGE")],
            400,
        ),
    ] {
        let answer = served.send(what, headers, b"");
        assert_eq!(answer.status, status, "{what:?} {headers:?}: {}", answer.head);
        assert!(element(&answer, "Message").is_some(), "{what:?} {headers:?}");
        assert_eq!(served.text("/bucket/key"), "text", "{what:?} {headers:?}");
        assert_eq!(served.ask("HEAD", "/empty", b""), 200, "{what:?}");
    }
    for (headers, status) in [
        (("if-match", &both), 200),
        (("if-match", &other), 412),
        (("if-none-match", &both), 304),
        (("if-none-match", &other), 200),
    ] {
        let headers = [(headers.0, headers.1.as_str())];
        assert_eq!(served.send(("GET", "/bucket/key"), &headers, b"").status, status, "{headers:?}");
    }
    let fulfilled = [("x-amz-bypass-governance-retention", "true"), ("if-match", &tag)];
    assert_eq!(served.send(("DELETE", "/bucket/key"), &fulfilled, b"").status, 204);
}

#[test]
fn a_write_that_depends_on_a_list_is_carried_out_if_it_holds() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    assert_eq!(served.ask("PUT", "/bucket/key", b"first"), 200);
    let tag = served.answer("HEAD", "/bucket/key", b"").header("etag").unwrap().to_owned();
    let [a, b] = ["a", "b"].map(|digit| format!("\"{}\"", digit.repeat(32)));
    let (both, others) = (format!("{a}, {tag}"), format!("{a}, {b}"));
    let status = |what, headers: &[(&str, &str)], body| served.send(what, headers, body).status;
    assert_eq!(status(("PUT", "/bucket/new"), &[("if-none-match", &both)], b"new"), 200);
    let copy = [("x-amz-copy-source", "/bucket/new"), ("if-none-match", &both)];
    assert_eq!(status(("PUT", "/bucket/key"), &copy, b""), 412);
    assert_eq!(status(("PUT", "/bucket/key"), &[("if-match", &both)], b"second"), 200);
    assert_eq!(served.text("/bucket/key"), "second");
    assert_eq!(status(("PUT", "/bucket/key"), &[("if-none-match", &others)], b"third"), 200);
    assert_eq!(served.text("/bucket/key"), "third");
    assert_eq!(status(("DELETE", "/bucket/key"), &[("if-match", &both)], b""), 412);
    let third = served.answer("HEAD", "/bucket/key", b"").header("etag").unwrap().to_owned();
    assert_eq!(status(("DELETE", "/bucket/key"), &[("if-match", &format!("{a}, {third}"))], b""), 204);
}

#[test]
fn the_id_of_an_upload_cannot_be_made_from_another_one() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    let begin = |key: &str| {
        let answer = served.answer("POST", &format!("/bucket/{key}?uploads"), b"");
        element(&answer, "UploadId").unwrap().to_owned()
    };
    let (first, second) = (begin("a"), begin("b"));
    let list = |key: &str, id: &str| served.answer("GET", &format!("/bucket/{key}?uploadId={id}"), b"");
    assert_eq!((list("a", &first).status, list("b", &second).status), (200, 200));
    let number = u64::from_str_radix(&first[..16], 16).unwrap() + 1;
    assert_eq!(number, u64::from_str_radix(&second[..16], 16).unwrap(), "uploads are counted");
    let guessed = format!("{number:016x}{}", &first[16..]);
    let upper = first.to_uppercase();
    for (key, id) in [
        ("b", guessed.as_str()),
        ("b", &second[..16]),
        ("a", &second),
        ("a", &upper),
        ("a", &first[1..]),
        ("a", ""),
        ("a", "%C3%A9%C3%A9%C3%A9%C3%A9%C3%A9%C3%A9%C3%A9%C3%A9%C3%A9"),
    ] {
        let answer = list(key, id);
        assert_eq!(element(&answer, "Code"), Some("NoSuchUpload"), "{key} {id}: {}", answer.head);
    }
    let page = served.text("/bucket?uploads&max-uploads=1");
    assert!(page.contains(&format!("<NextUploadIdMarker>{first}</NextUploadIdMarker>")), "{page}");
    let rest = served.text(&format!("/bucket?uploads&key-marker=a&upload-id-marker={first}"));
    assert!(rest.contains(&second) && !rest.contains(&format!("<UploadId>{first}")), "{rest}");
}

#[test]
fn put_head_and_get_say_when_an_object_expires() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    let said = |method, path: &str| {
        let answer = served.answer(method, path, b"text");
        assert_eq!(answer.status, 200, "{}", answer.head);
        answer.header("x-amz-expiration").map(str::to_owned)
    };
    assert_eq!((said("PUT", "/bucket/a/1"), said("GET", "/bucket/a/1")), (None, None));
    let rules = b"<LifecycleConfiguration><Rule><ID>r 1</ID><Status>Enabled</Status><Filter><Prefix>a/</Prefix></Filter>\
        <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";
    assert_eq!(served.ask("PUT", "/bucket?lifecycle", rules), 200);
    let put = said("PUT", "/bucket/a/1").expect("the rules are new");
    assert!(put.starts_with("expiry-date=\"") && put.ends_with(" 00:00:00 GMT\", rule-id=\"r+1\""), "{put}");
    let copy = served.send(("PUT", "/bucket/a/2"), &[("x-amz-copy-source", "/bucket/a/1")], b"");
    assert!(copy.header("x-amz-expiration").is_some_and(|said| said.ends_with("rule-id=\"r+1\"")));
    assert_eq!((said("GET", "/bucket/a/1"), said("HEAD", "/bucket/a/1")), (Some(put.clone()), Some(put)));
    assert_eq!(said("PUT", "/bucket/b"), None, "another prefix");
    assert_eq!(served.ask("DELETE", "/bucket?lifecycle", b""), 204);
    assert_eq!(said("GET", "/bucket/a/1"), None);
}

#[test]
fn keys_that_no_listing_can_show_are_refused() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    assert_eq!(served.ask("PUT", "/bucket/key", b"text"), 200);
    let copy = [("x-amz-copy-source", "/bucket/key")];
    for key in ["a%08b", "a%01", "a%EF%BF%BEb"] {
        let path = format!("/bucket/{key}");
        for (what, headers) in [
            (("PUT", path.as_str()), &[][..]),
            (("PUT", path.as_str()), &copy),
            (("POST", &format!("{path}?uploads")), &[]),
        ] {
            let answer = served.send(what, headers, b"");
            assert_eq!((answer.status, element(&answer, "Code")), (400, Some("InvalidArgument")), "{what:?}");
        }
    }
    assert_eq!(served.ask("PUT", "/bucket/tab%09cr%0Dlf%0A%7F", b""), 200);
}

#[test]
fn every_error_says_what_is_wrong() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    let begun = served.answer("POST", "/bucket/key?uploads", b"");
    let upload = format!("/bucket/key?uploadId={}", element(&begun, "UploadId").unwrap());
    let forged = s3::request(&served.address, (ACCESS_KEY, "other"), "GET", "/bucket", b"").unwrap();
    for (answer, code) in [
        (served.answer("PUT", "/bucket/key?partNumber=1&uploadId=no", b""), "NoSuchUpload"),
        (served.answer("PUT", "/Bucket", b""), "InvalidBucketName"),
        (served.answer("PUT", "/bucket?tagging", b"<Tagging>"), "MalformedXML"),
        (served.answer("POST", &upload, b"<CompleteMultipartUpload/>"), "MalformedXML"),
        (served.answer("GET", "/bucket?encoding-type=x", b""), "InvalidArgument"),
        (forged, "SignatureDoesNotMatch"),
    ] {
        assert_eq!(element(&answer, "Code"), Some(code), "{}", answer.head);
        assert!(element(&answer, "Message").is_some_and(|why| why.len() > 20), "{code}");
    }
}

#[test]
fn chunks_may_come_without_a_trailer_but_not_with_one_unannounced() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    let headers = [
        ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        ("x-amz-decoded-content-length", "5"),
    ];
    let put = |body: &[u8]| served.send(("PUT", "/bucket/key"), &headers, body).status;
    assert_eq!(put(b"5\r\nhello\r\n0\r\n\r\n"), 200);
    assert_eq!(served.text("/bucket/key"), "hello");
    assert_eq!(put(b"5\r\nother\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"), 400);
    assert_eq!(served.text("/bucket/key"), "hello");
}

#[test]
fn a_head_has_what_its_get_has() {
    let served = serve_with(Limits::of_process());
    assert_eq!(served.ask("PUT", "/bucket", b""), 200);
    let tags = [("x-amz-tagging", "a=1&b=2")];
    assert_eq!(served.send(("PUT", "/bucket/key"), &tags, b"text").status, 200);
    let path = "/bucket/key?response-cache-control=no-store&response-content-type=text%2Fplain";
    for method in ["GET", "HEAD"] {
        let answer = served.answer(method, path, b"");
        assert_eq!(answer.header("x-amz-tagging-count"), Some("2"), "{method}");
        assert_eq!(answer.header("content-type"), Some("text/plain"), "{method}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{method}");
        assert_eq!(served.ask(method, "/bucket/key?partNumber=4", b""), 416, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_get_whose_key_is_replaced_while_it_waits_returns_the_new_object() {
    let backend = Arc::new(Memory::new(1 << 20));
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    let input = || GetObjectInput { bucket: "b".into(), key: "key".into(), ..Default::default() };
    for size in [1000, 3 << 20] {
        put(&gateway, "key", vec![1; size].into(), Condition::Any).await.unwrap();
        // As long as a failover.
        backend.delay_next_read(Duration::from_secs(10));
        let replaced = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            put(&gateway, "key", vec![2; size].into(), Condition::Any).await.unwrap();
        };
        let (answer, ()) = tokio::join!(gateway.objects.get(request(input())), replaced);
        let body = futures_util::TryStreamExt::try_collect::<Vec<Bytes>>(answer.unwrap().body.unwrap()).await;
        assert!(body.unwrap().concat() == vec![2; size], "{size} bytes");

        backend.delay_next_read(Duration::from_secs(10));
        let deleted = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            delete(&gateway, "key").await;
        };
        let (answer, ()) = tokio::join!(gateway.objects.get(request(input())), deleted);
        assert_eq!(*answer.map(drop).unwrap_err().code(), S3ErrorCode::NoSuchKey, "{size} bytes");
    }
}
