//! The cluster secret: whoever knows it may speak to the cluster's servers.
//!
//! It lives in a file that only its owner can read. It is never printed, and never sent: the handshake proves
//! that both sides know it ([`crate::transport`]).

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Shorter ones could be guessed from a recorded handshake.
pub const SECRET_BYTES_MIN: usize = 16;
pub const SECRET_BYTES_MAX: usize = 4096;

/// The shared secret of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot read the cluster secret {path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("others may read the cluster secret {path} (mode {mode:03o}); run `chmod 600 {path}`")]
    Readable { path: PathBuf, mode: u32 },
    #[error("the cluster secret {path} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error(
        "a cluster secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, this one {found}; \
         make one with `head -c 32 /dev/urandom | base64`"
    )]
    Length { found: usize },
}

impl Secret {
    /// Reads the secret from a file, without the white space around it. Refuses a file that group or others
    /// may read.
    pub fn load(path: &Path) -> Result<Secret, SecretError> {
        let io_error = |error| SecretError::Io { path: path.to_owned(), error };
        let file = std::fs::File::open(path).map_err(io_error)?;
        let about = file.metadata().map_err(io_error)?;
        if !about.is_file() {
            return Err(SecretError::NotAFile { path: path.to_owned() });
        }
        let mode = about.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Readable { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        file.take(SECRET_BYTES_MAX as u64 + 64).read_to_end(&mut bytes).map_err(io_error)?;
        Secret::from_bytes(bytes.trim_ascii())
    }

    /// Writes a new random secret to a file that must not exist yet, readable by its owner only.
    pub fn create(path: &Path) -> Result<Secret, SecretError> {
        let text: String = random::<32>().iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| writeln!(file, "{text}").and_then(|()| file.sync_all()))
            .map_err(|error| SecretError::Io { path: path.to_owned(), error })?;
        Secret::from_bytes(text.as_bytes())
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Secret, SecretError> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError::Length { found: bytes.len() });
        }
        Ok(Secret(bytes.into()))
    }

    /// HMAC-SHA256 over the parts, started; finish it to make a proof or to check one in constant time.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Bytes from the kernel's random source.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_created_secret_is_private_and_loads_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let made = Secret::create(&path).unwrap();
        assert_eq!(Secret::load(&path).unwrap().0, made.0);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(Secret::create(&path), Err(SecretError::Io { .. })), "never overwritten");
        assert_eq!(format!("{made:?}"), "Secret(..)");
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        Secret::create(&path).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = Secret::load(&path).unwrap_err();
            assert!(matches!(refused, SecretError::Readable { mode: m, .. } if m == mode));
            assert!(refused.to_string().contains("chmod 600"));
        }
    }

    #[test]
    fn short_long_and_missing_secrets_are_refused() {
        assert!(matches!(Secret::from_bytes(&[1; 15]), Err(SecretError::Length { found: 15 })));
        assert!(matches!(Secret::from_bytes(&[1; 4097]), Err(SecretError::Length { found: 4097 })));
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Secret::load(&dir.path().join("none")), Err(SecretError::Io { .. })));
        assert!(matches!(Secret::load(dir.path()), Err(SecretError::NotAFile { .. })));
    }
}
