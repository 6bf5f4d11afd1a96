//! The cluster secret and the keys derived from it: a program that knows a key may talk to the cluster's servers as
//! that party.
//!
//! A secret file holds the cluster secret, from which every party's key is derived, or some of the keys (`ebb secret`
//! makes such files): a gateway without the administrator's key cannot do what administrators may. Only its owner may
//! read the file. Keys are never printed and never sent: the handshake proves that both sides know them
//! ([`crate::transport`]).

use ebb_types::hex;
use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Shorter secrets could be guessed from a recorded handshake.
pub const SECRET_BYTES_MIN: usize = 16;
pub const SECRET_BYTES_MAX: usize = 4096;

/// First line of a file that holds keys.
const KEYS_TITLE: &str = "ebb-keys";

/// The key that a caller proves to know. The called side proves the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Access to objects and volumes: gateways and other clients.
    Client,
    /// Chunk servers to each other and to the metadata service.
    Server,
    /// Metadata servers to each other.
    Meta,
    /// Changes of the cluster itself.
    Admin,
}

impl Key {
    const ALL: [Key; 4] = [Key::Client, Key::Server, Key::Meta, Key::Admin];

    fn name(self) -> &'static str {
        match self {
            Key::Client => "client",
            Key::Server => "server",
            Key::Meta => "meta",
            Key::Admin => "admin",
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The keys of a cluster, or some of them. Cheap to clone.
#[derive(Clone)]
pub struct Secret(Arc<BTreeMap<Key, [u8; 32]>>);

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
    #[error(
        "line {line} of the keys is not `PARTY KEY` with 64 hexadecimal digits; make the file again with `ebb secret`"
    )]
    Keys { line: usize },
    #[error(
        "the secret file has no {key} key: this program needs the cluster secret, or a file that `ebb secret` made for it"
    )]
    Missing { key: Key },
}

impl Secret {
    /// Reads the secret from a file and trims white space. Refuses a file that group or others may read.
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
        let text = hex(&random::<32>());
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| writeln!(file, "{text}").and_then(|()| file.sync_all()))
            .map_err(|error| SecretError::Io { path: path.to_owned(), error })?;
        Secret::from_bytes(text.as_bytes())
    }

    /// Parses the cluster secret, or the text from [`Secret::keys`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Secret, SecretError> {
        if let Some(keys) = bytes.strip_prefix(KEYS_TITLE.as_bytes()) {
            return parse_keys(keys);
        }
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError::Length { found: bytes.len() });
        }
        let key =
            |key: Key| mac_of(bytes, &[b"ebb key ", key.name().as_bytes()]).finalize().into_bytes().into();
        Ok(Secret(Arc::new(Key::ALL.into_iter().map(|k| (k, key(k))).collect())))
    }

    /// The text of a secret file that holds these keys only.
    pub fn keys(&self, keys: &[Key]) -> Result<String, SecretError> {
        let mut text = format!("{KEYS_TITLE}\n");
        for key in keys {
            let bytes = self.0.get(key).ok_or(SecretError::Missing { key: *key })?;
            text += &format!("{key} {}\n", hex(bytes));
        }
        Ok(text)
    }

    pub fn has(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// For a program that needs the key: an error that says what to do if it is missing.
    pub fn require(&self, key: Key) -> Result<(), SecretError> {
        if self.has(key) { Ok(()) } else { Err(SecretError::Missing { key }) }
    }

    /// HMAC-SHA256 over the parts, of which the first says what it is for.
    pub(crate) fn code(&self, key: Key, parts: &[&[u8]]) -> Result<[u8; 32], SecretError> {
        let mac = self.mac(key, parts).ok_or(SecretError::Missing { key })?;
        Ok(mac.finalize().into_bytes().into())
    }

    /// The same, not finalized: finalize it to make a proof, or to check one in constant time. `None`: we do not have
    /// the key.
    pub(crate) fn mac(&self, key: Key, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        self.0.get(&key).map(|key| mac_of(key, parts))
    }
}

fn mac_of(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    debug_assert!(parts.first().is_some_and(|label| !label.is_empty()), "the first part says what it is for");
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// The lines after the title.
fn parse_keys(text: &[u8]) -> Result<Secret, SecretError> {
    let mut keys = BTreeMap::new();
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let wrong = || SecretError::Keys { line: number };
        let words = std::str::from_utf8(line).ok().and_then(|line| line.split_once(' ')).ok_or_else(wrong)?;
        let key = Key::ALL.into_iter().find(|key| key.name() == words.0).ok_or_else(wrong)?;
        keys.insert(key, parse_hex(words.1.trim().as_bytes()).ok_or_else(wrong)?);
    }
    Ok(Secret(Arc::new(keys)))
}

fn parse_hex(digits: &[u8]) -> Option<[u8; 32]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
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
    fn a_file_of_keys_holds_those_keys_and_no_others() {
        let whole = Secret::from_bytes(&[1; 32]).unwrap();
        let text = whole.keys(&[Key::Server, Key::Client]).unwrap();
        let some = Secret::from_bytes(text.trim_ascii().as_bytes()).unwrap();
        let proof = |secret: &Secret, key| secret.mac(key, &[b"x"]).map(|mac| mac.finalize().into_bytes());
        for key in [Key::Server, Key::Client] {
            assert_eq!(proof(&some, key), proof(&whole, key));
        }
        assert_ne!(proof(&whole, Key::Server), proof(&whole, Key::Client));
        let code = whole.code(Key::Client, &[b"x"]).unwrap();
        assert_eq!(Some(code), proof(&some, Key::Client).map(Into::into));
        assert!(matches!(some.code(Key::Admin, &[b"x"]), Err(SecretError::Missing { key: Key::Admin })));
        assert!(proof(&some, Key::Admin).is_none() && !some.has(Key::Meta));
        assert!(matches!(some.require(Key::Admin), Err(SecretError::Missing { key: Key::Admin })));
        assert!(some.keys(&[Key::Admin]).is_err(), "what is not there cannot be handed on");
        for wrong in ["ebb-keys\nclient", "ebb-keys\nroot 00", "ebb-keys\nclient 0g", "ebb-keys\n\nclient 00"]
        {
            let line = wrong.matches('\n').count() + 1;
            let refused = Secret::from_bytes(wrong.as_bytes()).unwrap_err();
            assert!(matches!(refused, SecretError::Keys { line: l } if l == line), "{refused}");
        }
    }

    #[test]
    fn made_up_secret_files_are_refused_or_read() {
        let text = Secret::from_bytes(&[1; 32]).unwrap().keys(&[Key::Server, Key::Client]).unwrap();
        ebb_testing::fuzz(&[text.as_bytes(), &[b'x'; 40]], |bytes| {
            if let Ok(secret) = Secret::from_bytes(bytes) {
                let _ = secret.keys(&[Key::Admin]);
            }
        });
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
