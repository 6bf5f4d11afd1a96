//! When this server's replicas are to be scrubbed: in quiet times after half of the period; after the whole period, or
//! when an administrator asks for it, whatever the load.
//!
//! Evaluated with every heartbeat, which is sent anyway. One replica is requested at a time, the one that was found
//! sound longest ago, page by page. Wall time, because it continues across restarts and sleep; a clock jump only makes
//! a scrub early or late.

use ebb_types::{Cursor, GroupId, Moment, ScrubMark, ScrubVitals};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A beat is quiet if its load is below this fraction of the recent peak.
const QUIET: f64 = 0.25;
/// Decay of the recent peak per beat: it halves in about eight hours of one-second beats.
const FADING: f64 = 1.0 - 1.0 / 40_000.0;
/// Maximum seconds before an unanswered request is sent again.
const RETRY_MAX: u64 = 60;
/// The same while an administrator waits for a scrub.
const RETRY_ASKED_MAX: u64 = 5;

/// Result of the scrub of a page for this server's replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scrubbed {
    pub group: GroupId,
    pub after: Option<Cursor>,
    pub end: Option<Cursor>,
    pub sound: bool,
}

/// A member of a group whose primary is this server wants its replica scrubbed from `after` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub after: Option<Cursor>,
    pub overdue: bool,
}

/// The scrubs of all groups whose primary is this server, and of its columns: what is wanted, and how fast; and what
/// was found of the replicas here.
#[derive(Default)]
pub(crate) struct Scrubs {
    wanted: BTreeMap<GroupId, Wanted>,
    found: Vec<Scrubbed>,
    /// Bytes per second, counted over all copies.
    pub rate: u64,
    /// No window starts before this moment.
    not_before: Moment,
}

impl Scrubs {
    pub fn want(&mut self, group: GroupId, wanted: Wanted) {
        self.wanted.insert(group, wanted);
    }

    /// The next one to begin. Unless it is `quiet`, only what is overdue.
    pub fn next(&self, quiet: bool) -> Option<(GroupId, Wanted)> {
        let next = self.wanted.iter().find(|(_, wanted)| quiet || wanted.overdue);
        next.map(|(group, wanted)| (*group, *wanted))
    }

    pub fn begin(&mut self, group: GroupId) {
        self.wanted.remove(&group);
    }

    pub fn find(&mut self, page: Scrubbed) {
        self.found.push(page);
    }

    pub fn take_found(&mut self) -> Vec<Scrubbed> {
        std::mem::take(&mut self.found)
    }

    /// A page ended. Another request for it is served by this one.
    pub fn end(&mut self, group: GroupId, after: Option<Cursor>) {
        if self.wanted.get(&group).is_some_and(|wanted| wanted.after == after) {
            self.wanted.remove(&group);
        }
    }

    pub fn may_read(&self, now: Moment) -> bool {
        now >= self.not_before
    }

    pub fn spend(&mut self, now: Moment, bytes: u64) {
        let nanos = bytes.saturating_mul(1_000_000_000) / self.rate.max(1);
        self.not_before = now + Duration::from_nanos(nanos);
    }
}

#[derive(Default)]
pub(crate) struct Scrubber {
    /// Seconds; zero: never.
    period: u64,
    now: u64,
    pub quiet: bool,
    busiest: f64,
    replicas: BTreeMap<GroupId, Replica>,
    /// The replica whose scrub was asked for, and when.
    asked: Option<(GroupId, u64)>,
    /// An administrator wants all replicas scrubbed, namely those in the next beat.
    all_wanted: bool,
    changed: bool,
}

struct Replica {
    mark: ScrubMark,
    in_sync: bool,
    /// An administrator asked for it. Forgotten at a restart.
    wanted: bool,
    /// When it was last tried in vain (Unix seconds): others go first, and it is retried some time later.
    tried: Option<u64>,
}

impl Scrubber {
    pub fn new(period: u64, marks: Vec<ScrubMark>) -> Scrubber {
        let replica =
            |mark: ScrubMark| (mark.group, Replica { mark, in_sync: false, wanted: false, tried: None });
        Scrubber { period, replicas: marks.into_iter().map(replica).collect(), ..Scrubber::default() }
    }

    /// Whether there is nothing to do, now or later.
    pub fn is_off(&self) -> bool {
        self.period == 0 && !self.all_wanted && !self.replicas.values().any(|r| r.wanted)
    }

    /// From the next beat on, every replica is to be scrubbed from its beginning; one that is not in sync, as soon as
    /// it is.
    pub fn want_all(&mut self) {
        self.all_wanted = true;
    }

    /// Updates the time, the client operations since the last beat, and the groups that this server has a replica of,
    /// each with whether it is in sync.
    pub fn beat(&mut self, now: u64, ops: u64, groups: impl Iterator<Item = (GroupId, bool)>) {
        self.now = now;
        self.busiest = (self.busiest * FADING).max(ops as f64);
        self.quiet = ops == 0 || (ops as f64) < self.busiest * QUIET;
        let mut there = BTreeSet::new();
        for (group, in_sync) in groups {
            there.insert(group);
            let replica = self.replicas.entry(group).or_insert_with(|| {
                self.changed = true;
                // A new replica counts as found sound at some time in the last half period, so that a new cluster does
                // not begin with all of them at once.
                let spread = u64::from(group.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
                let sound_at = now.saturating_sub(spread % (self.period / 2).max(1));
                let (new_at, after) = (Some(now), None);
                let mark = ScrubMark { group, sound_at, new_at, after, sound_so_far: true, sound: true };
                Replica { mark, in_sync, wanted: false, tried: None }
            });
            replica.in_sync = in_sync;
            replica.mark.sound_at = replica.mark.sound_at.min(now);
        }
        let known = self.replicas.len();
        self.replicas.retain(|group, _| there.contains(group));
        self.changed |= known != self.replicas.len();
        if std::mem::take(&mut self.all_wanted) {
            self.asked = None;
            for replica in self.replicas.values_mut() {
                (replica.wanted, replica.tried) = (true, None);
                // What was found sound before need not be sound now.
                (replica.mark.after, replica.mark.sound_so_far) = (None, true);
            }
        }
    }

    fn retry(&self) -> u64 {
        let most = if self.replicas.values().any(|r| r.wanted) { RETRY_ASKED_MAX } else { RETRY_MAX };
        (self.period / 16).clamp(1, most)
    }

    fn age(&self, replica: &Replica) -> u64 {
        self.now.saturating_sub(replica.mark.sound_at)
    }

    fn is_due(&self, replica: &Replica) -> bool {
        replica.in_sync && self.period > 0 && self.age(replica) >= (self.period / 2).max(1)
    }

    fn is_overdue(&self, replica: &Replica) -> bool {
        replica.in_sync && self.period > 0 && self.age(replica) >= self.period
    }

    /// The scrub to request now.
    pub fn ask(&mut self) -> Option<(GroupId, Wanted)> {
        if let Some((group, at)) = self.asked {
            if self.now.abs_diff(at) < self.retry() {
                return None;
            }
            self.put_off(group);
        }
        // An unsound replica is read again and again, but not constantly.
        let pause = |r: &Replica| if r.mark.sound { self.retry() } else { (self.period / 16).max(1) };
        let held = |r: &Replica| r.tried.is_some_and(|at| self.now.abs_diff(at) < pause(r));
        let asked_for = |r: &Replica| r.wanted && r.in_sync;
        let at_any_load = |r: &Replica| asked_for(r) || self.is_overdue(r);
        let due = |r: &&Replica| at_any_load(r) || (self.quiet && self.is_due(r));
        let due = self.replicas.values().filter(|r| due(r) && !held(r));
        let replica = due.min_by_key(|r| (!asked_for(r), r.mark.sound_at, r.mark.group))?;
        let wanted = Wanted { after: replica.mark.after, overdue: at_any_load(replica) };
        let group = replica.mark.group;
        self.asked = Some((group, self.now));
        Some((group, wanted))
    }

    fn put_off(&mut self, group: GroupId) {
        self.asked = self.asked.filter(|(asked, _)| *asked != group);
        if let Some(replica) = self.replicas.get_mut(&group) {
            replica.tried = Some(self.now);
        }
    }

    /// A page of a replica was compared.
    pub fn advance(&mut self, page: Scrubbed) {
        // It was dropped meanwhile.
        let Some(replica) = self.replicas.get_mut(&page.group) else { return };
        let mark = &mut replica.mark;
        let ends = page.end.is_none();
        // Only a page that continues the pass counts.
        if page.after > mark.after || (!ends && page.end <= mark.after && page.sound) {
            return;
        }
        self.changed = true;
        mark.sound_so_far &= page.sound;
        mark.sound &= page.sound;
        let stuck = !ends && page.end <= mark.after;
        let failed = ends && !mark.sound_so_far;
        if ends {
            if mark.sound_so_far {
                (mark.sound_at, mark.new_at, mark.sound) = (self.now, None, true);
                replica.wanted = false;
            }
            (mark.after, mark.sound_so_far) = (None, true);
        } else {
            mark.after = mark.after.max(page.end);
        }
        self.asked = self.asked.filter(|(asked, _)| *asked != page.group);
        if stuck || failed {
            self.put_off(page.group);
        }
    }

    /// The marks, if they changed since this was last asked.
    pub fn take_changed(&mut self) -> Option<Vec<ScrubMark>> {
        std::mem::take(&mut self.changed).then(|| self.replicas.values().map(|r| r.mark).collect())
    }

    /// When each in-sync replica was last found sound.
    pub fn marks(&self) -> impl Iterator<Item = ScrubMark> + '_ {
        self.replicas.values().filter(|r| r.in_sync).map(|r| r.mark)
    }

    pub fn vitals(&self, counted: ScrubVitals) -> ScrubVitals {
        let in_sync = || self.replicas.values().filter(|r| r.in_sync);
        let since = |r: &Replica| self.now.saturating_sub(r.mark.new_at.unwrap_or(r.mark.sound_at));
        ScrubVitals {
            replicas: in_sync().count() as u32,
            due: in_sync().filter(|r| self.is_due(r)).count() as u32,
            overdue: in_sync().filter(|r| self.is_overdue(r)).count() as u32,
            unsound: in_sync().filter(|r| !r.mark.sound).count() as u32,
            asked: self.replicas.values().filter(|r| r.wanted).count() as u32,
            oldest_seconds: in_sync().map(since).max().unwrap_or(0),
            ..counted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{ChunkId, Cursor};

    const DAY: u64 = 24 * 3600;
    const ONE: GroupId = GroupId(1);
    const TWO: GroupId = GroupId(2);

    /// Two replicas that were found sound at these times, with a period of ten days.
    fn scrubber(one: u64, two: u64) -> Scrubber {
        let mark = |(group, sound_at)| ScrubMark {
            group,
            sound_at,
            new_at: None,
            after: None,
            sound_so_far: true,
            sound: true,
        };
        Scrubber::new(10 * DAY, [(ONE, one), (TWO, two)].map(mark).into())
    }

    fn beat(scrubber: &mut Scrubber, now: u64, ops: u64) -> Option<(GroupId, bool)> {
        scrubber.beat(now, ops, [(ONE, true), (TWO, true)].into_iter());
        scrubber.ask().map(|(group, wanted)| (group, wanted.overdue))
    }

    fn page(group: GroupId, after: Option<u32>, end: Option<u32>, sound: bool) -> Scrubbed {
        let cursor = |block| Cursor { chunk: ChunkId::default(), block };
        Scrubbed { group, after: after.map(cursor), end: end.map(cursor), sound }
    }

    #[test]
    fn a_replica_is_due_in_quiet_times_after_half_the_period_and_after_all_of_it_under_load() {
        let mut s = scrubber(100 * DAY, 104 * DAY);
        assert_eq!(beat(&mut s, 105 * DAY - 1, 0), None);
        assert_eq!(beat(&mut s, 105 * DAY, 1000), None, "it is the busiest time that it knows");
        assert_eq!(beat(&mut s, 105 * DAY + 1, 251), None);
        assert_eq!(beat(&mut s, 105 * DAY + 2, 240), Some((ONE, false)));
        let mut s = scrubber(100 * DAY, 104 * DAY);
        assert_eq!(beat(&mut s, 110 * DAY - 1, 1000), None);
        assert_eq!(beat(&mut s, 110 * DAY, 1000), Some((ONE, true)));
        let mut never = Scrubber::new(0, Vec::new());
        assert!(never.is_off() && scrubber(0, 0).vitals(ScrubVitals::default()).overdue == 0);
        assert_eq!(never.ask().map(|_| ()), None);
    }

    #[test]
    fn a_new_replica_is_as_old_as_it_is_there_and_due_as_if_it_had_been_found_sound_before() {
        let mut s = Scrubber::new(10 * DAY, Vec::new());
        let groups = || (0..100).map(|group| (GroupId(group), true));
        s.beat(100 * DAY, 1, groups());
        let oldest = |s: &Scrubber| s.vitals(ScrubVitals::default()).oldest_seconds;
        assert_eq!((oldest(&s), s.vitals(ScrubVitals::default()).replicas), (0, 100));
        s.beat(101 * DAY, 1, groups());
        let vitals = s.vitals(ScrubVitals::default());
        assert_eq!(vitals.oldest_seconds, DAY);
        assert!((10..40).contains(&vitals.due), "{vitals:?}");
        let mut again = Scrubber::new(10 * DAY, s.take_changed().expect("they are new"));
        again.beat(101 * DAY, 0, groups());
        assert_eq!(oldest(&again), DAY, "a restart forgets nothing");
        while let Some((group, _)) = again.ask() {
            again.advance(page(group, None, None, true));
        }
        again.beat(102 * DAY, 0, groups());
        let vitals = again.vitals(ScrubVitals::default());
        assert_eq!(vitals.oldest_seconds, 2 * DAY, "most were not read yet");
    }

    #[test]
    fn a_replica_that_is_away_is_not_asked_for_and_keeps_its_mark() {
        let mut s = scrubber(0, 0);
        s.beat(100 * DAY, 0, [(ONE, false), (TWO, false)].into_iter());
        assert!(s.ask().is_none() && s.vitals(ScrubVitals::default()).replicas == 0);
        s.beat(101 * DAY, 0, [(ONE, true), (TWO, false)].into_iter());
        assert_eq!(s.ask().map(|(group, _)| group), Some(ONE));
        let vitals = s.vitals(ScrubVitals::default());
        assert_eq!((vitals.replicas, vitals.overdue, vitals.oldest_seconds), (1, 1, 101 * DAY));
    }

    #[test]
    fn a_pass_resumes_where_it_was_after_a_restart() {
        let mut s = scrubber(100 * DAY, 100 * DAY);
        assert_eq!(beat(&mut s, 106 * DAY, 0), Some((ONE, false)));
        s.advance(page(ONE, None, Some(255), true));
        let marks = s.take_changed().expect("it came further");
        assert!(s.take_changed().is_none());
        let mut again = Scrubber::new(10 * DAY, marks);
        again.beat(106 * DAY, 0, [(ONE, true), (TWO, true)].into_iter());
        let (group, wanted) = again.ask().expect("it is due still");
        assert_eq!((group, wanted.after.map(|c| c.block)), (ONE, Some(255)));
        again.advance(page(ONE, Some(511), None, true));
        assert_eq!(again.vitals(ScrubVitals::default()).due, 2, "what lies between was not looked at");
        again.advance(page(ONE, Some(255), None, true));
        assert_eq!(again.vitals(ScrubVitals::default()).due, 1);
        assert_eq!(again.ask().map(|(group, _)| group), Some(TWO));
    }

    #[test]
    fn what_could_not_be_repaired_is_tried_again_but_not_at_once() {
        let mut s = scrubber(100 * DAY, 105 * DAY);
        assert_eq!(beat(&mut s, 106 * DAY, 0), Some((ONE, false)));
        s.advance(page(ONE, None, Some(255), false));
        s.advance(page(ONE, Some(255), None, true));
        let vitals = s.vitals(ScrubVitals::default());
        assert_eq!((vitals.due, vitals.unsound), (1, 1));
        assert_eq!(beat(&mut s, 106 * DAY + 3600, 0), None);
        assert_eq!(beat(&mut s, 107 * DAY, 0), Some((ONE, false)));
        s.advance(page(ONE, None, None, true));
        assert_eq!(s.vitals(ScrubVitals::default()).unsound, 0);
    }

    #[test]
    fn a_question_without_an_answer_is_put_off_behind_others() {
        let mut s = scrubber(100 * DAY, 101 * DAY);
        assert_eq!(beat(&mut s, 107 * DAY, 0), Some((ONE, false)));
        assert_eq!(beat(&mut s, 107 * DAY + 1, 0), None);
        assert_eq!(beat(&mut s, 107 * DAY + RETRY_MAX, 0), Some((TWO, false)));
        assert_eq!(beat(&mut s, 107 * DAY + 2 * RETRY_MAX, 0), Some((ONE, false)));
    }

    #[test]
    fn what_an_administrator_asks_for_is_scrubbed_whole_whatever_the_load_and_the_period() {
        for period in [0, 10 * DAY] {
            let mut s = Scrubber::new(period, Vec::new());
            beat(&mut s, 100 * DAY, 1000);
            assert_eq!(beat(&mut s, 100 * DAY + 1, 1000), None);
            s.want_all();
            s.beat(100 * DAY + 2, 1000, [(ONE, true), (TWO, false)].into_iter());
            let (group, wanted) = s.ask().expect("one is in sync");
            assert_eq!((group, wanted.overdue, wanted.after), (ONE, true, None));
            assert_eq!(s.vitals(ScrubVitals::default()).asked, 2, "the other when it is in sync");
            s.advance(page(ONE, None, Some(255), true));
            s.want_all();
            beat(&mut s, 100 * DAY + 3, 1000);
            assert_eq!(s.vitals(ScrubVitals::default()).asked, 2);
            s.advance(page(ONE, Some(255), None, true));
            assert_eq!(s.vitals(ScrubVitals::default()).asked, 2, "its first page was read before");
            s.advance(page(ONE, None, None, true));
            s.advance(page(TWO, None, None, true));
            assert_eq!(s.vitals(ScrubVitals::default()).asked, 0);
            assert_eq!((s.is_off(), s.ask().is_none()), (period == 0, true));
        }
    }

    #[test]
    fn a_new_cluster_does_not_begin_with_all_replicas_at_once() {
        let mut s = Scrubber::new(10 * DAY, Vec::new());
        s.beat(1000 * DAY, 0, (0..192).map(|n| (GroupId(n), true)));
        let ages: BTreeSet<u64> = s.marks().map(|mark| (1000 * DAY - mark.sound_at) / DAY).collect();
        assert_eq!(ages, (0..5).collect());
        assert!(s.ask().is_none());
    }
}
