//! Answers from the results file. It is opened for each, and only read: runs may be written to it meanwhile.

use super::place::{LabPlace, quoted, refused};
use ebb_eval::{
    LEAST, MOST, Range, Record, Selection, Side, Store, charts, compare, comparison_charts, csv, proportions,
};
use ebb_output::{Chart, Ticks};
use ebb_web::{
    Answer, Axis, Compared, FieldFault, Figure, Figures, LabRefusal, Line, OneRun, Question, Sides, Which,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

pub fn answer(place: &LabPlace, question: Question) -> Result<Answer, LabRefusal> {
    match question {
        Question::Runs(which) => Ok(Answer::json(&chosen(place, &which)?)),
        Question::Csv(which) => {
            Ok(Answer { kind: "text/csv; charset=utf-8", text: csv(&chosen(place, &which)?) })
        }
        Question::Figures(which) => figures(place, &which).map(|found| Answer::json(&found)),
        Question::Svg(which, at) => svg(&drawn(place, &which)?.charts, at),
        Question::Compare(sides) => compared(place, &sides).map(|(found, _)| Answer::json(&found)),
        Question::CompareSvg(sides, at) => svg(&compared(place, &sides)?.1, at),
        Question::Repeat(run) => repeat(place, &run).map(|commands| Answer::json(&commands)),
        Question::Offers | Question::Plan(_) => unreachable!("they are not about results"),
    }
}

/// The conditions of a page, as those of the evaluation.
fn selection(which: &Which) -> Result<Selection, LabRefusal> {
    let field = |key: &str, problem| LabRefusal::Field(FieldFault { key: key.to_owned(), place: 0, problem });
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    let range = |key, text: &String| -> Result<Option<Range>, LabRefusal> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|problem| field(key, problem))
    };
    let moment = |key, text: &String| -> Result<Option<i64>, LabRefusal> {
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = || field(key, format!("{text:?} is not a number of milliseconds since 1970"));
        text.parse().map(Some).map_err(|_| wrong())
    };
    Ok(Selection {
        campaign: text(&which.campaign),
        target: text(&which.target),
        workload: text(&which.workload),
        size: range("size", &which.size)?,
        random: range("random", &which.random)?,
        reads: range("reads", &which.reads)?,
        load: range("load", &which.load)?,
        from_unix_millis: moment("from", &which.from)?,
        to_unix_millis: moment("to", &which.to)?,
    })
}

fn read(place: &LabPlace, selection: &Selection) -> Result<Vec<Record>, LabRefusal> {
    let store = Store::read(&place.db).map_err(refused)?;
    store.records(selection.campaign.as_deref(), selection.target.as_deref()).map_err(refused)
}

fn chosen(place: &LabPlace, which: &Which) -> Result<Vec<Record>, LabRefusal> {
    let selection = selection(which)?;
    let mut runs = read(place, &selection)?;
    runs.retain(|run| selection.wants(run));
    Ok(runs)
}

/// The charts of what is chosen.
struct Drawn {
    charts: Vec<Chart>,
    runs: Vec<Record>,
    /// Why there is no chart.
    note: Option<String>,
}

fn drawn(place: &LabPlace, which: &Which) -> Result<Drawn, LabRefusal> {
    let selection = selection(which)?;
    let mut runs = read(place, &selection)?;
    // Idle runs have no mode; the curve of the power begins with them.
    runs.retain(|run| run.load_percent == 0.0 || selection.wants(run));
    let parts: BTreeSet<(&str, &str)> =
        runs.iter().map(|run| (run.campaign.as_str(), run.target.as_str())).collect();
    let note = match parts.len() {
        0 => Some("no run fits".to_owned()),
        1 => None,
        several => Some(format!("charts are of one campaign on one target; these are {several}: choose one")),
    };
    let charts = if note.is_none() { charts(&runs) } else { Vec::new() };
    Ok(Drawn { charts, runs, note })
}

fn figures(place: &LabPlace, which: &Which) -> Result<Figures, LabRefusal> {
    let Drawn { charts, runs, note } = drawn(place, which)?;
    let nothing = "these runs give no chart: it takes two values of a dimension of the matrix";
    let note = note.or_else(|| charts.is_empty().then(|| nothing.to_owned()));
    let proportions = serde_json::to_value(proportions(&runs)).expect("plain data can be written as JSON");
    Ok(Figures { figures: charts.iter().map(figure).collect(), proportions, note })
}

fn figure(chart: &Chart) -> Figure {
    let axis = |axis: &ebb_output::Axis| Axis {
        label: match axis.ticks {
            Ticks::Time => format!("{}, s", axis.label),
            Ticks::Percent => format!("{}, share", axis.label),
            _ => axis.label.clone(),
        },
        names: match &axis.ticks {
            Ticks::Names(names) => names.clone(),
            _ => Vec::new(),
        },
        log: axis.log,
    };
    let line = |series: &ebb_output::Series| Line {
        name: series.name.clone(),
        bound: series.name.ends_with(LEAST) || series.name.ends_with(MOST),
        points: series.points.iter().map(|&(x, y)| (x, y.is_finite().then_some(y))).collect(),
    };
    Figure {
        title: chart.title.clone(),
        x: axis(&chart.x),
        y: axis(&chart.y),
        lines: chart.series.iter().map(line).collect(),
    }
}

fn svg(charts: &[Chart], at: usize) -> Result<Answer, LabRefusal> {
    let chart = charts.get(at).ok_or_else(|| refused(format!("there is no chart {at}")))?;
    Ok(Answer { kind: "image/svg+xml", text: chart.svg() })
}

fn compared(place: &LabPlace, sides: &Sides) -> Result<(Compared, Vec<Chart>), LabRefusal> {
    let side = |name: &str| Side::open(&format!("{}#{name}", place.db.display())).map_err(refused);
    let found = compare(side(&sides.a)?, side(&sides.b)?).map_err(refused)?;
    let workloads: BTreeSet<&str> = found.pairs.iter().map(|pair| pair.workload.as_str()).collect();
    let workloads: Vec<String> = workloads.into_iter().map(str::to_owned).collect();
    // A comparison has a pair.
    let workload = workloads.iter().find(|name| **name == sides.workload).unwrap_or(&workloads[0]);
    let charts = comparison_charts(&found, workload);
    let comparison = serde_json::to_value(&found).expect("plain data can be written as JSON");
    let figures = charts.iter().map(figure).collect();
    Ok((Compared { comparison, workloads, figures }, charts))
}

/// The command lines that repeat a run: its campaign into another file, and where its trace is kept, the run itself.
fn repeat(place: &LabPlace, run: &OneRun) -> Result<Vec<String>, LabRefusal> {
    let store = Store::read(&place.db).map_err(refused)?;
    let here = place.matrix(&run.campaign).filter(|path| path.exists());
    let matrix = here.map_or_else(|| "MATRIX.toml".to_owned(), |path| path.to_string_lossy().into_owned());
    let mut commands = vec![format!("ebb lab eval run {} --db again.sqlite", quoted(&matrix))];
    let setup = |subject: String| -> Result<Option<Value>, LabRefusal> {
        let text = store.setup(&run.campaign, &subject).map_err(refused)?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    };
    let (target, settings) = (setup(format!("target {}", run.target))?, setup("settings".to_owned())?);
    let recorded = setup(format!("trace {}", run.workload))?;
    let recorded = recorded.and_then(|trace| Some(PathBuf::from(trace["Trace"]["file"].as_str()?)));
    let trace = recorded.or_else(|| kept(place, run));
    let filter = settings.as_ref().and_then(|settings| settings["filter"].as_str());
    let at = target.as_ref().and_then(|target| target["at"].as_str());
    if let (Some(trace), Some(at), Some(filter)) = (trace, at, filter) {
        let (trace, at, load) = (quoted(&trace.to_string_lossy()), quoted(at), run.load_percent);
        let size = target.as_ref().and_then(|target| target["size_bytes"].as_u64());
        let size =
            size.filter(|_| !at.starts_with('/')).map_or(String::new(), |size| format!(" --size {size}"));
        let replay = match filter {
            _ if load == 100.0 => format!("ebb lab replay {trace} --target {at}{size}"),
            "scale" => format!("ebb lab replay {trace} --target {at}{size} --intensity {load}%"),
            "balanced" => format!("ebb lab replay {trace} --target {at}{size} --load {load}%"),
            filter => format!(
                "ebb lab trace filter {trace} part.replay.0 --load {load}% --method {filter} && ebb lab replay part.replay.0 --target {at}{size}"
            ),
        };
        // An idle run has no trace.
        commands.extend((load > 0.0).then_some(replay));
    }
    Ok(commands)
}

/// The trace of a mode's peak run, whatever the medium in its name.
fn kept(place: &LabPlace, run: &OneRun) -> Option<PathBuf> {
    let folder = place.depository.join(&run.campaign).join(&run.target);
    let end = format!("-{}.replay.0", run.workload);
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.into_iter().find(|path| path.to_string_lossy().ends_with(&end))
}
