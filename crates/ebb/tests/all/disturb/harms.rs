//! What harms servers, and what mends them again.

use crate::harness::brake::Brake;
use crate::harness::faults::{Fault, Faults};
use crate::harness::harm::{copy_tree, put_in_place, remove};
use crate::harness::pulses::Pulses;
use crate::harness::{Cluster, Who};
use std::collections::BTreeSet;
use std::path::PathBuf;

const PAUSED: &str = "paused";
const HUNG: &str = "hung with its disk";

pub struct Harm {
    pub id: u16,
    pub how: &'static str,
    mend: Box<dyn FnOnce(&mut Cluster)>,
}

/// The servers that are out of order.
pub struct Harms {
    pub list: Vec<Harm>,
    /// A server that lost data, and may not have recovered it yet.
    pub lacks: Option<u16>,
    pub copies: Copies,
    slow: Pulses,
}

impl Harms {
    pub fn new() -> Harms {
        Harms { list: Vec::new(), lacks: None, copies: Copies::default(), slow: Pulses::start() }
    }

    fn add(&mut self, id: u16, how: &'static str, mend: impl FnOnce(&mut Cluster) + 'static) {
        self.list.push(Harm { id, how, mend: Box::new(mend) });
    }

    pub fn has(&self, id: u16) -> bool {
        self.list.iter().any(|harm| harm.id == id)
    }

    /// Runs, and is not harmed.
    pub fn is_sound(&self, cluster: &Cluster, id: u16) -> bool {
        !self.has(id) && cluster.pid(Who::Server(id)).is_some()
    }

    /// The metadata service may have resumed it.
    pub fn is_paused(&self, cluster: &Cluster, id: u16) -> bool {
        self.list.iter().any(|harm| (harm.id, harm.how) == (id, PAUSED))
            && cluster.is_stopped(Who::Server(id))
    }

    /// Whether its disk does.
    pub fn hangs(&self, id: u16) -> bool {
        self.list.iter().any(|harm| (harm.id, harm.how) == (id, HUNG))
    }

    pub fn mend(&mut self, cluster: &mut Cluster, at: usize) -> String {
        let Harm { id, how, mend } = self.list.remove(at);
        mend(cluster);
        format!("server {id}, which was {how}, continues")
    }

    fn stop(&mut self, cluster: &Cluster, id: u16, how: &'static str) {
        cluster.kill(Who::Server(id));
        self.add(id, how, move |cluster| cluster.launch_unless_it_runs(Who::Server(id)));
    }

    pub fn kill(&mut self, cluster: &Cluster, id: u16) {
        self.stop(cluster, id, "killed");
    }

    /// Also keeps a copy of its store, unless there is one.
    pub fn kill_and_copy(&mut self, cluster: &Cluster, id: u16) {
        self.kill(cluster, id);
        if !self.copies.has(Who::Server(id)) {
            self.copies.keep(cluster, Who::Server(id));
        }
    }

    pub fn pause(&mut self, cluster: &Cluster, id: u16) {
        cluster.pause(Who::Server(id));
        self.add(id, PAUSED, move |cluster| cluster.resume(Who::Server(id)));
    }

    /// Whatever needs its disk does not return.
    pub fn hang_disk(&mut self, cluster: &Cluster, id: u16) {
        let who = Who::Server(id);
        let hangs = Fault { hangs: true, ..Fault::default() };
        faults(cluster).set(who, &hangs);
        self.add(id, HUNG, move |cluster| {
            faults(cluster).clear(who);
            cluster.launch_unless_it_runs(who);
        });
    }

    pub fn empty(&mut self, cluster: &Cluster, id: u16) {
        self.stop(cluster, id, "emptied");
        put_in_place(&store(cluster, Who::Server(id)), None);
        self.lacks = Some(id);
    }

    pub fn roll_back(&mut self, cluster: &Cluster, id: u16) {
        self.stop(cluster, id, "put back to an older copy");
        self.copies.go_back(cluster, Who::Server(id));
        self.lacks = Some(id);
    }

    /// Suspends it most of the time, and resumes it for short periods.
    pub fn slow(&mut self, cluster: &Cluster, id: u16) {
        let pid = cluster.pid(Who::Server(id)).expect("it runs");
        self.slow.begin(pid);
        let slow = self.slow.clone();
        self.add(id, "slow", move |_| slow.end(pid));
    }

    /// Its disk does only a few operations per second.
    pub fn slow_disk(&mut self, cluster: &Cluster, id: u16) {
        let who = Who::Server(id);
        let brake = Brake::on(cluster.pid(who).expect("it runs"), &cluster.data(who)).expect("a slow disk");
        self.add(id, "slowed by its disk", move |_| drop(brake));
    }
}

pub fn faults(cluster: &Cluster) -> &Faults {
    cluster.faults.as_ref().expect("the processes were prepared")
}

/// What holds the data of a server or a metadata server.
pub fn store(cluster: &Cluster, who: Who) -> PathBuf {
    match who {
        Who::Server(_) => cluster.data(who).join("store"),
        _ => cluster.data(who),
    }
}

/// Older copies of stores.
#[derive(Default)]
pub struct Copies(BTreeSet<Who>);

impl Copies {
    pub fn has(&self, who: Who) -> bool {
        self.0.contains(&who)
    }

    fn place(cluster: &Cluster, who: Who) -> PathBuf {
        cluster.directory().join("copies").join(format!("{who:?}"))
    }

    pub fn keep(&mut self, cluster: &Cluster, who: Who) {
        copy_tree(&store(cluster, who), &Copies::place(cluster, who));
        self.0.insert(who);
    }

    pub fn go_back(&mut self, cluster: &Cluster, who: Who) {
        put_in_place(&store(cluster, who), Some(&Copies::place(cluster, who)));
        remove(&Copies::place(cluster, who));
        self.0.remove(&who);
    }
}
