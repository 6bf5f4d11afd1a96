//! `ebb mirror` as processes: served over NBD, killed, degraded, rebuilt, and used wrongly.

use crate::harness::disks::{quick_disk, quick_epochs};
use crate::harness::{EBB, PATIENCE, free_port, wait};
use crate::metrics::{assert_page, get};
use ebb_testing::skip;
use ebb_types::Random;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;
pub const BLOCK: usize = 4096;
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;

/// A directory with disks and a registry.
pub struct Bench {
    dir: TempDir,
}

impl Bench {
    pub fn new(disks: &[(&str, u64)]) -> Bench {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, mib) in disks {
            let file = std::fs::File::create(dir.path().join(name)).expect("a disk");
            file.set_len(mib * MIB).expect("its size");
        }
        Bench { dir }
    }

    /// A mirror `m` of the disks `a` and `b`.
    pub fn with_mirror(mib: u64) -> Bench {
        let bench = Bench::new(&[("a", mib), ("b", mib)]);
        said(&bench.ebb(&["create", "m", "--disk", "a", "--disk", "b", "--log", "4MiB"]));
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(EBB);
        command.arg("mirror").args(args).current_dir(&self.dir).env("EBB_MIRRORS", self.path("registry"));
        command.env("EBB_LOG", "warn");
        command
    }

    pub fn ebb(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("run ebb")
    }

    pub fn serve(&self, args: &[&str]) -> Served<'_> {
        let all = [&["serve", "m", "--nbd", "127.0.0.1:0"], args].concat();
        let mut process = self.command(&all).stdout(Stdio::piped()).spawn().expect("run ebb");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        let url = line.split([' ', ',']).find(|word| word.starts_with("nbd://"));
        let url = url.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Served { bench: self, process, url, line }
    }

    pub fn status(&self) -> serde_json::Value {
        let output = self.ebb(&["status", "m", "--json"]);
        serde_json::from_str(&said(&output)).expect("JSON")
    }

    /// Asks on the socket, without a process: a change of speed is short.
    pub fn ask_status(&self) -> Option<serde_json::Value> {
        let mut stream = UnixStream::connect(self.path("registry/m.sock")).ok()?;
        stream.write_all(b"{\"command\":\"status\"}\n").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        let answer: serde_json::Value = serde_json::from_str(&line).ok()?;
        Some(answer["status"].clone())
    }

    pub fn wait_status(&self, what: &str, is: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        wait(what, PATIENCE, || Some(self.status()).filter(&is))
    }
}

pub fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A process that serves the mirror. It is killed however the test ends.
pub struct Served<'a> {
    bench: &'a Bench,
    pub process: Child,
    pub url: String,
    pub line: String,
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Served<'_> {
    pub fn client(&self) -> Nbd {
        Nbd::dial(&self.url).expect("open the export")
    }

    /// Ends in order.
    pub fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert_eq!(self.process.wait().expect("it ends").code(), Some(0));
        assert!(!self.bench.path("registry/m.sock").exists());
    }
}

/// A client of the tests' own: the old way to open an export, simple replies, one request at a time.
pub struct Nbd {
    stream: TcpStream,
}

impl Nbd {
    fn open(mut stream: TcpStream, export: &str) -> std::io::Result<Nbd> {
        stream.set_nodelay(true)?;
        stream.read_exact(&mut [0; 18])?;
        let mut hello = vec![0, 0, 0, 3];
        hello.extend(b"IHAVEOPT\0\0\0\x01");
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello)?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Nbd { stream })
    }

    pub fn dial(url: &str) -> std::io::Result<Nbd> {
        let (address, export) = url["nbd://".len()..].split_once('/').expect("a URL has an export");
        Nbd::open(TcpStream::connect(address)?, export)
    }

    /// A request that the server answers with success; an error is that of the connection.
    pub fn call(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> std::io::Result<Vec<u8>> {
        Ok(self.ask(command, offset, length, data)?.expect("a reply without an error"))
    }

    /// A request that the server may answer with an error.
    pub fn ask(
        &mut self,
        command: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> std::io::Result<Result<Vec<u8>, u32>> {
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(7u64.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], [0x67, 0x44, 0x66, 0x98], "a simple reply");
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        if error != 0 {
            return Ok(Err(error));
        }
        let mut payload = vec![0; if command == READ { length as usize } else { 0 }];
        self.stream.read_exact(&mut payload)?;
        Ok(Ok(payload))
    }
}

/// A write of this block: nothing else looks like it.
pub fn content(block: u64, write: u64) -> Vec<u8> {
    let word = [block.to_le_bytes(), write.to_le_bytes()].concat();
    if write == 0 { vec![0; BLOCK] } else { word.repeat(BLOCK / 16) }
}

pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(format_args!("{program} is not installed"));
    }
    found
}

pub fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().expect("it is installed");
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{program} {args:?}: {text}");
}

fn differing(status: &serde_json::Value) -> (u64, u64) {
    let scrub = &status["scrub"];
    (scrub["compared_bytes"].as_u64().unwrap(), scrub["differing_bytes"].as_u64().unwrap())
}

/// Compares both copies, in the running server.
pub fn scrub(bench: &Bench) -> (u64, u64) {
    let passes = bench.status()["scrub"]["passes"].as_u64().unwrap();
    said(&bench.ebb(&["scrub", "m"]));
    differing(
        &bench.wait_status("the pass ends", |status| status["scrub"]["passes"].as_u64().unwrap() > passes),
    )
}

#[test]
fn an_image_is_the_same_after_a_restart_and_on_both_disks() {
    if !has("qemu-img") {
        return;
    }
    let bench = Bench::with_mirror(64);
    let mut random = Random::new(5);
    let mut data: Vec<u8> = (0..32 * MIB).map(|_| random.next() as u8).collect();
    data[(3 * MIB) as usize..(9 * MIB) as usize].fill(0);
    std::fs::write(bench.path("image"), &data).unwrap();
    let image = bench.path("image").display().to_string();
    let served = bench.serve(&[]);
    assert!(served.line.contains("mirror m: 59.0 MiB on nbd://127.0.0.1:"), "{}", served.line);
    assert!(served.line.ends_with("/m, disks A and B in sync\n"), "{}", served.line);
    let socket = std::fs::metadata(bench.path("registry/m.sock")).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    run("qemu-img", &["convert", "-n", "-W", "-f", "raw", "-O", "raw", &image, &served.url]);
    served.stop();
    let served = bench.serve(&["--driver", "none", "--ack", "both"]);
    assert!(served.line.contains("in sync"), "{}", served.line);
    let url = served.url.clone();
    let (size, differing) = scrub(&bench);
    assert_eq!((size, differing), (59 * MIB, 0));
    // The image is shorter than the mirror, whose rest is zeroes.
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &url]);
    let status = bench.status();
    assert_eq!((status["policy"].as_str(), status["ack"].as_str()), (Some("one-speed"), Some("both")));
    served.stop();
}

/// A model of a quick disk, and epochs of 50 ms.
pub fn lively(bench: &Bench) -> &'static str {
    std::fs::write(bench.path("model.toml"), quick_disk()).unwrap();
    quick_epochs(&bench.path("registry/m.toml"));
    "model.toml"
}

/// Blocks of a load, and the writes that each may have.
pub struct Load {
    pub random: Random,
    first: u64,
    /// The last acknowledged write of each block, and those since that were not answered.
    pub expected: Vec<(u64, Vec<u64>)>,
    pub writes: u64,
}

impl Load {
    /// `blocks` blocks of zeroes from block `first` on.
    pub fn new(seed: u64, first: u64, blocks: usize) -> Load {
        Load { random: Random::new(seed), first, expected: vec![(0, Vec::new()); blocks], writes: 0 }
    }

    /// Reads everything: what was acknowledged must be there.
    pub fn verify(&mut self, client: &mut Nbd) {
        self.read_all(client).expect("it is served");
    }

    pub fn read_all(&mut self, client: &mut Nbd) -> std::io::Result<()> {
        (0..self.expected.len()).try_for_each(|index| self.read(client, index))
    }

    /// Reads a random block.
    pub fn read_one(&mut self, client: &mut Nbd) -> std::io::Result<()> {
        let index = self.random.index(self.expected.len());
        self.read(client, index)
    }

    fn read(&mut self, client: &mut Nbd, index: usize) -> std::io::Result<()> {
        let block = self.first + index as u64;
        let found = client.call(READ, block * BLOCK as u64, BLOCK as u32, &[])?;
        let (acked, open) = &mut self.expected[index];
        let possible = [&[*acked][..], open].concat();
        let which = possible.iter().find(|write| found == content(block, **write));
        *acked = *which.unwrap_or_else(|| panic!("block {block} has none of {possible:?}"));
        open.clear();
        Ok(())
    }

    /// Writes one or several blocks. An error: the server has gone.
    pub fn write(&mut self, client: &mut Nbd) -> std::io::Result<()> {
        let count = 1 + self.random.index(4);
        let index = self.random.index(self.expected.len() - count);
        self.writes += 1;
        let (write, first) = (self.writes, self.first + index as u64);
        let data: Vec<u8> = (first..first + count as u64).flat_map(|block| content(block, write)).collect();
        let expected = &mut self.expected[index..index + count];
        expected.iter_mut().for_each(|(_, open)| open.push(write));
        client.call(WRITE, first * BLOCK as u64, data.len() as u32, &data)?;
        expected.fill((write, Vec::new()));
        if self.random.chance(10) {
            client.call(FLUSH, 0, 0, &[])?;
        }
        Ok(())
    }
}

#[test]
fn a_lost_disk_is_replaced_and_rebuilt() {
    let bench = Bench::with_mirror(32);
    let served = bench.serve(&[]);
    let mut load = Load::new(3, 0, 256);
    let mut client = served.client();
    (0..200).for_each(|_| load.write(&mut client).expect("a write"));
    served.stop();

    std::fs::remove_file(bench.path("b")).unwrap();
    refused(&bench.ebb(&["serve", "m"]), 1, &["disk B is missing", "--degraded"]);
    let served = bench.serve(&["--degraded"]);
    assert!(served.line.contains("degraded: disk B is lost"), "{}", served.line);
    let mut client = served.client();
    load.verify(&mut client);
    (0..200).for_each(|_| load.write(&mut client).expect("a write"));
    assert_eq!(bench.status()["disks"][1]["state"], "lost");
    refused(&bench.ebb(&["scrub", "m"]), 1, &["nothing to compare", "replace it"]);
    refused(&bench.ebb(&["replace", "m", "--disk", "a"]), 1, &["is being served", "stop that process"]);
    served.stop();

    let file = |name: &str, mib: u64| {
        std::fs::File::create(bench.path(name)).and_then(|file| file.set_len(mib * MIB)).unwrap()
    };
    file("small", 31);
    file("new", 40);
    refused(&bench.ebb(&["replace", "m", "--disk", "small"]), 1, &["31.0 MiB", "needs 32.0 MiB"]);
    refused(&bench.ebb(&["replace", "m", "--disk", "a"]), 1, &["the same disk"]);
    said(&bench.ebb(&["replace", "m", "--disk", "new"]));
    let served = bench.serve(&[]);
    assert!(served.line.contains("resyncing") || served.line.contains("in sync"), "{}", served.line);
    let mut client = served.client();
    (0..200).for_each(|_| load.write(&mut client).expect("a write"));
    bench.wait_status("it is rebuilt", |status| status["condition"] == "in-sync");
    assert_eq!(scrub(&bench), (27 * MIB, 0));
    served.stop();

    // The new disk alone has everything.
    std::fs::remove_file(bench.path("a")).unwrap();
    let served = bench.serve(&["--degraded"]);
    load.verify(&mut served.client());
    served.stop();
}

#[test]
fn of_two_disks_that_were_used_apart_the_user_chooses_one() {
    let bench = Bench::with_mirror(20);
    let aside = bench.path("aside");
    for (gone, byte) in [("b", 1), ("a", 2)] {
        std::fs::rename(bench.path(gone), &aside).unwrap();
        let served = bench.serve(&["--degraded"]);
        served.client().call(WRITE, 0, BLOCK as u32, &[byte; BLOCK]).unwrap();
        served.stop();
        std::fs::rename(&aside, bench.path(gone)).unwrap();
    }
    refused(&bench.ebb(&["serve", "m"]), 1, &["without the other", "--keep A or B"]);
    let served = bench.serve(&["--keep", "a"]);
    assert!(served.line.contains("degraded: disk B is lost"), "{}", served.line);
    served.stop();
    refused(&bench.ebb(&["replace", "m", "--disk", "b"]), 1, &["a disk of the mirror m", "--overwrite"]);
    said(&bench.ebb(&["replace", "m", "--disk", "b", "--overwrite"]));
    refused(
        &bench.ebb(&["replace", "m", "--disk", "a", "--overwrite"]),
        1,
        &["lacks what was written later"],
    );
    let served = bench.serve(&[]);
    bench.wait_status("it is rebuilt", |status| status["condition"] == "in-sync");
    assert_eq!(served.client().call(READ, 0, BLOCK as u32, &[]).unwrap(), [1; BLOCK]);
    assert_eq!(scrub(&bench), (15 * MIB, 0));
    served.stop();
}

#[test]
fn disks_with_content_are_made_equal_at_the_first_start() {
    let bench = Bench::new(&[("a", 20), ("b", 20)]);
    for (name, byte) in [("a", 1u8), ("b", 2)] {
        std::fs::write(bench.path(name), vec![byte; 20 << 20]).unwrap();
    }
    let create = ["create", "m", "--disk", "a", "--disk", "b", "--log", "1MiB"];
    refused(&bench.ebb(&create), 1, &["/a contains data", "--overwrite"]);
    assert!(std::fs::read(bench.path("a")).unwrap().iter().all(|byte| *byte == 1), "nothing is written");
    let text = said(&bench.ebb(&[&create[..], &["--overwrite"]].concat()));
    assert!(text.contains("copies 18.0 MiB from disk A to disk B"), "{text}");
    let served = bench.serve(&[]);
    bench.wait_status("both are the same", |status| status["condition"] == "in-sync");
    assert_eq!(scrub(&bench), (18 * MIB, 0));
    served.stop();
}

/// The program refused, said why, and left the disks as they were.
fn refused(output: &Output, code: i32, expected: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "exit code of: {text}");
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

#[test]
fn mistakes_are_refused_with_the_remedy_and_write_nothing() {
    let bench = Bench::new(&[("a", 32), ("b", 33), ("c", 32), ("tiny", 8)]);
    let is_zero = |name: &str| {
        let bytes = std::fs::read(bench.path(name)).unwrap();
        bytes == vec![0; bytes.len()]
    };
    std::os::unix::fs::symlink("a", bench.path("link")).unwrap();
    let mut boot = vec![0; 32 << 20];
    boot[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(bench.path("boot"), boot).unwrap();
    let cases: &[(&str, i32, &[&str])] = &[
        ("create m --disk a", 1, &["give --disk twice"]),
        ("create m --disk a --disk b --disk c", 1, &["3 are given"]),
        ("create M --disk a --disk b", 2, &["invalid name \"M\"", "a to z"]),
        ("create ../m --disk a --disk b", 2, &["invalid name"]),
        ("create m --disk a --disk nowhere", 1, &["nowhere"]),
        ("create m --disk a --disk .", 1, &["neither a file nor a block device"]),
        ("create m --disk a --disk a", 1, &["the same disk", "give two"]),
        ("create m --disk a --disk link", 1, &["the same disk"]),
        ("create m --disk a --disk b", 1, &["a log of 3221225472 bytes is too large"]),
        ("create m --disk a --disk b --log 4K", 2, &["invalid size"]),
        ("create m --disk a --disk b --log 4KiB", 1, &["too small", "0 for no log"]),
        ("create m --disk a --disk tiny --log 1MiB", 1, &["too small for a mirror"]),
        ("create m --disk a --disk boot --log 1MiB", 1, &["boot contains a partition table", "--overwrite"]),
        ("serve m", 1, &["there is no mirror m", "create it"]),
        ("status m", 1, &["there is no mirror m"]),
    ];
    for (args, code, expected) in cases {
        refused(&bench.ebb(&words(args)), *code, expected);
        assert!(["a", "b", "c", "tiny"].into_iter().all(is_zero), "{args} has written");
    }
    let text = said(&bench.ebb(&words("create m --disk a --disk b --log 4MiB")));
    assert!(text.contains("mirror m: 27.0 MiB") && text.contains("1.0 MiB are left"), "{text}");

    std::fs::write(bench.path("bad.toml"), "name = 3").unwrap();
    let model = toml::Table::try_from(ebb_mirror::TwoSpeedModel::paper()).unwrap();
    for (name, key, value) in [
        ("slow.toml", "overhead_seconds", toml::Value::from(1e30)),
        ("less.toml", "capacity_bytes", 1000.into()),
    ] {
        let mut model = model.clone();
        model.insert(key.to_owned(), value);
        std::fs::write(bench.path(name), toml::to_string(&model).unwrap()).unwrap();
    }
    let cases: &[(&str, i32, &[&str])] = &[
        ("create m --disk c --disk boot", 1, &["there is a mirror m already"]),
        ("create n --disk c --disk a --log 1MiB", 1, &["is a disk of the mirror m"]),
        (
            "create n --disk c --disk a --log 1MiB --overwrite",
            1,
            &["is a disk of the mirror m", "m.toml first"],
        ),
        ("status m", 1, &["mirror m is not served", "ebb mirror serve m"]),
        ("scrub m", 1, &["mirror m is not served"]),
        ("replace m --disk c", 1, &["has both its disks"]),
        ("serve m --policy logstore", 1, &["one speed", "--driver emulated"]),
        ("serve m --policy fast", 2, &["unknown variant `fast`", "logstore"]),
        ("serve m --ack none", 2, &["unknown variant `none`", "safe"]),
        ("serve m --driver turbo", 2, &["emulated", "nvme"]),
        ("serve m --driver nvme", 1, &["cannot identify", "it is not a disk of this kind"]),
        ("serve m --driver ata", 1, &["cannot identify", "it is not a disk of this kind"]),
        ("serve m --driver ata --policy logstore", 1, &["log nothing", "two-speed"]),
        ("serve m --driver ata --ack both", 1, &["wait for a sleeping disk", "acknowledge safe"]),
        ("serve m --driver command", 1, &["has no programs", "[driver.command] of m.toml"]),
        ("drivers n", 1, &["there is no mirror n"]),
        ("serve m --disk-model bad.toml", 1, &["--driver emulated"]),
        ("serve m --driver emulated --disk-model nowhere.toml", 1, &["nowhere.toml"]),
        ("serve m --driver emulated --disk-model bad.toml", 1, &["bad.toml"]),
        ("serve m --driver emulated --disk-model slow.toml", 1, &["up to an hour"]),
        ("serve m --driver emulated --disk-model less.toml", 1, &["raise capacity_bytes"]),
        ("serve m --nbd nonsense", 1, &["listen on", "nonsense"]),
    ];
    for (args, code, expected) in cases {
        refused(&bench.ebb(&words(args)), *code, expected);
        assert!(is_zero("c"), "{args} has written");
    }
    wrong_disks(&bench);
}

/// The registry leads to disks that are not the mirror's, or not in its order.
fn wrong_disks(bench: &Bench) {
    let entry = bench.path("registry/m.toml");
    let good = std::fs::read_to_string(&entry).unwrap();
    let id: String = good.split('"').nth(1).unwrap().to_owned();
    for (changed, expected) in [
        (good.replace("disk_b", "disk_x"), "unknown field `disk_x`"),
        (good.replace("epoch_seconds = 3.0", "epoch_seconds = -1.0"), "epoch_seconds is -1"),
        (good.replace("go_down = 0.3", "go_down = 0.9"), "change back and forth"),
        (good.replace("deadline_seconds = 30.0", "deadline_seconds = 0"), "deadline_seconds is 0"),
        (good.replace("/b\"", "/c\""), "not an Ebb mirror disk"),
        (good.replace("/a\"", "/x\"").replace("/b\"", "/a\"").replace("/x\"", "/b\""), "exchange the two"),
        (good.replace(&id, &"0".repeat(32)), "another mirror was created on them"),
    ] {
        std::fs::write(&entry, changed).unwrap();
        refused(&bench.ebb(&["serve", "m"]), 1, &[expected]);
    }
    std::fs::write(&entry, good).unwrap();
    let served = bench.serve(&[]);
    assert!(served.line.contains("in sync"), "a refusal changes nothing: {}", served.line);
    refused(&bench.ebb(&["serve", "m"]), 1, &["is being served"]);
    strange_questions(&bench.path("registry/m.sock"));
    served.stop();
}

fn strange_questions(socket: &Path) {
    for bytes in [&b"\n"[..], b"{}\n", b"{\"command\":\"stop\"}\n", b"\xff\xff\n", &[b'x'; 100_000]] {
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        // It may hang up before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("{\"refused\":"), "{answer}");
    }
}

#[test]
fn the_drivers_are_listed() {
    let bench = Bench::new(&[]);
    let drivers: serde_json::Value =
        serde_json::from_str(&said(&bench.ebb(&["drivers", "--json"]))).expect("JSON");
    let names: Vec<&str> =
        drivers.as_array().unwrap().iter().map(|d| d["driver"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "emulated", "modelled", "nvme", "ata", "command"]);
    let text = said(&bench.ebb(&["drivers"]));
    assert!(text.contains("two-speed") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let bench = Bench::with_mirror(20);
    let of_files: serde_json::Value =
        serde_json::from_str(&said(&bench.ebb(&["drivers", "m", "--json"]))).expect("JSON");
    let can = |driver: &str| {
        let rows = of_files.as_array().unwrap().iter().filter(|row| row["driver"] == driver);
        rows.map(|row| row["available"].as_bool().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(
        ["none", "emulated", "nvme", "ata", "command"].map(can),
        [vec![true; 2], vec![true; 2], vec![false; 2], vec![false; 2], vec![false; 2]]
    );
    assert!(said(&bench.ebb(&["drivers", "m"])).contains("cannot identify"));
}

#[test]
fn a_mirror_answers_scrapers_and_touches_no_disk_for_it() {
    let bench = Bench::with_mirror(64);
    let address = format!("127.0.0.1:{}", free_port());
    let served = bench.serve(&["--driver", "emulated", "--metrics", &address]);
    let page = get(&address, "/metrics").expect("it answers");
    let busy = ["ebb_mirror_disk_utilisation_ratio"];
    let absent = if page.contains(busy[0]) { &[][..] } else { &busy[..] };
    assert_page(&page, &["Every process", "Mirrors"], absent);
    for line in [
        "ebb_mirror_condition{mirror=\"m\",condition=\"in-sync\"} 1.0",
        "ebb_mirror_connections{mirror=\"m\"} 0.0",
        "ebb_mirror_disk_energy_joules_total{mirror=\"m\",disk=\"b\",kind=\"modelled\"} ",
    ] {
        assert!(page.lines().any(|found| found.starts_with(line)), "no {line} in\n{page}");
    }
    served.stop();
}
