//! Requests: drawing them, building their commands, and what they write.

use adit_driver::spec::{CopyRange, DsmRange, Lba, LbaCount, Status};
use adit_driver::{Buffer, Command, CommandError, Namespace, Time};

use crate::arena::Memory;
use crate::content::{Value, fill, stamp};
use crate::model::Model;
use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) lbas: u64,
}

impl Run {
    fn draw(random: &mut Random, lbas: u64, most: u64) -> Run {
        let most = if random.one_in(2) { most.min(2) } else { most };
        let here = random.between(1, most.min(lbas));
        Run { first: random.below(lbas - here + 1), lbas: here }
    }

    pub(crate) fn iter(self) -> std::ops::Range<u64> {
        self.first..self.first + self.lbas
    }
}

/// A request's operation.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Read(Run),
    /// Writes each LBA's stamp.
    Write(Run),
    /// Compares with these values.
    Compare(Run, Vec<Value>),
    WriteZeroes(Run, bool),
    Deallocate(Vec<Run>),
    Copy {
        to: u64,
        source: Run,
        values: Vec<Value>,
    },
    Verify(Run),
    Flush,
    /// A read beyond the end.
    Beyond,
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) tag: u64,
    pub(crate) ask: Ask,
    pub(crate) fua: bool,
    /// The id of its queue.
    pub(crate) lane: u64,
    /// When it was made, on the model's and the driver's clocks.
    pub(crate) began: u64,
    pub(crate) at: Time,
    /// When a poll first found it overdue.
    pub(crate) late: Option<Time>,
    /// Whether the device was told of it, and how often it was excused because it was not.
    pub(crate) rung: bool,
    pub(crate) spared: u32,
    /// The addresses and lengths of the buffer's pieces.
    pub(crate) layout: Vec<(u64, usize)>,
    pub(crate) guards: Vec<Buffer>,
}

/// Status code Compare Failure (type 2h, code 85h).
const COMPARE_FAILURE: Status = Status::new(2, 0x85);

/// The memory of a command: its pieces, and the request's tag.
pub(crate) type Parcel = (Vec<Buffer>, u64);

impl Ask {
    /// Draws a request to the LBAs of the model.
    pub(crate) fn draw(
        random: &mut Random,
        model: &Model,
        most: u64,
        is_damaged: impl Fn(u64) -> bool,
    ) -> Ask {
        let lbas = model.lba_count();
        let run = Run::draw(random, lbas, most);
        match random.below(100) {
            0..32 => Ask::Read(run),
            32..68 => Ask::Write(run),
            68..73 => Ask::Compare(run, run.iter().map(|lba| model.likely(lba)).collect()),
            73..79 => Ask::WriteZeroes(run, random.one_in(2)),
            79..84 => {
                let count = random.between(1, 4);
                Ask::Deallocate((0..count).map(|_| Run::draw(random, lbas, 3)).collect())
            }
            84..89 if run.iter().any(is_damaged) => Ask::Flush,
            84..89 => Ask::copy(random, model, run),
            89..91 => Ask::Verify(run),
            91..99 => Ask::Flush,
            _ => Ask::Beyond,
        }
    }

    /// Draws a copy of LBAs that nothing changes onto others, or else a flush.
    fn copy(random: &mut Random, model: &Model, source: Run) -> Ask {
        let to = random.below(model.lba_count() - source.lbas + 1);
        let apart = to >= source.first + source.lbas || source.first >= to + source.lbas;
        let values: Option<Vec<Value>> = source.iter().map(|lba| model.settled(lba)).collect();
        match values.filter(|_| apart) {
            Some(values) => Ask::Copy { to, source, values },
            None => Ask::Flush,
        }
    }

    pub(crate) fn writes(&self, tag: u64) -> Vec<(u64, Value)> {
        match self {
            Ask::Write(run) => run.iter().map(|lba| (lba, stamp(tag, lba))).collect(),
            Ask::WriteZeroes(run, _) => run.iter().map(|lba| (lba, 0)).collect(),
            Ask::Deallocate(runs) => {
                let mut lbas: Vec<u64> = runs.iter().flat_map(|run| run.iter()).collect();
                lbas.sort_unstable();
                lbas.dedup();
                lbas.into_iter().map(|lba| (lba, 0)).collect()
            }
            Ask::Copy { to, values, .. } => (*to..).zip(values.iter().copied()).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the source of a copy, which must not change meanwhile.
    pub(crate) fn pins(&self) -> Option<Run> {
        match self {
            Ask::Copy { source, .. } => Some(*source),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self, lba_bytes: u64) -> u64 {
        match self {
            Ask::Read(run) | Ask::Write(run) | Ask::Compare(run, _) => run.lbas * lba_bytes,
            Ask::Beyond => lba_bytes,
            _ => 0,
        }
    }

    pub(crate) fn list_bytes(&self) -> u64 {
        match self {
            Ask::Deallocate(runs) => runs.len() as u64 * 16,
            Ask::Copy { .. } => 32,
            _ => 0,
        }
    }

    /// Fills `bytes` as the buffer's initial contents.
    pub(crate) fn fill(&self, tag: u64, lba_bytes: usize, bytes: &mut [u8]) {
        let mut lbas = bytes.chunks_exact_mut(lba_bytes);
        match self {
            Ask::Write(run) => {
                run.iter().zip(&mut lbas).for_each(|(lba, bytes)| fill(bytes, stamp(tag, lba)));
            }
            Ask::Compare(_, values) => {
                values.iter().zip(&mut lbas).for_each(|(value, bytes)| fill(bytes, *value));
            }
            // No valid value, so that bytes that a read leaves unchanged show.
            _ => bytes.fill(0x5a),
        }
    }

    /// Builds the command, which owns `memory` and the tag.
    pub(crate) fn command<'n>(
        &self,
        namespace: &'n Namespace,
        fua: bool,
        (memory, tag): (Memory, u64),
    ) -> (Command<'n, Parcel>, Vec<Buffer>) {
        let Memory { mut pieces, guards } = memory;
        let count = |run: &Run| LbaCount::new(run.lbas as u32).expect("runs are short");
        let bare = |command: Command<'n, ()>| command.map_buffer(|()| (Vec::new(), tag));
        let command = match self {
            Ask::Read(run) => namespace.read(Lba(run.first), (pieces, tag)),
            Ask::Write(run) => namespace.write(Lba(run.first), (pieces, tag)),
            Ask::Compare(run, _) => namespace.compare(Lba(run.first), (pieces, tag)),
            Ask::Beyond => namespace.read(Lba(namespace.lba_count()), (pieces, tag)),
            Ask::WriteZeroes(run, deallocate) => {
                bare(namespace.write_zeroes(Lba(run.first), count(run), *deallocate))
            }
            Ask::Verify(run) => bare(namespace.verify(Lba(run.first), count(run))),
            Ask::Flush => bare(namespace.flush()),
            Ask::Deallocate(runs) => {
                let ranges: Vec<DsmRange> =
                    runs.iter().map(|run| DsmRange::new(Lba(run.first), run.lbas as u32)).collect();
                let list = pieces.remove(0);
                let command = namespace.deallocate(&ranges, list).expect("few ranges");
                command.map_buffer(|list| (vec![list], tag))
            }
            Ask::Copy { to, source, .. } => {
                let range = CopyRange::new(Lba(source.first), count(source));
                let command = namespace.copy(Lba(*to), &[range], pieces.remove(0));
                command.expect("one range").map_buffer(|list| (vec![list], tag))
            }
        };
        (if fua { command.fua() } else { command }, guards)
    }
}

/// Returns whether a result is possible without any fault of the controller.
pub(crate) fn is_ordinary(ask: &Ask, result: &Result<u32, CommandError>) -> bool {
    match (ask, result) {
        (_, Ok(_)) => true,
        (Ask::Compare(..), Err(CommandError::Status(status))) => status.is(COMPARE_FAILURE),
        _ => false,
    }
}

/// Returns whether a comparison reported different data.
pub(crate) fn differs(result: &Result<u32, CommandError>) -> bool {
    matches!(result, Err(CommandError::Status(status)) if status.is(COMPARE_FAILURE))
}
