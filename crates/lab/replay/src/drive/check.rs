//! A verifying replay: every byte written is a function of (volume, position, number of the write), and every byte read
//! is compared with the last acknowledged write ([`ledger`](super::ledger)).
//!
//! A write that overlaps an earlier one in flight waits for it, and that counts as queue time.

use super::ledger::{Ledger, Span, Ticket};
use super::options::DriveError;
use super::place::Op;
use super::record::ERRORS_TOLD;
use super::report::{CheckReport, DriveReport};
use super::storage::{Failure, Storage};
use bytes::Bytes;
use ebb_bench::content::{Content, Number, fill};
use ebb_types::ObjectId;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Bytes of one request outside the replay itself (before it and after it), and the number of such requests in
/// parallel.
const PIECE_BYTES: u64 = 1 << 20;
const PIECES: usize = 16;
/// Number of mismatches that are described.
const EXAMPLES: usize = 10;

/// See the module.
#[derive(Default)]
pub(crate) struct Check {
    ledger: Ledger,
    pub report: CheckReport,
}

impl Check {
    /// For a target that is one device with unknown content.
    pub fn of_one(name: &str) -> Check {
        let mut check = Check::default();
        check.add_device(ObjectId(0), name.to_owned(), Content::Unknown);
        check
    }

    /// Reads everything back, and puts the results into the report.
    pub async fn finish(
        mut self,
        storage: &Arc<dyn Storage>,
        report: &mut DriveReport,
    ) -> Result<(), DriveError> {
        let target = &report.target.name;
        let failures = self.read_back(storage).await.map_err(|failure| match failure {
            Failure::Request(reason) | Failure::Lost(reason) => {
                DriveError::Lost { target: target.clone(), reason }
            }
        })?;
        report.failed += failures.len() as u64;
        report.errors.extend(failures.into_iter().take(ERRORS_TOLD.saturating_sub(report.errors.len())));
        report.check = Some(self.report);
        Ok(())
    }

    /// Devices are numbered from zero, in this order. `initial`: the content before any write.
    pub fn add_device(&mut self, id: ObjectId, name: String, initial: Content) {
        self.ledger.add_volume(id, name, initial);
    }

    /// Records what a read is compared with from now on.
    pub fn begin_read(&mut self, op: &Op) -> Ticket {
        self.ledger.read(span(op))
    }

    /// The number of the write, or `None` if it has to wait.
    pub fn begin_write(&mut self, op: &Op) -> (Ticket, Option<Number>) {
        let begun = self.ledger.write(span(op));
        self.report.waited += u64::from(begun.1.is_none());
        begun
    }

    pub fn payload(&self, op: &Op, number: Number) -> Bytes {
        let mut bytes = vec![0; op.len as usize];
        fill(self.ledger.volume(op.device as usize).0, op.offset, number, &mut bytes);
        bytes.into()
    }

    /// Whether the bytes are right. `None`: the read failed.
    pub fn end_read(&mut self, ticket: Ticket, bytes: Option<&[u8]>) -> bool {
        let Some(bytes) = bytes else {
            self.ledger.forget_read(ticket);
            return true;
        };
        match self.ledger.end_read(ticket, bytes) {
            Ok(unchecked) => self.report.unchecked_bytes += unchecked,
            Err(mismatch) => {
                self.report.mismatched += 1;
                if self.report.mismatches.len() < EXAMPLES {
                    self.report.mismatches.push(*mismatch);
                }
                return false;
            }
        }
        true
    }

    /// Returns the writes that may start now.
    pub fn end_write(&mut self, ticket: Ticket, acknowledged: bool) -> Vec<(Ticket, Number)> {
        self.ledger.end_write(ticket, acknowledged)
    }

    /// Writes these device ranges as write zero: the data that the replay will read. Calls `progress` with the bytes so
    /// far.
    pub async fn prepare(
        &mut self,
        storage: &Arc<dyn Storage>,
        spans: &[Span],
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Failure> {
        spans.iter().for_each(|span| self.ledger.prepared(span));
        let (mut pieces, mut writes, mut done) = (pieces(spans), JoinSet::new(), 0);
        loop {
            while writes.len() < PIECES
                && let Some(op) = pieces.next()
            {
                let (storage, payload) = (storage.clone(), self.payload(&op, 0));
                writes.spawn(async move {
                    storage.write(op.device, op.offset, payload).await.map(|()| u64::from(op.len))
                });
            }
            let Some(written) = writes.join_next().await else { return Ok(done) };
            done += written.expect("a write does not panic")?;
            progress(done);
        }
    }

    /// Reads everything written once more: a lost write that was never read would go undetected. Returns the failures.
    pub async fn read_back(&mut self, storage: &Arc<dyn Storage>) -> Result<Vec<String>, Failure> {
        let written = self.ledger.written();
        let (mut pieces, mut reads, mut failures) = (pieces(&written), JoinSet::new(), Vec::new());
        loop {
            while reads.len() < PIECES
                && let Some(op) = pieces.next()
            {
                let (storage, ticket) = (storage.clone(), self.begin_read(&op));
                reads.spawn(async move { (ticket, storage.read(op.device, op.offset, op.len).await) });
            }
            let Some(done) = reads.join_next().await else { return Ok(failures) };
            let (ticket, result) = done.expect("a read does not panic");
            match result {
                Ok(bytes) => {
                    self.report.read_back_bytes += bytes.len() as u64;
                    self.end_read(ticket, Some(&bytes));
                }
                Err(Failure::Request(error)) => {
                    self.end_read(ticket, None);
                    failures.push(error);
                }
                Err(lost) => return Err(lost),
            }
        }
    }
}

fn span(op: &Op) -> Span {
    Span { volume: op.device as usize, bytes: op.offset..op.offset + u64::from(op.len) }
}

/// Ranges in pieces of [`PIECE_BYTES`].
fn pieces(spans: &[Span]) -> impl Iterator<Item = Op> {
    spans.iter().flat_map(|span| {
        let (device, end) = (span.volume as u32, span.bytes.end);
        span.bytes.clone().step_by(PIECE_BYTES as usize).map(move |offset| Op {
            due: 0,
            device,
            offset,
            len: PIECE_BYTES.min(end - offset) as u32,
            kind: ebb_trace::Kind::Read,
        })
    })
}
