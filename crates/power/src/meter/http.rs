//! HTTP with JSON answers, for Redfish and Prometheus.
//!
//! Management controllers have self-signed certificates: the option `ca` names the authority to trust, the option
//! `insecure` trusts any. A password is sent only over TLS, or with `insecure`.

use super::MeterError;
use super::spec::Spec;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig};

/// Longest answer; a chassis with hundreds of sensors has some 100 kB.
const MOST_BYTES: u64 = 8 << 20;

/// Debian and Alpine; Fedora and its derivatives; SUSE. Without any of them the browsers' authorities are trusted.
const SYSTEM_AUTHORITIES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

pub(super) struct Http {
    agent: Agent,
    /// The value of the Authorization header.
    authorization: Option<String>,
}

/// The parts of a URL that matter here.
#[derive(Debug, PartialEq)]
pub(super) struct Url {
    /// `https://host:port`
    pub origin: String,
    /// Starts with a slash, or is empty.
    pub path: String,
    pub query: Option<String>,
    pub user: Option<String>,
}

impl Url {
    pub(super) fn parse(text: &str, spec: &Spec) -> Result<Url, MeterError> {
        let wrong = || spec.wrong(format!("{text:?} is not a URL: it begins with https:// or http://"));
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
            return Err(spec.wrong("the password does not belong in the URL: use the option password-file"));
        }
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Url { origin: format!("{scheme}://{host}"), path: path.to_string(), query, user })
    }
}

impl Http {
    /// Uses the options `ca`, `insecure`, `timeout`, and those of the password.
    pub(super) fn open(url: &Url, spec: &mut Spec) -> Result<Http, MeterError> {
        let insecure = spec.flag("insecure")?;
        let mut tls = TlsConfig::builder().disable_verification(insecure);
        // Administrators also put their company's authorities where the system keeps its own.
        let system =
            || SYSTEM_AUTHORITIES.iter().find(|path| Path::new(path).exists()).map(|path| path.to_string());
        if let Some(path) = spec.value("ca")?.or_else(system) {
            tls = tls.root_certs(authorities(&path, spec)?);
        }
        let timeout = spec.duration("timeout")?.unwrap_or(Duration::from_secs(10));
        let password = spec.password()?;
        let authorization = match (&url.user, password) {
            (Some(_), Some(_)) if url.origin.starts_with("http://") && !insecure => {
                return Err(spec.wrong(
                    "a password over http:// can be read by everyone on the way: use https://, or the option insecure",
                ));
            }
            (Some(user), Some(password)) => {
                let pair = format!("{user}:{password}");
                Some(format!("Basic {}", base64_simd::STANDARD.encode_to_string(pair)))
            }
            (Some(user), None) => {
                let ways = "the option password-file, or the environment variable EBB_METER_PASSWORD";
                return Err(spec.wrong(format!("the user {user} needs a password: give it in {ways}")));
            }
            (None, _) => None,
        };
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            // A controller is reached directly; a proxy would see the password.
            .proxy(None)
            .build();
        Ok(Http { agent: config.into(), authorization })
    }

    pub(super) fn get(&self, url: &str, query: Option<(&str, &str)>) -> Result<Value, MeterError> {
        let mut request = self.agent.get(url).header("Accept", "application/json");
        if let Some((key, value)) = query {
            request = request.query(key, value);
        }
        if let Some(value) = &self.authorization {
            request = request.header("Authorization", value);
        }
        let mut response = request.call().map_err(|error| trouble(url, &error))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_string();
        let failed =
            |why: String, remedy: &str| MeterError::Http { url: url.into(), why, remedy: remedy.into() };
        match status {
            200..300 => {}
            401 | 403 => {
                return Err(failed(
                    format!("the server answered {status}: it does not let us in"),
                    "check the user before the @ in the URL and the password in the option password-file",
                ));
            }
            404 => return Err(failed("the server has no such page".into(), "check the path in the URL")),
            _ => {
                let text: String = body.unwrap_or_default().chars().take(200).collect();
                return Err(failed(
                    format!("the server answered {status}: {text}"),
                    "see the server's own log",
                ));
            }
        }
        let body = body.map_err(|error| trouble(url, &error))?;
        serde_json::from_str(&body).map_err(|error| {
            failed(format!("the answer is not JSON: {error}"), "check that the URL is that of the service")
        })
    }
}

fn authorities(path: &str, spec: &Spec) -> Result<RootCerts, MeterError> {
    let pem = std::fs::read(path).map_err(|source| MeterError::File { path: path.into(), source })?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(spec.wrong(format!("{path} holds no certificate in PEM")));
    }
    Ok(RootCerts::Specific(Arc::new(certificates)))
}

fn trouble(url: &str, error: &ureq::Error) -> MeterError {
    // TLS errors come wrapped in I/O errors.
    let is_tls = error.to_string().contains("certificate");
    let remedy = match error {
        _ if is_tls => {
            "name the authority that signed it with the option ca=FILE, or trust anyone with insecure"
        }
        ureq::Error::Timeout(_) => "check that the host is up; the option timeout gives it longer",
        ureq::Error::HostNotFound => "check the host's name",
        _ => "check the address, and that the service runs there",
    };
    MeterError::Http { url: url.into(), why: error.to_string(), remedy: remedy.into() }
}
