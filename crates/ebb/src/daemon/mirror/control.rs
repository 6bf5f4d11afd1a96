//! The socket on which a mirror's process answers `ebb mirror status` and `scrub`: one line of JSON in, one out. Only
//! the owner may open it.

use crate::error::{NodeError, io};
use crate::mirror::MirrorError;
use crate::mirror::drivers::DriverKind;
use crate::mirror::registry::Name;
use ebb_mirror::{Ack, DiskStatus, Energy, PolicyKind, ScrubStatus};
use ebb_types::{Joules, Watts};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// Longest lines, in bytes.
const QUESTION_MAX: u64 = 4096;
const ANSWER_MAX: u64 = 1 << 20;
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Question {
    Status,
    Scrub,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Status(Box<ServedStatus>),
    /// The pass begins; these bytes are to be compared.
    Scrub {
        size_bytes: u64,
    },
    Refused(String),
}

/// What a mirror is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    InSync,
    /// One disk is being brought up to date.
    Resyncing,
    /// One disk is lost.
    Degraded,
    /// Both are.
    Failed,
}

/// `ebb mirror status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServedStatus {
    pub name: String,
    /// Absent: a chunk server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    pub condition: Condition,
    pub driver: DriverKind,
    pub policy: PolicyKind,
    pub ack: Ack,
    pub size_bytes: u64,
    pub once_bytes: u64,
    pub dirty_bytes: u64,
    pub copying_bytes: u64,
    pub unreadable: u64,
    pub connections: usize,
    pub disks: Vec<ServedDisk>,
    pub scrub: ScrubStatus,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServedDisk {
    pub path: PathBuf,
    #[serde(flatten)]
    pub status: DiskStatus,
    /// Since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled_joules: Option<Joules>,
    /// Mean since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled_watts: Option<Watts>,
    /// The most that the drive takes at its present speed, by its own tables. Not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rated_watts: Option<Watts>,
    /// The parts of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled_energy: Option<Energy>,
}

/// The socket. Its file goes with it.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        // Another start removes what is left.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Control {
    /// The disks must be locked already: then a file that is there was left behind.
    pub fn new(path: PathBuf) -> Result<Control, NodeError> {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(io("remove", path)(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(io("listen on", &path))?;
        let owner_only = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, owner_only).map_err(io("close to others", &path))?;
        Ok(Control { listener, path })
    }

    /// Answers questions one after another.
    pub async fn serve(&self, answer: impl Fn(Question) -> Answer) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    // Who asks and goes away, or is silent, gets nothing.
                    let _ = tokio::time::timeout(PATIENCE, talk(stream, &answer)).await;
                }
                Err(error) => {
                    tracing::warn!("{}: {error}", self.path.display());
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

async fn talk(stream: UnixStream, answer: &impl Fn(Question) -> Answer) -> std::io::Result<()> {
    let mut stream = tokio::io::BufReader::new(stream);
    let mut line = Vec::new();
    (&mut stream).take(QUESTION_MAX).read_until(b'\n', &mut line).await?;
    let answer = match serde_json::from_slice(&line) {
        Ok(question) => answer(question),
        Err(error) => Answer::Refused(format!("not a valid request: {error}")),
    };
    let mut text = serde_json::to_string(&answer).expect("an answer has plain fields");
    text.push('\n');
    stream.get_mut().write_all(text.as_bytes()).await
}

/// Whether a process answers there.
pub fn is_served(path: &Path) -> bool {
    StdStream::connect(path).is_ok()
}

/// Asks the process that serves the mirror.
pub fn ask(name: &Name, path: &Path, question: Question) -> Result<Answer, NodeError> {
    let mut stream = StdStream::connect(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => MirrorError::NotServed(name.to_string()).into(),
        _ => io("ask", path)(error),
    })?;
    let mut text = serde_json::to_string(&question).expect("a question has plain fields");
    text.push('\n');
    let timeouts =
        stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    let asked = timeouts.and_then(|()| stream.write_all(text.as_bytes()));
    let mut line = String::new();
    let answered = asked.and_then(|()| BufReader::new(stream.take(ANSWER_MAX)).read_line(&mut line));
    answered.map_err(io("ask", path))?;
    let wrong = |why: String| MirrorError::Answer { name: name.to_string(), why };
    match serde_json::from_str(&line) {
        Ok(Answer::Refused(why)) => Err(wrong(why).into()),
        Ok(answer) => Ok(answer),
        Err(error) => {
            Err(wrong(format!("its process answers nonsense ({error}): is it another release?")).into())
        }
    }
}
