//! The files of this process: how many it may have open, and the one that says which process it is.

use ebb_power::SwitchError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;

/// Writes this process's pid file. One that finds no room for it serves all the same: only a metadata service that
/// switches it by that file cannot.
pub fn announce(data: &Path) -> Result<(), SwitchError> {
    match ebb_power::write_pid_file(data, std::process::id()) {
        Err(SwitchError::PidFile { path, source }) if ebb_types::is_full(&source) => {
            tracing::warn!(path = %path.display(), %source, "cannot write the pid file; serving without");
            Ok(())
        }
        done => done,
    }
}

/// Raises the limit to the most that is allowed, and returns it; `None`: there is none. The usual limit of 1,024 is for
/// programs that call `select`.
pub fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}
