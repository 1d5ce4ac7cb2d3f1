//! I/O control blocks for measurements: fixed contexts that are executed over and over.
//!
//! The host writes a block only while no kernel works on it, so prepare blocks only after their last use has ended.
//! Contexts, headers, statuses and the kernels' arguments lie in GPU memory; the words that report a block's end in
//! pinned memory.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use adit_gpu::internals::layout::{Context, Iocb, IssueArguments};
use adit_gpu::internals::{DeviceMemory, PinnedMemory};
use adit_gpu::{Gpu, Result};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Contexts of each block.
pub(crate) const CONTEXTS: u32 = 2048;
const HEADER_BYTES: u64 = size_of::<Iocb>() as u64;
const CONTEXT_BYTES: u64 = size_of::<Context>() as u64;
const ARGUMENTS_BYTES: u64 = size_of::<IssueArguments>() as u64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Number of contexts to use, from the first on.
    pub(crate) count: u32,
    /// Number of commands: the contexts are repeated up to it.
    pub(crate) total: u64,
    pub(crate) first_ring: u32,
    pub(crate) ring_count: u32,
    pub(crate) timeout: Duration,
}

/// Blocks, and all that kernels need to work on them.
#[derive(Debug)]
pub(crate) struct Load {
    iocbs: DeviceMemory,
    contexts: DeviceMemory,
    statuses: DeviceMemory,
    /// Arguments of a kernel for each block, then the list of all blocks, then their generations.
    arguments: DeviceMemory,
    /// A word for each block: the last use that ended.
    over: PinnedMemory,
    generations: Vec<u32>,
}

impl Load {
    /// Allocates `blocks` blocks.
    ///
    /// # Errors
    /// [`adit_gpu::Error::Cuda`] if there is no memory for them.
    pub(crate) fn new(gpu: &Arc<Gpu>, blocks: u32) -> Result<Load> {
        let all = u64::from(blocks) * u64::from(CONTEXTS);
        let allocate = |bytes| DeviceMemory::allocate(gpu, bytes);
        let load = Load {
            iocbs: DeviceMemory::zeroed(gpu, u64::from(blocks) * HEADER_BYTES)?,
            contexts: allocate(all * CONTEXT_BYTES)?,
            statuses: DeviceMemory::zeroed(gpu, all * 4)?,
            arguments: allocate(u64::from(blocks) * (ARGUMENTS_BYTES + 8))?,
            over: PinnedMemory::allocate(gpu, u64::from(blocks) * 4)?,
            generations: vec![0; blocks as usize],
        };
        let list: Vec<u32> = (0..blocks).collect();
        load.arguments.write(load.list_at(0), list.as_bytes())?;
        Ok(load)
    }

    fn list_at(&self, block: u32) -> u64 {
        self.generations.len() as u64 * ARGUMENTS_BYTES + u64::from(block) * 4
    }

    fn generations_at(&self, block: u32) -> u64 {
        self.list_at(block) + self.generations.len() as u64 * 4
    }

    /// Returns the address of the headers and their number.
    pub(crate) fn iocbs(&self) -> (u64, u32) {
        (self.iocbs.address(), self.generations.len() as u32)
    }

    /// Fills a block's contexts, from its first on.
    ///
    /// # Errors
    /// [`adit_gpu::Error::Cuda`].
    pub(crate) fn fill(&self, block: u32, contexts: &[Context]) -> Result<()> {
        assert!(contexts.len() <= CONTEXTS as usize, "more contexts than the block has");
        let first = u64::from(block) * u64::from(CONTEXTS);
        self.contexts.write(first * CONTEXT_BYTES, contexts.as_bytes())
    }

    /// Prepares the next use of blocks from `first` on, one per round. Nothing begins yet.
    ///
    /// # Errors
    /// [`adit_gpu::Error::Cuda`].
    pub(crate) fn prepare(&mut self, first: u32, rounds: &[Round]) -> Result<()> {
        let mut headers = Vec::with_capacity(rounds.len() * HEADER_BYTES as usize);
        for (block, round) in (first..).zip(rounds) {
            let generation = &mut self.generations[block as usize];
            let before = *generation;
            *generation = generation.checked_add(1).unwrap_or(1);
            headers.extend_from_slice(self.header(block, before, round).as_bytes());
        }
        self.iocbs.write(u64::from(first) * HEADER_BYTES, &headers)?;
        let uses = &self.generations[first as usize..][..rounds.len()];
        self.arguments.write(self.generations_at(first), uses.as_bytes())
    }

    fn header(&self, block: u32, before: u32, round: &Round) -> Iocb {
        assert!((1..=CONTEXTS).contains(&round.count), "{round:?}");
        assert!(round.total >= u64::from(round.count), "every context is used: {round:?}");
        assert!(round.total < 1 << 39, "the device's count has 40 bits: {round:?}");
        let first = u64::from(block) * u64::from(CONTEXTS);
        let generation = self.generations[block as usize];
        Iocb {
            contexts: self.contexts.address() + first * CONTEXT_BYTES,
            statuses: self.statuses.address() + first * 4,
            done_host: self.over.address() + u64::from(block) * 4,
            timeout_ns: round.timeout.as_nanos() as u64,
            total: round.total,
            count: round.count,
            first_ring: round.first_ring,
            ring_count: round.ring_count,
            generation,
            issued: before,
            claimed: Iocb::counted(generation, 0),
            remaining: Iocb::counted(generation, round.total),
            done: before,
            ..Iocb::new_zeroed()
        }
    }

    /// Writes and returns the argument of a kernel for the prepared uses of `blocks`.
    ///
    /// # Errors
    /// [`adit_gpu::Error::Cuda`].
    pub(crate) fn argument(&self, uring: u64, blocks: Range<u32>) -> Result<u64> {
        let at = u64::from(blocks.start) * ARGUMENTS_BYTES;
        let base = self.arguments.address();
        let arguments = IssueArguments {
            uring,
            blocks: base + self.list_at(blocks.start),
            generations: base + self.generations_at(blocks.start),
            count: blocks.len() as u32,
            zero: 0,
        };
        self.arguments.write(at, arguments.as_bytes())?;
        Ok(base + at)
    }

    /// Returns the addresses of the lists of blocks and generations from `block` on, for waiting kernels.
    pub(crate) fn lists(&self, block: u32) -> (u64, u64) {
        let base = self.arguments.address();
        (base + self.list_at(block), base + self.generations_at(block))
    }

    /// Makes the persistent kernel begin the prepared use of a block.
    ///
    /// # Errors
    /// [`adit_gpu::Error::Cuda`].
    pub(crate) fn issue(&self, block: u32) -> Result<()> {
        let generation = self.generations[block as usize];
        let at = u64::from(block) * HEADER_BYTES + offset_of!(Iocb, issued) as u64;
        self.iocbs.write(at, generation.as_bytes())
    }

    pub(crate) fn is_over(&self, block: u32) -> bool {
        let over = self.over.words()[block as usize].load(Ordering::Acquire);
        over == self.generations[block as usize]
    }

    /// Returns the word that reports the end to streams, and its final value.
    pub(crate) fn over_word(&self, block: u32) -> (u64, u32) {
        let at = u64::from(block) * HEADER_BYTES + offset_of!(Iocb, done) as u64;
        (self.iocbs.address() + at, self.generations[block as usize])
    }

    /// Reads the headers of `blocks`.
    ///
    /// # Errors
    /// [`adit_gpu::Error::Cuda`].
    pub(crate) fn headers(&self, blocks: Range<u32>) -> Result<Vec<Iocb>> {
        let mut bytes = vec![0; blocks.len() * HEADER_BYTES as usize];
        self.iocbs.read(u64::from(blocks.start) * HEADER_BYTES, &mut bytes)?;
        let headers = bytes.chunks_exact(HEADER_BYTES as usize);
        Ok(headers.map(|one| Iocb::read_from_bytes(one).expect("as long as a header")).collect())
    }

    /// Reads the statuses of the first `count` contexts of a block.
    ///
    /// # Errors
    /// [`adit_gpu::Error::Cuda`].
    pub(crate) fn statuses(&self, block: u32, count: u32) -> Result<Vec<u32>> {
        let mut words = vec![0u32; count as usize];
        let first = u64::from(block) * u64::from(CONTEXTS);
        self.statuses.read(first * 4, words.as_mut_bytes())?;
        Ok(words)
    }
}
