//! Memory near the device.
//!
//! [`place_near`] returns the `place` argument of [`crate::sys::HostMemory::allocate`]. With the feature
//! `hwlocality` it binds fresh memory to the device's NUMA node before its pages exist. This is best effort:
//! if the node is unknown, the machine has one node or the kernel refuses, pages land where they are first
//! touched, as without the feature.

use std::ptr::NonNull;

use crate::bus::Locality;

/// Returns a placement function for a device at `locality`.
#[cfg(not(feature = "hwlocality"))]
pub(crate) fn place_near(_locality: &Locality) -> impl Fn(NonNull<u8>, usize) + use<> {
    |_, _| ()
}

/// Returns a placement function for a device at `locality`.
///
/// The first call for a device with a known node reads the machine's topology, which takes some milliseconds;
/// the process keeps it.
#[cfg(feature = "hwlocality")]
pub(crate) fn place_near(locality: &Locality) -> impl Fn(NonNull<u8>, usize) + use<> {
    let near = locality.numa_node.and_then(node::Near::find);
    move |at, len| {
        if let Some(near) = &near {
            near.bind(at, len);
        }
    }
}

/// Returns the cores of a NUMA node, in the kernel's numbering, if the system reports them.
#[cfg(not(feature = "hwlocality"))]
pub(crate) fn cores_of_node(node: u32) -> Option<Vec<usize>> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    Some(core_list(&std::fs::read_to_string(path).ok()?))
}

/// Returns the cores of a NUMA node, in the kernel's numbering, if the system reports them.
#[cfg(feature = "hwlocality")]
pub(crate) fn cores_of_node(node: u32) -> Option<Vec<usize>> {
    use hwlocality::object::types::ObjectType;
    let mut nodes = node::topology()?.objects_with_type(ObjectType::NUMANode);
    let found = nodes.find(|object| object.os_index() == usize::try_from(node).ok())?;
    Some(found.cpuset()?.iter_set().map(usize::from).collect())
}

/// Parses a list of cores as the kernel prints it (`0-3,8`); skips anything that is not a number.
pub(crate) fn core_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(feature = "hwlocality")]
#[allow(unsafe_code)]
mod node {
    use std::ptr::NonNull;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU8;

    use hwlocality::Topology;
    use hwlocality::memory::binding::{MemoryBindingFlags, MemoryBindingPolicy};
    use hwlocality::memory::nodeset::NodeSet;
    use hwlocality::object::types::ObjectType;

    /// A NUMA node of this machine.
    pub(super) struct Near {
        topology: &'static Topology,
        nodes: NodeSet,
    }

    impl Near {
        /// Returns the node with the kernel's number `index`, if the machine has several.
        pub(super) fn find(index: u32) -> Option<Near> {
            let topology = topology()?;
            let nodes = node_set(topology, index)?;
            Some(Near { topology, nodes })
        }

        /// Prefers the node for the pages of `at..at+len`, as long as it has free ones.
        pub(super) fn bind(&self, at: NonNull<u8>, len: usize) {
            // SAFETY: a fresh mapping of that length, not yet used elsewhere. Only its address is used;
            // atomics make no claim about its content.
            let area = unsafe { std::slice::from_raw_parts(at.as_ptr().cast::<AtomicU8>(), len) };
            let (policy, flags) = (MemoryBindingPolicy::Bind, MemoryBindingFlags::empty());
            // Without the strict flag this is a preference; on refusal, first touch decides.
            let _ = self.topology.bind_memory_area(area, &self.nodes, policy, flags);
        }
    }

    /// Returns this machine's topology, read once.
    pub(super) fn topology() -> Option<&'static Topology> {
        static TOPOLOGY: OnceLock<Option<Topology>> = OnceLock::new();
        TOPOLOGY.get_or_init(|| Topology::new().ok()).as_ref()
    }

    fn node_set(topology: &Topology, index: u32) -> Option<NodeSet> {
        let mut nodes = topology.objects_with_type(ObjectType::NUMANode);
        if nodes.len() < 2 {
            return None;
        }
        let node = nodes.find(|node| node.os_index() == usize::try_from(index).ok())?;
        Some(NodeSet::clone(&*node.nodeset()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Backing, HostMemory};

    #[test]
    fn a_list_of_cores_is_read_as_the_kernel_prints_it() {
        assert_eq!(core_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(core_list("5"), [5]);
        assert_eq!(core_list("\n"), [0usize; 0]);
        assert_eq!(core_list("x,1-,2"), [2]);
    }

    #[test]
    fn a_node_has_cores_or_is_not_there() {
        let cores = cores_of_node(0);
        assert!(cores.is_none_or(|cores| !cores.is_empty()), "node 0 exists without a core");
        assert_eq!(cores_of_node(4096), None);
    }

    #[test]
    fn memory_is_allocated_whatever_the_node() {
        for numa_node in [None, Some(0), Some(999)] {
            let place = place_near(&Locality { pci_address: None, numa_node });
            let memory = HostMemory::allocate(8192, Backing::Any, &place).expect("memory");
            assert_eq!(memory.len(), 8192);
        }
    }

    /// Tests something only on a machine with several nodes.
    #[cfg(feature = "hwlocality")]
    #[test]
    fn memory_lands_on_the_node_that_was_named() {
        use hwlocality::memory::binding::MemoryBindingFlags;
        use hwlocality::object::types::ObjectType;

        let topology = node::topology().expect("a topology");
        for node in topology.objects_with_type(ObjectType::NUMANode) {
            let numa_node = node.os_index().and_then(|index| u32::try_from(index).ok());
            let place = place_near(&Locality { pci_address: None, numa_node });
            let memory = HostMemory::allocate(1 << 20, Backing::SharedFile, &place);
            let memory = std::sync::Arc::new(memory.expect("memory"));
            let (atomics, flags) = (memory.atomics(), MemoryBindingFlags::empty());
            let nodes = topology.area_memory_location(atomics.dwords(), flags).expect("a location");
            assert_eq!(Some(&nodes), node.nodeset().as_deref(), "node {numa_node:?}");
        }
    }
}
