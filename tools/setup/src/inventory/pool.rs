//! The kernel's pools of hugepages: one for each size on each node.
//!
//! The files are those of the kernel's `Documentation/admin-guide/mm/hugetlbpage.rst`. `nr_hugepages` includes
//! surplus pages: pages in use beyond the requested number, which are freed when their user ends. Only the
//! difference is the requested number.

use std::path::{Path, PathBuf};

use crate::human;
use adit_guard::root::Root;

/// The nodes of a kernel with NUMA.
const NODES: &str = "/sys/devices/system/node";
/// The pools summed over all nodes; the only ones without NUMA.
const ALL: &str = "/sys/kernel/mm/hugepages";
/// The file with the number of pages, which also sets it.
const NUMBER: &str = "nr_hugepages";

/// Pages of one size on one node, or on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pool {
    /// The node; `None` for all.
    pub(crate) node: Option<u32>,
    pub(crate) page_bytes: u64,
}

/// A pool's numbers of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// All existing pages.
    pub(crate) total: u64,
    /// Unused pages.
    pub(crate) free: u64,
    /// Pages that are freed when their user ends.
    pub(crate) surplus: u64,
}

impl Pages {
    /// Returns the requested number.
    pub(crate) fn lasting(self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }
}

impl Pool {
    fn directory(self) -> PathBuf {
        let size = format!("hugepages-{}kB", self.page_bytes / 1024);
        match self.node {
            Some(node) => Path::new(NODES).join(format!("node{node}/hugepages")).join(size),
            None => Path::new(ALL).join(size),
        }
    }

    /// Returns the file that sets the number.
    pub(crate) fn file(self) -> PathBuf {
        self.directory().join(NUMBER)
    }

    /// Returns the current numbers; `None` if the kernel has no such pool.
    pub(crate) fn pages(self, root: &Root) -> Option<Pages> {
        let count = |file| root.text(self.directory().join(file))?.parse().ok();
        Some(Pages {
            total: count(NUMBER)?,
            free: count("free_hugepages")?,
            surplus: count("surplus_hugepages").unwrap_or(0),
        })
    }

    /// Describes its place, such as `node 0`.
    pub(crate) fn place(self) -> String {
        self.node.map_or_else(|| "this machine".to_owned(), |node| format!("node {node}"))
    }

    /// Describes a number of its pages: `512 pages of 2.0MiB`.
    pub(crate) fn count(self, pages: u64) -> String {
        format!("{pages} page{} of {}", human::plural(pages), human::capacity(self.page_bytes))
    }
}

/// Returns the node numbers; empty without NUMA.
pub(crate) fn nodes(root: &Root) -> Vec<u32> {
    let names = root.names(NODES);
    let mut nodes: Vec<u32> = names.iter().filter_map(|name| number(name)).collect();
    nodes.sort_unstable();
    nodes
}

/// Returns the file about a node's memory, or the machine's.
pub(crate) fn meminfo(node: Option<u32>) -> PathBuf {
    node.map_or_else(|| "/proc/meminfo".into(), |node| format!("{NODES}/node{node}/meminfo").into())
}

/// Returns every pool of each node; without NUMA, those of the machine.
pub(crate) fn all(root: &Root) -> Vec<Pool> {
    let nodes = nodes(root);
    let places: Vec<Option<u32>> =
        if nodes.is_empty() { vec![None] } else { nodes.into_iter().map(Some).collect() };
    let mut pools: Vec<Pool> = places.into_iter().flat_map(|node| sizes(root, node)).collect();
    pools.sort_unstable();
    pools
}

fn sizes(root: &Root, node: Option<u32>) -> Vec<Pool> {
    let any = Pool { node, page_bytes: 0 }.directory();
    let names = root.names(any.parent().unwrap_or(&any)).into_iter();
    names.filter_map(|name| Some(Pool { node, page_bytes: page_bytes(&name)? })).collect()
}

/// Parses `hugepages-2048kB`.
fn page_bytes(name: &str) -> Option<u64> {
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Parses `node7` as 7.
fn number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("node")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_known_by_its_folder() {
        assert_eq!(page_bytes("hugepages-2048kB"), Some(2 << 20));
        let pool = Pool { node: Some(1), page_bytes: 2 << 20 };
        let file = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
        assert_eq!(pool.file(), Path::new(file));
        let pool = Pool { node: None, page_bytes: 1 << 30 };
        let file = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
        assert_eq!(pool.file(), Path::new(file));
        for name in ["", "hugepages-2048", "hugepages--1kB", "hugepages-18446744073709551615kB"] {
            assert_eq!(page_bytes(name), None, "{name}");
        }
        for name in ["node", "node+1", "nodes", "1"] {
            assert_eq!(number(name), None, "{name}");
        }
    }

    #[test]
    fn surplus_pages_were_not_asked_for() {
        let root = Root::recorded(
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages = 10\n\
             /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages = 3\n\
             /sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages = 4\n",
        )
        .expect("a recording");
        let pools = all(&root);
        assert_eq!(pools, [Pool { node: None, page_bytes: 2 << 20 }]);
        let pages = pools[0].pages(&root).expect("it is there");
        assert_eq!(pages, Pages { total: 10, free: 3, surplus: 4 });
        assert_eq!(pages.lasting(), 6);
    }
}
