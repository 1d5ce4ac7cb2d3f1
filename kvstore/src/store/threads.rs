//! The store's threads: started when it opens, ended when it closes.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use adit_driver::Buffer;
use adit_driver::bus::Locality;
use adit_driver::runtime::{Alarm, Poller, Seat};

use super::core::Core;
use super::devices::Devices;
use super::inbox::Inbox;
use super::open::{Found, OpenOptions};
use super::pool::{self, Pools};
use super::request::ThreadShard;
use super::thread::{Rounds, Worker};
use crate::error::{Error, Result};
use crate::shard::{Failure, Recovery, Stats};

/// The threads of a store. Dropping this closes the store.
pub(super) struct Threads {
    core: Arc<Core>,
    pollers: Mutex<Pollers>,
    recoveries: Vec<Recovery>,
}

type Pollers = Vec<Poller<Result<Stats>>>;

/// Opens the store and starts a thread per core, or per shard if there are fewer. Each thread opens its own shards.
/// The first thread begins, because shard 0 must be opened first.
pub(super) fn start(options: &OpenOptions) -> Result<(Arc<Core>, Arc<Threads>)> {
    let found = Found::look(options)?;
    let shards = found.set.shards();
    let mut cores = cores(options, &found.devices)?;
    cores.truncate(usize::from(shards));
    let regions = pool::regions(found.devices.as_slice(), options.pool_bytes)?;
    let mut opening = Opening::new(found, regions, options, cores.len())?;
    let recoveries = opening.run(&cores, shards);
    let (core, pollers, recoveries) = opening.finish(recoveries)?;
    let threads = Threads { core: Arc::clone(&core), pollers: Mutex::new(pollers), recoveries };
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

/// Threads that are opening their shards.
struct Opening {
    found: Arc<Found>,
    regions: Arc<Vec<Buffer>>,
    options: OpenOptions,
    /// For each thread, its alarm and its mailbox.
    places: Vec<(Arc<Alarm>, Arc<Inbox>)>,
    pollers: Pollers,
    /// Sends each thread the pools once all shards are open.
    pools: Vec<Sender<Arc<Pools>>>,
}

/// The inputs of one thread.
struct Inputs {
    found: Arc<Found>,
    regions: Arc<Vec<Buffer>>,
    options: OpenOptions,
    alarm: Arc<Alarm>,
    mailbox: Arc<Inbox>,
    first: u16,
    step: u16,
    pools: Receiver<Arc<Pools>>,
}

impl Opening {
    fn new(
        found: Found,
        regions: Vec<Buffer>,
        options: &OpenOptions,
        threads: usize,
    ) -> Result<Opening> {
        let place = || {
            let alarm = Alarm::new()?;
            let inbox = Inbox::new(options.mailbox_depth, Arc::clone(&alarm));
            Ok((alarm, Arc::new(inbox)))
        };
        let places = (0..threads).map(|_| place()).collect::<Result<_>>()?;
        let (found, regions) = (Arc::new(found), Arc::new(regions));
        let (pollers, pools) = (Vec::new(), Vec::new());
        Ok(Opening { found, regions, options: options.clone(), places, pollers, pools })
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
        let step = u16::try_from(self.places.len()).expect("no more threads than shards");
        let (alarm, mailbox) = self.places[usize::from(number)].clone();
        let inputs = Inputs {
            found: Arc::clone(&self.found),
            regions: Arc::clone(&self.regions),
            options: self.options.clone(),
            alarm: Arc::clone(&alarm),
            mailbox,
            first: number,
            step,
            pools,
        };
        let seat =
            Seat { name: format!("adit-kv-{number}"), core: Some(cpu), idle: self.options.idle };
        let poller = Poller::spawn(seat, alarm, move || inputs.rounds(said))?;
        self.pollers.push(poller);
        self.pools.push(sender);
        Ok(())
    }

    /// Lets the threads begin. If a shard could not be opened, ends them instead, which frees the devices.
    fn finish(
        self,
        recoveries: Result<Vec<Recovery>>,
    ) -> Result<(Arc<Core>, Pollers, Vec<Recovery>)> {
        let Opening { found, regions, options, places, pollers, pools } = self;
        let recoveries = match recoveries {
            Ok(recoveries) => recoveries,
            Err(error) => {
                drop(pools);
                for poller in pollers {
                    poller.join();
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
            mailboxes: places.into_iter().map(|(_, mailbox)| mailbox).collect(),
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
        Ok((Arc::new(core), pollers, recoveries))
    }
}

impl Inputs {
    /// Opens the thread's shards, and waits until all others are open. Returns `None` if one is not.
    fn rounds(self, said: Sender<Said>) -> Option<Rounds> {
        let shards = self.open(&said)?;
        let Inputs { found, regions, options, alarm, mailbox, first, step, pools } = self;
        let clock = found.devices.as_slice()[0].clone();
        drop((found, regions));
        drop(said);
        let pools = pools.recv().ok()?;
        let worker = Worker {
            mailbox,
            shards,
            first,
            step,
            pools,
            clock,
            depth: 2 * options.queue_depth as usize,
            timeout: options.timeout,
            drain_timeout: options.timeout,
        };
        Some(Rounds::new(worker, alarm))
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
        let pollers = self.stop();
        if pollers.is_empty() {
            return Err(Error::Failed(Failure::Closed));
        }
        let mut sum = Stats::default();
        let mut first_error = None;
        for poller in pollers {
            match poller.join().unwrap_or(Err(Error::Failed(Failure::Closed))) {
                Ok(stats) => sum += stats,
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        sum.copied_bytes += self.core.copied_bytes.load(std::sync::atomic::Ordering::Relaxed);
        first_error.map_or(Ok(sum), Err)
    }

    /// Refuses new requests and tells the threads to end. Returns the threads, once.
    fn stop(&self) -> Pollers {
        self.core.mailboxes.iter().for_each(|mailbox| mailbox.stop());
        let mut pollers = self.pollers.lock().unwrap_or_else(PoisonError::into_inner);
        let pollers = std::mem::take(&mut *pollers);
        pollers.iter().for_each(Poller::stop);
        pollers
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let pollers = self.pollers.get_mut().unwrap_or_else(PoisonError::into_inner);
        if pollers.iter().any(Poller::is_own) {
            // Dropped by a waker on one of the store's own threads, which cannot wait for itself: let all threads end
            // by themselves.
            self.stop();
            return;
        }
        match self.close() {
            Ok(_) | Err(Error::Failed(Failure::Closed)) => {}
            Err(error) => tracing::error!("closing a store: {error}"),
        }
    }
}
