//! The handle of a run.

mod moving;
mod opening;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::tensors::copy::gpu::Gpu;
use crate::tensors::copy::threads::Threads;
use crate::tensors::copy::{Done, Route, Work};
use crate::tensors::group1::CachedFile;
use crate::tensors::options::{Configuration, RunOptions};
use crate::tensors::overlap::{Chooser, Overlap};
use crate::tensors::place::{Place, PlaceMap};
use crate::tensors::plan::{FirstLayers, Plan, Ranker};
use crate::tensors::shape::{Shape, TensorId};
use crate::tensors::stats::{Figures, GroupStats, RunStats};
use moving::Budgeter;

/// How a layer's tensors are reached now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// In the file, mapped: all layers of `mmap`, and in prefill those of group 1 whose pages stay dirty.
    Mapped,
    /// In the file, through the page cache.
    Cached,
    /// In the file, through the page cache and out of it.
    Dropped,
    /// In the file, past the page cache.
    Direct,
    /// In the extent.
    Extent,
}

impl Home {
    /// Returns the index of its group: 0 if memory keeps it.
    fn group(self) -> usize {
        usize::from(!matches!(self, Home::Mapped | Home::Cached))
    }
}

/// What a job was for.
#[derive(Clone, Copy, Debug)]
struct Purpose {
    group: usize,
    kind: Kind,
    /// Whether its bytes had been in the page cache before.
    was_cached: bool,
    /// Whether a caller waits for it.
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Neither; not counted.
    Other,
}

/// How a job ended for which a caller waits.
#[derive(Debug)]
struct Ended {
    at: Instant,
    result: Result<Option<Vec<u8>>>,
}

/// A read of a layer that has begun. Pass it to [`Tensors::finish_read`].
#[derive(Debug)]
#[must_use = "the layer is in the GPU's memory only once the read is finished"]
pub struct Reading {
    layer: u32,
    tickets: [u64; 2],
    bytes: u64,
    begun: Instant,
    group: usize,
}

impl Reading {
    /// Returns the layer.
    pub fn layer(&self) -> u32 {
        self.layer
    }
}

/// What a group has moved in the present iteration.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    bytes: u64,
    time: Duration,
}

impl Progress {
    fn rate(self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 }
    }
}

/// The KV tensors of one run. One thread drives it; copy threads work for it.
///
/// Operations on one tensor happen in the order of the calls. Writes are handed over and may end later: a failure
/// shows in a later call, in [`Tensors::settle`] at the latest. After a failure of a drive the run is to be begun anew.
#[derive(Debug)]
pub struct Tensors<G: Gpu> {
    options: RunOptions,
    gpu: Arc<G>,
    plan: Plan,
    homes: Vec<Home>,
    /// Whether a layer's tensors have been in the page cache as a whole.
    was_cached: Vec<bool>,
    /// Whether a layer has blocks in the file.
    is_allocated: Vec<bool>,
    file: Option<CachedFile>,
    file_places: Option<PlaceMap>,
    extent_places: Option<PlaceMap>,
    threads: Threads,
    budgeter: Option<Budgeter>,
    choosers: [Chooser; 2],
    progress: [Progress; 2],
    /// The rates of the last iteration.
    rates: [f64; 2],
    /// When the last read of each group ended.
    last_read_end: [Instant; 2],
    /// What open jobs are for.
    purposes: HashMap<u64, Purpose>,
    /// Ended jobs for which a caller waits.
    ended: HashMap<u64, Ended>,
    failed: Option<Error>,
    stats: RunStats,
    is_torn_down: bool,
}

impl<G: Gpu> Tensors<G> {
    /// Opens a run: evaluates the budget, plans, binds, and starts the copy threads.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that no machine could serve and for memory below the pinned reserve;
    /// [`Error::Tensors`] and [`Error::Driver`] for files and devices.
    pub fn open(options: RunOptions, gpu: G) -> Result<Tensors<G>> {
        Tensors::open_ranked(options, gpu, &FirstLayers)
    }

    /// As [`Tensors::open`], with layers entering group 1 in the order of `ranker`.
    ///
    /// # Errors
    /// As [`Tensors::open`], and if the ranker does not name each layer once.
    pub fn open_ranked(options: RunOptions, gpu: G, ranker: &dyn Ranker) -> Result<Tensors<G>> {
        opening::open(options, gpu, ranker)
    }

    /// Returns the shape of its tensors.
    pub fn shape(&self) -> &Shape {
        &self.options.shape
    }

    /// Returns which layers are in which group.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    /// Returns the LBAs of a tensor in the extent of group 2, if it was bound there.
    pub fn place(&self, tensor: TensorId) -> Option<Place> {
        self.extent_places.as_ref()?.place(tensor)
    }

    /// Returns what the run did so far. Writes that have not ended are missing.
    pub fn stats(&self) -> &RunStats {
        &self.stats
    }

    /// Returns the choosers of the overlap, of group 1 and of group 2.
    pub fn choosers(&self) -> &[Chooser; 2] {
        &self.choosers
    }

    /// Returns the rates of both groups in the last iteration, in bytes per second of reading; 0 if nothing was read.
    pub fn rates(&self) -> [f64; 2] {
        self.rates
    }

    fn is_prefill(&self) -> bool {
        self.stats.iterations == 0
    }

    /// Writes tokens of both tensors of a layer from the GPU. Returns once the copy threads have the work: the GPU's
    /// memory must keep these tokens until the layer is read or [`Tensors::settle`] returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] for tokens that the shape does not have, and failures of earlier writes.
    pub fn write_layer(&mut self, layer: u32, tokens: Range<u32>) -> Result<()> {
        self.check_layer(layer)?;
        TensorId::pair(layer)
            .into_iter()
            .try_for_each(|tensor| self.send_write(tensor, &tokens, None))
    }

    /// Writes tokens of one tensor from memory.
    ///
    /// # Errors
    /// As [`Tensors::write_layer`], and if `bytes` are not those of so many tokens.
    pub fn write(
        &mut self,
        tensor: TensorId,
        tokens: Range<u32>,
        bytes: impl Into<Bytes>,
    ) -> Result<()> {
        self.check_layer(tensor.layer)?;
        let bytes = bytes.into();
        let expected = self.options.shape.bytes(tokens.end.saturating_sub(tokens.start));
        if bytes.len() as u64 != expected {
            let fix = format!("give {expected} for {} tokens", tokens.len());
            return Err(Error::invalid("the bytes of a write", bytes.len(), fix));
        }
        self.send_write(tensor, &tokens, Some(bytes))
    }

    fn send_write(
        &mut self,
        tensor: TensorId,
        tokens: &Range<u32>,
        from_caller: Option<Bytes>,
    ) -> Result<()> {
        self.check_tokens(tokens)?;
        self.take_failure()?;
        let shape = self.options.shape;
        let (at, bytes) = (shape.bytes(tokens.start), shape.bytes(tokens.end - tokens.start));
        let layer = tensor.layer as usize;
        let mut home = self.homes[layer];
        let group = home.group();
        let is_dual = self.options.configuration == Configuration::Dual;
        let passes = home == Home::Cached && is_dual && self.is_prefill();
        if passes {
            home = Home::Direct;
        } else if home.group() == 0 {
            self.was_cached[layer] |= self.is_prefill();
        }
        let fill = passes.then(|| self.route(tensor, Home::Cached));
        let route = self.route(tensor, home);
        let work = Work::Write { route, at, bytes, from_caller, fill };
        let was_cached = false;
        let purpose = Purpose { group, kind: Kind::Write, was_cached, is_awaited: false };
        self.send(tensor, work, purpose).map(drop)
    }

    /// Begins to read the first `tokens` of both tensors of a layer into the GPU's memory. Begin to read the next layer
    /// before computing with this one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a layer or tokens that the shape does not have, and failures of earlier writes.
    pub fn begin_read(&mut self, layer: u32, tokens: u32) -> Result<Reading> {
        self.check_layer(layer)?;
        self.check_tokens(&(0..tokens))?;
        self.take_failure()?;
        self.follow_budget();
        let bytes = self.options.shape.bytes(tokens);
        let (home, begun) = (self.homes[layer as usize], Instant::now());
        let overlap = self.overlap(home.group());
        let tensors = TensorId::pair(layer);
        let copies_to = self.entering(layer, bytes);
        let was_cached = self.was_cached[layer as usize] && home.group() == 0;
        let group = home.group();
        let mut tickets = [0; 2];
        for (tensor, ticket) in tensors.into_iter().zip(&mut tickets) {
            let route = self.route(tensor, home);
            let copy_to = copies_to.then(|| self.file_offset(tensor));
            let work = Work::Read { route, bytes, overlap, copy_to, to_caller: false };
            let purpose = Purpose { group, kind: Kind::Read, was_cached, is_awaited: true };
            *ticket = self.send(tensor, work, purpose)?;
        }
        self.was_cached[layer as usize] |= group == 0;
        Ok(Reading { layer, tickets, bytes: 2 * bytes, begun, group })
    }

    /// Waits until a layer is in the GPU's memory.
    ///
    /// # Errors
    /// The failure of either tensor.
    pub fn finish_read(&mut self, reading: Reading) -> Result<()> {
        let [keys, values] = reading.tickets.map(|ticket| self.wait_for(ticket));
        let (keys, values) = (keys?, values?);
        // The GPU may have computed for a while since the end.
        let ended = keys.at.max(values.at);
        let last_end = &mut self.last_read_end[reading.group];
        let progress = &mut self.progress[reading.group];
        progress.bytes += reading.bytes;
        progress.time += ended.saturating_duration_since(reading.begun.max(*last_end));
        *last_end = ended.max(*last_end);
        keys.result.and(values.result).map(drop)
    }

    /// Reads the first `tokens` of both tensors of a layer into the GPU's memory.
    ///
    /// # Errors
    /// As [`Tensors::begin_read`] and [`Tensors::finish_read`].
    pub fn read_layer(&mut self, layer: u32, tokens: u32) -> Result<()> {
        let reading = self.begin_read(layer, tokens)?;
        self.finish_read(reading)
    }

    /// Reads the first `tokens` of one tensor into memory. Not counted as a read of the run.
    ///
    /// # Errors
    /// As [`Tensors::read_layer`].
    pub fn read(&mut self, tensor: TensorId, tokens: u32) -> Result<Vec<u8>> {
        self.check_layer(tensor.layer)?;
        self.check_tokens(&(0..tokens))?;
        self.take_failure()?;
        let route = self.route(tensor, self.homes[tensor.layer as usize]);
        let bytes = self.options.shape.bytes(tokens);
        let overlap = Overlap::Intra;
        let work = Work::Read { route, bytes, overlap, copy_to: None, to_caller: true };
        let purpose = Purpose { group: 0, kind: Kind::Other, was_cached: false, is_awaited: true };
        let ticket = self.send(tensor, work, purpose)?;
        Ok(self.wait_for(ticket)?.result?.expect("a read for the caller has bytes"))
    }

    /// Waits for all writes.
    ///
    /// # Errors
    /// The first failure of any. Writes of single tokens past the page cache may fail later, in the next operation on
    /// their tensor.
    pub fn settle(&mut self) -> Result<()> {
        while self.threads.open_count() > 0 {
            self.absorb_next()?;
        }
        self.take_failure()
    }

    /// Ends a pass over all layers, the first of which is prefill: chooses the overlap for the next one from what was
    /// measured, and whether group 1 is worth having.
    ///
    /// # Errors
    /// Failures of earlier writes.
    pub fn next_iteration(&mut self) -> Result<()> {
        if self.is_prefill() {
            self.settle()?;
            self.end_prefill()?;
        } else {
            self.take_failure()?;
            self.rates = self.progress.map(Progress::rate);
            for (chooser, rate) in self.choosers.iter_mut().zip(self.rates) {
                chooser.finish(rate);
            }
            self.weigh_groups();
        }
        self.progress = Default::default();
        self.stats.iterations += 1;
        Ok(())
    }

    /// Has layers that prefill wrote through the mapping read through the page cache, and removes the mapping: the kernel
    /// evicts mapped pages late, and on advice not at all.
    fn end_prefill(&mut self) -> Result<()> {
        if self.options.configuration != Configuration::Dual || !self.homes.contains(&Home::Mapped)
        {
            return Ok(());
        }
        let purpose = Purpose { group: 0, kind: Kind::Other, was_cached: false, is_awaited: false };
        for thread in 0..self.threads.count() {
            let ticket = self.threads.send_to(thread, TensorId::pair(0)[0], 0, Work::Unmap)?;
            self.purposes.insert(ticket, purpose);
        }
        for layer in 0..self.plan.layers() {
            if self.homes[layer as usize] == Home::Mapped {
                self.homes[layer as usize] = Home::Cached;
                if !self.plan.is_cached(layer) {
                    self.demote(layer);
                }
            }
        }
        Ok(())
    }

    /// Waits for all work, deallocates the extent of group 2 and ends the copy threads. Dropping the handle does the
    /// same, and logs failures.
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
        let deallocated = match (&self.extent_places, &settled) {
            (Some(map), Ok(())) if map.extent().lbas > 0 => {
                let Place { lba_start: slba, lbas } = map.extent();
                let purpose =
                    Purpose { group: 1, kind: Kind::Other, was_cached: false, is_awaited: true };
                let sent =
                    self.send(TensorId::pair(0)[0], Work::Deallocate { slba, lbas }, purpose);
                sent.and_then(|ticket| self.wait_for(ticket)?.result).map(drop)
            }
            _ => Ok(()),
        };
        self.threads.stop();
        settled.and(deallocated)
    }

    fn overlap(&self, group: usize) -> Overlap {
        self.options.overlap.unwrap_or_else(|| self.choosers[group].overlap())
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

    fn number(&self, tensor: TensorId) -> u32 {
        tensor.number(self.options.shape.model.layers)
    }

    /// Returns where a tensor begins in the file, in bytes.
    fn file_offset(&self, tensor: TensorId) -> u64 {
        let places = self.file_places.as_ref().expect("homes in the file come with the file");
        places.byte(tensor).expect("all tensors have a place in the file")
    }

    fn route(&self, tensor: TensorId, home: Home) -> Route {
        let offset = || self.file_offset(tensor);
        match home {
            Home::Mapped => Route::Mapped { offset: offset() },
            Home::Cached => {
                let is_last = self.plan.group1().last() == Some(&tensor.layer);
                Route::Cached { offset: offset(), is_last }
            }
            Home::Dropped => Route::Dropped { offset: offset() },
            Home::Direct => Route::Direct { offset: offset() },
            Home::Extent => {
                let place = self.place(tensor).expect("homes in the extent are bound");
                Route::Extent { slba: place.lba_start }
            }
        }
    }

    /// Gives a job to the tensor's thread, once that takes it.
    fn send(&mut self, tensor: TensorId, work: Work, purpose: Purpose) -> Result<u64> {
        while !self.threads.takes(tensor) {
            self.absorb_next()?;
        }
        let ticket = self.threads.send(tensor, self.number(tensor), work)?;
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
        let Done { ticket, mut moved, ended_at: at, bytes, result } = self.threads.receive()?;
        let purpose = self.purposes.remove(&ticket).expect("each job has a purpose");
        moved.is_refault = purpose.was_cached;
        if result.is_ok() {
            let is_prefill = self.is_prefill();
            let RunStats { group1, group2, .. } = &mut self.stats;
            let group = if purpose.group == 0 { group1 } else { group2 };
            if let Some(figures) = figures(group, purpose.kind, is_prefill) {
                figures.add(&moved);
            }
        }
        if purpose.is_awaited {
            self.ended.insert(ticket, Ended { at, result: result.map(|()| bytes) });
        } else if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
        Ok(())
    }

    fn take_failure(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

fn figures(group: &mut GroupStats, kind: Kind, is_prefill: bool) -> Option<&mut Figures> {
    match kind {
        Kind::Read => Some(&mut group.decode_read),
        Kind::Write if is_prefill => Some(&mut group.prefill_write),
        Kind::Write => Some(&mut group.decode_write),
        Kind::Other => None,
    }
}

impl<G: Gpu> Drop for Tensors<G> {
    fn drop(&mut self) {
        if let Err(error) = self.tear_down() {
            tracing::error!("a run of KV tensors ended with a failure: {error}");
        }
    }
}
