//! What a call of the store costs the thread that makes it, for each object of a batch of 64.
//!
//! `kvstore/python/benches/caller.py` measures the same calls from Python, so that the difference is Python's. Objects
//! of 4 KiB are read into registered memory, written from it, and looked up. The figure is the CPU time of the
//! calling thread, which sleeps while the store's thread works. `--json` prints one object for that script.
//!
//! ```text
//! cargo run --release -p adit-benches --bin kv_caller -- /var/tmp/kv.img
//! ```
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::sys::{Backing, HostMemory};
use adit_driver::{Buffer, Target};
use adit_kvstore::shard::Part;
use adit_kvstore::store::PutWith;
use adit_kvstore::{FormatStore, Key, OpenOptions, Store};
use clap::Parser;
use nix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const BATCH: usize = 64;
const OBJECT_BYTES: usize = 4096;

/// Times batches on the thread that asks for them.
#[derive(Parser)]
#[command(after_help = "Example:\n  kv_caller /var/tmp/kv.img --batches 2000")]
struct Args {
    /// A file for the store, which must not exist.
    file: PathBuf,
    /// Batches of each call.
    #[arg(long, default_value_t = 2000)]
    batches: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let target: Target = format!("uring:{}", args.file.display()).parse()?;
    let format = FormatStore::new([target.clone()]);
    Store::format(&FormatStore { file_bytes: Some(256 << 20), ..format })?;
    let figures = measure(&Store::open(&OpenOptions::new([target]))?, args.batches);
    std::fs::remove_file(&args.file)?;
    for (name, us) in figures? {
        if args.json {
            println!("{{\"call\": \"{name}\", \"us\": {us:.3}}}");
        } else {
            println!("{name:<14} {us:>7.3} us of CPU for each object");
        }
    }
    Ok(())
}

fn measure(store: &Store, batches: u32) -> Result<Vec<(&'static str, f64)>> {
    let keys: Vec<Key> = (0..BATCH as u128).map(|number| Key::from(number << 64 | 7)).collect();
    let memory = HostMemory::allocate(BATCH * OBJECT_BYTES, Backing::Any, &|_, _| ())?;
    let mut rows = cut(store.register(memory)?);
    let put = time(batches, || {
        let items = keys.iter().cloned().zip(rows.drain(..));
        let put = store.put_many(items, &PutWith::default()).wait();
        rows.extend(put.into_iter().map(|put| one(put.expect("stored").memory)));
    });
    let get = time(batches, || {
        let items = keys.iter().cloned().zip(rows.drain(..));
        let items = items.map(|(key, row)| (key, Part::All, AnyBuffer::One(row)));
        let read = store.get_many_into(items).wait();
        rows.extend(read.into_iter().map(|read| one(read.expect("read").memory)));
    });
    let exists = time(batches, || {
        let asked: Vec<_> = keys.iter().map(|key| store.exists(key.clone())).collect();
        assert!(asked.into_iter().all(|asked| asked.wait().is_ok_and(|is_there| is_there)));
    });
    let prefix = time(batches, || {
        assert!(store.lookup_prefix(&keys).wait().is_ok_and(|found| found == BATCH));
    });
    store.clone().close().wait()?;
    Ok(vec![
        ("put_many", put),
        ("get_many_into", get),
        ("exists_many", exists),
        ("lookup_prefix", prefix),
    ])
}

fn cut(mut pool: Buffer) -> Vec<Buffer> {
    let mut rows: Vec<_> = (0..BATCH).rev().map(|row| pool.split_off(row * OBJECT_BYTES)).collect();
    rows.reverse();
    rows
}

fn one(memory: AnyBuffer) -> Buffer {
    let AnyBuffer::One(row) = memory else { unreachable!("one row was lent: {memory:?}") };
    row
}

/// Returns the median of five rounds, in microseconds of this thread's CPU time for each object.
fn time(batches: u32, mut batch: impl FnMut()) -> f64 {
    let mut rounds: Vec<Duration> = (0..5)
        .map(|_| {
            let begun = cpu_time();
            (0..batches).for_each(|_| batch());
            cpu_time() - begun
        })
        .collect();
    rounds.sort_unstable();
    rounds[2].as_secs_f64() * 1e6 / f64::from(batches) / BATCH as f64
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a thread has a clock");
    Duration::from(time)
}
