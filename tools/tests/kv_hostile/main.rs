//! `adit kv serve` beside clients that break every rule, from a seed, while an honest client works: that one always gets
//! through, and its objects are right; the server's memory and descriptors stay bounded; nothing is left at the end.
//!
//! `ADIT_HOSTILE_SECONDS=600 cargo test -p adit --test kv_hostile -- --nocapture` does so for ten minutes;
//! `ADIT_HOSTILE_SEED` repeats the choices of a run, though not how its threads interleave.

#[path = "../commands/support/kv.rs"]
mod support;

#[path = "../../../kvstore/shared/tests/share/raw.rs"]
mod raw;

mod attack;
mod honest;
mod served;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use attack::{Attack, Attacks};
use served::Served;
use support::{Scratch, succeed};

const SEED: u64 = 20_261_128;
const SECONDS: u64 = 4;
const ATTACKERS: u64 = 3;

/// Settings of the server: small, so that each limit is met.
const LIMITS: [&str; 10] = [
    "--clients",
    "12",
    "--memory",
    "4m",
    "--memory-all",
    "24m",
    "--layouts",
    "4",
    "--tenants",
    "40",
];
/// How much clients may hold, and for how long: little, or all of it.
const STRICT: [&str; 4] = ["--hold-share", "20", "--lease-max", "1s"];
const LENIENT: [&str; 4] = ["--hold-share", "100", "--lease-max", "24h"];

/// Numbers that a seed determines.
pub(crate) struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What a run did.
#[derive(Debug, Default)]
struct Figures {
    attacks: u64,
    honest: honest::Figures,
    peaks: served::Peaks,
}

fn from_environment(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    value.unwrap_or(default)
}

/// Attacks a server for a time. Returns what happened, or what was wrong.
fn run(seed: u64, time: Duration, holds: &[&str], attack: Attack) -> Result<Figures, String> {
    let scratch = Scratch::new(&format!("hostile-{seed}-{attack:?}"));
    let target = scratch.store("a.img");
    let socket = scratch.path("kv.sock");
    let socket: &Path = &socket;
    let mut served = Served::start(&target, socket, &[&LIMITS, holds].concat());
    let baseline = served.look();
    // What waits for room is not to hold the test up for long where that is what has to be found.
    let patience = Duration::from_secs(if attack == Attack::Everything { 60 } else { 3 });
    let (ends, since) = (AtomicBool::new(false), Instant::now());
    let attacked = thread::scope(|scope| {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|number| {
                let random = Random::new(seed ^ number << 32);
                let ends = &ends;
                scope.spawn(move || Attacks::new(socket, random, attack).go_on_until(ends))
            })
            .collect();
        let honest = scope.spawn(|| honest::work(socket, patience, Random::new(!seed), &ends));
        let mut watched = Ok(());
        while since.elapsed() < time && watched.is_ok() && !honest.is_finished() {
            thread::sleep(Duration::from_millis(50));
            watched = served.watch();
        }
        ends.store(true, Ordering::Relaxed);
        let mut attacks = 0;
        for attacker in attackers {
            attacks += attacker.join().map_err(|_| "an attacker panicked".to_owned())??;
        }
        let honest = honest.join().map_err(|_| "the honest client panicked".to_owned())??;
        watched?;
        Ok::<_, String>((attacks, honest))
    });
    let (attacks, honest) = attacked?;
    honest::check_nothing_is_left(socket)?;
    served.check_as_before(&baseline)?;
    let peaks = served.end()?;
    succeed(&["kv", "check", &target]);
    Ok(Figures { attacks, honest, peaks })
}

#[test]
fn an_honest_client_notices_nothing_of_hostile_ones() {
    let seed = from_environment("ADIT_HOSTILE_SEED", SEED);
    let time = Duration::from_secs(from_environment("ADIT_HOSTILE_SECONDS", SECONDS));
    let figures = run(seed, time, &STRICT, Attack::Everything);
    let figures = figures.unwrap_or_else(|why| panic!("ADIT_HOSTILE_SEED={seed}: {why}"));
    println!("seed {seed}: {figures:#?}");
    let Figures { attacks, honest, peaks } = &figures;
    assert!(*attacks > 100 && honest.hits > 0 && peaks.files > 0, "{figures:?}");
}

/// Without limits, clients keep all of the store, and that is seen.
#[test]
fn a_server_without_limits_is_found_out() {
    let time = Duration::from_secs(300);
    let wrong = run(SEED, time, &LENIENT, Attack::Reserves);
    let wrong = wrong.expect_err("clients have all of it");
    assert!(wrong.contains("cannot put"), "{wrong}");
}

/// A byte that changes is seen.
#[test]
fn a_wrong_byte_is_found_out() {
    let mut object = honest::contents(7, 3);
    honest::check(7, 3, &object).expect("it is right");
    let last = object.len() - 1;
    object[last] ^= 1;
    honest::check(7, 3, &object).expect_err("a byte is another");
    honest::check(7, 2, &honest::contents(7, 3)).expect_err("another version");
    honest::check(8, 3, &honest::contents(7, 3)).expect_err("another object");
}
