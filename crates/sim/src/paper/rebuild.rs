//! Figure 12: how fast a lost server is rebuilt, by the number of servers that write and the size of chunks.

use super::findings::{Experiment, PaperError, Table};
use super::testbed::REPLICAS;
use crate::request::{DiskModel, NetworkModel, Setup, rebuild};
use ebb_report::{Axis, Chart, Mark, Series};
use ebb_types::Bytes;

const CHUNKS: [(&str, u32); 2] = [("1 MiB", 1 << 20), ("64 MiB", 64 << 20)];
const MB: f64 = 1024.0 * 1024.0;

pub(super) fn rates(
    bytes: u64,
    sizes: &[u16],
    seed: u64,
    tell: &mut dyn FnMut(&str, f64),
) -> Result<Experiment, PaperError> {
    let disk = DiskModel::hdd_2009();
    let mut found = Experiment::new(
        "Figure 12",
        "Rebuild rate by servers that write",
        format!(
            "A server with about {} (the paper's: 200 GB) is lost, and its gear group takes over its chunk groups: N/r - 1 \
             servers write, all read. Every server has a rack of its own: racks would bind the choice. With few chunks the \
             server that gets the most decides. Disks are modelled ({}: {}), with the cost of a new file per chunk; the network is a \
             modelled gigabit. The paper draws its values; by its text the rate grows linearly with the servers that write, \
             and chunks of 64 MB are substantially faster than chunks of 1 MB.",
            Bytes(bytes),
            disk.name(),
            disk.source()
        ),
    );
    let header = ["servers", "servers that write", "chunk", "data", "took", "rate"];
    let mut table = Table {
        caption: "Modelled rebuilds".into(),
        header: header.map(str::to_owned).to_vec(),
        rows: Vec::new(),
    };
    let mut chart =
        Chart::new("Rebuild rate", Axis::new("servers that write").from(0.0), Axis::new("MB per second"));
    let runs = sizes.len() * CHUNKS.len();
    for (kind, (name, chunk_bytes)) in CHUNKS.into_iter().enumerate() {
        let mut points = Vec::new();
        for (at, servers) in sizes.iter().copied().enumerate() {
            tell("rebuild (Figure 12)", (kind * sizes.len() + at) as f64 / runs as f64);
            let setup = Setup {
                servers,
                racks: servers,
                replicas: REPLICAS,
                chunk_bytes,
                disk: disk.clone(),
                network: NetworkModel::gigabit(),
                seed,
                ..Setup::default()
            };
            let done = rebuild(&setup, bytes)?;
            let rate = done.bytes as f64 / MB / done.took.as_secs_f64();
            points.push((done.write_servers as f64, rate));
            table.rows.push(vec![
                servers.to_string(),
                done.write_servers.to_string(),
                name.to_owned(),
                Bytes(done.bytes).to_string(),
                format!("{:.1} s", done.took.as_secs_f64()),
                format!("{rate:.1} MB/s"),
            ]);
        }
        let (Some(&first), Some(&last)) = (points.first(), points.last()) else { continue };
        found.row(format!("chunks of {name}, {} server writes", first.0), "MB/s", None, Some(first.1));
        found.row(format!("chunks of {name}, {} servers write", last.0), "MB/s", None, Some(last.1));
        let growth = (last.1 / first.1) / (last.0 / first.0);
        found.row(format!("chunks of {name}: growth, by that of the servers"), "", Some(1.0), Some(growth));
        chart = chart.with(Series::new(format!("chunks of {name}"), Mark::Line, points));
    }
    found.charts.push(chart);
    found.tables.push(table);
    Ok(found)
}
