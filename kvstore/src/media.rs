//! Formatting a store and reading what it is formatted as.

use adit_driver::Time;
use adit_driver::device::CommandQueue;

use crate::error::Result;
use crate::key::Key;
use crate::shard::{Lane, Load};

/// What a store is formatted as.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Shards.
    pub shards: u16,
    /// Most objects of each.
    pub objects_max: u32,
    /// Bytes of a journal.
    pub journal_bytes: Option<u64>,
    /// A name.
    pub label: String,
    /// Random.
    pub store_id: [u8; 16],
    /// Foreign content too.
    pub overwrite: bool,
}

/// What the superblocks say.
#[derive(Clone, Debug)]
pub struct Set {
    shards: u16,
}

/// Writes superblocks and empty journals.
pub fn format<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    options: &FormatOptions,
    clock: &mut dyn FnMut() -> Time,
) -> Result<()> {
    let _ = (lanes, options, clock);
    panic!("comes with the next merge");
}

/// Reads and checks the superblocks.
pub fn read_set<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    clock: &mut dyn FnMut() -> Time,
) -> Result<Set> {
    let _ = (lanes, clock);
    Ok(Set { shards: 1 })
}

impl Set {
    /// How many shards.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Its name.
    pub fn label(&self) -> &str {
        ""
    }

    /// Its number.
    pub fn store_id(&self) -> [u8; 16] {
        [0; 16]
    }

    /// Most objects of a shard.
    pub fn objects_max(&self) -> u32 {
        0
    }

    /// Which shard has the key.
    pub fn route(&self, key: &Key) -> u16 {
        let _ = key;
        0
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Recovery {}
