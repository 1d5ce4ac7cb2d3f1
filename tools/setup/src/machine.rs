//! Carries out [`Change`]s on this machine.
//!
//! A write to sysfs can block in a driver indefinitely and cannot be cancelled. It runs in a thread of its own,
//! so that the user gets a report after [`LIMIT`].
//!
//! Files are renamed into place, and directories are synced: after a crash either the old or the new
//! one exists, and perhaps a leftover beside it, which the next write or removal deletes.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::fcntl::OFlag;

use super::change::{Change, Claim, Hands};
use crate::process;

/// Time limit of one change.
const LIMIT: Duration = Duration::from_secs(120);

/// Longest wait for a program's output after its end, and for the end of a killed program.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where programs are searched, regardless of the user's PATH. The system's directories come first, because
/// others than root may be able to write to /usr/local.
const SYSTEM_DIRECTORIES: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

/// The machine this process runs on.
#[derive(Debug)]
pub(crate) struct Machine;

impl Hands for Machine {
    fn apply(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::Write { path, value } => within(LIMIT, write_attribute(path, value)),
            Change::File { path, content, mode } => replace(path, content, *mode),
            Change::Remove { path } => remove(path),
            Change::Owner { path, uid } => own(path, *uid),
            Change::Run { program, arguments } => run(program, arguments, LIMIT).map(drop),
        }
    }

    fn claim(&mut self, device: &Path) -> io::Result<Claim> {
        let device = device.to_owned();
        // Opening a dead drive may block.
        let open =
            move || OpenOptions::new().read(true).custom_flags(OFlag::O_EXCL.bits()).open(device);
        within(LIMIT, open).map(|file| Claim(Some(file)))
    }

    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
    }
}

/// Runs `work` in a thread of its own and waits for it for a limited time.
///
/// # Errors
/// The error of `work`, or a timeout; the thread is then abandoned.
pub(crate) fn within<T: Send + 'static>(
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

fn write_attribute(path: &Path, value: &str) -> impl FnOnce() -> io::Result<()> + Send + 'static {
    let (path, line) = (path.to_owned(), format!("{value}\n"));
    move || OpenOptions::new().write(true).open(path)?.write_all(line.as_bytes())
}

/// Writes a temporary file and renames it: a crash leaves the old file or the new one.
fn replace(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let directory = directory_of(path)?;
    let beside = beside(path);
    delete(&beside)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    // The umask may have removed permissions.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content.as_bytes())?;
    // Otherwise the rename could reach the disk before the content.
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync(directory)
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = [delete(&beside(path))?, delete(path)?];
    if removed.contains(&true) { sync(parent(path)) } else { Ok(()) }
}

/// Removes a file; returns whether it existed.
fn delete(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true),
    }
}

/// Returns the path of the temporary file, which an interrupted write leaves behind.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Returns the directory of `path`, creating it and its missing ancestors durably.
fn directory_of(path: &Path) -> io::Result<&Path> {
    let directory = parent(path);
    let missing: Vec<&Path> = directory.ancestors().take_while(|one| !one.exists()).collect();
    for one in missing.into_iter().rev() {
        // With any umask, only root writes there: records are refused otherwise.
        DirBuilder::new().mode(0o755).create(one)?;
        sync(parent(one))?;
    }
    Ok(directory)
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn own(path: &Path, uid: u32) -> io::Result<()> {
    chown(path, Some(uid), None)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// Runs a program and returns its output.
///
/// # Errors
/// It is missing, takes too long, or fails; the error then includes the last line it printed.
pub(crate) fn run(program: &str, arguments: &[String], limit: Duration) -> io::Result<String> {
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
    use std::os::unix::fs::MetadataExt;
    use std::time::Instant;

    use super::*;
    use crate::root::Root;

    const SHORT: Duration = Duration::from_millis(100);

    fn apply(change: &Change) -> io::Result<()> {
        Machine.apply(change)
    }

    fn file(path: &Path, content: &str) -> Change {
        Change::File { path: path.to_owned(), content: content.to_owned(), mode: 0o640 }
    }

    #[test]
    fn a_file_takes_the_place_of_the_old_one_whole_with_its_mode() {
        let root = Root::recorded("/etc/");
        let path = root.path("/etc/deep/below/x.rules");
        apply(&file(&path, "one\n")).expect("directories are made");
        let held = File::open(&path).expect("the old one");
        // The leftover of an interrupted write, with another mode.
        fs::write(beside(&path), "fragment").expect("fragment");
        apply(&file(&path, "two\n")).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("file"), "two\n");
        assert_eq!(fs::metadata(&path).expect("file").mode() & 0o7777, 0o640);
        assert_eq!(io::read_to_string(held).expect("open file"), "one\n", "written in place");
        assert!(!beside(&path).exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let root = Root::recorded("/etc/x = one\n/etc/y.new/");
        let why = apply(&file(&root.path("/etc/y"), "two\n")).expect_err("a directory is there");
        assert_ne!(why.kind(), ErrorKind::NotFound);
        apply(&file(&root.path("/etc/x/y"), "two\n")).expect_err("a file is no directory");
        assert_eq!(root.text("/etc/x").as_deref(), Some("one"));
    }

    #[test]
    fn a_fragment_that_leads_elsewhere_is_not_followed() {
        let root = Root::recorded("/etc/other = kept\n/etc/x.new -> other");
        apply(&file(&root.path("/etc/x"), "two\n")).expect("written");
        assert_eq!(root.text("/etc/other").as_deref(), Some("kept"));
        assert_eq!(root.text("/etc/x").as_deref(), Some("two"));
    }

    #[test]
    fn removing_takes_the_fragment_too_and_may_be_repeated() {
        let root = Root::recorded("/etc/x = one\n/etc/x.new = o");
        let change = Change::Remove { path: root.path("/etc/x") };
        apply(&change).expect("removed");
        assert!(root.names("/etc").is_empty());
        apply(&change).expect("it is gone");
        apply(&Change::Remove { path: root.path("/no/such/x") }).expect("there never was one");
    }

    #[test]
    fn an_attribute_is_written_but_never_made() {
        let root = Root::recorded("/sys/driver_override = (null)");
        let write = |path| Change::Write { path, value: "vfio-pci".into() };
        apply(&write(root.path("/sys/driver_override"))).expect("written");
        assert_eq!(root.text("/sys/driver_override").as_deref(), Some("vfio-pci"));
        let why = apply(&write(root.path("/sys/unbind"))).expect_err("there is none");
        assert_eq!(why.kind(), ErrorKind::NotFound);
        assert!(!root.exists("/sys/unbind"));
    }

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

    #[test]
    fn an_owner_gets_the_file_for_himself() {
        let root = Root::recorded("/dev/vfio/12 = x");
        let path = root.path("/dev/vfio/12");
        let uid = nix::unistd::getuid().as_raw();
        apply(&Change::Owner { path: path.clone(), uid }).expect("ours stays ours");
        let found = fs::metadata(&path).expect("file");
        assert_eq!((found.uid(), found.mode() & 0o777), (uid, 0o600));
        let missing = Change::Owner { path: root.path("/dev/vfio/13"), uid };
        assert_eq!(apply(&missing).expect_err("no such file").kind(), ErrorKind::NotFound);
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

    #[test]
    fn a_claim_is_to_a_device_that_is_there() {
        let root = Root::recorded("/dev/nvme0n1 = x");
        Machine.claim(&root.path("/dev/nvme0n1")).expect("a file can be opened so, too");
        let why = Machine.claim(&root.path("/dev/nvme1n1")).expect_err("no such device");
        assert_eq!(why.kind(), ErrorKind::NotFound);
    }
}
