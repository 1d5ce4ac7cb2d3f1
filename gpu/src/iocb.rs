//! I/O control blocks: up to 2048 contexts each, filled by the CPU, issued and waited for together.
//!
//! [`Blocks`] owns the memory of all of them: contexts, headers and arguments in pinned memory, which the CPU writes
//! and the GPU reads; the headers' live copies and the statuses in GPU memory. [`Iocbs`] is a user's hold on some.
//!
//! A block is free, held (being filled, or issued and not let go of), or draining: let go of while its commands were
//! under way. It is used again only once the GPU has said that they have all ended, and the kernel that was launched
//! for it has: who wants the last one waits for a kernel that is about to return. Generations count the uses that were
//! issued. Nothing here calls a device.

mod filling;

pub(crate) use filling::Filling;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{iter, thread};

use zerocopy::{FromZeros, IntoBytes};

use crate::cuda::{DeviceMemory, Event, Gpu, PinnedMemory};
use crate::error::{Error, Result};
use crate::layout::{CONTEXTS_MAX, Context, Iocb, IssueArguments};
use crate::outcome::{Ended, NOT_SENT, Outcome, RESET};
use crate::rings::quads;
use crate::staged::Progress;

/// Most blocks: a request word has 16 bits for one, and each takes 45 KiB.
const BLOCKS_MAX: u32 = 4096;
/// Where the parts of a block lie in its pinned memory, in bytes.
const HEADER: usize = CONTEXTS_MAX * size_of::<Context>();
const ARGUMENTS: usize = HEADER + size_of::<Iocb>();
const DONE: usize = ARGUMENTS + 128;
const LISTS: usize = DONE + 128;
/// Statuses of a block, in bytes.
const STATUSES: u64 = CONTEXTS_MAX as u64 * 4;
/// Much longer than a kernel takes to return that has nothing to do any more: microseconds.
const RETURNS_WITHIN: Duration = Duration::from_secs(5);

/// All blocks of one `GioUring`.
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

/// What is known of a block.
#[derive(Debug)]
struct Slot {
    /// Uses that were issued.
    generation: u32,
    /// The use that streams wait for although it was not issued.
    awaited: Option<u32>,
    state: State,
    /// For each context the position of its transfer; with the holder while the block is held.
    positions: Vec<u32>,
}

#[derive(Debug)]
enum State {
    Free,
    Held,
    /// Let go of, and carried out like this.
    Draining(Way),
}

/// Who carries a block out.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// A kernel of its own, with its end: until then it may read its arguments.
    Kernel(Arc<Event>),
    /// The kernel that runs as long as the rings do.
    Persistent,
    /// CPU threads.
    Staged(Arc<Progress>),
    /// Nobody any more: it may have been begun, and is free again after a recovery.
    Lost,
    /// Nobody: it was refused before anything was begun.
    Unbegun,
}

/// A block in use.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    pub(crate) device: u16,
    pub(crate) count: u32,
    positions: Vec<u32>,
    way: OnceLock<Way>,
}

impl Blocks {
    /// `count` blocks whose commands have `timeout` from the moment they are issued.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no blocks or too many; what refuses memory.
    pub(crate) fn new(gpu: &Arc<Gpu>, count: u32, timeout: Duration) -> Result<Blocks> {
        if !(1..=BLOCKS_MAX).contains(&count) {
            return Err(Error::invalid(
                format!("{count} I/O control blocks"),
                format!("1 to {BLOCKS_MAX} are possible"),
            ));
        }
        let stride = (LISTS + 8 * count as usize).next_multiple_of(4096);
        let iocbs = DeviceMemory::allocate(gpu, u64::from(count) * size_of::<Iocb>() as u64)?;
        iocbs.zero()?;
        let slot = |_| {
            let positions = vec![0; CONTEXTS_MAX];
            Slot { generation: 0, awaited: None, state: State::Free, positions }
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

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Where the GPU finds the live headers.
    pub(crate) fn iocbs(&self) -> u64 {
        self.iocbs.address()
    }

    /// How long a block's commands may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The word that waiters look at: the generation of the last use whose commands have all ended.
    pub(crate) fn done_address(&self, index: u32) -> u64 {
        self.header_address(index) + std::mem::offset_of!(Iocb, done) as u64
    }

    /// The word that says to a persistent kernel that a block is to be worked on.
    pub(crate) fn issued_address(&self, index: u32) -> u64 {
        self.header_address(index) + std::mem::offset_of!(Iocb, issued) as u64
    }

    /// Where the statuses of a block lie.
    pub(crate) fn statuses_address(&self, index: u32) -> u64 {
        self.statuses.address() + u64::from(index) * STATUSES
    }

    /// Where a block's live header lies.
    pub(crate) fn header_address(&self, index: u32) -> u64 {
        assert!(index < self.count);
        self.iocbs.address() + u64::from(index) * size_of::<Iocb>() as u64
    }

    /// The pinned memory, and where in it a block's header is prepared: all of it before `done`, which only says when a
    /// use is over, and may be said to be while the header is copied.
    pub(crate) fn prepared_header(&self, index: u32) -> (&PinnedMemory, std::ops::Range<u64>) {
        let start = (self.at(index) + HEADER) as u64;
        (&self.pinned, start..start + std::mem::offset_of!(Iocb, done) as u64)
    }

    fn at(&self, index: u32) -> usize {
        assert!(index < self.count);
        index as usize * self.stride
    }

    /// 64-bit words of a block's pinned memory.
    fn words(&self, index: u32, offset: usize, bytes: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && offset + bytes <= self.stride);
        let start = (self.at(index) + offset) / 8;
        &quads(&self.pinned)[start..start + bytes.div_ceil(8)]
    }

    /// The GPU's address of a part of a block's pinned memory.
    fn address(&self, index: u32, offset: usize) -> u64 {
        self.pinned.address() + (self.at(index) + offset) as u64
    }

    fn write(&self, index: u32, offset: usize, bytes: &[u8]) {
        let (quads, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "structures are whole words");
        for (word, value) in self.words(index, offset, bytes.len()).iter().zip(quads) {
            word.store(u64::from_le_bytes(*value), Ordering::Relaxed);
        }
    }

    /// The use that the GPU last said has ended.
    fn done(&self, index: u32) -> u32 {
        self.pinned.words()[(self.at(index) + DONE) / 4].load(Ordering::Acquire)
    }

    /// Whether all commands of a use have ended.
    pub(crate) fn is_done(&self, held: &Use) -> bool {
        held.way.get().is_some_and(|way| self.has_ended(held.index, held.generation, way))
    }

    fn has_ended(&self, index: u32, generation: u32, way: &Way) -> bool {
        match way {
            Way::Staged(progress) => progress.done() == generation,
            Way::Kernel(_) | Way::Persistent | Way::Lost => self.done(index) == generation,
            Way::Unbegun => true,
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
            let mut free = (0..self.count).zip(slots.iter_mut());
            if let Some((index, slot)) = free.find(|(index, slot)| self.is_free(*index, slot)) {
                return Ok(slot.hold(index, device));
            }
            // Whoever saw his commands end need not see the kernel return as well.
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
            State::Free => true,
            State::Held => false,
            // A kernel whose end cannot be asked for has not ended.
            State::Draining(way) => {
                way.kernel().is_none_or(|kernel| kernel.is_over().unwrap_or(false))
                    && self.has_ended(index, slot.generation, way)
            }
        }
    }

    /// Whether a kernel has carried out all that it was launched for, and has yet to return.
    fn is_one_returning(&self, slots: &[Slot]) -> bool {
        let draining = || {
            (0..self.count).zip(slots).filter_map(|(index, slot)| {
                let State::Draining(way) = &slot.state else { return None };
                Some((way.kernel()?, self.has_ended(index, slot.generation, way)))
            })
        };
        draining().any(|(kernel, has_ended)| {
            // One whose end cannot be asked for, since the context is lost, is not waited for.
            has_ended
                && kernel.is_over().is_ok()
                && draining().all(|(other, has_ended)| has_ended || !Arc::ptr_eq(kernel, other))
        })
    }

    /// Takes note that a use is about to be issued.
    pub(crate) fn note_issue(&self, held: &Use) {
        let slot = &mut self.lock()[held.index as usize];
        slot.generation = held.generation;
        slot.awaited = None;
    }

    /// Takes note that a stream is about to wait for a use.
    pub(crate) fn note_wait(&self, held: &Use) {
        let slot = &mut self.lock()[held.index as usize];
        if slot.generation != held.generation {
            slot.awaited = Some(held.generation);
        }
    }

    /// Lets streams go on that wait for a use which nobody carries out: it counts as issued and over.
    ///
    /// # Errors
    /// What keeps the GPU's memory from being written: they wait for ever then, on a word that must stay.
    pub(crate) fn end_unissued(&self, held: &Use) -> Result<()> {
        let slot = &mut self.lock()[held.index as usize];
        slot.awaited = Some(held.generation);
        self.end_use(held.index, held.generation, slot)
    }

    /// The same for all that was not issued and is waited for: nobody can issue it any more.
    ///
    /// # Errors
    /// As [`Blocks::end_unissued`].
    pub(crate) fn end_all_unissued(&self) -> Result<()> {
        for (index, slot) in (0..self.count).zip(self.lock().iter_mut()) {
            if let Some(generation) = slot.awaited {
                self.end_use(index, generation, slot)?;
            }
        }
        Ok(())
    }

    fn end_use(&self, index: u32, generation: u32, slot: &mut Slot) -> Result<()> {
        // A kernel that looks meanwhile finds the use before over, as it was.
        let at = self.done_address(index) - self.iocbs();
        self.iocbs.write(at, &generation.to_le_bytes())?;
        slot.generation = generation;
        slot.awaited = None;
        self.pinned.words()[(self.at(index) + DONE) / 4].store(generation, Ordering::Release);
        Ok(())
    }

    /// Whether streams wait for a use that was not issued.
    fn is_awaited(&self, held: &Use) -> bool {
        self.lock()[held.index as usize].awaited == Some(held.generation)
    }

    /// Gives a block back: free, or draining if it was issued.
    fn give_back(&self, held: &mut Use) {
        let slot = &mut self.lock()[held.index as usize];
        slot.positions = std::mem::take(&mut held.positions);
        slot.state = match held.way.take() {
            None => State::Free,
            Some(way) => State::Draining(way),
        };
    }

    /// Writes a block's header for the GPU to take over.
    pub(crate) fn prepare(&self, held: &Use, first_ring: u32, ring_count: u32) {
        let total = u64::from(held.count);
        assert!(
            (1..=CONTEXTS_MAX as u64).contains(&total),
            "a block is taken for its first context"
        );
        let Use { index, generation, .. } = *held;
        // Until it is issued it looks as the last use left it.
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

    /// The first `count` contexts of a block.
    pub(crate) fn contexts(&self, held: &Use) -> impl ExactSizeIterator<Item = Context> {
        let (pairs, _) = self.words(held.index, 0, HEADER).as_chunks::<2>();
        pairs[..held.count as usize].iter().map(|[address, place]| Context {
            address: address.load(Ordering::Relaxed),
            place: place.load(Ordering::Relaxed),
        })
    }

    /// Writes the argument of a kernel that is launched for `uses`, and gives its address. It lies with the first.
    pub(crate) fn prepare_issue(&self, uring: u64, uses: &[Use]) -> u64 {
        let first = uses[0].index;
        let (blocks, generations) = self.lists(uses);
        let arguments =
            IssueArguments { uring, blocks, generations, count: uses.len() as u32, zero: 0 };
        self.write(first, ARGUMENTS, arguments.as_bytes());
        self.address(first, ARGUMENTS)
    }

    /// Where the GPU finds the indices and the generations of `uses`: with the first.
    pub(crate) fn lists(&self, uses: &[Use]) -> (u64, u64) {
        let blocks = self.address(uses[0].index, LISTS);
        (blocks, blocks + 4 * u64::from(self.count))
    }

    /// Writes the indices and the generations of `uses`, which kernels read.
    fn write_lists(&self, uses: &[Use]) {
        let start = (self.at(uses[0].index) + LISTS) / 4;
        let words = &self.pinned.words()[start..start + 2 * self.count as usize];
        let (blocks, generations) = words.split_at(self.count as usize);
        for ((block, generation), held) in blocks.iter().zip(generations).zip(uses) {
            block.store(held.index, Ordering::Relaxed);
            generation.store(held.generation, Ordering::Relaxed);
        }
    }

    /// Adds how a use ended to `outcome`.
    ///
    /// # Errors
    /// What keeps the GPU's memory from being read.
    fn read_back(&self, held: &Use, outcome: &mut Outcome) -> Result<()> {
        outcome.commands += u64::from(held.count);
        match held.way.get() {
            Some(Way::Kernel(_) | Way::Persistent) => self.read_back_rings(held, outcome)?,
            Some(Way::Staged(progress)) => {
                outcome.took = outcome.took.max(Duration::from_nanos(progress.took_ns()));
                let words = (0..held.count as usize).map(|context| progress.status(context));
                outcome.failed.extend(held.failures(words));
            }
            // It may have been begun, and even carried out.
            Some(Way::Lost) => outcome.failed.extend(held.failures(iter::repeat(RESET))),
            Some(Way::Unbegun) | None => {
                outcome.failed.extend(held.failures(iter::repeat(NOT_SENT)))
            }
        }
        Ok(())
    }

    fn read_back_rings(&self, held: &Use, outcome: &mut Outcome) -> Result<()> {
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

    /// Blocks that were issued and whose commands have not all ended.
    pub(crate) fn under_way(&self) -> Vec<u32> {
        let slots = self.lock();
        let all = (0..self.count).zip(slots.iter());
        all.filter(|(index, slot)| self.done(*index) != slot.generation)
            .map(|(index, _)| index)
            .collect()
    }

    /// Says of every block that is under way that it ended: there is nobody left to say so. Its statuses are as they are.
    ///
    /// # Errors
    /// [`Error::Cuda`] if streams that wait for one cannot be told.
    pub(crate) fn end_all(&self) -> Result<()> {
        for (index, slot) in (0..self.count).zip(self.lock().iter_mut()) {
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
        self.state = State::Held;
        let generation = next_generation(self.generation);
        let positions = std::mem::take(&mut self.positions);
        Use { index, generation, device, count: 0, positions, way: OnceLock::new() }
    }
}

impl Way {
    /// The end of the kernel that may still read its arguments.
    fn kernel(&self) -> Option<&Arc<Event>> {
        match self {
            Way::Kernel(kernel) => Some(kernel),
            Way::Persistent | Way::Staged(_) | Way::Lost | Way::Unbegun => None,
        }
    }
}

impl Use {
    /// Takes note of who carries it out.
    pub(crate) fn set_way(&self, way: Way) {
        self.way.set(way).expect("a use is issued once");
    }

    /// Each failed command's transfer and end.
    fn failures(&self, words: impl Iterator<Item = u32>) -> impl Iterator<Item = (usize, Ended)> {
        let positions =
            self.positions[..self.count as usize].iter().map(|position| *position as usize);
        words.zip(positions).filter_map(|(word, position)| Some((position, Ended::of(word)?)))
    }
}

/// Counts uses: never 0, which is what memory that was never used says.
fn next_generation(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}

/// I/O control blocks that were filled by one call of `get_iocb`, to be issued and waited for together.
///
/// Dropping them gives their blocks back: at once if they were not issued, otherwise when their commands have ended.
/// Streams that wait for what was not issued go on then.
#[derive(Debug)]
pub struct Iocbs {
    blocks: Arc<Blocks>,
    uses: Vec<Use>,
    after: Option<Arc<Event>>,
    is_issued: AtomicBool,
    /// Whether their data were flushed, once they had ended.
    is_flushed: AtomicBool,
}

impl Iocbs {
    /// Commands that the transfers were cut into.
    pub fn commands(&self) -> u64 {
        self.uses.iter().map(|held| u64::from(held.count)).sum()
    }

    /// Control blocks that they fill.
    pub fn blocks(&self) -> usize {
        self.uses.len()
    }

    pub(crate) fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// Whether they are some of these blocks: positions and generations mean nothing among others.
    ///
    /// # Errors
    /// [`Error::Invalid`] for blocks of other rings.
    pub(crate) fn check_of(&self, blocks: &Arc<Blocks>) -> Result<()> {
        if Arc::ptr_eq(&self.blocks, blocks) {
            return Ok(());
        }
        let why = "other rings made them; use the rings whose get_iocb gave them";
        Err(Error::invalid("these control blocks", why))
    }

    /// What they wait for before they begin.
    pub(crate) fn after(&self) -> Option<&Arc<Event>> {
        self.after.as_ref()
    }

    /// Whether they may be issued now: once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they were.
    pub(crate) fn claim(&self) -> Result<()> {
        if self.is_issued.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid(
                "issue_io",
                "these control blocks were issued; get others with get_iocb",
            ));
        }
        Ok(())
    }

    /// Whether all their commands have ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they were not issued.
    pub(crate) fn is_done(&self) -> Result<bool> {
        if !self.uses.is_empty() && !self.is_issued.load(Ordering::Relaxed) {
            return Err(Error::invalid(
                "wait for control blocks",
                "they were not issued; call issue_io first",
            ));
        }
        Ok(self.uses.iter().all(|held| self.blocks.is_done(held)))
    }

    /// Lets `flush` do its work, unless it has.
    ///
    /// # Errors
    /// Those of `flush`, which is tried again the next time.
    pub(crate) fn flush_once(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.is_flushed.load(Ordering::Acquire) {
            flush()?;
            self.is_flushed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// How they ended.
    pub(crate) fn outcome(&self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for held in &self.uses {
            self.blocks.read_back(held, &mut outcome)?;
        }
        outcome.failed.sort_by_key(|(position, _)| *position);
        Ok(outcome)
    }
}

impl Drop for Iocbs {
    fn drop(&mut self) {
        for held in &mut self.uses {
            if self.blocks.is_awaited(held)
                && let Err(error) = self.blocks.end_unissued(held)
            {
                tracing::error!(
                    "leaking control blocks that a stream waits for and nobody issued: {error}"
                );
                std::mem::forget(Arc::clone(&self.blocks));
            }
            self.blocks.give_back(held);
        }
    }
}
