//! A few threads for operations that block: those that io_uring lacks, and all of them where it is not permitted.

use crate::work::Work;
use ebb_mirror::Found;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

const THREADS_MAX: usize = 4;

/// An operation for a thread. `slot` is the caller's.
pub(crate) struct Job {
    pub slot: usize,
    pub file: Arc<File>,
    pub work: Work,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    ended: Vec<(Job, Result<Found, Errno>)>,
    idle: usize,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Counts up whenever a job has ended.
    ended: OwnedFd,
}

/// Threads start when there is work for them. Dropping waits until every job has ended.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    running: Vec<JoinHandle<()>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no thread panics with the lock held")
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            let Some(mut job) = queue.jobs.pop_front() else {
                if queue.closed {
                    return;
                }
                queue.idle += 1;
                queue = self.work.wait(queue).expect("no thread panics with the lock held");
                queue.idle -= 1;
                continue;
            };
            drop(queue);
            let ended = job.work.run(&job.file);
            queue = self.lock();
            queue.ended.push((job, ended));
            // It can only fail when the count is full, and then the reader is awake.
            let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
        }
    }
}

impl Threads {
    pub fn new() -> io::Result<Threads> {
        let ended = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let shared = Shared { queue: Mutex::default(), work: Condvar::new(), ended };
        Ok(Threads { shared: Arc::new(shared), running: Vec::new() })
    }

    /// Readable when a job has ended that was not collected.
    pub fn fd(&self) -> &OwnedFd {
        &self.shared.ended
    }

    pub fn begin(&mut self, job: Job) {
        let mut queue = self.shared.lock();
        queue.jobs.push_back(job);
        let is_short = queue.idle < queue.jobs.len() && self.running.len() < THREADS_MAX;
        drop(queue);
        self.shared.work.notify_one();
        if is_short {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("disk".to_owned()).spawn(move || shared.run());
            match thread {
                Ok(thread) => self.running.push(thread),
                Err(error) => assert!(!self.running.is_empty(), "no thread can be started: {error}"),
            }
        }
    }

    /// What has ended since the last call.
    pub fn collect(&mut self) -> Vec<(Job, Result<Found, Errno>)> {
        // Empty is all that can go wrong.
        let _ = rustix::io::read(&self.shared.ended, &mut [0; 8]);
        std::mem::take(&mut self.shared.lock().ended)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.running.drain(..) {
            // A panic has been printed where it happened.
            let _ = thread.join();
        }
    }
}
