//! A process on a machine of its own: a runtime whose clock stands still unless the world lets it run.
//!
//! Each process has a tokio runtime of one thread with paused time. The world runs it up to the next event, so its
//! timers fire in order with what happens elsewhere; as soon as it sends something, it stops, because the answer may be
//! the next event. A suspended process is one that is not run: its tasks and its clock stand still. One that crashes is
//! dropped with all its tasks.

use crate::above::library::{Library, Remote, Settings};
use crate::above::messages::{Outbox, Sent};
use crate::above::scenario::Standstill;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep_until};

/// A running process. All times are in milliseconds; those of the world are true ones.
pub(super) struct Process {
    runtime: Runtime,
    pub library: Arc<Library>,
    outbox: Arc<Outbox>,
    started: Instant,
    /// True time when its clock was at zero, had it never stood still.
    began: u64,
    ran_to: u64,
    /// Since when it stands still.
    stopped: Option<(u64, Standstill)>,
}

impl Process {
    /// `run`: identifies this run of the program.
    pub fn start(now: u64, run: u64, settings: Settings) -> Process {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without threads and files needs nothing");
        let outbox = Outbox::new();
        let (started, library) = {
            let _inside = runtime.enter();
            (Instant::now(), Library::new(run, outbox.clone(), settings))
        };
        Process { runtime, library, outbox, started, began: now, ran_to: 0, stopped: None }
    }

    pub fn remote(&self) -> Remote {
        Remote::new(self.library.clone())
    }

    pub fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Does something in the process, such as to spawn tasks.
    pub fn inside<R>(&self, act: impl FnOnce() -> R) -> R {
        let _inside = self.runtime.enter();
        act()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Runs it up to this time, or until it sends something. Returns what it sent, with the true times.
    pub fn run_to(&mut self, until: u64) -> Vec<(u64, Sent)> {
        let mut sent = Vec::new();
        while self.stopped.is_none() && sent.is_empty() && self.began + self.ran_to < until {
            let end = self.started + Duration::from_millis(until - self.began);
            let (started, outbox) = (self.started, self.outbox.clone());
            let at = |time: Instant| (time - started).as_millis() as u64;
            self.ran_to = self.runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = outbox.stop.notified() => {}
                    () = sleep_until(end) => {}
                }
                at(Instant::now())
            });
            sent = outbox.take().into_iter().map(|(time, what)| (self.began + at(time), what)).collect();
        }
        sent
    }

    pub fn stop(&mut self, now: u64, how: Standstill) {
        self.stopped.get_or_insert((now, how));
    }

    pub fn resume(&mut self, now: u64, boot_clock_stands: bool) {
        let Some((since, how)) = self.stopped.take() else { return };
        let stood = now - since;
        self.began += stood;
        if how == Standstill::Suspend && !boot_clock_stands {
            self.library.clock.suspend(Duration::from_millis(stood));
        }
    }
}
