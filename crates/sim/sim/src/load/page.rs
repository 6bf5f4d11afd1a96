//! The HTML report: what each policy saves, and load, servers and watts over the last week.

use super::{
    Case, Gaps, Learning, Oracles, Outcome, Point, Policy, PoolOutcome, Score, Shares, Timeline,
    fine_percent, how_long, percent,
};
use ebb_output::{Axis, Chart, Mark, Page, Series};

/// Most points of a curve: a screen has no more pixels.
const MOST_POINTS: usize = 2000;
/// Most servers whose states are drawn individually.
const MOST_SERVERS: usize = 64;
const SHOWN_DAYS: usize = 7;

/// The contents of a report.
pub struct Report<'a> {
    pub name: &'a str,
    pub case: &'a Case,
    pub gaps: Gaps,
    /// Second since 1970 at which the series begins, if it says so.
    pub begins: Option<i64>,
    /// What a kilowatt-hour costs, if that is known.
    pub price: Option<&'a Price>,
    pub outcomes: &'a [(Outcome, Option<Timeline>)],
    pub oracles: Oracles,
    /// Ebb's shortage while it learns, and after; absent if it was not played.
    pub learning: Option<Learning>,
    pub scores: &'a [Score],
    pub frontier: &'a [Point],
    /// Ways to keep cold data; may be empty.
    pub pools: &'a [PoolOutcome],
}

/// What a kilowatt-hour costs: `0.30 EUR`, or a bare number.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    pub per_kwh: f64,
    pub currency: String,
}

impl std::str::FromStr for Price {
    type Err = String;
    fn from_str(text: &str) -> Result<Price, String> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, currency) = text.split_at(end);
        let currency = currency.trim();
        // `0,30EUR` and `1e9EUR` are numbers that end too early.
        let a_name = !currency.contains(|c: char| c.is_ascii_digit() || c == ',' || c == '.');
        let per_kwh = number.parse().ok().filter(|number: &f64| number.is_finite() && a_name);
        let wrong = || format!("{text:?} is not a price of a kilowatt-hour: write it like 0.30EUR");
        Ok(Price { per_kwh: per_kwh.ok_or_else(wrong)?, currency: currency.to_owned() })
    }
}

/// A self-contained HTML page.
pub fn html(report: &Report) -> String {
    let ebb = report.outcomes.iter().find(|(outcome, _)| outcome.policy == Policy::Ebb);
    let lead = match ebb {
        Some((outcome, _)) => format!(
            "Ebb would save {} of the energy{}, with too few servers awake in {} of the time and {:.2} power cycles per server per day. \
             All figures are modelled.",
            percent(outcome.savings),
            saved_per_year(report, outcome),
            percent(outcome.short_time),
            outcome.cycles_per_server_per_day
        ),
        None => "All figures are modelled.".to_owned(),
    };
    let mut page = Page::new(format!("What sleep would save: {}", report.name), lead);
    let setup = &report.case.setup;
    let text = format!(
        "{} servers, {} replicas; a server sustains a load of {:.4}. The first {} days are for learning and are not counted. {}",
        setup.servers,
        setup.replicas,
        report.case.per_server,
        setup.train_days,
        gaps_text(report.gaps, report.case.step)
    );
    page.section("Policies", &text);
    let rows: Vec<Vec<String>> =
        report.outcomes.iter().map(|(outcome, _)| cells(outcome, report.price)).collect();
    page.strong_table("Energy is modelled", &header(report.price), &rows, Policy::Ebb.name());
    page.text(&verdict(report));
    page.strong_table(QUALITY_CAPTION, &QUALITY_HEADER, &quality_rows(report), Policy::Ebb.name());
    let bars = report.outcomes.iter().enumerate().map(|(i, (outcome, _))| (i as f64, outcome.savings));
    let short = report.outcomes.iter().enumerate().map(|(i, (outcome, _))| (i as f64, outcome.short_time));
    let names = report.outcomes.iter().map(|(outcome, _)| outcome.policy.name());
    page.chart(
        &Chart::new(
            "Savings against always-on, and what they cost",
            Axis::new("").names(names),
            Axis::new("of the energy; of the time").percent(),
        )
        .with(Series::new("energy saved", Mark::Bars, bars))
        .with(Series::new("time with too few servers awake", Mark::Bars, short))
        .strong(Policy::Ebb.name()),
    );
    week(&mut page, report);
    if !report.pools.is_empty() {
        let rows: Vec<Vec<String>> = report.pools.iter().map(PoolOutcome::cells).collect();
        page.section(
            "Cold data in erasure-coded sets",
            "Servers: in replicas + in sets. The same data and the same load in all rows.",
        );
        page.table("Energy is modelled", &PoolOutcome::HEADER, &rows);
    }
    if !report.frontier.is_empty() {
        frontier(&mut page, report.frontier);
    }
    if !report.scores.is_empty() {
        forecasts(&mut page, report.scores);
    }
    page.render()
}

/// Describes the gaps of the series.
pub fn gaps_text(gaps: Gaps, step: std::time::Duration) -> String {
    if gaps.intervals == 0 {
        return "The series has no gaps.".to_owned();
    }
    let of_them =
        if gaps.zeros > 0 { format!(", {} of them exactly zero", gaps.zeros) } else { String::new() };
    format!("{} steps of {:?} in {} gaps are not in any figure{of_them}.", gaps.intervals, step, gaps.runs)
}

/// What Ebb saves in a year: energy, and with a price money.
fn saved_per_year(report: &Report, ebb: &Outcome) -> String {
    let kwh = ebb.modelled_kwh_per_year / (1.0 - ebb.savings).max(f64::MIN_POSITIVE) * ebb.savings;
    match report.price {
        Some(Price { per_kwh, currency }) => {
            format!(" ({kwh:.0} kWh a year, {:.0} {currency})", kwh * per_kwh)
        }
        None => format!(" ({kwh:.0} kWh a year)"),
    }
}

/// Columns of the comparison; with a price, of what it costs.
pub fn header(price: Option<&Price>) -> Vec<&'static str> {
    let money = price.map(|_| "cost/year");
    let first = ["policy", "energy (kWh)", "kWh/year"].into_iter().chain(money);
    first
        .chain(["savings", "servers awake", "time short", "load in it", "load above", "cycles/server/day"])
        .collect()
}

/// One row of the comparison.
pub fn cells(outcome: &Outcome, price: Option<&Price>) -> Vec<String> {
    let kwh = outcome.modelled_kwh_per_year;
    let mut cells = vec![
        outcome.policy.name().to_owned(),
        format!("{:.1}", outcome.modelled_joules.0 / 3.6e6),
        format!("{kwh:.0}"),
    ];
    cells.extend(price.map(|Price { per_kwh, currency }| format!("{:.0} {currency}", kwh * per_kwh)));
    cells.extend([
        percent(outcome.savings),
        format!("{:.1}", outcome.mean_awake),
        fine_percent(outcome.short_time),
        fine_percent(outcome.short_load),
        fine_percent(outcome.excess_load),
        format!("{:.2}", outcome.cycles_per_server_per_day),
    ]);
    cells
}

/// What is above that table.
pub const QUALITY_CAPTION: &str = "Share of what oracles save; how long and how deep the shortage is";

/// Columns of the comparison with oracles, and of shortage.
pub const QUALITY_HEADER: [&str; 10] = [
    "policy",
    "of oracle",
    "of cycles-oracle",
    "times short",
    "median",
    "p95",
    "longest",
    "load unserved, median",
    "p95",
    "worst",
];

/// One row for each policy.
pub fn quality_rows(report: &Report) -> Vec<Vec<String>> {
    let row = |outcome: &Outcome| {
        let Shares { of_continuous_oracle, of_cycles_oracle } = report.oracles.shares(outcome.savings);
        let share = |share: Option<f64>| share.map_or("–".to_owned(), percent);
        let mut cells =
            vec![outcome.policy.name().to_owned(), share(of_continuous_oracle), share(of_cycles_oracle)];
        match outcome.shortage {
            Some(shortage) => {
                let (run, unserved) = (shortage.run_seconds, shortage.unserved);
                cells.push(shortage.runs.to_string());
                cells.extend([run.median, run.p95, run.most].map(how_long));
                cells.extend([unserved.median, unserved.p95, unserved.most].map(percent));
            }
            None => cells.resize(QUALITY_HEADER.len(), "–".to_owned()),
        }
        cells
    };
    report.outcomes.iter().map(|(outcome, _)| row(outcome)).collect()
}

/// What decides about Ebb, in two sentences: its share of what oracles save, and its shortage once it has learned.
/// Empty without Ebb.
pub fn verdict(report: &Report) -> String {
    let ebb = report.outcomes.iter().find(|(outcome, _)| outcome.policy == Policy::Ebb);
    let (Some((ebb, _)), Some(learning)) = (ebb, report.learning) else { return String::new() };
    let setup = &report.case.setup;
    let shares = report.oracles.shares(ebb.savings);
    let same_cycles = shares.of_cycles_oracle.map(|share| {
        let cycles = setup.cycles_per_day;
        format!(
            "{} of what an oracle with the same {cycles:.1} power cycles per server and day saves",
            percent(share)
        )
    });
    let any_cycles = shares.of_continuous_oracle.map(|share| {
        format!("{} of what the continuous oracle saves, whose cycles have no limit", percent(share))
    });
    let saved: Vec<String> = same_cycles.into_iter().chain(any_cycles).collect();
    let saved = match saved.is_empty() {
        true => "No oracle saves anything on this series: there is no share of it.".to_owned(),
        false => format!("Ebb saves {}.", saved.join(", and ")),
    };
    format!("{saved} {}", learned(&learning, setup.short_goal, setup.train_days))
}

/// What is known of the shortage while Ebb learns, and after.
fn learned(learning: &Learning, goal: f64, train_days: u32) -> String {
    let Learning { days, short_time, short_time_after } = *learning;
    let during = match short_time {
        Some(short) => format!("it was short {} of the time", fine_percent(short)),
        None => "nothing was recorded".to_owned(),
    };
    let after = match short_time_after {
        Some(short) if short <= goal => {
            format!("{}, within the accepted {}", fine_percent(short), fine_percent(goal))
        }
        Some(short) => format!("{}, above the accepted {}", fine_percent(short), fine_percent(goal)),
        None => "not known, as nothing later is recorded".to_owned(),
    };
    let counted = match train_days < days {
        true => format!(" Some of these first days are in the figures: --train {days} leaves them out."),
        false => String::new(),
    };
    format!(
        "In the first {days} days, while it learns, {during}; afterwards its shortage was {after}.{counted}"
    )
}

/// The last week: load against servers awake against watts, and each server's state.
fn week(page: &mut Page, report: &Report) {
    let case = report.case;
    let end = case.loads.len();
    let from = end.saturating_sub(SHOWN_DAYS * (86_400.0 / case.step.as_secs_f64()) as usize).max(case.first);
    let every = (end - from).div_ceil(MOST_POINTS).max(1);
    let at = |t: usize| report.begins.unwrap_or(0) as f64 + t as f64 * case.step.as_secs_f64();
    let time = || if report.begins.is_some() { Axis::new("UTC").date() } else { Axis::new("time").time() };
    // A point covers several steps: their highest load and most servers.
    let highest = |values: &dyn Fn(usize) -> f64| -> Vec<(f64, f64)> {
        let starts = (from..end).step_by(every);
        starts.map(|t| (at(t), (t..end.min(t + every)).map(values).fold(f64::NAN, f64::max))).collect()
    };
    let load = |t: usize| case.loads[t].unwrap_or(f64::NAN);
    let ebb = Policy::Ebb.name();
    let mut servers = Chart::new("Load and servers awake", time(), Axis::new("servers")).strong(ebb);
    let mut watts = Chart::new("Modelled power", time(), Axis::new("W")).strong(ebb);
    let mut short = Chart::new("Load that awake servers cannot carry at once", time(), Axis::new("servers"));
    for (outcome, line) in report.outcomes {
        let shown = matches!(outcome.policy, Policy::Sierra | Policy::Ebb | Policy::ContinuousOracle);
        let Some(line) = line.as_ref().filter(|_| shown) else { continue };
        let awake = |t: usize| f64::from(line.serving[t] + line.waking[t]);
        servers = servers.with(Series::new(outcome.policy.name(), Mark::Step, highest(&awake)));
        let draw = |t: usize| {
            case.loads[t].map_or(f64::NAN, |load| case.joules(line, t, load).0 / case.step.as_secs_f64())
        };
        watts = watts.with(Series::new(outcome.policy.name(), Mark::Step, highest(&draw)));
        let above = |t: usize| case.loads[t].map_or(0.0, |load| (load - f64::from(line.serving[t])).max(0.0));
        short = short.with(Series::new(outcome.policy.name(), Mark::Step, highest(&above)));
    }
    // Last, so that a policy has the same colour in both charts.
    servers = servers.with(Series::new("load", Mark::Area, highest(&load)));
    page.section("The last days", "Load is in units of servers: 1 is the work that one server sustains.");
    page.chart(&servers).chart(&short.strong(ebb)).chart(&watts);
    let spells = report.outcomes.iter().filter_map(|(_, line)| line.as_ref()).find(|l| !l.spells.is_empty());
    let Some(line) = spells else { return };
    let mut points = Vec::new();
    for spell in line.spells.iter().filter(|s| s.to > from && usize::from(s.server.0) < MOST_SERVERS) {
        let row = f64::from(spell.server.0);
        points.extend([(at(spell.from.max(from)), row), (at(spell.to), row), (at(spell.to), f64::NAN)]);
    }
    page.chart(
        &Chart::new("Each server under Ebb: awake where there is a line", time(), Axis::new("server"))
            .with(Series::new("awake", Mark::Line, points)),
    );
}

fn frontier(page: &mut Page, points: &[Point]) {
    page.section(
        "Frontier",
        "Ebb's policy over its two knobs: the share of time with too few servers awake that is accepted, and the power cycles that a \
         server may make per day. The bound is what no policy can beat with as much shortage and as many power cycles, not even \
         one who knows the future. Each row is what its setting gives alone; a goal is missed where more of the time was short than accepted.",
    );
    let rows: Vec<Vec<String>> = points.iter().map(point_cells).collect();
    page.table("", &POINT_HEADER, &rows);
    let mut chart = Chart::new(
        "Savings against shortage, by budget of power cycles",
        Axis::new("time short").percent(),
        Axis::new("savings").percent(),
    );
    let mut budgets: Vec<f64> = points.iter().map(|point| point.cycles_per_day).collect();
    budgets.dedup();
    for budget in budgets {
        let mut of: Vec<(f64, f64)> = points
            .iter()
            .filter(|point| point.cycles_per_day == budget)
            .map(|point| (point.outcome.short_time, point.outcome.savings))
            .collect();
        of.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart = chart.with(Series::new(format!("{} cycles/day", cycles(budget)), Mark::Line, of));
    }
    page.chart(&chart);
}

/// A budget of power cycles, in at most two digits after the point.
fn cycles(budget: f64) -> String {
    let text = format!("{budget:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Columns of the frontier.
pub const POINT_HEADER: [&str; 9] = [
    "accepted short",
    "budget",
    "savings",
    "of oracle",
    "of cycles-oracle",
    "time short",
    "cycles/server/day",
    "asleep",
    "bound",
];

/// One row of the frontier.
pub fn point_cells(point: &Point) -> Vec<String> {
    let share = |share: Option<f64>| share.map_or("–".to_owned(), percent);
    let whose = if point.at_sierras_shortage { ", Sierra's" } else { "" };
    let missed = if point.goal_met { "" } else { ", missed" };
    vec![
        format!("{}{whose}", percent(point.short_goal)),
        cycles(point.cycles_per_day),
        percent(point.outcome.savings),
        share(point.shares.of_continuous_oracle),
        share(point.shares.of_cycles_oracle),
        format!("{}{missed}", fine_percent(point.outcome.short_time)),
        format!("{:.2}", point.outcome.cycles_per_server_per_day),
        percent(point.asleep),
        share(point.asleep_bound),
    ]
}

fn forecasts(page: &mut Page, scores: &[Score]) {
    let line = |name: &str, of: &dyn Fn(&Score) -> Option<f64>| {
        Series::new(name, Mark::Line, scores.iter().map(|s| (s.days as f64, of(s).unwrap_or(f64::NAN))))
    };
    page.section(
        "Forecasts",
        "Root-mean-square error of the hours that were not learned from, divided by their mean load.",
    );
    page.chart(
        &Chart::new("Forecast error", Axis::new("days of training"), Axis::new("normalised RMS error"))
            .with(line("hour of day", &|s| s.hour_of_day))
            .with(line("seasonal", &|s| s.seasonal))
            .with(line("seasonal, live", &|s| s.seasonal_live)),
    );
}
