//! A timer with the kernel's grain. The runtime's has one of a millisecond: a sixth of what an access takes at high
//! speed.
//!
//! A sleeping process wakes some tens of microseconds after its timer. The timer learns that, and is set earlier by as
//! much: what it ends is on time in the mean.

use crate::daemon::clock;
use ebb_types::Moment;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// Wakes one task, at moments of [`crate::daemon::clock`].
pub struct Timer {
    fd: AsyncFd<OwnedFd>,
    armed: Option<Moment>,
    lead: Duration,
}

/// Later than that is not the way to wake: the process was kept from running.
const LEAD_MAX: Duration = Duration::from_micros(200);
/// The last time counts one part in this many in the mean.
const MEMORY: u32 = 16;

impl Timer {
    /// On a tokio runtime with I/O.
    pub fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // SAFETY: the descriptor is owned, and closed only by the `AsyncFd`, after it has been deregistered.
        Ok(Timer { fd: unsafe { AsyncFd::register(fd)? }, armed: None, lead: Duration::ZERO })
    }

    /// How long before a moment its timer is set.
    pub fn lead(&self) -> Duration {
        self.lead
    }

    /// Learns how late the task was woken, if the timer has fired.
    pub fn look(&mut self, context: &mut Context) -> io::Result<()> {
        let Some(due) = self.armed else { return Ok(()) };
        // It is not read: setting it again ends what was not.
        let Poll::Ready(ready) = self.fd.poll_read_ready(context) else { return Ok(()) };
        ready?.clear_ready();
        self.armed = None;
        let late = (clock::now() + self.lead).since(due).min(LEAD_MAX);
        // Else it fired for a moment that it was set to before.
        if !late.is_zero() {
            self.lead = (self.lead * (MEMORY - 1) + late) / MEMORY;
        }
        Ok(())
    }

    /// Ready: it is time, less [`Timer::lead`].
    pub fn poll(&mut self, context: &mut Context, due: Moment) -> Poll<io::Result<()>> {
        if self.armed != Some(due) {
            // Zero would disarm it.
            let nanos = due.0.saturating_sub(self.lead.as_nanos() as u64).max(1);
            let at =
                Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: never, it_value: at };
            timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec)?;
            self.armed = Some(due);
        }
        self.look(context)?;
        if self.armed.is_some() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn it_is_early_by_its_lead_at_most_and_can_be_set_to_any_moment() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (mut timer, late) = (Timer::new().unwrap(), clock::now() + Duration::from_secs(3600));
            // What was set for later does not hold up what is sooner, and what has passed is due.
            assert!(poll_fn(|context| Poll::Ready(timer.poll(context, late).is_pending())).await);
            for ahead in [2_000_000, 300, 0, 1_000_000, 5_000_000] {
                let due = clock::now() + Duration::from_nanos(ahead);
                let mut lead = timer.lead();
                while clock::now() + lead < due {
                    lead = timer.lead();
                    poll_fn(|context| timer.poll(context, due)).await.unwrap();
                }
                assert!(timer.lead() <= LEAD_MAX);
            }
            poll_fn(|context| timer.poll(context, Moment(0))).await.unwrap();
            assert!(timer.lead() > Duration::ZERO, "no timer is on time by itself");
        });
    }
}
