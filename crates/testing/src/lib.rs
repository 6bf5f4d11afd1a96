//! What the tests of several crates share. No program depends on it.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Says that the running test ends without having tested, and why: a test that passes without its subject proves nothing, and may
/// not look as if it did. Where `EBB_SKIPPED` names a file (as `make test` does), a line of it is added there.
pub fn skip(why: impl Display) {
    // libtest names a test's thread after it.
    let line = format!("{}: {why}\n", std::thread::current().name().unwrap_or("a test"));
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("EBB_SKIPPED") {
        // One short write at the end of a file: tests that run side by side do not mix their lines.
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("EBB_SKIPPED names a file that can be written");
    }
}
