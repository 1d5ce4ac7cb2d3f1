//! How much memory the page cache may use: equations 1 and 2 of Dual-Blade, and their re-evaluation at run time.
//!
//! [`budget`] is a pure function of a [`Memory`], which a [`Probe`] reads from `/proc` and the files of the process's
//! own control group and of all groups above it, of both versions. A [`Governor`] turns budgets into a number of layers
//! that follows a shrinking budget at once and a growing one with hysteresis.

mod probe;

pub use probe::Probe;

/// The memory of the machine, and what control groups leave of it to this process.
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
    /// Returns what its limit leaves to the page cache.
    fn room(&self) -> Option<u64> {
        let used = self.anon_shmem_bytes.saturating_add(self.kernel_bytes);
        self.limit_bytes.map(|limit| limit.saturating_sub(used))
    }
}

/// Returns B_pc, the bytes that the page cache may use: `M* = min(M_avail, M_max - M_anon+shmem)` (equation 1), with
/// the smallest of all groups, and `B_pc = max(0, M* - reserve)` (equation 2). `reserve_bytes` is the pinned memory of
/// all copy threads that is yet to be allocated: what is allocated counts as anonymous memory already.
pub fn budget(memory: &Memory, reserve_bytes: u64) -> u64 {
    let rooms = memory.groups.iter().filter_map(GroupMemory::room);
    let most = rooms.fold(memory.available_bytes, u64::min);
    most.saturating_sub(reserve_bytes)
}

/// Returns how many bytes can be written into the page cache before the kernel begins to write them back
/// (`Documentation/admin-guide/sysctl/vm.rst`, and "Writeback" in `cgroup-v2.rst`).
pub fn dirty_room(memory: &Memory) -> u64 {
    let share = |bytes: u64| bytes / 1000 * u64::from(memory.background_per_mille);
    let bounds = memory.groups.iter().filter(|group| group.bounds_dirty);
    let of_groups = bounds.filter_map(|group| group.room().map(share));
    of_groups.fold(share(memory.available_bytes), u64::min).saturating_sub(memory.dirty_bytes)
}

/// How much tasks wait for memory (PSI), in per mille of the last ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// At least one task waited.
    pub some_per_mille: u32,
    /// All tasks waited.
    pub full_per_mille: u32,
}

/// From this share on, group 1 does not grow.
const HOLD_SOME_PER_MILLE: u32 = 50;
/// From this share on, group 1 gives a layer up with each evaluation, whatever the budget says.
const YIELD_FULL_PER_MILLE: u32 = 100;
/// Calm evaluations before group 1 grows, and between two layers by which it grows.
const CALM_COUNT: u32 = 3;

/// Decides how many layers are in group 1 as memory comes and goes.
///
/// It shrinks at once, by as many layers as the budget demands. It grows by one layer at a time, after some
/// evaluations in which the budget had room for that layer and half of another, so that a budget that wavers around a
/// multiple of a layer moves nothing.
#[derive(Clone, Debug)]
pub struct Governor {
    pair_bytes: u64,
    layers: u32,
    calm: u32,
}

impl Governor {
    /// Creates the governor of a run with `layers` layers of `pair_bytes` each.
    pub fn new(pair_bytes: u64, layers: u32) -> Governor {
        assert!(pair_bytes > 0 && layers > 0, "a run has layers with bytes");
        Governor { pair_bytes, layers, calm: 0 }
    }

    /// Returns the number of layers for group 1, which has `cached` now.
    pub fn evaluate(&mut self, cached: u32, x: u64, pressure: Option<Pressure>) -> u32 {
        assert!(cached <= self.layers, "group 1 has {cached} of {} layers", self.layers);
        let fit = crate::tensors::cached_layers(x, self.pair_bytes.div_ceil(2), self.layers);
        let pressure = pressure.unwrap_or_default();
        let yields = pressure.full_per_mille >= YIELD_FULL_PER_MILLE;
        if fit < cached || yields {
            self.calm = 0;
            return fit.min(cached.saturating_sub(u32::from(yields)));
        }
        let needs = (u64::from(cached) + 1).saturating_mul(self.pair_bytes);
        let has_room = x.saturating_sub(self.pair_bytes / 2) >= needs;
        let is_calm = pressure.some_per_mille < HOLD_SOME_PER_MILLE;
        self.calm = if has_room && is_calm && cached < self.layers { self.calm + 1 } else { 0 };
        if self.calm < CALM_COUNT {
            return cached;
        }
        self.calm = 0;
        cached + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAIR: u64 = 272 << 20;

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
    fn it_shrinks_at_once_and_grows_one_layer_at_a_time() {
        let mut governor = Governor::new(PAIR, 32);
        assert_eq!(governor.evaluate(20, 7 * PAIR + 1, None), 7);
        let mut cached = 7;
        let mut evaluations = 0;
        while cached < 12 {
            let next = governor.evaluate(cached, 40 * PAIR, None);
            assert!(next <= cached + 1);
            (cached, evaluations) = (next, evaluations + 1);
        }
        assert_eq!(evaluations, 5 * CALM_COUNT);
    }

    #[test]
    fn pressure_stops_growth_and_takes_layers() {
        let mut governor = Governor::new(PAIR, 32);
        let waits = Some(Pressure { some_per_mille: HOLD_SOME_PER_MILLE, full_per_mille: 0 });
        assert!((0..20).all(|_| governor.evaluate(4, 40 * PAIR, waits) == 4));
        let stalls = Some(Pressure { some_per_mille: 500, full_per_mille: YIELD_FULL_PER_MILLE });
        assert_eq!(governor.evaluate(4, 40 * PAIR, stalls), 3);
        assert_eq!(governor.evaluate(0, 40 * PAIR, stalls), 0);
    }

    #[test]
    fn a_budget_that_wavers_around_a_layer_moves_nothing() {
        let mut governor = Governor::new(PAIR, 32);
        for round in 0u64..100 {
            let x = 8 * PAIR + (round % 2) * PAIR + PAIR / 3;
            assert_eq!(governor.evaluate(8, x, None), 8);
        }
    }

    proptest! {
        #[test]
        fn group_1_never_exceeds_the_budget_and_settles_within_a_layer_of_it(
            steps in prop::collection::vec(0u64..40 * PAIR, 1..60)
        ) {
            let mut governor = Governor::new(PAIR, 32);
            let mut cached = 0;
            for x in &steps {
                cached = governor.evaluate(cached, *x, None);
                prop_assert!(u64::from(cached) * PAIR <= *x);
            }
            let x = steps[0];
            for _ in 0..33 * CALM_COUNT {
                cached = governor.evaluate(cached, x, None);
            }
            let fit = crate::tensors::cached_layers(x, PAIR / 2, 32);
            prop_assert!(cached <= fit && fit - cached <= 1, "{} of {}", cached, fit);
        }
    }
}
