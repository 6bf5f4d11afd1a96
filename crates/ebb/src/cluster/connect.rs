//! Clients of a cluster, with the rights of a secret file.

use crate::cluster::config::Config;
use crate::error::NodeError;
use ebb_client::{Client, ClientConfig, Secret};
use ebb_types::{AdminReply, AdminRequest, ClusterStatus, MetaReply, MetaRequest};
use std::path::Path;

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
