//! Who may look and who may act: two tokens, and the names under which the page and `/metrics` may be called.
//!
//! A token is sent as `Authorization: Bearer …`. A browser never adds that by itself, so another site cannot make one
//! act. `Host` must be a name of this page, which stops a site that rebinds its own name to this address; `Origin`,
//! where a browser sends it, must be the page.

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use ebb_types::is_same_secret;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Fewest characters of a token: 128 bits in hexadecimal.
const TOKEN_LEAST: usize = 32;
const TOKEN_MOST: usize = 256;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    Look,
    Act,
}

/// The two tokens. Never printed.
#[derive(Clone)]
pub struct Tokens {
    look: String,
    act: String,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error(
        "a token has {TOKEN_LEAST} to {TOKEN_MOST} letters and digits; remove the file, and the next start makes a new one"
    )]
    Form,
    #[error("both tokens are the same: remove one file, and the next start makes a new one")]
    Same,
}

impl Tokens {
    /// `look`: may read; `act`: may also act. White space around them does not count.
    pub fn new(look: &str, act: &str) -> Result<Tokens, TokenError> {
        let (look, act) = (look.trim(), act.trim());
        let is_token = |text: &str| {
            (TOKEN_LEAST..=TOKEN_MOST).contains(&text.len())
                && text.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        match (is_token(look) && is_token(act), look == act) {
            (false, _) => Err(TokenError::Form),
            (true, true) => Err(TokenError::Same),
            (true, false) => Ok(Tokens { look: look.to_owned(), act: act.to_owned() }),
        }
    }

    /// What the request's token allows; `None`: it has none, or a wrong one.
    pub(crate) fn right(&self, headers: &HeaderMap) -> Option<Right> {
        let token = headers.get(AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")?;
        // Both are always compared: the time does not reveal which it is.
        let (look, act) =
            (is_same_secret(token, self.look.as_bytes()), is_same_secret(token, self.act.as_bytes()));
        match (look, act) {
            (_, true) => Some(Right::Act),
            (true, _) => Some(Right::Look),
            _ => None,
        }
    }

    /// At least this right, or the reason why not.
    pub(crate) fn need(&self, headers: &HeaderMap, least: Right) -> Result<Right, Denied> {
        match self.right(headers) {
            None => Err(Denied::Token),
            Some(right) if right < least => Err(Denied::LooksOnly),
            Some(right) => Ok(right),
        }
    }

    /// The right to act, or the reason why not; a refusal is logged.
    pub(crate) fn may_act(&self, headers: &HeaderMap, from: SocketAddr, what: &str) -> Result<(), Denied> {
        self.need(headers, Right::Act).map(drop).inspect_err(|denied| {
            tracing::warn!("{what} from {from} is refused: {denied}");
        })
    }
}

/// A request without the right to what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error(
        "no token, or one that this page does not know: open the URL that `ebb page`, `ebb dev` or `ebb lab serve` printed last"
    )]
    Token,
    #[error("this token may only look: acts need the administrator's URL, which the same program prints")]
    LooksOnly,
}

impl Denied {
    pub fn code(self) -> StatusCode {
        match self {
            Denied::Token => StatusCode::UNAUTHORIZED,
            Denied::LooksOnly => StatusCode::FORBIDDEN,
        }
    }
}

/// The names under which an endpoint may be called. A site that rebinds its own name to the endpoint's address calls it
/// by another.
#[derive(Clone, Debug)]
pub struct Hosts(Names);

#[derive(Clone, Debug)]
enum Names {
    /// Each `host:port`, or a `host` alone.
    These(Vec<String>),
    /// Every address, `localhost` and this name, with any port or none.
    Addresses(String),
}

impl Hosts {
    /// Those of the address that it listens on, and more `names`: each with that port, and as it is (behind a proxy).
    pub fn new(address: SocketAddr, names: &[String]) -> Hosts {
        let port = address.port();
        let mut hosts = vec![address.to_string()];
        if address.ip().is_loopback() || address.ip().is_unspecified() {
            hosts.extend(["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}")));
        }
        for name in names.iter().map(|name| name.to_ascii_lowercase()) {
            hosts.extend([format!("{name}:{port}"), name]);
        }
        // Browsers leave out the port that HTTP has anyway.
        let plain: Vec<String> =
            hosts.iter().filter_map(|host| Some(host.strip_suffix(":80")?.to_owned())).collect();
        hosts.extend(plain);
        Hosts(Names::These(hosts))
    }

    /// For what is read by machines, through any port or network: every address, `localhost`, and the host of the
    /// `configured` address. A name can be rebound; an address cannot.
    pub fn addresses(configured: &str) -> Hosts {
        Hosts(Names::Addresses(without_port(configured).to_owned()))
    }

    /// Whether the request calls the endpoint by a name of its own.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        headers.get(HOST).and_then(|host| host.to_str().ok()).is_some_and(|host| self.has(host))
    }

    fn has(&self, host: &str) -> bool {
        match &self.0 {
            Names::These(names) => names.contains(&host.to_ascii_lowercase()),
            Names::Addresses(own) => {
                let host = without_port(host);
                let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                let named = host.eq_ignore_ascii_case("localhost") || host.eq_ignore_ascii_case(own);
                !host.is_empty() && (named || bare.parse::<IpAddr>().is_ok())
            }
        }
    }

    /// Why the request is not for this page, or not from it.
    pub(crate) fn fault(&self, headers: &HeaderMap) -> Option<Stranger> {
        if !self.admits(headers) {
            return Some(Stranger::Host);
        }
        let of = |origin: &str| {
            let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            host.is_some_and(|host| self.has(host))
        };
        let origin = headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or(""));
        origin.is_some_and(|origin| !of(origin)).then_some(Stranger::Origin)
    }
}

fn without_port(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(':') => host,
        _ => address,
    }
}

/// A request that another name or site brought here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stranger {
    #[error(
        "this page does not go by that name: use the URL that was printed at its start, or start it with --name NAME"
    )]
    Host,
    #[error("another site may not use this page")]
    Origin,
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn headers(all: &[(HeaderName, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn a_token_gives_its_right_and_nothing_else_any() {
        let (look, act) = ("a".repeat(32), "b".repeat(64));
        let tokens = Tokens::new(&format!("{look}\n"), &act).unwrap();
        let right = |value: &str| tokens.right(&headers(&[(AUTHORIZATION, value)]));
        assert_eq!(right(&format!("Bearer {look}")), Some(Right::Look));
        assert_eq!(right(&format!("Bearer {act}")), Some(Right::Act));
        for wrong in [
            String::new(),
            "Bearer ".into(),
            look.clone(),
            format!("Basic {look}"),
            format!("Bearer {}", &look[1..]),
            format!("Bearer {look}a"),
            format!("Bearer {}b", &look[1..]),
        ] {
            assert_eq!(right(&wrong), None, "{wrong:?}");
        }
        assert_eq!(tokens.right(&HeaderMap::new()), None);
        assert!(!format!("{tokens:?}").contains(&look));
    }

    #[test]
    fn tokens_that_could_be_guessed_or_confused_are_refused() {
        let good = "a".repeat(32);
        assert_eq!(Tokens::new("short", &good).unwrap_err(), TokenError::Form);
        assert_eq!(Tokens::new(&good, &format!("{good} b")).unwrap_err(), TokenError::Form);
        assert_eq!(Tokens::new(&good, &good).unwrap_err(), TokenError::Same);
    }

    #[test]
    fn only_its_own_names_reach_the_page() {
        let hosts = Hosts::new("127.0.0.1:9080".parse().unwrap(), &["Ebb.example.org".into()]);
        let fault = |host: &str| hosts.fault(&headers(&[(HOST, host)]));
        for good in
            ["127.0.0.1:9080", "localhost:9080", "[::1]:9080", "ebb.example.org", "EBB.example.org:9080"]
        {
            assert_eq!(fault(good), None, "{good}");
        }
        for bad in ["127.0.0.1", "127.0.0.1:9081", "evil.example.org:9080", "localhost.evil.org:9080", ""] {
            assert_eq!(fault(bad), Some(Stranger::Host), "{bad}");
        }
        assert_eq!(hosts.fault(&HeaderMap::new()), Some(Stranger::Host));
        let plain = Hosts::new("127.0.0.1:80".parse().unwrap(), &[]);
        assert_eq!(plain.fault(&headers(&[(HOST, "localhost")])), None);
        let outside = Hosts::new("10.0.0.7:9080".parse().unwrap(), &[]);
        assert_eq!(outside.fault(&headers(&[(HOST, "localhost:9080")])), Some(Stranger::Host));
        assert_eq!(outside.fault(&headers(&[(HOST, "10.0.0.7:9080")])), None);
    }

    #[test]
    fn an_endpoint_for_machines_goes_by_addresses_and_its_configured_name() {
        let hosts = Hosts::addresses("meta1.example:9301");
        let admits = |host: &str| hosts.admits(&headers(&[(HOST, host)]));
        for good in ["10.1.2.3", "127.0.0.1:1", "[::1]:9301", "::1", "LocalHost:1", "Meta1.example"] {
            assert!(admits(good), "{good}");
        }
        for bad in ["", ":9301", "evil.example:9301", "localhost.evil.example", "127.0.0.1.evil.example"] {
            assert!(!admits(bad), "{bad}");
        }
        assert!(!hosts.admits(&HeaderMap::new()));
    }

    #[test]
    fn another_site_is_refused() {
        let hosts = Hosts::new("127.0.0.1:9080".parse().unwrap(), &[]);
        let fault = |origin: &str| hosts.fault(&headers(&[(HOST, "localhost:9080"), (ORIGIN, origin)]));
        assert_eq!(fault("http://localhost:9080"), None);
        for bad in ["http://localhost:9000", "https://evil.example.org", "null", "localhost:9080", ""] {
            assert_eq!(fault(bad), Some(Stranger::Origin), "{bad}");
        }
    }
}
