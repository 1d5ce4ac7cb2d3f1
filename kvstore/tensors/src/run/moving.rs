//! Moves layers between the groups as the budget changes.
//!
//! A layer leaves the page cache at once, without a copy: it is then read past it, from the same files. A layer in the
//! files enters the page cache without a copy; one in the extent is written to the files as it passes through pinned
//! memory on its next read.

use std::time::Instant;

use crate::copy::Work;
use crate::copy::gpu::Gpu;
use crate::copy::route::Home;
use crate::governor::{DecodeReads, Governor, Verdict};
use crate::run::{Purpose, Tensors};
use crate::shape::TensorId;

impl<G: Gpu> Tensors<G> {
    /// Evaluates the budget now, moves layers accordingly, and returns the number of cached layers. The run does this
    /// itself every [`crate::RunOptions::rebudget_every`].
    pub fn rebudget(&mut self) -> u32 {
        self.rebudget_at(Instant::now())
    }

    fn rebudget_at(&mut self, now: Instant) -> u32 {
        let cached = self.plan.cached();
        let Some(governor) = &mut self.governor else { return cached };
        self.stats.budget_evaluations += 1;
        match self.probe.memory() {
            Ok(memory) => {
                let strain = self.probe.strain(&memory, now);
                let target = governor.evaluate(now, &self.options, cached, &memory, strain);
                self.resize(target);
            }
            Err(error) => tracing::warn!("{cached} layers stay cached: {error}"),
        }
        self.plan.cached()
    }

    /// Evaluates the budget when it is due.
    pub(super) fn follow_budget(&mut self, now: Instant) {
        let is_due = self.governor.as_ref().is_some_and(|governor| governor.is_due(now));
        if is_due && !self.is_prefill() {
            self.rebudget_at(now);
        }
    }

    /// Changes the number of cached layers to `target`.
    pub(super) fn resize(&mut self, target: u32) {
        let before = self.plan.cached();
        let moved = self.plan.resize(target);
        if target < before {
            self.governor.iter_mut().for_each(Governor::note_shrunk);
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
        assert!(self.plan.cached() <= self.plan.layers(), "some of the layers are cached");
    }

    /// Drops a layer from the page cache; its bytes stay in the files.
    pub(super) fn demote(&mut self, layer: u32) {
        if self.homes[layer as usize] != Home::Cached {
            return;
        }
        self.homes[layer as usize] = Home::Direct;
        self.was_cached[layer as usize] = false;
        self.stats.demoted_layers += 1;
        for tensor in TensorId::pair(layer) {
            let (offset, bytes) = (self.file_offset(tensor, 0), self.options.shape.tensor_bytes());
            let work = Work::Forget { offset, bytes };
            if let Err(error) = self.send(tensor, work, Purpose::other(false)) {
                tracing::debug!("later calls fail: {error}");
                return;
            }
        }
    }

    /// Lets a layer enter the page cache, from the extent with its next read. Returns whether the files have room for
    /// it.
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

    /// Allocates a layer's blocks in the files. Returns whether it has them.
    fn allocate(&mut self, layer: u32) -> bool {
        if self.is_allocated[layer as usize] {
            return true;
        }
        let bytes = self.options.shape.tensor_bytes();
        for tensor in TensorId::pair(layer) {
            let file = &self.file(tensor).file;
            if let Err(error) = file.allocate(self.file_offset(tensor, 0), bytes) {
                tracing::warn!("no more layers are cached: {error}");
                return false;
            }
        }
        self.is_allocated[layer as usize] = true;
        true
    }

    /// Returns whether the coming read of a layer's first `tokens` must also write it to the files. If so, the layer
    /// counts as being in the files: later operations on its tensors follow this read, and fail if it fails.
    pub(super) fn entering(&mut self, layer: u32, tokens: u32) -> bool {
        let is_whole = self.written[layer as usize] == tokens;
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

    /// Ends an iteration of decode.
    pub(super) fn weigh_groups(&mut self, now: Instant) {
        let Some(governor) = &mut self.governor else { return };
        let reads = [&self.stats.cached, &self.stats.direct];
        let reads = reads.map(|group| DecodeReads::of(&group.decode_read));
        match governor.end_iteration(reads, self.options.knob) {
            Verdict::Stay => {}
            Verdict::Evaluate => drop(self.rebudget_at(now)),
            Verdict::GiveUp => {
                tracing::info!("the page cache is slower than the drive: no layer stays cached");
                self.resize(0);
            }
        }
    }
}
