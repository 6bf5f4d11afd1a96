//! Ctrl-C in long work: the first one halts it, so that it ends with a report of what was measured.

use crate::cluster::launch::Stop;
use crate::error::NodeError;
use ebb_output::clear_line;
use ebb_replay::drive::Halt;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;

/// Exit code of a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;

/// What Ctrl-C does to one piece of work.
#[derive(Default)]
pub struct Interrupt {
    pub halt: Halt,
    /// Something is measured, so that there is something to report.
    begun: Cell<bool>,
}

impl Interrupt {
    /// Of work that measures from its start.
    pub fn of(halt: Halt) -> Interrupt {
        Interrupt { halt, begun: Cell::new(true) }
    }

    pub fn begin(&self) {
        self.begun.set(true);
    }

    /// The outcome of the work. Ctrl-C halts it, and it ends with a report; `None`: nothing was measured yet, or it was
    /// the second Ctrl-C.
    pub async fn or_end<T>(&self, work: impl Future<Output = T>) -> Result<Option<T>, NodeError> {
        let mut stop = Stop::new()?;
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                outcome = &mut work => return Ok(Some(outcome)),
                () = stop.asked() => {}
            }
            if self.halt.is_set() || !self.begun.get() {
                return Ok(None);
            }
            self.halt.set();
            clear_line();
            eprintln!("stopping, to report what was measured; Ctrl-C again ends at once");
        }
    }
}
