//! Leases: protection of objects that a client has looked up and will read.
//!
//! A lease holds objects until it is released or expires, so that a client that disappears does not hold them forever.
//! Objects are identified by their places, which are not reused while held. Memory is proportional to the number of
//! held objects, and the amount that can be leased is bounded.
//!
//! This module frees no space: releasing returns the places to the caller.

use std::collections::BTreeSet;

use adit_driver::Time;

use crate::catalog::hash::NumberMap;
use crate::error::Failure;
use crate::model::place::Place;

/// Identifies a lease; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

#[derive(Debug)]
struct Lease {
    until: Time,
    places: Box<[Place]>,
    /// Bytes of its objects.
    bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Leases {
    /// The number of leases of each object.
    holds: NumberMap<Place, u32>,
    leases: NumberMap<LeaseId, Lease>,
    ends: BTreeSet<(Time, LeaseId)>,
    leased: usize,
    leased_max: usize,
    next: u64,
}

impl Lease {
    /// Returns what a lease counts. An empty lease counts as one, because it takes memory too.
    fn cost(places: &[Place]) -> usize {
        places.len().max(1)
    }
}

impl Leases {
    /// Creates an empty set of leases of up to `leased_max` objects; an object counts once for each of its leases.
    pub(crate) fn new(leased_max: usize) -> Leases {
        Leases {
            holds: NumberMap::default(),
            leases: NumberMap::default(),
            ends: BTreeSet::new(),
            leased: 0,
            leased_max,
            next: 0,
        }
    }

    /// Returns how many objects are leased; an object counts once for each of its leases.
    pub(crate) fn leased(&self) -> usize {
        self.leased
    }

    /// Returns whether a lease holds the object at this place.
    #[inline]
    pub(crate) fn is_leased(&self, place: Place) -> bool {
        self.holds.contains_key(&place)
    }

    /// Leases objects of `bytes` bytes in total, all or none, until `until`.
    ///
    /// # Errors
    /// [`Failure::Full`] if too many are leased.
    pub(crate) fn lease(
        &mut self,
        places: &[Place],
        bytes: u64,
        until: Time,
    ) -> Result<LeaseId, Failure> {
        let asked = Lease::cost(places);
        if asked > self.leased_max - self.leased {
            return Err(Failure::Full);
        }
        self.leased += asked;
        places.iter().for_each(|place| self.pin(*place));
        let lease = LeaseId(self.next);
        self.next += 1;
        self.ends.insert((until, lease));
        self.leases.insert(lease, Lease { until, places: places.into(), bytes });
        Ok(lease)
    }

    /// Returns the bytes of a lease's objects; 0 if it has ended.
    pub(crate) fn bytes(&self, lease: LeaseId) -> u64 {
        self.leases.get(&lease).map_or(0, |lease| lease.bytes)
    }

    /// Ends a lease. Returns its objects, or `None` if it had already expired.
    pub(crate) fn release(&mut self, lease: LeaseId) -> Option<Box<[Place]>> {
        let Lease { until, places, .. } = self.leases.remove(&lease)?;
        assert!(self.ends.remove(&(until, lease)), "lease {} has an end", lease.0);
        self.leased -= Lease::cost(&places);
        places.iter().for_each(|place| self.unpin(*place));
        Some(places)
    }

    /// Returns when the next lease expires.
    pub(crate) fn next_end(&self) -> Option<Time> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// Ends the lease that expired first and returns its objects; `None` if none has expired at `now`.
    pub(crate) fn expire(&mut self, now: Time) -> Option<Box<[Place]>> {
        let (until, lease) = *self.ends.first()?;
        if until > now { None } else { self.release(lease) }
    }

    fn pin(&mut self, place: Place) {
        *self.holds.entry(place).or_insert(0) += 1;
    }

    fn unpin(&mut self, place: Place) {
        let holds = self.holds.get_mut(&place).expect("only what is held is let go");
        *holds -= 1;
        if *holds == 0 {
            self.holds.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    fn place(unit: u32) -> Place {
        Place { device: 1, unit: u64::from(unit) }
    }

    fn ids(numbers: &[u32]) -> Vec<Place> {
        numbers.iter().copied().map(place).collect()
    }

    #[test]
    fn an_object_is_held_until_its_last_lease_ends() {
        let mut leases = Leases::new(10);
        let first = leases.lease(&ids(&[1, 2]), 0, at(5)).expect("room");
        let second = leases.lease(&ids(&[2]), 0, at(9)).expect("room");
        assert_eq!(leases.release(first).as_deref(), Some(&ids(&[1, 2])[..]));
        assert!(!leases.is_leased(place(1)) && leases.is_leased(place(2)));
        leases.release(second).expect("it is not over");
        assert!(!leases.is_leased(place(1)) && !leases.is_leased(place(2)));
        assert_eq!(leases.leased(), 0);
    }

    #[test]
    fn a_lost_lease_ends_by_itself_and_is_released_in_vain() {
        let mut leases = Leases::new(10);
        let later = leases.lease(&ids(&[2]), 0, at(9)).expect("room");
        let sooner = leases.lease(&ids(&[1]), 0, at(5)).expect("room");
        assert_eq!(leases.expire(at(4)), None);
        assert_eq!(leases.expire(at(9)).as_deref(), Some(&ids(&[1])[..]));
        assert_eq!(leases.expire(at(9)).as_deref(), Some(&ids(&[2])[..]));
        assert_eq!(leases.expire(at(9)), None);
        assert_eq!((leases.release(sooner), leases.release(later)), (None, None));
    }

    #[test]
    fn too_many_leases_are_refused_and_hold_nothing() {
        let mut leases = Leases::new(3);
        leases.lease(&ids(&[1, 2]), 0, at(5)).expect("room");
        let refused = leases.lease(&ids(&[3, 4]), 0, at(5)).expect_err("no room");
        assert_eq!((refused, leases.leased()), (Failure::Full, 2));
        assert!(!leases.is_leased(place(3)));
        leases.lease(&[], 0, at(5)).expect("room for one");
        leases.lease(&[], 0, at(5)).expect_err("a lease of nothing counts too");
    }

    proptest! {
        /// Compares the leases with a list that is searched linearly.
        #[test]
        fn leases_are_a_list(steps in vec((vec(0_u32..6, 0..4), 0_u64..20, 0..4), 1..100)) {
            let mut leases = Leases::new(12);
            let mut model: Vec<(LeaseId, u64, Vec<Place>)> = Vec::new();
            for (numbers, number, step) in steps {
                let wanted = ids(&numbers);
                let leased: usize = model.iter().map(|(_, _, ids)| ids.len().max(1)).sum();
                prop_assert_eq!(leases.leased(), leased);
                match step {
                    0 | 1 => match leases.lease(&wanted, 0, at(number)) {
                        Ok(lease) => model.push((lease, number, wanted)),
                        Err(_) => prop_assert!(leased + wanted.len().max(1) > 12),
                    },
                    2 if !model.is_empty() => {
                        let (lease, _, ids) = model.remove(number as usize % model.len());
                        prop_assert_eq!(leases.release(lease), Some(ids.into()));
                    }
                    _ => {
                        model.sort_by_key(|(lease, until, _)| (*until, *lease));
                        let over = model.first().is_some_and(|(_, until, _)| *until <= number);
                        let expected = over.then(|| model.remove(0).2.into());
                        prop_assert_eq!(leases.expire(at(number)), expected);
                    }
                }
                for id in (0..6).map(place) {
                    let held = model.iter().any(|(_, _, ids)| ids.contains(&id));
                    prop_assert_eq!(leases.is_leased(id), held);
                }
            }
        }
    }
}
