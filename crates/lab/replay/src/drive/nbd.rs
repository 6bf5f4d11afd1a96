//! A client of the Network Block Device protocol: fixed newstyle negotiation, `NBD_OPT_GO`, simple replies, any number
//! of requests in flight on one connection.
//!
//! Source: the protocol's description, `doc/proto.md` of the NBD project. Every length from the server is checked: a
//! reply that matches no request, or has another length, ends the connection.

use super::error::{GREET, NbdError, TargetError};
use super::guard;
use super::report::TargetInfo;
use super::storage::{Answering, Failure, Storage};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
const READ_ONLY: u16 = 1 << 1;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
/// Longest text or information in the negotiation.
const OPTION_MAX: u32 = 4096;
const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const READ_BUFFER: usize = 256 << 10;
/// Requests that wait to be sent. Further ones wait in their tasks.
const QUEUE: usize = 256;
/// Waiting requests are sent together, up to this many bytes.
const TOGETHER: usize = 64 << 10;

/// What the server reports about an export.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Export {
    size: u64,
    flags: u16,
    /// Smallest block and longest payload, if reported.
    block: Option<u32>,
    longest: Option<u32>,
}

/// An open export. All clones share one connection, which is closed with the last one.
#[derive(Clone)]
pub(super) struct Nbd {
    requests: mpsc::Sender<Ask>,
    /// Why the connection ended, once it has.
    ended: Arc<Mutex<Option<String>>>,
    longest: u32,
}

/// A request to be sent.
struct Ask {
    command: u16,
    offset: u64,
    len: u32,
    payload: Bytes,
    reply: oneshot::Sender<Result<Bytes, String>>,
}

/// A sent request: the length of its reply's payload, and the waiting task.
struct Waiting {
    len: usize,
    reply: oneshot::Sender<Result<Bytes, String>>,
}

type Pending = Arc<Mutex<HashMap<u64, Waiting>>>;

impl Storage for Nbd {
    fn read(&self, _: u32, offset: u64, len: u32) -> Answering<'_, Bytes> {
        Box::pin(self.read(offset, len))
    }

    fn write(&self, _: u32, offset: u64, payload: Bytes) -> Answering<'_, ()> {
        Box::pin(self.write(offset, payload))
    }
}

impl Nbd {
    /// Connects, and refuses an export that holds data unless `overwrite`.
    pub async fn open(
        target: &str,
        address: &str,
        export: &str,
        size: Option<u64>,
        overwrite: bool,
    ) -> Result<(TargetInfo, Nbd), TargetError> {
        let failed = |error| TargetError::Nbd { target: target.to_owned(), error };
        let (stream, export) =
            timeout(GREET, connect(address, export)).await.unwrap_or(Err(NbdError::Late)).map_err(failed)?;
        let block = export.block.filter(|block| block.is_power_of_two() && *block <= 1 << 16).unwrap_or(512);
        let size_bytes = size.unwrap_or(export.size);
        if size_bytes < block.into() || size_bytes > export.size {
            return Err(TargetError::TooSmall { target: target.to_owned(), size: export.size, block });
        }
        let longest = export.longest.unwrap_or(u32::MAX).max(block);
        let longest = longest - longest % block;
        let nbd = Nbd::start(stream, longest);
        if !overwrite {
            let len = (guard::LOOKED_AT as u64).min(export.size - export.size % u64::from(block)) as u32;
            let last = (export.size - u64::from(len)) / u64::from(block) * u64::from(block);
            let (mut ends, unreadable) = (Vec::new(), |failure| match failure {
                Failure::Request(text) | Failure::Lost(text) => failed(NbdError::Unreadable(text)),
            });
            for offset in [0, last] {
                ends.push(nbd.read(offset, len).await.map_err(unreadable)?);
            }
            guard::empty(target, &ends[0], &ends[1])?;
        }
        let mut info = TargetInfo::new(target, size_bytes - size_bytes % u64::from(block));
        info.block_bytes = block;
        if export.flags & READ_ONLY != 0 {
            info.notes.push("the export is read-only: writes will fail".to_owned());
        }
        Ok((info, nbd))
    }

    fn start(stream: TcpStream, longest: u32) -> Nbd {
        let (read, write) = stream.into_split();
        let (requests, queue) = mpsc::channel(QUEUE);
        let (pending, ended) = (Pending::default(), Arc::new(Mutex::new(None)));
        tokio::spawn({
            let (pending, ended) = (pending.clone(), ended.clone());
            async move {
                // Once one direction is dead, the other is useless.
                let reason = tokio::select! {
                    Err(error) = send(write, queue, &pending) => error.to_string(),
                    error = receive(read, &pending) => error.to_string(),
                };
                *ended.lock().expect("no holder panics") = Some(reason);
                // Tasks still waiting are notified by the closed channel.
                pending.lock().expect("no holder panics").clear();
            }
        });
        Nbd { requests, ended, longest }
    }

    pub async fn read(&self, offset: u64, len: u32) -> Result<Bytes, Failure> {
        if len <= self.longest {
            return self.ask(CMD_READ, offset, len, Bytes::new()).await;
        }
        let mut whole = BytesMut::with_capacity(len as usize);
        for start in (0..len).step_by(self.longest as usize) {
            let part = (len - start).min(self.longest);
            whole
                .extend_from_slice(&self.ask(CMD_READ, offset + u64::from(start), part, Bytes::new()).await?);
        }
        Ok(whole.freeze())
    }

    pub async fn write(&self, offset: u64, mut bytes: Bytes) -> Result<(), Failure> {
        let mut at = offset;
        while !bytes.is_empty() {
            let part = bytes.split_to(bytes.len().min(self.longest as usize));
            let len = part.len() as u32;
            self.ask(CMD_WRITE, at, len, part).await?;
            at += u64::from(len);
        }
        Ok(())
    }

    async fn ask(&self, command: u16, offset: u64, len: u32, payload: Bytes) -> Result<Bytes, Failure> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(Ask { command, offset, len, payload, reply }).await;
        match (sent, answer.await) {
            (Ok(()), Ok(answer)) => answer.map_err(Failure::Request),
            _ => {
                let reason = self.ended.lock().expect("no holder panics").clone();
                Err(Failure::Lost(reason.unwrap_or_else(|| "the connection was closed".to_owned())))
            }
        }
    }
}

/// Sends requests. `Ok`: no task sends requests any more, and the server has been notified.
async fn send(
    mut write: OwnedWriteHalf,
    mut queue: mpsc::Receiver<Ask>,
    pending: &Pending,
) -> io::Result<()> {
    let (mut out, mut cookie) = (Vec::new(), 0);
    while let Some(ask) = queue.recv().await {
        let mut next = Some(ask);
        while let Some(ask) = next {
            cookie += 1;
            out.extend(header(ask.command, cookie, ask.offset, ask.len));
            let len = if ask.command == CMD_READ { ask.len as usize } else { 0 };
            pending.lock().expect("no holder panics").insert(cookie, Waiting { len, reply: ask.reply });
            if out.len() + ask.payload.len() > TOGETHER {
                write.write_all(&out).await?;
                out.clear();
                write.write_all(&ask.payload).await?;
            } else {
                out.extend_from_slice(&ask.payload);
            }
            next = queue.try_recv().ok();
        }
        write.write_all(&out).await?;
        out.clear();
    }
    write.write_all(&header(CMD_DISC, 0, 0, 0)).await
}

fn header(command: u16, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut header = [0; 28];
    header[..4].copy_from_slice(&REQUEST.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&len.to_be_bytes());
    header
}

/// Dispatches replies until the connection ends.
async fn receive(read: OwnedReadHalf, pending: &Pending) -> io::Error {
    let mut read = BufReader::with_capacity(READ_BUFFER, read);
    loop {
        if let Err(error) = receive_one(&mut read, pending).await {
            return error;
        }
    }
}

async fn receive_one(read: &mut BufReader<OwnedReadHalf>, pending: &Pending) -> io::Result<()> {
    let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()));
    if read.read_u32().await? != SIMPLE_REPLY {
        return wrong("the server sent something other than a simple reply");
    }
    let (error, cookie) = (read.read_u32().await?, read.read_u64().await?);
    let Some(waiting) = pending.lock().expect("no holder panics").remove(&cookie) else {
        return wrong("the server answered a request that was not sent");
    };
    let outcome = if error == 0 {
        let mut bytes = BytesMut::zeroed(waiting.len);
        read.read_exact(&mut bytes).await?;
        Ok(bytes.freeze())
    } else {
        // The protocol uses Linux's error numbers.
        Err(io::Error::from_raw_os_error(error as i32).to_string())
    };
    // The requesting task may be gone.
    let _ = waiting.reply.send(outcome);
    Ok(())
}

async fn connect(address: &str, name: &str) -> Result<(TcpStream, Export), NbdError> {
    let mut stream = TcpStream::connect(address).await.map_err(NbdError::Connect)?;
    stream.set_nodelay(true)?;
    if stream.read_u64().await? != GREETING {
        return Err(NbdError::Protocol("it does not begin with NBDMAGIC"));
    }
    if stream.read_u64().await? != OPTION {
        return Err(NbdError::Protocol("it negotiates in the old style"));
    }
    let flags = stream.read_u16().await?;
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(NbdError::Protocol("its newstyle is not the fixed one"));
    }
    let mut hello = u32::from(FIXED_NEWSTYLE | flags & NO_ZEROES).to_be_bytes().to_vec();
    hello.extend(OPTION.to_be_bytes());
    hello.extend(OPT_GO.to_be_bytes());
    hello.extend((4 + name.len() as u32 + 2 + 2).to_be_bytes());
    hello.extend((name.len() as u32).to_be_bytes());
    hello.extend(name.as_bytes());
    hello.extend(1u16.to_be_bytes());
    hello.extend(INFO_BLOCK_SIZE.to_be_bytes());
    stream.write_all(&hello).await?;
    let export = negotiate(&mut stream, name).await?;
    Ok((stream, export))
}

/// Reads the replies to `NBD_OPT_GO`.
async fn negotiate(stream: &mut TcpStream, name: &str) -> Result<Export, NbdError> {
    let (mut export, mut described) = (Export::default(), false);
    loop {
        if stream.read_u64().await? != OPTION_REPLY || stream.read_u32().await? != OPT_GO {
            return Err(NbdError::Protocol("its reply matches no request"));
        }
        let (kind, len) = (stream.read_u32().await?, stream.read_u32().await?);
        if len > OPTION_MAX {
            return Err(NbdError::Protocol("a reply is too long"));
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data).await?;
        match kind {
            REP_ACK if described => return Ok(export),
            REP_ACK => return Err(NbdError::Protocol("it does not report the export's size")),
            REP_INFO => described |= export.learn(&data),
            error if error & REP_ERROR != 0 => {
                let reason = match data.is_empty() {
                    true => format!("error {}", error & !REP_ERROR),
                    false => String::from_utf8_lossy(&data).into_owned(),
                };
                return Err(NbdError::Refused { export: name.to_owned(), reason });
            }
            _ => return Err(NbdError::Protocol("a reply is of an unknown kind")),
        }
    }
}

impl Export {
    /// Parses one piece of information; returns whether it was the size.
    fn learn(&mut self, data: &[u8]) -> bool {
        let Some((kind, mut rest)) = data.split_first_chunk::<2>() else { return false };
        match (u16::from_be_bytes(*kind), rest.len()) {
            (INFO_EXPORT, 10) => {
                self.size = rest.get_u64().min(i64::MAX as u64);
                self.flags = rest.get_u16();
                true
            }
            (INFO_BLOCK_SIZE, 12) => {
                self.block = Some(rest.get_u32());
                let _preferred = rest.get_u32();
                self.longest = Some(rest.get_u32());
                false
            }
            _ => false,
        }
    }
}
