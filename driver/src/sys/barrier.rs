//! Fences between ring memory and doorbells.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the order of ring memory and doorbells is known for x86-64 and AArch64 only");

use std::sync::atomic::{Ordering, fence};

/// Keeps a doorbell write from becoming visible to the device before earlier writes to ring memory.
///
/// On x86-64 a store to device memory is never reordered before an earlier store to ordinary memory, so only the
/// compiler needs the fence.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn before_doorbell() {
    fence(Ordering::Release);
}

/// Keeps a doorbell write from becoming visible to the device before earlier writes to ring memory. The device is in
/// the outer shareable domain, which an ordinary release fence does not reach.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
#[allow(unsafe_code)]
pub fn before_doorbell() {
    fence(Ordering::Release);
    // SAFETY: a store barrier has no operands and touches no memory itself.
    unsafe { core::arch::asm!("dmb oshst", options(nostack, preserves_flags)) };
}

/// Keeps the read of an event index from being satisfied before our shadow doorbell is visible. Otherwise each side can
/// decide that the other one will act (NVMe Base 2.0 annex B.5, store-load order).
#[inline(always)]
pub fn between_shadow_and_event() {
    fence(Ordering::SeqCst);
}
