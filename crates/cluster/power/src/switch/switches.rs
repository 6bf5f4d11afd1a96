//! The switches of a cluster's servers. Calls return at once and report through a callback, on another thread; one that
//! is replaced by a newer order never reports.

use super::lanes::{Lanes, Work};
use super::{About, Clock, Driver, Magic, PowerState, SwitchError, settle};
use ebb_types::{Depth, ServerId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
}

/// Locks only for one call, so that a look at the state finds its turn during a long wake-up.
impl Driver for Path {
    fn about(&self) -> &About {
        &self.about
    }

    fn available(&self) -> Result<(), SwitchError> {
        Path::available(self)
    }

    fn sleep(&mut self, depth: Depth) -> Result<(), SwitchError> {
        let _turn = lock(&self.turn);
        lock(&self.driver).sleep(depth)
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
                path.sleep(depth)?;
            }
            settle::asleep(&mut path, clock)
        });
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
