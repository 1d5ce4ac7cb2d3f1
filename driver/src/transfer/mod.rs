//! From byte ranges to commands: the pure planner.
//!
//! A [`Transfer`] names its memory by [`Slice`]s, as programs do. Once these have addresses, it is a *request*: a
//! run of LBAs and a list of [`Segment`]s of device-visible memory. [`Plan`] splits a request into
//! [`Piece`]s, one command each, within the controller's [`Limits`], and chooses how each piece points at its
//! data:
//!
//! | form | when | built by |
//! |---|---|---|
//! | [`Form::Sgl`] | the controller takes SGLs and the alignment suits it | [`sgl`] |
//! | [`Form::Prp`] | every inner edge falls on a page edge | [`prp`], or [`prebuilt`] for one segment |
//! | [`Form::Bounce`] | neither: an LBA whose bytes are scattered within a page | a copy |
//!
//! Nothing here touches memory or a device: list entries go to a [`ListMemory`]. The software controller's
//! walker of these lists is in [`crate::soft`] and shares no code with this module, so that each checks the
//! other.

#[cfg(test)]
mod exact;
mod limits;
mod plan;
pub mod prebuilt;
pub mod prp;
pub mod sgl;

pub use limits::{Limits, SglSupport};
pub use plan::{Form, Piece, Plan, Position, Unplannable, whole_as_prp};

use crate::spec::{Iova, Lba};

/// Bytes of a controller page: this driver sets CC.MPS to 0, and PRP arithmetic uses this size (ADR 0001).
pub const PAGE_BYTES: u64 = 4096;

/// The most list pages of one command: PRP lists for 16 MiB.
pub const LIST_PAGES_PER_COMMAND: usize = 8;

/// Entries of 8 bytes in one PRP list page.
pub const PRPS_PER_PAGE: u64 = PAGE_BYTES / 8;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the device to memory.
    Read,
    /// From memory to the device.
    Write,
}

/// A run of memory as a program names it: a region that it registered, or an item of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The region's or the item's number.
    pub region: u32,
    /// Offset in the region in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A run of LBAs of one device, and the memory that holds its bytes.
///
/// `S` holds or yields the slices in order of the LBAs: `[Slice; 1]`, `&[Slice]`, an iterator. Memory has no
/// addresses here, so a planner need not know what carries its transfers out. The owner of the memory
/// turns each [`Slice`] into [`Segment`]s: the segments of a [`Buffer`](crate::Buffer), for a queue pair of
/// this driver; an address in a region, for queues that a GPU drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer<S> {
    /// The device's position in a list that planner and executor share.
    pub device: u16,
    /// Which way.
    pub direction: Direction,
    /// The first LBA.
    pub lba: Lba,
    /// The memory.
    pub slices: S,
}

impl<S> Transfer<S> {
    /// Replaces the slices, for example by memory of a pool where items of a batch lie.
    pub fn map<T>(self, f: impl FnOnce(S) -> T) -> Transfer<T> {
        let Transfer { device, direction, lba, slices } = self;
        Transfer { device, direction, lba, slices: f(slices) }
    }
}

impl<S: AsRef<[Slice]>> Transfer<S> {
    /// Returns the length in bytes, or `None` beyond 2^64.
    pub fn bytes(&self) -> Option<u64> {
        let slices = self.slices.as_ref();
        slices.iter().try_fold(0u64, |sum, slice| sum.checked_add(slice.bytes))
    }
}

/// A run of memory as the device addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub iova: Iova,
    /// Length in bytes.
    pub len: u64,
}

/// The segments of one request, in order of the LBAs they hold.
pub trait SegmentList {
    /// Returns the number of segments.
    fn segment_count(&self) -> usize;
    /// Returns segment `index`, which is below the count.
    fn segment(&self, index: usize) -> Segment;
}

impl SegmentList for [Segment] {
    fn segment_count(&self) -> usize {
        self.len()
    }

    fn segment(&self, index: usize) -> Segment {
        self[index]
    }
}

/// Pages that hold PRP and SGL lists while a command is in flight.
///
/// Each command numbers its pages from 0; they need not be contiguous.
pub trait ListMemory {
    /// Returns the device's address of page `page`.
    fn page_iova(&self, page: usize) -> Iova;
    /// Writes the 64-bit word `index` (below 512) of page `page`.
    fn write(&mut self, page: usize, index: usize, value: u64);
}

/// The bytes of a request from a [`Position`] on, as runs; segments that adjoin in device memory are merged.
pub(crate) struct Runs<'a, L: ?Sized> {
    segments: &'a L,
    position: Position,
    remaining: u64,
}

impl<'a, L: SegmentList + ?Sized> Runs<'a, L> {
    pub(crate) fn new(segments: &'a L, position: Position, bytes: u64) -> Self {
        Runs { segments, position, remaining: bytes }
    }

    fn next_part(&mut self) -> Option<Segment> {
        while self.remaining > 0 && self.position.segment < self.segments.segment_count() {
            let segment = self.segments.segment(self.position.segment);
            let left = segment.len - self.position.offset;
            let len = left.min(self.remaining);
            let iova = Iova(segment.iova.0 + self.position.offset);
            self.position.advance_within(len, segment.len);
            self.remaining -= len;
            if len > 0 {
                return Some(Segment { iova, len });
            }
        }
        None
    }
}

impl<L: SegmentList + ?Sized> Iterator for Runs<'_, L> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let mut run = self.next_part()?;
        loop {
            let (position, remaining) = (self.position, self.remaining);
            match self.next_part() {
                Some(part) if part.iova.0 == run.iova.0 + run.len => run.len += part.len,
                _ => {
                    (self.position, self.remaining) = (position, remaining);
                    return Some(run);
                }
            }
        }
    }
}
