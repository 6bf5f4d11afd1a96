//! Shared code of several crates' tests. No program depends on it, but for the simulators: one of the searches is a
//! command.
//!
//! [`skip`]: a test that lacks a tool, a right or data says so, and `make test` counts it: a test that passes without
//! its subject proves nothing, and must not look as if it did. [`fuzz`]: damaged and random bytes for a parser, the
//! same ones in every run; `make fuzz` gives it more time. [`certificate`]: for servers that speak TLS. [`search`]: the
//! harness of the searches of faults. `browser`, a feature: a real one, for pages.

#[cfg(feature = "browser")]
pub mod browser;
pub mod s3;
pub mod search;

use ebb_types::Random;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Reports that the running test ends without having tested anything, and why. If `EBB_SKIPPED` names a file (as in
/// `make test`), a line is appended to it.
pub fn skip(why: impl Display) {
    let line = format!("{}: {why}\n", running_test());
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("EBB_SKIPPED") {
        // One short write at the end of a file: concurrent tests do not mix their lines.
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("EBB_SKIPPED names a file that can be written");
    }
}

/// The test's path in its crate: libtest gives the thread that name.
fn running_test() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// Makes a certificate of 127.0.0.1 that signs itself, and its key: `cert.pem` and `key.pem` of a directory. `false`:
/// the test is skipped, openssl is not installed.
pub fn certificate(directory: &Path) -> bool {
    let key = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3 -keyout key.pem -out cert.pem -subj /CN=bmc";
    let names = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
    let made = Command::new("openssl").current_dir(directory).args(key.split(' ')).args(names).output();
    let Ok(made) = made else {
        skip("openssl is not installed");
        return false;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    true
}

/// Inputs per parser in a plain run.
const ROUNDS: u64 = 3_000;

/// Gives `parse` inputs derived from valid samples: it must not panic, hang or allocate for lengths that exceed the
/// input.
///
/// `EBB_FUZZ_SECONDS` gives it time instead of a number of rounds, and new seeds each time; `EBB_SEED` repeats one
/// input.
pub fn fuzz(samples: &[&[u8]], parse: impl Fn(&[u8])) {
    assert!(!samples.is_empty(), "inputs are made from samples");
    samples.iter().for_each(|sample| parse(sample));
    let one = |seed: u64| {
        let case = Case { seed, bytes: input(samples, seed) };
        parse(&case.bytes);
    };
    if let Some(seed) = number("EBB_SEED") {
        return one(seed);
    }
    match number("EBB_FUZZ_SECONDS") {
        None => (0..ROUNDS).for_each(one),
        Some(seconds) => {
            let (begin, time) = (Instant::now(), Duration::from_secs(seconds));
            let first = u64::from(std::process::id()) << 32;
            let mut rounds = 0;
            while begin.elapsed() < time {
                one(first + rounds);
                rounds += 1;
            }
            println!("{}: {rounds} inputs", running_test());
        }
    }
}

/// What a variable of the environment says, where it is set.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, no number")))
}

/// Prints how to repeat the input on which a parser panics.
struct Case {
    seed: u64,
    bytes: Vec<u8>,
}

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (test, shown) = (running_test(), &self.bytes[..self.bytes.len().min(400)]);
            let seed = self.seed;
            eprintln!(
                "repeat with: EBB_SEED={seed} cargo test {test}\n{} bytes: {:?}",
                self.bytes.len(),
                shown.escape_ascii().to_string()
            );
        }
    }
}

/// A sample with some changes, or noise; the same for the same seed.
pub fn input(samples: &[&[u8]], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    if random.index(20) == 0 {
        return (0..random.index(300)).map(|_| random.next() as u8).collect();
    }
    let mut bytes = samples[random.index(samples.len())].to_vec();
    for _ in 0..1 + random.index(6) {
        change(&mut bytes, samples, &mut random);
    }
    bytes
}

/// Values that have broken parsers before: ends, signs, lengths, numbers beyond every type, and field separators.
const NUMBERS: [u64; 12] =
    [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];
const WORDS: [&[u8]; 20] = [
    b"",
    b" ",
    b"\n",
    b"\r\n",
    b"\0",
    b",",
    b";",
    b"\"",
    b"=",
    b"[",
    b"-",
    b"-1",
    b".",
    b"1e999",
    b"NaN",
    b"0x",
    b"%",
    b"18446744073709551616",
    b"\xff\xfe",
    b"\xe2\x82",
];

fn change(bytes: &mut Vec<u8>, samples: &[&[u8]], random: &mut Random) {
    let at = random.index(bytes.len() + 1);
    let end = (at + 1 + random.index(32)).min(bytes.len()).max(at);
    match random.index(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.index(8),
        1 if at < bytes.len() => bytes[at] = NUMBERS[random.index(NUMBERS.len())] as u8,
        2 => {
            let number = NUMBERS[random.index(NUMBERS.len())].to_le_bytes();
            let width = 1 << random.index(4);
            let width = width.min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..end)),
        5 => {
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        6 => drop(bytes.splice(at..end, WORDS[random.index(WORDS.len())].iter().copied())),
        7 => {
            let other = samples[random.index(samples.len())];
            let from = random.index(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let more = 1 + random.index(16);
            bytes.extend((0..more).map(|_| random.next() as u8));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    #[test]
    fn inputs_differ_and_repeat() {
        let samples: [&[u8]; 2] = [b"a,1,2\n", &[0; 40]];
        let all: BTreeSet<Vec<u8>> = (0..1000).map(|seed| input(&samples, seed)).collect();
        assert!(all.len() > 800, "{}", all.len());
        assert!((0..1000).all(|seed| input(&samples, seed) == input(&samples, seed)));
    }

    #[test]
    fn a_parser_that_trusts_a_length_is_found() {
        let trusting = |bytes: &[u8]| {
            let Some((len, rest)) = bytes.split_first() else { return };
            assert!(usize::from(*len) <= rest.len(), "past the end");
        };
        let found = std::panic::catch_unwind(|| fuzz(&[&[3, 1, 2, 3]], trusting));
        assert!(found.is_err());
        let seen = RefCell::new(0);
        fuzz(&[&[3, 1, 2, 3]], |_| *seen.borrow_mut() += 1);
        // More of them where `EBB_FUZZ_SECONDS` says how long.
        assert!(seen.into_inner() > ROUNDS);
    }
}
