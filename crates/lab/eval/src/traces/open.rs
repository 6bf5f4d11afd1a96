//! Opens trace files and reports how far they are read.

use ebb_trace::{Input, Options, Trace, TraceError, TraceReader};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Called with the number of bytes read so far and the total, a few times per megabyte.
pub type ReadProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Reports nothing.
pub fn silent() -> ReadProgress {
    Arc::new(|_, _| ())
}

#[derive(Debug, thiserror::Error)]
pub enum TraceFileError {
    #[error("cannot open the trace {}: {error}; check the path", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("{} is a directory: name the trace files in it, or use `ebb lab trace list` on it", path.display())]
    Directory { path: PathBuf },
    #[error(transparent)]
    Read(#[from] TraceError),
}

struct Heard {
    input: Box<dyn Read + Send>,
    done: Arc<AtomicU64>,
    of: u64,
    progress: ReadProgress,
}

impl Read for Heard {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(into)?;
        let done = self.done.fetch_add(count as u64, Relaxed) + count as u64;
        (self.progress)(done, self.of);
        Ok(count)
    }
}

/// An input that reports to `progress` how many of its `of` bytes have been read.
pub fn heard(input: Box<dyn Read + Send>, of: u64, progress: &ReadProgress) -> Box<dyn Read + Send> {
    Box::new(Heard { input, done: Arc::default(), of, progress: progress.clone() })
}

/// Opens the files of one trace (blktrace has one per CPU) and merges them by time. The path `-` is standard input.
pub fn open(
    paths: &[PathBuf],
    options: &Options,
    progress: &ReadProgress,
) -> Result<Box<dyn TraceReader>, TraceFileError> {
    let mut opened: Vec<(String, Box<dyn Read + Send>)> = Vec::new();
    let mut of = 0;
    for path in paths {
        if path == Path::new("-") {
            opened.push(("standard input".into(), Box::new(io::stdin())));
            continue;
        }
        let failed = |error| TraceFileError::Open { path: path.clone(), error };
        let file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if about.is_dir() {
            return Err(TraceFileError::Directory { path: path.clone() });
        }
        of += about.len();
        opened.push((name_of(path), Box::new(file)));
    }
    let done = Arc::new(AtomicU64::new(0));
    let inputs = opened.into_iter().map(|(name, input)| {
        let heard = Heard { input, done: done.clone(), of, progress: progress.clone() };
        Input { name, read: Box::new(heard) }
    });
    Ok(ebb_trace::open_with(inputs.collect(), options)?)
}

/// Reads the files of one trace into memory, for several passes.
pub fn load(paths: &[PathBuf], options: &Options, progress: &ReadProgress) -> Result<Trace, TraceFileError> {
    let mut reader = open(paths, options, progress)?;
    let name = paths.first().map_or(String::new(), |path| name_of(path));
    Ok(Trace::collect(name, reader.as_mut())?)
}

/// A file's name without its directories.
pub fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn files_are_merged_and_their_reading_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.spc", "b.spc"].map(|name| dir.path().join(name));
        std::fs::write(&paths[0], "0,0,512,R,1\n0,8,512,R,3\n").unwrap();
        std::fs::write(&paths[1], "1,0,512,W,2\n").unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let into = heard.clone();
        let progress: ReadProgress = Arc::new(move |done, of| into.lock().unwrap().push((done, of)));
        let reader = open(&paths, &Options::default(), &progress).unwrap();
        let at: Vec<u64> = reader.map(|request| request.unwrap().at.as_secs()).collect();
        assert_eq!(at, [0, 1, 2]);
        assert_eq!(heard.lock().unwrap().last(), Some(&(36, 36)));
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let fail = |path: PathBuf| open(&[path], &Options::default(), &silent()).err().unwrap().to_string();
        assert!(fail(dir.path().join("none")).contains("check the path"));
        let bad = dir.path().join("bad.spc");
        std::fs::write(&bad, "0,8,512,W,0.5\n0,x,512,W,2\n").unwrap();
        let error = load(&[bad], &Options::default(), &silent()).unwrap_err().to_string();
        assert!(error.contains("bad.spc") && error.contains("line 2"), "{error}");
        assert!(fail(dir.path().into()).contains("ebb lab trace list"));
    }
}
