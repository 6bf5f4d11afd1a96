//! HTTP by a meter's options, for Redfish and Prometheus: `ca`, `fingerprint`, `insecure`, `timeout`, and those of the
//! password.

use super::MeterError;
use super::spec::Spec;
use ebb_power::http::{self, HttpError, Settings, Url, UrlError};
use ebb_power::tls::{Trust, TrustError};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

pub(super) struct Http(http::Http);

pub(super) fn parse(text: &str, spec: &Spec) -> Result<Url, MeterError> {
    Url::parse(text).map_err(|error| match error {
        UrlError::Password => spec.wrong(format!("{error}: use the option password-file")),
        UrlError::Form(_) if spec.is_cut() => {
            spec.wrong("fingerprint takes the 64 digits alone: what follows a colon is the address")
        }
        UrlError::Form(_) => spec.wrong(error.to_string()),
    })
}

impl Http {
    pub(super) fn open(url: &Url, spec: &mut Spec) -> Result<Http, MeterError> {
        let insecure = spec.flag("insecure")?;
        let (ca, fingerprint) = (spec.value("ca")?.map(PathBuf::from), spec.value("fingerprint")?);
        let trust = Trust::new(ca, "ca", fingerprint.as_deref(), insecure);
        let trust = trust.map_err(|why| spec.wrong(why))?;
        let timeout = spec.duration("timeout")?.unwrap_or(Duration::from_secs(10));
        let password = spec.password()?;
        let login = match (&url.user, password) {
            (Some(_), Some(_)) if url.is_plain() && !insecure => {
                return Err(spec.wrong(
                    "a password over http:// can be read by everyone on the way: use https://, or the option insecure",
                ));
            }
            (Some(user), Some(password)) => Some((user.clone(), password)),
            (Some(user), None) => {
                let ways = "the option password-file, or the environment variable EBB_METER_PASSWORD";
                return Err(spec.wrong(format!("the user {user} needs a password: give it in {ways}")));
            }
            (None, _) => None,
        };
        let opened = http::Http::open(&Settings { login, trust, timeout });
        opened.map(Http).map_err(|error| match error {
            HttpError::Trust(TrustError::Authorities { path, source }) => MeterError::File { path, source },
            other => spec.wrong(other.to_string()),
        })
    }

    pub(super) fn get(&self, url: &str, query: Option<(&str, &str)>) -> Result<Value, MeterError> {
        self.0.get(url, query).map_err(|error| MeterError::Http {
            url: url.into(),
            why: error.to_string(),
            remedy: remedy(&error),
        })
    }
}

fn remedy(error: &HttpError) -> String {
    let remedy = match error {
        HttpError::Denied(_) => {
            "check the user before the @ in the URL and the password in the option password-file"
        }
        HttpError::NoPage => "check the path in the URL",
        HttpError::Status { .. } => "see the server's own log",
        HttpError::NotJson(_) => "check that the URL is that of the service",
        HttpError::Certificate(untrusted) => {
            return format!(
                "if that is the fingerprint which the controller's own page shows, trust it with the option fingerprint={}; or name the \
                 authority that signed it with ca=FILE, or trust anyone with insecure",
                untrusted.presented.digits()
            );
        }
        HttpError::Trouble(ureq::Error::Timeout(_)) => {
            "check that the host is up; the option timeout gives it longer"
        }
        HttpError::Trouble(ureq::Error::HostNotFound) => "check the host's name",
        _ => "check the address, and that the service runs there",
    };
    remedy.into()
}
