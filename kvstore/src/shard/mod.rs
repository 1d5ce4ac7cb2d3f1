//! One owner of a part of the store, and its loop.
//!
//! A shard has some of the keys, a share of every device, and a queue to each. One thread owns it: it hands in
//! [`Request`]s and calls [`Shard::poll`], which never waits, never reads a clock and does a bounded amount of work.

mod lane;
mod memory;
mod request;
mod stats;

use std::time::Duration;

use adit_driver::Time;
use adit_driver::device::CommandQueue;

pub use lane::{LANE_BUFFER_BYTES, LANE_MEMORY_BYTES, Lane, LaneInfo, Load, Tag};
pub use request::{
    Action, Decline, Done, Failure, FillItem, GetItem, Outcome, Part, PutItem, PutOptions, Request,
    ReserveItem, WriterId,
};

pub use stats::Stats;

use crate::error::Result;
use crate::media::{Recovery, Set};
use crate::key::Key;
use crate::object::{LayoutId, TenantId};
use crate::options::{Durability, PolicyKind, Watermarks};

/// How a shard works. The defaults are a store's.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// What an acknowledgement promises.
    pub durability: Durability,
    /// What goes first.
    pub policy: PolicyKind,
    /// Whether objects are only taken that are asked for again, where measurement says that this helps.
    pub adaptive_admission: bool,
    /// Most bytes that objects take, padding included; the shard's share of the devices where not given.
    pub capacity_bytes: Option<u64>,
    /// Most objects; what the store was formatted for where not given.
    pub capacity_objects: Option<u32>,
    /// When eviction begins and ends.
    pub watermarks: Watermarks,
    /// Bytes a day that objects may write.
    pub write_bytes_per_day: Option<u64>,
    /// How long a record may wait for others before its block is written. Default 10 ms.
    pub seal_interval: Duration,
    /// How long `restart` leaves what was written unflushed at most. Default 1 s.
    pub flush_interval: Duration,
    /// Unix time in seconds when the clock of `now` stood at zero.
    pub wall_s_at_zero: u64,
    /// Keys the hash of the index, so that nobody can choose keys that collide.
    pub hash_key: [u64; 2],
}

impl Default for ShardOptions {
    fn default() -> ShardOptions {
        ShardOptions {
            durability: Durability::default(),
            policy: PolicyKind::default(),
            adaptive_admission: false,
            capacity_bytes: None,
            capacity_objects: None,
            watermarks: Watermarks::default(),
            write_bytes_per_day: None,
            seal_interval: Duration::from_millis(10),
            flush_interval: Duration::from_secs(1),
            wall_s_at_zero: 0,
            hash_key: [0; 2],
        }
    }
}

/// What a turn of the loop did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Completions and answers; 0 where nothing happened.
    pub moved: usize,
    /// Commands in flight.
    pub in_flight: usize,
    /// When there is something to do by the clock at the latest; [`Time::NEVER`] where nothing waits for it.
    pub next: Time,
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// How it lies.
    pub layout: LayoutId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Seconds that it has left, if it expires.
    pub ttl_s: Option<u64>,
    /// The device it is on, by its position among the targets.
    pub device: u8,
}

/// A promise that objects stay readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A part of the store.
pub struct Shard<Q> {
    lanes: Vec<Lane<Q>>,
}

impl<Q: CommandQueue<Load>> Shard<Q> {
    /// Opens a shard.
    ///
    /// # Errors
    /// What is wrong.
    pub fn open(
        shard: u16,
        lanes: Vec<Lane<Q>>,
        set: &Set,
        options: ShardOptions,
        clock: &mut dyn FnMut() -> Time,
    ) -> Result<(Shard<Q>, Recovery)> {
        let _ = (shard, set, options, clock);
        Ok((Shard { lanes }, Recovery {}))
    }

    /// Whether nothing is going on.
    pub fn is_idle(&self) -> bool {
        true
    }

    /// Ends.
    pub fn into_lanes(self) -> Vec<Lane<Q>> {
        self.lanes
    }

    /// What it counted.
    pub fn stats(&self) -> &Stats {
        unimplemented!()
    }

    /// Takes a request; it is answered by [`Shard::poll`]. There is no limit but the caller's: see
    /// [`Shard::waiting`].
    pub fn submit(&mut self, now: Time, request: Request) {
        let _ = (now, request);
        panic!("comes with the next commit");
    }

    /// Does what there is to do, without waiting, and gives each answer to `done`.
    pub fn poll(&mut self, now: Time, done: &mut dyn FnMut(Done)) -> Turn {
        let _ = (now, done);
        Turn { moved: 0, in_flight: 0, next: Time::NEVER }
    }

    /// Requests that were not begun yet: back-pressure for whoever hands them in.
    pub fn waiting(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there is such an object.
    pub fn exists(&self, now: Time, key: &Key) -> bool {
        self.info(now, key).is_some()
    }

    /// What is known of an object.
    pub fn info(&self, now: Time, key: &Key) -> Option<Info> {
        let _ = (now, key);
        None
    }

    /// How many of `keys` there are before the first that is missing.
    pub fn lookup_prefix(&self, now: Time, keys: &[Key]) -> usize {
        keys.iter().take_while(|key| self.exists(now, key)).count()
    }

    /// At most `limit` objects from a cursor on, and the next cursor while there are more. Starts at 0. Objects that
    /// come or go meanwhile are seen or not.
    pub fn scan(&self, now: Time, from: u32, limit: usize) -> (Vec<Info>, Option<u32>) {
        let _ = (now, from, limit);
        (Vec::new(), None)
    }

    /// Keeps the objects of `keys` before the first that is missing readable until `until`, and says how many they
    /// are.
    ///
    /// # Errors
    /// [`Failure::Full`] when too many objects are leased.
    pub fn lease(
        &mut self,
        now: Time,
        keys: &[Key],
        until: Time,
    ) -> Result<(LeaseId, usize), Failure> {
        let _ = (now, keys, until);
        Err(Failure::Full)
    }

    /// Ends a lease. One that is over already is ignored.
    pub fn release(&mut self, lease: LeaseId) {
        let _ = lease;
    }

    /// Gives up a writer's object and its room.
    pub fn abandon(&mut self, writer: WriterId) {
        let _ = writer;
    }

    /// The tenant of this name, made if it is new; its quota is set where one is given.
    ///
    /// # Errors
    /// [`Failure::Undefined`] when there are 255 already, or the name is empty or longer than 64 bytes.
    pub fn tenant(&mut self, name: &str, quota_bytes: Option<u64>) -> Result<TenantId, Failure> {
        let _ = (name, quota_bytes);
        Err(Failure::Undefined("tenant"))
    }
}
