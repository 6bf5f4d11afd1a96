//! Clients of a cluster, with the rights of a secret file.

use crate::cluster::config::Config;
use crate::error::NodeError;
use ebb_client::{Client, ClientConfig, Secret};
use ebb_output::Progress;
use ebb_types::{AdminReply, AdminRequest, ClusterStatus, MetaReply, MetaRequest};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Connects clients to one cluster.
#[derive(Clone)]
pub struct Connector(ClientConfig);

impl Connector {
    /// With administrator rights, if the secret file exists and grants them.
    pub fn new(config: &Config) -> Result<Connector, NodeError> {
        Connector::with(config, &config.cluster.secret_file)
    }

    /// With the rights that this secret file grants.
    pub fn with(config: &Config, secret: &Path) -> Result<Connector, NodeError> {
        let secret = Secret::load(&config.path(secret))?;
        let mut client = ClientConfig::new(config.meta_addresses(), secret);
        client.cluster = config.cluster_id()?;
        Ok(Connector(client))
    }

    /// For a client that writes only to objects it allocated itself.
    pub fn sole_writer(mut self) -> Connector {
        self.0.patience.sole_writer = true;
        self
    }

    pub async fn connect(self) -> Result<Client, NodeError> {
        Ok(Client::connect(self.0).await?)
    }

    /// For a person, who is told what the program waits for, and soon where there is nothing to wait for.
    pub async fn connect_for_a_person(self) -> Result<Client, NodeError> {
        let addresses = self.0.meta.clone();
        let mut line = Progress::new();
        let connecting = self.connect();
        tokio::pin!(connecting);
        if let Ok(done) = timeout(SILENCE, &mut connecting).await {
            return done;
        }
        let names = addresses.join(", ");
        line.show(format_args!("waiting for a metadata leader at {names}"));
        let early = timeout(GIVE_UP - SILENCE, &mut connecting).await;
        let refused = early.is_err() && all_refuse(&addresses).await;
        let done = match early {
            Ok(done) => done,
            Err(_) if refused => Err(NodeError::Refused(format!(
                "no metadata leader answered for {} s at {names}: no process listens there; start the metadata servers, or name \
                 another file with --config. Until a majority of them runs, each server stays as it is: none sleeps or wakes",
                GIVE_UP.as_secs()
            ))),
            Err(_) => connecting.await,
        };
        line.clear();
        done
    }
}

/// After it a person is told what the program waits for.
const SILENCE: Duration = Duration::from_secs(2);
/// After it the program gives up if each metadata server's machine says that nothing listens. Longer than a process
/// takes to start again.
const GIVE_UP: Duration = Duration::from_secs(3);

/// Whether each machine is there, and says that no process listens.
async fn all_refuse(addresses: &[String]) -> bool {
    for address in addresses {
        let tried = timeout(Duration::from_secs(1), TcpStream::connect(address)).await;
        if !matches!(tried, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused) {
            return false;
        }
    }
    true
}

/// An administrator's request and its answer.
pub async fn ask(client: &Client, request: AdminRequest) -> Result<AdminReply, NodeError> {
    match client.call(MetaRequest::Admin(request)).await? {
        MetaReply::Admin(reply) => Ok(reply),
        MetaReply::Failed(why) => Err(NodeError::Refused(why.to_string())),
        other => Err(NodeError::Refused(format!("unexpected answer of the metadata service: {other:?}"))),
    }
}

pub async fn status(client: &Client) -> Result<ClusterStatus, NodeError> {
    match ask(client, AdminRequest::Status).await? {
        AdminReply::Status(status) => Ok(*status),
        other => Err(NodeError::Refused(format!("unexpected answer of the metadata service: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_machine_where_nothing_listens_refuses_and_one_that_is_silent_does_not() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap().to_string();
        let gone = {
            let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            closed.local_addr().unwrap().to_string()
        };
        assert!(all_refuse(&[gone.clone(), gone.clone()]).await);
        assert!(!all_refuse(&[gone, there]).await, "a process that listens may soon have a leader");
    }
}
