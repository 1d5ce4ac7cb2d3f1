//! The idle runs of a region of memory: the bytes that no request has.
//!
//! A run is taken at a given offset or at the first that fits, and joins idle neighbours when it is given back. So no
//! two requests share bytes, and only runs in use fragment a region.

use std::collections::BTreeMap;

use adit_kvstore::Divide;

/// The idle runs of one region, by offset.
#[derive(Debug)]
pub struct Pieces<M> {
    idle: BTreeMap<usize, M>,
    idle_bytes: usize,
    bytes: usize,
}

impl<M: Divide> Pieces<M> {
    /// Creates the list of a region without runs in use.
    pub fn new(all: M) -> Pieces<M> {
        let bytes = all.bytes();
        Pieces { idle: BTreeMap::from([(0, all)]), idle_bytes: bytes, bytes }
    }

    /// Returns the region's length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of the runs in use.
    pub fn bytes_in_use(&self) -> usize {
        self.bytes - self.idle_bytes
    }

    /// Returns whether no run is in use.
    pub fn is_whole(&self) -> bool {
        self.bytes_in_use() == 0
    }

    /// Takes `bytes` at `offset`. `None` if some of them are in use, or outside the region, or there are none.
    pub fn take(&mut self, offset: usize, bytes: usize) -> Option<M> {
        let end = offset.checked_add(bytes).filter(|_| bytes > 0)?;
        let (&start, piece) = self.idle.range(..=offset).next_back()?;
        if end > start + piece.bytes() {
            return None;
        }
        let mut taken = self.idle.remove(&start).expect("it was found there");
        if taken.bytes() > end - start {
            self.idle.insert(end, taken.split_off(end - start));
        }
        if offset > start {
            let tail = taken.split_off(offset - start);
            self.idle.insert(start, std::mem::replace(&mut taken, tail));
        }
        self.idle_bytes -= bytes;
        assert_eq!(taken.bytes(), bytes, "what was asked for is taken");
        Some(taken)
    }

    /// Takes the first run of `bytes` that is idle, with its offset.
    pub fn take_any(&mut self, bytes: usize) -> Option<(usize, M)> {
        let found = self.idle.iter().find(|(_, piece)| piece.bytes() >= bytes);
        let offset = *found?.0;
        Some((offset, self.take(offset, bytes)?))
    }

    /// Gives back a run that was taken at `offset`.
    pub fn give(&mut self, offset: usize, run: M) {
        let (bytes, mut start, mut run) = (run.bytes(), offset, run);
        assert!(offset + bytes <= self.bytes, "a run comes back to its region");
        if let Some((&before, piece)) = self.idle.range(..offset).next_back() {
            assert!(before + piece.bytes() <= offset, "a run comes back once");
            if before + piece.bytes() == offset {
                let mut piece = self.idle.remove(&before).expect("it was found there");
                match piece.join(run) {
                    Ok(()) => (start, run) = (before, piece),
                    Err(other) => {
                        run = other;
                        self.idle.insert(before, piece);
                    }
                }
            }
        }
        if let Some(next) = self.idle.remove(&(offset + bytes))
            && let Err(next) = run.join(next)
        {
            self.idle.insert(offset + bytes, next);
        }
        let before = self.idle.insert(start, run);
        assert!(before.is_none(), "a run comes back once");
        self.idle_bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A run of a region of numbers.
    #[derive(Debug, PartialEq, Eq)]
    struct Numbers(std::ops::Range<usize>);

    impl Divide for Numbers {
        fn bytes(&self) -> usize {
            self.0.len()
        }

        fn split_off(&mut self, at: usize) -> Numbers {
            let tail = self.0.start + at..self.0.end;
            self.0.end = tail.start;
            Numbers(tail)
        }

        fn join(&mut self, tail: Numbers) -> Result<(), Numbers> {
            if tail.0.start != self.0.end {
                return Err(tail);
            }
            self.0.end = tail.0.end;
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn runs_are_where_they_were_asked_for_and_never_overlap(
            steps in proptest::collection::vec((0usize..70, 0usize..40, any::<bool>()), 1..200)
        ) {
            let mut pieces = Pieces::new(Numbers(0..64));
            let mut taken: Vec<Numbers> = Vec::new();
            for (offset, bytes, gives) in steps {
                if gives && !taken.is_empty() {
                    let run = taken.swap_remove(offset % taken.len());
                    pieces.give(run.0.start, run);
                    continue;
                }
                let overlaps = |run: &Numbers| run.0.start < offset + bytes && offset < run.0.end;
                let is_free = bytes > 0 && offset + bytes <= 64 && !taken.iter().any(overlaps);
                let run = pieces.take(offset, bytes);
                prop_assert_eq!(run.is_some(), is_free);
                if let Some(run) = run {
                    prop_assert_eq!(&run, &Numbers(offset..offset + bytes));
                    taken.push(run);
                }
            }
            prop_assert_eq!(pieces.is_whole(), taken.is_empty());
            prop_assert_eq!(pieces.bytes_in_use(), taken.iter().map(Divide::bytes).sum::<usize>());
            taken.into_iter().for_each(|run| pieces.give(run.0.start, run));
            prop_assert!(pieces.is_whole());
            prop_assert_eq!(pieces.idle.len(), 1, "all have joined");
        }
    }

    #[test]
    fn room_is_found_where_there_is_some() {
        let mut pieces = Pieces::new(Numbers(0..10));
        let first = pieces.take_any(6).expect("room");
        assert_eq!((first.0, pieces.take_any(6)), (0, None));
        assert_eq!(pieces.take_any(4).expect("room").0, 6);
        pieces.give(0, first.1);
        assert_eq!(pieces.take_any(6).expect("room").0, 0);
    }
}
