//! Conversations as a person reads them, byte for byte. `UPDATE_GOLDEN=1 cargo test -p ebb-nbd golden` rewrites the
//! files; review the diff.

use super::client::*;
use super::*;
use ebb_nbd::{Errno, Extent, Piece};

/// A conversation that is written down.
struct Story {
    peer: Peer,
    /// Cookies and lengths of reads, for simple replies.
    reads: Vec<(u64, u32)>,
    lines: Vec<String>,
}

impl Story {
    fn new() -> Story {
        Story { peer: Peer::new(exports()), reads: Vec::new(), lines: Vec::new() }
    }

    fn title(&mut self, title: &str) {
        self.lines.push(format!("{}# {title}", if self.lines.is_empty() { "" } else { "\n" }));
    }

    fn says(&mut self, say: Say) {
        if let Say::Request { command: READ, cookie, length, .. } = say {
            self.reads.push((cookie, length));
        }
        self.lines.push(format!("client: {say}"));
        self.peer.says(&say);
        self.write_down();
    }

    fn answers(&mut self, id: u64, reply: Reply) {
        let shown = match &reply {
            Reply::Data(pieces) => format!("Data {:?}", pieces.iter().map(show).collect::<Vec<_>>()),
            Reply::Extents(extents) => {
                let shown = extents.iter().map(|e| format!("{} hole={} zero={}", e.length, e.hole, e.zero));
                format!("Extents {:?}", shown.collect::<Vec<_>>())
            }
            reply => format!("{reply:?}"),
        };
        self.lines.push(format!("driver: #{id} ends: {}", shown.replace('"', "")));
        self.peer.answers(id, reply);
        self.write_down();
    }

    /// A request and its reply.
    fn asks(&mut self, say: Say, reply: Reply) {
        self.says(say);
        let (id, _) = *self.peer.requests.last().expect("the request is accepted");
        self.answers(id, reply);
    }

    fn write_down(&mut self) {
        if let Some(export) = self.peer.opened.take() {
            // Not an option's reply: it has no head.
            if self.peer.sent.len() == 10 || self.peer.sent.len() == 134 {
                let mut reader = Reader(&self.peer.sent);
                let (size, flags) = (reader.u64(), transmission_flags(reader.u16()));
                self.lines.push(format!("server: {size} bytes,{flags}, then {} zeroes", reader.0.len()));
                self.peer.sent.clear();
            }
            self.heard();
            self.lines.push(format!("driver: export {export} is open"));
        }
        self.heard();
        for (id, request) in &self.peer.requests {
            let shown = match request {
                Request::Write { offset, payload, fua } => {
                    format!("Write {{ offset: {offset}, payload: {}, fua: {fua} }}", runs(payload))
                }
                request => format!("{request:?}"),
            };
            let line = format!("driver: #{id} {shown}");
            if !self.lines.contains(&line) {
                self.lines.push(line);
            }
        }
        if let Some(reason) = &self.peer.closed {
            self.lines.push(format!("driver: close: {reason}"));
        }
    }

    fn heard(&mut self) {
        let reads = &self.reads;
        let length = |cookie| reads.iter().find(|(c, _)| *c == cookie).map_or(0, |(_, len)| *len as usize);
        let heard = self.peer.heard(length);
        self.lines.extend(heard.iter().map(|message| format!("server: {message}")));
    }

    fn end(self, name: &str) {
        let found = self.lines.join("\n") + "\n";
        let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &found).expect("the transcript can be written");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == expected, "{path} says\n{expected}\nbut it was\n{found}");
    }
}

fn show(piece: &Piece) -> String {
    match piece {
        Piece::Data(bytes) => runs(bytes),
        Piece::Hole(len) => format!("a hole of {len} bytes"),
    }
}

fn data(byte: u8, len: usize) -> Piece {
    Piece::Data(Bytes::from(vec![byte; len]))
}

fn extent(length: u64, hole: bool, zero: bool) -> Extent {
    Extent { length, hole, zero }
}

fn negotiate(story: &mut Story) {
    story.title("Options");
    story.says(Say::Flags(3));
    story.says(Say::Option(3, b""));
    story.says(Say::Option(3, b"more"));
    story.says(Say::Option(5, b""));
    story.says(Say::Option(11, b""));
    story.says(Say::Option(77, b"what?"));
    story.says(Say::Info { go: false, name: "old", kinds: &[1, 2, 3, 9] });
    story.says(Say::Info { go: false, name: "", kinds: &[] });
    story.says(Say::Info { go: true, name: "no\0\u{fc}\n", kinds: &[3] });
    story.says(Say::Option(6, b"\0\0\0\x09disk\0\0"));
    story.says(Say::Contexts { set: true, name: "disk", queries: &["base:allocation"] });
    story.says(Say::Option(8, b"x"));
    story.says(Say::Option(8, b""));
    story.says(Say::Contexts { set: false, name: "disk", queries: &[] });
    story.says(Say::Contexts { set: false, name: "disk", queries: &["qemu:", "base:"] });
    story.says(Say::Contexts { set: true, name: "none", queries: &["base:allocation"] });
    story.says(Say::Contexts { set: true, name: "disk", queries: &["base:", "qemu:dirty"] });
    story.says(Say::Contexts { set: true, name: "disk", queries: &["x-a:b", "base:allocation"] });
    story.says(Say::Info { go: true, name: "disk", kinds: &[3] });
}

fn commands(story: &mut Story) {
    story.title("One of each command");
    let (hole, done) = (Piece::Hole(512), Reply::Done);
    story.asks(request(READ, 0, 1, 4096, 1024), Reply::Data(vec![data(b'a', 512), hole.clone()]));
    story.asks(request(READ, DF, 2, 4096, 1024), Reply::Data(vec![data(b'a', 512), hole]));
    story.asks(request(READ, DF, 3, 0, 1024), Reply::Data(vec![Piece::Hole(1024)]));
    story.asks(request(WRITE, 0, 4, 512, 1024), done.clone());
    story.asks(request(WRITE, FUA, 5, (1 << 20) - 512, 512), done.clone());
    story.asks(request(FLUSH, FUA, 6, 0, 0), done.clone());
    story.asks(request(TRIM, 0, 7, 0, 1 << 20), done.clone());
    story.asks(request(WRITE_ZEROES, 0, 8, 0, 1 << 20), done.clone());
    story.asks(
        request(WRITE_ZEROES, FUA | NO_HOLE | FAST_ZERO, 9, 512, 512),
        Reply::Failed(Errno::NotSupported),
    );
    story.asks(request(CACHE, 0, 10, 0, 1 << 20), done);
    let extents = vec![
        extent(512, false, false),
        extent(512, false, false),
        extent(1024, true, true),
        extent(8192, false, true),
    ];
    story.asks(request(BLOCK_STATUS, 0, 11, 0, 4096), Reply::Extents(extents.clone()));
    story.asks(request(BLOCK_STATUS, REQ_ONE, 12, 0, 4096), Reply::Extents(extents));
    story.asks(request(READ, 0, 13, 0, 512), Reply::Failed(Errno::Io));
    story.asks(request(WRITE, 0, 14, 0, 512), Reply::Failed(Errno::NoSpace));
}

fn refusals(story: &mut Story) {
    story.title("Refused without the driver");
    story.says(request(READ, 0, 20, 1 << 20, 512));
    story.says(request(WRITE, 0, 21, (1 << 20) - 512, 1024));
    story.says(request(WRITE_ZEROES, 0, 22, u64::MAX, 512));
    story.says(request(TRIM, 0, 23, 512, 1 << 20));
    story.says(request(READ, 0, 24, 1, 512));
    story.says(request(READ, 0, 25, 0, 0));
    story.says(request(READ, 0, 26, 0, LONGEST + 512));
    story.says(request(READ, DF, 27, 0, LONGEST + 512));
    story.says(request(WRITE, 0, 28, 0, LONGEST + 512));
    story.says(request(WRITE, DF, 29, 0, 512));
    story.says(request(FLUSH, 0, 30, 0, 512));
    story.says(request(8, 0, 31, 0, 0));
}

#[test]
fn golden_structured() {
    let mut story = Story::new();
    negotiate(&mut story);
    commands(&mut story);
    refusals(&mut story);
    story.title("Goodbye, with requests in flight");
    story.says(request(READ, 0, 40, 0, 512));
    story.says(request(WRITE, 0, 40, 0, 512));
    story.says(request(DISC, 0, 0, 0, 0));
    let (write, read) = (story.peer.requests.len() as u64 - 1, story.peer.requests.len() as u64 - 2);
    story.answers(write, Reply::Failed(Errno::ShuttingDown));
    story.answers(read, Reply::Data(vec![data(b'z', 512)]));
    story.end("structured");
}

#[test]
fn golden_simple() {
    let mut story = Story::new();
    story.title("The old way to open, with simple replies");
    story.says(Say::Flags(0));
    story.says(Say::Option(1, b"old"));
    story.asks(request(READ, 0, 1, 0, 1024), Reply::Data(vec![Piece::Hole(512), data(b'b', 512)]));
    story.asks(request(FLUSH, 0, 2, 0, 0), Reply::Done);
    story.asks(request(READ, 0, 3, 0, 512), Reply::Failed(Errno::Io));
    story.title("Refused without the driver");
    story.says(request(WRITE, 0, 4, 0, 512));
    story.says(request(TRIM, 0, 5, 0, 512));
    story.says(request(WRITE_ZEROES, 0, 6, 0, 512));
    story.says(request(READ, DF, 7, 0, 512));
    story.says(request(BLOCK_STATUS, 0, 8, 0, 512));
    story.title("Goodbye");
    story.says(request(DISC, 0, 0, 0, 0));
    story.end("simple");
}
