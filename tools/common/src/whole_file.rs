//! A file that is replaced whole or not at all.
//!
//! The contents go to a new file beside it, which takes its name at the end: what was there stays until then. The new
//! file has the permissions and the owner of the old one. A link is followed, and its target replaced. These are written
//! in place, as by `cp`: what is no regular file (a device, a pipe), a file with several names, one whose owner we cannot
//! keep, and one in a directory that we cannot write to.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// A file being written; dropped without [`WholeFile::finish`], a new file is removed.
#[derive(Debug)]
pub struct WholeFile {
    file: File,
    /// The new file, and the name that it takes; `None` if the contents are written in place.
    renames: Option<(Scratch, PathBuf)>,
}

/// A file that is removed on drop, unless it was renamed.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // After success, the file is already renamed.
        let _ = fs::remove_file(&self.0);
    }
}

impl WholeFile {
    /// Begins to write the file at `path`.
    ///
    /// # Errors
    /// The system's: a directory, a missing directory, or no permission to write to the file.
    pub fn create(path: &Path) -> io::Result<WholeFile> {
        match fs::metadata(path) {
            Ok(there) => WholeFile::over(path, &there),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                let path = end_of_links(path)?;
                let (scratch, file) = Scratch::beside(&path, 0o666)?;
                Ok(WholeFile { file, renames: Some((scratch, path)) })
            }
            Err(why) => Err(why),
        }
    }

    /// Begins to write over what is there.
    fn over(path: &Path, there: &Metadata) -> io::Result<WholeFile> {
        // Also finds out whether that is allowed, before the old contents are lost.
        let file = OpenOptions::new().write(true).open(path)?;
        if there.is_file() {
            if let Some((scratch, file, path)) = replacement(path, there) {
                return Ok(WholeFile { file, renames: Some((scratch, path)) });
            }
            file.set_len(0)?;
        }
        Ok(WholeFile { file, renames: None })
    }

    /// Returns whether the file stays as it was before until [`WholeFile::finish`]; a pipe or a device takes each byte.
    pub fn replaces(&self) -> bool {
        self.renames.is_some()
    }

    /// Ends the file: from now on its contents are those written.
    ///
    /// # Errors
    /// The system's, such as a full disk. A regular file is then as before, unless it is written in place.
    pub fn finish(self) -> io::Result<()> {
        let WholeFile { file, renames } = self;
        let Some((scratch, path)) = renames else {
            let is_kept = file.metadata().is_ok_and(|told| told.is_file());
            return if is_kept { file.sync_all() } else { Ok(()) };
        };
        file.sync_all()?;
        fs::rename(&scratch.0, path)
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Scratch {
    fn beside(path: &Path, mode: u32) -> io::Result<(Scratch, File)> {
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file"));
        };
        let mut name = name.to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let scratch = path.with_file_name(name);
        // One that was left behind by a process of the same number, or a link that someone has put there.
        let _ = fs::remove_file(&scratch);
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&scratch)?;
        Ok((Scratch(scratch), file))
    }
}

/// Returns a new file for a regular file that is there, and the name that it takes. `None` if that one has to be
/// written in place.
fn replacement(path: &Path, there: &Metadata) -> Option<(Scratch, File, PathBuf)> {
    if there.nlink() > 1 {
        return None;
    }
    let path = fs::canonicalize(path).ok()?;
    let (scratch, file) = Scratch::beside(&path, 0o600).ok()?;
    let made = file.metadata().ok()?;
    if (made.uid(), made.gid()) != (there.uid(), there.gid()) {
        fchown(&file, Some(there.uid()), Some(there.gid())).ok()?;
    }
    file.set_permissions(fs::Permissions::from_mode(there.mode() & 0o7777)).ok()?;
    Some((scratch, file, path))
}

/// Returns the place that a link leads to though nothing is there, or `path` if it is no link.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    const LINKS_MAX: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, symlink};
    use std::process::Command;

    /// A directory of this test's own.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let directory =
                std::env::temp_dir().join(format!("adit-{name}-{}", std::process::id()));
            fs::create_dir_all(&directory).expect("a directory");
            Place(directory)
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("a directory");
            let name = |entry: io::Result<fs::DirEntry>| entry.map(|one| one.file_name());
            let mut names: Vec<String> = entries
                .map(|entry| name(entry).expect("an entry").to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn write(path: &Path, text: &str) -> io::Result<()> {
        let mut file = WholeFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.finish()
    }

    #[test]
    fn a_file_keeps_its_contents_until_the_end_and_then_its_permissions() {
        let place = Place::new("whole");
        let path = place.at("file");
        write(&path, "first").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("changed");
        let mut second = WholeFile::create(&path).expect("begun");
        second.write_all(b"second").expect("written");
        assert!(second.replaces());
        assert!(!WholeFile::create(Path::new("/dev/null")).expect("begun").replaces());
        assert_eq!(fs::read(&path).expect("there"), b"first");
        drop(second);
        assert_eq!(
            (fs::read(&path).expect("there"), place.names()),
            (b"first".into(), vec!["file".into()])
        );
        write(&path, "third").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"third");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o640);
    }

    #[test]
    fn links_are_followed_and_stay() {
        let place = Place::new("links");
        fs::create_dir(place.at("elsewhere")).expect("a directory");
        fs::write(place.at("elsewhere/file"), "old").expect("written");
        symlink("elsewhere/file", place.at("link")).expect("a link");
        symlink("elsewhere/none", place.at("to-none")).expect("a link");
        write(&place.at("link"), "new").expect("written");
        write(&place.at("to-none"), "made").expect("written");
        assert_eq!(fs::read(place.at("elsewhere/file")).expect("there"), b"new");
        assert_eq!(fs::read(place.at("elsewhere/none")).expect("there"), b"made");
        for link in ["link", "to-none"] {
            let kind = fs::symlink_metadata(place.at(link)).expect("there").file_type();
            assert!(kind.is_symlink(), "{link}");
        }
        symlink("loop", place.at("loop")).expect("a link");
        assert!(write(&place.at("loop"), "never").is_err());

        fs::hard_link(place.at("elsewhere/file"), place.at("second-name")).expect("a name");
        write(&place.at("second-name"), "both").expect("written");
        assert_eq!(fs::read(place.at("elsewhere/file")).expect("there"), b"both");
    }

    #[test]
    fn what_is_no_regular_file_is_written_to_and_stays() {
        let place = Place::new("special");
        let pipe = place.at("pipe");
        let made =
            Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is part of every system");
        assert!(made.success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).expect("read")
        });
        write(&pipe, "through").expect("written");
        assert_eq!(reader.join().expect("it ends"), b"through");
        let kind = fs::metadata(&pipe).expect("there").file_type();
        assert!(kind.is_fifo() && place.names() == ["pipe"]);

        assert!(write(&place.0, "a directory").is_err());
        assert!(write(&place.at("none/file"), "no directory").is_err());
        assert!(write(&place.at("pipe/.."), "no name").is_err());
    }
}
