//! The S3 gateway as a process.

use crate::config::{Config, ConfigError};
use crate::dev::Connector;
use crate::error::{NodeError, io};
use crate::gateway::{Cluster, GatewayConfig, serve};
use crate::heap;
use crate::launch::Stop;
use std::collections::BTreeMap;
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
    let keys = load_keys(&config.path(&section.keys_file))?;
    let client = Connector::with(config, config.cluster.secret_of_gateways())?.connect().await?;
    let backend = Arc::new(Cluster::new(client));
    let listener = TcpListener::bind(&section.address).await.map_err(io("listen on", &section.address))?;
    let mut stop = Stop::new()?;
    tokio::select! {
        () = serve(listener, GatewayConfig { keys }, backend) => {}
        () = heap::give_back_when_quiet() => {}
        () = stop.asked() => {}
    }
    Ok(())
}

/// Secret keys by access key. The file must be its owner's alone.
pub fn load_keys(path: &Path) -> Result<BTreeMap<String, String>, NodeError> {
    let mode = std::fs::metadata(path).map_err(io("read", path))?.mode();
    if mode & 0o077 != 0 {
        return Err(NodeError::Refused(format!("others may read {}: run `chmod 600` on it", path.display())));
    }
    let text = std::fs::read_to_string(path).map_err(io("read", path))?;
    let keys: BTreeMap<String, String> = toml::from_str(&text)
        .map_err(|e| NodeError::Refused(format!("{}: {}", path.display(), e.message())))?;
    if keys.is_empty() {
        return Err(NodeError::Refused(format!(
            "{} has no key: add a line ACCESS = \"secret\"",
            path.display()
        )));
    }
    Ok(keys)
}
