//! Where a lab keeps what it has, and what it may use.

use ebb_eval::Matrix;
use ebb_web::LabRefusal;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct LabPlace {
    /// The results.
    pub db: PathBuf,
    /// Absolute: matrix files in another folder name it.
    pub depository: PathBuf,
    /// As in matrix files.
    pub targets: Vec<String>,
    pub meters: Vec<String>,
    pub config: Option<PathBuf>,
}

impl LabPlace {
    /// The folder of the matrices: `results.campaigns` beside `results.sqlite`.
    pub fn folder(&self) -> PathBuf {
        self.db.with_extension("campaigns")
    }

    /// A campaign's matrix. `None`: no campaign can have that name.
    pub fn matrix(&self, campaign: &str) -> Option<PathBuf> {
        Matrix::is_name(campaign).then(|| self.folder().join(format!("{campaign}.toml")))
    }

    /// The arguments of `ebb` that run a campaign.
    pub fn arguments(&self, matrix: PathBuf) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec![
            "lab".into(),
            "eval".into(),
            "run".into(),
            matrix.into(),
            "--db".into(),
            self.db.clone().into(),
        ];
        if let Some(config) = &self.config {
            all.extend(["--config".into(), config.clone().into()]);
        }
        all
    }

    /// The same, to be typed.
    pub fn command(&self, matrix: PathBuf) -> String {
        let words = self.arguments(matrix);
        let words: Vec<String> = words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        format!("ebb {}", words.join(" "))
    }
}

pub fn refused(why: impl ToString) -> LabRefusal {
    LabRefusal::Refused(why.to_string())
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
