//! Records which step last changed each part of the region; needed only if steps of a pass overlap.

use std::collections::TryReserveError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The last step that wrote or trimmed each unit. Clones share the table.
#[derive(Clone, Debug)]
pub(super) struct Latest {
    unit_bytes: u64,
    /// The step's number plus one; zero if there was none.
    steps: Arc<Vec<AtomicU64>>,
}

impl Latest {
    /// Creates an empty record of `units` units of `unit_bytes` each.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn new(units: u64, unit_bytes: u64) -> Result<Latest, TryReserveError> {
        let mut steps = Vec::new();
        steps.try_reserve_exact(units as usize)?;
        steps.resize_with(units as usize, || AtomicU64::new(0));
        Ok(Latest { unit_bytes, steps: Arc::new(steps) })
    }

    /// Records that the step changed `bytes` at `offset` from the start of the region.
    #[inline]
    pub(super) fn record(&self, offset: u64, bytes: u64, step: u64) {
        for unit in self.units(offset, bytes) {
            unit.store(step + 1, Relaxed);
        }
    }

    /// Returns whether no later step changed any of `bytes` at `offset`.
    pub(super) fn is_intact(&self, offset: u64, bytes: u64, step: u64) -> bool {
        self.units(offset, bytes).iter().all(|unit| unit.load(Relaxed) == step + 1)
    }

    fn units(&self, offset: u64, bytes: u64) -> &[AtomicU64] {
        let (from, to) = (offset / self.unit_bytes, (offset + bytes) / self.unit_bytes);
        &self.steps[from as usize..to as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_intact_until_another_touches_any_of_it() {
        let latest = Latest::new(8, 512).expect("memory");
        latest.record(0, 2048, 0);
        latest.record(2048, 512, 1);
        assert!(latest.is_intact(0, 2048, 0) && latest.is_intact(2048, 512, 1));
        latest.record(1536, 1024, 2);
        assert!(!latest.is_intact(0, 2048, 0) && !latest.is_intact(2048, 512, 1));
        assert!(latest.is_intact(1536, 1024, 2));
    }
}
