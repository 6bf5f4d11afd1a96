//! Replays over sockets: on small servers in these tests, on real NBD servers if they are installed, and on a loop
//! device if that is permitted.

use super::tests::{Requests, request, ticks};
use super::*;
use ebb_trace::Kind;
use ebb_types::Bytes;
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SIZE: u64 = 4 << 20;

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Misbehaviour of a small NBD server.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Writes from this byte on fail with "no space".
    full_from: Option<u64>,
    /// Closes the connection after this many requests.
    hangs_up_after: Option<u64>,
    /// Knows no export of the requested name.
    unknown: bool,
    /// Claims that a reply has this many bytes.
    boasts: Option<u32>,
    /// Claims to have written this block, but has not.
    forgets_at: Option<u64>,
}

type Memory = Arc<Mutex<Vec<u8>>>;

/// An NBD server for one connection.
async fn nbd_server(memory: Memory, faults: Faults) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // How the connection ends is the client's concern.
        let _ = nbd_serve(stream, memory, faults).await;
    });
    address
}

async fn option_reply(stream: &mut TcpStream, kind: u32, data: &[u8], len: u32) -> std::io::Result<()> {
    stream.write_u64(0x0003_e889_0455_65a9).await?;
    stream.write_u32(7).await?;
    stream.write_u32(kind).await?;
    stream.write_u32(len).await?;
    stream.write_all(data).await
}

async fn nbd_serve(mut stream: TcpStream, memory: Memory, faults: Faults) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03").await?;
    assert_eq!(stream.read_u32().await?, 3);
    assert_eq!((stream.read_u64().await?, stream.read_u32().await?), (u64::from_be_bytes(*b"IHAVEOPT"), 7));
    let mut option = vec![0; stream.read_u32().await? as usize];
    stream.read_exact(&mut option).await?;
    assert_eq!(option, b"\x00\x00\x00\x04disk\x00\x01\x00\x03");
    if faults.unknown {
        return option_reply(&mut stream, (1 << 31) + 6, b"no such disk", 12).await;
    }
    let mut export = vec![0, 0];
    export.extend(SIZE.to_be_bytes());
    export.extend([0, 1]);
    option_reply(&mut stream, 3, &export, faults.boasts.unwrap_or(12)).await?;
    // Blocks of 1 KiB, payloads of at most 64 KiB.
    option_reply(&mut stream, 3, b"\x00\x03\x00\x00\x04\x00\x00\x00\x10\x00\x00\x01\x00\x00", 14).await?;
    option_reply(&mut stream, 1, b"", 0).await?;
    let mut served = 0;
    while stream.read_u32().await? == 0x2560_9513 {
        let command = stream.read_u32().await?;
        let (cookie, offset) = (stream.read_u64().await?, stream.read_u64().await?);
        let len = stream.read_u32().await? as usize;
        assert!(len <= 64 << 10 && offset.is_multiple_of(1024) && len.is_multiple_of(1024));
        if faults.hangs_up_after == Some(served) || command == 2 {
            return Ok(());
        }
        served += 1;
        let range = offset as usize..offset as usize + len;
        let full = faults.full_from.is_some_and(|from| offset >= from);
        let mut reply = 0x6744_6698u32.to_be_bytes().to_vec();
        reply.extend(if command == 1 && full { 28u32 } else { 0 }.to_be_bytes());
        reply.extend(cookie.to_be_bytes());
        if command == 0 {
            reply.extend(&memory.lock().unwrap()[range]);
        } else {
            let mut data = vec![0; len];
            stream.read_exact(&mut data).await?;
            if let Some(at) = faults.forgets_at.filter(|at| range.contains(&(*at as usize))) {
                let at = at as usize;
                let old = memory.lock().unwrap()[at..at + 1024].to_vec();
                data[at - range.start..][..1024].copy_from_slice(&old);
            }
            if !full {
                memory.lock().unwrap()[range].copy_from_slice(&data);
            }
        }
        stream.write_all(&reply).await?;
    }
    Ok(())
}

async fn open_nbd(address: &str, overwrite: bool) -> Result<Target, TargetError> {
    let spec = format!("nbd://{address}/disk").parse().unwrap();
    Target::open(&spec, &OpenOptions { overwrite, ..OpenOptions::default() }, &mut |_| ()).await
}

#[test]
fn an_nbd_export_gets_the_requests_of_the_trace() {
    let memory: Memory = Arc::new(Mutex::new(vec![0; SIZE as usize]));
    let report = on_runtime(async {
        let address = nbd_server(memory.clone(), Faults::default()).await;
        let target = open_nbd(&address, false).await.unwrap();
        assert_eq!((target.info().size_bytes, target.info().block_bytes), (SIZE, 1024));
        let mut requests = ticks(400, 50, 4096);
        requests.push(Ok(request(30_000, 1 << 20, 512, Kind::Write)));
        // Longer than the server's payload limit.
        requests.push(Ok(request(30_000, 2 << 20, 200 << 10, Kind::Read)));
        requests.push(Ok(request(30_000, 3 << 20, 200 << 10, Kind::Write)));
        drive(&DriveOptions::default(), requests.into_iter(), &target, &mut |_| ()).await.unwrap()
    });
    assert!(report.passed(), "{report}");
    assert_eq!((report.reads.requests, report.writes.requests, report.placed.rounded), (201, 202, 1));
    assert!(report.wall_seconds >= 0.03 && report.lateness.unwrap().count == 403, "{report}");
    let memory = memory.lock().unwrap();
    let written =
        memory[3 << 20..(3 << 20) + (200 << 10)].chunks(512).all(|part| part.iter().any(|b| *b != 0));
    assert!(written && memory[(3 << 20) + (200 << 10)] == 0);
    assert_ne!(memory[1 << 20..(1 << 20) + 1024], [0; 1024]);
}

#[test]
fn a_replay_that_is_halted_awaits_what_is_in_flight_and_reports() {
    let memory: Memory = Arc::new(Mutex::new(vec![0; SIZE as usize]));
    let report = on_runtime(async {
        let address = nbd_server(memory, Faults::default()).await;
        super::tests::halted(&open_nbd(&address, false).await.unwrap()).await
    });
    assert_eq!((report.requests, report.failed), (3, 0), "{report}");
    assert_eq!(report.stopped_at_seconds, Some(report.wall_seconds));
}

#[test]
fn an_nbd_export_that_holds_something_is_not_overwritten_unasked() {
    on_runtime(async {
        let memory: Memory = Arc::new(Mutex::new(vec![0; SIZE as usize]));
        memory.lock().unwrap()[0x438..0x43a].copy_from_slice(b"\x53\xef");
        let address = nbd_server(memory.clone(), Faults::default()).await;
        let error = open_nbd(&address, false).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("ext4") && error.contains("--overwrite"), "{error}");
        open_nbd(&nbd_server(memory, Faults::default()).await, true).await.unwrap();
    });
}

#[test]
fn an_nbd_server_that_fails_or_goes_away_is_distinguished_from_one_that_works() {
    let memory: Memory = Arc::new(Mutex::new(vec![0; SIZE as usize]));
    let with = |faults: Faults| {
        on_runtime(async {
            let target =
                open_nbd(&nbd_server(memory.clone(), faults).await, true).await.map_err(|e| e.to_string())?;
            let writes: Requests = (0..64).map(|n| Ok(request(0, n << 16, 1024, Kind::Write))).collect();
            drive(&DriveOptions::default(), writes.into_iter(), &target, &mut |_| ())
                .await
                .map_err(|e| e.to_string())
        })
    };
    let full = with(Faults { full_from: Some(SIZE / 4), ..Faults::default() }).unwrap();
    assert_eq!((full.failed, full.writes.requests), (48, 16));
    assert!(full.errors[0].contains("No space left"), "{full}");
    let gone = with(Faults { hangs_up_after: Some(10), ..Faults::default() }).unwrap_err();
    assert!(gone.contains("stopped answering"), "{gone}");
    let unknown = with(Faults { unknown: true, ..Faults::default() }).unwrap_err();
    assert!(unknown.contains("no such disk"), "{unknown}");
    let boasts = with(Faults { boasts: Some(u32::MAX), ..Faults::default() }).unwrap_err();
    assert!(boasts.contains("too long"), "{boasts}");
    let nobody = on_runtime(open_nbd("127.0.0.1:1", true)).map(drop).unwrap_err().to_string();
    assert!(nobody.contains("listens there"), "{nobody}");
}

/// Stops a server at the end of the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that is free now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn real_nbd_servers_take_a_replay() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0; SIZE as usize]).unwrap();
    let image = image.to_str().unwrap();
    let mut served = 0;
    for server in ["nbdkit", "qemu-nbd"] {
        let port = free_port().to_string();
        let arguments = match server {
            "nbdkit" => vec!["-f", "-i", "127.0.0.1", "-p", &port, "file", image],
            _ => vec!["-b", "127.0.0.1", "-p", &port, "-x", "disk", "-f", "raw", "-t", image],
        };
        let started = Command::new(server).args(&arguments).stderr(Stdio::null()).spawn();
        let Ok(child) = started else {
            ebb_testing::skip(format!("{server} is not installed"));
            continue;
        };
        let _server = Server(child);
        let report = on_runtime(async {
            let address = format!("127.0.0.1:{port}");
            let begun = Instant::now();
            let target = loop {
                match open_nbd(&address, true).await {
                    Ok(target) => break target,
                    Err(TargetError::Nbd { error: NbdError::Connect(_), .. })
                        if begun.elapsed() < Duration::from_secs(120) =>
                    {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    Err(error) => panic!("{server}: {error}"),
                }
            };
            assert_eq!(target.info().size_bytes, SIZE, "{server}");
            drive(&DriveOptions::default(), ticks(500, 40, 4096).into_iter(), &target, &mut |_| ())
                .await
                .unwrap()
        });
        assert!(report.passed() && report.requests == 500, "{server}: {report}");
        served += 1;
    }
    println!("{served} real NBD servers took a replay");
}

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// The part of an S3 endpoint that a replay needs. Signatures are not verified. It closes a connection, without notice,
/// after this many answers.
async fn s3_server(objects: Objects, answers: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let objects = objects.clone();
            tokio::spawn(async move {
                let _ = s3_serve(stream, objects, answers).await;
            });
        }
    });
    address
}

async fn s3_serve(mut stream: TcpStream, objects: Objects, answers: usize) -> std::io::Result<()> {
    for _ in 0..answers {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap().to_owned());
        let mut body = vec![0; header("content-length: ").unwrap().parse().unwrap()];
        stream.read_exact(&mut body).await?;
        assert!(header("authorization: ").unwrap().contains("Credential=key/"));
        let (status, answer) = match method {
            "PUT" => {
                objects.lock().unwrap().insert(path, body);
                ("200 OK", Vec::new())
            }
            _ => match objects.lock().unwrap().get(&path) {
                Some(object) => {
                    let range = header("range: bytes=").unwrap().split_once('-').unwrap();
                    let (first, last): (usize, usize) = (range.0.parse().unwrap(), range.1.parse().unwrap());
                    ("206 Partial Content", object[first..=last].to_vec())
                }
                None => ("404 Not Found", b"NoSuchKey".to_vec()),
            },
        };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all(&[head.into_bytes(), answer].concat()).await?;
    }
    Ok(())
}

#[test]
fn a_connection_that_the_server_closed_while_it_was_idle_fails_no_request() {
    on_runtime(async {
        let spec = format!("http://{}/bucket", s3_server(Objects::default(), 2).await).parse().unwrap();
        let keys = S3Keys { access_key: "key".into(), secret_key: "secret".into(), region: "here".into() };
        let options = OpenOptions { size: Some(Bytes(SIZE)), keys: Some(keys), ..OpenOptions::default() };
        let target = Target::open(&spec, &options, &mut |_| ()).await.unwrap();
        let requests = (0..40).map(|n| {
            let kind = if n % 2 == 0 { Kind::Read } else { Kind::Write };
            Ok(request(n, n << 15, 512, kind))
        });
        let report =
            drive(&DriveOptions::default(), requests.collect::<Requests>().into_iter(), &target, &mut |_| ())
                .await
                .unwrap();
        assert!(report.passed() && report.requests == 40, "{report}");
    });
}

#[test]
fn an_s3_endpoint_gets_ranged_gets_and_puts() {
    let objects = Objects::default();
    on_runtime(async {
        let spec = format!("http://{}/bucket", s3_server(objects.clone(), usize::MAX).await).parse().unwrap();
        let keys = S3Keys { access_key: "key".into(), secret_key: "secret".into(), region: "here".into() };
        let options = OpenOptions { size: Some(Bytes(SIZE)), keys: Some(keys), ..OpenOptions::default() };
        let nobody = OpenOptions { keys: None, ..options.clone() };
        let error = Target::open(&spec, &nobody, &mut |_| ()).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("AWS_ACCESS_KEY_ID"), "{error}");
        let target = Target::open(&spec, &options, &mut |_| ()).await.unwrap();
        let requests = vec![
            Ok(request(0, 100, 50, Kind::Read)),
            // Touches two objects.
            Ok(request(10, (1 << 20) - 10, 30, Kind::Read)),
            Ok(request(20, 12345, 678, Kind::Write)),
        ];
        let report =
            drive(&DriveOptions::default(), requests.into_iter(), &target, &mut |_| ()).await.unwrap();
        assert!(report.passed(), "{report}");
        assert_eq!((report.reads.bytes, report.writes.bytes), (80, 678));
        objects.lock().unwrap().remove("/bucket/ebb-replay/area/3");
        let reads: Requests = (0..8).map(|n| Ok(request(0, n << 19, 512, Kind::Read))).collect();
        let report = drive(&DriveOptions::default(), reads.into_iter(), &target, &mut |_| ()).await.unwrap();
        assert_eq!((report.failed, report.reads.requests), (2, 6));
        assert!(report.errors[0].contains("NoSuchKey"), "{report}");
    });
    let objects = objects.lock().unwrap();
    let named = |name: &str| objects.get(&format!("/bucket/ebb-replay/{name}")).map(Vec::len);
    assert_eq!((named("area/0"), named("area/2"), named("area/4")), (Some(1 << 20), Some(1 << 20), None));
    assert_eq!(named("writes/12345"), Some(678));
}

/// Detaches a loop device.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_replayed_on_only_if_it_is_empty_or_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0; SIZE as usize]).unwrap();
    let made = Command::new("losetup").args(["-f", "--show"]).arg(&image).output();
    let device = match made {
        Ok(made) if made.status.success() => Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned()),
        _ => {
            ebb_testing::skip("a loop device needs root and losetup");
            return;
        }
    };
    let open = async |overwrite| {
        let spec = device.0.parse().unwrap();
        Target::open(&spec, &OpenOptions { overwrite, ..OpenOptions::default() }, &mut |_| ()).await
    };
    on_runtime(async {
        let target = open(false).await.unwrap();
        assert_eq!(target.info().size_bytes, SIZE);
        assert!(
            matches!(open(true).await, Err(TargetError::InUse { .. })),
            "it is opened by the first already"
        );
        let mut requests = ticks(64, 10, 4096);
        requests.push(Ok(request(1000, 0, 512, Kind::Write)));
        let report =
            drive(&DriveOptions::default(), requests.into_iter(), &target, &mut |_| ()).await.unwrap();
        assert!(report.passed(), "{report}");
        drop(target);
        let error = open(false).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("--overwrite"), "{error}");
        open(true).await.unwrap();
    });
}

#[test]
fn a_check_finds_a_write_that_was_lost_and_passes_what_was_kept() {
    let outcome = |lost: bool| {
        on_runtime(async {
            let memory: Memory = Arc::new(Mutex::new(vec![7; SIZE as usize]));
            let faults = Faults { forgets_at: lost.then_some(5 << 10), ..Faults::default() };
            let target = open_nbd(&nbd_server(memory, faults).await, true).await.unwrap();
            // Reads of unknown data; overlapping writes; reads of what they left.
            let mut requests = vec![Ok(request(0, 2 << 20, 4096, Kind::Read))];
            requests.extend((0..40).map(|n| Ok(request(0, (n % 7) << 10, 3072, Kind::Write))));
            requests.push(Ok(request(40_000, 0, 8192, Kind::Read)));
            let options = DriveOptions { check: true, ..DriveOptions::default() };
            drive(&options, requests.into_iter(), &target, &mut |_| ()).await.unwrap()
        })
    };
    let (kept, lost) = (outcome(false), outcome(true));
    let check = kept.check.as_ref().unwrap();
    assert!(kept.passed() && check.waited > 0, "{kept}");
    // More, if the last read came before the last write.
    assert!(check.unchecked_bytes >= 4096 && check.read_back_bytes == 9 << 10, "{kept}");
    let check = lost.check.as_ref().unwrap();
    assert!(!lost.passed() && check.mismatched >= 1, "at the latest when all is read back: {lost}");
    assert_eq!(check.mismatches[0].offset_bytes, 5 << 10);
}

#[test]
fn what_cannot_be_checked_is_said_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("file:{}", dir.path().join("x").display()).parse().unwrap();
    let error = on_runtime(async {
        let options = OpenOptions { size: Some(Bytes(1 << 20)), ..OpenOptions::default() };
        let target = Target::open(&spec, &options, &mut |_| ()).await.unwrap();
        let options = DriveOptions { check: true, ..DriveOptions::default() };
        drive(&options, ticks(4, 50, 4096).into_iter(), &target, &mut |_| ()).await.unwrap_err()
    });
    assert!(error.to_string().contains("cannot be checked"), "{error}");
}
