//! How a target is named.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The NBD port if a URI has none.
const NBD_PORT: u16 = 10_809;

/// The name of a target; see the examples of [`TargetSpec::from_str`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    File(PathBuf),
    Device(PathBuf),
    Nbd {
        /// `host:port`
        address: String,
        export: String,
    },
    S3 {
        /// `http://host:port`
        endpoint: String,
        bucket: String,
    },
    /// A volume of an Ebb cluster, by name.
    Volume(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error(
        "{0:?} names no target: use file:PATH, /dev/DEVICE, nbd://HOST[:PORT]/EXPORT, http://HOST:PORT/BUCKET (S3) or \
         ebb:VOLUME"
    )]
    Unknown(String),
    #[error("{0:?} names no {1}")]
    Missing(String, &'static str),
    #[error("{0:?}: TLS is not supported; use http:// to an endpoint in your own network")]
    Tls(String),
}

impl FromStr for TargetSpec {
    type Err = SpecError;

    /// ```
    /// use ebb_replay::drive::TargetSpec;
    /// for name in ["file:/var/tmp/x", "/dev/vdb", "nbd://127.0.0.1:10809/disk", "http://127.0.0.1:9000/bucket", "ebb:v1"] {
    ///     assert_eq!(name.parse::<TargetSpec>()?.to_string(), name);
    /// }
    /// # Ok::<(), ebb_replay::drive::SpecError>(())
    /// ```
    fn from_str(text: &str) -> Result<TargetSpec, SpecError> {
        let missing = |what| SpecError::Missing(text.to_owned(), what);
        let some = |part: &str, what| if part.is_empty() { Err(missing(what)) } else { Ok(part.to_owned()) };
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(TargetSpec::File(some(path, "file")?.into()));
        }
        if let Some(volume) = text.strip_prefix("ebb:") {
            return Ok(TargetSpec::Volume(some(volume, "volume")?));
        }
        if let Some(rest) = text.strip_prefix("nbd://") {
            let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
            let host = some(host, "host")?;
            let port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let address = if port { host } else { format!("{host}:{NBD_PORT}") };
            return Ok(TargetSpec::Nbd { address, export: export.to_owned() });
        }
        if text.starts_with("https://") || text.starts_with("nbds://") {
            return Err(SpecError::Tls(text.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("http://") {
            let (host, bucket) = rest.split_once('/').ok_or_else(|| missing("bucket"))?;
            let endpoint = format!("http://{}", some(host, "host")?);
            return Ok(TargetSpec::S3 { endpoint, bucket: some(bucket.trim_end_matches('/'), "bucket")? });
        }
        if text.starts_with("/dev/") {
            return Ok(TargetSpec::Device(text.into()));
        }
        Err(SpecError::Unknown(text.to_owned()))
    }
}

impl fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetSpec::File(path) => write!(f, "file:{}", path.display()),
            TargetSpec::Device(path) => write!(f, "{}", path.display()),
            TargetSpec::Nbd { address, export } => write!(f, "nbd://{address}/{export}"),
            TargetSpec::S3 { endpoint, bucket } => write!(f, "{endpoint}/{bucket}"),
            TargetSpec::Volume(name) => write!(f, "ebb:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_say_too_little_are_refused_with_what_is_missing() {
        let nbd = "nbd://[::1]/".parse::<TargetSpec>();
        assert_eq!(nbd, Ok(TargetSpec::Nbd { address: "[::1]:10809".into(), export: String::new() }));
        for (name, said) in [
            ("file:", "no file"),
            ("ebb:", "no volume"),
            ("nbd:///x", "no host"),
            ("http://h:1", "no bucket"),
            ("http://h:1/", "no bucket"),
            ("https://h/b", "TLS"),
            ("/tmp/x", "file:PATH"),
            ("", "file:PATH"),
        ] {
            let error = name.parse::<TargetSpec>().unwrap_err().to_string();
            assert!(error.contains(said), "{name}: {error}");
        }
    }
}
