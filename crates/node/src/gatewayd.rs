//! The S3 gateway as a process.

use crate::config::{Config, ConfigError};
use crate::dev::Connector;
use crate::error::{NodeError, io};
use crate::gateway::{Cluster, GatewayConfig, KeyTable, Keys, Limits, serve};
use crate::heap;
use crate::launch::Stop;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Runs the gateway until it is told to stop. `address`: which one, where the file has several.
pub async fn run(config: &Config, address: Option<&str>) -> Result<(), NodeError> {
    let mut sections = config.gateway.iter();
    let section = match address {
        None => sections.next().ok_or(ConfigError::NoSection { section: "gateway" })?,
        Some(address) => sections
            .find(|g| g.address == address)
            .ok_or_else(|| NodeError::Refused(format!("there is no [[gateway]] with address {address}")))?,
    };
    let connector = Connector::with(config, config.cluster.secret_of_gateways())?;
    let client = connector.sole_writer().connect().await?;
    let keys_file = config.path(&section.keys_file);
    let table = load_keys(&keys_file)?;
    let path = keys_file.clone();
    let read = Box::new(move || load_keys(&path).map_err(|error| error.to_string()));
    let keys = Keys::of_file(keys_file, table, read);
    let mut domains = section.domains.clone();
    domains.push("localhost".to_owned());
    let config = GatewayConfig { keys, domains, limits: Limits::of_process() };
    let backend = Arc::new(Cluster::new(client));
    let listener = TcpListener::bind(&section.address).await.map_err(io("listen on", &section.address))?;
    let mut stop = Stop::new()?;
    tokio::select! {
        () = serve(listener, config, backend, stop.asked()) => {}
        () = heap::give_back_when_quiet() => {}
    }
    Ok(())
}

/// Keys and their rights by access key. The file must be its owner's alone.
pub fn load_keys(path: &Path) -> Result<KeyTable, NodeError> {
    let mode = std::fs::metadata(path).map_err(io("read", path))?.mode();
    if mode & 0o077 != 0 {
        return Err(NodeError::Refused(format!("others may read {}: run `chmod 600` on it", path.display())));
    }
    let text = std::fs::read_to_string(path).map_err(io("read", path))?;
    let keys: KeyTable = toml::from_str(&text)
        .map_err(|e| NodeError::Refused(format!("{}: {}", path.display(), e.message())))?;
    if keys.is_empty() {
        return Err(NodeError::Refused(format!("{} has no key: add one with `ebb key add`", path.display())));
    }
    Ok(keys)
}
