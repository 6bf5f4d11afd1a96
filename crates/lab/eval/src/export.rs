//! Results as CSV: a header with the column names, one line per run, empty fields for unknown values.

use super::record::{Record, SeriesRow};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;

/// All records as CSV (RFC 4180, lines end in a line feed).
pub fn csv(records: &[Record]) -> String {
    table(Record::COLUMNS, records)
}

/// The series of the longer runs as CSV: a line per interval.
pub fn series_csv(rows: &[SeriesRow]) -> String {
    table(SeriesRow::COLUMNS, rows)
}

fn table(header: &[&str], rows: &[impl Serialize]) -> String {
    let mut out = header.join(",") + "\n";
    for row in rows {
        let row = serde_json::to_value(row).expect("plain data can be written as JSON");
        for (index, name) in header.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = match &row[name] {
                Value::Null => write!(out, "{comma}"),
                Value::String(text) => write!(out, "{comma}{}", quoted(text)),
                number => write!(out, "{comma}{number}"),
            };
        }
        out.push('\n');
    }
    out
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_a_line_per_interval_with_every_column() {
        let row = SeriesRow {
            campaign: "c".into(),
            target: "t".into(),
            workload: "a,b".into(),
            load_percent: 20.0,
            repetition: 1,
            from_seconds: 60.0,
            seconds: 30.0,
            iops: 5.5,
            mb_per_second: 0.5,
            failed_requests: 2,
        };
        let text = series_csv(&[row]);
        let header = "campaign,target,workload,load_percent,repetition,from_seconds,seconds,iops,mb_per_second,failed_requests";
        assert_eq!(text, format!("{header}\nc,t,\"a,b\",20.0,1,60.0,30.0,5.5,0.5,2\n"));
    }

    #[test]
    fn absent_is_empty_and_text_is_quoted_where_it_must_be() {
        let record = Record {
            campaign: "c".into(),
            load_percent: 33.3,
            iops: Some(0.0),
            error: Some("a, \"b\"\nc".into()),
            ..Record::default()
        };
        let text = csv(&[record]);
        let header: Vec<&str> = text.lines().next().unwrap().split(',').collect();
        assert_eq!(header.len(), Record::COLUMNS.len());
        let row: Vec<&str> = text.split_once('\n').unwrap().1.splitn(Record::COLUMNS.len(), ',').collect();
        let of = |name: &str| row[header.iter().position(|column| *column == name).unwrap()];
        assert_eq!((of("campaign"), of("load_percent"), of("iops"), of("watts")), ("c", "33.3", "0.0", ""));
        assert_eq!(of("error"), "\"a, \"\"b\"\"\nc\"\n");
    }
}
