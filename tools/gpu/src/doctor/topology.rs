//! Where a GPU and a controller sit on PCIe, by sysfs: what lies between them, the GPU's window, links, IOMMU groups.
//!
//! Only reads, below the given root (`/sys`, or a test's tree). Facts that sysfs lacks are `None`. They serve reports;
//! no decision depends on them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use adit_driver::bus::pci::PciFunction;

/// The closest connection of two functions, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Relation {
    /// A switch: their traffic bypasses the root complex unless access control (ACS) sends it there.
    Switch,
    RootPort,
    /// One host bridge: their traffic passes the root complex.
    HostBridge,
    /// Host bridges of one NUMA node.
    Node,
    /// The link between two sockets.
    Sockets,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Switch => "below one switch",
            Relation::RootPort => "below one root port",
            Relation::HostBridge => "below one host bridge, through the root complex",
            Relation::Node => "below two host bridges of one socket",
            Relation::Sockets => "on two sockets",
        })
    }
}

/// One function, with what matters to peer traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) address: String,
    /// The host bridge and the bridges on the way down to it, by name.
    pub(crate) bridges: Vec<String>,
    pub(crate) numa_node: Option<u32>,
    /// Its IOMMU group; `None` while no IOMMU is in use.
    pub(crate) iommu_group: Option<u32>,
    /// How that group translates addresses: `DMA`, `DMA-FQ`, `identity`.
    pub(crate) iommu_type: Option<String>,
    /// The current link, such as `16.0 GT/s PCIe x16`.
    pub(crate) link: Option<String>,
    /// The best link that the function supports.
    pub(crate) link_max: Option<String>,
}

impl Site {
    /// Reads the function at `address` below `root`; `None` if it does not exist.
    pub(crate) fn find(root: &Path, address: &str) -> Option<Site> {
        let function = PciFunction::find(root, address.parse().ok()?)?;
        let directory = function.directory();
        let attribute = |name: &str| attribute(directory, name);
        let link = |speed, width| Some(format!("{} x{}", attribute(speed)?, attribute(width)?));
        Some(Site {
            address: function.address().to_string(),
            bridges: bridges(&fs::canonicalize(directory).ok()?),
            numa_node: function.numa_node(),
            iommu_group: function.iommu_group(),
            iommu_type: attribute("iommu_group/type"),
            link: link("current_link_speed", "current_link_width"),
            link_max: link("max_link_speed", "max_link_width"),
        })
    }

    /// Returns the closest connection to `other`.
    pub(crate) fn relation(&self, other: &Site) -> Relation {
        let pairs = self.bridges.iter().zip(&other.bridges);
        match pairs.take_while(|(ours, theirs)| ours == theirs).count() {
            0 if self.numa_node == other.numa_node => Relation::Node,
            0 => Relation::Sockets,
            1 => Relation::HostBridge,
            2 => Relation::RootPort,
            _ => Relation::Switch,
        }
    }

    /// Returns whether the link is slower or narrower than possible.
    pub(crate) fn is_link_degraded(&self) -> bool {
        self.link.is_some() && self.link_max.is_some() && self.link != self.link_max
    }

    /// Returns whether an IOMMU translates its accesses.
    pub(crate) fn is_translated(&self) -> bool {
        self.iommu_group.is_some() && self.iommu_type.as_deref() != Some("identity")
    }
}

/// Returns the bytes of GPU memory visible on PCIe (NVIDIA's BAR1): the largest of the candidate regions.
pub(crate) fn bar1_bytes(root: &Path, address: &str) -> Option<u64> {
    let function = PciFunction::find(root, address.parse().ok()?)?;
    (1..=3).map(|bar| function.bar_len(bar)).max().filter(|&bytes| bytes > 0)
}

/// Returns the names from the host bridge (`pci0000:3a`) down to the function's parent.
fn bridges(directory: &Path) -> Vec<String> {
    let parent: PathBuf = directory.parent().map(Path::to_path_buf).unwrap_or_default();
    let names = parent.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    names.skip_while(|name| !name.starts_with("pci")).collect()
}

fn attribute(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(directory.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::doctor::fake_sysfs::Tree;

    fn site(tree: &Tree, address: &str) -> Site {
        Site::find(&tree.0, address).expect("it is there")
    }

    #[test]
    fn what_lies_between_two_functions_is_told_from_their_paths() {
        let tree = Tree::new();
        let gpu = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3d:00.0";
        tree.function(gpu, &[("numa_node", "0\n")]);
        let others = [
            (
                "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:10.0/0000:3e:00.0",
                "0",
                Relation::Switch,
            ),
            ("pci0000:3a/0000:3a:00.0/0000:3b:00.1", "0", Relation::RootPort),
            ("pci0000:3a/0000:3a:02.0/0000:40:00.0", "0", Relation::HostBridge),
            ("pci0000:5c/0000:5c:00.0/0000:5d:00.0", "0", Relation::Node),
            ("pci0000:ae/0000:ae:00.0/0000:af:00.0", "1", Relation::Sockets),
        ];
        for (path, node, expected) in others {
            tree.function(path, &[("numa_node", node)]);
            let address = path.rsplit('/').next().expect("a name");
            let (gpu, other) = (site(&tree, "0000:3d:00.0"), site(&tree, address));
            assert_eq!(
                (gpu.relation(&other), other.relation(&gpu)),
                (expected, expected),
                "{path}"
            );
        }
    }

    #[test]
    fn the_gpus_window_is_the_large_region_wherever_it_is() {
        let (tree, none) =
            (Tree::new(), "0x0000000000000000 0x0000000000000000 0x0000000000000000\n");
        let small = "0x00000000de000000 0x00000000deffffff 0x0000000000040200\n";
        let large = "0x000000b000000000 0x000000cfffffffff 0x000000000014220c\n";
        let hopper = [small, none, large, none, small, none].concat();
        tree.function("pci0000:3a/0000:3d:00.0", &[("resource", &hopper)]);
        assert_eq!(bar1_bytes(&tree.0, "0000:3d:00.0"), Some(128 << 30));
        let window = "0x00000000c0000000 0x00000000cfffffff 0x000000000014220c\n";
        let consumer = [small, window, none, small, none, none].concat();
        tree.function("pci0000:3a/0000:3e:00.0", &[("resource", &consumer)]);
        assert_eq!(bar1_bytes(&tree.0, "0000:3e:00.0"), Some(256 << 20));
        tree.function("pci0000:3a/0000:3f:00.0", &[("resource", &none.repeat(6))]);
        assert_eq!(bar1_bytes(&tree.0, "0000:3f:00.0"), None);
    }

    #[test]
    fn links_and_groups_are_as_the_kernel_prints_them() {
        let tree = Tree::new();
        let link = [
            ("current_link_speed", "16.0 GT/s PCIe\n"),
            ("current_link_width", "4\n"),
            ("max_link_speed", "32.0 GT/s PCIe\n"),
            ("max_link_width", "4\n"),
        ];
        tree.function("pci0000:00/0000:01:00.0", &link);
        let found = site(&tree, "0000:01:00.0");
        assert_eq!(found.link.as_deref(), Some("16.0 GT/s PCIe x4"));
        assert!(found.is_link_degraded() && !found.is_translated());
        let group = tree.0.join("kernel/iommu_groups/7");
        fs::create_dir_all(&group).expect("a directory");
        fs::write(group.join("type"), "DMA-FQ\n").expect("an attribute");
        symlink(&group, tree.0.join("devices/pci0000:00/0000:01:00.0/iommu_group"))
            .expect("a link");
        let found = site(&tree, "0000:01:00.0");
        assert_eq!((found.iommu_group, found.iommu_type.as_deref()), (Some(7), Some("DMA-FQ")));
        assert!(found.is_translated());
        fs::write(group.join("type"), "identity\n").expect("an attribute");
        assert!(!site(&tree, "0000:01:00.0").is_translated());
    }

    #[test]
    fn what_is_not_there_is_nothing() {
        let tree = Tree::new();
        assert_eq!(Site::find(&tree.0, "0000:01:00.0"), None);
        assert_eq!(Site::find(&tree.0, "no address"), None);
        assert_eq!(bar1_bytes(&tree.0, "0000:01:00.0"), None);
        tree.function("pci0000:00/0000:01:00.0", &[]);
        let bare = site(&tree, "0000:01:00.0");
        assert_eq!((bare.link.clone(), bare.iommu_group, bare.numa_node), (None, None, None));
        assert!(!bare.is_link_degraded());
        assert_eq!(bare.bridges, ["pci0000:00"]);
    }
}
