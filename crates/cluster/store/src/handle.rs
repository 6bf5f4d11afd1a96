//! The store on its own I/O thread. The thread takes whatever was queued while it was busy, so that under load many
//! applies share one sync and none waits for a batch to fill. It is woken when the caller has submitted all that it
//! has at the time, so that these share one too. Completions of a batch are delivered together, so that the receiver is
//! woken once. When idle it records the segment lengths once, then sleeps without a timer. What fails for want of
//! descriptors or memory it tries again, and nothing overtakes that.

use crate::core::{BATCH_BYTES, Shared, StoreCore, not_now};
use crate::query::{Piece, ReadPlan, check_range};
use crate::{Completion, Op, ReadBlocks, StoreError, Token};
use ebb_types::StoreFigures;
use ebb_types::{ChunkId, GroupId, RECORD_BLOCKS_MAX, Role};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// When nothing was submitted for this long, deferred work runs unpaced.
const LULL: Duration = Duration::from_millis(5);
/// Blocks of reads answered together: bounds memory.
const READ_BLOCKS: u32 = 512;

/// Pause before an operation that failed for a shortage is tried again.
const SHORTAGE: Duration = Duration::from_millis(50);
/// When nothing was submitted for this long, the store comes to rest.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Queue {
    ops: Vec<(Token, Op)>,
    /// The I/O thread waits.
    idle: bool,
    stop: bool,
}

#[derive(Default)]
struct Inbox {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Payload bytes submitted and not completed.
    pending: AtomicUsize,
    /// Operations submitted and not completed.
    open: AtomicUsize,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nothing panics under this lock")
    }
}

/// Submits operations to a store's I/O thread. Dropping it waits until everything submitted is done.
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

    /// Queues an operation, for [`StoreHandle::wake`].
    pub fn submit(&self, token: Token, op: Op) {
        self.inbox.pending.fetch_add(payload_bytes(&op), Ordering::Relaxed);
        self.inbox.open.fetch_add(1, Ordering::Relaxed);
        self.inbox.lock().ops.push((token, op));
    }

    /// Has the I/O thread take what is queued, if it waits.
    pub fn wake(&self) {
        let mut queue = self.inbox.lock();
        if !queue.ops.is_empty() && std::mem::take(&mut queue.idle) {
            drop(queue);
            self.inbox.wake.notify_one();
        }
    }

    /// Operations that the I/O thread has not started yet.
    pub fn queued(&self) -> usize {
        self.inbox.lock().ops.len()
    }

    /// Payload bytes submitted whose completion was not delivered: the store holds them in memory. Callers must check
    /// this before they submit more: nothing else bounds it.
    pub fn pending_bytes(&self) -> usize {
        self.inbox.pending.load(Ordering::Relaxed)
    }

    /// Whether the I/O thread has anything to do, and how many steps of it have ended: a disk that hangs ends none.
    /// The end of any operation is one, also of those that call the disk once or not at all: who submits one before
    /// each look would find a busy store that never moves.
    pub fn moves(&self) -> (bool, u64) {
        (self.inbox.open.load(Ordering::Relaxed) > 0, self.shared.moves.load(Ordering::Relaxed))
    }

    pub fn figures(&self) -> StoreFigures {
        self.shared.figures()
    }

    /// Reads blocks on this thread if everything needed is in memory. `None`: it is not, or something is wrong; submit
    /// an [`Op::Read`].
    pub fn try_read(
        &self,
        role: Role,
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
            let plan = ReadPlan::new(&mut index, role, group, chunk, first, count).ok()?;
            let files: Result<Vec<_>, _> = plan.pieces.iter().map(|piece| index.file(piece.file)).collect();
            (plan, files.ok()?)
        };
        // The lock is released. A newer version may overwrite a piece now: then it fails its checksum, and the I/O
        // thread, which does all writing, serves the read.
        let mut files = files.iter();
        let read = |piece: &Piece, out: &mut Vec<u8>| {
            let file = files.next().expect("one file per piece");
            match file.read_cached(out, piece.len(), piece.offset()) {
                Ok(true) => Ok(()),
                _ => Err(StoreError::Malformed("not in memory")),
            }
        };
        plan.run(group, chunk, first, read).ok()
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.inbox.lock().stop = true;
        self.inbox.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the server notices by the missing completions.
            let _ = thread.join();
        }
    }
}

fn payload_bytes(op: &Op) -> usize {
    match op {
        Op::Apply { payload, .. } => payload.len(),
        _ => 0,
    }
}

fn run(mut core: StoreCore, inbox: &Inbox, mut deliver: impl FnMut(Vec<Completion>)) {
    let mut unsettled = false;
    // Nothing was written since the store came to rest.
    let mut rests = false;
    loop {
        let ops = match wait(&mut core, inbox, unsettled, &mut rests) {
            Waited::Ops(ops) => ops,
            Waited::Lull => {
                unsettled = core.settle();
                rests = false;
                continue;
            }
            Waited::Stop => return,
        };
        let mut answer = |core: &mut StoreCore, ops| answer(core, inbox, ops, &mut deliver);
        // Reads are quick, writes wait for a sync, the others may take long: no operation waits for a slower kind.
        let (reads, others): (Vec<_>, Vec<_>) = ops.into_iter().partition(|(_, op)| is_read(op));
        let (writes, slow): (Vec<_>, Vec<_>) = others.into_iter().partition(|(_, op)| op.is_write());
        rests &= writes.is_empty() && slow.is_empty();
        answer_reads(reads, |ops| answer(&mut core, ops));
        for batch in batches(writes) {
            answer(&mut core, batch);
            unsettled = core.settle_paced();
            let reads = inbox.lock().ops.extract_if(.., |(_, op)| is_read(op)).collect();
            answer_reads(reads, |ops| answer(&mut core, ops));
        }
        for op in slow {
            answer(&mut core, vec![op]);
        }
        unsettled |= core.settle_paced();
    }
}

/// What the store's thread has waited for.
enum Waited {
    Ops(Vec<(Token, Op)>),
    /// There was nothing to do for a moment: deferred work may go on.
    Lull,
    Stop,
}

/// Waits for operations. Comes to rest meanwhile, if nothing is written for long.
fn wait(core: &mut StoreCore, inbox: &Inbox, unsettled: bool, rests: &mut bool) -> Waited {
    let mut queue = inbox.lock();
    while queue.ops.is_empty() && !queue.stop {
        queue.idle = true;
        if *rests && !unsettled {
            queue = inbox.wake.wait(queue).expect("nothing panics under this lock");
            continue;
        }
        let pause = if unsettled { LULL } else { QUIET };
        let waited = inbox.wake.wait_timeout(queue, pause).expect("nothing panics under this lock");
        queue = waited.0;
        if !waited.1.timed_out() || !queue.ops.is_empty() || queue.stop {
            continue;
        }
        if unsettled {
            queue.idle = false;
            return Waited::Lull;
        }
        drop(queue);
        // A failure poisons the store, and shows at the next operation.
        let _ = core.rest();
        *rests = true;
        queue = inbox.lock();
    }
    queue.idle = false;
    match queue.ops.is_empty() {
        true => Waited::Stop,
        false => Waited::Ops(std::mem::take(&mut queue.ops)),
    }
}

/// Carries out operations, again after a pause those that failed for a shortage, and delivers their completions.
fn answer(
    core: &mut StoreCore,
    inbox: &Inbox,
    mut ops: Vec<(Token, Op)>,
    deliver: &mut impl FnMut(Vec<Completion>),
) {
    while !ops.is_empty() {
        let mut done = Vec::with_capacity(ops.len());
        core.execute(ops.clone(), &mut done);
        let again = put_off(core, inbox, &mut ops, &mut done);
        if !done.is_empty() {
            core.shared.moved();
        }
        debug_assert_eq!(done.len(), ops.len(), "each has one completion");
        inbox.pending.fetch_sub(ops.iter().map(|(_, op)| payload_bytes(op)).sum(), Ordering::Relaxed);
        let open = inbox.open.fetch_sub(ops.len(), Ordering::Relaxed);
        debug_assert!(open >= ops.len(), "no operation ends twice");
        if !done.is_empty() {
            deliver(done);
        }
        ops = again;
        if !ops.is_empty() {
            let pause = |queue: &mut Queue| !queue.stop;
            drop(inbox.wake.wait_timeout_while(inbox.lock(), SHORTAGE, pause));
        }
    }
}

/// Takes out the operations that failed for a shortage, and their completions. When the store is to end, they fail like
/// others.
fn put_off(
    core: &StoreCore,
    inbox: &Inbox,
    ops: &mut Vec<(Token, Op)>,
    done: &mut Vec<Completion>,
) -> Vec<(Token, Op)> {
    let short = not_now(done);
    let errno = if let Some(StoreError::NotNow { errno }) = short { errno } else { 0 };
    core.shared.short.store(errno, Ordering::Relaxed);
    if errno == 0 || inbox.lock().stop {
        return Vec::new();
    }
    let is_short = |c: &mut Completion| not_now(std::slice::from_ref(c)).is_some();
    let again: BTreeSet<Token> = done.extract_if(.., is_short).map(|c| c.token).collect();
    ops.extract_if(.., |(token, _)| again.contains(token)).collect()
}

fn is_read(op: &Op) -> bool {
    matches!(op, Op::Read { .. })
}

/// Answers reads in batches, to bound memory.
fn answer_reads(reads: Vec<(Token, Op)>, mut answer: impl FnMut(Vec<(Token, Op)>)) {
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
}

/// Splits writes into group commits, so that the first ones do not wait for the last.
fn batches(writes: Vec<(Token, Op)>) -> Vec<Vec<(Token, Op)>> {
    let mut all: Vec<Vec<(Token, Op)>> = Vec::new();
    let mut bytes = 0;
    for (token, op) in writes {
        let payload = payload_bytes(&op);
        match all.last_mut() {
            Some(batch) if bytes < BATCH_BYTES => {
                batch.push((token, op));
                bytes += payload;
            }
            _ => {
                all.push(vec![(token, op)]);
                bytes = payload;
            }
        }
    }
    all
}
