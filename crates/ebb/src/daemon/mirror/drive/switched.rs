//! A disk whose speed a switch changes: on a thread of its own, because a command to a drive, or a program, blocks.
//!
//! Switches have time limits. Where even the kernel does not return, the change counts as failed after some time more,
//! and the next one fails at once for as long as the thread has not returned.

use super::busy::Busy;
use ebb_mirror::{Side, Speed};
use ebb_power::disk::{About, DiskError, DiskSwitch};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot::{Receiver, channel};
use tokio::time::{Sleep, sleep};

type Switch = Box<dyn DiskSwitch + Send>;

/// Where the switch is.
enum Hand {
    Free(Switch),
    /// On the thread that carries out the last change.
    Lent(Receiver<(Switch, Result<(), DiskError>)>),
}

pub struct Switched {
    side: Side,
    pub busy: Busy,
    pub about: About,
    hand: Option<Hand>,
    /// The change that is awaited, and until when.
    change: Option<(Speed, Pin<Box<Sleep>>)>,
    limit: Duration,
}

impl Switched {
    /// `limit`: how long a change may take, the switch's own time limits included.
    pub fn new(side: Side, switch: Switch, limit: Duration) -> Switched {
        let about = switch.about().clone();
        Switched { side, busy: Busy::default(), about, hand: Some(Hand::Free(switch)), change: None, limit }
    }

    /// [`Switched::poll`] returns when it has ended.
    pub fn change(&mut self, to: Speed) {
        let switch = match self.hand.take().expect("the switch is somewhere") {
            Hand::Free(switch) => Some(switch),
            Hand::Lent(mut last) => match last.try_recv() {
                Ok((switch, _)) => Some(switch),
                Err(_) => {
                    self.hand = Some(Hand::Lent(last));
                    None
                }
            },
        };
        let limit = if switch.is_some() { self.limit } else { Duration::ZERO };
        self.change = Some((to, Box::pin(sleep(limit))));
        let Some(mut switch) = switch else { return };
        let (send, receive) = channel();
        self.hand = Some(Hand::Lent(receive));
        std::thread::spawn(move || {
            let ended = match to {
                Speed::Low => switch.go_low(),
                Speed::High => switch.go_high(),
            };
            // The process may be ending.
            let _ = send.send((switch, ended));
        });
    }

    /// Whether the disk has changed, once that is known.
    pub fn poll(&mut self, context: &mut Context) -> Poll<bool> {
        let Some((to, limit)) = &mut self.change else { return Poll::Pending };
        let Some(Hand::Lent(thread)) = &mut self.hand else { unreachable!("a change has the switch") };
        let (why, switch) = match Pin::new(thread).poll(context) {
            Poll::Ready(Ok((switch, Ok(())))) => (None, Some(switch)),
            Poll::Ready(Ok((switch, Err(error)))) => (Some(error.to_string()), Some(switch)),
            Poll::Ready(Err(_)) => unreachable!("a switch does not panic"),
            Poll::Pending if limit.as_mut().poll(context).is_ready() => {
                (Some(format!("the kernel has not returned within {:?}", self.limit)), None)
            }
            Poll::Pending => return Poll::Pending,
        };
        if let Some(why) = &why {
            let speed = if *to == Speed::Low { "low" } else { "high" };
            tracing::warn!("disk {:?} did not change to {speed} speed: {why}", self.side);
        }
        self.change = None;
        self.hand = switch.map(Hand::Free).or(self.hand.take());
        Poll::Ready(why.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_power::disk::Change;
    use std::future::poll_fn;
    use std::sync::mpsc::{Receiver as Steps, Sender, channel as steps};

    /// Ends when the test lets it.
    struct Fake {
        about: About,
        ends: Steps<bool>,
    }

    impl Fake {
        fn end(&self) -> Result<(), DiskError> {
            match self.ends.recv() {
                Ok(true) => Ok(()),
                _ => Err(DiskError::OneSpeed { path: "/dev/x".into(), why: "it is a fake".to_owned() }),
            }
        }
    }

    impl DiskSwitch for Fake {
        fn go_low(&mut self) -> Result<(), DiskError> {
            self.end()
        }

        fn go_high(&mut self) -> Result<(), DiskError> {
            self.end()
        }

        fn about(&self) -> &About {
            &self.about
        }
    }

    fn switched(limit: Duration) -> (Switched, Sender<bool>) {
        let (send, ends) = steps();
        let change = Change { down: Duration::ZERO, up: Duration::ZERO };
        let about = About { what: "a fake".to_owned(), slowdown: 1.0, rated: None, change };
        (Switched::new(Side::A, Box::new(Fake { about, ends }), limit), send)
    }

    async fn changed(disk: &mut Switched) -> bool {
        poll_fn(|context| disk.poll(context)).await
    }

    #[tokio::test]
    async fn a_change_ends_when_the_switch_does() {
        let (mut disk, ends) = switched(Duration::from_secs(3600));
        for wanted in [true, false, true] {
            disk.change(Speed::Low);
            ends.send(wanted).unwrap();
            assert_eq!(changed(&mut disk).await, wanted);
        }
    }

    #[tokio::test]
    async fn a_switch_that_hangs_fails_until_it_returns() {
        let (mut disk, ends) = switched(Duration::from_millis(1));
        disk.change(Speed::Low);
        assert!(!changed(&mut disk).await, "it hangs");
        disk.change(Speed::High);
        assert!(!changed(&mut disk).await, "it still does");
        disk.limit = Duration::from_secs(3600);
        ends.send(true).unwrap();
        ends.send(true).unwrap();
        // The thread needs some time to return.
        loop {
            disk.change(Speed::High);
            if changed(&mut disk).await {
                break;
            }
        }
    }
}
