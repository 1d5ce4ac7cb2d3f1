//! RocksDB with BlobDB: keys in its tree, objects in blob files.
//!
//! | setting | value | why |
//! |---|---|---|
//! | blob files | on from 4 KiB, 256 MiB each | objects stay out of the tree's compactions |
//! | garbage collection of blobs | on, the oldest quarter | puts that replace objects must give their room back |
//! | direct reads, flushes and compactions | on | all its memory is then its own |
//! | write-ahead log | off | it would write each object twice; a cache does not need it |
//! | memtables | 2 of 64 MiB, or of an eighth of the memory if that is less | the default size |
//! | blob cache | none; `rocksdb-tier`: an LRU cache of `--cache` | what keeps objects in memory |
//! | block cache | 32 MiB: all of the tree, whose values are references | no get waits for its index |
//! | compression | none | the objects do not compress |
//! | statistics | on, the default level | they count hits in memory |
//! | callers | a thread for each request in flight, `rocksdb_get_pinned` | the calls block |
//!
//! `settle` flushes the memtables, which syncs the blob files. Reads verify CRC-32C, the default, unless the library
//! was built to compute it without the processor's instruction, as distributions do (RocksDB's issue 11311): that would
//! count against RocksDB. Writes pay for it even so.

mod library;

use std::path::Path;

use anyhow::{Context, Result};

use self::library::Db;
use super::{About, Engine, Setup, judge};
use crate::contents;
use crate::measured::Found;

const MEMTABLE_BYTES_MAX: u64 = 64 << 20;
const BLOCK_CACHE_BYTES: u64 = 32 << 20;
/// RocksDB's counter of blobs that its blob cache had.
const HITS: &str = "rocksdb.blobdb.cache.hit";

pub(super) struct Rocks {
    db: Db,
    object_bytes: usize,
}

fn options(memtable_bytes: u64, cache_bytes: u64) -> String {
    let mut options = format!(
        "create_if_missing=true;enable_blob_files=true;min_blob_size=4096;blob_file_size=256M;\
         enable_blob_garbage_collection=true;blob_garbage_collection_age_cutoff=0.25;\
         blob_compression_type=kNoCompression;compression=kNoCompression;\
         use_direct_reads=true;use_direct_io_for_flush_and_compaction=true;max_background_jobs=4;\
         write_buffer_size={memtable_bytes};\
         block_based_table_factory={{block_cache={BLOCK_CACHE_BYTES}}}"
    );
    if cache_bytes > 0 {
        options.push_str(&format!(";blob_cache={cache_bytes}"));
    }
    options
}

/// Returns whether the library uses the processor's instruction for CRC-32C, by what it logged when it was opened.
fn has_fast_crc(folder: &Path) -> Result<bool> {
    let log = std::fs::read_to_string(folder.join("LOG")).context("RocksDB has written no log")?;
    Ok(says_fast_crc(&log))
}

fn says_fast_crc(log: &str) -> bool {
    let mut lines = log.lines().filter_map(|line| line.split_once("Fast CRC32 supported: "));
    lines.next().is_some_and(|(_, answer)| answer.starts_with("Supported"))
}

impl Rocks {
    pub(super) fn open(setup: &Setup) -> Result<(Rocks, About)> {
        let memtable_bytes = (setup.memory_bytes / 8).min(MEMTABLE_BYTES_MAX);
        let options = options(memtable_bytes, setup.cache_bytes);
        let folder = setup.folder.join("db");
        let mut db = Db::open(&options, &folder)?;
        let verifies = has_fast_crc(&folder)?;
        if !verifies {
            db.trust_reads();
        }
        let verified = match verifies {
            true => "CRC-32C verified on reads from the disk",
            false => {
                "nothing is verified, as this library computes CRC-32C without the processor's instruction"
            }
        };
        let about = About {
            setup: format!(
                "BlobDB, O_DIRECT, no compression, no write-ahead log, {} MiB of blob cache; callers are {} threads",
                setup.cache_bytes >> 20,
                setup.depth
            ),
            promise: "what its two memtables still hold is lost in a crash; what is flushed outlives a power cut; "
                .to_owned()
                + verified,
        };
        Ok((Rocks { db, object_bytes: setup.object_bytes }, about))
    }
}

impl Engine for Rocks {
    /// An object to put.
    type Hands = Vec<u8>;

    fn hands(&self) -> Result<Vec<u8>> {
        Ok(contents::base(self.object_bytes))
    }

    async fn put(&self, hands: &mut Vec<u8>, object: u64) -> Result<()> {
        contents::stamp(hands, object);
        self.db.put(&contents::key(object).to_be_bytes(), hands)
    }

    async fn get(&self, _hands: &mut Vec<u8>, object: u64) -> Result<Found> {
        let found = self.db.get(&contents::key(object).to_be_bytes())?;
        Ok(found.map_or(Found::Miss, |value| judge(&value, object, self.object_bytes)))
    }

    async fn settle(&self) -> Result<()> {
        self.db.flush()
    }

    async fn memory_hits(&self) -> Result<Option<u64>> {
        Ok(self.db.counter(HITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_whether_checksums_are_fast() {
        let line = "2026/11/28-14:28:04.721491 6821 Fast CRC32 supported: ";
        assert!(says_fast_crc(&format!("a\n{line}Supported on x86\n")));
        assert!(!says_fast_crc(&format!("a\n{line}Not supported on x86\n")));
        assert!(!says_fast_crc("a log without it\n"));
    }
}
