//! The driver against a model of the medium.
//!
//! A seed picks a controller, its queues and a schedule of requests, several in flight at once, in buffers of all
//! shapes. The model is a byte vector per namespace. Each completion is checked against it: data, status, the returned
//! buffer and the memory around it; at the end, so are the whole medium and the mappings. The controller is stepped in
//! virtual time, so that a seed always gives the same run.
//!
//! ```text
//! ADIT_MODEL_SEED=17 cargo test -p adit-driver --test model      # one run again
//! ADIT_MODEL_SEEDS=5000 cargo test -p adit-driver --test model   # a longer search
//! ```

mod engine;
mod memory;
mod operation;
mod random;
mod scenario;

use std::panic::{AssertUnwindSafe, catch_unwind};

use adit_driver::Buffer;

use engine::{Engine, Reached};
use random::Random;
use scenario::Scenario;

const SEEDS: u64 = 150;

/// Prints how to repeat a failed run.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("repeat with: ADIT_MODEL_SEED={seed} cargo test -p adit-driver --test model");
        }
    }
}

/// Executes one run; with `lies`, one byte of the model is wrong at the end.
fn run(seed: u64, lies: bool) -> Reached {
    let _replay = Replay(seed);
    let mut random = Random::new(seed);
    let scenario = Scenario::new(seed, &mut random);
    println!("seed {seed}: {scenario:?}");
    if scenario.scattered {
        Engine::<Vec<Buffer>>::new(scenario, random).run(lies)
    } else {
        Engine::<Option<Buffer>>::new(scenario, random).run(lies)
    }
}

#[test]
fn every_run_agrees_with_the_model() {
    match std::env::var("ADIT_MODEL_SEED") {
        Ok(seed) => {
            run(seed.parse().expect("ADIT_MODEL_SEED is a number"), false);
        }
        Err(_) => assert_busy(run_all()),
    }
}

fn run_all() -> Reached {
    let seeds = std::env::var("ADIT_MODEL_SEEDS");
    let seeds = seeds.map_or(SEEDS, |count| count.parse().expect("ADIT_MODEL_SEEDS is a number"));
    let mut reached = Reached::default();
    (0..seeds).for_each(|seed| reached.add(run(seed, false)));
    reached
}

/// Checks that all runs together covered everything that a queue does.
fn assert_busy(reached: Reached) {
    println!("{reached:?}");
    let Reached { sgl, prebuilt, built, bounced, full, too_large, failed, in_flight_max } = reached;
    for count in [sgl, prebuilt, built, bounced, full, too_large, failed] {
        assert!(count > 100, "{reached:?}");
    }
    assert!(in_flight_max > 20, "{reached:?}");
}

#[test]
fn a_wrong_model_is_noticed() {
    for seed in 0..8 {
        let caught = catch_unwind(AssertUnwindSafe(|| run(seed, true)));
        let message = caught.expect_err("one byte of the model is wrong");
        let message = message.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains("differs from the model"), "seed {seed}: {message}");
    }
}
