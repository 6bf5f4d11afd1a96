//! Block devices at both ends: disks below, NBD sockets above. An edge: it moves bytes and decides nothing.
//!
//! [`DiskFile`] is an open file or device, and a [`Ring`] carries out the operations of several of them. [`serve`]
//! accepts NBD clients and hands their requests to a [`Backend`], which answers through [`Replies`], later and in any
//! order. All of it runs on one thread with a tokio runtime (`current_thread`, in a `LocalSet`), so that a single state
//! machine can sit in between without a lock, a channel or a task per request: a wake-up reads many requests, enters
//! the kernel once for their disk operations, and writes many replies.

mod connection;
mod disk;
mod nbd;
mod replies;
mod ring;
mod state;
mod threads;
mod work;

pub use disk::{Caching, DiskFile, OpenError};
pub use nbd::{Bounds, Listener, serve};
pub use replies::{Backend, Replies, RequestId};
pub use ring::{Completion, Ring};
