//! Block traces: the field's formats in, one stream of [`Request`]s out, at any intensity.
//!
//! The crate is pure: readers take `Read`, writers take `Write`; nothing here opens a file or reads a clock. Memory is
//! constant in the length of a trace: a reader holds one buffer per input and the names of the devices.
//! `docs/trace-formats.md` describes every format and the handling of damaged input.
//!
//! ```
//! let text = &b"0,20941264,8192,W,0.551706\n1,20939840,8192,R,0.554041\n"[..];
//! let mut trace = ebb_trace::open("example.spc", text)?;
//! let first = trace.next().expect("the trace has two requests")?;
//! assert_eq!((first.offset, first.len), (20941264 * 512, 8192));
//! assert_eq!(ebb_trace::summary(trace.as_mut())?.requests, 1);
//! # Ok::<(), ebb_trace::TraceError>(())
//! ```

mod accuracy;
mod ascii;
mod blktrace;
mod btrecord;
mod csv;
mod daily;
mod detect;
mod filter;
mod fio;
mod format;
mod hotband;
mod memory;
mod number;
mod plausible;
mod reader;
mod source;
mod srt;
mod summary;
mod synth;
mod table;
mod unit;
mod vscsi;
mod writer;

pub use accuracy::{Accuracy, Original};
pub use blktrace::BlktraceWriter;
pub use btrecord::BtrecordWriter;
pub use daily::{Daily, DailyError, DailyTrace};
pub use detect::{Input, Options, open, open_with};
pub use filter::{BalancedFilter, LoadError, Scaled, TracerFilter};
pub use fio::FioWriter;
pub use format::Format;
pub use hotband::HotBand;
pub use memory::{InMemory, RangeError, Trace};
pub use reader::{Position, Reason, TraceError, TraceReader};
pub use source::decompress;
pub use summary::{DeviceSummary, Summary, Summing, summary};
pub use synth::{Mode, Pace, RATIOS, SIZES, SynthError, Synthetic};
pub use table::{Column, Columns};
pub use unit::Unit;
pub use writer::{TraceWriter, WriteError, Written};

use std::time::Duration;

/// Direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Read,
    Write,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Arrival, since the first request of the trace. Never earlier than that of the previous request.
    pub at: Duration,
    /// Index into [`TraceReader::devices`].
    pub device: u32,
    /// First byte on the device. `offset + len` does not overflow an `i64`.
    pub offset: u64,
    /// Bytes. Zero is legal in some formats and is passed through.
    pub len: u32,
    /// Read or write. Other operations (discard, flush, sync) are not part of the stream.
    pub kind: Kind,
}
