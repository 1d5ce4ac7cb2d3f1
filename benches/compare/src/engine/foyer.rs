//! foyer's hybrid cache: its block engine on one file, direct I/O.
//!
//! | setting | value | why |
//! |---|---|---|
//! | memory cache | a filter keeps all out; `foyer-tier`: `--cache`, LRU, 16 shards | no object is taken in to be evicted |
//! | file | data and a half, allocated in advance | all objects fit, and puts that replace old ones |
//! | I/O engine | `foyer`: io_uring, one thread, deeper than the requests in flight | asked for here; it never sleeps |
//! | | `foyer-psync`: threads of the runtime | its default |
//! | write policy | on insertion | on eviction, objects in memory would count as stored without being on the disk |
//! | flushers | 2, buffers of an eighth of the memory, at most 64 MiB | enough to keep the disk busy |
//! | compression, admission, reinsertion | none, all, none | no computation, and no object declined |
//! | callers | tasks, on as many threads as there are processors | its calls are tokio futures |
//!
//! foyer drops what it cannot write soon enough. To keep every object, a put waits while more than three quarters of
//! a flusher's buffer are unwritten. That cost counts against foyer, because a fill that loses objects is invalid.
//! foyer verifies XxHash64 on reads from the disk.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use foyer::{
    BlockEngineConfig, DeviceBuilder, FileDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, IoEngineConfig, LruConfig, PsyncIoEngineConfig, RecoverMode, Source,
    UringIoEngineConfig,
};
use tokio::sync::Mutex;

use super::{About, Engine, Setup, judge, make_file};
use crate::contents;
use crate::measured::Found;

const FLUSHERS: usize = 2;
/// Total for both flushers; each alternates between two buffers.
const BUFFERS_BYTES_MAX: usize = 64 << 20;
/// Restart the count of unwritten bytes after this many, because it is an estimate.
const COUNTED_ANEW_BYTES: u64 = 256 << 20;
const PAGE_BYTES: u64 = 4096;

pub(super) struct Foyer {
    cache: HybridCache<u128, Vec<u8>>,
    file: PathBuf,
    base: Vec<u8>,
    /// Limit of unwritten bytes, less than the buffer of one flusher.
    unwritten_bytes_max: u64,
    handed: Mutex<Handed>,
    memory_hits: AtomicU64,
}

/// Bytes given to foyer since the count began.
#[derive(Default)]
struct Handed {
    bytes: u64,
    /// Bytes foyer had written when the count began.
    written_before: u64,
}

fn io_engine(is_uring: bool, depth: u32) -> Box<dyn IoEngineConfig> {
    if is_uring {
        return UringIoEngineConfig::new()
            .with_threads(1)
            .with_io_depth(2 * depth as usize)
            .boxed();
    }
    PsyncIoEngineConfig::new().boxed()
}

fn failed(why: foyer::Error) -> anyhow::Error {
    anyhow!("foyer: {why}")
}

impl Foyer {
    pub(super) async fn open(setup: &Setup, is_uring: bool) -> Result<(Foyer, About)> {
        let file = setup.folder.join("foyer.img");
        let file_bytes = (setup.data_bytes() / 2 * 3 + (256 << 20)).next_multiple_of(16 << 20);
        make_file(&file, file_bytes)?;
        let cache_bytes = setup.cache_bytes as usize;
        let buffers_bytes = (setup.memory_bytes as usize / 8).min(BUFFERS_BYTES_MAX);
        let device =
            FileDeviceBuilder::new(&file).with_capacity(file_bytes as usize).with_direct(true);
        let engine = BlockEngineConfig::new(device.build().map_err(failed)?)
            .with_flushers(FLUSHERS)
            .with_buffer_pool_size(buffers_bytes)
            .with_submit_queue_size_threshold(2 * buffers_bytes);
        let cache = HybridCacheBuilder::new()
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .with_flush_on_close(false)
            .memory(cache_bytes.max(setup.object_bytes))
            .with_shards(16)
            .with_filter(move |_: &u128, _: &Vec<u8>| cache_bytes > 0)
            .with_eviction_config(LruConfig::default())
            .with_weighter(|_: &u128, value: &Vec<u8>| value.len())
            .storage()
            .with_io_engine_config(io_engine(is_uring, setup.depth))
            .with_engine_config(engine)
            .with_recover_mode(RecoverMode::None)
            .build()
            .await
            .map_err(failed)?;
        let about = About {
            setup: format!(
                "block engine, {}, O_DIRECT, {} MiB of cache in memory; callers are tasks",
                if is_uring { "io_uring" } else { "psync" },
                cache_bytes >> 20
            ),
            promise:
                "a cache: what is not written yet is lost in a crash, and nothing is flushed; \
                      XxHash64 verified on reads from the disk"
                    .to_owned(),
        };
        let base = contents::base(setup.object_bytes);
        let unwritten_bytes_max = (buffers_bytes / FLUSHERS / 4 * 3) as u64;
        let (handed, memory_hits) = (Mutex::default(), AtomicU64::new(0));
        Ok((Foyer { cache, file, base, unwritten_bytes_max, handed, memory_hits }, about))
    }

    fn written(&self) -> u64 {
        self.cache.statistics().disk_write_bytes() as u64
    }

    /// Waits until foyer can take an object of `bytes` without dropping any.
    async fn make_room(&self, bytes: u64) {
        let mut handed = self.handed.lock().await;
        if handed.bytes > COUNTED_ANEW_BYTES {
            self.cache.storage().wait().await;
            *handed = Handed { bytes: 0, written_before: self.written() };
        }
        let unwritten =
            |handed: &Handed| handed.bytes.saturating_sub(self.written() - handed.written_before);
        while unwritten(&handed) + bytes > self.unwritten_bytes_max {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        handed.bytes += bytes;
    }
}

impl Engine for Foyer {
    type Hands = ();

    fn hands(&self) -> Result<()> {
        Ok(())
    }

    async fn put(&self, _hands: &mut (), object: u64) -> Result<()> {
        let mut value = self.base.clone();
        contents::stamp(&mut value, object);
        let entry_bytes =
            self.cache.storage().entry_estimated_size(&contents::key(object), &value) as u64;
        self.make_room(entry_bytes.next_multiple_of(PAGE_BYTES)).await;
        drop(self.cache.insert(contents::key(object), value));
        Ok(())
    }

    async fn get(&self, _hands: &mut (), object: u64) -> Result<Found> {
        let entry = self.cache.get(&contents::key(object)).await.map_err(failed)?;
        if entry.as_ref().is_some_and(|entry| entry.source() == Source::Memory) {
            self.memory_hits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(entry.map_or(Found::Miss, |entry| judge(entry.value(), object, self.base.len())))
    }

    async fn settle(&self) -> Result<()> {
        self.cache.storage().wait().await;
        Ok(File::open(&self.file)?.sync_data()?)
    }

    async fn memory_hits(&self) -> Result<Option<u64>> {
        Ok(Some(self.memory_hits.load(Ordering::Relaxed)))
    }
}
