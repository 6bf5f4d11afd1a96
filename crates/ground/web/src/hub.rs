//! The one task that asks the cluster. Pages and acts send it orders; it asks the leader at most once a second, and
//! only while a page is open: otherwise it waits for an order, without a timer. Replays take long and ask no server:
//! they run beside it, one at a time.
//!
//! Every page gets the same frames. One that falls behind gets everything again.

use crate::frames::{Facts, Frame, OneServer, Outlook, Seen};
use crate::source::{Act, Recorded, Refusal, Replayed, Source, WhatIf};
use ebb_types::{AdminReply, AdminRequest, ServerId};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, broadcast, mpsc, oneshot};
use tokio::time::Instant;

/// Between two polls.
const POLL: Duration = Duration::from_secs(1);
/// Hours and plan are read again so often, and after a shift.
const OUTLOOK: Duration = Duration::from_secs(60);
/// Frames that a page may be behind.
const BEHIND_MOST: usize = 16;
const ORDERS_MOST: usize = 64;
/// Longer than a poll that is late, shorter than a wake-up.
const SILENCE_MILLIS: u64 = 5000;

pub(crate) enum Order {
    /// A page opens.
    Open(oneshot::Sender<Opened>),
    /// A page has fallen behind.
    Hello(oneshot::Sender<Arc<Frame>>),
    /// One look, with no page open perhaps.
    Status(oneshot::Sender<Result<String, Refusal>>),
    Server(ServerId, oneshot::Sender<Result<Option<OneServer>, Refusal>>),
    Notices(oneshot::Sender<Result<String, Refusal>>),
    Volumes(oneshot::Sender<Result<String, Refusal>>),
    Act(Act, oneshot::Sender<Result<(), Refusal>>),
    Measure(oneshot::Sender<Result<String, Refusal>>),
    WhatIf(WhatIf, oneshot::Sender<Result<Replayed, Refusal>>),
}

/// What a page has at first, and what it hears from then on.
pub(crate) struct Opened {
    pub hello: Arc<Frame>,
    pub frames: broadcast::Receiver<Arc<Frame>>,
}

/// The way to the task. Cheap to clone; the task ends with the last one.
#[derive(Clone)]
pub(crate) struct Hub(mpsc::Sender<Order>);

/// The task has ended: the program is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended;

impl Hub {
    pub fn start(source: impl Source, facts: Facts) -> Hub {
        let (sender, orders) = mpsc::channel(ORDERS_MOST);
        tokio::spawn(Task::new(source, facts).run(orders));
        Hub(sender)
    }

    pub async fn ask<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, Ended> {
        let (sender, answer) = oneshot::channel();
        self.0.send(order(sender)).await.map_err(|_| Ended)?;
        answer.await.map_err(|_| Ended)
    }
}

struct Task<S> {
    source: S,
    seen: Seen,
    pages: broadcast::Sender<Arc<Frame>>,
    /// When it last began to ask the leader, or gave up.
    polled: Option<Instant>,
    /// When it last read the outlook, and the size that was the gear's then.
    outlook: Option<(Instant, (u8, u32, ebb_types::GearMode))>,
    /// One replay at a time: each takes a core.
    replays: Arc<Semaphore>,
    /// One call at a time to the management controllers: more would lose answers.
    meters: Arc<Semaphore>,
}

impl<S: Source> Task<S> {
    fn new(source: S, facts: Facts) -> Task<S> {
        let (pages, _) = broadcast::channel(BEHIND_MOST);
        let (replays, meters) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        Task { source, seen: Seen::new(facts), pages, polled: None, outlook: None, replays, meters }
    }

    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            let order = if self.pages.receiver_count() == 0 {
                orders.recv().await
            } else {
                let due = self.polled.map_or_else(Instant::now, |polled| polled + POLL);
                tokio::select! {
                    order = orders.recv() => order,
                    () = tokio::time::sleep_until(due) => {
                        self.poll().await;
                        continue;
                    }
                }
            };
            match order {
                Some(order) => self.carry_out(order).await,
                None => return,
            }
        }
    }

    /// A caller that has gone away needs no answer.
    async fn carry_out(&mut self, order: Order) {
        match order {
            // What is known is shown at once; the leader is asked next.
            Order::Open(answer) => {
                let frames = self.pages.subscribe();
                drop(answer.send(Opened { hello: Arc::new(self.seen.hello()), frames }));
            }
            Order::Hello(answer) => drop(answer.send(Arc::new(self.seen.hello()))),
            Order::Status(answer) => {
                let fresh = self.refreshed().await;
                let _ = answer.send(fresh.map(|()| json(&self.seen.status)));
            }
            Order::Server(id, answer) => {
                let fresh = self.refreshed().await;
                let _ = answer.send(fresh.map(|()| self.seen.server(id)));
            }
            Order::Notices(answer) => {
                let fresh = self.refreshed().await;
                let _ = answer.send(fresh.map(|()| json(&self.seen.notices)));
            }
            Order::Volumes(answer) => drop(answer.send(self.source.volumes().await)),
            Order::Measure(answer) => self.measure(answer).await,
            Order::WhatIf(wish, answer) => self.what_if(wish, answer).await,
            Order::Act(act, answer) => {
                let done = self.source.ask(act.request()).await.map(drop);
                let has_changed = done.is_ok();
                let _ = answer.send(done);
                if has_changed {
                    // Its page is waiting to see it.
                    self.poll().await;
                }
            }
        }
    }

    async fn what_if(&mut self, wish: WhatIf, answer: oneshot::Sender<Result<Replayed, Refusal>>) {
        if let Err(trouble) = self.refreshed().await {
            return drop(answer.send(Err(trouble)));
        }
        let status = self.seen.status.as_ref().expect("it was read just now");
        let recorded = Recorded {
            hours: self.seen.outlook.hours.clone(),
            schedule: status.schedule,
            replicas: status.params.replicas,
        };
        beside(&self.replays, self.source.replay(recorded, wish), answer);
    }

    async fn measure(&mut self, answer: oneshot::Sender<Result<String, Refusal>>) {
        if let Err(trouble) = self.refreshed().await {
            return drop(answer.send(Err(trouble)));
        }
        let status = self.seen.status.as_ref().expect("it was read just now").clone();
        beside(&self.meters, self.source.measure(status), answer);
    }

    /// Asks the leader, unless it was asked within the last second.
    async fn refresh(&mut self) {
        if self.polled.is_none_or(|polled| polled.elapsed() >= POLL) {
            self.poll().await;
        }
    }

    async fn refreshed(&mut self) -> Result<(), Refusal> {
        self.refresh().await;
        self.seen.trouble.as_ref().map_or(Ok(()), |trouble| Err(Refusal::Unreachable(trouble.why.clone())))
    }

    async fn poll(&mut self) {
        self.polled = Some(Instant::now());
        match self.look().await {
            Ok(frame) => self.tell(frame),
            Err(why) => {
                // That took seconds: who asks next hears the same.
                self.polled = Some(Instant::now());
                let frame = self.seen.fail(why.to_string(), unix_millis());
                return self.tell(frame);
            }
        }
        let Some(size) = self.seen.now.as_ref().map(|now| now.size()) else { return };
        let stale = |(read, then): (Instant, _)| read.elapsed() >= OUTLOOK || then != size;
        if self.outlook.is_none_or(stale)
            && let Ok(outlook) = self.read_outlook().await
        {
            self.outlook = Some((Instant::now(), size));
            let frame = self.seen.take_outlook(outlook);
            self.tell(frame);
        }
    }

    async fn look(&mut self) -> Result<Frame, Refusal> {
        let AdminReply::Status(status) = self.source.ask(AdminRequest::Status).await? else {
            return Err(unexpected());
        };
        let after = self.seen.newest_notice();
        let AdminReply::Notices(notices) = self.source.ask(AdminRequest::ListNotices { after }).await? else {
            return Err(unexpected());
        };
        Ok(self.seen.take(*status, notices, unix_millis(), SILENCE_MILLIS))
    }

    async fn read_outlook(&mut self) -> Result<Outlook, Refusal> {
        let AdminReply::Hours(hours) = self.source.ask(AdminRequest::ListHours).await? else {
            return Err(unexpected());
        };
        // Without a schedule that can be planned there is none, and the page goes without.
        let plan = match self.source.ask(AdminRequest::GearPlan).await {
            Ok(AdminReply::Plan(plan)) => plan.hours,
            Ok(_) => return Err(unexpected()),
            Err(Refusal::Refused(_)) => Vec::new(),
            Err(unreachable) => return Err(unreachable),
        };
        let AdminReply::Shifts(shifts) = self.source.ask(AdminRequest::ListShifts).await? else {
            return Err(unexpected());
        };
        let schedule = self.seen.status.as_ref().map(|status| status.schedule).unwrap_or_default();
        Ok(Outlook::new(hours, plan, shifts, schedule, unix_millis()))
    }

    /// Without a page it is dropped.
    fn tell(&self, frame: Frame) {
        let _ = self.pages.send(Arc::new(frame));
    }
}

/// Long work, in turn, while the task continues. A moved slider asks again before this one's turn: then no page
/// waits for it.
fn beside<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    work: impl Future<Output = Result<T, String>> + Send + 'static,
    answer: oneshot::Sender<Result<T, Refusal>>,
) {
    let turns = turns.clone();
    tokio::spawn(async move {
        let _turn = turns.acquire_owned().await;
        if !answer.is_closed() {
            let _ = answer.send(work.await.map_err(Refusal::Refused));
        }
    });
}

fn unexpected() -> Refusal {
    Refusal::Refused("unexpected answer of the metadata service".to_owned())
}

fn json(body: &impl serde::Serialize) -> String {
    serde_json::to_string(body).expect("plain types become JSON")
}

/// Wall clock: for what people read.
fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made_up::{Leader, status};
    use tokio::time::{advance, sleep};

    /// Paused time runs to the next timer when nothing else is to do: every second is one poll.
    async fn pass(seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    async fn opened(hub: &Hub) -> Opened {
        hub.ask(Order::Open).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_is_asked_once_a_second_whatever_the_number_of_pages() {
        let leader = Leader::new(status(9));
        let hub = Hub::start(leader.clone(), Facts::default());
        let (first, second) = (opened(&hub).await, opened(&hub).await);
        pass(30).await;
        let polls = leader.asked("status");
        assert!((30..=32).contains(&polls), "{polls}");
        assert_eq!(leader.asked("plan"), 1, "the outlook is read once a minute");
        assert!(leader.only_asked());
        drop((first, second));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_page_nobody_is_asked() {
        let leader = Leader::new(status(9));
        let hub = Hub::start(leader.clone(), Facts::default());
        pass(3600).await;
        assert_eq!(leader.all(), 0, "no page was ever open");
        let page = opened(&hub).await;
        pass(10).await;
        drop(page);
        // One poll may be under way.
        pass(2).await;
        let before = leader.all();
        assert!(before >= 10);
        advance(Duration::from_secs(3600)).await;
        pass(10).await;
        assert_eq!(leader.all(), before, "the last page is closed");
        let page = opened(&hub).await;
        pass(1).await;
        assert!(leader.all() > before, "one opens again");
        drop(page);
    }

    #[tokio::test(start_paused = true)]
    async fn looks_within_a_second_cost_one_request() {
        let leader = Leader::new(status(3));
        let hub = Hub::start(leader.clone(), Facts::default());
        for _ in 0..5 {
            let text = hub.ask(Order::Status).await.unwrap().unwrap();
            let shown: ebb_types::ClusterStatus = serde_json::from_str(&text).unwrap();
            assert_eq!(shown, leader.status(), "as `ebb status --json` prints it");
        }
        assert_eq!(leader.asked("status"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_cluster_is_named_with_its_time_and_what_was_seen_is_kept() {
        let leader = Leader::new(status(9));
        let hub = Hub::start(leader.clone(), Facts::default());
        let mut page = opened(&hub).await;
        pass(1).await;
        leader.be_reachable(false);
        let mut frames = Vec::new();
        while frames.len() < 3 {
            let frame = page.frames.recv().await.unwrap();
            frames.extend((frame.name == "trouble").then_some(frame));
        }
        let since = |frame: &Frame| {
            serde_json::from_str::<serde_json::Value>(&frame.json).unwrap()["since_unix_millis"].clone()
        };
        assert!(
            since(&frames[0]).is_u64() && since(&frames[0]) == since(&frames[2]),
            "since when, not until"
        );
        let hello = opened(&hub).await.hello;
        let hello: serde_json::Value = serde_json::from_str(&hello.json).unwrap();
        assert_eq!(hello["now"]["letters"], "AAAAAAAAA");
        assert_eq!(hello["trouble"]["why"], "the metadata leader cannot be reached: it was made so");
        assert!(hub.ask(Order::Status).await.unwrap().is_err());
        leader.be_reachable(true);
        pass(2).await;
        let hello: serde_json::Value = serde_json::from_str(&opened(&hub).await.hello.json).unwrap();
        assert!(hello["trouble"].is_null());
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_a_silent_cluster_waits_once_whoever_else_asks() {
        let leader = Leader::new(status(3));
        leader.be_reachable(false);
        leader.answers_take(Duration::from_secs(5));
        let hub = Hub::start(leader.clone(), Facts::default());
        let ask = || {
            let hub = hub.clone();
            tokio::spawn(async move { hub.ask(Order::Status).await })
        };
        let begun = Instant::now();
        let all: Vec<_> = (0..20).map(|_| ask()).collect();
        for asked in all {
            assert!(asked.await.unwrap().unwrap().is_err());
        }
        assert_eq!((begun.elapsed().as_secs(), leader.asked("status")), (5, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replay_delays_no_poll_and_replays_run_one_at_a_time() {
        let leader = Leader::new(status(9));
        leader.live_a_day(1_795_671_376_239);
        leader.replays_take(Duration::from_secs(20));
        let hub = Hub::start(leader.clone(), Facts::default());
        let page = opened(&hub).await;
        pass(2).await;
        let wish = WhatIf { servers: 9, g_min: 1, short_goal: 0.01, cycles_per_day: 24.0 };
        let play = || {
            let hub = hub.clone();
            tokio::spawn(async move { hub.ask(|answer| Order::WhatIf(wish, answer)).await })
        };
        let (first, given_up, last) = (play(), play(), play());
        pass(1).await;
        given_up.abort();
        let before = leader.asked("status");
        pass(15).await;
        assert!(leader.asked("status") >= before + 14, "polls continue");
        assert!(hub.ask(Order::Status).await.unwrap().is_ok());
        let begun = Instant::now();
        assert!(first.await.unwrap().unwrap().is_ok() && last.await.unwrap().unwrap().is_ok());
        let waited = begun.elapsed().as_secs();
        assert!((20..30).contains(&waited), "one after the other, and not the one given up: {waited} s");
        drop(page);
    }

    #[tokio::test(start_paused = true)]
    async fn an_act_is_the_request_of_the_command_line_and_is_seen_at_once() {
        let leader = Leader::new(status(9));
        let hub = Hub::start(leader.clone(), Facts::default());
        let act = Act::GearSet(ebb_types::GearWish::Gear(1));
        hub.ask(|answer| Order::Act(act, answer)).await.unwrap().unwrap();
        assert_eq!(leader.last_act(), Some(act.request()));
        leader.refuse("no such gear");
        let refused = hub.ask(|answer| Order::Act(act, answer)).await.unwrap();
        assert_eq!(refused, Err(Refusal::Refused("no such gear".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_falls_behind_is_told() {
        let leader = Leader::new(status(2));
        let hub = Hub::start(leader.clone(), Facts::default());
        let mut page = opened(&hub).await;
        pass(60).await;
        assert!(matches!(page.frames.recv().await, Err(broadcast::error::RecvError::Lagged(_))));
        assert_eq!(hub.ask(Order::Hello).await.unwrap().name, "hello");
    }
}
