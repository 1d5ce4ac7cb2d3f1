//! Windows: chooses the run of a device to empty for an extent that fits no free run.
//!
//! The caller lists pieces in order: space that is free or soon will be, and objects that may be evicted. A window is a
//! run of such pieces without a gap. The best window costs least per unit of the free run that it leaves: a window beside
//! free space wins, and so does a cold slab over a few hot objects. A window that evicts more than the limit is chosen
//! only if there is no other.
//!
//! This module knows neither objects nor their ages, only units and worth.

use std::ops::Range;

/// A part of a device that a window may cover, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) units: Range<u64>,
    /// Units of the objects that would be evicted; 0 if it is free or soon will be.
    pub(crate) goes_units: u64,
    /// The worth of these objects.
    pub(crate) worth: u64,
}

impl Piece {
    /// Returns a piece that evicts nothing.
    pub(crate) fn free(units: Range<u64>) -> Piece {
        Piece { units, goes_units: 0, worth: 0 }
    }

    fn len(&self) -> u64 {
        self.units.end - self.units.start
    }
}

/// A run to be emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) device: u8,
    /// As many units as are needed. All evicted objects begin among them.
    pub(crate) units: Range<u64>,
    /// Units of the objects that are evicted.
    pub(crate) goes_units: u64,
    worth: u64,
    /// Units of the free run that it leaves.
    run_units: u64,
}

impl Window {
    /// Returns the worth of the objects for each unit of the run, as a fraction.
    pub(crate) fn worth_per_unit(&self) -> (u64, u64) {
        (self.worth, self.run_units)
    }

    fn is_better(&self, other: &Window) -> bool {
        let product = |worth: u64, units: u64| u128::from(worth) * u128::from(units);
        let (mine, theirs) =
            (product(self.worth, other.run_units), product(other.worth, self.run_units));
        (mine, self.goes_units) < (theirs, other.goes_units)
    }
}

/// The best windows offered so far.
#[derive(Debug)]
pub(crate) struct Choice {
    needs: u64,
    /// The most units to evict.
    limit: u64,
    /// The best window within the limit.
    pub(crate) best: Option<Window>,
    /// The window beyond the limit that evicts least.
    pub(crate) least: Option<Window>,
}

impl Choice {
    /// Begins to choose a window of `needs` units that evicts at most `limit` units of objects, if there is one.
    pub(crate) fn new(needs: u64, limit: u64) -> Choice {
        assert!(needs > 0, "a window has units");
        Choice { needs, limit, best: None, least: None }
    }

    /// Returns whether the best window evicts nothing.
    pub(crate) fn is_free(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.goes_units == 0)
    }

    pub(crate) fn needs(&self) -> u64 {
        self.needs
    }

    /// Leaves in `least` the better of it and [`Choice::least`].
    pub(crate) fn keep_least(&mut self, least: &mut Option<Window>) {
        let goes = |window: &Option<Window>| window.as_ref().map_or(u64::MAX, |w| w.goes_units);
        if goes(&self.least) < goes(least) {
            *least = self.least.take();
        }
    }

    /// Examines all windows of a part of a device. The pieces must be in order, and two that evict nothing apart.
    pub(crate) fn offer(&mut self, device: u8, pieces: &[Piece]) {
        let is_sound = |two: &[Piece]| {
            let touch = two[0].units.end == two[1].units.start;
            two[0].units.end <= two[1].units.start
                && !(touch && two[0].goes_units == 0 && two[1].goes_units == 0)
        };
        debug_assert!(pieces.windows(2).all(is_sound), "pieces are in order and joined");
        let (mut end, mut total) = (0, Piece::free(0..0));
        for start in 0..pieces.len() {
            if end <= start {
                (end, total) =
                    (start, Piece::free(pieces[start].units.start..pieces[start].units.start));
            }
            while total.len() < self.needs
                && let Some(next) = pieces.get(end)
                && next.units.start == total.units.end
            {
                total.units.end = next.units.end;
                total.goes_units += next.goes_units;
                total.worth += next.worth;
                end += 1;
            }
            if total.len() >= self.needs {
                self.consider(device, pieces, start..end, &total);
            }
            total.units.start = pieces[start].units.end;
            total.goes_units -= pieces[start].goes_units;
            total.worth -= pieces[start].worth;
        }
    }

    /// Considers the window of these pieces, whose sum is `total`.
    fn consider(&mut self, device: u8, pieces: &[Piece], range: Range<usize>, total: &Piece) {
        let neighbour = |at: Option<usize>, is_beside: &dyn Fn(&Piece) -> bool| {
            let piece = at.and_then(|at| pieces.get(at));
            piece.filter(|piece| piece.goes_units == 0 && is_beside(piece)).map_or(0, Piece::len)
        };
        let before =
            neighbour(range.start.checked_sub(1), &|piece| piece.units.end == total.units.start);
        let behind = neighbour(Some(range.end), &|piece| piece.units.start == total.units.end);
        // The rest of a free piece stays free.
        let first = &pieces[range.start];
        let start = if first.goes_units == 0 {
            (total.units.end - self.needs).min(first.units.end)
        } else {
            first.units.start
        };
        let units = start..start + self.needs;
        let window = Window {
            device,
            units,
            goes_units: total.goes_units,
            worth: total.worth,
            run_units: before + total.len() + behind,
        };
        let is_within = window.goes_units <= self.limit;
        if is_within && self.best.as_ref().is_none_or(|best| window.is_better(best)) {
            self.best = Some(window);
        } else if !is_within
            && self.least.as_ref().is_none_or(|least| window.goes_units < least.goes_units)
        {
            self.least = Some(window);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn piece(units: Range<u64>, worth_per_unit: u64) -> Piece {
        let len = units.end - units.start;
        let goes_units = if worth_per_unit == 0 { 0 } else { len };
        Piece { units, goes_units, worth: worth_per_unit * len }
    }

    fn chosen(needs: u64, limit: u64, pieces: &[Piece]) -> Choice {
        let mut choice = Choice::new(needs, limit);
        choice.offer(0, pieces);
        choice
    }

    #[test]
    fn the_coldest_run_goes_and_not_the_coldest_object() {
        let pieces =
            [piece(0..4, 1), piece(4..8, 90), piece(8..12, 9), piece(12..16, 9), piece(16..20, 90)];
        let best = chosen(8, 16, &pieces).best.expect("a window");
        assert_eq!((best.units, best.goes_units), (8..16, 8));
    }

    #[test]
    fn a_window_beside_free_space_wins_and_leaves_the_rest_of_it_whole() {
        let pieces = [piece(0..8, 5), piece(8..20, 0), piece(20..24, 7), piece(24..32, 5)];
        let best = chosen(14, 28, &pieces).best.expect("a window");
        assert_eq!((best.units, best.goes_units), (10..24, 4));
    }

    #[test]
    fn what_is_beyond_the_limit_is_the_last_resort() {
        let pieces = [piece(0..100, 1), piece(100..110, 50)];
        let choice = chosen(4, 20, &pieces);
        assert_eq!(choice.best.map(|best| best.units), Some(100..104));
        let choice = chosen(4, 8, &pieces);
        assert!(choice.best.is_none());
        assert_eq!(choice.least.map(|least| least.units), Some(100..104));
    }

    #[test]
    fn nothing_goes_across_a_gap() {
        let pieces = [piece(0..4, 1), piece(5..9, 1)];
        let choice = chosen(5, 100, &pieces);
        assert!(choice.best.is_none() && choice.least.is_none());
    }

    proptest! {
        /// Compares with every run of pieces that needs its last one.
        #[test]
        fn no_run_of_pieces_is_better_than_the_one_chosen(
            drawn in vec((1u64..12, 0u64..4, 0u64..9), 1..12),
            needs in 1u64..30,
            limit in 0u64..60,
        ) {
            let (mut pieces, mut at) = (Vec::<Piece>::new(), 0);
            for (len, gap, worth) in drawn {
                at += gap / 3;
                match pieces.last_mut() {
                    Some(last) if worth == 0 && last.worth == 0 && last.units.end == at => {
                        last.units.end += len;
                    }
                    _ => pieces.push(piece(at..at + len, worth)),
                }
                at += len;
            }
            let choice = chosen(needs, limit, &pieces);
            let (mut best, mut least): (Option<(u64, u64)>, Option<u64>) = (None, None);
            for start in 0..pieces.len() {
                for end in start + 1..=pieces.len() {
                    let run = &pieces[start..end];
                    let is_whole = run.windows(2).all(|two| two[0].units.end == two[1].units.start);
                    let mut len: u64 = run.iter().map(Piece::len).sum();
                    if !is_whole || len < needs || len - run[run.len() - 1].len() >= needs {
                        continue;
                    }
                    let is_joined = |one: usize, two: usize| {
                        pieces[one].units.end == pieces[two].units.start
                    };
                    if start > 0 && pieces[start - 1].worth == 0 && is_joined(start - 1, start) {
                        len += pieces[start - 1].len();
                    }
                    if end < pieces.len() && pieces[end].worth == 0 && is_joined(end - 1, end) {
                        len += pieces[end].len();
                    }
                    let goes: u64 = run.iter().map(|piece| piece.goes_units).sum();
                    let worth: u64 = run.iter().map(|piece| piece.worth).sum();
                    if goes <= limit && best.is_none_or(|best| worth * best.1 < best.0 * len) {
                        best = Some((worth, len));
                    } else if goes > limit {
                        least = Some(least.map_or(goes, |least| least.min(goes)));
                    }
                }
            }
            prop_assert_eq!(choice.best.is_some(), best.is_some());
            if let (Some(window), Some((worth, len))) = (&choice.best, best) {
                prop_assert!(window.goes_units <= limit);
                prop_assert!(window.worth * len <= worth * window.run_units);
                prop_assert_eq!(window.units.end - window.units.start, needs);
                let inside = pieces.iter().filter(|piece| {
                    piece.units.start < window.units.end && window.units.start < piece.units.end
                });
                let is_cut = |piece: &&Piece| piece.units.start < window.units.start;
                let cut = inside.clone().filter(is_cut).map(|piece| piece.goes_units);
                prop_assert_eq!(cut.sum::<u64>(), 0, "what goes begins in the window");
                let goes = inside.map(|piece| piece.goes_units).sum::<u64>();
                prop_assert_eq!(goes, window.goes_units);
            } else {
                prop_assert_eq!(choice.least.map(|window| window.goes_units), least);
            }
        }
    }
}
