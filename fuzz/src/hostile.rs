//! The driver against a controller that misbehaves as the input says.
//!
//! | file | job |
//! |---|---|
//! | `mischief` | what the device does: choices from the back of the input |
//! | `bus` | where it does so: between the driver and the software controller, in virtual time |
//! | `user` | what the driver's user does meanwhile: choices from the front |
//!
//! Checked after every run: no panic; every call of the user is bounded in virtual time and in accesses to the bus;
//! every accepted request ended exactly once; nothing is left mapped. The last two do not apply to a controller that
//! could not be stopped, whose memory the driver withholds for good: then the bus must have refused to reset it. If
//! the controller misbehaves without lying (it fails, loses and delays commands, dies, or cannot be disabled), it
//! must also never have accessed memory that was taken from it too early.

mod bus;
mod mischief;
mod user;

use std::sync::Arc;
use std::time::Duration;

use adit_driver::{Controller, ControllerOptions};

use crate::input::Input;
use bus::HostileBus;
use user::User;

const ADMIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest ready timeout that the driver believes; it waits that long several times in a row.
const READY_TIMEOUT_MAX: Duration = Duration::from_secs(300);

/// The longest firmware activation that the driver believes; it waits that long with each admin command.
const ACTIVATION_MAX: Duration = Duration::from_secs(60);

/// Controllers with different features.
const MAKES: [&str; 6] = [
    "mem=1M",
    "mem=1M,lba=4096,sgl=dword,mdts=1,nssr=on",
    "mem=256k,namespaces=3,lba=512+4096+512,cmb=64k",
    "null,ioqueues=2,mqes=4,dbbuf=off,sgl=off,crdt=100ms+2s",
    "mem=1M,noiob=8,sgl=off,mdts=0,dstrd=1",
    "mem=1M,cmb=256k,dbbuf=off,mdts=3",
];

/// Runs one input. With `recovers`, the user recovers a controller that failed.
pub fn run(data: &[u8], recovers: bool) {
    let mut input = Input::new(data);
    let make = input.pick(&MAKES);
    let options = options(&mut input);
    let bus = HostileBus::new(make, input);
    let attached = bus.bounded("attach", bound(READY_TIMEOUT_MAX), || {
        Controller::attach(Arc::<HostileBus>::clone(&bus), &options)
    });
    match attached {
        Ok(controller) => {
            let mut user = User::new(Arc::clone(&bus), controller, recovers);
            user.work();
            user.leave();
        }
        Err(error) => assert!(!error.to_string().is_empty(), "refused with a reason"),
    }
    bus.check_end();
}

fn options(input: &mut Input) -> ControllerOptions {
    let bits = input.byte();
    ControllerOptions {
        io_queues: input.pick(&[64, 1, 2, u16::MAX]),
        sgl: bits & 1 == 0,
        shadow_doorbells: bits & 2 == 0,
        cmb: bits & 4 != 0,
        interrupts: bits & 8 != 0,
        subsystem_reset: bits & 16 == 0,
        admin_timeout: ADMIN_TIMEOUT,
        ..ControllerOptions::default()
    }
}

/// Returns how long any call may take on a controller that may take `ready` to become ready: down and up again by
/// every means, a shutdown, as many admin commands as a list of namespaces can need, and some that wait for firmware.
fn bound(ready: Duration) -> Duration {
    ready * 7 + Duration::from_secs(60) + ADMIN_TIMEOUT * 100 + ACTIVATION_MAX * 20
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use adit_driver::bus::Bus;
    use adit_driver::sys::{Backing, HostMemory};

    use super::*;

    /// A canary: the checks must be able to fail.
    #[test]
    #[allow(unsafe_code)]
    fn the_watch_can_fail() {
        let bus = HostileBus::new("mem=1M", Input::new(&[]));
        let second = Duration::from_secs(1);
        let fails = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).is_err();
        let late = || bus.bounded("a call", second, || bus.soft.advance(second * 2));
        assert!(fails(&late), "a call that takes too long");
        let endless = || bus.bounded("a call", second, || while bus.read32(0x1c) != u32::MAX {});
        assert!(fails(&endless), "a call that looks for ever");
        assert!(!fails(&|| bus.check_end()), "nothing is wrong yet");
        let memory = HostMemory::allocate(4096, Backing::Any, &|_, _| ()).expect("memory");
        // SAFETY: no queue is made, so the device accesses no memory.
        let map = || unsafe { bus.map(memory.range()) };
        bus.bounded("map", second, map).expect("mapped");
        assert!(fails(&|| bus.check_end()), "memory that is left mapped");
    }
}
