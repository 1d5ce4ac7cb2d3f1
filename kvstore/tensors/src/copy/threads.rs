//! The copy threads of a run: started, given jobs, heard, and joined.

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

/// Jobs that wait for a thread at most, the one that it carries out included.
const JOBS_MAX: usize = 4;

/// Returns which of `count` threads has a tensor: always the same, and another for keys than for values.
pub(crate) fn thread_of(tensor: TensorId, count: usize) -> usize {
    let component = u64::from(tensor.component == Component::V);
    ((2 * u64::from(tensor.layer) + component) % count as u64) as usize
}

/// The copy threads, for one owner.
#[derive(Debug)]
pub(crate) struct Threads {
    jobs: Vec<Sender<Job>>,
    reports: Receiver<Report>,
    handles: Vec<JoinHandle<()>>,
    /// The thread of each job that is not done.
    open: HashMap<u64, usize>,
    counts: Arc<Counts>,
    waiting: Vec<usize>,
    next_ticket: u64,
    timeout: Duration,
    /// Whether a thread is late, or gone: its jobs may never end.
    is_broken: bool,
}

impl Threads {
    /// Starts `count` threads. Each makes its worker itself, by its number, as queues belong to the thread that drives them;
    /// the workers share `counts`.
    ///
    /// # Errors
    /// The first failure to make a worker or a thread. No thread is left then.
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

    /// Starts the threads, which alone have the sender of reports then.
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
                // It holds devices, whose closing is to have a time limit as well.
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

    /// Returns how many threads there are.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether a thread is late, or gone.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns whether a thread takes another job now.
    pub(crate) fn takes(&self, thread: usize) -> bool {
        self.waiting[thread] < JOBS_MAX
    }

    /// Returns how many jobs are not done.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Returns how many bytes idle threads read through the page cache.
    pub(crate) fn filled_bytes(&self) -> u64 {
        self.counts.filled_bytes.load(Ordering::Relaxed)
    }

    /// Gives a job to a thread; returns its ticket.
    ///
    /// # Errors
    /// [`Error::Failed`] if the thread is gone.
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

    /// Waits for the next job to be done.
    ///
    /// # Errors
    /// [`Error::Timeout`], and [`Error::Failed`] if a thread panicked. There is nothing to wait for from then on.
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

    /// Returns what the threads count together.
    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Returns the time limit of a job, which takes several waits of its own: for writes behind, for its commands, and
    /// for its turn.
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
                    let fix = "check the drive (dmesg), then begin the run anew";
                    Error::Timeout { waited_for, after: limit, fix }
                }
            }
        })
    }

    /// Ends all threads once their present jobs are done. A thread that does not end in time is left to itself, with its
    /// memory and queues.
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

/// Reports that its thread panics.
struct Alarm<'a>(&'a Sender<Report>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Without an owner there is nothing to report to.
            let _ = self.0.send(Report::Panicked);
        }
    }
}

fn panicked() -> Error {
    let why = "it panicked, or ended before its time";
    Error::failed("a copy thread", "move a tensor", why, "begin the run anew")
}
