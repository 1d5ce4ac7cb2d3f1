//! Converts the store's errors to the exceptions of `adit._errors`.

use adit_driver::Error as DriverError;
use adit_kvstore::shard::Failure;
use adit_kvstore::{Error, RefusalKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Creates an exception of the class `name` of `adit._errors`.
pub(crate) fn named(py: Python<'_>, name: &str, text: &str) -> PyErr {
    let module = MODULE.get_or_try_init(py, || py.import("adit._errors").map(Bound::unbind));
    let exception = module.and_then(|module| module.bind(py).getattr(name)?.call1((text,)));
    exception.map_or_else(|why| why, PyErr::from_value)
}

/// Creates the exception of a store's error, with its text. A lost connection's text says that it reconnects by itself.
pub(crate) fn of(py: Python<'_>, error: &Error) -> PyErr {
    let text = match error {
        Error::Lost { why } => format!(
            "the server of the store is lost ({why}): calls work again soon after 'adit kv serve' runs"
        ),
        _ => error.to_string(),
    };
    let exception = named(py, class(error), &text);
    let Error::Failed(Failure::Conflict { found }) = error else { return exception };
    let set = exception.value(py).setattr("version", found.map(|version| version.0));
    set.err().unwrap_or(exception)
}

/// Returns the refusal of a call in a process forked from the store's.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let text = "this process was forked from the one that opened the store, and has none of its threads: open stores \
                or connect after the fork, or start processes with multiprocessing's 'spawn'";
    named(py, "ForkedError", text)
}

/// Returns the refusal of a call after the end of the store or the queue.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    of(py, &Error::Failed(Failure::Closed))
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Driver(error) => driver_class(error),
        Error::Key { .. } => "InvalidKeyError",
        Error::Invalid { .. } => "InvalidError",
        Error::Failed(failure) => failure_class(failure),
        Error::Timeout { .. } => "DeadlineError",
        Error::Gone { .. } => "ConflictError",
        Error::Source { .. } => "InvalidError",
        Error::Media { .. } => "MediaError",
        Error::Died { .. } => "ClosedError",
        Error::Lost { .. } => "LostError",
        Error::System { .. } => "RefusedError",
        Error::Refused { kind, .. } => match kind {
            RefusalKind::Malformed => "InvalidError",
            RefusalKind::InUse | RefusalKind::Pool => "BadBufferError",
            RefusalKind::Limit => "RefusedError",
            RefusalKind::Failed => "Error",
        },
        _ => "Error",
    }
}

fn driver_class(error: &DriverError) -> &'static str {
    match error {
        error if error.is_usage() => "InvalidError",
        DriverError::Refused { .. } | DriverError::Soft(_) => "RefusedError",
        DriverError::Timeout { .. } => "DeadlineError",
        _ => "DeviceError",
    }
}

fn failure_class(failure: &Failure) -> &'static str {
    match failure {
        Failure::Full => "FullError",
        Failure::NoSpace { .. } => "NoSpaceError",
        Failure::Quota { .. } => "QuotaError",
        Failure::Conflict { .. } => "ConflictError",
        Failure::Declined(_) => "DeclinedError",
        Failure::Deadline => "DeadlineError",
        Failure::Device { .. } => "DeviceError",
        Failure::Closed => "ClosedError",
        Failure::Memory { .. } | Failure::Foreign { .. } => "BadBufferError",
        Failure::TooLarge { .. }
        | Failure::Tenant(_)
        | Failure::Layout(_)
        | Failure::Part(_)
        | Failure::Writer
        | Failure::Unfilled { .. }
        | Failure::Undefined(_) => "InvalidError",
    }
}

/// Returns the refusal of a buffer.
pub(crate) fn unusable(py: Python<'_>, why: &str) -> PyErr {
    named(py, "BadBufferError", &format!("the buffer cannot be used: {why}"))
}
