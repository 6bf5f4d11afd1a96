//! Writes a stream of requests to files that other tools replay. A file appears whole or not at all: one that fails
//! half-way is removed.

use super::open::name_of;
use ebb_trace::{
    BlktraceWriter, BtrecordWriter, FioWriter, Format, Request, TraceError, TraceReader, TraceWriter,
    WriteError, Written,
};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

/// A format that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// blktrace's binary queue events, one file.
    Blktrace,
    /// btrecord's bunches, one file per device.
    Btrecord,
    /// fio's iolog version 3.
    Fio,
}

impl Target {
    /// The format implied by a file's name: `x.blktrace.0`, `x.replay.0`, `x.fio`, `x.iolog`.
    pub fn of_name(path: &Path) -> Option<Target> {
        match Format::of_name(&name_of(path))? {
            Format::Blktrace => Some(Target::Blktrace),
            Format::Btrecord => Some(Target::Btrecord),
            Format::Fio => Some(Target::Fio),
            _ => None,
        }
    }

    /// The name of a file of this format.
    pub fn file_name(self, stem: &str) -> String {
        match self {
            Target::Blktrace => format!("{stem}.blktrace.0"),
            Target::Btrecord => format!("{stem}.replay.0"),
            Target::Fio => format!("{stem}.fio"),
        }
    }
}

impl FromStr for Target {
    type Err = String;
    fn from_str(name: &str) -> Result<Target, String> {
        match name {
            "blktrace" => Ok(Target::Blktrace),
            "btrecord" => Ok(Target::Btrecord),
            "fio" => Ok(Target::Fio),
            other => Err(format!("{other:?} cannot be written: use blktrace, btrecord or fio")),
        }
    }
}

/// How to write.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    pub target: Target,
    /// For btrecord: requests that arrive within this time of a bunch's first join it and take its time.
    pub window: Duration,
    /// Whether to replace files that exist.
    pub overwrite: bool,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WrittenTrace {
    pub files: Vec<PathBuf>,
    pub requests: u64,
    /// Requests of zero bytes, which these formats cannot express and which were omitted.
    pub empty: u64,
    /// Bad lines or records of the input that were skipped.
    pub skipped: u64,
    /// Requests of the input that move no data, such as trims and syncs.
    pub left_out: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum TraceWriteError {
    #[error("{} exists: name another file, or allow replacing it with --overwrite", path.display())]
    Exists { path: PathBuf },
    #[error("cannot create {}: {error}", path.display())]
    Create { path: PathBuf, error: io::Error },
    #[error(
        "a btrecord file holds one device and this trace has several: end {} with a / to make it a directory with a file for each",
        path.display()
    )]
    Devices { path: PathBuf },
    #[error("{} is a directory: name a file in it; only btrecord writes one file per device", path.display())]
    Directory { path: PathBuf },
    #[error(transparent)]
    Read(#[from] TraceError),
    #[error("{}: {error}", path.display())]
    Write { path: PathBuf, error: WriteError },
}

/// A file that is removed again unless it is kept.
struct Fresh {
    path: PathBuf,
    kept: bool,
}

impl Fresh {
    fn create(path: &Path, overwrite: bool) -> Result<(Fresh, BufWriter<File>), TraceWriteError> {
        let mut how = OpenOptions::new();
        how.write(true);
        if overwrite {
            how.create(true).truncate(true);
        } else {
            how.create_new(true);
        }
        let file = how.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => TraceWriteError::Exists { path: path.into() },
            io::ErrorKind::IsADirectory => TraceWriteError::Directory { path: path.into() },
            _ => TraceWriteError::Create { path: path.into(), error },
        })?;
        Ok((Fresh { path: path.into(), kept: false }, BufWriter::with_capacity(1 << 16, file)))
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.kept {
            // If the incomplete trace cannot be removed, the error being reported matters more.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// One file and its writer.
type Out = (Fresh, Box<dyn TraceWriter>);

fn failed(path: &Path) -> impl Fn(WriteError) -> TraceWriteError {
    move |error| match error {
        WriteError::OtherDevice { .. } => TraceWriteError::Devices { path: path.into() },
        error => TraceWriteError::Write { path: path.into(), error },
    }
}

fn btrecord(path: &Path, options: &WriteOptions) -> Result<Out, TraceWriteError> {
    let (fresh, file) = Fresh::create(path, options.overwrite)?;
    let writer = BtrecordWriter::new(file, options.window).map_err(failed(path))?;
    Ok((fresh, Box::new(writer)))
}

/// A name that is one word and one file: letters, digits, points and dashes. fio keeps the slashes of a path.
fn plain(name: &str, also: char) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-') || c == also;
    let plain: String = name.chars().take(100).map(|c| if keep(c) { c } else { '-' }).collect();
    if plain.trim_matches('.').is_empty() { "device".into() } else { plain }
}

/// Writes a trace to `out`; an existing directory, or a path that ends with a slash, takes a btrecord file per device.
pub fn write(
    reader: &mut dyn TraceReader,
    out: &Path,
    options: &WriteOptions,
) -> Result<WrittenTrace, TraceWriteError> {
    let slash = out.as_os_str().as_encoded_bytes().ends_with(b"/");
    let names = Rc::new(RefCell::new(Vec::new()));
    let mut outs: BTreeMap<u32, Out> = BTreeMap::new();
    let directory = slash || out.is_dir();
    match (options.target, directory) {
        (Target::Btrecord, true) => {
            std::fs::create_dir_all(out)
                .map_err(|error| TraceWriteError::Create { path: out.into(), error })?;
        }
        (_, true) => return Err(TraceWriteError::Directory { path: out.into() }),
        (Target::Btrecord, false) => {
            outs.insert(0, btrecord(out, options)?);
        }
        (Target::Blktrace, false) => {
            let (fresh, file) = Fresh::create(out, options.overwrite)?;
            outs.insert(0, (fresh, Box::new(BlktraceWriter::new(file))));
        }
        (Target::Fio, false) => {
            let (fresh, file) = Fresh::create(out, options.overwrite)?;
            let names: Rc<RefCell<Vec<String>>> = names.clone();
            let name = move |device: u32| plain(&names.borrow()[device as usize], '/');
            outs.insert(0, (fresh, Box::new(FioWriter::new(file, name).map_err(failed(out))?)));
        }
    }
    while let Some(request) = reader.next().transpose()? {
        if reader.devices().len() > names.borrow().len() {
            *names.borrow_mut() = reader.devices().to_vec();
        }
        let (fresh, writer) = if directory {
            device_out(&mut outs, &request, &names.borrow(), out, options)?
        } else {
            outs.get_mut(&0).expect("a file is opened before the first request")
        };
        writer.write(&request).map_err(failed(&fresh.path))?;
    }
    let mut total =
        WrittenTrace { skipped: reader.skipped(), left_out: reader.left_out(), ..WrittenTrace::default() };
    // All are finished before any is kept.
    for (fresh, writer) in outs.values_mut() {
        let Written { requests, empty } = writer.finish().map_err(failed(&fresh.path))?;
        total.requests += requests;
        total.empty += empty;
    }
    for (mut fresh, _) in outs.into_values() {
        fresh.kept = true;
        total.files.push(fresh.path.clone());
    }
    Ok(total)
}

/// The file of a request's device, created at its first request.
fn device_out<'a>(
    outs: &'a mut BTreeMap<u32, Out>,
    request: &Request,
    names: &[String],
    out: &Path,
    options: &WriteOptions,
) -> Result<&'a mut Out, TraceWriteError> {
    use std::collections::btree_map::Entry;
    match outs.entry(request.device) {
        Entry::Occupied(out) => Ok(out.into_mut()),
        Entry::Vacant(vacant) => {
            let name = plain(&names[request.device as usize], '.');
            // Names that are equal in plain form are distinguished by their number.
            let twin = names.iter().take(request.device as usize).any(|other| plain(other, '.') == name);
            let stem = if twin { format!("{name}-{}", request.device) } else { name };
            Ok(vacant.insert(btrecord(&out.join(options.target.file_name(&stem)), options)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_trace::Options;

    const TEXT: &str = "3,0,4096,R,10\n3,8,4096,W,10.5\n7,0,0,R,10.6\n7,800,512,R,11\n";

    fn trace(text: &'static str) -> Box<dyn TraceReader> {
        ebb_trace::open("t.spc", text.as_bytes()).unwrap()
    }

    fn options(target: Target) -> WriteOptions {
        WriteOptions { target, window: Duration::ZERO, overwrite: false }
    }

    fn read(paths: &[PathBuf]) -> Vec<(u64, u64, u32)> {
        let reader = super::super::open(paths, &Options::default(), &super::super::silent());
        let requests = reader.unwrap().map(Result::unwrap);
        requests.map(|r| (r.at.as_millis() as u64, r.offset, r.len)).collect()
    }

    const WRITTEN: [(u64, u64, u32); 3] = [(0, 0, 4096), (500, 4096, 4096), (1000, 800 * 512, 512)];

    #[test]
    fn every_target_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        for target in [Target::Blktrace, Target::Fio] {
            let out = dir.path().join(target.file_name("t"));
            assert_eq!(Target::of_name(&out), Some(target));
            let found = write(trace(TEXT).as_mut(), &out, &options(target)).unwrap();
            assert_eq!((found.requests, found.empty), (3, 1));
            assert_eq!(read(&found.files), WRITTEN);
        }
        let text = std::fs::read_to_string(dir.path().join("t.fio")).unwrap();
        assert!(text.contains("0 3 add") && text.contains("1000000 7 read 409600 512"), "{text}");
    }

    #[test]
    fn several_devices_need_a_directory_for_btrecord() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("t.replay.0");
        let error = write(trace(TEXT).as_mut(), &out, &options(Target::Btrecord)).unwrap_err();
        assert!(matches!(error, TraceWriteError::Devices { .. }) && !out.exists(), "{error}");
        let found = write(trace(TEXT).as_mut(), &dir.path().join("d/"), &options(Target::Btrecord)).unwrap();
        assert_eq!(found.files, [dir.path().join("d/3.replay.0"), dir.path().join("d/7.replay.0")]);
        // A btrecord file's own clock begins with its first bunch, at the time that the bunch has.
        assert_eq!(read(&found.files), WRITTEN);
    }

    #[test]
    fn nothing_is_replaced_unasked_and_nothing_half_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("t.fio");
        std::fs::write(&out, "mine").unwrap();
        let error = write(trace(TEXT).as_mut(), &out, &options(Target::Fio)).unwrap_err();
        assert!(matches!(error, TraceWriteError::Exists { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "mine");
        let over = WriteOptions { overwrite: true, ..options(Target::Fio) };
        write(trace(TEXT).as_mut(), &out, &over).unwrap();
        let half = dir.path().join("half.fio");
        let error =
            write(trace("0,0,512,R,1\nnonsense\n").as_mut(), &half, &options(Target::Fio)).unwrap_err();
        assert!(error.to_string().contains("line 2") && !half.exists(), "{error}");
        let error = write(trace(TEXT).as_mut(), dir.path(), &options(Target::Fio)).unwrap_err();
        assert!(matches!(error, TraceWriteError::Directory { .. }), "{error}");
    }

    #[test]
    fn names_become_plain_words() {
        for (name, also, want) in [
            ("/dev/sda", '/', "/dev/sda"),
            ("/dev/sda", '.', "-dev-sda"),
            ("web 0", '/', "web-0"),
            ("..", '.', "device"),
        ] {
            assert_eq!(plain(name, also), want);
        }
    }
}
