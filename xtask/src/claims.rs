//! The papers' claims as data. `docs/claims/` has a table per paper, and the tables of `docs/papers.md` are written
//! from them (`cargo xtask papers`): a row, its figures and how often a state occurs cannot differ between page and
//! test.
//!
//! What stands before the first heading of the page is prose, and stays as it is. That a row's command exists, and that
//! its figures lie in their bands, a test of the program asks (`crates/ebb/tests/all/papers.rs`). How far a figure
//! ranges over seeds `cargo xtask papers --ranges` measures and writes into the tables (`ranges.rs`).

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const PAGE: &str = "docs/papers.md";
/// The tables of `docs/claims/`, in the order of the page.
pub const TABLES: [&str; 5] = ["sierra", "tracer", "os-layers", "logstore", "ecs2"];
/// A paper with fewer rows was not read to its end.
const FEWEST_ROWS: usize = 15;
const HEAD: &str =
    "| row | paper § | claim | in Ebb | command that shows it | paper | ours | why different |";
const RULE: &str = "|---|---|---|---|---|---|---|---|";

/// The claims of one paper.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The heading of its table.
    paper: String,
    /// With which the names of its rows begin.
    letter: String,
    /// Of the figures' spreads; absent: none has one.
    pub ranges: Option<Ranges>,
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// How the ranges over seeds were last made.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Ranges {
    pub date: String,
    pub machine: String,
    /// Of the program; absent: its builder named none.
    pub commit: Option<String>,
}

/// One claim. What is absent is a dash on the page.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub id: String,
    /// Of the paper; absent: the claim is ours.
    section: Option<String>,
    claim: String,
    in_ebb: Option<String>,
    /// What shows it. `figures` are those of the first.
    #[serde(default)]
    pub command: Vec<String>,
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// The first command takes more than seconds, so that its figures are looked up by night.
    #[serde(default)]
    nightly: bool,
    /// The paper's value.
    paper: Option<String>,
    /// Ours; absent: the state says it.
    ours: Option<String>,
    state: State,
    /// First and last seed that `ours` is of.
    pub seeds: Option<[u64; 2]>,
    /// Where `ours` was measured, and the day on which it came into the project; absent: nothing of a machine is in it.
    machine: Option<String>,
    date: Option<String>,
    /// Why ours differs from the paper's, or what is missing.
    why: Option<String>,
}

/// A value of a command's `--json`, and between what it must lie.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// As in RFC 6901; an element of an array also by its `name` or its `what`.
    pub pointer: String,
    /// Of the command as it stands, which has seed 1.
    pub band: [f64; 2],
    /// Absent: it was not measured with other seeds, or is the same with each.
    pub spread: Option<Spread>,
}

/// A figure over several seeds.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The first and the last. The first is 1, the command's own.
    pub seeds: [u64; 2],
    /// With the first seed.
    pub value: f64,
    pub mean: f64,
    pub range: [f64; 2],
}

impl Figure {
    /// `energy 61.04 (60.07 to 62.53)`; without a spread the row's text says what it is.
    fn over_seeds(&self) -> Option<String> {
        let Spread { value, range: [least, most], .. } = self.spread.as_ref()?;
        let [value, least, most] = [value, least, most].map(|number| short(*number));
        let mut steps = self.pointer.rsplit('/').filter(|step| *step != "here");
        let name = steps.next().unwrap_or_default().replace("~1", "/").replace("~0", "~");
        Some(format!("{name} {value} ({least} to {most})"))
    }

    fn faults(&self) -> Vec<String> {
        let Figure { pointer, band: [least, most], spread } = self;
        let mut faults = Vec::new();
        if !pointer.starts_with('/') {
            faults.push(format!("{pointer:?} is no pointer: it begins with a slash"));
        }
        if !(least.is_finite() && most.is_finite() && least <= most) {
            faults.push(format!("{pointer}: a band from {least} to {most} holds nothing"));
        }
        let Some(Spread { seeds: [first, last], value, mean, range }) = spread else { return faults };
        let [low, high] = range;
        if *first != 1 || last <= first {
            faults.push(format!("{pointer}: no spread over the seeds {first} to {last}: several, from 1 on"));
        }
        for (what, number) in [("value", value), ("mean", mean)] {
            if !(low..=high).contains(&number) {
                faults.push(format!("{pointer}: the {what} {number} is outside of {low} to {high}"));
            }
        }
        if !(least..=most).contains(&value) {
            faults.push(format!("{pointer}: the value {value} is outside of its band, {least} to {most}"));
        }
        faults
    }
}

/// Four digits, and all of a whole number.
fn short(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1000.0 {
        return format!("{value:.0}");
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum State {
    Works,
    Modelled,
    Partly,
    #[serde(rename = "not built")]
    NotBuilt,
    #[serde(rename = "nothing to build")]
    NothingToBuild,
}

impl State {
    const ALL: [State; 5] =
        [State::Works, State::Modelled, State::Partly, State::NotBuilt, State::NothingToBuild];

    fn word(self) -> &'static str {
        match self {
            State::Works => "works",
            State::Modelled => "modelled",
            State::Partly => "partly",
            State::NotBuilt => "not built",
            State::NothingToBuild => "nothing to build",
        }
    }

    fn is_there(self) -> bool {
        matches!(self, State::Works | State::Modelled)
    }
}

impl Row {
    /// A value alone would pass for one that shows the claim.
    fn ours(&self) -> String {
        let over_seeds: Vec<String> = self.figures.iter().filter_map(Figure::over_seeds).collect();
        let spread = self.figures.iter().find_map(|figure| figure.spread.as_ref());
        let ranges = spread.map(|Spread { seeds: [first, last], .. }| {
            format!("seed {first} and the range of {first} to {last}: {}", over_seeds.join("; "))
        });
        let parts: Vec<String> = self.ours.iter().cloned().chain(ranges).collect();
        match parts.is_empty() {
            true => self.state.word().to_owned(),
            false if self.state.is_there() => parts.join("; "),
            false => format!("{}: {}", self.state.word(), parts.join("; ")),
        }
    }

    fn line(&self) -> String {
        let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| "–".to_owned());
        let commands: Vec<String> = self.command.iter().map(|command| format!("`{command}`")).collect();
        let commands = Some(commands.join(", ")).filter(|commands| !commands.is_empty());
        let cells = [
            self.id.clone(),
            cell(&self.section),
            self.claim.clone(),
            cell(&self.in_ebb),
            cell(&commands),
            cell(&self.paper),
            self.ours(),
            cell(&self.why),
        ];
        format!("| {} |", cells.join(" | "))
    }

    /// What is wrong with it alone.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.line().matches('|').count() != HEAD.matches('|').count() || self.line().contains('\n') {
            faults.push("a cell has a bar or a line break".to_owned());
        }
        if !self.state.is_there() && self.why.is_none() {
            faults.push(format!("it is {:?} and does not say why", self.state.word()));
        }
        if self.figures.is_empty() && self.nightly {
            faults.push("it runs by night and has no figures".to_owned());
        }
        if !self.figures.is_empty() {
            match self.command.first() {
                None => faults.push("it has figures and no command".to_owned()),
                Some(command) if !can_be_run(command) => {
                    faults.push(format!("{command:?} prints no figures: name all its arguments"));
                }
                Some(_) => {}
            }
        }
        faults.extend(self.figures.iter().flat_map(Figure::faults));
        let mut seeds = self.figures.iter().filter_map(|figure| Some(figure.spread.as_ref()?.seeds));
        if seeds.next().is_some_and(|first| seeds.any(|other| other != first)) {
            faults.push("its figures are of different seeds: run `cargo xtask papers --ranges`".to_owned());
        }
        if let Some([first, last]) = self.seeds.filter(|[first, last]| first > last) {
            faults.push(format!("there are no seeds {first} to {last}"));
        }
        if self.machine.is_some() != self.date.is_some() {
            faults.push("a machine without a date, or a date without a machine".to_owned());
        }
        if let Some(date) = self.date.as_deref().filter(|date| !is_date(date)) {
            faults.push(format!("{date:?} is no date: write 2026-11-27"));
        }
        faults
    }
}

/// A command of `ebb` with all its arguments: a word in capitals stands for one that the reader has.
fn can_be_run(command: &str) -> bool {
    let is_place = |word: &str| word.starts_with(|c: char| c.is_ascii_uppercase());
    command.starts_with("ebb ") && !command.split([' ', ':']).any(is_place)
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_number = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    parts.iter().map(|part| part.len()).eq([4, 2, 2]) && parts.iter().all(is_number)
}

/// Every table, or what cannot be read.
pub fn read(root: &Path) -> Result<Vec<Claims>, String> {
    TABLES.into_iter().map(|name| read_one(root, &path(name))).collect()
}

/// Where a table is.
pub fn path(name: &str) -> String {
    format!("docs/claims/{name}.toml")
}

pub fn read_one(root: &Path, path: &str) -> Result<Claims, String> {
    let text = std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("{path}: {error}"))
}

/// What is wrong with the data, and whether the page is what they give.
pub fn faults(root: &Path, papers: &[Claims]) -> Vec<String> {
    let mut faults = data_faults(papers);
    match std::fs::read_to_string(root.join(PAGE)) {
        Ok(page) if page == written(&page, papers) => {}
        Ok(_) => {
            faults.push(format!("{PAGE} is not what docs/claims gives: run `cargo xtask papers`"));
        }
        Err(error) => faults.push(format!("{PAGE}: {error}")),
    }
    faults
}

fn data_faults(papers: &[Claims]) -> Vec<String> {
    let mut faults = Vec::new();
    // By first command, whether it runs by night.
    let mut nightly: BTreeMap<&str, bool> = BTreeMap::new();
    for Claims { paper, letter, ranges, rows } in papers {
        let mut figures = rows.iter().flat_map(|row| &row.figures);
        if ranges.is_some() != figures.any(|figure| figure.spread.is_some()) {
            faults.push(format!("{paper} has ranges without a date, or a date without ranges"));
        }
        if rows.len() < FEWEST_ROWS {
            faults.push(format!("{paper} has {} rows", rows.len()));
        }
        for (nth, row) in (1..).zip(rows) {
            let id = &row.id;
            if *id != format!("{letter}{nth}") {
                faults.push(format!("{paper}: {letter}{nth} is called {id}: a second one, or out of order"));
            }
            faults.extend(row.faults().into_iter().map(|fault| format!("{id}: {fault}")));
            if let Some(command) = row.command.first().filter(|_| !row.figures.is_empty())
                && *nightly.entry(command).or_insert(row.nightly) != row.nightly
            {
                faults.push(format!("{id}: `{command}` runs by night in one row and by day in another"));
            }
        }
    }
    faults
}

/// The page with its prose as it is and its tables as the data have them.
fn written(page: &str, papers: &[Claims]) -> String {
    let prose = page.split("\n## ").next().unwrap_or_default().trim_end();
    let mut text = format!("{prose}\n\n## How many\n\n");
    text += &counts(papers);
    for Claims { paper, ranges, rows, .. } in papers {
        let _ = writeln!(text, "\n## {paper}\n");
        if let Some(Ranges { date, machine, commit }) = ranges {
            let commit = commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
            let _ = writeln!(text, "Ranges over seeds: {date}, {machine}{commit}.\n");
        }
        let _ = writeln!(text, "{HEAD}\n{RULE}");
        for row in rows {
            let _ = writeln!(text, "{}", row.line());
        }
    }
    text
}

/// How many rows of each paper are in which state.
fn counts(papers: &[Claims]) -> String {
    let words = State::ALL.map(State::word).join(" | ");
    let mut text = format!("| paper | rows | {words} |\n|---|---|---|---|---|---|---|\n");
    let mut line = |name: &str, rows: &[&Row]| {
        let of = |state: State| rows.iter().filter(|row| row.state == state).count().to_string();
        let counts = State::ALL.map(of).join(" | ");
        let _ = writeln!(text, "| {name} | {} | {counts} |", rows.len());
    };
    for Claims { paper, rows, .. } in papers {
        line(paper, &rows.iter().collect::<Vec<_>>());
    }
    line("all", &papers.iter().flat_map(|claims| &claims.rows).collect::<Vec<_>>());
    text
}

/// `cargo xtask papers`: writes the page. Returns whether all is well.
pub fn write(root: &Path) -> bool {
    let result = read(root).and_then(|papers| {
        let wrong = data_faults(&papers);
        if !wrong.is_empty() {
            return Err(wrong.join("\n"));
        }
        let path = root.join(PAGE);
        let failed = |error: std::io::Error| format!("{PAGE}: {error}");
        let page = std::fs::read_to_string(&path).map_err(failed)?;
        std::fs::write(&path, written(&page, &papers)).map_err(failed)
    });
    told(result.err().into_iter().collect())
}

/// `cargo xtask papers --check`.
pub fn check(root: &Path) -> bool {
    told(match read(root) {
        Ok(papers) => faults(root, &papers),
        Err(why) => vec![why],
    })
}

/// Says what is wrong, and returns whether nothing is.
pub fn told(faults: Vec<String>) -> bool {
    faults.iter().for_each(|fault| eprintln!("papers: {fault}"));
    faults.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "id = \"X1\"\nclaim = \"c\"\nstate = \"works\"\n";

    fn row(fields: &str) -> Row {
        toml::from_str(&format!("{ROW}{fields}")).unwrap()
    }

    fn paper(rows: Vec<Row>) -> Claims {
        Claims { paper: "X".to_owned(), letter: "X".to_owned(), ranges: None, rows }
    }

    #[test]
    fn a_row_is_written_with_dashes_for_what_is_absent() {
        assert_eq!(row("").line(), "| X1 | – | c | – | – | – | works | – |");
        let text =
            "section = \"2\"\ncommand = [\"a b\", \"c\"]\npaper = \"1 W\"\nours = \"2 W\"\nwhy = \"so\"";
        let mut row = row(text);
        assert_eq!(row.line(), "| X1 | 2 | c | – | `a b`, `c` | 1 W | 2 W | so |");
        row.state = State::Partly;
        assert_eq!(row.ours(), "partly: 2 W", "a value does not hide that it is not the paper's");
    }

    #[test]
    fn a_row_that_cannot_be_true_is_noticed() {
        let figure =
            |pointer: &str, band: &str| format!("figures = [{{ pointer = \"{pointer}\", band = {band} }}]\n");
        let run = "command = [\"ebb simulate paper ecs2\"]\n";
        let well = figure("/a/0", "[1.0, 2.0]");
        let spread = |first: u64, value: f64, range: &str| {
            let spread = format!("{{ seeds = [{first}, 20], value = {value}, mean = 1.5, range = {range} }}");
            format!("{run}{}", well.replace(" }]", &format!(", spread = {spread} }}]")))
        };
        assert_eq!(row(&format!("{run}{well}nightly = true")).faults(), Vec::<String>::new());
        assert_eq!(
            row(&spread(1, 1.5, "[1.0, 2.5]")).faults(),
            Vec::<String>::new(),
            "another seed may leave it"
        );
        for (fields, why) in [
            (well.clone(), "no command"),
            (format!("command = [\"ebb lab trace info TRACE\"]\n{well}"), "name all its arguments"),
            (format!("command = [\"ebb lab trace info file:PATH\"]\n{well}"), "name all its arguments"),
            (format!("command = [\"make bench\"]\n{well}"), "name all its arguments"),
            (format!("{run}{}", figure("a", "[1.0, 2.0]")), "no pointer"),
            (format!("{run}{}", figure("/a", "[2.0, 1.0]")), "holds nothing"),
            (format!("{run}{}", figure("/a", "[nan, 1.0]")), "holds nothing"),
            (format!("{run}nightly = true"), "no figures"),
            ("seeds = [2, 1]".to_owned(), "no seeds"),
            (spread(1, 1.5, "[1.0, 1.9]").replace("[1, 20]", "[1, 1]"), "no spread over the seeds"),
            (spread(2, 1.5, "[1.0, 1.9]"), "no spread over the seeds"),
            (spread(1, 1.9, "[1.0, 1.8]"), "the value 1.9 is outside of 1 to 1.8"),
            (spread(1, 2.5, "[1.0, 3.0]"), "outside of its band"),
            (spread(1, 1.5, "[1.5, 1.6]").replace("mean = 1.5", "mean = 1.7"), "the mean 1.7"),
            ("machine = \"m\"".to_owned(), "without a date"),
            ("machine = \"m\"\ndate = \"27 November\"".to_owned(), "no date"),
            ("in_ebb = \"a | b\"".to_owned(), "a bar"),
        ] {
            let found = row(&fields).faults();
            assert!(found.len() == 1 && found[0].contains(why), "{fields}: {found:?}");
        }
        let unbuilt = Row { state: State::NotBuilt, ..row("") };
        assert!(unbuilt.faults()[0].contains("does not say why"));
        assert!(toml::from_str::<Row>(&format!("{ROW}colour = 1")).is_err(), "an unknown field");
    }

    #[test]
    fn rows_have_their_numbers_and_a_command_one_time_of_day() {
        let named = |n: usize| Row { id: format!("X{n}"), ..row("") };
        let all = || (1..=FEWEST_ROWS).map(named).collect::<Vec<_>>();
        assert_eq!(data_faults(&[paper(all())]), Vec::<String>::new());
        let mut twice = all();
        twice[3].id = "X3".to_owned();
        assert!(data_faults(&[paper(twice)])[0].contains("X4 is called X3"));
        assert!(data_faults(&[paper(vec![named(1)])])[0].contains("has 1 rows"));
        let mut both = all();
        for (row, nightly) in both.iter_mut().zip([true, false]) {
            row.command = vec!["ebb x".to_owned()];
            row.figures = vec![Figure { pointer: "/a".to_owned(), band: [0.0, 1.0], spread: None }];
            row.nightly = nightly;
        }
        assert!(data_faults(&[paper(both)])[0].contains("by night in one row"));
    }

    #[test]
    fn a_figure_is_shown_with_its_range_over_seeds_and_the_table_with_when_and_where() {
        let spread = |value, range| Some(Spread { seeds: [1, 20], value, mean: value, range });
        let figure = |pointer: &str, spread| Figure { pointer: pointer.to_owned(), band: [0.0, 9e9], spread };
        let mut row = row("ours = \"as printed\"");
        row.figures = vec![
            figure("/experiments/Table 3/rows/2x: a~1b/here", spread(61.0444, [60.0, 62.53])),
            figure("/same", None),
            figure("/trace/requests", spread(347_125.0, [0.012_345, 347_126.0])),
        ];
        let ranges = "seed 1 and the range of 1 to 20: 2x: a/b 61.04 (60 to 62.53); requests 347125 (0.01235 to 347126)";
        assert_eq!(row.ours(), format!("as printed; {ranges}"));
        (row.ours, row.state) = (None, State::Partly);
        assert_eq!(row.ours(), format!("partly: {ranges}"));
        let mut papers = [paper(vec![row])];
        assert!(data_faults(&papers).iter().any(|fault| fault.contains("without a date")));
        papers[0].ranges = Some(Ranges {
            date: "2026-11-30".into(),
            machine: "m, 2 cores".into(),
            commit: Some("c".into()),
        });
        let said = "## X\n\nRanges over seeds: 2026-11-30, m, 2 cores, commit c.\n\n| row |";
        assert!(written("# T\n", &papers).contains(said));
        papers[0].rows[0].figures[0].spread.as_mut().unwrap().seeds = [1, 4];
        assert!(papers[0].rows[0].faults().iter().any(|fault| fault.contains("different seeds")));
    }

    #[test]
    fn prose_stays_and_tables_are_written_anew() {
        let papers = [paper(vec![row("")])];
        let page = written("# Title\n\nProse.\n\n## X\n\nold\n", &papers);
        let counts = "| X | 1 | 1 | 0 | 0 | 0 | 0 |\n| all | 1 | 1 | 0 | 0 | 0 | 0 |\n";
        let table = format!("\n## X\n\n{HEAD}\n{RULE}\n{}\n", papers[0].rows[0].line());
        assert!(page.starts_with("# Title\n\nProse.\n\n## How many\n\n| paper |"), "{page}");
        assert!(page.ends_with(&format!("{counts}{table}")), "{page}");
        assert_eq!(written(&page, &papers), page, "written twice it is the same");
    }

    #[test]
    fn a_page_that_the_data_do_not_give_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("docs")).unwrap();
        let rows = (1..=FEWEST_ROWS).map(|n| Row { id: format!("X{n}"), ..row("") }).collect();
        let papers = [paper(rows)];
        let page = written("# Title\n", &papers);
        std::fs::write(dir.path().join(PAGE), &page).unwrap();
        assert_eq!(faults(dir.path(), &papers), Vec::<String>::new());
        std::fs::write(dir.path().join(PAGE), page.replace("works", "should work")).unwrap();
        assert!(faults(dir.path(), &papers)[0].contains("run `cargo xtask papers`"));
    }
}
