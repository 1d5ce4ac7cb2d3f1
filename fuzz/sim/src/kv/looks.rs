//! Immediate calls: lookups, scans and leases.

use std::time::Duration;

use adit_kvstore::Key;
use adit_kvstore::shard::{Failure, Info};

use super::counts::Sum;
use super::world::{Lease, StoreWorld};
use crate::world::violated;

/// Objects requested per scan.
const PAGE: usize = 7;
/// Maximum concurrent leases.
const LEASES_MAX: usize = 8;

impl StoreWorld {
    /// Makes one such call.
    pub(crate) fn look(&mut self) {
        match self.random.below(9) {
            0 => self.look_up(),
            1 => self.look_up_prefix(),
            2 => self.scan(),
            3 if self.leases.len() < LEASES_MAX => self.lease(),
            4..8 if self.shape.tier_units > 0 => self.use_tier(),
            4..8 => self.look_up(),
            _ => self.release(),
        }
    }

    fn look_up(&mut self) {
        let key = self.random.index(self.model.len());
        let begin = self.model.tick();
        let shard = &self.shards[usize::from(self.model.shard(key))];
        let info = shard.info(self.now, self.model.key(key));
        if shard.exists(self.now, self.model.key(key)) != info.is_some() {
            violated(1, "what exists has no information, or the other way round");
        }
        self.note(&[20, u64::from(info.is_some())], format_args!("info of {key}: {info:?}"));
        match info {
            Some(info) => self.check_info(&info),
            None => self.check_miss(key, begin, format_args!("info")),
        }
    }

    fn check_info(&mut self, info: &Info) {
        let begin = self.model.tick();
        let Some(key) = self.model.find(&info.key) else {
            violated(1, format_args!("{} was never put", info.key));
        };
        if !self.model.may_have(key, info.bytes, begin) {
            violated(1, format_args!("{} has {} bytes, which it cannot", info.key, info.bytes));
        }
    }

    /// Returns keys of one shard, in any order.
    fn some_keys(&mut self) -> (u16, Vec<usize>) {
        let shard = self.random.below(self.shards.len() as u64) as u16;
        let keys = (0..self.model.len()).filter(|key| self.model.shard(*key) == shard);
        let mut keys: Vec<usize> = keys.collect();
        for index in (1..keys.len()).rev() {
            keys.swap(index, self.random.index(index + 1));
        }
        keys.truncate(6);
        (shard, keys)
    }

    fn names(&self, keys: &[usize]) -> Vec<Key> {
        keys.iter().map(|key| self.model.key(*key).clone()).collect()
    }

    fn look_up_prefix(&mut self) {
        let (shard, keys) = self.some_keys();
        let begin = self.model.tick();
        let names = self.names(&keys);
        let count = self.shards[usize::from(shard)].lookup_prefix(self.now, &names);
        self.note(&[21, count as u64], format_args!("{count} of {keys:?} are there"));
        if let Some(missing) = keys.get(count) {
            self.check_miss(*missing, begin, format_args!("lookup_prefix"));
        }
    }

    pub(crate) fn scan(&mut self) {
        let begin = self.model.tick();
        let mut found = Vec::new();
        for shard in 0..self.shards.len() {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let (page, next) = self.shards[shard].scan(self.now, &[], from, PAGE);
                if page.len() > PAGE || next.is_some_and(|next| next <= from) {
                    violated(4, format_args!("a scan goes from {from} to {next:?}"));
                }
                found.extend(page);
                cursor = next;
            }
        }
        self.note(&[22, found.len() as u64], format_args!("a scan finds {}", found.len()));
        found.iter().for_each(|info| self.check_info(info));
        for key in 0..self.model.len() {
            let count = found.iter().filter(|info| info.key == *self.model.key(key)).count();
            match count {
                0 => self.check_miss(key, begin, format_args!("scan")),
                1 => {}
                _ => violated(1, format_args!("a scan finds {} twice", self.model.key(key))),
            }
        }
    }

    fn lease(&mut self) {
        let (shard, keys) = self.some_keys();
        let until = self.now + Duration::from_millis(self.random.between(1, 500));
        let names = self.names(&keys);
        let begin = self.model.tick();
        match self.shards[usize::from(shard)].lease(self.now, &names, until) {
            Ok((id, count)) => {
                self.note(&[23, count as u64], format_args!("{id:?}: {count} of {keys:?}"));
                self.counts.count(Sum::Leases, 1);
                if let Some(missing) = keys.get(count) {
                    self.check_miss(*missing, begin, format_args!("lease"));
                }
                // A write in progress may replace a leased object.
                let mut kept: Vec<usize> = keys[..count].to_vec();
                kept.retain(|key| !self.model.is_being_written(*key));
                self.leases.push(Lease { id, shard, keys: kept, begin, until });
            }
            Err(Failure::Full) => self.note(&[24], format_args!("no lease")),
            Err(failure) => violated(2, format_args!("no lease: {failure}")),
        }
    }

    fn release(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let lease = self.leases.swap_remove(self.random.index(self.leases.len()));
        self.note(&[25], format_args!("{:?} is released", lease.id));
        self.shards[usize::from(lease.shard)].release(lease.id);
    }
}
