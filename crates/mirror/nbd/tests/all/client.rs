//! A client's half of the protocol, written from its description: what a client says, and what it understands.

use std::fmt;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;

/// A message of the client's.
pub enum Say<'a> {
    Flags(u32),
    Option(u32, &'a [u8]),
    Info { go: bool, name: &'a str, kinds: &'a [u16] },
    Contexts { set: bool, name: &'a str, queries: &'a [&'a str] },
    Request { command: u16, flags: u16, cookie: u64, offset: u64, length: u32, payload: Vec<u8> },
}

/// A request; the payload of a write is `length` bytes of `w`.
pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Say<'static> {
    let payload = if command == WRITE { vec![b'w'; length as usize] } else { Vec::new() };
    Say::Request { command, flags, cookie, offset, length, payload }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    [b"IHAVEOPT", &number.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
}

impl Say<'_> {
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Say::Flags(flags) => flags.to_be_bytes().to_vec(),
            Say::Option(number, data) => option(*number, data),
            Say::Info { go, name, kinds } => {
                let mut data = text(name);
                data.extend((kinds.len() as u16).to_be_bytes());
                kinds.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
                option(if *go { 7 } else { 6 }, &data)
            }
            Say::Contexts { set, name, queries } => {
                let mut data = text(name);
                data.extend((queries.len() as u32).to_be_bytes());
                queries.iter().for_each(|query| data.extend(text(query)));
                option(if *set { 10 } else { 9 }, &data)
            }
            Say::Request { command, flags, cookie, offset, length, payload } => [
                &0x2560_9513u32.to_be_bytes()[..],
                &flags.to_be_bytes(),
                &command.to_be_bytes(),
                &cookie.to_be_bytes(),
                &offset.to_be_bytes(),
                &length.to_be_bytes(),
                payload,
            ]
            .concat(),
        }
    }
}

fn option_name(number: u32) -> String {
    let names = [
        (1, "EXPORT_NAME"),
        (2, "ABORT"),
        (3, "LIST"),
        (5, "STARTTLS"),
        (6, "INFO"),
        (7, "GO"),
        (8, "STRUCTURED_REPLY"),
        (9, "LIST_META_CONTEXT"),
        (10, "SET_META_CONTEXT"),
        (11, "EXTENDED_HEADERS"),
    ];
    name_of(&names, number)
}

fn name_of<T: Copy + PartialEq + fmt::Display>(names: &[(T, &str)], number: T) -> String {
    let found = names.iter().find(|(n, _)| *n == number);
    found.map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned())
}

/// The names of the set bits, with a space before each.
fn bits(names: &[(u32, &str)], set: u32) -> String {
    let known = names.iter().filter(|(bit, _)| set & bit != 0).map(|(_, name)| format!(" {name}"));
    let rest = set & !names.iter().map(|(bit, _)| bit).sum::<u32>();
    known.chain((rest != 0).then(|| format!(" {rest:#x}"))).collect()
}

impl fmt::Display for Say<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Say::Flags(flags) => {
                write!(f, "flags{}", bits(&[(1, "FIXED_NEWSTYLE"), (2, "NO_ZEROES")], *flags))
            }
            Say::Option(number, data) => {
                write!(f, "{} with \"{}\"", option_name(*number), data.escape_ascii())
            }
            Say::Info { go, name, kinds } => {
                let kinds: String = kinds.iter().map(|kind| format!(" {}", info_name(*kind))).collect();
                write!(f, "{} {name:?}, asking for:{kinds}", option_name(if *go { 7 } else { 6 }))
            }
            Say::Contexts { set, name, queries } => {
                write!(f, "{} of {name:?}: {queries:?}", option_name(if *set { 10 } else { 9 }))
            }
            Say::Request { command, flags, cookie, offset, length, .. } => {
                let command =
                    ["READ", "WRITE", "DISC", "FLUSH", "TRIM", "CACHE", "WRITE_ZEROES", "BLOCK_STATUS"]
                        .get(usize::from(*command))
                        .map_or_else(|| format!("command {command}"), |name| (*name).to_owned());
                let names = [(1, "FUA"), (2, "NO_HOLE"), (4, "DF"), (8, "REQ_ONE"), (16, "FAST_ZERO")];
                let flags = bits(&names, u32::from(*flags));
                write!(f, "{command}{flags}, cookie {cookie}, {length} bytes at {offset}")
            }
        }
    }
}

/// A message of the server's, after the greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromServer {
    Option {
        option: u32,
        kind: u32,
        data: Vec<u8>,
    },
    /// `data`: of a read.
    Simple {
        cookie: u64,
        error: u32,
        data: Vec<u8>,
    },
    Chunk {
        cookie: u64,
        last: bool,
        kind: u16,
        payload: Vec<u8>,
    },
}

/// Reads big-endian numbers off the front. A message that ends early is a bug of the server's.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(len);
        self.0 = rest;
        front
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }
}

/// Parses whole messages. `read_len`: how many bytes follow a simple reply to this cookie if it succeeded.
pub fn parse(bytes: &[u8], read_len: impl Fn(u64) -> usize) -> Vec<FromServer> {
    let (mut reader, mut found) = (Reader(bytes), Vec::new());
    while !reader.0.is_empty() {
        found.push(match reader.u32() {
            0x0003_e889 => {
                assert_eq!(reader.u32(), 0x0455_65a9);
                let (option, kind, len) = (reader.u32(), reader.u32(), reader.u32());
                FromServer::Option { option, kind, data: reader.take(len as usize).to_vec() }
            }
            0x6744_6698 => {
                let (error, cookie) = (reader.u32(), reader.u64());
                let len = if error == 0 { read_len(cookie) } else { 0 };
                FromServer::Simple { cookie, error, data: reader.take(len).to_vec() }
            }
            0x668e_33ef => {
                let (flags, kind, cookie, len) = (reader.u16(), reader.u16(), reader.u64(), reader.u32());
                assert!(flags <= 1, "{flags}");
                let payload = reader.take(len as usize).to_vec();
                FromServer::Chunk { cookie, last: flags == 1, kind, payload }
            }
            magic => panic!("{magic:#x} begins no message"),
        });
    }
    found
}

fn info_name(kind: u16) -> String {
    name_of(&[(0, "EXPORT"), (1, "NAME"), (2, "DESCRIPTION"), (3, "BLOCK_SIZE")], kind)
}

pub fn errno_name(errno: u32) -> String {
    let names = [
        (1, "EPERM"),
        (5, "EIO"),
        (22, "EINVAL"),
        (28, "ENOSPC"),
        (75, "EOVERFLOW"),
        (95, "ENOTSUP"),
        (108, "ESHUTDOWN"),
    ];
    name_of(&names, errno)
}

pub fn transmission_flags(flags: u16) -> String {
    let names = [
        "HAS_FLAGS",
        "READ_ONLY",
        "SEND_FLUSH",
        "SEND_FUA",
        "ROTATIONAL",
        "SEND_TRIM",
        "SEND_WRITE_ZEROES",
        "SEND_DF",
        "CAN_MULTI_CONN",
        "SEND_RESIZE",
        "SEND_CACHE",
        "SEND_FAST_ZERO",
    ];
    let names: Vec<(u32, &str)> = names.iter().enumerate().map(|(bit, name)| (1 << bit, *name)).collect();
    bits(&names, flags.into())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn describe_option(kind: u32, data: &[u8]) -> String {
    let mut reader = Reader(data);
    match kind {
        1 => "ACK".to_owned(),
        2 => {
            let len = reader.u32() as usize;
            format!("SERVER {:?}, described as {:?}", lossy(reader.take(len)), lossy(reader.0))
        }
        3 => match reader.u16() {
            0 => format!("INFO EXPORT of {} bytes,{}", reader.u64(), transmission_flags(reader.u16())),
            3 => format!("INFO BLOCK_SIZE {} {} {}", reader.u32(), reader.u32(), reader.u32()),
            kind => format!("INFO {} {:?}", info_name(kind), lossy(reader.0)),
        },
        4 => format!("META_CONTEXT {} {:?}", reader.u32(), lossy(reader.0)),
        error => {
            let names = [(1, "ERR_UNSUP"), (3, "ERR_INVALID"), (6, "ERR_UNKNOWN")];
            format!("{}: {}", name_of(&names, error & !(1 << 31)), lossy(data))
        }
    }
}

fn describe_chunk(kind: u16, payload: &[u8]) -> String {
    let mut reader = Reader(payload);
    match kind {
        1 => format!("OFFSET_DATA at {}, {}", reader.u64(), runs(reader.0)),
        2 => format!("OFFSET_HOLE at {}, {} bytes", reader.u64(), reader.u32()),
        5 => {
            let mut text = format!("BLOCK_STATUS of context {}:", reader.u32());
            while !reader.0.is_empty() {
                let length = reader.u32();
                let flags = bits(&[(1, "HOLE"), (2, "ZERO")], reader.u32());
                text += &format!(" [{length} bytes{flags}]");
            }
            text
        }
        0x8001 => {
            let (errno, len) = (reader.u32(), reader.u16());
            assert_eq!(reader.0.len(), usize::from(len));
            format!("ERROR {}: {}", errno_name(errno), lossy(reader.0))
        }
        kind => format!("chunk of kind {kind}"),
    }
}

/// Bytes as runs of equal ones.
pub fn runs(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|a, b| a == b);
    let runs: Vec<String> = runs.map(|run| format!("{}×'{}'", run.len(), run[..1].escape_ascii())).collect();
    format!("{} bytes: {}", bytes.len(), runs.join(" "))
}

impl fmt::Display for FromServer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            FromServer::Option { option, kind, data } => {
                write!(f, "to {}: {}", option_name(*option), describe_option(*kind, data))
            }
            FromServer::Simple { cookie, error: 0, data } if data.is_empty() => {
                write!(f, "cookie {cookie}: success")
            }
            FromServer::Simple { cookie, error: 0, data } => {
                write!(f, "cookie {cookie}: success, {}", runs(data))
            }
            FromServer::Simple { cookie, error, .. } => write!(f, "cookie {cookie}: {}", errno_name(*error)),
            FromServer::Chunk { cookie, last, kind, payload } => {
                let more = if *last { "" } else { ", more follows" };
                write!(f, "cookie {cookie}: {}{more}", describe_chunk(*kind, payload))
            }
        }
    }
}
