//! Resolves `filename` into driver targets, or into paths that `ioengine` and `direct` turn into targets.
//!
//! As in fio, colons separate several names in one value, and `\:` is a literal colon. Targets themselves
//! contain colons, so if the value contains a target, a colon separates names only before a target or an
//! absolute path.

use std::path::{Path, PathBuf};

use adit_driver::{KernelPath, KernelTarget, Target};

use super::grammar::Parsed;
use super::{Engine, JobOptions};
use crate::failure::{Failure, Result};

/// Schemes of targets: the part before the first colon.
const SCHEMES: [&str; 8] =
    ["vfio", "vfio-user", "soft", "uring", "uring-cmd", "psync", "mmap", "null"];

/// Returns whether `text` begins with a target's scheme.
pub(crate) fn is_target(text: &str) -> bool {
    text.split_once(':').is_some_and(|(kind, _)| SCHEMES.contains(&kind))
}

/// Splits a value of `filename` into names.
///
/// # Errors
/// A sentence, if one of them is empty.
pub(crate) fn split(text: &str) -> Parsed<Vec<String>> {
    let pieces = pieces(text);
    let has_targets = is_target(text) || pieces.iter().any(|piece| SCHEMES.contains(&&**piece));
    let names = if has_targets { whole_names(&pieces) } else { pieces };
    if names.iter().any(|name| name.is_empty()) {
        return Err(format!(
            "'{text}' names nothing between two colons; write a colon of a name as '\\:'"
        ));
    }
    Ok(names)
}

/// Splits at unescaped colons and removes the escapes.
pub(super) fn pieces(text: &str) -> Vec<String> {
    let (mut pieces, mut piece) = (Vec::new(), String::new());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.peek() == Some(&':') => piece.extend(letters.next()),
            ':' => pieces.push(std::mem::take(&mut piece)),
            _ => piece.push(letter),
        }
    }
    pieces.push(piece);
    pieces
}

/// Joins the pieces of targets again: a name begins with a scheme or, after a complete target, with a slash.
fn whole_names(pieces: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let is_last = at + 1 == pieces.len();
        let starts_target = (SCHEMES.contains(&&**piece) && !is_last) || is_target(piece);
        // The piece after a scheme belongs to the target, slash or not.
        let after_kind = names.last().is_some_and(|name| SCHEMES.contains(&&**name));
        match names.last_mut() {
            Some(name) if after_kind || !(starts_target || piece.starts_with('/')) => {
                name.push(':');
                name.push_str(piece);
            }
            _ => names.push(piece.clone()),
        }
    }
    names
}

/// Splits targets separated by commas (`--targets A,B`); only a comma before a target separates.
///
/// # Errors
/// A sentence, if one is no target.
pub(crate) fn list(text: &str) -> Parsed<Vec<Target>> {
    let mut names: Vec<String> = Vec::new();
    for word in text.split(',') {
        match names.last_mut() {
            Some(name) if !is_target(word) => {
                name.push(',');
                name.push_str(word);
            }
            _ => names.push(word.to_owned()),
        }
    }
    names.iter().map(|name| name.parse::<Target>().map_err(|why| why.to_string())).collect()
}

/// Refuses targets that do not parse, and own files of unknown length.
///
/// # Errors
/// A sentence.
pub(crate) fn check(job: &JobOptions) -> Parsed<()> {
    for name in &job.files.filename {
        target(job, name).map_err(|why| why.to_string())?;
    }
    Ok(())
}

/// Returns the targets of the job's thread `thread`, in order.
///
/// # Errors
/// When a name is no target, or the job has neither a filename nor a way to name its own files.
pub(crate) fn targets(job: &JobOptions, thread: u32) -> Result<Vec<Target>> {
    if !job.files.filename.is_empty() {
        return job.files.filename.iter().map(|name| target(job, name)).collect();
    }
    if job.files.ioengine == Engine::Null {
        return Ok(vec![Target::Kernel(kernel(job, Path::new("")))]);
    }
    if job.files.ioengine == Engine::UringCmd {
        return Err(Failure::usage(format!(
            "job '{}': io_uring_cmd needs a device; give filename=/dev/ng0n1",
            job.name
        )));
    }
    let files = (0..job.files.nrfiles).map(|file| own_file(job, thread, file));
    Ok(files.map(|file| Target::Kernel(kernel(job, &file))).collect())
}

/// Returns whether the job creates its own files.
pub(crate) fn has_own_files(job: &JobOptions) -> bool {
    job.files.filename.is_empty() && job.files.ioengine != Engine::Null
}

/// Returns how many files each thread of the job works on.
pub(crate) fn count(job: &JobOptions) -> usize {
    if has_own_files(job) { job.files.nrfiles as usize } else { job.files.filename.len().max(1) }
}

/// Joins targets into one `filename` value that [`split`] can split again.
pub(crate) fn joined(targets: &[&Target]) -> String {
    let escaped = |target: &&Target| {
        let text = target.to_string();
        match text.split_once(':') {
            Some((kind, rest)) if split(&text) != Ok(vec![text.clone()]) => {
                format!("{kind}:{}", rest.replace(':', "\\:"))
            }
            _ => text,
        }
    };
    match targets {
        [only] => only.to_string(),
        several => several.iter().map(escaped).collect::<Vec<_>>().join(":"),
    }
}

/// Resolves one name.
fn target(job: &JobOptions, name: &str) -> Result<Target> {
    if is_target(name) {
        return Ok(name.parse::<Target>()?);
    }
    let path = match &job.files.directory {
        Some(directory) if !name.starts_with('/') => directory.join(name),
        _ => PathBuf::from(name),
    };
    Ok(Target::Kernel(kernel(job, &path)))
}

/// Returns the kernel path for the job's engine.
fn kernel(job: &JobOptions, file: &Path) -> KernelTarget {
    let path = job.files.ioengine.path();
    let file = if path == KernelPath::Null { Path::new("") } else { file };
    let is_uring = matches!(path, KernelPath::Uring | KernelPath::UringCmd);
    let usual = KernelTarget::new(path, file);
    KernelTarget {
        direct: match path {
            KernelPath::Uring | KernelPath::Psync => job.files.direct,
            _ => usual.direct,
        },
        fixed: is_uring.then_some(job.files.fixedbufs),
        polled: if is_uring { Some(job.files.hipri) } else { usual.polled },
        ..usual
    }
}

/// Returns the path of one of the job's own files, from `filename_format`.
fn own_file(job: &JobOptions, thread: u32, file: u32) -> PathBuf {
    // A slash in the name must not lead to another folder.
    let name = job.name.replace('/', "_");
    let file = job
        .files
        .filename_format
        .replace("$jobname", &name)
        .replace("$jobnum", &thread.to_string())
        .replace("$filenum", &file.to_string())
        .replace("$clientuid", "localhost");
    job.files.directory.clone().unwrap_or_default().join(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::FileOptions;
    use proptest::prelude::*;

    fn names(text: &str) -> Vec<String> {
        split(text).expect(text)
    }

    fn job(filename: &str) -> JobOptions {
        JobOptions {
            files: crate::options::FileOptions {
                filename: names(filename),
                ..JobOptions::usual().files
            },
            ..JobOptions::usual()
        }
    }

    #[test]
    fn a_colon_divides_paths() {
        assert_eq!(names("/dev/sda"), ["/dev/sda"]);
        assert_eq!(names("/dev/sda:/dev/sdb"), ["/dev/sda", "/dev/sdb"]);
        assert_eq!(names(r"/dev/dsk/foo@3,0\:c:b"), ["/dev/dsk/foo@3,0:c", "b"]);
        assert!(split("a::b").is_err() && split("").is_err());
    }

    #[test]
    fn targets_need_no_escapes_and_may_have_them() {
        for (text, expected) in [
            ("soft:mem=1G", vec!["soft:mem=1G"]),
            ("vfio:0000:01:00.0,ns=2", vec!["vfio:0000:01:00.0,ns=2"]),
            (r"vfio\:0000\:01\:00.0", vec!["vfio:0000:01:00.0"]),
            ("uring:/a:uring:/b", vec!["uring:/a", "uring:/b"]),
            ("vfio:0000:01:00.0:vfio:0000:02:00.0", vec!["vfio:0000:01:00.0", "vfio:0000:02:00.0"]),
            ("uring:/a:/b", vec!["uring:/a", "/b"]),
            ("null:", vec!["null:"]),
            ("null::null:size=1G", vec!["null:", "null:size=1G"]),
            (
                "soft:mem=1G,faults=status(2:81)@read:n=1",
                vec!["soft:mem=1G,faults=status(2:81)@read:n=1"],
            ),
            ("/a:vfio-user:/run/x/cntrl", vec!["/a", "vfio-user:/run/x/cntrl"]),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn targets_in_a_list_keep_their_own_commas() {
        let listed = list("soft:mem=1G,ns=1,null:,vfio:0000:01:00.0,sgl=off").expect("targets");
        let printed: Vec<String> = listed.iter().map(ToString::to_string).collect();
        assert_eq!(printed, ["soft:mem=1G,ns=1", "null:", "vfio:0000:01:00.0,sgl=off"]);
        assert!(list("/dev/sda").is_err() && list("").is_err());
    }

    #[test]
    fn a_path_is_reached_by_the_engine() {
        let of = |engine, direct| {
            let job = JobOptions {
                files: crate::options::FileOptions {
                    ioengine: engine,
                    direct,
                    ..job("/dev/x").files
                },
                ..job("/dev/x")
            };
            match &targets(&job, 0).expect("a target")[..] {
                [Target::Kernel(kernel)] => kernel.clone(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            (of(Engine::Psync, false).path, of(Engine::Psync, false).direct),
            (KernelPath::Psync, false)
        );
        let uring = of(Engine::Uring, true);
        assert_eq!(
            (uring.path, uring.direct, uring.fixed, uring.polled),
            (KernelPath::Uring, true, Some(false), Some(false))
        );
        assert_eq!(of(Engine::Mmap, true).path, KernelPath::Mmap);
        assert_eq!(of(Engine::Null, false).file, PathBuf::new());
    }

    #[test]
    fn a_job_without_a_filename_has_files_of_its_own() {
        let job = JobOptions {
            name: "a/b".into(),
            files: FileOptions {
                nrfiles: 2,
                directory: Some("/d".into()),
                ..JobOptions::usual().files
            },
            ..JobOptions::usual()
        };
        assert!(has_own_files(&job));
        let files: Vec<_> = targets(&job, 3).expect("targets");
        let device = |at: usize| files[at].device();
        assert_eq!(
            (files.len(), device(0), device(1)),
            (2, "psync:/d/a_b.3.0".into(), "psync:/d/a_b.3.1".into())
        );
        let command = JobOptions {
            files: crate::options::FileOptions {
                ioengine: Engine::UringCmd,
                ..JobOptions::usual().files
            },
            ..JobOptions::usual()
        };
        assert!(
            targets(&command, 0)
                .expect_err("no device")
                .to_string()
                .contains("filename=/dev/ng0n1")
        );
    }

    #[test]
    fn a_relative_name_lies_in_the_directory() {
        let job = JobOptions {
            files: FileOptions { directory: Some("/d".into()), ..job("x").files },
            ..job("x")
        };
        assert_eq!(targets(&job, 0).expect("a target")[0].device(), "psync:/d/x");
    }

    proptest! {
        #[test]
        fn names_that_are_escaped_come_back(names in proptest::collection::vec("[a-z:/]{1,12}", 1..4)) {
            let text = names.iter().map(|name| name.replace(':', r"\:")).collect::<Vec<_>>().join(":");
            let has_kind = names.iter().any(|name| SCHEMES.iter().any(|kind| name.contains(kind)));
            prop_assume!(!has_kind);
            prop_assert_eq!(split(&text).expect("names"), names);
        }
    }
}
