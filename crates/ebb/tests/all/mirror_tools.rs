//! The programs that people use with NBD, on a served mirror whose disks change their speed meanwhile: none of them
//! meets an error, and all read what they wrote.

use crate::harness::{PATIENCE, wait};
use crate::mirror::{Bench, Served, has, lively, run, scrub};
use ebb_testing::skip;
use ebb_types::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How long a program runs, and how long it is stopped at most, while it is made to load the disks unevenly.
const RUNNING: Duration = Duration::from_millis(400);
const STOPPED: Duration = Duration::from_millis(800);
/// Changes of speed during one program, after which it runs to its end.
const ENOUGH: u64 = 6;

/// A mirror of 96 MiB disks whose speed changes within 0.2 s, and soon when the load does.
fn bench() -> Bench {
    let bench = Bench::with_mirror(96);
    lively(&bench);
    let entry = bench.path("registry/m.toml");
    let text = std::fs::read_to_string(&entry).expect("the entry");
    let mut text = text.replace("smoothing = 0.875", "smoothing = 0.3");
    for (name, value) in [("go_up", 0.1), ("go_down", 0.06), ("min_log", 0.06)] {
        let line = text.lines().find(|line| line.starts_with(name)).expect("the entry has it").to_owned();
        text = text.replace(&line, &format!("{name} = {value}"));
    }
    std::fs::write(entry, text).expect("the entry");
    bench
}

fn status(bench: &Bench) -> serde_json::Value {
    bench.ask_status().expect("it is served")
}

fn serve(bench: &Bench) -> Served<'_> {
    bench.serve(&["--driver", "emulated", "--disk-model", "model.toml"])
}

fn changes(bench: &Bench) -> u64 {
    let status = status(bench);
    let disks = status["disks"].as_array().expect("two disks");
    disks.iter().map(|disk| disk["speed_changes"].as_u64().expect("a number")).sum()
}

fn is_low(status: &serde_json::Value) -> bool {
    let disks = status["disks"].as_array().expect("two disks");
    disks.iter().all(|disk| disk["speed"] == "low" && disk["state"] == "serving")
}

/// Runs a program while the disks change their speed: it begins at low speed, and is stopped from time to time, so that
/// they become slow again.
fn run_shifting(bench: &Bench, program: &str, args: &[&str]) -> String {
    wait("both disks are slow", PATIENCE, || is_low(&status(bench)).then_some(()));
    let before = changes(bench);
    let out = bench.path("output");
    let file = File::create(&out).expect("a file");
    let stdout = file.try_clone().expect("a descriptor");
    let mut command = Command::new(program);
    command.args(args).current_dir(bench.path(".")).stdout(stdout).stderr(file);
    let mut child = command.spawn().expect("it is installed");
    while changes(bench) - before < ENOUGH && pulse(bench, &mut child) {}
    let status = child.wait().expect("it is a child");
    let text = std::fs::read_to_string(&out).expect("its output");
    assert!(status.success(), "{program} {args:?}: {status}: {text}");
    println!("{program}: {} changes of speed", changes(bench) - before);
    text
}

/// Lets a program run for a while, and stops it until the disks are slow. Whether it still runs.
fn pulse(bench: &Bench, child: &mut Child) -> bool {
    let pid = Pid::from_child(child);
    let begin = Instant::now();
    while begin.elapsed() < RUNNING {
        if child.try_wait().expect("it is a child").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(pid, Signal::STOP).expect("it was not waited for");
    let begin = Instant::now();
    while begin.elapsed() < STOPPED && !is_low(&status(bench)) {
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(pid, Signal::CONT).expect("it was not waited for");
    true
}

/// Ends a test: the disks have changed their speed, no copy differs, and nothing failed.
fn end(bench: &Bench, served: Served) {
    let status = bench.status();
    assert_eq!((status["condition"].as_str(), status["unreadable"].as_u64()), (Some("in-sync"), Some(0)));
    assert!(changes(bench) > 2, "the speeds changed too little: {status}");
    let (compared, differing) = scrub(bench);
    assert!(compared > 0 && differing == 0, "{differing} of {compared} bytes differ");
    served.stop();
}

/// A file with data, and a hole in it.
fn image(bench: &Bench, mib: usize) -> PathBuf {
    let mut random = Random::new(5);
    let mut data: Vec<u8> = (0..mib << 20).map(|_| random.next() as u8).collect();
    data[3 << 20..9 << 20].fill(0);
    let path = bench.path("image");
    std::fs::write(&path, data).expect("a file");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ASCII")
}

#[test]
fn nbdinfo_sees_what_the_export_can_do() {
    if !has("nbdinfo") {
        return;
    }
    let bench = bench();
    let served = serve(&bench);
    let output = Command::new("nbdinfo").args(["--json", &served.url]).output().expect("it is installed");
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let export = &info["exports"][0];
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    for (key, right) in [
        ("is_read_only", false),
        ("can_cache", true),
        ("can_df", true),
        ("can_flush", true),
        ("can_fua", true),
        ("can_multi_conn", true),
        ("can_trim", true),
        ("can_zero", true),
    ] {
        assert_eq!(export[key], right, "{key} of {export}");
    }
    assert_eq!(export["export-name"], "m");
    assert_eq!(export["export-size"].as_u64(), bench.status()["size_bytes"].as_u64());
    assert_eq!(export["block_size_minimum"], 4096);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    let server = served.url.strip_suffix('m').expect("the URL ends with the export");
    let output = Command::new("nbdinfo").args(["--list", server]).output().expect("it is installed");
    let listed = String::from_utf8_lossy(&output.stdout);
    assert!(listed.contains("export=\"m\"") && listed.contains("mirror m"), "{listed}");
    served.stop();
}

/// What the other programs do not use of the protocol.
const SHELL: &str = "
size = h.get_size()
other = nbd.NBD()
other.connect_uri(h.get_uri())
block = bytes(range(256)) * 16
for round in range(40):
    at = round * 65536
    h.pwrite(block * 4, at, nbd.CMD_FLAG_FUA if round % 2 else 0)
    if round % 2 == 0:
        h.flush()
    assert other.pread(16384, at) == block * 4, 'the other connection sees it'
    h.cache(16384, at)
    h.zero(4096, at, nbd.CMD_FLAG_NO_HOLE)
    h.zero(4096, at + 4096)
    h.trim(4096, at + 8192, nbd.CMD_FLAG_FUA)
    found = other.pread(16384, at)
    assert found[:8192] == bytes(8192) and found[12288:] == block, 'zeroes, and what was left'
    try:
        h.zero(4096, at, nbd.CMD_FLAG_FAST_ZERO)
        assert False, 'no zeroing is known to be fast'
    except nbd.Error as error:
        assert error.errno in ('ENOTSUP', 'EOPNOTSUPP'), error.errno
    try:
        h.pread(4096, size, 0)
        assert False, 'beyond the end'
    except nbd.Error as error:
        assert error.errno == 'EINVAL', error.errno
    extents = []
    h.block_status(65536, at, lambda context, offset, entries, error: extents.extend(entries))
    assert sum(extents[::2]) > 0, extents
h.trim(size // 2, size // 2)
h.zero(size // 2, size // 2)
assert other.pread(4096, size - 4096) == bytes(4096)
print('done')
";

#[test]
fn every_request_of_the_protocol_is_served_during_changes_of_speed() {
    // The system's Python has it; another one in front of that may not.
    let path = format!("PATH=/usr/bin:{}", std::env::var("PATH").unwrap_or_default());
    if !Command::new("env").args([&path, "nbdsh", "--version"]).output().is_ok_and(|o| o.status.success()) {
        return skip("nbdsh is not installed");
    }
    let bench = bench();
    let served = serve(&bench);
    let script = bench.path("script");
    std::fs::write(&script, SHELL).expect("a file");
    let context = "h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)";
    let connect = format!("h.set_strict_mode(0); h.connect_uri('{}')", served.url);
    let script = format!("exec(open('{}').read())", script.display());
    let said = run_shifting(&bench, "env", &[&path, "nbdsh", "-c", context, "-c", &connect, "-c", &script]);
    assert!(said.ends_with("done\n"), "{said}");
    end(&bench, served);
}

#[test]
fn nbdcopy_copies_there_and_back_during_changes_of_speed() {
    if !has("nbdcopy") {
        return;
    }
    let bench = bench();
    let served = serve(&bench);
    let (image, back) = (image(&bench, 24), bench.path("back"));
    run_shifting(&bench, "nbdcopy", &["--connections=4", "--flush", text(&image), &served.url]);
    run_shifting(&bench, "nbdcopy", &[&served.url, text(&back)]);
    let (image, mut back) = (std::fs::read(image).unwrap(), std::fs::read(back).unwrap());
    let rest = back.split_off(image.len());
    assert!(back == image && rest == vec![0; rest.len()]);
    end(&bench, served);
}

#[test]
fn qemu_img_copies_compares_and_measures_during_changes_of_speed() {
    if !has("qemu-img") {
        return;
    }
    let bench = bench();
    let served = serve(&bench);
    let image = image(&bench, 24);
    let (image, url) = (text(&image), served.url.as_str());
    run_shifting(&bench, "qemu-img", &["convert", "-n", "-W", "-f", "raw", "-O", "raw", image, url]);
    run_shifting(&bench, "qemu-img", &["compare", "-f", "raw", "-F", "raw", image, url]);
    let load = ["bench", "-f", "raw", "-t", "none", "-c", "400", "-d", "16", "-s", "4096", "-S", "69632"];
    run_shifting(
        &bench,
        "qemu-img",
        &[&load[..], &["-o", "64M", "-w", "--flush-interval=100", url]].concat(),
    );
    run_shifting(&bench, "qemu-img", &[&load[..], &[url]].concat());
    end(&bench, served);
}

#[test]
fn fio_verifies_what_it_wrote_during_changes_of_speed() {
    if !has("fio") {
        return;
    }
    let engines = Command::new("fio").arg("--enghelp").output().expect("it is installed").stdout;
    if !String::from_utf8_lossy(&engines).contains("nbd") {
        return skip("fio has no NBD engine");
    }
    let bench = bench();
    let served = serve(&bench);
    let uri = format!("--uri={}", served.url);
    let job = ["--name=verified", "--thread", "--ioengine=nbd", &uri, "--iodepth=16", "--size=6m"];
    let verified = ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--fsync=64"];
    for pattern in [["--rw=randwrite", "--bs=4k"], ["--rw=randrw", "--bsrange=4k-64k"]] {
        let args = [&job[..], &verified, &pattern].concat();
        run_shifting(&bench, "fio", &[&args[..], &["--blockalign=4k"]].concat());
    }
    end(&bench, served);
}

/// The mirror as a file: `nbdfuse` on `qemu-nbd`, which makes whole blocks of what is written to a file in parts.
struct Mounted {
    processes: Vec<Child>,
    directory: PathBuf,
}

impl Mounted {
    /// `None`: this machine does not permit it.
    fn new(bench: &Bench, url: &str) -> Option<Mounted> {
        let (directory, socket) = (bench.path("mounted"), bench.path("socket"));
        std::fs::create_dir(&directory).expect("a directory");
        let mut mounted = Mounted { processes: Vec::new(), directory };
        mounted.start("qemu-nbd", &["--format=raw", "--persistent", "--socket", text(&socket), url]);
        wait("qemu-nbd listens", PATIENCE, || socket.exists().then_some(()));
        let (disk, uri) = (mounted.disk(), format!("nbd+unix:///?socket={}", socket.display()));
        mounted.start("nbdfuse", &[text(&disk), &uri]);
        let fuse = mounted.processes.last_mut().expect("it was just started");
        let found = wait("the file is there", PATIENCE, || match fuse.try_wait().expect("a child") {
            Some(_) => Some(false),
            None => disk.exists().then_some(true),
        });
        if !found {
            skip("nbdfuse cannot mount: it needs /dev/fuse and the right to use it");
        }
        found.then_some(mounted)
    }

    fn start(&mut self, program: &str, args: &[&str]) {
        self.processes.push(Command::new(program).args(args).spawn().expect("it is installed"));
    }

    fn disk(&self) -> PathBuf {
        self.directory.join("disk")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3").arg("-u").arg(&self.directory).status();
        for process in self.processes.iter_mut().rev() {
            let _ = kill_process(Pid::from_child(process), Signal::TERM);
            let _ = process.wait();
        }
    }
}

#[test]
fn an_ext4_file_system_is_whole_after_changes_of_speed() {
    if !has("nbdfuse") || !has("fusermount3") || !has("qemu-nbd") || !has_ext4() {
        return;
    }
    let bench = bench();
    let served = serve(&bench);
    let tree = bench.path("tree");
    let mut random = Random::new(9);
    for n in 0..16 {
        let file = tree.join(format!("{}/{n}", n % 7));
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        let data: Vec<u8> = (0..random.below(100_000)).map(|_| random.next() as u8).collect();
        std::fs::write(file, data).expect("a file");
    }
    let Some(mounted) = Mounted::new(&bench, &served.url) else { return };
    let disk = mounted.disk();
    run_shifting(
        &bench,
        "mkfs.ext4",
        &["-q", "-F", "-b", "4096", "-J", "size=4", "-d", text(&tree), text(&disk), "32m"],
    );
    run_shifting(&bench, "e2fsck", &["-f", "-n", text(&disk)]);
    let out = bench.path("out");
    std::fs::create_dir(&out).expect("a directory");
    let dump = format!("rdump / {}", out.display());
    run_shifting(&bench, "debugfs", &["-R", &dump, text(&disk)]);
    run("diff", &["-r", "-x", "lost+found", text(&tree), text(&out)]);
    drop(mounted);
    end(&bench, served);
}

fn has_ext4() -> bool {
    // They know no --version.
    let found = ["mkfs.ext4", "e2fsck", "debugfs"]
        .into_iter()
        .all(|program| Command::new(program).arg("-V").output().is_ok());
    if !found {
        skip("mkfs.ext4, e2fsck or debugfs is not installed");
    }
    found
}
