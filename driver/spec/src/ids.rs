//! Identifiers and counts: a type for each kind of number that must not be confused with another.
//!
//! Counts with a zero-based wire form ([`LbaCount`], [`RangeCount`], [`QueueEntries`]) are stored zero-based and
//! converted once, at construction, which also checks the range. Checks against a namespace or controller do not belong
//! here.

use core::fmt;

/// Queue identifier; 0 is the admin queue pair (Base 3.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qid(pub u16);

impl Qid {
    /// The admin queue pair.
    pub const ADMIN: Qid = Qid(0);

    /// Returns whether this is the admin queue pair.
    pub const fn is_admin(self) -> bool {
        self.0 == 0
    }
}

/// Command identifier, unique among the outstanding commands of one submission queue (Base 3.3.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cid(pub u16);

/// Namespace identifier (Base 3.2.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nsid(pub u32);

impl Nsid {
    /// The broadcast value: all namespaces attached to the controller.
    pub const ALL: Nsid = Nsid(0xffff_ffff);
    /// The value for commands that use no namespace.
    pub const NONE: Nsid = Nsid(0);

    /// Returns whether this names one namespace: not [`Nsid::NONE`], [`Nsid::ALL`] or the reserved FFFFFFFEh.
    pub const fn is_specific(self) -> bool {
        self.0 != 0 && self.0 < 0xffff_fffe
    }
}

/// Logical block address within a namespace (NVM 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

impl Lba {
    /// Returns the address `lbas` logical blocks further, or `None` on overflow.
    pub const fn checked_add(self, lbas: u64) -> Option<Lba> {
        match self.0.checked_add(lbas) {
            Some(sum) => Some(Lba(sum)),
            None => None,
        }
    }
}

/// Bus address as the controller sees it, for PRP entries, SGL descriptors and queue base registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(pub u64);

impl Iova {
    /// Returns the address `bytes` further, or `None` on overflow.
    pub const fn checked_add(self, bytes: u64) -> Option<Iova> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Iova(sum)),
            None => None,
        }
    }

    /// Returns the offset in bytes into the address's page.
    ///
    /// `page_size` is a power of two; [`super::register::Cc::page_size`] gives one.
    pub const fn page_offset(self, page_size: u64) -> u64 {
        debug_assert!(page_size.is_power_of_two());
        self.0 & page_size.wrapping_sub(1)
    }

    /// Returns whether the address is a multiple of `align` bytes, a power of two.
    pub const fn is_aligned(self, align: u64) -> bool {
        self.page_offset(align) == 0
    }
}

macro_rules! printed_as {
    ($($type:ident: $format:literal;)+) => { $(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    )+ };
}

printed_as! {
    Qid: "{}";
    Cid: "{:#06x}";
    Lba: "{}";
    Iova: "{:#x}";
}

impl fmt::Display for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Nsid::ALL => f.write_str("all"),
            Nsid(id) => write!(f, "{id}"),
        }
    }
}

/// Implements counts whose wire form is one less.
macro_rules! counts {
    ($($type:ident($wire:ty): $least:ident = $min:literal, to $max:literal;)+) => { $(
        impl $type {
            #[doc = concat!("The least: ", $min, ".")]
            pub const $least: $type = $type($min - 1);
            #[doc = concat!("The most that the wire format holds: ", $max, ".")]
            pub const MAX: $type = $type(<$wire>::MAX);

            #[doc = concat!("Checks a count; `None` below ", $min, " and above ", $max, ".")]
            #[inline]
            pub const fn new(count: u32) -> Option<$type> {
                match count {
                    $min..=$max => Some($type((count - 1) as $wire)),
                    _ => None,
                }
            }

            /// The count.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0 as u32 + 1
            }

            /// The wire value: one less than the count.
            #[inline]
            pub const fn z(self) -> $wire {
                self.0
            }
        }
    )+ };
}

/// Number of logical blocks of one command: 1 to 65536 (NLB, NVM 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LbaCount(u16);

/// Number of ranges of a Dataset Management or Copy command: 1 to 256 (NR, NVM 3.2.2 and 3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RangeCount(u8);

/// Number of entries of a queue: 2 to 65536 (QSIZE, Base 5.4 and 5.5; one slot always stays empty).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueEntries(u16);

counts! {
    LbaCount(u16): ONE = 1, to 65536;
    RangeCount(u8): ONE = 1, to 256;
    QueueEntries(u16): MIN = 2, to 65536;
}

impl LbaCount {
    /// Takes the wire value; all are valid.
    #[inline]
    pub const fn from_z(nlb_z: u16) -> LbaCount {
        LbaCount(nlb_z)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lba_count_accepts_1_to_65536_only() {
        assert_eq!(LbaCount::new(0), None);
        assert_eq!(LbaCount::new(1), Some(LbaCount::ONE));
        assert_eq!(LbaCount::new(65536), Some(LbaCount::MAX));
        assert_eq!(LbaCount::new(65537), None);
        assert_eq!(LbaCount::MAX.z(), 0xffff);
        assert_eq!(LbaCount::from_z(7).get(), 8);
    }

    #[test]
    fn range_count_accepts_1_to_256_only() {
        assert_eq!(RangeCount::new(0), None);
        assert_eq!(RangeCount::new(1), Some(RangeCount::ONE));
        assert_eq!(RangeCount::new(256), Some(RangeCount::MAX));
        assert_eq!(RangeCount::new(257), None);
        assert_eq!((RangeCount::MAX.get(), RangeCount::MAX.z()), (256, 255));
    }

    #[test]
    fn queue_entries_refuses_a_queue_of_one() {
        assert_eq!(QueueEntries::new(1), None);
        assert_eq!(QueueEntries::new(2), Some(QueueEntries::MIN));
        assert_eq!(QueueEntries::new(65536), Some(QueueEntries::MAX));
        assert_eq!(QueueEntries::new(65537), None);
        assert_eq!(
            QueueEntries::new(64).map(|entries| (entries.get(), entries.z())),
            Some((64, 63))
        );
    }

    #[test]
    fn iova_arithmetic_is_checked() {
        assert_eq!(Iova(u64::MAX).checked_add(1), None);
        assert_eq!(Iova(0x1000).checked_add(0x10), Some(Iova(0x1010)));
        assert_eq!(Iova(0x12345).page_offset(4096), 0x345);
        assert!(Iova(0x3000).is_aligned(4096));
        assert_eq!(Lba(u64::MAX).checked_add(1), None);
    }

    #[test]
    fn namespace_identifiers_that_name_one_namespace() {
        assert!(Nsid(1).is_specific());
        assert!(!Nsid::NONE.is_specific());
        assert!(!Nsid::ALL.is_specific());
        assert_eq!(Nsid::ALL.to_string(), "all");
        assert_eq!(Nsid(3).to_string(), "3");
    }

    #[test]
    fn addresses_print_in_hex() {
        assert_eq!(Iova(0x1000).to_string(), "0x1000");
        assert_eq!(Cid(0x1f).to_string(), "0x001f");
    }
}
