//! Calls that give a store something to work with: memory of the caller's, feeds of requests, and the memory tier.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use adit_driver::sys::HostMemory;
use adit_driver::{Buffer, Device};

use super::Store;
use crate::error::Result;
use crate::store::core::Core;
use crate::store::thread::Feed;

impl Store {
    /// Registers memory of the caller's for requests, such as an engine's pinned pool of KV blocks, until the buffer
    /// and all its parts are dropped ([`Buffer::split_off`]). [`HostMemory::adopt`] takes memory that this process
    /// has mapped, `adopt_shared` memory that others write. Blocks while the memory is pinned, during which the
    /// store's threads serve no request: register before serving.
    ///
    /// The first device and every device reached through the kernel use it without a copy; data of another controller
    /// passes through the store's memory. On the kernel's paths, memory beyond the limit on locked memory is usable but
    /// not pinned, which the log says once.
    ///
    /// # Errors
    /// As [`Device::register`]; [`Failure::Closed`](crate::shard::Failure::Closed) if the store is closed.
    pub fn register(&self, memory: HostMemory) -> Result<Buffer> {
        let mut buffer = self.core.devices.as_slice()[0].register(memory)?;
        for shard in 0..self.core.shards {
            let registering = self.core.ask(shard, move |shard, _| {
                shard.register(&buffer);
                Ok(buffer)
            });
            buffer = registering.wait()?;
        }
        Ok(buffer)
    }

    /// Returns whether a device maps the files behind registered memory itself ([`Device::maps_files`]).
    pub fn maps_files(&self) -> bool {
        self.core.devices.as_slice().iter().any(Device::maps_files)
    }

    /// Makes a thread of the store poll a feed in each of its rounds, until the feed has ended or the store closes.
    pub fn attach_feed(&self, feed: Box<dyn Feed>) -> Attached {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let shard = NEXT.fetch_add(1, Ordering::Relaxed) % self.core.shards;
        self.core.feed(shard, feed);
        Attached { core: Arc::clone(&self.core), shard }
    }

    /// Gives the memory tier at most `bytes` of registered memory: 0 turns the tier off. That is divided among the
    /// shards, and less than 1 MiB for each is none. Returns how many bytes it has now.
    ///
    /// It has fewer while the machine or a control group of the process has no room for more, with a headroom of 64
    /// MiB and 1/32 of what there is: a thread looks every 100 ms, takes memory from the tier at once, and gives it
    /// back step by step. Memory goes by regions of up to 64 MiB for each shard. `docs/operate/kv.md` says more.
    ///
    /// Memory beyond `bytes` is freed before this returns, with the objects in it, which stay in the store. Memory that a
    /// [`Value`](crate::store::Value) holds is freed with the value. When the size changes, the tier forgets how often
    /// its objects were read. Blocks while memory is pinned.
    ///
    /// # Errors
    /// As [`Device::allocate`], with less memory in the tier than there is room for; the same if the system grants no
    /// thread; [`Failure::Closed`](crate::shard::Failure::Closed) if the store is closed.
    pub fn set_tier(&self, bytes: u64) -> Result<u64> {
        self.threads.tier.set(bytes)
    }
}

/// A feed that a thread of the store polls. Dropping this makes the thread poll once more, so that it drops a feed that
/// has ended.
#[must_use = "dropping it makes the thread poll the feed once more"]
pub struct Attached {
    core: Arc<Core>,
    shard: u16,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.core.end(self.shard, |_| ());
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attached(shard {})", self.shard)
    }
}
