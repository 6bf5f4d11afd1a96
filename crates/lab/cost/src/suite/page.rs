//! The results as text and as a page of Figures 1 to 5.

use super::super::show::{cell, number};
use super::figures::{Beside, Row};
use super::{Outcome, SuiteReport, WorkloadResult};
use ebb_output::{Axis, Chart, Mark, Page, Series, table};
use std::fmt::{self, Display, Formatter};

const ANOTHER_MACHINE: &str = "The paper's values are of other machines (two servers of 8 cores of 2010, one with disks and one with flash) and of \
     the applications themselves, not of their stand-ins: compare the shape, not the value.";

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// With a sign: what is more or less than something else.
fn signed(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

fn value(value: Option<f64>, unit: &str) -> String {
    match (value, unit) {
        (None, _) => "–".into(),
        (Some(value), "%") => percent(value),
        (Some(value), unit) => format!("{} {unit}", number(value)),
    }
}

fn paper_of(row: &Row) -> String {
    row.paper.clone().unwrap_or_else(|| "–".into())
}

/// What a table shows of each workload, behind its name.
type Columns<'a> = &'a [(&'static str, &'a dyn Fn(&Row) -> String)];

/// A series' name, and its value of a workload.
type Value<'a> = (&'a str, &'a dyn Fn(&Row) -> Option<f64>);

impl SuiteReport {
    fn rows(&self, columns: Columns<'_>) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let header = ["workload"].into_iter().chain(columns.iter().map(|(name, _)| *name));
        let row =
            |row: &Row| [row.name.clone()].into_iter().chain(columns.iter().map(|(_, of)| of(row))).collect();
        (header.collect(), self.figures.rows.iter().map(row).collect())
    }

    fn machine(&self) -> String {
        let cpu = self.cpu.as_deref().unwrap_or("CPU of unknown kind");
        let kernel = self.kernel.as_deref().map_or(String::new(), |kernel| format!(", Linux {kernel}"));
        let cores: Vec<String> = self.cores.iter().map(usize::to_string).collect();
        format!(
            "{cpu}, {} cores{kernel}; runs on {} cores, {} each; scale {}, seed {}; modelled {} W at the peak, without storage",
            self.machine_cores,
            cores.join(", "),
            self.runs,
            self.scale,
            self.seed,
            number(self.peak_watts)
        )
    }

    /// What was not measured, and why.
    fn absent(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for WorkloadResult { name, outcome, guests, .. } in &self.workloads {
            match outcome {
                Outcome::Measured(_) => {}
                Outcome::Skipped(why) => lines.push(format!("{name}: skipped: {why}")),
                Outcome::Failed(why) => lines.push(format!("{name}: failed: {why}")),
            }
            let failed = guests.iter().filter_map(|guests| Some((guests.guests, guests.failure.as_ref()?)));
            lines.extend(failed.map(|(count, why)| format!("{name} in {count} guests: failed: {why}")));
        }
        lines
    }

    /// A self-contained page.
    pub fn page(&self) -> String {
        let lead = format!(
            "{} of {} workloads, cycles and modelled energy per I/O of 512 bytes, by layer, as in \"Energy Inefficiency of \
             Operating System Layers for Data-centric Infrastructures\". {}\n\n{ANOTHER_MACHINE}",
            self.figures.rows.len(),
            self.workloads.len(),
            self.machine()
        );
        let mut page = Page::new("The energy of the OS layers", lead);
        let about: Vec<Vec<String>> = self
            .workloads
            .iter()
            .map(|w| vec![w.name.clone(), w.paper.clone().unwrap_or_else(|| "–".into()), w.about.clone()])
            .collect();
        page.section("Workloads", "").table("What ran", &["workload", "stands for", "what it does"], &about);
        for line in self.absent() {
            page.text(&line);
        }
        self.figure_1(&mut page);
        self.figure_2(&mut page);
        self.figure_3(&mut page);
        self.figure_4(&mut page);
        self.figure_5(&mut page);
        page.section("How it was measured", &self.notes.join("\n\n"));
        page.render()
    }

    /// One mark per workload and series; bars only from zero. Nothing is drawn where nothing was measured.
    fn chart(&self, page: &mut Page, title: &str, mark: Mark, y: Axis, series: &[Value<'_>]) {
        let rows = &self.figures.rows;
        let names = rows.iter().map(|row| row.name.clone());
        let mut chart = Chart::new(title, Axis::new("").names(names), y);
        for (name, of) in series {
            let points = rows.iter().enumerate().map(|(at, row)| (at as f64, of(row).unwrap_or(f64::NAN)));
            chart = chart.with(Series::new(*name, mark, points));
        }
        if chart.series.iter().flat_map(|series| &series.points).any(|point| point.1.is_finite()) {
            page.chart(&chart);
        }
    }

    /// The figure's table of workloads, and the paper's values beside ours.
    fn tables(&self, page: &mut Page, figure: u8, columns: Columns<'_>) {
        let (header, rows) = self.rows(columns);
        page.table("By workload", &header, &rows);
        let beside: Vec<Vec<String>> =
            self.figures.beside.iter().filter(|line| line.figure == figure).map(beside_cells).collect();
        page.table("Beside the paper (another machine)", &BESIDE, &beside);
    }

    fn figure_1(&self, page: &mut Page) {
        page.section("Figure 1: where the time goes", "Shares of the time of all cores.");
        self.chart(
            page,
            "Share of the execution time",
            Mark::Bars,
            Axis::new("share").percent().from(0.0).to(1.0),
            &[
                ("user", &|row| Some(row.shares.user)),
                ("system", &|row| Some(row.shares.system)),
                ("idle", &|row| Some(row.shares.idle)),
                ("iowait", &|row| Some(row.shares.iowait)),
            ],
        );
        self.tables(
            page,
            1,
            &[
                ("stands for", &paper_of),
                ("user", &|row| percent(row.shares.user)),
                ("system", &|row| percent(row.shares.system)),
                ("idle", &|row| percent(row.shares.idle)),
                ("iowait", &|row| percent(row.shares.iowait)),
            ],
        );
    }

    fn figure_2(&self, page: &mut Page) {
        page.section(
            "Figure 2: energy per million I/Os",
            "Modelled, with idle cores that draw nothing and with idle cores that draw 0.7 of the peak.",
        );
        self.chart(
            page,
            "Energy per million I/Os (emio)",
            Mark::Points,
            Axis::new("joules").log(),
            &[
                ("idle power 0", &|row| Some(row.emio_without_idle_power_joules)),
                ("idle power 0.7", &|row| Some(row.emio_joules)),
            ],
        );
        self.tables(
            page,
            2,
            &[
                ("stands for", &paper_of),
                ("cycles per I/O", &|row| number(row.cpio_cycles)),
                ("emio, idle power 0", &|row| number(row.emio_without_idle_power_joules) + " J"),
                ("emio, idle power 0.7", &|row| number(row.emio_joules) + " J"),
                ("ratio", &|row| number(row.emio_joules / row.emio_without_idle_power_joules)),
            ],
        );
    }

    fn figure_3(&self, page: &mut Page) {
        page.section(
            "Figure 3: the system layer",
            "Energy per million I/Os with idle power 0.7 of the peak: user and idle time alone, and with the system time.",
        );
        self.chart(
            page,
            "Energy per million I/Os with and without the system part",
            Mark::Points,
            Axis::new("joules").log(),
            &[
                ("user and idle", &|row| Some(row.emio_without_system_joules)),
                ("user, idle and system", &|row| Some(row.emio_joules)),
            ],
        );
        self.tables(
            page,
            3,
            &[
                ("stands for", &paper_of),
                ("user and idle", &|row| number(row.emio_without_system_joules) + " J"),
                ("with system", &|row| number(row.emio_joules) + " J"),
                ("system part adds", &|row| row.system_overhead.map_or("–".into(), signed)),
            ],
        );
    }

    fn figure_4(&self, page: &mut Page) {
        let runs: Vec<_> =
            self.workloads.iter().flat_map(|w| &w.guests).filter_map(|guests| guests.run.as_ref()).collect();
        let text = match runs.first() {
            None => "Not measured: virtual machines are started with --vm only.".to_owned(),
            Some(run) => run.about(),
        };
        page.section("Figure 4: virtual machines", &text);
        if runs.is_empty() {
            return;
        }
        let of = |count, pick: fn(&super::GuestsRow) -> f64| {
            move |row: &Row| row.guests.iter().find(|guests| guests.guests == count).map(|g| 1.0 + pick(g))
        };
        type Pick = fn(&super::GuestsRow) -> f64;
        let picks: [(&str, Pick); 2] = [
            ("Cycles per I/O by those of the host", |g| g.cpio_increase),
            ("Energy per I/O by that of the host", |g| g.emio_increase),
        ];
        for (title, pick) in picks {
            let (one, two) = (of(1, pick), of(2, pick));
            self.chart(
                page,
                title,
                Mark::Bars,
                Axis::new("factor").from(0.0),
                &[("one guest", &one), ("two guests", &two)],
            );
        }
        let cell = |count, pick: Pick| {
            move |row: &Row| {
                let found = row.guests.iter().find(|guests| guests.guests == count).map(pick);
                found.map_or("–".into(), signed)
            }
        };
        self.tables(
            page,
            4,
            &[
                ("stands for", &paper_of),
                ("cpio, one guest", &cell(1, |g| g.cpio_increase)),
                ("cpio, two", &cell(2, |g| g.cpio_increase)),
                ("emio, one guest", &cell(1, |g| g.emio_increase)),
                ("emio, two", &cell(2, |g| g.emio_increase)),
            ],
        );
    }

    fn figure_5(&self, page: &mut Page) {
        page.section(
            "Figure 5: system cycles per I/O against cores",
            "Measured on the cores of this machine, relative to the fewest, and extended by a line through the runs. The \
             interval is where one more run would be with a probability of 95 %, if the line were the truth: from few \
             cores to many it is wide, and where it reaches below zero the runs do not tell growth from decline.",
        );
        let mut chart = Chart::new(
            "Growth of the system cycles per I/O",
            Axis::new("cores").log(),
            Axis::new("by those on the fewest cores").log(),
        );
        for row in &self.figures.rows {
            let measured = row.growth.iter().map(|(cores, growth)| (*cores as f64, *growth));
            let projected = row.projected.iter().filter_map(|at| Some((f64::from(at.cores), at.growth?)));
            chart = chart.with(Series::new(&row.name, Mark::Line, measured.chain(projected)));
        }
        if self.cores.len() > 1 && !self.figures.rows.is_empty() {
            page.chart(&chart);
        }
        let at = |place: usize| {
            move |row: &Row| {
                let Some(at) = row.projected.get(place) else { return "–".into() };
                let growth = at.growth.map_or("below 0".into(), number);
                match at.growth_low.zip(at.growth_high) {
                    Some((low, high)) => format!("{growth} ({} … {})", number(low), number(high)),
                    None => growth,
                }
            }
        };
        let measured = |row: &Row| {
            let points: Vec<String> =
                row.growth.iter().map(|(cores, growth)| format!("{cores}: {growth:.2}")).collect();
            points.join(", ")
        };
        self.tables(
            page,
            5,
            &[
                ("measured, by cores", &measured),
                ("on 128 cores (95 %)", &at(0)),
                ("on 256", &at(1)),
                ("on 1,024", &at(2)),
            ],
        );
    }
}

const BESIDE: [&str; 4] = ["what", "paper, disks", "paper, flash", "here"];

fn beside_cells(line: &Beside) -> Vec<String> {
    let cells = [line.disks, line.flash, line.here].map(|number| value(number, line.unit));
    std::iter::once(line.what.clone()).chain(cells).collect()
}

impl Display for SuiteReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.machine())?;
        let (header, rows) = self.rows(&[
            ("stands for", &paper_of),
            ("user", &|row| percent(row.shares.user)),
            ("system", &|row| percent(row.shares.system)),
            ("idle", &|row| percent(row.shares.idle)),
            ("iowait", &|row| percent(row.shares.iowait)),
            ("cycles/I/O", &|row| number(row.cpio_cycles)),
            ("emio IP 0", &|row| number(row.emio_without_idle_power_joules) + " J"),
            ("emio IP 0.7", &|row| number(row.emio_joules) + " J"),
            ("user+idle", &|row| number(row.emio_without_system_joules) + " J"),
            ("system adds", &|row| row.system_overhead.map_or("–".into(), signed)),
            ("1,024 cores", &|row| cell(row.projected.last().and_then(|at| at.growth))),
        ]);
        let mut text = String::new();
        table(&mut text, &header, &rows);
        text.push('\n');
        let beside: Vec<Vec<String>> = self
            .figures
            .beside
            .iter()
            .map(|line| [vec![format!("Fig. {}", line.figure)], beside_cells(line)].concat())
            .collect();
        let head: Vec<&str> = std::iter::once("").chain(BESIDE).collect();
        table(&mut text, &head, &beside);
        write!(f, "{text}\n{ANOTHER_MACHINE}\n")?;
        self.absent().iter().try_for_each(|line| writeln!(f, "{line}"))?;
        let guests = self.workloads.iter().flat_map(|w| &w.guests).find_map(|guests| guests.run.as_ref());
        guests.map_or(Ok(()), |run| writeln!(f, "note: {}", run.about()))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}
