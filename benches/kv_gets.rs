//! Gets of a [`Store`] beside a raw loop over the same file, and fio if asked for, in turns.
//!
//! | contestant | does |
//! |---|---|
//! | `raw` | one io_uring queue of the driver's, reads at random places, unverified, waits in the kernel |
//! | `thread` | one thread with 32 gets in flight, waits for the oldest |
//! | `tasks` | 32 tasks on a runtime of one thread with all of its drivers, each with a get |
//! | `threads` | 8 threads, each with 4 gets in flight |
//! | `fio` | io_uring, with `--fio` |
//!
//! All read 128 KiB, 32 in flight, with O_DIRECT, from where the objects are. Figures are medians of the rounds: MB/s, the
//! ratio to `raw` of the same round with its quartiles, and the process's processor time. With `--busy` a thread pinned to
//! that core computes all the time, at the cost of that figure.
//!
//! ```text
//! cargo run --release -p adit-benches --bin kv_gets -- /var/tmp/store.img
//! cargo run --release -p adit-benches --bin kv_gets -- /var/tmp/store.img --busy 0 --fio --fixedbufs=1,--mem=mmaphuge
//! ```
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_driver::memory::AnyBuffer;
use adit_driver::paths::{CommandQueue, Operation, QueueOptions, Request};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Target};
use adit_kvstore::{FormatStore, Key, OpenOptions, Store, UNIT_BYTES};
use clap::Parser;
use core_affinity::CoreId;
use nix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const OBJECT_BYTES: usize = 128 << 10;
const DEPTH: usize = 32;
const THREADS: usize = 8;

/// Compares a store's gets with a raw loop over its file.
#[derive(Parser)]
#[command(after_help = "Example:\n  kv_gets /var/tmp/store.img --rounds 9")]
struct Args {
    /// The file, whose contents are lost.
    file: PathBuf,
    /// Size of the file, in MiB.
    #[arg(long, default_value_t = 2048)]
    file_mib: u64,
    /// Rounds of each.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Milliseconds of a turn.
    #[arg(long, default_value_t = 1500)]
    ms: u64,
    /// A core on which a thread computes meanwhile.
    #[arg(long)]
    busy: Option<usize>,
    /// Runs fio as well, with these further arguments, separated by commas.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, num_args = 0..)]
    fio: Option<Vec<String>>,
}

/// Numbers below a bound, from a seed.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Opens a new store and fills most of it; returns the number of objects.
fn filled(args: &Args) -> Result<(Store, u64)> {
    let target: Target = format!("uring:{}", args.file.display()).parse()?;
    let file_bytes = Some(args.file_mib << 20);
    let format = FormatStore { overwrite: true, file_bytes, ..FormatStore::new([target.clone()]) };
    Store::format(&format)?;
    let store = Store::open(&OpenOptions::new([target]))?;
    let data = store.set().geometry().data(0, 0).remove(0);
    let count = (data.end - data.start) * UNIT_BYTES * 9 / 10 / OBJECT_BYTES as u64;
    let object = vec![0x5a; OBJECT_BYTES];
    let mut pendings = VecDeque::new();
    for number in 0..count {
        pendings.push_back(store.put(Key::from(number), &object));
        if pendings.len() == DEPTH {
            pendings.pop_front().expect("some are in flight").wait()?;
        }
    }
    pendings.into_iter().try_for_each(|pending| pending.wait().map(drop))?;
    store.commit().wait()?;
    Ok((store, count))
}

/// The bed of all contestants.
struct Bench {
    args: Args,
    store: Store,
    count: u64,
}

impl Bench {
    fn time(&self) -> Duration {
        Duration::from_millis(self.args.ms)
    }

    /// Returns the bytes that a raw loop reads.
    fn raw(&self, mut random: Random) -> Result<u64> {
        let device = &self.store.devices()[0];
        let timeout = Duration::from_secs(30);
        let options = QueueOptions { depth: DEPTH as u32, timeout, abort_timeout: timeout };
        let mut memory = self.store.allocate(DEPTH * OBJECT_BYTES)?;
        let mut queue = device.create_queue::<AnyBuffer>(&options, &[])?;
        queue.register(&memory);
        let cut = |index| memory.split_off(index * OBJECT_BYTES);
        let mut idle: Vec<Buffer> = (0..DEPTH).rev().map(cut).collect();
        let start = self.store.set().geometry().data(0, 0)[0].start;
        let lba_bytes = u64::from(device.info().lba_bytes);
        let (begun, mut bytes, mut in_flight) = (Instant::now(), 0, 0);
        while begun.elapsed() < self.time() || in_flight > 0 {
            let now = device.now();
            while begun.elapsed() < self.time()
                && let Some(buffer) = idle.pop()
            {
                let at = start * UNIT_BYTES + random.below(self.count) * OBJECT_BYTES as u64;
                let operation = Operation::Read(Lba(at / lba_bytes));
                queue
                    .post(now, Request { operation, buffer: AnyBuffer::One(buffer) })
                    .map_err(|_| "no room")?;
                in_flight += 1;
            }
            queue.ring();
            let done = queue.poll(now, |completion| {
                bytes += if completion.result.is_ok() { OBJECT_BYTES as u64 } else { 0 };
                if let AnyBuffer::One(buffer) = completion.buffer {
                    idle.push(buffer);
                }
            });
            in_flight -= done;
            if done == 0 {
                queue.wait(Duration::from_millis(10));
            }
        }
        Ok(bytes)
    }

    /// Returns the bytes that one thread gets with `depth` in flight.
    fn thread(&self, depth: usize, mut random: Random) -> Result<u64> {
        let mut next = || self.store.get(Key::from(random.below(self.count)));
        let (begun, mut bytes) = (Instant::now(), 0);
        let mut pendings: VecDeque<_> = (0..depth).map(|_| next()).collect();
        while let Some(pending) = pendings.pop_front() {
            bytes += pending.wait()?.ok_or("a get missed")?.len() as u64;
            if begun.elapsed() < self.time() {
                pendings.push_back(next());
            }
        }
        Ok(bytes)
    }

    fn threads(&self, random: &Random) -> Result<u64> {
        std::thread::scope(|scope| {
            let start = |index: usize| {
                let random = Random(random.0 ^ (index as u64 + 1) << 32);
                scope.spawn(move || {
                    self.thread(DEPTH / THREADS, random).map_err(|why| why.to_string())
                })
            };
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            let bytes = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            Ok(bytes.sum::<std::result::Result<u64, String>>()?)
        })
    }

    fn tasks(&self, random: &Random) -> Result<u64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let until = Instant::now() + self.time();
        let task = |index: usize| {
            let (store, count) = (self.store.clone(), self.count);
            let mut random = Random(random.0 ^ (index as u64 + 1) << 32);
            async move {
                let mut bytes = 0;
                while Instant::now() < until {
                    let got = store.get(Key::from(random.below(count))).await.ok().flatten();
                    bytes += got.ok_or("a get missed")?.len() as u64;
                }
                Ok::<u64, &str>(bytes)
            }
        };
        runtime.block_on(async {
            let tasks: Vec<_> = (0..DEPTH).map(|index| tokio::spawn(task(index))).collect();
            let mut bytes = 0;
            for task in tasks {
                bytes += task.await??;
            }
            Ok(bytes)
        })
    }

    /// Returns MB per second and the processor time for each GB of a contestant.
    fn turn(&self, name: &str, random: &Random) -> Result<(f64, f64)> {
        if name == "fio" {
            let extra = self.args.fio.as_deref().unwrap_or_default();
            return Ok((fio(&self.args, extra, &self.store, self.count)?, 0.0));
        }
        let cpu = || clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from);
        let (begun, before) = (Instant::now(), cpu()?);
        let bytes = match name {
            "raw" => self.raw(random.clone())?,
            "thread" => self.thread(DEPTH, random.clone())?,
            "threads" => self.threads(random)?,
            _ => self.tasks(random)?,
        } as f64;
        let (took, cpu) = (begun.elapsed().as_secs_f64(), (cpu()? - before).as_secs_f64());
        Ok((bytes / 1e6 / took, cpu / (bytes / 1e9)))
    }
}

/// Returns MB per second of fio's reads from where the store's data lie.
fn fio(args: &Args, extra: &[String], store: &Store, count: u64) -> Result<f64> {
    let start = store.set().geometry().data(0, 0)[0].start * UNIT_BYTES;
    let output = Command::new("fio")
        .args(["--name=reads", "--rw=randread", "--bs=128k", "--iodepth=32", "--direct=1"])
        .args(["--ioengine=io_uring", "--norandommap", "--time_based", "--randrepeat=0"])
        .args(["--output-format=terse", "--terse-version=3"])
        .arg(format!("--runtime={}ms", args.ms))
        .arg(format!("--filename={}", args.file.display()))
        .args([format!("--offset={start}"), format!("--size={}", count * OBJECT_BYTES as u64)])
        .args(extra)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let kib = text.lines().last().and_then(|line| line.split(';').nth(6)?.parse::<f64>().ok());
    let told = || format!("fio: {text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(kib.filter(|_| output.status.success()).ok_or_else(told)? * 1024.0 / 1e6)
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|part| values[(values.len() - 1) * part / 4])
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (store, count) = filled(&args)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = args.busy.map(|core| {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            if !core_affinity::set_for_current(CoreId { id: core }) {
                println!("not pinned to core {core}");
            }
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    });
    let mut names = vec!["raw", "thread", "tasks", "threads"];
    names.extend(args.fio.is_some().then_some("fio"));
    let bench = Bench { args, store, count };
    let mut figures = vec![[const { Vec::new() }; 3]; names.len()];
    for round in 0..bench.args.rounds {
        let random = Random(0x9e37_79b9_7f4a_7c15 + round as u64);
        let mut turns = vec![(0.0, 0.0); names.len()];
        for place in 0..names.len() {
            let index = (place + round) % names.len();
            turns[index] = bench.turn(names[index], &random)?;
        }
        for (figures, (speed, cpu)) in figures.iter_mut().zip(&turns) {
            let values = [*speed, speed / turns[0].0, *cpu];
            figures.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
        }
        let line = names.iter().zip(&turns).map(|(name, (speed, _))| format!("{name} {speed:.0}"));
        println!("{} MB/s", line.collect::<Vec<_>>().join(", "));
    }
    is_over.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().expect("it only computes"));
    for (name, [speeds, ratios, cpu]) in names.iter().zip(figures) {
        let ([_, speed, _], [low, ratio, high]) = (quartiles(speeds), quartiles(ratios));
        let [_, cpu, _] = quartiles(cpu);
        println!(
            "{name}: {speed:.0} MB/s, {ratio:.2} of raw ({low:.2} to {high:.2}), {cpu:.3} s/GB"
        );
    }
    bench.store.close().wait()?;
    Ok(())
}
