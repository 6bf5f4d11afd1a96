//! Progress of work that takes over a second: one line on standard error.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Delay before the first line, and between two.
const FIRST: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(200);

/// One line that is rewritten a few times per second and cleared at the end. Silent if standard error is not a
/// terminal.
pub struct Progress {
    /// `None`: no terminal.
    next: Option<Instant>,
    shown: bool,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

impl Progress {
    pub fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { next: terminal.then(|| Instant::now() + FIRST), shown: false }
    }

    /// Shows this text if a line is due: `progress.show(format_args!("{n} of {of}"))`.
    pub fn show(&mut self, text: fmt::Arguments<'_>) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        (self.next, self.shown) = (Some(now + PAUSE), true);
        // A failure to show progress must not stop the work.
        let _ = write!(std::io::stderr(), "\r\x1b[K{text} ");
    }

    /// Clears the line so that other output can be written.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            clear_line();
        }
    }
}

/// Clears the current line of standard error if that is a terminal.
pub fn clear_line() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
