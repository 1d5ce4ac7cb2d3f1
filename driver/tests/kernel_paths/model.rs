//! Random requests in flight, against a model of the file.

use std::time::{Duration, Instant};

use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, Request};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Device};
use proptest::prelude::*;

use super::rig::{PATHS, TestFile, carry_out, queue};

/// LBAs of the file, each of this size, whatever the path's minimum.
const BLOCKS: usize = 32;
const BLOCK: usize = 4096;

/// A request's effect on blocks; requests in flight together are disjoint.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read { first: usize, count: usize },
    Write { first: usize, count: usize, fill: u8 },
    Deallocate { first: usize, count: usize },
    Flush,
}

impl Step {
    fn blocks(self) -> std::ops::Range<usize> {
        match self {
            Step::Read { first, count }
            | Step::Write { first, count, .. }
            | Step::Deallocate { first, count } => first..(first + count).min(BLOCKS),
            Step::Flush => 0..0,
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0..BLOCKS, 1..5usize);
    prop_oneof![
        4 => place.clone().prop_map(|(first, count)| Step::Read { first, count }),
        4 => (place.clone(), 1u8..)
            .prop_map(|((first, count), fill)| Step::Write { first, count, fill }),
        1 => place.prop_map(|(first, count)| Step::Deallocate { first, count }),
        1 => Just(Step::Flush),
    ]
}

/// What a request's queue owns: buffers, and what the request is.
type Tagged = (Vec<Buffer>, Step);

struct Run {
    device: Device,
    queue: DeviceQueue<Tagged>,
    model: Vec<u8>,
    /// Blocks that a request in flight touches.
    busy: [bool; BLOCKS],
    in_flight: usize,
    deallocates: bool,
}

impl Run {
    fn request(&self, step: Step, memory: &mut Vec<Buffer>) -> Request<Tagged> {
        let lbas = (BLOCK as u32) / self.device.info().lba_bytes;
        let blocks = step.blocks();
        let lba = Lba(blocks.start as u64 * u64::from(lbas));
        let count = blocks.len() as u32 * lbas;
        let mut buffers: Vec<Buffer> = memory.drain(..blocks.len().max(1)).collect();
        let operation = match step {
            Step::Read { .. } => Operation::Read(lba),
            Step::Write { fill, .. } => {
                for (buffer, block) in buffers.iter_mut().zip(blocks) {
                    buffer.fill(fill ^ block as u8);
                }
                Operation::Write(lba)
            }
            Step::Deallocate { .. } => Operation::Deallocate(lba, count),
            Step::Flush => Operation::Flush,
        };
        Request { operation, buffer: (buffers, step) }
    }

    /// Waits until no request in flight touches `blocks` and there is room.
    fn make_way(&mut self, step: Step, memory: &mut Vec<Buffer>) {
        let room = self.device.info().queue_depth_max.min(8) as usize;
        let start = Instant::now();
        while self.in_flight == room || step.blocks().any(|block| self.busy[block]) {
            self.poll(memory);
            assert!(start.elapsed() < Duration::from_secs(30), "requests never completed");
        }
    }

    fn post(&mut self, step: Step, memory: &mut Vec<Buffer>) {
        let request = self.request(step, memory);
        self.queue.post(self.device.now(), request).expect("there is room");
        self.queue.ring();
        self.in_flight += 1;
        step.blocks().for_each(|block| self.busy[block] = true);
    }

    fn poll(&mut self, memory: &mut Vec<Buffer>) {
        let (model, busy, deallocates) = (&mut self.model, &mut self.busy, self.deallocates);
        let ended = self.queue.poll(self.device.now(), |completion| {
            let (buffers, step) = completion.buffer;
            assert_eq!(completion.result, Ok(0), "{step:?}");
            settle(step, &buffers, model, deallocates);
            step.blocks().for_each(|block| busy[block] = false);
            memory.extend(buffers);
        });
        self.in_flight -= ended;
    }
}

/// Checks a finished read against the model, or applies a write to it.
fn settle(step: Step, buffers: &[Buffer], model: &mut [u8], deallocates: bool) {
    for (buffer, block) in buffers.iter().zip(step.blocks()) {
        let known = &mut model[block * BLOCK..(block + 1) * BLOCK];
        match step {
            Step::Read { .. } => assert_eq!(&buffer[..], known, "block {block}"),
            Step::Write { .. } => known.copy_from_slice(buffer),
            Step::Deallocate { .. } | Step::Flush => {}
        }
    }
    if let Step::Deallocate { .. } = step {
        assert!(deallocates, "what a device says it cannot is not asked of it");
        let blocks = step.blocks();
        model[blocks.start * BLOCK..blocks.end * BLOCK].fill(0);
    }
}

fn follow(path: &str, steps: &[Step]) {
    let file = TestFile::new();
    let device = file.open(path, (BLOCKS * BLOCK) as u64);
    let deallocates = device.info().deallocates;
    let mut all = device.allocate(64 * BLOCK).expect("memory");
    let mut memory: Vec<Buffer> = (0..64).rev().map(|index| all.split_off(index * BLOCK)).collect();
    // The last buffer is never registered, and used unregistered.
    let registered: Vec<&Buffer> = memory.iter().take(48).collect();
    let queue = queue(&device, 8, &registered);
    let model = vec![0; BLOCKS * BLOCK];
    let mut run = Run { device, queue, model, busy: [false; BLOCKS], in_flight: 0, deallocates };
    for step in steps {
        if matches!(step, Step::Deallocate { .. }) && !deallocates {
            continue;
        }
        run.make_way(*step, &mut memory);
        run.post(*step, &mut memory);
    }
    let start = Instant::now();
    while run.in_flight > 0 {
        run.poll(&mut memory);
        assert!(start.elapsed() < Duration::from_secs(30), "requests never completed");
    }
    assert_eq!(memory.len(), 64, "every buffer came back");
    let stats = run.queue.stats();
    assert_eq!((stats.submitted, stats.unknown_cids), (stats.completed, 0));
    assert_eq!(std::fs::read(file.path()).expect("the file"), run.model, "what the file holds");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_path_does_to_a_file_what_a_model_does(steps in prop::collection::vec(step(), 1..60)) {
        for path in PATHS {
            follow(path, &steps);
        }
    }
}

#[test]
fn what_one_path_writes_every_other_reads() {
    for from in PATHS {
        let file = TestFile::new();
        let device = file.open(from, 1 << 20);
        let mut buffer = device.allocate(8192).expect("memory");
        buffer.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
        let (expected, mut writer) = (buffer.to_vec(), queue(&device, 4, &[&buffer]));
        let lbas = |device: &Device| 8192 / u64::from(device.info().lba_bytes);
        let at = Operation::Write(Lba(3 * lbas(&device)));
        let written = carry_out(&device, &mut writer, at, buffer);
        assert_eq!(written.result, Ok(0), "{from}");
        let flushed = carry_out(&device, &mut writer, Operation::Flush, written.buffer);
        assert_eq!(flushed.result, Ok(0), "{from}");
        for to in PATHS {
            let device = file.open(to, 1 << 20);
            let memory = device.allocate(8192).expect("memory");
            let mut reader = queue(&device, 4, &[&memory]);
            let at = Operation::Read(Lba(3 * lbas(&device)));
            let read = carry_out(&device, &mut reader, at, memory);
            assert_eq!(read.result, Ok(0), "{from} to {to}");
            assert!(read.buffer[..] == expected[..], "{from} to {to}");
        }
    }
}
