//! Results that depend on the layout alone: Table 1, and the size of the metadata.

use super::findings::{Experiment, PaperError, Table};
use super::testbed::REPLICAS;
use ebb_gear::{Layout, Scheme, Server, layout, power_down_count, rebuild_parallelism};
use ebb_meta::{Bootstrap, Command, Reply, State};
use ebb_report::{Axis, Chart, Mark, Series};
use ebb_types::{ClusterParams, RackId, ServerId};

/// The search for the largest set of servers that can sleep (a set cover) is exact up to this size.
const EXACT: u16 = 15;
/// Racks of the testbed.
const RACKS: u16 = 3;
/// Chunk groups per server: enough that any three servers share one, as if each chunk were placed separately.
const GROUPS_PER_SERVER: u32 = 512;

fn lay_out(servers: u16, racks: u16, groups: u32, seed: u64, scheme: Scheme) -> Result<Layout, PaperError> {
    let server = |n: u16| Server { id: ServerId(n), rack: RackId(n % racks) };
    let servers: Vec<Server> = (0..servers).map(server).collect();
    Ok(layout(&servers, REPLICAS, groups, seed, scheme)?)
}

/// Found by search over the chunk groups, even if the construction implies it.
fn asleep(layout: &Layout, gear: u8) -> f64 {
    let searched = Layout { scheme: Scheme::NaiveRandom, ..layout.clone() };
    power_down_count(&searched, gear) as f64
}

/// The mean over all servers that may be lost.
fn parallelism(layout: &Layout) -> f64 {
    let all: usize = layout.servers.keys().map(|lost| rebuild_parallelism(layout, *lost)).sum();
    all as f64 / layout.servers.len() as f64
}

/// Name, layout, and the paper's formulas for the servers asleep in a gear and for the write parallelism of a rebuild.
type Kind = (&'static str, Scheme, fn(f64, f64) -> f64, fn(f64) -> f64);

const R: f64 = REPLICAS as f64;
const KINDS: [Kind; 3] = [
    ("naive random", Scheme::NaiveRandom, |_, g| R - g, |n| n),
    ("naive grouping", Scheme::NaiveGrouped, |n, g| n * (R - g) / R, |_| 1.0),
    ("power-aware grouping", Scheme::Rotated, |n, g| n * (R - g) / R, |n| n / R),
];

pub(super) fn power_down_and_rebuild(seed: u64) -> Result<Experiment, PaperError> {
    let mut found = Experiment::new(
        "Table 1",
        "Servers that can sleep, and servers that rebuild a lost one",
        format!(
            "Ebb's layouts of {EXACT} servers, {REPLICAS} copies, {GROUPS_PER_SERVER} chunk groups per server, every server in a \
             rack of its own, so that racks do not bind, as in the paper's table. Servers that can sleep are found by an exact search over the chunk groups, also for power-aware grouping, \
             where they follow from the construction. The paper's rebuild parallelism counts the lost server too; here it \
             is the number of other servers that write. Racks bind both: with as many racks as copies, a lost server's data may \
             only go to its own rack, where its gear group has few servers."
        ),
    );
    let mut sleepers = Chart::new(
        "Servers that can sleep in gear 1, by search",
        Axis::new("servers"),
        Axis::new("servers asleep"),
    );
    let mut writers = Chart::new(
        "Servers that write when one is rebuilt",
        Axis::new("servers"),
        Axis::new("servers that write"),
    );
    let r = usize::from(REPLICAS);
    let sizes = (2 * u16::from(REPLICAS)..=EXACT).step_by(r);
    for (name, scheme, paper_asleep, paper_rebuild) in KINDS {
        let (mut down, mut write) = (Vec::new(), Vec::new());
        for n in sizes.clone() {
            let layout = lay_out(n, n, GROUPS_PER_SERVER * u32::from(n), seed, scheme)?;
            down.push((f64::from(n), asleep(&layout, 1)));
            write.push((f64::from(n), parallelism(&layout)));
            if n == EXACT {
                for gear in 1..REPLICAS {
                    let paper = paper_asleep(f64::from(n), f64::from(gear));
                    let what = format!("{name}: servers asleep in gear {gear}");
                    found.row(what, "", Some(paper), Some(asleep(&layout, gear)));
                }
                let paper = paper_rebuild(f64::from(n));
                found.row(
                    format!("{name}: servers that rebuild one"),
                    "",
                    Some(paper),
                    Some(parallelism(&layout)),
                );
            }
        }
        sleepers = sleepers.with(Series::new(name, Mark::Line, down));
        writers = writers.with(Series::new(name, Mark::Line, write));
    }
    let testbed = lay_out(EXACT, RACKS, GROUPS_PER_SERVER * u32::from(EXACT), seed, Scheme::Rotated)?;
    let what = format!("power-aware grouping in {RACKS} racks: servers that rebuild one");
    found.row(what, "", None, Some(parallelism(&testbed)));
    found.charts = vec![sleepers, writers];
    Ok(found)
}

/// The paper's testbed: chunk groups and chunks of the up-shift experiment, and its bytes of state. [Sierra §4.5]
const PAPER_GROUPS: u32 = 320;
const PAPER_CHUNKS: f64 = 4.6e6;
const PAPER_PER_CHUNK: f64 = 23.0;
const PAPER_PER_GROUP: f64 = 320.0 * 1024.0;
const TESTBED: u16 = 15;

/// Bytes of a snapshot of the real metadata state with `groups` chunk groups.
fn snapshot_bytes(groups: u32, seed: u64) -> Result<f64, PaperError> {
    let layout = lay_out(TESTBED, RACKS, groups, seed, Scheme::Rotated)?;
    let params = ClusterParams {
        cluster: 1,
        instance: 1,
        chunk_bytes: 1 << 20,
        replicas: REPLICAS,
        groups: layout.groups.len() as u32,
        lease_millis: 2000,
    };
    let address = |id: ServerId, rack: RackId| format!("10.0.{}.{}:7200", rack.0, id.0);
    let bootstrap = Bootstrap::of_layout(params, &layout, ebb_types::Schedule::default(), address);
    let mut state = State::default();
    match state.apply(&Command::Init(bootstrap)) {
        Reply::Done => {}
        other => return Err(PaperError::Meta(format!("{other:?}"))),
    }
    let bytes = postcard::to_stdvec(&state).map_err(|error| PaperError::Meta(error.to_string()))?;
    Ok(bytes.len() as f64)
}

pub(super) fn metadata_size(seed: u64) -> Result<Experiment, PaperError> {
    let mut found = Experiment::new(
        "§4.5",
        "Metadata per chunk and per chunk group",
        format!(
            "The snapshot of Ebb's real metadata state with {TESTBED} servers and {PAPER_GROUPS} chunk groups, and with the \
             paper's 4.6 million chunks: Ebb's state has nothing per chunk, so more chunks cost nothing. The paper's state in \
             memory was 100 MB; Ebb's is the encoded snapshot, which is also what is kept on disk and sent. Objects with \
             names cost more, in both."
        ),
    );
    let counts: Vec<u32> = (0..6).map(|power| PAPER_GROUPS << power).collect();
    let sizes: Vec<f64> = counts.iter().map(|n| snapshot_bytes(*n, seed)).collect::<Result<_, _>>()?;
    let last = counts.len() - 1;
    let per_group = (sizes[last] - sizes[0]) / f64::from(counts[last] - counts[0]);
    let paper = PAPER_PER_CHUNK * PAPER_CHUNKS;
    found.row("whole state, bytes", "B", Some(paper), Some(sizes[0]));
    found.row("per chunk group", "B", Some(PAPER_PER_GROUP), Some(sizes[0] / f64::from(PAPER_GROUPS)));
    found.row("each further chunk group", "B", None, Some(per_group));
    found.row("per chunk, of 4.6 million", "B", Some(PAPER_PER_CHUNK), Some(sizes[0] / PAPER_CHUNKS));
    found.tables.push(Table {
        caption: "Snapshot by number of chunk groups".into(),
        header: vec!["chunk groups".into(), "bytes".into(), "bytes per group".into()],
        rows: counts
            .iter()
            .zip(&sizes)
            .map(|(n, size)| vec![n.to_string(), size.to_string(), format!("{:.1}", size / f64::from(*n))])
            .collect(),
    });
    found.charts.push(
        Chart::new("Metadata state", Axis::new("chunk groups").log(), Axis::new("snapshot").bytes()).with(
            Series::new(
                "snapshot",
                Mark::Line,
                counts.iter().zip(&sizes).map(|(n, size)| (f64::from(*n), *size)),
            ),
        ),
    );
    Ok(found)
}
