//! Errors by name: which ones a job tolerates, and their counts.

use std::collections::{BTreeMap, BTreeSet};

use adit_driver::CommandError;
use clap::ValueEnum;

/// Tolerated errors that are reported individually; further ones are only counted.
const TOLD_MAX: u64 = 10;

/// The errnos fio reports for failed I/O and for failed verification.
pub(crate) const EIO: i32 = 5;
const EILSEQ: i32 = 84;
/// The errnos of a full device, and of an I/O that took too long.
const ENOSPC: i32 = 28;
pub(crate) const ETIMEDOUT: i32 = 110;

/// fio's `--continue_on_error`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tolerance {
    /// The first error ends the job
    #[default]
    #[value(alias = "0")]
    None,
    /// Continues after failed reads
    Read,
    /// Continues after failed writes
    Write,
    /// Continues after failed reads and writes
    Io,
    /// Continues after failed verification
    Verify,
    /// Continues after all of these
    #[value(alias = "1")]
    All,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// A read failed.
    Read,
    /// A write failed.
    Write,
    /// Verification failed.
    Verify,
}

impl ErrorKind {
    /// Returns fio's errno for it.
    pub(crate) fn errno(self) -> i32 {
        if self == ErrorKind::Verify { EILSEQ } else { EIO }
    }
}

impl Tolerance {
    /// Returns whether the job continues after such an error.
    pub(crate) fn covers(self, kind: ErrorKind) -> bool {
        match self {
            Tolerance::None => false,
            Tolerance::Read => kind == ErrorKind::Read,
            Tolerance::Write => kind == ErrorKind::Write,
            Tolerance::Io => kind != ErrorKind::Verify,
            Tolerance::Verify => kind == ErrorKind::Verify,
            Tolerance::All => true,
        }
    }
}

/// Returns the errno fio would report for an error.
pub(crate) fn errno_of(error: CommandError) -> i32 {
    match error {
        _ if error.is_no_space() => ENOSPC,
        CommandError::System(errno) => errno.0,
        CommandError::TimedOut { .. } => ETIMEDOUT,
        _ => EIO,
    }
}

/// Returns the name an error is counted under; for a status, the specification's.
pub(crate) fn name_of(error: CommandError) -> &'static str {
    match error {
        CommandError::Status(status) => status.name(),
        CommandError::TimedOut { .. } => "Timed Out",
        CommandError::Reset { .. } => "Reset",
        CommandError::System(errno) => errno.name(),
        CommandError::Short { .. } => "Short Transfer",
    }
}

/// Counts of errors by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    by_name: BTreeMap<&'static str, u64>,
    first: Option<ErrorKind>,
}

impl Errors {
    /// Counts an error; returns whether to report it individually.
    pub(crate) fn count(&mut self, kind: ErrorKind, name: &'static str) -> bool {
        *self.by_name.entry(name).or_default() += 1;
        self.first.get_or_insert(kind);
        self.total() <= TOLD_MAX
    }

    pub(crate) fn total(&self) -> u64 {
        self.by_name.values().sum()
    }

    /// Returns the errno of the first error; 0 without errors.
    pub(crate) fn first_errno(&self) -> i32 {
        self.first.map_or(0, ErrorKind::errno)
    }

    /// Returns names and counts.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.by_name.iter().map(|(name, count)| (*name, *count))
    }

    /// Adds another job's counts.
    pub(crate) fn merge(&mut self, other: &Errors) {
        for (name, count) in other.by_name() {
            *self.by_name.entry(name).or_default() += count;
        }
        self.first = self.first.or(other.first);
    }
}

/// Blocks of a pass whose write failed, by file and offset; their contents are unknown.
pub(crate) type Unwritten = BTreeSet<(u32, u64)>;

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::spec::Status;

    #[test]
    fn each_tolerance_covers_what_fio_says() {
        let kinds = [ErrorKind::Read, ErrorKind::Write, ErrorKind::Verify];
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
        assert!(errors.count(ErrorKind::Write, write_fault));
        others.count(ErrorKind::Verify, "verify");
        others.count(ErrorKind::Write, write_fault);
        errors.merge(&others);
        assert_eq!(errors.by_name().collect::<Vec<_>>(), [("Write Fault", 2), ("verify", 1)]);
        assert_eq!((errors.first_errno(), others.first_errno()), (EIO, EILSEQ));
    }

    #[test]
    fn only_the_first_few_are_told() {
        let mut errors = Errors::default();
        let told = (0..100).filter(|_| errors.count(ErrorKind::Read, "x")).count();
        assert_eq!((told as u64, errors.total()), (TOLD_MAX, 100));
    }
}
