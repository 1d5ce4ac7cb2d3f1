//! What making room keeps from turn to turn: claims, a search, and how much may go (see `room`).

use std::ops::Range;

use super::claim::Claim;
use crate::model::object::ObjectId;
use crate::space::window::{Piece, Window};

/// A search for a window through the whole share, over several turns.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) needs: u64,
    pub(super) device: u8,
    pub(super) unit: u64,
    pub(super) least: Option<Window>,
}

/// What the first change in line waits for.
#[derive(Debug)]
pub(super) struct Making {
    /// By the change's objects. A change has as many as it is given room at one time.
    pub(super) claims: Vec<Option<Claim>>,
    /// Units of all of its objects.
    pub(super) needs: u64,
    pub(super) search: Option<Search>,
    /// Twice the units of what got room, less the units of what went for it; above the slack it does not count.
    credit: i64,
    pub(super) pieces: Vec<Piece>,
    pub(super) victims: Vec<ObjectId>,
}

impl Default for Making {
    fn default() -> Making {
        Making {
            claims: Vec::new(),
            needs: 0,
            search: None,
            credit: i64::MAX,
            pieces: Vec::new(),
            victims: Vec::new(),
        }
    }
}

impl Making {
    /// Returns whether the next turn goes on with a search.
    pub(super) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Ends the wait of a change, which got its room or never will.
    pub(super) fn end(&mut self) {
        self.claims.clear();
        self.search = None;
    }

    /// Credits the units of objects that got room.
    pub(super) fn pay(&mut self, units: u64, slack: u64) {
        self.credit = (self.credit.min(slack as i64) + 2 * units as i64).min(slack as i64);
    }

    /// Debits units that went.
    pub(super) fn spend(&mut self, units: u64) {
        self.credit = self.credit.saturating_sub(units as i64);
    }

    /// Returns how many units may go for an object of `units`.
    pub(super) fn limit(&self, units: u64, slack: u64) -> u64 {
        (self.credit.min(slack as i64) + 2 * units as i64).max(0) as u64
    }

    /// Takes what others have claimed out of `pieces`, which are in order.
    pub(super) fn leave_claimed(&self, device: u8, pieces: &mut Vec<Piece>) {
        for claim in self.claims.iter().flatten().filter(|claim| claim.device == device) {
            let first = pieces.partition_point(|piece| piece.units.end <= claim.units.start);
            let behind = pieces.partition_point(|piece| piece.units.start < claim.units.end);
            if first >= behind {
                continue;
            }
            let (start, end) = (&pieces[first], &pieces[behind - 1]);
            let before = start.units.start..claim.units.start;
            let after = claim.units.end..end.units.end;
            let is_left =
                |piece: &Piece, left: &Range<u64>| piece.goes_units == 0 && !left.is_empty();
            let before = is_left(start, &before).then(|| Piece::free(before));
            let after = is_left(end, &after).then(|| Piece::free(after));
            pieces.splice(first..behind, before.into_iter().chain(after));
        }
    }
}

/// Joins neighbours for which nothing goes. The pieces are in order.
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
    use crate::model::place::Place;

    fn free(units: Range<u64>) -> Piece {
        Piece::free(units)
    }

    fn object(units: Range<u64>) -> Piece {
        Piece { goes_units: units.end - units.start, worth: 1, units }
    }

    #[test]
    fn twice_the_units_that_get_room_may_go_and_the_slack_once() {
        let mut making = Making::default();
        assert_eq!(making.limit(10, 100), 120);
        making.pay(3, 100);
        making.spend(90);
        assert_eq!(making.limit(5, 100), 20, "it does not save more than the slack");
        making.pay(7, 100);
        assert_eq!(making.limit(5, 100), 34);
        making.pay(50, 100);
        assert_eq!(making.limit(1, 100), 102);
        assert_eq!(making.limit(1, 40), 42, "the slack is less now");
        making.spend(130);
        assert_eq!((making.limit(10, 100), making.limit(20, 100)), (0, 10));
        making.pay(20, 100);
        assert_eq!(making.limit(1, 100), 12);
    }

    #[test]
    fn a_wait_that_ended_leaves_neither_claims_nor_a_search() {
        let search = Search { needs: 4, device: 0, unit: 8, least: None };
        let claims = vec![None, Some(Claim::run(0, 0..4))];
        let mut making = Making { claims, search: Some(search), ..Making::default() };
        assert!(making.is_searching());
        making.end();
        assert!(!making.is_searching() && making.claims.is_empty());
    }

    #[test]
    fn what_others_claimed_is_no_piece_of_a_window() {
        let claims = vec![Some(Claim::run(1, 10..20)), None, Some(Claim::run(0, 0..99))];
        let making = Making { claims, ..Making::default() };
        for (before, after) in [
            // Free space around it stays free; an object that it touches goes with it.
            (vec![free(5..25)], vec![free(5..10), free(20..25)]),
            (vec![object(5..25)], vec![]),
            (vec![free(5..12), object(12..21)], vec![free(5..10)]),
            (vec![object(5..12), free(12..14), free(16..21)], vec![free(20..21)]),
            // It fills them, or lies between others.
            (vec![free(10..20)], vec![]),
            (vec![free(10..13), object(13..20)], vec![]),
            (vec![object(4..10), object(20..24)], vec![object(4..10), object(20..24)]),
            (vec![free(4..10), free(20..24)], vec![free(4..10), free(20..24)]),
            (vec![free(30..40)], vec![free(30..40)]),
            (vec![free(0..4)], vec![free(0..4)]),
            (vec![], vec![]),
        ] {
            let mut pieces = before.clone();
            making.leave_claimed(1, &mut pieces);
            assert_eq!(pieces, after, "of {before:?}");
        }
    }

    #[test]
    fn a_claimed_slot_takes_one_unit_from_free_space() {
        let claim = Claim::slot(Place { device: 0, unit: 7 }, ObjectId(1));
        let making = Making { claims: vec![Some(claim)], ..Making::default() };
        let mut pieces = vec![free(4..12)];
        making.leave_claimed(0, &mut pieces);
        assert_eq!(pieces, [free(4..7), free(8..12)]);
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
