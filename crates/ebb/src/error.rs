//! Why an Ebb program could not start or continue.

use ebb_client::transport::TransportError;
use std::io::ErrorKind;
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
    #[error("{}", listening(.address, .source))]
    Listen { address: String, source: TransportError },
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

/// Adds the action and its object to an I/O error.
pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> NodeError {
    let path = path.into();
    move |source| NodeError::Io { action, path, source }
}

#[cfg(feature = "lab")]
/// Refuses an output that cannot be written, before the work. What is in the file stays, and no file is left where none
/// was: the work may fail.
pub fn writable(path: &std::path::Path) -> Result<(), NodeError> {
    use std::fs::OpenOptions;
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

fn listening(address: &str, source: &TransportError) -> String {
    match source {
        TransportError::Io(error) if error.kind() == ErrorKind::AddrInUse => {
            format!(
                "another process listens on {address}: stop it, or change the address in the configuration file"
            )
        }
        _ => format!("cannot listen on {address}: {source}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let text = |kind: ErrorKind| {
            NodeError::Listen { address: "127.0.0.1:9100".into(), source: TransportError::Io(kind.into()) }
                .to_string()
        };
        assert!(text(ErrorKind::AddrInUse).starts_with("another process listens on 127.0.0.1:9100"));
        assert!(text(ErrorKind::PermissionDenied).starts_with("cannot listen on 127.0.0.1:9100"));
    }
}
