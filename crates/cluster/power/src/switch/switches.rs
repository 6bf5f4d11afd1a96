//! The switches of a cluster's servers. Calls return at once and report through a callback, on another thread; one that
//! is replaced by a newer order never reports.

use super::lanes::{Lanes, Work};
use super::{About, Clock, Driver, Magic, PowerState, SwitchError, settle};
use ebb_types::{Depth, ServerId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One way to switch a server.
pub struct Path {
    about: About,
    driver: Arc<Mutex<Box<dyn Driver>>>,
    /// Held during each call: some controllers of several machines refuse a second session.
    turn: Arc<Mutex<()>>,
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A driver that panicked lost its own call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Path {
    pub fn about(&self) -> &About {
        &self.about
    }

    /// See [`Driver::available`].
    pub fn available(&self) -> Result<(), SwitchError> {
        lock(&self.driver).available()
    }

    fn wakes_from(&self, depth: Depth) -> bool {
        self.about.depths.contains(&depth)
    }

    fn share(&self) -> Path {
        Path { about: self.about.clone(), driver: self.driver.clone(), turn: self.turn.clone() }
    }

    /// Its turn may come late, behind another server's call: by then the server may be wanted awake, and needed.
    fn put_to_sleep(&self, depth: Depth, clock: &mut dyn Clock) -> Result<(), SwitchError> {
        let _turn = lock(&self.turn);
        let mut driver = lock(&self.driver);
        match clock.pause(Duration::ZERO) {
            true => driver.sleep(depth, clock),
            false => Err(SwitchError::Replaced),
        }
    }
}

/// Locks only for one call, so that a look at the state finds its turn during a long wake-up.
impl Driver for Path {
    fn about(&self) -> &About {
        &self.about
    }

    fn available(&self) -> Result<(), SwitchError> {
        Path::available(self)
    }

    fn wake(&mut self, clock: &mut dyn Clock) -> Result<(), SwitchError> {
        let _turn = lock(&self.turn);
        lock(&self.driver).wake(clock)
    }

    fn observe(&mut self, clock: &mut dyn Clock) -> Result<PowerState, SwitchError> {
        let _turn = lock(&self.turn);
        lock(&self.driver).observe(clock)
    }
}

/// The power paths of every server.
#[derive(Default)]
pub struct Switches {
    servers: BTreeMap<ServerId, Vec<Path>>,
    /// By controller.
    turns: BTreeMap<String, Arc<Mutex<()>>>,
    lanes: Lanes,
}

impl Switches {
    /// Adds a server with its paths, the usual one first. An error: another server is the same machine to one of them.
    pub fn add(&mut self, server: ServerId, paths: Vec<Box<dyn Driver>>) -> Result<(), SwitchError> {
        for driver in &paths {
            let about = driver.about();
            let is_same = |path: &Path| path.about.is_same_machine(about);
            if let Some((first, _)) = self.servers.iter().find(|(_, paths)| paths.iter().any(is_same)) {
                let (first, second, machine) = (*first, server, about.machine.clone());
                return Err(SwitchError::SameMachine { first, second, machine });
            }
        }
        let path = |driver: Box<dyn Driver>| {
            let about = driver.about().clone();
            let turn = self.turns.entry(about.controller.clone()).or_default().clone();
            Path { about, driver: Arc::new(Mutex::new(driver)), turn }
        };
        self.servers.insert(server, paths.into_iter().map(path).collect());
        Ok(())
    }

    /// The servers' paths, also of servers that have none and are never switched.
    pub fn servers(&self) -> impl Iterator<Item = (ServerId, &[Path])> {
        self.servers.iter().map(|(server, paths)| (*server, paths.as_slice()))
    }

    pub fn paths(&self, server: ServerId) -> &[Path] {
        self.servers.get(&server).map_or(&[], Vec::as_slice)
    }

    /// An error: a server has paths, and none of them wakes it from there.
    pub fn check(&self, depth: Depth) -> Result<(), SwitchError> {
        let cannot = |(_, paths): &(ServerId, &[Path])| {
            !paths.is_empty() && !paths.iter().any(|p| p.wakes_from(depth))
        };
        let found = self.servers().find(cannot);
        found.map_or(Ok(()), |(server, _)| Err(SwitchError::NoDepth { server, depth }))
    }

    /// Whether the server is to be told to put itself to sleep, before [`Switches::sleep`].
    pub fn sleeps_itself(&self, server: ServerId) -> bool {
        !self.paths(server).iter().any(|path| path.about.puts_to_sleep)
    }

    /// The packet by which other servers help to wake it by this path.
    pub fn magic(&self, server: ServerId, path: u8) -> Option<&Magic> {
        self.paths(server).get(usize::from(path))?.about.magic.as_ref()
    }

    /// Puts the server to sleep, or waits until it is down if it puts itself to sleep.
    pub fn sleep(
        &self,
        server: ServerId,
        depth: Depth,
        done: impl FnOnce(Result<(), SwitchError>) + Send + 'static,
    ) {
        let able = || self.paths(server).iter().filter(|path| path.wakes_from(depth));
        let puts = able().find(|path| path.about.puts_to_sleep);
        let Some(path) =
            puts.or_else(|| able().find(|path| path.about.settle.is_some())).or_else(|| able().next())
        else {
            return done(Err(SwitchError::NoDepth { server, depth }));
        };
        let mut path = path.share();
        self.submit(server, Work::Sleep(depth), done, move |clock| {
            if path.about.puts_to_sleep {
                path.put_to_sleep(depth, clock)?;
            }
            settle::asleep(&mut path, clock)
        });
    }

    /// This process decides no longer: no order to sleep acts from now on. Those that are given up do not report.
    pub fn give_up_sleeps(&self) {
        self.lanes.give_up_sleeps();
    }

    pub fn wake(
        &self,
        server: ServerId,
        path: u8,
        done: impl FnOnce(Result<(), SwitchError>) + Send + 'static,
    ) {
        let paths = self.paths(server);
        let Some(found) = paths.get(usize::from(path)) else {
            return done(Err(SwitchError::NoPath { server, path, paths: paths.len() }));
        };
        let mut driver = found.share();
        self.submit(server, Work::Wake { path }, done, move |clock| settle::wake(&mut driver, clock));
    }

    /// The state by the first path that can tell.
    pub fn observe(
        &self,
        server: ServerId,
        done: impl FnOnce(Result<PowerState, SwitchError>) + Send + 'static,
    ) {
        let mut paths: Vec<Path> = self.paths(server).iter().map(Path::share).collect();
        self.submit(server, Work::Observe, done, move |clock| {
            let mut outcome = Ok(PowerState::Unknown);
            for path in &mut paths {
                outcome = path.observe(clock);
                if matches!(outcome, Ok(state) if state != PowerState::Unknown) {
                    break;
                }
            }
            outcome
        });
    }

    fn submit<T: 'static>(
        &self,
        server: ServerId,
        work: Work,
        done: impl FnOnce(Result<T, SwitchError>) + Send + 'static,
        job: impl FnOnce(&mut dyn Clock) -> Result<T, SwitchError> + Send + 'static,
    ) {
        // A thread that cannot be started takes the callback with it.
        let done = Arc::new(Mutex::new(Some(done)));
        let report = done.clone();
        let job = Box::new(move |clock: &mut dyn Clock| {
            let outcome = job(clock);
            if let (false, Some(done)) = (matches!(outcome, Err(SwitchError::Replaced)), lock(&report).take())
            {
                done(outcome);
            }
        });
        if let Err(error) = self.lanes.submit(server, work, job)
            && let Some(done) = lock(&done).take()
        {
            done(Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const A: ServerId = ServerId(1);
    const B: ServerId = ServerId(2);

    /// Says what it is ordered. A sleep lasts for as long as it is held.
    struct Told {
        about: About,
        told: Sender<(String, &'static str)>,
        held: Option<Receiver<()>>,
    }

    impl Told {
        fn say(&self, order: &'static str) -> Result<(), SwitchError> {
            self.told.send((self.about.machine.clone(), order)).unwrap();
            Ok(())
        }
    }

    impl Driver for Told {
        fn about(&self) -> &About {
            &self.about
        }
        fn sleep(&mut self, _: Depth, _: &mut dyn Clock) -> Result<(), SwitchError> {
            let said = self.say("sleep");
            if let Some(held) = &self.held {
                // The other end says nothing, it ends.
                let _ = held.recv();
            }
            said
        }
        fn wake(&mut self, _: &mut dyn Clock) -> Result<(), SwitchError> {
            self.say("wake")
        }
        fn observe(&mut self, _: &mut dyn Clock) -> Result<PowerState, SwitchError> {
            Ok(PowerState::Unknown)
        }
    }

    fn driver(
        machine: &str,
        told: &Sender<(String, &'static str)>,
        held: Option<Receiver<()>>,
    ) -> Box<dyn Driver> {
        let about = About::new("told", machine.into(), vec![Depth::Off]);
        let about = About { controller: "both".into(), puts_to_sleep: true, ..about };
        Box::new(Told { about, told: told.clone(), held })
    }

    #[test]
    fn a_server_that_is_to_wake_before_its_turn_to_sleep_has_come_is_not_put_to_sleep() {
        let mut switches = Switches::default();
        let ((hold, held), (tell, told)) = (channel(), channel());
        switches.add(A, vec![driver("a", &tell, Some(held))]).unwrap();
        switches.add(B, vec![driver("b", &tell, None)]).unwrap();
        switches.sleep(A, Depth::Off, |_| ());
        assert_eq!(told.recv().unwrap(), ("a".into(), "sleep"), "the controller is busy with it");
        switches.sleep(B, Depth::Off, |_| ());
        switches.wake(B, 0, |_| ());
        drop(hold);
        assert_eq!(told.recv().unwrap(), ("b".into(), "wake"));
    }
}
