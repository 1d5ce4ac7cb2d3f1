//! Changed Namespace List log (LID 04h, Base 5.16.1.5).

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::Nsid;

/// Changed Namespace List log (Base 5.16.1.5): up to 1024 namespaces that changed since the last read of the log.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChangedNamespaces {
    /// The entries; the first 0 ends them.
    pub nsids: [U32; 1024],
}

const _: () = assert!(size_of::<ChangedNamespaces>() == 4096);

impl ChangedNamespaces {
    /// Returns whether more namespaces changed than the log can name; rescan all of them.
    pub const fn overflowed(&self) -> bool {
        self.nsids[0].get() == u32::MAX
    }

    /// Iterates over the changed namespaces. Skips identifiers that name no single namespace.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> {
        let nsids = self.nsids.iter().map(|nsid| Nsid(nsid.get()));
        nsids.take_while(|nsid| *nsid != Nsid::NONE).filter(|nsid| nsid.is_specific())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;
    use zerocopy::FromZeros;

    #[test]
    fn entries_end_at_zero() {
        let mut built = ChangedNamespaces::new_zeroed();
        (built.nsids[0], built.nsids[1], built.nsids[3]) = (4.into(), 2.into(), 9.into());
        let view = ChangedNamespaces::view(built.as_bytes()).unwrap();
        assert_eq!(view.iter().collect::<Vec<_>>(), [Nsid(4), Nsid(2)]);
        assert!(!view.overflowed());
    }

    #[test]
    fn overflow_names_no_namespace() {
        let mut built = ChangedNamespaces::new_zeroed();
        built.nsids[0] = u32::MAX.into();
        assert!(built.overflowed());
        assert_eq!(built.iter().count(), 0);
    }
}
