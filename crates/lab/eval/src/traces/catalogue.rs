//! A directory of traces with a catalogue of their workloads, so that the right one for an experiment is found by a
//! query, without reading them all again [TRACER §III.A, "trace repository"].
//!
//! The catalogue is one JSON file in the directory. An entry records size and modification time of its files; a trace
//! is read again when they differ. Files that are not traces are remembered too, and not tried again until they change.
//! A read-only directory can be listed all the same.

use super::open::{ReadProgress, name_of, open};
use super::profile::{Figures, profile};
use super::show::{bytes, grouped, percent, seconds, short};
use ebb_trace::{Format, Options};
use ebb_types::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::UNIX_EPOCH;

/// The catalogue's name in its directory.
pub const CATALOGUE: &str = "ebb-traces.json";
/// Changes when entries of an older version would mislead.
const VERSION: u32 = 1;
/// Depth of directories below the catalogue's that are searched.
const DEPTH: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    #[error("cannot read the directory {}: {error}; check the path", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("there is no trace in {}", path.display())]
    Empty { path: PathBuf },
}

/// Catalogue entry of one trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Path below the directory; for a blktrace capture without the number of the CPU.
    pub name: String,
    pub files: Vec<FileStamp>,
    /// `None`: it is not a trace, for the reason in `trouble`.
    pub figures: Option<Figures>,
    pub trouble: Option<String>,
}

/// A file as it was when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// Relative to the directory.
    pub path: PathBuf,
    pub bytes: u64,
    pub changed_unix_nanos: u64,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    entries: Vec<Entry>,
}

/// A directory of traces, as it is now.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// By name.
    pub entries: Vec<Entry>,
    /// Traces that were read because they were new or had changed.
    pub refreshed: usize,
    /// Why the catalogue could not be saved, if so: the next run reads everything again.
    pub unkept: Option<String>,
}

impl Catalogue {
    /// Scans a directory and those below it, reads new or changed traces, and saves the catalogue. `skip_bad` applies
    /// to every trace; `reading` is called with each name before it is read.
    pub fn open(
        directory: &Path,
        skip_bad: u64,
        reading: &mut dyn FnMut(&str),
        progress: &ReadProgress,
    ) -> Result<Catalogue, CatalogueError> {
        let path = directory.join(CATALOGUE);
        let mut known: BTreeMap<String, Entry> =
            load(&path).into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        let mut traces = BTreeMap::new();
        find(directory, Path::new(""), DEPTH, &mut traces)
            .map_err(|(path, error)| CatalogueError::Read { path, error })?;
        let (mut entries, mut refreshed) = (Vec::new(), 0);
        let gone = known.keys().any(|name| !traces.contains_key(name));
        for (name, files) in traces {
            match known.remove(&name).filter(|entry| entry.files == files) {
                Some(entry) => entries.push(entry),
                None => {
                    reading(&name);
                    refreshed += 1;
                    entries.push(look(directory, name, files, skip_bad, progress));
                }
            }
        }
        let changed = refreshed > 0 || gone;
        let unkept = changed.then(|| keep(&path, &entries).err()).flatten().map(|error| error.to_string());
        if !entries.iter().any(|entry| entry.figures.is_some()) {
            return Err(CatalogueError::Empty { path: directory.into() });
        }
        Ok(Catalogue { entries, refreshed, unkept })
    }

    /// The traces that match a query, in its order.
    pub fn find(&self, query: &Query) -> Vec<(&Entry, &Figures)> {
        let traces = self.entries.iter().filter_map(|entry| Some((entry, entry.figures.as_ref()?)));
        let mut found: Vec<_> = traces.filter(|(_, figures)| query.wants(figures)).collect();
        if let Some(Sort(figure)) = query.sort {
            // Largest first; traces without the figure come last.
            found.sort_by(|(_, a), (_, b)| {
                let key = |figures: &Figures| figure(figures).unwrap_or(f64::NEG_INFINITY);
                key(b).total_cmp(&key(a))
            });
        }
        if query.reverse {
            found.reverse();
        }
        found
    }

    /// Files that are not traces, and why.
    pub fn others(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().filter_map(|entry| Some((entry.name.as_str(), entry.trouble.as_deref()?)))
    }
}

/// A catalogue that is missing, damaged or of another version counts as empty: everything is read again.
fn load(path: &Path) -> Vec<Entry> {
    let text = std::fs::read(path).unwrap_or_default();
    match serde_json::from_slice::<Saved>(&text) {
        Ok(catalogue) if catalogue.version == VERSION => catalogue.entries,
        _ => Vec::new(),
    }
}

/// Replaces the catalogue atomically, so that a reader or a crash never meets half of it.
fn keep(path: &Path, entries: &[Entry]) -> io::Result<()> {
    let catalogue = Saved { version: VERSION, entries: entries.to_vec() };
    let text = serde_json::to_vec_pretty(&catalogue).expect("our own types can be written as JSON");
    ebb_files::replace_file(path, &text, 0o644)
}

/// Adds the files in `directory/below`, grouped by trace. Hidden files, links and the catalogue are skipped.
fn find(
    directory: &Path,
    below: &Path,
    depth: usize,
    into: &mut BTreeMap<String, Vec<FileStamp>>,
) -> Result<(), (PathBuf, io::Error)> {
    // Joining an empty path would append a slash to what the user wrote.
    let here = if below.as_os_str().is_empty() { directory.into() } else { directory.join(below) };
    let failed = |error| (here.clone(), error);
    for entry in std::fs::read_dir(&here).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let file_name = entry.file_name().to_string_lossy().into_owned();
        // A file that disappears meanwhile is ignored.
        let Ok(about) = entry.metadata() else { continue };
        let path = below.join(entry.file_name());
        if file_name.starts_with('.') || file_name.starts_with(CATALOGUE) {
            continue;
        }
        if about.is_dir() && depth > 0 {
            find(directory, &path, depth - 1, into)?;
        }
        if about.is_file() {
            let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let changed_unix_nanos = changed.map_or(0, |since| since.as_nanos() as u64);
            let stamp = FileStamp { path: path.clone(), bytes: about.len(), changed_unix_nanos };
            into.entry(trace_name(&path.to_string_lossy())).or_default().push(stamp);
        }
    }
    for files in into.values_mut() {
        files.sort_by(|a, b| a.path.cmp(&b.path));
    }
    Ok(())
}

/// The trace name of a trace file: the files of a blktrace or btrecord capture, one per CPU, are one trace.
fn trace_name(path: &str) -> String {
    for part in [".blktrace.", ".replay."] {
        if let Some((stem, cpu)) = path.rsplit_once(part)
            && !cpu.is_empty()
            && cpu.bytes().all(|b| b.is_ascii_digit())
        {
            return format!("{stem}{}", part.trim_end_matches('.'));
        }
    }
    path.to_owned()
}

/// Groups files by trace, with the traces' names, in the given order.
pub fn group(paths: &[PathBuf]) -> Vec<(String, Vec<PathBuf>)> {
    let mut groups: Vec<(String, Vec<PathBuf>)> = Vec::new();
    for path in paths {
        let name = trace_name(&path.to_string_lossy());
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, files)) => files.push(path.clone()),
            None => groups.push((name, vec![path.clone()])),
        }
    }
    for (name, _) in &mut groups {
        *name = name_of(Path::new(name));
    }
    groups
}

fn look(
    directory: &Path,
    name: String,
    files: Vec<FileStamp>,
    skip_bad: u64,
    progress: &ReadProgress,
) -> Entry {
    let paths: Vec<PathBuf> = files.iter().map(|file| directory.join(&file.path)).collect();
    let options = Options { skip_bad, ..Options::default() };
    let read = || -> Result<Figures, String> {
        let mut reader = open(&paths, &options, progress).map_err(|error| error.to_string())?;
        Ok(profile(&name, reader.as_mut()).map_err(|error| error.to_string())?.figures)
    };
    let (figures, trouble) = match read() {
        Ok(figures) if figures.requests > 0 => (Some(figures), None),
        Ok(_) => (None, Some("it holds no request".into())),
        Err(error) => (None, Some(error)),
    };
    Entry { name, files, figures, trouble }
}

/// The figure that a list is sorted by, largest first.
#[derive(Clone, Copy, Debug)]
pub struct Sort(fn(&Figures) -> Option<f64>);

const SORTS: [(&str, Sort); 8] = [
    ("requests", Sort(|figures| Some(figures.requests as f64))),
    ("span", Sort(|figures| Some(figures.span_seconds))),
    ("rate", Sort(|figures| figures.requests_per_second)),
    ("reads", Sort(|figures| figures.read_share)),
    ("random", Sort(|figures| figures.random_share)),
    ("size", Sort(|figures| figures.mean_size_bytes)),
    ("burst", Sort(|figures| figures.peak_to_mean)),
    ("distinct", Sort(|figures| Some(figures.unique_bytes as f64))),
];

impl FromStr for Sort {
    type Err = String;
    fn from_str(name: &str) -> Result<Sort, String> {
        let names = SORTS.map(|(name, _)| name).join(", ");
        let found = SORTS.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, sort)| sort).ok_or_else(|| format!("cannot sort by {name:?}: use one of {names}"))
    }
}

/// A condition on a share: `>60%`, `<=10%`, `25%..75%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    least: f64,
    most: f64,
    /// Whether the end points are excluded.
    strict: bool,
}

impl Bound {
    fn holds(self, share: Option<f64>) -> bool {
        share.is_some_and(|share| match self.strict {
            true => share > self.least && share < self.most,
            false => share >= self.least && share <= self.most,
        })
    }
}

impl FromStr for Bound {
    type Err = String;
    fn from_str(text: &str) -> Result<Bound, String> {
        let wrong = || format!("invalid condition {text:?}: write \">60%\", \"<=10%\" or \"25%..75%\"");
        let share = |text: &str| -> Result<f64, String> {
            let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
            number.filter(|number| number.is_finite()).map(|number| number / 100.0).ok_or_else(wrong)
        };
        let all = Bound { least: f64::NEG_INFINITY, most: f64::INFINITY, strict: false };
        let text = text.trim();
        if let Some((least, most)) = text.split_once("..") {
            return Ok(Bound { least: share(least)?, most: share(most)?, ..all });
        }
        if let Some(least) = text.strip_prefix(">=") {
            return Ok(Bound { least: share(least)?, ..all });
        }
        if let Some(most) = text.strip_prefix("<=") {
            return Ok(Bound { most: share(most)?, ..all });
        }
        if let Some(least) = text.strip_prefix('>') {
            return Ok(Bound { least: share(least)?, strict: true, ..all });
        }
        match text.strip_prefix('<') {
            Some(most) => Ok(Bound { most: share(most)?, strict: true, ..all }),
            None => Err(wrong()),
        }
    }
}

/// Selects traces of a directory, and their order. An absent condition matches all.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub format: Option<Format>,
    pub reads: Option<Bound>,
    pub random: Option<Bound>,
    /// Mean bytes of a request, to within a hundredth.
    pub size: Option<Bytes>,
    pub min_requests: u64,
    pub sort: Option<Sort>,
    pub reverse: bool,
}

impl Query {
    fn wants(&self, figures: &Figures) -> bool {
        let holds = |bound: Option<Bound>, share| bound.is_none_or(|bound: Bound| bound.holds(share));
        let format = self.format.map(|format| format.to_string());
        (format.is_none() || format == figures.format)
            && holds(self.reads, figures.read_share)
            && holds(self.random, figures.random_share)
            && self.size.is_none_or(|size| has_size(figures, size))
            && figures.requests >= self.min_requests
    }
}

fn has_size(figures: &Figures, size: Bytes) -> bool {
    let wanted = size.0 as f64;
    figures.mean_size_bytes.is_some_and(|mean| (mean - wanted).abs() <= wanted / 100.0)
}

const HEADER: [&str; 10] =
    ["trace", "format", "requests", "span", "rate/s", "peak", "reads", "random", "size", "distinct"];

/// Traces as a table for a terminal.
pub fn table(found: &[(&Entry, &Figures)]) -> String {
    let row = |(entry, figures): &(&Entry, &Figures)| {
        let absent = || "–".to_string();
        vec![
            entry.name.clone(),
            figures.format.clone().unwrap_or_default(),
            grouped(figures.requests),
            seconds(figures.span_seconds),
            figures.requests_per_second.map_or_else(absent, short),
            figures.peak_to_mean.map_or_else(absent, |peak| format!("{} ×", short(peak))),
            percent(figures.read_share),
            percent(figures.random_share),
            figures.mean_size_bytes.map_or_else(absent, bytes),
            bytes(figures.unique_bytes as f64),
        ]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    let mut out = String::new();
    ebb_output::table(&mut out, &HEADER, &rows);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn catalogue(dir: &Path) -> (Catalogue, BTreeSet<String>) {
        let mut read = BTreeSet::new();
        let progress = crate::traces::silent();
        let mut reading = |name: &str| {
            read.insert(name.to_owned());
        };
        let found = Catalogue::open(dir, 0, &mut reading, &progress);
        (found.unwrap(), read)
    }

    fn names(found: &[(&Entry, &Figures)]) -> Vec<String> {
        found.iter().map(|(entry, _)| entry.name.clone()).collect()
    }

    fn fill(dir: &Path) {
        std::fs::create_dir(dir.join("more")).unwrap();
        std::fs::write(dir.join("reads.spc"), "0,0,512,R,1\n0,9,512,R,2\n0,99,512,W,4\n").unwrap();
        std::fs::write(dir.join("more/writes.ssdsim"), "0 0 8 8 0\n7 0 16 8 0\n").unwrap();
        std::fs::write(dir.join("README.txt"), "no trace\n").unwrap();
        std::fs::write(dir.join(".hidden.spc"), "0,0,512,R,1\n").unwrap();
        let mut cpus: Vec<Vec<u8>> = vec![Vec::new(), Vec::new()];
        for (at, cpu) in cpus.iter_mut().enumerate() {
            use ebb_trace::TraceWriter;
            let at = std::time::Duration::from_secs(at as u64);
            let request =
                ebb_trace::Request { at, device: 0, offset: 0, len: 512, kind: ebb_trace::Kind::Read };
            ebb_trace::BlktraceWriter::new(cpu).write(&request).unwrap();
        }
        for (cpu, bytes) in cpus.iter().enumerate() {
            std::fs::write(dir.join(format!("sda.blktrace.{cpu}")), bytes).unwrap();
        }
    }

    #[test]
    fn traces_are_read_once_and_again_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path());
        let (first, read) = catalogue(dir.path());
        let all = ["README.txt", "more/writes.ssdsim", "reads.spc", "sda.blktrace"];
        assert_eq!(read, BTreeSet::from(all.map(String::from)));
        assert_eq!(names(&first.find(&Query::default())), all[1..]);
        assert_eq!(first.others().map(|(name, _)| name).collect::<Vec<_>>(), ["README.txt"]);
        assert_eq!(first.entries[3].figures.as_ref().unwrap().requests, 2);
        let (second, read) = catalogue(dir.path());
        assert!(read.is_empty() && second.unkept.is_none());
        assert_eq!(names(&second.find(&Query::default())), all[1..]);
        assert_eq!(second.entries[0], first.entries[0]);
        std::fs::write(dir.path().join("reads.spc"), "0,0,512,R,1\n").unwrap();
        std::fs::remove_file(dir.path().join("more/writes.ssdsim")).unwrap();
        let (third, read) = catalogue(dir.path());
        assert_eq!((third.entries.len(), read), (3, BTreeSet::from(["reads.spc".to_owned()])));
        std::fs::write(dir.path().join(CATALOGUE), "{ damaged").unwrap();
        assert_eq!(catalogue(dir.path()).1.len(), 3);
    }

    #[test]
    fn a_query_finds_by_figures_and_sorts() {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path());
        let (found, _) = catalogue(dir.path());
        let ask = |query: Query| names(&found.find(&query));
        let reads = |text: &str| Query { reads: Some(text.parse().unwrap()), ..Query::default() };
        assert_eq!(ask(reads(">60%")), ["reads.spc", "sda.blktrace"]);
        assert_eq!(ask(reads("50%..70%")), ["reads.spc"]);
        assert_eq!(ask(reads("<= 0 %")), ["more/writes.ssdsim"]);
        let sized = |bytes| ask(Query { size: Some(Bytes(bytes)), ..Query::default() });
        assert_eq!(sized(512), ["reads.spc", "sda.blktrace"]);
        assert_eq!((sized(4096), sized(520)), (vec!["more/writes.ssdsim".to_owned()], Vec::new()));
        assert_eq!(ask(Query { min_requests: 3, ..Query::default() }), ["reads.spc"]);
        assert_eq!(ask(Query { format: Some(Format::Blktrace), ..Query::default() }), ["sda.blktrace"]);
        let by_size = Query { sort: Some("size".parse().unwrap()), ..Query::default() };
        assert_eq!(ask(by_size)[0], "more/writes.ssdsim");
        let table = table(&found.find(&Query::default()));
        assert!(table.lines().count() == 4 && table.contains("66.7 %"), "{table}");
        for wrong in ["60%", ">60", "x..y", ">inf%"] {
            assert!(wrong.parse::<Bound>().is_err(), "{wrong}");
        }
        assert!("colour".parse::<Sort>().unwrap_err().contains("requests"));
    }

    #[test]
    fn the_files_of_a_capture_are_one_trace() {
        let paths =
            ["d/a.blktrace.0", "b.spc", "d/a.blktrace.1", "c/a.blktrace.0", "s.replay.3", "x.blktrace.gz"];
        let found = group(&paths.map(PathBuf::from));
        let names: Vec<_> = found.iter().map(|(name, files)| (name.as_str(), files.len())).collect();
        let want =
            [("a.blktrace", 2), ("b.spc", 1), ("a.blktrace", 1), ("s.replay", 1), ("x.blktrace.gz", 1)];
        assert_eq!(names, want);
    }

    #[test]
    fn a_directory_without_traces_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let progress = crate::traces::silent();
        let error = Catalogue::open(dir.path(), 0, &mut |_| (), &progress).unwrap_err();
        assert!(matches!(error, CatalogueError::Empty { .. }), "{error}");
        let error = Catalogue::open(&dir.path().join("none"), 0, &mut |_| (), &progress).unwrap_err();
        assert!(error.to_string().contains("check the path"), "{error}");
    }
}
