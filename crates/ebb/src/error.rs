//! Why an Ebb program could not start or continue.

use ebb_client::transport::{TransportError, cannot_listen};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Config(#[from] crate::cluster::config::ConfigError),
    #[error(transparent)]
    Secret(#[from] ebb_client::SecretError),
    #[error(transparent)]
    Store(#[from] ebb_store::OpenError),
    #[error(transparent)]
    Files(#[from] ebb_store::FlatError),
    #[error("{}", cannot_listen(.address, .elsewhere, .source))]
    Listen { address: String, elsewhere: &'static str, source: TransportError },
    #[error(transparent)]
    Client(#[from] ebb_client::ClientError),
    #[error(transparent)]
    Volume(#[from] ebb_volume::VolumeError),
    #[error("{data}: {source}")]
    Metadata { data: PathBuf, source: ebb_meta::RaftError },
    #[error(transparent)]
    Switch(#[from] ebb_power::SwitchError),
    #[error(transparent)]
    Meter(#[from] ebb_meter::MeterError),
    #[error(transparent)]
    Mirror(#[from] crate::mirror::MirrorError),
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Refused(String),
}

/// A reason that is none of the others, as a person reads it.
pub fn refused(why: impl ToString) -> NodeError {
    NodeError::Refused(why.to_string())
}

/// Adds the action and its object to an I/O error.
pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> NodeError {
    let path = path.into();
    move |source| NodeError::Io { action, path, source }
}

/// Where an address comes from that is in the configuration file.
pub const IN_THE_FILE: &str = "change the address in the configuration file";

/// Adds the address, and how to name another one, to an error of listening there.
pub fn listen<E: Into<TransportError>>(
    address: impl ToString,
    elsewhere: &'static str,
) -> impl FnOnce(E) -> NodeError {
    move |source| NodeError::Listen { address: address.to_string(), elsewhere, source: source.into() }
}

#[cfg(feature = "lab")]
/// Refuses an output that cannot be written, before the work. What is in the file stays, and no file is left where none
/// was: the work may fail.
pub fn writable(path: &std::path::Path) -> Result<(), NodeError> {
    use std::fs::OpenOptions;
    use std::io::ErrorKind;
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    let opened = match made {
        Ok(file) => {
            drop(file);
            std::fs::remove_file(path)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().append(true).open(path).map(drop)
        }
        Err(error) => Err(error),
    };
    opened.map_err(io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, ErrorKind};

    #[test]
    fn a_test_of_an_output_leaves_no_file_and_keeps_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.html");
        writable(&path).unwrap();
        assert!(!path.exists(), "the work may fail");
        std::fs::write(&path, "old").unwrap();
        writable(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert!(writable(&directory.path().join("none/report.html")).is_err());
        assert!(writable(directory.path()).is_err());
    }

    #[test]
    fn a_port_in_use_is_named_as_such() {
        let text = |kind: ErrorKind| listen("127.0.0.1:9100", IN_THE_FILE)(io::Error::from(kind)).to_string();
        let in_use = "another process listens on 127.0.0.1:9100: stop it, or change the address in the configuration file";
        assert_eq!(text(ErrorKind::AddrInUse), in_use);
        assert!(
            text(ErrorKind::AddrNotAvailable)
                .starts_with("this machine has no address 127.0.0.1:9100: change")
        );
        assert!(text(ErrorKind::PermissionDenied).starts_with("cannot listen on 127.0.0.1:9100"));
    }
}
