//! Reading models of disks and networks from TOML files.

use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// A model that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read the {what} model {}: {error}; name a built-in one ({built_in}) or an existing file", path.display())]
    Open { what: &'static str, path: PathBuf, error: std::io::Error, built_in: &'static str },
    #[error("the {what} model {} is malformed: {error}", path.display())]
    Malformed { what: &'static str, path: PathBuf, error: Box<toml::de::Error> },
    #[error("{what} model: {name} is {value} and must be a positive number")]
    Value { what: &'static str, name: &'static str, value: f64 },
    #[error(transparent)]
    Pair(#[from] ebb_mirror::ModelError),
}

/// Reads a model from a file.
pub fn read<T: DeserializeOwned>(
    what: &'static str,
    built_in: &'static str,
    path: &Path,
) -> Result<T, SettingsError> {
    let open = |error| SettingsError::Open { what, path: path.into(), error, built_in };
    let text = std::fs::read_to_string(path).map_err(open)?;
    toml::from_str(&text).map_err(|error| SettingsError::Malformed {
        what,
        path: path.into(),
        error: Box::new(error),
    })
}

pub fn check_positive(what: &'static str, name: &'static str, value: f64) -> Result<(), SettingsError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(SettingsError::Value { what, name, value }) }
}
