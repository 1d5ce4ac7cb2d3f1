//! The minimal work of an initiator: the floor for the driver's performance.
//!
//! Fills the submission ring with 4 KiB reads, rings once per batch, and posts one read for each completion that it
//! reaps. It checks nothing, keeps no deadline, counts only completions and reads into one page, so its rate is what
//! the rings, the other core and the controller behind them allow.
//!
//! ```text
//! adit softnvme --socket /tmp/drive --media null --core 0 &
//! taskset -c 1 target/release/ring_floor vfio-user:/tmp/drive/cntrl --depth 32
//! ```
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_driver::controller::{Placement, RawQueuePair};
use adit_driver::spec::{Cid, DataPointer, IoOpcode, Iova, Sqe};
use adit_driver::{Buffer, Controller, ControllerOptions, Target};
use clap::Parser;

/// Entries of each ring, as in `adit bench` at these depths.
const ENTRIES: u32 = 256;
const SQE_WORDS: usize = 8;
const CQE_WORDS: usize = 2;
const BYTES: usize = 4096;
/// Batches between two readings of the clock.
const BATCHES: u32 = 1024;

/// Reads 4 KiB blocks as fast as the rings allow, and prints the rate.
#[derive(Parser)]
#[command(after_help = "Example:\n  ring_floor vfio-user:/tmp/drive/cntrl --depth 32 --seconds 2")]
struct Args {
    /// A controller.
    target: String,
    /// Reads in flight, 1 to 255.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..i64::from(ENTRIES)))]
    depth: u16,
    /// How long to read.
    #[arg(long, default_value_t = 1)]
    seconds: u64,
}

/// Both rings with their positions.
struct Rings<'a> {
    queue: &'a RawQueuePair,
    submission: &'a [AtomicU64],
    completion: &'a [AtomicU64],
    tail: u32,
    head: u32,
    phase: u64,
    lbas: u64,
    random: u64,
    command: [u64; SQE_WORDS],
}

impl<'a> Rings<'a> {
    fn new(queue: &'a RawQueuePair, command: [u64; SQE_WORDS], lbas: u64) -> Rings<'a> {
        let words = |space: &'a adit_driver::controller::RingSpace| {
            space.memory().expect("rings in this process").words()
        };
        let (submission, completion) = (words(queue.submission()), words(queue.completion()));
        let (tail, head, phase, random) = (0, 0, 1, 1);
        Rings { queue, submission, completion, tail, head, phase, lbas, random, command }
    }

    /// Posts a read of a random block.
    fn post(&mut self, cid: u64) {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let mut command = self.command;
        command[0] |= cid << 16;
        command[5] = (self.random >> 33) % self.lbas;
        let entry = &self.submission[self.tail as usize * SQE_WORDS..][..SQE_WORDS];
        for (word, value) in entry.iter().zip(command) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % ENTRIES;
    }

    /// Returns the identifier of the next completion, if there is one.
    fn pop(&mut self) -> Option<u64> {
        let entry = &self.completion[self.head as usize * CQE_WORDS..][..CQE_WORDS];
        let high = u64::from_le(entry[1].load(Ordering::Acquire));
        if high >> 48 & 1 != self.phase {
            return None;
        }
        assert_eq!(high >> 49, 0, "the read failed");
        self.head = (self.head + 1) % ENTRIES;
        self.phase ^= u64::from(self.head == 0);
        Some(high >> 32 & 0xffff)
    }

    /// Reaps all completions and posts equally many reads; returns how many.
    fn turn(&mut self) -> u64 {
        let mut found = 0;
        while let Some(cid) = self.pop() {
            self.post(cid);
            found += 1;
        }
        if found > 0 {
            let (submission, completion) = self.queue.doorbells();
            completion.ring(self.head);
            submission.ring(self.tail);
        }
        found
    }
}

/// Builds a read of one block into `page`, without an identifier and an address.
fn read_command(nsid: adit_driver::spec::Nsid, page: &Buffer, lba_bytes: u32) -> [u64; SQE_WORDS] {
    let dptr = DataPointer::Prp { prp1: page.iova(), prp2: Iova(0) };
    let sqe = Sqe::new(IoOpcode::READ.0, nsid).with_cid(Cid(0)).with_dptr(dptr);
    let mut words = sqe.to_qwords();
    words[6] = u64::from(BYTES as u32 / lba_bytes - 1);
    words
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let target: Target = args.target.parse()?;
    // SAFETY: the caller names a server that keeps to NVMe, such as 'adit softnvme'.
    unsafe { adit_driver::bus::vfio_user::trust_servers() };
    // The loop only rings registers.
    let options = ControllerOptions { shadow_doorbells: false, ..Default::default() };
    let controller = Controller::open(&target, &options)?;
    let namespace = controller.namespace_of(&target)?;
    let page = controller.allocate(BYTES)?;
    // SAFETY: the commands are reads of one page into `page`, which outlives the queue.
    let queue = unsafe { controller.create_raw_queue_pair(ENTRIES, Placement::Host)? };
    let lbas = namespace.lba_count() - u64::from(BYTES as u32 / namespace.lba_bytes());
    let command = read_command(namespace.nsid(), &page, namespace.lba_bytes());
    let mut rings = Rings::new(&queue, command, lbas);
    (0..args.depth).for_each(|cid| rings.post(cid.into()));
    queue.doorbells().0.ring(rings.tail);
    let (start, span) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut reads = 0;
    while start.elapsed() < span {
        reads += (0..BATCHES).map(|_| rings.turn()).sum::<u64>();
    }
    let iops = reads as f64 / start.elapsed().as_secs_f64();
    println!("{}", serde_json::json!({ "depth": args.depth, "iops": iops as u64 }));
    let is_deleted = queue.delete();
    if !is_deleted {
        // The controller may still write to it.
        std::mem::forget(page);
    }
    Ok(())
}
