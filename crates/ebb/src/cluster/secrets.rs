//! The secret files of a cluster: the cluster secret, and key files for roles that must not have all of it
//! (docs/security.md).

use crate::cluster::config::Config;
use crate::cluster::random;
use crate::error::{NodeError, io, refused};
use ebb_client::{Key, Secret};
use ebb_types::hex;
use ebb_web::Tokens;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A chunk server proves that it is one, and accepts clients and other chunk servers.
const SERVER: [Key; 2] = [Key::Server, Key::Client];
const GATEWAY: [Key; 1] = [Key::Client];
/// Chunk servers have no administrator key: they accept an administrator as a client.
const ADMIN: [Key; 2] = [Key::Admin, Key::Client];

/// Creates the secret files that the configuration names and that do not exist yet. Returns their paths.
pub fn make(config: &Config) -> Result<Vec<PathBuf>, NodeError> {
    let cluster = &config.cluster;
    let whole = config.path(&cluster.secret_file);
    let mut made = Vec::new();
    let secret = if whole.exists() {
        Secret::load(&whole)?
    } else {
        made.push(whole.clone());
        Secret::create(&whole)?
    };
    for (path, keys) in [(cluster.secret_of_servers(), &SERVER[..]), (cluster.secret_of_gateways(), &GATEWAY)]
    {
        let path = config.path(path);
        if !path.exists() {
            write_new(&path, &secret.keys(keys)?)?;
            made.push(path);
        }
    }
    Ok(made)
}

/// Writes the keys of an administrator who works on another machine than the metadata servers.
pub fn make_admin(config: &Config, path: &Path) -> Result<(), NodeError> {
    let secret = Secret::load(&config.path(&config.cluster.secret_file))?;
    write_new(path, &secret.keys(&ADMIN)?)
}

/// The tokens of the page, beside the cluster secret: that of administrators, and the one that only looks.
pub struct PageTokens {
    pub act_file: PathBuf,
    pub act: String,
    pub look_file: PathBuf,
    pub look: String,
}

impl PageTokens {
    /// Reads the files, and creates those that are missing.
    pub fn open(config: &Config) -> Result<PageTokens, NodeError> {
        let secret = config.path(&config.cluster.secret_file);
        PageTokens::beside(secret.parent().unwrap_or(Path::new("")), "page")
    }

    /// `NAME.token` and `NAME-read.token` of a folder.
    pub fn beside(folder: &Path, name: &str) -> Result<PageTokens, NodeError> {
        let (act_file, look_file) =
            (folder.join(format!("{name}.token")), folder.join(format!("{name}-read.token")));
        let (act, look) = (token(&act_file)?, token(&look_file)?);
        Ok(PageTokens { act_file, act, look_file, look })
    }

    pub fn tokens(&self) -> Result<Tokens, NodeError> {
        Tokens::new(&self.look, &self.act).map_err(|error| {
            refused(format!("{}, {}: {error}", self.look_file.display(), self.act_file.display()))
        })
    }
}

fn token(path: &Path) -> Result<String, NodeError> {
    if !path.exists() {
        write_new(path, &format!("{}\n", hex(&random::bytes::<32>()?)))?;
    }
    Ok(read_private(path)?.trim().to_owned())
}

/// The text of a file that only its owner can read.
pub fn read_private(path: &Path) -> Result<String, NodeError> {
    let mode = std::fs::metadata(path).map_err(io("read", path))?.mode();
    if mode & 0o077 != 0 {
        return Err(refused(format!("others may read {}: run `chmod 600` on it", path.display())));
    }
    std::fs::read_to_string(path).map_err(io("read", path))
}

/// Creates a file that only its owner can read.
pub fn write_new(path: &Path, text: &str) -> Result<(), NodeError> {
    ebb_files::create_file(path, text.as_bytes(), 0o600).map_err(io("write", path))
}
