//! Random bytes, and valid messages with random damage, at the socket. Seeded: a failure prints how to repeat it.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use adit_driver::sys::SharedPages;

use crate::raw::{Raw, header};
use crate::{file_of, served, works};

#[path = "../model/random.rs"]
#[allow(dead_code, reason = "shared with the model, which needs more of it")]
mod random;

use random::Random;

const ROUNDS: u64 = 400;

/// Makes a message with a valid frame and random content, or an entirely random one.
fn message(random: &mut Random) -> Vec<u8> {
    let mut body = vec![0; random.below(80) as usize];
    random.fill(&mut body);
    if random.chance(70) {
        // Small words, which are more often meaningful.
        for word in body.chunks_mut(4) {
            let value = random.pick(&[0, 1, 2, 3, 4, 8, 0x10, 0x14, 0x20, 0x1000, 0x2000, 0x4000]);
            word.copy_from_slice(&u32::to_le_bytes(value)[..word.len()]);
        }
    }
    let size = match random.below(20) {
        0 => random.next() as u32,
        1 => random.below(200) as u32,
        _ => 16 + body.len() as u32,
    };
    let flags = if random.chance(90) { 0 } else { random.next() as u32 };
    let command = if random.chance(90) { random.below(16) } else { random.next() };
    let mut bytes = header(random.next() as u16, command as u16, size, flags);
    bytes.extend(body);
    if random.chance(10) {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
    }
    if random.chance(5) {
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
    }
    bytes
}

fn converse(random: &mut Random, raw: &mut Raw, files: &[File]) {
    for _ in 0..random.between(1, 30) {
        let count = if random.chance(70) { 0 } else { random.between(1, 3) as usize };
        let fds: Vec<RawFd> = (0..count)
            .map(|_| files[random.below(files.len() as u64) as usize].as_raw_fd())
            .collect();
        let bytes = message(random);
        if bytes.is_empty() || raw.send_bytes(&bytes, &fds).is_err() {
            return;
        }
        if random.chance(50) {
            let mut some = [0; 4096];
            // Nothing there, or hung up: the next send shows which.
            let _ = (&raw.stream).read(&mut some);
        }
    }
}

#[test]
fn no_bytes_bring_the_server_down() {
    let seed = std::env::var("ADIT_SERVE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = seed.map_or(0..ROUNDS, |seed: u64| seed..seed + 1);
    let server = served();
    let pages = SharedPages::allocate(1 << 16).expect("memory");
    let files = [
        file_of(&pages),
        File::open("/dev/null").expect("a device"),
        File::open("/proc/self/status").expect("a file"),
        File::open("/").expect("a folder"),
    ];
    for seed in seeds {
        println!(
            "ADIT_SERVE_SEED={seed} cargo test -p adit-driver --features serve --test serve fuzz"
        );
        let mut random = Random::new(seed);
        let mut raw = match random.chance(80) {
            true => Raw::open(server.socket()),
            false => Raw::connect(server.socket()),
        };
        raw.stream.set_read_timeout(Some(Duration::from_millis(1))).expect("timeout");
        converse(&mut random, &mut raw, &files);
        drop(raw);
        works(server.socket());
    }
}
