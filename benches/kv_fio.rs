//! Gets of a [`Store`] on a file beside fio's reads of the same file, in turns.
//!
//! Both read 128 KiB at random places with 32 in flight through io_uring with O_DIRECT: fio the store's data without
//! checking them, the store by key, verified, on a thread of its own. The figure is the median of the rounds' ratios,
//! with the quartiles. With `--busy` a thread pinned to that core computes all the time.
//!
//! ```text
//! cargo run --release -p adit-benches --bin kv_fio -- /var/tmp/store.img
//! cargo run --release -p adit-benches --bin kv_fio -- /var/tmp/store.img --busy 0 --fio --fixedbufs=1,--mem=mmaphuge
//! ```
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_driver::Target;
use adit_driver::runtime::Idle;
use adit_kvstore::{FormatStore, Key, OpenOptions, Store, UNIT_BYTES};
use clap::Parser;
use core_affinity::CoreId;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const OBJECT_BYTES: usize = 128 << 10;
const DEPTH: usize = 32;

/// Compares a store's gets with fio.
#[derive(Parser)]
struct Args {
    /// The file, whose contents are lost.
    file: PathBuf,
    /// Size of the file, in MiB.
    #[arg(long, default_value_t = 2048)]
    file_mib: u64,
    /// Rounds of each.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of a round.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// A core on which a thread computes meanwhile.
    #[arg(long)]
    busy: Option<usize>,
    /// Microseconds that the store's idle thread spins, and then yields.
    #[arg(long)]
    spin_us: Option<u64>,
    /// Further arguments of fio, separated by commas.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    fio: Vec<String>,
}

/// Opens a new store and fills most of it; returns the number of objects.
fn filled(args: &Args) -> Result<(Store, u64)> {
    let target: Target = format!("uring:{}", args.file.display()).parse()?;
    let file_bytes = Some(args.file_mib << 20);
    let format = FormatStore { overwrite: true, file_bytes, ..FormatStore::new([target.clone()]) };
    Store::format(&format)?;
    let mut options = OpenOptions::new([target]);
    if let Some(spin) = args.spin_us.map(Duration::from_micros) {
        options.idle = Some(Idle { spin, pause: spin, ..Idle::default() });
    }
    let store = Store::open(&options)?;
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

/// Returns MB per second of the store's gets.
fn gets(store: &Store, count: u64, time: Duration, random: &mut u64) -> Result<f64> {
    let mut next = || {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        store.get(Key::from(*random % count))
    };
    let (start, mut bytes) = (Instant::now(), 0);
    let mut pendings: VecDeque<_> = (0..DEPTH).map(|_| next()).collect();
    while start.elapsed() < time {
        let value = pendings.pop_front().expect("as many as the depth").wait()?;
        bytes += value.ok_or("a get missed")?.len();
        pendings.push_back(next());
    }
    for pending in pendings {
        bytes += pending.wait()?.ok_or("a get missed")?.len();
    }
    Ok(bytes as f64 / 1e6 / start.elapsed().as_secs_f64())
}

/// Returns MB per second of fio's reads from where the store's data lie.
fn fio(args: &Args, store: &Store, count: u64) -> Result<f64> {
    let start = store.set().geometry().data(0, 0)[0].start * UNIT_BYTES;
    let output = Command::new("fio")
        .args(["--name=reads", "--rw=randread", "--bs=128k", "--iodepth=32", "--direct=1"])
        .args(["--ioengine=io_uring", "--norandommap", "--time_based", "--randrepeat=0"])
        .args(["--output-format=terse", "--terse-version=3"])
        .arg(format!("--runtime={}", args.seconds))
        .arg(format!("--filename={}", args.file.display()))
        .args([format!("--offset={start}"), format!("--size={}", count * OBJECT_BYTES as u64)])
        .args(&args.fio)
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
    let mut random = 0x9e37_79b9_7f4a_7c15;
    let (mut raw, mut own, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let by_fio = fio(&args, &store, count)?;
        let by_store = gets(&store, count, Duration::from_secs(args.seconds), &mut random)?;
        println!("fio {by_fio:.0} MB/s, store {by_store:.0} MB/s");
        raw.push(by_fio);
        own.push(by_store);
        ratios.push(by_store / by_fio);
    }
    is_over.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().expect("it only computes"));
    let ([_, raw, _], [_, own, _]) = (quartiles(raw), quartiles(own));
    let [low, ratio, high] = quartiles(ratios);
    println!(
        "medians: fio {raw:.0} MB/s, store {own:.0} MB/s, ratio {ratio:.2} ({low:.2} to {high:.2})"
    );
    store.close().wait()?;
    Ok(())
}
