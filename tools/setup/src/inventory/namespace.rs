//! A controller's namespaces, as the kernel's block devices.

use std::fs::File;

use adit_kvstore::survey;
use serde::Serialize;

use super::block::{BLOCK, block, partitions};
use super::controller::Controller;
use super::signature::{self, Signature};
use super::usage::Usage;
use super::uses::Use;
use crate::root::Root;

/// A namespace as a block device of the kernel.
#[derive(Debug, Serialize)]
pub(crate) struct Namespace {
    /// Its name, such as `nvme0n1`.
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// Its LBA size.
    pub(crate) lba_bytes: u32,
    /// Its partitions, such as `nvme0n1p1`.
    pub(crate) partitions: Vec<String>,
    /// Uses of it or its partitions.
    pub(crate) uses: Vec<Use>,
    /// Signatures on it and its partitions; `None` if unknown.
    pub(crate) signatures: Option<Vec<Signature>>,
    /// Why they are unknown.
    pub(crate) unreadable: Option<String>,
    /// Whether it is a device of a store of Adit, by either superblock; `None` if that cannot be read. A store does not
    /// keep a drive from being taken, as it is used through VFIO.
    pub(crate) holds_store: Option<bool>,
}

/// sysfs counts sizes in these, regardless of the LBA size.
const SECTOR_BYTES: u64 = 512;

/// Why a namespace without a block device cannot be inspected.
pub(super) const NO_DEVICE: &str =
    "the kernel shows no device for it: its format is one that Linux cannot use";

/// Returns the namespaces of `controller`, including those without a block device.
pub(super) fn all(root: &Root, controller: &Controller, usage: &Usage) -> Vec<Namespace> {
    let names = root.names_quietly(&controller.directory);
    let mut paths: Vec<Path> = names.iter().filter_map(|name| Path::parse(name)).collect();
    paths.sort_by_key(|path| path.namespace);
    let read = |path: Path| {
        root.note(controller.directory.join(&path.name));
        read(root, controller, &path, usage)
    };
    paths.into_iter().map(read).collect()
}

fn read(root: &Root, controller: &Controller, path: &Path, usage: &Usage) -> Namespace {
    let attribute = |name: &str| root.text(block(&path.head).join(name));
    let number = |name: &str| attribute(name).and_then(|text| text.parse::<u64>().ok());
    let partitions = partitions(root, &path.head);
    let devices: Vec<&str> =
        std::iter::once(&path.head).chain(&partitions).map(String::as_str).collect();
    let (signatures, unreadable) = signatures(root, &path.head, &devices);
    let mut uses = usage.of(root, &devices);
    uses.extend(usage.of_pools(signatures.as_deref().unwrap_or_default()));
    for file in path.character_devices() {
        uses.extend(usage.of_file(&file));
    }
    uses.extend(other_paths(root, controller, path));
    Namespace {
        name: path.head.clone(),
        size_bytes: number("size").unwrap_or(0).saturating_mul(SECTOR_BYTES),
        lba_bytes: number("queue/logical_block_size").and_then(|n| n.try_into().ok()).unwrap_or(0),
        signatures,
        unreadable,
        uses,
        partitions,
        holds_store: holds_store(root, &path.head),
    }
}

/// Returns whether a store's superblock is at either end; `None` if neither end can be read.
fn holds_store(root: &Root, head: &str) -> Option<bool> {
    let look = || {
        let found = File::open(format!("/dev/{head}")).and_then(|file| survey::is_of_store(&file));
        found.map_or("unknown", |found| if found { "yes" } else { "no" }).to_owned()
    };
    match root.observed(&format!("store-{head}"), look)?.as_str() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Returns the signatures on a block device and its partitions, or why they are unknown.
pub(super) fn signatures(
    root: &Root,
    head: &str,
    devices: &[&str],
) -> (Option<Vec<Signature>>, Option<String>) {
    // Without a device number there is no file in /dev: the kernel is still scanning the namespace, or does not
    // support its format. Another system may have stored data there, so it does not count as empty.
    let attribute = |name: &str| root.text(block(head).join(name));
    // A device without a size cannot be read either.
    if attribute("dev").is_none() || attribute("size").as_deref() == Some("0") {
        return (None, Some(NO_DEVICE.to_owned()));
    }
    match signature::of(root, devices) {
        Ok(signatures) => (Some(signatures), None),
        Err(why) => (None, Some(why)),
    }
}

/// A path to a namespace: `nvme0n1`, or `nvme0c1n1` below the multipath device `nvme0n1`.
#[derive(Debug, PartialEq, Eq)]
struct Path {
    name: String,
    /// The block device.
    head: String,
    /// The kernel's number of the namespace.
    namespace: u32,
    /// The subsystem, if the kernel may have several paths.
    subsystem: Option<u32>,
}

impl Path {
    fn parse(name: &str) -> Option<Path> {
        let (instance, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
        let namespace: u32 = namespace.parse().ok()?;
        let (subsystem, controller) = match instance.split_once('c') {
            Some((subsystem, controller)) => (subsystem, Some(controller)),
            None => (instance, None),
        };
        let number: u32 = subsystem.parse().ok()?;
        controller.map_or(Some(0), |controller| controller.parse::<u32>().ok())?;
        let head = format!("nvme{subsystem}n{namespace}");
        let subsystem = controller.map(|_| number);
        Some(Path { name: name.to_owned(), head, namespace, subsystem })
    }

    /// Returns its generic character devices: the namespace's, and with multipath the path's.
    fn character_devices(&self) -> Vec<String> {
        let mut files: Vec<String> =
            [&self.head, &self.name].iter().map(|name| name.replacen("nvme", "ng", 1)).collect();
        files.dedup();
        files
    }
}

/// Returns the block device of the namespace with the generic character device `ng0n1`, or `ng0c1n1` with
/// multipath.
pub(super) fn behind_generic(name: &str) -> Option<String> {
    Path::parse(&format!("nvme{}", name.strip_prefix("ng")?)).map(|path| path.head)
}

/// Returns other controllers through which the kernel would continue to use a shared namespace: with the
/// kernel's multipath, those of the subsystem; otherwise, those with a namespace of the same identifier.
fn other_paths(root: &Root, controller: &Controller, path: &Path) -> Vec<Use> {
    let others = match path.subsystem {
        Some(subsystem) => of_subsystem(root, subsystem, path.namespace),
        None => of_twins(root, &path.head),
    };
    let others = others.into_iter().filter(|other| *other != controller.name);
    others.map(|controller| Use::OtherPath { device: path.head.clone(), controller }).collect()
}

fn of_subsystem(root: &Root, subsystem: u32, namespace: u32) -> Vec<String> {
    let directory = format!("/sys/class/nvme-subsystem/nvme-subsys{subsystem}");
    let mut names = root.names_quietly(&directory);
    names.retain(|name| {
        let number = name.strip_prefix("nvme").and_then(|number| number.parse::<u32>().ok());
        number.is_some_and(|number| {
            root.exists(format!("{directory}/{name}/nvme{subsystem}c{number}n{namespace}"))
        })
    });
    names
}

fn of_twins(root: &Root, head: &str) -> Vec<String> {
    let wwid = |device: &str| root.text(block(device).join("wwid")).filter(|wwid| !wwid.is_empty());
    let Some(own) = wwid(head) else { return Vec::new() };
    let names = root.names_quietly(BLOCK).into_iter();
    let others = names.filter(|name| name != head && Path::parse(name).is_some());
    let twins = others.filter(|name| wwid(name).as_ref() == Some(&own));
    twins.filter_map(|name| root.link_name(block(&name).join("device"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_and_their_heads() {
        let plain = Path::parse("nvme2n1").expect("plain");
        assert_eq!((plain.head.as_str(), plain.subsystem), ("nvme2n1", None));
        let hidden = Path::parse("nvme3c5n17").expect("hidden");
        assert_eq!((hidden.head.as_str(), hidden.subsystem), ("nvme3n17", Some(3)));
        for name in ["nvme0", "ng0n1", "nvme0n1p1", "nvmen1", "nvme0cn1", "power", "hwmon3"] {
            assert_eq!(Path::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_namespace_that_two_controllers_show_is_one() {
        let machine = "\
/sys/class/block/nvme1n1 -> ../../devices/nvme1/nvme1n1
/sys/class/block/nvme2n1 -> ../../devices/nvme2/nvme2n1
/sys/class/block/nvme3n1 -> ../../devices/nvme3/nvme3n1
/sys/class/block/nvme2n1p1/wwid = eui.01
/sys/devices/nvme1/nvme1n1/wwid = eui.01
/sys/devices/nvme1/nvme1n1/device -> ../../nvme1
/sys/devices/nvme2/nvme2n1/wwid = eui.01
/sys/devices/nvme2/nvme2n1/device -> ../../nvme2
/sys/devices/nvme3/nvme3n1/wwid = eui.03
/sys/devices/nvme3/nvme3n1/device -> ../../nvme3
";
        let root = Root::recorded(machine);
        let others = |name: &str| {
            let controller = Controller { name: name.to_owned(), directory: "/none".into() };
            other_paths(&root, &controller, &Path::parse(&format!("{name}n1")).expect("a path"))
        };
        let through = |device: &str, controller: &str| Use::OtherPath {
            device: device.to_owned(),
            controller: controller.to_owned(),
        };
        assert_eq!(others("nvme1"), [through("nvme1n1", "nvme2")]);
        assert_eq!(others("nvme2"), [through("nvme2n1", "nvme1")]);
        assert_eq!(others("nvme3"), []);
    }

    proptest! {
        #[test]
        fn any_name_is_a_path_or_none(name in "nvme[0-9cnp]{0,12}") {
            let _ = Path::parse(&name);
        }
    }
}
