//! A lane over a software controller in virtual time, beside a GPU that copies on command.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::bus::Bus;
use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Controller, ControllerOptions, Namespace, QueuePairOptions};

use super::stepped_gpu::{BASE, SteppedGpu};
use crate::commands::layout::Context;
use crate::staged::lane::{Lane, LaneOptions};
use crate::staged::{Area, Progress, Work};

pub(super) const LBA: usize = 512;
pub(super) const POOL: u64 = 1 << 20;
/// Address of blocks' words: behind the pool.
pub(super) const WORDS: u64 = BASE + POOL;
/// Bytes of words of a block: statuses, then `done`.
const WORDS_BYTES: u64 = 16 << 10;
pub(super) const CHUNKS: usize = 8;
/// LBAs of a chunk: the controller's MDTS is 32 KiB.
pub(super) const CHUNK_LBAS: u64 = 64;
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// A lane with its device, its GPU and its words.
pub(super) struct Rig {
    pub(super) bus: Arc<SoftBus>,
    pub(super) gpu: SteppedGpu,
    pub(super) controller: Arc<Controller>,
    pub(super) namespace: Namespace,
    pub(super) lane: Option<Lane<SteppedGpu>>,
    blocks: u64,
}

pub(super) struct Issued {
    pub(super) progress: Arc<Progress>,
    pub(super) statuses: u64,
    pub(super) done: u64,
    pub(super) generation: u32,
}

pub(super) fn read(lba: u64, lbas: u64, offset: u64) -> Context {
    Context { address: offset, place: Context::place(lba, lbas, 0, false) }
}

pub(super) fn write(lba: u64, lbas: u64, offset: u64) -> Context {
    Context { address: offset, place: Context::place(lba, lbas, 0, true) }
}

impl Rig {
    /// Creates a rig on a controller with these options, such as `,faults=...`.
    pub(super) fn new(tail: &str) -> Rig {
        let options = format!("mem=4M,lba=512,mdts=3{tail}").parse().expect("options");
        let bus = SoftBus::new(options, Drive::Manual).expect("bus");
        let controller =
            Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
        let controller = Arc::new(controller.expect("controller"));
        let namespace = controller.namespace(Nsid(1)).expect("namespace");
        let gpu = SteppedGpu::new((POOL + 64 * WORDS_BYTES) as usize);
        let mut rig = Rig { bus, gpu, controller, namespace, lane: None, blocks: 0 };
        rig.lane = Some(rig.new_lane());
        rig
    }

    /// Replaces the lane.
    pub(super) fn with_lane(mut self) -> Rig {
        self.lane = Some(self.new_lane());
        self
    }

    fn new_lane(&self) -> Lane<SteppedGpu> {
        let areas = [Area { address: BASE, bytes: POOL }].into();
        let options = LaneOptions {
            depth: 16,
            chunks: CHUNKS,
            chunk_bytes: CHUNK_LBAS as usize * LBA,
            timeout: TIMEOUT,
            drain: TIMEOUT,
        };
        Lane::new(&self.controller, &self.namespace, self.gpu.clone(), &areas, &options)
            .expect("a lane")
    }

    pub(super) fn lane(&mut self) -> &mut Lane<SteppedGpu> {
        self.lane.as_mut().expect("it was not dropped")
    }

    /// Creates a block without issuing it.
    pub(super) fn work(&mut self, contexts: &[Context], after: Option<usize>) -> Work<usize> {
        let (statuses, number) = (WORDS + self.blocks % 64 * WORDS_BYTES, self.blocks);
        self.blocks += 1;
        self.gpu.write(statuses, &[0; WORDS_BYTES as usize]);
        Work {
            device: 0,
            generation: number as u32 + 1,
            contexts: contexts.into(),
            after,
            done: statuses + WORDS_BYTES - 4,
            statuses,
            timeout: TIMEOUT,
            progress: Arc::new(Progress::new(contexts.len())),
        }
    }

    pub(super) fn issue(&mut self, contexts: &[Context], after: Option<usize>) -> Issued {
        let work = self.work(contexts, after);
        self.add(work)
    }

    /// Reuses the words of a block for other contexts.
    pub(super) fn issue_again(&mut self, before: &Issued, contexts: &[Context]) -> Issued {
        let (statuses, done) = (before.statuses, before.done);
        let generation = before.generation + 1;
        self.gpu.write(statuses, &[0; WORDS_BYTES as usize - 4]);
        let work = Work { statuses, done, generation, ..self.work(contexts, None) };
        self.add(work)
    }

    fn add(&mut self, work: Work<usize>) -> Issued {
        let issued = Issued {
            progress: Arc::clone(&work.progress),
            statuses: work.statuses,
            done: work.done,
            generation: work.generation,
        };
        self.lane().add(work);
        issued
    }

    /// Runs a turn of the lane, the controller and the GPU, and lets some time pass.
    pub(super) fn step(&mut self, copies: usize) {
        let now = self.bus.now();
        self.lane().turn(now);
        self.bus.step();
        self.gpu.run(copies);
        self.bus.advance(Duration::from_micros(100));
    }

    /// Steps until the CPU knows that the block is over.
    pub(super) fn finish(&mut self, issued: &Issued) {
        for _ in 0..200_000 {
            if issued.progress.done() == issued.generation {
                assert_eq!(self.gpu.word(issued.done), issued.generation, "the GPU was told first");
                return;
            }
            self.step(2);
        }
        panic!("the block does not end");
    }

    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.bus.now() + time;
        while self.bus.now() < end {
            self.step(2);
        }
    }

    /// Returns the device's content at an LBA.
    pub(super) fn on_device(&mut self, lba: u64, lbas: u64) -> Vec<u8> {
        let buffer = self.controller.allocate(lbas as usize * LBA).expect("memory");
        let mut queue =
            self.controller.create_queue_pair(QueuePairOptions::default()).expect("one");
        let (buffer, _) = queue.execute(self.namespace.read(Lba(lba), buffer)).expect("read");
        buffer.to_vec()
    }

    pub(super) fn put_on_device(&mut self, lba: u64, bytes: &[u8]) {
        let mut buffer = self.controller.allocate(bytes.len()).expect("memory");
        buffer.copy_from_slice(bytes);
        let mut queue =
            self.controller.create_queue_pair(QueuePairOptions::default()).expect("one");
        queue.execute(self.namespace.write(Lba(lba), buffer)).expect("write");
    }
}

/// Returns bytes that identify their source.
pub(super) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
