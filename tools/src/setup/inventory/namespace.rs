//! A controller's namespaces, as the kernel's block devices.

use super::function::Controller;
use super::usage::{Usage, block};
use super::{Namespace, Use, signature};
use crate::setup::root::Root;

/// What sysfs counts sizes in, whatever the LBA size.
const SECTOR_BYTES: u64 = 512;

/// The namespaces of `controller` that have a block device.
pub(super) fn all(root: &Root, controller: &Controller, usage: &Usage) -> Vec<Namespace> {
    let names = root.names_quietly(&controller.directory);
    let paths = names.iter().filter_map(|name| Path::parse(name));
    let mut namespaces: Vec<Namespace> = Vec::new();
    for path in paths {
        root.note(controller.directory.join(&path.name));
        if root.exists(block(&path.head)) {
            namespaces.push(read(root, controller, &path, usage));
        }
    }
    namespaces
}

fn read(root: &Root, controller: &Controller, path: &Path, usage: &Usage) -> Namespace {
    let attribute = |name: &str| root.text(block(&path.head).join(name));
    let number = |name: &str| attribute(name).and_then(|text| text.parse::<u64>().ok());
    let partitions = partitions(root, &path.head);
    let devices: Vec<&str> =
        std::iter::once(&path.head).chain(&partitions).map(String::as_str).collect();
    let mut uses = usage.of(root, &devices, &format!("/dev/ng{}", &path.head["nvme".len()..]));
    uses.extend(other_paths(root, controller, path));
    let (signatures, unreadable) = match signature::of(root, &devices) {
        Ok(signatures) => (Some(signatures), None),
        Err(why) => (None, Some(why)),
    };
    Namespace {
        name: path.head.clone(),
        size_bytes: number("size").unwrap_or(0).saturating_mul(SECTOR_BYTES),
        lba_bytes: number("queue/logical_block_size").and_then(|n| n.try_into().ok()).unwrap_or(0),
        signatures,
        unreadable,
        uses,
        partitions,
    }
}

fn partitions(root: &Root, device: &str) -> Vec<String> {
    let names = root.names_quietly(block(device)).into_iter();
    names
        .filter(|name| {
            name.starts_with(device) && root.exists(block(device).join(name).join("partition"))
        })
        .collect()
}

/// One path to a namespace: `nvme0n1`, or `nvme0c1n1` below the multipath device `nvme0n1`.
#[derive(Debug, PartialEq, Eq)]
struct Path {
    name: String,
    /// The block device.
    head: String,
    /// The subsystem, where the kernel may have several paths.
    subsystem: Option<u32>,
}

impl Path {
    fn parse(name: &str) -> Option<Path> {
        let (instance, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
        let _: u32 = namespace.parse().ok()?;
        let (subsystem, controller) = match instance.split_once('c') {
            Some((subsystem, controller)) => (subsystem, Some(controller)),
            None => (instance, None),
        };
        let number: u32 = subsystem.parse().ok()?;
        controller.map_or(Some(0), |controller| controller.parse::<u32>().ok())?;
        let head = format!("nvme{subsystem}n{namespace}");
        Some(Path { name: name.to_owned(), head, subsystem: controller.map(|_| number) })
    }
}

/// Other controllers of the subsystem: through them the kernel would go on using a shared namespace.
fn other_paths(root: &Root, controller: &Controller, path: &Path) -> Vec<Use> {
    let Some(subsystem) = path.subsystem else { return Vec::new() };
    let directory = format!("/sys/class/nvme-subsystem/nvme-subsys{subsystem}");
    let namespace = path.head.rsplit('n').next().unwrap_or_default();
    let others = root.names_quietly(&directory).into_iter().filter(|name| {
        let number = name.strip_prefix("nvme").and_then(|number| number.parse::<u32>().ok());
        *name != controller.name
            && number.is_some_and(|number| {
                root.exists(format!("{directory}/{name}/nvme{subsystem}c{number}n{namespace}"))
            })
    });
    others.map(|controller| Use::OtherPath { device: path.head.clone(), controller }).collect()
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

    proptest! {
        #[test]
        fn any_name_is_a_path_or_none(name in "nvme[0-9cnp]{0,12}") {
            let _ = Path::parse(&name);
        }
    }
}
