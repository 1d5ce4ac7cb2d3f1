//! Decides how many layers the page cache holds, from the present memory and from measured benefits.
//!
//! This core has no clock and no I/O: calls take the time and the present memory.

use std::time::{Duration, Instant};

use adit_kvstore::memory::{Memory, Strain, budget};

use crate::options::{Knob, RunOptions};
use crate::plan::layers_that_fit;
use crate::stats::Figures;

/// Evaluations in a row that must have room before one more layer is cached.
const CALM_COUNT: u32 = 3;
/// Factor by which reads of direct layers must be faster before caching is abandoned; less is within the noise.
const CLEARLY: f64 = 1.1;
/// Iterations in a row in which direct layers must be clearly faster.
const SLOWER_COUNT: u32 = 3;
/// More misses than one in this many bytes of cached layers are too many.
const MISSES_SHARE: u64 = 50;
/// An iteration without refaults returns one in this many of the bytes that earlier refaults took from the budget.
const FORGET_SHARE: u64 = 16;

/// The copy threads' reads of a group in decode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecodeReads {
    bytes: u64,
    missed_bytes: u64,
    refault_bytes: u64,
    time: Duration,
}

impl DecodeReads {
    /// Returns the reads of a run so far.
    pub(crate) fn of(figures: &Figures) -> DecodeReads {
        let Figures { latency, bytes, missed_bytes, refault_bytes, .. } = figures;
        let (bytes, missed_bytes, refault_bytes) = (*bytes, *missed_bytes, *refault_bytes);
        DecodeReads { bytes, missed_bytes, refault_bytes, time: latency.sum() }
    }

    /// Returns the reads since `before`.
    fn since(self, before: DecodeReads) -> DecodeReads {
        DecodeReads {
            bytes: self.bytes - before.bytes,
            missed_bytes: self.missed_bytes - before.missed_bytes,
            refault_bytes: self.refault_bytes - before.refault_bytes,
            time: self.time - before.time,
        }
    }

    /// Returns the bytes per second of one thread; 0 without reads.
    fn rate(self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.bytes as f64 / self.time.as_secs_f64() }
    }
}

/// The conclusion from an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No change is needed.
    Stay,
    /// Memory is taken that the kernel's figures do not show: evaluate the budget now.
    Evaluate,
    /// Reads past the page cache are clearly faster: cache no layer for the rest of the run.
    GiveUp,
}

/// Decides how many layers are cached.
///
/// The number shrinks at once, as far as the budget demands. It grows by one layer at a time, after [`CALM_COUNT`]
/// evaluations with room for that layer and half of another, so that a budget that wavers around a multiple of a layer
/// moves nothing.
#[derive(Clone, Debug)]
pub(crate) struct Governor {
    pair_bytes: u64,
    layers: u32,
    calm: u32,
    every: Duration,
    due_at: Instant,
    /// Whether caching was abandoned.
    is_closed: bool,
    /// Iterations in a row in which reads of direct layers were clearly faster.
    slower: u32,
    /// Bytes of the budget that others use, as refaults showed.
    taken_bytes: u64,
    /// Whether layers left the page cache in this iteration. Until they have left, the kernel evicts pages of all
    /// layers.
    has_shrunk: bool,
    /// Both groups' reads up to the end of the last iteration.
    seen: [DecodeReads; 2],
}

impl Governor {
    /// Creates the governor of a run that begins `now`.
    pub(crate) fn new(options: &RunOptions, now: Instant) -> Governor {
        let (shape, every) = (&options.shape, options.rebudget_every);
        let (pair_bytes, layers) = (shape.pair_bytes(), shape.model.layers);
        assert!(pair_bytes > 0 && layers > 0, "a run has layers with bytes");
        Governor {
            pair_bytes,
            layers,
            calm: 0,
            every,
            due_at: now + every,
            is_closed: false,
            slower: 0,
            taken_bytes: 0,
            has_shrunk: false,
            seen: Default::default(),
        }
    }

    /// Returns whether it is time to evaluate the budget.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        !self.every.is_zero() && now >= self.due_at
    }

    /// Evaluates the budget and returns the number of layers to cache; `cached` are cached now.
    pub(crate) fn evaluate(
        &mut self,
        now: Instant,
        options: &RunOptions,
        cached: u32,
        memory: &Memory,
        strain: Strain,
    ) -> u32 {
        self.due_at = now + self.every;
        // Pinned memory is already allocated and counted as anonymous memory.
        let x = options.x(budget(memory, self.taken_bytes));
        self.fit(cached, if self.is_closed { 0 } else { x }, strain)
    }

    /// Returns the number of layers to cache in `x` bytes.
    fn fit(&mut self, cached: u32, x: u64, strain: Strain) -> u32 {
        assert!(cached <= self.layers, "{cached} of {} layers are cached", self.layers);
        let fit = layers_that_fit(x, self.pair_bytes.div_ceil(2), self.layers);
        let yields = strain == Strain::Yield;
        if fit < cached || yields {
            self.calm = 0;
            return fit.min(cached.saturating_sub(u32::from(yields)));
        }
        let needs = (u64::from(cached) + 1).saturating_mul(self.pair_bytes);
        let has_room = x.saturating_sub(self.pair_bytes / 2) >= needs;
        let grows = has_room && strain == Strain::None && cached < self.layers;
        self.calm = if grows { self.calm + 1 } else { 0 };
        if self.calm < CALM_COUNT {
            return cached;
        }
        self.calm = 0;
        cached + 1
    }

    /// Records that layers leave the page cache.
    pub(crate) fn note_shrunk(&mut self) {
        self.has_shrunk = true;
    }

    /// Ends an iteration of decode, from the run's reads so far of cached and direct layers: looks for refaults and
    /// compares the groups.
    pub(crate) fn end_iteration(&mut self, reads: [DecodeReads; 2], knob: Knob) -> Verdict {
        let before = std::mem::replace(&mut self.seen, reads);
        let [cached, direct] = [0, 1].map(|index: usize| reads[index].since(before[index]));
        let has_shrunk = std::mem::take(&mut self.has_shrunk);
        if self.every.is_zero() {
            return Verdict::Stay;
        }
        if cached.refault_bytes * MISSES_SHARE <= cached.bytes {
            self.taken_bytes -= self.taken_bytes.div_ceil(FORGET_SHARE);
        } else if !has_shrunk {
            let refaults = cached.refault_bytes.min(self.pair_bytes);
            self.taken_bytes = self.taken_bytes.saturating_add(refaults);
            return Verdict::Evaluate;
        }
        let is_settled = cached.missed_bytes * MISSES_SHARE <= cached.bytes;
        if knob == Knob::Measured && is_settled && self.is_worthless(cached.rate(), direct.rate()) {
            return Verdict::GiveUp;
        }
        Verdict::Stay
    }

    /// Returns whether to abandon caching: direct layers were clearly faster in several iterations in a row although
    /// the cached ones were in memory. Time is linear in the number of cached layers, so none is then best.
    fn is_worthless(&mut self, cached: f64, direct: f64) -> bool {
        let is_slower = cached > 0.0 && direct > cached * CLEARLY;
        self.slower = if is_slower { self.slower + 1 } else { 0 };
        let gives_up = !self.is_closed && self.slower == SLOWER_COUNT;
        self.is_closed |= gives_up;
        gives_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use adit_kvstore::memory::GroupMemory;

    use crate::shape::{Model, Shape};

    /// OPT-6.7B at a batch of 32: 32 layers of 272 MiB.
    fn options() -> RunOptions {
        let shape = Shape::new(Model::OPT_6_7B, 32, 512, 33).expect("a shape");
        assert_eq!((shape.pair_bytes(), shape.model.layers), (PAIR, 32));
        RunOptions { headroom_bytes: Some(0), ..RunOptions::new(shape) }
    }

    fn governor() -> Governor {
        Governor::new(&options(), Instant::now())
    }

    const PAIR: u64 = 272 << 20;

    #[test]
    fn it_shrinks_at_once_and_grows_one_layer_at_a_time() {
        let mut governor = governor();
        assert_eq!(governor.fit(20, 7 * PAIR + 1, Strain::None), 7);
        let mut cached = 7;
        let mut evaluations = 0;
        while cached < 12 {
            let next = governor.fit(cached, 40 * PAIR, Strain::None);
            assert!(next <= cached + 1);
            (cached, evaluations) = (next, evaluations + 1);
        }
        assert_eq!(evaluations, 5 * CALM_COUNT);
    }

    #[test]
    fn pressure_stops_growth_and_takes_layers() {
        let mut governor = governor();
        assert!((0..20).all(|_| governor.fit(4, 40 * PAIR, Strain::Hold) == 4));
        assert_eq!(governor.fit(4, 40 * PAIR, Strain::Yield), 3);
        assert_eq!(governor.fit(0, 40 * PAIR, Strain::Yield), 0);
    }

    #[test]
    fn a_budget_that_wavers_around_a_layer_moves_nothing() {
        let mut governor = governor();
        for round in 0u64..100 {
            let x = 8 * PAIR + (round % 2) * PAIR + PAIR / 3;
            assert_eq!(governor.fit(8, x, Strain::None), 8);
        }
    }

    fn memory(bytes: u64) -> Memory {
        let group = GroupMemory { limit_bytes: Some(bytes), ..GroupMemory::default() };
        Memory { available_bytes: 900 * PAIR, groups: vec![group], ..Memory::default() }
    }

    #[test]
    fn an_hour_of_evaluations_passes_in_simulated_time() {
        let options = RunOptions { rebudget_every: Duration::from_secs(60), ..options() };
        let begun = Instant::now();
        let mut governor = Governor::new(&options, begun);
        let (mut cached, mut sizes) = (10, Vec::new());
        // Memory shrinks after 20 minutes and recovers after 30.
        for second in 0..3600 {
            let now = begun + Duration::from_secs(second);
            let left = if (1200..1800).contains(&second) { 4 } else { 12 };
            if governor.is_due(now) {
                let memory = memory(left * PAIR + PAIR / 2);
                cached = governor.evaluate(now, &options, cached, &memory, Strain::None);
                sizes.push(cached);
            }
        }
        assert_eq!(sizes.len(), 59, "one evaluation a minute");
        let changes: Vec<u32> = sizes.chunk_by(|a, b| a == b).map(|run| run[0]).collect();
        assert_eq!(changes, [10, 11, 12, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(sizes[19], 4, "at once");
        assert_eq!(sizes[29 + 24 - 1], 12, "eight layers, one each three minutes");
        let never = RunOptions { rebudget_every: Duration::ZERO, ..options };
        let far = begun + Duration::from_secs(1 << 30);
        let mut governor = Governor::new(&never, begun);
        assert!(!governor.is_due(far), "0 means never");
        assert_eq!(iterations(&mut governor, &[reads(300, 100, 100, 0)]), [Verdict::Stay]);
    }

    fn reads(bytes: u64, missed_bytes: u64, refault_bytes: u64, seconds: u64) -> DecodeReads {
        DecodeReads { bytes, missed_bytes, refault_bytes, time: Duration::from_secs(seconds) }
    }

    /// Ends iterations with these reads of cached layers, and 1000 bytes per second of direct ones.
    fn iterations(governor: &mut Governor, each: &[DecodeReads]) -> Vec<Verdict> {
        let [mut cached, mut direct] = governor.seen;
        let mut end = |more: &DecodeReads| {
            cached.bytes += more.bytes;
            cached.missed_bytes += more.missed_bytes;
            cached.refault_bytes += more.refault_bytes;
            cached.time += more.time;
            direct.bytes += 1000;
            direct.time += Duration::from_secs(1);
            governor.end_iteration([cached, direct], Knob::Measured)
        };
        each.iter().map(&mut end).collect()
    }

    #[test]
    fn refaults_take_from_the_budget_and_are_forgotten() {
        let mut governor = governor();
        let evicted = reads(300, 100, 100, 0);
        assert_eq!(iterations(&mut governor, &[evicted]), [Verdict::Evaluate]);
        assert_eq!(governor.taken_bytes, 100);
        let calm = [reads(300, 0, 0, 0); 100];
        assert!(iterations(&mut governor, &calm).iter().all(|verdict| *verdict == Verdict::Stay));
        assert_eq!(governor.taken_bytes, 0);
        // An iteration in which layers leave does not count against the others.
        governor.note_shrunk();
        assert_eq!(iterations(&mut governor, &[evicted]), [Verdict::Stay]);
        assert_eq!(governor.taken_bytes, 0);
    }

    #[test]
    fn caching_is_given_up_only_if_it_is_slower_while_in_memory() {
        use Verdict::{GiveUp, Stay};
        let slower = |missed| iterations(&mut governor(), &[reads(1000, missed, 0, 2); 4]);
        assert_eq!(slower(30), [Stay; 4], "it was being filled");
        assert_eq!(slower(20), [Stay, Stay, GiveUp, Stay], "not by one iteration, and once");
        let mut one = governor();
        iterations(&mut one, &[reads(1000, 0, 0, 2); 3]);
        let all = memory(100 * PAIR);
        assert_eq!(one.evaluate(Instant::now(), &options(), 9, &all, Strain::None), 0, "for good");
    }

    proptest! {
        #[test]
        fn the_cached_layers_never_exceed_the_budget_and_settles_within_a_layer_of_it(
            steps in prop::collection::vec(0u64..40 * PAIR, 1..60)
        ) {
            let mut governor = governor();
            let mut cached = 0;
            for x in &steps {
                cached = governor.fit(cached, *x, Strain::None);
                prop_assert!(u64::from(cached) * PAIR <= *x);
            }
            let x = steps[0];
            for _ in 0..33 * CALM_COUNT {
                cached = governor.fit(cached, x, Strain::None);
            }
            let fit = layers_that_fit(x, PAIR / 2, 32);
            prop_assert!(cached <= fit && fit - cached <= 1, "{} of {}", cached, fit);
        }
    }
}
