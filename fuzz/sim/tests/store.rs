//! The store's simulation: it repeats exactly, it encounters what it should, and it catches broken rules.

use adit_sim::kv::{StoreCanary, StoreCounts, run_cuts, run_seed};

/// Fixed seeds, so that a failure comes from the code. `cargo xtask sim --store` uses fresh ones.
const SEEDS: std::ops::Range<u64> = 0..12;
/// Seeds within which everything must be encountered.
const MEETING_SEEDS: u64 = 400;
/// Seeds within which each canary must be caught.
const CANARY_SEEDS: u64 = 600;

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in SEEDS {
        let run = |keeps| run_seed(seed, None, keeps).unwrap_or_else(|failure| panic!("{failure}"));
        let (first, second) = (run(false), run(true));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.counts.to_line(), second.counts.to_line(), "seed {seed}");
    }
}

#[test]
fn runs_meet_what_there_is_to_meet() {
    let must = [
        "power cuts",
        "evictions",
        "removals told",
        "checkpoints",
        "KV blocks",
        "layers read",
        "hits in memory",
        "forgotten in memory",
        "evicted from memory",
        "held in memory",
        "memory tiers made smaller",
    ];
    let mut all = StoreCounts::default();
    for seed in 0..MEETING_SEEDS {
        all.add(&run_seed(seed, None, false).unwrap_or_else(|failure| panic!("{failure}")).counts);
        let met: Vec<String> =
            all.named().filter(|(_, count)| *count > 0).map(|(name, _)| name).collect();
        if met.len() > 30 && must.iter().all(|name| met.iter().any(|met| met == name)) {
            return;
        }
    }
    panic!("not all was met: {all}");
}

#[test]
fn a_cut_is_the_same_alone_as_among_others() {
    let runs = [1_000; 3];
    let hash = |cuts: &[u64]| match run_cuts(3, runs, cuts, false) {
        Ok(report) => report.hash,
        Err((number, failure)) => panic!("cut {number}: {failure}"),
    };
    let (one, other) = (hash(&[20]), hash(&[2_060]));
    assert_ne!(one, other);
    assert_eq!(hash(&[20, 2_060]), one.rotate_left(1) ^ other);
}

#[test]
fn each_rule_broken_on_purpose_is_caught_as_that_law() {
    for canary in StoreCanary::ALL {
        let law = format!("law {}", canary.law());
        let caught = (0..CANARY_SEEDS).find_map(|seed| {
            let failure = run_seed(seed, Some(canary), true).err()?;
            failure.what.contains(&law).then_some(failure)
        });
        let Some(failure) = caught else { panic!("{} was not caught", canary.name()) };
        let line = format!("--store --seed {:#x} --canary {}", failure.seed, canary.name());
        assert!(failure.to_string().ends_with(&line), "{failure}");
    }
}
