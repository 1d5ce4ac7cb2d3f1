//! Starts the copy threads of a run, sends them jobs, receives their reports, and joins them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::copy::gpu::Gpu;
use crate::copy::{Counts, Done, Job, Report, Task, Worker};
use crate::error::{Error, Result};
use crate::shape::{Component, TensorId};

/// Maximum jobs of a thread, including the one being carried out.
const JOBS_MAX: usize = 4;

/// Returns which of `count` threads has a tensor: always the same one, and different ones for a layer's keys and
/// values.
pub(crate) fn thread_of(tensor: TensorId, count: usize) -> usize {
    let component = u64::from(tensor.component == Component::V);
    ((2 * u64::from(tensor.layer) + component) % count as u64) as usize
}

/// The copy threads of one owner.
#[derive(Debug)]
pub(crate) struct Threads {
    jobs: Vec<Sender<Job>>,
    reports: Receiver<Report>,
    handles: Vec<JoinHandle<()>>,
    /// The thread of each open job.
    open: HashMap<u64, usize>,
    counts: Arc<Counts>,
    waiting: Vec<usize>,
    next_ticket: u64,
    timeout: Duration,
    /// Whether a thread is late or has ended, so that its jobs may never end.
    is_broken: bool,
}

impl Threads {
    /// Starts `count` threads. Each makes its own worker, by its number, because queues belong to the thread that
    /// drives them; the workers share `counts`.
    ///
    /// # Errors
    /// The first failure to make a worker or a thread; all threads have then ended.
    pub(crate) fn start<G: Gpu>(
        count: u16,
        timeout: Duration,
        counts: Arc<Counts>,
        make: impl Fn(usize) -> Result<Worker<G>> + Clone + Send + 'static,
    ) -> Result<Threads> {
        let (sender, reports) = channel();
        let mut threads = Threads {
            jobs: Vec::new(),
            reports,
            handles: Vec::new(),
            open: HashMap::new(),
            counts,
            waiting: vec![0; usize::from(count)],
            next_ticket: 0,
            timeout,
            is_broken: false,
        };
        threads.spawn(count, sender, make)?;
        for _ in 0..count {
            match threads.hear(timeout, "a copy thread to start")? {
                Report::Started => {}
                Report::NotStarted(error) => return Err(error),
                Report::Done(_) | Report::Panicked => return Err(panicked()),
            }
        }
        Ok(threads)
    }

    /// Starts the threads, which then hold the only senders of reports.
    fn spawn<G: Gpu>(
        &mut self,
        count: u16,
        reports: Sender<Report>,
        make: impl Fn(usize) -> Result<Worker<G>> + Clone + Send + 'static,
    ) -> Result<()> {
        for index in 0..usize::from(count) {
            let (sender, receiver) = channel();
            let (make, reports) = (make.clone(), reports.clone());
            let body = move || {
                let _alarm = Alarm(&reports);
                let made = make(index);
                // Drop `make` here: it holds devices, whose closing needs a time limit too.
                drop(make);
                match made {
                    Err(error) => drop(reports.send(Report::NotStarted(error))),
                    Ok(worker) => {
                        if reports.send(Report::Started).is_ok() {
                            worker.run(&receiver, &reports);
                        }
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("adit-copy-{index}"));
            let handle = thread.spawn(body).map_err(|why| {
                Error::failed("a copy thread", "start it", why, "raise the limit on threads")
            })?;
            self.jobs.push(sender);
            self.handles.push(handle);
        }
        Ok(())
    }

    /// Returns the number of threads.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether a thread is late or has ended.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns whether a thread has room for another job.
    pub(crate) fn takes(&self, thread: usize) -> bool {
        self.waiting[thread] < JOBS_MAX
    }

    /// Returns the number of open jobs.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Returns the bytes that idle threads read through the page cache.
    pub(crate) fn filled_bytes(&self) -> u64 {
        self.counts.filled_bytes.load(Ordering::Relaxed)
    }

    /// Sends a job to a thread and returns its ticket.
    ///
    /// # Errors
    /// [`Error::Failed`] if the thread has ended.
    pub(crate) fn send_to(&mut self, thread: usize, task: Task) -> Result<u64> {
        assert!(self.takes(thread), "the thread takes a job");
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.counts.unended.fetch_add(1, Ordering::Relaxed);
        if self.jobs[thread].send(Job { ticket, task }).is_err() {
            self.is_broken = true;
            return Err(panicked());
        }
        self.waiting[thread] += 1;
        self.open.insert(ticket, thread);
        Ok(ticket)
    }

    /// Waits for the next job to end.
    ///
    /// # Errors
    /// [`Error::Timeout`], and [`Error::Failed`] if a thread panicked. Do not wait again afterwards.
    pub(crate) fn receive(&mut self) -> Result<Done> {
        assert!(!self.open.is_empty(), "something is to be done");
        match self.hear(self.job_timeout(), "a copy thread")? {
            Report::Done(done) => {
                let thread = self.open.remove(&done.ticket).expect("each job is done once");
                self.waiting[thread] -= 1;
                Ok(done)
            }
            Report::Started | Report::NotStarted(_) | Report::Panicked => {
                self.is_broken = true;
                Err(panicked())
            }
        }
    }

    /// Returns the threads' shared counters.
    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Returns the time limit of a job, which may itself wait for writes behind, for its commands, and for its turn.
    fn job_timeout(&self) -> Duration {
        self.timeout.saturating_mul(4)
    }

    /// Waits for the next report.
    fn hear(&mut self, limit: Duration, waited_for: &'static str) -> Result<Report> {
        let heard = match self.is_broken {
            true => Err(RecvTimeoutError::Disconnected),
            false => self.reports.recv_timeout(limit),
        };
        heard.map_err(|why| {
            self.is_broken = true;
            match why {
                RecvTimeoutError::Disconnected => panicked(),
                RecvTimeoutError::Timeout => {
                    let fix = "check the drive (dmesg), then restart the run";
                    Error::Timeout { waited_for, after: limit, fix }
                }
            }
        })
    }

    /// Ends all threads once their present jobs are done. Detaches a thread that does not end in time, with its memory
    /// and queues.
    pub(crate) fn stop(&mut self) {
        self.jobs.clear();
        let deadline = Instant::now() + self.job_timeout();
        while !self.handles.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.reports.recv_timeout(left) {
                Ok(_) => {}
                // The last thread has ended, or is about to.
                Err(RecvTimeoutError::Disconnected) => self.join(),
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!("a copy thread does not end: check the drive (dmesg)");
                    self.handles.clear();
                }
            }
        }
    }

    fn join(&mut self) {
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a copy thread panicked");
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reports a panic of its thread when dropped.
struct Alarm<'a>(&'a Sender<Report>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // If the owner is gone, the report has no receiver.
            let _ = self.0.send(Report::Panicked);
        }
    }
}

fn panicked() -> Error {
    let why = "it panicked, or ended before its time";
    Error::failed("a copy thread", "move a tensor", why, "restart the run")
}
