//! Sends Ctrl-C to an `adit` process.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Waits until a process handles SIGINT (proc(5), SigCgt: one bit per signal, starting from 1).
pub(crate) fn wait_for_handler(process: u32) {
    let begin = Instant::now();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        if caught.expect("Linux tells") >> (Signal::SIGINT as u32 - 1) & 1 == 1 {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no handler after a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends SIGINT.
pub(crate) fn send(process: u32) {
    let pid = Pid::from_raw(i32::try_from(process).expect("a process number"));
    kill(pid, Signal::SIGINT).expect("it runs");
}
