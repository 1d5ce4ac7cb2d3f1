//! Proof that a path carries data.
//!
//! A mapping proves nothing about PCIe: a root complex may drop writes between its ports, and access control
//! services may send reads where nothing answers. So the controller reads an LBA into the memory, by a queue that the
//! CPU drives. The memory held other bytes before, and afterwards what the GPU has there is compared with what the host
//! reads. A controller with Compare then reads that memory back, which writes nothing to the medium.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use adit_driver::controller::RawQueuePair;
use adit_driver::spec::{Iova, Lba, LbaCount, Nsid, Sqe};
use adit_driver::{Buffer, Controller, Namespace, Placement, QueuePairOptions};

use super::block::Block;
use super::mapped::Mapped;
use crate::cuda::{Gpu, flush_rdma_writes};
use crate::error::{Error, Result};
use crate::reach::by_cpu;

const WHAT: &str = "data between the drive and the GPU's memory";
/// Time limit for a command. Short, because every start waits for it where commands get lost.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// How long after their completion data are looked for, to tell late ones from lost ones.
const LATE_WITHIN: Duration = Duration::from_millis(100);
/// Entries of the queue: one command at a time.
const DEPTH: u32 = 4;

/// What was carried when a path was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// Nothing: there was no LBA that the host could read, no queue to read it by, or the drive moves no data (a null
    /// device). Memory was mapped, and commands of rings were completed.
    Nothing,
    /// Data from the drive into the memory. The other way was not tried: the controller has no Compare, or the
    /// namespace is protected.
    FromDrive,
    /// Data, from the drive into the memory and back.
    BothWays,
}

/// Carries an LBA into the block, mapped for a controller at `mapped`, and back.
///
/// # Errors
/// [`Error::Unavailable`] if the data did not arrive.
pub(super) fn prove(
    gpu: &Arc<Gpu>,
    controller: &Arc<Controller>,
    block: &Block,
    mapped: Mapped,
) -> Result<Carried> {
    let mapped = Arc::new(mapped);
    // A stalled machine can cause a silence, and another writer of the LBA a difference.
    once(gpu, controller, block, &mapped).or_else(|_| once(gpu, controller, block, &mapped))
}

/// Makes one attempt.
pub(super) fn once(
    gpu: &Arc<Gpu>,
    controller: &Arc<Controller>,
    block: &Block,
    mapped: &Arc<Mapped>,
) -> Result<Carried> {
    let Some(namespace) = first_namespace(controller) else { return Ok(Carried::Nothing) };
    // An LBA that the host cannot read either, and a queue that cannot be made, say nothing about the path.
    let expected = host_copy(controller, &namespace, Lba(0));
    let queue = Queue::new(controller, &namespace, block, mapped);
    match (expected, queue) {
        (Ok(Some(expected)), Ok(queue)) => carry(gpu, queue, block, &expected),
        _ => Ok(Carried::Nothing),
    }
}

fn first_namespace(controller: &Controller) -> Option<Namespace> {
    let first = *controller.namespace_ids().ok()?.first()?;
    controller.namespace(first).ok()
}

/// Reads an LBA the host's way: by the driver's own queue, into the driver's memory. Returns `None` if the drive moves no
/// data at all, as a null device.
///
/// # Errors
/// The driver's.
pub(crate) fn host_copy(
    controller: &Controller,
    namespace: &Namespace,
    lba: Lba,
) -> Result<Option<Vec<u8>>> {
    let options = QueuePairOptions { depth: DEPTH, ..QueuePairOptions::default() };
    let mut queue = controller.create_queue_pair::<Buffer>(options)?;
    let bytes = namespace.lba_bytes() as usize;
    let mut buffer = controller.allocate(bytes)?;
    drop(buffer.split_off(bytes));
    // No LBA is full of both.
    for filling in [0xa5, 0x5a] {
        buffer.fill(filling);
        (buffer, _) = queue.execute(namespace.read(lba, buffer))?;
        assert_eq!(buffer.len(), bytes, "one LBA was read");
        if buffer.iter().any(|byte| *byte != filling) {
            return Ok(Some(buffer.to_vec()));
        }
    }
    Ok(None)
}

fn carry(gpu: &Gpu, mut queue: Queue, block: &Block, expected: &[u8]) -> Result<Carried> {
    block.write(0, &other_than(expected))?;
    queue.send("read an LBA into it", Sqe::read)?;
    if matches!(block, Block::Gpu(_)) {
        flush_if_needed(gpu);
    }
    check_arrival(expected, |bytes| block.read(0, bytes))?;
    if !queue.compares {
        return Ok(Carried::FromDrive);
    }
    queue.send("compare it with the LBA that it holds", Sqe::compare)?;
    Ok(Carried::BothWays)
}

const FIX: &str = "put the GPU and the drive under one root port or switch, and see that access control services do \
                   not redirect between them (lspci -vvv: ACSCtl)";

/// Bytes that differ from `expected` in each place, so that no memory looks read that was not.
pub(crate) fn other_than(expected: &[u8]) -> Vec<u8> {
    expected.iter().map(|byte| !byte).collect()
}

/// Makes devices' writes visible, if this GPU does not order them. Without a flush, the comparison decides.
pub(crate) fn flush_if_needed(gpu: &Gpu) {
    if !gpu.info().attributes.orders_writes()
        && let Err(error) = flush_rdma_writes(gpu)
    {
        tracing::debug!("data are looked for without a flush: {error}");
    }
}

/// Checks that `read` finds the expected bytes, now that the command that brought them has ended with success.
///
/// # Errors
/// [`Error::Unavailable`], which tells late data from lost ones; the errors of `read`.
pub(crate) fn check_arrival(expected: &[u8], read: impl Fn(&mut [u8]) -> Result<()>) -> Result<()> {
    let mut found = vec![0; expected.len()];
    read(&mut found)?;
    if found == expected {
        return Ok(());
    }
    std::thread::sleep(LATE_WITHIN);
    let was_unchanged = found == other_than(expected);
    read(&mut found)?;
    let (why, fix) = if found == expected {
        ("data arrive after the completion that announces them", "put the pool into host memory")
    } else if was_unchanged {
        (
            "the read ended with success, and the memory is as it was: what the drive writes is dropped on the way",
            FIX,
        )
    } else {
        ("the read ended with success, and the memory holds other bytes than the LBA", FIX)
    };
    Err(Error::unavailable(WHAT, why, fix))
}

/// A queue that the CPU drives, with one command at a time, whose data is the block's first LBA. It is deleted when it is
/// dropped, and its overdue command with it.
struct Queue {
    raw: Option<RawQueuePair>,
    namespace: Namespace,
    controller: Arc<Controller>,
    iova: Iova,
    compares: bool,
    sent: u32,
    /// Released after the queue is deleted.
    memory: Option<(Arc<Mapped>, Block)>,
}

impl Queue {
    fn new(
        controller: &Arc<Controller>,
        namespace: &Namespace,
        block: &Block,
        mapped: &Arc<Mapped>,
    ) -> Result<Queue> {
        // SAFETY: its commands name one LBA of the block, which `memory` keeps until the queue is deleted.
        let raw = unsafe { controller.create_raw_queue_pair(DEPTH, Placement::Host)? };
        let oncs = controller.info().identify.oncs();
        Ok(Queue {
            raw: Some(raw),
            namespace: namespace.clone(),
            controller: Arc::clone(controller),
            iova: mapped.iova(),
            compares: oncs.compare() && namespace.protection().is_none(),
            sent: 0,
            memory: Some((Arc::clone(mapped), block.clone())),
        })
    }

    /// Sends a command for the first LBA and waits for its end; `what` is for the error.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it fails or is overdue; the driver's.
    fn send(&mut self, what: &str, make: fn(Nsid, Lba, LbaCount) -> Sqe) -> Result<()> {
        let raw = self.raw.as_ref().expect("there until it is dropped");
        let (place, tail) = (self.sent, self.sent + 1);
        assert!(tail < DEPTH, "all fit the first lap");
        self.sent = tail;
        let sqe = make(self.namespace.nsid(), Lba(0), LbaCount::ONE);
        by_cpu::put(raw, place, &self.namespace, (sqe, self.iova));
        raw.doorbells().0.ring(tail);
        match by_cpu::wait(raw, place, &self.controller, ANSWERED_WITHIN)? {
            Some(status) if status.is_success() => Ok(()),
            Some(status) => {
                let why = format!("the drive was to {what}, which ended with: {status}");
                Err(Error::unavailable(WHAT, why, FIX))
            }
            None => {
                let within = ANSWERED_WITHIN.as_millis();
                let why = format!(
                    "the drive was to {what}, and did not answer within {within} ms: its own accesses may get no answer"
                );
                Err(Error::unavailable(WHAT, why, FIX))
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        if !raw.delete() {
            tracing::error!("a queue could not be deleted: leaking the memory it may still write");
            std::mem::forget(self.memory.take());
        }
    }
}
