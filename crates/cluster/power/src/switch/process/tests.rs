use super::*;
use std::cell::RefCell;
use std::time::Instant;

/// A child that is killed with the test, whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper() -> Running {
    Running(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap())
}

/// Signals need no time.
struct Timeless {
    /// No other order has come.
    wanted: bool,
}

impl Clock for Timeless {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn pause(&mut self, time: Duration) -> bool {
        assert!(time.is_zero(), "a process is not waited for");
        self.wanted
    }
}

struct Switch(RefCell<Process>);

impl Switch {
    fn sleep(&self, depth: Depth) -> Result<(), SwitchError> {
        self.0.borrow_mut().sleep(depth, &mut Timeless { wanted: true })
    }
    fn wake(&self) -> Result<(), SwitchError> {
        self.0.borrow_mut().wake(&mut Timeless { wanted: true })
    }
    fn observe(&self) -> PowerState {
        self.0.borrow_mut().observe(&mut Timeless { wanted: true }).unwrap_or(PowerState::Unknown)
    }
}

fn switch(data: &Path, launch: Option<Launch>) -> Switch {
    Switch(RefCell::new(Process::new(ServerId(3), Managed { data: data.to_path_buf(), launch })))
}

fn shell(data: &Path, script: &str) -> Launch {
    Launch { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()], log: data.join("server.log") }
}

fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !reached() {
        assert!(Instant::now() < deadline, "never saw: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn standby_stops_a_process_that_is_not_ours_and_wakes_it() {
    let data = tempfile::tempdir().unwrap();
    let child = sleeper();
    write_pid_file(data.path(), child.0.id()).unwrap();
    let switch = switch(data.path(), None);
    assert_eq!(switch.observe(), PowerState::On);
    for _ in 0..2 {
        switch.sleep(Depth::Standby).unwrap();
        wait_for("standby", || switch.observe() == PowerState::Standby);
    }
    for _ in 0..2 {
        switch.wake().unwrap();
        wait_for("on", || switch.observe() == PowerState::On);
    }
}

/// As on a full disk, where no other file can be made.
#[test]
fn a_pid_file_is_written_over_that_of_an_earlier_process() {
    let data = tempfile::tempdir().unwrap();
    let (first, second) = (sleeper(), sleeper());
    write_pid_file(data.path(), first.0.id()).unwrap();
    let path = process_path(data.path());
    let longer = format!("{}and more\n", std::fs::read_to_string(&path).unwrap());
    std::fs::write(&path, longer).unwrap();
    let other = tempfile::tempdir().unwrap();
    write_pid_file(other.path(), second.0.id()).unwrap();
    let text = std::fs::read_to_string(process_path(other.path())).unwrap();
    write_over(&path, text.as_bytes()).unwrap();
    assert_eq!(read_pid_file(&path).unwrap().unwrap().pid, second.0.id());
    assert_eq!(switch(data.path(), None).observe(), PowerState::On);
}

#[test]
fn a_process_that_ended_is_off_even_while_its_parent_has_not_noticed() {
    let data = tempfile::tempdir().unwrap();
    let mut child = sleeper();
    write_pid_file(data.path(), child.0.id()).unwrap();
    let switch = switch(data.path(), None);
    child.0.kill().unwrap();
    wait_for("off", || switch.observe() == PowerState::Off);
    assert!(matches!(switch.sleep(Depth::Standby), Err(SwitchError::NotRunning { .. })));
    assert!(matches!(switch.wake(), Err(SwitchError::NotRunning { .. })));
}

#[test]
fn a_pid_that_another_process_has_got_is_never_signalled() {
    let data = tempfile::tempdir().unwrap();
    let child = sleeper();
    let pid = child.0.id();
    write_pid_file(data.path(), pid).unwrap();
    let written = std::fs::read_to_string(process_path(data.path())).unwrap();
    let words: Vec<&str> = written.split_whitespace().collect();
    let start: u64 = words[1].parse().unwrap();
    let other_start = format!("{pid} {} {}\n", start + 1, words[2]);
    let other_boot = format!("{pid} {start} 00000000-0000-0000-0000-000000000000\n");
    for forged in [other_start, other_boot] {
        std::fs::write(process_path(data.path()), forged).unwrap();
        let switch = switch(data.path(), None);
        assert_eq!(switch.observe(), PowerState::Off);
        assert!(matches!(switch.sleep(Depth::Standby), Err(SwitchError::NotRunning { .. })));
        assert!(!matches!(Stat::read(pid).unwrap().unwrap().state, 'T'));
    }
}

#[test]
fn off_ends_the_process_and_waking_starts_it_again() {
    let data = tempfile::tempdir().unwrap();
    let command = shell(data.path(), "echo started; exec sleep 1000");
    let first = Running(launch(&command, data.path()).unwrap());
    let switch = switch(data.path(), Some(command.clone()));
    assert_eq!(switch.observe(), PowerState::On);
    let log = || std::fs::read_to_string(&command.log).unwrap();
    wait_for("the first start in the log", || log().contains("started"));
    switch.sleep(Depth::Off).unwrap();
    wait_for("off", || switch.observe() == PowerState::Off);
    switch.sleep(Depth::Off).unwrap();
    switch.wake().unwrap();
    assert_eq!(switch.observe(), PowerState::On);
    let second = read_pid_file(&process_path(data.path())).unwrap().unwrap();
    assert_ne!(second.pid, first.0.id());
    // A second call must not start a second process.
    switch.wake().unwrap();
    assert_eq!(read_pid_file(&process_path(data.path())).unwrap().unwrap(), second);
    wait_for("both starts in the log", || log().matches("started").count() == 2);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", second.pid)).unwrap();
    let session = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().to_string();
    assert_eq!(session, second.pid.to_string(), "a started server leads its own session");
    switch.sleep(Depth::Off).unwrap();
    wait_for("off again", || switch.observe() == PowerState::Off);
}

#[test]
fn a_started_process_that_ends_is_reaped_and_started_again() {
    let data = tempfile::tempdir().unwrap();
    let switch = switch(data.path(), Some(shell(data.path(), "exit 7")));
    switch.wake().unwrap();
    let pid = read_pid_file(&process_path(data.path())).unwrap().unwrap().pid;
    wait_for("the zombie to go", || {
        assert_ne!(switch.observe(), PowerState::Unknown);
        Stat::read(pid).unwrap().is_none()
    });
    switch.wake().unwrap();
    assert_ne!(read_pid_file(&process_path(data.path())).unwrap().unwrap().pid, pid);
}

#[test]
fn who_is_still_going_down_is_not_taken_for_awake() {
    let data = tempfile::tempdir().unwrap();
    let command = shell(data.path(), "trap '' TERM; echo started; exec sleep 1000");
    let stubborn = Running(launch(&command, data.path()).unwrap());
    wait_for("its start", || std::fs::read_to_string(&command.log).unwrap().contains("started"));
    let switch = switch(data.path(), Some(command));
    switch.wake().unwrap();
    switch.sleep(Depth::Off).unwrap();
    let error = switch.wake().unwrap_err();
    assert!(matches!(&error, SwitchError::GoingDown { .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {}", stubborn.0.id())), "{error}");
}

#[test]
fn off_also_ends_a_stopped_process() {
    let data = tempfile::tempdir().unwrap();
    let child = sleeper();
    write_pid_file(data.path(), child.0.id()).unwrap();
    let switch = switch(data.path(), None);
    switch.sleep(Depth::Standby).unwrap();
    wait_for("standby", || switch.observe() == PowerState::Standby);
    switch.sleep(Depth::Off).unwrap();
    wait_for("off", || switch.observe() == PowerState::Off);
}

/// The data directory was slow, for one.
#[test]
fn a_server_that_is_to_wake_by_now_gets_no_signal() {
    let data = tempfile::tempdir().unwrap();
    let child = sleeper();
    write_pid_file(data.path(), child.0.id()).unwrap();
    let switch = switch(data.path(), None);
    for depth in [Depth::Standby, Depth::Off] {
        let ordered = switch.0.borrow_mut().sleep(depth, &mut Timeless { wanted: false });
        assert!(matches!(ordered, Err(SwitchError::Replaced)), "{depth:?}: {ordered:?}");
    }
    assert_eq!(switch.observe(), PowerState::On);
}

#[test]
fn a_server_removes_its_own_pid_file_only() {
    let data = tempfile::tempdir().unwrap();
    let me = std::process::id();
    remove_pid_file(data.path(), me).unwrap();
    write_pid_file(data.path(), me).unwrap();
    remove_pid_file(data.path(), me + 1).unwrap();
    assert!(process_path(data.path()).exists());
    let pid = std::fs::read_to_string(data.path().join("server.pid")).unwrap();
    assert_eq!(pid, format!("{me}\n"), "a pid file holds a pid: `kill $(cat server.pid)`");
    remove_pid_file(data.path(), me).unwrap();
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
}

#[test]
fn errors_name_the_place_and_the_remedy() {
    let data = tempfile::tempdir().unwrap();
    let known = switch(data.path(), None);
    assert_eq!(known.observe(), PowerState::Off);
    for text in ["", "12", "0 5 boot", "1 5 boot", "-7 5 boot", "99999999999 5 boot", "12 x boot"] {
        std::fs::write(process_path(data.path()), text).unwrap();
        assert_eq!(known.observe(), PowerState::Unknown, "{text:?}");
        assert!(known.sleep(Depth::Standby).unwrap_err().to_string().contains("server.process"), "{text:?}");
    }
    std::fs::remove_file(process_path(data.path())).unwrap();
    let mut command = shell(data.path(), "");
    command.program = "/nonexistent/ebb".into();
    let error = switch(data.path(), Some(command)).wake().unwrap_err();
    assert!(matches!(&error, SwitchError::Start { .. }) && error.to_string().contains("/nonexistent/ebb"));
}
