//! Rings, their server and their load: everything to measure or check, created in the required order.
//!
//! All memory is allocated before any endless kernel runs, the controller starts before anything posts to it, and it is
//! stopped before anything is freed.

pub(crate) mod load;
pub(crate) mod pattern;
pub(crate) mod server;

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::time::Duration;

use adit_gpu::internals::cut::{self, Span};
use adit_gpu::internals::layout::{Context, Iocb};
use adit_gpu::internals::table::MappingTable;
use adit_gpu::internals::{self, Kernel, Partition, Program, Rings};
use adit_gpu::{Error, Gpu, Priority, Result, Stream};

use crate::controller::{Counters, Shape};
use load::{CONTEXTS, Load, Round};
use server::Server;

/// Extra time for a kernel after its commands' deadline.
const GRACE: Duration = Duration::from_secs(5);

/// Rings with a server and a load, in order of creation.
#[derive(Debug)]
pub(crate) struct Rig {
    /// None once dropped.
    parts: Option<Parts>,
}

#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) server: Server,
    pub(crate) rings: Rings,
    pub(crate) load: Load,
    stream: Stream,
    program: Arc<Program>,
    /// Where commands find the data.
    pub(crate) span: Span,
    /// Entries of each completion ring.
    pub(crate) completion_depth: u32,
}

impl Rig {
    /// Creates rings of `shape` served by `server`, for kernels in `partition`, with `blocks` blocks.
    ///
    /// # Errors
    /// CUDA's and the driver's, of creating queues and memory.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        program: &Arc<Program>,
        partition: &Partition,
        server: Server,
        (shape, blocks): (&Shape, u32),
    ) -> Result<Rig> {
        let load = Load::new(gpu, blocks)?;
        let span = server.span();
        let limits = cut::CutLimits {
            lba_shift: shape.lba_shift,
            lba_count: shape.lbas,
            max_bytes: 1 << 20,
            boundary_lbas: 0,
            address_mask: 0,
        };
        let table = MappingTable::without_lists(limits, vec![span], shape.form)?;
        let queues = server.queues(gpu, shape)?;
        let completion_depth = queues.first().expect("a shape has queues").depths.completion;
        let rings = Rings::new(gpu, vec![queues], &[&table], load.iocbs())?;
        let stream = partition.stream(Priority::High)?;
        let program = Arc::clone(program);
        let parts = Parts { server, rings, load, stream, program, span, completion_depth };
        Ok(Rig { parts: Some(parts) })
    }
}

impl Deref for Rig {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        self.parts.as_ref().expect("it is taken when the rig is dropped")
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("it is taken when the rig is dropped")
    }
}

impl Parts {
    /// Fills a block with reads of `lbas` LBAs each, sequentially over namespace and data.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(crate) fn fill_reads(&self, block: u32, shape: &Shape, lbas: u64) -> Result<()> {
        let span = self.span;
        let bytes = lbas << shape.lba_shift;
        let (slots, runs) = (span.bytes / bytes, shape.lbas / lbas);
        assert!(slots > 0 && runs > 0, "a command fits the data and the namespace");
        let context = |index: u64| Context {
            address: span.address + index % slots * bytes,
            place: Context::place(index % runs * lbas, lbas, 0, false),
        };
        let first = u64::from(block) * u64::from(CONTEXTS);
        let contexts: Vec<Context> = (first..first + u64::from(CONTEXTS)).map(context).collect();
        self.load.fill(block, &contexts)
    }

    /// Enqueues a kernel of `grid` blocks of `threads` threads for prepared uses of `blocks`.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(crate) fn launch(&self, blocks: Range<u32>, (grid, threads): (u32, u32)) -> Result<()> {
        self.rings.set_stop(false);
        let argument = self.load.argument(self.rings.uring(), blocks)?;
        internals::launch(
            &self.stream,
            self.program.function(Kernel::Issue),
            (grid, threads),
            argument,
        )
    }

    /// Starts the persistent kernel.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(crate) fn persist(&self, (grid, threads): (u32, u32)) -> Result<()> {
        self.rings.set_stop(false);
        let kernel = self.program.function(Kernel::Persist);
        internals::launch(&self.stream, kernel, (grid, threads), self.rings.uring())
    }

    /// Stops the persistent kernel.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if it does not end.
    pub(crate) fn unpersist(&self) -> Result<()> {
        self.rings.set_stop(true);
        self.wait(Duration::ZERO)
    }

    /// Waits for all enqueued kernels, whose commands had `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if they do not end.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<()> {
        self.stream.synchronize(timeout + GRACE)
    }

    /// Prepares one round for each block from `first` on, executes them and returns their headers.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::TimedOut`] if the kernel does not end.
    pub(crate) fn go(
        &mut self,
        first: u32,
        rounds: &[Round],
        grid: (u32, u32),
    ) -> Result<Vec<Iocb>> {
        let blocks = first..first + rounds.len() as u32;
        self.load.prepare(first, rounds)?;
        self.launch(blocks.clone(), grid)?;
        let longest = rounds.iter().map(|round| round.timeout).max().unwrap_or_default();
        self.wait(longest)?;
        self.load.headers(blocks)
    }

    /// Fails if a ring is out of service.
    ///
    /// # Errors
    /// [`Error::OutOfService`] with the reason.
    pub(crate) fn check(&self) -> Result<()> {
        match self.rings.poison()? {
            None => Ok(()),
            Some(reason) => Err(broken(reason)),
        }
    }

    /// Stops the controller, and checks that it saw `commands` good ones. Returns its counters; `None` for the CPU's,
    /// which counts nothing and completes only good commands.
    ///
    /// # Errors
    /// As [`Parts::check`], also if the controller saw others.
    pub(crate) fn finish(&mut self, commands: u64) -> Result<Option<Counters>> {
        self.check()?;
        self.server.stop()?;
        let Some(seen) = self.server.counters()? else { return Ok(None) };
        if (seen.commands, seen.bad) == (commands, 0) {
            return Ok(Some(seen));
        }
        let (all, bad) = (seen.commands, seen.bad);
        Err(broken(format!(
            "{commands} commands ended, the controller saw {all} and refused {bad}"
        )))
    }
}

fn broken(reason: String) -> Error {
    Error::OutOfService { device: "software controller".to_owned(), reason }
}

/// Returns the commands of blocks, and the time from the first command to the last end.
///
/// # Errors
/// [`Error::OutOfService`] if a command failed.
pub(crate) fn add_up(headers: &[Iocb]) -> Result<(u64, u64)> {
    let failed: u64 = headers.iter().map(|header| header.failed).sum();
    if failed > 0 {
        return Err(broken(format!("{failed} commands failed")));
    }
    let start = headers.iter().map(|header| header.started_ns).min().unwrap_or(0);
    let end = headers.iter().map(|header| header.ended_ns).max().unwrap_or(0);
    Ok((headers.iter().map(|header| header.total).sum(), end.saturating_sub(start)))
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Freeing memory waits for kernels, so those that do not end by themselves are stopped first.
        if let Err(error) = self.unpersist().and_then(|()| self.server.stop()) {
            tracing::warn!("{error}; the memory that the kernel may reach is not freed");
            std::mem::forget(self.parts.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn header(started_ns: u64, ended_ns: u64, total: u64) -> Iocb {
        Iocb { started_ns, ended_ns, total, ..Iocb::new_zeroed() }
    }

    #[test]
    fn blocks_are_timed_from_the_first_start_to_the_last_end() {
        let headers = [header(100, 900, 10), header(50, 700, 20)];
        assert_eq!(add_up(&headers).expect("none failed"), (30, 850));
    }

    #[test]
    fn one_failed_command_is_the_end_of_a_measurement() {
        let bad = Iocb { failed: 1, ..header(1, 2, 3) };
        assert!(add_up(&[bad]).is_err());
    }
}
