//! Models of LRU, S3-FIFO with ghosts of four times the cache, and ARC, each written from its paper and independent of
//! the store's policies; and Belady's optimum with bypass, which knows the future.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::traces::Trace;

/// Counts of one replay of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score {
    pub(super) references: u32,
    /// Leading blocks of requests that were cached.
    pub(super) hits: u32,
    pub(super) writes: u32,
}

impl Score {
    pub(super) fn ratio(&self) -> f64 {
        f64::from(self.hits) / f64::from(self.references)
    }
}

/// A cache of keys.
pub(super) trait Cache {
    fn has(&self, key: u32) -> bool;
    fn touch(&mut self, key: u32);
    fn put(&mut self, key: u32);
}

/// Replays a trace: leading cached blocks are hits; then each block is touched or put, in order.
pub(super) fn replay(trace: &Trace, cache: &mut impl Cache) -> Score {
    let mut score = Score::default();
    for request in trace {
        let hits = request.iter().take_while(|key| cache.has(**key)).count();
        score.references += request.len() as u32;
        score.hits += hits as u32;
        score.writes += (request.len() - hits) as u32;
        for key in request {
            if cache.has(*key) { cache.touch(*key) } else { cache.put(*key) }
        }
    }
    score
}

/// Keys in the order of use.
#[derive(Default)]
struct List {
    at: HashMap<u32, u64>,
    order: BTreeMap<u64, u32>,
    clock: u64,
}

impl List {
    fn len(&self) -> usize {
        self.at.len()
    }

    fn push(&mut self, key: u32) {
        self.remove(key);
        self.clock += 1;
        self.at.insert(key, self.clock);
        self.order.insert(self.clock, key);
    }

    fn remove(&mut self, key: u32) -> bool {
        self.at.remove(&key).and_then(|at| self.order.remove(&at)).is_some()
    }

    fn pop(&mut self) -> Option<u32> {
        let (_, key) = self.order.pop_first()?;
        self.at.remove(&key);
        Some(key)
    }
}

pub(super) struct LruModel {
    list: List,
    room: usize,
}

impl LruModel {
    pub(super) fn new(room: usize) -> LruModel {
        LruModel { list: List::default(), room }
    }
}

impl Cache for LruModel {
    fn has(&self, key: u32) -> bool {
        self.list.at.contains_key(&key)
    }

    fn touch(&mut self, key: u32) {
        self.list.push(key);
    }

    fn put(&mut self, key: u32) {
        if self.list.len() == self.room {
            self.list.pop();
        }
        self.list.push(key);
    }
}

/// Algorithm 1 of "FIFO queues are all you need for cache eviction", with a small queue of a tenth.
pub(super) struct S3Model {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    uses: HashMap<u32, u32>,
    ghosts: List,
    room: usize,
}

impl S3Model {
    pub(super) fn new(room: usize) -> S3Model {
        let (small, main) = Default::default();
        S3Model { small, main, uses: HashMap::new(), ghosts: List::default(), room }
    }

    fn evict(&mut self) {
        let from_small = self.small.len() * 10 >= self.room || self.main.is_empty();
        let queue = if from_small { &mut self.small } else { &mut self.main };
        let key = queue.pop_front().expect("it is full");
        match (from_small, self.uses[&key]) {
            (true, 2..) => {
                self.main.push_back(key);
                self.uses.insert(key, 0);
            }
            (false, uses @ 1..) => {
                self.main.push_back(key);
                self.uses.insert(key, uses - 1);
            }
            _ => {
                self.uses.remove(&key);
                if from_small {
                    self.ghosts.push(key);
                }
            }
        }
        if self.ghosts.len() > 4 * self.room {
            self.ghosts.pop();
        }
    }
}

impl Cache for S3Model {
    fn has(&self, key: u32) -> bool {
        self.uses.contains_key(&key)
    }

    fn touch(&mut self, key: u32) {
        let uses = self.uses.get_mut(&key).expect("it is there");
        *uses = 3.min(*uses + 1);
    }

    fn put(&mut self, key: u32) {
        while self.uses.len() >= self.room {
            self.evict();
        }
        let is_back = self.ghosts.remove(key);
        if is_back { &mut self.main } else { &mut self.small }.push_back(key);
        self.uses.insert(key, 0);
    }
}

/// Figure 4 of "ARC: a self-tuning, low overhead replacement cache".
pub(super) struct ArcModel {
    /// T1, T2, B1, B2.
    lists: [List; 4],
    target: f64,
    room: usize,
}

impl ArcModel {
    pub(super) fn new(room: usize) -> ArcModel {
        ArcModel { lists: Default::default(), target: 0.0, room }
    }

    fn len(&self, list: usize) -> usize {
        self.lists[list].len()
    }

    fn replace(&mut self, is_in_b2: bool) {
        let once = self.len(0) as f64;
        let from_once = once > self.target || (is_in_b2 && once == self.target);
        let from = usize::from(!(once > 0.0 && from_once) && self.len(1) > 0);
        if let Some(key) = self.lists[from].pop() {
            self.lists[from + 2].push(key);
        }
    }

    fn make_room(&mut self) {
        let once = self.len(0) + self.len(2);
        let all: usize = (0..4).map(|list| self.len(list)).sum();
        if once == self.room {
            if self.len(0) == self.room {
                self.lists[0].pop();
                return;
            }
            self.lists[2].pop();
            self.replace(false);
        } else if self.room <= all {
            if all == 2 * self.room {
                self.lists[3].pop();
            }
            self.replace(false);
        }
    }
}

impl Cache for ArcModel {
    fn has(&self, key: u32) -> bool {
        self.lists[..2].iter().any(|list| list.at.contains_key(&key))
    }

    fn touch(&mut self, key: u32) {
        self.lists[0].remove(key);
        self.lists[1].push(key);
    }

    fn put(&mut self, key: u32) {
        let [ghosts_once, ghosts_often] = [self.len(2) as f64, self.len(3) as f64];
        if self.lists[2].remove(key) {
            let step = (ghosts_often / ghosts_once).max(1.0);
            self.target = (self.target + step).min(self.room as f64);
            self.replace(false);
            self.lists[1].push(key);
        } else if self.lists[3].remove(key) {
            self.target = (self.target - (ghosts_once / ghosts_often).max(1.0)).max(0.0);
            self.replace(true);
            self.lists[1].push(key);
        } else {
            self.make_room();
            self.lists[0].push(key);
        }
    }
}

/// Returns the score of a cache that keeps only the keys that return soonest.
pub(super) fn belady(trace: &Trace, room: usize) -> Score {
    let keys: Vec<u32> = trace.concat();
    let (mut next, mut last) = (vec![usize::MAX; keys.len()], HashMap::new());
    for (at, key) in keys.iter().enumerate().rev() {
        next[at] = last.insert(*key, at).unwrap_or(usize::MAX);
    }
    let (mut kept, mut by_next) = (HashMap::new(), BTreeSet::new());
    let (mut score, mut next) = (Score::default(), next.into_iter());
    for request in trace {
        score.references += request.len() as u32;
        score.hits += request.iter().take_while(|key| kept.contains_key(*key)).count() as u32;
        for (key, next) in request.iter().zip(&mut next) {
            let before = kept.remove(key);
            if let Some(before) = before {
                by_next.remove(&(before, *key));
            }
            if next == usize::MAX {
                continue;
            }
            if kept.len() == room {
                let (latest, other) = *by_next.last().expect("it is full");
                if latest <= next {
                    continue;
                }
                by_next.remove(&(latest, other));
                kept.remove(&other);
            }
            score.writes += u32::from(before.is_none());
            kept.insert(*key, next);
            by_next.insert((next, *key));
        }
    }
    score
}
