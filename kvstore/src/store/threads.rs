//! The threads of a store: started when it is opened, ended when it closes.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use adit_driver::bus::Locality;

use super::core::Core;
use super::devices::{DeviceShard, Devices};
use super::job::Job;
use super::mailbox::Mailbox;
use super::open::{self, OpenOptions, Opened};
use super::pool::{self, Pools};
use super::thread::Worker;
use crate::error::{Error, Result};
use crate::shard::{Failure, Recovery, Stats};

/// See the module. Dropped, it closes the store.
pub(super) struct Threads {
    core: Arc<Core>,
    handles: Mutex<Vec<JoinHandle<Result<Stats>>>>,
    recoveries: Vec<Recovery>,
}

/// Opens the store and starts a thread for each core, or for each shard where there are fewer.
pub(super) fn start(options: &OpenOptions) -> Result<(Arc<Core>, Arc<Threads>)> {
    let memory = |devices: &Devices| pool::regions(devices.as_slice(), options.pool_bytes);
    let (opened, regions) = open::open(options, memory)?;
    let Opened { devices, set, shards, recoveries } = opened;
    let mut cores = cores(options, &devices)?;
    cores.truncate(shards.len());
    let mailboxes: Vec<_> =
        cores.iter().map(|_| Arc::new(Mailbox::new(options.mailbox_depth))).collect();
    let pools = Arc::new(Pools::new(devices.as_slice(), regions));
    let core = Arc::new(Core {
        mailboxes,
        set,
        devices,
        pools,
        timeout: options.timeout,
        // To be begun, and then a command, its retries and what the driver does about one that hangs.
        patience: options.timeout + options.command_timeout * 4,
        copied_bytes: Default::default(),
    });
    let threads = Threads { core: Arc::clone(&core), handles: Mutex::default(), recoveries };
    for (worker, number) in workers(options, &core, shards, &cores).into_iter().zip(0..) {
        threads.spawn(number, worker)?;
    }
    Ok((core, Arc::new(threads)))
}

/// The cores, near the first device that is anywhere.
fn cores(options: &OpenOptions, devices: &Devices) -> Result<Vec<usize>> {
    let controllers = devices.as_slice().iter().filter_map(|device| device.controller());
    let near = controllers.map(|controller| controller.locality()).next();
    Ok(options.cores.choose(&near.unwrap_or_else(Locality::default))?)
}

fn workers(
    options: &OpenOptions,
    core: &Arc<Core>,
    shards: Vec<DeviceShard>,
    cores: &[usize],
) -> Vec<Worker> {
    let mut dealt: Vec<Vec<DeviceShard>> = cores.iter().map(|_| Vec::new()).collect();
    for (shard, number) in shards.into_iter().zip(0usize..) {
        dealt[number % cores.len()].push(shard);
    }
    let step = u16::try_from(cores.len()).expect("no more threads than shards");
    let worker = |((shards, first), cpu): ((Vec<DeviceShard>, u16), &usize)| Worker {
        mailbox: Arc::clone(&core.mailboxes[usize::from(first)]),
        shards,
        first,
        step,
        pools: Arc::clone(&core.pools),
        clock: core.devices.as_slice()[0].clone(),
        core: *cpu,
        idle: options.idle,
        depth: 2 * options.queue_depth as usize,
        timeout: options.timeout,
        drain_timeout: options.timeout,
    };
    dealt.into_iter().zip(0u16..).zip(cores).map(worker).collect()
}

impl Threads {
    fn spawn(&self, number: usize, worker: Worker) -> Result<()> {
        let name = format!("adit-kv-{number}");
        let spawned = thread::Builder::new().name(name).spawn(move || worker.run());
        let handle = spawned.map_err(|why| {
            let fix = "raise the limit on processes (ulimit -u), or use fewer cores";
            adit_driver::Error::refused("the store", "start a thread", why, fix)
        })?;
        self.handles().push(handle);
        Ok(())
    }

    /// What each shard found when it was opened.
    pub(super) fn recoveries(&self) -> &[Recovery] {
        &self.recoveries
    }

    /// Has the threads finish, and waits for them: each gives up after the store's timeout.
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

    fn handles(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<Result<Stats>>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        match self.close() {
            Ok(_) | Err(Error::Failed(Failure::Closed)) => {}
            Err(error) => tracing::error!("closing a store: {error}"),
        }
    }
}
