//! The campaigns of a lab, and the program that runs one of them: `ebb lab eval run`, started here or on a terminal.
//! Its progress is in a file beside the results, which is read while a page is open.
//!
//! One runs at a time: two programs never write to one results file.

use super::place::{LabPlace, refused};
use crate::cli::eval::progress::{Follower, Told, path};
use crate::cli::eval::remaining;
use ebb_eval::{Content, Matrix, Reading, Store, StoreError, Watched};
use ebb_web::{Campaign, Channel, LabRefusal, LabView, Phase, Point, Results};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// Points that are kept: an hour of two a second.
const POINTS_MOST: usize = 7200;
/// Bytes of what a program says on its end.
const SAID_MOST: u64 = 4000;

/// Cheap to clone: all clones are the same campaigns.
#[derive(Clone)]
pub struct Campaigns {
    place: LabPlace,
    present: Arc<Mutex<Present>>,
}

#[derive(Default)]
struct Present {
    /// What was started here.
    running: Option<Running>,
    follower: Follower,
    /// How far the campaign is that runs.
    told: Option<Told>,
    /// Why that is not known.
    blind: Option<String>,
    points: VecDeque<Point>,
    /// Points that were forgotten, or of an earlier campaign.
    before: u64,
    /// What each campaign said when it ended.
    said: BTreeMap<String, String>,
    /// The list, as it was when the files had these stamps.
    listed: Option<(Stamps, Results, Vec<Campaign>)>,
    /// Campaigns that have begun or ended.
    turns: u64,
}

/// When what the list is made of last changed.
type Stamps = (Option<(SystemTime, u64)>, Option<(SystemTime, u64)>, u64);

struct Running {
    campaign: String,
    child: Child,
    paused: bool,
}

impl Campaigns {
    pub fn new(place: LabPlace) -> Campaigns {
        Campaigns { place, present: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Present> {
        self.present.lock().expect("no holder panicked")
    }

    /// Runs what has no result.
    pub fn start(&self, campaign: &str) -> Result<(), LabRefusal> {
        let matrix = self.place.matrix(campaign).filter(|path| path.exists());
        let matrix = matrix.ok_or_else(|| refused(format!("the lab has no matrix {campaign:?}")))?;
        let mut present = self.follow();
        if let Some(other) = present.runs() {
            return Err(refused(format!(
                "{other:?} is running: pause it first, one campaign runs at a time"
            )));
        }
        let program = std::env::current_exe().map_err(refused)?;
        let mut child = Command::new(program)
            .args(self.place.arguments(matrix))
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| refused(format!("`ebb lab eval run` does not start: {error}")))?;
        let (stdout, stderr) = child.stdout.take().zip(child.stderr.take()).expect("both are piped");
        present.said.remove(campaign);
        present.running = Some(Running { campaign: campaign.to_owned(), child, paused: false });
        present.turns += 1;
        let campaigns = self.clone();
        let said = std::thread::spawn(move || words(stderr));
        std::thread::spawn(move || campaigns.wait(stdout, said));
        Ok(())
    }

    /// What the present file of progress says is taken in.
    fn follow(&self) -> MutexGuard<'_, Present> {
        let mut present = self.lock();
        present.follow(&path(&self.place.db));
        present
    }

    /// Reads the program's report, until it ends.
    fn wait(&self, mut stdout: ChildStdout, said: JoinHandle<String>) {
        let mut report = String::new();
        // Without a report, its exit status says enough.
        let _ = stdout.read_to_string(&mut report);
        let report: Option<serde_json::Value> = serde_json::from_str(&report).ok();
        let Some(mut running) = self.lock().running.take() else { return };
        let said = said.join().expect("a reader does not panic");
        let ended = running.child.wait();
        let lost = report.iter().flat_map(|report| report["lost"].as_array().cloned().unwrap_or_default());
        let lost: Vec<String> = lost.filter_map(|why| Some(why.as_str()?.to_owned())).collect();
        let words = match (running.paused, ended) {
            (true, _) => None,
            _ if !lost.is_empty() => Some(format!("given up: {}", lost.join("; "))),
            (_, Ok(status)) if status.success() => None,
            (_, Ok(_)) if !said.is_empty() => Some(said),
            (_, Ok(status)) => Some(format!("it ended with {status}")),
            (_, Err(error)) => Some(error.to_string()),
        };
        let mut present = self.lock();
        present.said.extend(words.map(|words| (running.campaign, words)));
        present.turns += 1;
    }

    /// Ends the program that runs it: the run in progress has no result.
    pub fn pause(&self, campaign: &str) -> Result<(), LabRefusal> {
        let mut present = self.follow();
        let elsewhere =
            present.told.as_ref().filter(|told| told.campaign == campaign).map(|told| told.process);
        match (&mut present.running, elsewhere) {
            (Some(running), _) if running.campaign == campaign => {
                running.paused = true;
                running.child.kill().map_err(refused)
            }
            (_, Some(process)) => Err(refused(format!(
                "{campaign:?} was not started here: end process {process}; what it has found is kept"
            ))),
            _ => Err(refused(format!("{campaign:?} is not running"))),
        }
    }

    /// Removes results and matrix.
    pub fn delete(&self, campaign: &str) -> Result<(), LabRefusal> {
        if self.follow().runs() == Some(campaign) {
            return Err(refused(format!("{campaign:?} is running: pause it first")));
        }
        let mut found = false;
        if self.place.db.exists() {
            found =
                Store::open(&self.place.db).and_then(|mut store| store.forget(campaign)).map_err(refused)?
                    > 0;
        }
        if let Some(matrix) = self.place.matrix(campaign).filter(|path| path.exists()) {
            std::fs::remove_file(&matrix).map_err(refused)?;
            found = true;
        }
        let mut present = self.lock();
        present.said.remove(campaign);
        present.turns += 1;
        found.then_some(()).ok_or_else(|| refused(format!("there is no campaign {campaign:?}")))
    }

    /// Ends what runs, with the server.
    pub fn end(&self) {
        if let Some(running) = &mut self.lock().running {
            running.paused = true;
            // It may have ended.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }

    pub fn look(&self, after: u64) -> LabView {
        let stamp = |path: &Path| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.modified().ok()?, about.len()))
        };
        let mut present = self.follow();
        let stamps = (stamp(&self.place.db), self.matrices(), present.turns);
        if present.listed.as_ref().is_none_or(|(then, ..)| *then != stamps) {
            let (results, campaigns) = self.list(stamps.0, &present);
            present.listed = Some((stamps, results, campaigns));
        }
        let (_, results, campaigns) = present.listed.clone().expect("it was listed just now");
        let mut view = LabView { results, campaigns, first: after.max(present.before), points: Vec::new() };
        view.results.trouble = view.results.trouble.or_else(|| present.blind.clone());
        present.show_in(&mut view.campaigns);
        let skip = (view.first - present.before) as usize;
        view.points = present.points.iter().skip(skip).cloned().collect();
        view
    }

    /// The newest change in the folder of matrices, and their lengths together.
    fn matrices(&self) -> Option<(SystemTime, u64)> {
        let folder = self.place.folder();
        let mut newest = std::fs::metadata(&folder).and_then(|about| about.modified()).ok()?;
        let mut bytes = 0;
        for about in std::fs::read_dir(&folder).ok()?.filter_map(|entry| entry.ok()?.metadata().ok()) {
            newest = about.modified().map_or(newest, |changed| newest.max(changed));
            bytes += about.len();
        }
        Some((newest, bytes))
    }

    /// Everything that has a matrix or a result, by name.
    fn list(&self, changed: Option<(SystemTime, u64)>, present: &Present) -> (Results, Vec<Campaign>) {
        let changed = changed.and_then(|(time, _)| time.duration_since(UNIX_EPOCH).ok());
        let contents = match Store::read(&self.place.db).and_then(|store| store.contents()) {
            Err(StoreError::Missing { .. }) => Ok(Vec::new()),
            contents => contents,
        };
        let results = Results {
            file: self.place.db.display().to_string(),
            changed_unix_millis: changed.map(|since| since.as_millis() as u64),
            trouble: contents.as_ref().err().map(ToString::to_string),
        };
        let mut campaigns: BTreeMap<String, Campaign> = BTreeMap::new();
        for Content { campaign, target, results, failed } in contents.unwrap_or_default() {
            let found = campaigns.entry(campaign.clone()).or_insert_with(|| Campaign {
                name: campaign,
                phase: Phase::ResultsOnly,
                ..Campaign::default()
            });
            found.targets.push(target);
            found.done += results;
            found.failed += failed;
        }
        let files = std::fs::read_dir(self.place.folder()).into_iter().flatten();
        for path in files.filter_map(|entry| Some(entry.ok()?.path())) {
            let stem = path.file_stem().and_then(|name| name.to_str());
            let Some(name) = stem.filter(|_| path.extension().is_some_and(|end| end == "toml")) else {
                continue;
            };
            let found = campaigns.entry(name.to_owned()).or_default();
            found.name = name.to_owned();
            match Matrix::load(&path, 1.0) {
                // Results go by the matrix's name, and acts by the file's.
                Ok(matrix) if matrix.name != name => {
                    found.said =
                        Some(format!("its matrix is named {0:?}: call the file {0}.toml", matrix.name));
                }
                Ok(matrix) => {
                    found.command = Some(self.place.command(path.clone()));
                    self.count(found, &matrix);
                }
                Err(error) => found.said = Some(error.to_string()),
            }
        }
        for (name, said) in &present.said {
            if let Some(found) = campaigns.get_mut(name) {
                found.said = Some(said.clone());
            }
        }
        (results, campaigns.into_values().collect())
    }

    /// How far a campaign is that does not run.
    fn count(&self, campaign: &mut Campaign, matrix: &Matrix) {
        campaign.targets = matrix.targets.iter().map(|target| target.name.clone()).collect();
        campaign.total = Some(matrix.runs());
        if let Ok((found, seconds)) = remaining(matrix, &self.place.db) {
            campaign.done = found;
            campaign.seconds_left = Some(seconds);
        }
        campaign.phase = match campaign.done {
            0 if campaign.failed == 0 => Phase::Planned,
            done if done >= matrix.runs() => Phase::Done,
            _ => Phase::Unfinished,
        };
    }
}

impl Present {
    fn follow(&mut self, path: &Path) {
        let mut lines = Vec::new();
        let looked = self.follower.look(path, &mut |told| lines.push(told));
        let runs = *looked.as_ref().unwrap_or(&false);
        self.blind = looked.err().map(|error| format!("{}: {error}", path.display()));
        for told in lines {
            self.keep(point(&told));
            self.told = Some(told);
        }
        if let Some(told) = self.told.take_if(|_| !runs) {
            self.keep(Some(Point { at_unix_millis: told.at_unix_millis, ..Point::default() }));
        }
    }

    fn keep(&mut self, point: Option<Point>) {
        if point.is_some() && self.points.len() == POINTS_MOST {
            self.points.pop_front();
            self.before += 1;
        }
        self.points.extend(point);
    }

    /// The campaign that runs.
    fn runs(&self) -> Option<&str> {
        let here = self.running.as_ref().map(|running| running.campaign.as_str());
        here.or(self.told.as_ref().map(|told| told.campaign.as_str()))
    }

    fn show_in(&self, campaigns: &mut Vec<Campaign>) {
        let Some(name) = self.runs() else { return };
        let place = campaigns.iter().position(|campaign| campaign.name == name).unwrap_or_else(|| {
            // Its matrix is elsewhere, and it has no result.
            campaigns.push(Campaign { name: name.to_owned(), ..Campaign::default() });
            campaigns.len() - 1
        });
        let shown = &mut campaigns[place];
        shown.phase = Phase::Running;
        shown.said = None;
        if let Some(told) = self.told.as_ref().filter(|told| told.campaign == name) {
            (shown.done, shown.failed, shown.total) = (told.done, told.failed, Some(told.total));
            shown.seconds_left = Some(told.seconds_left);
            shown.present = Some(told.present.clone());
        }
    }
}

/// Absent: nothing is in progress.
fn point(told: &Told) -> Option<Point> {
    let Watched { live, meters, load_percent, achieved_percent } = told.live.as_ref()?;
    let channel = |reading: &Reading| Channel {
        name: format!("{}, {}", reading.name, reading.source.name()),
        unit: reading.unit.clone(),
        value: Some(reading.value),
    };
    Some(Point {
        at_unix_millis: told.at_unix_millis,
        run: Some(told.present.clone()),
        iops: Some(live.iops),
        mb_per_second: Some(live.mb_per_second),
        response_millis: live.response_millis,
        watts: meters.watts,
        celsius: meters.celsius,
        load_percent: *load_percent,
        achieved_percent: *achieved_percent,
        channels: meters.channels.iter().map(channel).collect(),
    })
}

/// The first words of what a program says on the side. The rest is read, too: a full pipe would stop the program.
fn words(mut stderr: ChildStderr) -> String {
    let mut said = Vec::new();
    // What cannot be read is missing, and nothing else.
    let _ = (&mut stderr).take(SAID_MOST).read_to_end(&mut said);
    let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    String::from_utf8_lossy(&said).trim().to_owned()
}
