//! Takes a connection's answers for its queues.
//!
//! A store answers on its own threads, while a server's answers stay in the connection's ring until they are taken out.
//! A thread takes them while jobs of queues are in flight. It settles each request as soon as it is answered: values
//! leave the connection's pool, so that others find memory in it. It makes a job ready with its last request, and ends
//! late jobs. It touches no Python object.
//!
//! When a server is lost, all its requests are answered at once, so the thread watches only the newest connection.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use adit_driver::runtime::caught;
use adit_kvshare::Client;

use crate::job::Job;
use crate::lock::lock;
use crate::ready::Ready;

/// A job of a queue with requests at a server.
pub(crate) struct Landing {
    number: u64,
    ready: Arc<Ready>,
    /// `None` once its queue has taken it.
    job: Mutex<Option<Job>>,
    /// Whether every request is settled or the job was taken.
    is_over: AtomicBool,
}

impl Landing {
    /// Takes the job, so that no other thread waits for its end.
    pub(crate) fn take(&self) -> Option<Job> {
        self.is_over.store(true, Ordering::Release);
        lock(&self.job).take()
    }

    /// Checks for the answer of one request.
    fn settle(self: &Arc<Landing>, position: usize, desk: &Arc<Desk>) {
        let mut job = lock(&self.job);
        let has_ended = job
            .as_mut()
            .is_some_and(|job| job.poll_one(position, &Nudge::waker(self, position, desk)));
        drop(job);
        if has_ended {
            self.end();
        }
    }

    fn give_up_if_late(&self) {
        let has_ended = lock(&self.job).as_mut().is_some_and(Job::give_up_if_late);
        if has_ended {
            self.end();
        }
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.ready.push(self.number);
    }
}

/// A waker that names its request as answered.
struct Nudge {
    landing: Weak<Landing>,
    position: usize,
    desk: Arc<Desk>,
}

impl Nudge {
    fn waker(landing: &Arc<Landing>, position: usize, desk: &Arc<Desk>) -> Waker {
        let (landing, desk) = (Arc::downgrade(landing), Arc::clone(desk));
        Waker::from(Arc::new(Nudge { landing, position, desk }))
    }
}

impl Wake for Nudge {
    /// Runs on the thread that took the answer.
    fn wake(self: Arc<Self>) {
        if let Some(landing) = self.landing.upgrade() {
            self.desk.tell(landing, self.position);
        }
    }
}

/// The thread's work.
#[derive(Default)]
struct News {
    /// The newest connection and its era, while jobs are in flight.
    client: Option<(u64, Client)>,
    answered: Vec<(Arc<Landing>, usize)>,
    /// Jobs in flight in the order of their deadlines, because all jobs of a connection have the same timeout.
    flying: VecDeque<(Instant, Weak<Landing>)>,
    /// Whether the thread sleeps until answers arrive.
    sleeps: bool,
    is_over: bool,
}

#[derive(Default)]
struct Desk {
    news: Mutex<News>,
    /// Signalled when jobs arrive, and at the end.
    work: Condvar,
}

impl Desk {
    fn tell(&self, landing: Arc<Landing>, position: usize) {
        let mut news = lock(&self.news);
        news.answered.push((landing, position));
        rouse(news);
    }

    /// Waits for jobs; returns the connection and the maximum sleep, or `None` at the end.
    fn next(&self) -> Option<(Client, Duration)> {
        let mut news = lock(&self.news);
        loop {
            let over = |(_, job): &(_, Weak<Landing>)| {
                job.upgrade().is_none_or(|job| job.is_over.load(Ordering::Acquire))
            };
            while news.flying.front().is_some_and(over) {
                news.flying.pop_front();
            }
            if let (Some((until, _)), false) = (news.flying.front(), news.is_over) {
                let left = until.saturating_duration_since(Instant::now());
                let (_, client) = news.client.as_ref().expect("jobs have a connection");
                return Some((client.clone(), left));
            }
            // Drop the client now, so that the connection ends when its owner closes it.
            let client = news.client.take();
            let is_over = news.is_over;
            drop(news);
            drop(client);
            if is_over {
                return None;
            }
            news = lock(&self.news);
            if news.flying.is_empty() && !news.is_over {
                news = self.work.wait(news).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Returns the answered requests, after a sleep if there are none.
    fn answered(&self, client: &Client, at_most: Duration) -> Vec<(Arc<Landing>, usize)> {
        let mut news = lock(&self.news);
        if news.answered.is_empty() && !news.is_over {
            news.sleeps = true;
            drop(news);
            client.watch(at_most);
            news = lock(&self.news);
            news.sleeps = false;
        }
        mem::take(&mut news.answered)
    }

    /// Ends late jobs.
    fn give_up_late(&self) {
        let now = Instant::now();
        let mut late = Vec::new();
        let mut news = lock(&self.news);
        while news.flying.front().is_some_and(|(until, _)| *until <= now) {
            late.extend(news.flying.pop_front().and_then(|(_, job)| job.upgrade()));
        }
        drop(news);
        late.iter().for_each(|job| job.give_up_if_late());
    }
}

/// Wakes the thread to check its work.
fn rouse(mut news: MutexGuard<'_, News>) {
    let client = if mem::take(&mut news.sleeps) { news.client.clone() } else { None };
    drop(news);
    if let Some((_, client)) = client {
        client.rouse();
    }
}

/// The thread, which ends when this is dropped.
pub(crate) struct Reaper {
    desk: Arc<Desk>,
}

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn start() -> io::Result<Reaper> {
        let desk = Arc::new(Desk::default());
        let its = Arc::clone(&desk);
        thread::Builder::new().name("adit-answers".to_owned()).spawn(move || serve(&its))?;
        Ok(Reaper { desk })
    }

    /// Arranges that the end of a job, whose requests were made over an era's client, is pushed to `ready`. First
    /// passes the job to `fly`.
    pub(crate) fn launch(
        &self,
        (era, client): (u64, &Client),
        (number, ready): (u64, &Arc<Ready>),
        job: Job,
        fly: impl FnOnce(&Arc<Landing>),
    ) {
        let until = job.deadline.expect("a connection's jobs have a deadline").until;
        let (requests, ready) = (job.len(), Arc::clone(ready));
        let (job, is_over) = (Mutex::new(Some(job)), AtomicBool::new(false));
        let landing = Arc::new(Landing { number, ready, job, is_over });
        fly(&landing);
        {
            let mut news = lock(&self.desk.news);
            if news.client.as_ref().is_none_or(|(newest, _)| *newest < era) {
                news.client = Some((era, client.clone()));
            }
            news.flying.push_back((until, Arc::downgrade(&landing)));
        }
        self.desk.work.notify_one();
        if requests == 0 {
            return landing.end();
        }
        // An answer that arrives meanwhile is settled either here or by the thread.
        (0..requests).for_each(|position| landing.settle(position, &self.desk));
    }

    /// Informs the thread that jobs were taken before their end.
    pub(crate) fn rouse(&self) {
        rouse(lock(&self.desk.news));
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let mut news = lock(&self.desk.news);
        news.is_over = true;
        self.desk.work.notify_one();
        rouse(news);
    }
}

fn serve(desk: &Arc<Desk>) {
    while let Some((client, at_most)) = desk.next() {
        // A job whose answer panics is ended when it is late, because no other thread waits for it.
        let _ = caught("it took answers, which is a bug", || {
            client.take_answers();
            for (landing, position) in desk.answered(&client, at_most) {
                landing.settle(position, desk);
            }
        });
        desk.give_up_late();
    }
}
