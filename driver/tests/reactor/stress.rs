//! A million requests from eight threads: none is lost or mixed up, and each thread's are posted in order.
//!
//! `ADIT_REACTOR_REQUESTS=100000` runs fewer, for slow machines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::reactor::{Client, Pending, Reactor, ReactorOptions};
use adit_driver::runtime::Cores;
use adit_driver::soft::Verdict;
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Buffer, Completion, Controller, ControllerOptions};

const THREADS: u64 = 8;
/// LBAs per thread, each holding its own number.
const LBAS: u64 = 4096;
/// Requests that a thread keeps in flight.
const WINDOW: usize = 32;

/// What the device saw.
#[derive(Default)]
struct Seen {
    reads: u64,
    /// The next expected request, by queue and thread.
    next: BTreeMap<(u16, u64), u64>,
    disorder: u64,
}

impl Seen {
    fn read(&mut self, qid: u16, lba: u64) {
        self.reads += 1;
        let next = self.next.entry((qid, lba / LBAS)).or_insert(lba % LBAS);
        self.disorder += u64::from(*next != lba % LBAS);
        *next = (lba + 1) % LBAS;
    }
}

/// Reads its LBAs over and over, and checks the number in each.
fn reads(client: &Client, thread: u64, requests: u64, buffers: Vec<Buffer>) -> u64 {
    let mut idle = buffers;
    let mut flying: VecDeque<(u64, Pending<Buffer>)> = VecDeque::new();
    let mut ended = 0;
    for request in 0..requests {
        let lba = thread * LBAS + request % LBAS;
        let buffer = idle.pop().unwrap_or_else(|| {
            ended += 1;
            right(flying.pop_front().expect("a full window"))
        });
        let command = client.namespace().read(Lba(lba), buffer);
        let sent = client.submit_wait(command, Duration::from_secs(60)).expect("room in time");
        flying.push_back((lba, sent));
    }
    ended + flying.into_iter().map(|flown| right(flown).len().min(1) as u64).sum::<u64>()
}

fn right((lba, pending): (u64, Pending<Buffer>)) -> Buffer {
    let ended = pending.wait_timeout(Duration::from_secs(60)).expect("it ends");
    let Completion { buffer, result } = ended.expect("carried out");
    assert_eq!(result, Ok(0));
    assert_eq!(buffer[..8], lba.to_le_bytes(), "the answer to another request");
    buffer
}

fn write_numbers(client: &Client) {
    let mut buffer = client.controller().allocate((LBAS * 512) as usize).expect("memory");
    for thread in 0..THREADS {
        for (index, lba) in buffer.chunks_exact_mut(512).enumerate() {
            lba[..8].copy_from_slice(&(thread * LBAS + index as u64).to_le_bytes());
        }
        let write = client.namespace().write(Lba(thread * LBAS), buffer);
        (buffer, _) = client.execute(write).expect("written");
    }
}

#[test]
fn a_million_requests_from_eight_threads_are_neither_lost_nor_mixed_up_nor_reordered() {
    let requests: u64 = std::env::var("ADIT_REACTOR_REQUESTS")
        .map_or(1_000_000, |count| count.parse().expect("a number of requests"));
    let bus = SoftBus::new("mem=16M".parse().expect("options"), Drive::Thread).expect("bus");
    let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
    let controller = controller.expect("open");
    let namespace = controller.namespace(Nsid(1)).expect("namespace 1");
    let cores = std::thread::available_parallelism().expect("cores").get().min(2);
    let options = ReactorOptions { cores: Cores::Count(cores), ..ReactorOptions::default() };
    let reactor = Reactor::start(options).expect("reactor");
    let client = reactor.attach(&controller, &namespace).expect("client");
    write_numbers(&client);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let sees = Arc::clone(&seen);
    bus.with_controller(|controller| {
        controller.set_hook(move |sqe, qid| {
            if !qid.is_admin() {
                sees.lock().expect("not poisoned").read(qid.0, sqe.cdw10.get().into());
            }
            Verdict::Run
        });
    });
    let started = Instant::now();
    let share = requests / THREADS;
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let client = client.clone();
            let buffers = (0..WINDOW).map(|_| controller.allocate(512).expect("memory")).collect();
            std::thread::spawn(move || reads(&client, thread, share, buffers))
        })
        .collect();
    let ended: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    println!("{ended} requests in {:?} on {cores} cores", started.elapsed());
    assert_eq!(ended, share * THREADS);
    let seen = seen.lock().expect("not poisoned");
    assert_eq!((seen.reads, seen.disorder), (ended, 0));
    assert_eq!(seen.next.len() as u64, THREADS, "each thread kept to one queue");
    drop((client, reactor, controller, namespace));
    assert_eq!((bus.mapped_bytes(), bus.dma_faults()), (0, 0));
}
