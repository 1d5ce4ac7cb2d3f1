//! Waits that a signal can end: Python's handlers run meanwhile, such as the one that raises `KeyboardInterrupt`.
//!
//! An abandoned wait continues without its caller where memory depends on it: a device may write buffers until the
//! request has ended, so they are kept until then.

use std::sync::mpsc::{self, RecvTimeoutError, SendError};
use std::thread;
use std::time::Duration;

use adit_kvstore::store::Answer;
use adit_kvstore::{Error, PendingAnswer};
use pyo3::prelude::*;

use crate::errors;
use crate::flight::wait_for;
use crate::job::Job;

/// Time between two runs of signal handlers.
pub(crate) const TURN: Duration = Duration::from_millis(100);

/// Makes a request and waits for its answer, detached.
///
/// # Errors
/// Errors of the store; the exception of a signal handler, after which the request continues and its answer is dropped.
pub(crate) fn wait<T: Send, M: Send, P: PendingAnswer<Output = Answer<T, M>> + Send>(
    py: Python<'_>,
    ask: impl FnOnce() -> P + Send,
) -> PyResult<T> {
    let mut waited = py.detach(|| wait_for(ask(), TURN));
    loop {
        match waited {
            Ok(answer) => return answer.map_err(|why| errors::of(py, &why.error)),
            Err(pending) => {
                py.check_signals()?;
                waited = py.detach(|| wait_for(pending, TURN));
            }
        }
    }
}

/// Waits for a job, detached.
///
/// # Errors
/// The exception of a signal handler. A thread then waits for the job and releases its buffers.
pub(crate) fn ended(py: Python<'_>, mut job: Job) -> PyResult<Job> {
    loop {
        if job.is_over() {
            return Ok(job);
        }
        if let Err(raised) = py.check_signals() {
            let rest = move || while !job.wait_for(TURN) {};
            thread::Builder::new().name("adit-waits".to_owned()).spawn(rest)?;
            return Err(raised);
        }
        job = py.detach(move || begun(job));
    }
}

/// Waits for a job for the first turn.
pub(crate) fn begun(mut job: Job) -> Job {
    job.wait_for(TURN);
    job
}

/// Runs blocking `work` on a separate thread, and waits for it detached.
///
/// # Errors
/// The exception of a signal handler, after which the work continues and its result is dropped. `OSError` if the system
/// has no thread left.
pub(crate) fn apart<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    apart_or(py, work, drop)
}

/// Like [`apart`], for work that can fail.
///
/// # Errors
/// As [`apart`]; the work's.
pub(crate) fn tried<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    apart(py, work)?.map_err(|why| errors::of(py, &why))
}

/// Like [`apart`], but passes the work's result to `undo` if the caller has left.
///
/// # Errors
/// As [`apart`].
pub(crate) fn apart_or<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    undo: fn(T),
) -> PyResult<T> {
    let (reply, mut answer) = mpsc::channel();
    let work = move || {
        if let Err(SendError(done)) = reply.send(work()) {
            undo(done);
        }
    };
    thread::Builder::new().name("adit-waits".to_owned()).spawn(work)?;
    loop {
        let (received, back) = py.detach(move || (answer.recv_timeout(TURN), answer));
        answer = back;
        match received {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => panic!("a thread that waits ended in a panic"),
        }
    }
}
