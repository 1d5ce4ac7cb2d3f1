//! Scatter gather lists, as a controller reads them (NVMe Base 2.0 section 4.1.2).
//!
//! A segment is a run of 16-byte descriptors. Only its last descriptor may lead to another segment, and the target of a
//! Last Segment descriptor leads to none. The data blocks must add up to exactly the length of the command's data.

use super::memory::Dma;
use super::options::SglSupport;
use super::status::{
    DATA_SGL_LENGTH_INVALID, DATA_TRANSFER_ERROR, INVALID_SGL_COUNT, INVALID_SGL_SEGMENT,
    SGL_GRANULARITY_INVALID, SGL_TYPE_INVALID,
};
use super::transfer::DmaRanges;
use adit_spec::{Iova, Status};

/// Descriptors read at a time.
const BATCH: usize = 32;
/// Maximum descriptors of one command; stops circular lists.
const DESCRIPTORS_MAX: u64 = 1 << 16;

const DATA_BLOCK: u8 = 0;
const SEGMENT: u8 = 2;
const LAST_SEGMENT: u8 = 3;

#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    kind: u8,
    subtype: u8,
}

impl Descriptor {
    fn parse(bytes: &[u8; 16]) -> Descriptor {
        let word = u128::from_le_bytes(*bytes);
        Descriptor {
            address: word as u64,
            len: (word >> 64) as u32,
            kind: (word >> 124) as u8,
            subtype: (word >> 120) as u8 & 0xf,
        }
    }

    fn leads_on(&self) -> bool {
        matches!(self.kind, SEGMENT | LAST_SEGMENT)
    }
}

struct Walk<'a> {
    pieces: &'a mut DmaRanges,
    support: SglSupport,
    left: u64,
    descriptors: u64,
}

/// Appends the pieces of `len` bytes of data that the command's descriptor describes.
pub(super) fn walk(
    dma: &Dma<'_>,
    support: SglSupport,
    first: &[u8; 16],
    len: u64,
    pieces: &mut DmaRanges,
) -> Result<(), Status> {
    let mut walk = Walk { pieces, support, left: len, descriptors: 0 };
    let mut next = Some(Descriptor::parse(first));
    if !next.is_some_and(|d| d.leads_on()) {
        walk.data(Descriptor::parse(first))?;
        next = None;
    }
    while let Some(segment) = next {
        next = walk.segment(dma, segment)?;
    }
    if walk.left == 0 { Ok(()) } else { Err(DATA_SGL_LENGTH_INVALID) }
}

impl Walk<'_> {
    fn data(&mut self, block: Descriptor) -> Result<(), Status> {
        if block.kind != DATA_BLOCK || block.subtype != 0 {
            return Err(SGL_TYPE_INVALID);
        }
        let ragged = !block.address.is_multiple_of(4) || !block.len.is_multiple_of(4);
        if self.support == SglSupport::Dword && ragged {
            return Err(SGL_GRANULARITY_INVALID);
        }
        let len = u64::from(block.len);
        if len > self.left {
            return Err(DATA_SGL_LENGTH_INVALID);
        }
        self.pieces.push(block.address, len);
        self.left -= len;
        Ok(())
    }

    fn segment(
        &mut self,
        dma: &Dma<'_>,
        segment: Descriptor,
    ) -> Result<Option<Descriptor>, Status> {
        if segment.subtype != 0 || segment.len == 0 || !segment.len.is_multiple_of(16) {
            return Err(INVALID_SGL_SEGMENT);
        }
        let count = u64::from(segment.len / 16);
        self.descriptors += count;
        if self.descriptors > DESCRIPTORS_MAX {
            return Err(INVALID_SGL_COUNT);
        }
        let mut batch = [0; BATCH * 16];
        let mut done = 0;
        while done < count {
            let now = (count - done).min(BATCH as u64);
            let bytes = &mut batch[..now as usize * 16];
            let at = Iova(segment.address.wrapping_add(done * 16));
            dma.read(at, bytes).map_err(|_| DATA_TRANSFER_ERROR)?;
            let (descriptors, _) = bytes.as_chunks();
            for bytes in descriptors {
                done += 1;
                let descriptor = Descriptor::parse(bytes);
                if descriptor.leads_on() {
                    return lead_on(segment, descriptor, done == count);
                }
                self.data(descriptor)?;
            }
        }
        // Only a Last Segment may end in data.
        if segment.kind == LAST_SEGMENT { Ok(None) } else { Err(INVALID_SGL_SEGMENT) }
    }
}

fn lead_on(from: Descriptor, to: Descriptor, is_last: bool) -> Result<Option<Descriptor>, Status> {
    match (from.kind, is_last) {
        (LAST_SEGMENT, _) => Err(INVALID_SGL_SEGMENT),
        (_, false) => Err(INVALID_SGL_COUNT),
        (_, true) => Ok(Some(to)),
    }
}
