//! Chooses how the GPU rings a controller's doorbells, by a test.
//!
//! The test finds out whether the GPU's stores to both doorbells of a queue arrive, with commands through a queue of its
//! own, more than the completion ring has entries: without its head the controller stops.
//!
//! The rings are in host memory and the CPU polls for completions, so that only the doorbells are under test. Without
//! a completion, the CPU rings the same values: an answer then means that the doorbells' mapping is at fault, and silence
//! that the controller is. If mapped doorbells fail the test, the proxy rings, and the reason is kept.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use adit_driver::spec::{Cid, DataPointer, Iova, Lba, LbaCount, Sqe};
use adit_driver::sys::Atomics;
use adit_driver::{Controller, Namespace};

use super::doorbell::{Doorbells, WHAT};
use super::proxy::ProxyThread;
use crate::cuda::program::{Kernel, Program};
use crate::cuda::{Gpu, PinnedMemory, Priority, Stream};
use crate::error::{Error, Result};
use crate::options::{DoorbellChoice, Place};
use crate::reach::paths::HostBlock;
use crate::reach::queue::Queue;

const DEPTH: u32 = 4;
/// Bytes that the command reads at most: one LBA.
const DATA_BYTES: u64 = 4096;
/// Time limit for the GPU to write one word, and for the controller to answer the CPU.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for the controller to answer the GPU. Short, because every start waits for it where stores are lost.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// Silences of the controller before stores count as lost: a stalled machine can cause one.
const SILENCES: u32 = 2;
/// DW3 bit 16 of a completion, set in the first lap.
const PHASE: u32 = 1 << 16;

/// The choice of [`choose`].
#[derive(Clone, Debug)]
pub struct Chosen {
    pub doorbells: Doorbells,
    /// Why the GPU does not ring itself, if that was tried.
    pub why_not_mapped: Option<Error>,
}

/// Chooses the doorbells of a controller's queues. [`DoorbellChoice::Auto`] maps them if the self-test passes, and
/// falls back to `proxy`, which is called only then.
///
/// # Errors
/// With [`DoorbellChoice::Mapped`], why that does not work; the proxy's errors; the driver's if the controller does
/// not answer the CPU either.
pub fn choose(
    gpu: &Arc<Gpu>,
    program: &Program,
    (controller, namespace): (&Arc<Controller>, &Namespace),
    choice: DoorbellChoice,
    proxy: impl FnOnce() -> Result<Arc<ProxyThread>>,
) -> Result<Chosen> {
    let subject = (controller, namespace);
    or_proxy(Doorbells::mapped(gpu, controller), gpu, program, subject, choice, proxy)
}

/// Returns `mapped` if these are wanted and pass the self-test, else the proxy's, if those pass.
pub(super) fn or_proxy(
    mapped: Doorbells,
    gpu: &Arc<Gpu>,
    program: &Program,
    (controller, namespace): (&Arc<Controller>, &Namespace),
    choice: DoorbellChoice,
    proxy: impl FnOnce() -> Result<Arc<ProxyThread>>,
) -> Result<Chosen> {
    let test = |doorbells| run(gpu, program, controller, namespace, doorbells);
    let mut why_not_mapped = None;
    if choice != DoorbellChoice::Proxy {
        match test(&mapped) {
            Ok(()) => return Ok(Chosen { doorbells: mapped, why_not_mapped }),
            Err(error) if choice == DoorbellChoice::Mapped => return Err(error),
            Err(error) => why_not_mapped = Some(error),
        }
    }
    let doorbells = Doorbells::Proxy(proxy()?);
    test(&doorbells)?;
    Ok(Chosen { doorbells, why_not_mapped })
}

/// Sends reads through new queues, rung by the GPU, until one is answered or stores count as lost.
///
/// # Errors
/// [`Error::Unavailable`] or [`Error::Refused`] if the GPU's store does not arrive, with what is known; the driver's if
/// the controller does not answer the CPU either.
fn run(
    gpu: &Arc<Gpu>,
    program: &Program,
    controller: &Arc<Controller>,
    namespace: &Namespace,
    doorbells: &Doorbells,
) -> Result<()> {
    for _ in 0..SILENCES {
        if answers(gpu, program, controller, namespace, doorbells)? {
            return Ok(());
        }
    }
    Err(lost(doorbells))
}

/// Sends reads through a new queue; returns whether the controller answered the GPU, and not only the CPU.
fn answers(
    gpu: &Arc<Gpu>,
    program: &Program,
    controller: &Arc<Controller>,
    namespace: &Namespace,
    doorbells: &Doorbells,
) -> Result<bool> {
    let places = (Place::Host, Place::Host);
    let mut queue = Queue::attach(gpu, controller, namespace, DEPTH, places, doorbells)?;
    let data = HostBlock::allocate(gpu, std::slice::from_ref(controller), DATA_BYTES)?;
    let block = crate::reach::paths::Block::Host(data);
    let mapped = Arc::new(block.map(controller)?);
    queue.keep(Arc::<crate::reach::paths::Mapped>::clone(&mapped));
    let poker = Poker::new(gpu, Rc::new(queue))?;
    let queue = &poker.queue;
    let completions = queue.depths.completion;
    // One after the other, for two laps: each doorbell has to arrive.
    for sent in 0..=2 * completions {
        let next = (sent + 1) % DEPTH;
        post_read(queue, namespace, mapped.iova(), sent % DEPTH);
        let poked = poker.poke(program, queue.sq_doorbell, next);
        if poked.is_err() || !is_answered(queue, sent, controller, ANSWERED_WITHIN) {
            let (tail, head) = queue.raw.as_ref().expect("a controller's has one").doorbells();
            if sent > 0 {
                head.ring(sent % completions);
            }
            tail.ring(next);
            check_answered(queue, sent, controller)?;
            return poked.map(|()| false);
        }
        poker.poke(program, queue.cq_doorbell, (sent + 1) % completions)?;
    }
    Ok(true)
}

/// Waits for a completion of a command that the CPU rang for.
///
/// # Errors
/// [`Error::TimedOut`] if there is none.
fn check_answered(queue: &Queue, sent: u32, controller: &Controller) -> Result<()> {
    if is_answered(queue, sent, controller, PATIENCE) {
        return Ok(());
    }
    Err(Error::TimedOut {
        waited_for: format!("{} to read one LBA, rung by the CPU", controller.info().device),
        after: PATIENCE,
        fix: "reset the controller, or use another one".to_owned(),
    })
}

/// Explains that the controller answered the CPU's ring but not the GPU's.
fn lost(doorbells: &Doorbells) -> Error {
    let why = "the GPU's store was made, and the controller took no notice until the CPU rang";
    match doorbells {
        Doorbells::Mapped(_) => {
            let fix = "let the proxy ring them; check that the GPU and the device are under one root, and ACS and IOMMU settings between them";
            Error::unavailable(WHAT, why, fix)
        }
        Doorbells::Proxy(_) => {
            Error::unavailable("doorbells by proxy", why, "see what keeps the proxy's core busy")
        }
    }
}

/// Writes a read of the first LBA to an entry.
fn post_read(queue: &Queue, namespace: &Namespace, data: Iova, place: u32) {
    let dptr = DataPointer::Prp { prp1: data, prp2: Iova(0) };
    let cid = Cid(place as u16 + 1);
    let sqe = Sqe::read(namespace.nsid(), Lba(0), LbaCount::ONE).with_dptr(dptr).with_cid(cid);
    let mut dwords = sqe.to_dwords();
    dwords[12] |= namespace.protection_control();
    for (word, value) in ring(queue, 0).dwords()[place as usize * 16..].iter().zip(dwords) {
        word.store(value.to_le(), Ordering::Relaxed);
    }
    std::sync::atomic::fence(Ordering::Release);
}

/// Returns the submission ring, or with 1 the completion ring.
fn ring(queue: &Queue, which: usize) -> &Atomics {
    let raw = queue.raw.as_ref().expect("a queue of a controller's has one");
    let space = [raw.submission(), raw.completion()][which];
    space.memory().expect("rings in host memory are reached")
}

/// Makes the GPU ring the doorbells of a queue. If it may still do so in the end, the queue is leaked.
struct Poker {
    stream: Stream,
    arguments: Rc<PinnedMemory>,
    queue: Rc<Queue>,
}

impl Poker {
    fn new(gpu: &Arc<Gpu>, queue: Rc<Queue>) -> Result<Poker> {
        let arguments = Rc::new(PinnedMemory::allocate(gpu, 16)?);
        Ok(Poker { stream: Stream::new(gpu, Priority::High)?, arguments, queue })
    }

    /// Makes the GPU ring, and waits until it has.
    fn poke(&self, program: &Program, address: u64, value: u32) -> Result<()> {
        let words = [address as u32, (address >> 32) as u32, value, 0];
        for (word, value) in self.arguments.words().iter().zip(words) {
            AtomicU32::store(word, value, Ordering::Relaxed);
        }
        self.stream.launch(program.function(Kernel::Poke), 1, 32, self.arguments.address())?;
        self.stream.synchronize(PATIENCE)
    }
}

impl Drop for Poker {
    fn drop(&mut self) {
        if !matches!(self.stream.is_idle(), Ok(true)) {
            tracing::error!("leaking a queue whose doorbells the GPU may still ring");
            std::mem::forget((Rc::clone(&self.arguments), Rc::clone(&self.queue)));
        }
    }
}

/// Returns whether the completion of the command sent as this one, from 0, arrives in time, whatever its status.
fn is_answered(queue: &Queue, sent: u32, controller: &Controller, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    let completions = queue.depths.completion;
    let status = &ring(queue, 1).dwords()[(sent % completions) as usize * 4 + 3];
    let phase = if (sent / completions).is_multiple_of(2) { PHASE } else { 0 };
    loop {
        if u32::from_le(status.load(Ordering::Acquire)) & PHASE == phase {
            return true;
        }
        if Instant::now() >= deadline || controller.check().is_err() {
            return false;
        }
        controller.pause(Duration::from_micros(20));
    }
}
