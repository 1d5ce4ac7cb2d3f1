//! A controller's namespaces, as the kernel's block devices.

use std::fs::File;

use adit_guard::disk::{self, BLOCK, NamespacePath, Signature, Usage, Use, block, partitions};
use adit_guard::root::Root;
use adit_kvstore::survey;
use serde::Serialize;

use super::controller::Controller;

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

/// Returns the namespaces of `controller`, including those without a block device.
pub(super) fn all(root: &Root, controller: &Controller, usage: &Usage) -> Vec<Namespace> {
    let names = root.names_quietly(&controller.directory);
    let mut paths: Vec<NamespacePath> =
        names.iter().filter_map(|name| NamespacePath::parse(name)).collect();
    paths.sort_by_key(|path| path.namespace);
    let read = |path: NamespacePath| {
        root.note(controller.directory.join(&path.name));
        read(root, controller, &path, usage)
    };
    paths.into_iter().map(read).collect()
}

fn read(root: &Root, controller: &Controller, path: &NamespacePath, usage: &Usage) -> Namespace {
    let attribute = |name: &str| root.text(block(&path.head).join(name));
    let number = |name: &str| attribute(name).and_then(|text| text.parse::<u64>().ok());
    let partitions = partitions(root, &path.head);
    let devices: Vec<&str> =
        std::iter::once(&path.head).chain(&partitions).map(String::as_str).collect();
    let (signatures, unreadable) = match disk::signatures(root, &devices) {
        Ok(signatures) => (Some(signatures), None),
        Err(why) => (None, Some(why)),
    };
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

/// Returns other controllers through which the kernel would continue to use a shared namespace: with the
/// kernel's multipath, those of the subsystem; otherwise, those with a namespace of the same identifier.
fn other_paths(root: &Root, controller: &Controller, path: &NamespacePath) -> Vec<Use> {
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
    let others = names.filter(|name| name != head && NamespacePath::parse(name).is_some());
    let twins = others.filter(|name| wwid(name).as_ref() == Some(&own));
    twins.filter_map(|name| root.link_name(block(&name).join("device"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let root = Root::recorded(machine).expect("a recording");
        let others = |name: &str| {
            let controller = Controller { name: name.to_owned(), directory: "/none".into() };
            other_paths(
                &root,
                &controller,
                &NamespacePath::parse(&format!("{name}n1")).expect("a path"),
            )
        };
        let through = |device: &str, controller: &str| Use::OtherPath {
            device: device.to_owned(),
            controller: controller.to_owned(),
        };
        assert_eq!(others("nvme1"), [through("nvme1n1", "nvme2")]);
        assert_eq!(others("nvme2"), [through("nvme2n1", "nvme1")]);
        assert_eq!(others("nvme3"), []);
    }
}
