//! Each target for one second with fresh input, and over the inputs that are kept.
//!
//! The seed is printed; `ADIT_FUZZ_SEED=N` repeats a run, `ADIT_FUZZ_SECONDS=N` searches longer, and
//! `ADIT_FUZZ_INPUT=FILE` runs one input, such as libFuzzer leaves behind.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_fuzz::TARGETS;

/// Length of the longest input generated here.
const INPUT_BYTES_MAX: u64 = 1500;

/// Xorshift64*, good enough to choose bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns an input of random length, in which small numbers are more likely.
    fn input(&mut self) -> Vec<u8> {
        let len = self.next() % INPUT_BYTES_MAX;
        let small = self.next() % 4;
        (0..len)
            .map(|_| {
                let word = self.next();
                if word >> 32 & 3 < small { (word & 15) as u8 } else { word as u8 }
            })
            .collect()
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn target(name: &str) -> fn(&[u8]) {
    TARGETS.iter().find(|(known, _)| *known == name).expect("a target").1
}

/// Returns the inputs kept for a target, by name.
fn kept(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|why| panic!("{folder:?}: {why}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// Runs `target`; on a failure, saves the input to a file before the panic continues.
fn run(name: &str, target: fn(&[u8]), what: &str, input: &[u8]) {
    let outcome = std::panic::catch_unwind(|| target(input));
    if let Err(panic) = outcome {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-failed"));
        let saved = std::fs::write(&path, input);
        eprintln!("{name}: failed on {what}, which is in {} ({saved:?})", path.display());
        std::panic::resume_unwind(panic);
    }
}

/// Runs the kept inputs, then fresh ones.
fn exercise(name: &str) {
    let target = target(name);
    if let Ok(path) = std::env::var("ADIT_FUZZ_INPUT") {
        return target(&std::fs::read(path).expect("a file"));
    }
    let kept = kept(name);
    assert!(!kept.is_empty(), "{name} has inputs of its own");
    for path in kept {
        run(name, target, &path.display().to_string(), &std::fs::read(&path).expect("a file"));
    }
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let fresh = clock.map_or(1, |since| since.as_nanos() as u64);
    let seed = number("ADIT_FUZZ_SEED").unwrap_or(fresh).max(1);
    let end = Instant::now() + Duration::from_secs(number("ADIT_FUZZ_SECONDS").unwrap_or(1));
    eprintln!("ADIT_FUZZ_SEED={seed} cargo test -p adit-fuzz --test targets {name}");
    let (mut random, mut runs) = (Random(seed), 0u64);
    while Instant::now() < end {
        run(name, target, &format!("input {runs} of seed {seed}"), &random.input());
        runs += 1;
    }
    eprintln!("{name}: {runs} inputs");
    assert!(runs > 0, "one second is enough for one input");
}

macro_rules! exercises {
    ($($name:ident),+) => {$(
        #[test]
        fn $name() {
            exercise(stringify!($name));
        }
    )+

        #[test]
        fn no_target_is_forgotten() {
            let here = [$(stringify!($name)),+];
            assert_eq!(TARGETS.map(|(name, _)| name), here);
        }
    };
}

exercises!(
    spec_bytes,
    hostile_controller,
    recovery,
    planner,
    vfio_user_client,
    vfio_user_server,
    soft_host,
    strings,
    jobfile,
    kv_superblock,
    kv_record,
    kv_block,
    kv_checkpoint,
    kv_recovery,
    kv_stream
);
