//! The driver's part of the demo: all blocks of a workload are written in random order, then read back and checked.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use adit_driver::spec::Lba;
use adit_driver::{
    Buffer, Controller, ControllerOptions, Namespace, QueuePair, QueuePairOptions, Target, Time,
};
use adit_tools_common::failure::{Failure, Result};
use adit_tools_common::human;
use adit_tools_common::interrupt::Interrupt;

use crate::contents;

const TARGET: &str = "soft:mem=64M,lba=4096";
const LBA_BYTES: usize = 4096;
/// Rounds of a workload begin until it was measured for this long.
const MEASURED: Duration = Duration::from_secs(1);

/// A pair of rows in the table.
struct Workload {
    name: &'static str,
    block_bytes: usize,
    depth: usize,
    blocks: u64,
}

const WORKLOADS: [Workload; 3] = [
    Workload { name: "4 KiB, 1 in flight", block_bytes: 4 << 10, depth: 1, blocks: 2048 },
    Workload { name: "4 KiB, 32 in flight", block_bytes: 4 << 10, depth: 32, blocks: 8192 },
    Workload { name: "128 KiB, 32 in flight", block_bytes: 128 << 10, depth: 32, blocks: 512 },
];

#[derive(Clone, Copy)]
enum Direction {
    Write,
    Read,
}

/// A block in flight, and when it was submitted.
type Tag = (u64, Time);

/// Runs this part and returns its table.
///
/// # Errors
/// When a block differs from what was written, which is a bug of ours.
pub(crate) fn run(interrupt: &Interrupt) -> Result<String> {
    let target: Target = TARGET.parse()?;
    let controller = Controller::open(&target, &ControllerOptions::default())?;
    let namespace = controller.namespace_of(&target)?;
    let mut table = heading();
    for workload in &WORKLOADS {
        let [written, read] = measure(workload, &controller, &namespace, interrupt)?;
        row(&mut table, workload, "randwrite", written);
        row(&mut table, workload, "randread", read);
    }
    Ok(table)
}

/// Measures a workload, after a first round that is not measured, because untouched memory is slow.
fn measure(
    workload: &Workload,
    controller: &Controller,
    namespace: &Namespace,
    interrupt: &Interrupt,
) -> Result<[Measured; 2]> {
    let mut initiator = Initiator::new(workload, controller, namespace)?;
    let mut measured = [Measured::default(), Measured::default()];
    for round in 0.. {
        if interrupt.requested() {
            return Err(Failure::interrupted());
        }
        let order = contents::shuffled(workload.blocks, round);
        for (direction, into) in [Direction::Write, Direction::Read].into_iter().zip(&mut measured)
        {
            initiator.pass(direction, round, &order, into)?;
        }
        if round == 0 {
            measured = Default::default();
        } else if measured.iter().map(|each| each.took).sum::<Duration>() >= MEASURED {
            break;
        }
    }
    Ok(measured)
}

/// What is measured of one direction.
#[derive(Default)]
struct Measured {
    took: Duration,
    latencies_ns: Vec<u64>,
}

/// A queue pair and the buffers of a workload.
struct Initiator<'a> {
    controller: &'a Controller,
    namespace: &'a Namespace,
    queue: QueuePair<(Buffer, Tag)>,
    idle: Vec<Buffer>,
    lbas_per_block: u64,
}

impl<'a> Initiator<'a> {
    fn new(
        workload: &Workload,
        controller: &'a Controller,
        namespace: &'a Namespace,
    ) -> Result<Self> {
        let mut idle = Vec::with_capacity(workload.depth);
        for seed in 0..workload.depth as u64 {
            let mut buffer = controller.allocate(workload.block_bytes)?;
            contents::fill(&mut buffer, seed);
            idle.push(buffer);
        }
        let queue = controller.create_queue_pair(QueuePairOptions::default())?;
        let lbas_per_block = (workload.block_bytes / LBA_BYTES) as u64;
        Ok(Initiator { controller, namespace, queue, idle, lbas_per_block })
    }

    /// Writes or reads each block once in this order, with as many in flight as there are buffers.
    fn pass(
        &mut self,
        direction: Direction,
        round: u64,
        order: &[u64],
        measured: &mut Measured,
    ) -> Result<()> {
        let begun = self.controller.now();
        let mut blocks = order.iter();
        let mut ended = Vec::with_capacity(self.idle.len());
        while blocks.len() > 0 || self.queue.in_flight() > 0 {
            while let Some(buffer) = self.idle.pop_if(|_| blocks.len() > 0) {
                let block = *blocks.next().expect("there is another");
                self.post(direction, round, block, buffer)?;
            }
            self.queue.ring();
            let now = self.controller.now();
            if self.queue.poll(now, |done| ended.push(done)) == 0 {
                // The controller is a thread of this process and may want this core.
                thread::yield_now();
            }
            self.queue.check()?;
            for done in ended.drain(..) {
                let (buffer, (block, submitted)) = done.buffer;
                done.result.map_err(Failure::failed)?;
                measured.latencies_ns.push(now.since(submitted).as_nanos() as u64);
                if let Direction::Read = direction {
                    contents::check(&buffer, block, round)?;
                }
                self.idle.push(buffer);
            }
        }
        measured.took += self.controller.now().since(begun);
        Ok(())
    }

    fn post(
        &mut self,
        direction: Direction,
        round: u64,
        block: u64,
        mut buffer: Buffer,
    ) -> Result<()> {
        if let Direction::Write = direction {
            contents::seal(&mut buffer, block, round);
        }
        let (lba, now) = (Lba(block * self.lbas_per_block), self.controller.now());
        let tagged = (buffer, (block, now));
        let command = match direction {
            Direction::Write => self.namespace.write(lba, tagged),
            Direction::Read => self.namespace.read(lba, tagged),
        };
        self.queue.post(now, command).map(drop).map_err(Failure::failed)
    }
}

fn heading() -> String {
    format!(
        "{:<22} {:<10} {:>8} {:>12} {:>10} {:>10} {:>10}  {}\n",
        "workload", "", "IOPS", "bandwidth", "p50", "p99", "p99.9", "verified"
    )
}

fn row(table: &mut String, workload: &Workload, direction: &str, mut measured: Measured) {
    measured.latencies_ns.sort_unstable();
    let per_second = measured.latencies_ns.len() as f64 / measured.took.as_secs_f64();
    let percentile = |percent| human::latency(percentile(&measured.latencies_ns, percent));
    writeln!(
        table,
        "{:<22} {direction:<10} {:>8} {:>12} {:>10} {:>10} {:>10}  {} blocks",
        workload.name,
        human::si(per_second, 4),
        human::bytes(per_second * workload.block_bytes as f64) + "/s",
        percentile(50.0),
        percentile(99.0),
        percentile(99.9),
        measured.latencies_ns.len()
    )
    .expect("a string takes everything");
}

/// Returns the value that `percent` of these sorted values do not exceed.
pub(crate) fn percentile(sorted: &[u64], percent: f64) -> u64 {
    let at = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted[at.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u64> = (1..=1000).collect();
        let of = |percent| percentile(&values, percent);
        assert_eq!([of(0.0), of(50.0), of(99.9), of(100.0)], [1, 500, 999, 1000]);
        assert_eq!(percentile(&[7], 99.0), 7);
    }
}
