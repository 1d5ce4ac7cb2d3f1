//! The machine's files: at `/`, or below a directory with a recorded machine.
//!
//! All of `adit setup`'s reads go through this module, by the file's path on the machine. Reads never fail: an
//! unreadable file is `None` or empty, and the caller decides what that means. Reads are noted, so that a
//! recording (`status --record`) contains exactly what was read.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nix::unistd::{AccessFlags, eaccess};

use super::program;
use super::tree::{self, NOT_RECORDED, Noted, Scratch};
use adit_tools_common::failure::{Failure, Result};

/// Time limit of a program that only reads.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

/// Time limit of an attribute that the kernel usually answers at once.
const ATTRIBUTE_LIMIT: Duration = Duration::from_secs(2);

/// Stands in a recording for a device file that the recording user could open.
const OPENABLE: &str = "may be opened";

/// Stands in a recording for a device file that the recording user could not open.
const CLOSED: &str = "permission denied";

/// The files of one machine.
#[derive(Debug)]
pub struct Root {
    base: PathBuf,
    live: bool,
    /// Paths read so far.
    noted: Mutex<BTreeMap<PathBuf, Noted>>,
    /// Where a recording is unpacked, removed on drop.
    _scratch: Option<Scratch>,
}

impl Root {
    /// Opens this machine, or the one recorded at `sysroot`: a directory, or a file written by `status
    /// --record`.
    ///
    /// # Errors
    /// When `sysroot` does not exist or is no recording.
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
        Root::recorded(&text).map_err(|why| cannot(&why))
    }

    fn at(base: PathBuf, live: bool, scratch: Option<Scratch>) -> Root {
        Root { base, live, noted: Mutex::default(), _scratch: scratch }
    }

    /// Returns the machine that `text` describes, a recording.
    ///
    /// # Errors
    /// The first malformed line, or the system's error.
    pub fn recorded(text: &str) -> std::result::Result<Root, String> {
        let scratch = tree::unpack(text)?;
        Ok(Root::at(scratch.path().to_owned(), false, Some(scratch)))
    }

    /// Returns whether this is the machine the process runs on. Otherwise nothing is changed, opened or run.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Returns the real location of `path` (absolute, as on the machine). Reads there are not noted.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Notes `path` for callers that read it themselves.
    pub fn note(&self, path: impl AsRef<Path>) {
        self.noted.lock().expect("no reader panics").entry(path.as_ref().to_owned()).or_default();
    }

    /// Returns a file's text without surrounding white space.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.note(&path);
        let bytes = fs::read(self.inside(path)?).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// As [`Root::text`], for an attribute that is read under its device's lock: while a driver is stuck in
    /// probing or removing the device the kernel does not answer, and the result is `None`.
    pub fn text_in_time(&self, path: impl AsRef<Path>) -> Option<String> {
        if !self.live {
            return self.text(path);
        }
        self.note(&path);
        let real = self.path(path);
        let bytes = program::within(ATTRIBUTE_LIMIT, move || fs::read(real)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns a file's location if it is inside the machine's directory; links of untrusted recordings could
    /// lead out of it.
    fn inside(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let real = self.path(path);
        if self.live {
            return Some(real);
        }
        fs::canonicalize(real).ok().filter(|real| real.starts_with(&self.base))
    }

    /// Returns the names in a directory, sorted; empty if it does not exist.
    pub fn names(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let directory = directory.as_ref();
        self.note(directory);
        let names = self.names_quietly(directory);
        for name in &names {
            self.note(directory.join(name));
        }
        names
    }

    /// As [`Root::names`], without noting, for directories of which little matters.
    pub fn names_quietly(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let Some(real) = self.inside(directory) else { return Vec::new() };
        let Ok(entries) = fs::read_dir(real) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Returns whether the file or directory exists, following links.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.note(&path);
        self.path(path).exists()
    }

    /// Returns whether a file exists whose content must not be recorded, such as a firmware table. The
    /// recording contains only its existence.
    pub fn present(&self, path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        let there = self.path(path).exists();
        if there && !self.path(path).is_dir() {
            self.note_as(path, NOT_RECORDED.to_owned());
        } else {
            self.note(path);
        }
        there
    }

    /// Returns whether this user may read and write the device file `path`; `None` if it does not exist. A
    /// recording contains the answer instead of the file.
    pub fn openable(&self, path: impl AsRef<Path>) -> Option<bool> {
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

    /// Returns the lines of a long file that `keep` accepts; the recording contains only those.
    pub fn lines(
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

    /// Notes a replacement for a file's content.
    fn note_as(&self, path: &Path, text: String) {
        self.noted.lock().expect("no reader panics").insert(path.to_owned(), Noted::Text(text));
    }

    /// Returns a link's target on the machine without noting it.
    pub fn link_quietly(&self, link: impl AsRef<Path>) -> Option<PathBuf> {
        let target = fs::read_link(self.path(link)).ok()?;
        Some(tree::on_the_machine(&self.base, &target))
    }

    /// Notes a link whose target's content does not matter.
    pub fn note_link(&self, link: impl AsRef<Path>, target: impl AsRef<Path>) {
        let (link, target) = (link.as_ref().to_owned(), target.as_ref().to_owned());
        self.noted.lock().expect("no reader panics").insert(link, Noted::Link(target));
    }

    /// Returns the last component of a link's target, such as the name of a driver or a group.
    pub fn link_name(&self, link: impl AsRef<Path>) -> Option<String> {
        self.note(&link);
        let target = fs::read_link(self.path(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Resolves all links in a path of the machine.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.note(&path);
        let real = fs::canonicalize(self.path(path)).ok()?;
        Some(Path::new("/").join(real.strip_prefix(&self.base).ok()?))
    }

    /// Returns the output of `program`, which must only read, about `subject`. A recording contains it in
    /// `/recorded/PROGRAM/SUBJECT`, or the failure in `SUBJECT.failed`.
    ///
    /// # Errors
    /// Why there is no output: it is not installed, lacks rights, or was not recorded.
    pub fn probe(&self, program: &str, arguments: &[&str], subject: &str) -> io::Result<String> {
        let recorded = Path::new("/recorded").join(program);
        let (printed, failed) =
            (recorded.join(subject), recorded.join(format!("{subject}.failed")));
        if !self.live {
            return self.recorded_probe(program, &printed, &failed);
        }
        let words: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let result = program::run(program, &words, PROBE_LIMIT).map_err(|why| match why.kind() {
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

    /// Returns the result of `look` on this machine; a recording contains it in `/recorded/NAME`.
    pub fn observed(&self, name: &str, look: impl FnOnce() -> String) -> Option<String> {
        let file = Path::new("/recorded").join(name);
        if !self.live {
            return self.text(file);
        }
        let seen = look();
        self.note_as(&file, seen.clone());
        Some(seen)
    }

    /// Returns everything read so far as a recording.
    pub fn recording(&self) -> String {
        tree::pack(&self.base, &self.noted.lock().expect("no reader panics"))
    }
}
