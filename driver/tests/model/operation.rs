//! The requests of a run: their meaning, their effect on the model, and their expected result.

use adit_driver::spec::Status;
use adit_driver::{CommandError, Namespace, RejectReason};

use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) lbas: u64,
}

impl Run {
    fn end(self) -> u64 {
        self.first + self.lbas
    }

    fn overlaps(self, other: Run) -> bool {
        self.first < other.end() && other.first < self.end()
    }
}

/// One request to the model and the driver.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Read(Run),
    Write {
        run: Run,
        fua: bool,
    },
    /// With `differs`, one byte does not match the medium.
    Compare {
        run: Run,
        differs: bool,
    },
    WriteZeroes {
        run: Run,
        deallocate: bool,
    },
    Verify(Run),
    Deallocate(Vec<Run>),
    Copy {
        to: u64,
        sources: Vec<Run>,
    },
    Flush,
    Bad(Bad),
}

/// The flaw of a request that must fail and change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// A write that reaches beyond the last LBA.
    PastEnd,
    /// A write of less than an LBA.
    PartialLba,
    /// A read into an empty buffer.
    Empty,
    /// A write from another controller's buffer.
    Foreign,
    /// A non-transfer command whose data is at an odd address.
    Scattered,
    /// Write Zeroes beyond the last LBA, which only the controller detects.
    ZeroesPastEnd,
}

impl Bad {
    /// Whether the queue refused it for the right reason.
    pub(crate) fn explains(self, reason: RejectReason) -> bool {
        use adit_driver::transfer::Unplannable;
        match self {
            Bad::PastEnd => matches!(reason, RejectReason::OutOfRange { .. }),
            Bad::PartialLba => {
                matches!(reason, RejectReason::Unplannable(Unplannable::PartialLba { .. }))
            }
            Bad::Empty => matches!(reason, RejectReason::Unplannable(Unplannable::Empty)),
            Bad::Foreign => matches!(reason, RejectReason::Foreign),
            Bad::Scattered => matches!(reason, RejectReason::Scattered),
            Bad::ZeroesPastEnd => false,
        }
    }
}

const COMPARE_FAILURE: Status = Status::new(2, 0x85);
const LBA_OUT_OF_RANGE: Status = Status::new(0, 0x80);

impl Operation {
    /// Draws an operation for a namespace; a transfer has at most `bytes_max` bytes.
    pub(crate) fn pick(random: &mut Random, namespace: &Namespace, bytes_max: u64) -> Operation {
        let lbas = namespace.lba_count();
        let most = (bytes_max / u64::from(namespace.lba_bytes())).min(lbas);
        let run = run(random, lbas, most);
        match random.below(100) {
            0..30 => Operation::Read(run),
            30..58 => Operation::Write { run, fua: random.chance(25) },
            // Protected data has nothing to compare with.
            58..68 if namespace.protection().is_some() => Operation::Read(run),
            58..68 => Operation::Compare { run, differs: random.chance(40) },
            68..73 => Operation::WriteZeroes { run, deallocate: random.chance(50) },
            73..76 => Operation::Verify(run),
            76..82 => Operation::Deallocate(ranges(random, lbas, 256)),
            82..90 => {
                let sources = ranges(random, lbas, 16);
                let total = sources.iter().map(|source| source.lbas).sum::<u64>();
                if total > lbas {
                    return Operation::Flush;
                }
                Operation::Copy { to: random.below(lbas - total + 1), sources }
            }
            90..94 => Operation::Flush,
            _ => Operation::Bad(random.pick(&[
                Bad::PastEnd,
                Bad::PartialLba,
                Bad::Empty,
                Bad::Foreign,
                Bad::Scattered,
                Bad::ZeroesPastEnd,
            ])),
        }
    }

    fn touches(&self) -> (Vec<Run>, Vec<Run>) {
        match self {
            Operation::Read(run) | Operation::Compare { run, .. } | Operation::Verify(run) => {
                (vec![*run], vec![])
            }
            Operation::Write { run, .. } | Operation::WriteZeroes { run, .. } => {
                (vec![], vec![*run])
            }
            Operation::Deallocate(runs) => (vec![], runs.clone()),
            Operation::Copy { to, sources } => {
                let lbas = sources.iter().map(|source| source.lbas).sum();
                (sources.clone(), vec![Run { first: *to, lbas }])
            }
            Operation::Flush | Operation::Bad(_) => (vec![], vec![]),
        }
    }

    /// Whether the result depends on the order of the two operations, or, for one and the same, on how the controller
    /// executes it.
    pub(crate) fn conflicts(&self, other: &Operation) -> bool {
        let meet = |a: &[Run], b: &[Run]| a.iter().any(|a| b.iter().any(|b| a.overlaps(*b)));
        let ((my_reads, my_writes), (reads, writes)) = (self.touches(), other.touches());
        meet(&my_writes, &writes) || meet(&my_writes, &reads) || meet(&my_reads, &writes)
    }

    /// Whether it copies onto its own sources, which the specification leaves undefined.
    pub(crate) fn is_ambiguous(&self) -> bool {
        matches!(self, Operation::Copy { .. }) && {
            let (reads, writes) = self.touches();
            reads.iter().any(|read| read.overlaps(writes[0]))
        }
    }

    pub(crate) fn outcome(&self) -> Result<(), CommandError> {
        match self {
            Operation::Compare { differs: true, .. } => Err(CommandError::Status(COMPARE_FAILURE)),
            Operation::Bad(_) => Err(CommandError::Status(LBA_OUT_OF_RANGE)),
            _ => Ok(()),
        }
    }

    /// Applies a successful command to `model`; `data` is a write's content.
    pub(crate) fn apply(&self, model: &mut [u8], lba_bytes: u64, data: &[u8]) {
        let bytes = |run: Run| (run.first * lba_bytes) as usize..(run.end() * lba_bytes) as usize;
        match self {
            Operation::Write { run, .. } => model[bytes(*run)].copy_from_slice(data),
            Operation::WriteZeroes { run, .. } => model[bytes(*run)].fill(0),
            Operation::Deallocate(runs) => {
                runs.iter().for_each(|&run| model[bytes(run)].fill(0));
            }
            Operation::Copy { to, sources } => {
                let mut to = (to * lba_bytes) as usize;
                for source in sources {
                    let from = bytes(*source);
                    let len = from.len();
                    model.copy_within(from, to);
                    to += len;
                }
            }
            _ => {}
        }
    }
}

/// Draws one to `most` LBAs anywhere in the namespace, short runs more often.
fn run(random: &mut Random, lbas: u64, most: u64) -> Run {
    let most = match random.below(3) {
        0 => most.min(8),
        1 => (most / 4).max(1),
        _ => most,
    };
    let lbas_here = random.between(1, most);
    Run { first: random.below(lbas - lbas_here + 1), lbas: lbas_here }
}

/// Draws short runs, as Dataset Management and Copy take them.
fn ranges(random: &mut Random, lbas: u64, most: u64) -> Vec<Run> {
    let count = if random.chance(20) { most } else { random.between(1, most.min(6)) };
    (0..count).map(|_| run(random, lbas, 4)).collect()
}
