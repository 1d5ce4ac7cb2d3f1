//! Binding again at each boot: a systemd unit that runs `adit setup bind --recorded`, and vfio-pci among the modules to
//! load. The unit is enabled by a link, as `systemctl enable` would make it.
//!
//! It runs after file systems and swap are in use, so that a drive which somebody has put to use meanwhile is found in use.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::args::PersistArgs;
use super::change::Change;
use super::operation::{self, Operation};
use super::record;
use super::root::Root;
use crate::failure::{Failure, Result};

/// The modules to load at boot.
const MODULES: &str = "/etc/modules-load.d/adit.conf";
/// The unit.
const UNIT: &str = "/etc/systemd/system/adit-setup.service";
/// What enables it.
const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants/adit-setup.service";
/// There while systemd runs (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

const HEADER: &str =
    "# Written by 'adit setup persist'; 'adit setup persist --remove' removes it.\n";

/// Permission bits that let others than the owner write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// What happens at the next boot.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct AtBoot {
    /// Whether devices are bound at boot.
    enabled: bool,
    /// The unit's file.
    unit: &'static str,
}

/// `adit setup persist`.
///
/// # Errors
/// When there is nothing to bind at boot, no systemd to do it, or a program that others could replace.
pub(crate) fn run(root: &Root, args: &PersistArgs, json: bool) -> Result<()> {
    operation::run(root, args.change, json, |operation| {
        if args.remove {
            if !remove(operation)? {
                operation.say("nothing is bound at boot, so there is nothing to remove")?;
            }
        } else {
            let program = std::env::current_exe().map_err(Failure::failed)?;
            install(operation, &program)?;
        }
        Ok(AtBoot { enabled: !args.remove, unit: UNIT })
    })
}

fn install(operation: &mut Operation, program: &Path) -> Result<()> {
    let root = operation.root;
    let devices: Vec<String> = record::addresses(root).iter().map(ToString::to_string).collect();
    if devices.is_empty() {
        return Err(Failure::failed(
            "nothing is recorded as bound, so there is nothing to bind at boot; 'adit setup bind' devices first",
        ));
    }
    if !root.exists(SYSTEMD) {
        return Err(Failure::failed(format!(
            "systemd does not run here; let your init run '{} setup bind --recorded' as root, once file systems are mounted",
            program.display()
        )));
    }
    let content = unit(program)?;
    operation.change(Change::File {
        path: MODULES.into(),
        content: format!("{HEADER}vfio-pci\n"),
        mode: 0o644,
    })?;
    operation.change(Change::File { path: UNIT.into(), content, mode: 0o644 })?;
    operation.change(Change::Link { path: ENABLED.into(), target: UNIT.into() })?;
    reload(operation)?;
    operation.say(format!("at each boot, after the same checks as ever: {}", devices.join(", ")))
}

fn reload(operation: &mut Operation) -> Result<()> {
    operation.change(Change::Run {
        program: "systemctl".to_owned(),
        arguments: vec!["daemon-reload".to_owned()],
    })
}

/// The unit's text.
fn unit(program: &Path) -> Result<String> {
    let path = program.to_string_lossy();
    // Quotes, escapes, variables and specifiers mean something to systemd.
    if path.chars().any(|c| c.is_control() || "\"'\\$%".contains(c)) {
        return Err(Failure::failed(format!(
            "{path} has a character in it that a systemd unit cannot take; install it as /usr/local/bin/adit"
        )));
    }
    if let Some(weak) = weakness(&owners(program)) {
        return Err(Failure::failed(format!(
            "root would run {path} at each boot, and others than root could replace it ({weak}); \
             run 'sudo install {path} /usr/local/bin/adit', then 'sudo /usr/local/bin/adit setup persist'"
        )));
    }
    Ok(format!(
        "{HEADER}\
         [Unit]\n\
         Description=NVMe drives that were handed to user space\n\
         Documentation=man:adit-setup-bind(1)\n\
         ConditionDirectoryNotEmpty={}/devices\n\
         After=systemd-modules-load.service local-fs.target swap.target\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart=\"{path}\" setup bind --recorded\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        record::STATE
    ))
}

/// A file's or directory's owner and permissions.
type Owned = (PathBuf, u32, u32);

/// The program and the directories that it is in.
fn owners(program: &Path) -> Vec<Owned> {
    let owned = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((path.to_owned(), metadata.uid(), metadata.mode()))
    };
    program.ancestors().filter_map(owned).collect()
}

/// What in the way to the program others than root could change.
fn weakness(owners: &[Owned]) -> Option<String> {
    owners.iter().find_map(|(path, uid, mode)| {
        let path = path.display();
        if *uid != 0 {
            return Some(format!("{path} belongs to user {uid}"));
        }
        (mode & WRITABLE_BY_OTHERS != 0).then(|| format!("{path} can be written by others"))
    })
}

/// Removes the unit and its files, if they are there; says whether there was something to do.
///
/// # Errors
/// When a change fails.
pub(crate) fn remove(operation: &mut Operation) -> Result<bool> {
    // The link first: a unit that is enabled and not there is reported at each boot.
    let is_there = |path: &&str| fs::symlink_metadata(operation.root.path(path)).is_ok();
    let found: Vec<&str> = [ENABLED, UNIT, MODULES].into_iter().filter(is_there).collect();
    for path in &found {
        operation.change(Change::Remove { path: path.into() })?;
    }
    if !found.is_empty() && operation.root.exists(SYSTEMD) {
        reload(operation)?;
    }
    Ok(!found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::simulated::{Drive, Fault, World};

    const ROOTS: &[(&str, u32, u32)] =
        &[("/usr/local/bin/adit", 0, 0o100_755), ("/usr", 0, 0o40_755)];

    fn owned(list: &[(&str, u32, u32)]) -> Vec<Owned> {
        list.iter().map(|&(path, uid, mode)| (path.into(), uid, mode)).collect()
    }

    const RECORD: &str = "/var/lib/adit/setup/devices/0000:01:00.0.json";

    #[test]
    fn a_program_that_only_root_can_replace_is_fine() {
        assert_eq!(weakness(&owned(ROOTS)), None);
        for bad in [("/home/user", 1000, 0o40_755), ("/tmp", 0, 0o41_777), ("/opt", 0, 0o40_775)] {
            let weak = weakness(&owned(&[ROOTS, &[bad]].concat())).expect("weak");
            assert!(weak.contains(bad.0), "{weak}");
        }
    }

    #[test]
    fn a_name_that_systemd_would_read_otherwise_is_refused() {
        for name in ["/opt/100%/adit", "/opt/\"/adit", "/opt/a\nb"] {
            let why = unit(Path::new(name)).expect_err(name).to_string();
            assert!(why.contains("/usr/local/bin/adit"), "{why}");
        }
        // Whoever owns them, these are no shells' and no systemd's business.
        let text = unit(Path::new("/")).expect("the root directory is root's");
        assert!(text.contains("ExecStart=\"/\" setup bind --recorded\n"), "{text}");
    }

    #[test]
    fn without_records_or_systemd_nothing_is_installed() {
        let mut world = World::new(&[Drive::new("0000:01:00.0", 1)], 1);
        let why = refusal(&mut world);
        assert!(why.contains("nothing is recorded"), "{why}");
        world.kernel.put(Path::new(RECORD), "{}");
        let why = refusal(&mut world);
        assert!(why.contains("systemd does not run here"), "{why}");
        assert!(!world.root.exists(UNIT) && !world.root.exists(MODULES));
    }

    fn refusal(world: &mut World) -> String {
        let ended = world.run(None, |operation| install(operation, Path::new("/")));
        ended.expect("not killed").expect_err("refused").to_string()
    }

    #[test]
    fn what_is_installed_is_removed_wherever_it_was_cut_off() {
        for at in 0..4 {
            let mut world = World::new(&[Drive::new("0000:01:00.0", 1)], 1);
            world.kernel.put(Path::new(RECORD), "{}");
            world.kernel.put(&Path::new(SYSTEMD).join("x"), "");
            let before = world.snapshot();
            let cut = world.run(Some((at, Fault::KilledAfter)), |operation| {
                install(operation, Path::new("/"))
            });
            assert!(cut.is_err(), "change {at} is not reached");
            assert_ne!(world.snapshot(), before);
            let removed = world.run(None, remove).expect("alive").expect("removed");
            assert!(removed);
            assert_eq!(world.snapshot(), before, "cut off at {at}");
            assert!(!world.run(None, remove).expect("alive").expect("nothing left"));
        }
    }
}
