//! A step's process: its output, its exit code, and an end within a time limit.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::interrupt::Interrupt;

/// Lines kept of what a step printed on standard error.
const SAID_LINES: usize = 20;
/// How often a process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a process that was killed may take to go. One that waits for the GPU's driver may stay for ever.
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
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(why) => {
            let said = format!("{} cannot be run: {why}", program.display());
            return Ended { said, ..Ended::default() };
        }
    };
    let out = reading(child.stdout.take());
    let err = reading(child.stderr.take());
    let ended = wait(&mut child, begun + limit, interrupt, tell);
    let is_late = matches!(ended, Ok(None)) && !interrupt.requested();
    let text = |bytes: Receiver<Vec<u8>>| {
        // What holds the pipe of a process that does not go.
        let bytes = bytes.recv_timeout(GOES_WITHIN).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, mut said) = (text(out), tail(&text(err)));
    let code = match ended {
        Ok(status) => status.and_then(|status| status.code()),
        Err(why) => {
            said += &format!("\nit cannot be waited for: {why}");
            None
        }
    };
    if is_late {
        said += &format!("\nit was ended after {} s, its limit", limit.as_secs());
    }
    Ended { code, is_late, took: begun.elapsed(), out, said: said.trim().to_owned() }
}

/// Waits for the end; `None` if the process had to be killed.
fn wait(
    child: &mut Child,
    deadline: Instant,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(),
) -> io::Result<Option<ExitStatus>> {
    while Instant::now() < deadline && !interrupt.requested() {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        tell();
        thread::sleep(LOOK_EVERY);
    }
    child.kill()?;
    let killed = Instant::now();
    while child.try_wait()?.is_none() && killed.elapsed() < GOES_WITHIN {
        thread::sleep(LOOK_EVERY);
    }
    Ok(None)
}

/// Reads to the end, in a thread of its own.
fn reading(from: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // What came before an error is reported all the same.
            let _ = from.read_to_end(&mut bytes);
        }
        // The lab may have given up.
        let _ = sender.send(bytes);
    });
    receiver
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
