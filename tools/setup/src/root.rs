//! Where the machine's files are: at `/`, or below a directory that holds a recorded machine.
//!
//! Everything that `adit setup` knows it reads here, by the path that the file has on the machine. Reads never fail:
//! what cannot be read is `None` or empty, and what that means is for the caller to say. What was read is noted, so that
//! a recording (`status --record`) holds exactly that.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nix::unistd::{AccessFlags, eaccess};

use super::machine;
use super::tree::{self, NOT_RECORDED, Noted, Scratch};
use crate::failure::{Failure, Result};

/// How long a program may take that only looks.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

/// How long the kernel may take to answer what it answers at once as a rule.
const ATTRIBUTE_LIMIT: Duration = Duration::from_secs(2);

/// What a recording holds in the place of a device's file that the recording user could open.
const OPENABLE: &str = "may be opened";

/// And of one that they could not.
const CLOSED: &str = "permission denied";

/// The files of one machine.
#[derive(Debug)]
pub struct Root {
    base: PathBuf,
    live: bool,
    /// What was looked at.
    noted: Mutex<BTreeMap<PathBuf, Noted>>,
    /// Where a recording is unpacked, removed at the end.
    _scratch: Option<Scratch>,
}

impl Root {
    /// This machine, or the one recorded at `sysroot`: a directory, or a file that `status --record` wrote.
    ///
    /// # Errors
    /// When there is nothing at `sysroot`, or it is no recording.
    pub fn open(sysroot: Option<&Path>) -> Result<Root> {
        let Some(path) = sysroot else { return Ok(Root::at("/".into(), true, None)) };
        let cannot = |why: &dyn std::fmt::Display| {
            Failure::usage(format!(
                "--sysroot {}: {why}; give a directory, or a file by 'adit setup status --record'",
                path.display()
            ))
        };
        if path.is_dir() {
            let base = fs::canonicalize(path).map_err(|why| cannot(&why))?;
            return Ok(Root::at(base, false, None));
        }
        let text = fs::read_to_string(path).map_err(|why| cannot(&why))?;
        let scratch = tree::unpack(&text).map_err(|why| cannot(&why))?;
        Ok(Root::at(scratch.path().to_owned(), false, Some(scratch)))
    }

    fn at(base: PathBuf, live: bool, scratch: Option<Scratch>) -> Root {
        Root { base, live, noted: Mutex::default(), _scratch: scratch }
    }

    /// The machine that `text` describes, in the form of a recording.
    pub fn recorded(text: &str) -> Root {
        let scratch = tree::unpack(text).expect("a recording");
        Root::at(scratch.path().to_owned(), false, Some(scratch))
    }

    /// Whether this is the machine that the process runs on. Nothing is changed, opened or run otherwise.
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// Where the file `path` (absolute, as on the machine) really is. Reading there is not noted.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Notes that `path` was looked at, for readers that do so themselves.
    pub(crate) fn note(&self, path: impl AsRef<Path>) {
        self.noted.lock().expect("no reader panics").entry(path.as_ref().to_owned()).or_default();
    }

    /// The text of a file, without the white space around it.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.note(&path);
        let bytes = fs::read(self.inside(path)?).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// As [`Root::text`], for an attribute that is read under the lock of its device: while a driver is stuck in taking
    /// or leaving the device the kernel does not answer, and what is known then is nothing.
    pub(crate) fn text_in_time(&self, path: impl AsRef<Path>) -> Option<String> {
        if !self.live {
            return self.text(path);
        }
        self.note(&path);
        let real = self.path(path);
        let bytes = machine::within(ATTRIBUTE_LIMIT, move || fs::read(real)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Where a file is, if it is part of this machine: links of a recording by others could lead out of it.
    fn inside(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let real = self.path(path);
        if self.live {
            return Some(real);
        }
        fs::canonicalize(real).ok().filter(|real| real.starts_with(&self.base))
    }

    /// The names in a directory, sorted; none where there is no such directory.
    pub(crate) fn names(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let directory = directory.as_ref();
        self.note(directory);
        let names = self.names_quietly(directory);
        for name in &names {
            self.note(directory.join(name));
        }
        names
    }

    /// As [`Root::names`], but nothing is noted: for directories of which little matters.
    pub(crate) fn names_quietly(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let Some(real) = self.inside(directory) else { return Vec::new() };
        let Ok(entries) = fs::read_dir(real) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Whether there is such a file or directory, links followed.
    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.note(&path);
        self.path(path).exists()
    }

    /// Whether a change that removes `path` would remove anything: a file, a link wherever it leads, or what a write that
    /// was cut off has left beside it.
    pub(crate) fn is_left(&self, path: impl AsRef<Path>) -> bool {
        let paths = [path.as_ref().to_owned(), machine::beside(path.as_ref())];
        paths.iter().any(|path| fs::symlink_metadata(self.path(path)).is_ok())
    }

    /// Whether there is such a file, whose content is nobody's business, such as a table of the firmware. A
    /// recording holds that it is there, and no more.
    pub(crate) fn present(&self, path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        let there = self.path(path).exists();
        if there && !self.path(path).is_dir() {
            self.note_as(path, NOT_RECORDED.to_owned());
        } else {
            self.note(path);
        }
        there
    }

    /// Whether this user may read and write the device's file `path`; none where there is no such file. A recording
    /// holds the answer in the file's place.
    pub(crate) fn openable(&self, path: impl AsRef<Path>) -> Option<bool> {
        let (path, real) = (path.as_ref(), self.path(&path));
        if real.is_dir() || !real.exists() {
            return None;
        }
        let openable = if self.live {
            eaccess(&real, AccessFlags::R_OK | AccessFlags::W_OK).is_ok()
        } else {
            fs::read_to_string(&real).is_ok_and(|text| text.trim() == OPENABLE)
        };
        self.note_as(path, if openable { OPENABLE } else { CLOSED }.to_owned());
        Some(openable)
    }

    /// The lines of a long file that are to be kept; a recording holds only those.
    pub(crate) fn lines(
        &self,
        path: impl AsRef<Path>,
        mut keep: impl FnMut(&str) -> bool,
    ) -> Option<Vec<String>> {
        let bytes = fs::read(self.inside(&path)?).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let kept: Vec<String> =
            text.lines().filter(|line| keep(line)).map(ToOwned::to_owned).collect();
        self.note_as(path.as_ref(), kept.join("\n"));
        Some(kept)
    }

    /// Notes what a recording is to hold in the place of a file's content.
    fn note_as(&self, path: &Path, text: String) {
        self.noted.lock().expect("no reader panics").insert(path.to_owned(), Noted::Text(text));
    }

    /// Where a link leads, as on the machine; it is not noted.
    pub(crate) fn link_quietly(&self, link: impl AsRef<Path>) -> Option<PathBuf> {
        let target = fs::read_link(self.path(link)).ok()?;
        Some(tree::on_the_machine(&self.base, &target))
    }

    /// Notes a link of which only where it leads matters, and not what is there.
    pub(crate) fn note_link(&self, link: impl AsRef<Path>, target: impl AsRef<Path>) {
        let (link, target) = (link.as_ref().to_owned(), target.as_ref().to_owned());
        self.noted.lock().expect("no reader panics").insert(link, Noted::Link(target));
    }

    /// The last component of what a link leads to: a driver's or a group's name.
    pub(crate) fn link_name(&self, link: impl AsRef<Path>) -> Option<String> {
        self.note(&link);
        let target = fs::read_link(self.path(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The path, as on the machine, without links in it.
    pub(crate) fn resolve(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.note(&path);
        let real = fs::canonicalize(self.path(path)).ok()?;
        Some(Path::new("/").join(real.strip_prefix(&self.base).ok()?))
    }

    /// What `program`, which only looks, prints about `subject`; in a recording that is the file
    /// `/recorded/PROGRAM/SUBJECT`, or why it printed nothing, in `SUBJECT.failed`.
    ///
    /// # Errors
    /// Why it printed nothing: it is not installed, has no right, or was not recorded.
    pub(crate) fn probe(
        &self,
        program: &str,
        arguments: &[&str],
        subject: &str,
    ) -> io::Result<String> {
        let recorded = Path::new("/recorded").join(program);
        let (printed, failed) =
            (recorded.join(subject), recorded.join(format!("{subject}.failed")));
        if !self.live {
            return self.recorded_probe(program, &printed, &failed);
        }
        let words: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let result = machine::run(program, &words, PROBE_LIMIT).map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => io::Error::other(format!("{program} is not installed")),
            _ => why,
        });
        match &result {
            Ok(text) => self.note_as(&printed, text.clone()),
            Err(why) => self.note_as(&failed, why.to_string()),
        }
        result
    }

    fn recorded_probe(&self, program: &str, printed: &Path, failed: &Path) -> io::Result<String> {
        self.text(printed).ok_or_else(|| {
            let why = self.text(failed);
            io::Error::other(why.unwrap_or_else(|| format!("nothing by {program} is recorded")))
        })
    }

    /// What `look` finds on this machine; in a recording, what it found then: the file `/recorded/NAME`.
    pub(crate) fn observed(&self, name: &str, look: impl FnOnce() -> String) -> Option<String> {
        let file = Path::new("/recorded").join(name);
        if !self.live {
            return self.text(file);
        }
        let seen = look();
        self.note_as(&file, seen.clone());
        Some(seen)
    }

    /// All that was looked at so far, as a recording.
    pub(crate) fn recording(&self) -> String {
        tree::pack(&self.base, &self.noted.lock().expect("no reader panics"))
    }
}
