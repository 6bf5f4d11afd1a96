//! Results: one SQLite file (`docs/results-schema.md`).
//!
//! Every result is written in its own transaction and is durable when [`Store::add`] returns: a killed program loses
//! the run in progress, and nothing else. The rows alone show which runs are done, so there is no separate journal that
//! could disagree.

use super::matrix::Matrix;
use super::order::Interval;
use super::record::{COLUMNS, Full, Peak, Record, SeriesRow};
use super::workload::Workload;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde::Serialize;
use serde_json::Value;
use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the tables, in the file's `user_version`.
pub const SCHEMA_VERSION: i64 = 3;
/// Marks the file as ours: "Ebb" and a version of the mark.
const APPLICATION_ID: i64 = 0x4562_6201;

/// New in version 2.
const SERIES: &str = "CREATE TABLE series (
    campaign TEXT NOT NULL, target TEXT NOT NULL, workload TEXT NOT NULL, load_percent REAL NOT NULL,
    repetition INTEGER NOT NULL, from_seconds REAL NOT NULL, seconds REAL NOT NULL, iops REAL NOT NULL,
    mb_per_second REAL NOT NULL, failed_requests INTEGER NOT NULL,
    PRIMARY KEY (campaign, target, workload, load_percent, repetition, from_seconds)) STRICT;";

/// New in version 3.
const EVIDENCE: &str = "ALTER TABLE result ADD COLUMN evidence TEXT;";

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the results {path}: {error}")]
    Sqlite { path: PathBuf, error: rusqlite::Error },
    #[error("cannot open the results {path}: {error}")]
    Open { path: PathBuf, error: std::io::Error },
    #[error("there are no results at {path}; `ebb lab eval run` makes them")]
    Missing { path: PathBuf },
    #[error("{path} is a database of another program; give another file with --db")]
    Foreign { path: PathBuf },
    #[error(
        "{path} has schema version {found}, this program knows up to {SCHEMA_VERSION}: use the release that wrote it, or a newer one"
    )]
    Newer { path: PathBuf, found: i64 },
    #[error("another `ebb lab eval run` is writing to {path}; wait for it, or give another file with --db")]
    Busy { path: PathBuf },
    #[error(
        "{path} holds results of {campaign:?} that were measured with another {subject}; give the matrix another name, or \
         another file with --db\n  then: {then}\n  now:  {now}"
    )]
    Changed { path: PathBuf, campaign: String, subject: String, then: String, now: String },
}

/// An open results file.
pub struct Store {
    path: PathBuf,
    connection: Connection,
    /// Held while runs are written. Declared last: closing any descriptor of a file drops SQLite's locks on it.
    _lock: Option<File>,
}

/// Identifies a run of a campaign: target, workload, the bits of the level, repetition.
pub type RunKey = (String, String, u64, u32);

/// Summary of one campaign on one target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Content {
    pub campaign: String,
    pub target: String,
    pub results: u64,
    /// Runs that failed and will be repeated.
    pub failed: u64,
}

/// A process that this one is just starting holds its locks, too, until it runs another program.
const LOCK_TRIES: u32 = 50;
const LOCK_RETRY: Duration = Duration::from_millis(10);

impl Store {
    /// Opens a file for runs, creating it if it does not exist. Two programs never run on one file.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        let io = |error| StoreError::Open { path: path.to_owned(), error };
        let lock = File::options().create(true).truncate(false).read(true).write(true).open(path);
        let lock = lock.map_err(io)?;
        let mut left = LOCK_TRIES;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if left > 0 => left -= 1,
                Err(TryLockError::WouldBlock) => return Err(StoreError::Busy { path: path.to_owned() }),
                Err(TryLockError::Error(error)) => return Err(io(error)),
            }
            std::thread::sleep(LOCK_RETRY);
        }
        let connection = Connection::open(path).map_err(|error| at(path, error))?;
        let store = Store { path: path.to_owned(), connection, _lock: Some(lock) };
        store.prepare().map_err(|error| at(path, error))?;
        store.check()?;
        Ok(store)
    }

    /// Opens a file for reading, even while runs are written to it.
    pub fn read(path: &Path) -> Result<Store, StoreError> {
        if !path.exists() {
            return Err(StoreError::Missing { path: path.to_owned() });
        }
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
            .map_err(|error| at(path, error))?;
        let store = Store { path: path.to_owned(), connection, _lock: None };
        store.check()?;
        Ok(store)
    }

    /// Creates the tables in an empty file.
    fn prepare(&self) -> rusqlite::Result<()> {
        let ours = self.pragma("application_id")? == APPLICATION_ID;
        let found = self.pragma("user_version")?;
        if ours && (1..SCHEMA_VERSION).contains(&found) {
            let series = if found == 1 { SERIES } else { "" };
            let upgrade =
                format!("BEGIN; {series} {EVIDENCE} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;");
            return self.connection.execute_batch(&upgrade);
        }
        if self.pragma("user_version")? != 0 || self.tables()? != 0 {
            return Ok(());
        }
        let columns: String = COLUMNS.iter().map(|(name, sql)| format!("{name} {sql}, ")).collect();
        self.connection.execute_batch(&format!(
            "BEGIN;
             CREATE TABLE result ({columns}
                 PRIMARY KEY (campaign, target, workload, load_percent, repetition)) STRICT;
             CREATE TABLE peak (
                 campaign TEXT NOT NULL, target TEXT NOT NULL, workload TEXT NOT NULL,
                 iops REAL NOT NULL, mb_per_second REAL NOT NULL,
                 request_bytes REAL NOT NULL, random_percent REAL NOT NULL, read_percent REAL NOT NULL,
                 PRIMARY KEY (campaign, target, workload)) STRICT;
             CREATE TABLE setup (
                 campaign TEXT NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL,
                 PRIMARY KEY (campaign, subject)) STRICT;
             {SERIES}
             PRAGMA application_id = {APPLICATION_ID};
             PRAGMA user_version = {SCHEMA_VERSION};
             COMMIT;"
        ))
    }

    fn check(&self) -> Result<(), StoreError> {
        let foreign = |_| StoreError::Foreign { path: self.path.clone() };
        let found = self.pragma("user_version").map_err(foreign)?;
        if self.pragma("application_id").map_err(foreign)? != APPLICATION_ID {
            return Err(StoreError::Foreign { path: self.path.clone() });
        }
        if found > SCHEMA_VERSION {
            return Err(StoreError::Newer { path: self.path.clone(), found });
        }
        Ok(())
    }

    fn pragma(&self, name: &str) -> rusqlite::Result<i64> {
        self.connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
    }

    fn tables(&self) -> rusqlite::Result<i64> {
        self.connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
    }

    fn sqlite<T>(&self, outcome: rusqlite::Result<T>) -> Result<T, StoreError> {
        outcome.map_err(|error| at(&self.path, error))
    }

    /// Declares that results of `matrix` follow. Refused if the file has results that were measured in another way:
    /// what nothing has been measured with yet binds nobody.
    pub fn begin(&mut self, matrix: &Matrix) -> Result<(), StoreError> {
        let measured = self.measured(&matrix.name)?;
        self.same(&matrix.name, "settings".into(), &matrix.settings, !measured.is_empty())?;
        for target in &matrix.targets {
            let binds = measured.iter().any(|(name, _)| *name == target.name);
            self.same(&matrix.name, format!("target {}", target.name), target, binds)?;
        }
        for workload in &matrix.workloads {
            if let Workload::Trace { name, .. } = workload {
                let binds = measured.iter().any(|(_, of)| of == name);
                self.same(&matrix.name, format!("trace {name}"), workload, binds)?;
            }
        }
        Ok(())
    }

    /// Keeps how a subject is measured. `binds`: something was measured in the way that was kept before, and it may not
    /// be another one.
    fn same(
        &mut self,
        campaign: &str,
        subject: String,
        setup: &impl Serialize,
        binds: bool,
    ) -> Result<(), StoreError> {
        let now = serde_json::to_string(setup).expect("plain data can be written as JSON");
        if let Some(then) = self.setup(campaign, &subject)?
            && binds
            && identity(&then) != identity(&now)
        {
            let (path, campaign) = (self.path.clone(), campaign.to_owned());
            return Err(StoreError::Changed { path, campaign, subject, then, now });
        }
        let sql = "INSERT OR REPLACE INTO setup VALUES (?1, ?2, ?3)";
        self.sqlite(self.connection.execute(sql, params![campaign, subject, now])).map(drop)
    }

    /// Target and workload of everything that the campaign has a result or a peak of.
    fn measured(&self, campaign: &str) -> Result<Vec<(String, String)>, StoreError> {
        let sql = "SELECT target, workload FROM result WHERE campaign = ?1 AND error IS NULL
                   UNION SELECT target, workload FROM peak WHERE campaign = ?1";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let all = || self.connection.prepare(sql)?.query_map([campaign], read)?.collect();
        self.sqlite(all())
    }

    /// Stores a result and its series durably; it replaces a failed one.
    pub fn add(&mut self, record: &Record, series: &[Interval]) -> Result<(), StoreError> {
        let names = Record::COLUMNS;
        let places: Vec<String> = (1..=names.len()).map(|n| format!("?{n}")).collect();
        let sql =
            format!("INSERT OR REPLACE INTO result ({}) VALUES ({})", names.join(", "), places.join(", "));
        let intervals = "INSERT OR REPLACE INTO series VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let all = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            transaction.execute(&sql, record.values().as_slice())?;
            for &Interval { from_seconds, seconds, requests, bytes, failed } in series {
                let row = SeriesRow {
                    campaign: record.campaign.clone(),
                    target: record.target.clone(),
                    workload: record.workload.clone(),
                    load_percent: record.load_percent,
                    repetition: record.repetition,
                    from_seconds,
                    seconds,
                    iops: requests as f64 / seconds,
                    mb_per_second: bytes as f64 / 1e6 / seconds,
                    failed_requests: failed,
                };
                transaction.execute(intervals, row.values().as_slice())?;
            }
            transaction.commit()
        };
        let outcome = all(&mut self.connection);
        self.sqlite(outcome)
    }

    /// The throughput of a workload's replay at 100 %, if it has been done.
    pub(super) fn full(
        &self,
        campaign: &str,
        target: &str,
        workload: &str,
    ) -> Result<Option<Full>, StoreError> {
        let sql = "SELECT * FROM result WHERE campaign = ?1 AND target = ?2 AND workload = ?3
                   AND load_percent = 100 AND repetition = 1 AND error IS NULL";
        let read = |row: &rusqlite::Row<'_>| Record::from_row(row).map(|record| Full::of(&record));
        let found = self.connection.query_row(sql, params![campaign, target, workload], read);
        self.sqlite(found.optional())
    }

    /// The throughput over time of all longer runs, by run and time; `None`: of all campaigns, of all targets.
    pub fn series(&self, campaign: Option<&str>, target: Option<&str>) -> Result<Vec<SeriesRow>, StoreError> {
        if self.sqlite(self.pragma("user_version"))? < 2 {
            return Ok(Vec::new());
        }
        let sql = "SELECT * FROM series WHERE (?1 IS NULL OR campaign = ?1) AND (?2 IS NULL OR target = ?2)
                   ORDER BY campaign, target, workload, load_percent, repetition, from_seconds";
        let all = || {
            self.connection.prepare(sql)?.query_map(params![campaign, target], SeriesRow::from_row)?.collect()
        };
        self.sqlite(all())
    }

    /// How a campaign was measured: the text of one subject, as `begin` kept it.
    pub fn setup(&self, campaign: &str, subject: &str) -> Result<Option<String>, StoreError> {
        let query = "SELECT text FROM setup WHERE campaign = ?1 AND subject = ?2";
        let text = self.connection.query_row(query, params![campaign, subject], |row| row.get(0));
        self.sqlite(text.optional())
    }

    /// Forgets a campaign: its results, series, peaks and how it was measured. Returns how many results there were.
    pub fn forget(&mut self, campaign: &str) -> Result<usize, StoreError> {
        let all = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            for table in ["peak", "setup", "series"] {
                transaction.execute(&format!("DELETE FROM {table} WHERE campaign = ?1"), [campaign])?;
            }
            let results = transaction.execute("DELETE FROM result WHERE campaign = ?1", [campaign])?;
            transaction.commit().map(|()| results)
        };
        let outcome = all(&mut self.connection);
        self.sqlite(outcome)
    }

    /// Runs of a campaign that have a result.
    pub fn done(&self, campaign: &str) -> Result<HashSet<RunKey>, StoreError> {
        let sql = "SELECT target, workload, load_percent, repetition FROM result WHERE campaign = ?1 AND error IS NULL";
        let read = |row: &rusqlite::Row<'_>| {
            Ok((row.get(0)?, row.get(1)?, row.get::<_, f64>(2)?.to_bits(), row.get(3)?))
        };
        let all = || self.connection.prepare(sql)?.query_map([campaign], read)?.collect();
        self.sqlite(all())
    }

    pub fn add_peak(
        &mut self,
        campaign: &str,
        target: &str,
        workload: &str,
        peak: &Peak,
    ) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO peak VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let values = [params![campaign, target, workload], peak.values().as_slice()].concat();
        self.sqlite(self.connection.execute(sql, values.as_slice())).map(drop)
    }

    pub fn peak(&self, campaign: &str, target: &str, workload: &str) -> Result<Option<Peak>, StoreError> {
        let columns = Peak::COLUMNS.join(", ");
        let sql = format!("SELECT {columns} FROM peak WHERE campaign = ?1 AND target = ?2 AND workload = ?3");
        let found = self.connection.query_row(&sql, params![campaign, target, workload], Peak::from_row);
        self.sqlite(found.optional())
    }

    /// Whether the campaign has written to the target: looked for a peak, or filled it.
    pub fn has_written(&self, campaign: &str, target: &str) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM peak WHERE campaign = ?1 AND target = ?2)
                       OR EXISTS (SELECT 1 FROM result WHERE campaign = ?1 AND target = ?2 AND bytes > 0)";
        self.sqlite(self.connection.query_row(sql, params![campaign, target], |row| row.get(0)))
    }

    /// The contents, by campaign and target.
    pub fn contents(&self) -> Result<Vec<Content>, StoreError> {
        let sql = "SELECT campaign, target, count(*) FILTER (WHERE error IS NULL), count(error) FROM result
                   GROUP BY campaign, target ORDER BY min(started_unix_millis)";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Content {
                campaign: row.get(0)?,
                target: row.get(1)?,
                results: row.get(2)?,
                failed: row.get(3)?,
            })
        };
        let all = || self.connection.prepare(sql)?.query_map([], read)?.collect();
        self.sqlite(all())
    }

    /// All rows, by time; `None`: of all campaigns, of all targets.
    pub fn records(&self, campaign: Option<&str>, target: Option<&str>) -> Result<Vec<Record>, StoreError> {
        let older = if self.sqlite(self.pragma("user_version"))? < 3 { ", NULL AS evidence" } else { "" };
        let sql = format!(
            "SELECT *{older} FROM result WHERE (?1 IS NULL OR campaign = ?1) AND (?2 IS NULL OR target = ?2)
             ORDER BY started_unix_millis, rowid"
        );
        let all = || {
            self.connection.prepare(&sql)?.query_map(params![campaign, target], Record::from_row)?.collect()
        };
        self.sqlite(all())
    }
}

/// What of a setup may not change under its results. The consent to overwrite a target measures nothing.
fn identity(setup: &str) -> Option<Value> {
    let mut setup: Value = serde_json::from_str(setup).ok()?;
    if let Some(keys) = setup.as_object_mut() {
        keys.remove("overwrite");
    }
    Some(setup)
}

fn at(path: &Path, error: rusqlite::Error) -> StoreError {
    StoreError::Sqlite { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(workload: &str) -> Record {
        Record { campaign: "c".into(), target: "t".into(), workload: workload.into(), ..Record::default() }
    }

    #[test]
    fn a_row_comes_back_as_it_was_and_absent_stays_absent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        let full = Record {
            iops: Some(0.1),
            requests: Some(u64::from(u32::MAX) + 1),
            host: Some("h".into()),
            ..record("w")
        };
        Store::open(&path).unwrap().add(&full, &[]).unwrap();
        let store = Store::read(&path).unwrap();
        assert_eq!(store.records(None, None).unwrap(), std::slice::from_ref(&full));
        assert_eq!(store.records(Some("c"), Some("t")).unwrap(), [full]);
        assert!(store.records(Some("other"), None).unwrap().is_empty());
        let nulls = "SELECT count(*) FROM result WHERE watts IS NULL AND iops = 0.1";
        assert_eq!(store.connection.query_row(nulls, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    }

    #[test]
    fn a_campaign_is_forgotten_as_a_whole_and_others_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(&dir.path().join("r.sqlite")).unwrap();
        let other = Record { campaign: "other".into(), ..record("w") };
        let interval = [Interval { from_seconds: 0.0, seconds: 1.0, requests: 1, bytes: 1, failed: 0 }];
        for record in [&record("w"), &record("v"), &other] {
            store.add(record, &interval).unwrap();
        }
        store.same("c", "settings".into(), &1, false).unwrap();
        let peak = Peak {
            iops: 1.0,
            mb_per_second: 1.0,
            request_bytes: 512.0,
            random_percent: 0.0,
            read_percent: 0.0,
        };
        store.add_peak("c", "t", "w", &peak).unwrap();
        assert_eq!(store.forget("c").unwrap(), 2);
        assert_eq!(store.records(None, None).unwrap(), [other]);
        assert_eq!(store.series(None, None).unwrap().len(), 1);
        assert_eq!((store.peak("c", "t", "w").unwrap(), store.setup("c", "settings").unwrap()), (None, None));
        assert_eq!(store.forget("c").unwrap(), 0);
    }

    #[test]
    fn a_setup_binds_once_something_was_measured_with_it_but_for_the_consent_to_overwrite() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(&dir.path().join("r.sqlite")).unwrap();
        let text = |at: &str, overwrite: bool| {
            format!(
                "name = \"c\"\nlevels = [100]\n[synthetic]\nsizes = [512]\nrandom = [0]\nreads = [0]\n\
                 [[target]]\nname = \"t\"\nat = \"{at}\"\noverwrite = {overwrite}\n"
            )
        };
        let matrix = |at, overwrite| Matrix::parse(Path::new("m.toml"), &text(at, overwrite), 1.0).unwrap();
        store.begin(&matrix("file:x", false)).unwrap();
        store.add(&Record { error: Some("x exists".into()), ..record("w") }, &[]).unwrap();
        store.begin(&matrix("file:y", true)).expect("nothing was measured");
        store.add(&record("w"), &[]).unwrap();
        for consent in [true, false, true] {
            store.begin(&matrix("file:y", consent)).expect("consent is no way to measure");
        }
        let error = store.begin(&matrix("file:x", true)).unwrap_err();
        assert!(matches!(&error, StoreError::Changed { subject, .. } if subject == "target t"), "{error}");
    }

    #[test]
    fn newer_and_foreign_files_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        drop(Store::open(&path).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
        let before = std::fs::read(&path).unwrap();
        for opened in [Store::open(&path), Store::read(&path)] {
            let error = opened.err().unwrap();
            assert!(
                matches!(error, StoreError::Newer { found, .. } if found == SCHEMA_VERSION + 1),
                "{error}"
            );
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
        let other = dir.path().join("other.sqlite");
        Connection::open(&other).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
        assert!(matches!(Store::open(&other), Err(StoreError::Foreign { .. })));
        let text = dir.path().join("text");
        std::fs::write(&text, "not a database, but long enough to look at; not a database").unwrap();
        assert!(Store::open(&text).is_err() && Store::read(&text).is_err());
        assert!(matches!(Store::read(&dir.path().join("none")), Err(StoreError::Missing { .. })));
    }

    #[test]
    fn two_programs_never_run_on_one_file_and_readers_may_look() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        let mut first = Store::open(&path).unwrap();
        first.add(&record("w"), &[]).unwrap();
        assert!(matches!(Store::open(&path), Err(StoreError::Busy { .. })));
        assert_eq!(Store::read(&path).unwrap().records(None, None).unwrap().len(), 1);
        drop(first);
        assert!(Store::open(&path).is_ok());
    }

    #[test]
    fn the_series_of_a_run_is_kept_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        let mut store = Store::open(&path).unwrap();
        let interval = |from_seconds, seconds, requests| Interval {
            from_seconds,
            seconds,
            requests,
            bytes: 1_000_000 * requests,
            failed: 1,
        };
        store.add(&record("w"), &[interval(0.0, 60.0, 120), interval(60.0, 30.0, 30)]).unwrap();
        let rows = store.series(Some("c"), None).unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.from_seconds, row.iops, row.mb_per_second)).collect();
        assert_eq!(found, [(0.0, 2.0, 2.0), (60.0, 1.0, 1.0)]);
        assert!(store.series(Some("other"), None).unwrap().is_empty());
    }

    #[test]
    fn a_file_of_version_1_is_upgraded_by_a_run_and_readable_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sqlite");
        drop(Store::open(&path).unwrap());
        let old = "DROP TABLE series; ALTER TABLE result DROP COLUMN evidence; PRAGMA user_version = 1;
                   INSERT INTO result (campaign, target, workload, load_percent, repetition, started_unix_millis,
                                       filter, program_version) VALUES ('c', 't', 'v', 100, 1, 0, 'f', '1');";
        Connection::open(&path).unwrap().execute_batch(old).unwrap();
        assert!(Store::read(&path).unwrap().series(None, None).unwrap().is_empty());
        assert_eq!(Store::read(&path).unwrap().records(None, None).unwrap()[0].evidence, None);
        let interval = Interval { seconds: 60.0, ..Interval::default() };
        Store::open(&path).unwrap().add(&record("w"), &[interval]).unwrap();
        assert_eq!(Store::read(&path).unwrap().series(None, None).unwrap().len(), 1);
        assert_eq!(Store::read(&path).unwrap().records(None, None).unwrap().len(), 2);
    }

    /// The documentation has every column, its type and the version.
    #[test]
    fn the_documentation_has_every_column() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/results-schema.md");
        let text = std::fs::read_to_string(path).unwrap();
        for (name, sql) in COLUMNS {
            let kind = sql.split(' ').next().unwrap();
            assert!(
                text.contains(&format!("| `{name}` | {kind} |")),
                "docs/results-schema.md lacks {name} {kind}"
            );
        }
        assert!(text.contains(&format!("schema version {SCHEMA_VERSION}")));
    }
}
