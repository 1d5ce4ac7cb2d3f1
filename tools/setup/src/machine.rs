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
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::change::{Change, Claim, Hands};
use adit_guard::program;
use adit_guard::root::Root;

/// Time limit of one change.
const LIMIT: Duration = Duration::from_secs(120);

/// The machine this process runs on.
#[derive(Debug)]
pub(crate) struct Machine;

impl Hands for Machine {
    fn apply(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::Write { path, value } => program::within(LIMIT, write_attribute(path, value)),
            Change::File { path, content, mode } => replace(path, content, *mode),
            Change::Remove { path } => remove(path),
            Change::Owner { path, uid } => own(path, *uid),
            Change::Run { program, arguments } => program::run(program, arguments, LIMIT).map(drop),
        }
    }

    fn claim(&mut self, device: &Path) -> io::Result<Claim> {
        program::claim(device).map(|file| Claim(Some(file)))
    }

    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
    }
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
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Returns whether removing `path` would have an effect: on a file, a link with any target, or the leftover of an
/// interrupted write.
pub(crate) fn is_left(root: &Root, path: &Path) -> bool {
    [path.to_owned(), beside(path)].iter().any(|path| fs::symlink_metadata(root.path(path)).is_ok())
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use adit_guard::root::Root;

    fn apply(change: &Change) -> io::Result<()> {
        Machine.apply(change)
    }

    fn file(path: &Path, content: &str) -> Change {
        Change::File { path: path.to_owned(), content: content.to_owned(), mode: 0o640 }
    }

    #[test]
    fn a_file_takes_the_place_of_the_old_one_whole_with_its_mode() {
        let root = Root::recorded("/etc/").expect("a recording");
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
        let root = Root::recorded("/etc/x = one\n/etc/y.new/").expect("a recording");
        let why = apply(&file(&root.path("/etc/y"), "two\n")).expect_err("a directory is there");
        assert_ne!(why.kind(), ErrorKind::NotFound);
        apply(&file(&root.path("/etc/x/y"), "two\n")).expect_err("a file is no directory");
        assert_eq!(root.text("/etc/x").as_deref(), Some("one"));
    }

    #[test]
    fn a_fragment_that_leads_elsewhere_is_not_followed() {
        let root = Root::recorded("/etc/other = kept\n/etc/x.new -> other").expect("a recording");
        apply(&file(&root.path("/etc/x"), "two\n")).expect("written");
        assert_eq!(root.text("/etc/other").as_deref(), Some("kept"));
        assert_eq!(root.text("/etc/x").as_deref(), Some("two"));
    }

    #[test]
    fn removing_takes_the_fragment_too_and_may_be_repeated() {
        let root = Root::recorded("/etc/x = one\n/etc/x.new = o").expect("a recording");
        let change = Change::Remove { path: root.path("/etc/x") };
        apply(&change).expect("removed");
        assert!(root.names("/etc").is_empty());
        apply(&change).expect("it is gone");
        apply(&Change::Remove { path: root.path("/no/such/x") }).expect("there never was one");
    }

    #[test]
    fn an_attribute_is_written_but_never_made() {
        let root = Root::recorded("/sys/driver_override = (null)").expect("a recording");
        let write = |path| Change::Write { path, value: "vfio-pci".into() };
        apply(&write(root.path("/sys/driver_override"))).expect("written");
        assert_eq!(root.text("/sys/driver_override").as_deref(), Some("vfio-pci"));
        let why = apply(&write(root.path("/sys/unbind"))).expect_err("there is none");
        assert_eq!(why.kind(), ErrorKind::NotFound);
        assert!(!root.exists("/sys/unbind"));
    }

    #[test]
    fn an_owner_gets_the_file_for_himself() {
        let root = Root::recorded("/dev/vfio/12 = x").expect("a recording");
        let path = root.path("/dev/vfio/12");
        let uid = nix::unistd::getuid().as_raw();
        apply(&Change::Owner { path: path.clone(), uid }).expect("ours stays ours");
        let found = fs::metadata(&path).expect("file");
        assert_eq!((found.uid(), found.mode() & 0o777), (uid, 0o600));
        let missing = Change::Owner { path: root.path("/dev/vfio/13"), uid };
        assert_eq!(apply(&missing).expect_err("no such file").kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_claim_is_to_a_device_that_is_there() {
        let root = Root::recorded("/dev/nvme0n1 = x").expect("a recording");
        Machine.claim(&root.path("/dev/nvme0n1")).expect("a file can be opened so, too");
        let why = Machine.claim(&root.path("/dev/nvme1n1")).expect_err("no such device");
        assert_eq!(why.kind(), ErrorKind::NotFound);
    }
}
