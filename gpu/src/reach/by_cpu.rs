//! Commands that the CPU puts into a raw queue pair, one at a time, to prove what lies between memory, doorbells and a
//! device. The rings are in host memory.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use adit_driver::controller::{RawQueuePair, RingSpace};
use adit_driver::spec::{Cid, DataPointer, Iova, Sqe, Status};
use adit_driver::sys::Atomics;
use adit_driver::{Controller, Namespace};

use crate::error::Result;

/// DW3 bit 16 of a completion, set in the first lap.
const PHASE: u32 = 1 << 16;

/// Writes a command over data at `data` to a place of the submission ring. The doorbell is not rung.
pub(super) fn put(raw: &RawQueuePair, place: u32, namespace: &Namespace, (sqe, data): (Sqe, Iova)) {
    let dptr = DataPointer::Prp { prp1: data, prp2: Iova(0) };
    let mut dwords = sqe.with_dptr(dptr).with_cid(Cid(place as u16 + 1)).to_dwords();
    dwords[12] |= namespace.protection_control();
    for (word, value) in memory(raw.submission()).dwords()[place as usize * 16..].iter().zip(dwords)
    {
        word.store(value.to_le(), Ordering::Relaxed);
    }
    fence(Ordering::Release);
}

/// Waits for the completion of the command put as this one, from 0; returns its status, or `None` if it is overdue.
///
/// # Errors
/// Why the controller is out of service.
pub(super) fn wait(
    raw: &RawQueuePair,
    sent: u32,
    controller: &Controller,
    within: Duration,
) -> Result<Option<Status>> {
    let (deadline, completions) = (Instant::now() + within, raw.depths().completion);
    let last_dword = &memory(raw.completion()).dwords()[(sent % completions) as usize * 4 + 3];
    let phase = if (sent / completions).is_multiple_of(2) { PHASE } else { 0 };
    loop {
        let word = u32::from_le(last_dword.load(Ordering::Acquire));
        if word & PHASE == phase {
            return Ok(Some(Status::from_bits((word >> 17) as u16)));
        }
        controller.check()?;
        if Instant::now() >= deadline {
            return Ok(None);
        }
        controller.pause(Duration::from_micros(20));
    }
}

fn memory(ring: &RingSpace) -> &Atomics {
    ring.memory().expect("rings in host memory are reached")
}
