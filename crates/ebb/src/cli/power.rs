//! `ebb power`: how the servers are switched, and whether that works.

use crate::cli::tool::ToolArgs;
use crate::cli::trust;
use crate::cluster::config::{Config, PowerSection, depth_name as word};
use crate::error::NodeError;
use clap::Subcommand;
use ebb_output::{print_json, wrapped};
use ebb_power::switch::{About, KINDS, Kind, Path};
use ebb_power::{Card, OwnMachine, Switches};
use ebb_types::{Depth, ServerId};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

pub const EXAMPLES: &str = "\
Examples:
  ebb power list                           the drivers, and the fields of each in [[server.power]]
  ebb power list --config cluster.toml     how each server is woken, from which depths, and what is missing here
  ebb power list --config cluster.toml --json | jq '.servers[].paths[].unavailable'
  ebb power test --all                     sleep and wake every server by each of its ways";

#[derive(Subcommand)]
pub enum PowerCommand {
    /// List the power drivers and their fields, and whether this machine can suspend and wake by magic packets; with
    /// --config, how each server is switched, and why a way is not available on this machine. Asks no management
    /// controller
    List {
        /// The cluster's configuration file
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
    /// Put a server to sleep and wake it again by each of its wake paths in turn; clients notice nothing. A server that
    /// was never woken is not put to sleep
    #[command(
        after_help = "Examples:\n  ebb power test server-7   one server\n  ebb power test --all      all that have a switch, one after the other\nExit code 1: a path did not wake its server, or a test was given up."
    )]
    Test {
        /// `7` or `server-7`
        #[arg(value_parser = trust::server_id, required_unless_present = "all", conflicts_with = "all")]
        server: Option<ServerId>,
        /// Every server with a switch, one after the other
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        tool: ToolArgs,
    },
}

pub async fn run(command: PowerCommand) -> Result<ExitCode, NodeError> {
    match command {
        PowerCommand::List { config, json } => list(config, json),
        PowerCommand::Test { server, tool, .. } => trust::test(&tool, server).await,
    }
}

fn list(config: Option<PathBuf>, json: bool) -> Result<ExitCode, NodeError> {
    match config {
        None if json => print_json(&json!({
            "drivers": KINDS.iter().map(kind_json).collect::<Vec<_>>(),
            "cannot_suspend": cannot_suspend(),
            "cards": OwnMachine::cards().iter().map(card_json).collect::<Vec<_>>(),
        })),
        None => print!("{}{}", kinds_text(), this_machine_text()),
        Some(path) => {
            let config = Config::load(&path)?;
            let (switches, depth) = (config.power_paths(|_| None)?, config.power.depth);
            if json {
                print_json(&servers_json(&switches, depth))
            } else {
                print!("{}", servers_text(&switches, depth))
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn words(depths: &[Depth]) -> Vec<&'static str> {
    depths.iter().copied().map(word).collect()
}

fn from(depths: &[Depth]) -> String {
    if depths.is_empty() { "nothing".into() } else { words(depths).join(", ") }
}

fn kinds_text() -> String {
    let mut out = String::new();
    for kind in KINDS {
        let Kind { name, needs, takes, depths, wakes, sleeps, observes, .. } = kind;
        let from = from(depths);
        let about = [("wakes", *wakes), ("from", &from), ("sleep", *sleeps), ("state", *observes)];
        let more = [("needs", *needs), ("fields", *takes)].into_iter().filter(|(_, text)| !text.is_empty());
        let lines =
            about.into_iter().chain(more).map(|(title, text)| wrapped(&format!("    {title:10}"), text));
        out += &format!("{name}\n{}\n\n", lines.collect::<Vec<_>>().join("\n"));
    }
    out
}

/// Why this machine cannot suspend itself as `power.suspend` does by default.
fn cannot_suspend() -> Option<String> {
    let PowerSection { suspend, off, .. } = PowerSection::default();
    OwnMachine::new(suspend, off, Vec::new()).check(Depth::Standby).err().map(|why| why.to_string())
}

fn this_machine_text() -> String {
    let suspend = cannot_suspend().unwrap_or_else(|| "it can suspend".into());
    let mut out = format!("This machine\n    suspend   {suspend}\n");
    for Card { name, mac, unable } in OwnMachine::cards() {
        let wakes = unable.map_or("wakes by magic packets".into(), |why| format!("no wake-on-LAN: {why}"));
        out += &format!("    {name:10}{mac}: {wakes}\n");
    }
    out + "\nServers, and what is missing for them: --config FILE. Explanations: docs/switches.md.\n"
}

fn card_json(card: &Card) -> Value {
    json!({ "name": card.name, "mac": card.mac.to_string(), "unable": card.unable })
}

fn kind_json(kind: &Kind) -> Value {
    json!({
        "driver": kind.name,
        "needs": kind.needs,
        "fields": kind.takes,
        "depths": words(kind.depths),
        "wakes": kind.wakes,
        "sleeps": kind.sleeps,
        "observes": kind.observes,
    })
}

fn sleeper(switches: &Switches, server: ServerId) -> &'static str {
    if switches.sleeps_itself(server) { "itself" } else { "switch" }
}

/// What the list says of a server, but for its name and its machines.
#[derive(PartialEq)]
struct Way {
    sleeps: &'static str,
    /// Of each path its driver, what it does, and what is missing here.
    paths: Vec<(&'static str, String, Option<String>)>,
}

impl Way {
    fn of(switches: &Switches, server: ServerId, paths: &[Path]) -> Way {
        let sleeps = match switches.sleeps_itself(server) {
            _ if paths.is_empty() => "never sleeps: it has no power path",
            true => "puts itself to sleep",
            false => "is put to sleep by its switch",
        };
        let path = |path: &Path| {
            let About { driver, depths, settle, meter, .. } = path.about();
            let state = if settle.is_some() { "read back" } else { "not read back" };
            let watts = if meter.is_some() { "; measures it" } else { "" };
            let does = format!("wakes it from {}; {state}{watts}", from(depths));
            (*driver, does, path.available().err().map(|why| why.to_string()))
        };
        Way { sleeps, paths: paths.iter().map(path).collect() }
    }
}

/// A server and its paths.
type Placed<'a> = (ServerId, &'a [Path]);

fn servers_text(switches: &Switches, depth: Depth) -> String {
    let mut groups: Vec<(Way, Vec<Placed>)> = Vec::new();
    for (server, paths) in switches.servers() {
        let way = Way::of(switches, server, paths);
        match groups.iter_mut().find(|(other, _)| *other == way) {
            Some((_, members)) => members.push((server, paths)),
            None => groups.push((way, vec![(server, paths)])),
        }
    }
    let mut out = format!("Servers sleep at depth {}.\n", word(depth));
    for (way, members) in &groups {
        let names: Vec<String> = members.iter().map(|(server, _)| server.to_string()).collect();
        let each = if members.len() > 1 { ": each" } else { "" };
        out += &format!("\n{}\n", wrapped("", &format!("{}{each} {}", names.join(", "), way.sleeps)));
        for (index, (driver, does, missing)) in way.paths.iter().enumerate() {
            let machines = members.iter().map(|(_, paths)| &paths[index].about().machine);
            out += &match members.len() {
                1 => machines.map(|machine| format!("    {index}  {driver:8} {machine}: {does}\n")).collect(),
                _ => machines.fold(format!("    {index}  {driver:8} {does}\n"), |list, machine| {
                    list + &format!("                {machine}\n")
                }),
            };
            if let Some(why) = missing {
                out += &(wrapped("       not available here: ", why) + "\n");
            }
        }
    }
    out
}

fn servers_json(switches: &Switches, depth: Depth) -> Value {
    let path = |path: &Path| {
        let About { driver, machine, depths, settle, meter, .. } = path.about();
        json!({
            "driver": driver,
            "machine": machine,
            "depths": words(depths),
            "read_back": settle.is_some(),
            "measures": meter.is_some(),
            "unavailable": path.available().err().map(|why| why.to_string()),
        })
    };
    let server = |(server, paths): (ServerId, &[Path])| {
        json!({
            "server": server.0,
            "sleeps": (!paths.is_empty()).then(|| sleeper(switches, server)),
            "paths": paths.iter().map(path).collect::<Vec<_>>(),
        })
    };
    json!({ "depth": word(depth), "servers": switches.servers().map(server).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Switches {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.toml");
        let mut config = Config::load(path.as_ref()).unwrap();
        let table = |text: &str| toml::from_str(text).unwrap();
        config.server[1].power = vec![table("driver = \"none\"")];
        config.server[2].power = vec![
            table(
                "driver = \"redfish\"\nurl = \"https://bmc3\"\nuser = \"ebb\"\npassword_file = \"none-here\"",
            ),
            table("driver = \"wol\"\nmac = \"52:54:00:00:00:03\""),
        ];
        config.power_paths(|_| None).unwrap()
    }

    #[test]
    fn each_server_is_listed_with_what_is_missing() {
        let text = servers_text(&example(), Depth::Off);
        assert!(
            text.contains("\nserver-1, server-4, server-5, "),
            "equal servers are listed together: {text}"
        );
        assert!(
            text.contains("0  process  wakes it from standby, off; not read back\n                server-1,"),
            "{text}"
        );
        assert_eq!(text.matches("0  process").count(), 1, "{text}");
        for server in [1, 4, 9] {
            assert!(text.contains(&format!("\n                server-{server}, process in /")), "{text}");
        }
        assert!(text.contains("server-2 never sleeps: it has no power path\n"), "{text}");
        assert!(
            text.contains(
                "0  redfish  bmc3: wakes it from off; read back; measures it\n       not available here: "
            ),
            "{text}"
        );
        assert!(
            text.contains("1  wol      52:54:00:00:00:03: wakes it from standby, off; not read back"),
            "{text}"
        );
        let value = servers_json(&example(), Depth::Off);
        assert_eq!(value["servers"][2]["sleeps"], "itself");
        assert_eq!(value["servers"][1]["sleeps"], Value::Null);
        assert!(value["servers"][2]["paths"][0]["unavailable"].as_str().unwrap().contains("none-here"));
        assert_eq!(value["servers"][2]["paths"][1]["unavailable"], Value::Null);
    }

    #[test]
    fn every_driver_is_listed_with_its_fields() {
        let text = kinds_text();
        for kind in KINDS {
            assert!(text.contains(&format!("{}\n    wakes", kind.name)), "{text}");
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&text).contains(&words(kind.takes)), "{text}");
        }
    }
}
