//! The copy threads of a run: started, given jobs, heard, and joined.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::tensors::copy::gpu::Gpu;
use crate::tensors::copy::{Done, Job, Work, Worker};
use crate::tensors::shape::{Component, TensorId};

/// Jobs that wait for a thread at most, the one that it carries out included.
const JOBS_MAX: usize = 4;

/// The copy threads, for one owner.
#[derive(Debug)]
pub(in crate::tensors) struct Threads {
    jobs: Vec<Sender<Job>>,
    done: Receiver<Done>,
    handles: Vec<JoinHandle<()>>,
    /// The thread of each job that is not done.
    open: HashMap<u64, usize>,
    /// The jobs that no thread has ended, for the threads to see.
    unended: Arc<AtomicUsize>,
    waiting: Vec<usize>,
    next_ticket: u64,
    timeout: Duration,
}

impl Threads {
    /// Starts `count` threads, whose workers count `unended` jobs down, each of which makes its worker itself: queues belong to the thread that drives them.
    ///
    /// # Errors
    /// The first failure to make a worker or a thread.
    pub(in crate::tensors) fn start<G: Gpu>(
        count: u16,
        timeout: Duration,
        unended: Arc<AtomicUsize>,
        make: impl Fn() -> Result<Worker<G>> + Clone + Send + 'static,
    ) -> Result<Threads> {
        let (done_sender, done) = channel();
        let (ready_sender, ready) = channel();
        let waiting = vec![0; usize::from(count)];
        let (jobs, handles, open) = (Vec::new(), Vec::new(), HashMap::new());
        let mut threads =
            Threads { jobs, done, handles, open, unended, waiting, next_ticket: 0, timeout };
        for index in 0..count {
            let (sender, receiver) = channel();
            let (make, ready, done) = (make.clone(), ready_sender.clone(), done_sender.clone());
            let body = move || {
                let made = make();
                // It holds devices, which the worker may close before it ends.
                drop(make);
                match made {
                    Err(error) => drop(ready.send(Err(error))),
                    Ok(worker) => {
                        if ready.send(Ok(())).is_ok() {
                            worker.run(&receiver, &done);
                        }
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("adit-copy-{index}"));
            let handle = thread.spawn(body).map_err(|why| {
                Error::tensors("a copy thread", "start it", why, "raise the limit on threads")
            })?;
            threads.jobs.push(sender);
            threads.handles.push(handle);
        }
        for _ in 0..count {
            ready.recv_timeout(timeout).map_err(|_| threads.late("a copy thread to start"))??;
        }
        Ok(threads)
    }

    fn late(&self, waited_for: &'static str) -> Error {
        let fix = "check the drive (dmesg), then begin the run anew";
        Error::Timeout { waited_for, after: self.timeout, fix }
    }

    /// Returns the thread of a tensor: always the same, and another for keys than for values.
    fn thread_of(&self, tensor: TensorId) -> usize {
        let component = u64::from(tensor.component == Component::V);
        ((2 * u64::from(tensor.layer) + component) % self.jobs.len() as u64) as usize
    }

    /// Returns whether the thread of a tensor takes another job now.
    pub(in crate::tensors) fn takes(&self, tensor: TensorId) -> bool {
        self.waiting[self.thread_of(tensor)] < JOBS_MAX
    }

    /// Returns how many jobs are not done.
    pub(in crate::tensors) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Gives a job to the thread of its tensor; returns its ticket.
    ///
    /// # Errors
    /// [`Error::Tensors`] if the thread is gone.
    pub(in crate::tensors) fn send(
        &mut self,
        tensor: TensorId,
        number: u32,
        work: Work,
    ) -> Result<u64> {
        self.send_to(self.thread_of(tensor), tensor, number, work)
    }

    /// Returns how many threads there are.
    pub(in crate::tensors) fn count(&self) -> usize {
        self.jobs.len()
    }

    /// Gives a job to a thread, which need not be that of the tensor; returns its ticket.
    ///
    /// # Errors
    /// [`Error::Tensors`] if the thread is gone.
    pub(in crate::tensors) fn send_to(
        &mut self,
        thread: usize,
        tensor: TensorId,
        number: u32,
        work: Work,
    ) -> Result<u64> {
        let ticket = self.next_ticket;
        assert!(self.waiting[thread] < JOBS_MAX, "the thread takes a job");
        self.next_ticket += 1;
        let job = Job { ticket, tensor, number, work };
        self.unended.fetch_add(1, Ordering::Relaxed);
        self.jobs[thread].send(job).map_err(|_| ended())?;
        self.waiting[thread] += 1;
        self.open.insert(ticket, thread);
        Ok(ticket)
    }

    /// Waits for the next job to be done.
    ///
    /// # Errors
    /// [`Error::Timeout`], and [`Error::Tensors`] if a thread is gone.
    pub(in crate::tensors) fn receive(&mut self) -> Result<Done> {
        assert!(!self.open.is_empty(), "something is to be done");
        // A job takes several waits of its own: for writes behind, for its commands, and for its turn.
        let done =
            self.done.recv_timeout(self.timeout.saturating_mul(4)).map_err(|why| match why {
                RecvTimeoutError::Timeout => self.late("a copy thread"),
                RecvTimeoutError::Disconnected => ended(),
            })?;
        let thread = self.open.remove(&done.ticket).expect("each job is done once");
        self.waiting[thread] -= 1;
        Ok(done)
    }

    /// Ends all threads once their present jobs are done.
    pub(in crate::tensors) fn stop(&mut self) {
        self.jobs.clear();
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a copy thread panicked");
            }
        }
    }
}

fn ended() -> Error {
    Error::tensors("a copy thread", "give it work", "it has ended", "begin the run anew")
}
