//! Decides which blocks are hot.
//!
//! Zipf and Pareto (which the paper calls self-similar) use the constant-time formulas of Gray, Sundaresan,
//! Englert, Baclawski and Weinberger, "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994. The
//! formulas give ranks. Without a center, a permutation scatters the ranks over the region, so hot blocks are
//! not neighbours. With a center, ranks follow each other from there and wrap around at the region's end. A
//! normal distribution is scattered in the same way unless it has a center. The seed alone decides which blocks
//! are hot, so all passes agree.

use std::f64::consts::TAU;

use crate::permutation::Permutation;
use crate::random::{GOLDEN, below, fraction, mix};

/// Terms of the zeta function summed exactly; an integral approximates the rest.
const ZETA_TERMS: u64 = 1000;
/// How many times to redraw a place outside the region before accepting any.
const NORMAL_TRIES: u64 = 16;

/// A distribution of accesses over the blocks of a region (fio's `random_distribution`).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Distribution {
    /// All blocks are equally frequent.
    #[default]
    Uniform,
    /// Zipf with exponent theta. The center is the position of the most frequent block in the region (0 to 1);
    /// by default it is arbitrary.
    Zipf {
        /// The exponent.
        theta: f64,
        /// The position of the most frequent block.
        center: Option<f64>,
    },
    /// Pareto with power h.
    Pareto {
        /// The power, 0 to 1.
        power: f64,
        /// As for Zipf.
        center: Option<f64>,
    },
    /// Normal, with a deviation in percent of the region.
    Normal {
        /// The standard deviation, in percent of the region.
        deviation: f64,
        /// As for Zipf.
        center: Option<f64>,
    },
    /// Consecutive zones: share of accesses and share of the region, both in percent.
    Zoned(Vec<(f64, f64)>),
    /// Consecutive zones with sizes in bytes.
    ZonedAbs(Vec<(f64, u64)>),
}

/// Draws places of `0..count` with unequal frequency.
#[derive(Clone, Debug)]
pub struct Draw {
    count: u64,
    kind: DrawKind,
}

#[derive(Clone, Debug)]
enum DrawKind {
    Uniform,
    Zipf(Zipf, Ranks),
    SelfSimilar {
        exponent: f64,
        ranks: Ranks,
    },
    /// Scattered, unless a center is given.
    Normal {
        mean: f64,
        deviation: f64,
        scattered: Option<Permutation>,
    },
    Zoned(Vec<Zone>),
}

/// Maps ranks to places.
#[derive(Clone, Debug)]
enum Ranks {
    Scattered(Permutation),
    From(u64),
}

/// A part of the region with its own share of accesses.
#[derive(Clone, Debug)]
struct Zone {
    /// The cumulative share up to and including this zone, in percent.
    until_percent: f64,
    start: u64,
    count: u64,
}

impl Draw {
    /// Creates a draw over `count` places, `step` bytes apart.
    ///
    /// # Errors
    /// A value of the distribution is invalid; lists the valid ones.
    pub fn new(
        distribution: &Distribution,
        count: u64,
        step: u64,
        seed: u64,
    ) -> Result<Draw, String> {
        let ranks = |center| Ranks::new(center, count, seed);
        let kind = match distribution {
            Distribution::Uniform => DrawKind::Uniform,
            Distribution::Zipf { theta, center } => {
                DrawKind::Zipf(Zipf::new(*theta, count)?, ranks(*center)?)
            }
            Distribution::Pareto { power, center } => {
                DrawKind::SelfSimilar { exponent: self_similar(*power)?, ranks: ranks(*center)? }
            }
            Distribution::Normal { deviation, center } => normal(*deviation, *center, count, seed)?,
            Distribution::Zoned(zones) => {
                let whole: f64 = zones.iter().map(|(_, size)| size).sum();
                near_100(whole, "sizes")?;
                let place = |percent: f64| (percent / 100.0 * count as f64).round() as u64;
                DrawKind::Zoned(zoned(
                    zones.iter().map(|(share, size)| (*share, *size)),
                    place,
                    count,
                )?)
            }
            Distribution::ZonedAbs(zones) => {
                let place = |bytes: f64| bytes as u64 / step;
                DrawKind::Zoned(zoned(
                    zones.iter().map(|(share, size)| (*share, *size as f64)),
                    place,
                    count,
                )?)
            }
        };
        Ok(Draw { count, kind })
    }

    /// Maps a random number to a place.
    #[inline]
    pub fn place(&self, random: u64) -> u64 {
        match &self.kind {
            DrawKind::Uniform => below(random, self.count),
            DrawKind::Zipf(zipf, ranks) => ranks.place(zipf.rank(fraction(random)), self.count),
            DrawKind::SelfSimilar { exponent, ranks } => {
                let rank = (self.count as f64 * fraction(random).powf(*exponent)) as u64;
                ranks.place(rank.min(self.count - 1), self.count)
            }
            DrawKind::Normal { mean, deviation, scattered } => {
                let place = self.normal(random, *mean, *deviation);
                scattered.as_ref().map_or(place, |places| places.apply(place))
            }
            DrawKind::Zoned(zones) => {
                let percent = fraction(random) * 100.0;
                let zone = zones.iter().find(|zone| percent < zone.until_percent);
                let zone = zone.unwrap_or(&zones[zones.len() - 1]);
                zone.start + below(mix(random.wrapping_add(GOLDEN)), zone.count)
            }
        }
    }

    fn normal(&self, random: u64, mean: f64, deviation: f64) -> u64 {
        for attempt in 0..NORMAL_TRIES {
            let [radius, angle] = [1, 2]
                .map(|n| fraction(mix(random.wrapping_add(GOLDEN.wrapping_mul(2 * attempt + n)))));
            let place =
                mean + deviation * (-2.0 * (1.0 - radius).ln()).sqrt() * (TAU * angle).cos();
            if (0.0..self.count as f64).contains(&place) {
                return place as u64;
            }
        }
        below(random, self.count)
    }
}

fn normal(deviation: f64, center: Option<f64>, count: u64, seed: u64) -> Result<DrawKind, String> {
    if !(deviation > 0.0 && deviation <= 100.0) {
        return Err(format!(
            "normal:{deviation} is not a deviation in percent: use one above 0 up to 100"
        ));
    }
    let center = checked_center(center)?;
    let scattered = center.is_none().then(|| Permutation::new(count, mix(seed)));
    let mean = center.unwrap_or(0.5) * count as f64;
    Ok(DrawKind::Normal { mean, deviation: deviation * count as f64 / 100.0, scattered })
}

/// Returns the exponent that gives `1 - power` of all draws to `power` of the places.
fn self_similar(power: f64) -> Result<f64, String> {
    if power > 0.0 && power < 1.0 {
        Ok(power.ln() / (1.0 - power).ln())
    } else {
        Err(format!("pareto:{power} is not a power: use one between 0 and 1, such as 0.2"))
    }
}

fn checked_center(center: Option<f64>) -> Result<Option<f64>, String> {
    match center {
        Some(center) if !(0.0..=1.0).contains(&center) => Err(format!(
            "a distribution's center of {center} is not in the region: use one from 0 to 1"
        )),
        center => Ok(center),
    }
}

fn near_100(sum: f64, what: &str) -> Result<(), String> {
    match (sum - 100.0).abs() < 0.01 {
        true => Ok(()),
        false => Err(format!(
            "the {what} of random_distribution's zones come to {sum} %: make them 100 together"
        )),
    }
}

/// Builds zones from shares and sizes; `place` converts a size to a number of places.
fn zoned(
    zones: impl Iterator<Item = (f64, f64)>,
    place: impl Fn(f64) -> u64,
    count: u64,
) -> Result<Vec<Zone>, String> {
    let (mut percent, mut size) = (0.0, 0.0);
    let mut placed = Vec::new();
    for (share, zone_size) in zones {
        let start = place(size);
        (percent, size) = (percent + share, size + zone_size);
        let end = place(size).min(count);
        if share > 0.0 && end <= start {
            return Err(format!(
                "a zone of random_distribution with {share} % of the accesses has no block in the region: make the \
                 zone or the region larger"
            ));
        }
        placed.push(Zone { until_percent: percent, start, count: end.saturating_sub(start) });
    }
    near_100(percent, "shares")?;
    Ok(placed)
}

impl Ranks {
    fn new(center: Option<f64>, count: u64, seed: u64) -> Result<Ranks, String> {
        Ok(match checked_center(center)? {
            None => Ranks::Scattered(Permutation::new(count, mix(seed))),
            Some(center) => Ranks::From(((center * count as f64) as u64).min(count - 1)),
        })
    }

    fn place(&self, rank: u64, count: u64) -> u64 {
        match self {
            Ranks::Scattered(permutation) => permutation.apply(rank),
            Ranks::From(start) if rank < count - start => start + rank,
            Ranks::From(start) => rank - (count - start),
        }
    }
}

/// Ranks whose frequency falls with the power theta.
#[derive(Clone, Debug)]
struct Zipf {
    count: u64,
    alpha: f64,
    eta: f64,
    zeta: f64,
    /// The share of ranks 0 and 1 together, in units of zeta.
    first_two: f64,
}

impl Zipf {
    fn new(theta: f64, count: u64) -> Result<Zipf, String> {
        if !theta.is_finite() || theta <= 0.0 || theta == 1.0 {
            return Err(format!(
                "zipf:{theta} is not a theta: use one above 0 that is not 1, such as 1.2"
            ));
        }
        let (zeta, first_two) = (zeta(theta, count), zeta(theta, 2.min(count)));
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - first_two / zeta);
        Ok(Zipf { count, alpha: 1.0 / (1.0 - theta), eta, zeta, first_two })
    }

    #[inline]
    fn rank(&self, fraction: f64) -> u64 {
        let scaled = fraction * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.first_two {
            return 1;
        }
        let rank = self.count as f64 * (self.eta * fraction - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }
}

/// Returns the sum of `1 / i^theta` for i from 1 to `count`, using Euler-Maclaurin after the first terms.
fn zeta(theta: f64, count: u64) -> f64 {
    let term = |i: u64| (i as f64).powf(-theta);
    let summed = count.min(ZETA_TERMS);
    let sum: f64 = (1..=summed).map(term).sum();
    if summed == count {
        return sum;
    }
    let power = |i: u64| (i as f64).powf(1.0 - theta);
    sum + (power(count) - power(summed)) / (1.0 - theta) + (term(count) - term(summed)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    /// 1 GiB in blocks of 4 KiB, as in `fio-genzipf -g 1`.
    const BLOCKS: u64 = 262_144;

    fn places(distribution: &Distribution, seed: u64) -> Vec<u64> {
        let draw = Draw::new(distribution, BLOCKS, 4096, seed).expect("a distribution");
        let stream = Stream::new(seed, 0, 0);
        (0..BLOCKS).map(|index| draw.place(stream.at(index))).collect()
    }

    /// Returns the percentage of draws that go to the most frequent twentieth, tenth and fifth of the places
    /// drawn at all, as fio-genzipf prints it.
    fn concentration(places: &[u64]) -> [f64; 3] {
        let mut hits = vec![0u64; BLOCKS as usize];
        places.iter().for_each(|place| hits[*place as usize] += 1);
        hits.retain(|count| *count > 0);
        hits.sort_unstable_by(|a, b| b.cmp(a));
        [20, 10, 5].map(|part| {
            hits[..hits.len() / part].iter().sum::<u64>() as f64 * 100.0 / places.len() as f64
        })
    }

    fn assert_near(found: [f64; 3], expected: [f64; 3], within: f64) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < within, "{found} is not near {expected}");
        }
    }

    #[test]
    fn zipf_is_as_concentrated_as_fios() {
        // fio-genzipf -t zipf -i THETA -g 1 -o 20, its rows for 5, 10 and 20 %.
        let of = |theta| concentration(&places(&Distribution::Zipf { theta, center: None }, 3));
        assert_near(of(1.2), [85.69, 88.76, 91.58], 1.0);
        assert_near(of(0.9), [54.76, 62.09, 70.54], 1.0);
        assert_near(of(0.6), [24.98, 34.45, 48.26], 1.0);
    }

    #[test]
    fn pareto_is_as_concentrated_as_fios() {
        // fio-genzipf -t pareto -i 0.2 -g 1 -o 20.
        let of = concentration(&places(&Distribution::Pareto { power: 0.2, center: None }, 3));
        assert_near(of, [57.05, 63.55, 71.37], 1.0);
    }

    #[test]
    fn a_fifth_of_the_places_has_four_fifths_of_a_pareto_of_a_fifth() {
        let places = places(&Distribution::Pareto { power: 0.2, center: Some(0.0) }, 3);
        let share =
            places.iter().filter(|place| **place < BLOCKS / 5).count() as f64 / BLOCKS as f64;
        assert!((share - 0.8).abs() < 0.01, "{share}");
    }

    #[test]
    fn zeta_is_its_sum() {
        for theta in [0.3, 0.99, 1.5] {
            let sum: f64 = (1..=100_000u64).map(|i| (i as f64).powf(-theta)).sum();
            assert!((zeta(theta, 100_000) / sum - 1.0).abs() < 1e-8, "{theta}");
        }
    }

    #[test]
    fn a_center_is_where_the_most_frequent_block_lies() {
        for distribution in [
            Distribution::Zipf { theta: 1.2, center: Some(0.25) },
            Distribution::Pareto { power: 0.1, center: Some(0.25) },
        ] {
            let places = places(&distribution, 3);
            let center = BLOCKS / 4;
            let near = places
                .iter()
                .filter(|place| (center..center + BLOCKS / 20).contains(*place))
                .count();
            assert!(near as u64 > BLOCKS * 2 / 3, "{near}");
            assert!(places.iter().any(|place| *place < center), "they go on at the start");
        }
    }

    #[test]
    fn hot_blocks_are_scattered_and_stay_the_same_for_a_seed() {
        let hottest = |seed| {
            let draw =
                Draw::new(&Distribution::Zipf { theta: 1.5, center: None }, BLOCKS, 4096, seed);
            let draw = draw.expect("a distribution");
            // Ranks 0 and 1 get 38 % and 14 % of all draws.
            [0.1, 0.45].map(|part| draw.place((part * u64::MAX as f64) as u64))
        };
        let [first, second] = hottest(3);
        assert!(first.abs_diff(second) > 1, "{first} and {second}");
        assert_eq!(hottest(3), [first, second]);
        assert_ne!(hottest(4), [first, second]);
    }

    #[test]
    fn a_normal_distribution_is_scattered_unless_a_center_is_given() {
        let drawn = |center| places(&Distribution::Normal { deviation: 5.0, center }, 3);
        // 95 % lie within a fifth of the region, unless scattered.
        let middle = |places: &[u64]| {
            let tenth = BLOCKS / 10;
            let is_there = |place: &&u64| (4 * tenth..6 * tenth).contains(*place);
            places.iter().filter(is_there).count() as f64 / places.len() as f64
        };
        let (scattered, centered) = (drawn(None), drawn(Some(0.5)));
        assert!((middle(&centered) - 0.954).abs() < 0.01, "{}", middle(&centered));
        assert!((middle(&scattered) - 0.2).abs() < 0.02, "{}", middle(&scattered));
        assert_near(concentration(&scattered), concentration(&centered), 1e-9);
    }

    #[test]
    fn normal_has_its_mean_and_its_deviation() {
        for mean in [0.5, 0.3] {
            let places = places(&Distribution::Normal { deviation: 5.0, center: Some(mean) }, 3);
            let parts: Vec<f64> =
                places.iter().map(|place| *place as f64 / BLOCKS as f64).collect();
            let found = parts.iter().sum::<f64>() / BLOCKS as f64;
            let variance =
                parts.iter().map(|part| (part - found).powi(2)).sum::<f64>() / BLOCKS as f64;
            assert!((found - mean).abs() < 0.001, "{found}");
            assert!((variance.sqrt() - 0.05).abs() < 0.0005, "{}", variance.sqrt());
        }
    }

    #[test]
    fn zones_have_their_shares() {
        let zoned = Distribution::Zoned(vec![(60.0, 10.0), (30.0, 20.0), (8.0, 30.0), (2.0, 40.0)]);
        let of_block = BLOCKS as f64 * 4096.0 / 100.0;
        let sized = |percent: f64| (percent * of_block) as u64;
        let absolute = Distribution::ZonedAbs(vec![
            (60.0, sized(10.0)),
            (30.0, sized(20.0)),
            (8.0, sized(30.0)),
            (2.0, sized(40.0)),
        ]);
        for distribution in [zoned, absolute] {
            let places = places(&distribution, 3);
            let bounds = [0.0, 0.1, 0.3, 0.6, 1.0].map(|part| part * BLOCKS as f64);
            for (bounds, share) in bounds.windows(2).zip([60.0, 30.0, 8.0, 2.0]) {
                let within = |place: &&u64| (bounds[0]..bounds[1]).contains(&(**place as f64));
                let found = places.iter().filter(within).count() as f64 * 100.0 / BLOCKS as f64;
                assert!((found - share).abs() < 0.5, "{found} of {share}");
            }
        }
    }

    #[test]
    fn every_place_drawn_is_there() {
        let distributions = [
            Distribution::Uniform,
            Distribution::Zipf { theta: 0.5, center: Some(1.0) },
            Distribution::Zipf { theta: 3.0, center: None },
            Distribution::Pareto { power: 0.9, center: None },
            Distribution::Normal { deviation: 100.0, center: Some(1.0) },
            Distribution::Zoned(vec![(100.0, 100.0)]),
        ];
        for (distribution, count) in
            distributions.iter().flat_map(|d| [1, 2, 3, 1000].map(|count| (d, count)))
        {
            let draw = Draw::new(distribution, count, 4096, 1).expect("a distribution");
            for random in (0..1000).map(mix).chain([0, u64::MAX]) {
                assert!(draw.place(random) < count, "{distribution:?} of {count}");
            }
        }
    }

    #[test]
    fn values_that_cannot_be_are_refused_with_some_that_can() {
        let refused =
            |distribution| Draw::new(&distribution, BLOCKS, 4096, 1).expect_err("refused");
        assert!(refused(Distribution::Zipf { theta: 1.0, center: None }).contains("such as 1.2"));
        assert!(
            refused(Distribution::Pareto { power: 1.0, center: None }).contains("between 0 and 1")
        );
        assert!(
            refused(Distribution::Normal { deviation: 101.0, center: None }).contains("up to 100")
        );
        assert!(
            refused(Distribution::Zipf { theta: 2.0, center: Some(2.0) }).contains("from 0 to 1")
        );
        assert!(refused(Distribution::Zoned(vec![(60.0, 100.0)])).contains("shares"));
        assert!(refused(Distribution::Zoned(vec![(100.0, 60.0)])).contains("sizes"));
        assert!(
            refused(Distribution::ZonedAbs(vec![(50.0, 1 << 31), (50.0, 4096)])).contains("larger")
        );
    }
}
