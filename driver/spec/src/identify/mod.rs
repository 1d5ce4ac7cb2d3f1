//! Data structures that Identify returns (Base 5.17, NVM 4.1.5).
//!
//! Structures are views with the specification's field names; a field that needs decoding has an accessor of the same
//! name (without `_z` if it converts). All values come from the device: sizes, indices and shifts are checked where
//! they are used, and out-of-range values become `None`.

mod controller;
mod controller_flags;
mod list;
mod namespace;
mod nvm;

pub use controller::IdentifyController;
pub use controller_flags::{Cmic, Ctratt, Lpa, Oacs, Oaes, Oncs, SglSupport, Sgls, Vwc};
pub use list::{NamespaceList, NamespaceListError};
pub use namespace::{IdentifyNamespace, LbaFormat};
pub use nvm::{IdentifyNvmController, IdentifyNvmNamespace};

/// Size of every Identify structure in bytes.
pub const IDENTIFY_BYTES: usize = 4096;

/// Returns `unit_bytes << exponent`; `None` for no limit, which exponent 0 and results beyond 64 bits mean.
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
