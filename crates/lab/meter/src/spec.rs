//! The one-line description of a meter: `KIND[,OPTION[=VALUE]]...[:ADDRESS]`.
//!
//! Options precede the colon, so that everything after it is the address verbatim: URLs, queries and shell commands may
//! contain commas and equals signs. No option takes a password: command lines are visible to all users.

use super::MeterError;
use std::path::PathBuf;
use std::time::Duration;

/// A parsed spec. Drivers take the options that they know; a remaining one is an error.
#[derive(Debug)]
pub(super) struct Spec {
    text: String,
    pub options: Vec<(String, Option<String>)>,
    address: Option<String>,
}

impl Spec {
    pub fn parse(text: &str) -> (String, Spec) {
        let (head, address) = match text.split_once(':') {
            Some((head, address)) => (head, Some(address.to_string())),
            None => (text, None),
        };
        let mut words = head.split(',');
        let kind = words.next().unwrap_or_default().trim().to_string();
        let option = |word: &str| match word.split_once('=') {
            Some((key, value)) => (key.trim().to_string(), Some(value.trim().to_string())),
            None => (word.trim().to_string(), None),
        };
        (kind, Spec { text: text.to_string(), options: words.map(option).collect(), address })
    }

    /// An error about this spec.
    pub(super) fn wrong(&self, why: impl Into<String>) -> MeterError {
        MeterError::Spec { spec: self.text.clone(), why: why.into() }
    }

    pub(super) fn unavailable(&self, why: impl Into<String>, remedy: impl Into<String>) -> MeterError {
        MeterError::Unavailable { meter: self.text.clone(), why: why.into(), remedy: remedy.into() }
    }

    /// Whether the digits of a fingerprint have become the address: `fingerprint=sha256:`.
    pub(super) fn is_cut(&self) -> bool {
        self.options.iter().any(|(key, value)| key == "fingerprint" && value.as_deref() == Some("sha256"))
    }

    pub(super) fn address(&self) -> Option<&str> {
        self.address.as_deref().filter(|address| !address.is_empty())
    }

    /// The address of a kind that needs one.
    pub(super) fn needed(&self, what: &str) -> Result<String, MeterError> {
        self.address()
            .map(str::to_string)
            .ok_or_else(|| self.wrong(format!("after the colon belongs {what}")))
    }

    fn take(&mut self, key: &str) -> Option<Option<String>> {
        let index = self.options.iter().position(|(name, _)| name == key)?;
        Some(self.options.remove(index).1)
    }

    pub(super) fn value(&mut self, key: &str) -> Result<Option<String>, MeterError> {
        match self.take(key) {
            None => Ok(None),
            Some(Some(value)) if !value.is_empty() => Ok(Some(value)),
            Some(_) => Err(self.wrong(format!("the option {key} needs a value: {key}=..."))),
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, MeterError> {
        match self.take(key) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(_)) => Err(self.wrong(format!("the option {key} takes no value"))),
        }
    }

    pub(super) fn duration(&mut self, key: &str) -> Result<Option<Duration>, MeterError> {
        let Some(value) = self.value(key)? else { return Ok(None) };
        parse_interval(&value).map(Some).map_err(|error| self.wrong(format!("{key}: {error}")))
    }

    /// The password: from the file of the option `password-file`, else from the environment variable of the option
    /// `password-env`, else from EBB_METER_PASSWORD.
    pub(super) fn password(&mut self) -> Result<Option<String>, MeterError> {
        if let Some(path) = self.value("password-file")? {
            let path = PathBuf::from(path);
            let text = std::fs::read_to_string(&path).map_err(|source| MeterError::File { path, source })?;
            return Ok(Some(text.trim_end_matches(['\n', '\r']).to_string()));
        }
        match self.value("password-env")? {
            Some(name) => std::env::var(&name)
                .map(Some)
                .map_err(|_| self.wrong(format!("the environment variable {name} is not set"))),
            None => Ok(std::env::var("EBB_METER_PASSWORD").ok()),
        }
    }
}

/// A time between two readings: longer than zero, a day at most.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = ebb_types::parse_duration(text)?;
    let good = !time.is_zero() && time <= Duration::from_secs(86_400);
    good.then_some(time).ok_or_else(|| format!("{text:?} is not between zero and a day"))
}
