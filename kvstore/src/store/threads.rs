//! The store's threads: started when it opens, ended when it closes.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use adit_driver::Buffer;
use adit_driver::bus::Locality;
use adit_driver::runtime::pin;

use super::core::Core;
use super::devices::Devices;
use super::mailbox::Mailbox;
use super::open::{Found, OpenOptions};
use super::pool::{self, Pools};
use super::request::{Job, ThreadShard};
use super::thread::Worker;
use crate::error::{Error, Result};
use crate::shard::{Failure, Recovery, Stats};

/// The threads of a store. Dropping this closes the store.
pub(super) struct Threads {
    core: Arc<Core>,
    handles: Mutex<Vec<Handle>>,
    recoveries: Vec<Recovery>,
}

/// Opens the store and starts a thread per core, or per shard if there are fewer. Each thread opens its own shards.
/// The first thread begins, because shard 0 must be opened first.
pub(super) fn start(options: &OpenOptions) -> Result<(Arc<Core>, Arc<Threads>)> {
    let found = Found::look(options)?;
    let shards = found.set.shards();
    let mut cores = cores(options, &found.devices)?;
    cores.truncate(usize::from(shards));
    let regions = pool::regions(found.devices.as_slice(), options.pool_bytes)?;
    let mut opening = Opening::new(found, regions, options, cores.len());
    let recoveries = opening.run(&cores, shards);
    let (core, handles, recoveries) = opening.finish(recoveries)?;
    let threads = Threads { core: Arc::clone(&core), handles: Mutex::new(handles), recoveries };
    Ok((core, Arc::new(threads)))
}

/// Chooses the cores, near the first device with a controller.
fn cores(options: &OpenOptions, devices: &Devices) -> Result<Vec<usize>> {
    let controllers = devices.as_slice().iter().filter_map(|device| device.controller());
    let near = controllers.map(|controller| controller.locality()).next();
    Ok(options.cores.choose(&near.unwrap_or_else(Locality::default))?)
}

/// A thread's report about one shard.
type Said = Result<(u16, Recovery)>;
type Handle = JoinHandle<Result<Stats>>;

/// Threads that are opening their shards.
struct Opening {
    found: Arc<Found>,
    regions: Arc<Vec<Buffer>>,
    options: OpenOptions,
    mailboxes: Vec<Arc<Mailbox<Job>>>,
    handles: Vec<Handle>,
    /// Sends each thread the pools once all shards are open.
    pools: Vec<Sender<Arc<Pools>>>,
}

/// The inputs of one thread.
struct Seat {
    found: Arc<Found>,
    regions: Arc<Vec<Buffer>>,
    options: OpenOptions,
    mailbox: Arc<Mailbox<Job>>,
    first: u16,
    step: u16,
    cpu: usize,
    pools: Receiver<Arc<Pools>>,
}

impl Opening {
    fn new(found: Found, regions: Vec<Buffer>, options: &OpenOptions, threads: usize) -> Opening {
        let mailboxes =
            (0..threads).map(|_| Arc::new(Mailbox::new(options.mailbox_depth))).collect();
        let (found, regions) = (Arc::new(found), Arc::new(regions));
        let (handles, pools) = (Vec::new(), Vec::new());
        Opening { found, regions, options: options.clone(), mailboxes, handles, pools }
    }

    /// Starts the threads and waits until each has reported its shards.
    fn run(&mut self, cores: &[usize], shards: u16) -> Result<Vec<Recovery>> {
        let (said, hears) = mpsc::channel();
        let mut recoveries = BTreeMap::new();
        for (cpu, number) in cores.iter().zip(0u16..) {
            self.spawn(number, *cpu, said.clone())?;
            if number == 0 {
                let (shard, recovery) = hears.recv().unwrap_or(Err(Failure::Closed.into()))?;
                recoveries.insert(shard, recovery);
            }
        }
        drop(said);
        // Ends when the last thread has reported and dropped its regions.
        for heard in hears {
            let (shard, recovery) = heard?;
            recoveries.insert(shard, recovery);
        }
        if recoveries.len() < usize::from(shards) {
            return Err(Failure::Closed.into());
        }
        Ok(recoveries.into_values().collect())
    }

    fn spawn(&mut self, number: u16, cpu: usize, said: Sender<Said>) -> Result<()> {
        let (sender, pools) = mpsc::channel();
        let step = u16::try_from(self.mailboxes.len()).expect("no more threads than shards");
        let seat = Seat {
            found: Arc::clone(&self.found),
            regions: Arc::clone(&self.regions),
            options: self.options.clone(),
            mailbox: Arc::clone(&self.mailboxes[usize::from(number)]),
            first: number,
            step,
            cpu,
            pools,
        };
        let builder = thread::Builder::new().name(format!("adit-kv-{number}"));
        let handle = builder.spawn(move || seat.live(said)).map_err(|why| {
            let fix = "raise the limit on processes (ulimit -u), or use fewer cores";
            adit_driver::Error::refused("the store", "start a thread", why, fix)
        })?;
        self.handles.push(handle);
        self.pools.push(sender);
        Ok(())
    }

    /// Lets the threads begin. If a shard could not be opened, ends them instead, which frees the devices.
    fn finish(
        self,
        recoveries: Result<Vec<Recovery>>,
    ) -> Result<(Arc<Core>, Vec<Handle>, Vec<Recovery>)> {
        let Opening { found, regions, options, mailboxes, handles, pools } = self;
        let recoveries = match recoveries {
            Ok(recoveries) => recoveries,
            Err(error) => {
                drop(pools);
                for handle in handles {
                    let _ = handle.join();
                }
                return Err(error);
            }
        };
        let gone = "threads let go of it before they have said all";
        let regions = Arc::into_inner(regions).expect(gone);
        let Found { devices, set, .. } = Arc::into_inner(found).expect(gone);
        let shared = Arc::new(Pools::new(devices.as_slice(), regions));
        for sender in pools {
            // A thread that has ended meanwhile is noticed when the store is used.
            let _ = sender.send(Arc::clone(&shared));
        }
        // Time to begin, then for a command, its retries and the driver's handling of a hang.
        let patience = options.timeout + options.command_timeout * 4;
        let (timeout, copied_bytes) = (options.timeout, Default::default());
        let core = Core {
            mailboxes,
            hasher: set.hasher(),
            shards: set.shards(),
            set,
            clock: devices.as_slice()[0].clone(),
            devices,
            pools: shared,
            options,
            timeout,
            patience,
            copied_bytes,
        };
        Ok((Arc::new(core), handles, recoveries))
    }
}

impl Seat {
    /// Runs the thread: opens its shards, then drives them.
    fn live(self, said: Sender<Said>) -> Result<Stats> {
        pin(self.cpu);
        let Some(shards) = self.open(&said) else { return Err(Failure::Closed.into()) };
        let Seat { found, regions, options, mailbox, first, step, cpu, pools } = self;
        let clock = found.devices.as_slice()[0].clone();
        drop((found, regions));
        drop(said);
        let pools = pools.recv().map_err(|_| Failure::Closed)?;
        let worker = Worker {
            mailbox,
            shards,
            first,
            step,
            pools,
            clock,
            core: cpu,
            idle: options.idle,
            depth: 2 * options.queue_depth as usize,
            timeout: options.timeout,
            drain_timeout: options.timeout,
        };
        worker.run()
    }

    fn open(&self, said: &Sender<Said>) -> Option<Vec<ThreadShard>> {
        let mut shards = Vec::new();
        for number in (self.first..self.found.set.shards()).step_by(usize::from(self.step)) {
            let opened = self.found.open(number, &self.regions);
            let (shard, says) = match opened {
                Ok((shard, recovery)) => (Some(shard), Ok((number, recovery))),
                Err(error) => (None, Err(error)),
            };
            // The receiver is gone if another thread failed first.
            said.send(says).ok()?;
            shards.push(shard?);
        }
        Some(shards)
    }
}

impl Threads {
    /// Returns what each shard found when it was opened.
    pub(super) fn recoveries(&self) -> &[Recovery] {
        &self.recoveries
    }

    /// Ends the threads and waits for them. Each gives up after the store's timeout, once for pending requests and
    /// once for the commit.
    pub(super) fn close(&self) -> Result<Stats> {
        let handles = std::mem::take(&mut *self.handles());
        if handles.is_empty() {
            return Err(Error::Failed(Failure::Closed));
        }
        self.core.mailboxes.iter().for_each(|mailbox: &Arc<Mailbox<Job>>| mailbox.stop());
        let mut sum = Stats::default();
        let mut first_error = None;
        for handle in handles {
            match handle.join().unwrap_or(Err(Error::Failed(Failure::Closed))) {
                Ok(stats) => sum += stats,
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        sum.copied_bytes += self.core.copied_bytes.load(std::sync::atomic::Ordering::Relaxed);
        first_error.map_or(Ok(sum), Err)
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, Vec<Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let own = thread::current().id();
        if self.handles().iter().any(|handle| handle.thread().id() == own) {
            // Dropped by a waker on one of the store's own threads, which cannot wait for itself: let all threads end
            // by themselves.
            self.core.mailboxes.iter().for_each(|mailbox| mailbox.stop());
            return;
        }
        match self.close() {
            Ok(_) | Err(Error::Failed(Failure::Closed)) => {}
            Err(error) => tracing::error!("closing a store: {error}"),
        }
    }
}
