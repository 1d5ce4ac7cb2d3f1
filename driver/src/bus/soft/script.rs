//! Lets a test or simulation control a bus's controller.

use std::time::Duration;

use crate::soft::{Controller, FaultPlan, Result, Verdict};
use crate::spec::{Qid, Sqe};

/// The controller of a bus without its registers, doorbells and memory buffer. It accesses this process's
/// memory, so writing those is unsafe, as it is through [`crate::bus::Bus`].
#[derive(Debug)]
pub struct Script<'a>(pub(super) &'a mut Controller);

macro_rules! pass_on {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => { $(
        #[doc = concat!("Calls [`Controller::", stringify!($name), "`].")]
        pub fn $name(&mut self, $($argument: $type),*) $(-> $result)? {
            self.0.$name($($argument),*)
        }
    )* };
}

impl Script<'_> {
    /// Calls [`Controller::set_hook`].
    pub fn set_hook(&mut self, hook: impl FnMut(&Sqe, Qid) -> Verdict + Send + 'static) {
        self.0.set_hook(hook);
    }

    /// Calls [`Controller::alter_identify`].
    pub fn alter_identify(&mut self, alter: impl FnMut(u8, &mut [u8; 4096]) + Send + 'static) {
        self.0.alter_identify(alter);
    }

    pass_on! {
        set_cap(cap: u64);
        clear_hook();
        set_faults(plan: FaultPlan);
        fault_counts() -> Vec<u32>;
        refuse_disable(refuses: bool);
        refuse_reset(refuses: bool);
        refuse_subsystem_reset(refuses: bool);
        hang_enable(hangs: bool);
        set_delays(enable: Duration, disable: Duration);
        poll_shadow(always: bool);
        fail();
        reset() -> bool;
        is_removed() -> bool;
        set_temperature(kelvin: u16);
        warn_critical(warnings: u8);
        activate_firmware(duration: Duration);
        namespace_changed(nsid: u32);
        attach_namespace(nsid: u32, is_attached: bool) -> bool;
        resize_namespace(nsid: u32, lba_count: u64) -> Result<()>;
    }
}
