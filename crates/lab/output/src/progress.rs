//! Progress of work that takes over a second: one line on standard error.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Delay before the first line, and between two.
const FIRST: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(200);
/// Both, where lines stay.
const SELDOM: Duration = Duration::from_secs(10);

/// One line that is rewritten a few times per second and cleared at the end. If standard error is not a terminal, it is
/// silent, or writes a line now and then.
pub struct Progress {
    terminal: bool,
    /// `None`: never.
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
        Progress { terminal, next: terminal.then(|| Instant::now() + FIRST), shown: false }
    }

    /// Of work that takes minutes: a line now and then on a pipe or in a log shows that it continues.
    pub fn of_minutes() -> Progress {
        let new = Progress::new();
        Progress { next: new.next.or_else(|| Some(Instant::now() + SELDOM)), ..new }
    }

    /// Shows this text if a line is due: `progress.show(format_args!("{n} of {of}"))`.
    pub fn show(&mut self, text: fmt::Arguments<'_>) {
        if !self.is_due(Instant::now()) {
            return;
        }
        // A failure to show progress must not stop the work.
        let _ = match self.terminal {
            true => write!(std::io::stderr(), "\r\x1b[K{text} "),
            false => writeln!(std::io::stderr(), "{text}"),
        };
    }

    /// Whether a line is due now; then the next one is a pause later.
    fn is_due(&mut self, now: Instant) -> bool {
        if self.next.is_none_or(|next| now < next) {
            return false;
        }
        self.next = Some(now + if self.terminal { PAUSE } else { SELDOM });
        self.shown = self.terminal;
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_a_new_line_often_and_a_pipe_seldom_or_never() {
        let began = Instant::now();
        let lines = |terminal, first: Option<Duration>| {
            let mut progress = Progress { terminal, next: first.map(|first| began + first), shown: false };
            (0..600u64).filter(|tenth| progress.is_due(began + Duration::from_millis(tenth * 100))).count()
        };
        assert_eq!(lines(true, Some(FIRST)), 298, "from 0.5 s on, each 0.2 s");
        assert_eq!(lines(false, Some(SELDOM)), 5, "each 10 s of a minute");
        assert_eq!(lines(false, None), 0);
    }
}
