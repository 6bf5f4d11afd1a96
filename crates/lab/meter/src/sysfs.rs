//! Reading sysfs: small files with one number or one word.

use super::MeterError;
use std::io::ErrorKind;
use std::path::Path;

/// The file's content without the line end; `None` if it is not there.
pub(super) fn text(path: &Path) -> Result<Option<String>, MeterError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_string())),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(MeterError::File { path: path.to_path_buf(), source }),
    }
}

/// A sensor's number times `scale`. `None`: it has no value now, which drivers report by failing the read (a sensor
/// that is off, a sleeping drive, a file removed with its device); then `absent` says so.
pub(super) fn sensor(
    path: &Path,
    scale: f64,
    absent: &mut Option<String>,
) -> Result<Option<f64>, MeterError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(source) if source.kind() == ErrorKind::PermissionDenied => {
            return Err(MeterError::File { path: path.to_path_buf(), source });
        }
        Err(source) => {
            *absent = Some(format!("{}: {source}", path.display()));
            return Ok(None);
        }
    };
    match text.trim().parse::<i64>() {
        Ok(number) => Ok(Some(number as f64 * scale)),
        Err(_) => Err(MeterError::Number { path: path.to_path_buf(), text: text.trim().to_string() }),
    }
}

/// The names in a directory, sorted, numbers by value (`temp2` before `temp10`); none if it is not there.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by_cached_key(|name| {
        let word = name.trim_end_matches(|c: char| !c.is_ascii_digit());
        let digits = word.len() - word.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = word[word.len() - digits..].parse().unwrap_or(0);
        (word[..word.len() - digits].to_string(), number, name.clone())
    });
    names
}

/// `number_of("temp3_input", "temp", "_input")` is `3`.
pub(super) fn number_of<'a>(name: &'a str, prefix: &str, suffix: &str) -> Option<&'a str> {
    let number = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}
