//! A step's process: its output, its exit code, and an end within a time limit.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use adit_tools_common::process;

use crate::interrupt::Interrupt;

/// Lines kept of what a step printed on standard error.
const SAID_LINES: usize = 20;
/// Longest wait for the end of a killed process. One that waits for the GPU's driver may stay forever.
const GOES_WITHIN: Duration = Duration::from_secs(5);

/// How a process ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    /// `None` if a signal ended it, if it was killed at its limit, or if it could not be started.
    pub(super) code: Option<i32>,
    pub(super) is_late: bool,
    pub(super) took: Duration,
    /// Standard output.
    pub(super) out: String,
    /// The end of standard error, and what the lab has to say.
    pub(super) said: String,
}

/// Runs a program until it ends, at most for `limit`; kills it then, or when the user interrupts. Calls `tell` while it
/// runs.
pub(super) fn run(
    program: &Path,
    words: &[String],
    limit: Duration,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(),
) -> Ended {
    let begun = Instant::now();
    let mut command = Command::new(program);
    // As many hardware queues for streams as there are, and all code loaded at once: so that nothing waits behind a kernel
    // that does not end.
    command
        .args(words)
        .env("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        .env("CUDA_MODULE_LOADING", "EAGER");
    let mut goes_on = || {
        tell();
        !interrupt.requested()
    };
    let ran = match process::run(&mut command, limit, GOES_WITHIN, &mut goes_on) {
        Ok(ran) => ran,
        Err(why) => {
            let said = format!("{} cannot be run: {why}", program.display());
            return Ended { said, ..Ended::default() };
        }
    };
    let is_late = ran.status.is_none() && !interrupt.requested();
    let mut said = tail(&ran.err);
    if is_late {
        said += &format!("\nit was ended after {} s, its limit", limit.as_secs());
    }
    Ended {
        code: ran.status.and_then(|status| status.code()),
        is_late,
        took: begun.elapsed(),
        out: ran.out,
        said: said.trim().to_owned(),
    }
}

/// Returns the last lines that are not empty.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SAID_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration, interrupt: &Interrupt) -> Ended {
        let words = ["-c", script].map(str::to_owned);
        run(Path::new("/bin/sh"), &words, limit, interrupt, &mut || ())
    }

    #[test]
    fn a_process_is_told_by_its_code_and_its_output() {
        let long = Duration::from_secs(60);
        let ended = shell("echo out; echo err >&2; exit 3", long, &Interrupt::default());
        assert_eq!((ended.code, ended.is_late), (Some(3), false));
        assert_eq!((ended.out.as_str(), ended.said.as_str()), ("out\n", "err"));
        let killed = shell("kill -9 $$", long, &Interrupt::default());
        assert_eq!((killed.code, killed.is_late), (None, false));
        let none = run(Path::new("/nothing"), &[], long, &Interrupt::default(), &mut || ());
        assert!(none.code.is_none() && none.said.starts_with("/nothing cannot be run"));
    }

    #[test]
    fn a_process_that_hangs_is_ended_at_its_limit_and_what_it_said_is_kept() {
        let short = Duration::from_millis(300);
        let ended = shell("echo begun >&2; exec sleep 600", short, &Interrupt::default());
        assert!(ended.is_late && ended.code.is_none(), "{ended:?}");
        assert!(ended.said.ends_with("it was ended after 0 s, its limit"), "{ended:?}");
        assert!(ended.took < Duration::from_secs(300), "{ended:?}");
    }

    #[test]
    fn an_interrupt_ends_a_process() {
        let interrupt = Interrupt::default();
        interrupt.request();
        let ended = shell("exec sleep 600", Duration::from_secs(600), &interrupt);
        assert!(!ended.is_late && ended.code.is_none(), "{ended:?}");
    }
}
