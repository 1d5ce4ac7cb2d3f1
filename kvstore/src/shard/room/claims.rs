//! The state of finding room between turns: claims, a search, and the units that may be evicted ([`super::find`]).

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

/// The claims of the first change in line.
#[derive(Debug)]
pub(super) struct Claims {
    /// By the change's objects. A change has as many as it is given room at one time.
    pub(super) all: Vec<Option<Claim>>,
    /// Units of all of its objects.
    pub(super) needs: u64,
    pub(super) search: Option<Search>,
    /// Twice the units that got room, less the units evicted for them; above the slack it does not count.
    credit: i64,
    pub(super) pieces: Vec<Piece>,
    pub(super) victims: Vec<ObjectId>,
}

impl Default for Claims {
    fn default() -> Claims {
        Claims {
            all: Vec::new(),
            needs: 0,
            search: None,
            credit: i64::MAX,
            pieces: Vec::new(),
            victims: Vec::new(),
        }
    }
}

impl Claims {
    /// Returns whether a search continues in the next turn.
    pub(super) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Ends the wait of a change, which got its room or never will.
    pub(super) fn end(&mut self) {
        self.all.clear();
        self.search = None;
    }

    /// Credits the units of objects that got room.
    pub(super) fn pay(&mut self, units: u64, slack: u64) {
        self.credit = (self.credit.min(slack as i64) + 2 * units as i64).min(slack as i64);
    }

    /// Debits units that were evicted.
    pub(super) fn spend(&mut self, units: u64) {
        self.credit = self.credit.saturating_sub(units as i64);
    }

    /// Returns how many units may be evicted for an object of `units`.
    pub(super) fn limit(&self, units: u64, slack: u64) -> u64 {
        (self.credit.min(slack as i64) + 2 * units as i64).max(0) as u64
    }

    /// Takes what others have claimed out of `pieces`, which are in order.
    pub(super) fn leave_claimed(&self, device: u8, pieces: &mut Vec<Piece>) {
        for claim in self.all.iter().flatten().filter(|claim| claim.device == device) {
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
        let mut room = Claims::default();
        assert_eq!(room.limit(10, 100), 120);
        room.pay(3, 100);
        room.spend(90);
        assert_eq!(room.limit(5, 100), 20, "it does not save more than the slack");
        room.pay(7, 100);
        assert_eq!(room.limit(5, 100), 34);
        room.pay(50, 100);
        assert_eq!(room.limit(1, 100), 102);
        assert_eq!(room.limit(1, 40), 42, "the slack is less now");
        room.spend(130);
        assert_eq!((room.limit(10, 100), room.limit(20, 100)), (0, 10));
        room.pay(20, 100);
        assert_eq!(room.limit(1, 100), 12);
    }

    #[test]
    fn a_wait_that_ended_leaves_neither_claims_nor_a_search() {
        let search = Search { needs: 4, device: 0, unit: 8, least: None };
        let claims = vec![None, Some(Claim::run(0, 0..4))];
        let mut room = Claims { all: claims, search: Some(search), ..Claims::default() };
        assert!(room.is_searching());
        room.end();
        assert!(!room.is_searching() && room.all.is_empty());
    }

    #[test]
    fn what_others_claimed_is_no_piece_of_a_window() {
        let claims = vec![Some(Claim::run(1, 10..20)), None, Some(Claim::run(0, 0..99))];
        let room = Claims { all: claims, ..Claims::default() };
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
            room.leave_claimed(1, &mut pieces);
            assert_eq!(pieces, after, "of {before:?}");
        }
    }

    #[test]
    fn a_claimed_slot_takes_one_unit_from_free_space() {
        let claim = Claim::slot(Place { device: 0, unit: 7 }, ObjectId(1));
        let room = Claims { all: vec![Some(claim)], ..Claims::default() };
        let mut pieces = vec![free(4..12)];
        room.leave_claimed(0, &mut pieces);
        assert_eq!(pieces, [free(4..7), free(8..12)]);
    }
}
