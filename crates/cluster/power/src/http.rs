//! HTTP with JSON, for the meters and switches that talk to a service.
//!
//! Whose certificate is trusted: [`tls`](crate::tls). A password is sent only over TLS, or with `insecure`; that is for
//! the caller to refuse, in the words of its own settings.

use crate::tls::{TlsConnector, Trust, TrustError, Untrusted};
use serde_json::Value;
use std::time::Duration;
use ureq::Agent;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, TcpConnector};

/// Longest answer; a chassis with hundreds of sensors has some 100 kB.
const MOST_BYTES: u64 = 8 << 20;

/// How a service is reached.
pub struct Settings {
    /// User and password.
    pub login: Option<(String, String)>,
    pub trust: Trust,
    /// For each request as a whole.
    pub timeout: Duration,
}

pub struct Http {
    agent: Agent,
    /// The value of the Authorization header.
    authorization: Option<String>,
}

/// The parts of a URL that matter here.
#[derive(Clone, Debug, PartialEq)]
pub struct Url {
    /// `https://host:port`
    pub origin: String,
    /// Starts with a slash, or is empty.
    pub path: String,
    pub query: Option<String>,
    pub user: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    #[error("{0:?} is not a URL: it begins with https:// or http://")]
    Form(String),
    #[error("the password does not belong in the URL")]
    Password,
}

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("the server answered {0}: it does not let us in")]
    Denied(u16),
    #[error("the server has no such page")]
    NoPage,
    #[error("the server answered {status}: {text}")]
    Status { status: u16, text: String },
    #[error("the answer is not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error(transparent)]
    Certificate(Untrusted),
    #[error("{0}")]
    Trouble(ureq::Error),
}

impl Url {
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let wrong = || UrlError::Form(text.to_string());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        if !matches!(scheme, "http" | "https") {
            return Err(wrong());
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query.to_string())),
            None => (rest, None),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_string()), host),
            None => (None, authority),
        };
        if user.as_deref().is_some_and(|user| user.contains(':')) {
            return Err(UrlError::Password);
        }
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Url { origin: format!("{scheme}://{host}"), path: path.to_string(), query, user })
    }

    pub fn is_plain(&self) -> bool {
        self.origin.starts_with("http://")
    }
}

impl Http {
    pub fn open(settings: &Settings) -> Result<Http, HttpError> {
        let basic = |(user, password): &(String, String)| {
            format!("Basic {}", base64_simd::STANDARD.encode_to_string(format!("{user}:{password}")))
        };
        let config = Agent::config_builder()
            .timeout_global(Some(settings.timeout))
            .http_status_as_error(false)
            // A controller is reached directly; a proxy would see the password.
            .proxy(None)
            .build();
        let connector = ().chain(TcpConnector::default()).chain(TlsConnector::new(&settings.trust)?);
        let agent = Agent::with_parts(config, connector, DefaultResolver::default());
        Ok(Http { agent, authorization: settings.login.as_ref().map(basic) })
    }

    pub fn get(&self, url: &str, query: Option<(&str, &str)>) -> Result<Value, HttpError> {
        let mut request = self.agent.get(url).header("Accept", "application/json");
        if let Some((key, value)) = query {
            request = request.query(key, value);
        }
        if let Some(value) = &self.authorization {
            request = request.header("Authorization", value);
        }
        let body = read(request.call())?;
        serde_json::from_str(&body).map_err(HttpError::NotJson)
    }

    /// Whatever the answer says beyond its status is not read: a task, or nothing.
    pub fn post(&self, url: &str, body: &Value) -> Result<(), HttpError> {
        let mut request = self.agent.post(url).header("Content-Type", "application/json");
        if let Some(value) = &self.authorization {
            request = request.header("Authorization", value);
        }
        read(request.send(body.to_string())).map(|_| ())
    }
}

/// The body of an answer of success.
fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<String, HttpError> {
    let mut response = answer.map_err(trouble)?;
    let status = response.status().as_u16();
    let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_string();
    match status {
        200..300 => body.map_err(trouble),
        401 | 403 => Err(HttpError::Denied(status)),
        404 => Err(HttpError::NoPage),
        _ => {
            let text = body.unwrap_or_default().chars().take(200).collect();
            Err(HttpError::Status { status, text })
        }
    }
}

fn trouble(error: ureq::Error) -> HttpError {
    let untrusted = match &error {
        ureq::Error::Io(io) => Untrusted::of(io),
        _ => None,
    };
    untrusted.map_or(HttpError::Trouble(error), HttpError::Certificate)
}
