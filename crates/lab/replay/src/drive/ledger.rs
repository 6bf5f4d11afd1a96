//! The required content of every byte of every volume.
//!
//! The ledger knows, per byte range, the last acknowledged write, and which requests are in flight. A write that
//! overlaps an earlier write in flight waits for it, as it would in a file system: otherwise it would be undefined
//! which of the two comes last. A read never waits: it may see the last acknowledged write or any write that was in
//! flight at some time between its issue and its answer, and nothing else. So a read issued after a write was
//! acknowledged must see it.

use ebb_bench::content::{Content, Number, first_difference, writer};
use ebb_types::ObjectId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Identifies a request in flight. Later requests have larger tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A byte range of a volume, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub volume: usize,
    pub bytes: Range<u64>,
}

impl Span {
    fn meet(&self, other: &Span) -> Option<Range<u64>> {
        let (start, end) = (self.bytes.start.max(other.bytes.start), self.bytes.end.min(other.bytes.end));
        (self.volume == other.volume && start < end).then_some(start..end)
    }
}

/// A read that returned wrong content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The trace's name of the volume.
    pub volume: String,
    /// First wrong byte.
    pub offset_bytes: u64,
    pub read_offset_bytes: u64,
    pub read_bytes: u64,
    /// Numbers of the writes that may have been seen there; zero is the content before the trace, an empty list means
    /// "never written".
    pub expected_writes: Vec<Number>,
    /// What was found there: `"zero"`, `"write"` or `"other"`.
    pub found: &'static str,
    /// The write whose bytes were found there, if any.
    pub found_write: Option<Number>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { volume, offset_bytes, read_offset_bytes, read_bytes, expected_writes, .. } = self;
        write!(
            f,
            "volume {volume}, byte {offset_bytes} (read of {read_bytes} bytes at {read_offset_bytes}): "
        )?;
        match expected_writes.as_slice() {
            [] => write!(f, "nothing was written there")?,
            writes => write!(f, "must hold write {writes:?}")?,
        }
        match self.found_write {
            Some(number) => write!(f, ", holds write {number}"),
            None if self.found == "zero" => write!(f, ", holds zeros"),
            None => write!(f, ", holds bytes of no write of this volume at this place"),
        }
    }
}

struct Volume {
    id: ObjectId,
    name: String,
    /// Content where nothing is known.
    initial: Content,
    /// Disjoint ranges `start -> (end, content)`.
    known: BTreeMap<u64, (u64, Content)>,
}

struct Write {
    span: Span,
    /// `None`: it waits.
    number: Option<Number>,
    /// Number of earlier writes in flight that it overlaps.
    ahead: usize,
    /// Later ones that wait for it.
    behind: Vec<Ticket>,
}

struct Read {
    span: Span,
    allowed: Vec<(Range<u64>, Content)>,
}

/// See the module.
#[derive(Default)]
pub struct Ledger {
    volumes: Vec<Volume>,
    writes: BTreeMap<Ticket, Write>,
    reads: BTreeMap<Ticket, Read>,
    tickets: u64,
    numbers: Number,
}

impl Ledger {
    /// Volumes are numbered from zero, in this order. `initial`: the content before any write.
    pub fn add_volume(&mut self, id: ObjectId, name: String, initial: Content) {
        self.volumes.push(Volume { id, name, initial, known: BTreeMap::new() });
    }

    pub fn volume(&self, index: usize) -> ObjectId {
        self.volumes[index].id
    }

    /// All written ranges, adjacent ones merged.
    pub fn written(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for (volume, of) in self.volumes.iter().enumerate() {
            for (&start, &(end, _)) in &of.known {
                match spans.last_mut() {
                    Some(last) if last.volume == volume && last.bytes.end == start => last.bytes.end = end,
                    _ => spans.push(Span { volume, bytes: start..end }),
                }
            }
        }
        spans
    }

    /// The range was filled with the content of write zero.
    pub fn prepared(&mut self, span: &Span) {
        self.set(span, Content::Write(0));
    }

    /// Registers a write. It gets its number at once, or when the earlier writes that it overlaps have ended.
    pub fn write(&mut self, span: Span) -> (Ticket, Option<Number>) {
        let ticket = self.ticket();
        let mut ahead = 0;
        for earlier in self.writes.values_mut().filter(|earlier| earlier.span.meet(&span).is_some()) {
            earlier.behind.push(ticket);
            ahead += 1;
        }
        self.writes.insert(ticket, Write { span, number: None, ahead, behind: Vec::new() });
        (ticket, (ahead == 0).then(|| self.start(ticket)))
    }

    /// Numbers a write that may start now.
    fn start(&mut self, ticket: Ticket) -> Number {
        self.numbers += 1;
        let number = self.numbers;
        let span = self.writes[&ticket].span.clone();
        for read in self.reads.values_mut() {
            read.allowed.extend(read.span.meet(&span).map(|range| (range, Content::Write(number))));
        }
        self.writes.get_mut(&ticket).expect("under way").number = Some(number);
        number
    }

    /// Ends a write: acknowledged, or failed and perhaps carried out. Returns the writes that may start now.
    pub fn end_write(&mut self, ticket: Ticket, acknowledged: bool) -> Vec<(Ticket, Number)> {
        let write = self.writes.remove(&ticket).expect("under way");
        let number = write.number.expect("it was started");
        let content = if acknowledged { Content::Write(number) } else { Content::Unknown };
        self.set(&write.span, content);
        let mut started = Vec::new();
        for ticket in write.behind {
            let later = self.writes.get_mut(&ticket).expect("it waits for this one");
            later.ahead -= 1;
            if later.ahead == 0 {
                started.push((ticket, self.start(ticket)));
            }
        }
        started
    }

    /// Registers a read; it never waits.
    pub fn read(&mut self, span: Span) -> Ticket {
        let mut allowed = self.known(&span);
        for write in self.writes.values() {
            let Some(number) = write.number else { continue };
            allowed.extend(write.span.meet(&span).map(|range| (range, Content::Write(number))));
        }
        let ticket = self.ticket();
        self.reads.insert(ticket, Read { span, allowed });
        ticket
    }

    /// Ends a read that failed.
    pub fn forget_read(&mut self, ticket: Ticket) {
        self.reads.remove(&ticket);
    }

    /// Ends a read. Returns how many bytes could not be checked, because an earlier write there failed.
    pub fn end_read(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<u64, Box<Mismatch>> {
        let Read { span, allowed } = self.reads.remove(&ticket).expect("under way");
        let asked = span.bytes.end - span.bytes.start;
        if bytes.len() as u64 != asked {
            return Err(Box::new(self.mismatch(&span, span.bytes.start, &[], &[])));
        }
        let mut cuts: Vec<u64> = allowed.iter().flat_map(|(range, _)| [range.start, range.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut unchecked = 0;
        for cut in cuts.windows(2) {
            let (start, end) = (cut[0], cut[1]);
            let here = allowed.iter().filter(|(range, _)| range.start <= start && end <= range.end);
            let here: Vec<Content> = here.map(|(_, content)| *content).collect();
            if here.contains(&Content::Unknown) {
                unchecked += end - start;
                continue;
            }
            let part = &bytes[(start - span.bytes.start) as usize..(end - span.bytes.start) as usize];
            let volume = self.volumes[span.volume].id.0;
            if let Some(at) = first_difference(volume, start, part, &here) {
                return Err(Box::new(self.mismatch(&span, start + at as u64, &here, &part[at..])));
            }
        }
        Ok(unchecked)
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn mismatch(&self, span: &Span, offset: u64, allowed: &[Content], found: &[u8]) -> Mismatch {
        let volume = &self.volumes[span.volume];
        let expected = allowed.iter().filter_map(|content| match content {
            Content::Write(number) => Some(*number),
            Content::Zero | Content::Unknown => None,
        });
        // A whole word reveals its write; one begins within eight bytes of any position.
        let ahead = (offset.next_multiple_of(8) - offset) as usize;
        let word = found.get(ahead..).and_then(|rest| rest.first_chunk::<8>());
        let found_write = word
            .map(|word| writer(volume.id.0, offset.div_ceil(8), *word))
            .filter(|number| *number <= self.numbers);
        let zero = !found.is_empty() && found.iter().take(8).all(|byte| *byte == 0);
        Mismatch {
            volume: volume.name.clone(),
            offset_bytes: offset,
            read_offset_bytes: span.bytes.start,
            read_bytes: span.bytes.end - span.bytes.start,
            expected_writes: expected.collect(),
            found: if found_write.is_some() {
                "write"
            } else if zero {
                "zero"
            } else {
                "other"
            },
            found_write,
        }
    }

    /// The content of a range, without gaps.
    fn known(&self, span: &Span) -> Vec<(Range<u64>, Content)> {
        let Volume { initial, known, .. } = &self.volumes[span.volume];
        let Range { start, end } = span.bytes;
        let from = known.range(..=start).next_back().map_or(start, |(first, _)| *first);
        let mut parts = Vec::new();
        let mut at = start;
        for (&first, &(last, content)) in known.range(from..end) {
            let (first, last) = (first.max(start), last.min(end));
            if last <= at {
                continue;
            }
            if at < first {
                parts.push((at..first, *initial));
            }
            parts.push((first..last, content));
            at = last;
        }
        if at < end {
            parts.push((at..end, *initial));
        }
        parts
    }

    fn set(&mut self, span: &Span, content: Content) {
        let known = &mut self.volumes[span.volume].known;
        let Range { start, end } = span.bytes;
        // A range that begins before and reaches in is cut; one that begins within is removed, except for the part that
        // reaches out.
        let before = known.range(..start).next_back().map(|(first, value)| (*first, *value));
        if let Some((first, (last, old))) = before.filter(|(_, (last, _))| *last > start) {
            known.insert(first, (start, old));
            if last > end {
                known.insert(end, (last, old));
            }
        }
        let within: Vec<u64> = known.range(start..end).map(|(first, _)| *first).collect();
        for first in within {
            let (last, old) = known.remove(&first).expect("just seen");
            if last > end {
                known.insert(end, (last, old));
            }
        }
        known.insert(start, (end, content));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_bench::content::fill;

    fn span(bytes: Range<u64>) -> Span {
        Span { volume: 0, bytes }
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add_volume(ObjectId(7), "sda".into(), Content::Zero);
        ledger
    }

    /// A volume that carries out writes as ordered.
    fn carry_out(disk: &mut [u8], bytes: Range<u64>, number: Number) {
        fill(7, bytes.start, number, &mut disk[bytes.start as usize..bytes.end as usize]);
    }

    fn seen(ledger: &mut Ledger, disk: &[u8], bytes: Range<u64>) -> Result<u64, Box<Mismatch>> {
        let ticket = ledger.read(span(bytes.clone()));
        ledger.end_read(ticket, &disk[bytes.start as usize..bytes.end as usize])
    }

    #[test]
    fn a_disk_that_obeys_always_passes_and_one_lost_write_never_does() {
        // Random overlapping writes of any alignment, each then lost in turn on a copy of the disk.
        let mut ledger = ledger();
        let mut disk = vec![0; 4096];
        let mut random = 0x1234_5678_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for _ in 0..2000 {
            let start = draw(4000);
            let bytes = start..start + 1 + draw(96);
            let before = disk.clone();
            let (ticket, number) = ledger.write(span(bytes.clone()));
            let number = number.expect("nothing else is under way");
            carry_out(&mut disk, bytes.clone(), number);
            ledger.end_write(ticket, true);
            assert_eq!(seen(&mut ledger, &disk, 0..4096), Ok(0));
            let lost = seen(&mut ledger, &before, 0..4096).unwrap_err();
            assert!(bytes.contains(&lost.offset_bytes) || bytes.start - lost.offset_bytes < 8, "{lost}");
            assert_eq!(lost.expected_writes, [number]);
        }
    }

    #[test]
    fn a_lost_write_is_described_exactly() {
        let mut ledger = ledger();
        let mut disk = vec![0; 8192];
        ledger.prepared(&span(0..8192));
        carry_out(&mut disk, 0..8192, 0);
        for bytes in [0..4096, 4096..8192] {
            let (ticket, number) = ledger.write(span(bytes.clone()));
            let number = number.unwrap();
            if number == 1 {
                carry_out(&mut disk, bytes, number);
            }
            ledger.end_write(ticket, true);
        }
        let lost = seen(&mut ledger, &disk, 1024..8192).unwrap_err();
        assert_eq!((lost.offset_bytes, lost.found, lost.found_write), (4096, "write", Some(0)));
        assert_eq!(
            lost.to_string(),
            "volume sda, byte 4096 (read of 7168 bytes at 1024): must hold write [2], holds write 0"
        );
        disk[4096..].fill(0);
        assert_eq!(seen(&mut ledger, &disk, 4096..8192).unwrap_err().found, "zero");
        disk[4096..].fill(0xa5);
        assert_eq!(seen(&mut ledger, &disk, 4096..8192).unwrap_err().found, "other");
        let ticket = ledger.read(span(0..16));
        assert!(ledger.end_read(ticket, &disk[..8]).is_err(), "too short an answer");
    }

    #[test]
    fn writes_that_overlap_wait_in_their_order_and_others_do_not() {
        let mut ledger = ledger();
        let (first, number) = ledger.write(span(0..100));
        assert_eq!(number, Some(1));
        let (second, number) = ledger.write(span(50..150));
        assert_eq!(number, None);
        let (third, number) = ledger.write(span(120..130));
        assert_eq!(number, None, "it comes after the second, which waits");
        let (other, number) = ledger.write(span(200..300));
        assert_eq!(number, Some(2));
        let (last, number) = ledger.write(span(0..300));
        assert_eq!(number, None);
        assert_eq!(ledger.end_write(other, true), []);
        assert_eq!(ledger.end_write(first, true), [(second, 3)]);
        assert_eq!(ledger.end_write(second, true), [(third, 4)]);
        assert_eq!(ledger.end_write(third, true), [(last, 5)]);
    }

    #[test]
    fn a_read_beside_a_write_may_see_either_and_one_after_it_only_the_new() {
        let (mut old, mut new) = (vec![0; 64], vec![0; 64]);
        carry_out(&mut old, 0..64, 0);
        carry_out(&mut new, 0..64, 0);
        carry_out(&mut new, 16..32, 1);
        let mut torn = new.clone();
        torn[24..32].copy_from_slice(&old[24..32]);
        for (before, disk) in [(true, &old), (true, &new), (true, &torn), (false, &old), (false, &new)] {
            let mut ledger = ledger();
            ledger.prepared(&span(0..64));
            // The read is issued before the write starts, or while it is in flight.
            let early = before.then(|| ledger.read(span(0..64)));
            let (write, number) = ledger.write(span(16..32));
            assert_eq!(number, Some(1));
            let read = early.unwrap_or_else(|| ledger.read(span(0..64)));
            ledger.end_write(write, true);
            assert_eq!(ledger.end_read(read, disk), Ok(0));
            assert_eq!(seen(&mut ledger, disk, 0..64).is_ok(), disk == &new);
        }
    }

    #[test]
    fn after_a_failed_write_nothing_is_claimed_until_the_range_is_written_again() {
        let mut ledger = ledger();
        let mut disk = vec![0; 64];
        let (ticket, _) = ledger.write(span(0..32));
        ledger.end_write(ticket, false);
        assert_eq!(seen(&mut ledger, &disk, 0..64), Ok(32));
        let (ticket, number) = ledger.write(span(0..16));
        carry_out(&mut disk, 0..16, number.unwrap());
        ledger.end_write(ticket, true);
        assert_eq!(seen(&mut ledger, &disk, 0..64), Ok(16));
    }
}
