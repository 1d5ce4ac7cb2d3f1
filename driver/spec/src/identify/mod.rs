//! Data structures that Identify returns (Base 5.17, NVM 4.1.5).
//!
//! Structures are views with the specification's field names; a field that needs decoding has an accessor of the
//! same name (without `_z` where it converts). Everything here comes from the device: sizes, indices and shifts are
//! checked where they are used, and what is out of range is `None`.

mod controller;
mod controller_flags;
mod descriptors;
mod list;
mod namespace;
mod nvm;

pub use controller::{IdentifyController, PowerStateDescriptor};
pub use controller_flags::{Cmic, Ctratt, Fna, Lpa, Oacs, Oaes, Oncs, SglSupport, Sgls, Vwc};
pub use descriptors::{NamespaceDescriptor, NamespaceDescriptorError, NamespaceDescriptors};
pub use list::{NamespaceList, NamespaceListError};
pub use namespace::{DeallocatedRead, IdentifyNamespace, LbaFormat, Nsfeat};
pub use nvm::{IdentifyNvmController, IdentifyNvmNamespace};

/// Size in bytes of every structure that Identify returns.
pub const IDENTIFY_BYTES: usize = 4096;

/// `unit_bytes << exponent`, the form of the transfer limits; `None` for no limit, which is what 0 means and what a
/// limit too large for 64 bits amounts to.
const fn limit_bytes(exponent: u8, unit_bytes: u64) -> Option<u64> {
    match exponent {
        1..=63 => unit_bytes.checked_mul(1 << exponent),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::limit_bytes;

    #[test]
    fn limits_never_overflow() {
        assert_eq!(limit_bytes(0, 4096), None);
        assert_eq!(limit_bytes(5, 4096), Some(131_072));
        assert_eq!(limit_bytes(63, 4096), None);
        assert_eq!(limit_bytes(255, 4096), None);
    }
}
