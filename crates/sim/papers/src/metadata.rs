//! The size of the metadata: of the state that a run left behind, with the chunks that then exist. [Sierra §4.5]

use super::findings::{Experiment, PaperError, Table};
use super::testbed::REPLICAS;
use ebb_gear::{Scheme, Server, layout};
use ebb_meta::{Bootstrap, Command, Reply, State};
use ebb_output::{Axis, Chart, Mark, Series};
use ebb_sim::request::Report;
use ebb_trace::Trace;
use ebb_types::{
    ClusterParams, Condition, ETag, Extent, NamespaceCommand, NamespaceOp, OPS_MAX, ObjectId, ObjectMeta,
    RackId, RequestId, ServerId,
};

/// The paper's chunk groups and chunks in the up-shift experiment, and its bytes of state.
const PAPER_GROUPS: u32 = 320;
const PAPER_CHUNKS: f64 = 4.6e6;
const PAPER_PER_CHUNK: f64 = 23.0;
const PAPER_PER_GROUP: f64 = 320.0 * 1024.0;
const TESTBED: u16 = 15;
const RACKS: u16 = 3;
/// Objects with names, of one chunk each, between which the growth is measured.
const OBJECTS: [u64; 2] = [5_000, 25_000];
/// The first id of those objects, beyond all volumes.
const FIRST_OBJECT: u64 = 1 << 32;
/// A client's replies are forgotten after less.
const LATER_MILLIS: u64 = 600_000;
const BEGAN: u64 = 1_700_006_400_000;

fn bytes(state: &State) -> Result<f64, PaperError> {
    let bytes = postcard::to_stdvec(state).map_err(|error| PaperError::Meta(error.to_string()))?;
    Ok(bytes.len() as f64)
}

fn apply(state: &mut State, command: &Command) -> Result<(), PaperError> {
    match state.apply(command) {
        Reply::Done => Ok(()),
        Reply::Namespace(reply) => match reply.results.into_iter().find_map(Result::err) {
            None => Ok(()),
            Some(error) => Err(PaperError::Meta(error.to_string())),
        },
        other => Err(PaperError::Meta(format!("{other:?}"))),
    }
}

/// Carries out the ops in commands of a client that is then forgotten.
fn change(state: &mut State, ops: &[NamespaceOp]) -> Result<(), PaperError> {
    apply(state, &Command::Elapsed { millis: 0, unix_millis: BEGAN, agreed: true })?;
    for (at, ops) in ops.chunks(OPS_MAX).enumerate() {
        let request = RequestId { client: 1, seq: at as u64 + 1 };
        let session = match state.apply(&Command::Namespace(NamespaceCommand::first(request, 0))) {
            Reply::Namespace(reply) => Some(reply.session),
            other => return Err(PaperError::Meta(format!("{other:?}"))),
        };
        let command = NamespaceCommand { request, session, clock_millis: 0, ops: ops.to_vec() };
        apply(state, &Command::Namespace(command))?;
    }
    apply(state, &Command::Elapsed { millis: LATER_MILLIS, unix_millis: BEGAN + LATER_MILLIS, agreed: true })
}

/// Every device of the trace as a volume: the paper's virtual disks. [Sierra §4.2]
fn volumes(trace: &Trace) -> Vec<NamespaceOp> {
    let end = |device: usize| {
        let its = trace.requests.iter().filter(|request| request.device as usize == device);
        its.map(|request| request.offset + u64::from(request.len)).max().unwrap_or(0)
    };
    let volume = |(device, name): (usize, &String)| NamespaceOp::CreateVolume {
        name: name.clone(),
        size: end(device),
        object: ObjectId(device as u64 + 1),
        home: None,
    };
    trace.devices.iter().enumerate().map(volume).collect()
}

/// As many objects with names as S3 clients make, each of one chunk.
fn objects(count: u64, chunk_bytes: u64) -> Vec<NamespaceOp> {
    let bucket = || "mail".to_owned();
    let object = |n: u64| NamespaceOp::Put {
        bucket: bucket(),
        key: format!("2008-08-04/mailbox-{:05}/message-{n:09}", n % 20_011),
        meta: ObjectMeta {
            size: chunk_bytes,
            etag: ETag { md5: [n as u8; 16], parts: 0 },
            modified_millis: 0,
            extents: vec![Extent {
                object: ObjectId(FIRST_OBJECT + n),
                offset: 0,
                len: chunk_bytes,
                shared: false,
                crc: n as u32,
            }],
            headers: Vec::new(),
            checksum: None,
            upload: None,
            parts: Vec::new(),
        },
        when: Condition::Any,
    };
    let mut ops = vec![NamespaceOp::CreateBucket { bucket: bucket(), settings: Default::default() }];
    ops.push(NamespaceOp::Lease { first: ObjectId(FIRST_OBJECT), count: count as u32, bytes: chunk_bytes });
    ops.extend((0..count).map(object));
    ops
}

/// Bytes of a new cluster's state with about `groups` chunk groups.
fn of_groups(groups: u32, seed: u64) -> Result<f64, PaperError> {
    let server = |n: u16| Server { id: ServerId(n), rack: RackId(n % RACKS) };
    let servers: Vec<Server> = (0..TESTBED).map(server).collect();
    let layout = layout(&servers, REPLICAS, groups, seed, Scheme::Rotated)?;
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
    apply(&mut state, &Command::Init(bootstrap))?;
    bytes(&state)
}

/// `run`: of the trace, with gears.
pub(super) fn size(trace: &Trace, run: &Report, seed: u64) -> Result<Experiment, PaperError> {
    let mut state = run.state.clone();
    change(&mut state, &volumes(trace))?;
    let (whole, groups, chunks) = (bytes(&state)?, state.groups().count() as f64, run.chunks as f64);
    let chunk_bytes = u64::from(run.cluster.chunk_bytes);
    let mut named = [0.0; 2];
    for (count, bytes_named) in OBJECTS.into_iter().zip(&mut named) {
        let mut state = state.clone();
        change(&mut state, &objects(count, chunk_bytes))?;
        *bytes_named = bytes(&state)?;
    }
    let per_object = (named[1] - named[0]) / (OBJECTS[1] - OBJECTS[0]) as f64;
    let mut found = Experiment::new(
        "§4.5",
        "Metadata per chunk and per chunk group",
        format!(
            "The encoded metadata state when the trace's run with gears ends, with {} volumes, {groups} chunk groups and the \
             {chunks} chunks that the run has written: that is what is kept on disk and sent, while the paper's 100 MB with 4.6 \
             million chunks are memory of the process. Ebb's state has nothing per chunk, so a chunk of a volume costs nothing. \
             What costs is a name: an S3 object has an entry, here one chunk long, with a key of 42 characters and an ETag; \
             measured between {} and {} such objects.",
            trace.devices.len(),
            OBJECTS[0],
            OBJECTS[1]
        ),
    );
    found.row("whole state", "B", Some(PAPER_PER_CHUNK * PAPER_CHUNKS), Some(whole));
    found.row("chunks that exist", "", Some(PAPER_CHUNKS), Some(chunks));
    found.row("per chunk group", "B", Some(PAPER_PER_GROUP), Some(whole / groups));
    let per_chunk = (chunks > 0.0).then(|| whole / chunks);
    found.row("per chunk, in volumes", "B", Some(PAPER_PER_CHUNK), per_chunk);
    found.row("per chunk, each an object with a name", "B", Some(PAPER_PER_CHUNK), Some(per_object));
    by_groups(&mut found, seed)?;
    Ok(found)
}

/// What chunk groups cost: new clusters with ever more of them.
fn by_groups(found: &mut Experiment, seed: u64) -> Result<(), PaperError> {
    let counts: Vec<u32> = (0..6).map(|power| PAPER_GROUPS << power).collect();
    let sizes: Vec<f64> = counts.iter().map(|n| of_groups(*n, seed)).collect::<Result<_, _>>()?;
    let last = counts.len() - 1;
    let per_group = (sizes[last] - sizes[0]) / f64::from(counts[last] - counts[0]);
    found.ours("each further chunk group", "B", per_group);
    let row = |(n, size): (&u32, &f64)| {
        vec![n.to_string(), size.to_string(), format!("{:.1}", size / f64::from(*n))]
    };
    let rows = counts.iter().zip(&sizes).map(row).collect();
    let header = ["chunk groups", "bytes", "bytes per group"];
    found.tables.push(Table::new("State of a new cluster by number of chunk groups", header, rows));
    let points = counts.iter().zip(&sizes).map(|(n, size)| (f64::from(*n), *size));
    let chart = Chart::new("Metadata state", Axis::new("chunk groups").log(), Axis::new("state").bytes());
    found.charts.push(chart.with(Series::new("of a new cluster", Mark::Line, points)));
    Ok(())
}
