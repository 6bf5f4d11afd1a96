//! Every step as text, with all that the figures are computed from.

use super::{Case, Outcome, Timeline};
use std::fmt::Write;

/// What each policy has a column for, in this order.
const COLUMNS: [&str; 7] =
    ["serving", "waking", "woken", "slept", "suspended", "suspended-woken", "suspended-slept"];

/// One line per step, training included: its second, its load in servers (empty: not recorded), and seven columns for
/// each policy but the ideal, which has no servers. A server that is neither serving nor waking sleeps; `woken` and
/// `slept` are at the start of the step.
pub fn csv(case: &Case, outcomes: &[(Outcome, Option<Timeline>)]) -> String {
    let lines: Vec<(&str, &Timeline)> =
        outcomes.iter().filter_map(|(outcome, line)| Some((outcome.policy.name(), line.as_ref()?))).collect();
    let mut out = "second,load_servers".to_owned();
    for (name, _) in &lines {
        COLUMNS.iter().for_each(|column| {
            let _ = write!(out, ",{name}-{column}");
        });
    }
    for (t, load) in case.loads.iter().enumerate() {
        let load = load.map_or(String::new(), |load| load.to_string());
        let _ = write!(out, "\n{},{load}", t as f64 * case.step.as_secs_f64());
        for (_, line) in &lines {
            let s = line.suspended.get(t).copied().unwrap_or_default();
            let (serving, waking, woken, slept) =
                (line.serving[t], line.waking[t], line.woken[t], line.slept[t]);
            let _ = write!(out, ",{serving},{waking},{woken},{slept},{},{},{}", s.asleep, s.woken, s.slept);
        }
    }
    out.push('\n');
    out
}
