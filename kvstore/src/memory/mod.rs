//! The memory that this process may use: what is available on the machine, within the limits of control groups.
//!
//! A [`Probe`] reads a [`Memory`] from `/proc` and the files of the process's own control group and of all groups above
//! it, of both versions. [`budget`] is a pure function of it, equations 1 and 2 of Dual-Blade. Two caches follow it:
//! the memory tier of a [`Store`](crate::Store), whose size `elastic` decides, and the layers that a run of the crate
//! `adit-tensors` keeps in the page cache.

mod elastic;
mod pressure;
mod probe;

pub(crate) use elastic::Elastic;
pub use pressure::Strain;
pub use probe::Probe;
#[cfg(test)]
pub(crate) use probe::tests::Machine;

/// The memory of the machine, and of the control groups that limit this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// MemAvailable: what can be had without swapping, the page cache included.
    pub available_bytes: u64,
    /// Pages of files, of all processes, that are yet to be written back.
    pub dirty_bytes: u64,
    /// The share of memory, in per mille, from which on the kernel writes dirty pages back in the background
    /// (`vm.dirty_background_ratio` or `vm.dirty_background_bytes`).
    pub background_per_mille: u32,
    /// The process's control group and those above it.
    pub groups: Vec<GroupMemory>,
}

/// The memory of a control group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupMemory {
    /// Its folder, for messages.
    pub name: String,
    /// Its limit, if it has one.
    pub limit_bytes: Option<u64>,
    /// Anonymous and shared memory in it and below, of all its processes: reclaim cannot take it without swap.
    pub anon_shmem_bytes: u64,
    /// Memory of the kernel that is charged to it, which reclaim cannot take either. The paper's equation has no such
    /// term; its page tables and buffers would be promised to the page cache twice.
    pub kernel_bytes: u64,
    /// Whether the kernel holds dirty pages to a share of its memory: version 2.
    pub bounds_dirty: bool,
}

impl GroupMemory {
    /// Returns the bytes that its limit would leave if this process freed `own_bytes`.
    fn room(&self, own_bytes: u64) -> Option<u64> {
        let used = self.anon_shmem_bytes.saturating_add(self.kernel_bytes);
        // Added first: a group may have more than its limit.
        self.limit_bytes.map(|limit| limit.saturating_add(own_bytes).saturating_sub(used))
    }
}

impl Memory {
    /// Returns M* of equation 1 under the assumption that this process frees `own_bytes` of its memory.
    fn room(&self, own_bytes: u64) -> u64 {
        let rooms = self.groups.iter().filter_map(|group| group.room(own_bytes));
        rooms.fold(self.available_bytes.saturating_add(own_bytes), u64::min)
    }
}

/// Returns B_pc, the bytes that the page cache may use: `M* = min(M_avail, M_max - M_anon+shmem)` (equation 1), with
/// the smallest of all groups, and `B_pc = max(0, M* - reserve)` (equation 2). `reserve_bytes` is the pinned memory of
/// all copy threads that is yet to be allocated: what is allocated counts as anonymous memory already.
pub fn budget(memory: &Memory, reserve_bytes: u64) -> u64 {
    memory.room(0).saturating_sub(reserve_bytes)
}

/// Returns how many bytes can be written into the page cache before the kernel begins to write them back
/// (`Documentation/admin-guide/sysctl/vm.rst`, and "Writeback" in `cgroup-v2.rst`).
pub fn dirty_room(memory: &Memory) -> u64 {
    let share = |bytes: u64| bytes / 1000 * u64::from(memory.background_per_mille);
    let bounds = memory.groups.iter().filter(|group| group.bounds_dirty);
    let of_groups = bounds.filter_map(|group| group.room(0).map(share));
    of_groups.fold(share(memory.available_bytes), u64::min).saturating_sub(memory.dirty_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(limit: Option<u64>, used: u64, kernel: u64) -> GroupMemory {
        GroupMemory {
            name: String::new(),
            limit_bytes: limit,
            anon_shmem_bytes: used,
            kernel_bytes: kernel,
            bounds_dirty: false,
        }
    }

    #[test]
    fn equations_1_and_2() {
        let of = |available_bytes, groups| Memory { available_bytes, groups, ..Memory::default() };
        assert_eq!(budget(&of(900, vec![]), 200), 700, "no group");
        assert_eq!(budget(&of(900, vec![group(None, 600, 0)]), 200), 700, "no limit");
        assert_eq!(budget(&of(900, vec![group(Some(1000), 600, 50)]), 200), 150);
        let parent = vec![group(Some(1000), 100, 0), group(Some(800), 500, 0)];
        assert_eq!(budget(&of(900, parent), 0), 300, "the tightest group decides");
        assert_eq!(
            budget(&of(900, vec![group(Some(1000), 900, 0)]), 200),
            0,
            "less than the reserve"
        );
        assert_eq!(budget(&of(900, vec![group(Some(500), 900, 0)]), 0), 0, "over its limit");
    }

    #[test]
    fn dirty_pages_stay_below_the_kernels_threshold() {
        let of = |dirty_bytes, groups| Memory {
            available_bytes: 9000,
            dirty_bytes,
            background_per_mille: 100,
            groups,
        };
        assert_eq!(dirty_room(&of(0, vec![])), 900);
        assert_eq!(dirty_room(&of(200, vec![])), 700, "others' pages count");
        assert_eq!(dirty_room(&of(1000, vec![])), 0);
        let version1 = group(Some(5000), 1000, 0);
        let version2 = GroupMemory { bounds_dirty: true, ..version1.clone() };
        assert_eq!(dirty_room(&of(0, vec![version1])), 900, "version 1 does not bound them");
        assert_eq!(dirty_room(&of(0, vec![version2])), 400);
    }

    #[test]
    fn what_is_given_back_counts_also_against_what_exceeds_a_limit() {
        let groups = vec![group(Some(500), 800, 100)];
        let memory = Memory { available_bytes: 900, groups, ..Memory::default() };
        assert_eq!([0, 300, 400, 700].map(|own| memory.room(own)), [0, 0, 0, 300]);
        assert_eq!(Memory { groups: vec![], ..memory }.room(700), 1600);
    }
}
