//! Requests that wait for their turns, and run to their ends.

use crate::order::{Doing, Order};
use ebb_client::bug;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

#[derive(Debug, Default)]
struct State {
    order: Order,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The turns of a volume's requests. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<State>>);

/// A request's place in the order. Dropped: the request has ended.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    number: u64,
    /// Absent: it has come.
    comes: Option<oneshot::Receiver<()>>,
}

impl Turns {
    /// In order of arrival: of these calls.
    pub fn take(&self, doing: Doing) -> Turn {
        let mut state = self.0.lock().expect("nothing panics under this lock");
        let (number, come) = state.order.arrive(doing);
        let comes = (!come).then(|| {
            let (sender, comes) = oneshot::channel();
            state.waiting.insert(number, sender);
            comes
        });
        Turn { turns: self.clone(), number, comes }
    }
}

impl Turn {
    pub async fn come(&mut self) {
        if let Some(comes) = self.comes.take()
            && comes.await.is_err()
        {
            bug("a request that waits for its turn was forgotten");
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.0.lock().expect("nothing panics under this lock");
        let State { order, waiting } = &mut *state;
        waiting.remove(&self.number);
        let mut come = Vec::new();
        order.end(self.number, &mut come);
        for number in come {
            match waiting.remove(&number) {
                // A request that gave up meanwhile ends its turn itself.
                Some(sender) => _ = sender.send(()),
                None => bug("the turn came of a request that did not wait for it"),
            }
        }
    }
}
