//! Memory near the device.
use crate::bus::Locality;
use std::ptr::NonNull;
pub(crate) fn place_near(_: &Locality) -> impl Fn(NonNull<u8>, usize) + use<> {
    |_, _| ()
}
