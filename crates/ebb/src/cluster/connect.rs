//! Clients of a cluster, with the rights of a secret file.

use crate::cluster::config::Config;
use crate::error::{NodeError, refused};
use ebb_client::transport::TransportError;
use ebb_client::{Client, ClientConfig, ClientError, Secret, Trouble};
use ebb_output::Progress;
use ebb_types::{AdminReply, AdminRequest, ClusterStatus, MetaReply, MetaRequest};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
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
    /// `limit`: what that person allows; then it waits that long even where nothing listens.
    pub async fn connect_for_a_person(mut self, limit: Option<Duration>) -> Result<Client, NodeError> {
        self.0.patience.deadline = limit.unwrap_or(self.0.patience.deadline);
        let addresses = self.0.meta.clone();
        let mut line = Progress::new();
        let connecting = self.connect();
        tokio::pin!(connecting);
        if let Ok(done) = timeout(SILENCE, &mut connecting).await {
            return done;
        }
        line.show(format_args!("waiting for a metadata leader at {}", addresses.join(", ")));
        if limit.is_none() {
            if let Ok(done) = timeout(GIVE_UP - SILENCE, &mut connecting).await {
                return done;
            }
            if let Some(last) = refusal(&addresses).await {
                return Err(ClientError::NoMeta { addresses, waited: GIVE_UP, last }.into());
            }
        }
        connecting.await
    }
}

/// After it a person is told what the program waits for.
const SILENCE: Duration = Duration::from_secs(2);
/// After it the program gives up if each metadata server's machine says that nothing listens. Longer than a process
/// takes to start again.
const GIVE_UP: Duration = Duration::from_secs(3);

/// The last one's refusal, if each machine is there and says that no process listens.
async fn refusal(addresses: &[String]) -> Option<Trouble> {
    let mut last = None;
    for address in addresses {
        match timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                last = Some(Trouble::NoConnection(Arc::new(TransportError::Connect {
                    address: address.clone(),
                    error,
                })));
            }
            _ => return None,
        }
    }
    last
}

/// An administrator's request and its answer.
pub async fn ask(client: &Client, request: AdminRequest) -> Result<AdminReply, NodeError> {
    match client.call(MetaRequest::Admin(request)).await? {
        MetaReply::Admin(reply) => Ok(reply),
        MetaReply::Failed(why) => Err(refused(why)),
        other => Err(refused(format!("unexpected answer of the metadata service: {other:?}"))),
    }
}

pub async fn status(client: &Client) -> Result<ClusterStatus, NodeError> {
    match ask(client, AdminRequest::Status).await? {
        AdminReply::Status(status) => Ok(*status),
        other => Err(refused(format!("unexpected answer of the metadata service: {other:?}"))),
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
        assert!(refusal(&[gone.clone(), gone.clone()]).await.is_some());
        assert!(refusal(&[gone, there]).await.is_none(), "a process that listens may soon have a leader");
    }

    /// How a person's wait for a leader ends where nothing listens, and how long it took on the runtime's clock.
    async fn waits_in_vain(limit: Option<Duration>) -> (String, Duration) {
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = closed.local_addr().unwrap().to_string();
        drop(closed);
        let secret = Secret::from_bytes(&[7; 32]).unwrap();
        let began = tokio::time::Instant::now();
        let connector = Connector(ClientConfig::new(vec![address], secret));
        let error = connector.connect_for_a_person(limit).await.expect_err("nothing listens");
        (error.to_string(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_person_waits_as_long_as_was_asked_and_else_not_long_where_nothing_listens() {
        let within = |limit, least, most, says: &'static str| async move {
            let (error, waited) = waits_in_vain(limit).await;
            let waited = waited.as_secs_f64();
            assert!((least..most).contains(&waited) && error.contains(says), "{waited} s: {error}");
            assert!(error.contains("refused") && error.contains("Start the metadata servers"), "{error}");
        };
        within(None, 3.0, 4.5, "no metadata leader answered for 3 s at 127.0.0.1:").await;
        within(Some(Duration::from_millis(500)), 0.5, 1.0, "answered for 0.5 s at").await;
        within(Some(Duration::from_secs(60)), 60.0, 61.0, "answered for 60 s at").await;
    }
}
