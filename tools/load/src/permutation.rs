//! A random order of `0..count` without a table.
//!
//! Numbers are cells of a nearly square grid. Rotating each row by a random distance that depends on its number
//! is a bijection of the grid, and so is rotating each column; alternating a few of these forms a Feistel
//! network. The grid exceeds `count` by less than a row; results outside are permuted again until one falls
//! inside. So each number comes exactly once, in constant memory and with few mispredicted branches.

use super::random::{below, mix};

/// A bijection of `0..count` determined by a seed.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    count: u64,
    columns: u64,
    rows: u64,
    /// Round keys; three rounds make a Feistel network a random permutation.
    keys: [u64; 3],
}

/// A cell of a permutation's grid.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    row: u64,
    column: u64,
}

impl Permutation {
    /// Creates the permutation of `0..count` for `seed`; `count` is not zero.
    pub(crate) fn new(count: u64, seed: u64) -> Permutation {
        assert!(count > 0, "there is something to permute");
        let columns = count.isqrt();
        let keys = std::array::from_fn(|round| mix(seed ^ mix(round as u64 + 1)));
        Permutation { count, columns, rows: count.div_ceil(columns), keys }
    }

    /// Permutes `index`, which is below the count.
    #[inline]
    pub(crate) fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.count);
        self.apply_to(self.cell(index))
    }

    /// Permutes an index given as its cell, which saves a division.
    #[inline]
    pub(crate) fn apply_to(&self, cell: Cell) -> u64 {
        let mut at = self.network(cell);
        while at >= self.count {
            at = self.network(self.cell(at));
        }
        at
    }

    /// Returns the cell of the next index.
    #[inline]
    pub(crate) fn following(&self, cell: Cell) -> Cell {
        match cell.column + 1 {
            column if column < self.columns => Cell { column, ..cell },
            _ => Cell { row: cell.row + 1, column: 0 },
        }
    }

    fn cell(&self, at: u64) -> Cell {
        Cell { row: at / self.columns, column: at % self.columns }
    }

    #[inline]
    fn network(&self, Cell { row, column }: Cell) -> u64 {
        let [first, second, third] = self.keys;
        let row = shifted(row, scrambled(column, first), self.rows);
        let column = shifted(column, scrambled(row, second), self.columns);
        let row = shifted(row, scrambled(column, third), self.rows);
        row * self.columns + column
    }
}

/// Advances `at` by a random number of steps in a circle of `count`.
#[inline]
fn shifted(at: u64, random: u64, count: u64) -> u64 {
    let further = at + below(random, count);
    if further < count { further } else { further - count }
}

/// Mixes all bits of `x` nonlinearly into the high bits of the result.
#[inline]
fn scrambled(x: u64, key: u64) -> u64 {
    let x = (x ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_number_comes_exactly_once(count in 1u64..3000, seed: u64) {
            let permutation = Permutation::new(count, seed);
            let mut seen = vec![false; count as usize];
            for index in 0..count {
                let at = permutation.apply(index) as usize;
                prop_assert!(!std::mem::replace(&mut seen[at], true), "{at} came twice");
            }
        }

        #[test]
        fn going_from_cell_to_cell_is_counting(count in 1u64..3000, seed: u64) {
            let permutation = Permutation::new(count, seed);
            let cells = std::iter::successors(Some(Cell::default()), |cell| Some(permutation.following(*cell)));
            for (index, cell) in (0..count).zip(cells) {
                prop_assert_eq!(permutation.apply_to(cell), permutation.apply(index));
            }
        }

        #[test]
        fn large_ranges_stay_in_range(count in 1u64..u64::MAX >> 1, seed: u64, index: u64) {
            prop_assert!(Permutation::new(count, seed).apply(index % count) < count);
        }
    }

    #[test]
    fn seeds_give_different_orders() {
        let order =
            |seed| (0..100).map(|i| Permutation::new(100, seed).apply(i)).collect::<Vec<_>>();
        assert_ne!(order(1), order(2));
        assert_ne!(order(1), (0..100).collect::<Vec<_>>());
        assert_eq!(order(1), order(1));
    }

    /// Returns how unequal the counts are, as a normalized chi-squared statistic.
    fn surprise(cells: &[u64]) -> f64 {
        let expected = cells.iter().sum::<u64>() as f64 / cells.len() as f64;
        let squared: f64 =
            cells.iter().map(|cell| (*cell as f64 - expected).powi(2) / expected).sum();
        let freedom = cells.len() as f64 - 1.0;
        (squared - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn a_number_says_nothing_about_those_soon_after_it() {
        for (count, seed) in [(1_000_003u64, 1), (1 << 20, 2), (999_999_999, 3), (1 << 40, 4)] {
            let permutation = Permutation::new(count, seed);
            let cell =
                |index| (u128::from(permutation.apply(index)) * 32 / u128::from(count)) as usize;
            for lag in [1, 2, 3, count.isqrt()] {
                let mut cells = vec![0; 32 * 32];
                (0..500_000.min(count / 2))
                    .for_each(|index| cells[cell(index) * 32 + cell(index + lag)] += 1);
                let surprise = surprise(&cells);
                assert!(surprise.abs() < 5.0, "{count} at a distance of {lag}: {surprise}");
            }
        }
    }
}
