//! Tracks which parts of the region a pass has taken: one bit per unit, like fio's random map.

/// The free units of a region.
#[derive(Clone, Debug)]
pub(super) struct Map {
    units: u64,
    /// One bit per taken unit; bits beyond the last unit are set.
    taken: Vec<u64>,
}

impl Map {
    /// Creates a map of `units` free units.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn new(units: u64) -> Result<Map, std::collections::TryReserveError> {
        let words = units.div_ceil(64) as usize;
        let mut taken = Vec::new();
        taken.try_reserve_exact(words)?;
        taken.resize(words, 0);
        let mut map = Map { units, taken };
        map.clear();
        Ok(map)
    }

    /// Frees all units.
    pub(super) fn clear(&mut self) {
        self.taken.fill(0);
        let used = self.units % 64;
        if used > 0 {
            *self.taken.last_mut().expect("there are units") = u64::MAX << used;
        }
    }

    #[inline]
    pub(super) fn is_free(&self, unit: u64) -> bool {
        self.taken[(unit / 64) as usize] >> (unit % 64) & 1 == 0
    }

    /// Returns the first free unit at or after `from`, wrapping around; `None` if all are taken.
    pub(super) fn next_free(&self, from: u64) -> Option<u64> {
        let from = if from < self.units { from } else { 0 };
        self.first_free(from, self.units).or_else(|| self.first_free(0, from))
    }

    fn first_free(&self, from: u64, to: u64) -> Option<u64> {
        let mut unit = from;
        while unit < to {
            let free = !self.taken[(unit / 64) as usize] >> (unit % 64);
            if free != 0 {
                return Some(unit + u64::from(free.trailing_zeros())).filter(|unit| *unit < to);
            }
            unit = (unit / 64 + 1) * 64;
        }
        None
    }

    /// Takes consecutive free units from `from`, at most `want`, and returns how many.
    #[inline]
    pub(super) fn take(&mut self, from: u64, want: u64) -> u64 {
        let mut count = 0;
        while count < want {
            let (unit, bit) = (from + count, (from + count) % 64);
            let Some(word) = self.taken.get_mut((unit / 64) as usize) else { break };
            let run = u64::from((*word >> bit).trailing_zeros()).min(64 - bit).min(want - count);
            if run == 0 {
                break;
            }
            *word |= (u64::MAX >> (64 - run)) << bit;
            count += run;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_map_is_what_a_row_of_flags_is(
            units in 1u64..300,
            takes in proptest::collection::vec((0u64..300, 1u64..200), 0..40),
        ) {
            let mut map = Map::new(units).expect("memory");
            let mut free = vec![true; units as usize];
            for (from, want) in takes {
                let from = from % units;
                let places: Vec<usize> =
                    (from..units.min(from + want)).map(|unit| unit as usize).take_while(|unit| free[*unit]).collect();
                prop_assert_eq!(map.take(from, want), places.len() as u64);
                places.into_iter().for_each(|unit| free[unit] = false);
                prop_assert!((0..units).all(|unit| map.is_free(unit) == free[unit as usize]));
                let cycle = (from..units).chain(0..from);
                prop_assert_eq!(map.next_free(from), { cycle }.find(|unit| free[*unit as usize]));
            }
            map.clear();
            prop_assert!((0..units).all(|unit| map.is_free(unit)));
        }
    }
}
