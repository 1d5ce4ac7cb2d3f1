//! Proof that rings carry data: real commands of the I/O kernel, through rings in the chosen places, rung by the chosen
//! doorbells, to and from memory that devices reach as they reach the pool.
//!
//! The memory is not the pool's own, whose content stays. It holds other bytes than the LBA before a read, and what the
//! GPU has there afterwards is compared with what the host reads. More commands are sent than the rings have entries, so
//! completion doorbells must arrive as well. Reads are always proven, writes where the options give an LBA to overwrite.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::spec::Lba;
use adit_driver::transfer::{Direction, Slice, Transfer};

use crate::commands::outcome::IocbOutcome;
use crate::cuda::program::Program;
use crate::cuda::{Gpu, Priority, Stream};
use crate::error::{Error, Result};
use crate::reach::device::Device;
use crate::reach::paths::{Carried, check_arrival, flush_if_needed, host_copy, other_than};
use crate::reach::pool::Pool;
use crate::reach::queue::Queue;
use crate::reach::queues::Prove;
use crate::rings::engine::{copy_headers, launch, prepare};
use crate::rings::iocb::{Blocks, Execution, Filling, Iocbs};
use crate::rings::member::{Member, ring_member};
use crate::rings::ring_set::Rings;

/// Commands in each direction: several laps of the rings.
const COMMANDS: usize = 16;
/// Distance of their data.
const PAGE_BYTES: u64 = 4096;
const FIX: &str = "choose other places or doorbells; 'adit gpu doctor' says what is between the GPU and the drive";
/// Time limit of the commands, on the GPU's clock. Short, because every start waits for it where commands get lost.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long the kernel may take, which ends with its commands.
const PATIENCE: Duration = Duration::from_secs(20);
const WHAT: &str = "commands of the GPU's own";

/// The inputs of a proof besides a device and a queue on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prover<'a> {
    pub(crate) gpu: &'a Arc<Gpu>,
    pub(crate) program: &'a Program,
    pub(crate) pool: &'a Pool,
    /// An LBA that may be overwritten.
    pub(crate) scratch: Option<Lba>,
}

impl Prove for Prover<'_> {
    const DEPTH: u32 = 4;

    /// Proves a queue, which is deleted afterwards.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if commands or data got lost; failures to make what the proof needs.
    fn prove(&self, device: &Device, queue: Queue) -> Result<Carried> {
        let trial = Trial::new(self, device, queue)?;
        match (trial.prove_reads()?, self.scratch) {
            (Carried::FromDrive, Some(lba)) => trial.prove_writes(lba),
            (carried, _) => Ok(carried),
        }
    }
}

/// Rings over one queue, with a pool and a control block of their own.
struct Trial<'a> {
    /// None once leaked, or dropped.
    parts: Option<Parts>,
    program: &'a Program,
    gpu: &'a Arc<Gpu>,
}

/// Dropped in this order: the queue first.
struct Parts {
    rings: Rings,
    blocks: Arc<Blocks>,
    member: Member,
    pool: Pool,
    stream: Stream,
}

impl<'a> Trial<'a> {
    fn new(prover: &Prover<'a>, device: &Device, mut queue: Queue) -> Result<Trial<'a>> {
        let Prover { gpu, program, pool, .. } = *prover;
        let pool = pool.another(&device.controller, COMMANDS as u64 * PAGE_BYTES)?;
        queue.keep(pool.keeper());
        let member = ring_member(0, device, &pool)?;
        let blocks = Arc::new(Blocks::new(gpu, 1, TIMEOUT)?);
        let stream = Stream::new(gpu, Priority::High)?;
        let tables = [&member.table];
        let rings = Rings::new(gpu, vec![vec![queue]], &tables, (blocks.iocbs(), blocks.count()))?;
        let parts = Some(Parts { rings, blocks, member, pool, stream });
        Ok(Trial { parts, program, gpu })
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("there until it is dropped")
    }

    /// Reads the first LBA into each page.
    fn prove_reads(&self) -> Result<Carried> {
        let pool = &self.parts().pool;
        let expected = self.host_copy(Lba(0))?;
        if let Some(expected) = &expected {
            let other = other_than(expected);
            pages().try_for_each(|page| pool.write(0, page, &other))?;
        }
        self.run(Direction::Read, Lba(0), pages())?;
        let Some(expected) = expected else { return Ok(Carried::Nothing) };
        flush_if_needed(self.gpu);
        let check = |page| check_arrival(&expected, |bytes| pool.read(0, page, bytes));
        pages().try_for_each(check)?;
        Ok(Carried::FromDrive)
    }

    /// Writes other bytes than it holds to an LBA.
    fn prove_writes(&self, lba: Lba) -> Result<Carried> {
        let Some(before) = self.host_copy(lba)? else { return Ok(Carried::FromDrive) };
        let written = other_than(&before);
        self.parts().pool.write(0, 0, &written)?;
        self.run(Direction::Write, lba, std::iter::once(0))?;
        if self.host_copy(lba)?.is_some_and(|read| read == written) {
            return Ok(Carried::BothWays);
        }
        let why = format!(
            "a write to LBA {lba} ended with success, and the host reads other bytes there"
        );
        Err(Error::unavailable(WHAT, why, FIX))
    }

    fn host_copy(&self, lba: Lba) -> Result<Option<Vec<u8>>> {
        let Device { controller, namespace } = &self.parts().member.device;
        host_copy(controller, namespace, lba)
    }

    /// Runs a command for each page of the memory, over the same LBA.
    fn run(&self, direction: Direction, lba: Lba, pages: impl Iterator<Item = u64>) -> Result<()> {
        let Parts { member, blocks, .. } = self.parts();
        let namespace = &member.device.namespace;
        let cut = member.table.cut(namespace.lba_count());
        let mut filling = Filling::new(blocks, std::iter::once(cut));
        for (position, offset) in pages.enumerate() {
            let slices = [Slice { region: 0, offset, bytes: u64::from(namespace.lba_bytes()) }];
            filling.add(position, Transfer { device: 0, direction, lba, slices })?;
        }
        let iocbs = filling.finish(None);
        let outcome = self.carry_out(&iocbs)?;
        let Some((_, ended)) = outcome.failed.first() else { return Ok(()) };
        let (failed, all) = (outcome.failed.len(), outcome.commands);
        let why = format!("{failed} of {all} failed, the first of them: {ended}");
        Err(Error::unavailable(WHAT, why, FIX))
    }

    fn carry_out(&self, iocbs: &Iocbs) -> Result<IocbOutcome> {
        let Parts { rings, blocks, stream, .. } = self.parts();
        iocbs.claim()?;
        let argument = prepare(rings, blocks, iocbs);
        let way = copy_headers(stream, blocks, iocbs)
            .and_then(|()| launch(stream, self.program, iocbs, 1, argument));
        for held in iocbs.uses() {
            held.set_way(way.as_ref().map_or(Execution::Lost, Execution::clone));
        }
        way?;
        stream.synchronize(PATIENCE)?;
        assert!(iocbs.is_done()?, "a kernel ends with its commands");
        iocbs.outcome()
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        if !matches!(parts.stream.is_idle(), Ok(true)) {
            tracing::error!("leaking a queue that a kernel may still drive, and its memory");
            std::mem::forget(parts);
        }
    }
}

/// Offsets of the commands' data.
fn pages() -> impl Iterator<Item = u64> {
    (0..COMMANDS as u64).map(|page| page * PAGE_BYTES)
}
