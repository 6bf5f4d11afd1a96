//! Faults that pass: processes that stand still for longer than every lease, hung disks, wrong clocks, cut networks,
//! too few descriptors, and a volume that two processes serve. Each ends with its event; servers that were harmed
//! before stay harmed meanwhile.

use super::{AWAKE, LIVE, Servers};
use crate::disturb::harms::faults;
use crate::harness::faults::{CALL, Fault, HEAR, MUTE, SEND};
use crate::harness::{Cluster, PATIENCE, Who, wait};
use crate::mirror::{BLOCK, Nbd, READ, WRITE, content};
use crate::three_meta::leader;
use crate::volumes::serve;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const GATEWAYS: [Who; 2] = [Who::Gateway, Who::SecondGateway];
/// Connections of a crowd: more than a port keeps of callers without a proof.
const CROWD: usize = 400;
/// Many more writes than the first server of a volume carries out.
const BY_SECOND: u64 = 1 << 40;
const HOUR: i64 = 3600;
/// The block protocol's number of it.
const NO_SPACE: u32 = 28;

impl Servers {
    pub fn can_fault(&self) -> bool {
        self.cluster.faults.is_some()
    }

    /// Whether one more server may be taken for failed.
    pub fn can_cut(&self) -> bool {
        self.can_fault() && self.may(LIVE)
    }

    /// Two or three leases; in the long form sometimes longer than anything waits for a sign of life.
    fn spell(&mut self) -> Duration {
        let more = if self.long && self.random.below(4) == 0 { 10_000 } else { 1500 };
        Duration::from_millis(3000 + self.random.below(more))
    }

    /// The leader half of the time.
    fn meta(&mut self) -> Who {
        let leader = leader(&self.cluster);
        let others: Vec<u64> = self.cluster.metas.iter().copied().filter(|id| *id != leader).collect();
        let other = *self.random.pick(&others).expect("there are three");
        Who::Meta(if self.random.below(2) == 0 { leader } else { other })
    }

    fn sound_server(&mut self) -> Option<Who> {
        let able: Vec<u16> = self.able(LIVE).iter().map(|server| server.id.0).collect();
        self.random.pick(&able).map(|id| Who::Server(*id))
    }

    fn gateway(&mut self) -> Who {
        *self.random.pick(&GATEWAYS).expect("two")
    }

    /// A process of any kind. A server only if it runs, and is not harmed.
    fn any(&mut self) -> Who {
        match self.random.below(5) {
            0 => self.gateway(),
            1 | 2 => self.meta(),
            _ => self.sound_server().unwrap_or(Who::Gateway),
        }
    }

    /// The pulses of slow servers would come on top of it.
    fn during(&mut self, begin: impl FnOnce(&Cluster), end: impl FnOnce(&Cluster)) -> Duration {
        self.mend_slow();
        let spell = self.spell();
        begin(&self.cluster);
        std::thread::sleep(spell);
        end(&self.cluster);
        spell
    }

    pub fn suspend_meta(&mut self) -> String {
        let who = self.meta();
        self.suspend(who)
    }

    pub fn suspend_gateway(&mut self) -> String {
        let who = self.gateway();
        self.suspend(who)
    }

    fn suspend(&mut self, who: Who) -> String {
        let spell = self.during(|cluster| cluster.pause(who), |cluster| cluster.resume(who));
        format!("{who:?} stands still for {spell:.1?}")
    }

    pub fn hang_meta(&mut self) -> String {
        let who = self.meta();
        let hangs = Fault { hangs: true, ..Fault::default() };
        let spell =
            self.during(|cluster| faults(cluster).set(who, &hangs), |cluster| faults(cluster).clear(who));
        format!("the disk of {who:?} hangs for {spell:.1?}")
    }

    /// By up to a month.
    pub fn change_clock(&mut self) -> String {
        let (who, hours) = (self.any(), 1 + self.random.below(720) as i64);
        let ahead = if self.random.below(2) == 0 { hours * HOUR } else { -hours * HOUR };
        faults(&self.cluster).set(who, &Fault { ahead, ..Fault::default() });
        self.load.go_on_for(600);
        faults(&self.cluster).clear(who);
        format!("the wall clock of {who:?} was {} h off", ahead / HOUR)
    }

    /// Cuts between a process and a server or metadata server: what each of the two cannot do.
    fn cut(&mut self, one: u8, other: u8) -> (Who, Who, Duration) {
        let from = self.any();
        let to = loop {
            let to = self.any();
            if to != from && !GATEWAYS.contains(&to) {
                break to;
            }
        };
        let cut = |peer, what| Fault { cut: [(peer, what)].into(), ..Fault::default() };
        let begin = |cluster: &Cluster| {
            faults(cluster).set(from, &cut(to, one));
            if other > 0 {
                faults(cluster).set(to, &cut(from, other));
            }
        };
        let spell =
            self.during(begin, |cluster| [from, to].iter().for_each(|who| faults(cluster).clear(*who)));
        (from, to, spell)
    }

    pub fn cut_one_way(&mut self) -> String {
        let (from, to, spell) = self.cut(CALL | SEND, 0);
        format!("nothing came from {from:?} to {to:?} for {spell:.1?}")
    }

    /// Others reach both.
    pub fn part(&mut self) -> String {
        let (from, to, spell) = self.cut(CALL | SEND, CALL | SEND);
        format!("{from:?} and {to:?} were parted for {spell:.1?}")
    }

    pub fn half_open(&mut self) -> String {
        let (from, to, spell) = self.cut(HEAR | MUTE, 0);
        format!("{from:?} heard nothing on its connections to {to:?} for {spell:.1?}")
    }

    fn callers(&self, who: Who, count: usize) -> Vec<TcpStream> {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], self.cluster.port(who)));
        let call = |_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        (0..count).map_while(call).collect()
    }

    /// It has no descriptor left, and is called by many.
    pub fn exhaust(&mut self) -> String {
        let who = self.any();
        let Some(pid) = self.cluster.pid(who) else { return format!("{who:?} does not run") };
        let used = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count) as u64;
        let limit = |most: Option<u64>| {
            let limit = Rlimit { current: most, ..getrlimit(Resource::Nofile) };
            // It may have ended meanwhile.
            prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).ok()
        };
        let before = limit(Some(used));
        let callers = self.callers(who, 64);
        let spell = self.during(|_| (), |_| ());
        drop(callers);
        limit(before.and_then(|before| before.current));
        format!("{who:?} had no more than {used} descriptors for {spell:.1?}")
    }

    pub fn crowd(&mut self) -> String {
        let who = self.any();
        let callers = self.callers(who, CROWD);
        self.load.go_on_for(300);
        format!("{} callers of {who:?} said nothing", callers.len())
    }

    /// The one that serves a volume stands still until another one serves it, and then goes on: it neither answers nor
    /// changes anything.
    pub fn serve_twice(&mut self) -> String {
        self.volumes += 1;
        let name = format!("twice-{}", self.volumes);
        let created = self.cluster.ebb(&["volume", "create", &name, "--size", "4MiB"]);
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        let mut first = serve(&self.cluster, &name);
        let acknowledged = Arc::new(AtomicU64::new(0));
        let (mut client, count) = (Nbd::dial(&first.url).expect("it is served"), acknowledged.clone());
        let writer = std::thread::spawn(move || {
            let write = |n: &u64| loop {
                match client.ask(WRITE, 0, BLOCK as u32, &content(0, *n)) {
                    Ok(Ok(_)) => return true,
                    // A disk was full a moment ago.
                    Ok(Err(error)) if error == NO_SPACE => {}
                    Ok(Err(_)) | Err(_) => return false,
                }
            };
            (1..).take_while(write).for_each(|n| count.store(n, Ordering::SeqCst));
        });
        wait("the volume is written", PATIENCE, || {
            let ended = writer.is_finished();
            assert!(!ended, "the volume's server refuses writes");
            (acknowledged.load(Ordering::SeqCst) > 5).then_some(())
        });
        let signal = |signal| kill_process(Pid::from_child(&first.child), signal).expect("it runs");
        signal(Signal::STOP);
        let since = Instant::now();
        let mut second = serve(&self.cluster, &name);
        let served = since.elapsed();
        let mut other = Nbd::dial(&second.url).expect("it is served");
        let last = acknowledged.load(Ordering::SeqCst);
        let mut read = || other.call(READ, 0, BLOCK as u32, &[]).expect("it is served");
        let found = read();
        assert!((last..=last + 1).any(|n| found == content(0, n)), "write {last} is lost");
        other.call(WRITE, 0, BLOCK as u32, &content(0, BY_SECOND)).expect("it is served");
        signal(Signal::CONT);
        // It ends by itself.
        let ended = || first.child.try_wait().expect("it was started");
        let ended = wait("the former server of the volume ends", PATIENCE, ended);
        writer.join().expect("its connection ends");
        let more = acknowledged.load(Ordering::SeqCst) - last;
        assert!(more <= 1, "the former server acknowledged {more} writes");
        let mut read = || other.call(READ, 0, BLOCK as u32, &[]).expect("it is served");
        assert!(read() == content(0, BY_SECOND), "the former server changed the volume");
        drop(other);
        second.end();
        let deleted = self.cluster.ebb(&["volume", "delete", &name]);
        assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
        format!(
            "a volume's server stands still; another one serves {served:.1?} later, and the first ends ({ended})"
        )
    }

    /// A server whose disk hangs is out of order: it counts.
    pub fn can_hang(&self) -> bool {
        self.can_fault() && self.may(AWAKE)
    }
}
