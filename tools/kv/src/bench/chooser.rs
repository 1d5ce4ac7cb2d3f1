//! Chooses the objects of each operation and what to do with them.
//!
//! All choices follow from a seed. The distributions are those of YCSB's core workloads: Zipf with theta 0.99
//! scattered over the objects, and for `ycsb-d` Zipf from the newest backwards.

use super::workload::Ycsb;
use adit_load::{Distribution, Draw, Stream, below};

/// YCSB's theta.
const THETA: f64 = 0.99;
/// Maximum objects of a scan in `ycsb-e`; YCSB draws the length uniformly from 1.
pub(super) const SCAN_MAX: u64 = 100;

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChosenStep {
    /// Reads a number of objects, starting with this one.
    Get(u64, u64),
    /// Overwrites an object.
    Update(u64),
    /// Puts a new object.
    Insert(u64),
    /// Reads an object, then puts it.
    Modify(u64),
}

/// Percentages of operations; the rest are gets of one object.
#[derive(Clone, Copy, Debug, Default)]
struct Mix {
    update: u64,
    insert: u64,
    modify: u64,
    scan: u64,
}

/// Draws consecutive steps.
#[derive(Debug)]
pub(super) struct Chooser {
    mix: Mix,
    draw: Draw,
    is_latest: bool,
    /// Initial number of objects.
    loaded: u64,
    /// Current number of objects, including those being inserted.
    count: u64,
    /// Number of objects before the first whose insert is in progress; these may be read.
    settled: u64,
    stream: Stream,
    index: u64,
}

impl Chooser {
    /// Creates a chooser with `get_percent` reads, the rest puts, uniform over `count` objects.
    ///
    /// # Panics
    /// If there are no objects.
    pub(super) fn even(count: u64, get_percent: u64, seed: u64) -> Chooser {
        let mix = Mix { update: 100 - get_percent, ..Mix::default() };
        Chooser::new(mix, &Distribution::Uniform, count, seed)
    }

    /// Creates a chooser for a YCSB workload over `count` objects.
    ///
    /// # Panics
    /// If there are no objects.
    pub(super) fn ycsb(ycsb: Ycsb, count: u64, seed: u64) -> Chooser {
        let mix = match ycsb {
            Ycsb::A => Mix { update: 50, ..Mix::default() },
            Ycsb::B => Mix { update: 5, ..Mix::default() },
            Ycsb::C => Mix::default(),
            Ycsb::D => Mix { insert: 5, ..Mix::default() },
            Ycsb::E => Mix { insert: 5, scan: 95, ..Mix::default() },
            Ycsb::F => Mix { modify: 50, ..Mix::default() },
        };
        let is_latest = ycsb == Ycsb::D;
        let center = is_latest.then_some(0.0);
        let zipf = Distribution::Zipf { theta: THETA, center };
        Chooser { is_latest, ..Chooser::new(mix, &zipf, count, seed) }
    }

    fn new(mix: Mix, distribution: &Distribution, count: u64, seed: u64) -> Chooser {
        assert!(count > 0, "there are objects to choose from");
        let draw = Draw::new(distribution, count, 1, seed).expect("the distributions are valid");
        let stream = Stream::new(seed, 0, 0);
        Chooser {
            mix,
            draw,
            is_latest: false,
            loaded: count,
            count,
            settled: count,
            stream,
            index: 0,
        }
    }

    /// Makes inserts that have ended available for reads, in order.
    pub(super) fn settle(&mut self, has_ended: impl Fn(u64) -> bool) {
        while self.settled < self.count && has_ended(self.settled) {
            self.settled += 1;
        }
    }

    pub(super) fn next(&mut self) -> ChosenStep {
        let at = self.index * 3;
        self.index += 1;
        let random = [at, at + 1, at + 2].map(|index| self.stream.at(index));
        let percent = below(random[0], 100);
        let mut until = 0;
        let mut is = |share: u64| {
            until += share;
            percent < until
        };
        if is(self.mix.insert) {
            self.count += 1;
            return ChosenStep::Insert(self.count - 1);
        }
        let object = self.object(random[1]);
        if is(self.mix.update) {
            ChosenStep::Update(object)
        } else if is(self.mix.modify) {
            ChosenStep::Modify(object)
        } else if is(self.mix.scan) {
            let length = below(random[2], SCAN_MAX) + 1;
            ChosenStep::Get(object, length.min(self.settled - object))
        } else {
            ChosenStep::Get(object, 1)
        }
    }

    /// Maps a random number to an object. `ycsb-d` counts backwards from the newest.
    fn object(&self, random: u64) -> u64 {
        let place = self.draw.place(random);
        debug_assert!(place < self.loaded);
        if self.is_latest { self.settled - 1 - place } else { place }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u64 = 10_000;
    const STEPS: usize = 100_000;

    fn steps(mut chooser: Chooser) -> Vec<ChosenStep> {
        let mut next = || {
            chooser.settle(|_| true);
            chooser.next()
        };
        (0..STEPS).map(|_| next()).collect()
    }

    fn percent(steps: &[ChosenStep], is: impl Fn(&ChosenStep) -> bool) -> f64 {
        steps.iter().filter(|step| is(step)).count() as f64 * 100.0 / steps.len() as f64
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1.0, "{found} is not near {expected}");
    }

    #[test]
    fn each_workload_has_its_shares() {
        for (ycsb, get, update, insert, modify) in [
            (Ycsb::A, 50.0, 50.0, 0.0, 0.0),
            (Ycsb::B, 95.0, 5.0, 0.0, 0.0),
            (Ycsb::C, 100.0, 0.0, 0.0, 0.0),
            (Ycsb::D, 95.0, 0.0, 5.0, 0.0),
            (Ycsb::E, 95.0, 0.0, 5.0, 0.0),
            (Ycsb::F, 50.0, 0.0, 0.0, 50.0),
        ] {
            let steps = steps(Chooser::ycsb(ycsb, COUNT, 1));
            near(percent(&steps, |step| matches!(step, ChosenStep::Get(..))), get);
            near(percent(&steps, |step| matches!(step, ChosenStep::Update(_))), update);
            near(percent(&steps, |step| matches!(step, ChosenStep::Insert(_))), insert);
            near(percent(&steps, |step| matches!(step, ChosenStep::Modify(_))), modify);
        }
    }

    #[test]
    fn scans_are_runs_of_neighbours_that_are_there() {
        let mut count = COUNT;
        let mut lengths = 0;
        for step in steps(Chooser::ycsb(Ycsb::E, COUNT, 1)) {
            match step {
                ChosenStep::Insert(object) => {
                    assert_eq!(object, count, "inserts go on behind the last");
                    count += 1;
                }
                ChosenStep::Get(from, length) => {
                    assert!((1..=SCAN_MAX).contains(&length) && from + length <= count);
                    lengths += length;
                }
                other => panic!("{other:?} is no scan"),
            }
        }
        let mean = lengths as f64 / (STEPS as f64 * 0.95);
        assert!((45.0..=51.0).contains(&mean), "{mean}");
    }

    #[test]
    fn zipf_has_a_hot_object_and_the_newest_are_read_most() {
        let mut counts = vec![0u32; COUNT as usize];
        for step in steps(Chooser::ycsb(Ycsb::C, COUNT, 1)) {
            let ChosenStep::Get(object, 1) = step else { panic!("{step:?}") };
            counts[object as usize] += 1;
        }
        // 1 / zeta(10,000, 0.99): a tenth.
        let most = f64::from(*counts.iter().max().expect("some")) * 100.0 / STEPS as f64;
        near(most, 9.8);
        let (mut count, mut newest) = (COUNT, 0);
        for step in steps(Chooser::ycsb(Ycsb::D, COUNT, 1)) {
            match step {
                ChosenStep::Insert(_) => count += 1,
                ChosenStep::Get(object, _) => newest += u32::from(object == count - 1),
                other => panic!("{other:?}"),
            }
        }
        near(f64::from(newest) * 100.0 / (STEPS as f64 * 0.95), 9.8);
    }

    #[test]
    fn what_is_being_inserted_is_not_read() {
        for ycsb in [Ycsb::D, Ycsb::E] {
            let mut chooser = Chooser::ycsb(ycsb, 10, 1);
            for _ in 0..1000 {
                if let ChosenStep::Get(from, length) = chooser.next() {
                    assert!(from + length <= 10, "{ycsb:?}");
                }
            }
            chooser.settle(|object| object < 12);
            let far =
                (0..1000).any(|_| matches!(chooser.next(), ChosenStep::Get(f, l) if f + l == 12));
            assert!(far, "{ycsb:?}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_steps_and_another_one_others() {
        let first = |seed| steps(Chooser::even(COUNT, 70, seed))[..100].to_vec();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        near(
            percent(&steps(Chooser::even(COUNT, 70, 3)), |s| matches!(s, ChosenStep::Update(_))),
            30.0,
        );
        assert_eq!(Chooser::ycsb(Ycsb::A, 1, 1).object(u64::MAX), 0, "one object is enough");
    }
}
