//! Runs a program to its end, for a limited time.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between looks at a program.
const LOOK: Duration = Duration::from_millis(5);

/// A program that was run.
#[derive(Debug)]
pub struct Ran {
    /// How it ended; `None` if it was killed.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// Runs a program without input. Kills it after `limit`, or once `goes_on` returns false, and then waits for its end for
/// `grace`, because a program that is stuck in the kernel does not die. The wait for output after the end is as long,
/// because a process left behind may hold the pipes open.
///
/// # Errors
/// When the program cannot be started or waited for.
pub fn run(
    command: &mut Command,
    limit: Duration,
    grace: Duration,
    goes_on: &mut dyn FnMut() -> bool,
) -> io::Result<Ran> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let out = listen(child.stdout.take().expect("piped"))?;
    let err = listen(child.stderr.take().expect("piped"))?;
    let status = end(&mut child, limit, grace, goes_on)?;
    let text = |from: Receiver<String>| from.recv_timeout(grace).unwrap_or_default();
    Ok(Ran { status, out: text(out), err: text(err) })
}

/// Waits for the end; `None` if the program had to be killed.
fn end(
    child: &mut Child,
    limit: Duration,
    grace: Duration,
    goes_on: &mut dyn FnMut() -> bool,
) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit || !goes_on() {
            break;
        }
        thread::sleep(LOOK);
    }
    child.kill()?;
    let killed = Instant::now();
    while child.try_wait()?.is_none() && killed.elapsed() < grace {
        thread::sleep(LOOK);
    }
    Ok(None)
}

/// Reads a pipe to its end in a thread of its own, so that the program never blocks on it.
fn listen(mut source: impl Read + Send + 'static) -> io::Result<Receiver<String>> {
    let (done, text) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // Output before an error is still useful.
        let _ = source.read_to_end(&mut bytes);
        // The caller may have given up.
        let _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
    })?;
    Ok(text)
}
