//! The S3 gateway as a process.

use crate::cluster::config::{Config, ConfigError};
use crate::cluster::connect::Connector;
use crate::cluster::keys::load_keys;
use crate::cluster::launch::Stop;
use crate::daemon::heap;
use crate::daemon::metrics;
use crate::daemon::metrics::traffic::{S3Traffic, report_client};
use crate::error::{IN_THE_FILE, NodeError, listen, refused};
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
            .ok_or_else(|| refused(format!("there is no [[gateway]] with address {address}")))?,
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
    let traffic = Arc::new(S3Traffic::default());
    let config = GatewayConfig {
        keys,
        domains,
        limits: Limits::of_process(),
        move_bytes_per_second: section.move_bytes_per_second,
        expire_most: section.expire_most,
        watcher: traffic.clone(),
    };
    let (counted, client_counted) = (traffic, client.clone());
    let page = move || {
        let mut page = metrics::of_process();
        counted.report(&mut page);
        report_client(&client_counted.counters(), &mut page);
        page
    };
    metrics::open(section.metrics.as_deref(), page).await?;
    let backend = Arc::new(Cluster::new(client));
    let listener =
        TcpListener::bind(&section.address).await.map_err(listen(&section.address, IN_THE_FILE))?;
    let mut stop = Stop::new()?;
    tokio::select! {
        () = serve(listener, config, backend, stop.asked()) => {}
        () = heap::give_back_when_quiet() => {}
    }
    Ok(())
}
