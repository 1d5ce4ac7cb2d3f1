//! The mapped parts of a device's region.

use std::ops::Range;
use std::sync::Arc;

use super::{Bus, Doorbell};
use crate::error::{Error, Result};
use crate::sys::Window;

/// Runs of a region mapped into this process, with their offsets in the region.
#[derive(Debug, Default)]
pub(super) struct MappedRuns(Vec<(u64, Window)>);

impl MappedRuns {
    pub(super) fn push(&mut self, offset: u64, window: Window) {
        self.0.push((offset, window));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Window)> {
        self.0.iter().map(|(start, window)| (*start, window))
    }

    /// Returns the window that holds `width` bytes at `offset` of the region, and their offset in it.
    pub(super) fn find(&self, offset: u64, width: u64) -> Option<(&Window, usize)> {
        self.0.iter().find_map(|(start, window)| {
            let inside = offset.checked_sub(*start)?;
            let end = inside.checked_add(width)?;
            (end <= window.len() as u64).then_some((window, inside as usize))
        })
    }
}

/// Checks the number of a BAR; the error is the reason.
pub(super) fn check_bar(bar: u8) -> Result<(), String> {
    if bar < 6 { Ok(()) } else { Err("a function has BAR0 to BAR5".to_owned()) }
}

/// Checks a window of a BAR of `bar_len` bytes of which `areas` may be mapped; the error is the reason.
pub(super) fn window_range(
    offset: u64,
    len: u64,
    bar_len: u64,
    areas: &[Range<u64>],
) -> Result<Range<u64>, String> {
    let end = offset.checked_add(len).filter(|end| len > 0 && *end <= bar_len);
    let end = end.ok_or_else(|| format!("{len} bytes at {offset:#x} exceed its {bar_len}"))?;
    if !areas.iter().any(|area| area.start <= offset && end <= area.end) {
        return Err(format!("{len} bytes at {offset:#x} may not be mapped"));
    }
    Ok(offset..end)
}

/// Returns the doorbell at `offset` of a BAR0 of `bar0_len` bytes: a store if `mapped`, else a message.
///
/// # Safety
/// As [`Bus::doorbell`].
#[allow(unsafe_code)]
pub(super) unsafe fn doorbell(
    bus: Arc<dyn Bus>,
    bar0_len: u64,
    offset: u32,
    mapped: Option<(&Window, usize)>,
) -> Result<Doorbell> {
    if u64::from(offset) + 4 > bar0_len {
        let what = format!("BAR0 has {bar0_len} bytes, no doorbell at {offset:#x}");
        return Err(Error::device(bus.device(), what, "use fewer queues"));
    }
    match mapped.and_then(|(window, inside)| window.register32(inside)) {
        Some(register) => Ok(Doorbell::Mapped(register)),
        // SAFETY: passed on to our caller.
        None => Ok(unsafe { Doorbell::message(bus, offset) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_wholly_in_a_run_is_found() {
        let page = Window::of_a_page;
        let mut runs = MappedRuns::default();
        runs.push(0x1000, page());
        runs.push(0x3000, page());
        let place = |offset, width| runs.find(offset, width).map(|(_, inside)| inside);
        assert_eq!(place(0x1000, 4), Some(0));
        assert_eq!(place(0x3ff8, 8), Some(0xff8));
        for outside in [0xffc, 0x1ffe, 0x2000, 0x4000, u64::MAX] {
            assert_eq!(place(outside, 4), None, "{outside:#x}");
        }
    }
}
