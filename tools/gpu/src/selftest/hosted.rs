//! Rings in host memory served by the driver's software controller, and the staged engine: what works everywhere.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::spec::Lba;
use adit_driver::transfer::{Direction, Slice, Transfer};
use adit_gpu::{DoorbellChoice, EngineChoice, GioUring, Gpu, KernelChoice, Options, Place, Pool};

use super::check::{Seen, expect};
use super::machine::Machine;
use crate::failure::Result;
use crate::options::open;
use crate::rig::pattern::pattern;

pub(crate) const TARGET: &str = "soft:mem=64M,dbbuf=off";
/// The hundredth command completes with the identifier of another.
const TARGET_FAULTY: &str = "soft:mem=64M,dbbuf=off,faults=cid@n=100";
/// Bytes of each region: one is written, the other read into.
const REGION_BYTES: u64 = 1 << 20;
const PIECE_BYTES: u64 = 8192;
const LONG: Duration = Duration::from_secs(30);

/// Returns options for few multiprocessors and host memory.
pub(crate) fn options() -> Options {
    Options {
        queues: 2,
        depth: 64,
        submission: Some(Place::Host),
        completion: Some(Place::Host),
        engine: EngineChoice::Rings,
        blocks: 4,
        timeout: LONG,
        ..Options::default()
    }
}

pub(crate) fn rings(gpu: &Arc<Gpu>, target: &str, options: &Options) -> Result<GioUring> {
    let device = open(&target.parse()?)?;
    let controllers = slice::from_ref(&device.controller);
    let pool = Pool::allocate(gpu, controllers, &[REGION_BYTES; 2], Some(Place::Host))?;
    Ok(GioUring::init_queue(gpu, vec![device], pool, options)?)
}

/// Returns transfers of a region's pieces, to or from the namespace.
fn pieces(region: u32, direction: Direction) -> impl Iterator<Item = Transfer<[Slice; 1]>> {
    (0..REGION_BYTES / PIECE_BYTES).map(move |index| Transfer {
        device: 0,
        direction,
        lba: Lba(index * PIECE_BYTES / 512),
        slices: [Slice { region, offset: index * PIECE_BYTES, bytes: PIECE_BYTES }],
    })
}

fn carry_out(uring: &GioUring, region: u32, direction: Direction) -> Result<u64> {
    let iocbs = uring.get_iocb(pieces(region, direction), None)?;
    uring.issue_io(&iocbs, 2)?;
    let outcome = uring.wait(iocbs, LONG)?;
    let failed = outcome.failed.first();
    expect(outcome.is_success(), || match failed {
        Some((position, ended)) => format!("transfer {position}: {ended}"),
        None => "it failed without saying what".to_owned(),
    })?;
    Ok(outcome.commands)
}

/// Writes data and reads it back, byte by byte the same.
pub(crate) fn there_and_back(uring: &GioUring) -> Result<u64> {
    let written = pattern(REGION_BYTES);
    uring.pool().write(0, 0, &written)?;
    let mut commands = carry_out(uring, 0, Direction::Write)?;
    commands += carry_out(uring, 1, Direction::Read)?;
    let mut read = vec![0; written.len()];
    uring.pool().read(1, 0, &mut read)?;
    expect(read == written, || "what was read is not what was written".to_owned())?;
    Ok(commands)
}

fn doorbells(uring: &GioUring) -> String {
    match &uring.description().doorbells {
        Some((name, Some(why))) => format!("doorbells {name}: {why}"),
        Some((name, None)) => format!("doorbells {name}"),
        None => "no doorbells of the GPU's".to_owned(),
    }
}

pub(super) fn mapped(machine: &Machine) -> Seen {
    round_trip(machine, &Options { doorbells: DoorbellChoice::Auto, ..options() })
}

pub(super) fn proxied(machine: &Machine) -> Seen {
    let (doorbells, kernel) = (DoorbellChoice::Proxy, KernelChoice::Persistent);
    round_trip(machine, &Options { doorbells, kernel, ..options() })
}

fn round_trip(machine: &Machine, options: &Options) -> Seen {
    let uring = rings(&machine.gpu, TARGET, options)?;
    let commands = there_and_back(&uring)?;
    Ok(format!("{commands} commands; {}", doorbells(&uring)))
}

pub(super) fn recovery(machine: &Machine) -> Seen {
    let uring = rings(&machine.gpu, TARGET_FAULTY, &options())?;
    let iocbs = uring.get_iocb(pieces(0, Direction::Read), None)?;
    uring.issue_io(&iocbs, 2)?;
    let ended = uring.wait(iocbs, LONG);
    let noticed = ended.as_ref().map_or(true, |outcome| !outcome.is_success());
    expect(noticed, || "a completion of an unknown command was not noticed".to_owned())?;
    uring.recover()?;
    let commands = there_and_back(&uring)?;
    Ok(format!("a ring was poisoned, recovered, and carried {commands} commands"))
}

pub(super) fn staged(gpu: &Arc<Gpu>) -> Seen {
    let chosen = Options { engine: EngineChoice::Staged, ..options() };
    let uring = rings(gpu, TARGET, &chosen)?;
    let commands = there_and_back(&uring)?;
    Ok(format!("{commands} commands through pinned memory and asynchronous copies"))
}
