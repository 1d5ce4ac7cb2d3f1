//! Fills control blocks with the contexts of transfers.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_driver::transfer::{Slice, Transfer};

use super::{Blocks, HEADER, Iocbs, Use};
use crate::commands::cut::{Cut, Filled, LbaSlice};
use crate::commands::layout::{CONTEXTS_MAX, Context};
use crate::cuda::Event;
use crate::error::Error;

/// Fills blocks with the contexts of transfers, for any mix of devices.
pub(crate) struct Filling<'a> {
    lanes: Vec<Lane<'a>>,
}

struct Lane<'a> {
    cut: Cut<'a>,
    sink: Sink<'a>,
}

/// Destination of contexts.
struct Sink<'a> {
    blocks: &'a Arc<Blocks>,
    device: u16,
    /// The contexts of the last of `filled`, as pairs of words; empty before the first context.
    pairs: &'a [[AtomicU64; 2]],
    /// Positions of their transfers: those of the last of `filled`, while it is being filled.
    positions: Vec<u32>,
    next: usize,
    filled: Vec<Use>,
}

impl<'a> Filling<'a> {
    /// Creates a filling for devices with the given splitters.
    pub(crate) fn new(blocks: &'a Arc<Blocks>, cuts: impl Iterator<Item = Cut<'a>>) -> Filling<'a> {
        let lane = |(device, cut)| {
            let (positions, filled) = (Vec::new(), Vec::new());
            let sink = Sink { blocks, device, pairs: &[], positions, next: 0, filled };
            Lane { cut, sink }
        };
        let lanes: Vec<Lane> = (0..).zip(cuts).map(lane).collect();
        assert!(!lanes.is_empty(), "rings are over a device");
        Filling { lanes }
    }

    /// Adds the transfer at `position` of the given ones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid transfer; [`Error::Refused`] if there is no free block.
    #[inline(always)]
    pub(crate) fn add<S>(&mut self, position: usize, transfer: Transfer<S>) -> Filled
    where
        S: IntoIterator<Item: Borrow<Slice>>,
    {
        debug_assert!(u32::try_from(position).is_ok(), "positions have 32 bits");
        let Transfer { device, direction, lba, slices } = transfer;
        let (lane, mut slices) = (self.lanes.get_mut(usize::from(device)), slices.into_iter());
        let (Some(Lane { cut, sink }), Some(first)) = (lane, slices.next()) else {
            return Err(self.objection(position, device));
        };
        let mut run = LbaSlice { direction, lba, slice: *first.borrow() };
        loop {
            cut.cut(position, run, |context| sink.put(position, context))?;
            // Of an array of one, the compiler knows that there is no other.
            let Some(next) = slices.next() else { return Ok(()) };
            run = LbaSlice { direction, lba: cut.end(run), slice: *next.borrow() };
        }
    }

    #[cold]
    #[inline(never)]
    fn objection(&self, position: usize, device: u16) -> Box<Error> {
        let why = match self.lanes.get(usize::from(device)) {
            Some(_) => "it has no slices".to_owned(),
            None => format!("the rings were made over {} devices", self.lanes.len()),
        };
        Box::new(Error::invalid(format!("transfer {position} (device {device})"), why))
    }

    /// Returns the filled blocks, to be issued behind `after`.
    pub(crate) fn finish(mut self, after: Option<Arc<Event>>) -> Iocbs {
        let blocks = Arc::clone(self.lanes[0].sink.blocks);
        let mut uses = Vec::new();
        for lane in &mut self.lanes {
            lane.sink.close();
            uses.append(&mut lane.sink.filled);
        }
        assert!(uses.iter().all(|held| held.count > 0), "a block is taken for its first context");
        if !uses.is_empty() {
            blocks.write_lists(&uses);
        }
        let (is_issued, is_flushed) = (AtomicBool::new(false), AtomicBool::new(false));
        Iocbs { blocks, uses, after, is_issued, is_flushed }
    }
}

impl<'a> Sink<'a> {
    #[inline(always)]
    fn put(&mut self, position: usize, context: Context) -> Filled {
        if self.next == self.pairs.len() {
            self.open()?;
        }
        debug_assert!(self.next < self.pairs.len(), "a block was opened");
        debug_assert_eq!(self.positions.len(), self.pairs.len(), "each context has a position");
        let [address, place] = &self.pairs[self.next];
        address.store(context.address, Ordering::Relaxed);
        place.store(context.place, Ordering::Relaxed);
        self.positions[self.next] = position as u32;
        self.next += 1;
        Ok(())
    }

    /// Continues with another block.
    #[cold]
    fn open(&mut self) -> Filled {
        self.close();
        let mut held = self.blocks.take(self.device)?;
        self.pairs = self.blocks.words(held.index, 0, HEADER).as_chunks::<2>().0;
        self.positions = std::mem::take(&mut held.positions);
        assert_eq!(self.pairs.len(), CONTEXTS_MAX, "contexts fill a block");
        assert_eq!(self.positions.len(), CONTEXTS_MAX, "each has a position");
        self.next = 0;
        self.filled.push(held);
        Ok(())
    }

    /// Records how full the last block is, unless already done.
    fn close(&mut self) {
        if let Some(held) = self.filled.last_mut().filter(|_| !self.positions.is_empty()) {
            assert!(self.next <= CONTEXTS_MAX, "a block is full at most");
            held.count = self.next as u32;
            held.positions = std::mem::take(&mut self.positions);
        }
    }
}

impl Drop for Sink<'_> {
    fn drop(&mut self) {
        self.close();
        for held in &mut self.filled {
            self.blocks.give_back(held);
        }
    }
}
