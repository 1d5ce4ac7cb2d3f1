//! The threads of a store: their start when it opens, and the request to end when it closes.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::Device;
use adit_driver::bus::Locality;
use adit_driver::runtime::{self, Alarm, Cores, Idle, Pinning, Poller, Seat};

use super::answer::{Pending, pair};
use super::core::Core;
use super::devices::{Devices, FoundStore, OpenOptions, release};
use super::memory::{DeviceReach, Pools, Unfinished, regions};
use super::request::{Identity, ThreadShard};
use super::thread::{Exit, Figures, Inbox, Rounds, ThreadExit, Worker};
use super::tier::Tier;
use crate::error::{Error, Result};
use crate::shard::{Failure, Hot, Recovery, Stats};

/// The threads of a store. Dropping this closes the store, without waiting for it.
pub(crate) struct Threads {
    core: Arc<Core>,
    pollers: Mutex<Pollers>,
    pub(crate) exit: Arc<Exit>,
    pub(crate) tier: Arc<Tier>,
    pub(crate) recoveries: Vec<Recovery>,
}

type Pollers = Vec<Poller<()>>;

/// Opens the store and starts its threads, at most one for each shard. Each thread opens its own shards.
/// The first thread begins, because shard 0 must be opened first.
pub(crate) fn start(options: &OpenOptions) -> Result<(Arc<Core>, Arc<Threads>)> {
    let found = FoundStore::look(options)?;
    let shards = found.set.shards();
    let mut places = places(options, &found.devices)?;
    places.truncate(usize::from(shards));
    let regions = regions(found.devices.as_slice(), options.pool_bytes)?;
    let mut opening = Opening::new(found, regions, places.len())?;
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

/// Returns the default idling of a thread that drives these devices.
fn usual_idle(devices: &[Device]) -> Idle {
    let by_kernel = devices.iter().all(|device| device.controller().is_none());
    let usual = Idle::default();
    let at_once = Idle { spin: Duration::ZERO, pause: Duration::ZERO, ..usual };
    if by_kernel { at_once } else { usual }
}

/// A shard's report that it was opened.
struct Opened {
    recovery: Recovery,
    hot: Arc<Hot>,
}

/// A thread's report about one shard, by number.
type Report = Result<(u16, Opened)>;

/// The parts that a thread lacks until all shards are open.
type Begin = (Arc<Pools>, ThreadExit);

/// The parts of a thread that others share.
#[derive(Clone)]
struct ThreadParts {
    alarm: Arc<Alarm>,
    mailbox: Arc<Inbox>,
    figures: Arc<Figures>,
}

/// Threads that are opening their shards.
struct Opening {
    found: Arc<FoundStore>,
    regions: Arc<Vec<Buffer>>,
    parts: Vec<ThreadParts>,
    pollers: Pollers,
    /// Sends each thread the pools and its part of the exit once all shards are open.
    begins: Vec<Sender<Begin>>,
}

/// One thread that opens shards `first`, `first + step`, and so on.
struct Opener {
    found: Arc<FoundStore>,
    regions: Arc<Vec<Buffer>>,
    parts: ThreadParts,
    first: u16,
    step: u16,
    begins: Receiver<Begin>,
}

impl Opening {
    fn new(found: FoundStore, regions: Vec<Buffer>, threads: usize) -> Result<Opening> {
        let parts = || {
            let alarm = Alarm::new()?;
            let mailbox = Inbox::new(found.options.mailbox_depth, Arc::clone(&alarm));
            Ok(ThreadParts { alarm, mailbox: Arc::new(mailbox), figures: Arc::default() })
        };
        let parts = (0..threads).map(|_| parts()).collect::<Result<_>>()?;
        let (pollers, begins) = (Vec::new(), Vec::new());
        Ok(Opening { found: Arc::new(found), regions: Arc::new(regions), parts, pollers, begins })
    }

    /// Starts the threads and waits until each has reported its shards.
    fn run(&mut self, places: Vec<Pinning>, shards: u16) -> Result<Vec<Opened>> {
        let (reports, reported) = mpsc::channel();
        let mut opened = BTreeMap::new();
        for (place, number) in places.into_iter().zip(0u16..) {
            self.spawn(number, place, reports.clone())?;
            if number == 0 {
                let (shard, one) = reported.recv().unwrap_or(Err(Failure::Closed.into()))?;
                opened.insert(shard, one);
            }
        }
        drop(reports);
        // Ends when the last thread has reported and dropped its regions.
        for report in reported {
            let (shard, one) = report?;
            opened.insert(shard, one);
        }
        if opened.len() < usize::from(shards) {
            return Err(Failure::Closed.into());
        }
        Ok(opened.into_values().collect())
    }

    fn spawn(&mut self, number: u16, place: Pinning, reports: Sender<Report>) -> Result<()> {
        let (sender, begins) = mpsc::channel();
        let parts = self.parts[usize::from(number)].clone();
        let alarm = Arc::clone(&parts.alarm);
        let opener = Opener {
            found: Arc::clone(&self.found),
            regions: Arc::clone(&self.regions),
            parts,
            first: number,
            step: u16::try_from(self.parts.len()).expect("no more threads than shards"),
            begins,
        };
        let usual = || usual_idle(self.found.devices.as_slice());
        let idle = self.found.options.idle.unwrap_or_else(usual);
        let seat = Seat { name: format!("adit-kv-{number}"), place, idle };
        self.pollers.push(Poller::spawn(seat, alarm, move || opener.rounds(reports))?);
        self.begins.push(sender);
        Ok(())
    }

    /// Lets the threads begin. If a shard could not be opened, ends them instead, which frees the devices.
    fn finish(self, opened: Result<Vec<Opened>>) -> Result<(Arc<Core>, Threads)> {
        let Opening { found, regions, parts, pollers, begins } = self;
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
        let gone = "threads let go of it before their last report";
        let regions = Arc::into_inner(regions).expect(gone);
        let found = Arc::into_inner(found).expect(gone);
        let FoundStore { devices, set, options, shard_options } = found;
        let pools = Arc::new(Pools::new(devices.as_slice(), regions));
        let names = release::names(&options.targets, &options.devices);
        let store = (devices.clone(), set.clone(), options.clone());
        let (exit, exits) = Exit::new(pollers.len(), Arc::clone(&pools), names, store);
        for (sender, exit) in begins.into_iter().zip(exits) {
            // A thread that has ended meanwhile is noticed when the store is used.
            let _ = sender.send((Arc::clone(&pools), exit));
        }
        let (recoveries, hot) = opened.into_iter().map(|one| (one.recovery, one.hot)).unzip();
        let (mailboxes, figures) =
            parts.into_iter().map(|parts| (parts.mailbox, parts.figures)).unzip();
        let core = Arc::new(Core {
            hot,
            wall_at_zero: shard_options.wall_at_zero,
            mailboxes,
            figures,
            hasher: set.hasher(),
            shards: set.shards(),
            set,
            clock: devices.as_slice()[0].clone(),
            reach: Arc::new(DeviceReach::new(devices.as_slice(), &pools)),
            devices,
            pools,
            timeout: options.timeout,
            // Time to begin, then for a command, its retries and the driver's handling of a hang.
            patience: options.timeout + options.command_timeout * 4,
            options,
            identity: Identity::default(),
            removals: shard_options.removals,
        });
        let (tier, pollers) = (Tier::new(&core, &exit), Mutex::new(pollers));
        Ok((Arc::clone(&core), Threads { core, pollers, exit, tier, recoveries }))
    }
}

impl Opener {
    /// Opens the thread's shards, and waits until all others are open. Returns `None` if one is not.
    fn rounds(self, reports: Sender<Report>) -> Option<Rounds> {
        let opened = runtime::caught("it opened shards, which is a bug", || self.open(&reports));
        let shards = match opened {
            Ok(shards) => shards?,
            Err(why) => {
                // The receiver is gone if another thread failed first.
                let _ = reports.send(Err(Error::died(&why)));
                return None;
            }
        };
        let Opener { found, regions, parts, first, step, begins } = self;
        let ThreadParts { alarm, mailbox, figures } = parts;
        let devices = found.devices.as_slice().to_vec();
        let (depth, timeout) = (2 * found.options.queue_depth as usize, found.options.timeout);
        found.shard_options.ledger.wake_on_news(Waker::from(Arc::clone(&alarm)));
        drop((found, regions));
        drop(reports);
        let (pools, exit) = begins.recv().ok()?;
        let worker =
            Worker { mailbox, figures, shards, first, step, pools, devices, depth, timeout };
        Some(Rounds::new(worker, alarm, exit))
    }

    fn open(&self, reports: &Sender<Report>) -> Option<Vec<ThreadShard>> {
        let mut shards = Vec::new();
        for number in (self.first..self.found.set.shards()).step_by(usize::from(self.step)) {
            let opened = self.found.open(number, &self.regions, true).and_then(|mut opened| {
                opened.0.notify(self.parts.alarm.as_fd())?;
                Ok(opened)
            });
            let (shard, report) = match opened {
                Ok((shard, recovery)) => {
                    let hot = Arc::clone(shard.hot());
                    (Some(shard), Ok((number, Opened { recovery, hot })))
                }
                Err(error) => (None, Err(error)),
            };
            // The receiver is gone if another thread failed first.
            reports.send(report).ok()?;
            shards.push(shard?);
        }
        Some(shards)
    }
}

impl Threads {
    /// Makes the threads end. The answer comes when they have released the devices. Each thread waits for the store's
    /// timeout at most, once for requests in progress and once for the commit.
    pub(crate) fn close(&self) -> Pending<Stats> {
        let (reply, pending) = pair(self.core.patience + 2 * self.core.timeout);
        if self.stop() {
            self.exit.tell(reply);
        } else {
            reply.send(Err(Unfinished::new(Failure::Closed)));
        }
        pending
    }

    /// Refuses new requests and makes the threads end. Returns true to exactly one concurrent caller.
    fn stop(&self) -> bool {
        let is_first = self.exit.begin();
        if is_first {
            self.core.mailboxes.iter().for_each(|mailbox| mailbox.stop());
            let mut pollers = runtime::lock(&self.pollers);
            pollers.drain(..).for_each(|poller| poller.stop());
            self.tier.stop();
        }
        is_first
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}
