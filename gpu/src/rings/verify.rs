//! Checksums of bytes in the pool, compared by the GPU.
//!
//! Rings read data without the store, so only the store's checksums show whether the bytes are those that were put. A
//! kernel in a stream of the caller's, behind the wait for the data, computes the CRC-32C of each check and compares it with the expected one
//! (`gpu/device/checksum.h`); the CPU sees a verdict for each, never the bytes.
//!
//! Checks, segments and verdicts lie in slots of pinned memory that is allocated once: CUDA may not allocate behind a
//! persistent kernel. A slot is used again once its kernel has ended and its verdicts are read or dropped. Dropping the
//! rings waits for the kernels, because they read the pool.

use std::borrow::Borrow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::transfer::Slice;
use zerocopy::{Immutable, IntoBytes};

use crate::commands::layout::{self, INTACT, Segment, VerifyArguments};
use crate::cuda::program::{Kernel, Program};
use crate::cuda::{Event, Gpu, PinnedMemory, Stream, poll_until};
use crate::error::{Error, Result};
use crate::reach::pool::Pool;
use crate::rings::gates;
use crate::rings::uring::{GioUring, check_stream};

/// Checks of a slot, as many as a control block has contexts; also its segments.
const CHECKS_MAX: usize = 2048;
const LIST_BYTES: usize = 16 * CHECKS_MAX;
/// Offsets in a slot: the arguments, the checks, the segments, the verdicts.
const CHECKS_AT: usize = 64;
const SEGMENTS_AT: usize = CHECKS_AT + LIST_BYTES;
const VERDICTS_AT: usize = SEGMENTS_AT + LIST_BYTES;
const SLOT_BYTES: usize = VERDICTS_AT + 4 * CHECKS_MAX;
/// The most slots: each takes 72 KiB.
const SLOTS_MAX: u32 = 64;
/// Warps of a block, each of which takes one check after another.
const WARPS: u32 = 8;
const LANES: u32 = 32;
/// Blocks of a kernel. Fewer multiprocessors than this keep up with the link that the data came through.
const BLOCKS_MAX: u32 = 16;

const _: () = assert!(size_of::<layout::Check>() == 16 && size_of::<Segment>() == 16);
const _: () = assert!(size_of::<VerifyArguments>() <= CHECKS_AT && SLOT_BYTES.is_multiple_of(16));

/// Bytes of the pool, and the checksum that they should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check<S> {
    /// The bytes: slices of the pool, in order, which have one checksum together.
    pub slices: S,
    /// CRC-32C (Castagnoli, RFC 3720).
    pub crc32c: u32,
}

/// What [`Verifying::wait`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Checks made.
    pub checks: usize,
    /// Positions of the checks whose bytes have another checksum, ascending.
    pub corrupt: Vec<usize>,
}

impl Verdicts {
    /// Returns whether all bytes have their checksums.
    pub fn is_intact(&self) -> bool {
        self.corrupt.is_empty()
    }
}

/// Checks that the GPU makes. They go on if this is dropped.
#[derive(Debug)]
#[must_use = "only `wait` tells which checks failed"]
pub struct Verifying {
    verifier: Arc<Verifier>,
    lease: Arc<Lease>,
    /// How many checks each slot of the lease has.
    counts: Vec<usize>,
}

/// The kernel, and the memory for its lists.
#[derive(Debug)]
pub struct Verifier {
    program: Arc<Program>,
    memory: PinnedMemory,
    state: Mutex<SlotLeases>,
}

#[derive(Debug)]
struct SlotLeases {
    free: Vec<usize>,
    /// Those that are in use, or were when last looked at.
    leases: Vec<Arc<Lease>>,
}

/// Slots of one call, until its kernels have ended.
#[derive(Debug)]
struct Lease {
    slots: Vec<usize>,
    /// Over when the kernels have ended; none if that could not be recorded, so that nothing tells.
    ended: Option<Event>,
}

impl Lease {
    fn is_over(&self) -> Result<bool> {
        self.ended.as_ref().map_or(Ok(false), Event::is_over)
    }
}

/// A verifier, made with rings, or by the first checks of the staged engine, which itself needs no device code.
#[derive(Debug, Default)]
pub(super) struct LazyVerifier(Mutex<Option<Arc<Verifier>>>);

impl From<Arc<Verifier>> for LazyVerifier {
    fn from(verifier: Arc<Verifier>) -> LazyVerifier {
        LazyVerifier(Mutex::new(Some(verifier)))
    }
}

impl LazyVerifier {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Verifier>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the verifier, which `make` makes if there is none.
    ///
    /// # Errors
    /// Those of `make`; the next call tries again.
    pub(super) fn get(
        &self,
        make: impl FnOnce() -> Result<Arc<Verifier>>,
    ) -> Result<Arc<Verifier>> {
        let mut made = self.lock();
        if let Some(verifier) = &*made {
            return Ok(Arc::clone(verifier));
        }
        Ok(Arc::clone(made.insert(make()?)))
    }

    /// Waits until no kernel is left that reads the pool.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if one does not end by then; [`Error::Cuda`].
    pub(super) fn await_end(&self, within: Duration) -> Result<()> {
        self.lock().as_ref().map_or(Ok(()), |verifier| verifier.await_end(within))
    }
}

/// Lists for one slot.
#[derive(Debug, Default)]
struct Batch {
    checks: Vec<layout::Check>,
    segments: Vec<Segment>,
}

impl Batch {
    fn has_room(&self, segments: usize) -> bool {
        self.checks.len() < CHECKS_MAX && self.segments.len() + segments <= CHECKS_MAX
    }

    fn add(&mut self, segments: &[Segment], sum: u32) {
        assert!(self.has_room(segments.len()), "a fuller batch is followed by another");
        let (first, count) = (self.segments.len() as u32, segments.len() as u32);
        self.checks.push(layout::Check { first, segments: count, sum, zero: 0 });
        self.segments.extend_from_slice(segments);
    }
}

/// Divides checks among slots, in order.
///
/// # Errors
/// [`Error::Invalid`] for a check with more segments than a slot has.
fn batches(checks: impl IntoIterator<Item = Result<(Vec<Segment>, u32)>>) -> Result<Vec<Batch>> {
    let mut batches: Vec<Batch> = Vec::new();
    for (position, check) in checks.into_iter().enumerate() {
        let (segments, sum) = check?;
        if segments.len() > CHECKS_MAX {
            let what = format!("check {position} of {} slices", segments.len());
            let why = format!("it has at most {CHECKS_MAX}; join slices that are adjacent");
            return Err(Error::invalid(what, why));
        }
        if !batches.last().is_some_and(|batch| batch.has_room(segments.len())) {
            batches.push(Batch::default());
        }
        let last = batches.last_mut().expect("one was added if there was none");
        last.add(&segments, sum);
    }
    Ok(batches)
}

impl Verifier {
    /// Allocates `slots` slots, or as many as there may be, each for up to 2048 checks.
    ///
    /// # Errors
    /// [`Error::Refused`] while the persistent kernel of rings runs; [`Error::Cuda`].
    pub fn new(gpu: &Arc<Gpu>, program: &Arc<Program>, slots: u32) -> Result<Arc<Verifier>> {
        let _making = gpu.may_make("allocate memory for checks")?;
        let slots = slots.min(SLOTS_MAX);
        let memory = PinnedMemory::allocate(gpu, u64::from(slots) * SLOT_BYTES as u64)?;
        let state = SlotLeases { free: (0..slots as usize).rev().collect(), leases: Vec::new() };
        Ok(Arc::new(Verifier { program: Arc::clone(program), memory, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, SlotLeases> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the GPU compare checksums in `stream`: those of runs of its memory, by address, with the expected ones.
    ///
    /// # Errors
    /// [`Error::Refused`] if too many checks are under way; [`Error::Invalid`] for too many segments; what is wrong with
    /// the first wrong check; [`Error::Cuda`].
    pub fn start(
        self: &Arc<Self>,
        checks: impl IntoIterator<Item = Result<(Vec<Segment>, u32)>>,
        stream: &Stream,
    ) -> Result<Verifying> {
        let batches = batches(checks)?;
        let slots = self.take(batches.len())?;
        debug_assert_eq!(slots.len(), batches.len(), "one each");
        let launch = |(slot, batch): (&usize, &Batch)| self.launch(*slot, batch, stream);
        let launched = slots.iter().zip(&batches).try_for_each(launch);
        // Also behind a failure: kernels before it may have begun.
        let ended = stream.record();
        let failed = launched.err().or_else(|| ended.as_ref().err().cloned());
        let lease = Arc::new(Lease { slots, ended: ended.ok() });
        self.lock().leases.push(Arc::clone(&lease));
        let counts = batches.iter().map(|batch| batch.checks.len()).collect();
        match failed {
            Some(error) => Err(error),
            None => Ok(Verifying { verifier: Arc::clone(self), lease, counts }),
        }
    }

    /// Takes free slots, after giving back those whose kernels have ended and whose verdicts were read or dropped.
    fn take(&self, count: usize) -> Result<Vec<usize>> {
        let mut state = self.lock();
        let SlotLeases { free, leases } = &mut *state;
        leases.retain(|lease| {
            let is_free = Arc::strong_count(lease) == 1 && matches!(lease.is_over(), Ok(true));
            if is_free {
                free.extend(&lease.slots);
            }
            !is_free
        });
        let left = free.len().checked_sub(count).ok_or_else(|| {
            Error::refused(
                format!("verify checks that take {count} slots of {CHECKS_MAX}"),
                format!("{} are free", free.len()),
                "wait for earlier ones, verify fewer at a time, or make rings with more control blocks",
            )
        })?;
        Ok(free.split_off(left))
    }

    fn launch(&self, slot: usize, batch: &Batch, stream: &Stream) -> Result<()> {
        let at = slot * SLOT_BYTES;
        let address = |offset: usize| self.memory.address() + (at + offset) as u64;
        let count = batch.checks.len() as u32;
        let arguments = VerifyArguments {
            checks: address(CHECKS_AT),
            segments: address(SEGMENTS_AT),
            verdicts: address(VERDICTS_AT),
            count,
            zero: 0,
        };
        self.put(at, &arguments);
        self.put(at + CHECKS_AT, &batch.checks[..]);
        self.put(at + SEGMENTS_AT, &batch.segments[..]);
        self.put(at + VERDICTS_AT, &vec![0u32; batch.checks.len()][..]);
        let blocks = count.div_ceil(WARPS).clamp(1, BLOCKS_MAX);
        stream.launch(self.program.function(Kernel::Verify), blocks, WARPS * LANES, address(0))
    }

    /// Writes words to the pinned memory.
    fn put<T: IntoBytes + Immutable + ?Sized>(&self, at: usize, value: &T) {
        let (words, rest) = value.as_bytes().as_chunks::<4>();
        assert!(rest.is_empty() && at.is_multiple_of(4), "lists are of whole words");
        let into = &self.memory.words()[at / 4..][..words.len()];
        for (word, into) in words.iter().zip(into) {
            into.store(u32::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    /// Returns the verdicts of a slot whose kernel has ended.
    fn verdicts(&self, slot: usize, count: usize) -> impl Iterator<Item = u32> {
        let words = &self.memory.words()[(slot * SLOT_BYTES + VERDICTS_AT) / 4..][..count];
        words.iter().map(|word| word.load(Ordering::Acquire))
    }

    fn await_end(&self, within: Duration) -> Result<()> {
        let leases = std::mem::take(&mut self.lock().leases);
        let begun = Instant::now();
        let ended = leases.iter().try_for_each(|lease| await_lease(lease, begun, within));
        self.lock().leases.extend(leases);
        ended
    }
}

fn await_lease(lease: &Lease, begun: Instant, within: Duration) -> Result<()> {
    if poll_until(within.saturating_sub(begun.elapsed()), || lease.is_over())? {
        return Ok(());
    }
    let fix = "allow more time, or look at what their stream waits for";
    Err(Error::timed_out("the GPU to compare checksums", within, fix))
}

impl Verifying {
    /// Waits on the CPU until all checks are made, and returns the verdicts.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the checks go on; [`Error::Cuda`] if the kernel failed.
    pub fn wait(self, timeout: Duration) -> Result<Verdicts> {
        await_lease(&self.lease, Instant::now(), timeout)?;
        assert_eq!(self.lease.slots.len(), self.counts.len(), "a slot for each batch");
        let slots = self.lease.slots.iter().zip(&self.counts);
        let all = slots.flat_map(|(slot, count)| self.verifier.verdicts(*slot, *count));
        // Bytes without a verdict are not known to be intact.
        let corrupt = all.enumerate().filter(|(_, verdict)| *verdict != INTACT);
        let corrupt = corrupt.map(|(position, _)| position).collect();
        Ok(Verdicts { checks: self.counts.iter().sum(), corrupt })
    }
}

impl GioUring {
    /// Makes the GPU compare checksums of bytes in the pool, in `stream`: behind [`GioUring::wait_cqe`] there, or after
    /// [`GioUring::wait`]. The kernel takes at most 16 multiprocessors of those that the stream may use.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a slice outside the pool, a check of more than 2048 slices, a stream of another GPU or a
    /// captured one; [`Error::Refused`] while too many checks are under way (2048 checks or slices for each of
    /// [`crate::Options::blocks`], at most 131072): nothing is checked then; [`Error::Unavailable`] without a compiler for device code; [`Error::Cuda`].
    /// If the staged engine serves the calls, the first call makes what it needs, with the errors of
    /// [`GioUring::init_queue`].
    pub fn verify<S>(
        &self,
        checks: impl IntoIterator<Item = Check<S>>,
        stream: &Stream,
    ) -> Result<Verifying>
    where
        S: IntoIterator<Item: Borrow<Slice>>,
    {
        let pool = self.pool();
        check_stream(pool.gpu(), stream)?;
        gates::check_not_captured(stream, "verify", WHY_NOT_CAPTURED)?;
        let segments = |check: Check<S>| {
            let slices = check.slices.into_iter();
            let all = slices.map(|slice| segment(pool, slice.borrow())).collect::<Result<_>>()?;
            Ok((all, check.crc32c))
        };
        self.verifier()?.start(checks.into_iter().map(segments), stream)
    }
}

const WHY_NOT_CAPTURED: &str = "each launch of the graph would make the checks of this call again, in memory that \
    other checks have by then; call verify in the stream that launches the graph, behind the launch";

fn segment(pool: &Pool, slice: &Slice) -> Result<Segment> {
    let (region, bytes) = (slice.region as usize, slice.bytes);
    pool.check(region, slice.offset, bytes)?;
    Ok(Segment { address: pool.address(region) + slice.offset, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(segments: usize) -> Result<(Vec<Segment>, u32)> {
        Ok((vec![Segment { address: 4096, bytes: 1 }; segments], segments as u32))
    }

    #[test]
    fn slots_are_filled_in_order_and_no_check_is_divided() {
        let full = CHECKS_MAX - 1;
        let batches = batches([check(full), check(2), check(0), check(CHECKS_MAX)]).expect("valid");
        let sums = batches.iter().map(|batch| batch.checks.iter().map(|check| check.sum));
        let sums = sums.map(Iterator::collect::<Vec<_>>).collect::<Vec<_>>();
        assert_eq!(sums, [vec![full as u32], vec![2, 0], vec![CHECKS_MAX as u32]]);
        let second = batches[1].checks[1];
        assert_eq!((second.first, second.segments), (2, 0));
        assert!(batches.iter().all(|batch| batch.segments.len() <= CHECKS_MAX));
    }

    #[test]
    fn a_batch_has_as_many_checks_as_its_slot() {
        let batches = batches((0..CHECKS_MAX + 1).map(|_| check(0))).expect("valid");
        let counts = batches.iter().map(|batch| batch.checks.len()).collect::<Vec<_>>();
        assert_eq!(counts, [CHECKS_MAX, 1]);
    }

    #[test]
    fn a_check_that_no_slot_holds_is_refused_by_its_position() {
        let error = batches([check(1), check(CHECKS_MAX + 1)]).expect_err("too many");
        assert!(
            error.is_usage() && error.to_string().contains("check 1 of 2049 slices"),
            "{error}"
        );
    }
}
