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
use std::time::Duration;

use adit_driver::Controller;
use adit_driver::controller::RawQueuePair;
use adit_driver::spec::{Lba, LbaCount, Sqe};

use super::by_cpu;
use super::doorbell::{Doorbells, WHAT};
use super::proxy::ProxyThread;
use crate::cuda::program::{Kernel, Program};
use crate::cuda::{Gpu, PinnedMemory, Priority, Stream};
use crate::error::{Error, Result};
use crate::options::{DoorbellChoice, Place};
use crate::reach::device::Device;
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

/// The choice of [`choose`].
#[derive(Clone, Debug)]
pub struct Chosen {
    pub doorbells: Doorbells,
    /// Why the GPU does not ring itself, if that was tried.
    pub why_not_mapped: Option<Error>,
}

/// Chooses the doorbells of a device's queues. [`DoorbellChoice::Auto`] takes `mapped` ones if these pass the self-test,
/// and falls back to `proxy`, which is called only then.
///
/// # Errors
/// With [`DoorbellChoice::Mapped`], why that does not work; the proxy's errors; the driver's if the controller does
/// not answer the CPU either.
pub fn choose(
    mapped: Doorbells,
    (gpu, program): (&Arc<Gpu>, &Program),
    device: &Device,
    choice: DoorbellChoice,
    proxy: impl FnOnce() -> Result<Arc<ProxyThread>>,
) -> Result<Chosen> {
    let test = |doorbells| run((gpu, program), device, doorbells);
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
fn run(on: (&Arc<Gpu>, &Program), device: &Device, doorbells: &Doorbells) -> Result<()> {
    for _ in 0..SILENCES {
        if answers(on, device, doorbells)? {
            return Ok(());
        }
    }
    Err(lost(doorbells))
}

/// Sends reads through a new queue; returns whether the controller answered the GPU, and not only the CPU.
fn answers(
    (gpu, program): (&Arc<Gpu>, &Program),
    Device { controller, namespace }: &Device,
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
    let raw = queue.raw.as_ref().expect("a queue of a controller's has one");
    let completions = queue.depths.completion;
    let read = Sqe::read(namespace.nsid(), Lba(0), LbaCount::ONE);
    // One after the other, for two laps: each doorbell has to arrive.
    for sent in 0..=2 * completions {
        let next = (sent + 1) % DEPTH;
        by_cpu::put(raw, sent % DEPTH, namespace, (read, mapped.iova()));
        let poked = poker.poke(program, queue.sq_doorbell, next);
        if poked.is_err() || !is_answered(raw, sent, controller, ANSWERED_WITHIN) {
            let (tail, head) = raw.doorbells();
            if sent > 0 {
                head.ring(sent % completions);
            }
            tail.ring(next);
            check_answered(raw, sent, controller)?;
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
fn check_answered(raw: &RawQueuePair, sent: u32, controller: &Controller) -> Result<()> {
    if is_answered(raw, sent, controller, PATIENCE) {
        return Ok(());
    }
    let fix = "reset the controller, or use another one";
    let what = format!("{} to read one LBA, rung by the CPU", controller.info().device);
    Err(Error::timed_out(what, PATIENCE, fix))
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
fn is_answered(raw: &RawQueuePair, sent: u32, controller: &Controller, within: Duration) -> bool {
    matches!(by_cpu::wait(raw, sent, controller, within), Ok(Some(_)))
}
