//! Splits a request into commands.
//!
//! Every piece is whole LBAs, at most [`Limits::max_bytes`], and inside one boundary interval; pieces follow
//! each other without gap or overlap up to the end of the request. A piece takes the first form that can
//! express at least one LBA from its position: SGL, PRP, bounce. A bounced piece is as short as possible: it
//! ends at the first LBA that needs no bouncing.

use super::{Limits, PAGE_BYTES, Runs, SegmentList, SglSupport};
use crate::spec::Lba;

/// A byte of a request, by segment and offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Index of the segment.
    pub segment: usize,
    /// Byte offset into the segment.
    pub offset: u64,
}

impl Position {
    pub(super) fn advance_within(&mut self, len: u64, segment_len: u64) {
        self.offset += len;
        if self.offset == segment_len {
            *self = Position { segment: self.segment + 1, offset: 0 };
        }
    }

    fn advance<L: SegmentList + ?Sized>(&mut self, segments: &L, mut bytes: u64) {
        while bytes > 0 {
            let segment_len = segments.segment(self.segment).len;
            let len = bytes.min(segment_len - self.offset);
            self.advance_within(len, segment_len);
            bytes -= len;
        }
    }
}

/// The form of a command's data pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Physical region pages; `entries` counts the pages touched, PRP1's included.
    Prp {
        /// Pages touched.
        entries: u64,
    },
    /// A scatter-gather list of `descriptors` data blocks.
    Sgl {
        /// Data blocks after merging neighbours.
        descriptors: u64,
    },
    /// Through a bounce buffer.
    Bounce,
}

/// One command of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First LBA.
    pub lba: Lba,
    /// Data bytes, a positive multiple of the LBA size.
    pub bytes: u64,
    /// The start of its data.
    pub start: Position,
    /// The form of its data pointer.
    pub form: Form,
}

impl Piece {
    /// Returns the number of list pages the piece needs.
    pub fn list_pages(&self) -> usize {
        match self.form {
            Form::Prp { entries } => super::prp::list_pages(entries),
            Form::Sgl { descriptors } => super::sgl::list_pages(descriptors),
            Form::Bounce => 0,
        }
    }
}

/// Why a request cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplannable {
    /// The request is empty.
    #[error("the request has no bytes")]
    Empty,
    /// The segments do not hold whole LBAs.
    #[error("{bytes} bytes are not a multiple of the {lba_bytes}-byte LBA")]
    PartialLba {
        /// Bytes of all segments.
        bytes: u64,
        /// Bytes of an LBA.
        lba_bytes: u64,
    },
    /// A list of ranges is empty or does not fit.
    #[error(
        "{ranges} ranges: there must be 1 to {room} (256 at most, and as many as the buffer holds)"
    )]
    Ranges {
        /// Ranges given.
        ranges: usize,
        /// The most ranges allowed.
        room: usize,
    },
    /// The request ends beyond the highest possible LBA.
    #[error("the request ends beyond the highest LBA")]
    PastEnd,
}

/// The commands of one request, in order.
pub struct Plan<'a, L: ?Sized> {
    limits: &'a Limits,
    segments: &'a L,
    lba: u64,
    position: Position,
    remaining: u64,
}

impl<'a, L: SegmentList + ?Sized> Plan<'a, L> {
    /// Plans the transfer of all `segments` from `lba`.
    ///
    /// # Errors
    /// [`Unplannable`] if the request is empty, not whole LBAs or runs past 2^64 LBAs.
    pub fn new(limits: &'a Limits, lba: Lba, segments: &'a L) -> Result<Self, Unplannable> {
        limits.assert_sound();
        let total = (0..segments.segment_count())
            .try_fold(0u64, |sum, i| sum.checked_add(segments.segment(i).len));
        let bytes = total.ok_or(Unplannable::PastEnd)?;
        if bytes == 0 {
            return Err(Unplannable::Empty);
        }
        if !bytes.is_multiple_of(limits.lba_bytes()) {
            return Err(Unplannable::PartialLba { bytes, lba_bytes: limits.lba_bytes() });
        }
        lba.0.checked_add(bytes >> limits.lba_shift).ok_or(Unplannable::PastEnd)?;
        Ok(Plan { limits, segments, lba: lba.0, position: Position::default(), remaining: bytes })
    }

    /// Returns the LBA after the last one still to be planned.
    pub fn end_lba(&self) -> u64 {
        self.lba + (self.remaining >> self.limits.lba_shift)
    }

    /// Returns the most bytes of the next piece.
    fn room(&self) -> u64 {
        self.remaining.min(self.limits.max_bytes).min(self.limits.to_boundary_bytes(self.lba))
    }

    fn piece(&self) -> Piece {
        let room = self.room();
        let direct = self.direct(self.position, room);
        let (bytes, form) = direct.unwrap_or_else(|| (self.bounced(room), Form::Bounce));
        Piece { lba: Lba(self.lba), bytes, start: self.position, form }
    }

    /// Returns the longest run of whole LBAs from `position` that needs no bouncing.
    fn direct(&self, position: Position, room: u64) -> Option<(u64, Form)> {
        self.as_sgl(position, room).or_else(|| self.as_prp(position, room))
    }

    fn whole_lbas(&self, bytes: u64) -> u64 {
        bytes & !(self.limits.lba_bytes() - 1)
    }

    fn as_sgl(&self, position: Position, room: u64) -> Option<(u64, Form)> {
        let granule = match self.limits.sgl {
            SglSupport::None => return None,
            SglSupport::Byte => 1,
            SglSupport::Dword => 4,
        };
        let fits = Runs::new(self.segments, position, room)
            .take(self.limits.max_sgl_descriptors() as usize)
            .take_while(|run| run.iova.0.is_multiple_of(granule) && run.len.is_multiple_of(granule))
            .map(|run| run.len)
            .sum();
        let bytes = self.whole_lbas(fits);
        let descriptors = Runs::new(self.segments, position, bytes).count() as u64;
        (bytes > 0).then_some((bytes, Form::Sgl { descriptors }))
    }

    fn as_prp(&self, position: Position, room: u64) -> Option<(u64, Form)> {
        let start = Runs::new(self.segments, position, room).next()?.iova.0;
        if !start.is_multiple_of(4) {
            return None;
        }
        let page_offset = start % PAGE_BYTES;
        let most = (1 + self.limits.max_prp_entries()) * PAGE_BYTES - page_offset;
        let fits = prp_prefix(Runs::new(self.segments, position, room.min(most)));
        let bytes = self.whole_lbas(fits);
        let entries = (page_offset + bytes).div_ceil(PAGE_BYTES);
        (bytes > 0).then_some((bytes, Form::Prp { entries }))
    }

    fn bounced(&self, room: u64) -> u64 {
        let lba_bytes = self.limits.lba_bytes();
        let most = room.min(self.whole_lbas(self.limits.bounce_bytes));
        let mut position = self.position;
        let mut bytes = 0;
        while bytes < most {
            position.advance(self.segments, lba_bytes);
            bytes += lba_bytes;
            if bytes < most && self.direct(position, lba_bytes).is_some() {
                break;
            }
        }
        bytes
    }
}

/// Returns the pages that the first `bytes` of `segments` touch, if PRPs can express them as one transfer.
///
/// For commands whose data is not counted in LBAs (passthrough, ranges).
pub fn whole_as_prp<L: SegmentList + ?Sized>(segments: &L, bytes: u64) -> Option<u64> {
    let runs = || Runs::new(segments, Position::default(), bytes);
    let start = runs().next()?.iova.0;
    let fits = start.is_multiple_of(4) && prp_prefix(runs()) == bytes;
    fits.then(|| (start % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES))
}

/// Returns the bytes before the first inner edge that is not a page edge.
fn prp_prefix(runs: impl Iterator<Item = super::Segment>) -> u64 {
    let mut bytes = 0;
    let mut at_page_edge = true;
    for (index, run) in runs.enumerate() {
        if index > 0 && !(at_page_edge && run.iova.0.is_multiple_of(PAGE_BYTES)) {
            break;
        }
        bytes += run.len;
        at_page_edge = (run.iova.0 + run.len).is_multiple_of(PAGE_BYTES);
    }
    bytes
}

impl<L: SegmentList + ?Sized> Iterator for Plan<'_, L> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.remaining == 0 {
            return None;
        }
        let piece = self.piece();
        assert!(piece.bytes > 0 && piece.bytes <= self.remaining, "a piece makes progress");
        self.lba += piece.bytes >> self.limits.lba_shift;
        self.remaining -= piece.bytes;
        self.position.advance(self.segments, piece.bytes);
        Some(piece)
    }
}
