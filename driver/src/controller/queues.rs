//! Creates and deletes I/O queues, and places their rings.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::cmb::CmbPages;
use super::life::Life;
use super::shared::Shared;
use crate::bus::Doorbell;
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::queue_pair::ring::{CompletionRing, SubmissionRing};
use crate::runtime::lock;
use crate::spec::{DataPointer, Iova, Qid, QueueEntries, QueuePriority, Sqe};
use crate::sys::Atomics;
use crate::transfer::PAGE_BYTES;

const SQE_BYTES: usize = 64;
const CQE_BYTES: usize = 16;
/// Ring memory and its device address.
#[derive(Clone, Debug)]
pub struct RingSpace {
    memory: RingMemory,
    iova: Iova,
}

#[derive(Clone, Debug)]
enum RingMemory {
    /// Memory of this process.
    Here(Atomics),
    /// Another agent's memory: its length, and its owner.
    Elsewhere(usize, #[allow(dead_code, reason = "held, not read")] Arc<dyn Any + Send + Sync>),
}

impl RingSpace {
    /// Wraps memory from the caller, which is cleared when a queue is created in it. `iova` is the device's
    /// address of its first byte, 4 KiB aligned.
    ///
    /// # Safety
    /// The device reaches this memory and no other through `iova` for the memory's length, until the queue
    /// made of it is dropped.
    #[allow(unsafe_code)]
    pub unsafe fn new(memory: Atomics, iova: Iova) -> RingSpace {
        RingSpace { memory: RingMemory::Here(memory), iova }
    }

    /// Wraps `bytes` of memory that this process cannot access, such as a GPU's, kept by `owner`; for queues
    /// that another agent drives.
    ///
    /// # Safety
    /// As [`RingSpace::new`]; and the caller has cleared it since its last use by a queue.
    #[allow(unsafe_code)]
    pub unsafe fn remote(bytes: usize, iova: Iova, owner: Arc<dyn Any + Send + Sync>) -> RingSpace {
        RingSpace { memory: RingMemory::Elsewhere(bytes, owner), iova }
    }

    /// Returns the memory, if this process can access it.
    pub fn memory(&self) -> Option<&Atomics> {
        match &self.memory {
            RingMemory::Here(memory) => Some(memory),
            RingMemory::Elsewhere(..) => None,
        }
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        match &self.memory {
            RingMemory::Here(memory) => memory.len(),
            RingMemory::Elsewhere(bytes, _) => *bytes,
        }
    }

    /// Returns the device's address of the first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Returns the memory of a queue that this process drives.
    fn ours(&self) -> Atomics {
        self.memory().expect("a queue pair of the CPU's has rings it reaches").clone()
    }

    fn clear(&self) {
        if let Some(memory) = self.memory() {
            memory.clear();
        }
    }
}

/// Entries of each ring of a queue pair: 2 to CAP.MQES. A number stands for two rings of that many.
///
/// A completion ring with more entries than commands in flight lets an agent tell the controller its head rarely,
/// without the controller ever finding the ring full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingDepths {
    /// Entries of the submission ring.
    pub submission: u32,
    /// Entries of the completion ring.
    pub completion: u32,
}

impl From<u32> for RingDepths {
    fn from(depth: u32) -> RingDepths {
        RingDepths { submission: depth, completion: depth }
    }
}

/// Location of a queue pair's rings.
#[derive(Debug, Default)]
pub enum Placement {
    /// In host memory near the device.
    #[default]
    Host,
    /// Submission ring in the controller memory buffer, completion ring in host memory.
    Cmb,
    /// In caller-supplied memory: another mapping, or another device's memory.
    Supplied(SuppliedRings),
}

impl Placement {
    /// Returns whether this process cannot access one of the rings.
    pub(super) fn is_remote(&self) -> bool {
        let Placement::Supplied(rings) = self else { return false };
        rings.submission.memory().is_none() || rings.completion.memory().is_none()
    }
}

/// Ring memory from the caller, and optionally other mappings of the doorbells.
#[derive(Debug)]
pub struct SuppliedRings {
    /// At least 64 bytes for each entry.
    pub submission: RingSpace,
    /// At least 16 bytes for each entry.
    pub completion: RingSpace,
    /// The submission tail and completion head doorbells as mapped by the caller; `None` uses the bus's.
    pub doorbells: Option<(Doorbell, Doorbell)>,
}

/// A queue pair that the controller knows, with memory and doorbells but no driver yet.
///
/// [`crate::QueuePair`] drives one from the CPU. Another agent needs [`RawQueuePair::qid`], the rings and the
/// doorbells. Dropping it deletes both queues.
#[derive(Debug)]
pub struct RawQueuePair {
    shared: Arc<Shared>,
    qid: Qid,
    /// The controller's life in which the queues were created.
    life: Life,
    entries: Entries,
    rings: Rings,
    doorbells: Option<(Doorbell, Doorbell)>,
    closed: bool,
}

/// The entries of each ring, checked.
#[derive(Clone, Copy, Debug)]
struct Entries {
    submission: QueueEntries,
    completion: QueueEntries,
}

/// The memory of both rings and its owners.
#[derive(Debug)]
struct Rings {
    submission: RingSpace,
    completion: RingSpace,
    cmb: Option<CmbPages>,
    host: Option<Mapping>,
}

impl RawQueuePair {
    pub(super) fn create(
        shared: &Arc<Shared>,
        depths: RingDepths,
        placement: Placement,
    ) -> Result<RawQueuePair> {
        let entries = Entries {
            submission: checked_entries(shared, depths.submission)?,
            completion: checked_entries(shared, depths.completion)?,
        };
        let life = shared.running_life()?;
        let qid = lock(&shared.ids).take(shared.bus().device())?;
        let mut pair = match Self::prepare(shared, life, qid, entries, placement) {
            Ok(pair) => pair,
            Err(error) => {
                lock(&shared.ids).give_back(qid);
                return Err(error);
            }
        };
        pair.create_queues().inspect_err(|_| pair.closed = true)?;
        Ok(pair)
    }

    fn prepare(
        shared: &Arc<Shared>,
        life: Life,
        qid: Qid,
        entries: Entries,
        placement: Placement,
    ) -> Result<RawQueuePair> {
        // Before memory is taken: only a complete pair returns pages of the controller memory buffer.
        let registers = match &placement {
            Placement::Supplied(SuppliedRings { doorbells: Some(_), .. }) => None,
            _ => Some(shared.doorbells.registers(qid)?),
        };
        let (rings, supplied) = place(shared, entries, placement)?;
        Ok(RawQueuePair {
            shared: Arc::clone(shared),
            qid,
            life,
            entries,
            rings,
            doorbells: supplied.or(registers),
            closed: false,
        })
    }

    /// Creates both queues over cleared rings.
    fn create_queues(&self) -> Result<()> {
        self.rings.submission.clear();
        self.rings.completion.clear();
        let (submission, completion) = self.shared.doorbells.shadows_of(self.qid);
        for shadow in [submission, completion].iter().flatten() {
            shadow.clear();
        }
        let at = |ring: &RingSpace| DataPointer::Prp { prp1: ring.iova, prp2: Iova(0) };
        let vector = self.vector();
        let cq = Sqe::create_io_cq(self.qid, self.entries.completion, vector, true)
            .with_dptr(at(&self.rings.completion));
        self.call("Create I/O Completion Queue", cq)?;
        let entries = self.entries.submission;
        let sq = Sqe::create_io_sq(self.qid, self.qid, entries, QueuePriority::Medium);
        let sq = sq.with_dptr(at(&self.rings.submission));
        self.call("Create I/O Submission Queue", sq).inspect_err(|_| self.undo_completion())
    }

    /// Runs an admin command about these queues, if the controller still knows them.
    fn call(&self, name: &'static str, sqe: Sqe) -> Result<()> {
        self.shared.call_in(self.life, name, sqe, None).map(drop)
    }

    /// Returns the controller's life in which the queues exist.
    #[inline(always)]
    pub(crate) fn life(&self) -> Life {
        self.life
    }

    /// Deletes the submission queue, which must go first (Base 2.0 sections 5.6 and 5.7): the controller
    /// completes or drops the commands in flight.
    pub(crate) fn delete_submission(&self) -> Result<()> {
        self.call("Delete I/O Submission Queue", Sqe::delete_io_sq(self.qid))
    }

    pub(crate) fn delete_completion(&self) -> Result<()> {
        self.call("Delete I/O Completion Queue", Sqe::delete_io_cq(self.qid))
    }

    /// Recreates the queues after a deletion or in a new life of the controller.
    pub(crate) fn create_again(&mut self, life: Life) -> Result<()> {
        self.life = life;
        self.create_queues()
    }

    /// Deletes the completion queue of a pair without a submission queue. If that fails, the controller may
    /// still write the ring, so it goes out of service.
    fn undo_completion(&self) {
        if let Err(error) = self.delete_completion() {
            self.shared.fail(self.life, &error.to_string());
        }
    }

    /// Returns this queue's interrupt vector, if the controller was opened with interrupts.
    fn vector(&self) -> Option<u16> {
        let vectors = self.shared.vectors.len();
        // Vector 0 is the admin queue's unless it is the only one.
        (vectors > 0)
            .then(|| if vectors == 1 { 0 } else { 1 + (self.qid.0 - 1) % (vectors as u16 - 1) })
    }

    /// Returns the eventfd that counts this queue's interrupts, if the controller was opened with interrupts.
    pub fn interrupt(&self) -> Option<BorrowedFd<'_>> {
        self.vector().map(|vector| self.shared.vectors[usize::from(vector)].as_fd())
    }

    /// Returns the identifier of both queues.
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// Returns the entries of each ring.
    pub fn depths(&self) -> RingDepths {
        let Entries { submission, completion } = self.entries;
        RingDepths { submission: submission.get(), completion: completion.get() }
    }

    /// Returns the submission ring: 64 bytes for each entry.
    pub fn submission(&self) -> &RingSpace {
        &self.rings.submission
    }

    /// Returns the completion ring: 16 bytes for each entry; the first lap's phase is 1.
    pub fn completion(&self) -> &RingSpace {
        &self.rings.completion
    }

    /// Returns the submission tail and completion head doorbells, for another agent to ring.
    ///
    /// # Panics
    /// Never for callers: only [`crate::QueuePair`] takes the doorbells, along with the pair.
    pub fn doorbells(&self) -> (&Doorbell, &Doorbell) {
        let (submission, completion) =
            self.doorbells.as_ref().expect("a queue pair of the CPU's owns its doorbells");
        (submission, completion)
    }

    /// Deletes both queues, as a drop does. Returns whether the controller can no longer access the rings or
    /// the memory that their commands name. If `false`, leak that memory; the rings are leaked here.
    #[must_use]
    pub fn delete(mut self) -> bool {
        self.close()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Takes the rings for the CPU to drive; once.
    pub(crate) fn take_rings(&mut self) -> (SubmissionRing, CompletionRing) {
        let registers = self.doorbells.take().expect("rings are taken once");
        let (sq_bell, cq_bell) = self.shared.doorbells.bells(self.qid, registers);
        let depths = self.depths();
        let sq = SubmissionRing::new(self.rings.submission.ours(), depths.submission, sq_bell);
        (sq, CompletionRing::new(self.rings.completion.ours(), depths.completion, cq_bell))
    }

    /// Deletes both queues. Returns `true` once the device can no longer access memory in flight.
    pub(crate) fn close(&mut self) -> bool {
        if std::mem::replace(&mut self.closed, true) {
            // The pair was never complete, or its controller failed: wait until that is settled.
            return self.shared.is_in(self.life) || self.shared.wait_settled(self.life);
        }
        // A controller that was reset since does not know the queues.
        if self.shared.is_in(self.life) {
            match self.delete_submission().and_then(|()| self.delete_completion()) {
                Ok(()) => return true,
                Err(error) => self.shared.fail(self.life, &error.to_string()),
            }
        }
        self.shared.wait_settled(self.life)
    }
}

impl Drop for RawQueuePair {
    fn drop(&mut self) {
        if !self.close() {
            // The device may still write the rings: neither their memory nor their addresses may be reused.
            // The driver cannot tell whether caller-supplied memory is unmapped.
            std::mem::forget((self.rings.submission.clone(), self.rings.completion.clone()));
            std::mem::forget(self.rings.host.take());
        }
        if let (Some(cmb), Some(pages)) = (&self.shared.cmb, &self.rings.cmb) {
            lock(cmb).give_back(pages);
        }
        lock(&self.shared.ids).give_back(self.qid);
    }
}

fn checked_entries(shared: &Shared, depth: u32) -> Result<QueueEntries> {
    let most = shared.info.queue_entries_max;
    QueueEntries::new(depth).filter(|_| depth <= most).ok_or_else(|| {
        Error::invalid(
            format!("{}: a queue of {depth} entries", shared.bus().device()),
            format!("this controller takes 2 to {most} (CAP.MQES); ask for a smaller I/O depth"),
        )
    })
}

/// Allocates or checks the memory of both rings.
fn place(
    shared: &Arc<Shared>,
    entries: Entries,
    placement: Placement,
) -> Result<(Rings, Option<(Doorbell, Doorbell)>)> {
    let page = PAGE_BYTES as usize;
    let sq_bytes = (entries.submission.get() as usize * SQE_BYTES).next_multiple_of(page);
    let cq_bytes = (entries.completion.get() as usize * CQE_BYTES).next_multiple_of(page);
    match placement {
        Placement::Host => {
            let host = Mapping::allocate(shared.bus(), sq_bytes + cq_bytes)?;
            let submission = ring_space(&host, 0, sq_bytes);
            let completion = ring_space(&host, sq_bytes, cq_bytes);
            Ok((Rings { submission, completion, cmb: None, host: Some(host) }, None))
        }
        Placement::Cmb => {
            let cmb = shared.cmb.as_ref().ok_or_else(|| {
                let fix = "open it with the controller memory buffer enabled (queues=cmb)";
                Error::device(
                    shared.bus().device(),
                    "its controller memory buffer is not enabled",
                    fix,
                )
            })?;
            let host = Mapping::allocate(shared.bus(), cq_bytes)?;
            let completion = ring_space(&host, 0, cq_bytes);
            let (pages, memory, iova) = lock(cmb).take(sq_bytes)?;
            let submission = RingSpace { memory: RingMemory::Here(memory), iova };
            Ok((Rings { submission, completion, cmb: Some(pages), host: Some(host) }, None))
        }
        Placement::Supplied(supplied) => {
            check_supplied(shared, &supplied, entries)?;
            let SuppliedRings { submission, completion, doorbells } = supplied;
            Ok((Rings { submission, completion, cmb: None, host: None }, doorbells))
        }
    }
}

fn ring_space(host: &Mapping, offset: usize, bytes: usize) -> RingSpace {
    RingSpace {
        memory: RingMemory::Here(host.atomics().slice(offset, bytes)),
        iova: Iova(host.iova().0 + offset as u64),
    }
}

fn check_supplied(shared: &Shared, supplied: &SuppliedRings, entries: Entries) -> Result<()> {
    let rings = [
        ("submission", &supplied.submission, entries.submission, SQE_BYTES),
        ("completion", &supplied.completion, entries.completion, CQE_BYTES),
    ];
    for (name, ring, entries, entry_bytes) in rings {
        let needed = entries.get() as usize * entry_bytes;
        if ring.bytes() < needed || !ring.iova.is_aligned(PAGE_BYTES) {
            return Err(Error::invalid(
                format!(
                    "{}: the {name} ring supplied at {} with {} bytes",
                    shared.bus().device(),
                    ring.iova,
                    ring.bytes()
                ),
                format!("it must be 4 KiB aligned and hold {needed} bytes"),
            ));
        }
    }
    Ok(())
}
