//! `ebb power test` and `ebb maintenance`: servers whose sleep can be relied on, and servers that are left alone.

use crate::cli::admin::connect;
use crate::cli::tool::ToolArgs;
use crate::cluster::connect::{ask, status};
use crate::daemon::clock;
use crate::error::{NodeError, refused};
use ebb_client::Client;
use ebb_output::print_json;
use ebb_types::{AdminRequest, PathTest, PowerTest, ServerId, TestStep};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(500);
/// Longest time for other servers to wake, to catch up and to take over.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(1800);

/// `7` or `server-7`.
pub fn server_id(text: &str) -> Result<ServerId, String> {
    let number = text.strip_prefix("server-").unwrap_or(text);
    number.parse().map(ServerId).map_err(|_| format!("{text:?} is not a server: write 7 or server-7"))
}

/// Output of `ebb power test --json`, one per server.
#[derive(Serialize)]
struct Tested {
    server: u16,
    passed: bool,
    /// Absent: it was refused.
    test: Option<PowerTest>,
    refused: Option<String>,
}

/// Tests a server, or all with a switch.
pub async fn test(tool: &ToolArgs, one: Option<ServerId>) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    let json = tool.file.json;
    let servers: Vec<ServerId> = match one {
        Some(server) => vec![server],
        None => {
            let all = status(&client).await?.servers.into_iter();
            all.filter(|s| !s.power.paths.is_empty()).map(|s| s.id).collect()
        }
    };
    if servers.is_empty() {
        return Err(refused("no server has a power switch: configure [power]"));
    }
    let mut all = Vec::new();
    for server in servers {
        let tested = match ask(&client, AdminRequest::PowerTest { server }).await {
            Ok(_) => follow(&client, server, json).await?,
            // Of one server that is a refusal; of many, the others are tested all the same.
            Err(NodeError::Refused(why)) if one.is_none() => {
                if !json {
                    println!("{server}: not tested: {why}");
                }
                Tested { server: server.0, passed: false, test: None, refused: Some(why) }
            }
            Err(error) => return Err(error),
        };
        all.push(tested);
    }
    if json {
        print_json(&all);
    }
    Ok(if all.iter().all(|tested| tested.passed) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows the test until it has ended.
async fn follow(client: &Client, server: ServerId, json: bool) -> Result<Tested, NodeError> {
    let mut shown = (TestStep::Ended, 0);
    loop {
        let status = status(client).await?;
        let found = status.servers.into_iter().find(|s| s.id == server).map(|s| s.power);
        let Some((test, paths)) = found.and_then(|power| Some((power.test?, power.paths.len()))) else {
            return Err(refused(format!(
                "the metadata leader changed and the test of {server} with it: run it again"
            )));
        };
        let now = (test.step, test.results.len());
        if !json && now != shown {
            test.results.iter().skip(shown.1).for_each(|path| println!("{server}: {}", result(path)));
            if test.step != TestStep::Ended {
                println!("{server}: {}", step(&test));
            }
        }
        shown = now;
        if test.step == TestStep::Ended {
            let passed = test.has_passed(paths);
            if !json {
                println!("{server}: {}", verdict(&test, passed));
            }
            return Ok(Tested { server: server.0, passed, test: Some(test), refused: None });
        }
        tokio::time::sleep(POLL).await;
    }
}

fn step(test: &PowerTest) -> String {
    let step = match test.step {
        TestStep::Draining => "handing over what it serves",
        TestStep::GoingDown => "going to sleep",
        TestStep::Waking => "waking",
        TestStep::CatchingUp => "awake, catching up",
        TestStep::Ended => "ended",
    };
    match test.limit_millis {
        Some(limit) => format!("{step} (given up after {:.0} s)", seconds(limit)),
        None => step.to_owned(),
    }
}

fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

fn result(test: &PathTest) -> String {
    match (test.woke_millis, &test.trouble) {
        (Some(millis), _) => format!("{} woke it in {:.1} s", test.name, seconds(millis)),
        (None, trouble) => {
            format!("{} did NOT wake it: {}", test.name, trouble.as_deref().unwrap_or("no reason is known"))
        }
    }
}

fn verdict(test: &PowerTest, passed: bool) -> String {
    match &test.given_up {
        Some(why) => format!("GIVEN UP: {why}"),
        None if passed => {
            let slowest = test.results.iter().filter_map(|t| t.in_sync_millis).max().unwrap_or(0);
            format!("passed; in sync again within {:.1} s of the order to wake", seconds(slowest))
        }
        None => "FAILED: a path did not wake it (`ebb status`)".into(),
    }
}

/// Output of `ebb maintenance --json`.
#[derive(Serialize)]
struct Maintenance {
    server: u16,
    in_maintenance: bool,
    may_be_stopped: bool,
}

/// Begins maintenance and waits until the server may be stopped, or ends it.
pub async fn maintenance(tool: &ToolArgs, server: ServerId, end: bool) -> Result<ExitCode, NodeError> {
    let (_, client) = connect(tool).await?;
    ask(&client, AdminRequest::Maintenance { server, end }).await?;
    let since = clock::now();
    let may_be_stopped = loop {
        if end {
            break false;
        }
        let status = status(&client).await?;
        if status.servers.iter().any(|s| s.id == server && s.power.may_be_stopped) {
            break true;
        }
        if clock::now().since(since) > HAND_OVER_LIMIT {
            break false;
        }
        tokio::time::sleep(POLL).await;
    };
    let text = match (end, may_be_stopped) {
        (true, _) => "takes part again".to_owned(),
        (_, true) => format!("may be stopped; when it is back: ebb maintenance {server} --end"),
        _ => "is in maintenance, and others still depend on it (`ebb status`)".to_owned(),
    };
    let found = Maintenance { server: server.0, in_maintenance: !end, may_be_stopped };
    tool.print(&found, format_args!("{server} {text}\n"));
    Ok(if end || may_be_stopped { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_its_number_or_its_name() {
        assert_eq!((server_id("7"), server_id("server-7")), (Ok(ServerId(7)), Ok(ServerId(7))));
        assert!(["", "server-", "x7", "70000", "-1"].iter().all(|text| server_id(text).is_err()));
    }

    #[test]
    fn a_test_passes_only_if_every_path_woke_the_server() {
        let path = |woke_millis| PathTest {
            name: "redfish".into(),
            woke_millis,
            in_sync_millis: Some(9000),
            trouble: None,
        };
        let test = |results| PowerTest { step: TestStep::Ended, limit_millis: None, results, given_up: None };
        assert!(test(vec![path(Some(1))]).has_passed(1));
        assert!(!test(vec![path(Some(1))]).has_passed(2), "the second was not tried");
        assert!(!test(vec![path(Some(1)), path(None)]).has_passed(2));
        let late = PowerTest { given_up: Some("no path wakes it".into()), ..test(vec![path(Some(1))]) };
        assert!(!late.has_passed(1) && verdict(&late, false).contains("no path wakes it"));
        assert_eq!(result(&path(Some(1500))), "redfish woke it in 1.5 s");
        assert!(result(&path(None)).contains("NOT"));
        let waking = PowerTest { step: TestStep::Waking, limit_millis: Some(260_000), ..test(Vec::new()) };
        assert_eq!(step(&waking), "waking (given up after 260 s)");
        assert_eq!(step(&test(Vec::new())), "ended");
    }
}
