//! Generates traces of requests for KV blocks, each from a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The blocks of each request, in the order of its prefix.
pub(super) type Trace = Vec<Vec<u32>>;

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns a number around `median`, occasionally many times as large.
    fn around(&mut self, median: u64) -> u64 {
        let eighths: u64 = (0..4).map(|_| self.below(9)).sum();
        let scaled = median << (eighths / 4);
        (scaled / 16 * (16 + self.below(16)) / 16).max(1)
    }

    /// Returns a number below `bound`; small ones are more frequent.
    fn skewed(&mut self, bound: u64) -> u64 {
        let first = self.below(bound);
        let second = self.below(first + 1);
        self.below(second + 1)
    }
}

/// Parameters of a load of sessions.
#[derive(Clone, Copy)]
pub(super) struct Sessions {
    /// Requests of all sessions.
    pub(super) requests: usize,
    /// Number of system prompts; each has `prompt_blocks` blocks.
    pub(super) prompts: u64,
    pub(super) prompt_blocks: u64,
    /// Blocks of the first question.
    pub(super) first_blocks: u64,
    /// One of this many sessions has further turns.
    pub(super) goes_on: u64,
    /// Number of further turns; `pause` is the time between them, where a new session begins every 100.
    pub(super) turns: u64,
    pub(super) pause: u64,
    /// One of this many turns forks: another agent continues from there.
    pub(super) forks: u64,
    /// One of this many sessions is a long document that is requested once.
    pub(super) documents: u64,
}

impl Sessions {
    pub(super) const CHAT: Sessions = Sessions {
        requests: 2000,
        prompts: 3,
        prompt_blocks: 1,
        first_blocks: 8,
        goes_on: 2,
        turns: 5,
        pause: 6000,
        forks: 1000,
        documents: 8,
    };
    pub(super) const TOOLS: Sessions = Sessions {
        prompts: 40,
        prompt_blocks: 7,
        first_blocks: 4,
        goes_on: 5,
        turns: 3,
        pause: 2000,
        ..Sessions::CHAT
    };
    pub(super) const AGENTS: Sessions = Sessions {
        prompts: 8,
        prompt_blocks: 8,
        first_blocks: 5,
        goes_on: 1,
        turns: 14,
        pause: 4000,
        forks: 12,
        ..Sessions::CHAT
    };

    /// Generates the requests. Each request's last block is unique, because it is not full; some turns continue from an
    /// earlier point. The load and the prompts drift.
    pub(super) fn trace(&self, seed: u64) -> Trace {
        let (mut random, mut blocks) = (Random(seed), 0..u32::MAX);
        let mut fresh = |count: u64| -> Vec<u32> { blocks.by_ref().take(count as usize).collect() };
        let mut prompts: Vec<Vec<u32>> = Vec::new();
        for _ in 0..self.prompts {
            prompts.push(fresh(random.around(self.prompt_blocks)));
        }
        let (mut trace, mut waiting, mut now, mut number) = (Trace::new(), BinaryHeap::new(), 0, 0);
        while trace.len() < self.requests {
            now += 50 + random.below(100) * (1 + u64::from(now % 100_000 < 30_000));
            if random.one_in(300) {
                let at = random.below(self.prompts) as usize;
                prompts[at] = fresh(random.around(self.prompt_blocks));
            }
            let mut context = Vec::new();
            let mut left = 1;
            if random.one_in(self.documents) {
                context.extend(fresh(random.around(40)));
            } else {
                context.extend(&prompts[random.skewed(self.prompts) as usize]);
                context.extend(fresh(random.around(self.first_blocks)));
                left += if random.one_in(self.goes_on) { random.around(self.turns) } else { 0 };
            }
            waiting.push(Reverse((now, number, left, context)));
            number += 1;
            while waiting.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
                let Reverse((at, _, left, mut context)) = waiting.pop().expect("one waits");
                trace.push(context.iter().copied().chain(fresh(1)).collect());
                if left <= 1 {
                    continue;
                }
                if random.one_in(20) {
                    let gone = random.below(1 + context.len() as u64 / 4);
                    context.truncate(context.len() - gone as usize);
                }
                if random.one_in(self.forks) {
                    let mut other = context[..=context.len() / 2].to_vec();
                    other.extend(fresh(2));
                    waiting.push(Reverse((at + 200, number, left / 2, other)));
                    number += 1;
                }
                context.extend(fresh(1 + random.below(2)));
                let pause = random.around(self.pause);
                waiting.push(Reverse((at + pause, number, left - 1, context)));
                number += 1;
            }
        }
        trace
    }
}

/// Cycles through `count` sequences of 20 blocks.
pub(super) fn round(count: u32, requests: u32) -> Trace {
    let sequence = |at: u32| (at % count * 20..at % count * 20 + 20).collect();
    (0..requests).map(sequence).collect()
}

/// Mixes requests for a skewed set of sequences with as many for sequences that appear once.
pub(super) fn scan(seed: u64, requests: u32) -> Trace {
    let mut random = Random(seed);
    let request = |at: u32| {
        let first = if random.one_in(2) { random.skewed(60) as u32 * 20 } else { 10_000 + at * 40 };
        (first..first + if first < 10_000 { 20 } else { 40 }).collect()
    };
    (0..requests).map(request).collect()
}

/// Requests one of `count` sequences of 10 blocks, some far more often than others.
pub(super) fn skewed(seed: u64, count: u64, requests: u32) -> Trace {
    let mut random = Random(seed);
    let mut request = || {
        let first = random.skewed(count) as u32 * 10;
        (first..first + 10).collect()
    };
    (0..requests).map(|_| request()).collect()
}

/// Concatenates traces, renumbered to share no blocks.
pub(super) fn shift(traces: impl IntoIterator<Item = Trace>) -> Trace {
    let mut first = 0;
    let mut all = Trace::new();
    for trace in traces {
        let end = trace.iter().flatten().max().map_or(0, |last| last + 1);
        all.extend(trace.into_iter().map(|ids| ids.into_iter().map(|id| id + first).collect()));
        first += end;
    }
    all
}
