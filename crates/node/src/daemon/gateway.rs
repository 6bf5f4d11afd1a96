//! The S3 gateway as a process.

use crate::cluster::config::{Config, ConfigError};
use crate::cluster::connect::Connector;
use crate::cluster::keys::load_keys;
use crate::cluster::launch::Stop;
use crate::daemon::heap;
use crate::error::{NodeError, io};
use ebb_gateway::{Cluster, GatewayConfig, Keys, Limits, serve};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Runs the gateway until it is stopped. `address`: which one, if the file has several.
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
    let config = GatewayConfig {
        keys,
        domains,
        limits: Limits::of_process(),
        move_bytes_per_second: section.move_bytes_per_second,
        on_request: heap::used,
    };
    let backend = Arc::new(Cluster::new(client));
    let listener = TcpListener::bind(&section.address).await.map_err(io("listen on", &section.address))?;
    let mut stop = Stop::new()?;
    tokio::select! {
        () = serve(listener, config, backend, stop.asked()) => {}
        () = heap::give_back_when_quiet() => {}
    }
    Ok(())
}
