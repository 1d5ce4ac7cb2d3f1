//! Requests that end at an eventfd: nothing waits, and one thread or event loop can serve any number of them.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arguments;
use crate::errors;
use crate::forked::Ours;
use crate::inside::{Inside, PutArguments};
use crate::jobs::{Job, Session};

use crate::view::View;

/// Jobs to look at, and the eventfd that says so.
struct Ready {
    numbers: Mutex<Vec<u64>>,
    event: EventFd,
}

impl Ready {
    fn push(&self, number: u64) {
        let mut numbers = lock(&self.numbers);
        let is_first = numbers.is_empty();
        numbers.push(number);
        if is_first {
            // Fails only if the counter is full, and then it is readable.
            let _ = self.event.write(1);
        }
    }

    fn take(&self) -> Vec<u64> {
        let mut numbers = lock(&self.numbers);
        // There may be nothing to read: its owner may have read it.
        let _ = self.event.read();
        std::mem::take(&mut *numbers)
    }
}

/// Counts the answers of a job, and makes it ready with the last.
struct Countdown {
    number: u64,
    ready: Arc<Ready>,
    come: AtomicUsize,
    /// With so many answers the job is ready.
    wanted: AtomicUsize,
}

impl Countdown {
    fn new(number: u64, ready: &Arc<Ready>) -> Arc<Countdown> {
        let (come, wanted) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        Arc::new(Countdown { number, ready: Arc::clone(ready), come, wanted })
    }

    /// Makes the job ready after `more` answers beyond the first `come`; at once if they are there already.
    fn expect(&self, come: usize, more: usize) {
        let wanted = come + more;
        self.wanted.store(wanted, Ordering::SeqCst);
        if self.come.load(Ordering::SeqCst) >= wanted {
            self.ready.push(self.number);
        }
    }
}

impl Wake for Countdown {
    fn wake(self: Arc<Self>) {
        let come = self.come.fetch_add(1, Ordering::SeqCst) + 1;
        if come >= self.wanted.load(Ordering::SeqCst) {
            self.ready.push(self.number);
        }
    }
}

struct Flying {
    job: Job,
    countdown: Arc<Countdown>,
    token: Option<Py<PyAny>>,
}

/// A queue's state, which a forked child leaves alone.
struct State {
    ready: Arc<Ready>,
    flying: Mutex<HashMap<u64, Flying>>,
    next: AtomicU64,
}

impl State {
    fn new() -> nix::Result<State> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let event = EventFd::from_value_and_flags(0, flags)?;
        let ready = Arc::new(Ready { numbers: Mutex::default(), event });
        Ok(State { ready, flying: Mutex::default(), next: AtomicU64::new(0) })
    }

    /// Has a job's end signalled.
    fn launch(&self, mut job: Job, token: Option<Py<PyAny>>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let countdown = Countdown::new(number, &self.ready);
        let waker = Waker::from(Arc::clone(&countdown));
        // An answer may come while this looks for it. All that are flying afterwards have the waker, so their
        // answers are counted, and only theirs are.
        let mut flying = lock(&self.flying);
        let left = job.poll(&waker);
        flying.insert(number, Flying { job, countdown: Arc::clone(&countdown), token });
        drop(flying);
        countdown.expect(0, left);
        number
    }

    /// Takes the jobs that have ended.
    fn land(&self) -> Vec<(u64, Flying)> {
        let mut landed = Vec::new();
        for number in self.ready.take() {
            // A job may be named twice.
            let Some(mut flying) = lock(&self.flying).remove(&number) else { continue };
            let come = flying.countdown.come.load(Ordering::SeqCst);
            if flying.job.poll(&Waker::from(Arc::clone(&flying.countdown))) == 0 {
                landed.push((number, flying));
                continue;
            }
            // A waker was called early. From here on each call makes the job ready.
            let countdown = Arc::clone(&flying.countdown);
            lock(&self.flying).insert(number, flying);
            countdown.expect(come, 1);
        }
        landed
    }

    fn take_all(&self) -> Vec<Flying> {
        lock(&self.flying).drain().map(|(_, flying)| flying).collect()
    }
}

/// Requests whose answers are collected later, returned by ``Store.queue``.
///
/// Each ``submit_…`` returns a number at once. When requests have ended, the eventfd is readable and ``drain`` returns
/// their numbers with their results.
///
/// Buffers have to stay as they are until then. Python keeps them alive meanwhile.
#[pyclass(frozen, module = "adit")]
pub(crate) struct Queue {
    store: Arc<Inside>,
    state: Ours<State>,
}

impl Queue {
    /// Makes a queue.
    ///
    /// # Errors
    /// `OSError` if there is no eventfd left.
    pub(crate) fn new(store: &Arc<Inside>) -> PyResult<Queue> {
        let state = State::new().map_err(std::io::Error::from)?;
        Ok(Queue { store: Arc::clone(store), state: Ours::new(state) })
    }

    fn state(&self, py: Python<'_>) -> PyResult<&State> {
        self.state.get().ok_or_else(|| errors::forked(py))
    }

    fn submit(
        &self,
        py: Python<'_>,
        token: Option<Py<PyAny>>,
        start: impl FnOnce(&Session) -> Job + Send,
    ) -> PyResult<u64> {
        let (state, session) = (self.state(py)?, self.store.session(py)?);
        Ok(py.detach(|| state.launch(start(&session), token)))
    }
}

#[pymethods]
impl Queue {
    /// Return the eventfd, which is readable while ``drain`` has something to return.
    ///
    /// It belongs to the queue: do not close it. Reading it is allowed and not needed.
    fn event_fd(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.state(py)?.ready.event.as_fd().as_raw_fd())
    }

    /// Return the number of jobs that ``drain`` has not returned.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let state = self.state(py)?;
        Ok(py.detach(|| lock(&state.flying).len()))
    }

    /// Store several objects; see ``Store.put_many``.
    ///
    /// Parameters
    /// ----------
    /// keys : iterable of bytes or str
    /// values : iterable of buffers
    ///     Copied before this returns, unless they lie in registered memory.
    /// token : object, optional
    ///     What ``drain`` returns instead of the number.
    ///
    /// Returns
    /// -------
    /// int
    ///     The job's number. Its results are those of ``Store.put_many``.
    #[pyo3(signature = (keys, values, *, token=None, ttl=None, tenant=None, after=None, layout=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments")]
    fn submit_put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
        ttl: Option<f64>,
        tenant: Option<&str>,
        after: Option<&Bound<'_, PyAny>>,
        layout: Option<&crate::blocks::Layout>,
    ) -> PyResult<u64> {
        let with = PutArguments { ttl, tenant, after, layout }.resolve(py, &self.store)?;
        let items = arguments::pairs(keys, values, View::readable)?;
        self.submit(py, token, move |session| session.put(items, &with, with.layout.as_ref()))
    }

    /// Read several objects; see ``Store.get_many``.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_get(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let keys = arguments::keys(keys)?;
        self.submit(py, token, move |session| session.get(keys))
    }

    /// Read several objects into buffers; see ``Store.get_many_into``.
    ///
    /// Buffers outside registered memory are filled by ``drain``.
    #[pyo3(signature = (keys, buffers, *, token=None))]
    fn submit_get_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let items = arguments::pairs(keys, buffers, View::writable)?;
        self.submit(py, token, move |session| session.get_into(items))
    }

    /// Ask which objects exist; see ``Store.exists_many``.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_exists(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let keys = arguments::keys(keys)?;
        self.submit(py, token, move |session| session.exists(keys))
    }

    /// Ask how many objects exist before the first miss; see ``Store.lookup_prefix``. The results are that number.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_lookup_prefix(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let keys = arguments::keys(keys)?;
        self.submit(py, token, move |session| session.lookup_prefix(&keys))
    }

    /// Remove several objects; see ``Store.delete_many``.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_delete(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let keys = arguments::keys(keys)?;
        self.submit(py, token, move |session| session.delete(keys))
    }

    /// Make everything acknowledged survive a power cut; see ``Store.commit``.
    #[pyo3(signature = (*, token=None))]
    fn submit_commit(&self, py: Python<'_>, token: Option<Py<PyAny>>) -> PyResult<u64> {
        self.submit(py, token, Session::commit)
    }

    /// Return what has ended, without waiting.
    ///
    /// Returns
    /// -------
    /// list of tuple
    ///     For each job its number or token, its results in the order of its keys, and the first failure or ``None``.
    ///     The result of a request that failed is ``None``.
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let state = self.state(py)?;
        let landed = py.detach(|| state.land());
        let ended = PyList::empty(py);
        for (number, flying) in landed {
            let name = match flying.token {
                Some(token) => token.into_bound(py),
                None => number.into_pyobject(py)?.into_any(),
            };
            let (results, failure) = flying.job.results(py)?;
            ended.append((name, results, failure.map(|why| why.into_value(py))))?;
        }
        Ok(ended)
    }

    /// Wait for all jobs, and forget those that were not drained.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state(py)?;
        let ended = py.detach(|| {
            let mut flying = state.take_all();
            flying.iter_mut().for_each(|flying| flying.job.wait());
            flying
        });
        // Here their buffers are released, attached.
        drop(ended);
        Ok(())
    }

    fn __enter__(slf: Py<Queue>) -> Py<Queue> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

impl Drop for Queue {
    /// Devices may still write to buffers of jobs in flight: they end first.
    fn drop(&mut self) {
        let _ = Python::try_attach(|py| self.close(py));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
