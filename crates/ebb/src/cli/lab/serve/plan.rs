//! Matrices that the page asks for: written as a file, read by the reader of matrix files, and kept if that finds no
//! mistake.

use super::place::{LabPlace, refused};
use crate::cli::eval::remaining;
use ebb_eval::traces::{Catalogue, silent};
use ebb_eval::{Matrix, MatrixError};
use ebb_web::{FieldFault, LabRefusal, OfferedTrace, Offers, Planned, Wish};
use std::io::Write;
use std::path::{Component, Path};

/// What a matrix of the page may use.
pub fn offers(place: &LabPlace) -> Offers {
    let mut offers =
        Offers { targets: place.targets.clone(), meters: place.meters.clone(), ..Offers::default() };
    match Catalogue::open(&place.depository, 0, &mut |_| {}, &silent()) {
        Ok(catalogue) => {
            let known = catalogue.entries.iter().filter_map(|entry| Some((entry, entry.figures.as_ref()?)));
            let offered = known.filter_map(|(entry, figures)| {
                // A trace of several files cannot be the single file of a matrix.
                let [file] = &entry.files[..] else { return None };
                Some(OfferedTrace {
                    file: file.path.to_string_lossy().into_owned(),
                    requests: figures.requests,
                    span_seconds: figures.span_seconds,
                    requests_per_second: figures.requests_per_second,
                    read_share: figures.read_share,
                    random_share: figures.random_share,
                    mean_size_bytes: figures.mean_size_bytes,
                    peak_to_mean: figures.peak_to_mean,
                })
            });
            offers.traces = offered.collect();
        }
        Err(error) => offers.traces_note = Some(error.to_string()),
    }
    offers
}

/// What a matrix would run, and for how long.
pub fn planned(place: &LabPlace, wish: Wish) -> Result<Planned, LabRefusal> {
    let (matrix, text) = checked(place, wish)?;
    let (found, seconds) = remaining(&matrix, &place.db).map_err(refused)?;
    let path = place.matrix(&matrix.name).expect("a matrix has a good name");
    Ok(Planned { text, runs: matrix.runs(), found, seconds, command: place.command(path) })
}

/// Keeps a new matrix.
pub fn create(place: &LabPlace, wish: Wish) -> Result<(), LabRefusal> {
    let (matrix, text) = checked(place, wish)?;
    let path = place.matrix(&matrix.name).expect("a matrix has a good name");
    let failed = |what: &Path, error| refused(format!("cannot write {}: {error}", what.display()));
    let folder = place.folder();
    std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
    match file.and_then(|mut file| file.write_all(text.as_bytes())) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let problem = "another campaign has this name: choose another one, or delete that one".to_owned();
            Err(field("name", 0, problem))
        }
        written => written.map_err(|error| failed(&path, error)),
    }
}

fn field(key: &str, place: usize, problem: String) -> LabRefusal {
    LabRefusal::Field(FieldFault { key: key.to_owned(), place, problem })
}

/// The matrix, and its file.
fn checked(place: &LabPlace, mut wish: Wish) -> Result<(Matrix, String), LabRefusal> {
    for (at, target) in wish.target.iter().enumerate() {
        if !place.targets.contains(&target.at) {
            let problem = format!("the lab does not drive {:?}: start it with --target {0:?}", target.at);
            return Err(field("target.at", at, problem));
        }
        if let Some(meter) = target.meters.iter().find(|meter| !place.meters.contains(meter)) {
            let problem = format!("the lab does not read {meter:?}: start it with --meter {meter:?}");
            return Err(field("target.meters", at, problem));
        }
    }
    for (at, trace) in wish.trace.iter_mut().enumerate() {
        let file = Path::new(&trace.file);
        let is_inside = file.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_inside || trace.file.is_empty() {
            let problem = format!("{:?} is not a file of the depository", trace.file);
            return Err(field("trace.file", at, problem));
        }
        trace.file = place.depository.join(file).to_string_lossy().into_owned();
    }
    wish.depository = Some(place.depository.to_string_lossy().into_owned());
    let text = toml::to_string(&wish).map_err(refused)?;
    let path = place.folder().join("matrix.toml");
    match Matrix::parse(&path, &text, 1.0) {
        Ok(matrix) => Ok((matrix, text)),
        Err(MatrixError::Value { line, key, problem, .. }) => Err(field(&key, spot(&text, line).1, problem)),
        Err(MatrixError::Parse { error, .. }) => {
            let start = error.span().map_or(0, |span| span.start);
            let line = 1 + text[..start.min(text.len())].matches('\n').count();
            let (key, at) = spot(&text, line);
            Err(field(&key, at, error.message().to_owned()))
        }
        Err(error @ MatrixError::Read { .. }) => Err(refused(error)),
    }
}

/// The key on a line, from 1, with its table, and which of several such tables that is.
fn spot(text: &str, line: usize) -> (String, usize) {
    let (mut table, mut at) = ("", 0);
    let mut key = "";
    for text in text.lines().take(line) {
        if let Some(name) = text.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]")) {
            at = if name == table { at + 1 } else { 0 };
            table = name;
        } else if let Some(name) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            (table, at) = (name, 0);
        } else if let Some((name, _)) = text.split_once(" = ") {
            key = name;
        }
    }
    let key = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
    (key, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn place(dir: &Path) -> LabPlace {
        LabPlace {
            db: dir.join("results.sqlite"),
            depository: dir.join("traces"),
            targets: vec!["file:a.dat".into(), "file:b.dat".into()],
            meters: vec!["rapl".into()],
            config: None,
        }
    }

    fn wish(change: impl FnOnce(&mut Value)) -> Wish {
        let mut value = json!({
            "name": "m", "run_seconds": 0.5, "repetitions": 2, "levels": [10, 100],
            "synthetic": {"sizes": [4096], "random": [0, 100], "reads": [100]},
            "target": [
                {"name": "a", "at": "file:a.dat", "size_mib": 4, "meters": ["rapl"]},
                {"name": "b", "at": "file:b.dat", "size_mib": 4},
            ],
        });
        change(&mut value);
        serde_json::from_value(value).expect("a wish")
    }

    #[test]
    fn a_matrix_of_the_page_is_a_file_that_the_command_line_reads() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let plan = planned(&place, wish(|_| ())).unwrap();
        assert_eq!((plan.runs, plan.found), (2 * 2 * 2 * 2, 0));
        assert!((plan.seconds - (16.0 * 0.5 + 4.0 * 0.5)).abs() < 1e-9, "with the peaks: {}", plan.seconds);
        assert!(plan.command.starts_with("ebb lab eval run ") && plan.command.contains("m.toml --db "));
        assert!(!plan.text.contains("overwrite = true"), "consent is never assumed: {}", plan.text);
        create(&place, wish(|_| ())).unwrap();
        let path = place.matrix("m").unwrap();
        let matrix = Matrix::load(&path, 1.0).unwrap();
        assert_eq!(matrix.depository, place.depository);
        assert!(matrix.targets.iter().all(|target| !target.overwrite));
        let again = create(&place, wish(|value| value["repetitions"] = json!(9))).unwrap_err();
        assert!(matches!(&again, LabRefusal::Field(fault) if fault.key == "name"), "{again}");
        assert_eq!(Matrix::load(&path, 1.0).unwrap(), matrix, "what was there is kept");
        let consent = planned(&place, wish(|value| value["target"][1]["overwrite"] = json!(true))).unwrap();
        assert_eq!(consent.text.matches("overwrite = true").count(), 1);
    }

    #[test]
    fn a_mistake_is_named_with_its_field() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        type Change = fn(&mut Value);
        let cases: [(&str, usize, &str, Change); 11] = [
            ("name", 0, "letters", |v| v["name"] = json!("../x")),
            ("levels", 0, "150", |v| v["levels"] = json!([10, 150])),
            ("levels", 0, "is missing", |v| v["levels"] = Value::Null),
            ("repetitions", 0, "at least one", |v| v["repetitions"] = json!(0)),
            ("repetitions", 0, "invalid type", |v| v["repetitions"] = json!("many")),
            ("synthetic.sizes", 0, "do not fit", |v| v["synthetic"]["sizes"] = json!([8 << 20])),
            ("filter", 0, "unknown variant", |v| v["filter"] = json!("best")),
            ("target.size_mib", 1, "is not between", |v| v["target"][1]["size_mib"] = json!(0)),
            ("target.at", 1, "--target", |v| v["target"][1]["at"] = json!("/dev/sda")),
            ("target.meters", 0, "--meter", |v| v["target"][0]["meters"] = json!(["command:reboot"])),
            ("trace.file", 0, "depository", |v| v["trace"] = json!([{"name": "w", "file": "../secret"}])),
        ];
        for (key, at, said, change) in cases {
            match planned(&place, wish(change)).unwrap_err() {
                LabRefusal::Field(fault) => {
                    assert_eq!((fault.key.as_str(), fault.place), (key, at), "{fault:?}");
                    assert!(fault.problem.contains(said), "{fault:?}");
                }
                other => panic!("{key}: {other}"),
            }
        }
    }
}
