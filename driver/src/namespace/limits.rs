//! Limits of commands without a data transfer (NVM Command Set 1.0 section 4.1.5.4). A controller fails a
//! longer Write Zeroes or Verify, and fails or partly ignores a longer Dataset Management.

use crate::spec::identify::IdentifyNvmController;
use crate::spec::register::{Cap, Version};
use crate::spec::{DsmRange, Lba, RangeCount};

/// A command covers more than the controller takes at once, though it transfers little or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asks} {what}, and the controller takes {takes} ({limit}): send several commands")]
pub struct OverLimit {
    /// The quantity that exceeds it.
    pub what: &'static str,
    /// The limit's name in Identify.
    pub limit: &'static str,
    /// The amount requested.
    pub asks: u64,
    /// The limit.
    pub takes: u64,
}

/// The most ranges in one Dataset Management command.
const RANGES_MAX: u32 = 256;

/// A controller's limits; a field at its type's maximum means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandLimits {
    verify_bytes: u64,
    write_zeroes_bytes: u64,
    ranges: u32,
    range_lbas: u32,
    deallocate_lbas: u64,
}

impl CommandLimits {
    /// The limits of a controller that reports none.
    pub(crate) const NONE: CommandLimits = CommandLimits {
        verify_bytes: u64::MAX,
        write_zeroes_bytes: u64::MAX,
        ranges: RANGES_MAX,
        range_lbas: u32::MAX,
        deallocate_lbas: u64::MAX,
    };

    /// Returns whether the controller supports the Identify page: since NVMe 2.0, earlier if it has I/O
    /// command sets.
    pub(crate) fn are_told(version: Version, cap: Cap) -> bool {
        version.mjr() >= 2 || cap.css() & 1 << 6 != 0
    }

    /// Reads the limits from Identify, given CAP's smallest page in bytes.
    pub(crate) fn of(identify: &IdentifyNvmController, page_size_min: u64) -> CommandLimits {
        let none = CommandLimits::NONE;
        let or = |limit: u64, none: u64| if limit == 0 { none } else { limit };
        CommandLimits {
            verify_bytes: identify.verify_bytes_max(page_size_min).unwrap_or(none.verify_bytes),
            write_zeroes_bytes: identify
                .write_zeroes_bytes_max(page_size_min)
                .unwrap_or(none.write_zeroes_bytes),
            ranges: or(identify.dmrl.into(), none.ranges.into()) as u32,
            range_lbas: or(identify.dmrsl_lbas.get().into(), none.range_lbas.into()) as u32,
            deallocate_lbas: or(identify.dmsl_lbas.get(), none.deallocate_lbas),
        }
    }

    /// # Errors
    /// [`OverLimit`] for a Verify of more than VSL.
    pub(crate) fn check_verify(&self, bytes: u64) -> Result<(), OverLimit> {
        check("bytes of one Verify", "VSL", bytes, self.verify_bytes)
    }

    /// # Errors
    /// [`OverLimit`] for a Write Zeroes of more than WZSL.
    pub(crate) fn check_write_zeroes(&self, bytes: u64) -> Result<(), OverLimit> {
        check("bytes of one Write Zeroes", "WZSL", bytes, self.write_zeroes_bytes)
    }

    /// # Errors
    /// [`OverLimit`] for more ranges than DMRL, one of more than DMRSL, or more than DMSL in all.
    pub(crate) fn check_ranges(&self, ranges: &[DsmRange]) -> Result<(), OverLimit> {
        let lbas = || ranges.iter().map(|range| u64::from(range.lbas()));
        let (longest, all) = (lbas().max().unwrap_or(0), lbas().sum());
        check("ranges of one deallocation", "DMRL", ranges.len() as u64, self.ranges.into())?;
        check("LBAs of one range to deallocate", "DMRSL", longest, self.range_lbas.into())?;
        check("LBAs of one deallocation", "DMSL", all, self.deallocate_lbas)
    }

    /// Returns the most LBAs of one deallocation, split into as many ranges as allowed.
    pub(crate) fn deallocate_lbas_max(&self) -> u64 {
        (u64::from(self.range_lbas) * u64::from(self.ranges)).min(self.deallocate_lbas)
    }

    /// Splits `lbas` LBAs from `lba` into the ranges of one deallocation.
    ///
    /// # Errors
    /// [`OverLimit`] for more than [`CommandLimits::deallocate_lbas_max`].
    pub(crate) fn cut(&self, lba: Lba, lbas: u32) -> Result<Ranges, OverLimit> {
        let most = self.deallocate_lbas_max();
        check("LBAs of one deallocation", "DMRL, DMRSL, DMSL", lbas.into(), most)?;
        Ok(Ranges { lba, lbas, each: self.range_lbas })
    }
}

fn check(what: &'static str, limit: &'static str, asks: u64, takes: u64) -> Result<(), OverLimit> {
    if asks <= takes { Ok(()) } else { Err(OverLimit { what, limit, asks, takes }) }
}

/// A run of LBAs as ranges of at most `each` LBAs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranges {
    lba: Lba,
    lbas: u32,
    each: u32,
}

impl Ranges {
    /// Returns the number of ranges: at least one, which may be empty.
    pub(crate) fn count(&self) -> RangeCount {
        let count = self.lbas.div_ceil(self.each).max(1);
        RangeCount::new(count).expect("cut into as many as a command may have")
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = DsmRange> {
        let starts = (0..self.lbas.max(1)).step_by(self.each as usize);
        starts.map(move |start| {
            let lbas = self.each.min(self.lbas - start);
            DsmRange::new(Lba(self.lba.0 + u64::from(start)), lbas)
        })
    }

    /// Returns the size of the range list in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.count().get()) * size_of::<DsmRange>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn limits(dmrl: u8, dmrsl: u32, dmsl: u64) -> CommandLimits {
        let mut identify = IdentifyNvmController::new_zeroed();
        (identify.dmrl, identify.dmrsl_lbas, identify.dmsl_lbas) =
            (dmrl, dmrsl.into(), dmsl.into());
        CommandLimits::of(&identify, 4096)
    }

    #[test]
    fn a_controller_that_states_none_has_none() {
        assert_eq!(limits(0, 0, 0), CommandLimits::NONE);
        assert!(!CommandLimits::are_told(Version::new(1, 4, 0), Cap(1 << 37)));
        assert!(CommandLimits::are_told(Version::new(1, 4, 0), Cap(1 << 43)));
        assert!(CommandLimits::are_told(Version::new(2, 0, 0), Cap(1 << 37)));
    }

    #[test]
    fn a_run_is_cut_into_what_a_range_may_be_and_refused_where_that_is_too_many() {
        let cut = |limits: CommandLimits, lbas| -> Result<Vec<u32>, OverLimit> {
            let ranges = limits.cut(Lba(7), lbas)?;
            let each: Vec<DsmRange> = ranges.iter().collect();
            assert_eq!(each.len(), ranges.count().get() as usize);
            assert_eq!(ranges.bytes(), size_of_val(&each[..]) as u64);
            let mut next = 7;
            for range in &each {
                assert_eq!(range.slba(), Lba(next));
                next += u64::from(range.lbas());
            }
            Ok(each.iter().map(DsmRange::lbas).collect())
        };
        assert_eq!(cut(CommandLimits::NONE, u32::MAX), Ok(vec![u32::MAX]));
        assert_eq!(cut(CommandLimits::NONE, 0), Ok(vec![0]));
        assert_eq!(cut(limits(3, 10, 0), 25), Ok(vec![10, 10, 5]));
        assert_eq!(cut(limits(3, 10, 0), 30), Ok(vec![10; 3]));
        assert_eq!(limits(3, 10, 0).deallocate_lbas_max(), 30);
        assert!(cut(limits(3, 10, 0), 31).is_err());
        assert!(cut(limits(0, 10, 20), 21).is_err());
        assert_eq!(cut(limits(0, 1, 0), 256), Ok(vec![1; 256]));
        assert!(cut(limits(0, 1, 0), 257).is_err());
    }
}
