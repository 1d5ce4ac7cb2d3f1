//! The handle of a run.

mod moving;
mod opening;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use adit_kvstore::memory::Probe;

use crate::copy::gpu::Gpu;
use crate::copy::route::{Home, Route};
use crate::copy::threads::{Threads, thread_of};
use crate::copy::{Counts, Done, Task, Work};
use crate::error::{Error, Result};
use crate::governor::Governor;
use crate::options::RunOptions;
use crate::overlap::Chooser;
use crate::place::{TensorLbas, TensorMap};
use crate::plan::{FirstLayers, Group, Plan, Ranker};
use crate::shape::{Shape, TensorId};
use crate::stats::{Figures, GroupStats, RunStats};
use opening::ThreadFile;

/// The purpose of a job.
#[derive(Clone, Copy, Debug)]
struct Purpose {
    group: Group,
    kind: JobKind,
    /// Whether the bytes had been in the page cache before.
    was_cached: bool,
    /// Whether a caller waits for the job.
    is_awaited: bool,
}

impl Purpose {
    /// Returns the purpose of a job that is not counted.
    fn other(is_awaited: bool) -> Purpose {
        Purpose { group: Group::Cached, kind: JobKind::Other, was_cached: false, is_awaited }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobKind {
    Read,
    Write,
    /// Another job, not counted.
    Other,
}

/// The end of a job for which a caller waits.
#[derive(Debug)]
struct Ended {
    at: Instant,
    result: Result<()>,
}

/// A begun read of a layer. Pass it to [`Tensors::finish_read`] of its run.
#[derive(Debug)]
#[must_use = "the layer is in the GPU's memory only once the read is finished"]
pub struct Reading {
    layer: u32,
    tickets: [u64; 2],
    bytes: u64,
    begun: Instant,
    group: Group,
    /// The counts of its run, which identify the run.
    run: Arc<Counts>,
}

impl Reading {
    /// Returns the layer.
    pub fn layer(&self) -> u32 {
        self.layer
    }
}

/// The KV tensors of one run. One thread drives it and reads the clock; copy threads work for it.
///
/// Operations on one tensor happen in the order of the calls. Writes end in the background: a failure shows in a later
/// call, in [`Tensors::settle`] at the latest. After a failure of a drive, a file or the GPU, all later calls return
/// that failure, because tensors may be missing: restart the run.
#[derive(Debug)]
pub struct Tensors<G: Gpu> {
    options: RunOptions,
    gpu: Arc<G>,
    plan: Plan,
    homes: Vec<Home>,
    /// Whether all of a layer's tensors have been in the page cache.
    was_cached: Vec<bool>,
    /// Number of cached layers, the first by rank, that prefill writes into the page cache.
    dirty_layers: u32,
    /// Whether a layer has blocks in the files.
    is_allocated: Vec<bool>,
    /// Number of written tokens of each layer, from the first on.
    written: Vec<u32>,
    /// Files by copy thread; none if all layers stay in the extent.
    files: Vec<ThreadFile>,
    extent_map: Option<TensorMap>,
    threads: Threads,
    probe: Probe,
    /// `None` if no layer may ever be cached.
    governor: Option<Governor>,
    /// Choosers by group.
    choosers: [Chooser; 2],
    /// The purposes of open jobs.
    purposes: HashMap<u64, Purpose>,
    /// Ended jobs for which a caller waits.
    ended: HashMap<u64, Ended>,
    /// The first failure, which all later calls return.
    failed: Option<Error>,
    /// Whether a command or a job may never end.
    is_stuck: bool,
    stats: RunStats,
    is_torn_down: bool,
}

impl<G: Gpu> Tensors<G> {
    /// Opens a run: evaluates the budget, plans, binds, and starts the copy threads.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that no machine could serve and for memory below the pinned reserve;
    /// [`Error::Failed`] and [`Error::Driver`] for files and devices.
    pub fn open(options: RunOptions, gpu: G) -> Result<Tensors<G>> {
        Tensors::open_ranked(options, gpu, &FirstLayers)
    }

    /// Like [`Tensors::open`], but caches layers in the order of `ranker`.
    ///
    /// # Errors
    /// As [`Tensors::open`], and if the ranker does not name each layer once.
    pub fn open_ranked(options: RunOptions, gpu: G, ranker: &dyn Ranker) -> Result<Tensors<G>> {
        opening::open(options, gpu, ranker)
    }

    /// Returns the shape of the tensors.
    pub fn shape(&self) -> &Shape {
        &self.options.shape
    }

    /// Returns the group of each layer.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    /// Returns the byte range of a tensor on the extent's device, if it lies there.
    pub fn extent_bytes(&self, tensor: TensorId) -> Option<Range<u64>> {
        let start = self.extent_map.as_ref()?.byte(tensor, 0)?;
        Some(start..start + self.options.shape.tensor_bytes())
    }

    /// Returns the run's statistics so far, without unfinished writes.
    pub fn stats(&self) -> &RunStats {
        &self.stats
    }

    /// Returns the chooser of a group's overlap, which knows the group's read rate.
    pub fn chooser(&self, group: Group) -> &Chooser {
        &self.choosers[group as usize]
    }

    fn is_prefill(&self) -> bool {
        self.stats.iterations == 0
    }

    /// Writes tokens of both tensors of a layer from the GPU, behind those written before or again. Returns once the
    /// copy threads have the work: the GPU's memory must keep these tokens until the layer is read or
    /// [`Tensors::settle`] returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] for tokens that the shape does not have or that leave a gap, and earlier failures.
    pub fn write_layer(&mut self, layer: u32, tokens: Range<u32>) -> Result<()> {
        self.check_layer(layer)?;
        self.check_tokens(&tokens)?;
        self.check_failure()?;
        self.check_gap(layer, &tokens)?;
        let shape = self.options.shape;
        let (at, bytes) = (shape.bytes(tokens.start), shape.bytes(tokens.end - tokens.start));
        let mut home = self.homes[layer as usize];
        let group = home.group();
        if self.is_prefill() && group == Group::Cached {
            let stays_dirty = self.plan.rank(layer) < self.dirty_layers;
            self.was_cached[layer as usize] |= stays_dirty;
            home = if stays_dirty { home } else { Home::Direct };
        }
        let passes = home.group() != group;
        let kind = JobKind::Write;
        for tensor in TensorId::pair(layer) {
            let fill = passes.then(|| self.route(tensor, Home::Cached, 0));
            let route = self.route(tensor, home, tokens.start);
            let work = Work::Write { route, at, bytes, fill };
            let purpose = Purpose { group, kind, was_cached: false, is_awaited: false };
            self.send(tensor, work, purpose)?;
        }
        let written = &mut self.written[layer as usize];
        *written = tokens.end.max(*written);
        Ok(())
    }

    /// Begins to read the first `tokens` of both tensors of a layer into the GPU's memory. Begin to read the next layer
    /// before computing with this one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a layer that the shape does not have or for unwritten tokens, and earlier failures.
    pub fn begin_read(&mut self, layer: u32, tokens: u32) -> Result<Reading> {
        self.check_layer(layer)?;
        self.check_failure()?;
        self.check_read(layer, tokens)?;
        let begun = Instant::now();
        self.follow_budget(begun);
        let bytes = self.options.shape.bytes(tokens);
        let home = self.homes[layer as usize];
        let group = home.group();
        let overlap = self.options.overlap.unwrap_or_else(|| self.chooser(group).overlap());
        let tensors = TensorId::pair(layer);
        let copies_to = self.entering(layer, tokens);
        let was_cached = self.was_cached[layer as usize] && group == Group::Cached;
        let mut tickets = [0; 2];
        for (tensor, ticket) in tensors.into_iter().zip(&mut tickets) {
            let route = self.route(tensor, home, 0);
            let copy_to = copies_to.then(|| self.file_offset(tensor, 0));
            let work = Work::Read { route, bytes, overlap, copy_to };
            let purpose = Purpose { group, kind: JobKind::Read, was_cached, is_awaited: true };
            *ticket = self.send(tensor, work, purpose)?;
        }
        self.was_cached[layer as usize] |= group == Group::Cached;
        let run = Arc::clone(self.threads.counts());
        Ok(Reading { layer, tickets, bytes: 2 * bytes, begun, group, run })
    }

    /// Waits until a layer is in the GPU's memory.
    ///
    /// # Errors
    /// The failure of either tensor, and earlier ones; [`Error::Invalid`] for a read of another run.
    pub fn finish_read(&mut self, reading: Reading) -> Result<()> {
        if !Arc::ptr_eq(&reading.run, self.threads.counts()) {
            let value = format!("another run's of layer {}", reading.layer);
            let fix = "pass it to the run that began it";
            return Err(Error::invalid("the read to finish", value, fix));
        }
        let [keys, values] = reading.tickets.map(|ticket| self.wait_for(ticket));
        let (keys, values) = (keys?, values?);
        // The read may have ended a while ago, while the GPU computed.
        let ended = keys.at.max(values.at);
        let layers = match reading.group {
            Group::Cached => self.plan.cached_layers(),
            Group::Direct => self.plan.direct_layers(),
        };
        let (bytes, all) = (reading.bytes, reading.bytes * layers.len() as u64);
        self.choosers[reading.group as usize].note_read(bytes, all, reading.begun, ended);
        keys.result.and(values.result)?;
        // An earlier write of these tensors may have failed.
        self.check_failure()
    }

    /// Reads the first `tokens` of both tensors of a layer into the GPU's memory.
    ///
    /// # Errors
    /// As [`Tensors::begin_read`] and [`Tensors::finish_read`].
    pub fn read_layer(&mut self, layer: u32, tokens: u32) -> Result<()> {
        let reading = self.begin_read(layer, tokens)?;
        self.finish_read(reading)
    }

    /// Waits until all reads and writes have ended, including those left behind. Waits even after a failure, so that
    /// the GPU's memory is free, unless a copy thread is late or has ended.
    ///
    /// # Errors
    /// The first failure of any.
    pub fn settle(&mut self) -> Result<()> {
        if !self.threads.is_broken() {
            for thread in 0..self.threads.count() {
                self.send_to(thread, Task::Settle, Purpose::other(false))?;
            }
            while self.threads.open_count() > 0 {
                self.absorb_next()?;
            }
        }
        self.check_failure()
    }

    /// Ends a pass over all layers; the first pass is prefill. From its measurements, chooses the next pass's overlap
    /// and whether caching is worthwhile.
    ///
    /// # Errors
    /// Earlier failures.
    pub fn next_iteration(&mut self) -> Result<()> {
        if self.is_prefill() {
            self.settle()?;
        } else {
            self.check_failure()?;
            self.choosers.iter_mut().for_each(Chooser::end_iteration);
            self.weigh_groups(Instant::now());
        }
        self.stats.iterations += 1;
        Ok(())
    }

    /// Waits for all work, deallocates the extent and ends the copy threads, even after a failure; LBAs that a command
    /// may still write are not deallocated. Dropping the handle does the same and logs failures.
    ///
    /// # Errors
    /// The first failure.
    pub fn close(mut self) -> Result<RunStats> {
        self.tear_down().map(|()| self.stats.clone())
    }

    fn tear_down(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_torn_down, true) {
            return Ok(());
        }
        let settled = self.settle();
        let deallocated = self.deallocate();
        self.threads.stop();
        settled.and(deallocated)
    }

    /// Deallocates the extent, once all writes have ended.
    fn deallocate(&mut self) -> Result<()> {
        let Some(map) = &self.extent_map else { return Ok(()) };
        let TensorLbas { lba_start: slba, lbas } = map.extent();
        if lbas == 0 || self.is_stuck {
            return Ok(());
        }
        let ticket = self.send_to(0, Task::Deallocate { slba, lbas }, Purpose::other(true))?;
        self.wait_for(ticket)?.result
    }

    fn check_layer(&self, layer: u32) -> Result<()> {
        let layers = self.options.shape.model.layers;
        if layer < layers {
            return Ok(());
        }
        Err(Error::invalid("the layer", layer, format!("use 0 to {}", layers - 1)))
    }

    fn check_tokens(&self, tokens: &Range<u32>) -> Result<()> {
        let most = self.options.shape.tokens_max();
        if tokens.start < tokens.end && tokens.end <= most {
            return Ok(());
        }
        Err(Error::invalid("the tokens", format!("{tokens:?}"), format!("use some of 0..{most}")))
    }

    /// Checks that a write leaves no gap behind a layer's tokens: a read of a gap would return older bytes of the
    /// drive.
    fn check_gap(&self, layer: u32, tokens: &Range<u32>) -> Result<()> {
        let written = self.written[layer as usize];
        if tokens.start <= written {
            return Ok(());
        }
        let fix = format!("layer {layer} has {written} tokens: write token {written} before");
        Err(Error::invalid("the tokens of a write", format!("{tokens:?}"), fix))
    }

    /// Checks that the first `tokens` of a layer were written.
    fn check_read(&self, layer: u32, tokens: u32) -> Result<()> {
        self.check_tokens(&(0..tokens))?;
        let written = self.written[layer as usize];
        if tokens <= written {
            return Ok(());
        }
        let fix =
            format!("layer {layer} has {written} tokens: read fewer, or write the others before");
        Err(Error::invalid("the tokens of a read", tokens, fix))
    }

    /// Returns the file of a tensor's thread.
    fn file(&self, tensor: TensorId) -> &ThreadFile {
        assert_eq!(self.files.len(), self.threads.count(), "homes in files come with the files");
        &self.files[thread_of(tensor, self.files.len())]
    }

    /// Returns the offset of byte `at` of a tensor in its file.
    fn file_offset(&self, tensor: TensorId, at: u64) -> u64 {
        self.file(tensor).map.byte(tensor, at).expect("the file has each tensor")
    }

    /// Returns the route of a tensor's tokens from `first_token` on.
    fn route(&self, tensor: TensorId, home: Home, first_token: u32) -> Route {
        let at = self.options.shape.bytes(first_token);
        let is_cached = |next: TensorId| self.plan.is_cached(next.layer);
        let runs_on = || self.file(tensor).map.next(tensor).is_some_and(is_cached);
        let offset = match (home, &self.extent_map) {
            (Home::Extent, Some(map)) => map.byte(tensor, at).expect("its home is the extent"),
            _ => self.file_offset(tensor, at),
        };
        Route { home, offset, runs_on: home == Home::Cached && runs_on() }
    }

    /// Sends an operation on a tensor to its thread.
    fn send(&mut self, tensor: TensorId, work: Work, purpose: Purpose) -> Result<u64> {
        let thread = thread_of(tensor, self.threads.count());
        self.send_to(thread, Task::Tensor(tensor, work), purpose)
    }

    /// Sends a job to a thread, once the thread has room for it.
    fn send_to(&mut self, thread: usize, task: Task, purpose: Purpose) -> Result<u64> {
        while !self.threads.takes(thread) {
            self.absorb_next()?;
        }
        let sent = self.threads.send_to(thread, task);
        let ticket = sent.inspect_err(|error| self.fail_stuck(error))?;
        self.purposes.insert(ticket, purpose);
        Ok(ticket)
    }

    fn wait_for(&mut self, ticket: u64) -> Result<Ended> {
        loop {
            if let Some(ended) = self.ended.remove(&ticket) {
                return Ok(ended);
            }
            self.absorb_next()?;
        }
    }

    fn absorb_next(&mut self) -> Result<()> {
        let received = self.threads.receive().inspect_err(|error| self.fail_stuck(error));
        let Done { ticket, mut moved, ended_at: at, result, is_stuck } = received?;
        self.is_stuck |= is_stuck;
        self.stats.filled_bytes = self.threads.filled_bytes();
        let purpose = self.purposes.remove(&ticket).expect("each job has a purpose");
        moved.is_refault = purpose.was_cached;
        if result.is_ok() {
            let is_prefill = self.is_prefill();
            let group = self.stats.group_mut(purpose.group);
            if let Some(figures) = figures(group, purpose.kind, is_prefill) {
                figures.add(&moved);
            }
        }
        if let Err(error) = &result {
            self.failed.get_or_insert_with(|| error.clone());
        }
        if purpose.is_awaited {
            self.ended.insert(ticket, Ended { at, result });
        }
        Ok(())
    }

    /// Records the failure of a copy thread, whose jobs may never end.
    fn fail_stuck(&mut self, error: &Error) {
        self.is_stuck = true;
        self.failed.get_or_insert_with(|| error.clone());
    }

    fn check_failure(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

fn figures(group: &mut GroupStats, kind: JobKind, is_prefill: bool) -> Option<&mut Figures> {
    match kind {
        JobKind::Read => Some(&mut group.decode_read),
        JobKind::Write if is_prefill => Some(&mut group.prefill_write),
        JobKind::Write => Some(&mut group.decode_write),
        JobKind::Other => None,
    }
}

impl<G: Gpu> Drop for Tensors<G> {
    fn drop(&mut self) {
        if let Err(error) = self.tear_down() {
            tracing::error!("a run of KV tensors ended with a failure: {error}");
        }
    }
}
