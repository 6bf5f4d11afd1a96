//! The server's side of the Network Block Device protocol: bytes in, requests and replies out. Pure.
//!
//! A [`Session`] is one connection. Its driver owns the socket and the storage: it passes on what it received, carries
//! out the requests that come out, and reports how each one ended, in any order. The session negotiates, checks every
//! request against its [`Export`], answers wrong ones itself and encodes the replies. So a driver for a mirror and one
//! for a volume differ in their storage alone, and what to make of bytes from the network is decided, and tested,
//! without a socket.
//!
//! - A request that comes out lies inside the export, begins and ends at multiples of the smallest block, is not empty,
//!   and writes only where writing is allowed. [`Request`] says more.
//! - Nothing is allocated for a length that a client claims. A payload is cut out of the input and passed on to the
//!   output without a copy.
//! - Work and output per message are bounded by the message's length, the exports' names, and the driver's reply.
//! - What comes out depends on the bytes alone, not on how they were divided.
//!
//! Spoken: fixed newstyle, structured replies, and the context `base:allocation`. Not spoken: TLS, the old styles,
//! extended headers, resizing. Where the protocol leaves a choice: a client that does not ask for block sizes gets them
//! and is served all the same, but must keep to them; `NBD_CMD_WRITE_ZEROES` and `NBD_CMD_CACHE` may exceed the longest
//! payload, since they carry none; a request for no bytes is refused.
//!
//! Source: the protocol's description, `doc/proto.md` of the NBD project.
//!
//! ```
//! use bytes::{Bytes, BytesMut};
//! use ebb_nbd::{BlockSizes, Export, Output, Piece, Reply, Request, Session};
//!
//! let disk = Export {
//!     name: "disk".to_owned(),
//!     description: String::new(),
//!     size: 1 << 20,
//!     block: BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 },
//!     read_only: false,
//!     rotational: false,
//!     multi_conn: true,
//! };
//! let (mut session, greeting) = Session::new([disk].into());
//! assert!(greeting.starts_with(b"NBDMAGICIHAVEOPT"));
//!
//! let mut input = BytesMut::new();
//! input.extend_from_slice(&[0, 0, 0, 3]); // the client's flags
//! input.extend_from_slice(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk"); // NBD_OPT_EXPORT_NAME
//! input.extend_from_slice(b"\x25\x60\x95\x13\0\0\0\0acookie!\0\0\0\0\0\0\x10\0\0\0\x02\0"); // NBD_CMD_READ
//! let mut out = Vec::new();
//! session.on_bytes(&mut input, &mut out);
//! let request = Request::Read { offset: 4096, length: 512, whole: false };
//! assert_eq!(out[1..], [Output::Opened { export: 0 }, Output::Request { id: 0, request }]);
//!
//! out.clear();
//! session.reply(0, Reply::Data(vec![Piece::Data(Bytes::from_static(&[7; 512]))]), &mut out);
//! assert_eq!(out[0], Output::Send(Bytes::from_static(b"\x67\x44\x66\x98\0\0\0\0acookie!")));
//! assert_eq!(out[1], Output::Send(Bytes::from_static(&[7; 512])));
//! ```

mod errno;
mod export;
mod negotiate;
mod output;
mod reply;
mod request;
mod session;
mod terms;
mod transmit;
mod wire;

pub use errno::Errno;
pub use export::{BadExport, BlockSizes, Export};
pub use output::{CloseReason, InFlight, Output};
pub use reply::{Extent, Piece, Reply};
pub use request::Request;
pub use session::Session;
