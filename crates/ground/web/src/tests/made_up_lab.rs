//! A fake lab: runs of two campaigns with a formula for their figures, and a campaign that continues while somebody
//! looks.

use super::browser::unix_millis;
use crate::{
    Answer, Axis, Campaign, Channel, Compared, FieldFault, Figure, Figures, Lab, LabAct, LabRefusal, LabView,
    Line, OfferedTrace, Offers, Phase, Planned, Point, Question, Results, Which,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone)]
pub(crate) struct MadeUpLab(Arc<Mutex<Inner>>);

struct Inner {
    acts: Vec<String>,
    asked: usize,
    looked: usize,
    running: Option<String>,
    points: Vec<Point>,
    trouble: Option<String>,
    targets: Vec<String>,
}

const SIZES: [u64; 3] = [512, 4096, 65536];
const LEVELS: [f64; 4] = [10.0, 40.0, 70.0, 100.0];

impl MadeUpLab {
    pub fn new() -> MadeUpLab {
        let (acts, points) = (Vec::new(), Vec::new());
        let targets = vec!["file:/var/tmp/lab.dat".into(), "/dev/nvme1n1".into()];
        let inner = Inner { acts, asked: 0, looked: 0, running: None, points, trouble: None, targets };
        MadeUpLab(Arc::new(Mutex::new(inner)))
    }

    /// Started without any target.
    pub fn that_only_shows() -> MadeUpLab {
        let lab = MadeUpLab::new();
        lab.lock().targets.clear();
        lab
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    pub fn acts(&self) -> Vec<String> {
        self.lock().acts.clone()
    }

    /// Questions and looks so far.
    pub fn cost(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.asked, inner.looked)
    }

    pub fn break_results(&self, why: &str) {
        self.lock().trouble = Some(why.into());
    }

    /// A campaign that has run for `points` half seconds; the tenth point has no watts.
    pub fn live(&self, points: u64) {
        let now = unix_millis();
        let mut inner = self.lock();
        inner.running = Some("second".into());
        inner.points = (0..points)
            .map(|n| {
                let level = LEVELS[(n / 12 % 4) as usize];
                let wave = 1.0 + 0.06 * (n as f64 / 2.0).sin();
                let watts = (n != 9).then_some(62.0 + 0.4 * level * wave);
                let channel =
                    |name: &str, unit: &str, value| Channel { name: name.into(), unit: unit.into(), value };
                Point {
                    at_unix_millis: now - 500 * (points - n),
                    run: Some(format!("disk 4KiB-random50-read0 at {level} %")),
                    iops: Some(81.0 * level * wave),
                    mb_per_second: Some(0.33 * level * wave),
                    response_millis: Some(0.8 + level / 120.0),
                    watts,
                    celsius: Some(41.0 + level / 25.0),
                    load_percent: Some(level),
                    achieved_percent: Some(level * wave.min(1.02)),
                    channels: vec![
                        channel("pdu outlet1, measured", "W", watts),
                        channel("model node, modelled", "W", Some(55.0 + 0.3 * level)),
                        channel("hwmon disk, measured", "°C", Some(41.0 + level / 25.0)),
                    ],
                }
            })
            .collect();
    }
}

/// IOPS per watt, by a formula; of one cell it was not measured.
fn efficiency(size: u64, random: f64, level: f64) -> Option<f64> {
    let missing = size == 4096 && level == 40.0;
    (!missing)
        .then(|| (90.0 - 0.5 * random) * level / (62.0 + 0.4 * level) * (4096.0 / size as f64).powf(0.3))
}

fn runs(which: &Which) -> Vec<Value> {
    let mut runs = Vec::new();
    for (c, campaign) in ["first", "second"].into_iter().enumerate() {
        for size in SIZES {
            for random in [0.0, 50.0] {
                for level in LEVELS {
                    let per_watt = efficiency(size, random, level);
                    let watts = per_watt.map(|_| 62.0 + 0.4 * level);
                    let iops = (90.0 - 0.5 * random) * level;
                    runs.push(json!({
                        "campaign": campaign, "target": "disk", "workload": format!("{size}B-random{random}-read0"),
                        "load_percent": level, "load_percent_iops": level * 0.99, "repetition": 1,
                        "started_unix_millis": 1_795_000_000_000u64 + runs.len() as u64 * 1000,
                        "request_bytes": size, "random_percent": random, "read_percent": 0.0,
                        "iops": iops, "mb_per_second": iops * size as f64 / 1e6, "latency_p50_millis": 0.8, "latency_p99_millis": 4.25,
                        "watts": watts, "watts_source": watts.map(|_| if c == 0 { "modelled" } else { "measured" }),
                        "temperature_celsius": null, "iops_per_watt": per_watt,
                        "mb_per_second_per_kilowatt": per_watt.map(|v| v * size as f64 / 1e3),
                        "evidence": watts.map(|_| if c == 0 { "level 0: modelled watts" } else { "level 2: span 2, fraction 3, subsystems 3, place 2" }),
                        "error": null,
                    }));
                }
            }
        }
    }
    runs.push(json!({"campaign": "second", "target": "disk", "workload": "web", "load_percent": 100.0, "load_percent_iops": null, "repetition": 1,
        "started_unix_millis": 1_795_000_999_000u64, "request_bytes": null, "random_percent": null, "read_percent": null,
        "error": "the trace is gone"}));
    runs.retain(|run| {
        let is = |wanted: &str, key: &str| wanted.is_empty() || run[key] == wanted;
        is(&which.campaign, "campaign")
            && is(&which.target, "target")
            && run["workload"].as_str().unwrap().contains(&which.workload)
    });
    runs
}

fn axis(label: &str) -> Axis {
    Axis { label: label.into(), ..Axis::default() }
}

/// Lines by size over load, with a gap; over sizes with names; a curve with its ideal; a distribution on a logarithmic
/// axis.
pub(crate) fn figures() -> Vec<Figure> {
    let line = |name: String, points: Vec<(f64, Option<f64>)>| Line { name, bound: false, points };
    let over_load = |title: &str, y: &str, factor: f64| Figure {
        title: title.into(),
        x: axis("load, % of the peak"),
        y: axis(y),
        lines: SIZES
            .map(|size| {
                let points = LEVELS.map(|level| (level, efficiency(size, 50.0, level).map(|v| factor * v)));
                line(format!("{size} B"), points.into())
            })
            .into(),
    };
    let sizes = Axis { names: ["512 B", "4 KiB", "64 KiB"].map(String::from).into(), ..axis("request size") };
    let over_size = Figure {
        title: "Efficiency in IOPS/W by request size (0 % reads, 100 % load)".into(),
        x: sizes,
        y: axis("IOPS/W, modelled watts"),
        lines: [0.0, 50.0]
            .map(|random| {
                let points =
                    SIZES.iter().enumerate().map(|(n, size)| (n as f64, efficiency(*size, random, 100.0)));
                line(format!("{random} % random"), points.collect())
            })
            .into(),
    };
    let power = Figure {
        title: "Power and load of 4KiB-random50-read0".into(),
        x: axis("measured load, %"),
        y: axis("W, modelled watts"),
        lines: vec![
            line("drawn".into(), [0.0, 10.0, 40.0, 70.0, 100.0].map(|l| (l, Some(62.0 + 0.4 * l))).into()),
            line("proportional".into(), vec![(0.0, Some(0.0)), (100.0, Some(102.0))]),
        ],
    };
    let times = Figure {
        title: "Response times of 4KiB-random50-read0".into(),
        x: Axis { log: true, ..axis("response time, s") },
        y: axis("requests answered, share"),
        lines: [10.0, 100.0]
            .map(|level: f64| {
                let at = |s: f64, share| (s * (1.0 + level / 50.0), Some(share));
                let points =
                    vec![at(8e-4, 0.5), at(1.6e-3, 0.9), at(4.2e-3, 0.99), at(9e-3, 0.999), at(0.04, 1.0)];
                line(format!("{level} %"), points)
            })
            .into(),
    };
    vec![
        over_load("Efficiency in IOPS/W by load (50 % random, 0 % reads)", "IOPS/W, modelled watts", 1.0),
        over_load("Efficiency in MB/s/kW by load (50 % random, 0 % reads)", "MB/s/kW, modelled watts", 4.096),
        over_size,
        power,
        times,
    ]
}

fn compared(workload: &str) -> Compared {
    let side = |name: &str, factor: f64| {
        let line = |part: &str, spread: f64| Line {
            name: format!("{name}/disk{part}"),
            bound: !part.is_empty(),
            points: LEVELS.map(|level| (level, Some(factor * spread * level))).into(),
        };
        [line("", 1.0), line(", least", 0.93), line(", most", 1.08)]
    };
    let metric =
        |metric: &str| json!({"metric": metric, "pairs": 24, "ratio": 1.25, "least": 1.1, "most": 1.4});
    Compared {
        comparison: json!({
            "overall": [metric("iops"), metric("iops_per_watt")],
            "pairs": (0..24).map(|_| json!({})).collect::<Vec<_>>(), "only_a": 0, "only_b": 1,
            "idle_watts": {"a": 62.0, "b": 48.5, "ratio": 0.782},
        }),
        workloads: vec!["512B-random0-read0".into(), "4096B-random50-read0".into()],
        figures: vec![Figure {
            title: format!("{}: iops", if workload.is_empty() { "512B-random0-read0" } else { workload }),
            x: axis("load, % of the peak"),
            y: axis("iops"),
            lines: [side("first", 8.0), side("second", 10.0)].concat(),
        }],
    }
}

fn offers(targets: Vec<String>) -> Offers {
    let trace = |file: &str, requests, read: f64| OfferedTrace {
        file: file.into(),
        requests,
        span_seconds: 604_800.0,
        requests_per_second: Some(31.5),
        read_share: Some(read),
        random_share: Some(0.62),
        mean_size_bytes: Some(8192.0),
        peak_to_mean: None,
    };
    Offers {
        targets,
        meters: vec!["rapl".into(), "model".into()],
        traces: vec![trace("cello99.srt.gz", 1_904_382, 0.58), trace("web/financial1.spc", 5_334_987, 0.23)],
        traces_note: None,
    }
}

impl Lab for MadeUpLab {
    async fn answer(&self, question: Question) -> Result<Answer, LabRefusal> {
        self.lock().asked += 1;
        let svg = |n: usize| Answer { kind: "image/svg+xml", text: format!("<svg>{n}</svg>") };
        Ok(match question {
            Question::Runs(which) if which.size == "x" => {
                let problem = "\"x\" is not a condition".to_owned();
                return Err(LabRefusal::Field(FieldFault { key: "size".into(), place: 0, problem }));
            }
            Question::Runs(which) => Answer::json(&runs(&which)),
            Question::Csv(which) => {
                Answer { kind: "text/csv; charset=utf-8", text: format!("campaign\n{}\n", which.campaign) }
            }
            Question::Figures(which) => Answer::json(&Figures {
                figures: figures(),
                proportions: json!([{"workload": "4KiB-random50-read0", "index": 0.41, "idle_watts": 62.0, "full_watts": 102.0,
                    "dynamic_range": 0.392, "overall_iops_per_watt": 21.5, "watts_source": "modelled"}]),
                note: which.campaign.is_empty().then(|| "charts are of one campaign".to_owned()),
            }),
            Question::Svg(_, n) | Question::CompareSvg(_, n) => svg(n),
            Question::Compare(sides) => Answer::json(&compared(&sides.workload)),
            Question::Repeat(run) => {
                Answer::json(&[format!("ebb lab eval run {}.toml --db again.sqlite", run.campaign)])
            }
            Question::Offers => Answer::json(&offers(self.lock().targets.clone())),
            Question::Plan(wish) if wish.repetitions == Some(json!(0)) => {
                let problem = "at least one".to_owned();
                return Err(LabRefusal::Field(FieldFault { key: "repetitions".into(), place: 0, problem }));
            }
            Question::Plan(wish) => Answer::json(&Planned {
                text: serde_json::to_string_pretty(&wish).unwrap(),
                runs: 270,
                found: 0,
                seconds: 300.0,
                command: "ebb lab eval run results.campaigns/m.toml --db results.sqlite".into(),
            }),
        })
    }

    async fn act(&self, act: LabAct) -> Result<(), LabRefusal> {
        let mut inner = self.lock();
        match &act {
            LabAct::Start { campaign } if inner.running.is_some() => {
                return Err(LabRefusal::Refused(format!(
                    "{campaign:?} cannot start: another one is running"
                )));
            }
            LabAct::Start { campaign } => inner.running = Some(campaign.clone()),
            LabAct::Pause { .. } => inner.running = None,
            LabAct::Create { .. } | LabAct::Delete { .. } => {}
        }
        inner.acts.push(act.to_string());
        Ok(())
    }

    async fn look(&self, after: u64) -> LabView {
        let mut inner = self.lock();
        inner.looked += 1;
        let campaign = |name: &str, done, total: Option<u64>| {
            let running = inner.running.as_deref() == Some(name);
            Campaign {
                name: name.into(),
                phase: match total {
                    _ if running => Phase::Running,
                    None => Phase::ResultsOnly,
                    Some(total) if done == total => Phase::Done,
                    Some(_) => Phase::Unfinished,
                },
                targets: vec!["disk".into()],
                done,
                failed: u64::from(name == "second"),
                total,
                seconds_left: total.map(|total| (total - done) as f64 * 1.2),
                present: running.then(|| "disk 4KiB-random50-read0 at 70 %".into()),
                said: None,
                command: total
                    .map(|_| format!("ebb lab eval run results.campaigns/{name}.toml --db results.sqlite")),
            }
        };
        LabView {
            results: Results {
                file: "results.sqlite".into(),
                changed_unix_millis: Some(1_795_000_999_000),
                trouble: inner.trouble.clone(),
            },
            campaigns: vec![campaign("first", 24, None), campaign("second", 24, Some(96))],
            points: inner.points.iter().skip(after as usize).cloned().collect(),
            first: after,
        }
    }
}
