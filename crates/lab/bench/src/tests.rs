//! The load generator against a small S3 server in this process, which can be made to misbehave.

use super::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Flips the middle byte of what is read.
    FlipMiddle,
    FlipLast,
    /// The response to every GET is one byte short, and says so.
    Short,
    /// Every PUT of an object is refused, in chunks.
    Refuse,
    /// The connection ends with every response.
    Close,
    /// Every second PUT gets no response.
    Drop,
}

#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Vec<u8>>,
    puts: u64,
    connections: u64,
    unsigned: u64,
}

async fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, String, Vec<u8>)> {
    let head = loop {
        if let Some(len) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            break String::from_utf8(buffer.drain(..len + 4).collect()).unwrap();
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let len = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let len: usize = len.parse().unwrap();
    while buffer.len() < len {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer.drain(..len).collect();
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    Some((method + if head.contains("Signature=") { "" } else { " unsigned" }, path, body))
}

/// The response to a request; `None`: no response at all.
fn answer(store: &mut Store, fault: Fault, method: &str, path: &str, body: Vec<u8>) -> Option<Vec<u8>> {
    let bucket = path.matches('/').count() == 1;
    let ok = |body: &[u8]| {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    };
    match (method, bucket) {
        ("PUT", true) => Some(ok(&[])),
        ("DELETE", true) => Some(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        ("PUT", false) if fault == Fault::Refuse => Some(
            b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n<Error\r\n7;x=1\r\n>denied\r\n0\r\n\r\n".to_vec(),
        ),
        ("PUT", false) => {
            store.puts += 1;
            if fault == Fault::Drop && store.puts.is_multiple_of(2) {
                return None;
            }
            store.objects.insert(path.to_owned(), body);
            Some(ok(&[]))
        }
        ("GET", false) => {
            let mut body = store.objects.get(path).cloned()?;
            let len = body.len();
            match fault {
                Fault::FlipMiddle => body[len / 2] ^= 1,
                Fault::FlipLast => body[len - 1] ^= 1,
                Fault::Short => body.truncate(len - 1),
                _ => {}
            }
            Some(ok(&body))
        }
        ("DELETE", false) => {
            store.objects.remove(path);
            Some(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())
        }
        _ => {
            store.unsigned += 1;
            None
        }
    }
}

async fn serve(mut stream: TcpStream, store: Arc<Mutex<Store>>, fault: Fault) {
    let mut buffer = Vec::new();
    store.lock().unwrap().connections += 1;
    while let Some((method, path, body)) = request(&mut stream, &mut buffer).await {
        let answer = answer(&mut store.lock().unwrap(), fault, &method, &path, body);
        let Some(mut bytes) = answer else { break };
        if fault == Fault::Close {
            let at = bytes.windows(2).position(|w| w == b"\r\n").unwrap();
            bytes.splice(at..at, *b"\r\nConnection: close");
        }
        if stream.write_all(&bytes).await.is_err() || fault == Fault::Close {
            break;
        }
    }
}

async fn server(fault: Fault) -> (String, Arc<Mutex<Store>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let store = Arc::new(Mutex::new(Store::default()));
    let shared = store.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, shared.clone(), fault));
        }
    });
    (endpoint, store)
}

fn options(endpoint: &str) -> BenchOptions {
    BenchOptions {
        sizes: vec![1, 40, 4096, 300_000],
        concurrency: vec![1, 5],
        extent: Extent::Operations(20),
        ..BenchOptions::new(endpoint, "key", "secret")
    }
}

async fn run(fault: Fault, full_check: bool) -> (Result<BenchReport, BenchError>, Arc<Mutex<Store>>) {
    let (endpoint, store) = server(fault).await;
    let options = BenchOptions { full_check, ..options(&endpoint) };
    (bench_s3(&options, &mut |_| {}).await, store)
}

#[tokio::test]
async fn every_cell_is_measured_and_nothing_is_left_behind() {
    let (endpoint, store) = server(Fault::None).await;
    let options = BenchOptions { full_check: true, ..options(&endpoint) };
    let mut told = 0;
    let report = bench_s3(&options, &mut |_| told += 1).await.unwrap();
    assert!(report.passed());
    assert_eq!((report.cells.len(), told), (24, 24));
    for cell in &report.cells {
        assert_eq!((cell.operations, cell.failed, cell.wrong), (20, 0, 0), "{cell:?}");
        assert!(cell.server_cpu_seconds_per_1000.is_none() && cell.latency.unwrap().p99_millis > 0.0);
        assert_eq!(cell.megabytes_per_second.is_none(), cell.operation == Operation::Delete);
    }
    let store = store.lock().unwrap();
    assert_eq!((store.objects.len(), store.puts, store.unsigned), (0, 8 * 20, 0));
    assert_eq!(store.connections, 4 * 3 * (1 + 5) + 2, "connections are kept within a cell");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cells"][1]["operation"], "get");
    assert_eq!(json["cells"][1]["size_bytes"], 1);
}

#[tokio::test]
async fn a_cell_lasts_its_time_and_stays_below_the_byte_limit() {
    let (endpoint, store) = server(Fault::None).await;
    let options = BenchOptions {
        sizes: vec![1000],
        concurrency: vec![2],
        extent: Extent::Time(Duration::from_secs(3600)),
        most_bytes: 10_000,
        ..options(&endpoint)
    };
    // Only the PUT cell ends by bytes: the GET cell would last an hour.
    let bench = Bench::new(&options, 1000).unwrap();
    let (put, objects) = bench.cell(Operation::Put, 1000, 2, Arc::default()).await.unwrap();
    assert_eq!((put.operations, objects.len(), store.lock().unwrap().puts), (10, 10, 10));
    let options = BenchOptions { extent: Extent::Time(Duration::ZERO), ..options };
    let bench = Bench::new(&options, 1000).unwrap();
    let (get, _) = bench.cell(Operation::Get, 1000, 2, Arc::new(objects)).await.unwrap();
    assert_eq!((get.operations, get.latency), (0, None));
}

#[tokio::test]
async fn what_the_servers_spend_is_reported_per_operation() {
    let (endpoint, _store) = server(Fault::None).await;
    let options = BenchOptions {
        sizes: vec![8 << 20],
        concurrency: vec![1],
        pids: vec![std::process::id()],
        ..options(&endpoint)
    };
    let bench = Bench::new(&options, 8 << 20).unwrap();
    let (put, _) = bench.cell(Operation::Put, 8 << 20, 1, Arc::default()).await.unwrap();
    // 20 objects of 8 MiB through a socket: more than a tick of 10 ms, and both ends are this process.
    assert!(put.server_cpu_seconds_per_1000.unwrap() > 0.0, "{put:?}");
    assert!(put.server_voluntary_switches_per_operation.unwrap() >= 0.0, "{put:?}");
    assert!(put.to_string().contains("PUT"), "{put}");
}

#[tokio::test]
async fn wrong_answers_are_counted() {
    for (fault, full_check, found) in [
        (Fault::FlipLast, false, true),
        (Fault::FlipMiddle, true, true),
        (Fault::Short, false, true),
        (Fault::None, true, false),
        (Fault::Close, true, false),
    ] {
        let (report, _) = run(fault, full_check).await;
        let report = report.unwrap();
        assert_eq!(report.passed(), !found, "{fault:?}");
        for cell in report.cells {
            let wrong = if found && cell.operation == Operation::Get { 20 } else { 0 };
            assert_eq!((cell.operations, cell.wrong), (20, wrong), "{fault:?}");
        }
    }
    // The cheap check does not see the middle of a large object: that is what the flag is for.
    let (report, _) = run(Fault::FlipMiddle, false).await;
    let wrong =
        |size| report.as_ref().unwrap().cells.iter().filter(|c| c.size_bytes == size).map(|c| c.wrong).sum();
    let counts: [u64; 2] = [wrong(40), wrong(300_000)];
    assert_eq!(counts, [40, 0]);
}

#[tokio::test]
async fn failures_are_counted_reported_and_survived() {
    let (report, _) = run(Fault::Drop, true).await;
    let report = report.unwrap();
    let puts = report.cells.iter().filter(|cell| cell.operation == Operation::Put);
    assert_eq!(puts.map(|cell| (cell.operations, cell.failed)).collect::<Vec<_>>(), [(10, 10); 8]);
    assert!(report.to_string().contains("closed the connection"), "{report}");
    let (report, _) = run(Fault::Refuse, true).await;
    let error = report.unwrap_err().to_string();
    assert!(error.contains("status 403: <Error>denied"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_measured_is_refused_with_its_cause() {
    for endpoint in ["https://a", "localhost:9000", "http://", "http://a/b"] {
        let error = bench_s3(&options(endpoint), &mut |_| {}).await.unwrap_err();
        assert!(matches!(error, BenchError::Endpoint { .. }), "{endpoint}: {error}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = bench_s3(&options(&format!("http://{closed}")), &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, BenchError::Connect { .. }), "{error}");
    let none = BenchOptions { sizes: vec![], ..options("http://localhost:1") };
    assert!(matches!(bench_s3(&none, &mut |_| {}).await, Err(BenchError::Empty)));
    let gone = BenchOptions { pids: vec![u32::MAX], ..options("http://localhost:1") };
    assert!(matches!(bench_s3(&gone, &mut |_| {}).await, Err(BenchError::Process { .. })));
}

#[test]
fn each_part_of_a_body_is_held_against_its_place() {
    let body: Vec<u8> = (0..=255).collect();
    for cut in [1, 31, 32, 33, 200, 255] {
        assert!(fits(&body, 0, &body[..cut], true) && fits(&body, cut as u64, &body[cut..], true));
        assert!(!fits(&body, 0, &body[cut..], true) && !fits(&body, 1, &body[..cut], true));
    }
    assert!(!fits(&body, 1, &body, false), "too long");
}
