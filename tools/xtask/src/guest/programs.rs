//! Programs copied into the guest, with the shared libraries reported by `ldd`: the host's, or fetched ones.

use super::archive::Archive;
use super::command::PROGRAMS;
use super::packages;
use crate::failure::{Context, Failure, Result};
use crate::process;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The guest's directory of fetched libraries.
const FETCHED: &str = "/usr/lib/fetched";

/// A program and its name in the guest.
pub(crate) struct Program {
    /// Its name in the guest.
    pub name: String,
    source: Source,
}

enum Source {
    /// A program of the host.
    Host(PathBuf),
    /// A program of this package.
    Package(&'static str),
}

impl Program {
    /// Finds a program by name in `PATH` or by path, or one that [`packages`] can fetch. Does not fetch yet.
    pub(crate) fn find(what: &str) -> Result<Self> {
        if let Some(file) = process::find(what) {
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
            return Ok(Self {
                name: name.unwrap_or_else(|| what.to_owned()),
                source: Source::Host(file),
            });
        }
        let package = packages::package_of(what).ok_or_else(|| {
            Failure::usage(format!("--with {what}: no such program in PATH, and no such file"))
        })?;
        Ok(Self { name: what.to_owned(), source: Source::Package(package) })
    }

    /// Returns the program under another name.
    pub(super) fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// Returns whether it is a library, which other programs load.
    fn is_library(&self) -> bool {
        self.name.contains(".so")
    }

    /// Returns the file on the host, and its libraries.
    fn locate(&self, cache: &Path) -> Result<(PathBuf, Vec<String>)> {
        match &self.source {
            Source::Host(file) => Ok((file.clone(), libraries_of(file, &[])?)),
            Source::Package(package) => {
                let file = packages::program(package, &self.name, cache)?;
                let libraries = libraries_of(&file, &[])
                    .or_else(|_| libraries_of(&file, &packages::libraries(package, cache)?))?;
                Ok((file, libraries))
            }
        }
    }
}

/// Adds `programs` and their libraries, fetching missing ones into `cache`; returns the libraries' directories,
/// for the guest's `LD_LIBRARY_PATH`.
pub(crate) fn add(
    programs: &[Program],
    cache: &Path,
    archive: &mut Archive,
) -> Result<Vec<String>> {
    let mut libraries = BTreeSet::new();
    for program in programs {
        let (file, needed) = program.locate(cache)?;
        libraries.extend(needed);
        archive.file(&format!("{PROGRAMS}/{}", program.name), 0o755, &read(&file)?);
    }
    let mut directories = BTreeSet::new();
    if programs.iter().any(Program::is_library) {
        directories.insert(PROGRAMS.to_owned());
    }
    for library in libraries.iter().map(Path::new) {
        let own = library.parent().unwrap_or(library);
        let directory = if library.starts_with(cache) { Path::new(FETCHED) } else { own };
        let place = directory.join(library.file_name().unwrap_or_default());
        archive.file(&place.to_string_lossy(), permissions(library), &read(library)?);
        directories.insert(directory.to_string_lossy().into_owned());
    }
    Ok(directories.into_iter().collect())
}

/// Returns whether `file` needs no dynamic loader.
pub(crate) fn is_static(file: &Path) -> bool {
    libraries_of(file, &[]).is_ok_and(|libraries| libraries.is_empty())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).context(format_args!("cannot read {}", file.display()))
}

fn permissions(file: &Path) -> u32 {
    fs::metadata(file).map_or(0o755, |metadata| metadata.permissions().mode() & 0o777)
}

/// Returns the libraries of `file`, searching `directories` too.
fn libraries_of(file: &Path, directories: &[PathBuf]) -> Result<Vec<String>> {
    let mut ldd = Command::new("ldd");
    if !directories.is_empty() {
        let path =
            env::join_paths(directories).context("cannot name the libraries' directories")?;
        ldd.env("LD_LIBRARY_PATH", path);
    }
    let output = ldd.arg(file).output().context("cannot run ldd")?;
    if !output.status.success() {
        // For a script or a static program, ldd's message differs between versions.
        return Ok(Vec::new());
    }
    parse_ldd(&String::from_utf8_lossy(&output.stdout)).map_err(|library| {
        Failure::new(format!("{} needs {library}, which is not installed", file.display()))
    })
}

/// Parses ldd's output as paths, or returns the name of a missing library.
fn parse_ldd(text: &str) -> std::result::Result<Vec<String>, String> {
    let mut paths = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, found) = line.split_once(" => ").unwrap_or((line, line));
        if found == "not found" {
            return Err(name.to_owned());
        }
        let path = found.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            paths.push(path.to_owned());
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_lines_give_paths() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            parse_ldd(text).unwrap(),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert_eq!(parse_ldd("\tstatically linked\n").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_library_that_is_missing_is_named() {
        assert_eq!(parse_ldd("\tlibx.so.1 => not found\n").unwrap_err(), "libx.so.1");
    }

    #[test]
    fn an_unknown_program_is_a_usage_error() {
        assert_eq!(
            Program::find("no-such-program-anywhere").err().map(|failure| failure.code()),
            Some(2)
        );
    }

    #[test]
    fn a_program_that_can_be_fetched_is_known_whether_the_host_has_it_or_not() {
        for name in ["lvm", "mdadm", "mkfs.ext4", "mkfs.vfat", "nvme", "sfdisk"] {
            assert_eq!(Program::find(name).map(|program| program.name).ok().as_deref(), Some(name));
        }
    }
}
