//! An S3 endpoint as a target.
//!
//! The mapping: the target's bytes are divided into ranges of 1 MiB. Range n is the object `ebb-replay/area/<n>`,
//! created before the replay if it does not exist. A read becomes ranged GETs of the objects that it touches. A write
//! becomes a PUT of the object `ebb-replay/writes/<offset>` with exactly the bytes written, because S3 cannot change a
//! part of an object, and a PUT of the whole range would multiply the bytes. So a replay has the requests and bytes of
//! its trace, but reads do not return what was written. All objects remain for the next replay: at most one per written
//! offset.

use super::error::TargetError;
use super::memory::fill;
use super::options::DriveProgress;
use super::report::TargetInfo;
use super::storage::{Answering, Failure, Storage};
use bytes::Bytes;
use ebb_bench::http::{Connection, HttpError, Response};
use ebb_bench::sign::Signer;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// Keys of an S3 endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Keys {
    pub access_key: String,
    pub secret_key: String,
    pub region: String,
}

/// Bytes per object of the area.
const OBJECT: u64 = 1 << 20;
/// Size of the area if none is given.
const SIZE: u64 = 256 << 20;
/// Longest time of one request.
const LIMIT: Duration = Duration::from_secs(60);
const TOLD_EVERY: Duration = Duration::from_millis(200);

/// An open bucket.
pub(super) struct S3 {
    address: String,
    signer: Signer,
    bucket: String,
    /// Connections with no request in flight.
    idle: Mutex<Vec<Connection>>,
}

impl Storage for S3 {
    /// Writes and reads use different objects: there is nothing to check.
    fn read(&self, _: u32, offset: u64, len: u32) -> Answering<'_, Bytes> {
        Box::pin(async move { self.read(offset, len).await.map(|()| Bytes::new()) })
    }

    fn write(&self, _: u32, offset: u64, payload: Bytes) -> Answering<'_, ()> {
        Box::pin(async move { self.write(offset, &payload).await })
    }
}

impl S3 {
    /// Creates the bucket and the area where they are missing.
    pub async fn open(
        target: &str,
        endpoint: &str,
        bucket: &str,
        keys: &S3Keys,
        size: Option<u64>,
        progress: &mut dyn FnMut(DriveProgress),
    ) -> Result<(TargetInfo, S3), TargetError> {
        let address = endpoint.strip_prefix("http://").unwrap_or(endpoint).to_owned();
        let s3 = S3 {
            signer: Signer::new(address.clone(), &keys.access_key, &keys.secret_key, &keys.region),
            address,
            bucket: bucket.to_owned(),
            idle: Mutex::new(Vec::new()),
        };
        let size_bytes = size.unwrap_or(SIZE).next_multiple_of(OBJECT);
        let failed = |error| TargetError::S3 { target: target.to_owned(), error };
        s3.prepare(size_bytes, progress).await.map_err(failed)?;
        let note =
            "reads are ranged GETs of objects of 1 MiB, writes are PUTs of objects of their own length";
        let notes = vec![note.to_owned()];
        Ok((TargetInfo { checkable: false, notes, ..TargetInfo::new(target, size_bytes) }, s3))
    }

    async fn prepare(&self, size: u64, progress: &mut dyn FnMut(DriveProgress)) -> Result<(), HttpError> {
        match self.ask("PUT", "", None, &[], &mut |_| ()).await {
            // The bucket exists: it is ours, or we may write to it.
            Ok(()) | Err(HttpError::Status { status: 409, .. }) => {}
            Err(error) => return Err(error),
        }
        let mut told = Instant::now();
        let mut body = vec![0; OBJECT as usize];
        for number in 0..size / OBJECT {
            let (path, last) = (area(number), Some((OBJECT - 1, 1)));
            let there = self.ask("GET", &path, last, &[], &mut |_| ()).await;
            match there {
                Ok(()) => {}
                Err(HttpError::Status { status: 404 | 416, .. }) => {
                    fill(number * OBJECT, &mut body);
                    self.ask("PUT", &path, None, &body, &mut |_| ()).await?;
                }
                Err(error) => return Err(error),
            }
            if told.elapsed() >= TOLD_EVERY {
                told = Instant::now();
                progress(DriveProgress::Preparing { bytes: number * OBJECT, of: size });
            }
        }
        Ok(())
    }

    /// One request with a successful response. `path` is below the bucket, `range` is offset and length.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        range: Option<(u64, u64)>,
        body: &[u8],
        sink: &mut (impl FnMut(&[u8]) + Send),
    ) -> Result<(), HttpError> {
        let path = format!("/{}{path}", self.bucket);
        let mut head = self.signer.head(method, &path, body.len(), SystemTime::now());
        if let Some((offset, len)) = range {
            // An unsigned header, before the empty line that ends the head.
            head.truncate(head.len() - 2);
            head.push_str(&format!("range: bytes={offset}-{}\r\n\r\n", offset + len - 1));
        }
        let mut idle = self.idle.lock().expect("no holder panics").pop();
        let exchange = async {
            loop {
                let (mut connection, is_new) = match idle.take() {
                    Some(connection) => (connection, false),
                    None => (Connection::open(&self.address).await?, true),
                };
                match connection.exchange(head.as_bytes(), body, sink).await {
                    // A server may close an idle connection at any time: GET and PUT are safe to repeat [RFC 9110
                    // §9.2.2].
                    Err(HttpError::Unanswered) if !is_new => {}
                    answer => return answer.map(|response: Response| (connection, response)),
                }
            }
        };
        let (connection, response) =
            tokio::time::timeout(LIMIT, exchange).await.unwrap_or(Err(HttpError::Late))?;
        if connection.is_open() {
            self.idle.lock().expect("no holder panics").push(connection);
        }
        response.success()
    }

    pub async fn read(&self, offset: u64, len: u32) -> Result<(), Failure> {
        let (mut at, end) = (offset, offset + u64::from(len));
        while at < end {
            let within = at % OBJECT;
            let part = (OBJECT - within).min(end - at);
            let mut found = 0;
            let count = &mut |bytes: &[u8]| found += bytes.len() as u64;
            let answer = self.ask("GET", &area(at / OBJECT), Some((within, part)), &[], count).await;
            answer.map_err(|error| Failure::Request(error.to_string()))?;
            if found != part {
                return Err(Failure::Request(format!("received {found} bytes for a range of {part}")));
            }
            at += part;
        }
        Ok(())
    }

    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let put = self.ask("PUT", &format!("/ebb-replay/writes/{offset}"), None, bytes, &mut |_| ()).await;
        put.map_err(|error| Failure::Request(error.to_string()))
    }
}

fn area(number: u64) -> String {
    format!("/ebb-replay/area/{number}")
}
