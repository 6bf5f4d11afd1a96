//! The server of one mirror: two disks below, NBD clients or a chunk server ([`local`]) above, and a socket for
//! `ebb mirror status`.

pub mod control;
mod drive;
pub mod local;
mod server;
mod timer;

use crate::cluster::launch::Stop;
use crate::cluster::random;
use crate::daemon::clock;
use crate::daemon::files;
use crate::daemon::metrics::{self, Page, names};
use crate::error::{NodeError, io, listen};
use crate::mirror::MirrorError;
use crate::mirror::disks::{self, Reader};
use crate::mirror::drivers::DriverKind;
use crate::mirror::registry::{Entry, Name, Registry};
use crate::mirror::switches::switches;
use control::{Answer, Condition, Control, Question, ServedDisk, ServedStatus};
use drive::{Busy, Drive, Emulated, Switched};
use ebb_blockdev::{Bounds, DiskFile, Replies, Ring, serve};
use ebb_mirror::open::{Accept, Medium, OpenError, Opened, open};
use ebb_mirror::policy::{Change, DiskFacts, Draw};
use ebb_mirror::{
    Ack, BLOCK_BYTES, DiskState, Mirror, PolicyKind, Settings, Side, Speed, TwoSpeedDisk, TwoSpeedModel,
};
use ebb_nbd::{BlockSizes, Export};
use ebb_power::disk::About;
use ebb_types::{Bytes, Watts, numbers_in_words};
use server::Server;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Longest payload, in bytes: what clients send that do not ask.
const PAYLOAD_MAX: u32 = 32 << 20;

/// The longest that a modelled access or change of speed may take.
const MODEL_SECONDS_MAX: f64 = 3600.0;

/// Time for the kernel beyond the time limits of a change: a switch sends up to three commands.
const SWITCH_COMMANDS: u32 = 3;
const SWITCH_PATIENCE: Duration = Duration::from_secs(10);

/// How a disk's speed is driven.
#[derive(Clone, Debug, PartialEq)]
pub enum Driver {
    None,
    Emulated(Box<TwoSpeedModel>),
    /// By a switch of this kind.
    Switched(DriverKind),
}

impl Driver {
    /// `model`: a file with the figures of emulated disks.
    pub fn new(kind: DriverKind, model: Option<PathBuf>) -> Result<Driver, NodeError> {
        match (kind, model) {
            (DriverKind::Emulated, model) => Driver::emulated(model),
            (_, Some(_)) => Err(MirrorError::ModelUnused.into()),
            (DriverKind::None, None) => Ok(Driver::None),
            (kind, None) => Ok(Driver::Switched(kind)),
        }
    }

    /// The model of a file, or the paper's.
    fn emulated(file: Option<PathBuf>) -> Result<Driver, NodeError> {
        let Some(path) = file else { return Ok(Driver::Emulated(Box::new(TwoSpeedModel::paper()))) };
        let text = std::fs::read_to_string(&path).map_err(io("read", &path))?;
        let model: TwoSpeedModel = toml::from_str(&text).map_err(|error| MirrorError::ModelFile {
            path: path.clone(),
            why: numbers_in_words(&error.to_string()),
        })?;
        model.check().map_err(|error| MirrorError::Model { path: path.clone(), error })?;
        let slowest = slowest_seconds(&model);
        if slowest > MODEL_SECONDS_MAX {
            let why = format!("an access or a change takes {slowest} s: give times up to an hour");
            return Err(MirrorError::ModelFile { path, why }.into());
        }
        Ok(Driver::Emulated(Box::new(model)))
    }

    pub fn kind(&self) -> DriverKind {
        match self {
            Driver::None => DriverKind::None,
            Driver::Emulated(_) => DriverKind::Emulated,
            Driver::Switched(kind) => *kind,
        }
    }
}

/// The longest time in a model, in seconds.
fn slowest_seconds(model: &TwoSpeedModel) -> f64 {
    let turn = 60.0 / model.low.rpm;
    let payload = f64::from(PAYLOAD_MAX) / model.bytes_per_second * model.high.rpm / model.low.rpm;
    let seek = model.full_stroke_seconds + model.overhead_seconds + model.write_settle_seconds;
    [turn, payload, seek, model.up.seconds, model.down.seconds].into_iter().fold(0.0, f64::max)
}

/// What the user decides at each start.
pub struct Options {
    pub accept: Accept,
    /// The only disk that counts.
    pub keep: Option<Side>,
    pub policy: Option<PolicyKind>,
    pub ack: Ack,
    pub driver: Driver,
}

/// A mirror that is open and has begun.
#[derive(Clone)]
struct Begun {
    server: Rc<Server>,
    replies: Replies,
    size_bytes: u64,
    name: Name,
    entry: Entry,
    driver: DriverKind,
    settings: Settings,
}

/// Opens a mirror's disks. Nothing happens before the server runs.
fn begin(registry: &Registry, name: &Name, options: &Options) -> Result<(Begun, Control), NodeError> {
    let entry = registry.load(name)?;
    let settings = settings(registry, name, &entry, options)?;
    if control::is_served(&registry.socket(name)) {
        return Err(MirrorError::Served(name.to_string()).into());
    }
    let (disks, opened) = open_disks(registry, name, &entry, options)?;
    let control = Control::new(registry.socket(name))?;
    let there = disks.each_ref().map(Option::is_some);
    let (drives, facts) = drives(&options.driver, name, &entry, there, &opened)?;
    let size_bytes = opened.geometry.data_blocks() * BLOCK_BYTES;
    let replies = Replies::new();
    let mut ring = Ring::new().map_err(io("start", "io_uring"))?;
    let places = disks.map(|disk| disk.map(|disk| ring.add(disk)));
    let mut out = Vec::new();
    let mirror = Mirror::new(settings, facts, [Speed::High; 2], opened, &mut out);
    let server = Rc::new(Server::new(mirror, ring, places, drives, replies.clone(), out));
    let (name, driver) = (name.clone(), options.driver.kind());
    Ok((Begun { server, replies, size_bytes, name, entry, driver, settings }, control))
}

impl Begun {
    /// The page of a scrape.
    fn page(&self) -> Page {
        let mut page = metrics::of_process();
        metrics::mirror::report(&self.status(None), &mut page);
        page.put(names::BUGS, &[], ebb_client::bugs() as f64);
        page
    }

    /// `nbd`: where NBD clients find it.
    fn status(&self, nbd: Option<&str>) -> ServedStatus {
        let status = self.server.status();
        let lost = status.disks.iter().filter(|disk| disk.state == DiskState::Lost).count();
        let condition = match (lost, status.copying_bytes) {
            (0, 0) => Condition::InSync,
            (0, _) => Condition::Resyncing,
            (1, _) => Condition::Degraded,
            _ => Condition::Failed,
        };
        let disks = status.disks.into_iter().zip(self.server.power()).map(|(status, power)| ServedDisk {
            path: self.entry.disk(status.side).to_owned(),
            rated_watts: power
                .rated
                .map(|rated| if status.speed == Speed::Low { rated.low } else { rated.high }),
            status,
            modelled_joules: power.modelled.map(|energy| energy.total()),
            modelled_watts: power.modelled.map(|energy| Watts(energy.total().0 / energy.seconds().max(1e-9))),
            modelled_energy: power.modelled,
        });
        ServedStatus {
            name: self.name.to_string(),
            nbd: nbd.map(str::to_owned),
            condition,
            driver: self.driver,
            policy: self.settings.kind,
            ack: self.settings.ack,
            size_bytes: status.size_bytes,
            once_bytes: status.once_bytes,
            dirty_bytes: status.dirty_bytes,
            copying_bytes: status.copying_bytes,
            unreadable: status.unreadable,
            connections: self.replies.connections(),
            disks: disks.collect(),
            scrub: status.scrub,
        }
    }

    fn answer(&self, question: Question, nbd: Option<&str>) -> Answer {
        match question {
            Question::Status => Answer::Status(Box::new(self.status(nbd))),
            Question::Scrub => scrub(&self.server),
        }
    }
}

/// Serves NBD clients, and scrapers, at these addresses until the process is asked to stop.
pub async fn run(
    registry: &Registry,
    name: &Name,
    (nbd, metrics): (&str, Option<&str>),
    options: Options,
) -> Result<(), NodeError> {
    files::raise_limit();
    let (begun, control) = begin(registry, name, &options)?;
    let scraped = begun.clone();
    metrics::open(metrics, move || scraped.page()).await?;
    let listener = TcpListener::bind(nbd).await.map_err(listen(nbd, "give another address with --nbd"))?;
    let address = listener.local_addr().map_err(io("listen on", nbd))?;
    let mut stop = Stop::new()?;
    let export = export(name, begun.size_bytes);
    let nbd = format!("nbd://{address}/{name}");
    println!("mirror {name}: {} on {nbd}, {}", Bytes(export.size), standing(&begun.status(None)));
    let (server, bounds) = (begun.server.clone(), Bounds::of_process());
    let ended = tokio::select! {
        ended = server.run() => Some(ended),
        error = serve(listener, bounds, [export].into(), server.clone(), begun.replies.clone()) => {
            return Err(io("serve", nbd)(error));
        }
        () = control.serve(|question| begun.answer(question, Some(&nbd))) => None,
        () = stop.asked() => None,
    };
    // Clients are gone now: what they began continues.
    match ended {
        Some(ended) => ended.map_err(io("serve", nbd)),
        None => {
            server.close();
            tokio::select! {
                ended = server.end() => ended.map_err(io("serve", nbd)),
                () = stop.asked() => Err(MirrorError::Interrupted.into()),
            }
        }
    }
}

/// What is noted, and what was chosen at this start, which must fit together.
fn settings(
    registry: &Registry,
    name: &Name,
    entry: &Entry,
    options: &Options,
) -> Result<Settings, NodeError> {
    let mut settings = registry.settings(name, entry)?;
    settings.ack = options.ack;
    let sleeps = entry.driver.sleeps(options.driver.kind());
    settings.sleep = sleeps.then(|| entry.settings.sleep());
    settings.kind = match (&options.driver, options.policy) {
        (Driver::None, None | Some(PolicyKind::OneSpeed)) => PolicyKind::OneSpeed,
        (Driver::None, Some(_)) => return Err(MirrorError::OneSpeed.into()),
        (_, Some(policy)) => policy,
        (_, None) if sleeps => PolicyKind::TwoSpeed,
        (_, None) => PolicyKind::default(),
    };
    settings.check().map_err(MirrorError::Combination)?;
    Ok(settings)
}

fn export(name: &Name, size: u64) -> Export {
    Export {
        name: name.to_string(),
        description: format!("mirror {name}"),
        size,
        block: BlockSizes {
            minimum: BLOCK_BYTES as u32,
            preferred: BLOCK_BYTES as u32,
            maximum: PAYLOAD_MAX,
        },
        read_only: false,
        rotational: false,
        multi_conn: true,
    }
}

type Disks = [Option<DiskFile>; 2];

/// Opens the disks that are there and count, and finds out what they have. Writes nothing.
fn open_disks(
    registry: &Registry,
    name: &Name,
    entry: &Entry,
    options: &Options,
) -> Result<(Disks, Opened), NodeError> {
    let mut disks: Disks = [None, None];
    for side in Side::BOTH.into_iter().filter(|side| options.keep.is_none_or(|keep| keep == *side)) {
        disks[side.index()] = disks::open_if_there(entry.disk(side))?;
    }
    let mut accept = options.accept;
    accept.degraded |= options.keep.is_some();
    accept.loss |= options.keep.is_some();
    let mut opened = find(&disks, accept);
    // A disk that is there and of no use is as good as missing, if the user accepts that one is.
    if let Err(error) = &opened
        && accept.degraded
        && let Some(side) = useless(error)
        && disks[(!side).index()].is_some()
    {
        tracing::warn!("disk {side:?} is left out: {error}");
        disks[side.index()] = None;
        opened = find(&disks, accept);
    }
    let (a, b) = (entry.disk_a.clone(), entry.disk_b.clone());
    let opened = opened.map_err(|error| MirrorError::Open {
        name: name.to_string(),
        a: a.clone(),
        b: b.clone(),
        error,
    })?;
    if opened.superblocks.iter().any(|block| block.mirror != entry.mirror) {
        let file = registry.file(name);
        return Err(MirrorError::NotTheMirrors { name: name.to_string(), a, b, file }.into());
    }
    Ok((disks, opened))
}

fn find(disks: &Disks, accept: Accept) -> Result<Opened, OpenError> {
    let [mut a, mut b] = disks.each_ref().map(|disk| disk.as_ref().map(Reader));
    open([a.as_mut().map(|a| a as &mut dyn Medium), b.as_mut().map(|b| b as &mut dyn Medium)], accept)
}

/// The disk that the error is about.
fn useless(error: &OpenError) -> Option<Side> {
    match error {
        OpenError::Superblock { side, .. }
        | OpenError::Unreadable { side, .. }
        | OpenError::Replaced { side }
        | OpenError::Truncated { side, .. }
        | OpenError::Log { side, .. } => Some(*side),
        _ => None,
    }
}

type Drives = ([Drive; 2], [DiskFacts; 2]);

/// `there`, by side: disks that are not missing.
fn drives(
    driver: &Driver,
    name: &Name,
    entry: &Entry,
    there: [bool; 2],
    opened: &Opened,
) -> Result<Drives, NodeError> {
    match driver {
        Driver::None => Ok((Side::BOTH.map(|_| Drive::None(Busy::default())), [DiskFacts::default(); 2])),
        Driver::Emulated(model) => emulated(model, there, opened),
        Driver::Switched(kind) => switched(*kind, name, entry, there),
    }
}

fn switched(kind: DriverKind, name: &Name, entry: &Entry, there: [bool; 2]) -> Result<Drives, NodeError> {
    let limit = entry.driver.deadline() * SWITCH_COMMANDS + SWITCH_PATIENCE;
    let mut facts = [DiskFacts::default(); 2];
    let mut drives = Side::BOTH.map(|_| Drive::None(Busy::default()));
    let switches = switches(kind, name, entry, there)?;
    for (side, switch) in Side::BOTH.into_iter().zip(switches) {
        let Some(switch) = switch else { continue };
        facts[side.index()] = known(switch.about());
        drives[side.index()] = Drive::Switched(Box::new(Switched::new(side, switch, limit)));
    }
    Ok((drives, facts))
}

/// What a switch knows of its disk. What it does not know is as of the paper's disk; only adaptive thresholds use that.
fn known(about: &About) -> DiskFacts {
    let mut facts = DiskFacts { slowdown: about.slowdown, ..DiskFacts::default() };
    if let Some(rated) = about.rated {
        (facts.low, facts.high) =
            (Draw { idle: rated.low, access: rated.low }, Draw { idle: rated.high, access: rated.high });
        let change = |time| Change { time, energy: rated.high * time };
        (facts.down, facts.up) = (change(about.change.down), change(about.change.up));
    }
    facts
}

fn emulated(model: &TwoSpeedModel, there: [bool; 2], opened: &Opened) -> Result<Drives, NodeError> {
    let needed = opened.geometry.device_bytes();
    if model.capacity_bytes < needed {
        let (model, capacity) = (model.name.clone(), Bytes(model.capacity_bytes));
        return Err(MirrorError::ModelSmall { model, capacity, needed: Bytes(needed) }.into());
    }
    let (now, seeds) = (clock::now(), [random::identity()?, random::identity()?]);
    let drive = |side: Side| {
        // A disk that is missing draws nothing.
        if !there[side.index()] {
            return Drive::None(Busy::default());
        }
        let disk = TwoSpeedDisk::new(model.clone(), Speed::High, now, seeds[side.index()]);
        Drive::Emulated(Box::new(Emulated::new(disk, now)))
    };
    Ok((Side::BOTH.map(drive), [DiskFacts::of(model); 2]))
}

/// `disks A and B in sync`.
pub fn standing(status: &ServedStatus) -> String {
    let lost = status.disks.iter().find(|disk| disk.status.state == DiskState::Lost);
    match (status.condition, lost) {
        (Condition::InSync, _) => "disks A and B in sync".to_owned(),
        (Condition::Resyncing, _) => format!("resyncing {}", Bytes(status.copying_bytes)),
        (Condition::Degraded, Some(disk)) => {
            let (side, name) = (disk.status.side, &status.name);
            format!(
                "degraded: disk {side:?} is lost (ebb mirror replace {name} --disk NEW, while it is stopped)"
            )
        }
        _ => "FAILED: both disks are lost".to_owned(),
    }
}

fn scrub(server: &Server) -> Answer {
    let status = server.status();
    if status.disks.iter().any(|disk| disk.state == DiskState::Lost) {
        return Answer::Refused("a disk is lost, so there is nothing to compare: replace it".to_owned());
    }
    server.scrub();
    Answer::Scrub { size_bytes: status.size_bytes }
}
