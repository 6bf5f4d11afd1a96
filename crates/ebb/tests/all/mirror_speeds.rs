//! Mirrors whose disks change their speed by a program, sleep, fail while they serve, and end in a hurry.

use crate::harness::{PATIENCE, wait};
use crate::mirror::{Bench, FLUSH, Load, MIB, said, scrub};
use ebb_testing::skip;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};

/// A program for speeds: it notes each call, fails once if there is a file `fail`, and hangs once if there is a file
/// `hang`.
const PROGRAM: &str = "cd $(dirname $0)
echo $EBB_DISK $1 >> calls
if rm fail 2> /dev/null; then echo no >&2; exit 1; fi
if rm hang 2> /dev/null; then echo $$ > hung; exec sleep 3600; fi
";

/// Epochs of 50 ms, and thresholds far apart; `driver`: what is noted of it.
fn tune(bench: &Bench, driver: &str, settings: &[(&str, f64)]) {
    std::fs::write(bench.path("speed"), PROGRAM).unwrap();
    let entry = bench.path("registry/m.toml");
    let mut table: toml::Table = toml::from_str(&std::fs::read_to_string(&entry).unwrap()).unwrap();
    let program = bench.path("speed").display().to_string();
    let driver = driver.replace("PROGRAM", &format!("\"sh\", \"{program}\""));
    table.insert("driver".to_owned(), toml::from_str::<toml::Table>(&driver).unwrap().into());
    let tuned = table["settings"].as_table_mut().unwrap();
    tuned.insert("epoch_seconds".to_owned(), 0.05.into());
    tuned.insert("settle_epochs".to_owned(), 1.into());
    tuned.insert("smoothing".to_owned(), 0.0.into());
    let thresholds = tuned["thresholds"].as_table_mut().unwrap();
    for (key, value) in [("go_up", 0.1), ("go_down", 0.05), ("min_log", 0.05), ("min_regular", 0.05)] {
        thresholds.insert(key.to_owned(), value.into());
    }
    for (key, value) in settings {
        tuned.insert((*key).to_owned(), (*value).into());
    }
    std::fs::write(&entry, toml::to_string(&table).unwrap()).unwrap();
}

fn calls(bench: &Bench) -> Vec<String> {
    let text = std::fs::read_to_string(bench.path("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn load() -> Load {
    Load::new(11, 0, 128)
}

fn speeds(status: &serde_json::Value) -> [&str; 2] {
    [0, 1].map(|n| status["disks"][n]["speed"].as_str().unwrap())
}

fn changes(status: &serde_json::Value) -> u64 {
    [0, 1].map(|n| status["disks"][n]["speed_changes"].as_u64().unwrap()).iter().sum()
}

fn terminate(process: &Child) {
    let pid = rustix::process::Pid::from_child(process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
}

#[test]
fn a_program_changes_the_speeds_under_load_and_may_fail_or_hang() {
    let bench = Bench::with_mirror(24);
    let driver = "name = \"command\"\ndeadline_seconds = 0.5\n[command]\nlow = [PROGRAM, \"low\"]\n\
                  high = [PROGRAM, \"high\"]\nslowdown = 2.0\n";
    tune(&bench, driver, &[]);
    let served = bench.serve(&[]);
    assert_eq!(calls(&bench), ["a high", "b high"], "each is tried at the start");
    bench.wait_status("both go down while there is nothing to do", |status| speeds(status) == ["low"; 2]);
    let (mut client, mut load) = (served.client(), load());
    for obstacle in ["fail", "hang"] {
        std::fs::write(bench.path(obstacle), "").unwrap();
        let before = changes(&bench.status());
        // A disk goes up under load, with the second attempt.
        wait("a disk goes up", PATIENCE, || {
            for _ in 0..50 {
                load.write(&mut client).expect("a write");
                client.call(FLUSH, 0, 0, &[]).expect("a flush");
            }
            load.verify(&mut client);
            (changes(&bench.status()) > before).then_some(())
        });
        assert!(!bench.path(obstacle).exists(), "the program met it");
        bench.wait_status("both go down again", |status| speeds(status) == ["low"; 2]);
    }
    load.verify(&mut client);
    assert_eq!(scrub(&bench).1, 0);
    served.stop();
    let calls = calls(&bench);
    for disk in ["a", "b"] {
        let last = calls.iter().rfind(|call| call.starts_with(disk)).unwrap();
        assert_eq!(last, &format!("{disk} high"), "it is left at high speed");
    }
}

fn states(status: &serde_json::Value) -> [&str; 2] {
    [0, 1].map(|n| status["disks"][n]["state"].as_str().unwrap())
}

fn sleeping(bench: &Bench) -> usize {
    let status = bench.wait_status("a disk sleeps", |status| states(status).contains(&"asleep"));
    states(&status).iter().position(|state| *state == "asleep").unwrap()
}

const SLEEPS: &str =
    "name = \"command\"\n[command]\nlow = [PROGRAM, \"low\"]\nhigh = [PROGRAM, \"high\"]\nsleeps = true\n";

#[test]
fn a_disk_sleeps_while_the_other_one_serves_and_nothing_is_lost_when_the_server_is_killed() {
    let bench = Bench::with_mirror(24);
    tune(&bench, SLEEPS, &[("awake_seconds", 0.1)]);
    let mut load = load();
    for round in 0..5 {
        let mut served = bench.serve(&[]);
        assert_eq!(bench.status()["policy"], "two-speed");
        let mut client = served.client();
        load.verify(&mut client);
        let asleep = sleeping(&bench);
        while bench.status()["disks"][asleep]["postponed_bytes"] == 0 {
            load.write(&mut client).expect("a write");
            load.verify(&mut client);
        }
        if round == 0 {
            let page = said(&bench.ebb(&["status", "m"]));
            assert!(page.contains("asleep") && page.contains("as forecast for low speed"), "{page}");
            assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
        }
        served.process.kill().unwrap();
        served.process.wait().unwrap();
    }
    let served = bench.serve(&[]);
    load.verify(&mut served.client());
    bench.wait_status("both are the same", |status| status["condition"] == "in-sync");
    sleeping(&bench);
    load.write(&mut served.client()).expect("a write");
    assert_eq!(scrub(&bench).1, 0, "a pass wakes the disk, which has everything then");
    sleeping(&bench);
    served.stop();
}

#[test]
fn a_second_signal_ends_at_once_although_a_disk_does_not_wake() {
    let bench = Bench::with_mirror(24);
    tune(&bench, SLEEPS, &[("awake_seconds", 0.1)]);
    let mut command = bench.command(&["serve", "m", "--nbd", "127.0.0.1:0"]);
    let process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("run ebb");
    wait("it is served", PATIENCE, || bench.path("registry/m.sock").exists().then_some(()));
    sleeping(&bench);
    std::fs::write(bench.path("hang"), "").unwrap();
    terminate(&process);
    let hung = wait("the disk is being woken", PATIENCE, || {
        let text = std::fs::read_to_string(bench.path("hung")).ok()?;
        rustix::process::Pid::from_raw(text.trim().parse().ok()?)
    });
    terminate(&process);
    let output = process.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("ended at once, without waiting for the disks"), "{text}");
    // The process has left its program behind.
    rustix::process::kill_process(hung, rustix::process::Signal::KILL).expect("it hangs");
    let served = bench.serve(&["--driver", "none"]);
    bench.wait_status("both are the same", |status| status["condition"] == "in-sync");
    served.stop();
}

/// Disk B is memory of this process, which it makes read-only while the mirror serves.
#[test]
fn a_disk_that_fails_while_it_serves_leads_to_degraded_and_to_no_error_for_clients() {
    let Ok(memory) = rustix::fs::memfd_create("disk", MemfdFlags::ALLOW_SEALING) else {
        return skip("the kernel has no memory files that can be sealed");
    };
    rustix::fs::ftruncate(&memory, 24 * MIB).unwrap();
    let bench = Bench::new(&[("a", 24)]);
    let failing = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    said(&bench.ebb(&["create", "m", "--disk", "a", "--disk", &failing, "--log", "1MiB"]));
    let served = bench.serve(&[]);
    let (mut client, mut load) = (served.client(), load());
    (0..100).for_each(|_| load.write(&mut client).expect("a write"));
    rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE).unwrap();
    (0..200).for_each(|_| load.write(&mut client).expect("a write"));
    load.verify(&mut client);
    let status = bench.status();
    assert_eq!((status["condition"].as_str(), states(&status)), (Some("degraded"), ["serving", "lost"]));
    assert!(said(&bench.ebb(&["status", "m"])).contains("degraded: disk B is lost"));
    served.stop();
    // The other disk alone has everything, durably.
    let served = bench.serve(&["--keep", "a"]);
    assert!(served.line.contains("degraded"), "{}", served.line);
    load.verify(&mut served.client());
    served.stop();
}
