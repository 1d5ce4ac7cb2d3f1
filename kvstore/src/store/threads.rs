//! The threads of a store: started when it is opened, ended when it closes.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use adit_driver::Buffer;
use adit_driver::bus::Locality;
use adit_driver::reactor::pin;

use super::core::Core;
use super::devices::{DeviceShard, Devices};
use super::job::Job;
use super::mailbox::Mailbox;
use super::open::{Found, OpenOptions};
use super::pool::{self, Pools};
use super::thread::Worker;
use crate::error::{Error, Result};
use crate::shard::{Failure, Recovery, Stats};

/// See the module. Dropped, it closes the store.
pub(super) struct Threads {
    core: Arc<Core>,
    handles: Mutex<Vec<Handle>>,
    recoveries: Vec<Recovery>,
}

/// Opens the store and starts a thread for each core, or for each shard where there are fewer. Each opens its own
/// shards; the first begins, since shard 0 does.
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

/// The cores, near the first device that is anywhere.
fn cores(options: &OpenOptions, devices: &Devices) -> Result<Vec<usize>> {
    let controllers = devices.as_slice().iter().filter_map(|device| device.controller());
    let near = controllers.map(|controller| controller.locality()).next();
    Ok(options.cores.choose(&near.unwrap_or_else(Locality::default))?)
}

/// What a thread says of a shard.
type Said = Result<(u16, Recovery)>;
type Handle = JoinHandle<Result<Stats>>;

/// Threads that open their shards.
struct Opening {
    found: Arc<Found>,
    regions: Arc<Vec<Buffer>>,
    options: OpenOptions,
    mailboxes: Vec<Arc<Mailbox<Job>>>,
    handles: Vec<Handle>,
    /// Where each thread gets the pools from once all shards are open.
    pools: Vec<Sender<Arc<Pools>>>,
}

/// What one thread is told.
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

    /// Starts the threads, and waits until each has said what it found.
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
        // Until the last thread has nothing more to say, and has let go of the regions.
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

    /// Lets the threads begin, or end where one could not open its shards: the devices are free then.
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
            // One that has ended meanwhile shows when the store is used.
            let _ = sender.send(Arc::clone(&shared));
        }
        // To be begun, and then a command, its retries and what the driver does about one that hangs.
        let patience = options.timeout + options.command_timeout * 4;
        let (timeout, copied_bytes) = (options.timeout, Default::default());
        let core = Core {
            mailboxes,
            set,
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
    /// The thread's life: opens its shards, and drives them.
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

    fn open(&self, said: &Sender<Said>) -> Option<Vec<DeviceShard>> {
        let mut shards = Vec::new();
        for number in (self.first..self.found.set.shards()).step_by(usize::from(self.step)) {
            let opened = self.found.open(number, &self.regions);
            let (shard, says) = match opened {
                Ok((shard, recovery)) => (Some(shard), Ok((number, recovery))),
                Err(error) => (None, Err(error)),
            };
            // Nobody listens any more where another thread failed first.
            said.send(says).ok()?;
            shards.push(shard?);
        }
        Some(shards)
    }
}

impl Threads {
    /// What each shard found when it was opened.
    pub(super) fn recoveries(&self) -> &[Recovery] {
        &self.recoveries
    }

    /// Has the threads finish, and waits for them: each gives up after the store's timeout, for what was sent
    /// and again for the commit.
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
            // By a waker, whose task had the last handle: this thread cannot wait for itself. All end by themselves.
            self.core.mailboxes.iter().for_each(|mailbox| mailbox.stop());
            return;
        }
        match self.close() {
            Ok(_) | Err(Error::Failed(Failure::Closed)) => {}
            Err(error) => tracing::error!("closing a store: {error}"),
        }
    }
}
