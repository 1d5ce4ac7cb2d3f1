#!/bin/sh
# A foyer cache with the io_uring engine keeps a core busy for each of the engine's threads, also with nothing to do.
#
# foyer 0.22.6, tokio 1.54.1, Linux 6.1, Rust 1.95. `UringIoEngineConfig` is the alternative to the default
# `PsyncIoEngineConfig`, and its documentation names no price. Each of its threads asks two channels and the ring in a
# loop, and never waits: a service with four such threads and no requests takes four cores, and beside requests they
# compete with the callers. By reading, `with_sqpoll` and `with_iopoll` change nothing of it.
#
# Seen 2026-11-28, of an open cache without a request, the threads that are running or ready in each of thirty looks:
#   psync: 0
#   io_uring with 1 thread: 1, with 2 threads: 2
# In processor time, beside a build on two virtual CPUs: 0.00, 0.94 and 1.01 cores.
#
# What follows for a comparison: processor time for each byte depends on how fast the requests come, and a machine with
# as many cores as engine threads has none left. Takes 1 GB in a temporary folder, and minutes. Fails if what was seen
# changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat >"$folder/Cargo.toml" <<'MANIFEST'
[package]
name = "idle"
version = "0.0.0"
edition = "2024"

[dependencies]
foyer = "=0.22.6"
tokio = { version = "=1.54.1", features = ["rt-multi-thread", "time", "macros"] }

[workspace]
MANIFEST
cat >"$folder/src/main.rs" <<'PROGRAM'
use std::collections::HashMap;
use std::time::Duration;

use foyer::*;

/// Returns which other threads of this process run or could run, for want of a core.
fn runnable() -> Vec<String> {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = own.file_name().unwrap().to_owned();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    let stat = |id: &std::fs::DirEntry| std::fs::read_to_string(id.path().join("stat"));
    let is_runnable = |stat: String| stat.rsplit_once(") ").unwrap().1.starts_with('R');
    threads
        .filter(|id| id.file_name() != own && stat(id).is_ok_and(is_runnable))
        .map(|id| id.file_name().into_string().unwrap())
        .collect()
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let threads: usize = words[2].parse().unwrap();
    let engine: Box<dyn IoEngineConfig> = if threads == 0 {
        PsyncIoEngineConfig::new().boxed()
    } else {
        UringIoEngineConfig::new().with_threads(threads).boxed()
    };
    let device = FileDeviceBuilder::new(&words[1]).with_capacity(256 << 20).build().unwrap();
    let cache: HybridCache<u64, Vec<u8>> = HybridCacheBuilder::new()
        .memory(16 << 20)
        .storage()
        .with_io_engine_config(engine)
        .with_engine_config(BlockEngineConfig::new(device))
        .build()
        .await
        .unwrap();
    // The cache works, and is idle afterwards.
    cache.insert(1, vec![7; 4096]);
    assert_eq!(cache.get(&1).await.unwrap().unwrap().value(), &vec![7; 4096]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mut seen, looks) = (HashMap::new(), 30);
    for _ in 0..looks {
        tokio::time::sleep(Duration::from_millis(100)).await;
        runnable().into_iter().for_each(|id| *seen.entry(id).or_insert(0) += 1);
    }
    println!("busy {}", seen.values().filter(|times| **times == looks).count());
}
PROGRAM
cargo build --quiet --release --manifest-path "$folder/Cargo.toml"

idle() { "$folder/target/release/idle" "$folder/cache.img" "$1" | sed -n 's/^busy //p'; }
found="psync: $(idle 0), io_uring with 1 thread: $(idle 1), with 2: $(idle 2)"
echo "threads that always run, of an idle cache: $found"
case $found in
"psync: 0, io_uring with 1 thread: 1, with 2: 2") echo "as seen" ;;
*) echo "changed"; exit 1 ;;
esac
