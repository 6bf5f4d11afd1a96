//! The session against a client of the tests' own: every byte is encoded and parsed here by other code than the
//! session's.

mod client;
mod cuts;
mod fuzz;
mod golden;
mod model;
mod refusals;

use bytes::{Bytes, BytesMut};
use client::{FromServer, Say, parse};
use ebb_nbd::{BlockSizes, CloseReason, Export, Output, Reply, Request, Session};
use std::sync::Arc;

const LONGEST: u32 = 64 << 10;

fn export(name: &str, size: u64, read_only: bool) -> Export {
    Export {
        name: name.to_owned(),
        description: format!("{name} of a test"),
        size,
        block: BlockSizes { minimum: 512, preferred: 4096, maximum: LONGEST },
        read_only,
        rotational: read_only,
        multi_conn: !read_only,
    }
}

/// `disk` can be written, `old` cannot, and `huge` is longer than any request.
fn exports() -> Arc<[Export]> {
    [export("disk", 1 << 20, false), export("old", 64 << 10, true), export("huge", 1 << 40, false)].into()
}

/// A session, what it was sent, and what came out.
struct Peer {
    session: Session,
    input: BytesMut,
    /// Bytes from the server that were not parsed yet.
    sent: Vec<u8>,
    requests: Vec<(u64, Request)>,
    opened: Option<usize>,
    closed: Option<CloseReason>,
}

impl Peer {
    fn new(exports: Arc<[Export]>) -> Peer {
        let (session, greeting) = Session::new(exports);
        assert_eq!(&greeting[..], b"NBDMAGICIHAVEOPT\0\x03");
        let input = BytesMut::new();
        let (sent, requests) = (Vec::new(), Vec::new());
        Peer { session, input, sent, requests, opened: None, closed: None }
    }

    /// A client that has opened an export.
    fn open(name: &str, structured: bool) -> Peer {
        let mut peer = Peer::new(exports());
        peer.says(&Say::Flags(3));
        if structured {
            peer.says(&Say::Option(8, b""));
            peer.says(&Say::Contexts { set: true, name, queries: &["base:allocation"] });
        }
        peer.says(&Say::Info { go: true, name, kinds: &[] });
        assert!(peer.opened.is_some());
        peer.sent.clear();
        peer
    }

    fn says(&mut self, say: &Say) {
        self.receives(&say.bytes());
    }

    fn receives(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let mut out = Vec::new();
        self.session.on_bytes(&mut self.input, &mut out);
        self.take(out);
    }

    fn answers(&mut self, id: u64, reply: Reply) {
        let mut out = Vec::new();
        self.session.reply(id, reply, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<Output>) {
        for output in out {
            assert_eq!(self.closed, None, "nothing follows a close");
            match output {
                Output::Send(bytes) => self.sent.extend_from_slice(&bytes),
                Output::Opened { export } => self.opened = Some(export),
                Output::Request { id, request } => self.requests.push((id, request)),
                Output::Close(reason) => self.closed = Some(reason),
            }
        }
    }

    /// Everything that the server sent, as messages. `read_len`: bytes after a simple reply to this cookie.
    fn heard(&mut self, read_len: impl Fn(u64) -> usize) -> Vec<FromServer> {
        let sent = std::mem::take(&mut self.sent);
        parse(&sent, read_len)
    }
}

/// A correct reply to any request, without storage.
fn plain_reply(request: &Request) -> Reply {
    match request {
        Request::Read { length, .. } => {
            Reply::Data(vec![ebb_nbd::Piece::Data(Bytes::from(vec![b'r'; *length as usize]))])
        }
        Request::Status { length, .. } => {
            Reply::Extents(vec![ebb_nbd::Extent { length: u64::from(*length), hole: false, zero: false }])
        }
        _ => Reply::Done,
    }
}
