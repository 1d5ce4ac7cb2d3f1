//! Typed, bounded access to a controller's registers.

use std::time::Duration;

use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::spec::register::{AQA, CAP, CC, CSTS, Csts, Readable, Reg, RegValue, VS, Writable};

/// How long to let pass between two looks at a register.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Reads a register.
pub(crate) fn read<T: RegValue, A: Readable>(bus: &dyn Bus, register: Reg<T, A>) -> T {
    T::from_raw(match T::WIDTH {
        8 => bus.read64(register.offset()),
        _ => u64::from(bus.read32(register.offset())),
    })
}

/// Writes a register.
pub(crate) fn write<T: RegValue, A: Writable>(bus: &dyn Bus, register: Reg<T, A>, value: T) {
    match T::WIDTH {
        8 => bus.write64(register.offset(), value.into_raw()),
        _ => bus.write32(register.offset(), value.into_raw() as u32),
    }
}

/// The registers that tell what state a controller is in, for errors and the log.
pub(crate) fn describe(bus: &dyn Bus) -> String {
    format!(
        "{} VS {} {} {} {}",
        read(bus, CAP),
        read(bus, VS),
        read(bus, CC),
        read(bus, CSTS),
        read(bus, AQA)
    )
}

/// Waits until `reached` holds of CSTS.
///
/// # Errors
/// [`Error::Timeout`] after `timeout`, [`Error::Device`] if the device is gone.
pub(crate) fn wait_for(
    bus: &dyn Bus,
    what: &str,
    timeout: Duration,
    reached: impl Fn(Csts) -> bool,
) -> Result<Csts> {
    let deadline = bus.now() + timeout;
    loop {
        let status = read(bus, CSTS);
        if status.is_all_ones() {
            return Err(gone(bus));
        }
        if reached(status) {
            return Ok(status);
        }
        if bus.now() >= deadline {
            return Err(Error::Timeout {
                device: bus.device().to_owned(),
                waited_for: what.to_owned(),
                after: timeout,
                registers: describe(bus),
            });
        }
        bus.pause(LOOK_EVERY);
    }
}

/// The device reads as all ones: it was removed, or its power or link is off.
pub(crate) fn gone(bus: &dyn Bus) -> Error {
    Error::device(
        bus.device(),
        "its registers read as all ones: the device was removed or its link is down",
        "check the slot and the kernel log, then open it again",
    )
}
