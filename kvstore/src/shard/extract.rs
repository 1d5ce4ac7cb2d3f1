//! Parts of objects: where their bytes lie on a device, and which checksums cover them.

use std::ops::Range;

use super::request::Part;
use crate::error::Failure;
use crate::media::checksum;
use crate::model::layout::Layout;
use crate::model::object::{Object, piece_bytes, plain_units};
use crate::model::place::UNIT_BYTES;
use crate::model::plan;

/// The extent of a part within its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extract {
    /// Its length in bytes, as the caller counts.
    pub(super) bytes: u64,
    /// Bytes of memory that it takes, in whole units.
    pub(super) padded_bytes: u64,
    /// Its first checksum, and the piece that each covers.
    pub(super) first_checksum: u32,
    pub(super) pieces: Pieces,
}

/// Locates a part of an object of this layout, and appends its places to `parts`, as those of `item`.
///
/// # Errors
/// [`Failure::Part`] if the object has no such part.
pub(super) fn extract(
    layout: Option<&Layout>,
    object: &Object,
    part: &Part,
    item: u32,
    parts: &mut Vec<plan::Part>,
) -> Result<Extract, Failure> {
    match (layout, part) {
        (None, Part::All) => plain(object, 0..object.bytes, item, parts),
        (None, Part::Bytes(range)) => plain(object, range.clone(), item, parts),
        (None, Part::Layer(_)) => {
            Err(Failure::Part("a plain object has no layers: ask for bytes of it".into()))
        }
        (Some(layout), Part::All) => {
            Ok(runs(layout, object, 0..layout.block().layers, item, parts))
        }
        (Some(layout), Part::Layer(layer)) if *layer < layout.block().layers => {
            Ok(runs(layout, object, *layer..*layer + 1, item, parts))
        }
        (Some(_), Part::Layer(_)) => Err(Failure::Part("the layout has no such layer".into())),
        (Some(layout), Part::Bytes(range)) => {
            Ok(runs(layout, object, layers_of(layout, range)?, item, parts))
        }
    }
}

/// Returns the layers whose bytes are a range of a KV block.
fn layers_of(layout: &Layout, range: &Range<u64>) -> Result<Range<u32>, Failure> {
    let (all, layer) = (layout.block_units() * UNIT_BYTES, layout.run_units() * UNIT_BYTES);
    let (start, end) = (range.start, range.end.min(all));
    if start >= end {
        return Err(Failure::Part("the range has no bytes of the object".into()));
    }
    if !start.is_multiple_of(layer) || !end.is_multiple_of(layer) {
        return Err(Failure::Part(
            "a range of a KV block begins and ends where its layers do".into(),
        ));
    }
    Ok((start / layer) as u32..(end / layer) as u32)
}

fn plain(
    object: &Object,
    range: Range<u64>,
    item: u32,
    parts: &mut Vec<plan::Part>,
) -> Result<Extract, Failure> {
    // A power of two, so shifts and masks replace divisions.
    let piece = piece_bytes(object.bytes);
    let (shift, within) = (piece.trailing_zeros(), piece - 1);
    let (start, end) = (range.start, range.end.min(object.bytes));
    let is_empty = object.bytes == 0 && start == 0;
    if start >= end && !is_empty {
        return Err(Failure::Part("the range has no bytes of the object".into()));
    }
    if start & within != 0 || (end & within != 0 && end != object.bytes) {
        return Err(Failure::Part(
            "a range begins and ends where pieces of the object do, or at its end".into(),
        ));
    }
    let (bytes, padded_bytes) = (end - start, plain_units(end - start) * UNIT_BYTES);
    let count = ((bytes + within) >> shift).max(1);
    parts.push(plan::Part {
        place: object.place.plus(start / UNIT_BYTES),
        item,
        offset: 0,
        bytes: padded_bytes,
    });
    let pieces = Pieces {
        count: count as u32,
        stride_bytes: piece,
        piece_bytes: piece,
        last_bytes: bytes - (count - 1) * piece,
    };
    Ok(Extract { bytes, padded_bytes, first_checksum: (start >> shift) as u32, pieces })
}

fn runs(
    layout: &Layout,
    object: &Object,
    layers: Range<u32>,
    item: u32,
    parts: &mut Vec<plan::Part>,
) -> Extract {
    let run_bytes = layout.run_units() * UNIT_BYTES;
    let count = layers.end - layers.start;
    for (index, layer) in layers.clone().enumerate() {
        let run = layout.run(layer);
        let place = object.place.plus(run.start);
        parts.push(plan::Part { place, item, offset: index as u64 * run_bytes, bytes: run_bytes });
    }
    let per_layer = u32::from(layout.block().tensors_per_layer);
    let pieces = Pieces {
        count: count * per_layer,
        stride_bytes: layout.tensor_units() * UNIT_BYTES,
        piece_bytes: layout.tensor_bytes(),
        last_bytes: layout.tensor_bytes(),
    };
    let bytes = u64::from(count) * run_bytes;
    Extract { bytes, padded_bytes: bytes, first_checksum: layers.start * per_layer, pieces }
}

/// Runs of an item's memory, each with a checksum of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    pub(super) count: u32,
    /// Bytes from the start of one piece to the start of the next.
    pub(super) stride_bytes: u64,
    /// Bytes of each piece except the last.
    pub(super) piece_bytes: u64,
    pub(super) last_bytes: u64,
}

impl Pieces {
    /// Returns the offset and the length of piece `index`.
    pub(super) fn run(&self, index: u32) -> (u64, u64) {
        let is_last = index + 1 == self.count;
        let len = if is_last { self.last_bytes } else { self.piece_bytes };
        (u64::from(index) * self.stride_bytes, len)
    }

    /// Returns whether each piece, of those in `bytes`, matches its checksum.
    pub(super) fn are_intact(&self, bytes: &[u8], sums: impl Iterator<Item = u32>) -> bool {
        self.each_intact(bytes, sums, |_| ())
    }

    /// Like [`Pieces::are_intact`]; passes each piece that does, and what follows up to the next, to `then`, while the
    /// cache has it.
    pub(super) fn each_intact(
        &self,
        bytes: &[u8],
        mut sums: impl Iterator<Item = u32>,
        mut then: impl FnMut(Range<usize>),
    ) -> bool {
        (0..self.count).all(|index| {
            let (offset, len) = self.run(index);
            let piece = &bytes[offset as usize..(offset + len) as usize];
            let is_intact = sums.next() == Some(checksum::of(piece));
            if is_intact {
                let is_last = index + 1 == self.count;
                let end = if is_last { bytes.len() as u64 } else { offset + self.stride_bytes };
                then(offset as usize..end as usize);
            }
            is_intact
        })
    }

    /// Zeroes what lies in `bytes` between the pieces and behind them.
    pub(super) fn zero_gaps(&self, bytes: &mut [u8]) {
        let mut rest = bytes;
        for index in 0..self.count {
            let (_, len) = self.run(index);
            let stride =
                if index + 1 == self.count { rest.len() } else { self.stride_bytes as usize };
            let (piece, behind) = rest.split_at_mut(stride);
            piece[len as usize..].fill(0);
            rest = behind;
        }
    }
}
