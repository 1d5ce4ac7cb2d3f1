//! Requests in progress: their items, commands and memory.

use std::mem;

use adit_driver::Time;
use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::{Direction, Slice};
use smallvec::SmallVec;

use super::change::NewObject;
use super::extract::Extract;
use super::lanes::{Lanes, Trouble};
use super::memory::{Buffers, Memory, Sums};
use super::reads::reading::Reading;
use super::request::WriterId;
use crate::io::lane::{Load, Purpose};
use crate::model::plan::{Part, Plan, Run};

/// The purpose of an item.
#[derive(Debug)]
pub(super) enum Job {
    Put(Box<NewObject>),
    Get(Box<Reading>),
    Fill(PartWrite),
}

/// A write of part of an object that is not visible yet.
#[derive(Debug)]
pub(super) struct PartWrite {
    pub(super) writer: WriterId,
    pub(super) extract: Extract,
    pub(super) checksums: Sums,
}

/// Boxes whose memory is reused, so that an operation allocates none.
#[derive(Debug)]
pub(super) struct Boxes<T>(Vec<Box<T>>);

impl<T> Default for Boxes<T> {
    fn default() -> Boxes<T> {
        Boxes(Vec::new())
    }
}

impl<T> Boxes<T> {
    pub(super) fn fill(&mut self, value: T) -> Box<T> {
        let Some(mut idle) = self.0.pop() else { return Box::new(value) };
        *idle = value;
        idle
    }

    pub(super) fn keep(&mut self, idle: Box<T>) {
        self.0.push(idle);
    }
}

#[derive(Debug)]
pub(super) struct Item<R> {
    pub(super) reply: R,
    pub(super) job: Job,
    pub(super) memory: Memory,
    /// Its slices in flight.
    slices_left: u32,
    /// The first error.
    pub(super) failure: Option<Trouble>,
}

impl<R> Item<R> {
    pub(super) fn new(reply: R, job: Job, memory: Memory) -> Item<R> {
        Item { reply, job, memory, slices_left: 0, failure: None }
    }
}

/// The items of a batch; `None` once answered.
pub(super) type Items<R> = SmallVec<[Option<Item<R>>; 1]>;

/// Requests in progress whose commands were planned together.
#[derive(Debug)]
struct Batch<R> {
    direction: Direction,
    items: Items<R>,
    plan: Plan,
    items_left: usize,
}

impl<R> Default for Batch<R> {
    fn default() -> Batch<R> {
        Batch {
            direction: Direction::Read,
            items: SmallVec::new(),
            plan: Plan::default(),
            items_left: 0,
        }
    }
}

impl<R> Batch<R> {
    /// Counts the slices to come back. The plan and the items must be complete.
    fn begin(&mut self) {
        for slice in self.plan.slices() {
            let item = self.items[slice.region as usize].as_mut();
            item.expect("a batch begins whole").slices_left += 1;
        }
        self.items_left = self.items.len();
        let has_data =
            |item: &Option<Item<R>>| item.as_ref().is_some_and(|item| item.slices_left > 0);
        assert!(self.items.iter().all(has_data), "each item has data");
    }

    /// Takes the memory of a command out of its items.
    fn load(&mut self, run: &Run, scratch: &mut Vec<Buffer>) -> AnyBuffer {
        for at in run.slices() {
            let Slice { region, offset, bytes } = self.plan.slices()[at];
            let item = self.items[region as usize].as_mut().expect("it has slices left");
            item.memory.take(offset, bytes, scratch);
        }
        match scratch.len() {
            1 => AnyBuffer::One(scratch.pop().expect("one")),
            _ => AnyBuffer::Many(mem::take(scratch)),
        }
    }

    /// Puts back the memory of command `command` and records its error. Appends the items that are now whole to
    /// `complete`.
    fn unload(
        &mut self,
        command: u32,
        memory: AnyBuffer,
        trouble: Option<&Trouble>,
        complete: &mut Vec<usize>,
    ) {
        let run = self.plan.runs()[command as usize];
        let mut buffers = Buffers::of(memory);
        for at in run.slices() {
            let Slice { region: index, mut offset, bytes } = self.plan.slices()[at];
            let end = offset + bytes;
            let item = self.items[index as usize].as_mut().expect("it has slices left");
            while offset < end {
                let buffer = buffers.next().expect("a command gives back what it was given");
                let len = buffer.len() as u64;
                item.memory.put(offset, buffer);
                offset += len;
            }
            assert_eq!(offset, end, "buffers end where slices do");
            if item.failure.is_none() {
                item.failure = trouble.cloned();
            }
            item.slices_left -= 1;
            if item.slices_left == 0 {
                complete.push(index as usize);
            }
        }
    }

    /// Takes out a complete item to answer it.
    fn finish(&mut self, index: usize) -> Item<R> {
        self.items_left -= 1;
        self.items[index].take().expect("an item is complete once")
    }

    /// Returns whether all items were answered.
    fn is_over(&self) -> bool {
        self.items_left == 0
    }
}

/// All requests in progress. Slots and their memory are reused.
#[derive(Debug)]
pub(super) struct Batches<R> {
    batches: Vec<Batch<R>>,
    idle: Vec<u32>,
    /// Parts of the items of the next batch.
    parts: Vec<Part>,
    /// Empty; its memory is used again.
    buffers: Vec<Buffer>,
    /// Empty; its memory is used again.
    whole: Vec<usize>,
}

impl<R> Default for Batches<R> {
    fn default() -> Batches<R> {
        Batches {
            batches: Vec::new(),
            idle: Vec::new(),
            parts: Vec::new(),
            buffers: Vec::new(),
            whole: Vec::new(),
        }
    }
}

impl<R> Batches<R> {
    /// Returns the parts of the items of the next batch.
    pub(super) fn parts(&mut self) -> &mut Vec<Part> {
        &mut self.parts
    }

    /// Queues the commands of a batch of items whose parts are in [`Batches::parts`].
    pub(super) fn launch<Q: CommandQueue<Load>>(
        &mut self,
        lanes: &mut Lanes<Q>,
        (now, deadline): (Time, Time),
        direction: Direction,
        items: Items<R>,
    ) {
        let number = self.idle.pop().unwrap_or_else(|| {
            self.batches.push(Batch::default());
            (self.batches.len() - 1) as u32
        });
        let batch = &mut self.batches[number as usize];
        (batch.direction, batch.items) = (direction, items);
        batch.plan.remake(&mut self.parts, lanes.limits());
        self.parts.clear();
        batch.begin();
        for command in 0..batch.plan.runs().len() {
            let run = batch.plan.runs()[command];
            let memory = batch.load(&run, &mut self.buffers);
            let purpose = Purpose::Batch { batch: number, command: command as u32 };
            lanes.push_run((now, deadline), (direction, &run), purpose, memory);
        }
    }

    /// Handles the end of a command. Returns the direction of its batch, and the numbers of the items that are now
    /// whole, each of which [`Batches::finish`] takes out before [`Batches::end`].
    pub(super) fn unload(
        &mut self,
        number: u32,
        command: u32,
        memory: AnyBuffer,
        trouble: Option<&Trouble>,
    ) -> (Direction, Vec<usize>) {
        let batch = &mut self.batches[number as usize];
        let mut whole = mem::take(&mut self.whole);
        batch.unload(command, memory, trouble, &mut whole);
        (batch.direction, whole)
    }

    /// Takes out a whole item to answer it.
    pub(super) fn finish(&mut self, number: u32, index: usize) -> Item<R> {
        self.batches[number as usize].finish(index)
    }

    /// Closes a batch if all of its items were answered.
    pub(super) fn end(&mut self, number: u32, mut whole: Vec<usize>) {
        whole.clear();
        self.whole = whole;
        if self.batches[number as usize].is_over() {
            self.idle.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::extract::Pieces;
    use super::super::tests::device::memory;
    use super::*;
    use crate::model::place::{Place, UNIT_BYTES};
    use crate::model::plan::Limits;

    fn item(units: u64) -> Item<u64> {
        let bytes = units * UNIT_BYTES;
        let pieces =
            Pieces { count: 1, stride_bytes: bytes, piece_bytes: bytes, last_bytes: bytes };
        let extract = Extract { bytes, padded_bytes: bytes, first_checksum: 0, pieces };
        let job = Job::Fill(PartWrite { writer: WriterId(1), extract, checksums: Sums::new() });
        Item::new(7, job, Memory::of(AnyBuffer::One(memory(bytes as usize))))
    }

    /// Begins a batch of items of one unit, with `parts` of them as the item's number and its unit on the device.
    fn begun(items: u64, parts: &[(u32, u64)]) -> Batch<u64> {
        let limits =
            Limits { command_bytes_max: 64 * UNIT_BYTES, boundary_bytes: 0, slices_max: 64 };
        let part = |&(item, unit): &(u32, u64)| Part {
            place: Place { device: 0, unit },
            item,
            offset: 0,
            bytes: UNIT_BYTES,
        };
        let mut parts: Vec<Part> = parts.iter().map(part).collect();
        let items = (0..items).map(|_| Some(item(1))).collect();
        let mut batch = Batch { items, ..Batch::default() };
        batch.plan.remake(&mut parts, &limits);
        batch.begin();
        batch
    }

    #[test]
    fn a_command_takes_one_buffer_or_the_list_of_its_buffers() {
        let mut batch = begun(3, &[(0, 10), (1, 11), (2, 50)]);
        let (mut scratch, mut whole) = (Vec::new(), Vec::new());
        let runs = batch.plan.runs().to_vec();
        let loads: Vec<_> = runs.iter().map(|run| batch.load(run, &mut scratch)).collect();
        assert!(matches!(&loads[0], AnyBuffer::Many(buffers) if buffers.len() == 2));
        assert!(matches!(&loads[1], AnyBuffer::One(_)));
        assert_eq!((loads.len(), scratch.len()), (2, 0));
        for (command, memory) in (0..).zip(loads) {
            assert!(!batch.is_over());
            batch.unload(command, memory, None, &mut whole);
            whole.drain(..).for_each(|index| drop(batch.finish(index)));
        }
        assert!(batch.is_over());
    }

    #[test]
    #[should_panic(expected = "each item has data")]
    fn a_batch_does_not_begin_with_an_item_that_no_command_serves() {
        begun(2, &[(0, 10)]);
    }

    #[test]
    fn a_box_is_used_again() {
        let mut boxes = Boxes::default();
        let first = boxes.fill(1);
        boxes.keep(first);
        assert_eq!(boxes.0.len(), 1);
        assert_eq!((*boxes.fill(2), boxes.0.len()), (2, 0));
    }
}
