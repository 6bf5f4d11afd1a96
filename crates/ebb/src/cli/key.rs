//! `ebb key`: the keys of S3 clients and their rights, in the file that gateways read.
//!
//! A gateway reads the file again when it changes. With gateways on several machines, copy the file to each of them,
//! like the configuration.

use crate::cli::tool::{FileArgs, print};
use crate::cluster::config::{Config, ConfigError};
use crate::cluster::keys::{as_text, load_keys, new_key};
use crate::error::{NodeError, io, refused};
use clap::Subcommand;
use ebb_gateway::{Key, KeyTable, Right};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Create a key and show its secret, once
    Add {
        /// What its owner may do; all rights if omitted
        #[arg(long = "right", value_name = "read|write|admin")]
        rights: Vec<Right>,
        /// A bucket that the key may access, or a name prefix followed by *; all buckets if omitted
        #[arg(long = "bucket", value_name = "NAME")]
        buckets: Vec<String>,
    },
    /// List the keys and their rights, without their secrets
    List,
    /// Revoke a key permanently
    Remove { access_key: String },
}

#[derive(Serialize)]
struct Made<'a> {
    access_key: &'a str,
    secret_key: &'a str,
}

#[derive(Serialize)]
struct Listed<'a> {
    access_key: &'a str,
    rights: &'a BTreeSet<Right>,
    /// Absent: every bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<&'a Vec<String>>,
}

pub fn run(file: &FileArgs, command: KeyCommand) -> Result<ExitCode, NodeError> {
    let config = Config::load(&file.config)?;
    let section = config.gateway.first().ok_or(ConfigError::NoSection { section: "gateway" })?;
    let path = config.path(&section.keys_file);
    let mut table = if path.exists() { load_keys(&path)? } else { KeyTable::new() };
    match command {
        KeyCommand::Add { rights, buckets } => {
            let rights = if rights.is_empty() { Right::ALL.into() } else { rights.into_iter().collect() };
            let (id, key) = new_key(rights, Some(buckets).filter(|buckets| !buckets.is_empty()))?;
            table.insert(id.clone(), key.clone());
            replace(&path, &table)?;
            let text = format!("access key  {id}\nsecret key  {}\n", key.secret);
            print(file.json, &Made { access_key: &id, secret_key: &key.secret }, text);
        }
        KeyCommand::List => {
            let line = |key: &Listed| {
                let rights: Vec<String> = key.rights.iter().map(Right::to_string).collect();
                let buckets = key.buckets.map_or("every bucket".to_owned(), |names| names.join(" "));
                format!("{}  {}  {buckets}\n", key.access_key, rights.join(","))
            };
            let all: Vec<Listed> = table.iter().map(listed).collect();
            print(file.json, &all, all.iter().map(line).collect::<String>());
        }
        KeyCommand::Remove { access_key } => {
            if table.remove(&access_key).is_none() {
                return Err(refused(format!("there is no key {access_key}: see `ebb key list`")));
            }
            if table.is_empty() {
                return Err(refused("this is the last key: add another before removing it"));
            }
            replace(&path, &table)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn listed<'a>((access_key, key): (&'a String, &'a Key)) -> Listed<'a> {
    Listed { access_key, rights: &key.rights, buckets: key.buckets.as_ref() }
}

/// Replaces the file atomically: a gateway that reads it meanwhile sees the old keys or the new ones.
fn replace(path: &Path, table: &KeyTable) -> Result<(), NodeError> {
    ebb_files::replace_file(path, as_text(table)?.as_bytes(), 0o600).map_err(io("replace", path))
}
