//! This machine's hands: what a [`Change`] does for real.
//!
//! A write to sysfs can wait in the kernel for as long as a driver likes, and cannot be broken off. It is done by a
//! thread of its own, so that at least the person is told after [`LIMIT`].

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;

use super::change::{Change, Claim, Hands};
use super::record::STATE;

/// How long one change may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Where programs are, whatever a user's PATH leaves out.
const SYSTEM_DIRECTORIES: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// The machine that this process runs on.
#[derive(Debug)]
pub(crate) struct Machine;

impl Hands for Machine {
    fn apply(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::Write { path, value } => within(LIMIT, write_attribute(path, value)),
            Change::File { path, content, mode } => replace(path, content, *mode),
            Change::Link { path, target } => relink(path, target),
            Change::Remove { path } => remove(path),
            Change::Owner { path, uid } => own(path, *uid),
            Change::Run { program, arguments } => run(program, arguments, LIMIT).map(drop),
        }
    }

    fn claim(&mut self, device: &Path) -> io::Result<Claim> {
        let flags = (OFlag::O_EXCL | OFlag::O_CLOEXEC).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(device)?;
        Ok(Claim(Some(file)))
    }

    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
    }
}

/// Runs `work` in a thread of its own and waits for it for a bounded time.
fn within(
    limit: Duration,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || {
        // Nobody listens any more when it took too long.
        let _ = done.send(work());
    });
    result.recv_timeout(limit).unwrap_or_else(|_| {
        let why = format!("the kernel has not finished after {} s", limit.as_secs());
        Err(io::Error::new(ErrorKind::TimedOut, why))
    })
}

fn write_attribute(path: &Path, value: &str) -> impl FnOnce() -> io::Result<()> + Send + 'static {
    let (path, line) = (path.to_owned(), format!("{value}\n"));
    move || OpenOptions::new().write(true).open(path)?.write_all(line.as_bytes())
}

/// Writes beside the file, then takes its place: a crash leaves the old one or the new one.
fn replace(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let beside = beside(path);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content.as_bytes())?;
    // Without it the new name could come to disk before the content.
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(directory)?.sync_all()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn relink(path: &Path, target: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    remove(path)?;
    symlink(target, path)?;
    File::open(directory)?.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn own(path: &Path, uid: u32) -> io::Result<()> {
    chown(path, Some(uid), None)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// Runs a program and returns what it printed.
///
/// # Errors
/// That it is not there, takes too long, or fails: then with the last line of what it said.
pub(crate) fn run(program: &str, arguments: &[String], limit: Duration) -> io::Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", SYSTEM_DIRECTORIES)
        // Where wipefs puts its copies.
        .env("HOME", STATE)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut out = child.stdout.take().expect("piped");
    let mut err = child.stderr.take().expect("piped");
    let read = |source: &mut dyn Read| {
        let mut text = Vec::new();
        source.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    };
    let reader = thread::spawn(move || read(&mut out));
    let said = thread::spawn(move || read(&mut err));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            let why = format!("it has not finished after {} s", limit.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, why));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |thread: thread::JoinHandle<io::Result<String>>| {
        thread.join().unwrap_or_else(|_| Ok(String::new())).unwrap_or_default()
    };
    let (printed, said) = (text(reader), text(said));
    if status.success() {
        return Ok(printed);
    }
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    Err(io::Error::other(last.map_or_else(|| status.to_string(), |line| line.trim().to_owned())))
}
