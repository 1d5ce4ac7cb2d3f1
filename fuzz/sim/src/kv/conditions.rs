//! Conditional changes, versions, and other expiries: what to ask for, and whether the answers can be right.
//!
//! The law: a change that named a version and succeeded replaced exactly that version, and of several that named it only
//! one did; one that asked for no object found none. A conflict names a version that was there.

use adit_driver::Time;
use adit_kvstore::Version as StoreVersion;
use adit_kvstore::shard::{Action, Condition, Failure, Outcome, TouchItem};

use super::answers::{Answer, unfit};
use super::counts::Sum;
use super::machine::lock;
use super::model::Moment;
use super::world::{Item, StoreWorld};
use crate::world::violated;

impl StoreWorld {
    /// Draws a condition of a change of this key: mostly none.
    pub(crate) fn draw_condition(&mut self, key: usize) -> Condition {
        if !self.random.one_in(5) {
            return Condition::Always;
        }
        if self.random.one_in(2) {
            return Condition::Absent;
        }
        let newest = self.model.newest_name(key);
        Condition::Version(newest.unwrap_or(StoreVersion(self.random.between(1, 9))))
    }

    /// Checks that a put that was stored could be, and learns the name of its version.
    pub(super) fn check_stored(
        &mut self,
        answer: &Answer,
        (key, begin): (usize, Moment),
        condition: Condition,
    ) {
        self.check_held(answer, (key, begin), condition);
        let Some(name) = answer.version.filter(|name| *name != StoreVersion::NONE) else {
            violated(1, format_args!("request {} stored no version", answer.tag));
        };
        if let Err(what) = self.model.name_write(key, begin, name) {
            violated(1, format_args!("request {}: {what}", answer.tag));
        }
    }

    /// Checks that the condition of a change that succeeded held.
    pub(super) fn check_held(
        &mut self,
        answer: &Answer,
        (key, begin): (usize, Moment),
        condition: Condition,
    ) {
        if condition == Condition::Always {
            return;
        }
        self.counts.count(Sum::Conditions, 1);
        self.excuse_if_struck();
        let held = match condition {
            Condition::Always => Ok(()),
            // Devices without power have no data.
            Condition::Absent if lock(&self.machine).is_off() => Ok(()),
            Condition::Absent => {
                self.check_miss(key, answer.begin, format_args!("absent, {}", answer.tag));
                self.model.claim(key, begin)
            }
            Condition::Version(name) => self.model.replace(key, name, answer.begin),
        };
        if let Err(what) = held {
            violated(1, format_args!("request {} succeeded: {what}", answer.tag));
        }
    }

    /// Checks that the condition of a change that was refused may not have held.
    pub(super) fn check_conflict(
        &mut self,
        answer: &Answer,
        key: usize,
        condition: Condition,
        found: Option<StoreVersion>,
    ) {
        self.counts.count(Sum::Conflicts, 1);
        self.excuse_if_struck();
        let is_none = match condition {
            Condition::Always => true,
            Condition::Absent => found.is_none(),
            Condition::Version(name) => found == Some(name),
        };
        if is_none {
            violated(1, format_args!("{condition:?} is no conflict with {found:?}"));
        }
        match found {
            None if lock(&self.machine).is_off() => {}
            None => self.check_miss(key, answer.begin, format_args!("conflict, {}", answer.tag)),
            Some(name) => {
                if let Err(what) = self.model.is_there(key, name, answer.begin) {
                    violated(1, format_args!("conflict of {}: {what}", answer.tag));
                }
            }
        }
    }

    /// Sets another expiry of an object, or lifts it.
    pub(crate) fn submit_touch(&mut self) {
        let key = self.any_key();
        // A lease promises nothing about an object that expires.
        self.unlease(key);
        let ttl_s = self.random.chance(75).then(|| self.random.between(1, 20));
        let expires = ttl_s.map(|ttl_s| self.at_wall(self.wall_s() + ttl_s));
        let begin = self.model.begin_touch(key, expires);
        self.counts.count(Sum::Touches, 1);
        let action = Action::Touch(TouchItem { key: self.model.key(key).clone(), ttl_s });
        let item = Item::Touch { key, begin, ttl_s, expires };
        self.submit(self.model.shard(key), [action], vec![item]);
    }

    pub(super) fn take_touch(
        &mut self,
        answer: &Answer,
        (key, begin): (usize, Moment),
        ttl_s: Option<u64>,
        expires: Option<Time>,
    ) {
        match &answer.result {
            Ok(Outcome::Touched) => {
                self.excuse_if_struck();
                let gone = ttl_s.map(|ttl_s| self.at_wall(self.wall_s() + ttl_s));
                if let Err(what) = self.model.end_touch(key, begin, expires, gone) {
                    violated(1, format_args!("request {}: {what}", answer.tag));
                }
            }
            Ok(Outcome::Miss) if lock(&self.machine).is_off() => {}
            Ok(Outcome::Miss) => {
                self.excuse_if_struck();
                self.check_miss(key, answer.begin, format_args!("touch {}", answer.tag));
            }
            Err(Failure::Device { .. }) => drop(self.unknown(answer)),
            Err(failure) => self.check_refusal(answer, failure),
            other => unfit(answer, other),
        }
    }
}
