//! Processes that run only intermittently: as slow as on a machine that is busy with other work most of the time.

use super::pulse;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Far shorter than any silence that counts.
const STOPPED: Duration = Duration::from_millis(80);
const RUNNING: Duration = Duration::from_millis(20);

#[derive(Clone, Default)]
pub struct Pulses {
    pids: Arc<Mutex<BTreeSet<u32>>>,
}

impl Pulses {
    pub fn start() -> Pulses {
        let pulses = Pulses::default();
        let pids = Arc::downgrade(&pulses.pids);
        std::thread::spawn(move || {
            while let Some(pids) = pids.upgrade() {
                {
                    // With the lock held: a process that is taken out of the list is running.
                    let pids = pids.lock().expect("no thread panics with it");
                    pids.iter().for_each(|pid| pulse(*pid, true));
                    std::thread::sleep(if pids.is_empty() { Duration::ZERO } else { STOPPED });
                    pids.iter().for_each(|pid| pulse(*pid, false));
                }
                drop(pids);
                std::thread::sleep(RUNNING);
            }
        });
        pulses
    }

    fn pids(&self) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
        self.pids.lock().expect("no thread panics with it")
    }

    pub fn begin(&self, pid: u32) {
        self.pids().insert(pid);
    }

    pub fn end(&self, pid: u32) {
        self.pids().remove(&pid);
    }
}
