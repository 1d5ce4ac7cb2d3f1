//! A recorded machine as one text file.
//!
//! ```text
//! # a comment
//! /sys/bus/pci/devices/0000:01:00.0 -> ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0
//! /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/class = 0x010802
//! /sys/kernel/iommu_groups/
//! /proc/swaps:
//!     Filename        Type       Size     Used  Priority
//!     /dev/nvme0n1p3  partition  8388604  0     -2
//! ```
//!
//! The lines show a link, a file of one line, an empty directory, and a file of several lines. Directories on
//! the way are created.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Indents the lines of a file of several lines.
const INDENT: &str = "    ";

/// Stands in a recording for a file of which only the existence is known.
pub(super) const NOT_RECORDED: &str = "(not recorded)";

/// Limit for circular links, as in the kernel.
const LINKS_MAX: usize = 40;

/// A temporary directory, removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Creates it in memory if possible, because a machine has hundreds of files.
    fn new() -> std::io::Result<Scratch> {
        Scratch::in_directory(Path::new("/dev/shm"))
            .or_else(|_| Scratch::in_directory(&std::env::temp_dir()))
    }

    fn in_directory(directory: &Path) -> std::io::Result<Scratch> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let unique = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!("adit-setup-{}-{unique}", std::process::id()));
            // Serial numbers are private.
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                // Left by a killed process of the same number.
                Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(why) => return Err(why),
                Ok(()) => return Ok(Scratch(fs::canonicalize(path)?)),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it cannot be removed, it stays in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a recording represents a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Noted {
    /// By its content.
    #[default]
    AsItIs,
    /// As a file with this text.
    Text(String),
    Link(PathBuf),
}

/// One line of a recording.
enum TreeLine<'a> {
    Directory,
    Link(&'a str),
    Line(&'a str),
    /// Followed by the file's lines.
    Lines,
}

/// Creates a recording's files in a temporary directory.
///
/// # Errors
/// The first malformed line, or the system's error.
pub(super) fn unpack(text: &str) -> Result<Scratch, String> {
    let scratch = Scratch::new().map_err(|why| {
        format!("it cannot be unpacked in {}: {why}", std::env::temp_dir().display())
    })?;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (path, entry) = entry(line)
            .ok_or_else(|| format!("line {} is not one of a recorded machine", number + 1))?;
        let mut content = String::new();
        while let (TreeLine::Lines, Some((_, more))) =
            (&entry, lines.next_if(|(_, line)| line.starts_with(INDENT)))
        {
            content.extend([&more[INDENT.len()..], "\n"]);
        }
        make(scratch.path(), path, &entry, &content).map_err(|why| format!("{path}: {why}"))?;
    }
    Ok(scratch)
}

fn entry(line: &str) -> Option<(&str, TreeLine<'_>)> {
    // The first separator counts; the other may be part of the value.
    let ends = |mark: &str| line.find(mark).unwrap_or(usize::MAX);
    let (link, value) = (ends(" -> "), ends(" = "));
    let found = if link < value {
        (&line[..link], TreeLine::Link(&line[link + " -> ".len()..]))
    } else if value < link {
        (&line[..value], TreeLine::Line(&line[value + " = ".len()..]))
    } else if let Some(path) = line.strip_suffix(':') {
        (path, TreeLine::Lines)
    } else {
        (line.strip_suffix('/')?, TreeLine::Directory)
    };
    // A path with `..` could leave the directory.
    let inside =
        Path::new(found.0).components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    (found.0.starts_with('/') && inside).then_some(found)
}

fn make(base: &Path, path: &str, entry: &TreeLine, lines: &str) -> std::io::Result<()> {
    let place = base.join(path.trim_start_matches('/'));
    let directory = place.parent().unwrap_or(base);
    fs::create_dir_all(directory)?;
    // Through a link that leads out, the next line could be written anywhere.
    if !fs::canonicalize(directory)?.starts_with(base) {
        return Err(std::io::Error::other("it leads out of the recording"));
    }
    match entry {
        TreeLine::Directory => fs::create_dir_all(place),
        TreeLine::Link(target) => symlink(inside(base, target), place),
        TreeLine::Line(value) => write_new(&place, &format!("{value}\n")),
        TreeLine::Lines => write_new(&place, lines),
    }
}

/// Writes a new file, never through a link: untrusted recordings could contain links to anywhere.
fn write_new(place: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(place)?;
    file.write_all(text.as_bytes())
}

/// Resolves an absolute target within the recorded machine.
fn inside(base: &Path, target: &str) -> PathBuf {
    target.strip_prefix('/').map_or_else(|| target.into(), |rest| base.join(rest))
}

/// Returns the `noted` files below `base` as a recording.
pub(super) fn pack(base: &Path, noted: &BTreeMap<PathBuf, Noted>) -> String {
    let mut packer = Packer { base, lines: BTreeMap::new() };
    // Replacements come before the files themselves, which other paths may lead to as well.
    for (path, noted) in noted {
        match noted {
            Noted::Text(text) => packer.visit(path, Some(text), 0),
            Noted::Link(target) => packer.link(path, target),
            Noted::AsItIs => {}
        }
    }
    for path in noted.iter().filter(|(_, noted)| **noted == Noted::AsItIs).map(|(path, _)| path) {
        packer.visit(path, None, 0);
    }
    packer.text()
}

struct Packer<'a> {
    base: &'a Path,
    /// The recording's text for each path; `None` for a directory.
    lines: BTreeMap<PathBuf, Option<String>>,
}

impl Packer<'_> {
    /// Adds each link on the way to `path`, then its content, or `instead`.
    fn visit(&mut self, path: &Path, instead: Option<&str>, links: usize) {
        let mut place = PathBuf::from("/");
        let mut parts = path.strip_prefix("/").unwrap_or(path).components();
        while let Some(part) = parts.next() {
            if part == Component::ParentDir {
                place.pop();
                continue;
            }
            place.push(part);
            let Ok(target) = fs::read_link(self.real(&place)) else { continue };
            let target = on_the_machine(self.base, &target);
            self.link(&place, &target);
            if links < LINKS_MAX {
                let rest =
                    place.parent().unwrap_or(Path::new("/")).join(target).join(parts.as_path());
                self.visit(&rest, instead, links + 1);
            }
            return;
        }
        self.end(&place, instead);
    }

    fn real(&self, path: &Path) -> PathBuf {
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn end(&mut self, path: &Path, instead: Option<&str>) {
        if let Some(instead) = instead {
            return self.file(path, instead);
        }
        let real = self.real(path);
        let Ok(kind) = fs::metadata(&real).map(|metadata| metadata.file_type()) else { return };
        if kind.is_dir() {
            self.lines.entry(path.to_owned()).or_insert(None);
        } else if !kind.is_file() {
            // Reading a device file would read the device.
            self.file(path, NOT_RECORDED);
        } else if let Ok(bytes) = fs::read(&real) {
            self.file(path, &String::from_utf8_lossy(&bytes));
        }
    }

    fn link(&mut self, path: &Path, target: &Path) {
        let line = format!("{} -> {}\n", path.display(), target.display());
        self.lines.entry(path.to_owned()).or_insert(Some(line));
    }

    fn file(&mut self, path: &Path, content: &str) {
        let content = content.trim_end();
        let line = if content.contains('\n') {
            let lines = content.lines().map(|line| format!("{INDENT}{line}\n"));
            format!("{}:\n{}", path.display(), lines.collect::<String>())
        } else {
            format!("{} = {content}\n", path.display())
        };
        self.lines.entry(path.to_owned()).or_insert(Some(line));
    }

    /// Returns all lines by path; directories only if they contain nothing else.
    fn text(&self) -> String {
        let mut text = String::new();
        for (path, line) in &self.lines {
            let after = (Bound::Excluded(path.as_path()), Bound::Unbounded);
            let next = self.lines.range::<Path, _>(after).next();
            match line {
                Some(line) => text.push_str(line),
                None if next.is_some_and(|(next, _)| next.starts_with(path)) => {}
                None => text.push_str(&format!("{}/\n", path.display())),
            }
        }
        text
    }
}

/// Returns a link's target as on the machine; in an unpacked recording, absolute targets point to where it is
/// unpacked.
pub(super) fn on_the_machine(base: &Path, target: &Path) -> PathBuf {
    target
        .strip_prefix(base)
        .map_or_else(|_| target.to_owned(), |inside| Path::new("/").join(inside))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RECORDING: &str = "\
# a machine
/proc/swaps:
    Filename Type
    /dev/sda2 partition
/sys/bus/pci/devices/0000:01:00.0 -> ../../../devices/pci0000:00/0000:01:00.0
/sys/devices/pci0000:00/0000:01:00.0/class = 0x010802
/sys/kernel/iommu_groups/
";

    #[test]
    fn a_recording_becomes_files_and_files_a_recording() {
        let scratch = unpack(RECORDING).expect("a recording");
        let class = scratch.path().join("sys/bus/pci/devices/0000:01:00.0/class");
        assert_eq!(fs::read_to_string(class).expect("file"), "0x010802\n");
        let noted = [
            "/proc/swaps",
            "/sys/bus/pci/devices/0000:01:00.0/class",
            "/sys/kernel/iommu_groups",
            "/not/there",
        ];
        let noted = noted.map(|path| (PathBuf::from(path), Noted::AsItIs)).into();
        let again = pack(scratch.path(), &noted);
        assert_eq!(format!("# a machine\n{again}"), RECORDING);
    }

    #[test]
    fn what_stands_for_a_file_is_where_the_links_lead() {
        let scratch = unpack("/proc/12/status = long\n/proc/self -> 12\n").expect("a recording");
        let noted = [(PathBuf::from("/proc/self/status"), Noted::Text("short".to_owned()))].into();
        let again = pack(scratch.path(), &noted);
        assert_eq!(again, "/proc/12/status = short\n/proc/self -> 12\n");
        unpack(&again).expect("a recording");
    }

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        for text in ["hello", "relative = 1", "/a/../../b = 1", "\n/x"] {
            let why = unpack(text).expect_err(text);
            assert!(why.contains("is not one of a recorded machine"), "{why}");
        }
        let why = unpack("/a -> ../../../../../tmp\n/a/b = 1").expect_err("leads out");
        assert!(why.contains("leads out"), "{why}");
        let why = unpack("/a -> ../../../../../tmp/evil\n/a = 1").expect_err("through a link");
        assert!(why.contains("File exists"), "{why}");
    }

    #[test]
    fn a_devices_file_is_never_read() {
        // Reading this file would never end.
        let noted = [(PathBuf::from("/dev/zero"), Noted::AsItIs)].into();
        assert_eq!(pack(Path::new("/"), &noted), "/dev/zero = (not recorded)\n");
    }

    #[test]
    fn links_lead_where_they_led_on_the_machine() {
        let text = "/dev/nvme0n1 = (not recorded)\n/proc/7/fd/3 -> /dev/nvme0n1\n";
        let scratch = unpack(text).expect("a recording");
        let noted = [(PathBuf::from("/proc/7/fd/3"), Noted::AsItIs)].into();
        assert_eq!(pack(scratch.path(), &noted), text);
        let noted = [(PathBuf::from("/proc/8/fd/3"), Noted::Link("/dev/ng0n1".into()))].into();
        assert_eq!(pack(scratch.path(), &noted), "/proc/8/fd/3 -> /dev/ng0n1\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_text_of_a_file_comes_back(text in "([ -~ü\t]{0,12}( -> | = |:|\n)?){0,4}") {
            let path = PathBuf::from("/proc/x");
            let packed = pack(Path::new("/"), &[(path, Noted::Text(text.clone()))].into());
            let scratch = unpack(&packed).expect("a recording");
            let read = fs::read_to_string(scratch.path().join("proc/x")).expect("a file");
            prop_assert_eq!(read.trim_end(), text.trim_end());
        }

        #[test]
        fn any_recording_is_unpacked_or_refused(text in "(/?[a-c./]{0,6}( -> | = |:|/)?[a-c./ ]{0,6}\n){0,5}") {
            let _ = unpack(&text);
        }
    }
}
