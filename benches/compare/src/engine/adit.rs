//! The store: a handle, io_uring on one file, direct I/O.
//!
//! | setting | value | why |
//! |---|---|---|
//! | file | data and an eighth, and 256 MiB, allocated in advance | room for journal, checkpoints and replacements |
//! | shards, threads of the store | 1, 1 | one thread drives a disk; the callers are one more |
//! | durability | `restart` | the default |
//! | memory | its pool: 64 MiB or twice what is in flight, registered | the default, and enough |
//! | memory tier | none; `adit-tier`: `--cache` | none is its default |
//! | callers | tasks on one thread; `get` of the handle, into the pool; `put` of memory from `allocate` | no copies |
//!
//! Every read from the disk is verified by CRC-32C before it is answered.

use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_driver::memory::AnyBuffer;
use adit_driver::{Buffer, Target};
use adit_kvstore::{FormatStore, Key, OpenOptions, Store};
use anyhow::{Context, Result, bail};

use super::{About, Engine, Setup, judge, make_file};
use crate::contents;
use crate::measured::Found;

pub(super) struct Adit {
    store: Store,
    object_bytes: usize,
    /// Memory for puts, one buffer per request in flight.
    idle: Mutex<Vec<Buffer>>,
}

impl Adit {
    pub(super) fn open(setup: &Setup) -> Result<(Adit, About)> {
        let path = setup.folder.join("adit.img");
        make_file(&path, setup.data_bytes() / 8 * 9 + (256 << 20))?;
        let target = Target::from_str(&format!("uring:{}", path.display()))?;
        let format = FormatStore { overwrite: true, ..FormatStore::new([target.clone()]) };
        Store::format(&format).context("formatting the store")?;
        let in_flight_bytes = setup.depth as usize * setup.object_bytes;
        let options = OpenOptions {
            pool_bytes: (2 * in_flight_bytes).max(64 << 20),
            queue_depth: setup.depth + 2,
            tier_bytes: setup.cache_bytes,
            ..OpenOptions::new([target])
        };
        let about = About {
            setup: format!(
                "one shard and thread, io_uring, O_DIRECT, {} MiB of registered memory, {} MiB of memory tier; \
                 callers are tasks on one thread",
                options.pool_bytes >> 20,
                options.tier_bytes >> 20
            ),
            promise: "`restart`: all but the last 10 ms outlives a crash, all but the last second a power cut; \
                      CRC-32C verified on reads from the disk"
                .to_owned(),
        };
        let store = Store::open(&options).context("opening the store")?;
        let idle = Mutex::new(buffers(&store, setup)?);
        Ok((Adit { store, object_bytes: setup.object_bytes, idle }, about))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Allocates store memory for puts, filled with the bytes that all objects share.
fn buffers(store: &Store, setup: &Setup) -> Result<Vec<Buffer>> {
    let (depth, base) = (setup.depth as usize, contents::base(setup.object_bytes));
    let mut region = store.allocate(depth * base.len())?;
    let pieces = (0..depth).rev().map(|index| {
        let mut buffer = region.split_off(index * base.len());
        // Memory comes in whole pages, possibly more than requested.
        drop(buffer.split_off(base.len()));
        buffer.copy_from_slice(&base);
        buffer
    });
    Ok(pieces.collect())
}

impl Engine for Adit {
    type Hands = ();

    fn hands(&self) -> Result<()> {
        Ok(())
    }

    async fn put(&self, _hands: &mut (), object: u64) -> Result<()> {
        let mut memory =
            self.idle().pop().expect("no more puts are in flight than there is memory for");
        contents::stamp(&mut memory, object);
        let put = self.store.put(Key::from(contents::key(object)), memory).await?;
        if !put.is_stored() {
            bail!("object {object} was not stored: {:?}", put.outcome);
        }
        if let AnyBuffer::One(memory) = put.memory {
            self.idle().push(memory);
        }
        Ok(())
    }

    async fn get(&self, _hands: &mut (), object: u64) -> Result<Found> {
        let value = self.store.get(Key::from(contents::key(object))).await?;
        Ok(value.map_or(Found::Miss, |value| judge(&value, object, self.object_bytes)))
    }

    async fn settle(&self) -> Result<()> {
        Ok(self.store.commit().await?)
    }

    async fn memory_hits(&self) -> Result<Option<u64>> {
        Ok(Some(self.store.stats().await?.tier_hits))
    }
}
