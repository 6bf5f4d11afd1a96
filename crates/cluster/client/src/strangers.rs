//! Callers that have not proved who they are. Anyone may call, and each costs a descriptor: when there are too many,
//! the one that has waited longest makes room for the next. One that knows its key needs a few round trips.

use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Most of them, and at most this share of the process's descriptors: the others are for stores and known callers.
const STRANGERS_MAX: u64 = 128;
const SHARE_OF_FILES: u64 = 8;

/// All of one listener.
#[derive(Debug)]
pub(crate) struct Strangers {
    places: Arc<Semaphore>,
    /// Those that have a place, in order of arrival.
    present: Mutex<VecDeque<Weak<Notify>>>,
}

/// One of them, for as long as it is a stranger.
#[derive(Debug)]
pub(crate) struct Stranger {
    give_way: Arc<Notify>,
    _place: OwnedSemaphorePermit,
}

impl Strangers {
    pub fn new() -> Strangers {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Strangers::at_most((files / SHARE_OF_FILES).clamp(1, STRANGERS_MAX) as usize)
    }

    pub fn at_most(most: usize) -> Strangers {
        assert!(most > 0, "without a place no stranger is let in");
        Strangers { places: Arc::new(Semaphore::new(most)), present: Mutex::default() }
    }

    /// Waits until there is a place.
    pub async fn admit(&self) -> Stranger {
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                self.make_room();
                self.places.clone().acquire_owned().await.expect("it is never closed")
            }
        };
        let give_way = Arc::new(Notify::new());
        let mut present = self.present();
        present.retain(|one| one.strong_count() > 0);
        present.push_back(Arc::downgrade(&give_way));
        Stranger { give_way, _place: place }
    }

    fn present(&self) -> std::sync::MutexGuard<'_, VecDeque<Weak<Notify>>> {
        self.present.lock().expect("nothing panics under this lock")
    }

    fn make_room(&self) {
        let mut present = self.present();
        while let Some(oldest) = present.pop_front() {
            if let Some(oldest) = oldest.upgrade() {
                return oldest.notify_one();
            }
        }
    }
}

impl Stranger {
    /// Returns when it is to make room.
    pub async fn gives_way(&self) {
        self.give_way.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_waited_longest_makes_room() {
        let strangers = Strangers::at_most(2);
        let first = strangers.admit().await;
        let known = strangers.admit().await;
        drop(known);
        let second = strangers.admit().await;
        let third = async {
            first.gives_way().await;
            drop(first);
        };
        let (third, ()) = tokio::join!(strangers.admit(), third);
        let fourth = async {
            second.gives_way().await;
            drop(second);
        };
        let (_fourth, ()) = tokio::join!(strangers.admit(), fourth);
        drop(third);
        assert_eq!(strangers.places.available_permits(), 1);
    }
}
