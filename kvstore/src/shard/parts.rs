//! Maps a part of an object to its units and checksums.

use std::ops::Range;

use super::memory::Pieces;
use super::request::Part;
use super::space::Spaces;
use crate::error::Failure;
use crate::model::layout::Layout;
use crate::model::object::{Object, piece_bytes};
use crate::model::place::{UNIT_BYTES, units};
use crate::model::plan;

/// The extent of a part within its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extract {
    /// Its length in bytes, as the caller counts.
    pub(super) bytes: u64,
    /// Bytes of memory that it takes, in whole units.
    pub(super) padded_bytes: u64,
    /// Its first checksum, and the piece that each covers.
    pub(super) first_checksum: u32,
    pub(super) pieces: Pieces,
}

/// Locates a part and appends its places to `parts`, as those of `item`.
///
/// # Errors
/// [`Failure::Part`] if the object has no such part.
pub(super) fn extract(
    spaces: &Spaces,
    object: &Object,
    part: &Part,
    item: u32,
    parts: &mut Vec<plan::Part>,
) -> Result<Extract, Failure> {
    match (spaces.layout(object.layout), part) {
        (None, Part::All) => plain(object, 0..object.bytes, item, parts),
        (None, Part::Bytes(range)) => plain(object, range.clone(), item, parts),
        (None, Part::Layer(_)) => {
            Err(Failure::Part("a plain object has no layers: ask for bytes of it"))
        }
        (Some(layout), Part::All) => {
            Ok(runs(layout, object, 0..layout.block().layers, item, parts))
        }
        (Some(layout), Part::Layer(layer)) if *layer < layout.block().layers => {
            Ok(runs(layout, object, *layer..*layer + 1, item, parts))
        }
        (Some(_), Part::Layer(_)) => Err(Failure::Part("the layout has no such layer")),
        (Some(_), Part::Bytes(_)) => {
            Err(Failure::Part("a KV block has layers, not bytes: ask for a layer or for all"))
        }
    }
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
    if start >= end {
        return Err(Failure::Part("the range has no bytes of the object"));
    }
    if start & within != 0 || (end & within != 0 && end != object.bytes) {
        return Err(Failure::Part(
            "a range begins and ends where pieces of the object do, or at its end",
        ));
    }
    let (bytes, padded_bytes) = (end - start, units(end - start) * UNIT_BYTES);
    let count = (bytes + within) >> shift;
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
