//! Tables 4 and 5: what one server, and nine servers with nine clients, reach in a closed loop.

use super::findings::{Experiment, PaperError, Table};
use super::side_by_side::side_by_side;
use super::testbed::{MB, REPLICAS, setup};
use ebb_output::{Axis, Chart, Mark, Series};
use ebb_sim::request::{DiskModel, Pace, Work, closed};
use ebb_trace::{Kind, Request};
use ebb_types::{Bytes, Random};
use std::time::Duration;

/// How much work is done.
#[derive(Clone, Copy, Debug)]
pub struct ClientEffort {
    /// One client's file.
    pub file_bytes: u64,
    /// Random accesses of one client, of each kind.
    pub accesses: u64,
}

impl ClientEffort {
    /// One client's, as in the paper. [Sierra §4.6]
    pub const PAPER: ClientEffort = ClientEffort { file_bytes: 2_457 << 20, accesses: 100_000 };
    /// Of each of nine clients: rates are steady long before the paper's are through.
    pub const EACH: ClientEffort = ClientEffort { file_bytes: 128 << 20, accesses: 4_000 };
}

const OUTSTANDING: usize = 64;
const STREAM_BYTES: u32 = 64 << 10;
/// The paper does not give the size of its random accesses.
const RANDOM_BYTES: u32 = 4 << 10;
const CLIENTS: u16 = 9;

/// What is measured, in this order: the first creates the files.
const KINDS: [&str; 4] = ["streaming writes", "streaming reads", "random writes", "random reads"];
/// MB/s, MB/s, IOPS, IOPS: of one server, and of nine with nine clients, with what the paper calls ideal.
const PAPER_ONE: [f64; 4] = [82.0, 82.0, 179.0, 137.0];
const PAPER_NINE: [f64; 4] = [96.0, 348.0, 465.0, 1152.0];
const PAPER_IDEAL: [f64; 4] = [246.0, 738.0, 537.0, 1233.0];

fn unit(kind: usize) -> &'static str {
    if kind < 2 { "MB/s" } else { "IOPS" }
}

fn rate(kind: usize, pace: &Pace) -> f64 {
    if kind < 2 { pace.bytes_per_second / MB } else { pace.requests_per_second }
}

/// What the disks sustain: of writes, until everything is in its chunk file.
fn sustained(kind: usize, pace: &Pace) -> f64 {
    let share = pace.took.as_secs_f64() / pace.settled.as_secs_f64();
    if writes(kind) { rate(kind, pace) * share } else { rate(kind, pace) }
}

fn writes(kind: usize) -> bool {
    kind.is_multiple_of(2)
}

/// Each client's work on a file of its own.
fn works(clients: u16, effort: ClientEffort, seed: u64) -> Vec<Work> {
    let mut random = Random::new(seed ^ 0x7ab4);
    let blocks = effort.file_bytes / u64::from(RANDOM_BYTES);
    let request = |client: u16, offset: u64, len: u32, kind: Kind| Request {
        at: Duration::ZERO,
        device: client.into(),
        offset,
        len,
        kind,
    };
    let mut work = |kind: Kind, streams: bool| {
        let mut of_client = |client: u16| -> Vec<Request> {
            if streams {
                let offsets =
                    (0..effort.file_bytes / u64::from(STREAM_BYTES)).map(|n| n * u64::from(STREAM_BYTES));
                return offsets.map(|offset| request(client, offset, STREAM_BYTES, kind)).collect();
            }
            let offsets = (0..effort.accesses).map(|_| random.below(blocks) * u64::from(RANDOM_BYTES));
            offsets.map(|offset| request(client, offset, RANDOM_BYTES, kind)).collect()
        };
        Work { clients: (0..clients).map(&mut of_client).collect(), outstanding: OUTSTANDING }
    };
    vec![work(Kind::Write, true), work(Kind::Read, true), work(Kind::Write, false), work(Kind::Read, false)]
}

/// The paces of one server with chunks of 1 MiB, its streams with chunks of 64 MiB, and the paces of nine.
pub(super) struct Paces {
    small: Vec<Pace>,
    large: Vec<Pace>,
    nine: Vec<Pace>,
}

/// `one`: of a single client; `each`: of each of nine.
pub(super) fn run(one: ClientEffort, each: ClientEffort, seed: u64) -> Result<Paces, PaperError> {
    let mut streams = works(1, one, seed);
    streams.truncate(2);
    let jobs = [
        (setup(1, 1, 1, 1 << 20, seed), works(1, one, seed)),
        (setup(CLIENTS, REPLICAS.into(), REPLICAS, 1 << 20, seed), works(CLIENTS, each, seed)),
        (setup(1, 1, 1, 64 << 20, seed), streams),
    ];
    let mut paces = side_by_side(&jobs, |(setup, works)| closed(setup, works), |_| ())?.into_iter();
    let mut next = || paces.next().expect("there is one of each job");
    Ok(Paces { small: next(), nine: next(), large: next() })
}

/// Table 4.
pub(super) fn one_server(paces: &Paces, effort: ClientEffort) -> Experiment {
    let disk = DiskModel::hdd_2009();
    let mut found = Experiment::new(
        "Table 4",
        "One server",
        format!(
            "One client on one server without further copies, request by request: a file of {} is written and read in requests of \
             64 KB, then {} random accesses of 4 KB each way (the paper does not give their size), always with {OUTSTANDING} \
             outstanding. Input: the disk model ({}: {}), whose 82 MB/s is this table's, and the network. Result: everything else, \
             with the store's own accesses. Nothing is cached. Writes of less than 128 KB are durable in the log first and go to their \
             chunk files later, on the same disk: a stream of them is written twice, while the paper's server writes files in place, \
             and random ones are a stream at first. Both are shown: until the last acknowledgement, and until everything is in place. \
             Chunk files lie anywhere on the disk: with chunks of 1 MB (the paper's) a stream that reads moves the arm for every MB, \
             which takes as long as reading it, and one that writes moves it three times more, for the new file's directory, journal \
             and metadata page; with 64 MB hardly ever. The paper's 82 MB/s leave no time for that: its files must have lain side by side.",
            Bytes(effort.file_bytes),
            effort.accesses,
            disk.name(),
            disk.source()
        ),
    );
    let mut chart = Chart::new(
        "Streams of one server",
        Axis::new("").names(KINDS[..2].iter().copied()),
        Axis::new("MB per second"),
    );
    let paper = PAPER_ONE[..2].iter().enumerate().map(|(at, rate)| (at as f64, *rate));
    chart = chart.with(Series::new("paper", Mark::Bars, paper));
    for (name, paces) in [("1 MB", &paces.small), ("64 MB", &paces.large)] {
        for (kind, pace) in paces.iter().enumerate() {
            let what = format!("{}, chunks of {name}", KINDS[kind]);
            found.row(what.clone(), unit(kind), Some(PAPER_ONE[kind]), Some(rate(kind, pace)));
            if writes(kind) {
                let what = format!("{what}, until in place");
                found.row(what, unit(kind), Some(PAPER_ONE[kind]), Some(sustained(kind, pace)));
            }
        }
        let bars = paces[..2].iter().enumerate().map(|(kind, pace)| (kind as f64, rate(kind, pace)));
        chart = chart.with(Series::new(format!("here, chunks of {name}"), Mark::Bars, bars));
    }
    found.charts.push(chart);
    found
}

/// Table 5.
pub(super) fn nine_servers(paces: &Paces, effort: ClientEffort) -> Experiment {
    let mut found = Experiment::new(
        "Table 5",
        "Nine clients on nine servers",
        format!(
            "Each client as in Table 4, on a file of its own, of {} and with {} random accesses each way, with chunks of 1 MB and three \
             copies. Ideal is, as in the paper, nine times one server for reads and a third of that for writes, by Table 4 here; writes until everything is in place. The \
             paper's servers stand in one rack and its clients in another; here both are spread over three racks, whose uplinks do not \
             bind.",
            Bytes(effort.file_bytes),
            effort.accesses
        ),
    );
    let ideal = |kind: usize| {
        let copies = if writes(kind) { f64::from(REPLICAS) } else { 1.0 };
        sustained(kind, &paces.small[kind]) * f64::from(CLIENTS) / copies
    };
    let header = ["", "together", "ideal", "slowest client", "fastest client", "failed"];
    let mut table = Table::new("Nine clients", header, Vec::new());
    for (kind, pace) in paces.nine.iter().enumerate() {
        let (here, ideal) = (sustained(kind, pace), ideal(kind));
        if writes(kind) {
            let what = format!("{}, acknowledged", KINDS[kind]);
            found.row(what, unit(kind), Some(PAPER_NINE[kind]), Some(rate(kind, pace)));
        }
        found.row(KINDS[kind], unit(kind), Some(PAPER_NINE[kind]), Some(here));
        let paper = PAPER_NINE[kind] / PAPER_IDEAL[kind];
        found.row(format!("{}: of the ideal", KINDS[kind]), "%", Some(paper), Some(here / ideal));
        let scale = rate(kind, pace) / pace.requests_per_second;
        let shown = |value: f64| format!("{value:.0} {}", unit(kind));
        table.rows.push(vec![
            KINDS[kind].to_owned(),
            shown(here),
            shown(ideal),
            shown(pace.slowest_client * scale),
            shown(pace.fastest_client * scale),
            pace.failed.to_string(),
        ]);
    }
    found.row(
        "reads by writes, streaming",
        "",
        Some(348.0 / 96.0),
        Some(sustained(1, &paces.nine[1]) / sustained(0, &paces.nine[0])),
    );
    let share = |rates: &dyn Fn(usize) -> f64| {
        (0..KINDS.len()).map(|kind| (kind as f64, rates(kind))).collect::<Vec<_>>()
    };
    let chart = Chart::new(
        "Nine clients, of the ideal",
        Axis::new("").names(KINDS),
        Axis::new("of the ideal").percent(),
    )
    .with(Series::new("paper", Mark::Bars, share(&|kind| PAPER_NINE[kind] / PAPER_IDEAL[kind])))
    .with(Series::new(
        "here",
        Mark::Bars,
        share(&|kind| sustained(kind, &paces.nine[kind]) / ideal(kind)),
    ));
    found.charts.push(chart);
    found.tables.push(table);
    found
}
