//! The order of eviction of a shard: its policy, and the age of each object whatever the policy.

use super::age::Ages;
use super::evict::{Newcomer, Policy};
use crate::model::object::ObjectId;

/// A policy with the ages of its objects. The calls are those of [`Policy`], with the same meaning.
pub(crate) struct EvictionOrder {
    policy: Box<dyn Policy>,
    ages: Ages,
}

impl EvictionOrder {
    /// Joins a policy without objects and the ages of the objects, which are passed on in the order of their ids.
    pub(crate) fn new(
        mut policy: Box<dyn Policy>,
        ages: Ages,
        ids: impl Iterator<Item = ObjectId>,
    ) -> EvictionOrder {
        let mut aged = ids.map(|id| (id, ages.age(id)));
        policy.restore(&mut aged);
        assert!(aged.next().is_none(), "a policy takes all objects over");
        drop(aged);
        EvictionOrder { policy, ages }
    }

    pub(crate) fn inserted(&mut self, id: ObjectId, key_hash: u64) {
        self.ages.insert(id);
        self.policy.inserted(id, key_hash);
    }

    pub(crate) fn touched(&mut self, id: ObjectId) {
        self.ages.touch(id);
        self.policy.touched(id);
    }

    pub(crate) fn found(&mut self, ids: &[ObjectId]) {
        self.policy.found(ids);
    }

    pub(crate) fn admits(&mut self, new: &Newcomer) -> bool {
        self.policy.admits(new)
    }

    pub(crate) fn removed(&mut self, id: ObjectId) {
        self.ages.remove(id);
        self.policy.removed(id);
    }

    pub(crate) fn evicted(&mut self, id: ObjectId, key_hash: u64) {
        self.ages.remove(id);
        self.policy.evicted(id, key_hash);
    }

    pub(crate) fn victim(
        &mut self,
        is_leased: &mut dyn FnMut(ObjectId) -> bool,
    ) -> Option<ObjectId> {
        self.policy.victim(is_leased)
    }

    pub(crate) fn follower(&self, id: ObjectId) -> Option<ObjectId> {
        self.policy.follower(id)
    }

    /// Returns how long ago an object was used: 0 to [`Ages::MAX`] ticks.
    pub(crate) fn age(&self, id: ObjectId) -> u8 {
        self.ages.age(id)
    }

    /// Returns the ticks of the clock of the ages so far.
    pub(crate) fn ticks(&self) -> u64 {
        self.ages.ticks()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes() + self.ages.memory_bytes()
    }
}
