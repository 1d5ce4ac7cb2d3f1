//! Eight processes use one server, and one of them is killed again and again, in the middle of whatever it does.
//!
//! The ignored test does so for a minute, with a kill every second (`cargo test -p adit-kvshare -- --ignored`).
//! `ADIT_SEED` repeats the choices of a run.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_kvshare::{Client, ClientOptions, KvStore, PendingAnswer, Span};
use adit_kvstore::shard::Part;

use rig::{PATIENCE, Rig, fill, key};

#[path = "../share/rig.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod rig;

/// Held by a test that counts the files of this process.
static ALONE: Mutex<()> = Mutex::new(());

const WORKERS: usize = 8;
/// Objects that all of them put, read and remove.
const OBJECTS: u64 = 64;
const BYTES_MAX: usize = 200_000;

/// Numbers that a seed determines.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// Writes an object that says what it is, and returns its length.
fn write(number: u64, version: u64, into: &mut [u8]) -> usize {
    let bytes = 16 + (version * 7919 % (BYTES_MAX as u64 - 16)) as usize;
    fill(number, version, &mut into[..bytes]);
    into[..8].copy_from_slice(&number.to_le_bytes());
    into[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// Checks that an object is what it says, whichever version it is.
fn check(number: u64, object: &[u8]) {
    let word = |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!(word(0), number, "another object");
    let mut expected = vec![0; BYTES_MAX];
    let bytes = write(number, word(8), &mut expected);
    assert!(object == &expected[..bytes], "object {number}, version {}", word(8));
}

/// One process's work: `rounds` requests of all kinds, each of which checks what it gets.
fn work(socket: &Path, seed: u64, rounds: u64) {
    let options = ClientOptions { depth: 32, pool_bytes: 4 << 20, ..ClientOptions::default() };
    let client = Client::connect(socket, &options).expect("connected");
    let mut random = Random(seed | 1);
    let mut span = client.allocate(BYTES_MAX.next_multiple_of(4096)).expect("memory");
    for _ in 0..rounds {
        let number = random.below(OBJECTS);
        span = step(&client, &mut random, number, span);
    }
}

fn step(client: &Client, random: &mut Random, number: u64, mut span: Span) -> Span {
    let version = random.below(1 << 20);
    match random.below(16) {
        0..5 => {
            let mut object = vec![0; BYTES_MAX];
            let bytes = write(number, version, &mut object);
            span.write(0, &object[..bytes]);
            let data = adit_kvshare::client::Data::Span(span, bytes as u64);
            let put = client.put(key(number), data).wait().expect("put");
            return put.memory.expect("what was lent");
        }
        5..10 => {
            let read = client.get_into(key(number), Part::All, span).wait().expect("got");
            if let Some(bytes) = read.bytes {
                check(
                    number,
                    &read.memory.as_ref().expect("it comes back").to_vec()[..bytes as usize],
                );
            }
            return read.memory.expect("it comes back");
        }
        10..12 => {
            let gets = client.get_many((0..8).map(|at| key((number + at) % OBJECTS)));
            for (at, value) in (0..).zip(gets) {
                if let Some(value) = value.wait().expect("got") {
                    check((number + at) % OBJECTS, &value.to_vec());
                }
            }
        }
        12..14 => {
            let keys: Vec<_> = (number..OBJECTS).map(key).collect();
            let lease = client.lease(&keys, Duration::from_secs(3600)).wait().expect("leased");
            assert!(lease.count() <= keys.len());
            let found = client.lookup_prefix(&keys).wait().expect("looked up");
            assert!(found <= keys.len());
        }
        14 => drop(client.delete(key(number)).wait().expect("deleted")),
        _ => {
            let mut object = vec![0; BYTES_MAX];
            let bytes = write(number, version, &mut object);
            client.put(key(number), &object[..bytes]).wait().expect("put");
        }
    }
    span
}

/// The workers' process, if it is told a socket; else one worker on a server of its own.
#[test]
fn a_worker_gets_what_was_put() {
    let seed = std::env::var("ADIT_SHARE_SEED").map_or(7, |seed| seed.parse().expect("a number"));
    match std::env::var_os("ADIT_SHARE_SOCKET") {
        Some(socket) => work(Path::new(&socket), seed, u64::MAX),
        None => {
            let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            let rig = Rig::soft();
            work(&rig.socket(), seed, 200);
            rig.until_nothing_is_left();
        }
    }
}

fn start(socket: &Path, seed: u64) -> Child {
    let mut worker = Command::new(std::env::current_exe().expect("this program"));
    worker.args(["--exact", "a_worker_gets_what_was_put", "--nocapture"]);
    worker.env("ADIT_SHARE_SOCKET", socket).env("ADIT_SHARE_SEED", seed.to_string());
    worker.stdout(Stdio::null()).spawn().expect("a worker starts")
}

/// Kills a worker, which has to be alive until then: one that found a wrong byte is not.
fn kill(mut worker: Child) {
    let ended = worker.try_wait().expect("its state");
    assert_eq!(ended, None, "a worker ended by itself: see above");
    worker.kill().expect("killed");
    let status = worker.wait().expect("its end");
    assert_eq!(status.signal(), Some(9), "a worker ended by itself: see above");
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux tells").count()
}

/// Runs the workers for some seconds and kills one every `pause`.
fn run(rig: &Rig, seconds: u64, pause: Duration) {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let drawn = || time.map_or(1, |time| time.as_nanos() as u64);
    let seed =
        std::env::var("ADIT_SEED").map_or_else(|_| drawn(), |seed| seed.parse().expect("a number"));
    println!("ADIT_SEED={seed}");
    let mut random = Random(seed | 1);
    let files = open_files();
    let mut workers: Vec<Child> =
        (0..WORKERS).map(|_| start(&rig.socket(), random.below(u64::MAX >> 33))).collect();
    rig.until("all workers have come", |counts| counts.clients_now == WORKERS as u64);
    let begin = Instant::now();
    let mut killed = 0;
    while begin.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(pause);
        let victim = workers.swap_remove(random.below(WORKERS as u64) as usize);
        kill(victim);
        killed += 1;
        workers.push(start(&rig.socket(), random.below(1 << 30)));
    }
    workers.into_iter().for_each(kill);
    rig.until_nothing_is_left();
    let stats = rig.store.stats().wait().expect("counted");
    assert_eq!((stats.misses_corrupt, rig.counts().clients_expelled), (0, 0));
    assert!(stats.hits > 100 && killed > 2, "{stats:?}");
    for number in 0..OBJECTS {
        if let Some(value) = rig.store.get(key(number)).wait().expect("got") {
            check(number, &value);
        }
    }
    let begin = Instant::now();
    while open_files() > files {
        assert!(begin.elapsed() < PATIENCE, "{} files, {files} before", open_files());
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{killed} killed, {} hits, {} puts", stats.hits, stats.puts);
}

#[test]
fn processes_that_are_killed_leave_nothing_behind_and_no_wrong_byte() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for rig in [Rig::soft(), Rig::file()] {
        run(&rig, 3, Duration::from_millis(300));
    }
}

#[test]
#[ignore = "takes a minute for each of two stores"]
fn processes_that_are_killed_for_a_minute() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for rig in [Rig::soft(), Rig::file()] {
        run(&rig, 60, Duration::from_secs(1));
    }
}
