//! Streams and kernels that wait for control blocks, without the CPU.

use std::sync::atomic::Ordering;
use std::time::Duration;

use adit_gpu::internals::{self, DeviceMemory, Kernel, PinnedMemory};
use adit_gpu::{Priority, Stream};
use zerocopy::{Immutable, IntoBytes};

use super::check::{Seen, expect};
use super::machine::{GRID, Machine};
use super::rings::{LONG, all_succeeded, round, shape};
use crate::failure::Result;
use crate::rig::Rig;

const COUNT: u32 = 64;

/// The argument of `adit_wait` (kernels.cu).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct WaitArguments {
    uring: u64,
    blocks: u64,
    generations: u64,
    result: u64,
    timeout_ns: u64,
    count: u32,
    zero: u32,
}

const _: () = assert!(size_of::<WaitArguments>() == 48);

/// Value before a waiter writes its result.
const NOTHING: u32 = u32::MAX;

/// Prepares a word for the waiter, a separate stream, and a block. The rig comes last, so that it drops first: memory
/// is not freed while its controller runs.
fn prepared(machine: &Machine) -> Result<(PinnedMemory, Stream, Rig)> {
    let shape = shape(1, 64);
    // First, because creating a stream, memory or an event may wait for running kernels.
    let stream = machine.partitions.compute.stream(Priority::Normal)?;
    let word = PinnedMemory::allocate(&machine.gpu, 4)?;
    word.words()[0].store(NOTHING, Ordering::Release);
    let mut rig = machine.rig(&shape)?;
    rig.fill_reads(0, &shape, 1)?;
    rig.load.prepare(0, &[round(0, (COUNT, u64::from(COUNT)), LONG)])?;
    Ok((word, stream, rig))
}

pub(super) fn by_stream(machine: &Machine) -> Seen {
    let (word, stream, rig) = prepared(machine)?;
    let (over, generation) = rig.load.over_word(0);
    internals::wait32_at_least(&stream, over, generation)?;
    internals::write32(&stream, word.address(), 1)?;
    let early = word.words()[0].load(Ordering::Acquire);
    expect(early == NOTHING, || "the stream did not wait".to_owned())?;
    rig.launch(0..1, GRID)?;
    rig.wait(LONG)?;
    stream.synchronize(LONG)?;
    all_succeeded(&rig.load.headers(0..1)?)?;
    let late = word.words()[0].load(Ordering::Acquire);
    expect(late == 1, || format!("the word behind the wait is {late}"))?;
    Ok("it went on when the block was over".to_owned())
}

pub(super) fn by_kernel(machine: &Machine) -> Seen {
    let arguments = DeviceMemory::allocate(&machine.gpu, size_of::<WaitArguments>() as u64)?;
    let (word, stream, rig) = prepared(machine)?;
    let wait = |timeout: Duration| -> Result<()> {
        let (blocks, generations) = rig.load.lists(0);
        let written = WaitArguments {
            uring: rig.rings.uring(),
            blocks,
            generations,
            result: word.address(),
            timeout_ns: timeout.as_nanos() as u64,
            count: 1,
            zero: 0,
        };
        arguments.write(0, written.as_bytes())?;
        let kernel = machine.program.function(Kernel::Wait);
        internals::launch(&stream, kernel, (1, 32), arguments.address())?;
        Ok(())
    };
    // Nothing was issued, so it has to give up.
    wait(Duration::from_millis(10))?;
    stream.synchronize(LONG)?;
    let result = word.words()[0].load(Ordering::Acquire);
    expect(result == 1, || format!("a wait for nothing ended with {result}, not at its time"))?;
    wait(LONG)?;
    rig.launch(0..1, GRID)?;
    rig.wait(LONG)?;
    stream.synchronize(LONG)?;
    all_succeeded(&rig.load.headers(0..1)?)?;
    let result = word.words()[0].load(Ordering::Acquire);
    expect(result == 0, || format!("the wait for a block ended with {result}"))?;
    Ok("one wait ended with its block, one at its time".to_owned())
}
