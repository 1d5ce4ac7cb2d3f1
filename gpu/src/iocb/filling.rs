//! Fills control blocks with the contexts of transfers.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_driver::transfer::{Slice, Transfer};

use super::{Blocks, HEADER, Iocbs, Use};
use crate::cuda::Event;
use crate::error::Error;
use crate::layout::Context;
use crate::transfer::{Cut, Filled, Run};

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
        Filling { lanes: (0..).zip(cuts).map(lane).collect() }
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
        let Transfer { device, direction, mut lba, slices } = transfer;
        let mut slices = slices.into_iter().peekable();
        let lane = self.lanes.get_mut(usize::from(device)).filter(|_| slices.peek().is_some());
        let Some(Lane { cut, sink }) = lane else { return Err(self.objection(position, device)) };
        for slice in slices {
            let run = Run { direction, lba, slice: *slice.borrow() };
            lba = cut.cut(position, run, |context| sink.put(position, context))?;
        }
        Ok(())
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
        self.next = 0;
        self.filled.push(held);
        Ok(())
    }

    /// Records how full the last block is, unless already done.
    fn close(&mut self) {
        if let Some(held) = self.filled.last_mut().filter(|_| !self.positions.is_empty()) {
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
