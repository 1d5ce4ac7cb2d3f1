//! Memory near the device.
//!
//! [`place_near`] makes the `place` argument of
//! [`crate::sys::HostMemory::allocate`]: with the feature `hwlocality` it binds
//! fresh memory to the device's NUMA node before its pages exist. It is best
//! effort: where the node is unknown, the machine has one node or the kernel
//! refuses, pages land where they are first touched, as without the feature.

use std::ptr::NonNull;

use crate::bus::Locality;

/// Where to place memory for a device that sits at `locality`.
#[cfg(not(feature = "hwlocality"))]
pub(crate) fn place_near(_locality: &Locality) -> impl Fn(NonNull<u8>, usize) + use<> {
    |_, _| ()
}

/// Where to place memory for a device that sits at `locality`.
///
/// The first call for a device with a known node reads the machine's topology,
/// in some milliseconds; the process keeps it.
#[cfg(feature = "hwlocality")]
pub(crate) fn place_near(locality: &Locality) -> impl Fn(NonNull<u8>, usize) + use<> {
    let near = locality.numa_node.and_then(node::Near::find);
    move |at, len| {
        if let Some(near) = &near {
            near.bind(at, len);
        }
    }
}

/// The cores of a NUMA node by the kernel's numbers, where the machine says.
#[cfg(not(feature = "hwlocality"))]
pub(crate) fn cores_of_node(node: u32) -> Option<Vec<usize>> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    Some(core_list(&std::fs::read_to_string(path).ok()?))
}

/// The cores of a NUMA node by the kernel's numbers, where the machine says.
#[cfg(feature = "hwlocality")]
pub(crate) fn cores_of_node(node: u32) -> Option<Vec<usize>> {
    use hwlocality::object::types::ObjectType;
    let mut nodes = node::topology()?.objects_with_type(ObjectType::NUMANode);
    let found = nodes.find(|object| object.os_index() == usize::try_from(node).ok())?;
    Some(found.cpuset()?.iter_set().map(usize::from).collect())
}

/// A list of cores as the kernel prints it: `0-3,8`. What is no number is left out.
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
        /// The node that the kernel counts as `index`, if there are others to choose from.
        pub(super) fn find(index: u32) -> Option<Near> {
            let topology = topology()?;
            let nodes = node_set(topology, index)?;
            Some(Near { topology, nodes })
        }

        /// Lets the pages of `at..at+len` come from the node while it has some.
        pub(super) fn bind(&self, at: NonNull<u8>, len: usize) {
            // SAFETY: a fresh mapping of that length, which nobody else uses yet. Only its
            // address is used; atomics make no claim about its content.
            let area = unsafe { std::slice::from_raw_parts(at.as_ptr().cast::<AtomicU8>(), len) };
            let (policy, flags) = (MemoryBindingPolicy::Bind, MemoryBindingFlags::empty());
            // Without the strict flag this is a preference; a refusal leaves first touch.
            let _ = self.topology.bind_memory_area(area, &self.nodes, policy, flags);
        }
    }

    /// This machine's topology, read once.
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

    /// Says something only on a machine with several nodes.
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
