//! The queues of a job on several files or devices, as one: each request goes to the queue of its file.

use std::os::fd::AsFd;
use std::time::Duration;

use adit_driver::paths::{CommandQueue, Device, DeviceQueue, Request};
use adit_driver::{Completion, Rejected, Stats, Time};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::job::Owned;
use crate::failure::{Failure, Result};
use crate::outcome::merge_stats;

/// Whether a queue accepted a request.
type Posted = std::result::Result<(), Rejected<Owned>>;

/// A queue for each file of a job.
#[derive(Debug)]
pub(crate) struct FileQueues {
    files: Vec<FileQueue>,
    /// The kernel adds to it when an I/O finishes on a sleeping queue.
    event: EventFd,
}

#[derive(Debug)]
struct FileQueue {
    queue: DeviceQueue<Owned>,
    /// How far the device's clock is ahead of the first device's, in nanoseconds.
    ahead_ns: i64,
    in_flight: usize,
    /// Whether requests were posted since the last ring.
    is_fresh: bool,
    /// Whether completions signal the event.
    sleeps: bool,
}

impl FileQueue {
    /// Converts to the device's clock.
    fn at(&self, now: Time) -> Time {
        Time::from_ns(now.as_ns().saturating_add_signed(self.ahead_ns))
    }

    /// Counts a posted request if the queue accepted it.
    fn note(&mut self, is_taken: bool) {
        self.in_flight += usize::from(is_taken);
        self.is_fresh |= is_taken;
    }
}

impl FileQueues {
    /// Combines the queues by file, each with its device.
    ///
    /// # Errors
    /// When the kernel cannot provide the event.
    pub(crate) fn new(files: Vec<(&Device, DeviceQueue<Owned>)>) -> Result<FileQueues> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_flags(flags).map_err(Failure::failed)?;
        let first = files[0].0;
        let file = |(device, queue): (&Device, DeviceQueue<Owned>)| {
            let (theirs, ours) = (device.now().as_ns() as i64, first.now().as_ns() as i64);
            let sleeps = queue.notify(event.as_fd())?;
            Ok(FileQueue { queue, ahead_ns: theirs - ours, in_flight: 0, is_fresh: false, sleeps })
        };
        let files = files.into_iter().map(file).collect::<Result<Vec<_>>>()?;
        Ok(FileQueues { files, event })
    }

    fn of(&mut self, request: &Request<Owned>) -> &mut FileQueue {
        &mut self.files[request.buffer.1.file() as usize]
    }
}

impl CommandQueue<Owned> for FileQueues {
    fn post(&mut self, now: Time, request: Request<Owned>) -> Posted {
        let file = self.of(&request);
        let posted = file.queue.post(file.at(now), request);
        file.note(posted.is_ok());
        posted
    }

    fn post_again(&mut self, now: Time, request: Request<Owned>) -> Posted {
        let file = self.of(&request);
        let posted = file.queue.post_again(file.at(now), request);
        file.note(posted.is_ok());
        posted
    }

    fn ring(&mut self) {
        for file in self.files.iter_mut().filter(|file| file.is_fresh) {
            file.queue.ring();
            file.is_fresh = false;
        }
    }

    fn poll(&mut self, now: Time, mut done: impl FnMut(Completion<Owned>)) -> usize {
        let mut count = 0;
        for file in self.files.iter_mut().filter(|file| file.in_flight > 0) {
            let found = file.queue.poll(file.at(now), &mut done);
            file.in_flight -= found;
            count += found;
        }
        count
    }

    /// Sleeps, for whole milliseconds, if all queues with I/O in flight signal the event. Signals of
    /// completions that were already reaped end one sleep early.
    fn wait(&mut self, at_most: Duration) -> bool {
        let mut busy = self.files.iter().filter(|file| file.in_flight > 0).peekable();
        let patience = PollTimeout::try_from(at_most.as_millis()).unwrap_or(PollTimeout::ZERO);
        let sleeps = busy.peek().is_some() && busy.all(|file| file.sleeps);
        if !sleeps || patience == PollTimeout::ZERO {
            return false;
        }
        let mut waited = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        let is_over = poll(&mut waited, patience).is_ok();
        // The event may already be clear.
        let _ = self.event.read();
        is_over
    }

    fn check(&self) -> adit_driver::Result<()> {
        self.files.iter().try_for_each(|file| file.queue.check())
    }

    fn stats(&self) -> Stats {
        let mut all = Stats::default();
        self.files.iter().for_each(|file| merge_stats(&mut all, &file.queue.stats()));
        all
    }
}
