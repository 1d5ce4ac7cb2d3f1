//! The driver's simulation: it repeats exactly, it encounters what it should, and it catches broken laws.

use adit_sim::{Canary, Counts, run_seed};

/// Fixed seeds of the runs below, so that a failure comes from the code. `cargo xtask sim` uses fresh ones.
const SEEDS: std::ops::Range<u64> = 0..100;
/// Seeds within which each canary must be caught.
const CANARY_SEEDS: u64 = 500;

#[test]
fn the_same_seed_makes_the_same_run() {
    let mut hashes = Vec::new();
    for seed in SEEDS {
        let run = |keeps| run_seed(seed, None, keeps).unwrap_or_else(|failure| panic!("{failure}"));
        let (first, second) = (run(false), run(true));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.counts.to_line(), second.counts.to_line(), "seed {seed}");
        hashes.push(first.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), SEEDS.count(), "seeds differ from each other");
}

#[test]
fn runs_meet_every_fault_and_every_ending() {
    let mut all = Counts::default();
    for seed in 0..400 {
        all.add(&run_seed(seed, None, false).unwrap_or_else(|failure| panic!("{failure}")).counts);
    }
    for (fault, count) in all.faults() {
        assert!(count > 0, "{fault} never struck: {all}");
    }
    let endings = [all.done, all.failed, all.ended[0], all.swallowed, all.refused, all.failures];
    assert!(endings.iter().all(|count| *count > 0), "{all}");
    assert!(all.lbas_checked > all.schedules, "{all}");
}

#[test]
fn each_law_broken_on_purpose_is_caught_as_that_law() {
    for canary in Canary::ALL {
        let caught = (0..CANARY_SEEDS).find_map(|seed| run_seed(seed, Some(canary), true).err());
        let Some(failure) = caught else { panic!("{} was not caught", canary.name()) };
        let law = format!("law {}", canary.law());
        assert!(failure.what.contains(&law), "{}: {failure}", canary.name());
        let line = format!("cargo xtask sim --seed {:#x} --canary {}", failure.seed, canary.name());
        assert!(failure.to_string().ends_with(&line), "{failure}");
        assert!(!failure.trace.is_empty());
    }
}
