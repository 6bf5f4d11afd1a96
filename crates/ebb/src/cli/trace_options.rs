//! How commands read traces: the options that say what a trace is, and the question where a trace does not say it.

use crate::error::{NodeError, refused};
use clap::Args;
use ebb_eval::traces::{self, ReadProgress, TraceFileError};
use ebb_trace::{Columns, Format, Options, Trace, TraceError, TraceReader, Unit};
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct TraceOptions {
    /// The format, if it is not to be detected by content and name
    #[arg(long, value_name = "FORMAT", conflicts_with = "columns")]
    format: Option<Format>,
    /// Skip and count up to this many bad lines or records
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_bad: u64,
    /// What positions and sizes count, if not what the format says
    #[arg(long, value_name = "sectors|bytes")]
    unit: Option<Unit>,
    /// The columns of a table in no known format, by number or title, such as time=1,offset=3,size=4,op=2; also device,
    /// and time-ms, time-us, time-ns
    #[arg(long = "column", value_name = "FIELD=COLUMN,…")]
    columns: Option<Columns>,
}

impl TraceOptions {
    /// Opens the files of one trace. If its figures cannot be, a terminal is asked what they count; elsewhere it is
    /// refused.
    pub fn open(
        &self,
        paths: &[PathBuf],
        progress: &ReadProgress,
    ) -> Result<Box<dyn TraceReader>, NodeError> {
        let mut options = Options {
            format: self.format,
            skip_bad: self.skip_bad,
            unit: self.unit,
            columns: self.columns.clone(),
        };
        let opened = traces::open(paths, &options, progress);
        let answers = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let opened = match opened {
            Err(TraceFileError::Read(error @ TraceError::Implausible { .. }))
                if answers && !paths.iter().any(|path| path == Path::new("-")) =>
            {
                options.unit = Some(ask(&error)?);
                traces::open(paths, &options, progress)
            }
            opened => opened,
        };
        opened.map_err(advised)
    }

    /// The same, into memory.
    pub fn load(&self, paths: &[PathBuf], progress: &ReadProgress) -> Result<Trace, NodeError> {
        let mut reader = self.open(paths, progress)?;
        let name = paths.first().map_or(String::new(), |path| traces::name_of(path));
        Trace::collect(name, reader.as_mut()).map_err(advised)
    }
}

fn ask(error: &TraceError) -> Result<Unit, NodeError> {
    let failed = |error: std::io::Error| refused(format!("no answer: {error}"));
    let mut err = std::io::stderr();
    write!(err, "{error}: [sectors/bytes] ").map_err(failed)?;
    err.flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    answer.trim().to_lowercase().parse().map_err(NodeError::Refused)
}

/// The library does not know the options of the commands; here its advice names them.
pub fn advised(error: impl std::fmt::Display) -> NodeError {
    const ADVICE: [(&str, &str); 3] = [
        (
            "name the right format, or allow some bad records to be skipped",
            "name the right --format, or allow some to be skipped with --skip-bad N",
        ),
        (
            "say whether this trace counts sectors or bytes",
            "say whether this trace counts them with --unit sectors or --unit bytes",
        ),
        (
            "csv is any table: name its columns",
            "csv is any table: name its columns with --column time=1,offset=3,size=4,op=2",
        ),
    ];
    let text = ADVICE.iter().fold(error.to_string(), |text, (said, advice)| text.replace(said, advice));
    refused(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Advice is found by its text: what the library says and what is replaced here must not part.
    #[test]
    fn advice_names_the_options() {
        let bad = traces::open(&["/dev/null".into()], &Options::default(), &traces::silent());
        assert!(bad.is_err());
        let dir = std::env::temp_dir().join(format!("ebb-reading-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let options = |format| TraceOptions { format, skip_bad: 0, unit: None, columns: None };
        let error = |text: &str, format| {
            let path = dir.join("trace");
            std::fs::write(&path, text).unwrap();
            options(format).load(&[path], &traces::silent()).unwrap_err().to_string()
        };
        let huge: String = (0..20).map(|i| format!("{i} 0 {} 65536 1\n", i * 65536)).collect();
        for (text, format, option) in [
            (huge.as_str(), None, "--unit bytes"),
            ("0,1,512,R,0\n0,x,512,R,1\n", None, "--skip-bad"),
            ("1,2,3\n", Some(Format::Csv), "--column"),
        ] {
            let said = error(text, format);
            assert!(said.contains(option), "{said}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
