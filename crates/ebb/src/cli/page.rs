//! `ebb page`: the cluster in a browser. Asks the metadata leader with this machine's keys: a gateway's keys can look,
//! an administrator's can act.

use crate::cli::co2::Co2;
use crate::cli::readings::{self, Readings};
use crate::cli::{volume, what_if};
use crate::cluster::config::{Config, ConfigError};
use crate::cluster::connect::{Connector, ask};
use crate::cluster::keys::load_keys;
use crate::cluster::launch::Stop;
use crate::cluster::secrets::PageTokens;
use crate::error::{NodeError, io, listen, refused};
use clap::Args;
use ebb_bench::sign::Signer;
use ebb_client::{Client, ClientError};
use ebb_power::PowerModel;
use ebb_types::{AdminReply, AdminRequest, ClusterStatus, MetaFailure, Watts};
use ebb_web::{Facts, Hosts, Page, Recorded, Refusal, Replayed, S3, Source, WhatIf};
use std::future::Future;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;

pub const EXAMPLES: &str = "Examples:\n  ebb page --config cluster.toml\n  ebb page --config cluster.toml --address 10.0.0.7:9080 --name ebb.example.org   for other machines, behind a proxy with TLS\n  ebb page --config cluster.toml --s3-key page-key.toml   with buckets and objects, by the rights of that key";

/// A leader that is there answers at once; after this the page says that none does.
const ANSWER: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct PageArgs {
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE", default_value = "data/cluster.toml")]
    config: PathBuf,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9080")]
    address: SocketAddr,
    /// Another host name by which browsers reach it; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// A file with the one S3 key by which the page shows buckets and objects, in the form of the gateway's keys_file
    /// [default: none]
    #[arg(long = "s3-key", value_name = "FILE")]
    s3_key: Option<PathBuf>,
    /// CO₂ of a kWh by the hour, for What if: CSV of an hour of the day or a time, in UTC, and g/kWh [default: one
    /// factor, set in the browser]
    #[arg(long, value_name = "FILE")]
    co2: Option<PathBuf>,
}

/// The way to the first gateway of the configuration, with this key.
pub fn s3(config: &Config, access_key: &str, secret_key: &str) -> Result<S3, NodeError> {
    let gateway = config.gateway.first().ok_or(ConfigError::NoSection { section: "gateway" })?;
    // One that listens everywhere is on this machine, too.
    let address = match gateway.address.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => format!("127.0.0.1:{}", address.port()),
        _ => gateway.address.clone(),
    };
    let signer = Signer::new(address.clone(), access_key, secret_key, "us-east-1");
    let sign = move |method: &str, path: &str| Vec::from(signer.headers(method, path, SystemTime::now()));
    Ok(S3 { address, sign: Arc::new(sign) })
}

fn s3_of_file(config: &Config, file: &Path) -> Result<S3, NodeError> {
    let keys = load_keys(file)?;
    match keys.iter().collect::<Vec<_>>()[..] {
        [(access_key, key)] => s3(config, access_key, &key.secret),
        _ => Err(refused(format!(
            "{} has {} keys: give the page a file with one, which may do what browsers may do",
            file.display(),
            keys.len()
        ))),
    }
}

/// The leader, as the page asks it: connected when it is first needed, and again whenever that failed.
struct Leader {
    connector: Connector,
    client: Option<Client>,
    /// Its `standby` is the sleep that the cluster has.
    power: PowerModel,
    /// Of the grid.
    co2: Option<Arc<Co2>>,
    config: Config,
}

impl Leader {
    async fn connected(&mut self) -> Result<&Client, NodeError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connector.clone().connect().await?,
        };
        Ok(self.client.insert(client))
    }
}

/// Within [`ANSWER`], or the reason why not.
async fn answered<T>(reply: impl Future<Output = Result<T, NodeError>>) -> Result<T, Refusal> {
    match tokio::time::timeout(ANSWER, reply).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(NodeError::Refused(why))) => Err(Refusal::Refused(why)),
        Ok(Err(NodeError::Client(ClientError::Meta(
            why @ (MetaFailure::Refused(_) | MetaFailure::Full),
        )))) => Err(Refusal::Refused(why.to_string())),
        Ok(Err(error)) => Err(Refusal::Unreachable(error.to_string())),
        Err(_) => Err(Refusal::Unreachable(format!("no answer within {ANSWER:?}"))),
    }
}

impl Source for Leader {
    async fn ask(&mut self, request: AdminRequest) -> Result<AdminReply, Refusal> {
        answered(async { ask(self.connected().await?, request).await }).await
    }

    async fn volumes(&mut self) -> Result<String, Refusal> {
        answered(async { volume::list_json(self.connected().await?).await }).await
    }

    fn measure(
        &self,
        status: ClusterStatus,
    ) -> impl Future<Output = Result<String, String>> + Send + 'static {
        let config = self.config.clone();
        async move {
            let read = move || readings::read(readings::meters(&config)?, readings::DEADLINE);
            let answers = tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?;
            let answers = answers.map_err(|error| error.to_string())?;
            let modelled = status.servers.iter().map(|server| (server.id, server.modelled_watts));
            serde_json::to_string(&Readings::new(modelled, answers)).map_err(|error| error.to_string())
        }
    }

    fn replay(
        &self,
        recorded: Recorded,
        wish: WhatIf,
    ) -> impl Future<Output = Result<Replayed, String>> + Send + 'static {
        let (power, co2) = (self.power, self.co2.clone());
        async move {
            let played =
                tokio::task::spawn_blocking(move || what_if::replay(&recorded, &power, co2.as_deref(), wish));
            played.await.map_err(|error| error.to_string())?
        }
    }
}

/// A page that listens.
pub struct Opened {
    listener: TcpListener,
    page: Page,
    leader: Leader,
    tokens: PageTokens,
    address: SocketAddr,
    names: Vec<String>,
}

impl Opened {
    pub async fn new(
        config: &Config,
        address: SocketAddr,
        names: &[String],
        s3: Option<S3>,
        co2: Option<Co2>,
    ) -> Result<Opened, NodeError> {
        let tokens = PageTokens::open(config)?;
        let has_meters = readings::meters(config)?.iter().any(|meter| meter.spec.is_ok());
        let facts = Facts { has_co2_series: co2.is_some(), has_meters, ..facts(config) };
        let power = PowerModel { standby: Watts(facts.asleep_watts), ..config.power.model };
        let connector = Connector::new(config)?;
        let leader =
            Leader { connector, client: None, power, co2: co2.map(Arc::new), config: config.clone() };
        let listener = TcpListener::bind(address)
            .await
            .map_err(listen(address, "give another one with --address of `ebb page`"))?;
        let address = listener.local_addr().map_err(io("listen on", address.to_string()))?;
        let page = Page { tokens: tokens.tokens()?, hosts: Hosts::new(address, names), facts, s3 };
        Ok(Opened { listener, page, leader, tokens, address, names: names.to_vec() })
    }

    /// With the administrator's token.
    pub fn url(&self) -> String {
        url(self.address, &self.names, &self.tokens.act)
    }

    pub async fn serve(self, stop: impl Future<Output = ()>) {
        ebb_web::serve(self.listener, self.page, self.leader, stop).await;
    }
}

/// A name means that others see the requests, a proxy's log among them: what stands behind `#` is not sent.
fn url(address: SocketAddr, names: &[String], token: &str) -> String {
    let mark = if names.is_empty() { '?' } else { '#' };
    format!("http://{}/{mark}token={token}", host(address, names))
}

/// The first of a page's names.
fn host(address: SocketAddr, names: &[String]) -> String {
    match names.first() {
        Some(name) => format!("{name}:{}", address.port()),
        None if address.ip().is_unspecified() => format!("127.0.0.1:{}", address.port()),
        None => address.to_string(),
    }
}

/// Says where a page is, to a terminal with its tokens.
pub fn say_urls(tokens: &PageTokens, address: SocketAddr, names: &[String]) {
    let url = |token| url(address, names, token);
    if std::io::stdout().is_terminal() {
        println!("page       {}\nread-only  {}", url(&tokens.act), url(&tokens.look));
    } else {
        // Into a log no token is written.
        let (act, look) = (tokens.act_file.display(), tokens.look_file.display());
        println!("page {} with the token in {act}, or to look only in {look}", url(""));
    }
    if !address.ip().is_loopback() {
        println!("warning: tokens are sent in clear text; put a TLS proxy in front");
    }
}

/// By the power model of the file.
fn facts(config: &Config) -> Facts {
    Facts {
        cluster: config.cluster.id.clone(),
        asleep_watts: config.power.model.asleep(config.deepest()).watts.0,
        cycles_per_day: config.power.cycles_per_day,
        has_co2_series: false,
        has_meters: false,
    }
}

/// Serves the page until it is stopped.
pub async fn run(args: PageArgs) -> Result<(), NodeError> {
    let mut stop = Stop::new()?;
    let config = Config::load(&args.config)?;
    let s3 = args.s3_key.map(|file| s3_of_file(&config, &file)).transpose()?;
    let co2 = args.co2.map(|file| Co2::load(&file)).transpose()?;
    let opened = Opened::new(&config, args.address, &args.names, s3, co2).await?;
    say_urls(&opened.tokens, opened.address, &args.names);
    opened.serve(stop.asked()).await;
    Ok(())
}
