//! The store's threads: started when it opens, told to end when it closes.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::Device;
use adit_driver::bus::Locality;
use adit_driver::runtime::{self, Alarm, Cores, Idle, Pinning, Poller, Seat};

use super::core::Core;
use super::devices::Devices;
use super::exit::{self, Exit, Leaving, Open};
use super::figures::Figures;
use super::inbox::Inbox;
use super::lent::Reach;
use super::open::{Found, OpenOptions};
use super::payload::Identity;
use super::pending::{Pending, Unfinished, pair};
use super::pool::{self, Pools};
use super::request::ThreadShard;
use super::thread::{Rounds, Worker};
use super::tier::Follower;
use crate::error::{Error, Result};
use crate::shard::{Failure, Hot, Recovery, Stats};

/// The threads of a store. Dropping this closes the store, without waiting for it.
pub(super) struct Threads {
    core: Arc<Core>,
    pollers: Mutex<Pollers>,
    exit: Arc<Exit>,
    follower: Follower,
    recoveries: Vec<Recovery>,
}

type Pollers = Vec<Poller<()>>;

/// Opens the store and starts its threads, at most one for each shard. Each thread opens its own shards.
/// The first thread begins, because shard 0 must be opened first.
pub(super) fn start(options: &OpenOptions) -> Result<(Arc<Core>, Arc<Threads>)> {
    let found = Found::look(options)?;
    let shards = found.set.shards();
    let mut places = places(options, &found.devices)?;
    places.truncate(usize::from(shards));
    let regions = pool::regions(found.devices.as_slice(), options.pool_bytes)?;
    let mut opening = Opening::new(found, regions, options, places.len())?;
    let opened = opening.run(places, shards);
    let (core, threads) = opening.finish(opened)?;
    Ok((core, Arc::new(threads)))
}

/// Chooses where the threads run, near the first device whose location is known.
fn places(options: &OpenOptions, devices: &Devices) -> Result<Vec<Pinning>> {
    let devices = devices.as_slice();
    let wants_core = devices.iter().any(Device::wants_core);
    let usual = if wants_core { Cores::Count(1) } else { Cores::Unpinned(1) };
    let near = devices.iter().map(Device::locality).find(|near| near.numa_node.is_some());
    let cores = options.cores.as_ref().unwrap_or(&usual);
    Ok(cores.choose(near.unwrap_or(&Locality::default()))?)
}

/// Returns how a thread rests that drives these devices.
fn usual_idle(devices: &[Device]) -> Idle {
    let by_kernel = devices.iter().all(|device| device.controller().is_none());
    let usual = Idle::default();
    let at_once = Idle { spin: Duration::ZERO, pause: Duration::ZERO, ..usual };
    if by_kernel { at_once } else { usual }
}

/// What is known of a shard that was opened.
struct Opened {
    recovery: Recovery,
    hot: Arc<Hot>,
}

/// A thread's report about one shard.
type Said = Result<(u16, Opened)>;

/// What a thread needs to begin.
type Begin = (Arc<Pools>, Leaving);

/// Threads that are opening their shards.
struct Opening {
    found: Arc<Found>,
    regions: Arc<Vec<Buffer>>,
    options: OpenOptions,
    /// For each thread, its alarm and its mailbox.
    places: Vec<(Arc<Alarm>, Arc<Inbox>)>,
    /// For each thread, what it counts.
    figures: Vec<Arc<Figures>>,
    pollers: Pollers,
    /// Sends each thread the pools and its part of the exit once all shards are open.
    begins: Vec<Sender<Begin>>,
}

/// The inputs of one thread.
struct Inputs {
    found: Arc<Found>,
    regions: Arc<Vec<Buffer>>,
    options: OpenOptions,
    alarm: Arc<Alarm>,
    mailbox: Arc<Inbox>,
    figures: Arc<Figures>,
    first: u16,
    step: u16,
    begins: Receiver<Begin>,
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
        let (pollers, begins) = (Vec::new(), Vec::new());
        let (options, figures) =
            (options.clone(), (0..threads).map(|_| Default::default()).collect());
        Ok(Opening { found, regions, options, places, figures, pollers, begins })
    }

    /// Starts the threads and waits until each has reported its shards.
    fn run(&mut self, places: Vec<Pinning>, shards: u16) -> Result<Vec<Opened>> {
        let (said, hears) = mpsc::channel();
        let mut opened = BTreeMap::new();
        for (place, number) in places.into_iter().zip(0u16..) {
            self.spawn(number, place, said.clone())?;
            if number == 0 {
                let (shard, one) = hears.recv().unwrap_or(Err(Failure::Closed.into()))?;
                opened.insert(shard, one);
            }
        }
        drop(said);
        // Ends when the last thread has reported and dropped its regions.
        for heard in hears {
            let (shard, one) = heard?;
            opened.insert(shard, one);
        }
        if opened.len() < usize::from(shards) {
            return Err(Failure::Closed.into());
        }
        Ok(opened.into_values().collect())
    }

    fn spawn(&mut self, number: u16, place: Pinning, said: Sender<Said>) -> Result<()> {
        let (sender, begins) = mpsc::channel();
        let step = u16::try_from(self.places.len()).expect("no more threads than shards");
        let (alarm, mailbox) = self.places[usize::from(number)].clone();
        let inputs = Inputs {
            found: Arc::clone(&self.found),
            regions: Arc::clone(&self.regions),
            options: self.options.clone(),
            alarm: Arc::clone(&alarm),
            mailbox,
            figures: Arc::clone(&self.figures[usize::from(number)]),
            first: number,
            step,
            begins,
        };
        let devices = self.found.devices.as_slice();
        let idle = self.options.idle.unwrap_or_else(|| usual_idle(devices));
        let seat = Seat { name: format!("adit-kv-{number}"), place, idle };
        let poller = Poller::spawn(seat, alarm, move || inputs.rounds(said))?;
        self.pollers.push(poller);
        self.begins.push(sender);
        Ok(())
    }

    /// Lets the threads begin. If a shard could not be opened, ends them instead, which frees the devices.
    fn finish(self, opened: Result<Vec<Opened>>) -> Result<(Arc<Core>, Threads)> {
        let Opening { found, regions, options, places, figures, pollers, begins } = self;
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                drop(begins);
                for poller in pollers {
                    poller.join();
                }
                return Err(error);
            }
        };
        let gone = "threads let go of it before they have said all";
        let regions = Arc::into_inner(regions).expect(gone);
        let (removals, wall_at_zero) = (found.removals().clone(), found.wall_at_zero());
        let Found { devices, set, .. } = Arc::into_inner(found).expect(gone);
        let shared = Arc::new(Pools::new(devices.as_slice(), regions));
        let names = exit::names(&options.targets, &options.devices);
        let open = Open { devices: devices.share(), set: set.clone(), options: options.clone() };
        let (exit, leaving) = Exit::new(pollers.len(), Arc::clone(&shared), names, open);
        for (sender, leaving) in begins.into_iter().zip(leaving) {
            // A thread that has ended meanwhile is noticed when the store is used.
            let _ = sender.send((Arc::clone(&shared), leaving));
        }
        // Time to begin, then for a command, its retries and the driver's handling of a hang.
        let patience = options.timeout + options.command_timeout * 4;
        let timeout = options.timeout;
        let reach = Arc::new(Reach::new(devices.as_slice(), &shared));
        let (recoveries, hot) = opened.into_iter().map(|one| (one.recovery, one.hot)).unzip();
        let core = Core {
            hot,
            wall_at_zero,
            mailboxes: places.into_iter().map(|(_, mailbox)| mailbox).collect(),
            figures,
            hasher: set.hasher(),
            shards: set.shards(),
            set,
            clock: devices.as_slice()[0].clone(),
            devices,
            pools: shared,
            options,
            timeout,
            patience,
            reach,
            identity: Identity::default(),
            removals,
            tier: Mutex::default(),
        };
        let (core, pollers) = (Arc::new(core), Mutex::new(pollers));
        let follower = Follower::default();
        let threads = Threads { core: Arc::clone(&core), pollers, exit, follower, recoveries };
        Ok((core, threads))
    }
}

impl Inputs {
    /// Opens the thread's shards, and waits until all others are open. Returns `None` if one is not.
    fn rounds(self, said: Sender<Said>) -> Option<Rounds> {
        let opened = runtime::caught("it opened shards, which is a bug", || self.open(&said));
        let shards = match opened {
            Ok(shards) => shards?,
            Err(why) => {
                // The receiver is gone if another thread failed first.
                let _ = said.send(Err(Error::died(&why)));
                return None;
            }
        };
        let Inputs { found, regions, options, alarm, mailbox, figures, first, step, begins } = self;
        let devices = found.devices.as_slice().to_vec();
        found.ledger().wake_on_news(Waker::from(Arc::clone(&alarm)));
        drop((found, regions));
        drop(said);
        let (pools, leaving) = begins.recv().ok()?;
        let worker = Worker {
            mailbox,
            figures,
            shards,
            first,
            step,
            pools,
            devices,
            depth: 2 * options.queue_depth as usize,
            timeout: options.timeout,
            drain_timeout: options.timeout,
        };
        Some(Rounds::new(worker, alarm, leaving))
    }

    fn open(&self, said: &Sender<Said>) -> Option<Vec<ThreadShard>> {
        let mut shards = Vec::new();
        for number in (self.first..self.found.set.shards()).step_by(usize::from(self.step)) {
            let opened = self.found.open(number, &self.regions, true).and_then(|mut opened| {
                opened.0.notify(self.alarm.as_fd())?;
                Ok(opened)
            });
            let (shard, says) = match opened {
                Ok((shard, recovery)) => {
                    let hot = Arc::clone(shard.hot());
                    (Some(shard), Ok((number, Opened { recovery, hot })))
                }
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

    /// Returns why a thread has ended that should not have, if one has.
    pub(super) fn failure(&self) -> Option<Error> {
        self.exit.failure()
    }

    /// Has the memory tier follow memory from now on.
    ///
    /// # Errors
    /// As [`Follower::start`].
    pub(super) fn follow_memory(&self) -> Result<()> {
        self.follower.start(&self.core, &self.exit)
    }

    /// Ends what [`Threads::follow_memory`] began.
    pub(super) fn leave_memory(&self) {
        self.follower.stop();
    }

    /// Tells the threads to end. The answer comes when they have released the devices. Each gives up after the store's
    /// timeout, once for requests in progress and once for the commit.
    pub(super) fn close(&self) -> Pending<Stats> {
        let (reply, pending) = pair(self.core.patience + 2 * self.core.timeout);
        if self.stop() {
            self.exit.tell(reply);
        } else {
            reply.send(Err(Unfinished::new(Failure::Closed)));
        }
        pending
    }

    /// Refuses new requests and tells the threads to end. Returns false if they were told before.
    fn stop(&self) -> bool {
        let is_first = self.exit.begin();
        if is_first {
            self.core.mailboxes.iter().for_each(|mailbox| mailbox.stop());
            let mut pollers = self.pollers.lock().unwrap_or_else(PoisonError::into_inner);
            pollers.drain(..).for_each(|poller| poller.stop());
            self.follower.stop();
        }
        is_first
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}
