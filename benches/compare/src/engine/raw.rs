//! No engine: the disk's own performance at that depth, which bounds what the store can reach.
//!
//! One queue of the driver's io_uring path on a file with allocated blocks, direct I/O, registered memory, one
//! thread. The object's number is its place. There are no keys and no guarantees; each read is checked like every
//! engine's. `raw` has its memory in huge pages where there are some, as the store has; `raw-4k` in pages of 4 KiB, as
//! `malloc` gives it to the other engines. Some disks, virtual ones above all, move many short segments slower.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Device, DeviceOptions, Target};
use anyhow::{Result, anyhow};

use super::{About, Bed, Setup, judge, make_file};
use crate::chooser::Random;
use crate::contents;
use crate::load::{Step, Work};
use crate::measured::Tally;
use crate::options::Phase;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait between two readings of the clock.
const WAIT: Duration = Duration::from_millis(10);

pub(super) struct Raw {
    device: Device,
    queue: DeviceQueue<Buffer>,
    /// One per request in flight.
    idle: Vec<Buffer>,
    depth: usize,
    /// By address of the buffer.
    flights: HashMap<usize, Flight>,
    object_bytes: usize,
}

/// The use of a buffer in flight.
#[derive(Clone, Copy)]
struct Flight {
    began: Instant,
    step: Step,
}

impl Raw {
    pub(super) fn open(setup: &Setup, has_huge_pages: bool) -> Result<(Raw, About)> {
        nix::sys::prctl::set_thp_disable(!has_huge_pages)?;
        let path = setup.folder.join("raw.img");
        make_file(&path, setup.data_bytes())?;
        let target = Target::from_str(&format!("uring:{}", path.display()))?;
        let device = Device::open(&target, &DeviceOptions::default())?;
        let (depth, object_bytes) = (setup.depth as usize, setup.object_bytes);
        let options = QueueOptions { depth: setup.depth, timeout: TIMEOUT, abort_timeout: TIMEOUT };
        // Allocations of less than a huge page have none.
        let regions = match has_huge_pages {
            true => vec![device.allocate(depth * object_bytes)?],
            false => (0..depth).map(|_| device.allocate(object_bytes)).collect::<Result<_, _>>()?,
        };
        let queue = device.create_queue(&options, &regions.iter().collect::<Vec<_>>())?;
        let buffers = regions.into_iter().flat_map(|region| pieces(region, object_bytes));
        // A region in huge pages has room for more.
        let idle = buffers.take(depth).collect();
        let pages = if has_huge_pages { "huge pages" } else { "4 KiB pages" };
        let about = About {
            setup: format!(
                "the driver's io_uring queue on a file, O_DIRECT, registered memory in {pages}, one thread"
            ),
            promise: "no engine: the device at that depth".to_owned(),
        };
        Ok((Raw { device, queue, idle, depth, flights: HashMap::new(), object_bytes }, about))
    }

    /// Begins a request with each idle buffer, until there are no more to begin. Returns how many began.
    fn begin(&mut self, work: &Work, random: &mut Random) -> Result<usize> {
        let (now, began) = (self.device.now(), Instant::now());
        let mut begun = 0;
        while !self.idle.is_empty() {
            let Some(step) = work.step(began, random) else { break };
            let Some(mut buffer) = self.idle.pop() else { break };
            let lbas = self.object_bytes as u64 / u64::from(self.device.info().lba_bytes);
            let operation = match step {
                Step::Get(object) => Operation::Read(Lba(object * lbas)),
                Step::Put(object) => {
                    contents::stamp(&mut buffer, object);
                    Operation::Write(Lba(object * lbas))
                }
            };
            self.flights.insert(buffer.as_ptr() as usize, Flight { began, step });
            let posted = self.queue.post(now, Request { operation, buffer });
            posted.map_err(|_| {
                anyhow!("the raw loop's queue is full, though as deep as there are buffers")
            })?;
            begun += 1;
        }
        if begun > 0 {
            self.queue.ring();
        }
        Ok(begun)
    }

    /// Handles completions; returns how many.
    fn take(&mut self, phase: Phase, tally: &mut Tally) -> Result<usize> {
        let Raw { queue, idle, flights, object_bytes, device, .. } = self;
        let mut failure = None;
        let taken = queue.poll(device.now(), |completion| {
            let flight = flights[&(completion.buffer.as_ptr() as usize)];
            match (completion.result, flight.step) {
                (Err(why), _) => failure = Some(why),
                (Ok(_), Step::Get(object)) => {
                    let found = judge(&completion.buffer, object, *object_bytes);
                    tally.got(found, flight.began.elapsed());
                }
                (Ok(_), Step::Put(_)) => {
                    tally.put((phase == Phase::Fill).then(|| flight.began.elapsed()))
                }
            }
            idle.push(completion.buffer);
        });
        failure.map_or(Ok(taken), |why| Err(anyhow!("the raw loop's file: {why}")))
    }
}

/// Splits a region into buffers of an object each, filled with the bytes that all objects share.
fn pieces(mut region: Buffer, object_bytes: usize) -> Vec<Buffer> {
    let base = contents::base(object_bytes);
    let count = region.len() / object_bytes;
    let pieces = (0..count).rev().map(|index| {
        let mut buffer = region.split_off(index * object_bytes);
        // Memory comes in whole pages, possibly more than requested.
        drop(buffer.split_off(object_bytes));
        buffer.copy_from_slice(&base);
        buffer
    });
    pieces.collect()
}

impl Bed for Raw {
    fn run(&mut self, work: &Arc<Work>) -> Result<Tally> {
        let (mut random, mut tally) = (work.random(0), Tally::new());
        loop {
            let begun = self.begin(work, &mut random)?;
            if begun == 0 && self.idle.len() == self.depth {
                return Ok(tally);
            }
            if self.take(work.phase, &mut tally)? == 0 {
                self.queue.wait(WAIT);
            }
        }
    }

    fn memory_hits(&mut self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn settle(&mut self) -> Result<()> {
        let buffer = self.idle.pop().expect("nothing is in flight between phases");
        let request = Request { operation: Operation::Flush, buffer };
        self.queue
            .post(self.device.now(), request)
            .map_err(|_| anyhow!("the raw loop's queue takes no flush"))?;
        self.queue.ring();
        let mut result = None;
        while result.is_none() {
            let idle = &mut self.idle;
            self.queue.poll(self.device.now(), |completion| {
                idle.push(completion.buffer);
                result = Some(completion.result);
            });
            self.queue.wait(WAIT);
        }
        match result {
            Some(Err(why)) => Err(anyhow!("the raw loop's file cannot be flushed: {why}")),
            _ => Ok(()),
        }
    }
}
