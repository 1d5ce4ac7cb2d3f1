//! Layers that change their group as the budget does.
//!
//! A layer leaves group 1 at once and without a copy: it is read past the page cache, from the same files, and the page
//! cache drops it. A layer enters group 1 without a copy if it is in the files; from the extent, it is written
//! to them as it passes through pinned memory on its next read.

use std::time::{Duration, Instant};

use crate::memory::{Probe, budget};
use crate::tensors::copy::Work;
use crate::tensors::copy::gpu::Gpu;
use crate::tensors::governor::Governor;
use crate::tensors::options::Knob;
use crate::tensors::run::{Home, Purpose, Tensors};
use crate::tensors::shape::TensorId;
use crate::tensors::stats::{Figures, RunStats};

/// By how much group 2 must be faster before group 1 is given up: less is within the noise.
const CLEARLY: f64 = 1.1;
/// In how many iterations in a row it must be.
const SLOWER_COUNT: u32 = 3;

/// What the copy threads read of a group, between pinned memory and storage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    bytes: u64,
    missed_bytes: u64,
    refault_bytes: u64,
    time: Duration,
}

impl Reads {
    fn of(figures: &Figures) -> Reads {
        let Figures { latency, bytes, missed_bytes, refault_bytes, .. } = figures;
        let (bytes, missed_bytes, refault_bytes) = (*bytes, *missed_bytes, *refault_bytes);
        Reads { bytes, missed_bytes, refault_bytes, time: latency.sum() }
    }

    /// Returns what came after `before`.
    fn since(self, before: Reads) -> Reads {
        Reads {
            bytes: self.bytes - before.bytes,
            missed_bytes: self.missed_bytes - before.missed_bytes,
            refault_bytes: self.refault_bytes - before.refault_bytes,
            time: self.time - before.time,
        }
    }

    /// Returns the bytes per second of one thread; 0 of nothing.
    fn rate(self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.bytes as f64 / self.time.as_secs_f64() }
    }
}

/// Misses of more than one in so many bytes of group 1 are too many.
const MISSES_SHARE: u64 = 50;
/// An iteration without refaults gives back one in so many of the bytes that refaults showed to be taken.
const FORGET_SHARE: u64 = 16;

/// Evaluates the budget while the run lasts.
#[derive(Debug)]
pub(super) struct Budgeter {
    pub(super) probe: Probe,
    pub(super) governor: Governor,
    pub(super) every: Duration,
    pub(super) due_at: Instant,
    /// Whether group 1 was found to be slower.
    pub(super) is_closed: bool,
    /// Iterations in a row in which group 2 was clearly faster.
    pub(super) slower: u32,
    /// Bytes of the budget that refaults showed to be taken by something else.
    pub(super) taken_bytes: u64,
    /// Whether layers left group 1 in this iteration. The kernel takes pages of all layers then, until they have left.
    pub(super) has_shrunk: bool,
    /// The reads of both groups up to the end of the last iteration.
    pub(super) seen: [Reads; 2],
}

impl<G: Gpu> Tensors<G> {
    /// Evaluates the budget now and moves layers accordingly; returns the number of layers in group 1. The run does so by
    /// itself every [`crate::tensors::RunOptions::rebudget_every`].
    pub fn rebudget(&mut self) -> u32 {
        let cached = self.plan.cached();
        let Some(budgeter) = &mut self.budgeter else { return cached };
        budgeter.due_at = Instant::now() + budgeter.every;
        self.stats.budget_evaluations += 1;
        let memory = match budgeter.probe.memory() {
            Ok(memory) => memory,
            Err(error) => {
                tracing::warn!("group 1 keeps its size: {error}");
                return cached;
            }
        };
        // Pinned memory is allocated, so it counts as anonymous already.
        let x = if budgeter.is_closed {
            0
        } else {
            self.options.x(budget(&memory, budgeter.taken_bytes))
        };
        let strain = budgeter.probe.strain(&memory);
        let target = budgeter.governor.evaluate(cached, x, strain);
        self.resize(target);
        self.plan.cached()
    }

    /// Evaluates the budget if it is time.
    pub(super) fn follow_budget(&mut self) {
        let is_due = self
            .budgeter
            .as_ref()
            .is_some_and(|budgeter| !budgeter.every.is_zero() && Instant::now() >= budgeter.due_at);
        if is_due && !self.is_prefill() {
            self.rebudget();
        }
    }

    /// Gives group 1 so many layers.
    pub(super) fn resize(&mut self, target: u32) {
        let before = self.plan.cached();
        let moved = self.plan.resize(target);
        if target < before {
            self.budgeter.iter_mut().for_each(|budgeter| budgeter.has_shrunk = true);
        }
        let grows = target > before;
        for (index, layer) in moved.into_iter().enumerate() {
            if !grows {
                self.demote(layer);
            } else if !self.promote(layer) {
                self.plan.resize(before + index as u32);
                return;
            }
        }
        assert!(self.plan.cached() <= self.plan.layers(), "group 1 is some of the layers");
    }

    /// Takes a layer out of the page cache; its bytes stay in the files.
    pub(super) fn demote(&mut self, layer: u32) {
        if self.homes[layer as usize] != Home::Cached {
            return;
        }
        self.homes[layer as usize] = Home::Direct;
        self.was_cached[layer as usize] = false;
        self.stats.demoted_layers += 1;
        for tensor in TensorId::pair(layer) {
            let (offset, bytes) = (self.file_offset(tensor), self.options.shape.tensor_bytes());
            let work = Work::Forget { offset, bytes };
            if let Err(error) = self.send(tensor, work, Purpose::other(false)) {
                tracing::debug!("later calls fail: {error}");
                return;
            }
        }
    }

    /// Lets a layer enter the page cache, from the extent with its next read; returns whether the files have room for it.
    fn promote(&mut self, layer: u32) -> bool {
        if !self.allocate(layer) {
            return false;
        }
        if self.homes[layer as usize] == Home::Direct {
            self.homes[layer as usize] = Home::Cached;
            self.stats.promoted_layers += 1;
        }
        true
    }

    /// Allocates a layer's blocks in the files; returns whether it has them.
    fn allocate(&mut self, layer: u32) -> bool {
        if self.is_allocated[layer as usize] {
            return true;
        }
        let bytes = self.options.shape.tensor_bytes();
        for tensor in TensorId::pair(layer) {
            let file = &self.file(tensor).cached;
            if let Err(error) = file.allocate(self.file_offset(tensor), bytes) {
                tracing::warn!("group 1 does not grow: {error}");
                return false;
            }
        }
        self.is_allocated[layer as usize] = true;
        true
    }

    /// Returns whether a layer whose first `tokens` are about to be read is to be written to the files as well. It counts as
    /// there from now on: later operations on its tensors come after this read, and if the read fails, they fail.
    pub(super) fn entering(&mut self, layer: u32, tokens: u32) -> bool {
        let is_whole =
            TensorId::pair(layer).iter().all(|tensor| self.written[self.number(*tensor)] == tokens);
        let home = self.homes[layer as usize];
        let enters = home == Home::Extent && self.plan.is_cached(layer) && is_whole;
        if enters {
            assert!(self.is_allocated[layer as usize], "a layer enters files with room for it");
            self.homes[layer as usize] = Home::Cached;
            self.was_cached[layer as usize] = false;
            self.stats.promoted_layers += 1;
            self.stats.moved_bytes += 2 * self.options.shape.bytes(tokens);
        }
        enters
    }

    /// Ends an iteration of decode: compares the groups, and looks for refaults.
    pub(super) fn weigh_groups(&mut self) {
        let Some(budgeter) = &mut self.budgeter else { return };
        let RunStats { group1, group2, .. } = &self.stats;
        let now = [group1, group2].map(|group| Reads::of(&group.decode_read));
        let before = std::mem::replace(&mut budgeter.seen, now);
        let [group1, group2] = [0, 1].map(|index: usize| now[index].since(before[index]));
        let shrank = std::mem::take(&mut budgeter.has_shrunk);
        if group1.refault_bytes * MISSES_SHARE <= group1.bytes {
            budgeter.taken_bytes -= budgeter.taken_bytes.div_ceil(FORGET_SHARE);
        } else if !shrank {
            self.make_room(group1.refault_bytes);
        }
        let is_settled = group1.missed_bytes * MISSES_SHARE <= group1.bytes;
        if self.options.knob == Knob::Measured && is_settled {
            self.compare_rates(group1.rate(), group2.rate());
        }
    }

    /// Gives group 1 a layer less, as much of it was evicted: something takes memory that no figure of the kernel's shows.
    fn make_room(&mut self, refault_bytes: u64) {
        let layer = self.options.shape.pair_bytes();
        if let Some(budgeter) = &mut self.budgeter {
            budgeter.taken_bytes = budgeter.taken_bytes.saturating_add(refault_bytes.min(layer));
        }
        self.rebudget();
    }

    /// Gives group 1 up for the rest of the run if group 2 was clearly faster in several iterations in a row in which group
    /// 1 was in memory. Time is linear in the layers of group 1, so none at all is the best then.
    fn compare_rates(&mut self, cached: f64, direct: f64) {
        let Some(budgeter) = &mut self.budgeter else { return };
        let is_slower = cached > 0.0 && direct > cached * CLEARLY;
        budgeter.slower = if is_slower { budgeter.slower + 1 } else { 0 };
        if !budgeter.is_closed && budgeter.slower == SLOWER_COUNT {
            tracing::info!(
                "group 2 is faster than the page cache ({direct:.0} B/s): all layers join it"
            );
            budgeter.is_closed = true;
            self.resize(0);
        }
    }
}
