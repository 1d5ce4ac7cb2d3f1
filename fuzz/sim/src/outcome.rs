//! The result of a request, as far as the checks care.

use adit_driver::CommandError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It succeeded.
    Done,
    /// The controller failed it.
    Failed,
    /// The driver ended it.
    Ended {
        /// Whether the driver says that data may have been written.
        may_have_written: bool,
    },
}

impl Ending {
    pub(crate) fn of(result: &Result<u32, CommandError>) -> Ending {
        match result {
            Ok(_) => Ending::Done,
            Err(CommandError::Status(_) | CommandError::System(_) | CommandError::Short { .. }) => {
                Ending::Failed
            }
            Err(
                CommandError::TimedOut { may_have_written }
                | CommandError::Reset { may_have_written },
            ) => Ending::Ended { may_have_written: *may_have_written },
        }
    }
}

/// Returns a number that distinguishes results.
pub(crate) fn code(result: &Result<u32, CommandError>) -> u64 {
    match result {
        Ok(_) => 0,
        Err(CommandError::Status(status)) => 1 << 16 | u64::from(status.bits()),
        Err(CommandError::TimedOut { may_have_written }) => 2 << 16 | u64::from(*may_have_written),
        Err(CommandError::Reset { may_have_written }) => 3 << 16 | u64::from(*may_have_written),
        Err(CommandError::System(errno)) => 4 << 16 | u64::from(errno.0.unsigned_abs()),
        Err(CommandError::Short { .. }) => 5 << 16,
    }
}

/// Formats the result for the user.
pub(crate) fn text(result: &Result<u32, CommandError>) -> String {
    match result {
        Ok(_) => "success".to_owned(),
        Err(error) => error.to_string(),
    }
}
