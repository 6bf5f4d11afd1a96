//! Group commit: requests that arrive while others are in flight are carried out together.
//!
//! There is no timer. The first request starts at once; those that arrive meanwhile form the next batch. So a lone
//! request pays nothing, and under load one round trip and one sync carry many requests.

use futures_util::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Limits of a batcher.
pub struct Limits {
    /// Batches in flight at once.
    pub running: usize,
    /// Requests in one batch.
    pub items: usize,
    /// Weight of one batch; a single request may be heavier.
    pub weight: usize,
}

type Carry<I, O> = Box<dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync>;
type Abandon<I> = Box<dyn Fn(I) + Send + Sync>;

pub struct Batcher<I, O> {
    queue: Mutex<Queue<I, O>>,
    limits: Limits,
    weigh: fn(&I) -> usize,
    carry: Carry<I, O>,
    abandon: Abandon<I>,
}

struct Queue<I, O> {
    waiting: VecDeque<(I, oneshot::Sender<O>)>,
    running: usize,
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// `carry` returns the outcome of every request of a batch, in order. `abandon` gets what is not begun.
    pub fn new(
        limits: Limits,
        weigh: fn(&I) -> usize,
        carry: impl Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync + 'static,
        abandon: impl Fn(I) + Send + Sync + 'static,
    ) -> Arc<Self> {
        assert!(limits.running > 0 && limits.items > 0, "nothing would ever be carried out");
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), running: 0 });
        let (carry, abandon) = (Box::new(carry), Box::new(abandon));
        Arc::new(Batcher { queue, limits, weigh, carry, abandon })
    }

    /// Submits a request and waits for its outcome. Once begun it is carried out, even if its caller no longer waits;
    /// one whose caller has gone before is not begun: its client may have sent it again elsewhere, and more since.
    pub async fn submit(self: &Arc<Self>, item: I) -> O {
        let (answer, answered) = oneshot::channel();
        let start = {
            let mut queue = self.queue.lock().expect("no panic under this lock");
            queue.waiting.push_back((item, answer));
            let start = queue.running < self.limits.running;
            queue.running += usize::from(start);
            debug_assert!(queue.running > 0, "someone carries it out");
            debug_assert!(queue.running <= self.limits.running, "no more batches are under way than may be");
            start
        };
        if start {
            tokio::spawn(self.clone().run());
        }
        answered.await.expect("every request of a batch is answered")
    }

    async fn run(self: Arc<Self>) {
        loop {
            let (items, answers) = {
                let mut queue = self.queue.lock().expect("no panic under this lock");
                let batch = self.next_batch(&mut queue.waiting);
                if batch.0.is_empty() {
                    queue.running -= 1;
                    return;
                }
                batch
            };
            let outcomes = (self.carry)(items).await;
            assert_eq!(outcomes.len(), answers.len(), "one answer per request");
            for (answer, outcome) in answers.into_iter().zip(outcomes) {
                // Fails only if the caller no longer waits.
                let _ = answer.send(outcome);
            }
        }
    }

    fn next_batch(
        &self,
        waiting: &mut VecDeque<(I, oneshot::Sender<O>)>,
    ) -> (Vec<I>, Vec<oneshot::Sender<O>>) {
        let (mut items, mut answers, mut weight) = (Vec::new(), Vec::new(), 0);
        while items.len() < self.limits.items {
            if let Some((item, _)) = waiting.pop_front_if(|(_, answer)| answer.is_closed()) {
                (self.abandon)(item);
                continue;
            }
            let Some((item, _)) = waiting.front() else { break };
            weight += (self.weigh)(item);
            if weight > self.limits.weight && !items.is_empty() {
                break;
            }
            let (item, answer) = waiting.pop_front().expect("it has a front");
            items.push(item);
            answers.push(answer);
        }
        debug_assert_eq!(items.len(), answers.len(), "a request gets its own answer");
        debug_assert!(
            items.len() <= 1 || items.iter().map(self.weigh).sum::<usize>() <= self.limits.weight,
            "a batch fits one message"
        );
        (items, answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn requests_that_come_while_a_batch_is_under_way_form_the_next_within_the_limits() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let limits = Limits { running: 1, items: 4, weight: 10 };
        let batcher = Batcher::new(
            limits,
            |n: &usize| *n,
            move |items: Vec<usize>| {
                seen.lock().unwrap().push(items.clone());
                async move { items.into_iter().map(|n| n * 2).collect() }.boxed()
            },
            drop,
        );
        let requests = [1, 1, 1, 1, 1, 6, 5, 20, 1].map(|n| batcher.submit(n));
        let answers = futures_util::future::join_all(requests).await;
        assert_eq!(answers, [2, 2, 2, 2, 2, 12, 10, 40, 2]);
        let expected: [&[usize]; 5] = [&[1, 1, 1, 1], &[1, 6], &[5], &[20], &[1]];
        assert_eq!(*sizes.lock().unwrap(), expected);
    }

    #[tokio::test]
    async fn what_its_caller_has_left_before_it_was_begun_is_abandoned() {
        let (first, begins) = oneshot::channel::<()>();
        let begins = Mutex::new(Some(begins));
        let abandoned = Arc::new(Mutex::new(Vec::new()));
        let left = abandoned.clone();
        let limits = Limits { running: 1, items: 4, weight: 10 };
        let batcher = Batcher::new(
            limits,
            |_| 1,
            move |items: Vec<usize>| {
                let begins = begins.lock().unwrap().take();
                async move {
                    if let Some(begins) = begins {
                        begins.await.unwrap();
                    }
                    items
                }
                .boxed()
            },
            move |item| left.lock().unwrap().push(item),
        );
        let (mut one, mut two, mut three) =
            (Box::pin(batcher.submit(1)), Box::pin(batcher.submit(2)), Box::pin(batcher.submit(3)));
        // The first is begun, and the others wait behind it.
        assert!((&mut one).now_or_never().is_none());
        tokio::task::yield_now().await;
        assert!((&mut two).now_or_never().is_none() && (&mut three).now_or_never().is_none());
        drop((one, two));
        first.send(()).unwrap();
        assert_eq!(three.await, 3);
        assert_eq!(*abandoned.lock().unwrap(), [2]);
    }
}
