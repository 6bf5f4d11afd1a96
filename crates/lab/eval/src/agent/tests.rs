use super::message::{Reply, Request};
use super::*;
use crate::{AgentSpec, Analyzer, Collector, Filter, Generator, Intensity, Order, Place, RunError, Workload};
use bytes::Bytes;
use ebb_client::Secret;
use ebb_client::transport::{connect, kind};
use ebb_types::Moment;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// An agent on a free loopback port, on its own thread until it is dropped.
struct Running {
    address: String,
    _stop: oneshot::Sender<()>,
}

fn start(dir: &Path, allowed: Allowed) -> Running {
    let secret = Secret::create(&dir.join("secret")).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let agent = Agent::listen("127.0.0.1:0", &secret, allowed, None).await.unwrap();
            tell.send(agent.address().unwrap().to_string()).unwrap();
            tokio::select! {
                () = agent.serve(|_| {}) => {}
                _ = stopped => {}
            }
        });
    });
    Running { address: told.recv().unwrap(), _stop: stop }
}

fn spec(dir: &Path, running: &Running) -> AgentSpec {
    AgentSpec { name: "a".into(), address: running.address.clone(), secret_file: dir.join("secret") }
}

fn place(dir: &Path) -> Place {
    Place { at: format!("file:{}", dir.join("data").display()), size_bytes: 1 << 20, overwrite: false }
}

fn order(place: Place, workload: Workload) -> Order {
    let trace = matches!(workload, Workload::Synthetic { .. }).then(|| "modes/file.replay.0".into());
    let (length, interval) = (Duration::from_millis(100), Duration::from_secs(60));
    let intensity = Intensity::Level { percent: 50.0, filter: Filter::Balanced };
    Order { place, workload, intensity, length, seed: 1, trace, collector: Collector::Program, interval }
}

const MODE: Workload = Workload::Synthetic { size: 4096, random: 50, reads: 50 };

#[test]
fn an_agent_generates_load_and_says_on_what() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path());
    let traces = Some(dir.path().join("traces"));
    let agent = start(dir.path(), Allowed { targets: vec![place.at.clone()], traces, ..Allowed::default() });
    let mut generator = RemoteGenerator::connect(&spec(dir.path(), &agent)).unwrap();
    let machine = generator.prepare(&place).unwrap();
    assert!(machine.kernel.is_some() && machine.device.unwrap().contains("1.0 MiB"));
    let level = order(place, MODE);
    let peak = Order { intensity: Intensity::Peak { depth: 4 }, ..level.clone() };
    let kept = Path::new("modes/file.replay.0");
    assert!(!generator.holds(kept).unwrap());
    let whole = generator.run(&peak, &mut |_| {}).unwrap();
    assert!(
        generator.holds(kept).unwrap() && dir.path().join("traces").join(kept).exists(),
        "the agent keeps it"
    );
    assert!(generator.holds(Path::new("../secret")).is_err());
    let performance = generator.run(&level, &mut |_| {}).unwrap();
    // Requests that this machine was too busy to issue in time are missing.
    assert!((1..=whole.requests / 2 + 4).contains(&performance.requests), "{performance:?}");
    assert_eq!((performance.bytes, performance.failed), (performance.requests * 4096, 0));
    assert!(performance.latency.unwrap().p99_millis > 0.0);
    // Both are on one machine: the clocks are the same, and the offset is within the round trip.
    assert!(generator.clock_offset().unwrap().abs() < 100_000_000);
    assert!(performance.to.since(performance.from) < Duration::from_secs(5));
}

#[test]
fn an_agent_reads_its_meters() {
    let dir = tempfile::tempdir().unwrap();
    let meter = "command:echo 42".to_owned();
    let agent = start(dir.path(), Allowed { meters: vec![meter.clone()], ..Allowed::default() });
    let mut analyzer = RemoteAnalyzer::connect(&spec(dir.path(), &agent), &[meter]).unwrap();
    let from = ebb_meter::now();
    analyzer.mark().unwrap();
    let draw = analyzer.draw(from, ebb_meter::now()).unwrap();
    // Energy over time gives the watts to within a rounding error, whatever the length of the window.
    assert!((draw.watts.unwrap() - 42.0).abs() < 1e-9, "{:?}", draw.watts);
    assert_eq!((draw.source, draw.volts), (Some(ebb_meter::Source::Stated), None));
    let present = analyzer.present();
    assert!(present.watts.is_some_and(|watts| (watts - 42.0).abs() < 1e-9), "{present:?}");
    assert!(present.channels.iter().any(|channel| channel.unit == "W"), "{present:?}");
}

/// The rates of an agent's run reach the host before its result.
#[test]
fn an_agents_run_can_be_watched() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path());
    let traces = Some(dir.path().join("traces"));
    let agent = start(dir.path(), Allowed { targets: vec![place.at.clone()], traces, ..Allowed::default() });
    let mut generator = RemoteGenerator::connect(&spec(dir.path(), &agent)).unwrap();
    let length = Duration::from_millis(900);
    let peak = Order { intensity: Intensity::Peak { depth: 4 }, length, ..order(place, MODE) };
    let mut seen = Vec::new();
    generator.run(&peak, &mut |live| seen.push(live)).unwrap();
    assert!(seen.iter().any(|live| live.iops > 0.0 && live.mb_per_second > 0.0), "{seen:?}");
}

#[test]
fn who_does_not_know_the_secret_gets_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), Allowed::default());
    let other = tempfile::tempdir().unwrap();
    Secret::create(&other.path().join("secret")).unwrap();
    let error = RemoteGenerator::connect(&spec(other.path(), &agent)).err().unwrap();
    assert!(matches!(&error, RunError::Lost(why) if why.contains("another cluster secret")), "{error}");
    let missing = AgentSpec { secret_file: "/nowhere".into(), ..spec(dir.path(), &agent) };
    assert!(RemoteGenerator::connect(&missing).is_err());
    // It still serves hosts that do.
    assert!(RemoteGenerator::connect(&spec(dir.path(), &agent)).is_ok());
}

#[test]
fn an_agent_does_only_what_it_was_started_for() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("traces")).unwrap();
    std::fs::write(dir.path().join("traces/web.spc"), "0,8,4096,R,0\n0,16,4096,W,0.05\n").unwrap();
    let place = place(dir.path());
    let allowed = Allowed {
        targets: vec![place.at.clone()],
        traces: Some(dir.path().join("traces")),
        meters: vec!["command:echo 1".into()],
    };
    let agent = start(dir.path(), allowed);
    let mut generator = RemoteGenerator::connect(&spec(dir.path(), &agent)).unwrap();
    let elsewhere = Place { at: "file:/etc/passwd".into(), ..place.clone() };
    assert!(generator.prepare(&elsewhere).unwrap_err().to_string().contains("--target"));
    assert!(
        generator.run(&order(elsewhere, MODE), &mut |_| {}).unwrap_err().to_string().contains("--target")
    );
    let trace = |file: &str| {
        let (name, file) = ("web".to_owned(), PathBuf::from(file));
        order(place.clone(), Workload::Trace { name, file, skip_bad: 0, bunch: Duration::ZERO })
    };
    let whole = |order: Order| Order { intensity: Intensity::Peak { depth: 1 }, ..order };
    assert_eq!(generator.run(&whole(trace("web.spc")), &mut |_| {}).unwrap().requests, 2);
    for outside in ["../secret", "/etc/passwd", "a/../../secret"] {
        let error = generator.run(&trace(outside), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("not a path inside"), "{outside}: {error}");
        let stored = Order { trace: Some(outside.into()), ..order(place.clone(), MODE) };
        let error = generator.run(&stored, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("not a path inside"), "{outside}: {error}");
    }
    let nothing = generator
        .run(&order(place.clone(), Workload::Synthetic { size: 0, random: 0, reads: 0 }), &mut |_| {});
    assert!(matches!(nothing, Err(RunError::Failed(_))), "{nothing:?}");
    let endless = Order { length: Duration::MAX, ..order(place, MODE) };
    assert!(generator.run(&endless, &mut |_| {}).is_err());
    let error =
        RemoteAnalyzer::connect(&spec(dir.path(), &agent), &["command:rm -rf /".into()]).err().unwrap();
    assert!(error.to_string().contains("--meter"), "{error}");
}

/// Requests out of order and frames of another kind: the agent replies or closes the connection, and keeps running.
#[test]
fn a_host_that_breaks_the_protocol_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), Allowed::default());
    let secret = Secret::load(&dir.path().join("secret")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut host = connect(&agent.address, &secret, super::serve::IDENTITY).await.unwrap();
        let early = Request::Draw { from: Moment(u64::MAX), to: Moment::ZERO };
        host.sender.send(kind::AGENT_REQUEST, 7, &early, Bytes::new()).unwrap();
        let (id, reply) = host.receiver.next().await.unwrap().unwrap().decode::<Reply>().unwrap();
        assert_eq!(id, 7);
        assert!(matches!(reply, Reply::Refused(RunError::Lost(_))), "{reply:?}");
        host.sender.send(kind::PEER, 8, &early, Bytes::new()).unwrap();
        assert!(!matches!(host.receiver.next().await, Ok(Some(_))), "the connection has ended");
        let mut host = connect(&agent.address, &secret, super::serve::IDENTITY).await.unwrap();
        host.sender.send(kind::AGENT_REQUEST, 9, &(u64::MAX, "nonsense"), Bytes::new()).unwrap();
        assert!(!matches!(host.receiver.next().await, Ok(Some(_))));
    });
    assert!(RemoteGenerator::connect(&spec(dir.path(), &agent)).is_ok());
}
