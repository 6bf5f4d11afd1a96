//! Prometheus: the answer to an instant query, one channel per series.
//!
//! The channels are the series returned by the query when the meter is opened; one that is missing later is absent. An
//! answer is as old as the last scrape.

use super::command::quantity;
use super::http::{self, Http};
use super::spec::Spec;
use super::{Channel, Meter, MeterError, Opened, Quantity};
use ebb_power::Machine;
use serde_json::Value;

struct Prometheus {
    http: Http,
    api: String,
    query: String,
    channels: Vec<Channel>,
}

/// `{instance="a:9100",sensor="psu"}` without braces; `result` for a series without labels.
fn series_name(metric: Option<&Value>) -> String {
    let labels = metric.and_then(Value::as_object);
    let label = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    let labels: Vec<String> = labels.into_iter().flatten().map(label).collect();
    if labels.is_empty() { "result".into() } else { labels.join(",") }
}

/// Name and value of every series in an answer; a non-finite value is absent.
fn series(answer: &Value) -> Result<Vec<(String, Option<f64>)>, String> {
    if answer["status"] != "success" {
        return Err(answer["error"].as_str().unwrap_or("it does not say success").to_string());
    }
    let value = |pair: &Value| pair[1].as_str()?.parse::<f64>().ok().filter(|value| value.is_finite());
    let result = &answer["data"]["result"];
    match answer["data"]["resultType"].as_str() {
        Some("scalar") => Ok(vec![("result".into(), value(result))]),
        Some("vector") => {
            let one = |series: &Value| (series_name(series.get("metric")), value(&series["value"]));
            Ok(result.as_array().into_iter().flatten().map(one).collect())
        }
        other => Err(format!("its result is {other:?}: the query must give an instant vector or a scalar")),
    }
}

fn ask(http: &Http, api: &str, query: &str) -> Result<Vec<(String, Option<f64>)>, MeterError> {
    let answer = http.get(api, Some(("query", query)))?;
    series(&answer).map_err(|why| MeterError::Http {
        url: api.into(),
        why: format!("the answer to {query:?} is of no use: {why}"),
        remedy: "try the query in Prometheus' own page".into(),
    })
}

pub(super) fn open(_: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let url = http::parse(&spec.needed("the server and the query: http://host:9090?QUERY")?, spec)?;
    let query = url.query.clone().filter(|query| !query.is_empty());
    let query = query.ok_or_else(|| spec.wrong("the query is missing: http://host:9090?QUERY"))?;
    let quantity: Quantity = quantity(spec)?;
    let http = Http::open(&url, spec)?;
    let api = format!("{}{}/api/v1/query", url.origin, url.path.trim_end_matches('/'));
    let sees = format!("a series of {query}, as old as its last scrape");
    let channel = |(name, _): (String, _)| Channel::measured(name, quantity, &sees);
    let channels: Vec<Channel> = ask(&http, &api, &query)?.into_iter().map(channel).collect();
    if channels.is_empty() {
        return Err(spec.unavailable(
            "the query answers no series",
            "check the query, and that Prometheus scrapes the machine's exporter",
        ));
    }
    Ok((channels.clone(), Box::new(Prometheus { http, api, query, channels })))
}

impl Meter for Prometheus {
    fn read(&mut self, absent: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        let now = ask(&self.http, &self.api, &self.query)?;
        let reading = |channel: &Channel| {
            let found = now.iter().find(|(name, _)| *name == channel.name);
            let value = found.and_then(|(_, value)| *value);
            if value.is_none() {
                let what = if found.is_some() { "has no finite value" } else { "is no longer in the answer" };
                *absent = Some(format!("the series {} of {} {what}", channel.name, self.query));
            }
            value
        };
        Ok(self.channels.iter().map(reading).collect())
    }
}
