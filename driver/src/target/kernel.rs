//! Targets reached through the kernel, and `null:`.
//!
//! | target | options |
//! |---|---|
//! | `uring:PATH` | `direct=on\|off`, `fixed=on\|off`, `polled=on\|off` |
//! | `uring-cmd:/dev/ng0n1` | `fixed=on\|off`, `polled=on\|off` |
//! | `psync:PATH` | `direct=on\|off` |
//! | `mmap:PATH` | none |
//! | `null:` | `size=1T`, `lba=512` |

use std::fmt;
use std::path::PathBuf;

use super::{Parsed, switch};
use crate::soft::words::{self, nearest};

/// A path through the kernel (or none at all) and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTarget {
    /// The path.
    pub path: KernelPath,
    /// The file or device; empty for `null:`.
    pub file: PathBuf,
    /// Bypass the page cache (`direct=on|off`); for `uring:` and `psync:`, on by default. Never for `mmap:`.
    pub direct: bool,
    /// Register memory with io_uring (`fixed=on|off`); by default, as far as the limit on locked memory allows.
    pub fixed: Option<bool>,
    /// Poll for completions (`polled=on|off`) instead of waiting for interrupts; by default, if the device's
    /// queues are set up for it.
    pub polled: Option<bool>,
    /// Size of `null:` in bytes (`size=1T`).
    pub bytes: u64,
    /// LBA of `null:` in bytes (`lba=512`), a power of two from 512 to 65536.
    pub lba_bytes: u32,
}

/// The kernel's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPath {
    /// io_uring on a file or block device.
    Uring,
    /// NVMe commands over io_uring to a namespace's character device.
    UringCmd,
    /// pread and pwrite.
    Psync,
    /// A mapping of the file.
    Mmap,
    /// No I/O at all.
    Null,
}

const PATHS: [KernelPath; 5] = [
    KernelPath::Uring,
    KernelPath::UringCmd,
    KernelPath::Psync,
    KernelPath::Mmap,
    KernelPath::Null,
];

impl KernelPath {
    /// Returns the target's kind, the part before the colon.
    pub fn kind(self) -> &'static str {
        match self {
            KernelPath::Uring => "uring",
            KernelPath::UringCmd => "uring-cmd",
            KernelPath::Psync => "psync",
            KernelPath::Mmap => "mmap",
            KernelPath::Null => "null",
        }
    }

    pub(super) fn of_kind(kind: &str) -> Option<KernelPath> {
        PATHS.into_iter().find(|path| path.kind() == kind)
    }

    /// Returns the option names it accepts.
    fn options(self) -> &'static [&'static str] {
        match self {
            KernelPath::Uring => &["direct", "fixed", "polled"],
            KernelPath::UringCmd => &["fixed", "polled"],
            KernelPath::Psync => &["direct"],
            KernelPath::Mmap => &[],
            KernelPath::Null => &["size", "lba"],
        }
    }

    /// Returns an example target.
    fn example(self) -> &'static str {
        match self {
            KernelPath::Uring => "uring:/dev/nvme0n1",
            KernelPath::UringCmd => "uring-cmd:/dev/ng0n1",
            KernelPath::Psync => "psync:/dev/nvme0n1",
            KernelPath::Mmap => "mmap:/dev/nvme0n1",
            KernelPath::Null => "null:size=1T",
        }
    }
}

impl KernelTarget {
    /// Creates a target for `file` with default options.
    pub fn new(path: KernelPath, file: impl Into<PathBuf>) -> KernelTarget {
        KernelTarget {
            path,
            file: file.into(),
            direct: path != KernelPath::Mmap,
            fixed: None,
            polled: None,
            bytes: 1 << 40,
            lba_bytes: 512,
        }
    }

    /// Returns the target without its options.
    pub fn device(&self) -> String {
        format!("{}:{}", self.path.kind(), self.file.display())
    }

    /// Parses the text after the kind and its colon.
    pub(super) fn parse(path: KernelPath, tail: &str) -> Parsed<KernelTarget> {
        let mut words = tail.split(',');
        let file = if path == KernelPath::Null { "" } else { words.next().unwrap_or_default() };
        if file.is_empty() && path != KernelPath::Null {
            return Err(format!("it names no file; write the path as in '{}'", path.example()));
        }
        let mut target = KernelTarget::new(path, file);
        let mut seen = Vec::new();
        for word in words.filter(|_| !(path == KernelPath::Null && tail.is_empty())) {
            let name = target.option(word)?;
            if seen.contains(&name) {
                return Err(format!("'{name}' is given twice"));
            }
            seen.push(name);
        }
        if !target.bytes.is_multiple_of(u64::from(target.lba_bytes)) {
            return Err(format!("its size is not a multiple of its LBA's {}", target.lba_bytes));
        }
        Ok(target)
    }

    /// Applies one option; returns its name.
    fn option<'a>(&mut self, word: &'a str) -> Parsed<&'a str> {
        let (name, value) = word.split_once('=').ok_or_else(|| not_an_option(self.path, word))?;
        if !self.path.options().contains(&name) {
            return Err(unknown_option(self.path, name));
        }
        match name {
            "direct" => self.direct = switch(name, value)?,
            "fixed" => self.fixed = Some(switch(name, value)?),
            "polled" => self.polled = Some(switch(name, value)?),
            "size" => self.bytes = size(value)?,
            _ => self.lba_bytes = lba(value)?,
        }
        Ok(name)
    }
}

fn size(value: &str) -> Parsed<u64> {
    let usable = words::size(value).ok().filter(|bytes| (1..1 << 62).contains(bytes));
    usable
        .ok_or_else(|| format!("'size={value}': a size is a number with k, M, G or T, as in '1T'"))
}

fn lba(value: &str) -> Parsed<u32> {
    let usable = value.parse().ok().filter(|bytes: &u32| bytes.is_power_of_two());
    usable
        .filter(|bytes| (512..=65536).contains(bytes))
        .ok_or_else(|| format!("'lba={value}': an LBA is a power of two from 512 to 65536"))
}

fn not_an_option(path: KernelPath, word: &str) -> String {
    let file = if path == KernelPath::Null { "" } else { " (a path may not contain a comma)" };
    format!("'{word}' is not an option; options are written NAME=VALUE{file}{}", known(path))
}

fn unknown_option(path: KernelPath, name: &str) -> String {
    match nearest(name, path.options()) {
        Some(meant) => format!("there is no option '{name}'; did you mean '{meant}='?"),
        None => {
            format!("'{}:' has no option '{name}'{}", path.kind(), known(path))
        }
    }
}

fn known(path: KernelPath) -> String {
    match path.options() {
        [] => "; it has none".to_owned(),
        options => format!("; there are '{}='", options.join("=', '")),
    }
}

impl fmt::Display for KernelTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = KernelTarget::new(self.path, "");
        let has = |name| self.path.options().contains(&name);
        let word = |on| if on { "on" } else { "off" };
        let mut options = Vec::new();
        if has("direct") && self.direct != usual.direct {
            options.push(format!("direct={}", word(self.direct)));
        }
        if let Some(fixed) = self.fixed.filter(|_| has("fixed")) {
            options.push(format!("fixed={}", word(fixed)));
        }
        if let Some(polled) = self.polled.filter(|_| has("polled")) {
            options.push(format!("polled={}", word(polled)));
        }
        if has("size") && self.bytes != usual.bytes {
            options.push(format!("size={}", self.bytes));
        }
        if has("lba") && self.lba_bytes != usual.lba_bytes {
            options.push(format!("lba={}", self.lba_bytes));
        }
        let comma = if options.is_empty() || self.path == KernelPath::Null { "" } else { "," };
        write!(f, "{}{comma}{}", self.device(), options.join(","))
    }
}

#[cfg(test)]
pub(super) mod tests;
