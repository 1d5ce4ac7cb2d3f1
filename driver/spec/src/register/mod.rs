//! Controller registers: offset, width, access and bit fields (Base 3.1.3).
//!
//! A register is a typed constant, `Reg<Value, Access>`, and a value is a newtype over its raw bits. Nothing here
//! touches memory: a bus reads and writes the raw value at [`Reg::offset`] with [`RegValue::WIDTH`]. A device may
//! return any value: every accessor is total, and conversions that could overflow return `Option`.

mod cmb;
mod config;
mod properties;

use core::marker::PhantomData;

pub use cmb::{Cmbloc, Cmbmsc, Cmbsts, Cmbsz};
pub use config::{Aqa, Cc, Csts, ShutdownNotification, ShutdownStatus};
pub use properties::{Cap, Crto, Version};

use super::bits::{bit_fields, bits, with_bits};
use super::ids::{Iova, Qid};

/// The raw form of a register value.
pub trait RegValue: Copy {
    /// Width of the register in bytes: 4 or 8.
    const WIDTH: u32;
    /// Takes the raw bits; a 4-byte register uses the low 32.
    fn from_raw(raw: u64) -> Self;
    /// Returns the raw bits; those above [`RegValue::WIDTH`] are zero.
    fn into_raw(self) -> u64;
}

impl RegValue for u32 {
    const WIDTH: u32 = 4;
    fn from_raw(raw: u64) -> u32 {
        raw as u32
    }
    fn into_raw(self) -> u64 {
        u64::from(self)
    }
}

impl RegValue for Iova {
    const WIDTH: u32 = 8;
    fn from_raw(raw: u64) -> Iova {
        Iova(raw)
    }
    fn into_raw(self) -> u64 {
        self.0
    }
}

/// Implements [`RegValue`] for a newtype over its raw integer.
macro_rules! reg_value {
    ($($type:ident: $raw:ty),+ $(,)?) => {$(
        impl $crate::register::RegValue for $type {
            const WIDTH: u32 = size_of::<$raw>() as u32;
            fn from_raw(raw: u64) -> $type {
                $type(raw as $raw)
            }
            fn into_raw(self) -> u64 {
                u64::from(self.0)
            }
        }
    )+};
}
use reg_value;

/// Access marker: the host may only read.
#[derive(Debug)]
pub enum ReadOnly {}
/// Access marker: the host may read and write.
#[derive(Debug)]
pub enum ReadWrite {}

/// Access markers of readable registers.
pub trait Readable {}
/// Access markers of writable registers.
pub trait Writable {}
impl Readable for ReadOnly {}
impl Readable for ReadWrite {}
impl Writable for ReadWrite {}

/// A register: its offset into BAR0, its value type and its access.
#[derive(Debug)]
pub struct Reg<T, A> {
    offset: u32,
    marker: PhantomData<fn() -> (T, A)>,
}

impl<T: RegValue, A> Reg<T, A> {
    /// Defines a register at byte `offset` of the controller's register space.
    pub const fn new(offset: u32) -> Reg<T, A> {
        assert!(T::WIDTH == 4 || T::WIDTH == 8);
        assert!(offset.is_multiple_of(T::WIDTH));
        Reg { offset, marker: PhantomData }
    }

    /// Offset in bytes from the start of BAR0.
    pub const fn offset(self) -> u32 {
        self.offset
    }

    /// Width in bytes: 4 or 8.
    pub const fn width(self) -> u32 {
        T::WIDTH
    }
}

impl<T, A> Clone for Reg<T, A> {
    fn clone(&self) -> Reg<T, A> {
        *self
    }
}

impl<T, A> Copy for Reg<T, A> {}

/// Controller Capabilities (Base 3.1.3.1).
pub const CAP: Reg<Cap, ReadOnly> = Reg::new(0x00);
/// Version (Base 3.1.3.2).
pub const VS: Reg<Version, ReadOnly> = Reg::new(0x08);
/// Interrupt Mask Set: writing a 1 masks that vector (Base 3.1.3.3).
pub const INTMS: Reg<u32, ReadWrite> = Reg::new(0x0c);
/// Interrupt Mask Clear: writing a 1 unmasks that vector (Base 3.1.3.4).
pub const INTMC: Reg<u32, ReadWrite> = Reg::new(0x10);
/// Controller Configuration (Base 3.1.3.5).
pub const CC: Reg<Cc, ReadWrite> = Reg::new(0x14);
/// Controller Status (Base 3.1.3.6). Writable only for the write-1-to-clear bit NSSRO.
pub const CSTS: Reg<Csts, ReadWrite> = Reg::new(0x1c);
/// NVM Subsystem Reset: writing [`NSSR_RESET`] resets the subsystem (Base 3.1.3.7).
pub const NSSR: Reg<u32, ReadWrite> = Reg::new(0x20);
/// Admin Queue Attributes (Base 3.1.3.8).
pub const AQA: Reg<Aqa, ReadWrite> = Reg::new(0x24);
/// Admin Submission Queue Base Address, page aligned (Base 3.1.3.9).
pub const ASQ: Reg<Iova, ReadWrite> = Reg::new(0x28);
/// Admin Completion Queue Base Address, page aligned (Base 3.1.3.10).
pub const ACQ: Reg<Iova, ReadWrite> = Reg::new(0x30);
/// Controller Memory Buffer Location (Base 3.1.3.11).
pub const CMBLOC: Reg<Cmbloc, ReadOnly> = Reg::new(0x38);
/// Controller Memory Buffer Size (Base 3.1.3.12).
pub const CMBSZ: Reg<Cmbsz, ReadOnly> = Reg::new(0x3c);
/// Controller Memory Buffer Memory Space Control (Base 3.1.3.16).
pub const CMBMSC: Reg<Cmbmsc, ReadWrite> = Reg::new(0x50);
/// Controller Memory Buffer Status (Base 3.1.3.17).
pub const CMBSTS: Reg<Cmbsts, ReadOnly> = Reg::new(0x58);
/// Controller Ready Timeouts (Base 3.1.3.21).
pub const CRTO: Reg<Crto, ReadOnly> = Reg::new(0x68);

/// The value ("NVMe") that starts an NVM Subsystem Reset when written to [`NSSR`].
pub const NSSR_RESET: u32 = 0x4e56_4d65;

/// Offset of the first doorbell, and so the minimum size of a controller's register space in bytes.
pub const DOORBELLS_OFFSET: u32 = 0x1000;

/// Returns the offset of the Submission Queue `qid` Tail Doorbell (PCIe Transport 3.1.2.1).
///
/// `dstrd` is [`Cap::dstrd`]. Doorbells past 4 GiB give `u32::MAX`, which the mapping's bounds check refuses.
pub const fn doorbell_sq(qid: Qid, dstrd: u8) -> u32 {
    doorbell(2 * qid.0 as u64, dstrd)
}

/// Returns the offset of the Completion Queue `qid` Head Doorbell (PCIe Transport 3.1.2.2); limits as [`doorbell_sq`].
pub const fn doorbell_cq(qid: Qid, dstrd: u8) -> u32 {
    doorbell(2 * qid.0 as u64 + 1, dstrd)
}

const fn doorbell(index: u64, dstrd: u8) -> u32 {
    let offset = DOORBELLS_OFFSET as u64 + (index << (2 + (dstrd & 0xf)));
    if offset > u32::MAX as u64 { u32::MAX } else { offset as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offsets_and_widths_follow_the_specification() {
        assert_eq!((CAP.offset(), CAP.width()), (0, 8));
        assert_eq!((VS.offset(), VS.width()), (8, 4));
        assert_eq!((CC.offset(), CC.width()), (0x14, 4));
        assert_eq!((ASQ.offset(), ASQ.width()), (0x28, 8));
        assert_eq!((CMBMSC.offset(), CMBMSC.width()), (0x50, 8));
        assert_eq!((CRTO.offset(), CRTO.width()), (0x68, 4));
    }

    #[test]
    fn doorbells_with_any_stride() {
        assert_eq!(doorbell_sq(Qid(0), 0), 0x1000);
        assert_eq!(doorbell_cq(Qid(0), 0), 0x1004);
        assert_eq!(doorbell_sq(Qid(3), 0), 0x1018);
        assert_eq!(doorbell_cq(Qid(1), 4), 0x1000 + 3 * 64);
        assert_eq!(doorbell_cq(Qid(u16::MAX), 15), u32::MAX);
    }

    fn round_trips<T: RegValue>(raw: u64) -> bool {
        let kept = if T::WIDTH == 4 { raw & 0xffff_ffff } else { raw };
        T::from_raw(raw).into_raw() == kept
    }

    proptest! {
        #[test]
        fn raw_values_round_trip(raw: u64) {
            prop_assert!(round_trips::<Cap>(raw) && round_trips::<Version>(raw) && round_trips::<Cc>(raw));
            prop_assert!(round_trips::<Csts>(raw) && round_trips::<Aqa>(raw) && round_trips::<Cmbloc>(raw));
            prop_assert!(round_trips::<Cmbsz>(raw) && round_trips::<Cmbmsc>(raw) && round_trips::<Cmbsts>(raw));
            prop_assert!(round_trips::<Crto>(raw) && round_trips::<Iova>(raw) && round_trips::<u32>(raw));
        }

        #[test]
        fn any_value_prints(raw: u64) {
            let _ = Cc::from_raw(raw).to_string() + &Csts::from_raw(raw).to_string();
            let _ = Version::from_raw(raw).to_string();
        }

        #[test]
        fn doorbells_never_overlap(qid: u16, dstrd in 0u8..16) {
            let (sq, cq) = (doorbell_sq(Qid(qid), dstrd), doorbell_cq(Qid(qid), dstrd));
            prop_assert!(sq == u32::MAX || cq == u32::MAX || cq - sq == 4 << dstrd);
        }
    }
}
