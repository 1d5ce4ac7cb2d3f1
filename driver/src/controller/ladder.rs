//! Stops a controller by ever stronger means, each with a time limit.
//!
//! | step | means | source |
//! |---|---|---|
//! | 1 | CC.EN = 0, waiting up to CAP.TO or CRTO | NVMe Base 2.0 section 3.7.2 |
//! | 2 | subsystem reset (NSSR), if CAP.NSSRS is set, no other controller is in the subsystem and the device answers | section 3.7.1 |
//! | 3 | function reset through the bus | |
//! | 4 | the bus cuts the device off from all memory | |
//!
//! The earlier steps, the Abort command and the re-creation of one queue, are in [`super::queue_pair`]. The
//! steps from 2 on are logged.

use super::cmb;
use super::info::ControllerInfo;
use super::registers::{describe, read, wait_for, write};
use crate::bus::Bus;
use crate::error::Result;
use crate::spec::register::{CC, CSTS, NSSR, NSSR_RESET, ShutdownNotification, ShutdownStatus};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It can be made ready again.
    Reset,
    /// It can no longer access any memory.
    CutOff,
}

/// Stops all DMA of the controller by the first step that works.
///
/// # Errors
/// The last step's error: the device may still access memory mapped for it.
pub(super) fn quiesce(bus: &dyn Bus, info: &ControllerInfo) -> Result<Stopped> {
    let disabled = disable(bus, info.ready_timeout).inspect(|()| {
        // Disabling leaves the memory buffer in place, over addresses that the next user may give to its own
        // memory.
        cmb::switch_off(bus, info.cap);
    });
    disabled
        .or_else(|error| match info.subsystem_reset && !read(bus, CSTS).is_all_ones() {
            true => reset_subsystem(bus, info.ready_timeout, &error),
            false => Err(error),
        })
        .or_else(|error| reset_function(bus, &error))
        .map(|()| Stopped::Reset)
        .or_else(|error| cut_off(bus, error).map(|()| Stopped::CutOff))
}

/// Clears CC.EN and waits until the controller is no longer ready.
pub(super) fn disable(bus: &dyn Bus, timeout: Duration) -> Result<()> {
    write(bus, CC, read(bus, CC).with_en(false).with_shn(ShutdownNotification::None));
    wait_for(bus, "CSTS.RDY to become 0 after CC.EN = 0", timeout, |status| !status.rdy()).map(drop)
}

fn reset_subsystem(bus: &dyn Bus, timeout: Duration, why: &crate::Error) -> Result<()> {
    tracing::warn!("{}: resetting its subsystem: {why}; {}", bus.device(), describe(bus));
    write(bus, NSSR, NSSR_RESET);
    let reset = wait_for(bus, "CSTS.RDY to become 0 after a subsystem reset", timeout, |status| {
        !status.rdy()
    });
    // A subsystem reset clears CC, as any controller-level reset does; CC.EN still set means it did not
    // happen.
    match reset {
        Ok(_) if read(bus, CC).en() => disable(bus, timeout),
        other => other.map(drop),
    }
}

fn reset_function(bus: &dyn Bus, why: &crate::Error) -> Result<()> {
    tracing::warn!("{}: resetting the function: {why}; {}", bus.device(), describe(bus));
    bus.reset()
}

fn cut_off(bus: &dyn Bus, why: crate::Error) -> Result<()> {
    tracing::warn!("{}: cutting it off from all memory: {why}", bus.device());
    bus.cut_off().map_err(|error| {
        tracing::error!("{}: {error}", bus.device());
        why
    })
}

/// Performs a normal shutdown (NVMe Base 2.0 section 3.6.1): the controller writes its caches out.
pub(super) fn shut_down(bus: &dyn Bus, timeout: Duration) -> Result<()> {
    write(bus, CC, read(bus, CC).with_shn(ShutdownNotification::Normal));
    let complete = |status: crate::spec::register::Csts| status.shst() == ShutdownStatus::Complete;
    wait_for(bus, "CSTS.SHST to report a complete shutdown", timeout, complete).map(drop)
}
