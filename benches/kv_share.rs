//! A store that one process embeds, compared with the same store used by two processes through a server.
//!
//! The one process has two threads, which do what each of the two does: keep as many requests in flight on registered
//! memory, take the oldest answer, ask again. Latency is that of one worker with one request. Both run in alternation;
//! the figures are medians of the rounds and of their ratios.
//!
//! ```text
//! cargo run --release -p adit-benches --bin kv_share -- soft:mem=1G uring:/var/tmp/share.img
//! ```
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use adit_driver::memory::AnyBuffer;
use adit_driver::sys::{Backing, HostMemory};
use adit_driver::{Buffer, Device, DeviceOptions, Target};
use adit_kvshare::{Client, ClientOptions, KvStore, Options, PendingAnswer, Pieces, Server, Span};
use adit_kvstore::shard::Part;
use adit_kvstore::{FormatStore, Key, OpenOptions, Store};
use clap::{Parser, ValueEnum};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes of the objects that are read.
const OBJECTS_BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 1 << 30;

/// Compares a store in one process with one that two processes share.
#[derive(Parser)]
#[command(after_help = "Example:\n  kv_share soft:mem=1G uring:/var/tmp/share.img --rounds 5")]
struct Args {
    /// The devices, one comparison each. Their contents are lost.
    targets: Vec<Target>,
    /// Rounds of each comparison.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measurement takes, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    ms: u64,
    /// KiB of each object.
    #[arg(long, default_value_t = 128)]
    object_kib: usize,
    /// Requests that each of the two workers keeps in flight.
    #[arg(long, default_value_t = 16)]
    depth: usize,
    /// What a process of the comparison is.
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// Where the server listens.
    #[arg(long, hide = true)]
    socket: Option<PathBuf>,
    /// Which of the two workers this process is.
    #[arg(long, hide = true, default_value_t = 0)]
    worker: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Embed,
    Serve,
    Client,
}

/// What a worker does next, as a line: "get 16 1000", "put 16 1000", "fill 16 0".
#[derive(Clone, Copy)]
struct Phase {
    is_put: bool,
    objects: u64,
    depth: usize,
    /// How long; until all objects are there if not given.
    time: Option<Duration>,
}

/// How many requests ended, and half of them within how many nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Measured {
    per_second: f64,
    p50_ns: u64,
    /// Processor time of all processes for each request.
    cpu_us: f64,
    /// The server's part of it.
    server_us: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.role {
        None => compare_all(&args),
        Some(Role::Embed) => embed(&args),
        Some(Role::Serve) => serve(&args),
        Some(Role::Client) => {
            let socket = args.socket.as_deref().ok_or("no socket")?;
            let client = Client::connect(socket, &ClientOptions::default())?;
            let memory = client.allocate(args.depth * args.bytes())?;
            let get = |key, span: Span| client.get_into(key, Part::All, span);
            let put = |key, span: Span| client.put(key, span);
            let mut slots = cut(memory, args.bytes());
            work(&args, &mut |phase| {
                if phase.is_put {
                    let wait = |put: adit_kvshare::client::Pending<_>| {
                        let put: adit_kvshare::client::Put = put.wait().expect("put");
                        put.memory.expect("what was lent")
                    };
                    keep_busy(phase, (args.worker, &mut slots), put, wait)
                } else {
                    let wait = |get: adit_kvshare::client::Pending<_>| {
                        let read: adit_kvshare::client::Read = get.wait().expect("got");
                        assert!(read.bytes.is_some(), "a hit");
                        read.memory.expect("what was lent")
                    };
                    keep_busy(phase, (args.worker, &mut slots), get, wait)
                }
            })
        }
    }
}

impl Args {
    fn bytes(&self) -> usize {
        self.object_kib << 10
    }

    fn open(&self) -> Result<Store> {
        let target = self.targets.first().ok_or("no target")?;
        let file_bytes = matches!(target, Target::Kernel(_)).then_some(FILE_BYTES);
        let options = DeviceOptions { file_bytes, ..DeviceOptions::default() };
        let devices = vec![Device::open(target, &options)?];
        let format = FormatStore { devices: devices.clone(), ..FormatStore::default() };
        Store::format(&FormatStore { overwrite: true, ..format })?;
        Ok(Store::open(&OpenOptions { devices, ..OpenOptions::default() })?)
    }
}

/// Cuts memory into slots.
fn cut<M: adit_kvshare::Divide>(all: M, bytes: usize) -> Vec<M> {
    let mut pieces = Pieces::new(all);
    std::iter::from_fn(|| pieces.take_any(bytes)).map(|(_, slot)| slot).collect()
}

/// Carries out the phases that come as lines, and answers each with a line.
fn work(args: &Args, run: &mut dyn FnMut(Phase) -> Measured) -> Result<()> {
    let objects = OBJECTS_BYTES / args.bytes() as u64;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let [what, depth, ms] = words[..] else { return Err(format!("'{line}'?").into()) };
        let time = (what != "fill").then(|| ms.parse().map(Duration::from_millis)).transpose()?;
        let measured = run(Phase { is_put: what != "get", objects, depth: depth.parse()?, time });
        println!("{} {}", measured.per_second, measured.p50_ns);
    }
    Ok(())
}

/// Keeps requests in flight for the phase's time.
fn keep_busy<M, P>(
    phase: Phase,
    (worker, slots): (u64, &mut Vec<M>),
    ask: impl Fn(Key, M) -> P,
    wait: impl Fn(P) -> M,
) -> Measured {
    let begin = Instant::now();
    let mut asked: VecDeque<(Instant, P)> = VecDeque::new();
    // Each worker asks for other objects, in either arrangement.
    let (mut latencies, mut number, mut random) = (Vec::new(), 0, worker);
    let goes_on = |number: u64| match phase.time {
        Some(time) => begin.elapsed() < time,
        None => number < phase.objects,
    };
    while goes_on(number) || !asked.is_empty() {
        while asked.len() < phase.depth && goes_on(number) {
            let slot = slots.pop().expect("a slot for each request");
            let object =
                if phase.time.is_some() { next(&mut random) % phase.objects } else { number };
            asked.push_back((Instant::now(), ask(Key::from(object), slot)));
            number += 1;
        }
        if let Some((since, pending)) = asked.pop_front() {
            slots.push(wait(pending));
            latencies.push(since.elapsed().as_nanos() as u64);
        }
    }
    latencies.sort_unstable();
    let per_second = latencies.len() as f64 / begin.elapsed().as_secs_f64();
    let p50_ns = latencies[latencies.len() / 2];
    Measured { per_second, p50_ns, cpu_us: 0.0, server_us: 0.0 }
}

fn next(random: &mut u64) -> u64 {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

fn one(memory: AnyBuffer) -> Buffer {
    match memory {
        AnyBuffer::One(buffer) => buffer,
        _ => unreachable!("one buffer was lent"),
    }
}

/// The process that embeds the store: two threads, or one where one request is in flight.
fn embed(args: &Args) -> Result<()> {
    let store = args.open()?;
    let bytes = 2 * args.depth * args.bytes();
    let memory = store.register(HostMemory::allocate(bytes, Backing::Any, &|_, _| ())?)?;
    let mut slots = cut(memory, args.bytes());
    let mut others = slots.split_off(args.depth);
    let (store, depth) = (&store, args.depth);
    let run = |phase: Phase, worker: u64, slots: &mut Vec<Buffer>| {
        let worker = (worker, slots);
        let get = |key, slot: Buffer| store.get_into(key, Part::All, slot);
        if phase.is_put {
            keep_busy(
                phase,
                worker,
                |key, slot| store.put(key, slot),
                |put| one(put.wait().expect("put").memory),
            )
        } else {
            keep_busy(phase, worker, get, |get| {
                let read = get.wait().expect("got");
                assert!(read.bytes.is_some(), "a hit");
                one(read.memory)
            })
        }
    };
    work(args, &mut |phase| {
        if phase.depth < depth || phase.time.is_none() {
            return run(phase, 0, &mut slots);
        }
        std::thread::scope(|scope| {
            let other = scope.spawn(|| run(phase, 1, &mut others));
            let one = run(phase, 0, &mut slots);
            let other = other.join().expect("no panic");
            Measured { per_second: one.per_second + other.per_second, ..one }
        })
    })
}

fn serve(args: &Args) -> Result<()> {
    let store = args.open()?;
    let socket = args.socket.as_deref().ok_or("no socket")?;
    let server = Server::bind(socket, Options::default())?;
    println!("ready");
    Ok(server.run(&store, &AtomicBool::new(false), &|_| ())?)
}

/// A process of the comparison, killed on drop.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(
        args: &Args,
        target: &Target,
        (role, worker): (&str, u64),
        socket: &Path,
    ) -> Result<Process> {
        let mut child = Command::new(std::env::current_exe()?);
        child.arg(target.to_string()).args(["--role", role]).arg("--socket").arg(socket);
        let numbers = [
            ("--object-kib", args.object_kib as u64),
            ("--depth", args.depth as u64),
            ("--worker", worker),
        ];
        for (name, value) in numbers {
            child.args([name, &value.to_string()]);
        }
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut process = Process { child, input, output };
        assert_eq!(process.line()?.trim(), "ready");
        Ok(process)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    fn begin(&mut self, what: &str, depth: usize, ms: u64) -> Result<()> {
        Ok(writeln!(self.input, "{what} {depth} {ms}")?)
    }

    fn end(&mut self) -> Result<Measured> {
        let line = self.line()?;
        let (per_second, p50_ns) = line.trim().split_once(' ').ok_or("a process ended early")?;
        let (per_second, p50_ns) = (per_second.parse()?, p50_ns.parse()?);
        Ok(Measured { per_second, p50_ns, cpu_us: 0.0, server_us: 0.0 })
    }
}

impl Process {
    /// Returns the processor time that it has used, in microseconds.
    fn cpu_us(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, after) = stat.rsplit_once(')').ok_or("no name")?;
        let ticks = after.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        // Ticks are hundredths of a second.
        Ok(ticks.sum::<std::result::Result<f64, _>>()? * 1e4)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures gets, puts, and gets one by one. `server` works for the workers, if there is one.
fn measure(
    args: &Args,
    workers: &mut [Process],
    server: Option<&Process>,
) -> Result<[Measured; 3]> {
    workers[0].begin("fill", args.depth, 0)?;
    workers[0].end()?;
    let mut run = |what: &str, depth: usize, count: usize| -> Result<Measured> {
        let cpu = |workers: &[Process]| -> Result<f64> {
            workers.iter().chain(server).map(Process::cpu_us).sum()
        };
        let of_server = || server.map_or(Ok(0.0), Process::cpu_us);
        let (before, server_before) = (cpu(workers)?, of_server()?);
        let busy = &mut workers[..count];
        busy.iter_mut().try_for_each(|worker| worker.begin(what, depth, args.ms))?;
        let ended = busy.iter_mut().map(Process::end).collect::<Result<Vec<_>>>()?;
        let per_second: f64 = ended.iter().map(|one| one.per_second).sum();
        let requests = per_second * args.ms as f64 / 1000.0;
        let cpu_us = (cpu(workers)? - before) / requests;
        let server_us = (of_server()? - server_before) / requests;
        Ok(Measured { per_second, cpu_us, server_us, ..ended[0] })
    };
    let all = if server.is_some() { 2 } else { 1 };
    Ok([run("get", args.depth, all)?, run("put", args.depth, all)?, run("get", 1, 1)?])
}

fn compare_all(args: &Args) -> Result<()> {
    for target in &args.targets {
        let folder = std::env::temp_dir().join(format!("adit-kv-share-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let compared = compare(args, target, &folder.join("kv.sock"));
        std::fs::remove_dir_all(&folder)?;
        compared?;
    }
    Ok(())
}

fn compare(args: &Args, target: &Target, socket: &Path) -> Result<()> {
    let mut rounds: Vec<[[Measured; 3]; 2]> = Vec::new();
    for _ in 0..args.rounds {
        let embedded = {
            let mut embedding = [Process::start(args, target, ("embed", 0), socket)?];
            measure(args, &mut embedding, None)?
        };
        let server = Process::start(args, target, ("serve", 0), socket)?;
        let client = |worker| Process::start(args, target, ("client", worker), socket);
        rounds.push([embedded, measure(args, &mut [client(0)?, client(1)?], Some(&server))?]);
    }
    let median = |of: &dyn Fn(&[[Measured; 3]; 2]) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("{target}, objects of {} KiB, {} rounds", args.object_kib, args.rounds);
    let gib = |per_second: f64| per_second * args.bytes() as f64 / (1 << 30) as f64;
    for (at, name) in ["get", "put"].into_iter().enumerate() {
        let one = median(&|round| round[0][at].per_second);
        let two = median(&|round| round[1][at].per_second);
        let ratio = median(&|round| round[1][at].per_second / round[0][at].per_second);
        let cpu = [0, 1].map(|which| median(&|round| round[which][at].cpu_us));
        let (one, two) = (gib(one), gib(two));
        println!(
            "  {name}: {one:.2} and {two:.2} GiB/s, ratio {ratio:.3}; {:.1} and {:.1} us of CPU each, \
             {:.1} of it the server's",
            cpu[0],
            cpu[1],
            median(&|round| round[1][at].server_us)
        );
    }
    let us = |ns: f64| ns / 1000.0;
    let (one, two) =
        (median(&|round| round[0][2].p50_ns as f64), median(&|round| round[1][2].p50_ns as f64));
    let more = median(&|round| round[1][2].p50_ns as f64 - round[0][2].p50_ns as f64);
    println!("  get, one by one: p50 {:.1} and {:.1} us, {:+.1} us", us(one), us(two), us(more));
    Ok(())
}
