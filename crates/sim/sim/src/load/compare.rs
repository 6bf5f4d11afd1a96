//! One table of several series, with a line for each policy on each: for people, for spreadsheets and for papers.

use super::{Outcome, Policy, Report, Shares, fine_percent, how_long, percent};
use ebb_output::table;
use std::fmt::Write;

/// A policy on a series.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    series: &'a str,
    days: f64,
    /// The accepted shortage and the budget of power cycles; absent for policies that heed none.
    short_goal: Option<f64>,
    cycles_per_day: Option<f64>,
    outcome: &'a Outcome,
    shares: Shares,
    /// Share of the time short after the days of learning; absent for policies that do not learn, or if no such day is
    /// recorded.
    short_time_after_learning: Option<f64>,
}

/// A figure of a row.
struct Column {
    /// As in `--json`, with the names of what it is in there.
    key: &'static str,
    /// Absent: for spreadsheets only.
    title: Option<&'static str>,
    shown: fn(f64) -> String,
    of: fn(&Row) -> Option<f64>,
}

const fn column(
    key: &'static str,
    title: Option<&'static str>,
    shown: fn(f64) -> String,
    of: fn(&Row) -> Option<f64>,
) -> Column {
    Column { key, title, shown, of }
}

const COLUMNS: [Column; 19] = [
    column("days", None, number, |row| Some(row.days)),
    column("short_goal", Some("accepted"), fine_percent, |row| row.short_goal),
    column("cycles_per_day", Some("budget"), number, |row| row.cycles_per_day),
    column("modelled_joules", None, number, |row| Some(row.outcome.modelled_joules.0)),
    column("savings", Some("savings"), percent, |row| Some(row.outcome.savings)),
    column("of_continuous_oracle", Some("of oracle"), percent, |row| row.shares.of_continuous_oracle),
    column("of_cycles_oracle", Some("of cycles-oracle"), percent, |row| row.shares.of_cycles_oracle),
    column("mean_awake", None, number, |row| Some(row.outcome.mean_awake)),
    column("short_time", Some("time short"), fine_percent, |row| Some(row.outcome.short_time)),
    column("short_time_after", Some("after learning"), fine_percent, |row| row.short_time_after_learning),
    column("short_load", None, fine_percent, |row| Some(row.outcome.short_load)),
    column("excess_load", None, fine_percent, |row| Some(row.outcome.excess_load)),
    column("run_seconds_median", None, how_long, |row| Some(row.outcome.shortage?.run_seconds.median)),
    column("run_seconds_p95", None, how_long, |row| Some(row.outcome.shortage?.run_seconds.p95)),
    column("run_seconds_most", Some("longest"), how_long, |row| Some(row.outcome.shortage?.run_seconds.most)),
    column("unserved_median", None, percent, |row| Some(row.outcome.shortage?.unserved.median)),
    column("unserved_p95", None, percent, |row| Some(row.outcome.shortage?.unserved.p95)),
    column("unserved_most", Some("deepest"), percent, |row| Some(row.outcome.shortage?.unserved.most)),
    column("cycles_per_server_per_day", Some("cycles/server/day"), number, |row| {
        Some(row.outcome.cycles_per_server_per_day)
    }),
];

fn number(value: f64) -> String {
    format!("{value:.2}")
}

/// The rows of a series: its policies, then the points of its frontier.
pub fn rows<'a>(report: &Report<'a>) -> Vec<Row<'a>> {
    let (setup, days) = (&report.case.setup, report.case.days());
    let policies = report.outcomes.iter().map(|(outcome, _)| {
        let is_ebb = outcome.policy == Policy::Ebb;
        let has_a_budget = is_ebb || outcome.policy == Policy::CyclesOracle;
        let learning = report.learning.filter(|_| is_ebb);
        Row {
            series: report.name,
            days,
            short_goal: is_ebb.then_some(setup.short_goal),
            cycles_per_day: has_a_budget.then_some(setup.cycles_per_day),
            outcome,
            shares: report.oracles.shares(outcome.savings),
            short_time_after_learning: learning.and_then(|learning| learning.short_time_after),
        }
    });
    let frontier = report.frontier.iter().map(|point| Row {
        series: report.name,
        days,
        short_goal: Some(point.short_goal),
        cycles_per_day: Some(point.cycles_per_day),
        outcome: &point.outcome,
        shares: point.shares,
        short_time_after_learning: None,
    });
    policies.chain(frontier).collect()
}

fn titles() -> Vec<&'static str> {
    ["series", "policy"].into_iter().chain(COLUMNS.iter().filter_map(|column| column.title)).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let shown = COLUMNS.iter().filter(|column| column.title.is_some());
    let shown = shown.map(|column| (column.of)(row).map_or("–".to_owned(), column.shown));
    [row.series, row.outcome.policy.name()].map(str::to_owned).into_iter().chain(shown).collect()
}

/// For people.
pub fn table_text(rows: &[Row]) -> String {
    let mut out = String::new();
    table(&mut out, &titles(), &rows.iter().map(cells).collect::<Vec<_>>());
    out
}

/// For spreadsheets: all figures, unrounded, named as in `--json`; what is absent is empty. [RFC 4180]
pub fn table_csv(rows: &[Row]) -> String {
    let keys: Vec<&str> = COLUMNS.iter().map(|column| column.key).collect();
    let mut out = format!("series,policy,{}\n", keys.join(","));
    for row in rows {
        let _ = write!(out, "\"{}\",{}", row.series.replace('"', "\"\""), row.outcome.policy.name());
        for column in &COLUMNS {
            let value = (column.of)(row).map_or(String::new(), |value| value.to_string());
            let _ = write!(out, ",{value}");
        }
        out.push('\n');
    }
    out
}

/// For papers: a `tabular` that needs no package.
pub fn table_latex(rows: &[Row]) -> String {
    let titles = titles();
    let columns = "r".repeat(titles.len() - 2);
    let mut out = format!("% All figures are modelled.\n\\begin{{tabular}}{{ll{columns}}}\n\\hline\n");
    out.push_str(&tex_line(titles));
    out.push_str("\\hline\n");
    for row in rows {
        out.push_str(&tex_line(cells(row).iter().map(String::as_str)));
    }
    out + "\\hline\n\\end{tabular}\n"
}

fn tex_line<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let cells: Vec<String> = cells.into_iter().map(tex).collect();
    format!("{} \\\\\n", cells.join(" & "))
}

/// Text that LaTeX shows as it is.
fn tex(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\textbackslash{}"),
            '~' => out.push_str("\\textasciitilde{}"),
            '^' => out.push_str("\\textasciicircum{}"),
            '–' => out.push_str("--"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Shortage, Spread};
    use super::*;
    use ebb_types::Joules;

    fn outcome(policy: Policy, savings: f64, shortage: Option<Shortage>) -> Outcome {
        Outcome {
            policy,
            modelled_joules: Joules(3.6e6),
            modelled_kwh_per_year: 1.0,
            savings,
            mean_awake: 5.0,
            short_time: 0.01,
            short_load: 0.02,
            excess_load: 0.003,
            shortage,
            cycles_per_server_per_day: 1.5,
        }
    }

    fn row<'a>(series: &'a str, outcome: &'a Outcome, of_cycles_oracle: Option<f64>) -> Row<'a> {
        let shares = Shares { of_continuous_oracle: Some(0.9), of_cycles_oracle };
        let (short_goal, cycles_per_day) = (Some(0.01), Some(2.0));
        Row {
            series,
            days: 14.0,
            short_goal,
            cycles_per_day,
            outcome,
            shares,
            short_time_after_learning: None,
        }
    }

    #[test]
    fn all_figures_of_a_row_are_in_its_line() {
        let spread = |median, p95, most| Spread { median, p95, most };
        let run_seconds = spread(60.0, 600.0, 7200.0);
        let shortage = Shortage { runs: 4, run_seconds, unserved: spread(0.1, 0.2, 0.25) };
        let (ebb, quiet) = (outcome(Policy::Ebb, 0.45, Some(shortage)), outcome(Policy::Sierra, 0.4, None));
        let rows = [row("a,\"b\"", &ebb, Some(0.95)), row("50%_c", &quiet, None)];
        let csv = table_csv(&rows);
        let lines: Vec<&str> = csv.lines().collect();
        assert!(
            lines[0].starts_with("series,policy,days,short_goal,cycles_per_day,modelled_joules,savings,")
        );
        assert_eq!(
            lines[1],
            "\"a,\"\"b\"\"\",ebb,14,0.01,2,3600000,0.45,0.9,0.95,5,0.01,,0.02,0.003,60,600,7200,0.1,0.2,0.25,1.5"
        );
        assert_eq!(lines[2], "\"50%_c\",sierra,14,0.01,2,3600000,0.4,0.9,,5,0.01,,0.02,0.003,,,,,,,1.5");
        assert_eq!(
            table_latex(&rows).lines().nth(6),
            Some(
                "50\\%\\_c & sierra & 1.00 \\% & 2.00 & 40.0 \\% & 90.0 \\% & -- & 1.00 \\% & -- & -- & -- & 1.50 \\\\"
            )
        );
        let text = table_text(&rows);
        let shown = ["45.0 %", "90.0 %", "95.0 %", "1.00 %", "–", "2.0 h", "25.0 %", "1.50"];
        let ebb = text.lines().nth(1).unwrap();
        assert!(shown.iter().all(|cell| ebb.contains(cell)), "{ebb}");
    }
}
