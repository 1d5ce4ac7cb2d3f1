//! Firmware Slot Information log (LID 03h, Base 5.16.1.4).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::view::Ascii;

/// Firmware Slot Information log (Base 5.16.1.4).
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// Active Firmware Info: bits 2:0 active slot, 6:4 slot after the next reset.
    pub afi: u8,
    reserved1: [u8; 7],
    /// Firmware Revision for Slots 1 to 7.
    pub frs: [Ascii<8>; 7],
    reserved64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareSlotLog>() == 512);

impl FirmwareSlotLog {
    /// The running slot: 1 to 7 on a sound controller.
    pub const fn active_slot(&self) -> u8 {
        self.afi & 7
    }

    /// The slot that the next Controller Level Reset activates; `None` if not set.
    pub const fn next_slot(&self) -> Option<u8> {
        match self.afi >> 4 & 7 {
            0 => None,
            slot => Some(slot),
        }
    }

    /// Firmware revision in `slot` (1 to 7); `None` if the slot does not exist or is empty.
    pub fn revision(&self, slot: u8) -> Option<Ascii<8>> {
        let index = usize::from(slot).checked_sub(1)?;
        self.frs.get(index).copied().filter(|revision| revision.0 != [0; 8])
    }

    /// The running firmware revision.
    pub fn active_revision(&self) -> Option<Ascii<8>> {
        self.revision(self.active_slot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;
    use zerocopy::FromZeros;

    #[test]
    fn slots_are_numbered_from_one() {
        let mut built = FirmwareSlotLog::new_zeroed();
        built.afi = 0x12;
        built.frs[1] = Ascii::padded("1.0.2");
        let view = FirmwareSlotLog::view(built.as_bytes()).unwrap();
        assert_eq!((view.active_slot(), view.next_slot()), (2, Some(1)));
        assert_eq!(
            view.active_revision().map(|revision| revision.to_string()),
            Some("1.0.2".into())
        );
        assert_eq!([0, 1, 8, 255].map(|slot| view.revision(slot)), [None; 4]);
    }
}
