//! Compares `auto` with published policies, on traces of many kinds.

mod models;
mod traces;

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use self::models::{ArcModel, LruModel, S3Model, Score, belady, replay};
use self::traces::{Sessions, Trace, round, scan, shift, skewed};
use super::*;

/// A store of blocks under a policy, used as an engine uses it: a lookup, reads, and puts of the rest as one batch.
struct Replay {
    policy: Auto,
    room: usize,
    ids: HashMap<u32, ObjectId>,
    keys: Vec<u32>,
    free: Vec<ObjectId>,
    /// The predecessor of each block.
    parents: HashMap<u32, u32>,
    evictions: u32,
    /// Evictions of a block whose successor was stored.
    orphaned: u32,
    children: HashMap<u32, HashSet<u32>>,
    score: Score,
}

fn hash(key: u32) -> u64 {
    let mixed = (u64::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Replay {
    fn new(room: usize) -> Replay {
        Replay {
            policy: Auto::new(room as u32),
            room,
            ids: HashMap::new(),
            keys: vec![0; room],
            free: (0..room as u32).rev().map(ObjectId).collect(),
            parents: HashMap::new(),
            evictions: 0,
            orphaned: 0,
            children: HashMap::new(),
            score: Score::default(),
        }
    }

    fn evict(&mut self) {
        let victim = self.policy.victim(&mut |_| false).expect("it is full");
        let key = self.keys[victim.0 as usize];
        self.policy.evicted(victim, hash(key));
        self.ids.remove(&key);
        self.free.push(victim);
        self.evictions += 1;
        self.orphaned += u32::from(self.children.get(&key).is_some_and(|set| !set.is_empty()));
        if let Some(parent) = self.parents.get(&key) {
            self.children.entry(*parent).or_default().remove(&key);
        }
    }

    /// Puts a batch of blocks behind `after`, as a shard does: judges all of them before making room for the first.
    fn put(&mut self, keys: &[u32], after: Option<u32>) {
        let mut before = after.map(|key| (hash(key), self.ids.get(&key).copied()));
        let mut admitted = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let new = Newcomer {
                key_hash: hash(*key),
                after: before,
                is_in_sequence: true,
                is_last: at > 0 && at + 1 == keys.len(),
                is_short: self.free.is_empty(),
            };
            before = Some((hash(*key), None));
            if let Some(id) = self.ids.get(key) {
                self.policy.touched(*id);
                self.score.writes += 1;
            } else if self.policy.admits(&new) {
                admitted.push(*key);
            }
        }
        while self.free.len() < admitted.len() {
            self.evict();
        }
        for key in admitted {
            let id = self.free.pop().expect("one went");
            self.keys[id.0 as usize] = key;
            self.ids.insert(key, id);
            self.policy.inserted(id, hash(key));
            self.score.writes += 1;
            if let Some(parent) = self.parents.get(&key) {
                self.children.entry(*parent).or_default().insert(key);
            }
        }
    }

    fn request(&mut self, request: &[u32]) {
        let found: Vec<ObjectId> =
            request.iter().map_while(|key| self.ids.get(key).copied()).collect();
        self.policy.found(&found);
        found.iter().for_each(|id| self.policy.touched(*id));
        self.score.references += request.len() as u32;
        self.score.hits += found.len() as u32;
        self.parents.extend(request.windows(2).map(|pair| (pair[1], pair[0])));
        let mut before = found.len().checked_sub(1).map(|last| request[last]);
        for together in request[found.len()..].chunks(32) {
            self.put(together, before);
            before = together.last().copied();
        }
    }

    fn run(mut self, trace: &Trace) -> Replay {
        trace.iter().for_each(|request| self.request(request));
        assert_eq!(self.policy.len as usize, self.room - self.free.len());
        self
    }
}

/// Returns the traces on which the policy was developed, and others held back from its development.
fn sessions() -> Vec<(&'static str, Trace)> {
    let seen = [("chat", Sessions::CHAT), ("tools", Sessions::TOOLS), ("agents", Sessions::AGENTS)];
    let long = Sessions { first_blocks: 30, pause: 20_000, ..Sessions::CHAT };
    let forked = Sessions { forks: 4, prompts: 20, documents: 3, ..Sessions::AGENTS };
    let seen = seen.map(|(name, sessions)| (name, sessions.trace(1)));
    let held_out = [("long documents", long.trace(7)), ("forks", forked.trace(8))];
    seen.into_iter().chain(held_out).collect()
}

fn adversarial() -> Vec<(&'static str, Trace)> {
    let half = |sessions: Sessions| Sessions { requests: 800, ..sessions };
    vec![
        ("round", round(60, 1500)),
        ("scan", scan(1, 1500)),
        ("skewed", skewed(2, 1000, 3000)),
        (
            "shift",
            shift([
                scan(3, 600),
                half(Sessions::CHAT).trace(4),
                round(40, 600),
                skewed(5, 500, 1000),
                half(Sessions::AGENTS).trace(6),
            ]),
        ),
    ]
}

#[test]
fn it_hits_no_less_than_lru_on_any_trace() {
    for (name, trace) in sessions().into_iter().chain(adversarial()) {
        for room in [100, 500, 2000] {
            let lru = replay(&trace, &mut LruModel::new(room));
            let auto = Replay::new(room).run(&trace).score;
            let enough = lru.ratio() * 0.99 - 0.001;
            let told = format!("{name}, {room}: {:.4}, LRU {:.4}", auto.ratio(), lru.ratio());
            assert!(auto.ratio() >= enough, "{told}");
            assert!(auto.writes <= lru.writes + lru.writes / 50, "{told}");
        }
    }
}

#[test]
fn it_hits_what_the_best_of_lru_s3_fifo_and_arc_does_with_fewer_writes() {
    let (mut product, mut count) = (1.0, 0);
    for (name, trace) in sessions() {
        for room in [100, 500, 2000] {
            let lru = replay(&trace, &mut LruModel::new(room));
            let s3 = replay(&trace, &mut S3Model::new(room));
            let arc = replay(&trace, &mut ArcModel::new(room));
            let auto = Replay::new(room).run(&trace).score;
            let best = [lru, s3, arc].iter().map(Score::ratio).fold(0.0, f64::max);
            let told = [auto, lru, s3, arc].map(|score| (score.ratio() * 1e4) as u32);
            println!("{name}, {room}: {told:?}, writes {} of {}", auto.writes, lru.writes);
            assert!(belady(&trace, room).hits >= auto.hits, "it knows no future");
            assert!(auto.ratio() >= 0.96 * best, "{name}, {room}: {told:?}");
            if lru.ratio() < 0.5 * belady(&trace, room).ratio() {
                assert!(auto.writes * 10 <= lru.writes * 7, "{name}, {room}: {auto:?} {lru:?}");
            }
            (product, count) = (product * auto.ratio() / best, count + 1);
        }
    }
    let mean = f64::powf(product, 1.0 / f64::from(count));
    assert!(mean >= 1.03, "{mean:.3} of the best, on average");
}

/// Allows exceptions: a recently used block whose next use is far may be evicted before an older successor.
#[test]
fn the_end_of_a_sequence_goes_before_its_beginning() {
    for (name, trace) in sessions() {
        let done = Replay::new(400).run(&trace);
        let (orphaned, evictions) = (done.orphaned, done.evictions);
        assert!(
            evictions > 1000 && orphaned * 10 <= evictions,
            "{name}: {orphaned} of {evictions}"
        );
    }
}

/// Finds and reads the blocks of one sequence, then needs room.
#[test]
fn one_sequence_goes_from_its_end() {
    let mut replay = Replay::new(40);
    replay.request(&(0..10).collect::<Vec<_>>());
    replay.request(&(0..10).collect::<Vec<_>>());
    replay.request(&(0..10).chain(20..25).collect::<Vec<_>>());
    let mut gone = Vec::new();
    while let Some(victim) = replay.policy.victim(&mut |_| false) {
        gone.push(replay.keys[victim.0 as usize]);
        replay.evict();
    }
    let place = |key: u32| gone.iter().position(|other| *other == key).expect("all went");
    assert!((0..9).all(|key| place(key + 1) < place(key)), "{gone:?}");
    assert!((20..24).all(|key| place(key + 1) < place(key) && place(key) < place(9)), "{gone:?}");
}

#[test]
fn what_is_put_alone_is_always_stored_and_so_is_all_while_there_is_room() {
    let mut policy = Auto::new(64);
    let new = |key, is_in_sequence, is_short| Newcomer {
        is_in_sequence,
        is_short,
        ..Newcomer::alone(hash(key))
    };
    assert!((0..5000).all(|key| policy.admits(&new(key, false, true))));
    assert!((0..5000).all(|key| policy.admits(&new(10_000 + key, true, false))));
}

#[test]
fn what_follows_a_declined_block_is_declined() {
    let mut replay = Replay::new(200);
    let mut next = 1_000_000;
    for at in 0..3000 {
        replay.request(&(at % 9 * 20..at % 9 * 20 + 20).collect::<Vec<_>>());
        next += 10;
        let kept = replay.score.writes;
        replay.request(&(next..next + 10).collect::<Vec<_>>());
        let stored = (next..next + 10).map(|key| replay.ids.contains_key(&key));
        let stored: Vec<bool> = stored.collect();
        if replay.score.writes - kept < 10 {
            assert!(stored.is_sorted_by(|one, other| one >= other), "no gap: {stored:?}");
        }
    }
    assert!(replay.score.hits > 2800 * 20, "what is used stays: {:?}", replay.score);
    assert!(replay.score.writes < 6000, "of 30,000 that come once: {:?}", replay.score);
}

#[test]
fn objects_that_an_opening_found_go_by_their_age_and_before_what_was_used_since() {
    let mut policy = Auto::new(8);
    policy.restore(
        &mut [(0, 9), (1, 191), (2, 40), (3, 0)].map(|(id, age)| (ObjectId(id), age)).into_iter(),
    );
    policy.touched(ObjectId(1));
    let mut gone = Vec::new();
    while let Some(victim) = policy.victim(&mut |_| false) {
        policy.evicted(victim, hash(victim.0));
        gone.push(victim.0);
    }
    assert_eq!(gone, [2, 0, 3, 1]);
}

#[test]
fn it_takes_14_bytes_an_object_and_little_more() {
    for objects in [1000, 1 << 20] {
        let bytes = Auto::new(objects).memory_bytes();
        assert!(bytes <= 14 * objects as usize + (300 << 10), "{objects}: {bytes} bytes");
    }
    let done = Replay::new(2000).run(&Sessions::CHAT.trace(2));
    assert!(done.policy.memory_bytes() <= 14 * 2000 + (1200 << 10));
}

proptest! {
    /// For any calls: victims are stored and not leased, and each is evicted once.
    #[test]
    fn each_victim_is_there_and_not_leased(steps in proptest::collection::vec((0u8..5, 0u32..24), 1..400)) {
        let mut policy = Auto::new(24);
        let (mut there, mut leased) = (HashSet::new(), HashSet::new());
        for (kind, number) in steps {
            let id = ObjectId(number);
            match (kind, there.contains(&id)) {
                (0, true) => policy.touched(id),
                (0 | 1, false) => {
                    let new = Newcomer { is_in_sequence: true, is_short: true, ..Newcomer::alone(hash(number)) };
                    if policy.admits(&new) {
                        policy.inserted(id, hash(number));
                        there.insert(id);
                    }
                }
                (1, true) => policy.found(&[id]),
                (2, true) => {
                    policy.removed(id);
                    there.remove(&id);
                }
                (3, _) => drop(leased.insert(id) || leased.remove(&id)),
                _ => {
                    let victim = policy.victim(&mut |id| leased.contains(&id));
                    prop_assert_eq!(victim.is_none(), there.is_subset(&leased));
                    if let Some(victim) = victim {
                        prop_assert!(there.remove(&victim) && !leased.contains(&victim));
                        policy.evicted(victim, hash(victim.0));
                    }
                }
            }
        }
        prop_assert_eq!(policy.len as usize, there.len());
    }
}
