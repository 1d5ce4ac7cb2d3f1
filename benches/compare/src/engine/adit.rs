//! The store: a handle, io_uring on one file, direct I/O.
//!
//! | setting | value | why |
//! |---|---|---|
//! | file | data and an eighth, and 256 MiB, allocated before | room for journal, checkpoints and puts that replace |
//! | shards, threads of the store | 1, 1 | one thread drives a disk; the callers are one more |
//! | durability | `restart` | the default |
//! | memory | its pool: 64 MiB or twice what is in flight, registered; no cache of objects | that is how it is made |
//! | callers | tasks on one thread; `get` of the handle, into the pool; `put` of memory that `allocate` gave | no copies |
//!
//! Every get is verified by CRC-32C before it is answered.

use std::str::FromStr;

use adit_driver::Target;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::store::Payload;
use adit_kvstore::{FormatStore, Key, OpenOptions, Store};
use anyhow::{Context, Result, bail};

use super::{About, Engine, Setup, judge, make_file};
use crate::contents;
use crate::measured::Found;

pub(super) struct Adit {
    store: Store,
    object_bytes: usize,
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
            ..OpenOptions::new([target])
        };
        let about = About {
            setup: format!(
                "one shard and thread, io_uring, O_DIRECT, {} MiB of registered memory, no cache; callers are tasks on one thread",
                options.pool_bytes >> 20
            ),
            promise: "`restart`: all but the last 10 ms outlives a crash, all but the last second a power cut; CRC-32C verified on get".to_owned(),
        };
        let store = Store::open(&options).context("opening the store")?;
        Ok((Adit { store, object_bytes: setup.object_bytes }, about))
    }
}

/// Memory for puts, which comes back with each answer.
pub(super) struct Hands {
    object: AnyBuffer,
}

impl Engine for Adit {
    type Hands = Hands;

    fn hands(&self) -> Result<Hands> {
        let mut object = self.store.allocate(self.object_bytes)?;
        object[..self.object_bytes].copy_from_slice(&contents::base(self.object_bytes));
        Ok(Hands { object: AnyBuffer::One(object) })
    }

    async fn put(&self, hands: &mut Hands, object: u64) -> Result<()> {
        if let AnyBuffer::One(bytes) = &mut hands.object {
            contents::stamp(&mut bytes[..self.object_bytes], object);
        }
        let memory = std::mem::replace(&mut hands.object, AnyBuffer::None);
        let payload = Payload::lent(memory, self.object_bytes as u64);
        let put = self.store.put(Key::from(contents::key(object)), payload).await?;
        if !put.is_stored() {
            bail!("object {object} was not stored: {:?}", put.outcome);
        }
        hands.object = put.memory;
        Ok(())
    }

    async fn get(&self, _hands: &mut Hands, object: u64) -> Result<Found> {
        let value = self.store.get(Key::from(contents::key(object))).await?;
        Ok(value.map_or(Found::Miss, |value| judge(&value, object, self.object_bytes)))
    }

    async fn settle(&self) -> Result<()> {
        Ok(self.store.commit().await?)
    }
}
