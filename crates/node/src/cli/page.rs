//! `ebb page`: the cluster in a browser. Asks the metadata leader with this machine's keys: a gateway's keys can look, an administrator's
//! can act.

use crate::cli::what_if;
use crate::cluster::config::Config;
use crate::cluster::connect::{Connector, ask};
use crate::cluster::launch::Stop;
use crate::cluster::secrets::PageTokens;
use crate::error::{NodeError, io};
use clap::Args;
use ebb_client::{Client, ClientError};
use ebb_page::{Facts, Hosts, Page, Recorded, Refusal, Replayed, Source, WhatIf};
use ebb_power::PowerModel;
use ebb_types::{AdminReply, AdminRequest, Depth, MetaFailure, Watts};
use std::future::Future;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;

pub const EXAMPLES: &str = "Examples:\n  ebb page --config cluster.toml\n  ebb page --config cluster.toml --address 10.0.0.7:9080 --name ebb.example.org   for other machines, behind a proxy with TLS";

/// A leader that is there answers at once; after this the page says that none does.
const ANSWER: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct PageArgs {
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE", default_value = "data/cluster.toml")]
    config: PathBuf,
    /// Where it listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9080")]
    address: SocketAddr,
    /// Another name under which browsers reach it; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
}

/// The leader, as the page asks it: connected when it is first needed, and again whenever that failed.
struct Leader {
    connector: Connector,
    client: Option<Client>,
    /// Its `standby` is the sleep that the cluster has.
    power: PowerModel,
}

impl Leader {
    async fn reply(&mut self, request: AdminRequest) -> Result<AdminReply, NodeError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connector.clone().connect().await?,
        };
        ask(self.client.insert(client), request).await
    }
}

impl Source for Leader {
    async fn ask(&mut self, request: AdminRequest) -> Result<AdminReply, Refusal> {
        match tokio::time::timeout(ANSWER, self.reply(request)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(NodeError::Refused(why))) => Err(Refusal::Refused(why)),
            Ok(Err(NodeError::Client(ClientError::Meta(
                why @ (MetaFailure::Refused(_) | MetaFailure::Full),
            )))) => Err(Refusal::Refused(why.to_string())),
            Ok(Err(error)) => Err(Refusal::Unreachable(error.to_string())),
            Err(_) => Err(Refusal::Unreachable(format!("no answer within {ANSWER:?}"))),
        }
    }

    async fn replay(&mut self, recorded: Recorded, wish: WhatIf) -> Result<Replayed, String> {
        let power = self.power;
        let played = tokio::task::spawn_blocking(move || what_if::replay(&recorded, &power, wish));
        played.await.map_err(|error| error.to_string())?
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
    pub async fn new(config: &Config, address: SocketAddr, names: &[String]) -> Result<Opened, NodeError> {
        let tokens = PageTokens::open(config)?;
        let facts = facts(config);
        let power = PowerModel { standby: Watts(facts.asleep_watts), ..config.power.model };
        let leader = Leader { connector: Connector::new(config)?, client: None, power };
        let listener = TcpListener::bind(address).await.map_err(io("listen on", address.to_string()))?;
        let address = listener.local_addr().map_err(io("listen on", address.to_string()))?;
        let page = Page { tokens: tokens.tokens()?, hosts: Hosts::new(address, names), facts };
        Ok(Opened { listener, page, leader, tokens, address, names: names.to_vec() })
    }

    /// With the administrator's token.
    pub fn url(&self) -> String {
        url(&host(self.address, &self.names), &self.tokens.act)
    }

    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), NodeError> {
        let served = ebb_page::serve(self.listener, self.page, self.leader, stop).await;
        served.map_err(io("serve", "the page"))
    }
}

fn url(host: &str, token: &str) -> String {
    format!("http://{host}/?token={token}")
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
    let host = host(address, names);
    if std::io::stdout().is_terminal() {
        println!("page       {}\nread-only  {}", url(&host, &tokens.act), url(&host, &tokens.look));
    } else {
        // Into a log no token is written.
        let (act, look) = (tokens.act_file.display(), tokens.look_file.display());
        println!("page http://{host}/?token= with the token in {act}, or to look only in {look}");
    }
    if !address.ip().is_loopback() {
        println!("note: whoever reads this network reads the tokens: put a proxy with TLS in front of it");
    }
}

/// By the power model of the file.
fn facts(config: &Config) -> Facts {
    let model = &config.power.model;
    Facts {
        cluster: config.cluster.id.clone(),
        idle_watts: model.idle.0,
        asleep_watts: match config.deepest() {
            Depth::Standby => model.standby.0,
            Depth::Off => model.off.0,
        },
        cycles_per_day: config.power.cycles_per_day,
    }
}

/// Serves the page until it is stopped.
pub async fn run(args: PageArgs) -> Result<(), NodeError> {
    let mut stop = Stop::new()?;
    let opened = Opened::new(&Config::load(&args.config)?, args.address, &args.names).await?;
    say_urls(&opened.tokens, opened.address, &args.names);
    opened.serve(stop.asked()).await
}
