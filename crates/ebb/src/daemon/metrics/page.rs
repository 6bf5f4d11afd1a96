//! What one scrape answers, and how it is written down.

use super::names::{Kind, Metric};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// What one scrape answers.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// By name, so that the samples of a metric stand together.
    families: BTreeMap<&'static str, (&'static Metric, Vec<Sample>)>,
}

#[derive(Clone, Debug)]
struct Sample {
    /// In the order of the metric's labels. An empty one counts as absent.
    labels: Vec<String>,
    value: Value,
}

#[derive(Clone, Debug)]
pub enum Value {
    Number(f64),
    /// The sum of what was observed, and how often it was at most each bound and above the one before. The last bound
    /// is infinity.
    Histogram {
        sum: f64,
        buckets: Vec<(f64, u64)>,
    },
}

/// How a page is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    /// Version 0.0.4, for who does not ask for the other.
    Text,
}

impl Format {
    /// By the header `Accept`.
    pub fn accepted(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Text }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => prometheus_text::CONTENT_TYPE,
        }
    }
}

impl Page {
    /// `labels`: the values of the metric's labels, in their order.
    pub fn put(&mut self, metric: &'static Metric, labels: &[&dyn Display], value: f64) {
        self.put_value(metric, labels, Value::Number(value));
    }

    /// Absent: nothing is put.
    pub fn put_known(&mut self, metric: &'static Metric, labels: &[&dyn Display], value: Option<f64>) {
        value.into_iter().for_each(|value| self.put(metric, labels, value));
    }

    pub fn put_value(&mut self, metric: &'static Metric, labels: &[&dyn Display], value: Value) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let labels = labels.iter().map(ToString::to_string).collect();
        let (_, samples) = self.families.entry(metric.name).or_insert_with(|| (metric, Vec::new()));
        samples.push(Sample { labels, value });
    }

    pub fn write(self, format: Format) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        let written = match format {
            Format::OpenMetrics => text::encode(&mut out, &registry),
            Format::Text => prometheus_text::encode(&mut out, &registry),
        };
        written.expect("writing to a string never fails");
        out
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for (metric, samples) in self.families.values() {
            // The library adds the ending of counters.
            let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(name, metric.help, None, kind)?;
            for Sample { labels, value } in samples {
                let labels = metric.labels.iter().copied().zip(labels.iter().map(String::as_str));
                let labels: Vec<(&str, &str)> = labels.filter(|(_, value)| !value.is_empty()).collect();
                let mut one = family.encode_family(&labels)?;
                match (value, metric.kind) {
                    (Value::Number(value), Kind::Counter) => {
                        one.encode_counter(value, None::<&Exemplar<Vec<(&str, &str)>, f64>>)?;
                    }
                    (Value::Number(value), _) => one.encode_gauge(value)?,
                    (Value::Histogram { sum, buckets }, _) => {
                        let count = buckets.iter().map(|(_, count)| count).sum();
                        one.encode_histogram::<Vec<(&str, &str)>>(*sum, count, buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::names;
    use super::*;

    #[test]
    fn a_page_has_types_labels_and_no_empty_ones() {
        let mut page = Page::default();
        page.put(names::SERVER_STATE, &[&3, &"1", &"default", &"asleep", &"off"], 1.0);
        page.put(names::NOTICES, &[&"shift"], 2.0);
        page.put(names::SERVER_STATE, &[&4, &"2", &"a \"b\"", &"awake", &""], 1.0);
        page.put_known(names::FORECAST, &[], None);
        let buckets = vec![(0.5, 1), (f64::INFINITY, 2)];
        page.put_value(names::S3_DURATION, &[&"GET"], Value::Histogram { sum: 4.5, buckets });
        let text = page.clone().write(Format::OpenMetrics);
        for line in [
            "# TYPE ebb_notices counter",
            "ebb_notices_total{kind=\"shift\"} 2.0",
            "# TYPE ebb_server_state gauge",
            "ebb_server_state{server=\"3\",rack=\"1\",pool=\"default\",state=\"asleep\",depth=\"off\"} 1.0",
            "ebb_server_state{server=\"4\",rack=\"2\",pool=\"a \\\"b\\\"\",state=\"awake\"} 1.0",
            "ebb_s3_request_duration_seconds_bucket{le=\"+Inf\",method=\"GET\"} 3",
            "ebb_s3_request_duration_seconds_count{method=\"GET\"} 3",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("ebb_forecast"), "absent is not zero");
        let text = page.write(Format::Text);
        assert!(text.contains("# TYPE ebb_notices_total counter") && !text.contains("# EOF"), "{text}");
        assert_eq!(Format::accepted("application/openmetrics-text;version=1.0.0,*/*"), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Text);
    }
}
