//! How fast a disk reads: a short measurement, long enough to tell two speeds apart.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of one read, and of the alignment that direct I/O needs.
const READ_BYTES: u64 = 128 << 10;
const ALIGN: usize = 4096;
/// Reads in flight: one would measure how long a read takes, and not what the disk can do.
const READERS: usize = 8;

/// Bytes per second of sequential reads during `time`, past the page cache if `disk` was opened so.
pub fn read_rate(disk: &File, time: Duration) -> io::Result<f64> {
    let size = (&*disk).seek(SeekFrom::End(0))?;
    let reads = size / READ_BYTES;
    if reads == 0 {
        return Err(io::Error::other("it is too small to be measured"));
    }
    let (next, began) = (AtomicU64::new(0), Instant::now());
    let reader = || {
        let mut memory = vec![0; READ_BYTES as usize + ALIGN];
        let from = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        while began.elapsed() < time {
            let at = next.fetch_add(1, Ordering::Relaxed) % reads * READ_BYTES;
            disk.read_exact_at(&mut memory[from..from + READ_BYTES as usize], at)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })
    .map(|()| next.load(Ordering::Relaxed) as f64 * READ_BYTES as f64 / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_read_for_some_time() {
        let file = tempfile::tempfile().unwrap();
        let time = Duration::from_millis(20);
        assert!(read_rate(&file, time).is_err(), "nothing to read");
        file.set_len(3 * READ_BYTES + 5).unwrap();
        assert!(read_rate(&file, time).unwrap() > 0.0);
    }
}
