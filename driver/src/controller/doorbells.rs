//! Doorbells of all queues: their registers, and their shadows in memory if the controller takes Doorbell
//! Buffer Config (NVMe Base 2.0 section 5.8 and annex B).

use std::sync::Arc;

use crate::bus::{Bus, Doorbell};
use crate::error::Result;
use crate::memory::Mapping;
use crate::queue_pair::ring::{Bell, Shadow};
use crate::spec::register::{doorbell_cq, doorbell_sq};
use crate::spec::{Iova, Qid};
use crate::transfer::PAGE_BYTES;

/// The doorbells of one controller's queues.
pub(crate) struct Doorbells {
    bus: Arc<dyn Bus>,
    dstrd: u8,
    shadows: Option<Mapping>,
}

impl Doorbells {
    pub(super) fn new(bus: &Arc<dyn Bus>, dstrd: u8) -> Doorbells {
        Doorbells { bus: Arc::clone(bus), dstrd, shadows: None }
    }

    /// Allocates a page of shadow doorbells followed by a page of event indices.
    pub(super) fn allocate_shadows(bus: &Arc<dyn Bus>) -> Result<Mapping> {
        Mapping::allocate(bus, 2 * PAGE_BYTES as usize)
    }

    /// Returns the device addresses of the two pages.
    pub(super) fn shadow_pages(mapping: &Mapping) -> (Iova, Iova) {
        (mapping.iova(), Iova(mapping.iova().0 + PAGE_BYTES))
    }

    /// Makes queues use the shadows, which the controller already knows, if any.
    pub(super) fn with_shadows(self, shadows: Option<Mapping>) -> Doorbells {
        Doorbells { shadows, ..self }
    }

    /// Clears the two pages for a reset controller and returns their device addresses.
    pub(super) fn clear_shadows(&self) -> Option<(Iova, Iova)> {
        let mapping = self.shadows.as_ref()?;
        mapping.atomics().clear();
        Some(Doorbells::shadow_pages(mapping))
    }

    pub(super) fn has_shadows(&self) -> bool {
        self.shadows.is_some()
    }

    /// Returns the registers of a queue's submission tail and completion head.
    #[allow(unsafe_code)]
    pub(super) fn registers(&self, qid: Qid) -> Result<(Doorbell, Doorbell)> {
        let doorbell = |offset| {
            // SAFETY: they go to the queue's rings, which ring what they hold, and to the agent that drives a
            // raw queue pair, which is unsafe to create.
            unsafe { Arc::clone(&self.bus).doorbell(offset) }
        };
        Ok((doorbell(doorbell_sq(qid, self.dstrd))?, doorbell(doorbell_cq(qid, self.dstrd))?))
    }

    pub(super) fn bells(&self, qid: Qid, registers: (Doorbell, Doorbell)) -> (Bell, Bell) {
        let (submission, completion) = self.shadows_of(qid);
        (Bell::new(registers.0, submission), Bell::new(registers.1, completion))
    }

    pub(super) fn shadows_of(&self, qid: Qid) -> (Option<Shadow>, Option<Shadow>) {
        (
            self.shadow(qid, doorbell_sq(qid, self.dstrd)),
            self.shadow(qid, doorbell_cq(qid, self.dstrd)),
        )
    }

    /// Returns a doorbell's shadow, at the same offset in its page as the doorbell in the registers.
    fn shadow(&self, qid: Qid, register: u32) -> Option<Shadow> {
        let offset = register - doorbell_sq(Qid::ADMIN, self.dstrd);
        let pages = self.shadows.as_ref()?.atomics();
        let page = PAGE_BYTES as usize;
        let index = (offset as usize + 4 <= page).then_some(offset as usize / 4)?;
        let (doorbells, events) = (pages.slice(0, page), pages.slice(page, page));
        Some(Shadow { doorbells, events, index, ring_always: qid.is_admin() })
    }
}
