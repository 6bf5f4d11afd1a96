//! The settings of one power path, `[[server.power]]`: a TOML table of which every driver takes what it knows; what
//! remains is an error. Nothing is read from files here: every process of a cluster reads the configuration, and only
//! the metadata servers need the secrets.

use super::SwitchError;
use ebb_types::ServerId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use toml::{Table, Value};

/// The command that starts a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Standard output and error are appended here.
    pub log: PathBuf,
}

/// A server that this machine switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Managed {
    /// The server's data directory: `server.process` is in it.
    pub data: PathBuf,
    /// `None`: a server whose process has ended cannot be woken.
    pub launch: Option<Launch>,
}

/// The settings of one power path.
pub struct Fields {
    pub server: ServerId,
    pub table: Table,
    /// Relative paths start here.
    pub base: PathBuf,
    /// The server as a process of this machine.
    pub process: Managed,
    pub(super) driver: String,
}

/// Where a password comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Password {
    File(PathBuf),
    Environment(String),
}

impl Password {
    /// As the option of a meter.
    pub fn option(&self) -> String {
        match self {
            Password::File(path) => format!("password-file={}", path.display()),
            Password::Environment(name) => format!("password-env={name}"),
        }
    }

    pub fn read(&self) -> Result<String, SwitchError> {
        match self {
            Password::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|source| SwitchError::Unavailable {
                    what: format!("password_file {}", path.display()),
                    why: format!("{source}; put the password there, readable by the metadata server only"),
                })?;
                Ok(text.trim_end_matches(['\n', '\r']).to_string())
            }
            Password::Environment(name) => std::env::var(name).map_err(|_| SwitchError::Unavailable {
                what: format!("password_env {name}"),
                why: "the environment of this process does not have it: set it where `ebb meta` is started"
                    .into(),
            }),
        }
    }
}

impl Fields {
    pub fn new(server: ServerId, table: Table, base: PathBuf, process: Managed) -> Fields {
        Fields { server, table, base, process, driver: String::new() }
    }

    pub(super) fn wrong(&self, why: impl Into<String>) -> SwitchError {
        SwitchError::Field { server: self.server, driver: self.driver.clone(), why: why.into() }
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, SwitchError> {
        match self.table.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(self.wrong(format!("{name} must be a text that is not empty"))),
        }
    }

    /// `example`: what to write.
    pub(super) fn needed(&mut self, name: &str, example: &str) -> Result<String, SwitchError> {
        self.text(name)?.ok_or_else(|| self.missing(name, example))
    }

    pub(super) fn missing(&self, name: &str, example: &str) -> SwitchError {
        self.wrong(format!("{name} is missing: {name} = {example:?}"))
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, SwitchError> {
        match self.table.remove(name) {
            None => Ok(false),
            Some(Value::Boolean(flag)) => Ok(flag),
            Some(_) => Err(self.wrong(format!("{name} must be true or false"))),
        }
    }

    /// Such as `"10s"`; longer than zero, an hour at most.
    pub(super) fn duration(&mut self, name: &str) -> Result<Option<Duration>, SwitchError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let time = ebb_types::parse_duration(&text).map_err(|why| self.wrong(format!("{name}: {why}")))?;
        let good = !time.is_zero() && time <= Duration::from_secs(3600);
        good.then_some(time)
            .map(Some)
            .ok_or_else(|| self.wrong(format!("{name} must be longer than zero, an hour at most")))
    }

    pub(super) fn path(&mut self, name: &str) -> Result<Option<PathBuf>, SwitchError> {
        Ok(self.text(name)?.map(|path| self.base.join(path)))
    }

    /// A program and its arguments.
    pub(super) fn program(&mut self, name: &str) -> Result<Option<Vec<String>>, SwitchError> {
        let wrong = |fields: &Fields| {
            fields.wrong(format!("{name} must be a list: a program and its arguments, {name} = [\"/usr/local/bin/plug\", \"on\"]"))
        };
        let words = match self.table.remove(name) {
            None => return Ok(None),
            Some(Value::Array(words)) => words,
            Some(_) => return Err(wrong(self)),
        };
        let texts: Option<Vec<String>> = words.iter().map(|word| word.as_str().map(str::to_owned)).collect();
        let texts = texts.filter(|texts| texts.first().is_some_and(|program| !program.is_empty()));
        texts.map(Some).ok_or_else(|| wrong(self))
    }

    /// `password_file` or `password_env`.
    pub(super) fn password(&mut self) -> Result<Option<Password>, SwitchError> {
        match (self.path("password_file")?, self.text("password_env")?) {
            (Some(_), Some(_)) => Err(self.wrong("password_file and password_env: give one of them")),
            (Some(path), None) => Ok(Some(Password::File(path))),
            (None, name) => Ok(name.map(Password::Environment)),
        }
    }

    /// A user with a password, or neither.
    pub(super) fn login(&mut self) -> Result<Option<(String, Password)>, SwitchError> {
        match (self.text("user")?, self.password()?) {
            (Some(user), Some(password)) => Ok(Some((user, password))),
            (Some(user), None) => {
                Err(self.wrong(format!("the user {user} needs a password: password_file = \"bmc.password\"")))
            }
            (None, Some(_)) => Err(self.wrong("a password without a user: user = \"ebb\"")),
            (None, None) => Ok(None),
        }
    }
}
