//! The planner of transfers against the walker that its own tests use.

use adit_driver::spec::{Iova, Lba};
use adit_driver::transfer::{Limits, Plan, Segment, SglSupport, Unplannable};

use crate::input::Input;

#[path = "../../driver/tests/support/walker.rs"]
mod walker;

/// Bytes of the longest request: enough to chain list pages several times, with few enough pieces to be fast.
const TOTAL_BYTES_MAX: u64 = 24 << 20;
const PIECES_MAX: u64 = 256;
const SEGMENTS_MAX: usize = 64;

/// Runs one input: limits and segments, planned and walked.
pub fn target(data: &[u8]) {
    let input = &mut Input::new(data);
    let limits = limits(input);
    let lba = input.edgy();
    let segments = segments(input, &limits);
    let total: u64 = segments.iter().map(|segment| segment.len).sum();
    match Plan::new(&limits, Lba(lba), segments.as_slice()) {
        Ok(_) => {
            let bounced = walker::check_plan(&limits, lba, &segments);
            assert!(bounced <= total, "no more is bounced than there is");
        }
        Err(reason) => check_refusal(reason, &limits, lba, total),
    }
}

fn check_refusal(reason: Unplannable, limits: &Limits, lba: u64, total: u64) {
    let lba_bytes = limits.lba_bytes();
    let holds = match reason {
        Unplannable::Empty => total == 0,
        Unplannable::PartialLba { .. } => !total.is_multiple_of(lba_bytes),
        Unplannable::PastEnd => lba.checked_add(total / lba_bytes).is_none(),
        Unplannable::Ranges { .. } => false,
    };
    assert!(holds, "{reason}: {total} bytes at LBA {lba}");
}

/// Limits of an open namespace, which a planner may rely on.
fn limits(input: &mut Input) -> Limits {
    let lba_shift = input.pick(&[9, 12, 9, 16, 10]);
    let whole = input.pick(&[0u32, 3, 5, 7, 11]);
    let odd = u64::from(input.byte() % 4);
    Limits {
        lba_shift,
        max_bytes: ((4096u64 << whole).max(1 << lba_shift) >> lba_shift << lba_shift)
            + (odd << lba_shift),
        boundary_lbas: input.pick(&[0, 0, 1, 2, 7, 32, 300, u32::MAX]),
        sgl: input.pick(&[SglSupport::None, SglSupport::Byte, SglSupport::Dword]),
        list_pages: usize::from(input.byte() % 9).max(1),
        bounce_bytes: 4096.max(1 << lba_shift),
    }
}

/// Returns disjoint segments, mostly of relevant shapes: whole pages, dwords, neighbours.
fn segments(input: &mut Input, limits: &Limits) -> Vec<Segment> {
    let lba_bytes = limits.lba_bytes();
    let interval = match u64::from(limits.boundary_lbas) {
        0 => limits.max_bytes,
        lbas => limits.max_bytes.min(lbas << limits.lba_shift),
    };
    let total_max = TOTAL_BYTES_MAX.min(interval * PIECES_MAX);
    let (mut out, mut at, mut total) = (Vec::new(), 1u64 << 32, 0);
    let whole = input.byte() & 7 != 7;
    while !input.is_spent() && out.len() < SEGMENTS_MAX && total < total_max {
        let shape = input.byte();
        let offset = match shape & 3 {
            0 => 0,
            1 => input.number(2) % 1024 * 4,
            2 => input.number(2) % 4096,
            _ => 4096 - lba_bytes.min(4096),
        };
        let len = match shape >> 2 & 3 {
            0 => (u64::from(input.byte()) + 1) * 4096,
            1 => (u64::from(input.byte()) + 1) * lba_bytes.min(4096),
            2 => input.number(2) + 1,
            _ => (input.number(2) % 1200 + 1) * 4096,
        };
        let iova = if shape & 16 != 0 { at } else { at.next_multiple_of(1 << 30) + offset };
        out.push(Segment { iova: Iova(iova), len });
        (at, total) = (iova + len, total + len);
    }
    if let Some(last) = out.last_mut().filter(|_| whole) {
        last.len += total.next_multiple_of(lba_bytes) - total;
    }
    out
}
