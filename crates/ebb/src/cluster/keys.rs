//! The keys of S3 clients and their rights: one TOML file, which gateways read again when it changes.

use crate::cluster::random::bytes;
use crate::cluster::secrets::read_private;
use crate::error::{NodeError, refused};
use ebb_gateway::{Key, KeyTable, Right};
use ebb_types::hex;
use std::collections::BTreeSet;
use std::path::Path;

/// Reads the keys and their rights, by access key. The file must be accessible by its owner only.
pub fn load_keys(path: &Path) -> Result<KeyTable, NodeError> {
    let text = read_private(path)?;
    let keys: KeyTable =
        toml::from_str(&text).map_err(|e| refused(format!("{}: {}", path.display(), e.message())))?;
    if keys.is_empty() {
        return Err(refused(format!("{} has no key: add one with `ebb key add`", path.display())));
    }
    Ok(keys)
}

/// Creates a unique key.
pub fn new_key(rights: BTreeSet<Right>, buckets: Option<Vec<String>>) -> Result<(String, Key), NodeError> {
    Ok((hex(&bytes::<10>()?).to_uppercase(), Key { secret: hex(&bytes::<20>()?), rights, buckets }))
}

/// The file's text.
pub fn as_text(table: &KeyTable) -> Result<String, NodeError> {
    toml::to_string(table).map_err(refused)
}
