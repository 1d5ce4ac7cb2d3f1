//! The rings with a faulty controller in device code.

use std::time::Duration;

use adit_gpu::internals::outcome::{NOT_SENT, RESET, TIMED_OUT};

use super::check::{Seen, expect};
use super::machine::{GRID, Machine, controller, seen};
use super::rings::{LONG, all_succeeded, round, shape, wait_until};
use crate::controller::{Fault, Faults, Shape};
use crate::failure::Result;
use crate::rig::Rig;

/// Unrecovered Read Error as a status field.
const UNRECOVERED_READ: u32 = 0x281;
/// Long enough only for immediate answers.
const SHORT: Duration = Duration::from_millis(200);
const COUNT: u32 = 48;

fn faulty(kind: Fault, every: u32, delay: Duration) -> Shape {
    Shape { faults: Faults { kind, every, first: 0, delay }, ..shape(1, 64) }
}

/// Executes all contexts of block 0 once; returns how each ended.
fn ends(rig: &mut Rig, timeout: Duration) -> Result<Vec<u32>> {
    let headers = rig.go(0, &[round(0, (COUNT, u64::from(COUNT)), timeout)], GRID)?;
    let statuses = rig.load.statuses(0, COUNT)?;
    let failed = statuses.iter().filter(|status| **status != 0).count() as u64;
    let counted = headers[0].failed;
    expect(counted == failed, || format!("{failed} contexts failed, {counted} were counted"))?;
    Ok(statuses)
}

fn count(statuses: &[u32], wanted: u32) -> usize {
    statuses.iter().filter(|status| **status == wanted).count()
}

pub(super) fn failing(machine: &Machine) -> Seen {
    let shape = faulty(Fault::Status, 4, Duration::ZERO);
    let mut rig = machine.rig(&shape)?;
    rig.fill_reads(0, &shape, 1)?;
    let ends = ends(&mut rig, LONG)?;
    let (bad, good) = (count(&ends, UNRECOVERED_READ), count(&ends, 0));
    let each = COUNT as usize / 4;
    expect((bad, good) == (each, 3 * each), || format!("{bad} failed and {good} did not"))?;
    seen(&mut rig)?;
    Ok(format!("{bad} of {COUNT} failed with the status that was given, in their places"))
}

pub(super) fn deadline(machine: &Machine) -> Seen {
    let shape = faulty(Fault::Lost, 4, Duration::ZERO);
    let mut rig = machine.rig(&shape)?;
    rig.fill_reads(0, &shape, 1)?;
    let ends = ends(&mut rig, SHORT)?;
    let (lost, unsent) = (count(&ends, TIMED_OUT), count(&ends, NOT_SENT));
    let good = count(&ends, 0);
    // A busy machine may be late with more.
    expect(lost > 0 && lost + unsent + good == COUNT as usize, || format!("ends: {ends:?}"))?;
    controller(&mut rig).0.stop()?;
    controller(&mut rig).0.set_faults(Faults::NONE);
    rig.server.start()?;
    all_succeeded(&rig.go(0, &[round(0, (COUNT, u64::from(COUNT)), LONG)], GRID)?)?;
    let faults = seen(&mut rig)?.faults;
    let out = rig.rings.outstanding()?.len() as u64;
    expect(out == faults, || format!("{faults} commands were lost, {out} identifiers are out"))?;
    Ok(format!("{lost} commands ended at their deadline, {out} identifiers stay with the device"))
}

pub(super) fn late(machine: &Machine) -> Seen {
    let shape = faulty(Fault::Delayed, 6, 3 * SHORT);
    let mut rig = machine.rig(&shape)?;
    rig.fill_reads(0, &shape, 1)?;
    let given_up = count(&ends(&mut rig, SHORT)?, TIMED_OUT) as u64;
    rig.persist(GRID)?;
    wait_until(|| Ok(rig.rings.outstanding()?.is_empty()), "the late completions")?;
    rig.unpersist()?;
    let late = rig.rings.counters()?.late;
    expect(late == given_up, || format!("{given_up} were given up, {late} completed late"))?;
    seen(&mut rig)?;
    Ok(format!("{late} commands completed after they were given up, their identifiers are free"))
}

/// A completion without a command, and a duplicate completion.
const POISONS: [Fault; 2] = [Fault::WrongCommand, Fault::Twice];

pub(super) fn poison(machine: &Machine) -> Seen {
    let mut seen_all = Vec::new();
    for fault in POISONS {
        let shape = faulty(fault, 16, Duration::ZERO);
        let mut rig = machine.rig(&shape)?;
        rig.fill_reads(0, &shape, 1)?;
        let ends = ends(&mut rig, LONG)?;
        let (reset, good) = (count(&ends, RESET), count(&ends, 0));
        expect(reset > 0 && reset + good == COUNT as usize, || format!("{fault:?}: {ends:?}"))?;
        let reason = rig.rings.poison()?.unwrap_or_default();
        expect(reason.contains("not in flight"), || format!("{fault:?}: reason {reason:?}"))?;
        seen(&mut rig)?;
        seen_all.push(reset.to_string());
    }
    Ok(format!("{} commands ended with their rings, which say why", seen_all.join(" and ")))
}
