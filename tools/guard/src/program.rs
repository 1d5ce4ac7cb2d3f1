//! Runs what may hang on this machine: calls into the kernel, and programs.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use adit_tools_common::process;
use nix::fcntl::OFlag;

/// Time limit of opening a device.
const OPEN_LIMIT: Duration = Duration::from_secs(120);

/// Longest wait for a program's output after its end, and for the end of a killed program.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where programs are searched, regardless of the user's PATH. The system's directories come first, because
/// others than root may be able to write to /usr/local.
const SYSTEM_DIRECTORIES: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

/// Claims a block device such as `/dev/nvme0n1` while the file is open: the device and its partitions cannot be mounted,
/// used for swap or added to an array then.
///
/// # Errors
/// `EBUSY` if it is in use.
pub fn claim(device: &Path) -> io::Result<File> {
    let device = device.to_owned();
    // Opening a dead drive may block.
    let open =
        move || OpenOptions::new().read(true).custom_flags(OFlag::O_EXCL.bits()).open(device);
    within(OPEN_LIMIT, open)
}

/// Runs `work` in a thread of its own and waits for it for a limited time.
///
/// # Errors
/// The error of `work`, or a timeout; the thread is then abandoned.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        // After a timeout the receiver is gone.
        let _ = done.send(work());
    })?;
    result.recv_timeout(limit).unwrap_or_else(|_| Err(too_long("the kernel", limit)))
}

fn too_long(who: &str, limit: Duration) -> io::Error {
    let why = format!("{who} has not finished after {} s", limit.as_secs_f32());
    io::Error::new(ErrorKind::TimedOut, why)
}

/// Runs a program and returns its output.
///
/// # Errors
/// It is missing, takes too long, or fails; the error then includes the last line it printed.
pub fn run(program: &str, arguments: &[String], limit: Duration) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", SYSTEM_DIRECTORIES).env("LC_ALL", "C");
    // Ctrl-C at the terminal must reach only us, so that the program can finish.
    command.process_group(0);
    let ran = process::run(&mut command, limit, LAST_WORDS, &mut || true)?;
    let Some(status) = ran.status else { return Err(too_long("it", limit)) };
    if status.success() {
        return Ok(ran.out);
    }
    let last = ran.err.lines().rfind(|line| !line.trim().is_empty());
    Err(io::Error::other(last.map_or_else(|| status.to_string(), |line| line.trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(120);
    const SHORT: Duration = Duration::from_millis(100);

    #[test]
    fn a_write_that_hangs_is_given_up() {
        let hangs = || {
            thread::sleep(Duration::from_secs(2));
            Ok(())
        };
        let why = within(SHORT, hangs).expect_err("it takes too long");
        assert_eq!(why.kind(), ErrorKind::TimedOut);
        assert_eq!(why.to_string(), "the kernel has not finished after 0.1 s");
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn a_program_prints_fails_with_its_last_words_or_is_not_there() {
        let shell = |script| run("sh", &words(&["-c", script]), LIMIT);
        assert_eq!(shell("echo one; echo two").expect("it ends well"), "one\ntwo\n");
        let why = shell("echo first >&2; echo 'FATAL: last' >&2; exit 3").expect_err("it fails");
        assert_eq!(why.to_string(), "FATAL: last");
        let why = shell("exit 3").expect_err("it fails");
        assert_eq!(why.to_string(), "exit status: 3");
        let why = run("adit-no-such-program", &[], LIMIT).expect_err("it is not there");
        assert_eq!(why.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_program_that_prints_much_does_not_wait_for_us() {
        let much = run("sh", &words(&["-c", "yes | head -c 1000000"]), LIMIT);
        assert_eq!(much.map(|text| text.len()).ok(), Some(1_000_000));
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_one_that_leaves_something_behind_is_not_waited_for() {
        let why = run("sleep", &words(&["60"]), SHORT).expect_err("it takes too long");
        assert_eq!(why.kind(), ErrorKind::TimedOut);
        assert_eq!(why.to_string(), "it has not finished after 0.1 s");
        let begun = Instant::now();
        run("sh", &words(&["-c", "sleep 20 &"]), LIMIT).expect("the shell ends");
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
}
