//! A controller's state between service and reset, and its incarnation count.
//!
//! ```text
//! running -> failing -> quiesced -> recovering -> running, the next incarnation
//!                   \-> stuck ------/         \-> quiesced or stuck again
//! ```
//!
//! State and incarnation share one word, so that a queue learns with one load whether the controller still
//! knows it.

use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LifeState {
    /// In service.
    Running = 0,
    /// One thread is taking it out of service.
    Failing = 1,
    /// It no longer accesses our memory: buffers may be returned.
    Quiesced = 2,
    /// It may still access our memory: buffers in flight are withheld.
    Stuck = 3,
    /// One thread is making it ready again.
    Recovering = 4,
}

const STATE_BITS: u32 = 3;

/// A state of one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life(u32);

impl Life {
    pub(crate) const FIRST: Life = Life(LifeState::Running as u32);

    pub(crate) fn state(self) -> LifeState {
        match self.0 & ((1 << STATE_BITS) - 1) {
            0 => LifeState::Running,
            1 => LifeState::Failing,
            2 => LifeState::Quiesced,
            3 => LifeState::Stuck,
            _ => LifeState::Recovering,
        }
    }

    /// Returns the same incarnation in another state.
    pub(crate) fn with(self, state: LifeState) -> Life {
        Life(self.0 >> STATE_BITS << STATE_BITS | state as u32)
    }

    /// Returns the next incarnation, in service; it does not know earlier queues.
    pub(crate) fn next(self) -> Life {
        Life((self.0 >> STATE_BITS).wrapping_add(1) << STATE_BITS | LifeState::Running as u32)
    }

    pub(crate) fn is_running(self) -> bool {
        self.state() == LifeState::Running
    }
}

/// The life as seen by all handles and queues.
#[derive(Debug)]
pub(crate) struct SharedLife(AtomicU32);

impl SharedLife {
    pub(crate) fn new() -> SharedLife {
        SharedLife(AtomicU32::new(Life::FIRST.0))
    }

    pub(crate) fn get(&self) -> Life {
        Life(self.0.load(Ordering::Acquire))
    }

    /// Returns whether the life is still `life`.
    #[inline(always)]
    pub(crate) fn is(&self, life: Life) -> bool {
        self.0.load(Ordering::Relaxed) == life.0
    }

    /// Changes `from` to `to`; returns `false` if the life is no longer `from`.
    pub(crate) fn advance(&self, from: Life, to: Life) -> bool {
        self.0.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Called only by the thread that is failing or recovering the controller.
    pub(crate) fn set(&self, life: Life) {
        self.0.store(life.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_keeps_its_number_until_the_next_one_runs() {
        let mut life = Life::FIRST;
        for _ in 0..5 {
            let dead = life.with(LifeState::Quiesced);
            assert_eq!(dead.state(), LifeState::Quiesced);
            assert_eq!(dead.with(LifeState::Running), life);
            let next = dead.with(LifeState::Recovering).next();
            assert!(next.is_running() && next != life);
            life = next;
        }
    }

    #[test]
    fn only_one_of_two_takes_a_step() {
        let shared = SharedLife::new();
        let life = shared.get();
        assert!(shared.advance(life, life.with(LifeState::Failing)));
        assert!(!shared.advance(life, life.with(LifeState::Failing)));
        assert!(!shared.is(life));
    }
}
