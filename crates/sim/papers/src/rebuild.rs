//! Figure 12: how fast a lost server is rebuilt, by the number of servers that write and the size of chunks.

use super::effort::Effort;
use super::findings::{Experiment, PaperError, Table};
use super::side_by_side::side_by_side;
use super::testbed::{MB, REPLICAS, setup};
use ebb_output::{Axis, Chart, Deviations, Mark, Series};
use ebb_sim::request::{Copied, DiskModel, SimError, copy_chunks, rebuild, whole_chunks};
use ebb_types::Bytes;

const CHUNKS: [(&str, u32); 2] = [("1 MB", 1 << 20), ("64 MB", 64 << 20)];
/// The cluster in which the copying is compared with the whole protocol.
const COMPARED_SERVERS: u16 = 9;
/// Where one of the paper's 15 servers is lost. [Sierra §3.3]
const PAPERS_WRITERS: f64 = 4.0;

/// The rate of the copying alone, by that of the whole protocol, for the same chunks.
pub(super) fn compared(chunk_bytes: u32, bytes: u64, seed: u64) -> Result<f64, SimError> {
    let setup = setup(COMPARED_SERVERS, COMPARED_SERVERS, REPLICAS, chunk_bytes, seed);
    let whole = rebuild(&setup, bytes)?;
    let alone = copy_chunks(&setup, &whole.chunks)?;
    Ok(whole.took.as_secs_f64() / alone.took.as_secs_f64())
}

pub(super) fn rates(
    effort: &Effort,
    seed: u64,
    tell: &mut dyn FnMut(&str, f64),
) -> Result<Experiment, PaperError> {
    let (bytes, sizes, compared_bytes) =
        (effort.rebuild_bytes, &effort.rebuild_servers, effort.compared_bytes);
    let disk = DiskModel::hdd_2009();
    let mut found = Experiment::new(
        "Figure 12",
        "Rebuild rate by servers that write",
        format!(
            "A server with {} is lost, and its gear group takes over its chunk groups: N/r - 1 servers write, all read. Every server \
             has a rack of its own: racks would bind the choice. Fetch by fetch on the modelled disks ({}: {}) and a modelled gigabit, \
             without the protocol's messages; the last rows compare that with a whole cluster's rebuild of the same chunks, {} a server in \
             {COMPARED_SERVERS}. The paper draws its values; by its text the rate grows linearly with the servers that write, and chunks of 64 MB are \
             substantially faster than chunks of 1 MB. A chunk group is rebuilt by one server, so that with few chunks the server \
             that gets the most decides.",
            Bytes(bytes),
            disk.name(),
            disk.source(),
            Bytes(compared_bytes)
        ),
    );
    let jobs: Vec<(usize, u16)> =
        (0..CHUNKS.len()).flat_map(|kind| sizes.iter().map(move |n| (kind, *n))).collect();
    let run = |(kind, servers): &(usize, u16)| {
        let setup = setup(*servers, *servers, REPLICAS, CHUNKS[*kind].1, seed);
        copy_chunks(&setup, &whole_chunks(&setup, bytes)?)
    };
    let copied = side_by_side(&jobs, run, |share| tell("rebuild (Figure 12)", share))?;
    let copied: Vec<((usize, u16), Copied)> = jobs.into_iter().zip(copied).collect();
    let mut chart =
        Chart::new("Rebuild rate", Axis::new("servers that write").from(0.0), Axis::new("MB per second"));
    let mut means = Vec::new();
    for (kind, (name, _)) in CHUNKS.into_iter().enumerate() {
        let of_kind: Vec<&Copied> =
            copied.iter().filter(|((k, _), _)| *k == kind).map(|(_, done)| done).collect();
        let points: Vec<(f64, f64)> =
            of_kind.iter().map(|done| (done.write_servers as f64, rate(done))).collect();
        growth_rows(&mut found, name, &points);
        means.push(points.iter().map(|(writers, rate)| rate / writers).sum::<f64>() / points.len() as f64);
        chart = chart.with(Series::new(format!("chunks of {name}"), Mark::Line, points));
    }
    if let [small, large] = means[..] {
        found.ours("chunks of 64 MB, times as fast as of 1 MB", "", large / small);
    }
    tell("rebuild with the whole protocol (Figure 12)", 0.0);
    for (name, chunk_bytes) in CHUNKS {
        let ratio = compared(chunk_bytes, compared_bytes, seed)?;
        found.ours(format!("chunks of {name}: copying alone, by the whole protocol"), "", ratio);
    }
    found.charts.push(chart);
    found.tables.push(table(&copied));
    Ok(found)
}

/// The rates by servers that write, and how near they come to growing as these do.
fn growth_rows(found: &mut Experiment, name: &str, points: &[(f64, f64)]) {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    found.ours(format!("chunks of {name}, {} server writes", first.0), "MB/s", first.1);
    found.ours(format!("chunks of {name}, {} servers write", last.0), "MB/s", last.1);
    let growth = |to: &(f64, f64)| (to.1 / first.1) / (to.0 / first.0);
    found.row(format!("chunks of {name}: growth, by that of the servers"), "", Some(1.0), Some(growth(last)));
    let papers = points.iter().find(|(writers, _)| *writers == PAPERS_WRITERS);
    let what = format!("chunks of {name}: growth to {PAPERS_WRITERS} servers, by that of the servers");
    found.row(what, "", Some(1.0), papers.map(growth));
    let what = format!("chunks of {name}: R² of the line through the rates");
    found.row(what, "", Some(1.0), Deviations::of(points).r_squared());
}

fn rate(done: &Copied) -> f64 {
    done.bytes as f64 / MB / done.took.as_secs_f64()
}

fn table(copied: &[((usize, u16), Copied)]) -> Table {
    let header = ["servers", "servers that write", "chunk", "data", "took", "rate"];
    let row = |((kind, servers), done): &((usize, u16), Copied)| {
        vec![
            servers.to_string(),
            done.write_servers.to_string(),
            CHUNKS[*kind].0.to_owned(),
            Bytes(done.bytes).to_string(),
            format!("{:.2} h", done.took.as_secs_f64() / 3600.0),
            format!("{:.1} MB/s", rate(done)),
        ]
    };
    Table::new("Modelled rebuilds", header, copied.iter().map(row).collect())
}
