//! The store on an I/O thread of its own. The thread takes whatever has been queued while it was at work, so that under load many
//! applies share one sync without anyone waiting for a batch to fill; completions of a batch are delivered together, so
//! that the receiver is woken once. Without work it notes once what was written, and sleeps, with no timer.

use crate::core::{Shared, StoreCore};
use crate::query::{Piece, ReadFault, ReadPlan, check_range};
use crate::{Completion, Figures, Op, ReadBlocks, StoreError, Token};
use ebb_types::{ChunkId, GroupId, RECORD_BLOCKS_MAX, Space};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Reads answered together: bounds what is held in memory.
const READ_BLOCKS: u32 = 512;

/// A store that was given nothing for this long rests.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Queue {
    ops: Vec<(Token, Op)>,
    /// The I/O thread sleeps.
    idle: bool,
    stop: bool,
}

#[derive(Default)]
struct Inbox {
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// Hands operations to a store's I/O thread. Dropping it waits until all that was handed in is done.
pub struct StoreHandle {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl StoreHandle {
    /// Starts the I/O thread. `deliver` is called on it, with at least one completion.
    pub fn start(
        core: StoreCore,
        deliver: impl FnMut(Vec<Completion>) + Send + 'static,
    ) -> std::io::Result<StoreHandle> {
        let shared = core.shared.clone();
        let inbox = Arc::new(Inbox::default());
        let for_thread = inbox.clone();
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || run(core, &for_thread, deliver))?;
        Ok(StoreHandle { shared, inbox, thread: Some(thread) })
    }

    /// Queues an operation.
    pub fn submit(&self, token: Token, op: Op) {
        let mut queue = self.inbox.queue.lock().expect("nothing panics under this lock");
        queue.ops.push((token, op));
        if std::mem::take(&mut queue.idle) {
            drop(queue);
            self.inbox.wake.notify_one();
        }
    }

    /// Operations that the I/O thread has not taken up yet.
    pub fn queued(&self) -> usize {
        self.inbox.queue.lock().expect("nothing panics under this lock").ops.len()
    }

    pub fn figures(&self) -> Figures {
        self.shared.figures()
    }

    /// Reads blocks here and now if all that is needed is in memory. `None`: not so, or something is wrong; submit a
    /// [`Op::Read`].
    pub fn try_read(
        &self,
        space: Space,
        group: GroupId,
        chunk: ChunkId,
        first: u32,
        count: u32,
    ) -> Option<ReadBlocks> {
        if self.shared.poisoned.load(Ordering::Relaxed) {
            return None;
        }
        check_range(first, count, RECORD_BLOCKS_MAX).ok()?;
        let (plan, files) = {
            let mut index = self.shared.index();
            let plan = ReadPlan::new(&mut index, space, group, chunk, first, count).ok()?;
            let files: Result<Vec<_>, _> = plan.pieces.iter().map(|piece| index.file(piece.file)).collect();
            (plan, files.ok()?)
        };
        // The lock is open again. A piece may be overwritten by a newer version now: then it fails its checksum, and the
        // I/O thread, which does all writing, gives the answer.
        let mut files = files.iter();
        let read = |piece: &Piece, out: &mut Vec<u8>| {
            let file = files.next().expect("one file per piece");
            match file.read_cached(out, piece.len(), piece.offset()) {
                Ok(true) => Ok(()),
                _ => Err(ReadFault::Failed(StoreError::Malformed("not in memory"))),
            }
        };
        plan.run(group, chunk, first, read).ok()
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.inbox.queue.lock().expect("nothing panics under this lock").stop = true;
        self.inbox.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the server finds out by the completions that do not come.
            let _ = thread.join();
        }
    }
}

fn run(mut core: StoreCore, inbox: &Inbox, mut deliver: impl FnMut(Vec<Completion>)) {
    let mut unsettled = core.settle();
    // Nothing was written since the store came to rest.
    let mut rests = false;
    loop {
        let ops = {
            let mut queue = inbox.queue.lock().expect("nothing panics under this lock");
            while queue.ops.is_empty() && !queue.stop && !unsettled {
                queue.idle = true;
                if rests {
                    queue = inbox.wake.wait(queue).expect("nothing panics under this lock");
                    continue;
                }
                let waited = inbox.wake.wait_timeout(queue, QUIET).expect("nothing panics under this lock");
                queue = waited.0;
                if waited.1.timed_out() && queue.ops.is_empty() && !queue.stop {
                    drop(queue);
                    // A failure poisons the store, and shows at the next operation.
                    let _ = core.rest();
                    rests = true;
                    queue = inbox.queue.lock().expect("nothing panics under this lock");
                }
            }
            queue.idle = false;
            if queue.ops.is_empty() && queue.stop {
                return;
            }
            std::mem::take(&mut queue.ops)
        };
        // Reads are quick, writes wait for a sync, the others may take long: nobody waits for a slower kind.
        let (reads, others): (Vec<_>, Vec<_>) =
            ops.into_iter().partition(|(_, op)| matches!(op, Op::Read { .. }));
        let (writes, slow): (Vec<_>, Vec<_>) = others.into_iter().partition(|(_, op)| op.is_write());
        rests &= writes.is_empty() && slow.is_empty();
        let mut answer = |ops: Vec<(Token, Op)>| {
            if !ops.is_empty() {
                let mut done = Vec::with_capacity(ops.len());
                core.execute(ops, &mut done);
                deliver(done);
            }
        };
        let (mut some, mut blocks) = (Vec::new(), 0u32);
        for (token, op) in reads {
            let Op::Read { count, .. } = op else { unreachable!("only reads were picked") };
            blocks = count.saturating_add(blocks);
            some.push((token, op));
            if blocks >= READ_BLOCKS {
                answer(std::mem::take(&mut some));
                blocks = 0;
            }
        }
        answer(some);
        answer(writes);
        for op in slow {
            answer(vec![op]);
        }
        unsettled = core.settle();
    }
}
