//! Rings served by the controller in device code, which checks every command; these checks verify every count.

use std::time::{Duration, Instant};

use adit_gpu::Place;
use adit_gpu::internals::layout::{Context, Form, Iocb};

use super::check::{Seen, expect};
use super::machine::{GRID, Machine, controller, seen};
use crate::controller::{Faults, Shape};
use crate::failure::Result;
use crate::rig::Rig;
use crate::rig::load::Round;
use crate::rig::pattern::pattern;

/// Queues and entries: the smallest, odd ones, more queues than warps.
const SHAPES: [(u32, u32); 6] = [(1, 2), (1, 3), (3, 7), (2, 64), (5, 100), (8, 1024)];
/// Contexts of each block, and commands: the contexts are repeated.
const COUNT: u32 = 256;
const TOTAL: u64 = 4 * COUNT as u64;
/// Time limit for everything.
pub(super) const LONG: Duration = Duration::from_secs(30);
const MEDIA_LBAS: u64 = 4096;
/// Bytes of each data transfer, and number of transfers.
const PIECE_BYTES: u64 = 4096;
const PIECES: u64 = 128;

/// Returns a controller without media.
pub(crate) fn shape(queues: u32, depth: u32) -> Shape {
    Shape {
        queues,
        depth,
        place: Place::Gpu,
        lba_shift: 9,
        lbas: 1 << 20,
        form: Form::Sgl,
        media: false,
        faults: Faults::NONE,
    }
}

pub(super) fn round(ring: u32, (count, total): (u32, u64), timeout: Duration) -> Round {
    Round { count, total, first_ring: ring, ring_count: 1, timeout }
}

pub(super) fn all_succeeded(headers: &[Iocb]) -> Result<()> {
    let failed: u64 = headers.iter().map(|header| header.failed).sum();
    expect(failed == 0, || format!("{failed} commands failed"))
}

/// Fills each ring's block and executes all of them.
fn carry_out(rig: &mut Rig, shape: &Shape) -> Result<u64> {
    for ring in 0..shape.queues {
        rig.fill_reads(ring, shape, 8)?;
    }
    let rounds: Vec<Round> =
        (0..shape.queues).map(|ring| round(ring, (COUNT, TOTAL), LONG)).collect();
    all_succeeded(&rig.go(0, &rounds, GRID)?)?;
    rig.check()?;
    let sent = u64::from(shape.queues) * TOTAL;
    let seen = seen(rig)?;
    expect((seen.commands, seen.completions) == (sent, sent), || {
        format!("{sent} commands were sent, the controller saw {seen:?}")
    })?;
    expect(seen.looks > 0 && seen.full == 0, || {
        format!("the controller found its completion rings full: {seen:?}")
    })?;
    let counted = rig.rings.counters()?;
    let entries = u64::from(shape.depths().completion);
    let laps = u64::from(shape.queues) * (TOTAL / entries + 1);
    expect(counted.commands == sent && counted.cq_rings <= 4 * laps, || {
        format!("{sent} commands in {laps} laps, but {counted:?}")
    })?;
    let left = rig.rings.outstanding()?.len();
    expect(left == 0, || format!("{left} identifiers were not given back"))?;
    Ok(sent)
}

pub(super) fn shapes(machine: &Machine) -> Seen {
    let mut commands = 0;
    for (queues, depth) in SHAPES {
        let shape = shape(queues, depth);
        let mut rig = machine.rig(&shape)?;
        let carried = carry_out(&mut rig, &shape);
        commands += carried.map_err(|why| why.and(format!("{queues} queues of {depth}")))?;
    }
    Ok(format!("{commands} commands through {} shapes, all checked", SHAPES.len()))
}

pub(super) fn in_host_memory(machine: &Machine) -> Seen {
    let shape = Shape { place: Place::Host, ..shape(2, 64) };
    let commands = carry_out(&mut machine.rig(&shape)?, &shape)?;
    Ok(format!("{commands} commands, all checked"))
}

pub(super) fn one_at_a_time(machine: &Machine) -> Seen {
    const COMMANDS: u64 = 20;
    let shape = shape(1, 64);
    let mut rig = machine.rig(&shape)?;
    rig.fill_reads(0, &shape, 1)?;
    for _ in 0..COMMANDS {
        all_succeeded(&rig.go(0, &[round(0, (1, 1), LONG)], (1, 32))?)?;
    }
    let rings = rig.rings.counters()?.sq_rings;
    expect(rings == COMMANDS, || format!("{COMMANDS} commands, {rings} doorbells"))?;
    let seen = seen(&mut rig)?.sq_rings;
    expect(seen == COMMANDS, || format!("{COMMANDS} doorbells, of which {seen} arrived"))?;
    Ok(format!("{COMMANDS} commands, as many doorbells"))
}

/// Writes pieces of the data's first half to the namespace in one order, and reads them into the second half in
/// another.
pub(super) fn move_data(machine: &Machine, form: Form) -> Seen {
    let shape = Shape { form, media: true, lbas: MEDIA_LBAS, ..shape(2, 64) };
    let mut rig = machine.rig(&shape)?;
    let (address, half) = (rig.span.address, PIECES * PIECE_BYTES);
    let lbas = PIECE_BYTES >> shape.lba_shift;
    let piece = |index: u64, base: u64, is_write: bool| Context {
        address: base + index * PIECE_BYTES,
        place: Context::place((PIECES - 1 - index) * lbas, lbas, 0, is_write),
    };
    let written: Vec<Context> = (0..PIECES).map(|index| piece(index, address, true)).collect();
    // 37 and the number of pieces are coprime.
    let read: Vec<Context> =
        (0..PIECES).map(|index| piece(index * 37 % PIECES, address + half, false)).collect();
    let pattern = pattern(half);
    controller(&mut rig).1.write(0, &pattern)?;
    let all = Round { ring_count: 2, ..round(0, (PIECES as u32, PIECES), LONG) };
    for contexts in [written, read] {
        rig.load.fill(0, &contexts)?;
        all_succeeded(&rig.go(0, &[all], GRID)?)?;
    }
    seen(&mut rig)?;
    let mut back = vec![0; pattern.len()];
    let (controller, data) = controller(&mut rig);
    data.read(half, &mut back)?;
    expect(back == pattern, || "what was read is not what was written".to_owned())?;
    // The last piece is the namespace's first.
    let last = &pattern[pattern.len() - PIECE_BYTES as usize..];
    let mut first = vec![0; PIECE_BYTES as usize];
    controller.read_media(0, &mut first)?;
    expect(first == last, || "the namespace does not hold what was written".to_owned())?;
    Ok(format!("{} KiB there and back, byte by byte the same", half >> 10))
}

pub(super) fn stop_and_restart(machine: &Machine) -> Seen {
    const EACH: u64 = 64 * COUNT as u64;
    let shape = shape(2, 64);
    let mut rig = machine.rig(&shape)?;
    for ring in 0..2 {
        rig.fill_reads(ring, &shape, 1)?;
    }
    rig.load.prepare(0, &[0, 1].map(|ring| round(ring, (COUNT, EACH), LONG)))?;
    rig.persist(GRID)?;
    for ring in 0..2 {
        rig.load.issue(ring)?;
    }
    wait_until(|| Ok(rig.rings.counters()?.commands > 0), "the first command")?;
    rig.unpersist()?;
    let before = rig.rings.counters()?.commands;
    rig.persist(GRID)?;
    wait_until(|| Ok((0..2).all(|ring| rig.load.is_over(ring))), "the blocks to end")?;
    rig.unpersist()?;
    all_succeeded(&rig.load.headers(0..2)?)?;
    let seen = seen(&mut rig)?.commands;
    expect(seen == 2 * EACH, || format!("{} commands were to be sent, {seen} were", 2 * EACH))?;
    Ok(format!("{before} commands before the stop, {} after the restart", seen - before))
}

/// Polls until a condition holds, for a bounded time.
pub(super) fn wait_until(mut holds: impl FnMut() -> Result<bool>, what: &str) -> Result<()> {
    let begin = Instant::now();
    while !holds()? {
        expect(begin.elapsed() < LONG, || format!("waited {} s for {what}", LONG.as_secs()))?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
