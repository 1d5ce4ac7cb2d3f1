//! Fences between ring memory and doorbells.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the order of ring memory and doorbells is known for x86-64 and AArch64 only");

use std::sync::atomic::{Ordering, fence};

/// Forbids a doorbell write to become visible to the device before the ring
/// memory written ahead of it.
///
/// On x86-64 a store to device memory is never reordered before an earlier
/// store to ordinary memory, so only the compiler needs telling.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn before_doorbell() {
    fence(Ordering::Release);
}

/// Forbids a doorbell write to become visible to the device before the ring
/// memory written ahead of it: the device is in the outer shareable domain,
/// which an ordinary release fence does not reach.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
#[allow(unsafe_code)]
pub fn before_doorbell() {
    fence(Ordering::Release);
    // SAFETY: a store barrier has no operands and touches no memory itself.
    unsafe { core::arch::asm!("dmb oshst", options(nostack, preserves_flags)) };
}

/// Forbids the read of an event index to be satisfied before our shadow
/// doorbell is visible; without it both sides can decide that the other one
/// will act (NVMe Base 2.0 annex B.5, store-load order).
#[inline(always)]
pub fn between_shadow_and_event() {
    fence(Ordering::SeqCst);
}
