//! One input's bytes: a buffer over any `Read`, decompressed on the fly, that returns lines and records and knows its
//! position. The buffer's size is a reader's whole memory, whatever lengths the input claims.

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::{self, BufRead, BufReader, Read};

/// An input or a decompressor over one.
pub(crate) type Stream = Box<dyn Read + Send>;

/// Longest line; a longer one means a wrong format.
pub(crate) const MAX_LINE: usize = 64 << 10;
const BUFFER: usize = 256 << 10;
/// Most memory that a compressed input may require: twice what the highest ordinary levels of xz and zstd need.
const MAX_WINDOW: u64 = 256 << 20;

pub(crate) struct Source {
    stream: Stream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
    /// Bytes returned before `buffer[start]`, after decompression.
    offset: u64,
    /// Offset at which the last line or record started.
    mark: u64,
    lines: u64,
}

/// The stream's content, decompressed if its first bytes show gz, xz, bz2 or zst; names are ignored.
pub fn decompress(mut stream: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let mut head = Vec::new();
    stream.by_ref().take(6).read_to_end(&mut head)?;
    let whole = io::Cursor::new(head.clone()).chain(stream);
    Ok(match head.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            Box::new(lzma_rust2::XzReader::new_mem_limit(whole, true, (MAX_WINDOW >> 10) as u32))
        }
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Box::new(bzip2::read::MultiBzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Box::new(Zstd::new(whole)),
        _ => Box::new(whole),
    })
}

impl Source {
    /// Wraps a stream, see [`decompress`].
    pub(crate) fn new(stream: Stream) -> io::Result<Self> {
        let stream = decompress(stream)?;
        Ok(Self {
            stream,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            ended: false,
            offset: 0,
            mark: 0,
            lines: 0,
        })
    }

    /// Reads until at least `need` bytes are buffered or the input ends, and returns everything buffered, which may be
    /// less. `need` is at most the buffer's size.
    pub(crate) fn peek(&mut self, need: usize) -> io::Result<&[u8]> {
        assert!(need <= BUFFER, "a record longer than the buffer");
        while self.end - self.start < need && !self.ended {
            self.fill()?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            match self.stream.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            return Ok(());
        }
    }

    /// The next `size` bytes; `None` at the end of the input. The rest of a truncated record is consumed.
    pub(crate) fn record(&mut self, size: usize) -> Result<Option<&[u8]>, Short> {
        let have = if self.end - self.start >= size { size } else { self.peek(size)?.len().min(size) };
        self.mark = self.offset;
        let start = self.start;
        self.take(have);
        match have {
            0 => Ok(None),
            _ if have < size => Err(Short::Truncated { have }),
            _ => Ok(Some(&self.buffer[start..start + size])),
        }
    }

    /// Skips `size` bytes of any length without holding them.
    pub(crate) fn skip(&mut self, mut size: u64) -> Result<(), Short> {
        while size > 0 {
            let want = size.min(BUFFER as u64) as usize;
            let have = self.peek(1)?.len().min(want);
            if have == 0 {
                return Err(Short::Truncated { have });
            }
            self.take(have);
            size -= have as u64;
        }
        Ok(())
    }

    /// The next line without its end (`\n` or `\r\n`); the last line needs no end.
    pub(crate) fn line(&mut self) -> Result<Option<&[u8]>, Short> {
        let mut seen = 0;
        let length = loop {
            let ready = &self.buffer[self.start..self.end];
            if let Some(at) = ready[seen..].iter().position(|&b| b == b'\n') {
                break seen + at + 1;
            }
            seen = ready.len();
            if self.ended {
                break seen;
            }
            if seen > MAX_LINE {
                return Err(Short::LongLine);
            }
            self.fill()?;
        };
        if length == 0 {
            return Ok(None);
        }
        let start = self.start;
        self.mark = self.offset;
        self.lines += 1;
        self.take(length);
        let line = &self.buffer[start..start + length];
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        self.offset += count as u64;
    }

    /// Lines returned so far: the number of the last one, counting from one.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// Where the last record started, in decompressed bytes.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }
}

/// All frames of a zst input in sequence; the decoder handles only single ones. Parallel compressors write many, and
/// between them frames without data.
enum Zstd<R: Read> {
    Between(BufReader<R>),
    Within(Box<StreamingDecoder<BufReader<R>, FrameDecoder>>),
    Ended,
}

impl<R: Read> Zstd<R> {
    fn new(input: R) -> Self {
        Self::Between(BufReader::new(input))
    }

    /// Opens the next frame with data.
    fn open(mut input: BufReader<R>) -> io::Result<Self> {
        loop {
            let Some(&first) = input.fill_buf()?.first() else { return Ok(Self::Ended) };
            if !(0x50..=0x5f).contains(&first) {
                break;
            }
            let mut header = [0; 8];
            input.read_exact(&mut header)?;
            let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
            io::copy(&mut input.by_ref().take(length.into()), &mut io::sink())?;
        }
        let decoder = StreamingDecoder::new_with_max_window_size(input, MAX_WINDOW)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        Ok(Self::Within(Box::new(decoder)))
    }
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            *self = match std::mem::replace(self, Self::Ended) {
                Self::Ended => return Ok(0),
                Self::Between(input) => Self::open(input)?,
                Self::Within(mut decoder) => match decoder.read(into)? {
                    0 => Self::Between(decoder.into_inner()),
                    count => {
                        *self = Self::Within(decoder);
                        return Ok(count);
                    }
                },
            };
        }
    }
}

/// Why a line or record is missing.
#[derive(Debug)]
pub(crate) enum Short {
    Io(io::Error),
    Truncated { have: usize },
    LongLine,
}

impl From<io::Error> for Short {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A stream that returns one byte per call, as a slow pipe may.
    struct Drip(io::Cursor<Vec<u8>>);

    impl Read for Drip {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let one = into.len().min(1);
            self.0.read(&mut into[..one])
        }
    }

    fn lines(bytes: Vec<u8>) -> Vec<String> {
        let mut source = Source::new(Box::new(Drip(io::Cursor::new(bytes)))).unwrap();
        let mut found = Vec::new();
        while let Some(line) = source.line().unwrap() {
            found.push(String::from_utf8_lossy(line).into_owned());
        }
        found
    }

    #[test]
    fn lines_survive_every_chunking_and_line_end() {
        assert_eq!(lines(b"a\r\nbc\n\nlast".to_vec()), ["a", "bc", "", "last"]);
        assert!(lines(Vec::new()).is_empty());
    }

    #[test]
    fn every_compression_reads_the_same() {
        let text = b"0,1,2,R,0.5\n".repeat(1000);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&text).unwrap();
        let mut bz = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bz.write_all(&text).unwrap();
        let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
        xz.write_all(&text).unwrap();
        let zst = ruzstd::encoding::compress_to_vec(&text[..], ruzstd::encoding::CompressionLevel::Fastest);
        for packed in [gz.finish().unwrap(), bz.finish().unwrap(), xz.finish().unwrap(), zst] {
            assert!(packed.len() < text.len());
            assert_eq!(lines(packed).len(), 1000);
        }
    }

    #[test]
    fn every_part_of_a_compressed_input_counts() {
        let frame =
            ruzstd::encoding::compress_to_vec(&b"a\n"[..], ruzstd::encoding::CompressionLevel::Fastest);
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let zst = [&skipped[..], &frame, &frame, &skipped, &frame].concat();
        assert_eq!(lines(zst), ["a", "a", "a"]);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(b"b\n").unwrap();
        assert_eq!(lines(gz.finish().unwrap().repeat(2)), ["b", "b"]);
    }

    #[test]
    fn a_record_cut_short_is_distinguished_from_the_end() {
        let mut source = Source::new(Box::new(&[1u8, 2, 3, 4, 5, 6, 7][..])).unwrap();
        assert_eq!(source.record(4).unwrap().unwrap(), [1, 2, 3, 4]);
        assert!(matches!(source.record(4), Err(Short::Truncated { have: 3 })));
        assert_eq!(source.mark(), 4);
        assert!(source.record(4).unwrap().is_none());
        assert!(matches!(source.skip(1), Err(Short::Truncated { .. })));
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut source = Source::new(Box::new(io::repeat(b'x'))).unwrap();
        assert!(matches!(source.line(), Err(Short::LongLine)));
    }
}
