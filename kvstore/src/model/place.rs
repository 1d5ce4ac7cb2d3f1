//! Places on devices, counted in units.
//!
//! Space is counted in units of 4 KiB on every device, whatever its LBA size; a unit is one or several LBAs.

use std::fmt;

use adit_driver::spec::Lba;

/// Bytes of a unit of space.
pub const UNIT_BYTES: u64 = 4096;

/// Returns the units that `bytes` take.
#[inline]
pub const fn units(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT_BYTES)
}

/// The start of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The index of the device among the targets.
    pub device: u8,
    /// Its first unit on the device, below 2^40.
    pub unit: u64,
}

impl Place {
    /// The end of addressable units: 4 PiB per device.
    pub const UNITS_MAX: u64 = 1 << 40;

    /// Packs the place into 48 bits: the unit in the low bits, the device above.
    ///
    /// # Panics
    /// If the unit does not fit.
    #[inline]
    pub fn pack(self) -> u64 {
        assert!(self.unit < Place::UNITS_MAX, "a unit has 40 bits");
        u64::from(self.device) << 40 | self.unit
    }

    /// Unpacks a place; ignores bits from 48 on.
    #[inline]
    pub fn unpack(bits: u64) -> Place {
        Place { device: (bits >> 40) as u8, unit: bits & (Place::UNITS_MAX - 1) }
    }

    /// Returns the place `units` further on.
    #[inline]
    #[must_use]
    pub fn plus(self, units: u64) -> Place {
        Place { unit: self.unit + units, ..self }
    }

    /// Returns its LBA on a device with LBAs of `lba_bytes`.
    ///
    /// # Panics
    /// If a unit is not a whole number of LBAs.
    #[inline]
    pub fn lba(self, lba_bytes: u32) -> Lba {
        let is_part = lba_bytes.is_power_of_two() && u64::from(lba_bytes) <= UNIT_BYTES;
        assert!(is_part, "a unit is whole LBAs");
        Lba(self.unit << (UNIT_BYTES.trailing_zeros() - lba_bytes.trailing_zeros()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unit {} of device {}", self.unit, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_packs_into_48_bits_and_back() {
        let place = Place { device: 255, unit: Place::UNITS_MAX - 1 };
        assert!(place.pack() < 1 << 48);
        assert_eq!(Place::unpack(place.pack()), place);
        assert_eq!(
            Place::unpack(Place { device: 0, unit: 7 }.pack()),
            Place { device: 0, unit: 7 }
        );
    }

    #[test]
    fn a_unit_is_one_or_eight_lbas() {
        let place = Place { device: 1, unit: 3 };
        assert_eq!(place.lba(4096), Lba(3));
        assert_eq!(place.lba(512), Lba(24));
        assert_eq!((units(1), units(4096), units(4097), units(0)), (1, 1, 2, 0));
    }
}
