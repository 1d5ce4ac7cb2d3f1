//! No engine: the disk's own performance at that depth, which bounds what the store can reach.
//!
//! One queue of the driver's io_uring path on a file with allocated blocks, direct I/O, registered memory, one
//! thread. The object's number is its place. There are no keys and no guarantees; each read is checked like every
//! engine's.

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
    /// Pieces of one region, one per request in flight.
    idle: Vec<Buffer>,
    /// The start of that region: a buffer's offset from it identifies its flight.
    first: usize,
    flights: Vec<Flight>,
    object_bytes: usize,
}

/// The use of a buffer in flight.
#[derive(Clone, Copy)]
struct Flight {
    began: Instant,
    step: Step,
}

impl Raw {
    pub(super) fn open(setup: &Setup) -> Result<(Raw, About)> {
        let path = setup.folder.join("raw.img");
        make_file(&path, setup.data_bytes())?;
        let target = Target::from_str(&format!("uring:{}", path.display()))?;
        let device = Device::open(&target, &DeviceOptions::default())?;
        let depth = setup.depth as usize;
        let mut region = device.allocate(depth * setup.object_bytes)?;
        region[..depth * setup.object_bytes]
            .copy_from_slice(&contents::base(setup.object_bytes).repeat(depth));
        let options = QueueOptions { depth: setup.depth, timeout: TIMEOUT, abort_timeout: TIMEOUT };
        let queue = device.create_queue(&options, &[&region])?;
        let first = region.as_ptr() as usize;
        let idle = (0..depth).rev().map(|index| {
            let mut buffer = region.split_off(index * setup.object_bytes);
            // Memory comes in whole pages, possibly more than requested.
            drop(buffer.split_off(setup.object_bytes));
            buffer
        });
        let flight = Flight { began: Instant::now(), step: Step::Get(0) };
        let (idle, flights) = (idle.collect(), vec![flight; depth]);
        let about = About {
            setup: "the driver's io_uring queue on a file, O_DIRECT, registered memory, one thread"
                .to_owned(),
            promise: "no engine: the device at that depth".to_owned(),
        };
        Ok((Raw { device, queue, idle, first, flights, object_bytes: setup.object_bytes }, about))
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
            self.flights[index(self.first, &buffer, self.object_bytes)] = Flight { began, step };
            let posted = self.queue.post(now, Request { operation, buffer });
            posted.map_err(|_| anyhow!("the queue of the raw loop has no room, though it is as deep as there are buffers"))?;
            begun += 1;
        }
        if begun > 0 {
            self.queue.ring();
        }
        Ok(begun)
    }

    /// Handles completions; returns how many.
    fn take(&mut self, phase: Phase, tally: &mut Tally) -> Result<usize> {
        let Raw { queue, idle, flights, first, object_bytes, device, .. } = self;
        let (mut failure, ended) = (None, Instant::now());
        let taken = queue.poll(device.now(), |completion| {
            let flight = flights[index(*first, &completion.buffer, *object_bytes)];
            match (completion.result, flight.step) {
                (Err(why), _) => failure = Some(why),
                (Ok(_), Step::Get(object)) => {
                    tally.got(
                        judge(&completion.buffer, object, *object_bytes),
                        ended - flight.began,
                    );
                }
                (Ok(_), Step::Put(_)) => {
                    tally.put((phase == Phase::Fill).then(|| ended - flight.began))
                }
            }
            idle.push(completion.buffer);
        });
        failure.map_or(Ok(taken), |why| Err(anyhow!("the raw loop's file: {why}")))
    }
}

/// Returns the index of a buffer among the pieces of a region that begins at `first`.
fn index(first: usize, buffer: &Buffer, object_bytes: usize) -> usize {
    (buffer.as_ptr() as usize - first) / object_bytes
}

impl Bed for Raw {
    fn run(&mut self, work: &Arc<Work>) -> Result<Tally> {
        let (mut random, mut tally) = (work.random(0), Tally::new());
        let depth = self.flights.len();
        loop {
            let begun = self.begin(work, &mut random)?;
            if begun == 0 && self.idle.len() == depth {
                return Ok(tally);
            }
            if self.take(work.phase, &mut tally)? == 0 {
                self.queue.wait(WAIT);
            }
        }
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
