//! Tests the loops on an exact model of a store, which gives wrong answers on request.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use adit_driver::memory::AnyBuffer;
use adit_driver::{Buffer, Device, DeviceOptions};
use adit_kvstore::Key;
use adit_kvstore::shard::{Action, GetItem, Outcome, PutItem, Request};

use super::super::bed::EndedRequest;
use super::super::counted::Counted;
use super::super::objects::Objects;
use super::super::workload::Ycsb;
use super::*;
use crate::failure::{Failure, Result};
use adit_tools_common::session::one;

const BYTES: u64 = 5000;
const DEPTH: usize = 8;

/// A store in memory with an exact LRU of `capacity` objects.
struct Model {
    device: Device,
    now: Cell<u64>,
    capacity: usize,
    objects: BTreeMap<Key, (u64, Vec<u8>)>,
    clock: u64,
    waiting: VecDeque<EndedRequest>,
    most_waiting: usize,
    /// The get whose answer is wrong, counted from 1.
    lies_at: u64,
    runs: u64,
}

impl Model {
    fn new(capacity: usize) -> Model {
        let target = "null:".parse().expect("a target");
        let device = Device::open(&target, &DeviceOptions::default()).expect("opens");
        Model {
            device,
            now: Cell::new(0),
            capacity,
            objects: BTreeMap::new(),
            clock: 0,
            waiting: VecDeque::new(),
            most_waiting: 0,
            lies_at: 0,
            runs: 0,
        }
    }

    fn put(&mut self, reply: u64, put: PutItem) {
        let AnyBuffer::One(data) = &put.data else { panic!("one buffer") };
        if !self.objects.contains_key(&put.key) && self.objects.len() == self.capacity {
            let oldest = self.objects.iter().min_by_key(|(_, (at, _))| *at).expect("some");
            let oldest = oldest.0.clone();
            self.objects.remove(&oldest);
        }
        self.clock += 1;
        self.objects.insert(put.key, (self.clock, data[..put.bytes as usize].to_vec()));
        self.answer(reply, Outcome::Stored, put.data);
    }

    fn get(&mut self, reply: u64, mut get: GetItem) {
        let AnyBuffer::One(into) = &mut get.into else { panic!("one buffer") };
        self.clock += 1;
        let outcome = match self.objects.get_mut(&get.key) {
            None => Outcome::Miss,
            Some((at, data)) => {
                *at = self.clock;
                into[..data.len()].copy_from_slice(data);
                self.lies_at = self.lies_at.wrapping_sub(1);
                into[4099] ^= u8::from(self.lies_at == 0);
                Outcome::Hit { bytes: data.len() as u64 }
            }
        };
        self.answer(reply, outcome, get.into);
    }

    fn answer(&mut self, reply: u64, outcome: Outcome, memory: AnyBuffer) {
        self.waiting.push_back(EndedRequest { reply, result: Ok(outcome), memory: one(memory) });
        self.most_waiting = self.most_waiting.max(self.waiting.len());
    }
}

impl Bed for Model {
    fn now(&self) -> Time {
        self.now.set(self.now.get() + 1);
        Time::from_ns(self.now.get() * 1_000_000)
    }

    fn submit(&mut self, _now: Time, requests: impl Iterator<Item = Request>) {
        for Request { reply, action, .. } in requests {
            match action {
                Action::Put(put) => self.put(reply, put),
                Action::Get(get) => self.get(reply, get),
                other => panic!("no load does {other:?}"),
            }
        }
    }

    fn poll(&mut self, _now: Time, ended: &mut dyn FnMut(EndedRequest)) -> usize {
        // Answers half now, the rest later.
        let count = self.waiting.len().div_ceil(2);
        self.waiting.drain(..count).for_each(&mut *ended);
        count
    }

    fn lookup_prefix(&mut self, _now: Time, keys: &[Key]) -> Result<usize> {
        Ok(keys.iter().take_while(|key| self.objects.contains_key(key)).count())
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer> {
        self.device.allocate(bytes).map_err(Failure::from)
    }
}

/// Runs `load` with a watch that lasts for `looks` calls.
fn run(
    model: &mut Model,
    looks: u64,
    load: impl FnOnce(&mut Engine<'_, Model>, &mut Watch<'_>),
) -> (Counted, Option<Failure>) {
    model.runs += 1;
    let objects = Objects::new(model.runs << 32);
    let mut engine = Engine::new(model, BYTES, DEPTH + 99, true, objects).expect("there is memory");
    let mut left = looks;
    let mut goes_on = |_: Far| {
        left = left.saturating_sub(1);
        left > 0
    };
    let mut watch = Watch { until: Time::NEVER, goes_on: &mut goes_on, looked: Time::ZERO };
    load(&mut engine, &mut watch);
    engine.finish()
}

fn filled(capacity: usize, count: u64) -> Model {
    let mut model = Model::new(capacity);
    let (counted, failure) = run(&mut model, u64::MAX, |engine, watch| {
        assert_eq!(fill(engine, DEPTH, count, watch), count);
    });
    assert!(failure.is_none() && counted.put.ops() == count, "{failure:?}");
    model
}

#[test]
fn a_fill_puts_each_object_once_and_keeps_the_depth() {
    let model = filled(1000, 500);
    assert_eq!((model.objects.len(), model.most_waiting), (500, DEPTH));
    assert!(model.objects.keys().all(|key| blocks::object(key).is_some_and(|n| n < 500)));
}

#[test]
fn every_workload_reads_what_it_or_an_earlier_run_put() {
    for ycsb in [Ycsb::A, Ycsb::B, Ycsb::C, Ycsb::D, Ycsb::E, Ycsb::F] {
        let mut model = filled(1_000_000, 300);
        let (counted, failure) = run(&mut model, 1000, |engine, watch| {
            mix(engine, DEPTH, &mut Chooser::ycsb(ycsb, 300, 5), None, watch);
        });
        assert!(failure.is_none(), "{ycsb:?}: {failure:?}");
        assert!(counted.get.ops() > 500, "{ycsb:?}");
        assert_eq!(counted.put.ops() > 0, ycsb != Ycsb::C, "{ycsb:?}");
        assert_eq!(counted.misses, 0, "{ycsb:?}");
    }
}

#[test]
fn what_an_earlier_run_left_is_known_by_its_numbers() {
    let mut model = filled(1000, 300);
    let known: Vec<u64> = (0..300).filter(|n| n % 3 == 0).collect();
    model.objects.retain(|key, _| blocks::object(key).expect("ours").is_multiple_of(3));
    let (counted, failure) = run(&mut model, 100, |engine, watch| {
        let mut chooser = Chooser::even(100, 100, 1);
        mix(engine, DEPTH, &mut chooser, Some(&known), watch);
    });
    assert!(failure.is_none() && counted.misses == 0 && counted.get.ops() > 100);
}

#[test]
fn a_wrong_byte_ends_the_run_and_is_told() {
    let mut model = filled(1000, 300);
    model.lies_at = 50;
    let (counted, failure) = run(&mut model, u64::MAX, |engine, watch| {
        mix(engine, DEPTH, &mut Chooser::even(300, 50, 1), None, watch);
    });
    let why = failure.expect("it was found").to_string();
    assert!(why.contains("byte 4099"), "{why}");
    assert!(counted.get.ops() < 100, "nothing goes on after it");
}

#[test]
fn objects_of_another_size_are_told_with_what_to_do() {
    let mut model = filled(1000, 10);
    model.objects.values_mut().for_each(|(_, data)| data.truncate(4096));
    let (_, failure) = run(&mut model, u64::MAX, |engine, watch| {
        mix(engine, DEPTH, &mut Chooser::even(10, 100, 1), None, watch);
    });
    assert!(failure.expect("refused").to_string().contains("--object-bytes"));
}

/// Returns the prefix hits of an exact LRU: the existing leading blocks; then all blocks are touched or put in
/// order.
fn oracle(trace: &[TraceRequest], capacity: usize) -> u64 {
    let mut order: Vec<u64> = Vec::new();
    let mut hits = 0;
    for request in trace {
        hits += request.hash_ids.iter().take_while(|id| order.contains(id)).count() as u64;
        for id in &request.hash_ids {
            match order.iter().position(|other| other == id) {
                Some(at) => drop(order.remove(at)),
                None if order.len() == capacity => drop(order.remove(0)),
                None => {}
            }
            order.push(*id);
        }
    }
    hits
}

/// Requests that share prefixes, some with a repeated block.
fn trace() -> Vec<TraceRequest> {
    let request = |n: u64| {
        let (tree, length) = (n * n % 7, 3 + n % 11);
        let ids = (0..length).map(|at| tree * 1000 + if at > 5 { at + n % 3 * 100 } else { at });
        let again = n.is_multiple_of(5).then_some(tree * 1000);
        TraceRequest { hash_ids: ids.chain(again).collect(), timestamp: Some(n) }
    };
    (0..200).map(request).collect()
}

#[test]
fn a_replay_hits_what_an_exact_lru_hits() {
    let trace = trace();
    let references: usize = trace.iter().map(|request| request.hash_ids.len()).sum();
    for capacity in [1, 10, 30, 60, 1000] {
        let mut model = Model::new(capacity);
        let (counted, failure) = run(&mut model, u64::MAX, |engine, watch| {
            replay(engine, DEPTH, &trace, watch);
        });
        assert!(failure.is_none(), "{failure:?}");
        let replayed = counted.replayed.expect("a replay");
        assert_eq!(replayed.prefix_hits, oracle(&trace, capacity), "{capacity} blocks");
        assert_eq!((replayed.requests, replayed.references), (200, references as u64));
        assert_eq!(counted.get.ops(), replayed.prefix_hits);
        assert_eq!(counted.put.ops() + counted.get.ops(), replayed.references);
        assert_eq!(counted.misses, 0);
    }
}

#[test]
fn what_is_stopped_ends_with_what_it_has() {
    let mut model = Model::new(1000);
    let (counted, failure) = run(&mut model, 3, |engine, watch| {
        assert!(fill(engine, DEPTH, 1_000_000, watch) < 1000);
    });
    assert!(failure.is_none() && counted.put.ops() > 0);
    let (counted, _) = run(&mut model, 1, |engine, watch| replay(engine, DEPTH, &trace(), watch));
    assert!(counted.replayed.expect("a replay").requests < 200);
}
