//! Chooses the length of an I/O.

use adit_load::below;

use crate::options::BlockSizes;

/// The lengths of one way's I/Os, in bytes.
#[derive(Clone, Debug)]
pub(super) enum Sizes {
    /// One length.
    Fixed(u64),
    /// Multiples of `min` up to `count` times, equally frequent.
    Range { min: u64, count: u64 },
    /// Lengths, each with the cumulative share in percent.
    Split(Vec<(u64, u64)>),
}

impl Sizes {
    /// Converts the sizes of a job, which have at least a byte, and shares that come to 100 %.
    pub(super) fn new(sizes: &BlockSizes) -> Sizes {
        match sizes {
            BlockSizes::Fixed(bytes) => Sizes::Fixed(*bytes),
            BlockSizes::Range(from, to) => Sizes::Range { min: *from, count: to / from },
            BlockSizes::Split(sizes) => {
                let mut sum = 0;
                let summed = |(bytes, percent): &(u64, u8)| {
                    sum += u64::from(*percent);
                    (*bytes, sum)
                };
                Sizes::Split(sizes.iter().map(summed).collect())
            }
        }
    }

    /// Maps a random number to a length; asks for the number only if there is a choice.
    #[inline]
    pub(super) fn draw(&self, random: impl Fn() -> u64) -> u64 {
        match self {
            Sizes::Fixed(bytes) => *bytes,
            Sizes::Range { min, count } => min * (1 + below(random(), *count)),
            Sizes::Split(sizes) => {
                let percent = below(random(), 100);
                sizes.iter().find(|(_, until)| percent < *until).map_or(0, |(bytes, _)| *bytes)
            }
        }
    }

    /// Draws a length that fits into `room` bytes: if the drawn one does not, the longest that does; `None` if
    /// none fits.
    #[inline]
    pub(super) fn draw_within(&self, random: impl Fn() -> u64, room: u64) -> Option<u64> {
        let drawn = self.draw(random);
        if drawn <= room { Some(drawn) } else { self.longest_within(room) }
    }

    fn longest_within(&self, room: u64) -> Option<u64> {
        match self {
            Sizes::Fixed(bytes) => (*bytes <= room).then_some(*bytes),
            Sizes::Range { min, .. } => (*min <= room).then(|| room / min * min),
            Sizes::Split(sizes) => {
                sizes.iter().map(|(bytes, _)| *bytes).filter(|bytes| *bytes <= room).max()
            }
        }
    }

    /// Returns the smallest length.
    pub(super) fn min(&self) -> u64 {
        match self {
            Sizes::Fixed(bytes) | Sizes::Range { min: bytes, .. } => *bytes,
            Sizes::Split(sizes) => sizes.iter().map(|(bytes, _)| *bytes).min().unwrap_or(0),
        }
    }

    /// Returns the greatest common divisor of the lengths.
    pub(super) fn unit(&self) -> u64 {
        match self {
            Sizes::Fixed(bytes) | Sizes::Range { min: bytes, .. } => *bytes,
            Sizes::Split(sizes) => sizes.iter().fold(0, |unit, (bytes, _)| gcd(unit, *bytes)),
        }
    }

    /// Returns the length if there is only one.
    pub(super) fn only(&self) -> Option<u64> {
        match self {
            Sizes::Fixed(bytes) | Sizes::Range { min: bytes, count: 1 } => Some(*bytes),
            _ => None,
        }
    }
}

/// Returns the greatest common divisor; if one number is zero, the other.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_load::Stream;

    fn shares(sizes: &Sizes, of: &[u64]) -> Vec<f64> {
        let stream = Stream::new(5, 0, 0);
        let drawn: Vec<u64> = (0..100_000).map(|index| sizes.draw(|| stream.at(index))).collect();
        assert!(drawn.iter().all(|bytes| of.contains(bytes)), "no others");
        of.iter()
            .map(|bytes| drawn.iter().filter(|x| *x == bytes).count() as f64 / 1000.0)
            .collect()
    }

    #[test]
    fn a_range_has_all_multiples_equally_often() {
        let sizes = Sizes::new(&BlockSizes::Range(4096, 17000));
        for share in shares(&sizes, &[4096, 8192, 12288, 16384]) {
            assert!((share - 25.0).abs() < 0.5, "{share}");
        }
    }

    #[test]
    fn a_split_keeps_its_shares() {
        let split = BlockSizes::Split(vec![(4096, 10), (65536, 50), (32768, 40)]);
        let sizes = Sizes::new(&split);
        let found = shares(&sizes, &[4096, 65536, 32768]);
        for (share, expected) in found.iter().zip([10.0, 50.0, 40.0]) {
            assert!((share - expected).abs() < 0.5, "{share} of {expected}");
        }
        assert_eq!((sizes.min(), sizes.unit()), (4096, 4096));
    }

    #[test]
    fn where_there_is_less_room_the_longest_that_fits_is_taken() {
        let split = Sizes::new(&BlockSizes::Split(vec![(8192, 1), (12288, 99)]));
        assert_eq!(
            (split.draw_within(|| u64::MAX, 9000), split.draw_within(|| u64::MAX, 8000)),
            (Some(8192), None)
        );
        assert_eq!((split.min(), split.unit()), (8192, 4096));
        let range = Sizes::new(&BlockSizes::Range(512, 4096));
        assert_eq!(
            (range.draw_within(|| u64::MAX, 1600), range.draw_within(|| u64::MAX, 500)),
            (Some(1536), None)
        );
    }
}
