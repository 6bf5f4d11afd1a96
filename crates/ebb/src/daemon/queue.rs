//! The queue of a driver. One task owns all that changes and takes from here what happened; connections and timers put
//! it in, and have nothing else of the driver's. So no two of them can want the same at once, and what is true between
//! two events is said in one place.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// The end that connections and timers have. It has no bound of its own: who reads from a socket bounds what it gives.
pub struct Queue<E>(UnboundedSender<E>);

impl<E> Queue<E> {
    pub fn new() -> (Queue<E>, UnboundedReceiver<E>) {
        let (sender, receiver) = unbounded_channel();
        (Queue(sender), receiver)
    }

    pub fn give(&self, event: E) {
        // When the driver has ended, so do all others.
        let _ = self.0.send(event);
    }

    /// Waits for the driver's answer.
    pub async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> E) -> T {
        let (answer, answered) = oneshot::channel();
        self.give(question(answer));
        match answered.await {
            Ok(answer) => answer,
            // The driver has ended, and this task is about to.
            Err(_) => std::future::pending().await,
        }
    }
}
