//! The journal: a ring of blocks of one unit each, as a state machine without I/O.
//!
//! Blocks are numbered from 1 for as long as the store exists; block `n` lies at unit `n % length` of the ring. All
//! ends are exclusive.
//!
//! | position | the blocks below it |
//! |---|---|
//! | tail | are no longer needed: both checkpoints cover them |
//! | durable end | were covered by a flush |
//! | written end | were written, and so were all before them |
//! | taken end | were handed to the caller to write |
//! | [`Journal::mark`] | are sealed: nothing is added to them |
//!
//! The positions are in this order. The ring holds all blocks from the tail to the open one; appending refuses to
//! overwrite the tail. A sealed block never changes. It is kept until it is durable, so that it can be written again
//! unchanged to a device that lost it.
//!
//! A record costs no allocation, because the blocks' memory is reused. The journal does not read
//! ([`crate::media::recovery`]), does not wait, and does not decide when to seal, flush or take a checkpoint.

use std::collections::VecDeque;
use std::ops::Range;

use crate::media::block::{BlockKind, BlockWriter, JOURNAL_BLOCK_BYTES, Lineage, Stamp};
use crate::media::record::Record;

/// Limit of idle blocks kept for reuse.
const SPARE_BLOCKS_MAX: usize = 1024;

/// Length of the shortest ring in blocks.
pub const JOURNAL_UNITS_MIN: u64 = 16;
/// The number of the first block of a journal.
pub const FIRST_SEQUENCE: u64 = 1;

/// A point in a journal's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The next block.
    pub sequence: u64,
    /// The seal of the block before it.
    pub chain: u64,
}

impl Mark {
    /// Returns where the journal of a lineage begins.
    pub fn start(lineage: &Lineage) -> Mark {
        Mark { sequence: FIRST_SEQUENCE, chain: lineage.origin(BlockKind::Journal, 0) }
    }
}

/// The ring is full: a checkpoint must advance its tail first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal is full: a checkpoint has to be completed first")]
pub struct Full;

/// A run of blocks to write with one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalWrite {
    /// Its first unit on the device.
    pub unit: u64,
    /// The blocks, one unit each.
    pub sequences: Range<u64>,
}

impl JournalWrite {
    /// Returns its length in bytes.
    pub fn bytes(&self) -> usize {
        debug_assert!(self.sequences.start < self.sequences.end, "a write has a block");
        (self.sequences.end - self.sequences.start) as usize * JOURNAL_BLOCK_BYTES
    }
}

/// A ring of blocks with an open block at its end.
#[derive(Debug)]
pub struct Journal {
    ring: Range<u64>,
    epoch: u64,
    session: u64,
    open: BlockWriter,
    mark: Mark,
    /// Bytes of the records in sealed blocks.
    record_bytes: u64,
    sealed: VecDeque<Box<[u8]>>,
    /// Taken blocks that are not durable, oldest first.
    undurable: VecDeque<Box<[u8]>>,
    spare: Vec<Box<[u8]>>,
    in_flight: VecDeque<(Range<u64>, bool)>,
    written_end: u64,
    durable_end: u64,
    tail: u64,
}

impl Journal {
    /// Creates a journal in the units `ring` that continues at `next`: [`Mark::start`] in a new store or epoch,
    /// otherwise the end of recovery. `session` must differ from that of every earlier opening of the store; `tail` is
    /// the oldest block still needed.
    ///
    /// # Panics
    /// If the ring is shorter than two blocks, or does not hold the blocks needed.
    pub fn new(ring: Range<u64>, epoch: u64, session: u64, next: Mark, tail: u64) -> Journal {
        let blocks = ring.end - ring.start;
        assert!(blocks >= 2, "a ring has two blocks or more");
        assert!(tail <= next.sequence && next.sequence - tail <= blocks, "the tail is in the ring");
        assert!(tail >= FIRST_SEQUENCE, "blocks are numbered from 1");
        let journal = Journal {
            ring,
            epoch,
            session,
            open: BlockWriter::new(BlockKind::Journal),
            mark: next,
            record_bytes: 0,
            sealed: VecDeque::new(),
            undurable: VecDeque::new(),
            spare: Vec::new(),
            in_flight: VecDeque::new(),
            written_end: next.sequence,
            durable_end: next.sequence,
            tail,
        };
        journal.assert_in_order();
        journal
    }

    /// Asserts that the positions are in order, and that exactly the blocks between them are kept.
    fn assert_in_order(&self) {
        let taken_end = self.taken_end();
        assert!(self.tail <= self.durable_end, "what is released was flushed");
        assert!(self.durable_end <= self.written_end, "what was flushed was written");
        assert!(self.written_end <= taken_end, "what was written was taken");
        let undurable = taken_end - self.durable_end;
        assert_eq!(self.undurable.len() as u64, undurable, "a block is kept until it is durable");
        let oldest = self.in_flight.front().map_or(taken_end, |(sequences, _)| sequences.start);
        assert_eq!(oldest, self.written_end, "what is taken and not written is in flight");
    }

    /// Appends a record and returns the number of its block. The block is written once [`Journal::written_end`] is
    /// past it, and durable once [`Journal::durable_end`] is.
    ///
    /// # Errors
    /// [`Full`], with nothing changed.
    #[inline]
    pub fn append(&mut self, record: &Record<'_>) -> Result<u64, Full> {
        if self.free_blocks() == 0 {
            return Err(Full);
        }
        if !self.open.push(record) {
            if self.free_blocks() == 1 {
                return Err(Full);
            }
            self.seal();
            assert!(self.open.push(record), "a record fits an empty block");
        }
        debug_assert!(self.free_blocks() > 0, "the block that a record is in lies in the ring");
        Ok(self.mark.sequence)
    }

    /// Seals the open block, unless it is empty, so that it can be written. All records so far are then in blocks
    /// below the returned mark.
    pub fn seal(&mut self) -> Mark {
        if !self.open.is_empty() {
            self.seal_open();
        }
        self.mark
    }

    /// Seals a block without records, if the ring has room: it states that the blocks before it were flushed. An
    /// opening does so before it appends anything.
    pub fn vouch(&mut self) {
        assert!(self.open.is_empty(), "the block of a record states as much");
        if self.free_blocks() > 0 {
            self.seal_open();
        }
    }

    fn seal_open(&mut self) {
        assert!(self.free_blocks() > 0, "the block that is sealed lies in the ring");
        let Mark { sequence, chain } = self.mark;
        let (epoch, session, durable_end) = (self.epoch, self.session, self.durable_end);
        assert!(durable_end <= sequence, "a block states what was flushed before it");
        let stamp = Stamp { epoch, session, sequence, chain, durable_end };
        self.record_bytes += self.open.record_bytes() as u64;
        let seal = self.open.seal(&stamp);
        let fresh = self.spare.pop().unwrap_or_else(|| vec![0; JOURNAL_BLOCK_BYTES].into());
        self.sealed.push_back(self.open.replace(fresh));
        self.mark = Mark { sequence: sequence + 1, chain: seal };
        assert!(self.open.is_empty(), "no block is added to once it is sealed");
        self.assert_in_order();
    }

    /// Returns the open block: a checkpoint that begins now replays from here.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Returns the bytes of all records appended so far, except those in the open block.
    pub fn record_bytes(&self) -> u64 {
        let most = self.mark.sequence * JOURNAL_BLOCK_BYTES as u64;
        debug_assert!(self.record_bytes < most, "blocks hold no more than they are long");
        self.record_bytes
    }

    /// Returns the unit at which the next write begins.
    pub fn next_unit(&self) -> u64 {
        let unit = self.ring.start + self.taken_end() % self.blocks();
        assert!(self.ring.contains(&unit), "the ring has a place for each block");
        unit
    }

    /// Copies sealed blocks, oldest first, to the front of `into`: as many as fit in it and in one write, which does
    /// not cross the ring's end. Returns `None` if there is no sealed block, or no room for one.
    pub fn take(&mut self, into: &mut [u8]) -> Option<JournalWrite> {
        let first = self.taken_end();
        let (at, unit) = (first % self.blocks(), self.next_unit());
        let fits = (into.len() / JOURNAL_BLOCK_BYTES).min(self.sealed.len());
        let count = fits.min((self.blocks() - at) as usize);
        if count == 0 {
            return None;
        }
        let rooms = into.chunks_exact_mut(JOURNAL_BLOCK_BYTES);
        for (room, block) in rooms.zip(self.sealed.drain(..count)) {
            room.copy_from_slice(&block);
            self.undurable.push_back(block);
        }
        let sequences = first..first + count as u64;
        assert_eq!(sequences.end, self.taken_end(), "blocks are taken in order");
        assert!(at + count as u64 <= self.blocks(), "a write does not go around the ring's end");
        self.in_flight.push_back((sequences.clone(), false));
        self.assert_in_order();
        Some(JournalWrite { unit, sequences })
    }

    /// Records that a write has completed; writes may complete in any order.
    ///
    /// # Panics
    /// If the write is not in flight.
    pub fn written(&mut self, write: &JournalWrite) {
        assert!(self.written_end <= write.sequences.start, "a write completes once");
        assert_eq!(
            write.unit,
            self.ring.start + write.sequences.start % self.blocks(),
            "it went where its blocks belong"
        );
        let mut in_flight = self.in_flight.iter_mut();
        let found = in_flight.find(|(sequences, done)| *sequences == write.sequences && !*done);
        found.expect("a write that was taken and has not completed").1 = true;
        while let Some((sequences, true)) = self.in_flight.front() {
            self.written_end = sequences.end;
            self.in_flight.pop_front();
        }
        self.assert_in_order();
    }

    /// Records that a flush has completed which began when [`Journal::written_end`] was `end`. Flushes may complete
    /// in any order.
    ///
    /// # Panics
    /// If blocks below `end` were not written.
    pub fn durable(&mut self, end: u64) {
        assert!(end <= self.written_end, "what is flushed was written");
        let more = end.saturating_sub(self.durable_end) as usize;
        assert!(more <= self.undurable.len(), "what becomes durable was kept until then");
        self.durable_end += more as u64;
        self.spare.extend(self.undurable.drain(..more));
        self.spare.truncate(SPARE_BLOCKS_MAX);
        self.assert_in_order();
    }

    /// Queues all undurable blocks to be written again, because their device may have lost them. No write may be in
    /// flight, and earlier flushes no longer count.
    pub fn write_again(&mut self) {
        self.in_flight.clear();
        self.written_end = self.durable_end;
        self.undurable.append(&mut self.sealed);
        self.sealed = std::mem::take(&mut self.undurable);
        assert_eq!(self.taken_end(), self.durable_end, "all that is not durable was kept");
        self.assert_in_order();
    }

    /// Releases blocks below `tail`, where the older of two complete checkpoints begins.
    ///
    /// # Panics
    /// If these blocks are not durable: the checkpoints that cover them cannot be complete.
    pub fn release(&mut self, tail: u64) {
        assert!(tail <= self.durable_end, "what is released was flushed");
        self.tail = self.tail.max(tail);
        self.assert_in_order();
    }

    /// Returns the end of the blocks written without a gap.
    pub fn written_end(&self) -> u64 {
        self.written_end
    }

    /// Returns the end of the blocks that a flush has covered.
    pub fn durable_end(&self) -> u64 {
        self.durable_end
    }

    /// Returns the oldest block still needed.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the number of sealed blocks not taken.
    pub fn sealed_blocks(&self) -> usize {
        self.sealed.len()
    }

    /// Returns the number of taken blocks that are not durable; each is kept in memory.
    pub fn undurable_blocks(&self) -> usize {
        self.undurable.len()
    }

    /// Returns whether the open block holds records.
    pub fn has_unsealed(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns the length of the ring in blocks.
    pub fn blocks(&self) -> u64 {
        self.ring.end - self.ring.start
    }

    /// Returns how many blocks are free, including the open one.
    pub fn free_blocks(&self) -> u64 {
        let used = self.mark.sequence - self.tail;
        debug_assert!(used <= self.blocks(), "no block overwrites the tail");
        self.blocks() - used
    }

    fn taken_end(&self) -> u64 {
        let sealed = self.sealed.len() as u64;
        debug_assert!(sealed <= self.mark.sequence - self.tail, "what is sealed is still needed");
        self.mark.sequence - sealed
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::media::block::BlockReader;
    use crate::model::place::Place;

    const LINEAGE: Lineage = Lineage { store: [7; 16], epoch: 2, shard: 1 };
    const RING: Range<u64> = 100..116;

    fn journal() -> Journal {
        Journal::new(RING, LINEAGE.epoch, 1, Mark::start(&LINEAGE), FIRST_SEQUENCE)
    }

    fn append(journal: &mut Journal, number: u64) -> Result<u64, Full> {
        let mut key = [0; 500];
        key[..8].copy_from_slice(&number.to_le_bytes());
        journal.append(&Record::Delete { key: &key, place: Place { device: 0, unit: number } })
    }

    /// An action of the test or the device.
    #[derive(Clone, Debug)]
    enum Step {
        Append,
        Seal,
        Take(usize),
        Write(usize),
        Flush,
        Release,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            12 => Just(Step::Append),
            1 => Just(Step::Seal),
            2 => (0usize..5).prop_map(Step::Take),
            2 => any::<usize>().prop_map(Step::Write),
            1 => Just(Step::Flush),
            1 => Just(Step::Release),
        ];
        vec(step, 0..400)
    }

    /// The media, and the facts observed from outside.
    #[derive(Default)]
    struct Outside {
        units: std::collections::BTreeMap<u64, Vec<u8>>,
        in_flight: Vec<(JournalWrite, Vec<u8>)>,
        /// The block of each record.
        blocks: Vec<u64>,
        taken: u64,
    }

    fn step(journal: &mut Journal, outside: &mut Outside, step: &Step) {
        match step {
            Step::Append => match append(journal, outside.blocks.len() as u64) {
                Ok(block) => outside.blocks.push(block),
                Err(Full) => assert!(journal.free_blocks() <= 1, "refused with room left"),
            },
            Step::Seal => {
                let mark = journal.seal();
                assert!(outside.blocks.last().is_none_or(|block| *block < mark.sequence));
                assert!(!journal.has_unsealed());
            }
            Step::Take(blocks) => {
                let mut memory = vec![0; blocks * JOURNAL_BLOCK_BYTES + 1];
                let write = journal.take(&mut memory);
                assert_eq!(
                    write.is_none(),
                    *blocks == 0 || outside.taken + 1 == journal.taken_end()
                );
                let Some(write) = write else { return };
                assert!(write.unit >= RING.start && write.bytes() <= memory.len());
                assert!(write.unit + write.bytes() as u64 / 4096 <= RING.end);
                assert_eq!(write.sequences.start, outside.taken + 1, "none left out");
                outside.taken = write.sequences.end - 1;
                outside.in_flight.push((write, memory));
            }
            Step::Write(which) if !outside.in_flight.is_empty() => {
                let which = which % outside.in_flight.len();
                let (write, memory) = outside.in_flight.remove(which);
                for (at, block) in memory[..write.bytes()].chunks(JOURNAL_BLOCK_BYTES).enumerate() {
                    outside.units.insert(write.unit + at as u64, block.to_vec());
                }
                journal.written(&write);
            }
            Step::Write(_) => (),
            Step::Flush => journal.durable(journal.written_end()),
            Step::Release => journal.release(journal.durable_end()),
        }
    }

    /// Reads the key numbers of the records in blocks `range` of the media, which must be chained.
    fn read(outside: &Outside, range: Range<u64>) -> Vec<u64> {
        let mut numbers = Vec::new();
        let mut chain = None;
        for sequence in range {
            let bytes = &outside.units[&(RING.start + sequence % 16)];
            let block = BlockReader::open(BlockKind::Journal, bytes).expect("whole");
            let follows = chain.unwrap_or(block.stamp.chain);
            block.check(LINEAGE.epoch, sequence, follows).expect("the next block");
            chain = Some(block.seal);
            numbers.extend(block.records().map(|record| match record.expect("a record") {
                Record::Delete { place, .. } => place.unit,
                other => panic!("{other:?}"),
            }));
        }
        numbers
    }

    proptest! {
        #[test]
        fn what_is_needed_is_never_overwritten_and_all_of_it_is_there(steps in steps()) {
            let (mut journal, mut outside) = (journal(), Outside::default());
            for each in &steps {
                step(&mut journal, &mut outside, each);
                let order = [journal.tail, journal.durable_end, journal.written_end, journal.taken_end()];
                prop_assert!(order.is_sorted() && journal.taken_end() <= journal.mark().sequence);
                // Writes in flight may be on the media in part. Only completed writes count, and only if no block taken
                // later overwrites them.
                let from = journal.tail;
                let wanted: Vec<u64> = (0..outside.blocks.len() as u64)
                    .filter(|number| (from..journal.written_end).contains(&outside.blocks[*number as usize]))
                    .collect();
                prop_assert_eq!(read(&outside, from..journal.written_end), wanted);
            }
        }
    }

    #[test]
    fn a_full_ring_refuses_until_its_tail_moves() {
        let mut journal = journal();
        let fitted = (0..).take_while(|number| append(&mut journal, *number).is_ok()).count();
        assert_eq!(fitted, 16 * 7, "seven records of 510 bytes fit a block");
        assert_eq!(journal.seal().sequence, 17);
        assert_eq!((journal.free_blocks(), append(&mut journal, 0)), (0, Err(Full)));
        let mut memory = vec![0; JOURNAL_BLOCK_BYTES];
        let write = journal.take(&mut memory).expect("a block");
        journal.written(&write);
        journal.durable(2);
        journal.release(2);
        assert_eq!(append(&mut journal, 0), Ok(17));
    }

    #[test]
    fn a_write_ends_at_the_end_of_the_ring() {
        let mut journal = journal();
        while append(&mut journal, 0).is_ok() {}
        journal.seal();
        let mut memory = vec![0; 16 * JOURNAL_BLOCK_BYTES];
        let writes: Vec<_> = std::iter::from_fn(|| journal.take(&mut memory)).collect();
        let first = JournalWrite { unit: 101, sequences: 1..16 };
        assert_eq!(writes, [first, JournalWrite { unit: 100, sequences: 16..17 }]);
    }

    #[test]
    fn writes_that_overtake_each_other_count_when_all_before_them_are_there() {
        let mut journal = journal();
        let mut memory = vec![0; JOURNAL_BLOCK_BYTES];
        let mut write = |number| {
            append(&mut journal, number).expect("room");
            journal.seal();
            journal.take(&mut memory).expect("a block")
        };
        let (first, second) = (write(1), write(2));
        journal.written(&second);
        assert_eq!(journal.written_end(), 1);
        journal.written(&first);
        assert_eq!(journal.written_end(), 3);
    }

    #[test]
    fn what_is_not_durable_is_written_again_as_it_was() {
        const B: usize = JOURNAL_BLOCK_BYTES;
        let mut journal = journal();
        for number in 0..5 {
            assert!(!journal.has_unsealed());
            append(&mut journal, number).expect("room");
            assert!(journal.has_unsealed());
            journal.seal();
            assert_eq!(journal.sealed_blocks() as u64, number + 1);
        }
        let mut memory = vec![0; 4 * B];
        let (front, back) = memory.split_at_mut(2 * B);
        let writes = [front, back].map(|room| journal.take(room).expect("two blocks"));
        assert_eq!((journal.sealed_blocks(), journal.undurable_blocks()), (1, 4));
        journal.written(&writes[0]);
        journal.durable(2);
        assert_eq!((journal.sealed_blocks(), journal.undurable_blocks()), (1, 3));
        journal.write_again();
        assert_eq!((journal.sealed_blocks(), journal.undurable_blocks()), (4, 0));
        assert_eq!((journal.written_end(), journal.durable_end()), (2, 2));
        let mut again = vec![0; 5 * B];
        let write = journal.take(&mut again).expect("all of them");
        assert_eq!(write, JournalWrite { unit: 102, sequences: 2..6 });
        assert!(again[..3 * B] == memory[B..], "not a byte has changed");
        journal.written(&write);
        journal.durable(6);
        journal.release(4);
        assert_eq!((journal.written_end(), journal.durable_end(), journal.tail()), (6, 6, 4));
        assert_eq!((journal.undurable_blocks(), journal.free_blocks()), (0, 16 - 2));
    }

    #[test]
    fn nothing_new_is_nothing_to_write() {
        let mut journal = journal();
        assert_eq!(journal.seal(), Mark::start(&LINEAGE));
        assert_eq!(journal.take(&mut [0; JOURNAL_BLOCK_BYTES]), None);
    }
}
