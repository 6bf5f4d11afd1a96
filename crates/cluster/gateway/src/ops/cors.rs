//! Cross-origin requests: which web pages may use a bucket from a browser.
//!
//! The browser first sends a request without a signature (OPTIONS), and reads the headers of the response. They grant
//! no rights: the request itself still needs its signature.

use crate::bytes::backend::Backend;
use crate::ops::bucket::Buckets;
use ebb_types::BucketSetting;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use s3s::dto::{CORSConfiguration, CORSRule};
use s3s::{S3Error, S3Result, s3_error};
use serde::{Deserialize, Serialize};

/// Most rules per bucket, as in S3.
const RULES_MAX: usize = 100;
const METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];

/// A rule as stored. `*` in an origin or a header stands for any text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    id: Option<String>,
    origins: Vec<String>,
    methods: Vec<String>,
    headers: Vec<String>,
    expose: Vec<String>,
    max_age_seconds: Option<i32>,
}

fn kept(rule: CORSRule) -> S3Result<Rule> {
    if let Some(other) = rule.allowed_methods.iter().find(|method| !METHODS.contains(&method.as_str())) {
        return Err(s3_error!(InvalidRequest, "{other} is not one of {METHODS:?}"));
    }
    let patterns = rule.allowed_origins.iter().chain(rule.allowed_headers.iter().flatten());
    if let Some(bad) = patterns.clone().find(|pattern| pattern.matches('*').count() > 1) {
        return Err(s3_error!(InvalidRequest, "{bad} has more than one *"));
    }
    if rule.allowed_origins.is_empty() || rule.allowed_methods.is_empty() {
        return Err(s3_error!(MalformedXML, "a rule needs an origin and a method"));
    }
    Ok(Rule {
        id: rule.id,
        origins: rule.allowed_origins,
        methods: rule.allowed_methods,
        headers: rule.allowed_headers.unwrap_or_default(),
        expose: rule.expose_headers.unwrap_or_default(),
        max_age_seconds: rule.max_age_seconds,
    })
}

fn shown(rule: Rule) -> CORSRule {
    CORSRule {
        id: rule.id,
        allowed_origins: rule.origins,
        allowed_methods: rule.methods,
        allowed_headers: Some(rule.headers).filter(|headers| !headers.is_empty()),
        expose_headers: Some(rule.expose).filter(|headers| !headers.is_empty()),
        max_age_seconds: rule.max_age_seconds,
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, end)) => {
            text.len() >= start.len() + end.len() && text.starts_with(start) && text.ends_with(end)
        }
    }
}

/// A browser's description of a request that it is about to send, or sends.
pub struct Asked<'a> {
    pub origin: &'a str,
    pub method: &'a str,
    /// Header names, separated by commas; only in a preflight request.
    pub headers: &'a str,
}

impl Rule {
    fn allows(&self, asked: &Asked<'_>) -> bool {
        let mut names =
            asked.headers.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|n| !n.is_empty());
        self.origins.iter().any(|pattern| matches(pattern, asked.origin))
            && self.methods.iter().any(|method| method == asked.method)
            && names.all(|name| self.headers.iter().any(|p| matches(&p.to_ascii_lowercase(), &name)))
    }
}

/// The headers that let the page read the response; `None`: no rule allows it.
pub fn answer(rules: &[Rule], asked: &Asked<'_>) -> Option<HeaderMap> {
    let rule = rules.iter().find(|rule| rule.allows(asked))?;
    let mut headers = HeaderMap::new();
    let mut add = |name: HeaderName, value: String| {
        if let Ok(value) = HeaderValue::try_from(value).map(|value| headers.insert(name, value)) {
            drop(value);
        }
    };
    if rule.origins.iter().any(|origin| origin == "*") {
        add(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*".to_owned());
    } else {
        add(header::ACCESS_CONTROL_ALLOW_ORIGIN, asked.origin.to_owned());
        add(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true".to_owned());
    }
    add(header::ACCESS_CONTROL_ALLOW_METHODS, rule.methods.join(", "));
    if !asked.headers.is_empty() {
        add(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.headers.to_ascii_lowercase());
    }
    if !rule.expose.is_empty() {
        add(header::ACCESS_CONTROL_EXPOSE_HEADERS, rule.expose.join(", "));
    }
    if let Some(seconds) = rule.max_age_seconds {
        add(header::ACCESS_CONTROL_MAX_AGE, seconds.to_string());
    }
    add(header::VARY, "Origin, Access-Control-Request-Headers, Access-Control-Request-Method".to_owned());
    Some(headers)
}

async fn stored<B: Backend>(buckets: &Buckets<B>, bucket: String) -> S3Result<Vec<Rule>> {
    let Some(text) = buckets.setting(bucket, BucketSetting::Cors).await? else { return Ok(Vec::new()) };
    serde_json::from_str(&text).map_err(S3Error::internal_error)
}

/// The bucket's rules.
pub async fn rules<B: Backend>(buckets: &Buckets<B>, bucket: String) -> S3Result<Vec<CORSRule>> {
    let rules = stored(buckets, bucket).await?;
    if rules.is_empty() {
        return Err(s3_error!(NoSuchCORSConfiguration, "the bucket has no CORS configuration"));
    }
    Ok(rules.into_iter().map(shown).collect())
}

pub async fn set<B: Backend>(
    buckets: &Buckets<B>,
    bucket: String,
    configuration: CORSConfiguration,
) -> S3Result<()> {
    if configuration.cors_rules.is_empty() || configuration.cors_rules.len() > RULES_MAX {
        return Err(s3_error!(MalformedXML, "a CORS configuration has 1 to {RULES_MAX} rules"));
    }
    let rules: Vec<Rule> = configuration.cors_rules.into_iter().map(kept).collect::<S3Result<_>>()?;
    let text = serde_json::to_string(&rules).map_err(S3Error::internal_error)?;
    buckets.set(bucket, BucketSetting::Cors, Some(text)).await
}

/// Like [`answer`]; also `None` if the bucket cannot be read: a client without a key learns nothing more.
pub async fn answer_of<B: Backend>(
    buckets: &Buckets<B>,
    bucket: &str,
    asked: &Asked<'_>,
) -> Option<HeaderMap> {
    answer(&stored(buckets, bucket.to_owned()).await.ok()?, asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gets_what_a_rule_allows_it() {
        let rule = |origins: &[&str], methods: &[&str], headers: &[&str]| CORSRule {
            allowed_origins: origins.iter().map(|s| s.to_string()).collect(),
            allowed_methods: methods.iter().map(|s| s.to_string()).collect(),
            allowed_headers: Some(headers.iter().map(|s| s.to_string()).collect()),
            expose_headers: Some(vec!["ETag".into()]),
            id: None,
            max_age_seconds: Some(60),
        };
        let rules = [
            kept(rule(&["https://*.example.org"], &["GET", "PUT"], &["x-amz-*", "Content-Type"])).unwrap(),
            kept(rule(&["*"], &["GET"], &[])).unwrap(),
        ];
        let origin = |origin, method, headers| {
            let headers = answer(&rules, &Asked { origin, method, headers })?;
            Some(headers[header::ACCESS_CONTROL_ALLOW_ORIGIN].to_str().unwrap().to_owned())
        };
        let own = "https://www.example.org";
        assert_eq!(origin(own, "PUT", "X-Amz-Date, content-type").as_deref(), Some(own));
        assert_eq!(origin(own, "PUT", "authorization"), None);
        assert_eq!(origin(own, "DELETE", ""), None);
        assert_eq!(origin("https://evil.org", "PUT", ""), None);
        assert_eq!(origin("https://evil.org", "GET", "").as_deref(), Some("*"));
        assert!(kept(rule(&["https://*.*"], &["GET"], &[])).is_err());
        assert!(kept(rule(&["*"], &["OPTIONS"], &[])).is_err());
    }
}
