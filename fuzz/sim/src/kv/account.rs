//! A reader of removals, who keeps an account of what the shards have: what goes is told once it has gone, and nothing
//! else is.

use std::collections::BTreeMap;

use adit_driver::Time;
use adit_kvstore::shard::{Info, Removals, Removed};

use super::canary::StoreCanary;
use super::counts::Sum;
use super::world::StoreWorld;
use crate::world::violated;

/// The most removals in one read.
const PAGE: usize = 50;
/// The reader looks after so many turns.
const TURNS: u32 = 8;

/// What a reader knows of this life of the store.
#[derive(Debug, Default)]
pub(crate) struct Account {
    from: Option<u64>,
    turns: u32,
    /// What was there when it last looked, by the numbers of the keys.
    there: BTreeMap<usize, Info>,
}

impl StoreWorld {
    /// Begins the account of a life that begins.
    pub(crate) fn begin_account(&mut self) {
        self.removals = Removals::default();
        self.account = Account::default();
    }

    /// Now and then reads what went, and checks it against what is there.
    pub(crate) fn keep_account(&mut self) {
        self.account.turns += 1;
        if !self.account.turns.is_multiple_of(TURNS) {
            return;
        }
        let (told, missed_some) = self.read_removals();
        self.counts.count(Sum::Told, told.values().sum());
        let before = std::mem::take(&mut self.account.there);
        for key in 0..self.model.len() {
            let shard = &self.shards[usize::from(self.model.shard(key))];
            // What has expired is there until it is removed: at this time nothing has.
            let now = shard.info(Time::ZERO, self.model.key(key));
            let was = before.get(&key);
            let times = told.get(&key).copied().unwrap_or(0);
            let is_the_same =
                was.zip(now.as_ref()).is_some_and(|(was, now)| was.version == now.version);
            if is_the_same && times > 0 {
                violated(
                    1,
                    format_args!("{} is said to have gone and is there", self.model.key(key)),
                );
            }
            // A device that fails takes all of its objects.
            let is_owed = was.is_some_and(|was| !shard.has_failed(was.device));
            if is_owed && now.is_none() && times == 0 && !missed_some {
                violated(
                    1,
                    format_args!("{} went, and the log does not say so", self.model.key(key)),
                );
            }
            self.account.there.extend(now.map(|info| (key, info)));
        }
    }

    /// Reads on to the end: how often each key was named, and whether some were missed.
    fn read_removals(&mut self) -> (BTreeMap<usize, u64>, bool) {
        let (mut told, mut some_missed) = (BTreeMap::new(), false);
        loop {
            let from = self.account.from;
            let Removed { keys, next, missed_some } = self.removals.read(&[], from, PAGE);
            self.account.from = Some(next);
            some_missed |= missed_some;
            for key in keys {
                if self.canary == Some(StoreCanary::UntoldRemoval) && self.random.one_in(20) {
                    continue;
                }
                let Some(key) = self.model.find(&key) else {
                    violated(1, format_args!("{key} is said to have gone and was never put"));
                };
                *told.entry(key).or_default() += 1;
            }
            if from == Some(next) {
                return (told, some_missed);
            }
        }
    }
}
