//! A queue of requests whose ends an eventfd signals: no call waits, and one thread or event loop can serve any number.
//!
//! Answers to a store's jobs are counted, and taken when the job is drained. Answers to a large read are taken in
//! steps, so that the first are verified while devices read the rest. A connection's [`Reaper`] settles its jobs.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use adit_kvstore::Key;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arguments;
use crate::forked::Ours;
use crate::job::{Job, RESULT};
use crate::link::Link;
use crate::lock::lock;
use crate::numbers;
use crate::options;
use crate::ready::Ready;
use crate::reaper::{Landing, Reaper};
use crate::scope::Scope;
use crate::session::Call;
use crate::source::{PutArguments, Source};
use crate::view::View;
use crate::waiting::{self, TURN};

/// Counts the answers of a job, and makes it ready at the last one.
struct Countdown {
    number: u64,
    ready: Arc<Ready>,
    come: AtomicUsize,
    /// Number of answers at which the job is ready.
    wanted: AtomicUsize,
    /// Number of answers taken together before all have arrived.
    step: usize,
}

impl Countdown {
    fn new(number: u64, ready: &Arc<Ready>, step: usize) -> Arc<Countdown> {
        let (come, wanted) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        Arc::new(Countdown { number, ready: Arc::clone(ready), come, wanted, step })
    }

    /// Makes the job ready one step after the first `come` answers, where `left` more will arrive; at once if those
    /// have arrived.
    fn expect(&self, come: usize, left: usize) {
        let wanted = come + left.min(self.step);
        self.wanted.store(wanted, Ordering::SeqCst);
        if self.come.load(Ordering::SeqCst) >= wanted {
            self.ready.push(self.number);
        }
    }
}

impl Wake for Countdown {
    fn wake(self: Arc<Self>) {
        let come = self.come.fetch_add(1, Ordering::SeqCst) + 1;
        // Equality makes the job ready once: later answers are not wanted yet.
        if come == self.wanted.load(Ordering::SeqCst) {
            self.ready.push(self.number);
        }
    }
}

/// A job in flight.
enum Held {
    Counted(Job, Arc<Countdown>),
    Watched(Arc<Landing>),
}

struct Flying {
    held: Held,
    token: Option<Py<PyAny>>,
}

impl Held {
    /// Blocks until the job has ended, and returns it.
    fn wait(self) -> Option<Job> {
        let mut job = match self {
            Held::Counted(job, _) => Some(job),
            Held::Watched(landing) => landing.take(),
        };
        job.iter_mut().for_each(|job| while !job.wait_for(TURN) {});
        job
    }
}

/// An ended job, whose results may be partly complete.
struct Landed {
    number: u64,
    job: Job,
    token: Option<Py<PyAny>>,
}

impl Landed {
    /// Appends the job's entry of `drain`'s result. A lack of memory for its values is this job's failure only.
    fn append_to(self, ended: &Bound<'_, PyList>, filled: PyResult<()>) -> PyResult<()> {
        let (py, requests) = (ended.py(), self.job.len());
        let name = match self.token {
            Some(token) => token.into_bound(py),
            None => self.number.into_pyobject(py)?.into_any(),
        };
        let (results, failure) = match filled.and_then(|()| self.job.results(py)) {
            Ok(results) => results,
            Err(why) => (PyList::new(py, vec![None::<bool>; requests])?, Some(why)),
        };
        ended.append((name, results, failure.map(|why| why.into_value(py))))
    }
}

/// A queue's jobs. A forked child must not touch them.
struct Jobs {
    ready: Arc<Ready>,
    flying: Mutex<HashMap<u64, Flying>>,
    /// Ended jobs whose results were not returned yet.
    landed: Mutex<VecDeque<Landed>>,
    next: AtomicU64,
    /// The thread that takes answers, if the queue is a connection's.
    reaper: Option<Arc<Reaper>>,
}

impl Jobs {
    fn new(reaper: Option<Arc<Reaper>>) -> nix::Result<Jobs> {
        let ready = Arc::new(Ready::new()?);
        let (flying, landed) = Default::default();
        Ok(Jobs { ready, flying, landed, next: AtomicU64::new(0), reaper })
    }

    /// Arranges that the end of a job is signalled.
    fn launch(&self, link: Option<&Link>, job: Job, token: Option<Py<PyAny>>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        match link {
            Some(link) => self.watch(number, link, job, token),
            None => self.count(number, job, token),
        }
        number
    }

    /// Arranges that the end of a store's job is signalled.
    fn count(&self, number: u64, mut job: Job, token: Option<Py<PyAny>>) {
        let countdown = Countdown::new(number, &self.ready, job.step());
        let waker = Waker::from(Arc::clone(&countdown));
        // An answer may arrive during this poll. All requests still in flight afterwards have the waker, so exactly
        // their answers are counted.
        let mut flying = lock(&self.flying);
        let left = job.poll(&waker);
        let held = Held::Counted(job, Arc::clone(&countdown));
        flying.insert(number, Flying { held, token });
        drop(flying);
        countdown.expect(0, left);
    }

    /// Arranges that the end of a connection's job is signalled.
    fn watch(&self, number: u64, link: &Link, job: Job, token: Option<Py<PyAny>>) {
        let reaper = self.reaper.as_ref().expect("a connection's queue has one");
        reaper.launch((link.era, &link.session.store), (number, &self.ready), job, |landing| {
            let held = Held::Watched(Arc::clone(landing));
            lock(&self.flying).insert(number, Flying { held, token });
        });
    }

    /// Checks at most `most` named jobs, and collects the ended ones.
    fn land(&self, most: usize) {
        for number in self.ready.take(most) {
            // A job may be named twice; the second time it is gone.
            let Some(Flying { held, token }) = lock(&self.flying).remove(&number) else { continue };
            let job = match held {
                Held::Watched(landing) => {
                    landing.take().expect("a job is taken with its place in the queue")
                }
                Held::Counted(mut job, countdown) => {
                    let come = countdown.come.load(Ordering::SeqCst);
                    let left = job.poll(&Waker::from(Arc::clone(&countdown)));
                    if left > 0 {
                        let held = Held::Counted(job, Arc::clone(&countdown));
                        lock(&self.flying).insert(number, Flying { held, token });
                        countdown.expect(come, left);
                        continue;
                    }
                    job
                }
            };
            lock(&self.landed).push_back(Landed { number, job, token });
        }
    }

    /// Returns the number of jobs not yet returned.
    fn len(&self) -> usize {
        lock(&self.flying).len() + lock(&self.landed).len()
    }

    /// Takes all jobs, for [`Held::wait`].
    fn take_all(&self) -> Vec<Flying> {
        let flying = lock(&self.flying).drain().map(|(_, flying)| flying).collect();
        if let Some(reaper) = &self.reaper {
            reaper.rouse();
        }
        flying
    }
}

/// A queue of requests whose answers are collected later, returned by ``Store.queue`` and ``Client.queue``.
///
/// Each ``submit_…`` returns a number at once. When requests have ended, the eventfd is readable and ``drain`` returns
/// their numbers and results.
///
/// Buffers must not change until then; the queue keeps them alive. Jobs of a connection end within its timeout, and
/// with ``LostError`` if its server is lost; the queue and its eventfd remain, and work once the server is back.
#[pyclass(frozen, module = "adit", extends = Scope)]
pub(crate) struct Queue {
    source: Source,
    state: Ours<Jobs>,
}

impl Queue {
    /// Creates a queue.
    ///
    /// # Errors
    /// `ClosedError` or `ForkedError` of its source; the error of a connection that cannot make its pool; `OSError` if
    /// the system has no eventfd or thread left.
    pub(crate) fn new(py: Python<'_>, source: Source) -> PyResult<Py<Queue>> {
        let reaper = match &source {
            Source::Store(store) => store.session(py).map(|_| None)?,
            Source::Client(connection) => {
                let link = connection.link(py)?;
                let client = link.session.store.clone();
                waiting::tried(py, move || client.make_pool())?;
                Some(link.reaper()?)
            }
        };
        let state = Jobs::new(reaper).map_err(std::io::Error::from)?;
        Scope::of(py, Queue { source, state: Ours::new(state) }, "close")
    }

    fn submit(&self, py: Python<'_>, token: Option<Py<PyAny>>, call: Call) -> PyResult<u64> {
        let state = self.state.here(py)?;
        self.source.begin(py, call, |link, job| state.launch(link, job, token))
    }

    fn submit_keys(
        &self,
        keys: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
        call: fn(Vec<Key>) -> Call,
    ) -> PyResult<u64> {
        self.submit(keys.py(), token, call(arguments::keys(keys)?))
    }
}

#[pymethods]
impl Queue {
    /// Return the eventfd, which is readable while ``drain`` has something to return.
    ///
    /// It belongs to the queue: do not close it. Reading it is allowed but unnecessary.
    fn event_fd(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.state.here(py)?.ready.event_fd())
    }

    /// Return the number of jobs that ``drain`` has not returned.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let state = self.state.here(py)?;
        Ok(py.detach(|| state.len()))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let of = match &self.source {
            Source::Store(_) => "a store",
            Source::Client(_) => "a connection",
        };
        let jobs = self.state.get().map_or(0, |state| py.detach(|| state.len()));
        format!("Queue(of {of}, {jobs} jobs)")
    }

    /// Store several objects; see ``Store.put_many``.
    ///
    /// Parameters
    /// ----------
    /// keys : iterable of bytes or str
    /// values : iterable of buffers
    ///     Copied before this returns, unless they lie in registered memory or memory of ``Client.allocate``.
    /// token : object, optional
    ///     An object that ``drain`` returns instead of the number.
    /// ttl, tenant, after, layout : optional
    ///     As for ``Store.put_many``. A connection's objects belong to its own tenant, and it has no ``after``.
    /// if_absent, if_version : optional
    ///     As for ``Store.put``, for each object.
    ///
    /// Returns
    /// -------
    /// int
    ///     The job's number. Its results are those of ``Store.put_many``.
    #[pyo3(signature = (
        keys, values, *, token=None, ttl=None, tenant=None, after=None, layout=None, if_absent=false, if_version=None
    ))]
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
        if_absent: bool,
        #[pyo3(from_py_with = numbers::if_version)] if_version: Option<u64>,
    ) -> PyResult<u64> {
        let with = PutArguments { ttl, tenant, after, layout, if_absent, if_version };
        let items = arguments::pairs(keys, values, View::readable)?;
        self.submit(py, token, Call::Put(items, self.source.put_with(py, with)?))
    }

    /// Read several objects; see ``Store.get_many``.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_get(&self, keys: &Bound<'_, PyAny>, token: Option<Py<PyAny>>) -> PyResult<u64> {
        self.submit_keys(keys, token, Call::Get)
    }

    /// Read several objects into buffers; see ``Store.get_many_into``.
    ///
    /// ``drain`` fills buffers outside registered memory; a connection's are filled as soon as the answer arrives.
    #[pyo3(signature = (keys, buffers, *, token=None))]
    fn submit_get_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let items = arguments::pairs(keys, buffers, View::writable)?;
        self.submit(py, token, Call::GetInto(items))
    }

    /// Check which objects exist; see ``Store.exists_many``.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_exists(&self, keys: &Bound<'_, PyAny>, token: Option<Py<PyAny>>) -> PyResult<u64> {
        self.submit_keys(keys, token, Call::Exists)
    }

    /// Check which objects exist, and count a use of each; see ``Store.refresh_many``.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_refresh(&self, keys: &Bound<'_, PyAny>, token: Option<Py<PyAny>>) -> PyResult<u64> {
        self.submit_keys(keys, token, Call::Refresh)
    }

    /// Query removed objects; see ``Store.removals``, whose return value is the one result.
    #[pyo3(signature = (cursor=None, *, prefix=None, token=None))]
    fn submit_removals(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::last_cursor)] cursor: Option<u64>,
        prefix: Option<&Bound<'_, PyAny>>,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let prefix = prefix.map(arguments::prefix).transpose()?.unwrap_or_default();
        self.submit(py, token, Call::Removals(prefix, cursor))
    }

    /// Count the objects before the first miss; see ``Store.lookup_prefix``. The count is the one result.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_lookup_prefix(
        &self,
        keys: &Bound<'_, PyAny>,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        self.submit_keys(keys, token, Call::LookupPrefix)
    }

    /// Remove several objects; see ``Store.delete_many``.
    #[pyo3(signature = (keys, *, token=None))]
    fn submit_delete(&self, keys: &Bound<'_, PyAny>, token: Option<Py<PyAny>>) -> PyResult<u64> {
        self.submit_keys(keys, token, Call::Delete)
    }

    /// Let several objects expire after ``ttl`` seconds; see ``Store.touch_many``.
    #[pyo3(signature = (keys, ttl, *, token=None))]
    fn submit_touch(
        &self,
        keys: &Bound<'_, PyAny>,
        ttl: f64,
        token: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let (py, keys) = (keys.py(), arguments::keys(keys)?);
        let ttl = options::seconds(py, "ttl", ttl)?;
        self.submit(py, token, Call::Touch(keys, ttl))
    }

    /// Make everything acknowledged survive a power cut; see ``Store.commit``.
    #[pyo3(signature = (*, token=None))]
    fn submit_commit(&self, py: Python<'_>, token: Option<Py<PyAny>>) -> PyResult<u64> {
        self.submit(py, token, Call::Commit)
    }

    /// Return ended jobs without waiting. The list may be empty although the eventfd was readable, because a call also
    /// verifies the first answers of a large read while devices read the rest.
    ///
    /// Parameters
    /// ----------
    /// nbytes : int, optional
    ///     Approximate bytes of values to copy in this call, for an event loop with other work. The rest is left to the
    ///     next calls: the eventfd stays readable. By default all.
    ///
    /// Returns
    /// -------
    /// list of tuple
    ///     For each job its number or token, its results in the order of its keys, and the first failure or ``None``.
    ///     The result of a failed request is ``None``.
    #[pyo3(signature = (nbytes=None))]
    fn drain<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::most_nbytes)] nbytes: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        if nbytes == Some(0) {
            return Err(options::invalid(py, "nbytes", 0, "give 1 or more"));
        }
        let (state, mut left) = (self.state.here(py)?, nbytes.unwrap_or(usize::MAX));
        py.detach(|| state.land(left.div_ceil(RESULT)));
        let ended = PyList::empty(py);
        let mut appended = Ok(());
        while left > 0 && appended.is_ok() {
            let Some(mut landed) = lock(&state.landed).pop_front() else { break };
            let filled = landed.job.fill(py, &mut left);
            if matches!(filled, Ok(false)) {
                lock(&state.landed).push_front(landed);
                break;
            }
            left = left.saturating_sub(RESULT);
            appended = landed.append_to(&ended, filled.map(drop));
        }
        if !lock(&state.landed).is_empty() {
            state.ready.raise();
        }
        appended.map(|()| ended)
    }

    /// Wait for all jobs, and drop undrained ones.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state.here(py)?;
        let flying = py.detach(|| state.take_all());
        // Release buffers here, attached and without the lock, because a token's destructor may call this queue.
        let landed = mem::take(&mut *lock(&state.landed));
        drop(landed);
        if flying.is_empty() {
            return Ok(());
        }
        let wait = |Flying { held, token }| (held.wait(), token);
        waiting::apart(py, move || flying.into_iter().map(wait).collect::<Vec<_>>()).map(drop)
    }
}

impl Drop for Queue {
    /// Waits for jobs in flight, because devices may still write to their buffers.
    fn drop(&mut self) {
        let _ = Python::try_attach(|py| {
            if let Err(why) = self.close(py) {
                why.write_unraisable(py, None);
            }
        });
    }
}
