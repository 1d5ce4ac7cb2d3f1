//! RocksDB with BlobDB: keys in its tree, objects in blob files.
//!
//! | setting | value | why |
//! |---|---|---|
//! | blob files | on from 4 KiB, 256 MiB each | objects stay out of the tree's compactions |
//! | garbage collection of blobs | on, the oldest quarter | puts that replace objects must give their room back |
//! | direct reads, flushes and compactions | on | all its memory is then its own |
//! | write-ahead log | off | it would write each object twice; a cache does not need it |
//! | memtables | 2 of 64 MiB, or of an eighth of the memory if that is less | the default size |
//! | block cache | half of the allowed memory; blobs are not in it | the other half is for memtables and requests in flight |
//! | compression | none | the objects do not compress |
//! | callers | a thread for each request in flight, `get_pinned` | the calls block |
//!
//! `settle` flushes the memtables, which syncs the blob files. Reads verify CRC-32C, the default.

use anyhow::{Context, Result};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, FlushOptions, Options, ReadOptions,
    WriteOptions,
};

use super::{About, Engine, Setup, judge};
use crate::contents;
use crate::measured::Found;

const MEMTABLE_BYTES_MAX: usize = 64 << 20;

pub(super) struct Rocks {
    db: DB,
    object_bytes: usize,
}

fn options(cache: &Cache, memtable_bytes: usize) -> Options {
    let mut tables = BlockBasedOptions::default();
    tables.set_block_cache(cache);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&tables);
    options.set_enable_blob_files(true);
    options.set_min_blob_size(4096);
    options.set_blob_file_size(256 << 20);
    options.set_enable_blob_gc(true);
    options.set_blob_gc_age_cutoff(0.25);
    options.set_blob_compression_type(DBCompressionType::None);
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(memtable_bytes);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_max_background_jobs(4);
    options
}

impl Rocks {
    pub(super) fn open(setup: &Setup) -> Result<(Rocks, About)> {
        let cache_bytes = setup.memory_bytes as usize / 2;
        let memtable_bytes = (cache_bytes / 4).min(MEMTABLE_BYTES_MAX);
        let cache = Cache::new_lru_cache(cache_bytes)?;
        let folder = setup.folder.join("db");
        let db = DB::open(&options(&cache, memtable_bytes), &folder)
            .with_context(|| format!("opening RocksDB in {}", folder.display()))?;
        let about = About {
            setup: format!(
                "BlobDB, O_DIRECT, no compression, no write-ahead log, {} MiB of block cache; callers are {} threads",
                cache_bytes >> 20,
                setup.depth
            ),
            promise: "what its two memtables still hold is lost in a crash; what is flushed outlives a power cut; CRC-32C verified on get".to_owned(),
        };
        Ok((Rocks { db, object_bytes: setup.object_bytes }, about))
    }
}

/// A thread's own state.
pub(super) struct Hands {
    object: Vec<u8>,
    write: WriteOptions,
    read: ReadOptions,
}

impl Engine for Rocks {
    type Hands = Hands;

    fn hands(&self) -> Result<Hands> {
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        Ok(Hands { object: contents::base(self.object_bytes), write, read: ReadOptions::default() })
    }

    async fn put(&self, hands: &mut Hands, object: u64) -> Result<()> {
        contents::stamp(&mut hands.object, object);
        Ok(self.db.put_opt(contents::key(object).to_be_bytes(), &hands.object, &hands.write)?)
    }

    async fn get(&self, hands: &mut Hands, object: u64) -> Result<Found> {
        let found = self.db.get_pinned_opt(contents::key(object).to_be_bytes(), &hands.read)?;
        Ok(found.map_or(Found::Miss, |value| judge(&value, object, self.object_bytes)))
    }

    async fn settle(&self) -> Result<()> {
        let mut flush = FlushOptions::default();
        flush.set_wait(true);
        Ok(self.db.flush_opt(&flush)?)
    }
}
