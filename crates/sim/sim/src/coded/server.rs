//! A modelled server: one disk and one network interface, each with a queue.

use super::setup::Setup;
use crate::engine::SECOND;
use crate::request::disk::{Access, Disk};
use ebb_types::Random;
use std::collections::BTreeMap;

/// What is to be done when a disk is.
pub type JobId = u32;

pub struct Server {
    disk: Disk,
    accesses: BTreeMap<JobId, Access>,
    in_service: Option<JobId>,
    /// When its network interface has nothing left to do.
    network_free: u64,
    /// The disk's busy time up to the last sample.
    sampled: u64,
}

impl Server {
    pub fn new(setup: &Setup, random: Random) -> Server {
        let disk = Disk::new(setup.disk.clone(), random);
        Server { disk, accesses: BTreeMap::new(), in_service: None, network_free: 0, sampled: 0 }
    }

    pub fn add(&mut self, job: JobId, access: Access, background: bool) {
        self.accesses.insert(job, access);
        match background {
            true => self.disk.add_background(job),
            false => self.disk.add(job, access.at, access.bytes),
        }
    }

    /// Begins the next access, if the disk is free for one. Returns when it ends.
    pub fn begin(&mut self, now: u64) -> Option<u64> {
        if self.in_service.is_some() {
            return None;
        }
        let job = self.disk.next(now, false)?;
        let access = self.accesses.remove(&job).expect("it was added");
        self.in_service = Some(job);
        Some(self.disk.serve(now, access))
    }

    pub fn end(&mut self) -> JobId {
        self.in_service.take().expect("an access ends that began")
    }

    pub fn waiting(&self) -> usize {
        self.disk.waiting()
    }

    /// Takes the interface for a message. Returns when it has passed.
    pub fn transmit(&mut self, now: u64, bytes: u64, setup: &Setup) -> u64 {
        let seconds = setup.message_seconds + bytes as f64 / setup.network_bytes_per_second;
        self.network_free = self.network_free.max(now) + (seconds * SECOND as f64) as u64;
        self.network_free
    }

    /// Share of the time since the last call that the disk was busy.
    pub fn utilisation(&mut self, passed: u64) -> f64 {
        let busy = self.disk.busy - std::mem::replace(&mut self.sampled, self.disk.busy);
        (busy as f64 / passed as f64).min(1.0)
    }
}
