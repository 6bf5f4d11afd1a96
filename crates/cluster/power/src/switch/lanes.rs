//! Threads on which drivers wait: at most one per server and kind of work, started when there is something to do, ended
//! when there is not. So drivers that hang cost one thread per server and nothing else, and a process that ends waits
//! for none.
//!
//! Of orders to one server only the newest counts: one that is carried out learns from its clock that another has come,
//! and gives up; one that waits is forgotten; one that is the same as the one being carried out is that one. No two
//! run at once: the next one begins when the one before has ended.
//!
//! A process that stood still in the middle of an order to sleep gives it up: another leader may have woken the server
//! meanwhile, and its power would be cut under load (R16).

use super::{Clock, SwitchError};
use ebb_types::{Depth, ServerId};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Sleep(Depth),
    Wake { path: u8 },
    Observe,
}

/// How the names of these threads begin.
pub const THREADS: &str = "switch-";

/// Looking at a server's state replaces no order, and is replaced by none.
type Key = (ServerId, bool);
type Job = Box<dyn FnOnce(&mut dyn Clock) + Send>;

#[derive(Default)]
struct Lane {
    running: Option<Work>,
    /// What runs is no longer wanted, whether or not something waits.
    given_up: bool,
    waiting: Option<(Work, Job)>,
}

struct Shared {
    lanes: Mutex<BTreeMap<Key, Lane>>,
    /// Something began to wait.
    came: Condvar,
    /// Runs on while the machine is suspended (R15).
    time: fn() -> Duration,
}

/// A pause that took longer than it should by this much: the process stood still.
const STOOD_STILL: Duration = Duration::from_secs(2);

fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Lane>> {
        // No lane is left half changed.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
pub(super) struct Lanes(Arc<Shared>);

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes::by(since_boot)
    }
}

impl Lanes {
    fn by(time: fn() -> Duration) -> Lanes {
        Lanes(Arc::new(Shared { lanes: Mutex::default(), came: Condvar::new(), time }))
    }

    /// Has `job` run. It is dropped instead if other work for the server takes its place, or is the same and runs
    /// already.
    pub fn submit(&self, server: ServerId, work: Work, job: Job) -> Result<(), SwitchError> {
        let key = (server, work == Work::Observe);
        let mut lanes = self.0.lock();
        let lane = lanes.entry(key).or_default();
        match lane.running {
            // If something waits, the running one may have given up.
            Some(running) if running == work && lane.waiting.is_none() && !lane.given_up => {}
            Some(_) => {
                lane.waiting = Some((work, job));
                self.0.came.notify_all();
            }
            None => {
                let shared = self.0.clone();
                let name = format!("{THREADS}{}", server.0);
                let thread = std::thread::Builder::new().name(name);
                thread
                    .spawn(move || run(&shared, key, job))
                    .map_err(|source| SwitchError::Thread { server, source })?;
                lane.running = Some(work);
            }
        }
        Ok(())
    }

    /// Gives up every order to sleep: one that waits is forgotten, one that is carried out learns it from its clock.
    pub fn give_up_sleeps(&self) {
        let sleeps = |work: Work| matches!(work, Work::Sleep(_));
        let mut lanes = self.0.lock();
        for lane in lanes.values_mut() {
            lane.given_up |= lane.running.is_some_and(sleeps);
            drop(lane.waiting.take_if(|(work, _)| sleeps(*work)));
        }
        self.0.came.notify_all();
    }
}

fn run(shared: &Shared, key: Key, mut job: Job) {
    loop {
        let mut turn = Turn { shared, key };
        // A driver's bug must not leave the server without a switch; the panic has been printed.
        let _ = catch_unwind(AssertUnwindSafe(|| job(&mut turn)));
        let mut lanes = shared.lock();
        let lane = lanes.get_mut(&key).expect("lanes stay");
        lane.given_up = false;
        match lane.waiting.take() {
            None => return lane.running = None,
            Some((work, next)) => {
                lane.running = Some(work);
                job = next;
            }
        }
    }
}

/// The clock of a job.
struct Turn<'a> {
    shared: &'a Shared,
    key: Key,
}

impl Clock for Turn<'_> {
    fn now(&self) -> Duration {
        (self.shared.time)()
    }

    fn pause(&mut self, time: Duration) -> bool {
        let began = self.now();
        let lanes = self.shared.lock();
        let wanted = |lanes: &mut BTreeMap<Key, Lane>| {
            let lane = &lanes[&self.key];
            lane.waiting.is_none() && !lane.given_up
        };
        let waited = self.shared.came.wait_timeout_while(lanes, time, wanted);
        let (lanes, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let sleeps = matches!(lanes[&self.key].running, Some(Work::Sleep(_)));
        waited.timed_out() && !(sleeps && self.now() - began > time + STOOD_STILL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;

    const A: ServerId = ServerId(1);
    const B: ServerId = ServerId(2);
    const FOR_EVER: Duration = Duration::from_secs(3600);
    const WAKE: Work = Work::Wake { path: 0 };

    #[test]
    fn a_driver_that_hangs_holds_up_only_its_own_server() {
        let lanes = Lanes::default();
        let (hold, held) = channel::<()>();
        let (say, said) = channel();
        let hangs = Box::new(move |_: &mut dyn Clock| held.recv().unwrap_err().to_string().truncate(0));
        lanes.submit(A, WAKE, hangs).unwrap();
        let answer = say.clone();
        lanes.submit(B, WAKE, Box::new(move |_| answer.send("b").unwrap())).unwrap();
        assert_eq!(said.recv().unwrap(), "b");
        // Looking at A is other work than waking it.
        lanes.submit(A, Work::Observe, Box::new(move |_| say.send("a").unwrap())).unwrap();
        assert_eq!(said.recv().unwrap(), "a");
        drop(hold);
    }

    #[test]
    fn the_newest_order_replaces_the_one_before() {
        let lanes = Lanes::default();
        let (say, said) = channel();
        let order = |what: &'static str| -> Job {
            let say = say.clone();
            Box::new(move |clock| {
                let undisturbed = what == "last" || clock.pause(FOR_EVER);
                say.send((what, undisturbed)).unwrap();
            })
        };
        lanes.submit(A, Work::Sleep(Depth::Off), order("first")).unwrap();
        lanes.submit(A, Work::Sleep(Depth::Off), order("the same")).unwrap();
        lanes.submit(A, WAKE, order("last")).unwrap();
        assert_eq!(said.recv().unwrap(), ("first", false));
        assert_eq!(said.recv().unwrap(), ("last", true));
        drop(say);
        assert!(said.recv().is_err(), "the same order was not carried out twice");
    }

    #[test]
    fn the_order_that_is_being_carried_out_is_not_carried_out_twice() {
        let lanes = Lanes::default();
        let (hold, held) = channel::<()>();
        let (say, said) = channel();
        let again = say.clone();
        let first = move |_: &mut dyn Clock| {
            assert!(held.recv().is_err(), "the other end is dropped");
            say.send("first").unwrap();
        };
        lanes.submit(A, WAKE, Box::new(first)).unwrap();
        lanes.submit(A, WAKE, Box::new(move |_| again.send("again").unwrap())).unwrap();
        drop(hold);
        assert_eq!(said.recv().unwrap(), "first");
        assert!(said.recv().is_err(), "both ends of the line are gone");
    }

    #[test]
    fn orders_to_sleep_are_given_up_and_no_others() {
        let lanes = Lanes::default();
        let (hold, held) = channel::<()>();
        let (say, said) = channel();
        let order = |server: &'static str, time: Duration| -> Job {
            let say = say.clone();
            Box::new(move |clock| say.send((server, clock.pause(time))).unwrap())
        };
        lanes.submit(A, Work::Sleep(Depth::Off), order("a", FOR_EVER)).unwrap();
        let of_b = order("b", Duration::ZERO);
        let wakes = move |clock: &mut dyn Clock| {
            assert!(held.recv().is_err(), "the other end is dropped");
            of_b(clock);
        };
        lanes.submit(B, WAKE, Box::new(wakes)).unwrap();
        lanes.submit(B, Work::Sleep(Depth::Off), order("b sleeps", Duration::ZERO)).unwrap();
        lanes.give_up_sleeps();
        assert_eq!(said.recv().unwrap(), ("a", false));
        drop(hold);
        assert_eq!(said.recv().unwrap(), ("b", true), "it wakes, and nothing waits behind that");
        lanes.submit(A, Work::Sleep(Depth::Off), order("a again", Duration::ZERO)).unwrap();
        assert_eq!(said.recv().unwrap(), ("a again", true));
    }

    #[test]
    fn an_order_to_sleep_is_given_up_by_a_process_that_stood_still() {
        // Every look at this clock is an hour after the one before.
        let time = || {
            static HOURS: AtomicU64 = AtomicU64::new(0);
            Duration::from_secs(3600 * HOURS.fetch_add(1, Ordering::Relaxed))
        };
        let lanes = Lanes::by(time);
        let (say, said) = channel();
        for (work, wanted) in [(Work::Sleep(Depth::Off), false), (WAKE, true), (Work::Observe, true)] {
            let say = say.clone();
            let order = move |clock: &mut dyn Clock| say.send(clock.pause(Duration::ZERO)).unwrap();
            lanes.submit(A, work, Box::new(order)).unwrap();
            assert_eq!(said.recv().unwrap(), wanted, "{work:?}");
        }
    }

    #[test]
    fn a_driver_that_panics_leaves_its_server_a_switch() {
        let lanes = Lanes::default();
        let (say, said) = channel();
        lanes
            .submit(
                A,
                WAKE,
                Box::new(|clock| {
                    clock.pause(FOR_EVER);
                    panic!("a planted bug of a driver")
                }),
            )
            .unwrap();
        lanes.submit(A, Work::Sleep(Depth::Off), Box::new(move |_| say.send(()).unwrap())).unwrap();
        said.recv().unwrap();
    }
}
