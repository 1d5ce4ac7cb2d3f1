//! What went wrong, by name: what a run puts up with, and what it counts.

use std::collections::{BTreeMap, BTreeSet};

use adit_driver::CommandError;
use clap::ValueEnum;

/// Errors that are told one by one where the run goes on; of the rest only the number.
const TOLD_MAX: u64 = 10;

/// Errno of failed I/O (EIO) and of data that is not what it should be (EILSEQ), as fio reports them.
pub(crate) const EIO: i32 = 5;
const EILSEQ: i32 = 84;
/// Errno of a full device, and of an I/O that took too long.
const ENOSPC: i32 = 28;
const ETIMEDOUT: i32 = 110;

/// fio's `--continue_on_error`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tolerance {
    /// The first error ends the job
    #[default]
    #[value(alias = "0")]
    None,
    /// Goes on after failed reads
    Read,
    /// Goes on after failed writes
    Write,
    /// Goes on after failed reads and writes
    Io,
    /// Goes on after blocks that are not what was written
    Verify,
    /// Goes on after all of these
    #[value(alias = "1")]
    All,
}

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A read failed.
    Read,
    /// A write failed.
    Write,
    /// Data is not what it should be.
    Verify,
}

impl Kind {
    /// The errno that fio gives it.
    pub(crate) fn errno(self) -> i32 {
        if self == Kind::Verify { EILSEQ } else { EIO }
    }
}

impl Tolerance {
    /// Whether the run goes on after such an error.
    pub(crate) fn covers(self, kind: Kind) -> bool {
        match self {
            Tolerance::None => false,
            Tolerance::Read => kind == Kind::Read,
            Tolerance::Write => kind == Kind::Write,
            Tolerance::Io => kind != Kind::Verify,
            Tolerance::Verify => kind == Kind::Verify,
            Tolerance::All => true,
        }
    }
}

/// The number of errno(3) that fio would have for an error.
pub(crate) fn errno_of(error: CommandError) -> i32 {
    match error {
        _ if error.is_no_space() => ENOSPC,
        CommandError::System(errno) => errno.0,
        CommandError::TimedOut { .. } => ETIMEDOUT,
        _ => EIO,
    }
}

/// The name that an error is counted under: the specification's for a status.
pub(crate) fn name_of(error: CommandError) -> &'static str {
    match error {
        CommandError::Status(status) => status.name(),
        CommandError::TimedOut { .. } => "Timed Out",
        CommandError::Reset { .. } => "Reset",
        CommandError::System(errno) => errno.name(),
        CommandError::Short { .. } => "Short Transfer",
    }
}

/// How many errors there were of each name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    by_name: BTreeMap<&'static str, u64>,
    first: Option<Kind>,
}

impl Errors {
    /// Counts one; true if it is to be told as well.
    pub(crate) fn count(&mut self, kind: Kind, name: &'static str) -> bool {
        *self.by_name.entry(name).or_default() += 1;
        self.first.get_or_insert(kind);
        self.total() <= TOLD_MAX
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.by_name.values().sum()
    }

    /// The errno of the first; 0 where there was none.
    pub(crate) fn first_errno(&self) -> i32 {
        self.first.map_or(0, Kind::errno)
    }

    /// Names and numbers.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.by_name.iter().map(|(name, count)| (*name, *count))
    }

    /// Adds another job's.
    pub(crate) fn merge(&mut self, other: &Errors) {
        for (name, count) in other.by_name() {
            *self.by_name.entry(name).or_default() += count;
        }
        self.first = self.first.or(other.first);
    }
}

/// Blocks of a pass whose write failed, by file and offset: what they hold is not known.
pub(crate) type Unwritten = BTreeSet<(u32, u64)>;

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::spec::Status;

    #[test]
    fn each_tolerance_covers_what_fio_says() {
        let kinds = [Kind::Read, Kind::Write, Kind::Verify];
        for (tolerance, expected) in [
            (Tolerance::None, [false, false, false]),
            (Tolerance::Read, [true, false, false]),
            (Tolerance::Write, [false, true, false]),
            (Tolerance::Io, [true, true, false]),
            (Tolerance::Verify, [false, false, true]),
            (Tolerance::All, [true, true, true]),
        ] {
            assert_eq!(kinds.map(|kind| tolerance.covers(kind)), expected, "{tolerance:?}");
        }
    }

    #[test]
    fn errors_are_counted_by_name_and_the_first_is_remembered() {
        let write_fault = name_of(CommandError::Status(Status::WRITE_FAULT));
        let (mut errors, mut others) = (Errors::default(), Errors::default());
        assert_eq!((errors.total(), errors.first_errno()), (0, 0));
        assert!(errors.count(Kind::Write, write_fault));
        others.count(Kind::Verify, "verify");
        others.count(Kind::Write, write_fault);
        errors.merge(&others);
        assert_eq!(errors.by_name().collect::<Vec<_>>(), [("Write Fault", 2), ("verify", 1)]);
        assert_eq!((errors.first_errno(), others.first_errno()), (EIO, EILSEQ));
    }

    #[test]
    fn only_the_first_few_are_told() {
        let mut errors = Errors::default();
        let told = (0..100).filter(|_| errors.count(Kind::Read, "x")).count();
        assert_eq!((told as u64, errors.total()), (TOLD_MAX, 100));
    }
}
