//! Lists a stretch of a device as pieces: free runs, objects and slabs, of which windows are made.

use std::ops::Range;

use crate::model::object::{Object, ObjectId};
use crate::policy::age::Ages;
use crate::shard::objects::Objects;
use crate::space::slab::SlabView;
use crate::space::window::Piece;

/// Passes on the objects outside slabs that begin in these units, and all objects of the slabs there.
pub(super) fn each_inside(
    objects: &Objects,
    device: u8,
    units: &Range<u64>,
    mut each: impl FnMut(ObjectId, &Object),
) {
    objects.regions().visit(device, units, |id| {
        let object = objects.index().object(id);
        if units.contains(&object.place.unit) && objects.layouts().slab_of(&object).is_none() {
            each(id, &object);
        }
    });
    for slab in objects.spaces().on(device).slabs_in(units) {
        each_in_slab(objects, device, &slab, &mut each);
    }
}

/// Passes on the objects of a slab.
pub(super) fn each_in_slab(
    objects: &Objects,
    device: u8,
    slab: &SlabView,
    mut each: impl FnMut(ObjectId, &Object),
) {
    objects.regions().visit(device, &slab.heads, |id| {
        let object = objects.index().object(id);
        let is_inside = slab.heads.contains(&object.place.unit);
        if is_inside && object.layout == slab.layout {
            each(id, &object);
        }
    });
}

/// Lists what a window may pass over in these units of a device, in order.
pub(super) fn list(objects: &Objects, device: u8, units: &Range<u64>, pieces: &mut Vec<Piece>) {
    pieces.clear();
    objects.spaces().on(device).free_pieces(units, pieces);
    objects.regions().visit(device, units, |id| {
        let object = objects.index().object(id);
        let is_here =
            units.contains(&object.place.unit) && objects.layouts().slab_of(&object).is_none();
        if is_here && !objects.spaces().is_leased(object.place) {
            let goes_units = objects.units_of(&object);
            let units = object.place.unit..object.place.unit + goes_units;
            pieces.push(Piece { units, goes_units, worth: goes_units * worth_of(objects, id) });
        }
    });
    pieces.extend(
        objects
            .spaces()
            .on(device)
            .slabs_in(units)
            .filter_map(|slab| slab_piece(objects, device, slab)),
    );
    pieces.sort_unstable_by_key(|piece| piece.units.start);
    join_free(pieces);
}

/// Returns a slab as a piece, if all of its blocks may go: none is leased or still being written.
fn slab_piece(objects: &Objects, device: u8, slab: SlabView) -> Option<Piece> {
    let (mut blocks, mut is_leased) = (0, false);
    let (mut goes_units, mut worth) = (0, 0);
    each_in_slab(objects, device, &slab, |id, object| {
        let units = objects.units_of(object);
        blocks += 1;
        goes_units += units;
        worth += units * worth_of(objects, id);
        is_leased |= objects.spaces().is_leased(object.place);
    });
    let units = slab.units;
    (!is_leased && blocks == slab.staying).then_some(Piece { units, goes_units, worth })
}

/// Returns what a unit of an object is worth: the more, the younger it is.
pub(super) fn worth_of(objects: &Objects, id: ObjectId) -> u64 {
    u64::from(Ages::MAX - objects.order().age(id)) + 1
}

/// Joins neighbours that are free. The pieces are in order.
pub(super) fn join_free(pieces: &mut Vec<Piece>) {
    pieces.dedup_by(|next, last| {
        let is_joined =
            last.goes_units == 0 && next.goes_units == 0 && last.units.end == next.units.start;
        if is_joined {
            last.units.end = next.units.end;
        }
        is_joined
    });
}

/// Returns whether `pieces`, which are in order, hold all of `units`.
pub(super) fn is_covered(pieces: &[Piece], units: &Range<u64>) -> bool {
    let mut at = units.start;
    for piece in pieces {
        if piece.units.start > at {
            break;
        }
        at = at.max(piece.units.end);
    }
    at >= units.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(units: Range<u64>) -> Piece {
        Piece::free(units)
    }

    fn object(units: Range<u64>) -> Piece {
        Piece { goes_units: units.end - units.start, worth: 1, units }
    }

    #[test]
    fn only_neighbours_that_are_free_are_joined() {
        let mut pieces = vec![
            free(0..4),
            free(4..7),
            free(7..8),
            object(8..9),
            object(9..12),
            free(12..13),
            free(14..15),
            object(15..16),
        ];
        join_free(&mut pieces);
        let left = [object(8..9), object(9..12), free(12..13), free(14..15), object(15..16)];
        assert_eq!((&pieces[0], &pieces[1..]), (&free(0..8), &left[..]));
    }

    #[test]
    fn pieces_cover_what_they_hold_without_a_gap() {
        let pieces = [free(0..4), object(4..8), free(10..12), free(11..14)];
        for (units, is_there) in [
            (2..8, true),
            (1..3, true),
            (4..8, true),
            (2..9, false),
            (8..10, false),
            (9..12, false),
            (10..14, true),
            (12..15, false),
            (20..21, false),
        ] {
            assert_eq!(is_covered(&pieces, &units), is_there, "{units:?}");
        }
    }
}
