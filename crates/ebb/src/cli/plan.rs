//! `ebb gear plan`: the scheduler's dry run. First what its gears follow from, then a row per hour, so that a reader
//! can repeat the arithmetic. No line is wider than 100 columns.

use crate::cli::pool::{self, Pool};
use crate::cli::series::SeriesArgs;
use crate::cli::tool::ToolArgs;
use crate::cluster::config::Config;
use crate::cluster::connect::{ask, status};
use crate::daemon::clock;
use crate::error::{NodeError, refused};
use ebb_client::Client;
use ebb_output::wrapped;
use ebb_types::{
    AdminReply, AdminRequest, Depth, GearPlan, GearSteps, Lead, LeadFrom, LoadTerm, MeasuredLoad, NO_GEAR,
    PlannedHour, PoolId, ServerId, counted,
};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// Columns for the servers that sleep: what is left of 100.
const ASLEEP: usize = 18;
/// Hours before 1980 are of a load series without dates.
const DATED_MILLIS: u64 = 315_532_800_000;
const HOUR_MILLIS: u64 = 3_600_000;

/// Output of `ebb gear plan --json`.
#[derive(Serialize)]
struct Shown {
    /// Of the replicated pool.
    #[serde(flatten)]
    plan: GearPlan,
    pools: Vec<Pool>,
}

impl Shown {
    fn print(&self, tool: &ToolArgs) {
        tool.print(self, text(&self.plan) + &pool::outlook(&self.pools));
    }
}

/// What the metadata leader is about to do in all pools.
pub async fn show(client: &Client, tool: &ToolArgs) -> Result<ExitCode, NodeError> {
    let AdminReply::Plan(plan) = ask(client, AdminRequest::GearPlan).await? else {
        return Err(refused("unexpected answer of the metadata service"));
    };
    let status = status(client).await?;
    let pools = pool::select(&status.pools, &status.servers, None)?;
    Shown { plan: *plan, pools }.print(tool);
    Ok(ExitCode::SUCCESS)
}

/// What the leader of a cluster by this configuration would do after this load.
pub fn after_series(tool: &ToolArgs, series: &Path, args: &SeriesArgs) -> Result<ExitCode, NodeError> {
    let config = Config::load(&tool.file.config)?;
    let founded = config.bootstrap()?;
    let geared = founded.servers.iter().filter(|s| s.pool == PoolId::REPLICATED && s.gear_group != NO_GEAR);
    let peaks = args.peaks(series, &founded.schedule, geared.count() as u32)?;
    let plan = ebb_meta::plan_after(founded, config.timing(), &peaks).map_err(NodeError::Refused)?;
    Shown { plan, pools: Vec::new() }.print(tool);
    Ok(ExitCode::SUCCESS)
}

fn text(plan: &GearPlan) -> String {
    let mut out = String::from(
        "What the scheduler would do in the next day, if each hour has the peak that is forecast.\n\n",
    );
    let mut say = |what: &str, text: &str| out += &(wrapped(&format!("{what:<9}"), text) + "\n");
    say("load", &load_now(plan));
    say("rates", &rates(plan));
    say("formula", &formula(plan));
    say("history", &history(plan));
    say("turn", &turn(plan));
    plan.leads.iter().for_each(|one| say("lead", &lead(one)));
    say("dwell", &dwell(plan));
    say(
        "columns",
        "loads are in servers' worth of work; last, random, streaming: the peak of that hour when it was last \
         recorded and its two terms, * the one that rules; -: not recorded, or not known",
    );
    out.push('\n');
    out + &table(&plan.hours)
}

fn load_now(plan: &GearPlan) -> String {
    let Some((load, terms, rules)) = plan.load_now.and_then(|now| Some((now.load, now.terms?, now.rules?)))
    else {
        return "not measured".into();
    };
    format!(
        "{load:.2} now: {:.2} by random requests, {:.2} by streamed bytes; the {rules} term rules",
        terms.random, terms.streaming
    )
}

fn rates(plan: &GearPlan) -> String {
    let s = &plan.schedule;
    format!(
        "one server sustains {:.0} random reads/s or {:.0} random writes/s, and {:.1} MB/s read or {:.1} MB/s written; a \
         write counts {} times",
        s.read_iops,
        s.write_iops,
        s.read_bytes_per_second / 1e6,
        s.write_bytes_per_second / 1e6,
        plan.replicas
    )
}

fn formula(plan: &GearPlan) -> String {
    let steps = match plan.schedule.steps {
        GearSteps::Servers => "; above the lowest gear single servers are woken",
        GearSteps::Groups => "",
    };
    let (servers, r) = (plan.servers, plan.replicas);
    format!(
        "gear = load / ({servers} servers / {r} gears), rounded up; then {} at least and {r} at most{steps}",
        plan.lowest_gear
    )
}

fn history(plan: &GearPlan) -> String {
    if plan.hours_recorded == 0 {
        return "no hour is recorded yet: nothing is forecast, and every server stays awake. --series FILE plans by a \
                load series"
            .into();
    }
    let forecast = match plan.schedule.steps {
        GearSteps::Servers => "the median of what followed hours like these",
        GearSteps::Groups => "that mean, or before a day is recorded the last hour",
    };
    format!(
        "{} recorded. days: how many of them are of that hour of the day; mean: of their peaks; forecast: {forecast}",
        counted(plan.hours_recorded.into(), "hour")
    )
}

fn turn(plan: &GearPlan) -> String {
    let groups = plan.hours.first().map(|hour| hour.turn.as_slice()).unwrap_or_default();
    let names: Vec<String> = groups.iter().map(|group| group.0.to_string()).collect();
    let (s, verb) = if groups.len() == 1 { ("", "sleeps") } else { ("s", "sleep") };
    let until = match plan.turn_ends_unix_millis {
        Some(ends) => {
            let days = counted(plan.schedule.rotate_days.into(), "day");
            format!(" until {}; another one's turn comes every {days}", begins(ends))
        }
        None => ": gear groups take no turns (rotate_days = 0)".into(),
    };
    format!("gear group{s} {} never {verb}{until}", names.join(", "))
}

fn lead(lead: &Lead) -> String {
    let seconds = |millis: u64| format!("{:.1} s", millis as f64 / 1e3);
    let from = match lead.from {
        LeadFrom::Measured { wakes, wake_millis, catch_up_millis } => format!(
            "nearly all of the last {wakes} wake-ups took {} or less, and the catch-up takes {}",
            seconds(wake_millis),
            seconds(catch_up_millis)
        ),
        LeadFrom::Configured { wake_millis, catch_up_millis } => format!(
            "wake_seconds of this depth is {}, as no wake-up was measured yet, and the catch-up takes {}",
            seconds(wake_millis),
            seconds(catch_up_millis)
        ),
        LeadFrom::Schedule if lead.depth.is_none() => "lead_seconds, as whole gears are shifted".into(),
        LeadFrom::Schedule => "lead_seconds, as no wake-up was measured yet".into(),
    };
    let depth = match lead.depth {
        Some(Depth::Standby) => " from standby",
        Some(Depth::Off) => " from off",
        None => "",
    };
    format!("{}{depth}: {from}; at most an hour", seconds(lead.millis))
}

fn dwell(plan: &GearPlan) -> String {
    let what = match plan.schedule.steps {
        GearSteps::Servers => "a woken server stays awake at least so long",
        GearSteps::Groups => "a gear stays at least so long, and the load must have been low for so long",
    };
    format!("{:.1} s: {what}", plan.dwell_millis as f64 / 1e3)
}

fn table(hours: &[PlannedHour]) -> String {
    let mut out = row([
        "from (UTC)",
        "last",
        "random",
        "streaming",
        "days",
        "mean",
        "forecast",
        "formula",
        "gear",
        "awake",
        "asleep",
    ]);
    // What binds a plan mostly binds all of it.
    let mut told: Option<&String> = None;
    for hour in hours {
        let load = |load: Option<f64>| load.map_or("-".into(), |load| format!("{load:.2}"));
        let cells: [String; 11] = [
            begins(hour.from_unix_millis),
            load(hour.last_peak.map(|last| last.load)),
            term(hour.last_peak, LoadTerm::Random),
            term(hour.last_peak, LoadTerm::Streaming),
            hour.days.to_string(),
            load(hour.mean_peak),
            load(hour.forecast),
            hour.gear_by_formula.map_or("-".into(), |gear| gear.to_string()),
            hour.gear.to_string(),
            hour.awake.len().to_string(),
            named(&hour.asleep),
        ];
        out += &row(cells.each_ref().map(String::as_str));
        match &hour.note {
            Some(note) if told != Some(note) => out += &(wrapped(&" ".repeat(14), note) + "\n"),
            _ => {}
        }
        told = hour.note.as_ref();
    }
    out
}

fn row(
    [from, last, random, streaming, days, mean, forecast, formula, gear, awake, asleep]: [&str; 11],
) -> String {
    format!(
        "{from:<12} {last:>7} {random:>8} {streaming:>9} {days:>4} {mean:>7} {forecast:>8} {formula:>7} {gear:>4} \
         {awake:>5}  {asleep}\n"
    )
}

/// A term of a load, with a mark behind the one that rules.
fn term(last: Option<MeasuredLoad>, which: LoadTerm) -> String {
    let Some((terms, rules)) = last.and_then(|last| Some((last.terms?, last.rules?))) else {
        return "- ".into();
    };
    let value = match which {
        LoadTerm::Random => terms.random,
        LoadTerm::Streaming => terms.streaming,
    };
    format!("{value:.2}{}", if rules == which { '*' } else { ' ' })
}

/// Day of the week and time of day; in a series without dates the day's number.
fn begins(unix_millis: u64) -> String {
    if unix_millis >= DATED_MILLIS {
        return clock::weekday_and_time(unix_millis);
    }
    let (hours, minutes) = (unix_millis / HOUR_MILLIS, unix_millis % HOUR_MILLIS / 60_000);
    format!("day {} {:02}:{minutes:02}", hours / 24 + 1, hours % 24)
}

/// Ids in order, as runs, such as `1 4-9`; those for which the column has no room are counted.
fn named(ids: &[ServerId]) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for ServerId(id) in ids {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *id => *last = *id,
            _ => runs.push((*id, *id)),
        }
    }
    let name = |(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let all = runs.iter().map(name).collect::<Vec<_>>().join(" ");
    if all.is_empty() {
        return "-".into();
    }
    if all.len() <= ASLEEP {
        return all;
    }
    let (mut out, mut left) = (name(&runs[0]), ids.len());
    left -= usize::from(runs[0].1 - runs[0].0) + 1;
    for run in &runs[1..] {
        let after = left - usize::from(run.1 - run.0) - 1;
        let longer = format!("{out} {}", name(run));
        if format!("{longer} and {after} more").len() > ASLEEP {
            break;
        }
        (out, left) = (longer, after);
    }
    format!("{out} and {left} more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{GearGroup, LoadTerms};

    /// A Sunday's first moment.
    const SUNDAY: u64 = 1_795_305_600_000;

    fn servers(ids: std::ops::Range<u16>) -> Vec<ServerId> {
        ids.map(ServerId).collect()
    }

    fn made_up() -> GearPlan {
        let hour =
            |nth: u64, last: Option<(f64, f64)>, mean: Option<f64>, forecast: Option<f64>, gear: u8| {
                PlannedHour {
                    hour: nth,
                    from_unix_millis: SUNDAY + nth * HOUR_MILLIS,
                    last_peak: last.map(|(random, streaming)| LoadTerms { random, streaming }.into()),
                    days: if last.is_some() { 2 } else { 0 },
                    mean_peak: mean,
                    forecast,
                    gear_by_formula: forecast.map(|_| u32::from(gear)),
                    gear,
                    turn: vec![GearGroup(1)],
                    awake: servers(0..u16::from(gear) * 3),
                    asleep: servers(u16::from(gear) * 3..9),
                    ..PlannedHour::default()
                }
            };
        let noted = |hour| PlannedHour { note: Some("few".into()), ..hour };
        let from = LeadFrom::Measured { wakes: 6, wake_millis: 9000, catch_up_millis: 2500 };
        GearPlan {
            load_now: Some(LoadTerms { random: 3.25, streaming: 0.5 }.into()),
            servers: 9,
            replicas: 3,
            lowest_gear: 1,
            hours_recorded: 50,
            dwell_millis: 300_000,
            leads: vec![Lead { depth: Some(Depth::Standby), millis: 11_500, from }],
            turn_ends_unix_millis: Some(SUNDAY + 4 * 24 * HOUR_MILLIS),
            hours: vec![
                noted(hour(0, Some((3.25, 0.5)), Some(3.1), Some(3.2), 2)),
                noted(hour(1, Some((0.2, 1.5)), Some(1.4), Some(1.45), 1)),
                hour(2, None, None, None, 3),
            ],
            ..GearPlan::default()
        }
    }

    const GOLDEN: &str = "\
What the scheduler would do in the next day, if each hour has the peak that is forecast.

load     3.25 now: 3.25 by random requests, 0.50 by streamed bytes; the random term rules
rates    one server sustains 200 random reads/s or 200 random writes/s, and 100.0 MB/s read or 100.0
         MB/s written; a write counts 3 times
formula  gear = load / (9 servers / 3 gears), rounded up; then 1 at least and 3 at most; above the
         lowest gear single servers are woken
history  50 hours recorded. days: how many of them are of that hour of the day; mean: of their
         peaks; forecast: the median of what followed hours like these
turn     gear group 1 never sleeps until Thu 00:00:00; another one's turn comes every 7 days
lead     11.5 s from standby: nearly all of the last 6 wake-ups took 9.0 s or less, and the catch-up
         takes 2.5 s; at most an hour
dwell    300.0 s: a woken server stays awake at least so long
columns  loads are in servers' worth of work; last, random, streaming: the peak of that hour when it
         was last recorded and its two terms, * the one that rules; -: not recorded, or not known

from (UTC)      last   random streaming days    mean forecast formula gear awake  asleep
Sun 00:00:00    3.25    3.25*     0.50     2    3.10     3.20       2    2     6  6-8
              few
Sun 01:00:00    1.50    0.20      1.50*    2    1.40     1.45       1    1     3  3-8
Sun 02:00:00       -       -         -     0       -        -       -    3     9  -
";

    #[test]
    fn a_plan_shows_what_it_follows_from_then_its_hours() {
        assert_eq!(text(&made_up()), GOLDEN);
    }

    #[test]
    fn what_is_not_known_is_said() {
        let schedule = ebb_types::Schedule { steps: GearSteps::Groups, rotate_days: 0, ..made_up().schedule };
        let leads = vec![Lead { depth: None, millis: 60_000, from: LeadFrom::Schedule }];
        let (load_now, turn_ends_unix_millis) = (None, None);
        let new =
            GearPlan { load_now, schedule, hours_recorded: 0, leads, turn_ends_unix_millis, ..made_up() };
        let text = text(&new);
        for line in [
            "load     not measured\n",
            "history  no hour is recorded yet: nothing is forecast, and every server stays awake.",
            "turn     gear group 1 never sleeps: gear groups take no turns (rotate_days = 0)\n",
            "lead     60.0 s: lead_seconds, as whole gears are shifted; at most an hour\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn a_plan_says_once_what_holds_for_hours() {
        let mut plan = made_up();
        let few =
            |note: Option<&str>| PlannedHour { note: note.map(str::to_owned), ..PlannedHour::default() };
        plan.hours = vec![few(Some("few")), few(Some("few")), few(None), few(Some("few"))];
        let text = table(&plan.hours);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!((lines.len(), lines[2], lines[6]), (7, "few", "few"), "{text}");
    }

    #[test]
    fn many_sleepers_are_named_as_far_as_there_is_room_and_counted() {
        assert_eq!(named(&[]), "-");
        assert_eq!(named(&servers(3..9)), "3-8");
        let odd: Vec<ServerId> = (0..40).map(|n| ServerId(2 * n + 1)).collect();
        assert_eq!(named(&odd[..7]), "1 3 5 7 9 11 13");
        assert_eq!(named(&odd), "1 3 5 and 37 more");
        assert!(named(&odd).len() <= ASLEEP);
    }

    #[test]
    fn hours_of_a_series_without_dates_have_the_number_of_their_day() {
        assert_eq!(begins(SUNDAY), "Sun 00:00:00");
        assert_eq!(begins(31 * HOUR_MILLIS + 900_000), "day 2 07:15");
    }

    #[test]
    fn json_has_the_plan_and_the_pools_side_by_side() {
        let json = serde_json::to_value(Shown { plan: made_up(), pools: Vec::new() }).unwrap();
        assert_eq!(json["hours"][1]["last_peak"]["rules"], "streaming");
        assert_eq!(json["hours"][0]["gear_by_formula"], 2);
        assert_eq!(json["leads"][0]["from"]["measured"]["wakes"], 6);
        assert_eq!(json["schedule"]["read_iops"], 200.0);
        assert!(json["pools"].as_array().is_some_and(Vec::is_empty));
    }
}
