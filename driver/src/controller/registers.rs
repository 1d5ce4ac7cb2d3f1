//! Typed, bounded access to a controller's registers.

use std::time::Duration;

use crate::bus::Bus;
use crate::bus::pci::VirtualFunction;
use crate::error::{Error, Result};
use crate::spec::register::{AQA, CAP, CC, CSTS, Csts, Readable, Reg, RegValue, VS, Writable};

/// Interval between two reads of a register.
const LOOK_EVERY: Duration = Duration::from_micros(100);

pub(crate) fn read<T: RegValue, A: Readable>(bus: &dyn Bus, register: Reg<T, A>) -> T {
    T::from_raw(match T::WIDTH {
        8 => bus.read64(register.offset()),
        _ => u64::from(bus.read32(register.offset())),
    })
}

/// Writes a register. Those that steer DMA (ASQ, ACQ, CC, CMBMSC) are for bring-up and the way down alone,
/// which name only memory that they mapped and hold.
#[allow(unsafe_code)]
pub(crate) fn write<T: RegValue, A: Writable>(bus: &dyn Bus, register: Reg<T, A>, value: T) {
    // SAFETY: the callers, all in this crate, keep to the above.
    unsafe {
        match T::WIDTH {
            8 => bus.write64(register.offset(), value.into_raw()),
            _ => bus.write32(register.offset(), value.into_raw() as u32),
        }
    }
}

/// Formats the registers that show a controller's state, for errors and the log. A removed device's registers
/// are not decoded.
pub(crate) fn describe(bus: &dyn Bus) -> String {
    let status = read(bus, CSTS);
    if status.is_all_ones() {
        return "its registers read as all ones".to_owned();
    }
    let (cap, version, config, queues) =
        (read(bus, CAP), read(bus, VS), read(bus, CC), read(bus, AQA));
    format!("CAP {:#018x} VS {version} {config} {status} AQA {:#010x}", cap.0, queues.0)
}

/// Waits until CSTS satisfies `reached`.
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

pub(crate) const GONE: &str = "its registers read as all ones: the device was removed, its link is down, or its server does not answer";

/// Returns the error of a device that reads as all ones: removed, without power or link, or without a server.
pub(crate) fn gone(bus: &dyn Bus) -> Error {
    let fix = match bus.virtual_function() {
        None => "check the slot and the kernel log, or the server, then open it again".to_owned(),
        Some(VirtualFunction { physical, .. }) => format!(
            "it is a virtual function, which is gone when its physical function {physical} is reset or \
             has none: see 'cat /sys/bus/pci/devices/{physical}/sriov_numvfs' and the kernel log, then \
             put it online and open it again"
        ),
    };
    Error::device(bus.device(), GONE, fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::soft::{Drive, SoftBus};

    #[test]
    fn registers_of_a_device_that_is_gone_are_not_decoded() {
        let bus = SoftBus::new("mem=1M".parse().expect("options"), Drive::Manual).expect("a bus");
        assert!(describe(&*bus).starts_with("CAP 0x"), "{}", describe(&*bus));
        bus.unplug();
        assert_eq!(describe(&*bus), "its registers read as all ones");
    }
}
