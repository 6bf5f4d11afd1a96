//! `ebb lab meter`: the meters of this machine, their readings, and samples of an external analyser.

use crate::cli::provenance::{Inputs, print_or};
use crate::error::{NodeError, io, refused, writable};
use clap::Subcommand;
use ebb_meter::{
    Clock, Figures, Import, Listed, MeterRecord, OpenMeter, Quantity, Recorder, Recording, Source, Track,
    Window,
};
use ebb_output::{Progress, wrapped};
use ebb_power::Machine;
use ebb_types::Moment;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  ebb lab meter list                                     available meters, and why the others are not
  ebb lab meter read rapl --seconds 10                   mean watts and joules over ten seconds
  ebb lab meter read rapl,interval=20ms hwmon:nvme model --seconds 60 --csv samples.csv
  ebb lab meter read redfish,password-file=bmc.txt,ca=company.pem:https://ebb@bmc7
  ebb lab meter read ipmi,password-env=BMC:ebb@bmc7 'prometheus:http://prom:9090?sum(pdu_watts{rack=\"7\"})'
  ebb lab meter read 'command,name=plug:curl -s http://plug/power'
  ebb lab meter import wt310.csv --time Time --value P1 --value U1=voltage --ahead=-1.25

A meter is written KIND[,OPTION[=VALUE]]...[:ADDRESS]. Options of every kind: name=, interval=. Passwords come from
password-file=FILE, password-env=VARIABLE, or the variable EBB_METER_PASSWORD.";

#[derive(Subcommand)]
pub enum MeterCommand {
    /// List the meters of this machine, what each one covers and does not cover, and why others are unavailable
    List {
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
    /// Read meters for some time: power, energy, temperature, and the share of the time covered. Ctrl-C ends it early
    Read {
        /// Meters, such as rapl or command:COMMAND
        #[arg(required = true, value_name = "METER")]
        meters: Vec<String>,
        /// Duration in seconds
        #[arg(long, value_name = "N", value_parser = seconds, default_value = "1")]
        seconds: Duration,
        /// Time between readings, such as 200ms [default: each meter's own]
        #[arg(long, value_name = "TIME", value_parser = ebb_meter::parse_interval)]
        interval: Option<Duration>,
        /// Write every sample to this file
        #[arg(long, value_name = "FILE")]
        csv: Option<PathBuf>,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
    /// Import the samples of an external power analyser and correct its clock
    Import {
        /// Comma-, semicolon- or tab-separated values with a header line
        file: PathBuf,
        /// Column with the times
        #[arg(long, value_name = "COLUMN", default_value = "time")]
        time: String,
        /// A column of values and its quantity: power (the default), energy, temperature, voltage, current
        #[arg(long = "value", value_name = "COLUMN[=QUANTITY]", required = true, value_parser = column)]
        values: Vec<(String, Quantity)>,
        /// Seconds by which the analyser's clock is ahead of this machine's
        #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
        ahead: f64,
        /// Start time on the analyser's own clock, if its times are seconds since the start
        #[arg(long, value_name = "WHEN", value_parser = when)]
        start: Option<i64>,
        /// Write every sample, on this machine's clock, to this file
        #[arg(long, value_name = "FILE")]
        csv: Option<PathBuf>,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
}

/// `10`; with a unit another one than seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    if text.parse().is_ok_and(|seconds: f64| seconds <= 0.0) {
        return Err("write a time above 0".into());
    }
    let has_unit = text.ends_with(|last: char| !last.is_ascii_digit());
    ebb_meter::parse_interval(&if has_unit { text.to_owned() } else { format!("{text}s") })
}

fn when(text: &str) -> Result<i64, String> {
    ebb_meter::parse_unix_nanos(text)
        .ok_or_else(|| "write seconds since 1970, or 2026-11-21T23:59:59Z".into())
}

fn column(text: &str) -> Result<(String, Quantity), String> {
    let (name, quantity) = text.rsplit_once('=').unwrap_or((text, "power"));
    let quantity = ebb_meter::parse_quantity(quantity).ok_or(
        "invalid quantity: write power, energy, temperature, voltage or current after the equals sign",
    )?;
    Ok((name.to_string(), quantity))
}

pub async fn run(command: MeterCommand) -> Result<ExitCode, NodeError> {
    match command {
        MeterCommand::List { json } => {
            let all = ebb_meter::list(&Machine::default());
            if json { ebb_output::print_json(&listed_json(&all)) } else { print!("{}", listed_text(&all)) }
        }
        MeterCommand::Read { meters, seconds, interval, csv, json } => {
            return read(&meters, seconds, interval, csv.as_deref(), json).await;
        }
        MeterCommand::Import { file, time, values, ahead, start, csv, json } => {
            let name = file.file_stem().map_or("analyser".into(), |name| name.to_string_lossy().into_owned());
            let ahead_nanos = (ahead * 1e9) as i64;
            let options = Import { name, time, values, ahead_nanos, start_unix_nanos: start };
            import(&file, &options, csv.as_deref(), json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn about(listed: &Listed) -> String {
    let options = match listed.options {
        "" => String::new(),
        options => wrapped("    options   ", options) + "\n",
    };
    let (sees, not) =
        (wrapped("    sees      ", listed.sees), wrapped("    but not   ", listed.does_not_see));
    format!("{sees}\n{not}\n{options}")
}

fn listed_text(all: &[Listed]) -> String {
    let (here, missing): (Vec<&Listed>, Vec<&Listed>) = all.iter().partition(|l| l.unavailable.is_none());
    let mut out = String::from("Available here:\n");
    for listed in here {
        out += &format!("\n  {}\n", listed.spec);
        out += &about(listed);
        for channel in &listed.channels {
            let unit = match channel.quantity.unit() {
                "" => String::new(),
                unit => format!(" in {unit}"),
            };
            let source = match channel.source {
                Source::Measured => String::new(),
                source => format!(", {}", source.name()),
            };
            let part = channel.part_of.as_ref().map_or(String::new(), |whole| format!(" (part of {whole})"));
            let text = format!("{}{unit}{source}{part}: {}", channel.name, channel.sees);
            out += &(wrapped("    channel   ", &text) + "\n");
        }
    }
    out += "\nNot available here:\n";
    for listed in missing {
        let why = listed.unavailable.as_deref().unwrap_or_default();
        out += &format!("\n  {}\n{}\n", listed.spec, wrapped("    because   ", why));
        out += &about(listed);
    }
    out
}

fn listed_json(all: &[Listed]) -> Value {
    let one = |listed: &Listed| {
        json!({
            "spec": listed.spec,
            "available": listed.unavailable.is_none(),
            "unavailable": listed.unavailable,
            "sees": listed.sees,
            "does_not_see": listed.does_not_see,
            "options": listed.options,
            "channels": listed.channels.iter().map(channel_json).collect::<Vec<_>>(),
        })
    };
    Value::Array(all.iter().map(one).collect())
}

fn channel_json(channel: &ebb_meter::Channel) -> Value {
    json!({
        "name": channel.name,
        "quantity": channel.quantity.name(),
        "unit": channel.quantity.unit(),
        "source": channel.source.name(),
        "part_of": channel.part_of,
        "sees": channel.sees,
    })
}

async fn read(
    specs: &[String],
    seconds: Duration,
    interval: Option<Duration>,
    csv: Option<&Path>,
    json: bool,
) -> Result<ExitCode, NodeError> {
    let mut meters: Vec<OpenMeter> =
        specs.iter().map(|spec| ebb_meter::open(spec)).collect::<Result<_, _>>()?;
    let mut names = BTreeSet::new();
    for open in &mut meters {
        open.interval = interval.unwrap_or(open.interval);
        if !names.insert(open.name.clone()) {
            let why = format!("two meters are named {:?}: rename one with the option name=", open.name);
            return Err(refused(why));
        }
    }
    // Before any reading: a user who waits an hour wants the file.
    let csv = csv
        .map(|path| File::create(path).map(|file| (path, file)).map_err(io("create", path)))
        .transpose()?;
    let recorder = Recorder::start(meters)?;
    let from = recorder.sample();
    wait(seconds).await;
    let to = ebb_meter::now();
    let recording = recorder.stop();
    if let Some((path, file)) = csv {
        write_csv(&recording, path, file)?;
    }
    show(&recording, &recording.window(from, to), json, &Inputs::default());
    Ok(if has_reading(&recording) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether any channel of any meter gave a value.
fn has_reading(recording: &Recording) -> bool {
    let mut samples =
        recording.meters.iter().flat_map(|meter| &meter.tracks).flat_map(|track| &track.samples);
    samples.any(|sample| sample.value.is_some())
}

/// Waits until the time is over or Ctrl-C.
async fn wait(time: Duration) {
    let start = tokio::time::Instant::now();
    let mut line = Progress::new();
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    while start.elapsed() < time {
        let elapsed = start.elapsed().as_secs_f64();
        line.show(format_args!("{elapsed:.0} of {:.0} s", time.as_secs_f64()));
        let step = (time - start.elapsed().min(time)).min(Duration::from_secs(1));
        tokio::select! {
            () = tokio::time::sleep(step) => {}
            _ = &mut interrupted => break,
        }
    }
}

fn write_csv(recording: &Recording, path: &Path, file: File) -> Result<(), NodeError> {
    ebb_meter::export(recording, BufWriter::new(file))?;
    let samples: usize = recording.meters.iter().flat_map(|m| &m.tracks).map(|t| t.samples.len()).sum();
    eprintln!("{samples} samples written to {}", path.display());
    Ok(())
}

fn show(recording: &Recording, window: &Window, json: bool, inputs: &Inputs) {
    print_or(&window_json(recording, window), json, inputs, window_text(window));
    for meter in recording.meters.iter().filter(|_| !json) {
        missing(meter, window).iter().for_each(|line| eprintln!("{line}"));
    }
    let _ = std::io::stdout().flush();
}

/// Why values are missing.
fn missing(meter: &MeterRecord, window: &Window) -> Vec<String> {
    let name = &meter.name;
    let failed = |why| format!("{name}: {} of {} readings failed: {why}", meter.failed_reads, meter.reads);
    let failure = meter.last_failure.as_ref().map(failed);
    let absent = meter.why_absent.as_ref().map(|why| format!("{name}: no value: {why}"));
    let uncovered =
        window.figures.iter().filter(|f| f.meter == *name && f.coverage < 1.0).filter_map(|figures| {
            let track = meter.tracks.iter().find(|track| track.channel.name == figures.channel.name)?;
            Some(format!("{name}, {}: {}", figures.channel.name, track.why_uncovered()?))
        });
    failure.into_iter().chain(absent).chain(uncovered).collect()
}

/// Three decimals for small numbers, one for large ones; a dash for an absent value.
fn number(value: Option<f64>, unit: &str) -> String {
    match value {
        None => "-".into(),
        Some(value) if value.abs() < 10.0 => format!("{value:.3} {unit}").trim_end().into(),
        Some(value) => format!("{value:.1} {unit}").trim_end().into(),
    }
}

fn window_text(window: &Window) -> String {
    let header = ["meter", "channel", "mean", "least", "most", "energy", "covered", "samples", "source"];
    let mut rows = vec![header.map(String::from)];
    for figures in &window.figures {
        let unit = match figures.channel.quantity {
            Quantity::Energy { .. } => "W",
            other => other.unit(),
        };
        rows.push([
            figures.meter.clone(),
            figures.channel.name.clone(),
            number(figures.mean, unit),
            number(figures.min, unit),
            number(figures.max, unit),
            number(figures.energy.map(|energy| energy.0), "J"),
            format!("{:.0} %", figures.coverage * 100.0),
            match figures.samples {
                // One before the window and one behind it.
                0 if figures.coverage > 0.0 => "2 around".into(),
                within => within.to_string(),
            },
            figures.channel.source.name().into(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out += cells.join("  ").trim_end();
        out.push('\n');
    }
    out
}

fn figures_json(figures: &Figures, track: &Track) -> Value {
    let mut value = channel_json(&figures.channel);
    value["samples"] = json!(figures.samples);
    value["coverage"] = json!(figures.coverage);
    value["energy_joules"] = json!(figures.energy.map(|energy| energy.0));
    value["mean"] = json!(figures.mean);
    value["min"] = json!(figures.min);
    value["max"] = json!(figures.max);
    value["why_uncovered"] = json!(track.why_uncovered().filter(|_| figures.coverage < 1.0));
    value
}

fn window_json(recording: &Recording, window: &Window) -> Value {
    let one = |meter: &MeterRecord| {
        let energy = window.energy(&meter.name);
        // The figures of a meter are in the order of its tracks.
        let figures = window.figures.iter().filter(|f| f.meter == meter.name);
        let channels: Vec<Value> =
            figures.zip(&meter.tracks).map(|(figures, track)| figures_json(figures, track)).collect();
        json!({
            "name": meter.name,
            "energy_joules": energy.map(|e| e.energy.0),
            "mean_watts": energy.map(|e| e.power.0),
            "coverage": energy.map(|e| e.coverage),
            "source": energy.map(|e| e.source.name()),
            "reads": meter.reads,
            "failed_reads": meter.failed_reads,
            "last_failure": meter.last_failure,
            "why_absent": meter.why_absent,
            "slowest_read_millis": meter.slowest_read.as_secs_f64() * 1e3,
            "channels": channels,
        })
    };
    json!({
        "from_unix_seconds": recording.clock.unix_nanos(window.from) as f64 / 1e9,
        "seconds": window.to.since(window.from).as_secs_f64(),
        "meters": recording.meters.iter().map(one).collect::<Vec<_>>(),
    })
}

fn import(file: &Path, options: &Import, csv: Option<&Path>, json: bool) -> Result<(), NodeError> {
    csv.map_or(Ok(()), writable)?;
    // Any clock will do: no other meter uses it. This one begins in 1970, so that no sample is too old.
    let clock = Clock { unix_nanos_at_zero: 0 };
    let input = BufReader::new(File::open(file).map_err(io("open", file))?);
    let record = ebb_meter::import(input, options, clock)?;
    let times: Vec<Moment> = record.tracks.iter().flat_map(|t| &t.samples).map(|s| s.at).collect();
    let (Some(from), Some(to)) = (times.iter().min(), times.iter().max()) else {
        return Err(refused(format!("{} holds no sample", file.display())));
    };
    let recording = Recording { clock, meters: vec![record] };
    if let Some(path) = csv {
        write_csv(&recording, path, File::create(path).map_err(io("create", path))?)?;
    }
    show(&recording, &recording.window(*from, *to), json, &Inputs::of([file]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_meter::{Channel, Sample};

    fn recording() -> Recording {
        let track = |name: &str, quantity, source, samples: &[Option<f64>]| Track {
            channel: Channel { name: name.into(), quantity, source, part_of: None, sees: "all".into() },
            interval: Duration::from_secs(1),
            samples: samples
                .iter()
                .enumerate()
                .map(|(i, value)| Sample { at: Moment(i as u64 * 1_000_000_000), value: *value })
                .collect(),
        };
        let tracks = vec![
            track("psu", Quantity::Power, Source::Measured, &[Some(100.0), Some(100.0), None]),
            track("inlet", Quantity::Temperature, Source::Measured, &[Some(21.0), Some(22.0), Some(23.0)]),
            track("gone", Quantity::Temperature, Source::Measured, &[None, None, None]),
        ];
        let meter = MeterRecord {
            name: "bmc".into(),
            tracks,
            reads: 3,
            failed_reads: 1,
            last_failure: Some("no answer".into()),
            why_absent: None,
            slowest_read: Duration::from_millis(20),
        };
        Recording { clock: Clock { unix_nanos_at_zero: 5_000_000_000 }, meters: vec![meter] }
    }

    #[test]
    fn what_is_absent_is_shown_as_absent() {
        let recording = recording();
        let window = recording.window(Moment(0), Moment(2_000_000_000));
        let text = window_text(&window);
        let words =
            |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(1), "bmc psu 100.0 W 100.0 W 100.0 W 100.0 J 50 % 2 measured");
        assert_eq!(words(2), "bmc inlet 22.0 °C 21.0 °C 23.0 °C - 100 % 3 measured");
        assert_eq!(words(3), "bmc gone - - - - 0 % 0 measured");
        let json = window_json(&recording, &window);
        assert_eq!((&json["from_unix_seconds"], &json["seconds"]), (&json!(5.0), &json!(2.0)));
        let meter = &json["meters"][0];
        assert_eq!((&meter["energy_joules"], &meter["mean_watts"]), (&json!(100.0), &json!(100.0)));
        assert_eq!((&meter["coverage"], &meter["failed_reads"]), (&json!(0.5), &json!(1)));
        assert_eq!(meter["channels"][2]["mean"], Value::Null);
        assert_eq!(meter["channels"][1]["unit"], "°C");
    }

    #[test]
    fn what_is_missing_is_explained() {
        let mut recording = recording();
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let sample = |seconds, joules| Sample { at: at(seconds), value: Some(joules) };
        recording.meters[0].tracks[2].channel.quantity = Quantity::Energy { range: Some(10_000.0) };
        recording.meters[0].tracks[2].samples = vec![sample(0, 100.0), sample(60, 90.0)];
        let window = recording.window(at(1), at(59));
        let lines = missing(&recording.meters[0], &window);
        assert_eq!(lines[0], "bmc: 1 of 3 readings failed: no answer");
        assert!(
            lines[1].starts_with("bmc, gone: in the 60 s") && lines[1].contains("at least every 5 s"),
            "{lines:?}"
        );
        let json = &window_json(&recording, &window)["meters"][0];
        assert!(
            json["channels"][2]["why_uncovered"].as_str().unwrap().contains("at least every 5 s"),
            "{json}"
        );
        assert_eq!(
            (&json["channels"][1]["why_uncovered"], &json["why_absent"]),
            (&Value::Null, &Value::Null)
        );
        recording.meters[0].why_absent = Some("gone gave none".into());
        assert_eq!(missing(&recording.meters[0], &window)[1], "bmc: no value: gone gave none");
        // A slow meter: one reading before the window, one behind it.
        recording.meters[0].tracks[0].samples = vec![sample(0, 100.0), sample(1, 100.0)];
        let text = window_text(&recording.window(Moment(500_000_000), Moment(600_000_000)));
        assert!(text.lines().nth(1).unwrap().contains("2 around"), "{text}");
    }

    #[test]
    fn meters_that_gave_nothing_are_told_from_those_that_did() {
        let mut recording = recording();
        assert!(has_reading(&recording));
        recording.meters[0].tracks.drain(..2);
        assert!(!has_reading(&recording), "the channel that is left has no value");
    }

    #[test]
    fn the_list_says_why_and_what_not() {
        let listed = |spec: &str, unavailable: Option<&str>| Listed {
            spec: spec.into(),
            options: "",
            sees: "cores",
            does_not_see: "fans",
            channels: Vec::new(),
            unavailable: unavailable.map(str::to_string),
        };
        let all = [listed("rapl", Some("no RAPL; load the module")), listed("model", None)];
        let text = listed_text(&all);
        let (here, missing) = text.split_once("Not available here:").unwrap();
        assert!(here.contains("model") && !here.contains("rapl") && here.contains("but not   fans"));
        assert!(missing.contains("because   no RAPL; load the module"));
        assert_eq!(listed_json(&all)[0]["available"], json!(false));
    }

    #[test]
    fn arguments_are_checked() {
        assert_eq!(column("P1").unwrap(), ("P1".to_string(), Quantity::Power));
        assert_eq!(column("a=b=voltage").unwrap(), ("a=b".to_string(), Quantity::Voltage));
        assert!(column("P1=smell").is_err());
        assert_eq!(when("1970-01-01T00:00:01Z"), Ok(1_000_000_000));
        assert_eq!(
            (seconds("1"), seconds("2.5")),
            (Ok(Duration::from_secs(1)), Ok(Duration::from_millis(2500)))
        );
        assert_eq!(seconds("2m"), Ok(Duration::from_secs(120)));
        assert!(seconds("").is_err());
        assert_eq!(
            (seconds("0"), seconds("-1")),
            (Err("write a time above 0".into()), Err("write a time above 0".into()))
        );
    }
}
