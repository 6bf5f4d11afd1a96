//! One operation of a disk on its way: what is left of it, as an io_uring entry or as a blocking call.
//!
//! The kernel may do a part of an operation only. Its driver repeats a step, then [`Work::advance`], until the
//! latter says how the operation ended: the ring and the blocking threads share everything but the step itself.
//!
//! Zeroes: `fallocate` serves files and block devices alike: it makes a hole (a device: unmaps, and only where that
//! reads as zeroes), or zeroes a range that stays allocated. What supports neither is written. `BLKDISCARD` is not
//! used: it does not promise zeroes.

use crate::disk::DiskFile;
use bytes::{Buf, Bytes, BytesMut};
use ebb_mirror::{BLOCK_BYTES, DiskOp, Found};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, seek};
use rustix::io::{Errno, ReadWriteFlags, pread, pwritev2};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd;

/// Most bytes of one step: the kernel moves no more than 2 GiB less a page at once.
const STEP_MAX: u64 = 1 << 30;
/// Most pieces of one step (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Aligned for direct I/O.
#[repr(align(4096))]
struct Zeroes([u8; 64 << 10]);
static ZEROES: Zeroes = Zeroes([0; 64 << 10]);
/// Pieces of zeroes in one step.
const ZERO_PIECES: usize = 16;

const _: () = assert!(STEP_MAX <= i32::MAX as u64, "the kernel says in 31 bits what it has moved");
const _: () = assert!(size_of::<Zeroes>().is_multiple_of(align_of::<Zeroes>()) && ZERO_PIECES <= PIECES_MAX);

/// How a range is zeroed: each way is tried if the one before is not supported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeroing {
    Hole,
    Allocated,
    Written,
}

enum Kind {
    /// The first `pad` bytes of the buffer align the others.
    Read {
        buffer: BytesMut,
        pad: usize,
    },
    /// The pieces from the `next` one on are still to be written.
    Write {
        pieces: Vec<Bytes>,
        next: usize,
        /// Each step is durable when it ends.
        durable: bool,
    },
    Zero(Zeroing),
    Sync,
    Status,
}

/// An operation in progress. The bytes from `at` to `end` are still to be done.
pub(crate) struct Work {
    kind: Kind,
    at: u64,
    end: u64,
}

impl Work {
    /// `None`: the operation does not lie on the disk. It must not be empty.
    pub fn new(disk: &DiskFile, op: DiskOp) -> Option<Work> {
        let (offset, bytes) = range(&op);
        let is_sync = matches!(op, DiskOp::Sync);
        assert!(bytes > 0 || is_sync, "the operation is empty: {op:?}");
        if !disk.has(offset, bytes) {
            return None;
        }
        let kind = match op {
            DiskOp::Read { bytes, .. } => read(bytes, disk.align()),
            DiskOp::Write { pieces, durable, .. } => {
                Kind::Write { pieces: aligned(pieces, disk.align()), next: 0, durable }
            }
            DiskOp::Zero { may_trim: true, .. } => Kind::Zero(Zeroing::Hole),
            DiskOp::Zero { may_trim: false, .. } => Kind::Zero(Zeroing::Allocated),
            DiskOp::Sync => Kind::Sync,
            DiskOp::Status { .. } => Kind::Status,
        };
        Some(Work { kind, at: offset, end: offset + bytes })
    }

    /// Where it is, for people.
    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Read { .. } => "read",
            Kind::Write { .. } => "write",
            Kind::Zero(_) => "zero",
            Kind::Sync => "sync",
            Kind::Status => "status",
        }
    }

    /// Whether io_uring has an operation for it.
    pub fn is_for_kernel(&self) -> bool {
        !matches!(self.kind, Kind::Status)
    }

    fn write_flags(&self) -> ReadWriteFlags {
        match self.kind {
            Kind::Write { durable: true, .. } => ReadWriteFlags::DSYNC,
            _ => ReadWriteFlags::empty(),
        }
    }

    fn step_bytes(&self) -> u64 {
        (self.end - self.at).min(STEP_MAX)
    }

    /// The next pieces to be written.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (written, zeroes) = match &self.kind {
            Kind::Write { pieces, next, .. } => (&pieces[*next..], 0),
            _ => (&[][..], self.end - self.at),
        };
        let starts = (0..zeroes).step_by(ZEROES.0.len()).take(ZERO_PIECES);
        let zeroes = starts.map(move |at| &ZEROES.0[..(zeroes - at).min(ZEROES.0.len() as u64) as usize]);
        written.iter().take(PIECES_MAX).map(|piece| &piece[..]).chain(zeroes)
    }

    /// The next step for io_uring. The entry points to memory of this value and of `iovecs`; both stay as they are
    /// until the entry has completed.
    pub fn entry(&mut self, file: &File, iovecs: &mut Vec<libc::iovec>) -> squeue::Entry {
        let (fd, at, bytes) = (Fd(file.as_raw_fd()), self.at, self.step_bytes());
        match &mut self.kind {
            Kind::Read { buffer, .. } => {
                let to = buffer.spare_capacity_mut().as_mut_ptr().cast();
                opcode::Read::new(fd, to, bytes as u32).offset(at).build()
            }
            Kind::Write { .. } | Kind::Zero(Zeroing::Written) => {
                iovecs.clear();
                iovecs.extend(self.pieces().map(|piece| libc::iovec {
                    iov_base: piece.as_ptr().cast_mut().cast(),
                    iov_len: piece.len(),
                }));
                let flags = self.write_flags().bits() as i32;
                match iovecs[..] {
                    [one] => {
                        debug_assert!(
                            bytes <= one.iov_len as u64,
                            "what is behind the piece would be written"
                        );
                        let write = opcode::Write::new(fd, one.iov_base.cast(), bytes as u32);
                        write.offset(at).rw_flags(flags).build()
                    }
                    _ => {
                        let write = opcode::Writev::new(fd, iovecs.as_ptr(), iovecs.len() as u32);
                        write.offset(at).rw_flags(flags).build()
                    }
                }
            }
            Kind::Zero(zeroing) => {
                let mode = flags(*zeroing).bits() as i32;
                opcode::Fallocate::new(fd, self.end - at).offset(at).mode(mode).build()
            }
            Kind::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Kind::Status => unreachable!("io_uring has no operation for it"),
        }
    }

    /// Does the whole operation; blocks.
    pub fn run(&mut self, file: &File) -> Result<Found, Errno> {
        loop {
            if let Kind::Status = self.kind {
                return extents(file, self.at, self.end).map(Found::Extents);
            }
            let moved = self.step(file);
            if let Some(ended) = self.advance(moved) {
                return ended;
            }
        }
    }

    fn step(&mut self, file: &File) -> Result<usize, Errno> {
        let (at, bytes) = (self.at, self.step_bytes() as usize);
        match &mut self.kind {
            Kind::Read { buffer, .. } => {
                pread(file, &mut buffer.spare_capacity_mut()[..bytes], at).map(|(read, _)| read.len())
            }
            Kind::Write { .. } | Kind::Zero(Zeroing::Written) => {
                let pieces: Vec<IoSlice> = self.pieces().map(IoSlice::new).collect();
                pwritev2(file, &pieces, at, self.write_flags())
            }
            Kind::Zero(zeroing) => fallocate(file, flags(*zeroing), at, self.end - at).map(|()| 0),
            Kind::Sync => fdatasync(file).map(|()| 0),
            Kind::Status => unreachable!("it has no steps"),
        }
    }

    /// After a step that moved `moved` bytes: how the operation ended, or `None`: another step is due.
    pub fn advance(&mut self, moved: Result<usize, Errno>) -> Option<Result<Found, Errno>> {
        let moved = match moved {
            Ok(moved) => moved,
            Err(Errno::INTR | Errno::AGAIN) => return None,
            Err(error) => return self.next_way(error),
        };
        match &mut self.kind {
            Kind::Sync | Kind::Zero(Zeroing::Hole | Zeroing::Allocated) => return Some(Ok(Found::Done)),
            // The disk has become shorter.
            _ if moved == 0 => return Some(Err(Errno::IO)),
            Kind::Read { buffer, .. } => {
                assert!(moved <= buffer.capacity() - buffer.len(), "the kernel reads no more than asked for");
                // SAFETY: the kernel has written `moved` bytes to the buffer's spare capacity.
                unsafe { buffer.set_len(buffer.len() + moved) };
            }
            Kind::Write { pieces, next, .. } => skip(pieces, next, moved),
            Kind::Zero(Zeroing::Written) => {}
            Kind::Status => unreachable!("it has no steps"),
        }
        self.at += moved as u64;
        debug_assert!(self.at <= self.end, "the operation would never end");
        (self.at == self.end).then(|| Ok(self.found()))
    }

    /// Tries another way if there is one.
    fn next_way(&mut self, error: Errno) -> Option<Result<Found, Errno>> {
        match &mut self.kind {
            Kind::Zero(zeroing) if error == Errno::OPNOTSUPP && *zeroing != Zeroing::Written => {
                *zeroing = if *zeroing == Zeroing::Hole { Zeroing::Allocated } else { Zeroing::Written };
                None
            }
            _ => Some(Err(error)),
        }
    }

    fn found(&mut self) -> Found {
        match &mut self.kind {
            Kind::Read { buffer, pad } => {
                let mut data = std::mem::take(buffer);
                data.advance(*pad);
                Found::Data(data.freeze())
            }
            _ => Found::Done,
        }
    }
}

/// Offset and bytes.
fn range(op: &DiskOp) -> (u64, u64) {
    match op {
        DiskOp::Read { offset, bytes } | DiskOp::Zero { offset, bytes, .. } => (*offset, *bytes),
        DiskOp::Status { offset, bytes } => (*offset, *bytes),
        DiskOp::Write { offset, pieces, .. } => {
            (*offset, pieces.iter().map(|piece| piece.len() as u64).sum())
        }
        DiskOp::Sync => (0, 0),
    }
}

fn read(bytes: u64, align: usize) -> Kind {
    let bytes = usize::try_from(bytes).expect("the disk's reads fit into memory");
    let mut buffer = BytesMut::with_capacity(bytes + align - 1);
    let pad = buffer.as_ptr().align_offset(align);
    buffer.resize(pad, 0);
    Kind::Read { buffer, pad }
}

/// The pieces as direct I/O needs them: gathered in aligned memory unless they lie there.
fn aligned(pieces: Vec<Bytes>, align: usize) -> Vec<Bytes> {
    let is_aligned = |piece: &Bytes| (piece.as_ptr() as usize | piece.len()).is_multiple_of(align);
    if align == 1 || pieces.iter().all(is_aligned) {
        return pieces;
    }
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    let mut gathered = BytesMut::with_capacity(bytes + align - 1);
    let pad = gathered.as_ptr().align_offset(align);
    gathered.resize(pad, 0);
    pieces.iter().for_each(|piece| gathered.extend_from_slice(piece));
    gathered.advance(pad);
    vec![gathered.freeze()]
}

/// Takes `moved` bytes off the front of the pieces.
fn skip(pieces: &mut [Bytes], next: &mut usize, mut moved: usize) {
    while moved > 0 {
        let piece = &mut pieces[*next];
        let part = moved.min(piece.len());
        piece.advance(part);
        moved -= part;
        *next += usize::from(piece.is_empty());
    }
}

fn flags(zeroing: Zeroing) -> FallocateFlags {
    let how = match zeroing {
        Zeroing::Hole => FallocateFlags::PUNCH_HOLE,
        Zeroing::Allocated => FallocateFlags::ZERO_RANGE,
        Zeroing::Written => unreachable!("zeroes are written without it"),
    };
    how | FallocateFlags::KEEP_SIZE
}

/// Runs of a file's bytes and whether they are holes: whole blocks, so a block with any data is data.
fn extents(file: &File, begin: u64, end: u64) -> Result<Vec<(u64, bool)>, Errno> {
    let mut found: Vec<(u64, bool)> = Vec::new();
    let mut put = |bytes: u64, hole: bool| match found.last_mut() {
        _ if bytes == 0 => {}
        Some(last) if last.1 == hole => last.0 += bytes,
        _ => found.push((bytes, hole)),
    };
    let mut at = begin;
    while at < end {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            // None up to the end of the file.
            Err(Errno::NXIO) => end,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error),
        };
        let first = (data - data % BLOCK_BYTES).max(at);
        put(first - at, true);
        at = first;
        if data < end {
            let hole = match seek(file, SeekFrom::Hole(data)) {
                Ok(hole) => hole.next_multiple_of(BLOCK_BYTES).min(end),
                Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => end,
                Err(error) => return Err(error),
            };
            put(hole - at, false);
            at = hole;
        }
    }
    Ok(found)
}
