use std::collections::{HashMap, HashSet, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::catalog::index::Index;
use crate::catalog::regions::Regions;
use crate::model::key::KeyHasher;
use crate::model::object::ObjectId;
use crate::policy::age::Ages;

const OBJECTS: u32 = 16;

fn id(number: u32) -> ObjectId {
    ObjectId(number)
}

fn hash(number: u32) -> u64 {
    u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn none(_: ObjectId) -> bool {
    false
}

/// Evicts until the policy names no victim.
fn drain(policy: &mut dyn Policy) -> Vec<u32> {
    let victims = std::iter::from_fn(|| {
        let victim = policy.victim(&mut none)?;
        policy.evicted(victim, hash(victim.0));
        Some(victim.0)
    });
    victims.collect()
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut lru = Lru::new(OBJECTS);
    (0..4).for_each(|number| lru.inserted(id(number), 0));
    lru.touched(id(0));
    lru.removed(id(2));
    assert_eq!(drain(&mut lru), [1, 3, 0]);
}

#[test]
fn a_leased_object_keeps_its_rank_under_lru() {
    let mut lru = Lru::new(OBJECTS);
    (0..3).for_each(|number| lru.inserted(id(number), 0));
    assert_eq!(lru.victim(&mut |other| other == id(0)), Some(id(1)));
    assert_eq!(lru.victim(&mut none), Some(id(0)));
}

#[test]
fn what_was_hit_twice_in_the_small_queue_outlives_the_rest() {
    let mut policy = S3Fifo::new(OBJECTS);
    (0..4).for_each(|number| policy.inserted(id(number), hash(number)));
    for _ in 0..2 {
        policy.touched(id(0));
    }
    policy.touched(id(1));
    assert_eq!(drain(&mut policy), [1, 2, 3, 0]);
}

#[test]
fn what_comes_back_in_time_goes_to_the_main_queue() {
    let mut policy = S3Fifo::new(OBJECTS);
    policy.inserted(id(0), hash(0));
    policy.evicted(id(0), hash(0));
    (0..3).for_each(|number| policy.inserted(id(number), hash(number)));
    assert_eq!(drain(&mut policy), [1, 2, 0]);
}

#[test]
fn what_was_deleted_leaves_no_ghost() {
    let mut policy = S3Fifo::new(OBJECTS);
    policy.inserted(id(0), hash(0));
    policy.removed(id(0));
    (0..3).for_each(|number| policy.inserted(id(number), hash(number)));
    assert_eq!(drain(&mut policy), [0, 1, 2]);
}

#[test]
fn a_search_that_may_pass_by_few_leased_objects_gives_up_and_the_next_goes_on_there() {
    let mut policy = S3Fifo::new(OBJECTS);
    (0..8).for_each(|number| policy.inserted(id(number), hash(number)));
    let is_leased = |other: ObjectId| other.0 < 5;
    for (leased_max, victim) in [(2, None), (3, Some(id(5))), (0, Some(id(5)))] {
        assert_eq!(policy.victim_within(leased_max, &mut { is_leased }), victim, "{leased_max}");
    }
    policy.removed(id(5));
    assert_eq!(policy.victim_within(0, &mut |_| true), None);
}

/// Evicts in the order of insertion, and restores by default.
struct Fifo(VecDeque<ObjectId>);

impl Policy for Fifo {
    fn inserted(&mut self, id: ObjectId, _key_hash: u64) {
        self.0.push_back(id);
    }

    fn touched(&mut self, _id: ObjectId) {}

    fn removed(&mut self, id: ObjectId) {
        self.0.retain(|other| *other != id);
    }

    fn evicted(&mut self, id: ObjectId, _key_hash: u64) {
        self.removed(id);
    }

    fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
        self.0.iter().copied().find(|id| !is_leased(*id))
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

#[test]
fn index_regions_ages_and_policy_take_80_bytes_an_object_of_128_kib_and_86_with_remembered_keys() {
    let objects = 1 << 20;
    let index = Index::new(objects, KeyHasher::new([0; 16])).expect("a capacity");
    let (half, all) = (u64::from(objects) * 16, u64::from(objects) * 32);
    let regions = Regions::new(&[vec![0..half, half..all]], objects);
    let bytes = index.memory_bytes() + regions.memory_bytes() + Ages::new(objects).memory_bytes();
    for (kind, most) in [(PolicyKind::Lru, 80), (PolicyKind::S3Fifo, 86), (PolicyKind::Auto, 86)] {
        let bytes = bytes + kind.build(objects).memory_bytes();
        assert!(bytes <= most * objects as usize + (160 << 10), "{kind}: {bytes} bytes");
    }
}

/// An event for a policy.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Insert, or touch if present.
    Use(u32),
    Remove(u32),
    Evict,
    /// Take a lease, or release it.
    Lease(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..OBJECTS).prop_map(Step::Use),
        1 => (0..OBJECTS).prop_map(Step::Remove),
        3 => Just(Step::Evict),
        2 => (0..OBJECTS).prop_map(Step::Lease),
    ]
}

/// A straightforward eviction order.
trait Model {
    fn contains(&self, number: u32) -> bool;
    fn insert(&mut self, number: u32);
    fn touch(&mut self, number: u32);
    fn remove(&mut self, number: u32);
    /// Names a victim and removes it.
    fn evict(&mut self, leased: &HashSet<u32>) -> Option<u32>;
}

/// Objects, least recently used first.
#[derive(Default)]
struct LruModel(Vec<u32>);

impl Model for LruModel {
    fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    fn insert(&mut self, number: u32) {
        self.0.push(number);
    }

    fn touch(&mut self, number: u32) {
        self.remove(number);
        self.insert(number);
    }

    fn remove(&mut self, number: u32) {
        self.0.retain(|other| *other != number);
    }

    fn evict(&mut self, leased: &HashSet<u32>) -> Option<u32> {
        let at = self.0.iter().position(|number| !leased.contains(number))?;
        Some(self.0.remove(at))
    }
}

/// The paper's queues from the back, with each object's hits, and leases as in this store. A ghost is one while it is
/// among the latest, as many as there are objects.
#[derive(Default)]
struct S3Model {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    hits: HashMap<u32, u32>,
    ghosts: Vec<Option<u32>>,
}

impl S3Model {
    fn evict_small(&mut self, leased: &HashSet<u32>) -> Option<u32> {
        for _ in 0..self.small.len() {
            let number = self.small.pop_front()?;
            if leased.contains(&number) {
                self.small.push_back(number);
            } else if self.hits[&number] > 1 {
                self.hits.insert(number, 0);
                self.main.push_back(number);
            } else {
                self.ghosts.push(Some(number));
                return Some(number);
            }
        }
        None
    }

    fn evict_main(&mut self, leased: &HashSet<u32>) -> Option<u32> {
        while self.main.iter().any(|number| !leased.contains(number)) {
            let number = self.main.pop_front()?;
            let hits = self.hits.get_mut(&number).expect("it has hits");
            if !leased.contains(&number) {
                if *hits == 0 {
                    return Some(number);
                }
                *hits -= 1;
            }
            self.main.push_back(number);
        }
        None
    }
}

impl Model for S3Model {
    fn contains(&self, number: u32) -> bool {
        self.hits.contains_key(&number)
    }

    fn insert(&mut self, number: u32) {
        self.hits.insert(number, 0);
        let ghost = self.ghosts.iter().rposition(|ghost| *ghost == Some(number));
        let is_recent = ghost.is_some_and(|at| self.ghosts.len() - at <= self.hits.len());
        if let Some(at) = ghost {
            self.ghosts[at] = None;
        }
        if is_recent {
            self.main.push_back(number);
        } else {
            self.small.push_back(number);
        }
    }

    fn touch(&mut self, number: u32) {
        let hits = self.hits.get_mut(&number).expect("it is there");
        *hits = (*hits + 1).min(3);
    }

    fn remove(&mut self, number: u32) {
        self.hits.remove(&number);
        self.small.retain(|other| *other != number);
        self.main.retain(|other| *other != number);
    }

    fn evict(&mut self, leased: &HashSet<u32>) -> Option<u32> {
        let all = self.small.len() + self.main.len();
        let from_main = self.small.len() * 10 < all;
        let first = if from_main { self.evict_main(leased) } else { None };
        let victim =
            first.or_else(|| self.evict_small(leased)).or_else(|| self.evict_main(leased))?;
        self.remove(victim);
        Some(victim)
    }
}

fn follow(mut policy: Box<dyn Policy>, mut model: impl Model, steps: Vec<Step>) {
    let mut leased = HashSet::new();
    for step in steps {
        match step {
            Step::Use(number) if model.contains(number) => {
                policy.touched(id(number));
                model.touch(number);
            }
            Step::Use(number) => {
                policy.inserted(id(number), hash(number));
                model.insert(number);
            }
            Step::Remove(number) if model.contains(number) => {
                policy.removed(id(number));
                model.remove(number);
            }
            Step::Remove(_) => {}
            Step::Evict => {
                let victim = policy.victim(&mut |id| leased.contains(&id.0));
                assert_eq!(victim.map(|id| id.0), model.evict(&leased));
                if let Some(victim) = victim {
                    policy.evicted(victim, hash(victim.0));
                }
            }
            Step::Lease(number) => {
                if !leased.remove(&number) {
                    leased.insert(number);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_restored_goes_by_age_before_what_comes(
        ages in vec(0..=Ages::MAX, 0..OBJECTS as usize),
    ) {
        let policies: [Box<dyn Policy>; 3] = [
            PolicyKind::Lru.build(OBJECTS + 1),
            PolicyKind::S3Fifo.build(OBJECTS + 1),
            Box::new(Fifo(VecDeque::new())),
        ];
        let mut model: Vec<u32> = (0..ages.len() as u32).collect();
        model.sort_by_key(|number| std::cmp::Reverse(ages[*number as usize]));
        model.push(OBJECTS);
        for mut policy in policies {
            let mut aged = (0u32..).zip(&ages).map(|(number, age)| (id(number), *age));
            policy.restore(&mut aged);
            policy.inserted(id(OBJECTS), hash(OBJECTS));
            prop_assert_eq!(drain(&mut *policy), &model[..]);
        }
    }

    #[test]
    fn lru_is_exact(steps in vec(step(), 1..300)) {
        follow(PolicyKind::Lru.build(OBJECTS), LruModel::default(), steps);
    }

    /// With such a capacity each ghost has a bucket of its own, and each tick is one, so both remember the same.
    #[test]
    fn s3fifo_is_the_papers(steps in vec(step(), 1..300)) {
        follow(Box::new(S3Fifo::new(1 << 14)), S3Model::default(), steps);
    }
}
