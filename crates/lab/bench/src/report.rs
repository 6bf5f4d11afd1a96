//! Results of a load test: plain data, as a table for people and as JSON for machines (`docs/json.md`, section
//! "bench").

use super::BenchOptions;
use super::process::Usage;
use ebb_output::Latency;
use ebb_types::Bytes;
use serde::Serialize;
use std::fmt;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    #[default]
    Put,
    Get,
    Delete,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Operation::Put => "PUT",
            Operation::Get => "GET",
            Operation::Delete => "DELETE",
        })
    }
}

/// All cells. Field names are the keys of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    pub endpoint: String,
    /// Processes whose CPU time was counted.
    pub server_processes: u32,
    /// Every byte of the responses was compared, not only length and ends.
    pub full_check: bool,
    pub cells: Vec<CellReport>,
}

/// One operation, one size, one concurrency.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CellReport {
    pub operation: Operation,
    pub size_bytes: u64,
    pub concurrency: u64,
    /// Successful ones.
    pub operations: u64,
    pub failed: u64,
    /// Successful, but the content was not what had been put.
    pub wrong: u64,
    /// The first few failures, as text.
    pub errors: Vec<String>,
    pub seconds: f64,
    pub objects_per_second: f64,
    /// In units of 10^6 bytes; a DELETE moves none.
    pub megabytes_per_second: Option<f64>,
    pub latency: Option<Latency>,
    /// Absent if no server process was given.
    pub server_cpu_seconds_per_1000: Option<f64>,
    pub server_voluntary_switches_per_operation: Option<f64>,
    pub server_involuntary_switches_per_operation: Option<f64>,
    /// Bytes that the servers handed to storage, per operation; data, logs and metadata. Memory file systems do not
    /// count.
    pub server_written_bytes_per_operation: Option<f64>,
    /// Of the load generator itself.
    pub client_cpu_seconds_per_1000: Option<f64>,
}

impl BenchReport {
    pub(super) fn new(options: &BenchOptions) -> BenchReport {
        BenchReport {
            endpoint: options.endpoint.clone(),
            server_processes: options.pids.len() as u32,
            full_check: options.full_check,
            cells: Vec::new(),
        }
    }

    /// No operation failed and every response was correct.
    pub fn passed(&self) -> bool {
        self.cells.iter().all(|cell| cell.failed == 0 && cell.wrong == 0)
    }
}

impl CellReport {
    pub(super) fn new(operation: Operation, size_bytes: u64, concurrency: u64) -> CellReport {
        CellReport { operation, size_bytes, concurrency, ..CellReport::default() }
    }

    pub(super) fn measure(
        &mut self,
        seconds: f64,
        latency: Option<Latency>,
        servers: Option<Usage>,
        own: Usage,
    ) {
        self.seconds = seconds;
        self.latency = latency;
        let Some(latency) = latency else { return };
        self.operations = latency.count;
        let count = latency.count as f64;
        self.objects_per_second = count / seconds;
        if self.operation != Operation::Delete {
            self.megabytes_per_second = Some(count * self.size_bytes as f64 / 1e6 / seconds);
        }
        self.client_cpu_seconds_per_1000 = Some(own.cpu_seconds * 1e3 / count);
        if let Some(servers) = servers {
            self.server_cpu_seconds_per_1000 = Some(servers.cpu_seconds * 1e3 / count);
            self.server_voluntary_switches_per_operation = Some(servers.voluntary_switches as f64 / count);
            self.server_involuntary_switches_per_operation =
                Some(servers.involuntary_switches as f64 / count);
            self.server_written_bytes_per_operation = servers.written_bytes.map(|bytes| bytes as f64 / count);
        }
    }

    /// The table's header line.
    pub fn header() -> &'static str {
        "op          size  conc  objects/s     MB/s  p50 ms  p99 ms  p99.9 ms  max ms  server CPU s/1000  switches/op  written/op  own CPU s/1000  failed"
    }
}

/// One line of the table.
impl fmt::Display for CellReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>, digits: usize| match value {
            Some(value) => format!("{value:.digits$}"),
            None => "-".to_owned(),
        };
        let millis = |pick: fn(&Latency) -> f64| number(self.latency.as_ref().map(pick), 2);
        let switches = self
            .server_voluntary_switches_per_operation
            .zip(self.server_involuntary_switches_per_operation)
            .map(|(voluntary, involuntary)| voluntary + involuntary);
        write!(
            f,
            "{:<6}{:>10}{:>6}{:>11.1}{:>9}{:>8}{:>8}{:>10}{:>8}{:>19}{:>13}{:>12}{:>16}{:>8}",
            self.operation,
            Bytes(self.size_bytes).to_string(),
            self.concurrency,
            self.objects_per_second,
            number(self.megabytes_per_second, 1),
            millis(|l| l.p50_millis),
            millis(|l| l.p99_millis),
            millis(|l| l.p999_millis),
            millis(|l| l.max_millis),
            number(self.server_cpu_seconds_per_1000, 3),
            number(switches, 1),
            self.server_written_bytes_per_operation
                .map_or("-".to_owned(), |bytes| Bytes(bytes.round() as u64).to_string()),
            number(self.client_cpu_seconds_per_1000, 3),
            self.failed + self.wrong
        )
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", CellReport::header())?;
        for cell in &self.cells {
            writeln!(f, "{cell}")?;
        }
        let mut errors = self.cells.iter().flat_map(|cell| &cell.errors);
        errors.try_for_each(|error| writeln!(f, "failed: {error}"))?;
        let wrong: u64 = self.cells.iter().map(|cell| cell.wrong).sum();
        if wrong > 0 {
            writeln!(f, "{wrong} responses differed from what had been put")?;
        }
        Ok(())
    }
}
