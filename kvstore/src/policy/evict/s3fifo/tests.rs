//! S3-FIFO against the algorithm of the paper, written down once more: hits of whole traces.

use std::collections::{HashMap, HashSet, VecDeque};

use super::*;

/// The paper's Algorithm 1 with a small queue of a tenth, and as many ghosts as objects. Returns the hits.
fn textbook(trace: &[u64], objects: usize) -> usize {
    let (mut small, mut main, mut hits) = (VecDeque::new(), VecDeque::new(), 0);
    let (mut ghosts, mut freq) = (VecDeque::new(), HashMap::<u64, u32>::new());
    for &key in trace {
        if let Some(freq) = freq.get_mut(&key) {
            (hits, *freq) = (hits + 1, 3.min(*freq + 1));
            continue;
        }
        while freq.len() == objects {
            let from_small = small.len() * 10 >= objects;
            let old = if from_small { &mut small } else { &mut main }.pop_front().expect("full");
            if freq[&old] > u32::from(from_small) {
                main.push_back(old);
                freq.insert(old, if from_small { 0 } else { freq[&old] - 1 });
            } else {
                freq.remove(&old);
                ghosts.extend(from_small.then_some(old));
            }
        }
        ghosts.drain(..ghosts.len().saturating_sub(objects));
        let ghost = ghosts.iter().position(|ghost| *ghost == key);
        ghost.map(|at| ghosts.remove(at));
        if ghost.is_some() { &mut main } else { &mut small }.push_back(key);
        freq.insert(key, 0);
    }
    hits
}

/// Replays a trace through the policy. Returns the hits.
fn ours(trace: &[u64], objects: usize) -> usize {
    let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ key << 48;
    let mut policy = S3Fifo::new(objects as u32);
    let (mut ids, mut keys, mut hits) = (HashMap::new(), Vec::new(), 0);
    for &key in trace {
        if let Some(id) = ids.get(&key) {
            policy.touched(*id);
            hits += 1;
            continue;
        }
        let id = if keys.len() < objects {
            keys.push(key);
            ObjectId(keys.len() as u32 - 1)
        } else {
            let id = policy.victim(&mut |_| false).expect("none is leased");
            let old = std::mem::replace(&mut keys[id.0 as usize], key);
            policy.evicted(id, hash(old));
            ids.remove(&old);
            id
        };
        policy.inserted(id, hash(key));
        ids.insert(key, id);
    }
    hits
}

/// Conversations: one of the latest 100 comes back with all of its blocks so far, and some new ones for the next time.
/// Between them are blocks that come once. What a cache of these sizes evicts comes back about when it would have
/// been evicted from a cache of twice the size, so the number of ghosts decides.
fn trace(seed: u64) -> Vec<u64> {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) % bound
    };
    let (mut conversations, mut trace, mut next) = (Vec::<Vec<u64>>::new(), Vec::new(), 0);
    while trace.len() < 20_000 {
        let mut fresh = |count: u64| {
            next += count;
            next - count..next
        };
        match below(10) {
            0..3 => {
                conversations.push(fresh(4).collect());
                trace.extend(&conversations[conversations.len() - 1]);
            }
            3..5 => trace.extend(fresh(10)),
            _ if conversations.is_empty() => {}
            _ => {
                let at = (conversations.len() as u64 - 1).saturating_sub(below(100)) as usize;
                trace.extend(&conversations[at]);
                conversations[at].extend(fresh(2));
            }
        }
    }
    trace
}

#[test]
fn it_hits_what_the_textbooks_algorithm_hits() {
    for seed in 0..2 {
        let trace = trace(seed);
        let distinct = trace.iter().collect::<HashSet<_>>().len();
        for objects in [distinct / 40, distinct / 20, distinct / 10] {
            let (hits, exact) = (ours(&trace, objects), textbook(&trace, objects));
            assert!(exact > trace.len() / 50, "the trace says little: {exact} hits");
            let off = hits.abs_diff(exact);
            assert!(
                off * 200 <= trace.len(),
                "seed {seed}, {objects} objects: {hits} hits, not {exact}, of {}",
                trace.len()
            );
        }
    }
}
