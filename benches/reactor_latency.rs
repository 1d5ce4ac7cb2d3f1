//! The idle cost of a reactor, its latency after idling, and its throughput.
//!
//! | measured | how |
//! |---|---|
//! | idle cost | the CPU time of the reactor's thread (`/proc/self/task/*/schedstat`) over some seconds |
//! | first I/O after idling | from `read` to the answer, alternating with a bare eventfd wake-up of a thread on the same core |
//! | throughput | requests through the reactor, and through a queue pair of the thread's own |
//!
//! Sender and controller share a core; the reactor has another. For the first I/O the sender also steps the
//! controller and never sleeps, so that exactly one wake-up is measured: the reactor's. Run it on an otherwise idle
//! machine; the load is printed.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::reactor::{Client, Lane, Pending, Reactor, ReactorOptions};
use adit_driver::runtime::{Cores, Idle};
use adit_driver::soft::Verdict;
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{
    Buffer, Controller, ControllerOptions, Namespace, QueuePair, QueuePairOptions, Result, Time,
};
use clap::Parser;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

/// Measures a reactor's idle cost, its latency after idling, and its throughput.
#[derive(Parser)]
#[command(
    after_help = "Examples:\n  reactor_latency --gap-ms 1000 --samples 40 --seconds 5\n  valgrind --tool=callgrind --toggle-collect='*hot_turn*' reactor_latency --bursts 200"
)]
struct Args {
    /// The core of the reactor's thread; this thread takes the next one.
    #[arg(long, default_value_t = 0)]
    core: usize,
    /// Idle time before each first I/O, in milliseconds.
    #[arg(long, default_value_t = 20)]
    gap_ms: u64,
    /// First I/Os, and as many bare wake-ups.
    #[arg(long, default_value_t = 500)]
    samples: usize,
    /// Seconds of each measurement of cost and throughput.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Only run this many bursts of 32 requests by hand, for callgrind to count.
    #[arg(long)]
    bursts: Option<u32>,
    /// How long an idle reactor spins, in microseconds.
    #[arg(long)]
    spin_us: Option<u64>,
    /// How long it pauses after that, in microseconds.
    #[arg(long)]
    pause_us: Option<u64>,
}

impl Args {
    fn idle(&self) -> Idle {
        let mut idle = Idle::default();
        idle.spin = self.spin_us.map_or(idle.spin, Duration::from_micros);
        idle.pause = self.pause_us.map_or(idle.pause, Duration::from_micros);
        idle
    }

    fn reactor(&self) -> Result<Reactor> {
        let cores = Cores::List(vec![self.core]);
        Reactor::start(ReactorOptions { cores, idle: self.idle(), ..ReactorOptions::default() })
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

struct Machine {
    bus: Arc<SoftBus>,
    controller: Controller,
    namespace: Namespace,
}

impl Machine {
    fn new(tail: &str, drive: Drive, interrupts: bool) -> Result<Machine> {
        let bus = SoftBus::new(tail.parse()?, drive)?;
        let options = ControllerOptions { interrupts, ..ControllerOptions::default() };
        let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &options)?;
        let namespace = controller.namespace(Nsid(1))?;
        Ok(Machine { bus, controller, namespace })
    }

    fn buffers(&self, count: usize) -> Result<Vec<Buffer>> {
        (0..count).map(|_| self.controller.allocate(4096)).collect()
    }
}

/// Returns the CPU time so far of the thread with this name.
fn thread_time(name: &str) -> std::io::Result<Duration> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == name {
            let stat = std::fs::read_to_string(path.join("schedstat"))?;
            let ns = stat.split_whitespace().next().and_then(|ns| ns.parse().ok());
            return Ok(Duration::from_nanos(ns.unwrap_or(0)));
        }
    }
    Err(std::io::Error::other(format!("no thread '{name}'")))
}

/// Measures the share of a core that the reactor's thread takes.
fn cost(args: &Args, label: &str, interrupts: bool, in_flight: bool) -> Result<()> {
    let machine = Machine::new("null", Drive::Thread, interrupts)?;
    machine.bus.with_controller(|controller| {
        controller.set_hook(|_, qid| if qid.is_admin() { Verdict::Run } else { Verdict::Hold })
    });
    let reactor = args.reactor()?;
    let client = reactor.attach(&machine.controller, &machine.namespace)?;
    let held = match in_flight {
        true => Some(client.read(Lba(0), machine.buffers(1)?.remove(0))?),
        false => None,
    };
    std::thread::sleep(Duration::from_millis(100));
    let name = format!("adit-reactor-{}", args.core);
    let io = |why| adit_driver::Error::refused("schedstat", "read it", why, "none");
    let (before, sleeps) = (thread_time(&name).map_err(io)?, client.stats().sleeps);
    let started = Instant::now();
    std::thread::sleep(args.time());
    let used = (thread_time(&name).map_err(io)? - before).as_secs_f64();
    let took = started.elapsed().as_secs_f64();
    let sleeps = (client.stats().sleeps - sleeps) as f64 / took;
    println!("{label:<44} {:>8.4} % of a core, {sleeps:.0} sleeps/s", used / took * 100.0);
    machine.bus.release_held();
    drop(held);
    Ok(())
}

fn pinned<R: Send>(core: usize, f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
                println!("not pinned to core {core}");
            }
            f()
        });
        thread.join().expect("no panic")
    })
}

/// A thread that sleeps in poll(2) on an eventfd, like the reactor's, and only answers.
struct Bare {
    eventfd: Arc<EventFd>,
    answers: Arc<AtomicU64>,
    stops: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bare {
    fn start(core: usize) -> Bare {
        let eventfd = Arc::new(EventFd::new().expect("eventfd"));
        let (answers, stops) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (fd, answer, stop) = (Arc::clone(&eventfd), Arc::clone(&answers), Arc::clone(&stops));
        let thread = std::thread::spawn(move || {
            core_affinity::set_for_current(core_affinity::CoreId { id: core });
            while !stop.load(Ordering::Acquire) {
                let mut files = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
                poll(&mut files, PollTimeout::NONE).expect("poll");
                fd.read().expect("read");
                answer.fetch_add(1, Ordering::Release);
            }
        });
        Bare { eventfd, answers, stops, thread: Some(thread) }
    }

    fn wake(&self) -> Duration {
        let before = self.answers.load(Ordering::Acquire);
        let started = Instant::now();
        self.eventfd.write(1).expect("write");
        while self.answers.load(Ordering::Acquire) == before {
            std::hint::spin_loop();
        }
        started.elapsed()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Release);
        let _ = self.eventfd.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Steps the controller until the answer arrives.
fn answer(machine: &Machine, mut pending: Pending<Buffer>) -> Buffer {
    loop {
        machine.bus.step();
        match pending.try_wait() {
            Ok(ended) => return ended.expect("carried out").buffer,
            Err(not_yet) => pending = not_yet,
        }
    }
}

fn print_times(label: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at =
        |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1e3;
    let [min, p50, p90, p99, max] = [0.0, 0.5, 0.9, 0.99, 1.0].map(at);
    println!("{label:<44} {min:>8.1} {p50:>8.1} {p90:>8.1} {p99:>8.1} {max:>8.1} us");
}

/// Alternates first I/Os after idling and bare wake-ups, then runs I/Os without a break.
fn latency(args: &Args) -> Result<()> {
    let machine = Machine::new("null", Drive::Manual, false)?;
    let reactor = args.reactor()?;
    let client = reactor.attach(&machine.controller, &machine.namespace)?;
    let bare = Bare::start(args.core);
    pinned(args.core + 1, || measure_latency(args, &machine, &client, &bare))
}

fn measure_latency(args: &Args, machine: &Machine, client: &Client, bare: &Bare) -> Result<()> {
    let mut buffer = machine.buffers(1)?.remove(0);
    let (mut first, mut woken, mut next) = (Vec::new(), Vec::new(), Vec::new());
    let gap = Duration::from_millis(args.gap_ms);
    for _ in 0..args.samples {
        std::thread::sleep(gap);
        let started = Instant::now();
        buffer = answer(machine, client.read(Lba(0), buffer)?);
        first.push(started.elapsed());
        std::thread::sleep(gap);
        woken.push(bare.wake());
    }
    for _ in 0..args.samples * 20 {
        let started = Instant::now();
        buffer = answer(machine, client.read(Lba(0), buffer)?);
        next.push(started.elapsed());
    }
    println!("{:<44} {:>8} {:>8} {:>8} {:>8} {:>8}", "latency", "min", "p50", "p90", "p99", "max");
    print_times(&format!("first I/O after {gap:?} idle"), first);
    print_times("bare eventfd wake-up and answer", woken);
    print_times("I/O after I/O (the reactor spins)", next);
    let stats = client.stats();
    println!("slept {} times, woken {} times", stats.sleeps, stats.wakes);
    Ok(())
}

/// Keeps all buffers in flight through the reactor while stepping the controller. Returns how many requests ended.
fn through_reactor(
    machine: &Machine,
    client: &Client,
    mut idle: Vec<Buffer>,
    time: Duration,
) -> Result<u64> {
    let mut flying: VecDeque<Pending<Buffer>> = VecDeque::new();
    let (started, mut ended) = (Instant::now(), 0);
    while started.elapsed() < time {
        for buffer in idle.drain(..) {
            flying.push_back(client.read(Lba(0), buffer)?);
        }
        machine.bus.step();
        while let Some(pending) = flying.pop_front() {
            match pending.try_wait() {
                Ok(done) => idle.push(done?.buffer),
                Err(not_yet) => {
                    flying.push_front(not_yet);
                    break;
                }
            }
        }
        ended += idle.len() as u64;
    }
    Ok(ended)
}

/// Does the same through a queue pair of this thread, while another thread steps the controller.
fn run_to_completion(machine: &Machine, mut idle: Vec<Buffer>, time: Duration) -> Result<u64> {
    let mut queue: QueuePair<Buffer> =
        machine.controller.create_queue_pair(QueuePairOptions::default())?;
    let (started, mut ended) = (Instant::now(), 0);
    loop {
        let now = machine.controller.now();
        for buffer in idle.drain(..) {
            queue.post(now, machine.namespace.read(Lba(0), buffer)).expect("room");
        }
        queue.ring();
        queue.poll(now, |completion| idle.push(completion.buffer));
        ended += idle.len() as u64;
        if started.elapsed() > time {
            return Ok(ended);
        }
    }
}

/// Sends a burst. Never inlined, for callgrind, like the next two.
#[inline(never)]
fn hot_send(client: &Client, idle: &mut Vec<Buffer>, flying: &mut Vec<Pending<Buffer>>) {
    flying.extend(idle.drain(..).map(|buffer| client.read(Lba(0), buffer).expect("room")));
}

#[inline(never)]
fn hot_turn(lane: &mut Lane) {
    lane.turn(Time::ZERO);
}

/// Takes the answers of a burst.
#[inline(never)]
fn hot_take(idle: &mut Vec<Buffer>, flying: &mut Vec<Pending<Buffer>>) {
    let answers = flying.drain(..).map(|pending| pending.try_wait().expect("ended"));
    idle.extend(answers.map(|answer| answer.expect("carried out").buffer));
}

/// Runs bursts of 32 through a lane turned by hand, for callgrind to count.
fn bursts(count: u32) -> Result<()> {
    let machine = Machine::new("null,dbbuf=off", Drive::Manual, false)?;
    let options = ReactorOptions::default();
    let (mut lane, client) = Lane::attach(&machine.controller, &machine.namespace, &options)?;
    let (mut idle, mut flying) = (machine.buffers(32)?, Vec::with_capacity(32));
    for _ in 0..count {
        hot_send(&client, &mut idle, &mut flying);
        hot_turn(&mut lane);
        while machine.bus.step() > 0 {}
        hot_turn(&mut lane);
        hot_take(&mut idle, &mut flying);
    }
    println!("{} requests", u64::from(count) * 32);
    Ok(())
}

/// Steps the controller on its core while `f` runs.
fn beside_controller<R>(args: &Args, machine: &Machine, f: impl FnOnce() -> R) -> R {
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pinned(args.core + 1, || {
                while !stops.load(Ordering::Acquire) {
                    machine.bus.step();
                }
            });
        });
        let result = f();
        stops.store(true, Ordering::Release);
        result
    })
}

/// Short windows, so that a disturbed one does not spoil the others.
const WINDOW: Duration = Duration::from_millis(50);

fn print_rates(label: &str, mut direct: Vec<u64>, mut through: Vec<u64>) {
    direct.sort_unstable();
    through.sort_unstable();
    let rate = |count: u64| count as f64 / WINDOW.as_secs_f64() / 1e3;
    let [d, t] = [&direct, &through].map(|rates| rate(rates[rates.len() / 2]));
    let [d_max, t_max] = [&direct, &through].map(|rates| rate(rates[rates.len() - 1]));
    println!("{label:<44} {d:>8.0} ({d_max:.0}) {t:>8.0} ({t_max:.0})");
}

fn throughput(args: &Args) -> Result<()> {
    let what = "k IOPS, median (best) of windows";
    println!("{what:<44} own queue pair, through the reactor");
    for depth in [1, 32, 128] {
        let machine = Machine::new("null,dbbuf=off", Drive::Manual, false)?;
        let reactor = args.reactor()?;
        let client = reactor.attach(&machine.controller, &machine.namespace)?;
        let (mut direct, mut through) = (Vec::new(), Vec::new());
        for _ in 0..args.seconds * 20 {
            let buffers = machine.buffers(depth)?;
            direct.push(beside_controller(args, &machine, || {
                pinned(args.core, || run_to_completion(&machine, buffers, WINDOW))
            })?);
            let buffers = machine.buffers(depth)?;
            let core = args.core + 1;
            let window = || through_reactor(&machine, &client, buffers, WINDOW);
            through.push(pinned(core, window)?);
        }
        print_rates(&format!("4 KiB reads, {depth} on their way"), direct, through);
    }
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    if let Some(count) = args.bursts {
        return Ok(bursts(count)?);
    }
    let load = std::fs::read_to_string("/proc/loadavg")?;
    println!("load {}; {:?}", load.trim(), args.idle());
    cost(&args, "idle", false, false)?;
    cost(&args, "a command in flight, no interrupts", false, true)?;
    cost(&args, "a command in flight, interrupts", true, true)?;
    latency(&args)?;
    throughput(&args)?;
    Ok(())
}
