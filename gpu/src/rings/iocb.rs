//! I/O control blocks: up to 2048 contexts each, filled by the CPU, issued and awaited together.
//!
//! [`Blocks`] owns the memory of all blocks: contexts, headers and arguments in pinned memory, which the CPU writes and
//! the GPU reads; live headers and statuses in GPU memory. [`Iocbs`] is a user's handle to some.
//!
//! A block is free, held (being filled, or issued and not yet dropped), or draining: dropped while its commands were
//! under way. It is reused only once the GPU has reported that all its commands ended and the kernel launched for it
//! has returned, so taking the last block may wait for a returning kernel. An unissued block stays held if the streams
//! that wait for it cannot be released. Generations count issued uses. Nothing here calls a device.

mod filling;
mod handle;

pub(crate) use filling::Filling;
pub use handle::Iocbs;

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{iter, thread};

use zerocopy::{FromZeros, IntoBytes};

use crate::commands::layout::{CONTEXTS_MAX, Context, Iocb, IssueArguments};
use crate::commands::outcome::{Ended, IocbOutcome, NOT_SENT, RESET};
use crate::cuda::{DeviceMemory, Event, Gpu, PinnedMemory};
use crate::error::{Error, Result};
use crate::rings::ring_set::quads;
use crate::staged::Progress;

/// The most blocks: a request word has 16 bits for one, and each takes 45 KiB.
const BLOCKS_MAX: u32 = 4096;
/// Layout of a block in its pinned memory, in bytes.
const HEADER: usize = CONTEXTS_MAX * size_of::<Context>();
const ARGUMENTS: usize = HEADER + size_of::<Iocb>();
const DONE: usize = ARGUMENTS + 128;
const LISTS: usize = DONE + 128;
/// Statuses of a block, in bytes.
const STATUSES: u64 = CONTEXTS_MAX as u64 * 4;
/// Far longer than a kernel without work takes to return, which is microseconds.
const RETURNS_WITHIN: Duration = Duration::from_secs(5);

const _: () = assert!(BLOCKS_MAX <= 1 << 16, "a request word has 16 bits for a block");
const _: () = assert!(HEADER.is_multiple_of(128) && ARGUMENTS.is_multiple_of(8));
const _: () = assert!(size_of::<IssueArguments>() <= DONE - ARGUMENTS);
const _: () = assert!(DONE.is_multiple_of(4) && LISTS.is_multiple_of(8));
/// A copied header tells a persistent kernel to begin, and does not touch the end of the last use.
const _: () = assert!(offset_of!(Iocb, issued) < offset_of!(Iocb, done));

#[derive(Debug)]
pub(crate) struct Blocks {
    pinned: PinnedMemory,
    iocbs: DeviceMemory,
    statuses: DeviceMemory,
    stride: usize,
    count: u32,
    timeout: Duration,
    slots: Mutex<Vec<Slot>>,
}

/// Bookkeeping of a block.
#[derive(Debug)]
struct Slot {
    /// Number of issued uses.
    generation: u32,
    /// A use that streams wait for although it was not issued.
    awaited: Option<u32>,
    state: BlockState,
    /// Position of each context's transfer; the holder has them while the block is held.
    positions: Vec<u32>,
}

#[derive(Debug)]
enum BlockState {
    Free,
    Held,
    /// Dropped while being executed in this way.
    Draining(Execution),
}

/// How a block is executed.
#[derive(Clone, Debug)]
pub(crate) enum Execution {
    /// By its own kernel, with the kernel's end; until then it may read its arguments.
    Kernel(Arc<Event>),
    /// By the persistent kernel.
    Persistent,
    Staged(Arc<Progress>),
    /// No longer executed: it may have begun, and is free after a recovery.
    Lost,
    /// Never executed: it was refused before anything began.
    Unbegun,
}

/// A block in use.
#[derive(Debug)]
pub(crate) struct Use {
    pub index: u32,
    pub generation: u32,
    pub device: u16,
    pub count: u32,
    positions: Vec<u32>,
    way: OnceLock<Execution>,
}

impl Blocks {
    /// Allocates `count` blocks whose commands have `timeout` from the moment they are issued.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no blocks or too many; failures to allocate memory.
    pub(crate) fn new(gpu: &Arc<Gpu>, count: u32, timeout: Duration) -> Result<Blocks> {
        if !(1..=BLOCKS_MAX).contains(&count) {
            return Err(Error::invalid(
                format!("{count} I/O control blocks"),
                format!("1 to {BLOCKS_MAX} are possible"),
            ));
        }
        let stride = (LISTS + 8 * count as usize).next_multiple_of(4096);
        assert!(stride.is_multiple_of(8), "a block is whole words");
        assert!(stride >= LISTS + 8 * count as usize, "a block has its lists");
        let iocbs = DeviceMemory::zeroed(gpu, u64::from(count) * size_of::<Iocb>() as u64)?;
        let slot = |_| {
            let positions = vec![0; CONTEXTS_MAX];
            Slot { generation: 0, awaited: None, state: BlockState::Free, positions }
        };
        Ok(Blocks {
            pinned: PinnedMemory::allocate(gpu, (stride * count as usize) as u64)?,
            iocbs,
            statuses: DeviceMemory::allocate(gpu, u64::from(count) * STATUSES)?,
            stride,
            count,
            timeout,
            slots: Mutex::new((0..count).map(slot).collect()),
        })
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the GPU's address of the live headers.
    pub(crate) fn iocbs(&self) -> u64 {
        self.iocbs.address()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the address of the word that waiters poll: the generation of the last use whose commands have all ended.
    pub(crate) fn done_address(&self, index: u32) -> u64 {
        self.header_address(index) + offset_of!(Iocb, done) as u64
    }

    /// Returns the address of the word that tells a persistent kernel to work on a block.
    pub(crate) fn issued_address(&self, index: u32) -> u64 {
        self.header_address(index) + offset_of!(Iocb, issued) as u64
    }

    pub(crate) fn statuses_address(&self, index: u32) -> u64 {
        assert!(index < self.count, "there is such a block");
        self.statuses.address() + u64::from(index) * STATUSES
    }

    pub(crate) fn header_address(&self, index: u32) -> u64 {
        assert!(index < self.count);
        self.iocbs.address() + u64::from(index) * size_of::<Iocb>() as u64
    }

    /// Returns the pinned memory and the range of a block's prepared header. The range excludes `done`, which only
    /// reports the end of a use and may change while the header is copied.
    pub(crate) fn prepared_header(&self, index: u32) -> (&PinnedMemory, std::ops::Range<u64>) {
        let start = (self.at(index) + HEADER) as u64;
        assert!(start + size_of::<Iocb>() as u64 <= self.pinned.bytes(), "it lies in the memory");
        (&self.pinned, start..start + offset_of!(Iocb, done) as u64)
    }

    fn at(&self, index: u32) -> usize {
        assert!(index < self.count);
        index as usize * self.stride
    }

    fn words(&self, index: u32, offset: usize, bytes: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && offset + bytes <= self.stride);
        let start = (self.at(index) + offset) / 8;
        &quads(&self.pinned)[start..start + bytes.div_ceil(8)]
    }

    fn address(&self, index: u32, offset: usize) -> u64 {
        assert!(offset < self.stride, "an address is inside its block");
        self.pinned.address() + (self.at(index) + offset) as u64
    }

    fn write(&self, index: u32, offset: usize, bytes: &[u8]) {
        let (quads, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "structures are whole words");
        for (word, value) in self.words(index, offset, bytes.len()).iter().zip(quads) {
            word.store(u64::from_le_bytes(*value), Ordering::Relaxed);
        }
    }

    /// Returns the last use that the GPU reported as ended.
    fn done(&self, index: u32) -> u32 {
        self.pinned.words()[(self.at(index) + DONE) / 4].load(Ordering::Acquire)
    }

    pub(crate) fn is_done(&self, held: &Use) -> bool {
        debug_assert!(held.generation != 0, "a use counts");
        held.way.get().is_some_and(|way| self.has_ended(held.index, held.generation, way))
    }

    fn has_ended(&self, index: u32, generation: u32, way: &Execution) -> bool {
        match way {
            Execution::Staged(progress) => progress.done() == generation,
            Execution::Kernel(_) | Execution::Persistent | Execution::Lost => {
                self.done(index) == generation
            }
            Execution::Unbegun => true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free block to be filled with contexts of `device`.
    ///
    /// # Errors
    /// [`Error::Refused`] while all are in use.
    fn take(&self, device: u16) -> Result<Use> {
        let started = Instant::now();
        loop {
            let mut slots = self.lock();
            debug_assert_eq!(slots.len(), self.count as usize, "each block has a slot");
            let mut free = (0..self.count).zip(slots.iter_mut());
            if let Some((index, slot)) = free.find(|(index, slot)| self.is_free(*index, slot)) {
                return Ok(slot.hold(index, device));
            }
            // Seeing all commands end does not imply seeing the kernel return, so wait for that here.
            if !self.is_one_returning(&slots) || started.elapsed() >= RETURNS_WITHIN {
                let what = format!("all {} I/O control blocks are in use", self.count);
                let fix = "wait for earlier ones, or raise Options::blocks";
                return Err(Error::refused("get_iocb", what, fix));
            }
            drop(slots);
            thread::yield_now();
        }
    }

    fn is_free(&self, index: u32, slot: &Slot) -> bool {
        match &slot.state {
            BlockState::Free => true,
            BlockState::Held => false,
            // A kernel whose end cannot be queried has not ended.
            BlockState::Draining(way) => {
                way.kernel().is_none_or(|kernel| kernel.is_over().unwrap_or(false))
                    && self.has_ended(index, slot.generation, way)
            }
        }
    }

    /// Returns whether a kernel has finished all its blocks but not yet returned.
    fn is_one_returning(&self, slots: &[Slot]) -> bool {
        debug_assert_eq!(slots.len(), self.count as usize, "each block has a slot");
        let draining = || {
            (0..self.count).zip(slots).filter_map(|(index, slot)| {
                let BlockState::Draining(way) = &slot.state else { return None };
                Some((way.kernel()?, self.has_ended(index, slot.generation, way)))
            })
        };
        draining().any(|(kernel, has_ended)| {
            // Don't wait for a kernel whose end cannot be queried because the context is lost.
            has_ended
                && kernel.is_over().is_ok()
                && draining().all(|(other, has_ended)| has_ended || !Arc::ptr_eq(kernel, other))
        })
    }

    /// Records that a use is about to be issued.
    pub(crate) fn note_issue(&self, held: &Use) {
        let slot = &mut self.lock()[held.index as usize];
        slot.assert_held_by(held);
        assert!(held.count > 0, "an issued block has commands");
        slot.generation = held.generation;
        slot.awaited = None;
    }

    /// Records that a stream is about to wait for a use.
    pub(crate) fn note_wait(&self, held: &Use) {
        let slot = &mut self.lock()[held.index as usize];
        slot.assert_held_by(held);
        if slot.generation != held.generation {
            slot.awaited = Some(held.generation);
        }
    }

    /// Releases streams that wait for a use that will never be executed: it counts as issued and ended.
    ///
    /// # Errors
    /// Failures to write the GPU's memory; the streams then wait forever, on a word that must stay.
    pub(crate) fn end_unissued(&self, held: &Use) -> Result<()> {
        let slot = &mut self.lock()[held.index as usize];
        slot.assert_held_by(held);
        slot.awaited = Some(held.generation);
        self.end_use(held.index, held.generation, slot)
    }

    /// Releases streams that wait for any unissued use, as none can be issued any more.
    ///
    /// # Errors
    /// As [`Blocks::end_unissued`].
    pub(crate) fn end_all_unissued(&self) -> Result<()> {
        let mut slots = self.lock();
        debug_assert_eq!(slots.len(), self.count as usize, "each block has a slot");
        for (index, slot) in (0..self.count).zip(slots.iter_mut()) {
            if let Some(generation) = slot.awaited {
                self.end_use(index, generation, slot)?;
            }
        }
        Ok(())
    }

    fn end_use(&self, index: u32, generation: u32, slot: &mut Slot) -> Result<()> {
        assert!(generation != 0, "unused memory holds 0");
        // A kernel that reads meanwhile finds the previous use ended, as before.
        let at = self.done_address(index) - self.iocbs();
        self.iocbs.write(at, &generation.to_le_bytes())?;
        slot.generation = generation;
        slot.awaited = None;
        self.pinned.words()[(self.at(index) + DONE) / 4].store(generation, Ordering::Release);
        Ok(())
    }

    fn is_awaited(&self, held: &Use) -> bool {
        let slot = &self.lock()[held.index as usize];
        slot.assert_held_by(held);
        slot.awaited == Some(held.generation)
    }

    /// Returns a block: free, or draining if it was issued.
    fn give_back(&self, held: &mut Use) {
        let slot = &mut self.lock()[held.index as usize];
        slot.assert_held_by(held);
        assert!(slot.positions.is_empty(), "the holder has them");
        assert!(slot.awaited.is_none(), "streams that wait for it were released");
        slot.positions = std::mem::take(&mut held.positions);
        slot.state = match held.way.take() {
            None => BlockState::Free,
            Some(way) => BlockState::Draining(way),
        };
    }

    /// Writes a block's header for copying to the GPU.
    pub(crate) fn prepare(&self, held: &Use, first_ring: u32, ring_count: u32) {
        let total = u64::from(held.count);
        assert!(
            (1..=CONTEXTS_MAX as u64).contains(&total),
            "a block is taken for its first context"
        );
        assert!(ring_count > 0, "a device has rings");
        let Use { index, generation, .. } = *held;
        // Until issued, it looks as the last use left it.
        let before = generation.wrapping_sub(1);
        let header = Iocb {
            contexts: self.address(index, 0),
            statuses: self.statuses_address(index),
            done_host: self.address(index, DONE),
            timeout_ns: self.timeout.as_nanos().min(u128::from(u64::MAX / 2)) as u64,
            total,
            count: held.count,
            first_ring,
            ring_count,
            generation,
            issued: before,
            claimed: Iocb::counted(generation, 0),
            remaining: Iocb::counted(generation, total),
            done: before,
            ..Iocb::new_zeroed()
        };
        self.write(index, HEADER, header.as_bytes());
    }

    /// Returns the first `count` contexts of a block.
    pub(crate) fn contexts(&self, held: &Use) -> impl ExactSizeIterator<Item = Context> {
        assert!(held.count as usize <= CONTEXTS_MAX, "they fit a block");
        let (pairs, _) = self.words(held.index, 0, HEADER).as_chunks::<2>();
        pairs[..held.count as usize].iter().map(|[address, place]| Context {
            address: address.load(Ordering::Relaxed),
            place: place.load(Ordering::Relaxed),
        })
    }

    /// Writes the argument of a kernel launched for `uses`, in the first of them, and returns its address.
    pub(crate) fn prepare_issue(&self, uring: u64, uses: &[Use]) -> u64 {
        assert!(uses.len() <= self.count as usize, "a block is issued once");
        let first = uses[0].index;
        let (blocks, generations) = self.lists(uses);
        let arguments =
            IssueArguments { uring, blocks, generations, count: uses.len() as u32, zero: 0 };
        self.write(first, ARGUMENTS, arguments.as_bytes());
        self.address(first, ARGUMENTS)
    }

    /// Returns the GPU's addresses of the indices and generations of `uses`, in the first of them.
    pub(crate) fn lists(&self, uses: &[Use]) -> (u64, u64) {
        assert!(!uses.is_empty(), "the lists are in the first block");
        let blocks = self.address(uses[0].index, LISTS);
        (blocks, blocks + 4 * u64::from(self.count))
    }

    /// Writes the indices and the generations of `uses` for kernels.
    fn write_lists(&self, uses: &[Use]) {
        assert!(uses.len() <= self.count as usize, "a block is listed once");
        let start = (self.at(uses[0].index) + LISTS) / 4;
        let words = &self.pinned.words()[start..start + 2 * self.count as usize];
        let (blocks, generations) = words.split_at(self.count as usize);
        for ((block, generation), held) in blocks.iter().zip(generations).zip(uses) {
            block.store(held.index, Ordering::Relaxed);
            generation.store(held.generation, Ordering::Relaxed);
        }
    }

    /// Adds the result of a use to `outcome`.
    ///
    /// # Errors
    /// Failures to read the GPU's memory.
    fn read_back(&self, held: &Use, outcome: &mut IocbOutcome) -> Result<()> {
        assert!(held.count > 0, "a block is taken for its first context");
        outcome.commands += u64::from(held.count);
        match held.way.get() {
            Some(Execution::Kernel(_) | Execution::Persistent) => {
                self.read_back_rings(held, outcome)?
            }
            Some(Execution::Staged(progress)) => {
                outcome.took = outcome.took.max(Duration::from_nanos(progress.took_ns()));
                let words = (0..held.count as usize).map(|context| progress.status(context));
                outcome.failed.extend(held.failures(words));
            }
            // It may have begun, and even completed.
            Some(Execution::Lost) => outcome.failed.extend(held.failures(iter::repeat(RESET))),
            Some(Execution::Unbegun) | None => {
                outcome.failed.extend(held.failures(iter::repeat(NOT_SENT)))
            }
        }
        Ok(())
    }

    fn read_back_rings(&self, held: &Use, outcome: &mut IocbOutcome) -> Result<()> {
        let mut header = Iocb::new_zeroed();
        let at = u64::from(held.index) * size_of::<Iocb>() as u64;
        self.iocbs.read(at, header.as_mut_bytes())?;
        let took = Duration::from_nanos(header.ended_ns.saturating_sub(header.started_ns));
        outcome.took = outcome.took.max(took);
        if header.failed > 0 {
            let mut statuses = vec![0u32; held.count as usize];
            self.statuses.read(u64::from(held.index) * STATUSES, statuses.as_mut_bytes())?;
            outcome.failed.extend(held.failures(statuses.into_iter()));
        }
        Ok(())
    }

    /// Returns the issued blocks whose commands have not all ended.
    pub(crate) fn under_way(&self) -> Vec<u32> {
        let slots = self.lock();
        debug_assert_eq!(slots.len(), self.count as usize, "each block has a slot");
        let all = (0..self.count).zip(slots.iter());
        all.filter(|(index, slot)| self.done(*index) != slot.generation)
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns whether commands of any block may be in flight.
    pub(crate) fn is_under_way(&self) -> bool {
        let slots = self.lock();
        assert_eq!(slots.len(), self.count as usize, "a block has a slot");
        (0..self.count).zip(slots.iter()).any(|(index, slot)| self.done(index) != slot.generation)
    }

    /// Marks every block under way as ended, as no kernel is left to do so. Statuses stay as they are.
    ///
    /// # Errors
    /// [`Error::Cuda`] if waiting streams cannot be released.
    pub(crate) fn end_all(&self) -> Result<()> {
        let mut slots = self.lock();
        debug_assert_eq!(slots.len(), self.count as usize, "each block has a slot");
        for (index, slot) in (0..self.count).zip(slots.iter_mut()) {
            let generation = slot.generation;
            if self.done(index) != generation {
                self.end_use(index, generation, slot)?;
            }
        }
        Ok(())
    }
}

impl Slot {
    fn hold(&mut self, index: u32, device: u16) -> Use {
        assert!(!matches!(self.state, BlockState::Held), "a block has one holder");
        assert!(self.awaited.is_none(), "no stream waits for a free block");
        assert_eq!(self.positions.len(), CONTEXTS_MAX, "the last holder gave them back");
        self.state = BlockState::Held;
        let generation = next_generation(self.generation);
        let positions = std::mem::take(&mut self.positions);
        Use { index, generation, device, count: 0, positions, way: OnceLock::new() }
    }
}

impl Slot {
    fn assert_held_by(&self, held: &Use) {
        assert!(matches!(self.state, BlockState::Held), "a use is given back once");
        let (is, next) = (self.generation, next_generation(self.generation));
        assert!([is, next].contains(&held.generation), "a use is the last, or the next");
        assert!(held.count as usize <= CONTEXTS_MAX, "its contexts fit a block");
    }
}

impl Execution {
    /// Returns the end of the kernel that may still read its arguments.
    fn kernel(&self) -> Option<&Arc<Event>> {
        match self {
            Execution::Kernel(kernel) => Some(kernel),
            Execution::Persistent | Execution::Staged(_) | Execution::Lost | Execution::Unbegun => {
                None
            }
        }
    }
}

impl Use {
    /// Records how it is executed.
    pub(crate) fn set_way(&self, way: Execution) {
        assert!(self.count > 0, "a block is taken for its first context");
        self.way.set(way).expect("a use is issued once");
    }

    pub(crate) fn is_issued(&self) -> bool {
        self.way.get().is_some()
    }

    /// Iterates over the failed commands: position of the transfer, and how it ended.
    fn failures(&self, words: impl Iterator<Item = u32>) -> impl Iterator<Item = (usize, Ended)> {
        assert!(self.count as usize <= self.positions.len(), "each context has a position");
        let positions =
            self.positions[..self.count as usize].iter().map(|position| *position as usize);
        words.zip(positions).filter_map(|(word, position)| Some((position, Ended::of(word)?)))
    }
}

/// Returns the next generation, never 0, which unused memory holds.
fn next_generation(generation: u32) -> u32 {
    let next = generation.wrapping_add(1).max(1);
    assert!(next != generation, "each use has a generation of its own");
    next
}
